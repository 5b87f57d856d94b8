"""
The transport services RC, UC and UD over a fabric of operations (IBTA vol. 1 9.7 to 9.8).  Pure.

L{twisted_ib.hca.services.work.WorkQueues} is the pair of work queues of a queue pair whose program posts
work requests: a requester, which sends and completes them, and a responder, which receives the peer's
requests and answers them.  Queue pairs of streams have no work queues: they send inline and are notified
of each record; L{twisted_ib.hca.services.datagramconsumer} does the same for datagrams.
"""
