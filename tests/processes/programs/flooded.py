"""
A server and a client of SDP on devices of packets, each a process:
C{python -m tests.processes.programs.flooded ROLE ADDRESS PEER [COUNT]}.

The server sends back what it has got, once that are L{SIZE} bytes.  The client connects so often, one after
the other, and prints each time how long it took to connect, to send, and to get it back.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from twisted.internet import reactor as twistedReactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

SIZE = 100_000
PORT = 4000
reactor: Any = twistedReactor


class Answering(Protocol):
    """
    Sends it back.
    """

    got = b""

    def dataReceived(self, data: bytes) -> None:
        """
        Some came.
        """
        self.got += data
        if len(self.got) == SIZE:
            assert self.transport is not None
            self.transport.write(self.got)
            self.got = b""


class Asking(Answering):
    """
    Waits for it.
    """

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.over: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(bytes(range(250)) * (SIZE // 250))

    def dataReceived(self, data: bytes) -> None:
        """
        Some came back.
        """
        self.got += data
        if len(self.got) == SIZE:
            assert self.transport is not None
            assert self.got == bytes(range(250)) * (SIZE // 250)
            print(f"{time.monotonic() - self.begin:.3f}", flush=True)
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure = None) -> None:  # type: ignore[assignment]
        """
        It is over.
        """
        self.over.callback(None)


async def asking(caller: Any, count: int) -> None:
    """
    Connect so often.
    """
    for _ in range(count):
        asker = Asking()
        await connectProtocol(caller, asker)
        await asker.over
    reactor.callLater(0, reactor.stop)


def failed(reason: Failure) -> None:
    """
    Say so, and end.
    """
    print(reason.getErrorMessage(), flush=True)
    reactor.callLater(0, reactor.stop)


if __name__ == "__main__":
    role, address, peer, *counts = sys.argv[1:]
    if role == "server":
        end = serverFromString(reactor, f"sdp:{PORT}:interface={address}:device=roce0")
        listening = end.listen(Factory.forProtocol(Answering))
        listening.addCallbacks(lambda port: print("listening", flush=True), failed)
    else:
        caller = clientFromString(reactor, f"sdp:{peer}:{PORT}:bindAddress={address}:device=roce0")
        Deferred.fromCoroutine(asking(caller, int(*counts or "1"))).addErrback(failed)
    reactor.run()
