"""
Tests of L{twisted_ib.rds.protocol.bundle}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.rds.ends import HOST, ProcessesTestCase, Recorder
from tests.support.rundirectory import OwnDirectory
from twisted_ib import limits
from twisted_ib.errors import PathLostError
from twisted_ib.rds import port as rdsPort
from twisted_ib.rds.media import rcconnection
from twisted_ib.rds.protocol import bundle as protocolBundle
from twisted_ib.rds.protocol.bundle import LONGEST, Bundle, datagramsOf
from twisted_ib.rds.protocol.machine import RDSMessage


class FormTests(SynchronousTestCase):
    """
    The form of a bundle.
    """

    def test_bytes(self) -> None:
        """
        The number of datagrams, the bytes of each, then all.
        """
        bundle = Bundle(None, None, (HOST, 5), 5)
        for data in (b"one", b"", b"three"):
            bundle.pieces.append(data)
        message = bundle.message(4)
        expected = bytes.fromhex("00000003 00000003 00000000 00000005") + b"onethree"
        self.assertEqual((message.payload, message.flags, message.count), (expected, 0x40, 3))
        self.assertEqual(message.size, len(expected))
        self.assertEqual(datagramsOf(b"?" + expected + b"?", 1, 1 + len(expected)), [b"one", b"", b"three"])

    def test_long(self) -> None:
        """
        Long datagrams are not joined; datagrams of one length are taken apart as others are.
        """
        bundle = Bundle(None, None, (HOST, 5), 5)
        data = [bytes([value]) * 3000 for value in range(3)]
        for each in data:
            bundle.pieces.append(each)
        message = bundle.message(4)
        expected = bytes.fromhex("00000003" + "00000bb8" * 3) + b"".join(data)
        self.assertEqual(message.payload[1:], data)
        self.assertEqual((b"".join(message.payload), message.size), (expected, len(expected)))
        self.assertEqual(list(datagramsOf(memoryview(expected), 0, len(expected))), data)

    def test_one(self) -> None:
        """
        One datagram is a message like others.
        """
        bundle = Bundle(None, None, (HOST, 5), 5)
        bundle.pieces.append(b"one")
        message = bundle.message(4)
        self.assertEqual((message.payload, message.flags, message.count), (b"one", 0, 1))

    def test_wrong(self) -> None:
        """
        A malformed bundle has no datagrams.
        """
        for text in (
            "",
            "000000",
            "00000000",
            "00000001",
            "00000001 00000001",
            "00000001 00000001 6161",
            "00000001 ffffffff 61",
            "00000002 00000001 61",
            "ffffffff 00000001 61",
            "00000101" + "00000000" * 257,
        ):
            packed = bytes.fromhex(text)
            self.assertEqual(datagramsOf(packed, 0, len(packed)), (), text)
            # Nor with something behind it.
            self.assertEqual(datagramsOf(packed + b"?", 0, len(packed)), (), text)
        packed = bytes.fromhex("00000100" + "00000000" * 256)
        self.assertEqual(list(datagramsOf(packed, 0, len(packed))), [b""] * 256)


class _Stops(Recorder):
    """
    Does something when the third datagram comes.
    """

    def __init__(self, call: Any) -> None:
        """
        @param call: what.
        """
        super().__init__()
        self._call = call

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        Keep it.
        """
        super().datagramReceived(datagram, addr)
        if len(self.got) == 3:
            self._call(self)


class _Answers(Recorder):
    """
    Sends back what comes, and keeps how many bundles are open then.
    """

    def __init__(self) -> None:
        """
        Nothing came.
        """
        super().__init__()
        self.open: list[int] = []

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        Keep it, and send it back.
        """
        super().datagramReceived(datagram, addr)
        self.transport.write(datagram, addr)
        self.open.append(len(self.transport._bundles))


class BundleTests(ProcessesTestCase):
    """
    Datagrams of one turn.
    """

    def setUp(self) -> None:
        """
        Two processes that know each other.
        """
        super().setUp()
        self.a, self.b = self.process(), self.process()
        self.one = self.a.listen(4000)

    def listen(self, protocol: Any = None) -> Any:
        """
        @return: the receiver, which has got nothing yet.
        """
        protocol = self.b.listen(5000, protocol=protocol)
        self.one.transport.write(b"hello", (HOST, 5000))
        self.rest()
        self.assertEqual(protocol.data, [b"hello"])
        protocol.got.clear()
        return protocol

    def write(self, *texts: bytes, port: int = 5000) -> None:
        """
        Send, and do not wait.
        """
        for text in texts:
            self.one.transport.write(text, (HOST, port))

    @property
    def machine(self) -> Any:
        """
        @return: what numbers the messages of the one path.
        """
        (path,) = self.a.network.paths.values()
        return path.machine

    def rest(self) -> None:
        """
        All is acknowledged, and counted as done.
        """
        self.settle()
        self.pass_(2 * rcconnection.RDS_ACK_SECONDS)
        self.assertEqual((self.one.socket._queued, self.one.socket._bundles), (0, {}))

    def test_together(self) -> None:
        """
        Two messages: the first, and all after it; each datagram is counted.
        """
        two = self.listen()
        number, counters = self.machine.nextTransmit, self.a.network.counters
        sent, theirs = counters["send_queued"], self.b.network.counters["recv_delivered"]
        texts = [b"%d" % index for index in range(50)]
        self.write(*texts)
        self.rest()
        self.assertEqual(two.data, texts)
        self.assertEqual({addr for _, addr in two.got}, {(HOST, 4000)})
        self.assertEqual(self.machine.nextTransmit - number, 2)
        self.assertEqual(counters["send_queued"] - sent, 50)
        self.assertEqual(self.b.network.counters["recv_delivered"] - theirs, 50)

    def test_answers(self) -> None:
        """
        The first answer of a turn is sent before its end, and acknowledges; further ones are bundled.
        """
        two = self.listen(_Answers())
        self.one.got.clear()
        (session,) = self.b.medium.sessions.values()
        number = session.ours[1].path.machine.nextTransmit
        texts = [b"alone", *[b"%d" % index for index in range(20)]]
        self.write(texts[0])
        for _ in range(10):
            if not two.got:
                self.a.turn()
                self.b.turn()
        self.assertEqual(session.owing, {})
        self.write(*texts[1:])
        for _ in range(10):
            if len(two.got) < len(texts):
                self.a.turn()
                self.b.turn()
        # The bundle has left, so that this one need not wait.
        self.assertEqual(session.batch, -1)
        two.transport.write(b"later", (HOST, 4000))
        self.assertEqual(two.transport._bundles, {})
        self.rest()
        self.assertEqual((two.data, self.one.data), (texts, [*texts, b"later"]))
        self.assertEqual(two.open[1:], [0, 0] + [1] * 19)
        self.assertEqual(session.ours[1].path.machine.nextTransmit - number, 4)

    def test_mixed(self) -> None:
        """
        Of all lengths and to several sockets: each gets all, in order.
        """
        two, other = self.listen(), self.b.listen(5001)
        texts = [bytes([index % 251]) * (index * 37 % (2 * LONGEST)) for index in range(600)]
        for index, text in enumerate(texts):
            self.write(text, port=5000 + (index % 7 == 0))
            if index % 100 == 99:
                self.settle()
        self.rest()
        self.assertEqual(two.data, [text for index, text in enumerate(texts) if index % 7])
        self.assertEqual(other.data, [text for index, text in enumerate(texts) if not index % 7])

    def test_lengths(self) -> None:
        """
        A datagram of L{LONGEST} bytes is bundled with the next, a longer one is a message of its own.
        """
        two = self.listen()
        for length, messages in ((LONGEST, 2), (LONGEST + 1, 3)):
            number = self.machine.nextTransmit
            self.write(b"first", bytes(length), b"last")
            self.rest()
            self.assertEqual(self.machine.nextTransmit - number, messages, length)
        self.assertEqual(len(two.data), 6)

    def test_full(self) -> None:
        """
        A bundle is filled to its last byte.
        """
        self.listen()
        overhead = limits.RDS_DATAGRAM_OVERHEAD
        for missing, messages in ((0, 2), (1, 2), (-1, 3)):
            number = self.machine.nextTransmit
            self.write(b"first", b"opens")
            (bundle,) = self.one.socket._bundles.values()
            while bundle.room > 2 * (LONGEST + overhead):
                self.write(bytes(LONGEST))
            self.write(bytes((bundle.room - 2 * overhead) // 2))
            self.write(bytes(bundle.room - overhead - missing))
            self.rest()
            self.assertEqual(self.machine.nextTransmit - number, messages)

    def test_maxPacketSize(self) -> None:
        """
        A socket whose datagrams are shorter than a bundle sends none.
        """
        self.listen()
        for size, bundles in ((protocolBundle.RDS_BUNDLE, 1), (protocolBundle.RDS_BUNDLE - 1, 0)):
            self.one.transport.maxPacketSize = size
            self.write(b"first", b"second")
            self.assertEqual(len(self.one.socket._bundles), bundles)
            self.rest()

    def test_held(self) -> None:
        """
        While a message is held for one port, datagrams to others are bundled; those to that port wait behind
        it, also when it is congested no more.
        """
        two, other = self.listen(), self.b.listen(5001)
        (path,) = self.a.network.paths.values()
        number = self.machine.nextTransmit
        self.patch(path, "isCongested", lambda port: port == 5001)
        self.write(b"held", port=5001)
        texts = [b"%d" % index for index in range(20)]
        self.write(*texts)
        self.settle()
        self.assertEqual((two.data, self.machine.nextTransmit - number), (texts, 2))
        self.patch(path, "isCongested", lambda port: False)
        self.write(b"behind", port=5001)
        self.assertEqual(self.one.socket._bundles, {})
        self.one.socket.portsCleared(path)
        self.rest()
        self.assertEqual(other.data, [b"held", b"behind"])

    def test_default(self) -> None:
        """
        C{connect} gives a destination; what is written with and without it stays in order.
        """
        two = self.listen()
        self.one.transport.connect(HOST, 5000)
        for index in range(30):
            self.one.transport.write(b"%d" % index, None if index % 3 else (HOST, 5000))
        self.rest()
        self.assertEqual(two.data, [b"%d" % index for index in range(30)])

    def test_defaultChanges(self) -> None:
        """
        C{connect} to another destination counts for what is written after it, in the same turn too.
        """
        two, three = self.listen(), self.b.listen(6000)
        for port, texts in ((5000, b"abc"), (6000, b"def"), (5000, b"ghi")):
            self.one.transport.connect(HOST, port)
            for text in texts:
                self.one.transport.write(bytes([text]))
        self.rest()
        self.assertEqual((b"".join(two.data), b"".join(three.data)), (b"abcghi", b"def"))

    def test_paused(self) -> None:
        """
        A protocol that stops reading in the middle gets the rest later.
        """
        two = self.listen(_Stops(lambda protocol: protocol.transport.pauseProducing()))
        two.got = []
        texts = [b"%d" % index for index in range(20)]
        self.write(*texts)
        self.settle()
        self.assertEqual(two.data, texts[:3])
        two.transport.resumeProducing()
        self.rest()
        self.assertEqual(two.data, texts)

    def test_stopped(self) -> None:
        """
        A protocol that closes in the middle gets nothing more; the rest is counted.
        """
        two = self.listen(_Stops(lambda protocol: protocol.transport.stopListening()))
        self.write(*[b"x"] * 20)
        self.settle()
        self.assertEqual(len(two.got), 3)
        self.assertEqual(self.b.network.counters["recv_drop_dead_sock"], 17)

    def test_error(self) -> None:
        """
        An exception in the protocol is logged, and costs nobody else anything.
        """
        two = self.listen(_Stops(lambda protocol: 1 // 0))
        self.write(*[b"x"] * 20)
        self.settle()
        self.assertEqual(len(two.got), 20)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_short(self) -> None:
        """
        A receiver that takes only short datagrams gets the beginning of each.
        """
        two = self.listen()
        two.transport.maxPacketSize = 3
        self.write(b"one", b"two", b"three", b"four")
        self.settle()
        self.assertEqual(two.data, [b"one", b"two", b"thr", b"fou"])

    def test_closing(self) -> None:
        """
        Datagrams written before the sender closes arrive, and none written after that.
        """
        two = self.listen()
        self.write(b"1", b"2", b"3")
        closed = self.one.transport.stopListening()
        self.write(b"4")
        self.settle()
        self.pass_(rdsPort.RDS_LINGER_SECONDS)
        self.assertEqual(two.data, [b"1", b"2", b"3"])
        self.successResultOf(closed)

    def test_cancelled(self) -> None:
        """
        Queued datagrams are dropped, each one counted.
        """
        two = self.listen()
        (session,) = self.a.medium.sessions.values()
        session.peerPaused = True
        self.write(b"1", b"2", b"3")
        self.assertEqual(self.one.transport.cancel((HOST, 5000)), 3)
        session.peerPaused = False
        self.rest()
        self.assertEqual(two.data, [])

    def test_budget(self) -> None:
        """
        The budget is kept, and comes back.
        """
        two = self.listen()
        socket, sent = self.one.socket, 0
        for _ in range(3):
            while True:
                sent += 1
                room = self.one.transport.write(b"%d" % sent, (HOST, 5000))
                self.assertLessEqual(socket._queued, limits.RDS_SEND_BUDGET + 300)
                if room is not None:
                    break
            self.assertGreaterEqual(socket._queued, limits.RDS_SEND_BUDGET - protocolBundle.RDS_BUNDLE)
            self.rest()
            self.successResultOf(room)
        self.assertEqual(two.data, [b"%d" % index for index in range(1, sent + 1)])

    def test_budgetExactly(self) -> None:
        """
        A writer that was not told to wait may write, whatever is reserved for a bundle.
        """
        two = self.listen()
        cost = limits.RDS_DATAGRAM_OVERHEAD + 1
        self.patch(limits, "RDS_SEND_BUDGET", protocolBundle.RDS_BUNDLE + cost)
        texts = [b"x", b"y", bytes(protocolBundle.RDS_BUNDLE)]
        rooms = [self.one.transport.write(text, (HOST, 5000)) for text in texts]
        self.assertEqual([room is None for room in rooms], [True, True, False])
        self.rest()
        self.assertEqual(two.data, texts)

    def test_again(self) -> None:
        """
        A bundle whose connection is lost, open or not acknowledged, arrives once.
        """
        two = self.listen()
        for turns in range(6):
            two.got.clear()
            texts = [b"%d" % index for index in range(40)]
            self.write(*texts[:20])
            for _ in range(turns // 2):
                self.a.turn()
                self.b.turn()
            self.write(*texts[20:])
            for session in list((self.a, self.b)[turns % 2].medium.sessions.values()):
                session.broken(PathLostError("a test"))
            self.settle()
            self.pass_(3.0)
            self.rest()
            self.assertEqual(two.data, texts)

    def test_moved(self) -> None:
        """
        Bundles for a process that has gone are sent to the process that has the port then, even this one.
        """
        self.listen()
        self.b.kill()
        # The last two are a bundle that is not joined.
        texts = [b"1", bytes(3000), b"3" * 3000]
        self.write(*texts)
        own = self.a.listen(5000)
        self.settle()
        self.pass_(3.0)
        self.assertEqual(own.data, texts)

    def test_bad(self) -> None:
        """
        A bundle that is none is counted, and does no harm.
        """
        two = self.listen()
        (path,) = self.a.network.paths.values()
        path.send(RDSMessage(4000, 5000, b"\0\0\0\2", flags=0x40))
        self.write(b"good")
        self.settle()
        self.assertEqual(two.data, [b"good"])
        self.assertEqual(self.b.network.counters["recv_bad_length"], 1)


class ShmBundleTests(OwnDirectory, BundleTests):
    """
    The same over rings.
    """

    device = "shm0"
