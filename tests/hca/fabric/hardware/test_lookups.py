"""
Addresses of datagrams that the kernel looks for, and connects within which a driver waits, on the adapter of
a host in memory: the program goes on meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.hardware.test_datagrams import HEAD, DatagramTestCase
from tests.hca.fabric.hardware.world import Host, Manager
from tests.hca.fabric.iwarp.ends import ONE, SPACE, IWARPTestCase
from tests.hca.fabric.iwarp.test_contract import TakerEnd
from tests.hca.hcas import settle
from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.pair import QKEY, End
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.hardware import connector, datagrams, hardware
from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
from twisted_ib.hca.fabric.hardware.rdmacm import RDMACM, CMEvent, Notice, Parameters
from twisted_ib.hca.wire.grh import IPV4_MAPPED, packGRH
from twisted_ib.hca.wire.headers import DETH
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY
from twisted_ib.verbs.pyverbs import AH, AHAttr, GlobalRoute, QPAttr, enums

ID, OTHER = 0x1000, 0x2000


class LookupTests(DatagramTestCase):
    """
    Datagrams wait for the kernel's answer, and no thread does.
    """

    def silent(self, last: int, end: End | None = None) -> AH:
        """
        @param end: whose it is.
        @return: the way to an address that does not answer yet.
        """
        self.host.silent.add(f"10.0.0.{last}")
        route = GlobalRoute(f"0000:0000:0000:0000:0000:ffff:0a00:{last:04x}")
        return AH((end or self.a).pd, attr=AHAttr(is_global=1, gr=route))

    def asked(self) -> list[str]:
        """
        @return: the addresses that the kernel looks for.
        """
        found = [each for each in self.host.identifiers.values() if each.there in self.host.silent]
        self.assertEqual({each.space for each in found} - {PortSpace.UDP}, set())
        return [each.there for each in found]

    def answer(self, kind: CMEvent) -> None:
        """
        The kernel has looked for them.
        """
        for id, each in list(self.host.identifiers.items()):
            if each.there in self.host.silent:
                each.manager.tell(id, kind)
        self.device_.fabric.progress()

    def through(self, way: Any, end: End) -> bool:
        """
        @return: whether a path takes a datagram of an end.
        """
        header = packGRH(0, 0, 0, 64, IPV4_MAPPED, IPV4_MAPPED | 0x7F000001)
        return bool(way.post(UD_SEND_ONLY << 24, header + DETH.pack(QKEY, end.qp.qp_num), b"", 0))

    def test_lookedFor(self) -> None:
        """
        Datagrams to an address that the kernel looks for wait for its answer, and others go meanwhile.
        """
        for number in range(2):
            self.b.receive(number * 64, 64, number)
        with self.silent(7) as other:
            self.host.silent = {"127.0.0.1"}
            for text, to in ((b"first", self.to), (b"second", self.to), (b"other", other)):
                self.sent(text, to=to)
            self.turn()
            (handle,) = self.host.handles
            self.assertEqual((handle.vector.dgid[12:], self.asked()), (b"\n\0\0\7", ["127.0.0.1"]))
            self.answer(CMEvent.ADDR_RESOLVED)
        found = self.wait(self.b.cq, 2)
        texts = [self.b.mr.read(each.byte_len - HEAD, each.wr_id * 64 + HEAD) for each in found]
        self.assertEqual((texts, self.asked()), ([b"first", b"second"], []))

    def test_nobody(self) -> None:
        """
        All that wait for an address that nobody has are lost, and counted; the next one asks again.
        """
        with self.silent(7) as other:
            for number in (2, 3):
                self.sent(to=other)
                self.sent(to=other)
                self.assertEqual(self.asked(), ["10.0.0.7"])
                self.answer(CMEvent.ADDR_ERROR)
                self.assertEqual((self.asked(), self.host.handles), ([], []))
                self.assertEqual(self.device_.counters["datagrams_unsendable"], 2 * number - 2)

    def test_lookups(self) -> None:
        """
        The kernel looks for no more than so many addresses at a time: datagrams to others are lost.
        """
        self.patch(connector, "LOOKUPS", 2)
        with self.silent(7) as one, self.silent(8) as two, self.silent(9) as three:
            for to in (one, two, three):
                self.sent(to=to)
            self.assertEqual(self.asked(), ["10.0.0.7", "10.0.0.8"])
            self.assertEqual(self.device_.counters["datagrams_unsendable"], 1)
            self.answer(CMEvent.ADDR_ERROR)
            self.sent(to=three)
            self.assertEqual(self.asked(), ["10.0.0.9"])

    def test_noRoute(self) -> None:
        """
        An address that the kernel does not look for costs the datagram, and no identifier.
        """
        before = set(self.host.identifiers)
        refused = Mock(side_effect=OSError(errno.ENETUNREACH, "rdma_resolve_addr"))
        self.patch(Manager, "resolveAddress", refused)
        self.sent()
        self.assertEqual((refused.call_args.args[1], set(self.host.identifiers)), ("127.0.0.1", before))
        self.assertEqual(self.device_.counters["datagrams_unsendable"], 1)

    def test_goneMeanwhile(self) -> None:
        """
        A datagram of a queue pair that is destroyed before the answer is lost; a device that is closed before
        it leaves nothing to the kernel.
        """
        with self.silent(7) as other:
            self.sent(to=other)
            self.a.qp.close()
            self.answer(CMEvent.ADDR_RESOLVED)
            self.assertEqual(self.device_.counters["datagrams_unsendable"], 1)
            self.a.qp = self.another(self.a, enums.IBV_QPT_UD)
            ready = QPAttr()
            ready.qkey = QKEY
            self.a.qp.to_rts(ready)
            self.sent(to=other)
            self.assertEqual(self.asked(), ["10.0.0.7"])

    def test_wantNoSpace(self) -> None:
        """
        A waiter that leaves is not resumed, though another queue pair has sent to the address since.
        """
        way = self.device_.fabric.pathTo("127.0.0.1")
        waiter = Mock()
        post = partial(self.through, way)
        for each in (self.a, self.b):
            # Until the kernel has found the address.
            self.assertFalse(post(each))
            before = len(self.host.identifiers)
            self.assertFalse(post(each))
            self.assertEqual(len(self.host.identifiers), before)
            way.wantSpace(waiter)
            way.wantNoSpace(waiter)
            way.wantSpace(Mock(resume=lambda end=each: post(end)))
            self.device_.fabric.progress()
        self.host.isHeld = True
        while post(self.a):
            pass
        way.wantSpace(waiter)
        self.assertTrue(post(self.b))
        way.wantNoSpace(waiter)
        self.host.resume()
        self.turn()
        waiter.resume.assert_not_called()

    def test_share(self) -> None:
        """
        One queue pair has no more than its share of them looked for: another one still has its own.
        """
        self.patch(datagrams, "LOOKUPS_EACH", 2)
        self.patch(connector, "LOOKUPS", 3)
        with self.silent(7) as one, self.silent(8) as two, self.silent(9) as three:
            for to in (one, two, three):
                self.sent(to=to)
            self.assertEqual(self.asked(), ["10.0.0.7", "10.0.0.8"])
            self.assertEqual(self.device_.counters["datagrams_unsendable"], 1)
            with self.silent(9, self.b) as other:
                request = self.b.send(0, 5, opcode=enums.IBV_WR_SEND)
                request.set_wr_ud(other, self.a.qp.qp_num, QKEY)
                self.b.qp.post_send(request)
            self.assertEqual(self.asked(), ["10.0.0.7", "10.0.0.8", "10.0.0.9"])
            self.answer(CMEvent.ADDR_ERROR)
            self.sent(to=three)
            self.assertEqual(self.asked(), ["10.0.0.9"])
            self.answer(CMEvent.ADDR_ERROR)

    def test_burst(self) -> None:
        """
        Where no other wants its share one queue pair has more: no first datagram to one of many hosts is
        lost.
        """
        self.patch(datagrams, "LOOKUPS_EACH", 2)
        self.patch(connector, "LOOKUPS", 6)
        with self.silent(7) as one, self.silent(8) as two, self.silent(9) as three, self.silent(10) as four:
            for to in (one, two, three, four):
                self.sent(to=to)
            self.assertEqual(len(self.asked()), 4)
            self.assertEqual(self.device_.counters["datagrams_unsendable"], 0)
            self.answer(CMEvent.ADDR_ERROR)

    def test_raises(self) -> None:
        """
        A waiter that raises is told of, and keeps no other from the answer.
        """
        fabric = self.device_.fabric
        self.host.silent = {"127.0.0.1"}
        self.b.receive(0, 100)
        way = fabric.pathTo("127.0.0.1")
        self.assertFalse(self.through(way, self.a))
        waiters = [Mock(resume=Mock(side_effect=ValueError(number))) for number in range(2)]
        for each in waiters:
            way.wantSpace(each)
        self.sent()
        (id,) = [id for id, each in self.host.identifiers.items() if each.there in self.host.silent]
        self.host.identifiers[id].manager.tell(id, CMEvent.ADDR_RESOLVED)
        self.assertRaises(ValueError, fabric.progress)
        self.assertEqual([each.resume.call_count for each in waiters], [1, 1])
        self.assertEqual(self.heard(), b"hello")


class Library:
    """
    A librdmacm whose connects wait until they may return.

    @ivar code: the errno of their failure, or 0.
    @ivar destroyed: the identifiers that were destroyed.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.code = 0
        self.destroyed: list[int] = []
        self.mayReturn = threading.Event()
        for name in ("rdma_create_event_channel", "rdma_get_cm_event", "rdma_connect", "rdma_destroy_id"):
            # A function of ctypes has attributes, as that of its result.
            setattr(self, name, partial(getattr(self, name)))

    def rdma_create_event_channel(self) -> Any:
        return SimpleNamespace(contents=SimpleNamespace(fd=self.fd))

    def rdma_destroy_event_channel(self, channel: Any) -> None:
        os.close(self.fd)

    def rdma_get_cm_event(self, channel: Any, found: Any) -> int:
        ctypes.set_errno(errno.EAGAIN)
        return -1

    def rdma_connect(self, id: Any, given: Any) -> int:
        assert self.mayReturn.wait(HANG_SECONDS)
        ctypes.set_errno(self.code)
        return -1 if self.code else 0

    def rdma_destroy_id(self, id: Any) -> None:
        self.destroyed.append(id.value)


class ThreadTests(SynchronousTestCase):
    """
    The channel.
    """

    def setUp(self) -> None:
        """
        Begin to connect.
        """
        self.library = Library()
        loading = self.patch(ctypes, "CDLL", lambda name, **options: self.library)
        self.manager = RDMACM()
        loading.restore()
        self.addCleanup(self.manager.close)
        self.addCleanup(self.manager.settle)
        self.addCleanup(self.library.mayReturn.set)
        self.calls: list[str] = []
        self.manager.begin(ID, Parameters())

    def returns(self) -> None:
        """
        Wait until the connect has returned.
        """
        self.library.mayReturn.set()
        self.assertEqual(select.select([self.manager.bell], [], [], HANG_SECONDS)[0], [self.manager.bell])

    def test_waits(self) -> None:
        """
        While a driver waits there are other events, and other identifiers are destroyed; its own is when it
        has returned, and then only what it uses.
        """
        self.assertIsNone(self.manager.event())
        self.manager.destroy(ID, partial(self.calls.append, "own"))
        self.manager.destroy(OTHER, partial(self.calls.append, "other"))
        self.assertEqual((self.library.destroyed, self.calls), ([OTHER], ["other"]))
        self.returns()
        self.assertIsNone(self.manager.event())
        self.assertEqual((self.library.destroyed, self.calls), ([OTHER, ID], ["other", "own"]))
        self.assertEqual(select.select([self.manager.bell], [], [], 0)[0], [])

    def test_fails(self) -> None:
        """
        Its failure is an event; of an identifier that is to be destroyed it is none.
        """
        self.library.code = errno.ETIMEDOUT
        self.returns()
        expected = Notice(ID, 0, CMEvent.CONNECT_FAILED, errno.ETIMEDOUT, Parameters())
        self.assertEqual((self.manager.event(), self.manager.event()), (expected, None))
        self.manager.begin(OTHER, Parameters())
        self.manager.destroy(OTHER)
        self.returns()
        self.assertIsNone(self.manager.event())
        self.assertEqual(self.library.destroyed, [OTHER])

    def test_settles(self) -> None:
        """
        Where everything ends it is waited for.
        """
        self.manager.destroy(ID, partial(self.calls.append, "own"))
        self.library.mayReturn.set()
        self.manager.settle()
        self.assertEqual((self.library.destroyed, self.calls), ([ID], ["own"]))


class SlowManager(Manager):
    """
    One whose connects return later.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.begun: dict[int, Parameters] = {}
        self.doomed: dict[int, Any] = {}

    def begin(self, id: int, parameters: Parameters) -> None:
        self.begun[id] = parameters

    def destroy(self, id: int, destroyed: Any = None) -> None:
        if id in self.begun:
            self.doomed[id] = destroyed
        else:
            super().destroy(id, destroyed)

    def settle(self) -> None:
        begun, self.begun = self.begun, {}
        for id, parameters in begun.items():
            if id in self.doomed:
                self.destroy(id, self.doomed.pop(id))
            else:
                super().begin(id, parameters)


class FabricTests(IWARPTestCase):
    """
    An RNIC whose driver waits.
    """

    def setUp(self) -> None:
        """
        Ask for a connection.
        """
        super().setUp()
        self.host = Host("siw0")
        self.host.isRNIC = True
        self.patch(hardware, "isRNIC", lambda name: True)
        self.manager: Any = SlowManager(self.host)
        given: dict[str, Any] = {
            "manager": self.manager,
            "address": ONE,
            "adapter": "siw0",
            "verbs": self.host,
        }
        make: Any = partial(HardwareFabric, **given)
        self.one: Any = Device("hw0", self.clock.seconds, make)
        self.addCleanup(self.one.close)
        self.end: Any = TakerEnd(self.one, 10)
        self.one.connect(SPACE, ONE, 7001, self.end)
        self.end.call(self.end.path, b"", SPACE << 16 | 7001)
        settle(self.one)

    def test_goesOn(self) -> None:
        """
        The turn is over before the driver has answered, and what it answers is heard then.
        """
        self.assertEqual((len(self.manager.begun), self.end.events), (1, []))
        self.manager.settle()
        settle(self.one)
        self.assertEqual(self.end.events, ["rejected"])

    def test_givenUp(self) -> None:
        """
        One that is given up meanwhile keeps its queue pair, which the driver has, until that has returned.
        """
        self.end.connection.disconnect(0.0)
        settle(self.one)
        self.assertEqual((len(self.host.queuePairs), len(self.one.fabric.streams)), (1, 1))
        self.manager.settle()
        self.assertEqual((self.host.queuePairs, self.one.fabric.streams), ({}, {}))

    def test_closed(self) -> None:
        """
        The end of the device waits for it.
        """
        self.one.close()
        self.assertEqual((self.host.queuePairs, self.host.identifiers), ({}, {}))
