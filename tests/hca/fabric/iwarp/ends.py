"""
Two devices of kind C{iwarp} in one thread, and a peer that is a plain TCP socket: for tests.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import PortSpace, RDMACMHeader
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric

SPACE = int(PortSpace.TCP)
ONE, TWO = "127.0.0.1", "127.0.0.2"


class End:
    """
    A consumer, the listener of a service, and the user of its connections.
    """

    readsFirst = False

    def __init__(self, device: Device) -> None:
        self.device = device
        self.queuePair: Any = None
        self.connection: Any = None
        self.path: Any = None
        self.isServing = True
        self.got: list[bytes] = []
        self.events: list[str] = []
        self.reason: Any = None
        self.privateData = b""

    def received(self, buffer: Any, start: int, stop: int) -> None:
        """
        Keep a message.
        """
        self.got.append(bytes(buffer[start:stop]))

    def resume(self) -> None:
        """
        There is room.
        """
        self.events.append("resume")

    def failed(self, reason: Exception) -> None:
        """
        The queue pair failed.
        """
        self.events.append("failed")
        self.reason = reason

    def forked(self) -> None:
        """
        Not here.
        """

    def make(self) -> Any:
        """
        @return: a new queue pair that takes messages.
        """
        self.queuePair = self.device.createQueuePair(self)
        self.queuePair.postReceives(1000)
        return self.queuePair

    def call(self, path: Any, privateData: bytes = b"", serviceID: int = 0) -> None:
        """
        Ask for a connection.
        """
        if serviceID >> 16 == SPACE:
            header = RDMACMHeader(path.fabric.address, 0, path.peer.address)
            privateData = header.pack() + privateData
        request = ConnectRequest(
            serviceID=serviceID,
            localQPN=self.make().number,
            privateData=privateData,
            responderResources=4,
            initiatorDepth=4,
            retryCount=5,
            rnrRetryCount=6,
            pathMTU=5,
        )
        self.connection = self.device.sendRequest(path, request, self, self.device.clock())

    def pathReady(self, path: Any) -> None:
        self.path = path

    def replied(self, connection: Any, reply: ConnectReply) -> None:
        self.events.append("replied")
        self.privateData = reply.privateData
        self.queuePair.connect(connection.destination, reply.localQPN, reply)
        connection.ready(self.device.clock())

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        self.events.append("requested")
        self.privateData = request.privateData
        self.connection = connection
        if self.isServing:
            self.accept(request)

    def accept(self, request: ConnectRequest) -> None:
        """
        Accept a request.
        """
        queuePair = self.make()
        self.connection.user = self
        queuePair.connect(self.connection.destination, request.localQPN, request)
        reply = ConnectReply(
            localQPN=queuePair.number, responderResources=4, initiatorDepth=4, privateData=b"welcome\0"
        )
        self.connection.accept(reply, self.device.clock())

    def requestWithdrawn(self, connection: Any) -> None:
        """
        The peer has given up.
        """
        self.events.append("withdrawn")

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        The peer has refused.
        """
        self.events.append("rejected")
        self.reason = rejection

    def established(self, connection: Any) -> None:
        """
        The peer is ready.
        """
        self.events.append("established")

    def unreachable(self, connection: Any) -> None:
        """
        No answer.
        """
        self.events.append("unreachable")

    def peerDisconnected(self, connection: Any) -> None:
        """
        The end.
        """
        self.events.append("disconnected")


class IWARPTestCase(SynchronousTestCase):
    """
    Devices on one clock.
    """

    def setUp(self) -> None:
        """
        No devices yet.
        """
        ownRunDirectory(self)
        self.clock = Clock()
        self.devices: list[Device] = []

    def device(self, address: str, **options: bool) -> Device:
        """
        @param options: C{crc} and C{markers}.
        @return: a new device, closed after the test.
        """

        def make(owner: Any, guid: int, clock: Callable[[], float]) -> IWARPFabric:
            return IWARPFabric(owner, guid, clock, address, **options)

        device = Device("iwarp0", self.clock.seconds, fabric=make)
        self.devices.append(device)
        self.addCleanup(device.close)
        return device

    def turn(self) -> None:
        """
        Serve the devices once.
        """
        for device in self.devices:
            if not device.closed:
                device.progress()

    def until(self, holds: Callable[[], object]) -> None:
        """
        Serve the devices until something holds.
        """
        waitUntil(holds, self.turn)

    def pair(self, here: str = ONE, there: str = TWO) -> tuple[End, End]:
        """
        @return: a caller and a listener that are connected.
        """
        one, two = End(self.device(here)), End(self.device(there))
        port = two.device.listen(SPACE, there, 0, two).port
        one.device.connect(SPACE, there, port, one)
        one.call(one.path, b"hello\0\0", SPACE << 16 | port)
        self.until(lambda: "replied" in one.events and "established" in two.events)
        return one, two

    def listening(self) -> tuple[End, tuple[str, int]]:
        """
        @return: a listener, and its address.
        """
        end = End(self.device(TWO))
        return end, (TWO, end.device.listen(SPACE, TWO, 0, end).port)

    def socket(self, where: tuple[str, int]) -> socket.socket:
        """
        @return: a plain peer's socket, connected.
        """
        made = socket.create_connection(where)
        self.addCleanup(made.close)
        return made

    def isOver(self, made: socket.socket) -> bool:
        """
        @return: whether the device has closed the connection.
        """
        made.setblocking(False)
        try:
            while made.recv(65536):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True
