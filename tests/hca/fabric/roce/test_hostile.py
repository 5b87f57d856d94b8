"""
Packets that are wrong: each is dropped and counted by what is wrong with it, and nothing else happens.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from tests.hca.fabric.roce.test_devices import HERE, PORT, THERE, End, PacketTestCase
from tests.hca.hcas import settle
from tests.hca.memorylink import Datagram, MemoryLink, Wire
from twisted_ib import limits
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.cm import transactions
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import PortSpace, gidOf
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce import connparams, receive, transmit
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire import icrcflow
from twisted_ib.hca.wire.headers import BTH, DETH, RETH
from twisted_ib.hca.wire.icrcflow import LONGEST_PACKET, ICRCState, crc32
from twisted_ib.hca.wire.opcodes import OPCODES
from twisted_ib.hca.wire.rocev2 import datagramPort

STRANGER = "192.0.2.66"
GROUP = "239.1.2.3"
SOURCE_PORT = 50000
SEND_ONLY, WRITE_ONLY, UC_SEND_ONLY, UD_SEND_ONLY, CNP = 0x04, 0x0A, 0x24, 0x64, 0x81
ACKNOWLEDGE = 0x11
QUEUE_KEY = 0x80010000


def packet(
    opcode: int,
    number: int,
    rest: bytes = b"",
    psn: int = 0,
    source: str = HERE,
    destination: str = THERE,
    partition: int = 0xFFFF,
    flags: int = 0,
    port: int = SOURCE_PORT,
) -> bytes:
    """
    @param rest: octets behind the BTH, whole words.
    @return: a packet with a right ICRC.
    """
    flow = ICRCState(gidOf(source), gidOf(destination), port)
    return flow.sign(BTH.pack(opcode, flags, partition, number, psn) + rest)


class HostileTests(PacketTestCase):
    """
    Packets of strangers, hostile peers and broken wires.
    """

    def give(self, device: Device, data: bytes, source: str = HERE, port: int = SOURCE_PORT) -> None:
        """
        Have a datagram arrive.
        """
        self.wire.deliver((source, device.fabric.address, port, 0, data))
        settle(device)

    def counted(self, device: Device, data: bytes, source: str = HERE) -> dict[str, int]:
        """
        Have a datagram arrive.

        @return: the counters that changed.
        """
        before = dict(device.counters)
        self.give(device, data, source)
        return {
            name: count - before.get(name, 0)
            for name, count in device.counters.items()
            if count != before.get(name, 0)
        }

    def test_counters(self) -> None:
        """
        One counter for each way of being wrong.
        """
        one, two = self.connected()
        device, number = two.device, two.queuePair.number
        good = packet(SEND_ONLY, number, b"data")
        bad = bytes([*good[:-1], good[-1] ^ 1])
        datagram = DETH.pack(QUEUE_KEY, 1) + bytes(256)
        mad = b"\x01\x07\x02\x03"
        cases = [
            ("packets_malformed", b""),
            ("packets_malformed", good[:12]),
            ("packets_malformed", good + b"x"),
            ("packets_malformed", packet(SEND_ONLY, number, flags=1)),
            ("packets_malformed", packet(SEND_ONLY, number, flags=0x30)),
            ("packets_malformed", packet(WRITE_ONLY, number, bytes(12))),
            ("packets_malformed", packet(SEND_ONLY, number, bytes(LONGEST_PACKET))),
            ("packets_bad_opcode", packet(0x15, number)),
            ("packets_bad_opcode", packet(0xFF, number)),
            ("packets_bad_icrc", bad),
            ("packets_bad_pkey", packet(SEND_ONLY, number, partition=0x8001)),
            ("packets_unknown_qp", packet(SEND_ONLY, number ^ 1)),
            ("packets_unknown_qp", packet(SEND_ONLY, 0)),
            ("packets_unknown_qp", packet(SEND_ONLY, 1)),
            ("packets_wrong_service", packet(UC_SEND_ONLY, number, b"data")),
            ("packets_wrong_service", packet(UD_SEND_ONLY, number, datagram)),
            ("congestion_notified", packet(CNP, number, bytes(16))),
            ("qkey_violations", packet(UD_SEND_ONLY, 1, DETH.pack(0, 1) + bytes(256))),
            ("management_malformed", packet(UD_SEND_ONLY, 1, datagram)),
            ("management_malformed", packet(UD_SEND_ONLY, 1, datagram[:-4])),
            ("management_unsupported", packet(UD_SEND_ONLY, 1, datagram[:8] + b"\1\5\1\1" + bytes(252))),
            ("datagrams_unclaimed", packet(UD_SEND_ONLY, 77, datagram)),
        ]
        for name, data in cases:
            self.assertEqual(self.counted(device, data), {name: 1}, (name, data.hex()))
        wrong = packet(SEND_ONLY, number, b"data", source=STRANGER)
        self.assertEqual(self.counted(device, wrong, STRANGER), {"packets_wrong_source": 1})
        unknown = packet(UD_SEND_ONLY, 1, datagram[:8] + mad + bytes(12) + b"\xab\xcd" + bytes(238))
        self.give(device, unknown)
        self.assertEqual(device.cm.counters["unknownAttribute"], 1)
        self.assertEqual((two.failures, two.done()), ([], []))
        self.checkAlive(one, two)

    def test_longStranger(self) -> None:
        """
        Long packets of strangers are dropped for their length, without a single CRC, unless the number is
        that of a connection whose first packet is awaited.
        """
        _, two = self.connected()
        device, unknown = two.device, two.queuePair.number ^ 1
        self.give(device, packet(UD_SEND_ONLY, 0xFFFFFF, DETH.pack(0, 1)))
        checks: list[int] = []

        def counted(data: Any, start: int = 0) -> int:
            checks.append(len(data))
            return int(crc32(data, start))

        for module in (icrcflow, receive):
            self.patch(module, "crc32", counted)
        for size in (LONGEST_PACKET, 8192):
            data = packet(SEND_ONLY, unknown, bytes(size))
            bad = bytes([*data[:-1], data[-1] ^ 1])
            del checks[:]
            self.assertEqual(self.counted(device, bad), {"packets_malformed": 1})
            self.assertEqual(checks, [])
            device.cm.accepted[unknown] = two.connection
            self.assertEqual(self.counted(device, bad), {"packets_bad_icrc": 1})
            self.assertGreater(len(checks), 5)
            self.assertEqual(self.counted(device, data), {"packets_unknown_qp": 1})
            del device.cm.accepted[unknown]

    def test_toAll(self) -> None:
        """
        Multicast packets are for the group's members only, and can neither make many hosts answer one, nor
        reach a connection.
        """
        one, two = self.connected()
        device, number = two.device, two.queuePair.number
        device.fabric.join(int.from_bytes(gidOf(GROUP), "big"))
        refused = DETH.pack(QUEUE_KEY, 1) + b"\x01\x07\x02\x03" + bytes(12) + b"\0\x10" + bytes(238)
        psn = one.queuePair.query()["sq_psn"]
        self.wire.log = []
        for data in (
            packet(UD_SEND_ONLY, 1, refused, destination=GROUP),
            packet(UD_SEND_ONLY, 77, refused, destination=GROUP),
            packet(SEND_ONLY, number, b"data", psn, destination=GROUP),
        ):
            before = device.counters["packets_unknown_qp"]
            self.wire.deliver((HERE, GROUP, SOURCE_PORT, 0, data))
            settle(device)
            self.assertEqual(device.counters["packets_unknown_qp"], before + 1)
        self.assertEqual(self.wire.log, [])
        self.checkAlive(one, two)

    def test_strangersFlows(self) -> None:
        """
        No state is kept of strangers that only guess, little of those that send datagrams, more of connected
        peers.
        """
        one, two = self.connected()
        number = two.queuePair.number
        for octets in range(0, 1024, 4):
            self.give(two.device, packet(SEND_ONLY, number, bytes(octets), source=STRANGER), STRANGER)
        flows = two.device.fabric._receiver._flows
        self.assertEqual([key[0] for key in flows if key[0] == STRANGER], [])
        for octets in range(0, 1024, 4):
            body = DETH.pack(QUEUE_KEY, 1) + bytes(octets)
            self.give(two.device, packet(UD_SEND_ONLY, 77, body, source=STRANGER), STRANGER)
        self.assertEqual([key[0] for key in flows if key[0] == STRANGER], [])
        known = two.device.createQueuePair(two, QPType.UD).number
        for octets in range(0, 1024, 4):
            body = DETH.pack(QUEUE_KEY, 1) + bytes(octets)
            self.give(two.device, packet(UD_SEND_ONLY, known, body, source=STRANGER), STRANGER)
        (kept,) = (len(flow.states) for key, flow in flows.items() if key[0] == STRANGER)
        self.assertLessEqual(kept, receive.PACKET_SIZES_UNCONNECTED)
        self.checkAlive(one, two)
        (most,) = (flow.most for key, flow in flows.items() if key[0] == HERE)
        self.assertEqual(most, limits.PACKET_SIZES)

    def checkAlive(self, one: End, two: End) -> None:
        """
        A connection works.
        """
        two.receive(1, 0, 10)
        one.memory[:5] = b"alive"
        one.send(2, SendOpcode.SEND, 0, 5)
        self.settle(one, two, seconds=0.05)
        self.assertEqual((one.done(), two.done()), ([(2, WCStatus.SUCCESS)], [(1, WCStatus.SUCCESS)]))
        self.assertEqual(two.memory[:5], b"alive")

    def test_wrongSource(self) -> None:
        """
        A stranger that guesses everything but the peer's address can neither write, nor answer, nor end the
        connection.
        """
        one, two = self.connected()
        psn = one.queuePair.query()["sq_psn"]
        reth = RETH.pack(two.region.address, two.region.remoteKey, 4)
        for opcode, rest in ((WRITE_ONLY, reth + b"evil"), (ACKNOWLEDGE, b"\x62\0\0\0")):
            data = packet(opcode, two.queuePair.number, rest, psn, STRANGER)
            self.assertEqual(self.counted(two.device, data, STRANGER), {"packets_wrong_source": 1})
        self.assertEqual((two.memory[:4], two.failures), (bytes(4), []))
        self.checkAlive(one, two)
        port = one.queuePair.path.port
        data = packet(WRITE_ONLY, two.queuePair.number, reth + b"good", psn + 1, port=port)
        self.give(two.device, data, port=port)
        self.assertEqual(two.memory[:4], b"good")

    def test_pending(self) -> None:
        """
        A path has something to do once packets have come, which only the link knows.
        """
        one, two = self.connected()
        path = two.queuePair.path
        settle(two.device)
        self.assertFalse(path.pending())
        data = packet(WRITE_ONLY, two.queuePair.number, RETH.pack(0, 0, 0), 0, STRANGER)
        self.wire.deliver((STRANGER, two.device.fabric.address, SOURCE_PORT, 0, data))
        self.assertTrue(path.pending())
        settle(two.device)
        self.assertFalse(path.pending())
        self.checkAlive(one, two)

    def test_wrongPort(self) -> None:
        """
        A stranger that knows everything but the UDP source port of the peer's flow can do no more; nor can it
        keep the peer out by a packet that comes before the first of the peer's, unless it knows the PSN.
        """
        self.sayNoPorts()
        one, two = self.connected()
        reth = RETH.pack(two.region.address, two.region.remoteKey, 4)
        right = one.queuePair.path.port
        psn = one.queuePair.query()["sq_psn"]
        self.give(two.device, packet(WRITE_ONLY, two.queuePair.number, reth + b"evil", psn + 7))
        self.checkAlive(one, two)
        two.memory[:5] = bytes(5)
        for device, number, opcode, rest, at in (
            (two.device, two.queuePair.number, WRITE_ONLY, reth + b"evil", psn + 1),
            (one.device, one.queuePair.number, ACKNOWLEDGE, b"\x62\0\0\0", psn),
        ):
            here, there = (HERE, THERE) if device is two.device else (THERE, HERE)
            before = device.counters["packets_wrong_port"]
            for port in range(50000, 51000):
                forged = packet(opcode, number, rest, at, here, there, port=port ^ (port == right))
                self.give(device, forged, here, port ^ (port == right))
            self.assertEqual(device.counters["packets_wrong_port"], before + 1000)
        self.assertEqual((two.memory[:4], one.failures, two.failures), (bytes(4), [], []))
        self.checkAlive(one, two)

    def test_agreedPort(self) -> None:
        """
        A packet that is expected is taken from no other UDP source port than the one that the peer has said
        when it connected: neither before its first packet, nor when it comes again and again.
        """
        one, two = self.connected()
        ports = [end.queuePair.path.port for end in (one, two)]
        self.assertEqual([end.queuePair.path.peerPort for end in (two, one)], ports)
        psn = one.queuePair.query()["sq_psn"]
        reth = RETH.pack(two.region.address, two.region.remoteKey, 4)
        one.memory[:5] = b"early"
        self.wire.pass_ = lambda datagram: ()
        target = {"remoteAddress": two.region.address + 8, "remoteKey": two.region.remoteKey}
        one.send(1, SendOpcode.RDMA_WRITE, 0, 5, **target)
        self.settle(one)
        self.wire.pass_ = lambda datagram: (datagram,)
        for device, number, opcode, rest, here, there, right in (
            (two.device, two.queuePair.number, WRITE_ONLY, reth + b"evil", HERE, THERE, ports[0]),
            (one.device, one.queuePair.number, ACKNOWLEDGE, b"\x62\0\0\0", THERE, HERE, ports[1]),
        ):
            for port in range(50000, 51000):
                port ^= port == right
                self.give(device, packet(opcode, number, rest, psn, here, there, port=port), here, port)
            self.assertEqual(device.counters["packets_wrong_port"], 1000)
        number = two.queuePair.number
        for _ in range(10):
            self.clock.advance(0.02)
            port = 50123 ^ (ports[0] == 50123)
            self.give(two.device, packet(WRITE_ONLY, number, reth + b"evil", psn, port=port), port=port)
        self.assertEqual((two.memory[:4], one.failures, two.failures), (bytes(4), [], []))
        self.settle(one, two, seconds=3.0)
        self.assertEqual(one.done(), [(1, WCStatus.SUCCESS)])
        self.checkAlive(one, two)

    def test_noPortSaid(self) -> None:
        """
        To a peer that says no port none is said: Linux's REP has zeros there.  The link is asked for one when
        the queue pair is connected.
        """
        self.sayNoPorts()
        self.patch(MemoryLink, "sourcePort", lambda link, wanted: 0xC000)
        replies: list[ConnectReply] = []
        self.patch(End, "replied", lambda end, connection, reply: replies.append(reply))
        one, two = End(self.device(HERE)), End(self.device(THERE))
        two.device.listen(PortSpace.TCP, THERE, PORT, two)
        one.device.connect(PortSpace.TCP, THERE, PORT, one)
        self.settle(one, two)
        (reply,) = replies
        path = two.queuePair.path
        self.assertEqual((reply.localEECN, path.peerPort, path.port), (0, 0, 0xC000))

    def test_notPorts(self) -> None:
        """
        What is no source port of this package, where IBTA has the EE context, says none, in the REQ and in
        the REP.
        """
        propose, answer = connparams.propose, connparams.answer
        said = 0  # By each turn.

        def proposed(fabric: Any, remote: int, request: ConnectRequest) -> None:
            propose(fabric, remote, request)
            request.localEECN = said

        def answered(fabric: Any, remote: str, reply: ConnectReply, request: ConnectRequest) -> Any:
            proposal = answer(fabric, remote, reply, request)
            reply.localEECN = said
            return proposal

        self.patch(connparams, "propose", proposed)
        for isReply in (False, True):
            for said in (1, 4790, 0xBFFF, 0x10001, 0x1C123, 0xFFFFFF):
                one, two = self.connected()
                heard = (one if isReply else two).queuePair
                self.assertEqual(heard.proposal.peerPort, 0, said)
                self.checkAlive(one, two)
                one.device.close()
                two.device.close()
            self.patch(connparams, "propose", propose)
            self.patch(connparams, "answer", answered)

    def test_agreedNoLonger(self) -> None:
        """
        A queue pair that is reset has agreed on nothing: what connects it next may be no CM.
        """
        one, _ = self.connected()
        self.assertTrue(one.queuePair.proposal.peerPort)
        one.queuePair.modify(QPState.RESET)
        self.assertIsNone(one.queuePair.proposal)

    def move(self, ends: tuple[End, End], port: int) -> None:
        """
        From now on what the first end sends to the second comes from another port.
        """
        here, there = (end.device.fabric.address for end in ends)
        known = ends[0].queuePair.path.port
        flow = ICRCState(gidOf(here), gidOf(there), port)

        def change(datagram: Datagram) -> Iterable[Datagram]:
            """
            Change it, and its ICRC.
            """
            source, destination, before, trafficClass, data = datagram
            if (source, before) == (here, known):
                datagram = source, destination, port, trafficClass, flow.sign(data[:-4])
            return (datagram,)

        self.wire.pass_ = change

    def test_portChanged(self) -> None:
        """
        A peer that changes the UDP source port of a live queue pair (ibv_modify_qp_udp_sport) is heard again
        when it has repeated what is expected, whether it asks or answers, and whatever strangers send from
        other ports meanwhile.
        """
        self.sayNoPorts()
        for asks in (True, False):
            one, two = self.connected()
            self.checkAlive(one, two)
            self.move((one, two), 50123)
            sender, receiver = (one, two) if asks else (two, one)
            for turn in range(3):
                receiver.receive(1, 0, 10)
                sender.memory[:5] = b"alive"
                sender.send(2, SendOpcode.SEND, 0, 5)
                for _ in range(200):
                    self.settle(one, two, seconds=0.01)
                    for port in (50200, 50201):
                        forged = packet(SEND_ONLY, two.queuePair.number, b"evil", turn * 7, port=port)
                        self.give(two.device, forged, port=port)
                    if sender.completions and receiver.completions:
                        break
                self.assertEqual(sender.done(), [(2, WCStatus.SUCCESS)])
                self.assertEqual(receiver.done(), [(1, WCStatus.SUCCESS)])
                self.assertEqual(receiver.memory[:5], b"alive")
            self.assertEqual((one.failures, two.failures), ([], []))
            self.assertEqual(two.queuePair.path.peerPort, 50123)
            one.device.close()
            two.device.close()
            self.wire = Wire()

    def test_portGuessed(self) -> None:
        """
        1,000 packets from one other port, without the PSN that is expected, are not taken for the peer's
        move; nor are a few that have it, if the peer goes on.
        """
        self.sayNoPorts()
        one, two = self.connected()
        expected = one.queuePair.query()["sq_psn"] + 1
        self.checkAlive(one, two)
        right, number = one.queuePair.path.port, two.queuePair.number
        for turn in range(1000):
            at = expected + 1 + turn & 0xFFFFFF
            self.give(two.device, packet(SEND_ONLY, number, b"evil", at, port=50123), port=50123)
            self.clock.advance(0.02)
        self.assertIsNone(two.queuePair.path._moving)
        self.assertEqual(two.device.counters["packets_wrong_port"], 1000)
        for turn in range(10):
            at = expected + turn & 0xFFFFFF
            for _ in range(2):
                self.give(two.device, packet(SEND_ONLY, number, b"evil", at, port=50123), port=50123)
                self.clock.advance(0.02)
            self.assertEqual(two.queuePair.path.peerPort, right)
            self.checkAlive(one, two)

    def test_portSwept(self) -> None:
        """
        Whoever sends all PSNs from one other port, again and again, is not taken for the peer that has moved:
        not even when the right one is among them each time.
        """
        self.sayNoPorts()
        one, two = self.connected()
        expected = one.queuePair.query()["sq_psn"] + 1
        self.checkAlive(one, two)
        right, number = one.queuePair.path.port, two.queuePair.number
        for _ in range(6):
            for ahead in range(-40, 40):
                at = expected + ahead & 0xFFFFFF
                self.give(two.device, packet(SEND_ONLY, number, b"evil", at, port=50123), port=50123)
            self.clock.advance(0.02)
        self.assertEqual(two.queuePair.path.peerPort, right)
        self.checkAlive(one, two)

    def test_corrupted(self) -> None:
        """
        Of a wire that changes a bit of each second packet nothing wrong arrives.  Seed 3.
        """
        one, two = self.connected()
        source = random.Random(3)

        def change(datagram: Datagram) -> Iterable[Datagram]:
            """
            Change a bit, perhaps.
            """
            *where, data = datagram
            if source.random() < 0.5:
                bit = source.randrange(8 * len(data))
                data = (int.from_bytes(data, "little") ^ 1 << bit).to_bytes(len(data), "little")
            return [(*where, data)]  # type: ignore[list-item]

        self.wire.pass_ = change
        one.memory[:50000] = source.randbytes(50000)
        two.receive(1, 0, 60000)
        one.send(2, SendOpcode.SEND, 0, 50000)
        for _ in range(100):
            self.settle(one, two, seconds=0.2)
            if two.completions:
                break
        self.assertEqual(two.done(), [(1, WCStatus.SUCCESS)])
        self.assertEqual(two.memory[:50000], one.memory[:50000])
        self.assertGreater(two.device.counters["packets_bad_icrc"], 10)

    def test_mutated(self) -> None:
        """
        20,000 packets of all codes with right checksums and anything in them, from the peer and from others:
        nothing is raised.  Seed 4.
        """
        _, two = self.connected()
        source = random.Random(4)
        codes = list(OPCODES)
        for n in range(20000):
            number = source.choice((1, two.queuePair.number, 0xFFFFFF, n & 0xFFFFFF))
            rest = source.randbytes(4 * source.choice((0, 1, 2, 4, 7, 8, 66, 256)))
            if number == 1 and source.random() < 0.7:
                kind = source.choice((0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A))
                rest = DETH.pack(QUEUE_KEY, 1) + b"\x01\x07\x02\x03" + bytes(12) + bytes([0, kind])
                rest += source.randbytes(264 - len(rest))
            who = source.choice((HERE, STRANGER, f"198.51.100.{n & 0xFF}"))
            opcode = 0x64 if number == 1 else source.choice(codes)
            flags = source.choice((0, 0x80, 0x30))
            psn = source.getrandbits(32)
            self.give(two.device, packet(opcode, number, rest, psn, who, flags=flags), who)
        fabric = two.device.fabric
        self.assertLessEqual(len(fabric._receiver._flows), limits.PACKET_FLOWS)
        self.assertLessEqual(len(two.device.cm.transactions._known), transactions.PACKET_TRANSACTIONS)

    def test_strangersForgotten(self) -> None:
        """
        No state is kept of senders whose packets are for no queue pair, and no path of those that send
        datagrams.
        """
        device = self.device(THERE)
        datagram = DETH.pack(0x1234, 5) + bytes(16)
        for n in range(2000):
            source = f"10.0.{n >> 8}.{n & 0xFF}"
            self.give(device, packet(UD_SEND_ONLY, 99, datagram, source=source), source)
        fabric = device.fabric
        self.assertEqual((len(fabric._peers), len(fabric._receiver._flows)), (0, 0))
        self.assertEqual(device.counters["datagrams_unclaimed"], 2000)
        number = device.createQueuePair(End(device), QPType.UD).number
        for n in range(2000):
            source = f"10.0.{n >> 8}.{n & 0xFF}"
            self.give(device, packet(UD_SEND_ONLY, number, datagram, source=source), source)
        self.assertEqual((len(fabric._peers), len(fabric._receiver._flows)), (0, limits.PACKET_FLOWS))

    def test_congestion(self) -> None:
        """
        A packet that is marked is counted, and its sender notified, not all the time.
        """
        one, two = self.connected()
        two.receive(1, 0, 4000)

        def mark(datagram: Datagram) -> Iterable[Datagram]:
            """
            Mark it.
            """
            source, destination, port, _, data = datagram
            return [(source, destination, port, 3, data)]

        self.wire.pass_ = mark
        one.send(2, SendOpcode.SEND, 0, 3000)
        self.settle(one, two)
        self.assertEqual(two.device.counters["packets_marked"], 3)
        self.assertEqual(one.device.counters["congestion_notified"], 1)
        self.assertEqual(two.done(), [(1, WCStatus.SUCCESS)])

    def test_noRoom(self) -> None:
        """
        Packets that the link has no room for wait, in order, for a limited time.
        """
        one, two = self.connected()
        link = one.device.fabric.link
        two.receive(1, 0, 60000)
        link.room = 5
        one.memory[:50000] = random.Random(5).randbytes(50000)
        one.send(2, SendOpcode.SEND, 0, 50000)
        settle(one.device, two.device)
        deadline = one.device.deadline()
        self.assertEqual(deadline, self.clock.seconds() + transmit.PACKET_PAUSE_SECONDS)
        self.assertTrue(one.device.arm())
        for _ in range(20):
            link.room += 5
            self.settle(one, two, seconds=0.01)
        self.assertEqual((one.done(), two.done()), ([(2, WCStatus.SUCCESS)], [(1, WCStatus.SUCCESS)]))
        self.assertEqual(two.memory[:50000], one.memory[:50000])
        self.assertEqual(one.device.timers.deadline(), None)

    def test_noRoomForAnswers(self) -> None:
        """
        Answers to addresses that do not exist may fill a socket for seconds, while the kernel resolves them:
        that delays no connection.
        """
        one, two = self.connected()
        link = one.device.fabric.link
        refused = False
        send, before = link.send, one.device.counters["packets_dropped"]
        management = link.sourcePort(datagramPort(1))

        def sending(destination: str, port: int, *rest: Any) -> bool:
            """
            The socket of management is full.
            """
            nonlocal refused
            if port == management:
                refused = True
                return False
            taken: bool = send(destination, port, *rest)
            return taken

        self.patch(link, "send", sending)
        body = DETH.pack(QUEUE_KEY, 1) + b"\x01\x07\x02\x03" + bytes(12) + b"\0\x15" + bytes(238)
        self.give(one.device, packet(UD_SEND_ONLY, 1, body, source=STRANGER, destination=HERE), STRANGER)
        self.assertTrue(refused)
        self.assertEqual(one.device.deadline(), self.clock.seconds() + transmit.PACKET_PAUSE_SECONDS)
        self.checkAlive(one, two)
        for _ in range(limits.PACKET_OUTPUTS + 1):
            self.give(one.device, packet(UD_SEND_ONLY, 1, body, source=STRANGER, destination=HERE), STRANGER)
        self.assertEqual(one.device.counters["packets_dropped"], before + 2)
        two.receive(1, 0, 10)
        one.send(2, SendOpcode.SEND, 0, 5)
        self.settle(one, two, seconds=0.05)
        self.assertEqual(one.done(), [(2, WCStatus.SUCCESS)])

    def test_noRoomForOne(self) -> None:
        """
        A peer whose address the kernel cannot resolve fills the socket of its connection: others go on, and
        so do their connects and closes.
        """
        one, two = self.connected()
        address = "192.0.2.3"
        device, other, third = one.device, End(one.device), End(self.device(address))
        third.device.listen(PortSpace.TCP, address, PORT, third)
        device.connect(PortSpace.TCP, address, PORT, other)
        settle(device, third.device)
        link: Any = device.fabric.link
        path: Any = other.queuePair.path
        send, isFull = link.send, True

        def sending(destination: str, port: int, *rest: Any) -> bool:
            """
            One socket is full.
            """
            if isFull and port == path.port:
                return False
            taken: bool = send(destination, port, *rest)
            return taken

        self.patch(link, "send", sending)
        third.receive(1, 0, 60000)
        other.memory[:50000] = random.Random(5).randbytes(50000)
        other.send(2, SendOpcode.SEND, 0, 50000)
        settle(device)
        self.assertEqual(device.deadline(), self.clock.seconds() + transmit.PACKET_PAUSE_SECONDS)
        self.assertTrue(device.arm())
        for number in range(3):
            two.receive(10 + number, 0, 60000)
            one.send(20 + number, SendOpcode.SEND, 0, 50000)
        self.settle(one, two, seconds=0.05)
        self.assertEqual([status for _, status in one.done()], [WCStatus.SUCCESS] * 3)
        self.assertEqual([status for _, status in two.done()], [WCStatus.SUCCESS] * 3)
        # The end of another does not wait either, but that of this one comes behind what it has sent.
        device.disconnect(one.connection)
        device.disconnect(other.connection)
        self.settle(one, two, seconds=0.01)
        self.assertIn("disconnected", two.log)
        settle(third.device)
        self.assertNotIn("disconnected", third.log)
        isFull = False
        for _ in range(100):
            settle(device, third.device)
            self.clock.advance(0.001)
            device.tick(self.clock.seconds())
        self.assertEqual(third.done(), [(1, WCStatus.SUCCESS)])
        self.assertEqual(third.memory[:50000], other.memory[:50000])
        self.assertIn("disconnected", third.log)
        self.assertIsNone(device.deadline())
