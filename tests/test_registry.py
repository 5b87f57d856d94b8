"""
Devices that are added and removed.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import DeviceError, UnknownDeviceError
from twisted_ib.hca.device import Device, addDevice, removeDevice
from twisted_ib.hca.fabric import registry


class Watcher:
    """
    Writes down what it is told.
    """

    def __init__(self) -> None:
        """
        Nothing yet.
        """
        self.log: list[tuple[str, str]] = []

    def deviceAdded(self, name: str) -> None:
        """
        One more.
        """
        self.log.append(("added", name))

    def deviceGoing(self, name: str) -> None:
        """
        Soon one fewer.
        """
        self.log.append(("going", name))

    def deviceGone(self, name: str) -> None:
        """
        One fewer.
        """
        self.log.append(("gone", name))


class RegistryTests(SynchronousTestCase):
    """
    L{addDevice} and L{removeDevice}.
    """

    def setUp(self) -> None:
        """
        Put back what was there.
        """
        for name in ("DEVICES", "_kinds", "_added"):
            table: dict[str, Any] = getattr(registry, name)
            self.addCleanup(table.update, dict(table))
            self.addCleanup(table.clear)
        self.watcher = Watcher()
        registry.watchDevices(self.watcher)

    def test_added(self) -> None:
        """
        A device that was added can be opened, until it is removed; who watches is told.
        """
        addDevice("lo7", "loopback")
        self.assertEqual((registry.addedDevices(), registry.fabricOf("lo7")), (("lo7",), "loopback"))
        device = Device("lo7", lambda: 0.0)
        self.assertEqual((device.name, device.fabric.name), ("lo7", "lo"))
        device.close()
        removeDevice("lo7")
        self.assertEqual((registry.addedDevices(), registry.fabricOf("lo7")), ((), None))
        self.assertRaises(UnknownDeviceError, Device, "lo7", lambda: 0.0)
        self.assertEqual(self.watcher.log, [("added", "lo7"), ("going", "lo7"), ("gone", "lo7")])

    def test_again(self) -> None:
        """
        To add one again is nothing; as another it is an error.
        """
        addDevice("lo7", "loopback")
        addDevice("lo7", "loopback")
        addDevice("shm0", "shm")
        self.assertEqual((self.watcher.log, registry.addedDevices()), ([("added", "lo7")], ("lo7",)))
        self.assertRaises(DeviceError, addDevice, "lo7", "shm")
        self.assertRaises(DeviceError, addDevice, "shm0", "loopback")

    def test_builtIn(self) -> None:
        """
        Those that there are from the beginning may go and come as well.
        """
        removeDevice("shm0")
        self.assertRaises(UnknownDeviceError, Device, "shm0", lambda: 0.0)
        addDevice("shm0", "shm")
        self.assertEqual(registry.fabricOf("shm0"), "shm")

    def test_wrong(self) -> None:
        """
        No such fabric, no such device, and an address where there is none.
        """
        self.assertIn("no fabric 'roe'", str(self.assertRaises(DeviceError, addDevice, "a", "roe")))
        self.assertIn("address", str(self.assertRaises(DeviceError, addDevice, "a", "shm", "10.0.0.1")))
        self.assertIn("no device 'a'", str(self.assertRaises(UnknownDeviceError, removeDevice, "a")))
        self.assertEqual(self.watcher.log, [])
