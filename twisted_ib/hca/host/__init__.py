"""
How processes of one host find each other: a directory of Unix sockets, and what is said over them.

A process binds C{entries} in a C{rundirectory}; C{rendezvous} is its own entries, C{search} finds others'.
C{handshake} has the messages, C{fdpassing} sends them with descriptors, C{liveness} says who a peer is and
whether it lives. C{query} and C{queryserver} are how commands ask a process what it has in use.
"""
