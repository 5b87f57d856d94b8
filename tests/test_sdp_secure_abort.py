"""
Tests that an abort under TLS is a loss for the peer, however soon it reads.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.protocol import Factory
from twisted.internet.ssl import ClientContextFactory
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory

from tests.certificates import selfSigned
from tests.sdp_pair import LOCALHOST, PairTestCase, Recorder
from twisted_ib.hca.endpoints.addresses import addressOf
from twisted_ib.sdp.ends import SDPServer
from twisted_ib.sdp.secure import wrapsTLS


class Inner(Recorder):
    """
    What TLS is for.
    """


class SecureAbortTests(PairTestCase):
    """
    C{abortConnection} of a protocol of TLS, on a reactor that polls.
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
        self.assertEqual([end.prompt for end in ends], [False, True])

    def test_endless(self) -> None:
        """
        Protocols that are in each other are no TLS.
        """
        one = ProtocolWrapper(WrappingFactory(Factory()), Recorder())
        two = ProtocolWrapper(WrappingFactory(Factory()), one)
        one.wrappedProtocol = two
        self.assertFalse(wrapsTLS(two))
