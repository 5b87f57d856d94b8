"""
Tests of how a connection of messages ends, and of what its REQ and REP say:
L{twisted_ib.rdma.transport}, L{twisted_ib.rdma.handshake}.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from twisted.internet import error
from twisted.python.failure import Failure

from tests.rdma.pair import EVERYTHING, Asker, PairTestCase
from tests.support.calls import requireReplaceable
from twisted_ib import limits
from twisted_ib.errors import PathLostError, QueuePairError, WireError
from twisted_ib.hca.base.operation import RESUME
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.rdma import handshake
from twisted_ib.rdma import transport as transports


class CloseTests(PairTestCase):
    """
    C{loseConnection}.
    """

    def test_flushes(self) -> None:
        """
        It waits for what was written, also while the peer does not read.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        messages = [b"%d" % number for number in range(2 * transports.RDMA_SENDS)]
        for message in messages:
            one.write(message)
        one.loseConnection()
        for _ in range(20):
            self.pair.wait()
        self.assertEqual((one.heard.log, two.heard.log), ([], []))
        two.resumeProducing()
        for _ in range(10):
            self.pair.wait()
        self.assertEqual(one.heard.log, ["ConnectionDone"])
        self.assertEqual(two.heard.log, [*messages, "ConnectionDone"])

    def test_resumes(self) -> None:
        """
        A RESUME follows only if something that was sent may have been refused.
        """
        kind = type(self.pair.connected()[0].queuePair.path)
        requireReplaceable(kind, "postReserved")
        post, words = kind.postReserved, []

        def posted(path: Any, word: int, body: bytes, refusal: bool) -> bool:
            words.append(word >> 24)
            return bool(post(path, word, body, refusal))

        self.patch(kind, "postReserved", posted)
        for isRefused in (False, True):
            one, two = self.pair.connected()
            if isRefused:
                two.pauseProducing()
            one.write(b"x"), two.write(b"y")
            self.settle()
            words.clear()
            one.abortConnection()
            self.settle()
            self.assertEqual(two.heard.log[-1], "ConnectionLost")
            self.assertEqual(RESUME in words, isRefused)

    def test_waitsForRequests(self) -> None:
        """
        It waits for what was asked for.
        """
        one, two = self.pair.connected()
        region = two.registerMemory(bytearray(b"12345678"), EVERYTHING)
        told: list[Any] = []
        one.rdmaRead(8, region.address, region.remoteKey).addCallback(told.append)
        one.fetchAdd(region.address, region.remoteKey, 1).addCallback(
            lambda value: told.append(value.to_bytes(8, "little"))
        )
        one.heard.connectionLost = lambda reason: told.append(reason.type)
        one.loseConnection()
        self.assertEqual(told, [])
        self.settle()
        self.assertEqual(told, [b"12345678", b"12345678", error.ConnectionDone])
        self.assertEqual(two.heard.log, ["ConnectionDone"])

    def test_notReentrant(self) -> None:
        """
        The protocol is not told within the call.
        """
        one, two = self.pair.connected()
        one.loseConnection()
        self.assertEqual(one.heard.log, [])
        self.settle()
        self.assertEqual((one.heard.log, two.heard.log), (["ConnectionDone"], ["ConnectionDone"]))

    def test_both(self) -> None:
        """
        Both ends may close at once, with messages on the way that nobody wants any more.
        """
        one, two = self.pair.connected()
        for end in (one, two):
            end.pauseProducing()
        for _ in range(2 * transports.RDMA_SENDS):
            one.write(b"x" * 1000), two.write(b"x" * 1000)
        one.loseConnection(), two.loseConnection()
        for _ in range(20):
            self.pair.wait()
        self.assertEqual((one.heard.log, two.heard.log), (["ConnectionDone"], ["ConnectionDone"]))

    def test_nothingAfter(self) -> None:
        """
        After C{loseConnection} nothing is delivered, and nothing held.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        one.write(b"waits")
        one.loseConnection()
        two.write(b"unwanted")
        self.settle()
        self.assertEqual(self.pair.a.device.receiveBudget.heldBytes, 0)
        two.resumeProducing()
        self.pair.wait()
        self.assertEqual(one.heard.log, ["ConnectionDone"])
        self.assertEqual(two.heard.log, [b"waits", "ConnectionDone"])

    def test_pausedHearsLater(self) -> None:
        """
        As with a stream, a protocol that is paused hears of the peer's close when it resumes.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        one.loseConnection()
        self.settle()
        self.assertEqual((one.heard.log, two.heard.log), (["ConnectionDone"], []))
        two.write(b"in vain")
        self.settle()
        self.assertEqual(two.heard.log, [])
        two.resumeProducing()
        self.settle()
        self.assertEqual(two.heard.log, ["ConnectionDone"])

    def test_pausedCloses(self) -> None:
        """
        Or when it closes itself.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        one.loseConnection()
        self.settle()
        two.loseConnection()
        self.settle()
        self.assertEqual(two.heard.log, ["ConnectionDone"])

    def test_producerFirst(self) -> None:
        """
        A push producer that is not paused is stopped; the connection closes.
        """
        one, _ = self.pair.connected()
        stopped: list[str] = []

        class Producer:
            """
            Remembers its end.
            """

            def stopProducing(self) -> None:
                stopped.append("stop")

        one.registerProducer(Producer(), True)
        one.loseConnection()
        self.settle()
        self.assertEqual((stopped, one.heard.log), (["stop"], ["ConnectionDone"]))

    def test_peerWithVerbs(self) -> None:
        """
        A DREQ that says nothing, as C{rdma_disconnect} sends it, closes in order; ours says
        nothing either.
        """
        raw, transport = self.pair.raw()
        raw.disconnect()
        self.settle()
        self.assertEqual(transport.heard.log, ["ConnectionDone"])
        raw, transport = self.pair.raw()
        transport.loseConnection()
        self.settle()
        self.assertEqual(raw.log, ["DREQ b''"])

    def test_nothingLeft(self) -> None:
        """
        Nothing of a connection is left: no timer, no queue pair, no domain, no reader.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        one.write(b"x"), one.send(b"y")
        self.settle()
        two.resumeProducing()
        one.loseConnection()
        self.pair.wait()
        for end in self.pair.ends:
            used = end.device.inUse()
            self.assertEqual((used["qp"], used["pd"], used["mr"]), (0, 0, 0))
            end.channel.release(end.keeper)
            self.settle()
            self.assertEqual(end.reactor.getDelayedCalls(), [])
            end.channel.acquire(end.keeper)


class PolledCloseTests(CloseTests):
    """
    The same where the reactor polls.
    """

    polled = True


class AbortTests(PairTestCase):
    """
    Connections that end otherwise.
    """

    def test_abort(self) -> None:
        """
        An abort is a ConnectionAborted here, in a later turn, and a ConnectionLost there; what
        waited is dropped.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        for _ in range(2 * transports.RDMA_SENDS):
            one.write(b"x")
        one.abortConnection()
        one.abortConnection()
        one.write(b"y")
        self.assertEqual(one.heard.log, [])
        self.settle()
        self.assertEqual((one.heard.log, two.heard.log), (["ConnectionAborted"], ["ConnectionLost"]))
        self.assertIn("aborted", str(two.heard.reason.value))

    def test_noCycle(self) -> None:
        """
        Where nothing is lost no answer is awaited: the connection forgets its transport at once.
        """
        one, two = self.pair.connected()
        connection = one.connection
        one.reset()
        self.assertIsNone(connection.user)
        self.settle()
        self.assertEqual(two.heard.log, ["ConnectionLost"])

    def test_abortAfterLose(self) -> None:
        """
        C{abortConnection} ends a close that waits.
        """
        one, two = self.pair.connected()
        two.pauseProducing()
        one.write(b"x")
        one.loseConnection()
        self.settle()
        self.assertEqual(one.heard.log, [])
        one.abortConnection()
        self.settle()
        self.assertEqual((one.heard.log, two.heard.log), (["ConnectionAborted"], ["ConnectionLost"]))

    def test_abortInMessage(self) -> None:
        """
        A protocol that aborts in a message gets no other.
        """
        one, two = self.pair.connected()
        two.heard.hook = lambda data: two.abortConnection()
        for number in range(5):
            one.write(b"%d" % number)
        self.settle()
        self.assertEqual(two.heard.log, [b"0", "ConnectionAborted"])
        self.assertEqual(one.heard.log, ["ConnectionLost"])

    def test_pathLost(self) -> None:
        """
        A peer's process that dies: what it sent is delivered first.
        """
        one, two = self.pair.connected()
        two.write(b"last words")
        self.settle()
        one.queuePair.path.lost(PathLostError("the peer died"))
        self.settle()
        self.assertEqual(one.heard.log, [b"last words", "ConnectionLost"])
        self.assertIn("the peer died", str(one.heard.reason.value))

    def test_pathLostAfterAbort(self) -> None:
        """
        A peer that dies in the turn of an abort changes nothing of what the protocol hears.
        """
        one, _ = self.pair.connected()
        one.abortConnection()
        one.queuePair.path.lost(PathLostError("the peer died"))
        one.endOfBatch()
        self.settle()
        self.assertEqual(one.heard.log, ["ConnectionAborted"])

    def test_failedWhilePaused(self) -> None:
        """
        A connection that breaks is told also to a protocol that is paused, and to the peer.
        """
        one, two = self.pair.connected()
        one.pauseProducing()
        one.queuePair.fail(QueuePairError("broken"))
        self.settle()
        self.assertEqual((one.heard.log, two.heard.log), (["ConnectionLost"], ["ConnectionLost"]))

    def test_failedEarly(self) -> None:
        """
        One that breaks before there is a protocol is told to it then, behind what came.
        """
        one, two = self.pair.transport(self.pair.a), self.pair.transport(self.pair.b)
        self.pair.join(one, two)
        self.pair.attach(one)
        one.write(b"early")
        self.settle()
        two.connected = 1
        two.startReading()
        two.queuePair.fail(QueuePairError("broken"))
        two.protocol.makeConnection(two)
        self.settle()
        self.assertEqual(two.heard.log, [b"early", "ConnectionLost"])

    def test_repRefused(self) -> None:
        """
        A peer that does not want, or does not answer, the REP; it is told nothing more.
        """
        for end in ("rejected", "unreachable"):
            one, two = self.pair.connected()
            if end == "rejected":
                two.rejected(two.connection, None)
            else:
                two.unreachable(two.connection)
            self.settle()
            self.assertEqual((one.heard.log, two.heard.log), ([], ["ConnectionLost"]))

    def test_peerHasEnded(self) -> None:
        """
        A peer that has ended the connection, in order or not, is told nothing more.
        """
        for said, reason in ((b"aborted", "ConnectionLost"), (b"", "ConnectionDone")):
            one, two = self.pair.connected()
            connection, ended = two.connection, Mock(disconnectData=said.ljust(224, b"\0"))
            two.connection = ended
            two.peerDisconnected(ended)
            self.settle()
            self.assertEqual((two.heard.log, ended.mock_calls), ([reason], []))
            self.pair.b.device.disconnect(connection)
            self.settle()
            self.assertEqual(one.heard.log, ["ConnectionDone"])

    def test_withdrawn(self) -> None:
        """
        A passive side that gives up before it has the RTU says so too, in its REJ.
        """
        for disconnectData, reason in ((b"", "ConnectionDone"), (b"aborted", "ConnectionLost")):
            one, two = self.pair.transport(self.pair.a), self.pair.transport(self.pair.b)
            self.pair.listener.messages = two
            accept = self.pair.listener.connectionRequested

            def acceptAndGo(
                connection: Any, request: Any, accept: Any = accept, disconnectData: bytes = disconnectData
            ) -> None:
                accept(connection, request)
                connection.disconnect(self.pair.b.device.clock(), disconnectData)

            self.pair.listener.connectionRequested = acceptAndGo  # type: ignore[method-assign]
            one.connected = two.connected = 1
            one.reading = True
            a = self.pair.a.device
            asker = Asker(one, a, self.pair.port)
            a.connect(handshake.PORT_SPACE, "127.0.0.1", self.pair.port, asker)
            self.settle()
            self.assertEqual(one.heard.log, [reason])
            self.pair.listener.connectionRequested = accept  # type: ignore[method-assign]
            two.abandon()

    def test_reactorStops(self) -> None:
        """
        With the reactor the connection goes.
        """
        one, two = self.pair.connected()
        done = one.send(b"x")
        self.pair.a.channel.close()
        self.failureResultOf(done)
        self.assertEqual(one.heard.log, ["ConnectionLost"])
        self.settle()
        self.assertEqual(two.heard.log, [b"x", "ConnectionDone"])

    def test_lostTwice(self) -> None:
        """
        The end is told once.
        """
        one, _ = self.pair.connected()
        one.connectionLost(Failure(error.ConnectionLost()))
        one.connectionLost(Failure(error.ConnectionLost()))
        self.assertEqual(one.heard.log, ["ConnectionLost"])


class HandshakeTests(PairTestCase):
    """
    The contents of REQ and REP.
    """

    def test_req(self) -> None:
        """
        The REQ has RDMA_PS_TCP's service id and the 36-byte header: version 0, IPv4, source
        port and addresses; then the user's bytes.
        """
        one = self.pair.transport(self.pair.a, privateData=b"private\0data\0")
        two = self.pair.transport(self.pair.b, privateData=b"\1" * 196)
        self.pair.join(one, two)
        request = self.pair.listener.request
        assert request is not None
        self.assertEqual(request.serviceID, 0x0000000001060000 | self.pair.port)
        self.assertEqual(
            request.privateData.hex(),
            "0040" + "9c40" + "00" * 12 + "7f000001" + "00" * 12 + "7f000001"
            + b"private\0data\0".ljust(56, b"\0").hex(),
        )  # fmt: skip
        self.assertEqual((request.rnrRetryCount, request.retryCount, request.pathMTU), (7, 7, 5))
        self.assertEqual(
            (request.responderResources, request.initiatorDepth), (limits.RDMA_READS, limits.RDMA_READS)
        )
        self.assertEqual(two.peerPrivateData, b"private\0data\0".ljust(56, b"\0"))
        self.assertEqual(one.peerPrivateData, b"\1" * 196)

    def test_longestPrivateData(self) -> None:
        """
        56 bytes fit into the REQ.
        """
        one = self.pair.transport(self.pair.a, privateData=bytes(range(56)))
        two = self.pair.transport(self.pair.b)
        self.pair.join(one, two)
        self.assertEqual(two.peerPrivateData, bytes(range(56)))

    def test_noHeader(self) -> None:
        """
        A REQ whose header is of another version is refused by name.
        """
        for first in (b"\1\x40", b"\0\x50"):
            self.assertRaises(
                WireError, handshake.requested, ConnectRequest(privateData=first.ljust(92, b"\0"))
            )

    def test_reads(self) -> None:
        """
        Each side has as many READs on the way as the other serves, and not more than it can.
        """
        transport = self.pair.transport(self.pair.a)
        for offered in (0, 1, 200):
            request = ConnectRequest(
                privateData=bytes(92), responderResources=offered, initiatorDepth=offered
            )
            reply = handshake.reply(transport, request, None)  # type: ignore[arg-type]
            expected = min(offered, limits.RDMA_READS)
            self.assertEqual((reply.responderResources, reply.initiatorDepth), (expected, expected))
            self.assertEqual(reply.rnrRetryCount, 7)

    def test_joined(self) -> None:
        """
        A peer that offers and wants little gets that; one that wants more than there can be gets
        what there is.
        """
        for side, offered, least in (
            ("request", 200, limits.RDMA_READS),
            ("request", 1, 1),
            ("reply", 200, limits.RDMA_READS),
            ("reply", 2, 2),
        ):
            one, two = self.pair.transport(self.pair.a), self.pair.transport(self.pair.b)
            make = getattr(handshake, side)

            def other(*arguments: Any, make: Any = make, offered: int = offered) -> Any:
                message = make(*arguments)
                message.responderResources = message.initiatorDepth = offered
                return message

            self.patch(handshake, side, other)
            self.pair.join(one, two)
            self.patch(handshake, side, make)
            told = two if side == "request" else one
            attributes = told.work.attributes
            self.assertEqual((attributes.reads, attributes.peerReads), (least, least))

    def test_retries(self) -> None:
        """
        A peer without a receive is asked again for ever, whatever it says.
        """
        transport = self.pair.transport(self.pair.a)
        two = self.pair.transport(self.pair.b)
        reply = handshake.reply

        def modest(*arguments: Any) -> Any:
            message = reply(*arguments)
            message.rnrRetryCount = 1
            return message

        self.patch(handshake, "reply", modest)
        self.pair.join(transport, two)
        self.assertEqual(transport.work.attributes.rnrRetries, 7)
        self.assertEqual(transport.work.attributes.retries, 7)
