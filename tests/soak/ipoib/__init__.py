"""
IPoIB for a long time.
"""
