"""
The nodes, ports and links of a subnet, and the state machine of a link (IBTA vol. 1 7.2.7, 14.2.5.6).

A link is trained when both its ends may: it is then up, and both ports are in Init until a subnet manager
arms and activates them.  Training takes no time here.  Changes are returned, not called back: the owner of
the graph tells devices, sends traps and compiles routes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.machine import Machine
from twisted_ib.hca.base.partition import DEFAULT_PKEY, PartitionTable
from twisted_ib.hca.base.port import DEFAULT_PREFIX, PhysicalState, PortChange, PortState
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.port import PortInfo
from twisted_ib.layouts import fieldsOf
from twisted_ib.subnet.network.switch import Switch

if TYPE_CHECKING:
    from twisted_ib.subnet.network.topology import Topology

#: Entries of the P_Key table of a port and of port 0 of a switch, and of their GUID tables.  These, and the
#: values of a port after power on, are those of ibsim's nodes, so that tools print the same.
PARTITION_ENTRIES: Final = 64
SWITCH_PARTITION_ENTRIES: Final = 8
GUID_ENTRIES: Final = 32
SWITCH_GUID_ENTRIES: Final = 1
#: PortInfo's CapabilityMask of a CA's port and of port 0 of a switch: traps, SLtoVL mapping, extended speeds
#: and CapabilityMask2; a CA has vendor classes and tells of changes of its mask too.
_SWITCH_CAPABILITIES: Final = 0xC048
_CA_CAPABILITIES: Final = 0x50C048
#: CapabilityMask2: width 2x and speed HDR have codes.
_CAPABILITIES_2: Final = 0x30
#: PortInfo's codes of VL0 to VL7, of an MTU of 2048 and of 1024, of all widths and of 4 lanes, of speeds up
#: to QDR and of SDR, and of the longest SubnetTimeout.
_VIRTUAL_LANES: Final = 4
_MTU, _SWITCH_MTU = 4, 3
_WIDTHS, _WIDTH = 0x1F, 2
_SPEEDS, _SPEED = 7, 1
_TIMEOUT: Final = 31
#: PortInfo's codes of FDR, EDR and HDR, which a port supports if one of them is enabled.
_EXTENDED_SPEEDS: Final = 7
_STALL_COUNT: Final = 7
_SWITCH_RESPONSE_TIME: Final = 8
_LEASE: Final = 4089
_REVISION: Final = 0xA1
#: Virtual lane of each service level; virtual lane and weight of each entry of the arbitration tables.
_MAPPING: Final = (*range(15), 7)
_LOW: Final = ((0, 0), *((lane, 4) for lane in range(1, 8)))
_HIGH: Final = ((0, 4), *((lane, 0) for lane in range(1, 8)))
#: Width codes from the widest on; that of 2 lanes came last.
_WIDTH_ORDER: Final = (8, 4, 2, 16, 1)


class Change(NamedTuple):
    """
    A change of a port.

    @ivar byLink: its link went up or down by itself: a switch reports it (trap 128).
    @ivar reregister: a subnet manager asks the port's clients to register again.
    """

    port: Port
    byLink: bool = False
    reregister: bool = False


class LinkInput(Enum):
    """
    The inputs of a port's state machine.
    """

    TRAINED = "the link was trained"
    LOST = "the link is down"
    DOWN = "a subnet manager sets Down"
    ARM = "a subnet manager sets Armed"
    ACTIVATE = "a subnet manager sets Active"


#: The link state machine, IBTA vol. 1 7.2.7; a Set of what is not here is refused (14.2.5.6, PortState).
TRANSITIONS: Final = Machine(
    {
        (PortState.DOWN, LinkInput.TRAINED): PortState.INIT,
        (PortState.DOWN, LinkInput.DOWN): PortState.DOWN,
        (PortState.INIT, LinkInput.LOST): PortState.DOWN,
        (PortState.INIT, LinkInput.DOWN): PortState.DOWN,
        (PortState.INIT, LinkInput.ARM): PortState.ARMED,
        (PortState.ARMED, LinkInput.LOST): PortState.DOWN,
        (PortState.ARMED, LinkInput.DOWN): PortState.DOWN,
        # A repeated Set, whose answer was lost, changes nothing.
        (PortState.ARMED, LinkInput.ARM): PortState.ARMED,
        (PortState.ARMED, LinkInput.ACTIVATE): PortState.ACTIVE,
        (PortState.ACTIVE, LinkInput.LOST): PortState.DOWN,
        (PortState.ACTIVE, LinkInput.DOWN): PortState.DOWN,
        (PortState.ACTIVE, LinkInput.ACTIVATE): PortState.ACTIVE,
    }
)
_SETTINGS: Final[dict[int, LinkInput]] = {
    PortState.DOWN: LinkInput.DOWN,
    PortState.ARMED: LinkInput.ARM,
    PortState.ACTIVE: LinkInput.ACTIVATE,
}


class Port:
    """
    One port of a node; port 0 of a switch is the switch's own, and has no link.

    Fields without a line here are those of
    L{PortInfo<twisted_ib.hca.mad.attributes.port.PortInfo>} with the same name.

    @ivar peer: the port at the other end of its cable.
    @ivar partitions: the P_Key table.
    @ivar guids: the GUID table; the first is the port's own.  An external port of a switch has none.
    @ivar mapping: the virtual lane of each service level; that of a switch is L{Switch.mappings}.
    @ivar arbitration: the VL arbitration tables of low and of high priority: virtual lane and weight of each
        entry.
    @ivar isLit: whether its LED is on.
    @ivar notices: what happened, the oldest first, until a manager has read it (IBTA vol. 1 13.4.10).
    @ivar noticeToggle: changes with each of these that goes.
    @ivar downDefault: the physical state that it has when its link is down (LinkDownDefaultState).
    """

    __slots__ = (
        *("arbitration", "downDefault", "guid", "guids", "isLit", "mapping", "node", "noticeToggle"),
        *("notices", "number", "partitions", "peer", "physicalState", "state", "subnetPrefix"),
        *(each.name for each in fieldsOf(PortInfo)),
    )

    def __init__(self, node: Node, number: int, guid: int) -> None:
        self.node = node
        self.number = number
        self.guid = guid
        self.peer: Port | None = None
        own, end = self.isManagement, self.isEnd
        self.linkWidthSupported, self.linkWidthEnabled, self.linkWidthActive = _WIDTHS, _WIDTH, _WIDTH
        self.linkSpeedSupported, self.linkSpeedEnabled, self.linkSpeedActive = _SPEEDS, _SPEED, _SPEED
        self.linkSpeedExtSupported = self.linkSpeedExtEnabled = self.linkSpeedExtActive = 0
        self.capMask = _SWITCH_CAPABILITIES if own else _CA_CAPABILITIES if end else 0
        self.capabilityMask2 = _CAPABILITIES_2 if end else 0
        self.mtuCap, self.vlCap = _SWITCH_MTU if own else _MTU, _VIRTUAL_LANES
        self.respTimeVal = _SWITCH_RESPONSE_TIME if own else 0
        self.reset()

    def reset(self) -> None:
        """
        Become as after power on: without LID and M_Key, the link down.
        """
        own, end = self.isManagement, self.isEnd
        # Port 0 of a switch has no link that could be down.
        self.state = PortState.ACTIVE if own else PortState.DOWN
        self.physicalState = PhysicalState.LINK_UP if own else PhysicalState.POLLING
        self.downDefault = PhysicalState.POLLING
        self.lid = self.lmc = self.smLID = self.smSL = 0
        self.subnetPrefix = DEFAULT_PREFIX
        self.mkey = self.protectBits = 0
        self.mkeyLeasePeriod = _LEASE if end else 0
        self.mkeyViolations = self.pkeyViolations = self.qkeyViolations = 0
        self.subnetTimeout = _TIMEOUT if end else 0
        self.neighborMTU, self.operVLs = 1 if own else _MTU, _VIRTUAL_LANES
        self.vlHighLimit = self.hoqLife = 0
        self.vlStallCount = 0 if own else _STALL_COUNT
        self.initType = self.localPhysErr = self.overrunErr = 0
        self.partEnforceInb = self.partEnforceOutb = self.filterRawInb = self.filterRawOutb = 0
        entries = SWITCH_PARTITION_ENTRIES if own else PARTITION_ENTRIES
        self.partitions = PartitionTable((DEFAULT_PKEY, *(0,) * (entries - 1)))
        entries = SWITCH_GUID_ENTRIES if own else GUID_ENTRIES if end else 0
        self.guids = [self.guid, *(0,) * (entries - 1)] if entries else []
        self.mapping: tuple[int, ...] = _MAPPING
        self.arbitration = [list(_LOW), list(_HIGH)]
        self.isLit = False
        self.notices: deque[Any] = deque()
        self.noticeToggle = 0

    def note(self, notice: Any) -> None:
        """
        Keep a notice until it is read.
        """
        if len(self.notices) >= limits.SUBNET_NOTICES:
            self.noteRead()
        self.notices.append(notice)

    def noteRead(self) -> None:
        """
        Forget the oldest notice.
        """
        self.notices.popleft()
        self.noticeToggle ^= 1

    @property
    def isManagement(self) -> bool:
        """
        Whether it is port 0 of a switch.
        """
        return self.number == 0

    @property
    def isEnd(self) -> bool:
        """
        Whether it can have a LID: not an external port of a switch.
        """
        return self.isManagement or self.node.switch is None

    def hasLID(self, lid: int) -> bool:
        """
        @return: whether a LID is one of this port's, whatever its path bits.
        """
        return bool(self.lid) and lid >> self.lmc == self.lid >> self.lmc

    def settings(self, reregister: bool = False) -> PortChange:
        """
        @return: the settings of this port, which has a LID, for its device.
        """
        prefix = self.subnetPrefix << 64
        # The extended speeds follow the others (libibverbs/verbs.h, ibv_port_attr.active_speed).
        speed = self.linkSpeedExtActive << 4 or self.linkSpeedActive
        return PortChange(
            state=self.state,
            physicalState=self.physicalState,
            lid=self.lid,
            lmc=self.lmc,
            smLID=self.smLID,
            smSL=self.smSL,
            width=self.linkWidthActive,
            speed=speed,
            capMask=self.capMask,
            gids=tuple(prefix | guid for guid in self.guids if guid),
            partitions=self.partitions.keys,
            reregister=reregister,
        )

    # -- the link

    def enable(self, width: int, speed: int, extendedSpeed: int) -> None:
        """
        Enable widths and speeds, in PortInfo's codes, for when the link is trained.

        @param extendedSpeed: 0 for a port that has none.
        """
        self.linkWidthEnabled, self.linkSpeedEnabled = width, speed
        self.linkSpeedExtEnabled = extendedSpeed
        self.linkSpeedExtSupported = extendedSpeed | _EXTENDED_SPEEDS if extendedSpeed else 0

    def maySetState(self, state: int) -> bool:
        """
        @return: whether a PortState that a subnet manager sets can follow on what it is.
        """
        given = _SETTINGS.get(state)
        return given is not None and not self.isManagement and (self.state, given) in TRANSITIONS

    def setState(self, state: int) -> list[Change] | None:
        """
        A subnet manager sets PortState.

        @return: the changes; L{None} if the state cannot follow on what it is.
        """
        if not self.maySetState(state):
            return None
        given = _SETTINGS[PortState(state)]
        if given is LinkInput.DOWN:
            return self._takeDown(self.downDefault, False)
        changes: list[Change] = []
        self._enter(TRANSITIONS[self.state, given], self.physicalState, False, changes)
        return changes

    def setPhysicalState(self, state: PhysicalState) -> list[Change]:
        """
        A subnet manager sets PortPhysicalState to Sleep, Polling or Disabled: the link goes down, and is
        trained again if both ends may.
        """
        # IBTA vol. 1 14.2.5.4: what was set is not PortState, which follows by itself if it changes.
        return self._takeDown(state, self.state is not PortState.DOWN)

    def _takeDown(self, state: PhysicalState, byLink: bool) -> list[Change]:
        changes: list[Change] = []
        self._enter(TRANSITIONS[self.state, LinkInput.DOWN], state, byLink, changes)
        if self.peer is not None:
            self.peer.lose(changes)
        self.train(changes)
        return changes

    def lose(self, changes: list[Change]) -> None:
        """
        The other end is gone.

        @param changes: where the change is added to.
        """
        if self.physicalState is PhysicalState.LINK_UP:
            self._enter(TRANSITIONS[self.state, LinkInput.LOST], self.downDefault, True, changes)

    def train(self, changes: list[Change]) -> None:
        """
        The link comes up, if both ends are there, and agree on width and speed.

        @param changes: where the changes of both are added to.
        """
        peer = self.peer
        if peer is None or PhysicalState.LINK_UP in (self.physicalState, peer.physicalState):
            return
        physical = self.physicalState, peer.physicalState
        # A sleeping port answers one that polls; of two that sleep neither begins.
        if PhysicalState.POLLING not in physical or PhysicalState.DISABLED in physical:
            return
        width = self.linkWidthEnabled & peer.linkWidthEnabled
        speed = self.linkSpeedEnabled & peer.linkSpeedEnabled
        extended = self.linkSpeedExtEnabled & peer.linkSpeedExtEnabled
        if not width or not speed:
            return
        for port in (self, peer):
            port.linkWidthActive = next((each for each in _WIDTH_ORDER if each & width), width)
            port.linkSpeedActive = 1 << speed.bit_length() - 1
            port.linkSpeedExtActive = 1 << extended.bit_length() - 1 if extended else 0
            state = TRANSITIONS[port.state, LinkInput.TRAINED]
            port._enter(state, PhysicalState.LINK_UP, True, changes)

    def _enter(
        self, state: PortState, physicalState: PhysicalState, byLink: bool, changes: list[Change]
    ) -> None:
        if (state, physicalState) == (self.state, self.physicalState):
            return
        # IBTA vol. 1 14.2.5.4: PortStateChange is of the link's own transitions, not of those that were set.
        self.state, self.physicalState = state, physicalState
        changes.append(Change(self, byLink))
        if byLink and self.node.switch is not None:
            self.node.switch.stateChange = True


class Node:
    """
    A CA, a switch or a router.

    @ivar ports: by number; the first of a CA or router is L{None}, as they have no port 0.
    @ivar switch: its forwarding tables, if it is a switch.
    """

    __slots__ = (
        *("description", "deviceID", "guid", "kind", "ports", "revision", "switch", "systemGUID"),
        "vendorID",
    )

    def __init__(self, kind: NodeType, guid: int, numberOfPorts: int, description: str) -> None:
        """
        @param guid: the node's; port I{n} of a CA or router has the one I{n} above it, all ports of a switch
            have it.
        @param numberOfPorts: not counting port 0 of a switch.
        @param description: NodeDescription, of which 64 octets of UTF-8 are kept.
        """
        self.kind = kind
        self.guid = self.systemGUID = guid
        self.description = description
        self.vendorID = self.deviceID = 0
        self.revision = _REVISION
        self.switch = Switch() if kind is NodeType.SWITCH else None
        self.ports: list[Port | None] = [None if self.switch is None else Port(self, 0, guid)]
        for number in range(1, numberOfPorts + 1):
            self.ports.append(Port(self, number, guid + number if self.switch is None else guid))

    def each(self) -> Iterator[Port]:
        """
        @return: all its ports, port 0 of a switch first.
        """
        return (port for port in self.ports if port is not None)

    def port(self, number: int) -> Port | None:
        """
        @return: a port, if there is one with this number.
        """
        return self.ports[number] if 0 <= number < len(self.ports) else None

    def end(self, arrival: Port) -> Port:
        """
        @param arrival: the port that a MAD came in by.
        @return: the port that it is for: of a switch always port 0.
        """
        return self.ports[0] or arrival


class Graph:
    """
    The nodes of a subnet.

    @ivar nodes: by GUID, in the order in which they came.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}

    def add(self, node: Node) -> None:
        """
        Add a node without links.

        @raise ResourceLimitError: there are L{limits.SUBNET_NODES}.
        @raise ValueError: another node has its GUID.
        """
        if node.guid in self.nodes:
            raise ValueError(f"two nodes have GUID {node.guid:#018x}")
        if len(self.nodes) >= limits.SUBNET_NODES:
            raise ResourceLimitError(f"a subnet has at most {limits.SUBNET_NODES} nodes")
        self.nodes[node.guid] = node

    def remove(self, node: Node) -> list[Change]:
        """
        A node is gone, with its links.  Idempotent.

        @return: the changes of its ports and of those that they were linked with.
        """
        self.nodes.pop(node.guid, None)
        return [change for port in node.each() for change in self.unlink(port)]

    def link(self, one: Port, other: Port) -> list[Change]:
        """
        Plug a cable in.

        @raise ValueError: a port has a cable already, or cannot have one.
        """
        for port in (one, other):
            if port.peer is not None or port.isManagement or one is other:
                raise ValueError(f"port {port.number} of {port.node.description} cannot be linked")
        one.peer, other.peer = other, one
        changes: list[Change] = []
        one.train(changes)
        return changes

    def unlink(self, port: Port) -> list[Change]:
        """
        Pull a port's cable out.  Idempotent.
        """
        peer = port.peer
        if peer is None:
            return []
        port.peer = peer.peer = None
        changes: list[Change] = []
        port.lose(changes)
        peer.lose(changes)
        return changes

    def ports(self) -> Iterator[Port]:
        """
        @return: all ports of all nodes.
        """
        return (port for node in self.nodes.values() for port in node.each())


def build(topology: Topology) -> tuple[Graph, dict[str, Node]]:
    """
    Make the nodes and links of a topology.

    @return: the graph, and its nodes by their names in the topology.
    @raise ResourceLimitError: it has too many nodes.
    @raise ValueError: two nodes have one GUID.
    """
    graph, nodes = unlinked(topology)
    relink(graph, nodes, topology)
    return graph, nodes


def unlinked(topology: Topology) -> tuple[Graph, dict[str, Node]]:
    """
    Make the nodes of a topology alone.

    @return: as of L{build}.
    @raise ResourceLimitError: it has too many nodes.
    @raise ValueError: two nodes have one GUID.
    """
    graph = Graph()
    nodes: dict[str, Node] = {}
    for each in topology.nodes:
        node = nodes[each.name] = Node(NodeType(each.kind), each.guid, each.numberOfPorts, each.description)
        node.vendorID, node.deviceID = each.vendid, each.devid
        node.systemGUID = each.sysimgguid or each.guid
        graph.add(node)
    return graph, nodes


def relink(graph: Graph, nodes: dict[str, Node], topology: Topology) -> list[Change]:
    """
    Link nodes as a topology says, and unlink those that it does not link; nodes that it does not have keep
    their links where it has none.

    @param nodes: those of the topology, by their names in it.
    @return: the changes; ports whose links stay have none.
    """
    changes: list[Change] = []
    missing = []
    known = set(nodes.values())
    for each in topology.nodes:
        for port in nodes[each.name].each():
            end = each.ports.get(port.number)
            peer = None if end is None else nodes[end.node].port(end.port)
            if port.peer is peer or (end is None and port.peer is not None and port.peer.node not in known):
                continue
            changes += graph.unlink(port)
            if peer is not None and end is not None:
                port.enable(end.width, end.speed, end.extspeed)
                missing.append((port, peer))
    # When all that is gone is gone, and both ends have their widths and speeds.  Each link has two ends, and
    # is made once.
    for port, peer in missing:
        if port.peer is None:
            changes += graph.link(port, peer)
    return changes
