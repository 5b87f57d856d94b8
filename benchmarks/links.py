"""
The subjects whose users move messages by blocking calls: C{multiprocessing}'s connections and queues, their
shapes in L{twisted_ib.queues}, pyzmq over C{ipc://}, and iceoryx2, where both ends look in a busy loop.

Talks to the driver as L{benchmarks.worker} does:
C{python -m benchmarks.links (server|client) REACTOR LIBRARY}.  The two processes agree on what comes
next by a connection of C{multiprocessing}, where a server sleeps while other subjects run.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import multiprocessing
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import context
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.reduction import ForkingPickler
from pickle import PickleBuffer
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any, SupportsIndex

from attrs import frozen

from benchmarks.clients import answerRows, chunksOf, latencies
from twisted_ib.tools.compare.measuring import Figures, cpuNanoseconds, pattern

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from twisted_ib import queues

#: Messages from this size on are objects with a buffer, where a subject has such.
LARGE = 64 * 1024
#: Bytes that may be under way in a stream of iceoryx2, and messages of any size.
UNDER_WAY, LEAST_MESSAGES, MOST_MESSAGES = 4 << 20, 4, 256
#: Bytes of the stream whose contents are compared.
CHECKED_BYTES = 1 << 20


@frozen
class Link:
    """
    Messages of one size, both ways.

    @ivar send: Takes L{bytes}; returns when the library has them.
    @ivar receive: Waits for a message, and returns it as L{bytes}.
    """

    send: Callable[[bytes], object]
    receive: Callable[[], bytes]
    close: Callable[[], object]


def _overConnection(control: Connection, place: str, size: int, isServer: bool) -> Link:
    return Link(control.send_bytes, control.recv_bytes, lambda: None)


class Array:
    """
    What NumPy's arrays do when they are pickled.
    """

    def __init__(self, data: Buffer) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return Array, (PickleBuffer(self.data) if int(protocol) >= 5 else bytes(self.data),)


def _messages(connection: Connection | queues.Connection, size: int) -> Link:
    """
    Bytes, and from L{LARGE} on arrays.
    """
    if size < LARGE:
        return Link(connection.send_bytes, connection.recv_bytes, lambda: None)
    return Link(lambda data: connection.send(Array(data)), lambda: connection.recv().data, lambda: None)


def _overPipe(control: Connection, place: str, size: int, isServer: bool) -> Link:
    return _messages(control, size)


def _overQueues(control: Connection, place: str, size: int, isServer: bool) -> Link:
    # Other trees may have none.
    from twisted_ib import queues

    if not isServer:
        return _messages(queues.Client(f"{place}-queues"), size)
    listener = queues.Listener(f"{place}-queues")
    accepted: list[Link] = []

    def receive() -> bytes:
        """
        The client comes when it has heard that it can.
        """
        if not accepted:
            with listener:
                accepted.append(_messages(listener.accept(), size))
        return accepted[0].receive()

    return Link(lambda data: accepted[0].send(data), receive, lambda: None)


class Handed:
    """
    A descriptor that was handed over, by its number among these.
    """

    received: Sequence[int] = ()

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        """
        @return: What it is in this process.
        """
        return self.received[self.number]


class _Handing:
    """
    Stands for the process that C{multiprocessing} pickles queues for.
    """

    DupFd = Handed

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        """
        @return: Its number.
        """
        self.fds.append(fd)
        return len(self.fds) - 1


def _handOver(pair: socket.socket, queues: Sequence[Any]) -> None:
    handing: Any = _Handing()
    context.set_spawning_popen(handing)
    try:
        pickled = bytes(ForkingPickler.dumps(queues))
    finally:
        context.set_spawning_popen(None)
    socket.send_fds(pair, [pickled], handing.fds)


def _overPairOf(make: Callable[[], Any], place: str, isServer: bool) -> Link:
    """
    Two queues, one for each way, of the client.
    """
    queues: list[Any] = []
    if isServer:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{place}-handed")
        listener.listen()

        def receive() -> bytes:
            """
            The client has handed them over when the first message comes.
            """
            if not queues:
                with listener, listener.accept()[0] as pair:
                    os.unlink(f"{place}-handed")
                    pickled, Handed.received, *_ = socket.recv_fds(pair, 1 << 16, 64)
                queues.extend(pickle.loads(pickled))
            return _bytesOf(queues[0].get())

        return Link(lambda data: queues[1].put(_objectOf(data)), receive, lambda: None)
    queues.extend((make(), make()))
    with socket.socket(socket.AF_UNIX) as pair:
        pair.connect(f"{place}-handed")
        _handOver(pair, queues)
    up, down = queues
    return Link(lambda data: up.put(_objectOf(data)), lambda: _bytesOf(down.get()), lambda: None)


def _objectOf(data: bytes) -> bytes | Array:
    return data if len(data) < LARGE else Array(data)


def _bytesOf(found: Any) -> bytes:
    return found if isinstance(found, bytes) else found.data


def _overQueue(control: Connection, place: str, size: int, isServer: bool) -> Link:
    # Whose semaphores have names until they are deleted.
    return _overPairOf(multiprocessing.get_context("spawn").Queue, place, isServer)


def _overOurQueue(control: Connection, place: str, size: int, isServer: bool) -> Link:
    from twisted_ib import queues

    return _overPairOf(queues.Queue, place, isServer)


def _overZMQ(control: Connection, place: str, size: int, isServer: bool) -> Link:
    import zmq

    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    if isServer:
        socket.bind(f"ipc://{place}-zmq")
    else:
        socket.connect(f"ipc://{place}-zmq")
    return Link(socket.send, socket.recv, context.destroy)


def _overIceoryx(control: Connection, place: str, size: int, isServer: bool) -> Link:
    """
    As its users do: messages of a fixed type, loaned, filled and sent, looked for without a pause.
    """
    import iceoryx2

    class Message(ctypes.Structure):
        """
        So many bytes.
        """

        _fields_ = [("data", ctypes.c_uint8 * size)]

        @staticmethod
        def type_name() -> str:
            """
            The name that both ends check.
            """
            return f"Message{size}"

    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    depth = max(LEAST_MESSAGES, min(MOST_MESSAGES, UNDER_WAY // size))
    up, down = (
        node.service_builder(iceoryx2.ServiceName.new(f"{place}-{size}-{way}"))
        .publish_subscribe(Message)
        .enable_safe_overflow(False)
        .subscriber_max_buffer_size(depth)
        .open_or_create()
        for way in ("up", "down")
    )
    mine, other = (down, up) if isServer else (up, down)
    publisher: Any = (
        mine.publisher_builder()
        .backpressure_strategy(iceoryx2.BackpressureStrategy.RetryUntilDelivered)
        .create()
    )
    subscriber: Any = other.subscriber_builder().create()
    memmove, string_at = ctypes.memmove, ctypes.string_at
    loan, look = publisher.loan_uninit, subscriber.receive

    def send(data: bytes) -> None:
        """
        One copy, into the shared memory.
        """
        sample = loan()
        memmove(sample.payload_ptr, data, size)
        sample.assume_init().send()

    def receive() -> bytes:
        """
        One copy, out of it.
        """
        while (sample := look()) is None:
            pass
        return string_at(sample.payload_ptr, size)

    def close() -> None:
        """
        Give the shared memory back.
        """
        publisher.delete()
        subscriber.delete()

    return Link(send, receive, close)


LIBRARIES: dict[str, Callable[[Connection, str, int, bool], Link]] = {
    "multiprocessing": _overConnection,
    "pipe": _overPipe,
    "queues": _overQueues,
    "queue": _overQueue,
    "queues-queue": _overOurQueue,
    "zmq": _overZMQ,
    "iceoryx2": _overIceoryx,
}


def _echo(link: Link, size: int) -> None:
    """
    Send back what comes, up to a message of zeros.
    """
    last = bytes(size)
    data = b""
    while data != last:
        data = link.receive()
        link.send(data)


def _sink(link: Link, size: int, count: int, isHashed: bool) -> None:
    """
    Swallow so many messages and acknowledge the last one.
    """
    digest = hashlib.sha256()
    for _ in range(count):
        data = link.receive()
        if isHashed:
            digest.update(data)
    link.send(digest.digest().ljust(size, b"\0"))


def _session(library: str, place: str, control: Connection) -> None:
    """
    Serve one client's row.
    """
    size = control.recv()
    link = LIBRARIES[library](control, place, size, True)
    control.send(None)
    try:
        while True:
            service, *arguments = control.recv()
            services: dict[str, Callable[..., object]] = {"echo": _echo, "sink": _sink}
            services[service](link, size, *arguments)
    except EOFError:
        link.close()


def serve(library: str) -> None:
    """
    Listen, say so, end with standard input.
    """
    place = os.path.join(os.getcwd(), "link")
    listener = Listener(place, "AF_UNIX")

    def sessions() -> None:
        """
        One after the other.
        """
        while True:
            with listener.accept() as control:
                _session(library, place, control)

    threading.Thread(target=sessions, daemon=True).start()
    print(json.dumps({"link": 0}), flush=True)
    sys.stdin.read()


def roundTrip(link: Link, control: Connection, command: dict[str, Any]) -> Figures:
    """
    One message out and back, again and again.
    """
    send, receive, message = link.send, link.receive, pattern(command["size"])
    control.send(["echo"])
    send(message)
    if receive() != message:
        raise ValueError("an echo differs")
    times: list[int] = []
    for share in (0.25, 1):
        times.clear()
        now = perf_counter_ns()
        end = now + int(command["seconds"] * share * 1e9)
        while now < end:
            begun = now
            send(message)
            receive()
            now = perf_counter_ns()
            times.append(now - begun)
    send(bytes(len(message)))
    receive()
    return latencies(times)


def _stream(link: Link, control: Connection, chunks: Sequence[bytes], count: int, isHashed: bool) -> bytes:
    """
    One whole stream.

    @return: the acknowledgement of the last message.
    """
    control.send(["sink", count, isHashed])
    send, length = link.send, len(chunks)
    for number in range(count):
        send(chunks[number % length])
    return link.receive()


def stream(link: Link, control: Connection, command: dict[str, Any]) -> Figures:
    """
    Send messages until the last one is acknowledged.
    """
    size, seconds = command["size"], command["seconds"]
    chunks = chunksOf(size, command["workload"] == "cold")
    processes = (os.getpid(), command["server"])
    count, took = 8, 0.0
    while took < seconds / 8:
        count *= 2
        begun = perf_counter()
        _stream(link, control, chunks, count, False)
        took = perf_counter() - begun
    count = max(1, int(count * seconds / took))
    used, begun = cpuNanoseconds(processes), perf_counter()
    _stream(link, control, chunks, count, False)
    took, used = perf_counter() - begun, cpuNanoseconds(processes) - used
    checked = max(2, CHECKED_BYTES // size)
    content = pattern(size + checked)
    different = [content[at : at + size] for at in range(checked)]
    if _stream(link, control, different, checked, True)[:32] != hashlib.sha256(b"".join(different)).digest():
        raise ValueError("a stream differs")
    return {"MB/s": size * count / took / 1e6, "CPU": used * 1024 / (size * count)}


WORKLOADS = {"roundTrip": roundTrip, "stream": stream, "cold": stream}


def run(library: str, command: dict[str, Any]) -> Figures:
    """
    One row.
    """
    place, size = command["link"], command["size"]
    with Client(place, "AF_UNIX") as control:
        control.send(size)
        control.recv()
        link = LIBRARIES[library](control, place, size, False)
        try:
            return WORKLOADS[command["workload"]](link, control, command)
        finally:
            link.close()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[3])
    else:
        answerRows(lambda command: run(sys.argv[3], command))
