"""
Management datagrams (MADs) and the agents that serve them (IBTA vol. 1 chapter 13), without I/O.

C{dispatch} finds the agent of a MAD, and keeps requests that wait for a response. C{agents} lists the agents
that every device begins with: a management class is a module here and a row there. C{gsi} is connection
management.

C{layouts} has fields as data, and C{attributes} the attributes that are made of them.
"""
