"""
What a short message costs over C{ib://}, beside C{tcp://}.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.dask.case import CommTestCase

#: Each way; the first are not counted.
_MESSAGES = 30


class CostTests(CommTestCase):
    """
    Function calls of both ends, in one process.
    """

    def test_shortMessages(self) -> None:
        """
        A short message takes about as many calls as over TCP, where the kernel does what the rings do here.
        """
        self.play(self._shortMessages())

    async def _shortMessages(self) -> None:
        (tcp, _), (ib, batches) = [await self._calls(scheme) for scheme in ("tcp", "ib")]
        self.assertLess(ib, tcp * 1.08, f"{ib} calls, {tcp} over TCP")
        # As no writer waits, none is told at the end of a batch that it may go on.
        self.assertLess(batches, _MESSAGES)

    async def _calls(self, scheme: str) -> tuple[int, int]:
        client, server = await self.pair(scheme)
        message = [{"op": "task-finished", "key": "nothing-1234", "nbytes": 8}]

        async def exchange() -> None:
            for _ in range(_MESSAGES):
                for sender, receiver in ((client, server), (server, client)):
                    await sender.write(message)
                    await receiver.read()

        await exchange()
        count = batches = 0

        def called(frame: Any, event: str, argument: object) -> None:
            nonlocal count, batches
            count += event in ("call", "c_call")
            batches += event == "call" and frame.f_code.co_name == "endOfBatch"

        before = sys.getprofile()
        sys.setprofile(called)
        try:
            await exchange()
        finally:
            sys.setprofile(before)
        return count, batches
