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
from twisted_ib.reactor.switch.listeners import PortListeners, isBusy
from twisted_ib.reactor.switch.reason import Fallback

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


class Listening(PortListeners):
    """
    The SDP listeners of a socket; what comes over TCP stays the kernel's.

    @ivar accepted: Connections that wait for C{accept}.
    @ivar sockets: How many sockets have it.
    """

    sessionno = 0
    connected = False

    def __init__(self, loop: BlockingLoop, skt: kernel.socket, backlog: int) -> None:
        """
        @param skt: The socket, which is bound.
        @param backlog: How many connections wait for C{accept} before others are refused, or go over TCP.
        """
        self.loop = loop
        self.reactor = loop.reactor
        self.factory = _Accepting(self)
        self.backlog = max(backlog, 1)
        self.accepted: deque[Connection] = deque()
        self.sockets = 1
        self._withoutListeners(loop.reactor.switch, loop.reactor)
        self._address = self._addressOf(skt)
        self.interface = self._address.host

    def join(self, skt: kernel.socket) -> bool:
        """
        Listen on the devices of the rules.

        @return: Whether there is one.
        @raise OSError: C{EADDRINUSE}: a rule wants SDP, whose number is in use; or another error of a device,
            where a rule allows nothing else.
        """
        why = self.why
        self._decide(self._address)
        if why.verdict == TCP:
            return False
        refused = self._joinBeside(skt, self._address)
        busy = [each for each in refused if isBusy(each)]
        if refused and not self._mayGoOn(busy) and (busy or not self.sdpListeners):
            self.close()
            raise osError((busy or refused)[0])
        self.connected = True
        self.alone = why.verdict == SDP
        why.decided = why.connected = self.reactor.seconds()
        self._tellProvider()
        if self.alone:
            why.provider = SDP
        elif refused and not self.sdpListeners:
            fallback = Fallback("listen", f"SDP: {refused[0].socketError}")
            self.switch.fellBack(why, fallback, self.interface, self._address.port)
        self.switch.listening(self)
        return bool(self.sdpListeners)

    def getHost(self) -> Any:
        """
        Return the address.
        """
        return self._address

    def logPrefix(self) -> str:
        """
        Return the prefix of log lines.
        """
        return "socket"

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

    def drop(self) -> None:
        """
        One socket has closed it; the last one ends it.
        """
        if self.loop.forked:
            return
        with self.loop:
            self.sockets -= 1
            if self.sockets == 0:
                self.close()

    def close(self) -> None:
        """
        Stop listening, under the loop's lock; connections that wait are reset, as TCP's are.
        """
        self.connectionLost(Failure(ConnectionAbortedError()))
        while self.accepted:
            self.accepted.popleft().close(True)
        self.loop.changed()

    def connectionLost(self, reason: Failure) -> None:
        """
        Stop listening.
        """
        self.connected = False
        self._closeCompanions(reason)
        self.switch.ports.discard(self)


def osError(reason: CannotListenError) -> OSError:
    """
    Return the error of a system call for one of Twisted's.
    """
    cause = reason.socketError
    number = getattr(cause, "errno", None)
    if not isinstance(number, int):
        number = errno.EADDRNOTAVAIL
    return OSError(number, f"{os.strerror(number)} (SDP: {getattr(cause, 'strerror', None) or cause})")


__all__ = ["Listening", "osError"]
