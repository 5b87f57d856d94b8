"""
Management datagrams between HCAs on each fabric: classes of one file and one line each, what is dropped and
what is answered.
"""

from __future__ import annotations

import random
from typing import Any

from attrs import evolve

from tests.hca.hcas import User, settle
from tests.hca.mad.cases import MADTestCase, OnPackets, OnRings, OnSockets
from tests.hca.mad.toys.echo import CLASS, EchoAgent
from tests.hca.mad.toys.node import NodeAgent
from twisted_ib.errors import DeviceError
from twisted_ib.hca.wire.cm.messages import REQ, RTU
from twisted_ib.hca.wire.mad import cm
from twisted_ib.hca.wire.mad.classes import COMMUNICATION, DEVICE_MANAGEMENT, SUBNET, SUBNET_DIRECTED
from twisted_ib.hca.wire.mad.mad import (
    BAD_VERSION,
    CM_VERSION,
    GET,
    GET_RESPONSE,
    SEND,
    SET,
    TRAP_REPRESS,
    UNSUPPORTED_METHOD,
    UNSUPPORTED_METHOD_ATTRIBUTE,
    Mad,
)
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE

TRAP = 0x05


class AgentContract:
    """
    Queue pair 1.
    """

    def test_response(self: Any) -> None:
        """
        The agent of another HCA answers, and that of the own HCA.
        """
        for target in (self.b, self.a):
            (response,) = self.ask(EchoAgent, target)
            mad = response.mad
            self.assertEqual((mad.method, mad.status, mad.attribute), (GET_RESPONSE, 0, 0x20))
            self.assertEqual(mad.data, bytes(range(232))[::-1])
        self.assertEqual((self.a.mads._requests, self.a.deadline()), ({}, None))

    def test_again(self: Any) -> None:
        """
        A request whose response is lost is sent again with the same transaction id, and answered once.
        """
        agent = self.of(EchoAgent, self.b).agent
        came, received = [], agent.received
        agent.received = came.append
        responses = self.ask(EchoAgent, self.b, timeout=2.0)
        self.wait(1.9)
        self.assertEqual((len(came), responses), (1, []))
        agent.received = lambda request: (came.append(request), received(request), received(request))
        self.wait(0.2)
        self.assertEqual([request.transaction for request in came], [came[0].transaction] * 2)
        self.assertEqual([response.mad.status for response in responses], [0])
        self.assertEqual(self.a.counters["management_unmatched"], 1)
        self.wait(10.0)
        self.assertEqual((len(came), len(responses)), (2, 1))

    def test_silent(self: Any) -> None:
        """
        A request that nobody answers is given up; a response that is late is dropped.
        """
        agent = self.of(EchoAgent, self.b).agent
        came, received = [], agent.received
        agent.received = came.append
        responses = self.ask(EchoAgent, self.b, timeout=1.0, retries=2)
        for n in range(3):
            self.assertEqual((len(came), responses), (n + 1, []))
            self.wait(1.0)
        self.assertEqual((len(came), responses, self.a.counters["management_timeouts"]), (3, [None], 1))
        received(came[0])
        self.settle()
        self.assertEqual((responses, self.a.counters["management_unmatched"]), ([None], 1))

    def test_cancelled(self: Any) -> None:
        """
        The response to a cancelled request is dropped.
        """
        own, responses = self.of(EchoAgent, self.a), []
        request = own.agent.send(self.address(self.b), own.question(), responses.append)
        request.cancel()
        request.cancel()
        self.settle()
        self.assertEqual((responses, self.a.counters["management_unmatched"]), ([], 1))
        self.assertEqual((self.a.mads._requests, len(self.a.addressPaths)), ({}, 0))

    def test_oneWay(self: Any) -> None:
        """
        A MAD without a response arrives, and nothing is kept of it.
        """
        came: list[Any] = []
        for device, received in ((self.a, print), (self.b, came.append)):
            agent = device.mads.register(DEVICE_MANAGEMENT, 1, (TRAP,), received)
            if device is self.a:
                sender = agent
        mad = Mad(0, 0, TRAP, 0, 2, b"notice")
        self.assertIsNone(sender.send(self.address(self.b), mad))
        self.settle()
        (request,) = came
        self.assertEqual(request.mad.data[:6], b"notice")
        self.assertEqual((self.a.mads._requests, len(self.a.addressPaths)), ({}, 0))

    def test_closed(self: Any) -> None:
        """
        An agent that is closed takes nothing; a device that is closed answers its requests with nothing.
        """
        agent = self.of(EchoAgent, self.b).agent
        agent.close()
        agent.close()
        (response,) = self.ask(EchoAgent, self.b)
        self.assertEqual(response.mad.status, UNSUPPORTED_METHOD_ATTRIBUTE)
        self.b.mads.register(CLASS, 1, (SET,), lambda request: None)
        responses = self.ask(EchoAgent, self.b)
        self.a.close()
        self.assertEqual(responses, [None])

    def test_closedByRaising(self: Any) -> None:
        """
        Each request of a device that closes is answered, and the device closes, whatever the others raise.
        """
        agent, answered = self.of(EchoAgent, self.a).agent, []

        def answer(response: object) -> None:
            answered.append(response)
            raise ZeroDivisionError(len(answered))

        for _ in range(3):
            agent.send(self.address(self.b), Mad(CLASS, 1, GET, 0, 1), answer)
        self.a.createQueuePair(User())
        error = self.assertRaises(ZeroDivisionError, self.a.close)
        self.assertEqual((answered, error.args), ([None] * 3, (1,)))
        self.assertEqual((self.a.mads._requests, len(self.a.addressPaths)), ({}, 0))
        self.assertEqual((self.a.queuePairs, self.a.fabric.paths()), ({}, []))

    def test_unregistered(self: Any) -> None:
        """
        A Get or Set that no agent takes is answered with the reason; other methods are not.
        """
        own = self.of(EchoAgent, self.a).agent
        for class_, version, method, status in (
            (DEVICE_MANAGEMENT, 1, GET, UNSUPPORTED_METHOD_ATTRIBUTE),
            (DEVICE_MANAGEMENT, 1, SET, UNSUPPORTED_METHOD_ATTRIBUTE),
            (CLASS, 2, SET, BAD_VERSION),
            (CLASS, 1, GET, UNSUPPORTED_METHOD),
            (COMMUNICATION, CM_VERSION, GET, UNSUPPORTED_METHOD),
            (DEVICE_MANAGEMENT, 1, TRAP, None),
            (CLASS, 1, TRAP, None),
            (0, 0, 0, None),
            (255, 255, 0x7F, None),
        ):
            responses: list[Any] = []
            own.managementClass, own.version = class_, version
            mad = Mad(0, 0, method, 0, 1, b"asked")
            own.send(self.address(self.b), mad, responses.append, retries=0)
            self.settle()
            self.wait(1.0)
            (response,) = responses
            found = None if response is None else response.mad
            expected = evolve(mad, managementClass=class_, classVersion=version, method=GET_RESPONSE)
            if status is None:
                self.assertIsNone(found)
            else:
                found = evolve(found, transaction=0, data=bytes(found.data)[:5], header=None)
                self.assertEqual(found, evolve(expected, status=status))
        self.assertEqual(self.b.counters["management_unsupported"], 9)

    def test_dropped(self: Any) -> None:
        """
        One counter for each way of being wrong.
        """
        good = self.of(EchoAgent, self.a).question().pack()
        message = cm.wrap(RTU.attribute, RTU().pack(), 5).pack()

        def headed(class_: int, method: int, attribute: int = 0) -> bytes:
            return Mad(class_, 1, method, 7, attribute).pack()

        for name, number, octets, key in (
            ("management_malformed", 1, b"\2" + good[1:], None),
            ("management_malformed", 1, good[:-4], None),
            ("management_malformed", 1, good + b"more", None),
            ("management_malformed", 1, b"", None),
            ("qkey_violations", 1, good, 0x11111111),
            ("qkey_violations", 1, good, 0),
            ("management_wrong_queue_pair", 1, headed(SUBNET, GET), None),
            ("management_wrong_queue_pair", 1, headed(SUBNET_DIRECTED, SET), None),
            ("management_unmatched", 1, headed(CLASS, GET_RESPONSE), None),
            ("management_unmatched", 1, headed(CLASS, TRAP_REPRESS), None),
            ("management_unmatched", 1, headed(99, 0xFF), None),
            ("management_unsupported", 1, message[:3] + bytes([GET]) + message[4:], None),
            ("management_unsupported", 1, message[:2] + b"\1" + message[3:], None),
        ):
            record = self.record(octets) if key is None else self.record(octets, key)
            self.assertEqual(self.counted(number, record), {name: 1}, octets[:24].hex())
        self.assertEqual((self.a.counters["management_unmatched"], self.b.mads._requests), (0, {}))

    def test_anotherPeer(self: Any) -> None:
        """
        Only the peer that was asked can answer.
        """
        other = self.device()
        self.of(EchoAgent, self.b).agent.received = (came := []).append
        responses = self.ask(EchoAgent, self.b)
        own = self.of(EchoAgent, other).agent
        reply = evolve(came[0].mad, method=GET_RESPONSE)
        other.mads._draw = lambda agent: (1, CLASS, reply.transaction)
        own.send(self.address(self.a), reply)
        settle(self.a, self.b, other)
        self.assertEqual((responses, self.a.counters["management_unmatched"]), ([], 1))

    def test_connectionManagement(self: Any) -> None:
        """
        Connection management is an agent among others: its messages arrive as whole MADs too, requests of
        strangers after the rest of a batch.
        """
        came: list[tuple[int, bytes]] = []
        self.b.managementReceived = lambda path, attribute, buffer, start, stop: came.append(
            (attribute, bytes(buffer[start:stop]))
        )
        messages = [REQ(5, localQPN=6), RTU(5, 7)]
        self.write(1, self.record(cm.wrap(0x10, messages[0].pack(), 5).pack()))
        self.write(1, self.record(cm.wrap(0x14, messages[1].pack(), 5).pack()))
        self.settle()
        self.assertEqual(came, [(0x14, messages[1].pack()), (0x10, messages[0].pack())])

    def test_random(self: Any) -> None:
        """
        2,000 datagrams of all classes and lengths: nothing is raised, nothing is kept.  Seed 15.
        """
        self.hostile(2000, random.Random(15))

    def hostile(self: Any, count: int, dice: random.Random) -> None:
        """
        Send that many, and look at what they leave.
        """
        message = cm.wrap(REQ.attribute, REQ(5, localQPN=6).pack(), 5).pack()
        for n in range(count):
            whole = dice.random() < 0.8
            octets = dice.randbytes(256 if whole else 4 * dice.randrange(80))
            if whole and dice.random() < 0.9:
                class_ = dice.choice((SUBNET, SUBNET_DIRECTED, COMMUNICATION, CLASS, dice.randrange(256)))
                method = dice.choice((GET, SET, SEND, GET_RESPONSE, TRAP, dice.randrange(256)))
                octets = bytes((1, class_, dice.choice((1, 2)), method)) + octets[4:]
            elif whole:
                octets = message[: dice.randrange(256)]
                octets += dice.randbytes(256 - len(octets))
            record = self.record(octets)
            if dice.random() < 0.1:
                record = record[: 40 + 4 * dice.randrange(1, (len(record) - 36) // 4)]
            elif dice.random() < 0.1:
                record = dice.randbytes(len(record))
            opcode = dice.choice((UD_SEND_ONLY,) * 8 + (UD_SEND_ONLY_IMMEDIATE, UD_SEND_ONLY | 0x80))
            self.write(dice.choice((0, 1, 1, 1)), record, opcode)
            if not n % 50:
                self.settle()
        self.settle()
        dropped = {name: n for name, n in self.b.counters.items() if name.startswith("management")}
        self.assertGreater(sum(dropped.values()), count // 2)
        for device in (self.a, self.b):
            self.assertEqual((device.mads._requests, len(device.addressPaths)), ({}, 0))
        self.assertEqual(len(self.ask(EchoAgent, self.b)), 1)


class SubnetContract:
    """
    Queue pair 0.
    """

    def test_description(self: Any) -> None:
        """
        The agent of another HCA answers on queue pair 0.
        """
        (response,) = self.ask(NodeAgent, self.b)
        self.assertEqual((response.number, response.source, response.mad.status), (0, 0, 0))
        self.assertEqual(response.mad.data, (b"toy %016x" % self.b.guid).ljust(64, b"\0"))

    def test_status(self: Any) -> None:
        """
        A directed route response says that it returns, whatever its status; a GMP, an odd length and another
        operation are dropped.
        """
        responses: list[Any] = []
        own = self.of(NodeAgent, self.a)
        own.agent.managementClass = SUBNET_DIRECTED
        own.agent.send(self.address(self.b), own.question(), responses.append)
        self.settle()
        self.assertEqual(responses[0].mad.status, 0x8000 | UNSUPPORTED_METHOD_ATTRIBUTE)
        good = self.record(own.question().pack(), 0, 0)
        other = self.record(self.of(EchoAgent, self.a).question().pack())
        for name, record, opcode in (
            ("management_wrong_queue_pair", other, UD_SEND_ONLY),
            ("management_malformed", good[:-4], UD_SEND_ONLY),
            ("management_malformed", good, UD_SEND_ONLY_IMMEDIATE),
            ("datagrams_misaddressed", self.record(own.question().pack(), gid=5), UD_SEND_ONLY),
        ):
            self.assertEqual(self.counted(0, record, opcode), {name: 1})


class LengthContract:
    """
    Records of both queue pairs on paths that keep records.
    """

    def test_lengths(self: Any) -> None:
        """
        A record that is neither a whole MAD nor the short form of a CM message is counted and dropped.
        """
        came: list[int] = []
        self.b.managementReceived = lambda path, attribute, buffer, start, stop: came.append(stop - start)
        for number in (0, 1):
            for size in range(400):
                self.write(number, bytes(size))
                if not size % 50:
                    self.settle()
        self.settle()
        # A whole MAD of zeros has no GRH.
        self.assertEqual((self.b.counters["management_malformed"], came), (799, [232]))


class LoopbackTests(AgentContract, SubnetContract, LengthContract, MADTestCase):
    """
    C{lo0}.
    """


class RingTests(OnRings, AgentContract, SubnetContract, LengthContract, MADTestCase):
    """
    C{shm0} over rings.
    """


class SocketTests(OnSockets, AgentContract, SubnetContract, LengthContract, MADTestCase):
    """
    C{shm0} over sockets.
    """


class PacketTests(OnPackets, AgentContract, MADTestCase):
    """
    C{roce0}.
    """

    def test_noSubnet(self) -> None:
        """
        There is no queue pair 0: no agent can be registered, and packets for it are dropped.
        """
        self.assertEqual([agent.__class__ for agent in self.agents], [EchoAgent] * 2)
        self.assertRaises(DeviceError, NodeAgent, self.a)
        record = self.record(Mad(SUBNET, 1, GET, 1, 0x10).pack())
        self.assertEqual(self.counted(0, record), {"packets_unknown_qp": 1})
