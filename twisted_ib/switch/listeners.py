"""
The SDP listeners of a port: what all ports of the switch have beside their TCP socket, whose ever that is.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet import tcp
from twisted.internet.error import CannotListenError
from twisted.internet.main import CONNECTION_DONE
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_ib.configuration.words import LISTEN, SDP, TCP
from twisted_ib.hca.connection import ConnectRequest, RejectReason
from twisted_ib.internet.addressing.addresses import Address, addressOf
from twisted_ib.sdp.port import SDPPort
from twisted_ib.switch.reason import Fallback, Reason
from twisted_ib.switch.serverclient import RedirectedServer

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase
    from twisted.python.failure import Failure

    from twisted_ib.internet.addressing.addresses import Address
    from twisted_ib.internet.channel import DeviceChannel
    from twisted_ib.switch.reason import Reason
    from twisted_ib.switch.serverclient import RedirectedServer
    from twisted_ib.switch.switch import Switch

#: The reason of a listener whose device is removed.
_GONE = Failure(CONNECTION_DONE)


class _SharedFactory(Factory):
    # Not the port's factory itself: its doStart() and doStop() would be called once per device.
    noisy = False

    def __init__(self, port: PortListeners) -> None:
        self.port = port

    def buildProtocol(self, addr: Any) -> Any:
        factory: Any = self.port.factory
        return factory.buildProtocol(addr)


class SDPListener(SDPPort):
    """
    The part of a port that listens on one device.

    @ivar main: The port.
    @ivar inode: That of the port's TCP socket; 0 if it has none.
    @ivar v6only: Whether a listener on C{::} refuses IPv4.
    """

    def __init__(self, main: PortListeners, device: str, address: Address, inode: int, v6only: bool) -> None:
        factory: Any = _SharedFactory(main)
        super().__init__(address.port, factory, main.backlog or 1, address.host, main.reactor, device)
        self.main = main
        self.inode = inode
        self.v6only = v6only

    @property
    def sessionno(self) -> int:
        """
        The number of the next connection, over all providers.
        """
        return self.main.sessionno

    @sessionno.setter
    def sessionno(self, number: int) -> None:
        """
        Set it.
        """
        self.main.sessionno = number

    @property
    def why(self) -> Reason:
        """
        The port's decision.
        """
        return self.main.why

    def _takePort(self, channel: DeviceChannel, address: str) -> tuple[Any, ...]:
        listen, space = channel.device.listen, self.handshake.PORT_SPACE
        first = listen(space, address, self.port, self, self.inode)
        # RFC 3493 section 5.3: the same families as the TCP socket, whose number this is; another number
        # would not do.
        if address != "::" or self.v6only:
            return (first,)
        try:
            return first, listen(space, "0.0.0.0", self.port, self, self.inode)
        except BaseException:
            first.close()
            raise

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        if self.reading or self.main.alone:
            super().connectionRequested(connection, request)
            return
        channel = self._channel
        assert channel is not None
        # While the port is paused the REQ is rejected (IBTA vol. 1 12.6.7.2, reason 3), and the client falls
        # back to TCP: there the kernel completes the handshake into the accept queue, where another process
        # on the same socket may accept it.  In our queue the client would wait for its timeout.
        channel.count("paused")
        connection.reject(RejectReason.NO_RESOURCES, b"", channel.now())

    def transport(  # type: ignore[override]
        self, channel: Any, here: Any, peer: Any, server: Any, sessionno: int
    ) -> RedirectedServer:
        """
        Make the transport of a connection, which belongs to the port.
        """
        # With the switched port as C{server}: programs find the object there that listenTCP() returned.
        made = self.main.transportClass(channel, here, peer, self.main, sessionno)
        made.why = self.main.switch.accepted(self.main.why, channel)
        return made

    def isTaken(self, peer: Address) -> bool:
        # Each process draws its own numbers, while the kernel never gives two TCP connections to one port the
        # same one.
        return peer.port in self.main.peers.get(peer.host, ())

    def _say(self, text: str) -> None:
        pass

    def logPrefix(self) -> str:
        return str(self.main.logPrefix())

    def close(self, reason: Failure) -> None:
        """
        Close, once.
        """
        if self.connected:
            super().connectionLost(reason)

    def connectionLost(self, reason: Failure) -> None:
        # A port without a socket is closed by this.
        self.close(reason)
        self.main.listenerLost(self, reason)


class PortListeners:
    """
    A port with SDP listeners, one for each device; a base class.

    @ivar switch: The reactor's switch.
    @ivar why: The decision.
    @ivar sdpListeners: The listeners on devices.
    @ivar peers: Port numbers of their peers, by host.
    @ivar alone: Whether there is no TCP socket.
    @cvar transportClass: The class of its transports over SDP.
    """

    factory: Any
    reactor: ReactorBase
    interface: str
    backlog: int
    connected: Any
    sessionno: int
    transportClass: type[RedirectedServer] = RedirectedServer
    _log = Logger()

    def _withoutListeners(self, switch: Switch, reactor: ReactorBase) -> None:
        self.switch = switch
        self.sdpListeners: tuple[SDPListener, ...] = ()
        self.peers: dict[str, set[int]] = {}
        self.alone = False
        self._at: tuple[Address, int, bool] | None = None
        self.why = Reason("default", TCP, asked=reactor.seconds())

    def connectionLost(self, reason: Failure) -> None:
        """
        Close the port.
        """
        raise NotImplementedError

    def logPrefix(self) -> str:
        """
        Return the prefix of log lines about the port.
        """
        raise NotImplementedError

    def _joinBeside(self, skt: socket.socket, address: Address) -> list[CannotListenError]:
        v6only = skt.family == socket.AF_INET6 and bool(
            skt.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        )
        # Under C{sdp} the TCP socket will be closed, so no client may be told to look for its inode.
        self._at = (address, 0 if self.why.verdict == SDP else os.fstat(skt.fileno()).st_ino, v6only)
        return self._join(self._devices())

    def _mayGoOn(self, busy: list[CannotListenError]) -> bool:
        # By default TCP alone will do: unmodified programs must be able to listen wherever they could.  Under
        # a rule C{both} too, unless SDP's number is in use (EADDRINUSE): libsdp's listen fails then.
        return self.why.verdict != SDP and (self.why.rule == "default" or not busy)

    def _addressOf(self, skt: socket.socket) -> Address:
        name = tcp._getsockname(skt)
        return addressOf(str(name[0]), name[1])

    def _decide(self, address: Address) -> None:
        decision = self.switch.decide(LISTEN, address.host, address.port)
        self.why.rule, self.why.verdict = decision.where, decision.verdict

    def _devices(self) -> tuple[str, ...]:
        assert self._at is not None
        return self.switch.devicesFor(self._at[0].host)

    def _join(self, devices: tuple[str, ...]) -> list[CannotListenError]:
        assert self._at is not None
        address, inode, v6only = self._at
        refused = []
        for device in devices:
            try:
                self.switch.checkThread(self.reactor, device)
                listener = SDPListener(self, device, address, inode, v6only)
                listener.startListening()
            # One device that refuses must not keep the port from the others: Intel's Offload Protocol Switch
            # asks a listen on INADDR_ANY to use all providers.
            except CannotListenError as e:
                refused.append(e)
            except Exception as e:
                # Modules may not be found after a chroot, nor read without a free descriptor: no fault to
                # report.
                if not isinstance(e, ImportError | OSError | MemoryError):
                    self._log.failure("{device} cannot be listened on", device=device)
                refused.append(CannotListenError(self.interface, address.port, OSError(errno.EIO, str(e))))
            else:
                self.sdpListeners += (listener,)
                self.switch.opened(self.reactor, device)
        if not devices:
            refused.append(
                CannotListenError(self.interface, address.port, OSError(errno.ENODEV, "no device serves it"))
            )
        return refused

    def listenerLost(self, listener: SDPListener, reason: Failure) -> None:
        """
        The reactor closed an SDP listener.
        """
        self.sdpListeners = tuple(each for each in self.sdpListeners if each is not listener)
        if self.alone and not self.sdpListeners and self.connected:
            self.connectionLost(reason)

    def deviceAdded(self, name: str) -> None:
        """
        Listen on a new device, if the rules name it.
        """
        known = {each.device for each in self.sdpListeners}
        if self._at is None or not self.connected or name in known or name not in self._devices():
            return
        for error in self._join((name,)):
            self._log.info("{port} not on {name}: {error}", port=self, name=name, error=str(error))
        self._tellProvider()

    def deviceGoing(self, name: str) -> None:
        """
        Stop listening on a device.
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
        for listener in sdpListeners:
            try:
                listener.close(reason)
            except Exception:
                self._log.failure("{device} cannot be closed", device=listener.device)


class SocketListeners(PortListeners):
    """
    The SDP listeners of a socket that is bound already, whose TCP is not Twisted's; a base class.
    """

    sessionno = 0
    connected: Any = False

    def _besideSocket(self, switch: Switch, reactor: ReactorBase, skt: socket.socket) -> None:
        self.reactor = reactor
        self._withoutListeners(switch, reactor)
        self._address = self._addressOf(skt)
        self.interface = self._address.host

    def _open(self, skt: socket.socket, draws: bool) -> None:
        # draws: another number would do if this one is in use.
        why = self.why
        refused = [] if why.verdict == TCP else self._joinBeside(skt, self._address)
        busy = [each for each in refused if isBusy(each)]
        if (busy and draws) or (refused and not self._mayGoOn(busy) and (busy or not self.sdpListeners)):
            self.close()
            raise refusal((busy or refused)[0])
        self.connected = True
        self.alone = why.verdict == SDP
        why.decided = why.connected = self.reactor.seconds()
        self._tellProvider()
        if self.alone:
            why.provider = SDP
        elif refused and not self.sdpListeners:
            fallback = Fallback("listen", f"SDP: {refused[0].socketError}")
            self.switch.fellBack(why, fallback, self.interface, self._address.port)
        self.switch.listening(self)

    def close(self) -> None:
        """
        Close the SDP listeners.
        """
        raise NotImplementedError

    def getHost(self) -> Address:
        """
        Return the address that is listened on.
        """
        return self._address


def refusal(refused: CannotListenError) -> OSError:
    """
    Return the reason why something cannot be listened on as the operating system's error.
    """
    reason: Any = refused.socketError
    number = getattr(reason, "errno", None)
    if isinstance(number, int):
        return OSError(number, f"SDP: {getattr(reason, 'strerror', None) or reason}")
    return OSError(errno.EADDRNOTAVAIL, f"SDP: {reason}")


def isBusy(error: CannotListenError) -> bool:
    """
    Return whether an address and number cannot be listened on as they are in use.
    """
    return getattr(error.socketError, "errno", None) == errno.EADDRINUSE
