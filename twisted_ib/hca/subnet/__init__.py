"""
An InfiniBand subnet, without I/O: its nodes and links, the way of a datagram through it, and its clients.
"""
