"""
The facts of a fabric: who its peers are, what proves them, what its medium has.

A layer above asks for the fact that it depends on, never for the kind of fabric: a new fabric then needs no
change above it.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from attrs import evolve, field, frozen

from twisted_ib.hca.base.states import QPType
from twisted_ib.layouts import Shown


class Peers(Enum):
    """
    The name of a peer's HCA; it decides how the path is found.
    """

    #: Processes of this host: a GUID; a directory says which process serves an address.
    PROCESSES = 1
    #: Hosts: an IP address, also as a GID (IBTA vol. 1 annex A17); the path is known at
    #: once.
    ADDRESSES = 2
    #: Ports of a subnet: a LID or a GID, resolved by the subnet administrator (IBTA vol. 1 15.2.5.16).
    SUBNET = 3


class Proof(Enum):
    """
    When a peer's identity is believed.
    """

    #: The host's directory and the kernel's credentials have said who it is.
    DIRECTORY = 1
    #: It has answered at its address: a REQ alone proves nothing, so half-open connections are bounded by
    #: address and the passive side makes nothing before the RTU.
    ANSWER = 2
    #: The connection below has been made, as with TCP.
    CONNECTION = 3


class TransportType(Enum):
    """
    The transport of connected queue pairs, with C{enum ibv_transport_type}'s values.
    """

    IB = 0
    IWARP = 1


class NodeType(IntEnum):
    """
    The kind of a node in its network, with C{enum ibv_node_type}'s values, which are those of NodeInfo (IBTA
    vol. 1 14.2.5.3).
    """

    CA = 1
    SWITCH = 2
    ROUTER = 3
    RNIC = 4


class LinkLayer(Enum):
    """
    The link layer of a port, with C{IBV_LINK_LAYER_*}'s values.
    """

    INFINIBAND = 1
    ETHERNET = 2


class Completion(Enum):
    """
    The meaning of the success of a SEND or an RDMA WRITE.
    """

    #: The peer's HCA has taken it.
    TAKEN = 1
    #: The transport below has taken it here; only what follows shows whether it has arrived (RFC 5040
    #: section 5.4).
    SENT = 2


@frozen(repr=False)
class PrivateBytes(Shown):
    """
    Bytes of private data, of which a header (L{twisted_ib.hca.connection.rdmacm}) takes some.

    @ivar request: of a request to connect; C{reply} of its reply, C{rejection} of its refusal.
    @ivar lookup: of the request for a datagram service; C{lookupReply} of its answer.
    @ivar isExact: whether the peer is told how many there are; else zeros follow to the full number.
    """

    request: int
    reply: int
    rejection: int
    lookup: int
    lookupReply: int
    isExact: bool = False


#: Those of REQ, REP, REJ, SIDR_REQ and SIDR_REP (IBTA vol. 1 12.6 and 12.11).
IB_PRIVATE_BYTES = PrivateBytes(92, 196, 148, 216, 136)
#: Octets of device memory that one device has (as Linux's mlx5, which has 128 KiB or more).
DEVICE_MEMORY = 256 * 1024


@frozen(kw_only=True, cache_hash=True, repr=False)
class Traits(Shown):
    """
    The facts of one kind of fabric.

    @ivar peers: what names a peer.
    @ivar proof: when its identity is believed.
    @ivar packets: whether records travel as packets, of a size (the path MTU) and with sequence numbers
        that both ends agree on when they connect.
    @ivar transport: of connected queue pairs.
    @ivar linkLayer: of the port.
    @ivar services: the types of its queue pairs.
    @ivar operations: the operations of their send requests, numbered as in C{enum ibv_wr_opcode}; L{None} for
        all that the services have.
    @ivar privateBytes: of requests to connect and their answers.
    @ivar zeroCopy: whether peers can map each other's registered memory.
    @ivar inRunDirectory: whether HCAs have an entry in the host's run directory, where other processes find
        them; else peers are those of the same thread, or addresses.
    @ivar nodeType: of its HCAs; it follows from the transport.
    @ivar hasAddress: whether an HCA has an IP address of its own, which no other HCA has.
    @ivar gidSlots: how many slots of the GID table an HCA fills itself: with an IP address of its own, or
        with the GID of its GUID and a loopback address, in turn.
    @ivar completion: what a successful request has done.
    @ivar joinsWildcards: whether programs that listen on all devices listen on those that were added; else
        they are used by name alone.
    @ivar deviceMemory: octets of device memory that an HCA has.
    @ivar hasGroups: whether datagrams to multicast groups arrive, where there are datagrams.
    """

    peers: Peers
    proof: Proof
    packets: bool = False
    transport: TransportType = TransportType.IB
    linkLayer: LinkLayer = LinkLayer.ETHERNET
    services: frozenset[QPType] = frozenset(QPType)
    operations: frozenset[int] | None = None
    privateBytes: PrivateBytes = IB_PRIVATE_BYTES
    zeroCopy: bool = False
    inRunDirectory: bool = False
    nodeType: NodeType = field(init=False)
    hasAddress: bool = field(init=False)
    gidSlots: int = 1
    completion: Completion = Completion.TAKEN
    joinsWildcards: bool = True
    deviceMemory: int = DEVICE_MEMORY
    hasGroups: bool = True

    @nodeType.default
    def _nodeType(self) -> NodeType:
        return NodeType.CA if self.transport is TransportType.IB else NodeType.RNIC

    @hasAddress.default
    def _hasAddress(self) -> bool:
        return self.peers is Peers.ADDRESSES

    def isReached(self, slot: int) -> bool:
        """
        @param slot: of the GID table.
        @return: whether an HCA is reached by the GID there: the host's addresses, which follow its own GIDs,
            are those of all HCAs of the host's processes.
        """
        return slot < self.gidSlots or self.peers is not Peers.PROCESSES


#: Between processes of one host, by records.
LOCAL = Traits(peers=Peers.PROCESSES, proof=Proof.DIRECTORY, gidSlots=4)
#: The same through shared memory.
SHARED = evolve(LOCAL, zeroCopy=True, inRunDirectory=True)
#: Between ports of a subnet, by records that travel as those of C{SHARED}.  A port that listens everywhere
#: has the host's IP addresses, which a subnet does not know.
SUBNET = evolve(SHARED, peers=Peers.SUBNET, linkLayer=LinkLayer.INFINIBAND, gidSlots=1, joinsWildcards=False)
#: Between hosts, by packets.  Programs name slot 1 or 3 of the GID table: rxe has the link-local address in
#: slot 0 and the IPv4 address in 1; adapters have each twice, by RoCE v1 and by v2, so that the IPv4 address
#: by v2 is in 3.  Four equal slots are ours.
ROUTED = Traits(peers=Peers.ADDRESSES, proof=Proof.ANSWER, packets=True, gidSlots=4)
#: Of C{enum ibv_wr_opcode}: what RFC 5040 has, and the two that stay on this side (LOCAL_INV, BIND_MW).
_RDMA_WRITE, _SEND, _RDMA_READ, _LOCAL_INV, _BIND_MW, _SEND_WITH_INV = 0, 2, 4, 7, 8, 9
_OF_RFC_5040 = frozenset((_RDMA_WRITE, _SEND, _RDMA_READ, _LOCAL_INV, _BIND_MW, _SEND_WITH_INV))
#: Between hosts, by TCP connections.  Immediate data, atomics and datagrams are not in RFC 5040.  A service
#: needs the TCP port of its number, which is the program's own where it listens on all devices.
STREAM = Traits(
    peers=Peers.ADDRESSES,
    proof=Proof.CONNECTION,
    transport=TransportType.IWARP,
    services=frozenset((QPType.RC,)),
    operations=_OF_RFC_5040,
    # RFC 5044 section 7.1.1: PD_Length.
    privateBytes=evolve(IB_PRIVATE_BYTES, isExact=True),
    completion=Completion.SENT,
    joinsWildcards=False,
)
#: SEND and RDMA WRITE, alone and with immediate data, RDMA READ and atomics: what the package ibverbs has.
_OF_ADAPTERS = frozenset(range(7))
#: Between hosts, by an adapter of this one; the kernel connects the reliable queue pairs.
ADAPTER = Traits(
    peers=Peers.ADDRESSES,
    proof=Proof.CONNECTION,
    operations=_OF_ADAPTERS,
    joinsWildcards=False,
    # Regions of it count from 0, which the package ibverbs cannot register, as it cannot join groups.
    deviceMemory=0,
    hasGroups=False,
)
