"""
Tests of L{twisted_ib.sdp.handlers}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.sdp.handlers import HANDLERS
from twisted_ib.sdp.protocol.wire import MESSAGES, Hello, HelloAck


class TableTests(SynchronousTestCase):
    """
    The table of handlers.
    """

    def test_complete(self) -> None:
        """
        Each message but those of the handshake has a handler, and no number without a message has one.
        """
        self.assertEqual(
            set(HANDLERS), {each.mid.value for each in MESSAGES if each not in (Hello, HelloAck)}
        )
