"""
The sockets of a process with an C{ib} or C{ib-asyncio} reactor, shown to C{ib-ss} even if all are TCP's.

C{ib-ss} queries HCAs.  A process that uses none opens one as soon as it is idle; the descriptor is watched,
nothing is polled.  Where no HCA can be opened the process is not shown, and nothing else changes.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any

from twisted.internet import tcp

from twisted_ib.drive.process import perf_counter
from twisted_ib.errors import HCAError
from twisted_ib.internet.readers import channelsOf
from twisted_ib.switch.reason import Reason, keptReasons

if TYPE_CHECKING:
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.reactor.base import IBReactorBase
    from twisted_ib.reactor.tcprows import TCPReasons

#: A turn that waited so many seconds was idle.
QUIET = 0.05
#: A process that is never idle opens its HCA after so many seconds.
LATEST = 2.0


class SocketReport:
    """
    The sockets of one reactor.

    @ivar reactor: The reactor, an L{IBReactorBase<twisted_ib.reactor.base.IBReactorBase>}.
    @ivar channel: The channel that was made visible, or L{None}.
    """

    def __init__(self, reactor: IBReactorBase) -> None:
        self.reactor = reactor
        self.channel: DeviceChannel | None = None
        self._latest = 0.0
        self._reasons: TCPReasons | None = None

    # -- becoming visible

    def begin(self) -> None:
        """
        The reactor runs: become visible once it is idle.
        """
        channel = self.channel
        if channel is None or channel.device.closed:
            self._latest = perf_counter() + LATEST
            # In the place of doPoll() until then, so that the usual turn has no test for it.
            self.reactor.setTurn(self._turn)

    def _turn(self, timeout: float | None) -> Any:
        # The page of an open device has listeners and connections already: without the reasons of TCP beside
        # them the sockets of a process that is busy from here on would have none.
        if self._isOpen():
            self.reactor.setTurn(None)
            self.appear()
            return self.reactor.doPoll(timeout)
        began = perf_counter()
        found = self.reactor.doPoll(QUIET if timeout is None else min(timeout, QUIET))
        now = perf_counter()
        if now - began >= QUIET or now >= self._latest:
            self.reactor.setTurn(None)
            self.appear()
        return found

    def _isOpen(self) -> bool:
        channels = channelsOf(self.reactor)
        if not channels:
            return False
        from twisted_ib.hca.device.registry import DEFAULT_DEVICE

        return any(each.device.name == DEFAULT_DEVICE for each in channels)

    def appear(self) -> None:
        """
        Become visible, if that is possible.
        """
        try:
            # Not at the top: a program's start does not wait for these imports.
            from twisted_ib.internet.channel import channelFor
            from twisted_ib.reactor.tcprows import TCPReasons

            channel = channelFor(self.reactor)
            channel.appear()
        except (HCAError, ImportError, OSError):
            # Only ib-ss misses something.
            return
        self.channel = channel
        if channel.shown is not None:
            self._begin(TCPReasons(channel.shown.openPage(), self._byPolicy("connect")))

    def _begin(self, reasons: TCPReasons) -> None:
        self._reasons = reasons
        switch = self.reactor.openSwitch
        for each in (
            *getattr(switch, "ports", ()),
            *getattr(switch, "clients", ()),
            *self.reactor.selectables(),
        ):
            self.show(each)

    def show(self, user: object) -> None:
        """
        Write the reason of a port or client over TCP into the socket page, if this process is visible.
        """
        if self._reasons is not None:
            self._reasons.show(user, self.whyOf(user))

    def showPeer(self, host: str, port: int, why: Reason, listens: bool = False) -> None:
        """
        Write the reason of the connections to a peer, which sockets of the program have, into the socket page
        of a process that has one.

        @param listens: It is that of a port of this process instead.
        """
        if (reasons := self._openReasons()) is not None:
            reasons.showPeer(host, port, why, listens)

    def showSocket(self, skt: socket.socket, why: Reason) -> None:
        """
        The same of one socket of the program.
        """
        if (reasons := self._openReasons()) is not None:
            reasons.showSocket(skt, why)

    def _openReasons(self) -> TCPReasons | None:
        if self._reasons is None and self._isOpen():
            self.appear()
        return self._reasons

    # -- rows

    def rows(self, channel: DeviceChannel) -> Iterator[list[Any] | None]:
        """
        Yield the rows that no other channel reports: TCP, and devices that queries do not reach.

        @param channel: The channel whose device was queried.
        """
        try:
            from twisted_ib.hca.base.socketrows import sourcesOf, usersRows, values
            from twisted_ib.hca.device.registry import DEFAULT_DEVICE
            from twisted_ib.reactor.tcprows import hasSocket, identityOf, tcpRows
        except (ImportError, OSError):
            # As in appear(): after a chroot, or without descriptors, whoever asks ends no server.
            return
        # Each device is queried; one of them reports what belongs to none, or it would be listed twice.
        if channel.device.name != DEFAULT_DEVICE:
            return
        reactor = self.reactor
        for other in channelsOf(reactor):
            if other is not channel and not other.device.isAsked:
                yield from usersRows(list(other.users), other.device.name, self.whyOf)
        for rowsOf in sourcesOf(reactor):
            yield from [values(row, None, None) for row in rowsOf()]
        selectables = reactor.selectables()
        switch = reactor.openSwitch
        # The event loop's of asyncio are among the switch's ports only.
        ports = [each for each in getattr(switch, "ports", ()) if hasSocket(each)]
        ports += [each for each in selectables if _listens(each)]
        paused = {identityOf(each.fileno()): each for each in (*getattr(switch, "clients", ()), *ports)}
        listening = {_port(each.socket): each for each in ports}

        own = {identityOf(each.fileno()): why for each, why in keptReasons()}

        def whyOfSocket(skt: socket.socket) -> Reason | None:
            why = own.get(identityOf(skt.fileno()))
            if why is not None:
                return why
            user = paused.get(identityOf(skt.fileno()))
            if user is not None:
                return self.whyOf(user)
            port = listening.get(_port(skt))
            return self._byPolicy("connect") if port is None else _accepted(self.whyOf(port))

        yield from tcpRows(selectables, self.whyOf, whyOfSocket)

    def whyOf(self, user: object) -> Reason | None:
        """
        Return the C{Reason} of a port or connection; L{None} if it was asked for by name.
        """
        why = getattr(user, "why", None)
        if isinstance(why, Reason):
            return why
        whole = getattr(getattr(user, "main", None), "why", None)
        # The part of a switched port on a device: the port's fallback does not concern it.
        if isinstance(whole, Reason):
            made = copy(whole)
            made.fallback = None
            return made
        if not isinstance(user, tcp.Port | tcp.Connection):
            return None
        return self._whyOfTCP(user)

    def _whyOfTCP(self, user: tcp.Port | tcp.Connection) -> Reason | None:
        server = getattr(user, "server", None)
        if server is not None:
            return _accepted(self.whyOf(server))
        connector = getattr(user, "connector", None)
        why = getattr(connector, "why", None)
        if isinstance(why, Reason):
            return why
        if isinstance(user, tcp.Port):
            return self._byPolicy("listen")
        return None if connector is None else self._byPolicy("connect")

    def _byPolicy(self, role: str) -> Reason | None:
        switch = self.reactor.openSwitch
        if switch is None:
            return None
        configuration = switch.configuration
        decision = configuration.policy.certain(role, configuration.program)
        # Other rules decided.
        if decision is None or decision.verdict != "tcp":
            return None
        return Reason(decision.where, decision.verdict, "tcp")


def _accepted(why: Reason | None) -> Reason | None:
    return None if why is None else Reason(why.rule, why.verdict, "tcp", None, why.fallback)


def _listens(selectable: object) -> bool:
    from twisted_ib.reactor.tcprows import isTCP

    return isinstance(selectable, tcp.Port) and isTCP(selectable)


def _port(skt: socket.socket) -> int | None:
    try:
        number: int = skt.getsockname()[1]
    except OSError:
        return None
    return number
