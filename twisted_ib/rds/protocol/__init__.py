"""
The RDS protocol without I/O, clock or Twisted: wire format, reliability of a path, congestion, streams.
Begin with C{machine}, one path.
"""
