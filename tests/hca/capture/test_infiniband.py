"""
Tests of captures of devices of a subnet: packets with local route headers, and the MADs that pass a port.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any
from unittest import mock

from twisted.internet.task import Clock
from twisted.trial.unittest import SkipTest

from tests.contracts.unreliable import UnreliableSide
from tests.hca.capture.test_capture import PARTS, CaptureTestCase
from tests.hca.hcas import SDP, User, settle
from tests.hca.mad.toys.echo import CLASS, EchoAgent
from tests.hca.queues.keyed_pair import piece
from tests.subnet.port.subnets import LEAVES, SubnetTestCase
from tests.subnet.port.test_connections import LIDSide
from tests.subnet.port.test_datagrams import FULL, LIMITED, MGID, MLID, LIDDatagrams
from tests.support.captures import TSHARK, Frame, Observer, tshark
from twisted_ib.hca.base.operation import MULTICAST_QPN
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.capture.pcapng import Writer
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.mad.attributes.port import PortInfo
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.cm.messages import REQ
from twisted_ib.hca.wire.grh import guidGID, route
from twisted_ib.hca.wire.headers import QUEUE_KEY
from twisted_ib.hca.wire.mad.classes import PERFORMANCE, SUBNET, SUBNET_DIRECTED
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, SET, Mad
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.sm.manager import Options

TEXT = b"some octets that are no other protocol"
SMPS = (SUBNET, SUBNET_DIRECTED)


class LocalTestCase(CaptureTestCase, SubnetTestCase):
    """
    Adapters at two switches.
    """

    topology = LEAVES

    def data(self) -> list[Frame]:
        """
        @return: the packets that are no SMPs.
        """
        return [frame for frame in self.frames() if frame.packet.bth.destination]

    def ends(self, frame: Frame) -> tuple[int, int]:
        """
        @return: its LIDs.
        """
        return frame.datagram.source, frame.datagram.destination

    def assertShown(self) -> None:
        """
        tshark reads the same of all packets, and finds nothing wrong with them.
        """
        if TSHARK is None:
            raise SkipTest("tshark is not installed")
        expected = []
        for frame in self.frames():
            lids = [str(lid) for lid in self.ends(frame)] if frame.isLocal else ["", ""]
            lane = f"{frame.datagram.virtualLane:#04x}" if frame.isLocal else ""
            isMAD = frame.packet.bth.destination < 2 and frame.packet.row.name == "UD SEND Only"
            class_ = f"{frame.mad.managementClass:#04x}" if isMAD else ""
            expected.append([*lids, lane, str(frame.packet.bth.opcode), class_])
        fields = ("lrh.slid", "lrh.dlid", "lrh.vl", "bth.opcode", "mad.mgmtclass")
        shown = tshark(self.file, "frame", *(f"infiniband.{name}" for name in fields))
        self.assertEqual(shown, expected)
        self.assertEqual(tshark(self.file, f"_ws.malformed && !({PARTS})"), [])


class LocalTests(LocalTestCase):
    """
    What devices and their agents send.
    """

    def setUp(self) -> None:
        """
        Open C{a} and C{c}.
        """
        super().setUp()
        self.a, self.c = self.at("a", "c")
        self.lids = self.a.port.lid, self.c.port.lid
        settle(self.a, self.c)

    def reliable(self, one: LIDSide, two: LIDSide) -> None:
        """
        A send, a WRITE of two packets and a READ.
        """
        for each, other in ((one, two), (two, one)):
            each.to(QPState.RTS, other.qp.number, sq_psn=5, rq_psn=5)
        region, room = two.register(8192), one.register(8192)
        two.receive(1, piece(two.register(64)))
        there = {"remoteAddress": region.address, "remoteKey": region.remoteKey}
        one.send(1, SendOpcode.SEND, piece(one.register(TEXT)))
        one.send(2, SendOpcode.RDMA_WRITE, piece(room, 0, 5000), **there)
        one.send(3, SendOpcode.RDMA_READ, piece(room, 0, 10), **there)
        settle(self.a, self.c)
        self.assertEqual(len(one.statuses()), 3)

    def test_reliable(self) -> None:
        """
        A connection has LIDs, the service level of its address vector, and PSNs as on a link.
        """
        sides = LIDSide(self.a, self.lids[1]), LIDSide(self.c, self.lids[0])
        sides[0].path = AddressVector(0, lid=self.lids[1], serviceLevel=3, isGlobal=False)
        self.reliable(*sides)
        frames = self.data()
        counts = Observer().see(frames).counts
        self.assertEqual(
            (counts["RC SEND Only"], counts["RC WRITE First"], counts["RC WRITE Last"]), (1, 1, 1)
        )
        self.assertEqual((counts["RC READ Request"], counts["RC READ Response Only"]), (1, 1))
        for frame in frames:
            ends = self.lids if frame.packet.row.isRequest else self.lids[::-1]
            self.assertEqual(self.ends(frame), ends)
            local = frame.datagram
            self.assertEqual((local.grh, local.serviceLevel, local.virtualLane), (b"", 3, 0))
        self.assertEqual(frames[0].packet.bth.psn, 5)

    def test_partition(self) -> None:
        """
        Each packet has the P_Key of its sender.
        """
        self.manager.setPartitions(self.port("a"), LIMITED)
        self.manager.setPartitions(self.port("c"), FULL)
        settle(self.a, self.c)
        self.reliable(LIDSide(self.a, self.lids[1]), LIDSide(self.c, self.lids[0]))
        for frame in self.data():
            expected = LIMITED if frame.packet.row.isRequest else FULL
            self.assertEqual(frame.packet.bth.partition, expected)

    def unreliable(self) -> None:
        """
        A send of an unreliable connection.
        """
        sides = UnreliableSide(self.a), UnreliableSide(self.c)
        for each, other, lid in ((*sides, self.lids[1]), (*sides[::-1], self.lids[0])):
            vector = AddressVector(0, lid=lid, isGlobal=False)
            each.qp.modify(QPState.RTR, ah_attr=vector, path_mtu=5, dest_qp_num=other.qp.number, rq_psn=0)
            each.qp.modify(QPState.RTS, sq_psn=0)
        settle(self.a, self.c)
        sides[1].receive(1, piece(sides[1].register(64)))
        sides[0].send(1, SendOpcode.SEND, piece(sides[0].register(TEXT)))
        settle(self.a, self.c)

    def test_unreliable(self) -> None:
        """
        An unreliable connection too.
        """
        self.unreliable()
        (frame,) = self.data()
        self.assertEqual((frame.packet.row.name, self.ends(frame)), ("UC SEND Only", self.lids))

    def datagrams(self) -> None:
        """
        Datagrams with and without a GRH, and to a group.
        """
        one, two = LIDDatagrams(self.a), LIDDatagrams(self.c)
        self.manager.setGroup(self.port("s"), MLID, 1, 3)
        self.manager.setGroup(self.port("t"), MLID, 1, 3)
        for side in (one, two):
            side.device.paths.attach(side.qp, MGID)
        vectors = (
            *({"lid": self.lids[1], "serviceLevel": 3}, {"lid": self.lids[1], "gid": self.c.gid}),
            {"lid": MLID, "gid": MGID},
        )
        for vector in vectors:
            number = MULTICAST_QPN if vector["lid"] == MLID else two.qp.number
            one.tell(one.by(**vector), number, TEXT)
            settle(self.a, self.c)
            one.statuses()
        self.assertEqual(len(two.heard()), 3)

    def test_datagrams(self) -> None:
        """
        With and without a GRH, and to a group, which is one packet.
        """
        self.datagrams()
        frames = self.data()
        self.assertEqual([frame.datagram.destination for frame in frames], [self.lids[1], self.lids[1], MLID])
        self.assertEqual([frame.datagram.serviceLevel for frame in frames], [3, 0, 0])
        grhs = [frame.datagram.grh for frame in frames]
        self.assertEqual(grhs[0], b"")
        for grh, target, frame in zip(grhs[1:], (self.c.gid, MGID), frames[1:], strict=True):
            self.assertEqual(route(grh)[:2], (self.a.gid, target))
            # IBTA vol. 1 8.3: from behind the GRH to the ICRC.
            self.assertEqual(int.from_bytes(grh[4:6], "big"), len(frame.data) - 2 - 8 - 40)
        self.assertEqual([bytes(frame.packet.payload) for frame in frames], [TEXT] * 3)
        self.assertEqual([frame.packet.bth.psn for frame in frames], [0, 1, 2])

    def connect(self) -> None:
        """
        A request to connect.
        """
        user = User()
        listener = SimpleNamespace(
            connectionRequested=lambda connection, request: None,
            requestWithdrawn=lambda connection: None,
        )
        self.c.listen(SDP, "::", 7001, listener)
        self.a.connect(SDP, self.c.gids()[0], 7001, user)
        settle(self.a, self.c)
        hello = bytearray(92)
        hello[17], hello[48:64] = 0x60, self.c.gid.to_bytes(16, "big")
        request = ConnectRequest(SDP << 16 | 7001, bytes(hello), self.a.createQueuePair(None).number)
        self.a.sendRequest(user.path, request, SimpleNamespace(), 0.0)
        settle(self.a, self.c)

    def test_connect(self) -> None:
        """
        Messages of the communication manager go between queue pairs 1, by LID.
        """
        self.connect()
        observer = Observer().see(self.data())
        self.assertEqual(observer.messages[0], "REQ")
        self.assertEqual(self.ends(self.data()[0]), self.lids)

    def ask(self) -> None:
        """
        A request of another class, and its response.
        """
        EchoAgent(self.c)
        agent = self.a.mads.register(CLASS, 1, (GET_RESPONSE,), lambda request: None)
        got: list[Any] = []
        vector = AddressVector(0, lid=self.lids[1], isGlobal=False)
        agent.send(vector, Mad(CLASS, 1, SET, 0, 0x20, bytes(range(232))), got.append)
        settle(self.a, self.c)
        self.assertEqual(len(got), 1)

    def test_agents(self) -> None:
        """
        MADs of queue pair 1 are there once, if both ends are shown, with Q_Key and LIDs.
        """
        self.ask()
        frames = self.data()
        self.assertEqual([self.ends(frame) for frame in frames], [self.lids, self.lids[::-1]])
        self.assertEqual([frame.mad.method for frame in frames], [SET, GET_RESPONSE])
        for frame in frames:
            self.assertEqual((frame.packet["queueKey"], frame.datagram.virtualLane), (QUEUE_KEY, 0))
            self.assertTrue(frame.outbound)

    def test_elsewhere(self) -> None:
        """
        Those of a port whose device writes no capture are there as they arrive.
        """
        self.names = ["d"]
        device = Device("test", self.clock.seconds, self.open, capture="")
        self.addCleanup(device.close)
        settle(device)
        agent = device.mads.register(PERFORMANCE, 1, (GET_RESPONSE,), lambda request: None)
        vector = AddressVector(0, lid=self.lids[0], isGlobal=False)
        agent.send(vector, Mad(PERFORMANCE, 1, GET, 0, 0x1), lambda answer: None)
        settle(self.a, device)
        self.assertEqual(
            [(frame.outbound, *self.ends(frame)) for frame in self.data()],
            [(False, device.port.lid, self.lids[0]), (True, self.lids[0], device.port.lid)],
        )
        self.assertEqual([frame.packet.bth.psn for frame in self.data()], [0, 0])

    def test_anyNumber(self) -> None:
        """
        A MAD that would be no packet is left out, and the capture goes on; one that it cannot write ends it.
        """
        shown = len(self.frames())
        for lid, number in ((1, 1 << 24), (1 << 16, 1), (1, 1)):
            packet = Packet(lid, self.lids[0], 1, number, bytearray(256))
            self.a.fabric.passed(False, packet)
        self.assertEqual(len(self.frames()), shown + 1)
        with mock.patch.object(Writer, "packet", side_effect=OSError("full")), warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertRaises(RuntimeWarning, self.a.fabric.passed, False, packet)
        assert self.a.capture is not None
        self.assertTrue(self.a.capture.closed)

    def test_closed(self) -> None:
        """
        A port whose device is closed is not watched any more, nor one whose node is gone.
        """
        watched = self.subnet._carrier.watched
        self.assertEqual(len(watched), 2)
        self.a.close()
        self.assertEqual(list(watched), [self.port("c")])
        self.subnet._removed(self.port("c").node)
        self.assertEqual(watched, {})

    def test_all(self) -> None:
        """
        tshark shows packets of all services and classes, and those of devices of another link layer in the
        same file.
        """
        clock = Clock()
        others = [Device("lo0", clock.seconds, capture=self.a.capture) for _ in range(2)]
        for each in others:
            self.addCleanup(each.close)
        user = User()
        others[0].reach(guidGID(others[1].guid), user)
        settle(*others)
        user.path.sendManagement(REQ.attribute, REQ(1).pack())
        self.reliable(LIDSide(self.a, self.lids[1]), LIDSide(self.c, self.lids[0]))
        for act in (self.unreliable, self.datagrams, self.connect, self.ask):
            act()
        self.subnet.manage(Options())
        self.run_(1, self.a, self.c)
        frames = self.frames()
        self.assertEqual(
            {(each.interface, each.isLocal) for each in frames}, {("test", True), ("lo0", False)}
        )
        self.assertTrue(any(frame.packet.bth.destination == 0 for frame in frames))
        self.assertShown()


class SubnetManagementTests(LocalTestCase):
    """
    What a subnet manager and the node of a device say to each other.
    """

    isManaged = False

    def test_port(self) -> None:
        """
        SMPs that pass the port are there as they are on its link, from before it was Active: on virtual lane
        15, between queue pairs 0, without a Q_Key.
        """
        self.subnet.manage(Options())
        (device,) = self.at("c")
        self.run_(1, device)
        self.assertIs(device.port.state, PortState.ACTIVE)
        frames = [frame for frame in self.frames() if not frame.packet.bth.destination]
        for frame in frames:
            self.assertIn(frame.mad.managementClass, SMPS)
            self.assertEqual((frame.datagram.virtualLane, frame.packet.bth.partition), (15, 0xFFFF))
            self.assertEqual((frame.packet["queueKey"], frame.packet["source"]), (0, 0))
            self.assertIs(frame.outbound, frame.mad.method == GET_RESPONSE)
        sets = [each.mad for each in frames if (each.mad.method, each.mad.attribute) == (SET, PortInfo.ID)]
        states = [PortInfo.parse(bytes(mad.data)).linkState for mad in sets]
        self.assertEqual(states[-2:], [PortState.ARMED, PortState.ACTIVE])
