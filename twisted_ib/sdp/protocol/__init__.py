"""
SDP without I/O, clock or Twisted: the messages, the machine of one connection, and its extensions (IBTA vol.
1 annex A4).
"""
