"""
Two ends of a connection for scenarios of blocking sockets.
"""

from __future__ import annotations

import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

from attrs import define

from tests.suites.differential.known import KNOWN
from tests.suites.differential.places import apart
from tests.suites.differential.record import Record, Scenarios, Telling
from tests.support.waiting import HANG_SECONDS
from twisted_ib.blocking import loop as module
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.blocking.patch import patched

HOST = "127.0.0.1"


@define
class Ends(Telling):
    """
    The two ends of a scenario.
    """

    exit: ExitStack

    def part(self, name: str) -> None:
        self.record.part(name)

    def kept(self, closable: Any) -> Any:
        """
        @return: The same, which is closed when the scenario is over.
        """
        self.exit.callback(self._close, closable)
        return closable

    @staticmethod
    def _close(closable: Any) -> None:
        with suppress(OSError):
            closable.close()

    def server(self, family: int = socket.AF_INET, host: str = HOST, backlog: int = 5) -> Any:
        """
        @return: A socket that listens.
        """
        made = self.kept(socket.socket(family))
        made.bind((host, 0))
        made.listen(backlog)
        self.record.names[made.getsockname()[1]] = "SERVER"
        return made

    def pair(self, timeout: float | None = None) -> tuple[Any, Any]:
        """
        @param timeout: Of both sockets.

        @return: The socket that has connected, and the one that was accepted.
        """
        listener = self.server()
        one = self.kept(socket.socket())
        accepting = self.inThread(listener.accept)
        one.connect(listener.getsockname())
        other = self.kept(accepting.result(HANG_SECONDS)[0])
        if self.isSDP and (one.sdp is None or other.sdp is None):
            raise AssertionError("the connection is not over SDP")
        self.record.names[one.getsockname()[1]] = "CLIENT"
        listener.close()
        for each in (one, other):
            each.settimeout(timeout)
        return one, other

    def inThread(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """
        Call in another thread.
        """
        result: Future[Any] = Future()

        def run() -> None:
            try:
                result.set_result(call(*arguments))
            except BaseException as e:
                result.set_exception(e)

        threading.Thread(target=run, daemon=True).start()
        return result

    def until(self, holds: Callable[[], Any]) -> None:
        """
        Wait until something is so.
        """
        deadline = time.monotonic() + HANG_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError("it does not happen")
            time.sleep(1e-3)

    def arrived(self, skt: Any, count: int = 1) -> None:
        """
        Wait until so many octets can be received.
        """
        self.until(lambda: len(skt.recv(count, socket.MSG_PEEK | socket.MSG_DONTWAIT)) >= count)

    def ended(self, skt: Any) -> None:
        """
        Wait until the peer's end of the stream, or what has broken it, is here.
        """
        poll = select.poll()
        poll.register(skt, select.POLLRDHUP)
        self.until(lambda: poll.poll(0))

    def events(self, skt: Any, mask: int = select.POLLIN | select.POLLOUT | select.POLLRDHUP) -> list[str]:
        """
        @return: The names of the events of a socket, now.
        """
        poll = select.poll()
        poll.register(skt, mask)
        found = poll.poll(0)
        names = ("POLLIN", "POLLOUT", "POLLRDHUP", "POLLHUP", "POLLERR", "POLLNVAL")
        return [name for name in names if found and found[0][1] & getattr(select, name)]

    def drained(self, skt: Any) -> Any:
        """
        @return: All that a blocking socket receives: data, and the error that ended it.
        """
        data = b""
        try:
            while piece := skt.recv(65536):
                data += piece
        except OSError as e:
            return data, e
        return data

    def file(self, data: bytes) -> Any:
        """
        @return: A file with data, at its beginning.
        """
        made = self.kept(tempfile.TemporaryFile())
        made.write(data)
        made.flush()
        made.seek(0)
        return made


def play(scenario: Callable[[Ends], None], isSDP: bool) -> Record:
    """
    Play a scenario.

    @return: What it has said.
    """
    record = Record()

    def run() -> None:
        with ExitStack() as exit:
            try:
                scenario(Ends(record, isSDP, exit))
            except Exception as e:
                record.say("the scenario ends:", e, str(e))

    with ExitStack() as exit:
        exit.enter_context(apart())
        if isSDP:
            loop = BlockingLoop()
            closing = exit.enter_context(ExitStack())
            closing.callback(loop.close)
            exit.enter_context(mock.patch.object(module, "_loop", loop))
            exit.enter_context(patched())
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(HANG_SECONDS)
        if thread.is_alive():
            record.say("the scenario hangs")
            if isSDP:
                # Its thread is in the loop.
                closing.pop_all()
    return record


scenarios = Scenarios(play, KNOWN["socket"])
