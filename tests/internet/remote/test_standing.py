"""
Tests of L{tests.internet.remote.standing}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError
from twisted.internet.test.reactormixins import ReactorBuilder, TestTimeoutError

from tests.contracts.pacing import Producer
from tests.internet.carriers import SDP, Accepting, StreamContract
from tests.internet.test_stream_suite import IB_REACTORS
from tests.support import waiting


class _HangingCarrier(SDP):
    def standing(self) -> list[str]:
        """
        @return: a line.
        """
        return ["there: another process"]


class HangTests(StreamContract, ReactorBuilder):
    """
    A contract that hangs.
    """

    carrier = _HangingCarrier("shm0")
    _reactors = IB_REACTORS

    def test_hang(self) -> None:
        """
        The error of a test that hangs says where it waits, what has come there, and how its device and the
        other end stand.
        """
        self.patch(waiting, "HANG_SECONDS", 0.5)

        async def steps(reactor: Any) -> None:
            _, client, server = await self.pair(reactor)
            client.transport.write(b"never read")
            await Deferred()
            self.assertEqual(server.log, [])

        error = self.assertRaises(TestTimeoutError, self.drive, steps)
        text = str(error)
        for each in (
            "reactor still running after 0.5 seconds",
            f"{__file__}:",
            ", steps",
            "client.log: 'made'",
            "server.log: 'made', bytearray[10]",
            "fabric ",
            "queuePair ",
            "there: another process",
        ):
            self.assertIn(each, text)

    def test_stopped(self) -> None:
        """
        So does a connection that is lost end the wait for a producer.
        """

        async def steps(reactor: Any) -> None:
            _, client, server = await self.pair(reactor)
            server.transport.pauseProducing()
            producer = Producer(client.transport, 1000, 100_000)
            producer.begin(False)
            server.transport.abortConnection()
            await producer.over(reactor, self, client)

        error = self.assertRaises(self.failureException, self.drive, steps)
        self.assertRegex(str(error), r"'stop'\], client ConnectionLost: .+")

    def test_unconnected(self) -> None:
        """
        A connect that fails ends the wait for it, with its reason.
        """

        async def steps(reactor: Any) -> None:
            port = self.carrier.listen(reactor, Accepting())
            await port.stopListening()
            self.patch(self.carrier, "listen", lambda *given, **options: port)
            await self.pair(reactor)

        self.assertRaises(ConnectError, self.drive, steps)


globals().update(HangTests.makeTestCaseClasses())
