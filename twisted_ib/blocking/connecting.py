"""
Connecting a blocking socket: SDP first where the rules and the peer have it, else the kernel's TCP.

A connection over SDP that gains nothing there goes on over TCP, between processes of one user::

    the one that has connected                       the other one
    a descriptor, beside the path              ->
    SuspComm                                   ->    sends by the kernel from now on
                                               <-    SuspCommAck
    sends and receives by the kernel
    DisConn, behind what it had sent before    ->    receives by the kernel

The kernel's connection is one of TCP between two sockets that the first has made; each takes the place of
its end's own at the descriptor.  So no byte overtakes another one: what is behind the mark of a direction
comes by the kernel.  An end that cannot follow resets what it is given, and all stays as it is.
"""

from __future__ import annotations

import _socket
import errno
import os
import socket as kernel
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.protocol import Protocol

from twisted_ib.blocking import descriptors
from twisted_ib.blocking.connection import Connection
from twisted_ib.blocking.loop import BlockingLoop, madeLoop, theLoop
from twisted_ib.configuration.words import CONNECT, LISTEN, SDP, TCP
from twisted_ib.hca.host.fdpassing import refuse
from twisted_ib.internet.failures import osError
from twisted_ib.switch.connecting import Attempt
from twisted_ib.switch.reason import EXPLICIT, Fallback, Reason, carried, kept, stayed
from twisted_ib.switch.serverclient import RedirectedClient

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from twisted_ib.blocking.listening import Listening
    from twisted_ib.blocking.socket import socket
    from twisted_ib.internet.addressing.addresses import Address, End
    from twisted_ib.internet.channel import DeviceChannel

_FAMILIES: Final = (kernel.AF_INET, kernel.AF_INET6)
_TCP: Final = (0, kernel.IPPROTO_TCP)
_kindOf: Final[Callable[[kernel.socket], int]] = _socket.socket.type.__get__
_protocolOf: Final[Callable[[kernel.socket], int]] = _socket.socket.proto.__get__
#: The class of a socket whose connection the kernel carries after all, by its class before that.
goingOn: Final[dict[type[socket], type[socket]]] = {}
#: Options that programs set, which go with a connection.
_OPTIONS: Final = (
    *((kernel.SOL_SOCKET, each) for each in (kernel.SO_KEEPALIVE, kernel.SO_LINGER, kernel.SO_OOBINLINE)),
    *((kernel.IPPROTO_TCP, each) for each in (kernel.TCP_KEEPIDLE, kernel.TCP_KEEPINTVL, kernel.TCP_KEEPCNT)),
    (kernel.IPPROTO_TCP, kernel.TCP_USER_TIMEOUT),
)
#: Strangers that connect to a socket which waits for our own one, at most.
_STRANGERS: Final = 8
#: Descriptors of a process, at most, that are asked whether they are the same.
_DESCRIPTORS: Final = 1024
#: Seconds that a host may take to connect to itself.
_PAIR_SECONDS: Final = 0.1
#: Seconds after which it is looked again whether all that was written is in the medium.
_QUIET_SECONDS: Final = 1e-3
_QUIET_SECONDS_MOST: Final = 0.1
_plainOption: Final = kernel.socket.getsockopt
_plainShutdown: Final = kernel.socket.shutdown
_dup2, _fstat = os.dup2, os.fstat


class Connecting:
    """
    The connect of one socket.

    @ivar reactor: The loop's.
    @ivar connection: The connection, once there is one.
    @ivar error: The error to raise, if SDP alone was allowed and failed; else L{None}.
    @ivar isOver: Whether SDP has connected or failed: then the kernel's TCP is tried.
    @ivar why: The decision of the switch; L{None} if it is not asked.
    """

    why: Reason | None = None

    def __init__(self, loop: BlockingLoop, address: tuple[Any, ...]) -> None:
        self.loop = loop
        self.reactor = loop.reactor
        self.realAddress = address
        self.connection: Connection | None = None
        self.error: OSError | None = None
        self.isOver: bool = False

    def over(self) -> bool:
        """
        Return whether L{isOver}.
        """
        return self.isOver

    def wait(self, deadline: float | None) -> bool:
        """
        Wait until it is over, under the loop's lock.

        @param deadline: As of C{monotonic}, or L{None}.
        @return: False if the time was over first.
        """
        return self.loop.wait(self.over, deadline)

    def drive(self) -> None:
        """
        Serve the attempt: a program may ask in turns, without C{select}.
        """
        if not self.isOver:
            with self.loop:
                self.loop.poll()

    def cancel(self) -> None:
        """
        The socket closes, or its timeout has expired.  Also where there is a connection that it has not taken
        over: the handler of a signal may raise before that.
        """
        self.isOver = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def buildProtocol(self, addr: object) -> Any:
        """
        Return the connection.
        """
        self.connection = Connection(self.loop)
        self.isOver = True
        return self.connection

    def failed(self, reason: BaseException | None) -> None:
        """
        There is no connection, and TCP is not to be tried.
        """
        self.error = osError(reason)
        self.isOver = True

    def logPrefix(self) -> str:
        """
        Return the prefix of log lines.
        """
        return "socket"

    def connectionLost(self, reason: Failure) -> None:
        """
        The loop closes, or the connection has ended.
        """
        if not self.isOver:
            self.failed(reason.value)


class SwitchedConnecting(Connecting):
    """
    The connect through the switch; to its attempt the face, and to its transport the connector.

    @ivar attempt: The attempt that connects.

    See L{Face<twisted_ib.switch.connecting.Face>}.
    """

    transport: RedirectedClient | None = None

    def __init__(
        self,
        loop: BlockingLoop,
        address: tuple[Any, ...],
        bound: tuple[str, int],
        timeout: float | None,
    ) -> None:
        """
        Begin, under the loop's lock.

        @param address: The peer's address and port.
        @param bound: The address and port of the socket; empty and 0 for nothing.
        @param timeout: The socket's, in seconds; L{None} without one.
        """
        super().__init__(loop, address)
        self._bound = bound
        #: Those of the device before the connection.
        self._sleeps = 0
        #: Why the peer was asked to go on over TCP, if it was.
        self._gainless: Fallback | None = None
        self.attempt = Attempt(loop.reactor.switch, self)
        self.why = self.attempt.why
        self.attempt.begin(address[0], address[1], timeout, True)
        if not self.isOver:
            loop.disturb()

    def cancel(self) -> None:
        super().cancel()
        self.attempt.cancel()
        self.loop.changed()

    # -- for the attempt

    def boundPair(self) -> tuple[str, int]:
        return self._bound

    def makeTransport(self, channel: DeviceChannel, host: End, peer: Address) -> RedirectedClient:
        return RedirectedClient(channel, host, peer, self)

    def carried(self, transport: RedirectedClient) -> None:
        # The kernel's socket keeps its number until it is closed.
        self.transport, self._sleeps = transport, transport.channel.device.fabric.sleeps

    def connectionLost(self, reason: Failure) -> None:
        # The switch learns whether the connection has gained from SDP.
        super().connectionLost(reason)
        transport, self.transport = self.transport, None
        if transport is not None:
            sent, received, *_ = transport.traffic()
            channel = transport.channel
            # The device's, of which each connection has its part.
            sleeps = (channel.device.fabric.sleeps - self._sleeps) // max(len(channel.users), 1)
            ended = self.reactor.switch.candidates.gainless.ended
            ended(*self.attempt.address, sent, received, sleeps, self.reactor.seconds())

    def sleeps(self) -> None:
        """
        The connection's messages mostly end sleeps.
        """
        gainless = self.reactor.switch.candidates.gainless
        why = gainless.sleeps(*self.attempt.address, self.reactor.seconds())
        transport = self.transport
        connection = None if transport is None else transport.protocol
        if transport is None or not transport.isQuiet():
            return
        if self._gainless is not None or self.attempt.why.verdict == SDP:
            if isinstance(connection, Connection):
                connection.dropRefused()
            return
        if isinstance(connection, Connection) and not connection.ended and isAlone(connection):
            with suppress(OSError):
                mine, theirs = pairOfTCP()
                with closing(theirs):
                    transport.thread = self.loop.owner
                    if transport.suspend(theirs.fileno()):
                        connection.given, connection.isAsked, self._gainless = mine, True, why
                    else:
                        self._gainless = why
                        mine.close()

    def followed(self) -> bool:
        """
        The peer sends by the kernel from now on: so does this end.

        @return: Whether it was asked to.
        """
        transport = self.transport
        if transport is not None and transport.protocol is not None:
            transport.protocol.isFollowed = True
            self._goOn(transport)
        # Else it ends, as it would have.
        return self._gainless is not None

    def _goOn(self, transport: RedirectedClient, seconds: float = _QUIET_SECONDS) -> None:
        connection: Connection | None = transport.protocol
        if connection is None or self.transport is not transport:
            # It has ended meanwhile.
            return
        if connection.descriptor not in descriptors.byDescriptor:
            # It is closed, and ends as it would have.
            return
        mine = connection.given
        if mine is None or not isAlone(connection, True):
            # The peer has reset it there, or the program has duplicated the descriptor: nobody can tell the
            # duplicate where the rest is.
            connection.lost = errno.ECONNRESET
            transport.abortConnection()
            return
        transport.startReading()
        transport.read()
        if not transport.isQuiet():
            self.reactor.callLater(seconds, self._goOn, transport, min(2 * seconds, _QUIET_SECONDS_MOST))
            return
        isEnded, connection.given, self.transport = connection.ended, None, None
        adopt(connection, mine.detach())
        if isEnded:
            _plainShutdown(connection.kernelSocket(), kernel.SHUT_RD)
        why, switch = self.attempt.why, self.reactor.switch
        kept[connection.kernelSocket()] = why
        assert self._gainless is not None
        switch.fellBack(why, self._gainless, *self.attempt.address)
        self.reactor.socketReport.showPeer(*self.attempt.address, why)
        connection.goInward()

    def overTCP(self) -> None:
        self.isOver = True
        # The process may not answer C{ib-ss}: its threads wait in the kernel.
        self.reactor.socketReport.showPeer(*self.attempt.address, self.attempt.why)


def pairOfTCP() -> tuple[_socket.socket, _socket.socket]:
    """
    Return two sockets of TCP that are connected with each other.

    @raise OSError: None is to be had.
    """
    listener: Any = _socket.socket(kernel.AF_INET, kernel.SOCK_STREAM)
    with closing(listener):
        listener.bind(("127.0.0.1", 0))
        listener.listen(_STRANGERS)
        mine = _socket.socket(kernel.AF_INET, kernel.SOCK_STREAM)
        mine.settimeout(_PAIR_SECONDS)
        listener.settimeout(_PAIR_SECONDS)
        try:
            mine.connect(listener.getsockname())
            for _ in range(_STRANGERS):
                descriptor, address = listener._accept()
                theirs = _socket.socket(kernel.AF_INET, kernel.SOCK_STREAM, 0, descriptor)
                if address == mine.getsockname():
                    mine.setblocking(False)
                    return mine, theirs
                theirs.close()
        except BaseException:
            mine.close()
            raise
        mine.close()
    raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def isAlone(connection: Connection, forks: bool = False) -> bool:
    """
    Return whether one descriptor of one socket has a connection: then its carrier may change.

    @param forks: Also if children have it: they can do nothing with what is SDP's.
    """
    number, inode = connection.descriptor, connection.inode
    skt = descriptors.offloaded.get(number)
    it = None if skt is None else skt._sdp
    if it is None or it.part is not connection or it.others or type(skt) not in goingOn:
        return False
    if not (forks or descriptors.lastFork in (connection.forks, connection.looked)) or connection.kept >= 0:
        return False
    if connection.sockets != 1 or connection.held is not None:
        return False
    try:
        names = os.listdir("/proc/self/fd")
        if descriptors.inodeOf(number) != inode or len(names) > _DESCRIPTORS:
            return False
        return sum(descriptors.inodeOf(int(each)) == inode for each in names) == 1
    except OSError:
        # No descriptor is free to look.
        return forks


def follow(connection: Connection, descriptor: int, seconds: float = _QUIET_SECONDS) -> None:
    """
    Go on over the kernel's TCP, as the peer asks, if that can be.

    @param descriptor: This end of it.
    """
    stream, connection.isAsked = connection.stream, False
    if stream is None or connection.ended or connection._isShut or not isAlone(connection):
        refuse(descriptor)
    elif not _isTCP(descriptor):
        refuse(descriptor)
    elif not stream.isQuiet():
        connection.isAsked, longer = True, min(2 * seconds, _QUIET_SECONDS_MOST)
        connection.loop.reactor.callLater(seconds, follow, connection, descriptor, longer)
    else:
        adopt(connection, descriptor)
        stream.thread = connection.loop.owner
        stream.follow()


def _isTCP(descriptor: int) -> bool:
    # Whether the peer has given what it should.
    try:
        plain = _socket.socket(fileno=descriptor)
    except OSError:
        return False
    try:
        plain.getpeername()
        return (plain.type, plain.proto) == (kernel.SOCK_STREAM, kernel.IPPROTO_TCP)
    except OSError:
        return False
    finally:
        plain.detach()


def adopt(connection: Connection, descriptor: int) -> None:
    """
    Put a socket of TCP into the place of that of a connection, which sends by it from now on.

    @param descriptor: Of TCP; it is closed.
    """
    number = connection.descriptor
    skt, it = descriptors.offloaded[number], descriptors.byDescriptor[number]
    plain = _socket.socket(kernel.AF_INET, kernel.SOCK_STREAM, 0, descriptor)
    for level, option in _OPTIONS:
        with suppress(OSError):
            plain.setsockopt(level, option, _plainOption(skt, level, option, 8))
    # As over SDP, where nothing waits for an answer; an accepted one has not what its listener was told.
    plain.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY, 1)
    plain.setblocking(os.get_blocking(number))
    _dup2(descriptor, number, os.get_inheritable(number))
    plain.close()
    del descriptors.Offloaded.parts[it.inode]
    it.inode = connection.inode = _fstat(number).st_ino
    descriptors.Offloaded.parts[it.inode] = connection
    connection.isTrapped = False
    connection.goOutward()
    connection.settle = partial(_settle, connection)


def _settle(connection: Connection) -> None:
    # Nothing more arrives over SDP; once all of that is read, the socket is the kernel's.
    stream, connection.stream = connection.stream, None
    if stream is not None:
        stream.protocol, stream.thread = Protocol(), connection.loop.owner
        # At once, as both are quiet: nobody may drive the loop after this.
        stream.endNow()
    # Duplicates may have been made since.
    its = [each for each in tuple(descriptors.byDescriptor.values()) if each.part is connection]
    sockets = [descriptors.offloaded.get(each.descriptor) for each in its]
    if connection.inbox.size or None in sockets:
        # One that was detached has a socket later.
        return
    number = connection.descriptor
    for it, skt in zip(its, sockets, strict=True):
        descriptors.close(it)
        if skt is not None:
            skt.goOn(connection)
    connection.descriptor = number
    descriptors.Offloaded.parts.pop(connection.inode, None)


def isTCP(skt: kernel.socket) -> bool:
    """
    Return whether a socket is one of TCP.
    """
    return _isStream(skt) and skt.family in _FAMILIES


def _isStream(skt: kernel.socket) -> bool:
    # Without an enumeration.
    return _kindOf(skt) == kernel.SOCK_STREAM and _protocolOf(skt) in _TCP


def connectTCP(skt: socket, connect: Callable[[Any], int | None], address: Any, why: Reason | None) -> int:
    """
    Connect by the kernel, and count the connection.

    @param connect: The kernel's C{connect} or C{connect_ex}.
    @param why: The decision of the switch, if there was one.
    @return: The kernel's error number.
    """
    number = errno.EINPROGRESS
    try:
        number = connect(address) or 0
    except BlockingIOError:
        _count(skt, address, why)
        raise
    if number in (0, errno.EINPROGRESS):
        _count(skt, address, why)
    return number


def decidedBefore(skt: socket, address: Any) -> Reason | None:
    """
    Return the decision for TCP about a connect like others before, if it is still the same.

    @param skt: A socket of any kind.
    """
    if address.__class__ is not tuple or (loop := madeLoop()) is None or loop.closed:
        return None
    if skt.isDirect or skt.stays(skt) is not None:
        return None
    # The family is that of the address, or the kernel refuses it.
    if not _isStream(skt):
        return None
    try:
        return loop.reactor.switch.decidedBefore(loop.reactor, address)
    except TypeError:
        # No part of an address: the kernel's complaint is to come.
        return None


def _count(skt: socket, address: Any, why: Reason | None) -> None:
    if why is not None:
        kept[skt] = why
        carried(TCP, why)
    elif isTCP(skt):
        _countDirect(skt, CONNECT, address)


def acceptedTCP(skt: socket, made: kernel.socket, listening: Listening | None) -> None:
    """
    Count a connection that the kernel has accepted.

    @param made: Its socket.
    @param listening: The listeners beside the kernel's, if there are any.
    """
    if listening is not None:
        carried(TCP, listening.why)
    elif isTCP(skt):
        _countDirect(skt, LISTEN, skt.getsockname(), made)


def _countDirect(skt: socket, role: str, address: object, made: kernel.socket | None = None) -> None:
    fallback = skt.stays(skt)
    if fallback is None:
        carried(TCP, _whyDirect(skt, role, address))
    elif skt.gettimeout() != 0.0:
        # What does not block is counted by what waits for it.
        stayed(made or skt, fallback)


def _whyDirect(skt: socket, role: str, address: Any) -> Reason:
    # The reason of a socket that has nothing but the kernel's TCP.
    why = kept.get(skt)
    if why is not None:
        return why
    if skt.isDirect:
        return Reason(EXPLICIT, TCP)
    decision = theLoop().reactor.switch.configuration.decide(role, str(address[0]), address[1])
    fallback = None if decision.verdict == TCP else Fallback(role, "no device")
    return Reason(decision.where, decision.verdict, TCP, None, fallback)


def target(address: Any, family: int) -> tuple[Any, ...] | None:
    """
    Return the peer's address, as text, and port; L{None} if the kernel is to complain of what was given.

    @param address: As given to C{connect}; a name is looked up.
    @param family: C{AF_INET} or C{AF_INET6}.
    """
    if not isinstance(address, tuple) or len(address) < 2 or not isinstance(address[0], str):
        return None
    host, port = address[:2]
    if not isinstance(port, int) or not 0 < port < 65536:
        return None
    isIPv6 = family == kernel.AF_INET6
    if isIPv6 and len(address) > 3 and address[3] and "%" not in host:
        host = f"{host}%{address[3]}"
    if isIPv6Address(host) if isIPv6 else isIPAddress(host):
        return host, port
    if not host:
        return None
    try:
        found = kernel.getaddrinfo(host, port, family, kernel.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return (str(found[0][4][0]), port) if found else None
