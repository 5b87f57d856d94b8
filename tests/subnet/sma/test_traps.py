"""
Tests of L{twisted_ib.subnet.sma.agent}.
"""

from __future__ import annotations

from attrs import evolve

from tests.subnet.sma.cases import SMATestCase
from twisted_ib import limits
from twisted_ib.hca.base.port import PhysicalState, PortState
from twisted_ib.hca.mad.attributes.notice import LinkStateDetails, Notice, NoticeType, Trap
from twisted_ib.hca.wire.mad.mad import TRAP_REPRESS, decodeMAD
from twisted_ib.subnet.sma.agent import Traps, notice, setSM

#: SubnetTimeout 18, as OpenSM sets it.
INTERVAL = 4.096e-6 * 2**18


class TrapTests(SMATestCase):
    """
    The traps of a switch with a subnet manager at LID 1.
    """

    def setUp(self) -> None:
        """
        Give a switch its LIDs.
        """
        super().setUp()
        self.source = self.port("Switch1", 0)
        self.source.lid, self.source.smLID, self.source.subnetTimeout = 2, 1, 18
        self.lost: list[str] = []
        self.number = 0x0102030405060708
        self.traps = Traps(self.randomBits, self.lost.append)

    def randomBits(self, bits: int) -> int:
        """
        @return: another number each time.
        """
        self.number += 1
        return self.number & ((1 << bits) - 1)

    def event(self, lid: int = 2) -> Notice:
        """
        @return: a trap 128.
        """
        details = LinkStateDetails(lid=lid)
        return notice(self.source, NoticeType.URGENT, Trap.LINK_STATE_CHANGED, details)

    def sent(self, now: float) -> list[int]:
        """
        @return: the transaction ids of what is sent.
        """
        return [decodeMAD(each.octets).transaction for each in self.traps.due(now)]

    def repress(self, octets: bytes, transaction: int | None = None) -> bool:
        """
        Answer a trap as OpenSM does through ibsim's clients, which write into the upper half of its id.
        """
        mad = decodeMAD(octets)
        if transaction is None:
            transaction = 0x0001000200000000 | mad.transaction
        return self.traps.repressed(
            self.source, evolve(mad, method=TRAP_REPRESS, transaction=transaction).pack()
        )

    def test_octets(self) -> None:
        """
        Trap 128 of a switch: to the manager's LID, from its own.
        """
        self.traps.changed(self.graph.unlink(self.port("Hca1", 1)), 0.0)
        ((port, dlid, octets),) = self.traps.due(0.0)
        self.assertIs(port, self.source)
        self.assertEqual(dlid, 1)
        self.assertEqual(octets[:24].hex(), "01010105000000000000000005060709" + "0002000000000000")
        self.assertEqual(octets[24:64], bytes(40))
        self.assertEqual(octets[64:].hex(), "810000020080000200000002" + "00" * 180)

    def test_repeated(self) -> None:
        """
        It is sent once in each SubnetTimeout until it is repressed; then nothing is left of it.
        """
        self.assertIsNone(self.traps.deadline())
        self.traps.add(self.source, self.event(), 5.0)
        self.assertEqual(self.traps.deadline(), 5.0)
        first = self.sent(5.0)
        self.assertEqual(len(first), 1)
        self.assertEqual(self.traps.deadline(), 5.0 + INTERVAL)
        self.assertEqual(self.sent(5.0 + INTERVAL / 2), [])
        (again,) = self.traps.due(5.0 + INTERVAL)
        self.assertEqual([decodeMAD(again.octets).transaction], first)
        self.assertTrue(self.repress(again.octets))
        self.assertIsNone(self.traps.deadline())
        self.assertEqual(self.sent(100.0), [])
        self.traps.add(self.source, self.event(), 100.0)
        self.assertEqual(len(self.sent(100.0)), 1)

    def test_shortTimeout(self) -> None:
        """
        However short the SubnetTimeout is that a subnet manager has set, there is time between repetitions.
        """
        for code, seconds in ((0, 0.1), (14, 0.1), (15, 4.096e-6 * 2**15)):
            self.source.subnetTimeout = code
            self.traps.add(self.source, self.event(), 0.0)
            (sent,) = self.traps.due(0.0)
            self.assertEqual(self.traps.deadline(), seconds)
            self.repress(sent.octets)
            self.traps.forget(self.source.node)

    def test_sameEvent(self) -> None:
        """
        An event that is reported already is the same trap, sent no earlier.
        """
        self.traps.add(self.source, self.event(), 0.0)
        first = self.sent(0.0)
        self.traps.add(self.source, self.event(), 0.1)
        self.assertEqual(self.sent(0.1), [])
        self.assertEqual(self.sent(INTERVAL), first)

    def test_otherEvent(self) -> None:
        """
        Another event of the number takes its place: a TrapRepress of the first does not end it.
        """
        self.traps.add(self.source, self.event(), 0.0)
        (first,) = self.traps.due(0.0)
        self.traps.add(self.source, self.event(3), 0.1)
        self.assertFalse(self.repress(first.octets))
        self.assertEqual(self.sent(0.1), [])
        (second,) = self.traps.due(INTERVAL)
        self.assertEqual(Notice.parse(second.octets[64:]).details[:2].hex(), "0003")
        self.assertTrue(self.repress(second.octets))

    def test_eventAfterRepress(self) -> None:
        """
        An event that follows at once on a TrapRepress waits for the end of the SubnetTimeout.
        """
        self.traps.add(self.source, self.event(), 0.0)
        (first,) = self.traps.due(0.0)
        self.assertTrue(self.repress(first.octets))
        self.assertEqual(self.sent(0.05), [])
        self.traps.add(self.source, self.event(), 0.1)
        self.assertEqual(self.sent(0.1), [])
        self.assertEqual(self.traps.deadline(), INTERVAL)
        self.assertNotEqual(self.sent(INTERVAL), [decodeMAD(first.octets).transaction])

    def test_repressedWrongly(self) -> None:
        """
        A TrapRepress with another transaction id, number or port, twice, or no MAD at all.
        """
        self.traps.add(self.source, self.event(), 0.0)
        ((port, _, octets),) = self.traps.due(0.0)
        mad = decodeMAD(octets)
        self.assertFalse(self.repress(octets, mad.transaction + 1))
        other = evolve(mad, data=evolve(self.event(), noticeTrapNumber=144).pack())
        self.assertFalse(self.repress(other.pack()))
        self.assertFalse(self.traps.repressed(self.port("Hca1", 1), octets))
        for data in (b"", octets[:-1], b"\2" + octets[1:], b"\1\7\2\3" + bytes(12) + b"\0\x10" + bytes(238)):
            self.assertFalse(self.traps.repressed(port, data))
        self.assertTrue(self.repress(octets))
        self.assertFalse(self.repress(octets))

    def test_numbers(self) -> None:
        """
        Each trap number of each port has its own time.
        """
        self.traps.add(self.source, self.event(), 0.0)
        self.assertEqual(len(self.sent(0.0)), 1)
        for port, event in setSM(self.source, True):
            self.traps.add(port, event, 0.1)
        self.assertEqual(len(self.sent(0.1)), 1)
        self.assertEqual(len(self.sent(0.1 + INTERVAL)), 2)
        self.assertEqual(setSM(self.source, True), ())
        self.assertEqual(len(setSM(self.source, False)), 1)

    def test_noManager(self) -> None:
        """
        Without a subnet manager nothing is sent, but a notice waits; one that goes takes its traps with it.
        """
        self.traps.add(self.port("Switch2", 0), self.event(), 0.0)
        self.assertEqual(list(self.port("Switch2", 0).notices), [self.event()])
        self.assertEqual((self.sent(0.0), self.lost), ([], ["trap_no_manager"]))
        self.traps.add(self.source, self.event(), 0.0)
        self.source.smLID = 0
        self.assertEqual(self.sent(0.0), [])
        self.assertIsNone(self.traps.deadline())

    def test_forgotten(self) -> None:
        """
        A node that is gone sends nothing more.
        """
        self.traps.add(self.source, self.event(), 0.0)
        self.traps.forget(self.node("Switch2"))
        self.assertEqual(self.traps.deadline(), 0.0)
        self.traps.forget(self.source.node)
        self.assertEqual(self.sent(0.0), [])

    def test_bound(self) -> None:
        """
        There is room for so many; what was repressed makes some.
        """
        self.patch(limits, "SUBNET_TRAPS", 1)
        other = self.port("Switch2", 0)
        other.lid, other.smLID = 3, 1
        self.traps.add(self.source, self.event(), 0.0)
        (sent,) = self.traps.due(0.0)
        self.traps.add(other, self.event(), 0.1)
        self.assertEqual(self.lost, ["trap_dropped"])
        self.repress(sent.octets)
        self.traps.add(other, self.event(), INTERVAL)
        self.assertEqual([each.port for each in self.traps.due(INTERVAL)], [other])

    def test_storm(self) -> None:
        """
        A link that goes up and down a thousand times in a second is two traps at most.
        """
        near, far = self.port("Hca1", 1), self.port("Switch1", 1)
        count = 0
        for turn in range(1000):
            now = turn / 1000
            self.traps.changed(self.graph.unlink(near), now)
            self.traps.changed(self.graph.link(near, far), now)
            for each in self.traps.due(now):
                self.assertTrue(self.repress(each.octets))
                count += 1
        self.assertEqual(count, 1)
        self.assertEqual(far.state, PortState.INIT)

    def test_disabled(self) -> None:
        """
        A switch port that an SMP disables, or enables, is reported by its switch, which loses a link that
        nobody else can tell of (issue 32, line 18).
        """
        far = self.port("Switch1", 1)
        for turn, state in enumerate((PhysicalState.DISABLED, PhysicalState.POLLING)):
            self.traps.changed(far.setPhysicalState(state), 100.0 * turn)
            (sent,) = self.traps.due(100.0 * turn)
            self.assertIs(sent.port, self.source)
            self.assertTrue(self.repress(sent.octets))
        # Down before and after: no link has changed.
        self.traps.changed(self.port("Switch1", 7).setPhysicalState(PhysicalState.DISABLED), 300.0)
        self.assertEqual(self.sent(300.0), [])

    def test_onlyLinks(self) -> None:
        """
        Changes that a subnet manager makes are not reported, nor are those of a CA alone.
        """
        near, far = self.port("Hca1", 1), self.port("Switch1", 1)
        changes = far.setState(PortState.ARMED)
        assert changes is not None
        self.traps.changed(changes, 0.0)
        changes = near.setState(PortState.ARMED)
        assert changes is not None
        self.traps.changed(changes, 0.0)
        self.assertEqual((self.sent(0.0), self.lost), ([], []))
