"""
Tests of L{twisted_ib.subnet.sa.paths}.
"""

from __future__ import annotations

from attrs import evolve

from tests.subnet.sa.cases import (
    FULL,
    KEY,
    LIMITED,
    SWITCH,
    SWITCH_LID,
    AdministrationTestCase,
    gidOf,
)
from twisted_ib import limits
from twisted_ib.hca.mad.attributes.administration import PathRecord, Selector
from twisted_ib.hca.wire.mad.administration import GET_TABLE, SAStatus
from twisted_ib.hca.wire.mad.mad import GET
from twisted_ib.subnet.network.switch import NO_PORT
from twisted_ib.subnet.sa.paths import LIFE_TIME

GIDS = "sgid", "dgid"
LIDS = "slid", "dlid"
#: As OpenSM answers for links of 4 lanes and 2.5 Gb/s each.
PATH = PathRecord(
    dgid=gidOf(3),
    sgid=gidOf(2),
    dlid=3,
    slid=2,
    reversible=1,
    pKey=FULL,
    mtuSelector=Selector.EXACTLY,
    mtu=4,
    rateSelector=Selector.EXACTLY,
    rate=3,
    packetLifeTimeSelector=Selector.EXACTLY,
    packetLifeTime=LIFE_TIME,
)


class PathTests(AdministrationTestCase):
    """
    L{Paths<twisted_ib.subnet.sa.paths.Paths>}.
    """

    def test_path(self) -> None:
        """
        By GIDs or by LIDs, in both directions.
        """
        self.assertEqual(self.get(PathRecord(sgid=gidOf(2), dgid=gidOf(3)), *GIDS), PATH)
        self.assertEqual(self.get(PathRecord(slid=2, dlid=3), *LIDS), PATH)
        back = evolve(PATH, dgid=PATH.sgid, sgid=PATH.dgid, dlid=PATH.slid, slid=PATH.dlid)
        self.assertEqual(self.get(PathRecord(sgid=gidOf(3), dlid=2), "sgid", "dlid"), back)
        self.assertEqual(self.table(PATH, *GIDS), [PATH])

    def test_kernel(self) -> None:
        """
        As Linux asks (sa_query.c, cma.c): one reversible path in a partition, for a service; what tells
        qualities of service apart comes back.
        """
        asked = PathRecord(
            sgid=gidOf(2),
            dgid=gidOf(3),
            reversible=1,
            numbPath=1,
            pKey=FULL,
            serviceID=0x1234,
            tClass=0x20,
            qosClass=3,
        )
        names = *GIDS, "reversible", "numbPath", "pKey", "serviceID", "tClass", "qosClass"
        expected = evolve(PATH, serviceID=0x1234, tClass=0x20, qosClass=3)
        self.assertEqual(self.get(asked, *names), expected)

    def test_slowest(self) -> None:
        """
        MTU and rate are those of the worst link.
        """
        far = self.model.nodes[SWITCH].ports[3]
        far.info = evolve(far.info, neighborMTU=2, linkWidthActive=1)
        found = self.get(PATH, *GIDS)
        self.assertEqual((found.mtu, found.rate), (2, 2))
        found = self.get(PathRecord(sgid=gidOf(2), dgid=gidOf(1)), *GIDS)
        self.assertEqual((found.mtu, found.rate), (4, 3))

    def test_selectors(self) -> None:
        """
        A path can be used with less than it has: the highest MTU and rate that the selectors leave, if there
        is one.  A packet's lifetime is what it is.
        """
        for selector, asked, expected in (
            (Selector.GREATER, 2, 4),
            (Selector.GREATER, 4, None),
            (Selector.LESS, 5, 4),
            (Selector.LESS, 4, 3),
            (Selector.LESS, 1, None),
            (Selector.EXACTLY, 2, 2),
            (Selector.EXACTLY, 5, None),
            (Selector.BEST, 1, 4),
            (Selector.EXACTLY, 9, None),
        ):
            with self.subTest(selector=selector, mtu=asked):
                record = evolve(PATH, mtuSelector=selector, mtu=asked)
                found = self.table(record, *GIDS, "mtuSelector", "mtu")
                self.assertEqual([each.mtu for each in found], [] if expected is None else [expected])
        for selector, asked, expected in (
            # 2.5, 5 and 10 Gb/s.
            (Selector.GREATER, 5, 3),
            (Selector.LESS, 3, 5),
            (Selector.LESS, 5, 2),
            (Selector.LESS, 2, None),
            (Selector.EXACTLY, 11, None),
        ):
            with self.subTest(selector=selector, rate=asked):
                record = evolve(PATH, rateSelector=selector, rate=asked)
                found = self.table(record, *GIDS, "rateSelector", "rate")
                self.assertEqual([each.rate for each in found], [] if expected is None else [expected])
        names = *GIDS, "packetLifeTimeSelector", "packetLifeTime"
        for selector, count in ((Selector.LESS, 0), (Selector.EXACTLY, 1)):
            record = evolve(PATH, packetLifeTimeSelector=selector)
            self.assertEqual(len(self.table(record, *names)), count)

    def test_partitions(self) -> None:
        """
        A path is in a partition that both ports are in, one of them as a full member; a requester that is in
        none with them is not told.
        """
        storage = 0x8001
        self.port(2).keys, self.port(3).keys = (LIMITED, 0x0001), (LIMITED, storage)
        self.assertEqual(self.get(PathRecord(slid=2, dlid=3), *LIDS).pKey, 0x0001)
        names = *LIDS, "pKey"
        self.assertEqual(self.get(PathRecord(slid=2, dlid=3, pKey=storage), *names).pKey, storage)
        for key in (FULL, LIMITED, 0x8002, 0):
            self.assertEqual(self.table(PathRecord(slid=2, dlid=3, pKey=key), *names), [])
        self.port(2).keys = (0x8003,)
        self.assertEqual(self.table(PathRecord(slid=1, dlid=3), *LIDS), [])
        self.assertEqual(len(self.table(PathRecord(slid=1, dlid=3), *LIDS, key=KEY)), 1)

    def test_itself(self) -> None:
        """
        From a port to itself a packet takes no time.
        """
        for lid, mtu in ((2, 4), (SWITCH_LID, 3)):
            found = self.get(PathRecord(slid=lid, dlid=lid), *LIDS)
            self.assertEqual((found.packetLifeTime, found.mtu, found.reversible), (0, mtu, 1))

    def test_world(self) -> None:
        """
        Paths from a port to all, and between all, are in a table, of which a query without transfers gets
        what one MAD has room for.
        """
        found = self.table(PathRecord(slid=2), "slid")
        self.assertEqual([each.dlid for each in found], [SWITCH_LID, 1, 2])
        self.assertEqual(self.status(GET, PathRecord()), SAStatus.TOO_MANY_RECORDS)

    def test_absent(self) -> None:
        """
        A GID that is not in the subnet is invalid; a LID has no paths.
        """
        for gid in (gidOf(9), gidOf(2) ^ 1 << 64, 0):
            self.assertEqual(self.status(GET, evolve(PATH, dgid=gid), *GIDS), SAStatus.INVALID_GID)
            self.assertEqual(self.status(GET_TABLE, evolve(PATH, sgid=gid), *GIDS), SAStatus.INVALID_GID)
        self.assertEqual(self.status(GET, evolve(PATH, dlid=9), *LIDS), SAStatus.NO_RECORDS)
        self.assertEqual(
            self.status(GET, PathRecord(slid=2, sgid=gidOf(3)), "slid", "sgid"), SAStatus.NO_RECORDS
        )

    def test_noWay(self) -> None:
        """
        Without a way there is no path; without a way back it is not reversible.
        """
        switch = self.model.nodes[SWITCH].switch
        table = bytearray(switch.linear)
        table[2] = NO_PORT
        switch.linear = bytes(table)
        self.assertEqual(self.get(PATH, *LIDS).reversible, 0)
        self.assertEqual(self.table(PATH, *LIDS, "reversible"), [])
        self.assertEqual(self.table(PathRecord(slid=3, dlid=2), *LIDS), [])
        self.assertEqual([each.dlid for each in self.table(PathRecord(slid=3), "slid")], [SWITCH_LID, 1, 3])

    def test_bounds(self) -> None:
        """
        A query about too many paths is refused, and what is remembered of paths is bounded.
        """
        self.patch(limits, "SA_TABLE_PATHS", 15)
        self.assertEqual(self.status(GET_TABLE, PathRecord()), SAStatus.NO_RESOURCES)
        self.patch(limits, "SA_TABLE_PATHS", 16)
        self.patch(limits, "SA_PATH_QUALITIES", 5)
        self.assertEqual(self.status(GET_TABLE, PathRecord()), SAStatus.SUCCESS)
        self.assertLessEqual(len(self.administration.paths._qualities), 5)
