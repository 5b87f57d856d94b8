"""
C{roce0}: RoCEv2 over UDP, without privileges (IBTA vol. 1 annex A17).

C{packet} is the fabric and C{roce} its link, UDP sockets.  Each connected queue pair has a path of its own
(C{qppath}) with the transport's state; datagrams and queue pair 1 use C{peerpath}.  C{receive} checks what
arrives and C{transmit} makes packets of what leaves.
"""
