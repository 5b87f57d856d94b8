"""
What connections and datagram services have in common: who calls whom, and over which path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib.errors import HCAError
from twisted_ib.hca.verbs.enums.cm import rdma_port_space
from twisted_ib.hca.wire.cm.rdmacm import RDMACMHeader, gidNumber

if TYPE_CHECKING:
    from twisted_ib.hca.verbs.cm.identifier import Identifier


class Call:
    """
    One identifier's part in it.
    """

    def __init__(self, identifier: Identifier) -> None:
        self._identifier = identifier
        self._route: Any = None
        self._isDone = False
        self._isForgotten = False

    def header(self) -> bytes:
        """
        What precedes the private data of the one who calls: nothing in C{RDMA_PS_IB}.
        """
        identifier = self._identifier
        here, there = identifier.source, identifier.destination
        if identifier.portSpace == rdma_port_space.RDMA_PS_IB or here is None or there is None:
            return b""
        return RDMACMHeader(here.host, here.port, there.host).pack()

    def findPath(self) -> None:
        """
        Look for the way to the peer; C{pathFound} or C{pathNotFound} follows, perhaps at once.
        """
        identifier = self._identifier
        there = identifier.destination
        assert there is not None
        device = identifier.device
        found: list[Any] = []
        try:
            if identifier.portSpace == rdma_port_space.RDMA_PS_IB and there.host.startswith("fe80:"):
                found.append(device.reach(gidNumber(there.host), self))
            else:
                now = identifier.now()
                found.append(device.connect(identifier.portSpace, there.host, there.port, self, now))
        except HCAError as error:
            self.pathNotFound(error)
            return
        if not self._isDone:
            self._route = found[0]

    def pathReady(self, path: Any) -> None:
        """
        The device has found the way.
        """
        self._route, self._isDone = None, True
        if self._isForgotten:
            return
        try:
            self.pathFound(path)
        except HCAError as error:
            self.pathNotFound(error)

    def connectFailed(self, error: HCAError) -> None:
        """
        The device has found none.
        """
        self._route, self._isDone = None, True
        if not self._isForgotten:
            self.pathNotFound(error)

    def pathFound(self, path: Any) -> None:
        """
        Say over it what is to be said.
        """
        raise NotImplementedError

    def pathNotFound(self, error: HCAError) -> None:
        """
        Report that there is none.
        """
        raise NotImplementedError

    def forgetPath(self) -> None:
        """
        Look no more.
        """
        self._isForgotten = True
        route, self._route = self._route, None
        if route is not None and hasattr(route, "cancel"):
            route.cancel()
