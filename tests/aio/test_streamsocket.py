"""
Tests for L{twisted_ib.aio.streamsocket}, without an event loop.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import Any
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import runForked
from twisted_ib.aio.streamsocket import AsyncioStream, StreamSocket


class _Sender:
    """
    The stream's own part: all of it has been sent.
    """

    def __init__(self, protocol: Any, disconnecting: bool) -> None:
        self.protocol, self.disconnecting = protocol, disconnecting

    def drained(self) -> None:
        """
        The end, if it is wanted.
        """
        if self.disconnecting:
            self.protocol = None


class StreamTests(SynchronousTestCase):
    """
    A stream's calls of its protocol.
    """

    def test_drained(self) -> None:
        """
        A protocol hears before the end that its octets are sent, and after it nothing; without an end it is
        told once.
        """
        made: Any = type("Stream", (AsyncioStream, _Sender), {})
        for disconnecting, told in ((True, ["sent"]), (False, ["drained"])):
            protocol = Mock()
            made(protocol, disconnecting).drained()
            self.assertEqual([name for name, *_ in protocol.method_calls], told)
            made(None, disconnecting).drained()


class CloseTests(SynchronousTestCase):
    """
    The end of a stream that has no transport yet.
    """

    def test_shutdown(self) -> None:
        """
        C{shutdown} closes it; C{EBADF} is the error of what was closed.
        """
        made, transport = StreamSocket(Mock()), Mock(heldBytes=0)
        made.makeConnection(transport)
        transport.protocol = made
        made.shutdown(socket.SHUT_WR)
        made.close()
        self.assertEqual(transport.loseConnection.call_count, 2)
        error = self.assertRaises(OSError, made.shutdown, socket.SHUT_WR)
        self.assertEqual(error.errno, errno.EBADF)


class DescriptorTests(SynchronousTestCase):
    """
    The descriptor of a stream that has no transport yet.
    """

    def test_end(self) -> None:
        """
        It is readable from the peer's end on, whenever it is asked for, and closed with the stream; none is
        made afterwards.
        """
        for isAsked in (True, False):
            stream = StreamSocket(Mock())
            if isAsked:
                self.assertEqual(select.select([stream.fileno()], [], [], 0)[0], [])
            stream.endReceived()
            descriptor = stream.fileno()
            self.assertEqual(select.select([descriptor], [], [], 0)[0], [descriptor])
            stream.over()
            self.assertRaises(OSError, os.fstat, descriptor)
            self.assertEqual(stream.fileno(), -1)

    def test_first(self) -> None:
        """
        A program without standard input may have descriptor 0 for it: one, likewise.
        """

        def child() -> None:
            os.closerange(0, 1)
            stream = StreamSocket(Mock())
            self.assertEqual((stream.fileno(), stream.fileno()), (0, 0))
            stream.endReceived()
            self.assertEqual(select.select([0], [], [], 0)[0], [0])
            stream.over()
            self.assertRaises(OSError, os.fstat, 0)

        self.assertEqual(runForked(child), 0)
