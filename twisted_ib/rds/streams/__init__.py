"""
Byte streams over RDS datagrams, for Twisted's protocols and endpoints.  Begin with C{streamsocket}.

Besides:

  - C{connector}: the active side of streams over reliable datagrams
  - C{listening}: the passive side of streams over reliable datagrams
  - C{transport}: the Twisted transport of a stream over reliable datagrams (ITCPTransport)
"""
