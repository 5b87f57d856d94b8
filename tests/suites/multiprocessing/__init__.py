"""
The interpreter's own tests of C{multiprocessing}'s connections, queues and listeners, with its classes and
with those of L{twisted_ib.queues}.
"""
