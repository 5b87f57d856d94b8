"""
The general child: listens, connects, sends, pauses, closes, counts.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from collections import Counter
from typing import Any

from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater

from tests.processes.programs.child import Line, Program
from tests.processes.programs.wires import CHUNK_BYTES, Echo, Wire, content
from twisted_ib.hca.host import libc


class Peer(Program):
    """
    A process with listening ports and connections.

    @ivar quiet: do not tell of each connection, nor remember those that are gone.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Nothing is open.
        """
        super().__init__(reactor, line)
        self._wires: dict[int, Wire] = {}
        self._open = 0
        self._ends: list[str] = []
        self._count = 0
        self._ports: list[Any] = []
        self.quiet = False

    def adopt(self, wire: Wire) -> int:
        """
        @param wire: a new connection.

        @return: its number.
        """
        self._count += 1
        self._open += 1
        self._wires[self._count] = wire
        return self._count

    def lost(self, wire: Wire, reason: str, text: str) -> None:
        """
        A connection is gone.

        @param wire: the connection.
        @param reason: the name of the exception's class.
        @param text: its text.
        """
        self._open -= 1
        if self.quiet:
            del self._wires[wire.number]
            return
        self._ends.append(reason)
        self.tell(
            "lost", wire=wire.number, reason=reason, text=text,
            received=wire.received, sha256=wire.digest.hexdigest(),
        )  # fmt: skip

    def tell(self, event: str, **details: object) -> None:
        """
        Send an event, unless told to be quiet.
        """
        if not self.quiet or event == "ready":
            super().tell(event, **details)

    def _wire(self, wire: int) -> tuple[Wire, Any]:
        """
        @param wire: a number.

        @return: the connection and its transport.
        """
        found = self._wires[wire]
        return found, found.transport

    def _factory(self, echo: bool, accepted: bool) -> Factory:
        """
        @param accepted: others connect.
        @param echo: connections send back what comes.

        @return: their factory.
        """
        return Factory.forProtocol(lambda: (Echo if echo else Wire)(self, accepted))

    async def do_listen(self, endpoint: str, echo: bool = False) -> int:
        """
        Listen.

        @param endpoint: the server's endpoint string.
        @param echo: connections send back what comes.

        @return: the port.
        """
        port: Any = await serverFromString(self.reactor, endpoint).listen(self._factory(echo, True))
        self._ports.append(port)
        return int(port.getHost().port)

    async def do_stop(self) -> None:
        """
        Stop listening.
        """
        while self._ports:
            await self._ports.pop().stopListening()

    async def do_connect(self, endpoint: str, echo: bool = False) -> int:
        """
        Connect.

        @param endpoint: the client's endpoint string.
        @param echo: send back what comes.

        @return: the connection's number.
        """
        wire: Any = await clientFromString(self.reactor, endpoint).connect(self._factory(echo, False))
        number: int = wire.number
        return number

    def do_write(self, wire: int, length: int, seed: int = 0) -> None:
        """
        Write once.

        @param wire: the connection.
        @param length: how many bytes.
        @param seed: of their content.
        """
        self._wire(wire)[1].write(content(seed, length))

    def do_stream(self, wire: int, count: int) -> None:
        """
        Write many chunks, as fast as the transport takes them.

        @param wire: the connection.
        @param count: how many chunks of L{CHUNK_BYTES}.
        """
        self._wire(wire)[0].stream(content(0, CHUNK_BYTES), count)

    async def do_received(self, wire: int, count: int) -> dict[str, object]:
        """
        Wait until bytes have come.

        @param wire: the connection.
        @param count: bytes in all.

        @return: how many there are, and their hash.
        """
        found = self._wires[wire]
        await found.waitFor(count)
        return {"received": found.received, "sha256": found.digest.hexdigest()}

    def do_pause(self, wire: int) -> None:
        """
        Read no more.

        @param wire: the connection.
        """
        self._wire(wire)[1].pauseProducing()

    def do_resume(self, wire: int) -> None:
        """
        Read again.

        @param wire: the connection.
        """
        self._wire(wire)[1].resumeProducing()

    def do_close(self, wire: int) -> None:
        """
        Close in an orderly way.

        @param wire: the connection.
        """
        self._wire(wire)[1].loseConnection()

    def do_abort(self, wire: int) -> None:
        """
        Reset.

        @param wire: the connection.
        """
        self._wire(wire)[1].abortConnection()

    async def do_ends(self, limit: float) -> list[str]:
        """
        Wait until no connection is open.

        @param limit: how many seconds to wait for that.

        @return: how those ended that did since the last call, and C{"open"}
            for each that did not.
        """
        end = self.reactor.seconds() + limit
        while self._open and self.reactor.seconds() < end:
            await deferLater(self.reactor, 0.01, lambda: None)
        ends, self._ends = self._ends, []
        return ends + ["open"] * self._open

    def do_hold(self) -> int:
        """
        Fork a process that does nothing but hold what we have open, until the
        test closes our standard input.

        @return: its process id.
        """
        pid = os.fork()
        if not pid:
            ends = select.poll()
            ends.register(0, 0)  # POLLHUP is always reported, and only it
            ends.poll()
            os._exit(0)
        return pid

    async def do_settle(self, usage: dict[str, int], limit: float) -> dict[str, int]:
        """
        Wait until this process holds no more than before.

        @param usage: an earlier answer of C{usage}.
        @param limit: how many seconds to wait for that.

        @return: the last look, without the resident bytes.
        """
        usage.pop("resident", None)
        end = self.reactor.seconds() + limit
        while True:
            found = self.do_usage()
            del found["resident"]
            over = any(value > usage.get(name, 0) for name, value in found.items())
            if not over or self.reactor.seconds() > end:
                return found
            await deferLater(self.reactor, 0.01, lambda: None)

    def do_usage(self) -> dict[str, int]:
        """
        @return: what this process holds, by kind.
        """
        gc.collect()
        with open("/proc/self/maps") as maps:
            mappings = sum("memfd:" in line for line in maps)
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return {
            "descriptors": len(os.listdir("/proc/self/fd")) - len(libc._spare),
            "mappings": mappings,
            "resident": resident,
            "readers": len(self.reactor.getReaders()),
            **self._objects(),
        }

    def _objects(self) -> Counter[str]:
        """
        @return: the objects of this process's HCAs, by kind, and the HCAs.
        """
        device = sys.modules.get("twisted_ib.hca.device.device")
        devices = list(device._devices) if device is not None else []
        return Counter(devices=len(devices)) + sum((Counter(each.inUse()) for each in devices), Counter())
