"""
The paths of an interface's datagrams: address handles that live as long as the machine has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.services.address import AddressHandle, AddressVector


class Path:
    """
    The path to a port or a group.

    @ivar handle: its address handle.
    """

    __slots__ = ("_paths", "handle")

    def __init__(self, paths: Paths, handle: AddressHandle) -> None:
        self._paths = paths
        self.handle = handle

    # The machine forgets paths in many places, and its bounds are those of what it remembers.
    def __del__(self) -> None:
        self._paths.destroy(self.handle)


class Paths:
    """
    The paths of one interface.
    """

    def __init__(self, device: Device) -> None:
        self._objects, self._memory = device.objects, device.memory
        self._pd = device.memory.allocateDomain()
        self._handles: set[AddressHandle] = set()

    def open(self, vector: AddressVector) -> Path:
        """
        @raise HCAError: the address is unreachable, or there are too many address handles.
        """
        handle = self._objects.createAddressHandle(self._pd, vector)
        self._handles.add(handle)
        return Path(self, handle)

    def destroy(self, handle: AddressHandle) -> None:
        """
        Nobody has a path any more.
        """
        if handle in self._handles:
            self._handles.remove(handle)
            self._objects.destroyAddressHandle(handle)

    def close(self) -> None:
        """
        Close all paths, whoever has them.  Idempotent.
        """
        for handle in list(self._handles):
            self.destroy(handle)
        if self._pd in self._memory.domains:
            self._memory.deallocateDomain(self._pd)
