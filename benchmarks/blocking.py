"""
The subjects without Twisted: blocking sockets, UNIX or TCP with NODELAY or over SDP, one thread a
connection; the crowd alone is served and driven by one epoll loop on each side, of the kernel's sockets.

Talks to the driver as L{benchmarks.worker} does:
C{python -m benchmarks.blocking (server|client) REACTOR PLACE}, where the place is an address
for TCP, one behind C{sdp} for SDP, and else of no interest, as is the reactor.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable
from time import perf_counter, perf_counter_ns, sleep
from typing import Any

from benchmarks.clients import SPACE_SECONDS, answerRows, chunksOf, latencies, manyDescriptors
from benchmarks.footprint import IDLE_TIMES, REST_SECONDS, SETTLE_SECONDS, Idleness
from twisted_ib.tools.compare.measuring import Figures, cpuNanoseconds, pattern

HEAD = struct.Struct(">QB")
CHUNK = 256 * 1024
#: Begins a place that is reached over SDP.
SDP = "sdp "


def _socketsOf(place: str) -> Any:
    """
    The module that makes the sockets of a place.
    """
    if not place.startswith(SDP):
        return socket
    from twisted_ib import socket as offloading

    return offloading


def _echo(connection: socket.socket) -> None:
    """
    Send back what comes.
    """
    while data := connection.recv(CHUNK):
        connection.sendall(data)
    connection.close()


def _exactly(connection: socket.socket, count: int) -> bytes:
    """
    Read so many bytes, or nothing at the end.
    """
    parts = []
    while count:
        part = connection.recv(min(count, CHUNK))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _sink(connection: socket.socket) -> None:
    """
    Swallow announced streams, acknowledge each one's last byte.
    """
    while head := _exactly(connection, HEAD.size):
        remaining, hashing = HEAD.unpack(head)
        digest = hashlib.sha256()
        while remaining:
            data = connection.recv(min(CHUNK, remaining))
            remaining -= len(data)
            if hashing:
                digest.update(data)
        connection.sendall(digest.digest() if hashing else bytes(32))
    connection.close()


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    """
    One thread for each connection.
    """
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def _serveCrowd(listener: socket.socket) -> None:
    """
    Echo on many connections in one loop.
    """
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                connection, _address = listener.accept()
                connections[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
                continue
            data = connections[descriptor].recv(CHUNK)
            if data:
                connections[descriptor].sendall(data)
            else:
                connections.pop(descriptor).close()


def serve(address: str) -> None:
    """
    Listen, say so, end with standard input.

    @param address: An address for TCP or SDP; anything else for UNIX sockets here.
    """
    made, address = _socketsOf(address), address.removeprefix(SDP)
    services: dict[str, Callable[[socket.socket], None]] = {"echo": _echo, "sink": _sink}
    places: dict[str, int] = {}
    for name in (*services, "crowd") if made is socket else services:
        if address[:1].isdigit():
            listener = made.create_server((address, 0), backlog=1024)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            places[name] = listener.getsockname()[1]
        else:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(name)
            listener.listen(1024)
            places[name] = 0
        target, arguments = (
            (_serveCrowd, (listener,)) if name == "crowd" else (_accept, (listener, services[name]))
        )
        threading.Thread(target=target, args=arguments, daemon=True).start()
    print(json.dumps(places), flush=True)
    sys.stdin.read()


def _connect(place: str) -> socket.socket:
    """
    Make one connection.

    @param place: Address and port for TCP or SDP, or the path of a UNIX socket.
    """
    made = _socketsOf(place)
    address, _, port = place.removeprefix(SDP).partition(" ")
    if port:
        connection = made.create_connection((address, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if made is not socket and connection.sdp is None:
            raise ValueError("the connection goes over TCP")
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place)
    return connection


def roundTrip(command: dict[str, Any]) -> Figures:
    """
    One message out and back, again and again.
    """
    message = pattern(command["size"])
    with _connect(command["echo"]) as connection:

        def once() -> bytes:
            """
            One message; the pieces of a large one travel both ways at once.
            """
            for at in range(0, len(message), 65536):
                connection.sendall(message[at : at + 65536])
                _exactly(connection, min(65536, len(message) - at))
            return message

        connection.sendall(message[:65536])
        if _exactly(connection, len(message[:65536])) != message[:65536]:
            raise ValueError("an echo differs")
        times: list[int] = []
        end = perf_counter_ns() + int(command["seconds"] * 1e9)
        isSpaced = command["workload"] == "spaced"
        while True:
            now = perf_counter_ns()
            if now >= end:
                return latencies(times)
            if isSpaced:
                sleep(SPACE_SECONDS)
                now = perf_counter_ns()
            once()
            times.append(perf_counter_ns() - now)


def stream(command: dict[str, Any]) -> Figures:
    """
    Write until the announced length is acknowledged.
    """
    size, seconds = command["size"], command["seconds"]
    chunks = chunksOf(size, command["workload"] == "cold")
    processes = (os.getpid(), command["server"])

    def send(count: int, hashing: bool) -> bytes:
        """
        One whole stream.
        """
        connection.sendall(HEAD.pack(size * count, hashing))
        for each in range(count):
            connection.sendall(chunks[each % len(chunks)])
        return _exactly(connection, 32)

    with _connect(command["sink"]) as connection:
        count, took = 8, 0.0
        while took < seconds / 8:
            count *= 2
            begun = perf_counter()
            send(count, False)
            took = perf_counter() - begun
        count = max(1, int(count * seconds / took))
        used, begun = cpuNanoseconds(processes), perf_counter()
        send(count, False)
        took, used = perf_counter() - begun, cpuNanoseconds(processes) - used
        wanted = hashlib.sha256(b"".join(chunks[e % len(chunks)] for e in range(9)))
        if send(9, True) != wanted.digest():
            raise ValueError("a stream differs")
    sent = size * count
    return {"MB/s": sent / took / 1e6, "CPU": used * 1024 / sent}


def crowd(command: dict[str, Any]) -> Figures:
    """
    Many connections, each with one message under way.
    """
    path = os.path.join(os.path.dirname(command["echo"]), "crowd")
    message = pattern(command["size"])
    connections = [_connect(path) for _ in range(command["count"])]
    byDescriptor = {each.fileno(): each for each in connections}
    poll = select.epoll()
    for each in connections:
        poll.register(each, select.EPOLLIN)
        each.sendall(message)
    processes = (os.getpid(), command["server"])
    used, begun = cpuNanoseconds(processes), perf_counter()
    end, count, pending = begun + command["seconds"], 0, len(connections)
    while pending:
        for descriptor, _ in poll.poll():
            if byDescriptor[descriptor].recv(CHUNK) != message:
                raise ValueError("an echo differs")
            count += 1
            if perf_counter() < end:
                byDescriptor[descriptor].sendall(message)
            else:
                pending -= 1
    took, used = perf_counter() - begun, cpuNanoseconds(processes) - used
    for each in connections:
        each.close()
    poll.close()
    return {"msg/s": count / took, "CPU/msg": used / count / 1e3}


def connects(command: dict[str, Any]) -> Figures:
    """
    Connect, echo once, close, one after the other.
    """
    message = pattern(command["size"])
    begun = perf_counter()
    count = 0
    while perf_counter() - begun < command["seconds"]:
        with _connect(command["echo"]) as connection:
            connection.sendall(message)
            if _exactly(connection, len(message)) != message:
                raise ValueError("an echo differs")
        count += 1
    return {"conn/s": count / (perf_counter() - begun)}


def idle(command: dict[str, Any]) -> Figures:
    """
    Connections that are open and silent, after one echo each, served by one loop.
    """
    path = os.path.join(os.path.dirname(command["echo"]), "crowd")
    message = pattern(command["size"])
    kept: list[socket.socket] = []

    def join() -> None:
        """
        One more.
        """
        connection = _connect(path)
        connection.sendall(message)
        if _exactly(connection, len(message)) != message:
            raise ValueError("a first echo differs")
        kept.append(connection)

    join()
    sleep(SETTLE_SECONDS)
    idleness = Idleness((os.getpid(), command["server"]), command["count"])
    for _ in range(command["count"]):
        join()
    sleep(SETTLE_SECONDS)
    idleness.connected()
    sleep(REST_SECONDS)
    idleness.rested()
    sleep(command["seconds"] * IDLE_TIMES)
    return idleness.figures()


WORKLOADS = {
    "roundTrip": roundTrip,
    "spaced": roundTrip,
    "stream": stream,
    "cold": stream,
    "crowd": crowd,
    "scale": crowd,
    "idle": idle,
    "connects": connects,
}


if __name__ == "__main__":
    manyDescriptors()
    if sys.argv[1] == "server":
        serve(sys.argv[3])
    else:
        answerRows(lambda command: WORKLOADS[command["workload"]](command))
