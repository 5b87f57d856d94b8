"""
The Twisted side of every protocol on an HCA: ports, connectors, transports, endpoints.

Begin with C{channel}, which joins a device to a reactor, then C{port}, C{connector} and C{transport}.  A
stream (C{sdp:}) and messages (C{ib:}) differ in what they send and in the contents of their REQ and REP,
which a module or an object builds that ports and connectors call their I{handshake}.  Everything else that
users of TCP expect is here once: addresses, ephemeral ports, names, error classes, backlog, timeout,
producers, closing, log lines.
"""
