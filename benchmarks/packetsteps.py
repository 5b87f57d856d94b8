"""
The steps of packets over UDP on loopback: a message of 64 bytes, and one MiB in packets of 4 KiB.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
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
MTU = 4096
#: What UDP carries in one call of such packets.
BATCH = 15
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


class _Connection:
    """
    Takes packets that were checked.
    """

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
    done: Deferred[Both] = connected(reactor, HERE, THERE, "roce0")
    return done.addCallback(_measured, runs)


def _measured(both: Both, runs: int) -> list[Table]:
    small = Table("Packets over UDP, one way of a 64 B message", "ns")
    bulk = Table(f"Packets over UDP, {BATCH} of 4 KiB in one call; ICRC by {CRC32_LIBRARY}", "ns")
    _whole(small, bulk, both, runs)
    _layers(small, bulk, both, runs)
    bulk.add(f"the CRC of {BATCH} packets alone", BATCH * least(runs, lambda: crc32(MIB[:MTU])))
    _kernel(small, bulk, runs)
    for end in (both.client, both.server):
        end.abortConnection()
    both.port.stopListening()
    both.settle()
    return [small, bulk]


def _whole(small: Table, bulk: Table, both: Both, runs: int) -> None:
    there, write = both.server.channel.device, both.client.write

    def one() -> None:
        """
        One message.
        """
        write(SMALL)
        both.device.progress()
        there.progress()

    def many() -> None:
        """
        One MiB.
        """
        write(MIB)
        both.settle()

    small.add("whole: write to dataReceived, both ends", least(runs, one, CALLS), "acknowledgements included")
    both.settle()
    share = BATCH * MTU / len(MIB)
    found = least(runs, many, 2) * share
    bulk.add("whole: write to dataReceived, both ends", found, f"1 MiB: {1 / share:.1f} times this")


def _layers(small: Table, bulk: Table, both: Both, runs: int) -> None:
    path, fabric = both.client.queuePair.path, both.server.channel.device.fabric
    peer = fabric.sessions.byNumber[path.remote]
    transmitter, link = path.fabric.transmitter, _Link()
    transmitter.link, own = link, transmitter.link
    peer.connection, connection = _Connection(), peer.connection
    record = Record(SEND_ONLY, 0, bytes(HEADER), MIB[: BATCH * MTU - HEADER], 1, 1, MTU)
    packets: list[Any] = []
    record.cut(1, 1 + BATCH, MTU, packets, -1)
    single = SEND_ONLY, 1, 1, bytes(HEADER), SMALL
    source = path.fabric.address, path.port, fabric.address
    try:
        small.add("sendOne: header and ICRC", least(runs, lambda: transmitter.sendOne(path, single)))
        small.add("take: checks", least(runs, _taking(fabric, link, source, 0)))
        cutting: Callable[[], Any] = lambda: record.cut(1, 1 + BATCH, MTU, [], -1)  # noqa: E731
        bulk.add("cut: the packets of a message", least(runs, cutting, CALLS))
        bulk.add(
            "send: headers and ICRCs", least(runs, lambda: transmitter.send(path, packets.copy()), CALLS)
        )
        bulk.add("take: checks", least(runs, _taking(fabric, link, source, MTU + HEADER), CALLS))
    finally:
        transmitter.link, peer.connection = own, connection
        both.settle()


def _taking(fabric: Any, link: _Link, source: tuple[str, int, str], size: int) -> Callable[[], object]:
    # What the link of the peer does with the latest call.
    octets = b"".join(link.calls[0])
    buffer = mmap(-1, 1 << 16)
    buffer[: len(octets)] = octets
    address, port, destination = source
    return lambda: fabric.arrived(address, port, destination, buffer, 0, len(octets), size or len(octets))


def _kernel(small: Table, bulk: Table, runs: int) -> None:
    with _socket(HERE) as one, _socket(THERE) as two, select.epoll() as poller:
        two.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        poller.register(two, select.EPOLLIN)
        where, view = two.getsockname(), [memoryview(mmap(-1, 1 << 16))]
        packet, segments = bytes(MTU + HEADER), [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", MTU + HEADER))]
        for table, send in (
            (small, lambda: one.sendto(packet[: len(SMALL) + 2 * HEADER], where)),
            (bulk, lambda: one.sendmsg([packet] * BATCH, segments, 0, where)),
        ):
            sent, taken = _alternating(send, lambda: two.recvmsg_into(view, 128), runs)
            table.add("kernel: send", sent)
            table.add("kernel: receive", taken)
        small.add("kernel: epoll finds nothing", least(runs, lambda: poller.poll(0)))


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
