"""
The general services interface, queue pair 1: connection management as an agent.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final

from twisted_ib.hca.mad.requests import ReceivedMAD
from twisted_ib.hca.wire.cm.messages import REJ, REQ, SIDR_REQ
from twisted_ib.hca.wire.headers import MAD_BYTES
from twisted_ib.hca.wire.mad.classes import COMMUNICATION
from twisted_ib.hca.wire.mad.mad import CM_VERSION, HEADER_BYTES, SEND

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def _key(mad: ReceivedMAD) -> tuple[int, bytes]:
    # The number that its sender has given it.
    return mad.attribute, bytes(mad.data[HEADER_BYTES:_REMOTE_ID])


class _Requests:
    """
    Requests of some sources that are queued.

    @ivar count: how many.
    @ivar queues: they, by path and by their numbers; the path that asked last is the last.
    """

    __slots__ = ("count", "queues")

    def __init__(self) -> None:
        self.count = 0
        self.queues: OrderedDict[DatagramPath, dict[tuple[int, bytes], ReceivedMAD]] = OrderedDict()

    def has(self, mad: ReceivedMAD) -> bool:
        """
        @return: whether a request that is repeated waits already: its path asks again.
        """
        queue = self.queues.get(mad.path)
        if queue is None or _key(mad) not in queue:
            return False
        self.queues.move_to_end(mad.path)
        return True

    def add(self, path: DatagramPath, mads: Iterable[ReceivedMAD]) -> None:
        """
        A path asks.
        """
        queue = self.queues.setdefault(path, {})
        self.queues.move_to_end(path)
        self.count -= len(queue)
        for mad in mads:
            queue[_key(mad)] = mad
        self.count += len(queue)

    def take(self, path: DatagramPath) -> ReceivedMAD:
        """
        @return: the oldest of a path, whose turn comes again after the others'.
        """
        queue = self.queues[path]
        mad = queue.pop(next(iter(queue)))
        self.count -= 1
        if queue:
            self.queues.move_to_end(path, last=False)
        else:
            del self.queues[path]
        return mad

    def most(self, sender: DatagramPath) -> DatagramPath:
        """
        @return: the path with most, of the sender and of those that have been silent for longest: their
            requests are by now given up or about to be repeated.
        """
        queues = self.queues
        some = (*((sender,) if sender in queues else ()), *islice(queues, CM_QUEUES_LOOKED_AT))
        return max(some, key=lambda path: len(queues[path]))


class CMAgent:
    """
    Connection management as an agent: whole MADs, as hosts send them (IBTA vol. 1 12.6).

    Processes of one host send its messages without a MAD header, straight to the communication manager.

    Anybody can send REQs and SIDR_REQs, so they are queued until the end of a batch: a flood of them does not
    delay established connections.  Under overload the source that asked last is answered first, then the
    others in turn, and each source in the order in which it asked: a REQ must not come after what its sender
    did when it had no answer.  Sources that have shown themselves by a connection which came up, and
    strangers, are sure of half the answers and half the places each, and have all that the others leave; the
    former lose what they ask last, strangers what they asked first.  A request that is repeated while it
    waits has its place.
    """

    def __init__(self, device: IManagedDevice) -> None:
        """
        @param device: an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>} with C{mads}, C{cm} and
            C{markDirty}.
        """
        self._device = device
        self._strangers, self._shown = _Requests(), _Requests()
        device.mads.register(COMMUNICATION, CM_VERSION, (SEND,), self.received)

    @property
    def requests(self) -> int:
        """
        @return: how many are queued.
        """
        return self._strangers.count + self._shown.count

    def received(self, mad: ReceivedMAD) -> None:
        """
        A CM message arrived.
        """
        device, path = self._device, mad.path
        # A peer that has given up its REQ names no connection of ours, as that REQ may be queued.
        isBehind = mad.attribute == REJ.attribute and self._isQueued(path)
        isBehind = isBehind and not any(mad.data[_REMOTE_ID : _REMOTE_ID + 4])
        if mad.attribute not in _UNSOLICITED and not isBehind:
            self._deliver(mad)
            return
        own, others = self._strangers, self._shown
        if device.cm.hasShown(path):
            own, others = others, own
        requests = own.count + others.count
        if own.has(mad):
            return
        if requests >= CM_REQUESTS:
            device.count("management_dropped")
            crowd = own if own.count >= CM_REQUESTS // 2 else others
            most = crowd.most(path)
            if crowd is self._strangers:
                crowd.take(most)
            elif most is path:
                # Not one that waits: of a peer that repeats many in one order it would be the same each time.
                return
            else:
                crowd.queues[most].popitem()
                crowd.count -= 1
        elif not requests:
            device.markDirty(self)
        if path in others.queues:
            # It has shown itself since, or has no connection any more.
            before = others.queues.pop(path)
            others.count -= len(before)
            own.add(path, before.values())
        own.add(path, (mad,))

    def _isQueued(self, path: DatagramPath) -> bool:
        return path in self._shown.queues or path in self._strangers.queues

    def endOfBatch(self) -> None:
        """
        Process some of the queued requests.
        """
        strangers, shown, requests = self._strangers, self._shown, self.requests
        isAll = requests <= CM_REQUESTS_PER_BATCH
        try:
            for number in range(min(requests, CM_REQUESTS_PER_BATCH)):
                some = strangers if not shown.count or (strangers.count and number & 1) else shown
                # One turn answers all; or the sources that asked last, as the others have timed out or will
                # retransmit, and their answers would be wasted.
                mad = some.take(next(iter(some.queues) if isAll else reversed(some.queues)))
                # The path of a process may be lost by now.
                if mad.path.alive:
                    self._deliver(mad)
        finally:
            # Also if a listener raised: the rest must not wait for another request.
            if self.requests:
                self._device.markDirty(self)

    def _deliver(self, mad: ReceivedMAD) -> None:
        device, path, data = self._device, mad.path, mad.data
        transactions = device.cm.transactions
        if transactions is not None:
            transactions.remember(path.peer.address, mad.attribute, data, HEADER_BYTES, mad.transaction)
        device.managementReceived(path, mad.attribute, data, HEADER_BYTES, MAD_BYTES)
