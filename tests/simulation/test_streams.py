"""
Tests of SDP over packets that networks lose, damage and delay, in virtual time: see
L{tests.simulation.streams}.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from random import Random

from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric import faults
from tests.simulation.streams import Client, Receiver, Sender, Streams

MIB = 1 << 20
#: The longest that a transfer may take, in virtual seconds.
LONG = 3600.0

Make = Callable[[Random], list[faults.Fault]]


class StreamTestCase(SynchronousTestCase):
    """
    Base of tests with L{Streams}.
    """

    def streams(self, make: Make, seed: int = 1, pathMTU: int = 1024) -> Streams:
        """
        Two devices with the same faults both ways, of other dice.
        """
        streams = Streams(seed, pathMTU)
        self.addCleanup(streams.close)
        for n, link in enumerate(streams.links):
            link.faults += make(Random(2 * seed + n))
        return streams


class TransferTests(StreamTestCase):
    """
    2 and 10 MiB arrive as they were sent, and the connection closes cleanly.
    """

    def transfers(self, make: Make, most: float = LONG) -> None:
        """
        Both sizes.
        """
        for seed, size in ((1, 2 * MIB), (2, 10 * MIB)):
            streams = self.streams(make, seed)
            self.assertLess(streams.transfer(size, most), most)
            devices = [channel.device for channel in streams.channels.values()]
            streams.world.run(lambda devices=devices: not any(device.queuePairs for device in devices), 60.0)
            for device in devices:
                self.assertEqual(len(device.queuePairs), 0)
                self.assertFalse(device.busy())

    def test_clean(self) -> None:
        """
        Nothing is wrong.
        """
        self.transfers(lambda dice: [], 10.0)

    def test_loss(self) -> None:
        """
        2 % are lost.
        """
        self.transfers(lambda dice: [faults.Loss(dice, 0.02)])

    def test_heavyLoss(self) -> None:
        """
        30 % are lost, each way: 100 kB still come through, whatever is lost.
        """
        for seed in range(10):
            streams = self.streams(lambda dice: [faults.Loss(dice, 0.3)], seed)
            self.assertLess(streams.transfer(100_000, LONG), LONG, seed)

    def test_corruption(self) -> None:
        """
        2 % are damaged.
        """
        self.transfers(lambda dice: [faults.Corruption(dice, 0.02)])

    def test_delay(self) -> None:
        """
        750 ms one way: the timeouts of the connection manager and of queue pairs do for that.
        """
        self.transfers(lambda dice: [faults.Delay(dice, 0.75)])

    def test_away(self) -> None:
        """
        A server that is stopped for a while as clients connect, and then reads all that came meanwhile: each
        connection works at both ends.
        """
        for seconds in (1.0, 10.0, 17.0, 20.0, 45.0, 60.0):
            streams = self.streams(lambda dice: [])

            def stopped(datagram: bytes, now: float, end: float = seconds) -> faults.Deliveries:
                return [(max(0.0, end - now), datagram)]

            streams.links[0].faults.append(stopped)
            receivers: list[Receiver] = []

            def receiver(made: list[Receiver] = receivers) -> Receiver:
                made.append(Receiver(1000))
                return made[-1]

            streams.listen(Factory.forProtocol(receiver))  # type: ignore[arg-type]
            senders = [Sender(bytes(1000)) for _ in range(20)]
            for sender in senders:
                streams.connect(sender)

            def finished(senders: list[Sender] = senders) -> bool:
                return all(sender.reason is not None for sender in senders)

            streams.world.run(finished, 120.0)
            got = [sender.got == sha256(bytes(1000)).digest() for sender in senders]
            self.assertEqual((got, len(receivers)), ([True] * 20, 20), seconds)

    def test_blackOuts(self) -> None:
        """
        2 s of silence, 5 s of link, again and again.
        """
        self.transfers(lambda dice: [faults.Outages(2.0, 5.0), faults.Delay(dice, 0.05)])

    def test_delayedLoss(self) -> None:
        """
        750 ms one way, and 2 % are lost.
        """
        streams = self.streams(lambda dice: [faults.Delay(dice, 0.75), faults.Loss(dice, 0.02)], 3, 4096)
        self.assertLess(streams.transfer(2 * MIB, LONG), LONG)


class ConnectTests(StreamTestCase):
    """
    Connecting.
    """

    def test_lossy(self) -> None:
        """
        50 of 50 connect though 30 % are lost, each way.
        """
        streams = self.streams(lambda dice: [faults.Loss(dice, 0.3)])
        accepted: list[Protocol] = []
        factory = Factory()
        factory.buildProtocol = lambda addr: accepted.append(Protocol()) or accepted[-1]  # type: ignore[method-assign,func-returns-value]
        streams.listen(factory)
        clients: list[Client] = []
        for _ in range(50):
            client = streams.connect(Protocol(), 120)
            clients.append(client)
            came = streams.world.run(
                lambda client=client: client.failure is not None or bool(client.made.connected), 200.0
            )
            self.assertTrue(came)
            self.assertIsNone(client.failure)
        streams.world.run(lambda: len(accepted) == 50, 200.0)
        self.assertEqual(len(accepted), 50)

    def test_atOnce(self) -> None:
        """
        The same, all at a time.
        """
        streams = self.streams(lambda dice: [faults.Loss(dice, 0.3)], 2)
        streams.listen(Factory.forProtocol(Protocol))
        clients = [streams.connect(Protocol(), 120) for _ in range(50)]
        streams.world.run(lambda: all(client.made.connected or client.failure for client in clients), 200.0)
        self.assertEqual([client.failure for client in clients], [None] * 50)
        self.assertEqual(sum(client.made.connected for client in clients), 50)
