"""
The objects of one HCA other than queue pairs and memory.

References between objects are counted (L{twisted_ib.hca.base.refcount}), so that none is destroyed while
another depends on it.  The tables here exist for the limits, for C{ib-devinfo} and for closing: a device that
closes, or whose process dies, leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.completion import CompletionQueue
from twisted_ib.hca.queues.receives import SharedReceiveQueue
from twisted_ib.hca.services.address import AddressHandle, AddressVector

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IDevice


class Objects:
    """
    The tables of one device.
    """

    def __init__(self, device: IDevice) -> None:
        self._device = device
        self.completionQueues: set[CompletionQueue] = set()
        self.sharedReceiveQueues: set[SharedReceiveQueue] = set()
        self.addressHandles: set[AddressHandle] = set()

    @staticmethod
    def _checkRoom(table: Sized, most: int, kind: str) -> None:
        if len(table) >= most:
            raise ResourceLimitError(f"a device has at most {most} {kind}")

    def createCompletionQueue(self, depth: int) -> CompletionQueue:
        """
        Create a completion queue.

        @param depth: completions that it holds.
        @raise ResourceLimitError: there are too many, or C{depth} is too large.
        """
        self._checkRoom(self.completionQueues, limits.COMPLETION_QUEUES, "completion queues")
        queue = CompletionQueue(depth, self._device.timers)
        self.completionQueues.add(queue)
        return queue

    def destroyCompletionQueue(self, queue: CompletionQueue) -> None:
        """
        @raise ResourceBusyError: queue pairs still use it.
        """
        # As Linux verbs.c, ib_destroy_cq refuses with EBUSY: queue pairs would complete into freed memory.
        queue.close()
        self.completionQueues.discard(queue)

    def createSharedReceiveQueue(self, pd: ProtectionDomain, depth: int, pieces: int) -> SharedReceiveQueue:
        """
        Create a shared receive queue.

        @param pd: the protection domain of the receives' memory.
        @param depth: receives that it holds.
        @param pieces: scatter/gather elements of each receive.
        @raise ResourceLimitError: there are too many, or a size is too large.
        """
        self._checkRoom(self.sharedReceiveQueues, limits.SHARED_RECEIVE_QUEUES, "shared receive queues")
        queue = SharedReceiveQueue(pd, depth, pieces)
        self.sharedReceiveQueues.add(queue)
        return queue

    def destroySharedReceiveQueue(self, queue: SharedReceiveQueue) -> None:
        """
        @raise ResourceBusyError: queue pairs still use it.
        """
        queue.close()
        self.sharedReceiveQueues.discard(queue)

    def createAddressHandle(self, pd: ProtectionDomain, vector: AddressVector) -> AddressHandle:
        """
        Create an address handle.

        @param pd: the protection domain of the queue pairs that use it.
        @raise ResourceLimitError: there are too many.
        @raise QueuePairError: the vector is invalid.
        @raise SharedGIDError: its GID is an address of this host, which all HCAs share.
        @raise NoRouteError: its GID is unreachable.
        """
        self._checkRoom(self.addressHandles, limits.ADDRESS_HANDLES, "address handles")
        # IBTA vol. 1 11.2.2: creating an address handle checks the vector, so that sending with it cannot
        # fail for it.
        linkLayer = self._device.port.linkLayer
        vector.check(linkLayer)
        if not vector.isMulticast:
            self._device.paths.check(vector.key(linkLayer))
        handle = AddressHandle(pd, vector, self._device)
        self.addressHandles.add(handle)
        return handle

    def destroyAddressHandle(self, handle: AddressHandle) -> None:
        """
        Destroy an address handle.  Datagrams that wait for their path, or for space, are still sent.
        """
        handle.close()
        self.addressHandles.discard(handle)

    def close(self) -> None:
        """
        Destroy everything; the queue pairs, which hold references to all of these, are gone.
        """
        # The order of the references: address handles and receive queues depend on protection domains, which
        # are freed last.
        for handle in list(self.addressHandles):
            self.destroyAddressHandle(handle)
        for shared in list(self.sharedReceiveQueues):
            self.destroySharedReceiveQueue(shared)
        for queue in list(self.completionQueues):
            self.destroyCompletionQueue(queue)
