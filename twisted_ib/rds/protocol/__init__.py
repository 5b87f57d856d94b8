"""
The RDS protocol without I/O, clock or Twisted: wire format, reliability of a path, congestion, streams.
Begin with C{machine}, one path.

Besides:

  - C{bundle}: small datagrams from one socket to one other, written in one reactor turn, sent as one message
    between processes of this host
  - C{congestion}: which ports of an address accept no more data, one bit for each of 65536
  - C{frames}: the frames of streams over reliable datagrams
  - C{streammachine}: the state machine of one end of a stream over reliable datagrams, without I/O, clock or
    Twisted
  - C{streams}: the stream sessions of one RDS socket
  - C{wire}: the RDS wire format of Linux
"""
