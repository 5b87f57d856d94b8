"""
The general services interface, queue pair 1: connection management as an agent.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.wire.cm.messages import REJ, REQ, SIDR_REQ
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import COMMUNICATION
from twisted_ib.hca.wire.mad.mad import CM_VERSION, HEADER_BYTES, SEND

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import DatagramPath
    from twisted_ib.hca.mad.agents import IManagedDevice

#: Unsolicited CM requests (REQ, SIDR_REQ) that are queued, over which the oldest is dropped; and how many are
#: processed at the end of a batch.
CM_REQUESTS = 512
CM_REQUESTS_PER_BATCH = 16
#: Of how many sources the one with most requests is looked for, when there are too many.
CM_QUEUES_LOOKED_AT = 8

#: CM messages that a source without a connection may send.
_UNSOLICITED: Final = frozenset((REQ.attribute, SIDR_REQ.attribute))
#: Where the receiver's communication id begins in a REJ.
_REMOTE_ID: Final = HEADER_BYTES + 4


class CMAgent:
    """
    Connection management as an agent: whole MADs, as hosts send them (IBTA vol. 1 12.6).

    Processes of one host send its messages without a MAD header, straight to the communication manager.

    Anybody can send REQs and SIDR_REQs, so they are queued until the end of a batch: a flood of them does not
    delay established connections.  Under overload the source that asked last is answered first, then the
    others in turn, and each source in the order in which it asked: a REQ must not come after what its sender
    did when it had no answer.

    @ivar requests: how many are queued.
    """

    def __init__(self, device: IManagedDevice) -> None:
        """
        @param device: an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>} with C{mads}, C{cm} and
            C{markDirty}.
        """
        self._device = device
        self.requests = 0
        #: The queued requests by path; the path that asked last is the last.
        self._queues: OrderedDict[Any, deque[ReceivedMAD]] = OrderedDict()
        device.mads.register(COMMUNICATION, CM_VERSION, (SEND,), self.received)

    def received(self, mad: ReceivedMAD) -> None:
        """
        A CM message arrived.
        """
        queues, device = self._queues, self._device
        # A peer that has given up its REQ names no connection of ours, as that REQ may be queued.
        isBehind = mad.attribute == REJ.attribute and mad.path in queues
        isBehind = isBehind and not any(mad.data[_REMOTE_ID : _REMOTE_ID + 4])
        if mad.attribute not in _UNSOLICITED and not isBehind:
            self._deliver(mad)
            return
        if self.requests >= CM_REQUESTS:
            # Of who has most, the sender or one of those that have been silent for longest: their requests
            # are by now given up or about to be repeated.
            device.count("management_dropped")
            sender = (mad.path,) if mad.path in queues else ()
            some = (*islice(queues, CM_QUEUES_LOOKED_AT), *sender)
            self._take(max(some, key=lambda path: len(queues[path])))
        elif not self.requests:
            device.markDirty(self)
        queue = queues.get(mad.path)
        if queue is None:
            queue = queues[mad.path] = deque()
        else:
            queues.move_to_end(mad.path)
        queue.append(mad)
        self.requests += 1

    def _take(self, path: DatagramPath) -> ReceivedMAD:
        queue = self._queues[path]
        mad = queue.popleft()
        self.requests -= 1
        if queue:
            # Its turn comes again after the others'.
            self._queues.move_to_end(path, last=False)
        else:
            del self._queues[path]
        return mad

    def endOfBatch(self) -> None:
        """
        Process some of the queued requests.
        """
        queues = self._queues
        isAll = self.requests <= CM_REQUESTS_PER_BATCH
        try:
            for _ in range(min(self.requests, CM_REQUESTS_PER_BATCH)):
                # One turn answers all; or the sources that asked last, as the others have timed out or will
                # retransmit, and their answers would be wasted.
                mad = self._take(next(iter(queues) if isAll else reversed(queues)))
                # The path of a process may be lost by now.
                if mad.path.alive:
                    self._deliver(mad)
        finally:
            # Also if a listener raised: the rest must not wait for another request.
            if queues:
                self._device.markDirty(self)

    def _deliver(self, mad: ReceivedMAD) -> None:
        device, path, data = self._device, mad.path, mad.data
        transactions = device.cm.transactions
        if transactions is not None:
            transactions.remember(path.peer.address, mad.attribute, data, HEADER_BYTES, mad.transaction)
        device.managementReceived(path, mad.attribute, data, HEADER_BYTES, MAD_BYTES)
