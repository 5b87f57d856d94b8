"""
Tests of L{twisted_ib.hca.base.port}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.base.attributes import portAttributes
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.port import DEFAULT_PREFIX, PhysicalState, Port, PortChange, PortState, linkGigabits
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.verbs.pyverbs import enums

GUID = 0x0002C9030000ABCD
GID = DEFAULT_PREFIX << 64 | GUID
#: A subnet's own prefix.
PREFIX = 0xFEC0 << 48 | 7


def infiniband(**fields: Any) -> Port:
    """
    @return: a port whose link is up and which no subnet manager has configured.
    """
    fields = {"linkLayer": LinkLayer.INFINIBAND, "state": PortState.INIT, "gids": (GID,), **fields}
    return Port(**fields)


class ApplyTests(SynchronousTestCase):
    """
    L{Port.apply}.
    """

    def test_numbers(self) -> None:
        """
        States have the numbers of C{struct ibv_port_attr}.
        """
        self.assertEqual(
            [PortState.DOWN, PortState.INIT, PortState.ARMED, PortState.ACTIVE],
            [enums.IBV_PORT_DOWN, enums.IBV_PORT_INIT, enums.IBV_PORT_ARMED, enums.IBV_PORT_ACTIVE],
        )
        self.assertEqual(list(PhysicalState), [1, 2, 3, 4, 5, 6])

    def test_events(self) -> None:
        """
        Each field has its event, and none comes if nothing is different.
        """
        cases: list[tuple[dict[str, Any], EventType]] = [
            ({"lid": 7}, EventType.LID_CHANGE),
            ({"lmc": 2}, EventType.LID_CHANGE),
            ({"smLID": 1}, EventType.SM_CHANGE),
            ({"smSL": 3}, EventType.SM_CHANGE),
            ({"subnetPrefix": PREFIX}, EventType.GID_CHANGE),
            ({"gids": (GID, GID + 1)}, EventType.GID_CHANGE),
            ({"partitions": (0xFFFF, 0x8001)}, EventType.PKEY_CHANGE),
            ({"state": PortState.ACTIVE}, EventType.PORT_ACTIVE),
        ]
        for fields, kind in cases:
            port, change = infiniband(), PortChange(**fields)
            self.assertEqual(port.apply(change), [kind], fields)
            self.assertEqual(port.apply(change), [], fields)
        for state in (PortState.INIT, PortState.ARMED, PortState.DOWN):
            self.assertEqual(infiniband().apply(PortChange(state=state)), [])
        self.assertEqual(infiniband().apply(PortChange(physicalState=PhysicalState.POLLING)), [])
        port = infiniband()
        for _ in range(2):
            self.assertEqual(port.apply(PortChange(reregister=True)), [EventType.CLIENT_REREGISTER])

    def test_configured(self) -> None:
        """
        A subnet manager brings a port up, and the link goes down: PORT_ACTIVE is last and PORT_ERR first.
        """
        port = infiniband()
        self.assertFalse(port.hasLID(0))
        up = PortChange(
            state=PortState.ACTIVE,
            lid=8,
            lmc=1,
            smLID=1,
            smSL=2,
            width=2,
            speed=32,
            capMask=0x0251C048,
            subnetPrefix=PREFIX,
            partitions=(0x8001,),
            reregister=True,
        )
        self.assertEqual(
            port.apply(up),
            [
                *(EventType.LID_CHANGE, EventType.SM_CHANGE, EventType.GID_CHANGE, EventType.PKEY_CHANGE),
                *(EventType.CLIENT_REREGISTER, EventType.PORT_ACTIVE),
            ],
        )
        self.assertEqual((port.subnetPrefix, port.gids), (PREFIX, (PREFIX << 64 | GUID,)))
        self.assertEqual([port.hasLID(lid) for lid in (0, 7, 8, 9, 10)], [False, False, True, True, False])
        found = portAttributes(port)
        names = ("state", "lid", "lmc", "sm_lid", "sm_sl", "pkey_tbl_len", "link_layer", "flags")
        self.assertEqual([found[name] for name in names], [4, 8, 1, 1, 2, 1, 1, 0])
        names = ("active_width", "active_speed", "port_cap_flags")
        self.assertEqual([found[name] for name in names], [2, 32, 0x0251C048])
        down = PortChange(state=PortState.DOWN, physicalState=PhysicalState.POLLING, smLID=0)
        self.assertEqual(port.apply(down), [EventType.PORT_ERR, EventType.SM_CHANGE])
        self.assertEqual((portAttributes(port)["state"], portAttributes(port)["phys_state"]), (1, 2))

    def test_prefix(self) -> None:
        """
        A new subnet prefix is for the GIDs that had the old one.
        """
        other = 0x20010DB8 << 96 | 5
        port = infiniband(gids=(GID, other))
        port.apply(PortChange(subnetPrefix=PREFIX))
        self.assertEqual(port.gids, (PREFIX << 64 | GUID, other))

    def test_bounds(self) -> None:
        """
        What does not fit is refused, and nothing has changed.
        """
        port = infiniband()
        wrong: list[dict[str, Any]] = [
            *({"lid": 0xC000}, {"lid": -1}, {"lmc": 8}, {"smLID": 0x10000}, {"smSL": 16}),
            *({"width": 256}, {"speed": 256}, {"capMask": 1 << 32}),
            *({"subnetPrefix": 1 << 64}, {"gids": ()}, {"gids": (GID,) * (limits.PORT_GIDS + 1)}),
            *({"partitions": ()}, {"partitions": (0x10000,)}),
        ]
        for fields in wrong:
            change = PortChange(**{"lid": 5, "smLID": 5, **fields})
            self.assertRaises(ValueError, port.apply, change)
        many = PortChange(lid=5, partitions=(0xFFFF,) * (limits.PARTITIONS + 1))
        self.assertRaises(ResourceLimitError, port.apply, many)
        self.assertEqual((port.lid, port.smLID, port.gids, port.partitions.keys), (0, 0, (GID,), (0xFFFF,)))
        most = PortChange(gids=(GID,) * limits.PORT_GIDS, partitions=(0xFFFF,) * limits.PARTITIONS)
        self.assertEqual(port.apply(most), [EventType.GID_CHANGE, EventType.PKEY_CHANGE])

    def test_counters(self) -> None:
        """
        Violations have 16 bits, and a counter 64; each stays at its maximum.
        """
        counts: dict[str, int] = {}
        port = infiniband(counters=counts)
        self.assertEqual((port.counter("any"), portAttributes(port)["bad_pkey_cntr"]), (0, 0))
        counts.update(packets_bad_pkey=3, qkey_violations=1 << 16, any=(1 << 64) + 5)
        self.assertEqual((port.counter("qkey_violations"), port.counter("any")), (1 << 16, (1 << 64) - 1))
        found = portAttributes(port)
        self.assertEqual((found["bad_pkey_cntr"], found["qkey_viol_cntr"]), (3, 0xFFFF))


class RateTests(SynchronousTestCase):
    """
    L{linkGigabits}.
    """

    def test_rates(self) -> None:
        """
        Rates of links are Linux's (sysfs.c rate_show): of 4X EDR 100 Gb/s, not 103; 0 of what is unknown.
        """
        for width, speed, rate in (
            *((1, 1, 2.5), (2, 1, 10), (2, 2, 20), (2, 4, 40), (2, 8, 40), (2, 16, 56), (2, 32, 100)),
            *((2, 64, 200), (2, 128, 400), (2, 256, 800), (4, 32, 200), (8, 32, 300), (16, 32, 50)),
            *((3, 32, 0), (2, 3, 0), (0, 0, 0)),
        ):
            self.assertEqual(linkGigabits(width, speed), rate, (width, speed))
