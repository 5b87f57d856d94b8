"""
Tests for L{twisted_ib.hca.device.device}, over C{lo0} fabrics.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

from attrs import frozen
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import settle
from tests.sdp.test_transport import elsewhere
from tests.support.descriptors import descriptors, descriptorsBefore, runForked
from twisted_ib import limits, settings
from twisted_ib.errors import (
    DeviceClosedError,
    DeviceError,
    MemoryRegionError,
    NoListenerError,
    NoRouteError,
    PathLostError,
    QueuePairError,
    ResourceBusyError,
    ResourceLimitError,
    ServiceInUseError,
    UnknownDeviceError,
    WrongThreadError,
)
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.capture.capture import Capture, fileOf
from twisted_ib.hca.connection import ConnectRequest, LookupRequest, RejectReason
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device import device as deviceModule
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.objects import Objects
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.hca.host import addresses as hostAddresses
from twisted_ib.hca.host.handshake import QueryAnswer
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.keys import RandomIndices
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.cm.messages import REP, REQ
from twisted_ib.hca.wire.grh import guidGID

#: Of queue pairs: one asks for one connection.
numbers = count(77)
LOCALHOST, LOCALHOST6 = "127.0.0.1", "::1"


def request(address: str, port: int, portSpace: int = PortSpace.SDP) -> REQ:
    """
    @return: A REQ whose private data says that it is for C{address}.
    """
    version, offset = (17, 48) if portSpace == PortSpace.SDP else (1, 20)
    data = bytearray(92)
    if ":" in address:
        data[version] = 0x60
        data[offset + 15] = 1  # ::1
    else:
        data[version] = 0x40
        data[offset + 12 : offset + 16] = bytes(map(int, address.split(".")))
    return REQ(
        serviceID=portSpace << 16 | port,
        localQPN=next(numbers),
        requestRetries=2,
        responseTimeout=17,
        localCMResponseTimeout=17,
        privateData=bytes(data),
    )


class User:
    """
    Everything that a device tells somebody.

    @ivar log: The notifications.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.path: Any = None
        self.connection: Any = None
        self.message: Any = None
        self.accept = False

    def pathReady(self, path: Any) -> None:
        self.path = path

    def connectFailed(self, error: Exception) -> None:
        self.log.append(type(error).__name__)

    def connectionRequested(self, connection: Any, message: Any) -> None:
        """
        Remember, and perhaps accept.
        """
        self.connection, self.message = connection, message
        self.log.append("requested")
        if self.accept:
            connection.user = self
            connection.accept(REP(localQPN=78), 0.0)

    def requestWithdrawn(self, connection: Any) -> None:
        self.log.append("withdrawn")

    def replied(self, connection: Any, message: Any) -> None:
        self.log.append("replied")
        connection.ready(0.0)

    def rejected(self, connection: Any, message: Any) -> None:
        self.log.append("rejected")
        self.message = message

    def unreachable(self, connection: Any) -> None:
        self.log.append("unreachable")

    def peerDisconnected(self, connection: Any) -> None:
        self.log.append("disconnected")

    def pathLost(self, reason: Exception) -> None:
        self.log.append("lost")

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        Not here.
        """

    def failed(self, reason: Exception) -> None:
        self.log.append("failed")

    def forked(self) -> None:
        self.log.append("forked")


class DeviceTestCase(SynchronousTestCase):
    """
    Devices on a clock.
    """

    def setUp(self) -> None:
        """
        Two of them.
        """
        super().setUp()
        self.clock = Clock()
        self.a, self.b = self.device(), self.device()

    def device(self) -> Device:
        """
        @return: one that is closed after the test.
        """
        device = Device("lo0", self.clock.seconds, LoopbackFabric)
        self.addCleanup(device.close)
        return device

    def pathTo(self, port: int, address: str = LOCALHOST) -> Any:
        """
        @return: the path of C{a} to the listener.
        """
        user = User()
        self.a.connect(PortSpace.SDP, address, port, user)
        return user.path

    def ask(self, address: str, port: int, path: Any, portSpace: int = PortSpace.SDP) -> User:
        """
        Let C{a} ask for a connection.
        """
        user = User()
        wanted = request(address, port, portSpace)
        user.connection = self.a.cm.connect(path, wanted, user, self.clock.seconds())
        settle(self.a, self.b)
        return user


class ServiceTests(DeviceTestCase):
    """
    Listening.
    """

    def test_taken(self) -> None:
        """
        A port belongs to one listener per address, a wildcard has all; what was
        closed is free again, and to close twice is harmless.
        """
        service = self.b.listen(PortSpace.SDP, LOCALHOST, 7001, User())
        self.assertEqual((service.port, service.address, service.serviceID), (7001, LOCALHOST, 0x11B59))
        for device in (self.a, self.b):
            self.assertRaises(ServiceInUseError, device.listen, PortSpace.SDP, LOCALHOST, 7001, User())
            self.assertRaises(ServiceInUseError, device.listen, PortSpace.SDP, "0.0.0.0", 7001, User())
        other = self.b.listen(PortSpace.SDP, "127.0.0.2", 7001, User())
        service.close()
        service.close()
        self.assertRaises(ServiceInUseError, self.a.listen, PortSpace.SDP, "127.0.0.2", 7001, User())
        self.a.listen(PortSpace.SDP, LOCALHOST, 7001, User()).close()
        other.close()
        self.a.listen(PortSpace.SDP, "0.0.0.0", 7001, User()).close()

    def test_anyPort(self) -> None:
        """
        Port 0 is one that is free.
        """
        ports = {self.b.listen(PortSpace.SDP, LOCALHOST, 0, User()).port for _ in range(20)}
        self.assertEqual(len(ports), 20)
        self.assertNotIn(0, ports)

    def test_badAddress(self) -> None:
        """
        Only addresses of this host are listened on, and connected from.
        """
        self.assertRaises(NoRouteError, self.b.listen, PortSpace.SDP, "192.0.2.1", 7001, User())
        self.assertEqual((self.b.services._listeners, self.b.localAddressFor("127.0.0.9")), ({}, LOCALHOST))
        self.assertEqual(self.b.localAddressFor("127.0.0.9", "127.0.0.3"), "127.0.0.3")
        self.assertEqual(self.b.localAddressFor("127.0.0.9", "0.0.0.0"), LOCALHOST)
        self.assertEqual(self.b.localAddressFor("::1", "::"), "::1")
        self.assertRaises(NoRouteError, self.b.localAddressFor, LOCALHOST, "192.0.2.1")

    def test_isLocal(self) -> None:
        """
        A peer may have the addresses of this host, a link-local one without
        its scope, and no wildcard; the host is asked once in a second.
        """
        local = mock.Mock(side_effect=lambda: ["127.0.0.1", "fe80::5eed:1%3"])
        self.patch(hostAddresses, "localAddresses", local)
        self.clock.advance(next(numbers) * 1000)
        for address, expected in [
            *((LOCALHOST, True), ("127.0.0.9", True), (LOCALHOST6, True), ("::ffff:127.0.0.1", True)),
            *(("0.0.0.0", False), ("::", False), ("192.0.2.1", False), ("2001:db8::1", False)),
            *(("fe80::5eed:1", True), ("fe80::5eed:2", False)),
        ]:
            self.assertEqual(self.b.isLocal(address), expected, address)
            self.assertEqual(self.b.isLocal(address), expected, address)
        self.assertEqual(local.call_count, 2)
        self.clock.advance(1)
        self.b.isLocal("fe80::5eed:1")
        self.assertEqual(local.call_count, 3)
        self.assertEqual(hostAddresses.isPeersAddress.cache_info().maxsize, limits.LOCAL_ADDRESSES)

    def test_nobody(self) -> None:
        """
        Nobody listens: there is no path.
        """
        self.assertRaises(NoListenerError, self.a.connect, PortSpace.SDP, LOCALHOST, 7001, User())

    def test_dispatchByAddress(self) -> None:
        """
        A REQ finds the listener of the address that its private data names, else
        that of all addresses of this kind.
        """
        listeners = {address: User() for address in (LOCALHOST, "127.0.0.2", LOCALHOST6, "::")}
        for address, listener in listeners.items():
            port = 7001 if address != "::" else 7002
            self.b.listen(PortSpace.SDP, address, port, listener)
        path = self.pathTo(7001)
        for address in (LOCALHOST, "127.0.0.2", LOCALHOST6):
            self.ask(address, 7001, path)
            self.assertEqual(listeners[address].log, ["requested"])
            self.assertEqual(listeners[address].message.serviceID, 0x11B59)
            self.assertIs(listeners[address].connection.listener, listeners[address])
        self.ask(LOCALHOST6, 7002, path)
        self.assertEqual(listeners["::"].log, ["requested"])
        everywhere = User()
        self.b.listen(PortSpace.SDP, "0.0.0.0", 7003, everywhere)
        self.ask("127.0.0.5", 7003, path)
        self.assertEqual(everywhere.log, ["requested"])

    def test_dispatchLinkLocal(self) -> None:
        """
        A REQ names a link-local address without its scope, and finds the listener with a scope before the one
        on all addresses.
        """
        scoped, everywhere = User(), User()
        for listener, addresses in (
            (scoped, {"fe80::1%2": scoped}),
            (scoped, {"::": everywhere, "fe80::2%2": everywhere, "fe80::1%2": scoped}),
            (everywhere, {"::": everywhere, "fe80::2%2": scoped}),
        ):
            listener.log.clear()
            connection: Any = mock.Mock(listener=addresses)
            wanted = request("::1", 7001)
            data = bytearray(wanted.privateData)
            data[48:50] = b"\xfe\x80"
            wanted.privateData = bytes(data)
            self.b.services._requested(connection, wanted)
            self.assertEqual(listener.log, ["requested"])
            self.assertIs(connection.listener, listener)

    def test_dispatchMapped(self) -> None:
        """
        An IPv6 address that holds an IPv4 one is none of IPv4's listeners.
        """
        listener = User()
        connection: Any = mock.Mock(listener={LOCALHOST: listener})
        wanted = request("::1", 7001)
        data = bytearray(wanted.privateData)
        data[48:64] = bytes(10) + b"\xff\xff\x7f\x00\x00\x01"
        wanted.privateData = bytes(data)
        self.b.services._requested(connection, wanted)
        self.assertEqual((listener.log, connection.reject.call_count), ([], 1))

    def test_dispatchOtherPortSpace(self) -> None:
        """
        Other port spaces have RDMA-CM's header.
        """
        one, two = User(), User()
        self.b.listen(0x0106, LOCALHOST, 7001, one)
        self.b.listen(0x0106, "127.0.0.2", 7001, two)
        self.b.listen(PortSpace.SDP, LOCALHOST, 7001, User())
        self.ask("127.0.0.2", 7001, self.pathTo(7001), 0x0106)
        self.assertEqual((one.log, two.log), ([], ["requested"]))

    def test_rejected(self) -> None:
        """
        No listener at that address, or not on that service: a REJ with that reason.
        """
        self.b.listen(PortSpace.SDP, LOCALHOST, 7001, User())
        path = self.pathTo(7001)
        for address, port in (("127.0.0.2", 7001), (LOCALHOST6, 7001), (LOCALHOST, 7002)):
            user = self.ask(address, port, path)
            self.assertEqual(user.log, ["rejected"])
            self.assertEqual(user.message.reason, RejectReason.INVALID_SERVICE_ID)

    def test_unlistenOne(self) -> None:
        """
        When one address is closed the others stay.
        """
        one, two = User(), User()
        service = self.b.listen(PortSpace.SDP, LOCALHOST, 7001, one)
        self.b.listen(PortSpace.SDP, "127.0.0.2", 7001, two)
        path = self.pathTo(7001)
        service.close()
        self.assertEqual(self.ask(LOCALHOST, 7001, path).log, ["rejected"])
        self.ask("127.0.0.2", 7001, path)
        self.assertEqual((one.log, two.log), ([], ["requested"]))


class ConnectionTests(DeviceTestCase):
    """
    The notifications of the users of connections.
    """

    def setUp(self) -> None:
        """
        C{b} listens.
        """
        super().setUp()
        self.listener = User()
        self.service = self.b.listen(PortSpace.SDP, LOCALHOST, 7001, self.listener)
        self.path = self.pathTo(7001)

    def test_accepted(self) -> None:
        """
        REQ, REP, and a DREQ that each side hears of.
        """
        self.listener.accept = True
        user = self.ask(LOCALHOST, 7001, self.path)
        self.assertEqual(user.log, ["replied"])
        self.a.disconnect(user.connection)
        settle(self.a, self.b)
        self.assertEqual(self.listener.log, ["requested", "disconnected"])
        self.assertEqual(user.log, ["replied", "disconnected"])

    def test_withdrawn(self) -> None:
        """
        The peer gives up, or dies, before the listener has answered.
        """
        user = self.ask(LOCALHOST, 7001, self.path)
        user.connection.abandon(0.0)
        settle(self.a, self.b)
        self.assertEqual(self.listener.log, ["requested", "withdrawn"])
        self.listener.log.clear()
        self.ask(LOCALHOST, 7001, self.path)
        self.a.close()
        settle(self.b)
        self.assertEqual(self.listener.log, ["requested", "withdrawn"])

    def test_pathLost(self) -> None:
        """
        When the peer's HCA goes, users of connections and queue pairs hear it.
        """
        self.listener.accept = True
        user = self.ask(LOCALHOST, 7001, self.path)
        consumer = User()
        queuePair = self.a.createQueuePair(consumer)
        queuePair.connect(self.path, 5)
        self.b.close()
        settle(self.a)
        self.assertEqual((user.log, consumer.log), (["replied", "lost"], ["failed"]))
        self.assertFalse(self.path.alive)

    def test_noRoom(self) -> None:
        """
        While many messages wait for a peer that reads none, a new request or lookup is refused here.
        """
        self.patch(limits, "MANAGEMENT_SENDS", 3)
        while self.path.unsent() < 3:
            self.path.sendManagement(0x10, bytes(232))
        for send, wanted in (
            (self.a.sendRequest, ConnectRequest(serviceID=1)),
            (self.a.sendLookup, LookupRequest(serviceID=1)),
        ):
            self.assertRaises(ResourceLimitError, send, self.path, wanted, User(), 0.0)
        self.assertEqual((self.path.unsent(), len(self.a.cm), len(self.a.cm.lookups)), (3, 0, 0))

    def test_unreachable(self) -> None:
        """
        Nobody answers: the time runs out by C{deadline} and C{tick}, and nothing is repeated.
        """
        self.assertIsNone(self.a.deadline())
        user = self.ask(LOCALHOST, 7001, self.path)
        ticks = 0
        while user.log == []:
            deadline = self.a.deadline()
            assert deadline is not None
            self.clock.rightNow = deadline
            self.a.tick(deadline)
            ticks += 1
        self.assertEqual(user.log, ["unreachable"])
        self.assertEqual((ticks, self.a.cm.counters["retransmitted"]), (1, 0))

    def test_deadline(self) -> None:
        """
        The device's deadline is the first of its parts'; nobody is woken for the end of a TIMEWAIT.
        """
        table: Any = self.a.cm
        table._timewait.heap.append((5.0, 1, 2, 3, 4))
        self.assertEqual((table.deadline(True), self.a.deadline()), (5.0, None))
        table._timewait.heap.clear()
        self.ask(LOCALHOST, 7001, self.path)
        first = self.a.deadline()
        assert first is not None and first > 0.1
        done: list[int] = []
        self.a.timers.start(0.1, lambda: done.append(1))
        self.assertEqual(self.a.deadline(), 0.1)
        self.patch(self.a.fabric, "deadline", lambda: 0.05)
        self.assertEqual(self.a.deadline(), 0.05)
        self.a.tick(0.1)
        self.assertEqual(done, [1])


class ObjectTests(DeviceTestCase):
    """
    The objects of a device, and its output for commands.
    """

    def test_datagrams(self) -> None:
        """
        With the first queue pair for datagrams callers are asked for proof.
        """
        asked = []
        for type_ in QPType.RC, QPType.UD, QPType.RC:
            self.a.createQueuePair(User(), type_)
            asked.append(self.a.paths.takesDatagrams)
        self.assertEqual(asked, [False, True, True])

    def test_unknown(self) -> None:
        """
        There are no devices of other names.
        """
        self.assertRaises(UnknownDeviceError, Device, "nothing0")

    def test_identity(self) -> None:
        """
        GUIDs are random, odd and local; the GID table has the GUID's GID first.
        """
        self.assertNotEqual(self.a.guid, self.b.guid)
        for device in (self.a, self.b):
            self.assertEqual((device.guid & 1, device.guid >> 57 & 1, device.guid >> 64), (1, 0, 0))
            gids = device.gids()
            groups = f"{device.guid:016x}"
            expected = "fe80::" + ":".join(f"{int(groups[i : i + 4], 16):x}" for i in range(0, 16, 4))
            if ":0" not in expected:
                self.assertEqual(gids[0], expected)
            self.assertIn(LOCALHOST, gids)

    def test_describe(self) -> None:
        """
        The output of C{ib-devinfo}, as JSON can hold it.
        """
        self.a.createQueuePair(User())
        shown = json.loads(json.dumps(self.a.describe()))
        self.assertEqual(shown["hca_id"], "lo0")
        self.assertEqual(shown["attributes"]["node_guid"], self.a.guid)
        self.assertEqual(shown["port"]["qkey_viol_cntr"], 0)
        self.a.count("qkey_violations")
        self.assertEqual(self.a.describe()["port"]["qkey_viol_cntr"], 1)
        shown["counters"]["qkey_violations"] = 1
        self.assertEqual(shown["gids"], self.a.gids())
        self.assertEqual(shown["counters"], self.a.statistics())
        self.assertEqual(shown["pid"], os.getpid())
        self.assertTrue(shown["program"])
        counts = {"pd": len(self.a.memory.domains), "mr": 0, "cq": 0, "qp": 1, "srq": 0, "ah": 0, "mw": 0}
        self.assertEqual(shown["in_use"], counts)

    def test_captured(self) -> None:
        """
        A device writes to the capture that it is given, by name or not, else to that of the environment; one
        of no name is none.
        """
        given = Capture(self.mktemp())
        named, everywhere = self.mktemp(), self.mktemp()
        for environment, capture, path in (
            ("", None, None),
            (everywhere, None, fileOf(everywhere)),
            (everywhere, named, fileOf(named)),
            (everywhere, given, given.path),
            (everywhere, "", None),
        ):
            with mock.patch.dict(os.environ, {settings.CAPTURE: environment}):
                device = Device("lo0", self.clock.seconds, LoopbackFabric, capture=capture)
            self.addCleanup(device.close)
            self.assertEqual(None if device.capture is None else device.capture.path, path)

    def test_gone(self) -> None:
        """
        When the adapter behind a device has gone its owner hears of it, if there is one.
        """
        reason, told = PathLostError("unplugged"), []
        for device, whenGone in ((self.a, None), (self.b, lambda *given: told.append(given))):
            self.assertFalse(device.isGone)
            device.whenGone = whenGone
            device.adapterGone(reason, bool)
            self.assertTrue(device.isGone)
        self.assertEqual(told, [(reason, bool)])

    def test_describeProgram(self) -> None:
        """
        The program is the script; of a runner the application too; without a script it is the interpreter.
        """
        for words, program in (
            (["/usr/bin/twistd", "-n", "web", "x"], "twistd web"),
            (["/srv/server.py", "web"], "server.py"),
            ([""], "python"),
        ):
            self.patch(sys, "argv", words)
            self.assertEqual(self.a.describe()["program"], program)

    def test_describeSockets(self) -> None:
        """
        The rows come page by page; where nothing lists them there is one page without rows.
        """
        self.assertIsNone(self.a.socketRows)
        (page,) = self.a.describeSockets()
        self.assertEqual((page["rows"], page["pid"]), ([], os.getpid()))
        self.a.socketRows = lambda: iter([("row", 1), ("row", 2)])  # type: ignore[assignment,return-value]
        (page,) = self.a.describeSockets()
        self.assertEqual([[*each] for each in page["rows"]], [["row", 1], ["row", 2]])

    def test_describeFreeThreaded(self) -> None:
        """
        Of a free-threaded interpreter it says that the libraries for C programs do not start there.
        """
        self.assertNotIn("c_libraries", self.a.describe())
        self.patch(sys, "abiflags", "t")
        self.assertEqual(self.a.describe()["c_libraries"], "do not start on a free-threaded Python yet")

    def test_describeManyAddresses(self) -> None:
        """
        However many addresses a host has, the answer has room for what is said.
        """
        longest = [f"fe80::{n:04x}:1111:2222:3333:4444%2147483647" for n in range(300)]
        self.a.gids = lambda: longest  # type: ignore[method-assign]
        for n in range(64):
            self.a.count(f"a counter with quite a long name, number {n}")
        shown = self.a.describe()
        self.assertEqual(len(shown["gids"]), deviceModule.DESCRIBED_GIDS)
        self.assertLess(len(QueryAnswer(shown).pack()), limits.ANSWER_BYTES)

    def test_numbers(self) -> None:
        """
        No queue pair has a number that means something else: those of management, and that of
        multicast.
        """
        with mock.patch.object(RandomIndices, "_permute", lambda self, number: number):
            self.assertEqual(self.a.createQueuePair(User()).number, 2)
            self.a._numbers._counter = 0xFFFFFE
            self.assertEqual([self.a.createQueuePair(User()).number for _ in range(2)], [0xFFFFFE, 3])

    def test_statistics(self) -> None:
        """
        The traffic of closed queue pairs stays, and counts once.
        """
        consumer = User()
        consumer.traffic = lambda: (3, 4, 1, 2)  # type: ignore[attr-defined]
        queuePair = self.a.createQueuePair(consumer)
        self.a.createQueuePair(User())
        for _ in range(2):
            shown = self.a.statistics()
            names = ("sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs")
            self.assertEqual([shown[name] for name in names], [3, 4, 1, 2])
            queuePair.close()
        self.a.queuePairClosed(queuePair)
        self.assertEqual(self.a.statistics(), shown)

    def test_pollingCounters(self) -> None:
        """
        Sleeps, doorbells and, if somebody polls the device, what the policy remembers, are counters too.
        """
        shown = self.a.statistics()
        self.assertEqual((shown["sleeps"], shown["doorbells_rung"]), (0, 0))
        self.assertNotIn("polling_spins", shown)
        self.a.arm()
        polling = AdaptivePolling(lambda: 0.0, lambda: None)
        self.a.pollingCounters = polling.counters
        polling.spin(lambda: True)
        shown = self.a.statistics()
        self.assertEqual([shown[f"polling_{name}"] for name in ("turns", "spins", "found")], [1, 1, 1])
        self.assertEqual((shown["polling_hits_permille"], shown["sleeps"]), (1000, 1))

    def test_counters(self) -> None:
        """
        Counters begin at zero.
        """
        self.assertEqual(self.a.counters["anything"], 0)
        self.a.count("anything")
        self.a.fabric.count("anything")
        self.assertEqual(self.a.counters["anything"], 2)

    def test_warn(self) -> None:
        """
        Without a reactor a warning is a Python warning.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.a.warn("look out")
        self.assertEqual([str(warning.message) for warning in caught], ["look out"])

    def test_queuePairs(self) -> None:
        """
        Numbers differ; what is closed is not in use; there is a bound.
        """
        self.patch(limits, "QUEUE_PAIRS", 5)
        made = [self.a.createQueuePair(User()) for _ in range(5)]
        self.assertEqual(len({queuePair.number for queuePair in made} - {0, 1}), 5)
        self.assertRaises(ResourceLimitError, self.a.createQueuePair, User())
        made[0].close()
        made[0].close()
        self.assertEqual(self.a.inUse()["qp"], 4)
        self.a.createQueuePair(User())
        self.assertEqual(self.a.inUse()["qp"], 5)

    def test_memory(self) -> None:
        """
        Memory of a fabric that shares none is the process's own; it is counted
        and goes with its key.
        """
        domain = self.a.memory.allocateDomain()
        region = self.a.allocateMemory(100, Access.LOCAL_WRITE, domain)
        self.assertEqual(self.a.inUse()["mr"], 1)
        self.a.deregisterMemory(region)
        self.assertEqual(self.a.inUse()["mr"], 0)


class NumberTests(DeviceTestCase):
    """
    Numbers of a device: its GUID, those of queue pairs, times and counts.
    """

    def test_guid(self) -> None:
        """
        A GUID is one that no manufacturer has assigned, and is not 0.
        """
        for drawn, guid in (
            (0, 1),
            ((1 << 64) - 1, 0xFDFFFFFFFFFFFFFF),
            (1 << 57 | 1 << 58 | 4, 1 << 58 | 5),
        ):
            device = Device("lo0", self.clock.seconds, LoopbackFabric, lambda bits, drawn=drawn: drawn)
            self.addCleanup(device.close)
            self.assertEqual((device.guid, device.gid & (1 << 64) - 1), (guid, guid))

    def drawing(self, *numbers: int) -> None:
        """
        Have the device draw these numbers.
        """
        left = iter(numbers)
        self.patch(self.a, "_numbers", SimpleNamespace(draw=lambda used: next(left)))

    def test_reserved(self) -> None:
        """
        A number that a REP has is neither drawn nor reserved, but its connection's queue pair has it.
        """
        accepted: Any = self.a.cm.accepted
        for number in (5, 6):
            accepted[number] = SimpleNamespace()
        self.drawing(5, 6, 7, 8, 6, 9)
        self.assertEqual(self.a.createQueuePair(User()).number, 7)
        self.assertEqual(self.a.nextNumber, 0)
        self.assertEqual(self.a.createQueuePair(User()).number, 8)
        self.assertEqual(self.a.reserveNumber(), 9)
        owner = SimpleNamespace(number=5, proposal="proposal")
        with self.a.withNumber(owner):
            self.assertEqual(self.a.createQueuePair(User()).number, 5)
        self.assertEqual((self.a.queuePairs[5].proposal, self.a.nextNumber), ("proposal", 0))
        owner.number = 8
        self.drawing(10, 11)
        with self.a.withNumber(owner):
            # It has one already.
            self.assertEqual(self.a.createQueuePair(User()).number, 10)
        with self.assertRaises(ZeroDivisionError), self.a.withNumber(owner):
            raise ZeroDivisionError
        self.assertEqual(self.a.createQueuePair(User()).number, 11)
        accepted.clear()

    def test_bound(self) -> None:
        """
        There are so many queue pairs and no more; a number is reserved only if its queue pair will have room.
        """
        self.patch(limits, "QUEUE_PAIRS", 3)
        accepted: Any = self.a.cm.accepted
        made = [self.a.createQueuePair(User()), self.a.createStreamQueuePair(User())]
        self.assertTrue(self.a.reserveNumber())
        accepted[5] = SimpleNamespace()
        self.assertRaises(ResourceLimitError, self.a.reserveNumber)
        accepted.clear()
        made.append(self.a.createQueuePair(User()))
        self.assertRaises(ResourceLimitError, self.a.createQueuePair, User())
        self.assertRaises(ResourceLimitError, self.a.createStreamQueuePair, User())
        self.assertRaises(ResourceLimitError, self.a.reserveNumber)
        made[1].close()
        self.assertEqual(len(self.a.queuePairs), 2)
        self.assertIsNone(made[1].consumer)
        self.assertTrue(self.a.reserveNumber())

    def test_deadlines(self) -> None:
        """
        The deadline is the first of the fabric's and the timers', if there is one.
        """
        for fabric, timers, expected in (
            (None, None, None),
            (5, None, 5),
            (None, 7, 7),
            (5, 7, 5),
            (7, 5, 5),
        ):
            for name, when in (("fabric", fabric), ("timers", timers)):
                self.patch(self.a, name, SimpleNamespace(deadline=lambda when=when: when, close=lambda: None))
            self.assertEqual(self.a.deadline(), expected, (fabric, timers))

    def test_shown(self) -> None:
        """
        Counters of the fabric, of who polls and of the layers above are the device's; a port counts in units
        of four octets (IBTA vol. 1 16.1.3.5).
        """
        fabric = SimpleNamespace(sleeps=3, rung=4, octets=lambda: (23, 37))
        self.patch(self.a, "fabric", fabric)
        self.a.pollingCounters = lambda: {"polling_turns": 6}
        self.a.counting.update(rds=lambda: {"sent": 7}, sdp=lambda: {"sent": 8, "lost": 9})
        self.a.count("seen")
        self.a.count("seen")
        shown = self.a.statistics()
        names = ("sleeps", "doorbells_rung", "port_xmit_data", "port_rcv_data", "polling_turns", "rds_sent")
        self.assertEqual(
            [shown[name] for name in (*names, "sdp_sent", "sdp_lost", "seen")], [3, 4, 5, 9, 6, 7, 8, 9, 2]
        )
        fabric.octets = lambda: None
        self.assertNotIn("port_xmit_data", self.a.statistics())


class BatchTests(DeviceTestCase):
    """
    Dirty owners.
    """

    def owner(self, name: str, log: list[str], again: int = 0, error: bool = False) -> Any:
        """
        @return: an owner that gathers, C{again} times more when asked, or raises.
        """
        test = self

        class Owner:
            """
            Gathers.
            """

            left = again

            def endOfBatch(self) -> None:
                log.append(name)
                if error:
                    raise ZeroDivisionError(name)
                if self.left:
                    self.left -= 1
                    test.a.markDirty(self)

        return Owner()

    def test_nextBatch(self) -> None:
        """
        An owner that becomes dirty at the end of a batch belongs to the next one; C{progress} returns how
        much was done.
        """
        log: list[str] = []
        self.a.markDirty(self.owner("a", log, 3))
        self.a.markDirty(self.owner("b", log))
        self.assertTrue(self.a.busy())
        self.assertFalse(self.a.arm())
        self.assertEqual(self.a.progress(), 3)
        self.assertEqual(log, ["a", "b", "a"])
        self.assertEqual(self.a.progress(), 2)
        self.assertEqual((log, self.a.progress()), (["a", "b", "a", "a", "a"], 0))
        self.assertFalse(self.a.busy())

    def test_raises(self) -> None:
        """
        An owner that raises does not keep the others from their turn.
        """
        log: list[str] = []
        for name in "abc":
            self.a.markDirty(self.owner(name, log, 0, name == "b"))
        self.assertRaises(ZeroDivisionError, self.a.progress)
        self.assertEqual(log, ["a", "b"])
        self.assertTrue(self.a.busy())
        self.a.progress()
        self.assertEqual((log, self.a.busy()), (["a", "b", "c"], False))

    def test_wanted(self) -> None:
        """
        The driver of the device is notified that there is something to do.
        """
        calls: list[int] = []
        self.a.wanted = lambda: calls.append(1)
        self.a.markDirty(self.owner("a", []))
        self.assertEqual(calls, [1])

    def test_hold(self) -> None:
        """
        Held bytes are counted per holder; beyond the limit the largest holder is notified, and only when more
        is held.
        """
        self.patch(limits, "HELD_BYTES", 100)
        told: list[Any] = []

        class Holder:
            """
            Holds.
            """

            queuePair = SimpleNamespace(path=None)

            def budgetExceeded(self) -> None:
                told.append(self)

        one, two = Holder(), Holder()
        self.a.hold(one, 60)
        self.a.hold(two, 40)
        self.assertEqual((self.a.receiveBudget.heldBytes, told), (100, []))
        self.a.hold(two, 1)
        self.assertEqual((told, self.a.counters["held_bytes_exceeded"]), ([one], 1))
        self.a.hold(one, 30)
        self.a.hold(one, -10)
        self.assertEqual(told, [one, one])
        self.a.hold(one, -80)
        self.a.hold(two, -41)
        self.assertEqual((self.a.receiveBudget.heldBytes, self.a.receiveBudget.holders), (0, {}))

    def test_holdByPeer(self) -> None:
        """
        The peer for whom most is held is told, of its largest connection: a queue pair may wrap its path.
        """
        self.patch(limits, "HELD_BYTES", 100)
        told: list[str] = []
        first, second = object(), object()

        @frozen(eq=False)
        class Holder:
            """
            Holds.
            """

            name: str
            queuePair: Any

            def budgetExceeded(self) -> None:
                told.append(self.name)

        paths = {"small": SimpleNamespace(way=first), "large": SimpleNamespace(way=first), "other": second}
        holders = {name: Holder(name, SimpleNamespace(path=path)) for name, path in paths.items()}
        for name, octets in (("small", 30), ("other", 50), ("large", 40)):
            self.a.hold(holders[name], octets)
        self.assertEqual(told, ["large"])


class TableTests(SynchronousTestCase):
    """
    Objects of one device.
    """

    def setUp(self) -> None:
        """
        A device at an Ethernet port.
        """
        self.checked: list[int] = []
        self.device: Any = SimpleNamespace(
            timers=Timers(lambda: 0.0),
            port=SimpleNamespace(linkLayer=LinkLayer.ETHERNET),
            paths=SimpleNamespace(check=self.check),
            addressPaths=mock.Mock(),
        )
        self.objects = Objects(self.device)
        self.pd = ProtectionDomain(1)

    def check(self, key: int) -> None:
        """
        GIDs that are odd lead somewhere.
        """
        self.checked.append(key)
        if not key & 1:
            raise NoRouteError("even")

    def make(self, kind: str) -> Any:
        """
        @return: a new one.
        """
        if kind == "completion queues":
            return self.objects.createCompletionQueue(10)
        if kind == "shared receive queues":
            return self.objects.createSharedReceiveQueue(self.pd, 10, 1)
        return self.objects.createAddressHandle(self.pd, AddressVector(guidGID(5)))

    def test_bounds(self) -> None:
        """
        There are so many of each; one that is destroyed makes room.
        """
        for limit, table, destroy, kind in (
            ("COMPLETION_QUEUES", "completionQueues", "destroyCompletionQueue", "completion queues"),
            (
                "SHARED_RECEIVE_QUEUES",
                "sharedReceiveQueues",
                "destroySharedReceiveQueue",
                "shared receive queues",
            ),
            ("ADDRESS_HANDLES", "addressHandles", "destroyAddressHandle", "address handles"),
        ):
            self.patch(limits, limit, 2)
            made = [self.make(kind) for _ in range(2)]
            self.assertEqual(getattr(self.objects, table), set(made))
            error = self.assertRaises(ResourceLimitError, self.make, kind)
            self.assertIn(f"at most 2 {kind}", str(error))
            getattr(self.objects, destroy)(made[0])
            self.assertEqual(getattr(self.objects, table), {made[1]})
            self.make(kind)
        self.assertEqual(sum(self.pd.users.values()), 4)
        self.objects.close()
        self.assertEqual(
            [self.objects.completionQueues, self.objects.sharedReceiveQueues, self.objects.addressHandles],
            [set()] * 3,
        )
        self.assertEqual(self.pd.users, {})

    def test_busy(self) -> None:
        """
        What queue pairs use stays.
        """
        queue, shared = self.make("completion queues"), self.make("shared receive queues")
        for each in queue, shared:
            each.hold("qp")
        self.assertRaises(ResourceBusyError, self.objects.destroyCompletionQueue, queue)
        self.assertRaises(ResourceBusyError, self.objects.destroySharedReceiveQueue, shared)
        self.assertEqual(
            (self.objects.completionQueues, self.objects.sharedReceiveQueues), ({queue}, {shared})
        )

    def test_address(self) -> None:
        """
        An address is checked when its handle is made, but for that of a group, which may have no member.
        """
        self.assertRaises(NoRouteError, self.objects.createAddressHandle, self.pd, AddressVector(guidGID(4)))
        self.objects.createAddressHandle(self.pd, AddressVector(0xFF0E << 112 | 4))
        self.assertEqual(self.checked, [guidGID(4)])
        self.assertRaises(QueuePairError, self.objects.createAddressHandle, self.pd, AddressVector(0))
        self.assertEqual(len(self.objects.addressHandles), 1)


class AllocatedTests(DeviceTestCase):
    """
    Memory that a device allocates, for peers to map where its fabric has such.
    """

    def setUp(self) -> None:
        """
        Have segments that tell what becomes of them.
        """
        super().setUp()
        self.pd = self.a.memory.allocateDomain()
        self.segment: Any = mock.Mock(map=bytearray(4096))
        self.patch(self.a.fabric, "allocate", lambda size: self.segment)
        self.paths = [mock.Mock(), mock.Mock()]
        self.patch(self.a.fabric, "paths", lambda: self.paths)

    def test_shared(self) -> None:
        """
        A region is so long, whatever the segment is, and when it is deregistered peers hear of it first.
        """
        region = self.a.allocateMemory(100, Access.LOCAL_WRITE, self.pd)
        self.assertEqual((region.length, region.segment), (100, self.segment))
        self.segment.close.assert_not_called()
        self.segment.close.side_effect = lambda: [
            path.withdraw.assert_called_once_with(self.segment) for path in self.paths
        ]
        self.a.deregisterMemory(region)
        self.segment.close.assert_called_once_with()

    def test_private(self) -> None:
        """
        Where the fabric has none it is memory of this process.
        """
        self.segment = None
        region = self.a.allocateMemory(100, Access.LOCAL_WRITE, self.pd)
        self.assertEqual((region.length, region.segment), (100, None))
        self.a.deregisterMemory(region)
        self.paths[0].withdraw.assert_not_called()

    def test_refused(self) -> None:
        """
        A segment that cannot be registered is closed.
        """
        # IBTA vol. 1 10.6.3.1: no remote WRITE without local write.
        self.assertRaises(MemoryRegionError, self.a.allocateMemory, 100, Access.REMOTE_WRITE, self.pd)
        self.segment.close.assert_called_once_with()


class EndTests(DeviceTestCase):
    """
    Closing, other threads, forked children.
    """

    def test_closeFails(self) -> None:
        """
        What one step of the close raises keeps no other from its turn; the first error is raised at the end.
        """
        device = self.device()
        device.createQueuePair(User())
        errors = [KeyError("first"), ValueError("second")]
        with mock.patch.object(device.addressPaths, "close", side_effect=errors[0]):
            close = device.fabric.close
            with mock.patch.object(device.fabric, "close", side_effect=lambda: (close(), 1 / 0)):
                self.assertIs(self.assertRaises(KeyError, device.close), errors[0])
        self.assertEqual((device.closed, device.inUse()["qp"]), (True, 0))
        device.close()

    def test_noSubnet(self) -> None:
        """
        A device of no subnet has no subnet administration.
        """
        error = self.assertRaises(DeviceError, lambda: self.a.sa)
        self.assertIn("lo0 has no subnet administration", str(error))

    def test_unloadable(self) -> None:
        """
        Where agents cannot be imported any more, as after C{chroot}, a management datagram is dropped; not
        those that come when they can.
        """
        mad = (SimpleNamespace(), GSI_QPN, GSI_QPN, bytes(256), 0, 256)
        with mock.patch.dict(sys.modules, {"twisted_ib.hca.mad.agents": None}):
            self.a.madReceived(*mad)
        self.assertEqual(self.a.counters["management_dropped"], 1)
        self.a.madReceived(*mad)
        self.assertEqual(self.a.counters["management_malformed"], 1)

    def test_close(self) -> None:
        """
        Closing fails what is connected, gives descriptors and names back, and
        is done once; afterwards every use is an error.
        """
        before = descriptorsBefore()
        device = self.device()
        self.assertGreater(descriptors(), before)
        service = device.listen(PortSpace.SDP, LOCALHOST, 7001, User())
        user = User()
        self.a.connect(PortSpace.SDP, LOCALHOST, 7001, user)
        consumer = User()
        queuePair = device.createQueuePair(consumer)
        queuePair.connect(next(iter(device.fabric.paths())), 9)
        idle = device.createQueuePair(User())
        device.markDirty(User())
        device.close()
        self.assertEqual((consumer.log, device.inUse()["qp"]), (["failed"], 0))
        self.assertIsNone(idle.device)
        self.assertFalse(device._dirty)
        self.assertEqual(descriptors(), before)
        device.close()
        service.close()
        self.assertRaises(DeviceClosedError, device.listen, PortSpace.SDP, LOCALHOST, 7001, User())
        self.assertRaises(DeviceClosedError, device.connect, PortSpace.SDP, LOCALHOST, 7001, User())
        self.assertRaises(NoListenerError, self.a.connect, PortSpace.SDP, LOCALHOST, 7001, User())
        settle(self.a)
        self.assertFalse(user.path.alive)

    def test_otherThread(self) -> None:
        """
        A device belongs to the thread that opened it.
        """
        for call, arguments in (
            (self.a.listen, (PortSpace.SDP, LOCALHOST, 7001, User())),
            (self.a.connect, (PortSpace.SDP, LOCALHOST, 7001, User())),
            (self.a.checkThread, ()),
        ):
            (error,) = elsewhere(call, *arguments)
            self.assertIsInstance(error, WrongThreadError)
            self.assertIn("reactor.callFromThread", str(error))
        self.a.checkThread()

    def test_fork(self) -> None:
        """
        In a forked child the device is closed and consumers know it; the
        parent's goes on.
        """
        consumer = User()
        self.a.createQueuePair(consumer)
        self.b.listen(PortSpace.SDP, LOCALHOST, 7001, User())
        path = self.pathTo(7001)

        def child() -> None:
            """
            Look.
            """
            assert consumer.log == ["forked"], consumer.log
            for call, arguments in (
                (self.a.listen, (PortSpace.SDP, LOCALHOST, 7001, User())),
                (self.a.connect, (PortSpace.SDP, LOCALHOST, 7001, User())),
                (path.post, (0, b"", b"x", 1)),
            ):
                self.assertRaises(DeviceClosedError, call, *arguments)
            Device("lo0", self.clock.seconds, LoopbackFabric).listen(PortSpace.SDP, LOCALHOST, 7001, User())

        self.assertEqual(runForked(child), 0)
        self.assertEqual((consumer.log, self.a.closed), ([], False))
        self.ask(LOCALHOST, 7001, path)
        path.lost(PathLostError("over"))
