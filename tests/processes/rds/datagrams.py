"""
A child with sockets of RDS.
"""

from __future__ import annotations

import hashlib
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import DatagramProtocol

from tests.processes.programs.child import Line, Program
from twisted_ib.rds import listenRDS


class Counting(DatagramProtocol):
    """
    Counts what comes and has a running hash for each sender.
    """

    def __init__(self) -> None:
        self.found: dict[str, list[Any]] = {}
        self.count = 0
        self.waits: tuple[int, Deferred[None]] | None = None

    def datagramReceived(self, datagram: bytes, addr: tuple[str, int]) -> None:
        found = self.found.setdefault(f"{addr[0]}:{addr[1]}", [0, hashlib.sha256()])
        found[0] += 1
        found[1].update(len(datagram).to_bytes(4, "big") + datagram)
        self.count += 1
        if self.waits is not None and self.count >= self.waits[0]:
            waits, self.waits = self.waits, None
            waits[1].callback(None)


class Datagrams(Program):
    """
    The commands of the child.

    @ivar sockets: by port.
    """

    def __init__(self, reactor: Any, line: Line) -> None:
        """
        Without a socket.
        """
        Program.__init__(self, reactor, line)
        self.sockets: dict[int, Any] = {}

    def do_listen(self, interface: str, port: int = 0, device: str | None = None) -> int:
        """
        Open a socket.

        @return: its port.
        """
        method = getattr(self.reactor, "listenRDS", None)
        if method is None:
            socket: Any = listenRDS(self.reactor, port, Counting(), interface, device=device)
        else:
            socket = method(port, Counting(), interface, device=device)
        number = int(socket.getHost().port)
        self.sockets[number] = socket
        return number

    async def do_write(self, port: int, host: str, to: int, count: int, first: int = 0) -> str:
        """
        Write datagrams of many sizes, as fast as the peer takes them.

        @return: the hash of all.
        """
        digest = hashlib.sha256()
        for number in range(first, first + count):
            data = number.to_bytes(4, "big") * (number * 7919 % 700)
            digest.update(len(data).to_bytes(4, "big") + data)
            room = self.sockets[port].write(data, (host, to))
            if room is not None:
                await room
        return digest.hexdigest()

    async def do_heard(self, port: int, count: int) -> dict[str, list[Any]]:
        """
        Wait until so many have come.

        @return: number and hash of each sender.
        """
        protocol = self.sockets[port].protocol
        if protocol.count < count:
            waits: Deferred[None] = Deferred()
            protocol.waits = count, waits
            await waits
        return {sender: [number, digest.hexdigest()] for sender, (number, digest) in protocol.found.items()}

    def do_pause(self, port: int) -> None:
        """
        Receive nothing.
        """
        self.sockets[port].pauseProducing()

    def do_resume(self, port: int) -> None:
        """
        Receive again.
        """
        self.sockets[port].resumeProducing()

    def do_ping(self, port: int, host: str) -> Any:
        """
        @return: the seconds that it takes.
        """
        return self.sockets[port].ping(host)

    async def do_close(self, port: int) -> None:
        """
        Close a socket.
        """
        await self.sockets.pop(port).stopListening()
