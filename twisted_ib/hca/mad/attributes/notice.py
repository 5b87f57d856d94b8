"""
Notice, and the details of each trap (IBTA vol. 1 13.4.8.2, 14.2.5.1).
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, octets

#: Octets of a notice's details.
DETAILS_OCTETS = 54


class NoticeType(IntEnum):
    """
    Notice's type.
    """

    FATAL = 0
    URGENT = 1
    SECURITY = 2
    SUBNET_MANAGEMENT = 3
    INFORMATIONAL = 4
    EMPTY = 0x7F


class Trap(IntEnum):
    """
    Trap numbers of subnet management.
    """

    GID_IN_SERVICE = 64
    GID_OUT_OF_SERVICE = 65
    GROUP_CREATED = 66
    GROUP_DELETED = 67
    LINK_STATE_CHANGED = 128
    LINK_INTEGRITY = 129
    BUFFER_OVERRUN = 130
    FLOW_CONTROL_WATCHDOG = 131
    CAPABILITY_CHANGED = 144
    SYSTEM_IMAGE_GUID_CHANGED = 145
    BAD_MKEY = 256
    BAD_PKEY = 257
    BAD_QKEY = 258
    BAD_PKEY_AT_SWITCH = 259


@frozen(kw_only=True)
class Notice(Attribute):
    """
    A generic notice.

    @ivar noticeProducerType: a node's type, or 4 for a class manager.
    @ivar details: see the classes of this module that have C{TRAPS}.
    """

    ID: ClassVar[int] = 0x0002
    OCTETS: ClassVar[int] = 64

    noticeIsGeneric: int = bits(0, 1, default=1)
    noticeType: int = bits(0, 7, 6)
    noticeProducerType: int = bits(1, 24)
    noticeTrapNumber: int = bits(4, 16)
    noticeIssuerLID: int = bits(6, 16)
    noticeToggle: int = bits(8, 1)
    noticeCount: int = bits(8, 15, 6)
    details: bytes = octets(10, DETAILS_OCTETS)


class Details(Attribute):
    """
    The details of some traps.

    @cvar TRAPS: their numbers.
    """

    __slots__ = ()
    ID: ClassVar[int] = Notice.ID
    OCTETS: ClassVar[int] = DETAILS_OCTETS
    TRAPS: ClassVar[tuple[Trap, ...]]


@frozen(kw_only=True)
class GIDDetails(Details):
    """
    A port or a multicast group came or went.
    """

    TRAPS: ClassVar[tuple[Trap, ...]] = (
        *(Trap.GID_IN_SERVICE, Trap.GID_OUT_OF_SERVICE),
        *(Trap.GROUP_CREATED, Trap.GROUP_DELETED),
    )

    gid: int = bits(6, 128)


@frozen(kw_only=True)
class LinkStateDetails(Details):
    """
    A port of a switch changed its state; SwitchInfo and PortInfo tell more.
    """

    TRAPS: ClassVar[tuple[Trap, ...]] = (Trap.LINK_STATE_CHANGED,)

    lid: int = bits(0, 16)


@frozen(kw_only=True)
class LinkIntegrityDetails(Details):
    """
    A port had more errors than its threshold.
    """

    TRAPS: ClassVar[tuple[Trap, ...]] = (
        *(Trap.LINK_INTEGRITY, Trap.BUFFER_OVERRUN, Trap.FLOW_CONTROL_WATCHDOG),
    )

    lid: int = bits(2, 16)
    port: int = bits(4, 8)


@frozen(kw_only=True)
class LocalChangeDetails(Details):
    """
    The capability mask of a port changed, or what the change flags say.
    """

    TRAPS: ClassVar[tuple[Trap, ...]] = (Trap.CAPABILITY_CHANGED,)

    lid: int = bits(2, 16)
    otherLocalChanges: int = bits(5, 1, 0)
    capMask: int = bits(6, 32)
    capabilityMask2Change: int = bits(11, 1, 5)
    hierarchyChange: int = bits(11, 1, 4)
    smPriorityChange: int = bits(11, 1, 3)
    linkSpeedEnabledChange: int = bits(11, 1, 2)
    linkWidthEnabledChange: int = bits(11, 1, 1)
    nodeDescriptionChange: int = bits(11, 1, 0)
    capabilityMask2: int = bits(12, 16)


@frozen(kw_only=True)
class BadMKeyDetails(Details):
    """
    An SMP had another M_Key than the port.

    @ivar routeHops: how many hops of a directed route C{returnPath} has.
    """

    TRAPS: ClassVar[tuple[Trap, ...]] = (Trap.BAD_MKEY,)

    lid: int = bits(2, 16)
    drSLID: int = bits(4, 16)
    method: int = bits(6, 8)
    attribute: int = bits(8, 16)
    modifier: int = bits(10, 32)
    mkey: int = bits(14, 64)
    directedRoute: int = bits(23, 1)
    truncated: int = bits(23, 1, 6)
    routeHops: int = bits(23, 6, 5)
    returnPath: bytes = octets(24, 30)


@frozen(kw_only=True)
class BadKeyDetails(Details):
    """
    A packet had a P_Key that is not in the port's table, or another Q_Key than its queue pair.

    @ivar lid1: where it was from, as C{qp1} and C{gid1}; the others are where it was to.
    @ivar key: the P_Key or Q_Key of the packet.
    @ivar gid1: 0 without a GRH.
    """

    TRAPS: ClassVar[tuple[Trap, ...]] = (Trap.BAD_PKEY, Trap.BAD_QKEY)

    lid1: int = bits(2, 16)
    lid2: int = bits(4, 16)
    key: int = bits(6, 32)
    sl: int = bits(10, 4)
    qp1: int = bits(11, 24)
    qp2: int = bits(15, 24)
    gid1: int = bits(18, 128)
    gid2: int = bits(34, 128)
