"""
Tests for L{twisted_ib.hca.device.progress}: batches of a device whose fabric only notes what it is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.device.progress import DeviceProgress


class Fabric:
    """
    A fabric without paths.

    @ivar works: What C{progress} does; C{isPending}, C{isArmed}: what the questions are answered.
    """

    def __init__(self, said: list[Any]) -> None:
        self.said = said
        self.works: Callable[[], object] = lambda: None
        self.count = 0
        self.isPending, self.isArmed = False, True

    def progress(self, budget: int) -> int:
        """
        Do what a test says.
        """
        self.said.append(("fabric", budget))
        self.works()
        return self.count

    def ringBells(self) -> None:
        self.said.append("bells")

    def pending(self) -> bool:
        """
        Say whether there is something to do.
        """
        return self.isPending

    def arm(self) -> bool:
        """
        Say whether there is not.
        """
        self.said.append("arm")
        return self.isArmed


class Owner:
    """
    One that writes, or becomes dirty.

    @ivar acts: What it does in its turn.
    """

    def __init__(self, name: str, said: list[Any], acts: Callable[[], object] = lambda: None) -> None:
        self.name, self.said, self.acts = name, said, acts

    def endOfBatch(self) -> None:
        self.said.append(self.name)
        self.acts()

    def postWritten(self, writers: list[Owner]) -> None:
        """
        Note for which.
        """
        self.said.append("+".join(each.name for each in writers))
        self.acts()

    def cork(self) -> None:
        self.said.append(f"{self.name} corked")


def fail() -> None:
    raise ZeroDivisionError


class ProgressTests(SynchronousTestCase):
    """
    C{progress} and C{flush}.
    """

    def setUp(self) -> None:
        """
        A device of nothing else.
        """
        self.said: list[Any] = []
        self.device: Any = DeviceProgress()
        self.fabric: Any = Fabric(self.said)
        self.device.fabric = self.fabric

    def owner(self, name: str, acts: Callable[[], object] = lambda: None) -> Any:
        """
        Return one that writes or is dirty.
        """
        return Owner(name, self.said, acts)

    def test_order(self) -> None:
        """
        What is pending leaves first, then comes what has arrived, then leaves what that has caused; the bells
        ring once.  All is counted.
        """
        device, fabric = self.device, self.fabric

        def arrived() -> None:
            device.writers += [self.owner("w3"), self.owner("w4"), self.owner("w5")]
            device.markDirty(self.owner("d3"))

        fabric.works, fabric.count = arrived, 100
        device.writers += [self.owner("w1"), self.owner("w2")]
        device.markDirty(self.owner("d1"))
        device.markDirty(self.owner("d2"))
        self.assertEqual(device.progress(7), 2 + 2 + 100 + 3 + 1)
        self.assertEqual(self.said, ["w1+w2", "d1", "d2", ("fabric", 7), "w3+w4+w5", "d3", "bells"])
        fabric.works, fabric.count = lambda: None, 0
        self.assertEqual(device.progress(7), 0)

    def test_partly(self) -> None:
        """
        Writers alone, or dirty owners alone, are served too, before and after the fabric.
        """
        device, fabric = self.device, self.fabric
        for isLater in (False, True):
            for isWriter in (False, True):
                del self.said[:]

                def happen(isWriter: bool = isWriter) -> None:
                    if isWriter:
                        device.writers.append(self.owner("one"))
                    else:
                        device.markDirty(self.owner("one"))

                fabric.works = happen if isLater else lambda: None
                if not isLater:
                    happen()
                self.assertEqual(device.progress(1), 1)
                expected = [("fabric", 1), "one", "bells"] if isLater else ["one", ("fabric", 1), "bells"]
                self.assertEqual(self.said, expected)

    def test_flush(self) -> None:
        """
        A flush sends, rings, and receives nothing.
        """
        device = self.device
        device.flush()
        device.writers.append(self.owner("w"))
        device.flush()
        device.markDirty(self.owner("d"))
        device.flush()
        self.assertEqual(self.said, ["bells", "w", "bells", "d", "bells"])
        self.assertEqual(device.turns, 3)

    def test_batches(self) -> None:
        """
        The number of the batch is another one before, within and after a turn, and in each flush; of eight
        bits.
        """
        device, seen = self.device, []
        self.fabric.works = lambda: seen.append(device.batch)
        seen.append(device.batch)
        for _ in range(200):
            device.progress()
            seen.append(device.batch)
            device.flush()
            seen.append(device.batch)
        self.assertEqual(seen, [each % 256 for each in range(601)])
        self.assertEqual(device.turns, 400)

    def test_writerRaises(self) -> None:
        """
        If one that writes raises, all of its batch are corked, and send later.
        """
        device = self.device
        device.writers += [self.owner("w1", fail), self.owner("w2")]
        self.assertRaises(ZeroDivisionError, device.progress)
        self.assertEqual(self.said, ["w1+w2", "w1 corked", "w2 corked"])
        self.assertEqual((device.writers, device.busy()), ([], False))

    def test_ownerRaises(self) -> None:
        """
        If a dirty owner raises, those behind it have their turn first in the next batch.
        """
        device = self.device

        def dirty() -> None:
            device.markDirty(self.owner("d4"))
            fail()

        for each in (self.owner("d1"), self.owner("d2", dirty), self.owner("d3")):
            device.markDirty(each)
        self.assertRaises(ZeroDivisionError, device.flush)
        self.assertEqual(self.said, ["d1", "d2"])
        del self.said[:]
        device.flush()
        self.assertEqual(self.said, ["d3", "d4", "bells"])

    def test_busy(self) -> None:
        """
        There is something to do with one that writes, a dirty owner, or something in the fabric; only of the
        last is the fabric asked before a sleep.
        """
        device, fabric = self.device, self.fabric
        self.assertIs(device.busy(), False)
        self.assertIs(device.arm(), True)
        fabric.isPending, fabric.isArmed = True, False
        self.assertIs(device.busy(), True)
        self.assertIs(device.arm(), False)
        fabric.isPending, fabric.isArmed = False, True
        self.assertEqual(self.said, ["arm", "arm"])
        for act in (device.writers.append, device.markDirty):
            act(self.owner("one"))
            self.assertIs(device.busy(), True)
            self.assertIs(device.arm(), False)
            device.flush()
        self.assertEqual(self.said.count("arm"), 2)
        self.assertIs(device.busy(), False)

    def test_wanted(self) -> None:
        """
        Whoever drives the device is told of each owner that becomes dirty.
        """
        called: list[int] = []
        self.device.markDirty(self.owner("d"))
        self.device.wanted = lambda: called.append(1)
        self.device.markDirty(self.owner("d"))
        self.assertEqual(called, [1])
        self.device.ringBells()
        self.assertEqual(self.said, ["bells"])
