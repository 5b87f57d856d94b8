"""
Connecting a blocking socket: SDP first where the rules and the peer have it, else the kernel's TCP.
"""

from __future__ import annotations

import errno
import os
import socket as kernel
from typing import TYPE_CHECKING, Any

from twisted.internet import error
from twisted.internet.abstract import isIPAddress, isIPv6Address

from twisted_ib.blocking.connection import Connection
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.configuration.parser import CONNECT, SDP, TCP
from twisted_ib.reactor.switch.candidates import Candidate
from twisted_ib.reactor.switch.offload import Offload
from twisted_ib.reactor.switch.reason import UNASKED, Fallback, Reason
from twisted_ib.reactor.switch.serverclient import RedirectedClient

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from twisted_ib.reactor.switch.switch import Switch


class Connecting:
    """
    The attempts over SDP of one socket: for an L{Offload} both its client and that client's connector.

    @ivar reactor: The loop's.
    @ivar switch: The reactor's.
    @ivar why: The decision.
    @ivar connection: The connection, once there is one.
    @ivar error: The error to raise, if SDP alone was allowed and failed; else L{None}.
    @ivar isOver: Whether SDP has connected or failed: then the kernel's TCP is tried.
    """

    transportClass = RedirectedClient

    def __init__(
        self, loop: BlockingLoop, address: tuple[Any, ...], bound: tuple[str, int], why: Reason
    ) -> None:
        self.loop = loop
        self.reactor = loop.reactor
        self.switch: Switch = loop.reactor.switch
        self.realAddress = address
        self.why = why
        self.connection: Connection | None = None
        self.error: OSError | None = None
        self.isOver = False
        self.connector = self
        self.transport: Any = None
        self.offload: Offload | None = None
        self._bound = bound

    def begin(self, candidates: list[Candidate], timeout: float | None) -> None:
        """
        Begin the first attempt.

        @param timeout: The socket's, in seconds; L{None} without one.
        """
        client: Any = self
        self.offload = Offload(client, candidates, self.switch.seconds(self.why.verdict, timeout))
        self.loop.disturb()

    def over(self) -> bool:
        """
        Return whether L{isOver}.
        """
        return self.isOver

    def drive(self) -> None:
        """
        Serve the attempt: a program may ask in turns, without C{select}.
        """
        if not self.isOver:
            with self.loop:
                self.loop.poll()

    def cancel(self) -> None:
        """
        The socket closes, or its timeout has expired.
        """
        offload, self.offload = self.offload, None
        self.isOver = True
        if offload is not None:
            offload.cancel()
            self.loop.changed()

    # -- for the offload, as of its client

    def boundPair(self) -> tuple[str, int]:
        """
        Return the local address and port that the application bound; empty and 0 for any.
        """
        return self._bound

    def replaced(self) -> None:
        """
        SDP carries the connection; the kernel's socket keeps its number until it is closed.
        """

    def offloadFailed(self, fallback: Fallback, reason: Exception) -> None:
        """
        All attempts failed.
        """
        self.offload = None
        self.goOn(fallback, reason)

    def goOn(self, fallback: Fallback, reason: Exception | None = None) -> None:
        """
        SDP does not carry the connection: TCP does, if the rules allow it.
        """
        self.switch.fellBack(self.why, fallback, *self.realAddress[:2])
        if self.why.verdict == SDP:
            number = errno.ECONNREFUSED
            if fallback.kind not in UNASKED and reason is not None:
                number = numberOf(reason)
            self.error = connectError(number, fallback.text)
        else:
            self.why.provider = TCP
        self.isOver = True

    def failIfNotConnected(self, reason: Any) -> None:
        """
        End the attempts for good.
        """
        self.error = connectError(numberOf(getattr(reason, "value", reason)), str(reason))
        self.isOver = True

    def connectionLost(self, reason: Failure) -> None:
        """
        The loop closes, or the connection has ended.
        """
        if not self.isOver:
            self.failIfNotConnected(reason.value)

    # -- for the offload, as of its client's connector

    def buildProtocol(self, address: object) -> Connection:
        """
        Return the connection.
        """
        self.connection = Connection(self.loop)
        self.isOver = True
        return self.connection


def connectError(number: int, text: str) -> OSError:
    """
    Return the error of a number, with the reason of SDP behind the system's text.
    """
    return OSError(number, f"{os.strerror(number)} ({text})")


def numberOf(reason: Any) -> int:
    """
    Return the number of an error of Twisted's, or of the device's.
    """
    if isinstance(reason, error.TimeoutError | error.TCPTimedOutError):
        return errno.ETIMEDOUT
    number = getattr(reason, "osError", None) or getattr(reason, "errno", None)
    return number if isinstance(number, int) else errno.EHOSTUNREACH


def connecting(
    loop: BlockingLoop, address: tuple[Any, ...], bound: tuple[str, int], timeout: float | None
) -> Connecting | None:
    """
    Begin to connect over SDP, under the loop's lock.

    @param address: The peer's address and port.
    @param bound: What the socket is bound to; empty and 0 for nothing.
    @param timeout: The socket's, seconds.
    @return: The attempts; L{None} if TCP is to carry the connection.
    """
    reactor, (host, port) = loop.reactor, address[:2]
    switch = reactor.switch
    why = Reason("default", TCP, asked=reactor.seconds())
    decision = switch.decide(CONNECT, host, port)
    why.rule, why.verdict = decision.where, decision.verdict
    found = switch.candidatesFor(reactor, decision.verdict, host, port)
    if found is None:
        return None
    made = Connecting(loop, address, bound, why)
    if isinstance(found, Fallback):
        made.goOn(found)
        return made
    made.begin(found, timeout)
    return made


def target(address: Any, family: int) -> tuple[Any, ...] | None:
    """
    Return the peer's address, as text, and port; L{None} if the kernel is to complain of what was given.

    @param address: As given to C{connect}; a name is looked up.
    @param family: C{AF_INET} or C{AF_INET6}.
    """
    if not isinstance(address, tuple) or len(address) < 2 or not isinstance(address[0], str):
        return None
    host, port = address[:2]
    if not isinstance(port, int) or not 0 < port < 65536:
        return None
    isIPv6 = family == kernel.AF_INET6
    if isIPv6 and len(address) > 3 and address[3] and "%" not in host:
        host = f"{host}%{address[3]}"
    if isIPv6Address(host) if isIPv6 else isIPAddress(host):
        return host, port
    if not host:
        return None
    try:
        found = kernel.getaddrinfo(host, port, family, kernel.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return (str(found[0][4][0]), port) if found else None


__all__ = ["Connecting", "connecting", "target"]
