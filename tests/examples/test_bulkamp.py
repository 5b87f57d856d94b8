"""
Tests of C{examples/bulkamp.py} within one reactor.
"""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.protocols import amp

from tests.examples.case import ExampleTestCase
from tests.examples.programs import load
from tests.support.waiting import becomes
from twisted_ib import limits
from twisted_ib.errors import SwitchError

bulkamp = load("bulkamp")

#: Bytes of a value that takes three pieces.
_PIECES = 3 * bulkamp.PIECE_BYTES


class Keep(amp.Command):
    """
    Lend a value to the peer, who keeps what it got, and does not fetch.
    """

    arguments = [(b"blob", bulkamp.Bulk())]
    response = [(b"blob", bulkamp.Bulk(optional=True)), (b"text", amp.String(optional=True))]
    errors = {bulkamp.BulkError: b"BULK"}


class Forged(amp.Command):
    """
    As L{Keep}, with any bytes instead of what says where a value is.
    """

    commandName = b"Keep"
    arguments = [(b"blob", amp.String())]
    errors = {bulkamp.BulkError: b"BULK"}


class Peer(bulkamp.Server):
    """
    A server with both.

    @ivar answer: what L{Keep} answers.
    @ivar commands: the names of the commands that it was asked to do.
    """

    def __init__(self, isPlain: bool = False) -> None:
        """
        It got nothing yet.
        """
        super().__init__(isPlain)
        self.got: list[Any] = []
        self.answer: dict[str, Any] = {}
        self.commands: list[bytes] = []

    def locateResponder(self, name: bytes) -> Any:
        self.commands.append(name)
        return super().locateResponder(name)

    @Keep.responder
    def keep(self, blob: Any) -> dict[str, Any]:
        self.got.append(blob)
        return self.answer


class BulkTests(ExampleTestCase):
    """
    Both ways that a value can take, and what becomes of it.

    @ivar server: Makes the server's protocol.
    """

    server: Any = Peer

    async def pair(self, reactor: Any, scheme: str) -> tuple[Any, Any]:
        """
        @return: a client and a server.
        """
        made: list[Any] = []

        def build() -> Any:
            made.append(self.server())
            return made[-1]

        endpoint = await self.listen(reactor, Factory.forProtocol(build), scheme)
        client = await self.connect(reactor, endpoint, Peer)
        await becomes(reactor, lambda: bool(made and made[0].transport))
        return client, made[0]

    def regions(self, reactor: Any) -> int:
        """
        @return: how many memory regions there are.
        """
        return self.inUse(reactor).get("mr", 0)

    def onBoth(self, steps: Any) -> None:
        """
        Run a coroutine with C{ib:} and with C{tcp:}.
        """

        async def both(reactor: Any) -> None:
            for scheme in ("ib", "tcp"):
                client, server = await self.pair(reactor, scheme)
                await steps(reactor, scheme, client, server)
                if client.transport is not None:
                    client.transport.loseConnection()
                await self.assertEmpty(reactor)

        self.drive(both)

    def test_sizes(self) -> None:
        """
        Values of all sizes go there and come back as they were; after that nothing is lent and
        nothing registered.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            for size in (0, 1, 65534, 65535, 65536, 131070, (1 << 20) + 7):
                value = Random(size).randbytes(size)
                answer = await client.callRemote(bulkamp.Mirror, blob=value)
                self.assertEqual(answer["sha256"].decode(), sha256(value).hexdigest())
                self.assertEqual(answer["blob"].length, size)
                self.assertEqual(len(server._lent), 1)
                back = await answer["blob"].fetch()
                self.assertEqual((back == value, back.readonly), (True, True))
                await becomes(reactor, lambda: not client._lent and not server._lent)
                self.assertEqual(self.regions(reactor), 0)

        self.onBoth(steps)

    def test_how(self) -> None:
        """
        With RDMA no piece is asked for, and without none is registered.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            await client.callRemote(Keep, blob=bytes(_PIECES))
            self.assertEqual(self.regions(reactor), {"ib": 1, "tcp": 0}[scheme])
            self.assertEqual(await server.got[0].fetch(), bytes(_PIECES))
            self.assertEqual(client.commands.count(b"Piece"), {"ib": 0, "tcp": 3}[scheme])

        self.onBoth(steps)

    async def mirrored(self, reactor: Any, client: Any, server: Any, read: bool) -> None:
        """
        Send a value, and fetch it back, by READ or in pieces.
        """
        value = Random(7).randbytes(_PIECES)
        answer = await client.callRemote(bulkamp.Mirror, blob=value)
        self.assertEqual(self.regions(reactor), int(read))
        self.assertEqual(await answer["blob"].fetch(), value)
        self.assertEqual(client.commands.count(b"Piece"), 0 if read else 3)
        await becomes(reactor, lambda: not client._lent and not server._lent)

    def test_offer(self) -> None:
        """
        A connection of bytes has RDMA when the client has offered it and the server agreed; values are READ.
        Over C{ib:} there is nothing to offer.
        """

        async def steps(reactor: Any) -> None:
            for scheme in ("sdp", "tcp", "ib"):
                client, server = await self.pair(reactor, scheme)
                self.assertTrue(await client.offer())
                self.assertEqual(server.commands.count(b"Offer"), int(scheme != "ib"))
                await self.mirrored(reactor, client, server, True)
                client.transport.loseConnection()
                await self.assertEmpty(reactor)

        self.drive(steps)

    def test_offerRefused(self) -> None:
        """
        Without an agreement a connection stays what it is: the client does not want it, the server does not,
        or does not know of it.
        """

        class Old(Peer):
            def locateResponder(self, name: bytes) -> Any:
                found = super().locateResponder(name)
                return None if name == b"Offer" else found

        async def steps(reactor: Any) -> None:
            for kind, isPlain in ((Peer, True), (lambda: Peer(True), False), (Old, False)):
                self.server = kind
                client, server = await self.pair(reactor, "tcp")
                client.isPlain = isPlain
                self.assertFalse(await client.offer())
                self.assertEqual(server.commands.count(b"Offer"), int(not isPlain))
                await self.mirrored(reactor, client, server, False)
                client.transport.loseConnection()
                await self.assertEmpty(reactor)

        self.drive(steps)

    def test_offerLost(self) -> None:
        """
        A server that agrees and then ends the connection: the offer fails, and so does what comes after it.
        """

        class Leaver(Peer):
            def sendBox(self, box: Any) -> None:
                self._agreed = False
                super().sendBox(box)
                self.transport.loseConnection()

        async def steps(reactor: Any) -> None:
            self.server = Leaver
            client, _ = await self.pair(reactor, "tcp")
            with self.assertRaises(SwitchError):
                await client.offer()
            await becomes(reactor, lambda: client.transport is None)
            with self.assertRaises((ConnectionDone, ConnectionLost)):
                await client.callRemote(bulkamp.Mirror, blob=b"late")
            await self.assertEmpty(reactor)

        self.drive(steps)

    def test_many(self) -> None:
        """
        Several values in one command, and several commands at a time.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            values = [bytes([number]) * 200_000 for number in range(20)]
            calls = [client.callRemote(bulkamp.Mirror, blob=value) for value in values]
            fetched = [Deferred.fromCoroutine((await call)["blob"].fetch()) for call in calls]
            self.assertEqual(
                [await each == value for each, value in zip(fetched, values, strict=True)], [True] * 20
            )
            await becomes(reactor, lambda: not client._lent and not server._lent)

        self.onBoth(steps)

    def test_tooLarge(self) -> None:
        """
        The receiver says how much it takes; what is more is given back unseen.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            await client.callRemote(Keep, blob=bytes(1001))
            with self.assertRaises(bulkamp.BulkError):
                await server.got[0].fetch(1000)
            await becomes(reactor, lambda: not client._lent)
            self.assertEqual(self.regions(reactor), 0)

        self.onBoth(steps)

    def test_twice(self) -> None:
        """
        What was given back cannot be fetched: the peer says so, or the connection ends.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            await client.callRemote(Keep, blob=bytes(_PIECES))
            await server.got[0].fetch()
            with self.assertRaises(bulkamp.BulkError):
                await server.got[0].fetch()

        self.onBoth(steps)

    def test_release(self) -> None:
        """
        What nobody wants can be given back without being fetched; again does no harm.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            await client.callRemote(Keep, blob=b"unwanted")
            server.got[0].release(), server.got[0].release()
            await becomes(reactor, lambda: not client._lent)
            self.assertEqual(self.regions(reactor), 0)
            self.assertEqual((await client.callRemote(Keep, blob=b""))["blob"], None)

        self.onBoth(steps)

    def test_lostBefore(self) -> None:
        """
        What is lent when the connection ends is deregistered then, whoever ends it; to fetch it
        fails.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            await client.callRemote(Keep, blob=bytes(_PIECES))
            self.assertEqual(self.regions(reactor), {"ib": 1, "tcp": 0}[scheme])
            {"ib": server, "tcp": client}[scheme].transport.abortConnection()
            await becomes(reactor, lambda: not client._lent)
            await becomes(reactor, lambda: not self.regions(reactor))
            await deferLater(reactor, 0.01)
            with self.assertRaises(bulkamp.BulkError):
                await server.got[0].fetch()
            self.assertEqual(self.regions(reactor), 0)

        self.onBoth(steps)

    def test_lostWithin(self) -> None:
        """
        A connection that ends while a value is fetched: it fails, and nothing stays registered.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            await client.callRemote(Keep, blob=bytes(30_000_000))
            fetching = Deferred.fromCoroutine(server.got[0].fetch())
            server.transport.abortConnection()
            with self.assertRaises(bulkamp.BulkError):
                await fetching
            await becomes(reactor, lambda: not client._lent and not self.regions(reactor))

        self.onBoth(steps)

    def test_longBox(self) -> None:
        """
        A box that is longer than a message of C{ib:} arrives too, and what comes after it.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            self.assertLess(limits.RDMA_MESSAGE, 65535 + 20)
            server.answer = {"blob": bytes(5), "text": bytes(65535)}
            for _ in range(3):
                answer = await client.callRemote(Keep, blob=b"short")
                self.assertEqual(answer["text"], bytes(65535))
                self.assertEqual(await answer["blob"].fetch(), bytes(5))

        self.onBoth(steps)

    def test_hostilePieces(self) -> None:
        """
        Pieces of nothing, and before the beginning, are refused; one behind the end is empty.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            client.lend(b"secret" * 10)
            for number, offset in ((2, 0), (1, -5)):
                with self.assertRaises(bulkamp.BulkError):
                    await server.callRemote(bulkamp.Piece, number=number, offset=offset)
            answer = await server.callRemote(bulkamp.Piece, number=1, offset=60)
            self.assertEqual(answer["data"], b"")

        self.onBoth(steps)

    def test_hostileValues(self) -> None:
        """
        A value that is not where its sender says: fetching it fails, and nothing stays.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            client._lent[1] = (memoryview(b"short"), None)
            for forged in ((1, 0, 0, 10), (1, 0, 0, 65536), (9, 0, 0, 10), (1, 0, 5, 0)):
                await client.callRemote(Forged, blob=bulkamp.LENT.pack(*forged))
                with self.assertRaises(bulkamp.BulkError):
                    await server.got.pop().fetch()
                client._lent[1] = (memoryview(b"short"), None)
            await client.callRemote(Forged, blob=bulkamp.LENT.pack(1, 4096, 77, 1 << 20))
            with self.assertRaises(bulkamp.BulkError):
                await server.got.pop().fetch()
            await becomes(reactor, lambda: not self.regions(reactor))

        self.onBoth(steps)

    def test_hostileBox(self) -> None:
        """
        A value that says nothing is refused as AMP refuses what is no argument: the peer is told
        C{UNKNOWN}, and sent away.
        """

        async def steps(reactor: Any, scheme: str, client: Any, server: Any) -> None:
            with self.assertRaises((amp.UnknownRemoteError, ConnectionDone)):
                await client.callRemote(Forged, blob=bytes(bulkamp.LENT.size - 1))
            self.assertEqual(server.got, [])
            await becomes(reactor, lambda: client.transport is None)

        self.onBoth(steps)
        self.assertEqual(len(self.flushLoggedErrors(bulkamp.BulkError)), 2)


globals().update(BulkTests.makeTestCaseClasses())
del BulkTests
