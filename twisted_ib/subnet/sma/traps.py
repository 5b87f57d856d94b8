"""
Traps of the nodes of a subnet (IBTA vol. 1 13.4.9, 14.2.5.1, 14.3.13).

A trap is sent to the subnet manager that the port knows, and again until its TrapRepress comes.  A port sends
each trap number once in a SubnetTimeout (C14-8.2.1), whatever happens: a storm of events is one trap with the
latest details.  States of a port's trap number, and what follows:

  - none: an event is sent at once;
  - sent: it is repeated; another event takes its place, with another transaction id;
  - repressed: an event waits until the time is over, then it is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.base.timers import timeoutSeconds
from twisted_ib.hca.mad.attributes.notice import LinkStateDetails, Notice, NoticeType, Trap
from twisted_ib.hca.wire.mad.classes import SUBNET
from twisted_ib.hca.wire.mad.mad import SM_VERSION, TRAP, Mad, decodeMAD
from twisted_ib.subnet.network.graph import Change, Node, Port
from twisted_ib.subnet.sma.agent import notice

#: Transaction ids: a client of ibsim's protocol puts numbers of its own into the upper half.
_TRANSACTION_BITS: Final = 32
_TRANSACTION: Final = (1 << _TRANSACTION_BITS) - 1


class Sending(NamedTuple):
    """
    A trap to send.

    @ivar port: the port that sends it, by its LID.
    @ivar dlid: the LID of the subnet manager.
    @ivar octets: the MAD.
    """

    port: Port
    dlid: int
    octets: bytes


class _Entry:
    __slots__ = ("next", "notice", "transaction", "waiting")

    def __init__(self) -> None:
        self.notice = Notice()
        self.transaction = 0
        # Until then nothing is sent.
        self.next = 0.0
        # Whether something is to be sent.
        self.waiting = False


class Traps:
    """
    The traps of a subnet's nodes.  C{trap_no_manager} counts those of ports without a subnet manager,
    C{trap_dropped} those for which there is no room.
    """

    __slots__ = ("_count", "_entries", "_randomBits")

    def __init__(self, randomBits: Callable[[int], int], count: Callable[[str], object]) -> None:
        """
        @param randomBits: makes transaction ids: as many random bits as asked for.
        @param count: called with the name of each loss.
        """
        self._randomBits = randomBits
        self._count = count
        self._entries: dict[tuple[Port, int], _Entry] = {}

    def changed(self, changes: Iterable[Change], now: float) -> None:
        """
        Links went up or down: their switches report it (trap 128).
        """
        for switch in dict.fromkeys(each.port.node for each in changes if each.byLink):
            port = switch.ports[0]
            if port is not None:
                details = LinkStateDetails(lid=port.lid)
                self.add(port, notice(port, NoticeType.URGENT, Trap.LINK_STATE_CHANGED, details), now)

    def add(self, port: Port, event: Notice, now: float) -> None:
        """
        Something happened that is reported.

        @param port: the one that reports it.
        @param now: seconds.
        """
        port.note(event)
        if not port.smLID or not port.lid:
            self._count("trap_no_manager")
            return
        key = port, event.noticeTrapNumber
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= limits.SUBNET_TRAPS:
                self._purge(now)
                if len(self._entries) >= limits.SUBNET_TRAPS:
                    self._count("trap_dropped")
                    return
            entry = self._entries[key] = _Entry()
            entry.next = now
        # The repetition of an event that was not repressed is the same trap; after a TrapRepress it is new.
        if not entry.waiting or entry.notice != event:
            entry.notice = event
            entry.transaction = self._randomBits(_TRANSACTION_BITS)
            entry.waiting = True

    def due(self, now: float) -> list[Sending]:
        """
        @return: the traps to send now.
        """
        self._purge(now)
        found = []
        for (port, _), entry in list(self._entries.items()):
            if not entry.waiting or entry.next > now:
                continue
            # IBTA vol. 1 14.2.5.6, SubnetTimeOut: also how often a trap may be sent.
            timeout = timeoutSeconds(port.subnetTimeout) or 0.0
            entry.next = now + max(timeout, limits.SUBNET_TRAP_LEAST)
            mad = Mad(SUBNET, SM_VERSION, TRAP, entry.transaction, Notice.ID, entry.notice.pack())
            found.append(Sending(port, port.smLID, mad.pack()))
        return found

    def deadline(self) -> float | None:
        """
        @return: when L{due} is to be called next, if something waits.
        """
        return min((entry.next for entry in self._entries.values() if entry.waiting), default=None)

    def repressed(self, port: Port, data: bytes) -> bool:
        """
        A TrapRepress arrived, whose M_Key was the port's.

        @param port: the one that sent the trap.
        @return: whether it was for a trap that waits.
        """
        try:
            mad = decodeMAD(data)
        except WireError:
            return False
        if not isinstance(mad.data, bytes):
            return False
        entry = self._entries.get((port, Notice.parse(mad.data).noticeTrapNumber))
        if entry is None or not entry.waiting or entry.transaction != mad.transaction & _TRANSACTION:
            return False
        entry.waiting = False
        return True

    def forget(self, node: Node) -> None:
        """
        A node is gone.
        """
        for key in [key for key in self._entries if key[0].node is node]:
            del self._entries[key]

    def _purge(self, now: float) -> None:
        # A port that has lost its subnet manager has nobody to repress its traps.
        done = [
            key
            for key, entry in self._entries.items()
            if not key[0].smLID or (not entry.waiting and entry.next <= now)
        ]
        for key in done:
            del self._entries[key]
