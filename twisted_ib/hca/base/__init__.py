"""
What every layer of the HCA shares.  Pure.

C{operation} names the records that cross the seam between queue pairs and fabrics; C{interfaces} are the
seams themselves.  C{states} has the states of a queue pair, C{events} the asynchronous events, C{timers} the
deadlines, C{keys} random numbers, C{refcount} objects that others depend on.
"""
