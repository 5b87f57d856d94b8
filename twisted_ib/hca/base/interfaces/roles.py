"""
Objects that cross the seams of a fabric, as whoever gets them sees them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from twisted_ib.hca.base.states import QPState, QPType

if TYPE_CHECKING:
    from twisted_ib.errors import PathLostError
    from twisted_ib.hca.base.events import EventType
    from twisted_ib.hca.base.interfaces.fabric import IFabricConnections
    from twisted_ib.hca.base.interfaces.path import IPath


#: Bytes of a medium, or of a program.
Buffer = bytes | bytearray | memoryview


class Search(Protocol):
    """
    A search for a path.
    """

    def cancel(self) -> None:
        """
        Tell the user no more.
        """


class PathUser(Protocol):
    """
    A user that wants a path.
    """

    def pathReady(self, path: Any) -> None:
        """
        The L{IPeerPath} is there.
        """

    def connectFailed(self, error: Any) -> None:
        """
        There is none.
        """


class Waiter(Protocol):
    """
    A queue pair that waits for room in a medium.
    """

    def resume(self) -> None:
        """
        There is room again.
        """


class Acknowledged(Protocol):
    """
    A requester, which keeps the requests that it has sent.
    """

    def acknowledged(self, position: int) -> object:
        """
        The peer has consumed everything before a position.
        """


class DatagramPath(Protocol):
    """
    The way on which a datagram came, and on which it is answered: an L{IPeerPath
    <twisted_ib.hca.base.interfaces.IPeerPath>}, or a subnet, which has no more for MADs.
    """

    @property
    def fabric(self) -> IFabricConnections:
        """
        The fabric that it belongs to.
        """

    @property
    def peer(self) -> Any:
        """
        The sender.
        """

    @property
    def alive(self) -> bool:
        """
        Whether the sender can still be reached.
        """

    def respond(self, word: int, record: bytes, partition: int) -> bool:
        """
        Send the response: see L{IPeerPath.respond<twisted_ib.hca.base.interfaces.IPeerPath.respond>}.
        """


class Segment(Protocol):
    """
    Memory that peers can map.
    """

    @property
    def map(self) -> Any:
        """
        Its buffer.
        """

    def close(self) -> None:
        """
        Release it.
        """


class BoundQueuePair(Waiter, Protocol):
    """
    A queue pair, as its path sees it.
    """

    number: int
    remote: int
    partition: int
    posted: int
    state: QPState
    work: Any
    device: Any

    @property
    def type(self) -> QPType:
        """
        The transport service.
        """

    @property
    def minRNRTimer(self) -> int:
        """
        The code of the time after which a refused message is sent again.
        """

    @property
    def attributes(self) -> dict[str, Any] | None:
        """
        Those that were set, by their names; L{None} if nothing.
        """

    @property
    def proposal(self) -> Any:
        """
        This side's parameters in its request or reply, on packet fabrics.
        """

    @property
    def vector(self) -> Any:
        """
        The address vector to resolve the path from, if no path was given.
        """

    def delivered(self, opcode: int, buffer: Buffer, start: int, stop: int) -> int:
        """
        A record arrived.

        @return: 0, or the syndrome of a NAK.
        """

    def streamed(self, buffer: Buffer, start: int, stop: int) -> int:
        """
        A message of a stream arrived.

        @return: 0, or the syndrome of a NAK.
        """

    def fail(self, reason: Exception) -> None:
        """
        Go to ERR.
        """

    def pathLost(self, reason: PathLostError) -> None:
        """
        The peer's HCA is gone.
        """

    def raiseEvent(self, kind: EventType) -> None:
        """
        Report an asynchronous event.
        """


class WorkedQueuePair(BoundQueuePair, Protocol):
    """
    A queue pair, as its work queues see it.
    """

    consumer: Any
    path: IPath | None
    maxMessage: int
    gathers: bool

    def joinPartition(self, index: int) -> None:
        """
        Take the P_Key of a slot of the port's table.
        """

    def stop(self, reason: Exception) -> None:
        """
        Go to SQE.
        """
