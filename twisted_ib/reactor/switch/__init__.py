"""
The offload switch: calls for TCP that use SDP where both ends have it.

C{listening} and C{connecting} are the two sides.  A port of TCP has C{sdplistener}s beside it; a client looks
for C{candidates}, tries them (C{offload}), and falls back to TCP.  C{bypass} goes around it all.
"""
