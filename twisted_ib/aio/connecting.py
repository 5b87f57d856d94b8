"""
Connecting through the switch for asyncio: SDP where it is offered, else TCP's turn.
"""

from __future__ import annotations

import socket
from asyncio import Future
from typing import TYPE_CHECKING, Any

from twisted.python.failure import Failure

from twisted_ib.aio.streamsocket import ClientStream, StreamSocket
from twisted_ib.internet.failures import osError
from twisted_ib.switch.connecting import Attempt

if TYPE_CHECKING:
    from twisted_ib.aio.reactor import LoopReactor
    from twisted_ib.internet.addressing.addresses import Address, End
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.switch.serverclient import RedirectedClient
    from twisted_ib.switch.switch import Switch


class SwitchedConnect:
    """
    The connect of one address; to its L{Attempt} the face, and to its transport the connector.  See
    L{Face<twisted_ib.switch.connecting.Face>}.

    @ivar attempt: The attempt that connects.
    """

    def __init__(
        self, reactor: LoopReactor, switch: Switch, address: tuple[Any, ...], bound: socket.socket | None
    ) -> None:
        """
        @param address: The peer's socket address.
        @param bound: The socket that the application has bound to a local address, or L{None}.
        """
        self.reactor = reactor
        self.attempt = Attempt(switch, self)
        self._address = withScope(address)
        self._bound = bound
        self._done: Future[StreamSocket | None] = reactor.events.create_future()

    async def connect(self) -> StreamSocket | None:
        """
        Connect over SDP, if the rules want it and it is offered.

        @return: The stream; L{None} if it is TCP's turn.
        @raise OSError: SDP alone was to be tried, and failed.
        """
        done = self._done
        try:
            self.attempt.begin(*self._address, None)
            return await done
        except BaseException:
            self.attempt.cancel()
            if done.done() and not done.cancelled() and done.exception() is None:
                stream = done.result()
                if stream is not None:
                    stream.close()
            raise

    # -- for the attempt

    def boundPair(self) -> tuple[str, int]:
        return ("", 0) if self._bound is None else withScope(self._bound.getsockname())

    def makeTransport(self, channel: DeviceChannel, host: End, peer: Address) -> RedirectedClient:
        return ClientStream(channel, host, peer, self)

    def buildProtocol(self, addr: object) -> Any:
        return StreamSocket(self._connected)

    def carried(self, transport: RedirectedClient) -> socket.socket | None:
        bound, self._bound = self._bound, None
        return bound

    def _connected(self, stream: StreamSocket) -> None:
        if self._done.done():
            # Cancelled.  A turn later, when what came with the answer is known to be unread.
            self.reactor.events.call_soon(stream.close)
        else:
            self._done.set_result(stream)

    def overTCP(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def failed(self, reason: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(osError(reason))

    def connectionLost(self, reason: Failure) -> None:
        """
        The connection has ended, or the event loop closes while there is none.
        """


def withScope(address: tuple[Any, ...]) -> tuple[str, int]:
    """
    Return a socket address's host and port; as Twisted writes it, the zone (RFC 4007 section 11) is part of
    the host.
    """
    host: str
    port: int
    host, port = address[:2]
    if len(address) == 4 and address[3] and "%" not in host:
        host = f"{host}%{address[3]}"
    return host, port
