"""
Children of the key-value store of C{examples/}: a writer who never rests, and a reader.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.task import deferLater

from tests.examples.programs import load
from tests.processes.programs.child import Line, Program

keyvalue = load("keyvalue")

#: The key that is changed and read.
_KEY = b"key"


class Slow(keyvalue.Table):  # type: ignore[misc]
    """
    A table where half of a slot is written, and all of it some turns later.
    """

    reactor: Any
    #: Fires when the last slot is written.
    written: Deferred[None]

    def write(self, number: int, packed: bytes) -> None:
        super().write(number, packed[: len(packed) // 2])
        self.written = Deferred.fromCoroutine(self._end(number, packed))

    async def _end(self, number: int, packed: bytes) -> None:
        if hasattr(self, "reactor"):
            for _ in range(3):
                await deferLater(self.reactor, 0)
        super().write(number, packed)


class Keeper(Program):
    """
    A store, or a client of one.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Neither.
        """
        super().__init__(reactor, line)
        self._store: Any = None
        self._writing = False

    async def do_serve(self, slow: bool, slotBytes: int, valueBytes: int) -> int:
        """
        Have a store, and change one value all the time.

        @param slow: write so that half of a slot can be seen.
        @param slotBytes: bytes of each slot.
        @param valueBytes: bytes of each value.

        @return: the port.
        """
        table = (Slow if slow else keyvalue.Table)(1, slotBytes)
        table.reactor = self.reactor
        self._store = keyvalue.Store(table)
        endpoint = serverFromString(self.reactor, "ib:0:interface=127.0.0.1")
        port: Any = await endpoint.listen(self._store)
        self._writing = True
        self._change(0, valueBytes)
        return int(port.getHost().port)

    def _change(self, number: int, valueBytes: int) -> None:
        """
        Write the next value, and so on.
        """
        table = self._store.table
        if not self._writing:
            return
        table.put(_KEY, bytes([number % 256]) * valueBytes)
        written = getattr(table, "written", None)
        if written is None:
            self.reactor.callLater(0, self._change, number + 1, valueBytes)
        else:
            written.addCallback(lambda _: deferLater(self.reactor, 0.003))
            written.addCallback(lambda _: self._change(number + 1, valueBytes))

    def do_rest(self) -> int:
        """
        Change nothing any more.

        @return: how many messages the program has answered.
        """
        self._writing = False
        return int(self._store.requests)

    async def do_read(self, port: int, times: int, valueBytes: int) -> dict[str, int]:
        """
        Read the value many times.

        @return: how many values were seen, how many were mixtures, and how many READs were torn.
        """
        client = await keyvalue.connect(self.reactor, f"ib:127.0.0.1:{port}")
        seen = set()
        mixed = 0
        for _ in range(times):
            value = await client.get(_KEY)
            seen.add(value[0])
            mixed += value != value[:1] * valueBytes
        client.transport.loseConnection()
        return {"seen": len(seen), "mixed": mixed, "torn": client.torn}
