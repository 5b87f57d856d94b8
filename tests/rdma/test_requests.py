"""
Tests of requests that somebody waits for, and of registered memory:
L{twisted_ib.rdma.requests}, L{twisted_ib.internet.region}.
"""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

from attrs import evolve
from twisted.internet.defer import CancelledError
from zope.interface.verify import verifyObject

from tests.rdma.pair import EVERYTHING, PairTestCase
from twisted_ib import limits
from twisted_ib.errors import (
    MemoryAccessError,
    MemoryRegionError,
    PathLostError,
    QueuePairError,
    ResourceLimitError,
    WorkCompletionError,
)
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.traits import Completion
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.interfaces import IRDMARegion, IRDMAWindow
from twisted_ib.rdma import transport as transports
from twisted_ib.rdma.requests import Requests

#: What a connection without requests has.
_AT_REST = {"pd": 2, "mr": 0, "qp": 2}


class RequestTestCase(PairTestCase):
    """
    Two transports, and a region of the second one.
    """

    def setUp(self) -> None:
        """
        Connect them.
        """
        super().setUp()
        self.one, self.two = self.pair.connected()
        self.buffer = bytearray(range(256)) * 16
        self.region = self.two.registerMemory(self.buffer, EVERYTHING)
        self.address, self.key = self.region.address, self.region.remoteKey

    def result(self, deferred: Any) -> Any:
        """
        @return: What it fires with when all has settled.
        """
        self.settle()
        return self.successResultOf(deferred)

    def failure(self, deferred: Any) -> WorkCompletionError:
        """
        @return: The error that it fails with when all has settled.
        """
        self.settle()
        reason = self.failureResultOf(deferred, WorkCompletionError)
        error: WorkCompletionError = reason.value
        return error

    def regions(self) -> int:
        """
        @return: How many memory regions there are, but for the one of the test.
        """
        return sum(end.device.inUse()["mr"] for end in self.pair.ends) - 1


class RequestTests(RequestTestCase):
    """
    Requests do what they say.
    """

    def test_send(self) -> None:
        """
        C{send} fires when the peer has taken the message.
        """
        self.two.pauseProducing()
        done = self.one.send(b"x")
        self.settle()
        self.assertNoResult(done)
        self.two.resumeProducing()
        self.pair.wait()
        self.assertIsNone(self.successResultOf(done))

    def test_sendRegistered(self) -> None:
        """
        A part of registered memory is one message.
        """
        region = self.one.registerMemory(bytearray(b"0123456789"))
        for arguments in ((), (3,), (3, 4), (10,), (0, 0)):
            self.assertIsNone(self.result(self.one.sendRegistered(region, *arguments)))
        self.assertEqual(self.two.heard.log, [b"0123456789", b"3456789", b"3456", b"", b""])

    def test_read(self) -> None:
        """
        A READ gives bytes; nothing stays registered.
        """
        found = self.result(self.one.rdmaRead(5, self.address + 3, self.key))
        self.assertEqual(found, b"\3\4\5\6\7")
        self.assertIs(type(found), bytes)
        self.assertEqual(self.result(self.one.rdmaRead(0, self.address, self.key)), b"")
        self.assertEqual(self.result(self.one.rdmaRead(4096, self.address, self.key)), bytes(self.buffer))
        self.assertEqual(self.regions(), 0)

    def test_readInto(self) -> None:
        """
        A READ into a region gives how many bytes came.
        """
        region = self.one.registerMemory(16)
        self.assertEqual(self.result(self.one.rdmaRead(5, self.address + 3, self.key, region, 8)), 5)
        self.assertEqual(bytes(region.view), bytes(8) + b"\3\4\5\6\7" + bytes(3))

    def test_write(self) -> None:
        """
        A WRITE of bytes, of a part of them, of a region, of nothing.  The peer's protocol hears
        nothing.
        """
        write = self.one.rdmaWrite
        region = self.one.registerMemory(bytearray(b"region"))
        for data, more, expected in (
            (b"abc", {}, b"abc\3"),
            (b"abcdef", {"offset": 4}, b"efc\3"),
            (b"abcdef", {"offset": 1, "length": 2}, b"bcc\3"),
            (bytearray(b"ba"), {}, b"bac\3"),
            (region, {"offset": 2, "length": 3}, b"gio\3"),
            (b"", {}, b"gio\3"),
            (region, {"length": 0}, b"gio\3"),
        ):
            self.assertIsNone(self.result(write(data, self.address, self.key, **more)))
            self.assertEqual(self.buffer[:4], expected)
        self.assertEqual(self.two.heard.log, [])
        self.assertEqual(self.regions(), 1)

    def test_writeWithImmediate(self) -> None:
        """
        The peer's protocol hears of a WRITE with immediate: how many bytes, and the immediate;
        in order with messages.
        """
        region = self.one.registerMemory(bytearray(b"region"))
        self.one.write(b"before")
        self.one.rdmaWriteWithImmediate(b"abc", self.address, self.key, 0xFFFFFFFF)
        self.one.rdmaWriteWithImmediate(region, self.address, self.key, 0, 1, 2)
        self.one.rdmaWriteWithImmediate(b"", 0, 0, 3)
        self.one.write(b"after")
        self.settle()
        self.assertEqual(self.two.heard.log, [b"before", (0xFFFFFFFF, 3), (0, 2), (3, 0), b"after"])
        self.assertEqual(self.buffer[:3], b"egc")

    def test_atomics(self) -> None:
        """
        Atomics give what was there before, and work on 64 bits.
        """
        one, address, key = self.one, self.address, self.key
        self.buffer[:8] = (5).to_bytes(8, "little")
        self.assertEqual(self.result(one.fetchAdd(address, key, 3)), 5)
        self.assertEqual(self.result(one.fetchAdd(address, key, -9)), 8)
        self.assertEqual(self.result(one.compareAndSwap(address, key, 8, 1)), (1 << 64) - 1)
        self.assertEqual(self.result(one.compareAndSwap(address, key, (1 << 64) - 1, 7)), (1 << 64) - 1)
        self.assertEqual(self.result(one.fetchAdd(address, key, (1 << 64) - 7)), 7)
        self.assertEqual(self.buffer[:8], bytes(8))
        self.assertEqual(self.regions(), 0)

    def test_order(self) -> None:
        """
        Requests and messages are done in the order of the calls.
        """
        told: list[str] = []
        one = self.one
        for name, done in (
            ("send", one.send(b"1")),
            ("write", one.rdmaWrite(b"abc", self.address, self.key)),
            ("read", one.rdmaRead(3, self.address, self.key)),
            ("add", one.fetchAdd(self.address + 8, self.key, 1)),
            ("last", one.send(b"2")),
        ):
            done.addCallback(lambda result, name=name: told.append(name))
        self.settle()
        self.assertEqual(told, ["send", "write", "read", "add", "last"])
        self.assertEqual(self.two.heard.log, [b"1", b"2"])

    def test_resultBeforeMessage(self) -> None:
        """
        A completion before a message is reported before the message.
        """
        told: list[Any] = []
        self.two.heard.hook = lambda data: self.two.write(b"answer")
        self.one.heard.hook = told.append
        self.one.fetchAdd(self.address, self.key, 1).addCallback(lambda value: told.append("added"))
        self.one.write(b"question")
        self.settle()
        self.assertEqual(told, ["added", b"answer"])

    def test_fromCallback(self) -> None:
        """
        More may be asked for when a Deferred fires, and when a message is delivered.
        """
        left = [300]

        def again(value: int) -> Any:
            left[0] -= 1
            if left[0]:
                return self.one.fetchAdd(self.address, self.key, 1).addCallback(again)
            return value

        done = self.one.fetchAdd(self.address, self.key, 1).addCallback(again)
        self.two.heard.hook = lambda data: self.two.send(data)
        self.one.write(b"x")
        self.settle()
        self.assertEqual(self.successResultOf(done) & 0xFF, 299 & 0xFF)
        self.assertEqual(self.one.heard.log, [b"x"])

    def test_manyReads(self) -> None:
        """
        More READs and atomics than may be on the way wait for those before.
        """
        wanted = 3 * limits.RDMA_READS
        found = [self.one.rdmaRead(1, self.address + number, self.key) for number in range(wanted)]
        self.settle()
        self.assertEqual(b"".join(map(self.successResultOf, found)), bytes(range(wanted)))

    def test_readsUpTo(self) -> None:
        """
        A READ has a length that can be.
        """
        for length in (-1, limits.MESSAGE_BYTES + 1):
            self.assertRaises(ValueError, self.one.rdmaRead, length, self.address, self.key)
        self.assertEqual(self.regions(), 0)

    def test_fields(self) -> None:
        """
        Arguments that do not fit into a request raise, and nothing stays.
        """
        one = self.one
        for call in (
            lambda: one.rdmaRead(1, -1, self.key),
            lambda: one.rdmaRead(1, self.address, 1 << 32),
            lambda: one.rdmaWrite(b"x", 1 << 64, self.key),
            lambda: one.compareAndSwap(self.address, self.key, -1, 0),
            lambda: one.compareAndSwap(self.address, self.key, 0, 1 << 64),
        ):
            error = self.assertRaises(QueuePairError, call)
        self.assertEqual(str(error), f"swap {1 << 64:#x} of a send request is no number of 64 bits")
        self.assertRaises(MemoryAccessError, one.rdmaWrite, b"abc", self.address, self.key, 4)
        self.assertRaises(MemoryAccessError, one.rdmaWrite, b"abc", self.address, self.key, 1, 3)
        self.assertRaises(MemoryAccessError, one.rdmaWrite, b"abc", self.address, self.key, 2, -1)
        self.assertEqual(self.regions(), 0)
        self.assertEqual(one.requests.asked, {})

    def test_kinds(self) -> None:
        """
        An argument that is no integer, no region or no bytes raises TypeError with its name at once, and
        neither the request nor later ones suffer.
        """
        one: Any = self.one
        address, key = self.address, self.key
        mine = one.registerMemory(16, EVERYTHING)
        for call, name in (
            (lambda: one.send(b"x", 1.5), "immediate data"),
            (lambda: one.rdmaWriteWithImmediate(b"x", address, key, None), "immediate data"),
            (lambda: one.rdmaWriteWithImmediate(b"x", address, key, 1.5), "immediate data"),
            (lambda: one.sendRegistered(mine, 8.0), "offset"),
            (lambda: one.sendRegistered(mine, 8, "8"), "length"),
            (lambda: one.rdmaRead(8.0, address, key, mine), "length"),
            (lambda: one.rdmaRead(8, "8", key), "remoteAddress"),
            (lambda: one.rdmaRead(8, address, None), "remoteKey"),
            (lambda: one.rdmaWrite(b"x", 1.5, key), "remoteAddress"),
            (lambda: one.rdmaWrite(b"x", address, key, "8"), "offset"),
            (lambda: one.rdmaWrite(b"x", address, key, 0, 1.0), "length"),
            (lambda: one.compareAndSwap(address, key, "8", 0), "compare"),
            (lambda: one.compareAndSwap(address, key, 0, 1.5), "swap"),
            (lambda: one.fetchAdd(address, key, "8"), "what to add"),
            (lambda: one.fetchAdd(address, key, 1.5), "what to add"),
            (lambda: one.grant(mine, "8"), "access"),
            (lambda: one.registerMemory(8, "8"), "access"),
            (lambda: one.sendRegistered(b"12345678"), "registerMemory"),
            (lambda: one.rdmaRead(8, address, key, bytearray(8)), "registerMemory"),
            (lambda: one.grant(b"12345678", 1), "registerMemory"),
            (lambda: one.send("text"), "data"),
            (lambda: one.rdmaWrite("text", address, key), "data"),
            (lambda: one.registerMemory("text"), "number of bytes"),
        ):
            self.assertIn(name, str(self.assertRaises(TypeError, call)))
        self.assertEqual(one.requests.asked, {})
        mine.close()
        self.assertEqual(self.regions(), 0)
        one.write(b"behind")
        self.settle()
        self.assertEqual(self.two.heard.log, [b"behind"])

    def test_peerWithoutReads(self) -> None:
        """
        A peer that answers no READs, by its REP or REQ: the request fails, the connection
        does not.
        """
        one = self.pair.transport(self.pair.a)
        two = self.pair.transport(self.pair.b)
        self.patch(limits, "RDMA_READS", 0)
        self.pair.join(one, two)
        self.pair.attach(one), self.pair.attach(two)
        region = two.registerMemory(bytearray(8), EVERYTHING)
        done = one.rdmaRead(1, region.address, region.remoteKey)
        self.settle()
        self.failureResultOf(done, QueuePairError)
        self.assertIsNone(self.result(one.send(b"x")))
        self.assertEqual(one.requests.asked, {})


class ErrorTests(RequestTestCase):
    """
    Requests that end badly.
    """

    def test_status(self) -> None:
        """
        The error has the status, its name and what was asked for; the connection is lost at
        both ends, by name, and what was asked for after it is flushed.
        """
        first = self.one.send(b"first")
        bad = self.one.rdmaRead(1, self.address, self.key ^ 0x100)
        after = self.one.fetchAdd(self.address, self.key, 1)
        self.settle()
        self.assertIsNone(self.successResultOf(first))
        error = self.failure(bad)
        self.assertEqual(
            (error.status, error.statusName, error.operation), (10, "REM_ACCESS_ERR", "RDMA_READ")
        )
        self.assertIs(error.status, WCStatus.REM_ACCESS_ERR)
        self.assertEqual(str(error), "RDMA_READ ended with REM_ACCESS_ERR (10)")
        error = self.failure(after)
        self.assertEqual((error.statusName, error.operation), ("WR_FLUSH_ERR", "FETCH_ADD"))
        self.assertEqual(self.one.heard.log, ["ConnectionLost"])
        self.assertEqual(self.two.heard.log, [b"first", "ConnectionLost"])
        self.assertIn("RDMA_READ", str(self.one.heard.reason.value))
        self.assertIn("asked for what it may not", str(self.two.heard.reason.value))
        self.assertEqual(self.buffer[:8], bytes(range(8)))

    def test_rights(self) -> None:
        """
        Each right is asked for; without it nothing is read and nothing written.
        """
        local, read, write = int(Access.LOCAL_WRITE), int(Access.REMOTE_READ), int(Access.REMOTE_WRITE)
        atomic = int(Access.REMOTE_ATOMIC)
        for access, call in (
            (None, lambda t, r: t.rdmaRead(8, r.address, r.localKey)),
            (local | write | atomic, lambda t, r: t.rdmaRead(8, r.address, r.localKey)),
            (local | read | atomic, lambda t, r: t.rdmaWrite(b"x", r.address, r.localKey)),
            (local | read | atomic, lambda t, r: t.rdmaWriteWithImmediate(b"x", r.address, r.localKey, 1)),
            (local | read | write, lambda t, r: t.fetchAdd(r.address, r.localKey, 1)),
            (local | read | write, lambda t, r: t.compareAndSwap(r.address, r.localKey, 0, 1)),
            (EVERYTHING, lambda t, r: t.rdmaRead(8, r.address + 1, r.localKey)),
            (EVERYTHING, lambda t, r: t.rdmaWrite(b"xx", r.address - 1, r.localKey)),
        ):
            one, two = self.pair.connected()
            buffer = bytearray(8)
            region = two.registerMemory(buffer, access)
            self.assertEqual(self.failure(call(one, region)).statusName, "REM_ACCESS_ERR")
            self.assertEqual(buffer, bytes(8))
            self.assertEqual(two.heard.log, ["ConnectionLost"])

    def test_unalignedAtomic(self) -> None:
        """
        An atomic needs an address that is a multiple of 8.
        """
        error = self.failure(self.one.fetchAdd(self.address + 4, self.key, 1))
        self.assertEqual(error.statusName, "REM_INV_REQ_ERR")

    def test_otherConnection(self) -> None:
        """
        A key is of no use to another connection.
        """
        three, _ = self.pair.connected()
        error = self.failure(three.rdmaRead(1, self.address, self.key))
        self.assertEqual(error.statusName, "REM_ACCESS_ERR")
        self.assertEqual(self.one.heard.log, [])

    def test_revoked(self) -> None:
        """
        When a region is closed the peer's next access fails; before it does not.
        """
        self.assertEqual(self.result(self.one.rdmaRead(1, self.address + 7, self.key)), b"\7")
        self.region.close()
        error = self.failure(self.one.rdmaWrite(b"late", self.address, self.key))
        self.assertEqual(error.statusName, "REM_ACCESS_ERR")
        self.assertEqual(self.buffer[:4], b"\0\1\2\3")

    def test_readOnlyTarget(self) -> None:
        """
        A READ into memory that may not be written here fails here.
        """
        region = self.one.registerMemory(bytes(8))
        error = self.failure(self.one.rdmaRead(8, self.address, self.key, region))
        self.assertEqual(error.statusName, "LOC_PROT_ERR")

    def test_afterEnd(self) -> None:
        """
        A request after the end fails as flushed; a message without report is dropped.
        """
        mine = self.one.registerMemory(8)
        self.two.loseConnection()
        self.settle()
        self.assertEqual(self.one.heard.log, ["ConnectionDone"])
        one = self.one
        one.write(b"x")
        for done in (
            one.send(b"x"),
            one.rdmaRead(1, self.address, self.key),
            one.rdmaWrite(b"x", self.address, self.key),
            one.fetchAdd(self.address, self.key, 1),
        ):
            self.assertEqual(self.failure(done).statusName, "WR_FLUSH_ERR")
        self.assertRaises(MemoryRegionError, one.registerMemory, 8)
        self.assertRaises(MemoryAccessError, one.sendRegistered, mine)
        self.settle()
        self.assertEqual(self.two.heard.log, ["ConnectionDone"])

    def test_outstanding(self) -> None:
        """
        Requests outstanding when the connection ends fail before the protocol hears of it, in order, also
        those that were not sent.
        """
        for end in ("abort here", "abort there", "peer closes"):
            one, two = self.pair.connected()
            two.pauseProducing()
            told: list[Any] = []
            for number in range(transports.RDMA_SENDS + 10):
                done = one.send(b"%d" % number)
                done.addErrback(lambda reason, n=number, told=told: told.append((n, reason.value.statusName)))
            one.heard.connectionLost = lambda reason, told=told: told.append("lost")
            self.settle()
            self.assertEqual(told, [])
            if end == "abort here":
                one.abortConnection()
            elif end == "abort there":
                two.abortConnection()
            else:
                self.pair.b.device.disconnect(two.connection)
            self.settle()
            self.assertEqual(
                told, [(n, "WR_FLUSH_ERR") for n in range(transports.RDMA_SENDS + 10)] + ["lost"], end
            )

    def test_unposted(self) -> None:
        """
        What the queue pair does not take fails at once, as flushed; a message without report is dropped.
        """
        self.result(self.one.send(b"x"))

        def refuse(*arguments: object) -> None:
            raise QueuePairError("it takes nothing")

        work, self.one.work = self.one.work, SimpleNamespace(postInline=refuse)
        done = self.one.send(b"y")
        self.one.write(b"z")
        reason = self.failureResultOf(done, WorkCompletionError)
        self.assertEqual((reason.value.statusName, self.one.requests.asked), ("WR_FLUSH_ERR", {}))
        self.one.work = work
        self.result(self.one.send(b"after"))
        self.assertEqual(self.two.heard.log, [b"x", b"after"])

    def test_peerLost(self) -> None:
        """
        A peer that is gone: what was on the way ends so.
        """
        self.two.pauseProducing()
        done = self.one.send(b"x")
        self.settle()
        self.one.queuePair.path.lost(PathLostError("the peer died"))
        self.assertEqual(self.failure(done).statusName, "RETRY_EXC_ERR")
        self.assertEqual(self.one.heard.log, ["ConnectionLost"])


class ConfirmedTests(RequestTestCase):
    """
    Where a completion tells only that something was sent, as on iWARP, a READ tells that the peer has it.
    """

    def setUp(self) -> None:
        """
        Take the fabric for such a one, and note the READs of no octets and what fires.
        """
        super().setUp()
        device = self.one.channel.device
        self.patch(device, "traits", evolve(device.traits, completion=Completion.SENT))
        self.posted: list[Any] = []
        self.fired: list[Any] = []
        #: Sent behind the first READ.
        self.following: tuple[int, ...] = ()
        post = Requests.post

        def counted(requests: Requests, request: SendRequest, number: int) -> None:
            self.posted.append((request.opcode, [*request.pieces], [*self.fired]))
            post(requests, request, number)
            self.send(*self.following)
            self.following = ()

        self.patch(Requests, "post", counted)

    def send(self, *numbers: int) -> None:
        """
        Send so many messages, and note their numbers when they fire.
        """
        for number in numbers:
            self.one.send(b"x").addBoth(self._noted, number)

    def _noted(self, result: Any, number: int) -> None:
        self.fired.append(number if result is None else (number, result.value.statusName))

    def test_together(self) -> None:
        """
        One READ is for all that were sent before it, which then fire in their order; what follows has to wait
        for the next one.
        """
        self.following = 3, 4
        self.send(0, 1, 2)
        self.settle()
        self.assertEqual(self.fired, [0, 1, 2, 3, 4])
        read = SendOpcode.RDMA_READ
        self.assertEqual(self.posted, [(read, [], []), (read, [], [0, 1, 2])])
        requests = self.one.requests
        self.assertEqual((requests.asked, requests.sent, self.two.heard.log), ({}, {}, [b"x"] * 5))

    def test_ownRead(self) -> None:
        """
        A READ of the program's own tells the same, and none is asked for besides.
        """
        self.send(0, 1)
        done = self.one.rdmaRead(4, self.address, self.key).addCallback(self.fired.append)
        self.settle()
        self.assertEqual(self.fired, [0, 1, bytes(range(4))])
        self.assertEqual(len(self.posted), 1)
        self.successResultOf(done)

    def test_noReads(self) -> None:
        """
        A peer that answers no READs cannot be asked: what was sent counts.
        """
        self.one.work.attributes = evolve(self.one.work.attributes, reads=0)
        self.send(0, 1)
        self.settle()
        self.assertEqual((self.fired, self.posted, self.one.requests.asked), ([0, 1], [], {}))

    def test_ends(self) -> None:
        """
        What was sent and is not known to have arrived fails with the connection, behind what failed itself.
        """
        self.send(0, 1)
        requests = self.one.requests
        self.one.queuePair.path.lost(PathLostError("the peer died"))
        self.settle()
        self.assertEqual([each[0] for each in self.fired], [0, 1])
        self.assertEqual((requests.asked, self.one.heard.log), ({}, ["ConnectionLost"]))


class CancelTests(RequestTestCase):
    """
    Deferreds that are cancelled.
    """

    def testonTheWay(self) -> None:
        """
        A cancelled request that was sent is executed all the same; its result goes nowhere, and nothing
        stays.
        """
        for done in (
            self.one.fetchAdd(self.address, self.key, 1),
            self.one.rdmaRead(4, self.address, self.key),
        ):
            done.cancel()
            self.failureResultOf(done, CancelledError)
        self.settle()
        self.assertEqual(self.buffer[0], 1)
        self.assertEqual(self.regions(), 0)
        self.assertEqual(self.one.requests.asked, {})

    def test_waiting(self) -> None:
        """
        A cancelled request that was not sent never is.
        """
        self.two.pauseProducing()
        for _ in range(transports.RDMA_SENDS):
            self.one.send(b"before")
        cancelled = self.one.send(b"never"), self.one.fetchAdd(self.address, self.key, 1)
        kept = self.one.send(b"after")
        for done in cancelled:
            done.cancel()
            self.failureResultOf(done, CancelledError)
        self.two.resumeProducing()
        for _ in range(5):
            self.pair.wait()
        self.assertIsNone(self.successResultOf(kept))
        self.assertEqual(self.two.heard.log, [b"before"] * transports.RDMA_SENDS + [b"after"])
        self.assertEqual(self.buffer[0], 0)
        self.assertEqual((self.regions(), self.one.requests.asked), (0, {}))

    def test_twice(self) -> None:
        """
        To cancel what is done does nothing.
        """
        done = self.one.send(b"x")
        self.settle()
        done.cancel()
        self.assertIsNone(self.successResultOf(done))

    def test_atEnd(self) -> None:
        """
        A cancelled Deferred hears nothing of the end.
        """
        self.two.pauseProducing()
        done = self.one.send(b"x")
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.one.abortConnection()
        self.settle()
        self.assertEqual(self.one.heard.log, ["ConnectionAborted"])


class LifeTests(RequestTestCase):
    """
    Requests have a part of the connection to themselves, from the first one until the end.
    """

    def test_made(self) -> None:
        """
        A connection that only writes has none; after the end a request is for nothing, and nothing is kept.
        """
        one = self.one
        one.write(b"x")
        self.settle()
        self.assertIsNone(one.requests)
        self.assertIsNone(self.result(one.send(b"y")))
        requests = one.requests
        one.loseConnection()
        self.settle()
        self.assertEqual((one.requests, requests.asked), (None, {}))
        self.assertEqual(self.failure(one.send(b"z")).statusName, "WR_FLUSH_ERR")
        self.assertIsNone(one.requests)

    def test_free(self) -> None:
        """
        Of one that has ended it is free at once, with no collection of garbage.
        """

        def alive() -> int:
            return sum(type(each) is Requests for each in gc.get_objects())

        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        self.result(self.one.fetchAdd(self.address, self.key, 1))
        before = alive()
        self.one.loseConnection()
        self.settle()
        # That of each end.
        self.assertEqual(before - alive(), 2)
        for end in (self.one, self.two):
            self.assertFalse(hasattr(end.inbox, "transport"))


class RegionTests(RequestTestCase):
    """
    Registered memory.
    """

    def test_interface(self) -> None:
        """
        A region provides what it says.
        """
        verifyObject(IRDMARegion, self.region)

    def test_contextManagers(self) -> None:
        """
        The interfaces of regions and of windows say that they are context managers.
        """
        for interface in (IRDMARegion, IRDMAWindow):
            self.assertIn("__enter__", interface.names())
            self.assertIn("__exit__", interface.names())

    def test_allocated(self) -> None:
        """
        New memory is zero and can be written; the peer has no right to it.
        """
        for size in (1, 8, 5000):
            region = self.one.registerMemory(size)
            self.assertEqual((bytes(region.view), len(region), region.length), (bytes(size), size, size))
            region.view[0] = 1
            self.assertEqual(region.remoteKey, 0)
            self.assertNotIn(str(region.localKey), repr(region))

    def test_buffers(self) -> None:
        """
        A buffer is used as it is: what can be written stays so.
        """
        buffer = bytearray(b"abc")
        region = self.one.registerMemory(buffer)
        region.view[0] = 0x7A
        self.assertEqual(buffer, b"zbc")
        self.assertTrue(self.one.registerMemory(b"abc").view.readonly)
        self.assertEqual(self.one.registerMemory(memoryview(buffer)[1:]).length, 2)

    def test_refused(self) -> None:
        """
        Memory that cannot be registered raises by name.
        """
        wrong: Any
        for wrong, access in ((0, None), (-1, 1), (bytes(8), 1), (8, 2), (8, 1 << 30), (True - 2, 1)):
            self.assertRaises(MemoryRegionError, self.one.registerMemory, wrong, access)
        for wrong in ("text", None, 1.5):
            self.assertRaises((TypeError, MemoryRegionError), self.one.registerMemory, wrong)
        self.assertEqual(self.regions(), 0)

    def test_tooMuch(self) -> None:
        """
        More memory than there is, or than there can be, is refused by name too.
        """
        for error in (OSError(12, "Cannot allocate memory"), OverflowError("too large"), MemoryError()):

            def fail(size: int, error: Exception = error) -> None:
                raise error

            self.patch(self.one.channel.device.fabric, "allocate", fail)
            self.assertRaises(MemoryRegionError, self.one.registerMemory, 1 << 50)
        self.assertEqual(self.regions(), 0)

    def test_with(self) -> None:
        """
        A region is a context manager that closes it; to close it again does nothing.
        """
        with self.one.registerMemory(8) as region:
            self.assertFalse(region.closed)
            self.assertEqual(self.regions(), 1)
        self.assertTrue(region.closed)
        region.close()
        self.assertEqual(self.regions(), 0)
        self.assertIn("closed", repr(region))

    def test_bytesStay(self) -> None:
        """
        The bytes of a closed region stay for whoever has its view.
        """
        region = self.one.registerMemory(8)
        region.view[:] = b"contents"
        view = region.view
        region.close()
        self.assertEqual((bytes(view), bytes(region.view)), (b"contents", b"contents"))

    def test_closedWithConnection(self) -> None:
        """
        Regions are closed with the connection; nothing is left of it.
        """
        self.one.registerMemory(8), self.one.registerMemory(b"x")
        self.one.loseConnection()
        self.settle()
        self.assertTrue(self.region.closed)
        for end in self.pair.ends:
            used = end.device.inUse()
            self.assertEqual({kind: used[kind] for kind in _AT_REST}, dict.fromkeys(_AT_REST, 0))

    def test_bounds(self) -> None:
        """
        A part of a region is within it, and of this connection.
        """
        one = self.one
        region = one.registerMemory(8)
        for offset, length in ((9, None), (-1, None), (0, 9), (4, 5), (0, -1)):
            self.assertRaises(MemoryAccessError, one.sendRegistered, region, offset, length)
            self.assertRaises(MemoryAccessError, one.rdmaWrite, region, 0, 0, offset, length)
        self.assertRaises(MemoryAccessError, one.rdmaRead, 9, 0, 0, region)
        self.assertRaises(MemoryAccessError, one.rdmaRead, 1, 0, 0, region, 8)
        self.assertRaises(MemoryAccessError, self.two.sendRegistered, region)
        region.close()
        self.assertRaises(MemoryAccessError, one.sendRegistered, region)
        self.settle()
        self.assertEqual(self.two.heard.log, [])

    def test_domain(self) -> None:
        """
        A connection has a protection domain, its own, from its first memory to its end; most have none.
        """
        here, there = (each.channel.device for each in (self.one, self.two))
        three, four = self.pair.connected()
        three.write(b"x")
        self.settle()
        self.assertEqual((here.inUse()["pd"], there.inUse()["pd"]), (0, 1))
        region = four.registerMemory(8, EVERYTHING)
        four.registerMemory(8)
        self.result(three.rdmaWrite(b"written", region.address, region.remoteKey))
        self.assertEqual((here.inUse()["pd"], there.inUse()["pd"]), (1, 2))
        self.failure(self.one.rdmaWrite(b"not mine", region.address, region.remoteKey))
        self.assertEqual(bytes(region.view), b"written\0")
        four.loseConnection()
        self.settle()
        self.assertEqual((here.inUse()["pd"], there.inUse()["pd"]), (0, 0))

    def test_noDomain(self) -> None:
        """
        Where a device has no more of them a connection can register nothing, and goes on.
        """
        self.patch(limits, "PROTECTION_DOMAINS", 1)
        three, four = self.pair.connected()
        self.assertRaises(ResourceLimitError, four.registerMemory, 8)
        three.write(b"x")
        self.settle()
        self.assertEqual(four.heard.log, [b"x"])
        four.loseConnection()
        self.settle()
        self.assertEqual(three.heard.log, ["ConnectionDone"])

    def test_othersAtTheEnd(self) -> None:
        """
        Another connection's region, named as the connection ends and afterwards, is refused, and leaves no
        protection domain; nor does memory that is registered then.
        """
        three, _ = self.pair.connected()
        region = three.registerMemory(8)
        device = self.one.channel.device
        before = device.inUse()["pd"]
        found: list[Any] = []

        def ask(reason: object) -> None:
            found.append(self.assertRaises(MemoryAccessError, self.one.sendRegistered, region))
            found.append(self.assertRaises(MemoryAccessError, self.one.grant, region, 0))
            found.append(self.assertRaises(MemoryRegionError, self.one.registerMemory, 8))

        self.two.pauseProducing()
        self.one.send(b"x").addErrback(ask)
        self.settle()
        self.two.abortConnection()
        self.settle()
        self.assertEqual((len(found), self.one.heard.log), (3, ["ConnectionLost"]))
        ask(None)
        self.assertEqual((len(found), device.inUse()["pd"]), (6, before))

    def test_failed(self) -> None:
        """
        A connection that has failed, of which nobody has been told yet, registers nothing, and takes no
        protection domain.
        """
        device = self.one.channel.device
        before = device.inUse()["pd"]
        self.one.queuePair.modify(QPState.ERR)
        error = self.assertRaises(MemoryRegionError, self.one.registerMemory, 8)
        self.assertEqual((str(error), device.inUse()["pd"]), ("the connection has ended", before))
        self.failure(self.one.send(b"x"))

    def test_limit(self) -> None:
        """
        A device registers so many regions; the error says so.
        """
        self.patch(limits, "MEMORY_REGIONS", 2)
        self.two.registerMemory(8)
        self.assertRaises(ResourceLimitError, self.two.registerMemory, 8)

    def test_nothingKept(self) -> None:
        """
        A connection that is over is free to go, and so are its results.
        """
        one, two = self.pair.connected()
        one.send(b"x"), one.registerMemory(8)
        self.settle()
        found = weakref.ref(one.heard), weakref.ref(two.heard)
        self.pair.listener.messages = None
        one.loseConnection()
        self.settle()
        del one, two
        gc.collect()
        self.assertEqual([each() for each in found], [None, None])
