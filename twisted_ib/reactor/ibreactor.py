"""
The C{ib} reactor: epoll, and devices looked at between its turns.

Without a device in use it is C{EPollReactor} (where there is no epoll, the kqueue
or the select reactor).  With one, each turn takes what has
arrived for it; when nothing has, L{AdaptivePolling} decides whether to look
again, and at last the device is told to ring, and epoll sleeps.

Install it with C{twistd --reactor=ib} or L{install}.  Of the rest of this package it imports no
more than a reactor without a device needs; the rest is imported by who uses it first.
"""

from __future__ import annotations

from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.interfaces import IReactorCompletionChannels, IReactorRDMA, IReactorRDS
from twisted_ib.internet.logcontext import callInContext
from twisted_ib.internet.readers import readingUsers, takeUsers
from twisted_ib.internet.waiting import giveWay, threadsWait
from twisted_ib.reactor.rules.sighup import reloadingOnHangup, startFolder
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

#: Every so many turns epoll is asked, however busy the devices are.
_EPOLL_EVERY = 16
_basePoll = _Base.doIteration
_log = Logger()


@implementer(IReactorCompletionChannels, IReactorRDMA, IReactorRDS)
class IBReactor(_Base):
    """
    A reactor that polls completion channels, with messages and RDMA beside its streams.

    @ivar polling: The L{AdaptivePolling} that decides when to sleep.
    @ivar _threadsWait: What L{threadsWait} said after the last batch with traffic.
    @ivar _switchless: Whether the switch could not be loaded, so that all TCP is the operating system's.
    @ivar _quiet: Whether somebody has just looked in vain.
    @ivar _deadline: When a device must be looked at, as it was known before the last sleep.
    """

    def __init__(self) -> None:
        self._channels: tuple[DeviceChannel, ...] = ()
        self._watched: tuple[DeviceChannel, ...] = ()
        self._socketReport: Any = None
        self._turns = 0
        self._switch: Any = None
        self._switchless = False
        # Before the program goes to another folder: where a relative name of a configuration begins.
        self._folder = startFolder()
        self._deadline = inf
        self._quiet = self._threadsWait = False
        self.polling = AdaptivePolling(perf_counter, giveWay)
        _Base.__init__(self)

    # -- channels

    def addChannel(self, channel: DeviceChannel) -> None:
        """
        See L{IReactorCompletionChannels}.
        """
        self._channels += (channel,)
        poller = getattr(self, "_poller", None)
        if poller is not None:
            channel.device.fabric.registerWith(poller)
            self.waker.hang(poller)
        _Base.addReader(self, channel)

    def removeChannel(self, channel: DeviceChannel) -> None:
        """
        See L{IReactorCompletionChannels}.
        """
        self._channels = tuple(c for c in self._channels if c is not channel)
        if channel not in self._watched:
            _Base.removeReader(self, channel)

    def watchChannel(self, channel: DeviceChannel) -> None:
        """
        See L{IReactorCompletionChannels}.
        """
        self._watched += (channel,)
        _Base.addReader(self, channel)

    def unwatchChannel(self, channel: DeviceChannel) -> None:
        """
        See L{IReactorCompletionChannels}.
        """
        self._watched = tuple(c for c in self._watched if c is not channel)
        if channel not in self._channels:
            _Base.removeReader(self, channel)

    def _wakerFactory(self) -> Waker:
        return Waker()

    def mainLoop(self) -> None:
        """
        Run, in a log context that names whoever is called; SIGHUP reads the rules again.
        """
        try:
            self.socketReport.begin()
        except ImportError as e:
            self._goWithout(e)
        # Here, since what begins with the reactor may have taken the signal, and is to have it too.
        with reloadingOnHangup(self._reload, self, self._installSignalHandlers):
            callInContext(_Base.mainLoop, self)

    def _reload(self) -> None:
        if not self._switchless:
            self.switch.configuration.reload()

    def doPoll(self, timeout: float | None) -> None:
        """
        One turn: devices first, then, now and then or when they are quiet,
        everything else.

        @param timeout: How long nothing may be due, in seconds; L{None} if nothing is.
        """
        channels = self._channels
        if not channels:
            _basePoll(self, timeout)
            return
        worked: object = self._progress(channels)
        if not worked and timeout != 0 and not self._quiet and self._spin(channels, timeout):
            self._progress(channels)
            worked = True
        if worked:
            if self._stay(channels):
                return
            timeout = self.timeout() if self._threadsWait and not self._isDue() else 0
        if timeout != 0:
            timeout = self._sooner(channels, timeout) if self._arm(channels) else 0
        self._quiet = False
        _basePoll(self, timeout)
        expire = timeout == 0 or self.seconds() >= self._deadline
        hot = False
        for channel in self._channels:
            if channel.device.fabric.look():
                hot = True
            if expire:
                channel.expire()
        if hot and not worked:
            # What woke epoll is served in the same turn, as descriptors are.
            self._progress(self._channels)
            self._turns += 1

    doIteration = doPoll

    def _stay(self, channels: tuple[DeviceChannel, ...]) -> bool:
        """
        After a batch with traffic: serve others as long as they come at once and nothing else is due, so
        that an answer does not wait for the reactor's loop.  All of it is between a message and its
        answer, so it calls little.

        @return: Whether the loop goes on without epoll; that can wait for L{_EPOLL_EVERY} batches.
        """
        while True:
            self._turns = turns = self._turns + 1
            if self.threadpool is not None:
                self._threadsWait = threadsWait(self)
                if self._threadsWait:
                    return False
            if not turns & (_EPOLL_EVERY - 1):
                return False
            if channels is not self._channels or self._isDue():
                return True
            calls = self._pendingTimedCalls
            # A call that was put off is here with the time of before, which is sooner.
            calm = calls[0].time - self.seconds() if calls else None
            if calm is not None and calm <= 0:
                return True
            found = self._spin(channels, calm)
            if not self._progress(channels) and not found:
                self._quiet = True  # That was the look before the next sleep.
                return True

    def _isDue(self) -> bool:
        """
        @return: Whether it is time for the reactor's loop.
        """
        return bool(self.threadCallQueue or self._newTimedCalls or self._justStopped or not self._started)

    def _sooner(self, channels: tuple[DeviceChannel, ...], timeout: float | None) -> float | None:
        """
        @return: How long to sleep, in seconds: no longer than to a device's deadline, for which there
            is no delayed call that an application could find.
        """
        soonest: float | None = None
        for channel in channels:
            due = channel.due()
            if due is not None and (soonest is None or due < soonest):
                soonest = due
        if soonest is None:
            self._deadline = inf
            return timeout
        self._deadline = self.seconds() + soonest
        return max(0.0, soonest if timeout is None else min(soonest, timeout))

    def _progress(self, channels: tuple[DeviceChannel, ...]) -> int:
        n = 0
        for channel in channels:
            n += channel.device.progress()
        return n

    def _spin(self, channels: tuple[DeviceChannel, ...], timeout: float | None) -> bool:
        """
        Look again for a while, if that may pay and no call in a thread waits
        for the interpreter.
        """
        for channel in channels:
            fabric = channel.device.fabric
            hot = fabric.hot
            if hot:
                if threadsWait(self):
                    return False
                answer = fabric.answerSeconds
                most = answer if timeout is None else timeout
                if len(hot) == 1 and len(channels) == 1:
                    return self.polling.spin(hot[0].pending, most, answer)
                return self.polling.spin(self._pending, most, answer)
        return False

    def _pending(self) -> bool:
        for channel in self._channels:
            if channel.device.fabric.pending():
                return True
        return False

    def _arm(self, channels: tuple[DeviceChannel, ...]) -> bool:
        """
        Have the devices wake epoll; False if one has work after all.
        """
        armed = True
        for channel in channels:
            if not channel.device.arm():
                armed = False
        return armed

    # -- for ib-ss

    @property
    def socketReport(self) -> Any:
        """
        What this reactor shows, a L{SocketReport<twisted_ib.reactor.socketreport.SocketReport>}.
        """
        socketReport = self._socketReport
        if socketReport is None:
            from twisted_ib.reactor.socketreport import SocketReport

            socketReport = self._socketReport = SocketReport(self)
        return socketReport

    def whyOf(self, user: Any) -> Any:
        """
        See L{SocketReport.whyOf<twisted_ib.reactor.socketreport.SocketReport.whyOf>}.
        """
        return self.socketReport.whyOf(user)

    def socketsBeside(self, channel: DeviceChannel) -> Any:
        """
        See L{SocketReport.rows<twisted_ib.reactor.socketreport.SocketReport.rows>}.
        """
        return self.socketReport.rows(channel)

    def selectables(self) -> list[Any]:
        """
        @return: What has a descriptor here, each once.
        """
        return list(dict.fromkeys((*_Base.getReaders(self), *_Base.getWriters(self))))

    # -- the offload protocol switch

    def listenTCP(self, port: Any, factory: Any, backlog: int = 50, interface: str = "") -> Any:
        """
        See C{IReactorTCP}; policy says over what (L{twisted_ib.reactor.switch.switch}).
        """
        switch = self._switchFor("listen")
        if switch is None or switch.configuration.tcpOnly("listen"):
            made: Any = _Base.listenTCP(self, port, factory, backlog, interface)
            if switch is not None:
                switch.listensDirect(made)
            return made
        return switch.listenTCP(self, port, factory, backlog, interface)

    def connectTCP(
        self, host: Any, port: Any, factory: Any, timeout: Any = 30, bindAddress: Any = None
    ) -> Any:
        """
        See C{IReactorTCP}; policy says over what (L{twisted_ib.reactor.switch.switch}).
        """
        switch = self._switchFor("connect")
        if switch is None or switch.configuration.tcpOnly("connect"):
            made: Any = _Base.connectTCP(self, host, port, factory, timeout, bindAddress)
            if switch is not None:
                made.why = switch.whyDirect(host, port)
            return made
        return switch.connectTCP(self, host, port, factory, timeout, bindAddress)

    def _switchFor(self, role: str) -> Any:
        """
        @param role: C{listen} or C{connect}.
        @return: The switch, with what it needs unless TCP is certain; L{None} where it cannot be loaded,
            as after a C{chroot}: what works on epoll works here.
        """
        if self._switchless:
            return None
        try:
            switch = self.switch
            if not switch.configuration.tcpOnly(role):
                switch.load(role)
        except ImportError as e:
            self._goWithout(e)
            return None
        return switch

    def _goWithout(self, reason: ImportError) -> None:
        """
        The switch cannot be loaded: say so once.
        """
        if not self._switchless:
            self._switchless = True
            _log.warn("the offload switch cannot be loaded, all TCP is direct: {reason}", reason=str(reason))

    @property
    def switch(self) -> Any:
        """
        The L{Switch<twisted_ib.reactor.switch.switch.Switch>} of this reactor.
        """
        switch = self._switch
        if switch is None:
            from twisted_ib.reactor.rules.configuration import Configuration
            from twisted_ib.reactor.switch.switch import Switch

            switch = self._switch = Switch(Configuration(folder=self._folder))
        return switch

    @property
    def openSwitch(self) -> Any:
        """
        The same if it was needed already, else L{None}.
        """
        return self._switch

    # -- messages and RDMA

    def listenRDMA(
        self,
        port: int,
        factory: Any,
        interface: str = "",
        backlog: int = 50,
        device: str | None = None,
        privateData: bytes = b"",
        maxMessageSize: int = limits.RDMA_MESSAGE,
    ) -> Any:
        """
        See L{IReactorRDMA.listenRDMA}.
        """
        from twisted_ib.rdma.port import listenRDMA

        return listenRDMA(self, port, factory, interface, backlog, device, privateData, maxMessageSize)

    def connectRDMA(
        self,
        host: str,
        port: int,
        factory: Any,
        timeout: float | None = 30,
        bindAddress: Any = None,
        device: str | None = None,
        privateData: bytes = b"",
        maxMessageSize: int = limits.RDMA_MESSAGE,
    ) -> Any:
        """
        See L{IReactorRDMA.connectRDMA}.
        """
        from twisted_ib.rdma.port import connectRDMA

        return connectRDMA(
            self, host, port, factory, timeout, bindAddress, device, privateData, maxMessageSize
        )

    # -- reliable datagrams

    def listenRDS(
        self,
        port: int,
        protocol: Any,
        interface: str = "",
        maxPacketSize: int = limits.RDS_MESSAGE,
        device: str | None = None,
    ) -> Any:
        """
        See L{IReactorRDS.listenRDS}.
        """
        from twisted_ib.rds.port import listenRDS

        return listenRDS(self, port, protocol, interface, maxPacketSize, device)

    # -- what Twisted sees: ports and connections, not the channel

    def getReaders(self) -> list[Any]:
        """
        @return: The readers, and of each device the ports and connections that
            read.
        """
        hidden = self._channels + self._watched
        readers = [r for r in _Base.getReaders(self) if r not in hidden]
        return readers + readingUsers(self._channels)

    def removeAll(self) -> list[Any]:
        """
        Remove everything but what is the reactor's own.

        @return: What was removed; closing it is the caller's.
        """
        hidden = dict.fromkeys(self._channels + self._watched)
        for channel in hidden:
            _Base.removeReader(self, channel)
        removed: list[Any] = _Base.removeAll(self)
        for channel in hidden:
            _Base.addReader(self, channel)
        if self._switch is not None:
            removed += self._switch.beginning
        return removed + takeUsers(self._channels)


def install() -> None:
    """
    Make an L{IBReactor} the reactor.
    """
    from twisted.internet.main import installReactor

    installReactor(IBReactor())


__all__ = ["IBReactor", "install"]
