"""
Reliable and unreliable connections over a medium that loses packets (IBTA vol. 1 9.7, 9.8.2).  Pure.

L{reliable.ReliableConnection} is comparable to a TCP control block in ESTABLISHED: its I{requester} splits
records into packets, numbers them, keeps them until they are acknowledged and retransmits them; its
I{responder} accepts packets in order, delivers each to the queue pair, which checks all rights, and sends
acknowledgements, NAKs and responses to READs and atomics.  L{unreliable.UnreliableConnection} only splits
and joins.  Datagrams need none of it.
"""
