"""
Reliable Datagram Sockets, as Linux speaks them, for Twisted.
"""
