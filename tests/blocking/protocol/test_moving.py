"""
Tests of connections of blocking sockets that go on over TCP: see L{twisted_ib.blocking.connecting}.
"""

from __future__ import annotations

import os
import select as kernel_select
import socket as kernel
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from tests.blocking.case import BlockingTestCase, exactly
from tests.support.descriptors import descriptorsBefore
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.blocking import descriptors
from twisted_ib.blocking.select import poll, select
from twisted_ib.blocking.socket import MovedSocket

DATA = b"0123456789"
MANY = 4 << 20


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
    skt.setblocking(False)
    done = 0
    while done < len(data):
        select([], [skt], [], HANG_SECONDS)
        try:
            done += skt.send(data[done : done + (1 << 18)])
        except BlockingIOError:
            continue
    skt.setblocking(True)


def polled(skt: Any) -> int:
    """
    Return the events of a socket.
    """
    made = poll()
    made.register(skt)
    return dict(made.poll(0)).get(skt.fileno(), 0)


def moves(skt: Any) -> None:
    """
    Have the end of a connection that has connected go on over TCP.
    """
    connection = skt.sdp
    with connection.loop:
        connection.stream.sleeps()


class MovingTests(BlockingTestCase):
    """
    One connection, whose ends are in this process.
    """

    def moved(self) -> tuple[Any, Any]:
        """
        Return two sockets, who connected and who accepted, whose connection has moved.
        """
        one, other = self.pair()
        names = [(each.getsockname(), each.getpeername()) for each in (one, other)]
        moves(one)
        one.sendall(DATA)
        self.assertEqual(exactly(other, len(DATA)), DATA)
        other.sendall(DATA)
        self.assertEqual(exactly(one, len(DATA)), DATA)
        one.sendall(DATA)
        self.assertEqual(exactly(other, len(DATA)), DATA)
        self.assertEqual([type(each) for each in (one, other)], [MovedSocket, MovedSocket])
        self.assertEqual([(each.getsockname(), each.getpeername()) for each in (one, other)], names)
        return one, other

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

    # -- the order of the steps

    def restless(self, skt: Any) -> Any:
        """
        Have an end of a connection wait with its step until C{restore} of what this returns.
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

    def settled(self, *sockets: Any) -> None:
        """
        Drive the loop until sockets have moved.
        """
        with self.loop:
            isOver = self.loop.wait(lambda: not any(each.sdp for each in sockets), monotonic() + HANG_SECONDS)
        self.assertTrue(isOver)
        self.assertEqual({type(each) for each in sockets}, {MovedSocket})

    def inward(self, *sockets: Any) -> None:
        """
        Drive the loop until the kernel has all that is to be received by sockets behind what they have.
        """
        parts = [each.sdp for each in sockets if each.sdp is not None]
        with self.loop:
            isOver = self.loop.wait(lambda: all(each.isInward for each in parts), monotonic() + HANG_SECONDS)
        self.assertTrue(isOver)

    def exchange(self, one: Any, other: Any) -> None:
        """
        Have both ends of what has moved send and receive.
        """
        for each, peer in (one, other), (other, one):
            each.sendall(DATA)
            self.assertEqual(exactly(peer, len(DATA)), DATA)
            self.assertIs(type(peer), MovedSocket)

    def offered(self) -> tuple[Any, Any, Any]:
        """
        Return two sockets, of which the one that has accepted has an offer that it waits with; and what ends
        that.
        """
        one, other = self.pair()
        hold = self.restless(other)
        moves(one)
        self.turns()
        self.assertIsNotNone(one.sdp.stream.connector._given)
        self.assertIsNone(other.sdp.beneath)
        return one, other, hold

    def half(self) -> tuple[Any, Any, Any]:
        """
        Return two sockets, of which the one that has accepted sends by the kernel, and the other one waits.
        """
        one, other = self.pair()
        self.assertIsNot(type(one.sdp.stream), type(other.sdp.stream))
        moves(one)
        hold = self.restless(one)
        self.turns(lambda: other.sdp.beneath)
        self.turns()
        self.assertIsNotNone(other.sdp.beneath)
        self.assertIsNone(one.sdp.beneath)
        return one, other, hold

    def test_sends(self) -> None:
        """
        Both ends send before each step and behind it: all comes in its order.
        """
        for begin in self.offered, self.half:
            one, other, hold = begin()
            for data in b"first", b"second":
                one.sendall(data)
                other.sendall(data)
            hold.restore()
            self.inward(one, other)
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
        for begin in self.offered, self.half:
            for first in 0, 1:
                one, other, hold = begin()
                ends = (one, other) if first == 0 else (other, one)
                ends[0].sendall(DATA)
                ends[0].shutdown(kernel.SHUT_WR)
                self.turns()
                hold.restore()
                part = one.sdp
                with self.loop:
                    # Nobody drives it while the kernel alone is waited for.
                    self.loop.wait(lambda part=part: part.beneath or not part.isFollowed, None)
                self.assertEqual(exactly(ends[1], len(DATA)), DATA)
                self.assertEqual(ends[1].recv(10), b"", (begin, first))
                ends[1].sendall(DATA)
                self.assertEqual(exactly(ends[0], len(DATA)), DATA)
                ends[1].close()
                self.assertEqual(ends[0].recv(10), b"")
                ends[0].close()

    def test_close(self) -> None:
        """
        Either end closes between two steps: its peer gets all that was sent, then the end, and no descriptor
        is left.
        """
        for end in self.pair():
            end.close()
        before = descriptorsBefore()
        for begin in self.offered, self.half:
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
                self.inward(one, other)
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
        ):
            for begin in self.offered, self.half:
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
                self.inward(one, other)
                self.exchange(one, other)
