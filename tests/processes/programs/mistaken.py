"""
The child whose applications make mistakes when they hear of the end.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import ClientFactory, Factory, connectionDone
from twisted.python.failure import Failure

from tests.processes.programs.peer import Peer
from tests.processes.programs.wires import Wire


class MistakenWire(Wire):
    """
    Raises when the connection is lost.
    """

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Tell, and raise.
        """
        Wire.connectionLost(self, reason)
        raise ValueError("an application's mistake")


class MistakenFactory(ClientFactory):
    """
    Raises when a connector tells it of the loss.
    """

    noisy = False

    def __init__(self, program: Mistaken) -> None:
        """
        @param program: told what happens.
        """
        self.made: Deferred[int] = Deferred()
        self._program = program

    def buildProtocol(self, addr: Any) -> Wire:
        """
        Make one, and tell.
        """
        wire = Wire(self._program, False)
        self.made.callback(wire.number)
        return wire

    def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
        raise ValueError("a factory's mistake")


class Mistaken(Peer):
    """
    A L{Peer} with such connections.
    """

    async def do_connectMistaken(self, endpoint: str) -> int:
        """
        Connect with a protocol that will raise.

        @param endpoint: the client's endpoint string.

        @return: the connection's number.
        """
        factory = Factory.forProtocol(lambda: MistakenWire(self, False))
        wire: Any = await clientFromString(self.reactor, endpoint).connect(factory)
        return int(wire.number)

    async def do_connectMistakenFactory(self, endpoint: str) -> int:
        """
        Connect, in the form of C{connectTCP}, with a factory that will raise.

        @param endpoint: the client's endpoint string.

        @return: the connection's number.
        """
        from twisted_ib.sdp.port import connectSDP

        scheme, host, port = endpoint.split(":")
        factory = MistakenFactory(self)
        if scheme == "sdp":
            connectSDP(self.reactor, host, int(port), factory)
        else:
            self.reactor.connectTCP(host, int(port), factory)
        return await factory.made
