"""
The way of a management datagram through a subnet: the subnet management interface (SMI) of each node for
directed routes (IBTA vol. 1 14.2.2), forwarding tables for LIDs.

L{step} is one node's decision about a directed-route SMP; L{Carrier} takes a datagram over all its hops.
L{Counters} has what passes the ports, by the names of performance management's fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from attrs import define, evolve

from twisted_ib.hca.base.port import PhysicalState
from twisted_ib.hca.mad.takers import Taker, takerOf
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import SUBNET_CLASSES, SUBNET_DIRECTED
from twisted_ib.hca.wire.mad.mad import ATTRIBUTE_AT, CLASS_AT, DIRECTION, METHOD_AT, STATUS_AT, TRAP_REPRESS
from twisted_ib.limits import SUBNET_HOPS
from twisted_ib.subnet.network.forwarding import carriesData, egress
from twisted_ib.subnet.network.switch import NO_PORT

if TYPE_CHECKING:
    from twisted_ib.subnet.network.graph import Node, Port

#: LRH, BTH, DETH, MAD and ICRC, in the 4 octets that data counters count (IBTA vol. 1 16.1.3.5).
MAD_WORDS: Final = 72


#: Counters that have the same value here as others: all MADs are datagrams at service level 0, and are lost
#: where a link is down or a LID leads nowhere.
_SAME: Final = {
    "portInactiveDiscards": "portXmitDiscards",
    "portDLIDMappingErrors": "portRcvSwitchRelayErrors",
    "portOpRcvPkts": "portRcvPkts",
    "portOpRcvData": "portRcvData",
    "xmtDataSL0": "portXmitData",
    "rcvDataSL0": "portRcvData",
}

#: A LID of a directed-route SMP or its packet that stands for no LID (IBTA vol. 1 14.2.1.2).
PERMISSIVE_LID: Final = 0xFFFF
#: The greatest hop count: paths have 64 octets, the first of them unused.
MOST_HOPS: Final = 63

# Offsets in a directed-route SMP (IBTA vol. 1 14.2.1.2).
HOP_POINTER_AT: Final = 6
HOP_COUNT_AT: Final = 7
_SLID: Final = slice(32, 34)
_DLID: Final = slice(34, 36)
_INITIAL: Final = 128
_RETURN: Final = 192
_PERMISSIVE: Final = b"\xff\xff"

# The decisions of L{step} that are no port.
#: It has arrived.
DELIVER: Final = -1
#: The rest of its way is LID routed, to DrDLID or, when it returns, to DrSLID.
ROUTE: Final = -2
#: Its hop pointer or hop count is not valid here.
DISCARD: Final = -3
#: This node would have to forward it, and is no switch.
NO_SWITCH: Final = -4


class Counters:
    """
    The packets that have passed the ports of a subnet, and those that were lost at them.
    """

    def __init__(self) -> None:
        self._counts: dict[Port, dict[str, int]] = {}

    def of(self, port: Port) -> Mapping[str, int]:
        """
        @return: the counters of a port; those without a name are 0.
        """
        counts = self._counts.get(port, {})
        return {**counts, **{name: counts[same] for name, same in _SAME.items() if same in counts}}

    def add(self, port: Port, name: str, number: int = 1) -> None:
        """
        Count something at a port.
        """
        counts = self._counts.setdefault(port, {})
        counts[name] = counts.get(name, 0) + number

    def passed(self, port: Port, far: Port) -> None:
        """
        A MAD has left one port and arrived at the other end of its link.
        """
        for end, way in ((port, "Xmit"), (far, "Rcv")):
            self.add(end, f"port{way}Data", MAD_WORDS)
            self.add(end, f"port{way}Pkts")
            self.add(end, f"portUnicast{way}Pkts")

    def forget(self, node: Node) -> None:
        """
        A node is gone.
        """
        for port in node.each():
            self._counts.pop(port, None)


def isReturning(smp: bytes | bytearray) -> bool:
    """
    @return: whether a directed-route SMP is on its way back.
    """
    return bool(smp[STATUS_AT] << 8 & DIRECTION)


def step(smp: bytearray, switch: bool, ingress: int | None) -> int:
    """
    Do what the SMI of one node does with a directed-route SMP (IBTA vol. 1 14.2.2; Linux C{smi.c}).

    @param smp: its 256 octets; hop pointer and return path are changed.
    @param switch: whether the node is one.
    @param ingress: number of the port that it arrived at, or L{None}: it is sent from here.
    @return: the number of the port that it leaves by, L{DELIVER}, L{ROUTE}, L{DISCARD} or L{NO_SWITCH}.
    """
    if smp[HOP_COUNT_AT] > MOST_HOPS:
        return DISCARD
    return (_returning if isReturning(smp) else _outgoing)(smp, switch, ingress)


def _outgoing(smp: bytearray, switch: bool, ingress: int | None) -> int:
    pointer, count = smp[HOP_POINTER_AT], smp[HOP_COUNT_AT]
    if pointer == count + 1:
        # C14-9:4, of an SMP whose last part was LID routed.
        return DISCARD if ingress is None else DELIVER
    # C14-9:1: the sender has made it 1, and nobody else does.
    if pointer > count or (count and (pointer == 0) != (ingress is None)):
        return DISCARD
    if ingress is not None and pointer:
        # C14-9:2: also where its path ends.
        if pointer < count and not switch:
            return NO_SWITCH
        smp[_RETURN + pointer] = ingress
    smp[HOP_POINTER_AT] = pointer + 1
    if pointer < count:
        return smp[_INITIAL + pointer + 1]
    # C14-9:3
    if smp[_DLID] == _PERMISSIVE:
        return DELIVER
    return ROUTE if switch else NO_SWITCH


def _returning(smp: bytearray, switch: bool, ingress: int | None) -> int:
    pointer, count = smp[HOP_POINTER_AT], smp[HOP_COUNT_AT]
    if pointer > count + 1:
        return DISCARD
    if pointer == 0:
        return DISCARD if ingress is None else DELIVER
    if pointer == 1:
        # C14-13:3; a response to an SMP without hops is there at once.
        if ingress is not None or count == 0:
            if smp[_SLID] != _PERMISSIVE and not switch:
                return NO_SWITCH
            smp[HOP_POINTER_AT] = 0
            return DELIVER if smp[_SLID] == _PERMISSIVE else ROUTE
        return DISCARD
    if pointer == count + 1:
        # C14-13:1: the responder, or the switch at which its directed part begins.
        smp[HOP_POINTER_AT] = count
        return smp[_RETURN + count]
    if ingress is None:
        return DISCARD
    # C14-13:2
    if not switch:
        return NO_SWITCH
    smp[HOP_POINTER_AT] = pointer - 1
    return smp[_RETURN + pointer - 1]


@define
class Packet:
    """
    A management datagram on its way.

    @ivar slid: source LID; L{PERMISSIVE_LID} in a directed route.
    @ivar dlid: destination LID, likewise.
    @ivar source: source queue pair.
    @ivar destination: destination queue pair: 0, 1, or what a redirection named.
    @ivar octets: the MAD, 256 octets, changed by the hops of a directed route.
    @ivar length: how many of them its sender speaks of, which tells tools how many records there are.
    @ivar room: octets of a MAD that its sender takes in response, if it has no RMPP; else 0.
    """

    slid: int
    dlid: int
    source: int
    destination: int
    octets: bytearray
    length: int = MAD_BYTES
    room: int = 0

    @property
    def taker(self) -> Taker:
        """
        The part of the one that takes it where it arrives.
        """
        octets = self.octets
        return takerOf(octets[CLASS_AT], octets[METHOD_AT], int.from_bytes(octets[ATTRIBUTE_AT], "big"))

    @property
    def isRepress(self) -> bool:
        """
        Whether it ends a trap of subnet management: nodes alone send these, and their transaction ids are no
        clients' numbers.
        """
        return self.octets[METHOD_AT] == TRAP_REPRESS and self.octets[CLASS_AT] in SUBNET_CLASSES


def responded(request: Packet, response: bytes) -> Packet:
    """
    @param request: as it has arrived.
    @param response: 256 octets.
    @return: the response, for the way back.
    """
    octets = bytearray(response)
    if octets[CLASS_AT] == SUBNET_DIRECTED:
        octets[STATUS_AT] |= DIRECTION >> 8
    return Packet(request.dlid, request.slid, request.destination, request.source, octets)


class Carrier:
    """
    Takes management datagrams through a subnet.

    Losses are counted:

      - C{smp_discarded}: hop pointer or hop count out of range, or a CA's other port;
      - C{smp_not_switch}: a CA or router would have to forward it;
      - C{mad_no_link}: the port that it must leave by does not exist, or its link is down;
      - C{mad_not_active}: not of subnet management, and the link is not Active;
      - C{mad_no_route}: a switch has no port for the LID, or the CA that it came to has another LID;
      - C{mad_loop}: it passed L{SUBNET_HOPS<twisted_ib.limits.SUBNET_HOPS>} links.
    """

    def __init__(self, count: Callable[[str], object]) -> None:
        """
        @param count: called with the name of each loss.
        """
        self._count = count
        #: Of the ports that they pass.
        self.counters = Counters()
        #: What is called with whether a datagram leaves a port, and the datagram as it is on the link.
        self.watched: dict[Port, Callable[[bool, Packet], object]] = {}

    def carry(self, port: Port, packet: Packet) -> Port | None:
        """
        Take a datagram from a port to where it is delivered.

        @param port: that of the sender; of a switch its port 0.
        @return: the port that it arrived at, which on a switch is not always port 0; L{None} if it is lost.
        """
        if packet.octets[CLASS_AT] != SUBNET_DIRECTED:
            return self._routed(port, packet, packet.dlid)
        if packet.dlid != PERMISSIVE_LID:
            # Its way begins with a LID-routed part, behind which this node is like its sender; or it answers
            # one that ended with such a part.
            start = self._routed(port, packet, packet.dlid)
            if start is None:
                return None
            port = start
        return self._directed(port, packet)

    def _directed(self, port: Port, packet: Packet) -> Port | None:
        smp = packet.octets
        ingress: int | None = None
        # The hop pointer moves by one with each hop, and stays within the path.
        while True:
            node = port.node
            switch = node.switch is not None
            number = step(smp, switch, ingress)
            if number == DELIVER:
                return port
            if number == ROUTE:
                lid = int.from_bytes(smp[_SLID if isReturning(smp) else _DLID], "big")
                return self._routed(node.end(port), packet, lid)
            # Linux smi.c: a CA's port sends only what its path says is for that port.
            if number < 0 or (not switch and number != port.number):
                self._count("smp_not_switch" if number == NO_SWITCH else "smp_discarded")
                return None
            far = self._cross(node, number, packet, management=True)
            if far is None:
                return None
            port, ingress = far, far.number

    def _cross(self, node: Node, number: int, packet: Packet, management: bool) -> Port | None:
        port = node.port(number)
        far = None if port is None else port.peer
        if port is None or far is None or port.physicalState is not PhysicalState.LINK_UP:
            self._count("mad_no_link")
            if port is not None:
                self.counters.add(port, "portXmitDiscards")
            return None
        if not management and not carriesData(port, far):
            self._count("mad_not_active")
            self.counters.add(port, "portXmitDiscards")
            return None
        self.counters.passed(port, far)
        if self.watched:
            self._show(port, far, packet)
        return far

    def _show(self, port: Port, far: Port, packet: Packet) -> None:
        for end, isOutbound in ((port, True), (far, False)):
            watcher = self.watched.get(end)
            if watcher is not None:
                # A copy, since the next hops change it.
                watcher(isOutbound, evolve(packet, octets=bytearray(packet.octets)))

    def _routed(self, port: Port, packet: Packet, lid: int) -> Port | None:
        management = packet.octets[CLASS_AT] in SUBNET_CLASSES
        ingress: Port | None = None
        for _ in range(SUBNET_HOPS + 1):
            node = port.node
            switch = node.switch
            end = node.end(port)
            if end.hasLID(lid):
                # After a link it has come to the port there, else to the one with the LID.
                return ingress or end
            number = egress(port, lid, ingress is None)
            if number == NO_PORT:
                self._count("mad_no_route")
                if switch is not None and ingress is not None:
                    self.counters.add(ingress, "portRcvSwitchRelayErrors")
                return None
            far = self._cross(node, number, packet, management)
            if far is None:
                return None
            port = ingress = far
        self._count("mad_loop")
        return None
