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

from twisted.internet.protocol import Protocol
from twisted.internet.threads import deferToThread

from benchmarks.clients import manyDescriptors
from twisted_ib.tools.compare.twistedprocess import SERVICES, run, serve


class ThreadEcho(Protocol):
    """
    Send back what comes after a thread has looked at it, as WSGI does.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Bytes came.
        """
        deferToThread(bytes, data).addCallback(self.transport.write)  # type: ignore[union-attr]


async def _runRow(reactor: Any, line: bytes) -> dict[str, object]:
    """
    Connect to the server and run one workload against it.
    """
    from benchmarks.bench import Bench
    from benchmarks.workloads import WORKLOADS
    from twisted_ib.tools.compare.twistedprocess import clientFrom

    command = json.loads(line)
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
    run(role, reactorName, lambda reactor: _serve(reactor, endpoint, noDelay == "1"), _runRow)


if __name__ == "__main__":
    main(sys.argv[1:])
