"""
The SDP listeners of a blocking socket that listens, beside the kernel's TCP; what its process forks has TCP.
"""

from __future__ import annotations

import _socket
import os
import socket as kernel
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, get_ident
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import ref

from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from twisted_ib.blocking.connection import Connection
from twisted_ib.blocking.descriptors import Offloaded, offloaded
from twisted_ib.configuration.words import TCP
from twisted_ib.drive.process import life
from twisted_ib.switch.handle import pairOf
from twisted_ib.switch.listeners import SocketListeners
from twisted_ib.switch.reason import Fallback, kept

if TYPE_CHECKING:
    from twisted_ib.blocking.loop import BlockingLoop
    from twisted_ib.blocking.socket import socket as BlockingSocket

# Now: the names may stand for others later (L{twisted_ib.blocking.patch}).
_duplicate, _getBlocking = os.dup2, os.get_blocking
#: The addresses of this host to itself, by family.
_HERE: Final[dict[int, str]] = {kernel.AF_INET: "127.0.0.1", kernel.AF_INET6: "::1"}
#: Bytes that a relay takes at a time.
_RELAYED: Final = 64 * 1024
#: The name of its threads.
RELAY: Final = "twisted_ib relay of a fork"
_FORKING: Final = Fallback("forking", "the process has forked after it listened: RDMA does not cross a fork")


class _Accepting(Factory):
    """
    Makes the connections of a port.
    """

    noisy = False

    def __init__(self, port: Listening) -> None:
        self.port = port

    def buildProtocol(self, address: object) -> Any:
        return self.port.made()


class Listening(SocketListeners):
    """
    The SDP listeners of a socket; what comes over TCP stays the kernel's.

    @ivar accepted: Connections that wait for C{accept}.
    @ivar sockets: How many sockets have it.
    @ivar isServed: Whether this process has waited for a client.
    @ivar relay: The relay that begins behind the fork that is under way, or L{None}.
    @ivar kind: The family, type and protocol of the socket.
    """

    listens: Final[Literal[True]] = True
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
        self.isServed = False
        self.relay: _Relay | None = None
        #: The socket that was accepted last, by which thread, and what had been received from it.
        self._last: tuple[ref[BlockingSocket], int, int] | None = None
        # Each look makes members of enumerations.
        self.kind = skt.family, skt.type, skt.proto
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

    def withdraw(self) -> bool:
        """
        The process has forked, and nobody here waits for a client: its children may serve them, by TCP.  SDP
        is not offered meanwhile, as nobody would answer.

        @return: Whether that is so.
        """
        with self.loop:
            if self.isServed or self.alone or not self.sdpListeners:
                return False
            offered = self._at
            self._leave()
            self._offered = offered
            return True

    def _leave(self) -> None:
        self._at = self._offered = None
        self._closeCompanions(Failure(ConnectionAbortedError()))
        self.switch.fellBack(self.why, _FORKING, self._address.host, self._address.port)
        self._showWhy()

    def handOver(self) -> None:
        """
        The port is withdrawn: who has connected already waits in the kernel's queue from now on, where the
        children find him.
        """
        with self.loop:
            while self.accepted:
                _Relay(self.accepted.popleft(), None, pairOf(self._address)).start()

    def took(self, skt: BlockingSocket, connection: Connection) -> None:
        """
        A thread has accepted a connection.  If it forks next, that is for the child.
        """
        self._last = ref(skt), get_ident(), _takenFrom(connection)

    def giveAway(self) -> None:
        """
        The process is about to fork.  If the calling thread has accepted a connection and received nothing
        from it, the child is to serve it: its descriptor becomes a connection of the kernel's, which crosses
        a fork, and this process relays between the two.
        """
        if self._last is not None and self._last[1] == get_ident():
            self._relayFor(None)

    def give(self, connection: Connection) -> bool:
        """
        A connection goes to another process: the same, by any thread and at once.

        @return: Whether that is done.
        """
        self._relayFor(connection)
        given = self.relay is not None
        self.forked()
        return given

    def _relayFor(self, wanted: Connection | None) -> None:
        if self._last is None or self.alone or self.kind[0] not in _HERE:
            return
        found, _, taken = self._last
        skt = found()
        connection = None if skt is None else skt.sdp
        if skt is None or not isinstance(connection, Connection) or wanted not in (None, connection):
            return
        with self.loop:
            if connection.sockets == 1 and connection.held is None and _takenFrom(connection) == taken:
                # Without a free descriptor the other process is refused.
                with suppress(OSError):
                    self.relay = _Relay(connection, _replaced(skt))
                    skt.release()
                    connection.descriptor, connection.isMarked = -1, False
        self._last = None

    def forked(self) -> None:
        """
        The process has forked: what it has given away is relayed, and the next clients come over TCP.
        """
        relay, self.relay = self.relay, None
        if relay is not None:
            with self.loop:
                self._leave()
                self.loop.changed()
            relay.start()

    def serve(self) -> None:
        """
        A thread of this process is about to wait for a client: SDP is offered, again if it was withdrawn.
        """
        with self.loop:
            self.isServed = True
            offered, self._offered = self._offered, None
            if offered is not None and self.connected:
                self._at, self.why.fallback = offered, None
                self._join(self._devices())
                self._showWhy()
                self.loop.disturb()

    def _showWhy(self) -> None:
        self._tellProvider()
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

    def timeoutOf(self, skt: kernel.socket) -> float | None:
        """
        Return the timeout of a socket: without one it does as its descriptor (O_NONBLOCK by fcntl(2)).  The
        caller has the loop's lock: L{acceptTCP} makes the descriptor non-blocking for a moment.
        """
        timeout = skt.gettimeout()
        return timeout if timeout is not None or os.get_blocking(skt.fileno()) else 0.0

    def acceptTCP(self, skt: kernel.socket) -> tuple[int, Any]:
        """
        Accept from the kernel's queue, as accept(2).

        @raise BlockingIOError: Another thread or process was quicker; nobody is waited for, whatever the
            socket's timeout, as the next client may come over SDP.
        """
        descriptor = skt.fileno()
        # Other threads ask meanwhile whether it blocks.
        with self.loop:
            blocks = os.get_blocking(descriptor)
            plain = _socket.socket(*self.kind, descriptor)
            try:
                # A default timeout (socket.setdefaulttimeout) is that of this object, too.
                if blocks or plain.gettimeout():
                    plain.setblocking(False)
                found: tuple[int, Any] = plain._accept()  # type: ignore[attr-defined]
                return found
            finally:
                if blocks:
                    plain.setblocking(True)
                plain.detach()

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


class _Relay:
    """
    A connection over SDP whose bytes another process has by one of the kernel's.
    """

    def __init__(
        self, connection: Connection, end: _socket.socket | None, address: tuple[Any, ...] | None = None
    ) -> None:
        """
        @param end: The kernel's; L{None} for one to C{address}.
        """
        self._connection, self._address, self._running = connection, address, 2
        family = kernel.AF_INET6 if address is not None and ":" in address[0] else kernel.AF_INET
        self._end = _socket.socket(family, kernel.SOCK_STREAM) if end is None else end
        self._end.setblocking(True)
        self._end.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY, 1)

    def start(self) -> None:
        """
        Relay, in threads.
        """
        Thread(target=self._begin, name=RELAY, daemon=True).start()

    def leave(self) -> None:
        """
        This process is the child: the end is its parent's.
        """
        self._end.close()

    def _begin(self) -> None:
        try:
            if self._address is not None:
                self._end.connect(self._address)
        except OSError:
            self._running = 1
            self._run(self._reset)
            return
        Thread(target=self._run, args=(self._fromPeer,), name=RELAY, daemon=True).start()
        self._run(self._toPeer)

    def _fromPeer(self) -> None:
        while data := self._connection.receive(_RELAYED, 0, None):
            self._end.sendall(data)
        self._end.shutdown(kernel.SHUT_WR)

    def _toPeer(self) -> None:
        while data := self._end.recv(_RELAYED):
            self._connection.sendAll(data, 0, None)
        self._connection.shutdown(kernel.SHUT_WR)

    def _run(self, call: Callable[[], object]) -> None:
        connection = self._connection
        try:
            call()
        except OSError:
            self._reset()
        if connection.loop.forked:
            return
        with connection.loop:
            self._running -= 1
            if not self._running:
                connection.drop()
                self._end.close()

    def _reset(self) -> None:
        connection = self._connection
        if not connection.loop.forked:
            with connection.loop:
                connection.close(True)
        with suppress(OSError):
            self._end.setsockopt(kernel.SOL_SOCKET, kernel.SO_LINGER, struct.pack("ii", 1, 0))
            # The other thread may wait for it.
            self._end.shutdown(kernel.SHUT_RDWR)


def _takenFrom(connection: Connection) -> int:
    # How much of what came the program has: messages, but for those that wait, and the peer's last.
    inbox, stream = connection.inbox, connection.stream
    if stream is None or inbox.start:
        return -1
    return stream.traffic()[1] - len(inbox.pieces) - connection.peerEnded


def _replaced(skt: BlockingSocket) -> _socket.socket:
    # Have the descriptor of a socket be one end of a connection of the kernel's, and return the other.
    family, descriptor = skt.family, skt.fileno()
    listener: Any = _socket.socket(family, kernel.SOCK_STREAM)
    one = _socket.socket(family, kernel.SOCK_STREAM)
    try:
        for each in (listener, one):
            each.setblocking(True)
        listener.bind((_HERE[family], 0))
        listener.listen(1)
        one.connect(listener.getsockname())
        made, peer = listener._accept()
        other = _socket.socket(family, kernel.SOCK_STREAM, 0, made)
        if peer != one.getsockname():
            other.close()
            raise ConnectionAbortedError
        other.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY, 1)
        other.setblocking(_getBlocking(descriptor))
        _duplicate(made, descriptor, os.get_inheritable(descriptor))
        other.close()
        return one
    except BaseException:
        one.close()
        raise
    finally:
        listener.close()


def _ports() -> list[Listening]:
    return [each for each in tuple(Offloaded.parts.values()) if each.listens]


def _forking() -> None:
    for each in _ports():
        each.giveAway()


def _forked() -> None:
    ports = _ports()
    for each in ports:
        each.forked()
    # All of them first: none accepts while another one answers.
    left = [each for each in ports if each.withdraw()]
    if left:
        with left[0].loop:
            left[0].loop.changed()
    for each in left:
        each.handOver()


def _forkedChild() -> None:
    # TCP crosses a fork: a socket that listens is the kernel's in the child.
    for port in _ports():
        relay, port.relay = port.relay, None
        if relay is not None:
            relay.leave()
    for skt in tuple(offloaded.values()):
        part = skt.sdp
        if part is not None and part.listens and not part.alone:
            part.why.fallback, kept[skt] = _FORKING, part.why
            skt.useTCP()
    for inode, each in tuple(Offloaded.parts.items()):
        if each.listens and not each.alone:
            del Offloaded.parts[inode]


# After the loop's own, whose lock nobody has in the child.
life.atFork(__name__, before=_forking, inParent=_forked, inChild=_forkedChild)
