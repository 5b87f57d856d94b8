"""
Tests for L{twisted_ib.reactor.ibreactor}.
"""

from __future__ import annotations

import os
import select
import threading
from typing import Any

from twisted.internet.epollreactor import EPollReactor
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.reactor.test_ibreactor import ScriptedDevice, closeReactor
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.reactor.ibreactor import IBReactor, Waker


class WakerTests(SynchronousTestCase):
    """
    L{Waker}.
    """

    def waker(self) -> Waker:
        """
        @return: a new one.
        """
        waker = Waker()
        self.addCleanup(waker.connectionLost, Failure(RuntimeError()))
        return waker

    def poller(self) -> Any:
        """
        @return: an epoll object.
        """
        poller = select.epoll()
        self.addCleanup(poller.close)
        return poller

    def test_pipe(self) -> None:
        """
        At first it is Twisted's: what is written makes it readable, until it is read.
        """
        waker, poller = self.waker(), self.poller()
        poller.register(waker.fileno(), select.EPOLLIN)
        waker.wakeUp()
        self.assertEqual(poller.poll(0), [(waker.fileno(), select.EPOLLIN)])
        waker.doRead()
        self.assertEqual(poller.poll(0), [])

    def test_bell(self) -> None:
        """
        Hung, it is an event each time, that needs no reader.
        """
        waker, poller = self.waker(), self.poller()
        poller.register(waker.fileno(), select.EPOLLIN)
        waker.register(poller)
        waker.register(poller)
        self.assertEqual(poller.poll(0), [])
        for wakes in (1, 2, 1000):
            for _ in range(wakes):
                waker.wakeUp()
            self.assertEqual(poller.poll(0), [(waker.bell, select.EPOLLIN)])
            self.assertEqual(poller.poll(0), [])

    def test_notInherited(self) -> None:
        """
        No program that is started has it.
        """
        self.assertFalse(os.get_inheritable(self.waker().bell))

    def test_closed(self) -> None:
        """
        All descriptors are closed together; a later wake-up raises nothing.
        """
        waker, poller = Waker(), self.poller()
        waker.register(poller)
        fds = waker.bell, waker.i, waker.o
        for _ in range(2):
            waker.connectionLost(Failure(RuntimeError()))
            for fd in fds:
                self.assertRaises(OSError, os.fstat, fd)

    def test_withoutEventCounters(self) -> None:
        """
        Where Python has none it stays Twisted's.
        """
        if hasattr(os, "eventfd"):
            self.patch(os, "eventfd", None)
            del os.eventfd
        waker, poller = self.waker(), self.poller()
        poller.register(waker.fileno(), select.EPOLLIN)
        waker.register(poller)
        waker.wakeUp()
        self.assertEqual(poller.poll(0), [(waker.fileno(), select.EPOLLIN)])


class ReactorTests(SynchronousTestCase):
    """
    L{Waker} in L{IBReactor}.
    """

    def setUp(self) -> None:
        """
        Make one, and count its reads.
        """
        super().setUp()
        self.reactor: Any = IBReactor()
        self.addCleanup(closeReactor, self.reactor)
        self.reads = 0
        read = self.reactor.waker.doRead

        def doRead() -> None:
            self.reads += 1
            read()

        self.reactor.waker.doRead = doRead

    def woken(self) -> bool:
        """
        @return: whether a call from a thread ends epoll's sleep.
        """
        watchdog = self.reactor.callLater(5, lambda: None)
        self.reactor._insertNewDelayedCalls()
        called: list[int] = []
        thread = threading.Thread(target=self.reactor.callFromThread, args=(called.append, 1))
        thread.start()
        self.reactor.doIteration(5)
        thread.join()
        self.reactor.runUntilCurrent()
        intime = bool(watchdog.active())
        watchdog.cancel()
        return intime and called == [1]

    def test_withoutDevice(self) -> None:
        """
        Without a device calls from threads come as on C{EPollReactor}.
        """
        self.assertIsInstance(self.reactor, EPollReactor)
        self.assertTrue(self.woken())
        self.assertEqual(self.reads, 1)

    def test_withDevice(self) -> None:
        """
        As soon as there is one nobody reads for them any more.
        """
        device: Any = ScriptedDevice()
        self.addCleanup(device.close)
        channel = DeviceChannel(self.reactor, device)
        self.reactor.addChannel(channel)
        for _ in range(3):
            self.assertTrue(self.woken())
        self.reactor.removeChannel(channel)
        self.assertTrue(self.woken())
        self.assertEqual(self.reads, 0)


__all__ = ["ReactorTests", "WakerTests"]
