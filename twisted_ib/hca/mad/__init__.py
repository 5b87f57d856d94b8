"""
Management datagrams (MADs) and the agents that serve them (IBTA vol. 1 chapter 13), without I/O.

C{takers} is the table of who takes a MAD, C{dispatch} finds its agent; C{requests} are those that wait for a
response, and have another queue pair serve a class, C{transfers} those of many MADs, by the machines of
C{rmpp}.  C{agents} lists the agents that every device begins with: a management class is a module here and a
row there.  C{gsi} is connection management, C{pma} performance management, C{vendor} OpenIB's ping.

Besides:

  - C{attributes}: management attributes, each a class with its layout
  - C{sa}: the client of subnet administration
  - C{user}: the MADs of a program at a port
"""
