"""
Both ends of an SDP connection in one process, and how calls are timed.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any

from attrs import define
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ClientFactory, Protocol

from twisted_ib.hca.queues.streamqueuepair import RecordReceiver
from twisted_ib.sdp.port import connectSDP, listenSDP

#: Calls of one run.
CALLS = 1000


def least(runs: int, call: Callable[[], object], calls: int = CALLS) -> float:
    """
    Time something that may be called again and again.

    @return: ns of CPU time of one call without the loop's own, the least of the runs.
    """

    def once(what: Callable[[], object]) -> int:
        """
        One run.
        """
        begun = thread_time_ns()
        for _ in numbers:
            what()
        return thread_time_ns() - begun

    numbers = range(calls)
    found = min(once(call) for _ in range(runs))
    return (found - min(once(_nothing) for _ in range(runs))) / calls + callNanoseconds(runs)


def callNanoseconds(runs: int) -> float:
    """
    The cost of a call alone: the loop with one, minus the empty loop.
    """
    numbers = range(CALLS)

    def called() -> int:
        """
        One run with calls.
        """
        begun = thread_time_ns()
        for _ in numbers:
            _nothing()
        return thread_time_ns() - begun

    def empty() -> int:
        """
        One run without.
        """
        begun = thread_time_ns()
        for _ in numbers:
            pass
        return thread_time_ns() - begun

    return (min(called() for _ in range(runs)) - min(empty() for _ in range(runs))) / CALLS


def _nothing() -> None:
    """
    The callee of timed calls.
    """


def clockNanoseconds(runs: int) -> float:
    """
    The time that two clock readings add to a measurement.
    """
    found = []
    for _ in range(runs):
        total = 0
        for _ in range(CALLS):
            begun = perf_counter_ns()
            total += perf_counter_ns() - begun
        found.append(total / CALLS)
    return min(found)


class Quiet(Protocol):
    """
    Takes bytes and does nothing.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Bytes came.
        """


class _Ends(ClientFactory):
    """
    Tells of each protocol that it makes when that is connected.
    """

    noisy = False

    def __init__(self, connected: Callable[[Protocol], object]) -> None:
        """
        @param connected: Called with it.
        """
        self._connected = connected

    def buildProtocol(self, address: object) -> Protocol:
        """
        One more.
        """
        connected = self._connected

        class End(Quiet):
            """
            One end.
            """

            def connectionMade(self) -> None:
                """
                Tell.
                """
                connected(self)

        return End()


@define
class Both:
    """
    The two ends.

    @ivar device: The client's, mostly of both.
    """

    device: Any
    client: Any
    server: Any
    port: Any

    def settle(self) -> None:
        """
        Let everything arrive that is on its way.
        """
        devices = {self.device, self.server.channel.device}
        while any([device.progress() for device in devices]):
            pass


def connected(reactor: Any, here: str = "", there: str = "127.0.0.1", name: str = "") -> Deferred[Both]:
    """
    Connect two ends; fires a little later, when both are read from.

    @param here: The client's address, where it needs one of its own.
    @param there: The server's.
    @param name: The device's; the default if empty.
    """
    found: dict[str, Any] = {}
    ready: Deferred[Both] = Deferred()

    def made(name: str) -> Callable[[Protocol], None]:
        """
        Remember one end.
        """

        def remember(protocol: Any) -> None:
            """
            Both: tell.
            """
            found[name] = protocol.transport
            if len(found) == 2:
                device = found["client"].channel.device
                both = Both(device, found["client"], found["server"], port)
                reactor.callLater(0.05, ready.callback, both)

        return remember

    device: dict[str, Any] = {"device": name} if name else {}
    bound = (here, 0) if here else None
    port: Any = listenSDP(reactor, 0, _Ends(made("server")), interface=there, **device)
    connectSDP(reactor, there, port.getHost().port, _Ends(made("client")), bindAddress=bound, **device)
    return ready


class Swallow(RecordReceiver):
    """
    Stands in a path's table for a queue pair, and takes records.

    @ivar skip: If not negative: copy what is behind so many bytes out, as a stream does.
    """

    def __init__(self, skip: int = -1) -> None:
        """
        See the variable.
        """
        self.skip = skip
        self.path: Any = None

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        A record came.
        """
        if self.skip >= 0:
            buffer[start + self.skip : stop]
        return 0
