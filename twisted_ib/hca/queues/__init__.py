"""
Queue pairs, completion queues, shared receive queues, and the work requests posted to them (IBTA vol. 1
10.2 to 10.8).  Pure.

Begin with L{twisted_ib.hca.queues.queuepair.QueuePair}: its states, and what crosses the seam to a fabric.
"""
