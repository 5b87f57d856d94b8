"""
Round trips between two processes, over the kernel's TCP with NODELAY and over SDP: of blocking sockets, of
asyncio's loops (C{aio}) and of Twisted's reactors (C{ib}).

    python -m benchmarks.sockets [--face blocking aio ib] [--pause 0 0.2 2 20] [--placement split one free]
        [--size 64] [--rounds 20] [--trips 500] [--warming 200]

In three placements: C{split}, each process on a CPU of its own; C{one}, both on the same; C{free}, where the
scheduler puts them.  Before each message the client pauses.  Rounds of both providers alternate, each in a
process of its own, so that a busy machine slows both; the figures are the median round trip of each, of the
rounds the median of SDP's time divided by TCP's, and voluntary context switches of the client for a trip.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket as kernel
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns, sleep
from typing import Any

_LOOPBACK = "127.0.0.1"
FACES = ("blocking", "aio", "ib")
PROVIDERS = ("tcp", "sdp")
#: Seconds of pauses in a round, at most.
_PAUSED_SECONDS = 2.0
#: Seconds of a round, at most.
_PATIENCE_SECONDS = 60.0


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


class Trips:
    """
    The round trips of one connection, whatever carries it.
    """

    def __init__(
        self, message: bytes, warming: int, count: int, pause: float, write: Callable[[bytes], object]
    ) -> None:
        """
        @param warming: round trips before those that count.
        @param count: those that do.
        @param pause: seconds before each message that counts.
        @param write: sends a message.
        """
        self._message, self._write = message, write
        self._left, self.pause = len(message), 0.0
        self._pause, self._warming, self._coming = pause, warming, warming + count
        self._times: list[int] = []
        self._begun = self._switched = 0

    def send(self) -> None:
        """
        Begin the next one.
        """
        self._left = len(self._message)
        self._begun = perf_counter_ns()
        self._write(self._message)

    def received(self, length: int) -> bool:
        """
        @return: Whether the message is back; C{pause} is before the next one.
        """
        self._left -= length
        if self._left:
            return False
        self._times.append(perf_counter_ns() - self._begun)
        if len(self._times) == self._warming:
            self.pause, self._switched = self._pause, _switches()
        return True

    def figures(self) -> dict[str, float] | None:
        """
        @return: The median, microseconds, and switches for a trip; L{None} while more are to come.
        """
        if len(self._times) < self._coming:
            return None
        times = self._times[self._warming :]
        switches = (_switches() - self._switched) / len(times)
        return {"us": statistics.median(times) / 1e3, "switches": switches}


#: Of what writes.
Making = Callable[[Callable[[bytes], object]], Trips]


# -- blocking sockets


def _blockingModule(provider: str) -> Any:
    from twisted_ib import socket as offloading

    return offloading if provider == "sdp" else kernel


def _serveBlocking(provider: str) -> None:
    listener = _blockingModule(provider).create_server((_LOOPBACK, 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY, 1)
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.close()


def _askBlocking(provider: str, port: int, make: Making) -> tuple[bool, Any]:
    connection = _blockingModule(provider).create_connection((_LOOPBACK, port))
    connection.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY, 1)
    trips = make(connection.sendall)
    while (found := trips.figures()) is None:
        if trips.pause:
            sleep(trips.pause)
        trips.send()
        while not trips.received(len(connection.recv(65536))):
            pass
    return getattr(connection, "sdp", None) is not None, found


# -- asyncio


def _aioLoop(provider: str) -> Any:
    import asyncio

    from twisted_ib.aio import new_event_loop

    return new_event_loop() if provider == "sdp" else asyncio.new_event_loop()


def _serveAio(provider: str) -> None:
    import asyncio

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    loop = _aioLoop(provider)
    server = loop.run_until_complete(loop.create_server(Echo, _LOOPBACK, 0))
    print(server.sockets[0].getsockname()[1], flush=True)
    loop.run_forever()


def _askAio(provider: str, port: int, make: Making) -> tuple[bool, Any]:
    import asyncio

    from twisted_ib.reactor import explain

    loop = _aioLoop(provider)
    found: list[Any] = []

    class Asking(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.trips = make(transport.write)
            self.trips.send()
            found.append("sdp on" in str(explain(transport)) if provider == "sdp" else False)

        def data_received(self, data: bytes) -> None:
            if self.trips.received(len(data)):
                result = self.trips.figures()
                if result is not None:
                    found.append(result)
                    loop.stop()
                elif self.trips.pause:
                    loop.call_later(self.trips.pause, self.trips.send)
                else:
                    self.trips.send()

    loop.run_until_complete(loop.create_connection(Asking, _LOOPBACK, port))
    loop.run_forever()
    return found[0], found[1]


# -- Twisted


def _reactor(provider: str) -> Any:
    from twisted.internet import epollreactor

    from twisted_ib.reactor import ibreactor

    (ibreactor if provider == "sdp" else epollreactor).install()
    from twisted.internet import reactor

    return reactor


def _serveIb(provider: str) -> None:
    reactor = _reactor(provider)
    from twisted.internet.protocol import Factory, Protocol

    class Echo(Protocol):
        transport: Any

        def connectionMade(self) -> None:
            self.transport.setTcpNoDelay(True)

        def dataReceived(self, data: bytes) -> None:
            self.transport.write(data)

    port = reactor.listenTCP(0, Factory.forProtocol(Echo), interface=_LOOPBACK)
    print(port.getHost().port, flush=True)
    reactor.run()


def _askIb(provider: str, port: int, make: Making) -> tuple[bool, Any]:
    reactor = _reactor(provider)
    found: list[Any] = []
    from twisted.internet.protocol import ClientFactory, Protocol

    from twisted_ib.reactor import explain

    class Asking(Protocol):
        transport: Any

        def connectionMade(self) -> None:
            self.transport.setTcpNoDelay(True)
            self.trips = make(self.transport.write)
            self.trips.send()
            found.append("sdp on" in str(explain(self.transport)) if provider == "sdp" else False)

        def dataReceived(self, data: bytes) -> None:
            if self.trips.received(len(data)):
                result = self.trips.figures()
                if result is not None:
                    found.append(result)
                    reactor.stop()
                elif self.trips.pause:
                    reactor.callLater(self.trips.pause, self.trips.send)
                else:
                    self.trips.send()

    reactor.connectTCP(_LOOPBACK, port, ClientFactory.forProtocol(Asking))
    reactor.run()
    return found[0], found[1]


SERVE: dict[str, Callable[[str], None]] = dict(zip(FACES, (_serveBlocking, _serveAio, _serveIb), strict=True))
ASK: dict[str, Callable[..., tuple[bool, Any]]] = dict(
    zip(FACES, (_askBlocking, _askAio, _askIb), strict=True)
)


# -- both


def _started(face: str, provider: str, cpu: int, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.sockets", "--part", face, provider, str(cpu), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _part(face: str, provider: str, cpu: str, *words: str) -> None:
    # What a process of it does: the server has no more words.
    if int(cpu) >= 0:
        os.sched_setaffinity(0, {int(cpu)})
    if not words:
        SERVE[face](provider)
        return
    port, size, warming, trips, pause = words
    make = partial(Trips, b"x" * int(size), int(warming), int(trips), float(pause))
    isSDP, found = ASK[face](provider, int(port), make)
    if isSDP != (provider == "sdp"):
        sys.exit(f"the connection goes over {'SDP' if isSDP else 'TCP'}")
    print(json.dumps(found), flush=True)


def compare(
    face: str, cpus: tuple[int, int], pause: float, options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """
    Measure one placement.

    @param cpus: Of the server and the client; -1 for anywhere.
    @param pause: seconds.
    @return: The figures of the rounds, by provider.
    """
    trips = max(10, min(options.trips, int(_PAUSED_SECONDS / pause))) if pause else options.trips
    figures: dict[str, list[dict[str, float]]] = {provider: [] for provider in PROVIDERS}
    servers, ports = [], {}
    try:
        for provider in PROVIDERS:
            servers.append(_started(face, provider, cpus[0]))
            assert servers[-1].stdout is not None
            ports[provider] = servers[-1].stdout.readline().strip()
        for _ in range(options.rounds):
            for provider in PROVIDERS:
                words = (ports[provider], *map(str, (options.size, options.warming, trips, pause)))
                said = _started(face, provider, cpus[1], *words).communicate(timeout=_PATIENCE_SECONDS)[0]
                figures[provider].append(json.loads(said))
        return figures
    finally:
        for server in servers:
            server.kill()
            server.wait()


def main() -> None:
    """
    Measure and print.
    """
    # Stated, so that the connections of one CPU, which gain nothing, go over SDP, too.
    os.environ.setdefault("SIMPLE_LIBSDP", "1")
    if sys.argv[1:2] == ["--part"]:
        _part(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sockets")
    first, *others = sorted(os.sched_getaffinity(0))
    placements = {"split": (first, others[0])} if others else {}
    placements |= {"one": (first, first), "free": (-1, -1)}
    parser.add_argument("--face", nargs="+", choices=FACES, default=["blocking"])
    parser.add_argument("--pause", nargs="+", type=float, default=[0.0], help="milliseconds before a message")
    parser.add_argument("--placement", nargs="+", choices=placements, default=list(placements))
    parser.add_argument("--size", type=int, default=64, help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--trips", type=int, default=500, help="round trips of a round")
    parser.add_argument("--warming", type=int, default=200, help="round trips before those, at least 1")
    options = parser.parse_args()
    print("face      placement  pause ms   tcp us   sdp us  ratio  switches")
    for face in options.face:
        for name in options.placement:
            for pause in options.pause:
                tcp, sdp = compare(face, placements[name], pause / 1e3, options).values()
                ratio = statistics.median(b["us"] / a["us"] for a, b in zip(tcp, sdp, strict=True))
                us, switches = (
                    [statistics.median(each[key] for each in those) for those in (tcp, sdp)]
                    for key in ("us", "switches")
                )
                print(
                    f"{face:<9} {name:<10} {pause:>8} {us[0]:>8.1f} {us[1]:>8.1f} {ratio:>6.2f}"
                    f" {switches[0]:>4.1f} {switches[1]:>4.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
