"""
Tests for L{twisted_ib.blocking.connecting}: where a connect goes.
"""

from __future__ import annotations

from socket import AF_INET, AF_INET6
from unittest.mock import Mock

from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.blocking.connecting import Connecting, target


class ConnectingTests(SynchronousTestCase):
    """
    The attempt of one socket.
    """

    def test_loopCloses(self) -> None:
        """
        One that is not over when the loop closes has failed; one that is keeps what it has come to.
        """
        for isOver in (False, True):
            made = Connecting(Mock(), ("127.0.0.1", 80))
            made.isOver = isOver
            made.connectionLost(Failure(ConnectionAbortedError()))
            self.assertEqual((made.isOver, made.error is None), (True, isOver))


class TargetTests(SynchronousTestCase):
    """
    The address that a program gives to C{connect}.
    """

    def test_addresses(self) -> None:
        """
        Of IPv6 there may be the flow and the scope, which is part of the host unless it has one; names are
        looked up.
        """
        for family, address, expected in (
            (AF_INET, ("127.0.0.1", 1), ("127.0.0.1", 1)),
            (AF_INET, ("localhost", 65535), ("127.0.0.1", 65535)),
            (AF_INET6, ("::1", 80), ("::1", 80)),
            (AF_INET6, ("::1", 80, 0), ("::1", 80)),
            (AF_INET6, ("::1", 80, 0, 0), ("::1", 80)),
            (AF_INET6, ("fe80::1", 80, 0, 3), ("fe80::1%3", 80)),
            (AF_INET6, ("fe80::1%5", 80, 0, 3), ("fe80::1%5", 80)),
            (AF_INET, ("127.0.0.1", 80, 0, 3), ("127.0.0.1", 80)),
        ):
            self.assertEqual(target(address, family), expected)

    def test_wrong(self) -> None:
        """
        Of what is none the kernel complains.
        """
        for address in (
            *("127.0.0.1", ["127.0.0.1", 80], ("127.0.0.1",), (b"127.0.0.1", 80), ("127.0.0.1", "80")),
            *(("127.0.0.1", 0), ("127.0.0.1", 65536), ("127.0.0.1", -1), ("", 80), ("::1", 80)),
            ("\udcff", 80),
        ):
            self.assertIsNone(target(address, AF_INET), address)
