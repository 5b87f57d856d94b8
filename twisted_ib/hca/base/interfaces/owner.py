"""
The device, as what is in it and its fabric see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from zope.interface import Attribute, Interface

from twisted_ib.hca.base.interfaces.fabric import IFabric
from twisted_ib.hca.base.interfaces.roles import Buffer, PathUser
from twisted_ib.hca.base.partition import PartitionTable
from twisted_ib.hca.base.port import Port, PortChange
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import Traits

if TYPE_CHECKING:
    from twisted_ib.errors import PathLostError


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


class IFabricOwner(Interface):
    """
    The device, as its fabric sees it.
    """

    wanted: Callable[[], object] | None = Attribute(
        "L{None}, or called when something was published and nothing may follow that ends the batch."
    )
    queuePairs: Mapping[int, Any] = Attribute("The queue pairs, by number.")
    partitions: PartitionTable = Attribute(
        "The L{PartitionTable<twisted_ib.hca.base.partition.PartitionTable>}."
    )

    reserved: Mapping[int, object] = Attribute(
        "The numbers of queue pairs whose connections await the peer's RTU, or its first packet."
    )

    # Between processes, and from the agent of its class: a MAD of 256 octets without its header of 24
    # (IBTA vol. 1 13.4.3).
    def managementReceived(path: Any, attribute: int, buffer: Buffer, start: int, stop: int) -> None:
        """
        A connection management message arrived: 232 bytes of C{buffer}.
        """

    def madReceived(
        path: Any, number: int, source: int, buffer: Buffer, start: int, stop: int, partition: int = 0
    ) -> None:
        """
        A datagram for queue pair 0 or 1 arrived, which should be a MAD of 256 octets.

        @param number: the queue pair, 0 only where there is one.
        @param source: the sender's queue pair.
        @param partition: the packet's P_Key; 0 if the medium has none.
        """

    # The GRH is the 40 octets that a UD receive has before its payload (IBTA vol. 1 9.8.3, 8.3).
    def datagramReceived(
        path: Any, opcode: int, number: int, buffer: Buffer, start: int, stop: int, partition: int = 0
    ) -> None:
        """
        A datagram arrived: GRH, DETH, payload.

        @param opcode: L{UD_SEND_ONLY<twisted_ib.hca.wire.opcodes.UD_SEND_ONLY>} or the one with immediate
            data, perhaps solicited.
        @param number: the destination queue pair number.
        @param partition: the packet's P_Key; 0 if the medium has none, or its records have it.
        """

    def arrivedEarly(number: int, address: str, psn: int) -> None:
        """
        A connection's packet arrived, with this PSN, for the number of no queue pair.
        """

    def pathAccepted(path: Any) -> None:
        """
        A path dialled by the peer is complete.  The peer's identity is only a claim.
        """

    def pathLost(path: Any, reason: PathLostError) -> None:
        """
        A peer is gone.  Its queue pairs fail next.
        """

    def count(name: str) -> None:
        """
        Add one to a counter.
        """

    def warn(text: str) -> None:
        """
        Warn the operator of this process.
        """

    def describe() -> dict[str, Any]:
        """
        @return: the answer to a query of this device: a dict for JSON.
        """

    def describeSockets() -> Iterator[dict[str, Any]]:
        """
        @return: the answer to a query of listeners and connections: an iterator of dicts for JSON, made one
            by one; C{more} in each is whether another one follows.
        """
