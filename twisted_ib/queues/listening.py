"""
C{Listener} and C{Client} of C{multiprocessing.connection}.

An C{AF_UNIX} connection is made, and authenticated, by C{multiprocessing}'s own; then the client sends the
memory along, so that it need not wait until it is accepted.  Those of C{AF_INET} stay C{multiprocessing}'s.
"""

from __future__ import annotations

import multiprocessing.connection as kernel
import os
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.drive.process import monotonic
from twisted_ib.errors import HCAError
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors
from twisted_ib.queues.connection import Connection, checkMemory, createMemory
from twisted_ib.queues.ring import PairSocket

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

Address = str | bytes | tuple[str, int]
AnyConnection = Connection | kernel.Connection

#: The message that goes with the memory.
_HELLO = b"twisted_ib queues 1"


def _detached(connection: kernel.Connection) -> socket.socket:
    # The socket of a connection, which loses it.
    with connection:
        return PairSocket(fileno=os.dup(connection.fileno()))


def _challenged(connection: kernel.Connection, authkey: bytes) -> None:
    # As multiprocessing's own listener does it.
    kernel.deliver_challenge(connection, authkey)
    kernel.answer_challenge(connection, authkey)


def _accepted(pair: socket.socket) -> Connection:
    # Not socket.recv_fds(): it ignores its flags.
    try:
        received = receiveWithDescriptors(pair, len(_HELLO), 1)
    except HCAError as error:
        raise ConnectionAbortedError(f"a client has sent no memory: {error}") from error
    if received is None:
        raise ConnectionAbortedError("a client has sent no memory")
    data, fds = received
    if data != _HELLO or len(fds) != 1:
        closeAll(fds)
        raise ConnectionAbortedError("a client has sent something that is not memory")
    (memory,) = fds
    try:
        checkMemory(memory)
        return Connection(pair, memory, 0)
    except BaseException:
        os.close(memory)
        raise


class _Handshake:
    """
    A client that has connected.

    @ivar pair: its socket.
    @ivar deadline: when it is too late.
    @ivar isKnown: whether it knows the secret, so that its memory is awaited.
    @ivar error: why it does not.
    """

    def __init__(self, pair: socket.socket, authkey: bytes | None, woken: int) -> None:
        # C{woken} is an eventfd(2), told when C{isKnown} or C{error} is set.
        self.pair = pair
        self.deadline = monotonic() + limits.QUEUE_HANDSHAKE_SECONDS
        self.isKnown = authkey is None
        self.error: BaseException | None = None
        if authkey is not None:
            # multiprocessing's calls wait, hence a thread; it ends, as the socket is shut down in time.
            connection, told = kernel.Connection(os.dup(pair.fileno())), os.dup(woken)
            arguments = connection, authkey, told
            try:
                threading.Thread(target=self._challenge, args=arguments, daemon=True).start()
            except RuntimeError as error:
                connection.close()
                self._tell(told)
                self.error = ConnectionAbortedError(f"a client cannot be asked for the secret: {error}")

    def _challenge(self, connection: kernel.Connection, authkey: bytes, woken: int) -> None:
        try:
            with connection:
                _challenged(connection, authkey)
        except BaseException as error:
            self.error = error
        else:
            self.isKnown = True
        self._tell(woken)

    @staticmethod
    def _tell(woken: int) -> None:
        os.write(woken, (1).to_bytes(8, "little"))
        os.close(woken)

    def isOver(self, ready: set[int], now: float) -> bool:
        isReady = self.isKnown and self.pair.fileno() in ready
        return isReady or self.error is not None or now >= self.deadline

    def result(self) -> Connection:
        """
        @raise AuthenticationError: it does not know the secret.
        @raise OSError: it has gone, is not L{Client}, or is late.
        """
        try:
            if self.error is not None:
                raise self.error
            if not self.isKnown:
                # Whatever it has sent is no answer.
                raise ConnectionAbortedError("a client has not answered in time")
            return _accepted(self.pair)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        with suppress(OSError):
            self.pair.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        self.pair.close()


class Listener:
    """
    Accepts connections at an address.
    """

    def __init__(
        self,
        address: Address | None = None,
        family: str | None = None,
        backlog: int = 1,
        authkey: bytes | None = None,
    ) -> None:
        """
        @param address: of a UNIX socket, or a host and a port; by default a UNIX socket of a name of its own.
        @param family: C{AF_UNIX} or C{AF_INET}.
        @param backlog: connections that wait to be accepted.
        @param authkey: a secret that clients must know.
        """
        if authkey is not None and not isinstance(authkey, bytes):
            raise TypeError("authkey should be a byte string")
        self._authkey = authkey
        self._listener = kernel.Listener(address, family, backlog)
        self._isInternet = isinstance(self.address, tuple)
        self._handshakes: list[_Handshake] = []
        self._woken = -1
        self._accepting = threading.RLock()
        #: The process of the handshakes: a forked one leaves them to its parent.
        self._pid = os.getpid()

    def accept(self) -> AnyConnection:
        """
        Wait for a client.

        Several may be in the handshake at once: one that is silent does not keep back the others.

        @raise AuthenticationError: it does not know the secret.
        @raise OSError: it has gone, or is not L{Client}.
        """
        if self._isInternet:
            accepted = self._listener.accept()
            try:
                if self._authkey is not None:
                    _challenged(accepted, self._authkey)
            except BaseException:
                accepted.close()
                raise
            return accepted
        if self._pid != os.getpid():
            # Forked; a thread of the parent's may have held the lock then.
            self._pid, self._accepting = os.getpid(), threading.RLock()
            self._forget(_Handshake.close)
        with self._accepting:
            if self._woken < 0:
                self._woken = libc.eventfd()
            while True:
                over = self._turn()
                # A signal's handler may have accepted it amid that.
                if over in self._handshakes:
                    self._handshakes.remove(over)
                    return over.result()

    def _turn(self) -> _Handshake | None:
        # Wait, and begin with a client that has come, or return one that is done.
        within: object = vars(self._listener)["_listener"]
        if within is None:
            raise OSError("listener is closed")
        listening: socket.socket = vars(within)["_socket"]
        waiting, poll = self._handshakes, select.poll()
        for fd in (
            listening.fileno(),
            self._woken,
            *(each.pair.fileno() for each in waiting if each.isKnown),
        ):
            poll.register(fd, select.POLLIN)
        left = max(0.0, waiting[0].deadline - monotonic()) * 1000 if waiting else None
        ready = {fd for fd, _ in poll.poll(left)}
        if self._woken in ready:
            # So may it have read this.
            with suppress(BlockingIOError):
                os.read(self._woken, 8)
        now = monotonic()
        over = next((each for each in waiting if each.isOver(ready, now)), None)
        if over is None and listening.fileno() in ready:
            # The oldest had the most time.
            if len(waiting) >= limits.QUEUE_HANDSHAKES:
                return waiting[0]
            # Another process that has this listener may be faster.
            listening.setblocking(False)
            with suppress(BlockingIOError):
                pair = _detached(self._listener.accept())
                waiting.append(_Handshake(pair, self._authkey, self._woken))
        return over

    def close(self) -> None:
        """
        Stop listening; harmless when repeated.
        """
        self._listener.close()
        self._forget(_Handshake.end if self._pid == os.getpid() else _Handshake.close)

    def _forget(self, end: Callable[[_Handshake], None]) -> None:
        for each in self._handshakes:
            end(each)
        self._handshakes.clear()
        woken, self._woken = self._woken, -1
        if woken >= 0:
            os.close(woken)

    @property
    def address(self) -> Address:
        """
        Where it listens.
        """
        return self._listener.address

    @property
    def last_accepted(self) -> Address | None:
        """
        From where the last client came.
        """
        return self._listener.last_accepted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def Client(address: Address, family: str | None = None, authkey: bytes | None = None) -> AnyConnection:
    """
    Connect to a L{Listener}.

    @raise AuthenticationError: it has another secret.
    """
    connected = kernel.Client(address, family, authkey)
    if isinstance(address, tuple):
        return connected
    pair = _detached(connected)
    try:
        memory = createMemory()
        try:
            socket.send_fds(pair, [_HELLO], [memory])
        except BaseException:
            os.close(memory)
            raise
        return Connection(pair, memory, 1)
    except BaseException:
        pair.close()
        raise
