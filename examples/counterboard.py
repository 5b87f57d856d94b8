"""
A board of counters that several programs share: the clients count, the server's program sleeps.

The server has rows of two 64-bit words in its memory, a counter and the seat beside it.  It opens
them to each client through a memory window, and tells the client in one message where that is.
From then on the clients count (FetchAdd), and take and release seats (CompareAndSwap), and the
HCA of the server does it: its program hears nothing.

Now and then the program looks at the board.  A client that keeps a seat for too long has its
window revoked: its next access fails with C{REM_ACCESS_ERR} and its connection ends; all others
go on.  A window says what may be touched and not what is written there, so clients that do not
trust each other would get windows on rows of their own.

Start a server, some clients that count, and one that does not give its seat back::

    python examples/counterboard.py serve ib:7010
    python examples/counterboard.py count ib:127.0.0.1:7010 --times 1000
    python examples/counterboard.py hog ib:127.0.0.1:7010
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from itertools import count
from struct import Struct
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import LoopingCall, deferLater, react
from twisted.python.failure import Failure

from twisted_ib.errors import WorkCompletionError
from twisted_ib.rdma import Access

#: The server's first message: its number, the board's address and key, how many rows there are.
WELCOME = Struct("!IQII")
#: A counter, and who sits beside it (0: nobody), in the byte order of the host.
ROW_BYTES, SEAT_OFFSET = 16, 8
#: A seat holds the client's number, and below it which of its sittings this is.
NUMBER_SHIFT = 32


class Host(Protocol):
    """The server's end of one connection."""

    transport: Any
    factory: Board

    def connectionMade(self) -> None:
        """Open the board to this client.  The region grants its peer nothing, the window does."""
        self.number = self.factory.admit(self)
        region = self.transport.registerMemory(self.factory.memory, Access.LOCAL_WRITE | Access.MW_BIND)
        self.window = self.transport.grant(region, Access.REMOTE_READ | Access.REMOTE_ATOMIC)
        rows = self.window.length // ROW_BYTES
        self.transport.write(WELCOME.pack(self.number, self.window.address, self.window.remoteKey, rows))

    def dataReceived(self, data: bytes) -> None:
        """A client has nothing to say: it counts."""
        self.transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Somebody else may have its seats.  Window and region went with the connection."""
        self.factory.leave(self.number)


class Board(Factory):
    """
    The counters, and the clients that are let in.

    @ivar memory: The rows.
    @ivar words: The same as integers: counter, seat, counter, seat, ...
    @ivar hosts: The server's ends of the connections, by the client's number.
    @ivar patience: The seconds that one sitting may take.
    """

    noisy = False
    protocol = Host  # type: ignore[assignment]

    def __init__(self, rows: int, patience: float) -> None:
        """All counters are 0 and all seats free."""
        self.memory = bytearray(ROW_BYTES * rows)
        self.words = memoryview(self.memory).cast("Q")
        self.hosts: dict[int, Host] = {}
        self.patience = patience
        self._numbers = count(1)
        self._since: dict[int, tuple[int, float]] = {}

    def admit(self, host: Host) -> int:
        """Give a client its number."""
        number = next(self._numbers)
        self.hosts[number] = host
        return number

    def leave(self, number: int) -> None:
        """A client is gone, or was never here: free its seats."""
        self.hosts.pop(number, None)
        for place in range(1, len(self.words), 2):
            if self.words[place] >> NUMBER_SHIFT == number:
                self.words[place] = 0

    def revoke(self, number: int) -> None:
        """Let a client touch the board no more: its connection ends when it tries."""
        host = self.hosts.get(number)
        if host is not None:
            host.window.revoke()
        self.leave(number)

    def watch(self, now: float) -> list[int]:
        """Look who sits where, and revoke who has sat there for too long; tell who that was."""
        revoked = []
        for place in range(1, len(self.words), 2):
            seat = self.words[place]
            before, since = self._since.get(place, (0, now))
            if seat != before:
                self._since[place] = seat, now
            elif seat and now - since > self.patience:
                self.revoke(seat >> NUMBER_SHIFT)
                revoked.append(seat >> NUMBER_SHIFT)
        return revoked


class Visitor(Protocol):
    """
    A client.

    @ivar welcomed: Fires when it may begin.
    @ivar lost: Fires when the connection has ended.
    """

    transport: Any

    def __init__(self) -> None:
        """It has to be told where the board is."""
        self.welcomed: Deferred[None] = Deferred()
        self.lost: Deferred[None] = Deferred()
        self._sittings = count(1)

    def dataReceived(self, data: bytes) -> None:
        """Read the only message."""
        self.number, self._address, self._key, self.rows = WELCOME.unpack(data)
        self.welcomed.callback(None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """What was under way has failed already, with a L{WorkCompletionError}."""
        if not self.welcomed.called:
            self.welcomed.errback(reason)
        self.lost.callback(None)

    def count(self, row: int, more: int = 1) -> Deferred[int]:
        """Add to a counter, and tell what it was before."""
        done: Deferred[int] = self.transport.fetchAdd(self._address + ROW_BYTES * row, self._key, more)
        return done

    async def take(self, reactor: Any, row: int) -> int:
        """Sit down as soon as the seat is free, and give the sitting, for L{release}."""
        sitting = self.number << NUMBER_SHIFT | next(self._sittings)
        while await self._seat(row, 0, sitting) != 0:
            await deferLater(reactor, 0.001)
        return sitting

    async def release(self, row: int, sitting: int) -> bool:
        """Stand up, and tell whether it still was our seat."""
        return await self._seat(row, sitting, 0) == sitting

    def _seat(self, row: int, compare: int, swap: int) -> Deferred[int]:
        """Change who sits somewhere, if it is who we think; tell who it was."""
        address = self._address + ROW_BYTES * row + SEAT_OFFSET
        done: Deferred[int] = self.transport.compareAndSwap(address, self._key, compare, swap)
        return done

    async def counters(self) -> list[int]:
        """Read all counters at once."""
        board = await self.transport.rdmaRead(ROW_BYTES * self.rows, self._address, self._key)
        return memoryview(board).cast("Q")[::2].tolist()


async def visit(reactor: Any, endpoint: str) -> Visitor:
    """Connect, and wait until told where the board is."""
    visitor: Any = await clientFromString(reactor, endpoint).connect(Factory.forProtocol(Visitor))
    await visitor.welcomed
    found: Visitor = visitor
    return found


async def serve(reactor: Any, endpoint: str, rows: int, patience: float) -> None:
    """Have a board, for ever."""
    board = Board(rows, patience)
    port: Any = await serverFromString(reactor, endpoint).listen(board)
    print("the board is at port", port.getHost().port, flush=True)

    def look() -> None:
        for number in board.watch(reactor.seconds()):
            print("client", number, "kept a seat and is revoked", flush=True)

    await LoopingCall(look).start(patience / 4)


async def tally(reactor: Any, endpoint: str, row: int, times: int) -> None:
    """Count, many at a time, and sit down for the last one."""
    visitor = await visit(reactor, endpoint)
    for done in [visitor.count(row) for _ in range(times - 1)]:
        await done
    sitting = await visitor.take(reactor, row)
    before = await visitor.count(row)
    await visitor.release(row, sitting)
    print(f"client {visitor.number} made it {before + 1}; all:", *await visitor.counters(), flush=True)
    visitor.transport.loseConnection()
    await visitor.lost


async def hog(reactor: Any, endpoint: str, row: int) -> None:
    """Sit down and stay, until that is the end."""
    visitor = await visit(reactor, endpoint)
    await visitor.take(reactor, row)
    print("client", visitor.number, "has the seat", flush=True)
    try:
        while True:
            await visitor.count(row, 0)
            await deferLater(reactor, 0.1)
    except WorkCompletionError as error:
        print("client", visitor.number, "is out:", error, flush=True)
    await visitor.lost


async def main(reactor: Any, *arguments: str) -> None:
    """Do what the command line says."""
    parser = ArgumentParser(description="A board of counters that several programs share.")
    commands = parser.add_subparsers(required=True)
    for name, call in (("serve", serve), ("count", tally), ("hog", hog)):
        command = commands.add_parser(name)
        command.set_defaults(call=call)
        command.add_argument("endpoint", help="such as ib:7010 or ib:127.0.0.1:7010")
        if name == "serve":
            command.add_argument("--rows", type=int, default=8)
            command.add_argument("--patience", type=float, default=2.0, help="seconds that one may sit")
        else:
            command.add_argument("--row", type=int, default=0)
        if name == "count":
            command.add_argument("--times", type=int, default=1000)
    options = vars(parser.parse_args(arguments))
    await options.pop("call")(reactor, **options)


if __name__ == "__main__":
    react(main, sys.argv[1:])
