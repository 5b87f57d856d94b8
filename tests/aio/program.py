"""
A program of asyncio's streams, which knows nothing of SDP.

C{python -m tests.aio.program (aio|plain) (server|client PORT)}: a server prints its port number and sends
lines back; a client prints the provider and what it gets for C{ping}.  Both end with their standard input.
"""

from __future__ import annotations

import asyncio
import sys

from tests.aio.case import HOST


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()


async def _main(role: str, *port: str) -> None:
    loop = asyncio.get_running_loop()
    if role == "server":
        server = await asyncio.start_server(_echo, HOST, 0)
        print(server.sockets[0].getsockname()[1], flush=True)
    else:
        reader, writer = await asyncio.open_connection(HOST, int(port[0]))
        writer.write(b"ping\n")
        why = writer.get_extra_info("why")
        provider = "plain" if why is None else why.provider
        print(provider, (await reader.readline()).decode().strip(), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    if sys.argv[1] == "aio":
        from twisted_ib.aio import new_event_loop

        events: asyncio.AbstractEventLoop = new_event_loop()
    else:
        events = asyncio.new_event_loop()
    try:
        events.run_until_complete(_main(*sys.argv[2:]))
    finally:
        events.close()
