"""
Tests for L{twisted_ib.internet.channel} on reactors that are turned by hand, and on
real ones.
"""

from __future__ import annotations

import gc
import sys
from asyncio import SelectorEventLoop
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import ref

from twisted.internet import error
from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.pollreactor import PollReactor
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone
from twisted.internet.selectreactor import SelectReactor
from twisted.logger import formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.addressed import onWire
from tests.hca.hcas import HCATestCase, settle, wakes
from tests.sdp.pair import End, HandReactor, Keeper, Pair, PollingReactor
from tests.support.descriptors import closeWakers, descriptors, descriptorsBefore
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.errors import DeviceClosedError, UnknownDeviceError
from twisted_ib.hca.fabric.roce.packet import PacketFabric
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.internet import channel as internetChannel
from twisted_ib.internet.channel import DeviceChannel, channelFor
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor.ibreactor import IBReactor
from twisted_ib.sdp.port import connectSDP, listenSDP


class Owner:
    """
    Gathers, as a connection does.

    @ivar ends: How many batches it saw the end of.
    @ivar again: How many more it wants.
    @ivar hook: Called at each end.
    """

    def __init__(self, device: Any, again: int = 0, hook: Any = None) -> None:
        self.device, self.again, self.hook = device, again, hook
        self.ends = 0

    def endOfBatch(self) -> None:
        """
        Count, and perhaps go on.
        """
        self.ends += 1
        if self.hook is not None:
            self.hook()
        if self.again:
            self.again -= 1
            self.device.markDirty(self)


class ChannelTestCase(SynchronousTestCase):
    """
    A channel without users.
    """

    def end(self, polled: bool) -> End:
        """
        @return: one, closed after the test.
        """
        end = End(polled, 3)
        end.channel.release(end.keeper)
        end.turn()
        self.addCleanup(end.channel.close)
        end.reactor.changes = 0
        return end

    def registered(self, end: End) -> bool:
        """
        @return: whether the reactor looks at the channel in either way.
        """
        reactor: Any = end.reactor
        return end.channel in reactor.readers or end.channel in getattr(reactor, "channels", ())


class UserTests(ChannelTestCase):
    """
    Users.
    """

    def test_registeredWhileUsed(self) -> None:
        """
        A channel is in the reactor from its first user to its last, once.
        """
        for polled in (False, True):
            end = self.end(polled)
            channel = end.channel
            self.assertFalse(self.registered(end))
            users = [Keeper() for _ in range(3)]
            for user in users:
                channel.acquire(user)
                channel.acquire(user)
                self.assertTrue(self.registered(end))
            self.assertEqual((end.reactor.changes, list(channel.users)), (1, users))
            for user in users:
                end.turn()
                self.assertTrue(self.registered(end))
                channel.release(user)
                channel.release(user)
            end.turn()
            self.assertFalse(self.registered(end))
            self.assertEqual((end.reactor.changes, channel.users), (2, {}))
            channel.release(users[0])
            channel.endOfBatch()
            self.assertEqual(end.reactor.changes, 2)

    def test_roomOfAttempts(self) -> None:
        """
        When all attempts have ended nothing of the room that they took is kept.
        """
        channel = self.end(True).channel
        before = sys.getsizeof(channel.attempts)
        attempts: list[Any] = [Keeper() for _ in range(1000)]
        for attempt in attempts:
            channel.attempt(attempt)
        for attempt in attempts:
            channel.attempted(attempt)
        self.assertEqual(sys.getsizeof(channel.attempts), before)

    def test_takenBackInTheSameTurn(self) -> None:
        """
        A user that goes while another comes does not make the channel leave.
        """
        for polled in (False, True):
            end = self.end(polled)
            channel = end.channel
            one, two = Keeper(), Keeper()

            def swap(channel: Any = channel, one: Any = one, two: Any = two) -> None:
                """
                One goes, the other comes.
                """
                channel.release(one)
                channel.acquire(two)

            channel.acquire(one)
            channel.device.markDirty(Owner(channel.device, 0, swap))
            end.turn(), end.turn()
            self.assertTrue(self.registered(end))
            self.assertEqual(end.reactor.changes, 1)

    def test_dueTurnIsAskedForAnew(self) -> None:
        """
        A turn that was due when the channel left is asked for anew when it comes
        back: what then happens outside of a turn has one.
        """
        end = self.end(False)
        channel, device = end.channel, end.device
        one, two = Keeper(), Keeper()
        channel.acquire(one)
        channel.device.markDirty(Owner(device))
        channel.release(one)
        channel.acquire(two)
        owner = Owner(device)
        device.markDirty(owner)
        self.assertEqual(owner.ends, 0)
        end.turn()
        self.assertEqual(owner.ends, 1)

    def test_dueBeforeTheFirstUser(self) -> None:
        """
        The same for events while the device had no user.
        """
        end = self.end(False)
        owner = Owner(end.device)
        end.device.markDirty(owner)
        end.channel.acquire(Keeper())
        end.turn()
        self.assertEqual(owner.ends, 1)

    def test_attendsFirst(self) -> None:
        """
        When a channel comes back, what happened to peers meanwhile is looked at
        first, once.
        """
        for polled in (False, True):
            end = self.end(polled)
            seen: list[bool] = []
            end.device.fabric.attend = lambda end=end, seen=seen: seen.append(self.registered(end))
            end.channel.acquire(Keeper())
            end.channel.acquire(Keeper())
            self.assertEqual(seen, [False])

    def test_userOfTheLastTurn(self) -> None:
        """
        A user that comes while the last turn of another is served keeps the
        channel where it is.
        """
        end = self.end(False)
        one, two = Keeper(), Keeper()
        end.channel.acquire(one)
        end.turn()
        end.device.markDirty(Owner(end.device, 0, partial(end.channel.acquire, two)))
        end.channel.release(one)
        self.assertTrue(self.registered(end))
        self.assertEqual(list(end.channel.users), [two])

    def test_noTurnForTheSameTurn(self) -> None:
        """
        Work that a turn makes and does itself asks for no other turn.
        """
        end = self.end(False)
        end.channel.acquire(Keeper())
        end.turn()
        end.device.markDirty(Owner(end.device, 3))
        self.assertEqual((end.turn(), end.turn()), (1, 0))

    def test_staysForDisconn(self) -> None:
        """
        A channel without users stays until a DisConn that waits for credits has
        left.
        """
        for polled in (False, True):
            pair = Pair(polled)
            self.addCleanup(pair.close)
            raw, stream = pair.raw()
            pair.b.channel.release(pair.b.keeper)
            stream.machine.limit = stream.machine.sequence + 1
            stream.connectionLost(Failure(error.ConnectionLost()))
            pair.settle()
            self.assertEqual((raw.kinds(), self.registered(pair.b)), ([], True))
            raw.data(buffers=100)
            pair.settle()
            self.assertEqual(raw.kinds(), ["DISCONN"])
            if not polled:
                self.assertFalse(self.registered(pair.b))

    def test_staysForLivingPeers(self) -> None:
        """
        On a reactor that polls a channel without users stays while there is a path
        to a living peer; elsewhere, where a reader would show, it leaves.
        """
        for polled in (False, True):
            pair = Pair(polled)
            self.addCleanup(pair.close)
            one, _ = pair.connected()
            one.loseConnection()
            pair.settle()
            pair.a.channel.release(pair.a.keeper)
            pair.settle()
            self.assertEqual(self.registered(pair.a), polled)
            self.assertEqual(pair.a.device.inUse()["qp"], 0)
            pair.b.channel.close()
            pair.settle()
            if polled:
                pair.a.channel.doRead()
            self.assertFalse(self.registered(pair.a))
            self.assertEqual(pair.a.reactor.getDelayedCalls(), [])

    def test_workOutsideOfATurn(self) -> None:
        """
        Without polling, work outside of a turn asks for one, once; there is no
        turn without work.
        """
        end = self.end(False)
        end.channel.acquire(Keeper())
        end.turn()
        self.assertEqual(end.turn(), 0)
        signals: list[int] = []
        signal = end.device.fabric.signal

        def counted() -> None:
            signals.append(1)
            signal()

        self.patch(end.device.fabric, "signal", counted)
        owners = [Owner(end.device) for _ in range(3)]
        for owner in owners:
            end.device.markDirty(owner)
        self.assertEqual(len(signals), 1)
        self.assertEqual((end.turn(), [owner.ends for owner in owners]), (1, [1, 1, 1]))
        self.assertEqual(end.turn(), 0)

    def test_timerOutsideOfATurn(self) -> None:
        """
        Without polling, a timer that is started outside of a turn and is the next due is waited for.
        """
        end = self.end(False)
        end.channel.acquire(Keeper())
        end.turn()
        self.assertEqual(end.reactor.getDelayedCalls(), [])
        over: list[int] = []
        for seconds in (2.0, 1.0, 3.0):
            end.device.timers.start(seconds, partial(over.append, int(seconds)))
        for passed in (1, 2, 3):
            end.turn()
            end.reactor.advance(1.0)
            self.assertEqual(over, list(range(1, passed + 1)))

    def wokenBy(self, reactor: Any) -> tuple[Owner, list[Any]]:
        """
        @return: What is to have its batch on a reactor that does not poll, and the wake-ups by descriptor.
        """
        signals: list[Any] = []
        channel = channelFor(reactor, "lo0")
        self.addCleanup(channel.close)
        channel.acquire(Keeper())
        channel.turn()
        self.patch(channel.device.fabric, "signal", partial(signals.append, None))
        return Owner(channel.device), signals

    def test_workOfThreads(self) -> None:
        """
        Work that the result of a thread brings is done in the turn that takes the result, without a wake-up
        and a further turn.
        """
        reactor = EPollReactor()
        self.addCleanup(reactor.disconnectAll)
        owner, signals = self.wokenBy(reactor)
        reactor.callFromThread(owner.device.markDirty, owner)
        reactor.runUntilCurrent()
        self.assertEqual((owner.ends, signals, reactor.getDelayedCalls()), (1, [], []))
        owner.device.markDirty(owner)
        self.assertEqual((len(signals), reactor.getDelayedCalls()), (1, []))

    def test_workOnAsyncio(self) -> None:
        """
        On an event loop of asyncio work outside of a turn is done in the loop's next one, without a wake-up
        by descriptor and without a delayed call; not any more if the channel has been closed until then.
        """
        events = SelectorEventLoop()
        self.addCleanup(events.close)
        for isClosed in (False, True):
            reactor = AsyncioSelectorReactor(events)
            owner, signals = self.wokenBy(reactor)
            owner.device.markDirty(owner)
            self.assertEqual((owner.ends, signals, reactor.getDelayedCalls()), (0, [], []))
            if isClosed:
                [channel] = channelsOf(reactor)
                channel.close()
            events.call_soon(events.stop)
            events.run_forever()
            self.assertEqual((owner.ends, signals), (1, []))
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_nobodyUses(self) -> None:
        """
        Events while the device has no user ask for no turn.
        """
        end = self.end(False)
        end.device.markDirty(Owner(end.device))
        end.channel.schedule()
        self.assertEqual((end.turn(), end.reactor.getDelayedCalls()), (0, []))

    def test_serveAtTheEnd(self) -> None:
        """
        Gathered data still leaves after the last user.
        """
        for polled in (False, True):
            end = self.end(polled)
            user, owner = Keeper(), Owner(end.device)
            end.channel.acquire(user)
            end.device.markDirty(owner)
            end.channel.release(user)
            end.turn()
            self.assertEqual(owner.ends, 1)
            self.assertFalse(self.registered(end))

    def test_serveAtTheEndThoughDue(self) -> None:
        """
        So does what follows from it, though a call of the reactor is due; and what is more than
        fits in one turn keeps the channel.
        """
        for again, stays in ((3, False), (2 * internetChannel.BATCHES_PER_TURN + 3, True)):
            end = self.end(False)
            end.reactor.timeout = lambda: 0  # type: ignore[attr-defined]
            user, owner = Keeper(), Owner(end.device, again)
            end.channel.acquire(user)
            end.device.markDirty(owner)
            end.channel.release(user)
            self.assertEqual(self.registered(end), stays)
            end.turn()
            self.assertEqual((owner.ends, self.registered(end)), (again + 1, False))

    def test_staysWhileUnsaid(self) -> None:
        """
        A channel without users stays while connection management waits for
        room, with the device's deadline, and leaves afterwards.
        """
        for polled in (False, True):
            end = self.end(polled)
            unsent = [True]
            self.patch(end.device.fabric, "unsent", lambda unsent=unsent: unsent[0])
            ends: list[bool] = []
            end.device.timers.start(1.0, lambda ends=ends: ends.append(True))
            user = Keeper()
            end.channel.acquire(user)
            end.channel.release(user)
            end.turn()
            self.assertTrue(self.registered(end))
            end.reactor.advance(1.0)
            self.assertTrue(ends)
            unsent[0] = False
            end.device.markDirty(end.channel if polled else Owner(end.device))
            end.turn()
            self.assertFalse(self.registered(end))

    def test_resetWithFullMedium(self) -> None:
        """
        A reset that finds the medium full when its user, the last, goes, is said
        as soon as the peer has made room.
        """
        for polled in (False, True):
            pair = Pair(polled)
            self.addCleanup(pair.close)
            one, two = pair.connected()
            pair.a.channel.release(pair.a.keeper)
            for i in range(limits.RING_BULK // 65536 + 4):
                one.write(bytes([i]) * 65536)
            pair.a.turn()
            one.loseConnection()
            one.abortConnection()
            for _ in range(3):
                pair.a.turn()
            pair.settle()
            self.assertEqual(two.heard.calls, ["ConnectionLost"])
            pair.settle()
            self.assertFalse(pair.a.channel.users)
            # Where it polls, the channel looks after the path to the peer.
            self.assertEqual(self.registered(pair.a), polled)


class TurnTests(ChannelTestCase):
    """
    Turns without polling.
    """

    def test_bounded(self) -> None:
        """
        A turn serves at most L{internetChannel.BATCHES_PER_TURN} batches, and asks for
        another if there is more.
        """
        end = self.end(False)
        end.channel.acquire(Keeper())
        end.turn()
        owner = Owner(end.device, 10**9)
        end.device.markDirty(owner)
        self.assertEqual(end.turn(), 1)
        per = 2 * internetChannel.BATCHES_PER_TURN  # Each looks before and after the fabric.
        self.assertEqual(owner.ends, per)
        self.assertEqual((end.turn(), owner.ends), (1, 2 * per))
        owner.again = 0
        end.turn()
        self.assertEqual((end.turn(), owner.ends), (0, 2 * per + 1))

    def test_awaitsTheWoken(self) -> None:
        """
        After a batch that woke a peer its answer is awaited for longer, once; elsewhere for as long as an
        answer takes.
        """
        end, asked = self.end(False), []
        #: Of each batch whether it did something, and how many peers it woke.
        batches = [(True, 1), (True, 0), (False, 0)]
        fabric = SimpleNamespace(hot=(1,), rung=7, answerSeconds=1e-6, look=list, pending=None)

        def progress() -> bool:
            """
            The next batch.
            """
            done, woken = batches.pop(0)
            fabric.rung += woken
            return done

        def spin(pending: Any, most: float, answer: float) -> bool:
            """
            One of two.
            """
            asked.append((most, answer))
            return len(batches) > 1

        channel: Any = end.channel
        device, channel.polling = channel.device, SimpleNamespace(spin=spin)
        channel.device = SimpleNamespace(fabric=fabric, progress=progress)
        channel._serve(True)
        channel.device = device
        waking = internetChannel.WAKING_SECONDS
        self.assertEqual(asked, [(waking, waking), (1e-6, 1e-6)])

    def test_endTurn(self) -> None:
        """
        C{endTurn} ends it after the batch.
        """
        end = self.end(False)
        end.channel.acquire(Keeper())
        end.turn()
        owner = Owner(end.device, 10**9, end.channel.endTurn)
        end.device.markDirty(owner)
        end.turn()
        self.assertEqual(owner.ends, 2)
        owner.hook = None
        end.turn()
        self.assertEqual(owner.ends, 2 + 2 * internetChannel.BATCHES_PER_TURN)

    def test_dueOnAsyncio(self) -> None:
        """
        On an event loop of asyncio a turn ends after the batch if a call is ready, as the result of a thread:
        it does not wait for further batches, nor for polling between them.
        """
        events = SelectorEventLoop()
        self.addCleanup(events.close)
        reactor: Any = AsyncioSelectorReactor(events)
        channel = channelFor(reactor, "lo0")
        self.addCleanup(channel.close)
        channel.acquire(Keeper())
        events.call_soon(events.stop)
        events.run_forever()
        results: list[int] = []
        owner = Owner(channel.device, 10**9)

        def take() -> None:
            """
            Take the result of the thread.
            """
            results.append(owner.ends)
            owner.again = 0
            events.stop()

        def finish() -> None:
            """
            During the first batch the thread has finished.
            """
            owner.hook = None
            events.call_soon_threadsafe(take)

        owner.hook = finish
        owner.device.markDirty(owner)
        # Nothing else is ready meanwhile.
        events.call_later(HANG_SECONDS, events.stop)
        events.run_forever()
        self.assertEqual(results, [2])

    def test_raises(self) -> None:
        """
        An exception is logged, not raised to the reactor, which would take the
        device for broken and end all its users; the rest has its turn.
        """
        end, user = self.end(False), Keeper()
        end.channel.acquire(user)
        end.turn()
        owner = Owner(end.device)
        end.device.markDirty(Owner(end.device, 0, lambda: 1 // 0))
        end.device.markDirty(owner)
        end.turn()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        end.turn()
        self.assertEqual((owner.ends, list(end.channel.users)), (1, [user]))

    def test_sleeps(self) -> None:
        """
        After a turn the device is armed; it is not while it works.
        """
        end = self.end(False)
        end.channel.acquire(Keeper())
        states: list[bool] = []
        end.device.markDirty(Owner(end.device, 0, lambda: states.append(end.device.fabric.asleep)))
        end.turn()
        self.assertEqual((states, end.device.fabric.asleep), ([False], True))

    def test_patient(self) -> None:
        """
        Acknowledgements may wait within a turn, which polls for an answer, and not beyond it.
        """
        end = self.end(False)
        end.channel.acquire(Keeper())
        fabric, states = end.device.fabric, list[bool]()
        end.device.markDirty(Owner(end.device, 0, lambda: states.append(fabric.patient)))
        end.turn()
        self.assertEqual((states, fabric.patient), ([True], False))

    def test_polledDoesNotServe(self) -> None:
        """
        A reactor that polls serves the device itself, not in C{doRead}.
        """
        end = self.end(True)
        end.channel.acquire(Keeper())
        owner = Owner(end.device)
        end.device.markDirty(owner)
        end.channel.doRead()
        self.assertEqual(owner.ends, 0)
        end.turn()
        self.assertEqual(owner.ends, 1)


class BellTests(HCATestCase):
    """
    A reactor that polls, and whose epoll object does not have the bells.
    """

    fabric = SharedMemoryFabric

    def test_usedUp(self) -> None:
        """
        C{doRead} looks at the device, as it uses up the bell of a record that came after the reactor's look.
        """
        a, b, one, two = self.takers()
        channel = DeviceChannel(PollingReactor(), b)
        channel.acquire(Keeper())
        settle(a, b)
        self.assertTrue(b.arm())
        one.post(b"after")
        a.ringBells()
        self.assertTrue(wakes(b))
        channel.doRead()
        self.assertFalse(b.arm())
        settle(b)
        self.assertEqual(two.records, [b"after"])


class DeadlineTests(ChannelTestCase):
    """
    The one timed call.
    """

    def delays(self, end: End) -> list[float]:
        """
        @return: when the reactor's timed calls are due.
        """
        return [call.getTime() for call in end.reactor.getDelayedCalls()]

    def test_oneCall(self) -> None:
        """
        There is one timed call, for the first deadline; an earlier one moves it,
        a later one does not.
        """
        for polled in (False, True):
            end = self.end(polled)
            end.channel.acquire(Keeper())
            done: list[str] = []
            end.channel.schedule()
            self.assertEqual(self.delays(end), [])
            for seconds, name, due in ((9.0, "c", 9.0), (5.0, "b", 5.0), (7.0, "d", 5.0), (1.0, "a", 1.0)):
                end.device.timers.start(seconds, partial(done.append, name))
                for _ in range(3):
                    end.channel.schedule()
                self.assertEqual(self.delays(end), [due])
            end.reactor.advance(1)
            self.assertEqual((done, self.delays(end)), (["a"], [5.0]))
            end.reactor.advance(5)
            self.assertEqual((done, self.delays(end)), (["a", "b"], [7.0]))
            end.reactor.pump([1, 2])
            self.assertEqual((done, self.delays(end)), (["a", "b", "d", "c"], []))

    def test_inTheTurn(self) -> None:
        """
        A turn arms what became due in it.
        """
        end = self.end(False)
        end.channel.acquire(Keeper())
        end.turn()
        end.device.markDirty(Owner(end.device, 0, lambda: end.device.timers.start(3.0, lambda: None)))
        end.turn()
        self.assertEqual(self.delays(end), [3.0])

    def test_overdue(self) -> None:
        """
        A deadline that has passed is due now.
        """
        end = self.end(False)
        end.channel.acquire(Keeper())
        done: list[int] = []
        end.device.timers.start(1.0, lambda: done.append(1))
        end.reactor.advance(5)
        end.channel.schedule()
        self.assertEqual(self.delays(end), [5.0])
        end.reactor.advance(0)
        self.assertEqual(done, [1])

    def test_noneOutlivesTheLastUser(self) -> None:
        """
        No timed call is left when nobody uses the device; the deadline is armed
        again for the next user.
        """
        for polled in (False, True):
            end = self.end(polled)
            user = Keeper()
            end.channel.acquire(user)
            end.device.timers.start(3.0, lambda: None)
            end.channel.schedule()
            self.assertEqual(self.delays(end), [3.0])
            end.channel.release(user)
            self.assertEqual(self.delays(end), [])
            end.turn(), end.turn()
            end.channel.schedule()
            self.assertEqual(self.delays(end), [])
            end.channel.acquire(user)
            end.turn()
            self.assertEqual(self.delays(end), [3.0])

    def test_releasedInTick(self) -> None:
        """
        Nor if the last user goes in the tick.
        """
        for polled in (False, True):
            end = self.end(polled)
            user = Keeper()
            end.channel.acquire(user)
            end.device.timers.start(3.0, partial(end.channel.release, user))
            end.device.timers.start(4.0, lambda: None)
            end.channel.schedule()
            end.reactor.advance(3)
            end.turn(), end.turn()
            self.assertEqual(self.delays(end), [])
            self.assertFalse(self.registered(end))


class EndTests(ChannelTestCase):
    """
    The end of the reactor.
    """

    def test_allUsersAreTold(self) -> None:
        """
        All users hear that the reactor gives up, even if one raises.
        """
        for polled in (False, True):
            end = self.end(polled)
            users = [Keeper() for _ in range(3)]
            for user in users:
                end.channel.acquire(user)

            def fail(reason: Failure) -> None:
                raise ZeroDivisionError

            users[1].connectionLost = fail  # type: ignore[method-assign]
            reason = Failure(error.ConnectionLost())
            end.channel.connectionLost(reason)
            self.assertEqual([user.lost for user in users], [reason, None, reason])
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            end.channel.release(users[1])

    def test_close(self) -> None:
        """
        C{close} tells the users, leaves the reactor and closes the device.
        """
        for polled in (False, True):
            end = self.end(polled)
            user = Keeper()
            end.channel.acquire(user)
            end.device.timers.start(3.0, lambda: None)
            end.channel.schedule()
            end.channel.close()
            end.channel.close()
            self.assertIsNotNone(user.lost)
            self.assertEqual((end.device.closed, self.registered(end)), (True, False))

    def test_channelFor(self) -> None:
        """
        There is one channel per reactor and name, until the reactor has stopped,
        which closes the device; the next start opens a new one.
        """
        reactor = HandReactor()
        before = descriptorsBefore()
        channel = channelFor(reactor, "lo0")
        self.addCleanup(channel.close)
        self.assertIs(channelFor(reactor, "lo0"), channel)
        self.assertEqual(channelsOf(reactor), [channel])
        other = channelFor(HandReactor(), "lo0")
        self.addCleanup(other.close)
        self.assertIsNot(other, channel)
        other.close()
        ((phase, event, call, arguments),) = reactor.triggers
        self.assertEqual((phase, event), ("after", "shutdown"))
        user = Keeper()
        channel.acquire(user)
        call(*arguments)
        self.assertEqual((channel.device.closed, reactor.readers), (True, []))
        self.assertEqual(descriptors(), before)
        again = channelFor(reactor, "lo0")
        self.addCleanup(again.close)
        self.assertIsNot(again, channel)
        self.assertRaises(UnknownDeviceError, channelFor, reactor, "nothing0")
        self.assertEqual(channelsOf(reactor), [again])
        self.assertEqual(channelsOf(HandReactor()), [])

    def test_shutdownError(self) -> None:
        """
        A device that cannot be closed, as in a forked child, does not disturb
        the reactor's end.
        """
        reactor = HandReactor()
        channel = channelFor(reactor, "lo0")
        self.addCleanup(channel.device.fabric.close)

        def fail() -> None:
            raise DeviceClosedError("no")

        self.patch(channel.device, "close", fail)
        _, _, call, arguments = reactor.triggers[0]
        call(*arguments)
        self.assertEqual(channel.device.counters["close_failed"], 1)

    def test_reactorsGo(self) -> None:
        """
        The table of channels keeps no reactor, with a channel or without one.
        """
        reactor, other = HandReactor(), HandReactor()
        self.assertEqual(channelsOf(reactor), [])
        channelFor(other, "lo0").close()
        references = [ref(reactor), ref(other)]
        del reactor, other
        gc.collect()
        self.assertEqual([reference() for reference in references], [None, None])

    def test_warnings(self) -> None:
        """
        Warnings of the device are logged with its name.
        """
        end = self.end(False)
        events: list[Any] = []
        observer: Any = events.append
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        end.device.warn("look out")
        self.assertEqual([(e["name"], e["text"]) for e in events if "text" in e], [("test", "look out")])
        end.channel.count("thing")
        self.assertEqual(end.device.counters["thing"], 1)
        self.assertEqual(end.channel.logPrefix(), "test")


class AdviceTests(SynchronousTestCase):
    """
    The log says once how RoCE gets faster.
    """

    def advice(self, library: str) -> list[Any]:
        """
        @param library: What computes the CRC.
        @return: What two devices of RoCE and one of shared memory log.
        """
        onWire(self)
        self.patch(PacketFabric, "icrc", library)
        self.patch(DeviceChannel, "_isAdvised", False)
        events: list[Any] = []
        observer: Any = events.append
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        for name, address in (("shm0", ""), ("roce0", "127.0.0.1"), ("roce0", "127.0.0.2")):
            channel = channelFor(IBReactor(), name, address)
            self.addCleanup(channel.close)
        return [formatEvent(event) for event in events if "pip install" in formatEvent(event)]

    def test_slow(self) -> None:
        """
        One line, of the first device whose packets zlib checks.
        """
        (line,) = self.advice("zlib")
        self.assertTrue(line.startswith("roce0: zlib computes the CRC"), line)
        self.assertIn("twisted-ib[fast]", line)

    def test_fast(self) -> None:
        """
        None with isal.
        """
        self.assertEqual(self.advice("isal"), [])


class Once(Protocol):
    """
    Sends what it gets back and closes; a client begins.
    """

    factory: Any

    def connectionMade(self) -> None:
        assert self.transport is not None
        if isinstance(self.factory, ClientFactory):
            self.transport.write(b"question")

    def dataReceived(self, data: bytes) -> None:
        """
        Answer or end.
        """
        assert self.transport is not None
        self.factory.got.append(data)
        if not isinstance(self.factory, ClientFactory):
            self.transport.write(b"answer")
        else:
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.factory.lost()


class RealReactorTests(SynchronousTestCase):
    """
    Real reactors.
    """

    def exchange(self, reactor: Any) -> Any:
        """
        Listen, connect, exchange a message each way, close everything.

        @return: the channel.
        """
        server: Any = Factory.forProtocol(Once)
        client: Any = ClientFactory()
        client.protocol = Once
        left = [2]
        seen: list[Any] = []

        def lost() -> None:
            """
            After both ends have closed, close the port.
            """
            left[0] -= 1
            if not left[0]:
                port.stopListening().addCallback(lambda _: reactor.callLater(0.01, done))

        def done() -> None:
            """
            Look at what is left, and stop.
            """
            seen.append((list(channel.users), channel in reactor.getReaders(), channel._timer))
            seen.append(len(reactor.getDelayedCalls()))
            reactor.stop()

        for factory in (server, client):
            factory.got, factory.lost, factory.noisy = [], lost, False
        port: Any = listenSDP(reactor, 0, server, interface="127.0.0.1", device="lo0")
        (channel,) = channelsOf(reactor)
        connectSDP(reactor, "127.0.0.1", port.getHost().port, client, device="lo0")
        watchdog = reactor.callLater(HANG_SECONDS, reactor.crash)
        reactor.run(installSignalHandlers=False)
        self.assertTrue(watchdog.active(), "no end")
        watchdog.cancel()
        self.assertEqual((server.got, client.got), ([b"question"], [b"answer"]))
        self.assertEqual(seen, [([], False, None), 1])
        self.assertTrue(channel.device.closed)
        return channel

    def run_(self, make: Any) -> None:
        """
        Make a reactor, exchange, close it.
        """
        reactor = make()
        before = descriptorsBefore()
        self.exchange(reactor)
        self.assertEqual(descriptors(), before)
        for reader in reactor.removeAll():
            reader.connectionLost(connectionDone)
        closeWakers(reactor)
        poller: Any = getattr(reactor, "_poller", None)
        if hasattr(poller, "close"):
            poller.close()

    def test_select(self) -> None:
        """
        On select: everything arrives; no reader, timed call or descriptor is
        left of the channel.
        """
        self.run_(SelectReactor)

    def test_poll(self) -> None:
        """
        The same on poll.
        """
        self.run_(PollReactor)

    def test_epoll(self) -> None:
        """
        The same on epoll.
        """
        self.run_(EPollReactor)

    def test_ib(self) -> None:
        """
        The same on the reactor that polls.
        """
        self.run_(IBReactor)

    def test_channel(self) -> None:
        """
        A channel's interface for reactors.
        """
        from twisted.internet.interfaces import IReadDescriptor
        from zope.interface.verify import verifyObject

        end = End(False, 3)
        self.addCleanup(end.channel.close)
        verifyObject(IReadDescriptor, end.channel)
        self.assertEqual(end.channel.fileno(), end.device.fabric.fileno())
        self.assertIsInstance(end.channel, DeviceChannel)
