"""
Tests for L{twisted_ib.tools.demo.probe}: what the run of the command cannot show.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.tools.demo.probe import CountedEndpoint, Fetcher
from twisted_ib.tools.program import ProgramError


class FetcherTests(SynchronousTestCase):
    """
    The client of a file.
    """

    def setUp(self) -> None:
        """
        Connect it.
        """
        self.transport = StringTransport()
        self.fetcher = Fetcher()
        self.fetcher.makeConnection(self.transport)
        self.check = Deferred.fromCoroutine(self.fetcher.check(4, sha256(b"file").hexdigest()))

    def test_right(self) -> None:
        """
        A file in pieces is whole with its last byte, and the next one is timed.
        """
        self.assertEqual(self.transport.value(), b"?")
        self.fetcher.dataReceived(b"fi")
        self.assertNoResult(self.check)
        self.fetcher.dataReceived(b"le")
        self.assertEqual(self.successResultOf(self.check), None)
        rate = Deferred.fromCoroutine(self.fetcher.rate(4))
        self.assertEqual(self.transport.value(), b"??")
        self.fetcher.dataReceived(b"FILE")
        self.assertGreater(self.successResultOf(rate), 0)

    def test_wrong(self) -> None:
        """
        Another file is an error.
        """
        self.fetcher.dataReceived(b"life")
        self.failureResultOf(self.check, ProgramError)

    def test_lost(self) -> None:
        """
        A connection that ends before the file does is an error.
        """
        self.fetcher.dataReceived(b"fil")
        self.fetcher.connectionLost(Failure(ConnectionDone()))
        self.failureResultOf(self.check, ConnectionDone)


class EndpointTests(SynchronousTestCase):
    """
    The endpoint that counts.
    """

    def test_fallBack(self) -> None:
        """
        A connection that is not SDP's is an error: there would be nothing to compare.
        """
        fetcher = Fetcher()
        fetcher.makeConnection(StringTransport())
        connected: Deferred[Any] = Deferred()
        connected.callback(fetcher)

        class Endpoint:
            def connect(self, factory: Any) -> Deferred[Any]:
                return connected

        transports: Any = []
        found = CountedEndpoint(Endpoint(), transports).connect(None)  # type: ignore[arg-type]
        self.failureResultOf(found, ProgramError)
        self.assertEqual(transports, [])
