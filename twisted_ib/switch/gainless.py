"""
Where connections of blocking sockets gain nothing from SDP.

A message gains if polling finds it.  One that ends a sleep costs more than TCP's: the kernel does with a few
instructions what Python does here with a thousand.  A connection of one request does not win back what it
costs to connect.  Nor does TLS gain, whose records OpenSSL has in memory here.  All is learned from a
process's own connections, those that have ended and those that stand; its next ones to the same port go over
TCP for a time.
"""

from __future__ import annotations

import os
from math import inf
from operator import sub
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from twisted_ib import limits
from twisted_ib.configuration.words import TCP
from twisted_ib.switch.reason import GIVEN, ONE_CPU, TLS, Decision, Fallback, decisions
from twisted_ib.switch.serverclient import RedirectedClient

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from twisted_ib.hca.device.device import Device
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.switch.reason import Reason

    _Learned = tuple[int, Fallback, float]

_Known = TypeVar("_Known")
#: Messages of a connection that is short-lived, both directions and the end counted, at most: that of one
#: request has three or a few more.  To connect over SDP takes some fifty system calls more than over TCP, and
#: in a thread that blocks no message saves more than one or two.
SHORT_MESSAGES: Final = 16
#: So many connections in succession that gained nothing leave a port to TCP.
GAINLESS_IN_SUCCESSION: Final = 4
_SHORT_LIVED: Final = Fallback("short_lived", "blocking and short-lived: SDP gains nothing here")
_ASLEEP: Final = Fallback("asleep", "blocking and mostly asleep: SDP gains nothing here")
#: Queue pairs of a device, at most, that are looked at for that: each look asks all of them.
LEARN_QUEUE_PAIRS: Final = 256
#: Messages that a device, and one of its connections, has received or sent, at least, before that is judged;
#: and before it is if half of them have ended a sleep.  A program that always sleeps is slower than over TCP
#: until then; one that polls has six in vain until it sleeps.  Fewer than the turns of the first look (of
#: L{twisted_ib.reactor.driven}), some of which a connect takes: it would be the second one that sees enough.
ASLEEP_MESSAGES: Final = 128
ASLEEP_MESSAGES_SOON: Final = 24
ASLEEP_SHARE_SOON: Final = 2
#: A connection gains nothing if more than one message in so many has ended a sleep: as measured between two
#: processes, what such a one costs beyond TCP's is several times what one saves that polling finds.
ASLEEP_SHARE: Final = 4
#: Octets of a message, in the mean and both directions counted, above which SDP gains although it sleeps: it
#: copies them less often.
ASLEEP_OCTETS: Final = 16384


class _Seen(NamedTuple):
    # The counts of a device; its wakes are of peers.
    sleeps: int
    wakes: int
    sent: int
    received: int
    octets: int


_Counted: TypeAlias = "tuple[_Seen, dict[int, tuple[int, int]]]"


class Gainless:
    """
    Where connections of blocking sockets gain nothing from SDP, by those that have ended, and those that
    stand.

    @cvar reasons: Those of what is known here.
    """

    reasons: Final = (_SHORT_LIVED, _ASLEEP, TLS, GIVEN, ONE_CPU)

    def __init__(self) -> None:
        # A message costs several times TCP's.
        self._isOneCPU = len(os.sched_getaffinity(0)) == 1
        #: By port: how many in succession, why the last one did not gain, and when it ended.
        self._ports: dict[tuple[str, int], _Learned] = {}
        decisions.clear()
        #: By device: what it had at the last look that saw enough, and the messages that its connections had
        #: sent and received, by their queue pairs.
        self._seen: dict[Device, _Counted] = {}

    def ended(self, host: str, port: int, sent: int, received: int, sleeps: int, now: float) -> None:
        """
        Learn from a connection that has ended.

        @param sent: Its messages; C{received} likewise.
        @param sleeps: How many of these have ended a sleep.
        """
        decisions.pop((host, port), None)
        count, _, _ = self._ports.pop((host, port), (0, _SHORT_LIVED, now))
        if sent + received <= SHORT_MESSAGES:
            self._add(host, port, count + 1, _SHORT_LIVED, now)
        elif ASLEEP_SHARE * sleeps > received:
            self._add(host, port, count + 1, _ASLEEP, now)

    def sleeps(self, host: str, port: int, now: float) -> Fallback:
        """
        Learn from a connection that stands, and whose messages mostly end sleeps: so many of them are as good
        as several connections.
        """
        self._add(host, port, GAINLESS_IN_SUCCESSION, _ASLEEP, now)
        return _ASLEEP

    def leaves(self, why: Fallback, host: str, port: int, now: float) -> Fallback:
        """
        Learn from a connection on which TLS begins, or that another process is given: one suffices.
        """
        self._add(host, port, GAINLESS_IN_SUCCESSION, why, now)
        return why

    def _add(self, host: str, port: int, count: int, why: Fallback, now: float) -> None:
        forgotten = _enter(self._ports, (host, port), (min(count, GAINLESS_IN_SUCCESSION), why, now))
        for each in (host, port), forgotten:
            decisions.pop(each, None)

    def holds(self, host: str, port: int, now: float, seconds: float) -> Fallback | None:
        """
        Return why SDP is not tried for a connection of a blocking socket.

        @param seconds: For how long after the end of the last one; 0 for never.
        """
        if not seconds:
            return None
        if self._isOneCPU:
            return ONE_CPU
        count, why, since = self._ports.get((host, port), (0, None, now))
        # Afterwards one more that gains nothing suffices.
        return why if count == GAINLESS_IN_SUCCESSION and 0 <= now - since < seconds else None

    def decided(
        self, address: tuple[str, int], why: Reason, seconds: float, counters: Counter[str], *names: str
    ) -> None:
        """
        Remember a decision that was made by what is known here.

        @param seconds: For how long it holds, as of L{holds}.
        @param names: Those of the counters that it has increased: of the rule and of the fallback.
        """
        learned = self._ports.get(address)
        # It may have been forgotten since, and would then hold for ever.
        if learned is not None or self._isOneCPU:
            since, until = (-inf, inf) if learned is None else (learned[2], learned[2] + seconds)
            kind = "" if why.fallback is None else why.fallback.kind
            made = Decision(why, since, until, counters, names[0], names[1], (TCP, kind, ""))
            _enter(decisions, address, made)

    def changed(self) -> None:
        """
        Other rules hold, or none are to be asked any more.
        """
        decisions.clear()

    def begins(self, channel: DeviceChannel) -> None:
        """
        A connection begins: its messages count from now on, if it is the first of its device.
        """
        device = channel.device
        if device not in self._seen and (counted := _counted(device, ())) is not None:
            self._seen[device] = counted

    def look(self, channels: Iterable[DeviceChannel]) -> list[RedirectedClient]:
        """
        Return the connections that stand and gain nothing: the messages of their device have mostly ended
        sleeps since the last look that saw enough of them, are short, and so many are their own.  Where
        nearly all were sent, as in a log, the sleeps are those of the peers, which it has woken.
        """
        seen, self._seen = self._seen, {}
        found: list[RedirectedClient] = []
        for channel in channels:
            device = channel.device
            ends = [each for each in channel.users if isinstance(each, RedirectedClient)]
            counted = _counted(device, ends)
            if counted is None:
                continue
            now, moved = counted
            before, own = seen.get(device, counted)
            since = _Seen(*map(sub, now, before))
            isSending = ASLEEP_SHARE * since.received < since.sent
            sleeps, count = (since.wakes, since.sent) if isSending else (since.sleeps, since.received)
            isClear = ASLEEP_SHARE_SOON * sleeps >= count
            least = ASLEEP_MESSAGES_SOON if isClear else ASLEEP_MESSAGES
            if max(since.sent, since.received) < least:
                self._seen[device] = before, own
                continue
            self._seen[device] = now, moved
            if ASLEEP_SHARE * sleeps > count and since.octets <= ASLEEP_OCTETS * count:
                which = 0 if isSending else 1
                for each in ends:
                    number = each.queuePair.number
                    had = own.get(number, (0, 0))
                    # A number may have gone to another one.
                    if moved[number][which] - min(had[which], moved[number][which]) >= least:
                        found.append(each)
                    else:
                        # They add up for as long as the device sleeps: of many connections in turn each has
                        # few in one look.
                        moved[number] = min(had[0], moved[number][0]), min(had[1], moved[number][1])
        return found


def _counted(device: Device, ends: Iterable[RedirectedClient]) -> _Counted | None:
    # The device's counts, and the messages of these connections; None where they say nothing.
    fabric, octets = device.fabric, device.fabric.octets()
    # A fabric that does not count them counts each sleep, whatever ends it.  And among very many
    # connections each sleep ends with the messages of several.
    if octets is None or len(device.queuePairs) > LEARN_QUEUE_PAIRS:
        return None
    traffic = device.traffic.with_(device.queuePairs.values())
    now = _Seen(fabric.sleeps, fabric.rung, traffic.messagesSent, traffic.messagesReceived, sum(octets))
    return now, {each.queuePair.number: each.traffic()[:2] for each in ends}


def _enter(known: dict[tuple[str, int], _Known], address: tuple[str, int], value: _Known) -> tuple[str, int]:
    # As the newest, which has the place of its own last one, or of the oldest: that is returned.
    known.pop(address, None)
    place = address
    if len(known) >= limits.GAINLESS_PORTS:
        place = next(iter(known))
        del known[place]
    known[address] = value
    return place
