"""
The SDP protocol core: messages, connection machine and zero copy (IBTA vol. 1 annex A4).  No I/O, no clock,
no Twisted.  Begin with C{machine}; what the messages look like is in C{wire}.

Besides:

  - C{modes}: flow-control modes of one direction of a stream, and the legal transitions between them (IBTA
    vol. 1 annex A4)
  - C{sinkadverts}: the sink's half of zero copy
  - C{sourceadverts}: the source's half of zero copy
  - C{zerocopy}: the rest of the SDP machine
"""
