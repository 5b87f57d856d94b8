"""
C{Listener} and C{Client} of C{multiprocessing.connection}.

An C{AF_UNIX} connection is made, and authenticated, by C{multiprocessing}'s own; then the client sends the
memory along, so that it need not wait until it is accepted.  Those of C{AF_INET} stay C{multiprocessing}'s.
"""

from __future__ import annotations

import multiprocessing.connection as kernel
import os
import socket
from types import TracebackType
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.queues.connection import Connection, checkMemory, createMemory

if TYPE_CHECKING:
    from typing_extensions import Self

Address = str | bytes | tuple[str, int]
AnyConnection = Connection | kernel.Connection

#: What goes with the memory.
_HELLO = b"twisted_ib queues 1"


def _detached(connection: kernel.Connection) -> socket.socket:
    # The socket of a connection, which loses it.
    with connection:
        return socket.socket(fileno=os.dup(connection.fileno()))


def _accepted(pair: socket.socket) -> Connection:
    # Who connects and says nothing must not hold up the others for ever.
    if not awaitReady(pair, limits.QUEUE_HANDSHAKE_SECONDS):
        raise ConnectionAbortedError("a client has sent no memory")
    data, fds, _, _ = socket.recv_fds(pair, len(_HELLO), 1, socket.MSG_CMSG_CLOEXEC)
    if data != _HELLO or len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise ConnectionAbortedError("a client has sent something that is not memory")
    (memory,) = fds
    try:
        checkMemory(memory)
        return Connection(pair, memory, 0)
    except BaseException:
        os.close(memory)
        raise


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
        self._listener = kernel.Listener(address, family, backlog, authkey)

    def accept(self) -> AnyConnection:
        """
        Wait for a client.

        @raise AuthenticationError: it does not know the secret.
        @raise OSError: it has gone, or is not L{Client}.
        """
        accepted = self._listener.accept()
        if isinstance(self.address, tuple):
            return accepted
        pair = _detached(accepted)
        try:
            return _accepted(pair)
        except BaseException:
            pair.close()
            raise

    def close(self) -> None:
        """
        Stop listening; harmless when repeated.
        """
        self._listener.close()

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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
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


__all__ = ["Client", "Listener"]
