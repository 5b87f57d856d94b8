"""
Tests of L{twisted_ib.hca.device.addressing.resolution}: who gets a datagram, and who is in a group.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.device.addressing.test_processes import HIGHER, OWN, FakeDevice, FakePath
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError, RunDirectoryError
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.wire.grh import guidGID

#: A group of IPv6 and one of IPv4 (annex A17).
GROUP, IPV4_GROUP = 0xFF0E << 112 | 5, 0xFFFF << 32 | 0xE0000005
#: DETH, and with the longest payload and immediate data.
SHORTEST, LONGEST = 8, 8 + 4 + limits.DATAGRAM_BYTES


class Pair:
    """
    A queue pair, of which nobody knows more than this.
    """

    def __init__(self, number: int, **fields: Any) -> None:
        self.number = number
        self.type, self.state, self.partition = QPType.UD, QPState.RTS, 0x8001
        self.work: Any = mock.Mock()
        vars(self).update(fields)


class ResolutionTestCase(SynchronousTestCase):
    """
    A device with datagrams that have a head of two octets, of which the first names a group.
    """

    def setUp(self) -> None:
        """
        A device.
        """
        self.device: Any = FakeDevice()
        self.device.datagramForm = SimpleNamespace(size=2, group=lambda record: GROUP if record[0] else 0)
        self.device.gid = guidGID(OWN)
        self.device.port = SimpleNamespace(gids=[guidGID(OWN), guidGID(HIGHER)])
        self.device.fabric.join, self.device.fabric.leave = mock.Mock(), mock.Mock()
        self.paths = self.device.paths

    def pair(self, number: int, **fields: Any) -> Any:
        """
        @return: a queue pair that takes datagrams.
        """
        pair = Pair(number, **fields)
        self.device.queuePairs[number] = pair
        return pair

    def receive(self, record: bytes, number: int = 20, partition: int = 0, path: Any = None) -> None:
        """
        A datagram comes, in the middle of a buffer.
        """
        found = FakePath(HIGHER) if path is None else path
        arguments = found, 0x64, number, b"..." + record + b".", 3, 3 + len(record)
        # Fabrics of one host have no partitions.
        self.paths.datagramReceived(*arguments, *([partition] if partition else []))

    def got(self, *pairs: Any) -> list[int]:
        """
        @return: how many datagrams each has got.
        """
        return [each.work.responder.received.call_count for each in pairs]


class DatagramTests(ResolutionTestCase):
    """
    Datagrams that come.
    """

    def test_lengths(self) -> None:
        """
        They have a DETH, and at most the longest payload with immediate data.
        """
        pair = self.pair(20)
        for length, isTaken in ((SHORTEST - 1, 0), (SHORTEST, 1), (LONGEST, 2), (LONGEST + 1, 2)):
            record = bytes(2 + length)
            self.receive(record)
            self.assertEqual(self.got(pair), [isTaken], length)
        path, opcode, data, start, stop = pair.work.responder.received.call_args.args
        self.assertEqual(
            (path.peer.guid, opcode, data, start, stop), (HIGHER, 0x64, bytes(LONGEST + 2), 0, LONGEST + 2)
        )
        self.assertEqual(self.device.counters, {"datagrams_malformed": 2})

    def test_takers(self) -> None:
        """
        A queue pair takes them if it is one for datagrams, with work queues, in a state that receives.
        """
        for fields, takes in (
            ({}, 1),
            ({"state": QPState.RTR}, 1),
            ({"state": QPState.INIT}, 0),
            ({"state": QPState.ERR}, 0),
            ({"type": QPType.RC}, 0),
        ):
            pair = self.pair(20, **fields)
            self.receive(bytes(10))
            self.assertEqual(self.got(pair), [takes], fields)
        self.pair(20, work=None)
        self.receive(bytes(10))
        self.receive(bytes(10), 21)
        self.assertEqual(self.device.counters, {"datagrams_unclaimed": 5})

    def test_unproven(self) -> None:
        """
        The sender of a datagram that somebody takes must be proven.
        """
        pair = self.pair(20)
        self.device.fabric.proofs = [False]
        self.receive(bytes(10), 21)
        self.assertEqual(self.device.fabric.asked, 0)
        self.receive(bytes(10))
        self.assertEqual(self.got(pair), [0])
        self.assertEqual(self.device.counters["datagrams_unproven"], 1)

    def test_group(self) -> None:
        """
        One to a group is for each of its queue pairs that has its partition.
        """
        pairs = [self.pair(20), self.pair(21, partition=0x8002), self.pair(22, state=QPState.INIT)]
        other = self.pair(23)
        for each in pairs:
            self.paths.attach(each, GROUP)
        self.receive(b"\1" + bytes(9), 23)
        self.assertEqual(self.got(*pairs, other), [1, 1, 0, 0])
        self.receive(b"\1" + bytes(9), 23, 0x8002)
        self.assertEqual(self.got(*pairs, other), [1, 2, 0, 0])
        self.assertEqual(self.device.counters, {"packets_bad_pkey": 1})


class GroupTests(ResolutionTestCase):
    """
    Members of multicast groups.
    """

    def test_members(self) -> None:
        """
        The fabric hears of the first member and of the last that leaves.
        """
        one, two = self.pair(20), self.pair(21)
        for _ in range(2):
            self.paths.attach(one, GROUP)
        self.paths.attach(two, GROUP)
        self.paths.attach(two, IPV4_GROUP)
        self.assertEqual(self.device.fabric.join.mock_calls, [mock.call(GROUP), mock.call(IPV4_GROUP)])
        self.assertEqual((self.paths.groupsOf(one), self.paths.groupsOf(two)), ([GROUP], [GROUP, IPV4_GROUP]))
        self.paths.detach(one, GROUP)
        self.device.fabric.leave.assert_not_called()
        error = self.assertRaises(QueuePairError, self.paths.detach, one, GROUP)
        self.assertIn("20", str(error))
        self.paths.queuePairClosed(two)
        self.assertEqual(self.device.fabric.leave.mock_calls, [mock.call(GROUP), mock.call(IPV4_GROUP)])
        self.assertEqual(self.paths.groupsOf(two), [])

    def test_refused(self) -> None:
        """
        A group is multicast, and its members are for datagrams; one that cannot be published has none.
        """
        self.assertRaises(QueuePairError, self.paths.attach, self.pair(20, type=QPType.RC), GROUP)
        for gid in (GROUP ^ 1 << 127, IPV4_GROUP ^ 1 << 31, 0):
            self.assertRaises(QueuePairError, self.paths.attach, self.pair(20), gid)
        self.device.fabric.join.side_effect = RunDirectoryError("unwritten")
        pair = self.pair(20)
        self.assertRaises(RunDirectoryError, self.paths.attach, pair, GROUP)
        self.assertEqual(self.paths.groupsOf(pair), [])

    def test_bounds(self) -> None:
        """
        So many groups, and so many queue pairs in one.
        """
        self.patch(limits, "MULTICAST_GROUPS", 2)
        self.patch(limits, "MULTICAST_QUEUE_PAIRS", 2)
        pairs = [self.pair(number) for number in range(3)]
        for each in pairs[:2]:
            for gid in (GROUP, IPV4_GROUP):
                for _ in range(2):
                    self.paths.attach(each, gid)
        self.assertRaises(ResourceLimitError, self.paths.attach, pairs[2], GROUP)
        self.assertRaises(ResourceLimitError, self.paths.attach, pairs[0], GROUP + 1)
        self.assertEqual([len(self.paths.groupsOf(each)) for each in pairs], [2, 2, 0])


class TableTests(ResolutionTestCase):
    """
    The GID table.
    """

    def test_own(self) -> None:
        """
        The port's GIDs, the loopback address that is made of the GUID, and those of the host.
        """
        gids = self.paths.gids()
        self.assertEqual(gids[:3], ["fe80::501", "fe80::901", "127.128.2.128"])
        self.assertIn("127.0.0.1", gids[3:])
        self.device.gid = guidGID(7)
        self.paths.isLocal = lambda address: address == "10.0.0.1"
        for gid, has in (
            (guidGID(7), True),
            (guidGID(HIGHER), True),
            (guidGID(8), False),
            (0xFFFF << 32 | 0x0A000001, True),
        ):
            self.assertEqual(self.paths.hasGID(gid), has)
        self.assertEqual(
            (self.paths.nodeGUID, self.paths.guidOf("fe80::7"), self.paths.lidOf(None)), (OWN, 0, 0)
        )
        self.assertEqual((self.paths.hostNamed("a"), self.paths.unknownHost("a")), ("", ""))
        self.device.clock = self.device.clock.seconds
        for address, source in ("192.0.2.1", "192.0.2.1"), ("127.0.0.2", "127.0.0.1"):
            self.assertEqual(self.paths.sourceFor(address), source)
        for address, isGUID in (("fe80::7", True), ("fe80::7%1", False), ("10.0.0.1", False)):
            self.assertEqual(self.paths.isOfGUID(address), isGUID)
