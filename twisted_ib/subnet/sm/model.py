"""
A subnet as its manager has discovered and configured it.

L{Model.replace} puts the nodes of a new sweep in the place of the old ones, so nodes and ports are not kept
from one call to the next: their GUIDs are.  The state of a port or a switch is in the attributes that its
agent answered last, to a Get or to a Set.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import define, field

from twisted_ib.hca.base.port import DEFAULT_PREFIX
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.node import NodeDescription, NodeInfo, SMInfo, SwitchInfo
from twisted_ib.hca.mad.attributes.port import PortInfo
from twisted_ib.limits import SUBNET_HOPS
from twisted_ib.subnet.network.switch import NO_PORT
from twisted_ib.subnet.sm.partitions import Partition

_GUID: Final = (1 << 64) - 1
#: 0xC000 to 0xFFFE (IBTA vol. 1 4.1.3).
_MULTICAST_LIDS: Final = 0x3FFF


@define(eq=False)
class Port:
    """
    A port of a node.

    @ivar guid: that of an end port; 0 of a switch's external port.
    @ivar info: of a switch's external port without LID.
    @ivar keys: the P_Key table of an end port, all its entries; empty of a switch's external port.
    @ivar peer: the port at the other end of its link.
    @ivar route: of an end port the initial path of the SMPs to it: the egress port of each hop.
    """

    node: Node = field(repr=False)
    number: int
    guid: int = 0
    info: PortInfo = field(factory=PortInfo)
    keys: tuple[int, ...] = ()
    peer: Port | None = field(default=None, repr=False)
    route: bytes = b""

    @property
    def isEnd(self) -> bool:
        """
        Whether it has a LID: a CA's or router's port, or port 0 of a switch.
        """
        return self.node.switch is None or self.number == 0

    @property
    def end(self) -> Port:
        """
        The port whose LID reaches it: of a switch port 0.
        """
        return self if self.node.switch is None else self.node.ports[0]

    @property
    def lid(self) -> int:
        """
        The LID that reaches it; 0 if it has none.
        """
        return self.end.info.lid

    @property
    def gid(self) -> int:
        """
        The GID of an end port: subnet prefix and GUID.
        """
        return self.info.gidPrefix << 64 | self.guid


@define(eq=False)
class Switch:
    """
    The forwarding tables of a switch, as they should be.

    @ivar linear: the egress port of each LID up to the highest, or L{NO_PORT}.
    @ivar multicast: multicast LID -> its egress ports, bit I{n} is port I{n}.
    """

    info: SwitchInfo
    linear: bytes = b""
    multicast: dict[int, int] = field(factory=dict)

    def lookup(self, lid: int) -> int:
        """
        @return: the port that a unicast LID is behind, 0 for the switch itself, or L{NO_PORT}.
        """
        return self.linear[lid] if lid < len(self.linear) else NO_PORT


@define(eq=False)
class Node:
    """
    A CA, a switch or a router.

    @ivar info: as the first SMP got it that came here; C{portGuid} and C{localPort} are of that port.
    @ivar ports: by number, those that were reached: all of a switch, of a CA those with a way to them.
    @ivar switch: its tables, if it is a switch.
    """

    info: NodeInfo
    description: NodeDescription = field(factory=NodeDescription)
    ports: dict[int, Port] = field(factory=dict, repr=False)
    switch: Switch | None = None

    @property
    def guid(self) -> int:
        """
        Its node GUID.
        """
        return self.info.guid

    @property
    def kind(self) -> NodeType:
        """
        CA, switch or router.
        """
        return NodeType(self.info.nodeType)

    def ends(self) -> Iterator[Port]:
        """
        @return: its ports that have LIDs.
        """
        return (port for port in self.ports.values() if port.isEnd)


@define(eq=False)
class Model:
    """
    All of a subnet that its manager knows.

    @ivar own: the subnet manager's port; L{None} before the first sweep.
    @ivar prefix: the subnet prefix of all GIDs.
    @ivar nodes: by node GUID, in the order in which they were discovered.
    @ivar lids: LID -> end port.
    @ivar guids: port GUID -> end port.
    @ivar managers: port GUID -> SMInfo of each subnet manager, this one's among them.
    @ivar partitions: those of the configuration.
    @ivar generation: grows with each L{replace}.
    """

    prefix: int = DEFAULT_PREFIX
    own: Port | None = None
    nodes: dict[int, Node] = field(factory=dict)
    lids: dict[int, Port] = field(factory=dict)
    guids: dict[int, Port] = field(factory=dict)
    managers: dict[int, SMInfo] = field(factory=dict)
    partitions: tuple[Partition, ...] = ()
    generation: int = 0

    def replace(self, nodes: dict[int, Node], own: Port | None) -> None:
        """
        Another sweep is over.

        @param nodes: those that it found, with LIDs.
        @param own: the subnet manager's port among them.
        """
        self.nodes, self.own = nodes, own
        self.generation += 1
        self.index()

    def index(self) -> None:
        """
        LIDs or GUIDs have changed.
        """
        ends = list(self.ends())
        self.lids = {port.lid: port for port in ends if port.lid}
        self.guids = {port.guid: port for port in ends}

    def ends(self) -> Iterator[Port]:
        """
        @return: all ports that have LIDs.
        """
        return (port for node in self.nodes.values() for port in node.ends())

    def ports(self) -> Iterator[Port]:
        """
        @return: all ports.
        """
        return (port for node in self.nodes.values() for port in node.ports.values())

    def switches(self) -> Iterator[Node]:
        """
        @return: all switches.
        """
        return (node for node in self.nodes.values() if node.switch is not None)

    @property
    def multicastEntries(self) -> int:
        """
        How many multicast LIDs all switches have room for.
        """
        sizes = (node.switch.info.mcastFdbCap for node in self.nodes.values() if node.switch is not None)
        return min(sizes, default=_MULTICAST_LIDS)

    def byGID(self, gid: int) -> Port | None:
        """
        @return: the end port with a GID.
        """
        port = self.guids.get(gid & _GUID)
        return port if port is not None and port.gid == gid else None

    def path(self, source: Port, destination: Port) -> list[Port] | None:
        """
        The way that packets take by the forwarding tables.

        @param source: an end port.
        @param destination: likewise.
        @return: the ports that they leave by, and after each the one that they arrive at; none between a port
            and itself; L{None} if there is no way.
        """
        passed: list[Port] = []
        port = source
        for _ in range(SUBNET_HOPS + 1):
            if port.end is destination:
                return passed
            switch = port.node.switch
            if switch is not None:
                egress = port.node.ports.get(switch.lookup(destination.lid))
            else:
                # A CA sends by its own port, and forwards nothing.
                egress = None if passed else source
            far = None if egress is None else egress.peer
            if egress is None or far is None:
                return None
            passed += (egress, far)
            port = far
        return None
