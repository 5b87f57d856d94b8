"""
Tests of L{twisted_ib.hca.services.datagramform}: both forms on literal bytes, and work requests by the local
one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.queues.keyed_pair import piece
from tests.hca.services.datagrams.cases import HEAD, DatagramTestCase
from tests.hca.services.datagrams.datagram_pair import GROUP, KEY
from tests.hca.services.datagrams.localpair import LIDS, LocalPair
from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.base.port import KeyViolation, Port
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.connection.rdmacm import gidNumber
from twisted_ib.hca.queues.completion import WCFlags, WCOpcode, WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.services.datagramform import FORMS
from twisted_ib.hca.wire.grh import guidGID

ROUTED, LOCAL = FORMS[LinkLayer.ETHERNET], FORMS[LinkLayer.INFINIBAND]
SENDER, RECEIVER = guidGID(0xA1), guidGID(0xB1)
ONLY, IMMEDIATE = 0x64, 0x65
DETH = "11111111 00000011"
#: From LID 0x10 to 0x21 at service level 5 in partition 0xFFFF: without a GRH, and with one.
PLAIN = "0010 0021 52 00 ffff" + "00" * 40
IPV4_GROUP = gidNumber("239.1.2.3")
GLOBAL = "0010 0021 53 00 ffff" + HEAD
#: IPv4 from 192.0.2.1 to 192.0.2.2, type of service 0xA5, 63 hops, 4 octets behind the DETH (8 with UDP's).
IPV4 = "00" * 20 + "45a50038 00004000 3f110000 c0000201 c0000202"


def queuePair(gid: int = RECEIVER, **port: Any) -> Any:
    """
    @return: as much of a queue pair as a form asks.
    """
    fields = {"linkLayer": LinkLayer.INFINIBAND, "lid": 0x20, "lmc": 2, "gids": (gid,), **port}
    told: list[KeyViolation] = []
    fabric = SimpleNamespace(violated=told.append, told=told)
    device = SimpleNamespace(gid=gid, port=Port(**fields), hasGID=gid.__eq__, fabric=fabric)
    return SimpleNamespace(device=device, partition=0xFFFF, number=0x123)


def octets(text: str, behind: str = "", deth: str = DETH) -> bytes:
    """
    @return: a record; where C{text} has a length, that of what is behind.
    """
    size = 12 + 8 + (len(bytes.fromhex(behind)) + 3 & ~3) + 4
    return bytes.fromhex(text.format(size) + deth + behind)


class RoutedCompletionTests(SynchronousTestCase):
    """
    What completions have of a GRH, and of an IP header.
    """

    def test_frame(self) -> None:
        """
        The service level is mlx5's kind of frame: UDP over IPv4 has one, a GRH's is 0.
        """
        for head, level in ((IPV4, 0b1010), (HEAD.format(24), 0)):
            completion = ROUTED.completion(0, WCStatus.SUCCESS, WCOpcode.RECV, 1)
            ROUTED.describe(queuePair().device.port, completion, octets(head))
            self.assertEqual((completion.serviceLevel, completion.flags), (level, WCFlags.GRH))


class PackTests(SynchronousTestCase):
    """
    Packing, and what a receiver reads.
    """

    def test_kinds(self) -> None:
        """
        Each link layer has its form; the local one has 8 octets more.
        """
        self.assertEqual(set(FORMS), set(LinkLayer))
        self.assertEqual((ROUTED.size, LOCAL.size), (40, 48))

    def test_routed(self) -> None:
        """
        A GRH, with the length of what follows in a packet.
        """
        vector = AddressVector(RECEIVER, flowLabel=0x12345, hopLimit=0x3F, trafficClass=0xA5)
        sender = queuePair(SENDER)
        for behind, size in ((0, 24), (1, 28), (4, 28), (4096, 4120)):
            self.assertEqual(ROUTED.pack(sender, vector, behind), bytes.fromhex(HEAD.format(size)))
        record = octets(HEAD, "01020304")
        self.assertEqual((ROUTED.grh(record), ROUTED.group(record)), (record[:40], 0))
        reply = AddressVector(SENDER, flowLabel=0x12345, hopLimit=0xFF, trafficClass=0xA5)
        self.assertEqual(ROUTED.reply(record), reply)
        self.assertEqual(ROUTED.shown(record), (SENDER, RECEIVER, 0x12345, 0xA5, 0x3F))

    def test_internet(self) -> None:
        """
        Of RoCEv2 an IP header is in its place.
        """
        record = octets(IPV4, "01020304")
        source, target = gidNumber("192.0.2.1"), gidNumber("192.0.2.2")
        self.assertEqual(ROUTED.reply(record), AddressVector(source, hopLimit=0xFF, trafficClass=0xA5))
        self.assertEqual(ROUTED.shown(record), (source, target, 0, 0xA5, 0x3F))
        self.assertEqual(ROUTED.fault(queuePair(target), KEY, source, ONLY, record, len(record)), "")

    def test_local(self) -> None:
        """
        LIDs, service level and P_Key; then 40 zeros.
        """
        sender = queuePair(SENDER, lid=0x10)
        vector = AddressVector(0, lid=0x21, serviceLevel=5, isGlobal=False)
        self.assertEqual(LOCAL.pack(sender, vector, 4), bytes.fromhex(PLAIN))
        record = octets(PLAIN, "01020304")
        self.assertEqual((LOCAL.grh(record), LOCAL.group(record)), (bytes(40), 0))
        reply = AddressVector(0, lid=0x10, serviceLevel=5, isGlobal=False)
        self.assertEqual(LOCAL.reply(record), reply)
        self.assertEqual(LOCAL.shown(record), (0x10, 0x21, 5, 0xFFFF, b""))
        sender.partition = 0x8001
        self.assertEqual(LOCAL.pack(sender, vector, 4)[6:8], b"\x80\1")

    def test_localWithGRH(self) -> None:
        """
        The same with a GRH; replies have one too.
        """
        sender = queuePair(SENDER, lid=0x10)
        vector = AddressVector(RECEIVER, 0, 0x12345, 0x3F, 0xA5, lid=0x21, serviceLevel=5)
        self.assertEqual(LOCAL.pack(sender, vector, 4), bytes.fromhex(GLOBAL.format(28)))
        record = octets(GLOBAL, "01020304")
        self.assertEqual((LOCAL.grh(record), LOCAL.group(record)), (record[8:48], 0))
        self.assertEqual(
            LOCAL.reply(record), AddressVector(SENDER, 0, 0x12345, 0xFF, 0xA5, lid=0x10, serviceLevel=5)
        )
        self.assertEqual(LOCAL.shown(record), (0x10, 0x21, 5, 0xFFFF, record[8:48]))

    def test_group(self) -> None:
        """
        A datagram to a group has its MGID.
        """
        group = f"{GROUP:032x}"
        routed = HEAD[: HEAD.rindex("fe80")] + group
        self.assertEqual(ROUTED.group(octets(routed)), GROUP)
        self.assertEqual(ROUTED.group(octets(HEAD)), 0)
        mapped = HEAD[: HEAD.rindex("fe80")] + f"{IPV4_GROUP:032x}"
        self.assertEqual(ROUTED.group(octets(mapped)), IPV4_GROUP)
        # The same octet within an IPv4 header says nothing.
        internet = IPV4.replace(" ", "")[:-8] + "ef010203"
        for identification in ("0000", "ff00", "fe80"):
            text = internet[:48] + identification + internet[52:]
            self.assertEqual(ROUTED.group(octets(text)), IPV4_GROUP)
        self.assertEqual(LOCAL.group(octets("0010 c001 53 00 ffff" + routed)), GROUP)
        self.assertEqual(LOCAL.group(octets(GLOBAL)), 0)

    def test_notShown(self) -> None:
        """
        What is no header is not shown as one.
        """
        for text in ("7a" + HEAD[2:], HEAD.replace("1b", "06"), "00" * 40, "01" + IPV4[2:]):
            self.assertRaises(WireError, ROUTED.shown, octets(text))
        self.assertRaises(WireError, ROUTED.shown, bytes(39))


class FaultTests(SynchronousTestCase):
    """
    L{DatagramForm.fault}.
    """

    def check(self, form: Any, text: str, key: int, expected: str, **fields: Any) -> None:
        """
        Check what is found wrong with a record.
        """
        behind, opcode = fields.get("behind", "01020304"), fields.get("opcode", ONLY)
        record = octets(text, behind, fields.get("deth", DETH))
        receiver = fields.get("receiver", queuePair())
        self.assertEqual(form.fault(receiver, KEY, key, opcode, record, len(record)), expected, text)

    def test_common(self) -> None:
        """
        Opcodes, lengths and Q_Keys are checked in either form.
        """
        for form, text, key in ((ROUTED, HEAD, SENDER), (LOCAL, PLAIN, 0x10), (LOCAL, GLOBAL, 0x10)):
            for opcode in (ONLY, IMMEDIATE, ONLY | 0x80, IMMEDIATE | 0x80):
                self.check(form, text, key, "", opcode=opcode)
            for opcode in (0x04, 0x66, 0x24, 0):
                self.check(form, text, key, "datagrams_malformed", opcode=opcode)
            self.check(form, text, key, "", behind="")
            self.check(form, text, key, "datagrams_malformed", behind="010203", opcode=IMMEDIATE)
            self.check(form, text, key, "", behind="00" * limits.DATAGRAM_BYTES)
            self.check(form, text, key, "datagrams_malformed", behind="00" * (limits.DATAGRAM_BYTES + 1))
            self.check(form, text, key, "qkey_violations", deth="11111110 00000011")
            record = octets(text)
            for size in range(form.size + 8):
                found = form.fault(queuePair(), KEY, key, ONLY, record[:size], size)
                self.assertEqual(found, "datagrams_malformed")

    def test_routed(self) -> None:
        """
        The sender is the path's peer, the receiver this device or a group.
        """
        self.check(ROUTED, HEAD, SENDER + 1, "datagrams_misaddressed")
        self.check(ROUTED, HEAD, SENDER, "datagrams_misaddressed", receiver=queuePair(RECEIVER + 1))
        self.check(ROUTED, HEAD[: HEAD.rindex("fe80")] + f"{GROUP:032x}", SENDER, "")
        self.check(ROUTED, "7a" + HEAD[2:], SENDER, "datagrams_malformed")

    def test_local(self) -> None:
        """
        So it is with LIDs, of which the port has four; with a GRH the GID is checked too.
        """
        for text, expected in (
            (PLAIN.replace("0021", "0020"), ""),
            (PLAIN.replace("0021", "0023"), ""),
            (PLAIN.replace("0021", "0024"), "datagrams_misaddressed"),
            (PLAIN.replace("0021", "001f"), "datagrams_misaddressed"),
            (PLAIN.replace("0021", "c001"), "datagrams_misaddressed"),
            (PLAIN.replace("0010", "0011"), "datagrams_misaddressed"),
            (GLOBAL.replace("0021", "0024"), "datagrams_misaddressed"),
            (GLOBAL[:-1] + "2", "datagrams_misaddressed"),
            ("0010 c001 53 00 ffff" + HEAD[: HEAD.rindex("fe80")] + f"{GROUP:032x}", ""),
            (GLOBAL[: GLOBAL.rindex("fe80")] + f"{GROUP:032x}", "datagrams_misaddressed"),
        ):
            self.check(LOCAL, text, 0x10, expected)
        self.check(LOCAL, PLAIN, 0x10, "datagrams_misaddressed", receiver=queuePair(lid=0))

    def test_localMalformed(self) -> None:
        """
        Each link next header that is none of these, a GRH where none is said to be, and none where one is.
        """
        for text in (
            PLAIN.replace("52 00", "50 00"),
            PLAIN.replace("52 00", "51 00"),
            PLAIN.replace("52 00", "53 00"),
            PLAIN[:-1] + "1",
            GLOBAL.replace("53 00", "52 00"),
            GLOBAL.replace("{:04x}", "ffff"),
        ):
            self.check(LOCAL, text, 0x10, "datagrams_malformed")

    def test_partition(self) -> None:
        """
        The P_Key of a record matches the queue pair's; of packets it was checked before.
        """
        for key, expected in (("7fff", ""), ("8001", "packets_bad_pkey"), ("0000", "packets_bad_pkey")):
            self.check(LOCAL, PLAIN.replace("ffff", key), 0x10, expected)

    def test_told(self) -> None:
        """
        The port is told of wrong keys, with LIDs, queue pairs, and GIDs if there are any; with both the P_Key
        counts.
        """
        ends = 0x10, 0x21, 5, 0x11, 0x123
        for text, deth, expected in (
            (PLAIN, "11111110 00000011", [KeyViolation(True, 0x11111110, *ends)]),
            (GLOBAL, "11111110 00000011", [KeyViolation(True, 0x11111110, *ends, SENDER, RECEIVER)]),
            (PLAIN.replace("ffff", "8001"), "11111110 ff000011", [KeyViolation(False, 0x8001, *ends)]),
            (PLAIN, DETH, []),
            (PLAIN.replace("0021", "0024"), "11111110 00000011", []),
        ):
            receiver, record = queuePair(), octets(text, "01020304", deth)
            LOCAL.fault(receiver, KEY, 0x10, ONLY, record, len(record))
            self.assertEqual(receiver.device.fabric.told, expected)


class LocalTests(DatagramTestCase):
    """
    Work requests by the local form.
    """

    def connect(self, **arguments: Any) -> None:
        """
        With LIDs.
        """
        self.p: LocalPair = LocalPair(**arguments)
        self.a, self.b = self.p.a, self.p.b
        self.source = self.a.register(bytes(range(256)) * 20)
        self.target = self.b.register(10240)

    def arrived(self, handle: Any, **fields: Any) -> Any:
        """
        @return: the completion of a datagram's receive.
        """
        self.b.receive(7, piece(self.target))
        self.a.datagram(1, handle, piece(self.source, 1, 4), number=18, **fields)
        self.p.flow()
        (completion,) = self.b.received()
        self.assertEqual((completion.status, completion.byteLength), (WCStatus.SUCCESS, 44))
        self.assertEqual(bytes(self.target.view[40:44]), b"\1\2\3\4")
        return completion

    def test_local(self) -> None:
        """
        Without a GRH the first 40 octets are zeros, and the completion has the local addresses.
        """
        self.target.view[:40] = b"x" * 40
        found = self.arrived(self.p.handle(self.a, LIDS[1] + 3, serviceLevel=5))
        self.assertEqual((found.flags, bytes(self.target.view[:40])), (0, bytes(40)))
        self.assertEqual((found.sourceLID, found.pathBits, found.serviceLevel), (LIDS[0], 3, 5))
        self.assertEqual(found.sourceQueuePair, 17)

    def test_global(self) -> None:
        """
        With one they are that.
        """
        handle = self.p.handle(
            *(self.a, LIDS[1]), gid=RECEIVER, flowLabel=0x12345, trafficClass=0xA5, hopLimit=0x3F
        )
        found = self.arrived(handle, opcode=SendOpcode.SEND_WITH_IMM, immediate=9)
        self.assertEqual(found.flags, int(WCFlags.GRH) | int(WCFlags.WITH_IMM))
        self.assertEqual(found.immediate, 9)
        self.assertEqual(bytes(self.target.view[:40]).hex(), bytes.fromhex(HEAD.format(32)).hex())
        self.assertEqual((found.sourceLID, found.pathBits, found.serviceLevel), (LIDS[0], 0, 0))

    def test_dropped(self) -> None:
        """
        What is wrong is dropped and counted as in the routed form.
        """
        self.b.receive(7, piece(self.target))
        for text, counter in (
            (PLAIN.replace("0021", "0040"), "datagrams_misaddressed"),
            (PLAIN.replace("ffff", "8001"), "packets_bad_pkey"),
            (PLAIN.replace("52 00", "50 00"), "datagrams_malformed"),
        ):
            self.assertEqual(self.put(octets(text, "01020304")), {counter: 1})
        self.assertEqual(self.put(octets(PLAIN, "01020304")), {})
        self.assertEqual(len(self.got()), 1)
