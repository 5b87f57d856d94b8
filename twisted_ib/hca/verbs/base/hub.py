"""
What makes the devices of verbs go on: one lock, and one place where they are driven.

Verbs have no reactor.  A device makes progress when the program asks it something, and since
both ends of a connection may be in one process, whoever polls one device drives all that are
open here.  Programs call from any thread, so every verb takes L{Hub.lock}.

Contexts of one name share one HCA, as those of one card do: they have its GIDs, and a queue
pair of one reaches those of the other through it.

A child that was forked inherits no device: its hub is empty, and what its parent had open
refuses every verb by name.
"""

from __future__ import annotations

import atexit
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from threading import RLock
from typing import Any, TypeVar, cast

from twisted_ib.errors import HCAError
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.hca.device.device import Device

Function = TypeVar("Function", bound=Callable[..., Any])

#: Rounds of one drive: a request, its answer and its completion need a few.
_ROUNDS = 4
#: Seconds between two looks at descriptors and the time, while a program polls.
_ATTENTION = 50e-6
#: Empty drives after which a program that polls lets others have the CPU: its peer may need it.
_PATIENCE = 60

_giveWay: Callable[[], object] = getattr(os, "sched_yield", partial(time.sleep, 0))


class Sleeper:
    """
    One thread that sleeps until something happens to a device.

    @ivar fd: readable when somebody has called L{wake}.
    """

    __slots__ = ("_write", "fd")

    def __init__(self) -> None:
        """
        @raise OSError: no descriptor is free.
        """
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def wake(self) -> None:
        """
        Have it look again.
        """
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # It is awake, sixty-four thousand times over.

    def close(self) -> None:
        """
        Give the descriptors back.
        """
        os.close(self.fd)
        os.close(self._write)


class Hub:
    """
    The open devices of this process's verbs.

    @ivar lock: held by whoever touches a device or anything that belongs to one.
    @ivar devices: the devices, and how many contexts each has.
    @ivar drives: how often they were driven.
    @ivar watchers: what programs watch a descriptor of instead of calling L{wait}: its
        C{wake()} is called when somebody must drive.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """
        Begin anew; in a forked child the lock may be held by a thread that is not there.
        """
        self.lock = RLock()
        self.devices: dict[Device, int] = {}
        self._depth = 0
        self._unrung: set[Device] = set()
        self._armed = False
        # The earliest deadline that sleepers know of, by the devices' clock; 0 if there is work.
        self._until = 0.0
        self._sleepers: set[Sleeper] = set()
        self.watchers: set[Any] = set()
        self.drives = 0
        self._attended = 0.0
        self._empty = 0
        self._polling = AdaptivePolling(time.perf_counter, _giveWay)

    # -- devices

    def open(self, name: str, address: str | None = None) -> Device:
        """
        The device of a name, for one more context.

        @param address: where it is, if it has an address of its own.

        @raise UnknownDeviceError: there is none of this name.
        @raise RunDirectoryError: processes cannot meet.
        @raise DeviceError: somebody else has its address.
        """
        with self:
            for device in self.devices:
                if device.name == name and not device.closed and device.isAt(address):
                    self.devices[device] += 1
                    return device
            device = Device(name, anyThread=True, address=address)
            device.wanted = partial(self._unrung.add, device)
            self.devices[device] = 1
            return device

    def close(self, device: Device) -> None:
        """
        A context does not need a device any more.  The last one closes it, with everything
        that it has.
        """
        with self:
            left = self.devices.get(device, 1) - 1
            if left:
                self.devices[device] = left
            else:
                self.devices.pop(device, None)
                self._unrung.discard(device)
                device.close()
            self._wakeSleepers()

    # -- the lock

    def __enter__(self) -> None:
        self.lock.acquire()
        self._depth += 1

    def enterIfFree(self) -> bool:
        """
        Take the lock if nobody has it, not even this thread; L{__exit__} gives it back.

        @return: whether it was free.
        """
        if not self.lock.acquire(blocking=False):
            return False
        if self._depth:
            self.lock.release()
            return False
        self._depth = 1
        return True

    def __exit__(self, *exception: object) -> None:
        """
        Whoever leaves last has the peers told of what was posted.
        """
        try:
            if self._depth == 1:
                if self._unrung:
                    self._ring()
                if self._armed and self._until and (self._sleepers or self.watchers):
                    self._rearm()
                if self.watchers and not self._armed and not self._arm():
                    self._wakeWatchers()
        finally:
            self._depth -= 1
            self.lock.release()

    def _ring(self) -> None:
        """
        End the batches of devices that published something outside of L{drive}.
        """
        while self._unrung:
            device = self._unrung.pop()
            if not device.closed:
                device.ringBells()
                if device.busy():
                    # It waits for its next batch: some thread must drive.
                    self._wakeSleepers()
                    self._wakeWatchers()

    def _rearm(self) -> None:
        """
        Others sleep, and this thread may have posted, so that peers no longer ring, or begun to wait
        for an earlier time: see to it that they are woken.
        """
        for device in self.devices:
            if device.closed:
                continue
            due = device.deadline()
            if not device.arm() or (due is not None and due < self._until):
                self._wakeSleepers()
                self._wakeWatchers()
                return

    def _wakeWatchers(self) -> None:
        for watcher in self.watchers:
            watcher.wake()

    # -- progress

    def drive(self) -> int:
        """
        Make progress on every device.  The lock is held.

        @return: how much was done.
        """
        self.drives += 1
        if self._armed:
            self._disarm()
        total = 0
        for _ in range(_ROUNDS):
            n = 0
            for device in tuple(self.devices):
                if not device.closed:
                    n += device.progress()
            total += n
            if not n:
                break
        now = time.perf_counter()
        if now - self._attended >= _ATTENTION:
            self._attended = now
            total += self._attend()
        if total:
            self._empty = 0
        else:
            self._empty += 1
            if self._empty > _PATIENCE:
                _giveWay()
        return total

    def _attend(self) -> int:
        """
        Look at the descriptors and the time.

        @return: how much was done since.
        """
        n = 0
        for device in tuple(self.devices):
            if device.closed:
                continue
            device.fabric.attend()
            device.fabric.look()
            due = device.deadline()
            if due is not None:
                now = device.clock()
                if now >= due:
                    device.tick(now)
            n += device.progress()
        return n

    def _disarm(self) -> None:
        """
        Look at the paths again, which nobody rings for from now on; who sleeps must arm anew.
        """
        self._armed = False
        for device in self.devices:
            device.fabric.look()
        self._wakeSleepers()

    def wake(self) -> None:
        """
        Something that a thread may wait for has happened, not by L{drive}.  The lock is held.
        """
        self._wakeSleepers()

    def _wakeSleepers(self) -> None:
        for sleeper in self._sleepers:
            sleeper.wake()

    # -- sleeping

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """
        Drive the devices, and sleep in between, until something is so.  The lock must not be
        held: other threads have it while this one sleeps.

        @param ready: whether it is so; called with the lock held.
        @param timeout: seconds; L{None} is for ever.

        @return: whether it is so.
        @raise OSError: no descriptor is free to sleep on.
        """
        end = None if timeout is None else time.monotonic() + timeout
        sleeper: Sleeper | None = None
        try:
            while True:
                with self:
                    self.drive()
                    if ready():
                        return True
                    if end is not None and time.monotonic() >= end:
                        return False
                    if self._polling.spin(self._pending):
                        continue
                    if sleeper is None:
                        sleeper = Sleeper()
                    self._sleepers.add(sleeper)
                    due = self._arm()
                if due > 0:
                    self._sleep(sleeper, due, end)
                with self:
                    self._sleepers.discard(sleeper)
        finally:
            if sleeper is not None:
                with self:
                    self._sleepers.discard(sleeper)
                sleeper.close()

    def _pending(self) -> bool:
        for device in self.devices:
            if device.busy():
                return True
        return False

    def _arm(self) -> float:
        """
        Ask every device to be woken.

        @return: for how long, in seconds; 0 if one has work after all.
        """
        self._armed = True
        self._until = 0.0
        left, until = float("inf"), float("inf")
        for device in self.devices:
            if not device.arm():
                return 0.0
            due = device.deadline()
            if due is not None:
                until = min(until, due)
                left = min(left, due - device.clock())
        self._until = until
        return max(left, 0.0)

    def attend(self, sleeper: Sleeper) -> bool:
        """
        Drive the devices once; if there was nothing to do sleep until there is, or until somebody
        else drives.  For threads that serve peers and wait for nothing.  The lock must not be
        held.

        @param sleeper: the calling thread's.

        @return: whether nobody else has driven since.
        """
        with self:
            n = self.drive()
            before = self.drives
            if not n and not self._sleepers:
                self._sleepers.add(sleeper)
                due = self._arm()
            else:
                due = 0.0
        if due > 0:
            self._sleep(sleeper, due, None)
        with self:
            self._sleepers.discard(sleeper)
            return self.drives == before and not self._sleepers

    @property
    def isAwaited(self) -> bool:
        """
        Whether a thread sleeps in L{wait}, and will drive when it is woken.
        """
        return bool(self._sleepers)

    def _sleep(self, sleeper: Sleeper, due: float, end: float | None) -> None:
        """
        Sleep until a device, another thread or the time asks for attention.

        @param due: seconds until a device's deadline.
        @param end: when to give up.
        """
        if end is not None:
            due = min(due, max(0.0, end - time.monotonic()))
        poller = select.poll()
        with self:
            for device in self.devices:
                poller.register(device.fabric.fileno(), select.POLLIN)
        poller.register(sleeper.fd, select.POLLIN)
        # Milliseconds, rounded up: a deadline that has not quite passed would spin.
        milliseconds = None if due == float("inf") else min(int(due * 1000) + 1, 1 << 30)
        for fd, _ in poller.poll(milliseconds):
            if fd == sleeper.fd:
                os.read(fd, 1 << 16)

    def forked(self) -> None:
        """
        In a forked child: nothing is open.
        """
        self._reset()

    def end(self) -> None:
        """
        The interpreter ends: close what the program has left open, as a kernel would.
        """
        with self:
            devices, self.devices = self.devices, {}
            for device in devices:
                with suppress(HCAError, OSError):
                    device.close()
            self._wakeSleepers()


hub = Hub()
"""
The hub of this process.
"""

atexit.register(hub.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=hub.forked)


def locked(function: Function) -> Function:
    """
    Decorate a verb: it runs with the hub's lock held.
    """

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        with hub:
            return function(*arguments, **keywords)

    return cast(Function, call)


__all__ = ["Hub", "Sleeper", "hub", "locked"]
