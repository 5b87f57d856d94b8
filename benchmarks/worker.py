"""
One process of a comparison under Twisted: C{python -m benchmarks.worker}.

A server prints where it listens as one JSON line; a client reads one JSON
line per row to run and prints its figures as one line.  Both end when their
standard input closes.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from twisted.application.reactors import installReactor
from twisted.internet.defer import ensureDeferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThread

from benchmarks.measuring import manyDescriptors
from twisted_ib.tools.compare.worker import SERVICES, Commands, failed, serve


class ThreadEcho(Protocol):
    """
    Send back what comes after a thread has looked at it, as WSGI does.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Bytes came.
        """
        deferToThread(bytes, data).addCallback(self.transport.write)  # type: ignore[union-attr]


async def _runRow(reactor: Any, command: dict[str, Any]) -> dict[str, object]:
    """
    Connect to the server and run one workload against it.
    """
    from benchmarks.bench import Bench
    from benchmarks.workloads import WORKLOADS
    from twisted_ib.tools.compare.switched import clientFrom

    bench = Bench(
        reactor=reactor,
        echo=clientFrom(reactor, command["echo"]),
        sink=clientFrom(reactor, command["sink"]),
        thread=clientFrom(reactor, command["thread"]),
        memory=clientFrom(reactor, command["memory"]),
        noDelay=command["noDelay"],
        processes=(os.getpid(), command["server"]),
        count=command["count"],
    )
    workload = WORKLOADS[command["workload"]]
    return dict(await workload(bench, command["size"], command["seconds"]))


async def _serve(reactor: Any, endpoint: str, noDelay: bool) -> dict[str, object]:
    """
    Listen for all services; the ports that they got.
    """
    from benchmarks.registered import Owner

    services = {**SERVICES, "thread": ThreadEcho, "memory": Owner}
    return await serve(reactor, endpoint.replace("{path}", "{folder}/{name}"), noDelay, services)


def main(arguments: list[str]) -> None:
    """
    C{worker (server|client) REACTOR ENDPOINT NODELAY}
    """
    role, reactorName, endpoint, noDelay = arguments
    manyDescriptors()
    installReactor(reactorName)
    from twisted.internet import reactor as _reactor
    from twisted.internet import stdio

    reactor: Any = _reactor
    Factory.noisy = False
    isClient = role == "client"
    commands = Commands(reactor, (lambda line: _runRow(reactor, json.loads(line))) if isClient else None)
    stdio.StandardIO(commands)
    if role == "server":
        started = ensureDeferred(_serve(reactor, endpoint, noDelay == "1"))
        started.addErrback(failed).addCallback(commands.tell)
    else:
        reactor.callWhenRunning(commands.tell, {"ready": True})
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1:])
