"""
Tests of L{twisted_ib.sdp.handlers}.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.sdp.pair import PairTestCase
from tests.support.descriptors import isOpen
from twisted_ib.errors import SDPError
from twisted_ib.sdp.handlers import HANDLERS
from twisted_ib.sdp.protocol.wire import MESSAGES, MID, Hello, HelloAck, SuspComm
from twisted_ib.switch.serverclient import RedirectedClient, RedirectedServer


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
    The peer asks to go on over another connection.
    """

    def test_suspended(self) -> None:
        """
        SuspComm with a descriptor that came beside it, to a stream that cannot follow: that is closed, and
        the connection goes on.
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

    def test_ends(self) -> None:
        """
        A server's end asks its port whether it follows, a client's its connector whether it has asked: others
        close what they are given, or it is an error.
        """
        told: list[tuple[Any, int]] = []
        port = SimpleNamespace(suspended=lambda *words: told.append(words))
        for factory, isTold in (SimpleNamespace(port=port), True), (SimpleNamespace(), False), (None, False):
            read, write = os.pipe()
            self.addCleanup(os.close, read)
            made: Any = RedirectedServer.__new__(RedirectedServer)
            made.server, made.protocol = SimpleNamespace(factory=factory), "it"
            made.suspended(write)
            self.assertEqual(isOpen(write), isTold)
            if isTold:
                os.close(write)
        self.assertEqual(told, [("it", told[0][1])])
        client: Any = RedirectedClient.__new__(RedirectedClient)
        client.connector = SimpleNamespace(followed=lambda: True)
        client.followed()
        for connector in SimpleNamespace(followed=lambda: False), SimpleNamespace():
            client.connector = connector
            self.assertRaises(SDPError, client.followed)
