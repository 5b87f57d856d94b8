"""
Tests of RDMA, atomics and cookies of sockets of RDS.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from twisted.internet.error import CannotListenError
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.rds.ends import HOST, ProcessesTestCase, Recorder
from tests.rds.media.test_addressed import HERE, THERE, AddressedTestCase
from tests.sdp.stream.test_reviewed import jam
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import OwnDirectory, ownRunDirectory
from twisted_ib import limits
from twisted_ib.errors import (
    DatagramTooLongError,
    MemoryAccessError,
    MemoryRegionError,
    PathLostError,
    RDSOperationError,
    RDSUnsupportedError,
    ResourceLimitError,
    SendBudgetError,
)
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.interfaces import IRDSCookieProtocol, IRDSMemoryTransport
from twisted_ib.rds import port as rdsPort
from twisted_ib.rds.media import rcconnection
from twisted_ib.rds.paths.rdmaoperations import (
    OperationMessage,
    cookieExtensions,
    cookieOf,
    makeCookie,
    splitCookie,
)
from twisted_ib.rds.port import addMasked
from twisted_ib.rds.protocol.wire import parseExtensions

_64 = (1 << 64) - 1
#: The base of tests that run on several devices.
if TYPE_CHECKING:
    _Base = ProcessesTestCase
else:
    _Base = object


@implementer(IRDSCookieProtocol)
class CookieRecorder(Recorder):
    """
    Keeps cookies too.

    @ivar cookies: what came: datagram, whose it was, cookie.
    """

    def __init__(self) -> None:
        """
        Nothing has.
        """
        super().__init__()
        self.cookies: list[Any] = []

    def datagramWithCookieReceived(self, datagram: bytes, addr: Any, cookie: int) -> None:
        """
        Keep it.
        """
        self.cookies.append((datagram, addr, cookie))


class CookieTests(SynchronousTestCase):
    """
    Cookies, which name memory.
    """

    def test_parts(self) -> None:
        """
        The key is below, the offset above.
        """
        cookie = 0x00000ABC_12345678
        self.assertEqual(makeCookie(0x12345678, 0xABC), cookie)
        self.assertEqual(splitCookie(cookie), (0x12345678, 0xABC))
        for wrong in (-1, 1 << 64, "x", None):
            self.assertRaises(ValueError, splitCookie, wrong)

    def test_header(self) -> None:
        """
        The extension header RDMA_DEST has the key, then the offset.
        """
        header = bytes.fromhex("03 12345678 00000abc 00000000000000")
        self.assertEqual(cookieExtensions(0x00000ABC_12345678), header)
        self.assertEqual(cookieOf(parseExtensions(header).get(3)), 0x00000ABC_12345678)
        self.assertIsNone(cookieOf(None))

    def test_operationHeader(self) -> None:
        """
        The message behind a READ or a WRITE has the key, in the extension header RDMA; that behind an
        atomic has nothing.
        """

        def extensions(opcode: SendOpcode) -> str:
            cookie = 0x00001000_12345678
            message = OperationMessage((1, 2), None, b"", opcode, cookie, 24, bytearray(8), 8)
            self.assertEqual((message.key, message.address), (0x12345678, 0x1018))
            return message.extensions.hex()

        self.assertEqual(extensions(SendOpcode.RDMA_WRITE), "0212345678" + 22 * "0")
        self.assertEqual(extensions(SendOpcode.RDMA_READ), "0212345678" + 22 * "0")
        self.assertEqual(extensions(SendOpcode.ATOMIC_CMP_AND_SWP), 32 * "0")

    def test_masked(self) -> None:
        """
        Fields are added by themselves: nothing is carried from one to the next.
        """
        self.assertEqual(addMasked(0xFF, 1, 1 << 7), 0)
        self.assertEqual(addMasked(0xFF, 1, 1 << 15), 0x100)
        self.assertEqual(addMasked(0x0001_FFFF, 0x0002_0001, 1 << 15), 0x0003_0000)
        self.assertEqual(addMasked(_64, 1, 1 << 63), 0)
        self.assertEqual(addMasked(0b1010, 0b0110, _64), 0b1100)


class Operating(_Base):
    """
    Operations on every device.  C{one} starts them, C{two} has the memory.

    @cvar writeRefused: The status of a WRITE that the peer has refused.
    """

    writeRefused = "RDS_RDMA_REMOTE_ERROR"

    one: Any
    two: Any
    there: Any
    here: Any

    def come(self) -> None:
        """
        Let everything arrive.
        """
        raise NotImplementedError

    def begin(self) -> None:
        """
        Let the two know each other.
        """
        self.port, self.owner = self.one.socket, self.two.socket
        self.one.transport.write(b"hello", self.there)
        self.come()
        self.two.got.clear()

    def result(self, deferred: Any) -> Any:
        """
        @return: what an operation comes to.
        """
        self.come()
        return self.successResultOf(deferred)

    def status(self, deferred: Any) -> str:
        """
        @return: the status of an operation that failed.
        """
        self.come()
        failure = self.failureResultOf(deferred, RDSOperationError)
        name: str = failure.value.statusName
        return name

    def test_cookie(self) -> None:
        """
        A cookie comes with its datagram, to who takes cookies; to others the datagram comes.
        """
        memory = self.owner.registerMemory(100)
        self.owner.writeWithCookie(b"mine", memory.cookie, self.here)
        self.come()
        self.assertEqual(self.one.cookies, [(b"mine", self.there, memory.cookie)])
        self.port.writeWithCookie(b"x", 1, self.there)
        self.come()
        self.assertEqual(self.two.got, [(b"x", self.here)])
        self.assertRaises(ValueError, self.port.writeWithCookie, b"x", -1, self.there)
        self.assertTrue(verifyObject(IRDSMemoryTransport, self.port))

    def test_write(self) -> None:
        """
        Memory is written before the datagram comes.
        """
        memory = self.owner.registerMemory(bytearray(b"." * 300_000))
        seen: list[bytes] = []
        self.two.datagramReceived = lambda data, addr: seen.append(bytes(memory.view[-3:]) + data)
        done = self.port.rdmaWrite(memory.cookie, b"abc", self.there, memory.length - 3, b" done")
        self.assertIsNone(self.result(done))
        self.assertEqual(seen, [b"abc done"])
        big = bytes(range(250)) * 1200
        self.result(self.port.rdmaWrite(memory.cookie, big, self.there))
        self.assertEqual((bytes(memory.view), seen[1:]), (big, [big[-3:]]))

    def test_read(self) -> None:
        """
        Memory is read, into new bytes or into memory.
        """
        content = bytes(range(250)) * 1200
        memory = self.owner.registerMemory(content, writable=False)
        found = self.result(self.port.rdmaRead(memory.cookie, 5000, self.there, 777, b"thanks"))
        self.assertEqual((found, self.two.data), (content[777:5777], [b"thanks"]))
        mine = self.port.registerMemory(len(content) + 8)
        read = self.port.rdmaRead(memory.cookie, len(content), self.there, memory=mine, localOffset=8)
        self.assertIsNone(self.result(read))
        self.assertEqual(bytes(mine.view), bytes(8) + content)
        self.assertEqual(self.result(self.port.rdmaRead(memory.cookie, 0, self.there)), b"")

    def test_fromMemory(self) -> None:
        """
        The data of a write may be registered memory, and parts of both sides' memory may be used.
        """
        memory, mine = self.owner.registerMemory(8), self.port.registerMemory(b"0123456789", False)
        done = self.port.rdmaWrite(memory.cookie, mine, self.there, 2, localOffset=4, length=3)
        self.result(done)
        self.assertEqual(bytes(memory.view), b"\0\x00456\0\0\0")
        self.result(self.port.rdmaWrite(memory.cookie, b"0123456789", self.there, 0, localOffset=8))
        self.assertEqual(bytes(memory.view[:3]), b"894")
        self.assertRaises(
            MemoryAccessError, self.port.rdmaWrite, memory.cookie, mine, self.there, 0, b"", 9, 2
        )

    def test_silent(self) -> None:
        """
        Without a datagram none comes, and nothing is left that waits to be acknowledged.
        """
        memory = self.owner.registerMemory(8)
        for _ in range(3):
            self.result(self.port.rdmaWrite(memory.cookie, b"x", self.there, datagram=None))
        self.assertEqual((self.two.got, bytes(memory.view[:1])), ([], b"x"))
        self.pass_(1.0)
        self.assertEqual((self.port._queued, self.port._operating), (0, 0))

    def test_useOnce(self) -> None:
        """
        Use-once memory is freed by the message behind an operation, other memory is not.
        """
        once, often = self.owner.registerMemory(8, useOnce=True), self.owner.registerMemory(8)
        for memory in (once, often):
            self.result(self.port.rdmaWrite(memory.cookie, b"x", self.there))
        self.assertEqual((once.region, self.owner.freeMemory(once)), (None, False))
        self.result(self.port.rdmaWrite(often.cookie, b"y", self.there))
        self.assertEqual(self.status(self.port.rdmaWrite(once.cookie, b"y", self.there)), self.writeRefused)

    def test_many(self) -> None:
        """
        No message overtakes its operation, though more READs are asked for than may be on the way.
        """
        count = 3 * limits.RDMA_READS
        memories = [self.owner.registerMemory(bytes([at]), False, useOnce=True) for at in range(count)]
        done = [self.port.rdmaRead(memory.cookie, 1, self.there) for memory in memories]
        self.come()
        self.assertEqual([self.successResultOf(each) for each in done], [bytes([at]) for at in range(count)])
        self.assertEqual([memory.region for memory in memories], [None] * count)

    def test_refused(self) -> None:
        """
        Memory without the right is not accessed, and the connection comes again.
        """
        memory = self.owner.registerMemory(b"abcdefgh", writable=False)
        port, there, refused = self.port, self.there, "RDS_RDMA_REMOTE_ERROR"
        write = port.rdmaWrite(memory.cookie, b"x", there, datagram=b"lost")
        self.assertEqual(self.status(write), self.writeRefused)
        for offset, length in ((0, 9), (8, 1), (1 << 40, 1)):
            self.assertEqual(self.status(port.rdmaRead(memory.cookie, length, there, offset)), refused)
        self.assertEqual(self.status(port.rdmaRead(memory.cookie ^ 0x100, 1, there)), refused)
        self.assertEqual(self.status(port.rdmaRead(memory.cookie | 1 << 40, 1, there)), refused)
        self.assertTrue(self.owner.freeMemory(memory.cookie))
        self.assertEqual(self.status(port.rdmaRead(memory.cookie, 1, there)), refused)
        self.one.transport.write(b"alive", there)
        self.come()
        self.assertIn(b"alive", self.two.data)

    def test_unregistered(self) -> None:
        """
        Where no memory was ever registered an invented cookie is refused as any other.
        """
        refused = self.status(self.port.rdmaRead(makeCookie(0x1234), 1, self.there))
        self.assertEqual(refused, "RDS_RDMA_REMOTE_ERROR")
        self.one.transport.write(b"alive", self.there)
        self.come()
        self.assertIn(b"alive", self.two.data)

    def test_afterwards(self) -> None:
        """
        The next operation can be started at once when one was refused.
        """
        memory = self.owner.registerMemory(8)
        results: list[Any] = []

        def again(reason: Any) -> None:
            results.append(self.port.rdmaWrite(memory.cookie, b"x", self.there, datagram=b"again"))

        self.port.rdmaWrite(memory.cookie, b"123456789", self.there).addErrback(again)
        self.come()
        self.pass_(1.0)
        self.assertIsNone(self.successResultOf(results[0]))
        self.assertEqual(self.two.data[-1:], [b"again"])

    def test_bounds(self) -> None:
        """
        How many, how long, and where.
        """
        memory = self.owner.registerMemory(8)
        port, there = self.port, self.there
        self.assertRaises(ValueError, port.rdmaRead, memory.cookie, limits.RDS_OPERATION + 1, there)
        self.assertRaises(ValueError, port.rdmaRead, memory.cookie, -1, there)
        self.assertRaises(ValueError, port.rdmaRead, memory.cookie, 1, there, -1)
        self.assertRaises(ValueError, port.rdmaRead, memory.cookie, 1)
        self.assertRaises(ValueError, port.rdmaRead, 1 << 64, 1, there)
        long = bytes(limits.RDS_MESSAGE + 1)
        self.assertRaises(DatagramTooLongError, port.rdmaRead, memory.cookie, 1, there, 0, long)
        for size in (0, limits.RDS_OPERATION + 1):
            self.assertRaises(MemoryRegionError, port.registerMemory, size)
        self.patch(limits, "RDS_REGIONS", 1)
        port.registerMemory(1)
        self.assertRaises(ResourceLimitError, port.registerMemory, 1)
        done = [port.rdmaWrite(memory.cookie, b"x", there) for _ in range(rdsPort.RDS_OPERATIONS)]
        self.assertRaises(SendBudgetError, port.rdmaWrite, memory.cookie, b"x", there)
        for each in done:
            self.result(each)
        self.assertEqual(len(self.two.got), rdsPort.RDS_OPERATIONS)

    def test_closed(self) -> None:
        """
        Memory ends with its socket; a closed socket asks for nothing.
        """
        memory = self.owner.registerMemory(8)
        self.owner.stopListening()
        self.come()
        self.assertIsNone(memory.region)
        self.assertRaises(MemoryRegionError, self.owner.registerMemory, 8)
        self.assertRaises(MemoryRegionError, self.owner.rdmaRead, memory.cookie, 1, self.here)


class Atomics(Operating):
    """
    And those of devices that have atomics.
    """

    def test_atomics(self) -> None:
        """
        Both, and both with masks.
        """
        memory = self.owner.registerMemory(16)

        def value() -> int:
            return int.from_bytes(memory.view[8:], sys.byteorder)

        port, cookie, there = self.port, memory.cookie, self.there
        self.assertEqual(self.result(port.fetchAdd(cookie, 7, there, 8, b"added")), 0)
        self.assertEqual((value(), self.two.data), (7, [b"added"]))
        self.assertEqual(self.result(port.fetchAdd(cookie, -8, there, 8)), 7)
        self.assertEqual(value(), _64)
        self.assertEqual(self.result(port.compareAndSwap(cookie, 5, 6, there, 8)), _64)
        self.assertEqual(self.result(port.compareAndSwap(cookie, _64, 0x12FF, there, 8)), _64)
        self.assertEqual(value(), 0x12FF)
        self.two.got.clear()
        self.assertEqual(self.result(port.fetchAdd(cookie, 0x101, there, 8, b"m", mask=0x80)), 0x12FF)
        self.assertEqual((value(), self.two.data), (0x1300, [b"m"]))
        swap = port.compareAndSwap(cookie, 0x1000, 0xAB, there, 8, None, compareMask=0xF000, swapMask=0xFF)
        self.assertEqual((self.result(swap), value()), (0x1300, 0x13AB))
        swap = port.compareAndSwap(cookie, 0x2000, 0xCD, there, 8, None, compareMask=0xF000, swapMask=0xFF)
        self.assertEqual((self.result(swap), value()), (0x13AB, 0x13AB))
        self.assertRaises(ValueError, port.compareAndSwap, cookie, -1, 0, there)
        refused = self.port.fetchAdd(cookie, 1, there, 4)
        self.assertEqual(self.status(refused), "RDS_RDMA_REMOTE_ERROR")
        self.patch(rdsPort, "RDS_ATOMIC_ATTEMPTS", 0)
        self.assertEqual(self.status(port.fetchAdd(cookie, 1, there, 8, mask=1)), "RDS_RDMA_OTHER_ERROR")

    def test_atomicRefused(self) -> None:
        """
        Memory without the right is not changed.
        """
        memory = self.owner.registerMemory(b"abcdefgh", writable=False)
        added = self.port.fetchAdd(memory.cookie, 1, self.there)
        self.assertEqual((self.status(added), bytes(memory.view)), ("RDS_RDMA_REMOTE_ERROR", b"abcdefgh"))


class WithinTests(Atomics, ProcessesTestCase):
    """
    Between two sockets of one process, which need no queue pair.
    """

    there, here = (HOST, 5000), (HOST, 4000)

    def setUp(self) -> None:
        """
        One process.
        """
        super().setUp()
        self.a = self.process()
        self.one, self.two = self.a.listen(4000, protocol=CookieRecorder()), self.a.listen(5000)
        self.begin()

    def come(self) -> None:
        """
        Let everything arrive.
        """
        self.settle()


class SharedTests(Atomics, ProcessesTestCase):
    """
    Between processes of a host.
    """

    there, here = (HOST, 5000), (HOST, 4000)

    def setUp(self) -> None:
        """
        Two processes.
        """
        super().setUp()
        self.a, self.b = self.process(), self.process()
        self.one, self.two = self.a.listen(4000, protocol=CookieRecorder()), self.b.listen(5000)
        self.begin()

    def come(self) -> None:
        """
        Let everything arrive.
        """
        self.settle()
        self.pass_(0.2)

    def test_onlyThen(self) -> None:
        """
        Queue pairs have work queues only once there is an operation; one connection is enough, also for who
        comes later.
        """
        (session,) = self.b.medium.sessions.values()
        memory = self.owner.registerMemory(8)
        self.assertIsNone(session.work)
        self.result(self.port.rdmaWrite(memory.cookie, b"x", self.there))
        self.assertIsNotNone(session.work)
        self.assertEqual((self.a.queuePairs, self.b.queuePairs), (1, 1))
        c = self.process()
        three = c.listen(4000, "::1", CookieRecorder())
        self.two.six = self.b.listen(5000, "::1")
        self.result(three.socket.rdmaWrite(memory.cookie, b"y", ("::1", 5000)))
        self.assertEqual(bytes(memory.view[:1]), b"y")

    def test_sizes(self) -> None:
        """
        Messages of all sizes go both ways as before once there are operations, whoever has begun.
        """
        fragment = rcconnection.RDS_FRAGMENT
        sent = [
            bytes([at]) * n
            for at, n in enumerate((0, 1, 5000, fragment - 48, fragment, fragment + 1, 1 << 20))
        ]
        for begins in (self.owner, self.port):
            self.two.got.clear()
            self.one.got.clear()
            begins.registerMemory(8)
            for data in sent:
                self.port.write(data, self.there)
                self.owner.write(data, self.here)
            self.come()
            self.assertEqual((self.two.data, self.one.data), (sent, sent))
        self.assertEqual(
            (self.a.network.counters["conn_reset"], self.b.network.counters["conn_reset"]), (0, 0)
        )

    def test_later(self) -> None:
        """
        A connection that comes after memory was registered can be used at once, from both ends.
        """
        memory = self.owner.registerMemory(8)
        c = self.process()
        three = c.listen(4001, protocol=CookieRecorder())
        self.owner.writeWithCookie(b"x" * 100_000, memory.cookie, (HOST, 4001))
        self.come()
        self.assertEqual(three.cookies[0][2], memory.cookie)
        self.assertEqual(c.network.counters["conn_reset"], 0)
        self.result(three.socket.rdmaWrite(memory.cookie, b"y", self.there))
        self.assertEqual(bytes(memory.view[:1]), b"y")

    def test_noDomain(self) -> None:
        """
        Without a protection domain there is no socket.
        """
        self.patch(limits, "PROTECTION_DOMAINS", 0)
        c = self.process()
        self.assertRaises(CannotListenError, c.listen, 4001)
        self.patch(limits, "PROTECTION_DOMAINS", 1)
        c.listen(4001)
        c.listen(4002)

    def test_amongMessages(self) -> None:
        """
        Operations and messages of all sizes keep their order, however much it is.
        """
        memory = self.owner.registerMemory(200_000)
        seen: list[Any] = []
        self.two.datagramReceived = lambda data, addr: seen.append((data[:4], bytes(memory.view[-1:])))
        expected: list[Any] = []
        done = []
        for index in range(40):
            mark = b"%4d" % index
            self.port.write(mark + bytes(3000 * (index % 7)), self.there)
            last = bytes([index])
            done.append(self.port.rdmaWrite(memory.cookie, bytes(199_999) + last, self.there, 0, mark))
            expected += [mark, mark]
            if index % 5 == 4:
                self.come()
        for each in done:
            self.result(each)
        self.assertEqual([data for data, _ in seen], expected)
        for index, (data, last) in enumerate(seen):
            if index % 2:
                self.assertGreaterEqual(last[0], int(data))

    def test_posted(self) -> None:
        """
        The queue pair has only so many at a time; the others follow.
        """
        memory = self.owner.registerMemory(8)
        done = [self.port.rdmaWrite(memory.cookie, b"x", self.there, datagram=None) for _ in range(200)]
        (session,) = self.a.medium.sessions.values()
        self.assertEqual(len(session._operations), rcconnection.RDS_OPERATIONS_POSTED)
        for each in done:
            self.result(each)
        self.assertEqual(len(session._operations), 0)

    def test_behindMuch(self) -> None:
        """
        The first operation comes when the medium is full, and what waits is of all sizes.
        """
        memory = self.owner.registerMemory(8)
        sent = []
        for index in range(20):
            sent.append(bytes([index]) * (100_000 if index % 3 else 100))
            self.port.write(sent[-1], self.there)
        done = self.port.rdmaWrite(memory.cookie, b"x", self.there, 0, b"first")
        sent.append(b"first")
        for index in range(5):
            sent.append(bytes([index]) * 70_000)
            self.port.write(sent[-1], self.there)
        self.result(done)
        self.assertEqual(self.two.data, sent)
        self.assertEqual(self.a.network.counters["conn_reset"], 0)

    def test_behindGathered(self) -> None:
        """
        The first operation does not overtake what the same turn wrote before it and there was no room for.
        """
        memory = self.owner.registerMemory(8)
        seen: list[Any] = []
        self.two.datagramReceived = lambda data, addr: seen.append((len(data), bytes(memory.view[:1])))
        (session,) = self.a.medium.sessions.values()
        for size in (5000, 10, 20, 30):
            self.port.write(bytes(size), self.there)
        jam(session.queuePair.path)
        done = self.port.rdmaWrite(memory.cookie, b"x", self.there, 0, b"done")
        self.assertEqual((session.work.canPost(), len(session._operations)), (True, 0))
        self.result(done)
        self.assertEqual(seen, [(5000, b"\0"), (10, b"\0"), (20, b"\0"), (30, b"\0"), (4, b"x")])

    def test_lost(self) -> None:
        """
        A connection that is lost drops operations, which are not repeated; messages are.
        """
        memory = self.owner.registerMemory(8)
        done = self.port.rdmaWrite(memory.cookie, b"x", self.there, datagram=b"dropped")
        self.port.write(b"kept", self.there)
        (session,) = self.a.medium.sessions.values()
        session.broken(PathLostError("broken by the test"))
        self.a.turn()
        self.assertEqual(self.status(done), "RDS_RDMA_DROPPED")
        self.pass_(1.0)
        self.assertIn(b"kept", self.two.data)
        self.result(self.port.rdmaWrite(memory.cookie, b"y", self.there))
        self.assertEqual(bytes(memory.view[:1]), b"y")

    def test_absent(self) -> None:
        """
        An operation for a queue pair that is gone is repeated seven times, at each local ACK timeout, the
        least that there is; then the connection is lost.
        """
        memory = self.owner.registerMemory(8)
        self.result(self.port.rdmaWrite(memory.cookie, b"x", self.there))
        (session,), (theirs,) = self.a.medium.sessions.values(), self.b.medium.sessions.values()
        del theirs.queuePair.path.table[theirs.queuePair.number]
        self.port.rdmaWrite(memory.cookie, b"y", self.there).addErrback(lambda reason: None)
        wait = 7 * 4.096e-6 * 2**15
        self.pass_(wait - 0.01, 0.001)
        self.assertIsNone(session.loss)
        self.pass_(0.02, 0.001)
        self.assertTrue(session.closed)

    def test_canceled(self) -> None:
        """
        Operations for a process that does not exist are cancelled.
        """
        done = self.port.rdmaRead(1, 1, (HOST, 6000))
        self.assertEqual(self.port.cancel((HOST, 6000)), 1)
        self.assertEqual(self.status(done), "RDS_RDMA_CANCELED")
        done = self.port.rdmaRead(1, 1, (HOST, 6000))
        self.port.stopListening()
        self.pass_(rdsPort.RDS_LINGER_SECONDS + 1)
        self.assertEqual(self.status(done), "RDS_RDMA_CANCELED")


class ShmTests(OwnDirectory, SharedTests):
    """
    The same over rings.
    """

    device = "shm0"


class AddressedTests(Atomics, AddressedTestCase):
    """
    Between hosts.
    """

    there, here = (THERE, 5000), (HERE, 4001)

    def setUp(self) -> None:
        """
        Two hosts.
        """
        super().setUp()
        self.one = self.a.listen(4001, HERE, CookieRecorder())
        self.begin()

    def come(self) -> None:
        """
        Let everything arrive.
        """
        self.pass_(1.0)

    def test_withinMessage(self) -> None:
        """
        A message of which some packets have come is completed though this end begins an operation.
        """
        memory = self.owner.registerMemory(8)
        link = self.channelFor(self.a.reactor, "roce0", HERE).device.fabric.link
        self.owner.write(b"x" * 4096, self.here)
        for _ in range(10):
            self.b.turn()
        link.receive(2)
        (path,) = self.a.medium.sessions.values()
        self.assertTrue(path.queuePair.path.fabric.partial)
        done = self.port.rdmaWrite(memory.cookie, b"y", self.there)
        self.assertIsNotNone(path.work)
        self.assertIsNone(self.result(done))
        self.assertEqual((self.one.data[-1], bytes(memory.view[:1])), (b"x" * 4096, b"y"))
        self.assertEqual(self.a.network.counters["conn_reset"], 0)


class TCPTests(ProcessesTestCase):
    """
    RDS over TCP has no RDMA.
    """

    device = "tcp"

    def test_unsupported(self) -> None:
        """
        Everything says so.
        """
        from twisted.internet.task import Clock

        from twisted_ib.rds.paths.network import Network
        from twisted_ib.rds.port import RDSPort

        class Medium:
            """
            One without memory.
            """

            acknowledges = sharesAddresses = False
            relay = None

            def __init__(self, network: Network) -> None:
                """
                Nothing.
                """

            def bind(self, address: str, port: int) -> None:
                """
                Everything can be had.
                """

        clock = Clock()
        port = RDSPort(4000, Recorder(), HOST, reactor=clock, network=Network(clock, Medium))
        port.startListening()
        where = (HOST, 5000)
        for call, arguments in (
            (port.registerMemory, (8,)),
            (port.writeWithCookie, (b"", 1, where)),
            (port.rdmaWrite, (1, b"", where)),
            (port.rdmaRead, (1, 1, where)),
            (port.fetchAdd, (1, 1, where)),
            (port.compareAndSwap, (1, 1, 1, where)),
        ):
            self.assertRaises(RDSUnsupportedError, call, *arguments)


class IWARPTests(Operating, ProcessesTestCase):
    """
    Over TCP sockets.  iWARP tells nobody which WRITE was refused: the connection ends.
    """

    device = "iwarp0"
    writeRefused = "RDS_RDMA_DROPPED"
    there, here = (ownAddress(2), 5000), (ownAddress(1), 4001)

    def setUp(self) -> None:
        """
        Two hosts.
        """
        super().setUp()
        ownRunDirectory(self)
        self.a, self.b = self.process(), self.process()
        self.one = self.a.listen(4001, self.here[0], CookieRecorder())
        self.two = self.b.listen(5000, self.there[0])
        self.begin()

    def come(self) -> None:
        """
        Let everything arrive.
        """
        self.pass_(1.0)

    def test_crowded(self) -> None:
        """
        A WRITE that its READ would not fit behind waits until the send queue is empty.
        """
        self.patch(rcconnection, "RDS_SENDS", 4)
        memory = self.owner.registerMemory(20)
        done = [
            self.port.rdmaWrite(memory.cookie, b"%d" % (at % 10), self.there, at, b"%d" % at)
            for at in range(20)
        ]
        self.come()
        self.assertEqual([self.successResultOf(each) for each in done], [None] * 20)
        self.assertEqual(bytes(memory.view), b"0123456789" * 2)
        self.assertEqual(self.two.data, [b"%d" % at for at in range(20)])
