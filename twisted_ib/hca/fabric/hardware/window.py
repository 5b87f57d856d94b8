"""
The receives of both ends of an RNIC's connection: a SEND that finds none would end it
(L{twisted_ib.hca.connection.receives}).
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.hca.connection.receives import ANY, Receives
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE_READ

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.hardware.adapterpath import AdapterPath
    from twisted_ib.structs import Packed

#: The form of both sides' numbers.  Where the least octet is the first anyhow, it is written at once, so that
#: a READ finds no half of one.
COUNT: Final[Packed[tuple[int]]] = Struct("<Q")
#: The first and the longest interval at which a peer without receives is asked again, in seconds.
_AGAIN_SECONDS: Final = 0.0005
_AGAIN_MOST_SECONDS: Final = 0.05
#: How long the side that has asked waits until it hears of its peer, in seconds, before it says again that it
#: is ready; four times as long then, and the longest of these times.
_READY_SECONDS: Final = 0.05
_READY_MOST_SECONDS: Final = 3.2


class Window:
    """
    Those of one connection.

    @ivar own: what the peer is told.
    @ivar isReady: whether the peer takes requests: the depths are agreed on, and where this side is passive
        and the peer an adapter, that has said so.
    @ivar isAwaited: whether the peer has yet to say so, by a SEND of no octets.
    @ivar isHeard: whether the peer has sent something, or answered a READ.
    @ivar limit: how many SENDs the peer has had receives for, in all; without bound until it tells,
        or if it does not.
    @ivar sent: how many were sent.
    """

    __slots__ = (
        "_again",
        "_at",
        "_isAsking",
        "_memory",
        "_path",
        "_posted",
        "_pushed",
        "_pushes",
        "_region",
        "_there",
        "isAwaited",
        "isHeard",
        "isReady",
        "limit",
        "own",
        "sent",
    )

    def __init__(self, path: AdapterPath, memory: Any, domain: Any, base: int, at: int) -> None:
        """
        @param path: whose receives are posted.
        @param memory: the path's, which has room for the number at C{at}.
        @param domain: the adapter's.
        @param base: the address of the memory.
        @raise OSError: the adapter takes no more memory.
        """
        self._path, self._memory, self._at = path, memory, at
        # A domain may have the numbers of several peers: none of them writes.
        self._region: Any = domain.reg_mr(base + at, COUNT.size, LOCAL_WRITE | REMOTE_READ)
        self._posted = self._pushed = path.slots
        self._show()
        self.own = Receives(path.slots, base + at, self._region.rkey)
        self._there = Receives()
        self.limit, self.sent = ANY, 0
        self.isAwaited = self.isReady = self.isHeard = self._isAsking = self._pushes = False
        self._again = _AGAIN_SECONDS

    def _show(self) -> None:
        COUNT.pack_into(self._memory, self._at, self._posted)

    # -- the peer's

    def told(self, there: Receives | None, isPassive: bool, reads: int) -> None:
        """
        The depths are agreed on, and the peer has told of its receives or not.

        @param isPassive: whether it has asked for the connection, and so says when it is ready; else this
            side does.
        @param reads: how many READs this side may have outstanding.
        """
        if there is not None:
            self._there, self._pushes = there, not there.key
            # Without READs it would learn of no more.
            if there.count and (reads or self._pushes):
                self.limit = there.count
            self.isAwaited = isPassive and bool(there.key)
            if there.key and not isPassive:
                self._path.tellReady()
                self._sayAgain(_READY_SECONDS)
        if not self.isAwaited:
            self.begin()

    def _sayAgain(self, seconds: float) -> None:
        self._path.fabric.timers.start(seconds, partial(self._readyAgain, seconds))

    def _readyAgain(self, seconds: float) -> None:
        # Linux siw_cm.c siw_accept() answers before it listens for what follows: all that comes between wakes
        # nobody until something else comes.  A WRITE of no octets always may.
        if self.isHeard or not self._path.alive:
            return
        self._path.tellReceives(0)
        if seconds < _READY_MOST_SECONDS:
            self._sayAgain(4 * seconds)

    def begin(self) -> None:
        """
        The peer takes requests.
        """
        self.isReady, self.isAwaited = True, False
        if self._path.waiting:
            self._path.fabric.later(self._path)

    def admits(self) -> bool:
        """
        @return: whether there is a receive for one SEND more; else the path's waiters are resumed when there
            is.
        """
        left = self.limit - self.sent
        # In time, so that a sender does not wait while its peer keeps up.
        if left <= self._there.count // 2 and not self._isAsking:
            self._isAsking = self._path.askReceives(self._there.address, self._there.key)
        return left > 0

    def answered(self, start: int) -> None:
        """
        The peer's number was read.

        @param start: where it is in the path's memory.
        """
        (posted,) = COUNT.unpack_from(self._memory, start)
        if posted > self.limit:
            self.limit, self._isAsking = posted, False
            self._again = _AGAIN_SECONDS
            return
        # The peer's program takes its time.
        self._lookAgain()

    def _lookAgain(self) -> None:
        self._path.fabric.timers.start(self._again, self._askAgain)
        self._again = min(2 * self._again, _AGAIN_MOST_SECONDS)

    def _askAgain(self) -> None:
        path = self._path
        self._isAsking = False
        if path.alive and path.waiting:
            path.fabric.later(path)

    # -- this side's

    def posted(self) -> None:
        """
        A receive was posted again.
        """
        self._posted += 1
        self._show()
        if self._pushes:
            self.push()

    def push(self) -> None:
        """
        Tell a peer that does not read the number, half of the receives at a time.
        """
        posted, path = self._posted, self._path
        if self._pushes and posted - self._pushed >= path.slots // 2 and path.tellReceives(posted):
            self._pushed = posted

    def close(self) -> None:
        """
        Deregister the number.
        """
        # Its domain ends with it: a time to ask again may keep this longer.
        region, self._region = self._region, None
        region.close()
