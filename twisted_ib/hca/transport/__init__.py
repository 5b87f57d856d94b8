"""
What reliable and unreliable connections need over a medium that loses packets.
"""
