"""
Programs at a port, by octets.
"""
