"""
Listening through the switch: one port over TCP and over the devices beside it.

A L{SwitchedPort} is Twisted's TCP port; what an application asks of one it does.  Beside its socket it
has companions (L{twisted_ib.reactor.switch.sdplistener}), SDP ports of the same address and number, one per
device, whose connections its own factory's protocols get.  Under a rule C{sdp} it has companions only.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet import tcp
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.error import CannotListenError
from twisted.internet.main import CONNECTION_DONE
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.internet.addresses import Address, addressOf
from twisted_ib.reactor.rules.parser import LISTEN, SDP, TCP
from twisted_ib.reactor.switch.handle import ListeningHandle
from twisted_ib.reactor.switch.reason import Fallback, Reason
from twisted_ib.reactor.switch.sdplistener import SDPListener

if TYPE_CHECKING:
    from twisted_ib.reactor.switch.switch import Switch


#: What a part is told whose device is removed.
_GONE = Failure(CONNECTION_DONE)


class SwitchedPort(tcp.Port):
    """
    What C{listenTCP} gives where policy does not leave everything to TCP.

    @ivar switch: The reactor's switch.
    @ivar why: What was decided, and why.
    @ivar companions: The parts on devices.
    @ivar peers: The numbers of their peers, by host.
    @ivar alone: Whether there is no TCP socket.
    """

    reactor: Any
    _reuseAddress: bool
    _reusePort: bool
    _log = Logger()

    def __init__(
        self, switch: Switch, port: Any, factory: Any, backlog: int, interface: str, reactor: Any
    ) -> None:
        """
        @param switch: The reactor's switch.
        @param port: The port, 0 for any, or a C{Binding}.
        """
        super().__init__(port, factory, backlog, interface, reactor)
        self.switch = switch
        self.sdpListeners: tuple[SDPListener, ...] = ()
        self.peers: dict[str, set[int]] = {}
        self.alone = False
        self._at: tuple[Address, int, bool] | None = None
        self.why = Reason("default", TCP, asked=reactor.seconds())

    # -- opening

    def startListening(self) -> None:
        """
        Take the port everywhere.

        @raise CannotListenError: It cannot be had.
        """
        handle = self._open()
        self._preexistingSocket = handle
        try:
            super().startListening()
        except BaseException:
            self._closeCompanions(Failure())
            handle.close()
            raise
        self._shouldShutdown = True
        self.switch.listening(self)

    def _open(self) -> Any:
        """
        Find a number that is free everywhere, or as policy says.

        @return: The TCP socket, or what stands for it.
        """
        handle = self._openAlone()
        if handle is not None:
            return handle
        tries = limits.PORT_ATTEMPTS if self.port == 0 else 1
        refused: list[CannotListenError] = []
        for left in reversed(range(tries)):
            skt = self._listenTCP()
            try:
                address = self._addressOf(skt)
                self._decide(address)
                if self.why.verdict == TCP:
                    return skt
                v6only = skt.family == socket.AF_INET6 and bool(
                    skt.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
                )
                self._at = (address, 0 if self.why.verdict == SDP else os.fstat(skt.fileno()).st_ino, v6only)
                refused = self._join(self._devices())
            except BaseException:
                skt.close()
                raise
            busy = [e for e in refused if _isBusy(e)]
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
        return self._settled(skt, refused)

    def _openAlone(self) -> Any:
        """
        Where it is known before that there will be no TCP socket, do not ask for one.
        """
        host = self.interface or "0.0.0.0"
        if not self.port or not (isIPAddress(host) or isIPv6Address(host)):
            return None
        address = addressOf(host, self.port)
        self._decide(address)
        if self.why.verdict != SDP:
            return None
        self._at = (address, 0, False)
        refused = self._join(self._devices())
        if not self.sdpListeners or any(_isBusy(e) for e in refused):
            self._closeCompanions(Failure(refused[0]))
            raise refused[0]
        return self._settled(None, refused)

    def _settled(self, skt: Any, refused: list[CannotListenError]) -> Any:
        """
        Write down what became of it.

        @param skt: The TCP socket; L{None} if there never was one.
        @param refused: What devices said who do not take part.
        @return: The socket, or what stands for it.
        """
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
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, self._reuseAddress)
            if hasattr(socket, "SO_REUSEPORT"):
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, self._reusePort)
            return handle
        if refused and not self.sdpListeners:
            self.switch.fellBack(why, Fallback("listen", f"SDP: {refused[0].socketError}"))
        return skt

    def _mayGoOn(self, busy: list[CannotListenError]) -> bool:
        """
        Whether TCP alone will do though SDP did not: by default, as unmodified programs must be able to
        listen wherever they could; where a rule says C{both}, unless the number is somebody else's.
        """
        return self.why.verdict != SDP and (self.why.rule == "default" or not busy)

    def _listenTCP(self) -> socket.socket:
        """
        Make a socket that listens.

        @raise CannotListenError: TCP does not give the port.
        """
        skt = None
        try:
            skt = self.createInternetSocket()
            if self.addressFamily == socket.AF_INET6:
                skt.bind(tcp._resolveIPv6(self.interface, self.port))
            else:
                skt.bind((self.interface, self.port))
            # With SO_REUSEADDR two may be bound, and the second is refused here.
            skt.listen(self.backlog)
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

    def _addressOf(self, skt: socket.socket) -> Address:
        name = tcp._getsockname(skt)
        return addressOf(str(name[0]), name[1])

    def _decide(self, address: Address) -> None:
        decision = self.switch.decide(LISTEN, address.host, address.port)
        self.why.rule, self.why.verdict = decision.where, decision.verdict

    def _devices(self) -> tuple[str, ...]:
        assert self._at is not None
        return self.switch.devicesFor(self._at[0].host)

    # -- companions

    def _join(self, devices: tuple[str, ...]) -> list[CannotListenError]:
        """
        Listen on devices.

        @return: Why not on some of them.
        """
        assert self._at is not None
        address, inode, v6only = self._at
        refused = []
        for device in devices:
            try:
                self.switch.checkThread(self.reactor, device)
                companion = SDPListener(self, device, address, inode, v6only)
                companion.startListening()
            except CannotListenError as e:
                refused.append(e)
            except Exception as e:
                if not isinstance(e, ImportError):  # As after chroot.
                    self._log.failure("{device} cannot be listened on", device=device)
                refused.append(CannotListenError(self.interface, address.port, OSError(errno.EIO, str(e))))
            else:
                self.sdpListeners += (companion,)
                self.switch.opened(self.reactor, device)
        if not devices:
            refused.append(
                CannotListenError(self.interface, address.port, OSError(errno.ENODEV, "no device serves it"))
            )
        return refused

    def companionLost(self, companion: SDPListener, reason: Failure) -> None:
        """
        A companion was closed by somebody else: the reactor that stops.
        """
        self.sdpListeners = tuple(each for each in self.sdpListeners if each is not companion)
        if self.alone and not self.sdpListeners and self.connected:
            self.connectionLost(reason)

    def deviceAdded(self, name: str) -> None:
        """
        There is a new device: listen on it, if the rules would have done so.
        """
        known = {each.device for each in self.sdpListeners}
        if self._at is None or not self.connected or name in known or name not in self._devices():
            return
        for error in self._join((name,)):
            self._log.info("{port} not on {name}: {error}", port=self, name=name, error=str(error))
        self._tellProvider()

    def deviceGoing(self, name: str) -> None:
        """
        A device goes: listen on it no more.
        """
        going = [each for each in self.sdpListeners if each.device == name]
        self.sdpListeners = tuple(each for each in self.sdpListeners if each.device != name)
        self._close(going, _GONE)
        self._tellProvider()

    def _tellProvider(self) -> None:
        why = self.why
        why.device = ",".join(each.device or "" for each in self.sdpListeners) or None
        if not self.alone:
            why.provider = "both" if self.sdpListeners else TCP

    def _closeCompanions(self, reason: Failure) -> None:
        sdpListeners, self.sdpListeners = self.sdpListeners, ()
        self._close(sdpListeners, reason)

    def _close(self, sdpListeners: Iterable[SDPListener], reason: Failure) -> None:
        for companion in sdpListeners:
            try:
                companion.close(reason)
            except Exception:
                self._log.failure("{device} cannot be closed", device=companion.device)

    # -- what is done to the port is done to all

    def startReading(self) -> None:
        """
        Accept connections.
        """
        if not self.alone:
            super().startReading()
        for companion in self.sdpListeners:
            companion.startReading()

    def stopReading(self) -> None:
        """
        Let them wait.
        """
        if not self.alone:
            super().stopReading()
        for companion in self.sdpListeners:
            companion.stopReading()

    def connectionLost(self, reason: Failure) -> None:
        """
        Close everywhere.
        """
        self._closeCompanions(reason)
        super().connectionLost(reason)


def _isBusy(error: CannotListenError) -> bool:
    return getattr(error.socketError, "errno", None) == errno.EADDRINUSE


__all__ = ["SwitchedPort"]
