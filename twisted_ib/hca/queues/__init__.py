"""
Queue pairs, completion queues, shared receive queues, and the work requests posted to them (IBTA vol. 1
10.2 to 10.8).  Pure.

Begin with L{twisted_ib.hca.queues.streamqueuepair.StreamQueuePair}: its states, and what crosses the seam to
a fabric.

Modules:

  - C{completion}: completion queues, and the work completions that a program polls from them
  - C{consumers}: the users of queue pairs, who are told what arrives
  - C{queuepair}: the queue pair whose consumer chooses its attributes
  - C{reassembly}: reassembly of a message for a consumer that comes in several records
  - C{receives}: receives, the elements of lists that they are made of, and the queues of both kinds
  - C{requests}: work requests, and the attributes and capabilities of a queue pair
  - C{scatter}: find and copy the bytes of a message
  - C{streamqueuepair}: state, numbers, what crosses the seam (IBTA vol. 1 10.2.4), and the base class of what
    takes a path's records
"""
