"""
Two ends of a connection for scenarios of C{asyncio}.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from attrs import define, field

from tests.suites.differential.known import KNOWN
from tests.suites.differential.places import apart
from tests.suites.differential.record import Noting, Record, Recording, Scenarios
from tests.support.waiting import HANG_SECONDS
from twisted_ib.aio import new_event_loop
from twisted_ib.aio.streamsocket import StreamSocket

HOST = "127.0.0.1"


class Recorder(Noting, asyncio.Protocol):
    """
    A protocol.
    """

    transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.note("made")

    def data_received(self, data: bytes) -> None:
        self.note("data", data)

    def eof_received(self) -> Any:
        return self.note("eof")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.note("lost", exc)

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")


class Buffered(Recorder, asyncio.BufferedProtocol):
    """
    The same with a buffer.

    @ivar room: The buffer.
    """

    data_received: Any = None

    def __init__(self, name: str, does: dict[str, Callable[..., Any]]) -> None:
        """
        A small buffer.
        """
        super().__init__(name, does)
        self.room: Any = bytearray(7)

    def get_buffer(self, sizehint: int) -> Any:
        """
        Return the buffer, or what the scenario wants.
        """
        action = self.does.get("get_buffer")
        return self.room if action is None else action(self, sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.note("data", bytes(self.room[:nbytes]))


@define
class Ends(Recording):
    """
    The two ends of a scenario.
    """

    kind = Recorder
    loop: Any
    closing: list[Any] = field(factory=list)

    def lines(self, what: str, transport: Any, lines: Any) -> None:
        """
        Call C{writelines}, as L{call}.
        """
        # From Python 3.12 on it is a sendmsg(2) over TCP, whose errors differ from release to release.
        if sys.version_info < (3, 12):
            self.call(what, transport.writelines, lines)

    async def wait(self, what: str, awaitable: Any) -> Any:
        """
        Wait for something, and say what came of it.

        @return: The result; L{None} after an error.
        """
        try:
            result = await awaitable
        except (Exception, asyncio.CancelledError) as e:
            self.say(f"{what}:", e)
            return None
        self.say(f"{what}:", result)
        return result

    async def until(self, holds: Callable[[], Any]) -> None:
        """
        Wait until something is so.
        """
        deadline = self.loop.time() + HANG_SECONDS / 2
        while not holds():
            if self.loop.time() > deadline:
                raise AssertionError("it does not happen")
            await asyncio.sleep(1e-3)

    async def server(self, factory: Callable[[], Any], **options: Any) -> tuple[Any, int]:
        """
        @return: A server, and its port.
        """
        server = await self.loop.create_server(factory, HOST, 0, **options)
        self.closing.append(server)
        port = server.sockets[0].getsockname()[1]
        self.record.names[port] = "SERVER"
        return server, port

    async def pair(
        self,
        client: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
        kinds: tuple[Any, Any] = (None, None),
    ) -> tuple[Any, Any]:
        """
        @param client: What the client's protocol does; C{server}: likewise.

        @return: Both protocols, connected.
        """
        ours, theirs = self.recorder("client", client, kinds[0]), self.recorder("server", server, kinds[1])
        listening, port = await self.server(lambda: theirs)
        await self.loop.create_connection(lambda: ours, HOST, port)
        await self.have("made", theirs)
        listening.close()
        self.check(ours.transport)
        self.record.names[ours.transport.get_extra_info("sockname")[1]] = "CLIENT"
        return ours, theirs

    def check(self, transport: Any) -> None:
        """
        @raise AssertionError: It is over the other of both.
        """
        if isinstance(transport.get_extra_info("socket"), StreamSocket) != self.isSDP:
            raise AssertionError("the connection is over the other of both")

    def file(self, data: bytes) -> Any:
        """
        @return: A file with data, at its beginning.
        """
        made = tempfile.TemporaryFile()
        self.closing.append(made)
        made.write(data)
        made.flush()
        made.seek(0)
        return made

    def close(self) -> None:
        """
        End what is left.
        """
        for each in self.closing:
            each.close()
        for recorder in self.noting:
            recorder.does = {}
            if recorder.transport is not None and not recorder.has("lost"):
                # One that another protocol has may be over.
                with suppress(AttributeError):
                    recorder.transport.abort()


def _unhandled(record: Record, loop: Any, context: dict[str, Any]) -> None:
    text = context["message"]
    text = "Exception in callback" if text.startswith("Exception in callback") else text
    record.parts[""].append(f"unhandled: {text} {record.form(context.get('exception'))}")


async def _played(ends: Ends, scenario: Callable[[Ends], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.ensure_future(scenario(ends))
    # Not C{wait_for}: it would cancel what the scenario waits for, which then looks like what that has done.
    await asyncio.wait([task], timeout=HANG_SECONDS)
    error = task.exception() if task.done() else AssertionError("it takes too long")
    if error is not None:
        ends.say("the scenario ends:", error, str(error))
    ends.tell()
    ends.close()
    # The ends are told in the turns that follow.
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for _ in range(5):
        await asyncio.sleep(0)


def play(scenario: Callable[[Ends], Coroutine[Any, Any, None]], isSDP: bool) -> Record:
    """
    Play a scenario.

    @return: What it has said.
    """
    record = Record()
    with apart():
        loop: Any = new_event_loop() if isSDP else asyncio.new_event_loop()
        loop.set_exception_handler(partial(_unhandled, record))
        try:
            loop.run_until_complete(_played(Ends(record, isSDP, loop), scenario))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()
    return record


scenarios = Scenarios(play, KNOWN["asyncio"])
