"""
Listening through the switch: one port over TCP and over devices.

A L{SwitchedPort} is Twisted's TCP port.  Beside its socket it has SDP listeners
(L{twisted_ib.switch.listeners}) on the same address and number, one per device, whose connections
get the port's protocols.  The socket listens after them, so that no client finds TCP alone.  Under a rule
C{sdp} there are SDP listeners only.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet import tcp
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.error import CannotListenError
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.configuration.words import BOTH, SDP, TCP
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.internet.channel import channelFor
from twisted_ib.switch.handle import ListeningHandle
from twisted_ib.switch.listeners import PortListeners, isBusy
from twisted_ib.switch.reason import Fallback
from twisted_ib.switch.switch import acceptedTCP

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase

    from twisted_ib.switch.switch import Switch


#: The REQs that wait at an adopted port while it is paused: as many as by default at C{listenTCP}'s.
_ADOPTED_BACKLOG = 50


class SwitchedPort(tcp.Port, PortListeners):
    """
    The port that C{listenTCP} returns unless the rules leave everything to TCP.
    """

    reactor: Any
    transport: Any
    # As before IReactorTCP2 (Twisted 26), whose constructor sets them: SO_REUSEADDR on each port.
    _reuseAddress = True
    _reusePort = False

    def __init__(
        self, switch: Switch, port: Any, factory: Any, backlog: int, interface: str, reactor: ReactorBase
    ) -> None:
        super().__init__(port, factory, backlog, interface, reactor)
        self._withoutListeners(switch, reactor)
        self.transport = partial(acceptedTCP, self.why)

    @classmethod
    def adopt(
        cls, switch: Switch, reactor: ReactorBase, descriptor: int, family: Any, factory: Any
    ) -> SwitchedPort:
        """
        Return a port for a TCP socket that listens already; C{startListening} offers SDP on its address too.
        A rule C{sdp} is C{both} for it.

        @param descriptor: The socket's, which is duplicated.
        """
        skt = socket.fromfd(descriptor, family, cls.socketType)
        made = cls(switch, None, factory, _ADOPTED_BACKLOG, tcp._getsockname(skt)[0], reactor)
        made._preexistingSocket = skt
        return made

    # -- opening

    def startListening(self) -> None:
        """
        Listen with every provider.

        @raise CannotListenError: the port is not available.
        """
        adopted, self._preexistingSocket = self._preexistingSocket, None
        handle = self._open() if adopted is None else self._openAdopted(adopted)
        # How adoptStreamPort() hands tcp.Port a socket; it then takes over the rest of TCP's listening.
        self._preexistingSocket = handle
        try:
            super().startListening()
        except BaseException:
            self._closeCompanions(Failure())
            handle.close()
            raise
        # tcp.Port does not shut an adopted socket down, as another process may share it.
        self._shouldShutdown = adopted is None
        self.switch.listening(self)

    def _open(self) -> Any:
        handle = self._openAlone()
        if handle is not None:
            return handle
        # libsdp port.c: with port 0 the number that TCP draws is tried with SDP, and both are closed and
        # drawn again while it is in use there (up to 20000 times in libsdp).
        tries = limits.PORT_ATTEMPTS if self.port == 0 else 1
        refused: list[CannotListenError] = []
        for left in reversed(range(tries)):
            skt = self._bindTCP()
            try:
                address = self._addressOf(skt)
                self._decide(address)
                if self.why.verdict == TCP:
                    self._listenTCP(skt)
                    return skt
                refused = self._joinBeside(skt, address)
            except BaseException:
                skt.close()
                raise
            # SDP's ports are a space of their own, service ids 0x10000 | port (IBTA vol. 1 annex A4): a
            # number that is free for TCP may be in use there.
            busy = [e for e in refused if isBusy(e)]
            if not busy and (self.sdpListeners or self.why.verdict != SDP):
                break
            if busy and left:
                self._closeCompanions(Failure(busy[0]))
                skt.close()
                continue
            if self._mayGoOn(busy):
                break
            self._closeCompanions(Failure(refused[0]))
            skt.close()
            raise refused[0]
        try:
            # After SDP: a client that waits for this port would keep the TCP connection that it got before.
            if self.why.verdict != SDP:
                self._listenTCP(skt)
        except BaseException:
            self._closeCompanions(Failure())
            skt.close()
            raise
        return self._settled(skt, refused)

    def _openAdopted(self, skt: socket.socket) -> Any:
        try:
            address = self._addressOf(skt)
            self._decide(address)
            # The kernel queues TCP clients on a socket that listens already, and another process may share
            # it: without an accept they would wait for ever.
            if self.why.verdict == SDP:
                self.why.verdict = BOTH
            refused = [] if self.why.verdict == TCP else self._joinBeside(skt, address)
            if refused and not self._mayGoOn([e for e in refused if isBusy(e)]) and not self.sdpListeners:
                raise refused[0]
        except BaseException:
            self._closeCompanions(Failure())
            skt.close()
            raise
        return self._settled(skt, refused)

    def _openAlone(self) -> Any:
        # Only with a fixed number and a literal address can the rules be applied before the TCP socket is
        # bound.
        host = self.interface or "0.0.0.0"
        if not self.port or not (isIPAddress(host) or isIPv6Address(host)):
            return None
        address = addressOf(host, self.port)
        self._decide(address)
        if self.why.verdict != SDP:
            if self.why.verdict != TCP:
                self._openDevices(host)
            return None
        self._at = (address, 0, False)
        refused = self._join(self._devices())
        if not self.sdpListeners or any(isBusy(e) for e in refused):
            self._closeCompanions(Failure(refused[0]))
            raise refused[0]
        return self._settled(None, refused)

    def _openDevices(self, host: str) -> None:
        # To open the first device takes a while.  Before the socket is bound, so that meanwhile no other
        # program can take the number that is bound and not listened on (socket(7), SO_REUSEADDR).
        for device in self.switch.devicesFor(host):
            # Errors are reported when the device is to be listened on.
            with suppress(Exception):
                self.switch.checkThread(self.reactor, device)
                channelFor(self.reactor, device, host)

    def _settled(self, skt: Any, refused: list[CannotListenError]) -> Any:
        why = self.why
        why.decided = why.connected = self.reactor.seconds()
        self._tellProvider()
        if why.verdict == SDP:
            self.alone = True
            why.provider = SDP
            if skt is not None:
                skt.close()
            assert self._at is not None
            handle = ListeningHandle(self._at[0])
            # Programs that read these options back find what they asked for.
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, self._reuseAddress)
            if hasattr(socket, "SO_REUSEPORT"):
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, self._reusePort)
            return handle
        if refused and not self.sdpListeners:
            fallback = Fallback("listen", f"SDP: {refused[0].socketError}")
            self.switch.fellBack(why, fallback, self.interface or "*", self.port or 0)
        return skt

    def _bindTCP(self) -> socket.socket:
        skt = None
        try:
            skt = self.createInternetSocket()
            if self.addressFamily == socket.AF_INET6:
                skt.bind(tcp._resolveIPv6(self.interface, self.port))
            else:
                skt.bind((self.interface, self.port))
        except OSError as e:
            if skt is not None:
                skt.close()
            raise CannotListenError(self.interface, self.port, e) from None
        except BaseException:
            if skt is not None:
                skt.close()
            raise
        made: socket.socket = skt
        return made

    def _listenTCP(self, skt: socket.socket) -> None:
        try:
            # socket(7), SO_REUSEADDR: two sockets may be bound to a number as long as none listens, so a
            # conflict may show here only.
            skt.listen(self.backlog)
        except OSError as e:
            raise CannotListenError(self.interface, self.port, e) from None

    # -- calls that concern all providers

    def startReading(self) -> None:
        if not self.alone:
            super().startReading()
        for listener in self.sdpListeners:
            listener.startReading()

    def stopReading(self) -> None:
        if not self.alone:
            super().stopReading()
        for listener in self.sdpListeners:
            listener.stopReading()

    def connectionLost(self, reason: Failure) -> None:
        # SDP first: without the TCP socket its listeners would offer a service that TCP cannot reach.
        self._closeCompanions(reason)
        super().connectionLost(reason)
