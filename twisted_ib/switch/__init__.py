"""
The offload switch: SDP for programs that call for TCP, where both ends have SDP.

C{switch} is what C{listenTCP} and C{connectTCP} call: begin there.  C{listening} and C{connecting} are the
two sides.  A TCP port has SDP listeners (C{listeners}); a client's C{connecting.Attempt}, which asyncio and
blocking sockets use too, looks for C{candidates}, tries them (C{offload}), and falls back to TCP.
C{gainless} knows where blocking sockets gain nothing, C{reason} says why a connection goes the way it goes,
C{sockdiag} asks the kernel which TCP socket a peer would reach.  C{bypass} avoids all of it.

Besides:

  - C{handle}: the result of C{getHandle()} where there is no socket
  - C{rules}: the rules of the offload switch, in the language of C{libsdp.conf} (L{twisted_ib.configuration})
  - C{serverclient}: SDP transports of connections that the application asked of TCP
"""
