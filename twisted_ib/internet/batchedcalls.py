"""
Delayed calls that many connections share.

A C{DelayedCall} costs more than most of the work it starts, and each connect needs several: to begin in the
next turn, to time out after half a minute, to hold data back in the turn in which it is made.  So connections
that wait for the same moment share one call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet import error
from twisted.python import log

if TYPE_CHECKING:
    from twisted.internet.base import DelayedCall, ReactorBase

    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.internet.connector import Attempt
    from twisted_ib.internet.serverclient import ConnectedTransport

    #: What the attempts of one turn have found, by service: channel, addresses of peer and host, path.
    Shared = dict[object, tuple[DeviceChannel, str, str, IPeerPath]]

#: Deadlines this close share a call, in seconds; far below the resolution of a reactor's clock.
_SAME_SECONDS = 1e-6


class _TimeoutGroup:
    """
    Owners with the same timeout, whose deadlines are therefore in order of insertion.

    @ivar call: The delayed call of the earliest deadline.
    @ivar deadlines: Deadline by owner, the earliest first.
    """

    __slots__ = ("call", "deadlines")

    def __init__(self) -> None:
        self.deadlines: dict[Attempt, float] = {}
        self.call: DelayedCall | None = None


class BatchedCalls:
    """
    The shared delayed calls of one reactor.
    """

    __slots__ = ("_call", "_next", "_patience")

    def __init__(self) -> None:
        self._call: DelayedCall | None = None
        self._next: dict[Attempt | ConnectedTransport, None] = {}
        self._patience: dict[float, _TimeoutGroup] = {}

    # -- the next turn

    def wait(self, reactor: ReactorBase, owner: Attempt | ConnectedTransport) -> None:
        """
        Call C{owner.nextTurn(shared)} in the next turn, as C{reactor.callLater(0)} does.

        C{shared} is one dictionary for all owners of that turn.
        """
        call = self._call
        # Anybody may cancel what getDelayedCalls() lists; trial does so after each test.
        # Inlines active(): each connect asks three times.
        if call is None or call.called or call.cancelled:
            self._call = reactor.callLater(0, self._turn)
        self._next[owner] = None

    def forget(self, owner: Attempt | ConnectedTransport) -> None:
        """
        Withdraw a L{wait}; harmless if there was none.
        """
        self._next.pop(owner, None)
        if not self._next and self._call is not None:
            call, self._call = self._call, None
            if call.active():
                call.cancel()

    def _turn(self) -> None:
        owners, self._next = self._next, {}
        self._call = None
        shared: Shared = {}
        for owner in owners:
            try:
                owner.nextTurn(shared)
            except BaseException:
                # As ReactorBase.runUntilCurrent does with what a delayed call raises.
                log.err()

    # -- timeouts

    def limit(self, reactor: ReactorBase, seconds: float, owner: Attempt) -> None:
        """
        Call C{owner.failIfNotConnected(TimeoutError())} in C{seconds}.
        """
        patience = self._patience.get(seconds)
        if patience is None:
            patience = self._patience[seconds] = _TimeoutGroup()
        patience.deadlines[owner] = reactor.seconds() + seconds
        call = patience.call
        if call is None or call.called or call.cancelled:
            patience.call = reactor.callLater(seconds, self._timedOut, reactor, seconds, patience)

    def unlimit(self, seconds: float, owner: Attempt) -> None:
        """
        Withdraw a L{limit}; harmless if there was none.
        """
        patience = self._patience.get(seconds)
        if patience is not None and patience.deadlines.pop(owner, None) is not None:
            # The timer is cancelled with the last owner only.  If it fires too early for the others,
            # _timedOut sets it anew: most connects succeed long before their timeout, and cancel nothing.
            if not patience.deadlines:
                del self._patience[seconds]
                if patience.call is not None and patience.call.active():
                    patience.call.cancel()

    def _timedOut(self, reactor: ReactorBase, seconds: float, patience: _TimeoutGroup) -> None:
        deadlines, now = patience.deadlines, reactor.seconds() + _SAME_SECONDS
        while deadlines:
            owner = next(iter(deadlines))
            if deadlines[owner] > now:
                break
            self.unlimit(seconds, owner)
            try:
                owner.failIfNotConnected(error.TimeoutError())
            except BaseException:
                # One broken factory must not keep the other owners from failing.
                log.err()
        if deadlines:
            # An owner that connected again in its failIfNotConnected() may have set a later call.
            call = patience.call
            if call is not None and call.active():
                call.cancel()
            delay = max(0.0, deadlines[owner] - reactor.seconds())
            patience.call = reactor.callLater(delay, self._timedOut, reactor, seconds, patience)


#: The attribute of a reactor that holds its L{BatchedCalls}.  A table here would keep the reactor alive: its
#: pending calls refer to it.
_TURNS = "_hcaTurns"


def batchedCallsOf(reactor: ReactorBase) -> BatchedCalls:
    """
    Return the L{BatchedCalls} of a reactor, made at the first call.
    """
    found: BatchedCalls | None = getattr(reactor, _TURNS, None)
    if found is None:
        found = BatchedCalls()
        setattr(reactor, _TURNS, found)
    return found
