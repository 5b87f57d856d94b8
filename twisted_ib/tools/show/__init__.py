"""
C{ib-devinfo} and C{ib-ss}: the devices of running processes, their listeners and connections.  Begin with
C{devinfo} and C{ss}.

Besides:

  - C{devicetext}: the description of an HCA in C{ibv_devinfo}'s words and layout, and as JSON
  - C{filters}: the filters of C{ib-ss}, in the language of ss(8)
  - C{processes}: processes as the kernel shows them to this user
  - C{sockettext}: listeners and connections for people
  - C{stat}: the HCAs of this user's running processes and their ports, in C{ibstat}'s text
"""
