"""
Children with large values of AMP (C{examples/bulkamp.py}): one lends a value, the other fetches it
when it is told to.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory
from twisted.protocols import amp

from tests.examples.programs import load
from tests.processes.programs.child import Line, Program
from tests.processes.programs.wires import content
from twisted_ib.internet.readers import channelsOf

bulkamp = load("bulkamp")


class Keep(amp.Command):
    """
    Lend a value.
    """

    arguments = [(b"blob", bulkamp.Bulk())]


class Keeper(bulkamp.BulkAMP):  # type: ignore[misc]
    """
    Remembers what it was lent.
    """

    def __init__(self, lent: list[Any]) -> None:
        """
        @param lent: where.
        """
        super().__init__()
        self._kept = lent

    @Keep.responder
    def keep(self, blob: Any) -> dict[str, Any]:
        self._kept.append(blob)
        return {}


class Lender(Program):
    """
    Either of them.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Nothing is lent.
        """
        super().__init__(reactor, line)
        self._lent: list[Any] = []

    async def do_serve(self, endpoint: str) -> int:
        """
        Listen.

        @return: the port.
        """
        factory = Factory.forProtocol(lambda: Keeper(self._lent))
        port: Any = await serverFromString(self.reactor, endpoint).listen(factory)
        return int(port.getHost().port)

    async def do_lend(self, endpoint: str, length: int) -> None:
        """
        Connect, and lend a value.
        """
        factory = Factory.forProtocol(lambda: Keeper(self._lent))
        wire: Any = await clientFromString(self.reactor, endpoint).connect(factory)
        await wire.callRemote(Keep, blob=content(1, length))

    async def do_fetch(self) -> str:
        """
        @return: the hash of what was lent.
        """
        return sha256(await self._lent.pop().fetch()).hexdigest()

    def do_regions(self) -> int:
        """
        @return: how many memory regions there are here.
        """
        return sum(channel.device.inUse()["mr"] for channel in channelsOf(self.reactor))
