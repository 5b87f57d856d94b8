"""
Tests of L{twisted_ib.rds.protocol.streammachine} and L{twisted_ib.rds.protocol.frames}: one end of a stream,
frame by frame.
"""

from __future__ import annotations

from typing import Any, ClassVar

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from twisted_ib import limits
from twisted_ib.rds.media.rcconnection import RDS_FRAGMENT
from twisted_ib.rds.protocol import streammachine
from twisted_ib.rds.protocol.frames import HEADER, HEADER_BYTES, MAGIC, VERSION, EndReason, FrameKind, frame
from twisted_ib.rds.protocol.streammachine import TRANSITIONS, StreamEvent, StreamMachine, StreamState

WINDOW = streammachine.RDS_STREAM_WINDOW
PEER = ("192.0.2.1", 4000)
#: Our number and the peer's.
OURS, THEIRS = 0x1122334455667788, 0x99AABBCCDDEEFF00


class Owner:
    """
    Stands for the table.
    """

    held = 0


def fields(data: bytes | None) -> tuple[FrameKind, int, int, int, int, bytes]:
    """
    @return: Kind, reason, session, offset, window and data of a frame.
    """
    assert data is not None
    magic, version, kind, reason, number, offset, window = HEADER.unpack_from(data)
    assert (magic, version) == (MAGIC, VERSION)
    return FrameKind(kind), reason, number, offset, window, data[HEADER_BYTES:]


def kinds(session: StreamMachine) -> list[FrameKind]:
    """
    @return: The kinds of all frames that a session sends now.
    """
    found = []
    while (data := session.nextOutput()) is not None:
        found.append(fields(data)[0])
    return found


class SessionTestCase(SynchronousTestCase):
    """
    One session.
    """

    def setUp(self) -> None:
        """
        There is none yet.
        """
        self.owner = Owner()

    def opening(self) -> StreamMachine:
        """
        @return: A session whose OPEN has left.
        """
        session = StreamMachine(self.owner, PEER, OURS)
        session.open(0.0)
        session.nextOutput()
        return session

    def asked(self) -> StreamMachine:
        """
        @return: A session that the peer asked for.
        """
        session = StreamMachine(self.owner, PEER, OURS)
        session.asked(THEIRS, 1000)
        return session

    def connected(self, window: int = 1000) -> StreamMachine:
        """
        @return: A session with a peer that takes C{window} bytes.
        """
        session = self.opening()
        self.say(session, FrameKind.ACCEPT, offset=THEIRS, window=window)
        session.events.clear()
        return session

    def closed(self) -> StreamMachine:
        """
        @return: A session that is over, and has said so.
        """
        session = self.connected()
        session.abort()
        session.nextOutput()
        session.events.clear()
        return session

    def say(
        self,
        session: StreamMachine,
        kind: int,
        offset: int = 0,
        window: int = 0,
        data: bytes = b"",
        reason: int = 0,
    ) -> None:
        """
        The peer sends a frame.
        """
        session.received(kind, reason, offset, window, bytes(HEADER_BYTES) + data, HEADER_BYTES)


class FrameTests(SessionTestCase):
    """
    Frames, octet by octet.
    """

    def test_open(self) -> None:
        """
        OPEN has the sender's number and window.
        """
        session = StreamMachine(self.owner, PEER, OURS)
        session.open(0.0)
        expected = "52645374 01 01 0000 1122334455667788 0000000000000000 0000000000080000"
        self.assertEqual(session.nextOutput(), bytes.fromhex(expected))
        self.assertIsNone(session.nextOutput())

    def test_accept(self) -> None:
        """
        ACCEPT has both numbers.
        """
        session = self.asked()
        session.accept()
        expected = "52645374 01 02 0000 99aabbccddeeff00 1122334455667788 0000000000080000"
        self.assertEqual(session.nextOutput(), bytes.fromhex(expected))

    def test_refuse(self) -> None:
        """
        REFUSE says why.
        """
        session = self.asked()
        session.refuse(EndReason.UNWANTED)
        expected = "52645374 01 03 0003 99aabbccddeeff00 0000000000000000 0000000000000000"
        self.assertEqual(session.nextOutput(), bytes.fromhex(expected))
        self.assertIs(session.state, StreamState.CLOSED)

    def test_data(self) -> None:
        """
        DATA says where it belongs, and how far the peer may go.
        """
        session = self.connected()
        session.write(b"abc")
        expected = "52645374 01 04 0000 99aabbccddeeff00 0000000000000000 0000000000080000 616263"
        self.assertEqual(session.nextOutput(), bytes.fromhex(expected))
        self.say(session, FrameKind.DATA, data=b"12345")
        session.take()
        session.write(b"d")
        expected = "52645374 01 04 0000 99aabbccddeeff00 0000000000000003 0000000000080005 64"
        self.assertEqual(session.nextOutput(), bytes.fromhex(expected))

    def test_ends(self) -> None:
        """
        FIN and CLOSE have the position behind the last byte, RESET a reason.
        """
        session = self.connected()
        session.write(b"abc")
        session.finish()
        session.nextOutput()
        expected = "52645374 01 07 0000 99aabbccddeeff00 0000000000000003 0000000000080000"
        self.assertEqual(session.nextOutput(), bytes.fromhex(expected))
        session.close()
        expected = "52645374 01 08 0000 99aabbccddeeff00 0000000000000003 0000000000080000"
        self.assertEqual(session.nextOutput(), bytes.fromhex(expected))
        session.abort()
        expected = "52645374 01 09 0005 99aabbccddeeff00 0000000000000000 0000000000000000"
        self.assertEqual(session.nextOutput(), bytes.fromhex(expected))
        self.assertIsNone(session.nextOutput())

    def test_frame(self) -> None:
        """
        All frames without data are made by one function.
        """
        expected = "52645374 01 0a 0002 0000000000000001 0000000000000003 0000000000000004"
        self.assertEqual(frame(10, 1, 3, 4, 2), bytes.fromhex(expected))


class EveryInputTests(MachineTestsMixin, SessionTestCase):
    """
    Each state with each kind of frame.
    """

    #: The effect of a valid frame: the next state, the first event, and the answer.
    VIOLATED = (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.VIOLATION), [FrameKind.RESET])
    UNTOLD = (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.VIOLATION), [])
    NOTHING = None
    EXPECTED = {
        "opening": {
            FrameKind.OPEN: UNTOLD,
            FrameKind.ACCEPT: (StreamState.OPEN, (StreamEvent.CONNECTED, 0), []),
            FrameKind.REFUSE: (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.UNWANTED), []),
            FrameKind.DATA: UNTOLD,
            FrameKind.WINDOW: UNTOLD,
            FrameKind.PROBE: UNTOLD,
            FrameKind.FIN: UNTOLD,
            FrameKind.CLOSE: UNTOLD,
            FrameKind.RESET: (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.UNWANTED), []),
            FrameKind.GONE: (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.GONE), []),
        },
        "asked": {
            FrameKind.OPEN: (StreamState.ASKED, None, []),
            FrameKind.ACCEPT: VIOLATED,
            FrameKind.REFUSE: VIOLATED,
            FrameKind.DATA: VIOLATED,
            FrameKind.WINDOW: VIOLATED,
            FrameKind.PROBE: VIOLATED,
            FrameKind.FIN: VIOLATED,
            FrameKind.CLOSE: VIOLATED,
            FrameKind.RESET: (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.UNWANTED), []),
            FrameKind.GONE: (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.GONE), []),
        },
        "connected": {
            FrameKind.OPEN: (StreamState.OPEN, None, [FrameKind.ACCEPT]),
            FrameKind.ACCEPT: VIOLATED,  # Of another number: see test_acceptedAgain.
            FrameKind.REFUSE: VIOLATED,
            FrameKind.DATA: (StreamState.OPEN, None, []),
            FrameKind.WINDOW: (StreamState.OPEN, None, []),
            FrameKind.PROBE: (StreamState.OPEN, None, [FrameKind.WINDOW]),
            FrameKind.FIN: (StreamState.OPEN, (StreamEvent.END, 0), []),
            FrameKind.CLOSE: (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.NONE), [FrameKind.CLOSE]),
            FrameKind.RESET: (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.UNWANTED), []),
            FrameKind.GONE: (StreamState.CLOSED, (StreamEvent.CLOSED, EndReason.GONE), []),
        },
        "closed": {kind: (StreamState.CLOSED, None, []) for kind in FrameKind},
    }

    machine = TRANSITIONS
    stateType, inputType = StreamState, FrameKind
    # The actions know the next state; and data in order are not in the table.
    begins, ends, unused = tuple(StreamState), (None,), (FrameKind.DATA,)
    names: ClassVar = dict(zip(StreamState, EXPECTED, strict=True))

    def split(self, follows: Any) -> tuple[None, Any]:
        """
        There is an action only.
        """
        return None, follows

    def check(self, state: StreamState, kind: FrameKind) -> None:
        """
        A frame does what is above.
        """
        name = self.names[state]
        after, event, said = self.EXPECTED[name][kind]
        session: StreamMachine = getattr(self, name)()
        data = b"x" if kind is FrameKind.DATA else b""
        self.say(session, kind, data=data, reason=EndReason.UNWANTED)
        found = session.events.popleft() if session.events else None
        self.assertEqual((session.state, found), (after, event), (name, kind))
        self.assertEqual(kinds(session), said, (name, kind))
        self.assertFalse(session.events)

    def test_unknownKinds(self) -> None:
        """
        A kind that there is not breaks the rules in every state but the last.
        """
        for kind in (0, 11, 255):
            for name in ("opening", "asked", "connected"):
                session: StreamMachine = getattr(self, name)()
                self.say(session, kind)
                self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.VIOLATION)])
            session = self.closed()
            self.say(session, kind)
            self.assertFalse(session.events)

    def test_afterTheEnd(self) -> None:
        """
        After a FIN there is no more data and no second FIN; all else goes on.
        """
        for kind in (FrameKind.DATA, FrameKind.FIN):
            session = self.connected()
            self.say(session, FrameKind.FIN)
            self.say(session, kind, data=b"x")
            self.assertEqual(session.events[-1], (StreamEvent.CLOSED, EndReason.VIOLATION))
        session = self.connected()
        self.say(session, FrameKind.FIN)
        self.say(session, FrameKind.PROBE)
        self.say(session, FrameKind.WINDOW, window=2000)
        session.write(bytes(2000))
        self.assertEqual(kinds(session), [FrameKind.DATA])
        self.say(session, FrameKind.CLOSE)
        self.assertEqual(session.events[-1], (StreamEvent.CLOSED, EndReason.NONE))

    def test_acceptedAgain(self) -> None:
        """
        The answer to a repeated OPEN says nothing new.
        """
        session = self.connected()
        self.say(session, FrameKind.ACCEPT, offset=THEIRS, window=1000)
        self.assertEqual((session.state, list(session.events)), (StreamState.OPEN, []))

    def test_positions(self) -> None:
        """
        A frame with a wrong position shows that a message was lost.
        """
        for kind in (FrameKind.DATA, FrameKind.WINDOW, FrameKind.PROBE, FrameKind.FIN, FrameKind.CLOSE):
            for offset in (0, 2, 4, 1 << 63):
                session = self.connected()
                self.say(session, FrameKind.DATA, data=b"abc")
                self.say(session, kind, offset=offset, data=b"x" if kind is FrameKind.DATA else b"")
                self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.DATA_LOST)])
                self.assertEqual(kinds(session), [FrameKind.RESET])

    def test_beyondTheWindow(self) -> None:
        """
        A byte more than was granted, or none, breaks the rules.
        """
        session = self.connected()
        self.say(session, FrameKind.DATA, data=bytes(WINDOW))
        self.assertEqual(session.state, StreamState.OPEN)
        self.say(session, FrameKind.DATA, offset=WINDOW, data=b"x")
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.VIOLATION)])
        self.assertEqual((session.arrivedBytes, self.owner.held), (0, 0))
        session = self.connected()
        self.say(session, FrameKind.DATA)
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.VIOLATION)])

    def test_whatSaysWhyHasAReason(self) -> None:
        """
        A RESET or REFUSE without a reason is not an end in order.
        """
        session = self.connected()
        self.say(session, FrameKind.RESET)
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.ABORTED)])
        session = self.opening()
        self.say(session, FrameKind.REFUSE, reason=777)
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, 777)])


class SendingTests(SessionTestCase):
    """
    Data is sent as the window permits.
    """

    def test_window(self) -> None:
        """
        No more is sent than the peer takes, and the rest when it takes more.
        """
        session = self.connected(4)
        session.write(b"abcdef")
        self.assertEqual(fields(session.nextOutput())[5], b"abcd")
        self.assertFalse(session.hasOutput())
        self.assertIsNone(session.nextOutput())
        self.assertEqual(session.queuedBytes, 2)
        self.say(session, FrameKind.WINDOW, window=3)  # It does not shrink.
        self.assertIsNone(session.nextOutput())
        self.say(session, FrameKind.DATA, data=b"x", window=5)
        self.assertEqual(fields(session.nextOutput())[3::2], (4, b"e"))
        self.say(session, FrameKind.PROBE, offset=1, window=1 << 64 - 1)
        self.assertEqual(fields(session.nextOutput())[3::2], (5, b"f"))
        self.assertEqual(session.queuedBytes, 0)

    def test_segments(self) -> None:
        """
        Long writes are cut, short ones put together; positions follow.
        """
        segment = streammachine.RDS_SEGMENT
        session = self.connected(1 << 40)
        parts = [b"a" * 10, b"b" * (2 * segment), b"c" * segment, b"d", b"e" * (segment - 11)]
        for part in parts:
            session.write(part)
        whole = b"".join(parts)
        self.assertEqual(session.queuedBytes, len(whole))
        position = 0
        while (data := session.nextOutput()) is not None:
            kind, _, _, offset, _, payload = fields(data)
            self.assertEqual((kind, offset), (FrameKind.DATA, position))
            self.assertEqual(payload, whole[position : position + segment])
            position += len(payload)
        self.assertEqual((position, session.queuedBytes), (len(whole), 0))

    def test_exact(self) -> None:
        """
        A write of just a segment is one frame, and that one fragment between processes of a host.
        """
        session = self.connected(1 << 40)
        session.write(bytes(streammachine.RDS_SEGMENT))
        session.write(b"x")
        frames = [session.nextOutput() for _ in "12"]
        self.assertEqual([len(fields(each)[5]) for each in frames], [streammachine.RDS_SEGMENT, 1])
        self.assertEqual(len(frames[0]), RDS_FRAGMENT)

    def test_nothing(self) -> None:
        """
        No bytes are no frame.
        """
        session = self.connected()
        session.write(b"")
        self.assertFalse(session.hasOutput())

    def test_beforeTheAnswer(self) -> None:
        """
        Data written before the peer answers waits.
        """
        session = self.opening()
        session.write(b"abc")
        session.close()
        self.assertFalse(session.hasOutput())
        self.say(session, FrameKind.ACCEPT, offset=THEIRS, window=10)
        self.assertEqual(kinds(session), [FrameKind.DATA, FrameKind.CLOSE])

    def test_afterTheEnd(self) -> None:
        """
        Nothing is written after the end.
        """
        for end in (StreamMachine.finish, StreamMachine.close, StreamMachine.abort):
            session = self.connected()
            end(session)
            session.write(b"abc")
            self.assertEqual(session.queuedBytes, 0)
            self.assertNotIn(FrameKind.DATA, kinds(session))

    def test_discard(self) -> None:
        """
        Written data can be dropped until it is sent.
        """
        session = self.connected(3)
        session.write(b"abcdef")
        session.nextOutput()
        session.discardWritten()
        session.close()
        self.assertEqual(fields(session.nextOutput())[:4:3], (FrameKind.CLOSE, 3))


class ReadingTests(SessionTestCase):
    """
    Receiving data.
    """

    def test_take(self) -> None:
        """
        It is taken in order, and counted while it waits.
        """
        session = self.connected()
        self.say(session, FrameKind.DATA, data=b"abc")
        self.say(session, FrameKind.DATA, offset=3, data=b"de")
        self.assertEqual((session.arrivedBytes, self.owner.held), (5, 5 + 2 * limits.RDS_STREAM_PIECE))
        self.assertEqual([session.take(), session.take()], [b"abc", b"de"])
        self.assertEqual((session.arrivedBytes, self.owner.held), (0, 0))
        self.assertRaises(IndexError, session.take)

    def test_windowTold(self) -> None:
        """
        The peer is told that there is room when half a window is read, and with all data.
        """
        session = self.connected()
        half = WINDOW // 2
        self.say(session, FrameKind.DATA, data=bytes(half - 1))
        self.say(session, FrameKind.DATA, offset=half - 1, data=b"x")
        session.take()
        self.assertFalse(session.hasOutput())
        session.take()
        self.assertEqual(fields(session.nextOutput())[:5:4], (FrameKind.WINDOW, WINDOW + half))
        self.assertFalse(session.hasOutput())
        self.say(session, FrameKind.DATA, offset=half, data=bytes(half))
        session.take()
        session.write(b"x")
        self.assertEqual(fields(session.nextOutput())[:5:4], (FrameKind.DATA, WINDOW * 2))
        self.assertFalse(session.hasOutput())

    def test_closing(self) -> None:
        """
        An end that has closed reads nothing, but lets the peer go on until it knows.
        """
        session = self.connected(0)
        self.say(session, FrameKind.DATA, data=bytes(10))
        session.write(b"not yet")
        session.close()
        self.assertEqual((session.arrivedBytes, self.owner.held), (0, 0))
        self.say(session, FrameKind.DATA, offset=10, data=bytes(WINDOW - 10))
        self.assertEqual((session.arrivedBytes, self.owner.held, list(session.arrived)), (0, 0, []))
        self.assertEqual(kinds(session), [FrameKind.WINDOW])
        self.say(session, FrameKind.WINDOW, offset=WINDOW, window=100)
        self.assertEqual(kinds(session), [FrameKind.DATA, FrameKind.CLOSE])


class EndingTests(SessionTestCase):
    """
    The ends of a stream.
    """

    def test_close(self) -> None:
        """
        An end that closes awaits the peer's answer.
        """
        for answer in (FrameKind.FIN, FrameKind.CLOSE):
            session = self.connected()
            session.close()
            session.close()
            session.finish()
            self.assertEqual(kinds(session), [FrameKind.CLOSE])
            self.assertIs(session.state, StreamState.OPEN)
            self.say(session, answer)
            self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.NONE)])
            self.assertEqual(kinds(session), [])

    def test_halves(self) -> None:
        """
        When both directions have had a FIN the stream is over.
        """
        session = self.connected()
        session.finish()
        self.assertEqual(kinds(session), [FrameKind.FIN])
        self.say(session, FrameKind.DATA, data=b"abc")
        self.say(session, FrameKind.FIN, offset=3)
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.NONE)])
        self.assertEqual(session.take(), b"abc")
        session = self.connected()
        self.say(session, FrameKind.FIN)
        session.write(b"abc")
        session.finish()
        self.assertEqual(kinds(session), [FrameKind.DATA, FrameKind.FIN])
        self.assertEqual(list(session.events), [(StreamEvent.END, 0), (StreamEvent.CLOSED, EndReason.NONE)])

    def test_closeAfterFin(self) -> None:
        """
        An end may close after its FIN; a peer that had a FIN does not answer the CLOSE.
        """
        session = self.connected()
        session.finish()
        session.nextOutput()
        session.close()
        self.assertEqual(kinds(session), [FrameKind.CLOSE])
        session = self.connected()
        session.finish()
        session.nextOutput()
        self.say(session, FrameKind.CLOSE)
        self.assertEqual((kinds(session), session.events[0]), ([], (StreamEvent.CLOSED, EndReason.NONE)))

    def test_finWhileClosing(self) -> None:
        """
        A FIN that comes before the CLOSE could leave does not stop what was written.
        """
        session = self.connected(0)
        session.write(b"abc")
        session.close()
        self.say(session, FrameKind.FIN)
        self.assertIs(session.state, StreamState.OPEN)
        self.say(session, FrameKind.WINDOW, window=3)
        self.assertEqual(kinds(session), [FrameKind.DATA, FrameKind.CLOSE])
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.NONE)])

    def test_closeWhileWriting(self) -> None:
        """
        A peer that closed reads nothing: what was written for it is dropped.
        """
        session = self.connected(0)
        session.write(b"abc")
        session.close()
        self.say(session, FrameKind.CLOSE)
        self.assertEqual((kinds(session), session.queuedBytes), ([FrameKind.CLOSE], 0))

    def test_closeBehindData(self) -> None:
        """
        Data received before the end can still be read.
        """
        session = self.connected()
        self.say(session, FrameKind.DATA, data=b"abc")
        self.say(session, FrameKind.CLOSE, offset=3)
        session.close()
        self.assertEqual((session.state, session.take()), (StreamState.CLOSED, b"abc"))

    def test_abort(self) -> None:
        """
        An abort forgets both directions; the second says nothing.
        """
        session = self.connected(0)
        session.write(b"abc")
        self.say(session, FrameKind.DATA, data=b"abc")
        session.abort()
        session.abort()
        self.assertEqual((session.queuedBytes, session.arrivedBytes, self.owner.held), (0, 0, 0))
        self.assertEqual(kinds(session), [FrameKind.RESET])
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.ABORTED)])

    def test_abortOfTheFirst(self) -> None:
        """
        0 is a number of a peer's stream like any other.
        """
        session = self.opening()
        self.say(session, FrameKind.ACCEPT, offset=0, window=1000)
        session.abort()
        self.assertEqual(kinds(session), [FrameKind.RESET])

    def test_abortBeforeTheAnswer(self) -> None:
        """
        Of a stream that does not exist yet nobody is told.
        """
        session = self.opening()
        session.abort()
        self.assertEqual(kinds(session), [])

    def test_vanished(self) -> None:
        """
        A peer that is gone for good is told nothing; what it had sent can be read.
        """
        session = self.connected()
        self.say(session, FrameKind.DATA, data=b"abc")
        session.vanished()
        session.vanished()
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.GONE)])
        self.assertEqual((kinds(session), session.take()), ([], b"abc"))

    def test_sacrifice(self) -> None:
        """
        When memory is short a stream that is over loses what was not read, and any other its life.
        """
        session = self.connected()
        self.say(session, FrameKind.DATA, data=b"abc")
        session.resetForMemory()
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.NO_MEMORY)])
        self.assertEqual(kinds(session), [FrameKind.RESET])
        session = self.connected()
        self.say(session, FrameKind.DATA, data=b"abc")
        self.say(session, FrameKind.CLOSE, offset=3)
        session.resetForMemory()
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.NO_MEMORY)])
        self.assertEqual((session.arrivedBytes, self.owner.held), (0, 0))

    def test_refuseIsForWhoAsked(self) -> None:
        """
        Only a session that has sent OPEN can be refused or accepted.
        """
        session = self.connected()
        session.refuse(EndReason.UNWANTED)
        self.assertIs(session.state, StreamState.OPEN)
        session = self.closed()
        session.accept()
        self.assertEqual(kinds(session), [])


class TimeTests(SessionTestCase):
    """
    Repeated OPENs, and dead peers.
    """

    def test_openAgain(self) -> None:
        """
        OPEN is repeated until there is an answer.
        """
        session = self.opening()
        session.tick(streammachine.RDS_STREAM_OPEN_SECONDS - 0.1)
        self.assertEqual(kinds(session), [])
        session.tick(streammachine.RDS_STREAM_OPEN_SECONDS)
        self.assertEqual(
            (kinds(session), session.deadline), ([FrameKind.OPEN], 2 * streammachine.RDS_STREAM_OPEN_SECONDS)
        )
        session.tick(session.deadline)
        self.say(session, FrameKind.ACCEPT, offset=THEIRS)
        session.tick(100.0)
        self.assertEqual(kinds(session), [])

    def test_silence(self) -> None:
        """
        A peer that answers no probe is gone.
        """
        session = self.connected()
        session.watch()
        self.assertEqual(kinds(session), [])
        for _ in range(streammachine.RDS_STREAM_PROBES):
            session.watch()
            self.assertEqual(kinds(session), [FrameKind.PROBE])
        session.watch()
        self.assertEqual(list(session.events), [(StreamEvent.CLOSED, EndReason.SILENT)])
        self.assertEqual(kinds(session), [FrameKind.RESET])
        session.watch()
        self.assertEqual(kinds(session), [])

    def test_answer(self) -> None:
        """
        A peer that answers anything lives on.
        """
        session = self.connected()
        for _ in range(10 * streammachine.RDS_STREAM_PROBES):
            session.watch()
            for kind in kinds(session):
                self.assertIs(kind, FrameKind.PROBE)
                self.say(session, FrameKind.WINDOW)
        self.assertIs(session.state, StreamState.OPEN)
        self.assertFalse(session.events)

    def test_whileOpening(self) -> None:
        """
        An unanswered OPEN has no timeout of its own: its user limits it.
        """
        session = self.opening()
        for _ in range(10):
            session.watch()
        self.assertIs(session.state, StreamState.OPENING)
