"""
What a port has of a peer that it has said yes to and that has not said yes itself.

Over IP anybody can write any address on a request.  So before the peer's RTU has shown that it hears the
answer there is no transport, protocol or queue pair for it, but only the number that the queue pair
will have: as a listening TCP socket has no socket for a SYN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.hca.wire.cm import BODY_BYTES, REP, REQ

if TYPE_CHECKING:
    from twisted_ib.hca.device.device import Device


class HalfOpenAccept:
    """
    A request that was answered with yes.  It stands for the transport and its queue pair in the handshake.

    @ivar connection: Of the communication manager, whose user this is.
    @ivar device: The device.
    @ivar number: What the queue pair's number will be.
    @ivar port: The port that has said so.
    @ivar proposal: What the answer says of packets.
    """

    __slots__ = ("_request", "connection", "device", "number", "port", "proposal")

    #: Of a new stream.
    posted = limits.SDP_RECEIVES

    def __init__(self, port: Any, device: Device, connection: Any, request: REQ, greeting: Any) -> None:
        """
        Say yes.

        @param port: Has C{handshake} and C{fulfil(promise, request)}.
        @param greeting: What the port's handshake has read in the request.
        @raise HCAError: It cannot be; then nothing was said.
        """
        self.port, self.device, self.connection = port, device, connection
        self._request = request.pack().rstrip(b"\0")
        self.number = 0
        self.number = device.promise(self)
        try:
            reply: REP = port.handshake.reply(self, request, greeting)
            self.proposal = connection.destination.prepareREP(reply, request)
            connection.user = self
            if not connection.accept(reply, device.clock()):
                self._end()
        except BaseException:
            self._end()
            raise

    @property
    def queuePair(self) -> HalfOpenAccept:
        """
        What has the number.
        """
        return self

    @property
    def privateData(self) -> bytes:
        """
        What the port says to each peer.
        """
        found: bytes = self.port.privateData
        return found

    def _end(self) -> None:
        self.device.promised.pop(self.number, None)

    # -- what the communication manager says

    def established(self, connection: Any, message: Any) -> None:
        """
        The peer is ready: it gets its transport.
        """
        self._end()
        self.port.fulfil(self, REQ.parse(self._request.ljust(BODY_BYTES, b"\0"), 0, BODY_BYTES))

    def rejected(self, connection: Any, message: Any) -> None:
        """
        The peer does not want any more.
        """
        self._withdrawn()

    def unreachable(self, connection: Any) -> None:
        """
        The peer does not answer, or another has its place.
        """
        self._withdrawn()

    def peerDisconnected(self, connection: Any) -> None:
        """
        The peer has ended it already.
        """
        self._withdrawn()

    def pathLost(self, reason: Exception) -> None:
        """
        The device is closed.
        """
        self._withdrawn()

    def _withdrawn(self) -> None:
        self._end()
        self.connection.user = None  # Each refers to the other.
