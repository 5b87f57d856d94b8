"""
Round trips between two processes, over the kernel's TCP with NODELAY and over SDP: of blocking sockets, of
asyncio's loops (C{aio}) and of Twisted's reactors (C{ib}).

    python -m benchmarks.sockets [--face blocking aio ib] [--pause 0 0.2 2 20] [--placement split one free]
        [--size 64] [--rounds 20] [--trips 500] [--warming 200] [--seconds 160]

In three placements: C{split}, each process on a CPU of its own; C{one}, both on the same; C{free}, where the
scheduler puts them.  Before each message the client pauses.  Each row has a client and a server of each
provider, whose short rounds alternate, so that a busy machine slows both; the figures are the median round
trip of each, of the rounds the median of SDP's time divided by TCP's, and voluntary context switches of the
client for a trip.  The time is shared by the rows: one that has used its part has fewer rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import socket as kernel
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep
from typing import Any

_LOOPBACK = "127.0.0.1"
_ROOT = Path(__file__).parent.parent
FACES = ("blocking", "aio", "ib")
PROVIDERS = ("tcp", "sdp")
#: Seconds of pauses in a round, at most, but for the fewest trips.
_PAUSED_SECONDS = 0.15
FEWEST_TRIPS = 5
#: Round trips at the beginning of a later round that do not count.
_AGAIN = 2
#: Rounds of a row at least, however little time there is.
FEWEST_ROUNDS = 3
#: Seconds of a round, at most.
_PATIENCE_SECONDS = 60.0


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


class Trips:
    """
    The round trips of one connection, whatever carries it.
    """

    def __init__(
        self,
        message: bytes,
        warming: int,
        count: int,
        pause: float,
        again: Callable[[dict[str, float]], object],
        write: Callable[[bytes], object],
    ) -> None:
        """
        @param warming: round trips before those that count.
        @param count: those that do.
        @param pause: seconds before each message that counts.
        @param again: called with the figures of a round; returns whether there is another one.
        @param write: sends a message.
        """
        self._message, self._write, self._again = message, write, again
        self._left, self.pause = len(message), 0.0
        self._pause, self._warming, self._count = pause, warming, count
        self._times: list[int] = []
        self._begun = self._switched = 0
        self.isOver = False

    def send(self) -> None:
        """
        Begin the next one.
        """
        self._left = len(self._message)
        self._begun = perf_counter_ns()
        self._write(self._message)

    def received(self, length: int) -> bool:
        """
        @return: Whether the message is back; C{pause} is before the next one, if C{isOver} is not set.
        """
        self._left -= length
        if self._left:
            return False
        self._times.append(perf_counter_ns() - self._begun)
        if len(self._times) == self._warming + self._count:
            self.isOver = not self._again(self._figures())
            self._times, self._warming, self.pause = [], _AGAIN, 0.0
        elif len(self._times) == self._warming:
            self.pause, self._switched = self._pause, _switches()
        return True

    def goOn(self, length: int, later: Callable[..., object], stop: Callable[[], object]) -> None:
        """
        L{received} of a program with a loop: begin the next one.

        @param later: calls something after so many seconds.
        @param stop: ends the loop.
        """
        if self.received(length):
            if self.isOver:
                stop()
            elif self.pause:
                later(self.pause, self.send)
            else:
                self.send()

    def _figures(self) -> dict[str, float]:
        # The median, microseconds, and switches for a trip.
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


def _askBlocking(provider: str, port: int, make: Making) -> bool:
    connection = _blockingModule(provider).create_connection((_LOOPBACK, port))
    connection.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY, 1)
    trips = make(connection.sendall)
    while not trips.isOver:
        if trips.pause:
            sleep(trips.pause)
        trips.send()
        while not trips.received(len(connection.recv(65536))):
            pass
    return getattr(connection, "sdp", None) is not None


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


def _askAio(provider: str, port: int, make: Making) -> bool:
    import asyncio

    from twisted_ib.reactor import explain

    loop = _aioLoop(provider)
    found: list[bool] = []

    class Asking(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.trips = make(transport.write)
            self.trips.send()
            found.append("sdp on" in str(explain(transport)) if provider == "sdp" else False)

        def data_received(self, data: bytes) -> None:
            self.trips.goOn(len(data), loop.call_later, loop.stop)

    loop.run_until_complete(loop.create_connection(Asking, _LOOPBACK, port))
    loop.run_forever()
    return found[0]


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


def _askIb(provider: str, port: int, make: Making) -> bool:
    reactor = _reactor(provider)
    found: list[bool] = []
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
            self.trips.goOn(len(data), reactor.callLater, reactor.stop)

    reactor.connectTCP(_LOOPBACK, port, ClientFactory.forProtocol(Asking))
    reactor.run()
    return found[0]


SERVE: dict[str, Callable[[str], None]] = dict(zip(FACES, (_serveBlocking, _serveAio, _serveIb), strict=True))
ASK: dict[str, Callable[..., bool]] = dict(zip(FACES, (_askBlocking, _askAio, _askIb), strict=True))


# -- both


def _started(face: str, provider: str, cpu: int, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.sockets", "--part", face, provider, str(cpu), *words]
    # Stated, so that the connections of one CPU, which gain nothing, go over SDP, too.
    environment = {"SIMPLE_LIBSDP": "1", **os.environ}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=_ROOT
    )


def _said(process: subprocess.Popen[str]) -> str:
    # The next line of it.
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], _PATIENCE_SECONDS)[0]:
        raise TimeoutError(f"nothing of {process.args!r} in {_PATIENCE_SECONDS:.0f} s")
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"{process.args!r} has ended with {process.wait()}")
    return line.strip()


def _again(found: dict[str, float]) -> bool:
    # Say what a round was, and wait for the word that there is another.
    print(json.dumps(found), flush=True)
    return bool(sys.stdin.readline())


def _part(face: str, provider: str, cpu: str, *words: str) -> None:
    # What a process of it does: the server has no more words.
    if int(cpu) >= 0:
        os.sched_setaffinity(0, {int(cpu)})
    if not words:
        SERVE[face](provider)
        return
    port, size, warming, trips, pause = words
    make = partial(Trips, b"x" * int(size), int(warming), int(trips), float(pause), _again)
    isSDP = ASK[face](provider, int(port), make)
    if isSDP != (provider == "sdp"):
        sys.exit(f"the connection goes over {'SDP' if isSDP else 'TCP'}")


def compare(
    face: str, cpus: tuple[int, int], pause: float, seconds: float, options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """
    Measure one row.

    @param cpus: Of the server and the client; -1 for anywhere.
    @param pause: seconds.
    @param seconds: that it may take; it has L{FEWEST_ROUNDS} in any case, if as many are asked for.
    @return: The figures of the rounds, by provider.
    """
    end = monotonic() + seconds
    trips = max(FEWEST_TRIPS, min(options.trips, int(_PAUSED_SECONDS / pause))) if pause else options.trips
    figures: dict[str, list[dict[str, float]]] = {provider: [] for provider in PROVIDERS}
    with ExitStack() as stack:

        def started(provider: str, cpu: int, *words: str) -> subprocess.Popen[str]:
            process = stack.enter_context(_started(face, provider, cpu, *words))
            stack.callback(process.kill)
            return process

        servers = {provider: started(provider, cpus[0]) for provider in PROVIDERS}
        words = [str(each) for each in (options.size, options.warming, trips, pause)]
        clients = {name: started(name, cpus[1], _said(each), *words) for name, each in servers.items()}
        for number in range(options.rounds):
            if number >= FEWEST_ROUNDS and monotonic() > end:
                break
            for provider, client in clients.items():
                assert client.stdin is not None
                if number:
                    print(file=client.stdin, flush=True)
                figures[provider].append(json.loads(_said(client)))
        for client in clients.values():
            # It says at its end whether it went over what it was to.
            client.communicate(timeout=_PATIENCE_SECONDS)
            if client.returncode:
                raise RuntimeError(f"{client.args!r} has ended with {client.returncode}")
    return figures


def main() -> None:
    """
    Measure and print.
    """
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
    parser.add_argument("--rounds", type=int, default=20, help="of a row, at most")
    parser.add_argument("--trips", type=int, default=500, help="round trips of a round")
    parser.add_argument("--warming", type=int, default=200, help="round trips before those, at least 1")
    parser.add_argument("--seconds", type=float, default=160.0, help="that all rows take")
    options = parser.parse_args()
    end, left = monotonic() + options.seconds, len(options.face) * len(options.placement) * len(options.pause)
    print("face      placement  pause ms   tcp us   sdp us  ratio  switches")
    for face in options.face:
        for name in options.placement:
            for pause in options.pause:
                seconds, left = (end - monotonic()) / left, left - 1
                tcp, sdp = compare(face, placements[name], pause / 1e3, seconds, options).values()
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
