"""
Connecting through the switch: SDP first where it is offered, else TCP.

An L{Attempt} is the one client of the switch: it decides, tries SDP, and falls back.  The difference between
the calls of an application is its L{Face}: Twisted's TCP client here, a future of asyncio's, a blocking
socket.
"""

from __future__ import annotations

import os
from errno import ECONNREFUSED
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet import error, tcp
from twisted.python.failure import Failure

from twisted_ib.configuration.words import CONNECT, SDP, TCP
from twisted_ib.switch.reason import UNASKED, Fallback, Reason, carried

if TYPE_CHECKING:
    import socket

    from twisted.internet.base import ReactorBase
    from twisted.internet.interfaces import IAddress, IProtocol

    from twisted_ib.internet.addressing.addresses import Address, End
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.switch.offload import Offload
    from twisted_ib.switch.serverclient import RedirectedClient
    from twisted_ib.switch.switch import Switch


class Face(Protocol):
    """
    The questions of an attempt to the call that it serves.  It says how the attempt ends by one call of
    C{carried}, C{overTCP} or C{failed}, which may come while it begins; by none after L{Attempt.cancel}.
    """

    @property
    def reactor(self) -> ReactorBase:
        """
        The reactor that serves the devices.
        """

    def boundPair(self) -> tuple[str, int]:
        """
        Return the local address and port that the application bound; empty and 0 for any.
        """

    def makeTransport(self, channel: DeviceChannel, host: End, peer: Address) -> RedirectedClient:
        """
        Make the transport over SDP.
        """

    def buildProtocol(self, addr: IAddress) -> IProtocol | None:
        """
        Return the application's protocol; TCP is not tried any more.
        """

    def carried(self, transport: RedirectedClient) -> socket.socket | None:
        """
        SDP carries the connection.

        @return: The socket that reserves the local port, if there is one.
        """

    def overTCP(self) -> None:
        """
        It is TCP's turn.
        """

    def failed(self, reason: Exception) -> None:
        """
        There is no connection, and TCP is not to be tried.

        @param reason: As of C{connectionFailed}.
        """

    def connectionLost(self, reason: Failure) -> None:
        """
        The reactor stops, or the event loop closes, before the attempt has begun.
        """


class Attempt:
    """
    One connect through the switch.

    @ivar switch: The reactor's switch.
    @ivar face: The application's call.
    @ivar why: The decision.
    @ivar address: The peer's host and port, once it has begun.
    """

    address: tuple[str, int]

    def __init__(self, switch: Switch, face: Face) -> None:
        self.switch = switch
        self.face = face
        self.why = Reason("default", TCP, asked=face.reactor.seconds())
        self._offload: Offload | None = None

    def begin(self, host: str, port: int, timeout: float | None, blocks: bool = False) -> None:
        """
        Decide, and try SDP where it is offered.

        @param timeout: The application's for the whole connect, in seconds; L{None} without one.
        @param blocks: Whether it is a blocking socket's.
        """
        self.address = host, port
        switch, why = self.switch, self.why
        decision = switch.decide(CONNECT, host, port)
        why.rule, why.verdict = decision.where, decision.verdict
        found = switch.candidatesFor(self.face.reactor, decision.verdict, host, port, blocks)
        if found is None:
            self._overTCP()
        elif isinstance(found, Fallback):
            self.fallBack(found)
        else:
            try:
                from twisted_ib.switch.offload import Offload
            except (ImportError, OSError, MemoryError) as e:
                self.fallBack(Fallback("unloadable", str(e)))
                return
            # Not both at a time as in RFC 8305: a server that has both would accept a TCP connection that
            # closes at once, and its application would see it.
            self._offload = Offload(self, found, switch.seconds(decision.verdict, timeout))

    def cancel(self) -> None:
        """
        The application or its timeout has ended the connect, or it is over.
        """
        offload, self._offload = self._offload, None
        if offload is not None:
            offload.cancel()

    def _overTCP(self) -> None:
        why = self.why
        why.provider, why.decided = TCP, self.face.reactor.seconds()
        self.switch.settled(CONNECT, why, *self.address)
        self.face.overTCP()

    def fallBack(self, fallback: Fallback, reason: Exception | None = None) -> None:
        """
        SDP does not carry the connection: TCP does, if the rules allow it.

        @param reason: The last error; L{None} if SDP was not tried.
        """
        self._offload = None
        self.switch.fellBack(self.why, fallback, *self.address)
        if self.why.verdict != SDP:
            self._overTCP()
        elif fallback.kind in UNASKED:
            # SDP was not even tried, as nothing can listen there: the error is TCP's for that.
            self.face.failed(error.getConnectError((ECONNREFUSED, os.strerror(ECONNREFUSED))))
        else:
            refused = error.ConnectionRefusedError(ECONNREFUSED)
            self.face.failed(_withReason(reason or refused, fallback, True))

    def carried(self, transport: RedirectedClient, device: str) -> None:
        """
        SDP carries the connection.
        """
        self._offload = None
        transport.why = why = self.why
        why.provider, why.device = SDP, device
        why.decided = why.connected = self.face.reactor.seconds()
        carried(SDP, why)
        self.switch.settled(CONNECT, why, *self.address)
        transport.bound = self.face.carried(transport)

    def failed(self, reason: Exception) -> None:
        """
        The attempt ended after the application was asked for a protocol: there is no fallback.
        """
        self._offload = None
        self.face.failed(reason)


class SwitchedClient(tcp.Client):
    """
    The client of a L{SwitchedConnector} while it connects, and afterwards if TCP carries the connection.
    When it has its socket and the peer's address, and would connect, it asks the switch.  See L{Face}.

    @ivar attempt: The attempt that connects.
    @ivar why: The decision.
    """

    why: Reason
    reactor: Any
    _isBound = False

    def __init__(self, host: Any, port: Any, bindAddress: Any, connector: Any, reactor: ReactorBase) -> None:
        self.reactor = reactor
        self.attempt = Attempt(connector.switch, self)
        self.why = self.attempt.why
        super().__init__(host, port, bindAddress, connector, reactor)
        self._isBound = bindAddress is not None

    def _setRealAddress(self, address: Any) -> None:
        # tcp.BaseClient calls doConnect() next, and again for each event of the socket: the decision is made
        # the first time.
        self._choosing = True
        super()._setRealAddress(address)

    _choosing = False

    def doConnect(self) -> None:
        if self._choosing:
            self._choosing = False
            if hasattr(self, "connector"):
                host, port = self.realAddress[:2]
                self.attempt.begin(host, port, self.connector.timeout)
            return
        super().doConnect()

    # -- for the attempt

    def overTCP(self) -> None:
        super().doConnect()

    def failed(self, reason: Exception) -> None:
        self.failIfNotConnected(reason)

    def boundPair(self) -> tuple[str, int]:
        if not self._isBound:
            return "", 0
        # With the scope of a link-local address (RFC 4007 section 11).
        name = tcp._getsockname(self.socket)
        return str(name[0]), name[1]

    def makeTransport(self, channel: DeviceChannel, host: End, peer: Address) -> RedirectedClient:
        from twisted_ib.switch.serverclient import RedirectedClient

        return RedirectedClient(channel, host, peer, self.connector)

    def buildProtocol(self, addr: IAddress) -> Any:
        return self.connector.buildProtocol(addr)

    def carried(self, transport: RedirectedClient) -> Any:
        # Not connectionLost(): the connector would report a failure.  The socket has sent no SYN yet (RFC
        # 9293 section 3.5), so the peer notices nothing.
        self.disconnected = 1
        skt = self.socket
        self.connector.transport = transport
        del self.connector, self.socket, self.fileno
        if self._isBound:
            return skt
        skt.close()
        return None

    # -- for TCP

    def _connectDone(self) -> None:
        self.why.connected = self.reactor.seconds()
        carried(TCP, self.why)
        switch = self.connector.switch
        switch.clients.add(self)
        switch.shown(self)
        super()._connectDone()

    def failIfNotConnected(self, err: Any) -> None:
        # With the errors of both providers.
        if self.connected or self.disconnected or not hasattr(self, "connector"):
            return
        self.attempt.cancel()
        fallback = self.why.fallback
        if fallback is not None and self.why.verdict != SDP and fallback.kind not in UNASKED:
            err = _withReason(err, fallback)
        super().failIfNotConnected(err)


class SwitchedConnector(tcp.Connector):
    """
    The connector that C{connectTCP} returns unless the rules leave everything to TCP.

    @ivar switch: The reactor's switch.
    @ivar why: The decision about the last attempt.
    """

    why: Reason

    def __init__(
        self,
        switch: Switch,
        host: Any,
        port: Any,
        factory: Any,
        timeout: Any,
        bindAddress: Any,
        reactor: ReactorBase,
    ) -> None:
        self.switch = switch
        super().__init__(host, port, factory, timeout, bindAddress, reactor)

    def _makeTransport(self) -> SwitchedClient:
        client = SwitchedClient(self.host, self.port, self.bindAddress, self, self.reactor)
        self.why = client.why
        return client


def _withReason(reason: Any, fallback: Fallback, alone: bool = False) -> Any:
    value = reason.value if isinstance(reason, Failure) else reason
    # The type and errno stay TCP's: programs handle ConnectionRefusedError, and retry.  UserError is the
    # program's own.
    if not isinstance(value, error.ConnectError) or isinstance(value, error.UserError):
        if not isinstance(value, error.TimeoutError):
            return reason
    text = str(value.args[0]) if value.args and value.args[0] else ""
    said = str(fallback) if str(fallback).startswith("SDP ") else f"SDP: {fallback}"
    both = f"{text} ({said})" if text and not alone else said
    try:
        return type(value)(value.osError, both)
    except TypeError:
        return reason
