"""
The processes of L{tests.soak.test_overload}: a server, a client that connects many times at once, and a crowd
of processes that connect to many servers.

A server and a client answer every line that they read with one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet import protocol
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from tests.support.counting import Counted, Echo
from twisted_ib.internet.readers import channelsOf
from twisted_ib.reactor import ibreactor
from twisted_ib.sdp import listenSDP

#: Counters of connection management that say what was lost or repeated.
COUNTERS = ("management_dropped", "cm_retransmitted", "cm_half_open_exceeded")
SIZE = 64


class Caller(Counted):
    """
    The client's.
    """

    left = SIZE

    def __init__(self, answered: Callable[[str], None]) -> None:
        self._answered = answered

    def connectionMade(self) -> None:
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
        print(json.dumps({"live": Counted.live, **found}), flush=True)


def visit(number: int, ports: list[str], told: int) -> None:
    """
    Connect to each port, one after the other, with the timeout that a program has by default.

    @param told: a descriptor for the results, a line of JSON each.
    """
    ibreactor.install()
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred
    from twisted.internet.endpoints import clientFromString

    reactor: Any = installed
    Random(number).shuffle(ports)
    factory = protocol.Factory.forProtocol(Counted)

    async def connectAll() -> None:
        for port in ports:
            how = "connected"
            try:
                await clientFromString(reactor, f"sdp:127.0.0.1:{port}").connect(factory)
            except Exception as error:
                how = f"{type(error).__name__}: {error}"
            os.write(told, f"{json.dumps(how)}\n".encode())
        reactor.stop()

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(connectAll()))
    reactor.run()


def crowd(count: int, ports: list[str]) -> None:
    """
    Let so many processes L{visit} the ports, and print what became of that.
    """
    read, write = os.pipe()
    for number in range(count):
        if not os.fork():
            try:
                visit(number, ports, write)
            finally:
                os._exit(0)
    os.close(write)
    with open(read) as lines:
        print(json.dumps(Counter(map(json.loads, lines))), flush=True)
    for _ in range(count):
        os.wait()


def main(role: str, *arguments: str) -> None:
    """
    Run a server; or a client that connects so many times to a port, and prints what became of that; or a
    crowd.
    """
    if role == "crowd":
        crowd(int(arguments[0]), list(arguments[1:]))
        return
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
