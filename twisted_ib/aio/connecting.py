"""
Connecting through the switch for asyncio: SDP where it is offered, else TCP's turn.
"""

from __future__ import annotations

import errno
import os
import socket
from asyncio import Future
from typing import TYPE_CHECKING, Any

from twisted.python.failure import Failure

from twisted_ib.aio.streamsocket import ClientStream, StreamSocket, osError
from twisted_ib.configuration.parser import CONNECT, SDP, TCP
from twisted_ib.reactor.switch.offload import Offload
from twisted_ib.reactor.switch.reason import UNASKED, Fallback, Reason

if TYPE_CHECKING:
    from twisted_ib.aio.reactor import LoopReactor
    from twisted_ib.reactor.switch.switch import Switch


class SwitchedConnect:
    """
    The attempts over SDP for one address; to L{Offload} the client and its connector.

    @ivar switch: The reactor's switch.
    @ivar why: The decision.
    @ivar offload: The attempts, while they last.
    """

    transportClass = ClientStream
    timeout = None
    offload: Offload | None = None

    def __init__(
        self, reactor: LoopReactor, switch: Switch, address: Any, bound: socket.socket | None
    ) -> None:
        """
        @param address: The peer's socket address.
        @param bound: The socket that the application has bound to a local address, or L{None}.
        """
        self.reactor = reactor
        self.switch = switch
        self.realAddress = _withScope(address)
        self.why = Reason("default", TCP, asked=reactor.seconds())
        self.transport: Any = None
        self._bound = bound
        self._done: Future[StreamSocket | None] = reactor.events.create_future()

    @property
    def connector(self) -> SwitchedConnect:
        """
        This object.
        """
        return self

    async def connect(self) -> StreamSocket | None:
        """
        Connect over SDP, if the rules want it and it is offered.

        @return: The stream; L{None} if it is TCP's turn.
        @raise OSError: SDP alone was to be tried, and failed.
        """
        switch, why = self.switch, self.why
        host, port = self.realAddress
        decision = switch.decide(CONNECT, host, port)
        why.rule, why.verdict = decision.where, decision.verdict
        found = switch.candidatesFor(self.reactor, decision.verdict, host, port)
        if found is None:
            self._overTCP()
            return None
        if isinstance(found, Fallback):
            self._fallBack(found)
            return None
        self.offload = Offload(self, found, switch.seconds(decision.verdict, None))
        try:
            return await self._done
        except BaseException:
            offload, self.offload = self.offload, None
            if offload is not None:
                offload.cancel()
            elif self._done.done() and not self._done.cancelled() and self._done.exception() is None:
                stream = self._done.result()
                if stream is not None:
                    stream.close()
            raise

    def _overTCP(self) -> None:
        why, (host, port) = self.why, self.realAddress
        why.provider, why.decided = TCP, self.reactor.seconds()
        self.switch.settled(CONNECT, why, host, port)

    def _fallBack(self, fallback: Fallback, reason: Exception | None = None) -> None:
        host, port = self.realAddress
        self.switch.fellBack(self.why, fallback, host, port)
        if self.why.verdict != SDP:
            self._overTCP()
        elif fallback.kind in UNASKED:
            # SDP was not even tried, as nothing can listen there: the error is TCP's for that.
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        else:
            number = errno.ECONNREFUSED if reason is None else osError(reason).errno
            raise OSError(number, str(fallback) if str(fallback).startswith("SDP ") else f"SDP: {fallback}")

    # -- for Offload

    def boundPair(self) -> tuple[str, int]:
        """
        Return the local address and port that the application bound; empty and 0 for any.
        """
        return ("", 0) if self._bound is None else _withScope(self._bound.getsockname())

    def replaced(self) -> socket.socket | None:
        """
        SDP carries the connection.

        @return: The socket that reserves the local port, if there is one.
        """
        self.offload = None
        bound, self._bound = self._bound, None
        return bound

    def buildProtocol(self, addr: Any) -> StreamSocket:
        """
        Return the stream's protocol.
        """
        return StreamSocket(self._connected)

    def _connected(self, stream: StreamSocket) -> None:
        if self._done.done():
            # Cancelled.
            stream.close()
        else:
            self._done.set_result(stream)

    def offloadFailed(self, fallback: Fallback, reason: Exception) -> None:
        """
        All attempts over SDP failed.

        @param reason: The last error.
        """
        self.offload = None
        if self._done.done():
            return
        try:
            self._fallBack(fallback, reason)
        except OSError as e:
            self._done.set_exception(e)
        else:
            self._done.set_result(None)

    def failIfNotConnected(self, reason: Exception) -> None:
        """
        The attempts ended, and TCP is not to be tried.
        """
        self.offload = None
        if not self._done.done():
            self._done.set_exception(osError(reason))

    def connectionLost(self, reason: Failure) -> None:
        """
        The connection has ended, or the event loop closes while there is none.
        """


def _withScope(address: Any) -> tuple[str, int]:
    # RFC 4007 section 11: as Twisted writes it, the zone is part of the address.
    host, port = address[:2]
    if len(address) == 4 and address[3] and "%" not in host:
        host = f"{host}%{address[3]}"
    return host, port


__all__ = ["SwitchedConnect"]
