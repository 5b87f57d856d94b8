"""
The agents of programs, by octets: Linux's C{user_mad.c}.
"""

from __future__ import annotations

import errno
from typing import Any

from attrs import evolve

from tests.hca.mad.cases import MADTestCase, OnPackets, OnRings
from tests.hca.mad.toys.echo import CLASS, EchoAgent
from twisted_ib.errors import (
    HeaderError,
    LengthError,
    QueuePairError,
    ResourceLimitError,
    ServiceInUseError,
)
from twisted_ib.hca.mad import user
from twisted_ib.hca.mad.rmpp.segments import TABLE
from twisted_ib.hca.mad.user import UserPort
from twisted_ib.hca.mad.vendor import OPENIB, PING
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.mad.classes import (
    DEVICE_MANAGEMENT,
    SUBNET,
    SUBNET_ADMINISTRATION,
    AdministrationHeader,
    OrganizationHeader,
)
from twisted_ib.hca.wire.mad.mad import GET, GET_RESPONSE, SET, TRAP_REPRESS, Mad

#: Of the requests here; responses have it again.
TRANSACTION = 0xABCD_0000_0000_0007
GET_TABLE, GET_TABLE_RESPONSE = 0x12, 0x92
PINGED = Mad(PING, 1, GET, TRANSACTION, 0, header=OrganizationHeader(organization=OPENIB))


class UserContract:
    """
    Programs at C{a} and C{b}.
    """

    def setUp(self: Any) -> None:
        """
        Open a port of each.
        """
        super().setUp()
        self.readable: list[bool] = []
        self.one, self.two = UserPort(self.a, self.readable.append), UserPort(self.b, lambda isReadable: None)

    def came(self: Any, port: UserPort) -> list[Any]:
        """
        @return: what a program gets.
        """
        self.settle()
        return [port.receive(1 << 20) for _ in range(len(port))]

    def test_response(self: Any) -> None:
        """
        A device's agent answers, with the transaction id of the program.
        """
        number = self.one.register(CLASS, 1, ())
        mad = evolve(self.of(EchoAgent, self.a).question(), transaction=TRANSACTION)
        self.one.send(number, self.address(self.b), 1, mad.pack(), 1000, 3)
        (found,) = self.came(self.one)
        self.assertEqual((found.agent, found.status, found.queuePair), (0, 0, 1))
        self.assertEqual(found.source.gid, self.b.gid)
        self.assertEqual(len(found.octets), 256)
        response = Mad.parse(found.octets, 0, 256)
        self.assertEqual((response.method, response.transaction), (GET_RESPONSE, TRANSACTION))
        self.assertEqual(self.readable, [True, False])

    def test_programs(self: Any) -> None:
        """
        A program answers another, as the address of the request says.
        """
        asks, answers = self.one.register(DEVICE_MANAGEMENT, 1, ()), self.two.register(6, 1, (GET,))
        mad = Mad(DEVICE_MANAGEMENT, 1, GET, TRANSACTION, 5)
        self.one.send(asks, self.address(self.b), 1, mad.pack(), 1000)
        (request,) = self.came(self.two)
        self.assertEqual((request.agent, request.source.gid, request.queuePair), (answers, self.a.gid, 1))
        response = bytearray(request.octets)
        response[3] = GET_RESPONSE
        self.two.send(answers, request.source, request.queuePair, bytes(response))
        (found,) = self.came(self.one)
        self.assertEqual(found.octets, evolve(mad, method=GET_RESPONSE).pack())

    def test_otherClass(self: Any) -> None:
        """
        An agent sends MADs of other classes too, and gets their responses.
        """
        number = self.one.register(DEVICE_MANAGEMENT, 1, ())
        mad = evolve(self.of(EchoAgent, self.a).question(), transaction=TRANSACTION)
        octets = evolve(mad, managementClass=CLASS, classVersion=1).pack()
        self.one.send(number, self.address(self.b), 1, octets, 1000)
        (found,) = self.came(self.one)
        self.assertEqual((found.agent, found.octets[:4]), (number, bytes((1, CLASS, 1, GET_RESPONSE))))

    def test_transfer(self: Any) -> None:
        """
        A table is whole, behind the headers of its first MAD, in a response; and in a request.
        """
        header = AdministrationHeader(TABLE, attributeOffset=8)
        for size in (200, 201, 100_000):
            asks = self.one.register(SUBNET_ADMINISTRATION, 2, (), 1)
            answers = self.two.register(SUBNET_ADMINISTRATION, 2, (GET_TABLE,), 1)
            mad = Mad(SUBNET_ADMINISTRATION, 2, GET_TABLE, TRANSACTION + size, 0x11)
            self.one.send(asks, self.address(self.b), 1, mad.pack(), 1000)
            (request,) = self.came(self.two)
            data = bytes(range(256)) * (size // 256) + bytes(size % 256)
            # As OpenSM gives them to the kernel: the RMPP header says no more than that there is one.
            head = evolve(mad, transaction=transactionOf(request), method=GET_TABLE_RESPONSE, header=header)
            self.two.send(answers, request.source, 1, head.pack()[:56] + data)
            (found,) = self.came(self.one)
            self.assertEqual(len(found.octets), 56 + size)
            self.assertEqual(found.octets[56:], data)
            first = Mad.parse(found.octets[:256].ljust(256, b"\0"), 0, 256)
            self.assertEqual((first.transaction, first.method), (mad.transaction, GET_TABLE_RESPONSE))
            self.one.unregister(asks)
            self.two.unregister(answers)
        many = evolve(mad, method=0x14, header=header).pack()[:56] + bytes(1000)
        asks, answers = (port.register(SUBNET_ADMINISTRATION, 2, (0x14,), 1) for port in (self.one, self.two))
        self.one.send(asks, self.address(self.b), 1, many)
        (request,) = self.came(self.two)
        self.assertEqual((len(request.octets), request.agent), (1056, answers))

    def test_silence(self: Any) -> None:
        """
        A request that is not answered comes back after all its attempts: the common header, with ETIMEDOUT.
        """
        number = self.one.register(DEVICE_MANAGEMENT, 1, ())
        self.two.register(DEVICE_MANAGEMENT, 1, (SET,))
        octets = Mad(DEVICE_MANAGEMENT, 1, SET, TRANSACTION, 5).pack()
        self.one.send(number, self.address(self.b), 1, octets, 200, 2)
        for _ in range(2):
            self.settle()
            self.wait(0.25)
        self.assertEqual(self.came(self.one), [])
        self.wait(0.25)
        (found,) = self.came(self.one)
        self.assertEqual((found.status, found.octets), (errno.ETIMEDOUT, octets[:24]))
        self.assertEqual((found.source.gid, found.queuePair), (self.b.gid, 1))
        # Each attempt has reached the other program.
        self.assertEqual(len(self.came(self.two)), 3)

    def test_patience(self: Any) -> None:
        """
        Times and repetitions over the bounds are the bounds.
        """
        number = self.one.register(DEVICE_MANAGEMENT, 1, ())
        octets = Mad(DEVICE_MANAGEMENT, 1, TRAP_REPRESS | 8, TRANSACTION, 5).pack()
        for timeout, retries in ((-1, -1), (1 << 30, 1 << 30)):
            self.one.send(number, self.address(self.b), 1, octets, timeout, retries)
        first, second = self.a.mads._requests.values()
        self.assertEqual([first.patience, second.patience], [60.0, 960.0])
        self.one.close()
        self.assertEqual((self.a.mads._requests, self.came(self.one)), ({}, []))

    def test_refused(self: Any) -> None:
        """
        Calls that are wrong, and the bounds.
        """
        number = self.one.register(DEVICE_MANAGEMENT, 1, (GET,))
        octets = Mad(DEVICE_MANAGEMENT, 1, GET, 1, 5).pack()
        to = self.address(self.b)
        for error, arguments in (
            (ValueError, (number + 1, to, 1, octets)),
            (ValueError, (number, to, 1, Mad(SUBNET, 1, GET, 1, 5).pack())),
            (ValueError, (number, to, 5, octets, 1000)),
            (LengthError, (number, to, 1, octets[:23])),
            (LengthError, (number, to, 1, octets + b"\0")),
            (HeaderError, (number, to, 1, b"\2" + octets[1:])),
            (QueuePairError, (number, AddressVector(0, lid=5, isGlobal=False), 1, octets)),
            (QueuePairError, (number, AddressVector(0, lid=5, isGlobal=False), 1, octets, 1000)),
        ):
            self.assertRaises(error, self.one.send, *arguments)
        self.assertRaises(ValueError, self.one.unregister, number + 1)
        self.assertRaises(ServiceInUseError, self.one.register, DEVICE_MANAGEMENT, 1, (GET,))
        self.patch(user, "USER_AGENTS", 1)
        self.assertRaises(ResourceLimitError, self.one.register, DEVICE_MANAGEMENT, 1, (SET,))
        self.one.close()
        self.one.close()
        self.assertEqual(self.one.register(DEVICE_MANAGEMENT, 1, (GET,)), number)

    def test_unread(self: Any) -> None:
        """
        Unread MADs are bounded in number and octets; one that is longer than its room stays.
        """
        self.patch(user, "USER_MADS", 2)
        number = self.two.register(DEVICE_MANAGEMENT, 1, (TRAP_REPRESS | 8,))
        sender = self.one.register(DEVICE_MANAGEMENT, 1, ())
        octets = Mad(DEVICE_MANAGEMENT, 1, TRAP_REPRESS | 8, 1, 5).pack()

        def send(count: int) -> int:
            for _ in range(count):
                self.one.send(sender, self.address(self.b), 1, octets)
            self.settle()
            return len(self.two)

        self.assertEqual((send(3), self.b.counters["management_overrun"]), (2, 1))
        first = self.two.receive(255)
        self.assertEqual((first.agent, len(first.octets), len(self.two)), (number, 256, 2))
        self.assertEqual(len(self.came(self.two)), 2)
        self.assertIsNone(self.two.receive(1 << 20))
        self.patch(user, "USER_BYTES", 300)
        self.assertEqual((send(2), self.b.counters["management_overrun"]), (1, 2))

    def test_ping(self: Any) -> None:
        """
        A program answers pings in place of the device, which answers again when it ends; another OUI is not
        the program's.
        """
        asks = self.one.register(PING, 1, (), organization=OPENIB)

        def ask(mad: Mad) -> None:
            self.one.send(asks, self.address(self.b), 1, mad.pack(), 1000)

        ask(PINGED)
        self.assertEqual(len(self.came(self.one)), 1)
        number = self.two.register(PING, 1, (GET,), organization=OPENIB)
        self.assertRaises(ServiceInUseError, self.two.register, PING, 1, (GET,))
        ask(PINGED)
        (request,) = self.came(self.two)
        self.assertEqual(Mad.parse(request.octets, 0, 256).data, PINGED.data.ljust(216, b"\0"))
        ask(evolve(PINGED, header=OrganizationHeader(organization=5)))
        (found,) = self.came(self.one)
        self.assertEqual(Mad.parse(found.octets, 0, 256).status, 0x0C)
        self.two.unregister(number)
        ask(PINGED)
        (found,) = self.came(self.one)
        self.assertEqual(Mad.parse(found.octets, 0, 256).status, 0)


def transactionOf(request: Any) -> int:
    """
    @return: the transaction id of a MAD that came.
    """
    return int.from_bytes(request.octets[8:16], "big")


class RingTests(OnRings, UserContract, MADTestCase):
    """
    C{shm0}.
    """


class PacketTests(OnPackets, UserContract, MADTestCase):
    """
    C{roce0}.
    """
