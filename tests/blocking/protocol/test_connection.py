"""
Tests for L{twisted_ib.blocking.connection}: a connection over a transport that only notes what it is told.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from array import array
from collections.abc import Callable
from functools import partial
from itertools import product
from math import inf
from random import Random
from threading import get_ident
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.blocking.case import BlockingTestCase
from tests.support.calls import requireReplaceable
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.blocking.connection import Connection
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.reactor.loop import EPOLL_EVERY
from twisted_ib.sdp.inbox import Inbox
from twisted_ib.sdp.pendingsends import SendBuffer

RESET, BROKEN, AGAIN, INVALID = errno.ECONNRESET, errno.EPIPE, errno.EAGAIN, errno.EINVAL
UNCONNECTED = errno.ENOTCONN
#: What a connection holds that nobody receives from, and what one send takes.
RECEIVE, SEND = 1048576, 262144
#: What a stream has that is full, by the attribute that holds it.
FULL: dict[str, Any] = {"buffer": SendBuffer(), "written": b"full", "pending": b"full"}


class Stream:
    """
    A transport whose medium always has room, unless a test says otherwise.

    @ivar said: The calls, but for what says nothing of the stream.
    @ivar flushed: How often its device was flushed, and C{rung} its bells were rung.
    """

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.flushed = self.rung = self.thread = 0
        self.reading = True
        self.direct = limits.INLINE_MESSAGE
        self.corked = False
        self.buffer: Any = None
        self.written: Any = None
        self.queuePair = SimpleNamespace(pending=None, path=None)
        device = SimpleNamespace(flush=self.flush, fabric=SimpleNamespace(ringBells=self.ring), closed=False)
        self.channel = SimpleNamespace(device=device)

    def __getattr__(self, name: str) -> Callable[..., None]:
        # All calls that need only be noted.
        return lambda *arguments: self.said.append((name, *arguments))

    def getHost(self) -> Any:
        """
        @return: No address that a socket has.
        """
        return SimpleNamespace(type="TCP", host="192.0.2.1", port=1)

    getPeer = getHost

    def flush(self) -> None:
        """
        Note a flush of the device.
        """
        self.flushed += 1

    def ring(self) -> None:
        """
        Note that the bells were rung.
        """
        self.rung += 1

    def postWritten(self, writers: list[Any]) -> None:
        """
        Note what is written directly, which leaves at once.
        """
        self.said.append(("posted", self.written, writers == [self]))
        self.written = None

    def stopReading(self) -> None:
        """
        Hold the peer back.
        """
        self.reading = False
        self.said.append("stop")

    def startReading(self) -> None:
        """
        Let it go on.
        """
        self.reading = True
        self.said.append("start")

    def unsent(self) -> int:
        """
        @return: the bytes that wait.
        """
        return 7


def data(connection: Connection) -> None:
    """
    Octets arrive.
    """
    connection.dataReceived(b"ab")


def end(connection: Connection) -> None:
    """
    The peer sends no more.
    """
    connection.readConnectionLost()


def shut(connection: Connection) -> None:
    """
    This end sends no more.
    """
    connection.shutdown(socket.SHUT_WR)


def shutRead(connection: Connection) -> None:
    """
    This end reads no more.
    """
    connection.shutdown(socket.SHUT_RD)


def done(connection: Connection) -> None:
    """
    The connection has ended in order.
    """
    connection.connectionLost(Failure(ConnectionDone()))


def aborted(connection: Connection) -> None:
    """
    This end has reset it.
    """
    connection.connectionLost(Failure(ConnectionAborted()))


def lost(connection: Connection) -> None:
    """
    The peer has reset it.
    """
    connection.connectionLost(Failure(ConnectionLost()))


#: What has happened; whether the connection is readable, hung up, closed; its state; two receives of nine
#: octets; a send; SO_ERROR, and again.
STATES: tuple[tuple[Any, ...], ...] = (
    ((), False, False, False, 1, AGAIN, AGAIN, 1, 0),
    ((data,), True, False, False, 1, b"ab", AGAIN, 1, 0),
    ((data, data), True, False, False, 1, b"abab", AGAIN, 1, 0),
    ((end,), True, False, False, 8, b"", b"", 1, 0),
    ((data, end), True, False, False, 8, b"ab", b"", 1, 0),
    ((shut,), False, False, False, 5, AGAIN, AGAIN, BROKEN, 0),
    ((shut, data), True, False, False, 5, b"ab", AGAIN, BROKEN, 0),
    ((shutRead,), True, False, False, 1, b"", b"", 1, 0),
    ((shutRead, data), True, False, False, 1, b"ab", b"", 1, 0),
    ((shut, shutRead), True, True, False, 5, b"", b"", BROKEN, 0),
    ((end, shut), True, True, True, 7, b"", b"", BROKEN, 0),
    ((done,), True, True, True, 7, b"", b"", BROKEN, 0),
    ((aborted,), True, True, True, 7, b"", b"", BROKEN, 0),
    ((lost,), True, True, True, 7, RESET, b"", BROKEN, RESET),
    ((data, lost), True, True, True, 7, b"ab", RESET, BROKEN, RESET),
    ((shut, lost), True, True, True, 7, RESET, b"", BROKEN, RESET),
    ((shutRead, lost), True, True, True, 7, RESET, b"", BROKEN, RESET),
    ((shut, shutRead, data), True, True, False, 5, RESET, b"", BROKEN, RESET),
    ((end, lost), True, True, True, 7, b"", b"", BROKEN, BROKEN),
    ((end, shut, lost), True, True, True, 7, b"", b"", BROKEN, 0),
)


class ConnectionCase(BlockingTestCase):
    """
    Has connections over a L{Stream}.
    """

    def made(self, *happened: Callable[[Connection], None]) -> tuple[Any, Stream]:
        """
        Return a connection to which things have happened, and its transport.
        """
        connection, stream = Connection(self.loop), Stream()
        connection.makeConnection(stream)
        for each in happened:
            each(connection)
        return connection, stream

    def saying(self, call: Any, *arguments: Any) -> Any:
        """
        Return what a call returns, or the number or type of its error.
        """
        try:
            return call(*arguments)
        except OSError as error:
            return error.errno or type(error)
        except (ValueError, TypeError, OverflowError) as error:
            return type(error)

    def later(self, call: Callable[..., Any], *arguments: Any) -> None:
        """
        Have something happen while the loop is driven.
        """
        with self.loop:
            self.loop.reactor.callLater(0, call, *arguments)


class StateTests(ConnectionCase):
    """
    What has happened, and what calls say of it.
    """

    def test_states(self) -> None:
        """
        Conditions, state, receives and the error are those that TCP has.
        """
        for happened, readable, hungUp, closed, state, first, second, _, error in STATES:
            with self.subTest(happened):
                one, _ = self.made(*happened)
                self.assertEqual((one.readable(), one.hungUp(), one.closed()), (readable, hungUp, closed))
                self.assertEqual(one.state(), state)
                self.assertEqual([self.saying(one.receive, 9, 0, 0.0) for _ in range(2)], [first, second])
                one, _ = self.made(*happened)
                self.assertEqual([one.takeError(), one.takeError()], [error, 0])

    def test_peeks(self) -> None:
        """
        MSG_PEEK shows what the receive then returns, and takes nothing but an error.
        """
        for happened, *_, first, second, _, _ in STATES:
            with self.subTest(happened):
                one, _ = self.made(*happened)
                flags = socket.MSG_PEEK
                self.assertEqual(self.saying(one.receive, 9, flags, 0.0), first)
                if first == RESET:
                    first = second
                self.assertEqual(self.saying(one.receive, 9, flags, 0.0), first)
                self.assertEqual(self.saying(one.receive, 9, 0, 0.0), first)

    def test_sends(self) -> None:
        """
        A send says the error that no call has reported, once, and is a broken pipe afterwards.
        """
        for happened, *_, again, error in STATES:
            with self.subTest(happened):
                one, stream = self.made(*happened)
                self.assertTrue(one.writable())
                self.assertEqual(self.saying(one.send, b"x", 0, 0.0), error or again)
                self.assertEqual(self.saying(one.send, b"x", 0, 0.0), again)
                self.assertEqual(self.saying(one.awaitRoom, 0.0), None if again == 1 else BROKEN)
                self.assertEqual(stream.said.count(("write", b"x")), 2 if again == 1 else 0)

    def test_shutdowns(self) -> None:
        """
        The writing side is ended once; a connection of which nothing is left is none.
        """
        for happened, _, _, closed, *_ in STATES:
            with self.subTest(happened):
                one, stream = self.made(*happened)
                before = shut in happened
                for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
                    # Once both ends have said it, nothing is left.
                    isOver = closed or (end in happened and how == socket.SHUT_RDWR)
                    said = self.saying(one.shutdown, how)
                    self.assertEqual(said, UNCONNECTED if isOver else None, how)
                    before = before or (how != socket.SHUT_RD and not closed)
                    self.assertEqual(stream.said.count(("loseWriteConnection",)), int(before), how)
                    self.assertTrue(one.readable() or how == socket.SHUT_WR)

    def test_how(self) -> None:
        """
        What says no side is refused, as a number or as none of C's.
        """
        one, stream = self.made()
        least, most = -(1 << 31), (1 << 31) - 1
        for how in (3, -1, least, most):
            self.assertEqual(self.saying(one.shutdown, how), INVALID, how)
        for how in (least - 1, most + 1):
            self.assertEqual(self.saying(one.shutdown, how), OverflowError, how)
        self.assertEqual(stream.said, [])
        one.shutdown(socket.SHUT_RDWR)
        self.assertEqual((stream.said, stream.flushed), ([("loseWriteConnection",)], 1))
        self.assertEqual(stream.thread, get_ident())

    def test_connectAgain(self) -> None:
        """
        After a connect that did not block the next one succeeds, once.
        """
        one, _ = self.made()
        self.assertEqual(one.connectAgain(), errno.EISCONN)
        one.isNew = True
        self.assertEqual([one.connectAgain() for _ in range(2)], [0, errno.EISCONN])

    def test_closes(self) -> None:
        """
        The last socket closes: in order if all was received, else with a reset, or if that is asked for.
        """
        for happened, isAborted, expected in (
            ((), False, "loseConnection"),
            ((), True, "abortConnection"),
            ((data,), False, "abortConnection"),
            ((lambda one: one.dataReceived(b"x"),), False, "abortConnection"),
            ((end,), False, "loseConnection"),
            ((end,), True, "abortConnection"),
            ((shut,), False, "loseConnection"),
            ((lost,), True, ""),
        ):
            with self.subTest((happened, isAborted)):
                one, stream = self.made(*happened)
                one.sockets = 2
                del stream.said[:]
                arguments = (True,) if isAborted else ()
                one.drop(*arguments)
                self.assertEqual((one.sockets, stream.said), (1, []))
                one.drop(*arguments)
                self.assertEqual(stream.said, [(expected,)] if expected else [])
                self.assertEqual((one.sockets, one.ended), (0, True))
                # What arrives now is nobody's.
                data(one)
                self.assertEqual((one.waiting(), one.closed()), (0, end in happened or lost in happened))
                self.assertEqual(stream.said, [(expected,)] if expected else [])

    def test_closeLooks(self) -> None:
        """
        Octets that the device still has make the close a reset; one of many sockets closes nothing.
        """
        one, stream = self.made()
        self.later(data, one)
        one.drop()
        self.assertEqual(stream.said, [("sayUnread", True), ("abortConnection",)])

    def test_endStarts(self) -> None:
        """
        The end of the stream holds nothing back any more.
        """
        one, stream = self.made()
        data(one)
        stream.stopReading()
        end(one)
        self.assertTrue(stream.reading)

    def test_takeError(self) -> None:
        """
        SO_ERROR is a number or octets.
        """
        one, _ = self.made(end)
        octets = RESET.to_bytes(4, sys.byteorder)
        for length, expected in ((0, RESET), (4, octets), (8, octets), (1, octets[:1])):
            one.lost = RESET
            self.assertEqual((one.takeError(length), one.takeError()), (expected, 0))

    def test_counts(self) -> None:
        """
        FIONREAD is what was not received, SIOCOUTQ what the medium has not taken.
        """
        one, _ = self.made(data, data)
        self.assertEqual((one.waiting(), one.unsent()), (4, 7))
        one.receive(3, 0, 0.0)
        self.assertEqual(one.waiting(), 1)
        lost(one)
        self.assertEqual((one.waiting(), one.unsent()), (1, 0))


class InboxTests(SynchronousTestCase):
    """
    L{Inbox}.
    """

    def test_takes(self) -> None:
        """
        However bytes came and however they are taken, they are the same, in order; to look at them leaves
        them.
        """
        chance = Random(1)
        inbox, left = Inbox(), b""
        for _ in range(2000):
            if left and chance.random() < 0.5:
                size = chance.randrange(20)
                self.assertEqual((inbox.peek(size), inbox.take(size)), (left[:size],) * 2)
                left = left[size:]
            else:
                data = chance.randbytes(chance.randrange(1, 9))
                inbox.pieces.append(data)
                inbox.size += len(data)
                left += data
            self.assertEqual(inbox.size, len(left))
        inbox.clear()
        self.assertEqual((inbox.size, inbox.start, len(inbox.pieces)), (0, 0, 0))


class ReceiveTests(ConnectionCase):
    """
    Octets that arrive, and the receives that take them.
    """

    def test_heldBack(self) -> None:
        """
        The peer is held back at the bound, and goes on once less than half of that is left.
        """
        one, stream = self.made()
        one.dataReceived(bytes(RECEIVE - 1))
        self.assertTrue(stream.reading)
        one.dataReceived(b"x")
        self.assertFalse(stream.reading)
        one.receive(RECEIVE // 2, 0, 0.0)
        self.assertFalse(stream.reading)
        flushed = stream.flushed
        one.receive(1, 0, 0.0)
        self.assertTrue(stream.reading)
        self.assertEqual(stream.flushed, flushed + 1)

    def test_allTaken(self) -> None:
        """
        One receive of all that there is lets the peer go on as well.
        """
        one, stream = self.made()
        one.dataReceived(bytes(RECEIVE))
        self.assertEqual(len(one.receive(RECEIVE, 0, 0.0)), RECEIVE)
        self.assertTrue(stream.reading)
        self.assertEqual(stream.said, [("sayUnread", True), "stop", ("sayUnread", False), "start"])

    def test_sizes(self) -> None:
        """
        A receive takes as much as it may across what has arrived, and counts what it leaves.
        """
        for first, size in product(range(1, 8), range(1, 8)):
            one, _ = self.made()
            for piece in (b"abc", b"d", b"efg"):
                one.dataReceived(piece)
            found, left, asked = [], 7, first
            while left:
                self.assertEqual(one.receive(asked, socket.MSG_PEEK, 0.0), b"abcdefg"[-left:][:asked])
                found.append(one.receive(asked, 0, 0.0))
                self.assertEqual(len(found[-1]), min(asked, left))
                left -= len(found[-1])
                self.assertEqual((one.waiting(), one.readable()), (left, left > 0))
                asked = size
            self.assertEqual(b"".join(found), b"abcdefg")
            self.assertEqual(self.saying(one.receive, size, 0, 0.0), AGAIN)

    def test_unread(self) -> None:
        """
        The transport is told when something is unread, and when nothing is any more, and not in between.
        """
        one, stream = self.made(data, data)
        one.receive(1, 0, 0.0)
        self.assertEqual(stream.said, [("sayUnread", True)])
        one.receive(9, 0, 0.0)
        data(one)
        one.receive(2, 0, 0.0)
        self.assertEqual(stream.said, [("sayUnread", each) for each in (True, False, True, False)])

    def test_awaited(self) -> None:
        """
        A receive that blocks has what arrives meanwhile, of which none is unread; it tells of what it leaves.
        """
        one, stream = self.made()
        self.later(data, one)
        self.assertEqual(one.receive(9, 0, None), b"ab")
        self.assertEqual(stream.said, [])
        self.later(data, one)
        self.assertEqual(one.receive(1, 0, None), b"a")
        self.assertEqual(stream.said, [("sayUnread", True)])
        self.assertEqual(one.receive(9, 0, None), b"b")
        data(one)
        self.assertEqual(stream.said, [("sayUnread", each) for each in (True, False, True)])

    def test_awaitedEnds(self) -> None:
        """
        A receive that blocks, or waits for a time, has the end or the reset that comes meanwhile.
        """
        for happens, expected in ((end, b""), (done, b""), (lost, RESET)):
            for timeout in (None, 100.0):
                for flags in (0, socket.MSG_PEEK, socket.MSG_PEEK | socket.MSG_WAITALL, socket.MSG_WAITALL):
                    with self.subTest((happens, timeout, flags)):
                        one, _ = self.made()
                        self.later(happens, one)
                        self.assertEqual(self.saying(one.receive, 9, flags, timeout), expected)

    def test_waitAll(self) -> None:
        """
        MSG_WAITALL has what arrives in parts, up to the end or a reset, which is told by the next call.
        """
        one, _ = self.made(data)
        for octets in (b"wxyz", b"c", b"def"):
            self.later(one.dataReceived, octets)
        self.assertEqual(one.receive(9, socket.MSG_WAITALL, None), b"abwxyzcde")
        self.assertEqual(one.receive(1, socket.MSG_WAITALL, None), b"f")
        for happens, then in ((end, b""), (lost, RESET)):
            one, _ = self.made(data)
            self.later(data, one)
            self.assertEqual(one.receive(4, socket.MSG_WAITALL, None), b"abab")
            data(one)
            self.later(happens, one)
            self.assertEqual(one.receive(4, socket.MSG_WAITALL, None), b"ab")
            self.assertEqual(self.saying(one.receive, 4, socket.MSG_WAITALL, None), then)

    def test_peekAll(self) -> None:
        """
        MSG_PEEK with MSG_WAITALL waits for all of it, but for no more than the bound; with a timeout it does
        not.
        """
        both = socket.MSG_PEEK | socket.MSG_WAITALL
        one, _ = self.made(data)
        self.later(data, one)
        self.assertEqual(one.receive(4, both, None), b"abab")
        self.assertEqual(one.receive(2, both, None), b"ab")
        self.assertEqual(one.receive(9, both, 100.0), b"abab")
        self.later(one.dataReceived, bytes(RECEIVE - 4))
        self.assertEqual(len(one.receive(RECEIVE + 1, both, None)), RECEIVE)

    def test_looks(self) -> None:
        """
        A look that finds less than it may take, and a receive after the end, see what is there by now.
        """
        one, _ = self.made(data)
        self.later(data, one)
        turns = self.loop.driven.turns
        self.assertEqual(one.receive(2, socket.MSG_PEEK, 0.0), b"ab")
        self.assertEqual(self.loop.driven.turns, turns)
        self.assertEqual(one.receive(3, socket.MSG_PEEK, 0.0), b"aba")
        one, _ = self.made(shutRead)
        self.later(data, one)
        self.assertEqual(one.receive(9, 0, None), b"ab")

    def test_flags(self) -> None:
        """
        Flags that ask for what there is not are refused whatever waits; MSG_DONTWAIT is for who would block.
        """
        for happened in ((), (data,), (end,)):
            for flags, expected in (
                (socket.MSG_OOB, INVALID),
                (socket.MSG_ERRQUEUE, AGAIN),
                (socket.MSG_TRUNC, errno.EOPNOTSUPP),
            ):
                one, _ = self.made(*happened)
                self.assertEqual(self.saying(one.receive, 1, flags, None), expected)
        one, _ = self.made()
        self.assertEqual(self.saying(one.receive, 1, socket.MSG_DONTWAIT, None), AGAIN)
        self.assertEqual(self.saying(one.receive, 1, socket.MSG_DONTWAIT, 0.001), TimeoutError)
        self.assertEqual(self.saying(one.receive, 1, 0, 0.001), TimeoutError)
        self.assertEqual(self.saying(one.receive, -1, 0, 0.0), ValueError)
        self.assertEqual(self.saying(one.receive, 1.0, 0, 0.0), TypeError)
        data(one)
        self.assertEqual(one.receive(1, socket.MSG_DONTWAIT, None), b"a")
        # One that is ignored waits for no more than there is.
        data(one)
        self.later(data, one)
        self.assertEqual(one.receive(4, socket.MSG_EOR, None), b"bab")

    def test_nothing(self) -> None:
        """
        A receive of no octets has none, and leaves them.
        """
        one, _ = self.made(data)
        self.assertEqual([one.receive(0, flags, 0.0) for flags in (0, socket.MSG_PEEK)], [b"", b""])
        self.assertEqual(one.waiting(), 2)

    def test_awaitedAll(self) -> None:
        """
        As much as the bound, all received as it comes, lets the peer go on; so do octets before an end.
        """
        one, stream = self.made()
        self.later(one.dataReceived, bytes(RECEIVE))
        self.assertEqual(len(one.receive(RECEIVE, 0, None)), RECEIVE)
        self.assertEqual(stream.said, ["stop", "start"])
        one, _ = self.made()
        self.later(lambda: (data(one), done(one)))
        self.assertEqual([one.receive(9, 0, None), one.receive(9, 0, None)], [b"ab", b""])

    def test_turns(self) -> None:
        """
        A wait with a timeout, or without one, takes as many turns as there are before what it waits for.
        """
        for timeout in (None, 100.0):
            for flags in (0, socket.MSG_PEEK, socket.MSG_WAITALL):
                one, _ = self.made()
                self.later(self.later, self.later, data, one)
                self.assertEqual(one.receive(2, flags, timeout), b"ab")

    def test_marked(self) -> None:
        """
        Where a program has said that a descriptor does not block, a socket without a timeout does not.
        """
        descriptors = os.pipe()
        for each in descriptors:
            self.addCleanup(os.close, each)
        os.set_blocking(descriptors[1], False)
        for descriptor, isMarked, blocks in (
            (descriptors[0], True, True),
            (descriptors[1], True, False),
            (descriptors[1], False, True),
            (-1, True, True),
        ):
            one, stream = self.made()
            one.descriptor, one.isMarked = descriptor, isMarked
            self.assertEqual(self.saying(one.receive, 9, 0, 0.001), TimeoutError)
            self.assertEqual(self.saying(one.receive, 9, 0, 0.0), AGAIN)
            if blocks:
                self.later(self.later, data, one)
            self.assertEqual(self.saying(one.receive, 9, 0, None), b"ab" if blocks else AGAIN)
            self.assertEqual(one.send(bytes(SEND + 1), 0, None), SEND + 1 if blocks else SEND)
            stream.buffer = FULL["buffer"]
            for call in (one.send, one.sendAll):
                if blocks:
                    self.later(self.later, setattr, stream, "buffer", None)
                done = 1 if call == one.send else None
                self.assertEqual(self.saying(call, b"x", 0, None), done if blocks else AGAIN)
                stream.buffer = FULL["buffer"]
                self.assertEqual(self.saying(call, b"x", 0, 0.001), TimeoutError)
            stream.buffer = None
            stream.write = lambda octets, stream=stream: setattr(stream, "buffer", FULL["buffer"])  # type: ignore[method-assign,misc]
            if blocks:
                self.later(self.later, setattr, stream, "buffer", None)
            self.assertIsNone(one.sendAll(b"x", 0, None))
            self.assertIs(one.writable(), blocks)

    def test_threads(self) -> None:
        """
        The devices belong to the thread that receives or sends.
        """
        one, _ = self.made(data)
        self.loop.poll()
        calls: tuple[Callable[[], Any], ...] = (
            lambda: one.receive(1, 0, 0.0),
            lambda: one.send(b"x", 0, 0.0),
            lambda: one.sendDirect(b"x", 0.0),
            lambda: one.shutdown(socket.SHUT_WR),
        )
        for call in calls:
            with self.loop:
                self.loop.poll()
                self.assertEqual(self.loop.owner, get_ident())
            owner, caller = self.inThread(
                lambda call=call: (call(), self.loop.owner, get_ident())[1:]
            ).result()
            self.assertEqual(owner, caller)


class SendTests(ConnectionCase):
    """
    What is written to the transport.
    """

    def written(self, stream: Stream) -> list[Any]:
        """
        Return what was written.
        """
        return [each[1] for each in stream.said if each[0] == "write"]

    def test_sizes(self) -> None:
        """
        One that may not block takes the bound at most, one that blocks all of it, in parts.
        """
        for form in (bytes, bytearray, memoryview):
            for size, taken in ((0, 0), (SEND, SEND), (SEND + 1, SEND), (3 * SEND, SEND)):
                for flags, timeout in ((0, 0.0), (0, 100.0), (socket.MSG_DONTWAIT, None)):
                    one, stream = self.made()
                    self.assertEqual(one.send(form(bytes(size)), flags, timeout), taken)
                    self.assertEqual(list(map(len, self.written(stream))), [taken])
                    # The program may change its buffer afterwards.
                    self.assertEqual({type(each) for each in self.written(stream)}, {bytes})
                    self.assertEqual((stream.flushed, stream.thread), (1, get_ident()))
                one, stream = self.made()
                self.assertEqual(one.send(form(bytes(size)), 0, None), size)
                self.assertEqual(sum(map(len, self.written(stream))), size)
                self.assertLessEqual(max(map(len, self.written(stream))), SEND)
                one, stream = self.made()
                self.assertIsNone(one.sendAll(form(bytes(size)), 0, 100.0))
                self.assertEqual(sum(map(len, self.written(stream))), size)

    def test_items(self) -> None:
        """
        What counts is octets, not the items of a buffer.
        """
        one, stream = self.made()
        numbers = array("i", bytes(2 * SEND))
        self.assertEqual(one.send(numbers, 0, None), 2 * SEND)
        self.assertIsNone(one.sendAll(numbers, 0, None))
        self.assertEqual(list(map(len, self.written(stream))), [SEND] * 4)

    def test_order(self) -> None:
        """
        The parts of what is sent are all of it, in order.
        """
        octets = bytes(range(256)) * (SEND // 256 * 2) + b"end"
        for call in ("send", "sendAll"):
            one, stream = self.made()
            getattr(one, call)(octets, 0, None)
            self.assertEqual(b"".join(self.written(stream)), octets)

    def test_urgent(self) -> None:
        """
        The last octet of what is sent with MSG_OOB is urgent, if there is one.
        """
        one, stream = self.made()
        self.assertEqual(one.send(b"abc", socket.MSG_OOB, 0.0), 3)
        self.assertEqual(one.send(b"", socket.MSG_OOB, 0.0), 0)
        self.assertEqual(stream.said, [("write", b"ab"), ("sendUrgent", b"c"), ("write", b"")])

    def test_flags(self) -> None:
        """
        MSG_ZEROCOPY and MSG_FASTOPEN are refused, others are ignored, as TCP does it.
        """
        one, stream = self.made()
        for number in range(32):
            flags = 1 << number
            refused = flags in (0x4000000, 0x20000000)
            self.assertEqual(self.saying(one.send, b"x", flags, 0.0), errno.EOPNOTSUPP if refused else 1)
        self.assertEqual(len([each for each in stream.said if each != ("write", b"")]), 30)

    def test_full(self) -> None:
        """
        With no room a send waits: not at all, for its time, or until there is room or the connection ends.
        """
        for what in ("buffer", "written", "pending"):
            one, stream = self.made()
            where: Any = stream.queuePair if what == "pending" else stream
            setattr(where, what, FULL[what])
            self.assertFalse(one.writable())
            self.assertEqual(self.saying(one.send, b"x", 0, 0.0), AGAIN)
            self.assertEqual(self.saying(one.send, b"x", socket.MSG_DONTWAIT, None), AGAIN)
            for flags in (0, socket.MSG_DONTWAIT):
                self.assertEqual(self.saying(one.send, b"x", flags, 0.001), TimeoutError)
            self.assertEqual(self.saying(one.awaitRoom, 0.0), AGAIN)
            self.assertEqual(self.saying(one.awaitRoom, 0.001), TimeoutError)
            self.assertEqual(self.written(stream), [])
            for timeout in (None, 100.0):
                setattr(where, what, FULL[what])
                self.later(self.later, setattr, where, what, None)
                # A flag that is ignored, or does not count, has it wait as well.
                flags = socket.MSG_EOR if timeout is None else socket.MSG_DONTWAIT
                self.assertEqual(one.send(b"x", flags, timeout), 1)
                setattr(where, what, FULL[what])
                self.later(self.later, setattr, where, what, None)
                self.assertIsNone(one.awaitRoom(timeout))
            self.assertEqual(self.written(stream), [b"x", b"x"])
            for happens, expected in ((lost, RESET), (done, BROKEN)):
                for call, *arguments in (("send", b"x", 0), ("awaitRoom",)):
                    one, stream = self.made()
                    (stream.queuePair if what == "pending" else stream).__dict__[what] = FULL[what]
                    self.later(happens, one)
                    self.assertEqual(self.saying(getattr(one, call), *arguments, None), expected)

    def test_allFull(self) -> None:
        """
        C{sendall} waits for the medium to take it, for its timeout, or not at all.
        """
        one, stream = self.made()
        stream.write = lambda octets: setattr(stream, "buffer", FULL["buffer"])  # type: ignore[method-assign]
        self.assertIsNone(one.sendAll(b"x", 0, 0.0))
        self.assertFalse(one.writable())
        stream.buffer = None
        self.assertEqual(self.saying(one.sendAll, b"x", 0, 0.001), TimeoutError)
        stream.buffer = None
        self.assertEqual(self.saying(one.sendAll, bytearray(b"x"), 0, 0.001), TimeoutError)
        for octets in (b"x", bytearray(b"x")):
            stream.buffer = None
            self.later(self.later, setattr, stream, "buffer", None)
            self.assertIsNone(one.sendAll(octets, 0, None))
            self.assertTrue(one.writable())

    def test_lostAmid(self) -> None:
        """
        A connection that is lost amid a C{send} returns what was taken; the next call says why.
        """
        for how, number in ((ConnectionLost, RESET), (ConnectionDone, BROKEN)):
            one, stream = self.made()
            stream.write = lambda octets, one=one, how=how: one.connectionLost(  # type: ignore[method-assign]
                Failure(how())
            )
            self.assertEqual(self.saying(one.send, bytes(3 * SEND), 0, None), SEND)
            self.assertEqual([self.saying(one.send, b"x", 0, None) for _ in range(2)], [number, BROKEN])
            one, stream = self.made(lambda one, how=how: one.connectionLost(Failure(how())))
            self.assertEqual(self.saying(one.sendAll, bytes(3 * SEND), 0, None), number)

        one, stream = self.made()

        def handle(octets: bytes) -> None:
            # As the handler of a signal does.
            stream.write = Mock(side_effect=TimeoutError)  # type: ignore[method-assign]

        stream.write = handle  # type: ignore[method-assign]
        self.assertIs(self.saying(one.send, bytes(3 * SEND), 0, None), TimeoutError)

    def test_limitOfAll(self) -> None:
        """
        SO_SNDTIMEO is the time of a whole C{send}, whose many pieces wait, and of each part of C{sendall}.
        """
        requireReplaceable(BlockingLoop, "wait")
        one, stream = self.made()
        one.limit(True, HANG_SECONDS)
        stream.write = lambda octets: setattr(stream, "buffer", FULL["buffer"])  # type: ignore[method-assign]
        deadlines: list[Any] = []

        def wait(ready: object, deadline: float | None = None, kernel: object = None) -> bool:
            deadlines.append(deadline)
            stream.buffer = None
            return len(deadlines) % 3 > 0

        self.patch(self.loop, "wait", wait)
        self.assertEqual(one.send(bytes(5 * SEND), 0, None), 3 * SEND)
        self.assertEqual((len(deadlines), len(set(deadlines))), (3, 1))
        self.assertEqual(self.saying(one.sendAll, bytes(5 * SEND), 0, None), AGAIN)
        self.assertEqual((len(deadlines), len(set(deadlines))), (6, 4))

    def test_late(self) -> None:
        """
        What takes longer than its timeout in many parts is a timeout; in one part it is sent.
        """
        for octets, expected in ((bytes(SEND), None), (bytes(SEND + 1), TimeoutError)):
            one, stream = self.made()
            self.assertEqual(self.saying(one.sendAll, memoryview(octets), 0, 1e-9), expected)
            self.assertEqual(list(map(len, self.written(stream))), [SEND])

    def test_gone(self) -> None:
        """
        Of two sends with nothing between the second sees that the peer has gone.
        """
        one, _ = self.made()
        self.loop.poll()
        self.assertEqual(one.send(b"x", 0, 0.0), 1)
        self.later(lost, one)
        self.assertEqual(self.saying(one.send, b"x", 0, 0.0), RESET)

    def test_direct(self) -> None:
        """
        What the medium can have at once is posted; what is in the way of that leaves it to the other calls.
        """
        inTheWay: dict[str, Callable[[Any, Stream], object]] = {
            "nothing": lambda one, stream: None,
            "not direct": lambda one, stream: setattr(stream, "direct", 0),
            "written": lambda one, stream: setattr(stream, "written", b"before"),
            "pending": lambda one, stream: setattr(stream.queuePair, "pending", b"before"),
            "marked": lambda one, stream: setattr(one, "isMarked", True),
            "over": lambda one, stream: done(one),
            "shut": lambda one, stream: shut(one),
            "sent": lambda one, stream: one.send(b"before", 0, 0.0),
        }
        for name, spoil in inTheWay.items():
            with self.subTest(name):
                one, stream = self.made()
                self.loop.poll()
                spoil(one, stream)
                del stream.said[:]
                flushed = stream.flushed
                self.assertIs(one.sendDirect(b"abc", 0.0), name == "nothing")
                posted = [("posted", b"abc", True)] if name == "nothing" else []
                self.assertEqual((stream.said, stream.rung), (posted, len(posted)))
                self.assertEqual(stream.flushed, flushed)
                # Not twice without a turn between.
                self.assertFalse(one.sendDirect(b"abc", 0.0))
        for octets in (b"", bytearray(b"abc"), bytes(SEND + 1), bytes(SEND)):
            one, stream = self.made()
            self.loop.poll()
            self.assertIs(one.sendDirect(octets, 0.0), len(octets) == SEND)

    def test_directInSuccession(self) -> None:
        """
        Before one more message, to a peer that answers none, the devices have what has come, and all else is
        asked for now and then: by turns, and by the clock.
        """
        served: list[None] = []
        happens: list[Callable[[Connection], object]] = []
        one, stream = self.made()
        stream.queuePair.path = SimpleNamespace(peerSleep=[0], pending=lambda: bool(happens))
        self.loop.poll()
        self.loop.driven.turns = 0

        def progress() -> None:
            served.append(None)
            happens.pop()(one)

        self.patch(self.loop.reactor, "_channels", (SimpleNamespace(progress=progress),))
        self.patch(self.loop.reactor, "_askAt", inf)
        for _ in range(EPOLL_EVERY - 1):
            self.assertTrue(one.sendDirect(b"x", 0.0))
        self.assertFalse(one.sendDirect(b"x", 0.0))
        self.loop.driven.turns += 1
        self.assertTrue(one.sendDirect(b"x", 0.0))
        happens.append(data)
        self.assertTrue(one.sendDirect(b"x", 0.0))
        self.assertEqual((len(served), one.inbox.size), (1, 2))
        self.patch(self.loop.reactor, "_askAt", 0.0)
        self.assertFalse(one.sendDirect(b"x", 0.0))
        self.patch(self.loop.reactor, "_askAt", inf)
        for event in (lambda each: setattr(stream.queuePair, "pending", b"x"), lost):
            happens.append(event)
            one.turns = self.loop.driven.turns
            self.assertFalse(one.sendDirect(b"x", 0.0))
            self.assertFalse(self.loop.inside)
            stream.queuePair.pending = None

    def test_directLong(self) -> None:
        """
        What does not fit into one message is not posted as one: the stream cuts it.
        """
        for octets in (bytes(limits.INLINE_MESSAGE), bytes(limits.INLINE_MESSAGE + 1)):
            one, stream = self.made()
            self.loop.poll()
            del stream.said[:]
            self.assertTrue(one.sendDirect(octets, 0.0))
            self.assertEqual(stream.said[0][0], "posted" if len(octets) <= stream.direct else "send")

    def test_directAlert(self) -> None:
        """
        A peer that sleeps is woken before the message is posted, and no other.
        """
        for sleep, said in ((0, ["posted"]), (1, ["alert", "posted"])):
            one, stream = self.made()
            alert = partial(stream.said.append, ("alert",))
            stream.queuePair.path = SimpleNamespace(peerSleep=[sleep], alert=alert)
            self.loop.poll()
            del stream.said[:]
            self.assertTrue(one.sendDirect(b"abc", 0.0))
            self.assertEqual([each[0] for each in stream.said], said)

    def test_directFull(self) -> None:
        """
        What was posted and has no room after all is waited for, as long as the timeout says.
        """
        for corked in (False, True):
            one, stream = self.made()

            def post(writers: Any, stream: Stream = stream, corked: bool = corked) -> None:
                stream.written, stream.corked = None, corked
                stream.queuePair.pending = None if corked else b"rest"

            def free(stream: Stream = stream) -> None:
                stream.queuePair.pending, stream.corked = None, False

            stream.postWritten = post  # type: ignore[method-assign]
            self.loop.poll()
            self.assertTrue(one.sendDirect(b"x", 0.0))
            self.assertEqual((stream.flushed, stream.rung), (int(corked), int(not corked)))
            if not corked:
                free()
                self.loop.poll()
                self.assertEqual(self.saying(one.sendDirect, b"x", 0.001), TimeoutError)
                free()
                self.loop.poll()
                self.later(free)
                self.assertTrue(one.sendDirect(b"x", None))
                self.assertTrue(one.writable())
