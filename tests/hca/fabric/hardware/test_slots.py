"""
Slots that the streams of an adapter share.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.test.reactormixins import ReactorBuilder

from tests.hca.fabric.hardware.test_contract import HardwareRow
from tests.hca.fabric.hardware.world import AdapterQueuePair, Host, RecvWR
from tests.internet.carriers import SDP, StreamContract
from tests.sdp.test_contract import IB
from tests.support.waiting import becomes
from twisted_ib.hca.fabric.hardware import hardware, slots
from twisted_ib.hca.fabric.hardware.adapterpath import RING_BYTES, SENDS, SLOT_BYTES, SLOTS
from twisted_ib.hca.fabric.hardware.slots import CHUNK, REFILL

#: Connections at a time.
MANY = 12


class SlotsContract(StreamContract):
    """
    Connections of a device with itself.
    """

    host: Host
    patch: Any

    def bytesOf(self) -> int:
        """
        @return: how much memory is registered with the adapter.
        """
        return sum(each.length for each in self.host.regions.values())

    def slotsOf(self, one: Any) -> Any:
        """
        @return: the slots of an end's device.
        """
        return one.transport.channel.device.fabric.slots.shared

    def check(self, shared: Any) -> None:
        """
        All slots are the adapter's, or wait to be given to it.
        """
        self.assertEqual(shared.posted + len(shared._given), shared.count)
        self.assertEqual(len(shared.queue.receives), shared.posted)

    async def several(self, reactor: Any, count: int) -> list[tuple[Any, Any, Any]]:
        """
        @return: so many connections: a port, a client and a server of each.
        """
        return [await self.pair(reactor) for _ in range(count)]

    async def over(self, reactor: Any, pairs: list[tuple[Any, Any, Any]]) -> None:
        """
        End them.
        """
        for port, client, server in pairs:
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)

    def test_idle(self) -> None:
        """
        A connection that is idle has the ring for what it sends, and no slots; all have a chunk of them.
        """

        async def steps(reactor: Any) -> None:
            pairs = await self.several(reactor, MANY)
            made = list(self.host.queuePairs.values())
            self.assertEqual(len(made), 2 * MANY)
            (queue,) = self.host.shared
            self.assertEqual({id(each.given.srq) for each in made}, {id(queue)})
            self.assertEqual({id(each.domain) for each in made}, {id(queue.domain)})
            told = [each.own for each in self.host.identifiers.values() if each.peer]
            self.assertEqual([each.isShared for each in told], [True] * 2 * MANY)
            self.assertEqual(self.bytesOf(), 2 * MANY * RING_BYTES + CHUNK * SLOT_BYTES)
            # Where each had its own it was as much as this.
            self.assertLess(RING_BYTES, (RING_BYTES + SLOTS * SLOT_BYTES) / 4)
            await self.over(reactor, pairs)

        self.drive(steps)

    def test_withoutQueue(self) -> None:
        """
        With an adapter that has no shared receive queues each has slots of its own, and is asked once.
        """
        self.host.hasShared = False

        async def steps(reactor: Any) -> None:
            pairs = await self.several(reactor, 2)
            self.assertEqual(self.host.shared, [])
            self.assertEqual({each.given.srq for each in self.host.queuePairs.values()}, {None})
            told = [each.own for each in self.host.identifiers.values() if each.peer]
            self.assertEqual([each.isShared for each in told], [False] * 4)
            self.assertGreater(self.bytesOf(), 4 * (RING_BYTES + SLOTS * SLOT_BYTES))
            pairs[0][1].transport.write(b"hello")
            await becomes(reactor, lambda: pairs[0][2].got() == b"hello")
            await self.over(reactor, pairs)

        self.drive(steps)

    def test_room(self) -> None:
        """
        The completion queue has room for all that connections have outstanding, and for all slots.
        """
        self.host.depth = hardware.SHARING_DEPTH

        async def steps(reactor: Any) -> None:
            pairs = await self.several(reactor, 1)
            fabric = pairs[0][1].transport.channel.device.fabric
            self.assertIsNotNone(fabric.slots.shared)
            most = fabric._most * (SENDS + SLOTS) + slots.MOST_SLOTS
            self.assertIn(hardware.SHARING_DEPTH - most, range(SENDS + SLOTS))
            await self.over(reactor, pairs)

        self.drive(steps)

    def test_smallQueue(self) -> None:
        """
        So it is with an adapter whose completion queue the slots might fill.
        """
        self.host.depth = hardware.SHARING_DEPTH - 1

        async def steps(reactor: Any) -> None:
            pairs = await self.several(reactor, 1)
            self.assertEqual(self.host.shared, [])
            await self.over(reactor, pairs)

        self.drive(steps)

    def test_batches(self) -> None:
        """
        Slots are given back several at a time, and none is lost.
        """
        count = 20 * REFILL

        async def steps(reactor: Any) -> None:
            pairs = await self.several(reactor, 1)
            _, client, server = pairs[0]
            (queue,) = self.host.shared
            before = len(queue.posted)
            for number in range(count):
                client.transport.write(bytes([number]))
                await becomes(reactor, lambda number=number: len(server.got()) == number + 1)
            # The server's messages that give credits use them, too.
            given = queue.posted[before:]
            self.assertEqual(set(given), {REFILL})
            self.assertEqual(self.slotsOf(client).count, CHUNK)
            self.check(self.slotsOf(client))
            await self.over(reactor, pairs)

        self.drive(steps)

    def test_more(self) -> None:
        """
        More are made where they run out. All arrives, and all slots are back.
        """
        self.assertGreater(self.flood(), CHUNK)

    def test_most(self) -> None:
        """
        No more than the most: then peers wait.
        """
        self.patch(slots, "MOST_SLOTS", CHUNK)
        self.assertEqual(self.flood(), CHUNK)

    def flood(self) -> int:
        """
        Send more at once than there are slots for.

        @return: how many there are then.
        """
        counts: list[int] = []
        data = bytes(range(256)) * 256 * SLOTS

        async def steps(reactor: Any) -> None:
            pairs = await self.several(reactor, MANY)
            shared = self.slotsOf(pairs[0][1])
            self.host.isHeld = True
            for _, client, server in pairs:
                client.transport.write(data)
                server.transport.write(data)
            await becomes(reactor, lambda: all(each.waiting for each in self.host.queuePairs.values()))
            self.host.resume()
            whole = len(data)
            await becomes(reactor, lambda: all(len(c.got()) == len(s.got()) == whole for _, c, s in pairs))
            counts.append(shared.count)
            self.check(shared)
            await self.over(reactor, pairs)
            self.check(shared)

        self.drive(steps)
        return counts[0]

    def test_noMemory(self) -> None:
        """
        Where the adapter takes no more memory peers wait, too.
        """
        data = bytes(range(256)) * 256 * SLOTS

        async def steps(reactor: Any) -> None:
            pairs = await self.several(reactor, MANY)
            self.host.isHeld = True
            for _, client, _ in pairs:
                client.transport.write(data)
            await becomes(reactor, lambda: sum(map(bool, self.waiting())) >= MANY)
            self.host.isFull = True
            self.host.resume()
            await becomes(reactor, lambda: all(len(server.got()) == len(data) for _, _, server in pairs))
            self.host.isFull = False
            self.assertEqual(self.slotsOf(pairs[0][1]).count, CHUNK)
            await self.over(reactor, pairs)

        self.drive(steps)

    def waiting(self) -> list[Any]:
        """
        @return: the requests that each queue pair has not done.
        """
        return [each.waiting for each in self.host.queuePairs.values()]

    def test_aborted(self) -> None:
        """
        One into which a message is coming when its connection ends is given back, and its queue pair
        destroyed after that.
        """

        async def steps(reactor: Any) -> None:
            pairs = await self.several(reactor, 1)
            port, client, server = pairs[0]
            shared = self.slotsOf(client)
            end = self.host.queuePairs[server.transport.queuePair.path.adapterNumber]
            end.coming = end.receives.popleft()
            server.transport.abortConnection()
            await self.end(reactor, port, client, server)
            self.destroyed(server)
            self.check(shared)

        self.drive(steps)

    def destroyed(self, one: Any) -> None:
        """
        The queue pairs of the device of an end are destroyed in time.
        """
        fabric = one.transport.channel.device.fabric
        fabric.progress()
        self.assertEqual(len(self.host.queuePairs), 2)
        fabric.timers.tick(fabric.clock() + slots.RETIRED_SECONDS)
        self.assertEqual(self.host.queuePairs, {})

    def test_inCall(self) -> None:
        """
        So is that of the message within whose call the program aborts, once, and those behind it.
        """

        async def steps(reactor: Any) -> None:
            pairs = await self.several(reactor, 1)
            port, client, server = pairs[0]
            shared = self.slotsOf(client)
            server.on["data"] = lambda one: one.transport.abortConnection()
            received: list[RecvWR] = []
            arrive = AdapterQueuePair.arrive

            def arrived(one: Any, peer: Any, request: Any) -> None:
                received.append(peer.receives[0])
                arrive(one, peer, request)

            self.patch(AdapterQueuePair, "arrive", arrived)
            for _ in range(3):
                client.transport.write(b"x" * 65536)
            await self.end(reactor, port, client, server)
            self.destroyed(server)
            self.assertGreater(len(received), 2)
            self.check(shared)
            free = [each.wr_id for each in shared.queue.receives]
            self.assertEqual(len(free), len(set(free)))

        self.drive(steps)


def _make() -> dict[str, type]:
    """
    @return: the test cases, by name.
    """
    members = {"carrier": SDP("hw0"), "_reactors": [IB], "__module__": __name__}
    kind: Any = type("SlotsTests", (HardwareRow, SlotsContract, ReactorBuilder), members)
    found: dict[str, type] = kind.makeTestCaseClasses()
    return found


globals().update(_make())
