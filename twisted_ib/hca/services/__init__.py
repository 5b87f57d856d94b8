"""
The transport services RC, UC and UD over a fabric of operations (IBTA vol. 1 9.7 to 9.8).  Pure.

L{twisted_ib.hca.services.work.WorkQueues} is the pair of work queues of a queue pair whose program posts
work requests: a requester, which sends and completes them, and a responder, which receives the peer's
requests and answers them.  Queue pairs of streams have no work queues: they send inline and are notified
of each record; L{twisted_ib.hca.services.datagramconsumer} does the same for datagrams.

Besides:

  - C{address}: address vectors, address handles, and the path to each address
  - C{datagram}: unreliable datagrams (UD) over a fabric of operations
  - C{datagramform}: the forms of a datagram's record
  - C{operations}: the operations of work requests, a module for each kind
  - C{requester}: the send queue of a reliable connection over a fabric of operations
  - C{responder}: the receive queue of a reliable connection, and the peer's access to memory
  - C{sendqueue}: the posting side of a send queue
  - C{unreliable}: unreliable connections (UC) over a fabric of operations
  - C{work}: the work queues of a queue pair
"""
