"""
The SDP listeners of a blocking socket that listens, beside the kernel's TCP.
"""

from __future__ import annotations

import errno
import os
import socket as kernel
from collections import deque
from typing import TYPE_CHECKING, Any

from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from twisted_ib.blocking.connection import Connection
from twisted_ib.configuration.parser import SDP, TCP
from twisted_ib.reactor.switch.listening import SwitchedPort

if TYPE_CHECKING:
    from twisted_ib.blocking.loop import BlockingLoop


class _Accepting(Factory):
    """
    Makes the connections of a port.
    """

    noisy = False

    def __init__(self, port: Listening) -> None:
        self.port = port

    def buildProtocol(self, address: object) -> Any:
        """
        Return a connection, which waits to be accepted.
        """
        return self.port.made()


class Listening(SwitchedPort):
    """
    The SDP listeners of a socket, without the port's own TCP: that stays the kernel's.

    @ivar accepted: Connections that wait for C{accept}.
    @ivar sockets: How many sockets have it.
    """

    def __init__(self, loop: BlockingLoop, skt: kernel.socket, backlog: int) -> None:
        """
        @param skt: The socket, which is bound.
        @param backlog: How many connections wait for C{accept}.
        """
        reactor: Any = loop.reactor
        name = skt.getsockname()
        super().__init__(reactor.switch, name[1], _Accepting(self), max(backlog, 1), name[0], reactor)
        self.addressFamily = skt.family
        self.loop = loop
        self.accepted: deque[Connection] = deque()
        self.sockets = 1
        self._name = skt.getsockname()

    def join(self, skt: kernel.socket) -> bool:
        """
        Listen on the devices of the rules.

        @return: Whether there is one.
        @raise OSError: C{EADDRINUSE}: a rule wants SDP, whose number is in use; or another error of a device,
            where a rule allows nothing else.
        """
        address = self._addressOf(skt)
        self._decide(address)
        if self.why.verdict == TCP:
            return False
        refused = self._joinBeside(skt, address)
        busy = [each for each in refused if getattr(each.socketError, "errno", 0) == errno.EADDRINUSE]
        if not self.sdpListeners or busy:
            if refused and not self._mayGoOn(busy):
                self.leave()
                raise _osError(refused[0])
            if not self.sdpListeners:
                self._settled(skt.dup() if self.why.verdict == SDP else skt, refused)
                return False
        self.connected = True
        why = self.why
        why.decided = why.connected = self.reactor.seconds()
        self.alone = why.verdict == SDP
        self._tellProvider()
        if self.alone:
            why.provider = SDP
        self.switch.listening(self)
        return True

    def getHost(self) -> Any:
        """
        Return the address.
        """
        return self._at[0] if self._at is not None else None

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
        Return whether a connection waits.
        """
        return bool(self.accepted)

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

    def drop(self) -> None:
        """
        One socket has closed it; the last one ends it.
        """
        if self.loop.forked:
            return
        with self.loop:
            self.sockets -= 1
            if self.sockets == 0:
                self.leave()

    def close(self) -> None:
        """
        Stop listening, under the loop's lock: see L{leave}.
        """
        self.leave()

    def leave(self) -> None:
        """
        Stop listening; connections that wait are reset, as TCP's are.
        """
        self.connected = False
        self._closeCompanions(Failure(_CLOSED))
        while self.accepted:
            self.accepted.popleft().close(True)
        self.switch.ports.discard(self)
        self.loop.poll()

    def startReading(self) -> None:
        """
        Do nothing: the kernel's socket is no reader.
        """

    def stopReading(self) -> None:
        """
        Do nothing.
        """

    def connectionLost(self, reason: Failure) -> None:
        """
        The loop closes.
        """
        self.connected = False
        self._closeCompanions(reason)


_CLOSED = CannotListenError("", 0, OSError(errno.EBADF, os.strerror(errno.EBADF)))


def _osError(reason: CannotListenError) -> OSError:
    cause = reason.socketError
    number = getattr(cause, "errno", None)
    if not isinstance(number, int):
        number = errno.EADDRNOTAVAIL
    return OSError(number, f"{os.strerror(number)} (SDP: {getattr(cause, 'strerror', None) or cause})")


__all__ = ["Listening"]
