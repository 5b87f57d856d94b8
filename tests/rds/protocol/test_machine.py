"""
Tests of L{twisted_ib.rds.protocol.machine}: one path, its numbers, its probe and its map.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.rds.protocol.vectors import RDSHeader
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.rds.paths.network import newCounters
from twisted_ib.rds.paths.rdmaoperations import OperationMessage
from twisted_ib.rds.protocol import machine
from twisted_ib.rds.protocol.congestion import MAP_BYTES, CongestionMap
from twisted_ib.rds.protocol.machine import Outcome, PathMachine, RDSMessage
from twisted_ib.rds.protocol.wire import (
    ACK_REQUIRED,
    CONG_BITMAP,
    NO_EXTENSIONS,
    RETRANSMITTED,
    pathsExtensions,
)

GENERATION = 0x01020304
AGAIN = RETRANSMITTED | ACK_REQUIRED


class MachineCase(SynchronousTestCase):
    """
    One machine, and what its peer says.
    """

    acknowledges = False

    def setUp(self) -> None:
        self.map = CongestionMap()
        self.counters = newCounters()
        self.machine = PathMachine(self.map, GENERATION, self.counters, self.acknowledges)

    def outputs(self) -> list[RDSMessage]:
        """
        Everything that is to be sent now.
        """
        found = []
        while (message := self.machine.nextOutput()) is not None:
            self.machine.sent(message)
            found.append(message)
        return found

    def sent(self) -> list[tuple[int, int, int, int]]:
        """
        The same in short: number, ports, flags.
        """
        return [(m.sequence, m.sourcePort, m.destinationPort, m.flags) for m in self.outputs()]

    def receive(
        self,
        sequence: int,
        sourcePort: int,
        destinationPort: int,
        flags: int = 0,
        payload: bytes = b"",
        extensions: bytes = NO_EXTENSIONS,
        now: float = 0.0,
    ) -> Outcome:
        """
        The peer has sent something.
        """
        header = RDSHeader(
            sequence,
            0,
            len(payload),
            sourcePort,
            destinationPort,
            flags,
            extensions=extensions,
        )
        return self.machine.received(header.fields(), payload, now)

    def open(self) -> None:
        """
        Connect, and have the probe answered.
        """
        self.machine.connected(0.0)
        self.outputs()
        self.receive(1, 0, 1, extensions=pathsExtensions(1, 7))

    def message(
        self, port: int = 4000, payload: bytes = b"", owner: Any = None, once: bool = False
    ) -> RDSMessage:
        return RDSMessage(5000, port, payload, owner, once=once)


class BeginningTests(MachineCase):
    """
    A path that nothing was sent on yet.
    """

    def test_nothingBefore(self) -> None:
        """
        Without a connection there is nothing to send.
        """
        self.machine.send(self.message())
        self.assertEqual(self.sent(), [])
        self.assertEqual(self.machine.nextTransmit, 1)

    def test_mapAndProbe(self) -> None:
        """
        First the map, then the probe with our number and one path; data waits for the answer.
        """
        self.machine.send(self.message())
        self.machine.connected(0.0)
        ports, probe = self.outputs()
        self.assertEqual((ports.sequence, ports.flags, ports.payload), (0, CONG_BITMAP, bytes(MAP_BYTES)))
        self.assertEqual((probe.sequence, probe.sourcePort, probe.destinationPort, probe.flags), (1, 1, 0, 0))
        self.assertEqual(probe.extensions, bytes.fromhex("05000106010203040000000000000000"))
        self.assertEqual(self.receive(1, 0, 1), Outcome.NOTHING)
        self.assertEqual(self.sent(), [(2, 5000, 4000, 0)])

    def test_probeIsNeverFlagged(self) -> None:
        """
        A peer that remembers high numbers from another instance takes it, however often the
        connection is lost.
        """
        for expected in (1, 2, 3):
            self.machine.connected(0.0)
            self.assertEqual(self.sent(), [(0, 0, 0, CONG_BITMAP), (expected, 1, 0, 0)])
            self.assertEqual(self.machine.disconnected(0.0), [])

    def test_probesAnswerEachOther(self) -> None:
        """
        The answer to the peer's probe does not wait for that to ours, and is not repeated.
        """
        self.machine.connected(0.0)
        self.machine.send(self.message())
        self.outputs()
        self.receive(1, 1, 0, extensions=pathsExtensions(8, 0))
        (pong,) = self.outputs()
        self.assertEqual((pong.sequence, pong.sourcePort, pong.destinationPort), (2, 0, 1))
        self.assertEqual(pong.extensions, pathsExtensions(1, GENERATION))
        self.machine.disconnected(0.0)
        self.machine.connected(0.0)
        self.assertEqual(self.sent(), [(0, 0, 0, CONG_BITMAP), (3, 1, 0, 0)])

    def test_otherPingsWait(self) -> None:
        """
        The answer to another ping is repeated like data, and so waits like data.
        """
        self.machine.connected(0.0)
        self.outputs()
        self.receive(1, 777, 0)
        self.assertEqual(self.sent(), [])
        self.receive(2, 0, 1)
        self.assertEqual(self.sent(), [(2, 0, 777, 0)])

    def test_silentPeer(self) -> None:
        """
        A peer that has acknowledged the probe and does not answer is taken as it is after a while.
        """
        self.machine.send(self.message())
        self.machine.connected(0.0)
        self.machine.probeAcknowledged(0, 5.0)
        self.outputs()
        self.assertIsNone(self.machine.deadline())
        self.machine.probeAcknowledged(0, 5.0)
        self.machine.probeAcknowledged(2, 5.0)
        self.assertIsNone(self.machine.deadline())
        for now in (5.0, 5.2):
            self.machine.probeAcknowledged(1, now)
            self.assertEqual(self.machine.deadline(), 5.0 + machine.RDS_PROBE_SECONDS)
        self.machine.tick(5.5)
        self.assertEqual(self.sent(), [])
        self.machine.tick(5.0 + machine.RDS_PROBE_SECONDS)
        self.assertEqual(self.sent(), [(2, 5000, 4000, 0)])
        self.machine.probeAcknowledged(1, 7.0)
        self.assertIsNone(self.machine.deadline())

    def test_silentPeerLost(self) -> None:
        """
        That time ends with the connection.
        """
        self.machine.connected(0.0)
        self.outputs()
        self.machine.probeAcknowledged(1, 5.0)
        self.machine.disconnected(5.5)
        self.assertIsNone(self.machine.deadline())


class SendingTests(MachineCase):
    """
    Numbers, acknowledgements, repetition.
    """

    def test_numbers(self) -> None:
        """
        They count messages, and the peer's acknowledgements take what they say.
        """
        self.open()
        messages = [self.message(port) for port in (10, 11, 12)]
        for message in messages:
            self.machine.send(message)
        self.assertEqual([n for n, *_ in self.sent()], [2, 3, 4])
        self.assertEqual(self.machine.acknowledged(3), messages[:2])
        self.assertEqual(self.machine.acknowledged(3), [])
        self.assertFalse(self.machine.isIdle())
        unsent = self.message(13)
        self.machine.send(unsent)
        self.assertEqual(self.machine.acknowledged(4), messages[2:])
        self.assertEqual([*self.machine.waiting], [unsent])
        self.sent()
        self.assertEqual(self.machine.acknowledged(5), [unsent])
        self.assertTrue(self.machine.isIdle())

    def test_impossibleAcknowledgement(self) -> None:
        """
        One for what was not sent is counted, and nothing else.
        """
        self.open()
        self.machine.send(self.message())
        self.outputs()
        self.assertEqual(self.machine.acknowledged(3), [])
        self.assertEqual(self.machine.acknowledged(1 << 64), [])
        self.assertEqual(self.counters["recv_bad_ack"], 2)
        self.assertEqual(len(self.machine.unacknowledged), 1)

    def test_repeated(self) -> None:
        """
        Unacknowledged messages are sent again, with their numbers and the flags, before new ones;
        the map comes first, and no probe.
        """
        self.open()
        for port in (10, 11, 12):
            self.machine.send(self.message(port))
        self.outputs()
        self.machine.acknowledged(2)
        self.machine.disconnected(0.0)
        self.machine.send(self.message(13))
        self.assertEqual(self.sent(), [])
        self.machine.connected(0.0)
        self.assertEqual(
            self.sent(),
            [
                (0, 0, 0, CONG_BITMAP),
                (3, 5000, 11, AGAIN),
                (4, 5000, 12, AGAIN),
                (5, 5000, 13, 0),
            ],
        )
        self.assertEqual(self.counters["send_retransmitted"], 2)

    def test_acknowledgedWhenConnecting(self) -> None:
        """
        A peer that says what it has while it connects saves the repetition.
        """
        self.open()
        messages = [self.message(port) for port in (10, 11, 12)]
        for message in messages:
            self.machine.send(message)
        self.outputs()
        self.machine.disconnected(0.0)
        self.machine.connected(0.0)
        self.machine.send(self.message(13))
        self.assertEqual(self.machine.acknowledged(3), messages[:2])
        self.assertEqual([n for n, *_ in self.sent()], [0, 4, 5])

    def test_refusedByCarrier(self) -> None:
        """
        A message that the carrier refused keeps its number and is no retransmission.
        """
        self.open()
        self.machine.send(self.message())
        first = self.machine.nextOutput()
        self.assertIs(self.machine.nextOutput(), first)
        self.machine.disconnected(0.0)
        self.machine.connected(0.0)
        self.assertEqual(self.sent(), [(0, 0, 0, CONG_BITMAP), (2, 5000, 4000, 0)])

    def test_once(self) -> None:
        """
        A message with an RDMA operation is not repeated, but dropped.
        """
        self.open()
        message = self.message(once=True)
        self.machine.send(message)
        self.machine.send(self.message(11))
        self.outputs()
        self.assertEqual(self.machine.disconnected(0.0), [message])
        self.machine.connected(0.0)
        self.assertEqual([n for n, *_ in self.sent()], [0, 3])

    def test_drop(self) -> None:
        """
        A closing socket's messages are forgotten, wherever they are; those of others are not.
        """
        self.open()
        me, other = object(), object()
        mine = [self.message(10, owner=me), self.message(11, owner=me)]
        self.machine.send(mine[0])
        self.machine.send(self.message(12, owner=other))
        self.outputs()
        self.machine.send(mine[1])
        self.machine.send(self.message(13, owner=other))
        self.assertEqual(self.machine.drop(me, 11), [mine[1]])
        self.assertEqual(self.machine.drop(me), [mine[0]])
        self.machine.disconnected(0.0)
        self.machine.connected(0.0)
        self.assertEqual([(p, n) for n, _, p, _ in self.sent()], [(0, 0), (12, 3), (13, 4)])

    def test_ownMap(self) -> None:
        """
        When our map changes the peer is told, before anything else, and only once.
        """
        self.open()
        self.machine.send(self.message())
        self.map.mark(9)
        self.assertFalse(self.machine.sendAtOnce(self.message()))
        first, second = self.outputs()
        self.assertEqual((first.flags, first.payload[1]), (CONG_BITMAP, 2))
        self.assertEqual(second.destinationPort, 4000)
        self.assertEqual(self.sent(), [])
        self.assertTrue(self.machine.sendAtOnce(self.message()))


class AcknowledgingTests(MachineCase):
    """
    A carrier whose messages ask for acknowledgements (RC).
    """

    acknowledges = True

    def test_asked(self) -> None:
        """
        The first asks, then every so many; a probe always.
        """
        self.machine.connected(0.0)
        self.assertEqual(self.sent()[1], (1, 65535, 0, ACK_REQUIRED))
        self.receive(1, 0, 65535)
        for _ in range(20):
            self.machine.send(self.message())
        asked = [n for n, _, _, flags in self.sent() if flags]
        self.assertEqual(asked, [1 + machine.RDS_UNACKNOWLEDGED, 1 + 2 * machine.RDS_UNACKNOWLEDGED])
        self.machine.disconnected(0.0)

    def test_operation(self) -> None:
        """
        An operation without a message asks for nothing, as nothing is sent of it; it is done when it is
        said to be.
        """
        self.machine.connected(0.0)
        self.sent()
        self.receive(1, 0, 65535)
        for _ in range(machine.RDS_UNACKNOWLEDGED - 1):
            self.machine.send(self.message())
        self.sent()
        arguments = SendOpcode.RDMA_WRITE, 1, 0, b"", 0
        silent = OperationMessage((4000, 4001), None, None, *arguments)
        self.machine.send(silent)
        self.machine.send(OperationMessage((4000, 4001), None, b"", *arguments))
        self.assertEqual([flags for _, _, _, flags in self.sent()], [0, ACK_REQUIRED])
        self.assertTrue(self.machine.finished(silent))
        self.assertFalse(self.machine.finished(silent))

    def test_probePort(self) -> None:
        """
        The probe does not come from port 1: Linux (6.1) warns of that in its log, since it has probes
        over TCP only.  The port is a socket's, for all but the answer.
        """
        self.machine.connected(0.0)
        probe = self.outputs()[1]
        self.assertEqual((probe.sourcePort, probe.destinationPort), (65535, 0))
        self.assertEqual(self.receive(1, 4000, 65535, payload=b"x"), Outcome.DELIVER)
        self.assertEqual(self.receive(2, 65535, 0), Outcome.NOTHING)
        self.assertEqual(self.sent(), [(2, 0, 65535, 0)])
        self.assertFalse(self.machine.isOpen)
        self.assertEqual(self.receive(3, 0, 65535), Outcome.NOTHING)
        self.assertTrue(self.machine.isOpen)
        self.assertEqual(self.receive(4, 0, 65535), Outcome.DELIVER)

    def test_askedForBytes(self) -> None:
        """
        Many bytes ask too.
        """
        for limit, expected in ((2500, 5), (3000, 5), (3001, 6)):
            self.setUp()
            self.patch(machine, "RDS_UNACKNOWLEDGED_BYTES", limit)
            self.open()
            for _ in range(6):
                self.machine.send(self.message(payload=bytes(1000)))
            self.assertEqual([n for n, _, _, flags in self.sent() if flags], [expected])


class ReceivingTests(MachineCase):
    """
    Receiving.
    """

    def test_delivered(self) -> None:
        """
        Data is for its socket; gaps do not matter.
        """
        self.open()
        self.assertEqual(self.receive(2, 1, 5, payload=b"x"), Outcome.DELIVER)
        self.assertEqual(self.receive(9, 0, 5, ACK_REQUIRED), Outcome.DELIVER)
        self.assertEqual((self.machine.nextReceive, self.counters["recv_ack_required"]), (10, 1))

    def test_repeatedAreDropped(self) -> None:
        """
        Only what has the flag and a number that came already.
        """
        self.open()
        for sequence, flags, outcome in (
            (5, 0, Outcome.DELIVER),
            (5, RETRANSMITTED, Outcome.NOTHING),
            (4, AGAIN, Outcome.NOTHING),
            (6, AGAIN, Outcome.DELIVER),
            (6, AGAIN, Outcome.NOTHING),
            (1, 0, Outcome.DELIVER),
            (2, RETRANSMITTED, Outcome.DELIVER),
        ):
            self.assertEqual(self.receive(sequence, 9, 9, flags), outcome, (sequence, flags))
        self.assertEqual(self.counters["recv_drop_old_seq"], 3)

    def test_acrossConnections(self) -> None:
        """
        Duplicates are recognised across connections.
        """
        self.open()
        self.receive(5, 9, 9)
        self.machine.disconnected(0.0)
        self.machine.connected(0.0)
        self.assertEqual(self.receive(5, 9, 9, AGAIN), Outcome.NOTHING)
        self.assertEqual(self.receive(6, 9, 9, AGAIN), Outcome.DELIVER)

    def test_restarted(self) -> None:
        """
        A peer with another generation number counts anew; ours go on, and are repeated.
        """
        self.open()
        self.machine.send(self.message())
        self.outputs()
        self.receive(100, 9, 9)
        self.machine.disconnected(0.0)
        self.machine.connected(0.0)
        self.assertEqual(self.receive(1, 1, 0, extensions=pathsExtensions(1, 8)), Outcome.RESTARTED)
        self.assertEqual(self.counters["peer_restarted"], 1)
        self.assertEqual(self.receive(2, 9, 9, AGAIN), Outcome.DELIVER)
        self.assertEqual(
            self.sent(),
            [(0, 0, 0, CONG_BITMAP), (2, 5000, 4000, AGAIN), (3, 0, 1, 0)],
        )
        self.assertEqual(self.receive(3, 1, 0, extensions=pathsExtensions(1, 8)), Outcome.NOTHING)
        self.assertEqual(self.receive(4, 1, 0, extensions=pathsExtensions(1, 0)), Outcome.NOTHING)

    def test_restartedHigh(self) -> None:
        """
        Retransmissions of another instance are accepted, whatever number its probe had.
        """
        self.open()
        self.assertEqual(self.receive(50, 1, 0, extensions=pathsExtensions(1, 8)), Outcome.RESTARTED)
        self.assertEqual(self.receive(10, 9, 9, AGAIN), Outcome.DELIVER)

    def test_ping(self) -> None:
        """
        The answer goes back to the port, with the next number.
        """
        self.open()
        self.assertEqual(self.receive(2, 4711, 0), Outcome.NOTHING)
        self.assertEqual(self.sent(), [(2, 0, 4711, 0)])
        self.assertEqual((self.counters["recv_ping"], self.counters["send_pong"]), (1, 1))

    def test_pingsBounded(self) -> None:
        """
        A peer that pings without acknowledging gets a bounded number of answers, and then more when it does.
        """
        self.open()
        for number in range(machine.RDS_PONGS + 5):
            self.receive(2 + number, 4711, 0)
        self.assertEqual(self.counters["send_drop_pong"], 5)
        self.assertEqual(len(self.outputs()), machine.RDS_PONGS)
        self.machine.acknowledged(2)
        self.receive(1000, 4711, 0)
        self.receive(1001, 4711, 0)
        self.assertEqual(self.counters["send_drop_pong"], 6)

    def test_probesBounded(self) -> None:
        """
        The same before our probe is answered.
        """
        self.machine.connected(0.0)
        for number in range(machine.RDS_PONGS + 5):
            self.receive(1 + number, 1, 0)
        self.assertEqual(self.counters["send_drop_pong"], 5)

    def test_pingFromCongestedPort(self) -> None:
        """
        It is not answered, as with the kernel.
        """
        self.open()
        ports = CongestionMap()
        ports.mark(4711)
        self.assertEqual(self.receive(0, 0, 0, CONG_BITMAP, ports.pack()), Outcome.CONGESTION)
        self.receive(2, 4711, 0)
        self.assertEqual(self.sent(), [])
        self.assertEqual(self.counters["cong_send_error"], 1)


class MapTests(MachineCase):
    """
    The peer's map.
    """

    def test_changes(self) -> None:
        """
        They are told; the map has no number.
        """
        self.open()
        ports = CongestionMap()
        ports.mark(4000)
        self.assertEqual(self.receive(0, 0, 0, CONG_BITMAP, ports.pack()), Outcome.CONGESTION)
        self.assertIn(4000, self.machine.peerMap)
        self.assertEqual(self.receive(0, 0, 0, CONG_BITMAP, ports.pack()), Outcome.NOTHING)
        self.assertEqual(self.receive(0, 0, 0, CONG_BITMAP, bytes(MAP_BYTES)), Outcome.CONGESTION)
        self.assertNotIn(4000, self.machine.peerMap)
        self.assertEqual(self.machine.nextReceive, 2)
        self.assertEqual(self.counters["cong_update_received"], 3)

    def test_badMaps(self) -> None:
        """
        One of another length or with ports is counted, and changes nothing.
        """
        self.open()
        full = b"\xff" * MAP_BYTES
        for payload, source, target in (
            (full[:-1], 0, 0),
            (full + b"\xff", 0, 0),
            (b"", 0, 0),
            (full, 5, 0),
            (full, 0, 5),
        ):
            self.assertEqual(self.receive(0, source, target, CONG_BITMAP, payload), Outcome.NOTHING)
        self.assertEqual(self.counters["recv_bad_map"], 5)
        self.assertEqual(self.machine.peerMap.pack(), bytes(MAP_BYTES))
        self.assertEqual(self.machine.nextReceive, 2)


class HostileTests(MachineCase):
    """
    Messages that no correct peer sends.
    """

    def test_length(self) -> None:
        """
        A payload that is not what the header says, or too long.
        """
        self.open()
        self.assertEqual(
            self.machine.received(
                RDSHeader(2, length=4, sourcePort=9, destinationPort=9).fields(), b"abc", 0.0
            ),
            Outcome.NOTHING,
        )
        self.assertEqual(self.receive(2, 9, 9, payload=bytes((1 << 20) + 1)), Outcome.NOTHING)
        self.assertEqual(self.counters["recv_bad_length"], 2)
        self.assertEqual(self.machine.nextReceive, 2)

    def test_ports(self) -> None:
        """
        Port 0 to port 0, and anything but an answer to port 1.
        """
        self.open()
        self.assertEqual(self.receive(2, 0, 0), Outcome.NOTHING)
        self.assertEqual(self.receive(3, 9, 1, payload=b"data"), Outcome.NOTHING)
        self.assertEqual((self.counters["recv_bad_port"], self.counters["recv_drop_no_sock"]), (1, 1))
        self.assertEqual(self.sent(), [])

    def test_extensions(self) -> None:
        """
        Unknown ones are counted, and the message is taken.
        """
        self.open()
        self.assertEqual(self.receive(2, 9, 9, extensions=b"\xff" * 16), Outcome.DELIVER)
        self.receive(3, 1, 0, extensions=b"\x63" + bytes(15))
        self.assertEqual(self.counters["recv_bad_extension"], 2)
        self.assertEqual(self.sent(), [(2, 0, 1, 0)])

    def test_highestNumber(self) -> None:
        """
        A peer at the end of the numbers does harm to itself only.
        """
        self.open()
        self.assertEqual(self.receive((1 << 64) - 1, 9, 9), Outcome.DELIVER)
        self.assertEqual(self.receive(5, 9, 9, AGAIN), Outcome.NOTHING)
        self.assertEqual(self.receive(6, 9, 9), Outcome.DELIVER)

    def test_unknownFlags(self) -> None:
        """
        They change nothing; a map with one more flag is no map.
        """
        self.open()
        self.assertEqual(self.receive(2, 9, 9, 0xF8), Outcome.DELIVER)
        self.assertEqual(self.receive(3, 0, 0, 0x21, bytes(MAP_BYTES)), Outcome.NOTHING)
        self.assertEqual(self.counters["cong_update_received"], 0)
