"""
The costs of a message: objects made, functions called, bytes copied.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from types import FrameType
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.gates.falling import mayOnlyFall
from tests.rdma.pair import Pair, PairTestCase, Recorder
from tests.sdp.pair import End, HandReactor, Keeper
from tests.support.calls import PACKAGE, called
from tests.support.counting import CopyCountingMap, CopyCountingSegment
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.form import compiledModules
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.internet.channel import DeviceChannel


class Sink(Recorder):
    """
    Takes messages and does nothing.
    """

    def messageReceived(self, view: memoryview) -> None:
        """
        Nothing.
        """


class ObjectTests(PairTestCase):
    """
    Objects made and functions called.
    """

    polled = True

    def made(self, count: int, gathers: bool = False) -> tuple[Counter[str], Counter[str]]:
        """
        Send some messages.

        @param gathers: whether several go in a SEND.
        @return: how often the initialiser of which class ran, and which functions were called.
        """
        objects: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        one, _ = self.pair.connected(Sink(), Sink())
        if not gathers:
            one.onTheWay = ()

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            """
            Count a call.
            """
            if event == "call":
                name = frame.f_code.co_name
                calls[name] += 1
                if name == "__init__":
                    objects[type(frame.f_locals["self"]).__name__] += 1

        sys.setprofile(profile)
        try:
            for _ in range(count):
                one.write(b"x" * 64)
            self.settle()
        finally:
            sys.setprofile(None)
        return objects, calls

    def test_objects(self) -> None:
        """
        A message makes one object, which keeps its bytes until the peer has taken them: no work
        request, no list of pieces, no completion, and none where it is received.
        """
        if compiledModules():
            raise SkipTest("compiled modules: their calls are not counted")
        objects, _ = self.made(50)
        more, _ = self.made(100)
        # The initialiser of its class and those of the classes above it.
        self.assertEqual({name for name in more if more[name] > objects[name]}, {"Inline"})
        self.assertLessEqual(more["Inline"] - objects["Inline"], 100)

    def test_calls(self) -> None:
        """
        Few functions of ours are called for each.
        """
        _, calls = self.made(50)
        _, more = self.made(100)
        extra = {name: more[name] - calls[name] for name in more}
        perMessage = {name: count / 50 for name, count in extra.items() if count >= 50}
        self.assertLess(sum(perMessage.values()), 40, perMessage)
        # Those of compiled modules are not counted.
        named = {"write", "post", "received", "deliver", "messageReceived"}
        if not compiledModules():
            named.add("postInline")
        self.assertLessEqual(named, perMessage.keys())

    def test_gathered(self) -> None:
        """
        Where several messages go in a SEND no object is made for one more, and two functions are called:
        to write it, and the protocol's.
        """
        # A collection calls what the process has registered for it (gc.callbacks).
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        # What the first connection of a process makes, for good, is none of a message's.
        self.made(1, True)
        objects, calls = self.made(50, True)
        more, moreCalls = self.made(100, True)
        self.assertEqual(more, objects)
        extra = {name: moreCalls[name] - calls[name] for name in moreCalls if moreCalls[name] != calls[name]}
        self.assertEqual(extra, {"write": 50, "messageReceived": 50})


class RequestTests(PairTestCase):
    """
    Functions of ours for one request that somebody waits for, until it is posted.
    """

    polled = True

    def test_calls(self) -> None:
        """
        Each has few, from the call of the application on.
        """
        one, two = self.pair.connected(Sink(), Sink())
        mine, theirs = one.registerMemory(64), two.registerMemory(64, 0xF)
        there, data = (theirs.address, theirs.remoteKey), bytes(64)
        found = {}
        for name, ask in {
            "send": lambda: one.send(data),
            "sendRegistered": lambda: one.sendRegistered(mine),
            "rdmaRead": lambda: one.rdmaRead(64, *there),
            "rdmaRead into": lambda: one.rdmaRead(64, *there, mine),
            "rdmaWrite": lambda: one.rdmaWrite(data, *there),
            "rdmaWrite from": lambda: one.rdmaWrite(mine, *there),
            "fetchAdd": lambda: one.fetchAdd(*there, 1),
        }.items():
            ask(), self.settle()
            found[name] = called(ask, PACKAGE).total()
            self.settle()
        recorded = {"send": 17, "sendRegistered": 30, "rdmaRead": 48, "rdmaRead into": 39}
        mayOnlyFall(self, found, {**recorded, "rdmaWrite": 42, "rdmaWrite from": 30, "fetchAdd": 49})


class SharedEnd(End):
    """
    An HCA of shared memory.
    """

    def __init__(self, polled: bool, seed: int) -> None:
        """
        @param polled: Not looked at.
        @param seed: Not looked at.
        """
        self.keeper = Keeper()
        self.reactor = HandReactor()
        self.device = Device("shm0", self.reactor.seconds)
        self.channel = DeviceChannel(self.reactor, self.device)
        self.channel.acquire(self.keeper)
        self.turn = self.reactor.turn


class CopyTests(SynchronousTestCase):
    """
    Bytes that are copied in shared memory.
    """

    def setUp(self) -> None:
        """
        Connect two HCAs whose rings count.
        """
        ownRunDirectory(self)
        self.patch(SharedMemoryFabric, "segmentClass", CopyCountingSegment)
        self.pair = Pair(False, SharedEnd)
        self.addCleanup(self.pair.close)
        self.one, self.two = self.pair.connected()

    def copied(self, act: Any) -> dict[str, int]:
        """
        @return: What is copied while something is done.
        """
        CopyCountingMap.copied.clear()
        act()
        self.pair.settle()
        return dict(CopyCountingMap.copied)

    def test_messages(self) -> None:
        """
        A message is copied once into the ring and once out of it, and what the protocol gets is
        that copy.
        """
        for size in (64, 4096, 65536):
            message = bytes(size)
            found = self.copied(lambda message=message: self.one.write(message))
            self.assertEqual(found, {"in": size, "out": size})
        views = self.two.heard.views
        self.assertTrue(all(type(view.obj) is bytes and len(view.obj) == len(view) for view in views))

    def test_registered(self) -> None:
        """
        Registered memory that the peer can map does not go through the ring: one copy, by the
        peer.
        """
        region = self.one.registerMemory(65536)
        self.one.sendRegistered(region), self.pair.settle()
        found = self.copied(lambda: self.one.sendRegistered(region))
        self.assertEqual(self.two.heard.log[-1], bytes(65536))
        self.assertLess(sum(found.values()), 200)

    def test_bulk(self) -> None:
        """
        Nor do 1 MiB that are written or read between registered regions.
        """
        mine, theirs = self.one.registerMemory(1 << 20), self.two.registerMemory(1 << 20, 0xF)
        mine.view[:] = bytes(range(256)) * 4096
        for act in (
            lambda: self.one.rdmaWrite(mine, theirs.address, theirs.remoteKey),
            lambda: self.one.rdmaRead(1 << 20, theirs.address, theirs.remoteKey, mine),
        ):
            act(), self.pair.settle()
            found = self.copied(act)
            self.assertLess(sum(found.values()), 1000)
        self.assertEqual(bytes(theirs.view), bytes(range(256)) * 4096)
