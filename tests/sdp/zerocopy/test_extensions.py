"""
Tests for L{twisted_ib.sdp.extensions}, L{twisted_ib.sdp.zerocopysend} and L{twisted_ib.sdp.zerocopyreceive}:
two ends over C{lo0} under whatever schedule.
"""

from __future__ import annotations

import random
from typing import Any
from unittest import SkipTest

from hypothesis import strategies as st
from zope.interface import implementer

from tests.sdp.pair import Pair, PairTestCase, Recorder
from tests.sdp.stream.test_stream import ERRORS, PATTERN
from tests.support.generated import given, settings
from twisted_ib.errors import SDPError
from twisted_ib.interfaces import ISDPBufferedProtocol, ISDPUrgentProtocol
from twisted_ib.sdp.protocol.wire import Transition

#: What the two ends write from.
SOURCE = PATTERN + PATTERN
#: From this size on memory is not copied here.
LEAST = 16384
#: Bytes of a place.
SIZES = (100, 5000, 65536, 100000)


@implementer(ISDPUrgentProtocol)
class Hearing(Recorder):
    """
    Takes urgent data out of the stream.

    @ivar urgent: That.
    """

    def __init__(self) -> None:
        """
        None yet.
        """
        super().__init__()
        self.urgent = b""

    def urgentDataReceived(self, byte: bytes) -> None:
        self.urgent += byte


@implementer(ISDPBufferedProtocol)
class Places(Hearing):
    """
    Has places for what comes.

    @ivar size: Bytes of a place.
    @ivar free: Offsets of those that it may give.
    @ivar given: Offsets of those that it gave, in order.
    """

    size = 65536
    count = 4
    region: Any = None

    def getBuffer(self) -> Any:
        """
        Give one, if there is one.
        """
        if self.region is None:
            self.region = self.transport.registerMemory(bytearray(self.count * self.size))  # type: ignore[attr-defined, union-attr]
            self.free = [i * self.size for i in range(self.count)]
            self.given: list[int] = []
        if not self.free:
            return None
        self.given.append(self.free.pop(0))
        return self.region, self.given[-1], self.size

    def bufferFilled(self, region: Any, offset: int, count: int) -> None:
        """
        Remember what is there; the places come in the order of giving.
        """
        assert region is self.region
        assert self.given.pop(0) == offset
        if count:
            self.dataReceived(bytes(region.view[offset : offset + count]))
        self.free.append(offset)


def verify(end: Any) -> None:
    """
    Check what must hold of an end between any two calls.
    """
    machine, exchange = end.machine, end.extensions
    assert machine.sequence <= machine.limit, "sent without credit"
    dirty = end.channel.device._dirty
    assert end.corked == (end in dirty)
    if exchange is None or end.queuePair.path is None:
        return
    source, sink = machine.zero.source, machine.zero.sink
    zeroCopySend, zeroCopyReceive = exchange.zeroCopySend, exchange.zeroCopyReceive
    assert [offer.user for offer in source.offers] == [
        item for item in zeroCopySend.items if getattr(item, "offered", False)
    ]
    assert len(sink.places) <= min(sink.most, len(zeroCopyReceive.places))
    assert zeroCopySend.size >= 0
    if zeroCopySend.takes(0):
        assert end.buffer is not None and end.room < 0, "nobody looks at what waits"


class Game:
    """
    Two ends, and what they were told to send.
    """

    def __init__(self, polled: bool, seed: int, kinds: tuple[int, int], adverts: int, payload: int) -> None:
        """
        @param kinds: What protocols: 0 plain, 1 urgent, 2 and up places of a size.
        @param adverts: MaxAdverts that each takes the other to have.
        @param payload: The longest payload.
        """
        self.pair = Pair(polled)
        self.random = random.Random(seed)
        protocols = [self.protocol(kind) for kind in kinds]
        self.ends = self.pair.connected(*protocols)
        self.sent = [b"", b""]
        self.urgent = [b"", b""]
        self.waiting = [0, 0]
        for end in self.ends:
            end.setZeroCopyThresholds(LEAST)
            end.adverts = adverts
            if end.extensions is not None:
                end.machine.zero.source.most = end.machine.zero.sink.most = adverts
            end.limitPayload(payload)
        self.regions = [
            end.registerMemory(SOURCE) if k else end.registerMemory(len(SOURCE))
            for k, end in enumerate(self.ends)
        ]
        self.regions[0].view[:] = SOURCE

    @staticmethod
    def protocol(kind: int) -> Recorder:
        """
        @return: A protocol of that kind.
        """
        if kind < 2:
            return Hearing() if kind else Recorder()
        places = Places()
        places.size = SIZES[kind - 2]
        return places

    def play(self, second: int, what: str, n: int) -> None:
        """
        Make one step.
        """
        end = self.ends[second]
        if what == "write":
            at = len(self.sent[second]) % 251
            data = SOURCE[at : at + n]
            self.sent[second] += data
            end.write(data)
        elif what == "registered":
            at = self.random.randrange(len(SOURCE) - n)
            self.sent[second] += SOURCE[at : at + n]
            self.waiting[second] += 1
            end.writeRegistered(self.regions[second], at, n).addCallback(self.free, second)
        elif what == "urgent":
            byte = bytes((self.random.randrange(256),))
            if isinstance(self.ends[1 - second].heard, Hearing):
                self.urgent[second] += byte
            else:
                self.sent[second] += byte
            end.sendUrgent(byte)
        elif what == "turn":
            self.pair.ends[second].turn()
        elif what == "pause":
            end.pauseProducing()
        elif what == "resume":
            end.resumeProducing()
        elif what == "cancel":
            end.openExtensions().zeroCopySend.retract()
        elif what == "mode":
            try:
                end.openExtensions().changeMode(list(Transition)[n % 4])
            except SDPError:
                pass
        elif what == "threshold":
            end.setZeroCopyThresholds(LEAST, n or None)
        else:
            self.pair.settle()
        for each in self.ends:
            verify(each)

    def free(self, result: None, second: int) -> None:
        """
        Memory may be used again.
        """
        self.waiting[second] -= 1

    def finish(self) -> None:
        """
        Everything has arrived; close.
        """
        self.settleReading()
        errors = [end.device.counters[ERRORS] for end in self.pair.ends]
        assert errors == [0, 0], [str(end.heard.reason) for end in self.ends]
        for second in (0, 1):
            other = self.ends[1 - second].heard
            assert other.data == self.sent[second], (len(other.data), len(self.sent[second]))
            assert getattr(other, "urgent", b"") == self.urgent[second]
        assert self.waiting == [0, 0]
        first, last = self.ends
        if self.random.random() < 0.5:
            first, last = last, first
        first.write(b"last")
        region = self.regions[self.ends.index(first)]
        first.writeRegistered(region, 0, 70000)
        first.loseConnection()
        self.pair.settle()
        assert last.heard.data.endswith(b"last" + SOURCE[:70000])
        assert [end.heard.calls for end in self.ends] == [["ConnectionDone"]] * 2
        for each in self.pair.ends:
            assert not any(each.device.inUse().values()), each.device.inUse()
            assert each.device.receiveBudget.heldBytes == 0

    def settleReading(self) -> None:
        """
        Both read, to the end.
        """
        for end in self.ends:
            end.resumeProducing()
        self.pair.settle()

    def close(self) -> None:
        """
        Give everything back.
        """
        self.pair.close()


LENGTHS = (1, 64, 65, 300, 4096, 8191, 16383, 16384, 16385, 65535, 65536, 65537, 130000, 200001)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(
            st.tuples(st.just("write"), st.integers(1, 200)),
            st.tuples(st.sampled_from(["write", "registered", "registered"]), st.sampled_from(LENGTHS)),
            st.tuples(st.sampled_from(["turn", "turn", "turn", "pause", "resume", "settle"]), st.just(0)),
            st.tuples(st.sampled_from(["urgent", "cancel"]), st.just(0)),
            st.tuples(st.just("mode"), st.integers(0, 3)),
            st.tuples(st.just("threshold"), st.sampled_from([0, 1, 20000])),
        ),
    ),
    max_size=60,
)
SETTINGS = st.tuples(
    st.booleans(),
    st.integers(0, 1000),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.sampled_from([1, 2, 16]),
    st.sampled_from([1024, 32768, 65536]),
)


class ScheduleTests(PairTestCase):
    """
    Exact byte streams.
    """

    seeds = 12

    def play(self, setting: Any, steps: Any) -> None:
        """
        Play a schedule.
        """
        game = Game(*setting)
        try:
            for second, (what, n) in steps:
                game.play(second, what, n)
            game.finish()
        finally:
            game.close()

    @settings(max_examples=120, deadline=None)
    @given(SETTINGS, STEPS)
    def test_anySchedule(self, setting: Any, steps: Any) -> None:
        """
        Two ends write, offer, cancel and pause at any time, in any modes: the bytes arrive whole and in
        order, the memory is free again, and nothing is left.
        """
        self.play(setting, steps)

    def test_seeded(self) -> None:
        """
        The same with long schedules that only a seed decides.
        """
        for seed in range(self.seeds):
            self.seeded(seed)

    def seeded(self, seed: int, steps: int = 150) -> None:
        """
        Play what a seed says.
        """
        draw = random.Random(seed)
        kinds = draw.randrange(6), draw.randrange(6)
        setting = (
            draw.random() < 0.5,
            seed,
            kinds,
            draw.choice((1, 2, 16)),
            draw.choice((1024, 32768, 65536)),
        )
        words = "write write registered registered turn turn turn pause resume resume settle urgent"
        words += " cancel mode"
        plan = []
        for _ in range(steps):
            what = draw.choice(words.split())
            n = draw.choice(LENGTHS) if what in ("write", "registered") else draw.randrange(4)
            plan.append((draw.randrange(2), (what, n)))
        try:
            self.play(setting, plan)
        except SkipTest:
            raise
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
