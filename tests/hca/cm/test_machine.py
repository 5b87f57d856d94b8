"""
Tests of L{twisted_ib.hca.cm.machine}: every state with every input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import methodcaller
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from twisted_ib.errors import ConnectionStateError
from twisted_ib.hca.cm.machine import Connection, Event, Input, Output, State
from twisted_ib.hca.cm.peer import Peer
from twisted_ib.hca.cm.timers import Timing
from twisted_ib.hca.cm.transitions import CM_READY_REPEATS, HALF_OPEN, TRANSITIONS
from twisted_ib.hca.wire.cm import messages as cm
from twisted_ib.hca.wire.cm.messages import APR, DREP, DREQ, LAP, MRA, REJ, REP, REQ, RTU

GUID = 0x0002C90300000001
LOCAL, REMOTE = 0x11110001, 0x22220001
LOCAL_QPN, REMOTE_QPN = 0x4321, 0x5555
PERIOD = 3.0
NOW = 100.0
#: Path timeout code 18 is 1.024 seconds.
ACK_CODE, ACK_SECONDS = 18, 1.024
PATH_CHANGE = "there"


class FakeTable:
    """
    A table that records the calls of its connections.
    """

    caGUID = GUID
    sourcesForgeable = lossless = False
    pack = staticmethod(methodcaller("pack"))
    padded = 232
    follow = None

    def __init__(self) -> None:
        """
        Nothing is written.
        """
        self.sent: list[Output] = []
        self.events: list[tuple[Event, object]] = []
        self.moves: list[tuple[State, State]] = []

    def send(self, output: Output) -> None:
        self.sent.append(output)

    def report(self, event: Event, connection: Connection, message: object) -> None:
        self.events.append((event, message))

    def arm(self, connection: Connection, deadline: float) -> None:
        """
        Do what the table does.
        """
        connection.deadline = deadline

    def disarm(self, connection: Connection) -> None:
        """
        Do what the table does.
        """
        connection.deadline = None

    def moved(self, connection: Connection, old: State, now: float) -> None:
        self.moves.append((old, connection.state))


INPUTS: dict[Input, Callable[[], Any]] = {
    Input.CONNECT: lambda: REQ(localCommunicationID=LOCAL, localQPN=LOCAL_QPN),
    Input.REQ: lambda: REQ(localCommunicationID=REMOTE, localQPN=REMOTE_QPN),
    Input.REPEATED_REQ: lambda: REQ(localCommunicationID=REMOTE, localQPN=REMOTE_QPN),
    Input.MRA_REQ: lambda: MRA(REMOTE, LOCAL, 0, 20),
    Input.MRA_REP: lambda: MRA(REMOTE, LOCAL, 1, 20),
    Input.REJ: lambda: REJ(REMOTE, LOCAL, reason=28),
    Input.REJ_STALE: lambda: REJ(REMOTE, LOCAL, reason=10),
    Input.REP: lambda: REP(REMOTE, LOCAL, localQPN=REMOTE_QPN),
    Input.RTU: lambda: RTU(REMOTE, LOCAL),
    Input.DREQ: lambda: DREQ(REMOTE, LOCAL, LOCAL_QPN),
    Input.DREP: lambda: DREP(REMOTE, LOCAL),
    Input.LAP: lambda: LAP(REMOTE, LOCAL),
    Input.ACCEPT: lambda: REP(localQPN=LOCAL_QPN, privateData=b"yes"),
    Input.REJECT: lambda: REJ(reason=28, privateData=b"no"),
    Input.SEND_MRA: lambda: MRA(serviceTimeout=24),
    Input.READY: lambda: RTU(privateData=b""),
    Input.DATA: lambda: None,
    Input.CLOSE: lambda: None,
    Input.IGNORE: lambda: None,
    Input.RETRY: lambda: None,
    Input.EXHAUSTED: lambda: None,
    Input.STALE: lambda: None,
    Input.PATH_LOST: lambda: None,
    Input.FINISH: lambda: None,
    Input.LEAVE: lambda: b"",
    Input.OPEN: lambda: REP(localQPN=LOCAL_QPN, privateData=b"yes"),
}

#: How to come to a state.
ROUTES: dict[State, list[Input]] = {
    State.IDLE: [],
    State.REQ_SENT: [Input.CONNECT],
    State.MRA_REQ_RCVD: [Input.CONNECT, Input.MRA_REQ],
    State.REP_RCVD: [Input.CONNECT, Input.REP],
    State.MRA_REP_SENT: [Input.CONNECT, Input.REP, Input.SEND_MRA],
    State.REQ_RCVD: [Input.REQ],
    State.MRA_REQ_SENT: [Input.REQ, Input.SEND_MRA],
    State.REP_SENT: [Input.REQ, Input.ACCEPT],
    State.MRA_REP_RCVD: [Input.REQ, Input.ACCEPT, Input.MRA_REP],
    State.ESTABLISHED: [Input.REQ, Input.ACCEPT, Input.RTU],
    State.DREQ_SENT: [Input.REQ, Input.ACCEPT, Input.RTU, Input.CLOSE],
    State.TIMEWAIT: [Input.REQ, Input.ACCEPT, Input.RTU, Input.DREQ],
}

#: Message sent, event reported, seconds until the deadline.
Effect = tuple[State, "str | None", "Event | None", "float | None"]

I_, S, E = Input, State, Event
_CALLING: dict[Input, Effect] = {
    I_.REP: (S.REP_RCVD, None, E.REPLY, None),
    I_.REJ: (S.IDLE, None, E.REJECTED, None),
    I_.REJ_STALE: (S.TIMEWAIT, None, E.REJECTED, None),
    I_.EXHAUSTED: (S.IDLE, None, E.UNREACHABLE, None),
    I_.CLOSE: (S.IDLE, "REJ", None, None),
    I_.PATH_LOST: (S.IDLE, None, None, None),
}
_ANSWERED: dict[Input, Effect] = {
    I_.READY: (S.ESTABLISHED, "RTU", None, None),
    I_.OPEN: (S.ESTABLISHED, None, None, None),
    I_.REJECT: (S.IDLE, "REJ", None, None),
    I_.REJ: (S.TIMEWAIT, None, E.REJECTED, None),
    I_.REJ_STALE: (S.TIMEWAIT, None, E.REJECTED, None),
    I_.CLOSE: (S.IDLE, "REJ", None, None),
    I_.PATH_LOST: (S.IDLE, None, None, None),
}
_CALLED: dict[Input, Effect] = {
    I_.ACCEPT: (S.REP_SENT, "REP", None, PERIOD),
    I_.OPEN: (S.ESTABLISHED, "REP", None, None),
    I_.REJECT: (S.IDLE, "REJ", None, None),
    I_.IGNORE: (S.IDLE, None, None, None),
    I_.REJ: (S.IDLE, None, E.REJECTED, None),
    I_.REJ_STALE: (S.TIMEWAIT, None, E.REJECTED, None),
    I_.EXHAUSTED: (S.IDLE, None, E.UNREACHABLE, None),
    I_.CLOSE: (S.IDLE, "REJ", None, None),
    I_.PATH_LOST: (S.IDLE, None, None, None),
}
_ACCEPTED: dict[Input, Effect] = {
    I_.RTU: (S.ESTABLISHED, None, E.ESTABLISHED, None),
    I_.DATA: (S.ESTABLISHED, None, E.ESTABLISHED, None),
    I_.DREQ: (S.TIMEWAIT, "DREP", E.DISCONNECTED, None),
    I_.REJ: (S.IDLE, None, E.REJECTED, None),
    I_.REJ_STALE: (S.TIMEWAIT, None, E.REJECTED, None),
    I_.EXHAUSTED: (S.IDLE, None, E.UNREACHABLE, None),
    I_.CLOSE: (S.IDLE, "REJ", None, None),
    I_.PATH_LOST: (S.IDLE, None, None, None),
    I_.FINISH: (S.IDLE, None, None, None),
}
#: Service timeout code 20 is 4.096 seconds.
MRA_WAIT = 4.096 + ACK_SECONDS
EXPECTED: dict[State, dict[Input, Effect]] = {
    S.IDLE: {
        I_.CONNECT: (S.REQ_SENT, "REQ", None, PERIOD),
        I_.REQ: (S.REQ_RCVD, None, E.REQUEST, None),
    },
    S.REQ_SENT: {
        **_CALLING,
        I_.MRA_REQ: (S.MRA_REQ_RCVD, None, None, MRA_WAIT),
        I_.RETRY: (S.REQ_SENT, "REQ", None, PERIOD),
    },
    S.MRA_REQ_RCVD: {**_CALLING, I_.RETRY: (S.REQ_SENT, "REQ", None, PERIOD)},
    S.REP_RCVD: {**_ANSWERED, I_.SEND_MRA: (S.MRA_REP_SENT, None, None, None)},
    S.MRA_REP_SENT: {**_ANSWERED, I_.REP: (S.MRA_REP_SENT, "MRA", None, None)},
    S.REQ_RCVD: {**_CALLED, I_.SEND_MRA: (S.MRA_REQ_SENT, None, None, None)},
    S.MRA_REQ_SENT: {**_CALLED, I_.REPEATED_REQ: (S.MRA_REQ_SENT, "MRA", None, None)},
    S.REP_SENT: {
        **_ACCEPTED,
        # The timer goes on: it was set 50 s ago.
        I_.REPEATED_REQ: (S.REP_SENT, "REP", None, PERIOD - 50),
        I_.MRA_REP: (S.MRA_REP_RCVD, None, None, MRA_WAIT),
        I_.RETRY: (S.REP_SENT, "REP", None, PERIOD),
    },
    S.MRA_REP_RCVD: {**_ACCEPTED, I_.RETRY: (S.MRA_REP_RCVD, "REP", None, PERIOD)},
    S.ESTABLISHED: {
        I_.REP: (S.ESTABLISHED, "RTU", None, None),
        I_.RETRY: (S.ESTABLISHED, "RTU", None, PERIOD),
        I_.LAP: (S.ESTABLISHED, "APR", None, None),
        I_.CLOSE: (S.DREQ_SENT, "DREQ", None, PERIOD),
        I_.FINISH: (S.IDLE, None, None, None),
        I_.LEAVE: (S.IDLE, "DREQ", None, None),
        I_.STALE: (S.DREQ_SENT, "DREQ", None, PERIOD),
        I_.DREQ: (S.TIMEWAIT, "DREP", E.DISCONNECTED, None),
        I_.REJ: (S.TIMEWAIT, None, E.DISCONNECTED, None),
        I_.REJ_STALE: (S.TIMEWAIT, None, E.DISCONNECTED, None),
        I_.PATH_LOST: (S.IDLE, None, None, None),
    },
    S.DREQ_SENT: {
        I_.RETRY: (S.DREQ_SENT, "DREQ", None, PERIOD),
        I_.DREQ: (S.TIMEWAIT, "DREP", E.DISCONNECTED, None),
        I_.DREP: (S.TIMEWAIT, None, E.DISCONNECTED, None),
        I_.REJ: (S.TIMEWAIT, None, E.DISCONNECTED, None),
        I_.REJ_STALE: (S.TIMEWAIT, None, E.DISCONNECTED, None),
        I_.EXHAUSTED: (S.TIMEWAIT, None, E.DISCONNECTED, None),
        I_.PATH_LOST: (S.IDLE, None, None, None),
    },
    S.TIMEWAIT: {},
}


class MachineCase(SynchronousTestCase):
    """
    Makes connections in a state.
    """

    def connection(self, *route: Input) -> tuple[Connection, FakeTable]:
        """
        A connection to which some inputs happened.
        """
        table = FakeTable()
        connection = Connection(Peer(table, PATH_CHANGE), LOCAL, Timing(PERIOD, ACK_SECONDS, 2))
        for given in route:
            if given in (Input.REQ, Input.REP):
                connection.remoteID = REMOTE
                connection.remoteQPN = REMOTE_QPN
            self.assertTrue(connection.feed(given, INPUTS[given](), NOW - 50))
        table.sent.clear()
        table.events.clear()
        table.moves.clear()
        return connection, table

    def inState(self, state: State) -> tuple[Connection, FakeTable]:
        """
        A connection in a state.
        """
        connection, table = self.connection(*ROUTES[state])
        self.assertEqual(connection.state, state)
        return connection, table

    def sent(self, table: FakeTable) -> Any:
        """
        The only message that was sent.
        """
        [(destination, attribute, octets)] = table.sent
        self.assertEqual(destination, PATH_CHANGE)
        return cm.byAttribute[attribute].parse(octets, 0, 232)


class TransitionTests(MachineTestsMixin, MachineCase):
    """
    The table.
    """

    machine = TRANSITIONS
    stateType, inputType = State, Input

    def check(self, state: State, given: Input) -> None:
        """
        An input does what IBTA vol. 1 12.9.7 says, or nothing at all.
        """
        connection, table = self.inState(state)
        deadline = connection.deadline
        done = connection.feed(given, INPUTS[given](), NOW)
        effect = EXPECTED[state].get(given)
        where = f"{state.name} {given.name}"
        self.assertEqual((state, given) in TRANSITIONS, effect is not None, where)
        self.assertEqual(done, effect is not None, where)
        if effect is None:
            effect = (state, None, None, None if deadline is None else deadline - NOW)
        self.checkEffect(connection, table, effect, where)
        moved = [(state, effect[0])] if self.isFollowed(state, effect[0]) else []
        self.assertEqual(table.moves, moved, where)

    def isFollowed(self, old: State, new: State) -> bool:
        """
        Whether the table has to know of a change: a connection was or is half open, or has ended.
        """
        halfOpen = {State.REQ_RCVD, State.MRA_REQ_SENT, State.REP_SENT, State.MRA_REP_RCVD}
        entered = {State.REP_SENT, State.IDLE, State.TIMEWAIT}
        return old != new and (new in entered or (old in halfOpen) != (new in halfOpen))

    def checkEffect(self, connection: Connection, table: FakeTable, effect: Effect, where: str) -> None:
        """
        Compare what happened with what should.
        """
        state, sent, event, wait = effect
        self.assertEqual(connection.state, state, where)
        names = [cm.byAttribute[output[1]].__name__ for output in table.sent]
        self.assertEqual(names, [] if sent is None else [sent], where)
        self.assertEqual([report[0] for report in table.events], [] if event is None else [event], where)
        if wait is None:
            self.assertIsNone(connection.deadline, where)
        else:
            assert connection.deadline is not None, where
            self.assertAlmostEqual(connection.deadline - NOW, wait, msg=where)

    def test_nothingKept(self) -> None:
        """
        A connection that is open by plain messages or over keeps no message.
        """
        for state in State:
            for given in EXPECTED[state]:
                connection, _ = self.inState(state)
                connection.feed(given, INPUTS[given](), NOW)
                if connection.state in (State.IDLE, State.TIMEWAIT, State.ESTABLISHED):
                    self.assertIsNone(connection.output, f"{state.name} {given.name}")

    def test_halfOpen(self) -> None:
        """
        Half open are the states of the passive side before it is open.
        """
        self.assertEqual(
            [state for state in State if HALF_OPEN[state]],
            [State.REQ_RCVD, State.MRA_REQ_SENT, State.REP_SENT, State.MRA_REP_RCVD],
        )

    def test_size(self) -> None:
        """
        A connection has under 300 octets and no dictionary.
        """
        connection, _ = self.inState(State.ESTABLISHED)
        self.assertFalse(hasattr(connection, "__dict__"))
        self.assertTrue(sys.getsizeof(connection) < 300)


class MessageTests(MachineCase):
    """
    The contents of the messages.
    """

    def test_reply(self) -> None:
        """
        C{accept} fills in the ids and the CA GUID.
        """
        connection, table = self.inState(State.REQ_RCVD)
        self.assertTrue(connection.accept(REP(localQPN=LOCAL_QPN, startingPSN=7), NOW))
        expected = REP(
            LOCAL,
            REMOTE,
            localQPN=LOCAL_QPN,
            startingPSN=7,
            localCAGUID=GUID,
            privateData=bytes(196),
        )
        self.assertEqual(self.sent(table), expected)
        self.assertEqual(connection.localQPN, LOCAL_QPN)

    def test_badReply(self) -> None:
        """
        A REP that cannot be written changes nothing.
        """
        connection, table = self.inState(State.REQ_RCVD)
        self.assertRaises(ValueError, connection.accept, REP(localQPN=1 << 24), NOW)
        self.assertEqual((connection.state, table.sent), (State.REQ_RCVD, []))
        self.assertTrue(connection.accept(REP(), NOW))

    def test_rejectRequest(self) -> None:
        """
        A REQ is refused without our id, which the peer never saw; Linux does
        the same.
        """
        connection, table = self.inState(State.REQ_RCVD)
        self.assertTrue(connection.reject(28, b"no", NOW))
        reject = self.sent(table)
        self.assertEqual(reject, REJ(0, REMOTE, 0, 0, 28, bytes(72), b"no".ljust(148, b"\0")))

    def test_rejectRequestAfterMRA(self) -> None:
        """
        Once an MRA may have carried our id, the REJ has it.
        """
        connection, table = self.inState(State.MRA_REQ_SENT)
        connection.reject(28, b"", NOW)
        self.assertEqual(self.sent(table), REJ(LOCAL, REMOTE, 0, 0, 28, bytes(72), bytes(148)))

    def test_rejectReply(self) -> None:
        """
        A REP is refused with both ids.
        """
        connection, table = self.inState(State.REP_RCVD)
        connection.reject(28, b"", NOW)
        self.assertEqual(self.sent(table), REJ(LOCAL, REMOTE, 1, 0, 28, bytes(72), bytes(148)))

    def test_giveUp(self) -> None:
        """
        Giving up before the REP sends a REJ "timeout" with the CA GUID.
        """
        connection, table = self.inState(State.REQ_SENT)
        self.assertTrue(connection.abandon(NOW))
        info = bytes.fromhex("0002c90300000001").ljust(72, b"\0")
        self.assertEqual(self.sent(table), REJ(LOCAL, 0, 2, 8, 4, info, bytes(148)))

    def test_withdraw(self) -> None:
        """
        Closing after an accept sends a REJ that is about no message.
        """
        for state in (State.REP_SENT, State.MRA_REP_RCVD):
            connection, table = self.inState(state)
            connection.disconnect(NOW)
            self.assertEqual(self.sent(table), REJ(LOCAL, REMOTE, 2, 0, 28, bytes(72), bytes(148)))

    def test_disconnect(self) -> None:
        """
        A DREQ names the queue pair of the peer.
        """
        connection, table = self.inState(State.ESTABLISHED)
        self.assertTrue(connection.disconnect(NOW))
        self.assertEqual(self.sent(table), DREQ(LOCAL, REMOTE, REMOTE_QPN, bytes(220)))
        self.assertFalse(connection.disconnect(NOW))

    def test_answers(self) -> None:
        """
        RTU, DREP, APR have both ids.
        """
        connection, table = self.inState(State.REP_RCVD)
        connection.ready(NOW)
        self.assertEqual(self.sent(table), RTU(LOCAL, REMOTE, bytes(224)))
        connection, table = self.inState(State.DREQ_SENT)
        connection.feed(Input.DREQ, DREQ(), NOW)
        self.assertEqual(self.sent(table), DREP(LOCAL, REMOTE, bytes(224)))
        connection, table = self.inState(State.ESTABLISHED)
        connection.feed(Input.LAP, LAP(), NOW)
        self.assertEqual(self.sent(table), APR(LOCAL, REMOTE, 0, 2, bytes(72), bytes(148)))

    def test_thinkAboutRequest(self) -> None:
        """
        The MRA is about the REQ, and goes out each time that the REQ comes.
        """
        connection, table = self.inState(State.REQ_RCVD)
        self.assertTrue(connection.sendMRA(NOW))
        self.assertEqual(table.sent, [])
        for _ in range(2):
            table.sent.clear()
            connection.feed(Input.REPEATED_REQ, None, NOW)
            self.assertEqual(self.sent(table), MRA(LOCAL, REMOTE, 0, 24, bytes(222)))

    def test_thinkAboutReply(self) -> None:
        """
        The MRA is about the REP.
        """
        connection, table = self.inState(State.REP_RCVD)
        connection.sendMRA(NOW, 19, b"soon")
        connection.feed(Input.REP, None, NOW)
        self.assertEqual(self.sent(table), MRA(LOCAL, REMOTE, 1, 19, b"soon".ljust(222, b"\0")))

    def test_lostRTU(self) -> None:
        """
        A repeated REP gets the same RTU again, private data included.
        """
        for privateData in (b"", b"hello"):
            connection, table = self.inState(State.REP_RCVD)
            connection.ready(NOW, privateData)
            [first] = table.sent
            connection.feed(Input.REP, REP(), NOW)
            self.assertEqual(table.sent, [first, first])

    def test_identicalRetry(self) -> None:
        """
        A retry has the octets of the first try, though its maker changed the
        message since, and counts.
        """
        table = FakeTable()
        connection = Connection(Peer(table, PATH_CHANGE), LOCAL, Timing(PERIOD, ACK_SECONDS, 2))
        request = REQ(localQPN=5)
        connection.feed(Input.CONNECT, request, NOW)
        request.localQPN = 6
        connection.feed(Input.RETRY, None, NOW)
        self.assertEqual(table.sent[0], table.sent[1])
        self.assertEqual(connection.retriesLeft, 1)

    def test_unproven(self) -> None:
        """
        Where sources can be forged the REP is repeated once, and the wait is as long as all repeats would
        take; the REJ of a consumer that closes then is not sent (issue 16, point 16).
        """
        connection, table = self.inState(State.REP_SENT)
        table.sourcesForgeable = True
        connection.feed(Input.RETRY, None, NOW)
        self.assertEqual((len(table.sent), connection.retriesLeft), (1, 0))
        self.assertEqual(connection.deadline, NOW + 2 * PERIOD)
        table.sent.clear()
        connection.feed(Input.REPEATED_REQ, REQ(), NOW)
        self.assertEqual(self.sent(table).attribute, REP.attribute)
        table.sent.clear()
        connection.disconnect(NOW)
        self.assertEqual((table.sent, connection.state), ([], State.IDLE))

    def test_unprovenCloses(self) -> None:
        """
        A consumer that closes before the repeat has its REJ.
        """
        connection, table = self.inState(State.REP_SENT)
        table.sourcesForgeable = True
        connection.disconnect(NOW)
        self.assertEqual(self.sent(table).attribute, REJ.attribute)

    def test_proven(self) -> None:
        """
        An MRA to the REP proves the source: there are all retries from then on, and a REJ.
        """
        connection, table = self.inState(State.REP_SENT)
        table.sourcesForgeable = True
        connection.feed(Input.RETRY, None, NOW)
        connection.feed(Input.MRA_REP, MRA(serviceTimeout=20), NOW)
        self.assertEqual(connection.retriesLeft, 2)
        connection.feed(Input.RETRY, None, NOW)
        table.sent.clear()
        connection.disconnect(NOW)
        self.assertEqual(self.sent(table).attribute, REJ.attribute)

    def test_readyAgain(self) -> None:
        """
        Where the passive side repeats its REP but once, the RTU is repeated some times; then there is no
        timer. Elsewhere there never is one.
        """
        for isForgeable, most, count in (
            (False, 9, 0),
            (True, 9, CM_READY_REPEATS),
            (True, 2, 2),
            (True, 0, 0),
        ):
            connection, table = self.inState(State.REP_RCVD)
            table.sourcesForgeable, connection.timing = isForgeable, Timing(PERIOD, ACK_SECONDS, most)
            connection.ready(NOW)
            sent = 0
            while (when := connection.deadline) is not None:
                self.assertEqual(when, NOW + (sent + 1) * PERIOD)
                connection.deadline = None
                connection.feed(Input.RETRY, None, when)
                sent += 1
            self.assertEqual((sent, len(table.sent)), (count, count + 1))
            self.assertEqual(connection.state, State.ESTABLISHED)

    def test_delayed(self) -> None:
        """
        A connection is delayed from the MRA to its REQ until that is sent again.
        """
        for state in State:
            connection, _ = self.inState(state)
            self.assertEqual(connection.isDelayed, state is State.MRA_REQ_RCVD, state.name)

    def test_retriesAnew(self) -> None:
        """
        A DREQ has all retries, however many the REP took.
        """
        connection, _ = self.connection(Input.REQ, Input.ACCEPT, Input.RETRY, Input.RETRY, Input.RTU)
        self.assertEqual(connection.retriesLeft, 0)
        connection.disconnect(NOW)
        self.assertEqual(connection.retriesLeft, 2)


class CommandTests(MachineCase):
    """
    Commands that come at a wrong time.
    """

    commands: dict[Input, Callable[[Connection], bool]] = {
        Input.ACCEPT: lambda connection: connection.accept(REP(), NOW),
        Input.REJECT: lambda connection: connection.reject(28, b"", NOW),
        Input.SEND_MRA: lambda connection: connection.sendMRA(NOW),
        Input.READY: lambda connection: connection.ready(NOW),
        Input.IGNORE: lambda connection: connection.ignore(NOW),
    }

    def test_wrongTime(self) -> None:
        """
        A command that makes no sense is an error; one that comes after the
        peer ended it all does nothing.
        """
        for state in State:
            for given, command in self.commands.items():
                connection, table = self.inState(state)
                if given in EXPECTED[state]:
                    self.assertTrue(command(connection))
                elif state in (State.IDLE, State.TIMEWAIT):
                    self.assertFalse(command(connection))
                else:
                    self.assertRaises(ConnectionStateError, command, connection)
                    self.assertEqual((connection.state, table.sent), (state, []))

    def test_anyTime(self) -> None:
        """
        C{disconnect}, C{abandon} and C{established} never raise.
        """
        for state in State:
            for name, given in (("disconnect", I_.CLOSE), ("abandon", I_.CLOSE), ("established", I_.DATA)):
                connection, _ = self.inState(state)
                self.assertEqual(getattr(connection, name)(NOW), given in EXPECTED[state])
