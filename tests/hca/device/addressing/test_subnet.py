"""
A subnet of ports with LIDs, made of a fabric of records: what another way of naming peers takes, and that
datagrams travel there in the local form.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import settle
from tests.hca.services.datagrams.test_datagramconsumer import KEY, Taker, raised
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.errors import NoRouteError
from twisted_ib.hca.base.port import PortChange, PortState
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.base.traits import LOCAL, LinkLayer, Peers
from twisted_ib.hca.device import device as devices
from twisted_ib.hca.device.addressing.resolution import Resolution
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.base.neighbours import Neighbours
from twisted_ib.hca.fabric.base.path import PeerIdentity
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.services.datagramform import FORMS

LIDS = (5, 6)
#: LID -> the device that has it, as a subnet manager knows.
_SUBNET: dict[int, Device] = {}


@frozen
class SubnetPeer(PeerIdentity):
    """
    A peer that has a LID.
    """

    lid: int = 0


class SubnetFabric(LoopbackFabric):
    """
    Records between ports of a subnet.
    """

    traits = evolve(LOCAL, peers=Peers.SUBNET, linkLayer=LinkLayer.INFINIBAND)

    def _end(self, peer: Any) -> Any:
        path: Any = super()._end(peer)
        said = path.peer
        path.peer = SubnetPeer(said.guid, said.pid, said.uid, said.program, peer.owner.port.lid)
        return path


class SubnetResolution(Resolution):
    """
    Paths to LIDs.
    """

    def check(self, key: int) -> int:
        """
        See L{Resolution.check}.
        """
        if key not in _SUBNET:
            raise NoRouteError(f"no port has the LID {key:#x}")
        return 0

    def reach(self, key: int, user: Any) -> Any:
        """
        See L{Resolution.reach}.
        """
        self.check(key)
        return self._device.fabric.reach(_SUBNET[key].guid, user)


class SubnetTests(SynchronousTestCase):
    """
    Two ports.
    """

    def setUp(self) -> None:
        """
        As a subnet manager has configured them.
        """
        ownRunDirectory(self)
        self.patch(devices, "RESOLUTIONS", {**devices.RESOLUTIONS, Peers.SUBNET: SubnetResolution})
        self.addCleanup(_SUBNET.clear)
        neighbours = Neighbours()
        clock = Clock()
        for lid in LIDS:
            device = Device(
                *("ib0", clock.seconds),
                lambda owner, guid, clock: SubnetFabric(owner, guid, clock, neighbours),
                capture="",
            )
            self.addCleanup(device.close)
            device.changePort(PortChange(lid=lid, smLID=1, state=PortState.ACTIVE))
            _SUBNET[lid] = device

    def test_datagrams(self) -> None:
        """
        There and back without a GRH; the receiver knows LID and service level of the sender.
        """
        one, two = _SUBNET.values()
        self.assertIs(one.datagramForm, FORMS[LinkLayer.INFINIBAND])
        taker, echo = Taker(), Taker()
        target = raised(two.createQueuePair(taker, QPType.UD))
        source = raised(one.createQueuePair(echo, QPType.UD))
        pds = [device.memory.allocateDomain() for device in (one, two)]
        vector = AddressVector(0, lid=6, serviceLevel=3, isGlobal=False)
        handle = one.objects.createAddressHandle(pds[0], vector)
        source.post(handle, target.queuePair.number, KEY, b"there")
        settle(one, two)
        ((sender, payload),) = taker.got
        self.assertEqual((sender.vector, payload), (evolve(vector, lid=5), b"there"))
        back = two.objects.createAddressHandle(pds[1], sender.vector)
        target.post(back, sender.number, KEY, b"back")
        settle(one, two)
        self.assertEqual([each[1] for each in echo.got], [b"back"])

    def test_nowhere(self) -> None:
        """
        An address handle needs a LID that a port has.
        """
        device = _SUBNET[5]
        pd = device.memory.allocateDomain()
        vector = AddressVector(0, lid=7, isGlobal=False)
        self.assertRaises(NoRouteError, device.objects.createAddressHandle, pd, vector)
