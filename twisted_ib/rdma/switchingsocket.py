"""
Switching to RDMA a connection of Twisted's TCP, on any reactor: its socket goes on as iWARP.

Each end takes the socket from the reactor and gives it to a device C{iwarp0} of the address that the
connection has here.  The initiator then sends MPA's Request, and the other end answers: RFC 5044 section 7.1
lets MPA begin on a connection that has carried other octets before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet import error
from twisted.python.failure import Failure

from twisted_ib.errors import HCAError
from twisted_ib.hca.connection import ConnectRequest
from twisted_ib.hca.connection.rdmacm import RDMACMHeader
from twisted_ib.internet.channel import channelFor
from twisted_ib.rdma.successor import FormerSocket
from twisted_ib.rdma.switching import Switch

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.fabric.base.streams import IAdoptedPath


#: The device; it need not have been added.
DEVICE = "iwarp0"
#: The service ids of the passive ends, as L{twisted_ib.rdma.switchingstream.SERVICE}: "MPAS", and the 24 bits
#: of the queue pair.
SERVICE = 0x02 << 56 | int.from_bytes(b"MPAS", "big") << 24


class SocketSwitch(Switch):
    """
    One TCP connection that switches.
    """

    kind = FormerSocket

    _turn: IDelayedCall | None = None
    _adopted: IAdoptedPath | None = None

    def begun(self) -> None:
        # From now on MPA reads the connection.
        self.former.stopReading()

    def drained(self) -> None:
        # Not within doWrite(): the reactor would find that the descriptor has gone.
        self._turn = self.former.reactor.callLater(0, self._take)

    def _take(self) -> None:
        former = self.former
        try:
            channel = channelFor(former.reactor, DEVICE, self.host.host)
            transport = self.open(channel)
            options, service = self.options, 0
            if not options.isInitiator:
                service = SERVICE | transport.queuePair.number
                self.serve(service)
            adopt = channel.device.fabric.adopt
            taken = former.takeSocket()
            self._adopted = path = adopt(taken, options.leftover, service, options.seconds, self._ended)
            if options.isInitiator:
                self.pathReady(path)
        except (HCAError, OSError) as e:
            self.failed(e)

    def _ended(self) -> None:
        # Until there is a queue pair nobody else is told.
        self.failed("the TCP connection has ended")

    def discard(self) -> None:
        if self._turn is not None and self._turn.active():
            self._turn.cancel()
        self.serveNoMore()
        adopted, self._adopted = self._adopted, None
        if adopted is not None:
            adopted.close()
        if self.transport is not None:
            self.transport.abandon()
        self.former.connectionLost(Failure(error.ConnectionAborted()))

    def connectionRequested(self, connection: IConnection, request: ConnectRequest) -> None:
        """
        MPA's Request came.
        """
        # MPA has no such header: the addresses are those of the connection.
        header = RDMACMHeader(self.peer.host, self.peer.port, self.host.host)
        request.privateData = header.pack() + request.privateData
        self.answer(connection, request)
