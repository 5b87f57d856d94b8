"""
SDP on the adapter of a host in memory, of RoCE and of iWARP: its contract.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.error import ConnectionRefusedError
from twisted.internet.test.reactormixins import ReactorBuilder

from tests.contracts.closing import ClosingContract
from tests.contracts.pacing import PacingContract
from tests.hca.fabric.hardware.test_contract import HardwareRow
from tests.hca.fabric.hardware.test_receives import HELLO
from tests.hca.fabric.hardware.world import RC, Domain, Host, Manager
from tests.hca.fabric.iwarp.ends import ONE, End, IWARPTestCase
from tests.hca.hcas import settle
from tests.internet.carriers import SDP, StreamContract, Talk
from tests.internet.stream_suite import makeStreamTests
from tests.internet.test_stream_suite import subjectFor
from tests.sdp.test_contract import CONTRACTS, IB, casesOf
from tests.support.waiting import becomes
from tests.switch.case import Client, Server, SwitchTestsBuilder
from twisted_ib import limits
from twisted_ib.errors import ServiceInUseError, WireError
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.connection.compacthello import MARK, compact
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES, PortSpace
from twisted_ib.hca.device import registry
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.hardware import connector, hardware
from twisted_ib.hca.fabric.hardware.adapterpath import (
    RING_BYTES,
    SENDS,
    SLOT_BYTES,
    ZERO_COPY_BYTES,
    AdapterPath,
)
from twisted_ib.hca.fabric.hardware.connector import OFFER_SECONDS, OFFERS
from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
from twisted_ib.hca.fabric.hardware.rdmacm import Parameters
from twisted_ib.hca.fabric.hardware.slots import CHUNK
from twisted_ib.hca.fabric.hardware.window import COUNT
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE, REMOTE_READ
from twisted_ib.sdp import listenSDP
from twisted_ib.switch.switch import explain

#: The least number of a receive.
RECEIVE = 1 << 63
#: How often the same memory is sent.
TRANSFERS = 4


class RNICRow(HardwareRow):
    """
    The adapter is one.
    """

    isRNIC = True

    def tearDown(self: Any) -> None:
        """
        Each SEND has found a receive.
        """
        super().tearDown()
        self.assertEqual(self.host.overruns, 0)


class RegisteredContract(StreamContract):
    """
    Memory that the application has registered.
    """

    host: Host
    patch: Any

    def copied(self) -> list[int]:
        """
        @return: the lengths of what is copied into rings from now on.
        """
        found: list[int] = []
        place = AdapterPath._place

        def counted(path: AdapterPath, header: bytes, payload: Any, length: int) -> int:
            found.append(length)
            return place(path, header, payload, length)

        self.patch(AdapterPath, "_place", counted)
        return found

    def registered(self) -> list[tuple[int, int]]:
        """
        @return: the lengths and rights of what is registered with adapters from now on.
        """
        found: list[tuple[int, int]] = []
        register = Domain.reg_mr

        def counted(domain: Domain, address: int, length: int, access: int) -> Any:
            found.append((length, access))
            return register(domain, address, length, access)

        self.patch(Domain, "reg_mr", counted)
        return found

    async def asked(self, reactor: Any) -> None:
        """
        Wait until an adapter that is held has requests.
        """
        await becomes(reactor, lambda: any(each.waiting for each in self.host.queuePairs.values()))

    def test_uncopied(self) -> None:
        """
        The adapter sends it from where it is: no record that is copied is as long as what is not worth that.
        It is registered with the adapter once, and transfers register nothing more, at either side; the peer
        gets no key.
        """
        data = bytes(range(256)) * 8192
        copied, registered = self.copied(), self.registered()

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            registered.clear()
            region = client.transport.registerMemory(bytearray(data))
            self.assertEqual(registered, [(len(data), int(LOCAL_WRITE))])
            for _ in range(TRANSFERS):
                await client.transport.writeRegistered(region)
            self.assertEqual([each for each in copied if each >= ZERO_COPY_BYTES], [])
            # More slots may be made, once.
            made = (CHUNK * SLOT_BYTES, int(LOCAL_WRITE))
            self.assertEqual([each for each in registered if each != made], registered[:1])
            client.transport.write(b"behind")
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.got(), data * TRANSFERS + b"behind")

        self.drive(steps)

    def test_waits(self) -> None:
        """
        It may be changed when the adapter has sent all of it, and not before; closed meanwhile it is
        registered until then.
        """
        data = bytes(range(256)) * 4096

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            region = client.transport.registerMemory(bytearray(data))
            before = set(self.host.regions)
            self.host.isHeld = True
            done = client.transport.writeRegistered(region)
            region.close()
            await self.asked(reactor)
            self.assertFalse(done.called)
            self.assertEqual(set(self.host.regions), before)
            self.host.resume()
            await done
            self.assertEqual(len(before - set(self.host.regions)), 1)
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.got(), data)

        self.drive(steps)

    def test_abandoned(self) -> None:
        """
        Where the connection is aborted before, it fails.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            region = client.transport.registerMemory(bytearray(1 << 20))
            self.host.isHeld = True
            done = client.transport.writeRegistered(region)
            await self.asked(reactor)
            client.transport.abortConnection()
            self.host.resume()
            failed: list[Any] = []
            await done.addErrback(failed.append)
            self.assertEqual(len(failed), 1)
            await self.end(reactor, port, client, server)

        self.drive(steps)

    def test_late(self) -> None:
        """
        Of what the peer had received when it ended, its end says so, also where the adapter does only later.
        """
        data = bytes(range(256)) * 2048
        late: list[tuple[AdapterPath, Any]] = []
        held: set[AdapterPath] = set()
        completed = AdapterPath.completed

        def hold(path: AdapterPath, completion: Any) -> None:
            if path in held and completion.wr_id < RECEIVE:
                late.append((path, completion))
            else:
                completed(path, completion)

        self.patch(AdapterPath, "completed", hold)

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            region = server.transport.registerMemory(bytearray(data))
            held.add(server.transport.queuePair.path)
            done = server.transport.writeRegistered(region)
            await becomes(reactor, lambda: len(client.got()) == len(data))
            self.assertFalse(done.called)
            client.transport.loseConnection()
            await done
            held.clear()
            for path, completion in late:
                completed(path, completion)
            await self.end(reactor, port, client, server)
            self.assertEqual(client.got(), data)

        self.drive(steps)

    def test_full(self) -> None:
        """
        More of it than the adapter takes requests at a time waits, and is not copied.
        """
        size = 3 * SENDS * limits.INLINE_MESSAGE
        copied = self.copied()

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            region = client.transport.registerMemory(size)
            self.host.isHeld = True
            done = client.transport.writeRegistered(region)
            await self.asked(reactor)
            self.host.resume()
            await done
            self.assertEqual([each for each in copied if each >= ZERO_COPY_BYTES], [])
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(len(server.got()), size)

        self.drive(steps)

    def test_twoWays(self) -> None:
        """
        So it is from the server, too, while the client writes; and both hear of the end.
        """
        data = bytes(range(256)) * 4096

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            mine = server.transport.registerMemory(bytearray(data))
            theirs = client.transport.registerMemory(bytearray(data[::-1]))
            waiting = [server.transport.writeRegistered(mine), client.transport.writeRegistered(theirs)]
            for each in waiting:
                await each
            server.transport.write(data)
            server.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual((server.got(), client.got()), (data[::-1], data + data))

        self.drive(steps)

    def test_atOnce(self) -> None:
        """
        So it is of memory that is registered, and written, as soon as the protocol has its transport.
        """
        data = bytes(range(256)) * 4096
        copied = self.copied()

        def begin(one: Any) -> None:
            one.done = one.transport.writeRegistered(one.transport.registerMemory(bytearray(data)))

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor, Talk(made=begin), Talk(made=begin))
            await client.done
            await server.done
            await becomes(reactor, lambda: len(client.got()) == len(server.got()) == len(data))
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual((server.got(), client.got()), (data, data))
            self.assertEqual([each for each in copied if each >= ZERO_COPY_BYTES], [])

        self.drive(steps)

    async def both(self, reactor: Any, data: bytes) -> tuple[Any, Any, Any]:
        """
        @return: A port, and a client and a server that have each sent some.
        """
        port, client, server = await self.pair(reactor)
        for one in (client, server):
            await one.transport.writeRegistered(one.transport.registerMemory(bytearray(data)))
        return port, client, server

    def test_asData(self) -> None:
        """
        What the peer has not read when an urgent byte comes goes as messages, which are as long as any.
        """
        data = b"x" * (1 << 20)

        async def steps(reactor: Any) -> None:
            port, client, server = await self.both(reactor, data)
            client.transport.writeRegistered(client.transport.registerMemory(bytearray(data)))
            client.transport.sendUrgent(b"!")
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.got().replace(b"!", b""), data + data)
            self.assertEqual(server.log[-1], "ConnectionDone")

        self.drive(steps)

    def test_killed(self) -> None:
        """
        The kernel of a peer that is killed says so, also where the streams have work queues, as those that
        have READ: those are not a program's.
        """

        async def steps(reactor: Any) -> None:
            port, client, server = await self.both(reactor, b"x" * (1 << 20))
            for one in (client, server):
                one.transport.openExtensions().openRDMA().begin()
                self.assertIsNotNone(one.transport.queuePair.work)
            connection = client.transport.queuePair.path.connection
            connection._connector.manager.disconnect(connection.id)
            await self.end(reactor, port, client, server)
            self.assertEqual({client.log[-1], server.log[-1]}, {"ConnectionLost"})

        self.drive(steps)

    def test_short(self) -> None:
        """
        What is short is sent as any other.
        """
        data = bytes(range(256)) * 1000

        async def steps(reactor: Any) -> None:
            port, client, server = await self.pair(reactor)
            region = client.transport.registerMemory(bytearray(data))
            # The regions of which a peer has a key are the numbers of receives, of an RNIC, and its rings.
            shown = [each for each in self.host.regions.values() if each.access & REMOTE]
            lengths = [RING_BYTES, COUNT.size] * 2 * self.host.isRNIC
            self.assertEqual([each.length for each in shown], lengths)
            # The rights of peers are no more than to read that.
            rights = {each.rights for each in self.host.queuePairs.values()}
            self.assertEqual(rights, {int(LOCAL_WRITE | (REMOTE_READ if self.host.isRNIC else 0))})
            # A domain for each end of an RNIC's; else that of the slots, which both share here.
            domains = {id(each.domain) for each in self.host.queuePairs.values()}
            self.assertEqual(len(domains), 2 if self.host.isRNIC else 1)
            done = client.transport.writeRegistered(region)
            client.transport.write(b"behind")
            await done
            client.transport.loseConnection()
            await self.end(reactor, port, client, server)
            self.assertEqual(server.got(), data + b"behind")

        self.drive(steps)


class Ignoring(End):
    """
    A listener without room.
    """

    def connectionRequested(self, connection: Any, request: Any) -> None:
        self.events.append("requested")
        connection.ignore(self.device.clock())


class MarkTests(IWARPTestCase):
    """
    The two services that a number of the adapter's can be, and requests for them.
    """

    def setUp(self) -> None:
        """
        Two devices of an adapter of RoCE.
        """
        super().setUp()
        self.host = Host()
        self.patch(hardware, "isRNIC", lambda name: False)
        given = {"address": ONE, "adapter": "rxe0", "verbs": self.host}
        self.here, self.there = (
            Device(name, self.clock.seconds, partial(HardwareFabric, manager=Manager(self.host), **given))
            for name in ("hw0", "hw1")
        )
        self.addCleanup(self.here.close)
        self.addCleanup(self.there.close)

    def ask(self, space: PortSpace, privateData: bytes) -> End:
        """
        @return: the end that has asked for number 7001, with these private data.
        """
        end = End(self.here)
        self.here.connect(space, ONE, 7001, end)
        end.call(end.path, privateData, space << 16 | 7001)
        settle(self.here, self.there)
        return end

    def test_stream(self) -> None:
        """
        The service gets the Hello as it was, and the kernel the form without addresses.
        """
        hello = HELLO.replace(b"\x7f\0\0\2", b"\x7f\0\0\1")
        server = End(self.there)
        self.there.listen(PortSpace.SDP, ONE, 7001, server)
        given: list[Parameters] = []
        connect = Manager.connect

        def told(manager: Manager, id: int, parameters: Parameters) -> None:
            given.append(parameters)
            connect(manager, id, parameters)

        self.patch(Manager, "connect", told)
        client = self.ask(PortSpace.SDP, hello)
        self.assertEqual((client.events, server.events), (["replied"], ["requested", "established"]))
        self.assertEqual(server.privateData, hello)
        self.assertEqual([each.privateData for each in given], [compact(hello)[HEADER_BYTES:]])
        self.assertLessEqual(HEADER_BYTES + len(given[0].privateData), 92)

    def test_mistaken(self) -> None:
        """
        A service gets no request of the other kind, nor a Hello that is cut short or none: each is refused,
        and nothing of it stays.
        """
        hello = compact(HELLO)[HEADER_BYTES:]
        wrong = {
            PortSpace.TCP: (hello, hello.ljust(56, b"\0"), MARK),
            PortSpace.SDP: (b"", b"program", hello[:-1], hello[:8], MARK + hello[9:] + b"\0"),
        }
        for space, every in wrong.items():
            server = End(self.there)
            service = self.there.listen(space, ONE, 7001, server)
            before = set(self.host.identifiers)
            for privateData in every:
                client = self.ask(PortSpace.TCP, privateData)
                self.assertEqual((client.events, server.events), (["rejected"], []))
                self.assertEqual(client.reason.reason, RejectReason.CONSUMER_DEFINED)
            self.assertEqual((set(self.host.identifiers), self.there.fabric.streams), (before, {}))
            service.close()
        self.assertEqual(self.there.counters["hardware_cm_mistaken"], 8)

    def test_noHello(self) -> None:
        """
        A request for a stream without a Hello is not sent.
        """
        before = set(self.host.identifiers)
        self.assertRaises(WireError, self.ask, PortSpace.SDP, HELLO[:-1])
        self.assertEqual((set(self.host.identifiers), self.here.fabric.streams), (before, {}))

    def test_offeredAgain(self) -> None:
        """
        A request that the listener ignores is offered once more later, so often, and then refused; not one
        whose peer has gone, nor more at a time than may wait.
        """
        server = Ignoring(self.there)
        self.there.listen(PortSpace.SDP, ONE, 7001, server)
        hello = HELLO.replace(b"\x7f\0\0\2", b"\x7f\0\0\1")
        self.patch(connector, "WAITING", 2)
        first, second, third = (self.ask(PortSpace.SDP, hello) for _ in range(3))
        self.assertEqual((first.events, second.events, third.events), ([], [], ["rejected"]))
        second.connection.disconnect(self.clock.seconds())
        settle(self.here, self.there)
        for _ in range(OFFERS):
            self.assertEqual(first.events, [])
            self.clock.advance(OFFER_SECONDS)
            self.there.fabric.timers.tick(self.clock.seconds())
            settle(self.here, self.there)
        self.assertEqual(server.events, ["requested"] * (3 + OFFERS))
        self.assertEqual(first.events, ["rejected"])
        self.assertEqual((self.host.queuePairs, self.there.fabric.streams), ({}, {}))

    def test_oneNumber(self) -> None:
        """
        A number is one service's: the second is told so, whichever it is, until the first has ended.
        """
        for first, second in ((PortSpace.SDP, PortSpace.TCP), (PortSpace.TCP, PortSpace.SDP)):
            service = self.there.listen(first, ONE, 7001, End(self.there))
            for device in (self.there, self.here):
                error = self.assertRaises(ServiceInUseError, device.listen, second, ONE, 7001, End(device))
                text = "port 7001 of adapter rxe0 cannot be listened on: Address already in use"
                self.assertEqual(str(error), text)
            service.close()
            self.there.listen(second, ONE, 7001, End(self.there)).close()


class RouteTests(HardwareRow, SwitchTestsBuilder):
    """
    Programs that know of TCP alone.
    """

    def setUp(self) -> None:
        """
        Rules that lead to the adapter.
        """
        super().setUp()
        self.lead("hw1")
        for name in ("hw1", "iwarp1"):
            self.addCleanup(registry.removeDevice, name)

    def lead(self, *devices: str) -> None:
        """
        The route leads to these devices.
        """
        self.rules(
            "use sdp listen * *:*\nuse sdp connect * *:*\ndevice hw1 hardware rxe0\n"
            f"device iwarp1 iwarp 127.0.0.1\nroute 127.0.0.1/32 {' '.join(devices)}\n"
        )

    def test_route(self) -> None:
        """
        A route leads a connection over the adapter, where a server listens, and one to nobody is refused.
        """

        async def scenario(reactor: Any) -> None:
            factory, client, nobody = Server(), Client(), Client()
            port = reactor.listenTCP(0, factory, interface="127.0.0.1")
            number = port.getHost().port
            made = factory.next()
            reactor.connectTCP("127.0.0.1", number, client)
            server = await made
            await client.done
            self.assertEqual(client.log, ["build", "made"])
            for each in (client.answer.transport, server.transport):
                self.assertEqual(str(explain(each)).partition(",")[0], "sdp on hw1")
            self.assertEqual({each.given.qp_type for each in self.host.queuePairs.values()}, {RC})
            self.assertEqual(server.transport.getPeer(), client.answer.transport.getHost())
            client.answer.transport.loseConnection()
            await client.lost
            await port.stopListening()
            reactor.connectTCP("127.0.0.1", number, nobody)
            await nobody.done
            self.assertIsInstance(nobody.reason, ConnectionRefusedError)

        self.play(scenario)

    def test_oneAddress(self) -> None:
        """
        One address is shared memory where the server is a process of the host, the adapter where it is not,
        and software where the adapter is gone.
        """
        ways = "shm0", "hw1", "iwarp1"
        self.lead(*ways)

        async def scenario(reactor: Any) -> None:
            number = 0
            for way in ways:
                if way == "iwarp1":
                    self.host.isGone = True
                factory, client = Server(), Client()
                made = factory.next()
                port = listenSDP(reactor, number, factory, interface="127.0.0.1", device=way)
                number = port.getHost().port
                reactor.connectTCP("127.0.0.1", number, client)
                server = await made
                await client.done
                self.assertEqual(str(explain(client.answer.transport)).partition(",")[0], f"sdp on {way}")
                server.transport.loseConnection()
                await client.lost
                await port.stopListening()

        self.play(scenario)


globals().update(RouteTests.makeTestCaseClasses())
del RouteTests


#: Of Twisted's suites, and of the contracts, those of TLS: it is above the transport, and is tested on other
#: devices at each run.
_TLS = "TLS", "Secure"


def made(module: str, isWhole: bool) -> dict[str, type]:
    """
    @param module: whose they are.
    @param isWhole: whether those of TLS are among them, as in C{tests/soak}.
    @return: the test cases, by name.
    """
    found: dict[str, type] = {}
    for row in (HardwareRow, RNICRow):
        carrier = SDP("hw0")
        carrier.name = f"SDP{row.__name__}"
        members = {"carrier": carrier, "_reactors": [IB], "__module__": module, "timeout": 40}
        name = f"{carrier.name}RegisteredTests"
        kind: Any = type(name, (row, RegisteredContract, ReactorBuilder), members)
        found |= kind.makeTestCaseClasses()
        # Of an RNIC those in which what it counts matters.
        contracts = CONTRACTS if row is HardwareRow else (ClosingContract, PacingContract)
        found |= casesOf(module, carrier, [IB], row, contracts=contracts)
    for name, case in makeStreamTests(subjectFor("hw0"), [IB], module).items():
        found[name] = type(name, (HardwareRow, case), {"__module__": module})
    return {name: each for name, each in found.items() if isWhole or not any(word in name for word in _TLS)}


globals().update(made(__name__, isWhole=False))
