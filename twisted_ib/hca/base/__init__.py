"""
Vocabulary that every layer of the HCA shares.  Pure.

C{operation} names the records that queue pairs and fabrics exchange; C{interfaces} are the seams.  C{states}
has the states of a queue pair, C{port} a port and its changes, C{partition} P_Keys, C{traits} the facts of a
fabric, C{events} the asynchronous events, C{timers} the deadlines, C{refcount} references between objects,
C{machine} state machines as tables, C{polling} when to poll instead of sleeping, C{attributes} what a device
reports of itself, C{socketrows} the rows of C{ib-ss}.
"""
