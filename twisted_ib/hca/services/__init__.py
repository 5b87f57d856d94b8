"""
The transport services RC, UC and UD over a fabric of operations (IBTA vol. 1 9.7 to 9.8).  Pure.

L{twisted_ib.hca.services.work.WorkQueues} is what a queue pair has if a program posts work requests: a
C{requester}, which sends and completes them, and a C{responder}, which takes what the peer sends and answers.
Streams go without: they send inline, and are told of each record.
"""
