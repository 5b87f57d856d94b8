"""
The C{ib-asyncio} reactor: Twisted's reactor on asyncio, with devices polled between the turns of its event
loop.

It is an C{AsyncioSelectorReactor}, which programs that mix Twisted and asyncio ask for, and has what the
C{ib} reactor has: the event loop looks at the devices before it waits for descriptors.

Install it with C{twistd --reactor=ib-asyncio} or L{install}; in Scrapy with C{TWISTED_REACTOR =
"twisted_ib.reactor.IBAsyncioReactor"}.
"""

from __future__ import annotations

import asyncio
import select
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.python import log

from twisted_ib.hca.host.libc import KernelEpoll
from twisted_ib.internet.logcontext import callInContext
from twisted_ib.reactor.base import IBReactorBase
from twisted_ib.reactor.loop import AsyncioDeviceLoop

if TYPE_CHECKING:
    from concurrent.futures import Executor


class IBAsyncioReactor(IBReactorBase, AsyncioSelectorReactor):
    """
    Twisted's reactor on asyncio, with devices and the offload protocol switch.
    """

    _loop: AsyncioDeviceLoop

    def __init__(self, eventloop: AbstractEventLoop | None = None) -> None:
        """
        @param eventloop: An C{asyncio.SelectorEventLoop}, by default the one that runs, or a new one.
        @raise TypeError: It is of another kind, as uvloop's, which cannot look at devices.
        """
        events: AbstractEventLoop | None = _running() if eventloop is None else eventloop
        if events is None:
            # Whatever the policy makes: one that is chosen for its speed is slower than this.
            events = asyncio.SelectorEventLoop()
            asyncio.set_event_loop(events)
        if not isinstance(events, asyncio.SelectorEventLoop):
            raise TypeError(
                f"the ib-asyncio reactor needs an asyncio.SelectorEventLoop, not {type(events).__qualname__}:"
                " give it none, or one of these"
            )
        # An event loop has no other place for this; AsyncioSelectorReactor reaches for its selector too.
        self._selector: Any = vars(events)["_selector"]
        self._wait = self._selector.select
        self._runInThread = events.run_in_executor
        # With a selector of another kind the descriptors of devices are readers alone.
        poller = getattr(self._selector, "_selector", None)
        # Under ib-run the name stands for what asks the devices, but not in asyncio's own selectors.
        kinds: Any = (KernelEpoll, select.epoll) if hasattr(select, "epoll") else ()
        self._poller = poller if isinstance(poller, kinds) else None
        super().__init__(AsyncioDeviceLoop(events), events)
        vars(events)["run_in_executor"] = self._inExecutor
        self.setTurn(None)

    def setTurn(self, turn: Callable[[float | None], object] | None) -> None:
        self._selector.select = self.doPoll if turn is None else turn

    def callFromThread(self, *arguments: object, **options: object) -> None:
        """
        See C{IReactorFromThreads}.  AsyncioSelectorReactor makes a timed call of it, whose timer of asyncio's
        takes another turn of the event loop.
        """
        function = cast("Callable[..., object]", arguments[0])
        self._asyncioEventloop.call_soon_threadsafe(_called, partial(function, *arguments[1:], **options))

    def _inExecutor(
        self, executor: Executor | None, function: Callable[..., Any], *arguments: Any
    ) -> Future[Any]:
        # asyncio.to_thread() and getaddrinfo() come here too.  While a call runs the loop does not poll, as
        # while the reactor's threads work.
        future = self._runInThread(executor, function, *arguments)
        self._loop.inThreads += 1
        future.add_done_callback(self._outOfExecutor)
        return future

    def _outOfExecutor(self, future: Future[Any]) -> None:
        self._loop.inThreads -= 1

    def run(self, installSignalHandlers: bool = True) -> None:
        """
        Run, in a log context that names the object being called; SIGHUP reloads the rules.
        """
        self.startRunning(installSignalHandlers=installSignalHandlers)
        with self._serving():
            callInContext(self._asyncioEventloop.run_forever)
        self._justStopped = False


def _called(function: Callable[[], object]) -> None:
    try:
        function()
    except BaseException:
        # As ReactorBase.runUntilCurrent() treats what a call from a thread raises.
        log.err()


def _running() -> AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def install(eventloop: AbstractEventLoop | None = None) -> None:
    """
    Install an L{IBAsyncioReactor} as the reactor.

    @param eventloop: See L{IBAsyncioReactor}.
    @raise TypeError: Likewise.
    """
    from twisted.internet.main import installReactor

    installReactor(IBAsyncioReactor(eventloop))
