"""
A process of C{ib-perf compare} under Twisted.

A server prints where it listens as one JSON line; a client reads one JSON line for each measurement and
prints its figures as one line.  Both end when their standard input is closed: none outlives the driver.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.application.reactors import installReactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure

from twisted_ib.tools.compare.applications import Caller, Collector, Echo, Sink, Source
from twisted_ib.tools.compare.measuring import CALLER, COLLECTOR, SOURCE, perform
from twisted_ib.tools.compare.subjects import SERVER
from twisted_ib.tools.compare.switched import clientFrom, servicesFor

#: The longest command.
_LINE_BYTES = 65536

#: The services of a server.
SERVICES: Mapping[str, type[Protocol]] = {"echo": Echo, "sink": Sink}

#: The service that a client needs, and its protocol.
_CLIENTS = {CALLER: ("echo", Caller), COLLECTOR: ("echo", Collector), SOURCE: ("sink", Source)}


class Commands(LineReceiver):
    """
    The driver, on standard input and output.
    """

    delimiter = b"\n"
    MAX_LENGTH = _LINE_BYTES

    def __init__(
        self, reactor: Any, run: Callable[[bytes], Coroutine[Any, Any, dict[str, object]]] | None = None
    ) -> None:
        """
        @param run: Runs the row of a line, in a client.
        """
        self._reactor = reactor
        self._run = run

    def lineReceived(self, line: bytes) -> None:
        if self._run is not None:
            task = Deferred.fromCoroutine(self._run(line))
            task.addErrback(failed).addCallback(self.tell)

    def tell(self, message: dict[str, object]) -> None:
        """
        Print one line.
        """
        self.sendLine(json.dumps(message).encode())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._reactor.running:
            self._reactor.stop()


def failed(failure: Failure) -> dict[str, object]:
    """
    The output of a row that failed.
    """
    failure.printTraceback(sys.stderr)
    return {"error": failure.getErrorMessage() or repr(failure.value)}


async def measure(reactor: Any, clients: dict[str, Any], line: bytes) -> dict[str, object]:
    """
    Measure what a command asks for.

    @param clients: those that are connected, by their kind; more are added.
    """
    command = json.loads(line)

    async def connect(kind: str) -> Any:
        if kind not in clients:
            service, protocol = _CLIENTS[kind]
            endpoint = clientFrom(reactor, command["places"][service])
            clients[kind] = client = await endpoint.connect(Factory.forProtocol(protocol))
            if command["noDelay"]:
                client.transport.setTcpNoDelay(True)
        return clients[kind]

    return dict(await perform(command, connect))


async def serve(
    reactor: Any, endpoint: str, noDelay: bool, services: Mapping[str, type[Protocol]] = SERVICES
) -> dict[str, object]:
    """
    Listen for all services.

    @return: the ports that they got.
    """
    places: dict[str, object] = {}
    endpoint, made = servicesFor(endpoint, services)
    for name, protocol in made.items():
        string = endpoint.replace("{folder}", os.getcwd())
        port: Any = await serverFromString(reactor, string.replace("{name}", name)).listen(
            Factory.forProtocol(protocol)
        )
        if noDelay:
            # Linux: an accepted socket has its listener's TCP_NODELAY.
            port.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        places[name] = getattr(port.getHost(), "port", 0)
    return places


def run(
    role: str,
    reactorName: str,
    serving: Callable[[Any], Coroutine[Any, Any, dict[str, object]]],
    answering: Callable[[Any, bytes], Coroutine[Any, Any, dict[str, object]]],
) -> None:
    """
    Be one process, until the driver is done with it.

    @param role: L{SERVER} or L{CLIENT}.
    @param serving: listens, with a reactor, and returns the ports.
    @param answering: runs the row of a line, with a reactor.
    """
    installReactor(reactorName)
    # After the installation, which they would do otherwise.
    from twisted.internet import reactor as installed
    from twisted.internet import stdio

    reactor: Any = installed
    Factory.noisy = False
    commands = Commands(reactor, None if role == SERVER else partial(answering, reactor))
    stdio.StandardIO(commands)
    if role == SERVER:
        started = Deferred.fromCoroutine(serving(reactor))
        started.addErrback(failed).addCallback(commands.tell)
    else:
        reactor.callWhenRunning(commands.tell, {"ready": True})
    reactor.run()


def main(arguments: Sequence[str]) -> None:
    """
    Run one process: C{(server|client) REACTOR [ENDPOINT NODELAY]}.
    """
    role, reactorName, *rest = arguments
    clients: dict[str, Any] = {}
    run(
        role,
        reactorName,
        lambda reactor: serve(reactor, rest[0], rest[1] == "1"),
        lambda reactor, line: measure(reactor, clients, line),
    )
