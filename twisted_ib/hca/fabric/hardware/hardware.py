"""
The fabric of an adapter of this host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.errors import NoRouteError
from twisted_ib.hca.base.interfaces import IAddressDirectory, IFabric
from twisted_ib.hca.base.traits import ADAPTER, Traits
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.fabric.base.addressdirectory import AddressDirectory
from twisted_ib.hca.fabric.base.fabric import CompletedSearch
from twisted_ib.hca.fabric.base.waker import LinkWaker
from twisted_ib.hca.fabric.hardware.provider import Verbs, loadVerbs, openAdapter


class HardwareFabric(AddressDirectory):
    """
    The fabric of one HCA.  It makes no connections yet.

    @ivar adapter: the adapter's name.
    @ivar context: the adapter, opened.
    """

    name: ClassVar[str] = "hardware"
    traits: ClassVar[Traits] = ADAPTER
    #: What is worth polling: nothing.
    hot: tuple[Any, ...] = ()

    def __init__(
        self,
        owner: Any,
        guid: int,
        clock: Callable[[], float],
        address: str,
        adapter: str,
        verbs: Verbs | None = None,
    ) -> None:
        """
        Open the device.

        @param owner: the device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param clock: returns the time in seconds.
        @param address: the adapter's IP address.
        @param adapter: its name.
        @param verbs: the package C{ibverbs}; by default it is loaded.
        @raise DeviceError: a library or the adapter is not there, or may not be used.
        """
        super().__init__(owner, guid, address)
        self.clock = clock
        self.adapter = adapter
        verbs = loadVerbs(adapter) if verbs is None else verbs
        self.context = openAdapter(verbs, adapter)
        self._waker = LinkWaker(_Nothing())

    def _refuse(self, what: str) -> NoRouteError:
        return NoRouteError(f"adapter {self.adapter} has no {what}")

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        """
        Refuse.

        @raise NoRouteError: always.
        """
        raise self._refuse("connections yet")

    def publishAny(self, prefix: int, address: str) -> int:
        """
        Refuse.

        @raise NoRouteError: always.
        """
        raise self._refuse("connections yet")

    def resolve(self, serviceID: int, address: str, user: Any) -> CompletedSearch:
        """
        Refuse.

        @raise NoRouteError: always.
        """
        raise self._refuse("connections yet")

    def reachGID(self, gid: int, user: Any) -> CompletedSearch:
        """
        Refuse.

        @raise NoRouteError: always.
        """
        raise self._refuse(f"datagrams: {gidText(gid)}")

    def join(self, group: int) -> None:
        """
        Refuse.

        @raise NoRouteError: always.
        """
        raise self._refuse("multicast")

    def leave(self, group: int) -> None:
        """
        No effect: nothing was joined.
        """

    def paths(self) -> list[Any]:
        """
        @return: none.
        """
        return []

    def trace(self, observer: Any) -> None:
        """
        No effect: an adapter shows no packets.
        """

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        """
        @return: 0.
        """
        return 0

    def ringBells(self) -> None:
        """
        No effect.
        """

    def pending(self) -> bool:
        """
        @return: whether there is something to do.
        """
        return False

    def signal(self) -> None:
        """
        Make L{fileno} readable: there is something to do.
        """
        self._waker.signal()

    def attend(self) -> None:
        """
        Reset L{signal}.
        """
        self._waker.attend()

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        """
        Have L{attend} call C{call} while another descriptor is readable.
        """
        self._waker.watch(fd, call)

    def fileno(self) -> int:
        """
        @return: a descriptor that is readable when there is work.
        """
        return self._waker.fileno()

    def forked(self) -> None:
        """
        In a forked child: the adapter is the parent's.
        """
        self._waker.close()

    def close(self) -> None:
        """
        Close the adapter.
        """
        self._waker.close()
        self.context.close()


class _Nothing:
    # What wakes a sleeping device: see LinkWaker.
    def fileno(self) -> int:
        return -1

    def pending(self) -> bool:
        return False


classImplements(HardwareFabric, IFabric, IAddressDirectory)

__all__ = ["HardwareFabric"]
