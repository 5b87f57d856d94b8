"""
A child with an interface, which sends IP packets, and answers those of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from zope.interface import implementer

from tests.ipoib.test_interface import IPV4, packet
from tests.processes.programs.child import Line, Program
from twisted_ib.ipoib.interface import IPacketConsumer, IPoIBInterface
from twisted_ib.ipoib.resolver import interfaceFor

#: Of the octets behind the header: a question or an answer, and its number.
_HEAD = 20
_QUESTION, _ANSWER = b"?", b"!"
_NUMBER = slice(_HEAD + 1, _HEAD + 5)


@implementer(IPacketConsumer)
class End(Program):
    """
    One end.
    """

    interface: IPoIBInterface

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Begin without an interface.
        """
        super().__init__(reactor, line)
        self.answered: dict[int, bytes] = {}
        self.said: list[Any] = []
        self.asked = 0

    # -- IPacketConsumer

    def packetReceived(self, buffer: Any, start: int, stop: int) -> None:
        """
        Answer a question, with source and destination exchanged.
        """
        got = bytes(buffer[start:stop])
        if got[_HEAD : _HEAD + 1] == _QUESTION:
            self.asked += 1
            self.interface.send(IPV4 + got[:12] + got[16:20] + got[12:16] + _ANSWER + got[_HEAD + 1 :])
        elif got[_HEAD : _HEAD + 1] == _ANSWER:
            self.answered[int.from_bytes(got[_NUMBER], "big")] = got

    def interfaceUp(self, mtu: int) -> None:
        self.said.append(mtu)

    def interfaceFailed(self, error: Exception) -> None:
        self.said.append(str(error))

    # -- commands

    async def do_open(self, device: str, address: str) -> dict[str, Any]:
        """
        Open the interface, and wait until packets pass.
        """
        self.interface = interfaceFor(self.reactor, device, address)
        self.interface.consumer = self
        await self.interface.ready()
        return self.do_group()

    def do_group(self) -> dict[str, Any]:
        """
        @return: the broadcast group's MLID and Q_Key, and the interface's MTU and queue pair.
        """
        group = self.interface.broadcast
        assert group is not None
        number = int.from_bytes(self.interface.hardwareAddress[1:4], "big")
        return {"mlid": group.mlid, "qKey": group.qKey, "mtu": self.interface.mtu, "number": number}

    def do_gid(self) -> str:
        """
        @return: that of the port.
        """
        gid: str = self.interface.channel.device.gids()[0]
        return gid

    def _ask(self, peer: str, number: int, length: int) -> bytes:
        asked = packet(str(self.interface.addresses[0].ip), peer, length)
        asked = asked[:_HEAD] + _QUESTION + number.to_bytes(4, "big") + asked[_HEAD + 5 :]
        self.interface.send(IPV4 + asked)
        return asked

    async def _until(self, holds: Callable[[], object], seconds: float) -> None:
        end = self.reactor.seconds() + seconds
        while not holds() and self.reactor.seconds() < end:
            await deferLater(self.reactor, 0.001)

    async def do_reach(self, peer: str) -> float:
        """
        Ask 20 times a second until there is an answer.

        @return: after how many seconds.
        """
        self.answered.clear()
        start, number = self.reactor.seconds(), 0
        while not self.answered:
            number += 1
            self._ask(peer, number, 100)
            await self._until(lambda: self.answered, 0.05)
        found: float = self.reactor.seconds() - start
        return found

    async def do_ask(self, peer: str, lengths: list[int]) -> int:
        """
        Ask questions of some lengths, one after another.

        @return: how many answers there were, with the octets of their questions.
        """
        self.answered.clear()
        good = 0
        for number, length in enumerate(lengths):
            asked = self._ask(peer, number, length)
            await self._until(lambda number=number: number in self.answered, 5.0)  # type: ignore[misc]
            good += self.answered.get(number, b"")[_HEAD + 1 :] == asked[_HEAD + 1 :]
        return good

    async def do_flood(self, peer: str, count: int, length: int) -> int:
        """
        Keep 8 questions on their way.

        @return: how many were answered.
        """
        self.answered.clear()
        for number in range(count):
            self._ask(peer, number, length)
            await self._until(lambda number=number: len(self.answered) + 8 > number, 5.0)  # type: ignore[misc]
        await self._until(lambda: len(self.answered) == count, 5.0)
        return len(self.answered)

    def do_close(self) -> Deferred[None]:
        """
        Close it.
        """
        return self.interface.close()


__all__ = ["End"]
