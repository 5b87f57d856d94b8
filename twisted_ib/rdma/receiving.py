"""
The way of messages from a connection's queue pair to its protocol, at once or when it reads again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import PathLostError, WireError
from twisted_ib.interfaces import IRDMAProtocol
from twisted_ib.internet.logcontext import upcalls
from twisted_ib.rdma import gathering

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocol

    from twisted_ib.rdma.transport import RDMATransport

#: Receives of a connection, a count and no buffers.  While the protocol reads there are always some; while it
#: does not there are none, and the peer gets an RNR NAK and retries (IBTA vol. 1 9.7.5.2.8).
RECEIVES = limits.RDMA_RECEIVES


class Inbox:
    """
    The consumer of a connection's queue pair: see L{IConsumer<twisted_ib.hca.queues.consumers.IConsumer>}.

    @ivar transport: The transport; there is none once the queue pair is closed.
    @ivar heldBytes: Bytes of the messages that the transport holds.
    """

    __slots__ = ("_known", "_takesMessages", "heldBytes", "transport")

    def __init__(self, transport: RDMATransport) -> None:
        self.transport = transport
        self._known: IProtocol | None = None
        self._takesMessages = False
        self.heldBytes = 0

    def forget(self) -> None:
        """
        Let go of the transport: the queue pair is closed, and nothing more arrives.
        """
        # Both refer to each other: without the cycle they are freed at once.
        del self.transport
        self._known = None

    # -- from the queue pair

    def received(self, buffer: Any, start: int, stop: int) -> None:
        transport = self.transport
        message = buffer[start:stop]
        # The common case, without the calls of _arrived.
        if (
            transport.reading
            and transport.held is None
            and not transport.completions
            and message.__class__ is bytes
        ):
            transport.queuePair.posted = RECEIVES
            self.deliver(transport, None, message)
        else:
            self._arrived(transport, None, bytes(message))

    def severalReceived(self, buffer: bytes, start: int, stop: int) -> None:
        """
        Process a SEND of several messages: see L{twisted_ib.rdma.gathering}.
        """
        transport = self.transport
        try:
            # All at once: a callback may close the device, and the medium with it.
            messages = gathering.divided(buffer, start, stop)
        except WireError as error:
            transport.broken(error)
            return
        protocol = transport.protocol
        if protocol is not self._known:
            self._known, self._takesMessages = protocol, IRDMAProtocol.providedBy(protocol)
        if transport.reading:
            transport.queuePair.posted = RECEIVES
        takesMessages = self._takesMessages
        upcalls.current = transport
        try:
            for message in messages:
                # As deliver(), without its call.
                if (
                    transport.held is None
                    and transport.reading
                    and not transport.completions
                    and transport.protocol is protocol
                ):
                    if takesMessages:
                        protocol.messageReceived(memoryview(message))
                    else:
                        protocol.dataReceived(message)
                else:
                    self._arrived(transport, None, message)
        except BaseException:
            transport._raised()
        finally:
            upcalls.current = None

    def immediateReceived(self, immediate: int | None, buffer: Any, start: int, stop: int) -> None:
        """
        Process a message with immediate data.
        """
        self._arrived(self.transport, immediate, bytes(buffer[start:stop]))

    def remoteMemoryWritten(self, immediate: int, length: int) -> None:
        """
        Process an RDMA WRITE with immediate data (IBTA vol. 1 9.4.3).
        """
        self._arrived(self.transport, immediate, length)

    def resume(self) -> None:
        # Not from here: this is called from within the send queue.
        transport = self.transport
        transport.stuck = False
        transport.cork()

    def failed(self, reason: Exception) -> None:
        # No DREQ after the loss of the path that would carry it.
        self.transport.broken(reason, not isinstance(reason, PathLostError))

    def forked(self) -> None:
        self.transport.thread = 0

    # -- to the protocol

    def _arrived(self, transport: RDMATransport, immediate: int | None, message: bytes | int) -> None:
        # In the order in which they happened: a completion before a message is reported before it.
        if transport.completions and transport.requests is not None:
            transport.requests.tell()
        if transport.reading and transport.held is None:
            transport.queuePair.posted = RECEIVES
            self.deliver(transport, immediate, message)
        # After a close nobody reads.  Receives stay posted, so that the peer's SENDs complete and it can end
        # in order.
        elif not transport.attached or transport.discarding():
            transport.queuePair.posted = RECEIVES
        else:
            self._hold(transport, immediate, message)

    def deliver(self, transport: RDMATransport, immediate: int | None, message: bytes | int) -> None:
        """
        Deliver a message, or the number of bytes written, to the protocol; an exception of its ends the
        connection.
        """
        protocol = transport.protocol
        if protocol is not self._known:
            # A protocol can be replaced; the interface test is worth one per protocol.
            self._known, self._takesMessages = protocol, IRDMAProtocol.providedBy(protocol)
        upcalls.current = transport
        try:
            if message.__class__ is not bytes:
                if self._takesMessages:
                    protocol.remoteMemoryWritten(immediate, message)
                return
            transport.immediate = immediate
            if self._takesMessages:
                protocol.messageReceived(memoryview(message))
            else:
                protocol.dataReceived(message)
        except BaseException:
            transport._raised()
        finally:
            upcalls.current = None
            transport.immediate = None

    def _hold(self, transport: RDMATransport, immediate: int | None, message: bytes | int) -> None:
        if transport.held is None:
            transport.held = deque()
        transport.held.append((immediate, message))
        if isinstance(message, bytes):
            # Held bytes of all connections have one budget: paused readers cannot exhaust memory.
            self.heldBytes += len(message)
            transport.channel.device.hold(transport, len(message))

    def read(self, transport: RDMATransport) -> None:
        """
        Deliver what was held, while the application reads.
        """
        held = transport.held
        while held and transport.reading:
            immediate, message = held.popleft()
            if message.__class__ is bytes:
                self.heldBytes -= len(message)
                transport.channel.device.hold(transport, -len(message))
            self.deliver(transport, immediate, message)
        if not held and transport.held is held:
            transport.held = None
            if transport.reading:
                transport.queuePair.posted = RECEIVES

    def drop(self, transport: RDMATransport) -> None:
        """
        Drop what was held.
        """
        transport.held = None
        if self.heldBytes:
            transport.channel.device.hold(transport, -self.heldBytes)
            self.heldBytes = 0
