"""
The progress of paths between processes: which are polled, which sleep, and whose peers are to be woken.

A path is I{hot} while it is polled each turn, and I{asleep} otherwise: then the peer rings a doorbell when
it publishes something.  C{arm} puts paths to sleep; C{look} finds the sleeping ones that have work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.drive.process import perf_counter
from twisted_ib.drive.sleeper import acquire, barrier, fence, release
from twisted_ib.errors import RingError
from twisted_ib.hca.fabric.base.fabric import Fabric
from twisted_ib.hca.fabric.base.path import RecordPath

#: Paths of a fabric whose records are counted before a sleep.
PEERS: Final = 16


@mypyc_attr(allow_interpreted_subclasses=True)
class HostPath(RecordPath):
    """
    A path between processes of one host, which can sleep.

    @ivar asleep: Whether it is not polled, so that the peer must ring.
    @ivar vain: How often in turn the peer has rung, and no record came that was waited for.
    """

    __slots__ = ("asleep", "vain")

    def __init__(self, fabric: Any, peer: Any) -> None:
        super().__init__(fabric, peer)
        self.asleep = False
        self.vain = 0

    def published(self) -> int:
        """
        @return: How many records were sent; a long one may count more than once, one without bytes does not.
        """
        raise NotImplementedError

    def arm(self) -> None:
        """
        Go to sleep: from now on the peer rings when there is something to do.  A L{fence} and
        C{pending} must follow.
        """
        raise NotImplementedError

    def close(self) -> None:
        """
        Free everything.
        """
        raise NotImplementedError

    def wake(self) -> None:
        """
        Wake up: the peer need not ring any more.
        """
        raise NotImplementedError

    def ring(self) -> bool:
        """
        End the batch: wake the peer if it sleeps and something concerns it, after a L{fence}.

        @return: Whether the doorbell was rung.
        @raise RingError: the peer broke the layout.
        """
        raise NotImplementedError


# Not a bare (): type checkers, and so the compiled form, would take what follows to have no paths either.
_NONE: Final[tuple[HostPath, ...]] = ()


@mypyc_attr(allow_interpreted_subclasses=True)
class HotPaths(Fabric):
    """
    The half of a fabric between processes that makes progress.

    @ivar hot: The paths that are polled each turn.
    """

    def __init__(self, owner: Any, guid: int) -> None:
        super().__init__(owner, guid)
        self.hot = _NONE
        self._asleep: dict[HostPath, None] = {}
        #: Paths found broken while bells were rung.  They are closed in progress(): ringing may happen
        #: within an application's call, which must not run other consumers' failure callbacks.
        self._brokenPaths: dict[HostPath, RingError] = {}
        #: Whether a broken path, or a lost one that an upcall still uses, is still to be closed.
        self._over = False
        # Those of fence(), in ringBells(), where each call counts.
        self._acquire: Callable[[bool], bool] = acquire
        self._release: Callable[[], None] = release

    # -- implemented by the fabric

    def _broken(self, path: HostPath, error: RingError) -> None:
        raise NotImplementedError

    def _clear(self) -> int:
        raise NotImplementedError

    # -- progress

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        n = 0
        for path in self.hot:
            if not path.alive:
                # An upcall of an earlier path has closed the device.
                continue
            try:
                k = path.progress(budget)
            except RingError as error:
                self._broken(path, error)
                k = 1
            except BaseException:
                # A consumer, or a signal's handler within it: the record counts as taken, for which the peer
                # may wait.  It hears of that when the next batch ends.
                if not path.bell and path.consumed and path.alive:
                    self.bells.append(path)
                raise
            if k:
                n += k
                # Nothing is news to the peer if only its acknowledgements were seen.
                if not path.bell and path.consumed and path.alive:
                    self.bells.append(path)
        if self._over:
            n += self._clear()
        return n

    def ringBells(self) -> None:
        bells = self.bells
        if not bells:
            return
        # One fence for the whole batch.  Store TAIL, fence, load the peer's SLEEP here; store SLEEP, fence,
        # load TAIL in arm(): at least one side sees the other's store (Dekker's algorithm), so no wake-up
        # is lost.  Inlines fence().
        if self._acquire(False):
            self._release()
        else:
            barrier()
        path: HostPath
        try:
            self.bells = []
            for path in bells:
                if not path.alive:
                    continue
                try:
                    if path.ring():
                        self.rung += 1
                except RingError as error:
                    self._brokenPaths[path] = error
                    self._over = True
                    if self.owner.wanted is not None:
                        self.owner.wanted()
                    continue
                if path.asleep:
                    self._wake(path)
        except BaseException:
            # A signal handler raised.  Which path it was is not known, and one that is rung for twice is
            # not rung twice.
            for path in bells:
                path.bell = True
            self.bells = bells + self.bells
            raise

    def _wake(self, path: HostPath) -> None:
        # In this order: a signal handler that raises may leave the path in both, never in neither.
        if path not in self.hot:
            self.hot += (path,)
        path.wake()
        self._asleep.pop(path, None)

    def pending(self) -> bool:
        if self._brokenPaths:
            return True
        for path in self.hot:
            if path.pending():
                return True
        return False

    def published(self) -> int:
        hot, asleep, n = self.hot, self._asleep, 0
        # Among many peers one or the other is always about to answer: nothing is to be learned.
        if len(hot) + len(asleep) > PEERS:
            return 0
        for path in hot:
            n += path.published()
        for path in asleep:
            n += path.published()
        return n

    def arm(self) -> bool:
        if self._brokenPaths:
            return False
        hot = self.hot
        if not hot:
            return True
        for path in hot:
            self._asleep[path] = None
            path.arm()
        self.hot = _NONE
        # See ringBells(): a record published before this fence is found by pending(), a later one rings the
        # bell.
        fence()
        for path in hot:
            if path.pending():
                self._wake(path)
        self.sleeps += 1
        return not self.hot

    def look(self) -> bool:
        if self._asleep:
            # Edge-triggered bells do not name their path here, so each sleeping path's cells are read: a
            # few loads each, no system call.
            awake, isEarly = _NONE, not self.hot
            for path in self._asleep:
                found = path.rouse()
                if found is not False:
                    awake += (path,)
                    if found:
                        isEarly = False
            for path in awake:
                # Inlines _wake().
                if path not in self.hot:
                    self.hot += (path,)
                path.wake()
                self._asleep.pop(path, None)
            if isEarly and awake:
                self._awaitRecord(awake)
        return bool(self.hot)

    def _awaitRecord(self, rung: tuple[HostPath, ...]) -> None:
        """
        Wait for the record of a peer that has rung before it writes it: for all of them together no longer
        than L{limits.ANSWER_SECONDS}, and only for the first, second, fourth, eighth and so on time that one
        rings in vain. A later record finds a path that is polled, or that sleeps anew and is rung for.
        """
        believed = _NONE
        for path in rung:
            path.vain += 1
            if not path.vain & (path.vain - 1):
                believed += (path,)
        if not believed:
            return
        end = perf_counter() + limits.ANSWER_SECONDS
        while True:
            for path in believed:
                if path.pending():
                    path.vain = 0
                    return
            if perf_counter() > end:
                return
            # The peer has this CPU if it has no other.
            os.sched_yield()
