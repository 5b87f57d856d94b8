"""
The objects of one HCA that are neither queue pairs nor memory.

What an object needs it holds (L{twisted_ib.hca.base.refcount}), so that nothing goes before
what depends on it.  Here is what exists, for the bounds, for C{ib-devinfo} and for the end:
who closes a device, or dies, leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.memory.memory import ProtectionDomain
from twisted_ib.hca.queues.completion import CompletionQueue
from twisted_ib.hca.queues.sharedreceive import SharedReceiveQueue
from twisted_ib.hca.services.address import AddressHandle, AddressVector
from twisted_ib.hca.wire.grh import isMulticast


class Objects:
    """
    The tables of one device.

    @ivar completionQueues: its completion queues.
    @ivar sharedReceiveQueues: its shared receive queues.
    @ivar addressHandles: its address handles.
    """

    def __init__(self, device: Any) -> None:
        """
        There are none.

        @param device: the device that they belong to.
        """
        self._device = device
        self.completionQueues: set[CompletionQueue] = set()
        self.sharedReceiveQueues: set[SharedReceiveQueue] = set()
        self.addressHandles: set[AddressHandle] = set()

    @staticmethod
    def _checkRoom(table: Sized, most: int, kind: str) -> None:
        """
        @raise ResourceLimitError: a table is full.
        """
        if len(table) >= most:
            raise ResourceLimitError(f"a device has at most {most} {kind}")

    def createCompletionQueue(self, depth: int) -> CompletionQueue:
        """
        A completion queue with C{depth} places.

        @param depth: completions that it holds.
        @return: the queue.
        @raise ResourceLimitError: there are too many, or it cannot be so deep.
        """
        self._checkRoom(self.completionQueues, limits.COMPLETION_QUEUES, "completion queues")
        queue = CompletionQueue(depth, self._device.timers)
        self.completionQueues.add(queue)
        return queue

    def destroyCompletionQueue(self, queue: CompletionQueue) -> None:
        """
        @param queue: one of this device.
        @raise ResourceBusyError: queue pairs still complete there.
        """
        queue.close()
        self.completionQueues.discard(queue)

    def createSharedReceiveQueue(self, pd: ProtectionDomain, depth: int, pieces: int) -> SharedReceiveQueue:
        """
        A shared receive queue.

        @param pd: the domain that the memory of its receives is of.
        @param depth: receives that it holds.
        @param pieces: elements of each one's scatter/gather list.
        @return: the queue.
        @raise ResourceLimitError: there are too many, or it cannot be so large.
        """
        self._checkRoom(self.sharedReceiveQueues, limits.SHARED_RECEIVE_QUEUES, "shared receive queues")
        queue = SharedReceiveQueue(pd, depth, pieces)
        self.sharedReceiveQueues.add(queue)
        return queue

    def destroySharedReceiveQueue(self, queue: SharedReceiveQueue) -> None:
        """
        @param queue: one of this device.
        @raise ResourceBusyError: queue pairs still receive from it.
        """
        queue.close()
        self.sharedReceiveQueues.discard(queue)

    def createAddressHandle(self, pd: ProtectionDomain, vector: AddressVector) -> AddressHandle:
        """
        An address handle.

        @param pd: the domain of the queue pairs that use it.
        @param vector: where datagrams go that are sent with it.
        @return: the handle.
        @raise ResourceLimitError: there are too many.
        @raise QueuePairError: the vector cannot be.
        @raise SharedGIDError: its GID is an address of this host, which all HCAs have.
        @raise NoRouteError: its GID leads nowhere from here.
        """
        self._checkRoom(self.addressHandles, limits.ADDRESS_HANDLES, "address handles")
        vector.check()
        if not isMulticast(vector.gid):
            self._device.paths.check(vector.gid)
        handle = AddressHandle(pd, vector, self._device)
        self.addressHandles.add(handle)
        return handle

    def destroyAddressHandle(self, handle: AddressHandle) -> None:
        """
        Destroy one.  Datagrams that wait for their way to be found, or for room, still go.

        @param handle: one of this device.
        """
        handle.close()
        self.addressHandles.discard(handle)

    def close(self) -> None:
        """
        Destroy everything; queue pairs, which hold all of these, are gone.
        """
        for handle in list(self.addressHandles):
            self.destroyAddressHandle(handle)
        for shared in list(self.sharedReceiveQueues):
            self.destroySharedReceiveQueue(shared)
        for queue in list(self.completionQueues):
            self.destroyCompletionQueue(queue)
