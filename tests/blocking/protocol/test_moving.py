"""
Tests of connections of blocking sockets that move to TCP: see L{twisted_ib.blocking.moving}.
"""

from __future__ import annotations

import errno
import os
import select as kernel_select
import socket as kernel
import ssl
import sys
import termios
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from struct import pack
from subprocess import PIPE, Popen
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.blocking.case import BlockingTestCase
from tests.hca.base.machines import MachineTestsMixin
from tests.reactor.test_tcpreasons import pageRows
from tests.support.calls import PACKAGE, called
from tests.support.certificates import certificate
from tests.support.descriptors import descriptorsBefore, exactly, moves
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import socket as offloading
from twisted_ib.blocking import descriptors, files, moving, tls
from twisted_ib.blocking.connecting import BlockingClient
from twisted_ib.blocking.listening import BlockingServer
from twisted_ib.blocking.moving import State
from twisted_ib.blocking.select import epoll, poll, select
from twisted_ib.blocking.socket import MovedSocket
from twisted_ib.hca.base.socketrows import COLUMNS
from twisted_ib.hca.host import fdpassing
from twisted_ib.hca.host.fdpassing import LINGER_RESET
from twisted_ib.sdp.transport import SDPTransport
from twisted_ib.switch import reason
from twisted_ib.switch.gainless import ASLEEP_MESSAGES_SOON

DATA = b"0123456789"
MANY = 4 << 20
IN = kernel_select.POLLIN


def nameOf(skt: Any) -> str:
    """
    Return the address of a descriptor as rows have it.
    """
    plain = kernel.socket(fileno=os.dup(skt.fileno()))
    with plain:
        return ":".join(map(str, plain.getsockname()))


def into(skt: Any, size: int = 10) -> bytes:
    """
    Receive by C{recv_into}.
    """
    buffer = bytearray(size)
    return bytes(buffer[: skt.recv_into(buffer)])


def peek(skt: Any, size: int = 10) -> bytes:
    """
    Look at what is to be received.
    """
    return skt.recv(size, kernel.MSG_PEEK)  # type: ignore[no-any-return]


def peekAll(skt: Any, size: int = 10) -> bytes:
    """
    Look at it once there is as much.
    """
    timeout = skt.gettimeout()
    skt.settimeout(None)
    try:
        return skt.recv(size, kernel.MSG_PEEK | kernel.MSG_WAITALL)  # type: ignore[no-any-return]
    finally:
        skt.settimeout(timeout)


def receiving() -> list[Callable[..., bytes]]:
    """
    Return the calls that receive.
    """
    return [
        lambda skt, size=10: skt.recv(size),
        lambda skt, size=10: skt.recvfrom(size)[0],
        lambda skt, size=10: skt.recvmsg(size)[0],
        into,
        peek,
        peekAll,
    ]


def sentInPieces(skt: Any, data: bytes) -> None:
    """
    Send by C{send}, without to wait but by C{select}.
    """
    done = 0
    while done < len(data):
        select([], [skt], [], HANG_SECONDS)
        try:
            done += skt.send(data[done : done + (1 << 18)], kernel.MSG_DONTWAIT)
        except BlockingIOError:
            continue


def sentWithTimeout(skt: Any, data: bytes) -> None:
    """
    Send some at a time, with a timeout.
    """
    skt.settimeout(HANG_SECONDS)
    for start in range(0, len(data), 1 << 18):
        skt.sendall(data[start : start + (1 << 18)])


def selecting(skt: Any) -> Callable[[float], int]:
    """
    Return what waits so many seconds for a socket by C{select}; it returns the events.
    """
    return lambda seconds: IN if select([skt], [], [], seconds)[0] else 0


def polling(skt: Any) -> Callable[[float], int]:
    """
    The same of an object of C{poll}.
    """
    made = poll()
    made.register(skt, IN)
    return lambda seconds: dict(made.poll(seconds * 1e3)).get(skt.fileno(), 0)


def epolling(skt: Any) -> Callable[[float], int]:
    """
    The same of one of C{epoll}.
    """
    made = epoll()
    made.register(skt, IN)
    return lambda seconds: dict(made.poll(seconds)).get(skt.fileno(), 0)


def polled(skt: Any) -> int:
    """
    Return the events of a socket.
    """
    made = poll()
    made.register(skt)
    return dict(made.poll(0)).get(skt.fileno(), 0)


class MachineTests(MachineTestsMixin, SynchronousTestCase):
    """
    The states of a move.
    """

    machine = moving.MOVES
    stateType, inputType = State, moving.Input
    begins = (State.ASKED,)


class TransportTests(SynchronousTestCase):
    """
    Transports that are asked to move, or told that the peer does.
    """

    def test_suspended(self) -> None:
        """
        An end asks its connection whether it has asked; a client's asks its connector whether it moves.
        """
        told: list[Any] = []

        def tell(*words: object) -> bool:
            told.append(words)
            return True

        for make, port in (BlockingServer, "server"), (BlockingClient, "connector"):
            made: Any = make.__new__(make)
            made.protocol = SimpleNamespace(move=SimpleNamespace(answered=tell))
            why = SimpleNamespace(verdict="both")
            setattr(made, port, SimpleNamespace(asked=tell, why=why))
            self.assertTrue(made.suspended(-1))
            self.assertFalse(SDPTransport.suspended(made, 5))
            # Its protocol is no connection's.
            self.assertEqual(made.suspended(5), port != "server")
            why.verdict = "sdp"
            self.assertEqual([made.suspended(5), made.suspended(-1)], [port != "server", True])
            for made.protocol in SimpleNamespace(move=None), object():
                self.assertFalse(made.suspended(-1))
        client = made
        self.assertEqual(told, [(), (), (), (client, 5), (client, 5), ()])


class MovingTests(BlockingTestCase):
    """
    One connection, whose ends are in this process.
    """

    def pair(self, *made: Any) -> tuple[Any, Any]:
        """
        As of other tests, though a number that is drawn may be that of one that was left to TCP.
        """
        gainless = self.loop.reactor.switch.candidates.gainless
        gainless._ports.clear()
        gainless.changed()
        return super().pair(*made)

    def moved(self) -> tuple[Any, Any]:
        """
        Return two sockets, who connected and who accepted, whose connection has moved.
        """
        one, other = self.pair()
        names = [(each.getsockname(), each.getpeername()) for each in (one, other)]
        moves(one)
        self.assertMoves(one, other)
        self.assertEqual([(each.getsockname(), each.getpeername()) for each in (one, other)], names)
        return one, other

    def assertMoves(self, one: Any, other: Any) -> None:
        """
        Three messages to and fro are enough for both ends to be TCP's.
        """
        for sender, receiver in (one, other), (other, one), (one, other):
            sender.sendall(DATA)
            self.assertEqual(exactly(receiver, len(DATA)), DATA)
        self.assertEqual([type(each) for each in (one, other)], [MovedSocket, MovedSocket])

    def test_moved(self) -> None:
        """
        Both ends keep their addresses, and the kernel carries them: the descriptors are those of TCP, and
        nothing of SDP is left.
        """
        one, other = self.moved()
        for each in (one, other):
            plain = kernel.socket(fileno=os.dup(each.fileno()))
            with plain:
                self.assertEqual(plain.getpeername()[0], "127.0.0.1")
            self.assertIsNone(each.sdp)
            self.assertNotIn(each.fileno(), descriptors.offloaded)
        os.write(one.fileno(), DATA)
        self.assertEqual(os.read(other.fileno(), 100), DATA)
        one.shutdown(kernel.SHUT_WR)
        self.assertEqual(other.recv(10), b"")
        other.sendall(DATA)
        self.assertEqual(one.recv(100), DATA)
        other.close()
        self.assertEqual(one.recv(100), b"")

    def test_urgent(self) -> None:
        """
        An urgent octet stays in the stream, as over SDP, once a connection has moved, and before.
        """
        one, other = self.moved()
        for sender, receiver in (one, other), (other, one):
            sender.send(b"ab", kernel.MSG_OOB)
            sender.sendall(b"c")
            self.assertEqual(exactly(receiver, 3), b"abc")
            receiver.setblocking(False)
            self.assertEqual(self.assertRaises(OSError, receiver.recv, 1, kernel.MSG_OOB).errno, errno.EINVAL)

    def test_urgentMeanwhile(self) -> None:
        """
        One that is sent before both ends have moved does not hold them up.
        """
        one, other = self.pair()
        other.send(b"x", kernel.MSG_OOB)
        self.assertEqual(exactly(one, 1), b"x")
        moves(one)
        one.send(b"ab", kernel.MSG_OOB)
        self.assertEqual(exactly(other, 2), b"ab")
        self.assertMoves(one, other)

    def test_why(self) -> None:
        """
        Both ends are TCP's, with the reason, to who asks the process, to who reads its page while it is busy,
        and to the summary.
        """
        report = self.loop.reactor.socketReport
        with self.loop:
            report.appear()
        reason.outcomes.clear()
        ends = self.moved()
        self.assertEqual(
            {key: count for key, count in reason.outcomes.items() if count},
            {("tcp", "asleep", ""): 1, ("tcp", "moved", ""): 1},
        )
        names = [nameOf(each) for each in ends]
        texts = [reason.kept[each].fallback.text for each in ends]
        with self.loop:
            asked = [dict(zip(COLUMNS, row, strict=True)) for row in report.rows(report.channel) if row]
        for rows in asked, pageRows():
            found = {row["local"]: row for row in rows if row["local"] in names}
            self.assertEqual([found[each]["fallback"] for each in names], texts)
            self.assertEqual({each["provider"] for each in found.values()}, {"tcp"})
        for each in ends:
            self.assertEqual(str(reason.kept[each]).partition(",")[0], "tcp")
            each.close()

    # -- the order of the steps

    def restless(self, skt: Any) -> Any:
        """
        Have an end of a connection wait with its step, until C{restore} of what this returns.
        """
        return self.patch(
            type(skt.sdp.stream), "isQuiet", lambda stream, of=skt.sdp: stream.protocol is not of
        )

    def turns(self, holds: Any = lambda: False, count: int = 20) -> None:
        """
        Drive the loop until something is so, or for some turns.
        """
        for _ in range(count):
            if holds():
                return
            with self.loop:
                self.loop.poll()

    def due(self) -> list[Any]:
        """
        Return the steps that are to be tried again.
        """
        calls = self.loop.reactor.getDelayedCalls()
        return [each for each in calls if each.func.__name__ == "whenQuiet"]

    def settled(self, *sockets: Any) -> None:
        """
        Drive the loop until sockets have moved.
        """
        with self.loop:
            isOver = self.loop.wait(lambda: not any(each.sdp for each in sockets), monotonic() + HANG_SECONDS)
        self.assertTrue(isOver)
        self.assertEqual({type(each) for each in sockets}, {MovedSocket})

    def received(self, *sockets: Any) -> None:
        """
        Drive the loop until the kernel has all that is to be received by sockets behind what they have.
        """
        parts = [each.sdp for each in sockets if each.sdp is not None]
        with self.loop:
            deadline = monotonic() + HANG_SECONDS
            isOver = self.loop.wait(lambda: all(each.move.receives() for each in parts), deadline)
        self.assertTrue(isOver)

    def exchange(self, one: Any, other: Any) -> None:
        """
        Have both ends of what has moved send and receive.
        """
        for each, peer in (one, other), (other, one):
            each.sendall(DATA)
            self.assertEqual(exactly(peer, len(DATA)), DATA)
            self.assertIs(type(peer), MovedSocket)

    def asked(self) -> tuple[Any, Any, Any]:
        """
        Return two sockets, of which the one that has accepted is asked and waits with its answer; and what
        ends that.
        """
        one, other = self.pair()
        hold = self.restless(other)
        moves(one)
        self.turns()
        move = one.sdp.move
        self.assertFalse(other.sdp.sendsByTCP())
        moves(one)
        self.assertIs(one.sdp.move, move)
        self.assertIs(move.state, State.ASKED)
        return one, other, hold

    def half(self) -> tuple[Any, Any, Any]:
        """
        Return two sockets, of which the one that has accepted sends by TCP, and the other one waits.
        """
        one, other = self.pair()
        self.assertIsNot(type(one.sdp.stream), type(other.sdp.stream))
        moves(one)
        hold = self.restless(one)
        self.turns(lambda: other.sdp.sendsByTCP())
        self.turns()
        self.assertTrue(other.sdp.sendsByTCP())
        self.assertFalse(one.sdp.sendsByTCP())
        return one, other, hold

    def test_sends(self) -> None:
        """
        Both ends send before each step and behind it: all comes in its order.
        """
        for begin in self.asked, self.half:
            one, other, hold = begin()
            for each in one, other:
                each.sendall(b"first")
                self.assertEqual(each.send(b"second"), 6)
            hold.restore()
            self.received(one, other)
            for data in b"third", b"fourth":
                one.sendall(data)
                other.sendall(data)
            for each in other, one:
                self.assertEqual(exactly(each, 22), b"firstsecondthirdfourth", begin)
                self.assertIs(type(each), MovedSocket)

    def test_shutdown(self) -> None:
        """
        Either end shuts down between two steps: its peer gets all that was sent, then the end, and still
        sends.
        """
        for begin in self.asked, self.half:
            for first in 0, 1:
                one, other, hold = begin()
                ends = (one, other) if first == 0 else (other, one)
                ends[0].sendall(DATA)
                ends[0].shutdown(kernel.SHUT_WR)
                self.turns()
                hold.restore()
                with self.loop:
                    # Nobody drives it while the kernel alone is waited for.
                    self.loop.wait(lambda: not self.due(), None)
                self.assertEqual(exactly(ends[1], len(DATA)), DATA)
                self.assertEqual(ends[1].recv(10), b"", (begin, first))
                self.assertRaises(BrokenPipeError, ends[0].send, DATA)
                ends[1].sendall(DATA)
                self.assertEqual(exactly(ends[0], len(DATA)), DATA)
                ends[1].close()
                self.assertEqual(ends[0].recv(10), b"")
                ends[0].close()

    def test_shutdownRefused(self) -> None:
        """
        An end shuts down that was refused, and has not seen that: its peer gets the end over SDP.
        """
        one, other = self.pair()
        copy = other.dup()
        moves(one)
        self.turns()
        self.assertIs(one.sdp.move.state, State.ASKED)
        one.shutdown(kernel.SHUT_WR)
        self.assertIs(one.sdp.move.state, State.REFUSED)
        self.assertEqual(copy.recv(10), b"")
        copy.sendall(DATA)
        self.assertEqual(exactly(one, len(DATA)), DATA)
        copy.close()

    def test_shutdownReset(self) -> None:
        """
        The end that has asked receives no more when it is answered, and its peer resets TCP: it moves, and is
        told when it sends.
        """
        one, _, hold = self.half()
        one.shutdown(kernel.SHUT_RD)
        one.sdp.move.mine.close()
        one.sdp.move.mine, theirs = moving.pairOfTCP()
        theirs.setsockopt(kernel.SOL_SOCKET, kernel.SO_LINGER, LINGER_RESET)
        theirs.close()
        hold.restore()
        self.turns(lambda: type(one) is MovedSocket, 1000)
        self.assertRaises(ConnectionResetError, one.send, DATA)
        self.assertRaises(BrokenPipeError, one.send, DATA)

    def test_close(self) -> None:
        """
        Either end closes between two steps: its peer gets all that was sent, then the end, and no descriptor
        is left.
        """
        for end in self.pair():
            end.close()
        before = descriptorsBefore()
        for begin in self.asked, self.half:
            for first in 0, 1:
                one, other, hold = begin()
                ends = (one, other) if first == 0 else (other, one)
                ends[0].sendall(DATA)
                ends[0].close()
                self.turns()
                hold.restore()
                self.assertEqual(exactly(ends[1], len(DATA)), DATA, (begin, first))
                self.assertEqual(ends[1].recv(10), b"", (begin, first))
                ends[1].close()
                self.turns()
                del one, other, ends
                waitUntil(lambda: descriptorsBefore() == before, self.turns)

    def test_waits(self) -> None:
        """
        Both ends move while they wait for bytes.
        """
        for call in receiving():
            one, other, hold = self.half()
            for each in one, other:
                each.settimeout(None)
            found = [self.inThread(call, each) for each in (one, other)]
            hold.restore()
            self.settled(one, other)
            for each in one, other:
                each.sendall(DATA)
            self.assertEqual([each.result(HANG_SECONDS)[:1] for each in found], [DATA[:1]] * 2)

    def test_unread(self) -> None:
        """
        Bytes that have arrived before are received first, by each call; what comes behind them is the
        kernel's.
        """
        for call in receiving():
            for size in 3, 10, 15:
                one, other = self.pair()
                one.sendall(DATA)
                other.sendall(DATA)
                self.turns()
                moves(one)
                self.received(one, other)
                for each in one, other:
                    self.assertEqual(each.sdp.inbox.size, 10)
                    self.assertEqual(select([each], [each], [], 0), ([each], [each], []))
                    self.assertEqual(polled(each), kernel_select.POLLIN | kernel_select.POLLOUT)
                    each.sendall(DATA)
                for each in one, other:
                    data = b""
                    while len(data) < 20:
                        piece = call(each, min(size, 20 - len(data)))
                        self.assertEqual(piece, (2 * DATA)[len(data) :][: len(piece)], call)
                        data += exactly(each, len(piece)) if call is peek or call is peekAll else piece
                    self.assertIs(type(each), MovedSocket)

    def test_whole(self) -> None:
        """
        MSG_WAITALL across the move returns all that was asked for.
        """
        one, other, hold = self.half()
        one.settimeout(None)
        other.settimeout(None)
        found = [self.inThread(each.recv, 20, kernel.MSG_WAITALL) for each in (one, other)]
        one.sendall(DATA)
        other.sendall(DATA)
        hold.restore()
        self.settled(one)
        for each in one, other:
            each.sendall(DATA)
        self.assertEqual([each.result(HANG_SECONDS) for each in found], [2 * DATA] * 2)

    def test_large(self) -> None:
        """
        All of what is sent at once comes, while its connection moves.
        """
        data = bytes(range(256)) * (MANY // 256)
        for send in (
            lambda skt: skt.sendall(data),
            lambda skt: skt.sendall(memoryview(data)),
            lambda skt: skt.sendmsg([data]),
            partial(sentInPieces, data=data),
            partial(sentWithTimeout, data=data),
        ):
            for begin in self.asked, self.half:
                one, other, hold = begin()
                for each in one, other:
                    each.settimeout(None)
                sent = [self.inThread(send, each) for each in (one, other)]
                got = [self.inThread(exactly, each, MANY) for each in (other, one)]
                hold.restore()
                for each in sent:
                    each.result(HANG_SECONDS)
                for each in got:
                    self.assertEqual(each.result(HANG_SECONDS), data)
                self.received(one, other)
                self.exchange(one, other)

    # -- who waits for events

    def test_selected(self) -> None:
        """
        Who waits for events of both ends in other threads, by objects that were registered before, has them
        after the move, too, and once more as long as nobody receives.
        """
        for make in selecting, polling, epolling:
            one, other = self.pair()
            waits = [make(each) for each in (one, other)]
            self.assertEqual([wait(0) for wait in waits], [0, 0])
            found = [self.inThread(wait, HANG_SECONDS) for wait in waits]
            waitUntil(lambda: self.loop.leader and self.loop.followers)
            moves(one)
            waitUntil(lambda one=one, other=other: not (one.sdp or other.sdp))
            self.assertEqual([each.done() for each in found], [False, False])
            for each in one, other:
                each.sendall(DATA)
            self.assertEqual([each.result(HANG_SECONDS) for each in found], [IN, IN], make)
            self.assertEqual([wait(HANG_SECONDS) for wait in waits], [IN, IN])
            for each in one, other:
                self.assertEqual(exactly(each, len(DATA)), DATA)
            self.assertEqual([wait(0) for wait in waits], [0, 0])

    def test_changedMeanwhile(self) -> None:
        """
        What an object of C{epoll} has not waited for yet is modified and unregistered as before, while a
        connection moves and after that.
        """
        for isRead in False, True:
            for act in epoll.modify, lambda made, skt, mask: made.unregister(skt):
                one, other = self.pair()
                made = epoll()
                self.addCleanup(made.close)
                made.register(other, IN)
                one.sendall(DATA)
                self.turns()
                moves(one)
                self.received(one, other)
                one.sendall(DATA)
                if isRead:
                    self.assertEqual(exactly(other, 20), 2 * DATA)
                    self.assertIs(type(other), MovedSocket)
                act(made, other, kernel_select.POLLOUT)
                events = [(other.fileno(), kernel_select.POLLOUT)] if act is epoll.modify else []
                self.assertEqual(made.poll(0), events)
                if not events:
                    self.assertRaises(FileNotFoundError, made.unregister, other)
                    made.register(other, kernel_select.POLLOUT)
                    self.assertEqual(made.poll(0), [(other.fileno(), kernel_select.POLLOUT)])

    def test_oneEvent(self) -> None:
        """
        EPOLLONESHOT: one event for each C{modify}, whether the connection moves before it or after it.
        """
        once = IN | kernel_select.EPOLLONESHOT
        for isSeen in False, True:
            one, other = self.pair()
            made = epoll()
            self.addCleanup(made.close)
            made.register(other, once)
            if isSeen:
                one.sendall(DATA)
                self.assertEqual(made.poll(HANG_SECONDS), [(other.fileno(), IN)])
                self.assertEqual(exactly(other, len(DATA)), DATA)
            moves(one)
            self.received(one, other)
            one.sendall(DATA)
            if not isSeen:
                self.assertEqual(made.poll(HANG_SECONDS), [(other.fileno(), IN)])
            self.assertEqual(made.poll(0), [])
            made.modify(other, once)
            self.assertEqual(made.poll(HANG_SECONDS), [(other.fileno(), IN)])
            self.assertEqual(made.poll(0), [])
            made.unregister(other)
            self.assertRaises(FileNotFoundError, made.unregister, other)

    def test_between(self) -> None:
        """
        An C{epoll} object that another thread asks while the kernel gets a socket back does not take that for
        closed.
        """
        one, other = self.pair()
        made = epoll()
        self.addCleanup(made.close)
        made.register(other, IN)
        self.assertEqual(made.poll(0), [])
        kind, found = type(other), []

        def moved(skt: Any, connection: Any, plain: Any = kind.moved) -> None:
            found.append(made.poll(0))
            plain(skt, connection)

        self.patch(kind, "moved", moved)
        moves(one)
        self.received(one, other)
        self.assertEqual((type(other), found), (MovedSocket, [[]] * len(found)))
        self.assertTrue(found)
        one.sendall(DATA)
        self.assertEqual(made.poll(HANG_SECONDS), [(other.fileno(), IN)])

    def filled(self, skt: Any) -> bytes:
        """
        Send until a socket would block.

        @return: All of it.
        """
        sent = bytearray()
        skt.setblocking(False)
        while True:
            piece = b"%08d" % len(sent) * 1024
            try:
                sent += piece[: skt.send(piece)]
            except BlockingIOError:
                skt.setblocking(True)
                return bytes(sent)

    def test_full(self) -> None:
        """
        An end with bytes that are not in the medium does not ask, and answers once they are there: nothing
        overtakes them.
        """
        one, other = self.pair()
        sent = self.filled(one)
        moves(one)
        self.assertIsNone(one.sdp.move)
        self.assertEqual(exactly(other, len(sent)), sent)
        one, other, hold = self.asked()
        sent = self.filled(other)
        hold.restore()
        kind, looks = type(other.sdp.stream), list[bool]()
        plain = kind.isQuiet
        self.patch(kind, "isQuiet", lambda stream: looks.append(plain(stream)) or looks[-1])
        with self.loop:
            self.loop.wait(lambda: len(looks) > 1, monotonic() + HANG_SECONDS)
        self.assertEqual((looks[:2], other.sdp.sendsByTCP()), ([False, False], False))
        self.assertEqual(exactly(one, len(sent)), sent)
        self.received(one, other)
        self.exchange(one, other)

    def test_partly(self) -> None:
        """
        An end that sends by TCP, with a timeout, also sends what the kernel does not take at once.
        """
        one, other, hold = self.half()
        other.setsockopt(kernel.SOL_SOCKET, kernel.SO_SNDBUF, 4096)
        one.sdp.move.mine.setsockopt(kernel.SOL_SOCKET, kernel.SO_RCVBUF, 4096)
        data = bytes(range(256)) * 200
        sent = self.inThread(other.sendall, data)
        hold.restore()
        self.assertEqual(exactly(one, len(data)), data)
        sent.result(HANG_SECONDS)

    def test_ended(self) -> None:
        """
        A peer that sends no more is not asked.
        """
        one, other = self.pair()
        other.shutdown(kernel.SHUT_WR)
        self.turns(lambda: one.sdp.ended)
        moves(one)
        self.assertIsNone(one.sdp.move)

    def test_emptied(self) -> None:
        """
        Who waits for events after the last of the bytes that came before gets those of the kernel.
        """
        for make in selecting, polling, epolling:
            one, other = self.pair()
            waits = [make(each) for each in (one, other)]
            for each in one, other:
                each.sendall(DATA)
            self.turns()
            moves(one)
            self.received(one, other)
            for each, wait in zip((one, other), waits, strict=True):
                self.assertEqual(wait(HANG_SECONDS), IN)
                self.assertEqual(each.recv(100), DATA)
            for each in one, other:
                each.sendall(DATA)
            self.assertEqual([wait(HANG_SECONDS) for wait in waits], [IN, IN])

    # -- what goes along, and who stays

    def test_unreadBefore(self) -> None:
        """
        An end that has not read what came over SDP peeks at what comes by the kernel behind it, too, and can
        be written to when the kernel says so.
        """
        one, other = self.pair()
        one.sendall(b"HEAD")
        self.assertEqual(other.recv(4, kernel.MSG_PEEK), b"HEAD")
        moves(one)
        self.turns(lambda: type(one) is MovedSocket)
        one.sendall(b"ER")
        one.shutdown(kernel.SHUT_WR)
        for flags in kernel.MSG_PEEK, kernel.MSG_PEEK | kernel.MSG_WAITALL:
            self.assertEqual(other.recv(6, flags), b"HEADER")
        self.assertEqual(other.getsockopt(kernel.IPPROTO_TCP, kernel.TCP_INFO, 1), b"\x08")
        found = files.ioctl(other.fileno(), termios.FIONREAD, bytes(4))
        self.assertEqual(int.from_bytes(found, sys.byteorder), 6)
        poller = poll()
        poller.register(other, kernel_select.POLLOUT)
        inner, around = epoll(), poll()
        self.addCleanup(inner.close)
        inner.register(other, kernel_select.POLLOUT)
        around.register(inner, IN)
        sent = self.filled(other)
        self.assertEqual((select([], [other], [], 0)[1], poller.poll(0), around.poll(0)), ([], [], []))
        waiting = self.inThread(around.poll, HANG_SECONDS * 1000)
        read = self.inThread(exactly, one, len(sent))
        self.assertEqual(poller.poll(HANG_SECONDS * 1000), [(other.fileno(), kernel_select.POLLOUT)])
        self.assertEqual(waiting.result(HANG_SECONDS), [(inner.fileno(), IN)])
        self.assertEqual(read.result(HANG_SECONDS), sent)
        copy = other.dup()
        self.addCleanup(copy.close)
        self.assertEqual([each.recv(9) for each in (other, copy, other)], [b"HEAD", b"ER", b""])
        self.assertEqual([type(each) for each in (other, copy)], [MovedSocket] * 2)

    def test_closeUnread(self) -> None:
        """
        A close with bytes unread that came over SDP is a reset, as over TCP.
        """
        one, other = self.pair()
        one.sendall(DATA)
        self.turns()
        moves(one)
        self.received(one, other)
        other.close()
        self.assertRaises(ConnectionResetError, one.recv, 1)

    def test_file(self) -> None:
        """
        A file of a socket that was made before reads and writes on, what it has read ahead included.
        """
        one, other = self.pair()
        files = [each.makefile("rwb") for each in (one, other)]
        for each in files:
            self.addCleanup(each.close)
            each.write(b"a\nb\n")
            each.flush()
        self.assertEqual([each.readline() for each in files], [b"a\n", b"a\n"])
        moves(one)
        self.received(one, other)
        for each in files:
            each.write(b"c\n")
            each.flush()
        for line in b"b\n", b"c\n":
            self.assertEqual([each.readline() for each in files], [line, line])
        self.assertEqual([type(each) for each in (one, other)], [MovedSocket] * 2)

    def test_options(self) -> None:
        """
        The options and the timeout that a program has set go along; small messages do not wait.
        """
        one, other = self.pair()
        lingers = pack("ii", 1, 7)
        for each in one, other:
            each.setsockopt(kernel.SOL_SOCKET, kernel.SO_KEEPALIVE, 1)
            each.setsockopt(kernel.SOL_SOCKET, kernel.SO_LINGER, lingers)
            each.setsockopt(kernel.IPPROTO_TCP, kernel.TCP_KEEPIDLE, 77)
        one.settimeout(None)
        seconds = HANG_SECONDS / 2
        other.settimeout(seconds)
        inheritable = one.get_inheritable()
        moves(one)
        self.received(one, other)
        self.turns(lambda: not (one.sdp or other.sdp))
        self.assertEqual((one.gettimeout(), other.gettimeout()), (None, seconds))
        self.assertEqual([os.get_blocking(each.fileno()) for each in (one, other)], [True, False])
        self.assertEqual(one.get_inheritable(), inheritable)
        for each in one, other:
            self.assertIs(type(each), MovedSocket)
            self.assertEqual(each.getsockopt(kernel.SOL_SOCKET, kernel.SO_KEEPALIVE), 1)
            self.assertEqual(each.getsockopt(kernel.SOL_SOCKET, kernel.SO_LINGER, 8), lingers)
            self.assertEqual(each.getsockopt(kernel.IPPROTO_TCP, kernel.TCP_KEEPIDLE), 77)
            self.assertEqual(each.getsockopt(kernel.IPPROTO_TCP, kernel.TCP_NODELAY), 1)
        other.settimeout(1e-3)
        self.assertRaises(TimeoutError, other.recv, 1)

    def test_duplicated(self) -> None:
        """
        A duplicate of what has moved has its addresses.
        """
        for each in self.moved():
            copy = each.dup()
            self.addCleanup(copy.close)
            self.assertIs(type(copy), MovedSocket)
            self.assertEqual(copy.getsockname(), each.getsockname())
            self.assertEqual(copy.getpeername(), each.getpeername())

    def test_alone(self) -> None:
        """
        A connection stays with SDP if one of its ends has a duplicate, or another socket of its descriptor,
        or is of a class of a program's, or if there was a fork; both ends go on.
        """

        class Own(offloading.socket):
            __slots__ = ()

        def change(skt: Any) -> None:
            skt.__class__ = Own

        kept: list[Any] = []
        for act in (
            lambda skt: kept.append(skt.dup()),
            lambda skt: kept.append(offloading.socket(fileno=skt.fileno())),
            change,
            lambda skt: setattr(skt.sdp, "forks", -1),
        ):
            for which in 0, 1:
                ends = self.pair()
                act(ends[which])
                for _ in range(2):
                    moves(ends[0])
                    self.turns()
                move = ends[0].sdp.move
                self.assertEqual(move and move.state, State.REFUSED if which else None)
                for each, peer in (ends, ends[::-1]):
                    each.sendall(DATA)
                    self.assertEqual(exactly(peer, len(DATA)), DATA)
                    self.assertIsNotNone(each.sdp)
                    self.assertFalse(each.sdp.sendsByTCP())
                while kept:
                    skt = kept.pop()
                    if skt.fileno() in (ends[0].fileno(), ends[1].fileno()):
                        skt.detach()
                    skt.close()

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """
        Return those of TLS: a client's and a server's.
        """
        path = self.mktemp()
        with open(path, "wb") as file:
            file.write(certificate("localhost").dumpPEM())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return ssl.create_default_context(cafile=path), context

    def secured(self, one: Any, other: Any, waits: bool = True) -> tuple[Any, Any]:
        """
        Begin TLS on both ends, and have them exchange something.

        @param waits: Whether the handshake is a part of that; if not, the server answers afterwards.
        """
        hold = None if waits else self.restless(other)
        clients, servers = self.contexts()
        served = self.inThread(partial(tls.wrap_socket, servers, other, True, waits))
        client: Any = tls.wrap_socket(clients, one, False, waits, server_hostname="localhost")
        self.addCleanup(client.close)
        server = served.result(HANG_SECONDS)
        self.addCleanup(server.close)
        if hold is not None:
            hold.restore()
        shaken = self.inThread(server.do_handshake)
        client.do_handshake()
        shaken.result(HANG_SECONDS)
        for each, peer in ((client, server), (server, client)) * 2:
            each.sendall(DATA)
            self.assertEqual(exactly(peer, len(DATA)), DATA)
        return client, server

    def test_TLS(self) -> None:
        """
        One on which TLS begins moves before its handshake: OpenSSL has the descriptors, which keep their
        addresses; the summary counts it as TCP's, and the next one to the port goes over TCP at once.  A
        record takes none of our functions then: over SDP it takes 37 to receive one
        (L{tests.blocking.test_costs}).
        """
        # Those of other tests may be as many as there may be.
        reason.outcomes.clear()
        one, other = self.pair()
        address = other.getsockname()
        names = [(each.getsockname(), each.getpeername()) for each in (one, other)]
        before = Counter(reason.outcomes)
        ends = self.secured(one, other)
        for each in ends:
            self.assertIsInstance(each, ssl.SSLSocket)
            self.assertFalse(issubclass(type(each), tls.SSLSocket))
        self.assertEqual([(each.getsockname(), each.getpeername()) for each in ends], names)
        calls = called(lambda: (ends[0].sendall(DATA), exactly(ends[1], len(DATA))), PACKAGE)
        self.assertEqual(calls.total(), 0)
        found = Counter(reason.outcomes)
        found.subtract(before)
        self.assertEqual(
            {key: count for key, count in found.items() if count},
            {
                ("sdp", "", ""): -2,
                ("tcp", "tls", ""): 1,
                ("tcp", "moved", ""): 1,
            },
        )
        self.assertEqual(reason.kept[ends[0]].fallback.kind, "tls")
        known = self.loop.reactor.switch.candidates.gainless
        held = known.holds(*address, self.loop.reactor.seconds(), 10.0)
        self.assertEqual(held.kind, "tls")

    def test_TLSBefore(self) -> None:
        """
        One whose TLS begins before it connects moves likewise, and the next one has the kernel's TCP: OpenSSL
        has the descriptor of both.
        """
        # A busy machine's server is late.
        self.patch(moving, "ANSWER_SECONDS", HANG_SECONDS)
        self.loop.reactor.switch.candidates.gainless._ports.clear()
        clients, servers = self.contexts()
        listener = self.server()

        def serve() -> Any:
            made = tls.wrap_socket(servers, listener.accept()[0], True)
            made.sendall(exactly(made, len(DATA)))
            return made

        for _ in range(2):
            served = self.inThread(serve)
            client: Any = tls.wrap_socket(clients, offloading.socket(), server_hostname="localhost")
            self.addCleanup(client.close)
            client.settimeout(HANG_SECONDS)
            client.connect(listener.getsockname())
            client.sendall(DATA)
            self.assertEqual(exactly(client, len(DATA)), DATA)
            server = served.result(HANG_SECONDS)
            self.addCleanup(server.close)
            self.assertEqual(client.getpeername(), server.getsockname())
            self.assertIsNone(client.sdp)
            self.assertNotIsInstance(client._sslobj, tls._Records)
            self.assertEqual(reason.kept[client].fallback.kind, "tls")
            calls = called(lambda of=(client, server): (of[0].send(DATA), exactly(of[1], len(DATA))), PACKAGE)
            self.assertEqual(calls.total(), 0)

    def test_TLSStays(self) -> None:
        """
        It stays where C{timeout short 0} says so, and nothing is learned.
        """
        self.rules("use both server * *:*\nuse both connect * *:*\ntimeout short 0\n")
        one, other = self.pair()
        client, server = self.secured(one, other)
        self.assertEqual([type(each) for each in (client, server)], [tls.SSLSocket] * 2)
        self.assertIsNone(client.sdp.move)
        self.assertEqual(self.loop.reactor.switch.candidates.gainless._ports, {})

    def test_TLSRefused(self) -> None:
        """
        A client whose server refuses to move does not wait for an answer that does not come.
        """
        one, other = self.pair()
        copy = other.dup()
        self.addCleanup(copy.close)
        self.patch(moving, "ANSWER_SECONDS", HANG_SECONDS)
        client, server = self.secured(one, other)
        self.assertIs(client.sdp.move.state, State.REFUSED)
        self.assertIsNotNone(server.sdp)

    def test_TLSLater(self) -> None:
        """
        Where the handshake is not a part of its beginning nothing is waited for: its ends move later, and
        their records go by TCP then.
        """
        one, other = self.pair()
        names = [(each.getsockname(), each.getpeername()) for each in (one, other)]
        ends = self.secured(one, other, False)
        with self.loop:
            self.assertTrue(
                self.loop.wait(lambda: not any(each.sdp for each in ends), monotonic() + HANG_SECONDS)
            )
        for each, peer in ends, ends[::-1]:
            self.assertIsInstance(each, tls.SSLSocket)
            each.sendall(DATA)
            self.assertEqual(exactly(peer, len(DATA)), DATA)
        self.assertEqual([(each.getsockname(), each.getpeername()) for each in ends], names)

    def test_looks(self) -> None:
        """
        Each end lists the descriptors of its process once, however often it tries; nothing is listed for
        what is known to stay.
        """
        listed: list[str] = []
        plain = os.listdir
        self.patch(moving.os, "listdir", lambda path: listed.append(path) or plain(path))
        one, other, hold = self.asked()
        self.turns(count=100)
        self.assertEqual(listed, ["/proc/self/fd"])
        hold.restore()
        self.received(one, other)
        self.assertEqual(listed, ["/proc/self/fd"] * 2)
        one, other = self.pair()
        copy = one.dup()
        self.addCleanup(copy.close)
        moves(one)
        self.assertEqual(len(listed), 2)

    def test_duplicatedMeanwhile(self) -> None:
        """
        An end that is duplicated between the question and the answer cannot move: both see a reset.
        """
        one, other, hold = self.asked()
        copy = one.dup()
        self.addCleanup(copy.close)
        hold.restore()
        self.assertRaises(ConnectionResetError, other.recv, 1)
        self.assertRaises(ConnectionResetError, one.recv, 1)

    def test_copiedMeanwhile(self) -> None:
        """
        A duplicate without a socket, made between the question and the answer, is not looked for: its first
        call fails, and both ends move.
        """
        for call in lambda copy: os.read(copy, 1), lambda copy: os.write(copy, DATA):
            one, other, hold = self.asked()
            copy = os.dup(one.fileno())
            self.addCleanup(os.close, copy)
            hold.restore()
            self.received(one, other)
            self.exchange(one, other)
            self.assertRaises(OSError, call, copy)

    def test_answeredLate(self) -> None:
        """
        An answer to what the end that has asked has closed since: it sees a reset.
        """
        one, _, hold = self.asked()
        with self.loop:
            one.sdp.move.drop()
        hold.restore()
        self.assertRaises(ConnectionResetError, one.recv, 1)

    def test_answeredTwice(self) -> None:
        """
        A peer answers again and again before this end can send by TCP: that breaks SDP, as an answer to no
        question, and what waits is not more for each.
        """
        one, other, _ = self.half()
        waiting = len(self.loop.reactor.getDelayedCalls())
        with self.loop:
            self.assertFalse(one.sdp.stream.suspended(-1))
        self.assertEqual(len(self.loop.reactor.getDelayedCalls()), waiting)
        other.sdp.stream.answerSuspend()
        self.assertRaises(ConnectionResetError, one.recv, 1)

    def test_strangers(self) -> None:
        """
        A stranger that connects to the socket that waits for our own one is sent away; many are an error.
        """
        strangers: list[Any] = []

        class Besieged(moving._socket.socket):
            count = 1

            def listen(self, backlog: int = 0) -> None:
                super().listen(backlog)
                for _ in range(self.count):
                    strangers.append(kernel.create_connection(self.getsockname()))

        self.patch(moving._socket, "socket", Besieged)
        mine, theirs = moving.pairOfTCP()
        with closing(mine), closing(theirs):
            self.assertEqual(theirs.getpeername(), mine.getsockname())
            self.assertEqual(mine.getpeername(), theirs.getsockname())
        Besieged.count = fdpassing._STRANGERS
        self.assertRaises(OSError, moving.pairOfTCP)
        self.assertEqual(len(strangers), 1 + fdpassing._STRANGERS)
        for each in strangers:
            with each:
                self.assertEqual(each.recv(1), b"")


#: Seconds after which who polls for a message sleeps: quieter machines find by polling what comes sooner.
ANSWERS_AFTER = 0.005
#: A client that echoes with pauses until its connection moves, and some times more; each of its messages
#: comes when the server sleeps, and is answered when the client does.
CLIENT = """
import os, sys, time
# On one CPU it would stay with TCP.
os.sched_getaffinity = lambda _: {0, 1}
from twisted_ib import socket
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60)
isOver = connection.sdp is not None
number = more = 0
while more < 20 and number < 2000:
    data = b"%d," % number
    connection.sendall(data)
    assert connection.recv(100) == data
    time.sleep(0.005)
    number += 1
    more += connection.sdp is None
connection.shutdown(socket.SHUT_WR)
assert connection.recv(100) == b""
print(isOver, type(connection).__name__, number)
"""


#: A process that leaves a connection which has moved to its end, behind that of the package's modules.
_LEAVES = """
import os, signal
import twisted_ib
signal.alarm(60)
os.sched_getaffinity = lambda _: {0, 1}
from twisted_ib import socket
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
with client.sdp.loop:
    client.sdp.stream.sleeps()
while client.sdp or server.sdp:
    for one, other in (client, server), (server, client):
        one.sendall(b"x")
        other.recv(1)
"""


class ProcessTests(BlockingTestCase):
    """
    Between two processes.
    """

    def test_left(self) -> None:
        """
        A process that ends without a close of what has moved says nothing.
        """
        child = Popen([sys.executable, "-c", _LEAVES], stderr=PIPE, text=True)
        self.assertEqual(child.communicate(timeout=HANG_SECONDS)[1], "")
        self.assertEqual(child.returncode, 0)

    def test_byItself(self) -> None:
        """
        An echo with pauses before its messages and its answers moves by itself, and nothing is lost.
        """
        self.rules("use both server * *:*\nuse both client * *:*\n")
        listener = self.server()
        child = Popen([sys.executable, "-c", CLIENT, str(listener.getsockname()[1])], stdout=PIPE, text=True)
        self.addCleanup(child.kill)
        other, _ = listener.accept()
        with other:
            other.settimeout(HANG_SECONDS)
            self.assertIsNotNone(other.sdp)
            got = b""
            while data := other.recv(100):
                got += data
                sleep(ANSWERS_AFTER)
                other.sendall(data)
            self.assertIs(type(other), MovedSocket)
        answer, _ = child.communicate(timeout=HANG_SECONDS)
        count = got.count(b",")
        self.assertEqual(answer.split(), ["True", "MovedSocket", str(count)])
        self.assertEqual(got, b"".join(b"%d," % number for number in range(count)))
        self.assertGreaterEqual(count, ASLEEP_MESSAGES_SOON)
