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


class DeviceTests(SynchronousTestCase):
    """
    Devices that come and go.
    """

    def test_going(self) -> None:
        """
        The listener of a device that goes is closed, and no other; one that cannot be closed keeps none from
        its end.
        """
        for broken in (False, True):
            port = _Port("default", "both", "")
            listeners = [Mock(device=name) for name in ("shm0", "lo5")]
            port.sdpListeners = tuple(listeners)
            if broken:
                listeners[0].close.side_effect = ZeroDivisionError("a device's own")
            port.deviceGoing("shm0")
            self.assertEqual([each.close.call_count for each in listeners], [1, 0])
            self.assertEqual((port.sdpListeners, port.why.device), ((listeners[1],), "lo5"))
            self.assertEqual(port.why.provider, "both")
            port.deviceGoing("lo5")
            self.assertEqual((port.sdpListeners, port.why.device, port.why.provider), ((), None, "tcp"))
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), int(broken))

    def test_lost(self) -> None:
        """
        A port without a TCP socket ends with its last listener, once; another stays.
        """
        for alone, connected, ends in ((True, True, 1), (True, False, 0), (False, True, 0)):
            port = _Port("default", "sdp", "")
            ended: list[Any] = []
            self.patch(port, "connectionLost", ended.append)
            one, other = Mock(), Mock()
            port.sdpListeners, port.alone, port.connected = (one, other), alone, connected
            port.listenerLost(one, Mock())
            self.assertEqual((port.sdpListeners, ended), ((other,), []))
            port.listenerLost(other, Mock())
            self.assertEqual(len(ended), ends)

    def test_added(self) -> None:
        """
        A port listens on a device that is added later if it listens at all, not on it yet, and the rules name
        it; a refusal leaves the port as it is.
        """
        for at, connected, has, served, told, joined in (
            (None, True, "", ("new",), "new", []),
            (Mock(), False, "", ("new",), "new", []),
            (Mock(), True, "new", ("new",), "new", []),
            (Mock(), True, "", ("old",), "new", []),
            (Mock(), True, "old", ("old", "new"), "new", ["new"]),
        ):
            port, calls = _Port("default", "both", ""), []

            def join(devices: tuple[str, ...], calls: list[str] = calls) -> list[CannotListenError]:
                calls.extend(devices)
                return [CannotListenError("127.0.0.1", 5, _REFUSALS["o"])]

            self.patch(port, "_join", join)
            self.patch(port, "_devices", lambda served=served: served)
            port._at, port.connected = at, connected
            port.sdpListeners = tuple(Mock(device=each) for each in (has,) if each)
            port.deviceAdded(told)
            self.assertEqual(calls, joined)
