"""
The host of a subnet in a process that has devices there.

It has a thread of its own, as the firmware of a switch has a processor of its own: a process that computes,
or does not poll its device, keeps nobody from attaching, and its subnet manager sweeps.
"""

from __future__ import annotations

import errno
import select
from collections.abc import Callable
from functools import partial
from secrets import randbits
from threading import RLock
from typing import Any, Final

from twisted_ib.drive import threads
from twisted_ib.drive.process import forEach, life, monotonic
from twisted_ib.drive.sleeper import unwatch
from twisted_ib.drive.turn import Turn
from twisted_ib.hca.base.timers import Timer, Timers
from twisted_ib.hca.host.libc import KernelEpoll
from twisted_ib.subnet.hosting.descriptors import Descriptor
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.hosting.place import Place
from twisted_ib.subnet.hosting.server import SubnetServer
from twisted_ib.subnet.network.topology import parse
from twisted_ib.subnet.sm.manager import Options

#: Seconds that a host without devices stays.
LINGER_SECONDS = 1.0
#: Held while a place is taken or left, and while this process forks: a child forgets the places of the hosts
#: that there are, and would keep the lock of one that begins or ends.
noFork: Final = RLock()
#: A switch, and the adapter of the subnet manager.  Devices bring theirs, and there are more switches when it
#: is full: a sweep asks each port, so that with all ports from the start the first device waits for it.
TOPOLOGY: Final = """\
Switch 36 "switch"
[1] "manager"[1]

Ca 1 "manager"
[1] "switch"[1]
"""


class _Call:
    """
    A call that a clock of Twisted's interface has been asked for.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self.cancel = timer.cancel

    def active(self) -> bool:
        return self._timer.expired is not None


class Loop:
    """
    As much of a reactor as the host of a subnet needs, for one thread, which drives it as it would a device:
    see L{IReactorFDSet<twisted.internet.interfaces.IReactorFDSet>},
    L{IReactorTime<twisted.internet.interfaces.IReactorTime>} and L{Driven<twisted_ib.drive.turn.Driven>}.

    @ivar deadline: The timers'; C{tick} likewise.
    """

    def __init__(self) -> None:
        """
        @raise OSError: there is no descriptor for it.
        """
        self._poller = KernelEpoll()
        self._timers = Timers(monotonic)
        self.deadline, self.tick = self._timers.deadline, self._timers.tick
        self._turn = Turn()
        #: Descriptors that have ended the sleep, each with its events.
        self._ready: list[tuple[int, int]] = []
        #: What is watched, and for which events, by number.
        self._watched: dict[int, tuple[Descriptor, int]] = {}

    def seconds(self) -> float:
        return monotonic()

    def callLater(self, wait: float, call: Callable[..., Any], *arguments: Any) -> _Call:
        return _Call(self._timers.start(wait, partial(call, *arguments)))

    def addReader(self, descriptor: Descriptor) -> None:
        self._change(descriptor, select.EPOLLIN, 0)

    def removeReader(self, descriptor: Descriptor) -> None:
        self._change(descriptor, 0, select.EPOLLIN)

    def addWriter(self, descriptor: Descriptor) -> None:
        self._change(descriptor, select.EPOLLOUT, 0)

    def removeWriter(self, descriptor: Descriptor) -> None:
        self._change(descriptor, 0, select.EPOLLOUT)

    def _change(self, descriptor: Descriptor, more: int, less: int) -> None:
        fd = descriptor.fileno()
        _, before = self._watched.get(fd, (descriptor, 0))
        events = before & ~less | more
        if events == before:
            return
        if not events:
            del self._watched[fd]
            unwatch(self._poller, fd)
            return
        self._watched[fd] = descriptor, events
        if before:
            self._poller.modify(fd, events)
        else:
            self._poller.register(fd, events)

    def turn(self) -> None:
        """
        Wait for something, and serve what there is.
        """
        seconds = self._turn.begin((self,), monotonic)
        self._ready = self._poller.poll(seconds)
        self._turn.end((self,), monotonic, seconds)

    def arm(self) -> bool:
        # Nothing comes but by descriptors, and epoll has them.
        return True

    def look(self) -> bool:
        return bool(self._ready)

    def progress(self) -> int:
        for fd, events in self._ready:
            # One that was served before may have removed it.
            if events & select.EPOLLOUT and fd in self._watched:
                self._watched[fd][0].doWrite()
            if events & ~select.EPOLLOUT and fd in self._watched:
                self._watched[fd][0].doRead()
        return len(self._ready)

    def close(self) -> None:
        """
        Watch nothing any more; a forked child does not undo what its parent watches.
        """
        self._poller.close()


class HostThread:
    """
    Hosts one subnet until nobody is attached any more.

    @ivar subnet: it.
    @ivar counters: of losses.
    """

    def __init__(self, place: Place, allows: Callable[[int], bool]) -> None:
        """
        @param place: of the subnet; this object closes it, once it is made.
        @param allows: whether processes of a user may attach.
        @raise OSError: there is no descriptor for it.
        """
        self.counters: dict[str, int] = {}
        self._isOver = False
        self._lingering: _Call | None = None
        self._loop = Loop()
        self.subnet = HostedSubnet(parse(TOPOLOGY, place.name), self.count, self._loop, grows=True)
        self.server = SubnetServer(self.subnet, place, self._loop, self.count, allows, self._attended)
        self._name = place.name
        _hosts.add(self)

    def start(self) -> None:
        """
        Begin.

        @raise OSError: there can be no thread for it; then it has closed, with its place.
        """
        self._linger()
        try:
            threads.begin(self._run, name=self._name)
        except RuntimeError as error:
            # pthread_create(3) fails with EAGAIN, as at ulimit -u; threading does not keep the number.
            self._close()
            raise OSError(errno.EAGAIN, str(error)) from error

    def count(self, name: str) -> None:
        """
        Count a loss.
        """
        self.counters[name] = self.counters.get(name, 0) + 1

    def _run(self) -> None:
        try:
            while not self._isOver:
                self._loop.turn()
        finally:
            self._close()

    def _close(self) -> None:
        with noFork:
            self.subnet.close()
            _hosts.discard(self)
            self.server.close()
            self._loop.close()

    def _attended(self, isAttended: bool) -> None:
        if not isAttended:
            self._linger()
            return
        if self._lingering is not None:
            self._lingering.cancel()
        if self.subnet.manager is None:
            # Not before, so that its first sweep finds the first device.
            # Its SM_Key is for none of the devices: whoever has it is told the keys of all.
            self.subnet.manage(Options(key=randbits(64) | 1))

    def _linger(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
        self._lingering = self._loop.callLater(LINGER_SECONDS, self._end)

    def _end(self) -> None:
        self._isOver = True

    def forked(self) -> None:
        """
        In a forked child, which has no such thread: leave the lock and the sockets to the parent.
        """
        self.server.forget()
        self._loop.close()


_hosts: set[HostThread] = set()


def _afterFork() -> None:
    noFork.release()
    _leaveAll()


_leaveAll = forEach(_hosts, lambda host: host.forked())
life.atFork(__name__, noFork.acquire, noFork.release, _afterFork)
