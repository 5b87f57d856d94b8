"""
Tests for L{twisted_ib.switch.listeners}, without a reactor.
"""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import Mock

from twisted.internet.error import CannotListenError
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.switch.listeners import SocketListeners, refusal

#: What a device may say, by letters of the cases below.
_REFUSALS = {"b": OSError(errno.EADDRINUSE, "taken"), "o": OSError(errno.EIO, "broken")}


class _Port(SocketListeners):
    """
    Of devices that refuse as they are told.
    """

    def __init__(self, rule: str, verdict: str, told: str) -> None:
        """
        @param told: A letter for each device: C{l} if it listens.
        """
        self.mock: Any = Mock()
        self.reactor = Mock()
        self._withoutListeners(self.mock, self.reactor)
        self.why.rule, self.why.verdict, self.told, self.closed = rule, verdict, told, 0
        self._address, self.interface = Mock(port=5), "127.0.0.1"

    def _joinBeside(self, skt: Any, address: Any) -> list[CannotListenError]:
        self.sdpListeners = tuple(Mock(device=each) for each in self.told if each == "l")
        return [CannotListenError("127.0.0.1", 5, _REFUSALS[each]) for each in self.told if each != "l"]

    def close(self) -> None:
        """
        Count.
        """
        self.closed += 1

    def logPrefix(self) -> str:
        """
        Nothing.
        """
        return ""


class RefusedTests(SynchronousTestCase):
    """
    Which refusals of devices are the port's.
    """

    def test_refused(self) -> None:
        """
        By default none is; a rule C{both} minds a number in use, and C{sdp} whatever leaves no listener; a
        program that draws its number minds one in use everywhere, as another one would do.  A device that
        listens makes up for one that is broken, and for none whose number is in use.
        """
        for rule, verdict, told, draws, outcome in (
            ("default", "both", "", False, "tcp"),
            ("default", "both", "b", False, "tcp"),
            ("default", "both", "o", False, "tcp"),
            ("default", "both", "lb", False, "both"),
            ("default", "both", "b", True, errno.EADDRINUSE),
            ("default", "both", "o", True, "tcp"),
            ("default", "both", "lb", True, errno.EADDRINUSE),
            ("default", "both", "lo", True, "both"),
            ("rules:1", "both", "b", False, errno.EADDRINUSE),
            ("rules:1", "both", "ob", False, errno.EADDRINUSE),
            ("rules:1", "both", "lb", False, errno.EADDRINUSE),
            ("rules:1", "both", "o", False, "tcp"),
            ("rules:1", "both", "lo", False, "both"),
            ("rules:1", "sdp", "l", False, "sdp"),
            ("rules:1", "sdp", "l", True, "sdp"),
            ("rules:1", "sdp", "lo", False, "sdp"),
            ("rules:1", "sdp", "o", False, errno.EIO),
            ("rules:1", "sdp", "b", False, errno.EADDRINUSE),
            ("rules:1", "sdp", "lb", False, errno.EADDRINUSE),
            ("rules:1", "tcp", "b", True, "tcp"),
        ):
            case = rule, verdict, told, draws
            port, skt = _Port(rule, verdict, told), Mock()
            if isinstance(outcome, int):
                failure = self.assertRaises(OSError, port._open, skt, draws)
                self.assertEqual((failure.errno, port.closed, port.connected), (outcome, 1, False), case)
                port.mock.listening.assert_not_called()
                continue
            port._open(skt, draws)
            said = (port.why.provider, port.alone, port.closed, port.connected)
            self.assertEqual(said, (outcome, outcome == "sdp", 0, True), case)
            fell = port.mock.fellBack.call_count
            refused = bool(told) and verdict != "tcp"
            self.assertEqual(fell, int(refused and outcome == "tcp"), case)

    def test_words(self) -> None:
        """
        A refusal has the number of its reason, which says that it is SDP's; what has none is
        EADDRNOTAVAIL.
        """
        for reason, number, text in (
            (OSError(errno.EACCES, "may not"), errno.EACCES, "SDP: may not"),
            (OSError(errno.EACCES, ""), errno.EACCES, f"SDP: [Errno {errno.EACCES}] "),
            (ValueError("odd"), errno.EADDRNOTAVAIL, "SDP: odd"),
        ):
            made = refusal(CannotListenError("127.0.0.1", 5, reason))
            self.assertEqual((made.errno, made.strerror), (number, text))
