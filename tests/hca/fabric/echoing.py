"""
A process that echoes over SDP, or is echoed: for tests of fabrics with real
processes and reactors.

C{python -m tests.hca.fabric.echoing REACTOR FABRIC ROLE}; FABRIC is C{rings}, C{sockets} or
C{lo0}, ROLE is C{server}, C{both} or the port of a server.  A server prints its
port.  The other prints C{done} when all has come back as it was sent, or why it
has not.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from typing import Any

from attrs import evolve
from twisted.application.reactors import installReactor
from twisted.internet import endpoints, protocol

#: Round trips, then bytes in one piece.
TRIPS, BULK = 200, 5_000_000


class Echo(protocol.Protocol):
    """
    Sends back what comes.
    """

    transport: Any

    def dataReceived(self, data: bytes) -> None:
        """
        Send it back.
        """
        self.transport.write(data)


class Asker(protocol.Protocol):
    """
    Sends, and compares what comes back.
    """

    transport: Any

    def connectionMade(self) -> None:
        self.left = TRIPS
        self.sent = random.Random(7).randbytes(BULK)
        self.got: list[bytes] = []
        self.outcome = "the connection was lost"
        self.transport.write(b"trip")

    def dataReceived(self, data: bytes) -> None:
        if self.left:
            self.left -= 1
            self.transport.write(data if self.left else self.sent)
            return
        self.got.append(data)
        if sum(map(len, self.got)) >= BULK:
            self.outcome = "done" if b"".join(self.got) == self.sent else "the bytes differ"
            self.transport.loseConnection()

    def connectionLost(self, reason: Any = protocol.connectionDone) -> None:
        """
        Say how it went.
        """
        from twisted.internet import reactor

        print(self.outcome, type(reason.value).__name__, flush=True)
        reactor.stop()


class Waiter(Asker):
    """
    Waits for the end of the connection; for C{kill} in place of a bulk.
    """

    def connectionMade(self) -> None:
        """
        Say so.
        """
        self.outcome = "lost"
        print("connected", flush=True)


def main(kind: str, fabric: str, role: str) -> None:
    """
    Run.
    """
    installReactor(kind)
    from twisted.internet import reactor

    from twisted_ib.hca.device import registry
    from twisted_ib.hca.fabric.shm import shm

    if fabric == "sockets":
        kind = evolve(registry.FABRICS["shm"], open=partial(shm.SharedMemoryFabric, rings=False))
        registry.DEVICES["shm0"] = kind, None, frozenset()
    device = "lo0" if fabric == "lo0" else "shm0"

    def connect(port: int, asker: type[Asker] = Asker) -> None:
        """
        Ask the server at a port.
        """
        client = endpoints.clientFromString(reactor, f"sdp:127.0.0.1:{port}:device={device}")
        client.connect(protocol.Factory.forProtocol(asker)).addErrback(failed)

    def failed(failure: Any) -> None:
        """
        Say why.
        """
        print(failure.value, flush=True)
        reactor.stop()

    def listening(port: Any) -> None:
        """
        Tell the port.
        """
        if role == "both":
            connect(port.getHost().port)
        else:
            print(port.getHost().port, flush=True)

    if role in ("server", "both"):
        server = endpoints.serverFromString(reactor, f"sdp:0:interface=127.0.0.1:device={device}")
        server.listen(protocol.Factory.forProtocol(Echo)).addCallbacks(listening, failed)
    elif role.startswith("wait-"):
        connect(int(role[5:]), Waiter)
    else:
        connect(int(role))
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
