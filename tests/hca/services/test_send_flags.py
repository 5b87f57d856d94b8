"""
Tests of how requests are done: fences, inline data, signalling, and the order of flushes.
"""

from __future__ import annotations

from tests.hca.queues.keyed_cases import RequesterTestCase, bound
from tests.hca.queues.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.queues.requests import Capabilities, SendFlags, SendOpcode, SendRequest
from twisted_ib.hca.services.operations.rows import OPERATIONS

SEND, SEND_IMM, SEND_INV = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM, SendOpcode.SEND_WITH_INV
WRITE, WRITE_IMM, READ = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM, SendOpcode.RDMA_READ
ADD = SendOpcode.ATOMIC_FETCH_AND_ADD
BIND, INV = SendOpcode.BIND_MW, SendOpcode.LOCAL_INV
#: All that a queue pair of RC does.
VERBS = sorted(each.opcode for each in OPERATIONS)
OK, FLUSH = WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR
SIGNALED = int(SendFlags.SIGNALED)
FENCED = SIGNALED | int(SendFlags.FENCE)


class FenceTests(RequesterTestCase):
    """
    Fences.
    """

    def test_waits(self) -> None:
        """
        A fenced request of any kind begins when the answers to all before it have come;
        one without does not wait.
        """
        for first in (READ, ADD):
            for verb in VERBS:
                self.connect()
                self.receives(2)
                self.post(1, first)
                self.post(2, WRITE)
                self.post(3, verb, flags=FENCED)
                self.post(4, WRITE)
                self.assertEqual(len(self.wire()), 2, verb)
                self.b.path.progress()
                self.a.path.progress()
                # A LOCAL_INV waits for the WRITE too.
                count = {BIND: 1, INV: 0}.get(verb, 2)
                self.assertEqual(len(self.a.path.records), count, verb)
                self.p.settle()
                self.assertEqual(self.a.statuses(), [(1, OK), (2, OK), (3, OK), (4, OK)])

    def test_nothingToWaitFor(self) -> None:
        """
        SENDs and WRITEs before it do not hold it up.
        """
        self.receives(1)
        self.post(1, SEND)
        self.post(2, WRITE, flags=FENCED)
        self.assertEqual(len(self.wire()), 2)

    def test_result(self) -> None:
        """
        A fenced SEND carries the bytes that the READ before it brought.
        """
        place = self.a.register(10)
        self.target.view[:10] = b"0123456789"
        self.b.receive(1, piece(self.target, 100, 10))
        self.a.send(1, READ, piece(place), remoteAddress=self.target.address, remoteKey=self.target.key)
        self.a.send(2, SEND, piece(place), flags=FENCED)
        self.p.settle()
        self.assertEqual(bytes(self.target.view[100:110]), b"0123456789")


class InlineTests(RequesterTestCase):
    """
    Data in the request.
    """

    def test_kinds(self) -> None:
        """
        All that carry data; no key is looked at, and the bytes may change afterwards.
        """
        remote = {"remoteAddress": self.target.address, "remoteKey": self.target.key}
        for verb in (SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM):
            self.target.view[:] = bytes(10240)
            self.receives()
            key = bound(self.b, self.target).key
            self.a.send(1, verb, inline=b"12345", invalidateKey=key, **remote)
            self.p.settle()
            (done,) = self.a.sends.poll()
            self.assertEqual((done.status, done.byteLength), (OK, 5), verb)
            self.assertEqual(bytes(self.target.view[:6]), b"12345\0")

    def test_flag(self) -> None:
        """
        With the flag the bytes of the pieces are taken when it is posted.
        """
        self.b.receive(1, piece(self.target))
        flags = SIGNALED | int(SendFlags.INLINE)
        self.a.send(1, SEND, piece(self.source, 1, 3), piece(self.source, 7, 2), flags=flags)
        self.source.view[:] = bytes(10240)
        self.a.memory.deregister(self.source)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK)])
        self.assertEqual(bytes(self.target.view[:6]), b"\1\2\3\7\x08\0")

    def test_repeated(self) -> None:
        """
        They are kept until the peer has taken them.
        """
        self.a.send(1, SEND, inline=b"12345")
        self.p.flow()
        self.receives()
        self.p.settle()
        self.assertEqual(bytes(self.target.view[:5]), b"12345")

    def test_impossible(self) -> None:
        """
        Too many, beside pieces, or with what has no data.
        """
        most = self.a.work.capabilities.inline
        self.assertEqual(most, limits.INLINE_DATA)
        flags = SIGNALED | int(SendFlags.INLINE)
        whole = piece(self.source)
        for request in (
            SendRequest(1, SEND, inline=bytes(most + 1)),
            SendRequest(1, SEND, [whole], inline=b"1"),
            SendRequest(1, READ, inline=b"1"),
            SendRequest(1, ADD, inline=b"12345678"),
            SendRequest(1, INV, inline=b""),
            SendRequest(1, SEND, [piece(self.source, 0, most + 1)], flags),
            SendRequest(1, READ, [piece(self.source, 0, 1)], flags),
            SendRequest(1, ADD, [piece(self.source, 0, 8)], flags),
        ):
            self.assertRaises(QueuePairError, self.a.work.postSend, request)
        tooLong = SendRequest(1, SEND, [SGE(1, most + 1, 1)], flags)
        self.assertRaises(QueuePairError, self.a.work.postSend, tooLong)
        wrong = SendRequest(1, SEND, [SGE(self.source.address, 1, 1)], flags)
        self.assertRaises(MemoryAccessError, self.a.work.postSend, wrong)
        self.a.send(1, SEND, inline=bytes(most))
        self.a.send(2, SEND, inline=b"")
        self.receives(2)
        self.p.settle()
        self.assertEqual(self.a.statuses(), [(1, OK), (2, OK)])


class ListTests(RequesterTestCase):
    """
    Scatter/gather lists.
    """

    def test_longest(self) -> None:
        """
        As many pieces as there may be, in all verbs that have some; one more is too many.
        """
        most = limits.SCATTER_GATHER_ELEMENTS
        for verb in (SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, ADD):
            self.connect()
            for side in (self.a, self.b):
                side.work.capabilities = Capabilities(pieces=most, receivePieces=most)
            place = self.a.register(bytes(range(256)))
            parts = [piece(place, 255 - 2 * n, 1) for n in range(most)]
            self.b.receive(1, *[piece(self.target, 100 + n, 1) for n in range(most)])
            self.target.view[:most] = bytes(range(100, 100 + most))
            remote = {"remoteAddress": self.target.address, "remoteKey": self.target.key}
            fields = {**remote, "invalidateKey": bound(self.b, self.target).key}
            self.a.send(1, verb, *parts, **fields)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, OK)], verb)
            here = bytes(place.view[::-2][:most])
            if verb == ADD:
                self.assertEqual(here[:9], bytes(range(100, 108)) + bytes([255 - 16]))
            else:
                offset = 0 if verb in (WRITE, WRITE_IMM, READ) else 100
                self.assertEqual(here, bytes(self.target.view[offset : offset + most]), verb)
            self.assertRaises(QueuePairError, self.a.send, 2, verb, *parts, parts[0], **fields)


class SignalTests(RequesterTestCase):
    """
    Which requests complete.
    """

    def test_unsignalled(self) -> None:
        """
        Of every kind: no completion if it is done, one if it is not.
        """
        for verb in VERBS:
            self.connect()
            self.receives()
            self.post(1, verb, flags=0)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [], verb)
            self.post(2, verb, flags=0)
            if verb in (BIND, INV):
                continue
            self.a.qp.modify(QPState.ERR)
            self.assertEqual(self.a.statuses(), [(2, FLUSH)], verb)

    def test_all(self) -> None:
        """
        With sq_sig_all each does.
        """
        for verb in VERBS:
            self.connect(signalAll=True)
            self.receives()
            self.post(1, verb, flags=0)
            self.p.settle()
            self.assertEqual(self.a.statuses(), [(1, OK)], verb)

    def test_chained(self) -> None:
        """
        Of several posted together the first that cannot be is the one that raises; those
        before it are done, those behind it are not posted.
        """
        done = 0
        requests = [SendRequest(id, WRITE) for id in range(5)]
        requests[3] = SendRequest(3, WRITE, remoteKey=-1)
        try:
            for request in requests:
                self.a.work.postSend(request)
                done += 1
        except QueuePairError:
            pass
        self.p.settle()
        self.assertEqual((done, self.a.statuses()), (3, [(0, OK), (1, OK), (2, OK)]))

    def test_flushOrder(self) -> None:
        """
        After the first error all that is behind it is flushed, in order, whatever it is and
        wherever it was: on the way, in the queue, waiting for a fence.
        """
        self.receives()
        wrong = {"remoteKey": 1}
        self.post(0, READ)
        self.post(1, WRITE, **wrong)
        for id, verb in enumerate((SEND, ADD, READ, BIND, INV, WRITE, SEND_INV), 2):
            self.post(id, verb, flags=int(SendFlags.FENCE) if id % 2 else 0)
        self.p.settle()
        statuses = self.a.statuses()
        self.assertEqual(statuses[:2], [(0, OK), (1, WCStatus.REM_ACCESS_ERR)])
        self.assertEqual(statuses[2:], [(id, FLUSH) for id in range(2, 9)])
