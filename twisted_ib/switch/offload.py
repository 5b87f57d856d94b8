"""
The attempts over SDP of one connect through the switch.

Imported when SDP is offered, and not before: nothing else needs most of its imports.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet import error
from twisted.python import log
from twisted.python.failure import Failure

from twisted_ib.errors import NoListenerError
from twisted_ib.internet import failures
from twisted_ib.internet.addressing.addresses import Address, End, withPort
from twisted_ib.internet.connector import Attempt
from twisted_ib.sdp.handshake import SDP_HANDSHAKE
from twisted_ib.switch.candidates import Candidate
from twisted_ib.switch.reason import Fallback

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device
    from twisted_ib.internet.batchedcalls import Shared
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.switch.connecting import Attempt as Connect
    from twisted_ib.switch.serverclient import RedirectedClient

#: Seconds between two looks whether a server that has not answered still offers SDP.
LOOK_SECONDS: Final = 0.05


class _SwitchedAttempt(Attempt):
    """
    An attempt that connects to the one HCA whose server has the TCP socket.
    """

    #: TCP is tried then.
    addressSeconds = 0.0
    _connector: Any

    def nextTurn(self, shared: Shared) -> None:
        attempt = self._connector.attempt
        attempt.switch.beginning.discard(attempt.face)
        try:
            super().nextTurn(shared)
        # An error in SDP must not cost the application its connection: TCP is tried next.
        except Exception as e:
            log.err()
            text = f"{self._connector.where()}: {failures.oneLine(e)}"
            self.failIfNotConnected(error.ConnectError(string=text))
        if not self.isOver and self._channel is not None:
            self._connector.opened(self._channel.device)

    def _service(self) -> Any:
        # By GUID and not by service id, which another process may serve too.
        return super()._service(), self._connector.candidate.counterpart

    def _reach(self, channel: DeviceChannel) -> Any:
        counterpart = self._connector.candidate.counterpart
        if counterpart is None:
            return super()._reach(channel)
        return channel.device.fabric.reach(counterpart.guid, self)

    def send(self, path: IPeerPath) -> IConnection:
        # Checked again right before the REQ: since the search the server may have closed its TCP socket, and
        # another process may have bound the port.
        if not self._connector.stands():
            raise NoListenerError("it listens no more")
        return super().send(path)

    def connectionLost(self, reason: Failure) -> None:
        self._connector.attempt.face.connectionLost(reason)


class Offload:
    """
    The attempts over SDP of one connect; the connector of each is this object.

    @ivar attempt: The connect.
    @ivar candidate: The candidate that is being tried.
    @ivar chosen: Whether the application was asked for a protocol: then there is no fallback.
    """

    handshake = SDP_HANDSHAKE

    def __init__(self, attempt: Connect, candidates: list[Candidate], seconds: float | None) -> None:
        """
        Begin the first attempt.

        @param candidates: At least one, in the order to try.
        @param seconds: Limit of all attempts together; L{None} for the connector's own.
        """
        self.attempt = attempt
        self.switch = attempt.switch
        self.reactor = attempt.face.reactor
        self.host, self.port = attempt.address
        self.timeout = seconds
        self.bound = attempt.face.boundPair()
        self.chosen = False
        self._cancelled = False
        self._candidates = candidates
        self._reasons: list[Exception] = []
        self._timer: Timer | None = None
        self._until = None if seconds is None else self.reactor.seconds() + seconds
        self._next()

    def _next(self) -> None:
        self.candidate = self._candidates.pop(0)
        self.device = self.candidate.device
        self._isGone = False
        self.switch.beginning.add(self.attempt.face)
        self._attempt: Any = _SwitchedAttempt(self)  # type: ignore[arg-type]

    def opened(self, device: Device) -> None:
        """
        The attempt has begun: whoever drives its device looks how it goes.
        """
        # No delayed call of the reactor's, of which each wakes it up once, also if it was cancelled.
        if self._until is not None:
            seconds = self._until - self.reactor.seconds()
            if self.candidate.counterpart is not None and seconds > LOOK_SECONDS:
                seconds = LOOK_SECONDS
            self._timer = device.timers.start(seconds, partial(self._late, device))

    def _late(self, device: Device) -> None:
        # There is no answer yet.
        assert self._until is not None
        if self.reactor.seconds() >= self._until:
            self._candidates = []
            self._end(error.TimeoutError())
            return
        # A process that has forked after it listened may never look at what has come before: its children
        # answer by TCP.  One that has accepted may have gone as well: its answer has come at the second look.
        wasGone, self._isGone = self._isGone, not self.stands()
        if wasGone and self._isGone:
            self._end(error.ConnectionRefusedError(string="it offers SDP no more"))
        else:
            self.opened(device)

    def cancel(self) -> None:
        """
        End the attempts: the application or its timeout has ended the connect.
        """
        self._candidates = []
        self.chosen = self._cancelled = True
        self._stopTimer()
        self.switch.beginning.discard(self.attempt.face)
        self._end(error.UserError())

    def _end(self, reason: Exception) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.failIfNotConnected(reason)

    def _stopTimer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # -- the connector's interface to an attempt

    def stands(self) -> bool:
        """
        Return whether the server still declares that it has the TCP socket.
        """
        counterpart = self.candidate.counterpart
        return counterpart is None or self.switch.stands(self.device, self.host, self.port, counterpart)

    def where(self, address: str | None = None) -> str:
        """
        Return the destination for error texts.
        """
        return f"SDP {withPort(self.host, self.port)}"

    def makeTransport(self, channel: DeviceChannel, host: End, peer: Address) -> RedirectedClient:
        """
        Make the transport.
        """
        return self.attempt.face.makeTransport(channel, host, peer)

    def buildProtocol(self, addr: Any) -> Any:
        """
        Return the application's protocol, over SDP from now on.
        """
        # buildProtocol() is called once per connect: a second call for TCP would give the application two
        # protocols.
        self.chosen = True
        self._stopTimer()
        return self.attempt.face.buildProtocol(addr)

    @property
    def transport(self) -> Any:
        """
        None: an attempt sets it once.
        """
        return None

    @transport.setter
    def transport(self, transport: RedirectedClient) -> None:
        """
        The connection is established.
        """
        self.attempt.carried(transport, self.device)
        # It refers to this object.
        self._attempt = None

    def connectionFailed(self, reason: Failure) -> None:
        """
        One attempt failed.
        """
        if self._cancelled:
            return
        assert isinstance(reason.value, Exception)
        if self.chosen:
            self.attempt.failed(reason.value)
            return
        self._reasons.append(reason.value)
        # IBTA vol. 1 12.6.7.2: a REJ comes at once, and the server may accept the next time (it was paused,
        # or full).  Only failures that cost time are remembered.
        refused = isinstance(reason.value, error.ConnectionRefusedError)
        if self.candidate.counterpart is not None and not refused:
            self.switch.remember(self.reactor, self.host, self.port, self.candidate.counterpart)
        self._stopTimer()
        if self._candidates:
            self._next()
            return
        self._attempt = None
        self.attempt.fallBack(_fallback(self._reasons), self._reasons[-1])


def _fallback(reasons: list[Exception]) -> Fallback:
    last = reasons[-1]
    kind = "failed"
    if isinstance(last, error.TimeoutError | error.TCPTimedOutError):
        kind = "timeout"
    elif isinstance(last, error.ConnectionRefusedError):
        kind = "refused"
    return Fallback(kind, "; ".join(_textOf(each) for each in reasons))


def _textOf(reason: Exception) -> str:
    # Twisted's errors put a sentence about their class before the text.
    detail = reason.args[0] if isinstance(reason, error.ConnectError) and reason.args else ""
    return failures.oneLine(detail or reason)
