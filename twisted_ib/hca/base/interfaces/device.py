"""
The device, as what is in it sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from twisted_ib.hca.base.interfaces.fabric import IFabric
from twisted_ib.hca.base.interfaces.roles import PathUser
from twisted_ib.hca.base.partition import PartitionTable
from twisted_ib.hca.base.port import Port, PortChange
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import Traits


class IDevice(Protocol):
    """
    A device, as each layer that belongs to it may ask; those above it say what more they need.
    """

    name: str
    clock: Callable[[], float]
    randomBits: Callable[[int], int]
    guid: int
    gid: int
    address: str | None
    pathMTU: int
    closed: bool
    partitions: PartitionTable
    port: Port
    timers: Timers
    traits: Traits
    turns: int
    #: The paths and the form of its datagrams are of the layers above.
    paths: Any
    addressPaths: Any
    datagramForm: Any

    @property
    def fabric(self) -> IFabric:
        """
        Carries its operations.
        """

    @property
    def queuePairs(self) -> Mapping[int, Any]:
        """
        By number.
        """

    def count(self, name: str) -> None:
        """
        Add one to a counter.
        """

    def warn(self, text: str) -> None:
        """
        Warn the operator of this process.
        """

    def check(self) -> None:
        """
        @raise DeviceError: it is closed, or another thread's.
        """

    def markDirty(self, owner: Any) -> None:
        """
        Have C{owner.endOfBatch()} called at the end of this batch.
        """

    def stepDatagrams(self, number: int, state: QPState, attributes: dict[str, Any]) -> None:
        """
        A queue pair of datagrams is about to be modified.

        @raise QueuePairError: its adapter does not take it.
        """

    def hasGID(self, gid: int) -> bool:
        """
        @return: whether it is one of its port's.
        """

    def reach(self, key: int, user: PathUser) -> Any:
        """
        Find the path to a GID or LID.
        """

    def statistics(self) -> dict[str, int]:
        """
        @return: its counters.
        """

    def changePort(self, change: PortChange) -> None:
        """
        Change the port, with the events of that.
        """
