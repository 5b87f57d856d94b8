"""
What Twisted's users of every protocol on an HCA see: ports, connectors, transports, endpoints.

A C{channel} joins a device to a reactor.  A stream (C{sdp:}) and messages (C{ib:}) differ in what they send
and in what their REQ and REP say, which is the module that a port and a connector call their
I{handshake}.  All else that TCP's users know is here once: addresses, ephemeral ports, names, error classes,
the backlog, the timeout, producers, closing, log lines.
"""
