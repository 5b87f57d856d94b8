"""
Connections of L{twisted_ib.dask} for tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from tests.aio.case import HOST, LoopTestCase
from twisted_ib.internet.readers import channelsOf

#: Why tests are skipped, or nothing.
SKIP = "" if find_spec("distributed") else "the extra [dask] is not installed"


class CommTestCase(LoopTestCase):
    """
    Runs on asyncio's own event loop, as Dask does.
    """

    if SKIP:
        skip = SKIP

    def setUp(self) -> None:
        """
        Make the event loop.
        """
        super().setUp()
        self.loop.close()
        self.loop = asyncio.SelectorEventLoop()
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        self.addCleanup(self.assertEqual, self.errors, [])

    async def listen(
        self,
        handle: Callable[[Any], Awaitable[None]] | None = None,
        host: str = HOST,
        scheme: str = "ib",
        **options: Any,
    ) -> Any:
        """
        @param handle: Gets each connection; by default the listener's C{accepted} queues them.
        @return: A listener, which stops with the test.
        """
        from distributed.comm import listen

        accepted: asyncio.Queue[Any] = asyncio.Queue()
        listener = listen(f"{scheme}://{host}", handle or accepted.put, **options)
        await listener.start()
        self.addCleanup(listener.stop)
        listener.accepted = accepted
        return listener

    async def pair(self, scheme: str = "ib") -> tuple[Any, Any]:
        """
        @return: Both ends of a connection, the active one first.
        """
        from distributed.comm import connect

        listener = await self.listen(scheme=scheme)
        client = await connect(listener.contact_address)
        server = await listener.accepted.get()
        for comm in (client, server):
            self.addCleanup(comm.abort)
        return client, server

    async def until(self, holds: Callable[[], object]) -> None:
        """
        Wait until something is so.
        """
        while not holds():
            await asyncio.sleep(0)

    def regions(self) -> int:
        """
        @return: The memory regions of the event loop's devices.
        """
        return sum(len(each.device.memory.regions) for each in channelsOf(self.loop.reactor))


def arrays(*lengths: int) -> list[bytearray]:
    """
    @return: Bytes of these lengths, which differ.
    """
    return [bytearray((number + at) % 251 for at in range(length)) for number, length in enumerate(lengths)]
