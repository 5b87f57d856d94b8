"""
Which of those at a port takes a management datagram: one table, for devices, for the nodes of a subnet and
for the programs at both.

A device has its agents registered for classes, versions and methods
(L{Agents<twisted_ib.hca.mad.dispatch.Agents>}), a node of a subnet has those of its firmware
(L{HostedSubnet<twisted_ib.subnet.hosting.hosted.HostedSubnet>}), a program the port that it is attached to
(L{UmadServer<twisted_ib.subnet.network.umad.UmadServer>}).  Each knows who plays these parts there; the parts
are decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from twisted_ib.hca.base.operation import GSI_QPN, SMI_QPN
from twisted_ib.hca.mad.attributes.node import SMInfo
from twisted_ib.hca.mad.attributes.notice import Notice
from twisted_ib.hca.wire.mad.classes import (
    COMMUNICATION,
    ORGANIZATION_CLASSES,
    SUBNET,
    SUBNET_ADMINISTRATION,
    SUBNET_CLASSES,
    SUBNET_DIRECTED,
    VENDOR_CLASSES,
)
from twisted_ib.hca.wire.mad.mad import CLASS_PORT_INFO, REPORT, RESPONSE, SEND, TRAP, TRAP_REPRESS


class Taker(Enum):
    """
    The parts.

    @cvar REQUESTER: the one that has sent the request or the trap; a subnet's own traps are its nodes'.
    @cvar MANAGER: the subnet manager at the port; where there is none it is L{NODE}, or nobody.
    @cvar NODE: the subnet management agent of the node.
    @cvar AGENT: the agent of the class.
    @cvar PROGRAM: the same, of a program rather than the node's own.
    @cvar NOBODY: it is dropped.
    """

    REQUESTER = auto()
    MANAGER = auto()
    NODE = auto()
    AGENT = auto()
    PROGRAM = auto()
    NOBODY = auto()


#: Method and attribute, L{None} for all others, to the taker.
_Rows = Mapping[tuple[int | None, int | None], Taker]
# IBTA vol. 1 14.2.5.13 and 13.4.8.2: SMInfo is a subnet manager's, and so are notices.
_SUBNET: Final[_Rows] = {
    (None, SMInfo.ID): Taker.MANAGER,
    (TRAP, Notice.ID): Taker.MANAGER,
    (None, None): Taker.NODE,
}
#: The table: class to rows, and those of all other classes.
ROWS: Final[Mapping[int, _Rows]] = {
    SUBNET: _SUBNET,
    SUBNET_DIRECTED: _SUBNET,
    # IBTA vol. 1 15.4: subnet administration reports to those that have asked for it.
    SUBNET_ADMINISTRATION: {(REPORT, None): Taker.AGENT, (None, None): Taker.MANAGER},
    # Linux mad.c validate_mad: CM messages have method Send, and anything else is dropped unanswered.
    COMMUNICATION: {
        (SEND, None): Taker.AGENT,
        (None, CLASS_PORT_INFO): Taker.AGENT,
        (None, None): Taker.NOBODY,
    },
    **{each: {(None, None): Taker.PROGRAM} for each in (*VENDOR_CLASSES, *ORGANIZATION_CLASSES)},
}
_OTHERS: Final[_Rows] = {(None, None): Taker.AGENT}


def isResponse(method: int) -> bool:
    """
    @return: whether a MAD answers another.
    """
    # Linux mad.c ib_response_mad: TrapRepress does, though it lacks the bit.
    return bool(method & RESPONSE) or method == TRAP_REPRESS


def takerOf(managementClass: int, method: int, attribute: int) -> Taker:
    """
    @return: the part of the one that takes a MAD.
    """
    rows = ROWS.get(managementClass, _OTHERS)
    taker = rows.get((method, None)) or rows.get((method, attribute)) or rows.get((None, attribute))
    taker = taker or rows[None, None]
    return Taker.REQUESTER if isResponse(method) and taker is not Taker.NOBODY else taker


def queuePairOf(managementClass: int) -> int:
    """
    @return: the queue pair of a class (IBTA vol. 1 13.5.1).
    """
    return SMI_QPN if managementClass in SUBNET_CLASSES else GSI_QPN
