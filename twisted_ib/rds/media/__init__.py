"""
The media that carry an RDS path: TCP connections and RC queue pairs.  Begin with C{tcp} and C{rc}, which
C{rcaddresses} and C{rcprocesses} make a medium of, by what names the peers.

Besides:

  - C{rccarrier}: one path of RDS on a queue pair
  - C{rcconnect}: connection attempts of RDS on queue pairs
  - C{rcconnection}: RDS on RC queue pairs
  - C{rcrelay}: several processes on one address of a host
  - C{rcrelaymedium}: the medium between them
  - C{tcpcarrier}: the TCP connection that carries a path's messages, with its Twisted transports
"""
