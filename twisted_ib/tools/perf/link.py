"""
A connection of C{ib-perf}, at either end.

It begins with a dialogue of JSON objects, one per line: the client asks, the server answers.  A client's
first connection continues so and is its control connection; on the others the measured data follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from typing import Protocol as Shape

from twisted.internet.interfaces import ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

#: The longest line of the dialogue, in bytes.
PERF_LINE = 4096


class Owner(Shape):
    """
    The owner of a connection: the server or the client.
    """

    def made(self, link: Link) -> None:
        """
        Handle a new connection.
        """

    def heard(self, link: Link, message: dict[str, Any]) -> None:
        """
        Handle a message of the dialogue.
        """

    def lost(self, link: Link, reason: Failure) -> None:
        """
        Handle the end of a connection.
        """


class Link(Protocol):
    """
    One connection.

    @ivar take: Receives the data.
    @ivar strange: Whether the peer violated the dialogue.
    @ivar memory: The test's registered memory.
    """

    transport: Any

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._partial = b""
        self.take: Callable[[bytes], Any] = self._talk
        self.strange = False
        self.memory: Any = None

    def connectionMade(self) -> None:
        # With Nagle's algorithm a message would wait for the acknowledgement of the one before (RFC 9293
        # section 3.7.4).
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self._owner.made(self)

    def dataReceived(self, data: bytes) -> None:
        # A replaceable attribute costs one call less than a test of the phase for each message.
        self.take(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._owner.lost(self, reason)

    def say(self, **message: Any) -> None:
        """
        Send a message of the dialogue.
        """
        self.transport.write(json.dumps(message).encode("ascii") + b"\n")

    def distrust(self) -> None:
        """
        Abort the connection: the peer is no C{ib-perf}.
        """
        self.strange = True
        self.transport.abortConnection()

    def _talk(self, data: bytes) -> None:
        self._partial += data
        line, end, rest = self._partial.partition(b"\n")
        # Strictly in turns: bytes after the line, or a line without end, come from another program.
        if rest or len(line) > PERF_LINE:
            self.distrust()
        elif end:
            self._partial = b""
            try:
                message = json.loads(line)
            # Deeply nested JSON exhausts the interpreter's stack: RecursionError.
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                self._owner.heard(self, message)
            else:
                self.distrust()
