"""
Strangers that send forged requests and damaged packets to an HCA, while others use it: for tests.

Everything depends on a seed, and time is virtual; what is measured of the process is memory and the
time of its processor.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path as File
from random import Random
from typing import Any

from twisted.internet.protocol import Factory
from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.streams import ADDRESSES, PORT, Receiver, Sender, Streams
from twisted_ib.hca.cm.machine import requestMessage
from twisted_ib.hca.connection import ConnectRequest, PathRecord
from twisted_ib.hca.connection.rdmacm import PortSpace, gidOf
from twisted_ib.hca.wire import BaseHeader, Packet
from twisted_ib.hca.wire.headers import ICRC, QUEUE_KEY
from twisted_ib.hca.wire.icrc import icrc
from twisted_ib.hca.wire.mad import cm
from twisted_ib.hca.wire.rocev2 import UDPDatagram
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.rdma import handshake as messages
from twisted_ib.rdma.port import listenRDMA
from twisted_ib.sdp.handshake import SDP_HANDSHAKE as sdp

MESSAGES_PORT, DEAF_PORT = 4001, 4002
#: Requests per second.
RATE = 5000
#: How many strangers there are.
SOURCES = 19000
SIZE = 100_000
MIB = 1 << 20
#: How long a connection with L{SIZE} bytes and their answer may take, in seconds.
PATIENCE = 2.0
#: Datagrams between two connections of an honest peer.
EVERY = 1000
#: Timeout codes that they ask for.
TIMEOUTS = (0, 5, 20, 31)
_CM_PORT = 55410


def resident() -> int:
    """
    The memory of this process, in bytes.
    """
    gc.collect()
    pages = int(File("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


class _Stream:
    """
    As much of a stream as a REQ is made of.
    """

    posted = 8
    privateData = b""
    maxMessageSize = 0

    def __init__(self, number: int) -> None:
        """
        @param number: of its queue pair.
        """
        self.queuePair, self.number = self, number


class Deaf:
    """
    Listens, and never answers.
    """

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        """
        A REQ arrived.
        """

    def requestWithdrawn(self, connection: Any) -> None:
        """
        The REQ was withdrawn.
        """


def datagram(source: str, body: bytes) -> bytes:
    """
    The UDP payloads from one address to the second one.
    """
    ends = (int.from_bytes(gidOf(address), "big") for address in (source, ADDRESSES[1]))
    return UDPDatagram(*ends, _CM_PORT, body).pack()[28:]


class FloodTestCase(SynchronousTestCase):
    """
    An HCA that is flooded.
    """

    #: The UDP source port that forged requests say.
    said = 0

    def setUp(self) -> None:
        """
        It listens for streams and for messages, and somewhere it does not answer.
        """
        streams = self.streams = Streams(1)
        self.addCleanup(streams.close)
        self.dice = Random(2)
        self.link = streams.links[1].link
        self.device: Any = streams.channels[ADDRESSES[1]].device
        self.accepted = 0
        streams.listen(Factory.forProtocol(self._receiver))  # type: ignore[arg-type]
        device = address = ADDRESSES[1]
        reactor = streams.host.reactor
        listenRDMA(reactor, MESSAGES_PORT, Factory(), interface=address, device=device)
        self.device.listen(PortSpace.TCP, address, DEAF_PORT, Deaf())
        # State that every process keeps exists before anything is measured.
        self.connect()
        self.seen = list(self._captured())

    def _receiver(self) -> Receiver:
        self.accepted += 1
        return Receiver(SIZE)

    def _captured(self) -> Iterator[bytes]:
        """
        The packets of a connection, both ways.
        """
        network, found = self.streams.world.network, []
        send = network.send

        def note(source: Any, destination: str, port: int, octets: bytes, trafficClass: int) -> None:
            found.append(octets)
            send(source, destination, port, octets, trafficClass)

        network.send = note  # type: ignore[method-assign]
        self.connect()
        network.send = send  # type: ignore[method-assign]
        yield from found

    # -- honest peer

    def begin(self) -> Sender:
        """
        Begin to connect and to send.
        """
        sender = Sender(self.dice.randbytes(SIZE))
        self.client = self.streams.connect(sender)
        self.since = self.streams.world.now, time.process_time()
        return sender

    def finished(self, sender: Sender) -> bool:
        """
        Whether it has its answer and is closed.
        """
        self.assertIsNone(self.client.failure)
        return sender.reason is not None

    def check(self, sender: Sender) -> None:
        """
        It has had the right answer in time, of this process too.
        """
        self.assertEqual(sender.got, sha256(sender.octets).digest())
        self.assertLess(self.streams.world.now - self.since[0], PATIENCE)
        self.assertLess(time.process_time() - self.since[1], PATIENCE)

    def connect(self) -> None:
        """
        Connect, send, have the answer, close.
        """
        sender = self.begin()
        self.streams.world.run(lambda: self.finished(sender), PATIENCE)
        self.check(sender)

    # -- strangers

    def stranger(self) -> str:
        """
        One of L{SOURCES} addresses.
        """
        number = self.dice.randrange(SOURCES)
        return f"10.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"

    def forged(self) -> tuple[str, bytes]:
        """
        A request with a right ICRC and a forged source.
        """
        dice, source = self.dice, self.stranger()
        here, kind = addressOf(source, dice.randrange(1024, 65536)), dice.randrange(8)
        stream: Any = _Stream(dice.getrandbits(24))
        if kind < 4:
            asked = sdp.request(stream, here, addressOf(ADDRESSES[1], PORT))
        else:
            port = MESSAGES_PORT if kind < 7 else DEAF_PORT
            asked = messages.request(stream, here, addressOf(ADDRESSES[1], port))
        request = requestMessage(asked)
        request.localCommunicationID = dice.randrange(1, 1 << 32)
        request.localCAGUID, request.localEECN = dice.getrandbits(64), self.said
        request.startingPSN, request.pathMTU = dice.getrandbits(24), 3
        request.localCMResponseTimeout = dice.choice(TIMEOUTS)
        request.requestRetries = 15
        request.primaryPath = PathRecord(
            localGID=gidOf(source),
            remoteGID=gidOf(ADDRESSES[1]),
            flowLabel=dice.getrandbits(20),
            hopLimit=64,
            localACKTimeout=dice.choice((0, 19)),
        )
        return source, self.management(source, request.attribute, request.pack())

    def management(self, source: str, attribute: int, body: bytes) -> bytes:
        """
        @return: a message of connection management.
        """
        mad = cm.wrap(attribute, body, self.dice.getrandbits(64)).pack()
        bth = BaseHeader(0x64, 1, self.dice.getrandbits(24), acknowledge=True)
        return datagram(source, Packet.of(bth, (QUEUE_KEY, 1), mad).pack())

    def mutated(self) -> tuple[str, bytes]:
        """
        A packet of a connection, or a request, with something in it that is another thing; the ICRC of
        most is good.
        """
        dice = self.dice
        source = dice.choice((ADDRESSES[0], self.stranger()))
        body = bytearray(dice.choice(self.seen) if dice.random() < 0.7 else self.forged()[1])[:-4]
        for _ in range(dice.randrange(4)):
            at = dice.randrange(min(len(body), dice.choice((12, 60, 300))))
            body[at] = dice.choice((0, 0xFF, dice.randrange(256), body[at] ^ 1 << dice.randrange(8)))
        if dice.random() < 0.2:
            del body[dice.randrange(len(body)) :]
        if self.device.queuePairs and dice.random() < 0.5 and len(body) >= 12:
            body[5:8] = dice.choice(list(self.device.queuePairs)).to_bytes(3, "big")
        if len(body) < 12 or dice.random() < 0.1:
            return source, bytes(body) + dice.randbytes(4)
        head = UDPDatagram(*(int.from_bytes(gidOf(a), "big") for a in (source, ADDRESSES[1])), _CM_PORT, body)
        octets = head.pack()
        return source, octets[28:-4] + ICRC.pack(icrc(octets, 0, len(octets) - 4))

    def arrive(self, count: int, make: Any) -> None:
        """
        Let so many arrive, L{RATE} per second, while an honest peer connects again and again.

        @param make: gives a source and a datagram.
        """
        world, batch = self.streams.world, 25
        sender: Sender | None = None
        for first in range(0, count, batch):
            if sender is None and first % EVERY == 0:
                sender = self.begin()
            for _ in range(min(batch, count - first)):
                source, octets = make()
                self.link.take((source, _CM_PORT, ADDRESSES[1], octets, 0))
            world.run(lambda: False, batch / RATE)
            if sender is not None and self.finished(sender):
                self.check(sender)
                self.honest += 1
                sender = None
        if sender is not None:
            world.run(lambda: self.finished(sender), PATIENCE)
            self.check(sender)
            self.honest += 1

    def flood(self, requests: int, mutations: int) -> None:
        """
        See the class.  Memory grows by less than 16 MiB.
        """
        before, self.honest = resident(), 0
        self.arrive(requests, self.forged)
        self.arrive(mutations, self.mutated)
        self.connect()
        growth = resident() - before
        self.assertLess(growth, 16 * MIB, f"{growth / MIB:.1f} MiB")
        self.assertGreaterEqual(self.honest, 2)
