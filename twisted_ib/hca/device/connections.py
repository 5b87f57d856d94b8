"""
The services that one HCA listens on, and the connections that it has.

The communication manager (L{twisted_ib.hca.cm}) knows messages and states; here is who hears of
them: the listener of a service and an address, the user of a connection.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.errors import PathLostError
from twisted_ib.hca.base.keys import DrawnAhead
from twisted_ib.hca.cm.machine import Connection, Output
from twisted_ib.hca.cm.sidr import Lookup
from twisted_ib.hca.cm.states import Event
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.host.addresses import normalise
from twisted_ib.hca.wire.cm import RejectReason, SIDRStatus
from twisted_ib.hca.wire.cm.rdmacm import PortSpace, textOf, unpackAddress

#: Where private data has the destination, by port space: offset of the version byte, of the
#: address.  SDP's is in the Hello.
_DESTINATION = {PortSpace.SDP.value: (17, 48)}
_IB = PortSpace.IB.value
#: Other port spaces have RDMA-CM's header (annex A11).
_RDMA_CM_DESTINATION = (1, 20)


_REQUEST, _LOOKUP, _REPLY = Event.REQUEST, Event.LOOKUP, Event.REPLY
_ESTABLISHED, _DISCONNECTED = Event.ESTABLISHED, Event.DISCONNECTED


class Manager(ConnectionTable):
    """
    A connection table whose messages leave in the order of everything else.

    @ivar messagesSent: How many have left.
    """

    messagesSent = 0

    def send(self, output: Output) -> None:
        """
        Publish a message at once: what a consumer sends after accepting a
        connection must arrive after the REP.
        """
        path, attribute, body = output
        self.messagesSent += 1
        path.sendManagement(attribute, body)


class Service:
    """
    A service that this HCA listens on.

    @ivar port: The port.
    @ivar address: The address, C{"0.0.0.0"} or C{"::"} for all.
    """

    __slots__ = ("_portSpace", "_services", "address", "port")

    def __init__(self, services: Services, portSpace: int, address: str, port: int) -> None:
        """
        For L{Services.listen}.

        @param services: Of the HCA.
        @param portSpace: Of the RDMA-CM.
        @param address: The address.
        @param port: The port.
        """
        self._services = services
        self._portSpace = portSpace
        self.address = address
        self.port = port

    @property
    def serviceID(self) -> int:
        """
        The service id.
        """
        return self._portSpace << 16 | self.port

    def close(self) -> None:
        """
        Listen no more.
        """
        self._services.unlisten(self)


class Services:
    """
    The services and connections of one device.

    @ivar cm: The communication manager.
    """

    def __init__(self, device: Any, randomBits: Any) -> None:
        """
        There are none.

        @param device: The HCA.
        @param randomBits: Gives that many random bits, which nobody can guess.
        """
        self._device = device
        self.cm = Manager(device.guid, DrawnAhead(randomBits, 32))
        self._listeners: dict[int, dict[str, Any]] = {}

    def listen(self, portSpace: int, address: str, port: int, listener: Any, inode: int = 0) -> Service:
        """
        Listen on a service.

        @param portSpace: Of the RDMA-CM, L{PortSpace<twisted_ib.hca.wire.cm.rdmacm.PortSpace>}: SDP or TCP.
        @param address: An address of this host; C{""} or C{"::"} for all.
        @param port: The port, 0 for any.
        @param listener: An L{IServiceListener}.
        @param inode: Of the TCP socket that listens for the same server on the same address and port, if
            there is one.
        @raise ServiceInUseError: somebody has it.
        @raise NoRouteError: the address is not of this host.
        """
        self._device.check()
        address = normalise(address)
        prefix = portSpace << 16
        if port:
            self._device.fabric.publish(prefix | port, address, inode)
        else:
            port = self._device.fabric.publishAny(prefix, address)
        serviceID = prefix | port
        addresses = self._listeners.get(serviceID)
        if addresses is None:
            addresses = self._listeners[serviceID] = {}
            self.cm.listen(serviceID, addresses)
        addresses[address] = listener
        return Service(self, portSpace, address, port)

    def serve(self, serviceID: int, listener: Any) -> None:
        """
        Take requests for a service from whoever has found this HCA by its GUID: nobody finds it by the
        service.

        @param listener: An L{IServiceListener}.
        """
        self._device.check()
        addresses = self._listeners[serviceID] = {"0.0.0.0": listener, "::": listener}
        self.cm.listen(serviceID, addresses)

    def serveNoMore(self, serviceID: int) -> None:
        """
        Take back what L{serve} did.
        """
        if self._listeners.pop(serviceID, None) is not None:
            self.cm.unlisten(serviceID)

    def unlisten(self, service: Service) -> None:
        """
        Listen no more: see L{Service.close}.

        @param service: What L{listen} gave.
        """
        serviceID = service.serviceID
        addresses = self._listeners.get(serviceID)
        if addresses is None or addresses.pop(service.address, None) is None:
            return
        if not addresses:
            del self._listeners[serviceID]
            self.cm.unlisten(serviceID)
        if not self._device.closed:
            self._device.fabric.withdraw(serviceID, service.address)

    def connect(self, portSpace: int, address: str, port: int, user: Any, now: float) -> Any:
        """
        Find the path to whoever listens on a service.

        @param portSpace: Of the RDMA-CM, L{PortSpace<twisted_ib.hca.wire.cm.rdmacm.PortSpace>}: SDP or TCP.
        @param address: Where to: an address of this host.
        @param port: The port.
        @param user: Gets C{pathReady(path)}, perhaps before this returns, or
            C{connectFailed(error)} later.
        @param now: The device's time, seconds.
        @return: Something with C{cancel()}.
        @raise HCAError: it cannot be found.
        """
        self._device.check()
        return self._device.fabric.resolve(portSpace << 16 | port, normalise(address), user)

    def disconnect(self, connection: Connection, privateData: bytes = b"") -> None:
        """
        Send a DREQ.

        @param connection: Of the communication manager.
        @param privateData: what it says to the peer's user.
        """
        connection.disconnect(self._device.clock(), privateData)
        if self.cm.events:
            self.dispatch()

    def managementReceived(self, path: Any, attribute: int, buffer: Any, start: int, stop: int) -> None:
        """
        See L{IFabricOwner}.
        """
        device, cm = self._device, self.cm
        device.counters["management_received"] += 1
        cm.receive(path, attribute, buffer, start, stop, device.clock())
        if cm.events:
            self.dispatch()

    def pathLost(self, path: Any, reason: PathLostError) -> None:
        """
        See L{IFabricOwner}.
        """
        first: BaseException | None = None
        for connection in self.cm.pathLost(path):
            try:
                self._connectionLost(connection, reason)
            except Exception as error:
                first = first or error  # The others must hear of it too.
        self.dispatch()
        if first is not None:
            raise first

    def _connectionLost(self, connection: Connection | Lookup, reason: PathLostError) -> None:
        """
        Tell the user of a connection, or who was asked about it, that its peer
        is gone.
        """
        if connection.user is not None:
            lost = getattr(connection.user, "pathLost", None)
            if lost is not None:
                lost(reason)
        elif connection.listener is not None:
            listener = self._listenerOf(connection)
            if listener is not None:
                listener.requestWithdrawn(connection)

    def dispatch(self) -> None:
        """
        Tell the users what the communication manager has to say.
        """
        events = self.cm.events
        while events:
            kind, connection, message = events.popleft()
            if connection is None:
                continue
            user = connection.user
            if kind is _REQUEST or kind is _LOOKUP:
                self._requested(connection, message)
            elif user is None:
                listener = self._listenerOf(connection)
                if listener is not None:
                    listener.requestWithdrawn(connection)
            elif kind is _DISCONNECTED:
                connection.user = None  # It hears no more; each refers to the other.
                user.peerDisconnected(connection)
            elif kind is _REPLY:
                user.replied(connection, message)
            elif kind is _ESTABLISHED:
                established = getattr(user, "established", None)
                if established is not None:
                    established(connection, message)
            elif kind == Event.REJECTED:
                user.rejected(connection, message)
            elif kind == Event.UNREACHABLE:
                user.unreachable(connection)
            elif kind == Event.FOUND:
                user.found(connection, message)

    def _requested(self, connection: Any, request: Any) -> None:
        """
        Find the listener for a REQ or SIDR_REQ by the address that it was meant for.
        """
        addresses: Any = connection.listener
        address = _destinationOf(request)
        listener = addresses.get(address)
        if listener is None or address.startswith("fe80:"):
            listener = addresses.get(_otherKey(addresses, address))
        isLookup = connection.__class__ is Lookup
        if listener is None or (isLookup and not hasattr(listener, "lookupRequested")):
            reason = SIDRStatus.SERVICE_ID_UNSUPPORTED if isLookup else RejectReason.INVALID_SERVICE_ID
            connection.reject(reason, b"", self._device.clock())
            return
        connection.listener = listener
        if isLookup:
            listener.lookupRequested(connection, request)
        else:
            listener.connectionRequested(connection, request)

    def _listenerOf(self, connection: Connection | Lookup) -> Any:
        """
        @return: Who was asked about a REQ, or L{None}.
        """
        listener = connection.listener
        return None if isinstance(listener, dict) else listener


def _otherKey(addresses: dict[str, Any], address: str) -> str:
    """
    @return: Under what who listens on all addresses is found, or on that of a link.
    """
    key = address if address in addresses else "0.0.0.0" if "." in address else "::"
    if address.startswith("fe80:"):
        # Private data has no scope; who listens on a link has one.
        key = next((a for a in addresses if a.partition("%")[0] == address), key)
    return key


def _destinationOf(request: Any) -> str:
    """
    @return: The address that a REQ or SIDR_REQ is meant for.
    """
    portSpace = request.serviceID >> 16
    if portSpace == _IB and hasattr(request, "primaryPath"):
        return textOf(request.primaryPath.remoteGID)
    version, offset = _DESTINATION.get(portSpace, _RDMA_CM_DESTINATION)
    data = request.privateData
    return unpackAddress(data[version] >> 4, data[offset : offset + 16])
