"""
Peers that own the other end of the TCP connection, and mean no good.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import threading
from typing import Any

from tests.hca.fabric.iwarp.attacker import (
    ADDRESS,
    AROUND,
    GRANTED,
    RECEIVE,
    AttackTestCase,
    fpdu,
    read,
    send,
    terminateMessage,
    write,
)
from tests.hca.fabric.iwarp.ends import End
from tests.hca.fabric.iwarp.protocol.examples import ReadRequestHeader, TaggedHeader, UntaggedHeader
from tests.support.waiting import waitUntil
from twisted_ib import limits
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.fabric.iwarp.protocol import terminate
from twisted_ib.hca.fabric.iwarp.protocol.ddp import Opcode
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, StartupFrame
from twisted_ib.hca.fabric.iwarp.protocol.terminate import TerminateMessage, Termination
from twisted_ib.hca.fabric.iwarp.streampath import RECEIVE_BYTES
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode

REQUEST = StartupFrame(False, depths=Depths(4, 4)).pack()
ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


def reset(made: socket.socket) -> None:
    """
    End a connection by RST.
    """
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()


def unread(made: socket.socket) -> int:
    """
    @return: the octets that have arrived.
    """
    found: int = struct.unpack("i", fcntl.ioctl(made.fileno(), termios.FIONREAD, bytes(4)))[0]
    return found


#: Ways to end a connection.
ENDS = (reset, socket.socket.close)


class EndTests(AttackTestCase):
    """
    RST and FIN, at any time.
    """

    def test_requestAndReset(self) -> None:
        """
        A RST that arrives together with the Request: nothing is raised, nobody is asked.
        """
        reset(self.peer(REQUEST))
        self.until(lambda: self.device.counters["iwarp_connections_lost"])
        self.assertEqual((self.victim.log, len(self.device.fabric.service.connections)), ([], 0))
        self.assertNothingLeft()

    def test_shortPrivateData(self) -> None:
        """
        Private data that is too short for the addresses of its port space: nothing is raised, nothing stays.
        """
        other = End(self.device)
        listener = self.device.listen(int(PortSpace.SDP), ADDRESS, 0, other)
        self.addCleanup(listener.close)
        for size in (0, 17, 20, 63):
            with socket.create_connection((ADDRESS, listener.port)) as made:
                made.sendall(StartupFrame(False, bytes(size), depths=Depths(4, 4)).pack())
                made.settimeout(0)

                def answered(made: socket.socket = made) -> bool:
                    with contextlib.suppress(BlockingIOError):
                        return bool(made.recv(1))
                    return False

                self.until(answered)
            self.until(lambda: not len(self.device.fabric.service.connections))
        self.assertEqual(other.events, [])

    def test_withoutReply(self) -> None:
        """
        An end, or octets, before the Reply: the request is withdrawn.
        """
        self.victim.isServing = False
        for end in (*ENDS, lambda made: made.sendall(send(b"early", 1))):
            self.victim.log.clear()
            self.victim.requests.clear()
            made = self.peer(REQUEST)
            self.until(lambda: self.victim.requests)
            end(made)
            self.until(lambda: "withdrawn" in self.victim.log)
            made.close()
            self.assertNothingLeft()
            self.assertEqual(len(self.device.fabric.service.connections), 0)

    def test_withoutMessage(self) -> None:
        """
        An end before the first FPDU: the queue pair fails.  A FIN at once is that of an initiator that was
        connected and had nothing to say; amidst an FPDU, or with a reset, its user is refused.
        """
        for octets in (b"", send(b"data", 1)[:10]):
            for end in ENDS:
                made, _ = self.attacker()
                made.sendall(octets)
                end(made)
                self.until(lambda: self.victim.failures)
                wasConnected = not octets and end is not reset
                expected = ["established", "disconnected"] if wasConnected else ["rejected 28"]
                self.assertEqual(self.victim.log, expected)
                self.assertFlushed(0)
                self.assertNothingLeft()

    def test_afterMessage(self) -> None:
        """
        A message, then the end: the message completes first, the user is told of the end.
        """
        for rest in (b"", send(b"more", 2)[:10]):
            for end in ENDS:
                made, _ = self.attacker()
                made.sendall(send(b"data", 1) + rest)
                self.until(lambda: self.victim.log)
                end(made)
                self.until(lambda: self.victim.failures)
                self.assertEqual(self.victim.log, ["established", "disconnected"])
                self.assertFlushed(1)
                self.assertNothingLeft()

    def assertFlushed(self, succeeded: int) -> None:
        """
        So many receives have a message, the others are flushed; prepare for the next connection.
        """
        victim = self.victim
        statuses = [status for _, status in victim.done()]
        flushed = [WCStatus.WR_FLUSH_ERR] * (victim.receives - succeeded)
        self.assertEqual(statuses, [WCStatus.SUCCESS] * succeeded + flushed)
        self.assertEqual(len(self.device.fabric.service.connections), 0)
        victim.renew()

    def test_resetWhileWaiting(self) -> None:
        """
        A RST is noticed while a message waits for a receive, and nothing that TCP has not taken completes
        with success.
        """
        made, stream = self.attacker(receives=0)
        made.sendall(send(b"x", 1))
        self.until(lambda: stream._kept is not None)
        reset(made)
        for number in range(3):
            self.victim.send(number, SendOpcode.SEND, AROUND, 8)
        self.until(lambda: self.victim.failures)
        self.assertEqual(
            self.victim.done(),
            [(0, WCStatus.RETRY_EXC_ERR), (1, WCStatus.WR_FLUSH_ERR), (2, WCStatus.WR_FLUSH_ERR)],
        )
        self.assertEqual(self.victim.log, ["established", "disconnected"])
        self.pass_(1)
        self.assertNothingLeft()

    def test_sendAfterReset(self) -> None:
        """
        What TCP refuses, after a part of it was taken, is not completed when the socket is said to be ready.
        """
        made, stream = self.attacker(receives=0, SO_RCVBUF=4096)
        made.sendall(send(b"x", 1))
        self.until(lambda: stream._kept is not None)
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for number in range(50):
            self.victim.send(number, SendOpcode.SEND, AROUND, GRANTED)
        for _ in range(20):
            self.device.progress()
        self.assertTrue(stream._full)
        reset(made)
        taken = len(self.victim.done())
        self.until(lambda: self.victim.failures)
        self.assertLess(taken, 50)
        statuses = [status for _, status in self.victim.done()]
        self.assertEqual(statuses[0], WCStatus.RETRY_EXC_ERR)
        self.assertEqual(set(statuses[1:]), {WCStatus.WR_FLUSH_ERR})

    def test_closingPartlySent(self) -> None:
        """
        A queue pair that is destroyed with octets unsent: they are sent as the peer reads, and FIN behind.
        """
        made, stream = self.attacker(receives=0, SO_RCVBUF=4096)
        granted = self.victim.granted
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made.sendall(b"".join(read(granted.key, granted.address, GRANTED, each + 1) for each in range(4)))
        self.until(lambda: stream._full)
        self.victim.queuePair.close()
        self.assertGreater(len(self.received(made)), GRANTED)
        made.close()
        self.assertNothingLeft()

    def test_neverRead(self) -> None:
        """
        A peer that never reads its responses: a bounded number of octets waits for it, and goes with it.
        """
        made, stream = self.attacker(receives=0, SO_RCVBUF=4096)
        region = self.device.memory.register(bytearray(1 << 20), ALL, self.victim.pd)
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made.sendall(b"".join(read(region.key, region.address, 1 << 20, each + 1) for each in range(4)))
        self.until(lambda: stream._full)
        self.pass_(20)
        self.assertLess(sum(map(len, stream._out)), 3 * limits.INLINE_RECORD)
        self.assertEqual(len(stream.reads.inbound), 4)
        made.sendall(read(region.key, region.address, 1, 5))
        self.until(lambda: self.victim.failures)
        self.assertIn("more than 4 READs", str(self.victim.failures))
        self.pass_(6)
        self.assertNothingLeft()


class RuleTests(AttackTestCase):
    """
    Broken rules: each ends the stream with the Terminate of its row.
    """

    def broken(self, octets: bytes, expected: Termination | None) -> list[str]:
        """
        Send octets over a new connection, which ends with a Terminate.

        @return: the events of the queue pair.
        """
        victim = self.victim
        made, _ = self.attacker()
        made.sendall(octets)
        message = self.terminate(made)
        self.assertEqual(message and message.termination, expected, octets.hex())
        made.close()
        self.assertEqual(len(victim.failures), 1)
        # The user is told: its connection is no more.
        self.assertIn(victim.log, (["rejected 28"], ["established", "disconnected"]))
        self.assertTrue(victim.isIntact())
        events = victim.asynchronous
        victim.renew()
        self.assertNothingLeft()
        self.assertEqual(len(self.device.fabric.service.connections), 0)
        return events

    def test_memory(self) -> None:
        """
        Memory that is not granted, by key, bounds, rights and protection domain: nothing is read or written.
        """
        memory, pd = self.device.memory, self.victim.pd
        secret = bytearray(b"s" * 4096)
        others = memory.register(secret, ALL, memory.allocateDomain())
        readable = memory.register(bytearray(64), Access.REMOTE_READ, pd)
        writable = memory.register(bytearray(64), Access.LOCAL_WRITE | Access.REMOTE_WRITE, pd)
        granted = self.victim.granted
        key, first = granted.key, granted.address
        cases = [
            (write(others.key, others.address, b"x"), terminate.TAGGED_STAG_NOT_ASSOCIATED),
            (write(key, first - 1, b"xx"), terminate.TAGGED_BASE_BOUNDS),
            (write(key, first + GRANTED - 1, b"xx"), terminate.TAGGED_BASE_BOUNDS),
            (write(key ^ 1, first, b"x"), terminate.TAGGED_INVALID_STAG),
            (write(key ^ 256, first, b"x"), terminate.TAGGED_INVALID_STAG),
            (write(0, first, b"x"), terminate.TAGGED_INVALID_STAG),
            (write(readable.key, readable.address, b"x"), terminate.TAGGED_INVALID_STAG),
            (read(others.key, others.address, 1), terminate.PROTECTION_STAG_NOT_ASSOCIATED),
            (read(key, first - 1, 2), terminate.PROTECTION_BASE_BOUNDS),
            (read(key, first + GRANTED - 1, 2), terminate.PROTECTION_BASE_BOUNDS),
            (read(key ^ 1, first, 1), terminate.PROTECTION_INVALID_STAG),
            (read(writable.key, writable.address, 1), terminate.PROTECTION_ACCESS_RIGHTS),
        ]
        for octets, expected in cases:
            self.assertEqual(self.broken(octets, expected), ["QP_ACCESS_ERR"])
        self.assertEqual(secret, b"s" * 4096)

    def test_gone(self) -> None:
        """
        Memory that is deregistered: before a Write, and while a Read Response is on its way.
        """
        for isRead in (False, True):
            memory = bytearray(1 << 20)
            region = self.device.memory.register(memory, ALL, self.victim.pd)
            made, stream = self.attacker(SO_RCVBUF=4096)
            if isRead:
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                made.sendall(read(region.key, region.address, len(memory)))
                self.until(lambda: stream._full)  # noqa: B023
                self.device.memory.deregister(region)
            else:
                made.sendall(write(region.key, region.address, b"x"))
                self.until(lambda: memory[0])  # noqa: B023
                self.device.memory.deregister(region)
                made.sendall(write(region.key, region.address, b"yz"))
            message = self.terminate(made)
            expected = terminate.PROTECTION_INVALID_STAG if isRead else terminate.TAGGED_INVALID_STAG
            self.assertEqual(message and message.termination, expected)
            self.assertEqual(self.victim.asynchronous, ["QP_ACCESS_ERR"])
            self.assertEqual(bytes(memory[:2]), bytes(2) if isRead else b"x\0")
            made.close()
            self.victim.renew()
            self.assertNothingLeft()

    def test_messages(self) -> None:
        """
        Messages out of sequence, too long, cut wrongly, of unknown kinds.
        """
        granted = self.victim.granted
        key, control = granted.key, bytes.fromhex
        cases = [
            (send(b"x", 2), terminate.SEQUENCE_RANGE),
            (send(b"x", 1, offset=1), terminate.INVALID_OFFSET),
            (fpdu(UntaggedHeader(Opcode.SEND, True, 0, 3, 1, 0).pack()), terminate.INVALID_QUEUE),
            (send(bytes(RECEIVE + 1), 1), terminate.MESSAGE_TOO_LONG),
            (send(bytes(RECEIVE), 1, False) + send(b"y", 1, offset=RECEIVE), terminate.MESSAGE_TOO_LONG),
            (write(key, (1 << 64) - 1, b"xx"), terminate.TAGGED_OFFSET_WRAP),
            (read(key, (1 << 64) - 1, 2), terminate.PROTECTION_OFFSET_WRAP),
            (read(key, granted.address, 1, sequence=2), terminate.SEQUENCE_RANGE),
            (fpdu(control("c142") + bytes(12)), terminate.UNEXPECTED_OPCODE),
            (fpdu(control("c240") + bytes(12)), terminate.TAGGED_VERSION),
            (fpdu(control("4243") + bytes(16)), terminate.UNTAGGED_VERSION),
            (fpdu(control("c180") + bytes(12)), terminate.RDMAP_VERSION),
            (fpdu(control("414f") + bytes(16)), terminate.UNEXPECTED_OPCODE),
            (fpdu(b""), terminate.DDP_CATASTROPHIC),
            (fpdu(control("c140")), terminate.DDP_CATASTROPHIC),
        ]
        for octets, expected in cases:
            events = self.broken(octets, expected)
            self.assertIn(events, ([], ["QP_FATAL"]))

    def test_longJoined(self) -> None:
        """
        Segments that are longer than any ULPDU together, received at once, and too long for their receive.
        """
        made, stream = self.attacker()
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        octets = send(bytes(34000), 1, False) + send(bytes(34000), 1, offset=34000)
        sender = threading.Thread(target=made.sendall, args=(octets,))
        sender.start()
        waitUntil(lambda: unread(stream.socket) == len(octets))
        sender.join()
        message = self.terminate(made)
        self.assertEqual(message and message.termination, terminate.MESSAGE_TOO_LONG)

    def test_terminates(self) -> None:
        """
        A flood of Terminates: the first ends the connection, none is answered.
        """
        octets = terminateMessage(terminate.TAGGED_INVALID_STAG) * 1000
        self.assertEqual(self.broken(octets, None), ["QP_FATAL"])
        self.assertEqual(self.device.counters["iwarp_terminates_received"], 1)

    def test_destroyedInCallback(self) -> None:
        """
        A consumer may destroy its queue pair when it is told of the failure.
        """
        granted = self.victim.granted
        cases = [
            write(granted.key ^ 1, granted.address, b"x"),
            read(granted.key ^ 1, granted.address, 1),
            send(bytes(RECEIVE + 1), 1),
            send(b"x", 2),
            fpdu(b"x"),
            terminateMessage(terminate.TAGGED_INVALID_STAG),
        ]
        failures = self.victim.failures

        def failed(reason: Any) -> None:
            failures.append(reason)
            self.victim.queuePair.close()

        self.victim.failed = failed  # type: ignore[method-assign]
        for octets in cases:
            made, _ = self.attacker()
            made.sendall(octets * 3)
            self.received(made)
            made.close()
            self.assertEqual(len(failures), 1)
            self.victim.renew()
            self.assertNothingLeft()


class ShareTests(AttackTestCase):
    """
    One peer's share of this side's time and memory.
    """

    def test_turn(self) -> None:
        """
        Thousands of segments in one piece: others have their turn between.
        """
        granted = self.victim.granted
        whole, empty = write(granted.key, granted.address, b"x"), send(b"", 1, isLast=False)
        for segment in (whole, empty):
            made, stream = self.attacker()
            made.sendall(segment * 4000 + send(b"last", 1))
            turns = 0
            while not self.victim.done():
                self.device.progress()
                turns += 1
            # Segments that are joined into one record count by their octets.
            self.assertGreater(turns, 4000 / limits.RECORDS_PER_TURN / 2 if segment is whole else 1)
            self.assertEqual(stream._rest, b"")
            made.close()
            self.victim.queuePair.close()
            self.until(lambda: not self.fabric.streams)
            self.victim.renew()

    def test_emptySegments(self) -> None:
        """
        Segments without octets, and more to come, without end: nothing grows, and what follows is taken.
        """
        made, stream = self.attacker()
        empty = send(b"", 1, isLast=False) + write(0, 0, b"", isLast=False)
        made.sendall(empty * 1000 + send(b"x", 1))
        self.until(lambda: self.victim.done())
        self.assertEqual((self.victim.failures, stream._rest, stream._out), ([], b"", []))

    def test_oneULPDU(self) -> None:
        """
        A connection keeps at most one FPDU, while that is incomplete, and while it waits for a receive.
        """
        longest = send(bytes(60000), 1)
        made, stream = self.attacker(receives=0)
        made.sendall(longest[:-1])
        self.until(lambda: len(stream._rest) == len(longest) - 1)
        made.setblocking(False)
        made.send(longest[-1:])
        self.until(lambda: stream._kept is not None)
        for number in range(2, 200):
            try:
                made.send(send(bytes(60000), number))
            except BlockingIOError:
                break
            self.device.progress()
            self.assertLessEqual(len(stream._rest), RECEIVE_BYTES)
        else:
            self.fail("TCP takes all that the peer sends")

    def test_again(self) -> None:
        """
        A message that has waited for a receive: while its consumer has it, nothing else is received in its
        place, though that one gives the device a turn.
        """
        device, got = self.device, []

        class Consumer(End):
            def received(self, buffer: Any, start: int, stop: int) -> None:
                device.progress()
                super().received(buffer, start, stop)
                got.extend(self.got)

        ends = [Consumer(device), Consumer(device)]
        peers = []
        for end in ends:
            self.where = ADDRESS, device.listen(PortSpace.TCP, ADDRESS, 0, end).port
            peers.append(self.peer(REQUEST))
            self.until(lambda: "requested" in end.events)  # noqa: B023
        waiting = ends[0].queuePair
        waiting.waits, waiting.posted = True, 0
        peers[0].sendall(send(b"first", 1))
        self.until(lambda: waiting.path._kept)
        waiting.postReceives(1)
        peers[1].sendall(send(b"other", 1))
        waitUntil(lambda: unread(ends[1].queuePair.path.socket))
        self.pass_(1)
        self.until(lambda: len(got) == 2)
        self.assertEqual(got, [b"first", b"other"])


class ResponseTests(AttackTestCase):
    """
    Peers that answer READs wrongly.
    """

    def asked(self) -> tuple[socket.socket, int]:
        """
        @return: the socket of a peer that was asked for 1000 octets, and the sink's STag.
        """
        made, _ = self.attacker(receives=1)
        made.sendall(send(b"hello", 1))
        self.until(lambda: self.victim.done())
        for number in (1, 2):
            self.victim.send(number, SendOpcode.RDMA_READ, AROUND, 1000, remoteAddress=0, remoteKey=1)
        self.victim.send(3, SendOpcode.SEND, AROUND, 0)
        octets = b""
        while len(octets) < 2 * len(read(0, 0, 0)):
            self.device.progress()
            with contextlib.suppress(BlockingIOError):
                octets += made.recv(1000, socket.MSG_DONTWAIT)
        return made, ReadRequestHeader.parse(octets[20:]).sinkSTag

    def test_responses(self) -> None:
        """
        Responses to another STag, at another offset, too short, too long; Terminates: the READs fail, and
        nothing is written outside of their buffer.
        """

        def response(stag: int, offset: int, length: int, isLast: bool = True) -> bytes:
            return fpdu(TaggedHeader(Opcode.READ_RESPONSE, isLast, stag, offset).pack() + bytes(length))

        def about(termination: Termination, stag: int) -> bytes:
            request = read(1, 0, 1000, 1, stag)[2:48]
            head = UntaggedHeader(Opcode.TERMINATE, True, 0, 2, 1, 0).pack()
            return fpdu(head + TerminateMessage.about(termination, request, 0, 46).pack())

        flushed, denied, failed = WCStatus.WR_FLUSH_ERR, WCStatus.REM_ACCESS_ERR, WCStatus.REM_OP_ERR
        cases: list[tuple[Any, WCStatus, Termination | None]] = [
            (lambda stag: response(stag ^ 256, 0, 1000), flushed, terminate.TAGGED_INVALID_STAG),
            (lambda stag: response(stag, 1, 999), flushed, terminate.TAGGED_BASE_BOUNDS),
            (lambda stag: response(stag, 0, 999), flushed, terminate.TAGGED_BASE_BOUNDS),
            (lambda stag: response(stag, 0, 1001), flushed, terminate.TAGGED_BASE_BOUNDS),
            (lambda stag: response(stag, 0, 1000, False), flushed, terminate.TAGGED_BASE_BOUNDS),
            (lambda stag: about(terminate.PROTECTION_BASE_BOUNDS, stag), denied, None),
            (lambda stag: about(terminate.CATASTROPHIC_STREAM, stag), failed, None),
            (lambda stag: terminateMessage(terminate.CATASTROPHIC_STREAM), flushed, None),
        ]
        for octets, status, expected in cases:
            made, stag = self.asked()
            made.sendall(octets(stag))
            message = self.terminate(made)
            self.assertEqual(message and message.termination, expected)
            done = dict(self.victim.done())
            self.assertEqual((done[1], done[2]), (status, flushed), expected)
            self.assertEqual(len(self.victim.failures), 1)
            self.assertTrue(self.victim.isIntact())
            self.assertIn("disconnected", self.victim.log)
            made.close()
            self.victim.renew()
            self.assertNothingLeft()
