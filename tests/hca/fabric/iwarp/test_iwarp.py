"""
The fabric of iWARP: connections, their bounds, and peers that break the rules.
"""

from __future__ import annotations

import errno
import random
import socket
from typing import Any

from tests.hca.fabric.iwarp.ends import ONE, SPACE, TWO, End, IWARPTestCase
from twisted_ib import limits
from twisted_ib.errors import (
    DeviceClosedError,
    DeviceError,
    LengthError,
    NoRouteError,
    PathLostError,
    QueuePairError,
    ResourceLimitError,
    ServiceInUseError,
)
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.hca.connection import ConnectReply, RejectReason
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES
from twisted_ib.hca.device.registry import kindOf, traitsOf
from twisted_ib.hca.fabric.iwarp.iwarp import IWARP_ACCEPT_PAUSE_SECONDS
from twisted_ib.hca.fabric.iwarp.mpaservice import IWARP_AGAIN_SECONDS
from twisted_ib.hca.fabric.iwarp.protocol.mpa import Depths, StartupFrame
from twisted_ib.hca.fabric.iwarp.protocol.startup import REQUEST_SECONDS
from twisted_ib.hca.fabric.iwarp.streampath import IWARP_NO_RECEIVE_SECONDS, RECEIVE_BYTES
from twisted_ib.hca.queues.streamqueuepair import SEND


class ConnectionTests(IWARPTestCase):
    """
    Connections between two devices.
    """

    def test_messages(self) -> None:
        """
        Private data, and messages of all sizes, go both ways.
        """
        one, two = self.pair()
        self.assertEqual(two.privateData[HEADER_BYTES:], b"hello\0\0")
        self.assertEqual(one.privateData, b"welcome\0")
        sizes = (0, 1, 2, 3, 1000, 8192, 8193, 65000, 65536)
        for end, other in ((one, two), (two, one)):
            data = [bytes([size % 251]) * size for size in sizes]
            for each in data:
                while not end.queuePair.canPost():
                    self.turn()
                end.queuePair.postInline(b"", each, len(each))
            self.until(lambda: len(other.got) == len(sizes))  # noqa: B023
            self.assertEqual(other.got, data)

    def test_ipv6(self) -> None:
        """
        IPv6, between two devices of one address.
        """
        one, two = self.pair("::1", "::1")
        one.queuePair.postInline(b"", b"six", 3)
        self.until(lambda: two.got)
        self.assertEqual(two.got, [b"six"])
        self.assertRaises(NoRouteError, one.device.connect, SPACE, ONE, 7000, one)

    def test_nothingLeft(self) -> None:
        """
        When both queue pairs are closed, their connection is: no socket, timer or entry is left.
        """
        one, two = self.pair()
        one.queuePair.close()
        self.until(lambda: "disconnected" in two.events)
        two.queuePair.close()
        for end in (one, two):
            fabric = end.device.fabric
            self.until(lambda: not fabric.streams)  # noqa: B023
            self.assertIs(fabric.timers.deadline(), None)
            self.assertEqual((dict(fabric.halfOpen), fabric.soon, fabric.bells), ({}, {}, []))

    def test_disconnect(self) -> None:
        """
        A DREQ is FIN: the peer's user is told, its queue pair fails, and ours hears the end.
        """
        one, two = self.pair()
        one.device.disconnect(one.connection)
        self.until(lambda: "disconnected" in one.events and "failed" in two.events)
        self.assertLess(two.events.index("disconnected"), two.events.index("failed"))
        self.assertIsInstance(two.reason, PathLostError)

    def test_heard(self) -> None:
        """
        Who has heard that the caller is ready says so, and the caller need not say it again.
        """
        one, _ = self.pair()
        self.until(lambda: one.queuePair.path.isEstablished)

    def test_reset(self) -> None:
        """
        A connection that TCP has lost fails the queue pair.
        """
        one, two = self.pair()
        made = one.queuePair.path.socket
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        one.queuePair.path.close()
        self.until(lambda: "failed" in two.events)
        self.assertIsInstance(two.reason, PathLostError)

    def test_refused(self) -> None:
        """
        Nobody listens: a REJ says so.
        """
        one = End(self.device(ONE))
        free = socket.socket()
        free.bind((ONE, 0))
        self.addCleanup(free.close)
        one.device.connect(SPACE, ONE, free.getsockname()[1], one)
        one.call(one.path, b"", SPACE << 16 | free.getsockname()[1])
        self.until(lambda: one.events == ["rejected"])
        self.assertEqual(one.reason.reason, RejectReason.INVALID_SERVICE_ID)

    def test_rejected(self) -> None:
        """
        A listener refuses, with private data.
        """
        one, two = End(self.device(ONE)), End(self.device(TWO))
        two.isServing = False
        port = two.device.listen(SPACE, TWO, 0, two).port
        one.device.connect(SPACE, TWO, port, one)
        one.call(one.path, b"", SPACE << 16 | port)
        self.until(lambda: "requested" in two.events)
        two.connection.reject(RejectReason.CONSUMER_DEFINED, b"no\0\0", self.clock.seconds())
        self.until(lambda: one.events == ["rejected"])
        self.assertEqual(one.reason.reason, RejectReason.CONSUMER_DEFINED)
        self.assertEqual(one.reason.privateData, b"no\0\0")
        self.until(lambda: not one.device.fabric.streams and not two.device.fabric.streams)

    def test_givenUp(self) -> None:
        """
        A request that is given up before its answer is withdrawn at the listener.
        """
        one, two = End(self.device(ONE)), End(self.device(TWO))
        two.isServing = False
        port = two.device.listen(SPACE, TWO, 0, two).port
        one.device.connect(SPACE, TWO, port, one)
        one.call(one.path, b"", SPACE << 16 | port)
        self.until(lambda: "requested" in two.events)
        one.connection.abandon(self.clock.seconds())
        self.until(lambda: "withdrawn" in two.events)

    def test_deviceClosed(self) -> None:
        """
        The end of a device is an error to its peers' queue pairs, and to its own.
        """
        one, two = self.pair()
        one.device.close()
        self.assertIn("failed", one.events)
        self.until(lambda: "failed" in two.events)

    def test_forked(self) -> None:
        """
        In a forked child every use is a named error.
        """
        one, _ = self.pair()
        one.device.forked()
        self.assertRaises(DeviceClosedError, one.queuePair.postInline, b"", b"child", 5)

    def test_adopted(self) -> None:
        """
        A TCP connection that has carried something else goes on as one of the fabric.
        """
        one, two = End(self.device(ONE)), End(self.device(TWO))
        listener = socket.create_server((TWO, 0))
        self.addCleanup(listener.close)
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        two.device.services.serve(77, two)
        two.device.fabric.adopt(far, serviceID=77)
        one.call(one.device.fabric.adopt(near), b"hello", 77)
        self.until(lambda: "replied" in one.events and "established" in two.events)
        one.queuePair.postInline(b"", b"over the old connection", 23)
        self.until(lambda: two.got)
        self.assertEqual(two.got, [b"over the old connection"])

    def test_adoptedOnce(self) -> None:
        """
        An adopted connection takes one request.
        """
        one = End(self.device(ONE))
        near, far = socket.socketpair(socket.AF_UNIX)
        far.close()
        near.close()
        listener = socket.create_server((TWO, 0))
        self.addCleanup(listener.close)
        path = one.device.fabric.adopt(socket.create_connection(listener.getsockname()))
        one.call(path, b"", 77)
        one.call(path, b"", 77)
        self.until(lambda: "rejected" in one.events)


class NoReceiveTests(IWARPTestCase):
    """
    A message for which no receive is posted.
    """

    def test_waits(self) -> None:
        """
        It waits until there is one; then all come in order.
        """
        one, two = self.pair()
        two.queuePair.waits = True
        two.queuePair.posted = 0
        for number in range(5):
            one.queuePair.postInline(b"", b"%d" % number, 1)
        stream = two.queuePair.path
        self.until(lambda: stream._kept is not None)
        self.assertLessEqual(len(stream._rest), RECEIVE_BYTES)
        two.queuePair.postReceives(5)

        def tick() -> bool:
            self.clock.advance(0.05)
            two.device.tick(self.clock.seconds())
            return len(two.got) == 5

        self.until(tick)
        self.assertEqual(two.got, [b"0", b"1", b"2", b"3", b"4"])

    def test_tooLong(self) -> None:
        """
        After L{IWARP_NO_RECEIVE_SECONDS} the stream ends with a Terminate.
        """
        one, two = self.pair()
        two.queuePair.waits = True
        two.queuePair.posted = 0
        one.queuePair.postInline(b"", b"x", 1)
        self.until(lambda: two.queuePair.path._kept is not None)
        self.clock.advance(IWARP_NO_RECEIVE_SECONDS)

        def tick() -> bool:
            two.device.tick(self.clock.seconds())
            self.clock.advance(0.05)
            return "failed" in one.events

        self.until(tick)
        self.assertIsInstance(one.reason, QueuePairError)
        self.assertIn("no receive is posted", str(one.reason))
        self.assertIn("failed", two.events)


class ListenerTests(IWARPTestCase):
    """
    Services, and half-open connections.
    """

    def test_portTaken(self) -> None:
        """
        A TCP port that a program listens on is no service's: the error names it.
        """
        listener = socket.create_server((ONE, 0))
        self.addCleanup(listener.close)
        port = listener.getsockname()[1]
        device = self.device(ONE)
        with self.assertRaises(ServiceInUseError) as caught:
            device.listen(SPACE, ONE, port, End(device))
        self.assertIn(f"TCP port {port} of {ONE}", str(caught.exception))
        listener.close()
        device.listen(SPACE, ONE, port, End(device)).close()

    def test_isPortFree(self) -> None:
        """
        A number that another program's socket has, whether it listens or not, is not an active side's; that
        of a connection of our own may be shared.
        """
        fabric = self.device(ONE).fabric
        with socket.create_server((ONE, 0)) as listener, socket.socket() as client:
            client.connect(listener.getsockname())
            for taken in (listener, client):
                self.assertFalse(fabric.isPortFree(taken.getsockname()[1]))
            with socket.socket() as own:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                own.bind((ONE, 0))
                own.connect(listener.getsockname())
                self.assertTrue(fabric.isPortFree(own.getsockname()[1]))

    def test_portSpaces(self) -> None:
        """
        All port spaces share TCP's.
        """
        device = self.device(ONE)
        service = device.listen(SPACE, ONE, 0, End(device))
        self.assertRaises(ServiceInUseError, device.listen, SPACE + 1, ONE, service.port, End(device))
        service.close()
        device.listen(SPACE + 1, ONE, service.port, End(device))

    def test_manyAtOnce(self) -> None:
        """
        A program may connect a hundred times at once, as cmtime.
        """
        end, where = self.listening()
        made = [self.socket(where) for _ in range(100)]
        self.until(lambda: end.device.fabric.halfOpen.total() == len(made))
        for each in made:
            each.close()

    def test_halfOpen(self) -> None:
        """
        Of one address so many connections may be without a Request; they end after a time.
        """
        most = 8
        self.patch(limits, "CM_HALF_OPEN_PER_ADDRESS", most)
        end, where = self.listening()
        fabric = end.device.fabric
        made = [self.socket(where) for _ in range(most + 1)]
        self.until(lambda: end.device.counters["iwarp_half_open_exceeded"] == 1)
        self.assertEqual(fabric.halfOpen.total(), most)
        self.assertTrue(self.isOver(made[-1]))
        self.clock.advance(REQUEST_SECONDS)
        end.device.tick(self.clock.seconds())
        self.until(lambda: all(map(self.isOver, made)))
        for each in made:
            each.close()
        self.until(lambda: not fabric.streams)
        self.assertEqual(dict(fabric.halfOpen), {})

    def test_privateData(self) -> None:
        """
        More private data than MPA carries (RFC 5044 7.1.1) is a refusal of our own; nothing is sent.
        """
        end, (host, port) = self.listening()
        caller = End(self.device(ONE))
        caller.device.connect(SPACE, host, port, caller)
        caller.call(caller.path, bytes(HEADER_BYTES + 513), SPACE << 16 | port)
        self.until(lambda: caller.events)
        self.assertEqual(caller.events, ["rejected"])
        self.assertEqual(caller.reason.reason, RejectReason.UNSUPPORTED_REQUEST)
        self.until(lambda: not end.device.fabric.streams)
        self.assertEqual((caller.device.fabric.streams, end.events), ({}, []))

    def test_addresses(self) -> None:
        """
        An address that is not of this host is refused by name; other addresses are no way to queue pairs.
        """
        self.assertRaises(DeviceError, self.device, "192.0.2.77")
        device = self.device(ONE)
        self.assertRaises(NoRouteError, device.fabric.reachGID, device.gid, None)
        self.assertRaises(NoRouteError, device.fabric.join, device.gid)

    def test_traits(self) -> None:
        """
        It is an RNIC, of RC alone, and is used by name alone.
        """
        traits = traitsOf("iwarp7")
        self.assertEqual(kindOf("iwarp7").name, "iwarp")
        self.assertEqual(traits.nodeType, NodeType.RNIC)
        self.assertEqual(traits.services, {QPType.RC})
        self.assertFalse(traits.joinsWildcards)


class ExhaustedTests(IWARPTestCase):
    """
    A process without descriptors.
    """

    def test_pause(self) -> None:
        """
        The listener rests for a time, and does not keep the device busy; then it accepts what has waited.
        """
        end, where = self.listening()
        fabric: Any = end.device.fabric
        (listener,) = fabric._listeners.values()

        class Exhausted:
            """
            The listening socket, with no descriptor for a connection.
            """

            fileno = listener.socket.fileno

            def accept(self) -> None:
                """
                See accept(2).
                """
                raise OSError(errno.EMFILE, "Too many open files")

        real, listener.socket = listener.socket, Exhausted()
        made = self.socket(where)
        counters = end.device.counters
        self.until(lambda: counters["iwarp_accepts_failed"])
        for _ in range(20):
            end.device.progress()
        self.assertEqual(counters["iwarp_accepts_failed"], 1)
        listener.socket = real
        self.clock.advance(IWARP_ACCEPT_PAUSE_SECONDS)
        end.device.tick(self.clock.seconds())
        made.sendall(StartupFrame(False, b"x").pack())
        self.until(lambda: "requested" in end.events)


class HostileTests(IWARPTestCase):
    """
    Peers that break the rules end their own connection.
    """

    def test_startup(self) -> None:
        """
        A wrong key, revision or length, and octets behind a Request, close the connection, and count.
        """
        end, where = self.listening()
        end.isServing = False
        request = StartupFrame(False, b"x").pack()
        bad = (
            b"GET / HTTP/1.1\r\n\r\n",
            request[:17] + b"\x07" + request[18:],
            request[:18] + b"\xff\xff",
            request + b"early",
            StartupFrame(False, bytes(200)).pack(),
        )
        for octets in bad:
            made = self.socket(where)
            made.sendall(octets)
            self.until(lambda: self.isOver(made))  # noqa: B023
            made.close()
        self.until(lambda: not end.device.fabric.streams)
        counters = end.device.counters
        self.assertEqual((counters["iwarp_startup_failed"], counters["iwarp_private_data_exceeded"]), (4, 1))

    def test_mutated(self) -> None:
        """
        Damaged FPDUs raise nothing, leave nothing, and never touch what was not granted.
        """
        maker = random.Random(21)
        end, where = self.listening()
        request = StartupFrame(False, b"x").pack()
        device = end.device
        pd = device.memory.allocateDomain()
        canary = bytearray(b"\xa5" * 4096)
        region = device.memory.register(memoryview(canary), 1, pd)
        write = bytes.fromhex("0012c140") + region.key.to_bytes(4, "big") + region.address.to_bytes(8, "big")
        send = bytes.fromhex("001541430000000000000000000000010000000068692100" + "00000000")
        for _ in range(150):
            made = self.socket(where)
            made.sendall(request)
            count = end.events.count("requested")
            self.until(lambda: end.events.count("requested") > count)  # noqa: B023
            stream = bytearray(send + write + b"evil" + bytes(4) + send)
            for _ in range(maker.randrange(1, 6)):
                stream[maker.randrange(len(stream))] = maker.randrange(256)
            made.sendall(stream)
            made.shutdown(socket.SHUT_WR)
            self.until(lambda: self.isOver(made))  # noqa: B023
            made.close()
            end.queuePair.close()
            end.connection.abandon(self.clock.seconds())
        self.until(lambda: not device.fabric.streams)
        self.assertEqual(canary, b"\xa5" * 4096)
        self.assertEqual(len(device.fabric.service.connections), 0)
        self.assertIs(device.fabric.timers.deadline(), None)

    def test_floodOfReads(self) -> None:
        """
        A peer that sends more than it may does not make this side keep more than one FPDU.
        """
        one, two = self.pair()
        path = one.queuePair.path
        while path.post(SEND | one.queuePair.remote, b"", b"x" * 60000, 60000):
            pass
        for _ in range(50):
            self.turn()
        self.assertLessEqual(len(two.queuePair.path._rest) if two.queuePair.path else 0, RECEIVE_BYTES)


class ConnectionBoundTests(IWARPTestCase):
    """
    The bounds of connections.
    """

    def test_tooMany(self) -> None:
        """
        Beyond the most connections none is asked for.
        """
        one, (_, port) = End(self.device(ONE)), self.listening()[1]
        one.device.connect(SPACE, TWO, port, one)
        self.patch(limits, "CM_CONNECTIONS", 0)
        self.assertRaises(ResourceLimitError, one.call, one.path, b"", SPACE << 16 | port)
        self.assertEqual(one.device.fabric.streams, {})

    def test_again(self) -> None:
        """
        A request that finds no room is offered again, for a time, and refused then.
        """
        for bound in ("CM_CONNECTIONS", "CM_HALF_OPEN_PATHS"):
            end, where = self.listening()
            counters, most = end.device.counters, getattr(limits, bound)
            for isLasting in (False, True):
                self.patch(limits, bound, 0)
                counters.clear()
                made = self.socket(where)
                made.sendall(StartupFrame(False, b"x").pack())
                self.until(lambda: counters["iwarp_requests_exceeded"] == 1)  # noqa: B023
                if not isLasting:
                    self.patch(limits, bound, most)
                for _ in range(9 if isLasting else 1):
                    self.clock.advance(IWARP_AGAIN_SECONDS)
                    end.device.tick(self.clock.seconds())
                    self.turn()
                self.assertEqual(end.events, ["requested"])
                if isLasting:
                    self.until(lambda: self.isOver(made))  # noqa: B023
                    self.assertEqual(counters["iwarp_requests_exceeded"], 10)
            self.patch(limits, bound, most)
            self.devices.pop().close()

    def test_longReply(self) -> None:
        """
        A request whose answer is too long to be sent can be refused yet.
        """
        end, where = self.listening()
        end.isServing = False
        made = self.socket(where)
        made.sendall(StartupFrame(False, b"x").pack())
        self.until(lambda: end.events)
        reply = ConnectReply(privateData=b"x" * 4000)
        self.assertRaises(LengthError, end.connection.accept, reply, self.clock.seconds())
        now = self.clock.seconds()
        self.assertTrue(end.connection.reject(RejectReason.CONSUMER_DEFINED, b"", now))
        self.until(lambda: self.isOver(made))

    def test_silence(self) -> None:
        """
        An answer is awaited for a time, and so is the ready-to-receive message.
        """
        self.patch(limits, "CM_ANSWER_SECONDS", 0.5)
        one, (end, (_, port)) = End(self.device(ONE)), self.listening()
        end.isServing = False
        one.device.connect(SPACE, TWO, port, one)
        one.call(one.path, b"", SPACE << 16 | port)
        self.until(lambda: end.events)
        made = self.socket((TWO, port))
        made.sendall(StartupFrame(False, depths=Depths(4, 4, True, zeroWrite=True)).pack())
        end.isServing = True
        self.until(lambda: len(end.events) == 2)
        self.clock.advance(0.5)
        for device in self.devices:
            device.tick(self.clock.seconds())
        self.until(lambda: len(end.events) == 4)
        self.assertEqual(one.events, ["unreachable"])
        self.assertEqual(sorted(end.events[2:]), ["unreachable", "withdrawn"])
        for device in self.devices:
            service = device.fabric.service
            self.assertEqual((service.connections, service.unanswered), ({}, set()))
