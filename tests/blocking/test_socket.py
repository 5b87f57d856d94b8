"""
Tests for L{twisted_ib.blocking.socket}.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import select as kernelSelect
import signal
import socket as kernel
import struct
import tempfile
from collections import Counter
from hashlib import sha256
from threading import Barrier
from time import monotonic
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

from tests.blocking.case import LOOPBACK, BlockingTestCase, echo
from tests.support.calls import requireReplaceable
from tests.support.descriptors import exactly, runForked
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib import socket as offloading
from twisted_ib.blocking import connection as connectionModule
from twisted_ib.blocking import descriptors
from twisted_ib.blocking import loop as module
from twisted_ib.blocking.connection import RECEIVE_BYTES, SEND_BYTES, Connection
from twisted_ib.blocking.listening import Listening
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.blocking.patch import patched
from twisted_ib.blocking.select import select
from twisted_ib.errors import ForkedSocketError
from twisted_ib.hca.device.registry import removeDevice
from twisted_ib.reactor.loop import EPOLL_EVERY
from twisted_ib.switch.gainless import (
    ASLEEP_MESSAGES,
    GAINLESS_IN_SUCCESSION,
    SHORT_MESSAGES,
    Gainless,
)
from twisted_ib.switch.listeners import SDPListener
from twisted_ib.switch.reason import LISTENED, kept, outcomes


class StreamTests(BlockingTestCase):
    """
    Connected sockets.
    """

    def test_provider(self) -> None:
        """
        Both ends go over SDP, and have each other's addresses.
        """
        one, other = self.pair()
        self.assertIsInstance(one.sdp, Connection)
        self.assertIsInstance(other.sdp, Connection)
        self.assertEqual(one.getpeername(), other.getsockname())
        self.assertEqual(other.getpeername(), one.getsockname())

    def test_kernelPeers(self) -> None:
        """
        A program of the standard library's on either side gets TCP.
        """
        for made, accepting in ((kernel, offloading), (offloading, kernel)):
            one, other = self.pair(made, accepting)
            self.assertIsNone(getattr(one, "sdp", None))
            self.assertIsNone(getattr(other, "sdp", None))
            one.sendall(b"over TCP")
            self.assertEqual(exactly(other, 8), b"over TCP")

    def test_countedOverTCP(self) -> None:
        """
        What rules leave to TCP counts at both ends, and a connection of another family at none.
        """

        def counted() -> int:
            return sum(number for (provider, *_), number in outcomes.items() if provider == "tcp")

        self.rules("use tcp server * *:*\nuse tcp client * *:*\n")
        before = counted()
        self.pair()
        self.assertEqual(counted() - before, 2)
        with offloading.socket(kernel.AF_UNIX) as listener, offloading.socket(kernel.AF_UNIX) as client:
            listener.bind(f"\0{self.id()}.{os.getpid()}")
            listener.listen()
            client.connect(listener.getsockname())
            listener.accept()[0].close()
        self.assertEqual(counted() - before, 2)

    def test_receiving(self) -> None:
        """
        All calls that receive, and the bytes that a look leaves where they are.
        """
        one, other = self.pair()
        one.sendall(b"0123456789abcdefghij")
        self.assertEqual(other.recv(20, kernel.MSG_PEEK | kernel.MSG_WAITALL), b"0123456789abcdefghij")
        self.assertEqual(other.recv(3), b"012")
        buffer = bytearray(4)
        self.assertEqual((other.recv_into(buffer), buffer), (4, b"3456"))
        self.assertEqual((other.recv_into(buffer, 1), buffer), (1, b"7456"))
        self.assertEqual(other.recvfrom(1), (b"8", None))
        self.assertEqual(other.recvmsg(2), (b"9a", [], 0, None))
        parts = [bytearray(2), bytearray(3)]
        self.assertEqual((other.recvmsg_into(parts)[0], parts), (5, [b"bc", b"def"]))
        self.assertEqual(other.recv(100), b"ghij")

    def test_sending(self) -> None:
        """
        All calls that send.
        """
        one, other = self.pair()
        self.assertEqual(one.send(memoryview(b"ab")), 2)
        self.assertEqual(one.sendmsg([b"cd", b"e"]), 3)
        self.assertEqual(one.sendto(b"", other.getsockname()), 0)
        self.assertEqual(one.sendto(b"f", 0, other.getsockname()), 1)
        # MSG_ZEROCOPY.
        refused = self.assertRaises(OSError, one.sendto, b"", 0x4000000, other.getsockname())
        self.assertEqual(refused.errno, errno.EOPNOTSUPP)
        one.sendall(bytearray(b"gh"))
        with tempfile.TemporaryFile() as file:
            file.write(b"__ijklmn")
            file.flush()
            self.assertEqual(one.sendfile(file, 2, 4), 4)
            self.assertEqual(file.tell(), 6)
        self.assertEqual(exactly(other, 12), b"abcdefghijkl")

    def test_files(self) -> None:
        """
        Objects of C{makefile} keep the connection beyond the socket's close.
        """
        one, other = self.pair()
        with one.makefile("rw", newline="\n") as file:
            one.close()
            file.write("a line\nand more\n")
            file.flush()
            with other.makefile("rb") as lines:
                self.assertEqual([lines.readline(), lines.readline()], [b"a line\n", b"and more\n"])
            other.sendall(b"back\n")
            self.assertEqual(file.readline(), "back\n")
        self.assertEqual(other.recv(1), b"")

    def test_halfClose(self) -> None:
        """
        After C{shutdown} the other direction goes on.
        """
        one, other = self.pair()
        one.sendall(b"last")
        one.shutdown(kernel.SHUT_WR)
        self.assertRaises(BrokenPipeError, one.send, b"more")
        self.assertEqual((exactly(other, 4), other.recv(1)), (b"last", b""))
        other.sendall(b"answer")
        self.assertEqual(exactly(one, 6), b"answer")
        self.assertRaises(OverflowError, one.shutdown, 1 << 40)
        self.assertEqual(self.assertRaises(OSError, one.shutdown, 9).errno, errno.EINVAL)

    def test_bulk(self) -> None:
        """
        More than any buffer holds, both ways at once; an unread connection holds a bounded number of bytes.
        """
        one, other = self.pair()
        data = os.urandom(1 << 16) * 64
        sent = [self.inThread(each.sendall, data) for each in (one, other)]
        received = self.inThread(exactly, other, len(data))
        self.assertEqual(sha256(exactly(one, len(data))).digest(), sha256(data).digest())
        self.assertEqual(sha256(received.result(HANG_SECONDS)).digest(), sha256(data).digest())
        for each in sent:
            each.result(HANG_SECONDS)
        one.settimeout(0.2)
        self.assertRaises(TimeoutError, one.sendall, bytes(8 * RECEIVE_BYTES))
        with self.loop:
            self.assertLess(other.sdp.inbox.size, RECEIVE_BYTES + (1 << 18))

    def test_timeouts(self) -> None:
        """
        Nothing to receive is C{EAGAIN} or a timeout.
        """
        one, _ = self.pair()
        one.settimeout(0.01)
        self.assertRaises(TimeoutError, one.recv, 1)
        one.setblocking(False)
        self.assertEqual(self.assertRaises(BlockingIOError, one.recv, 1).errno, errno.EAGAIN)
        self.assertRaises(BlockingIOError, one.recv, 1, kernel.MSG_DONTWAIT)

    def test_piecesInTime(self) -> None:
        """
        A write of many pieces goes on while there is time, however little, and not beyond.
        """
        requireReplaceable(Connection, "send")
        one, _ = self.pair()
        now = 5.0

        def send(connection: Any, data: Any, flags: int, timeout: float | None, until: None) -> int:
            nonlocal now
            now += 0.25
            return len(data)

        self.patch(connectionModule, "monotonic", lambda: now)
        self.patch(Connection, "send", send)
        self.assertEqual(one.sdp._sendPieces(bytes(4 * SEND_BYTES), 0, 1.0, True), 4 * SEND_BYTES)
        self.assertRaises(TimeoutError, one.sdp._sendPieces, bytes(4 * SEND_BYTES + 1), 0, 1.0, True)

    def test_closeInterrupted(self) -> None:
        """
        A signal's handler that raises amid a close keeps it from nothing: the peer has its end.
        """
        requireReplaceable(BlockingLoop, "poll")
        one, other = self.pair()

        def interrupted(loop: BlockingLoop) -> None:
            patched.restore()
            raise KeyboardInterrupt

        patched = self.patch(BlockingLoop, "poll", interrupted)
        self.assertRaises(KeyboardInterrupt, one.close)
        self.assertEqual(other.recv(1), b"")

    def test_closedWhileConnecting(self) -> None:
        """
        A connection whose descriptor was closed before it was there is given up, and not forgotten.
        """
        left: list[Any] = []
        part: Any = SimpleNamespace(loop=SimpleNamespace(abandon=left.append), sockets=1, close=list)
        self.assertRaises(OSError, descriptors.Offloaded, -1, part)
        gc.collect()
        self.assertEqual(left, [list])

    def test_reset(self) -> None:
        """
        The peer that closes with unread bytes, or with SO_LINGER and no time, resets the connection.
        """
        one, other = self.pair()
        one.sendall(b"unread")
        self.assertEqual(other.recv(1), b"u")
        other.close()
        self.assertRaises(ConnectionResetError, one.recv, 1)
        self.assertEqual(one.recv(1), b"")
        one, other = self.pair()
        other.setsockopt(kernel.SOL_SOCKET, kernel.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        self.assertRaises(ConnectionResetError, one.recv, 1)

    def test_options(self) -> None:
        """
        Options are the kernel's socket's; C{SO_ERROR} and the keep-alive are the connection's.
        """
        one, other = self.pair()
        one.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY, 1)
        one.setsockopt(kernel.SOL_SOCKET, kernel.SO_KEEPALIVE, 1)
        self.assertEqual(one.getsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY), 1)
        self.assertTrue(one.sdp.stream.getTcpKeepAlive())
        self.assertEqual(one.getsockopt(kernel.SOL_SOCKET, kernel.SO_ERROR), 0)
        self.assertRaises(OSError, one.setsockopt, 77, 77, 1)
        one.send(b"unread")
        self.assertEqual(other.recv(1), b"u")
        other.close()
        self.inThread(self.waitFor, one.sdp.readable).result(HANG_SECONDS)
        self.assertEqual(one.getsockopt(kernel.SOL_SOCKET, kernel.SO_ERROR), errno.ECONNRESET)

    def waitFor(self, ready: Any) -> None:
        """
        Drive the loop until a condition holds.
        """
        with self.loop:
            self.loop.wait(ready)

    def test_closed(self) -> None:
        """
        A closed socket is C{EBADF} in all calls, also while another thread waits.
        """
        one, other = self.pair()
        waiting = self.inThread(other.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        other.close()
        self.assertEqual(self.assertRaises(OSError, waiting.result, HANG_SECONDS).errno, errno.EBADF)
        for call in (other.recv, other.send, other.sendall):
            argument: Any = 1 if call == other.recv else b"x"
            self.assertEqual(self.assertRaises(OSError, call, argument).errno, errno.EBADF)
        self.assertEqual(self.assertRaises(OSError, other.getpeername).errno, errno.EBADF)
        self.assertEqual(one.recv(1), b"")

    def test_badArguments(self) -> None:
        """
        Wrong arguments are the standard library's errors.
        """
        one, _ = self.pair()
        self.assertRaises(ValueError, one.recv, -1)
        self.assertRaises(ValueError, one.recv_into, bytearray(1), 2)
        self.assertRaises(ValueError, one.recv_into, bytearray(1), -1)
        self.assertRaises(TypeError, one.send, "text")
        self.assertRaises(TypeError, one.recvmsg_into, [b"constant"])
        self.assertEqual(self.assertRaises(OSError, one.recv, 1, kernel.MSG_OOB).errno, errno.EINVAL)
        self.assertEqual(self.assertRaises(OSError, one.connect, (LOOPBACK, 1)).errno, errno.EISCONN)
        self.assertEqual(self.assertRaises(OSError, one.sendmsg, [b""], [(1, 99, b"")]).errno, errno.EINVAL)

    def test_garbage(self) -> None:
        """
        A socket that nobody closed closes its connection when it is collected.
        """
        held, other = self.lonely()
        number = held[0].fileno()
        turn, left = self.loop.turn, []

        def counted(limit: float | None, poll: Any) -> int:
            left.append(len(self.loop.orphans))
            return turn(limit, poll)

        self.patch(self.loop, "turn", counted)
        held.clear()
        gc.collect()
        self.assertNotIn(number, descriptors.offloaded)
        self.assertEqual(other.recv(1), b"")
        # No turn sleeps before.
        self.assertEqual(set(left), {0})

    def test_garbageOfThread(self) -> None:
        """
        The thread that sleeps for all is woken for what another's garbage has left.
        """
        held, other = self.lonely()
        waiting = self.inThread(other.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        woken: list[int] = []
        wakeUp = self.loop.reactor.wakeUp
        self.patch(self.loop.reactor, "wakeUp", lambda: (woken.append(1), wakeUp()))
        held.clear()
        gc.collect()
        self.assertEqual(woken, [1])
        self.assertEqual(waiting.result(HANG_SECONDS), b"")

    def test_garbageOfTurn(self) -> None:
        """
        A turn in which garbage is collected does not sleep.
        """
        held, other = self.lonely()
        loop, poller, limits = self.loop, self.loop.reactor._poller, []

        class Poller:
            """
            An epoll object that says how long it sleeps where something is left to do.
            """

            def poll(self, limit: float, most: int) -> Any:
                """
                Sleep.
                """
                if loop.orphans:
                    limits.append(limit)
                return poller.poll(limit, most)

        def beside(now: float) -> int:
            held.clear()
            gc.collect()
            return 0

        requireReplaceable(BlockingLoop, "threadsBeside")
        self.patch(self.loop.reactor, "_poller", Poller())
        self.patch(self.loop, "threadsBeside", beside)
        self.assertEqual(other.recv(1), b"")
        self.assertEqual(limits, [0])

    def lonely(self) -> tuple[list[Any], Any]:
        """
        Return two ends of a connection, the first in a list, where its only reference is.
        """
        self.addCleanup(self.flushWarnings)
        held = list(self.pair())
        other = held.pop()
        self.doCleanupsOf(held[0])
        return held, other

    def doCleanupsOf(self, skt: Any) -> None:
        """
        Forget the cleanups of a socket, which refer to it.
        """
        self._cleanups = [each for each in self._cleanups if getattr(each[0], "__self__", None) is not skt]


class PacketTests(BlockingTestCase):
    """
    Connected sockets of devices whose memory nobody shares.
    """

    def echoes(self, fabric: str) -> None:
        """
        Bytes that are there, and such that are waited for, come.
        """
        self.rules(
            f"device {fabric}7 {fabric} 127.0.0.9\nroute 127.0.0.9/32 {fabric}7\n"
            "use sdp listen * *:*\nuse sdp connect * *:*\n"
        )
        listener = offloading.create_server(("127.0.0.9", 0))
        # The rules are read, for the whole process.
        self.addCleanup(removeDevice, f"{fabric}7")
        self.addCleanup(listener.close)
        listener.settimeout(HANG_SECONDS)
        accepted = self.inThread(listener.accept)
        one = self.client(listener)
        other = accepted.result(HANG_SECONDS)[0]
        self.addCleanup(other.close)
        self.assertEqual(other.sdp.stream.queuePair.device.name, f"{fabric}7")
        other.settimeout(None)
        for number in range(40):
            received = self.inThread(other.recv, 10) if number % 2 else None
            one.sendall(b"%010d" % number)
            data = received.result(HANG_SECONDS) if received is not None else other.recv(10)
            self.assertEqual(data, b"%010d" % number)

    def test_iWARP(self) -> None:
        """
        Over iWARP.
        """
        self.echoes("iwarp")

    def test_RoCE(self) -> None:
        """
        Over RoCE.
        """
        self.echoes("roce")


class DescriptorTests(BlockingTestCase):
    """
    Sockets that share a connection.
    """

    def test_duplicates(self) -> None:
        """
        The connection lives until the last of its sockets is closed, however it was made.
        """
        one, other = self.pair()
        made = [one.dup(), offloading.fromfd(one.fileno(), one.family, one.type)]
        made.append(offloading.socket(fileno=os.dup(one.fileno())))
        made.append(offloading.socket(fileno=one.detach()))
        for n, each in enumerate(made):
            each.sendall(b"%d" % n)
            self.assertEqual(other.recv(1), b"%d" % n)
            each.close()
        self.assertEqual(other.recv(1), b"")

    def test_sameDescriptor(self) -> None:
        """
        A second socket of a descriptor may give it away again.
        """
        one, other = self.pair()
        second = offloading.socket(fileno=one.fileno())
        second.sendall(b"a")
        self.assertEqual(second.detach(), one.fileno())
        one.sendall(b"b")
        self.assertEqual(exactly(other, 2), b"ab")
        self.assertIs(descriptors.offloaded[one.fileno()], one)

    def test_detachedBound(self) -> None:
        """
        Of connections whose descriptors nobody takes up the oldest is closed.
        """
        self.patch(limits, "BLOCKING_DETACHED", 1)
        first, peer = self.pair()
        second, _ = self.pair()
        numbers = [first.detach(), second.detach()]
        self.assertEqual(peer.recv(1), b"")
        offloading.socket(fileno=numbers[1]).close()
        os.close(numbers[0])


class ListenTests(BlockingTestCase):
    """
    Sockets that listen, and connects that fail.
    """

    def test_both(self) -> None:
        """
        One socket accepts from TCP and SDP; C{SO_ACCEPTCONN} says that it listens.
        """
        listener = self.server()
        self.assertIsInstance(listener.sdp, Listening)
        self.assertEqual(listener.getsockopt(kernel.SOL_SOCKET, kernel.SO_ACCEPTCONN), 1)
        for made in (kernel, offloading):
            accepted = self.inThread(listener.accept)
            client = self.client(listener, made)
            connection, address = accepted.result(HANG_SECONDS)
            self.assertEqual(address, client.getsockname())
            connection.close()
        listener.settimeout(0)
        self.assertRaises(BlockingIOError, listener.accept)
        listener.settimeout(0.01)
        self.assertRaises(TimeoutError, listener.accept)

    def test_trouble(self) -> None:
        """
        Where no device can listen the socket is TCP's, and the switch says so; where one can it is not.
        """
        self.server()
        counters = self.loop.reactor.switch.counters
        self.assertEqual(counters["switch_fallback_listen"], 0)

        def full(*_: Any) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        self.patch(SDPListener, "startListening", full)
        listener = self.server()
        self.assertEqual(counters["switch_fallback_listen"], 1)
        with self.client(listener) as client, listener.accept()[0] as made:
            self.assertIsNone(client.sdp)
            texts = [str(kept[each].fallback) for each in (listener, made)]
        for each in texts:
            self.assertRegex(each, f"^SDP: .*{os.strerror(errno.EMFILE)}$")

    def test_given(self) -> None:
        """
        A socket that listened when the program was given it (LISTEN_FDS) is TCP's, as its connections are,
        and says so; where a rule wants TCP, that is the reason.
        """
        for verdict in "both", "tcp":
            self.rules(f"use {verdict} server * *:*\n")
            loop = BlockingLoop()
            self.addCleanup(loop.close)
            self.patch(module, "_loop", loop)
            listener = offloading.socket(fileno=self.server(kernel).detach())
            self.addCleanup(listener.close)
            for _ in range(2):
                with self.client(listener), listener.accept()[0] as made:
                    said = [each in kept and kept[each].fallback for each in (listener, made)]
                self.assertEqual(said, [LISTENED if verdict == "both" else False] * 2)

    def test_backlog(self) -> None:
        """
        Beyond the backlog clients are refused over SDP, and go over TCP.
        """
        listener = self.server(backlog=2)
        clients = [self.client(listener) for _ in range(3)]
        self.assertEqual([each.sdp is None for each in clients], [False, False, True])
        for _ in clients:
            listener.accept()[0].close()
        self.assertIsNotNone(self.client(listener).sdp)

    def test_alone(self) -> None:
        """
        By a rule C{sdp} nobody listens on TCP.
        """
        self.rules("use sdp listen * *:*\nuse sdp connect * *:*\n")
        listener = self.server()
        self.assertTrue(listener.sdp.alone)
        self.assertRaises(ConnectionRefusedError, kernel.create_connection, listener.getsockname())
        accepted = self.inThread(listener.accept)
        self.assertIsNotNone(self.client(listener).sdp)
        accepted.result(HANG_SECONDS)[0].close()
        listener.settimeout(0)
        self.assertRaises(BlockingIOError, listener.accept)

    def test_tcpRules(self) -> None:
        """
        By rules C{tcp}, or if the program says so, the kernel has all.
        """
        self.rules("use tcp listen * *:*\nuse tcp connect * *:*\n")
        self.assertIsNone(self.server().sdp)
        direct = offloading.socket()
        direct.useTCP()
        direct.listen()
        self.assertIsNone(direct.sdp)
        direct.close()

    def test_kernels(self) -> None:
        """
        What the kernel has connected, or accepted, has the standard library's own calls; it is a socket as
        before, and what is duplicated to its descriptor ends with it.
        """
        listener = self.server(kernel)
        refused = offloading.socket()
        with kernel.create_server((LOOPBACK, 0)) as nobody:
            address = nobody.getsockname()
        self.assertRaises(ConnectionRefusedError, refused.connect, address)
        self.assertIs(type(refused), offloading.socket)
        # As Linux has it, it may be connected after that.
        refused.connect(listener.getsockname())
        ours = self.server()
        with kernel.create_connection(ours.getsockname()) as plain:
            accepted, _ = ours.accept()
            for each in (refused, self.client(listener), accepted, accepted.dup()):
                self.addCleanup(each.close)
                self.assertIsInstance(each, offloading.socket)
                self.assertIs(type(each).recv, _socket.socket.recv)
                self.assertIs(type(each).getpeername, _socket.socket.getpeername)
                self.assertIsNone(each.sdp)
            plain.sendall(b"x")
            self.assertEqual(accepted.recv(2), b"x")
            self.assertRaises(OSError, accepted.connect, listener.getsockname())
        one, other = self.pair()
        with patched():
            os.dup2(other.fileno(), accepted.fileno())
        other.close()
        one.sendall(b"y")
        accepted.close()
        self.assertRaises(ConnectionError, one.recv, 1)

    def _ways(self, listener: Any, count: int, messages: int = 1) -> list[bool]:
        # Whether SDP carries each of the connections, one after the other, to a server of one thread.
        found = []
        for _ in range(count):
            served = self.inThread(echo, listener)
            with self.client(listener) as client:
                found.append(client.sdp is not None)
                for _ in range(messages):
                    client.sendall(b"request")
                    self.assertEqual(exactly(client, 7), b"request")
            served.result(HANG_SECONDS)
        return found

    def test_shortLived(self) -> None:
        """
        A port whose connections have a request each is left to TCP, after the first few; later SDP is tried
        again, and stays once a connection has more.
        """
        # However busy the CPUs are: sleeps have a test of their own.
        ended = Gainless.ended
        self.patch(Gainless, "ended", lambda it, *words: ended(it, *words[:4], 0, words[5]))
        listener, count = self.server(), GAINLESS_IN_SUCCESSION
        self.assertEqual(self._ways(listener, count + 3), [True] * count + [False] * 3)
        switch = self.loop.reactor.switch
        self.assertEqual(switch.counters["switch_fallback_short_lived"], 3)
        with self.client(listener) as client:
            self.assertEqual(str(kept[client].fallback), "blocking and short-lived: SDP gains nothing here")
        listener.accept()[0].close()
        # Another port has its own count.
        self.assertEqual(self._ways(self.server(), 1), [True])
        self._later(listener)
        self.assertEqual(self._ways(listener, 2), [True, False])
        self._later(listener)
        self.assertEqual(self._ways(listener, 1, SHORT_MESSAGES), [True])
        self.assertEqual(self._ways(listener, count + 1), [True] * count + [False])

    def test_collected(self) -> None:
        """
        A finalizer, which the garbage collector may call while the devices are used, drives them not: what it
        closes has its turn afterwards.
        """
        requireReplaceable(Connection, "sendDirect")
        one, other = self.pair()
        left, peer = self.pair()
        driven = self.loop.driven
        turns: list[int] = []

        def finalize() -> None:
            before = driven.turns
            repr(one)
            one.getpeername()
            left.close()
            turns.append(driven.turns - before)

        device = one.sdp.stream.channel.device
        self.patch(Connection, "sendDirect", lambda *_: False)
        for where, name, plain in (
            (device, "flush", device.flush),
            (one.sdp.stream, "write", one.sdp.stream.write),
            (self.loop, "turn", self.loop.turn),
        ):
            left, peer = self.pair()
            with self.loop:
                self.loop.poll()
            patched = self.patch(where, name, lambda *words, plain=plain: finalize() or plain(*words))
            one.sendall(b"x")
            with self.loop:
                self.loop.poll()
            patched.restore()
            self.assertEqual((set(turns), exactly(other, 1)), ({0}, b"x"), name)
            del turns[:]
            self.assertEqual(peer.recv(1), b"")

    def test_collectedTwice(self) -> None:
        """
        A finalizer that itself sends or receives, while the devices are used, leaves it known that they are:
        the next one in the same call does not drive them either.
        """
        requireReplaceable(Connection, "sendDirect")
        one, other = self.pair()
        third, fourth = self.pair()
        loop, stream = self.loop, one.sdp.stream
        found: list[object] = []

        def finalize() -> None:
            before = loop.driven.turns
            for send in third.sendall, lambda data: third.sdp.send(data, 0, None):
                send(b"y")
                found.append(loop.inside)
            self.assertRaises(BlockingIOError, fourth.sdp.receive, 2, 0, 0.0)
            found.extend((loop.inside, loop.driven.turns == before))
            one.getpeername()
            found.append(loop.driven.turns == before)

        def receive() -> None:
            one.sendall(b"x")
            self.assertEqual(other.sdp.receive(1, 0, None), b"x")

        for where, name, act in (
            (stream.channel, "progress", receive),
            (stream, "postWritten", lambda: one.sendall(b"x")),
            (stream, "write", lambda: one.sdp.send(b"x", 0, None)),
        ):
            # A receive is without a turn.
            loop.reactor._askAt = monotonic() + HANG_SECONDS
            loop.driven.turns += EPOLL_EVERY - loop.driven.turns % EPOLL_EVERY
            plain = getattr(where, name)
            patched = self.patch(where, name, lambda *words, plain=plain: finalize() or plain(*words))
            act()
            patched.restore()
            self.assertEqual((len(found), all(found), loop.inside), (5, True, False), (name, found))
            found.clear()
            exactly(fourth, 2)

    def test_decidedOnce(self) -> None:
        """
        While a port is left to TCP the rules are not asked again: the reason and the counters are as before,
        until other rules hold, or SDP is tried again.
        """
        ended = Gainless.ended
        self.patch(Gainless, "ended", lambda it, *words: ended(it, *words[:4], 0, words[5]))
        listener = self.server()
        switch = self.loop.reactor.switch
        decisions: list[Any] = []
        decide = switch.decide
        self.patch(switch, "decide", lambda *words: decisions.append(words) or decide(*words))
        self.assertEqual(self._ways(listener, GAINLESS_IN_SUCCESSION + 1), [*[True] * 4, False])
        del decisions[:]
        before = Counter(switch.counters)
        whys = []
        for _ in range(3):
            with self.client(listener) as client:
                whys.append(kept[client])
            listener.accept()[0].close()
        self.assertEqual((decisions, {each.fallback.kind for each in whys}), ([], {"short_lived"}))
        self.assertEqual(set((Counter(switch.counters) - before).values()), {3})
        # Sockets of another kind are none of these, nor is what is no address.
        with offloading.socket(kernel.AF_INET, kernel.SOCK_DGRAM) as datagrams:
            datagrams.connect(listener.getsockname())
            self.assertNotIn(datagrams, kept)
        with offloading.socket() as skt:
            self.assertRaises(TypeError, skt.connect, ([], 1))
        switch.configuration.reload()
        with self.client(listener):
            self.assertEqual(len(decisions), 1)
        listener.accept()[0].close()
        self._later(listener)
        self.assertEqual(self._ways(listener, 2), [True, False])
        self.assertEqual(len(decisions), 3)

    def _later(self, listener: Any) -> None:
        # The time for which the port is left to TCP is over.
        switch = self.loop.reactor.switch
        before = self.loop.reactor.seconds() - switch.configuration.policy.timeouts.short
        switch.candidates.gainless.ended(*listener.getsockname(), 1, 1, 0, before)

    def test_oneCPU(self) -> None:
        """
        On one CPU blocking sockets connect over TCP.
        """
        self.patch(os, "sched_getaffinity", lambda _: {0})
        listener = self.server()
        with self.client(listener) as client:
            self.assertEqual(kept[client].fallback.kind, "one_cpu")

    def test_asleep(self) -> None:
        """
        The switch learns how many messages have ended a sleep: the connection's part of the device's.
        """
        learned: list[Any] = []
        self.patch(Gainless, "ended", lambda _, *arguments: learned.append((*arguments, len(channel.users))))
        listener = self.server()
        served = self.inThread(echo, listener)
        with self.client(listener) as client:
            channel = client.sdp.stream.channel
            client.sendall(b"request")
            exactly(client, 7)
            # More than there are otherwise.
            channel.device.fabric.sleeps += 1_000_000
        served.result(HANG_SECONDS)
        [(host, port, sent, received, sleeps, _, users)] = learned
        self.assertEqual((host, port), listener.getsockname())
        self.assertLess(max(sent, received), SHORT_MESSAGES)
        self.assertGreater(users, 1)
        self.assertIn(sleeps * users, range(1_000_000 - users, 1_100_000))

    def _sleeps(self) -> tuple[Any, Any, Any]:
        # A server, and a connection to it that stands, whose messages have mostly ended sleeps.  The look of
        # the loop itself is not to come between.
        learn = self.loop.reactor.switch.learn
        self.patch(self.loop.reactor.switch, "learn", lambda _: None)
        listener = self.server()
        accepted = self.inThread(listener.accept)
        one, other = self.client(listener), accepted.result(HANG_SECONDS)[0]
        self.addCleanup(other.close)
        other.settimeout(HANG_SECONDS)
        learn(self.loop.reactor._channels)
        for _ in range(ASLEEP_MESSAGES):
            for here, there in ((one, other), (other, one)):
                here.sendall(b"x")
                exactly(there, 1)
        one.sdp.stream.channel.device.fabric.sleeps += 1_000_000
        learn(self.loop.reactor._channels)
        return listener, one, other

    def test_sleeps(self) -> None:
        """
        A connection that stands and mostly sleeps leaves its port to TCP, for clients of this process; it
        goes on itself, and the server offers SDP as before.
        """
        listener, one, other = self._sleeps()
        with self.client(listener) as client:
            self.assertEqual(kept[client].fallback.kind, "asleep")
        listener.accept()[0].close()
        one.sendall(b"on")
        self.assertEqual(exactly(other, 2), b"on")
        self.assertIsNone(listener.sdp.why.fallback)
        # Another process knows nothing of that.
        self.loop.reactor.switch.candidates.gainless = Gainless()
        self.assertEqual(self._ways(listener, 1), [True])

    def test_gainlessByRules(self) -> None:
        """
        A rule C{sdp} wins over what is learned, and over one CPU.
        """
        self._allOverSDP("use sdp connect * *:*\n")

    def test_gainlessNever(self) -> None:
        """
        With C{timeout short 0} neither counts.
        """
        # A file without a rule would be one for SDP alone.
        self._allOverSDP("timeout short 0\nuse both connect * *:*\n")

    def _allOverSDP(self, rules: str) -> None:
        self.patch(os, "sched_getaffinity", lambda _: {0})
        # The switch keeps the path that it was made with.
        self.rules(rules)
        self.assertEqual(self._ways(self.server(), GAINLESS_IN_SUCCESSION + 2), [True] * 6)

    def test_refused(self) -> None:
        """
        Errors have their numbers: without a listener by TCP's rules, and where SDP alone is allowed.
        """
        with offloading.create_server((LOOPBACK, 0)) as listener:
            address = listener.getsockname()
        self.assertRaises(ConnectionRefusedError, offloading.create_connection, address)
        self.rules("use sdp connect * *:*\n")
        self.loop.reactor.switch.configuration.reload()
        error = self.assertRaises(ConnectionRefusedError, offloading.create_connection, address)
        self.assertIn("nobody listens", str(error))
        with offloading.socket() as skt:
            self.assertEqual(skt.connect_ex(address), errno.ECONNREFUSED)
            self.assertRaises(TypeError, skt.connect, 7)
            self.assertRaises(OverflowError, skt.connect, (LOOPBACK, 1 << 20))

    def test_nonBlocking(self) -> None:
        """
        C{connect_ex} begins, C{select} says when it is over; a second call says how it went.
        """
        listener = self.server()
        accepted = self.inThread(echo, listener)
        skt = self.connecting(listener.getsockname())
        from twisted_ib import select

        self.assertEqual(select.select([], [skt], [], HANG_SECONDS)[1], [skt])
        self.assertEqual(skt.getsockopt(kernel.SOL_SOCKET, kernel.SO_ERROR), 0)
        self.assertEqual(
            [skt.connect_ex(listener.getsockname()) for _ in range(2)], [0, errno.EISCONN], "as Linux"
        )
        skt.send(b"ping")
        select.select([skt], [], [], HANG_SECONDS)
        self.assertEqual(skt.recv(9), b"ping")
        skt.close()
        accepted.result(HANG_SECONDS)

    def test_closedUnasked(self) -> None:
        """
        A connection that the socket has not taken over, as its call was interrupted, ends with the socket.
        """
        listener = self.server()
        accepted = self.inThread(listener.accept)
        skt = self.connecting(listener.getsockname())
        made = skt._connecting
        waitUntil(lambda: made.isOver, made.drive)
        self.assertIsNotNone(made.connection)
        skt.close()
        other = accepted.result(HANG_SECONDS)[0]
        self.addCleanup(other.close)
        other.settimeout(HANG_SECONDS)
        self.assertEqual(other.recv(1), b"")

    def test_shutdown(self) -> None:
        """
        C{shutdown} of a socket that listens ends the wait of C{accept}.
        """
        self.rules("use sdp listen * *:*\n")
        listener = self.server()
        waiting = self.inThread(listener.accept)
        waitUntil(lambda: self.loop.sleeping)
        listener.shutdown(kernel.SHUT_RDWR)
        self.assertEqual(self.failureOf(waiting).errno, errno.EINVAL)

    def test_shutdownAndClose(self) -> None:
        """
        Where the socket is closed right after that, as servers do that end their threads, C{accept} says the
        same as over TCP, and not that there is no such descriptor.
        """
        listener = self.server()
        waiting = self.inThread(listener.accept)
        waitUntil(lambda: self.loop.sleeping)
        with self.loop:
            # The thread goes on behind both.
            listener.shutdown(kernel.SHUT_RDWR)
            listener.close()
        self.assertEqual(self.failureOf(waiting).errno, errno.EINVAL)

    def test_closedBetween(self) -> None:
        """
        So it is where C{accept} waits for the next client over TCP, and goes on once the socket is closed:
        without C{shutdown} there is no such descriptor.
        """
        for isShut, number in (True, errno.EINVAL), (False, errno.EBADF):
            listener = self.server()
            with kernel.create_connection(listener.getsockname()):
                listener.accept()[0].close()

            class Poller:
                def poll(self, timeout: float | None) -> list[tuple[int, int]]:
                    if isShut:  # noqa: B023
                        listener.shutdown(kernel.SHUT_RDWR)  # noqa: B023
                    listener.close()  # noqa: B023
                    return [(0, 0)]

            listener.sdp._pollers = [Poller()]
            self.assertEqual(self.assertRaises(OSError, listener.accept).errno, number)

    def failureOf(self, future: Any) -> Any:
        """
        Return the error of a call in a thread.
        """
        return future.exception(HANG_SECONDS)


class ClassTests(BlockingTestCase):
    """
    The class of sockets.
    """

    def test_instances(self) -> None:
        """
        Every socket is an instance of it, and of a program's own class only those of that, or of one below.
        """

        class Own(offloading.socket):
            pass

        class Below(Own):
            pass

        made = [each() for each in (kernel.socket, offloading.socket, Own, Below)]
        for each in made:
            self.addCleanup(each.close)
        for kind, expected in (
            (offloading.socket, [True] * 4),
            (Own, [False, False, True, True]),
            (Below, [False, False, False, True]),
        ):
            self.assertEqual([isinstance(each, kind) for each in made], expected)

    def test_mocked(self) -> None:
        """
        A method that is replaced, and put back, is the kernel's again of its own sockets, at its cost.
        """
        kernels = offloading.socket.kernelKind
        mocked = Mock()
        with patch.object(offloading.socket, "recv", mocked):
            self.assertIs(kernels.recv, mocked)
        self.assertIs(kernels.recv, _socket.socket.recv)


class SharingTests(BlockingTestCase):
    """
    Many threads, and processes.
    """

    def test_threads(self) -> None:
        """
        Sixteen threads with a connection each, served by as many; the loop has one leader at a time.
        """
        listener = self.server()
        barrier = Barrier(16)

        def ask(n: int) -> int:
            connection = self.client(listener)
            barrier.wait(HANG_SECONDS)
            for k in range(40):
                message = b"%d %d" % (n, k)
                connection.sendall(message)
                if exactly(connection, len(message)) != message:
                    return 0
            connection.close()
            return 1

        served = [self.inThread(echo, listener) for _ in range(16)]
        asked = [self.inThread(ask, n) for n in range(16)]
        self.assertEqual(sum(each.result(HANG_SECONDS) for each in asked), 16)
        for each in served:
            each.result(HANG_SECONDS)

    def test_forkedListener(self) -> None:
        """
        In a forked child the parent's socket that listens is the kernel's, as a duplicate of it is: servers
        fork after they listen.
        """
        listener = offloading.create_server((LOOPBACK, 0))
        self.addCleanup(listener.close)
        clients = [kernel.create_connection(listener.getsockname()) for _ in range(3)]
        for each in clients:
            self.addCleanup(each.close)

        def serve() -> None:
            made = [listener, listener.dup(), offloading.socket(fileno=os.dup(listener.fileno()))]
            for each in made:
                assert select([each], [], [], HANG_SECONDS)[0] == [each]
                accepted, _ = each.accept()
                accepted.sendall(b"served")
                accepted.close()

        self.assertEqual(runForked(serve), 0)
        self.assertEqual([exactly(each, 6) for each in clients], [b"served"] * 3)
        self.assertEqual(type(listener.sdp).__name__, "Listening")

    def test_fork(self) -> None:
        """
        In a forked child the parent's sockets are an error by name; a socket of its own works.
        """
        one, other = self.pair()
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            said = []
            for call in (lambda: one.send(b"x"), lambda: one.recv(1)):
                try:
                    call()
                except ForkedSocketError as e:
                    said.append(str(e.errno == errno.EBADF and isinstance(e, OSError)))
            try:
                one.close()
                with offloading.create_server((LOOPBACK, 0)) as listener:
                    said.append(type(listener.sdp).__name__)
            finally:
                os.write(writer, " ".join(said).encode())
                os.kill(os.getpid(), signal.SIGKILL)
        os.close(writer)
        self.addCleanup(os.waitpid, child, 0)
        self.addCleanup(os.close, reader)
        kernelSelect.select([reader], [], [], HANG_SECONDS)
        self.assertEqual(os.read(reader, 999), b"True True Listening")
        one.sendall(b"still there")
        self.assertEqual(exactly(other, 11), b"still there")
