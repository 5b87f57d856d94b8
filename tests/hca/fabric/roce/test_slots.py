"""
The slots of the processes that share an address: whose a datagram is, and who listens.
"""

from __future__ import annotations

import ctypes
import random
import select
import socket

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.bpf import run
from tests.hca.connection.test_compacthello import COMPACT
from tests.support.ownaddress import ownAddress
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError, ServiceInUseError
from twisted_ib.hca.fabric.roce import slots
from twisted_ib.hca.fabric.roce.slots import (
    Handed,
    ServiceTable,
    packed,
    program,
    requesterOf,
    requestOf,
    serviceOf,
    slotOf,
)
from twisted_ib.hca.wire.cm.messages import REJ, REQ

#: BTH and DETH of a MAD for queue pair 1.
HEAD = "6400ffff000000018000000080010000" + "00000001"
#: The MAD's header but for the attribute, of connection management.
CM = "0107020300000000" + "0000000000000005"
#: Ids of slots 2 and 3 as the sender's and the receiver's: 000010 and 000011 are their upper bits.
IDS = "08111111" + "0c222222"

#: Name, the beginning of a datagram, its slot.
DATAGRAMS: list[tuple[str, str, int]] = [
    ("SEND ONLY to slot 5", "04b0ffff" + "00140001" + "80000100" + "68656c6c", 5),
    ("SEND ONLY to slot 63", "0400ffff" + "00ffffff" + "80000100" + "68656c6c", 63),
    ("the lowest number of slot 1", "0400ffff" + "00040000" + "80000100" + "68656c6c", 1),
    ("the highest number of nobody", "0400ffff" + "0003ffff" + "80000100" + "68656c6c", 0),
    ("FECN and BECN are no part of the number", "0400ffff" + "ff080000" + "80000100" + "68656c6c", 2),
    ("queue pair 0", HEAD.replace("00000001", "00000000", 1) + CM + "00140000" + "00000000" + IDS, 0),
    ("REQ", HEAD + CM + "00100000" + "00000000" + IDS, 0),
    ("MRA", HEAD + CM + "00110000" + "00000000" + IDS, 3),
    ("REJ", HEAD + CM + "00120000" + "00000000" + IDS, 3),
    (
        "REJ whose sender does not know our id",
        HEAD + CM + "00120000" + "00000000" + "08111111" + "00000000",
        0,
    ),
    ("REP", HEAD + CM + "00130000" + "00000000" + IDS, 3),
    ("RTU", HEAD + CM + "00140000" + "00000000" + IDS, 3),
    ("DREQ", HEAD + CM + "00150000" + "00000000" + IDS, 3),
    ("DREP", HEAD + CM + "00160000" + "00000000" + IDS, 3),
    ("SIDR_REQ", HEAD + CM + "00170000" + "00000000" + IDS, 0),
    ("SIDR_REP", HEAD + CM + "00180000" + "00000000" + IDS, 2),
    ("LAP", HEAD + CM + "00190000" + "00000000" + IDS, 3),
    ("APR", HEAD + CM + "001a0000" + "00000000" + IDS, 3),
    (
        "another class than connection management",
        HEAD + CM.replace("0107", "0104") + "00140000" + "00000000" + IDS,
        0,
    ),
    ("another opcode to queue pair 1", "04" + HEAD[2:] + CM + "00140000" + "00000000" + IDS, 0),
    ("a MAD that ends in its receiver's id", HEAD + CM + "00140000" + "00000000" + IDS[:-2], 0),
    ("a MAD that ends in its header", HEAD + CM, 0),
    ("a datagram that ends before the number", "0400ffff00", 0),
    ("an empty one", "", 0),
]


class SlotTests(SynchronousTestCase):
    """
    The program, its Python twin, and the kernel.
    """

    def test_datagrams(self) -> None:
        """
        Program and twin find the slot of each kind of datagram.
        """
        for name, text, slot in DATAGRAMS:
            data = bytes.fromhex(text)
            found = run(program(), data), slotOf(b"front" + data + b"beyond", 5, 5 + len(data))
            self.assertEqual(found, (slot, slot), name)

    def test_forged(self) -> None:
        """
        Whatever octets come, at whatever length, the program and the twin agree, and name a socket.
        """
        drawn = random.Random(39)
        for _, text, _ in DATAGRAMS:
            for _ in range(200):
                data = bytearray(bytes.fromhex(text) + drawn.randbytes(8))
                for _ in range(drawn.randrange(3)):
                    data[drawn.randrange(len(data))] = drawn.randrange(256)
                cut = bytes(data[: drawn.randrange(len(data) + 1)])
                found = run(program(), cut)
                self.assertLess(found, slots.SLOTS)
                self.assertEqual(found, slotOf(cut, 0, len(cut)), cut.hex())

    def test_kernel(self) -> None:
        """
        The kernel gives each datagram to the socket of its slot.
        """
        address = ownAddress(3)
        made: list[socket.socket] = []
        for _ in range(slots.SLOTS):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self.addCleanup(one.close)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((address, made[0].getsockname()[1] if made else 0))
            made.append(one)
        text = packed(program())
        octets = ctypes.create_string_buffer(text)
        head = (
            len(program()).to_bytes(2, "little") + bytes(6) + ctypes.addressof(octets).to_bytes(8, "little")
        )
        made[0].setsockopt(socket.SOL_SOCKET, 51, head)
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(sender.close)
        poller = select.epoll()
        self.addCleanup(poller.close)
        for one in made:
            poller.register(one, select.EPOLLIN)
        for name, text, slot in DATAGRAMS:
            sender.sendto(bytes.fromhex(text), made[0].getsockname())
            self.assertEqual(poller.poll(), [(made[slot].fileno(), select.EPOLLIN)], name)
            self.assertEqual(made[slot].recv(4096), bytes.fromhex(text))

    def test_service(self) -> None:
        """
        REQ and SIDR_REQ ask for a service id; nothing else does, nor what is cut off.  The REJ of a peer that
        has given up names the one that it has asked for.
        """
        for attribute, found in ("0010", 0x0000000001061C06), ("0017", 0x0000000001061C06), ("0013", None):
            text = HEAD + CM + attribute + "0000" + "00000000" + IDS + "0000000001061c06"
            data = bytes.fromhex(text)
            self.assertEqual(serviceOf(data, 0, len(data)), found)
            self.assertIsNone(serviceOf(data, 0, len(data) - 1))
        self.assertIsNone(serviceOf(b"", 0, 0))
        asked = 0x0000000001061C06.to_bytes(8, "big")
        given = REJ(9, reason=4, additionalInfoLength=8, additionalInfo=bytes(8) + asked).pack()
        data = bytes.fromhex(HEAD + CM + "0012" + "0000" + "00000000") + given
        self.assertEqual((serviceOf(data, 0, len(data)), slotOf(data, 0, len(data))), (0x0000000001061C06, 0))
        self.assertIsNone(requestOf(data, 0, len(data)))

    def test_stream(self) -> None:
        """
        A request of an adapter's for a stream is for that service, whole and with the mark alone, and no
        other message is.
        """
        messages, stream = 0x1061C06, 0x11C06
        for attribute, data, found in (
            ("0010", COMPACT, stream),
            ("0010", COMPACT[:43], messages),
            ("0010", b"", messages),
            ("0017", COMPACT, messages),
        ):
            body = REQ(serviceID=messages, privateData=data).pack()
            whole = bytes.fromhex(HEAD + CM + attribute + "0000" + "00000000") + body
            self.assertEqual(serviceOf(b"front" + whole + b"icrc", 5, 9 + len(whole)), found)
        for length in range(len(body)):
            self.assertIn(serviceOf(whole, 0, len(whole) - length), (None, messages))

    def test_answer(self) -> None:
        """
        The answer of an agent is for the slot that its transaction id begins with; no request is, no message
        of connection management, and nothing that is cut off or for another queue pair.
        """
        common = "01%s01%s" + "00000000" + "0c00000000000005" + "00100000" + "00000000"
        for number, kind, method, found in (
            (1, "32", "81", 3),
            (1, "04", "81", 3),
            (1, "04", "01", 0),
            (1, "07", "81", 0),
            (2, "04", "81", 0),
        ):
            text = HEAD.replace("00000001", f"{number:08x}", 1) + common % (kind, method)
            data = bytes.fromhex(text)
            self.assertEqual(requesterOf(b"front" + data, 5, 5 + len(data)), found)
            self.assertEqual(requesterOf(data, 0, len(data) - 1), 0)
        self.assertEqual(requesterOf(b"", 0, 0), 0)

    def test_handedOn(self) -> None:
        """
        What is handed on goes to its slot, and arrives as it was; without the secret it is nothing.
        """
        secret = bytes(range(16))
        handed = Handed("2001:db8::1", 55410, 3, b"datagram")
        data = handed.pack(5, secret)
        self.assertEqual((run(program(), data), slotOf(data, 0, len(data))), (5, 5))
        self.assertEqual(Handed.parse(data, secret), handed)
        self.assertIsNone(Handed.parse(data, bytes(16)))
        self.assertIsNone(Handed.parse(b"\x64" + data[1:], secret))
        for size in range(len(data) - len(b"datagram") + 1):
            self.assertIsNone(Handed.parse(data[:size], secret))


class ServiceTests(SynchronousTestCase):
    """
    The table of services.
    """

    def setUp(self) -> None:
        """
        Two processes share a table.
        """
        self.memory = bytearray(slots.TABLE_BYTES)
        self.alive = {1, 2}
        self.one = ServiceTable(self.memory, 1, self.alive.__contains__)
        self.two = ServiceTable(self.memory, 2, self.alive.__contains__)

    def test_find(self) -> None:
        """
        A service id is found by all; another process cannot listen for it until its owner does not or has
        ended.
        """
        self.one.add(7)
        self.assertEqual((self.one.find(7), self.two.find(7), self.two.find(8)), (1, 1, 0))
        self.assertRaises(ServiceInUseError, self.two.add, 7)
        self.assertEqual((self.one.others(), self.two.others()), (set(), {7}))
        self.alive.discard(1)
        self.assertEqual(self.two.find(7), 0)
        self.two.add(7)
        self.assertEqual(self.two.find(7), 2)
        self.alive.add(1)
        one = ServiceTable(self.memory, 1, self.alive.__contains__)
        self.assertEqual(one.find(7), 2)

    def test_ended(self) -> None:
        """
        Who has listened is found until another does: a repeated REQ is its.
        """
        self.one.add(7)
        self.one.remove(7)
        self.one.remove(8)
        self.assertEqual((self.two.find(7), self.two.others()), (1, set()))
        self.two.add(7)
        self.assertEqual((self.one.find(7), self.two.find(7)), (2, 2))
        self.assertRaises(ServiceInUseError, self.one.add, 7)

    def test_looks(self) -> None:
        """
        A REQ costs one look at whether its process lives, and none if nobody listens; all rows are read once
        after a change, whoever made it.
        """
        looks: list[int] = []
        rows: list[int] = []

        def isAlive(slot: int) -> bool:
            looks.append(slot)
            return slot in self.alive

        self.alive.update(range(1, slots.SLOTS))
        tables = [ServiceTable(self.memory, slot, isAlive) for slot in range(1, slots.SLOTS)]
        for table in tables:
            table.add(7)
            table.remove(7)
        one = tables[4]
        read = one._rows
        self.patch(one, "_rows", lambda slot: rows.append(slot) or read(slot))
        looks.clear()
        for _ in range(1000):
            self.assertEqual((one.find(7), one.find(8)), (5, 0))
        self.assertEqual(len(rows), 62)
        self.assertEqual(len(looks), 62)
        tables[20].add(8)
        rows.clear()
        looks.clear()
        self.assertEqual([one.find(8) for _ in range(1000)], [21] * 1000)
        self.assertEqual((len(rows), len(looks)), (62, 62 + 1000))
        self.alive.discard(21)
        rows.clear()
        looks.clear()
        self.assertEqual([one.find(8) for _ in range(1000)], [0] * 1000)
        self.assertEqual((len(rows), len(looks)), (61, 1 + 62))

    def test_changes(self) -> None:
        """
        The next owner of a slot goes on counting its changes, so that the others notice the first.
        """
        self.two.add(7)
        self.assertEqual(self.one.find(7), 2)
        self.two = ServiceTable(self.memory, 2, self.alive.__contains__)
        self.two.add(8)
        self.assertEqual((self.one.find(7), self.one.find(8)), (0, 2))

    def test_bound(self) -> None:
        """
        A process has L{limits.PACKET_SERVICES} rows; those of services that have ended give way.
        """
        for service in range(limits.PACKET_SERVICES):
            self.one.add(service)
        self.assertRaises(ResourceLimitError, self.one.add, limits.PACKET_SERVICES)
        self.one.remove(9)
        self.one.add(limits.PACKET_SERVICES)
        self.assertEqual((self.two.find(9), self.two.find(limits.PACKET_SERVICES)), (0, 1))

    def test_wrong(self) -> None:
        """
        Whatever another process writes, reading ends.
        """
        self.memory[slots.SECRET_BYTES :] = b"\xff" * (slots.TABLE_BYTES - slots.SECRET_BYTES)
        self.assertEqual(self.one.find(3), 0)
        self.assertEqual(self.one.others(), set())
