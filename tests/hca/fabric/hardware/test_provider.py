"""
Devices that stand for adapters: their row, and why they cannot be opened.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from ipaddress import IPv6Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.hca.fabric.hardware.world import Host, Manager
from twisted_ib.errors import DeviceError, NoRouteError, RulesError
from twisted_ib.hca.base.interfaces import IAddressDirectory
from twisted_ib.hca.base.traits import ADAPTER
from twisted_ib.hca.connection.rdmacm import gidNumber
from twisted_ib.hca.device import registry
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.base.streams import IAdapterFabric
from twisted_ib.hca.fabric.hardware import adapters, provider, rdmacm
from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
from twisted_ib.tools import machine

ADDRESS = "192.0.2.7"


class FakeContext:
    """
    An adapter that is open.
    """

    closed = False

    def close(self) -> None:
        self.closed = True


class FakeVerbs:
    """
    Lists adapters as the package C{ibverbs} does.
    """

    def __init__(self, *names: str, error: OSError | None = None, denied: OSError | None = None) -> None:
        self.names, self.error, self.denied = names, error, denied
        self.context = FakeContext()

    def open(self) -> FakeContext:
        if self.denied is not None:
            raise self.denied
        return self.context

    def get_device_list(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return [SimpleNamespace(name=name, open=self.open) for name in self.names]


class HardwareTestCase(SynchronousTestCase):
    """
    Base of tests with a host of their own.
    """

    def setUp(self) -> None:
        """
        Put the registry back; a host without adapters.
        """
        for name in ("DEVICES", "_added", "_read"):
            table: dict[str, Any] = getattr(registry, name)
            self.addCleanup(table.update, dict(table))
            self.addCleanup(table.clear)
        self.root = Path(self.mktemp())
        self.root.mkdir()
        for name in ("ADAPTERS", "VERBS", "NODES"):
            folder = self.root / name
            folder.mkdir()
            self.patch(provider, name, str(folder))
        patched = mock.patch.dict(os.environ)
        patched.start()
        self.addCleanup(patched.stop)
        for name in ("LD_LIBRARY_PATH", "TWISTED_IB_DEVICES", "TWISTED_IB_CONFIG"):
            os.environ.pop(name, None)
        os.environ["XDG_CONFIG_HOME"] = str(self.root)

    def adapter(self, name: str, kind: str, *gids: str) -> None:
        """
        Have an adapter in the kernel's file system.

        @param kind: its node type, as the kernel writes it.
        """
        folder = self.root / "ADAPTERS" / name
        (folder / "ports/1/gids").mkdir(parents=True)
        (folder / "node_type").write_text(kind + "\n")
        for index, gid in enumerate(gids):
            (folder / "ports/1/gids" / str(index)).write_text(gid + "\n")
        node = self.root / "VERBS" / "uverbs3"
        node.mkdir(exist_ok=True)
        (node / "ibdev").write_text(name + "\n")


class RowTests(HardwareTestCase):
    """
    What the registry knows.
    """

    def test_statement(self) -> None:
        """
        A C{device} statement names an adapter in place of an address.
        """
        (found,) = registry.parseRules("device hw0 hardware rxe0\nuse sdp connect * *:1", "rules").devices
        self.assertEqual((found.name, found.fabric, found.address), ("hw0", "hardware", "rxe0"))
        for line, text in (("hw0 hardware", "an adapter's name"), ("hw0 hardware a/b", "an adapter's name")):
            error = self.assertRaises(RulesError, registry.parseRules, f"device {line}", "rules")
            self.assertIn(text, str(error))

    def test_variable(self) -> None:
        """
        So does C{TWISTED_IB_DEVICES}.
        """
        os.environ["TWISTED_IB_DEVICES"] = "hw0=hardware:rxe0"
        self.assertIs(registry.traitsOf("hw0"), ADAPTER)
        self.assertFalse(registry.isPlacedByUser("hw0"))
        self.assertIsNone(registry.addressOf("hw0"))
        self.adapter("rxe0", "1: CA", "fe80::1", "::ffff:192.0.2.7")
        self.assertEqual((registry.addressOf("hw0"), registry.place("hw0")), (ADDRESS, ADDRESS))
        for adapter in (None, "", "../x"):
            error = self.assertRaises(DeviceError, registry.addDevice, "hw1", "hardware", adapter)
            self.assertIn("one of fabric hardware needs an adapter's name, as rxe0", str(error))

    def test_facts(self) -> None:
        """
        What the kernel tells of a device's adapter, of one of software less; nothing of other devices.
        """
        self.adapter("rxe0", "1: CA")
        self.adapter("mlx5_0", "1: CA")
        for name, text in (
            *(("hca_type", "MT4119"), ("board_id", "MT_0000000012"), ("fw_ver", "16.35.3006")),
            *(("ports/1/link_layer", "Ethernet"), ("ports/1/rate", "100 Gb/sec (4X EDR)")),
            ("ports/1/state", "4: ACTIVE"),
        ):
            (self.root / "ADAPTERS/mlx5_0" / name).write_text(text + "\n")
        (self.root / "ADAPTERS/mlx5_0/device").mkdir()
        (self.root / "mlx5_core").mkdir()
        (self.root / "ADAPTERS/mlx5_0/device/driver").symlink_to((self.root / "mlx5_core").resolve())
        self.patch(machine, "ADAPTERS", str(self.root / "ADAPTERS"))
        os.environ["TWISTED_IB_DEVICES"] = "hw0=hardware:rxe0,hw1=hardware:mlx5_0"
        registry.readEnvironment()
        self.assertEqual(machine.adapterOf("hw0"), "rxe0, 1: CA")
        expected = (
            "mlx5_0, mlx5_core, MT4119, MT_0000000012, 16.35.3006, 1: CA, Ethernet, 100 Gb/sec (4X EDR),"
            " 4: ACTIVE"
        )
        self.assertEqual(machine.adapterOf("hw1"), expected)
        for name in ("shm0", "nosuch0"):
            self.assertEqual(machine.adapterOf(name), "")

    def test_ownName(self) -> None:
        """
        Without a row an adapter is a device of its own name.
        """
        kind = registry.FABRICS["hardware"]
        self.assertFalse(kind.implicit is not None and kind.implicit("rxe0"))
        other = evolve(kind, implicit="rxe0".__eq__)
        self.patch(registry, "FABRICS", {**registry.FABRICS, "hardware": other})
        self.adapter("rxe0", "1: CA", "::ffff:192.0.2.7")
        self.assertEqual((registry.place("rxe0"), registry.isPlacedByUser("rxe0")), (ADDRESS, False))

    def test_free(self) -> None:
        """
        A program that opens no such device loads nothing of it.
        """
        code = (
            "import sys, twisted_ib, twisted_ib.hca.device.registry as registry;"
            "registry.addDevice('hw0', 'hardware', 'rxe0'); registry.traitsOf('hw0');"
            "print([name for name in sys.modules if 'ibverbs' in name or 'fabric.hardware' in name])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "[]\n")


class AddressTests(HardwareTestCase):
    """
    The IP address of an adapter.
    """

    def test_roce(self) -> None:
        """
        It is a GID: one of IPv4 if there is one.
        """
        self.adapter("rxe0", "1: CA", "::", "fe80::1", "2001:db8::1", "::ffff:192.0.2.7")
        self.assertEqual(adapters.addressOfAdapter("rxe0"), ADDRESS)

    def test_large(self) -> None:
        """
        Of the 1024 entries of rxe's table those behind the address are not read: opening a device took a read
        of each.
        """
        self.adapter("rxe0", "1: CA", "fe80::1", "::ffff:192.0.2.7", *1022 * ["::"])
        read: list[str] = []
        one = adapters._read
        self.patch(adapters, "_read", lambda path: read.append(path) or one(path))
        self.assertEqual(adapters.addressOfAdapter("rxe0"), ADDRESS)
        self.assertEqual(sum("/gids/" in path for path in read), 2)

    def test_roceOfIPv6(self) -> None:
        """
        Else one of IPv6 that is not link-local.
        """
        self.adapter("rxe0", "1: CA", "fe80::1", "2001:db8::1")
        self.assertEqual(adapters.addressOfAdapter("rxe0"), "2001:db8::1")

    def test_roceOfLoopback(self) -> None:
        """
        None is the loopback's, to which rdma_cm binds no adapter.
        """
        self.adapter("rxe0", "1: CA", "::ffff:127.0.0.1", "::1", "2001:db8::1")
        self.assertEqual(adapters.addressOfAdapter("rxe0"), "2001:db8::1")
        self.adapter("rxe1", "1: CA", "::ffff:127.0.0.1", "::1", "::")
        error = self.assertRaises(DeviceError, adapters.addressOfAdapter, "rxe1")
        self.assertIn("has no IP address", str(error))

    def test_iwarp(self) -> None:
        """
        An RNIC has the address of the network device with its hardware address, here the loopback.
        """
        self.adapter("siw0", "4: RNIC", "0000:0000:0000:0000:0000:0000:0000:0000")
        self.assertEqual(adapters.addressOfAdapter("siw0"), "127.0.0.1")

    def test_infiniBand(self) -> None:
        """
        On an InfiniBand link no GID is an IP address: the adapter has that of the network device whose
        hardware address ends with the GID.
        """
        gid = "fec0:0000:0000:0001:0002:c903:0000:1234"
        self.adapter("mlx4_0", "1: CA", gid)
        (self.root / "ADAPTERS/mlx4_0/ports/1/link_layer").write_text("InfiniBand\n")
        self.patch(adapters, "NETWORK", str(self.root))
        error = self.assertRaises(DeviceError, adapters.addressOfAdapter, "mlx4_0")
        self.assertIn("has no IP address", str(error))
        (self.root / "lo").mkdir()
        number = "80:00:02:08:"
        (self.root / "lo/address").write_text(number + IPv6Address(gid).packed.hex(":") + "\n")
        self.assertEqual(adapters.addressOfAdapter("mlx4_0"), "127.0.0.1")
        self.assertFalse(adapters.isRNIC("mlx4_0"))

    def test_neither(self) -> None:
        """
        An adapter of neither, as Amazon's EFA, has no address, and no advice to give it one.
        """
        self.adapter("efa_0", "7: <unknown>", "fe80::1")
        error = self.assertRaises(DeviceError, adapters.addressOfAdapter, "efa_0")
        self.assertEqual(
            str(error),
            "adapter efa_0 is of no kind that rdma_cm connects, as those of RoCE, InfiniBand and iWARP are"
            " (7: <unknown>)",
        )
        self.assertFalse(adapters.isRNIC("efa_0"))

    def test_slotOfGID(self) -> None:
        """
        A GID's slot is that of RoCE v2, where the adapter has the address by RoCE v1 as well.
        """
        self.adapter("rxe0", "1: CA", "fe80::1", "::", *2 * ["::ffff:192.0.2.7"])
        gid = gidNumber(ADDRESS)
        self.assertEqual(adapters.indexOfGID("rxe0", gid), -1)
        types = self.root / "ADAPTERS/rxe0/ports/1/gid_attrs/types"
        types.mkdir(parents=True)
        for slot, kind in enumerate(("RoCE v2", "RoCE v2", "IB/RoCE v1", "RoCE v2")):
            (types / str(slot)).write_text(kind + "\n")
        self.assertEqual(adapters.indexOfGID("rxe0", gid), 3)
        self.assertEqual(adapters.indexOfGID("rxe1", gid), -1)

    def test_none(self) -> None:
        """
        Without an address, and without the adapter, the error says what to do.
        """
        self.adapter("rxe0", "1: CA", "fe80::1")
        error = self.assertRaises(DeviceError, adapters.addressOfAdapter, "rxe0")
        self.assertEqual(
            str(error),
            "adapter rxe0 has no IP address: give its network device one, as by ip address add",
        )
        error = self.assertRaises(DeviceError, adapters.addressOfAdapter, "rxe1")
        self.assertEqual(
            str(error),
            "this host has no adapter rxe1: load its driver, or add one of software, as by rdma link add rxe1"
            " type rxe netdev eth0",
        )
        error = self.assertRaises(DeviceError, adapters.addressOfAdapter, "siw0")
        self.assertIn("as by rdma link add siw0 type siw netdev eth0", str(error))


class OpenTests(HardwareTestCase):
    """
    Opening an adapter, and why it cannot be opened: one line each.
    """

    def fails(self, call: Any, *arguments: Any) -> str:
        """
        @return: the text of its error, which is one line.
        """
        text = str(self.assertRaises(DeviceError, call, *arguments))
        self.assertNotIn("\n", text)
        return text

    def test_open(self) -> None:
        """
        A fabric opens its adapter, refuses what it does not have by name, and closes it.
        """
        host = Host()
        owner = SimpleNamespace(
            wanted=None, useAdapter=lambda adapter: None, useConnector=lambda connector: None
        )
        fabric = HardwareFabric(owner, 1, lambda: 0.0, ADDRESS, "rxe0", host, Manager(host))
        for each in (IAdapterFabric, IAddressDirectory):
            verifyObject(each, fabric)
        error = self.assertRaises(NoRouteError, fabric.join, 1)
        self.assertEqual(str(error), "adapter rxe0 has no multicast here")
        fabric.close()
        self.assertTrue(host.contexts[0].isClosed)

    def test_cannotBeUsed(self) -> None:
        """
        Where the adapter gives no memory the error says which limit may be too low, and nothing is left open.
        """
        host = Host()
        host.isFull = True
        owner = SimpleNamespace(wanted=None)
        text = self.fails(HardwareFabric, owner, 1, lambda: 0.0, ADDRESS, "rxe0", host, Manager(host))
        self.assertEqual(
            text,
            "adapter rxe0 cannot be used: [Errno 12] ibv_query_device: the limit of locked memory (ulimit -l,"
            " RLIMIT_MEMLOCK) may be too low",
        )
        self.assertTrue(host.contexts[0].isClosed)
        self.assertEqual(host.identifiers, {})

    def test_letGo(self) -> None:
        """
        Of an adapter that is gone no descriptor of librdmacm's leads to the kernel's files any more; their
        numbers stay taken.
        """
        file = self.root / "uverbs0"
        reading, writing = os.pipe()
        self.addCleanup(os.close, writing)
        fds = os.open(file, os.O_RDWR | os.O_CREAT), reading
        for fd in fds:
            self.addCleanup(os.close, fd)
        self.patch(rdmacm, "_FILES", (str(file.resolve()), "pipe:["))
        manager = object.__new__(rdmacm.RDMACM)
        manager._files = fds
        self.assertFalse(manager.letGo())
        file.unlink()
        for _ in range(2):
            self.assertTrue(manager.letGo())
            self.assertEqual([os.readlink(f"/proc/self/fd/{fd}") for fd in fds], [os.devnull] * 2)

    def test_way(self) -> None:
        """
        The way to a peer is what librdmacm says of it, its rate among that.
        """
        manager, said = object.__new__(rdmacm.RDMACM), {}

        def tell(name: str, id: object, given: Any, mask: Any) -> None:
            for index, each in enumerate(rdmacm._WAY):
                said[each] = index + 1
                setattr(given._obj.ah_attr, each, index + 1)
            mask._obj.value = rdmacm._VECTOR

        setattr(manager, "_call", tell)  # noqa: B010
        _, _, vector = manager.attributes(1, 2)
        assert vector is not None
        self.assertEqual({**vector, **said}, vector)
        self.assertIn("static_rate", said)

    def test_unbound(self) -> None:
        """
        An identifier that Linux has bound to no adapter has no depths: its C{verbs} is NULL.
        """
        code = (
            "import ctypes; from twisted_ib.hca.fabric.hardware.rdmacm import RDMACM;"
            "id = ctypes.create_string_buffer(1024); object.__new__(RDMACM).depths(ctypes.addressof(id))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual(
            (done.returncode, done.stderr.splitlines()[-1:]),
            (1, ["OSError: [Errno 19] rdma_bind_addr: the address is of no adapter"]),
        )

    def test_device(self) -> None:
        """
        A device of this host, which may have none: the name of the adapter is in the error.
        """
        registry.addDevice("hw0", "hardware", "no-such-adapter")
        self.assertIn("no-such-adapter", self.fails(Device, "hw0", lambda: 0.0))

    def test_withoutExtra(self) -> None:
        """
        Without the package C{ibverbs} the error names the extra.
        """
        self.patch(sys, "modules", {**sys.modules, "ibverbs": None})
        self.assertEqual(
            self.fails(provider.loadVerbs, "rxe0"),
            "adapter rxe0: the extra [hardware] is not installed: pip install 'twisted-ib[hardware]'",
        )

    def test_importWithoutLibrary(self) -> None:
        """
        So it does where the package is there, and cannot be imported without the library.
        """
        modules = {name: each for name, each in sys.modules.items() if name != "ibverbs"}
        self.patch(sys, "modules", modules)

        class Lacking:
            def find_spec(self, name: str, *rest: object) -> None:
                if name == "ibverbs":
                    raise ImportError("libibverbs.so.1: cannot open shared object file")

        def load(name: str) -> None:
            raise OSError(f"{name}: cannot open shared object file")

        self.patch(sys, "meta_path", [Lacking(), *sys.meta_path])
        self.patch(provider, "ctypes", SimpleNamespace(CDLL=load))
        self.assertEqual(
            self.fails(provider.loadVerbs, "rxe0"),
            "adapter rxe0: there is no libibverbs.so.1: install it, as Debian's libibverbs1 and"
            " ibverbs-providers",
        )

    def test_withoutLibraries(self) -> None:
        """
        Without one of the libraries it names that and the package that has it.
        """
        self.patch(sys, "modules", {**sys.modules, "ibverbs": SimpleNamespace()})
        for library, package in (
            ("libibverbs.so.1", "libibverbs1 and ibverbs-providers"),
            ("librdmacm.so.1", "librdmacm1"),
        ):

            def load(name: str, missing: str = library) -> None:
                if name == missing:
                    raise OSError(f"{name}: cannot open shared object file")

            self.patch(provider, "ctypes", SimpleNamespace(CDLL=load))
            self.assertEqual(
                self.fails(provider.loadVerbs, "rxe0"),
                f"adapter rxe0: there is no {library}: install it, as Debian's {package}",
            )

    def test_ownLibrary(self) -> None:
        """
        Under C{ib-run}, where libibverbs is this package's, the device is refused by name; behind another
        libibverbs ours is not found.
        """
        folders = [tempfile.mkdtemp(dir=self.root) for _ in range(3)]
        Path(folders[1], "libibverbs.so.1").write_bytes(b"\x7fELF import twisted_ib.verbs.c.verbs.library\0")
        Path(folders[2], "libibverbs.so.1").write_bytes(b"\x7fELF")
        self.assertTrue(provider.isOwn({"LD_LIBRARY_PATH": ":".join(folders)}))
        self.assertFalse(provider.isOwn({"LD_LIBRARY_PATH": ":".join(reversed(folders))}))
        self.assertFalse(provider.isOwn({}))
        os.environ["LD_LIBRARY_PATH"] = folders[1]
        self.assertEqual(
            self.fails(provider.loadVerbs, "rxe0"),
            "adapter rxe0: libibverbs is twisted_ib's own here, which has no hardware: run the program"
            " without ib-run",
        )

    def test_withoutAdapter(self) -> None:
        """
        Without the adapter, or without any driver, it says how one is made.
        """
        how = "load its driver, or add one of software, as by rdma link add rxe0 type rxe netdev eth0"
        for verbs, others in (
            (FakeVerbs(), "there is none"),
            (FakeVerbs(error=OSError(38, "Function not implemented")), "there is none"),
            (FakeVerbs("siw0", "mlx5_0"), "there are mlx5_0, siw0"),
        ):
            self.assertEqual(
                self.fails(provider.openAdapter, verbs, "rxe0"),
                f"adapter rxe0: libibverbs does not list it, {others}: {how}",
            )

    def test_withoutRights(self) -> None:
        """
        Without rights on its node the error names the node; any other error is told as it is.
        """
        self.adapter("rxe0", "1: CA")
        denied = FakeVerbs("rxe0", denied=PermissionError(13, "ibv_open_device"))
        self.assertEqual(
            self.fails(provider.openAdapter, denied, "rxe0"),
            f"adapter rxe0: no rights on {provider.NODES}/uverbs3: become root, or a member of its group",
        )
        Path(provider.NODES, "uverbs3").touch()
        broken = FakeVerbs("rxe0", denied=OSError(12, "ibv_open_device"))
        self.assertEqual(
            self.fails(provider.openAdapter, broken, "rxe0"),
            "adapter rxe0 cannot be opened: [Errno 12] ibv_open_device",
        )
