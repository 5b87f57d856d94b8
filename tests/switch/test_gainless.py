"""
What is learned of connections of blocking sockets: L{twisted_ib.switch.gainless}.
"""

from __future__ import annotations

import os
from collections import Counter
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.reactor.driven import LEARN_TURNS_ASLEEP
from twisted_ib.switch import gainless
from twisted_ib.switch.gainless import (
    ASLEEP_MESSAGES,
    ASLEEP_MESSAGES_SOON,
    ASLEEP_OCTETS,
    ASLEEP_SHARE,
    ASLEEP_SHARE_SOON,
    GAINLESS_IN_SUCCESSION,
    LEARN_QUEUE_PAIRS,
    SHORT_MESSAGES,
    Gainless,
)
from twisted_ib.switch.reason import Reason, decisions
from twisted_ib.switch.switch import Switch

#: Sleeps of so many messages that are fewer than half of them, and more than a quarter.
FEW = ASLEEP_MESSAGES // ASLEEP_SHARE_SOON - 1


class FakeDevice:
    """
    A device with what is looked at.
    """

    def __init__(self, **have: object) -> None:
        """
        With these.
        """
        vars(self).update(have)


class GainlessTests(SynchronousTestCase):
    """
    L{Gainless}.
    """

    def setUp(self) -> None:
        """
        There are two CPUs, and nothing is known.
        """
        self.patch(os, "sched_getaffinity", lambda _: {0, 1})
        self.known = Gainless()

    def end(
        self,
        messages: int = SHORT_MESSAGES,
        port: int = 80,
        now: float = 0.0,
        times: int = 1,
        sleeps: int = 0,
    ) -> None:
        """
        Connections to a port end, which have sent one message and received the others.
        """
        for _ in range(times):
            self.known.ended("127.0.0.1", port, 1, messages - 1, sleeps, now)

    def holds(self, now: float = 0.0, port: int = 80, seconds: float = 10.0) -> str | None:
        """
        @return: The kind of reason why the port is left to TCP.
        """
        found = self.known.holds("127.0.0.1", port, now, seconds)
        return None if found is None else found.kind

    def test_succession(self) -> None:
        """
        So many short-lived ones in succession leave a port to TCP, not fewer; one of more messages lets all
        be forgotten.
        """
        self.end(times=GAINLESS_IN_SUCCESSION - 1)
        self.assertIsNone(self.holds())
        self.end(SHORT_MESSAGES + 1)
        self.end(times=GAINLESS_IN_SUCCESSION - 1)
        self.assertIsNone(self.holds())
        self.end()
        self.assertEqual(self.holds(), "short_lived")
        self.assertIsNone(self.holds(port=81))
        self.assertIsNone(self.known.holds("127.0.0.2", 80, 0.0, 10.0))

    def test_asleep(self) -> None:
        """
        So do long ones of which more than a quarter of what was received has ended a sleep, in turn with
        short-lived ones, too.
        """
        self.end(101, sleeps=26, times=GAINLESS_IN_SUCCESSION - 1)
        self.assertIsNone(self.holds())
        self.end(101, sleeps=25)
        self.end(times=GAINLESS_IN_SUCCESSION - 1)
        self.assertIsNone(self.holds())
        self.end(101, sleeps=26)
        self.assertEqual(self.holds(), "asleep")

    def test_standing(self) -> None:
        """
        One that stands and sleeps is as good as so many that have ended; the next that gains lets it be
        forgotten.
        """
        self.known.sleeps("127.0.0.1", 80, 1.0)
        self.assertEqual((self.holds(10.9), self.holds(11.0)), ("asleep", None))
        self.end(SHORT_MESSAGES + 1)
        self.assertIsNone(self.holds(2.0))

    def test_again(self) -> None:
        """
        After a time SDP is tried again: one that gains nothing again suffices for another such time, and one
        that does ends it.
        """
        self.end(times=GAINLESS_IN_SUCCESSION)
        self.assertEqual(self.holds(9.9), "short_lived")
        self.assertIsNone(self.holds(10.0))
        self.end(now=11.0)
        self.assertEqual(self.holds(20.9), "short_lived")
        self.assertIsNone(self.holds(21.0))
        self.end(SHORT_MESSAGES + 1, now=22.0)
        self.end(now=23.0)
        self.assertIsNone(self.holds(23.0))

    def test_never(self) -> None:
        """
        No time is never, on one CPU too, nor is a clock that goes back a reason.
        """
        self.end(now=5.0, times=GAINLESS_IN_SUCCESSION)
        self.assertIsNone(self.holds(5.0, seconds=0.0))
        self.assertIsNone(self.holds(4.0))
        self.patch(os, "sched_getaffinity", lambda _: {1})
        self.known = Gainless()
        self.assertIsNone(self.holds(seconds=0.0))

    def test_oneCPU(self) -> None:
        """
        On one CPU all ports are left to TCP, whatever was learned.
        """
        self.patch(os, "sched_getaffinity", lambda _: {1})
        self.known = Gainless()
        self.end(SHORT_MESSAGES + 1)
        self.assertEqual((self.holds(), self.holds(port=81)), ("one_cpu", "one_cpu"))

    def test_bound(self) -> None:
        """
        Beyond the bound the port is forgotten whose last end is the oldest.
        """
        self.patch(limits, "GAINLESS_PORTS", 3)
        for port in (1, 2, 3, 1):
            self.end(port=port, times=GAINLESS_IN_SUCCESSION)
        self.end(port=4)
        held = [self.holds(port=port) is not None for port in (1, 2, 3, 4)]
        self.assertEqual(held, [True, False, True, False])

    def test_boundOfDecisions(self) -> None:
        """
        Likewise the decision that is the oldest; one that is made again takes the place of none.
        """
        self.patch(limits, "GAINLESS_PORTS", 3)
        self.known._isOneCPU = True

        def known(*ports: int) -> list[int]:
            for port in ports:
                self.known.decided(("127.0.0.1", port), Reason("default", "both"), 0.0, Counter(), "", "")
            return sorted(port for _, port in decisions)

        self.assertEqual(known(1, 2, 3, 1, 3), [1, 2, 3])
        self.assertEqual(known(4), [1, 3, 4])

    def test_forgotten(self) -> None:
        """
        A decision by what is known no more is not remembered: it would hold for ever.
        """
        self.known.decided(("127.0.0.1", 1), Reason("default", "both"), 1.0, Counter(), "", "")
        self.assertEqual(decisions, {})
        self.patch(limits, "GAINLESS_PORTS", 1)
        for port in (1, 2, 2):
            self.end(port=port, times=GAINLESS_IN_SUCCESSION)
            self.known.decided(("127.0.0.1", port), Reason("default", "both"), 1.0, Counter(), "", "")
            self.assertEqual([*decisions], [("127.0.0.1", port)])


class FakeEnd:
    """
    A connection, of which only what is looked at is there.
    """

    def __init__(self, number: int) -> None:
        """
        It has received nothing.

        @param number: Of its queue pair.
        """
        self.queuePair = FakeDevice(number=number)
        self.received = self.sent = 0
        self.told = 0

    def traffic(self) -> Any:
        """
        @return: Its messages among them.
        """
        return self.sent, self.received, 0, 0

    def sleeps(self) -> None:
        """
        It is told.
        """
        self.told += 1


class LookTests(SynchronousTestCase):
    """
    L{Gainless.look}: connections that stand.

    @ivar sleeps: Those of the device; C{received}, its messages, and C{octets}.
    """

    def setUp(self) -> None:
        """
        A device with two connections and what else uses it.
        """
        self.patch(gainless, "RedirectedClient", FakeEnd)
        self.sleeps = self.received = self.sent = self.octets = 0
        self.ends = [FakeEnd(1), FakeEnd(2)]
        traffic = SimpleNamespace(
            with_=lambda _: SimpleNamespace(messagesReceived=self.received, messagesSent=self.sent)
        )
        self.fabric = SimpleNamespace(sleeps=0, rung=0, octets=lambda: (self.octets, 0))
        device = FakeDevice(traffic=traffic, queuePairs={}, fabric=self.fabric)
        self.channel: Any = SimpleNamespace(device=device, users=[object(), *self.ends])
        self.known = Gainless()
        self.look()

    def look(self, messages: int = 0, sleeps: int = 0, octets: int = 0, end: int = 0) -> list[Any]:
        """
        Messages come to one of the connections, and sleeps are ended.

        @return: What is found.
        """
        self.received += messages
        self.ends[end].received += messages
        self.fabric.sleeps += sleeps
        self.octets += octets
        return self.known.look([self.channel])

    def test_share(self) -> None:
        """
        More than a quarter of the messages since the last look have ended sleeps.
        """
        most = ASLEEP_MESSAGES // ASLEEP_SHARE
        self.assertEqual(self.look(ASLEEP_MESSAGES, most), [])
        self.assertEqual(self.look(ASLEEP_MESSAGES, most + 1), self.ends[:1])
        self.assertEqual(self.look(ASLEEP_MESSAGES, most), [])

    def test_sent(self) -> None:
        """
        Of connections that send, and receive next to nothing, the sleeps that count are those of their peers.
        """

        def look(sent: int, woken: int, received: int = 0) -> list[Any]:
            self.sent += sent
            self.ends[0].sent += sent
            self.fabric.rung += woken
            return self.look(received, 0)

        most = ASLEEP_MESSAGES // ASLEEP_SHARE
        self.assertEqual(look(ASLEEP_MESSAGES, most), [])
        self.assertEqual(look(ASLEEP_MESSAGES, most + 1, most - 1), self.ends[:1])
        # Answered ones do not count, whoever sleeps.
        self.assertEqual(look(ASLEEP_MESSAGES, ASLEEP_MESSAGES, most), [])
        self.assertEqual(look(ASLEEP_MESSAGES - 1, FEW), [])
        self.assertEqual(look(1, 0), self.ends[:1])

    def test_own(self) -> None:
        """
        A connection that has received enough before, and nothing since, is none of them.
        """
        self.assertEqual(self.look(ASLEEP_MESSAGES, end=1), [])
        self.assertEqual(self.look(ASLEEP_MESSAGES, ASLEEP_MESSAGES), self.ends[:1])

    def test_turns(self) -> None:
        """
        Connections that take turns, of which none has enough in one look: what each has received adds up for
        as long as the messages end sleeps.
        """
        half = ASLEEP_MESSAGES // 2
        few = half // ASLEEP_SHARE_SOON - 1

        def turn(*sleeps: int) -> list[Any]:
            found = []
            for each in sleeps:
                self.look(half, each, end=0)
                found += self.look(half, each, end=1)
            return found

        self.assertEqual(turn(few), [])
        self.assertEqual(turn(few), self.ends)
        # What they had before a look at which the messages ended none does not count.
        self.assertEqual(turn(few, 0, few), [])
        self.assertEqual(turn(few), self.ends)

    def test_number(self) -> None:
        """
        Another connection that has the number of one that has gone, which had received more, begins anew.
        """
        self.look(10 * ASLEEP_MESSAGES)
        self.ends[0].received = 0
        self.assertEqual(self.look(ASLEEP_MESSAGES, ASLEEP_MESSAGES), [])
        self.assertEqual(self.look(ASLEEP_MESSAGES, ASLEEP_MESSAGES), self.ends[:1])

    def test_new(self) -> None:
        """
        One that has come since is, if it has received enough.
        """
        for number, received in (3, ASLEEP_MESSAGES), (4, ASLEEP_MESSAGES - 1):
            self.ends.append(FakeEnd(number))
            self.channel.users.append(self.ends[-1])
            self.received += received
            self.ends[-1].received = received
        self.assertEqual(self.look(sleeps=2 * FEW), self.ends[2:3])

    def test_enough(self) -> None:
        """
        Too few are kept for the next look.
        """
        self.assertEqual(self.look(ASLEEP_MESSAGES - 1, FEW), [])
        self.assertEqual(self.look(1), self.ends[:1])
        self.assertEqual(self.look(ASLEEP_MESSAGES), [])

    def test_soon(self) -> None:
        """
        Fewer suffice if half of them have ended sleeps, of the connection as of the device.
        """
        half = ASLEEP_MESSAGES_SOON // ASLEEP_SHARE_SOON
        self.assertEqual(self.look(ASLEEP_MESSAGES_SOON - 1, half), [])
        self.assertEqual(self.look(1), self.ends[:1])
        self.assertEqual(self.look(ASLEEP_MESSAGES_SOON, half - 1), [])
        self.assertEqual(self.look(0, 1), self.ends[:1])
        self.look(ASLEEP_MESSAGES_SOON - 1, ASLEEP_MESSAGES_SOON - 1, end=1)
        self.assertEqual(self.look(1, 1), [])
        self.assertEqual(self.look(ASLEEP_MESSAGES_SOON, ASLEEP_MESSAGES_SOON), self.ends[:1])

    def test_firstLook(self) -> None:
        """
        A program that sleeps for each message moves at its first look, some of whose turns its connect takes.
        """
        known = LEARN_TURNS_ASLEEP - 4
        self.assertEqual(self.look(known, known), self.ends[:1])

    def test_begins(self) -> None:
        """
        The messages of a device's first connection count from its beginning, not what was before.
        """
        self.fabric.sleeps += ASLEEP_MESSAGES
        self.known = Gainless()
        self.known.begins(self.channel)
        self.assertEqual(self.look(ASLEEP_MESSAGES_SOON), [])
        self.known.begins(self.channel)
        self.assertEqual(self.look(0, ASLEEP_MESSAGES_SOON), self.ends[:1])
        self.known = Gainless()
        self.fabric.octets = lambda: None
        self.known.begins(self.channel)
        self.assertEqual(len(self.known._seen), 0)

    def test_long(self) -> None:
        """
        Long messages gain, asleep or not; where octets are not counted nothing is known.
        """
        most = ASLEEP_OCTETS * ASLEEP_MESSAGES
        self.assertEqual(self.look(ASLEEP_MESSAGES, ASLEEP_MESSAGES, most + 1), [])
        self.assertEqual(self.look(ASLEEP_MESSAGES, ASLEEP_MESSAGES, most), self.ends[:1])
        self.fabric.octets = lambda: None
        self.assertEqual(self.look(ASLEEP_MESSAGES, ASLEEP_MESSAGES), [])

    def test_many(self) -> None:
        """
        Among very many connections none is looked for.
        """
        self.channel.device.queuePairs = dict.fromkeys(range(LEARN_QUEUE_PAIRS + 1))
        self.assertEqual(self.look(ASLEEP_MESSAGES, ASLEEP_MESSAGES), [])

    def test_gone(self) -> None:
        """
        Of a device that is closed nothing is kept.
        """
        self.known.look([])
        self.assertEqual(len(self.known._seen), 0)

    def test_rule(self) -> None:
        """
        C{timeout short 0} switches it off.
        """
        timeouts = SimpleNamespace(short=0.0)
        switch: Any = SimpleNamespace(
            configuration=SimpleNamespace(policy=SimpleNamespace(timeouts=timeouts)),
            openCandidates=SimpleNamespace(gainless=self.known),
        )
        for seconds in (0.0, 10.0):
            timeouts.short = seconds
            self.received += ASLEEP_MESSAGES
            self.ends[0].received += ASLEEP_MESSAGES
            self.fabric.sleeps += ASLEEP_MESSAGES
            Switch.learn(switch, [self.channel])
            self.assertEqual([each.told for each in self.ends], [1 if seconds else 0, 0])
