"""
The connections of a process that has died.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.bpf import run
from tests.hca.fabric.roce.test_devices import PORT as SERVICE
from tests.hca.fabric.roce.test_devices import End
from tests.hca.memorylink import Datagram, MemoryLink, Wire, deviceOn
from twisted_ib import limits
from twisted_ib.hca.base.operation import ID_SHIFT
from twisted_ib.hca.connection.rdmacm import PortSpace, gidOf
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce import orphans
from twisted_ib.hca.fabric.roce.orphans import (
    DATAGRAM_BYTES,
    MEMORY_BYTES,
    ConnectionRegister,
    DeathLooks,
    Orphan,
    Orphans,
    hasConnections,
)
from twisted_ib.hca.fabric.roce.packet import PacketFabric
from twisted_ib.hca.fabric.roce.slots import TABLE_BYTES, program, serviceOf
from twisted_ib.hca.wire.cm.messages import DREP, DREQ, REJ, REP, AnyMessage, byAttribute
from twisted_ib.hca.wire.headers import BTH, DETH, QUEUE_KEY
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.mad.mad import HEADER

HERE, THERE = "192.0.2.1", "2001:db8::2"
PORT = 4791
_BODY = BTH.size + DETH.size + HEADER.size


def orphan(number: int, address: str = "192.0.2.2", isHalfOpen: bool = False) -> Orphan:
    """
    @return: a connection whose numbers are made of one, of slot 3.
    """
    ids = 3 << ID_SHIFT | number, 0x20000000 | number
    return Orphan(address, *ids, 0x30000 + number, number, 0xFFFF, isHalfOpen)


def messageOf(datagram: bytes) -> AnyMessage:
    """
    @return: the message of connection management in a datagram.
    """
    attribute = HEADER.unpack_from(datagram, BTH.size + DETH.size)[7]
    return byAttribute[attribute].parse(datagram, _BODY, len(datagram) - 4)


class RegisterTests(SynchronousTestCase):
    """
    The memory that the processes share.
    """

    def setUp(self) -> None:
        """
        Two processes.
        """
        self.memory = bytearray(MEMORY_BYTES)
        self.one, self.two = (ConnectionRegister(self.memory, slot) for slot in (1, 2))

    def test_open(self) -> None:
        """
        What is open is seen by the others, and what has ended is not.
        """
        some = [orphan(1), orphan(2, THERE), orphan(3)]
        for each in some:
            self.assertTrue(self.one.add(each))
            self.assertTrue(self.one.add(each))
        self.assertEqual((self.two.of(1), self.two.of(2)), (some, []))
        self.one.remove(some[1].localID)
        self.one.remove(some[1].localID)
        self.assertEqual(self.two.of(1), [some[0], some[2]])
        self.one.add(orphan(4))
        self.assertEqual(self.two.of(1), [some[0], orphan(4), some[2]])
        for number in 1, 3, 4:
            self.assertTrue(hasConnections(self.memory, 1))
            self.one.remove(orphan(number).localID)
        self.assertFalse(hasConnections(self.memory, 1))

    def test_calling(self) -> None:
        """
        One that awaits its REP has a row, which is that of the connection when the RTU is sent.
        """
        calling = Orphan(THERE, 3 << ID_SHIFT | 1, 0, 0x30001, 0, 0xFFFF, False, 0xA << 56, 0x1061C06)
        for each in (calling, orphan(2), calling):
            self.assertTrue(self.one.add(each))
        self.assertEqual(self.two.of(1), [calling, orphan(2)])
        self.assertTrue(self.one.add(orphan(1, THERE)))
        self.assertEqual(self.two.of(1), [orphan(1, THERE), orphan(2)])
        self.one.remove(calling.localID)
        self.assertEqual(self.two.of(1), [orphan(2)])

    def test_bound(self) -> None:
        """
        A process has L{limits.PACKET_CONNECTIONS}; each that ends makes room.
        """
        for number in range(limits.PACKET_CONNECTIONS):
            self.assertTrue(self.one.add(orphan(number)))
        self.assertFalse(self.one.add(orphan(limits.PACKET_CONNECTIONS)))
        self.one.remove(orphan(9).localID)
        self.assertTrue(self.one.add(orphan(limits.PACKET_CONNECTIONS)))
        self.assertEqual(len(self.two.of(1)), limits.PACKET_CONNECTIONS)

    def test_halfOpen(self) -> None:
        """
        One that awaits its RTU has a row, which stays when that comes.
        """
        some = [orphan(1, isHalfOpen=True), orphan(2, isHalfOpen=True), orphan(3)]
        for each in (*some, some[0]):
            self.assertTrue(self.one.add(each))
        self.assertEqual(self.two.of(1), some)
        for _ in range(2):
            self.assertTrue(self.one.add(orphan(2)))
            # What is open is not half open any more.
            self.assertTrue(self.one.add(some[1]))
            self.assertEqual(self.two.of(1), [some[0], orphan(2), some[2]])
        self.one.remove(some[0].localID)
        self.assertEqual(self.two.of(1), [orphan(2), some[2]])
        self.assertEqual(self.one._halfOpen, {})

    def test_manyHalfOpen(self) -> None:
        """
        Of these there are a few, where the oldest gives way: to another, and where there is no room to one
        that is open.
        """
        few, rows = orphans.HALF_OPEN_ROWS, limits.PACKET_CONNECTIONS
        for number in range(rows, rows + few):
            self.assertTrue(self.one.add(orphan(number)))
        for number in range(2 * few):
            self.assertTrue(self.one.add(orphan(number, isHalfOpen=True)))
        found = [each for each in self.two.of(1) if each.isHalfOpen]
        self.assertEqual(sorted(each.localQPN - 0x30000 for each in found), [*range(few, 2 * few)])
        for number in range(rows + few, 2 * rows):
            self.assertTrue(self.one.add(orphan(number)))
        found = self.two.of(1)
        self.assertEqual((len(found), sum(each.isHalfOpen for each in found)), (rows, 0))
        for each in orphan(1), orphan(2, isHalfOpen=True):
            self.assertFalse(self.one.add(each))
        self.one.remove(orphan(rows).localID)
        self.assertTrue(self.one.add(orphan(2, isHalfOpen=True)))
        self.assertTrue(self.one.add(orphan(1)))
        self.assertEqual(sum(each.isHalfOpen for each in self.two.of(1)), 0)

    def test_next(self) -> None:
        """
        The next owner of a slot has none.
        """
        self.one.add(orphan(1))
        ConnectionRegister(self.memory, 1)
        self.assertEqual(self.two.of(1), [])

    def test_wrong(self) -> None:
        """
        Whatever another process writes, reading ends, and all that is found can be sent.
        """
        self.memory[TABLE_BYTES:] = b"\xff" * (MEMORY_BYTES - TABLE_BYTES)
        found = self.two.of(1)
        self.assertEqual(len(found), limits.PACKET_CONNECTIONS)
        # They are all the same.
        ending = Orphans(HERE, found[:64], 0.0)
        while not ending.isDone:
            now = ending.deadline()
            assert now is not None
            ending.outputs(now)
        self.memory[TABLE_BYTES:] = bytes(MEMORY_BYTES - TABLE_BYTES)
        self.assertEqual(self.two.of(1), [])


class OrphanTests(SynchronousTestCase):
    """
    What is sent for them, and answered.
    """

    def received(
        self, message: AnyMessage, source: str = "192.0.2.2", port: int = 50000, key: int = QUEUE_KEY
    ) -> bytes:
        """
        @return: a datagram from a peer.
        """
        packet = b"".join(
            (
                BTH.pack(0x64, 0, 0xFFFF, 1, 9),
                DETH.pack(key, 1),
                HEADER.pack(1, 7, 2, 3, 0, 0, 5, message.attribute, 0, 0),
                message.pack(),
            )
        )
        return ICRCState(gidOf(source), gidOf(HERE), port).sign(packet)

    def test_told(self) -> None:
        """
        Each peer gets a DREQ, repeated until its DREP comes; it goes to the peer's own slot.
        """
        some = [orphan(1), orphan(2), orphan(3, "192.0.2.3")]
        ending = Orphans(HERE, some, 10.0)
        self.assertEqual((ending.deadline(), ending.isDone), (10.0, False))
        sent = ending.outputs(10.0)
        self.assertEqual([address for address, _ in sent], [each.address for each in some])
        for each, (address, datagram) in zip(some, sent, strict=True):
            message = messageOf(datagram)
            self.assertEqual(message, DREQ(each.localID, each.remoteID, each.remoteQPN, bytes(220)))
            flow = ICRCState(gidOf(HERE), gidOf(address), PORT)
            self.assertTrue(flow.isRight(memoryview(datagram), 0, len(datagram)))
            self.assertEqual(len(datagram), DATAGRAM_BYTES)
            self.assertEqual(run(program(), datagram), each.remoteID >> ID_SHIFT)
        ending.receive("192.0.2.2", 50000, self.received(DREP(some[0].remoteID, some[0].localID)), 10.1)
        again = ending.deadline()
        assert again is not None
        self.assertEqual([address for address, _ in ending.outputs(again)], ["192.0.2.2", "192.0.2.3"])
        ending.receive("192.0.2.2", 50000, self.received(DREP(some[1].remoteID, some[1].localID)), again)
        self.assertFalse(ending.isDone)
        count = 0
        while not ending.isDone:
            again = ending.deadline()
            assert again is not None
            count += len(ending.outputs(again))
        self.assertEqual(count, orphans.ORPHAN_RETRIES - 1)
        self.assertLess(again, 10 + 5)

    def test_halfOpen(self) -> None:
        """
        The peer of one that awaited its RTU may be somebody who has sent nothing: it is told twice.
        """
        ending, sent = Orphans(HERE, [orphan(1, isHalfOpen=True)], 0.0), []
        while (again := ending.deadline()) is not None:
            sent += [messageOf(datagram) for _, datagram in ending.outputs(again)]
        self.assertTrue(ending.isDone)
        self.assertEqual(sent, [DREQ(orphan(1).localID, orphan(1).remoteID, 1, bytes(220))] * 2)

    def test_calling(self) -> None:
        """
        The peer of one that awaited its REP gets a REJ, by which it finds its end, and another one for each
        REP that comes yet.
        """
        calling = Orphan("192.0.2.2", 3 << ID_SHIFT | 1, 0, 0x30001, 0, 0xFFFF, False, 0xA, 0x1061C06)
        ending = Orphans(HERE, [calling], 10.0)
        ((address, datagram),) = ending.outputs(10.0)
        message = messageOf(datagram)
        assert isinstance(message, REJ)
        self.assertEqual(
            (address, message.reason, message.localCommunicationID), ("192.0.2.2", 4, 3 << 26 | 1)
        )
        self.assertEqual(message.additionalInfo[:8], (0xA).to_bytes(8, "big"))
        self.assertEqual(serviceOf(datagram, 0, len(datagram)), 0x1061C06)
        self.assertEqual(run(program(), datagram), 0)
        # The period of a code of 20, and as much as the neighbour may be late.
        for now in 10.0, 14.8:
            self.assertFalse(ending.isDone)
            ending.receive("192.0.2.2", 50000, self.received(REP(9, calling.localID)), now)
            ((_, datagram),) = ending.outputs(now)
            message = messageOf(datagram)
            assert isinstance(message, REJ)
            self.assertEqual((message.reason, message.remoteCommunicationID), (6, 9))
        again = ending.deadline()
        assert again is not None
        self.assertEqual((ending.outputs(again), ending.isDone, ending.deadline()), ([], True, None))

    def test_paced(self) -> None:
        """
        They are ended a few at a time.
        """
        some = [orphan(number) for number in range(1, 3 * orphans.ORPHANS_AT_ONCE)]
        ending = Orphans(HERE, some, 0.0)
        sizes = []
        while sum(sizes) < len(some):
            now = ending.deadline()
            assert now is not None
            sizes.append(len(ending.outputs(now)))
        self.assertEqual(sizes, [64, 64, 63])
        self.assertLess(now, 0.1)

    def test_crossing(self) -> None:
        """
        The peer closes at the same time, or it was never known here: it gets a DREP.  A REP gets a REJ.
        """
        ending = Orphans(HERE, [orphan(1)], 0.0)
        ending.outputs(0.0)
        known, unknown = orphan(1), orphan(8)
        for each in known, unknown:
            message = DREQ(each.remoteID, each.localID, each.localQPN)
            ending.receive("192.0.2.2", 50000, self.received(message), 0.1)
            ((address, datagram),) = ending.outputs(0.1)
            answer = messageOf(datagram)
            self.assertEqual((address, answer), ("192.0.2.2", DREP(each.localID, each.remoteID, bytes(224))))
        self.assertTrue(ending.isDone)
        ending.receive("192.0.2.2", 50000, self.received(REP(unknown.remoteID, unknown.localID)), 0.2)
        ((_, datagram),) = ending.outputs(0.2)
        self.assertIsInstance(messageOf(datagram), REJ)

    def test_strangers(self) -> None:
        """
        A DREP from elsewhere, with a bad ICRC or Q_Key, and packets for queue pairs end and draw nothing.
        """
        one = orphan(1)
        ending = Orphans(HERE, [one], 0.0)
        ending.outputs(0.0)
        message = DREP(one.remoteID, one.localID)
        right = self.received(message)
        for source, port, data in (
            ("192.0.2.9", 50000, self.received(message, "192.0.2.9")),
            ("192.0.2.2", 50001, right),
            ("192.0.2.2", 50000, self.received(message, key=7)),
            ("192.0.2.2", 50000, right[:-1]),
            ("192.0.2.2", 50000, b""),
            ("192.0.2.2", 50000, BTH.pack(4, 0, 0xFFFF, one.localQPN, 0) + bytes(DATAGRAM_BYTES - BTH.size)),
        ):
            ending.receive(source, port, data, 0.1)
            self.assertEqual((ending.isDone, ending.outputs(0.1)), (False, []))
        ending.receive("192.0.2.2", 50000, right, 0.1)
        self.assertTrue(ending.isDone)


class DeathLooksTests(SynchronousTestCase):
    """
    When it is to be seen whether a process has died.
    """

    def looksUntil(self, looks: DeathLooks, free: float) -> list[float]:
        """
        @param free: when the lock of the process ends.
        @return: when it was looked for, the last time after that.
        """
        times: list[float] = []
        while not times or times[-1] < free:
            due = looks.deadline()
            assert due is not None
            times.append(due)
            looks.looked(due, due < free)
        return times

    def test_late(self) -> None:
        """
        However late the kernel comes to it, within a minute, the end of the lock is seen a second later.
        """
        for free in 0.0, 0.005, 0.05, 0.5, 1.5, 13.8, 59.5:
            looks = DeathLooks(0.0, True)
            looks.looked(0.0, False)
            looks.closed(100.0)
            times = self.looksUntil(looks, 100 + free)
            self.assertLessEqual(times[-1] - free - 100, min(1.0, max(0.011, 10 * free)))
            self.assertEqual(looks.deadline(), None)

    def test_bound(self) -> None:
        """
        Those who live cost one look a second for a minute, and where nobody else has connections one look.
        """
        looks = DeathLooks(5.0, True)
        times = []
        while (due := looks.deadline()) is not None:
            times.append(due)
            looks.looked(due, True)
        self.assertEqual((times[0], times[-1], len(times)), (5.0, 65.0, 63))
        looks.closed(70.0)
        looks.looked(70.01, False)
        self.assertEqual(looks.deadline(), None)
        # Files that are closed all the time put none off.
        looks.closed(75.0)
        looks.closed(75.009)
        self.assertEqual(looks.deadline(), 75.01)
        looks.looked(75.01, False)
        # A process that was stopped itself looks once.
        looks.closed(80.0)
        looks.looked(1000.0, True)
        self.assertEqual(looks.deadline(), None)

    def test_untold(self) -> None:
        """
        Where nobody tells it is seen each second, without an end.
        """
        looks = DeathLooks(0.0, False)
        self.assertEqual(self.looksUntil(looks, 100.5), [*map(float, range(102))])
        self.assertEqual(looks.deadline(), 102.0)


class Neighbour:
    """
    Has the address of a process that has died, as a link of a wire.
    """

    def __init__(self, wire: Wire, clock: Clock, left: list[Orphan]) -> None:
        """
        Take its place.

        @param left: its connections.
        """
        self.wire, self.clock = wire, clock
        self.orphans = Orphans(HERE, left, clock.seconds())
        wire.links[HERE] = self  # type: ignore[assignment]

    def put(self, datagram: Datagram) -> None:
        """
        A datagram arrives.
        """
        source, _, port, _, data = datagram
        self.orphans.receive(source, port, data, self.clock.seconds())

    def send(self) -> None:
        """
        Send what is due.
        """
        for address, datagram in self.orphans.outputs(self.clock.seconds()):
            self.wire.carry((HERE, address, PORT, 0, datagram))


class Waiting(End):
    """
    An end that does not answer the REP.
    """

    def replied(self, connection: Any, reply: Any) -> None:
        """
        Note it.
        """
        self.log.append("replied")


class HandshakeTests(SynchronousTestCase):
    """
    A client dies amid a handshake, and a neighbour tells the server.
    """

    #: Seconds after which a server must have been told, and a step of the time.
    TOLD, STEP = 5.0, 0.01
    SERVER = "192.0.2.2"

    def setUp(self) -> None:
        """
        A client that shares its address, and a server.
        """
        self.clock, self.wire = Clock(), Wire()
        memory = bytearray(MEMORY_BYTES)
        self.register = ConnectionRegister(memory, 3)
        group: Any = SimpleNamespace(slot=3, connections=self.register)

        def make(owner: Any, guid: int, clock: Any) -> PacketFabric:
            return PacketFabric(owner, guid, clock, MemoryLink(self.wire, HERE), group=group)

        self.client = Device("test", self.clock.seconds, make, capture="")
        self.addCleanup(self.client.close)
        self.server = deviceOn(self.wire, self.SERVER, self.clock.seconds)
        self.addCleanup(self.server.close)
        self.passive, self.active = End(self.server, 64), Waiting(self.client, 64)
        self.server.listen(PortSpace.TCP, self.SERVER, SERVICE, self.passive)

    def call(self) -> None:
        """
        Send the REQ.
        """
        self.client.connect(PortSpace.TCP, self.SERVER, SERVICE, self.active)
        self.client.progress()

    def die(self) -> Neighbour:
        """
        @return: who has the client's address from now on, and what waits there.
        """
        waiting = [*self.client.fabric.link.queue]
        neighbour = Neighbour(self.wire, self.clock, self.register.of(3))
        for each in waiting:
            neighbour.put(each)
        return neighbour

    def told(self, neighbour: Neighbour) -> list[str]:
        """
        @return: what the server is told, in time.
        """
        end = self.clock.seconds() + self.TOLD
        while not self.passive.log and self.clock.seconds() < end:
            neighbour.send()
            self.server.progress()
            due = self.server.deadline()
            if due is not None and due <= self.clock.seconds():
                self.server.tick(self.clock.seconds())
            self.clock.advance(self.STEP)
        return self.passive.log

    def test_asked(self) -> None:
        """
        The client has sent its REQ, which the server reads later.
        """
        self.call()
        self.assertEqual(self.told(self.die()), ["rejected 4"])

    def test_replied(self) -> None:
        """
        The REP waits for the client.
        """
        self.call()
        self.server.progress()
        self.assertEqual(len(self.client.fabric.link.queue), 1)
        self.assertIn(self.told(self.die()), (["rejected 4"], ["rejected 6"]))

    def test_heard(self) -> None:
        """
        The client has read the REP, and not answered.
        """
        self.call()
        self.server.progress()
        self.client.progress()
        self.assertEqual(self.active.log, ["replied"])
        self.assertEqual(self.told(self.die()), ["rejected 4"])

    def test_lost(self) -> None:
        """
        The client has lost the REP, and the server the REJ: the REP comes again.
        """
        self.call()
        self.server.progress()
        self.client.fabric.link.queue.clear()
        lost: list[Datagram] = []

        def lose(datagram: Datagram) -> tuple[Datagram, ...]:
            """
            The first is lost.
            """
            if lost:
                return (datagram,)
            lost.append(datagram)
            return ()

        neighbour = self.die()
        self.wire.pass_ = lose
        self.assertEqual(self.told(neighbour), ["rejected 6"])
        self.assertEqual(len(lost), 1)

    def test_parted(self) -> None:
        """
        A client that has given up before leaves nothing to the neighbour.
        """
        self.call()
        self.active.connection.disconnect(self.clock.seconds())
        self.assertEqual(self.register.of(3), [])
