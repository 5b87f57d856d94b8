"""
The processes of L{tests.soak.test_overload}: a server, and a client that connects many times at once.

Each answers every line that it reads with one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted.internet import protocol
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor import ibreactor
from twisted_ib.sdp import listenSDP

#: Counters of connection management that say what was lost or repeated.
COUNTERS = ("management_dropped", "cm_retransmitted", "cm_half_open_exceeded")
SIZE = 64


class End(protocol.Protocol):
    """
    One end of a connection.
    """

    live = 0
    left = SIZE

    def connectionMade(self) -> None:
        """
        There is one more.
        """
        End.live += 1

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        """
        There is one less.
        """
        End.live -= 1


class Echo(End):
    """
    The server's.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Send it back.
        """
        transport: Any = self.transport
        transport.write(data)


class Caller(End):
    """
    The client's.
    """

    def __init__(self, answered: Callable[[str], None]) -> None:
        self._answered = answered

    def connectionMade(self) -> None:
        """
        Send.
        """
        super().connectionMade()
        transport: Any = self.transport
        transport.write(bytes(SIZE))

    def dataReceived(self, data: bytes) -> None:
        """
        Part of the echo came.
        """
        self.left -= len(data)
        if not self.left:
            self._answered("echoed")

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        """
        It is gone, perhaps too early.
        """
        super().connectionLost(reason)
        if self.left:
            self._answered(str(reason.value))


class Commands(LineOnlyReceiver):
    """
    Tells what there is, at each line.
    """

    delimiter = b"\n"

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def lineReceived(self, line: bytes) -> None:
        """
        Count the connections; and what their HCA has lost or repeated.
        """
        [channel] = channelsOf(self._reactor)
        counters = channel.device.statistics()
        found = {name: counters.get(name, 0) for name in COUNTERS}
        print(json.dumps({"live": End.live, **found}), flush=True)


def main(role: str, *arguments: str) -> None:
    """
    Run a server; or a client that connects so many times to a port, and prints what became of that.
    """
    # Before anything that imports a reactor.
    ibreactor.install()
    from twisted.internet import reactor as installed
    from twisted.internet.endpoints import clientFromString
    from twisted.internet.stdio import StandardIO

    reactor: Any = installed
    StandardIO(Commands(reactor), reactor=reactor)
    if role == "server":
        port = listenSDP(reactor, 0, protocol.Factory.forProtocol(Echo))
        print(port.getHost().port, flush=True)
    else:
        number, count = map(int, arguments)
        ended: Counter[str] = Counter()

        def end(how: str) -> None:
            ended[how] += 1
            if ended.total() == count:
                print(json.dumps(ended), flush=True)

        factory = protocol.Factory.forProtocol(lambda: Caller(end))  # type: ignore[arg-type]

        def connect() -> None:
            for _ in range(count):
                endpoint = clientFromString(reactor, f"sdp:127.0.0.1:{number}:timeout=600")
                endpoint.connect(factory).addErrback(lambda failure: end(str(failure.value)))

        reactor.callWhenRunning(connect)
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
