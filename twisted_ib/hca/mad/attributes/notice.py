"""
The attributes of every general management class: ClassPortInfo (IBTA vol. 1 13.4.8.1), and Notice with the
details of each trap (13.4.8.2, 14.2.5.1).
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final

from attrs import frozen

from twisted_ib.hca.mad.attributes.layouts import Attribute, bits, octets

#: RespTimeValue of the classes that this package serves: 1.07 s at most, as ibsim 0.10 has it.
RESPONSE_TIME: Final = 0x12

#: Octets of a notice's details.
DETAILS_OCTETS = 54


@frozen(kw_only=True)
class ClassPortInfo(Attribute):
    """
    The capabilities of a class at a port, and the addresses of its requests and of its traps.

    @ivar respTimeVal: its answers take at most 4.096 us times 2 to this power.
    """

    ID: ClassVar[int] = 0x0001
    OCTETS: ClassVar[int] = 72

    baseVersion: int = bits(0, 8, default=1)
    classVersion: int = bits(1, 8)
    capabilityMask: int = bits(2, 16)
    capabilityMask2: int = bits(4, 27)
    respTimeVal: int = bits(7, 5, 4)
    redirectGID: int = bits(8, 128)
    redirectTC: int = bits(24, 8)
    redirectSL: int = bits(25, 4)
    redirectFL: int = bits(25, 20, 3)
    redirectLID: int = bits(28, 16)
    redirectPKey: int = bits(30, 16)
    redirectQP: int = bits(33, 24)
    redirectQKey: int = bits(36, 32)
    trapGID: int = bits(40, 128)
    trapTC: int = bits(56, 8)
    trapSL: int = bits(57, 4)
    trapFL: int = bits(57, 20, 3)
    trapLID: int = bits(60, 16)
    trapPKey: int = bits(62, 16)
    trapHL: int = bits(64, 8)
    trapQP: int = bits(65, 24)
    trapQKey: int = bits(68, 32)


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
