"""
Tests for L{twisted_ib.blocking.select}.
"""

from __future__ import annotations

import asyncio
import os
import resource
import select as kernelSelect
import signal
import socket as kernel
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic
from typing import Any
from unittest.mock import Mock, patch

from tests.blocking.case import BlockingTestCase
from tests.support.calls import called, requireReplaceable
from tests.support.descriptors import exactly, runForked
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import select, selectors
from twisted_ib import socket as offloading
from twisted_ib.blocking import select as blocking
from twisted_ib.blocking import waits
from twisted_ib.blocking.descriptors import offloaded
from twisted_ib.switch import gainless


class ListenerTests(BlockingTestCase):
    """
    Listeners over SDP alone.
    """

    def test_shut(self) -> None:
        """
        A wait for a listener of SDP alone ends when another thread shuts it down, as the kernel's does.
        """
        self.rules("use sdp listen * *:*\n")
        found = []
        for made in kernel, offloading:
            listener = self.server(made)
            self.assertEqual(bool(getattr(listener, "sdp", None)), made is offloading)
            poller = select.poll()
            poller.register(listener, kernelSelect.POLLIN)
            waiting = self.inThread(poller.poll)
            if made is offloading:
                waitUntil(lambda: self.loop.sleeping)
            listener.shutdown(kernel.SHUT_RDWR)
            found.append([events for _, events in waiting.result(HANG_SECONDS)])
        self.assertEqual(found[0], found[1])


class NestedTests(BlockingTestCase):
    """
    An epoll object within another wait: by the kernel's calls with TCP, then over SDP.
    """

    def outer(self, kind: str, module: Any, inner: Any) -> tuple[Callable[[float], list[int]], Any]:
        """
        @param kind: What waits, of a module that waits.
        @return: A wait for an epoll object, which returns its events; and the object that waits, if any.
        """
        if kind == "select":
            return lambda seconds: [1] * len(module.select([inner], [], [], seconds)[0]), None
        made = getattr(module, "epoll" if kind == "nested" else kind)()
        made.register(inner, module.POLLIN)
        if kind == "poll":
            return lambda seconds: [events for _, events in made.poll(seconds * 1e3)], made
        self.addCleanup(made.close)
        if kind == "nested":
            return self.outer("select", module, made)[0], made
        return lambda seconds: [events for _, events in made.poll(seconds)], made

    def test_failed(self) -> None:
        """
        A wait that could not begin is no longer one for an object, nor for one in that.
        """
        one, _ = self.pair(offloading, offloading)
        inner, outer = select.epoll(), select.epoll()
        for each in inner, outer:
            self.addCleanup(each.close)
        inner.register(one, select.EPOLLIN)
        outer.register(inner, select.EPOLLIN)
        poller = select.poll()
        poller.register(outer, select.POLLIN)
        self.assertEqual(poller.poll(0), [])

        def fail(*_: object) -> None:
            raise MemoryError

        for where, name in (inner, "wants"), (waits, "pollerOf"):
            with patch.object(where, name, fail):
                self.assertRaises(MemoryError, poller.poll, 0)
            for each in inner, outer:
                self.assertEqual((each._waiting, each._around), (0, []))

    def atLimit(self, call: Callable[[], list[int]]) -> list[int]:
        """
        Return what a call returns while the process has no descriptor left.
        """
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = [os.dup(self.loop.reactor.descriptor)]
        try:
            top = max(map(int, os.listdir("/proc/self/fd")))
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + 1, before[1]))
            with self.assertRaises(OSError):
                while True:
                    taken.append(os.dup(taken[0]))
            return call()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for each in taken:
                os.close(each)

    def listening(self, made: Any, module: Any) -> tuple[Any, Any]:
        """
        @return: a listener, and an epoll object that has it and a connection.
        """
        listener, (one, _) = self.server(made), self.pair(made, made)
        inner = module.epoll()
        self.addCleanup(inner.close)
        for each in listener, one:
            inner.register(each, module.EPOLLIN)
        return listener, inner

    def test_noDescriptor(self) -> None:
        """
        A wait for an object that has a listener, whose clients come by TCP, too, takes no descriptor: it
        begins where the process has none left, and the object is ready for both kinds of clients.
        """
        for made, module in (kernel, kernelSelect), (offloading, select):
            listener, inner = self.listening(made, module)
            # The loop has its descriptors by then.
            self.assertEqual(inner.poll(0), [])
            for kind in "select", "poll", "epoll", "nested":
                wait, _ = self.outer(kind, module, inner)
                self.assertEqual(wait(0), [])
                self.assertEqual(self.atLimit(lambda: wait(0)), [], kind)  # noqa: B023
                for client in (kernel,) if made is kernel else (kernel, offloading):
                    waiting = self.inThread(wait, HANG_SECONDS)
                    calling = self.inThread(self.client, listener, client)
                    self.assertEqual(waiting.result(HANG_SECONDS), [1], kind)
                    self.assertEqual(wait(0), [1], kind)
                    self.assertEqual(inner.poll(0), [(listener.fileno(), 1)])
                    listener.accept()[0].close()
                    calling.result(HANG_SECONDS).close()
                    self.assertEqual(wait(0), [], kind)

    def test_both(self) -> None:
        """
        A listener that is waited for itself, and as a part of an object, is ready as each of them.
        """
        for made, module in (kernel, kernelSelect), (offloading, select):
            listener, inner = self.listening(made, module)
            poller = module.poll()
            poller.register(inner, module.POLLIN)
            for own, found in (module.POLLOUT, []), (module.POLLIN, [(listener.fileno(), 1)]):
                poller.register(listener, own)
                self.assertEqual(poller.poll(0), [])
                client = self.client(listener, kernel)
                self.assertEqual(sorted(poller.poll()), sorted([*found, (inner.fileno(), 1)]))
                listener.accept()[0].close()
                client.close()

    def test_closedByNumber(self) -> None:
        """
        A file that has the number of an object that a program has closed by it alone is not that.
        """
        one, other = self.pair(offloading, offloading)
        inner = select.epoll()
        inner.register(one, select.EPOLLIN)
        self.assertEqual(inner.poll(0), [])
        number = inner.fileno()
        os.close(number)
        ends = os.pipe()
        os.dup2(ends[0], number)
        other.sendall(b"a")
        try:
            self.assertEqual(select.select([number], [], [], 0.05), ([], [], []))
        finally:
            for each in ends:
                os.close(each)
            inner.close()

    def test_waits(self) -> None:
        """
        C{select}, C{poll} and C{epoll}, also of one in another, are woken by a message and by an end of what
        an epoll object has, whether that has polled or not, and sleep after it has said so.
        """
        for kind in "select", "poll", "epoll", "nested":
            for made, module in (kernel, kernelSelect), (offloading, select):
                one, other = self.pair(made, made)
                inner: Any = module.epoll()
                self.addCleanup(inner.close)
                inner.register(one, module.EPOLLIN)
                wait, _ = self.outer(kind, module, inner)
                for polls in False, True:
                    if polls:
                        self.assertEqual(inner.poll(0), [])
                    self.assertEqual(wait(0), [], kind)
                    self.assertEqual(wait(0.01), [], kind)
                    waiting = self.inThread(wait, HANG_SECONDS)
                    if made is offloading:
                        waitUntil(lambda: self.loop.sleeping)
                    other.sendall(b"x")
                    self.assertEqual(waiting.result(HANG_SECONDS), [1], kind)
                    self.assertEqual(wait(0), [1], kind)
                    self.assertEqual(inner.poll(0), [(one.fileno(), 1)])
                    self.assertEqual(one.recv(2), b"x")
                other.shutdown(kernel.SHUT_WR)
                self.assertEqual(wait(HANG_SECONDS), [1], kind)
                inner.unregister(one)
                self.assertEqual(wait(0), [], kind)
                self.assertEqual(inner._waiting if made is offloading else 0, 0)

    def test_changes(self) -> None:
        """
        Registered and modified by another thread, a socket ends a wait for the object once it is ready.
        """
        for kind in "select", "poll", "epoll", "nested":
            for made, module in (kernel, kernelSelect), (offloading, select):
                one, other = self.pair(made, made)
                inner: Any = module.epoll()
                self.addCleanup(inner.close)
                wait, _ = self.outer(kind, module, inner)
                waiting = self.inThread(wait, HANG_SECONDS)
                if made is offloading:
                    waitUntil(lambda: self.loop.sleeping)
                inner.register(one, 0)
                other.sendall(b"x")
                self.assertFalse(waiting.done())
                inner.modify(one, module.EPOLLIN)
                self.assertEqual(waiting.result(HANG_SECONDS), [1], kind)

    def test_once(self) -> None:
        """
        What EPOLLONESHOT has told makes an object no more readable.
        """
        for made, module in (kernel, kernelSelect), (offloading, select):
            one, other = self.pair(made, made)
            inner: Any = module.epoll()
            self.addCleanup(inner.close)
            inner.register(one, module.EPOLLIN | module.EPOLLONESHOT)
            wait, _ = self.outer("poll", module, inner)
            one.shutdown(kernel.SHUT_WR)
            other.close()
            self.assertEqual(wait(HANG_SECONDS), [1])
            self.assertEqual(len(inner.poll()), 1)
            self.assertEqual(wait(0.01), [])
            self.assertEqual(inner.poll(0.01), [])

    def test_connects(self) -> None:
        """
        An attempt to connect, over SDP and over TCP, is writable within another wait, too.
        """
        for made in offloading, kernel:
            listener = self.server(made)
            connection = self.connecting(listener.getsockname())
            with select.epoll() as inner:
                inner.register(connection, select.EPOLLOUT)
                wait, _ = self.outer("poll", select, inner)
                accepting = self.inThread(listener.accept)
                self.assertEqual(wait(HANG_SECONDS), [1])
                self.addCleanup(accepting.result(HANG_SECONDS)[0].close)
                while not inner.poll(0):
                    self.assertEqual(wait(HANG_SECONDS), [1])
                self.assertEqual(connection.getsockopt(kernel.SOL_SOCKET, kernel.SO_ERROR), 0)

    def test_loops(self) -> None:
        """
        A loop of asyncio's looks through the selector of another one.
        """
        one, other = self.pair()
        with selectors.DefaultSelector() as inner:
            inner.register(one, selectors.EVENT_READ)
            self.assertEqual(inner.select(0), [])
            loop = asyncio.SelectorEventLoop(selectors.DefaultSelector())
            self.addCleanup(loop.close)
            loop.add_reader(inner, loop.stop)
            loop.call_soon(other.sendall, b"x")
            loop.run_forever()
            self.assertEqual([key.fileobj for key, _ in inner.select(0)], [one])

    def test_forgotten(self) -> None:
        """
        An object that is closed, or is no more, is looked through by nobody, nor hides one of its number.
        """
        first = select.epoll()
        number = first.fileno()
        self.assertIs(blocking.pollers[number](), first)
        first.close()
        self.assertNotIn(number, blocking.pollers)
        with select.epoll() as second:
            foreign = select.epoll.fromfd(os.dup(second.fileno()))
            self.addCleanup(foreign.close)
            self.assertIs(blocking.pollers[second.fileno()](), second)
            del first
            number = second.fileno()
            same, other = select.epoll.fromfd(number), os.dup(number)
            self.assertIs(blocking.pollers[number](), second)
            same.close()
            # Its descriptor again.
            os.dup2(other, number)
            os.close(other)

    def test_lockOrder(self) -> None:
        """
        With EPOLLET the room of a connection is looked at, which may need the loop, without the lock of what
        is registered: a thread that has the loop may wait for that.
        """
        plain, isFree = waits.eventsOf, []

        def take() -> bool:
            if hasTaken := inner._lock.acquire(False):
                inner._lock.release()
            return hasTaken

        def look(*words: Any) -> int:
            if not self.loop.lock._is_owned():
                isFree.append(self.inThread(take).result(HANG_SECONDS))
            return plain(*words)

        one, other = self.pair()
        with select.epoll() as inner:
            inner.register(one, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
            other.sendall(b"x")
            with patch.object(waits, "eventsOf", look):
                inner.poll(HANG_SECONDS)
        self.assertEqual(isFree, [True])

    def test_usedInChild(self) -> None:
        """
        A forked child uses an object of which another thread of its parent had the lock, and closes it.
        """
        reader, writer = os.pipe()
        for each in reader, writer:
            self.addCleanup(os.close, each)
        one, _ = self.pair()
        inner = select.epoll()
        self.addCleanup(inner.close)
        inner.register(one, select.EPOLLIN)
        held, over = Event(), Event()

        def hold() -> None:
            with inner._lock:
                held.set()
                over.wait(HANG_SECONDS)

        thread = Thread(target=hold)
        thread.start()
        self.assertTrue(held.wait(HANG_SECONDS))

        def use() -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(HANG_SECONDS))
            inner.unregister(one)
            inner.register(writer, select.EPOLLOUT)
            self.assertEqual(inner.poll(0), [(writer, select.EPOLLOUT)])
            inner.modify(writer, select.EPOLLIN)
            self.assertEqual(inner.poll(0), [])
            inner.close()

        self.assertEqual(runForked(use), 0)
        over.set()
        thread.join()

    def test_followed(self) -> None:
        """
        What another thread registers amid a wait is waited for by that: a socket, a file of the kernel's, and
        an object, also what that has later.
        """

        def register(module: Any, skt: Any, outer: Any) -> None:
            outer.register(skt, module.EPOLLIN)

        def registerObject(module: Any, skt: Any, outer: Any) -> None:
            inner = module.epoll()
            inners.append(inner)
            self.addCleanup(inner.close)
            outer.register(inner, module.EPOLLIN)
            if module is select:
                waitUntil(lambda: inner._waiting)
            inner.register(skt, module.EPOLLIN)

        def replaceObject(module: Any, skt: Any, outer: Any) -> None:
            former = inners[-1]
            number = former.fileno()
            former.close()
            while (inner := module.epoll()).fileno() != number:
                # Another thread has taken that.
                self.addCleanup(inner.close)
            self.addCleanup(inner.close)
            outer.register(inner, module.EPOLLIN)
            if module is select:
                waitUntil(lambda: inner._waiting)
            inner.register(skt, module.EPOLLIN)

        inners: list[Any] = []
        acts = (register, False), (register, True), (registerObject, False), (replaceObject, False)
        for act, isKernels in acts:
            for made, module in (kernel, kernelSelect), (offloading, select):
                (quiet, _), (one, other) = (self.pair(made, made) for _ in range(2))
                if isKernels:
                    one, other = kernel.socketpair()
                    for each in one, other:
                        self.addCleanup(each.close)
                outer = module.epoll()
                self.addCleanup(outer.close)
                outer.register(quiet, module.EPOLLIN)
                if act is replaceObject:
                    inners.append(module.epoll())
                    outer.register(inners[-1], module.EPOLLIN)
                waiting = self.inThread(outer.poll, HANG_SECONDS)
                if made is offloading:
                    waitUntil(lambda: self.loop.sleeping)
                act(module, one, outer)
                other.sendall(b"x")
                self.assertEqual([events for _, events in waiting.result(HANG_SECONDS)], [1])
        self.assertEqual((inners[1]._waiting, inners[1]._around), (0, []))


class ErrorTests(BlockingTestCase):
    """
    Objects that wait refuse over SDP what they refuse over TCP, by the same errors.
    """

    def told(self, call: Callable[..., Any], *arguments: Any) -> object:
        """
        @return: What a call returns, of events without the numbers of descriptors; or its error.
        """
        try:
            found = call(*arguments)
        except Exception as error:
            return type(error), getattr(error, "errno", None)
        return [events for _, events in found] if isinstance(found, list) else found

    def ofEpoll(self, made: Any, module: Any, polled: bool) -> list[object]:
        """
        @param polled: Whether the object polls after each socket that is registered.
        @return: The answers of calls of an epoll object, in their order.
        """
        one, other = self.pair(made, made)
        third, _ = self.pair(made, made)
        epoll, told = module.epoll(), []
        self.addCleanup(epoll.close)
        asked, once, alone = module.EPOLLIN, module.EPOLLONESHOT, module.EPOLLEXCLUSIVE
        end = module.EPOLLRDHUP

        def tell(call: Callable[..., Any], *arguments: Any) -> None:
            told.append(self.told(call, *arguments))
            if polled and call == epoll.register:
                self.told(epoll.poll, 0)

        other.sendall(b"x")
        self.assertTrue(module.select([one], [], [], HANG_SECONDS)[0])
        for mask in asked, asked | module.EPOLLOUT:
            tell(epoll.register, one, mask)
        tell(epoll.register, one.fileno(), asked)
        tell(epoll.poll, HANG_SECONDS)
        for mask in "in", 1.0, -1, 1 << 33, alone | asked, asked | once:
            tell(epoll.modify, one, mask)
        for _ in range(2):
            tell(epoll.poll, 0.01)
        tell(epoll.modify, one, asked | once)
        tell(epoll.poll, HANG_SECONDS)
        tell(epoll.modify, one, asked)
        for count in 0, -2, 1, 2, "1":
            tell(epoll.poll, HANG_SECONDS, count)
        for seconds in float("nan"), 1e300, "1", 1 << 31, -1, 0:
            tell(epoll.poll, seconds)
        for _ in range(2):
            tell(epoll.unregister, one)
        tell(epoll.modify, one, asked)
        for call in epoll.modify, epoll.unregister:
            tell(call, third, *[asked][: call == epoll.modify])
        for bad in -1, 9999, "x", None:
            tell(epoll.register, bad, asked)
            tell(epoll.modify, bad, asked)
            tell(epoll.unregister, bad)
        for mask in alone | end, alone | once | asked, alone | asked:
            tell(epoll.register, third, mask)
        tell(epoll.modify, third, asked)
        tell(epoll.unregister, third)
        other.shutdown(kernel.SHUT_WR)
        tell(epoll.register, one, end)
        tell(epoll.poll, HANG_SECONDS)
        epoll.close()
        for call in epoll.register, epoll.modify:
            tell(call, one, asked)
        tell(epoll.unregister, one)
        tell(epoll.poll, 0)
        return told

    def test_epoll(self) -> None:
        """
        C{epoll}, whether it has polled or not.
        """
        for polled in False, True:
            tcp, sdp = (
                self.ofEpoll(*each, polled) for each in ((kernel, kernelSelect), (offloading, select))
            )
            self.assertEqual(sdp, tcp, polled)

    def test_others(self) -> None:
        """
        C{poll} and C{select}: of times, of what is not there, and of descriptors that are none.
        """
        found = []
        for made, module in (kernel, kernelSelect), (offloading, select):
            one, _ = self.pair(made, made)
            poll, told = module.poll(), []
            tell = lambda *call: told.append(self.told(*call))  # noqa: B023, E731
            for call in poll.modify, poll.register:
                tell(call, one, module.POLLOUT)
            for seconds in float("nan"), 1e300, "1", 1 << 31, (1 << 31) - 1, -1, None:
                tell(poll.poll, seconds)
            for mask in "in", 1.5, -1, 1 << 17:
                tell(poll.modify, one, mask)
            for _ in range(2):
                tell(poll.unregister, one)
            for seconds in float("nan"), 1e300, "1", -1:
                tell(module.select, [one], [], [], seconds)
            for bad in "x", None, -1:
                tell(module.select, [one, bad], [], [], 0)
            tell(module.select, 1, [], [], 0)
            found.append(told)
        self.assertEqual(found[1], found[0])

    def test_again(self) -> None:
        """
        One that is closed is registered no more, and its number may be another one's, without a wait between.
        """
        for made, module in (kernel, kernelSelect), (offloading, select):
            one, _ = self.pair(made, made)
            third, fourth = self.pair(made, made)
            with module.epoll() as epoll:
                epoll.register(one, module.EPOLLIN)
                self.assertEqual(epoll.poll(0), [])
                number = one.fileno()
                one.close()
                again = third.dup()
                self.addCleanup(again.close)
                self.assertEqual(again.fileno(), number)
                self.assertRaises(FileNotFoundError, epoll.modify, again, module.EPOLLIN)
                self.assertRaises(FileNotFoundError, epoll.unregister, again)
                epoll.register(again, module.EPOLLIN)
                fourth.sendall(b"x")
                self.assertEqual(epoll.poll(HANG_SECONDS), [(number, module.EPOLLIN)])


class SelectTests(BlockingTestCase):
    """
    Readiness of sockets of SDP, TCP and UNIX in one wait.
    """

    def setUp(self) -> None:
        """
        A pair of each.
        """
        super().setUp()
        self.sdp = self.pair()
        self.tcp = self.pair(kernel, kernel)
        self.unix = kernel.socketpair()
        for each in self.unix:
            self.addCleanup(each.close)
        self.pairs = (self.sdp, self.tcp, self.unix)
        self.ours = [each[0] for each in self.pairs]

    def test_onlyWritable(self) -> None:
        """
        Who waits until he can send is not woken by what he could receive.
        """
        one, other = self.pair()
        one.setblocking(False)
        with self.assertRaises(BlockingIOError):
            while True:
                one.send(bytes(1 << 16))
        other.sendall(b"x")
        self.assertEqual(select.select([one], [], [], HANG_SECONDS), ([one], [], []))
        began = monotonic()
        self.assertEqual(select.select([], [one], [], 0.02), ([], [], []))
        self.assertGreaterEqual(monotonic() - began, 0.02)

    def test_each(self) -> None:
        """
        Each becomes readable alone; all of them are writable.
        """
        for one, other in self.pairs:
            self.assertEqual(select.select(self.ours, [], [], 0), ([], [], []))
            other.send(b"x")
            self.assertEqual(select.select(self.ours, [], [], HANG_SECONDS)[0], [one])
            self.assertEqual(select.select([each.fileno() for each in self.ours], [], [])[0], [one.fileno()])
            self.assertEqual(one.recv(2), b"x")
        self.assertEqual(select.select([], self.ours, []), ([], self.ours, []))
        self.assertEqual(select.select(self.ours, [], [], 0.01), ([], [], []))

    def test_seldom(self) -> None:
        """
        A program that looks now and then, and goes on to something else, is told of what has come since: also
        where it asks for writing too, which is always ready, and where its last look was found at once.
        """
        one, other = self.sdp
        now = monotonic()
        self.patch(waits, "monotonic", lambda: now)
        poller = select.poll()
        poller.register(one, kernelSelect.POLLIN | kernelSelect.POLLOUT)
        looks = (
            lambda: bool(select.select([one], [one], [], 0)[0]),
            lambda: bool(poller.poll(0)[0][1] & kernelSelect.POLLIN),
        )
        for look in looks:
            for _ in range(waits.SERVED_EVERY):
                self.assertFalse(look())
                other.send(b"x")
                self.assertTrue(look())
                self.assertEqual(one.recv(2), b"x")
        # All of it is ready: devices are served by the clock, or by the count.
        turns, served = self.loop.driven.turns, []
        self.loop.atOnce = 0
        for passed in (2e-3, 0.5e-3, 0.4e-3, 0.2e-3, 0.02, 0.02):
            now += passed
            self.assertEqual(select.select([], [one], [], 0)[1], [one])
            served.append(self.loop.driven.turns - turns)
        self.assertEqual(served, [1, 1, 1, 2, 3, 4])

    def test_woken(self) -> None:
        """
        A wait ends when any of them becomes readable meanwhile, of the leader and of a follower.
        """
        for one, other in self.pairs:
            waiting = [self.inThread(select.select, self.ours, [], [], HANG_SECONDS) for _ in range(2)]
            other.send(b"x")
            for each in waiting:
                self.assertEqual(each.result(HANG_SECONDS)[0], [one])
            one.recv(1)

    def test_fair(self) -> None:
        """
        Traffic on one of them hides none of the others.
        """
        for _, other in self.pairs:
            other.send(b"x")
        counts = dict.fromkeys(self.ours, 0)
        for _ in range(50):
            for each in select.select(self.ours, [], [], HANG_SECONDS)[0]:
                counts[each] += 1
                each.recv(1)
                self.pairs[self.ours.index(each)][1].send(b"y")
        self.assertGreater(min(counts.values()), 5)

    def test_end(self) -> None:
        """
        The end of a stream is readable; C{poll} says that the peer has hung up when both have closed.
        """
        one, other = self.sdp
        other.close()
        self.assertEqual(select.select([one], [], [], HANG_SECONDS)[0], [one])
        poll = select.poll()
        poll.register(one)
        one.shutdown(kernel.SHUT_WR)
        while not poll.poll(1)[0][1] & kernelSelect.POLLHUP:
            pass
        self.assertEqual(one.recv(1), b"")

    def test_errors(self) -> None:
        """
        Wrong arguments and closed descriptors are the standard library's errors.
        """
        one = self.sdp[0]
        self.assertRaises(ValueError, select.select, [one], [], [], -1)
        self.assertRaises(TypeError, select.select, [one, "x"], [], [])
        self.assertRaises(TypeError, select.select, [one, object()], [], [])
        number = self.unix[1].fileno()
        self.unix[1].close()
        self.assertRaises(OSError, select.select, [one, number], [], [], 0)

    def test_poll(self) -> None:
        """
        C{poll} and C{epoll} say which events there are.
        """
        for made in (select.poll(), select.epoll()):
            for each in self.ours:
                made.register(each, select.POLLIN)
            self.assertEqual(made.poll(0), [])
            for one, other in self.pairs:
                other.send(b"x")
                self.assertEqual(made.poll(), [(one.fileno(), select.POLLIN)])
                one.recv(1)
                made.modify(one, select.POLLIN | select.POLLOUT)
                self.assertEqual(made.poll(), [(one.fileno(), select.POLLOUT)])
                made.unregister(one)
            self.assertEqual(made.poll(0), [])

    def test_divides(self) -> None:
        """
        C{poll} and C{epoll} of many descriptors of the kernel look at none of them by a function of Python,
        whether there are sockets of SDP or not; C{poll} divides a copy, as other threads may register.
        """
        pollers: Any = select.poll(), select.epoll()
        self.addCleanup(pollers[1].close)
        read, write = os.pipe()
        copies = [os.dup(read) for _ in range(400)]
        for each in (read, write, *copies):
            self.addCleanup(os.close, each)
        for made in pollers:
            for each in copies:
                made.register(each, select.POLLIN)
            for held in {}, vars(offloaded)["data"]:
                self.patch(blocking, "held", held)
                self.assertLess(called(lambda made=made: made.poll(0)).total(), 9)
        one, other = self.sdp
        poller = pollers[0]
        poller.register(one, select.POLLIN)
        divide = waits.divided

        def divided(masks: dict[int, int]) -> Any:
            """
            Another thread registers meanwhile.
            """
            poller.register(write, select.POLLIN)
            self.assertNotIn(write, masks)
            return divide(masks)

        self.patch(waits, "divided", divided)
        other.send(b"x")
        self.assertEqual(poller.poll(), [(one.fileno(), select.POLLIN)])

    def test_epollForgets(self) -> None:
        """
        C{epoll} forgets a closed connection, as the kernel's does; C{EPOLLONESHOT} says a thing once.
        """
        one, other = self.sdp
        with select.epoll() as poll:
            poll.register(one, select.EPOLLIN | select.EPOLLONESHOT)
            other.send(b"x")
            self.assertEqual(poll.poll(), [(one.fileno(), select.EPOLLIN)])
            self.assertEqual(poll.poll(0), [])
            poll.modify(one, select.EPOLLIN)
            self.assertEqual(len(poll.poll()), 1)
            number = one.fileno()
            one.close()
            self.assertNotIn(number, offloaded)
            self.assertEqual(poll.poll(0), [])
        self.assertTrue(poll.closed)

    def test_onlyReads(self) -> None:
        """
        Who waits for bytes alone, not for the connection, gets those of SDP and of the kernel's attempt.
        """
        for made in offloading, kernel:
            listener = self.server(made)
            connection = self.connecting(listener.getsockname())
            waiting = self.inThread(select.select, [connection], [], [])
            accepted, _ = listener.accept()
            self.addCleanup(accepted.close)
            accepted.sendall(b"hello")
            self.assertEqual(waiting.result(HANG_SECONDS)[0], [connection])
            self.assertEqual(connection.recv(9), b"hello")

    def test_epollOfThreads(self) -> None:
        """
        A wait takes part in what another thread registers, modifies and unregisters meanwhile, whether it
        waits for the kernel alone or for SDP too.
        """
        (one, other), (tcp, _), _ = self.pairs
        third, fourth = self.pair()
        asked = kernelSelect.EPOLLIN
        epoll = select.epoll()
        self.addCleanup(epoll.close)
        epoll.register(tcp, asked)
        other.sendall(b"x")
        fourth.sendall(b"y")
        waiting = self.inThread(epoll.poll)
        epoll.register(one, asked)
        self.assertEqual(waiting.result(HANG_SECONDS), [(one.fileno(), asked)])
        epoll.modify(one, 0)
        self.assertEqual(epoll.poll(0), [])
        for change in epoll.modify, epoll.register:
            skt = one if change == epoll.modify else third
            waiting = self.inThread(epoll.poll)
            waitUntil(lambda: self.loop.sleeping)
            change(skt, asked)
            self.assertEqual(waiting.result(HANG_SECONDS), [(skt.fileno(), asked)])
            skt.recv(1)
        waiting = self.inThread(epoll.poll)
        waitUntil(lambda: self.loop.sleeping)
        epoll.unregister(one)
        other.sendall(b"x")
        fourth.sendall(b"y")
        self.assertEqual(waiting.result(HANG_SECONDS), [(third.fileno(), asked)])

    def test_epollSleepsOn(self) -> None:
        """
        What another thread registers, modifies and unregisters wakes no thread that waits, unless it is ready
        or the kernel's; a message ends the wait afterwards.
        """
        (one, other), (tcp, _), _ = self.pairs
        listener, asked = self.server(), kernelSelect.EPOLLIN
        epoll = select.epoll()
        self.addCleanup(epoll.close)
        epoll.register(listener, asked)
        made, woken = waits.pollerOf, []
        self.patch(waits, "pollerOf", lambda shared: woken.append("wait") or made(shared))
        wakeUp = self.loop.reactor.wakeUp
        self.patch(self.loop.reactor, "wakeUp", lambda: woken.append("bell") or wakeUp())
        waiting = self.inThread(epoll.poll)
        waitUntil(lambda: self.loop.sleeping)
        for _ in range(3):
            epoll.register(one, asked)
            epoll.modify(one, kernelSelect.EPOLLPRI)
            epoll.unregister(one)
        epoll.register(one, asked)
        # That the kernel has.
        epoll.register(tcp, asked)
        self.assertEqual(woken, ["wait"])
        other.sendall(b"x")
        self.assertEqual(waiting.result(HANG_SECONDS), [(one.fileno(), asked)])

    def test_epollRefuses(self) -> None:
        """
        While another thread waits, an epoll object refuses what the kernel's would.
        """
        one, _ = self.sdp
        epoll = select.epoll()
        epoll._waiting = 1
        self.assertRaises(TypeError, epoll.register, one, "in")
        self.assertEqual(epoll._masks, {})
        epoll.close()
        self.assertRaises(ValueError, epoll.register, one, kernelSelect.EPOLLIN)

    def test_epollOneShot(self) -> None:
        """
        Of two threads that wait, one has the event of EPOLLONESHOT.
        """
        # It sleeps, and is to stay over SDP.
        self.patch(gainless, "ASLEEP_MESSAGES_SOON", gainless.ASLEEP_MESSAGES)
        one, other = self.pair()
        epoll, told = select.epoll(), []
        self.addCleanup(epoll.close)
        mask = kernelSelect.EPOLLIN | kernelSelect.EPOLLONESHOT

        def take() -> None:
            while not epoll.closed:
                told.extend(epoll.poll(0.01))

        epoll.register(one, 0)
        waiting = [self.inThread(take) for _ in range(2)]
        for number in range(1, 51):
            waitUntil(lambda: epoll._waiting == 2)
            epoll.modify(one, mask)
            other.sendall(b"x")
            waitUntil(lambda number=number: len(told) >= number)
            self.assertEqual(one.recv(1), b"x")
        epoll.close()
        for each in waiting:
            each.exception(HANG_SECONDS)
        self.assertEqual([event for event in told if event[0] == one.fileno()], [(one.fileno(), 1)] * 50)

    def test_epollEdges(self) -> None:
        """
        With EPOLLET what can be written to is told once, and with each other event, and again when there is
        room that was not there.
        """
        ends = kernelSelect.EPOLLIN | kernelSelect.EPOLLOUT
        for one, other in self.sdp, self.tcp:
            at = one.fileno()
            with select.epoll() as epoll:
                epoll.register(one, ends | kernelSelect.EPOLLET)
                self.assertEqual(epoll.poll(HANG_SECONDS), [(at, kernelSelect.EPOLLOUT)])
                self.assertEqual(epoll.poll(0.02), [])
                other.sendall(b"x")
                self.assertEqual(epoll.poll(HANG_SECONDS), [(at, ends)])
                self.assertEqual(one.recv(2), b"x")
                self.assertEqual(epoll.poll(0.02), [])
                epoll.modify(one, kernelSelect.EPOLLOUT | kernelSelect.EPOLLET)
                self.assertEqual(epoll.poll(HANG_SECONDS), [(at, kernelSelect.EPOLLOUT)])
                self._fill(one)
                self.assertEqual(epoll.poll(0.02), [])
                self._drain(other)
                self.assertEqual(epoll.poll(HANG_SECONDS), [(at, kernelSelect.EPOLLOUT)])
                self.assertEqual(epoll.poll(0.02), [])

    def test_epollEdgesOfThreads(self) -> None:
        """
        A thread that waits with EPOLLET is told of room behind what another thread has sent meanwhile.
        """
        one, other = self.sdp
        with select.epoll() as epoll:
            epoll.register(one, kernelSelect.EPOLLOUT | kernelSelect.EPOLLET)
            self.assertEqual(epoll.poll(HANG_SECONDS), [(one.fileno(), kernelSelect.EPOLLOUT)])
            waiting = self.inThread(epoll.poll)
            waitUntil(lambda: self.loop.sleeping)
            self._fill(one)
            self._drain(other)
            self.assertEqual(waiting.result(HANG_SECONDS), [(one.fileno(), kernelSelect.EPOLLOUT)])

    def _fill(self, one: Any) -> None:
        # Until there is no room.
        one.setblocking(False)
        with self.assertRaises(BlockingIOError):
            while True:
                one.send(bytes(1 << 16))

    def _drain(self, other: Any) -> None:
        # Until nothing has come for a while.
        other.settimeout(0.5)
        with self.assertRaises(TimeoutError):
            while other.recv(1 << 20):
                pass

    def test_epollOfKernel(self) -> None:
        """
        An epoll object of a descriptor has the kernel's events of what was registered before.
        """
        listener = self.server()
        made = kernelSelect.epoll()
        self.addCleanup(made.close)
        made.register(listener, kernelSelect.EPOLLIN)
        with kernel.create_connection(listener.getsockname()):
            epoll = select.epoll.fromfd(os.dup(made.fileno()))
            self.addCleanup(epoll.close)
            self.assertEqual(epoll.poll(HANG_SECONDS), [(listener.fileno(), kernelSelect.EPOLLIN)])

    def test_epollTakes(self) -> None:
        """
        What the kernel has of its own beside SDP's is taken, and not waited for.
        """
        reader, writer = self.unix
        writer.send(b"x")
        epoll: Any = select.epoll()
        self.addCleanup(epoll.close)
        for each in self.sdp[0], reader:
            epoll.register(each, kernelSelect.EPOLLIN)
        epoll._kernel = Mock(wraps=epoll._kernel)
        self.assertEqual(epoll.poll(HANG_SECONDS), [(reader.fileno(), kernelSelect.EPOLLIN)])
        epoll._kernel.poll.assert_called_once_with(0, -1)

    def test_selectors(self) -> None:
        """
        All selectors find each of them, and a listener.
        """
        listener = self.server()
        for kind in (selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector):
            with kind() as selector:
                for each in (*self.ours, listener):
                    selector.register(each, selectors.EVENT_READ)
                self.assertEqual(selector.select(0), [])
                for one, other in self.pairs:
                    other.send(b"x")
                    self.assertEqual([key.fileobj for key, _ in selector.select()], [one])
                    one.recv(1)
                client = self.inThread(self.client, listener)
                self.assertEqual([key.fileobj for key, _ in selector.select()], [listener])
                accepted: Any = listener.accept()[0]
                client.result(HANG_SECONDS).sendall(b"hello")
                self.assertEqual(exactly(accepted, 5), b"hello")
                accepted.close()

    def test_taken(self) -> None:
        """
        A socket that another thread takes its connection from, while one waits for it alone, is looked at
        again as one of several: it has no events of that connection.
        """
        requireReplaceable(type(self.loop), "lead")
        one = self.ours[0]
        descriptor = one.fileno()

        def away(*_: object) -> bool:
            """
            What happens while it sleeps.
            """
            self.patch(one, "_sdp", None)
            return True

        self.assertEqual(waits._waitOne(descriptor, blocking._IN, 0.0), 0)
        self.patch(self.loop, "lead", away)
        self.assertIsNone(waits._waitOne(descriptor, blocking._IN, None))
