"""
Addresses of datagrams that the kernel looks for, on the adapter of a host in memory.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import Any
from unittest.mock import Mock

from tests.hca.fabric.hardware.test_datagrams import HEAD, DatagramTestCase
from tests.hca.fabric.hardware.world import Manager
from tests.verbs.pyverbs.pair import QKEY, End
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.fabric.hardware import connector, datagrams
from twisted_ib.hca.fabric.hardware.rdmacm import CMEvent
from twisted_ib.hca.wire.grh import IPV4_MAPPED, packGRH
from twisted_ib.hca.wire.headers import DETH
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY
from twisted_ib.verbs.pyverbs import AH, AHAttr, GlobalRoute, QPAttr, enums


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
