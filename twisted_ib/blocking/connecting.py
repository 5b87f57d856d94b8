"""
Connecting a blocking socket: SDP first where the rules and the peer have it, else the kernel's TCP.
"""

from __future__ import annotations

import _socket
import errno
import socket as kernel
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.abstract import isIPAddress, isIPv6Address

from twisted_ib.blocking import moving
from twisted_ib.blocking.connection import Connection
from twisted_ib.blocking.loop import BlockingLoop, theLoop
from twisted_ib.blocking.moving import answered, ask, asked, given
from twisted_ib.configuration.words import CONNECT, LISTEN, SDP, TCP
from twisted_ib.drive.process import monotonic, time
from twisted_ib.internet.failures import osError
from twisted_ib.switch.connecting import Attempt
from twisted_ib.switch.reason import (
    EXPLICIT,
    GIVEN,
    LISTENED,
    TLS,
    Decision,
    Fallback,
    Reason,
    carried,
    decisions,
    keep,
    kept,
    outcomes,
    stayed,
)
from twisted_ib.switch.serverclient import RedirectedClient

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from twisted_ib.blocking.socket import socket
    from twisted_ib.internet.addressing.addresses import Address, End
    from twisted_ib.internet.channel import DeviceChannel

_FAMILIES: Final = (kernel.AF_INET, kernel.AF_INET6)
_TCP: Final = (0, int(kernel.IPPROTO_TCP))
_STREAM: Final = int(kernel.SOCK_STREAM)
_kindOf: Final[Callable[[kernel.socket], int]] = _socket.socket.type.__get__
_protocolOf: Final[Callable[[kernel.socket], int]] = _socket.socket.proto.__get__


class BlockingClient(RedirectedClient):
    """
    The transport of the active side of a blocking socket.
    """

    __slots__ = ()

    connector: SwitchedConnecting

    def suspended(self, descriptor: int) -> bool:
        return answered(self) if descriptor < 0 else self.connector.asked(self, descriptor)

    def sleeps(self) -> None:
        self.connector.sleeps()

    def secured(self) -> None:
        self.connector.secured()

    def given(self) -> None:
        self.connector.given()

    def give(self, connection: Connection) -> bool:
        """
        See L{Connection.give}.
        """
        return given(connection)


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
        self._sleeps, self._hasLeft = 0, False
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

    def makeTransport(self, channel: DeviceChannel, host: End, peer: Address) -> BlockingClient:
        return BlockingClient(channel, host, peer, self)

    def carried(self, transport: RedirectedClient) -> None:
        # The kernel's socket keeps its number until it is closed.
        channel = transport.channel
        self.transport, self._sleeps = transport, channel.device.fabric.sleeps
        self.reactor.switch.candidates.gainless.begins(channel)

    def connectionLost(self, reason: Failure) -> None:
        # The switch learns whether the connection has gained from SDP.
        super().connectionLost(reason)
        transport, self.transport = self.transport, None
        if transport is not None and not self._hasLeft:
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
        self._gainsNothing(self.reactor.switch.candidates.gainless.sleeps)

    def secured(self) -> None:
        """
        TLS begins on the connection.
        """
        if self.reactor.switch.configuration.policy.timeouts.short:
            self._leave(TLS)

    def given(self) -> None:
        """
        Another process is about to be given the connection's descriptor.
        """
        self._leave(GIVEN)

    def _leave(self, why: Fallback) -> None:
        if self.attempt.why.verdict != SDP:
            self._hasLeft = True
            self._gainsNothing(partial(self.reactor.switch.candidates.gainless.leaves, why))

    def _gainsNothing(self, learn: Callable[[str, int, float], Fallback]) -> None:
        why = learn(*self.attempt.address, self.reactor.seconds())
        connection, transport = self.connection, self.transport
        if connection is None or transport is None or not transport.isQuiet():
            return
        if self.attempt.why.verdict != SDP:
            ask(connection, transport, partial(self._moved, transport, why), why is GIVEN)

    def asked(self, transport: BlockingClient, descriptor: int) -> bool:
        """
        The server, which gives its end to another process, asks to move.

        @param descriptor: This end of TCP.
        @return: Whether that is taken care of, and the descriptor with it.
        """
        moved = partial(self._moved, transport, GIVEN)
        return self.attempt.why.verdict != SDP and asked(transport, descriptor, moved)

    def _moved(self, transport: RedirectedClient, why: Fallback, skt: socket) -> None:
        # The end of its transport is not that of the connection: see connectionLost().
        self.transport = None
        self.reactor.switch.moved(transport, why, self.attempt.address, skt)

    def overTCP(self) -> None:
        self.isOver = True
        # The process may not answer C{ib-ss}: its threads wait in the kernel.  In a chroot that misses it.
        with suppress(ImportError):
            self.reactor.socketReport.showPeer(*self.attempt.address, self.attempt.why)


def isTCP(skt: kernel.socket) -> bool:
    """
    Return whether a socket is one of TCP.
    """
    return _isStream(skt) and skt.family in _FAMILIES


def _isStream(skt: kernel.socket) -> bool:
    # Without an enumeration.
    return _kindOf(skt) == _STREAM and _protocolOf(skt) in _TCP


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


def decidedBefore(skt: socket, address: Any) -> Decision | None:
    """
    Return the decision for TCP about a connect like others before, if it is still the same; and count it.

    @param skt: A socket of any kind, which has neither a connection nor an attempt.
    """
    try:
        known = decisions.get(address)
    except TypeError:
        # No part of an address: the kernel's complaint is to come.
        return None
    if known is None:
        return None
    _, since, until, counters, rule, kind, _ = known
    # The family is that of the address, or the kernel refuses it.
    if not since <= time() < until or _kindOf(skt) != _STREAM or _protocolOf(skt) not in _TCP:
        return None
    if skt.isDirect or skt.stays(skt) is not None:
        return None
    counters[rule] += 1
    counters[kind] += 1
    return known


def countAgain(skt: socket, known: Decision) -> None:
    """
    Count a connection over TCP that was decided before.
    """
    why, outcome = known[0], known[-1]
    keep(skt, why)
    if outcome in outcomes:
        outcomes[outcome] += 1
    else:
        carried(TCP, why)


def _count(skt: socket, address: Any, why: Reason | None) -> None:
    if why is not None:
        keep(skt, why)
        carried(TCP, why)
    elif isTCP(skt):
        _countDirect(skt, CONNECT, address)


def acceptedDirect(skt: socket, made: kernel.socket) -> None:
    """
    Count a connection that the kernel has accepted where it alone listens.
    """
    if isTCP(skt):
        _countDirect(skt, LISTEN, skt.getsockname(), made)


def _countDirect(skt: socket, role: str, address: object, made: kernel.socket | None = None) -> None:
    fallback = skt.stays(skt)
    if fallback is None:
        why = _whyDirect(skt, role, address)
        if made is not None and why.fallback is not None:
            for each in skt, made:
                keep(each, why)
        carried(TCP, why)
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
    why = Reason(decision.where, decision.verdict, TCP)
    if decision.verdict != TCP:
        why.fallback = LISTENED if role == LISTEN else Fallback(role, "no device")
    return why


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


def secured(
    skt: socket, server_side: bool = False, do_handshake_on_connect: bool = True, **others: object
) -> None:
    """
    TLS begins on a socket, which gains nothing from SDP then: move before its handshake, if both ends can.

    The parameters are those of C{ssl.SSLSocket._create}.  A socket that blocks, and whose handshake is next,
    waits for L{moving.ANSWER_SECONDS} at most: a server for the client's first octets, before which that
    asks.
    """
    connection = skt.sdp
    if connection is None or connection.listens:
        return
    timeout = skt.gettimeout()
    waits = do_handshake_on_connect and timeout != 0.0
    with connection.loop:
        stream = connection.stream
        if stream is None or connection.readable():
            return
        if isinstance(stream, RedirectedClient):
            stream.secured()
            if waits and connection.move is not None:
                connection.move.awaitAnswer()
        elif server_side and waits:
            connection.loop.wait(
                lambda: connection.stream is None or connection.readable(),
                monotonic() + min(timeout or moving.ANSWER_SECONDS, moving.ANSWER_SECONDS),
            )
