"""
A connection of C{ib-perf}, at either end.

It begins with a talk of JSON objects, a line each, in turns: the client asks, the server answers.
The first connection of a client goes on with that and is its control connection; on the others
what follows is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from typing import Protocol as Shape

from twisted.internet.interfaces import ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

#: Bytes of one line of the talk between server and client.
PERF_LINE = 4096


class Owner(Shape):
    """
    Whose a connection is: the server or the client.
    """

    def made(self, link: Link) -> None:
        """
        @param link: is connected.
        """

    def heard(self, link: Link, message: dict[str, Any]) -> None:
        """
        @param link: where something was said.
        @param message: what.
        """

    def lost(self, link: Link, reason: Failure) -> None:
        """
        @param link: has ended.
        @param reason: why.
        """


class Link(Protocol):
    """
    One connection.

    @ivar take: who gets the bytes that come.
    @ivar strange: whether the other end said what is no part of the talk.
    @ivar memory: what the test has registered for it.
    """

    transport: Any

    def __init__(self, owner: Owner) -> None:
        """
        @param owner: whose it is.
        """
        self._owner = owner
        self._partial = b""
        self.take: Callable[[bytes], Any] = self._talk
        self.strange = False
        self.memory: Any = None

    def connectionMade(self) -> None:
        """
        Both ends know it.
        """
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self._owner.made(self)

    def dataReceived(self, data: bytes) -> None:
        """
        @param data: bytes, or a message.
        """
        self.take(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        @param reason: why it ended.
        """
        self._owner.lost(self, reason)

    def say(self, **message: Any) -> None:
        """
        @param message: something for the other end.
        """
        self.transport.write(json.dumps(message).encode("ascii") + b"\n")

    def distrust(self) -> None:
        """
        End the connection: the other end is no ib-perf.
        """
        self.strange = True
        self.transport.abortConnection()

    def _talk(self, data: bytes) -> None:
        """
        @param data: a part of a line.
        """
        self._partial += data
        line, end, rest = self._partial.partition(b"\n")
        if rest or len(line) > PERF_LINE:
            self.distrust()
        elif end:
            self._partial = b""
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                self._owner.heard(self, message)
            else:
                self.distrust()
