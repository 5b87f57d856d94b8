"""
Carry each TCP connection from a process to itself by SDP.

A TCP port of the process stays what it is, for other processes, and gets an SDP port of the same
number beside it, on each reactor; C{connectTCP} to this host and such a number goes there.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import error, posixbase, tcp
from twisted.internet.protocol import Factory

from twisted_ib.sdp.connector import SDPConnector
from twisted_ib.sdp.port import SDPPort

#: What is this host, beside C{127.} and link-local addresses.
_HERE = frozenset(("localhost", "::1", "", "0.0.0.0", "::"))


class _Beside(Factory):
    """
    The factory of the SDP port: its protocols are those of the TCP port.
    """

    noisy = False

    def __init__(self, port: tcp.Port) -> None:
        """
        @param port: The TCP port.
        """
        self.port = port

    def buildProtocol(self, addr: Any) -> Any:
        """
        @return: What the TCP port's factory makes.
        """
        return self.port.factory.buildProtocol(addr)

    def logPrefix(self) -> str:
        """
        @return: The TCP port's.
        """
        return self.port.logPrefix()


class _SilentPort(SDPPort):
    """
    An SDP port that logs nothing: there is a TCP port that does.
    """

    def __init__(self, number: int, beside: tcp.Port, device: str) -> None:
        """
        @param number: The number that the TCP port has got.
        """
        factory: Any = _Beside(beside)
        super().__init__(number, factory, beside.backlog, beside.interface, beside.reactor, device)

    def _say(self, text: str) -> None:
        """
        Nothing.
        """

    def connectionLost(self, reason: Any) -> None:
        """
        Close, once: a reactor that stops tells both ports, and the other tells this one.
        """
        if self.connected:
            super().connectionLost(reason)

    def logPrefix(self) -> str:
        """
        @return: The TCP port's.
        """
        return str(self.factory.logPrefix())  # type: ignore[attr-defined]


class Redirection:
    """
    The redirection of one process.

    @ivar device: The HCA that carries.
    @ivar carried: How many connections were begun.
    @ivar ports: By reactor and number: those that have SDP beside them.
    """

    def __init__(self, device: str) -> None:
        """
        @param device: The HCA's name.
        """
        self.device = device
        self.carried = 0
        self.ports: dict[tuple[int, int], SDPPort] = {}

    def begin(self) -> None:
        """
        Redirect from now on, for the rest of the process.
        """
        self._openBeside()
        self._closeBeside()
        for name in ("startReading", "stopReading"):
            self._follow(name)
        self._redirectConnecting()

    def _openBeside(self) -> None:
        """
        A TCP port that opens gets an SDP port beside it.
        """
        start, redirection = tcp.Port.startListening, self

        def startListening(port: Any) -> None:
            adopted = port._preexistingSocket is not None
            start(port)
            if adopted or type(port) is not tcp.Port:
                return
            beside = _SilentPort(port.getHost().port, port, redirection.device)
            try:
                beside.startListening()
            except error.CannotListenError:
                return
            port.beside = beside
            redirection.ports[id(port.reactor), port.getHost().port] = beside

        tcp.Port.startListening = startListening  # type: ignore[method-assign]

    def _closeBeside(self) -> None:
        """
        A TCP port that closes takes its SDP port along.
        """
        close, redirection = tcp.Port.connectionLost, self

        def connectionLost(port: Any, reason: Any) -> None:
            beside = port.__dict__.pop("beside", None)
            if beside is not None:
                del redirection.ports[id(port.reactor), port.getHost().port]
                beside.connectionLost(reason)
            close(port, reason)

        tcp.Port.connectionLost = connectionLost

    def _follow(self, name: str) -> None:
        """
        What is done to a TCP port is done to the SDP port.

        @param name: The method.
        """
        original = getattr(tcp.Port, name)

        def both(port: Any) -> None:
            original(port)
            beside = port.__dict__.get("beside")
            if beside is not None:
                getattr(beside, name)()

        setattr(tcp.Port, name, both)

    def _redirectConnecting(self) -> None:
        """
        Connect to the SDP port, if there is one.
        """
        connect, redirection = posixbase.PosixReactorBase.connectTCP, self

        def connectTCP(
            reactor: Any, host: Any, port: Any, factory: Any, timeout: Any = 30, bindAddress: Any = None
        ) -> Any:
            if not redirection.carries(reactor, host, port, bindAddress):
                return connect(reactor, host, port, factory, timeout, bindAddress)
            device = redirection.device
            connector = SDPConnector(host, port, factory, timeout, bindAddress, reactor, device)
            connector.connect()
            redirection.carried += 1
            return connector

        posixbase.PosixReactorBase.connectTCP = connectTCP  # type: ignore[method-assign]

    def carries(self, reactor: Any, host: Any, port: Any, bindAddress: Any) -> bool:
        """
        @return: Whether a connection goes to a port of this process.
        """
        if not isinstance(port, int) or not (bindAddress is None or isinstance(bindAddress, tuple)):
            return False
        here = isinstance(host, str) and (host in _HERE or host.startswith(("127.", "fe80:")))
        return here and (id(reactor), port) in self.ports
