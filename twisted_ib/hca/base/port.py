"""
A port of an HCA: its addresses, partitions and states, and the events of their changes.

On InfiniBand a subnet manager configures a port by MADs, and the link brings it up and down.  A RoCEv2 port,
and one between processes, stays as it was made: active, without LIDs (IBTA vol. 1 annex A17).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from attrs import define, field, fields, frozen

from twisted_ib import limits
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.partition import PartitionTable
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.layouts import Shown

#: The default subnet prefix (IBTA vol. 1 4.1.1).
DEFAULT_PREFIX = 0xFE80 << 48
#: The largest unicast LID; those above are of multicast groups, and 0xFFFF is permissive (IBTA vol. 1 4.1.3).
LARGEST_UNICAST_LID = 0xBFFF
#: Lanes of PortInfo's LinkWidthActive (IBTA vol. 1 14.2.5.6); 16 is 2X, which came later (ib_verbs.h,
#: IB_WIDTH_2X).
LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
#: Gb/s of a lane: LinkSpeedActive and, from 16 on, LinkSpeedExtActive in one number (libibverbs/verbs.h,
#: ibv_port_attr.active_speed).  4 and 8 are QDR and FDR10, of one rate; FDR and EDR are rounded as Linux's
#: sysfs.c rate_show does.
LANE_GIGABITS = {1: 2.5, 2: 5.0, 4: 10.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}
_HALF = 64
_LOW = (1 << _HALF) - 1


def linkGigabits(width: int, speed: int) -> float:
    """
    @param width: a link's width, as of L{LANES}, and C{speed} that of its lanes, as of L{LANE_GIGABITS}.
    @return: its rate, in Gb/s; 0 if one of them is unknown.
    """
    return LANES.get(width, 0) * LANE_GIGABITS.get(speed, 0.0)


class PortState(IntEnum):
    """
    PortInfo's PortState, with C{enum ibv_port_state}'s values (IBTA vol. 1 14.2.5.6).
    """

    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4


class PhysicalState(IntEnum):
    """
    PortInfo's PortPhysicalState (IBTA vol. 1 14.2.5.6).
    """

    SLEEP = 1
    POLLING = 2
    DISABLED = 3
    TRAINING = 4
    LINK_UP = 5
    LINK_ERROR_RECOVERY = 6


@frozen(kw_only=True, repr=False)
class PortChange(Shown):
    """
    New values of a port; L{None} leaves one as it is.

    @ivar width: of the link, and C{speed} its speed, as L{Port} has them.
    @ivar capMask: PortInfo's CapabilityMask.
    @ivar subnetPrefix: the upper half of the GIDs that had the old one.
    @ivar gids: the whole table, instead.
    @ivar partitions: the whole P_Key table.
    @ivar reregister: whether the subnet manager asks its clients to register again (ClientReregister).
    """

    state: PortState | None = None
    physicalState: PhysicalState | None = None
    lid: int | None = None
    lmc: int | None = None
    smLID: int | None = None
    smSL: int | None = None
    width: int | None = None
    speed: int | None = None
    capMask: int | None = None
    subnetPrefix: int | None = None
    gids: tuple[int, ...] | None = None
    partitions: tuple[int, ...] | None = None
    reregister: bool = False

    def check(self) -> None:
        """
        @raise ValueError: a value does not fit its field.
        """
        for name, highest in _HIGHEST:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= highest:
                raise ValueError(f"a port has no {name} {value:#x}")
        if self.gids is not None and not 0 < len(self.gids) <= limits.PORT_GIDS:
            raise ValueError(f"a port has 1 to {limits.PORT_GIDS} GIDs, not {len(self.gids)}")
        if self.partitions is not None:
            PartitionTable(self.partitions)


_HIGHEST = (
    ("lid", LARGEST_UNICAST_LID),
    ("lmc", 7),
    ("smLID", LARGEST_UNICAST_LID),
    ("smSL", 15),
    ("width", 0xFF),
    ("speed", 0xFF),
    ("capMask", 0xFFFFFFFF),
    ("subnetPrefix", _LOW),
)
#: Fields whose change is an event, in the order in which they are reported.
_EVENTS = (
    (("lid", "lmc"), EventType.LID_CHANGE),
    (("smLID", "smSL"), EventType.SM_CHANGE),
    (("gids",), EventType.GID_CHANGE),
    (("partitions",), EventType.PKEY_CHANGE),
)


class KeyViolation(NamedTuple):
    """
    A packet that was dropped for its P_Key or Q_Key (IBTA vol. 1 14.2.5.1, traps 257 and 258).

    @ivar isQueueKey: which of the two.
    @ivar key: that of the packet.
    @ivar source: its SLID, and C{target} its DLID.
    @ivar level: its service level.
    @ivar sender: the queue pair that has sent it, and C{receiver} the one that it was for.
    @ivar sourceGID: 0 if it has no GRH, as C{targetGID}.
    """

    isQueueKey: bool
    key: int
    source: int
    target: int
    level: int
    sender: int
    receiver: int
    sourceGID: int = 0
    targetGID: int = 0


@define(eq=False, kw_only=True, repr=False)
class Port(Shown):
    """
    One port.

    @ivar linkLayer: L{LinkLayer}.
    @ivar state: L{PortState}.
    @ivar physicalState: L{PhysicalState}.
    @ivar lid: the base LID, 16 bits; 0 before a subnet manager has assigned one.
    @ivar lmc: how many of the low bits of a LID are path bits: the port has C{2 ** lmc} LIDs.
    @ivar smLID: the LID of the subnet manager, 0 for none; C{smSL} the service level to it.
    @ivar gids: the GID table, 128 bits each; the first is the port's own.
    @ivar partitions: the P_Key table.
    @ivar mtu: the largest payload of a packet, bytes.
    @ivar width: the active link width, and C{speed} the link speed, in C{struct ibv_port_attr}'s codes.
    @ivar capMask: PortInfo's CapabilityMask, on InfiniBand.
    @ivar counters: the device's, by name.
    """

    linkLayer: LinkLayer = LinkLayer.ETHERNET
    state: PortState = PortState.ACTIVE
    physicalState: PhysicalState = PhysicalState.LINK_UP
    lid: int = 0
    lmc: int = 0
    smLID: int = 0
    smSL: int = 0
    gids: tuple[int, ...] = (DEFAULT_PREFIX << _HALF,)
    partitions: PartitionTable = field(factory=PartitionTable)
    mtu: int = limits.DATAGRAM_BYTES
    # As Linux rxe's (rxe_param.h): software has no lanes.
    width: int = 1
    speed: int = 1
    capMask: int = 0
    counters: Mapping[str, int] = field(factory=dict)

    @property
    def subnetPrefix(self) -> int:
        """
        The upper half of its own GID, 64 bits.
        """
        return self.gids[0] >> _HALF

    def hasLID(self, lid: int) -> bool:
        """
        @return: whether a LID is one of this port's, whatever its path bits.
        """
        return bool(self.lid) and lid >> self.lmc == self.lid >> self.lmc

    def counter(self, name: str, bits: int = 64) -> int:
        """
        @return: a counter of the device in a field of so many bits, where it stays at its maximum (IBTA
            vol. 1 14.2.5.6, 16.1.3.5).
        """
        return min(self.counters.get(name, 0), (1 << bits) - 1)

    def apply(self, change: PortChange) -> list[EventType]:
        """
        Change the port.

        @return: the events of what is different now, for all users of the device (IBTA vol. 1 11.6.3.3).
            PORT_ERR comes before the others and PORT_ACTIVE after them, so that who gets it finds the port
            configured.
        @raise ValueError: a value does not fit; then nothing has changed.
        @raise ResourceLimitError: a table is too long; likewise.
        """
        change.check()
        before = self._values()
        for each in fields(PortChange):
            value = getattr(change, each.name)
            if value is None or each.name in ("subnetPrefix", "partitions", "reregister"):
                continue
            setattr(self, each.name, value)
        if change.gids is None and change.subnetPrefix is not None:
            self._move(change.subnetPrefix)
        if change.partitions is not None:
            self.partitions.replace(change.partitions)
        after = self._values()
        events = [kind for names, kind in _EVENTS if any(before[name] != after[name] for name in names)]
        if change.reregister:
            events.append(EventType.CLIENT_REREGISTER)
        was, isActive = before["state"] is PortState.ACTIVE, self.state is PortState.ACTIVE
        if was and not isActive:
            events.insert(0, EventType.PORT_ERR)
        elif isActive and not was:
            events.append(EventType.PORT_ACTIVE)
        return events

    def _values(self) -> dict[str, object]:
        found = {name: getattr(self, name) for names, _ in _EVENTS for name in names}
        return {**found, "partitions": self.partitions.keys, "state": self.state}

    def _move(self, prefix: int) -> None:
        old = self.subnetPrefix
        self.gids = tuple(prefix << _HALF | gid & _LOW if gid >> _HALF == old else gid for gid in self.gids)
