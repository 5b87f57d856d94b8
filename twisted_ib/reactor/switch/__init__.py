"""
The offload switch: SDP for programs that call for TCP, where both ends have SDP.

C{listening} and C{connecting} are the two sides.  A TCP port has C{sdplistener}s; a client looks for
C{candidates}, tries them (C{offload}), and falls back to TCP.  C{bypass} avoids all of it.
"""
