"""
The applications of C{ib-perf compare} under Twisted: an echo, a sink, and their clients.

They are plain protocols: nothing here knows which transport it runs on.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer, IPushProducer, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


#: Before a stream: how many bytes follow, and whether to hash them.
HEAD: Packed[tuple[int, int]] = struct.Struct(">QB")


class IStream(ITCPTransport, IConsumer):
    """
    A transport of a stream.
    """


class Echo(Protocol):
    """
    Send back what comes.
    """

    transport: IStream

    def dataReceived(self, data: bytes) -> None:
        self.transport.write(data)


class Sink(Protocol):
    """
    Swallow a stream of announced length and acknowledge its last byte with 32
    bytes: the SHA-256 of the stream, or zeros when it was not asked for.
    """

    transport: IStream

    _remaining = 0
    _head = b""

    def __init__(self) -> None:
        """
        Nothing is announced yet.
        """
        self._hash = hashlib.sha256()
        self._hashing: int = False

    def dataReceived(self, data: bytes) -> None:
        length = len(data)
        if length < self._remaining and not self._hashing:
            self._remaining -= length
        else:
            self._edge(data)

    def _edge(self, data: bytes) -> None:
        # The rare cases: an announcement, a checked stream, the last byte.
        if not self._remaining:
            self._head += data
            if len(self._head) < HEAD.size:
                return
            self._remaining, self._hashing = HEAD.unpack_from(self._head)
            data, self._head = self._head[HEAD.size :], b""
            self._hash = hashlib.sha256()
        if self._hashing:
            self._hash.update(data)
        self._remaining -= len(data)
        assert self._remaining >= 0, "more bytes than announced"
        if not self._remaining:
            digest = self._hash.digest() if self._hashing else bytes(32)
            self.transport.write(digest)


class _Waiting(Protocol):
    """
    A client protocol with at most one operation under way.
    """

    transport: IStream

    # Of the class, and made when needed: idle connections are weighed.
    _done: Deferred[bytes] | None = None
    _lost: Deferred[None] | None = None
    _isLost = False

    def _finish(self, result: bytes) -> None:
        done, self._done = self._done, None
        assert done is not None
        done.callback(result)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._done is not None:
            done, self._done = self._done, None
            done.errback(reason)
        self._isLost = True
        if self._lost is not None:
            self._lost.callback(None)

    def close(self) -> Deferred[None]:
        # Close the connection; fires when it is gone.
        self._lost = Deferred()
        if self._isLost:
            self._lost.callback(None)
        else:
            self.transport.loseConnection()
        return self._lost


class Caller(_Waiting):
    """
    Send a message, wait until as many bytes are back, and again, until a
    moment has passed.
    """

    _message = b""
    _deadline = _sentAt = _arrived = 0

    def call(self, message: bytes, deadline: int, times: list[int]) -> Deferred[bytes]:
        """
        Begin.

        @param deadline: No new message after this moment of
            C{perf_counter_ns}.
        @param times: Each round trip's nanoseconds are appended to it.
        """
        self._message, self._deadline, self._times = message, deadline, times
        self._arrived = 0
        self._done = Deferred()
        self._sentAt = perf_counter_ns()
        self.transport.write(message)
        return self._done

    def dataReceived(self, data: bytes) -> None:
        self._arrived += len(data)
        if self._arrived < len(self._message):
            return
        now = perf_counter_ns()
        self._times.append(now - self._sentAt)
        if now >= self._deadline:
            self._finish(data)
            return
        self._arrived = 0
        self._sentAt = perf_counter_ns()
        self.transport.write(self._message)


class Collector(_Waiting):
    """
    Send one message and hand over its whole echo.
    """

    def collect(self, message: bytes) -> Deferred[bytes]:
        """
        Begin; fires with the bytes that came back.
        """
        self._parts: list[bytes] = []
        self._wanted = len(message)
        self._done = Deferred()
        self.transport.write(message)
        return self._done

    def dataReceived(self, data: bytes) -> None:
        self._parts.append(data)
        self._wanted -= len(data)
        if self._wanted <= 0:
            self._finish(b"".join(self._parts))


@implementer(IPushProducer)
class Source(_Waiting):
    """
    Write a stream as fast as the transport wants it.
    """

    _left = 0
    _paused = False
    _acknowledged = b""

    def send(self, chunks: Sequence[bytes], count: int, hashing: bool = False) -> Deferred[bytes]:
        """
        Write C{count} chunks, round and round; fires with the
        acknowledgement of the last byte.
        """
        size = len(chunks[0])
        self._chunks, self._left, self._next = chunks, count, 0
        self._acknowledged = b""
        self._done = Deferred()
        self.transport.write(HEAD.pack(size * count, hashing))
        self.transport.registerProducer(self, True)
        self.resumeProducing()
        return self._done

    def resumeProducing(self) -> None:
        self._paused = False
        write = self.transport.write
        if len(self._chunks) == 1:
            chunk = self._chunks[0]
            while self._left and not self._paused:
                self._left -= 1
                write(chunk)
        else:
            while self._left and not self._paused:
                self._left -= 1
                chunk = self._chunks[self._next]
                self._next = (self._next + 1) % len(self._chunks)
                write(chunk)
        if not self._left:
            self.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        self._paused = True

    def stopProducing(self) -> None:
        self._left = 0
        self._paused = True

    def dataReceived(self, data: bytes) -> None:
        self._acknowledged += data
        if len(self._acknowledged) == 32:
            self._finish(self._acknowledged)
