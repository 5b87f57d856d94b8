"""
The port of a bound identifier, and the listening identifier: each REQ or SIDR_REQ becomes an identifier of
its own.

A request waits until the program fetches its event.  One beyond the backlog is dropped silently, as TCP drops
a SYN, and its peer sends it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, NoRouteError, ServiceInUseError, WireError
from twisted_ib.hca.connection import ConnectRequest, LookupRequest, RejectReason, SIDRStatus
from twisted_ib.hca.connection.interfaces import IServiceListener
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, RDMACMHeader, textOf
from twisted_ib.hca.host.addresses import freePort
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address
from twisted_ib.verbs.pyverbs.cm.call import Connected, Datagrams, Stage
from twisted_ib.verbs.pyverbs.cm.negotiation import UnsupportedRequest
from twisted_ib.verbs.pyverbs.enums.cm import rdma_cm_event_type, rdma_port_space

if TYPE_CHECKING:
    from twisted_ib.verbs.pyverbs.cm.identifier import Identifier

_REQUEST = rdma_cm_event_type.RDMA_CM_EVENT_CONNECT_REQUEST


def namesNone(device: Any, address: Address) -> bool:
    """
    @return: whether an address of the host names no device (Linux cma.c, cma_any_addr): the wildcard, or one
        of the loopback interface, unless the device has such an address itself.
    """
    if address.isAny or not address.isLoopback or device.address is None:
        return address.isAny
    return not Address(device.address, 0).isLoopback


@implementer(IServiceListener)
class Listener:
    """
    The listener that the device calls for incoming requests.  Until its identifier listens it only holds the
    port, and answers as if nobody listened.  For an IP version that the device has not it has no service, and
    never conflicts with another.
    """

    def __init__(self, identifier: Identifier) -> None:
        """
        @raise ServiceInUseError: another listener has this address and port.
        """
        assert identifier.source is not None
        self._identifier = identifier
        self._device = identifier.device
        self._backlog = limits.CM_BACKLOG
        self._services = self._listen(identifier.source)
        #: The bound port, also if any port was asked for.
        self.port: int = self._services[0].port if self._services else identifier.source.port or freePort(())

    def setBacklog(self, backlog: int) -> None:
        """
        @param backlog: requests that wait at most; 0 for L{limits.CM_BACKLOG}.
        """
        self._backlog = min(backlog, limits.LISTEN_BACKLOG) if backlog > 0 else limits.CM_BACKLOG

    @property
    def _isOpen(self) -> bool:
        return self._identifier.stage is Stage.LISTENING

    def _listen(self, source: Address) -> list[Any]:
        # As for a TCP socket of Linux, :: listens on IPv6 and IPv4 (RFC 3493 section 5.3), unless the program
        # has said otherwise.
        space, listen = self._identifier.portSpace, self._device.listen
        host = source.host
        if self._device.address is not None:
            isIPv6 = ":" in self._device.address
            if (
                (host == "0.0.0.0" and isIPv6)
                or (host == "::" and self._identifier.isIPv6Only and not isIPv6)
                or (source.isLoopback and namesNone(self._device, source))
            ):
                # No peer can reach the listener: the device has no address of its IP version.  On Linux a
                # wildcard listens on every device (cma.c, cma_listen_on_all), whatever addresses that has.
                # tgtd listens for IPv4 and for IPv6 on the same port.
                return []
            try:
                host = self._device.listeningAddress(host)
            except ValueError as error:
                raise NoRouteError(str(error)) from None
        elif space == rdma_port_space.RDMA_PS_IB and host.startswith("fe80:"):
            # A link-local GID of the HCA itself: whoever resolved that GID has found this HCA, on any
            # address.
            host = "::"
        service = listen(space, host, source.port, self)
        if host != "::" or self._identifier.isIPv6Only:
            return [service]
        # A free port of IPv6 may be taken for IPv4: try others, but only if any port will do.
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
        Stop listening.
        """
        for service in self._services:
            service.close()

    # -- what the device asks

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        now = self._device.clock()
        # A datagram service answers SIDR_REQs only: to a REQ it is a service that nobody listens on, reason 8
        # (IBTA vol. 1 12.6.7.2).
        if self._identifier.isDatagram or not self._isOpen:
            connection.reject(RejectReason.INVALID_SERVICE_ID, b"", now)
            return
        # Dropped, not rejected: the peer's REQ timer repeats it (IBTA vol. 1 12.6.5, Max CM Retries) when
        # there may be room.
        if self._isFull():
            connection.ignore(now)
            return
        child = None
        try:
            child = self._child(request, connection.destination)
            assert isinstance(child.transport, Connected)
            child.transport.requested(connection, request)
        except UnsupportedRequest as error:
            self._refuse(connection, error.reason)
        except HCAError:
            self._refuse(connection, RejectReason.CONSUMER_DEFINED)
        else:
            # IBTA vol. 1 12.6.6: the MRA extends the peer's REQ timer, so that it keeps waiting while the
            # program decides.  Linux cma.c sends it only after a repeated REQ.
            connection.sendMRA(now)
            # Linux cma.c, cma_user_data_offset: the program never sees the header of annex A11.
            data = request.privateData[self._headerBytes :]
            self._identifier.report(_REQUEST, child=child, privateData=data, terms=child.transport.terms)
            return
        if child is not None:
            child.close()

    def lookupRequested(self, lookup: Any, request: LookupRequest) -> None:
        """
        A SIDR_REQ was received.
        """
        now = self._device.clock()
        if not self._identifier.isDatagram or not self._isOpen:
            lookup.reject(SIDRStatus.SERVICE_ID_UNSUPPORTED, b"", now)
            return
        # There is no MRA for SIDR (IBTA vol. 1 12.11); the peer asks again.
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
        pass  # It ended before or after the life of its identifier, which has its own notice.

    # -- helpers of these

    @property
    def _headerBytes(self) -> int:
        # IBTA vol. 1 annex A11 applies to IP port spaces only.
        return 0 if self._identifier.portSpace == rdma_port_space.RDMA_PS_IB else HEADER_BYTES

    def _isFull(self) -> bool:
        full = self._identifier.requestsWaiting >= self._backlog
        if full:
            self._device.count("backlog_full")
        return full

    def _refuse(self, connection: Any, reason: RejectReason) -> None:
        # A stranger can send such requests at will: counted, never logged.
        self._device.count("bad_rdma_cm_request")
        connection.reject(reason, b"", self._device.clock())

    def _child(self, request: ConnectRequest | LookupRequest, way: Any) -> Identifier:
        # The private data names the source address.  It must be the address that the packets came from, or
        # any address of this host for one of its processes: programs authorize peers by address.
        if self._headerBytes:
            header = RDMACMHeader.parse(request.privateData)
            peer, here = Address(header.source, header.sourcePort), header.destination
            if not self._device.isPeers(way, peer.host):
                raise WireError(f"a request comes from {peer.host}, which is no address of its sender")
        else:
            assert isinstance(request, ConnectRequest)
            path = request.primaryPath
            peer, here = Address(textOf(path.localGID), 0), textOf(path.remoteGID)
            # An HCA may name itself by the GID of its own path; any other GID must be an address of that
            # peer.
            own = int.from_bytes(path.localGID, "big") == way.peer.gid
            if not own and not self._device.isPeers(way, peer.host):
                raise WireError(f"a request comes from {peer.host}, which is no address of its sender")
        return self._identifier.child(Address(here, self.port), peer)
