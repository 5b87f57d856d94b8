"""
A subnet in one process: its graph, the agents of its nodes, the traps of its switches, and the devices at its
ports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from secrets import randbits
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.operation import SMI_QPN
from twisted_ib.hca.base.port import LARGEST_UNICAST_LID, KeyViolation, PhysicalState, PortChange, PortState
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.mad.attributes.node import NodeInfo
from twisted_ib.hca.mad.attributes.notice import Notice
from twisted_ib.hca.mad.attributes.port import Capability, PKeyTable, PortInfo
from twisted_ib.hca.mad.pma import PMA
from twisted_ib.hca.mad.takers import Taker
from twisted_ib.hca.mad.vendor import PING, respond
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import PERFORMANCE, SMP_ATTRIBUTE, SMP_KEY, SUBNET, SUBNET_CLASSES
from twisted_ib.hca.wire.mad.mad import BASE_VERSION, CLASS_AT, GET, HEADER, SM_VERSION
from twisted_ib.subnet.hosting.attached import AttachedPort, IAttachedDevice
from twisted_ib.subnet.hosting.descriptors import cancel
from twisted_ib.subnet.hosting.manager import HostedManager
from twisted_ib.subnet.network.forwarding import Forwarding
from twisted_ib.subnet.network.graph import Change, Node, Port, build, relink, unlinked
from twisted_ib.subnet.network.smi import PERMISSIVE_LID, Carrier, Packet, responded
from twisted_ib.subnet.network.topology import MOST_PORTS, Topology
from twisted_ib.subnet.network.umad import UmadServer
from twisted_ib.subnet.sm.manager import Options
from twisted_ib.subnet.sma.agent import SMA, Answer, Traps, countViolations, setCapability, setSM


class HostedSubnet:
    """
    The nodes and links of a topology, with what real ones have in firmware: see
    L{ISubnet<twisted_ib.subnet.network.umad.ISubnet>}.

    @ivar graph: its nodes.
    @ivar counters: of its ports.
    @ivar consumer: takes the MADs that the agents do not answer.
    @ivar manager: the subnet manager, if it has its own.
    @ivar forwarding: the ways of data.
    @ivar attached: the devices at its ports, by the GUIDs of these.
    """

    def __init__(
        self, topology: Topology, count: Callable[[str], object], clock: Any, grows: bool = False
    ) -> None:
        """
        @param count: called with the name of each loss.
        @param clock: has C{seconds} and C{callLater}.
        @param grows: whether it gets another switch, with as many ports, when one port is left for devices.
        @raise HCAError: there are too many nodes.
        """
        self._topology = topology
        self._clock = clock
        self._count = count
        self._carrier = Carrier(count)
        self.counters = self._carrier.counters
        self._sma = SMA()
        self._pmas: dict[Node, PMA] = {}
        self._traps = Traps(randbits, count)
        self._timer: Any = None
        self.consumer: UmadServer | None = None
        self.manager: HostedManager | None = None
        self.forwarding = Forwarding()
        self.attached: dict[int, AttachedPort] = {}
        self._grows = grows
        #: Adapters that the topology does not have, and their ports.
        self._plugged: dict[Node, Port] = {}
        self.graph, self._nodes = build(topology)

    def summary(self) -> str:
        """
        @return: how much there is.
        """
        ports = sum(port.peer is not None for port in self.graph.ports())
        return f"nodes: {len(self.graph.nodes)}, links: {ports // 2}"

    def manage(self, options: Options) -> None:
        """
        Begin to be the subnet's own manager, until a program opens a port as one.
        """
        self.manager = HostedManager(self, options, randbits, self._count, self._clock)
        self.manager.start()

    def exchange(self, port: Port, packet: Packet) -> Packet | None:
        """
        Send a MAD from a port.

        @param port: of a switch its port 0.
        @return: the response of the agents that it has come to, when it is back at the port.
        """
        arrived = self._carrier.carry(port, packet)
        if arrived is None:
            return None
        octets = (self.consumer or self).take(arrived, packet)
        if not octets:
            return None
        response = responded(packet, octets)
        back = self._carrier.carry(arrived, response)
        return response if back is not None and back.node.end(back) is port else None

    # -- ISubnet

    def find(self, name: str) -> Port | None:
        node = next(iter(self._nodes.values())) if not name else self._nodes.get(name)
        if node is None:
            nodes = (*self._nodes.values(), *self._plugged)
            node = next((each for each in nodes if each.description == name), None)
        return None if node is None else next(node.each())

    def name(self, port: Port) -> str:
        return next((name for name, node in self._nodes.items() if node is port.node), "")

    def carry(self, port: Port, packet: Packet) -> Port | None:
        return self._carrier.carry(port, packet)

    def answer(self, port: Port, packet: Packet) -> bytes | None:
        """
        Have the port's own agents process a request.

        @param port: the one that it arrived at.
        @return: the response.
        """
        octets = bytes(packet.octets)
        class_ = octets[CLASS_AT]
        if class_ in SUBNET_CLASSES:
            answer = self._sma.respond(port, octets, self._clock.seconds(), packet.slid)
            self._changed(answer)
            return answer.octets
        if class_ == PERFORMANCE:
            return self._pma(port.node).respond(octets, port.number)
        if class_ == PING:
            return respond(octets, port.node.description.encode())
        return None

    def take(self, port: Port, packet: Packet) -> bytes | None:
        if packet.isRepress:
            end, octets = port.node.end(port), bytes(packet.octets)
            if self._sma.permits(end, octets, self._clock.seconds()):
                self._traps.repressed(end, octets)
            return None
        isManagers = self.manager is not None and self.manager.take(port, packet)
        if isManagers or self._deliver(port, packet):
            return None
        response = None if packet.taker is Taker.REQUESTER else self.answer(port, packet)
        return response or b""

    def switchPorts(self, lid: int | None) -> int:
        return min(
            (
                len(node.ports) - 1
                for node in self.graph.nodes.values()
                if node.switch is not None and (lid is None or next(node.each()).hasLID(lid))
            ),
            default=MOST_PORTS,
        )

    def nodeInfo(self, port: Port) -> bytes:
        return self._get(port, NodeInfo.ID)

    def portInfo(self, port: Port, number: int) -> bytes:
        other = port.node.port(number) if number else None
        return self._get(port, PortInfo.ID, 0 if other is None else number)

    def partitions(self, port: Port) -> bytes:
        return self._get(port, PKeyTable.ID)

    def setSM(self, port: Port, isSM: bool, isGone: bool = False) -> None:
        if isSM and self.manager is not None:
            self.manager.opened(port)
        self._report(setSM(port, isSM))
        if not isSM and self.manager is not None:
            self.manager.closed(port, isGone)

    def markSM(self, port: Port, isSM: bool) -> None:
        """
        Set or clear PortInfo.CapabilityMask.IsSM of the port of this subnet's own manager, which need not be
        told.
        """
        setSM(port, isSM)

    def _get(self, port: Port, attribute: int, modifier: int = 0) -> bytes:
        smp = bytearray(MAD_BYTES)
        HEADER.pack_into(smp, 0, BASE_VERSION, SUBNET, SM_VERSION, GET, 0, 0, 0, attribute, 0, modifier)
        smp[SMP_KEY] = port.mkey.to_bytes(8, "big")
        octets = self._sma.respond(port, bytes(smp), self._clock.seconds()).octets
        assert octets is not None
        return octets[SMP_ATTRIBUTE]

    def _pma(self, node: Node) -> PMA:
        found = self._pmas.get(node)
        if found is None:
            counters = self.counters
            ports = {port.number: partial(counters.of, port) for port in node.each()}
            found = self._pmas[node] = PMA(ports, node.switch is not None)
        return found

    # -- devices

    def attach(self, device: IAttachedDevice, guid: int, name: str, lid: int = 0) -> AttachedPort:
        """
        Attach a device to a port.

        @param guid: of the device, if the subnet gives it an adapter of its own.
        @param name: of an adapter of the topology, or its description: the device is at its first port if
            that is free, and has its GUID.  Else the description of one of its own.
        @param lid: the LID that the port had in this subnet before its host has changed: it is kept if it is
            free.
        @raise ResourceLimitError: no switch has a free port, or there are too many nodes.
        """
        port = self._adapter(name) or self._plug(guid, name)
        if 0 < lid <= LARGEST_UNICAST_LID and not any(each.hasLID(lid) for each in self.graph.ports()):
            port.lid = lid
        found = self.attached[port.guid] = AttachedPort(self, port, device)
        if device.isWatching:
            self._carrier.watched[port] = device.passed
        self._setClient(port, True)
        # The others may connect with it.
        self._linksChanged((), True)
        self._sweep()
        return found

    def _setClient(self, port: Port, isClient: bool) -> None:
        # IBTA vol. 1 14.4.11: only a port that says so is asked to register its clients again.
        abilities = Capability.CLIENT_REREGISTRATION | Capability.COMMUNICATION_MANAGEMENT
        self._report(setCapability(port, abilities, isClient))

    def _adapter(self, name: str) -> Port | None:
        port = self.find(name) if name else None
        isFree = port is not None and port.node.kind is NodeType.CA and port.guid not in self.attached
        return port if isFree else None

    def _plug(self, guid: int, description: str) -> Port:
        end = self._free()
        if end is not None and self._grows and sum(map(_isFree, self.graph.ports())) == 1:
            end = self._extended(end)
        if end is None:
            raise ResourceLimitError(
                "no switch of the subnet has a free port: its topology needs one with more ports"
            )
        # Port 1 has the GUID above that of its node.
        node = Node(NodeType.CA, guid - 1, 1, description)
        port = node.port(1)
        assert port is not None
        self.graph.add(node)
        self._plugged[node] = port
        self._linksChanged(self.graph.link(port, end))
        return port

    def _extended(self, end: Port) -> Port:
        # With all ports from the start each sweep would ask each of them.
        last = end.node
        guid = last.guid + 1
        while guid in self.graph.nodes:
            guid += 1
        switch = Node(NodeType.SWITCH, guid, len(last.ports) - 1, f"{self._topology.nodes[0].name}-{guid:x}")
        _, uplink, free, *_ = switch.each()
        self.graph.add(switch)
        self._linksChanged(self.graph.link(uplink, end))
        return free

    def _free(self) -> Port | None:
        # Adapters are at leaves; each of these gets as many devices as the others.
        free: dict[tuple[bool, int], Port] = {}
        for node in self.graph.nodes.values():
            if node.switch is not None:
                peers = [port.peer.node for port in node.each() if port.peer is not None]
                isLeaf = any(peer.switch is None for peer in peers)
                port = next((port for port in node.each() if _isFree(port)), None)
                if port is not None:
                    free.setdefault((not isLeaf, sum(peer in self._plugged for peer in peers)), port)
        return free[min(free)] if free else None

    def detach(self, attached: AttachedPort) -> None:
        """
        A device is gone, and its adapter with it if the topology does not have that.  Idempotent.
        """
        port = attached.port
        if self.attached.get(port.guid) is not attached:
            return
        attached.setSM(False, isGone=True)
        del self.attached[port.guid]
        self._carrier.watched.pop(port, None)
        self._setClient(port, False)
        changes: list[Change] = []
        if self._plugged.pop(port.node, None) is not None:
            changes = self._removed(port.node)
            changes += self._replugged()
        # Also without changes of links: nobody connects with it any more.
        self._linksChanged(changes, True)
        self._sweep()

    def send(self, port: Port, packet: Packet) -> None:
        """
        Send a MAD of the device of a port.
        """
        if packet.dlid == PERMISSIVE_LID:
            # A directed route leads back to the port whatever its LID.
            packet.slid = PERMISSIVE_LID
        response = self.exchange(port, packet)
        if response is not None:
            self._deliver(port, response)

    def violated(self, port: Port, count: int, violation: KeyViolation) -> None:
        """
        The device of a port has dropped packets for their P_Keys or Q_Keys.

        @param violation: the latest.
        """
        self._report(countViolations(port, count, violation))

    def _deliver(self, port: Port, packet: Packet) -> bool:
        found = self.attached.get(port.node.end(port).guid)
        taker = packet.taker
        if found is None or taker is Taker.NODE:
            return False
        # A device may ask subnet administration without a subnet manager, but takes no SMP without one.
        if taker is Taker.MANAGER and packet.octets[CLASS_AT] in SUBNET_CLASSES and not found.isSM:
            return False
        found.device.received(packet)
        return True

    # -- changes

    def _changed(self, answer: Answer) -> None:
        self._report(answer.notices)
        self._linksChanged(answer.changes, answer.rerouted)

    def _linksChanged(self, changes: Iterable[Change], isRerouted: bool = False) -> None:
        # Nodes that are gone count and report nothing.
        changes = [each for each in changes if self._has(each.port.node)]
        for change in changes:
            # IBTA vol. 1 16.1.3.5: links that failed, not those that a subnet manager took down.
            isDisabled = change.port.physicalState is PhysicalState.DISABLED
            if change.byLink and change.port.state is PortState.DOWN and not isDisabled:
                self.counters.add(change.port, "linkDownedCounter")
        if changes or isRerouted:
            self._tell(changes)
        self._traps.changed(changes, self._clock.seconds())
        self._sendTraps()

    def _tell(self, changes: Iterable[Change]) -> None:
        self.forwarding.changed()
        for change in changes:
            found = self.attached.get(change.port.guid)
            if found is not None and found.port is change.port:
                found.device.portChanged(change.port.settings(change.reregister))
        for found in self.attached.values():
            found.device.rerouted()

    def _has(self, node: Node) -> bool:
        return self.graph.nodes.get(node.guid) is node

    def _report(self, notices: Iterable[tuple[Port, Notice]]) -> None:
        for port, notice in notices:
            if self._has(port.node):
                self._traps.add(port, notice, self._clock.seconds())
        self._sendTraps()

    def _sendTraps(self) -> None:
        now = self._clock.seconds()
        for port, dlid, octets in self._traps.due(now):
            self.exchange(port, Packet(port.lid, dlid, SMI_QPN, SMI_QPN, bytearray(octets)))
        cancel(self._timer)
        deadline = self._traps.deadline()
        wait = None if deadline is None else max(0.0, deadline - now)
        self._timer = None if wait is None else self._clock.callLater(wait, self._sendTraps)

    def close(self) -> None:
        """
        Send no more traps, and manage the subnet no longer.  Idempotent.
        """
        if self.manager is not None:
            self.manager.close()
        cancel(self._timer)

    def load(self, topology: Topology) -> None:
        """
        Become another topology.  Nodes and links of both stay as they are, and so do the adapters of devices;
        one whose port of a switch is gone, or taken, is at another.  Switches report all changes.

        @raise HCAError: there are too many nodes, or one has the GUID of a device's; nothing has changed.
        """
        _, new = unlinked(topology)
        self._check(new.values())
        old, self._nodes = self._nodes, {}
        changes: list[Change] = []
        for name, node in old.items():
            if name not in new or _identity(node) != _identity(new[name]):
                changes += self._removed(node)
        for name, node in new.items():
            kept = old.get(name)
            if kept is not None and self._has(kept):
                self._nodes[name] = kept
            else:
                self._nodes[name] = node
                self.graph.add(node)
        changes += relink(self.graph, self._nodes, topology)
        changes += self._replugged()
        self._linksChanged(changes, True)
        self._sweep()

    def _check(self, nodes: Collection[Node]) -> None:
        if len(nodes) + len(self._plugged) > limits.SUBNET_NODES:
            raise ResourceLimitError(f"with its devices the subnet has more than {limits.SUBNET_NODES} nodes")
        guids = {guid for node in nodes for guid in (node.guid, *(port.guid for port in node.each()))}
        for node, port in self._plugged.items():
            if node.guid in guids or port.guid in guids:
                raise ResourceLimitError(
                    f"the device {node.description!r} has a GUID of the topology: take its node out of that"
                )

    def _replugged(self) -> list[Change]:
        changes: list[Change] = []
        for port in self._plugged.values():
            end = None if port.peer is not None else self._free()
            if end is not None:
                changes += self.graph.link(port, end)
        return changes

    def _sweep(self) -> None:
        # The first adapter may be another one.  And a switch that has no subnet manager yet, or that has sent
        # a trap in this SubnetTimeout, does not tell.
        if self.manager is not None:
            self.manager.look()

    def _removed(self, node: Node) -> list[Change]:
        # First of all: its subnet manager, which ends by this, is reported by it no more.
        changes = self.graph.remove(node)
        if self.consumer is not None:
            self.consumer.removed(node)
        for port in node.each():
            found = self.attached.pop(port.guid, None)
            self._carrier.watched.pop(port, None)
            if found is not None:
                found.setSM(False)
                found.device.portChanged(PortChange(state=PortState.DOWN))
        self._pmas.pop(node, None)
        self.counters.forget(node)
        self._sma.forget(node)
        self._traps.forget(node)
        return changes


def _isFree(port: Port) -> bool:
    return port.peer is None and not port.isManagement and port.physicalState is not PhysicalState.DISABLED


def _identity(node: Node) -> tuple[object, ...]:
    return node.kind, node.guid, len(node.ports), node.description


__all__ = ["HostedSubnet"]
