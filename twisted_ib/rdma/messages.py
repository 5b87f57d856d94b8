"""
One connection of messages below Twisted's transport API: messages and requests sent, messages received, and
the end.

L{Messages} adds the receiving half and the end of both halves to L{Sender}; it is the consumer of the queue
pair. Nothing is reported from within the core: losses and free space are recorded and reported at the end of
the batch. L{twisted_ib.rdma.transport} puts a Twisted transport on top.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import HCAError, PathLostError, ResourceLimitError
from twisted_ib.rdma.sender import Sender

if TYPE_CHECKING:
    from twisted_ib.internet.channel import DeviceChannel

# Receives are a count here, not buffers.  While the protocol reads there are always some; while it does not
# there are none, and the peer gets an RNR NAK and retries (IBTA vol. 1 9.7.5.2.8).
_RECEIVES = limits.RDMA_RECEIVES
#: Private data of the DREQ that aborts a connection.  The CM has one disconnect for what are FIN and RST in
#: TCP; a librdmacm peer sends none, and so always closes in order.
ABORTED = b"aborted"


class PeerClosed(HCAError):
    """
    The peer closed the connection in order.
    """


class Messages(Sender):
    """
    Messages over one queue pair.

    @ivar privateData: Private data of our REQ or REP; C{peerPrivateData} of the peer's.
    @ivar connection: The CM's connection.
    @ivar reading: Whether the application reads.
    @ivar attached: Whether there is an application.
    @ivar held: Messages that arrived while it did not read: (immediate or L{None}, message or bytes written);
        L{None} if there is nothing.
    @ivar heldBytes: Bytes of the messages in C{held}.
    @ivar loss: Why the connection ended, until the application is notified.
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
        Create the queue pair.

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
        # Messages that arrive before there is a protocol are held for it: data may follow the REP at once
        # (IBTA vol. 1 12.9.8).
        self.queuePair.posted = _RECEIVES

    # -- implemented by the transport

    def deliver(self, immediate: int | None, message: bytes | int) -> None:
        """
        Deliver a message, or the number of bytes that the peer wrote, to the application.
        """
        raise NotImplementedError

    def lost(self, reason: Exception) -> None:
        """
        Notify the application of the end: L{PeerClosed}, or the connection broke.
        """
        raise NotImplementedError

    def drained(self) -> None:
        """
        Handle an empty send queue, with nothing pending in the medium.
        """
        raise NotImplementedError

    def discarding(self) -> bool:
        """
        Return whether the application has closed and accepts no more messages.
        """
        raise NotImplementedError

    # -- the batch

    def resume(self) -> None:
        """
        Schedule the end of the batch after the send queue got room or became empty.
        """
        # Not from here: this is called from within the send queue.
        self.stuck = False
        self.cork()

    def endOfBatch(self) -> None:
        """
        Report what happened in the turn, and send what waits.
        """
        self.corked = False
        # Completions first: a Deferred fires before the messages that followed its completion.
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
        Process a message: see L{QueuePair.delivered}.
        """
        message = buffer[start:stop]
        # The common case, without the calls of _arrived.
        if self.reading and self.held is None and not self.completions and message.__class__ is bytes:
            self.queuePair.posted = _RECEIVES
            self.deliver(None, message)
        else:
            self._arrived(None, bytes(message))

    def immediateReceived(self, immediate: int | None, buffer: Any, start: int, stop: int) -> None:
        """
        Process a message with immediate data.
        """
        self._arrived(immediate, bytes(buffer[start:stop]))

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        Process an RDMA WRITE with immediate data (IBTA vol. 1 9.4.3).
        """
        self._arrived(immediate, length)

    def _arrived(self, immediate: int | None, message: bytes | int) -> None:
        # In the order in which they happened: a completion before a message is reported before it.
        if self.completions:
            self.tellCompletions()
        if self.reading and self.held is None:
            self.queuePair.posted = _RECEIVES
            self.deliver(immediate, message)
        else:
            self._hold(immediate, message)

    def _hold(self, immediate: int | None, message: bytes | int) -> None:
        # After a close nobody reads.  Receives stay posted, so that the peer's SENDs complete and it can end
        # in order.
        if not self.attached or self.discarding():
            self.queuePair.posted = _RECEIVES
            return
        if self.held is None:
            self.held = deque()
        self.held.append((immediate, message))
        if message.__class__ is bytes:
            # Held bytes of all connections have one budget: paused readers cannot exhaust memory.
            self.heldBytes += len(message)
            self.channel.device.hold(self, len(message))

    def read(self) -> None:
        """
        Deliver what was held, while the application reads.
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
        Resume reading; held messages are delivered at the end of the batch.
        """
        self.reading = True
        if self.held is None:
            self.queuePair.posted = _RECEIVES
        if self.held is not None or self.loss is not None:
            self.cork()

    def budgetExceeded(self) -> None:
        """
        Abort: this connection holds the most when memory for held messages is exhausted.
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
        Handle the peer's DREQ, or its DREP to ours.
        """
        # The answer to our own DREQ tells nothing new.
        if connection is not self.connection:
            return
        # DREQ private data has a fixed size and is padded with zeros (Linux ib_cm.h
        # IB_CM_DREQ_PRIVATE_DATA_SIZE), hence a comparison of the beginning.
        if connection.disconnectData.startswith(ABORTED):
            self._broken(PathLostError("the peer aborted the connection"), False)
        else:
            self._broken(PeerClosed("the peer closed the connection"), False)

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        Handle the peer's REJ of our REP.
        """
        self._broken(PathLostError("the peer did not want the connection after all"), False)

    def unreachable(self, connection: Any) -> None:
        """
        Handle a REP that was never answered.
        """
        self._broken(PathLostError("the peer did not answer"), False)

    def failed(self, reason: Exception) -> None:
        """
        Handle a queue pair in the error state: see L{QueuePair.fail}.
        """
        # No DREQ after the loss of the path that would carry it.
        self._broken(reason, not isinstance(reason, PathLostError))

    def _broken(self, reason: Exception, disconnect: bool = True) -> None:
        if self.loss is None:
            self.loss = reason
        # The CM connection has ended: there is nothing to disconnect.
        if not disconnect:
            self.connection = None
        self.cork()

    def _over(self) -> None:
        # As with a stream, the application is notified behind what was held: of an orderly end when it reads
        # or closes, of a loss at once.
        loss = self.loss
        assert loss is not None
        self._end()
        if not self.attached:
            return
        if self.held and self.reading:
            # The application has paused again; the rest follows when it reads.
            return
        if isinstance(loss, PeerClosed) and not self.reading and not self.discarding():
            return
        self._dropHeld()
        self.lost(loss)

    def _end(self, disconnectData: bytes = ABORTED) -> None:
        connection, self.connection = self.connection, None
        self.closeQueuePair()
        if connection is not None:
            self.channel.device.disconnect(connection, disconnectData)

    def reset(self) -> None:
        """
        Abort the connection; the peer sees it as lost.
        """
        self._dropHeld()
        self._end()

    def detach(self) -> None:
        """
        Close the connection in order, unless it has ended; the application's part is over.
        """
        self.attached = False
        self.reading = False
        self._dropHeld()
        # No private data: an orderly end, as rdma_disconnect in librdmacm sends it.
        self._end(b"")

    def destroy(self) -> None:
        """
        Destroy the queue pair of a failed handshake.
        """
        self.connection = None
        self._end()
