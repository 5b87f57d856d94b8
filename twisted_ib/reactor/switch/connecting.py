"""
Connecting through the switch: SDP first where it is offered, else TCP.

A L{SwitchedClient} is Twisted's TCP client.  When it has its socket and the peer's address, and would
connect, it asks the switch; where SDP is offered an L{Offload} tries it while the socket waits.  The
connector gets one result.
"""

from __future__ import annotations

import os
from errno import ECONNREFUSED
from typing import TYPE_CHECKING, Any

from twisted.internet import error, tcp
from twisted.python.failure import Failure

from twisted_ib.configuration.parser import CONNECT, SDP, TCP
from twisted_ib.reactor.switch.reason import UNASKED, Fallback, Reason

if TYPE_CHECKING:
    from twisted_ib.reactor.switch.offload import Offload
    from twisted_ib.reactor.switch.serverclient import RedirectedClient
    from twisted_ib.reactor.switch.switch import Switch


class SwitchedClient(tcp.Client):
    """
    The client of a L{SwitchedConnector} while it connects, and afterwards if TCP carries the connection.

    @ivar why: The decision.
    @ivar offload: The attempts over SDP, while they last.
    """

    why: Reason
    reactor: Any
    offload: Offload | None = None
    _isBound = False

    def __init__(self, host: Any, port: Any, bindAddress: Any, connector: Any, reactor: Any) -> None:
        self.why = Reason("default", TCP, asked=reactor.seconds())
        super().__init__(host, port, bindAddress, connector, reactor)
        self._isBound = bindAddress is not None

    def _setRealAddress(self, address: Any) -> None:
        # tcp.BaseClient calls doConnect() next, and again for each event of the socket: the decision is made
        # the first time.
        self._choosing = True
        super()._setRealAddress(address)

    _choosing = False

    def doConnect(self) -> None:
        """
        Connect; decide first.
        """
        if self._choosing:
            self._choosing = False
            if hasattr(self, "connector"):
                self._choose()
            return
        super().doConnect()

    def _choose(self) -> None:
        switch, why = self.connector.switch, self.why
        host, port = self.realAddress[:2]
        decision = switch.decide(CONNECT, host, port)
        why.rule, why.verdict = decision.where, decision.verdict
        found = switch.candidatesFor(self.reactor, decision.verdict, host, port)
        if isinstance(found, Fallback):
            self._goOn(found)
        elif found:
            try:
                from twisted_ib.reactor.switch.offload import Offload
            except (ImportError, OSError, MemoryError) as e:
                self._goOn(Fallback("unloadable", str(e)))
                return
            seconds = switch.seconds(decision.verdict, self.connector.timeout)
            # Not both at a time as in RFC 8305: a server that has both would accept a TCP connection that
            # closes at once, and its application would see it.
            self.offload = Offload(self, found, seconds)
        else:
            super().doConnect()

    def _goOn(self, fallback: Fallback, reason: Exception | None = None) -> None:
        self.connector.switch.fellBack(self.why, fallback, *self.realAddress[:2])
        if self.why.verdict == SDP and fallback.kind in UNASKED:
            # SDP was not even tried, as nothing can listen there: the error is TCP's for that.
            self.failIfNotConnected(error.getConnectError((ECONNREFUSED, os.strerror(ECONNREFUSED))))
        elif self.why.verdict == SDP:
            self.failIfNotConnected(_withReason(reason or error.ConnectError(), fallback, True))
        else:
            super().doConnect()

    def offloadFailed(self, fallback: Fallback, reason: Exception) -> None:
        """
        All attempts over SDP failed.

        @param reason: The last error.
        """
        self.offload = None
        self._goOn(fallback, reason)

    def boundPair(self) -> tuple[str, int]:
        """
        Return the local address and port that the application bound; empty and 0 for any.
        """
        if not self._isBound:
            return "", 0
        # With the scope of a link-local address (RFC 4007 section 11).
        name = tcp._getsockname(self.socket)
        return str(name[0]), name[1]

    def replaced(self) -> Any:
        """
        SDP carries the connection: end this client without notifying anybody.

        @return: The socket, if it reserves the local port; else L{None}.
        """
        self.offload = None
        # Not connectionLost(): the connector would report a failure.  The socket has sent no SYN yet (RFC
        # 9293 section 3.5), so the peer notices nothing.
        self.disconnected = 1
        skt = self.socket
        del self.connector, self.socket, self.fileno
        if self._isBound:
            return skt
        skt.close()
        return None

    def _connectDone(self) -> None:
        why = self.why
        why.provider = TCP
        why.decided = why.connected = self.reactor.seconds()
        switch = self.connector.switch
        switch.clients.add(self)
        switch.settled(CONNECT, why, *self.realAddress[:2])
        switch.shown(self)
        super()._connectDone()

    def failIfNotConnected(self, err: Any) -> None:
        """
        Notify the connector once, with the errors of both providers.
        """
        if self.connected or self.disconnected or not hasattr(self, "connector"):
            return
        offload, self.offload = self.offload, None
        if offload is not None:
            offload.cancel()
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

    @property
    def transportClass(self) -> type[RedirectedClient]:
        """
        The class of its transports over SDP, imported when SDP is offered.
        """
        from twisted_ib.reactor.switch.serverclient import RedirectedClient

        return RedirectedClient

    def __init__(
        self, switch: Switch, host: Any, port: Any, factory: Any, timeout: Any, bindAddress: Any, reactor: Any
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


__all__ = ["SwitchedClient", "SwitchedConnector"]
