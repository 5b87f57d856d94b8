"""
A key-value store that is read without asking: a GET is one RDMA READ.

The server has a table in registered memory, a header and slots of one size, and tells each client
where it is.  PUT and DELETE are messages, which the server's program does.  For a GET the client
works out where the key has to be and READs those few slots; the HCA of the server does it, and
its program is not involved (C{stats} shows what it did).

So nobody keeps a GET and a PUT of one slot apart: a READ may be torn, half of it old and half of
it new.  Each slot has a checksum of everything else in it, its version included; a client that
finds it wrong reads again.

Start a server, and in another terminal::

    python examples/keyvalue.py serve ib:7011
    python examples/keyvalue.py put ib:127.0.0.1:7011 colour blue
    python examples/keyvalue.py get ib:127.0.0.1:7011 colour
    python examples/keyvalue.py delete ib:127.0.0.1:7011 colour
    python examples/keyvalue.py stats ib:127.0.0.1:7011
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import deque
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import deferLater, react
from twisted.python.failure import Failure

from twisted_ib.rdma import Access

#: The first message to a client: the table's address and key.
WELCOME = Struct("!QI")
#: The table begins with: a magic number, how many places there are, bytes of each slot.
HEADER, MAGIC = Struct("!QII"), 0x6B65_7976_616C_7565
#: A slot begins with: the checksum of what follows, version, bytes of the key, bytes of the value.
SLOT = Struct("!IQHI")
CRC_BYTES, SLOT_BYTES_MOST = 4, 65536
#: A key may be in this many slots from its place on; the table has so many more at its end.
PROBES = 4
#: READs of one GET before it gives up, and the seconds after the first; each pause is longer by that.
TRIES, PAUSE_SECONDS = 20, 0.0005
#: A message: what to do, and bytes of the key; key and value follow.
REQUEST = Struct("!cH")
PUT, DELETE, STATS = b"p", b"d", b"s"
#: The beginning of an answer.
DONE, MISSING, REFUSED = b"+", b"-", b"!"


class StoreError(Exception):
    """The store cannot do that."""


class Entry(NamedTuple):
    """What is in a slot; in one that is free the key is empty."""

    version: int
    key: bytes
    value: bytes


def pack(entry: Entry) -> bytes:
    """Make the bytes of a slot."""
    version, key, value = entry
    body = SLOT.pack(0, version, len(key), len(value))[CRC_BYTES:] + key + value
    return crc32(body).to_bytes(CRC_BYTES, "big") + body


def unpack(slot: memoryview) -> Entry | None:
    """Read the bytes of a slot; L{None} if they do not belong together."""
    crc, version, keyBytes, valueBytes = SLOT.unpack_from(slot)
    middle = SLOT.size + keyBytes
    stop = middle + valueBytes
    if stop > len(slot) or crc32(slot[CRC_BYTES:stop]) != crc:
        return None
    return Entry(version, bytes(slot[SLOT.size : middle]), bytes(slot[middle:stop]))


def slotsOf(key: bytes, places: int) -> range:
    """Work out where a key may be: the same in all programs."""
    first = int.from_bytes(blake2b(key, digest_size=8).digest(), "big") % places
    return range(first, first + PROBES)


class Table:
    """
    The server's memory.

    @ivar memory: Header and slots.
    """

    def __init__(self, places: int, slotBytes: int) -> None:
        """All slots are free."""
        count = places + PROBES - 1
        self._places, self._slotBytes = places, slotBytes
        self._entries = [Entry(0, b"", b"")] * count
        self.memory = bytearray(HEADER.size + count * slotBytes)
        HEADER.pack_into(self.memory, 0, MAGIC, places, slotBytes)
        for number, entry in enumerate(self._entries):
            self.write(number, pack(entry))

    def write(self, number: int, packed: bytes) -> None:
        """Change a slot; who reads it meanwhile may see some of both."""
        start = HEADER.size + number * self._slotBytes
        self.memory[start : start + len(packed)] = packed

    def change(self, wanted: bytes, key: bytes, value: bytes) -> bool:
        """Replace what is under a key, or a free slot that the new key may have."""
        for number in slotsOf(key or wanted, self._places):
            version, found, _ = self._entries[number]
            if found == wanted:
                self._entries[number] = entry = Entry(version + 1, key, value)
                self.write(number, pack(entry))
                return True
        return False

    def put(self, key: bytes, value: bytes) -> bytes:
        """Do a PUT."""
        if not key or SLOT.size + len(key) + len(value) > self._slotBytes:
            return REFUSED
        return DONE if self.change(key, key, value) or self.change(b"", key, value) else REFUSED

    def delete(self, key: bytes) -> bytes:
        """Do a DELETE."""
        return DONE if key and self.change(key, b"", b"") else MISSING


class Clerk(Protocol):
    """The server's end of one connection."""

    transport: Any
    factory: Store

    def connectionMade(self) -> None:
        """Let this client read the table."""
        region = self.transport.registerMemory(self.factory.table.memory, Access.REMOTE_READ)
        self.transport.write(WELCOME.pack(region.address, region.remoteKey))

    def dataReceived(self, data: bytes) -> None:
        """Do what a message asks for."""
        if len(data) < REQUEST.size:
            return self.transport.abortConnection()
        what, keyBytes = REQUEST.unpack_from(data)
        key, value = data[REQUEST.size :][:keyBytes], data[REQUEST.size + keyBytes :]
        self.factory.requests += 1
        if what == PUT:
            self.transport.write(self.factory.table.put(key, value))
        elif what == DELETE:
            self.transport.write(self.factory.table.delete(key))
        else:
            self.transport.write(DONE + b"%d" % self.factory.requests)


class Store(Factory):
    """
    The table, and how busy the server's program was.

    @ivar requests: How many messages it has answered.
    """

    noisy = False
    protocol = Clerk  # type: ignore[assignment]

    def __init__(self, table: Table) -> None:
        """It was not busy yet."""
        self.table = table
        self.requests = 0


class Client(Protocol):
    """
    A client.

    @ivar torn: How many READs it has seen that were torn.
    """

    transport: Any

    def __init__(self, reactor: Any) -> None:
        """The first message is where the table is; the others are answers."""
        self._reactor = reactor
        self._answers: deque[Deferred[bytes]] = deque([Deferred()])
        self.torn = 0

    def dataReceived(self, data: bytes) -> None:
        """Messages come in the order of the requests."""
        self._answers.popleft().callback(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """There are no more answers."""
        while self._answers:
            self._answers.popleft().errback(reason)

    async def open(self) -> Client:
        """Look at the table."""
        self._address, self._key = WELCOME.unpack(await self._answers[0])
        header = await self.transport.rdmaRead(HEADER.size, self._address, self._key)
        magic, self._places, self._slotBytes = HEADER.unpack(header)
        if magic != MAGIC or not self._places or not SLOT.size <= self._slotBytes <= SLOT_BYTES_MOST:
            self.transport.loseConnection()
            raise StoreError("this is no table of keys and values")
        return self

    async def _ask(self, what: bytes, key: bytes = b"", value: bytes = b"") -> bytes:
        """Send a message, and wait for the answer."""
        self.transport.write(REQUEST.pack(what, len(key)) + key + value)
        answer: Deferred[bytes] = Deferred()
        self._answers.append(answer)
        return await answer

    async def put(self, key: bytes, value: bytes) -> None:
        """Store a value; L{StoreError} if there is no place for it."""
        if await self._ask(PUT, key, value) != DONE:
            raise StoreError("there is no place for this key and value")

    async def delete(self, key: bytes) -> bool:
        """Forget a value, and tell whether there was one."""
        return await self._ask(DELETE, key) == DONE

    async def stats(self) -> int:
        """Ask how many messages the server's program has answered, this one too."""
        return int((await self._ask(STATS))[1:])

    async def get(self, key: bytes) -> bytes | None:
        """Read a value, or L{None} if there is none; the server's program is not asked."""
        size = self._slotBytes
        address = self._address + HEADER.size + slotsOf(key, self._places).start * size
        for number in range(TRIES):
            found = memoryview(await self.transport.rdmaRead(PROBES * size, address, self._key))
            entries = [unpack(found[start : start + size]) for start in range(0, len(found), size)]
            for entry in entries:
                if entry and key and entry.key == key:
                    return entry.value
            if None not in entries:
                return None
            self.torn += 1
            await deferLater(self._reactor, PAUSE_SECONDS * (number + 1))
        raise StoreError(f"this slot was torn {TRIES} times")


async def connect(reactor: Any, endpoint: str) -> Client:
    """Connect to a store."""
    factory = Factory.forProtocol(lambda: Client(reactor))
    client: Any = await clientFromString(reactor, endpoint).connect(factory)
    return await client.open()


async def serve(reactor: Any, endpoint: str) -> None:
    """Have a store, for ever."""
    port: Any = await serverFromString(reactor, endpoint).listen(Store(Table(1024, 512)))
    print("the store is at port", port.getHost().port, flush=True)
    await Deferred()


async def main(reactor: Any, *arguments: str) -> None:
    """Do what the command line says."""
    parser = ArgumentParser(description="A key-value store that is read without asking.")
    parser.add_argument("what", choices=["serve", "put", "get", "delete", "stats"])
    parser.add_argument("endpoint", help="such as ib:7011 or ib:127.0.0.1:7011")
    parser.add_argument("words", nargs="*", metavar="WORD", help="the key, and for put the value")
    options = parser.parse_args(arguments)
    if options.what == "serve":
        return await serve(reactor, options.endpoint)
    client = await connect(reactor, options.endpoint)
    print(await getattr(client, options.what)(*(word.encode() for word in options.words)))
    client.transport.loseConnection()


if __name__ == "__main__":
    react(main, sys.argv[1:])
