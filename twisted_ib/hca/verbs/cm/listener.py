"""
The identifier that listens: REQs and SIDR_REQs become identifiers of their own.

A request waits until the program hears of it.  One that does not fit into the backlog is dropped
without a word, as TCP does with a SYN, and its peer asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, NoRouteError, ServiceInUseError, WireError
from twisted_ib.hca.base.interfaces import IServiceListener
from twisted_ib.hca.verbs.cm.addrinfo import Address
from twisted_ib.hca.verbs.cm.connected import Connected
from twisted_ib.hca.verbs.cm.datagram import Datagrams
from twisted_ib.hca.verbs.cm.negotiation import UnfitRequest
from twisted_ib.hca.verbs.enums.cm import rdma_cm_event_type, rdma_port_space
from twisted_ib.hca.wire.cm import REQ, SIDR_REQ
from twisted_ib.hca.wire.cm.codes import RejectReason, SIDRStatus
from twisted_ib.hca.wire.cm.rdmacm import HEADER_BYTES, RDMACMHeader, textOf

if TYPE_CHECKING:
    from twisted_ib.hca.verbs.cm.identifier import Identifier

_REQUEST = rdma_cm_event_type.RDMA_CM_EVENT_CONNECT_REQUEST


@implementer(IServiceListener)
class Listener:
    """
    What the device asks when somebody calls.

    @ivar port: the port, the one that was found if any would do.
    """

    def __init__(self, identifier: Identifier, backlog: int) -> None:
        """
        Listen.

        @param backlog: how many requests wait at most; 0 for L{limits.CM_BACKLOG}.

        @raise ServiceInUseError: somebody else does.
        """
        assert identifier.source is not None
        self._identifier = identifier
        self._device = identifier.device
        self._backlog = min(backlog, limits.LISTEN_BACKLOG) if backlog > 0 else limits.CM_BACKLOG
        self._services = self._listen(identifier.source)
        self.port: int = self._services[0].port

    def _listen(self, source: Address) -> list[Any]:
        """
        Take the port.  C{::} is all IPv6 and all IPv4 addresses, as for a TCP socket of Linux.
        """
        space, listen = self._identifier.portSpace, self._device.listen
        host = source.host
        if self._device.addressed:
            try:
                host = self._device.listeningAddress(host)
            except ValueError as error:
                raise NoRouteError(str(error)) from None
        elif space == rdma_port_space.RDMA_PS_IB and host.startswith("fe80:"):
            # A GID of the HCA itself: who finds it by that has found the HCA.
            host = "::"
        service = listen(space, host, source.port, self)
        if host != "::":
            return [service]
        for _ in range(limits.PORT_ATTEMPTS):
            try:
                return [service, listen(space, "0.0.0.0", service.port, self)]
            except ServiceInUseError:
                service.close()
                if source.port:
                    raise
            service = listen(space, host, 0, self)
        service.close()
        raise ServiceInUseError("no port is free for IPv4 and IPv6")

    def close(self) -> None:
        """
        Listen no more.
        """
        for service in self._services:
            service.close()

    # -- what the device asks

    def connectionRequested(self, connection: Any, request: REQ) -> None:
        """
        A REQ came.
        """
        now = self._device.clock()
        if self._identifier.isDatagram:
            connection.reject(RejectReason.INVALID_SERVICE_ID, b"", now)
            return
        if self._isFull():
            connection.ignore(now)
            return
        child = None
        try:
            child = self._child(request, connection.destination)
            assert isinstance(child.transport, Connected)
            child.transport.requested(connection, request)
        except UnfitRequest as error:
            self._refuse(connection, error.reason)
        except HCAError:
            self._refuse(connection, RejectReason.CONSUMER_DEFINED)
        else:
            # So that the peer keeps its place here when it asks again.
            connection.sendMRA(now)
            data = request.privateData[self._headerBytes :]
            self._identifier.report(_REQUEST, child=child, privateData=data, terms=child.transport.terms)
            return
        if child is not None:
            child.close()

    def lookupRequested(self, lookup: Any, request: SIDR_REQ) -> None:
        """
        A SIDR_REQ came.
        """
        now = self._device.clock()
        if not self._identifier.isDatagram:
            lookup.reject(SIDRStatus.SERVICE_ID_UNSUPPORTED, b"", now)
            return
        if self._isFull():
            lookup.ignore(now)
            return
        try:
            child = self._child(request, lookup.destination)
        except HCAError:
            self._device.count("bad_rdma_cm_request")
            lookup.reject(SIDRStatus.REJECTED, b"", now)
            return
        assert isinstance(child.transport, Datagrams)
        child.transport.requested(lookup, request)
        data = request.privateData[self._headerBytes :]
        self._identifier.report(_REQUEST, child=child, privateData=data)

    def requestWithdrawn(self, connection: Any) -> None:
        """
        It came to nothing before there was an identifier for it, or after its end.
        """

    # -- helpers of these

    @property
    def _headerBytes(self) -> int:
        return 0 if self._identifier.portSpace == rdma_port_space.RDMA_PS_IB else HEADER_BYTES

    def _isFull(self) -> bool:
        full = self._identifier.requestsWaiting >= self._backlog
        if full:
            self._device.count("backlog_full")
        return full

    def _refuse(self, connection: Any, reason: RejectReason) -> None:
        self._device.count("bad_rdma_cm_request")
        connection.reject(reason, b"", self._device.clock())

    def _child(self, request: REQ | SIDR_REQ, way: Any) -> Identifier:
        """
        An identifier for who calls.  It says where from; but it can only be a process of this
        host, or the IP address that the packets are from, and a program may decide by the address
        what somebody may do.

        @param way: the path that the request came by.

        @raise WireError: it does not say that right.
        """
        if self._headerBytes:
            header = RDMACMHeader.parse(request.privateData)
            peer, here = Address(header.source, header.sourcePort), header.destination
            if not self._device.isPeers(way, peer.host):
                raise WireError(f"a request comes from {peer.host}, which is no address of its sender")
        else:
            assert isinstance(request, REQ)
            path = request.primaryPath
            peer, here = Address(textOf(path.localGID), 0), textOf(path.remoteGID)
            own = int.from_bytes(path.localGID, "big") == way.peer.gid
            if not own and not self._device.isPeers(way, peer.host):
                raise WireError(f"a request comes from {peer.host}, which is no address of its sender")
        return self._identifier.child(Address(here, self.port), peer)
