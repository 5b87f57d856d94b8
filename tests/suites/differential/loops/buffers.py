"""
C{asyncio.BufferedProtocol}.
"""

from __future__ import annotations

from typing import Any

from tests.suites.differential.loops.ends import Buffered, Ends, Recorder, scenarios

KINDS = (Recorder, Buffered)


@scenarios.each(1, 7, 100_000)
async def buffered(ends: Ends, size: int) -> None:
    """
    Buffers of some sizes.
    """
    client, server = await ends.pair(kinds=KINDS)
    server.room = bytearray(size)
    client.transport.write(b"some octets" * 1000)
    client.transport.close()
    await ends.have("lost", client, server)


def _full(it: Any, data: bytes) -> None:
    it.transport.pause_reading()


@scenarios
async def full(ends: Ends) -> None:
    """
    The protocol pauses whenever its buffer is full.
    """
    client, server = await ends.pair(server={"data": _full}, kinds=KINDS)
    client.transport.write(b"0123456789" * 5)
    client.transport.close()
    while not server.has("lost"):
        server.transport.resume_reading()
        await ends.until(lambda: server.has("lost") or not server.transport.is_reading())
        ends.say("has", len(server.data), server.has("lost"))


def _zero(*_: Any) -> None:
    raise ZeroDivisionError


BUFFERS: dict[str, Any] = {
    "empty": lambda it, _: b"",
    "emptyView": lambda it, _: memoryview(bytearray()),
    "none": lambda it, _: None,
    "readOnly": lambda it, _: bytes(5),
    "text": lambda it, _: "abcdef",
    "raises": _zero,
    "view": lambda it, _: memoryview(it.room)[2:],
    "pauses": lambda it, _: (it.transport.pause_reading(), it.room)[1],
    "closes": lambda it, _: (it.transport.close(), it.room)[1],
    "aborts": lambda it, _: (it.transport.abort(), it.room)[1],
}


@scenarios.each(*BUFFERS)
async def bufferOf(ends: Ends, name: str) -> None:
    """
    What C{get_buffer} returns and does.
    """
    client, server = await ends.pair(server={"get_buffer": BUFFERS[name]}, kinds=KINDS)
    client.transport.write(b"012")
    if name == "pauses":
        await ends.until(lambda: server.data)
        ends.say("reading", server.transport.is_reading())
        server.does.clear()
        server.transport.resume_reading()
    client.transport.close()
    await ends.have("lost", client, server)


@scenarios.each("close", "abort", "raise")
async def updated(ends: Ends, how: str) -> None:
    """
    What C{buffer_updated} does.
    """
    action = _zero if how == "raise" else lambda it, _: getattr(it.transport, how)()
    client, server = await ends.pair(server={"data": action}, kinds=KINDS)
    client.transport.write(b"0123456789")
    await ends.have("lost", client, server)


@scenarios
async def hint(ends: Ends) -> None:
    """
    The hint is a number, which may be -1.
    """
    found = set()

    def buffer(it: Any, size: int) -> Any:
        found.add((type(size).__name__, size == -1 or size > 0))
        return it.room

    client, server = await ends.pair(server={"get_buffer": buffer}, kinds=KINDS)
    client.transport.write(b"x")
    client.transport.close()
    await ends.have("lost", server)
    ends.say("hints", sorted(found))


@scenarios
async def becomesPlain(ends: Ends) -> None:
    """
    C{set_protocol} within C{buffer_updated}.
    """
    made = ends.recorder("other")

    def other(it: Any, _: bytes) -> None:
        made.transport = it.transport
        it.transport.set_protocol(made)

    client, _server = await ends.pair(server={"data": other}, kinds=KINDS)
    client.transport.write(b"0123456789")
    client.transport.close()
    await ends.have("lost", made)
