"""
Streams of SDP between two HCAs, in virtual time: unchanged endpoints on a reactor whose clock is the
world's.
"""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import Any
from unittest import mock

from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.python.failure import Failure

from tests.hca.fabric.faults import FaultyLink
from tests.sdp.pair import Keeper, PollingReactor
from tests.simulation.world import Link, World, deviceOn
from twisted_ib.internet import connector, port
from twisted_ib.internet.channel import DeviceChannel
from twisted_ib.sdp.port import connectSDP, listenSDP

ADDRESSES = "10.0.0.1", "10.0.0.2"
PORT = 4000


class ReactorHost:
    """
    A reactor with the channels of two devices, as what a world lets work.
    """

    stopped = False

    def __init__(self, world: World) -> None:
        """
        Without devices.
        """
        self.world = world
        self.reactor = PollingReactor()

    def deadline(self) -> float | None:
        """
        When its next call is.
        """
        calls = self.reactor.getDelayedCalls()
        return min(call.getTime() for call in calls) if calls else None

    def advance(self) -> None:
        """
        Time has passed.
        """
        self.reactor.rightNow = self.world.now
        self.reactor.advance(0)

    def turn(self) -> bool:
        """
        Do what there is to do.
        """
        return bool(self.reactor.turn())


class Sender(Protocol):
    """
    Sends so many octets and closes when all of them came.
    """

    def __init__(self, octets: bytes) -> None:
        """
        To be sent.
        """
        self.octets = octets
        self.reason: Failure | None = None
        self.got = b""

    def connectionMade(self) -> None:
        """
        Send it.
        """
        assert self.transport is not None
        self.transport.write(self.octets)

    def dataReceived(self, data: bytes) -> None:
        """
        The hash came.
        """
        self.got += data
        if len(self.got) == sha256().digest_size:
            assert self.transport is not None
            self.transport.loseConnection()

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """
        It is over.
        """
        self.reason = reason


class Receiver(Protocol):
    """
    Takes octets and answers with their hash.
    """

    def __init__(self, size: int) -> None:
        """
        @param size: how many there will be.
        """
        self.left = size
        self.hash = sha256()
        self.reason: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        """
        Some came.
        """
        self.hash.update(data)
        self.left -= len(data)
        assert self.left >= 0
        if not self.left:
            assert self.transport is not None
            self.transport.write(self.hash.digest())

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """
        It is over.
        """
        self.reason = reason


class Client(ClientFactory):
    """
    Has one protocol, and remembers why it was not connected.
    """

    def __init__(self, made: Protocol) -> None:
        """
        @param made: what it gives.
        """
        self.made = made
        self.failure: Failure | None = None
        self.noisy = False

    def buildProtocol(self, addr: Any) -> Protocol:
        """
        The one.
        """
        return self.made

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> None:
        self.failure = reason


class Streams:
    """
    Two devices, and streams between them.

    @ivar links: both ends of the network, for faults.
    """

    def __init__(self, seed: int, pathMTU: int = 1024) -> None:
        """
        Open the devices.
        """
        dice = self.dice = Random(seed)
        world = self.world = World()
        world.note = lambda text: None  # type: ignore[method-assign]
        host = self.host = ReactorHost(world)
        world.hosts.append(host)
        self.links = [
            FaultyLink(Link(world.network, address, pathMTU), [], world.seconds, world.later)
            for address in ADDRESSES
        ]
        self.channels: dict[str, DeviceChannel] = {}
        keeper = Keeper()
        for link in self.links:
            device = deviceOn(link, host.reactor.seconds, dice.getrandbits(32))
            channel = self.channels[link.address] = DeviceChannel(host.reactor, device)
            channel.acquire(keeper)
        self.patches = [mock.patch.object(each, "channelFor", self._channel) for each in (connector, port)]
        for patch in self.patches:
            patch.start()

    def _channel(self, reactor: Any, device: Any, *where: str) -> DeviceChannel:
        """
        The channel of a device.
        """
        return self.channels[device]

    def listen(self, factory: Factory) -> Any:
        """
        Listen at the second address.
        """
        address = ADDRESSES[1]
        return listenSDP(self.host.reactor, PORT, factory, interface=address, device=address)

    def connect(self, protocol: Protocol, timeout: float | None = None) -> Client:
        """
        Connect from the first address.
        """
        client = Client(protocol)
        connectSDP(self.host.reactor, ADDRESSES[1], PORT, client, timeout, device=ADDRESSES[0])
        return client

    def transfer(self, size: int, most: float) -> float:
        """
        Send so much, get the hash back, and close.

        @param most: in virtual seconds.
        @return: how long it took.
        """
        octets = self.dice.randbytes(size)
        receiver, sender = Receiver(size), Sender(octets)
        listening = self.listen(Factory.forProtocol(lambda: receiver))  # type: ignore[arg-type]
        begin = self.world.now
        client = self.connect(sender)
        self.world.run(
            lambda: client.failure is not None or (sender.reason is not None and receiver.reason is not None),
            most,
        )
        assert client.failure is None, client.failure
        assert sender.got == sha256(octets).digest(), (
            f"{receiver.left} of {size} are missing: {sender.reason}"
        )
        assert sender.reason is not None, "not closed"
        listening.stopListening()
        return self.world.now - begin

    def close(self) -> None:
        """
        Give everything back.
        """
        for patch in self.patches:
            patch.stop()
        for channel in self.channels.values():
            channel.close()
