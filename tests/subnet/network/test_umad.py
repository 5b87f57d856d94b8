"""
Tests for ibsim's protocol: a server between clients that are octets and a subnet that is two ports.
"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.limits import UMAD_CLIENTS
from twisted_ib.subnet.network import umad
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.network.umad import CLIENT, CONTROL, MAGIC, MESSAGE, TIMED_OUT, UmadServer

NODE_INFO = bytes(range(64))
PORT_INFO = bytes(range(100, 164))
P_KEYS = b"\xff\xff" + bytes(62)
#: Management classes, methods and attributes.
SUBN, DIRECTED, SA, PERF, CM, PING = 0x01, 0x81, 0x03, 0x04, 0x07, 0x32
GET, SET, TRAP, REPORT, REPRESS, RESPONSE = 0x01, 0x02, 0x05, 0x06, 0x07, 0x81
NOTICE, NODE, SM_INFO = 0x02, 0x11, 0x20


def port(name: str, number: int, lid: int) -> Any:
    """
    @return: a CA's port, as the server sees it.
    """
    return SimpleNamespace(
        node=SimpleNamespace(name=name, end=lambda port: port),
        number=number,
        lid=lid,
        state=4,
        guid=0x100000 + lid,
        hasLID=lid.__eq__,
    )


class Subnet:
    """
    Two CAs, C{a} with LID 1 and C{b} with LID 2.
    """

    def __init__(self) -> None:
        self.ports = {"a": port("a", 1, 1), "b": port("b", 1, 2)}
        self.managers: set[str] = set()
        #: Whether there is a subnet manager of this process.
        self.manages = False
        #: The response of a port's agents, and the requests that they got.
        self.response: bytes | None = None
        self.asked: list[tuple[str, bytes]] = []

    def find(self, name: str) -> Any:
        return self.ports.get(name or "a")

    def name(self, port: Any) -> str:
        return str(port.node.name)

    def carry(self, port: Any, packet: Packet) -> Any:
        """
        See L{umad.ISubnet}: all directed routes lead to the other node and back.
        """
        if packet.octets[1] == DIRECTED:
            packet.octets[6] += -1 if packet.octets[4] & 0x80 else 1
            return self.ports["b" if port.node.name == "a" else "a"]
        return next((each for each in self.ports.values() if each.lid == packet.dlid), None)

    def take(self, port: Any, packet: Packet) -> bytes | None:
        if self.manages:
            return None
        if packet.octets[3] & 0x80:
            return b""
        self.asked.append((port.node.name, bytes(packet.octets)))
        return None if packet.octets[3] == REPRESS else self.response or b""

    def switchPorts(self, lid: int | None) -> int:
        return 8 if lid is None else 36

    def nodeInfo(self, port: Any) -> bytes:
        return NODE_INFO

    def portInfo(self, port: Any, number: int) -> bytes:
        return PORT_INFO[:63] + bytes((number,))

    def partitions(self, port: Any) -> bytes:
        return P_KEYS

    def setSM(self, port: Any, isSM: bool, isGone: bool = False) -> None:
        (self.managers.add if isSM else self.managers.discard)(port.node.name)


class Wire:
    """
    Keeps what is sent.
    """

    def __init__(self) -> None:
        self.opened: dict[int, int] = {}
        self.sent: list[tuple[int, bytes]] = []
        self.open, self.ready = True, True

    def attach(self, number: int, identity: int) -> bool:
        if self.open:
            self.opened[number] = identity
        return self.open

    def detach(self, number: int) -> None:
        del self.opened[number]

    def send(self, number: int, message: bytes) -> bool:
        if self.ready:
            self.sent.append((number, message))
        return self.ready


def mad(class_: int, method: int, attribute: int, transaction: int = 5, **at: int) -> bytes:
    """
    @param at: octets by C{at} and their offset.
    @return: 256 octets.
    """
    octets = bytearray(256)
    octets[:4] = 1, class_, 1, method
    octets[8:18] = transaction.to_bytes(8, "big") + attribute.to_bytes(2, "big")
    for name, value in at.items():
        octets[int(name[2:])] = value
    return bytes(octets)


class UmadCase(SynchronousTestCase):
    """
    A server.
    """

    def setUp(self) -> None:
        self.subnet, self.wire = Subnet(), Wire()
        self.lost: Counter[str] = Counter()
        self.server = UmadServer(self.subnet, self.wire, lambda name: self.lost.update((name,)))

    def control(
        self, address: str, kind: int, data: bytes = b"", number: int = 0, magic: int = MAGIC
    ) -> tuple[int, bytes]:
        """
        Send a control message.

        @return: type and data of the reply.
        """
        request = CONTROL.pack(magic, number, kind, len(data), data)
        reply = self.server.control(address, request)
        assert reply is not None
        found = CONTROL.unpack(reply)
        self.assertEqual((found[0], found[1], found[3]), (magic, number, len(data)))
        return found[2], found[4]

    def connect(self, address: str, node: str = "", manager: bool = False, queuePair: int = 0) -> int:
        """
        Attach a client.

        @return: its number.
        """
        data = CLIENT.pack(77, queuePair, manager, node.encode())
        kind, answer = self.control(address, umad.CONNECT, data, number=12345)
        self.assertEqual(kind, umad.CONNECT)
        number: int = CLIENT.unpack_from(answer)[0]
        return number

    def send(self, number: int, octets: bytes, dlid: int = 0xFFFF, queuePair: int = 0, slid: int = 0) -> None:
        """
        Send a MAD of a client.
        """
        message = MESSAGE.pack(dlid, slid, queuePair, queuePair, 0, 256, octets)
        self.server.received(number, message)

    def took(self) -> list[tuple[int, int, int, int, bytes]]:
        """
        @return: client, destination LID, source LID, status and MAD of what was sent since.
        """
        sent, self.wire.sent = self.wire.sent, []
        messages = [(number, MESSAGE.unpack(message)) for number, message in sent]
        return [(number, fields[0], fields[1], fields[4], fields[6]) for number, fields in messages]


class ControlTests(UmadCase):
    """
    Control messages.
    """

    def test_connect(self) -> None:
        """
        The reply has the client's number, its queue pair and the name of its node.
        """
        data = CLIENT.pack(77, 9, 1, b"b\0rubbish")
        kind, answer = self.control("x", umad.CONNECT, data)
        self.assertEqual((kind, CLIENT.unpack_from(answer)), (umad.CONNECT, (0, 9, 1, b"b".ljust(32, b"\0"))))
        self.assertEqual((self.wire.opened, self.subnet.managers), ({0: 77}, {"b"}))

    def test_attributes(self) -> None:
        """
        Each request's data.
        """
        number = self.connect("x", "b")
        expected = {
            umad.GET_PORT: b"\x02\0\x04",
            umad.GET_VENDOR: bytes((39, 38, 37, 0, 31, 30, 0, 0, 35, 34, 33, 32, 0, 0, 0, 0, 1)) + bytes(7),
            umad.GET_GID: PORT_INFO[8:16] + bytes.fromhex("0000000000100002"),
            umad.GET_GUID: bytes.fromhex("0000000000100002"),
            umad.GET_NODEINFO: NODE_INFO,
            umad.GET_PORTINFO: PORT_INFO[:63] + b"\x03",
            umad.GET_PKEYS: P_KEYS,
        }
        for kind, data in expected.items():
            self.assertEqual(self.control("x", kind, b"\x03", number), (kind, data.ljust(64, b"\0")), kind)

    def test_issm(self) -> None:
        """
        The port's IsSM is as its client says, until that ends.
        """
        number = self.connect("x", "b")
        for value, managers in ((1, {"b"}), (0, set()), (1, {"b"})):
            self.control("x", umad.SET_ISSM, value.to_bytes(4, "little"), number)
            self.assertEqual(self.subnet.managers, managers)
        self.assertEqual(self.control("x", umad.DISCONNECT, b"", number)[0], umad.DISCONNECT)
        self.assertEqual((self.subnet.managers, self.wire.opened, self.server.clients), (set(), {}, ()))

    def test_oneManager(self) -> None:
        """
        A second subnet manager of a node is refused, by either message.
        """
        self.connect("x", "b", manager=True)
        data = CLIENT.pack(1, 0, 1, b"b")
        self.assertEqual(self.control("y", umad.CONNECT, data)[0], umad.ERROR)
        number = self.connect("y", "b")
        self.assertEqual(self.control("y", umad.SET_ISSM, b"\x01\0\0\0", number)[0], umad.ERROR)
        self.connect("z", "a", manager=True)
        self.assertEqual(self.lost, {"umad_refused": 2})

    def test_unknown(self) -> None:
        """
        An unknown node, and a client without a socket, are refused.
        """
        self.assertEqual(self.control("x", umad.CONNECT, CLIENT.pack(1, 0, 0, b"c"))[0], umad.ERROR)
        self.wire.open = False
        self.assertEqual(self.control("x", umad.CONNECT, CLIENT.pack(1, 0, 0, b"a"))[0], umad.ERROR)
        self.assertEqual((self.lost, self.server.clients), ({"umad_refused": 2}, ()))

    def test_full(self) -> None:
        """
        There are C{UMAD_CLIENTS}; the number of one that has gone is the next one's.
        """
        for number in range(UMAD_CLIENTS):
            self.assertEqual(self.connect(f"x{number}"), number)
        self.assertEqual(self.control("y", umad.CONNECT, CLIENT.pack(1, 0, 0, b"a"))[0], umad.ERROR)
        self.server.gone(3)
        self.server.gone(3)
        self.assertEqual(self.connect("y"), 3)

    def test_again(self) -> None:
        """
        A client that connects again is the same client.
        """
        self.assertEqual((self.connect("x", "a"), self.connect("x", "b"), self.server.clients), (0, 0, (0,)))

    def test_foreign(self) -> None:
        """
        The number of another client, or of none, is refused and counted.
        """
        self.connect("x")
        for number in (0, 1, 10, 0xFFFFFFFF):
            self.assertEqual(self.control("y", umad.DISCONNECT, b"", number)[0], umad.ERROR)
        self.assertEqual((self.lost, self.server.clients), ({"umad_foreign": 4}, (0,)))

    def test_malformed(self) -> None:
        """
        Another size or magic has no reply, an unknown type an error.
        """
        number = self.connect("x")
        good = CONTROL.pack(MAGIC, number, umad.GET_PORT, 0, b"")
        for octets in (b"", good[:-1], good + b"\0", CONTROL.pack(1, number, umad.GET_PORT, 0, b"")):
            self.assertIsNone(self.server.control("x", octets))
        for kind in (umad.ERROR, 11, 0xFFFFFFFF):
            self.assertEqual(self.control("x", kind, b"", number)[0], umad.ERROR)
        self.assertEqual(self.lost, {"umad_malformed": 7})


class AgentTests(UmadCase):
    """
    MADs that a port's own agents answer.
    """

    def test_directed(self) -> None:
        """
        The response to a directed-route SMP has the direction bit, the client's number in its transaction id,
        and hop pointer 0, as ibsim's.
        """
        self.connect("x")
        number = self.connect("y")
        self.subnet.response = mad(DIRECTED, RESPONSE, NODE, 1 << 48 | 5, at6=2, at7=1)
        self.send(number, mad(DIRECTED, GET, NODE, 0xABCD << 48 | 5, at7=1), slid=0xFFFF)
        self.assertEqual(self.subnet.asked, [("b", mad(DIRECTED, GET, NODE, 1 << 48 | 5, at6=1, at7=1))])
        [taken] = self.took()
        self.assertEqual(
            taken, (number, 0xFFFF, 0xFFFF, 0, mad(DIRECTED, RESPONSE, NODE, 1 << 48 | 5, at4=0x80, at7=1))
        )

    def test_routed(self) -> None:
        """
        LID routed: the source is the client's port, and the response comes from where the request went.
        """
        self.subnet.response = mad(PERF, RESPONSE, 0x12)
        self.send(self.connect("x"), mad(PERF, GET, 0x12), 2, 1, slid=0x1234)
        self.assertEqual(self.took(), [(0, 1, 2, 0, self.subnet.response)])

    def test_unanswered(self) -> None:
        """
        A request that is not answered, or does not arrive, comes back as timed out.
        """
        number = self.connect("x")
        for octets, dlid in ((mad(SUBN, GET, NODE), 2), (mad(SUBN, GET, NODE), 9)):
            self.send(number, octets, dlid)
            self.assertEqual(self.took(), [(0, dlid, 0, TIMED_OUT, octets)])

    def test_repress(self) -> None:
        """
        A trap is repressed by the agents of the port, without an answer.
        """
        octets = mad(SUBN, REPRESS, NOTICE)
        self.send(self.connect("x"), octets, 2)
        self.assertEqual((self.subnet.asked, self.took()), ([("b", octets)], []))


class ClientTests(UmadCase):
    """
    MADs between clients.
    """

    def manager(self) -> int:
        """
        @return: the number of a client at C{b} that is a subnet manager, and known as one.
        """
        number = self.connect("sm", "b", manager=True)
        self.send(number, mad(SUBN, GET, NODE), 9)
        self.wire.sent.clear()
        return number

    def test_manager(self) -> None:
        """
        SMInfo, traps and subnet administration go to the subnet manager; its response goes by transaction id.
        """
        asker, manager = self.connect("x"), self.manager()
        for octets, queuePair in (
            (mad(SUBN, GET, SM_INFO), 0),
            (mad(SUBN, TRAP, NOTICE), 0),
            (mad(SA, SET, 0x38), 1),
        ):
            self.send(asker, octets, 2, queuePair)
            self.assertEqual(self.took(), [(manager, 2, 1, 0, octets)])
            response = octets[:3] + bytes((octets[3] | 0x80,)) + octets[4:]
            self.send(manager, response, 1, queuePair)
            self.assertEqual(self.took(), [(asker, 1, 2, 0, response)])
        self.assertEqual(self.subnet.asked, [])

    def test_report(self) -> None:
        """
        A Report goes to what has asked for it, not to a subnet manager at the same port.
        """
        asker = self.connect("x")
        self.manager()
        report = mad(SA, REPORT, NOTICE)
        self.send(asker, report, 2, 1)
        self.assertEqual([octets[3] for _, octets in self.subnet.asked], [REPORT])

    def test_repress(self) -> None:
        """
        The end of a trap is for the node that has sent it, whatever its transaction id is.
        """
        manager = self.manager()
        self.send(manager, mad(SUBN, REPRESS, NOTICE, manager << 48 | 5), 2)
        self.assertEqual([octets[3] for _, octets in self.subnet.asked], [REPRESS])
        self.assertEqual(self.took(), [])

    def test_directedSMInfo(self) -> None:
        """
        A directed-route SMInfo has hop pointer 0 for the manager, and so has its response.  Neither has a
        source LID, whatever the sender says.
        """
        asker, manager = self.connect("x"), self.manager()
        for slid in (0, 2, 7):
            self.send(asker, mad(DIRECTED, GET, SM_INFO, at7=1), slid=slid)
            self.assertEqual(self.took(), [(manager, 0xFFFF, 0xFFFF, 0, mad(DIRECTED, GET, SM_INFO, at7=1))])
            response = mad(DIRECTED, RESPONSE, SM_INFO, at4=0x80, at7=1)
            self.send(manager, response, slid=slid)
            self.assertEqual(self.took(), [(asker, 0xFFFF, 0xFFFF, 0, response)])

    def test_noManager(self) -> None:
        """
        Without one the agents answer for SMInfo; a tool with IsSM that has sent no SMP is none.
        """
        asker = self.connect("x")
        self.connect("tool", "b", manager=True)
        self.subnet.response = mad(SUBN, RESPONSE, SM_INFO)
        self.send(asker, mad(SUBN, GET, SM_INFO), 2)
        self.assertEqual(self.took(), [(asker, 1, 2, 0, self.subnet.response)])
        self.subnet.response = None
        self.send(asker, mad(SA, GET, 0x35), 2, 1)
        self.assertEqual([each[3] for each in self.took()], [TIMED_OUT])
        self.assertEqual(self.lost, {"umad_unclaimed": 1})

    def test_vendor(self) -> None:
        """
        A vendor class goes to the newest client that has sent nothing else, IsSM or not.
        """
        asker = self.connect("x")
        first, second = self.connect("ping", "b"), self.connect("other", "b")
        self.send(second, mad(PERF, GET, 0x12), 9, 1)
        self.manager()
        self.send(asker, mad(PING, GET, 0), 2, 1)
        self.assertEqual([each[0] for each in self.took()], [first])
        newest = self.connect("newest", "b")
        self.send(asker, mad(PING, GET, 0), 2, 1)
        self.assertEqual([each[0] for each in self.took()], [newest])

    def test_queuePair(self) -> None:
        """
        A redirected queue pair is that of a client, if that knows the class.
        """
        asker, taker = self.connect("x"), self.connect("y", "b", queuePair=7)
        self.send(asker, mad(PERF, GET, 0x12), 2, 7)
        self.assertEqual([(each[0], each[3]) for each in self.took()], [(asker, TIMED_OUT)])
        self.send(taker, mad(PERF, GET, 0x12), 9, 1)
        self.wire.sent.clear()
        self.send(asker, mad(PERF, GET, 0x12), 2, 7)
        self.assertEqual([each[0] for each in self.took()], [taker])

    def test_unmatched(self) -> None:
        """
        A response to nobody is dropped, and does not come back.
        """
        self.connect("x", "b")
        sender = self.connect("y")
        for client in (sender, 9):
            self.send(sender, mad(SA, RESPONSE, 0x35, client << 48), 2, 1)
        self.assertEqual((self.took(), self.lost), ([], {"umad_unclaimed": 2}))

    def test_withheld(self) -> None:
        """
        A query of SLtoVLMappingTableRecords by a port that no switch has does not reach OpenSM, which would
        end by it.
        """
        asker, manager = self.connect("x"), self.manager()
        for method in (GET, 0x12):
            for components, ports, taker in (
                (0, (255, 255), manager),
                (1, (255, 255), manager),
                (2, (8, 255), manager),
                (2, (9, 0), asker),
                (4, (255, 8), manager),
                (4, (0, 9), asker),
                (7, (36, 36), manager),
                (7, (1, 37), asker),
            ):
                self.send(
                    *(asker, mad(SA, method, 0x13, at55=components, at58=ports[0], at59=ports[1]), 2, 1)
                )
                self.assertEqual([each[0] for each in self.took()], [taker], (components, ports))
        self.assertEqual(self.lost, {"umad_withheld": 6})

    def test_unknownClass(self) -> None:
        """
        A client gets no response of a class that it has sent nothing of, and a manager no other class than
        those of a subnet manager: libumad2sim would end their programs.
        """
        asker, manager = self.connect("x"), self.manager()
        self.send(manager, mad(PING, RESPONSE, 0, asker << 48), 1, 1)
        for class_ in (0x05, 0x06, CM, 0x08, 0x21, 0xFF):
            self.send(asker, mad(class_, GET, 0), 2, 1)
        self.assertEqual({(each[0], each[3]) for each in self.took()}, {(asker, TIMED_OUT)})
        self.assertEqual(self.lost, {"umad_unclaimed": 7})

    def test_slow(self) -> None:
        """
        Messages that a client does not take are dropped and counted.
        """
        asker, manager = self.connect("x"), self.manager()
        self.wire.ready = False
        self.send(asker, mad(SA, GET, 0x35), 2, 1)
        self.assertEqual((manager, self.lost["umad_overrun"]), (1, 2))

    def test_take(self) -> None:
        """
        A trap of the subnet's own comes to the subnet manager: a client, or else that of this process.
        """
        packet, port = Packet(1, 2, 0, 0, bytearray(mad(SUBN, TRAP, NOTICE))), self.subnet.ports["b"]
        self.subnet.response = None
        self.assertEqual(self.server.take(port, packet), b"")
        self.subnet.manages = True
        self.assertIsNone(self.server.take(port, packet))
        self.assertEqual(self.lost, {"umad_unclaimed": 1})
        manager = self.manager()
        self.subnet.manages = False
        self.assertIsNone(self.server.take(port, packet))
        self.assertEqual(self.took(), [(manager, 2, 1, 0, mad(SUBN, TRAP, NOTICE))])


class BadInputTests(UmadCase):
    """
    Messages that are not valid.
    """

    def test_malformed(self) -> None:
        """
        Another size, length, base version or hop pointer is dropped and counted.
        """
        number = self.connect("x")
        good = MESSAGE.pack(0xFFFF, 0, 0, 0, 0, 256, mad(DIRECTED, GET, NODE))
        for octets in (b"", good[:-1], good + b"\0", good[:80]):
            self.server.received(number, octets)
        self.server.received(number, MESSAGE.pack(0xFFFF, 0, 0, 0, 0, 257, mad(DIRECTED, GET, NODE)))
        self.send(number, mad(DIRECTED, GET, NODE, at0=2))
        self.send(number, mad(DIRECTED, GET, NODE, at6=1))
        self.assertEqual((self.lost, self.took()), ({"umad_malformed": 7}, []))

    def test_queuePair(self) -> None:
        """
        Subnet management is on queue pair 0, all else is not.
        """
        number = self.connect("x")
        for class_, queuePair in ((SUBN, 1), (DIRECTED, 1), (PERF, 0), (SA, 0)):
            self.send(number, mad(class_, GET, NODE), 2, queuePair)
        self.assertEqual(self.lost, {"umad_wrong_queue_pair": 4})

    def test_nobody(self) -> None:
        """
        A message of no client is dropped.
        """
        self.send(3, mad(SUBN, GET, NODE))
        self.assertEqual(self.lost, {"umad_foreign": 1})

    def test_anything(self) -> None:
        """
        No octets raise an exception.
        """
        chance = random.Random(19)
        clients = [self.connect("x"), self.connect("y", "b", manager=True)]
        self.subnet.response = mad(SUBN, RESPONSE, NODE)
        for _ in range(2000):
            octets = bytearray(mad(chance.choice((SUBN, DIRECTED, SA, PERF, CM, PING)), GET, NODE))
            for _ in range(chance.randrange(4)):
                octets[chance.randrange(24)] = chance.randrange(256)
            fields = chance.choice((1, 2, 9, 0xFFFF)), 0, chance.choice((0, 1, 7)), 1, 0, 256
            self.server.received(chance.choice(clients), MESSAGE.pack(*fields, bytes(octets)))
            request = bytearray(CONTROL.pack(MAGIC, chance.randrange(3), chance.randrange(12), 0, b""))
            request[chance.randrange(80)] = chance.randrange(256)
            self.server.control(chance.choice("xy"), bytes(request))
            self.wire.sent.clear()
