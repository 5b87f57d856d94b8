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
        tcp, ib = [await self._calls(scheme) for scheme in ("tcp", "ib")]
        self.assertLess(ib, tcp * 1.08, f"{ib} calls, {tcp} over TCP")

    async def _calls(self, scheme: str) -> int:
        client, server = await self.pair(scheme)
        message = [{"op": "task-finished", "key": "nothing-1234", "nbytes": 8}]

        async def exchange() -> None:
            for _ in range(_MESSAGES):
                for sender, receiver in ((client, server), (server, client)):
                    await sender.write(message)
                    await receiver.read()

        await exchange()
        count = 0

        def called(frame: object, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(called)
        try:
            await exchange()
        finally:
            sys.setprofile(before)
        return count
