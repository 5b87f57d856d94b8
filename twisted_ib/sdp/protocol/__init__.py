"""
The SDP protocol core: messages, connection machine and zero copy (IBTA vol. 1 annex A4).  No I/O, no clock,
no Twisted.  Begin with C{machine}; what the messages look like is in C{wire}.
"""
