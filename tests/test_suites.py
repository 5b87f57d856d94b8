"""
Tests of the comparison of suites.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.suites import compare
from tests.suites.redirect import Redirection

_IB, _EPOLL = "m.T_IBReactorTests.test_x", "m.T_EPollReactorTests.test_x"


class Fake:
    """
    Runs tests by giving what is to become of them.
    """

    def __init__(self, **fails: bool) -> None:
        """
        @param fails: By the run's first word, whether a test fails.
        """
        self.fails = fails
        self.ran: list[tuple[str, list[str]]] = []

    def run(self, run: str, names: list[str], seconds: int) -> Any:
        """
        Give it.
        """
        self.ran.append((run, names))
        outcome = compare.Outcome()
        outcome.results[compare.plain(names[0])] = ("failed" if self.fails[run] else "ok", "")
        return outcome


def outcome(**kinds: str) -> compare.Outcome:
    """
    @param kinds: By name, what became of tests.
    """
    made = compare.Outcome()
    for name, kind in kinds.items():
        made.results[name] = (kind, "a reason")
        made.names[name] = name
    return made


class OutcomeTests(SynchronousTestCase):
    """
    What is read from a child's file.
    """

    def read(self, *lines: Any, cut: str = "") -> compare.Outcome:
        """
        @param lines: The file's.
        @param cut: What stands behind them.
        """
        path = Path(self.mktemp())
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + cut)
        made = compare.Outcome()
        made.read(path)
        return made

    def test_results(self) -> None:
        """
        Results by names that do not say which reactor it was; a failure outweighs what else is said.
        """
        made = self.read(
            ["ran", _IB],
            ["failed", _IB, "because"],
            ["ok", _IB, ""],
            ["ran", "m.T.test_y"],
            ["skipped", "m.T.test_y", "no reason"],
            ["carried", 7],
        )
        self.assertEqual(made.having("failed"), {_EPOLL})
        self.assertEqual(made.having("skipped"), {"m.T.test_y"})
        self.assertEqual((made.names[_EPOLL], made.carried, made.trouble), (_IB, 7, ""))

    def test_cutShort(self) -> None:
        """
        A child that ends early has failed in the test that it was in.
        """
        made = self.read(["ran", "a"], ["ok", "a", ""], ["ran", "b"], cut='["ok", "b')
        self.assertEqual((made.having("ok"), made.having("failed")), ({"a"}, {"b"}))

    def test_neverBegun(self) -> None:
        """
        One that has written nothing has failed as a whole.
        """
        made = compare.Outcome()
        made.read(Path("nowhere"))
        self.assertEqual(made.having("failed"), {"nowhere"})


class DifferenceTests(SynchronousTestCase):
    """
    What is called a difference.
    """

    def test_steady(self) -> None:
        """
        What fails on epoll, too, is none; what fails again on ib only is one.
        """
        runner: Any = Fake(ib=True, epoll=False)
        found = compare.differences(
            runner, "ib", outcome(a="failed", b="ok"), outcome(a="failed", b="failed")
        )
        self.assertEqual(found, (["b"], []))
        self.assertEqual(runner.ran, [("ib", ["b"]), ("epoll", ["b"])])

    def test_unsteady(self) -> None:
        """
        What does not fail again, or fails on epoll then, is none.
        """
        for fails in ({"ib": False, "epoll": False}, {"ib": True, "epoll": True}):
            runner: Any = Fake(**fails)
            found = compare.differences(runner, "ib", outcome(b="ok"), outcome(b="failed"))
            self.assertEqual(found, ([], ["b"]))

    def test_others(self) -> None:
        """
        What is left out, or not there, is told.
        """
        text = compare._others(
            "ib", outcome(a="ok", b="ok", c="failed", d="ok"), outcome(a="skipped", b="ok", c="ok")
        )
        self.assertEqual(len(text), 3)
        self.assertIn("left out: 1, such as a: a reason", text[0])
        self.assertIn("did not run: d", text[1])
        self.assertIn("fails on epoll only: c", text[2])

    def test_packages(self) -> None:
        """
        All packages by default; some by name; half of them.
        """
        every = compare.packages("")
        self.assertIn("twisted.internet", every["internet"])
        self.assertIn("twisted.python", every["small"])
        self.assertEqual(
            compare.packages("web,twisted.test.test_tcp"),
            {
                "web": ["twisted.web"],
                "twisted.test.test_tcp": ["twisted.test.test_tcp"],
            },
        )
        self.assertEqual(set(compare.packages("half")), set(compare.HALF))


class RedirectionTests(SynchronousTestCase):
    """
    Which connections go by SDP.
    """

    def test_carries(self) -> None:
        """
        Those to this host and to a port of this process, of the same reactor.
        """
        redirection, reactor = Redirection("lo0"), object()
        redirection.ports[id(reactor), 7000] = None  # type: ignore[assignment]
        for host in ("127.0.0.1", "127.1.2.3", "localhost", "::1", "fe80::1%lo"):
            self.assertTrue(redirection.carries(reactor, host, 7000, None))
        self.assertTrue(redirection.carries(reactor, "::1", 7000, ("", 0)))
        for host, port, bound in (
            ("192.0.2.1", 7000, None),
            ("127.0.0.1", 7001, None),
            ("127.0.0.1", "7000", None),
            ("127.0.0.1", 7000, object()),
            (b"127.0.0.1", 7000, None),
        ):
            self.assertFalse(redirection.carries(reactor, host, port, bound))
        self.assertFalse(redirection.carries(object(), "127.0.0.1", 7000, None))
