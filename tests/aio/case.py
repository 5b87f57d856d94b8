"""
An event loop of its own for tests of L{twisted_ib.aio}.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.aio import new_event_loop

HOST = "127.0.0.1"


class LoopTestCase(SynchronousTestCase):
    """
    Has an event loop, with a run directory and rules of its own.

    @cvar rules: The rules; L{None} without a file.
    """

    rules: str | None = None

    def setUp(self) -> None:
        """
        Make the event loop.
        """
        self.folder = tempfile.mkdtemp(prefix="tib-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        names = ("TWISTED_IB_CONFIG", "XDG_CONFIG_HOME", "SIMPLE_LIBSDP", "ALWAYS_USE_SDP")
        kept = {name: value for name, value in os.environ.items() if name not in names}
        kept |= {"TWISTED_IB_RUN_DIR": os.path.join(self.folder, "run"), "HOME": self.folder}
        patched = mock.patch.dict(os.environ, kept, clear=True)
        patched.start()
        self.addCleanup(patched.stop)
        if self.rules is not None:
            self.setRules(self.rules)
        self.errors: list[dict[str, Any]] = []
        self.loop: Any = new_event_loop()
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        self.addCleanup(self._closeLoop)

    def setRules(self, text: str) -> None:
        """
        Have rules from now on.
        """
        path = os.path.join(self.folder, "rules")
        with open(path, "w") as file:
            file.write(text)
        os.environ["TWISTED_IB_CONFIG"] = path
        reactor = getattr(getattr(self, "loop", None), "_reactor", None)
        if reactor is not None and reactor._switch is not None:
            # They are read once.
            self.assertTrue(reactor._switch.configuration.reload())

    def _closeLoop(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def play(self, scenario: Coroutine[Any, Any, None]) -> None:
        """
        Run a scenario in the event loop.
        """
        self.loop.run_until_complete(asyncio.wait_for(scenario, HANG_SECONDS))


class Recorder(asyncio.Protocol):
    """
    Records its calls.

    @ivar log: The calls, with what was given; data in one piece.
    """

    transport: Any = None

    def __init__(self) -> None:
        self.log: list[Any] = []
        # In place: many megabytes come in pieces of kilobytes.
        self.data = bytearray()
        self.keepOpen = False
        self._changed = asyncio.Event()

    def _note(self, *what: Any) -> None:
        self.log.append(what[0] if len(what) == 1 else what)
        self._changed.set()

    async def until(self, holds: Any) -> None:
        """
        Wait until something is so.
        """
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def has(self, length: int) -> bytes:
        """
        @return: The data, once there is so much.
        """
        await self.until(lambda: len(self.data) >= length)
        return bytes(self.data)

    async def called(self, name: str) -> None:
        """
        Wait for a call.
        """
        await self.until(lambda: name in [each[0] if isinstance(each, tuple) else each for each in self.log])

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._note("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._changed.set()

    def eof_received(self) -> bool:
        self._note("eof")
        return self.keepOpen

    def connection_lost(self, exc: BaseException | None) -> None:
        self._note("lost", exc)

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")
