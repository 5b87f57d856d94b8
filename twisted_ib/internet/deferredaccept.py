"""
Half-open connections of a port over IP: a REP was sent, the RTU is awaited.

Anybody can put any source address on a request.  So until the peer's RTU shows that it receives the answer,
only the number of its queue pair is reserved, without transport, protocol or queue pair, and octets stand for
all that is known of it (L{twisted_ib.hca.cm.parked}): as Linux keeps a
request socket and no connection for a SYN (RFC 4987 section 3.5, "SYN cache"; tcp_minisocks.c).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.hca.connection import ConnectRequest

if TYPE_CHECKING:
    from typing_extensions import Self

    from twisted_ib.hca.connection import ConnectReply
    from twisted_ib.hca.connection.interfaces import IConnection
    from twisted_ib.hca.device.device import Device


#: What is kept of a request, before its private data: the fields in the order of L{ConnectRequest}, of which
#: those from C{responderResources} to C{sharedReceiveQueue} have an octet each.  The reply is prepared, so
#: nobody asks for the path any more.
_KEPT: Final = Struct(">QI8BIB")


class HalfOpenAccept:
    """
    A request that was answered with a REP; in the handshake it stands for the transport and its queue pair.
    A protocol whose reply tells more of them than the queue pair's number adds that in a subclass, its port's
    C{halfOpen}.

    @ivar connection: The CM's connection, whose user this is.
    @ivar number: The reserved queue pair number.
    @ivar port: The port that accepted.
    @ivar proposal: The packet parameters of the REP.
    """

    __slots__ = ("_request", "connection", "number", "port", "proposal")

    readsFirst = False

    def __init__(
        self, port: Any, device: Device, connection: IConnection, request: ConnectRequest, greeting: Any
    ) -> None:
        """
        Send the REP.

        @param port: Has C{handshake} and C{establish(halfOpen, request)}.
        @param greeting: The greeting that the port's handshake has read from the request.
        @raise HCAError: it cannot be accepted; nothing was sent.
        """
        self.port, self.connection = port, connection
        self.number = device.reserveNumber()
        reply: ConnectReply = port.handshake.reply(self, request, greeting)
        self._request = self._packed(request)
        self.proposal: bytes = connection.destination.prepareReply(reply, request)
        connection.user = self
        connection.accept(reply, device.clock())

    @classmethod
    def resumed(cls, port: Any, connection: IConnection, number: int, kept: bytes) -> Self:
        """
        See L{ParkedUser<twisted_ib.hca.connection.interfaces.ParkedUser>}.

        @return: the same again, the user of its connection.
        """
        self = cls.__new__(cls)
        self.port, self.connection, self.number = port, connection, number
        request = 1 + kept[0]
        self.proposal = self.device.parking.proposal(kept[1:request])
        self._unkept(kept[request:])
        connection.user = self
        return self

    def park(self) -> None:
        """
        Have octets stand for this object and its connection, until there is news for it.
        """
        kept = bytes((len(self.proposal), *self.proposal)) + self._kept()
        self.device.parking.park(self.connection, kept)

    def _kept(self) -> bytes:
        return self._request

    def _unkept(self, kept: bytes) -> None:
        self._request = kept

    @property
    def device(self) -> Device:
        """
        The device that got the request.
        """
        found: Device = self.connection.destination.fabric.owner
        return found

    @property
    def queuePair(self) -> HalfOpenAccept:
        """
        This object, which has the queue pair's number.
        """
        return self

    def _packed(self, request: ConnectRequest) -> bytes:
        # A tenth of what the objects take: anybody can send any number of requests.
        return (
            _KEPT.pack(
                request.serviceID,
                request.localQPN,
                request.responderResources,
                request.initiatorDepth,
                request.retryCount,
                request.rnrRetryCount,
                request.responseTimeout,
                request.requestRetries,
                request.endToEndFlowControl,
                request.sharedReceiveQueue,
                request.startingPSN,
                request.pathMTU,
            )
            + request.privateData
        )

    def _unpacked(self) -> ConnectRequest:
        service, *fields = _KEPT.unpack_from(self._request)
        return ConnectRequest(service, self._request[_KEPT.size :], *fields)

    def _end(self) -> None:
        # Nothing but the CM knows of it.
        pass

    # -- events of the communication manager

    def established(self, connection: Any) -> None:
        """
        The RTU came, or data for the queue pair in place of it: make the transport.
        """
        self._end()
        self.port.establish(self, self._unpacked())

    def rejected(self, connection: Any, message: Any) -> None:
        """
        The peer sent a REJ.
        """
        self._withdrawn()

    def unreachable(self, connection: Any) -> None:
        """
        No RTU came, or this half-open connection was evicted for another.
        """
        self._withdrawn()

    def peerDisconnected(self, connection: Any) -> None:
        """
        The peer sent a DREQ.
        """
        self._withdrawn()

    def pathLost(self, reason: Exception) -> None:
        """
        The device was closed.
        """
        self._withdrawn()

    def _withdrawn(self) -> None:
        self._end()
        # Each refers to the other.
        self.connection.user = None
