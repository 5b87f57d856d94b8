"""
Tests for L{twisted_ib.switch.reason}: what is counted of connections, and how a decision reads.
"""

from __future__ import annotations

import socket
from typing import Any
from unittest.mock import Mock

from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.switch import reason as module
from twisted_ib.switch.reason import Fallback, Reason, carried, noListener, remote, stayed, withdrawn


class OutcomeTests(SynchronousTestCase):
    """
    How many connections have had each outcome.
    """

    def setUp(self) -> None:
        """
        None yet.
        """
        self.outcomes: dict[tuple[str, str, str], int] = {}
        self.patch(module, "outcomes", self.outcomes)

    def test_kinds(self) -> None:
        """
        Over TCP it is the fallback, that it was asked for, the rule, that the client came so, or that the
        program made the socket.
        """
        silent = Fallback("silent", "x")
        for provider, why, key in (
            ("sdp", Reason("r:1", "sdp"), ("sdp", "", "")),
            ("tcp", None, ("tcp", "socket", "")),
            ("tcp", Reason("explicit", "both", fallback=silent), ("tcp", "silent", "")),
            ("tcp", Reason("explicit", "tcp"), ("tcp", "explicit", "")),
            ("tcp", Reason("r:1", "tcp"), ("tcp", "rule", "r:1")),
            ("tcp", Reason("r:1", "both"), ("tcp", "client", "")),
        ):
            for count in (1, 2):
                carried(provider, why)
                self.assertEqual(self.outcomes.pop(key) if count == 2 else self.outcomes[key], count)
            self.assertEqual(self.outcomes, {})

    def test_bound(self) -> None:
        """
        Beyond L{limits.OUTCOMES} they are counted together, and those that are known as before.
        """
        self.patch(limits, "OUTCOMES", 2)
        for rule in ("a", "b", "c", "d", "a"):
            carried("tcp", Reason(rule, "tcp"))
        counted = {rule: count for (_, _, rule), count in self.outcomes.items() if rule}
        self.assertEqual(counted, {"a": 2, "b": 1})
        self.assertEqual(self.outcomes["tcp", "others", ""], 2)

    def test_withdrawn(self) -> None:
        """
        A socket that its program uses by itself was none over SDP.
        """
        carried("sdp", None)
        carried("sdp", None)
        withdrawn()
        self.assertEqual(self.outcomes, {("sdp", "", ""): 1, ("tcp", "socket", ""): 1})

    def test_stayed(self) -> None:
        """
        A socket that stays with the kernel has its reason, which is logged once for each kind.
        """
        told: Any = Mock()
        self.patch(Logger, "info", told)
        with socket.socket() as one, socket.socket() as other:
            for skt in (one, other):
                stayed(skt, Fallback("forked", "a child has it"))
            why = module.kept[other]
        self.assertEqual(str(why), "tcp, by rule default (both): a child has it")
        self.assertEqual(self.outcomes, {("tcp", "forked", ""): 2})
        told.assert_called_once_with("{reason}", reason="a child has it")


class TextTests(SynchronousTestCase):
    """
    What people read.
    """

    def test_reasons(self) -> None:
        """
        A decision says its provider, device, rule and fallback, as far as they are known.
        """
        for why, text in (
            (Reason("default", "both"), "undecided, by rule default (both)"),
            (Reason("f:2", "sdp", "sdp", "shm0"), "sdp on shm0, by rule f:2 (sdp)"),
            (
                Reason("f:2", "both", "tcp", None, remote("h")),
                "tcp, by rule f:2 (both): h is not an address of this host",
            ),
            (
                Reason("f:2", "both", "tcp", None, noListener("h:1")),
                "tcp, by rule f:2 (both): nobody offers SDP on h:1",
            ),
        ):
            self.assertEqual(str(why), text)
