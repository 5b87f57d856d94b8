"""
The communication manager of verbs: C{CMID}, events and addresses, after librdmacm and pyverbs.  Begin with
C{cmid}.

Besides:

  - C{addrinfo}: addresses of the communication manager
  - C{call}: connections and datagram services on the wire, and what they share
  - C{event}: events of the communication manager, and the channel that delivers them
  - C{groups}: the multicast groups of an identifier
  - C{identifier}: the endpoints of the communication manager, as sockets are those of TCP
  - C{listener}: the port of a bound identifier, and the listening identifier
  - C{negotiation}: the parameters that two ends of a reliable connection negotiate
  - C{nexthop}: the search for the next hop to a peer, of devices whose peers the kernel finds
"""
