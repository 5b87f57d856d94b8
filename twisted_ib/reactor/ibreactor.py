"""
The C{ib} reactor: epoll, with devices polled between its turns.

Without a device it is C{EPollReactor} (the kqueue or select reactor where there is no epoll).  With one, each
turn processes what the device has received; if that is nothing, adaptive polling decides whether to poll
again (L{twisted_ib.reactor.loop}), and at last the device's event is armed and epoll sleeps.

Install it with C{twistd --reactor=ib} or L{install}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted_ib.internet.logcontext import callInContext
from twisted_ib.reactor.base import IBReactorBase
from twisted_ib.reactor.loop import DeviceLoop
from twisted_ib.reactor.waker import Waker

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor as _Base

    from twisted_ib.internet.channel import DeviceChannel
else:
    try:
        from twisted.internet.epollreactor import EPollReactor as _Base
    except ImportError:
        try:
            from twisted.internet.kqreactor import KQueueReactor as _Base
        except ImportError:
            from twisted.internet.selectreactor import SelectReactor as _Base


class IBReactor(IBReactorBase, _Base):
    """
    Twisted's reactor for this system, with devices and the offload protocol switch.
    """

    _poller: Any = None
    _wait = _Base.doIteration

    def __init__(self) -> None:
        super().__init__(DeviceLoop())

    def addChannel(self, channel: DeviceChannel) -> None:
        super().addChannel(channel)
        if self._poller is not None:
            self.waker.register(self._poller)

    def _wakerFactory(self) -> Waker:
        return Waker()

    def mainLoop(self) -> None:
        """
        Run, in a log context that names the object being called; SIGHUP reloads the rules.
        """
        with self._serving():
            callInContext(super().mainLoop)

    doIteration = IBReactorBase.doPoll

    def setTurn(self, turn: Callable[[float | None], object] | None) -> None:
        if turn is None:
            vars(self).pop("doIteration", None)
        else:
            vars(self)["doIteration"] = turn


def install() -> None:
    """
    Install an L{IBReactor} as the reactor.
    """
    from twisted.internet.main import installReactor

    installReactor(IBReactor())
