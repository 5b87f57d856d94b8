"""
Where packets go in a subnet: the ports that a LID leads to, from each port.

The way of a packet depends on every switch that it passes.  One table from LIDs to ports cannot tell it: an
entry of one switch that leads nowhere takes the LID from the ports behind that switch alone.  Tables for each
port would grow with the square of the ports, and a subnet manager that sweeps changes hundreds of entries,
each of which would make all tables anew.  So a way is walked when it is first asked for, over few switches,
and is kept until something changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.hca.base.port import PortState
from twisted_ib.subnet.network.switch import NO_PORT

if TYPE_CHECKING:
    from twisted_ib.subnet.network.graph import Port


def egress(port: Port, lid: int, isSent: bool) -> int:
    """
    @param port: where a packet is whose LID is not of this node.
    @param isSent: whether it is sent from here; else it has arrived.
    @return: the number of the port of the same node that it leaves by, or L{NO_PORT}.
    """
    switch = port.node.switch
    if switch is not None:
        # Port 0 is the switch itself, which has another LID.
        return switch.lookup(lid) or NO_PORT
    # A CA sends by its own port, and forwards nothing.
    return port.number if isSent else NO_PORT


def carriesData(port: Port, far: Port) -> bool:
    """
    @return: whether a packet of data, or a MAD that is not of subnet management, passes a link to its other
        end.
    """
    # IBTA vol. 1 7.2.7: before Active a link carries subnet management alone; Armed ports receive all.
    return port.state is PortState.ACTIVE and far.state >= PortState.ARMED


class Forwarding:
    """
    The ways of data through a subnet.

    @ivar generation: grows with each change.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._ways: dict[tuple[Port, int], Port | None] = {}
        self._groups: dict[tuple[Port, int], tuple[int, ...]] = {}

    def changed(self) -> None:
        """
        A link, the state of a port, a LID, a P_Key table or a forwarding table is not what it was.
        """
        self.generation += 1
        self._ways.clear()
        self._groups.clear()

    def unicast(self, source: Port, lid: int) -> Port | None:
        """
        @param source: the port that sends.
        @param lid: a unicast LID.
        @return: the port that packets to the LID arrive at; L{None} if they are lost.
        """
        key = source, lid
        try:
            return self._ways[key]
        except KeyError:
            pass
        if len(self._ways) >= limits.SUBNET_ROUTES:
            self._ways.clear()
        found = self._ways[key] = _walk(source, lid)
        return found

    def group(self, source: Port, lid: int) -> tuple[int, ...]:
        """
        @param lid: a multicast LID.
        @return: the GUIDs of the ports of CAs that packets to it arrive at; the same object while nothing has
            changed.
        """
        key = source, lid
        found = self._groups.get(key)
        if found is None:
            if len(self._groups) >= limits.SUBNET_ROUTES:
                self._groups.clear()
            found = self._groups[key] = _flood(source, lid)
        return found

    def connects(self, one: Port, other: Port) -> bool:
        """
        @return: whether each of two ports reaches the other, as connections need.
        """
        # The first LID of each, by which the other knows it.
        return self.unicast(one, other.lid) is other and self.unicast(other, one.lid) is one


def _walk(source: Port, lid: int) -> Port | None:
    if source.state is not PortState.ACTIVE:
        return None
    port, isSent = source, True
    for _ in range(limits.SUBNET_HOPS + 1):
        end = port.node.end(port)
        if end.hasLID(lid):
            return end
        far = _cross(port, egress(port, lid, isSent))
        if far is None:
            return None
        port, isSent = far, False
    # A loop.
    return None


def _cross(port: Port, number: int) -> Port | None:
    by = port.node.port(number)
    far = None if by is None else by.peer
    return far if by is not None and far is not None and carriesData(by, far) else None


def _flood(source: Port, lid: int) -> tuple[int, ...]:
    found: dict[int, None] = {}
    first = _cross(source, source.number)
    # Each port is entered once, so that a loop in the tables ends.
    left, entered = [first] if first is not None else [], {first}
    while left:
        port = left.pop()
        switch = port.node.switch
        if switch is None:
            found[port.guid] = None
            if len(found) >= limits.MULTICAST_MEMBERS:
                break
            continue
        for number in switch.replicated(lid, port.number):
            far = _cross(port, number)
            if far is not None and far not in entered:
                entered.add(far)
                left.append(far)
    # Of a loop: what a port has sent does not come back to it.
    found.pop(source.guid, None)
    return tuple(found)
