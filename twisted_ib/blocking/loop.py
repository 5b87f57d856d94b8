"""
The loop of blocking sockets: one private reactor per process, which is never installed, and has no thread.

The threads that block drive it. The first is the leader: it serves devices and timers until what it waits
for is there. The others follow (L{twisted_ib.drive.followers}), and one of them leads when it has left.

One lock protects reactor, devices and sockets; the leader releases it while it sleeps.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from threading import RLock, active_count, get_ident
from typing import TYPE_CHECKING, Final, cast

from twisted_ib.blocking.descriptors import elsewhere, isElsewhere, isUsed, known, letAllGo
from twisted_ib.drive.followers import GRACE_SECONDS, isReady
from twisted_ib.drive.process import life, monotonic
from twisted_ib.drive.turn import Found, Others
from twisted_ib.drive.waiter import DrivingLock, LockQueue, NoLock, Waiter, handlers, tell
from twisted_ib.hca.host.libc import keepFreed, sameAction
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor.driven import BRIEF_SECONDS, DrivenReactor
from twisted_ib.reactor.loop import progress

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from twisted_ib.blocking.connection import Connection
    from twisted_ib.hca.device.device import Device

#: Seconds that the end of the process waits for peers that do not take what was sent to them.
DRAIN_SECONDS: Final = 2.0
#: Turns in a row without a sleep after which the leader looks whether that has been for L{BRIEF_SECONDS}, and
#: lets other threads have the lock, for how long.
BUSY_TURNS: Final = 16
YIELD_SECONDS: Final = 1e-3
#: Turns that a close takes: as over TCP it is no part of the turn that asks for it.
CLOSING_TURNS: Final = 2


class BlockingLoop:
    """
    The private reactor of this process, and the threads that wait for it.

    Methods but C{__enter__} and C{abandon} are called with the lock: C{with loop:}.

    @ivar lock: The lock; whoever takes it without C{with loop:} sees to L{owner} and L{lockQueue}. A thread
        that sleeps gives it back as often as it has it: a signal's handler waits within other calls.
    @ivar owner: The thread that the devices belong to.
    @ivar leader: The thread that drives the devices, or 0; C{followers}: those that wait for it, of
        C{following}.
    @ivar reactor: The L{DrivenReactor}.
    @ivar driven: That counts the reactor's turns.
    @ivar sleeping: Whether the leader sleeps, without the lock.
    @ivar inside: Whether the thread with the lock is in the devices, but for the leader's turns.
    @ivar busy: Its turns since then; C{busyUntil}: when that is long enough.
    @ivar forked: Whether this process is a child of the one that has the devices.
    @ivar closed: Whether L{close} was called: there is nothing left to close.
    @ivar held: Connections that descriptors alone have, the oldest first; C{looking}: the call that looks
        after them, or L{None}.
    @ivar orphans: Close connections whose sockets were never closed, in the next turn.
    @ivar idling: Whether nobody drives the devices, nor need: then nobody is the C{owner}.
    @ivar atOnce: Waits that were over at once; C{servedAt}: the time after the last that served devices.
    @ivar interrupts: Handlers of signals that wait until the lock is free.
    @ivar last: Closes it once the program's finalizers were called; L{None} if the process's end does.
    """

    def __init__(self) -> None:
        self.lock = cast(DrivingLock, RLock())
        handlers.install(sameAction)
        keepFreed()  # Pieces that have arrived, and what they become.
        self.interrupts = handlers.protect(self.lock)
        self.lockQueue = LockQueue()
        self.reactor = DrivenReactor(self)
        self.turn = self.reactor.turn
        self.switch = self.reactor.switch
        self.driven = self.reactor._loop
        self.idling = self.reactor.idling
        self.following = self.reactor.following
        self.followers = self.following.waiters
        self._idleReady: Callable[[], object] | None = None
        self.sleeping = False
        self.forked = False
        self.closed = False
        self.inside = False
        self.orphans: deque[Callable[[], object]] = deque()
        self.held: dict[Connection, None] = {}
        self.looking: IDelayedCall | None = None
        self.owner = get_ident()
        self.leader = 0
        self._leaderReady: Callable[[], object] | None = None
        self.busy = 0
        self.busyUntil = 0.0
        self.atOnce = 0
        self.servedAt = 0.0
        self._others = Others()
        self.last: object = None

    def __enter__(self) -> None:
        if not self.lock.acquire(False):
            self.lockQueue.acquire(self.lock)
        try:
            if self.owner != get_ident():
                self.own()
            if self.orphans and not self.isWithin():
                self.closeOrphans()
        except BaseException:
            # Nobody leaves what was not entered.
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        if self.lockQueue or self.interrupts:
            handlers.left(self)

    def own(self) -> None:
        """
        The calling thread has the lock: the devices belong to it.
        """
        me = get_ident()
        if self.owner != me:
            # A handler that waits for this call is called within it, and may raise.
            handlers.install(sameAction)
            self.owner = me
            if self.idling.holds and (sleeper := self.idling.take()):
                # It sleeps as one that drives them, from now on.
                self.leader = sleeper
                self._leaderReady = self._idleReady
                self.sleeping = True
            for channel in channelsOf(self.reactor):
                if not channel.device.closed:
                    channel.device.thread = me

    def abandon(self, close: Callable[[], object]) -> None:
        """
        Close what a collected socket has left, in the next turn: garbage may be collected within the reactor.
        Called by any thread, without the lock.
        """
        if not self.forked:
            self.orphans.append(close)
            # No receive goes on without a turn.
            self.reactor._askAt = 0.0
            self.disturb()

    def closeOrphans(self) -> None:
        """
        Close what L{abandon} was given.
        """
        while self.orphans:
            self.orphans.popleft()()

    def threadsBeside(self, now: float) -> int:
        """
        Return how many threads may need the interpreter while the leader polls: none if all others sleep.

        @param now: By C{monotonic}.
        """
        others = self._others
        if now >= others.until:
            others.look(now)
        return active_count() - 1 - len(self.followers) if others.areWorking else 0

    def isWithin(self) -> bool:
        """
        Return whether the calling thread is in the devices: the garbage collector may call a finalizer there,
        between any two steps, which closes a socket, or says what it is.
        """
        return self.inside or (self.leader != 0 and not self.sleeping)

    def flush(self, device: Device) -> None:
        """
        Send what was written.
        """
        within, self.inside = self.inside, True
        try:
            device.flush()
        finally:
            self.inside = within
        if self.sleeping:
            reactor = self.reactor
            isArmed = device.arm()
            if not isArmed:
                # Mostly an acknowledgement: this thread takes it, and wakes those whose message it finds.
                if device.progress() and self.dispatch():
                    return
                isArmed = device.arm() and not reactor._newTimedCalls
            # The leader polls no path while it sleeps, nor knows of a packet's timer that began since.
            if not isArmed or (device.traits.packets and reactor.rest.isLate(device)):
                reactor.wakeUp()

    def dispatch(self) -> bool:
        """
        Wake the threads whose conditions hold now, and return whether the leader is one of them.
        """
        if self.followers:
            tell(self.followers)
        isReady = self.sleeping and self._leaderReady is not None and bool(self._leaderReady())
        if isReady:
            self.reactor.wakeUp()
        return isReady

    def disturb(self) -> None:
        """
        The leader, if it sleeps, has other deadlines or devices now.
        """
        if self.sleeping or self.idling.holds:
            self.reactor.wakeUp()

    def leftIdle(self) -> None:
        """
        The calling thread has slept, and the devices were taken meanwhile: it drives them no more.
        """
        if self.forked:
            return
        with self:
            if self.leader == get_ident():
                self.leader = 0
                self._leaderReady = None
                self.sleeping = False
                self.following.left()

    def changed(self) -> None:
        """
        A socket was closed: send that, and look at the threads that wait for it.
        """
        if self.isWithin():
            # The turn does it, or the next one.
            return
        for _ in range(CLOSING_TURNS):
            self.poll()
        self.dispatch()
        self.disturb()

    def poll(self) -> None:
        """
        Serve what is to be served now, without waiting.
        """
        if self.inside:
            return
        if not self.leader:
            self.inside = True
            try:
                self.turn(0.0, None)
            finally:
                self.inside = False
            self.dispatch()
        elif self.sleeping:
            # No more of a turn: epoll's edge-triggered events are for the leader.
            self.reactor.runUntilCurrent()
            if progress(self.reactor._channels):
                self.dispatch()
            for channel in self.reactor._channels:
                self.flush(channel.device)

    def wait(
        self, ready: Callable[[], object], deadline: float | None = None, kernel: select.poll | None = None
    ) -> bool:
        """
        Wait until a condition holds, or a descriptor of the kernel is ready.

        @param ready: Returns whether it holds; called under the lock, perhaps in another thread.
        @param deadline: C{time.monotonic()} at which the wait ends; L{None} for never.
        @param kernel: A C{select.poll} object with descriptors, which no other thread uses; or L{None}.
        @return: False if the time was over first.
        """
        return bool(ready() or (kernel is not None and kernel.poll(0))) or self.sleep(ready, deadline, kernel)

    def sleep(
        self, ready: Callable[[], object], deadline: float | None, kernel: select.poll | None = None
    ) -> bool:
        """
        L{wait} for a condition that does not hold now.
        """
        over = self.lead(ready, deadline, kernel)
        return self.follow(ready, deadline, kernel) if over is None else over

    def lead(
        self, ready: Callable[[], object], deadline: float | None, kernel: select.poll | None = None
    ) -> bool | None:
        """
        L{sleep}, and drive the devices, if no other thread does.

        @return: As L{wait}; L{None} if others must L{follow}: another thread leads, or leads next.
        """
        me = get_ident()
        before, readyBefore, asleep = self.leader, self._leaderReady, self.sleeping
        # Its own lead: within that a signal handler waits.
        if before and before != me:
            return None
        if kernel is not None:
            kernel.register(self.reactor.descriptor, select.POLLIN)
        over: bool | None = False
        try:
            self.leader, self._leaderReady = me, ready
            while True:
                limit = None if deadline is None else max(0.0, deadline - monotonic())
                if self.orphans:
                    self.closeOrphans()
                self.reactor.kernelFound = None
                self.turn(limit, kernel)
                woken = tell(self.followers) if self.followers else 0
                if self.interrupts:
                    # Nothing is half done between two turns.
                    self._giveWay()
                if ready() or (kernel is not None and self._isKernelReady(kernel)):
                    over = True
                    return True
                if limit == 0.0:
                    return False
                # The traffic is that thread's: it leads when it waits again.
                if woken and not before:
                    over = None
                    return None
                self.busy += 1
                # A peer that sends without an end keeps no other thread from its own part.
                if not self.busy % BUSY_TURNS and (self.followers or active_count() > 1):
                    if self.busy == BUSY_TURNS:
                        self.busyUntil = monotonic() + BRIEF_SECONDS
                    elif monotonic() >= self.busyUntil:
                        self._giveWay()
        finally:
            self.leader, self._leaderReady = before, readyBefore
            if not before:
                self.following.left(over is None)
            elif asleep:
                # That lead goes on to sleep, and what it sleeps for may have come meanwhile.
                self.sleeping = True
                self.reactor.wakeUp()
            if kernel is not None:
                kernel.unregister(self.reactor.descriptor)

    def _isKernelReady(self, kernel: select.poll) -> bool:
        # A turn that has slept knows.
        if (found := self.reactor.kernelFound) is not None:
            return bool(found[1])
        return isReady(kernel, self.reactor.descriptor)

    def _giveWay(self) -> None:
        self.reactor._sleep(YIELD_SECONDS, None)
        # A doorbell that has rung meanwhile ends no other sleep.
        self.reactor.rest.disarm(self.reactor._channels)

    def idle(
        self,
        ready: Callable[[], object],
        limit: float | None,
        call: Callable[[float], Found | None],
    ) -> Found | None:
        """
        Wait in a call of the kernel's, where no device has a connection whose messages are awaited: what the
        devices have to do ends that call, and is done by L{wait}.

        @param ready: As of L{wait}.
        @param limit: Seconds to wait at most; L{None} for any time.
        @param call: Waits so many seconds at most, for L{DrivenReactor.descriptor}, too; returns L{None} if
            that is ready.
        @return: The result of the call; L{None} if L{wait} is to follow, as where C{ready} holds.
        """
        isNested = self.lock._is_owned()
        with self:
            # The caller has asked without the lock: one that had it meanwhile may have served a client.
            if self.leader or self.followers or self.interrupts or ready():
                return None
            try:
                self.leader = self.idling.thread = get_ident()
                self._leaderReady = ready
                found = self.reactor.idle(limit, call)
            finally:
                self.leader, self._leaderReady = 0, None
                self.following.left()
            until = self.reactor.idleUntil() if found else None
            if until is not None and not (isNested or self.followers or self.interrupts or ready()):
                # The next wait may be without the lock, whoever takes that says so.
                self._idleReady = ready
                self.owner = 0
                self.idling.begin(until, found or [])
                if self.orphans:
                    # Abandoned before that: there is no wake-up for it.
                    self.own()
            return found

    def follow(
        self, ready: Callable[[], object], deadline: float | None, kernel: select.poll | None = None
    ) -> bool:
        """
        L{sleep} while other threads drive them.
        """
        waiter = Waiter(ready, GRACE_SECONDS)
        while True:
            over = self.following.wait(waiter, deadline, kernel)
            if over is None:
                over = self.lead(ready, deadline, kernel)
            if over is not None:
                return over

    def close(self, forGood: bool = False) -> None:
        """
        The process ends: close its connections, send what was written, close the devices.

        @param forGood: Keep the lock: a daemon thread that the interpreter ends must not have it.
        """
        if self.forked:
            return
        with self:
            self.closeOrphans()
            self._closeConnections()
            end = monotonic() + DRAIN_SECONDS
            while self.isUnsent() and monotonic() < end:
                self.turn(end - monotonic(), None)
            letAllGo(self)
            self.reactor.fireSystemEvent("shutdown")
            self.reactor.closePorts()
            self.closed = True
            if self.switch.openCandidates is not None:
                self.switch.openCandidates.gainless.changed()
            if forGood:
                # Its descriptors end with the process: what is used or collected still later has its turns.
                self.lock.acquire()
                handlers.protect(None)
            else:
                # Without descriptors there are no turns: of what is left nothing is closed again.
                self.inside = True
                self.reactor.dispose()

    def leave(self) -> None:
        """
        The process is a forked child: a wait of the parent's, within which a signal's handler has forked,
        ends here, and takes none of its events.
        """
        lock, self.lock = self.lock, NoLock()
        if not lock._is_owned():
            # Another thread of the parent's may have it; what called that wait gives it back.
            lock._at_fork_reinit()
        self.reactor.leave()
        for each in self.followers:
            if each.thread == get_ident():
                each.leave()

    def connections(self) -> list[Connection]:
        """
        Return those that stand.
        """
        users = [user for channel in channelsOf(self.reactor) for user in channel.users]
        protocols: list[Connection | None] = [getattr(user, "protocol", None) for user in users]
        return [each for each in protocols if each is not None]

    def _closeConnections(self) -> None:
        # As a kernel closes the sockets of a process: their peers get an end of stream, no reset.
        connections = self.connections()
        found = elsewhere(connections)
        for each in connections:
            # Cut off is what another process has too, and bytes that others read or wrote.
            each.close(isElsewhere(each, found) or isUsed(each))

    def isUnsent(self) -> bool:
        """
        Return whether something that was written waits for a peer.
        """
        return any(
            getattr(user, "buffer", None) is not None or getattr(user, "ending", False)
            for channel in channelsOf(self.reactor)
            if not channel.device.closed
            for user in channel.users
        )


_loop: BlockingLoop | None = None
_making = RLock()
#: The descriptor of the loop's own, while there is one: L{known}, as it carries nothing.
own: Final[set[int]] = set()


def madeLoop() -> BlockingLoop | None:
    """
    Return the loop of this process, if there is one.
    """
    return _loop


def theLoop() -> BlockingLoop:
    """
    Return the loop of this process, made when first needed.
    """
    return _loop or _make()


def _make() -> BlockingLoop:
    global _loop
    # A signal's handler that needs it, too, is called once it is made.
    handlers.install(sameAction)
    with handlers.keep(), _making:
        if _loop is None:
            made = BlockingLoop()
            if (earlier := madeLoop()) is not None:
                # A finalizer, which the garbage collector may call between any two steps, has made it.
                made.reactor.dispose()
                handlers.protect(earlier.lock)
                return earlier
            _loop = made
            own.add(made.reactor.descriptor)
            known[made.reactor.descriptor] = type(None)
        return _loop


def _forked() -> None:
    # RDMA connections do not cross a fork (librdmacm/preload.c): the child begins with a loop of its own.
    global _making
    _making = RLock()
    handlers.forked()
    if _loop is not None:
        loop = _loop
        forget()
        loop.forked = True
        loop.idling.take()
        loop.leave()
        letAllGo(loop)


def forget() -> None:
    """
    The loop is closed, and not the last one: what needs one makes another.
    """
    global _loop
    _loop = None
    while own:
        known.pop(own.pop(), None)


def _end() -> None:
    if _loop is not None and _loop.last is None:
        _loop.close(True)


life.atFork(__name__, inChild=_forked)
life.atEnd(__name__, _end)
