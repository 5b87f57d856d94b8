"""
The machines of blocking sockets.  No I/O, no clock, no Twisted.

  - C{moves}: the move of a connection to TCP
"""
