"""
RDS over the adapter of a host in memory, in Linux's form.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.hca.fabric.hardware.world import Host, Manager
from tests.rds.ends import ProcessesTestCase
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.hca.device import registry
from twisted_ib.hca.fabric.hardware import hardware
from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric

ADDRESSES = {"rxe0": ownAddress(1), "rxe1": ownAddress(2)}
ONE, TWO = ADDRESSES.values()


class RDSTests(ProcessesTestCase):
    """
    Two devices of one adapter, with an address each.
    """

    def setUp(self) -> None:
        """
        A socket on each.
        """
        super().setUp()
        ownRunDirectory(self)
        host = Host()
        self.patch(hardware, "isRNIC", lambda name: False)

        def make(owner: Any, guid: int, clock: Any, address: str, adapter: str) -> HardwareFabric:
            return HardwareFabric(owner, guid, clock, address, host.name, host, Manager(host))

        kind = evolve(registry.FABRICS["hardware"], open=make, locate=ADDRESSES.__getitem__)
        self.patch(registry, "FABRICS", {**registry.FABRICS, "hardware": kind})
        sockets = []
        for device, adapter, port in (("hw0", "rxe0", 4000), ("hw1", "rxe1", 5000)):
            registry.addDevice(device, "hardware", adapter)
            self.addCleanup(registry.removeDevice, device)
            self.device = device
            sockets.append(self.process().listen(port, ADDRESSES[adapter]))
        self.one, self.two = sockets

    def test_sizes(self) -> None:
        """
        Datagrams of any size, both ways, in order, over one queue pair of the adapter's at each side.
        """
        sizes = [0, 1, 100, 4095, 4096, 4097, 9000, 1 << 20, 3]
        sent = [bytes([index]) * size for index, size in enumerate(sizes)]
        for here, there, source, target in (
            (self.one, self.two, (ONE, 4000), (TWO, 5000)),
            (self.two, self.one, (TWO, 5000), (ONE, 4000)),
        ):
            for data in sent:
                here.transport.write(data, target)
            self.until(lambda: len(there.got) == len(sent))  # noqa: B023
            self.assertEqual((there.data, {address for _, address in there.got}), (sent, {source}))
        for process in self.processes:
            self.assertEqual(process.queuePairs, 1)
