"""
The common parts of the tests of blocking sockets: a loop of their own, pairs of sockets, threads.
"""

from __future__ import annotations

import errno
import os
import socket as kernel
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS
from twisted_ib import socket as offloading
from twisted_ib.blocking import loop as module
from twisted_ib.blocking.descriptors import Offloaded
from twisted_ib.blocking.loop import BlockingLoop

LOOPBACK = "127.0.0.1"


class BlockingTestCase(SynchronousTestCase):
    """
    Tests with a loop and a run directory of their own.

    @ivar loop: The loop.
    """

    timeout = HANG_SECONDS

    def setUp(self) -> None:
        """
        Make the loop.
        """
        ownRunDirectory(self)
        folder = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, folder)
        environment = mock.patch.dict(os.environ, XDG_CONFIG_HOME=folder)
        environment.start()
        self.addCleanup(environment.stop)
        for name in ("TWISTED_IB_CONFIG", "SIMPLE_LIBSDP", "ALWAYS_USE_SDP"):
            os.environ.pop(name, None)
        # On one CPU blocking sockets stay TCP.
        self.patch(os, "sched_getaffinity", lambda _: {0, 1})
        # Connections whose descriptors a test has left are not the next one's.
        self.addCleanup(self._forgetParts)
        self.loop = BlockingLoop()
        self.patch(module, "_loop", self.loop)
        self.addCleanup(self.loop.close)
        self._threads: ThreadPoolExecutor | None = None

    def _forgetParts(self) -> None:
        for inode in list(Offloaded.parts):
            Offloaded.parts.pop(inode)

    def rules(self, text: str) -> None:
        """
        Have rules before the first socket.
        """
        path = self.mktemp()
        with open(path, "w") as file:
            file.write(text)
        os.environ["TWISTED_IB_CONFIG"] = os.path.abspath(path)

    def inThread(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """
        Call in another thread.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(40)
            self.addCleanup(self._threads.shutdown)
        return self._threads.submit(call, *arguments)

    def server(self, made: Any = offloading, **options: Any) -> Any:
        """
        Return a socket that listens.

        @param made: The module that makes it.
        """
        listener = made.create_server((LOOPBACK, 0), **options)
        listener.settimeout(HANG_SECONDS)
        self.addCleanup(listener.close)
        return listener

    def client(self, listener: Any, made: Any = offloading) -> Any:
        """
        Return a socket that is connected to one that listens.
        """
        connection = made.create_connection(listener.getsockname(), timeout=HANG_SECONDS)
        self.addCleanup(connection.close)
        return connection

    def connecting(self, address: Any, made: Any = offloading) -> Any:
        """
        Return a socket that does not block, and connects to an address.
        """
        connection = made.socket()
        self.addCleanup(connection.close)
        connection.setblocking(False)
        number = connection.connect_ex(address)
        self.assertIn(number, (0, errno.EINPROGRESS))
        return connection

    def pair(self, made: Any = offloading, accepting: Any = offloading) -> tuple[Any, Any]:
        """
        Return two connected sockets: who connected, who accepted.
        """
        listener = self.server(accepting)
        accepted = self.inThread(listener.accept)
        connection = self.client(listener, made)
        other = accepted.result(HANG_SECONDS)[0]
        other.settimeout(HANG_SECONDS)
        self.addCleanup(other.close)
        listener.close()
        return connection, other


def echo(listener: kernel.socket) -> None:
    """
    Accept one connection and send back what it sends.
    """
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
