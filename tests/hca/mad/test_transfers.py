"""
Requests and responses of many MADs, on each fabric.
"""

from __future__ import annotations

import random
from typing import Any

from attrs import evolve

from tests.hca.mad.cases import MADTestCase, OnPackets, OnRings, OnSockets
from tests.hca.mad.toys.echo import CLASS, VERSION
from tests.hca.mad.toys.table import GET_MULTI, GET_TABLE, TableAgent, table
from twisted_ib.errors import LengthError, ResourceLimitError
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.mad import transfers
from twisted_ib.hca.mad.requests import ReceivedMAD, Request
from twisted_ib.hca.mad.rmpp import receiver, segments
from twisted_ib.hca.mad.rmpp.segments import RMPP_IDLE_SECONDS, TransferStatus, control, headerOf, segment
from twisted_ib.hca.mad.rmpp.sender import RMPP_ACK_SECONDS, RMPP_RETRIES_UNPROVEN
from twisted_ib.hca.wire.mad.classes import ABORT, ACK, DATA, FIRST, LAST, RMPP, STOP, RMPPHeader
from twisted_ib.hca.wire.mad.mad import DATA_BYTES, RESPONSE, SET, UNSUPPORTED_METHOD, Mad

#: The offset of a record.
AT = 56


class TransferTestCase(MADTestCase):
    """
    C{a} asks C{b}.
    """

    toys = ((GSI_QPN, TableAgent),)

    def setUp(self) -> None:
        """
        Watch what C{b} gets.
        """
        super().setUp()
        self.responses: list[ReceivedMAD | None] = []
        self.asking, self.serving = (self.of(TableAgent, each) for each in (self.a, self.b))

    def request(self, mad: Mad, **changes: Any) -> Any:
        request = self.asking.agent.send(self.address(self.b), mad, self.responses.append, **changes)
        self.settle()
        return request

    def posted(self, mad: bytes) -> dict[str, int]:
        """
        C{a} sends C{b} any MAD.

        @return: the counters of C{b} that it changes.
        """
        return self.counted(GSI_QPN, self.record(mad))

    def left(self) -> list[Any]:
        """
        @return: the requests, and how many transfers, that each device still keeps.
        """
        return [(device.mads._requests, len(device.mads.transfers)) for device in (self.a, self.b)]


class TransferContract:
    """
    Both directions.
    """

    def test_tables(self: Any) -> None:
        """
        A table of any number of records is one response, with the header of its first MAD.
        """
        for count in (0, 1, 2, 200, 5000):
            self.request(self.asking.question(count))
            mad = self.responses.pop().mad
            self.assertEqual((mad.method, mad.status, mad.attribute), (GET_TABLE | RESPONSE, 0, 0x11))
            self.assertEqual(mad.header.attributeOffset, 14)
            self.assertTrue(mad.data == table(count), count)
        self.assertEqual(self.left(), [({}, 0)] * 2)
        self.assertEqual((self.a.mads.transfers._bytesHeld, self.b.mads.transfers._bytesSent), (0, 0))
        self.assertEqual(len(self.a.mads.transfers._complete), 5)
        self.wait(receiver.RMPP_COMPLETE_SECONDS)
        self.assertEqual((len(self.a.mads.transfers._complete), self.a.deadline()), (0, None))

    def test_both(self: Any) -> None:
        """
        A request of many MADs comes whole, and its response too.
        """
        data = random.Random(4).randbytes(100_001)
        for size in (0, 1, 200, 201, len(data)):
            self.request(self.asking.exchange(data[:size]))
            self.assertTrue(self.responses.pop().table == data[:size], size)
            self.assertTrue(self.serving.requests.pop().table == data[:size], size)
        self.assertEqual(self.left(), [({}, 0)] * 2)

    def test_oneWay(self: Any) -> None:
        """
        A transfer that expects no response ends when it has arrived.
        """
        self.serving.agent.received = self.serving.requests.append
        self.asking.agent.send(self.address(self.b), self.asking.exchange(bytes(3000)))
        self.settle()
        self.assertEqual(self.serving.requests[0].table, bytes(3000))
        self.assertEqual((self.left(), len(self.a.addressPaths)), ([({}, 0)] * 2, 0))

    def test_withoutRMPP(self: Any) -> None:
        """
        An agent without RMPP gets each MAD as it is, and so does one of the same class whose other methods
        have an agent with it.
        """
        came: list[Any] = []
        self.b.mads.register(0x30, 1, (GET_TABLE,), came.append)
        self.b.mads.register(0x30, 1, (GET_MULTI,), came.append, 1).close()
        own = self.a.mads.register(0x30, 1, (GET_TABLE,), print)
        octets = bytearray(Mad(0x30, 1, GET_TABLE, 7, 1).pack())
        octets[24:36] = RMPP.pack(RMPPHeader(1, DATA, 0, 7, 0, 1, 40))
        own.send(self.address(self.b), evolve(ReceivedMAD(None, 1, 1, 0, 0, 0, bytes(octets)).mad))
        self.settle()
        self.b.mads.register(0x30, 1, (GET_MULTI,), came.append, 1)
        self.assertEqual(self.posted(bytes(octets)), {})
        self.assertEqual([each.mad.header.transfer.flags for each in came], [7, 7])
        self.assertEqual([each.table for each in came], [None, None])

    def test_noRMPP(self: Any) -> None:
        """
        Classes without an RMPP header cannot have it, nor is there another version.
        """
        self.assertRaises(ValueError, self.a.mads.register, CLASS, VERSION, (1,), print, 1)
        self.assertRaises(ValueError, self.a.mads.register, 0x30, 1, (1,), print, 2)

    def test_refused(self: Any) -> None:
        """
        A plain response to a request of many MADs is its response, and nothing else is left of it.
        """
        self.serving.agent.close()
        self.b.mads.register(3, 2, (1,), print)
        mad = evolve(self.asking.exchange(bytes(5000)), method=SET)
        self.request(mad)
        self.assertEqual(self.responses.pop().mad.status, UNSUPPORTED_METHOD)
        self.assertEqual(self.left(), [({}, 0)] * 2)

    def test_tooLong(self: Any) -> None:
        """
        More than a bound is not sent; the receiver's bound stops the sender.
        """
        self.patch(receiver, "RMPP_TABLE_BYTES", 1000)
        self.assertRaises(LengthError, self.request, self.asking.exchange(bytes(1001)))
        self.assertEqual((self.left()[0], len(self.a.addressPaths)), (({}, 0), 0))
        self.patch(self.serving.agent, "received", self.serving.requests.append)
        self.request(self.asking.question(9))
        (request,) = self.serving.requests
        self.assertRaises(LengthError, self.serving.agent.reply, request, self.asking.exchange(bytes(1001)))
        self.serving.agent.reply(request, self.asking.exchange(bytes(1000)))
        receiver.RMPP_TABLE_BYTES = 999
        self.settle()
        self.assertEqual(self.responses, [None])
        self.assertEqual([each.counters["management_aborted"] for each in (self.a, self.b)], [1, 1])


class LoopbackTests(TransferContract, TransferTestCase):
    """
    C{lo0}.
    """


class RingTests(OnRings, TransferContract, TransferTestCase):
    """
    C{shm0} over rings.
    """


class SocketTests(OnSockets, TransferContract, TransferTestCase):
    """
    C{shm0} over sockets.
    """


class PacketTests(OnPackets, TransferContract, TransferTestCase):
    """
    C{roce0}.
    """

    def test_loss(self) -> None:
        """
        Both directions arrive over a wire that loses, repeats and reorders a tenth of all packets.  Seed 3.
        """
        dice = random.Random(3)
        late: list[Any] = []
        lost: list[Any] = []

        def carry(datagram: Any) -> list[Any]:
            if dice.random() < 0.1:
                lost.append(datagram)
                return []
            found = [datagram] * (1 + (dice.random() < 0.1))
            if dice.random() < 0.1:
                late.extend(found)
                return []
            found += late
            late.clear()
            return found

        self.wire.pass_ = carry
        for device in (self.a, self.b):
            self.patch(device, "randomBits", dice.getrandbits)
        data = random.Random(5).randbytes(50_000)
        for mad in (self.asking.question(1000), self.asking.exchange(data)):
            self.request(mad, timeout=20.0, retries=1)
            for _ in range(200):
                if self.responses:
                    break
                self.wait(1.0)
            response = self.responses.pop()
            assert response is not None
            self.assertTrue(response.table == (table(1000) if mad.method == GET_TABLE else data))
        self.assertGreater(len(lost), 50)

    def test_lostTwice(self) -> None:
        """
        A request that waits for one second has its response, although a segment of that is lost twice: its
        sender repeats it after two seconds each.
        """
        lost: list[Any] = []

        def carry(datagram: Any) -> list[Any]:
            header = headerOf(datagram[4][-260:-4])
            if datagram[0] == self.b.address and (header.type, header.segment) == (DATA, 3) and len(lost) < 2:
                lost.append(datagram)
                return []
            return [datagram]

        self.wire.pass_ = carry
        self.request(self.asking.question(500), timeout=1.0, retries=0)
        for count in (1, 2):
            self.assertEqual((len(lost), self.responses), (count, []))
            self.wait(RMPP_ACK_SECONDS)
        response = self.responses.pop()
        assert response is not None
        self.assertTrue(response.table == table(500))

    def test_lastACKLost(self) -> None:
        """
        A response that has begun shows that its request has arrived, if the last ACK of that is lost: the
        request is not aborted, which the peer would take for an end of the response.
        """
        lost: list[Any] = []

        def carry(datagram: Any) -> list[Any]:
            header = headerOf(datagram[4][-260:-4])
            if datagram[0] == self.b.address and not lost and (header.type, header.segment) == (ACK, 25):
                lost.append(datagram)
                return []
            return [datagram]

        self.wire.pass_ = carry
        data = random.Random(6).randbytes(5000)
        self.request(self.asking.exchange(data))
        self.assertEqual(len(lost), 1)
        response = self.responses.pop()
        assert response is not None
        self.assertTrue(response.table == data)
        self.assertEqual(self.left(), [({}, 0)] * 2)
        self.assertEqual([each.counters["management_aborted"] for each in (self.a, self.b)], [0, 0])


class StateTests(OnPackets, TransferTestCase):
    """
    The transfers that a device keeps: C{b} is asked by hand.
    """

    def question(self, count: int, transaction: int = 7) -> bytes:
        """
        @return: a request, with a transaction id of our own.
        """
        return evolve(self.asking.question(count), transaction=transaction).pack()

    def part(self, number: int, flags: int = 0, length: int = 0, transaction: int = 7) -> bytes:
        """
        @return: a segment of a request.
        """
        mad = evolve(self.asking.exchange(b""), transaction=transaction).pack()
        return segment(mad, RMPPHeader(1, DATA, 31, flags | 1, 0, number, length))

    def sent(self) -> list[tuple[int, int, int]]:
        """
        @return: method, type and status of the MADs with RMPP that C{b} has sent since.
        """
        assert self.wire.log is not None
        mads = [each[4][-260:-4] for each in self.wire.log if each[0] == self.b.address]
        self.wire.log = []
        return [(mad[3], headerOf(mad).type, headerOf(mad).status) for mad in mads]

    def setUp(self) -> None:
        """
        Log the wire.
        """
        super().setUp()
        self.wire.log = []

    def test_forged(self) -> None:
        """
        A request from nobody draws two packets, two more for each repetition, and then nothing is kept.
        """
        self.posted(self.question(500))
        self.wait(1.0)
        self.assertEqual(len(self.sent()), 1)
        self.posted(self.question(500))
        self.assertEqual(self.sent(), [(0x92, DATA, 0)])
        self.wait(1.0)
        self.assertEqual(len(self.sent()), 1)
        self.wait(RMPP_ACK_SECONDS)
        self.assertEqual(self.sent(), [(0x92, DATA, 0)])
        for _ in range(RMPP_RETRIES_UNPROVEN - 1):
            self.wait(RMPP_ACK_SECONDS)
        self.assertEqual((self.sent(), len(self.b.mads.transfers)), ([], 0))
        self.assertEqual(self.b.counters["management_aborted"], 1)

    def test_sendingBounds(self) -> None:
        """
        So many responses, and bytes of responses, are sent at a time; others are dropped, and come again.
        """
        self.patch(transfers, "RMPP_TRANSFERS", 2)
        for transaction in (1, 2):
            self.posted(self.question(9, transaction))
            self.prove(transaction)
        self.assertEqual(self.posted(self.question(1, 3)), {"management_dropped": 1})
        self.assertRaises(
            ResourceLimitError,
            self.b.mads.transfers.send,
            *((1,) * 6, bytes(56), b"", print),
        )
        self.b.mads.transfers.close()
        self.patch(transfers, "RMPP_BYTES", 1000)
        self.posted(self.question(8, 4))
        self.prove(4)
        self.assertEqual(self.posted(self.question(1, 5)), {"management_dropped": 1})
        self.assertEqual(self.b.mads.transfers._bytesSent, 896)
        self.patch(transfers, "RMPP_BYTES", 1008)
        self.assertEqual(self.posted(self.question(1, 5)), {})
        self.assertEqual(self.b.mads.transfers._bytesSent, 1008)

    def test_receivingBounds(self) -> None:
        """
        So many transfers that nobody asked for are received at a time, and bytes of all: others are stopped.
        """
        stopped = (GET_MULTI | RESPONSE, STOP, TransferStatus.RESOURCES_EXHAUSTED)
        self.patch(transfers, "RMPP_TRANSFERS", 2)
        for transaction in (1, 2):
            self.posted(self.part(1, FIRST, 660, transaction))
            self.posted(self.part(2, 0, 0, transaction))
        self.sent()
        self.assertEqual(self.posted(self.part(1, FIRST, 660, 3)), {"management_dropped": 1})
        self.assertEqual(self.sent(), [stopped])
        self.b.mads.transfers.close()
        self.patch(transfers, "RMPP_BYTES", 600)
        for transaction in (1, 2):
            self.posted(self.part(1, FIRST, 660, transaction))
        self.posted(self.part(2, 0, 0, 1))
        self.sent()
        self.assertEqual(self.posted(self.part(2, 0, 0, 2)), {"management_aborted": 1})
        self.assertEqual((self.sent(), self.b.mads.transfers._bytesHeld), ([stopped], 400))
        # One has made room.
        self.posted(self.part(1, FIRST, 660, 4))
        self.assertEqual((len(self.b.mads.transfers), self.sent()[0][1]), (2, ACK))
        self.wait(RMPP_IDLE_SECONDS)
        self.assertEqual(self.sent(), [(GET_MULTI | RESPONSE, ABORT, TransferStatus.TIME_TOO_LONG)] * 2)
        self.assertEqual((len(self.b.mads.transfers), self.b.mads.transfers._bytesHeld), (0, 0))
        self.assertEqual((self.b.mads.transfers._unasked, self.b.deadline()), ({}, None))

    def prove(self, transaction: int) -> None:
        """
        Acknowledge the first segment of a response.
        """
        self.posted(control(self.question(9, transaction), AT, ACK, 0, 1, 1, responds=False))

    def test_forgedSources(self) -> None:
        """
        Where there is no room, those go first that have not shown that they exist: they are not told.
        """
        self.patch(transfers, "RMPP_TRANSFERS", 2)
        for transaction in range(1, 6):
            self.posted(self.question(9, transaction))
            self.posted(self.part(1, FIRST, 660, transaction))
        found = self.b.mads.transfers
        self.assertEqual([key[4] for key in found._sending], [4, 5])
        self.assertEqual([key[4] for key in found._unasked], [4, 5])
        self.assertEqual({each[1] for each in self.sent()}, {DATA, ACK})
        self.assertEqual((found._bytesHeld, self.b.counters["management_aborted"]), (400, 6))

    def test_followed(self) -> None:
        """
        A peer that has sent a request of two segments need not have seen an ACK: its response is as unproven
        as that of one segment.
        """
        self.posted(self.part(1, FIRST, 245))
        self.posted(self.part(2, LAST, 25))
        response = GET_MULTI | RESPONSE, DATA, 0
        self.assertEqual(self.sent()[-1], response)
        self.wait(RMPP_ACK_SECONDS)
        self.assertEqual(self.sent(), [response])
        for _ in range(RMPP_RETRIES_UNPROVEN):
            self.wait(RMPP_ACK_SECONDS)
        self.assertEqual((self.sent(), self.b.mads.transfers._sending), ([], {}))

    def test_reflected(self) -> None:
        """
        A forged request, and a forged ACK with a large window, draw twice their bytes at most (issue 32,
        line 16).
        """
        given = [self.question(5000), control(self.question(5000), AT, ACK, 0, 1, 9999, responds=False)]
        for mad in given:
            self.posted(mad)
        for _ in range(60):
            self.wait(1.0)
        self.assertLessEqual(len(self.sent()), 2 * len(given))
        self.assertEqual(len(self.b.mads.transfers), 0)

    def test_perPeer(self) -> None:
        """
        One peer has a part of them.
        """
        self.patch(transfers, "RMPP_TRANSFERS_PER_PEER", 2)
        for transaction in range(1, 4):
            self.posted(self.question(9, transaction))
            self.posted(self.part(1, FIRST, 660, transaction))
        found = self.b.mads.transfers
        self.assertEqual((len(found._sending), len(found._unasked)), (2, 2))
        self.assertEqual(self.b.counters["management_dropped"], 2)

    def test_completeBound(self) -> None:
        """
        Of so many complete transfers repetitions are acknowledged; the segments of others are dropped.
        """
        self.patch(transfers, "RMPP_COMPLETED", 2)
        self.serving.agent.received = self.serving.requests.append
        for transaction in (1, 2, 3):
            self.posted(self.part(1, FIRST | LAST, 20, transaction))
        self.sent()
        for transaction in (2, 3):
            self.posted(self.part(1, FIRST | LAST, 20, transaction))
            self.assertEqual((self.sent()[0][1], len(self.serving.requests)), (ACK, 3))
        self.posted(self.part(1, FIRST | LAST, 20, 1))
        self.assertEqual(len(self.serving.requests), 4)

    def test_strays(self) -> None:
        """
        Segments of no transfer are dropped and counted, and not answered.
        """
        unmatched, response = {"management_unmatched": 1}, GET_TABLE | RESPONSE
        answers = [
            control(self.part(1), AT, *each) for each in ((ACK, 0, 1, 9), (STOP, 1), (ABORT, 118), (ABORT, 0))
        ]
        for mad in (self.part(2), self.part(3, LAST, 20), *answers):
            self.assertEqual(self.posted(mad), unmatched)
            back = mad[:3] + bytes((response,)) + mad[4:]
            self.assertEqual(self.posted(back), unmatched)
        self.assertEqual(self.posted(self.part(1)[:3] + bytes((response,)) + self.part(1)[4:]), unmatched)
        self.assertEqual(self.sent(), [])

    def test_unknown(self) -> None:
        """
        A segment of another version or type is answered by an ABORT; a method that no agent has is refused.
        """
        for changes, status in (({"version": 2}, 125), ({"type": 9}, 121), ({"segment": 2, "flags": 3}, 120)):
            mad = segment(self.part(1), headerOf(self.part(1))._replace(**changes))
            self.assertEqual(self.posted(mad), {"management_aborted": 1})
            self.assertEqual(self.sent(), [(GET_MULTI | RESPONSE, ABORT, status)])
        mad = self.part(1)[:3] + b"\1" + self.part(1)[4:]
        self.assertEqual(self.posted(mad), {"management_unsupported": 1})
        self.assertEqual(len(self.b.mads.transfers), 0)

    def test_oneResponse(self) -> None:
        """
        A request has one response: a transfer of another method, while that arrives, is not of it.
        """
        self.serving.agent.received = self.serving.requests.append
        request = self.request(self.asking.question(500))
        mad = evolve(self.asking.exchange(b""), transaction=request.key[2], method=0x92).pack()
        first = segment(mad, RMPPHeader(1, DATA, 31, FIRST | 1, 0, 1, 660))
        path = self.serving.requests[0].path
        self.b.mads.respond(self.serving.requests[0], first)
        self.settle()
        other = first[:3] + b"\x81" + first[4:]
        self.b.mads.respond(self.serving.requests[0], other)
        self.settle()
        self.assertTrue(path.alive)
        self.assertEqual((len(self.a.mads.transfers), self.a.counters["management_unmatched"]), (1, 1))

    def begun(self, **changes: Any) -> Request:
        """
        @return: a request whose response has begun, of which no more comes.
        """
        self.wire.pass_ = lambda each: () if each[0] == self.b.address else (each,)
        request = self.request(self.asking.question(500), **changes)
        self.wire.pass_ = lambda each: (each,)
        self.b.mads.transfers.close()
        first = evolve(self.asking.exchange(b""), transaction=request.key[2], method=0x92).pack()
        self.b.mads.respond(
            self.serving.requests[-1], segment(first, RMPPHeader(1, DATA, 31, FIRST | 1, 0, 1, 660))
        )
        self.settle()
        self.assertEqual(len(self.a.mads.transfers), 1)
        found: Request = request
        return found

    def test_deadline(self) -> None:
        """
        A response that has begun has the time of all attempts with each MAD; then there is none.
        """
        self.begun(timeout=2.0, retries=2)
        self.wait(5.9)
        self.assertEqual(self.responses, [])
        self.wait(0.2)
        self.assertEqual((self.responses, self.left()[0]), ([None], ({}, 0)))
        self.assertEqual(self.a.counters["management_aborted"], 1)

    def test_leastDeadline(self) -> None:
        """
        However short its request waits, it has the time of two repetitions.
        """
        self.begun(timeout=0.1, retries=0)
        self.wait(transfers.RMPP_RESPONSE_LEAST - 0.1)
        self.assertEqual(self.responses, [])
        self.wait(0.2)
        self.assertEqual((self.responses, self.left()[0]), ([None], ({}, 0)))

    def test_unanswered(self) -> None:
        """
        A request of many MADs that has arrived has the time of all attempts for its response.
        """
        self.serving.agent.received = self.serving.requests.append
        self.request(self.asking.exchange(bytes(3000)), timeout=2.0, retries=2)
        self.assertEqual(len(self.serving.requests), 1)
        self.wait(5.9)
        self.assertEqual(self.responses, [])
        self.wait(0.2)
        self.assertEqual((self.responses, self.left()[0]), ([None], ({}, 0)))
        self.assertEqual(self.a.counters["management_timeouts"], 1)

    def test_cancelled(self) -> None:
        """
        A request that is cancelled, or whose device closes, while its response arrives tells the sender.
        """
        for end in (Request.cancel, lambda request: self.a.close()):
            request = self.begun()
            self.wire.log = log = []
            end(request)
            self.settle()
            (mad,) = [each[4][-260:-4] for each in log if each[0] == self.a.address]
            self.assertEqual(headerOf(mad)[1::3][:2], (ABORT, 127))
            self.assertEqual(self.left()[0], ({}, 0))
        self.assertEqual(self.responses, [None])

    def test_cancelledRequest(self) -> None:
        """
        The same while the request itself is sent.
        """
        self.wire.pass_ = lambda each: ()
        request = self.request(self.asking.exchange(bytes(5000)))
        self.wire.log = log = []
        request.cancel()
        (mad,) = [each[4][-260:-4] for each in log]
        self.assertEqual((headerOf(mad)[1::3][:2], self.left()[0]), ((ABORT, 127), ({}, 0)))

    def test_aborted(self) -> None:
        """
        A response that is aborted is none, before it has begun and after.
        """
        self.begun().cancel()
        (served,) = self.serving.requests
        for begin in (lambda: self.request(self.asking.question(500)), self.begun):
            self.serving.agent.received = self.serving.requests.append
            request = begin()
            mad = evolve(self.asking.exchange(b""), transaction=request.key[2], method=0x92).pack()
            aborted = control(mad, AT, ABORT, TransferStatus.UNSPECIFIED, responds=False)
            self.b.mads.respond(served, aborted)
            self.settle()
            self.assertEqual(self.responses, [None])
            self.responses.clear()

    def test_closed(self) -> None:
        """
        A device that closes keeps nothing, neither timers nor memory.
        """
        self.posted(self.question(500, 1))
        self.posted(self.part(1, FIRST, 660, 2))
        self.b.close()
        found = self.b.mads.transfers
        self.assertEqual((len(found), found._bytesSent, found._bytesHeld), (0, 0, 0))
        self.assertIsNone(self.b.timers.deadline())

    def test_plain(self) -> None:
        """
        Data that fits is sent plainly unless its header says that it is a table.
        """
        self.assertEqual(DATA_BYTES, 232)
        mad = Mad(3, 2, GET_TABLE, 0, 0x11, bytes(200))
        self.assertIsNone(self.b.mads._table(mad))
        self.assertEqual(self.b.mads._table(self.asking.exchange(b"")), b"")
        self.assertEqual(segments.RMPP_SECONDS, 600.0)
