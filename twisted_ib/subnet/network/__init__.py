"""
An InfiniBand subnet, without I/O: its nodes and links, the way of a datagram through it, and its clients.

Modules:

  - C{forwarding}: where packets go in a subnet
  - C{graph}: the nodes, ports and links of a subnet, and the state machine of a link (IBTA vol. 1 7.2.7,
    14.2.5.6)
  - C{smi}: the way of a management datagram through a subnet
  - C{switch}: the forwarding tables of a switch (IBTA vol. 1 18.2)
  - C{topology}: topology files, in the language that ibnetdiscover writes and ibsim reads
  - C{umad}: ibsim's protocol, by which libumad2sim gives OpenSM and infiniband-diags a port of a subnet
"""
