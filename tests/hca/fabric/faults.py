"""
Fault injection: a link that loses, delays, duplicates and corrupts datagrams.

L{FaultyLink} wraps an L{ILink<twisted_ib.hca.fabric.base.link.ILink>} and sends through a chain of faults.
A fault is called with a datagram and the time, and returns pairs of a delay in seconds and octets: none if
the datagram is lost. All randomness comes from C{dice}, an object with the methods of C{random.Random}, so
that a seed repeats a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: The deliveries of one datagram: delays in seconds, and octets.
Deliveries = list[tuple[float, bytes]]
Fault = Callable[[bytes, float], Deliveries]

#: IBTA vol. 1 9.2.1: RC Acknowledge and ATOMIC Acknowledge, the packets that only acknowledge.
_ACKNOWLEDGEMENTS = frozenset((0x11, 0x12))


class Dice(Protocol):
    """
    The part of C{random.Random} that faults use.
    """

    def random(self) -> float:
        """
        @return: At least 0, less than 1.
        """

    def randrange(self, stop: int, /) -> int:
        """
        @return: At least 0, less than C{stop}.
        """


class Loss:
    """
    Datagrams are lost at random.
    """

    def __init__(self, dice: Dice, rate: float) -> None:
        """
        @param rate: the part that is lost, 0 to 1; so for all rates here.
        """
        self._dice, self._rate = dice, rate

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        return [] if self._dice.random() < self._rate else [(0.0, datagram)]


class AcknowledgementLoss(Loss):
    """
    Only acknowledgements are lost.
    """

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        # A lost ACK makes the requester repeat a request that was executed: the duplicate requests of IBTA
        # vol. 1 9.7.5.1, which must not be executed twice.
        if datagram[0] not in _ACKNOWLEDGEMENTS:
            return [(0.0, datagram)]
        return super().__call__(datagram, now)


class Duplication:
    """
    Datagrams come twice, the second time somewhat later.
    """

    def __init__(self, dice: Dice, rate: float, most: float = 0.01) -> None:
        """
        @param most: the largest delay of the copy, in seconds.
        """
        self._dice, self._rate, self._most = dice, rate, most

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        if self._dice.random() >= self._rate:
            return [(0.0, datagram)]
        return [(0.0, datagram), (self._dice.random() * self._most, datagram)]


class Reordering:
    """
    Datagrams are overtaken by later ones.
    """

    def __init__(self, dice: Dice, rate: float, most: float = 0.01) -> None:
        """
        @param most: the largest delay, in seconds.
        """
        self._dice, self._rate, self._most = dice, rate, most

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        # IBTA vol. 1 9.7.5.2.3: to a responder a gap in the PSNs looks the same whether a packet is late or
        # lost, so this tests that a late original after its retransmission does no harm.
        late = self._dice.random() < self._rate
        return [(self._dice.random() * self._most if late else 0.0, datagram)]


class Delay:
    """
    Every datagram is delayed.
    """

    def __init__(self, dice: Dice, seconds: float, jitter: float = 0.0) -> None:
        """
        @param seconds: the least delay.
        @param jitter: the most that is added to it, in seconds.
        """
        self._dice, self._seconds, self._jitter = dice, seconds, jitter

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        return [(self._seconds + self._dice.random() * self._jitter, datagram)]


class Corruption:
    """
    One bit of a datagram is flipped.
    """

    def __init__(self, dice: Dice, rate: float) -> None:
        self._dice, self._rate = dice, rate

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        if self._dice.random() < self._rate:
            damaged = bytearray(datagram)
            # One bit, which a CRC-32 always detects (IBTA vol. 1 7.8.1): such a datagram must never be
            # delivered.
            bit = self._dice.randrange(8 * len(damaged))
            damaged[bit >> 3] ^= 1 << (bit & 7)
            datagram = bytes(damaged)
        return [(0.0, datagram)]


class Truncation:
    """
    A datagram is cut short.
    """

    def __init__(self, dice: Dice, rate: float) -> None:
        self._dice, self._rate = dice, rate

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        if self._dice.random() < self._rate:
            datagram = datagram[: 1 + self._dice.randrange(len(datagram))]
        return [(0.0, datagram)]


class Bursts:
    """
    Runs of consecutive datagrams are lost.
    """

    def __init__(self, dice: Dice, rate: float, most: int) -> None:
        """
        @param rate: how often a run begins.
        @param most: the longest run, in datagrams.
        """
        self._dice, self._rate, self._most = dice, rate, most
        self._left = 0

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        if not self._left and self._dice.random() < self._rate:
            self._left = 1 + self._dice.randrange(self._most)
        if not self._left:
            return [(0.0, datagram)]
        self._left -= 1
        return []


class Outages:
    """
    The link is dead for a while, again and again.
    """

    def __init__(self, silence: float, link: float, begin: float = 0.0) -> None:
        """
        @param silence: how long it is dead, in seconds.
        @param link: how long it works after that.
        @param begin: when it is dead first.
        """
        self._silence, self._period, self._begin = silence, silence + link, begin

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        silent = now >= self._begin and (now - self._begin) % self._period < self._silence
        return [] if silent else [(0.0, datagram)]


class LinkDown:
    """
    The link is dead for good.
    """

    def __init__(self, begin: float) -> None:
        """
        @param begin: since when, in seconds of the clock.
        """
        self._begin = begin

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        return [] if now >= self._begin else [(0.0, datagram)]


class Replay:
    """
    Old datagrams arrive again long after they were sent.
    """

    def __init__(self, dice: Dice, rate: float, most: int = 64) -> None:
        """
        @param rate: how often an old datagram precedes a new one.
        @param most: how many are kept.
        """
        self._dice, self._rate = dice, rate
        self._old: deque[bytes] = deque(maxlen=most)
        self._remembering = True

    def begin(self) -> None:
        """
        Stop recording: from now on the recorded datagrams are replayed.
        """
        self._remembering = False

    def __call__(self, datagram: bytes, now: float) -> Deliveries:
        if self._remembering:
            self._old.append(datagram)
        elif self._old and self._dice.random() < self._rate:
            # A stale packet of an earlier connection may have a PSN that the present one expects; CM's
            # timewait (IBTA vol. 1 12.9.7) exists for that.
            return [(0.0, self._old[self._dice.randrange(len(self._old))]), (0.0, datagram)]
        return [(0.0, datagram)]


class Refusal:
    """
    The link has no room now and then.  Not a L{Fault}: L{FaultyLink} accepts it besides those.
    """

    def __init__(self, dice: Dice, rate: float) -> None:
        """
        @param rate: how often there is no room.
        """
        self._dice, self._rate = dice, rate

    def __call__(self, now: float) -> bool:
        """
        @return: Whether there is no room.
        """
        return self._dice.random() < self._rate


class FaultyLink:
    """
    A link that sends through faults.  See L{ILink<twisted_ib.hca.fabric.base.link.ILink>}.

    @ivar link: the link that it wraps.
    @ivar faults: applied to each datagram, in order.
    @ivar refusal: decides whether C{send} refuses, or L{None}.
    """

    #: Each datagram has its own delay, so each is sent by itself.  Of IPv4 all then have identification 0,
    #: which the invariant CRC covers (IBTA vol. 1 annex A17), as ILink.burst promises.
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
        @param later: schedules a call after so many seconds, as C{reactor.callLater}.
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
        The consumer of arriving datagrams, on the wrapped link.
        """
        return self.link.user

    @user.setter
    def user(self, user: Any) -> None:
        """
        Set it on the wrapped link: C{__getattr__} forwards reads only.
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

    def _fate(self, datagram: bytes, now: float) -> Deliveries:
        found = [(0.0, datagram)]
        for fault in self.faults:
            found = [
                (delay + more, octets) for delay, each in found for more, octets in fault(each, now + delay)
            ]
        return found
