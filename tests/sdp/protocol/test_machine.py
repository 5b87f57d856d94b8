"""
Tests for L{twisted_ib.sdp.protocol.machine}: all states with all inputs, credits,
numbers, and the literal bytes of tests/sdp/protocol/test_wire.py's conversation.
"""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.base.machines import MachineTestsMixin
from tests.support.generated import given, settings
from twisted_ib.errors import SDPError
from twisted_ib.sdp.protocol.machine import TRANSITIONS, Action, Input, Machine, State
from twisted_ib.sdp.protocol.wire import BSDH, MID, Data, DisConn, Flags

#: How a connection ends (annex A4.5.3), written down once more: state, then for each input
#: (DISCONN_SENT, DISCONN, ABORTCONN, DREQ, ABORT) the action and the next state.
TABLE = """
ESTABLISHED  NOTHING:FIN_WAIT1  END_OF_STREAM:CLOSE_WAIT      RESET:CLOSED     RESET:CLOSED        DISCONNECT:CLOSED
FIN_WAIT1    -                  END_AND_DISCONNECT:TIME_WAIT  RESET:CLOSED     RESET:CLOSED        ABORT_AND_DISCONNECT:CLOSED
CLOSE_WAIT   AWAIT_DREQ:LAST_ACK -                             RESET:CLOSED     RESET:CLOSED        DISCONNECT:CLOSED
LAST_ACK     -                  -                             RESET:CLOSED     FINISHED:TIME_WAIT  ABORT_AND_DISCONNECT:CLOSED
TIME_WAIT    NOTHING:TIME_WAIT  NOTHING:TIME_WAIT             NOTHING:TIME_WAIT  NOTHING:TIME_WAIT   NOTHING:TIME_WAIT
CLOSED       NOTHING:CLOSED     NOTHING:CLOSED                NOTHING:CLOSED     NOTHING:CLOSED      NOTHING:CLOSED
"""  # noqa: E501
INPUTS = (Input.DISCONN_SENT, Input.DISCONN, Input.ABORTCONN, Input.DREQ, Input.ABORT)

KINDS = ("data", "control", "update")

HELLO = b"hello"
#: Of the conversation in tests/sdp/protocol/test_wire.py: the client's Data, the server's
#: update, and a DisConn each way.
DATA_HELLO = bytes.fromhex("ff00004000000015000000010000000068656c6c6f")
UPDATE = bytes.fromhex("ff00003f000000100000000100000001")
DISCONN = bytes.fromhex("0200003f000000100000000c00000008")


def opened(receives: int = 64, peerReceives: int = 64) -> Machine:
    """
    @return: A machine after the handshake.
    """
    machine = Machine(receives)
    machine.limit = peerReceives
    return machine


def message(
    sequence: int = 1,
    acknowledged: int = 0,
    buffers: int = 64,
    payload: bytes = b"",
    mid: int = MID.DATA,
    flags: int = 0,
    length: int | None = None,
) -> bytes:
    """
    @return: A message as a peer may send it.
    """
    n = 16 + len(payload) if length is None else length
    return BSDH.pack(mid, flags, buffers, n, sequence, acknowledged) + payload


def receive(machine: Machine, data: bytes) -> bytes | None:
    """
    Let a message arrive, in the middle of a medium.
    """
    return machine.receive(b"???" + data + b"?", 3, 3 + len(data))


class TransitionTests(MachineTestsMixin, SynchronousTestCase):
    """
    The way to the end.
    """

    machine = TRANSITIONS
    stateType, inputType, actionType = State, Input, Action
    begins = (State.ESTABLISHED,)
    rows: ClassVar = {line.split()[0]: line.split()[1:] for line in TABLE.split("\n")[1:-1]}

    def check(self, state: State, given: Input) -> None:
        """
        The machine follows the table above; any other pair is an L{SDPError} which names both and changes
        nothing.
        """
        machine = opened()
        machine.state = state
        entry = self.rows[state.name][INPUTS.index(given)]
        if entry == "-":
            error = self.assertRaises(SDPError, machine.feed, given)
            self.assertEqual(str(error), f"{given.name} in {state.name}")
            self.assertIs(machine.state, state)
            return
        action, after = entry.split(":")
        self.assertIs(machine.feed(given), Action[action], (state, given))
        self.assertIs(machine.state, State[after], (state, given))

    def test_endsAreReached(self) -> None:
        """
        From every state an abort leads to an end, and an end is not left.
        """
        ends = {State.TIME_WAIT, State.CLOSED}
        for state in State:
            machine = opened()
            machine.state = state
            machine.feed(Input.ABORT)
            self.assertIn(machine.state, ends)
            for event in Input:
                machine.feed(event)
                self.assertIn(machine.state, ends)


class SendTests(SynchronousTestCase):
    """
    Numbers and credits of what is sent.
    """

    def test_literalBytes(self) -> None:
        """
        The bytes of a conversation that Wireshark's dissector understood.
        """
        client, server = opened(), opened()
        header = client.header(len(HELLO), 64)
        assert header is not None
        self.assertEqual(header + HELLO, DATA_HELLO)
        self.assertEqual(receive(server, DATA_HELLO), HELLO)
        server.told = 0  # As if the peer knew of none.
        self.assertEqual(server.update(63), UPDATE)
        client.sequence, client.received = 11, 8
        self.assertEqual(client.controlMessage(MID.DISCONN, 63), DISCONN)

    def test_sameAsTheClasses(self) -> None:
        """
        The layouts made here are those of the classes of C{wire}.
        """
        machine = opened()
        machine.received = 7
        header = machine.header(3, 60)
        self.assertEqual(header, Data(buffers=60, sequence=1, acknowledged=7, payload=b"abc").pack()[:16])
        self.assertEqual(
            machine.controlMessage(MID.DISCONN, 59),
            DisConn(buffers=59, sequence=2, acknowledged=7).pack(),
        )
        self.assertEqual(
            machine.controlMessage(MID.CH_RCV_BUF_ACK, 58, b"\0\1\0\0"),
            bytes.fromhex("0c00003a000000140000000300000007") + b"\0\1\0\0",
        )

    def test_credits(self) -> None:
        """
        Data needs three credits, other control messages two, an update one
        (clause CA4-82); what is refused uses no number.
        """
        for credits in range(6):
            data, control, update = (opened(64, credits) for _ in range(3))
            self.assertEqual(data.credits(), credits)
            self.assertEqual(data.header(1, 64) is not None, credits >= 3, credits)
            self.assertEqual(data.sequence, int(credits >= 3))
            self.assertEqual(data.credits(), credits - int(credits >= 3))
            sent = control.controlMessage(MID.DISCONN, 64)
            self.assertEqual(sent is not None, credits >= 2, credits)
            self.assertEqual(control.sequence, int(credits >= 2))
            self.assertEqual(update.update(65) is not None, credits >= 1, credits)
            self.assertEqual(update.sequence, int(credits >= 1))

    def test_updateOnlyIfItRaises(self) -> None:
        """
        An update is sent only if it raises what the peer knows: two idle peers
        do not ping-pong.
        """
        machine = opened(10, 64)
        self.assertIsNone(machine.update(10))
        receive(machine, message())
        self.assertIsNone(machine.update(9))
        self.assertIsNone(machine.update(8))
        self.assertIsNotNone(machine.update(10))
        self.assertIsNone(machine.update(10))
        self.assertEqual(machine.sequence, 1)

    def test_owesUpdate(self) -> None:
        """
        Two new receives are announced, or a single one to a peer that knows of fewer than three; but not by
        an update that answers the answer to an update, unless the peer knows of none.
        """
        for known, receives, alone, answering in (
            (0, 0, False, False),
            (0, 1, True, True),
            (1, 0, False, False),
            (1, 2, True, False),
            (1, 3, True, False),
            (1, 4, True, True),
            (2, 2, False, False),
            (2, 3, True, False),
            (2, 4, True, True),
            (3, 3, False, False),
            (3, 4, False, False),
            (3, 5, True, True),
            (30, 31, False, False),
            (30, 32, True, True),
        ):
            machine = opened()
            machine.received, machine.sequence = 100, 200
            machine.told = 100 + known
            for updated, updating, expected in (
                (100, 200, answering),
                (99, 200, alone),
                (100, 199, alone),
                (99, 199, alone),
            ):
                machine._updates = updated, updating
                self.assertEqual(machine.owesUpdate(receives), expected, (known, receives, updated, updating))

    def test_everyMessageTells(self) -> None:
        """
        Each message tells the peer of the receives, whatever it is for.
        """
        for send in (
            lambda machine: machine.header(1, 20),
            lambda machine: machine.update(20),
            lambda machine: machine.controlMessage(MID.DISCONN, 20),
        ):
            machine = opened(3, 64)
            receive(machine, message())
            receive(machine, message(2))
            self.assertEqual(machine.told, 3)
            sent = send(machine)
            assert sent is not None
            self.assertEqual(machine.told, 22)
            self.assertEqual(BSDH.unpack_from(sent)[2], 20)
            self.assertEqual(BSDH.unpack_from(sent)[4:], (1, 2))

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.booleans(), st.sampled_from(KINDS), st.integers(0, 9))))
    def test_twoMachines(self, steps: list[tuple[bool, str, int]]) -> None:
        """
        Two machines whose receives come and go never send more than there are
        receives, and agree on the numbers.
        """
        machines = (Machine(3), Machine(3))
        posted = [3, 3]
        for machine in machines:
            machine.limit = 3
        for first, what, more in steps:
            me = int(first)
            posted[me] += more
            machine, other = machines[me], machines[1 - me]
            if what == "data":
                sent = machine.header(4, posted[me])
                sent = sent and sent + b"data"
            elif what == "control":
                sent = machine.controlMessage(MID.SEND_SM, posted[me])
            else:
                sent = machine.update(posted[me])
            if sent is None:
                continue
            posted[1 - me] -= 1
            self.assertGreaterEqual(posted[1 - me], 0)
            receive(other, sent)
            self.assertEqual(other.credits(), machine.received + posted[me] - other.sequence)
            self.assertEqual(other.received, machine.sequence)
            self.assertEqual(machine.told, machine.received + posted[me])


class ReceiveTests(SynchronousTestCase):
    """
    Messages that a peer may send, and messages that it may not.
    """

    def refused(self, data: bytes, machine: Machine | None = None) -> str:
        """
        A message is refused and changes neither number nor credits.

        @return: what the error says.
        """
        machine = machine or opened()
        before = machine.received, machine.limit, machine.sequence
        error = self.assertRaises(SDPError, receive, machine, data)
        self.assertEqual((machine.received, machine.limit, machine.sequence), before)
        return str(error)

    def test_data(self) -> None:
        """
        The bytes of a Data message, perhaps none; of any other its id, its flags, and what it acknowledges.
        """
        machine = opened()
        self.assertEqual(receive(machine, message(payload=b"abc")), b"abc")
        self.assertEqual(receive(machine, message(2)), b"")
        self.assertEqual(receive(machine, message(3, mid=MID.DISCONN)), (MID.DISCONN, 0, 0))
        self.assertEqual(receive(machine, message(4, mid=0x77)), (0x77, 0, 0))
        self.assertEqual(machine.received, 4)

    def test_tooShort(self) -> None:
        """
        A message has a whole header: each length that is too short.
        """
        for n in range(16):
            self.assertIn(f"{n} bytes", self.refused(message()[:n]))

    def test_length(self) -> None:
        """
        Len is that of the message.
        """
        for length in (0, 15, 16, 18, 0xFFFFFFFF):
            self.assertIn("length", self.refused(message(payload=b"a", length=length)))

    def test_numbers(self) -> None:
        """
        A gap, a duplicate and the handshake's number are errors that name both
        numbers.
        """
        for number in (0, 2, 3, 0xFFFFFFFF):
            self.assertIn(f"number {number} where 1 is due", self.refused(message(number)))
        machine = opened()
        receive(machine, message(1))
        self.assertIn("number 1 where 2 is due", self.refused(message(1), machine))
        receive(machine, message(2))

    def test_acknowledgesUnsent(self) -> None:
        """
        An MSeqAck of a message that was not sent, or was sent long ago, is refused.
        """
        machine = opened(64, 0x30000)
        for sent in range(3):
            for ahead in (1, 2, 0x7FFFFFFF):
                error = self.assertRaises(SDPError, receive, opened(), message(acknowledged=ahead))
                self.assertIn(f"message {ahead} is acknowledged but was not sent", str(error))
            machine.sequence = sent
            self.assertRaises(
                SDPError, receive, machine, message(machine.received + 1, acknowledged=sent + 1)
            )
            machine.received = 0
        machine.sequence = 0x10001
        self.assertRaises(SDPError, receive, machine, message(1, acknowledged=0))
        machine.received = 0
        self.assertEqual(receive(machine, message(1, acknowledged=1)), b"")

    def test_credits(self) -> None:
        """
        Bufs counts from the acknowledged message on; what a peer has once
        promised stays.
        """
        machine = opened(64, 5)
        for _ in range(3):
            machine.header(1, 64)
        self.assertEqual(machine.credits(), 2)
        receive(machine, message(1, 2, 10))
        self.assertEqual(machine.credits(), 9)
        receive(machine, message(2, 2, 4))
        self.assertEqual(machine.credits(), 9)
        receive(machine, message(3, 3, 65535))
        self.assertEqual(machine.credits(), 65535)

    def test_reservedFlags(self) -> None:
        """
        Each reserved bit of the flags is an error.
        """
        for bit in range(3, 8):
            self.assertIn("flags", self.refused(message(flags=1 << bit, payload=b"a")))
            self.assertIn("flags", self.refused(message(flags=1 << bit, mid=MID.DISCONN)))
            self.assertIn("flags", self.refused(message(flags=1 << bit, mid=MID.RDMA_RD_COMPL)))

    def test_flags(self) -> None:
        """
        Data may carry urgent bytes and tell of them; OOB_PRES belongs to
        payload (CA4-7), REQ_PIPE to RdmaRdCompl (CA4-8).
        """
        for flags in (Flags.OOB_PEND, Flags.OOB_PRES, Flags.OOB_PEND | Flags.OOB_PRES):
            machine = opened()
            self.assertEqual(receive(machine, message(flags=flags, payload=b"!")), (MID.DATA, flags, 0))
        pending = Flags.OOB_PEND
        self.assertEqual(receive(opened(), message(flags=pending)), (MID.DATA, pending, 0))
        self.assertIn("flags", self.refused(message(flags=Flags.OOB_PRES)))
        self.assertIn("flags", self.refused(message(flags=Flags.REQ_PIPE, payload=b"a")))
        asks = message(flags=Flags.REQ_PIPE, mid=MID.RDMA_RD_COMPL)
        self.assertEqual(receive(opened(), asks), (MID.RDMA_RD_COMPL, Flags.REQ_PIPE, 0))

    def test_wrap(self) -> None:
        """
        Numbers wrap at 2^32 in the messages, in both directions, and credits
        with them.
        """
        a, b = opened(), opened()
        start = (1 << 32) - 3
        for machine in (a, b):
            machine.sequence = machine.received = start
            machine.limit = machine.told = start + 64
        numbers = []
        for sender, receiver in [(a, b), (b, a)] * 6:
            header = sender.header(1, 64)
            assert header is not None
            numbers.append(BSDH.unpack(header)[4])
            self.assertEqual(receive(receiver, header + b"x"), b"x")
            self.assertEqual(receiver.credits(), 64 - (receiver.sequence - sender.received))
        self.assertEqual(numbers[::2], [0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2, 3])
        self.assertEqual(numbers[1::2], numbers[::2])
        late = message(4, acknowledged=(start + 1) & 0xFFFFFFFF)
        self.assertEqual(receive(a, late), b"")
        self.assertRaises(SDPError, receive, a, message(5, acknowledged=(a.sequence + 1) & 0xFFFFFFFF))

    def test_dataInEveryState(self) -> None:
        """
        Stream data comes until the peer's DisConn; after it, it is an error,
        and after the end it is ignored.  Updates are never an error.
        """
        for state in State:
            for flags in (0, Flags.OOB_PRES):
                machine = opened()
                machine.state = state
                self.assertEqual(receive(machine, message(1)), b"")
                data = message(2, payload=b"a", flags=flags)
                if state in (State.CLOSE_WAIT, State.LAST_ACK):
                    error = self.assertRaises(SDPError, receive, machine, data)
                    self.assertEqual(str(error), "data after the peer's DisConn")
                elif flags:
                    self.assertEqual(receive(machine, data), (MID.DATA, flags, 0), state)
                else:
                    expected = b"a" if state in (State.ESTABLISHED, State.FIN_WAIT1) else b""
                    self.assertEqual(receive(machine, data), expected, state)

    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=64))
    def test_anything(self, data: bytes) -> None:
        """
        For any input, only L{SDPError} is raised.
        """
        machine = opened()
        try:
            receive(machine, data)
        except SDPError:
            pass
