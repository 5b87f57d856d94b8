"""
Ping: all lengths, floods, and the path MTU between modes.
"""

from __future__ import annotations

from tests.support.waiting import HANG_SECONDS
from tests.tun.lab import Host, TunTestCase

#: Pings of one sweep, and of a flood.
SWEEP, FLOOD = 2000, 10_000
#: Seconds that a sweep or a flood may take.
LONG = 4 * HANG_SECONDS
#: Octets of headers in front of an echo's data.
HEADERS4, HEADERS6 = 28, 48


class PingTests(TunTestCase):
    """
    Echoes between two hosts.
    """

    def sweep(self, host: Host, address: str, most: int) -> str:
        """
        Send one echo of each of many lengths.

        @param most: octets of data, of the longest.
        @return: how many were answered.
        """
        step = f"$(( (i * {most} + {SWEEP // 2}) / {SWEEP - 1} ))"
        return host.do(
            f"n=0; i=0; while [ $i -lt {SWEEP} ]; do"
            f" ping -q -M do -c 1 -W 5 -s {step} {address} > last && n=$((n + 1));"
            " i=$((i + 1)); done; echo $n",
            LONG,
        ).strip()

    def check(self, mtu: int, mode: str) -> None:
        """
        Sweep in IPv4 and in IPv6, to a link-local address.
        """
        first, second = self.pair(mode=mode, mtu=mtu)
        self.assertEqual(self.sweep(second, "10.9.0.1", mtu - HEADERS4), str(SWEEP))
        self.assertEqual(self.sweep(second, self.linkLocal(first), mtu - HEADERS6), str(SWEEP))

    def test_datagram(self) -> None:
        """
        In datagram mode 0 to 2,016 octets, 2,000 of 2,000.
        """
        self.check(2044, "datagram")

    def test_connected(self) -> None:
        """
        In connected mode 0 to 65,492 octets, 2,000 of 2,000.
        """
        self.check(65520, "connected")

    def test_flood(self) -> None:
        """
        C{ping -f} of 10,000, which root alone may do: none is lost.
        """
        for mode in ("datagram", "connected"):
            hosts = self.pair(mode=mode, isRoot=True)
            said = hosts[1].do(f"ping -q -f -c {FLOOD} 10.9.0.1", LONG)
            self.assertIn(f"{FLOOD} packets transmitted, {FLOOD} received", said)
            self.assertEqual([each.end() for each in hosts], [0, 0])


class PathTests(TunTestCase):
    """
    A neighbour with a smaller MTU.
    """

    def test_mixed(self) -> None:
        """
        A connected host learns by ICMP that a neighbour takes 2,044 octets, in IPv4 and in IPv6; TCP goes on.
        """
        small = self.host("10.9.0.1/24", mode="datagram", mtu=2044)
        large = self.host("10.9.0.2/24", mtu=65520)
        address = self.linkLocal(small)
        for target, headers in (("10.9.0.1", HEADERS4), (address, HEADERS6)):
            large.do(f"ping -q -c 1 -w 10 {target}")
            large.begin(f"ping -c 1 -W 2 -M do -s {65520 - headers} {target}")
            status, said = large.outcome()
            self.assertEqual(status, 1)
            self.assertRegex(said, r"(?i)(frag needed|too big).*mtu ?[=:]? ?2044")
            large.do(f"ping -q -c 3 -W 5 -M do -s {2044 - headers} {target}")
            self.assertIn("mtu 2044", large.do(f"ip route get {target.partition('%')[0]} oif {self.device}"))
        small.begin("iperf3 --server --one-off")
        large.retry("iperf3 -c 10.9.0.1 -n 10M")
        small.outcome()


class SubnetPingTests(PingTests):
    """
    The same on a subnet, with its paths and groups.
    """

    device = "ib0"
