"""
The pure part of IPoIB: codecs, tables of neighbours, groups and connections, and the machine of one
interface.

Modules:

  - C{connected}: connected mode (RFC 4755)
  - C{interfaces}: the two sides of an IPoIB interface
  - C{ip}: the headers of IP as an IPoIB interface itself reads and writes them
  - C{machine}: the machine of an IPoIB interface
  - C{memberships}: IP multicast memberships of a kernel, from the reports that it sends (IGMP: RFC 1112,
    2236, 3376; MLD: RFC 2710, 3810)
  - C{multicast}: the multicast groups of an interface
  - C{neighbours}: the neighbours of an interface
  - C{peers}: the interfaces that neighbours have, and the paths to their ports
  - C{routes}: the IP addresses of an interface, and where a packet goes
  - C{stack}: the pure part of a stack in user space
  - C{wire}: the formats of IPoIB
"""
