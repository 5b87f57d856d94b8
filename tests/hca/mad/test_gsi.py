"""
Connection management as an agent: the queue of unsolicited requests.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.hca.mad.cases import MADTestCase, OnPackets
from tests.sdp.fakes import FakePath
from twisted_ib.hca.mad import gsi
from twisted_ib.hca.wire.cm.messages import REJ, REQ, RTU
from twisted_ib.hca.wire.mad import cm


class Answering:
    """
    A device that notes what gets through.

    @ivar dirty: how often it was told that there is more.
    @ivar shown: the paths with a connection that came up.
    """

    def __init__(self) -> None:
        """
        Three peers.
        """
        self.paths = [FakePath(name) for name in "abc"]
        self.came: list[int] = []
        self.dirty = self.dropped = 0
        self.shown: list[object] = []
        self.cm = SimpleNamespace(transactions=None, hasShown=lambda path: path in self.shown)
        self.mads = SimpleNamespace(register=lambda *arguments: None)

    def markDirty(self, agent: object) -> None:
        """
        There is more.
        """
        self.dirty += 1

    def count(self, name: str) -> None:
        """
        One was dropped.
        """
        self.dropped += 1

    def managementReceived(self, path: object, attribute: int, data: bytes, start: int, stop: int) -> None:
        """
        One gets through.
        """
        self.came.append(REQ.parse(data, start, stop).localCommunicationID)


def requestFrom(path: object, number: int) -> Any:
    """
    A REQ as the agent receives it.
    """
    data = cm.wrap(REQ.attribute, REQ(number).pack(), 5).pack()
    return SimpleNamespace(path=path, attribute=REQ.attribute, data=data)


class CMAgentTests(OnPackets, MADTestCase):
    """
    A device to which strangers send requests.
    """

    def setUp(self) -> None:
        """
        Small bounds.
        """
        self.patch(gsi, "CM_REQUESTS", 4)
        self.patch(gsi, "CM_REQUESTS_PER_BATCH", 2)
        super().setUp()
        self.came: list[tuple[int, int]] = []
        device: Any = self.b
        device.managementReceived = self.received

    def received(self, path: Any, attribute: int, buffer: bytes, start: int, stop: int) -> None:
        """
        A message gets through.
        """
        self.assertEqual(stop - start, 232)
        self.came.append((attribute, int.from_bytes(buffer[start : start + 4], "big")))

    def flood(self, count: int) -> None:
        """
        That many REQs arrive in one batch, and the RTU of a connection.
        """
        for number in range(count):
            self.write(1, self.record(cm.wrap(REQ.attribute, REQ(number).pack(), 5).pack()))
        self.write(1, self.record(cm.wrap(RTU.attribute, RTU(99, 5).pack(), 5).pack()))

    def test_order(self) -> None:
        """
        Unsolicited requests wait for the rest of a batch. Those of one source are answered in their order,
        and beyond a bound its oldest is dropped.
        """
        self.flood(6)
        self.b.progress()
        requests = [(0x10, number) for number in (2, 3, 4, 5)]
        self.assertEqual(self.came, [(0x14, 99), *requests[:2]])
        self.assertTrue(self.b.busy())
        self.b.progress()
        self.assertEqual(self.came[1:], requests)
        self.assertEqual(self.b.counters["management_dropped"], 2)
        self.settle()
        self.assertFalse(self.b.busy())

    def test_sources(self) -> None:
        """
        Of several sources, when there are more requests than one turn answers, that which asked last is the
        first, then the others in turn; beyond the bound the one with most loses its oldest.
        """
        agent = gsi.CMAgent(device := Answering())
        for path, number in ((0, 1), (1, 2), (0, 3), (1, 4), (2, 5)):
            agent.received(requestFrom(device.paths[path], number))
        self.assertEqual((agent.requests, device.dropped), (4, 1))
        agent.endOfBatch()
        self.assertEqual((device.came, device.dirty), ([5, 2], 2))
        # Two are left, which one turn answers.
        agent.endOfBatch()
        self.assertEqual((device.came, device.dirty, agent.requests), ([5, 2, 4, 3], 2, 0))

    def test_givenUp(self) -> None:
        """
        The REJ of a peer that gives up a REQ comes behind that, if it is queued; one that answers at once.
        """
        agent = gsi.CMAgent(device := Answering())
        path = device.paths[0]
        agent.received(requestFrom(path, 1))
        for local, remote in ((2, 0), (3, 7)):
            data = cm.wrap(REJ.attribute, REJ(local, remote).pack(), 5).pack()
            agent.received(SimpleNamespace(path=path, attribute=REJ.attribute, data=data))
        self.assertEqual(device.came, [3])
        agent.endOfBatch()
        self.assertEqual(device.came, [3, 1, 2])

    def test_flooder(self) -> None:
        """
        A source that sends more than a turn answers, without end, takes no other's turn and no other's place.
        """
        agent = gsi.CMAgent(device := Answering())
        for turn in range(20):
            agent.received(requestFrom(device.paths[1], 1000 + turn))
            for number in range(8):
                agent.received(requestFrom(device.paths[0], number))
            agent.endOfBatch()
            self.assertIn(1000 + turn, device.came)
        self.assertEqual(len(device.came), 40)

    def test_shown(self) -> None:
        """
        A source with a connection that came up has half of the answers and of the places in a flood from
        strangers' addresses, however much it asks, and they have the other half; what the one leaves the
        others have.
        """
        self.patch(gsi, "CM_REQUESTS", 8)
        self.patch(gsi, "CM_REQUESTS_PER_BATCH", 4)
        agent = gsi.CMAgent(device := Answering())
        shown = device.paths[0]
        agent.received(requestFrom(shown, 1))
        device.shown.append(shown)
        for number in range(2, 7):
            agent.received(requestFrom(shown, number))
            for stranger in range(3):
                agent.received(requestFrom(FakePath(f"{number}{stranger}"), 1000 + 10 * number + stranger))
        self.assertEqual((agent.requests, device.dropped), (8, 13))
        agent.endOfBatch()
        self.assertEqual(device.came, [1, 1062, 2, 1061])
        agent.received(requestFrom(shown, 7))
        agent.endOfBatch()
        self.assertEqual(device.came[4:], [3, 1060, 4, 1052])
        agent.endOfBatch()
        self.assertEqual((device.came[8:], agent.requests), ([7], 0))

    def test_repeated(self) -> None:
        """
        A peer with a connection that asks for more than has places, again and again in one order, has an
        answer to all: what waits has its place, and what is repeated meanwhile takes no other.
        """
        agent = gsi.CMAgent(device := Answering())
        shown = device.paths[0]
        device.shown.append(shown)
        for _ in range(8):
            for number in range(1, 13):
                if number not in device.came:
                    agent.received(requestFrom(shown, number))
            agent.endOfBatch()
        self.assertEqual(device.came, list(range(1, 13)))

    def test_most(self) -> None:
        """
        Of several such peers the one with most loses what it asked last.
        """
        agent = gsi.CMAgent(device := Answering())
        device.shown += device.paths
        for path, number in ((0, 1), (0, 2), (0, 3), (1, 4), (2, 5)):
            agent.received(requestFrom(device.paths[path], number))
        self.assertEqual((agent.requests, device.dropped), (4, 1))
        for _ in range(2):
            agent.endOfBatch()
        self.assertEqual(sorted(device.came), [1, 2, 4, 5])

    def test_lost(self) -> None:
        """
        One whose connection has ended meanwhile is a stranger again, with what it has asked before.
        """
        agent = gsi.CMAgent(device := Answering())
        device.shown.append(device.paths[0])
        agent.received(requestFrom(device.paths[0], 1))
        device.shown.clear()
        agent.received(requestFrom(device.paths[0], 2))
        agent.received(requestFrom(device.paths[1], 3))
        agent.endOfBatch()
        agent.endOfBatch()
        self.assertEqual((device.came, agent.requests), ([3, 1, 2], 0))

    def test_exception(self) -> None:
        """
        A listener that raises keeps no other request from its answer.
        """
        self.flood(2)
        received = self.received

        def failing(*arguments: Any) -> None:
            received(*arguments)
            if len(self.came) == 2:
                raise RuntimeError("a listener's error")

        device: Any = self.b
        device.managementReceived = failing
        self.assertRaises(RuntimeError, self.b.progress)
        self.settle()
        self.assertEqual(self.came, [(0x14, 99), (0x10, 0), (0x10, 1)])

    def test_lostPath(self) -> None:
        """
        The request of a peer that is gone meanwhile is dropped.
        """
        self.flood(1)
        self.b.fabric.progress(100)
        self.b.fabric.pathTo(self.a.address).alive = False
        self.settle()
        self.assertEqual(self.came, [(0x14, 99)])
