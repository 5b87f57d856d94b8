"""
Tests of TLS that wraps a connection: that an abort is a loss for the peer, however soon it reads, and
that nothing goes out beside it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.ssl import ClientContextFactory
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory

from tests.sdp.pair import LOCALHOST, PairTestCase, Recorder
from tests.support.certificates import selfSigned
from twisted_ib.errors import MemoryAccessError
from twisted_ib.interfaces import ISDPTransport
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.sdp.port import SDPServer
from twisted_ib.sdp.secure import wrapsTLS

#: So many bytes go by zero copy where there is no TLS.
_LONG = 1 << 20


class Inner(Recorder):
    """
    The protection that TLS gives.
    """


class SecureTestCase(PairTestCase):
    """
    Base of tests of protocols of TLS, on a reactor that polls.
    """

    polled = True

    def wrapped(self, client: bool) -> tuple[Any, Any]:
        """
        @return: a protocol of TLS and what is in it.
        """
        inner = Inner()
        factory = Factory.forProtocol(lambda: inner)
        context: Any = ClientContextFactory() if client else self.options
        self.patch(factory, "noisy", False)
        clock: Any = (self.pair.a if client else self.pair.b).reactor
        secure = TLSMemoryBIOFactory(context, client, factory, clock)
        return secure.buildProtocol(addressOf(LOCALHOST, 1)), inner

    def pairOf(self, one: Any, two: Any) -> list[Any]:
        """
        Connect two protocols.

        @return: their transports.
        """
        ends = []
        for end, protocol in ((self.pair.a, one), (self.pair.b, two)):
            transport: Any = SDPServer(
                end.channel, addressOf(LOCALHOST, 1), addressOf(LOCALHOST, 2), None, len(ends)
            )
            end.channel.acquire(transport)
            transport.protocol = protocol
            ends.append(transport)
        self.pair.join(*ends)
        for transport, protocol in zip(ends, (one, two), strict=True):
            transport.attach(protocol)
            self.pair.advance(0)
        self.pair.settle()
        return ends


class SecureAbortTests(SecureTestCase):
    """
    C{abortConnection} of a protocol of TLS.
    """

    def test_abort(self) -> None:
        """
        The peer, who reads whenever it can, is not told that TLS has been shut down in order.
        """
        self.options, _ = selfSigned(self.mktemp(), "localhost")
        for peerReads in (False, True):
            (one, sender), (two, receiver) = self.wrapped(True), self.wrapped(False)
            self.pairOf(one, two)
            sender.transport.write(b"hello")
            self.pair.advance(0)
            self.pair.settle()
            self.assertEqual(receiver.data, b"hello")
            sender.transport.abortConnection()
            if peerReads:
                self.pair.b.turn()
            self.pair.advance(0)
            self.pair.settle()
            self.assertEqual((peerReads, receiver.calls), (peerReads, ["ConnectionLost"]))

    def test_whoWraps(self) -> None:
        """
        A protocol of TLS is found inside of others; others wait for nothing.
        """
        self.options, _ = selfSigned(self.mktemp(), "localhost")
        secure, _ = self.wrapped(False)
        around = ProtocolWrapper(WrappingFactory(Factory()), secure)
        for protocol, wraps in ((secure, True), (around, True), (Recorder(), False), (None, False)):
            self.assertEqual(wrapsTLS(protocol), wraps)
        ends = self.pairOf(around, Recorder())
        self.assertEqual([end.prompt > 0 for end in ends], [False, True])

    def test_endless(self) -> None:
        """
        Protocols that are in each other are no TLS.
        """
        one = ProtocolWrapper(WrappingFactory(Factory()), Recorder())
        two = ProtocolWrapper(WrappingFactory(Factory()), one)
        one.wrappedProtocol = two
        self.assertFalse(wrapsTLS(two))


class SecureRegisteredTests(SecureTestCase):
    """
    ISDPTransport as a protocol in TLS finds it, whose transport is a protocol of TLS.
    """

    def setUp(self) -> None:
        """
        Two protocols in TLS.
        """
        super().setUp()
        self.options, _ = selfSigned(self.mktemp(), "localhost")
        (one, self.sender), (two, self.receiver) = self.wrapped(True), self.wrapped(False)
        self.ends = self.pairOf(one, two)
        self.transport: Any = self.sender.transport
        self.assertTrue(ISDPTransport.providedBy(self.transport))

    def test_registered(self) -> None:
        """
        Registered memory is encrypted, whatever its size, in the order of the writes.
        """
        data = bytes(range(256)) * (_LONG // 256)
        region = self.transport.registerMemory(data)
        ends: list[Any] = []
        for offset in (0, _LONG - 10):
            self.transport.write(b"then")
            self.transport.writeRegistered(region, offset).addBoth(ends.append)
        self.assertEqual(ends, [None, None])
        self.pair.advance(0)
        self.pair.settle()
        self.assertEqual(self.receiver.calls, [])
        self.assertEqual(self.receiver.data == b"then" + data + b"then" + data[-10:], True)

    def test_urgent(self) -> None:
        """
        There is no urgent data, and what is tried does no harm.
        """
        with self.assertRaises(ValueError):
            self.transport.sendUrgent(b"!")
        self.transport.write(b"hello")
        self.pair.advance(0)
        self.pair.settle()
        self.assertEqual(self.receiver.log, [b"hello"])

    def test_noRegion(self) -> None:
        """
        A region that is not of this connection is refused, as without TLS.
        """
        other: Any = self.receiver.transport
        with self.assertRaises(TypeError):
            self.transport.writeRegistered(b"bytes")
        with self.assertRaises(MemoryAccessError):
            self.transport.writeRegistered(other.registerMemory(10))

    def test_ended(self) -> None:
        """
        After the end the Deferred fails, as without TLS.
        """
        region = self.transport.registerMemory(10)
        self.ends[0].abortConnection()
        self.pair.advance(0)
        self.pair.settle()
        self.failureResultOf(self.transport.writeRegistered(region), ConnectionDone)
