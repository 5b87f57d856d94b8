"""
The SDP listeners of a blocking socket that listens, beside the kernel's TCP.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import socket as kernel
from collections import deque
from contextlib import suppress
from functools import lru_cache, partial
from mmap import PAGESIZE, mmap
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from twisted_ib.blocking.connection import Connection
from twisted_ib.blocking.descriptors import Offloaded, offloaded, pollerOf
from twisted_ib.blocking.moving import answered, ask, asked, given
from twisted_ib.blocking.select import Poll, poll
from twisted_ib.configuration.words import SDP, TCP
from twisted_ib.drive.process import life
from twisted_ib.switch.listeners import SocketListeners
from twisted_ib.switch.reason import GIVEN, Fallback, carried, kept
from twisted_ib.switch.serverclient import RedirectedServer

if TYPE_CHECKING:
    from twisted_ib.blocking.loop import BlockingLoop
    from twisted_ib.blocking.socket import socket

_SOCKET, _IP, _TCP = kernel.SOL_SOCKET, kernel.IPPROTO_IP, kernel.IPPROTO_TCP
#: Options that a socket which is accepted has of the one that listens (Linux's sk_clone_lock()).
_INHERITED: Final = (
    (_SOCKET, kernel.SO_REUSEADDR),
    (_SOCKET, kernel.SO_REUSEPORT),
    (_SOCKET, kernel.SO_KEEPALIVE),
    (_SOCKET, kernel.SO_LINGER),
    (_SOCKET, kernel.SO_OOBINLINE),
    (_SOCKET, kernel.SO_RCVLOWAT),
    (_SOCKET, kernel.SO_RCVTIMEO),
    (_SOCKET, kernel.SO_SNDTIMEO),
    (_IP, kernel.IP_TOS),
    (_IP, kernel.IP_TTL),
    (_TCP, kernel.TCP_NODELAY),
    (_TCP, kernel.TCP_KEEPIDLE),
    (_TCP, kernel.TCP_KEEPINTVL),
    (_TCP, kernel.TCP_KEEPCNT),
    (_TCP, kernel.TCP_USER_TIMEOUT),
)
#: The longest of them, struct timeval.
_OPTION_BYTES: Final = 16
#: How often one looks whether a moment is over in which a descriptor does not block.
_LOOKS: Final = 1000
#: How many such moments have begun and ended: odd amid one.  Processes that are forked later see it; L{None}
#: in one that has forked none since it listened.
_moments: memoryview[int] | None = None
#: The count of the process that listened, by each socket of it that this process has by a fork.
_inherited: WeakKeyDictionary[kernel.socket, memoryview[int]] = WeakKeyDictionary()
_FORKING: Final = Fallback("forking", "the process has forked after it listened: RDMA does not cross a fork")


def _valuesOf(skt: _socket.socket) -> list[bytes]:
    return [_socket.socket.getsockopt(skt, *option, _OPTION_BYTES) for option in _INHERITED]


@lru_cache(maxsize=2)
def _initialValues(family: int) -> list[bytes]:
    plain = _socket.socket(family, kernel.SOCK_STREAM | kernel.SOCK_CLOEXEC)
    try:
        return _valuesOf(plain)
    finally:
        plain.close()


class _Accepting(Factory):
    """
    Makes the connections of a port.
    """

    noisy = False

    def __init__(self, port: Listening) -> None:
        self.port = port

    def buildProtocol(self, address: object) -> Any:
        return self.port.made()


class BlockingServer(RedirectedServer):
    """
    The transport of the passive side of a blocking socket.
    """

    __slots__ = ()

    server: Listening

    def asked(self, descriptor: int) -> bool:
        return asked(self, descriptor, self.moved)

    def suspended(self, descriptor: int) -> bool:
        return super().suspended(descriptor) if descriptor >= 0 else answered(self)

    def give(self, connection: Connection) -> bool:
        """
        See L{Connection.give}.  If its client cannot move, later ones of what listens come over TCP: its
        program gives what it accepts.
        """
        hasMoved = given(connection)
        if not hasMoved:
            self.server.giving()
        return hasMoved

    def given(self) -> None:
        if self.server.why.verdict != SDP:
            ask(self.protocol, self, partial(self.moved, why=GIVEN), True)


class Listening(SocketListeners):
    """
    The SDP listeners of a socket; what comes over TCP stays the kernel's.

    @ivar accepted: Connections that wait for C{accept}.
    @ivar sockets: How many sockets have it.
    @ivar isServed: Whether this process has waited for a client.
    @ivar isShut: Whether C{shutdown} has ended it.
    @ivar event: The event of a client that has come over TCP, which is empty until one has; L{None} if
        another process may have the socket, and be quicker to accept it.
    @ivar outcome: The one of L{outcomes<twisted_ib.switch.reason.outcomes>} that counts it.
    @ivar kind: The family, type and protocol of the socket.
    @ivar options: Those that its connections have of it, with their values; L{None} to ask the kernel again.
    """

    listens: Final[Literal[True]] = True
    transportClass = BlockingServer
    held = None
    descriptor: int
    inode: int

    def __init__(self, loop: BlockingLoop, skt: kernel.socket, backlog: int) -> None:
        """
        @param skt: The socket, which is bound.
        @param backlog: How many connections wait for C{accept} before others are refused, or go over TCP.
        """
        self.loop = loop
        self.factory = _Accepting(self)
        self.backlog = max(backlog, 1)
        self.accepted: deque[Connection] = deque()
        self.sockets = 1
        self.isServed = self.isShut = False
        self.event: tuple[int, int] | tuple[()] | None = ()
        self._pollers: list[Poll] = []
        self.outcome: tuple[str, str, str] = ("", "", "")
        # Each look makes members of enumerations.
        self.kind = skt.family, skt.type, skt.proto
        self.options: list[tuple[int, int, bytes]] | None = None
        self._offered: tuple[Any, ...] | None = None
        self._besideSocket(loop.reactor.switch, loop.reactor, skt)

    def join(self, skt: kernel.socket) -> bool:
        """
        Listen on the devices of the rules.

        @return: Whether there is one.
        @raise OSError: C{EADDRINUSE}: a rule wants SDP, whose number is in use; or another error of a device,
            where a rule allows nothing else.
        """
        self._decide(self._address)
        if self.why.verdict == TCP:
            return False
        self._open(skt, False)
        return bool(self.sdpListeners)

    def logPrefix(self) -> str:
        return "socket"

    def giving(self) -> None:
        """
        The program gives what it accepts to other processes, and a client could not move to TCP before: the
        next ones come over TCP, for good, as each that could not would be reset, and those that could gain
        nothing.  Those that wait for C{accept} stay.
        """
        with self.loop:
            self.withdraw(GIVEN)
            self._offered = None

    def withdraw(self, why: Fallback = _FORKING) -> bool:
        """
        The process has forked, and nobody here waits for a client: its children may serve them, by TCP.  SDP
        is not offered meanwhile, as nobody would answer.

        @param why: The reason, where it is another one.
        @return: Whether that is so.
        """
        with self.loop:
            if (self.isServed and why is _FORKING) or self.alone or self._at is None:
                return False
            # Nor on a device that comes meanwhile.
            self._at, self._offered = None, self._at
            if not self.sdpListeners:
                return False
            self._closeCompanions(Failure(ConnectionAbortedError()))
            self.switch.fellBack(self.why, why, self._address.host, self._address.port)
            self._showWhy()
            return True

    def serve(self) -> None:
        """
        A thread of this process is about to wait for a client: SDP is offered, again if it was withdrawn.
        """
        with self.loop:
            self.isServed = True
            offered, self._offered = self._offered, None
            if offered is not None and self.connected:
                self._at = offered
                if self.why.fallback is _FORKING:
                    self.why.fallback = None
                self._join(self._devices())
                self._showWhy()
                self.loop.disturb()

    def _showWhy(self) -> None:
        self.event = self.event and ()
        self._tellProvider()
        with suppress(ImportError):
            # In a chroot only ib-ss misses it.
            self.loop.reactor.socketReport.showPeer(self._address.host, self._address.port, self.why, True)
        skt = offloaded.get(self.descriptor)
        if skt is not None:
            # For what looks at the kernel's socket.
            kept[skt] = self.why
            if self.why.fallback is None:
                del kept[skt]

    def made(self) -> Connection:
        """
        Return the connection of a client.  Once as many wait as the backlog allows, the next are refused.
        """
        connection = Connection(self.loop)
        self.accepted.append(connection)
        if len(self.accepted) >= self.backlog:
            for listener in self.sdpListeners:
                listener.stopReading()
        return connection

    def awaitMove(self) -> bool:
        """
        Return False: it does not move.
        """
        return False

    def ready(self) -> bool:
        """
        Return whether C{accept} does not block: a connection waits, or nobody listens any more.
        """
        return bool(self.accepted) or not self.connected

    def take(self) -> Connection:
        """
        Return the connection that has waited longest.
        """
        connection = self.accepted.popleft()
        if len(self.accepted) == self.backlog - 1:
            for listener in self.sdpListeners:
                listener.startReading()
            self.loop.disturb()
        return connection

    def inherited(self, skt: kernel.socket) -> list[tuple[int, int, bytes]]:
        """
        Return the options that a connection has of the socket that listens, where a program has set some.
        """
        if self.options is None:
            # The kernel has none of family AF_IB.
            family = _socket.socket.getsockopt(skt, _SOCKET, kernel.SO_DOMAIN)
            found = zip(_INHERITED, _valuesOf(skt), _initialValues(family), strict=True)
            self.options = [(*option, value) for option, value, initial in found if value != initial]
        return self.options

    def timeoutOf(self, skt: kernel.socket) -> float | None:
        """
        Return the timeout of a socket: without one it does as its descriptor (O_NONBLOCK by fcntl(2)).  The
        caller has the loop's lock: L{acceptTCP} makes the descriptor non-blocking for a moment.
        """
        timeout = skt.gettimeout()
        return timeout if timeout is not None or os.get_blocking(skt.fileno()) else 0.0

    def awaitClient(self, skt: kernel.socket) -> None:
        """
        Wait for one, as programs do by C{select} that ask before they accept.

        @raise TimeoutError: None has come.
        """
        timeout = skt.gettimeout()
        if timeout == 0.0 or (timeout is None and not os.get_blocking(self.descriptor)):
            return
        # One for each thread that accepts.
        try:
            poller = self._pollers.pop()
        except IndexError:
            poller = poll()
            poller.register(self.descriptor, select.POLLIN)
        try:
            if not poller.poll(None if timeout is None else timeout * 1e3):
                raise TimeoutError("timed out")
        finally:
            self._pollers.append(poller)

    def acceptTCP(self, skt: kernel.socket) -> tuple[int, Any]:
        """
        Accept from the kernel's queue, as accept(2), under the lock of the loop: other threads ask whether
        the descriptor blocks.

        @raise BlockingIOError: Another thread or process was quicker; nobody is waited for, whatever the
            socket's timeout, as the next client may come over SDP.
        """
        if self.loop.idling.accepts():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        descriptor = skt.fileno()
        blocks = os.get_blocking(descriptor)
        plain = _socket.socket(*self.kind, descriptor)
        moments = _moments if blocks else None
        try:
            if moments is not None:
                moments[0] += 1
            # A default timeout (socket.setdefaulttimeout) is that of this object, too.
            if blocks or plain.gettimeout():
                plain.setblocking(False)
            found: tuple[int, Any] = plain._accept()  # type: ignore[attr-defined]
            return found
        finally:
            if blocks:
                plain.setblocking(True)
            if moments is not None:
                moments[0] += 1
            plain.detach()

    def acceptedTCP(self) -> None:
        """
        Count a connection that the kernel has accepted; the next ones may be at once, and counted as this.
        """
        self.outcome = carried(TCP, self.why)
        if self.event is not None:
            self.event = (self.descriptor, select.POLLIN)

    def give(self) -> None:
        """
        Another process may have the socket from now on.
        """
        self.event = None

    def drop(self, isAborted: bool = False) -> None:
        """
        One socket has closed it; the last one ends it.
        """
        if self.loop.forked or self.loop.closed:
            return
        with self.loop:
            self.sockets -= 1
            if self.sockets == 0:
                self.close()

    def close(self) -> None:
        # Under the loop's lock; connections that wait are reset, as TCP's are.
        self.connectionLost(Failure(ConnectionAbortedError()))
        while self.accepted:
            self.accepted.popleft().close(True)
        self.loop.changed()

    def connectionLost(self, reason: Failure) -> None:
        self.connected = False
        self._closeCompanions(reason)
        self.switch.ports.discard(self)


def awaitsAgain(skt: socket) -> bool:
    """
    Wait for the next client of a socket that this process has by a fork, if C{accept} has not waited only
    since the process that listened accepts, too: for a moment the descriptor of both does not block.

    @param skt: One that had nobody to accept.
    @return: Whether that is so, and a client may be there.
    """
    moments = _inherited.get(skt)
    # With a limit nobody knows whether it has passed.
    if moments is None or skt.gettimeout() is not None or skt._limit(kernel.SO_RCVTIMEO):
        return False
    # A process that is stopped or killed amid such a moment leaves it odd, and the descriptor as it is.
    for _ in range(_LOOKS):
        count = moments[0]
        blocks = os.get_blocking(skt.fileno())
        if not count % 2 and moments[0] == count:
            if not blocks:
                return False
            break
        os.sched_yield()
    pollerOf([(skt.fileno(), select.POLLIN)]).poll()
    return True


def _fork() -> None:
    global _moments
    if _moments is None and any(each.listens for each in tuple(Offloaded.parts.values())):
        _moments = memoryview(mmap(-1, PAGESIZE)).cast("Q")


def _forked() -> None:
    ports = [each for each in tuple(Offloaded.parts.values()) if each.listens]
    for each in ports:
        each.give()
    # All of them first: none accepts while another one answers.
    left = [each for each in ports if each.withdraw()]
    if left:
        loop = left[0].loop
        with loop:
            loop.changed()


def _forkedChild() -> None:
    global _moments
    moments, _moments = _moments, None
    # TCP crosses a fork: a socket that listens is the kernel's in the child.
    for skt in tuple(offloaded.values()):
        part = skt.sdp
        if part is not None and part.listens and not part.alone:
            part.why.fallback, kept[skt] = _FORKING, part.why
            skt.useTCP()
            if moments is not None:
                _inherited[skt] = moments
    for inode, each in tuple(Offloaded.parts.items()):
        if each.listens and not each.alone:
            del Offloaded.parts[inode]


# After the loop's own, whose lock nobody has in the child.
life.atFork(__name__, before=_fork, inParent=_forked, inChild=_forkedChild)
