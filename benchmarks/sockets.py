"""
Round trips of blocking sockets between two processes: the kernel's TCP with NODELAY, and SDP.

    python -m benchmarks.sockets [--size 64] [--rounds 20] [--trips 500]

In three placements: C{split}, each process on a CPU of its own; C{one}, both on the same; C{free}, where the
scheduler puts them.  Rounds of both providers alternate, so that a busy machine slows both; the figures are
the median round trip of each and, of the rounds, the median of TCP's divided by SDP's.
"""

from __future__ import annotations

import argparse
import os
import socket as kernel
import statistics
import subprocess
import sys
from time import perf_counter_ns
from typing import Any

from twisted_ib import socket as offloading

_LOOPBACK = "127.0.0.1"
#: Round trips before the first round.
_WARMING = 200


def serve(provider: str, cpu: int) -> None:
    """
    Echo on one connection.

    @param provider: C{tcp} or C{sdp}.
    @param cpu: Where; -1 for anywhere.
    """
    if cpu >= 0:
        os.sched_setaffinity(0, {cpu})
    made: Any = offloading if provider == "sdp" else kernel
    listener = made.create_server((_LOOPBACK, 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY, 1)
    while data := connection.recv(65536):
        connection.sendall(data)


def _trips(connection: Any, message: bytes, count: int) -> float:
    """
    Return the median of some round trips, in microseconds.
    """
    times = []
    for _ in range(count):
        begun = perf_counter_ns()
        connection.sendall(message)
        left = len(message)
        while left:
            left -= len(connection.recv(left))
        times.append(perf_counter_ns() - begun)
    return statistics.median(times) / 1e3


def compare(cpus: tuple[int, int], size: int, rounds: int, trips: int) -> dict[str, list[float]]:
    """
    Measure one placement.

    @param cpus: Of the server and the client; -1 for anywhere.
    @return: The medians of the rounds, by provider.
    """
    os.sched_setaffinity(0, {cpus[1]} if cpus[1] >= 0 else _allowed)
    servers, connections = [], {}
    try:
        for provider, made in (("tcp", kernel), ("sdp", offloading)):
            command = [sys.executable, "-m", "benchmarks.sockets", "--serve", provider, "--cpu", str(cpus[0])]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            servers.append(server)
            assert server.stdout is not None
            port = int(server.stdout.readline())
            connections[provider] = connection = made.create_connection((_LOOPBACK, port))
            connection.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY, 1)
        sdp: Any = connections["sdp"]
        if sdp.sdp is None:
            raise RuntimeError("the connection goes over TCP")
        message = b"x" * size
        figures: dict[str, list[float]] = {provider: [] for provider in connections}
        for connection in connections.values():
            _trips(connection, message, _WARMING)
        for _ in range(rounds):
            for provider, connection in connections.items():
                figures[provider].append(_trips(connection, message, trips))
        return figures
    finally:
        for connection in connections.values():
            connection.close()
        for server in servers:
            server.wait()


_allowed = os.sched_getaffinity(0)


def main() -> None:
    """
    Measure and print.
    """
    # Stated, so that the connections of one CPU, which gain nothing, go over SDP, too.
    os.environ.setdefault("SIMPLE_LIBSDP", "1")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sockets")
    parser.add_argument("--size", type=int, default=64, help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--trips", type=int, default=500, help="round trips of a round")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--cpu", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.cpu)
        return
    first, *others = sorted(_allowed)
    placements = {"split": (first, others[0])} if others else {}
    placements |= {"one": (first, first), "free": (-1, -1)}
    print(f"{'placement':<10} {'tcp us':>8} {'sdp us':>8} {'ratio':>6}")
    for name, cpus in placements.items():
        figures = compare(cpus, options.size, options.rounds, options.trips)
        ratio = statistics.median(a / b for a, b in zip(figures["tcp"], figures["sdp"], strict=True))
        tcp, sdp = statistics.median(figures["tcp"]), statistics.median(figures["sdp"])
        print(f"{name:<10} {tcp:>8.1f} {sdp:>8.1f} {ratio:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
