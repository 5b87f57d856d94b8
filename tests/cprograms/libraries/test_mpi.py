"""
Rings of MPI's ranks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import LabError, lacking
from tests.cprograms.libraries.mpi import IMPLEMENTATIONS, RANKS, RING_SECONDS, Implementation, runHPCC
from tests.cprograms.programs import DEVICES
from twisted_ib.tools.run.hosts import refusal


class RingTests(SynchronousTestCase):
    """
    Each rank gets what the one before it has sent.
    """

    timeout = 4 * RING_SECONDS
    skip = lacking()

    def test_hpcc(self) -> None:
        """
        The HPC Challenge finds its results right on each device.
        """
        if shutil.which("hpcc") is None:
            raise SkipTest("no hpcc: it is in Debian's package hpcc")
        for device in DEVICES:
            runHPCC(device)

    def ringOf(self, implementation: Implementation) -> Path:
        """
        @return: the compiled ring.
        """
        reason = implementation.missing()
        if reason is not None:
            raise SkipTest(reason)
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        return implementation.compiled(folder)


def _test(implementation: Implementation, device: str) -> Callable[[RingTests], None]:
    def test(self: RingTests) -> None:
        ring = self.ringOf(implementation)
        for ranks in RANKS:
            try:
                implementation.run(ring, ranks, device)
            except LabError as error:
                self.fail(f"{ranks}: {error}")

    test.__doc__ = f"Some ranks of {implementation.name} on {device}."
    return test


def _testOnHosts(implementation: Implementation) -> Callable[[RingTests], None]:
    def test(self: RingTests) -> None:
        ring = self.ringOf(implementation)
        reason = refusal()
        if reason:
            raise SkipTest(f"there may be no namespaces here: {reason}")
        implementation.runOnHosts(ring, 4)

    test.__doc__ = f"4 ranks of {implementation.name}, each on a host of its own."
    return test


def _testOnAddress(implementation: Implementation) -> Callable[[RingTests], None]:
    def test(self: RingTests) -> None:
        implementation.runOnAddress(self.ringOf(implementation), 4)

    test.__doc__ = f"4 ranks of {implementation.name} that share an address of roce0."
    return test


for _implementation in IMPLEMENTATIONS:
    for _device in _implementation.devices:
        setattr(RingTests, f"test_{_implementation.name}_{_device}", _test(_implementation, _device))
    if "roce0" in _implementation.devices:
        setattr(RingTests, f"test_{_implementation.name}_address", _testOnAddress(_implementation))
    setattr(RingTests, f"test_{_implementation.name}_hosts", _testOnHosts(_implementation))
