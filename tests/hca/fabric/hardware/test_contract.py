"""
The contracts of fabrics on the adapter of a host in memory: L{tests.hca.fabric.hardware.world}.
"""

from __future__ import annotations

import errno
import gc
import os
from functools import partial
from typing import Any
from unittest.mock import Mock

from attrs import evolve
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.python.failure import Failure

from tests.hca.fabric.hardware.world import Host, Manager
from tests.hca.fabric.iwarp import test_contract as connections
from tests.hca.hcas import readable, settle
from tests.rdma.pair import Recorder
from tests.rdma.test_reactors import OF_ADAPTERS, RDMATestsMixin, streamTests
from tests.sdp.test_contract import IB
from tests.support.rundirectory import ownRunDirectory
from twisted_ib.errors import PathLostError, UnsupportedOperationError
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device import registry
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.hardware import hardware
from twisted_ib.hca.fabric.hardware.adapterpath import SLOTS, AdapterPath
from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
from twisted_ib.hca.memory.access import REMOTE
from twisted_ib.rdma import Access
from twisted_ib.verbs.pyverbs.base.errors import errnoOf


class ContractTests(connections.ContractTests):
    """
    Devices of one adapter.
    """

    traits = HardwareFabric.traits

    def setUp(self) -> None:
        """
        A host.
        """
        super().setUp()
        self.host = Host()
        self.patch(hardware, "isRNIC", lambda name: False)

    def device(self) -> Device:
        """
        @return: a new HCA, closed after the test.
        """
        given = {"address": self.address, "adapter": "rxe0", "verbs": self.host}
        make = partial(HardwareFabric, manager=Manager(self.host), **given)
        device = Device("hw0", self.clock.seconds, make)
        self.addCleanup(device.close)
        return device

    def test_refusedAtOnce(self) -> None:
        """
        An adapter that hears within the call that nobody listens, as siw does, says so as others do.
        """
        refused = Mock(side_effect=OSError(errno.ECONNREFUSED, "rdma_connect: Connection refused"))
        self.patch(Manager, "connect", refused)
        self.assertNobody(self.device(), self.address, 7001)
        self.assertEqual(refused.call_count, 1)

    def test_unreachedAtOnce(self) -> None:
        """
        And one that hears so that the peer is not reached, or of any other error, as by a stranger's ICMP.
        """
        a = self.device()
        for number in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EAGAIN):
            error = OSError(number, f"rdma_connect: {os.strerror(number)}")
            self.patch(Manager, "connect", Mock(side_effect=error))
            end = self.ask(a, self.address, 7001)
            settle(a)
            self.assertEqual((end.events, self.host.queuePairs), (["unreachable"], {}))

    def test_noPortSpace(self) -> None:
        """
        What listens in a port space that the kernel has none of is told so, and not that its port is in use.
        """
        fabric = self.device().fabric
        for space in (PortSpace.UDP, PortSpace.IB):
            error = self.assertRaises(UnsupportedOperationError, fabric.listen, space << 16 | 7001)
            self.assertEqual(errnoOf(error), errno.EOPNOTSUPP)
            self.assertEqual(str(error), "rxe0: librdmacm has no such port space")

    def test_workLater(self) -> None:
        """
        A stream's queue pair that gets work queues when it is connected is not a program's: it fails with
        the peer's end.
        """
        a, b, one, _ = self.takers()
        one.path.queuePair.work = Mock()
        b.close()
        settle(a)
        (reason,) = one.said("failed")
        self.assertIsInstance(reason, PathLostError)

    def test_acknowledgement(self) -> None:
        """
        A sender that waits for a record to be taken is woken when the adapter has done it.
        """
        a, b, one, _ = self.asleep()
        self.host.isHeld = True
        position = one.postKept(b"kept")
        a.progress()
        self.assertTrue(a.arm())
        self.assertFalse(readable(a))
        self.assertEqual(one.said("acknowledged"), [])
        self.host.resume()
        self.assertTrue(readable(a))
        settle(a, b)
        self.assertEqual(one.said("acknowledged"), [position])
        self.assertTrue(a.arm() and b.arm())
        self.assertFalse(readable(a) or readable(b))

    def test_noRights(self) -> None:
        """
        The peer of a stream has no right to any memory, until it is given a key, and then to none of another
        connection's: each end has a protection domain of its own.
        """
        self.takers()
        self.assertEqual([each for each in self.host.regions.values() if each.access & REMOTE], [])
        self.assertEqual(len({id(each.domain) for each in self.host.queuePairs.values()}), 2)

    def test_broken(self) -> None:
        """
        A queue pair that the adapter has taken to error, as its peer has broken a rule, fails by name when it
        sends, or has receives of its own: nothing else says so.
        """
        a, _, one, _ = self.takers()
        self.host.queuePairs[one.path.adapterNumber].broken()
        settle(a)
        self.assertEqual(one.said("failed"), [])
        one.post(b"hello")
        settle(a)
        (reason,) = one.said("failed")
        self.assertIn("the adapter has ended queue pair", str(reason))

    def test_forkedPaths(self) -> None:
        """
        A forked child that drops its devices leaves the queue pairs of their connections to its parent.
        """
        ends = self.takers()
        host = self.host
        child = os.fork()
        if not child:
            status = 99
            try:
                for each in ends[:2]:
                    each.queuePairs.clear()
                    each.close()
                del ends, each
                host.queuePairs, host.regions, host.contexts = {}, {}, []
                gc.collect()
                status = sum(host.collected.values())
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_waitsAsleep(self) -> None:
        """
        A waiter for room that begins while the device sleeps is notified when the adapter has sent.
        """
        self.host.isHeld = True
        super().test_waitsAsleep()

    def makeRoom(self, a: Device, b: Device) -> None:
        """
        The adapter takes what it was given, bit by bit.
        """
        self.host.resume()
        for _ in range(5):
            settle(b, a)

    def test_closed(self) -> None:
        """
        What the peer's adapter has taken is consumed; then all that is bound fails, with the reason, and the
        service is gone.
        """
        a, b, one, two = self.takers()
        more = self.another(a, b, one)
        for n in range(SLOTS):
            two.post(b"%d" % n)
        b.fabric.ringBells()
        b.close()
        settle(a)
        self.assertEqual(one.records, [b"%d" % n for n in range(SLOTS)])
        for taker in (one, more, two):
            (reason,) = taker.said("failed")
            self.assertIsInstance(reason, PathLostError)
        self.assertEqual(a.fabric.paths(), [])
        self.assertNobody(a, self.address, 7001)


class HardwareRow:
    """
    Makes C{hw0} a device, for one test.

    @cvar isRNIC: whether it is of iWARP.
    """

    isRNIC = False

    def setUp(self: Any) -> None:
        """
        Its host, and its row.
        """
        super().setUp()
        ownRunDirectory(self)
        host = self.host = Host()
        host.isRNIC = self.isRNIC
        self.patch(hardware, "isRNIC", lambda name: self.isRNIC)

        def make(owner: Any, guid: int, clock: Any, address: str, adapter: str) -> HardwareFabric:
            return HardwareFabric(owner, guid, clock, address, adapter, host, Manager(host))

        kind = evolve(registry.FABRICS["hardware"], open=make, locate=lambda adapter: "127.0.0.1")
        self.patch(registry, "FABRICS", {**registry.FABRICS, "hardware": kind})
        registry.addDevice("hw0", "hardware", "rxe0")
        self.addCleanup(registry.removeDevice, "hw0")


class EndMixin(RDMATestsMixin):
    """
    Adds the end of a connection whose adapter has taken messages.
    """

    @staticmethod
    async def over(port: Any, client: Any, server: Any) -> None:
        """
        The client ends the connection, in order.
        """
        client.transport.loseConnection()
        await client.lost
        await server.lost
        await port.stopListening()

    def test_pausedAtTheEnd(self) -> None:
        """
        A protocol that pauses when its peer ends the connection gets all messages, and then the end; one that
        closes without reading them leaves nothing.
        """
        this: Any = self
        messages = [b"%d" % number for number in range(SLOTS)]

        async def steps(reactor: Any) -> None:
            for isRead in (True, False):
                port, client, server = await self.pair(reactor)
                server.transport.pauseProducing()
                for message in messages:
                    client.transport.write(message)
                client.transport.loseConnection()
                await client.lost
                this.assertEqual(server.log, [])
                if isRead:
                    server.transport.resumeProducing()
                else:
                    server.transport.loseConnection()
                await server.lost
                this.assertEqual(server.log, [*(messages if isRead else []), "ConnectionDone"])
                await port.stopListening()
                while this.host.queuePairs:
                    await self.turn(reactor)

        self.drive(steps)

    def test_brokenAtTheEnd(self) -> None:
        """
        A message that breaks a rule is no orderly end, although its sender has closed: a protocol that pauses
        meanwhile hears of it.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            server.transport.pauseProducing()
            server.transport.queuePair.maxMessage = server.transport.maxMessageSize = 100
            for message in (b"first", bytes(200), b"last"):
                client.transport.write(message)
            client.transport.loseConnection()
            await client.lost
            server.transport.resumeProducing()
            reason = await server.lost
            this.assertEqual(server.log[0], b"first")
            this.assertIn("non-clean", str(reason))
            await port.stopListening()
            while this.host.queuePairs:
                await self.turn(reactor)

        self.drive(steps)


class VanishingMixin(EndMixin):
    """
    Adds an adapter that disappears.
    """

    host: Host

    def test_vanishes(self) -> None:
        """
        An adapter that disappears fails its connections by name, and the reactor closes its device, for which
        the kernel waits; a connect fails while it is not there, and succeeds when it is back.
        """
        this: Any = self

        async def steps(reactor: Any) -> None:
            for number in range(3):
                this.host.isGone = False
                _, client, server = await self.pair(reactor)
                client.transport.registerMemory(100)
                this.host.vanish()
                for end in (client, server):
                    this.assertIn("adapter rxe0 is gone", str(await end.lost))
                while this.host.identifiers or this.host.looks < 2 * number + 2:
                    await self.turn(reactor)
                left = this.host.regions, this.host.queuePairs
                this.assertEqual((*left, {each.isClosed for each in this.host.contexts}), ({}, {}, {True}))
                text = f"ib:127.0.0.1:1:device={self.device}"
                try:
                    await clientFromString(reactor, text).connect(self.factory([]))
                except ConnectError as error:
                    this.assertIn("libibverbs does not list it", str(error))
                else:
                    this.fail("connected")

        self.drive(steps)

    def test_closedAtOnce(self) -> None:
        """
        A server that ends its connection before the kernel has heard that the client is ready ends the
        client's, too.
        """
        this: Any = self

        class Closing(Recorder):
            def connectionMade(self) -> None:
                self.transport.connectionLost(Failure(ConnectionDone()))

        async def steps(reactor: Any) -> None:
            text = f"ib:0:interface={self.address}:device={self.device}"
            factory = Factory.forProtocol(Closing)
            port: Any = await serverFromString(reactor, text).listen(factory)
            text = f"ib:{self.address}:{port.getHost().port}:device={self.device}"
            client: Any = await clientFromString(reactor, text).connect(self.factory([]))
            this.assertIsInstance(await client.lost, ConnectionDone)
            while any(each.peer for each in this.host.identifiers.values()):
                await self.turn(reactor)
            await port.stopListening()

        self.drive(steps)

    def test_registeredUncopied(self) -> None:
        """
        What is sent and written of registered memory is registered once, and copied into no ring: the adapter
        reads it where it is.
        """
        this: Any = self
        copied: list[int] = []
        place = AdapterPath._place

        def counted(path: AdapterPath, header: bytes, payload: Any, length: int) -> int:
            copied.append(length)
            return place(path, header, payload, length)

        this.patch(AdapterPath, "_place", counted)

        async def steps(reactor: Any) -> None:
            _, client, server = await self.pair(reactor)
            source = client.transport.registerMemory(bytearray(b"r" * 300_000))
            target = server.transport.registerMemory(300_000, int(Access.LOCAL_WRITE | Access.REMOTE_WRITE))
            before = set(this.host.regions)
            copied.clear()
            await client.transport.rdmaWrite(source, target.address, target.remoteKey)
            await client.transport.sendRegistered(source, 1000, 60_000)
            this.assertEqual((copied, set(this.host.regions)), ([], before))
            this.assertEqual(bytes(target.view), b"r" * 300_000)
            (message,) = await server.heard(1)
            this.assertEqual(bytes(message), b"r" * 60_000)
            await client.transport.rdmaWrite(b"s" * 100, target.address, target.remoteKey)
            this.assertEqual(copied, [100])

        self.drive(steps)


def _make() -> dict[str, type]:
    """
    @return: the test cases of messages on reactors, Twisted's own of streams too, by name.
    """
    members = {"device": "hw0", "_reactors": [IB], "__module__": __name__}
    kind: Any = type("RDMATests", (HardwareRow, VanishingMixin, ReactorBuilder), members)
    found: dict[str, type] = kind.makeTestCaseClasses()
    for name, case in streamTests("hw0", [IB], __name__, skips=OF_ADAPTERS).items():
        found[name] = type(name, (HardwareRow, case), {"__module__": __name__})
    return found


globals().update(_make())
