"""
Tests of L{twisted_ib.ipoib.protocol.routes}.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.ipoib.protocol.routes import Routes


def packed(address: str) -> bytes:
    """
    @return: an IP address in network order.
    """
    return ip_address(address).packed


class RoutesTests(SynchronousTestCase):
    """
    Next hops and sources.
    """

    def setUp(self) -> None:
        """
        Two IPv4 networks, an IPv6 one, gateways.
        """
        self.routes = Routes(
            [ip_interface(each) for each in ("10.9.0.1/24", "10.9.8.1/31", "fe80::1/64")],
            [
                (ip_network("0.0.0.0/0"), packed("10.9.0.254")),
                (ip_network("192.168.0.0/16"), packed("10.9.0.253")),
                (ip_network("2001:db8::/32"), packed("fe80::2")),
            ],
        )

    def hop(self, destination: str) -> str | None:
        """
        @return: the next hop.
        """
        found = self.routes.nextHop(packed(destination))
        return None if found is None else str(ip_address(found))

    def test_nextHops(self) -> None:
        """
        Neighbours are reached directly; of gateways, the most specific.
        """
        self.assertEqual(self.hop("10.9.0.77"), "10.9.0.77")
        self.assertEqual(self.hop("10.9.8.0"), "10.9.8.0")
        self.assertEqual(self.hop("10.9.1.1"), "10.9.0.254")
        self.assertEqual(self.hop("192.168.3.4"), "10.9.0.253")
        self.assertEqual(self.hop("fe80::77"), "fe80::77")
        self.assertEqual(self.hop("2001:db8::1"), "fe80::2")
        self.assertIsNone(self.hop("2001:db9::1"))

    def test_onLink(self) -> None:
        """
        Neighbours have no address of this interface, of a group or of all.
        """
        for address, isOnLink in (
            ("10.9.0.2", True),
            ("10.9.0.1", False),
            ("10.9.0.255", False),
            ("10.9.8.0", True),
            ("10.9.1.1", False),
            ("224.0.0.1", False),
            ("255.255.255.255", False),
            ("fe80::2", True),
            ("ff02::1", False),
        ):
            self.assertEqual(self.routes.isOnLink(packed(address)), isOnLink, address)

    def test_broadcasts(self) -> None:
        """
        One for each network of four addresses or more, and the limited one.
        """
        self.assertEqual(self.routes.broadcasts, {packed("255.255.255.255"), packed("10.9.0.255")})

    def test_sources(self) -> None:
        """
        A neighbour is asked from the address of its network.
        """
        for target, source in (
            ("10.9.0.2", "10.9.0.1"),
            ("10.9.8.0", "10.9.8.1"),
            ("172.16.0.1", "10.9.0.1"),
            ("fe80::5", "fe80::1"),
            ("2001:db8::1", "fe80::1"),
        ):
            self.assertEqual(self.routes.sourceFor(packed(target)), packed(source))
        self.assertIsNone(Routes((), ()).sourceFor(packed("10.9.0.2")))

    def test_reporters(self) -> None:
        """
        Errors come from the destination; those about a group from an address of a neighbour.
        """
        for destination, reporter in (
            ("10.9.0.2", "10.9.0.2"),
            ("172.16.0.1", "172.16.0.1"),
            ("239.1.1.1", "10.9.0.2"),
            ("10.9.0.255", "10.9.0.2"),
            ("ff02::5", "fe80::2"),
        ):
            self.assertEqual(self.routes.reporterFor(packed(destination)), packed(reporter))
        other = Routes([ip_interface("10.9.0.7/24")], ())
        self.assertEqual(other.reporterFor(packed("224.0.0.5")), packed("10.9.0.1"))
        self.assertIsNone(other.reporterFor(packed("ff02::5")))
