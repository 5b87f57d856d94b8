"""
Tests of L{twisted_ib.sdp.handlers}.
"""

from __future__ import annotations

import os

from twisted.trial.unittest import SynchronousTestCase

from tests.sdp.pair import PairTestCase
from tests.support.descriptors import isOpen
from twisted_ib.sdp.handlers import HANDLERS
from twisted_ib.sdp.protocol.wire import MESSAGES, MID, Hello, HelloAck, SuspComm


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


class MovingTests(PairTestCase):
    """
    The peer asks to move to another connection.
    """

    def test_suspended(self) -> None:
        """
        SuspComm with a descriptor that came beside it, to a stream that does not move: that is closed,
        and the connection stays.
        """
        raw, stream = self.pair.raw()
        asked: list[int] = []
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        path = stream.queuePair.path
        self.patch(type(path), "handedOver", lambda path, number: asked.append(number) or write)
        raw.send(MID.SUSP_COMM, SuspComm.layout.struct.pack(7))
        raw.data(b"more")
        self.settle()
        self.assertEqual(asked, [raw.queuePair.number])
        self.assertFalse(isOpen(write))
        self.assertEqual((stream.heard.log, raw.log), ([b"more"], []))
