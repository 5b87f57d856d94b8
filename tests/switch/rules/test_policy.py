"""
Tests for what rules mean.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.support.generated import given, settings
from twisted_ib.configuration.syntax import Timeouts
from twisted_ib.hca.device.registry import parseRules as parse
from twisted_ib.switch.rules import policy as rulesPolicy
from twisted_ib.switch.rules.policy import DEFAULT, Policy, policyOf

VECTORS = """\
use tcp server ttcp* *:22-25
use sdp connect * 192.168.1.0/24:*
use both listen * *:8080
"""


def policy(text: str, named: bool = False) -> Policy:
    """
    @param text: a file.
    @param named: whether the user named it.

    @return: its policy.
    """
    return policyOf(parse(text, "f"), named)


class DecideTests(SynchronousTestCase):
    """
    The first rule that fits decides.
    """

    def check(self, text: str, *cases: tuple[str, str, str, int, str, str]) -> None:
        """
        @param text: a file.
        @param cases: role, program, address, port, and the verdict and place to get.
        """
        rules = policy(text)
        for role, program, address, port, verdict, where in cases:
            decision = rules.decide(role, program, address, port)
            self.assertEqual(
                (decision.verdict, decision.where), (verdict, where), (role, program, address, port)
            )
            self.assertEqual(decision.rule is None, where == "default")
            self.assertEqual(bool(decision.reason), where == "default")

    def test_vectors(self) -> None:
        """
        The vectors that the rules of libsdp give.
        """
        self.check(
            VECTORS,
            ("server", "ttcpd", "0.0.0.0", 23, "tcp", "f:1"),
            ("server", "ttcpd", "0.0.0.0", 26, "both", "default"),
            ("client", "x", "192.168.1.9", 80, "sdp", "f:2"),
            ("client", "x", "192.168.2.9", 80, "both", "default"),
            ("server", "TTCP", "0.0.0.0", 23, "both", "default"),
            ("server", "x", "0.0.0.0", 8080, "both", "f:3"),
        )

    def test_roles(self) -> None:
        """
        Both words for a role mean the same, in a rule and in a question; rules of one role say nothing
        of the other.
        """
        for rule, asked in (("listen", "connect"), ("server", "client")):
            for first, other in ((rule, asked), (asked, rule)):
                text = f"use tcp {first} * *:*"
                alias = {"listen": "server", "server": "listen", "connect": "client", "client": "connect"}
                self.check(
                    text,
                    (first, "x", "", 1, "tcp", "f:1"),
                    (alias[first], "x", "", 1, "tcp", "f:1"),
                    (other, "x", "", 1, "both", "default"),
                )
        for ask in (DEFAULT.tcpOnly, DEFAULT.certain):
            self.assertRaises(ValueError, ask, "bind", "x")
        self.assertRaises(ValueError, DEFAULT.decide, "bind", "x", "", 1)

    def test_firstMatch(self) -> None:
        """
        Rules are looked at in the file's order.
        """
        self.check(
            "use both listen * *:80\nuse tcp listen * *:80-90\nuse sdp listen * *:*\nuse tcp listen * *:*",
            ("listen", "x", "", 80, "both", "f:1"),
            ("listen", "x", "", 81, "tcp", "f:2"),
            ("listen", "x", "", 90, "tcp", "f:2"),
            ("listen", "x", "", 91, "sdp", "f:3"),
            ("listen", "x", "", 0, "sdp", "f:3"),
            ("listen", "x", "", 65535, "sdp", "f:3"),
        )

    def test_hostBits(self) -> None:
        """
        The host bits of an IPv4 rule are not masked: it never matches.  Those of an IPv6 rule are.
        """
        self.check(
            "use sdp connect * 10.0.0.5/24:*\nuse tcp connect * 1::5/64:*",
            ("connect", "x", "10.0.0.5", 80, "both", "default"),
            ("connect", "x", "10.0.0.0", 80, "both", "default"),
            ("connect", "x", "1::5", 80, "tcp", "f:2"),
            ("connect", "x", "1::6", 80, "tcp", "f:2"),
            ("connect", "x", "1:0:0:1::5", 80, "both", "default"),
        )

    def test_zero(self) -> None:
        """
        0.0.0.0 is every address of either family, a length of 0 is none.
        """
        for zero in ("0.0.0.0", "0.0.0.0/0", "0.0.0.0/8"):
            self.check(
                f"use tcp connect * {zero}:80",
                ("connect", "x", "9.9.9.9", 80, "tcp", "f:1"),
                ("connect", "x", "::1", 80, "tcp", "f:1"),
                ("connect", "x", "host", 80, "tcp", "f:1"),
                ("connect", "x", "::1", 81, "both", "default"),
            )
        self.check(
            "use tcp connect * 9.9.9.9/0:*\nuse tcp connect * ::/0:*",
            ("connect", "x", "9.9.9.9", 80, "tcp", "f:1"),
            ("connect", "x", "9.9.9.8", 80, "both", "default"),
            ("connect", "x", "::", 80, "tcp", "f:2"),
            ("connect", "x", "::1", 80, "both", "default"),
        )

    def test_families(self) -> None:
        """
        An IPv4 rule is none for IPv6, also where the address holds an IPv4 one, and the other way round.
        """
        self.check(
            "use tcp connect * 1.2.3.4:*\nuse tcp connect * ::ffff:1.2.3.5:*",
            ("connect", "x", "1.2.3.4", 80, "tcp", "f:1"),
            ("connect", "x", "::ffff:1.2.3.4", 80, "both", "default"),
            ("connect", "x", "1.2.3.5", 80, "both", "default"),
            ("connect", "x", "::ffff:102:305", 80, "tcp", "f:2"),
            ("connect", "x", "::102:304", 80, "both", "default"),
        )

    def test_wildcard(self) -> None:
        """
        A port on every address is bound to 0.0.0.0 or ::, which only rules for all, or for just that,
        fit.
        """
        self.check(
            "use sdp listen * 127.0.0.1:*\nuse tcp listen * :::80",
            ("listen", "x", "", 80, "both", "default"),
            ("listen", "x", "0.0.0.0", 80, "both", "default"),
            ("listen", "x", "127.0.0.1", 80, "sdp", "f:1"),
            ("listen", "x", "::", 80, "tcp", "f:2"),
            ("listen", "x", "::1", 80, "both", "default"),
        )

    def test_zonesAndNames(self) -> None:
        """
        The zone of an address does not count, a name fits only what is for all.
        """
        self.check(
            "use sdp connect * fe80::/10:*\nuse tcp connect * *:80",
            ("connect", "x", "fe80::1%eth0", 80, "sdp", "f:1"),
            ("connect", "x", "localhost", 80, "tcp", "f:2"),
            ("connect", "x", "localhost", 81, "both", "default"),
        )

    def test_networks(self) -> None:
        """
        Networks hold what the module ipaddress says.
        """

        @settings(max_examples=200, deadline=None)
        @given(st.data())
        def agrees(data: st.DataObject) -> None:
            four = data.draw(st.booleans())
            width = 32 if four else 128
            length = data.draw(st.integers(1, width))
            value = data.draw(st.integers(1, (1 << width) - 1))
            near = data.draw(st.sampled_from([value, value ^ 1 << data.draw(st.integers(0, width - 1))]))
            kind, of = (IPv4Network, IPv4Address) if four else (IPv6Network, IPv6Address)
            network = kind((value, length), strict=False)
            if network.network_address == of(0):
                return
            decision = policy(f"use tcp connect * {network}:*").decide("connect", "x", str(of(near)), 1)
            self.assertEqual(decision.verdict == "tcp", of(near) in network)

        agrees()


class DefaultTests(SynchronousTestCase):
    """
    The decision where no rule matches.
    """

    def test_noFile(self) -> None:
        """
        Without a file it is both, on the shared-memory device.
        """
        decision = DEFAULT.decide("listen", "x", "", 80)
        self.assertEqual(
            (decision.verdict, decision.where, decision.reason),
            ("both", "default", "no rules are configured"),
        )
        self.assertEqual((DEFAULT.devices, DEFAULT.devicesFor("1.2.3.4")), ((), ("shm0",)))
        self.assertEqual((DEFAULT.timeouts, DEFAULT.source), (Timeouts(), None))

    def test_noRule(self) -> None:
        """
        A file without a rule means SDP if the user named it, and both if it was just there.
        """
        for text in ("", "# nothing", "log min-level 9\ndevice x shm"):
            for named, verdict in ((True, "sdp"), (False, "both")):
                for role in ("listen", "connect"):
                    decision = policy(text, named).decide(role, "x", "", 80)
                    self.assertEqual(
                        (decision.verdict, decision.where, decision.reason),
                        (verdict, "default", "f holds no rule"),
                    )

    def test_noMatch(self) -> None:
        """
        A file with any rule, of either role, means both where none matches.
        """
        decision = policy("use tcp listen nobody *:1", True).decide("connect", "x", "1.2.3.4", 80)
        self.assertEqual(
            (decision.verdict, decision.where, decision.reason), ("both", "default", "no rule matches")
        )


class CertainTests(SynchronousTestCase):
    """
    Decisions before address and port are known.
    """

    def test_tcpOnly(self) -> None:
        """
        TCP is certain if every rule that may decide says so.
        """
        for text, expected in (
            ("", False),
            ("use tcp listen * *:*", True),
            ("use tcp listen * 0.0.0.0:*", True),
            ("use tcp listen * *:0-65535", True),
            ("use tcp listen * *:1-65535", False),
            ("use tcp listen * 1.2.3.4:*", False),
            ("use tcp listen * *:80\nuse tcp listen p *:*", True),
            ("use tcp listen * *:80\nuse tcp listen q *:*", False),
            ("use sdp listen * *:80\nuse tcp listen * *:*", False),
            ("use sdp listen q *:80\nuse tcp listen * *:*", True),
            ("use sdp connect * *:80\nuse tcp listen * *:*", True),
            ("use tcp listen * *:*\nuse sdp listen * *:80", True),
            ("use both listen * *:*\nuse tcp listen * *:*", False),
        ):
            rules = policy(text)
            for role in ("listen", "server"):
                self.assertEqual(rules.tcpOnly(role, "p"), expected, text)
            self.assertEqual(rules.hits, {})

    def test_certain(self) -> None:
        """
        A decision is certain if one rule, or no rule, can make it.
        """
        certain = policy("use sdp listen p *:*\nuse tcp listen * *:80\nuse tcp listen * *:*").certain
        found = [certain("listen", "p"), certain("listen", "x"), certain("connect", "x")]
        self.assertEqual(
            [d and (d.verdict, d.where) for d in found], [("sdp", "f:1"), None, ("both", "default")]
        )

    def test_agrees(self) -> None:
        """
        A certain decision is the one that is made.
        """
        lines = st.builds(
            "use {} {} {} {}:{}".format,
            st.sampled_from(["tcp", "tcp", "sdp"]),
            st.sampled_from(["listen", "connect"]),
            st.sampled_from(["*", "p", "q"]),
            st.sampled_from(["*", "*", "0.0.0.0", "1.2.3.4"]),
            st.sampled_from(["*", "*", "80", "0-65535"]),
        )
        asked = [
            (address, port) for address in ("", "1.2.3.4", "::1", "9.9.9.9") for port in (0, 80, 81, 65535)
        ]

        @settings(max_examples=300, deadline=None)
        @given(st.lists(lines, max_size=5).map("\n".join))
        def agrees(text: str) -> None:
            rules = policy(text)
            for role in ("listen", "connect"):
                decisions = {rules.decide(role, "p", *where) for where in asked}
                if rules.tcpOnly(role, "p"):
                    self.assertEqual({d.verdict for d in decisions}, {"tcp"})
                certain = rules.certain(role, "p")
                if certain is not None:
                    self.assertEqual(decisions, {certain})

        agrees()

    def test_programsRemembered(self) -> None:
        """
        Only so many programs are remembered, and asking for more changes no answer.
        """
        rules = policy("use tcp listen p1* *:*")
        for number in range(3 * rulesPolicy.POLICY_PROGRAMS):
            expected = str(number).startswith("1")
            self.assertEqual(rules.tcpOnly("listen", f"p{number}"), expected)
            self.assertEqual(rules.decide("listen", f"p{number}", "", 1).verdict == "tcp", expected)
        self.assertLessEqual(len(rules._relevant), rulesPolicy.POLICY_PROGRAMS)
        self.assertLessEqual(len(rules._tcpOnly), rulesPolicy.POLICY_PROGRAMS)


class CountTests(SynchronousTestCase):
    """
    How often which rule decided.
    """

    def test_hits(self) -> None:
        """
        Each decision is counted by its place.
        """
        rules = policy(VECTORS)
        for port in (8080, 8080, 1):
            rules.decide("listen", "x", "", port)
        self.assertEqual(rules.hits, {"f:3": 2, "default": 1})
        self.assertEqual(policy(VECTORS).hits, {})


class RouteTests(SynchronousTestCase):
    """
    Which devices lead where.
    """

    def test_order(self) -> None:
        """
        Without a route it is the shared memory and then the file's devices.
        """
        rules = policy("device b shm\ndevice a loopback\ndevice shm0 shm")
        self.assertEqual(rules.devicesFor("127.0.0.1"), ("shm0", "b", "a"))
        self.assertEqual([device.name for device in rules.devices], ["b", "a", "shm0"])

    def test_longestPrefix(self) -> None:
        """
        The route with the longest prefix counts, of equals the first.
        """
        rules = policy(
            "device a shm\ndevice b shm\ndevice c shm\n"
            "route * c\n"
            "route 10.0.0.0/8 a\n"
            "route 10.1.0.0/16 b shm0\n"
            "route 10.1.0.0/16 a\n"
            "route 0.0.0.0/0 b\n"
            "route fe80::/10 a b\n"
        )
        for address, expected in (
            ("10.1.2.3", ("b", "shm0")),
            ("10.2.2.3", ("a",)),
            ("11.2.2.3", ("b",)),
            ("", ("b",)),
            ("fe80::1%x", ("a", "b")),
            ("::1", ("c",)),
            ("name", ("c",)),
        ):
            self.assertEqual(rules.devicesFor(address), expected, address)
