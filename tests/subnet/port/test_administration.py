"""
A device as a client of its subnet's subnet administration.
"""

from __future__ import annotations

from typing import Any

from tests.hca.mad.sa.cases import MLID, ScriptedSA
from tests.subnet.port.subnets import LEAVES, SubnetTestCase
from twisted_ib.hca.mad.attributes.port import Capability
from twisted_ib.hca.mad.sa.queries import Patience


class AdministrationTests(SubnetTestCase):
    """
    C{Device.sa}.
    """

    topology = LEAVES

    def test_join(self) -> None:
        """
        The manager of the port is asked, by its LID; when it asks for that, all is registered again.
        """
        manager, device = self.at("a", "d")
        self.manager.sweep()
        for each in (manager, device):
            self.manager.setPort(self.port("d" if each is device else "a"), smLID=manager.port.lid)
        self.run_(0.01, manager, device)
        sa = ScriptedSA(manager)
        said: list[Any] = []
        device.sa.join(7, said.append)
        self.run_(0.01, manager, device)
        self.assertEqual((said[0].mlid, said[0].portGID), (MLID, device.gid))
        (request,) = sa.requests
        self.assertEqual(request.path.peer.lid, device.port.lid)
        self.manager.setPort(self.port("d"), clientReregister=1)
        self.run_(0.1, manager, device)
        self.assertEqual([each.mad.method for each in sa.requests], [0x02, 0x02])

    def test_noManager(self) -> None:
        """
        A port in Init has none; what was asked before it is Active is asked then.
        """
        self.isManaged = False
        device, manager = self.at("d", "a")
        sa = ScriptedSA(manager)
        said: list[Any] = []
        client = device.sa
        self.assertIs(device.sa, client)
        client.path(7, said.append, patience=Patience(0.01, 0))
        self.run_(0.1, device, manager)
        self.assertRegex(str(said.pop()), "test has no subnet manager: start one")
        client.path(7, said.append)
        self.manager.sweep()
        self.manager.setPort(self.port("d"), smLID=manager.port.lid or self.port("a").lid)
        self.run_(0.1, device, manager)
        self.assertEqual((len(sa.requests), said[0].dlid), (1, 5))

    def test_capability(self) -> None:
        """
        The port of a device says that its clients can be asked to register again; one without does not.
        """
        port = self.port("a")
        self.assertFalse(port.capMask & Capability.CLIENT_REREGISTRATION)
        (device,) = self.at("a")
        self.assertTrue(port.capMask & Capability.CLIENT_REREGISTRATION)
        device.close()
        self.assertFalse(port.capMask & Capability.CLIENT_REREGISTRATION)
