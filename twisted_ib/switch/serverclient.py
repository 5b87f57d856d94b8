"""
SDP transports of connections that the application asked of TCP.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from twisted.internet import tcp
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ISSLTransport, ISystemHandle
from twisted.python import log
from twisted.python.failure import Failure
from zope.interface import directlyProvides, implementer

from twisted_ib.configuration.words import SDP
from twisted_ib.errors import MemoryRegionError
from twisted_ib.hca.host.fdpassing import refuse, takeTCP
from twisted_ib.interfaces import ISDPUrgentProtocol
from twisted_ib.internet.region import PlainHome, Regions
from twisted_ib.limits import SEND_BUFFER
from twisted_ib.sdp.port import SDPClient, SDPServer
from twisted_ib.sdp.protocol.machine import State
from twisted_ib.switch.handle import ConnectionHandle
from twisted_ib.switch.reason import MOVED, Fallback

if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from twisted.internet.interfaces import IProtocol, IReactorFDSet

    from twisted_ib.internet.addressing.addresses import Address
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.internet.region import RDMARegion
    from twisted_ib.switch.reason import Reason


# Of its own, as zope.interface takes long to order the interfaces of a whole transport, which few ask for.
@implementer(ISystemHandle)
class _Handled:
    """
    A transport with what TCP's has of its socket.
    """

    __slots__ = ()

    def getHandle(self) -> ConnectionHandle:
        # It has the useful part of a socket's methods.
        transport = cast("RedirectedServer | RedirectedClient", self)
        try:
            return transport._handle
        except AttributeError:
            handle = transport._handle = ConnectionHandle(transport)
            return handle

    # Not public in TCP's transports, but there, and programs set options on it.
    socket: Any = property(getHandle)


class RedirectedServer(_Handled, SDPServer):
    """
    The transport of a passive side.

    @ivar why: The decision.
    @ivar _handle: The result of C{getHandle}, made when first used.
    """

    __slots__ = ("_handle", "why")

    why: Reason
    _handle: ConnectionHandle

    def __init__(
        self, channel: DeviceChannel, local: Address, peer: Address, server: Any, sessionno: int
    ) -> None:
        super().__init__(channel, local, peer, server, sessionno)
        # For SDPListener.isTaken(), over all devices of the port.
        server.peers.setdefault(peer.host, set()).add(peer.port)

    def _leavePeers(self) -> None:
        peers = self.server.peers
        numbers = peers.get(self._peerHost)
        if numbers is not None:
            numbers.discard(self._peerPort)
            if not numbers:
                del peers[self._peerHost]

    # -- a connection whose client moves it to TCP: see twisted_ib.blocking.moving

    def suspended(self, descriptor: int) -> bool:
        """
        The client asks to move to a connection of TCP, which a rule for SDP alone forbids.

        @param descriptor: This end of it.
        @return: Whether that is taken care of, and the descriptor with it.
        """
        return descriptor >= 0 and self.server.why.verdict != SDP and self.asked(descriptor)

    def asked(self, descriptor: int) -> bool:
        """
        The same where the rules allow it.
        """
        if not self.mayMove():
            return False
        # Looked up each time: another question may have moved it meanwhile.
        self.moveTo(descriptor, lambda: self.mayMove(), self._move)
        return True

    def moveTo(
        self, descriptor: int, mayMove: Callable[[], bool], move: Callable[[socket.socket], object]
    ) -> None:
        """
        Move as soon as that can be, or refuse.

        @param descriptor: This end of TCP.
        @param mayMove: Returns whether it may.
        @param move: Called with its socket.
        """
        mine = takeTCP(descriptor)
        if mine is not None:
            self.whenQuiet(mayMove, partial(_decided, mine, move))

    def mayMove(self) -> bool:
        """
        Return whether it may: neither end has ended, and neither TLS nor what only SDP has is in use.
        """
        isClosing = self.disconnecting or self._aborting or self._writeDisconnecting
        isPlain = self.extensions is None and not self.TLS
        # Over TCP an urgent byte has no sign of its own.
        isUrgent = ISDPUrgentProtocol.providedBy(self.protocol)
        # A producer that is to be asked for each piece is asked within registerProducer().
        isPaced = self.producer is None or self.streamingProducer
        isOpen = self.connected and not isClosing and self.machine.state is State.ESTABLISHED
        return bool(isOpen and isPlain and isPaced and not isUrgent)

    def moved(self, skt: socket.socket, why: Fallback = MOVED) -> None:
        """
        The connection has moved to a socket of TCP, as its client has asked by default.
        """
        port = self.getHost()
        self.server.switch.moved(self, why, (port.host, port.port), skt)

    def given(self) -> None:
        """
        Another process is about to be given its descriptor: that of a blocking socket asks to move to TCP.
        """

    def leave(self) -> None:
        """
        End the stream over SDP; nobody is told.
        """
        self._leavePeers()
        self.detach()
        self.channel.release(self)

    def _move(self, skt: socket.socket) -> None:
        self.answerSuspend()
        # Of what may be written by a method that a program has kept, nothing is to go to SDP.
        self.discard()
        asOverSDP(skt, self)
        if hasattr(self, "_handle"):
            self._handle.movedTo(skt)
        carrier = Carrier(skt, self)
        vars(self).pop("producer", None)
        vars(self).update(_carrier=carrier, write=carrier.write)
        self.__class__ = MovedServer
        self.moved(skt)

    def connectionLost(self, reason: Failure) -> None:
        if not self.disconnected:
            self._leavePeers()
        super().connectionLost(reason)

    def abandon(self) -> None:
        self._leavePeers()
        super().abandon()


def asOverSDP(skt: _socket.socket, stream: RedirectedServer | None = None) -> None:
    """
    Set the options of a socket to which a connection moves.

    @param stream: The transport over SDP, which hands on that it asks whether an idle peer lives.
    """
    # Nothing waits for an answer, and an urgent byte stays in the stream, where who does not ask for it
    # would miss it.
    skt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    skt.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    if stream is not None and stream.getTcpKeepAlive():
        stream.setTcpKeepAlive(False)
        skt.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _decided(mine: socket.socket, move: Callable[[socket.socket], object], isAllowed: bool) -> None:
    if isAllowed:
        move(mine)
    else:
        refuse(mine.detach())


class Carrier(tcp.Connection):
    """
    The kernel's part of a connection that has moved.  It reads once nothing more comes over SDP: what does is
    delivered here until then.

    @ivar why: As of L{RedirectedServer}.
    """

    _tlsClientDefault = False
    _isCalled = _isDue = False
    _stream: RedirectedServer | None
    _regions: Regions | None = None

    def __init__(self, skt: socket.socket, stream: RedirectedServer) -> None:
        """
        @param stream: The transport over SDP, which becomes a L{MovedServer}.
        """
        super().__init__(skt, stream.handOver(cast("IProtocol", self)), cast("IReactorFDSet", stream.reactor))
        self.logstr, self.why, self._stream = stream.logPrefix(), stream.why, stream
        # Of the kernel's size, unless a program has set it.
        if stream.bufferSize != SEND_BUFFER:
            self.bufferSize = stream.bufferSize
        # It is not paused: nothing waits.
        self.producer, self.streamingProducer = stream.producer, stream.streamingProducer
        self.connected = 1

    def startReading(self) -> None:
        if self._stream is None:
            super().startReading()
        else:
            RedirectedServer.startReading(self._stream)

    def stopReading(self) -> None:
        if self._stream is None:
            super().stopReading()
        else:
            RedirectedServer.stopReading(self._stream)

    # -- as over SDP an answer leaves when the application's callback has returned: TCP's, a turn later

    def _dataReceived(self, data: bytes | None) -> ConnectionDone | None:
        self._isCalled = True
        try:
            end = super()._dataReceived(data)
        finally:
            self._isCalled = False
        if self._isDue:
            self._isDue = False
            if end is None and self.connected:
                self._send()
        return end

    def startWriting(self) -> None:
        if self._isCalled:
            self._isDue = True
        else:
            super().startWriting()

    def _send(self) -> None:
        # The reactor closes in its next turn, and finds errors again by itself.
        if self._writeDisconnecting or self.doWrite() is not None or self.dataBuffer or self._tempDataLen:
            if self.connected:
                super().startWriting()

    # -- from the stream over SDP

    def dataReceived(self, data: bytes) -> None:
        """
        Deliver what the client has sent before it moved.
        """
        self.protocol.dataReceived(data)

    def streamEnded(self) -> None:
        """
        Read: the client has moved.
        """
        # Of one that reads, as the end is told behind all else.
        self._end()
        self.startReading()

    def _end(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.leave()

    def connectionLost(self, reason: Failure) -> None:
        self._end()
        super().connectionLost(reason)
        regions, self._regions = self._regions, None
        if regions is not None:
            regions.close()

    # -- registered memory, from which a peer that TCP reaches gets copies

    def openRegions(self, owner: MovedServer) -> Regions:
        """
        Return the connection's registered memory, made when first needed.

        @raise MemoryRegionError: The connection has ended.
        """
        if self._regions is None:
            if not self.connected:
                raise MemoryRegionError("the connection has ended")
            home = PlainHome()
            self._regions = Regions(home, home.memory.allocateDomain(), owner)
        return self._regions


class _Carried:
    """
    An attribute that the L{Carrier} has.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, moved: MovedServer | None, owner: type | None = None) -> Any:
        return self if moved is None else getattr(moved._carrier, self._name, None)

    def __set__(self, moved: MovedServer, value: object) -> None:
        setattr(moved._carrier, self._name, value)


#: Those of them that a program uses, or Twisted.
_CARRIED: Final = (
    "protocol",
    "producer",
    "streamingProducer",
    "producerPaused",
    "connected",
    "disconnected",
    "disconnecting",
    "bufferSize",
    "dataBuffer",
    "TLS",
    "_tempDataBuffer",
    "_aborting",
    "_writeDisconnecting",
    "_writeDisconnected",
    "writeSequence",
    "registerProducer",
    "unregisterProducer",
    "loseConnection",
    "loseWriteConnection",
    "abortConnection",
    "startReading",
    "stopReading",
    "startWriting",
    "stopWriting",
    "getTcpNoDelay",
    "setTcpNoDelay",
    "getTcpKeepAlive",
    "setTcpKeepAlive",
    "connectionLost",
)


class MovedServer(RedirectedServer):
    """
    The same object once TCP carries the connection: it is the transport that the protocol knows, and its
    calls, those that a program has kept from before too, are the L{Carrier}'s.  The addresses stay.
    """

    __slots__ = ()

    _carrier: Carrier

    def _writeSlowly(self, data: Any) -> None:
        # A program has kept the stream's own C{write}.
        self._carrier.write(data)

    def getHandle(self) -> ConnectionHandle:
        handle = super().getHandle()
        if handle.moved is None:
            handle.movedTo(self._carrier.socket)
        return handle

    def startTLS(self, contextFactory: Any, normal: bool = True) -> None:
        carrier = self._carrier
        carrier.startTLS(contextFactory, normal)
        vars(self).update((name, vars(carrier)[name]) for name in ("getHandle", "getPeerCertificate"))
        directlyProvides(self, ISSLTransport)

    def writeRegistered(
        self, region: RDMARegion, offset: int = 0, length: int | None = None
    ) -> Deferred[None]:
        self.checkCaller()
        carrier = self._carrier
        if not carrier.connected or carrier._writeDisconnected or carrier._aborting:
            return fail(ConnectionDone("the connection has ended"))
        piece = carrier.openRegions(self).piece(region, offset, length)
        carrier.write(bytes(region.view[offset : offset + piece.length]))
        return succeed(None)

    def registerMemory(self, sizeOrBuffer: Any, access: int | None = None) -> RDMARegion:
        self.checkCaller()
        return self._carrier.openRegions(self).register(sizeOrBuffer, access)

    def sendUrgent(self, byte: bytes) -> None:
        self._checkUrgent(byte)
        if self._carrier.connected:
            raise ValueError("there is no urgent data on a connection that has moved to TCP")

    def setZeroCopyThresholds(self, registered: int | None = None, plain: int | None = None) -> None:
        # All is copied.
        self._checkThresholds(registered, plain)

    def mayMove(self) -> bool:
        return False

    # -- from the stream over SDP

    def endOfStream(self) -> None:
        self._carrier.streamEnded()

    def lost(self, reason: Exception) -> None:
        # Some of the client's octets over SDP may be missing: those that come by TCP would be out of place.
        self._carrier.connectionLost(Failure(ConnectionLost(str(reason))))

    def _raised(self) -> None:
        failure = Failure()
        log.err(failure)
        self._carrier.connectionLost(failure)

    def drained(self) -> None:
        pass  # Nothing more is written there.

    def writing(self) -> bool:
        return False


for _each in _CARRIED:
    setattr(MovedServer, _each, _Carried(_each))


class RedirectedClient(_Handled, SDPClient):
    """
    The transport of an active side.

    @ivar why: The decision.
    @ivar bound: The TCP socket that reserves the local port which the application has bound.
    @ivar _handle: The result of C{getHandle}, made when first used.
    """

    __slots__ = ("_handle", "bound", "why")

    why: Reason
    bound: Any
    _handle: ConnectionHandle

    def connectionLost(self, reason: Failure) -> None:
        # libsdp port.c also binds TCP and SDP to one number: while SDP uses it no TCP connection may.
        bound = getattr(self, "bound", None)
        if bound is not None:
            self.bound = None
            bound.close()
        super().connectionLost(reason)

    def sleeps(self) -> None:
        """
        Its messages mostly end sleeps: that of a blocking socket asks to move to TCP then.
        """

    def secured(self) -> None:
        """
        TLS begins on it: likewise.
        """

    def given(self) -> None:
        """
        Another process is about to be given its descriptor: likewise.
        """
