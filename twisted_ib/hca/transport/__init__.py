"""
What reliable and unreliable connections need over a medium that loses packets.

L{reliable.ReliableConnection} is what a TCP control block is while data flows: its I{requester} cuts
records into packets, numbers them, keeps them until they are acknowledged and sends them again; its
I{responder} takes packets in order, hands each to the queue pair, which checks all rights, and owes
acknowledgements, refusals and answers to READs and atomics.  L{unreliable.UnreliableConnection} only
cuts and joins.  Datagrams need nothing of this.
"""
