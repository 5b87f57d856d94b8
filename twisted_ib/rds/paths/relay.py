"""
Paths of which several processes of an address have datagrams: what a path knows of them
(L{twisted_ib.rds.media.rcrelay}).  Pure, but for the paths that it names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable

    from twisted_ib.rds.paths.network import Network, Route
    from twisted_ib.rds.paths.path import RDSPath
    from twisted_ib.rds.protocol.wire import Fields


class Pending:
    """
    The messages of a path that were handed on, until those whose they are have them.  None of them, nor of
    those that came after it, is acknowledged before: the peer keeps them, and sends them again if this
    process ends.
    """

    def __init__(self) -> None:
        self._numbers: deque[int] = deque()
        self._taken: set[int] = set()
        self._refused: int | None = None
        #: The last that was handed on or refused.
        self.last = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> None:
        """
        A message is handed on.

        @param number: its sequence number; they rise.
        """
        self.last = number
        self._numbers.append(number)

    def refuse(self, number: int) -> None:
        """
        A message is not handed on: neither it nor one after it is ever acknowledged.
        """
        self.last = number
        if self._refused is None:
            self._refused = number

    def take(self, number: int) -> bool:
        """
        A message has arrived, or is lost.

        @return: whether more can be acknowledged.
        """
        numbers, taken = self._numbers, self._taken
        if not numbers or number < numbers[0]:
            return False
        taken.add(number)
        if number != numbers[0]:
            return False
        while numbers and numbers[0] in taken:
            taken.discard(numbers.popleft())
        return True

    def clear(self) -> None:
        """
        Wait for them no longer.
        """
        self._numbers.clear()
        self._taken.clear()

    def confirmed(self, last: int) -> int:
        """
        @param last: the last sequence number received.
        @return: the last that can be acknowledged.
        """
        if self._refused is not None:
            last = min(last, self._refused - 1)
        return min(last, self._numbers[0] - 1) if self._numbers else last


class IRelay(Protocol):
    """
    The network between the processes of an address, as the network of that address sees it.
    """

    @property
    def paths(self) -> Mapping[Hashable, RDSPath]:
        """
        Those to other processes.
        """

    def isElsewhere(self, host: str, port: int) -> bool:
        """
        @return: whether another process of one of our addresses has a port.
        """

    def handIn(self, network: Network, path: Route, fields: Fields, payload: bytes) -> bool:
        """
        Hand a peer's message on to the process of its port.

        @return: False if there is none.
        """

    def mapChanged(self, path: Route) -> None:
        """
        A peer's congestion map has changed.
        """
