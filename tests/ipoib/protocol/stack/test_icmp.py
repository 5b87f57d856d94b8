"""
Tests for L{twisted_ib.ipoib.protocol.stack.icmp}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.ipoib.protocol.stack import vectors
from tests.ipoib.protocol.stack.vectors import A6, B6, A, B
from twisted_ib.errors import HeaderError, LengthError
from twisted_ib.ipoib.protocol.ip import TOO_BIG, packICMP
from twisted_ib.ipoib.protocol.stack.icmp import ICMPMessage, Quoted, portUnreachable
from twisted_ib.ipoib.protocol.stack.packets import IPPacket, fragments


class MessageTests(SynchronousTestCase):
    """
    Messages.
    """

    def test_echo(self) -> None:
        """
        The reply to an echo request is that of Linux.
        """
        for ping, pong, start, own, peer in (
            (vectors.PING, vectors.PONG, 20, A, B),
            (vectors.PING_IPV6, vectors.PONG_IPV6, 40, A6, B6),
        ):
            request = ICMPMessage.parse(IPPacket.parse(ping))
            self.assertTrue(request.isEchoRequest)
            self.assertFalse(request.isError)
            self.assertEqual(request.body, b"ping me")
            self.assertEqual(request.echoReply(own, peer), pong[start:])
            reply = ICMPMessage.parse(IPPacket.parse(pong))
            self.assertFalse(reply.isEchoRequest or reply.isError or reply.isPortUnreachable)

    def test_portUnreachable(self) -> None:
        """
        The error about a datagram that nothing receives is that of Linux.
        """
        for stray, error, start, own, peer in (
            (vectors.STRAY, vectors.UNREACHABLE, 20, A, B),
            (vectors.STRAY_IPV6, vectors.UNREACHABLE_IPV6, 40, A6, B6),
        ):
            self.assertEqual(portUnreachable(IPPacket.parse(stray), own), error[start:])
            parsed = ICMPMessage.parse(IPPacket.parse(error))
            self.assertTrue(parsed.isError and parsed.isPortUnreachable)
            self.assertFalse(parsed.isTooBig or parsed.isEchoRequest)
            self.assertEqual(parsed.quoted(), Quoted(peer, own, (7001, 9999)))

    def test_quoteIsBounded(self) -> None:
        """
        An error's packet has 576 octets at most, or 1,280 over IPv6.
        """
        for source, destination, longest in ((B, A, 576), (B6, A6, 1280)):
            (frame,) = fragments(source, destination, 17, 64, bytes(3000), 4000, 0)
            error = portUnreachable(IPPacket.parse(frame[4:]), destination)
            self.assertEqual(len(error) + (20 if longest == 576 else 40), longest)

    def test_tooBig(self) -> None:
        """
        The MTU of the path: 16 bits of IPv4's, 32 of IPv6's.
        """
        for source, destination, start, quoted, mtu in (
            (B, A, 20, vectors.HELLO, 0x05DC),
            (B6, A6, 40, vectors.HELLO_IPV6, 0x000105DC),
        ):
            version = 4 if start == 20 else 6
            segment = packICMP(source, destination, TOO_BIG[version], 0x000105DC, quoted)
            (frame,) = fragments(source, destination, 1 if version == 4 else 58, 64, segment, 4000, 0)
            parsed = ICMPMessage.parse(IPPacket.parse(frame[4:]))
            self.assertTrue(parsed.isError and parsed.isTooBig)
            self.assertEqual(parsed.pathMTU, mtu)

    def test_refused(self) -> None:
        """
        Each octet that is another, and each length but the whole.
        """
        for packet, start in ((vectors.PING, 20), (vectors.PING_IPV6, 40)):
            ip = IPPacket.parse(packet)
            for at in range(start, len(packet)):
                wrong = bytearray(packet)
                wrong[at] ^= 1
                with self.assertRaises(HeaderError):
                    ICMPMessage.parse(IPPacket.parse(bytes(wrong)))
            for stop in range(start, len(packet)):
                cut = IPPacket(packet, ip.version, ip.source, ip.destination, ip.protocol, 64, start, stop)
                with self.assertRaises((HeaderError, LengthError)):
                    ICMPMessage.parse(cut)


class QuotedTests(SynchronousTestCase):
    """
    Packets that errors are about.
    """

    def test_fragments(self) -> None:
        """
        The first fragment has the ports, others have not.
        """
        for packets, version in ((vectors.FRAGMENTS, 4), (vectors.FRAGMENTS_IPV6, 6)):
            self.assertEqual(Quoted.parse(version, packets[0]).ports, (7000, 7001))
            self.assertIs(Quoted.parse(version, packets[1]).ports, None)

    def test_others(self) -> None:
        """
        Other protocols have no ports.
        """
        self.assertIs(Quoted.parse(4, vectors.PING).ports, None)
        self.assertIs(Quoted.parse(6, vectors.PING_IPV6).ports, None)

    def test_refused(self) -> None:
        """
        Less than 8 octets behind the header, no header, another version.
        """
        for version, packet, least in ((4, vectors.HELLO, 28), (6, vectors.HELLO_IPV6, 48)):
            Quoted.parse(version, packet[:least])
            for length in range(least):
                with self.assertRaises((HeaderError, LengthError)):
                    Quoted.parse(version, packet[:length])
            with self.assertRaises(HeaderError):
                Quoted.parse(10 - version, packet)
        for length in range(48, 56):
            with self.assertRaises(LengthError):
                Quoted.parse(6, vectors.FRAGMENTS_IPV6[0][:length])
        with self.assertRaises(LengthError):
            Quoted.parse(4, b"\x44" + vectors.HELLO[1:])
