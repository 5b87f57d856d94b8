"""
The Twisted side of every protocol on an HCA: ports, connectors, transports, endpoints.

Begin with C{channel}, which joins a device to a reactor, then C{port}, C{connector} and C{transport}.  A
stream (C{sdp:}) and messages (C{ib:}) differ in what they send and in the contents of their REQ and REP,
which a module or an object builds that ports and connectors call their I{handshake}.  Everything else that
users of TCP expect is here once: addresses, ephemeral ports, names, error classes, backlog, timeout,
producers, closing, log lines.

Besides:

  - C{addressing}: addresses and ports by which applications connect and listen
  - C{batchedcalls}: delayed calls that many connections share
  - C{deferredaccept}: half-open connections of a port over IP
  - C{failures}: errors of a device translated into those of C{twisted.internet.error}
  - C{logcontext}: the C{system} of log lines while an application is called
  - C{readers}: ports and connections in place of devices among a reactor's readers
  - C{region}: the memory regions and memory windows of one connection
  - C{serverclient}: server and client transports, as L{twisted.internet.tcp} has C{Server} and C{Client}
  - C{strings}: C{sdp:PORT}, C{ib:PORT} or C{rds:PORT} for servers, C{sdp:HOST:PORT} and so on for clients
"""
