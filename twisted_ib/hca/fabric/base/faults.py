"""
A link that does to datagrams what bad networks do: for tests and trials.

L{FaultyLink} wraps an L{ILink<twisted_ib.hca.base.interfaces.ILink>} and sends through a chain of
faults.  A fault is called with a datagram and the time, and says what becomes of it: pairs of
a delay in seconds and octets, none if it is lost.  All that is left to chance comes from C{dice},
an object with the methods of C{random.Random}, so that a seed says it all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: What becomes of a datagram.
Fate = list[tuple[float, bytes]]
Fault = Callable[[bytes, float], Fate]

#: Operation codes of packets that only acknowledge.
_ACKNOWLEDGEMENTS = frozenset((0x11, 0x12))


class Dice(Protocol):
    """
    What is used of C{random.Random}.
    """

    def random(self) -> float:
        """
        @return: 0 or more, less than 1.
        """

    def randrange(self, stop: int, /) -> int:
        """
        @return: 0 or more, less than C{stop}.
        """


class Loss:
    """
    Each datagram may be lost.
    """

    def __init__(self, dice: Dice, rate: float) -> None:
        """
        @param rate: the part that is lost, 0 to 1.
        """
        self._dice, self._rate = dice, rate

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        return [] if self._dice.random() < self._rate else [(0.0, datagram)]


class AcknowledgementLoss(Loss):
    """
    Only acknowledgements may be lost.
    """

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        if datagram[0] not in _ACKNOWLEDGEMENTS:
            return [(0.0, datagram)]
        return super().__call__(datagram, now)


class Duplication:
    """
    Each datagram may come twice, the second time somewhat later.
    """

    def __init__(self, dice: Dice, rate: float, most: float = 0.01) -> None:
        """
        @param rate: the part that comes twice.
        @param most: how much later at most, in seconds.
        """
        self._dice, self._rate, self._most = dice, rate, most

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        if self._dice.random() >= self._rate:
            return [(0.0, datagram)]
        return [(0.0, datagram), (self._dice.random() * self._most, datagram)]


class Reordering:
    """
    Each datagram may be overtaken by those after it.
    """

    def __init__(self, dice: Dice, rate: float, most: float = 0.01) -> None:
        """
        @param rate: the part that waits.
        @param most: how long at most, in seconds.
        """
        self._dice, self._rate, self._most = dice, rate, most

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        late = self._dice.random() < self._rate
        return [(self._dice.random() * self._most if late else 0.0, datagram)]


class Delay:
    """
    Each datagram takes its time.
    """

    def __init__(self, dice: Dice, seconds: float, jitter: float = 0.0) -> None:
        """
        @param seconds: how long at least.
        @param jitter: how much longer at most, in seconds.
        """
        self._dice, self._seconds, self._jitter = dice, seconds, jitter

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        return [(self._seconds + self._dice.random() * self._jitter, datagram)]


class Corruption:
    """
    One bit of a datagram may be another one.
    """

    def __init__(self, dice: Dice, rate: float) -> None:
        """
        @param rate: the part that is damaged.
        """
        self._dice, self._rate = dice, rate

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        if self._dice.random() < self._rate:
            damaged = bytearray(datagram)
            bit = self._dice.randrange(8 * len(damaged))
            damaged[bit >> 3] ^= 1 << (bit & 7)
            datagram = bytes(damaged)
        return [(0.0, datagram)]


class Truncation:
    """
    A datagram may end early.
    """

    def __init__(self, dice: Dice, rate: float) -> None:
        """
        @param rate: the part that is cut off.
        """
        self._dice, self._rate = dice, rate

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        if self._dice.random() < self._rate:
            datagram = datagram[: 1 + self._dice.randrange(len(datagram))]
        return [(0.0, datagram)]


class Bursts:
    """
    Datagrams are lost one after the other.
    """

    def __init__(self, dice: Dice, rate: float, most: int) -> None:
        """
        @param rate: how often such a run begins.
        @param most: of how many datagrams it is at most.
        """
        self._dice, self._rate, self._most = dice, rate, most
        self._left = 0

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        if not self._left and self._dice.random() < self._rate:
            self._left = 1 + self._dice.randrange(self._most)
        if not self._left:
            return [(0.0, datagram)]
        self._left -= 1
        return []


class BlackOuts:
    """
    Nothing comes through for a while, again and again.
    """

    def __init__(self, silence: float, link: float, begin: float = 0.0) -> None:
        """
        @param silence: for how long, in seconds.
        @param link: how long all is well then.
        @param begin: when the first one begins.
        """
        self._silence, self._period, self._begin = silence, silence + link, begin

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        silent = now >= self._begin and (now - self._begin) % self._period < self._silence
        return [] if silent else [(0.0, datagram)]


class Vanishing:
    """
    Nothing comes through any more.
    """

    def __init__(self, begin: float) -> None:
        """
        @param begin: from when on.
        """
        self._begin = begin

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        return [] if now >= self._begin else [(0.0, datagram)]


class Stale:
    """
    Datagrams come again long after they were sent.
    """

    def __init__(self, dice: Dice, rate: float, most: int = 64) -> None:
        """
        @param rate: how often an old one comes with a new one.
        @param most: how many are remembered.
        """
        self._dice, self._rate = dice, rate
        self._old: deque[bytes] = deque(maxlen=most)
        self._remembering = True

    def begin(self) -> None:
        """
        What was sent up to now is old; what comes now is not remembered.
        """
        self._remembering = False

    def __call__(self, datagram: bytes, now: float) -> Fate:
        """
        See L{Fault}.
        """
        if self._remembering:
            self._old.append(datagram)
        elif self._old and self._dice.random() < self._rate:
            return [(0.0, self._old[self._dice.randrange(len(self._old))]), (0.0, datagram)]
        return [(0.0, datagram)]


class Refusal:
    """
    There is no room now and then: not a L{Fault}, but what L{FaultyLink} takes beside them.
    """

    def __init__(self, dice: Dice, rate: float) -> None:
        """
        @param rate: how often there is no room.
        """
        self._dice, self._rate = dice, rate

    def __call__(self, now: float) -> bool:
        """
        @return: whether there is no room.
        """
        return self._dice.random() < self._rate


class FaultyLink:
    """
    A link that sends through faults.  See L{ILink<twisted_ib.hca.base.interfaces.ILink>}.

    @ivar link: what it wraps.
    @ivar faults: what each datagram goes through, in order.
    @ivar refusal: says whether C{send} refuses, if it ever does.
    """

    #: Each datagram goes its own way, so each is sent by itself.
    burst = 1

    def __init__(
        self,
        link: Any,
        faults: Sequence[Fault],
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], object]], object],
        refusal: Callable[[float], bool] | None = None,
    ) -> None:
        """
        @param clock: gives the time, in seconds.
        @param later: calls something after so many seconds.
        """
        self.link = link
        self.faults = list(faults)
        self.refusal = refusal
        self._clock = clock
        self._later = later

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)

    @property
    def user(self) -> Any:
        """
        Who takes what arrives.
        """
        return self.link.user

    @user.setter
    def user(self, user: Any) -> None:
        """
        Say so to the link.
        """
        self.link.user = user

    def send(
        self,
        destination: str,
        port: int,
        pieces: Sequence[Any],
        size: int,
        trafficClass: int = 0,
        hopLimit: int = 64,
    ) -> bool:
        """
        See L{ILink.send<twisted_ib.hca.base.interfaces.ILink>}.
        """
        now = self._clock()
        if self.refusal is not None and self.refusal(now):
            return False
        octets = b"".join(pieces)
        for at in range(0, len(octets), size):
            for delay, datagram in self._fate(octets[at : at + size], now):
                if delay:
                    self._delay(delay, (destination, port, [datagram], len(datagram), trafficClass, hopLimit))
                else:
                    self.link.send(destination, port, [datagram], len(datagram), trafficClass, hopLimit)
        return True

    def _delay(self, delay: float, sending: tuple[Any, ...]) -> None:
        self._later(delay, lambda: self.link.send(*sending))

    def _fate(self, datagram: bytes, now: float) -> Fate:
        found = [(0.0, datagram)]
        for fault in self.faults:
            found = [
                (delay + more, octets) for delay, each in found for more, octets in fault(each, now + delay)
            ]
        return found
