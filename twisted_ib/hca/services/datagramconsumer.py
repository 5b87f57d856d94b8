"""
Datagrams without work requests, as streams send and receive messages without them.

The consumer of such a queue pair is an L{IDatagramConsumer
<twisted_ib.hca.queues.consumers.IDatagramConsumer>}.  A send makes no request and no completion, and a
datagram that arrives is given to the consumer where it lies: no object is made for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from twisted_ib import limits
from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.operation import SOLICITED
from twisted_ib.hca.base.states import RECEIVING, QPState, QPType
from twisted_ib.hca.services.address import AddressHandle, AddressVector
from twisted_ib.hca.services.datagramform import OWN_KEY
from twisted_ib.hca.services.work import checkRanges
from twisted_ib.hca.wire import headers
from twisted_ib.hca.wire.grh import DETH_BYTES
from twisted_ib.hca.wire.headers import QPN_MASK
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY, UD_SEND_ONLY_IMMEDIATE

if TYPE_CHECKING:
    from twisted_ib.hca.queues.queuepair import QueuePair


_RTS = QPState.RTS
_SEND: Final = UD_SEND_ONLY << 24
_LARGEST_KEY: Final = (1 << 32) - 1
_IMMEDIATE_BYTES: Final = headers.IMMEDIATE.size


@frozen
class DatagramSource:
    """
    The sender of datagrams.  It is made at the first one and used again, as long as there are no more than
    L{limits.DATAGRAM_SOURCES}.

    @ivar vector: the address for replies, by the first datagram.
    @ivar number: its queue pair number.
    @ivar path: the path that its datagrams came by.
    """

    vector: AddressVector
    number: int
    path: Any


class InlineDatagrams:
    """
    The sends and receives of one UD queue pair whose consumer takes datagrams as they arrive.

    @ivar queueKey: the Q_Key, which C{QueuePair.modify} sets.
    @ivar messagesSent: datagrams posted.
    @ivar messagesReceived: datagrams given to the consumer.
    """

    __slots__ = ("_form", "_sources", "messagesReceived", "messagesSent", "queueKey", "queuePair")

    #: There are no work queues.
    capabilities = None

    def __init__(self, queuePair: QueuePair) -> None:
        """
        Take the datagrams of a queue pair in RESET.

        @raise QueuePairError: it is not a UD queue pair, or it has work queues.
        """
        if queuePair.type != QPType.UD or queuePair.work is not None:
            raise QueuePairError(f"queue pair {queuePair.number} is not for datagrams, or has work queues")
        self.queuePair = queuePair
        self.queueKey = self.messagesSent = self.messagesReceived = 0
        self._form = queuePair.device.datagramForm
        self._sources: dict[int, DatagramSource] = {}
        queuePair.work = self

    # -- down

    def post(self, handle: AddressHandle, number: int, key: int, payload: Any) -> None:
        """
        Send a datagram, or lose it: see L{AddressPath.send
        <twisted_ib.hca.services.address.AddressPath.send>}.

        @param number: the destination queue pair.
        @param key: its Q_Key; with the high bit set, this queue pair's own is sent.
        @param payload: bytes-like, at most the path MTU; it is copied before this returns.
        @raise QueuePairError: not in RTS, too long, or a destination that cannot be.
        """
        queuePair = self.queuePair
        length = len(payload)
        if queuePair.state is not _RTS or length > queuePair.device.pathMTU:
            raise QueuePairError(
                f"queue pair {queuePair.number} in {queuePair.state.name} cannot send a datagram of"
                f" {length} bytes"
            )
        if not 0 <= number <= QPN_MASK or not 0 <= key <= _LARGEST_KEY or handle.closed:
            raise QueuePairError(f"there is no queue pair {number:#x} with Q_Key {key:#x} at that address")
        if key & OWN_KEY:
            key = self.queueKey
        deth = headers.DETH.pack(key, queuePair.number)
        header = self._form.pack(queuePair, handle.vector, length) + deth
        self.messagesSent += 1
        handle.send(_SEND | number, header, payload, length)

    # -- up

    def received(self, path: Any, opcode: int, buffer: Any, start: int, stop: int) -> None:
        """
        A record arrived for this queue pair, or for a multicast group that it is attached to.

        @param path: the path it came by.
        @param buffer: copied, unless it is bytes from C{start} to C{stop}.
        """
        queuePair, form = self.queuePair, self._form
        if queuePair.state not in RECEIVING:
            return
        # A copy: the peer may still write to its memory between the checks and the use.
        buffer = bytes(buffer[start:stop])
        key = form.peerKey(path.peer)
        fault = form.fault(queuePair, self.queueKey, key, opcode, buffer, len(buffer))
        if fault:
            queuePair.device.count(fault)
            return
        number = headers.DETH.unpack_from(buffer, form.size)[1] & QPN_MASK
        source = self._sources.get(key << 24 | number)
        # A peer whose path was lost may have come back with another.
        if source is None or source.path is not path:
            source = self._met(key << 24 | number, DatagramSource(form.reply(buffer), number, path))
        start = form.size + DETH_BYTES
        if opcode & ~SOLICITED == UD_SEND_ONLY_IMMEDIATE:
            start += _IMMEDIATE_BYTES
        self.messagesReceived += 1
        queuePair.consumer.datagramReceived(source, buffer, start, len(buffer))

    def _met(self, key: int, source: DatagramSource) -> DatagramSource:
        sources = self._sources
        # The oldest is evicted: senders, which may be forged, must not use up memory.
        if len(sources) >= limits.DATAGRAM_SOURCES and key not in sources:
            del sources[next(iter(sources))]
        sources[key] = source
        return source

    # -- as a queue pair's work queues, of which it has none

    @property
    def requester(self) -> InlineDatagrams:
        """
        This object: nothing is queued.
        """
        return self

    @property
    def responder(self) -> InlineDatagrams:
        """
        This object.
        """
        return self

    def drained(self) -> bool:
        """
        @return: True: a datagram is gone when it was posted.
        """
        return True

    def traffic(self) -> tuple[int, int, int, int]:
        """
        @return: records sent and received, messages sent and received.
        """
        sent, received = self.messagesSent, self.messagesReceived
        return sent, received, sent, received

    def check(self, state: QPState, attributes: dict[str, Any]) -> None:
        """
        See L{WorkQueues.check<twisted_ib.hca.services.work.WorkQueues.check>}.
        """
        checkRanges(attributes)

    def modified(self, attributes: dict[str, Any]) -> None:
        """
        The queue pair has a new state or new attributes.
        """
        self.queueKey = attributes.get("qkey", self.queueKey)
        if self.queuePair.state == QPState.RESET:
            self.queueKey = 0
            self._sources.clear()

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Ignore a connection's record: no path is bound to a UD queue pair.
        """
        return 0

    def failed(self, reason: Exception) -> None:
        """
        The queue pair went to ERR: its consumer is told by the queue pair.
        """

    def closed(self) -> None:
        """
        The queue pair was destroyed.
        """
        self._sources.clear()
