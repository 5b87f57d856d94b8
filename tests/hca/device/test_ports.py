"""
Tests of the port of a device of each kind, and of what its changes do.
"""

from __future__ import annotations

from typing import Any

from tests.hca.device.everykind import ADDRESS, EveryKindTestCase
from twisted_ib.hca.base.attributes import portAttributes
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.port import Port, PortChange, PortState
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.connection.rdmacm import gidNumber, gidText
from twisted_ib.hca.host.addresses import localAddresses, normalise
from twisted_ib.hca.wire.grh import guidGID, loopbackGID


class PortTests(EveryKindTestCase):
    """
    The port of each kind.
    """

    def test_made(self) -> None:
        """
        It is active on Ethernet and has the device's GID, P_Key table, path MTU and counters.
        """
        for device in self.devices.values():
            port = device.port
            self.assertEqual((port.linkLayer, port.state), (LinkLayer.ETHERNET, PortState.ACTIVE))
            self.assertEqual((port.gids, port.mtu), ((device.gid,), device.pathMTU))
            self.assertIs(port.partitions, device.partitions)
            device.count("qkey_violations")
            self.assertEqual(port.counter("qkey_violations"), 1)
        lo, shm, packets = self.devices.values()
        self.assertEqual([lo.gid, shm.gid], [guidGID(lo.guid), guidGID(shm.guid)])
        self.assertEqual(packets.gid, gidNumber(ADDRESS))

    def test_shown(self) -> None:
        """
        The answer to a query reads it: the port of one that was never changed, as RoCE's is.
        """
        for device in self.devices.values():
            expected = portAttributes(Port(mtu=device.pathMTU))
            self.assertEqual(device.describe()["port"], expected)
            device.changePort(PortChange(lid=9, state=PortState.DOWN))
            changed = {**expected, "lid": 9, "state": 1}
            self.assertEqual(device.describe()["port"], changed)

    def test_events(self) -> None:
        """
        Users of the device get the events of a change, and a device without users has none to tell.
        """
        for device in self.devices.values():
            device.changePort(PortChange(lid=3))
            events: list[tuple[EventType, Any]] = []
            watched: list[EventType] = []
            device.onEvent = lambda kind, element, events=events: events.append((kind, element))
            device.portWatchers.append(watched.append)
            device.changePort(PortChange(lid=4, partitions=(0x8001,), state=PortState.DOWN))
            kinds = [EventType.PORT_ERR, EventType.LID_CHANGE, EventType.PKEY_CHANGE]
            self.assertEqual(events, [(kind, device) for kind in kinds])
            self.assertEqual(watched, kinds)

    def test_gids(self) -> None:
        """
        The GID table begins with the port's own; its first is the source of datagrams, and all are addresses
        of the device.
        """
        for name, device in self.devices.items():
            before, other = device.gid, 0xFEC0 << 112 | 5
            device.changePort(PortChange(gids=(other, before)))
            self.assertEqual(device.gid, other)
            self.assertTrue(device.hasGID(other) and device.hasGID(before))
            own = [normalise(gidText(gid)) for gid in (other, before)]
            loopback = normalise(gidText(loopbackGID(device.guid)))
            hosts = [] if name == "packets0" else [loopback, *own, loopback, *localAddresses()]
            self.assertEqual(device.gids(), [*own, *hosts])

    def test_refused(self) -> None:
        """
        A change that does not fit changes nothing and raises no event.
        """
        for device in self.devices.values():
            device.onEvent = self.fail
            self.assertRaises(ValueError, device.changePort, PortChange(lid=0xFFFF, gids=(1,)))
            self.assertEqual((device.port.lid, device.port.gids), (0, (device.gid,)))
