"""
SENDs to an RNIC, which ends a connection with the first one that finds no receive: the adapter of a host in
memory, and a peer of TCP that tells of its receives as one.
"""

from __future__ import annotations

import socket
import weakref
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

from attrs import evolve
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.hardware import test_contract
from tests.hca.fabric.hardware.test_contract import EndMixin, HardwareRow
from tests.hca.fabric.hardware.world import READ, SEND, SIGNALED, WRITE, AdapterQueuePair, Manager, SendWR
from tests.hca.fabric.iwarp.attacker import AttackTestCase, write
from tests.hca.hcas import settle
from tests.rdma.pair import EVERYTHING
from tests.rdma.test_reactors import OF_ADAPTERS, Talker, streamTests
from tests.sdp.test_contract import IB
from tests.support.calls import requireReplaceable
from tests.support.waiting import becomes
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import IB_PRIVATE_BYTES
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, PortSpace
from twisted_ib.hca.connection.receives import ANY, Receives, isTold, toldIn
from twisted_ib.hca.fabric.hardware import connector, hardware
from twisted_ib.hca.fabric.hardware.adapterpath import RING_BYTES, SLOTS, AdapterPath
from twisted_ib.hca.fabric.hardware.rdmacm import Parameters
from twisted_ib.hca.fabric.hardware.window import COUNT, Window
from twisted_ib.hca.fabric.iwarp.mpaservice import KEEPALIVE
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, StartupFrame
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.wire.opcodes import SEND_ONLY
from twisted_ib.rdma import handshake
from twisted_ib.sdp.handshake import Handshake
from twisted_ib.sdp.protocol.wire import Hello, packAddress

#: Where the peer's number is, and by which key.
THERE = 0x1000, 9
#: What is told, and a Hello.
TOLD = Receives().behind(b"")
HELLO = Hello(
    buffers=3,
    desiredReceiveBytes=4096,
    localReceiveBytes=4096,
    localPort=7,
    sourceAddress=packAddress("127.0.0.1"),
    destinationAddress=packAddress("127.0.0.2"),
).pack()


def asked(space: int, privateData: bytes, vendorID: int = 0) -> ConnectRequest:
    """
    @return: a request.
    """
    return ConnectRequest(space << 16 | 7, privateData, vendorID=vendorID)


class ToldTests(SynchronousTestCase):
    """
    The end of private data.
    """

    def test_told(self) -> None:
        """
        It is found behind any private data, and nothing is where there is none.
        """
        receives = Receives(16, 0x7F0000001000, 0xABCD)
        for data in (b"", b"hello\0\0", bytes(100)):
            told = receives.behind(data)
            self.assertEqual(toldIn(told), (data, receives))
            for other in (data, told[:-1], told + b"\0"):
                self.assertEqual(toldIn(other), (other, None))

    def test_hello(self) -> None:
        """
        A Hello of SDP keeps its length, and a side that does not know the form reads it as before.
        """
        receives = Receives(16, 0x7F0000001000, 0xABCD)
        told = receives.behind(HELLO, True)
        self.assertEqual((len(told), told[: -len(TOLD)]), (len(HELLO), HELLO[: -len(TOLD)]))
        self.assertEqual(toldIn(told, True), (HELLO, receives))
        self.assertEqual(toldIn(HELLO, True), (HELLO, None))
        sdp = Handshake()
        self.assertEqual(*(sdp.requested(asked(PortSpace.SDP, each)) for each in (HELLO, told)))

    def test_lastAddress(self) -> None:
        """
        An address from which its octets would reach beyond 64 bits is none, and leaves private data alone.
        """
        for address in (ANY - COUNT.size, ANY - COUNT.size + 1, ANY - 1):
            told = Receives(16, address, 9).behind(b"hello")
            if address + COUNT.size > ANY:
                self.assertEqual(toldIn(told), (told, None))
            else:
                self.assertEqual(toldIn(told), (b"hello", Receives(16, address, 9)))

    def test_noKey(self) -> None:
        """
        A number of receives that nobody can read is none: only a side that takes any number has no key.
        """
        told = Receives(16, 0x1000).behind(b"hello")
        self.assertEqual(toldIn(told), (told, None))
        self.assertEqual(toldIn(Receives(0, 0x1000).behind(b"hello")), (b"hello", Receives(0, 0x1000)))

    def test_isTold(self) -> None:
        """
        Messages tell where private data with it are no longer than those of InfiniBand, and so does a Hello
        whose reserved octets are 0; a program of verbs does not.
        """
        header = bytes(HEADER_BYTES)
        room = IB_PRIVATE_BYTES.request - HEADER_BYTES - len(TOLD)
        for space, data, vendor, expected in (
            (PortSpace.TCP, header, handshake.SINGLE, True),
            (PortSpace.TCP, header + bytes(room), handshake.GATHERS, True),
            (PortSpace.TCP, header + bytes(room + 1), handshake.GATHERS, False),
            (PortSpace.TCP, header, 0, False),
            (PortSpace.SDP, HELLO, 0, True),
            (PortSpace.SDP, HELLO[:-1] + b"x", 0, False),
            (PortSpace.SDP, bytes(40), 0, False),
        ):
            self.assertIs(isTold(asked(space, data, vendor)), expected)


class WindowTests(SynchronousTestCase):
    """
    One side, of four receives.
    """

    def setUp(self) -> None:
        """
        Its path takes all.
        """
        self.clock = Clock()
        fabric = SimpleNamespace(timers=Timers(self.clock.seconds), later=Mock())
        self.path: Any = SimpleNamespace(slots=4, alive=True, waiting={"someone": None}, fabric=fabric)
        self.path.askReceives, self.path.tellReceives = Mock(return_value=True), Mock(return_value=True)
        self.path.tellReady = Mock()
        self.memory = bytearray(2 * COUNT.size)
        self.window = self.made()

    def made(self) -> Window:
        """
        @return: a window, whose number a peer that has the key can read, and not write.
        """
        domain = Mock()
        domain.reg_mr.return_value.rkey = 7
        made = Window(self.path, self.memory, domain, 100, COUNT.size)
        domain.reg_mr.assert_called_once_with(100 + COUNT.size, COUNT.size, LOCAL_WRITE | REMOTE_READ)
        return made

    def number(self) -> int:
        """
        @return: what the peer would read.
        """
        (found,) = COUNT.unpack_from(self.memory, COUNT.size)
        return int(found)

    def answer(self, number: int) -> None:
        """
        The peer's was read.
        """
        COUNT.pack_into(self.memory, 0, number)
        self.window.answered(0)

    def send(self, most: int) -> int:
        """
        @return: how many SENDs of so many there are receives for.
        """
        for count in range(most):
            if not self.window.admits():
                return count
            self.window.sent += 1
        return most

    def test_reads(self) -> None:
        """
        The peer is asked when half of its receives are left, once at a time; a number that falls is none.
        """
        window, ask = self.window, self.path.askReceives
        self.assertEqual(window.own, Receives(4, 100 + COUNT.size, 7))
        window.told(Receives(4, *THERE), False, 1)
        self.assertEqual((self.send(2), ask.call_args_list), (2, []))
        self.assertEqual((self.send(10), ask.call_args_list), (2, [call(*THERE)]))
        self.answer(7)
        self.assertEqual((self.send(10), ask.call_count), (3, 2))
        self.answer(1)
        self.assertEqual((self.send(10), ask.call_count), (0, 2))

    def test_mayNotAsk(self) -> None:
        """
        A side that may not READ does not count, as it would learn of no more.
        """
        window, ask = self.window, self.path.askReceives
        window.told(Receives(4, *THERE), False, 0)
        self.assertEqual((self.send(10), ask.call_args_list), (10, []))

    def test_noRoom(self) -> None:
        """
        A path that has no room to ask is asked again with the next SEND.
        """
        ask = self.path.askReceives
        ask.return_value = False
        self.window.told(Receives(4, *THERE), False, 1)
        self.assertEqual((self.send(10), ask.call_count), (4, 3))

    def test_seldom(self) -> None:
        """
        A peer that posts none is asked ever more seldom, and not where no SEND waits.
        """
        window, fabric, ask = self.window, self.path.fabric, self.path.askReceives
        window.told(Receives(4, *THERE), False, 1)
        asked = 0
        for _ in range(2000):
            self.clock.advance(0.0005)
            fabric.timers.tick(self.clock.seconds())
            if fabric.later.called or not asked:
                fabric.later.reset_mock()
                self.send(10)
            if ask.called:
                ask.reset_mock()
                asked += 1
                self.answer(4)
        self.assertTrue(20 <= asked <= 30, asked)
        self.path.waiting.clear()
        self.clock.advance(1)
        fabric.timers.tick(self.clock.seconds())
        fabric.later.assert_not_called()

    def test_closedWhileAsking(self) -> None:
        """
        A time to ask again that has not come keeps nothing of the adapter's, which could not be closed.
        """

        class Domain:
            def reg_mr(self, *region: int) -> Any:
                return SimpleNamespace(pd=self, rkey=7, close=Mock())

        domain = Domain()
        self.window = Window(self.path, self.memory, domain, 100, COUNT.size)
        self.window.told(Receives(4, *THERE), False, 1)
        self.send(10)
        self.answer(4)
        kept = weakref.ref(domain)
        self.window.close()
        del self.window, domain
        self.assertIsNotNone(self.path.fabric.timers.deadline())
        self.assertIsNone(kept())

    def test_pushes(self) -> None:
        """
        A peer that reads no number is told each half of the receives, later where there is no room; the other
        one finds it.
        """
        window, tell = self.window, self.path.tellReceives
        window.told(Receives(), False, 1)
        for _ in range(5):
            window.posted()
        self.assertEqual(tell.call_args_list, [call(6), call(8)])
        tell.return_value = False
        window.posted()
        tell.return_value = True
        window.push()
        window.push()
        self.assertEqual(tell.call_args_list[2:], [call(10), call(10)])
        self.assertEqual((self.number(), self.send(1000)), (10, 1000))

    def test_ready(self) -> None:
        """
        Nothing is sent before the depths are agreed on; then the side that has asked says that it is ready,
        and the other one waits for that.
        """
        window, later = self.window, self.path.fabric.later
        self.assertEqual((window.isReady, window.isAwaited), (False, False))
        window.told(Receives(4, *THERE), False, 1)
        self.path.tellReady.assert_called_once_with()
        later.assert_called_once_with(self.path)
        self.assertEqual((window.isReady, window.isAwaited), (True, False))
        for there in (None, Receives()):
            other = self.made()
            other.told(there, True, 1)
            self.assertEqual((other.isReady, other.isAwaited), (True, False))
        other = self.made()
        later.reset_mock()
        other.told(Receives(4, *THERE), True, 1)
        self.assertEqual((other.isReady, other.isAwaited, later.called), (False, True, False))
        other.begin()
        later.assert_called_once_with(self.path)
        self.assertEqual((other.isReady, other.isAwaited), (True, False))
        self.path.tellReady.assert_called_once_with()

    def readiness(self, there: Receives | None, isPassive: bool, heardAfter: float = 1e9) -> list[float]:
        """
        @return: when this side has said again that it is ready.
        """
        timers, tell = self.path.fabric.timers, self.path.tellReceives
        window = self.made()
        window.told(there, isPassive, 1)
        said = []
        while (due := timers.deadline()) is not None:
            self.clock.advance(due - self.clock.seconds())
            window.isHeard = due > heardAfter
            timers.tick(due)
            if tell.called:
                tell.assert_called_once_with(0)
                tell.reset_mock()
                said.append(round(due, 3))
        return said

    def test_readyAgain(self) -> None:
        """
        The side that has asked says ever more seldom that it is ready, by a WRITE of no octets, until it
        hears of a peer that may have missed it, or for some seconds; software misses nothing, and has another
        meaning for it.
        """
        there = Receives(4, *THERE)
        self.assertEqual(self.readiness(there, False), [0.05, 0.25, 1.05, 4.25])
        before = self.clock.seconds()
        for other, isPassive in ((there, True), (None, False), (Receives(), False)):
            self.assertEqual(self.readiness(other, isPassive), [])
        self.assertEqual(self.readiness(there, False, before + 0.2), [before + 0.05])

    def test_readyAgainClosed(self) -> None:
        """
        It is not said for a connection that has ended.
        """
        self.window.told(Receives(4, *THERE), False, 1)
        self.path.alive = False
        self.clock.advance(1)
        self.path.fabric.timers.tick(self.clock.seconds())
        self.path.tellReceives.assert_not_called()
        self.assertIsNone(self.path.fabric.timers.deadline())

    def test_untold(self) -> None:
        """
        A peer that has not told is not told, and is sent to as before.
        """
        self.window.told(None, False, 1)
        for _ in range(10):
            self.window.posted()
        self.assertEqual((self.send(1000), self.path.tellReceives.called), (1000, False))


class SoftwareTests(AttackTestCase):
    """
    Software TCP whose peer has told of three receives.
    """

    def stream(self, privateData: bytes) -> tuple[socket.socket, Any, bytes]:
        """
        @param privateData: the peer's.
        @return: its socket, the stream, and the private data of the answer.
        """
        made = self.peer(StartupFrame(False, privateData, depths=Depths(4, 4)).pack())
        self.until(lambda: any(each.queuePair for each in self.fabric.streams.values()))
        (stream,) = self.fabric.streams.values()
        self.until(lambda: stream.isOpen)
        reply = made.recv(1000)
        found = StartupFrame.parse(reply, 0, len(reply), True)
        assert found is not None, reply
        made.sendall(write(1, 0, b""))
        self.until(lambda: not stream.isHeld)
        return made, stream, found[0].privateData

    def test_untold(self) -> None:
        """
        A peer that has not told hears nothing of receives and is sent any number of messages.
        """
        made, stream, answer = self.stream(b"hello")
        self.assertEqual(answer, b"")
        made.sendall(write(0, 3, b""))
        self.device.progress()
        for number in range(9):
            self.assertTrue(stream.post(SEND_ONLY << 24, b"", b"message", 7), number)
        self.assertFalse(stream.socket.getsockopt(*KEEPALIVE[0][:2]))

    def test_limited(self) -> None:
        """
        No more is sent than there are receives for, until a WRITE of no octets says how many there are; a
        number that falls, as a ready-to-receive message's, is none.
        """
        made, stream, answer = self.stream(Receives(3, *THERE).behind(b"hello"))
        self.assertEqual(toldIn(answer), (b"", Receives()))
        # The peer's host may go while a message waits, and TCP has nothing to send.
        for level, option, value in KEEPALIVE:
            self.assertEqual(stream.socket.getsockopt(level, option), value)
        waiter = Mock()

        def posted(most: int = 9) -> int:
            count = 0
            while count < most and stream.post(SEND_ONLY << 24, b"", b"message", 7):
                count += 1
            return count

        self.assertEqual(posted(), 3)
        for numbers, more in (((3, 1, 5), 2), ((4, 0, 6), 1)):
            stream.wantSpace(waiter)
            made.sendall(b"".join(write(0, number, b"") for number in numbers))
            found: list[int] = []

            def isThere(found: list[int] = found, more: int = more) -> bool:
                found.append(posted())
                return sum(found) >= more and waiter.resume.called

            self.until(isThere)
            waiter.resume.reset_mock()
            self.assertEqual((sum(found), posted()), (more, 0))


class ToldContractTests(test_contract.ContractTests):
    """
    The contracts of fabrics, where both ends have told.
    """

    def setUp(self) -> None:
        """
        The adapter is an RNIC.
        """
        super().setUp()
        self.host.isRNIC = True
        self.patch(hardware, "isRNIC", lambda name: True)
        self.patch(connector, "isTold", lambda request: True)

    def test_noRights(self) -> None:
        """
        The peer of a stream reads the number of receives alone, which has a protection domain of its own with
        the ring; into that it answers to READs, and has no right to write.
        """
        self.takers()
        shown = [each for each in self.host.regions.values() if each.access & REMOTE]
        found = sorted((each.length, each.access & REMOTE) for each in shown)
        self.assertEqual(found, [(COUNT.size, REMOTE_READ)] * 2 + [(RING_BYTES, REMOTE_WRITE)] * 2)
        self.assertEqual(len({id(each.domain) for each in shown}), 2)
        rights = [each.rights & REMOTE for each in self.host.queuePairs.values()]
        self.assertEqual(rights, [REMOTE_READ] * 2)

    def test_broken(self) -> None:
        """
        An RNIC takes its queue pair to error whenever the connection ends, of which the kernel tells.
        """
        a, _, one, _ = self.takers()
        self.host.queuePairs[one.path.adapterNumber].broken()
        one.post(b"hello")
        settle(a)
        self.assertEqual(one.said("failed"), [])

    def test_room(self) -> None:
        """
        A waiter for room is woken when the peer has posted receives.
        """
        a, b, one, _ = self.asleep()
        while one.post(b"x" * 8000):
            pass

        def isPosted() -> bool:
            one.path.wantSpace(one)
            self.clock.advance(0.05)
            a.tick(self.clock.seconds())
            before = len(one.said("resume"))
            settle(a, b)
            return len(one.said("resume")) > before and one.post(b"x" * 8000)

        self.assertTrue(any(isPosted() for _ in range(9)))

    def test_numberAgain(self) -> None:
        """
        Nothing that a queue pair has done and nobody has heard is left when it is destroyed: siw gives its
        number to the next, which took it for its own, and ended, or waited forever.
        """
        a, b, one, two = self.takers()
        number = two.path.adapterNumber
        one.post(b"too late")
        self.ask(a, self.address, 7001)
        settle(a)
        queue = self.host.contexts[1].queue.queue
        self.assertIn(number, [each.qp_num for each in queue])
        two.path.unbind(two)
        self.assertNotIn(number, [each.qp_num for each in (*queue, *b.fabric._completions)])
        # The request is accepted before anybody looks there.
        b.fabric.connector.progress()
        settle(a, b)
        again = self.listener.end.queuePair
        self.assertEqual((again.path.adapterNumber, again.said("taken")), (number, []))

    def test_betweenParts(self) -> None:
        """
        Between the parts of a READ the peer is not told of receives: that request would have the number of
        the parts that follow, and they would be done with it.
        """
        path = self.asleep()[2].path
        path._reading = [1]
        self.assertFalse(path.tellReceives(1))
        path._reading = []
        self.assertTrue(path.tellReceives(1))


class PacedMixin(EndMixin):
    """
    Messages through the window.
    """

    isOverTCP = True

    def test_overrun(self) -> None:
        """
        More messages than there are receives wait until the peer has posted more, which a READ finds: none is
        lost, and both directions may be full at once.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            messages = [bytes([number % 256]) * 5000 for number in range(10 * SLOTS)]
            for message in messages:
                client.transport.write(message)
                server.transport.write(message)
            for end in (client, server):
                this.assertEqual(list(await end.heard(len(messages))), messages)
            await self.over(port, client, server)

        self.drive(steps)

    def test_readsLate(self) -> None:
        """
        A READ is done when its response is there, also where the adapter completes messages behind it before.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            region = server.transport.registerMemory(1 << 17, EVERYTHING)
            region.view[:] = bytes(range(256)) * 512
            for number in range(1, 9):
                # The ring has something else where the response comes.
                client.transport.write(bytes([number]) * 40_000)
            await server.heard(8)
            done = client.transport.rdmaRead(1 << 17, region.address, region.remoteKey)
            client.transport.write(b"behind")
            this.assertEqual(await done, bytes(range(256)) * 512)
            this.assertEqual((await server.heard(9))[8], b"behind")
            await self.over(port, client, server)

        self.drive(steps)

    def test_readsInParts(self) -> None:
        """
        A READ that the ring asks for in parts is done when all are, though receives are posted meanwhile.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            size = 1 << 20
            region = server.transport.registerMemory(size, EVERYTHING)
            region.view[:] = b"".join(bytes([part % 251]) * 4096 for part in range(size // 4096))
            for round in range(4):
                done = client.transport.rdmaRead(size, region.address, region.remoteKey)
                for number in range(2 * SLOTS):
                    server.transport.write(bytes([number]) * 100)
                this.assertEqual(bytes(await done), bytes(region.view))
                await client.heard(2 * SLOTS * (round + 1))
            await self.over(port, client, server)

        self.drive(steps)

    def test_serverFirst(self) -> None:
        """
        A server that writes at once waits until its client takes that.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            made: list[Any] = []

            def build() -> Any:
                protocol = Talker()
                protocol.made.addCallback(lambda ignored: protocol.transport.write(b"hello"))
                made.append(protocol)
                return protocol

            factory = Factory.forProtocol(build)  # type: ignore[arg-type]
            where = f"0:interface={self.address}:device={self.device}"
            port: Any = await serverFromString(reactor, f"ib:{where}").listen(factory)
            text = f"ib:{self.address}:{port.getHost().port}:device={self.device}"
            client: Any = await clientFromString(reactor, text).connect(self.factory([]))
            this.assertEqual(list(await client.heard(1)), [b"hello"])
            await self.over(port, client, made[0])

        self.drive(steps)

    def test_lateServer(self) -> None:
        """
        A server that writes at once does so too where its adapter listens only after it has answered, and has
        missed that its client is ready.
        """
        this: Any = self
        this.host.isLate = True
        self.test_serverFirst()

    def test_heard(self) -> None:
        """
        Each side knows that it has heard of the other: of a message, or, where that is silent, of a READ.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            windows = [end.transport.queuePair.path.window for end in (client, server)]
            this.assertFalse(windows[0].isHeard)
            for _ in range(SLOTS):
                client.transport.write(b"message")
            await server.heard(SLOTS)
            await becomes(reactor, lambda: windows[0].isHeard)
            this.assertTrue(windows[1].isHeard)
            await self.over(port, client, server)

        self.drive(steps)

    def test_lends(self) -> None:
        """
        Of several messages in one batch those of a page and more are signalled, and shorter ones are not.
        """
        this: Any = self
        sizes = [5000, 100, 4096, 4095, 60_000, 1]
        flags: list[tuple[int, int]] = []
        post = AdapterQueuePair.post_send

        def posted(one: AdapterQueuePair, requests: list[SendWR]) -> None:
            sends = [each for each in requests if each.opcode == SEND and each.sg_list]
            flags.extend((each.sg_list[0].length, each.send_flags & SIGNALED) for each in sends)
            post(one, requests)

        this.patch(AdapterQueuePair, "post_send", posted)

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            for size in sizes:
                client.transport.write(bytes(size))
            this.assertEqual([len(each) for each in await server.heard(len(sizes))], sizes)
            await self.over(port, client, server)

        self.drive(steps)
        this.assertEqual([size for size, flag in flags if flag], [5000, 4096, 60_000, 1])

    async def echoes(self, reactor: Any, count: int) -> tuple[Any, Any]:
        """
        Send some messages both ways, and end.

        @return: both ends.
        """
        this: Any = self
        port, client, server = await self.pair(reactor)
        messages = [b"%d" % number for number in range(count)]
        for end in (client, server):
            for message in messages:
                end.transport.write(message)
        for end in (client, server):
            this.assertEqual(list(await end.heard(count)), messages)
        await self.over(port, client, server)
        return client, server

    def seen(self) -> set[int]:
        """
        @return: the kinds of requests that both adapters take from now on, but for WRITEs of no octets.
        """
        this: Any = self
        kinds: set[int] = set()
        execute = AdapterQueuePair.execute

        def looked(one: AdapterQueuePair, peer: AdapterQueuePair, request: SendWR) -> bool:
            if request.opcode != WRITE or request.sg_list:
                kinds.add(request.opcode)
            return execute(one, peer, request)

        this.patch(AdapterQueuePair, "execute", looked)
        return kinds

    def test_told(self) -> None:
        """
        Both sides tell, and neither program sees it.
        """
        this: Any = self
        kinds = self.seen()

        async def steps(reactor: Any) -> None:
            for end in await self.echoes(reactor, SLOTS):
                this.assertEqual(end.transport.peerPrivateData, b"")

        self.drive(steps)
        this.assertEqual(kinds, {SEND, READ})

    def test_oldServer(self) -> None:
        """
        A server that does not know the form answers without: nothing but its messages is sent, neither waits.
        """
        this: Any = self
        this.patch(connector, "toldIn", lambda data, isHello=False: (data, None))
        kinds = self.seen()

        async def steps(reactor: Any) -> None:
            client, server = await self.echoes(reactor, SLOTS)
            this.assertEqual(client.transport.peerPrivateData, b"")
            this.assertEqual(len(server.transport.peerPrivateData), len(TOLD))

        self.drive(steps)
        this.assertEqual(kinds, {SEND})

    def test_noWord(self) -> None:
        """
        A client whose first word is a message already is ready, and the message comes.
        """
        this: Any = self
        requireReplaceable(AdapterPath, "tellReady")
        this.patch(AdapterPath, "tellReady", lambda path: None)

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            server.transport.write(b"answer")
            await self.turn(reactor)
            this.assertEqual(client.log, [])
            client.transport.write(b"question")
            this.assertEqual(list(await server.heard(1)), [b"question"])
            this.assertEqual(list(await client.heard(1)), [b"answer"])
            await self.over(port, client, server)

        self.drive(steps)

    def test_noReads(self) -> None:
        """
        A server that accepts without READs, as many programs of verbs do, neither waits nor counts.
        """
        this: Any = self
        depths = connector.Connector.depths
        this.patch(
            connector.Connector,
            "depths",
            lambda one, message: (0, 0) if isinstance(message, ConnectReply) else depths(one, message),
        )
        kinds = self.seen()

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            for _ in range(SLOTS):
                server.transport.write(b"message")
            await client.heard(SLOTS)
            client.transport.abortConnection()
            await server.lost
            await port.stopListening()

        self.drive(steps)
        this.assertEqual(kinds, {SEND})

    def test_oldClient(self) -> None:
        """
        And so with a client that does not tell: it sees its server's private data alone.
        """
        this: Any = self
        this.patch(connector, "isTold", lambda request: False)
        kinds = self.seen()

        async def steps(reactor: Any) -> None:
            for end in await self.echoes(reactor, SLOTS):
                this.assertEqual(end.transport.peerPrivateData, b"")

        self.drive(steps)
        this.assertEqual(kinds, {SEND})

    def test_oldOverrun(self) -> None:
        """
        Against a server that does not know the form, more messages than it has receives end the connection.
        """
        this: Any = self
        this.patch(connector, "toldIn", lambda data, isHello=False: (data, None))

        async def steps(reactor: Any) -> None:
            _, client, server = await self.pair(reactor)
            server.transport.pauseProducing()
            for number in range(SLOTS + 1):
                client.transport.write(b"%d" % number)
            await client.lost
            server.transport.resumeProducing()
            await server.lost

        self.drive(steps)
        this.assertEqual(this.host.overruns, 1)
        this.host.overruns = 0

    def test_wrongAddress(self) -> None:
        """
        A server whose number would be at an address beyond 64 bits has not told of it.
        """
        this: Any = self
        accept = Manager.accept

        def accepted(manager: Manager, id: int, given: Parameters) -> None:
            data = Receives(SLOTS, ANY - 1, 9).behind(given.privateData[: -len(TOLD)])
            accept(manager, id, evolve(given, privateData=data))

        this.patch(Manager, "accept", accepted)

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            client.transport.write(b"hello")
            this.assertEqual(list(await server.heard(1)), [b"hello"])
            await self.over(port, client, server)

        self.drive(steps)

    def tearDown(self) -> None:
        """
        Each SEND has found a receive, nothing came before its peer was ready, and the adapter has no memory
        that it may read when other requests are done.
        """
        this: Any = self
        this.assertEqual((this.host.overruns, this.host.early, this.host.lent), (0, 0, 0))
        super().tearDown()  # type: ignore[misc]


def _make() -> dict[str, type]:
    """
    @return: the tests of messages that a window is for, and what it adds.
    """
    # librdmacm's end has no private data, which would say that it is a failure.
    members: dict[str, Any] = {"device": "hw0", "failure": "ConnectionDone", "_reactors": [IB]}
    members.update(__module__=__name__, isRNIC=True)
    kind: Any = type("RNICTests", (HardwareRow, PacedMixin, ReactorBuilder), members)
    found: dict[str, type] = kind.makeTestCaseClasses()
    for name, case in streamTests("hw0", [IB], __name__, skips=OF_ADAPTERS).items():
        if "Extra" in name:
            found[name] = type(name, (HardwareRow, case), {"__module__": __name__, "isRNIC": True})
    return found


globals().update(_make())
