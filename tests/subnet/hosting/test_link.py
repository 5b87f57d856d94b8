"""
Devices of several processes at the ports of one subnet: the first hosts it, and another when that ends.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from typing import Any
from unittest import mock, skipIf

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.contracts.groups import DatagramSide
from tests.hca.hcas import LISTENER, SDP, User, turn
from tests.hca.mad.toys.echo import EchoAgent
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.support.captures import Frame, read
from tests.support.commands import PATH, running, stop
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib import limits, settings
from twisted_ib.drive import threads
from twisted_ib.errors import DeviceError, HiddenListenerError, NoListenerError, NoRouteError
from twisted_ib.hca.base.port import KeyViolation, PortState
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.timers import timeoutSeconds
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.capture.capture import Capture
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.entries import connect
from twisted_ib.hca.host.rundirectory import openDirectories
from twisted_ib.hca.mad.attributes.node import NodeInfo, SMInfo, SMState
from twisted_ib.hca.mad.attributes.notice import BadKeyDetails, Notice
from twisted_ib.hca.mad.attributes.port import Capability, PortInfo
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.mad.classes import PERFORMANCE, SUBNET
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, SET, TRAP, Mad
from twisted_ib.subnet.hosting import hostthread as hosts
from twisted_ib.subnet.hosting import link as links
from twisted_ib.subnet.hosting import server as servers
from twisted_ib.subnet.hosting.messages import REFUSED, kindOf, packAttach
from twisted_ib.subnet.hosting.place import Place
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.sm import configuration

MISSING = libc.available()
OK = WCStatus.SUCCESS
NAME = "subnet-default"
#: Opens a device, says its LID, and serves it until it is killed.
OTHER = f"""{PATH}
import time
from twisted_ib.hca.device.device import Device
device = Device("ib0")
print(device.port.lid, flush=True)
while True:
    device.fabric.attend()
    device.progress()
    time.sleep(0.001)
"""


@skipIf(bool(MISSING), f"missing: {MISSING}")
class LinkTests(SynchronousTestCase):
    """
    This process and others.
    """

    def setUp(self) -> None:
        """
        A run directory of the test's own; hosts end soon.
        """
        self.directory = ownRunDirectory(self)
        self.patch(hosts, "LINGER_SECONDS", 0.02)
        self.devices: list[Device] = []
        self.addCleanup(self.end)

    def end(self) -> None:
        """
        Close all devices, and wait for the host's end.
        """
        for device in self.devices:
            device.close()
        waitUntil(lambda: not hosts._hosts)

    def open(self, name: str = "ib0") -> Device:
        """
        @return: a device, whose port is Active.
        """
        device = Device(name)
        self.devices.append(device)
        self.until(lambda: device.port.state is PortState.ACTIVE)
        return device

    def turn(self) -> None:
        """
        Serve all devices.
        """
        n = 0
        for device in self.devices:
            if not device.closed:
                device.tick(time.monotonic())
                n += turn(device)
        if not n:
            time.sleep(0.0005)

    def until(self, holds: Any) -> None:
        """
        Serve all devices until something is so.
        """
        waitUntil(holds, self.turn)

    def connected(self, one: Device, two: Device) -> tuple[DeviceSide, DeviceSide]:
        """
        @return: two queue pairs.
        """
        sides = [
            DeviceSide(mine, AddressVector(0, lid=other.port.lid, isGlobal=False))
            for mine, other in ((one, two), (two, one))
        ]
        for side, other in (sides, sides[::-1]):
            side.to(QPState.RTS, other.qp.number, timeout=14, retry_cnt=7)
        return sides[0], sides[1]

    def say(self, one: DeviceSide) -> None:
        """
        A send arrives.
        """
        one.send(1, SendOpcode.SEND, piece(one.register(b"said")))
        statuses: list[Any] = []

        def isDone() -> bool:
            statuses.extend(one.statuses())
            return bool(statuses)

        self.until(isDone)
        self.assertEqual(statuses, [(1, OK)])

    def test_two(self) -> None:
        """
        Two devices of one process: connections and datagrams by LID, MADs, and services by address of this
        host, which those of C{shm0} are apart from.
        """
        one, two = self.open("ib0"), self.open("ib1")
        self.assertNotEqual(one.port.lid, two.port.lid)
        self.until(lambda: one.fabric.route(two.port.lid) == two.guid)
        self.until(lambda: one.fabric.port.connects(two.guid, 0xFFFF))
        first, second = self.connected(one, two)
        second.receive(5, piece(second.register(8)))
        self.say(first)
        sender, taker = DatagramSide(one), DatagramSide(two)
        vector = AddressVector(0, lid=two.port.lid, isGlobal=False)
        sender.tell(one.objects.createAddressHandle(sender.pd, vector), taker.qp.number, b"datagram")
        heard: list[Any] = []
        self.until(lambda: heard.extend(taker.heard()) or heard)  # type: ignore[func-returns-value]
        self.assertEqual(heard, [(sender.qp.number, b"datagram")])
        asking = EchoAgent(one)
        EchoAgent(two)
        responses: list[Any] = []
        asking.agent.send(vector, asking.question(), responses.append)
        self.until(lambda: responses)
        self.assertEqual(bytes(responses[0].mad.data), bytes(range(232))[::-1])
        self.assertRaises(NoListenerError, one.connect, SDP, "127.0.0.1", 7001, object())
        two.listen(SDP, "127.0.0.1", 7001, LISTENER)
        self.assertEqual(one.fabric.serving(SDP << 16 | 7001, "127.0.0.1"), [two.guid])
        other = Device("shm0")
        self.devices.append(other)
        error = self.assertRaises(HiddenListenerError, other.connect, SDP, "127.0.0.1", 7001, object())
        self.assertIn("it listens on another kind of device", str(error))
        other.listen(SDP, "127.0.0.1", 7001, LISTENER)
        self.assertEqual(other.fabric.serving(SDP << 16 | 7001, "127.0.0.1"), [other.guid])
        self.assertEqual(one.hostNamed(two.fabric.port._description), two.gids()[0])

    def test_patience(self) -> None:
        """
        A device that is made waits for its port to be Active for longer than a switch keeps a trap back.
        """
        seconds = timeoutSeconds(configuration._TIMEOUT)
        assert seconds is not None
        self.assertGreater(links.ACTIVE_SECONDS, seconds)

    def test_early(self) -> None:
        """
        A device finds one that has come since its last turn.
        """
        one = self.open("ib0")
        two = Device("ib1")
        self.devices.append(two)
        user = User()

        def isFound() -> bool:
            # No device has a turn.
            try:
                one.connect(SDP, two.gids()[0], 7001, user)
            except NoRouteError:
                return False
            return True

        waitUntil(isFound)

    def test_gone(self) -> None:
        """
        The port of a device that is closed is gone for the others; when the last is gone, so is the host, and
        its files but the lock's.
        """
        one, two = self.open("ib0"), self.open("ib1")
        self.until(lambda: one.fabric.has(two.guid))
        two.close()
        self.until(lambda: not one.fabric.has(two.guid))
        one.close()
        files = {f"{NAME}.lock"}
        waitUntil(lambda: {each for each in os.listdir(self.directory) if "subnet" in each} == files)
        again = self.open()
        self.assertEqual(again.port.state, PortState.ACTIVE)

    def test_killed(self) -> None:
        """
        The process that hosts is killed: another hosts, ports keep their LIDs and are Active again,
        connections between them carry data all the time, and new devices come.
        """
        host = running(self, "-c", OTHER)
        assert host.stdout is not None
        first = int(host.stdout.readline())
        one, two = self.open("ib0"), self.open("ib1")
        self.until(lambda: one.fabric.port.connects(two.guid, 0xFFFF))
        self.until(lambda: two.fabric.port.connects(one.guid, 0xFFFF))
        lids = first, one.port.lid, two.port.lid
        self.assertEqual((len(set(lids)), hosts._hosts), (3, set()))
        sides = self.connected(one, two)
        for id in range(60):
            sides[1].receive(id, piece(sides[1].register(8)))
        self.say(sides[0])
        host.kill()
        host.wait()
        self.until(lambda: hosts._hosts)
        for _ in range(50):
            self.say(sides[0])
        self.until(lambda: not one.fabric.port._isComing and not two.fabric.port._isComing)
        self.until(lambda: one.fabric.route(lids[2]) == two.guid)
        three = self.open("ib2")
        self.assertEqual((one.port.lid, two.port.lid), lids[1:])
        self.assertNotIn(three.port.lid, lids[1:])
        self.say(sides[0])

    def test_stopped(self) -> None:
        """
        A successor that does not answer, as one that is stopped, does not stop the turns of a device: its
        port is as it was for a while, and then Down.  When that one ends too it is Active again.
        """
        host = running(self, "-c", OTHER)
        assert host.stdout is not None
        host.stdout.readline()
        one = self.open()
        lid = one.port.lid
        host.kill()
        host.wait()
        (directory, *others), _ = openDirectories(os.environ, os.geteuid(), False)
        for each in (directory, *others):
            self.addCleanup(each.close)
        found = Place.take(directory, settings.DEFAULT_SUBNET)
        assert found is not None
        begun = time.monotonic()
        self.until(lambda: one.fabric.port._isAsked)
        self.assertLess(time.monotonic() - begun, links.HOST_SECONDS / 2)
        self.assertEqual(one.port.state, PortState.ACTIVE)
        self.patch(links, "LATE_LOOK_SECONDS", 0.01)
        one.fabric.port._late = begun
        self.until(lambda: one.port.state is PortState.DOWN)
        found.close()
        self.until(lambda: one.port.state is PortState.ACTIVE)
        self.assertEqual((one.port.lid, len(hosts._hosts)), (lid, 1))

    def test_hostStopped(self) -> None:
        """
        A device that is opened while the host is stopped has a port that is Down, and its turns go on; it is
        Active when the host goes on, or has ended.
        """
        self.patch(links, "LATE_LOOK_SECONDS", 0.01)
        for end in (signal.SIGCONT, signal.SIGKILL):
            host = running(self, "-c", OTHER)
            assert host.stdout is not None
            host.stdout.readline()
            stop(host.pid)
            with (
                mock.patch.object(links, "HOST_SECONDS", 0.05),
                mock.patch.object(links.SubnetLink, "_awaitActive", side_effect=AssertionError),
            ):
                one = Device("ib0")
            self.devices.append(one)
            self.turn()
            self.assertEqual((one.port.state, one.fabric.has(one.guid)), (PortState.DOWN, False))
            host.send_signal(end)
            self.until(lambda one=one: one.port.state is PortState.ACTIVE)  # type: ignore[misc]
            self.assertTrue(one.port.lid)
            one.close()
            self.devices.remove(one)
            host.kill()
            host.wait()

    def test_unwanted(self) -> None:
        """
        A successor that refuses a device has its port Down at once; it asks again.
        """
        host = running(self, "-c", OTHER)
        assert host.stdout is not None
        host.stdout.readline()
        one = self.open()
        self.patch(links, "LATE_LOOK_SECONDS", 0.01)
        with mock.patch.object(limits, "SUBNET_DEVICES", 0):
            host.kill()
            host.wait()
            self.until(lambda: one.port.state is PortState.DOWN)
        self.until(lambda: one.port.state is PortState.ACTIVE)

    def test_noHost(self) -> None:
        """
        Where no process can host, the error says why: this one has no descriptor, or the lock is another
        user's, who does not host.
        """

        def take(*arguments: Any) -> None:
            """
            It cannot be had.
            """
            raise errors.pop(0)

        fabric = self.open().fabric
        environment = {**os.environ, settings.SUBNET: "other"}
        self.patch(links.Place, "take", take)
        errors: list[OSError] = [OSError(errno.EMFILE, "Too many open files")]
        error = self.assertRaises(DeviceError, links.SubnetLink, fabric, 7, "x", environment)
        self.assertEqual(str(error), "subnet other cannot be hosted: Too many open files")
        self.patch(links, "HOST_SECONDS", 0.01)
        errors = [PermissionError(errno.EACCES, "Permission denied") for _ in range(1000)]
        error = self.assertRaises(DeviceError, links.SubnetLink, fabric, 7, "x", environment)
        self.assertEqual(str(error), "the host of subnet other does not answer")

    def test_noThread(self) -> None:
        """
        A process that can have no thread leaves the place to others.
        """

        def start(thread: Any) -> None:
            """
            As at C{ulimit -u}.
            """
            raise RuntimeError("can't start new thread")

        patch = self.patch(threads.Thread, "start", start)
        for _ in range(2):
            error = self.assertRaises(DeviceError, Device, "ib0")
            self.assertEqual(str(error), "subnet default cannot be hosted: can't start new thread")
        patch.restore()
        self.assertEqual(hosts._hosts, set())
        self.open()

    def test_notHosted(self) -> None:
        """
        A device whose host is gone has a port that is Down as long as its process cannot host, and reaches
        nobody; later it hosts.
        """
        host = running(self, "-c", OTHER)
        assert host.stdout is not None
        host.stdout.readline()
        one = self.open()
        self.patch(links, "HOST_SECONDS", 0.05)
        self.patch(links, "LATE_LOOK_SECONDS", 0.01)

        def take(*arguments: Any) -> None:
            """
            There is no descriptor.
            """
            raise OSError(errno.EMFILE, "Too many open files")

        patch = self.patch(links.Place, "take", take)
        host.kill()
        self.until(lambda: one.port.state is PortState.DOWN)
        self.assertEqual((one.fabric.route(one.port.lid or 1), one.fabric.has(one.guid)), (0, False))
        patch.restore()
        self.until(lambda: one.port.state is PortState.ACTIVE)
        self.assertEqual(len(hosts._hosts), 1)

    def test_name(self) -> None:
        """
        C{TWISTED_IB_SUBNET} chooses among subnets; a name that is none is refused.
        """
        one = self.open()
        environment = {**os.environ, settings.SUBNET: "other"}
        port = links.SubnetLink(one.fabric, 0x1234567, "other", environment)
        self.addCleanup(port.close)
        self.assertEqual((port.has(one.guid), len(hosts._hosts)), (False, 2))
        environment[settings.SUBNET] = "../x"
        self.assertRaises(DeviceError, links.SubnetLink, one.fabric, 5, "x", environment)

    def test_refused(self) -> None:
        """
        The host says why it refuses a device: a GUID that there is, too many, another version, another user.
        """
        one = self.open()
        fabric = one.fabric
        self.assertIn("GUID", str(self.assertRaises(DeviceError, links.SubnetLink, fabric, one.guid, "x")))
        self.patch(limits, "SUBNET_DEVICES", 1)
        self.assertIn("are attached", str(self.assertRaises(DeviceError, links.SubnetLink, fabric, 7, "x")))
        self.patch(limits, "SUBNET_DEVICES", 5)
        (directory, *_), _ = openDirectories(os.environ, os.geteuid(), False)
        self.addCleanup(directory.close)
        for octets in (b"?", packAttach(5, 0, "x").replace(b"sub2", b"sub0"), packAttach(4, 0, "even")):
            pair = connect(directory, NAME, socket.SOCK_SEQPACKET)
            self.addCleanup(pair.close)
            pair.setblocking(True)
            pair.send(octets)
            self.assertEqual(kindOf(pair.recv(8192)), REFUSED)
            self.assertEqual(pair.recv(8192), b"")
        (host,) = hosts._hosts
        self.patch(host.server, "_allows", lambda uid: False)
        error = self.assertRaises(DeviceError, links.SubnetLink, fabric, 7, "x")
        self.assertIn("does not allow user", str(error))
        self.assertEqual(one.port.state, PortState.ACTIVE)

    def test_reserved(self) -> None:
        """
        No device gets the port of the subnet manager by its name, from which it would speak for subnet
        administration; nor is there a node with GUID 0.
        """
        fabric = self.open().fabric
        for guid, name in ((7, "manager"), (7, "switch"), (1, "x")):
            error = self.assertRaises(DeviceError, links.SubnetLink, fabric, guid, name)
            self.assertIn(name if guid == 7 else "GUID", str(error))
        port = links.SubnetLink(fabric, 7, "")
        self.addCleanup(port.close)
        self.assertEqual(port.guid, 7)

    def test_noDescriptor(self) -> None:
        """
        A host that has no descriptor for a process that attaches tries again after a pause.
        """
        fabric = self.open().fabric
        (host,) = hosts._hosts
        listener = mock.Mock(wraps=host.server._listener)
        ends: list[float] = []

        def accept() -> Any:
            """
            Fail for a while, from the first call on.
            """
            ends.append(time.monotonic() + 0.05)
            if len(ends) == 1 or time.monotonic() < ends[0]:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return mock.DEFAULT

        listener.accept.side_effect = accept
        self.patch(servers, "ACCEPT_PAUSE_SECONDS", 0.01)
        self.patch(host.server, "_listener", listener)
        port = links.SubnetLink(fabric, 7, "x")
        self.addCleanup(port.close)
        self.assertEqual(port.guid, 7)
        self.assertIn(host.counters["accept_failed"], range(1, 7))

    def test_keyOfManager(self) -> None:
        """
        The subnet manager's SM_Key cannot be guessed: it opens the keys of all ports.
        """
        self.open()
        (host,) = hosts._hosts
        assert host.subnet.manager is not None
        self.assertGreater(host.subnet.manager.manager.key, 1 << 32)

    def test_capture(self) -> None:
        """
        A capture has the SMPs that make the port Active; those of another user's device are not its host's to
        tell.
        """
        capture = Capture(self.mktemp())
        self.addCleanup(capture.close)
        one = Device("ib0", capture=capture)
        self.devices.append(one)
        self.until(lambda: one.port.state is PortState.ACTIVE)
        agent = one.mads.register(SUBNET, 1, (GET_RESPONSE,), lambda request: None)
        vector = AddressVector(0, lid=one.port.smLID, isGlobal=False)
        responses: list[Any] = []
        agent.send(vector, Mad(SUBNET, 1, GET, 0, NodeInfo.ID), responses.append)
        self.until(lambda: responses)
        (host,) = hosts._hosts
        (client,) = host.server._clients
        client.credentials = evolve(client.credentials, uid=os.geteuid() + 1)
        for managementClass in (SUBNET, PERFORMANCE):
            octets = bytearray(Mad(managementClass, 1, GET, 7, NodeInfo.ID).pack())
            client.passed(False, Packet(5, one.port.lid, 1, 1, octets))

        def shown() -> list[Frame]:
            capture.flush()
            return read(capture.path)

        self.until(lambda: shown()[-1].mad.transaction == 7)
        frames = shown()
        sets = [
            frame.mad for frame in frames if (frame.mad.method, frame.mad.attribute) == (SET, PortInfo.ID)
        ]
        self.assertEqual(PortInfo.parse(bytes(sets[-1].data)).linkState, PortState.ACTIVE)
        asked = [frame for frame in frames if frame.mad.managementClass == SUBNET]
        self.assertEqual([frame.outbound for frame in asked], [True, False])
        self.assertEqual(frames[-1].mad.managementClass, PERFORMANCE)

    def test_violations(self) -> None:
        """
        The host counts what a device drops, up to the counter's maximum, and traps it; the device's LID is
        its own, whatever it says.
        """
        one = self.open()
        (host,) = hosts._hosts
        port = host.subnet.attached[one.guid].port
        bad = KeyViolation(True, 9, 5, one.port.lid + 1, 0, 2, 3)
        for _ in range(3):
            one.fabric.violated(bad)
        one.fabric.violated(bad._replace(isQueueKey=False))
        self.until(lambda: port.qkeyViolations == 3 and port.pkeyViolations == 1)
        details = BadKeyDetails.parse(port.notices[-1].details)
        self.assertEqual((details.lid1, details.lid2, details.key), (5, one.port.lid, 9))
        one.fabric.port.violated(1 << 40, bad)
        self.until(lambda: port.qkeyViolations == 0xFFFF)

    def test_manages(self) -> None:
        """
        A device asks nodes by SMPs, but not one of another user.
        """
        one = self.open()
        agent = one.mads.register(SUBNET, 1, (GET_RESPONSE,), lambda request: None)
        (host,) = hosts._hosts
        responses: list[Any] = []
        vector = AddressVector(0, lid=one.port.smLID, isGlobal=False)
        question = Mad(SUBNET, 1, GET, 0, NodeInfo.ID)
        agent.send(vector, question, responses.append)
        self.until(lambda: responses)
        self.assertEqual(NodeInfo.parse(bytes(responses[0].mad.data)).nodeType, NodeType.CA)
        (client,) = host.server._clients
        client.credentials = evolve(client.credentials, uid=os.geteuid() + 1)
        agent.send(vector, question, responses.append, timeout=0.01, retries=0)
        self.until(lambda: len(responses) == 2 and "smp_other_user" in host.counters)
        self.assertEqual((responses[1], host.counters["smp_other_user"]), (None, 1))

    def test_subnetManager(self) -> None:
        """
        A program at a device is the subnet manager: the host's own resigns, and the device gets what is for a
        subnet manager and nothing else of subnet management; until it ends, or is gone.  Another user's is
        none.
        """
        one, two = self.open("ib0"), self.open("ib1")
        (host,) = hosts._hosts
        assert host.subnet.manager is not None
        came: list[Any] = []
        one.mads.register(SUBNET, 1, (GET, TRAP), came.append)
        agent = two.mads.register(SUBNET, 1, (), print)
        vector = AddressVector(0, lid=one.port.lid, isGlobal=False)

        def ask(attribute: int, method: int = GET) -> list[Any]:
            responses: list[Any] = []
            before = len(came)
            agent.send(vector, Mad(SUBNET, 1, method, 0, attribute), responses.append, 0.05, 0)
            self.until(lambda: responses or len(came) > before)
            return responses

        self.assertEqual(len(ask(SMInfo.ID)), 1)
        client = next(each for each in host.server._clients if each.attached.guid == one.guid)
        ours, client.credentials = client.credentials, evolve(client.credentials, uid=os.geteuid() + 1)
        one.fabric.setSM(True)
        self.until(lambda: host.counters.get("smp_other_user"))
        self.assertEqual((client.attached.isSM, host.subnet.manager.manager.state), (False, SMState.MASTER))
        client.credentials = ours
        for isSM in (True, True, False):
            one.fabric.setSM(isSM)
            self.until(lambda isSM=isSM: bool(one.port.capMask & Capability.SM) is isSM)
            state = SMState.NOT_ACTIVE if isSM else SMState.MASTER
            self.until(lambda state=state: host.subnet.manager.manager.state is state)
            self.assertEqual(len(ask(NodeInfo.ID)), 1)
            ask(SMInfo.ID)
            ask(Notice.ID, TRAP)
            self.until(lambda isSM=isSM: len(came) >= 2 * isSM)
            self.assertEqual([mad.attribute for mad in came], [SMInfo.ID, Notice.ID] if isSM else [])
            came.clear()
        one.fabric.setSM(True)
        self.until(lambda: host.subnet.manager._external)
        one.close()
        self.until(lambda: not host.subnet.manager._external)

    def test_subnetManagerReattached(self) -> None:
        """
        The host is killed: the next one knows that a program is the subnet manager.
        """
        host = running(self, "-c", OTHER)
        assert host.stdout is not None
        host.stdout.readline()
        one = self.open()
        one.fabric.setSM(True)
        host.kill()
        host.wait()
        # A busy machine may need more than one: each lingers for less than the device takes to attach.

        def isKnown() -> bool:
            attached = [each for host in list(hosts._hosts) for each in list(host.subnet.attached.values())]
            return any(each.isSM for each in attached)

        self.until(isKnown)

    def test_silent(self) -> None:
        """
        A process that connects and says nothing is dropped, and so is a device that sends anything but MADs.
        """
        one = self.open()
        self.patch(servers, "ATTACH_SECONDS", 0.01)
        (directory, *_), _ = openDirectories(os.environ, os.geteuid(), False)
        self.addCleanup(directory.close)
        pair = connect(directory, NAME, socket.SOCK_SEQPACKET)
        self.addCleanup(pair.close)
        pair.setblocking(True)
        self.assertEqual(pair.recv(8192), b"")
        port = links.SubnetLink(one.fabric, 0x1234567, "x")
        self.addCleanup(port.close)
        old = port._pair
        old.setblocking(True)
        old.send(b"\x07")
        while old.recv(8192):
            pass
        self.until(lambda: not one.fabric.has(0x1234567))
