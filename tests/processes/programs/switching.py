"""
A child whose servers and clients know of TCP only: what the switch makes of them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.python.failure import Failure

import twisted_ib
from tests.internet.twistedapi import makeBinding
from tests.processes.programs.child import Program

_CLONE_NEWNET = 0x40000000


class Greeter(Protocol):
    """
    A server's protocol: says who it is, then echoes.
    """

    factory: Any

    def connectionMade(self) -> None:
        """
        Greet.
        """
        program = self.factory.program
        program.accepted.append(self)
        program.tell("accepted", transport=type(self.transport).__name__)
        assert self.transport is not None
        self.transport.write(b"%s\n" % self.factory.name.encode())

    def dataReceived(self, data: bytes) -> None:
        """
        Echo.
        """
        assert self.transport is not None
        self.transport.write(data)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """
        Say so.
        """
        self.factory.program.accepted.remove(self)
        self.factory.program.tell("serverLost", reason=type(reason.value).__name__)


class Visitor(Protocol):
    """
    A client's protocol.
    """

    factory: Any
    _said = b""

    def connectionMade(self) -> None:
        self.factory.made += 1

    def dataReceived(self, data: bytes) -> None:
        """
        The server has said who it is, and then something.
        """
        self._said += data
        done, self.factory.done = self.factory.done, None
        if done is not None:
            done.callback(self)

    def name(self) -> str:
        """
        @return: The server's name.
        """
        return self._said.split(b"\n")[0].decode()

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """
        Say so.
        """
        self.factory.program.tell("lost", reason=type(reason.value).__name__)
        done, self.factory.done = self.factory.done, None
        if done is not None:
            done.errback(reason)


class Visits(ClientFactory):
    """
    A client that connects once.

    @ivar done: Fires when the server has said who it is.
    @ivar made: How often a connection was made.
    @ivar failed: How often it failed.
    """

    protocol = Visitor

    def __init__(self, program: Any) -> None:
        """
        @param program: The child's.
        """
        self.program = program
        self.done: Deferred[Any] | None = Deferred()
        self.made = self.failed = 0

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        """
        It did not.
        """
        self.failed += 1
        done, self.done = self.done, None
        if done is not None:
            done.errback(reason)


class Switching(Program):
    """
    Listens and connects as programs do that have never heard of SDP.
    """

    def __init__(self, reactor: Any, line: Any) -> None:
        """
        Nothing is open.
        """
        super().__init__(reactor, line)
        self.accepted: list[Any] = []
        self.ports: dict[int, Any] = {}
        self.visitors: dict[int, Any] = {}
        self.held: list[Any] = []

    # -- servers

    def do_listen(
        self,
        port: int = 0,
        interface: str = "127.0.0.1",
        name: str = "server",
        reusePort: bool = False,
        adopt: bool = False,
    ) -> dict[str, Any]:
        """
        Call C{listenTCP}, or listen with SO_REUSEPORT and call C{adoptStreamPort}.
        """
        where: Any = port
        if adopt:
            with socket.socket() as skt:
                skt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                skt.bind((interface, port))
                skt.listen()
                skt.setblocking(False)
                made = self.reactor.adoptStreamPort(skt.fileno(), socket.AF_INET, self._factory(name))
            return self._listening(made)
        if reusePort:
            where = makeBinding(interface, port, reuseAddress=True, reusePort=True)
        return self._listening(self.reactor.listenTCP(where, self._factory(name), interface=interface))

    def do_listenEndpoint(self, endpoint: str, name: str = "server") -> Deferred[dict[str, Any]]:
        """
        Listen on an endpoint string.
        """
        server = serverFromString(self.reactor, endpoint)
        return server.listen(self._factory(name)).addCallback(self._listening)

    def _factory(self, name: str) -> Any:
        """
        @return: The factory of a server.
        """
        factory: Any = Factory.forProtocol(Greeter)
        factory.program, factory.name = self, name
        return factory

    def _listening(self, port: Any) -> dict[str, Any]:
        """
        @return: A description of a port.
        """
        self.ports[port.getHost().port] = port
        return self.do_port(port.getHost().port)

    def do_port(self, port: int) -> dict[str, Any]:
        """
        @return: A description of a port.
        """
        return {"port": port, **self._why(self.ports[port])}

    def do_stop(self, port: int) -> Any:
        """
        Stop listening.
        """
        return self.ports.pop(port).stopListening().addCallback(lambda _: None)

    # -- clients

    def do_connect(
        self, port: int, host: str = "127.0.0.1", timeout: float | None = 30, bind: Any = None
    ) -> Deferred[dict[str, Any]]:
        """
        Call C{connectTCP} and wait for the server's greeting.
        """
        visits = Visits(self)
        done = visits.done
        assert done is not None
        self.reactor.connectTCP(host, port, visits, timeout, tuple(bind) if bind else None)
        return done.addCallback(self._visited, visits)

    def do_connectEndpoint(self, endpoint: str) -> Deferred[dict[str, Any]]:
        """
        Connect to an endpoint string.
        """
        visits = Visits(self)
        done = visits.done
        assert done is not None
        clientFromString(self.reactor, endpoint).connect(visits).addErrback(self._lost, visits)
        return done.addCallback(self._visited, visits)

    def _lost(self, reason: Failure, visits: Visits) -> None:
        """
        An endpoint did not connect.
        """
        visits.clientConnectionFailed(None, reason)

    def _visited(self, visitor: Any, visits: Visits) -> dict[str, Any]:
        """
        @return: A description of a connection.
        """
        self.visitors[len(self.visitors)] = visitor
        host = visitor.transport.getHost()
        return {
            "wire": len(self.visitors) - 1,
            "server": visitor.name(),
            "made": visits.made,
            "failed": visits.failed,
            "local": [host.host, host.port],
            "fileno": getattr(visitor.transport.getHandle(), "fileno", lambda: None)(),
            **self._why(visitor.transport),
        }

    def do_close(self, wire: int) -> None:
        """
        Close a connection.
        """
        self.visitors[wire].transport.loseConnection()

    # -- what is known

    def _why(self, thing: Any) -> dict[str, Any]:
        """
        @return: Why something goes the way it goes.
        """
        from twisted_ib.switch.switch import explain

        why = explain(thing)
        return {
            "rule": why.rule,
            "verdict": why.verdict,
            "provider": why.provider,
            "device": why.device,
            "fallback": getattr(why.fallback, "kind", None),
            "text": str(why),
        }

    def do_counters(self) -> dict[str, int]:
        """
        @return: The counters of the switch.
        """
        return dict(self.reactor.switch.counters)

    def do_deviceCounters(self) -> dict[str, int]:
        """
        @return: Those counters as the device shows them.
        """
        from twisted_ib.internet.readers import channelsOf

        (channel,) = channelsOf(self.reactor)
        counters: dict[str, int] = channel.device.statistics()
        return {name: count for name, count in counters.items() if name.startswith("switch_")}

    def do_polled(self) -> int:
        """
        @return: How many devices the reactor polls.
        """
        return len(self.reactor._channels)

    def do_bindable(self, host: str, port: int) -> bool:
        """
        @return: Whether a TCP socket can be bound there.
        """
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as e:
                if e.errno != errno.EADDRINUSE:
                    raise
                return False
            return True

    # -- surroundings

    def do_namespace(self) -> bool:
        """
        Go into a network namespace of our own.

        @return: Whether that is allowed.
        """
        return ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) == 0

    def do_become(self, uid: int) -> None:
        """
        Be another user.
        """
        # Without root modules may be unreadable.  Those of C programs and Dask need more than this package.
        for module in walk_packages(twisted_ib.__path__, "twisted_ib."):
            if not module.name.startswith(("twisted_ib.verbs.c.", "twisted_ib.tools.", "twisted_ib.dask.")):
                import_module(module.name)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    def do_addDevice(self, name: str, fabric: str) -> None:
        """
        Add a device.
        """
        from twisted_ib.hca.device.device import addDevice

        addDevice(name, fabric)

    def do_removeDevice(self, name: str) -> None:
        """
        Remove a device.
        """
        from twisted_ib.hca.device.device import removeDevice

        removeDevice(name)

    def do_reload(self) -> bool:
        """
        Read the rules again.
        """
        return bool(self.reactor.switch.configuration.reload())


__all__ = ["Switching"]
