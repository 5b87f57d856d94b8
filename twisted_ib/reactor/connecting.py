"""
Connecting through the switch: SDP first where it is offered, and TCP.

A L{SwitchedClient} is Twisted's TCP client.  When it has its socket and the peer's address, and would
connect, it asks the switch; where SDP is offered an L{Offload} tries that, and the socket waits.  What
succeeds first tells the connector, once; nothing is sent before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet import error, tcp
from twisted.python.failure import Failure

from twisted_ib.errors import NoListenerError
from twisted_ib.hca.channel import DeviceChannel
from twisted_ib.hca.endpoints import failures
from twisted_ib.hca.endpoints.addresses import Address, withPort
from twisted_ib.hca.endpoints.connector import Attempt
from twisted_ib.reactor.ends import RedirectedClient
from twisted_ib.reactor.rules import CONNECT, SDP, TCP
from twisted_ib.reactor.ways import UNASKED, Candidate
from twisted_ib.reactor.why import Fallback, Why
from twisted_ib.sdp import handshake

if TYPE_CHECKING:
    from twisted_ib.reactor.switch import Switch


class _SwitchedAttempt(Attempt):
    """
    An attempt that reaches the one HCA whose server has the TCP socket.
    """

    _connector: Any

    def _search(self, channel: DeviceChannel) -> Any:
        """
        Have the device look for the path.
        """
        counterpart = self._connector.candidate.counterpart
        if counterpart is None:
            return super()._search(channel)
        return channel.device.fabric.reach(counterpart.guid, self)

    def _ask(self) -> None:
        """
        Send a REQ, if the server is still the one that was found: there is time between the two.
        """
        if self._connector.stands():
            super()._ask()
        else:
            self._failed(NoListenerError("it listens no more"))

    def connectionLost(self, reason: Failure) -> None:
        """
        The reactor stops.
        """
        self._connector.client.connectionLost(reason)


class Offload:
    """
    The attempts over SDP of one client; to each attempt, the connector.

    @ivar client: Whose they are.
    @ivar candidate: The way that is being tried.
    @ivar chosen: The application was asked for a protocol: there is no other way any more.
    """

    handshake = handshake

    def __init__(self, client: SwitchedClient, candidates: list[Candidate], seconds: float) -> None:
        """
        Begin.

        @param candidates: The ways to try, in order; there is one at least.
        @param seconds: How long that may take.
        """
        self.client = client
        self.connector = client.connector
        self.reactor = client.reactor
        self.host, self.port = client.realAddress[:2]
        self.timeout = seconds
        self.bound = client.boundPair()
        self.chosen = False
        self._candidates = candidates
        self._reasons: list[Exception] = []
        self._timer = self.reactor.callLater(seconds, self._tooLate)
        self._next()

    def _next(self) -> None:
        """
        Try the next way.
        """
        self.candidate = self._candidates.pop(0)
        self.device = self.candidate.device
        self._attempt = _SwitchedAttempt(self)  # type: ignore[arg-type]

    def _tooLate(self) -> None:
        """
        SDP has had its part of the time.
        """
        self._candidates = []
        self._attempt.failIfNotConnected(error.TimeoutError())

    def cancel(self) -> None:
        """
        The application, or its timeout, gives up.
        """
        self._candidates = []
        self.chosen = True
        self._stopTimer()
        self.client = None  # type: ignore[assignment]
        self._attempt.failIfNotConnected(error.UserError())

    def _stopTimer(self) -> None:
        """
        Wait no more.
        """
        if self._timer.active():
            self._timer.cancel()

    # -- what an attempt asks of its connector

    def stands(self) -> bool:
        """
        @return: Whether the server still says that it has the TCP socket.
        """
        counterpart = self.candidate.counterpart
        return counterpart is None or self.connector.switch.stands(
            self.device, self.host, self.port, counterpart
        )

    def where(self, address: str | None = None) -> str:
        """
        Say where to, for error texts.
        """
        return f"SDP {withPort(self.host, self.port)}"

    def makeTransport(self, channel: DeviceChannel, host: Address, peer: Address) -> RedirectedClient:
        """
        Make the transport.
        """
        return RedirectedClient(channel, host, peer, self.connector)

    def buildProtocol(self, addr: Any) -> Any:
        """
        SDP it is.
        """
        self.chosen = True
        self._stopTimer()
        return self.connector.buildProtocol(addr)

    @property
    def transport(self) -> Any:
        """
        What the connector has.
        """
        return self.connector.transport

    @transport.setter
    def transport(self, transport: RedirectedClient) -> None:
        """
        The connection stands.
        """
        transport.bound = self.client.replaced()
        transport.why = why = self.client.why
        why.provider, why.device = SDP, self.device
        why.decided = why.connected = self.reactor.seconds()
        self.connector.switch.settled(CONNECT, why, self.host, self.port)
        self.connector.transport = transport

    def connectionFailed(self, reason: Failure) -> None:
        """
        One way has failed.
        """
        if self.client is None:
            return  # Nobody wants to know.
        if self.chosen:
            client = self.client
            client.offload = None
            client.failIfNotConnected(reason.value)
            return
        assert isinstance(reason.value, Exception)
        self._reasons.append(reason.value)
        if self.candidate.counterpart is not None:
            self.connector.switch.remember(
                self.reactor, self.host, self.port, self.candidate.counterpart
            )
        if self._candidates:
            self._next()
            return
        self._stopTimer()
        self.client.offloadFailed(self._reasons)


class SwitchedClient(tcp.Client):
    """
    What a L{SwitchedConnector} has while it connects, and afterwards if TCP carries the connection.

    @ivar why: What was decided, and why.
    @ivar offload: The attempts over SDP, while they last.
    """

    why: Why
    reactor: Any
    offload: Offload | None = None
    _isBound = False

    def __init__(self, host: Any, port: Any, bindAddress: Any, connector: Any, reactor: Any) -> None:
        """
        @param connector: The L{SwitchedConnector}.
        """
        self.why = Why("default", TCP, asked=reactor.seconds())
        super().__init__(host, port, bindAddress, connector, reactor)
        self._isBound = bindAddress is not None

    def _setRealAddress(self, address: Any) -> None:
        """
        The peer's address is known: choose.
        """
        self._choosing = True
        super()._setRealAddress(address)

    _choosing = False

    def doConnect(self) -> None:
        """
        Connect, but choose first.
        """
        if self._choosing:
            self._choosing = False
            if hasattr(self, "connector"):
                self._choose()
            return
        super().doConnect()

    def _choose(self) -> None:
        """
        Ask the switch.
        """
        switch, why = self.connector.switch, self.why
        host, port = self.realAddress[:2]
        decision = switch.decide(CONNECT, host, port)
        why.rule, why.verdict = decision.where, decision.verdict
        found = switch.waysTo(self.reactor, decision.verdict, host, port)
        if isinstance(found, Fallback):
            self._goOn(found)
        elif found:
            seconds = switch.seconds(decision.verdict, self.connector.timeout)
            self.offload = Offload(self, found, seconds)
        else:
            super().doConnect()

    def _goOn(self, fallback: Fallback) -> None:
        """
        SDP does not carry it.
        """
        self.connector.switch.fellBack(self.why, fallback)
        if self.why.verdict == SDP:
            self.failIfNotConnected(error.ConnectError(string=f"SDP: {fallback}"))
        else:
            super().doConnect()

    def offloadFailed(self, reasons: list[Exception]) -> None:
        """
        No attempt over SDP has succeeded.
        """
        self.offload = None
        if self.why.verdict == SDP:
            self.connector.switch.fellBack(self.why, _fallback(reasons))
            self.failIfNotConnected(reasons[-1])
        else:
            self._goOn(_fallback(reasons))

    def boundPair(self) -> tuple[str, int]:
        """
        @return: The local address and number that the application has bound; empty and 0 for any.
        """
        if not self._isBound:
            return "", 0
        name = self.socket.getsockname()
        return name[0], name[1]

    def replaced(self) -> Any:
        """
        SDP carries the connection: this is over.

        @return: The socket, if it holds the local number; else L{None}.
        """
        self.offload = None
        self.disconnected = 1
        skt = self.socket
        del self.connector, self.socket, self.fileno
        if self._isBound:
            return skt
        skt.close()
        return None

    def _connectDone(self) -> None:
        """
        TCP carries the connection.
        """
        why = self.why
        why.provider = TCP
        why.decided = why.connected = self.reactor.seconds()
        switch = self.connector.switch
        switch.clients.add(self)
        switch.settled(CONNECT, why, *self.realAddress[:2])
        super()._connectDone()

    def failIfNotConnected(self, err: Any) -> None:
        """
        Tell the connector once, with what each provider said.
        """
        if self.connected or self.disconnected or not hasattr(self, "connector"):
            return
        offload, self.offload = self.offload, None
        if offload is not None:
            offload.cancel()
        fallback = self.why.fallback
        if fallback is not None and fallback.kind not in UNASKED:
            err = _withReason(err, fallback)
        super().failIfNotConnected(err)


class SwitchedConnector(tcp.Connector):
    """
    What C{connectTCP} gives where policy does not leave everything to TCP.

    @ivar switch: The reactor's switch.
    """

    def __init__(
        self, switch: Switch, host: Any, port: Any, factory: Any, timeout: Any, bindAddress: Any, reactor: Any
    ) -> None:
        """
        @param switch: The reactor's switch.
        """
        self.switch = switch
        super().__init__(host, port, factory, timeout, bindAddress, reactor)

    def _makeTransport(self) -> SwitchedClient:
        """
        Begin.
        """
        return SwitchedClient(self.host, self.port, self.bindAddress, self, self.reactor)


def _fallback(reasons: list[Exception]) -> Fallback:
    """
    Say why SDP has failed.
    """
    last = reasons[-1]
    kind = "failed"
    if isinstance(last, error.TimeoutError | error.TCPTimedOutError):
        kind = "timeout"
    elif isinstance(last, error.ConnectionRefusedError):
        kind = "refused"
    return Fallback(kind, "; ".join(_textOf(each) for each in reasons))


def _textOf(reason: Exception) -> str:
    """
    @return: What an error says, without the words that all of its kind begin with.
    """
    detail = reason.args[0] if isinstance(reason, error.ConnectError) and reason.args else ""
    return failures.oneLine(detail or reason)


def _withReason(reason: Any, fallback: Fallback) -> Any:
    """
    @return: TCP's error, of the same kind, with SDP's reason in its text.
    """
    value = reason.value if isinstance(reason, Failure) else reason
    if not isinstance(value, error.ConnectError) or isinstance(value, error.UserError):
        if not isinstance(value, error.TimeoutError):
            return reason
    text = str(value.args[0]) if value.args and value.args[0] else ""
    said = str(fallback) if str(fallback).startswith("SDP ") else f"SDP: {fallback}"
    both = f"{text} ({said})" if text else said
    try:
        return type(value)(value.osError, both)
    except TypeError:
        return reason


__all__ = ["SwitchedClient", "SwitchedConnector"]
