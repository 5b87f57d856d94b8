"""
Devices that are added and removed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any
from unittest import mock

from attrs import evolve
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import settings
from twisted_ib.errors import DeviceError, NoRouteError, RulesError, UnknownDeviceError
from twisted_ib.hca.base.traits import ROUTED, SUBNET
from twisted_ib.hca.device import registry
from twisted_ib.hca.device.device import Device, addDevice, removeDevice
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.hosting.ofthread import hostHere
from twisted_ib.subnet.network.topology import parse


class Watcher:
    """
    Writes down what it is told.
    """

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []

    def deviceAdded(self, name: str) -> None:
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
        for name in ("DEVICES", "_added", "_read"):
            table: dict[str, Any] = getattr(registry, name)
            self.addCleanup(table.update, dict(table))
            self.addCleanup(table.clear)
        self.watcher = Watcher()
        registry.watchDevices(self.watcher)
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        changed = {"XDG_CONFIG_HOME": self.directory, "TWISTED_IB_RUN_DIR": self.directory}
        patched = mock.patch.dict(os.environ, changed)
        patched.start()
        self.addCleanup(patched.stop)
        for name in ("TWISTED_IB_DEVICES", "TWISTED_IB_CONFIG"):
            os.environ.pop(name, None)

    def test_added(self) -> None:
        """
        A device that was added can be opened, until it is removed; watchers are notified.
        """
        addDevice("lo7", "loopback")
        self.assertEqual((registry.addedDevices(), registry.fabricOf("lo7")), (("lo7",), "loopback"))
        device = Device("lo7", lambda: 0.0)
        self.assertEqual((device.name, device.fabric.name), ("lo7", "loopback"))
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
        for address in (None, "", "0.0.0.0", "::", "localhost"):
            self.assertIn("address", str(self.assertRaises(DeviceError, addDevice, "a", "roce", address)))
        self.assertEqual(self.watcher.log, [])

    def opened(self) -> list[Any]:
        """
        @return: Where devices of packets are opened from now on.
        """
        opened: list[Any] = []

        def make(owner: Any, guid: int, clock: Any, address: str) -> Any:
            opened.append(address)
            return AddressedFabric(owner, address)

        kind = evolve(registry.FABRICS["roce"], open=make)
        self.patch(registry, "FABRICS", {**registry.FABRICS, "roce": kind})
        return opened

    def test_subnet(self) -> None:
        """
        Devices of subnets exist as soon as they are named; where the thread hosts a subnet each is at the
        adapter of its name or at one of its own.
        """
        self.assertIs(registry.traitsOf("ib7"), SUBNET)
        self.assertFalse(registry.isPlacedByUser("ib0"))
        self.assertNotIn("ib0", registry.deviceNames())
        topology = 'Switch 8 "s"\n[1] "ib0"[1]\n\nCa 1 "ib0"\n[1] "s"[1]\n'
        subnet = HostedSubnet(parse(topology, "test"), lambda name: None, Clock())
        hostHere(subnet)
        self.addCleanup(hostHere, None)
        one, two = Device("ib0"), Device("ib1")
        for device in (one, two):
            self.addCleanup(device.close)
        port, other = subnet.find("ib0"), subnet.find("ib1")
        assert port is not None and other is not None
        self.assertEqual((one.guid, two.guid), (port.guid, other.guid))
        self.assertEqual((one.traits.peers, two.fabric.name), (SUBNET.peers, "ib"))

    def test_adapter(self) -> None:
        """
        One that stands for an adapter of this host has the adapter's address, whatever is bound; where there
        is none, the error names the adapter.
        """

        def locate(adapter: str) -> str:
            if adapter == "rxe5":
                return "192.0.2.5"
            raise DeviceError(f"there is no {adapter}")

        kind = evolve(registry.FABRICS["hardware"], locate=locate)
        none: frozenset[str] = frozenset()
        self.patch(registry, "DEVICES", {"hw5": (kind, "rxe5", none), "hw6": (kind, "rxe6", none)})
        self.assertEqual(registry.place("hw5", "192.0.2.1", ""), "192.0.2.5")
        error = self.assertRaises(DeviceError, registry.place, "hw6", "192.0.2.1", "")
        self.assertEqual(str(error), "there is no rxe6")

    def test_address(self) -> None:
        """
        A device with an address has it in one spelling, whatever is bound, and no other.
        """
        opened = self.opened()
        addDevice("net5", "roce", "2001:DB8::0:1")
        addDevice("net5", "roce", "2001:db8::1")
        self.assertRaises(DeviceError, addDevice, "net5", "roce", "2001:db8::2")
        self.assertEqual(registry.addressOf("net5"), "2001:db8::1")
        for bound, peer in (("", ""), ("2001:db8::9", ""), ("", "2001:db8::9")):
            self.assertEqual(registry.place("net5", bound, peer), "2001:db8::1")
        self.assertFalse(registry.isPlacedByUser("net5"))
        device = Device("net5", lambda: 0.0)
        self.addCleanup(device.close)
        self.assertEqual((opened, device.address), (["2001:db8::1"], "2001:db8::1"))
        self.assertTrue(device.traits.hasAddress)
        error = self.assertRaises(DeviceError, Device, "net5", lambda: 0.0, address="2001:db8::2")
        self.assertEqual(str(error), "device net5 has the address 2001:db8::1, not 2001:db8::2")

    def test_placed(self) -> None:
        """
        One that was not added is where its user binds it, or where the kernel would connect from.
        """
        opened = self.opened()
        self.assertTrue(registry.isPlacedByUser("roce0"))
        self.assertEqual(registry.place("roce0", "127.0.0.9"), "127.0.0.9")
        self.assertEqual(registry.place("roce17", "::ffff:127.0.0.9", "127.0.0.1"), "127.0.0.9")
        self.assertEqual(registry.place("roce0", "0.0.0.0", "127.0.0.8"), "127.0.0.1")
        self.assertIsNone(registry.place("shm0", "127.0.0.9", "127.0.0.8"))
        error = self.assertRaises(DeviceError, registry.place, "roce0", "0.0.0.0")
        self.assertIn("device roce0 has no address: bind one", str(error))
        self.assertRaises(ValueError, registry.place, "roce0", "localhost")
        for name in ("roce", "roce00", "roce1234", "rocex", "net0", "roce\u0661", "roce-1", "Roce1"):
            self.assertRaises(UnknownDeviceError, registry.place, name, "127.0.0.9")
        device = Device("roce0", lambda: 0.0, address="127.0.0.9")
        self.addCleanup(device.close)
        self.assertEqual((opened, registry.addedDevices()), (["127.0.0.9"], ()))

    def test_noRoute(self) -> None:
        """
        Without a route there is no address.
        """
        error = self.assertRaises(NoRouteError, registry.place, "roce0", "", "255.255.255.255")
        self.assertIn("no address of this host leads to 255.255.255.255", str(error))

    def test_environment(self) -> None:
        """
        C{TWISTED_IB_DEVICES} names devices; what the program adds itself counts more.
        """
        addDevice("net2", "roce", "192.0.2.9")
        text = " roce0=roce:192.0.2.1, net2=roce:192.0.2.2,v6=roce:[2001:db8::1],lo5=loopback,"
        os.environ[settings.DEVICES] = text
        self.assertEqual(registry.addedDevices(), ("net2", "roce0", "v6", "lo5"))
        addresses = [registry.addressOf(name) for name in ("roce0", "net2", "v6", "lo5")]
        self.assertEqual(addresses, ["192.0.2.1", "192.0.2.9", "2001:db8::1", None])
        self.assertEqual(registry.place("roce0", "127.0.0.1"), "192.0.2.1")
        self.assertEqual(registry.deviceNames()[0], "shm0")

    def test_interface(self) -> None:
        """
        A device of a subnet may have the address of an IPoIB interface, which is not its own.
        """
        os.environ[settings.DEVICES] = "ib0=ib:10.9.0.1/24,ib1=ib:[fd00::1/64],ib2=ib,r=roce:192.0.2.1"
        names = ("ib0", "ib1", "ib2", "r", "shm0", "nothing")
        self.assertEqual(registry.place("ib0"), None)
        self.assertEqual(
            [registry.interfaceOf(name) for name in names], ["10.9.0.1/24", "fd00::1/64", *[None] * 4]
        )
        self.assertEqual([registry.addressOf(name) for name in names], [*[None] * 3, "192.0.2.1", None, None])

    def test_options(self) -> None:
        """
        A device has the options that it is added with, from a program, the environment or the configuration;
        those that are off count as not given.
        """
        os.environ[settings.DEVICES] = (
            "a=iwarp:127.0.0.1:crc=yes,b=iwarp:[::1]:markers=yes:crc=no,c=iwarp:::1"
        )
        path = os.path.join(self.directory, "ib.conf")
        with open(path, "w") as file:
            file.write("device d iwarp 127.0.0.1 markers=yes crc=yes\n")
        os.environ["TWISTED_IB_CONFIG"] = path
        addDevice("e", "iwarp", "127.0.0.1", crc=True, markers=False)
        addDevice("e", "iwarp", "127.0.0.1", crc=True)
        self.assertRaises(DeviceError, addDevice, "e", "iwarp", "127.0.0.1")
        found = []
        for name in "abcde":
            device = Device(name, lambda: 0.0)
            options = device.fabric.service.options
            found.append((device.fabric.address, options.crc, options.markers))
            device.close()
        self.assertEqual(
            found,
            [
                ("127.0.0.1", True, False),
                ("::1", False, True),
                ("::1", False, False),
                ("127.0.0.1", True, True),
                ("127.0.0.1", True, False),
            ],
        )
        error = self.assertRaises(DeviceError, addDevice, "r", "roce", "192.0.2.1", crc=True)
        self.assertEqual(str(error), "device r: one of fabric roce has no option 'crc'")

    def test_wrongEnvironment(self) -> None:
        """
        An error there is raised by name when a device is opened that is unknown without it.
        """
        cases = {
            "roce0": "'roce0' is not NAME=FABRIC:ADDRESS, as roce0=roce:192.0.2.1",
            "a b=roce:192.0.2.1": "'a b=roce:192.0.2.1' is not NAME=FABRIC:ADDRESS, as roce0=roce:192.0.2.1",
            "roce0=roe:192.0.2.1": "'roce0=roe:192.0.2.1': there is no fabric 'roe'; there are",
            "roce0=roce": "'roce0=roce': device roce0: one of fabric roce needs an address of this host",
            "roce0=roce:host": "'roce0=roce:host': device roce0: 'host' is not the address of an interface",
            "s=shm:192.0.2.1": "'s=shm:192.0.2.1': device s: one of fabric shm has no address of its own",
            "a=roce:192.0.2.1,a=roce:192.0.2.2": "there are two devices a",
            "i=ib:10.9.0.1": "'i=ib:10.9.0.1': device i: '10.9.0.1' is not the address of an IPoIB interface",
            "w=iwarp:192.0.2.1:crc=on": "'w=iwarp:192.0.2.1:crc=on': 'crc=on' is not OPTION=yes or OPTION=no",
            "w=iwarp:crc=yes": "'w=iwarp:crc=yes': device w: one of fabric iwarp needs an address",
            "w=iwarp:::1:mac=no": "'w=iwarp:::1:mac=no': device w: one of fabric iwarp has no option 'mac'",
            "s=shm:crc=yes": "'s=shm:crc=yes': device s: one of fabric shm has no option 'crc'",
            "i=ib:10.9/24": "'i=ib:10.9/24': device i: '10.9/24' is not the address of an IPoIB interface",
        }
        for text, expected in cases.items():
            os.environ[settings.DEVICES] = text
            error = self.assertRaises(DeviceError, registry.place, "roce0", "127.0.0.1")
            self.assertTrue(str(error).startswith(f"TWISTED_IB_DEVICES: {expected}"), str(error))
            self.assertIsNone(registry.place("shm0"))
            self.assertEqual(registry.addedDevices(), ())

    def test_configuration(self) -> None:
        """
        A name that nobody knows is looked for in the configuration's C{device} statements.
        """
        path = os.path.join(self.directory, "ib.conf")
        with open(path, "w") as file:
            file.write("device roce0 roce 192.0.2.1\ndevice shm0 shm\n")
        os.environ["TWISTED_IB_CONFIG"] = path
        self.assertEqual(registry.place("roce0", "127.0.0.1"), "192.0.2.1")
        self.assertEqual(registry.place("roce1", "127.0.0.1"), "127.0.0.1")
        removeDevice("roce0")
        del os.environ["TWISTED_IB_CONFIG"]
        os.mkdir(os.path.join(self.directory, "twisted_ib"))
        os.rename(path, os.path.join(self.directory, "twisted_ib", "ib.conf"))
        self.assertEqual(registry.place("roce0", "127.0.0.1"), "192.0.2.1")
        os.environ["TWISTED_IB_CONFIG"] = path + "x"
        error = self.assertRaises(DeviceError, registry.place, "roce1", "127.0.0.1")
        self.assertEqual(str(error), f"{path}x: No such file or directory")

    def configure(self, text: str) -> None:
        """
        Have another file of rules from now on.
        """
        path = os.path.join(self.directory, f"{len(os.listdir(self.directory))}.conf")
        with open(path, "w") as file:
            file.write(text)
        os.environ["TWISTED_IB_CONFIG"] = path

    def test_fabrics(self) -> None:
        """
        A fabric that adds itself has its device at once; the same again is nothing, another of its name an
        error.
        """
        for name in ("KINDS", "FABRICS"):
            self.patch(registry, name, registry.__dict__[name].copy())
        kind = evolve(registry.FABRICS["loopback"], name="toy", device="toy0")
        bare = evolve(kind, name="bare", device="")
        for each in (kind, kind, bare):
            registry.addFabric(each)
        self.assertEqual((registry.KINDS.count(kind), registry.fabricOf("toy0")), (1, "toy"))
        self.assertIsNone(registry.fabricOf(""))
        self.assertRaises(DeviceError, registry.addFabric, evolve(kind, device="toy1"))
        self.assertEqual(registry.builtInDevices({}), {"lo0": "loopback", "shm0": "shm", "toy0": "toy"})
        addDevice("t", "toy")
        self.assertEqual(registry.fabricOf("t"), "toy")

    def test_otherSystem(self) -> None:
        """
        Where there is no epoll, C{shm0} says that C{lo0} works.
        """
        self.patch(registry, "select", object())
        error = self.assertRaises(DeviceError, Device, "shm0", lambda: 0.0)
        self.assertIn("lo0 works here", str(error))

    def test_brackets(self) -> None:
        """
        An address has both brackets or none.
        """
        found = registry.parseDevices("a=roce:[2001:db8::1],b=roce:2001:db8::1,a=roce:2001:db8::1,c=loopback")
        self.assertEqual(
            found, {**dict.fromkeys("ab", ("roce", "2001:db8::1", {})), "c": ("loopback", None, {})}
        )
        for wrong in ("a=roce:[2001:db8::1", "a=roce:2001:db8::1]", "a=roce:[2001:db8::1]]", "=loopback"):
            self.assertRaises(DeviceError, registry.parseDevices, wrong)

    def test_builtInDevices(self) -> None:
        """
        Without rules there are those from the beginning and those of the environment; a malformed
        environment names none.
        """
        first = {"lo0": "loopback", "shm0": "shm"}
        mine = {name: registry.builtInDevices({})[name] for name in first}
        self.assertEqual(mine, first)
        found = registry.builtInDevices({settings.DEVICES: "shm0=loopback,r=roce:192.0.2.1,lo5=loopback"})
        self.assertEqual((found["shm0"], found["r"], found["lo5"]), ("shm", "roce", "loopback"))
        self.assertEqual(registry.builtInDevices({settings.DEVICES: "r"}), registry.builtInDevices({}))

    def test_readOnce(self) -> None:
        """
        A device of the environment or the configuration that is removed does not come back while they stay
        as they are.
        """
        os.environ[settings.DEVICES] = "lo5=loopback"
        self.configure("device lo6 loopback\n")
        self.assertEqual(registry.addedDevices(), ("lo5",))
        self.assertEqual(registry.deviceNames()[:1], ["shm0"])
        self.assertEqual(registry.addedDevices(), ("lo5", "lo6"))
        for name in ("lo5", "lo6"):
            removeDevice(name)
            self.assertRaises(UnknownDeviceError, registry.traitsOf, name)
        self.assertEqual(registry.addedDevices(), ())
        self.configure("device lo7 loopback\n")
        os.environ[settings.DEVICES] = "lo8=loopback"
        self.assertEqual([registry.kindOf(name).name for name in ("lo7", "lo8")], ["loopback"] * 2)

    def test_names(self) -> None:
        """
        The default device is first, the others by name; what is malformed is left out, and named by who opens
        one.
        """
        self.configure("device a loopback\ndevice z loopback\n")
        self.assertEqual(registry.deviceNames(), ["shm0", "a", "lo0", "z"])
        self.configure("device a loopback\nnonsense\nmore\n")
        registry._read["configuration"] = None
        names = registry.deviceNames()
        self.assertEqual(names, ["shm0", "a", "lo0", "z"])
        error = self.assertRaises(DeviceError, registry.kindOf, "nobody")
        self.assertIn(":2", str(error))
        self.assertNotIn("more", str(error))

    def test_rules(self) -> None:
        """
        Rules are parsed with the fabrics and options that there are.
        """
        (device,) = registry.parseRules("device w iwarp 192.0.2.1 crc=yes\n", "rules").devices
        self.assertEqual((device.name, device.fabric, dict(device.options)), ("w", "iwarp", {"crc": True}))
        for wrong in ("device lo0 shm\n", "device r roce\n", "device s shm crc=yes\n"):
            self.assertRaises(RulesError, registry.parseRules, wrong, "rules")
        self.assertRaises(RulesError, registry.parseRules, "device x shm\n", "rules", {"x": "loopback"})
        found = registry.parseRules("device lo0 shm\n", "rules", {})
        self.assertEqual([each.name for each in found.devices], ["lo0"])

    def test_addresses(self) -> None:
        """
        A device has the address that it was added with, as its fabric finds it now; others have none, and an
        interface's address is no device's.
        """
        addDevice("roce1", "roce", "192.0.2.1")
        for name, address in (("roce1", "192.0.2.1"), ("shm0", None), ("roce0", None), ("nobody", None)):
            self.assertEqual(registry.addressOf(name), address)
        kind = registry.FABRICS["roce"]
        told: list[object] = []

        def locate(place: str) -> str:
            told.append(place)
            if len(told) > 1:
                raise DeviceError("no such interface")
            return "192.0.2.9"

        self.patch(registry, "DEVICES", {"x": (evolve(kind, locate=locate), "eth7", frozenset())})
        self.assertEqual([registry.addressOf("x"), registry.addressOf("x")], ["192.0.2.9", None])
        self.assertEqual(told, ["eth7", "eth7"])
        self.patch(registry, "DEVICES", {"x": (evolve(kind, locate=locate), None, frozenset())})
        self.assertIsNone(registry.addressOf("x"))
        self.assertEqual(len(told), 2)

    def test_placedByUser(self) -> None:
        """
        Only one with an address that was not added is.
        """
        addDevice("roce1", "roce", "192.0.2.1")
        names = ("roce0", "roce1", "iwarp0", "shm0", "lo0")
        self.assertEqual([registry.isPlacedByUser(name) for name in names], [True, False, True, False, False])

    def test_boundElsewhere(self) -> None:
        """
        A device is opened at its address in whatever spelling it is asked for; with none bound, at its own.
        """
        opened = self.opened()
        addDevice("net5", "roce", "2001:db8::1")
        for options in ({}, {"address": "2001:DB8:0::1"}):
            Device("net5", lambda: 0.0, **options).close()
        self.assertEqual(opened, ["2001:db8::1"] * 2)
        self.assertRaises(DeviceError, Device, "roce0", lambda: 0.0)


class AddressedFabric:
    """
    As much of a fabric of packets as a device asks for.
    """

    traits = ROUTED
    pathMTU = 1024
    sleeps = rung = slot = 0

    def __init__(self, owner: Any, address: str) -> None:
        self.owner, self.address = owner, address
        self.guid = owner.guid

    def gids(self) -> list[str]:
        """
        One.
        """
        return [self.address]

    def watch(self, fd: int, call: Any) -> None:
        """
        Nobody looks.
        """

    def nameSources(self, parked: Any) -> None:
        """
        Nothing is parked.
        """

    def look(self) -> bool:
        """
        Nothing comes.
        """
        return False

    def close(self) -> None:
        """
        Nothing.
        """
