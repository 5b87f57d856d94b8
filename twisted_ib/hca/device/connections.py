"""
The services that one HCA listens on, and its connections.

The communication manager (L{twisted_ib.hca.cm}) has the messages and the states; this module dispatches its
events to listeners, by service and address, and to the users of connections.  They see requests and replies
(L{twisted_ib.hca.connection}), no messages: a fabric that connects by other means gives them the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.errors import PathLostError, ResourceLimitError, ServiceInUseError
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.events import notifyAll
from twisted_ib.hca.base.traits import Peers
from twisted_ib.hca.cm.machine import Connection, Output, requestMessage, requestOf
from twisted_ib.hca.cm.peer import Peer, SettledUser
from twisted_ib.hca.cm.sidr import Lookup
from twisted_ib.hca.cm.states import Event, State
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.cm.transactions import CMTransactions
from twisted_ib.hca.connection import (
    ConnectRequest,
    LookupReply,
    LookupRequest,
    Rejection,
    RejectReason,
    SIDRStatus,
)
from twisted_ib.hca.connection.compacthello import refusal
from twisted_ib.hca.connection.interfaces import IConnector
from twisted_ib.hca.connection.rdmacm import PortSpace, textOf, unpackAddress
from twisted_ib.hca.connection.request import ANY_PATH
from twisted_ib.hca.host.addresses import freePort, normalise
from twisted_ib.hca.memory.keys import DrawnAhead
from twisted_ib.hca.wire.cm.messages import REJ, REQ, SIDR_REQ

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twisted_ib.hca.base.interfaces import Buffer, IPeerPath, PathUser, Search
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device

#: Offsets of the IP version and the destination address in private data, by port space: SDP's Hello
#: (IBTA vol. 1 annex A4).
_DESTINATION = {PortSpace.SDP.value: (17, 48)}
_IB = PortSpace.IB.value
#: The bits of the port in a service id.
_PORT = 0xFFFF
#: The key of a listener whatever the destination address: a request to it need not name one.
_SERVED = ""
#: The same in RDMA-CM's header, for other port spaces (IBTA vol. 1 annex A11).
_RDMA_CM_DESTINATION = (1, 20)

_LARGEST_MTU = max(MTU_CODES.values())
#: The code of the path MTU that fits into IPv6's least.
_EVERYWHERE = MTU_CODES[1024]

_REQUEST, _LOOKUP, _REPLY = Event.REQUEST, Event.LOOKUP, Event.REPLY
_NO_SUCH_ID = RejectReason.INVALID_COMMUNICATION_ID
_ESTABLISHED, _DISCONNECTED = Event.ESTABLISHED, Event.DISCONNECTED


class Manager(ConnectionTable):
    """
    A connection table whose messages are sent at once, in order with everything else.

    @ivar messagesSent: messages sent.
    @ivar transactions: transaction ids, where messages travel as MADs; L{None} between processes.
    """

    messagesSent = 0
    transactions: CMTransactions | None = None

    def send(self, output: Output) -> None:
        # At once: data that follows an accept must arrive after the REP.
        path, attribute, body = output
        self.messagesSent += 1
        # Queueing REP and data separately would let data overtake the REP, and the peer would refuse it.
        if self.transactions is None:
            path.sendManagement(attribute, body)
        else:
            transaction = self.transactions.of(path.peer.address, attribute, body)
            path.sendManagement(attribute, body, transaction)


class Service:
    """
    A listening service of this HCA.
    """

    __slots__ = ("_portSpace", "_services", "address", "port")

    def __init__(self, services: Services, portSpace: int, address: str, port: int) -> None:
        self._services = services
        self._portSpace = portSpace
        #: The bound address, C{"0.0.0.0"} or C{"::"} for all.
        self.address = address
        self.port = port

    @property
    def serviceID(self) -> int:
        """
        The service id, 64 bits.
        """
        return self._portSpace << 16 | self.port

    def close(self) -> None:
        """
        Stop listening.
        """
        self._services.unlisten(self)


class Services:
    """
    The services and connections of one device; see
    L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>} and
    L{IConnectorOwner<twisted_ib.hca.fabric.base.streams.IConnectorOwner>}.
    """

    def __init__(self, device: Device, randomBits: Callable[[int], int]) -> None:
        """
        @param randomBits: returns a number of that many unpredictable bits.
        """
        self._device = device
        # Communication ids are random, as Linux cm.c starts at a random number: peers may remember those of a
        # process that restarts, and strangers must not guess them.  Drawn ahead, as each draw is a system
        # call.
        self.identifiers = DrawnAhead(randomBits, 32)
        #: The communication manager.
        self.cm = Manager(device.guid, self.identifiers)
        self._listeners: dict[int, dict[str, Any]] = {}

    def listen(self, portSpace: int, address: str, port: int, listener: Any, inode: int = 0) -> Service:
        """
        Listen on a service.

        @param portSpace: the RDMA-CM port space, L{PortSpace<twisted_ib.hca.connection.rdmacm.PortSpace>}.
        @param address: an address of this host; C{""} or C{"::"} for all.
        @param port: 0 for any free port.
        @param listener: an L{IServiceListener<twisted_ib.hca.connection.interfaces.IServiceListener>}.
        @param inode: the inode of the same server's TCP socket on this address and port, or 0.
        @raise ServiceInUseError: another listener has it.
        @raise NoRouteError: the address is not of this host.
        """
        self._device.check()
        address = normalise(address)
        prefix = portSpace << 16
        if self._device.resolver is not None and self._device.resolver.isOwn(address):
            # Its peers find this HCA by the address, and ask it for the service.
            port = self._freePort(prefix, address, port)
        # Published before the listener is entered: two processes race for a port, and the fabric decides.
        elif port:
            self._device.fabric.publish(prefix | port, address, inode)
        else:
            port = self._device.fabric.publishAny(prefix, address)
        serviceID = prefix | port
        # Several listeners share a service id with different addresses; the CM knows the service id only.
        addresses = self._listeners.get(serviceID)
        if addresses is None:
            addresses = self._listeners[serviceID] = {}
            self.cm.listen(serviceID, addresses)
        addresses[address] = listener
        return Service(self, portSpace, address, port)

    def _freePort(self, prefix: int, address: str, port: int) -> int:
        if not port:
            return freePort({number & _PORT for number in self._listeners if number & ~_PORT == prefix})
        if address in self._listeners.get(prefix | port, ()):
            raise ServiceInUseError(f"{address} port {port} of device {self._device.name} has a listener")
        return port

    def serve(self, serviceID: int, listener: Any) -> None:
        """
        Serve peers that found this HCA by its GUID or GID; the service itself is not published.

        @param serviceID: 64 bits; the private data of its requests need have no addresses.
        @param listener: an L{IServiceListener<twisted_ib.hca.connection.interfaces.IServiceListener>}.
        @raise ServiceInUseError: another listener has it.
        """
        self._device.check()
        if serviceID in self._listeners:
            raise ServiceInUseError(f"service {serviceID:#x} of device {self._device.name} has a listener")
        addresses = self._listeners[serviceID] = {_SERVED: listener}
        self.cm.listen(serviceID, addresses)

    def serveNoMore(self, serviceID: int) -> None:
        """
        Undo L{serve}.
        """
        if self._listeners.pop(serviceID, None) is not None:
            self.cm.unlisten(serviceID)

    def unlisten(self, service: Service) -> None:
        """
        Stop listening: see L{Service.close}.
        """
        serviceID = service.serviceID
        addresses = self._listeners.get(serviceID)
        if addresses is None or addresses.pop(service.address, None) is None:
            return
        if not addresses:
            del self._listeners[serviceID]
            self.cm.unlisten(serviceID)
        # A closed device has withdrawn everything already; to withdraw what was not published is harmless.
        if not self._device.closed:
            self._device.fabric.withdraw(serviceID, service.address)

    def connect(
        self, portSpace: int, address: str, port: int, user: PathUser, seconds: float = 0.0
    ) -> Search | None:
        """
        Resolve the path to the listener of a service.

        @param portSpace: the RDMA-CM port space, L{PortSpace<twisted_ib.hca.connection.rdmacm.PortSpace>}.
        @param user: gets C{pathReady(path)}, perhaps before this returns, or C{connectFailed(error)} later.
        @param seconds: how long an address that IPoIB resolves is asked for again.
        @return: an object with C{cancel()}.
        @raise HCAError: it cannot be resolved.
        """
        device = self._device
        device.check()
        address = normalise(address)
        if device.resolver is not None and device.resolver.sourceFor(address):
            return device.resolver.resolve(address, user, seconds)
        return device.fabric.resolve(portSpace << 16 | port, address, user)

    def connectHCA(self, gid: int, user: PathUser) -> Search | None:
        """
        Resolve the path to an HCA, whatever it serves (L{serve}).

        @param gid: that of its port.
        @return: an object with C{cancel()}, or L{None} if the user was called already.
        @raise HCAError: it cannot be resolved.
        """
        self._device.check()
        return self._device.paths.reachHCA(gid, user)

    def sendRequest(self, path: IPeerPath, request: ConnectRequest, user: Any, now: float) -> Connection:
        self._checkRoom(path)
        # IBTA vol. 1 12.6.5: the path's LIDs, GIDs, MTU and timeouts; between processes there are none.
        if self._device.traits.peers is not Peers.PROCESSES and request.primaryPath is ANY_PATH:
            path.prepareRequest(request)
        message, queuePair = requestMessage(request), self._device.queuePairs.get(request.localQPN)
        partitions = self._device.partitions
        message.partitionKey = partitions.key(0) if queuePair is None else queuePair.partition
        localID = 0
        if not self.cm.lossless:
            # To a peer that was away all REQs of an attempt are one, whichever it reads first.
            localID = request.communicationID
        elif queuePair is not None and not queuePair.remote:
            # One integer for both numbers.  Only once: messages about an earlier connection of this queue
            # pair may be on their way.
            localID = queuePair.remote = request.localQPN
        try:
            return self.cm.connect(path, message, user, now, localID)
        except BaseException:
            if queuePair is not None and localID and self.cm.lossless:
                queuePair.remote = 0  # Its first connection is yet to come.
            raise

    def sendLookup(self, path: IPeerPath, request: LookupRequest, user: Any, now: float) -> Lookup:
        self._checkRoom(path)
        retries, timeout = request.requestRetries, request.responseTimeout
        message = SIDR_REQ(serviceID=request.serviceID, privateData=request.privateData)
        message.partitionKey = self._device.partitions.key(0)
        return self.cm.lookups.ask(path, message, user, retries, timeout, now)

    def _checkRoom(self, path: IPeerPath) -> None:
        # A lossless medium drops no message, so those that begin an exchange stop here.
        if self.cm.lossless and path.unsent() >= limits.MANAGEMENT_SENDS:
            raise ResourceLimitError(
                f"{limits.MANAGEMENT_SENDS} messages wait until the peer's process reads them; connect later"
            )

    def disconnect(self, connection: Any, privateData: bytes = b"", isAwaited: bool = True) -> bool:
        """
        End a connection, with private data for the peer's user.

        @param isAwaited: whether its user is to hear of the peer's answer.
        @return: whether C{peerDisconnected} will be called when the peer has answered.
        """
        ending: IConnection = connection
        if isAwaited or not self.cm.lossless:
            ending.disconnect(self._device.clock(), privateData)
        else:
            # Both refer to each other, a cycle for the garbage collector.
            ending.user = None
            ending.leave(self._device.clock(), privateData)
        if self.cm.events:
            self.dispatch()
        return bool(connection.state is State.DREQ_SENT)

    def finish(self, user: SettledUser) -> bool:
        """
        End a user's C{connection}, if both users have told each other of the end; their last messages are in
        the medium.

        @return: whether it has ended; if not, one of them disconnects.
        """
        # IBTA vol. 1 12.6.10: DREQ and DREP tell the other end, and are repeated until it knows.  A medium
        # that loses nothing has told it already.
        if not self.cm.lossless:
            return False
        connection = user.connection
        if isinstance(connection, Peer):
            self.cm.settled.finish(connection, user.queuePair)
        else:
            # A fabric's own, too.
            ending: Any = connection
            ending.user = None
            ending.finish(self._device.clock())
        return True

    def resume(self, user: SettledUser) -> object:
        """
        Undo L{SettledConnections.settle<twisted_ib.hca.cm.peer.SettledConnections.settle>}, before the queue
        pair is closed.

        @return: the user's C{connection}, an L{IConnection
            <twisted_ib.hca.connection.interfaces.IConnection>} again; L{None} if it has L{finish}ed.
        """
        connection = user.connection
        if isinstance(connection, Peer):
            return self.cm.settled.resume(connection, user.queuePair)
        return connection

    def managementReceived(
        self, path: IPeerPath, attribute: int, buffer: Buffer, start: int, stop: int
    ) -> None:
        device, cm = self._device, self.cm
        device.counters["management_received"] += 1
        cm.receive(path, attribute, buffer, start, stop, device.clock())
        # Within the call: the sender's next record may need the queue pair that the event makes.
        if cm.events:
            self.dispatch()

    def communicationEstablished(self, number: int) -> None:
        """
        A queue pair got its first message: where its connection awaits the RTU it is established now.
        """
        # IBTA vol. 1 12.9.8: data travels on another queue pair than the RTU and may overtake it, or the RTU
        # is lost.
        found = self.cm.accepted.get(number)
        if found is not None:
            self.cm.parked.resume(found).established(self._device.clock())
            self.dispatch()

    def pathLost(self, path: IPeerPath, reason: PathLostError) -> None:
        try:
            notifyAll([partial(self._connectionLost, each, reason) for each in self.cm.pathLost(path)])
        finally:
            self.dispatch()

    def _connectionLost(self, connection: Connection | Lookup, reason: PathLostError) -> None:
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
        Deliver the communication manager's events.
        """
        events = self.cm.events
        try:
            while events:
                kind, connection, message = events.popleft()
                # TIMEWAIT_EXIT: queue pair numbers come from a permutation (RandomIndices) and are not
                # reused soon, so nothing waits for it.
                if connection is None:
                    self.cm.settled.rest()
                    continue
                user = connection.user
                if kind is _REQUEST or kind is _LOOKUP:
                    self._requested(connection, message)
                elif user is None:
                    listener = self._listenerOf(connection)
                    if listener is not None:
                        listener.requestWithdrawn(connection)
                elif kind is _DISCONNECTED:
                    # It gets no more events, and both refer to each other, a cycle for the garbage
                    # collector.
                    connection.user = None
                    ended: Callable[[Any], object] = user.peerDisconnected
                    # IBTA vol. 1 12.6.7.2, reason 6: the REP was for who had given up.  Where nothing is
                    # lost, and no RTU says that it was not, this side is ready already.
                    if self.cm.lossless and isinstance(message, REJ) and message.reason == _NO_SUCH_ID:
                        ended = getattr(user, "givenUp", ended)
                    ended(connection)
                elif kind is _REPLY:
                    # A lossless medium negotiates nothing of its own.
                    if not self.cm.lossless:
                        assert isinstance(connection, Connection)
                        connection.destination.readReply(message, connection.localQPN)
                    user.replied(connection, message)
                # Optional: only verbs identifiers report the RTU; to the other users the REP is enough
                # (IBTA vol. 1 12.9.8).
                elif kind is _ESTABLISHED:
                    established = getattr(user, "established", None)
                    if established is not None:
                        established(connection)
                elif kind == Event.REJECTED:
                    user.rejected(connection, Rejection(message.reason, message.privateData))
                elif kind == Event.UNREACHABLE:
                    user.unreachable(connection)
                elif kind == Event.FOUND:
                    found = message.status, message.privateData, message.queuePairNumber, message.qKey
                    user.found(connection, LookupReply(*found))
        finally:
            # If a user raised, the events of the others must not wait for the next message.
            if events:
                self._device.markDirty(self)

    def endOfBatch(self) -> None:
        """
        Deliver the events that an exception of a user has left.
        """
        self.dispatch()

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        addresses = self._listeners.get(request.serviceID, {})
        listener = addresses.get(_SERVED) or addresses.get(_otherKey(addresses, _destinationOf(request)))
        if listener is None:
            connection.reject(RejectReason.INVALID_SERVICE_ID, b"", self._device.clock())
            return
        connection.listener = listener
        listener.connectionRequested(connection, request)

    def _requested(self, connection: Any, message: REQ | SIDR_REQ) -> None:
        addresses: dict[str, Any] = connection.listener
        request: Any
        if isinstance(message, SIDR_REQ):
            isLookup, request = True, LookupRequest(message.serviceID, message.privateData)
        else:
            isLookup, request = False, requestOf(message)
        if _SERVED in addresses:
            listener = addresses[_SERVED]
        else:
            address = _destinationOf(request)
            # Linux cma.c, cma_match_private_data: after the service id the destination address decides;
            # wildcard listeners accept any.
            listener = addresses.get(address)
            if listener is None or address.startswith("fe80:"):
                listener = addresses.get(_otherKey(addresses, address))
        if listener is None or (isLookup and not hasattr(listener, "lookupRequested")):
            # The same answer as for a service id without any listener (IBTA vol. 1 12.6.7.2, reason 8; Linux
            # ib_cm.h, SIDR status 1).
            reason = SIDRStatus.SERVICE_ID_UNSUPPORTED if isLookup else RejectReason.INVALID_SERVICE_ID
            privateData = b"" if isLookup or self.cm.lossless else refusal(message.serviceID)
            connection.reject(reason, privateData, self._device.clock())
            return
        connection.listener = listener
        isPartner = message.partitionKey in self._device.partitions.accepted
        if isLookup and not isPartner:
            connection.reject(SIDRStatus.REJECTED, b"", self._device.clock())
        elif isLookup:
            listener.lookupRequested(connection, request)
        else:
            if not isPartner:
                # No reason of IBTA vol. 1 12.6.7.2 is about partitions; Linux cm.c, cm_req_handler, gives
                # this one if no slot of the table has the P_Key.
                request.unsupported = request.unsupported or RejectReason.PRIMARY_GID
            if self.cm.lossless:
                # If it accepts at once, the same number serves its queue pair.
                self._device.nextNumber = connection.localID
            elif not self._takesMTU(connection.destination, request.pathMTU):
                # IBTA vol. 1 12.6.7.2, reason 26: packets of the MTU that the active side proposes would not
                # reach it from here.  Unanswered, the connection would open and then lose all that is large.
                request.unsupported = request.unsupported or RejectReason.INVALID_MTU
            listener.connectionRequested(connection, request)
            self._device.nextNumber = 0

    def _takesMTU(self, path: IPeerPath, code: int) -> bool:
        if not 0 < code <= _LARGEST_MTU:
            return False
        # The kernel is asked only for more than every link carries (RFC 8200 section 5), as others hardly ask
        # for less.  What it has learned about the path may be forged (ICMP "fragmentation needed", RFC 5927
        # section 7), so it does not lower what the route was given, or else the device's own.
        fabric, address = self._device.fabric, path.peer.address
        most = MTU_CODES[fabric.pathMTU]
        if _EVERYWHERE < code <= most:
            most = MTU_CODES[fabric.routeMTUTo(address)]
        return code <= most or code <= MTU_CODES[fabric.learnedMTUTo(address)]

    def _listenerOf(self, connection: Connection | Lookup) -> Any:
        listener = connection.listener
        return None if isinstance(listener, dict) else listener


def _otherKey(addresses: Mapping[str, object], address: str) -> str:
    key = address if address in addresses else "0.0.0.0" if "." in address else "::"
    if address.startswith("fe80:"):
        # Private data has no scope, but a listener on a link-local address has one.
        key = next((a for a in addresses if a.partition("%")[0] == address), key)
    return key


def _destinationOf(request: Any) -> str:
    portSpace = request.serviceID >> 16
    # AF_IB has no header in private data; the request's primary path names the destination (Linux cma.c,
    # cma_save_ib_info).
    if portSpace == _IB and hasattr(request, "primaryPath"):
        return textOf(request.primaryPath.remoteGID)
    version, offset = _DESTINATION.get(portSpace, _RDMA_CM_DESTINATION)
    data = request.privateData
    if not data[offset + 15 :]:
        # Over iWARP it is as short as the stranger likes: what is missing is no address of anybody's.
        data = data.ljust(offset + 16, b"\0")
    return unpackAddress(data[version] >> 4, data[offset : offset + 16])


classImplements(Services, IConnector)
