"""
Tests of L{twisted_ib.hca.services.datagramconsumer}, in both forms and on devices of each kind.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

from tests.hca.device.everykind import EveryKindTestCase
from tests.hca.hcas import settle
from tests.hca.services.datagrams.cases import DatagramTestCase
from tests.hca.services.datagrams.datagram_pair import KEY, DatagramPair
from tests.hca.services.datagrams.localpair import LIDS, LocalPair
from tests.support.calls import called
from twisted_ib import limits
from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.partition import DEFAULT_PKEY
from twisted_ib.hca.base.port import PortChange
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.services.address import AddressHandle, AddressVector
from twisted_ib.hca.services.datagramconsumer import InlineDatagrams
from twisted_ib.hca.services.datagramform import FORMS
from twisted_ib.hca.wire.grh import guidGID
from twisted_ib.hca.wire.headers import DETH

#: States, and the attributes that lead to them.
STEPS: tuple[tuple[QPState, dict[str, int]], ...] = (
    (QPState.INIT, {"pkey_index": 0, "port_num": 1, "qkey": KEY}),
    (QPState.RTR, {}),
    (QPState.RTS, {"sq_psn": 0}),
)


class Taker:
    """
    An L{IDatagramConsumer}.

    @ivar got: sources and payloads.
    """

    def __init__(self) -> None:
        self.got: list[tuple[Any, bytes]] = []
        self.failures: list[Exception] = []
        self.isForked = False

    def datagramReceived(self, source: Any, buffer: bytes, start: int, stop: int) -> None:
        self.got.append((source, buffer[start:stop]))

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in ERR.
        """
        self.failures.append(reason)

    def forked(self) -> None:
        """
        This is a child.
        """
        self.isForked = True


class Silent(Taker):
    """
    One that counts only.
    """

    count = 0

    def datagramReceived(self, source: Any, buffer: bytes, start: int, stop: int) -> None:
        self.count += 1


def raised(queuePair: QueuePair) -> InlineDatagrams:
    """
    Bring a queue pair to RTS.
    """
    datagrams = InlineDatagrams(queuePair)
    for state, attributes in STEPS:
        queuePair.modify(state, **attributes)
    return datagrams


class FormTests(DatagramTestCase):
    """
    Two HCAs in memory, with GIDs.

    @cvar receiver: the address of C{b}.
    @cvar sender: that of C{a}, as replies have it.
    """

    receiver = AddressVector(guidGID(0xB1), hopLimit=64, trafficClass=9)
    sender = AddressVector(guidGID(0xA1), hopLimit=255, trafficClass=9)

    def connect(self, **arguments: Any) -> None:
        """
        Without work queues.
        """
        super().connect(**arguments)
        self.make(self.p)

    def make(self, pair: DatagramPair) -> None:
        """
        A queue pair without work queues on each side.
        """
        self.takers = [Taker(), Taker()]
        self.ends: list[InlineDatagrams] = []
        for side, taker in zip((pair.a, pair.b), self.takers, strict=True):
            number = side.qp.number
            side.qp.close()
            side.qp = side.hca.queuePairs[number] = QueuePair(number, taker, side.hca, QPType.UD)
            self.ends.append(raised(side.qp))
        self.handle = AddressHandle(self.a.pd, self.receiver, self.a.hca)

    def post(self, payload: Any, key: int = KEY, number: int = 18) -> None:
        """
        One from C{a}.
        """
        self.ends[0].post(self.handle, number, key, payload)
        self.p.flow()

    def test_exchange(self) -> None:
        """
        A datagram arrives with its source, by which it is answered.
        """
        for payload in (b"", b"x", bytearray(b"abc"), memoryview(b"abcd"), bytes(limits.DATAGRAM_BYTES)):
            self.post(payload)
            source, found = self.takers[1].got.pop()
            self.assertEqual(found, bytes(payload))
        self.assertEqual(source.number, 17)
        self.assertIs(source.path, self.p.ends[1])
        self.assertEqual(source.vector, self.sender)
        back = AddressHandle(self.b.pd, source.vector, self.b.hca)
        self.ends[1].post(back, source.number, KEY, b"answer")
        self.p.flow()
        ((source, found),) = self.takers[0].got
        self.assertEqual((source.number, found), (18, b"answer"))
        self.assertEqual(self.ends[0].traffic()[:3:2], (5, 5))
        self.assertEqual(self.ends[1].messagesReceived, 5)

    def test_ownKey(self) -> None:
        """
        With its high bit set, the queue pair's own Q_Key is sent.
        """
        self.post(b"x", 1 << 31)
        self.assertEqual(len(self.takers[1].got), 1)

    def test_refused(self) -> None:
        """
        What cannot be sent is refused, and nothing leaves.
        """
        refused = self.assertRaises
        refused(QueuePairError, self.post, bytes(limits.DATAGRAM_BYTES + 1))
        for number in (-1, 1 << 24):
            refused(QueuePairError, self.post, b"x", number=number)
        for key in (-1, 1 << 32):
            refused(QueuePairError, self.post, b"x", key=key)
        self.a.qp.modify(QPState.SQD)
        self.assertFalse(self.a.qp.query()["sq_draining"])
        refused(QueuePairError, self.post, b"x")
        self.a.qp.modify(QPState.RTS)
        self.handle.close()
        refused(QueuePairError, self.post, b"x")
        self.assertEqual((self.wire(), self.ends[0].messagesSent), ([], 0))

    def test_anyDestination(self) -> None:
        """
        Every number of 24 bits and every Q_Key of 32 can be sent to.
        """
        for number, key in ((0, KEY), ((1 << 24) - 1, KEY), (18, 0), (18, (1 << 32) - 1)):
            self.post(b"x", key, number)
        self.assertEqual(self.ends[0].messagesSent, 4)

    def test_made(self) -> None:
        """
        Only a UD queue pair without work queues can be one, and attributes have their ranges.
        """
        self.assertRaises(QueuePairError, InlineDatagrams, self.a.qp)
        connected = QueuePair(30, Taker(), self.a.hca)
        self.assertRaises(QueuePairError, InlineDatagrams, connected)
        self.assertRaises(QueuePairError, self.a.qp.modify, QPState.RTS, qkey=1 << 32)

    def test_dropped(self) -> None:
        """
        A wrong Q_Key, a malformed record, and a state that does not receive.
        """
        self.post(b"x", KEY + 1)
        self.assertEqual(self.b.hca.counters, {"qkey_violations": 1})
        self.b.qp.modify(QPState.RTS, qkey=KEY + 1)
        self.post(b"x", KEY + 1)
        self.assertEqual(len(self.takers[1].got), 1)
        form = self.b.hca.datagramForm
        data = form.pack(self.a.qp, self.handle.vector, 0) + DETH.pack(KEY + 1, 17)
        self.assertEqual(self.put(data[:-1]), {"datagrams_malformed": 1})
        self.assertEqual(self.put(data, 0x66), {"datagrams_malformed": 1})
        self.b.qp.modify(QPState.RESET)
        self.assertEqual((self.put(data), self.ends[1].queueKey), ({}, 0))
        self.assertEqual(len(self.takers[1].got), 1)

    def test_immediate(self) -> None:
        """
        Immediate data is before the payload.
        """
        form = self.b.hca.datagramForm
        data = form.pack(self.a.qp, self.handle.vector, 6) + DETH.pack(KEY, 17) + b"immexy"
        for opcode in (0x65, 0xE5):
            self.assertEqual(self.put(data, opcode), {})
            self.assertEqual(self.takers[1].got.pop()[1], b"xy")

    def test_sources(self) -> None:
        """
        A source is one object as long as it is remembered; beyond the bound the oldest is forgotten.
        """
        self.patch(limits, "DATAGRAM_SOURCES", 2)
        form = self.b.hca.datagramForm
        seen = []
        for number in (1, 2, 1, 3, 1):
            data = form.pack(self.a.qp, self.handle.vector, 0) + DETH.pack(KEY, number)
            self.put(data)
            seen.append(self.takers[1].got[-1][0])
        self.assertEqual([source.number for source in seen], [1, 2, 1, 3, 1])
        self.assertIs(seen[0], seen[2])
        self.assertIsNot(seen[0], seen[4])
        self.assertEqual(len(self.ends[1]._sources), 2)
        other = copy(self.p.ends[1])
        self.ends[1].received(other, 0x64, data, 0, len(data))
        self.assertIs(self.takers[1].got[-1][0].path, other)
        self.assertEqual(len(self.ends[1]._sources), 2)
        self.b.qp.close()
        self.assertEqual(len(self.ends[1]._sources), 0)

    def test_failed(self) -> None:
        """
        The consumer is told of ERR.
        """
        error = QueuePairError("enough")
        self.a.qp.fail(error)
        self.assertEqual(self.takers[0].failures, [error])


class LocalFormTests(FormTests):
    """
    The same with LIDs.
    """

    receiver = AddressVector(0, lid=LIDS[1], serviceLevel=2, isGlobal=False)
    sender = AddressVector(0, lid=LIDS[0], serviceLevel=2, isGlobal=False)

    def connect(self, **arguments: Any) -> None:
        """
        By the local form.
        """
        pair = LocalPair(**arguments)
        self.p, self.a, self.b = pair, pair.a, pair.b
        self.target = self.b.register(1)
        self.make(pair)


class EveryKindTests(EveryKindTestCase):
    """
    Between two devices of each kind.
    """

    def connect(self, a: Any, b: Any, taker: Any) -> tuple[InlineDatagrams, Any, int]:
        """
        @return: what posts, and a handle and number of what C{taker} takes.
        """
        target = raised(b.createQueuePair(taker, QPType.UD))
        source = raised(a.createQueuePair(Taker(), QPType.UD))
        handle = a.objects.createAddressHandle(a.memory.allocateDomain(), AddressVector(b.gid, hopLimit=64))
        return source, handle, target.queuePair.number

    @staticmethod
    def send(a: Any, b: Any, post: Callable[[], None], count: int) -> None:
        """
        Post so many datagrams, and let them arrive.
        """
        for _ in range(count):
            post()
        settle(a, b)

    def test_form(self) -> None:
        """
        Each kind has the form of its link layer.
        """
        self.assertEqual(
            self.each(lambda device: device.datagramForm),
            self.each(lambda device: FORMS[device.traits.linkLayer]),
        )

    def test_exchange(self) -> None:
        """
        Datagrams go there and back; the consumer may look at the header before them.
        """
        for a, b in self.pairs():
            taker, echo = Taker(), Taker()
            source, handle, number = self.connect(a, b, taker)
            source.queuePair.consumer = echo
            source.post(handle, number, KEY, b"hello")
            settle(a, b)
            ((sender, payload),) = taker.got
            self.assertEqual((payload, sender.number), (b"hello", source.queuePair.number))
            self.assertEqual(sender.vector.gid, a.gid)
            back = b.objects.createAddressHandle(b.memory.allocateDomain(), sender.vector)
            b.queuePairs[number].work.post(back, sender.number, KEY, b"back")
            settle(a, b)
            self.assertEqual([each[1] for each in echo.got], [b"back"])
            self.assertEqual(b.statistics()["rdma_recvs"], 1)
            a.queuePairs[sender.number].close()
            self.assertEqual(a.statistics()["rdma_sends"], 1)

    def test_objects(self) -> None:
        """
        A datagram makes no object of ours, and leaves none behind: neither where it is posted nor where it
        arrives.  The calls that it takes only ever become fewer.
        """
        for (a, b), most in zip(self.pairs(), (30, 30, 45), strict=True):
            taker = Silent()
            source, handle, number = self.connect(a, b, taker)

            some = partial(self.send, a, b, partial(source.post, handle, number, KEY, b"payload"))
            some(50)
            gc.collect()
            before = len(gc.get_objects())
            calls = called(partial(some, 50))
            more = called(partial(some, 100))
            gc.collect()
            self.assertLess(len(gc.get_objects()) - before, 25, a.name)
            self.assertEqual(taker.count, 200, a.name)
            made = {name for name in calls | more if name in ("__init__", "__attrs_init__", "__new__")}
            self.assertEqual(made, set(), a.name)
            # Calls of each datagram: what turns cost cancels out.
            each = sum((more[name] - calls[name]) / 50 for name in more)
            self.assertLessEqual(each, most, a.name)

    def test_partition(self) -> None:
        """
        Datagrams have the P_Key of their queue pair, which the receiver's must match, where P_Keys travel.
        """
        a, b = self.pairs()[-1]
        for device in (a, b):
            device.changePort(PortChange(partitions=(DEFAULT_PKEY, 0x8001)))
        taker = Taker()
        source, handle, number = self.connect(a, b, taker)
        source.queuePair.modify(QPState.SQD)
        source.queuePair.modify(QPState.SQD, pkey_index=1)
        source.queuePair.modify(QPState.RTS)
        source.post(handle, number, KEY, b"x")
        settle(a, b)
        self.assertEqual((taker.got, b.counters["packets_bad_pkey"]), ([], 1))
        self.assertEqual(b.describe()["port"]["bad_pkey_cntr"], 1)

    def test_forked(self) -> None:
        """
        The consumer is told in a forked child.
        """
        device = self.open("lo0")
        taker = Taker()
        raised(device.createQueuePair(taker, QPType.UD))
        device.forked()
        self.assertTrue(taker.isForked)
