"""
iWARP: RDMA over TCP connections (RFC 5040, 5041, 5044, 6581).

One TCP connection carries one queue pair. C{protocol} has the rules of the wire, pure; L{mpaservice} is
between them and connection management, L{streampath} between them and a queue pair, L{iwarp} owns the
sockets.
"""
