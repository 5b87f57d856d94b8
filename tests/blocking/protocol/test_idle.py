"""
Tests for L{twisted_ib.blocking.waits.idly}: servers whose clients all come over TCP wait in the kernel.
"""

from __future__ import annotations

import errno
import os
import resource
import socket as kernel
import sys
from collections.abc import Callable
from fcntl import F_DUPFD, fcntl
from functools import partial
from select import select as kernelSelect
from subprocess import PIPE, Popen
from threading import get_ident
from time import monotonic
from types import SimpleNamespace
from typing import IO, Any, cast

from tests.blocking.case import BlockingTestCase
from tests.support.calls import PACKAGE, called, requireReplaceable
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import select
from twisted_ib.blocking import descriptors, waits
from twisted_ib.blocking import listening as listeningModule
from twisted_ib.blocking import select as selectModule
from twisted_ib.blocking.waits import IDLE_LISTENERS
from twisted_ib.drive.turn import Idle
from twisted_ib.drive.waiter import Waiter
from twisted_ib.reactor import driven
from twisted_ib.reactor.driven import DrivenReactor

#: select(2): descriptors are below it.
FD_SETSIZE = 1024
#: A client that for each line sends an octet and waits for the end; its argument is the port.
_CLIENT = """
import sys
from twisted_ib import socket
for _ in sys.stdin:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as skt:
        skt.sendall(b"x")
        assert skt.recv(1) == b""
"""


class IdleTests(BlockingTestCase):
    """
    A listener that offers SDP, and a client of the kernel's own.

    @ivar plain: The client; C{made}: what the server has accepted.
    """

    def setUp(self) -> None:
        """
        Connect it.
        """
        super().setUp()
        # Clients of one message are not to be left to TCP.
        self.rules("timeout short 0\nuse both listen * *:*\nuse both connect * *:*\n")
        self.listener = self.server()
        self.plain = self.client(self.listener, kernel)
        self.made, _ = self.listener.accept()
        self.addCleanup(self.made.close)
        self.both = [self.listener, self.made]
        self.poller: Any = select.poll()
        self.epoller: Any = select.epoll()
        self.addCleanup(self.epoller.close)
        for each in self.both:
            for poller in (self.poller, self.epoller):
                poller.register(each, select.POLLIN)

    def ways(self) -> dict[str, Callable[[float | None], list[int]]]:
        """
        @return: The calls that wait, which return the descriptors that are ready.
        """
        milliseconds = lambda seconds: None if seconds is None else seconds * 1e3  # noqa: E731
        return {
            "select": lambda seconds: [each.fileno() for each in self._select(seconds)],
            "poll": lambda seconds: [each for each, _ in self.poller.poll(milliseconds(seconds))],
            "epoll": lambda seconds: [each for each, _ in self.epoller.poll(seconds)],
        }

    def asleep(self) -> bool:
        """
        @return: Whether a thread sleeps, one that drives the devices or another.
        """
        return self.loop.sleeping or bool(self.loop.idling.inside)

    def _select(self, seconds: float | None) -> list[Any]:
        return select.select(self.both, [], [], seconds)[0]

    def test_kernels(self) -> None:
        """
        A wait that the kernel ends has no turn of the loop, and few functions.
        """
        for name, wait in self.ways().items():
            self.plain.sendall(b"x")
            self.assertEqual(wait(None), [self.made.fileno()], name)
            turns = self.loop.driven.turns
            # The devices' deadlines are known from the first time on.
            calls = called(lambda wait=wait: wait(HANG_SECONDS), PACKAGE)
            self.assertRaises(KeyError, self.poller._kernel.unregister, self.loop.reactor.descriptor)
            self.assertEqual(self.loop.driven.turns, turns, name)
            self.assertLessEqual(calls.total(), 27, (name, calls))
            self.assertEqual(self.made.recv(2), b"x")

    def test_numbers(self) -> None:
        """
        Of descriptors that are numbers, as those of C{asyncore}, C{select} has no function for each.
        """
        numbers = [each.fileno() for each in self.both]
        self.plain.sendall(b"x")
        for _ in range(2):
            calls = called(lambda: select.select(numbers, [], [], HANG_SECONDS), PACKAGE)
        self.assertEqual(dict(calls), {"select": 1, "wait": 1, "selectBeside": 1})

    def test_offered(self) -> None:
        """
        A client over SDP ends it, whether another thread of the process has seen it or not.
        """
        for name, wait in self.ways().items():
            for isSeen in (False, True):
                waiting = self.inThread(wait, HANG_SECONDS)
                waitUntil(self.asleep)
                client = self.client(self.listener)
                self.assertIsNotNone(client.sdp, (name, isSeen))
                if isSeen:
                    client.sendall(b"x")
                self.assertEqual(waiting.result(HANG_SECONDS), [self.listener.fileno()])
                with self.listener.accept()[0] as made:
                    self.assertIsNotNone(made.sdp)
                client.close()
                waitUntil(lambda: not self.carried())

    def test_process(self) -> None:
        """
        So does one of another process, whose memory this one has, or not yet.
        """
        for wait in self.ways().values():
            words = [sys.executable, "-c", _CLIENT, str(self.listener.getsockname()[1])]
            with Popen(words, stdin=PIPE) as client:
                stdin = cast("IO[bytes]", client.stdin)
                for _ in range(2):
                    # From the second wait without a turn between on it is armed alone.
                    self.plain.sendall(b"x")
                    self.assertEqual(wait(HANG_SECONDS), [self.made.fileno()])
                    self.assertEqual(self.made.recv(2), b"x")
                    waiting = self.inThread(wait, HANG_SECONDS)
                    waitUntil(self.asleep)
                    stdin.write(b"\n")
                    stdin.flush()
                    self.assertEqual(waiting.result(HANG_SECONDS), [self.listener.fileno()])
                    with self.listener.accept()[0] as made:
                        self.assertIsNotNone(made.sdp)
                        self.assertEqual(made.recv(2), b"x")
                    waitUntil(lambda: not self.carried())
                stdin.close()
                self.assertEqual(client.wait(HANG_SECONDS), 0)

    def test_waits(self) -> None:
        """
        A client that waits to be accepted is told of at once.
        """
        with self.client(self.listener), self.loop:
            self.assertTrue(self.loop.wait(self.listener.sdp.ready, monotonic() + HANG_SECONDS))
        for name, wait in self.ways().items():
            self.assertEqual(wait(HANG_SECONDS), [self.listener.fileno()], name)

    def test_waitsAmid(self) -> None:
        """
        So it is of one that has come while the thread waited for the lock, seen by another one.
        """
        part = self.listener.sdp
        with self.client(self.listener), self.loop:
            self.assertTrue(self.loop.wait(part.ready, monotonic() + HANG_SECONDS))
        for name, wait in self.ways().items():
            with self.loop:
                client = part.accepted.popleft()
                waiting = self.inThread(wait, HANG_SECONDS)
                waitUntil(lambda: self.loop.lockQueue)
                part.accepted.append(client)
            self.assertEqual(waiting.result(HANG_SECONDS), [self.listener.fileno()], name)

    def _rested(self, wait: Callable[[float | None], list[int]]) -> None:
        # After a wait of the kernel's alone nobody drives the devices.
        with self.loop:
            self.assertFalse(self.loop.idling.holds)
        self.plain.sendall(b"x")
        self.assertEqual(wait(HANG_SECONDS), [self.made.fileno()])
        self.assertTrue(self.loop.idling.holds)

    def test_rested(self) -> None:
        """
        The next wait takes no lock; the kernel's events and its own timeout end it, and nobody drives the
        devices afterwards.
        """
        for name, wait in self.ways().items():
            self._rested(wait)
            patched = self.patch(self.loop, "lock", None)
            self.assertEqual(wait(HANG_SECONDS), [self.made.fileno()], name)
            self.assertEqual(self.made.recv(2), b"x")
            self.assertEqual((wait(0.0), wait(0.001)), ([], []), name)
            self.assertEqual((self.loop.idling.holds, self.loop.idling.inside), (True, 0))
            patched.restore()

    def test_restedOffered(self) -> None:
        """
        A client over SDP ends it.
        """
        for name, wait in self.ways().items():
            self._rested(wait)
            self.made.recv(1)
            waiting = self.inThread(wait, HANG_SECONDS)
            waitUntil(lambda: self.loop.idling.inside)
            with self.client(self.listener) as client:
                self.assertEqual(waiting.result(HANG_SECONDS), [self.listener.fileno()], name)
                with self.listener.accept()[0] as made:
                    self.assertIsNotNone(made.sdp, name)
                self.assertIsNotNone(client.sdp, name)
            waitUntil(lambda: not self.carried())

    def test_restedTaken(self) -> None:
        """
        A thread that takes the devices meanwhile finds one that drives them, and sleeps; that wakes up as
        before, and drives them no more.
        """
        for name, wait in self.ways().items():
            self._rested(wait)
            self.made.recv(1)
            waiting = self.inThread(wait, HANG_SECONDS)
            waitUntil(lambda: self.loop.idling.inside)
            sleeper = self.loop.idling.inside
            with self.loop:
                self.assertEqual((self.loop.leader, self.loop.sleeping), (sleeper, True), name)
                self.assertFalse(self.loop.idling.holds)
            self.plain.sendall(b"x")
            self.assertEqual(waiting.result(HANG_SECONDS), [self.made.fileno()], name)
            self.assertEqual((self.loop.leader, self.loop.sleeping), (0, False))
            self.made.recv(1)

    def test_restedTime(self) -> None:
        """
        It ends when the devices have something to do by themselves, or another thread has; a wait without a
        timeout does so, too.
        """
        ticks: list[None] = []
        for name, wait in self.ways().items():
            for seconds in (None, HANG_SECONDS):
                with self.loop:
                    self.loop.reactor.callLater(0.01, ticks.append, None)
                    self.loop.poll()
                self._rested(wait)
                self.made.recv(1)
                waiting = self.inThread(wait, seconds)
                waitUntil(lambda: ticks)
                self.plain.sendall(b"x")
                self.assertEqual(waiting.result(HANG_SECONDS), [self.made.fileno()], name)
                self.made.recv(1)
                del ticks[:]
                self._rested(wait)
                self.made.recv(1)
                waiting = self.inThread(wait, seconds)
                waitUntil(lambda: self.loop.idling.inside)
                # A finalizer may abandon something in any thread, without the lock.
                self.loop.abandon(partial(ticks.append, None))
                waitUntil(lambda: ticks)
                self.plain.sendall(b"x")
                self.assertEqual(waiting.result(HANG_SECONDS), [self.made.fileno()], name)
                self.made.recv(1)
                del ticks[:]

    def test_restedCalls(self) -> None:
        """
        Nobody rests while there is a delayed call that is not known of.
        """
        for name, wait in self.ways().items():
            ticks: list[None] = []
            self._rested(wait)
            self.made.recv(1)
            self.loop.reactor.callLater(0.01, ticks.append, None)
            self.assertEqual(wait(0.05), [], name)
            self.assertEqual(ticks, [None], name)

    def test_restedRaises(self) -> None:
        """
        An error of the handler of a signal leaves nothing behind, whether the devices are taken or not.
        """
        for isTaken in (False, True):
            self._rested(self.ways()["poll"])
            self.made.recv(1)

            def interrupted(milliseconds: float, isTaken: bool = isTaken) -> Any:
                if isTaken:
                    with self.loop:
                        self.assertTrue(self.loop.sleeping)
                raise KeyboardInterrupt

            idle = self.loop.idling
            self.assertRaises(KeyboardInterrupt, idle.wait, interrupted, None, monotonic())
            self.assertEqual((idle.inside, idle.holds), (0, not isTaken))
            self.assertEqual((self.loop.leader, self.loop.sleeping), (0, False))
            with self.loop:
                pass
        # Another one within it does not sleep.
        self._rested(self.ways()["poll"])
        within: list[object] = []

        def call(milliseconds: float) -> list[tuple[int, int]]:
            within.append(idle.wait(self.fail, None, monotonic()))
            return [(0, 1)]

        self.assertEqual((idle.wait(call, None, monotonic()), within), ([(0, 1)], [None]))

    def test_restedFirst(self) -> None:
        """
        What it depends on is read once all others know that it is about to sleep: no other one sleeps at the
        same time, and who takes the devices makes it the one that drives them.
        """
        self._rested(self.ways()["poll"])
        idle, found = self.loop.idling, [(self.made.fileno(), 1)]
        seen: list[object] = []

        def other() -> None:
            seen.append(idle.wait(lambda milliseconds: found, None, monotonic()))
            with self.loop:
                seen.append(self.loop.leader)

        class Served:
            @property
            def _newTimedCalls(served) -> list[object]:
                if not seen:
                    self.inThread(other).result(HANG_SECONDS)
                return []

        idle._served = Served()
        self.assertEqual(idle.wait(lambda milliseconds: found, None, monotonic()), found)
        self.assertEqual((seen, self.loop.leader), ([None, get_ident()], 0))

    def test_restedFound(self) -> None:
        """
        It says what it has found before another thread may sleep, and find something.
        """
        self._rested(self.ways()["poll"])
        idle = self.loop.idling
        sleepers: list[int] = []

        class Found(list[tuple[int, int]]):
            def __contains__(self, event: object) -> bool:
                sleepers.append(idle.inside)
                return super().__contains__(event)

        self.assertTrue(idle.wait(lambda milliseconds: Found([(0, 1)]), None, monotonic()))
        self.assertEqual(sleepers, [get_ident()])

    def test_restedOrphan(self) -> None:
        """
        Nobody rests while there is something that was abandoned just before.
        """
        requireReplaceable(Idle, "begin")
        begin = Idle.begin

        def abandoned(idle: Idle, *arguments: Any) -> None:
            self.loop.abandon(list)
            begin(idle, *arguments)

        self.patch(Idle, "begin", abandoned)
        self.plain.sendall(b"x")
        self.assertEqual(self.ways()["poll"](HANG_SECONDS), [self.made.fileno()])
        self.assertFalse(self.loop.idling.holds)

    def test_restedLeft(self) -> None:
        """
        The error of a signal's handler that comes as it is to say that it drives the devices no more does not
        keep it from that.
        """
        self._rested(self.ways()["poll"])
        idle, left = self.loop.idling, self.loop.leftIdle
        errors = [KeyboardInterrupt()]

        def interrupted() -> None:
            if errors:
                raise errors.pop()
            left()

        def call(milliseconds: float) -> list[tuple[int, int]]:
            with self.loop:
                self.assertTrue(self.loop.sleeping)
            return []

        idle._left = interrupted
        self.assertRaises(KeyboardInterrupt, idle.wait, call, None, monotonic())
        self.assertEqual((self.loop.leader, self.loop.sleeping), (0, False))

    def test_restedForked(self) -> None:
        """
        In a child that a signal's handler has forked meanwhile it goes on with what the kernel has found.
        """
        self._rested(self.ways()["poll"])
        found = [(self.made.fileno(), 1)]
        children: list[int] = []

        def call(milliseconds: float) -> list[tuple[int, int]]:
            children.append(os.fork())
            return found

        status = 1
        try:
            status = int(self.loop.idling.wait(call, None, monotonic()) != found)
        finally:
            if children == [0]:
                os._exit(status)
        self.assertEqual((status, os.waitpid(children[0], 0)[1]), (0, 0))

    def accepted(self, wait: bool = True) -> Any:
        """
        @return: A client over TCP that was accepted, once waited for.
        """
        client = kernel.create_connection(self.listener.getsockname())
        self.addCleanup(client.close)
        if wait:
            self.assertEqual([each for each, _ in self.poller.poll()], [self.listener.fileno()])
        made, _ = self.listener.accept()
        self.addCleanup(made.close)
        self.assertEqual(made.getpeername(), client.getsockname())
        return made

    def test_accept(self) -> None:
        """
        Accept asks nobody but the kernel if this thread has just waited; else it waits, for SDP's, too.
        """
        clocks = (driven, "monotonic"), (selectModule, "monotonic"), (self.loop.reactor, "seconds")
        plain = self.listener.sdp.acceptTCP
        slow: list[None] = []
        self.patch(self.listener.sdp, "acceptTCP", lambda skt: slow.append(None) or plain(skt))
        for timeout in (None, HANG_SECONDS):
            self.listener.settimeout(timeout)
            # No deadline of a device passes between the two, however slow the machine is.
            stopped = [self.patch(where, name, float) for where, name in clocks]
            # Nobody has waited before.
            self.accepted()
            del slow[:]
            for wait in (True, False, True):
                made = self.accepted(wait)
                self.assertEqual((slow, made.gettimeout()), ([], None))
            for each in stopped:
                each.restore()
            with self.loop:
                pass
            waiting = self.inThread(self.listener.accept)
            waitUntil(self.asleep)
            with self.client(self.listener) as client, waiting.result(HANG_SECONDS)[0] as made:
                self.assertTrue(made.sdp is not None and client.sdp is not None)
            waitUntil(lambda: not self.carried())

    def test_acceptOnce(self) -> None:
        """
        What was found is accepted once, and by the thread that has found it: another accept waits as long as
        it is to, and one of a descriptor that does not block says so.
        """
        idle, listening = self.loop.idling, self.listener.sdp
        self.accepted()
        self.accepted()
        self.assertEqual((idle.found, idle.holds), ((), True))
        self.listener.settimeout(0.01)
        self.assertRaises(TimeoutError, self.listener.accept)
        client = kernel.create_connection(self.listener.getsockname())
        self.addCleanup(client.close)
        self.poller.poll()
        self.assertEqual(idle.found, [listening.event])
        self.inThread(self.listener.accept).result(HANG_SECONDS)[0].close()
        # That has taken the devices.
        self.assertEqual((idle.found, idle.holds), ((), False))
        self.assertRaises(TimeoutError, self.listener.accept)
        self.listener.settimeout(None)
        os.set_blocking(self.listener.fileno(), False)
        self.assertRaises(BlockingIOError, self.listener.accept)
        # Another process was quicker, and a client has come over SDP.
        with self.client(self.listener) as client:
            waitUntil(lambda: listening.ready() or self.carried())
            idle.begin(monotonic() + HANG_SECONDS, [listening.event])
            with self.listener.accept()[0] as made:
                self.assertTrue(made.sdp is not None and client.sdp is not None)

    def test_acceptStolen(self) -> None:
        """
        A client that another thread accepts before the devices are left is not accepted at once, for which
        the kernel would wait, and nobody drive them.
        """
        self.accepted()
        event = self.listener.sdp.event
        client = kernel.create_connection(self.listener.getsockname())
        self.addCleanup(client.close)

        def call(seconds: float) -> list[tuple[int, int]]:
            self.inThread(self.listener.accept).result(HANG_SECONDS)[0].close()
            return [event]

        self.assertEqual(self.loop.idle(lambda: False, HANG_SECONDS, call), [event])
        self.assertEqual((self.loop.idling.holds, self.loop.idling.found), (True, [event]))
        self.assertIsNone(self.loop.idling.accept(event, self.fail, self.listener))

    def test_acceptAmid(self) -> None:
        """
        Nor does another thread accept it while this one does so at once; nor is this one asleep.
        """
        self.accepted()
        client = kernel.create_connection(self.listener.getsockname())
        self.addCleanup(client.close)
        self.poller.poll()

        def slowly() -> None:
            with self.loop:
                self.assertEqual(self.loop.leader, 0)
                self.assertRaises(BlockingIOError, self.listener.sdp.acceptTCP, self.listener)

        def accept(skt: Any) -> object:
            self.inThread(slowly).result(HANG_SECONDS)
            return self.listener

        event = self.listener.sdp.event
        self.assertIs(self.loop.idling.accept(event, accept, self.listener), self.listener)
        self.listener.accept()[0].close()

    def test_acceptGiven(self) -> None:
        """
        If another process may have the listener, each accept is one that does not block.
        """
        listening = self.listener.sdp
        self.accepted()
        self.assertIsNotNone(listening.event)
        for give in (lambda: descriptors.keep([self.listener.fileno()]), listeningModule._forked):
            listening.event = ()
            give()
            self.accepted()
            self.assertIsNone(listening.event)

    def test_told(self) -> None:
        """
        Another thread that finds what it waits for tells it.
        """
        found: list[None] = []
        descriptor = self.loop.reactor.descriptor
        call = lambda seconds: kernelSelect([descriptor], [], [], seconds)[0]  # noqa: E731
        waiting = self.inThread(self.loop.idle, lambda: bool(found), HANG_SECONDS, call)
        waitUntil(self.asleep)
        found.append(None)
        with self.loop:
            self.assertTrue(self.loop.dispatch())
        self.assertEqual(waiting.result(HANG_SECONDS), [descriptor])

    def test_beside(self) -> None:
        """
        It is not for a thread beside others that wait, nor in a forked child.
        """
        follower = Waiter(lambda: False, 0.0)
        self.loop.followers.append(follower)
        self.assertIsNone(self.loop.idle(lambda: False, None, self.fail))
        self.loop.followers.remove(follower)
        self.loop.leader = 1
        self.assertIsNone(self.loop.idle(lambda: False, None, self.fail))
        self.loop.leader = 0
        self.loop.forked = True
        self.assertIsNone(waits.idly(None, self.fail))
        self.loop.forked = False

    def test_orphan(self) -> None:
        """
        What was collected just before it sleeps is not left.
        """
        requireReplaceable(DrivenReactor, "idle")
        limits: list[float] = []
        arm = self.loop.reactor.rest.begin

        def begin(*arguments: Any) -> float:
            self.loop.orphans.append(list)
            return arm(*arguments)

        self.patch(
            self.loop.reactor, "rest", SimpleNamespace(begin=begin, isAsleep=False, disarm=lambda _: None)
        )
        self.loop.idle(lambda: False, None, limits.append)
        self.assertEqual(limits, [0.0])

    def test_devices(self) -> None:
        """
        A device that has come since the last wait is armed, too.
        """
        requireReplaceable(DrivenReactor, "idle")
        armed: list[object] = []
        self.loop.idle(lambda: False, 0.0, lambda seconds: [])
        channel = SimpleNamespace(
            arm=lambda: armed.append(None) or True, deadline=lambda: None, look=lambda: False
        )
        self.patch(self.loop.reactor, "_channels", (*self.loop.reactor._channels, channel))
        self.loop.idle(lambda: False, 0.0, lambda seconds: [])
        self.assertEqual(armed, [None])

    def test_registered(self) -> None:
        """
        A descriptor that another thread registers as the object is made for the next waits is waited for.
        """
        read, write = os.pipe()
        self.addCleanup(os.close, write)
        self.addCleanup(os.close, read)

        looks: list[None] = []

        class Masks(dict[int, int]):
            def copy(masks) -> dict[int, int]:
                made = dict(masks)
                looks.append(None)
                if len(looks) == 2:
                    self.poller.register(read, select.POLLIN)
                return made

        self.poller._masks = Masks(self.poller._masks)
        self.plain.sendall(b"x")
        self.assertEqual(self.poller.poll(), [(self.made.fileno(), select.POLLIN)])
        self.made.recv(1)
        os.write(write, b"x")
        self.assertEqual(self.poller.poll(HANG_SECONDS * 1e3), [(read, select.POLLIN)])

    def test_epollClosed(self) -> None:
        """
        An epoll object that is closed is no other file that has its number.
        """
        self._rested(self.ways()["epoll"])
        number = self.epoller.fileno()
        self.epoller.close()
        read, write = os.pipe()
        self.addCleanup(os.close, write)
        self.addCleanup(os.close, read)
        if read != number:
            os.dup2(read, number)
            self.addCleanup(os.close, number)
        self.assertRaises(ValueError, self.epoller.poll, 0.001)

    def test_oneShot(self) -> None:
        """
        epoll_ctl(2): EPOLLONESHOT is one event, whichever wait has it.
        """
        self.epoller.modify(self.made, select.EPOLLIN | select.EPOLLONESHOT)
        self.plain.sendall(b"x")
        self.assertEqual(self.epoller.poll(HANG_SECONDS), [(self.made.fileno(), select.EPOLLIN)])
        self.assertEqual(self.epoller.poll(0), [])
        self.epoller.modify(self.listener, select.EPOLLIN | select.EPOLLONESHOT)
        with kernel.create_connection(self.listener.getsockname()):
            self.assertEqual(self.epoller.poll(HANG_SECONDS), [(self.listener.fileno(), select.EPOLLIN)])
            self.assertEqual(self.epoller.poll(0), [])
            self.listener.accept()[0].close()

    def test_closed(self) -> None:
        """
        A listener that another thread closes meanwhile is a bad descriptor for C{select}.
        """
        waiting = self.inThread(self._select, HANG_SECONDS)
        waitUntil(self.asleep)
        self.listener.close()
        error = self.assertRaises(OSError, waiting.result, HANG_SECONDS)
        self.assertEqual(error.errno, errno.EBADF)

    def carried(self) -> list[Any]:
        """
        @return: The connections that stand, after a turn.
        """
        with self.loop:
            self.loop.poll()
            return [
                user
                for channel in self.loop.reactor._channels
                for user in channel.users
                if getattr(user, "queuePair", None) is not None
            ]

    def test_time(self) -> None:
        """
        It lasts as long as it is to: what the devices have to do meanwhile is done.
        """
        ticks: list[None] = []
        self.loop.reactor.callLater(0.01, ticks.append, None)
        for name, wait in self.ways().items():
            self.assertEqual(wait(0.03), [], name)
            self.assertEqual(wait(0), [], name)
        self.assertEqual(ticks, [None])
        # Also if it was not known of at the last wait.
        for name, wait in self.ways().items():
            self.assertEqual(wait(0.01), [], name)
            self.loop.reactor.callLater(0.01, ticks.append, None)
            self.assertEqual(wait(0.05), [], name)
        self.assertEqual(len(ticks), 4)

    def test_follows(self) -> None:
        """
        Another thread that waits meanwhile goes on when this one leaves: for what comes over SDP, too.
        """
        one, other = self.pair()
        # Of the wait below it is none: its descriptor is another's.
        waiting = self.inThread(self._sleepIdly)
        waitUntil(self.asleep)
        receiving = self.inThread(other.recv, 1)
        waitUntil(lambda: self.loop.followers)
        self.plain.sendall(b"x")
        self.assertEqual(waiting.result(HANG_SECONDS), [(self.made.fileno(), 1)])
        one.sendall(b"y")
        self.assertEqual(receiving.result(HANG_SECONDS), b"y")

    def _sleepIdly(self) -> Any:
        select = lambda seconds: kernelSelect([self.made], [], [], seconds)[0]  # noqa: E731
        call = lambda seconds: [(each.fileno(), 1) for each in select(seconds)]  # noqa: E731
        return self.loop.idle(lambda: False, HANG_SECONDS, call)

    def test_raises(self) -> None:
        """
        An error of the call, as a signal's handler raises it, leaves nothing behind.
        """

        def interrupted(seconds: float) -> None:
            raise KeyboardInterrupt

        self.assertRaises(KeyboardInterrupt, self.loop.idle, lambda: False, None, interrupted)
        self.assertEqual((self.loop.leader, self.loop.sleeping), (0, False))
        self.assertFalse(self.loop.lock._is_owned())
        self.assertFalse(self.loop.reactor.rest.isAsleep)

    def test_invalid(self) -> None:
        """
        What the kernel refuses is refused.
        """
        read, write = os.pipe()
        os.close(write)
        os.close(read)
        self.assertRaises(OSError, select.select, [*self.both, read], [], [], HANG_SECONDS)
        self.plain.sendall(b"x")
        self.assertRaises(ValueError, select.select, self.both, [], [], -1.0)

    def test_large(self) -> None:
        """
        Descriptors that select(2) cannot have are waited for all the same.
        """
        self.plain.sendall(b"x")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (FD_SETSIZE + 1, limits[1]))
        large = fcntl(self.made, F_DUPFD, FD_SETSIZE)
        self.addCleanup(os.close, large)
        self.assertRaises(ValueError, kernelSelect, [large], [], [], 0)
        self.assertEqual(select.select([self.listener, large], [], [], HANG_SECONDS)[0], [large])

    def test_many(self) -> None:
        """
        Among more listeners than are looked at, and beside a connection over SDP, all of them are served.
        """
        more = [self.server() for _ in range(IDLE_LISTENERS)]
        for each in more:
            each.sdp.serve()
        turns = self.loop.driven.turns
        self.plain.sendall(b"x")
        self.assertEqual(select.select(self.both, [], [], HANG_SECONDS)[0], [self.made])
        self.assertNotEqual(self.loop.driven.turns, turns)
        for each in more:
            each.close()
        self.pair()
        turns = self.loop.driven.turns
        self.assertEqual(select.select(self.both, [], [], HANG_SECONDS)[0], [self.made])
        self.assertNotEqual(self.loop.driven.turns, turns)
