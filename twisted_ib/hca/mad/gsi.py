"""
The general services interface, queue pair 1: connection management as an agent.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twisted_ib.hca.mad.dispatch import ReceivedMAD
from twisted_ib.hca.wire.cm import REQ, SIDR_REQ
from twisted_ib.hca.wire.mad.classes import COMMUNICATION
from twisted_ib.hca.wire.mad.mad import CM_VERSION, HEADER_BYTES, MAD_BYTES, SEND

#: Unsolicited CM requests (REQ, SIDR_REQ) that are queued, over which the oldest is dropped; and how many are
#: processed at the end of a batch.
CM_REQUESTS = 512
CM_REQUESTS_PER_BATCH = 16

#: CM messages that a source without a connection may send.
_UNSOLICITED: Final = frozenset((REQ.attribute, SIDR_REQ.attribute))


class CMAgent:
    """
    Connection management as an agent: whole MADs, as hosts send them (IBTA vol. 1 12.6).

    Processes of one host send its messages without a MAD header, straight to the communication manager.

    Anybody can send REQs and SIDR_REQs, so they are queued until the end of a batch: a flood of them does not
    delay established connections.  Under overload the newest is answered first.
    """

    __slots__ = ("_device", "requests")

    def __init__(self, device: Any) -> None:
        """
        @param device: an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>} with C{mads}, C{cm} and
            C{markDirty}.
        """
        self._device = device
        #: The queued requests.
        self.requests: deque[ReceivedMAD] = deque(maxlen=CM_REQUESTS)
        device.mads.register(COMMUNICATION, CM_VERSION, (SEND,), self.received)

    def received(self, mad: ReceivedMAD) -> None:
        """
        A CM message arrived.
        """
        if mad.attribute not in _UNSOLICITED:
            self._deliver(mad)
            return
        requests, device = self.requests, self._device
        # deque(maxlen) drops from the other end when full: the oldest, by now given up or about to be
        # repeated.
        if len(requests) == requests.maxlen:
            device.count("management_dropped")
        elif not requests:
            device.markDirty(self)
        requests.append(mad)

    def endOfBatch(self) -> None:
        """
        Process some of the queued requests.
        """
        requests = self.requests
        left = len(requests)
        count = min(left, CM_REQUESTS_PER_BATCH)
        try:
            for _ in range(count):
                # In order if all can be answered; else last in, first out: the senders of the oldest have
                # timed out or will retransmit, and their answers would be wasted.
                mad = requests.popleft() if count == left else requests.pop()
                # The path of a process may be lost by now.
                if mad.path.alive:
                    self._deliver(mad)
        finally:
            # Also if a listener raised: the rest must not wait for another request.
            if requests:
                self._device.markDirty(self)

    def _deliver(self, mad: ReceivedMAD) -> None:
        device, path, data = self._device, mad.path, mad.data
        transactions = device.cm.transactions
        if transactions is not None:
            transactions.remember(path.peer.address, mad.attribute, data, HEADER_BYTES, mad.transaction)
        device.managementReceived(path, mad.attribute, data, HEADER_BYTES, MAD_BYTES)


__all__ = ["CM_REQUESTS", "CM_REQUESTS_PER_BATCH", "CMAgent"]
