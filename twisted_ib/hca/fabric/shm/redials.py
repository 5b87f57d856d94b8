"""
Dials that are tried again: a peer that has no room in its backlog, or that hangs up in the handshake, may
take the next call.

A connect by TCP waits likewise: the kernel repeats the SYN that a full backlog has dropped.  A wait ends with
the timeouts of those who wait, which cancel their requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_ib.hca.host.handshake import DIAL_SECONDS

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import PathUser

#: The first pause before a peer is dialled again, in seconds, and the longest; each is twice as long as the
#: one before.
REDIAL_SECONDS, REDIAL_SECONDS_MOST = 0.01, 0.5


class _Redial:
    """
    One peer that is to be dialled again.

    @ivar users: Those that wait; empty while a dial is under way.
    @ivar when: When it is due; L{None} while a dial is under way.
    """

    __slots__ = ("end", "pause", "users", "when")

    def __init__(self, end: float) -> None:
        self.users: list[Any] = []
        self.when: float | None = None
        self.pause = REDIAL_SECONDS
        self.end = end


class Redials:
    """
    The peers that one HCA dials again, by GUID.

    @ivar deadline: When the next dial is due, or L{None}.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        @param clock: Gives the time in seconds.
        """
        self._clock = clock
        self._redials: dict[int, _Redial] = {}
        self.deadline: float | None = None

    def __len__(self) -> int:
        return len(self._redials)

    def again(self, guid: int, users: list[Any]) -> bool:
        """
        Dial a peer again after a pause.

        @param users: Those that wait for the path.
        @return: False if it was dialled for too long.
        """
        now = self._clock()
        redial = self._redials.get(guid)
        if redial is None:
            redial = self._redials[guid] = _Redial(now + DIAL_SECONDS)
        elif now >= redial.end:
            self.end(guid)
            return False
        redial.users += users
        redial.when = now + redial.pause
        redial.pause = min(2 * redial.pause, REDIAL_SECONDS_MOST)
        self._changed()
        return True

    def join(self, guid: int, user: Any) -> bool:
        """
        @return: Whether the peer is to be dialled again, and C{user} waits with the others.
        """
        redial = self._redials.get(guid)
        if redial is None or redial.when is None:
            return False
        redial.users.append(user)
        return True

    def end(self, guid: int) -> None:
        """
        A peer was reached, or is given up.
        """
        if self._redials.pop(guid, None) is not None:
            self._changed()

    def forget(self, user: PathUser) -> None:
        """
        Remove a consumer that waits no more.
        """
        for guid, redial in tuple(self._redials.items()):
            if user in redial.users:
                redial.users.remove(user)
                if not redial.users:
                    self.end(guid)

    def _changed(self) -> None:
        waits = [each.when for each in self._redials.values() if each.when is not None]
        self.deadline = min(waits, default=None)

    def due(self, now: float) -> list[tuple[int, list[Any]]]:
        """
        @return: The peers to dial now, and who waits for each.
        """
        found = []
        for guid, redial in self._redials.items():
            if redial.when is not None and redial.when <= now:
                redial.when, users, redial.users = None, redial.users, []
                found.append((guid, users))
        if found:
            self._changed()
        return found

    def clear(self) -> list[Any]:
        """
        Dial nobody any more.

        @return: Those that waited.
        """
        users = [user for redial in self._redials.values() for user in redial.users]
        self._redials.clear()
        self._changed()
        return users
