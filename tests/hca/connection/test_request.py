"""
Tests for L{twisted_ib.hca.connection.request}: requests and replies that differ little from others.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.request import replyLike, requestLike


class AlikeTests(SynchronousTestCase):
    """
    C{requestLike} and C{replyLike}.
    """

    def test_request(self) -> None:
        """
        It is the request that its class makes, each time a new one.
        """
        first = requestLike(5, b"one", 7, (1, 2, 3))
        self.assertEqual(first, ConnectRequest(5, b"one", 7, 1, 2, 3))
        first.retryCount = first.localCommunicationID = 9
        second = requestLike(5, b"two", 8, (1, 2, 3))
        self.assertEqual(second, ConnectRequest(5, b"two", 8, 1, 2, 3))

    def test_reply(self) -> None:
        """
        The same of a reply.
        """
        first = replyLike(b"one", 7, (1, 2, 3))
        self.assertEqual(first, ConnectReply(b"one", 7, 1, 2, 3))
        first.vendorID = 9
        self.assertEqual(replyLike(b"two", 8, (1, 2, 3)), ConnectReply(b"two", 8, 1, 2, 3))
