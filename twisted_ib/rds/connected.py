"""
RDS over RC queue pairs: which queue pair carries a path, who connects it, and how peers are found.

A device whose peers are IP addresses connects as Linux does: to the service of RDS at the peer's
address, one connection for each pair of addresses, with the addresses and the version in the private
data.  Who is asked while it asks itself says no, and both try again after a random pause.

On a device between the processes of a host all processes have all addresses.  So each socket is
published in a space of port numbers of its own, and who sends looks there for the HCA that has the
port.  All paths between two HCAs share one queue pair (L{twisted_ib.rds.queuepairs}): the REQ goes to
an HCA, not to a port, and says in its private data, behind the RDMA-CM's header, C{RDSq}, version 1
and the asking HCA's GUID (8 bytes, big endian), which has to be true.  Of two who ask each other at
once the larger GUID is answered.

A path leads to one HCA.  When that has gone, or a port has moved to another, what waits is sent where
the port is now, as if it were new: whoever is there has not seen it.
"""

from __future__ import annotations

import errno
from struct import Struct
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import (
    HCAError,
    NoListenerError,
    NoRouteError,
    PathLostError,
    PeerGoneError,
    RDSWireError,
    ResourceLimitError,
    WireError,
)
from twisted_ib.hca.channel import DeviceChannel, channelFor
from twisted_ib.hca.fabric.addresses import localAddresses, normalise
from twisted_ib.hca.fabric.registry import DEFAULT_DEVICE, addressOf, isPlacedByUser
from twisted_ib.hca.wire.cm import REP, REQ, RejectReason
from twisted_ib.hca.wire.rdmacm import HEADER_BYTES as CM_HEADER_BYTES
from twisted_ib.hca.wire.rdmacm import Header, PortSpace, serviceID
from twisted_ib.rds.carrier import IRDSMedium
from twisted_ib.rds.congestion import PORTS, CongestionMap
from twisted_ib.rds.path import Path
from twisted_ib.rds.private import REJECTED_VERSION, PrivateData, agreed, servicePort
from twisted_ib.rds.queuepairs import MTU, Session
from twisted_ib.rds.wire import PING_PORT

if TYPE_CHECKING:
    from twisted_ib.rds.network import Network

#: Where sockets are published between processes ("RD" in ASCII); port 0 is the service of the queue
#: pairs, which nobody looks up.
PORT_SPACE = 0x5244
_SESSIONS = PORT_SPACE << 16
_TCP = int(PortSpace.TCP)

#: What a REQ and a REP say between processes.
_HELLO = Struct(">4sBQ")
_MAGIC, _VERSION = b"RDSq", 1

#: Timeout code of the CM: about half a second between two REQs.
_CM_RESPONSE_TIMEOUT = 17
_CM_RETRIES = 3
_RETRIES = 7
#: The REJ of who asks itself.
_BUSY = b"busy"

_LONG_AGO = float("-inf")

_Asked = tuple[Any, bytes, "dict[Path, None]", int]
_NOT_NOW: _Asked = (None, b"", {}, 0)


def _received(path: Path) -> int:
    """
    @return: the last sequence number that came on a path, or 0.
    """
    return max(0, path.machine.nextReceive - 1)


class _Later:
    """
    Something that is done in the next turn, or in another call that it leads to.

    @ivar over: whether nobody waits for it any more.
    """

    def __init__(self, reactor: Any, call: Any, *arguments: Any) -> None:
        """
        Ask for it.
        """
        self.over = False
        self._call = reactor.callLater(0, self._now, call, *arguments)

    def _now(self, call: Any, *arguments: Any) -> None:
        """
        It is time.
        """
        self._call = None
        call(*arguments)

    def cancel(self) -> None:
        """
        Nobody waits for it any more.
        """
        self.over = True
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


class _Call:
    """
    An attempt to connect a queue pair.

    @ivar key: what the session will be known by.
    @ivar waiters: the paths that wait for it.
    @ivar began: when it began, in seconds.
    """

    def __init__(self, medium: RCMedium, key: Any, channel: DeviceChannel) -> None:
        """
        Nothing is asked yet.
        """
        self._medium = medium
        self.key = key
        self._channel = channel
        self.waiters: dict[Path, None] = {}
        self.began = channel.now()
        self._local = self._remote = ""
        self._route: Any = None
        self._session: Session | None = None
        self._connection: Any = None
        self._over = False

    def begin(self, path: Path) -> None:
        """
        Look for the way.
        """
        device = self._channel.device
        self._local, self._remote = path.local, path.remote
        self._channel.acquire(self)
        try:
            if self._medium.addressed:
                port = servicePort(path.remote)
                route = device.connect(_TCP, path.remote, port, self, self._channel.now())
            else:
                route = device.fabric.reach(self.key, self)
        except (HCAError, OSError) as reason:
            self.failed(reason)
            return
        if self._connection is None and not self._over:
            self._route = route

    def pathReady(self, path: Any) -> None:
        """
        There is a way: ask.
        """
        if self._over:
            return
        self._route = None
        try:
            self._session = session = self._medium.newSession(self.key, self._channel)
            request = self._request(session)
            path.prepareREQ(request)
            self._connection = self._channel.device.cm.connect(path, request, self, self._channel.now())
        except HCAError as reason:
            self.failed(reason)

    def _request(self, session: Session) -> REQ:
        """
        @return: The REQ.
        """
        local, remote = self._local, self._remote
        if self._medium.addressed:
            service = serviceID(_TCP, servicePort(remote))
            path = next(iter(self.waiters))
            said = PrivateData(local, remote, acknowledged=_received(path)).pack()
        else:
            service, local, remote = _SESSIONS, "127.0.0.1", "127.0.0.1"
            said = _HELLO.pack(_MAGIC, _VERSION, self._channel.device.guid)
        return REQ(
            serviceID=service,
            localQPN=session.queuePair.number,
            responderResources=0,
            initiatorDepth=0,
            remoteCMResponseTimeout=_CM_RESPONSE_TIMEOUT,
            localCMResponseTimeout=_CM_RESPONSE_TIMEOUT,
            maxCMRetries=_CM_RETRIES,
            retryCount=_RETRIES,
            pathMTU=MTU,
            rnrRetryCount=_RETRIES,
            privateData=Header(local, 0, remote).pack() + said,
        )

    def connectFailed(self, reason: Exception) -> None:
        """
        There is no way.
        """
        self.failed(reason)

    def replied(self, connection: Any, reply: REP) -> None:
        """
        The peer says yes.
        """
        session = self._session
        if connection is not self._connection or session is None:
            return
        now = self._channel.now()
        try:
            self._checkReply(reply)
            session.join(connection, reply)
        except HCAError as reason:
            connection.reject(RejectReason.CONSUMER_DEFINED, b"", now)
            self._connection = None
            self.failed(reason)
            return
        connection.ready(now)
        self._session = None
        self.done()
        self._medium.sessionUp(session, self.waiters)

    def _checkReply(self, reply: REP) -> None:
        """
        @raise RDSWireError: The peer speaks something else.
        """
        said = reply.privateData
        if self._medium.addressed:
            answer = PrivateData.parse(said, 6 if ":" in self._remote else 4)
            if (answer.major, answer.minor) != (3, 1):
                raise RDSWireError(f"the peer speaks version {answer.major}.{answer.minor}")
            assert self._session is not None
            self._session.peerHas = answer.acknowledged
        elif said[: _HELLO.size] != _HELLO.pack(_MAGIC, _VERSION, self.key):
            raise RDSWireError("the peer answered something else")

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The peer says no.
        """
        if connection is self._connection:
            self._connection = None
            self.failed(PathLostError(f"the peer rejected the connection ({rejection.reason})"))

    def unreachable(self, connection: Any) -> None:
        """
        The peer does not answer.
        """
        if connection is self._connection:
            self._connection = None
            self.failed(PathLostError("the peer does not answer"))

    def pathLost(self, reason: Exception) -> None:
        """
        The peer's process is gone.
        """
        self._connection = None
        self.failed(reason)

    def peerDisconnected(self, connection: Any) -> None:
        """
        The peer has given up.
        """
        self.pathLost(PathLostError("the peer gave up"))

    def connectionLost(self, reason: Any) -> None:
        """
        The device is going.
        """
        self.failed(PeerGoneError("the device is going"))

    def failed(self, reason: Exception) -> None:
        """
        It came to nothing: tell the paths, but not from within what they have called.
        """
        if self._over:
            return
        self.done()
        waiters, self.waiters = self.waiters, {}
        for path in waiters:
            self._medium.later(path, self._medium.failed, path, reason)

    def done(self) -> None:
        """
        Leave nothing behind.
        """
        self._over = True
        self._medium.calls.pop(self.key, None)
        route, self._route = self._route, None
        if route is not None:
            route.cancel()
        connection, self._connection = self._connection, None
        session, self._session = self._session, None
        if session is not None:
            if connection is not None:
                connection.abandon(self._channel.now())
            session.close()
        self._channel.release(self)


class _Waiting:
    """
    A path that waits for a L{_Call}.
    """

    def __init__(self, medium: RCMedium, path: Path) -> None:
        """
        Nothing is asked yet.
        """
        self._medium = medium
        self._path = path

    def cancel(self) -> None:
        """
        It does no more.
        """
        self._medium.forgetWaiting(self._path)


@implementer(IRDSMedium)
class RCMedium:
    """
    RDS on an HCA.

    @ivar name: the device's name.
    @ivar addressed: whether peers are IP addresses.
    @ivar acknowledges: whether messages ask for acknowledgements: only where Linux may be the peer;
        else each batch is acknowledged.
    @ivar sharesAddresses: whether other processes have the same addresses.
    @ivar network: whose medium it is.
    @ivar sessions: the queue pairs, by the peer's GUID or by both addresses.
    @ivar calls: attempts to connect, by the same.
    """

    def __init__(self, network: Network, device: str | None = None) -> None:
        """
        Nothing is opened yet.
        """
        self.network = network
        self.name = DEFAULT_DEVICE if device is None else device
        self.addressed = addressOf(self.name) is not None or isPlacedByUser(self.name)
        self.acknowledges = self.addressed
        self.sharesAddresses = not self.addressed
        self.sessions: dict[Any, Session] = {}
        self.calls: dict[Any, _Call] = {}
        self._laters: dict[Path, _Later] = {}
        self._bound: dict[str, dict[int, Any]] = {}
        self._services: dict[Any, Any] = {}
        self._dead: dict[int, float] = {}

    # -- addresses and sockets

    def localAddresses(self) -> list[str]:
        """
        See L{IRDSMedium.localAddresses}: all but those that need a scope.
        """
        own = addressOf(self.name)
        if own is not None:
            return [own]
        return [address for address in map(normalise, localAddresses()) if "%" not in address]

    def channel(self, address: str) -> DeviceChannel:
        """
        @param address: ours.
        @return: the device that has it.
        """
        return channelFor(self.network.reactor, self.name, address)

    def bind(self, address: str, port: int) -> None:
        """
        See L{IRDSMedium.bind}.
        """
        try:
            channel = self.channel(address)
        except ValueError as reason:
            raise OSError(errno.EADDRNOTAVAIL, str(reason)) from None
        ports = self._bound.setdefault(address, {})
        try:
            if self.addressed:
                if not ports:
                    self._services[address] = channel.device.listen(_TCP, address, servicePort(address), self)
                service = None
            else:
                service = channel.device.listen(PORT_SPACE, address, port, self)
                if None not in self._services:
                    channel.device.services.serve(_SESSIONS, self)
                    self._services[None] = None
        except BaseException:
            if not ports:
                del self._bound[address]
            raise
        ports[port] = service
        channel.acquire(self)

    def unbind(self, address: str, port: int) -> None:
        """
        See L{IRDSMedium.unbind}.
        """
        channel = self.channel(address)
        ports = self._bound[address]
        service = ports.pop(port)
        if service is not None:
            service.close()
        if not ports:
            del self._bound[address]
            if self.addressed:
                self._services.pop(address).close()
                channel.release(self)
        if not self.addressed and not self._bound:
            self._services.pop(None, None)
            channel.device.services.serveNoMore(_SESSIONS)
            channel.release(self)

    def whenQuiet(self) -> Deferred[None]:
        """
        See L{IRDSMedium.whenQuiet}: what is left to say is the device's.
        """
        for session in list(self.sessions.values()):
            session.close()
        for call in list(self.calls.values()):
            call.done()
        return succeed(None)

    # -- paths

    def pathTo(self, address: str, host: str, port: int) -> Any:
        """
        See L{IRDSMedium.pathTo}.
        """
        network = self.network
        if self.addressed:
            return network.path((address, host), address, host)
        if port == PING_PORT:
            # Any process answers for the host: one that we talk to, or this one.
            for path in network.paths.values():
                if (path.local, path.remote) == (address, host) and path.carrier is not None:
                    return path
            return network.loop(address, host)
        guid = self._servedBy(host, port)
        if guid is None:
            return network.path((address, host, None, port), address, host)
        return network.path((address, host, guid), address, host)

    def _servedBy(self, host: str, port: int) -> int | None:
        """
        Find who has a port.

        @return: The HCA's GUID, or L{None}.
        """
        channel = self.channel(host)
        for guid in channel.device.fabric.serving(PORT_SPACE << 16 | port, host):
            if channel.now() - self._dead.get(guid, _LONG_AGO) > limits.RDS_DEAD_SECONDS:
                return int(guid)
        return None

    def serves(self, host: str, port: int) -> bool | None:
        """
        @return: Whether somebody has a port; L{None} if nobody knows.
        """
        if self.addressed:
            return None
        return (host, port) in self.network.sockets or self._servedBy(host, port) is not None

    def pathOf(self, session: Session, ours: str, theirs: str) -> Path | None:
        """
        Find the path of which a peer sends something.

        @return: It; L{None} if there is no socket here.
        """
        if self.network.dormant:
            return None
        return self.network.path((ours, theirs, session.key), ours, theirs)

    def moved(self) -> None:
        """
        Somebody does not have a port that he was thought to have: look again.
        """
        self.network.epoch += 1
        self.network._routes.clear()

    def reconnects(self, path: Path) -> bool:
        """
        See L{IRDSMedium.reconnects}: both do.
        """
        return True

    def connect(self, path: Path) -> Any:
        """
        See L{IRDSMedium.connect}.
        """
        self.later(path, self._connect, path)
        return _Waiting(self, path)

    def later(self, path: Path, call: Any, *arguments: Any) -> None:
        """
        Do something for a path in the next turn, unless it does not wait any more.
        """
        found = self._laters.get(path)
        if found is not None:
            found.cancel()

        def now() -> None:
            del self._laters[path]
            call(*arguments)

        self._laters[path] = _Later(self.network.reactor, now)

    def forgetWaiting(self, path: Path) -> None:
        """
        A path does not wait any more.
        """
        later = self._laters.pop(path, None)
        if later is not None:
            later.cancel()
        for call in list(self.calls.values()):
            if call.waiters.pop(path, path) is None and not call.waiters:
                call.done()

    def _connect(self, path: Path) -> None:
        """
        Carry a path on the queue pair that there is, or connect one.
        """
        key = path.key if self.addressed else path.key[2]
        if key is None:
            self._find(path)
            return
        session = self.sessions.get(key)
        if session is not None and session.isUp and session.loss is None:
            try:
                path.carrierUp(session.carrier(path), session.peerHas)
            except ResourceLimitError as reason:
                path.carrierFailed(reason)
            return
        call = self.calls.get(key)
        if call is None:
            try:
                call = self.calls[key] = _Call(self, key, self.channel(path.local))
            except (HCAError, OSError, ValueError) as reason:
                path.carrierFailed(reason)
                return
            call.waiters[path] = None
            call.begin(path)
        else:
            call.waiters[path] = None

    def _find(self, path: Path) -> None:
        """
        A path leads to a port that nobody had: look again.
        """
        port = path.key[3]
        try:
            served = self.serves(path.remote, port)
        except (HCAError, OSError) as reason:
            path.carrierFailed(reason)
            return
        if served:
            self._relocate(path)
        else:
            path.carrierFailed(NoListenerError(f"nobody has port {port} of {path.remote}"))

    def failed(self, path: Path, reason: Exception) -> None:
        """
        A path has no queue pair.
        """
        if not self.addressed and isinstance(reason, NoListenerError):
            # The HCA is gone, though what it has published may still be there.
            if len(self._dead) >= limits.RDS_DEAD:
                del self._dead[next(iter(self._dead))]
            self._dead[path.key[2]] = self.channel(path.local).now()
            self._relocate(path)
        elif not self.addressed and self._hasMoved(path):
            self._relocate(path)
        else:
            path.carrierFailed(reason)

    def _hasMoved(self, path: Path) -> bool:
        """
        @return: Whether something waits for a port that the path does not lead to any more.
        """
        ports = {message.destinationPort for message in path.machine.waiting if message.owner is not None}
        return any(self._servedBy(path.remote, port) != path.key[2] for port in ports)

    def _relocate(self, path: Path) -> None:
        """
        A path leads nowhere: send what waits on it to where its ports are now.
        """
        network = self.network
        self.moved()
        if path.held:
            path.machine.peerMap = CongestionMap()
            network.congestionChanged(path, list(range(PORTS)))
        for message in network.forget(path):
            message.sequence = message.flags = 0
            try:
                target = network.route(path.local, path.remote, message.destinationPort)
            except (HCAError, OSError):
                message.owner.messageDropped(message)
                continue
            target.send(message)
        if path.key[2] in self._dead:
            # Protocols that keep connections want to know at once.
            for socket in set(network.sockets.values()):
                gone = getattr(getattr(socket, "protocol", None), "processGone", None)
                if gone is not None:
                    gone(path.remote)

    # -- queue pairs

    def newSession(self, key: Any, channel: DeviceChannel) -> Session:
        """
        Make a queue pair.

        @raise ResourceLimitError: There are too many.
        """
        if len(self.sessions) >= limits.RDS_SESSIONS:
            raise ResourceLimitError("too many connections of RDS")
        return Session(self, key, channel, not self.addressed)

    def sessionUp(self, session: Session, waiters: dict[Path, None]) -> None:
        """
        A queue pair is connected.
        """
        old = self.sessions.get(session.key)
        if old is not None:
            old.broken(PathLostError("another connection took its place"))
        self.sessions[session.key] = session
        session.channel.acquire(session)
        for path in waiters:
            self.later(path, self._connect, path)

    def sessionClosed(self, session: Session) -> None:
        """
        A queue pair is closed.
        """
        if self.sessions.get(session.key) is session:
            del self.sessions[session.key]
        session.channel.release(session)

    # -- being called

    def requestWithdrawn(self, connection: Any) -> None:
        """
        See L{IServiceListener<twisted_ib.hca.interfaces.IServiceListener>}: all are answered at once.
        """

    def connectionRequested(self, connection: Any, request: REQ) -> None:
        """
        A peer asks for a queue pair.
        """
        channel = self._channelOf(connection)
        now = channel.now()
        read = self._greeted if self.addressed else self._called
        try:
            key, answer, paths, has = read(channel, connection, request)
        except WireError:
            self.network.counters["recv_bad_request"] += 1
            connection.reject(RejectReason.CONSUMER_DEFINED, REJECTED_VERSION, now)
            return
        if key is None:
            connection.reject(RejectReason.CONSUMER_DEFINED, _BUSY, now)
            return
        session = None
        try:
            session = self.newSession(key, channel)
            session.peerHas = has
            reply = REP(
                localQPN=session.queuePair.number,
                responderResources=0,
                initiatorDepth=0,
                rnrRetryCount=_RETRIES,
                privateData=answer,
            )
            connection.destination.prepareREP(reply, request)
            session.join(connection, request)
        except HCAError:
            connection.reject(RejectReason.NO_RESOURCES, b"", now)
            if session is not None:
                session.connection = None
                session.close()
            return
        if not connection.accept(reply, now):
            session.connection = None
            session.close()
            return
        waiters = dict(paths)
        call = self.calls.get(key)
        if call is not None:
            waiters.update(call.waiters)
            call.waiters = {}
            call.done()
        self.sessionUp(session, waiters)

    def _channelOf(self, connection: Any) -> DeviceChannel:
        """
        @return: the device that was called.
        """
        owner = connection.destination.fabric.owner
        for address in self._bound:
            channel = self.channel(address)
            if channel.device is owner:
                return channel
        raise NoRouteError("a device that is not ours was called")

    def _called(self, channel: DeviceChannel, connection: Any, request: REQ) -> _Asked:
        """
        Read what a process of this host says.

        @return: The key of the session, or L{None} if we ask ourselves; the answer; the path, if one
            is known; and up to which number the peer has everything on it.
        @raise WireError: It says something wrong.
        """
        said = request.privateData[CM_HEADER_BYTES:][: _HELLO.size]
        if request.serviceID != _SESSIONS or len(said) < _HELLO.size:
            raise RDSWireError("a REQ for something else")
        magic, version, guid = _HELLO.unpack(said)
        if magic != _MAGIC or version != _VERSION:
            raise RDSWireError(f"a REQ with {said!r}")
        device = channel.device
        proof = device.fabric.proves(connection.destination, guid)
        if proof is False:
            raise RDSWireError(f"a REQ of somebody who is not HCA {guid:016x}")
        if proof is None or (guid in self.calls and guid < device.guid):
            return _NOT_NOW
        return guid, _HELLO.pack(_MAGIC, _VERSION, device.guid), {}, 0

    def _greeted(self, channel: DeviceChannel, connection: Any, request: REQ) -> _Asked:
        """
        Read what a peer with an address says.

        @return: As L{_called}.
        @raise WireError: It says something wrong.
        """
        header = Header.parse(request.privateData)
        said = PrivateData.parse(request.privateData[CM_HEADER_BYTES:], 6 if ":" in header.destination else 4)
        version = agreed(said)
        if version is None:
            raise RDSWireError(f"version {said.major}.{said.minor}")
        ours, theirs = normalise(said.destination), normalise(said.source)
        device = channel.device
        if not device.isLocal(ours) or not device.isPeers(connection.destination, theirs):
            raise RDSWireError(f"a REQ from {theirs} to {ours}")
        key = ours, theirs
        call = self.calls.get(key)
        # What was asked for longer than that nobody has answered: it was for who was there before.
        if self.network.dormant or (call and channel.now() - call.began < limits.RDS_DUEL_SECONDS):
            return _NOT_NOW
        path = self.network.path(key, ours, theirs)
        answer = PrivateData(ours, theirs, *version, acknowledged=_received(path))
        return key, answer.pack(), {path: None}, said.acknowledged

    # -- in the reactor

    def socketRow(self) -> None:
        """
        @return: Nothing for C{ib-ss}: sockets and paths have rows of their own.
        """

    def connectionLost(self, reason: Any) -> None:
        """
        The device is going: its sockets are of no use any more.
        """
        for session in list(self.sessions.values()):
            session.broken(PeerGoneError("the device is going"))
        for socket in set(self.network.sockets.values()):
            stop = getattr(socket, "stopListening", None)
            if stop is not None:
                stop()


__all__ = ["PORT_SPACE", "RCMedium"]
