"""
The part of the C{ib} and C{ib-asyncio} reactors that does not depend on their loops: devices that are polled
between turns, the offload protocol switch, messages, RDMA and reliable datagrams.

It imports of this package only what a reactor without a device needs; the rest is imported when it is first
used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import AF_INET, AF_INET6
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

from twisted.internet.error import ConnectionDone
from twisted.logger import Logger
from twisted.python import threadable
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.drive.turn import Turn
from twisted_ib.interfaces import IReactorCompletionChannels, IReactorRDMA, IReactorRDS
from twisted_ib.internet.readers import readingUsers, removeAllBut, takeUsers
from twisted_ib.reactor.loop import DeviceLoop, progress
from twisted_ib.switch.rules.sighup import reloadingOnHangup, startFolder

if TYPE_CHECKING:
    from select import epoll

    from twisted.internet.posixbase import PosixReactorBase as _Reactor

    from twisted_ib.hca.device.device import Device
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.reactor.socketreport import SocketReport
    from twisted_ib.switch.reason import Reason
    from twisted_ib.switch.switch import Switch
else:
    #: Beside a reactor of Twisted's among the bases of a class.
    _Reactor = object

#: Errors of an import without a free descriptor, which its file needs, or without memory.
_EXHAUSTED = (OSError, MemoryError)
_log = Logger()


@implementer(IReactorCompletionChannels, IReactorRDMA, IReactorRDS)
class IBReactorBase(_Reactor):
    """
    A reactor that polls completion channels, and has messages, RDMA and reliable datagrams beside streams.  A
    subclass has a reactor of Twisted's as its second base.

    @ivar polling: The L{AdaptivePolling<twisted_ib.hca.base.polling.AdaptivePolling>} that decides when to
        sleep.
    @ivar _switchless: Whether the switch could not be loaded, so that all TCP is the operating system's.
    @ivar rest: The devices as they were known before the last sleep.
    @ivar _poller: The epoll object that it waits with, or L{None}.
    @ivar _wait: Waits for descriptors, for so many seconds or for good, and serves or returns those that are
        ready.
    """

    isDriven: ClassVar[bool] = False
    _poller: epoll | None
    _wait: Callable[[float | None], object]

    def __init__(self, loop: DeviceLoop, *arguments: Any) -> None:
        self._channels: tuple[DeviceChannel, ...] = ()
        #: The device where there is one, as nearly always: each batch asks.
        self._alone: Device | None = None
        self._watched: tuple[DeviceChannel, ...] = ()
        self._socketReport: SocketReport | None = None
        self._switch: Switch | None = None
        self._switchless = False
        # Relative names in the configuration begin at the folder of the start, which a daemon leaves later.
        self._folder = startFolder()
        # Deadlines of devices have no DelayedCall: applications and trial would find it in getDelayedCalls().
        self.rest = Turn()
        self._loop = loop
        self.polling = loop.polling
        super().__init__(*arguments)

    # -- channels

    def addChannel(self, channel: DeviceChannel) -> None:
        self._poll((*self._channels, channel))
        channel.device.fabric.registerWith(self._poller)
        super().addReader(channel)

    def removeChannel(self, channel: DeviceChannel) -> None:
        self._poll(tuple(c for c in self._channels if c is not channel))
        if channel not in self._watched:
            super().removeReader(channel)

    def _poll(self, channels: tuple[DeviceChannel, ...]) -> None:
        self._channels = channels
        self._alone = channels[0].device if len(channels) == 1 else None

    def watchChannel(self, channel: DeviceChannel) -> None:
        self._watched += (channel,)
        super().addReader(channel)

    def unwatchChannel(self, channel: DeviceChannel) -> None:
        self._watched = tuple(c for c in self._watched if c is not channel)
        if channel not in self._channels:
            super().removeReader(channel)

    # -- running

    def setTurn(self, turn: Callable[[float | None], object] | None) -> None:
        """
        Have the loop call C{turn} in the place of C{doPoll}; with L{None} no more.
        """
        raise NotImplementedError

    @contextmanager
    def _serving(self) -> Iterator[None]:
        # Within this context the loop runs: ib-ss finds the process, and SIGHUP reloads the rules.
        try:
            self.socketReport.begin()
        except ImportError as e:
            self._goWithout(e)
        except _EXHAUSTED:
            # Only ib-ss misses something.
            pass
        # Not in startRunning(): a handler that a startup trigger installed is to be called as well.
        with reloadingOnHangup(self._reload, self, self._installSignalHandlers, self._hasRules):
            yield

    def _hasRules(self) -> bool:
        try:
            from twisted_ib.configuration.file import isConfigured
        except (ImportError, *_EXHAUSTED):
            return True
        return isConfigured(os.environ, self._folder)

    def _reload(self) -> None:
        if not self._switchless:
            self.switch.configuration.reload()

    def doPoll(self, timeout: float | None) -> object:
        """
        Run one turn: devices first; then, when they are idle and now and then, everything else.

        @param timeout: Seconds until the next delayed call; L{None} without one.
        @return: The events of C{_wait}; none if it was not called.
        """
        channels, alone, loop = self._channels, self._alone, self._loop
        if not channels:
            return self._wait(timeout)
        # As progress(), whose call is saved.
        worked: object = progress(channels) if alone is None else alone.progress()
        # As in librdmacm/rsocket.c (polling_time), polling for a few microseconds is cheaper than a sleep and
        # a wake-up if the peer answers at once.
        if not worked and timeout != 0 and not loop.quiet and loop.spin(self, channels, timeout):
            progress(channels)
            worked = True
        if worked:
            if loop.stay(self, channels, alone):
                return ()
            timeout = loop.within(self, timeout) if loop.threadsWait else 0
        if timeout != 0:
            timeout = self.rest.begin(channels, self.seconds, timeout)
        loop.quiet = False
        found = self._wait(timeout)
        # Before what came is served, which takes its own time.
        at = loop.polling.now()
        # The traffic that woke epoll is served in the same turn, as readable descriptors are.
        if self.rest.end(self._channels, self.seconds, timeout, not worked):
            loop.turns += 1
            if timeout != 0:
                loop.polling.woken(at)
        return found

    def inOtherThread(self) -> bool:
        """
        Return whether this reactor runs, and in another thread than the caller.
        """
        return self.running and threadable.ioThread not in (None, get_ident())

    # -- for ib-ss

    @property
    def socketReport(self) -> SocketReport:
        """
        The L{SocketReport<twisted_ib.reactor.socketreport.SocketReport>} of this reactor.
        """
        socketReport = self._socketReport
        if socketReport is None:
            from twisted_ib.reactor.socketreport import SocketReport

            socketReport = self._socketReport = SocketReport(self)
        return socketReport

    def whyOf(self, user: object) -> Reason | None:
        """
        See L{SocketReport.whyOf<twisted_ib.reactor.socketreport.SocketReport.whyOf>}.
        """
        return self.socketReport.whyOf(user)

    def showTCP(self, user: object) -> None:
        """
        A port or client of the switch goes over TCP: see L{SocketReport.show
        <twisted_ib.reactor.socketreport.SocketReport.show>}.
        """
        if self._socketReport is not None:
            self._socketReport.show(user)

    def socketsBeside(self, channel: DeviceChannel) -> Iterator[list[Any] | None]:
        """
        See L{SocketReport.rows<twisted_ib.reactor.socketreport.SocketReport.rows>}.
        """
        return self.socketReport.rows(channel)

    def selectables(self) -> list[Any]:
        """
        Return the readers and writers with a descriptor, each once.
        """
        return list(dict.fromkeys((*super().getReaders(), *super().getWriters())))

    # -- the offload protocol switch

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Any:
        """
        See C{IReactorTCP}; the rules choose the provider (L{twisted_ib.switch.switch}).
        """
        switch = self._switchFor("listen")
        # Rules that leave everything to TCP cost this test only.
        if switch is None or switch.configuration.tcpOnly("listen"):
            made: Any = super().listenTCP(port, factory, backlog, interface)
            if switch is not None:
                switch.listensDirect(made)
            return made
        return switch.listenTCP(self, port, factory, backlog, interface)

    def adoptStreamPort(self, fileDescriptor: int, addressFamily: int, factory: Any) -> Any:
        """
        See C{IReactorSocket}; the rules choose the provider of a TCP socket.
        """
        isTCP = addressFamily in (AF_INET, AF_INET6)
        switch = self._switchFor("listen") if isTCP else None
        if switch is None or switch.configuration.tcpOnly("listen"):
            made: Any = super().adoptStreamPort(fileDescriptor, addressFamily, factory)
            if switch is not None:
                switch.listensDirect(made)
            return made
        return switch.adoptStreamPort(self, fileDescriptor, addressFamily, factory)

    def connectTCP(
        self, host: str, port: int, factory: Any, timeout: float = 30, bindAddress: Any = None
    ) -> Any:
        """
        See C{IReactorTCP}; the rules choose the provider (L{twisted_ib.switch.switch}).
        """
        switch = self._switchFor("connect")
        if switch is None or switch.configuration.tcpOnly("connect"):
            made: Any = super().connectTCP(host, port, factory, timeout, bindAddress)
            if switch is not None:
                made.why = switch.connectsDirect(host, port)
            return made
        return switch.connectTCP(self, host, port, factory, timeout, bindAddress)

    def _switchFor(self, role: str) -> Switch | None:
        # After a chroot modules may not be found: a program that works on epoll must work here.
        if self._switchless:
            return None
        try:
            switch = self.switch
            if not switch.configuration.tcpOnly(role):
                switch.load(role)
        except ImportError as e:
            self._goWithout(e)
            return None
        except _EXHAUSTED:
            # This call only: TCP has no descriptor either, and reports it in its own way.
            return None
        return switch

    def _goWithout(self, reason: ImportError) -> None:
        if not self._switchless:
            self._switchless = True
            _log.warn("the offload switch cannot be loaded, all TCP is direct: {reason}", reason=str(reason))

    @property
    def switch(self) -> Switch:
        """
        The L{Switch<twisted_ib.switch.switch.Switch>} of this reactor.
        """
        switch = self._switch
        if switch is None:
            from twisted_ib.switch.rules.configuration import Configuration
            from twisted_ib.switch.switch import Switch

            switch = self._switch = Switch(Configuration(folder=self._folder))
        return switch

    @property
    def openSwitch(self) -> Switch | None:
        """
        The same if it was needed already, else L{None}.
        """
        return self._switch

    def closePorts(self) -> None:
        """
        Close the ports that nobody has closed: this reactor has ended, and devices that are added later do
        not find them any more.
        """
        switch = self._switch
        for port in () if switch is None else list(switch.ports):
            if port.connected:
                port.connectionLost(Failure(ConnectionDone()))

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
        from twisted_ib.rds.port import listenRDS

        return listenRDS(self, port, protocol, interface, maxPacketSize, device)

    # -- readers: ports and connections in place of the channels

    def getReaders(self) -> list[Any]:
        """
        Return the readers, and of each device the ports and connections that read.
        """
        hidden = self._channels + self._watched
        readers = [r for r in super().getReaders() if r not in hidden]
        return readers + readingUsers(self._channels)

    def removeAll(self) -> list[Any]:
        """
        Remove all readers and writers but the reactor's own and the channels.

        @return: The removed objects, for the caller to close.
        """
        removed = removeAllBut(self._channels + self._watched, self, super().removeAll)
        if self._switch is not None:
            # Attempts over SDP that begin in the next turn are in no other list yet.
            removed += self._switch.beginning
        return removed + takeUsers(self._channels)
