"""
Tests for L{tests.interop.lab.images}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.interop.lab.images import moduleClosure

NEEDS = {
    "kernel/net/rds/rds_tcp.ko.xz": ["kernel/net/rds/rds.ko.xz"],
    "kernel/net/rds/rds.ko.xz": [],
    "kernel/fs/ext4/ext4.ko.xz": ["kernel/fs/jbd2/jbd2.ko.xz", "kernel/lib/crc16.ko.xz"],
    "kernel/fs/jbd2/jbd2.ko.xz": [],
    "kernel/lib/crc16.ko.xz": [],
}
BUILTIN = ["kernel/drivers/virtio/virtio_pci.ko", "kernel/crypto/crc32c-intel.ko"]


class ModuleClosureTests(SynchronousTestCase):
    """
    L{moduleClosure}.
    """

    def test_order(self) -> None:
        """
        A module comes behind what it depends on, once.
        """
        found = moduleClosure(["net/rds", "ext4", "rds-tcp"], NEEDS, BUILTIN)
        self.assertEqual(
            [path.rpartition("/")[2] for path in found],
            ["rds.ko.xz", "rds_tcp.ko.xz", "crc16.ko.xz", "jbd2.ko.xz", "ext4.ko.xz"],
        )

    def test_builtIn(self) -> None:
        """
        A module that is built in is there without a file, in either spelling, and so is a folder of them.
        """
        for name in ("virtio_pci", "virtio-pci", "crc32c_intel", "drivers/virtio"):
            self.assertEqual(moduleClosure([name], NEEDS, BUILTIN), [])

    def test_missing(self) -> None:
        """
        One that is nowhere is named.
        """
        for name in ("virtio_blk", "drivers/block"):
            error = self.assertRaises(LookupError, moduleClosure, [name], NEEDS, BUILTIN)
            self.assertIn(name, str(error))
