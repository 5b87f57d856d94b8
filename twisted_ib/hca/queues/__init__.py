"""
Queue pairs, completion queues and shared receive queues, and the requests that are posted to them
(IBTA vol. 1 10.2 to 10.8).  Pure.

Begin with L{twisted_ib.hca.queues.queuepair.QueuePair}: states, and what crosses the seam to a fabric.
"""
