"""
Tests for L{twisted_ib.blocking.loop}: who drives it.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from socket import socketpair
from subprocess import PIPE, Popen, run
from threading import Event, get_ident
from time import monotonic, sleep
from typing import Any, NoReturn, cast

from attrs import evolve
from twisted.internet.abstract import FileDescriptor
from twisted.python import threadable
from zope.interface import Interface

from tests.blocking.case import LOOPBACK, BlockingTestCase
from tests.support.calls import requireReplaceable
from tests.support.descriptors import exactly
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import select, socket
from twisted_ib.blocking import files
from twisted_ib.blocking import loop as module
from twisted_ib.drive import threads
from twisted_ib.drive.followers import GRACE_SECONDS, GRACE_SECONDS_MOST
from twisted_ib.drive.turn import Turn
from twisted_ib.drive.waiter import DrivingLock, LockQueue, Waiter
from twisted_ib.hca.base.interfaces import ISharedMemoryPath
from twisted_ib.hca.device.registry import addDevice, removeDevice


class INowhere(Interface):
    """
    No path provides it.
    """


#: A program that writes more than the medium holds, and ends; its argument is the port.
_WRITER = """
import os, sys
# On one CPU blocking sockets stay TCP.
os.sched_getaffinity = lambda _: {0, 1}
from twisted_ib import socket
skt = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
assert skt.sdp is not None
skt.setblocking(False)
skt.send(b"x" * 200000)
"""
#: A program that sends back what it gets; it prints its port.
_ECHO = """
from twisted_ib import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
while data := connection.recv(100):
    connection.sendall(data)
connection.close()
"""
#: A program whose sockets are used after the end of the loop: the call of C{atexit} is older than that.
_LATE = """
import atexit, errno, os, sys
# On one CPU blocking sockets stay TCP.
os.sched_getaffinity = lambda _: {0, 1}

def end():
    assert loop._loop.closed
    assert client.recv(1) == b""
    assert select.select([client], [], [], 0)[0] == [client]
    for call in (lambda: client.send(b"x"), lambda: client.shutdown(2), client.getpeername):
        try:
            call()
        except OSError as error:
            assert error.errno in (errno.EPIPE, errno.ENOTCONN), error
        else:
            raise AssertionError(call)
    client.close()
    # The kernel has the others.
    listener = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    assert one.sdp is None
    other.settimeout(60)
    one.sendall(b"x")
    assert select.select([other], [], [])[0] == [other]
    assert other.recv(1) == b"x"
    print("done", flush=True)

atexit.register(end)
from twisted_ib import select, socket
from twisted_ib.blocking import loop
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
kept, _ = listener.accept()
assert client.sdp is not None
kept.sendall(b"x")
# Collected with the interpreter's own last things.
sys.kept, sys.listener = kept, listener
"""
#: A program that sends what finalizers are for, which the interpreter calls at its very end.
_FINALIZED = """
import os, sys
os.sched_getaffinity = {0: {0, 1}}.get
from twisted_ib import socket
from twisted_ib.blocking import loop
from twisted_ib.internet.readers import channelsOf
class Polite:
    def __init__(self, how):
        self.connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        assert self.connection.sdp is not None
        self.connection.sendall(b"hello ")
        if how == "cycle":
            self.me = self
    def __del__(self):
        # As ib-ss asks, who may do so then.
        assert channelsOf(loop._loop.reactor)[0].device.describeSockets()
        self.connection.sendall(b"bye")
        self.connection.close()
kept = [Polite(how) for how in ("plain", "cycle")]
def function():
    return kept
"""
#: A program that has no reactor.
_PRIVATE = """
import sys, threading
from twisted_ib import socket
listener = socket.create_server(("127.0.0.1", 0))
assert listener.sdp is not None
assert "twisted.internet.reactor" not in sys.modules
assert threading.active_count() == 1
"""

#: A program that makes the loop of its process while a signal's handler asks for it, or a finalizer does.
_MAKING = """
import signal, sys
from twisted_ib.blocking import loop
from twisted_ib.drive.waiter import handlers
protect, found = handlers.protect, []
def ask(*_):
    found.append(loop.theLoop())
def amid(lock):
    handlers.protect = protect
    if sys.argv[1] == "signal":
        signal.raise_signal(signal.SIGUSR1)
        assert not found
    else:
        ask()
    return protect(lock)
signal.signal(signal.SIGUSR1, ask)
handlers.protect = amid
made = loop.theLoop()
assert found == [made], found
assert not handlers.areKept()
with made:
    assert handlers.areKept()
print("made")
"""


class _Queue(LockQueue):
    """
    Threads that wait for a lock, and a signal whose handler raises while this thread wakes the first.
    """

    def __init__(self) -> None:
        """
        See the class.
        """
        super().__init__()
        self._thread = get_ident()

    def __bool__(self) -> bool:
        return self._thread == get_ident()

    def wake(self) -> None:
        """
        Wake none, once.
        """
        self._thread = 0
        raise ZeroDivisionError


class _Lock:
    """
    The lock of a loop, which another thread takes as soon as this one has given it back; and a signal whose
    handler raises as soon as it can while this one waits for it.
    """

    def __init__(self, lock: Any) -> None:
        """
        @param lock: The real one.
        """
        self._lock = lock
        self._isTaken = False
        self._thread = get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _release_save(self) -> object:
        self._isTaken |= self._thread == get_ident()
        return self._lock._release_save()

    def acquire(self, blocking: bool = True) -> bool:
        """
        Be interrupted.
        """
        if not self._isTaken or self._thread != get_ident():
            return bool(self._lock.acquire(blocking))
        if blocking:
            raise ZeroDivisionError
        return False

    def _acquire_restore(self, held: object) -> None:
        # No handler runs within this.
        self._lock._acquire_restore(held)
        if self._thread == get_ident():
            self._isTaken = False
            raise ZeroDivisionError


class LoopTests(BlockingTestCase):
    """
    Leader, followers and deputy.
    """

    def test_private(self) -> None:
        """
        The reactor is not installed, has no thread, and does not make its driver Twisted's I/O thread.
        """
        before = threadable.ioThread
        one, other = self.pair()
        one.sendall(b"x")
        self.assertEqual(other.recv(1), b"x")
        self.assertEqual(threadable.ioThread, before)
        ended = run([sys.executable, "-c", _PRIVATE], timeout=HANG_SECONDS, check=False)
        self.assertEqual(ended.returncode, 0)

    def test_deadline(self) -> None:
        """
        A wait ends at its deadline, of the leader and of a follower.
        """
        one, other = self.pair()
        leader = self.inThread(one.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        other.settimeout(0.02)
        began = monotonic()
        self.assertRaises(TimeoutError, other.recv, 1)
        self.assertGreaterEqual(monotonic() - began, 0.02)
        other.sendall(b"x")
        self.assertEqual(leader.result(HANG_SECONDS), b"x")

    def raises(self) -> None:
        """
        A call in this thread ends by the error of a signal's handler, in whatever it does with the lock, and
        the lock is free.
        """
        one, other = self.pair()
        one.settimeout(0.02)
        real, queue = self.loop.lock, self.loop.lockQueue
        for lock, waiting in (real, _Queue()), (_Lock(real), queue):
            self.loop.lock, self.loop.lockQueue = cast(DrivingLock, lock), waiting
            self.assertRaises(ZeroDivisionError, one.recv, 1)
            self.assertEqual((self.loop.lock, self.loop.lockQueue), (lock, waiting))
            self.loop.lock, self.loop.lockQueue = real, queue
            self.assertFalse(real._is_owned())
        other.sendall(b"x")
        one.settimeout(HANG_SECONDS)
        self.assertEqual(one.recv(1), b"x")

    def test_leaderRaises(self) -> None:
        """
        A signal's handler raises when the thread that drives gives the lock back, or takes it again.
        """
        self.raises()
        self.assertFalse(self.loop.sleeping)

    def test_followerRaises(self) -> None:
        """
        The same of one that follows.
        """
        one, other = self.pair()
        leader = self.inThread(one.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        self.raises()
        other.sendall(b"x")
        self.assertEqual(leader.result(HANG_SECONDS), b"x")

    def test_handedOver(self) -> None:
        """
        When the leader has what it waited for, and does not come back, a follower leads.
        """
        one, other = self.pair()
        third, fourth = self.pair()
        leader = self.inThread(one.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        follower = self.inThread(third.recv, 1)
        waitUntil(lambda: self.loop.followers)
        other.sendall(b"a")
        self.assertEqual(leader.result(HANG_SECONDS), b"a")
        fourth.sendall(b"b")
        self.assertEqual(follower.result(HANG_SECONDS), b"b")

    def test_grace(self) -> None:
        """
        A deputy leads when nobody has led for a period of grace: not because a thread that leads again and
        again is at work with what it received.  It looks more and more seldom then, to a bound, and after its
        own lead as at first.
        """
        slept: list[float | None] = []

        def sleep(waiter: Waiter, seconds: float | None, kernel: Any) -> bool:
            """
            In the first five another thread leads, and leaves.
            """
            slept.append(seconds)
            if len(slept) <= 5:
                self.loop.following.leaves += 1
            return False

        requireReplaceable(Waiter, "sleep")
        self.patch(Waiter, "sleep", sleep)
        with self.loop:
            waiter = Waiter(lambda: False, GRACE_SECONDS)
            self.assertIsNone(self.loop.following.wait(waiter, None, None))
        self.assertEqual(slept, [GRACE_SECONDS * each for each in (1, 2, 4, 8, 8, 8)])
        self.assertEqual(slept[-1], GRACE_SECONDS_MOST)
        self.assertEqual(waiter.grace, GRACE_SECONDS)

    def test_noGrace(self) -> None:
        """
        Followers but the deputy sleep until they are woken.
        """
        slept: list[float | None] = []
        requireReplaceable(Waiter, "sleep")
        self.patch(Waiter, "sleep", lambda waiter, seconds, kernel: slept.append(seconds) is None)
        with self.loop:
            deputy = self.loop.following.deputy = Waiter(lambda: False, 0.0)
            deputy.thread = -1
            waiter = Waiter(lambda: len(slept) == 2, GRACE_SECONDS)
            self.assertTrue(self.loop.following.wait(waiter, None, None))
            self.loop.following.deputy = None
        self.assertEqual(slept, [None, None])

    def test_timedOut(self) -> None:
        """
        A deputy whose sleep nothing has ended does not ask the kernel again.
        """
        asked: list[float] = []

        class Asked:
            """
            In the place of a C{select.poll} object: another one leads, and leaves, in two sleeps.
            """

            def __init__(self, loop: Any) -> None:
                self.loop = loop

            def register(self, *_: object) -> None:
                """
                Do nothing.
                """

            unregister = register

            def poll(self, milliseconds: float) -> list[tuple[int, int]]:
                """
                Nothing is ready.
                """
                asked.append(milliseconds)
                self.loop.following.leaves += len(asked) < 3
                return []

        with self.loop:
            waiter = Waiter(lambda: False, GRACE_SECONDS)
            self.assertIsNone(self.loop.following.wait(waiter, None, cast(Any, Asked(self.loop))))
        self.assertEqual(asked, [1, 2, 4])

    def test_keepsLeading(self) -> None:
        """
        A thread that receives and sends in turns is woken by no other one for each message: it leads, though
        another one waited first.
        """
        one, other = self.pair()
        idle, _ = self.pair()
        first = self.inThread(idle.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        woken = []
        wake = Waiter.wake
        self.patch(Waiter, "wake", lambda waiter: (woken.append(waiter), wake(waiter)))
        began = monotonic()
        for _ in range(200):
            one.sendall(b"x")
            exactly(other, 1)
        # The deputy is asked for once in each period of grace, at most.
        self.assertLess(len(woken), 20 + (monotonic() - began) / GRACE_SECONDS)
        self.assertLess(len(woken), 150)
        idle.shutdown(2)
        first.result(HANG_SECONDS)

    def test_restingDeputy(self) -> None:
        """
        What comes to a leader that has slept for long wakes no other thread.  The deputy rests meanwhile: an
        alarm, which is set as the leader leaves, has it lead if nobody else does.
        """
        one, other = self.pair()
        idle, giving = self.pair()
        unix = socketpair()
        for each in unix:
            self.addCleanup(each.close)
        taken: list[bytes] = []

        def take() -> None:
            while taken[-1:] != [b"z"]:
                taken.append(one.recv(1))

        taking = self.inThread(take)
        waitUntil(lambda: self.loop.sleeping)
        selecting = self.inThread(select.select, [idle, unix[0]], [], [])
        waitUntil(lambda: self.loop.followers)
        (deputy,) = self.loop.followers
        other.sendall(b"a")
        waitUntil(lambda: self.loop.sleeping and deputy.alarm >= 0)
        woken: list[object] = []
        wake = Waiter.wake
        with self.loop:
            # However busy the machine is.
            deputy.grace = HANG_SECONDS
            self.patch(Waiter, "wake", lambda waiter: (woken.append(waiter), wake(waiter)))
        for count in range(2, 12):
            other.sendall(b"x")
            waitUntil(lambda count=count: len(taken) == count and self.loop.sleeping)
        self.assertEqual(woken, [])
        with self.loop:
            deputy.grace = GRACE_SECONDS
        other.sendall(b"z")
        taking.result(HANG_SECONDS)
        giving.sendall(b"g")
        self.assertEqual(selecting.result(HANG_SECONDS), ([idle], [], []))
        self.assertIsNot(self.loop.following.alarm, None)

    def test_noAlarm(self) -> None:
        """
        Where there are no alarms, or others have closed the descriptor of this one, the leader wakes a
        follower as it leaves.
        """
        following = self.loop.following
        with self.loop:
            self.assertGreaterEqual(following.setAlarm(0.0), 0)
            alarm = following.alarm
            assert alarm is not None
            self.assertGreaterEqual(following.setAlarm(5.0), 0)
            self.assertTrue(following.rings)
            os.close(alarm.descriptor)
            self.assertEqual(following.setAlarm(0.0), -1)
            self.assertIsNone(following.alarm)
            self.assertFalse(following.rings)

            def full(*_: object) -> NoReturn:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

            self.patch(following, "openAlarm", full)
            self.assertEqual(following.setAlarm(0.0), -1)

            def absent(*_: object) -> NoReturn:
                raise AttributeError("timerfd_create")

            self.patch(following, "openAlarm", absent)
            self.assertEqual(following.setAlarm(0.0), -1)

    def test_noSleepBeforeCall(self) -> None:
        """
        In a connect and a first answer no sleep begins with a delayed call that nobody has looked at: it may
        be the next step of what a thread waits for.
        """
        requireReplaceable(module.DrivenReactor, "_sleep")
        reactor, slept = self.loop.reactor, []
        sleep = reactor._sleep

        def watched(limit: float | None, kernel: Any) -> None:
            slept.append(limit != 0 and bool(reactor._newTimedCalls))
            sleep(limit, kernel)

        self.patch(reactor, "_sleep", watched)
        for _ in range(20):
            one, other = self.pair()
            one.sendall(b"x")
            self.assertEqual(other.recv(1), b"x")
        self.assertIn(False, slept)
        self.assertEqual(slept.count(True), 0)

    def test_callAmidBriefSleeps(self) -> None:
        """
        A delayed call has its turn before the next sleep, however recently all was asked for.
        """
        requireReplaceable(module.DrivenReactor, "_sleep")
        one, other = self.pair()
        reactor, order = self.loop.reactor, []
        sleep = reactor._sleep

        def slept(limit: float | None, kernel: Any) -> None:
            order.append("sleep" if limit != 0 else "look")
            if limit != 0:
                one.sendall(b"x")
            sleep(limit, kernel)

        self.patch(reactor, "_sleep", slept)
        with self.loop:
            reactor._askAt = monotonic() + HANG_SECONDS
            reactor._loop.turns = 0
            reactor.callLater(0, order.append, "call")
        other.recv(1)
        self.assertEqual(order[0], "call")

    def test_besideSleep(self) -> None:
        """
        What one thread sends while the leader sleeps is answered: the device is armed again.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        peer = Popen([sys.executable, "-c", _ECHO], env=environment, stdout=PIPE, text=True)
        self.addCleanup(peer.wait, HANG_SECONDS)
        self.addCleanup(peer.kill)
        assert peer.stdout is not None
        self.addCleanup(peer.stdout.close)
        idle, _ = self.pair()
        leader = self.inThread(idle.recv, 1)
        waitUntil(lambda: self.loop.sleeping)
        address = LOOPBACK, int(peer.stdout.readline())
        with socket.create_connection(address, HANG_SECONDS) as skt:
            self.assertIsNotNone(skt.sdp)
            for _ in range(20):
                # The thread that waits for nothing leads again.
                waitUntil(lambda: self.loop.sleeping)
                skt.sendall(b"x")
                self.assertEqual(skt.recv(1), b"x")
        idle.shutdown(2)
        leader.result(HANG_SECONDS)

    def signalled(self, call: Callable[[], object]) -> Callable[[], None]:
        """
        Return what has the main thread call something, in a signal's handler, as soon as it sleeps.
        """
        begun: list[bool] = []

        def handler(*_: object) -> None:
            if not begun:
                begun.append(True)
                call()

        def kill() -> None:
            # While it has not the loop's lock.  A handler waits for the end of a sleep that began with it.
            with self.loop:
                os.kill(os.getpid(), signal.SIGUSR1)
            sleep(0.001)

        former = signal.signal(signal.SIGUSR1, handler)
        self.addCleanup(signal.signal, signal.SIGUSR1, former)
        return lambda: waitUntil(lambda: begun, kill)

    def test_givesWay(self) -> None:
        """
        Whoever drives looks at the devices after it has stood aside, for a signal's handler or for threads
        that want the interpreter: a doorbell that has rung meanwhile rings no more.
        """
        requireReplaceable(type(self.loop.reactor), "_sleep")
        sleep, disarm = self.loop.reactor._sleep, Turn.disarm
        seen: list[object] = []
        self.patch(self.loop.reactor, "_sleep", lambda *limits: seen.append(limits[0]) or sleep(*limits))
        self.patch(Turn, "disarm", lambda turn, devices: seen.append(devices) or disarm(turn, devices))

        def interrupted(*_: object) -> int:
            self.loop.interrupts[signal.SIGUSR1] = (lambda *_: None, None)
            return 0

        def busy(*_: object) -> int:
            self.loop.busy, self.loop.busyUntil = 2 * module.BUSY_TURNS - 1, 0.0
            return 0

        # Whatever it does, it may wait for the lock.
        over = Event()
        self.addCleanup(over.set)
        threads.begin(over.wait, name="beside")

        for turn in (interrupted, busy):
            self.patch(self.loop, "turn", turn)
            with self.loop:
                self.assertTrue(self.loop.wait(lambda: seen))
            self.assertEqual(seen, [module.YIELD_SECONDS, self.loop.reactor._channels], turn)
            del seen[:]

    def test_signal(self) -> None:
        """
        A wait within a signal's handler, in the sleep of the leader, may take what the leader waits for: the
        leader is woken, and sleeps as before for other threads.
        """
        one, other = self.pair()
        third, fourth = self.pair()
        seen: list[Any] = []
        woken: list[bool] = []
        wakeUp = self.loop.reactor.wakeUp
        outer = one._connection().readable

        def send() -> None:
            inner = third._connection().readable
            waitUntil(lambda: self.loop.sleeping and self.loop._leaderReady == inner)
            fourth.sendall(b"inner")

        def handler() -> None:
            other.sendall(b"outer")
            sending = self.inThread(send)
            seen.append(exactly(third, 5))
            seen.append(self.loop.sleeping)
            seen.append(any(woken))
            sending.result(HANG_SECONDS)

        def counted() -> None:
            # By the leader itself, after its inner wait.
            woken.append(get_ident() == self.loop.leader and self.loop._leaderReady == outer)
            wakeUp()

        kill = self.signalled(handler)

        def begin() -> None:
            waitUntil(lambda: self.loop.sleeping)
            kill()

        self.patch(self.loop.reactor, "wakeUp", counted)
        killing = self.inThread(begin)
        self.assertEqual(one.recv(5), b"outer")
        killing.result(HANG_SECONDS)
        self.assertEqual(seen, [b"inner", True, True])

    def test_signalOfDeputy(self) -> None:
        """
        The same in a follower: the inner wait is the deputy, as its thread does not look at the outer one.
        """
        inner, giving = self.pair()
        main = get_ident()
        for isDeputy in False, True:
            one, other = self.pair()
            led, ending = self.pair()
            leader = self.inThread(led.recv, 1)
            waitUntil(lambda: self.loop.sleeping)
            kill = self.signalled(lambda: self.assertEqual(inner.recv(1), b"i"))

            def rest(isDeputy: bool, ending: Any, other: Any, kill: Callable[[], None]) -> None:
                waitUntil(lambda: self.loop.followers)
                if isDeputy:
                    # As a leader does that leaves, before another one comes.
                    with self.loop:
                        (self.loop.following.deputy,) = self.loop.followers
                kill()
                waitUntil(lambda: len(self.loop.followers) == 2)
                ending.sendall(b"l")
                try:
                    waitUntil(lambda: self.loop.leader == main)
                finally:
                    giving.sendall(b"i")
                    other.sendall(b"o")

            going = self.inThread(rest, isDeputy, ending, other, kill)
            self.assertEqual(one.recv(1), b"o")
            self.assertEqual(leader.result(HANG_SECONDS), b"l")
            going.result(HANG_SECONDS)

    def test_timerBesideSleep(self) -> None:
        """
        A timer that begins when one thread sends, while the leader sleeps for longer, has its turn in time.
        """
        one, other = self.pair()
        leader = self.inThread(one.recv, 1)
        reactor = self.loop.reactor
        # Not briefly, as after a message: then it looks again at once.
        waitUntil(lambda: self.loop.sleeping and reactor.rest.until > reactor.seconds())
        woken: list[bool] = []
        wakeUp = self.loop.reactor.wakeUp
        device = other.sdp.stream.channel.device
        with self.loop:
            self.patch(self.loop.reactor, "wakeUp", lambda: (woken.append(True), wakeUp()))
            self.loop.flush(device)
            self.assertEqual(woken, [])
            device.timers.start(0.0, lambda: None)
            # Where messages go through memory none begins.
            self.patch(device, "traits", evolve(device.traits, packets=True))
            self.loop.flush(device)
            self.assertEqual(woken, [True])
        other.sendall(b"x")
        self.assertEqual(leader.result(HANG_SECONDS), b"x")

    def test_noDescriptor(self) -> None:
        """
        A follower that gets no descriptor to wait with is none.
        """
        one, other = self.pair()
        idle, _ = self.pair()
        # Only who waits for the kernel as well needs one.
        unix = socketpair()
        for each in unix:
            self.addCleanup(each.close)
        leader = self.inThread(one.recv, 1)
        waitUntil(lambda: self.loop.sleeping)

        def full(*_: object) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        self.patch(os, "eventfd", full)
        raised = self.assertRaises(OSError, select.select, [idle, unix[0]], [], [])
        self.assertEqual(raised.errno, errno.EMFILE)
        self.assertEqual(self.loop.followers, [])
        other.sendall(b"x")
        self.assertEqual(leader.result(HANG_SECONDS), b"x")
        self.assertIsNone(self.loop.following.deputy)

    def test_removedGone(self) -> None:
        """
        A reader is removed whose descriptor was closed, or has another file's number since, one that can be
        watched or not.
        """

        class Reader(FileDescriptor):
            def __init__(self, descriptor: int) -> None:
                super().__init__(reactor)
                self.fileno = lambda: descriptor  # type: ignore[method-assign]

        reactor: Any = self.loop.reactor
        others = os.pipe()
        with open(__file__, "rb") as plain:
            for other in -1, others[0], plain.fileno():
                ends = os.pipe()
                reader = Reader(ends[0])
                reactor.addReader(reader)
                if other < 0:
                    os.close(ends[0])
                else:
                    os.dup2(other, ends[0])
                reactor.removeReader(reader)
                self.assertNotIn(reader, reactor.getReaders())
                for each in ends[other < 0 :]:
                    os.close(each)
        for each in others:
            os.close(each)

    def test_notEntered(self) -> None:
        """
        An error on the way in leaves the lock to others; a signal's handler waits for what is done then.
        """
        closed: list[bool] = []

        def close() -> None:
            signal.raise_signal(signal.SIGUSR1)
            closed.append(True)

        def fail() -> None:
            raise KeyboardInterrupt

        def enter() -> None:
            with self.loop:
                self.assertEqual(closed, [True])

        before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        for call in fail, close:
            self.loop.abandon(call)
            self.assertRaises(KeyboardInterrupt, enter)

        def isFree() -> bool:
            if self.loop.lock.acquire(False):
                self.loop.lock.release()
                return True
            return False

        found = self.inThread(isFree).result(HANG_SECONDS)
        if not found:
            self.loop.lock.release()
        self.assertTrue(found)

    def test_daemons(self) -> None:
        """
        After the end of the process no daemon thread takes the lock: the interpreter ends it, and the lock
        would be its own for good.
        """
        self.patch(module, "_loop", None)
        loop = module.theLoop()
        self.addCleanup(loop.reactor.dispose)
        lock = loop.lock
        module._end()
        self.assertFalse(self.inThread(lock.acquire, False).result(HANG_SECONDS))
        lock.release()
        self.assertTrue(self.inThread(lock.acquire, False).result(HANG_SECONDS))

    def test_late(self) -> None:
        """
        Sockets that are used, closed or collected after the end of the loop, as by an older call of C{atexit}
        or a C{__del__}, are those of a connection that has ended; the kernel has new ones.
        """
        found = run(
            [sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c", _LATE],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=HANG_SECONDS,
            capture_output=True,
            text=True,
        )
        self.assertEqual((found.stdout, found.stderr, found.returncode), ("done\n", "", 0))

    def test_lastClose(self) -> None:
        """
        The loop is left open for a finalizer on shared memory alone, beside no other thread.
        """
        pair = self.pair()
        made = module.madeLoop()
        assert made is not None

        class Polite:
            def __del__(self) -> None:
                pass

        self.patch(files, "active_count", lambda: 1)
        polite = Polite()
        self.assertTrue(files._isUsedLast(made))
        self.patch(files, "ISharedMemoryPath", INowhere)
        self.assertFalse(files._isUsedLast(made))
        self.patch(files, "ISharedMemoryPath", ISharedMemoryPath)
        self.patch(files, "active_count", lambda: 2)
        self.assertFalse(files._isUsedLast(made))
        del polite, pair

    def test_finalized(self) -> None:
        """
        A finalizer (C{__del__}) that the interpreter calls at its very end sends and closes, as over TCP.
        """
        listener = self.server()
        command = [sys.executable, "-c", _FINALIZED, str(listener.getsockname()[1])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ended = self.inThread(
            lambda: run(command, env=environment, timeout=HANG_SECONDS, capture_output=True, text=True)
        )
        for _ in range(2):
            connection, _ = listener.accept()
            self.assertIsNotNone(connection.sdp)
            self.assertEqual(exactly(connection, 9), b"hello bye")
            self.assertEqual(connection.recv(1), b"")
            connection.close()
        found = ended.result(HANG_SECONDS)
        self.assertEqual((found.returncode, found.stderr), (0, ""))

    def test_making(self) -> None:
        """
        A signal's handler that needs the loop while its thread makes it does not wait for ever, nor does a
        finalizer; there is one loop.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for caller in ("signal", "finalizer"):
            command = [sys.executable, "-c", _MAKING, caller]
            found = run(command, env=environment, timeout=HANG_SECONDS, capture_output=True, text=True)
            self.assertEqual((found.stdout, found.stderr), ("made\n", ""), caller)

    def test_closedListening(self) -> None:
        """
        A socket that listens when the loop is closed does not find a device that is added later.
        """
        listener = self.server()
        part = listener.sdp
        self.assertTrue(part.sdpListeners)
        self.loop.close()
        addDevice("more", "loopback")
        self.addCleanup(removeDevice, "more")
        self.assertEqual((part.connected, part.sdpListeners), (False, ()))

    def test_end(self) -> None:
        """
        The bytes that a program has written leave when it ends.
        """
        listener = self.server()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        port = str(listener.getsockname()[1])
        ended = self.inThread(
            lambda: run(
                [sys.executable, "-c", _WRITER, port], env=environment, timeout=HANG_SECONDS, check=True
            )
        )
        connection, _ = listener.accept()
        self.assertIsNotNone(connection.sdp)
        self.assertEqual(len(exactly(connection, 200000)), 200000)
        connection.close()
        ended.result(HANG_SECONDS)
