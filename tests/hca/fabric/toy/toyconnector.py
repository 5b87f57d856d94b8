"""
A connector in a few lines: the fabric over socket pairs, whose connections are objects that call each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from tests.hca.fabric.toy.toyfabric import SocketPairFabric, SocketPairPath
from twisted_ib import limits
from twisted_ib.errors import PathLostError
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, Rejection, RejectReason
from twisted_ib.hca.connection.interfaces import IConnector
from twisted_ib.hca.fabric.base.streams import FabricConnection, FabricConnector


class ToyConnection(FabricConnection):
    """
    One end of a connection.

    @ivar other: the other end.
    """

    def __init__(self, fabric: ToyFabric, way: SocketPairPath, stage: str, other: Any = None) -> None:
        super().__init__(way, stage)
        self.fabric = fabric
        self.other: ToyConnection | None = other
        fabric.connections[self] = None

    def tell(self, call: Any, *arguments: Any) -> bool:
        """
        Call a method of the other end in its next turn.
        """
        other = self.other
        if other is not None:
            other.fabric.soon(other.fabric.first, getattr(other, call), *arguments)
        return other is not None

    def sendReply(self, reply: ConnectReply) -> bool:
        return self.tell("replied", reply)

    def refuse(self, privateData: bytes) -> bool:
        return self.tell("refused", Rejection(RejectReason.CONSUMER_DEFINED, privateData))

    def confirm(self) -> bool:
        return self.tell("established")

    def withdraw(self) -> None:
        self.tell("refused", Rejection(RejectReason.TIMEOUT))

    def end(self) -> None:
        # Behind the records that were sent before.
        for each in (self, self.other):
            if each is not None:
                each.fabric.soon(each.fabric.last, each.gone)

    def finish(self, now: float) -> bool:
        self.over()
        return True

    def over(self) -> None:
        super().over()
        self.fabric.connections.pop(self, None)


@implementer(IConnector)
class ToyConnector(FabricConnector):
    """
    The connector of one device.
    """

    def __init__(self, fabric: ToyFabric) -> None:
        self.fabric = fabric

    def sendRequest(self, path: Any, request: ConnectRequest, user: Any, now: float) -> ToyConnection:
        way = self.fabric.others[path]
        active = ToyConnection(self.fabric, path, "calling")
        active.user = user
        passive = active.other = ToyConnection(way.fabric, way, "requested", active)
        way.fabric.soon(way.fabric.first, way.fabric.owner.connectionRequested, passive, request)
        return active


class ToyFabric(SocketPairFabric):
    """
    The fabric of one HCA.

    @ivar others: the other end of each path.
    @ivar first: calls that come before the records that are there, and C{last} behind them.
    """

    name = "toyconnector"

    def __init__(self, owner: Any, *arguments: Any, **more: Any) -> None:
        super().__init__(owner, *arguments, **more)
        self.others: dict[Any, Any] = {}
        self.connections: dict[ToyConnection, None] = {}
        self.first: deque[Callable[[], object]] = deque()
        self.last: deque[Callable[[], object]] = deque()
        owner.useConnector(ToyConnector(self))

    def couple(self, path: Any, other: Any) -> None:
        super().couple(path, other)
        path.fabric.others[path] = other
        other.fabric.others[other] = path

    def soon(self, calls: deque[Callable[[], object]], call: Callable[..., object], *arguments: Any) -> None:
        """
        Call in the next turn.
        """
        if not self.poller.closed:
            calls.append(lambda: call(*arguments))
            self.signal()

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        return self._run(self.first) + super().progress(budget) + self._run(self.last)

    def _run(self, calls: deque[Callable[[], object]]) -> int:
        n = len(calls)
        for _ in range(n):
            calls.popleft()()
        return n

    def pending(self) -> bool:
        return bool(self.first or self.last) or super().pending()

    def lose(self, path: Any, reason: PathLostError) -> None:
        super().lose(path, reason)
        for connection in [each for each in self.connections if each.destination is path]:
            connection.lost(reason)
