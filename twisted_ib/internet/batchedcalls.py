"""
What many connections ask of their reactor at the same time, asked for once.

A delayed call of Twisted costs more than most of what it is made for, and each connect has
some: to begin in the next turn, to give up in half a minute, to deliver nothing in the turn in
which it is made.  So all that waits for the same moment has one call.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import error
from twisted.python import log

#: Deadlines that are this close have the same call; far less than a reactor's clock can tell.
_SAME_SECONDS = 1e-6


class _Patience:
    """
    Those who wait equally long, and so end in the order in which they began.

    @ivar call: The call that ends the first.
    @ivar deadlines: When each ends, the first to end first.
    """

    __slots__ = ("call", "deadlines")

    def __init__(self) -> None:
        self.deadlines: dict[Any, float] = {}
        self.call: Any = None


class BatchedCalls:
    """
    What is asked of one reactor, which owns it.
    """

    __slots__ = ("_call", "_next", "_patience")

    def __init__(self) -> None:
        self._call: Any = None
        self._next: dict[Any, None] = {}
        self._patience: dict[float, _Patience] = {}

    # -- the next turn

    def wait(self, reactor: Any, owner: Any) -> None:
        """
        Call C{owner.nextTurn(shared)} in the next turn, as C{reactor.callLater(0)} does.

        C{shared} is a dictionary for all that are called together.
        """
        call = self._call
        if call is None or not call.active():  # Others may cancel what a reactor has, as trial does.
            self._call = reactor.callLater(0, self._turn)
        self._next[owner] = None

    def forget(self, owner: Any) -> None:
        """
        C{owner} does not wait any more; harmless if it did not.
        """
        self._next.pop(owner, None)
        if not self._next and self._call is not None:
            call, self._call = self._call, None
            if call.active():
                call.cancel()

    def _turn(self) -> None:
        owners, self._next = self._next, {}
        self._call = None
        shared: dict[Any, Any] = {}
        for owner in owners:
            try:
                owner.nextTurn(shared)
            except BaseException:
                log.err()  # As the reactor does with what a delayed call raises.

    # -- giving up

    def limit(self, reactor: Any, seconds: float, owner: Any) -> None:
        """
        Call C{owner.failIfNotConnected(TimeoutError())} in so many seconds.
        """
        patience = self._patience.get(seconds)
        if patience is None:
            patience = self._patience[seconds] = _Patience()
        patience.deadlines[owner] = reactor.seconds() + seconds
        call = patience.call
        if call is None or not call.active():
            patience.call = reactor.callLater(seconds, self._timedOut, reactor, seconds, patience)

    def unlimit(self, seconds: float, owner: Any) -> None:
        """
        C{owner} has no deadline any more; harmless if it had none.
        """
        patience = self._patience.get(seconds)
        if patience is not None and patience.deadlines.pop(owner, None) is not None:
            if not patience.deadlines:
                del self._patience[seconds]
                if patience.call is not None and patience.call.active():
                    patience.call.cancel()

    def _timedOut(self, reactor: Any, seconds: float, patience: _Patience) -> None:
        """
        The time of the first is over, if it still waits.
        """
        deadlines, now = patience.deadlines, reactor.seconds() + _SAME_SECONDS
        while deadlines:
            owner = next(iter(deadlines))
            if deadlines[owner] > now:
                break
            self.unlimit(seconds, owner)
            try:
                owner.failIfNotConnected(error.TimeoutError())
            except BaseException:
                log.err()  # The others are to fail, too.
        if deadlines:
            call = patience.call  # Who has begun again meanwhile has asked for a later one.
            if call is not None and call.active():
                call.cancel()
            delay = max(0.0, deadlines[owner] - reactor.seconds())
            patience.call = reactor.callLater(delay, self._timedOut, reactor, seconds, patience)


#: Where a reactor has its own: in itself, for their delayed calls keep it alive.
_TURNS = "_hcaTurns"


def batchedCallsOf(reactor: Any) -> BatchedCalls:
    """
    What is asked of a reactor.

    @param reactor: Any reactor.
    @return: The same one for the same reactor.
    """
    found: BatchedCalls | None = getattr(reactor, _TURNS, None)
    if found is None:
        found = BatchedCalls()
        setattr(reactor, _TURNS, found)
    return found
