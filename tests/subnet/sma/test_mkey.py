"""
Tests of M_Key protection at L{twisted_ib.subnet.sma} (IBTA vol. 1 14.2.4).
"""

from __future__ import annotations

from tests.subnet.sma.cases import SMATestCase, smp
from twisted_ib.hca.mad.attributes.notice import BadMKeyDetails, NoticeType, Trap
from twisted_ib.hca.mad.attributes.port import PortInfo
from twisted_ib.hca.wire.mad.classes import DirectedHeader
from twisted_ib.hca.wire.mad.mad import GET, SET, TRAP_REPRESS

KEY = 0x0102030405060708
WRONG = 0x1112131415161718


class KeyTests(SMATestCase):
    """
    A CA's port with an M_Key.
    """

    def setUp(self) -> None:
        """
        Give it one.
        """
        super().setUp()
        self.one = self.port("Hca1", 1)
        self.one.mkey, self.one.mkeyLeasePeriod, self.one.lid = KEY, 10, 5

    def shown(self, key: int) -> int | None:
        """
        @return: the M_Key that a Get of PortInfo reads, if it is answered.
        """
        octets = self.respond(self.one, smp(GET, PortInfo.ID, key=key)).octets
        return None if octets is None else PortInfo.parse(octets[64:]).mkey

    def test_protectBits(self) -> None:
        """
        Each value of the protect bits, for who knows the M_Key and who does not.
        """
        for bits, shown in ((0, KEY), (1, 0), (2, None), (3, None)):
            self.one.protectBits = bits
            self.assertEqual(self.shown(WRONG), shown)
            self.assertEqual(self.shown(0), shown)
            self.assertEqual(self.shown(KEY), KEY)

    def test_set(self) -> None:
        """
        A Set needs the M_Key, whatever the protect bits; a port without one takes any.
        """
        for bits in range(4):
            self.one.protectBits = bits
            request = PortInfo(mkey=KEY, lid=6, protectBits=bits)
            answer = self.respond(self.one, smp(SET, PortInfo.ID, data=request.pack(), key=WRONG))
            self.assertEqual((answer.octets, answer.changes, self.one.lid), (None, (), 5))
        self.assertEqual(self.one.mkeyViolations, 4)
        self.assertEqual(self.set(self.one, PortInfo(lid=6), key=KEY)[1].changes[0].port, self.one)
        self.assertEqual((self.one.mkey, self.one.lid), (0, 6))
        self.assertIsNotNone(self.respond(self.one, smp(SET, PortInfo.ID, key=WRONG)).octets)

    def test_setAnew(self) -> None:
        """
        The answer to a Set has the M_Key that was set.
        """
        request = PortInfo(mkey=WRONG, lid=5, protectBits=1)
        octets = self.respond(self.one, smp(SET, PortInfo.ID, data=request.pack(), key=KEY)).octets
        assert octets is not None
        self.assertEqual(PortInfo.parse(octets[64:]).mkey, WRONG)
        self.assertEqual(self.shown(KEY), 0)

    def test_violations(self) -> None:
        """
        They are counted up to the counter's end; a Get that is answered is none.
        """
        self.one.mkeyViolations = 0xFFFE
        for _ in range(3):
            self.respond(self.one, smp(SET, PortInfo.ID, key=WRONG))
        self.assertEqual(self.one.mkeyViolations, 0xFFFF)
        self.one.mkeyViolations = 0
        self.shown(WRONG)
        self.assertEqual(self.one.mkeyViolations, 0)

    def test_lease(self) -> None:
        """
        When the lease ends the port is no longer protected; the M_Key in time stops it.
        """
        self.one.protectBits = 3
        self.assertIsNone(self.shown(WRONG))
        self.now = 9.0
        self.assertEqual(self.shown(KEY), KEY)
        self.assertIsNone(self.shown(WRONG))
        self.now = 18.9
        # It is not begun anew.
        self.assertIsNone(self.shown(WRONG))
        self.now = 19.0
        self.assertEqual(self.shown(WRONG), KEY)
        self.assertEqual(self.one.protectBits, 0)

    def test_forgotten(self) -> None:
        """
        Of a node that is gone no lease is left: back with its M_Key, the lease begins anew.
        """
        self.one.protectBits = 3
        self.assertIsNone(self.shown(WRONG))
        self.sma.forget(self.one.node)
        self.now = 10.0
        self.assertIsNone(self.shown(WRONG))
        self.sma.forget(self.node("Switch1"))
        self.now = 20.0
        self.assertEqual(self.shown(WRONG), KEY)

    def test_noLease(self) -> None:
        """
        A lease of 0 never ends.
        """
        self.one.protectBits, self.one.mkeyLeasePeriod = 3, 0
        self.assertIsNone(self.shown(WRONG))
        self.now = 1e9
        self.assertIsNone(self.shown(WRONG))

    def test_otherPort(self) -> None:
        """
        Of a CA's other port the M_Key is hidden from who does not know it.
        """
        other = self.port("Hca1", 2)
        other.mkey, other.protectBits = WRONG, 1
        octets = self.respond(self.one, smp(GET, PortInfo.ID, 2, key=KEY)).octets
        assert octets is not None
        self.assertEqual(PortInfo.parse(octets[64:]).mkey, 0)

    def test_switch(self) -> None:
        """
        The M_Key of a switch is that of its port 0, by whichever port an SMP comes.
        """
        own, far = self.port("Switch1", 0), self.port("Switch1", 1)
        own.mkey = KEY
        self.assertIsNone(self.respond(far, smp(SET, PortInfo.ID, 1, key=WRONG)).octets)
        self.assertEqual((own.mkeyViolations, far.mkeyViolations), (1, 0))

    def test_repress(self) -> None:
        """
        A TrapRepress needs the M_Key too.
        """
        self.assertFalse(self.sma.permits(self.one, smp(TRAP_REPRESS, 2, key=WRONG), 0.0))
        self.assertTrue(self.sma.permits(self.one, smp(TRAP_REPRESS, 2, key=KEY), 0.0))
        self.assertEqual(self.one.mkeyViolations, 1)

    def test_trap(self) -> None:
        """
        A violation is reported: the SMP, and its way.
        """
        answer = self.respond(self.one, smp(SET, PortInfo.ID, 1, key=WRONG), slid=9)
        ((port, notice),) = answer.notices
        self.assertIs(port, self.one)
        self.assertEqual(notice.pack()[:8].hex(), "8200000101000005")
        self.assertEqual(notice.noticeType, NoticeType.SECURITY)
        self.assertEqual(notice.noticeTrapNumber, Trap.BAD_MKEY)
        expected = BadMKeyDetails(lid=9, method=2, attribute=0x15, modifier=1, mkey=WRONG)
        self.assertEqual(BadMKeyDetails.parse(notice.details), expected)

    def test_trapDirected(self) -> None:
        """
        Of a directed route as many hops as there is room for.
        """
        path = bytes(range(64))
        for hops, count, truncated in ((0, 0, 0), (2, 2, 0), (30, 30, 0), (31, 30, 1), (63, 30, 1)):
            request = bytearray(smp(SET, PortInfo.ID, header=DirectedHeader(WRONG, returnPath=path)))
            request[7] = hops
            ((_, notice),) = self.respond(self.one, bytes(request)).notices
            details = BadMKeyDetails.parse(notice.details)
            self.assertEqual(
                (details.directedRoute, details.drSLID, details.routeHops, details.truncated),
                (1, 0xFFFF, count, truncated),
            )
            self.assertEqual(details.returnPath, path[1 : 1 + count].ljust(30, b"\0"))
