"""
A large value for AMP: the box says where it is, and the receiver fetches it by RDMA READ.

A value of AMP has at most 64 KiB.  An argument of type L{Bulk} may be as long as memory allows:
its sender lends it, and what travels in the box is the address, key and length of registered
memory.  The receiver's responder gets a L{Lent}; C{await lent.fetch()} READs the bytes over the
same connection, if that has RDMA, and gives them back: the sender's memory is deregistered.
Without RDMA the box has the key 0, and C{fetch} asks for one piece of 64 KiB after the other by
commands of AMP itself.

A connection of C{ib:} has RDMA.  One of C{tcp:} or C{sdp:} gets it if both ends want: the client
offers it in its first box (L{BulkAMP.offer}), and a server that agrees and the client switch the
connection behind the answer (L{switchToRDMA}).  To a server that does not know the offer, or
refuses it, the connection stays what it is.

Memory that is lent when the connection ends is released then.

Start a server, and a client for each; C{--plain} neither offers nor agrees::

    python examples/bulkamp.py serve ib:7012 tcp:7013
    python examples/bulkamp.py send ib:127.0.0.1:7012 --megabytes 100
    python examples/bulkamp.py send tcp:127.0.0.1:7013 --megabytes 100
    python examples/bulkamp.py send tcp:127.0.0.1:7013 --megabytes 100 --plain
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from os import urandom
from struct import Struct
from time import perf_counter
from typing import Any

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import ISSLTransport, ITCPTransport
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.task import react
from twisted.protocols import amp
from twisted.python.failure import Failure

from twisted_ib.errors import WorkCompletionError
from twisted_ib.interfaces import IRDMATransport
from twisted_ib.rdma import Access, switchToRDMA

#: In the box: a number, the address, key (0 without RDMA) and length of what is lent.
LENT = Struct("!IQIQ")
#: Without RDMA: bytes of a piece, the most that AMP takes, and how many are asked for at once.
PIECE_BYTES, PIECES_AT_ONCE = 0xFFFF, 16
#: The most that is fetched unless the responder says otherwise.
FETCH_BYTES = 1 << 30


class BulkError(Exception):
    """A large value is too large, or not there."""


class Offer(amp.Command):
    """Let the connection go on with RDMA: the first box of a client."""

    response = [(b"agreed", amp.Boolean())]


class Piece(amp.Command):
    """Get a part of what is lent, where there is no RDMA."""

    arguments = [(b"number", amp.Integer()), (b"offset", amp.Integer())]
    response = [(b"data", amp.String())]
    errors = {BulkError: b"BULK"}


class Release(amp.Command):
    """Give back what was lent."""

    arguments = [(b"number", amp.Integer())]
    requiresAnswer = False


class Bulk(amp.Argument):
    """
    A value of any length: bytes-like for who sends it, and a L{Lent} for who gets it.  Both
    sides' protocols are L{BulkAMP}.
    """

    def toStringProto(self, inObject: Any, proto: BulkAMP) -> bytes:
        """Lend the value, and say where it is."""
        return proto.lend(inObject)

    def fromStringProto(self, inString: bytes, proto: BulkAMP) -> Lent:
        """Say what may be fetched."""
        if len(inString) != LENT.size:
            raise BulkError("this is no large value")
        return Lent(proto, *LENT.unpack(inString))


class Lent:
    """
    A large value that the peer lends us, to be fetched once.

    @ivar length: Its bytes.
    """

    def __init__(self, protocol: BulkAMP, number: int, address: int, key: int, length: int) -> None:
        """It is still there."""
        self.length = length
        self._protocol, self._number, self._address, self._key = protocol, number, address, key

    def release(self) -> None:
        """Give it back; L{fetch} does that by itself."""
        self._protocol.callRemote(Release, number=self._number)

    async def fetch(self, most: int = FETCH_BYTES) -> memoryview:
        """
        Get the bytes, and give them back.

        @raise BulkError: there are more than C{most}, or the connection has ended.
        """
        try:
            if self.length > most:
                raise BulkError(f"{self.length} bytes are more than {most}")
            return await (self._read() if self._key else self._ask())
        except WorkCompletionError as error:
            raise BulkError(str(error)) from error
        except FirstError as error:
            raise BulkError(error.subFailure.getErrorMessage()) from error
        finally:
            self.release()

    async def _read(self) -> memoryview:
        """READ them into memory that is registered meanwhile."""
        transport: Any = self._protocol.transport
        if not IRDMATransport.providedBy(transport) or not self.length:
            raise BulkError("this cannot be read")
        with transport.registerMemory(self.length) as region:
            await transport.rdmaRead(self.length, self._address, self._key, region)
            view: memoryview = region.view.toreadonly()
            return view

    async def _ask(self) -> memoryview:
        """Have them sent, some pieces at a time."""
        view = memoryview(bytearray(self.length))
        offsets = iter(range(0, self.length, PIECE_BYTES))
        await gatherResults(
            [Deferred.fromCoroutine(self._pieces(view, offsets)) for _ in range(PIECES_AT_ONCE)],
            consumeErrors=True,
        )
        return view.toreadonly()

    async def _pieces(self, view: memoryview, offsets: Iterator[int]) -> None:
        """Get pieces until there are no more."""
        for offset in offsets:
            answer = await self._protocol.callRemote(Piece, number=self._number, offset=offset)
            view[offset : offset + PIECE_BYTES] = answer["data"]


class BulkAMP(amp.AMP):
    """
    AMP with L{Bulk} arguments, over C{ib:} or any stream.

    @ivar isPlain: Whether it refuses RDMA where the connection has none by itself.
    """

    transport: Any

    def __init__(self, isPlain: bool = False) -> None:
        """Nothing is lent."""
        super().__init__()
        self.isPlain = isPlain
        self._numbers = count(1)
        self._lent: dict[int, tuple[memoryview, Any]] = {}
        self._agreed = False

    def _maySwitch(self) -> bool:
        """Whether the connection is one that can switch, and this end wants it."""
        transport = self.transport
        isTCP = ITCPTransport.providedBy(transport) and not ISSLTransport.providedBy(transport)
        return isTCP and not self.isPlain

    async def offer(self) -> bool:
        """Offer RDMA, before any other box; return whether the connection has it now."""
        if not self._maySwitch():
            return bool(IRDMATransport.providedBy(self.transport))
        try:
            agreed: bool = (await self.callRemote(Offer))["agreed"]
        except amp.UnhandledCommand:
            return False
        if agreed:
            await switchToRDMA(self.transport)
        return agreed

    @Offer.responder
    def offered(self) -> dict[str, bool]:
        """Agree, or not; the switch comes behind the answer."""
        self._agreed = self._maySwitch()
        return {"agreed": self._agreed}

    def lend(self, value: Any) -> bytes:
        """Register a value, if the peer can read it, and keep it until it is given back."""
        number, view, region = next(self._numbers), memoryview(value).cast("B"), None
        if len(view) and IRDMATransport.providedBy(self.transport):
            region = self.transport.registerMemory(view, Access.REMOTE_READ)
        self._lent[number] = view, region
        address, key = (region.address, region.remoteKey) if region else (0, 0)
        return LENT.pack(number, address, key, len(view))

    @Piece.responder
    def piece(self, number: int, offset: int) -> dict[str, bytes]:
        """Send a part of a value."""
        if number not in self._lent or offset < 0:
            raise BulkError("this is not lent")
        return {"data": bytes(self._lent[number][0][offset : offset + PIECE_BYTES])}

    @Release.responder
    def release(self, number: int) -> dict[str, bytes]:
        """Forget a value: the peer has it."""
        _, region = self._lent.pop(number, (None, None))
        if region:
            region.close()
        return {}

    def sendBox(self, box: amp.AmpBox) -> None:
        """Send a box, which C{ib:} may have to carry in several messages."""
        data = box.serialize()
        most = getattr(self.transport, "maxMessageSize", len(data))
        if len(data) <= most:
            super().sendBox(box)
        else:
            for start in range(0, len(data), most):
                self.transport.write(data[start : start + most])
        if self._agreed:
            self._agreed = False
            # A switch that fails ends the connection, which connectionLost is told of.
            switchToRDMA(self.transport).addErrback(lambda reason: None)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Nobody will give anything back; the regions were closed with the connection."""
        self._lent.clear()
        super().connectionLost(reason)


class Mirror(amp.Command):
    """Send a large value, get its hash and the value back."""

    arguments = [(b"blob", Bulk())]
    response = [(b"sha256", amp.String()), (b"blob", Bulk())]
    errors = {BulkError: b"BULK"}


class Server(BulkAMP):
    """Does L{Mirror}."""

    noisy = False

    @Mirror.responder
    async def mirror(self, blob: Lent) -> dict[str, Any]:
        """Fetch a value and lend it back."""
        data = await blob.fetch()
        return {"sha256": sha256(data).hexdigest().encode(), "blob": data}


async def serve(reactor: Any, endpoints: list[str], isPlain: bool) -> None:
    """Serve on all endpoints, for ever."""
    for text in endpoints:
        factory = Factory.forProtocol(lambda: Server(isPlain))
        port: Any = await serverFromString(reactor, text).listen(factory)
        print(text.partition(":")[0], "is at port", port.getHost().port, flush=True)
    await Deferred()


async def send(reactor: Any, endpoint: str, megabytes: int, isPlain: bool) -> None:
    """Send a value, fetch it back, compare."""
    factory = Factory.forProtocol(lambda: BulkAMP(isPlain))
    client: Any = await clientFromString(reactor, endpoint).connect(factory)
    how = "by READ" if await client.offer() else "in pieces"
    value = urandom(megabytes * 1_000_000)
    began = perf_counter()
    answer = await client.callRemote(Mirror, blob=value)
    back = await answer["blob"].fetch()
    seconds = perf_counter() - began
    same = answer["sha256"].decode() == sha256(value).hexdigest() and back == value
    print(f"{megabytes} MB there and back {how} in {seconds:.2f} s:", "the same" if same else "NOT the same")
    client.transport.loseConnection()


async def main(reactor: Any, *arguments: str) -> None:
    """Do what the command line says."""
    parser = ArgumentParser(description="A large value for AMP, by RDMA READ.")
    parser.add_argument("what", choices=["serve", "send"])
    parser.add_argument("endpoints", nargs="+", help="such as ib:7012 or tcp:127.0.0.1:7013")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--plain", action="store_true", help="neither offer RDMA nor agree to it")
    options = parser.parse_args(arguments)
    if options.what == "serve":
        await serve(reactor, options.endpoints, options.plain)
    for endpoint in options.endpoints:
        await send(reactor, endpoint, options.megabytes, options.plain)


if __name__ == "__main__":
    react(main, sys.argv[1:])
