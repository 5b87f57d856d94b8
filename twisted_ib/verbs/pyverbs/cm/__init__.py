"""
The communication manager of verbs: C{CMID}, events and addresses, after librdmacm and pyverbs.  Begin with
C{cmid}.

Besides:

  - C{addrinfo}: addresses of the communication manager
  - C{binding}: the device of an identifier
  - C{call}: the parts that connections and datagram services share, stages among them
  - C{connected}: REQ, REP, RTU, and the state transitions of its queue pair
  - C{connparam}: connection parameters
  - C{datagram}: an identifier of a datagram service
  - C{event}: events of the communication manager, and the channel that delivers them
  - C{groups}: the multicast groups of an identifier
  - C{identifier}: the endpoints of the communication manager, as sockets are those of TCP
  - C{listener}: the port of a bound identifier, and the listening identifier
  - C{negotiation}: the parameters that two ends of a reliable connection negotiate
"""
