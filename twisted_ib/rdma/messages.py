"""
One connection of messages without Twisted's faces: messages and requests out, messages in,
and the end.

A L{Messages} adds to a L{Sender} the receiving half and the end of both; it is the consumer of
the queue pair.  Receives are promises: while the protocol reads there are always some, and none
while it does not, so that the peer is answered RNR and asks again.

Nothing is told from within the core: what broke and what has room is remembered, and told at the
end of the batch.  What Twisted calls a transport stands on top of it
(L{twisted_ib.rdma.transport}).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError, ResourceLimitError
from twisted_ib.rdma.sender import Sender

if TYPE_CHECKING:
    from twisted_ib.internet.channel import DeviceChannel

_RECEIVES = limits.RDMA_RECEIVES
#: What the DREQ says of a connection that is not closed but given up.
ABORTED = b"aborted"


class Ended(HCAError):
    """
    The peer closed the connection in order.
    """


class Messages(Sender):
    """
    Messages over one queue pair.

    @ivar privateData: What this end says in its REQ or REP.
    @ivar peerPrivateData: What the peer said in its own.
    @ivar connection: The CM's side of this connection.
    @ivar reading: Whether the application wants messages.
    @ivar attached: Whether there is an application at all.
    @ivar held: What came while it did not: pairs of the immediate (or L{None}) and the
        message, or how many bytes were written; L{None} when there is nothing.
    @ivar heldBytes: Bytes of those messages.
    @ivar loss: Why the connection is over, until the application is told.
    """

    __slots__ = (
        "attached",
        "connection",
        "held",
        "heldBytes",
        "loss",
        "peerPrivateData",
        "privateData",
        "reading",
    )

    def __init__(self, channel: DeviceChannel, maxMessageSize: int, privateData: bytes) -> None:
        """
        Make the queue pair.

        @raise ResourceLimitError: There are too many.
        """
        Sender.__init__(self, channel, maxMessageSize)
        self.privateData = privateData
        self.peerPrivateData = b""
        self.connection: Any = None
        self.reading = False
        self.attached = True
        self.held: deque[tuple[int | None, bytes | int]] | None = None
        self.heldBytes = 0
        self.loss: Exception | None = None
        # What comes before there is a protocol is held for it.
        self.queuePair.posted = _RECEIVES

    # -- what the transport implements

    def deliver(self, immediate: int | None, message: bytes | int) -> None:
        """
        Hand a message, or how many bytes were written, to the application.
        """
        raise NotImplementedError

    def lost(self, reason: Exception) -> None:
        """
        Tell the application that the connection is over: L{Ended}, or it broke.
        """
        raise NotImplementedError

    def drained(self) -> None:
        """
        Nothing waits, and the medium has taken everything.
        """
        raise NotImplementedError

    def discarding(self) -> bool:
        """
        @return: Whether the application has closed and takes no messages any more.
        """
        raise NotImplementedError

    # -- the batch

    def resume(self) -> None:
        """
        The send queue has room, or has taken everything, or is done: go on, but not from
        within it.
        """
        self.stuck = False
        self.cork()

    def endOfBatch(self) -> None:
        """
        The turn is over: tell what happened, send what waits.
        """
        self.corked = False
        if self.completions:
            self.tellCompletions()
        if self.held is not None and self.reading:
            self.read()
        if self.loss is not None:
            self._over()
        elif not self.corked and self.queuePair.path is not None:
            if self.waiting is not None:
                self.flush()
            if self.waiting is None and not self.stuck:
                self.drained()

    # -- receiving (consumer of the queue pair)

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        A message arrived: see L{QueuePair.delivered}.
        """
        message = buffer[start:stop]
        if self.reading and self.held is None and not self.completions and message.__class__ is bytes:
            self.queuePair.posted = _RECEIVES
            self.deliver(None, message)
        else:
            self._arrived(None, bytes(message))

    def immediateReceived(self, immediate: int | None, buffer: Any, start: int, stop: int) -> None:
        """
        A message arrived, with immediate data.
        """
        self._arrived(immediate, bytes(buffer[start:stop]))

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        The peer wrote, with immediate data.
        """
        self._arrived(immediate, length)

    def _arrived(self, immediate: int | None, message: bytes | int) -> None:
        """
        Deliver what arrived, or hold it.  What completed before it is told before it.
        """
        if self.completions:
            self.tellCompletions()
        if self.reading and self.held is None:
            self.queuePair.posted = _RECEIVES
            self.deliver(immediate, message)
        else:
            self._hold(immediate, message)

    def _hold(self, immediate: int | None, message: bytes | int) -> None:
        """
        Keep what the application does not want yet; after it has closed nobody will.
        """
        if not self.attached or self.discarding():
            self.queuePair.posted = _RECEIVES
            return
        if self.held is None:
            self.held = deque()
        self.held.append((immediate, message))
        if message.__class__ is bytes:
            self.heldBytes += len(message)
            self.channel.device.hold(self, len(message))

    def read(self) -> None:
        """
        Deliver what was held, while the application wants it.
        """
        held = self.held
        while held and self.reading:
            immediate, message = held.popleft()
            if message.__class__ is bytes:
                self.heldBytes -= len(message)
                self.channel.device.hold(self, -len(message))
            self.deliver(immediate, message)
        if not held and self.held is held:
            self.held = None
            if self.reading:
                self.queuePair.posted = _RECEIVES

    def readAgain(self) -> None:
        """
        The application reads again: what was held comes at the end of the batch.
        """
        self.reading = True
        if self.held is None:
            self.queuePair.posted = _RECEIVES
        if self.held is not None or self.loss is not None:
            self.cork()

    def budgetExceeded(self) -> None:
        """
        This connection holds most of what there is no more memory for.
        """
        self._broken(ResourceLimitError("too many bytes wait for a protocol that does not read"))

    def _dropHeld(self) -> None:
        self.held = None
        if self.heldBytes:
            self.channel.device.hold(self, -self.heldBytes)
            self.heldBytes = 0

    # -- the end

    def peerDisconnected(self, connection: Any) -> None:
        """
        The CM says that the peer disconnected (DREQ), or confirmed ours.
        """
        if connection.disconnectData.startswith(ABORTED):
            self._broken(PathLostError("the peer aborted the connection"), False)
        else:
            self._broken(Ended("the peer closed the connection"), False)

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The CM says that the peer does not want the REP.
        """
        self._broken(PathLostError("the peer did not want the connection after all"), False)

    def unreachable(self, connection: Any) -> None:
        """
        The CM says that the peer does not answer the REP.
        """
        self._broken(PathLostError("the peer did not answer"), False)

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in error: see L{QueuePair.fail}.
        """
        self._broken(reason, not isinstance(reason, PathLostError))

    def _broken(self, reason: Exception, disconnect: bool = True) -> None:
        """
        The connection is over; it is told at the end of the batch.

        @param disconnect: Whether the peer may not know.
        """
        if self.loss is None:
            self.loss = reason
        if not disconnect:
            self.connection = None
        self.cork()

    def _over(self) -> None:
        """
        Tell the end, behind what was held.  As with a stream, the application hears of a peer
        that closed when it reads, or when it sends or closes itself.
        """
        loss = self.loss
        assert loss is not None
        self._end()
        if not self.attached:
            return
        if self.held and self.reading:
            return  # It is too early, or the application paused again.
        if isinstance(loss, Ended) and not self.reading and not self.discarding():
            return
        self._dropHeld()
        self.lost(loss)

    def _end(self, disconnectData: bytes = ABORTED) -> None:
        """
        Nothing more is sent or taken; the peer is told, if it may not know.
        """
        connection, self.connection = self.connection, None
        self.closeQueuePair()
        if connection is not None:
            self.channel.device.disconnect(connection, disconnectData)

    def reset(self) -> None:
        """
        End the connection so that the peer sees it as lost.
        """
        self._dropHeld()
        self._end()

    def detach(self) -> None:
        """
        The application's part is over: end the connection in order, unless it is over already.
        """
        self.attached = False
        self.reading = False
        self._dropHeld()
        self._end(b"")

    def destroy(self) -> None:
        """
        The handshake failed: destroy the queue pair.
        """
        self.connection = None
        self._end()
