"""
The steps of one message of 64 bytes, down and up.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from twisted.internet.defer import Deferred

from benchmarks.stepping import (
    Both,
    Quiet,
    Swallow,
    callNanoseconds,
    clockNanoseconds,
    connected,
    least,
)
from benchmarks.steps import Table
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.wire.opcodes import SEND_ONLY
from twisted_ib.sdp.protocol.machine import Machine
from twisted_ib.sdp.protocol.wire import BSDH_BYTES

SIZE = 64
#: Messages of one run: each leaves and arrives before the next.
MESSAGES = 400
#: Writes of a turn behind the second.
FURTHER = 30
#: A queue pair number that nobody else has, and records of one run to it.
NUMBER, RECORDS = 0xFFFFF0, 60
_WORD = SEND_ONLY << 24 | NUMBER
#: Never used up.
_PLENTY = 1 << 40


class _Medium:
    """
    A path that takes everything.
    """

    def forget(self, number: int) -> None:
        """
        Nobody is known.
        """

    def bind(self, queuePair: Any, message: Any = None) -> Any:
        """
        @return: This.
        """
        return self

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        """
        It is taken.
        """
        return True


class _Consumer:
    """
    A consumer that does nothing.
    """

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A message.
        """


def measure(reactor: Any, runs: int) -> Deferred[list[Table]]:
    """
    Both tables, for sending and receiving.
    """
    return connected(reactor).addCallback(_tables, runs)


def _tables(both: Both, runs: int) -> list[Table]:
    """
    Measure on two ends.
    """
    sent, batch, came = _whole(both, runs)
    second, gathered = _gathered(both, runs)
    post, drained, single = _fabric(both, runs)
    header, parsed = _machine(runs)
    down, up = _queuePair(runs)
    protocol = least(runs, lambda: Quiet.dataReceived(_QUIET, b""))
    sending = Table("Send 64 B", "ns")
    sending.add("transport.write, first of a turn, and its sending, all below", sent)
    sending.add("fabric: post", post)
    sending.add("transport, machine and queue pair", sent - post, "the difference")
    sending.add("machine.header, called by itself", header)
    sending.add("QueuePair.postInline, called by itself, without the fabric", down)
    sending.add("transport.write, second of a turn", second)
    sending.add("transport.write, third of a turn and further", gathered)
    sending.add("end of a batch with one write in it, bell included", batch)
    receiving = Table("Receive 64 B", "ns")
    receiving.add("fabric.progress of one record, all above", came, "credits and their messages included")
    receiving.add("fabric.progress of one record, nobody above", single)
    receiving.add("queue pair, transport, machine, protocol", came - single, "the difference")
    receiving.add("fabric: drain, of many records one", drained)
    receiving.add("QueuePair.delivered, called by itself, without a consumer", up)
    receiving.add("machine.receive, called by itself", parsed)
    receiving.add("protocol.dataReceived that does nothing", protocol)
    both.client.abortConnection()
    both.port.stopListening()
    both.settle()
    return [sending, receiving]


_QUIET = Quiet()


def _whole(both: Both, runs: int) -> tuple[float, float, float]:
    """
    Through all layers.

    @return: ns of the first write of a turn and its sending, of the end of a batch, of the arrival.
    """
    write, progress = both.client.write, both.device.progress
    send, device = both.client.postWritten, both.device
    arrive, take = both.server.queuePair.path.progress, both.settle
    data = bytes(SIZE)
    # The first message of a connection goes at the end of its batch.
    write(data)
    take()
    found = []
    for _ in range(runs):
        first = end = arrival = 0
        for _ in range(MESSAGES):
            begun = perf_counter_ns()
            write(data)
            send(device.writers)
            wrote = perf_counter_ns()
            device.writers.clear()
            n = arrive(1)
            arrived = perf_counter_ns()
            assert n == 1, "a write was not sent"
            first += wrote - begun
            arrival += arrived - wrote
            begun = perf_counter_ns()
            progress()
            end += perf_counter_ns() - begun
            take()
        found.append((first, end, arrival))
    clock = clockNanoseconds(runs)
    first, end, arrival = (min(each) / MESSAGES - clock for each in zip(*found, strict=True))
    return first, end, arrival


def _gathered(both: Both, runs: int) -> tuple[float, float]:
    """
    @return: ns of the second write of a turn, and of one of those behind it.
    """
    write, take, data = both.client.write, both.settle, bytes(SIZE)
    numbers = range(FURTHER)
    found = []
    for _ in range(runs):
        second = further = 0
        for _ in range(MESSAGES // 4):
            write(data)
            begun = perf_counter_ns()
            write(data)
            wrote = perf_counter_ns()
            for _ in numbers:
                write(data)
            further += perf_counter_ns() - wrote
            second += wrote - begun
            take()
        found.append((second, further / FURTHER))
    clock = clockNanoseconds(runs)
    second, further = (min(each) / (MESSAGES // 4) for each in zip(*found, strict=True))
    return second - clock, further - clock / FURTHER


def _fabric(both: Both, runs: int) -> tuple[float, float, float]:
    """
    @return: ns of a post of one record, of taking one of many, of taking it alone.
    """
    below, above = both.client.queuePair.path, both.server.queuePair.path
    above.table[NUMBER] = Swallow()
    header, data = bytes(BSDH_BYTES), bytes(SIZE)
    post, numbers = below.post, range(RECORDS)
    found, alone = [], []
    for _ in range(runs * 10):
        begun = perf_counter_ns()
        for _ in numbers:
            post(_WORD, header, data, SIZE)
        posted = perf_counter_ns()
        n = above.progress(RECORDS)
        taken = perf_counter_ns()
        assert n == RECORDS, f"{n} records of {RECORDS} arrived"
        found.append((posted - begun, taken - posted))
        single = 0
        for _ in numbers:
            post(_WORD, header, data, SIZE)
            begun = perf_counter_ns()
            above.progress(1)
            single += perf_counter_ns() - begun
        alone.append(single)
        both.settle()
    del above.table[NUMBER]
    down, up = (min(each) / RECORDS for each in zip(*found, strict=True))
    return down, up, min(alone) / RECORDS - clockNanoseconds(runs)


def _machine(runs: int) -> tuple[float, float]:
    """
    @return: ns of a header made, and of one parsed.
    """
    sender, receiver = Machine(64), Machine(64)
    sender.limit = _PLENTY
    receiver.limit = _PLENTY
    made = least(runs, lambda: sender.header(SIZE, 64))
    first = Machine(64)
    first.limit = 64
    message = (first.header(SIZE, 64) or b"") + bytes(SIZE)

    def parse() -> None:
        """
        The same message again.
        """
        receiver.received = 0
        receiver.receive(message, 0, len(message))

    def reset() -> None:
        """
        Prepare to parse it again.
        """
        receiver.received = 0

    call = callNanoseconds(runs)
    return made - call, least(runs, parse) - least(runs, reset)


def _queuePair(runs: int) -> tuple[float, float]:
    """
    @return: ns of a queue pair's part, down and up.
    """
    queuePair: Any = QueuePair(NUMBER, _Consumer())
    medium: Any = _Medium()
    queuePair.connect(medium, NUMBER)
    queuePair.posted = _PLENTY
    header, data = bytes(BSDH_BYTES), bytes(SIZE)
    record = header + data
    consumer = queuePair.consumer
    down = least(runs, lambda: queuePair.postInline(header, data, SIZE))
    down -= least(runs, lambda: medium.post(_WORD, header, data, SIZE))
    up = least(runs, lambda: queuePair.delivered(SEND_ONLY, record, 0, len(record)))
    return down, up - least(runs, lambda: consumer.received(record, 0, len(record)))
