"""
The loop of the C{ib} and C{ib-asyncio} reactors between a message and its answer.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.drive.process import perf_counter
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.internet.readers import threadsNeedInterpreter, yieldCPU

if TYPE_CHECKING:
    from twisted_ib.hca.device.device import Device
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.reactor.base import IBReactorBase

#: Turns after which epoll is called however busy the devices are; a power of two.
EPOLL_EVERY: Final = 16
#: Turns after which it is seen whether that takes too long; a power of two, less than that.
LOOK_EVERY: Final = 4
#: Seconds that are: what an application does with a message may take long.
EPOLL_SECONDS: Final = 1e-2


class DeviceLoop:
    """
    The part of an L{IBReactor<twisted_ib.reactor.ibreactor.IBReactor>} that each message passes.

    An object beside the reactor and no base class of it: Twisted's tests assign to a reactor's C{__class__}
    and C{__dict__}, which those with a compiled base do not allow.

    @ivar polling: The L{AdaptivePolling} that decides when to sleep.
    @ivar turns: Batches with traffic.
    @ivar epollAt: When epoll is called although they are fewer, by the reactor's clock.
    @ivar quiet: Whether the devices have just been polled in vain.
    @ivar threadsWait: Whether a call in a thread needed the interpreter after the last batch with traffic.
    @ivar inThreads: Calls in threads that are not the reactor's pool's.
    """

    __slots__ = ("epollAt", "inThreads", "polling", "quiet", "threadsWait", "turns")

    def __init__(self) -> None:
        self.polling = AdaptivePolling(perf_counter, yieldCPU)
        self.turns = self.inThreads = 0
        self.epollAt = 0.0
        self.quiet = self.threadsWait = False

    def calm(self, reactor: IBReactorBase) -> float | None:
        """
        @return: Seconds until the reactor has something else to do than to serve devices; L{None} if nothing
            is known.
        """
        if reactor.threadCallQueue or reactor._newTimedCalls or reactor._justStopped or not reactor._started:
            return 0.0
        calls = reactor._pendingTimedCalls
        # A call that was delayed again still has its earlier time here: too soon, which is safe.
        if not calls:
            return None
        calm: float = calls[0].time - reactor.seconds()
        return calm if calm > 0.0 else 0.0

    def within(self, reactor: IBReactorBase, timeout: float | None) -> float | None:
        """
        @param timeout: Seconds that the turn's caller gives (C{iterate(0)}); L{None} for any time.
        @return: The same, or what L{calm} says if that is less.
        """
        calm = self.calm(reactor)
        return calm if timeout is None or (calm is not None and calm < timeout) else timeout

    def stay(self, reactor: IBReactorBase, channels: tuple[DeviceChannel, ...], alone: Device | None) -> bool:
        """
        After a batch with traffic serve others as long as they come at once and nothing else is due, so that
        an answer does not wait for the reactor's loop.

        @param alone: The device if there is only one.
        @return: False if epoll must be called now.
        """
        # All of this is between a message and its answer, so it calls little.
        while True:
            self.turns = turns = self.turns + 1
            if reactor.threadpool is not None or self.inThreads:
                self.threadsWait = self.inThreads > 0 or threadsNeedInterpreter(reactor)
                if self.threadsWait:
                    return False
            if not turns & (EPOLL_EVERY - 1):
                return False
            calm = self.calm(reactor)
            if channels is not reactor._channels or calm == 0:
                return True
            found = self.spin(reactor, channels, calm)
            if not (progress(channels) if alone is None else alone.progress()) and not found:
                # This was the poll that would precede the sleep.
                self.quiet = True
                return True
            # Only where one batch follows another at once.
            if not turns & (LOOK_EVERY - 1):
                now = reactor.seconds()
                if now >= self.epollAt:
                    self.epollAt = now + EPOLL_SECONDS
                    self.turns |= EPOLL_EVERY - 1

    def spin(
        self, reactor: IBReactorBase, channels: tuple[DeviceChannel, ...], timeout: float | None
    ) -> bool:
        """
        Poll for a while, if that pays.

        @param timeout: Seconds until the next delayed call; L{None} without one.
        @return: Whether there is something to do.
        """
        for channel in channels:
            fabric = channel.device.fabric
            hot = fabric.hot
            if hot:
                # Polling keeps the interpreter lock, which a call in a thread needs.
                if self.inThreads or (reactor.threadpool is not None and threadsNeedInterpreter(reactor)):
                    return False
                answer = fabric.answerSeconds
                most = inf if timeout is None else timeout
                polling = self.polling
                lent = polling.lent
                if len(channels) > 1:
                    found = polling.spin(lambda: _pending(channels), most, answer, lambda: _sent(channels))
                else:
                    pending = hot[0].pending if len(hot) == 1 else fabric.pending
                    found = polling.spin(pending, most, answer, channel.device.sent)
                if polling.lent != lent:
                    # The CPU was the peer's: no gain over TCP, as of a sleep (L{twisted_ib.switch.gainless}).
                    fabric.sleeps += 1
                if polling.late:
                    # Whatever else there is has waited as long: the next turn asks epoll.
                    polling.late = False
                    self.turns |= EPOLL_EVERY - 1
                return found
        return False


def progress(channels: tuple[DeviceChannel, ...]) -> int:
    """
    Serve the devices once.

    @return: How much was done; 0 if there was nothing to do.
    """
    n = 0
    for channel in channels:
        n += channel.device.progress()
    return n


def _pending(channels: tuple[DeviceChannel, ...]) -> bool:
    for channel in channels:
        if channel.device.fabric.pending():
            return True
    return False


def _sent(channels: tuple[DeviceChannel, ...]) -> int:
    return sum(channel.device.sent() for channel in channels)


class AsyncioDeviceLoop(DeviceLoop):
    """
    The same of a reactor on an event loop of asyncio.

    @ivar events: The event loop, an C{asyncio.SelectorEventLoop}.
    """

    __slots__ = ("events",)

    def __init__(self, events: Any) -> None:
        super().__init__()
        self.events = events

    def calm(self, reactor: IBReactorBase) -> float | None:
        events = self.events
        # Names of asyncio.base_events, the same from Python 3.10 to 3.14.  The reactor's own calls are among
        # these: AsyncioSelectorReactor has one timer for them.
        if events._ready or events._stopping:
            return 0.0
        scheduled = events._scheduled
        # A cancelled one has its time here: too soon, which is safe.
        if not scheduled:
            return None
        calm: float = scheduled[0]._when - events.time()
        return calm if calm > 0.0 else 0.0
