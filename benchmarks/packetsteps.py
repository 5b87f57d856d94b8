"""
The steps of packets over UDP on loopback: a message of 64 bytes; bulk in packets of 60 KiB, as between ends
of this package, and of 4 KiB, as to others; and what each of them takes of a MiB.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from mmap import mmap
from time import thread_time_ns
from typing import Any

from twisted.internet.defer import Deferred

from benchmarks.stepping import Both, connected, least
from benchmarks.steps import Table
from twisted_ib.hca.transport.segmentation import Record
from twisted_ib.hca.wire.icrc import CRC32_LIBRARY, crc32
from twisted_ib.hca.wire.opcodes import SEND_ONLY

SMALL = bytes(64)
MIB = bytes(1 << 20)
#: Bytes of a packet, and how many of those UDP carries in one call.
SIZES = (61440, 1), (4096, 15)
BULK = 61440
#: Octets of the header of a stream's message.
HEADER = 16
#: Calls of one run of what takes long.
CALLS = 100

HERE, THERE = "127.0.0.1", "127.0.0.2"
_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104


class _Link:
    """
    Where packets go that nobody takes.

    @ivar calls: What was to be sent.
    """

    burst = 62

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []

    def send(self, destination: str, port: int, pieces: list[Any], *rest: Any) -> bool:
        """
        Forget all but the latest.
        """
        self.calls[:] = [pieces]
        return True


class _Counted:
    """
    Counts what a fabric's link sends: bulk and acknowledgements.
    """

    def __init__(self, fabric: Any, calls: Counter[str]) -> None:
        self._link, self._calls = fabric.link, calls
        self.burst = self._link.burst

    def send(self, destination: str, port: int, pieces: list[Any], size: int, *rest: Any) -> bool:
        """
        One call.
        """
        self._calls["acknowledgements" if size <= len(SMALL) else "bulk"] += 1
        return bool(self._link.send(destination, port, pieces, size, *rest))


class _Connection:
    """
    Takes packets that were checked.

    @ivar responder: what takes several.
    """

    def __init__(self) -> None:
        """
        It is all in one.
        """
        self.responder = self

    def receive(self, *packet: Any) -> None:
        """
        One.
        """

    def continued(self, *packets: Any) -> bool:
        """
        Several.
        """
        return True


def measure(reactor: Any, runs: int) -> Deferred[list[Table]]:
    """
    All steps.
    """
    return Deferred.fromCoroutine(_measured(reactor, runs))


async def _measured(reactor: Any, runs: int) -> list[Table]:
    small = Table("Packets over UDP, one way of a 64 B message", "ns")
    tables = [small]
    for mtu, batch in SIZES:
        title = f"Packets over UDP, {batch} of {mtu >> 10} KiB in one call; ICRC by {CRC32_LIBRARY}"
        bulk, mib = Table(title, "ns"), Table(f"One MiB in packets of {mtu >> 10} KiB, both ends", "us")
        both = await connected(reactor, HERE, THERE, "roce0")
        if mtu == max(SIZES)[0]:
            _single(small, both, runs)
            # The next one connects with this, which is asked for once a second.
            fabric = both.server.channel.device.fabric
            fabric.link.pathMTU = min(SIZES)[0]
            fabric._routesUntil = 0.0
        whole = _whole(bulk, both, runs)
        _layers(bulk, both, runs, mtu, batch)
        _kernel(bulk, runs, [MIB[: mtu + HEADER]] * batch, mtu + HEADER)
        _spent(mib, both, runs, whole, small, bulk, mtu, batch)
        for end in (both.client, both.server):
            end.abortConnection()
        both.port.stopListening()
        both.settle()
        tables += bulk, mib
    return tables


def _single(small: Table, both: Both, runs: int) -> None:
    there, write = both.server.channel.device, both.client.write

    def one() -> None:
        """
        One message.
        """
        write(SMALL)
        both.device.progress()
        there.progress()

    small.add("whole: write to dataReceived, both ends", least(runs, one, CALLS), "acknowledgements included")
    both.settle()
    path, link = both.client.queuePair.path, _Link()
    single = SEND_ONLY, 1, 1, bytes(HEADER), SMALL
    with _Apart(both, link) as source:
        small.add(
            "sendOne: header and ICRC", least(runs, lambda: path.fabric.transmitter.sendOne(path, single))
        )
        small.add("take: checks", least(runs, _taking(both, link, source, 0)))
    _kernel(small, runs, [MIB[: len(SMALL) + 2 * HEADER]], 0)
    with select.epoll() as poller:
        small.add("kernel: epoll finds nothing", least(runs, lambda: poller.poll(0)))


def _whole(bulk: Table, both: Both, runs: int) -> float:
    # A MiB's ns.
    write = both.client.write

    def many() -> None:
        """
        One MiB.
        """
        write(MIB)
        both.settle()

    many()
    found, share = least(runs, many, 2), len(MIB) / BULK
    bulk.add("whole: write to dataReceived, both ends", found / share, f"1 MiB: {share:.1f} times this")
    return found


class _Apart:
    """
    The packets of one end reach the other no more, which takes any.
    """

    def __init__(self, both: Both, link: _Link) -> None:
        self._both, self._link = both, link
        self._path = both.client.queuePair.path
        fabric = both.server.channel.device.fabric
        self._peer = fabric.sessions.byNumber[self._path.remote]
        self._source = self._path.fabric.address, self._path.port, fabric.address

    def __enter__(self) -> tuple[str, int, str]:
        transmitter = self._path.fabric.transmitter
        self._own, transmitter.link = transmitter.link, self._link
        self._connection, self._peer.connection = self._peer.connection, _Connection()
        return self._source

    def __exit__(self, *reason: object) -> None:
        self._path.fabric.transmitter.link, self._peer.connection = self._own, self._connection
        self._both.settle()


def _layers(bulk: Table, both: Both, runs: int, mtu: int, batch: int) -> None:
    path, link = both.client.queuePair.path, _Link()
    assert path.mtu == mtu, path.mtu
    record = Record(SEND_ONLY, 0, bytes(HEADER), MIB[: BULK - HEADER], 1, 1, mtu)
    packets: list[Any] = []
    record.cut(1, 1 + batch, mtu, packets, -1)
    with _Apart(both, link) as source:
        bulk.add(
            "cut: the packets of a message", least(runs, lambda: record.cut(1, 1 + batch, mtu, [], -1), CALLS)
        )
        sending = lambda: path.fabric.transmitter.send(path, packets.copy())  # noqa: E731
        bulk.add("send: headers and ICRCs", least(runs, sending, CALLS))
        bulk.add("take: checks", least(runs, _taking(both, link, source, mtu + HEADER), CALLS))
    bulk.add("the CRC of the packets alone", batch * least(runs, lambda: crc32(MIB[:mtu])))
    views = [memoryview(MIB)[at : at + mtu] for at in range(0, BULK, mtu)]
    # The last packet's payload is taken for itself.
    copying = (lambda: bytes(views[0])) if batch == 1 else lambda: b"".join((b"".join(views[:-1]), views[-1]))
    bulk.add("the receiver's copies alone", least(runs, copying, CALLS))


def _taking(both: Both, link: _Link, source: tuple[str, int, str], size: int) -> Callable[[], object]:
    # What the link of the peer does with the latest call.
    octets = b"".join(link.calls[0])
    buffer = mmap(-1, 1 << 16)
    buffer[: len(octets)] = octets
    address, port, destination = source
    fabric = both.server.channel.device.fabric
    return lambda: fabric.arrived(address, port, destination, buffer, 0, len(octets), size or len(octets))


def _spent(
    mib: Table, both: Both, runs: int, whole: float, small: Table, bulk: Table, mtu: int, batch: int
) -> None:
    # Of one MiB, by the steps and how often they are taken.
    fabrics = [end.channel.device.fabric for end in (both.client, both.server)]
    calls: Counter[str] = Counter()
    for fabric in fabrics:
        fabric.transmitter.link = _Counted(fabric, calls)
    both.client.write(MIB)
    both.settle()
    for fabric in fabrics:
        fabric.transmitter.link = fabric.link
    one, several = ({name: value for name, value, _ in table.steps} for table in (small, bulk))
    share, asked = len(MIB) / BULK, calls["acknowledgements"]
    check = several["the CRC of the packets alone"]
    made = several["cut: the packets of a message"] + several["send: headers and ICRCs"] - check
    spent = (
        (f"system calls: {calls['bulk']} sendmsg", calls["bulk"] * several["kernel: send"]),
        (f"system calls: {calls['bulk']} recvmsg", calls["bulk"] * several["kernel: receive"]),
        ("ICRC, both ends", 2 * share * check),
        ("copies at the receiver", share * several["the receiver's copies alone"]),
        ("Python for packets, sender", share * made),
        ("Python for packets, receiver", share * (several["take: checks"] - check)),
        (
            f"{asked} acknowledgements, with system calls",
            asked
            * sum(value for name, value in one.items() if not name.startswith(("whole", "kernel: epoll"))),
        ),
    )
    for name, value in spent:
        mib.add(name, value / 1000)
    mib.add("the rest: transport, messages, turns", (whole - sum(value for _, value in spent)) / 1000)
    mib.add("whole: write to dataReceived", whole / 1000)


def _kernel(table: Table, runs: int, pieces: list[bytes], size: int) -> None:
    with _socket(HERE) as one, _socket(THERE) as two:
        two.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        where, view = two.getsockname(), [memoryview(mmap(-1, 1 << 16))]
        segments = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", size))]
        send = (
            partial(one.sendmsg, pieces, segments, 0, where)
            if size
            else partial(one.sendto, pieces[0], where)
        )
        sent, taken = _alternating(send, lambda: two.recvmsg_into(view, 128), runs)
        table.add("kernel: send", sent)
        table.add("kernel: receive", taken)


def _socket(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    made.bind((address, 0))
    return made


def _alternating(first: Callable[[], object], second: Callable[[], object], runs: int) -> tuple[float, float]:
    ones, twos = [], []
    for _ in range(runs):
        one = two = 0
        for _ in range(CALLS):
            begun = thread_time_ns()
            first()
            middle = thread_time_ns()
            second()
            one += middle - begun
            two += thread_time_ns() - middle
        ones.append(one / CALLS)
        twos.append(two / CALLS)
    return min(ones), min(twos)
