"""
Devices with an address of their own, on a wire in memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any
from unittest import mock

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.memorylink import MemoryLink, Wire
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.hca.device import registry
from twisted_ib.hca.fabric.roce.packet import PacketFabric


def onWire(test: SynchronousTestCase, pathMTU: dict[str, int] | None = None) -> Wire:
    """
    Have a test's devices of fabric C{roce} on a wire of its own, and no others than it adds.

    @param pathMTU: by address, where it is not 1024.
    """
    ownRunDirectory(test)
    folder = tempfile.mkdtemp()
    test.addCleanup(shutil.rmtree, folder)
    environment = mock.patch.dict(os.environ, XDG_CONFIG_HOME=folder)
    environment.start()
    test.addCleanup(environment.stop)
    for name in ("TWISTED_IB_DEVICES", "TWISTED_IB_CONFIG", "TWISTED_IB_CAPTURE"):
        os.environ.pop(name, None)
    for name in ("DEVICES", "_added", "_read"):
        table: dict[str, Any] = getattr(registry, name)
        test.addCleanup(table.update, dict(table))
        test.addCleanup(table.clear)
    wire = Wire()

    def make(owner: Any, guid: int, clock: Any, address: str) -> PacketFabric:
        """
        Make the fabric of one.
        """
        return PacketFabric(owner, guid, clock, MemoryLink(wire, address, (pathMTU or {}).get(address, 1024)))

    kind = evolve(registry.FABRICS["roce"], open=make)
    test.patch(registry, "FABRICS", {**registry.FABRICS, "roce": kind})
    return wire
