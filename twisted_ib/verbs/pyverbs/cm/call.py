"""
The parts that connections and datagram services share: stages of an identifier and the commands that each
permits, private data header and path resolution.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from twisted_ib.hca.connection.active import ActiveSide
from twisted_ib.hca.connection.rdmacm import RDMACMHeader, gidNumber
from twisted_ib.verbs.pyverbs.enums.cm import rdma_port_space

if TYPE_CHECKING:
    from twisted_ib.verbs.pyverbs.cm.identifier import Identifier


class Stage(IntEnum):
    """
    The stages, after C{enum rdma_cm_state} of Linux cma.c.

    @cvar BOUND: bound to an address of this host.
    @cvar RESOLVED: the destination is reachable.
    @cvar ROUTED: the route is known.
    @cvar CALLED: a request was received and not answered.
    @cvar ANSWERED: the REP was received; the program must call C{establish}.
    @cvar UP: established, or a REP was sent and the RTU is awaited.
    @cvar OVER: rejected, failed or disconnected.
    """

    IDLE = 0
    BOUND = 1
    RESOLVED = 2
    ROUTED = 3
    REQ_SENT = 4
    REQ_RECEIVED = 5
    REP_RECEIVED = 6
    UP = 7
    OVER = 8
    LISTENING = 9
    CLOSED = 10


#: Command -> (stages that permit it, next stage).  Linux cma.c checks the same with C{cma_comp_exch}: a
#: command in any other stage is EINVAL.
STEPS: dict[str, tuple[frozenset[Stage], Stage]] = {
    "bind": (frozenset((Stage.IDLE,)), Stage.BOUND),
    "resolve address": (frozenset((Stage.BOUND,)), Stage.RESOLVED),
    "resolve route": (frozenset((Stage.RESOLVED,)), Stage.ROUTED),
    "connect": (frozenset((Stage.ROUTED,)), Stage.REQ_SENT),
    "listen": (frozenset((Stage.BOUND,)), Stage.LISTENING),
    "accept": (frozenset((Stage.REQ_RECEIVED,)), Stage.UP),
    "reject": (frozenset((Stage.REQ_RECEIVED,)), Stage.OVER),
    "establish": (frozenset((Stage.REP_RECEIVED,)), Stage.UP),
}


class Call(ActiveSide):
    """
    One identifier's connection attempt or lookup.
    """

    def __init__(self, identifier: Identifier) -> None:
        self._identifier = identifier

    def header(self) -> bytes:
        """
        The header before the active side's private data; empty in C{RDMA_PS_IB}.
        """
        identifier = self._identifier
        here, there = identifier.source, identifier.destination
        # IBTA vol. 1 annex A11: IP port spaces carry the IP addresses and the source port in private data.
        # AF_IB identifiers have no header (Linux cma.c, cma_user_data_offset).
        if identifier.portSpace == rdma_port_space.RDMA_PS_IB or here is None or there is None:
            return b""
        return RDMACMHeader(here.host, here.port, there.host).pack()

    def findPath(self) -> None:
        """
        Resolve the path to the peer.
        """
        identifier = self._identifier
        there = identifier.destination
        assert there is not None
        device = self.device = identifier.device
        # IBTA vol. 1 4.1.1: a link-local GID holds the HCA's GUID; RDMA_PS_IB may address an HCA by it,
        # and no service lookup is needed.
        if identifier.portSpace == rdma_port_space.RDMA_PS_IB and there.host.startswith("fe80:"):
            self.find(device.services.connectHCA, gidNumber(there.host))
        else:
            self.find(device.connect, identifier.portSpace, there.host, there.port)
