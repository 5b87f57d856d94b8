"""
Tests of L{twisted_ib.rds.media.rcprocesses}, L{twisted_ib.rds.media.rcconnect} and
L{twisted_ib.rds.media.rcconnection} between processes of one host.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted.internet.error import CannotListenError

from tests.rds.ends import HOST, Process, ProcessesTestCase
from tests.support.rundirectory import OwnDirectory
from twisted_ib import limits
from twisted_ib.errors import RDSWireError, ResourceLimitError
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.connection.rdmacm import RDMACMHeader
from twisted_ib.internet.channel import channelFor
from twisted_ib.internet.readers import channelsOf
from twisted_ib.rds import port as rdsPort
from twisted_ib.rds import queues
from twisted_ib.rds.media import rc, rcconnection, rcprocesses
from twisted_ib.rds.media.rcconnection import CONTROL, RCConnection
from twisted_ib.rds.media.rcprocesses import PORT_SPACE, ProcessListener
from twisted_ib.rds.protocol.bundle import BUNDLE
from twisted_ib.rds.protocol.wire import HEADER, NO_EXTENSIONS, packHello


class DeliveryTests(ProcessesTestCase):
    """
    Datagrams arrive.
    """

    def setUp(self) -> None:
        """
        Two processes with a socket each.
        """
        super().setUp()
        self.a, self.b = self.process(), self.process()
        self.one, self.two = self.a.listen(4000), self.b.listen(5000)

    def test_both(self) -> None:
        """
        There and back, and each knows who it was.
        """
        self.one.transport.write(b"there", (HOST, 5000))
        self.settle()
        self.assertEqual(self.two.got, [(b"there", (HOST, 4000))])
        self.two.transport.write(b"back", (HOST, 4000))
        self.settle()
        self.assertEqual(self.one.got, [(b"back", (HOST, 5000))])

    def test_sizes(self) -> None:
        """
        Of any size, in order.
        """
        fragment = rcconnection.RDS_FRAGMENT
        sizes = [0, 1, 4096, fragment - 1, fragment, fragment + 1, 2 * fragment, 1 << 20, 0, 3]
        sent = [bytes([index]) * size for index, size in enumerate(sizes)]
        for data in sent:
            self.one.transport.write(data, (HOST, 5000))
        self.settle()
        self.assertEqual(self.two.data, sent)

    def test_many(self) -> None:
        """
        More than the medium holds, both ways at once.
        """
        for index in range(3000):
            for end, port in ((self.one, 5000), (self.two, 4000)):
                end.transport.write(b"%d" % index, (HOST, port))
        self.settle()
        expected = [b"%d" % index for index in range(3000)]
        self.assertEqual((self.one.data, self.two.data), (expected, expected))

    def test_budget(self) -> None:
        """
        Acknowledgements give the send budget back.
        """
        for _ in range(10):
            for _ in range(20):
                self.one.transport.write(bytes(100_000), (HOST, 5000))
            self.pass_(rcconnection.RDS_ACK_SECONDS)
        self.assertEqual((len(self.two.got), self.one.socket._queued), (200, 0))

    def test_duel(self) -> None:
        """
        Two ends that connect at once get one connection; nothing is lost or comes twice.
        """
        self.one.transport.write(b"a", (HOST, 5000))
        self.two.transport.write(b"b", (HOST, 4000))
        self.settle()
        self.pass_(3.0)
        self.assertEqual((self.one.data, self.two.data), ([b"b"], [b"a"]))
        self.assertEqual((self.a.queuePairs, self.b.queuePairs), (1, 1))

    def test_within(self) -> None:
        """
        Datagrams within the process need no queue pair.
        """
        other = self.a.listen(4001)
        self.one.transport.write(b"x", (HOST, 4001))
        self.settle()
        self.assertEqual((other.data, self.a.queuePairs), ([b"x"], 0))

    def test_onlyProcessPairs(self) -> None:
        """
        All sockets of two processes, and all their addresses, share one queue pair.
        """
        c = self.process()
        for process in (self.a, self.b, c):
            process.sockets = [process.listen(0, address) for address in (HOST, "::1") for _ in "123"]
        sent = 0
        for process in (self.a, self.b, c):
            for socket in process.sockets:
                for other in (self.a, self.b, c):
                    for peer in other.sockets:
                        where = peer.transport.getHost()
                        if where.host == socket.transport.getHost().host:
                            socket.transport.write(b"x", (where.host, where.port))
                            sent += 1
        self.settle()
        self.pass_(3.0)
        got = [len(socket.got) for process in (self.a, self.b, c) for socket in process.sockets]
        self.assertEqual((got, sent), ([9] * 18, 162))
        self.assertEqual([process.queuePairs for process in (self.a, self.b, c)], [2, 2, 2])

    def test_allAddresses(self) -> None:
        """
        A socket of all addresses is reached by each.
        """
        self.b.listen(6000, "")
        everywhere = self.a.listen(6001, "")
        four, six = self.b.listen(6002), self.b.listen(6002, "::1")
        for end, host in ((four, HOST), (six, "::1")):
            end.transport.write(host.encode(), (host, 6001))
        self.settle()
        self.assertEqual(everywhere.data, [b"127.0.0.1", b"::1"])

    def test_clean(self) -> None:
        """
        When all sockets are closed nothing is left, and the next ones work.
        """
        for _ in range(3):
            self.one.transport.write(b"x", (HOST, 5000))
            self.settle()
            closed = [end.socket.stopListening() for end in (self.one, self.two)]
            self.pass_(2 * rcconnection.RDS_ACK_SECONDS)
            for each in closed:
                self.successResultOf(each)
            self.settle()
            for process in (self.a, self.b):
                self.assertEqual(process.queuePairs, 0)
                self.assertEqual(process.reactor.getDelayedCalls(), [])
                self.assertEqual(process.reactor.readers, [])
            self.one, self.two = self.a.listen(4000), self.b.listen(5000)

    def test_paused(self) -> None:
        """
        A process that has no memory left makes the sender wait, and gets all afterwards.
        """
        self.patch(limits, "RDS_RECEIVE_BUDGET", 1000)
        self.patch(queues, "RDS_RECEIVE_MOST", 2000)
        self.two.transport.pauseProducing()
        self.patch(limits, "RDS_SEND_BUDGET", 1 << 30)
        sent = [b"%d" % index * 2000 for index in range(3000)]
        for data in sent:
            self.one.transport.write(data, (HOST, 5000))
        self.pass_(0.5)
        self.assertEqual(self.two.got, [])
        self.assertLess(self.two.socket._receivedBytes, 12_000_000)
        self.two.transport.resumeProducing()
        self.pass_(2.0)
        self.assertEqual(self.two.data, sent)

    def test_ping(self) -> None:
        """
        A host answers.
        """
        self.one.transport.write(b"x", (HOST, 5000))
        self.settle()
        answer = self.one.transport.ping(HOST)
        self.settle()
        self.assertGreaterEqual(self.successResultOf(answer), 0.0)


class ShmDeliveryTests(OwnDirectory, DeliveryTests):
    """
    The same over rings.
    """

    device = "shm0"


class FormTests(ProcessesTestCase):
    """
    The form between processes.
    """

    def test_literal(self) -> None:
        """
        Each kind of frame: messages, which acknowledge, ack-only frames and control frames.
        """
        said: list[str] = []
        received = RCConnection.received

        def record(session: RCConnection, buffer: Any, start: int, stop: int) -> None:
            said.append(bytes(buffer[start:stop]).hex())
            received(session, buffer, start, stop)

        self.patch(RCConnection, "received", record)
        a, b = self.process(), self.process()
        one, two, other = a.listen(4000), b.listen(5000), b.listen(5001)

        def expect(*frames: str) -> None:
            self.settle()
            self.pass_(2 * rcconnection.RDS_ACK_SECONDS)
            self.assertEqual(said, ["".join(frame.split()) for frame in frames])
            said.clear()

        for port in (5000, 5001):
            one.transport.write(b"x", (HOST, port))
        self.settle()
        self.pass_(2 * rcconnection.RDS_ACK_SECONDS)
        addresses = "0000000000000000 0000000000000000 00000014 0000 0000 80 00 00000001 0000" + "00" * 16
        self.assertEqual(said[0], "".join(addresses.split()) + b"\x01127.0.0.1 127.0.0.1".hex())
        said.clear()
        end = "00000001 0000" + "00" * 16
        one.transport.write(b"there", (HOST, 5000))
        expect(
            f"0000000000000005 0000000000000002 00000005 0fa0 1388 00 00 {end} 7468657265",
            f"0000000000000000 0000000000000005 00000000 0000 0000 00 00 {end}",
        )
        two.transport.write(b"back", (HOST, 4000))
        expect(
            f"0000000000000003 0000000000000005 00000004 1388 0fa0 00 00 {end} 6261636b",
            f"0000000000000000 0000000000000003 00000000 0000 0000 00 00 {end}",
        )
        (session,) = b.medium.sessions.values()
        session.pause(1)
        session.pause(-1)
        expect(
            f"0000000000000000 0000000000000000 00000001 0000 0000 80 00 {end} 03",
            f"0000000000000000 0000000000000000 00000001 0000 0000 80 00 {end} 04",
        )
        other.socket.stopListening()
        self.settle()
        one.transport.write(b"!", (HOST, 5001))
        expect(
            f"0000000000000006 0000000000000003 00000001 0fa0 1389 00 00 {end} 21",
            f"0000000000000000 0000000000000000 00000003 0000 0000 80 00 {end} 02 1389",
            f"0000000000000000 0000000000000006 00000000 0000 0000 00 00 {end}",
        )


class ComingAndGoingTests(ProcessesTestCase):
    """
    Sockets and processes come, go and move.
    """

    def setUp(self) -> None:
        """
        A process with a socket.
        """
        super().setUp()
        self.a = self.process()
        self.one = self.a.listen(4000)

    def write(self, *texts: bytes) -> None:
        """
        Send to port 5000.
        """
        for text in texts:
            self.one.transport.write(text, (HOST, 5000))
        self.settle()

    def test_later(self) -> None:
        """
        Datagrams to a port that is not bound yet arrive when it is.
        """
        self.write(b"1", b"2")
        self.pass_(3.0, 0.2)
        two = self.process().listen(5000)
        self.write(b"3")
        self.pass_(2.0, 0.2)
        self.assertEqual(two.data, [b"1", b"2", b"3"])

    def test_ourselves(self) -> None:
        """
        The same when it is another socket of this process.
        """
        self.write(b"1")
        two = self.a.listen(5000)
        self.pass_(2.0, 0.2)
        self.assertEqual(two.data, [b"1"])

    def test_killed(self) -> None:
        """
        A process that took the port of one that was killed gets what that one did not.
        """
        b = self.process()
        two = b.listen(5000)
        self.write(b"1")
        self.assertEqual(two.data, [b"1"])
        self.pass_(rcconnection.RDS_ACK_SECONDS)
        b.kill()
        self.settle()
        self.write(b"2", b"3")
        self.pass_(1.0, 0.2)
        again = self.process().listen(5000)
        self.pass_(3.0, 0.2)
        self.assertEqual(again.data, [b"2", b"3"])
        self.write(b"4")
        self.assertEqual(again.data, [b"2", b"3", b"4"])

    def test_onePathCloses(self) -> None:
        """
        Of two paths through one queue pair one may close: the other goes on, and hears of the peer's end.
        """
        b = self.process()
        two = b.listen(5000)
        six, there = self.a.listen(4000, "::1"), b.listen(5000, "::1")
        self.write(b"1")
        six.transport.write(b"six", ("::1", 5000))
        self.settle()
        self.assertEqual((there.data, self.a.queuePairs), ([b"six"], 1))
        paths = {path.local: path for path in self.one.socket.network.paths.values()}
        paths["::1"].close()
        self.write(b"2")
        self.assertEqual((two.data, self.a.queuePairs), ([b"1", b"2"], 1))
        b.kill()
        self.settle()
        self.assertEqual((paths[HOST].carrier, self.a.queuePairs), (None, 0))

    def test_killedWithTheRest(self) -> None:
        """
        The budget of what was on its way to a process that was killed is there again.
        """
        b = self.process()
        b.listen(5000)
        self.write(b"1")
        for _ in range(50):
            self.one.transport.write(bytes(10_000), (HOST, 5000))
        b.kill()
        self.settle()
        again = self.process().listen(5000)
        self.pass_(5.0, 0.2)
        self.assertEqual(self.one.socket._queued, 0)
        self.assertGreater(len(again.got), 0)

    def test_moved(self) -> None:
        """
        When a port has moved to another process while its old one lives, one message finds nobody,
        and those after it the new one.
        """
        b, c = self.process(), self.process()
        two = b.listen(5000)
        b.listen(5001)
        self.write(b"1")
        self.successResultOf(self.closed(two))
        three = c.listen(5000)
        self.write(b"2")
        self.write(b"3")
        self.pass_(1.0)
        self.assertEqual((two.data, three.data), ([b"1"], [b"3"]))

    def closed(self, end: Any) -> Any:
        """
        Close a socket.
        """
        closed = end.socket.stopListening()
        self.settle()
        return closed

    def test_movedAway(self) -> None:
        """
        Messages queued for a process that has closed its socket go where the port is now.
        """
        b = self.process()
        two = b.listen(5000)
        self.write(b"1")
        self.pass_(rcconnection.RDS_ACK_SECONDS)
        self.successResultOf(self.closed(two))
        self.write(b"2", b"3")
        self.pass_(1.0)
        three = self.process().listen(5000)
        self.pass_(5.0, 0.1)
        self.assertEqual((two.data, three.data), ([b"1"], [b"2", b"3"]))

    def test_peerIdle(self) -> None:
        """
        A process whose last socket is closed, and another opened, is found again.
        """
        b = self.process()
        two = b.listen(5000)
        self.write(b"1")
        self.successResultOf(self.closed(two))
        two = b.listen(5000)
        self.write(b"2")
        self.pass_(3.0, 0.2)
        self.assertEqual(two.data, [b"2"])

    def test_taken(self) -> None:
        """
        A port of an address belongs to one process.
        """
        self.assertRaises(CannotListenError, self.process().listen, 4000)
        self.assertRaises(CannotListenError, self.a.listen, 4000)


class BoundTests(ProcessesTestCase):
    """
    Bounds, and the errors at them.
    """

    def setUp(self) -> None:
        """
        Two processes with a socket each.
        """
        super().setUp()
        self.a, self.b = self.process(), self.process()
        self.one, self.two = self.a.listen(4000), self.b.listen(5000)

    def write(self, data: bytes = b"x") -> None:
        """
        Send from the one to the other.
        """
        self.one.transport.write(data, (HOST, 5000))
        self.settle()

    def test_sessions(self) -> None:
        """
        The number of queue pairs is bounded; a path that gets none tries again.
        """
        self.patch(rc, "RDS_SESSIONS", 0)
        self.write()
        self.pass_(1.0)
        self.assertEqual((self.a.queuePairs, self.b.queuePairs, self.two.data), (0, 0, []))
        rc.RDS_SESSIONS = 1
        self.pass_(2.0)
        self.assertEqual(self.two.data, [b"x"])

    def test_sessionsOfThePeer(self) -> None:
        """
        The same when it is the other side that has no more.
        """
        newSession = self.b.medium.newSession

        def refuse(key: Any, channel: Any) -> Any:
            raise ResourceLimitError("no more")

        self.b.medium.newSession = refuse
        self.write()
        self.pass_(1.0)
        self.assertEqual((self.a.queuePairs, self.b.queuePairs, self.two.data), (0, 0, []))
        self.b.medium.newSession = newSession
        self.pass_(2.0)
        self.assertEqual(self.two.data, [b"x"])

    def test_paths(self) -> None:
        """
        A queue pair carries so many paths.
        """
        self.patch(limits, "RDS_PATHS", 1)
        self.write()
        six = self.a.listen(4000, "::1")
        other = self.b.listen(5000, "::1")
        self.assertRaises(ResourceLimitError, six.transport.write, b"x", ("::1", 5000))
        self.assertEqual((self.two.data, other.data), ([b"x"], []))

    def test_dead(self) -> None:
        """
        So many HCAs are remembered that are gone, and for a time.
        """
        self.patch(rcprocesses, "RDS_DEAD", 1)
        for port in (6000, 6001, 6002):
            c = self.process()
            c.listen(port)
            self.one.transport.write(b"x", (HOST, port))
            self.settle()
            c.kill()
            self.pass_(1.0)
        self.assertEqual(len(self.a.medium._dead), 1)

    def test_reply(self) -> None:
        """
        A REP that says something else is no answer.
        """
        read = ProcessListener.read
        self.patch(ProcessListener, "read", lambda *arguments: read(*arguments)._replace(answer=packHello(7)))
        self.write()
        self.pass_(0.5)
        self.assertEqual(self.two.data, [])
        self.patch(ProcessListener, "read", read)
        self.pass_(2.0)
        self.assertEqual(self.two.data, [b"x"])

    def test_closedWhileConnecting(self) -> None:
        """
        A socket that is closed while its process connects leaves nothing behind.
        """
        for turns in range(12):
            end = self.a.listen(4100 + turns)
            end.transport.write(b"x", (HOST, 5000))
            for _ in range(turns):
                self.a.turn()
            self.b.turn()
            end.socket.stopListening()
            self.one.socket.stopListening()
            self.pass_(rdsPort.RDS_LINGER_SECONDS + 1, 0.5)
            self.assertEqual(self.a.queuePairs, 0)
            self.assertEqual(self.a.reactor.getDelayedCalls(), [])
            self.one = self.a.listen(4000)

    def test_addresses(self) -> None:
        """
        A medium's addresses and ports.
        """
        medium = self.a.medium
        self.assertIn(HOST, medium.localAddresses())
        self.assertFalse([address for address in medium.localAddresses() if "%" in address])
        self.assertEqual([medium.serves(HOST, port) for port in (4000, 5000, 5001)], [True, True, False])
        self.assertEqual([row.local for row in medium.socketRows()], ["127.0.0.1:4000"])

    def test_deviceGone(self) -> None:
        """
        When the device goes, with the reactor, the sockets are closed.
        """
        self.write()
        for channel in channelsOf(self.a.reactor):
            channel.close()
        self.a.reactor.advance(rdsPort.RDS_LINGER_SECONDS)
        self.a.alive = False
        self.assertFalse(self.one.socket.connected)
        self.assertEqual(self.a.medium.sessions, {})


class HostileTests(ProcessesTestCase):
    """
    A peer that sends what it should not.
    """

    def setUp(self) -> None:
        """
        Two processes that are connected.
        """
        super().setUp()
        self.a, self.b = self.process(), self.process()
        self.one, self.two = self.a.listen(4000), self.b.listen(5000)
        self.one.transport.write(b"x", (HOST, 5000))
        self.settle()

    def session(self, process: Process) -> RCConnection:
        """
        @return: The one of a process.
        """
        (found,) = process.medium.sessions.values()
        assert isinstance(found, RCConnection)
        return found

    def fill(self, session: RCConnection) -> None:
        """
        Have its queue pair full, as if messages waited in it.
        """
        self.patch(limits, "INLINE_SENDS", 0)
        session.queuePair.pending = deque()

    def header(self, length: int = 0, **fields: Any) -> bytes:
        """
        @return: A header of a message from port 4000 to port 5000, on the path that there is.
        """
        given = {"sequence": 9, "ack": 0, "source": 4000, "to": 5000, "flags": 0, "index": 1, "sum": 0}
        given.update(fields)
        return HEADER.pack(
            given["sequence"],
            given["ack"],
            length,
            given["source"],
            given["to"],
            given["flags"],
            0,
            given["index"].to_bytes(4, "big"),
            given["sum"],
            NO_EXTENSIONS,
        )

    def violate(self, *frames: bytes) -> None:
        """
        Send frames, which end the connection; then everything works again.
        """
        session = self.session(self.a)
        before = self.b.network.counters["recv_bad_frame"]
        for frame in frames:
            session.queuePair.postInline(frame, b"", 0)
        self.settle()
        self.assertEqual(self.b.network.counters["recv_bad_frame"], before + 1, frames)
        self.assertTrue(session.closed)
        self.pass_(2.0, 0.1)
        self.two.got.clear()
        self.one.transport.write(b"again", (HOST, 5000))
        self.pass_(1.0, 0.1)
        self.assertEqual(self.two.data, [b"again"])

    def test_frames(self) -> None:
        """
        Each of these ends the connection, and no more.
        """
        fragment = rcconnection.RDS_FRAGMENT
        first = self.header(2 * fragment) + bytes(fragment)
        control = {"flags": CONTROL, "sequence": 0, "source": 0, "to": 0}
        cases: list[tuple[bytes, ...]] = [
            (b"",),
            (bytes(47),),
            (self.header(1),),
            (self.header(0) + b"x",),
            (self.header(5) + b"1234",),
            (self.header(5) + b"123456",),
            (self.header((1 << 20) + fragment) + bytes(fragment),),
            (self.header(0xFFFFFFFF) + bytes(fragment),),
            (self.header(0, index=2),),
            (self.header(0, index=0xFFFFFFFF),),
            (first, self.header(2 * fragment, sequence=10) + bytes(fragment)),
            (first, self.header(2 * fragment, to=5001) + bytes(fragment)),
            (first, self.header(2 * fragment) + bytes(fragment - 1)),
            (first, self.header(3) + b"abc"),
            (self.header(0, **control),),
            (self.header(1, **control) + b"\x06",),
            (self.header(2, **control) + b"\x05x",),
            (self.header(2, **control) + b"\x03x",),
            (self.header(2, **control) + b"\x02\0",),
            (self.header(4, **control) + b"\x01abc",),
            (self.header(20, index=7, **control) + b"\x01127.0.0.1 192.0.2.1",),
            (self.header(20, index=7, **control) + b"\x01192.0.2.1 127.0.0.1",),
            (self.header(20, index=1, **control) + b"\x01127.0.0.1 127.0.0.1",),
            (self.header(20, index=0, **control) + b"\x01127.0.0.1 127.0.0.1",),
            (self.header(3, index=7, **control) + b"\x01\xff\xff",),
        ]
        for case in cases:
            self.violate(*case)

    def test_behindBad(self) -> None:
        """
        Messages behind a bad one in the same SEND are not read.
        """
        session = self.session(self.b)
        bad, good = self.header(index=7), self.header(2, sequence=10) + b"no"
        session.received(bad + good, 0, len(bad) + len(good))
        self.assertIsInstance(session.loss, RDSWireError)
        self.assertEqual(self.two.data, [b"x"])
        self.assertEqual(self.b.network.counters["recv_bad_frame"], 1)

    def test_paths(self) -> None:
        """
        A peer announces a bounded number of paths, and leaves some to others.
        """
        self.patch(rcconnection, "RDS_SESSION_PATHS", 3)
        text = b"\x01127.0.0.1 127.0.0.1"
        control = {"flags": CONTROL, "sequence": 0, "source": 0, "to": 0}
        self.violate(*[self.header(len(text), index=index, **control) + text for index in range(2, 5)])

    def test_pauseIgnored(self) -> None:
        """
        A peer that goes on when it was told to send nothing is cut off.
        """
        self.patch(limits, "RDS_RECEIVE_BUDGET", 100)
        self.patch(queues, "RDS_RECEIVE_MOST", 200)
        self.patch(rcconnection, "RDS_PAUSED", 10_000)
        self.two.transport.pauseProducing()
        session = self.session(self.a)
        frame = self.header(100) + bytes(100)
        for _ in range(60):
            session.queuePair.postInline(frame, b"", 0)
            self.settle()
            self.assertFalse(session.closed)
        for _ in range(20):
            if not session.closed:
                session.queuePair.postInline(frame, b"", 0)
                self.settle()
        self.assertTrue(session.closed)

    def test_pauseBound(self) -> None:
        """
        After PAUSE 16 MiB are taken, as may have been on the way, and no more.
        """
        session = self.session(self.b)
        session.pause(1)
        frame = self.header(0xFFD0, sequence=1) + bytes(0xFFD0)
        for _ in range(256):
            session.received(frame, 0, len(frame))
        self.assertIsNone(session.loss)
        acknowledgement = self.header(sequence=0)
        session.received(acknowledgement, 0, len(acknowledgement))
        self.assertIsNotNone(session.loss)

    def test_pausedTwice(self) -> None:
        """
        PAUSE says that the first path of a connection has no memory, RESUME that the last one has some again.
        """
        session, peer = self.session(self.b), self.session(self.a)
        path: Any = session.queuePair.path
        self.settle()
        for count, isSaid in ((1, True), (1, False), (-1, False), (1, False), (-1, False), (-1, True)):
            before = path.position(), peer.peerPaused
            session.pause(count)
            self.settle()
            after = path.position(), peer.peerPaused
            self.assertEqual([one != other for one, other in zip(before, after, strict=True)], [isSaid] * 2)

    def test_nobodyAndNoRoom(self) -> None:
        """
        A peer that sends to ports which nobody has, and reads nothing, is not told of each.
        """
        session = self.session(self.b)
        self.fill(session)
        frame = self.header(0, to=7777)
        for _ in range(1000):
            session.received(frame, 0, len(frame))
        self.assertLess(len(session.backlog), 10)
        self.assertLess(len(session.gathered), 200)
        self.assertEqual(self.b.network.counters["recv_drop_no_sock"], 1000)

    def test_pinging(self) -> None:
        """
        A datagram that is no pong is dropped at the port of a ping, and later ones are delivered.
        """
        session = self.session(self.b)
        answer = self.two.transport.ping(HOST)
        ((_, port),) = [place for place in self.b.network.sockets if place[1] != 5000]
        frames = [
            self.header(4, to=port, sequence=10) + bytes(4),
            self.header(4, to=port, sequence=11, flags=BUNDLE) + bytes(4),
            self.header(2, to=5000, sequence=12) + b"on",
        ]
        session.received(b"".join(frames), 0, sum(map(len, frames)))
        self.assertEqual(self.two.data, [b"x", b"on"])
        self.assertEqual(self.b.network.counters["recv_drop_no_sock"], 2)
        self.assertNoResult(answer)
        self.settle()
        self.successResultOf(answer)

    def test_acknowledgementWaits(self) -> None:
        """
        While something waits for room acknowledgements wait too, however much comes: the peer's messages do
        not fill the backlog.
        """
        session = self.session(self.b)
        self.fill(session)
        self.two.transport.write(b"waits", (HOST, 4000))
        sent = [bytes([index]) * 5000 for index in range(40)]
        for data in sent:
            self.one.transport.write(data, (HOST, 5000))
            self.settle()
        self.assertEqual((self.two.data[1:], len(session.backlog)), (sent, 1))
        self.assertEqual(len(session.gathered), 0)
        session.queuePair.pending = None
        session.resume()
        self.settle()
        self.assertEqual((self.one.data, len(session.backlog)), ([b"waits"], 0))
        self.assertEqual((self.one.socket._queued, session.owing), (0, {}))

    def test_much(self) -> None:
        """
        Much that comes in one batch is acknowledged before its end; and a connection that carries messages is
        good, so that the next pause between attempts is short.
        """
        session = self.session(self.b)
        carrier = session.ours[1]
        carrier.path.pause, carrier.owing = 1.0, 0
        count = rcconnection.MUCH // rcconnection.EACH
        for number in range(count - 1):
            frame = self.header(sequence=number + 9)
            session.received(frame, 0, len(frame))
        self.assertGreater(carrier.owing, rcconnection.MUCH - 2 * rcconnection.EACH)
        session.received(frame, 0, len(frame))
        self.assertLess(carrier.owing, rcconnection.EACH)
        self.assertEqual((carrier.path.pause, len(self.two.got)), (0.0, 1 + count))

    def test_pauseIgnoredAgain(self) -> None:
        """
        Nor does it help to connect again.
        """
        self.patch(limits, "RDS_RECEIVE_BUDGET", 100)
        self.patch(queues, "RDS_RECEIVE_MOST", 200)
        self.patch(rcconnection, "RDS_PAUSED", 10_000)
        self.patch(limits, "RDS_TCP_DRAIN", 30_000)
        self.two.transport.pauseProducing()
        frame = self.header(100) + bytes(100)
        count = 0
        while self.a.medium.sessions and count < 10:
            session = self.session(self.a)
            for _ in range(90):
                if not session.closed:
                    session.queuePair.postInline(frame, b"", 0)
                    self.settle()
            self.assertTrue(session.closed)
            self.one.transport.write(b"again", (HOST, 5000))
            count += 1
            self.pass_(2.0, 0.1)
        self.assertLess(count, 10)
        self.assertLess(self.two.socket._receivedBytes, 200 + 30_000 + 10_000)
        self.two.transport.resumeProducing()
        self.pass_(5.0)
        self.assertEqual(self.two.data.count(b"again"), count)

    def test_requests(self) -> None:
        """
        A REQ that says something else, or who somebody else is, is rejected.
        """
        good = packHello(0x1234)
        cases = [b"", good[:-1], b"XXXX" + good[4:], good[:4] + b"\2" + good[5:], good]
        for index, said in enumerate(cases):
            c = self.process()
            three = c.listen(6000 + index)
            self.patch(rcprocesses, "packHello", lambda guid, said=said: said)
            three.transport.write(b"x", (HOST, 5000))
            for _ in range(20):
                c.turn()
            for _ in range(20):
                self.b.turn()
            self.assertEqual(self.b.network.counters["recv_bad_request"], index + 1)
            c.kill()
            self.settle()
        self.assertEqual(self.two.data, [b"x"])

    def test_lookedUp(self) -> None:
        """
        The services by which sockets are found take no connection.
        """
        device = channelFor(self.a.reactor, "lo0").device
        log: list[str] = []

        class User:
            def pathReady(self, path: Any) -> None:
                self.path = path

            def rejected(self, connection: Any, rejection: Any) -> None:
                log.append("rejected")

        user = User()
        device.connect(PORT_SPACE, HOST, 5000, user)
        data = RDMACMHeader(HOST, 0, HOST).pack() + packHello(device.guid)
        device.sendRequest(
            user.path,
            ConnectRequest(serviceID=PORT_SPACE << 16 | 5000, localQPN=99, privateData=data),
            user,
            0.0,
        )
        self.settle()
        self.assertEqual(log, ["rejected"])
