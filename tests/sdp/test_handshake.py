"""
Tests for L{twisted_ib.sdp.handshake}: the two greetings and what they set.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.errors import SDPWireError, WireError
from twisted_ib.hca.base.traits import Peers
from twisted_ib.hca.cm.machine import replyMessage, requestMessage, requestOf
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.request import ANY_PATH
from twisted_ib.hca.wire.cm.messages import REP, REQ
from twisted_ib.internet.addressing import addresses
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.sdp.handshake import GID_HANDSHAKE
from twisted_ib.sdp.handshake import SDP_HANDSHAKE as handshake
from twisted_ib.sdp.protocol import wire
from twisted_ib.sdp.protocol.machine import Machine


class _Path:
    """
    The way to a peer.
    """

    messageBytes = limits.INLINE_RECORD


class _QueuePair:
    """
    Remembers what it is connected to.
    """

    path = _Path()
    number = 0x123456
    posted = 24
    connected: tuple[Any, int] | None = None

    def connect(self, path: Any, remote: int, message: Any = None) -> None:
        self.connected = (path, remote)


class _Stream:
    """
    The parts of a stream that a handshake touches.
    """

    reads = 16
    longest = maxPayload = limits.INLINE_MESSAGE
    adverts = limits.SDP_ADVERTS

    def __init__(self) -> None:
        """
        A stream that nobody has greeted.
        """
        self.queuePair = _QueuePair()
        self.machine = Machine(24)
        self.connection: Any = None

    def limitPayload(self, count: int) -> None:
        """
        So many bytes at a time.
        """
        self.maxPayload = count


class _Connection:
    """
    The CM's connection.
    """

    destination = object()
    user: Any = None


def asked(stream: Any, peer: str = "192.0.2.2") -> ConnectRequest:
    """
    Make a REQ to port 5001.
    """
    local = "192.0.2.1" if ":" not in peer else "2001:db8::1"
    return handshake.request(stream, addressOf(local, 40000), addressOf(peer, 5001))


def changed(message: Any, offset: int, value: int) -> None:
    """
    Replace a byte of a message's private data.
    """
    private = bytearray(message.privateData)
    private[offset] = value
    message.privateData = bytes(private)


class ActiveTests(SynchronousTestCase):
    """
    Tests for the side that asks.
    """

    def test_request(self) -> None:
        """
        The REQ has our queue pair and C{0x1pppp}; its private data is a Hello.
        """
        request = asked(_Stream())
        self.assertEqual(request.serviceID, 0x11389)
        self.assertEqual(request.localQPN, 0x123456)
        self.assertEqual((request.responderResources, request.initiatorDepth), (16, 16))
        self.assertEqual(
            request.privateData.hex(),
            "000000180000005c0000000000000000"
            "22400010"
            "0001001000010010"
            "9c400000"
            "000000000000000000000000c0000201"
            "000000000000000000000000c0000202" + "00" * 28,
        )
        self.assertEqual(REQ.parse(requestMessage(request).pack(), 0, 232).privateData, request.privateData)

    def test_requestIPv6(self) -> None:
        """
        IPv6 addresses fill their fields; a scope is left out.
        """
        hello = handshake.requested(asked(_Stream(), "fe80::2%ib0"))
        self.assertEqual(hello.ipVersion, 6)
        self.assertEqual(handshake.addresses(hello), ("fe80::2", "2001:db8::1"))

    def test_addressesRemembered(self) -> None:
        """
        The same addresses are not parsed again for the next connection; how
        many are remembered is bounded, and what is no address is not.
        """
        cached: list[Any] = [
            *(addresses.canonical, wire.packAddress, wire.unpackAddress, wire.ipVersionOf),
        ]
        for function in cached:
            function.cache_clear()

        def connect() -> None:
            self.assertEqual(addresses.canonical("192.0.2.2"), "192.0.2.2")
            hello = handshake.requested(asked(_Stream()))
            self.assertEqual(handshake.addresses(hello), ("192.0.2.2", "192.0.2.1"))

        connect()
        before = [function.cache_info().misses for function in cached]
        for _ in range(3):
            connect()
        self.assertEqual([function.cache_info().misses for function in cached], before)
        self.assertEqual(before, [1, 2, 2, 1])
        for number in range(limits.ADDRESSES_REMEMBERED + 10):
            text = f"10.0.{number >> 8}.{number & 255}"
            self.assertEqual(wire.unpackAddress(wire.packAddress(text), wire.ipVersionOf(text)), text)
            self.assertEqual(addresses.canonical(text), text)
        for function in cached:
            self.assertEqual(function.cache_info().currsize, limits.ADDRESSES_REMEMBERED)
        for _ in range(2):
            self.assertRaises(ValueError, wire.packAddress, "localhost")

    def test_replied(self) -> None:
        """
        A REP joins the queue pairs, with the credits and the size that the
        HelloAck tells.
        """
        stream: Any = _Stream()
        connection = _Connection()
        hello = wire.HelloAck(buffers=7, actualReceiveBytes=4096)
        message = ConnectReply(localQPN=0x654321, privateData=hello.pack())
        handshake.replied(stream, connection, message)
        self.assertEqual(stream.queuePair.connected, (connection.destination, 0x654321))
        self.assertEqual(stream.machine.credits(), 7)
        self.assertEqual(stream.maxPayload, 4080)
        self.assertIs(stream.connection, connection)
        self.assertIs(connection.user, stream)
        self.assertEqual(stream.longest, limits.INLINE_MESSAGE)

    def test_longest(self) -> None:
        """
        Messages that are sent are no longer than what the path carries well, with their headers.
        """
        stream: Any = _Stream()
        stream.queuePair.path = _Path()
        stream.queuePair.path.messageBytes = 15 * 4096
        message = ConnectReply(privateData=wire.HelloAck(buffers=7, actualReceiveBytes=1 << 20).pack())
        handshake.replied(stream, _Connection(), message)
        self.assertEqual(stream.longest, 15 * 4096 - 16)
        self.assertEqual(stream.maxPayload, limits.INLINE_MESSAGE)

    def test_badReplies(self) -> None:
        """
        No HelloAck, or one with another major version than ours, joins nothing.
        """
        good = ConnectReply(privateData=wire.HelloAck(buffers=7, actualReceiveBytes=4096).pack())
        bad = [ConnectReply(), ConnectReply(privateData=asked(_Stream()).privateData)]
        for offset, value in [(0, 0), (7, 0xC3), (16, 0x11), (16, 0x33), (19, 0)]:
            message = ConnectReply(privateData=good.privateData)
            changed(message, offset, value)
            bad.append(message)
        for message in bad:
            stream: Any = _Stream()
            self.assertRaises(WireError, handshake.replied, stream, _Connection(), message)
            self.assertIsNone(stream.queuePair.connected)
            self.assertIsNone(stream.connection)


class PassiveTests(SynchronousTestCase):
    """
    Tests for the side that answers.
    """

    def test_requested(self) -> None:
        """
        The Hello of a REQ is read, after the CM's codec too.
        """
        request = requestOf(REQ.parse(requestMessage(asked(_Stream())).pack(), 0, 232))
        hello = handshake.requested(request)
        self.assertEqual(hello.buffers, 24)
        self.assertEqual(hello.localPort, 40000)
        self.assertEqual(handshake.addresses(hello), ("192.0.2.2", "192.0.2.1"))

    def test_badRequests(self) -> None:
        """
        Private data without a Hello is a L{WireError}: empty, another message, another version.
        """
        bad = [ConnectRequest(), ConnectRequest(privateData=bytes(92))]
        for offset, value in [(0, 1), (7, 0x5B), (16, 0x33), (17, 0x50), (19, 0), (11, 1)]:
            request = asked(_Stream())
            changed(request, offset, value)
            bad.append(request)
        for request in bad:
            self.assertRaises(WireError, handshake.requested, request)

    def test_smallReceives(self) -> None:
        """
        A peer whose receives hold next to nothing, so that each byte would be a
        message, is refused on both sides.
        """
        request = asked(_Stream())
        for size in (0, 17, limits.SDP_LEAST_PAYLOAD + 15):
            private = bytearray(request.privateData)
            private[24:28] = size.to_bytes(4, "big")
            self.assertRaises(SDPWireError, handshake.requested, ConnectRequest(privateData=bytes(private)))
            stream: Any = _Stream()
            answer = ConnectReply(privateData=wire.HelloAck(buffers=7, actualReceiveBytes=size).pack())
            self.assertRaises(SDPWireError, handshake.replied, stream, _Connection(), answer)
            self.assertIsNone(stream.connection)

    def test_reply(self) -> None:
        """
        The REP has our queue pair and a HelloAck of 196 bytes.
        """
        stream: Any = _Stream()
        message = handshake.reply(stream, asked(stream), handshake.requested(asked(stream)))
        self.assertEqual(message.localQPN, 0x123456)
        self.assertEqual(
            message.privateData.hex(),
            "01000018000000c400000000000000002200001000010010" + "00" * 172,
        )
        self.assertEqual(REP.parse(replyMessage(message).pack(), 0, 232).privateData, message.privateData)

    def test_replyVersion(self) -> None:
        """
        The answer has the major version that was offered.
        """
        stream: Any = _Stream()
        request = asked(stream)
        for offered, answered in [(0x11, 0x11), (0x10, 0x11), (0x22, 0x22), (0x2F, 0x22)]:
            changed(request, 16, offered)
            message = handshake.reply(stream, request, handshake.requested(request))
            self.assertEqual(message.privateData[16], answered)

    def test_accepted(self) -> None:
        """
        The queue pair is joined to the one that asked; a message is never
        longer than ours may be, whatever the peer takes.
        """
        for receiveBytes, payload in [
            (1040, 1024),
            (4096, 4080),
            (limits.INLINE_MESSAGE + 16, limits.INLINE_MESSAGE),
            ((1 << 32) - 1, limits.INLINE_MESSAGE),
        ]:
            stream: Any = _Stream()
            connection = _Connection()
            request = asked(_Stream())
            private = bytearray(request.privateData)
            private[24:28] = receiveBytes.to_bytes(4, "big")
            request.privateData = bytes(private)
            handshake.accepted(stream, connection, request, handshake.requested(request))
            self.assertEqual(stream.queuePair.connected, (connection.destination, 0x123456))
            self.assertEqual(stream.machine.credits(), 24)
            self.assertEqual(stream.maxPayload, payload)

    def test_adverts(self) -> None:
        """
        The peer's MaxAdverts counts, or the extended one if it says so; and its READ depth, up
        to ours.  OFED says 1 and 4.
        """
        for adverts, capabilities, extended, reads, expected in [
            (1, 0, 0, 4, (1, 4)),
            (255, 0, 1000, 200, (255, 16)),
            (255, 2, 1000, 0, (1000, 0)),
            (7, 2, 0, 16, (7, 16)),
        ]:
            stream: Any = _Stream()
            request = asked(_Stream())
            private = bytearray(request.privateData)
            private[17] |= capabilities
            private[19] = adverts
            private[66:68] = extended.to_bytes(2, "big")
            request.privateData = bytes(private)
            request.responderResources = reads
            handshake.accepted(stream, _Connection(), request, handshake.requested(request))
            self.assertEqual((stream.adverts, stream.reads), expected)


class GIDTests(SynchronousTestCase):
    """
    Tests for the handshake between GIDs.
    """

    def _asked(self, local: str, peer: str, peers: Peers = Peers.PROCESSES) -> ConnectRequest:
        stream: Any = _Stream()
        device = SimpleNamespace(traits=SimpleNamespace(peers=peers))
        stream.channel = SimpleNamespace(device=device)
        return GID_HANDSHAKE.request(stream, addressOf(local, 40000), addressOf(peer, 5001))

    def test_request(self) -> None:
        """
        The service id is C{0x13Fpppp}; private data is a Hello alone, with GIDs; the path has them too.
        """
        request = self._asked("192.0.2.1", "192.0.2.2")
        self.assertEqual(request.serviceID, 0x13F1389)
        self.assertEqual(
            request.privateData.hex(),
            "000000180000005c0000000000000000"
            "22600010"
            "0001001000010010"
            "9c400000"
            "00000000000000000000ffffc0000201"
            "00000000000000000000ffffc0000202" + "00" * 28,
        )
        path = requestOf(REQ.parse(requestMessage(request).pack(), 0, 232)).primaryPath
        self.assertEqual(path.localGID.hex(), "00000000000000000000ffffc0000201")
        self.assertEqual(path.remoteGID.hex(), "00000000000000000000ffffc0000202")

    def test_addresses(self) -> None:
        """
        Both addresses are the text of their GIDs.
        """
        for local, peer in (("192.0.2.1", "192.0.2.2"), ("fe80::1", "fe80::2"), ("2001:db8::1", "::1")):
            greeting = GID_HANDSHAKE.requested(self._asked(local, peer))
            self.assertEqual(GID_HANDSHAKE.addresses(greeting), (peer, local))
            self.assertEqual(GID_HANDSHAKE.sourcePort(greeting), 40000)

    def test_filled(self) -> None:
        """
        Where the device fills in the path, it is left to it.
        """
        for peers in (Peers.ADDRESSES, Peers.SUBNET):
            self.assertIs(self._asked("192.0.2.1", "192.0.2.2", peers).primaryPath, ANY_PATH)
