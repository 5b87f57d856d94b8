"""
The contracts on iWARP: those of fabrics and of peers (L{tests.contracts.fabric}, L{tests.contracts.peers}),
and those of messages and streams on real reactors. Tests that rely on what a TCP connection for each queue
pair has not are left out by their trait.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import Mock

from twisted.internet.test.reactormixins import ReactorBuilder

from tests.contracts.closing import ClosingContract
from tests.contracts.fabric import ReachContract
from tests.contracts.peers import DeathContract, ServiceContract, SleepContract
from tests.hca.fabric.iwarp.ends import SPACE, End
from tests.hca.hcas import HCATestCase, Taker, User, settle
from tests.internet.carriers import SDP
from tests.rdma.test_reactors import RDMATestsMixin
from tests.sdp.test_contract import IB
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import OwnDirectory
from tests.support.waiting import waitUntil
from twisted_ib.errors import NoRouteError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.connection import ConnectRequest, RejectReason
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric


class StreamTaker(Taker):
    """
    A taker that the connection manager connects.
    """

    state = QPState.RESET

    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number

    def connect(self, way: Any, remote: int, message: Any) -> None:
        """
        Take what comes over the connection that stands for a remote number.
        """
        super().__init__(way, self.number, remote)
        self.state = QPState.RTS

    def fail(self, reason: Exception) -> None:
        """
        The connection is lost.
        """
        self.state = QPState.ERR
        self.path.unbind(self)
        self.pathLost(reason)


class TakerEnd(End):
    """
    An end whose queue pair is a taker.

    @ivar number: the taker's.
    """

    def __init__(self, device: Device, number: int = 0) -> None:
        super().__init__(device)
        self.number = number

    def make(self) -> StreamTaker:
        """
        @return: a new taker.
        """
        self.queuePair = StreamTaker(self.device, self.number)
        return self.queuePair


class Listener:
    """
    Accepts with takers.

    @ivar number: the next taker's.
    @ivar end: the last that was connected.
    """

    number = 0
    end: Any = None

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        self.end = TakerEnd(connection.destination.fabric.owner, self.number)
        self.end.connectionRequested(connection, request)


class ContractTests(ServiceContract, SleepContract, DeathContract, ReachContract, HCATestCase):
    """
    Devices of one address of this host.
    """

    traits = IWARPFabric.traits
    space = SPACE

    def setUp(self) -> None:
        """
        An address that no other process of the tests uses.
        """
        super().setUp()
        self.address, self.unused = ownAddress(1), ownAddress(2)
        self.listener = Listener()

    def device(self) -> Device:
        """
        @return: a new HCA, closed after the test.
        """
        device = Device("iwarp0", self.clock.seconds, partial(IWARPFabric, address=self.address))
        self.addCleanup(device.close)
        return device

    def ask(self, a: Device, address: str, port: int, number: int = 10) -> TakerEnd:
        """
        Ask for a connection.
        """
        end = TakerEnd(a, number)
        a.connect(self.space, address, port, end)
        end.call(end.path, b"", SPACE << 16 | port)
        return end

    def connected(self, a: Device, b: Device, port: int = 7001, number: int = 20) -> tuple[Taker, Taker]:
        listener = self.listener
        listener.number, listener.end = number + 1, None
        end = self.ask(a, self.address, port, number)

        def isDone() -> bool:
            return "replied" in end.events and "established" in listener.end.events

        waitUntil(isDone, lambda: settle(a, b))
        return end.queuePair, listener.end.queuePair

    def another(self, a: Device, b: Device, one: Taker) -> Taker:
        return self.connected(a, b, number=30)[0]

    def assertNobody(self, a: Device, address: str, port: int) -> None:
        """
        See L{HCATestCase.assertNobody}: the answer to a request says so.
        """
        end = self.ask(a, address, port)
        waitUntil(lambda: end.events, a.progress)
        self.assertEqual(end.events, ["rejected"])
        self.assertEqual(end.reason.reason, RejectReason.INVALID_SERVICE_ID)

    def test_again(self) -> None:
        """
        A user that asks again whenever it is told is told once a turn.  One that raises ends no turn; what
        ends the program is raised before what does not.
        """
        a = self.device()
        told: list[None] = []

        def again() -> None:
            told.append(None)
            a.fabric.soonCall(again)

        again()
        for count in (2, 3):
            a.progress()
            self.assertEqual(len(told), count)
        a.fabric.inbox.clear()
        for error in (ValueError(), KeyboardInterrupt(), OSError()):
            a.fabric.soonCall(Mock(side_effect=error))
        self.assertRaises(KeyboardInterrupt, a.progress)
        self.assertEqual(a.progress(), 0)

    def test_byAddress(self) -> None:
        """
        The path to an address of the same IP version exists at once, be it of this host or another; the
        wildcard address is this device's.
        """
        a = self.device()
        user = User()
        for asked, found in ((self.unused, self.unused), ("192.0.2.1", "192.0.2.1"), ("", self.address)):
            a.connect(self.space, asked, 7001, user)
            self.assertEqual(user.path.peer.address, found)
        for wrong in ("::1", "2001:db8::1", "224.0.0.1"):
            self.assertRaises(NoRouteError, a.connect, self.space, wrong, 7001, user)
        self.assertEqual((a.fabric.paths(), a.fabric.streams), ([], {}))


def _make() -> dict[str, type]:
    """
    @return: The test cases, by name.
    """
    found: dict[str, type] = {}
    for name, contract in (("Closing", ClosingContract), ("RDMA", RDMATestsMixin)):
        members = {"carrier": SDP("iwarp0"), "device": "iwarp0", "_reactors": [IB], "__module__": __name__}
        kind: Any = type(f"{name}Tests", (OwnDirectory, contract, ReactorBuilder), members)
        found.update(kind.makeTestCaseClasses())
    return found


globals().update(_make())
