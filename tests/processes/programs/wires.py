"""
One end of a connection, as a L{tests.processes.programs.peer.Peer} has many.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

if TYPE_CHECKING:
    from tests.processes.programs.peer import Peer

#: One write of a long stream.
CHUNK_BYTES = 64 * 1024


def content(seed: int, length: int) -> bytes:
    """
    Bytes that can be made again on the other side.

    @param seed: other seeds give other bytes.
    @param length: how many.

    @return: the bytes.
    """
    return random.Random(seed).randbytes(length)


@implementer(IPushProducer)
class Wire(Protocol):
    """
    One end of a connection, under a number.

    @ivar received: bytes that came.
    @ivar written: bytes that L{stream} wrote.
    """

    received = written = 0
    _left = 0
    _paused = False
    _awaited: tuple[int, Deferred[None]] | None = None

    def __init__(self, program: Peer, accepted: bool) -> None:
        """
        @param program: told what happens.
        @param accepted: the other end connected.
        """
        self._accepted = accepted
        self._program = program
        self.digest = hashlib.sha256()
        self.number = program.adopt(self)

    def connectionMade(self) -> None:
        """
        The connection is there.
        """
        if self._accepted:
            self._program.tell("made", wire=self.number)

    def dataReceived(self, data: bytes) -> None:
        """
        Bytes came.
        """
        self.received += len(data)
        self.digest.update(data)
        if self._awaited is not None and self.received >= self._awaited[0]:
            awaited, self._awaited = self._awaited[1], None
            awaited.callback(None)

    def waitFor(self, count: int) -> Deferred[None]:
        """
        @param count: bytes in all.

        @return: fires when so many have come.
        """
        if self.received >= count:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._awaited = (count, done)
        return done

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        The connection is gone.
        """
        self._left = 0
        if self._awaited is not None:
            awaited, self._awaited = self._awaited[1], None
            awaited.errback(reason)
        self._program.lost(self, type(reason.value).__name__, reason.getErrorMessage())

    def stream(self, chunk: bytes, count: int) -> None:
        """
        Write as the transport asks for it.

        @param chunk: what to write.
        @param count: how often.
        """
        self._chunk, self._left = chunk, count
        transport: Any = self.transport
        transport.registerProducer(self, True)
        self.resumeProducing()

    def resumeProducing(self) -> None:
        """
        Write until told to pause.
        """
        self._paused = False
        transport: Any = self.transport
        while self._left and not self._paused:
            self._left -= 1
            self.written += len(self._chunk)
            transport.write(self._chunk)
        if not self._left:
            transport.unregisterProducer()
            self._program.tell("streamed", wire=self.number)

    def pauseProducing(self) -> None:
        """
        The transport has enough.
        """
        self._paused = True

    @property
    def progress(self) -> int | None:
        """
        @return: the chunks left while the transport has enough; None while it
            wants more.
        """
        return self._left if self._paused and self._left else None

    def stopProducing(self) -> None:
        """
        The connection is gone.
        """
        self._left = 0


class Echo(Wire):
    """
    Sends back what comes.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Bytes came.
        """
        super().dataReceived(data)
        transport: Any = self.transport
        transport.write(data)
