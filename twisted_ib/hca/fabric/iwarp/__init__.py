"""
iWARP: RDMA over TCP connections (RFC 5040, 5041, 5044, 6581).

One TCP connection carries one queue pair. C{protocol} has the rules of the wire, pure; L{mpaservice} makes
connections of them, L{streampath} is between them and a queue pair, L{iwarp} owns the
sockets.

Besides:

  - C{connection}: one connection, as its user sees it
  - C{peerpath}: paths to peers' addresses
"""
