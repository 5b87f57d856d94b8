"""
The contract of connectors (L{twisted_ib.hca.connection.interfaces.IConnector}), in their own words: request,
replied, ready, refused, ended.
"""

from __future__ import annotations

from typing import Any

from zope.interface.verify import verifyObject

from tests.hca.fabric.iwarp.ends import SPACE, End
from tests.hca.hcas import settle
from tests.support.waiting import waitUntil
from twisted_ib.errors import ConnectionStateError
from twisted_ib.hca.connection import ConnectReply, ConnectRequest, RejectReason
from twisted_ib.hca.connection.interfaces import IConnection, IConnectionUser, IConnector, IServiceListener
from twisted_ib.hca.connection.rdmacm import RDMACMHeader
from twisted_ib.hca.device.device import Device

LOCALHOST = "127.0.0.1"


class ContractEnd(End):
    """
    A side of a connection, which answers when it is told to.
    """

    request: ConnectRequest

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.isServing = False

    def call(self, path: Any, privateData: bytes = b"", serviceID: int = 0) -> None:
        """
        Send a request.
        """
        device = self.device
        here, there = device.address or LOCALHOST, getattr(path.peer, "address", None) or LOCALHOST
        request = ConnectRequest(
            serviceID=serviceID,
            localQPN=self.make().number,
            privateData=RDMACMHeader(here, 40000, there).pack() + privateData,
            responderResources=4,
            initiatorDepth=4,
            pathMTU=3,
            requestRetries=1,
        )
        self.connection = device.sendRequest(path, request, self, device.clock())

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        self.request = request
        super().connectionRequested(connection, request)

    def accept(self, request: ConnectRequest) -> None:
        """
        Accept it.
        """
        connection, queuePair = self.connection, self.make()
        connection.user = self
        reply = ConnectReply(b"welcome", queuePair.number, request.initiatorDepth, request.responderResources)
        queuePair.proposal = connection.destination.prepareReply(reply, request)
        queuePair.connect(connection.destination, request.localQPN, request)
        assert connection.accept(reply, self.device.clock())

    def pathLost(self, reason: Exception) -> None:
        """
        The way to the peer is gone.
        """
        self.events.append("lost")


class ConnectorContract:
    """
    Two devices: a test case with this has C{ends}.
    """

    def ends(self: Any) -> tuple[Device, Device, str]:
        """
        @return: two devices of which the first reaches the second at an address.
        """
        raise NotImplementedError

    def asked(self: Any, isElsewhere: bool = False) -> tuple[ContractEnd, ContractEnd]:
        """
        @param isElsewhere: whether the request is for a port at which nobody listens.
        @return: the user of a request that was sent, and the listener of a port.
        """
        here, there, address = self.ends()
        self.turn = lambda: settle(here, there)
        listener, user = ContractEnd(there), ContractEnd(here)
        # Any port: some connectors have the host's, and so do other processes.
        self.port = port = there.listen(SPACE, address, 0, listener).port
        here.connect(SPACE, address, port, user)
        settle(here, there)
        self.assertTrue(verifyObject(IConnector, here.sendRequest.__self__))  # type: ignore[attr-defined]
        verifyObject(IConnectionUser, user, tentative=True)
        verifyObject(IServiceListener, listener, tentative=True)
        user.call(user.path, b"hello", SPACE << 16 | (port ^ isElsewhere))
        verifyObject(IConnection, user.connection)
        return user, listener

    def until(self: Any, holds: Any) -> None:
        """
        Serve both devices until something holds.
        """
        waitUntil(holds, self.turn)

    def requested(self: Any) -> tuple[ContractEnd, ContractEnd]:
        """
        @return: the same once the listener has the request.
        """
        user, listener = self.asked()
        self.until(lambda: listener.events == ["requested"])
        verifyObject(IConnection, listener.connection)
        return user, listener

    def connected(self: Any) -> tuple[ContractEnd, ContractEnd]:
        """
        @return: the same once both are connected.
        """
        user, listener = self.requested()
        listener.accept(listener.request)
        self.until(lambda: user.events == ["replied"] and "established" in listener.events)
        return user, listener

    def test_connected(self: Any) -> None:
        """
        A request reaches its listener, the reply its user, and that this one is ready the listener's user.
        """
        user, listener = self.connected()
        request = listener.request
        self.assertEqual(request.serviceID, SPACE << 16 | self.port)
        self.assertEqual(request.privateData[36:].rstrip(b"\0"), b"hello")
        self.assertEqual((request.responderResources, request.initiatorDepth), (4, 4))
        self.assertEqual(user.privateData.rstrip(b"\0"), b"welcome")
        self.assertEqual(listener.events, ["requested", "established"])

    def test_ended(self: Any) -> None:
        """
        An end is told to both users, once; after it every command is late, and is no mistake.
        """
        user, listener = self.connected()
        self.assertTrue(user.device.disconnect(user.connection))
        self.until(lambda: "disconnected" in user.events and "disconnected" in listener.events)
        self.turn()
        self.assertEqual(user.events.count("disconnected") + listener.events.count("disconnected"), 2)
        for end in (user, listener):
            self.assertFalse(end.device.disconnect(end.connection))
            self.assertFalse(end.connection.accept(ConnectReply(), 0.0))
            self.assertFalse(end.connection.reject(RejectReason.CONSUMER_DEFINED, b"", 0.0))
            self.assertFalse(end.connection.ready(0.0))

    def test_refused(self: Any) -> None:
        """
        A refusal is told with its private data.
        """
        user, listener = self.requested()
        self.assertTrue(listener.connection.reject(RejectReason.CONSUMER_DEFINED, b"why", 0.0))
        self.until(lambda: user.events)
        self.assertEqual(user.events, ["rejected"])
        self.assertEqual(user.reason.reason, RejectReason.CONSUMER_DEFINED)
        self.assertEqual(user.reason.privateData.rstrip(b"\0"), b"why")
        self.assertFalse(user.connection.ready(0.0))

    def test_nobodyListens(self: Any) -> None:
        """
        So is a service without a listener.
        """
        user, listener = self.asked(isElsewhere=True)
        self.until(lambda: user.events)
        self.assertEqual((user.events, listener.events), (["rejected"], []))

    def test_withdrawn(self: Any) -> None:
        """
        A request that is given up needs no answer.
        """
        user, listener = self.requested()
        user.connection.abandon(0.0)
        self.until(lambda: listener.events == ["requested", "withdrawn"])
        self.assertFalse(listener.connection.accept(ConnectReply(), 0.0))
        self.assertEqual(user.events, [])

    def test_misordered(self: Any) -> None:
        """
        A command that does not fit is a mistake, and changes nothing.
        """
        user, listener = self.requested()
        self.assertRaises(ConnectionStateError, user.connection.ready, 0.0)
        self.assertRaises(ConnectionStateError, user.connection.accept, ConnectReply(), 0.0)
        self.assertRaises(ConnectionStateError, user.connection.ignore, 0.0)
        self.assertRaises(ConnectionStateError, listener.connection.ready, 0.0)
        listener.accept(listener.request)
        self.assertRaises(ConnectionStateError, listener.connection.accept, ConnectReply(), 0.0)
        self.until(lambda: user.events == ["replied"])
        self.assertRaises(ConnectionStateError, user.connection.ready, 0.0)

    def test_goneBeforeTheAnswer(self: Any) -> None:
        """
        A device that closes tells those who wait for an answer, or owe one.
        """
        user, listener = self.requested()
        listener.device.close()
        self.until(lambda: user.events)
        self.assertIn(user.events, (["rejected"], ["lost"]))
        self.assertFalse(listener.connection.accept(ConnectReply(), 0.0))
