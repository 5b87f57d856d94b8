"""
Tests of L{twisted_ib.rds.media.rcaddresses} and L{twisted_ib.rds.media.rcconnect} between HCAs with IP
addresses: RDS as Linux has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from tests.hca.memorylink import Datagram, Wire, deviceOn
from tests.rds.ends import Process, ProcessesTestCase
from twisted_ib import limits
from twisted_ib.hca.base.operation import SILENT, SOLICITED
from twisted_ib.hca.connection import ConnectRequest, PathRecord, RejectReason
from twisted_ib.hca.connection.rdmacm import RDMACMHeader, gidOf
from twisted_ib.hca.connection.request import ANY_PATH
from twisted_ib.hca.wire.cm.messages import RTU
from twisted_ib.hca.wire.headers import BTH, ICRC
from twisted_ib.hca.wire.opcodes import SEND_LAST, SEND_ONLY
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.rds import queues
from twisted_ib.rds.media import rc
from twisted_ib.rds.media.rcconnection import RCConnection
from twisted_ib.rds.protocol.wire import HEADER, NO_EXTENSIONS, NO_PADDING, PrivateData, packChecksummed

HERE, THERE, SIX, OTHER = "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"


def isRTU(datagram: Datagram) -> bool:
    """
    @return: Whether it has an RTU, whose attribute is behind BTH, DETH and half a MAD's header.
    """
    return int.from_bytes(datagram[4][36:38], "big") == RTU.attribute


class AddressedTestCase(ProcessesTestCase):
    """
    Hosts on a wire in memory.
    """

    device = "roce0"

    def setUp(self) -> None:
        """
        Two hosts.
        """
        super().setUp()
        self.wire = Wire()
        self.channels: dict[tuple[Any, str], DeviceChannel] = {}
        self.patch(rc, "channelFor", self.channelFor)
        self.a, self.b = self.process(), self.process()
        self.one, self.two = self.a.listen(4000, HERE), self.b.listen(5000, THERE)

    def channelFor(self, reactor: Any, name: str, address: str) -> DeviceChannel:
        """
        @return: The device of an address.
        """
        assert name == "roce0"
        channel = self.channels.get((reactor, address))
        if channel is None:
            device = deviceOn(self.wire, address, reactor.seconds)
            device.address = address
            channel = self.channels[reactor, address] = DeviceChannel(reactor, device)
        return channel

    def close(self) -> None:
        """
        Give everything back.
        """
        for channel in self.channels.values():
            if not channel.device.closed:
                channel.close()

    def awaited(self, process: Process) -> int:
        """
        @return: How many RTUs a process awaits.
        """
        medium = process.medium
        return len(medium.expected) + sum(parking.ofListener[medium.listener] for parking in medium.parking)

    def session(self, process: Process) -> RCConnection:
        """
        @return: The one of a process.
        """
        (found,) = process.medium.sessions.values()
        assert isinstance(found, RCConnection)
        return found


class AddressedTests(AddressedTestCase):
    """
    Datagrams between hosts.
    """

    def test_sizes(self) -> None:
        """
        Of any size, both ways, in order.
        """
        sizes = [0, 1, 100, 4095, 4096, 4097, 9000, 1 << 20, 3]
        sent = [bytes([index]) * size for index, size in enumerate(sizes)]
        for data in sent:
            self.one.transport.write(data, (THERE, 5000))
        self.pass_(1.0)
        self.assertEqual(self.two.data, sent)
        self.assertEqual({address for _, address in self.two.got}, {(HERE, 4000)})
        for data in sent:
            self.two.transport.write(data, (HERE, 4000))
        self.pass_(1.0)
        self.assertEqual(self.one.data, sent)

    def test_ipv6(self) -> None:
        """
        IPv6 has a service of its own.
        """
        c, d = self.process(), self.process()
        one, two = c.listen(4000, SIX), d.listen(5000, OTHER)
        one.transport.write(b"x" * 5000, (OTHER, 5000))
        self.pass_(1.0)
        self.assertEqual(two.got, [(b"x" * 5000, (SIX, 4000))])

    def test_oneForTwoAddresses(self) -> None:
        """
        All sockets of two addresses share one queue pair.
        """
        ones = [self.one, *(self.a.listen(port, HERE) for port in (4001, 4002))]
        twos = [self.two, *(self.b.listen(port, THERE) for port in (5001, 5002))]
        for one in ones:
            for port in (5000, 5001, 5002):
                one.transport.write(b"x", (THERE, port))
        self.pass_(1.0)
        self.assertEqual([len(two.got) for two in twos], [3, 3, 3])
        for process in (self.a, self.b):
            (session,) = process.medium.sessions.values()
            self.assertEqual(len(session.channel.device.queuePairs), 1)

    def test_duel(self) -> None:
        """
        If both ends connect at once, both reject; after a while there is one connection.
        """
        self.one.transport.write(b"a", (THERE, 5000))
        self.two.transport.write(b"b", (HERE, 4000))
        self.pass_(5.0, 0.01)
        self.assertEqual((self.one.data, self.two.data), ([b"b"], [b"a"]))
        self.session(self.a)
        self.session(self.b)

    def test_duelWithLinux(self) -> None:
        """
        The no has no words: Linux (6.1) takes notice of a REJ only if its private data begin with a number
        that it knows, such as 0; else it waits for ever for an answer, and rejects everybody meanwhile.
        """
        self.wire.log = []
        self.one.transport.write(b"a", (THERE, 5000))
        self.two.transport.write(b"b", (HERE, 4000))
        self.pass_(5.0, 0.01)
        mads = [data[20:-4] for *_, data in self.wire.log if data[0] == 0x64]
        # The attribute is at 16, a REJ's reason at 10 of what follows the header, its private data at 84.
        rejects = [mad[24:] for mad in mads if mad[16:18] == b"\0\x12"]
        self.assertTrue(rejects)
        for reject in rejects:
            self.assertEqual((reject[10:12], reject[84:]), (b"\0\x1c", bytes(148)))

    def test_reconnected(self) -> None:
        """
        A connection that breaks is made again, and nothing is lost or comes twice.
        """
        sent = []
        for index in range(10):
            for part in range(30):
                sent.append(b"%d.%d" % (index, part))
                self.one.transport.write(sent[-1], (THERE, 5000))
            self.settle()
            process = (self.a, self.b)[index % 2]
            for session in list(process.medium.sessions.values()):
                session.broken(rc.PathLostError("broken by the test"))
            self.pass_(0.3, 0.02)
        self.pass_(3.0)
        self.assertEqual(self.two.data, sent)

    def test_clean(self) -> None:
        """
        When all sockets are closed nothing is left.
        """
        self.one.transport.write(b"x", (THERE, 5000))
        self.pass_(1.0)
        closed = [end.socket.stopListening() for end in (self.one, self.two)]
        self.pass_(1.0)
        for each in closed:
            self.successResultOf(each)
        for channel in self.channels.values():
            self.assertEqual((len(channel.device.queuePairs), channel.users), (0, {}))

    def test_acknowledged(self) -> None:
        """
        Messages are acknowledged with what is sent, or after a moment.
        """
        for index in range(100):
            self.one.transport.write(b"%d" % index, (THERE, 5000))
        self.settle()
        (path,) = self.a.network.paths.values()
        self.pass_(1.0)
        self.assertEqual(len(path.machine.unacknowledged), 0)
        self.one.transport.write(b"y", (THERE, 5000))
        self.settle()
        self.assertEqual(len(path.machine.unacknowledged), 1)
        self.two.transport.write(b"x", (HERE, 4000))
        self.settle()
        self.assertEqual(len(path.machine.unacknowledged), 0)

    def test_paused(self) -> None:
        """
        A host without memory makes the peer wait.
        """
        self.patch(limits, "RDS_RECEIVE_BUDGET", 1000)
        self.patch(queues, "RDS_RECEIVE_MOST", 2000)
        self.two.transport.pauseProducing()
        sent = [b"%d" % index * 1000 for index in range(200)]
        for data in sent:
            self.one.transport.write(data, (THERE, 5000))
        self.pass_(1.0)
        self.assertLess(self.two.socket._receivedBytes, 20_000)
        device = self.channels[self.b.reactor, THERE].device
        self.assertGreater(device.counters["send_rnr_err"], 10)
        self.two.transport.resumeProducing()
        self.pass_(3.0)
        self.assertEqual(self.two.data, sent)
        self.assertIsNone(self.session(self.b).work)
        self.assertEqual(self.b.network.counters["conn_reset"], 0)

    def test_silent(self) -> None:
        """
        A host that is silent for too long gets a DREQ, as it may not be gone, and then another connection.
        """
        self.one.transport.write(b"x", (THERE, 5000))
        self.pass_(1.0)
        session = self.session(self.b)
        self.wire.log = []
        path: Any = self.session(self.a).queuePair.path
        path.refused(path.position(), SILENT)
        self.pass_(1.0)
        mads = [data[20:-4] for source, *_, data in self.wire.log if data[0] == 0x64 and source == HERE]
        self.assertIn(b"\0\x15", [mad[16:18] for mad in mads])
        self.assertTrue(session.closed)
        self.one.transport.write(b"y", (THERE, 5000))
        self.pass_(1.0)
        self.assertEqual(self.two.data, [b"x", b"y"])


class LossTests(AddressedTestCase):
    """
    A wire that loses, repeats and swaps packets.
    """

    def setUp(self) -> None:
        """
        Little memory for what is not read.
        """
        super().setUp()
        self.patch(limits, "RDS_RECEIVE_BUDGET", 4000)
        self.patch(queues, "RDS_RECEIVE_MOST", 20_000)

    def bad(self, dice: Random) -> Callable[[Datagram], Iterable[Datagram]]:
        """
        @return: What the wire makes of a packet.
        """
        held: list[Datagram] = []

        def pass_(datagram: Datagram) -> Iterable[Datagram]:
            fate = dice.random()
            if fate < 0.03:
                return ()
            if fate < 0.05:
                return datagram, datagram
            if fate < 0.08 and not held:
                held.append(datagram)
                return ()
            return (datagram, held.pop()) if held and fate < 0.3 else (datagram,)

        return pass_

    def play(self, seed: int, patient: bool) -> None:
        """
        Messages of many sizes both ways, to an end that pauses, and operations among them.

        @param patient: Whether the first message of a batch is sent at once.
        """
        dice = Random(seed)
        self.wire.pass_ = self.bad(dice)
        for channel in self.channels.values():
            channel.device.fabric.patient = patient
        memory = self.two.socket.registerMemory(4096)
        sent: list[bytes] = []
        back: list[bytes] = []
        operations: list[Any] = []
        for number in range(200):
            sent.append(bytes([number]) * dice.choice((0, 1, 60, 1000, 4096, 4097, 9000)))
            self.one.transport.write(sent[-1], (THERE, 5000))
            if dice.random() < 0.3:
                back.append(b"%d" % number * dice.choice((1, 500)))
                self.two.transport.write(back[-1], (HERE, 4000))
            if number > 100 and dice.random() < 0.2:
                address = THERE, 5000
                operations += (
                    self.one.socket.rdmaWrite(memory.cookie, bytes(800), address, datagram=None),
                    self.one.socket.rdmaRead(memory.cookie, 3000, address, datagram=None),
                )
            if dice.random() < 0.2:
                self.pass_(0.01, 0.01)
            if dice.random() < 0.05:
                self.two.transport.pauseProducing()
            if dice.random() < 0.1:
                self.two.transport.resumeProducing()
        self.two.transport.resumeProducing()
        for _ in range(200):
            self.pass_(0.2)
            done = all(each.called for each in operations)
            if (len(self.two.data), len(self.one.data), done) == (len(sent), len(back), True):
                break
        self.assertEqual((self.two.data, self.one.data), (sent, back))
        for each in operations:
            self.successResultOf(each)
        for process in (self.a, self.b):
            self.assertEqual(process.network.counters["conn_reset"], 0)

    def test_batches(self) -> None:
        """
        Nothing is lost, repeated or swapped, and the connection lasts.
        """
        self.play(1, False)

    def test_atOnce(self) -> None:
        """
        Nor where messages are sent at once.
        """
        self.play(2, True)


class FormTests(AddressedTestCase):
    """
    The messages on the queue pair.
    """

    def messages(self, source: str) -> list[bytes]:
        """
        @return: The messages that an address has sent on its queue pair since the log of the wire began.
        """
        found: list[bytes] = []
        parts: list[bytes] = []
        for sender, *_, data in self.wire.log or ():
            opcode, flags = data[:2]
            if sender != source or opcode > SEND_ONLY:
                continue
            parts.append(data[BTH.size : len(data) - ICRC.size - (flags >> 4 & 3)])
            ends = opcode in (SEND_LAST, SEND_ONLY)
            self.assertIs(flags & SOLICITED == SOLICITED, ends, "Linux sleeps on")
            if ends:
                found.append(b"".join(parts))
                parts.clear()
        return found

    def test_fragments(self) -> None:
        """
        Each fragment is the message's header and 4096 bytes, checksums are right, and the answer is an
        ack frame.
        """
        self.one.transport.write(b"first", (THERE, 5000))
        self.pass_(1.0)
        self.wire.log = []
        for index in range(8):
            self.one.transport.write(bytes([index]) * 9000, (THERE, 5000))
        self.pass_(1.0)
        sent, answers = self.messages(HERE), self.messages(THERE)
        self.assertEqual([len(data) for data in sent[:3]], [4144, 4144, 48 + 808])
        self.assertEqual(len({data[:48] for data in sent[:3]}), 1)
        fields = HEADER.unpack(sent[0][:48])
        first = fields[0]
        self.assertEqual(fields[2:5], (9000, 4000, 5000))
        expected = packChecksummed(*fields[:8], 0, fields[9])
        self.assertEqual(sent[0][:48], expected)
        acks = [HEADER.unpack(data) for data in answers]
        self.assertTrue(acks)
        for fields in acks:
            self.assertEqual((fields[0], fields[2:6], fields[7]), (0, (0, 0, 0, 0), NO_PADDING))
        self.assertLess(acks[-1][1], first + 8)

    def violate(self, *frames: bytes) -> None:
        """
        A peer sends what ends the connection; afterwards there is another.
        """
        if not self.a.medium.sessions:
            self.one.transport.write(b"x", (THERE, 5000))
            self.pass_(2.0)
        before = self.b.network.counters["recv_bad_frame"]
        session = self.session(self.a)
        for frame in frames:
            session.queuePair.postInline(frame, b"", 0)
        self.pass_(0.5)
        self.assertEqual(self.b.network.counters["recv_bad_frame"], before + 1, frames)
        self.assertTrue(session.closed)
        self.pass_(3.0)
        self.two.got.clear()
        self.one.transport.write(b"again", (THERE, 5000))
        self.pass_(3.0)
        self.assertIn(b"again", self.two.data)

    def header(self, length: int, sequence: int = 99, port: int = 5000) -> bytes:
        """
        @return: A header with its checksum.
        """
        return packChecksummed(sequence, 0, length, 4000, port, 0, 0, NO_PADDING, 0, NO_EXTENSIONS)

    def test_badFrames(self) -> None:
        """
        Each of these ends the connection, and no more.
        """
        good = self.header(3)
        bad = good[:40] + b"\x01" + good[41:]
        long = self.header(8192)
        cases: list[tuple[bytes, ...]] = [
            (b"",),
            (good[:47],),
            (bad + b"abc",),
            (good + b"ab",),
            (good + b"abcd",),
            (self.header(9000) + bytes(4095),),
            (self.header((1 << 20) + 1) + bytes(4096),),
            (long + bytes(4096), self.header(8192, sequence=100) + bytes(4096)),
            (long + bytes(4096), self.header(8192, port=5001) + bytes(4096)),
            (long + bytes(4096), self.header(8193) + bytes(4096)),
            (long + bytes(4096), long + bytes(4095)),
            (long + bytes(4096), good + b"abc"),
        ]
        for case in cases:
            self.violate(*case)
        self.assertEqual(self.b.network.counters["recv_drop_bad_checksum"], 1)

    def test_behindBadFrame(self) -> None:
        """
        Nothing behind a bad frame is taken: what was bad is repeated before it.
        """
        self.one.transport.write(b"x", (THERE, 5000))
        self.pass_(1.0)
        (path,) = self.b.network.paths.values()
        bad = bytearray(self.header(3, sequence=99))
        bad[40] ^= 1
        session = self.session(self.b)
        for frame in (bytes(bad) + b"bad", self.header(4, sequence=100) + b"good"):
            session.received(frame, 0, len(frame))
        self.assertLess(path.machine.nextReceive, 99)
        self.assertEqual(self.two.data, [b"x"])
        self.pass_(2.0)
        self.assertTrue(session.closed)

    def test_early(self) -> None:
        """
        A message comes in place of the RTU, which is lost, and makes the queue pair (IBTA vol. 1 12.9.8).
        """
        self.one.transport.write(b"late", (THERE, 5000))
        for _ in range(1000):
            if self.awaited(self.b):
                break
            for process in self.processes:
                process.reactor.advance(0.001)
                process.turn()
        self.assertEqual(self.b.queuePairs, 0)
        self.wire.pass_ = lambda datagram: () if isRTU(datagram) else (datagram,)
        self.pass_(2.0)
        self.wire.pass_ = lambda datagram: (datagram,)
        self.assertEqual(self.two.data, [b"late"])
        self.assertEqual(self.awaited(self.b), 0)
        self.assertEqual(self.b.network.counters["conn_reset"], 0)

    def test_acknowledgedBetween(self) -> None:
        """
        Linux sends ack frames when they are due, between the fragments of a message, too.
        """
        self.one.transport.write(b"x", (THERE, 5000))
        self.pass_(1.0)
        header = packChecksummed(99, 0, 5000, 4000, 5000, 0, 0, NO_PADDING, 0, NO_EXTENSIONS)
        ack = packChecksummed(0, 1, 0, 0, 0, 0, 0, NO_PADDING, 0, NO_EXTENSIONS)
        for frame in (ack, header + b"a" * 4096, ack, ack, header + b"b" * 904):
            self.session(self.a).queuePair.postInline(frame, b"", 0)
        self.pass_(1.0)
        self.assertEqual(self.two.data[-1], b"a" * 4096 + b"b" * 904)
        self.assertEqual(self.b.network.counters["recv_bad_frame"], 0)

    def test_unchecked(self) -> None:
        """
        A header without a checksum is taken.
        """
        self.one.transport.write(b"x", (THERE, 5000))
        self.pass_(1.0)
        header = HEADER.pack(99, 0, 3, 4000, 5000, 0, 0, NO_PADDING, 0, NO_EXTENSIONS)
        self.session(self.a).queuePair.postInline(header, b"abc", 3)
        self.pass_(1.0)
        self.assertEqual(self.two.data[-1], b"abc")


class RequestTests(AddressedTestCase):
    """
    REQs that say something else; C{tests/soak} counts the memory that many take.
    """

    def ask(self, said: bytes, header: RDMACMHeader | None = None, mtu: int = 0) -> list[Any]:
        """
        A peer asks.

        @param mtu: the code of the path MTU, if not the path's own.
        @return: The answer: reason and private data of a REJ, or the REP.
        """
        told: list[Any] = []
        device = self.channelFor(self.a.reactor, "roce0", HERE).device

        class User:
            """
            The active side.
            """

            def pathReady(self, path: Any) -> None:
                given = RDMACMHeader(HERE, 0, THERE) if header is None else header
                queuePair = device.createQueuePair(self)
                request = ConnectRequest(
                    serviceID=0x106 << 16 | 18634,
                    localQPN=queuePair.number,
                    responseTimeout=20,
                    requestRetries=3,
                    pathMTU=mtu,
                    primaryPath=PathRecord(localGID=gidOf(HERE)) if mtu else ANY_PATH,
                    privateData=given.pack() + said,
                )
                device.sendRequest(path, request, self, device.clock())

            def replied(self, connection: Any, reply: Any) -> None:
                told.append(reply)

            def rejected(self, connection: Any, rejection: Any) -> None:
                told.append((rejection.reason, bytes(rejection.privateData[:4])))

        device.connect(0x106, THERE, 18634, User())
        self.pass_(1.0)
        return told

    def test_unsupported(self) -> None:
        """
        A REQ for a path MTU that this end cannot send gets the reason, and no queue pair.
        """
        said = PrivateData(HERE, THERE, 4, 1).pack()
        device = self.channelFor(self.b.reactor, "roce0", THERE).device
        for code in (4, 6):
            self.assertEqual(self.ask(said, mtu=code), [(RejectReason.INVALID_MTU, bytes(4))])
        self.assertEqual(len(device.queuePairs), 0)
        self.assertEqual(self.b.network.counters["recv_bad_request"], 2)

    def test_versions(self) -> None:
        """
        Versions that nobody speaks are rejected as Linux does: consumer defined, with a 1.
        """
        for version in ((3, 0), (3, 2), (2, 1), (5, 0)):
            self.assertEqual(self.ask(PrivateData(HERE, THERE, *version).pack()), [(28, b"\1\0\0\0")])
        self.assertEqual(self.ask(PrivateData(HERE, THERE, 4, 1, 0xFFFC).pack()), [(28, b"\1\0\0\0")])
        self.assertEqual(self.b.network.counters["recv_bad_request"], 5)

    def test_onlyAsked(self) -> None:
        """
        A REQ alone, that anybody can write anybody's address on, ends no connection, and nothing but
        the REP answers it.
        """
        self.one.transport.write(b"x", (THERE, 5000))
        self.pass_(1.0)
        session = self.session(self.b)
        (reply,) = self.ask(PrivateData(HERE, THERE).pack())
        self.assertTrue(reply.localQPN)
        self.assertIs(self.session(self.b), session)
        self.assertFalse(session.closed)
        device = self.channelFor(self.b.reactor, "roce0", THERE).device
        (asked,) = device.cm.accepted
        self.assertEqual((self.awaited(self.b), len(device.queuePairs)), (1, 1))
        self.assertEqual(self.ask(PrivateData(HERE, THERE).pack())[0].__class__, reply.__class__)
        self.assertEqual((self.awaited(self.b), len(device.cm.accepted)), (1, 1))
        self.assertNotIn(asked, device.cm.accepted)
        self.pass_(120.0, 1.0)
        self.assertEqual(self.awaited(self.b), 0)
        self.assertIs(self.session(self.b), session)
        self.assertEqual(self.b.network.counters["conn_reset"], 0)

    def test_onlyAskedByStrangers(self) -> None:
        """
        A REQ alone takes no place among the paths.
        """
        self.ask(PrivateData(HERE, THERE).pack())
        self.assertEqual(self.awaited(self.b), 1)
        self.assertEqual(self.b.network.paths, {})

    def test_typeOfService(self) -> None:
        """
        Linux has a connection for each type of service, with numbers of its own; there is only one here.
        """
        self.assertEqual(self.ask(PrivateData(HERE, THERE, typeOfService=3).pack()), [(28, b"\1\0\0\0")])
        self.assertEqual(self.b.medium.sessions, {})

    def test_answers(self) -> None:
        """
        The REP has both addresses and the version that is spoken.
        """
        for version, answer in (((3, 1, 3), (3, 1)), ((4, 0, 1), (4, 0)), ((4, 1, 3), (4, 1))):
            reply = self.ask(PrivateData(HERE, THERE, *version).pack())[0]
            said = PrivateData.parse(reply.privateData, 4)
            self.assertEqual((said.source, said.destination, said.major, said.minor), (THERE, HERE, *answer))

    def test_lies(self) -> None:
        """
        A REQ from or to another address is rejected, and one that is too short.
        """
        for said in (
            PrivateData("192.0.2.9", THERE).pack(),
            PrivateData(HERE, "192.0.2.9").pack(),
            b"",
            b"x" * 12,
        ):
            self.assertEqual(self.ask(said), [(28, b"\1\0\0\0")])
