"""
Tests for L{twisted_ib.tools.show.filters}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.tools.show.filters import WORDS, FilterError, expression, inState


def row(local: str | None, remote: str | None, state: str = "ESTABLISHED") -> dict[str, Any]:
    """
    @return: what a filter looks at.
    """
    return {"local": local, "remote": remote, "state": state}


ROWS = {
    "web": row("0.0.0.0:80", None, "LISTEN"),
    "near": row("10.1.2.3:80", "10.1.2.4:40000"),
    "far": row("10.1.2.3:80", "192.0.2.1:40001", "FIN_WAIT1"),
    "six": row("[2001:db8::1]:443", "[fe80::1%eth0]:50000", "SYN_SENT"),
    "none": row(None, None, "X"),
    "odd": row("x", "y:z", "CLOSE"),
}


class FilterTests(SynchronousTestCase):
    """
    Expressions, and what they leave.
    """

    def left(self, *words: str) -> list[str]:
        """
        @return: the rows that an expression is true of.
        """
        test = expression(words)
        return [name for name, each in ROWS.items() if test(each)]

    def test_ports(self) -> None:
        """
        Each operator of ss(8), by its sign and its word, with and without a colon; names of services.
        """
        self.assertEqual(self.left("sport", "=", ":80"), ["web", "near", "far"])
        self.assertEqual(self.left("sport 80"), ["web", "near", "far"])
        self.assertEqual(self.left("sport = :http"), ["web", "near", "far"])
        for words, found in (
            ("= ==  eq", ["far"]),
            ("!= ne neq", ["near", "six"]),
            ("< lt", ["near"]),
            ("<= le leq", ["near", "far"]),
            ("> gt", ["six"]),
            (">= ge geq", ["far", "six"]),
        ):
            for word in words.split():
                self.assertEqual(self.left("dport", word, ":40001"), found, word)

    def test_hosts(self) -> None:
        """
        An address, a network, with a port or a port alone.
        """
        self.assertEqual(self.left("dst 192.0.2.1"), ["far"])
        self.assertEqual(self.left("dst 10.0.0.0/8"), ["near"])
        self.assertEqual(self.left("src 10.1.2.3:80"), ["near", "far"])
        self.assertEqual(self.left("src 10.1.2.3:81"), [])
        self.assertEqual(self.left("src 2001:db8::/32"), ["six"])
        self.assertEqual(self.left("src [2001:db8::1]:443"), ["six"])
        self.assertEqual(self.left("dst [fe80::1]"), ["six"])
        self.assertEqual(self.left("src :443"), ["six"])
        self.assertEqual(self.left("src *:443"), ["six"])

    def test_states(self) -> None:
        """
        By the names of the kernel and of ss(8).
        """
        self.assertEqual(self.left("state established"), ["near"])
        self.assertEqual(self.left("state listening"), ["web"])
        self.assertEqual(self.left("state FIN-WAIT-1"), ["far"])
        self.assertEqual(self.left("state syn-sent"), ["six"])
        self.assertEqual(self.left("state connected"), ["near", "far", "six", "none"])
        self.assertEqual(len(self.left("state all")), len(ROWS))
        self.assertEqual(self.left("state synchronized"), ["near", "far", "none"])
        self.assertEqual(self.left("state bucket"), [])
        self.assertEqual(len(self.left("state big")), len(ROWS))
        self.assertEqual([name for name, each in ROWS.items() if inState("closed")(each)], ["odd"])

    def test_unknownState(self) -> None:
        """
        A state that there is not is an error, which names one that is like it.
        """
        for name, meant in (
            ("lisen", "; did you mean listening?"),
            ("ESTABLISHD", "; did you mean established?"),
            ("time_wat", "; did you mean time-wait?"),
            ("X", ""),
        ):
            error = self.assertRaises(FilterError, inState, name)
            self.assertEqual(str(error), f"{name!r} is no state of ss(8){meant}")
        self.assertRaises(FilterError, expression, ["sport = :80 and state lisen"])

    def test_logic(self) -> None:
        """
        C{and} binds more than C{or} and may be left out; parentheses need no blanks.
        """
        self.assertEqual(self.left("sport = :443 or sport = :80 and dport = :40000"), ["near", "six"])
        self.assertEqual(self.left("(sport = :443 or sport = :80) and dport = :40000"), ["near"])
        self.assertEqual(self.left("sport = :80 dst 10.1.2.4"), ["near"])
        self.assertEqual(self.left("not", "state", "established", "&", "sport = :80"), ["web", "far"])
        self.assertEqual(self.left("! ( state established | state listen ) && sport = :80"), ["far"])

    def test_errors(self) -> None:
        """
        An expression that is none is an error that says where.
        """
        for text, said in (
            ("sport", "ends where a port"),
            ("sport =", "ends where a port"),
            ("sport = :nosuchservice", "'nosuchservice' is no port"),
            ("sport = :70000", "'70000' is no port"),
            ("sport = " + "1" * 5000, "is no port"),
            ("sport = \udcff", "is no port"),
            ("dst 300.0.0.1", "'300.0.0.1' is no IP address"),
            ("fwmark = 1", "'fwmark' is no test"),
            ("( sport = :1", "ends where ')'"),
            ("sport = :1 )", "')' does not belong"),
            ("not", "ends where a test"),
            ("state", "ends where a state"),
            ("not " * (WORDS + 1), f"at most {WORDS} words"),
        ):
            self.assertIn(said, str(self.assertRaises(FilterError, expression, text.split())), text)
        self.assertRaises(FilterError, expression, ["(" * WORDS])
