"""
C{roce0}: RoCEv2 over UDP sockets, without privileges (IBTA vol. 1 annex A17).

The fabric is in C{packet}; C{roce} has its link only, UDP sockets, which the processes of one user share as
C{portgroup} and C{slots} say; C{orphans} ends the connections of one that has died. Each connected queue pair
has a path of its own (C{qppath}) with the transport's state; datagrams and queue pair 1 use C{peerpath}.
C{receive} validates and dispatches packets, C{transmit} builds and sends them. C{connparams} negotiates
connections, C{sessions} keeps the connected ones and their timers; C{waker} wakes a reactor.
"""
