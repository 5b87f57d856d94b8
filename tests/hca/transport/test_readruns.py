"""
Packets of a READ's response, which come together and are looked at together.
"""

from __future__ import annotations

from attrs import evolve

from tests.hca.fabric.roce.test_devices import HERE, End, PacketTestCase
from tests.hca.memorylink import Datagram
from tests.hca.transport.pair import TERMS
from tests.hca.transport.test_requester import A, C, RequesterCase
from tests.support.calls import PACKAGE, called
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire.opcodes import (
    OPCODES,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    Kind,
)

BURST = 15
MIDDLE = bytes(range(256))


class ReadRunTests(PacketTestCase):
    """
    READs over links that send and receive many datagrams at a time.
    """

    def setUp(self) -> None:
        super().setUp()
        self.one, self.two = self.joined()
        self.count = 0

    def joined(self) -> tuple[End, End]:
        """
        @return: Two ends that are connected; the first keeps what its memory was asked for.
        """
        one, two = self.connected()
        for link in self.wire.links.values():
            link.burst, link.coalesces = BURST, True
        self.asked: list[tuple[int, int, bool]] = []
        self.gone = 1 << 30

        def isThere(offset: int, length: int, writes: bool) -> bool:
            self.asked.append((offset, length, writes))
            return offset + length <= self.gone

        one.region.setPresent(isThere)
        two.memory[:] = bytes(range(128)) * 1024
        return one, two

    def read(self, packets: int, seconds: float = 0.0) -> WCStatus:
        """
        Read so many whole packets, from the second octet on.

        @param seconds: That pass until it is done.
        @return: How it ended.
        """
        one, two = self.one, self.two
        self.count += 1
        del self.asked[:]
        far = {"remoteAddress": two.region.address + 1, "remoteKey": two.region.remoteKey}
        one.send(self.count, SendOpcode.RDMA_READ, 0, packets * self.mtu, **far)
        self.settle(one, two, seconds=seconds)
        ((number, status),) = one.done()
        self.assertEqual(number, self.count)
        return status

    def lose(self, wanted: int) -> None:
        """
        One packet of a response does not come; it is the C{wanted}th.
        """
        count = iter(range(1 << 30))

        def pass_(datagram: Datagram) -> tuple[Datagram, ...]:
            row = OPCODES.get(datagram[4][0])
            isOne = datagram[1] == HERE and row is not None and row.kind is Kind.READ_RESPONSE
            return () if isOne and next(count) == wanted else (datagram,)

        self.wire.pass_ = pass_

    def test_asked(self) -> None:
        """
        Whether the program's memory is there is asked once for all of them, and not once for each; before the
        request, too.
        """
        for packets in (4, 8, 14):
            self.assertIs(self.read(packets), WCStatus.SUCCESS)
            length, mtu = packets * self.mtu, self.mtu
            parts = [(0, mtu), (mtu, mtu), (2 * mtu, length - 3 * mtu), (length - mtu, mtu)]
            # The second goes with the first, which is longer by its header; the others with the last.
            self.assertEqual(self.asked, [(*each, True) for each in ((0, length), *parts)])
            self.assertEqual(self.one.memory[:length], self.two.memory[1 : length + 1])

    def test_calls(self) -> None:
        """
        A READ of fourteen packets takes as many functions as one of five.
        """
        self.read(14)
        self.read(5)
        few, many = called(lambda: self.read(5), PACKAGE), called(lambda: self.read(14), PACKAGE)
        self.assertEqual(few, many)

    def test_lost(self) -> None:
        """
        One is lost: the rest is asked for again, and every octet is right.
        """
        for number in (0, 1, 2, 3, 7, 12, 13):
            self.one.memory[:] = bytes(len(self.one.memory))
            self.lose(number)
            self.assertIs(self.read(14, 1.0), WCStatus.SUCCESS)
            self.assertEqual(self.one.memory[: 14 * self.mtu], self.two.memory[1 : 14 * self.mtu + 1])
            self.assertEqual(self.one.device.counters["completer_retry_err"], 1)
            self.doCleanups()
            self.setUp()

    def test_several(self) -> None:
        """
        Responses of several requests, and of one of which several parts are asked for, stay apart.
        """
        one, two = self.one, self.two
        far = {"remoteAddress": two.region.address, "remoteKey": two.region.remoteKey}
        for number in range(4):
            one.send(number, SendOpcode.RDMA_READ, number * 30_000, 30_000, **far)
        self.settle(one, two)
        self.assertEqual(one.done(), [(number, WCStatus.SUCCESS) for number in range(4)])
        self.assertEqual(one.memory[:120_000], two.memory[:30_000] * 4)
        self.assertIs(self.read(120), WCStatus.SUCCESS)
        self.assertEqual(one.memory[: 120 * self.mtu], two.memory[1 : 120 * self.mtu + 1])
        self.assertEqual(one.device.counters.get("completer_retry_err", 0), 0)

    def test_gone(self) -> None:
        """
        Memory that has gone since the request is not written, from the packets on that come together with
        one for it.
        """
        one = self.one
        passed: list[int] = []

        def pass_(datagram: Datagram) -> tuple[Datagram, ...]:
            passed.append(datagram[4][0])
            if passed[-1] == READ_RESPONSE_FIRST:
                self.gone = 10 * self.mtu
            return (datagram,)

        self.wire.pass_ = pass_
        self.assertIs(self.read(14), WCStatus.LOC_PROT_ERR)
        self.assertIn(READ_RESPONSE_MIDDLE, passed)
        self.assertEqual(one.memory[: 2 * self.mtu], self.two.memory[1 : 2 * self.mtu + 1])
        self.assertEqual(one.memory[2 * self.mtu :], bytes(len(one.memory) - 2 * self.mtu))


class ContinuedTests(RequesterCase):
    """
    L{twisted_ib.hca.transport.requester.Requester.continued}: literal packets of path MTU 256.
    """

    parameters = evolve(TERMS, reads=2)

    def continued(self, psn: int, count: int, size: int = 256) -> bool:
        """
        Middle packets come.
        """
        return self.connection.requester.continued(psn, [MIDDLE[:size]] * count, self.now)

    def begin(self, packets: int) -> None:
        """
        A READ is asked for, and the first packet of its response has come.
        """
        self.connect(self.parameters)
        self.position = self.read(packets * 256)
        self.sent()
        self.assertFalse(self.continued(A, 2))  # The first is no Middle one.
        self.respond(READ_RESPONSE_FIRST, A, bytes([0x1F, 0, 0, 1]) + MIDDLE)

    def test_expected(self) -> None:
        """
        The expected ones are taken, across the wrap of PSNs, and the next is the one behind them.
        """
        self.begin(6)
        self.assertTrue(self.continued(A + 1, 4))
        self.respond(READ_RESPONSE_LAST, C + 3, bytes([0x1F, 0, 0, 1]) + MIDDLE)
        self.assertEqual(self.end.answers, {self.position: MIDDLE * 6})
        self.assertEqual(self.end.done, [self.position])

    def test_others(self) -> None:
        """
        Others are not, and change nothing: behind a gap, come before, of another size, up to the last or
        beyond it, and when the queue pair has ended.
        """
        self.begin(6)
        for psn, count, size in ((C, 2, 256), (A, 2, 256), (A + 1, 2, 252), (A + 1, 5, 256), (A + 1, 6, 256)):
            self.assertFalse(self.continued(psn, count, size), (psn, count, size))
        self.assertTrue(self.continued(A + 1, 4))
        self.begin(6)
        self.connection.close()
        self.assertFalse(self.continued(A + 1, 4))

    def test_message(self) -> None:
        """
        Nor in place of an acknowledgement of a message.
        """
        self.post(0x04, bytes(1024))
        self.sent()
        self.assertFalse(self.continued(A, 2))
