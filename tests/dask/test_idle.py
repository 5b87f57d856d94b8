"""
Tests that both ends of a connection of C{ib://} sleep while nothing comes.
"""

from __future__ import annotations

import os
from unittest import mock

from tests.dask.case import SKIP
from tests.queues.idle import IdleTestCase

_PAIR = """
import asyncio
import os
from distributed.comm import connect, listen
from distributed.protocol import to_serialize

async def serve(writing):
    async def answer(comm):
        await comm.read()
        await comm.write(os.getpid())
        try:
            await comm.read()
        finally:
            os._exit(0)

    listener = listen("ib://127.0.0.1", answer)
    await listener.start()
    os.write(writing, listener.contact_address.encode() + b"\\n")
    await asyncio.Event().wait()

async def ask(address):
    comm = await connect(address)
    await comm.write(to_serialize(bytes(8 << 20)))
    print(os.getpid(), await comm.read(), flush=True)
    await comm.read()

reading, writing = os.pipe()
if not os.fork():
    asyncio.run(serve(writing))
asyncio.run(ask(os.fdopen(reading).readline().strip()))
"""


class IdleTests(IdleTestCase):
    """
    By the kernel's count of context switches and CPU time.
    """

    if SKIP:
        skip = SKIP

    def test_comm(self) -> None:
        """
        After a message that was copied in a thread neither end runs while no other comes.
        """
        folder = {"TWISTED_IB_RUN_DIR": os.path.abspath(self.mktemp())}
        with mock.patch.dict(os.environ, folder):
            self.assertIdle(_PAIR)
