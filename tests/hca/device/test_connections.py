"""
Tests of L{twisted_ib.hca.device.connections}: on a device of each kind users connect by requests and replies,
and never see a message of the communication manager.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from types import SimpleNamespace
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.hca.connection.test_compacthello import HELLO
from tests.hca.device.everykind import EveryKindTestCase
from tests.hca.hcas import settle
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError, ServiceInUseError
from twisted_ib.hca.base.partition import DEFAULT_PKEY
from twisted_ib.hca.base.port import PortChange
from twisted_ib.hca.base.traits import Peers
from twisted_ib.hca.connection import (
    ConnectReply,
    ConnectRequest,
    LookupReply,
    LookupRequest,
    PathRecord,
    Rejection,
    RejectReason,
    SIDRStatus,
)
from twisted_ib.hca.connection.compacthello import SOFTWARE
from twisted_ib.hca.connection.interfaces import IConnection, IConnectionUser, ILookup
from twisted_ib.hca.connection.rdmacm import PortSpace, RDMACMHeader, gidOf
from twisted_ib.hca.connection.request import ANY_PATH
from twisted_ib.hca.device import connections
from twisted_ib.hca.fabric.roce.packet import PACKET_ROUTE_SECONDS
from twisted_ib.hca.wire.cm.messages import REJ, MessageKind

PORT = 7001
LOCALHOST = "127.0.0.1"
FULL, LIMITED = 0x8001, 0x0001


class User:
    """
    A user of connections and lookups, active or passive.

    @ivar told: what it was told, in order.
    @ivar answer: called with the connection or lookup, and the request.
    """

    readsFirst = False

    def __init__(self, answer: Any = None) -> None:
        """
        @param answer: of a listener.
        """
        self.told: list[Any] = []
        self.answer = answer
        self.path: Any = None

    def pathReady(self, path: Any) -> None:
        self.path = path

    def connectFailed(self, reason: Exception) -> None:
        self.told.append(reason)

    def connectionRequested(self, connection: Any, request: Any) -> None:
        """
        Answer.
        """
        self.told.append(request)
        self.answer(connection, request)

    lookupRequested = connectionRequested

    def requestWithdrawn(self, connection: Any) -> None:
        self.told.append("withdrawn")

    def replied(self, connection: Any, reply: Any) -> None:
        """
        The queue pair is ready.
        """
        self.told.append(reply)
        connection.ready(0.0)

    def established(self, connection: Any) -> None:
        self.told.append("established")

    def rejected(self, connection: Any, rejection: Any) -> None:
        self.told.append(rejection)

    def unreachable(self, connection: Any) -> None:
        self.told.append("unreachable")

    def peerDisconnected(self, connection: Any) -> None:
        self.told.append(connection.disconnectData.rstrip(b"\0"))

    def found(self, lookup: Any, reply: Any) -> None:
        self.told.append(reply)


class DestinationTests(SynchronousTestCase):
    """
    Which address of this host a request is for.
    """

    IPV4 = bytes(12) + b"\x0a\x00\x00\x01"
    IPV6 = b"\xfe\x80" + bytes(13) + b"\x05"

    def destination(self, space: int, data: bytes, **fields: Any) -> str:
        """
        @return: that of a request.
        """
        return connections._destinationOf(
            SimpleNamespace(serviceID=space << 16 | 80, privateData=data, **fields)
        )

    def test_header(self) -> None:
        """
        The RDMA-CM's header has it at its end, that of SDP behind the hello's own fields; the version stands
        before.
        """
        for first, address, text in ((0x40, self.IPV4, "10.0.0.1"), (0x60, self.IPV6, "fe80::5")):
            data = bytes([0, first]) + bytes(18) + address
            self.assertEqual(self.destination(PortSpace.TCP, data), text)
            self.assertEqual(self.destination(PortSpace.TCP, data + b"more"), text)
            data = bytes(16) + bytes([0, first]) + bytes(30) + address
            self.assertEqual(self.destination(PortSpace.SDP, data), text)

    def test_short(self) -> None:
        """
        What is missing at the end is zeros.
        """
        for length in range(2, 36):
            data = (bytes([0, 0x60]) + bytes(18) + self.IPV6)[:length]
            text = str(IPv6Address(data[20:].ljust(16, b"\0")))
            self.assertEqual(self.destination(PortSpace.TCP, data), text)

    def test_native(self) -> None:
        """
        One of native addresses has no header: it is the GID of its path, if it has one.
        """
        path = SimpleNamespace(remoteGID=self.IPV6)
        self.assertEqual(self.destination(PortSpace.IB, b"", primaryPath=path), "fe80::5")
        data = bytes([0, 0x40]) + bytes(18) + self.IPV4
        self.assertEqual(self.destination(PortSpace.IB, data), "10.0.0.1")
        self.assertEqual(self.destination(PortSpace.TCP, data, primaryPath=path), "10.0.0.1")

    def test_listener(self) -> None:
        """
        A listener on that address comes before the wildcard of its family; a link-local one may have a scope.
        """
        served = {"10.0.0.1": 1, "fe80::5%3": 2, "fe80::6": 3}
        for address, key in (
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.2", "0.0.0.0"),
            ("2001:db8::1", "::"),
            ("fe80::5", "fe80::5%3"),
            ("fe80::6", "fe80::6"),
            ("fe80::7", "::"),
        ):
            self.assertEqual(connections._otherKey(served, address), key)


class ConnectionTests(EveryKindTestCase):
    """
    Two HCAs of each kind.
    """

    def cases(self, space: int, answer: Any) -> Any:
        """
        @param answer: the listener's.
        @return: for each kind two devices, a user with a path from the first to the second, a listener
            there, and the private data of a request.
        """
        for here, there in self.pairs():
            address = there.address or LOCALHOST
            listener, user = User(answer), User()
            there.listen(space, address, PORT, listener)
            here.connect(space, address, PORT, user)
            settle(here, there)
            header = RDMACMHeader(here.address or LOCALHOST, 40000, address).pack()
            yield here, there, user, listener, header

    def test_accepted(self) -> None:
        """
        A request, its reply, and the end of the connection.
        """
        passive: list[Any] = []

        def accept(connection: Any, request: ConnectRequest) -> None:
            connection.user = server
            passive.append(connection)
            reply = ConnectReply(b"welcome", 0x22, request.initiatorDepth, request.responderResources)
            connection.destination.prepareReply(reply, request)
            self.assertTrue(connection.accept(reply, 0.0))

        for here, there, user, listener, header in self.cases(PortSpace.TCP, accept):
            server = User()
            request = ConnectRequest(
                PortSpace.TCP << 16 | PORT, header + b"hello", 0x11, 3, 4, pathMTU=3, requestRetries=2
            )
            connection = here.sendRequest(user.path, request, user, 0.0)
            verifyObject(IConnection, connection)
            verifyObject(IConnectionUser, user, tentative=True)
            settle(here, there)
            [asked], [told] = listener.told, user.told
            self.assertTrue(isinstance(asked, ConnectRequest) and isinstance(told, ConnectReply))
            self.assertEqual(asked.privateData.rstrip(b"\0"), header + b"hello")
            self.assertEqual(
                (asked.serviceID, asked.localQPN, asked.responderResources, asked.initiatorDepth),
                (request.serviceID, 0x11, 3, 4),
            )
            self.assertIsNone(asked.unsupported)
            self.assertEqual(told.privateData.rstrip(b"\0"), b"welcome")
            self.assertEqual((told.localQPN, told.responderResources, told.initiatorDepth), (0x22, 4, 3))
            self.assertEqual(server.told, ["established"])
            # Only packets have what both ends must agree on; nobody but their path has chosen it.
            isRouted = here.traits.peers is Peers.ADDRESSES
            self.assertEqual(asked.primaryPath is not ANY_PATH and asked.primaryPath != ANY_PATH, isRouted)
            if isRouted:
                self.assertEqual(asked.primaryPath.localGID, gidOf(here.address))
                self.assertEqual(asked.startingPSN, request.startingPSN)
            self.assertTrue(here.disconnect(connection, b"bye"))
            settle(here, there)
            self.assertFalse(here.disconnect(connection))
            self.assertEqual((user.told[1:], server.told[1:]), ([b""], [b"bye"]))

    def test_givenUp(self) -> None:
        """
        Who has given up before it read the reply has ended a connection that needs no RTU; a user that wants
        to know hears of that in particular.
        """

        class Hearing(User):
            def givenUp(self, connection: Any) -> None:
                self.told.append("given up")

        def accept(connection: Any, request: ConnectRequest) -> None:
            connection.user = server
            reply = ConnectReply(b"", 0x22)
            connection.destination.prepareReply(reply, request)
            connection.accept(reply, 0.0, False)
            accepted.append(connection)

        accepted: list[Any] = []
        for here, there, user, _, header in self.cases(PortSpace.TCP, accept):
            server = Hearing()
            request = ConnectRequest(PortSpace.TCP << 16 | PORT, header, 0x10, pathMTU=3)
            here.sendRequest(user.path, request, user, 0.0)
            settle(here, there)
            # One that is forged or late, once the RTU is there: what was on its way may be lost.
            late = accepted.pop()
            no = RejectReason.INVALID_COMMUNICATION_ID
            rej = REJ(late.remoteID, late.localID, MessageKind.REP, reason=no)
            there.cm._takeREJ(late.peer.source, rej, 0.0)
            there.services.dispatch()
            self.assertEqual("given up" in server.told, here.cm.lossless)
            for server, end in ((User(), b""), (Hearing(), "given up")):
                for isLate in (False, True):
                    request = ConnectRequest(PortSpace.TCP << 16 | PORT, header, 0x11 + isLate, pathMTU=3)
                    connection = here.sendRequest(user.path, request, user, 0.0)
                    if isLate:
                        settle(there)
                    connection.abandon(0.0)
                    settle(here, there)
                if here.cm.lossless:
                    self.assertEqual(server.told, [end, end])
                else:
                    # It has heard of no RTU.
                    self.assertEqual([each.reason for each in server.told], [RejectReason.TIMEOUT] * 2)

    def test_served(self) -> None:
        """
        A listener of an HCA, found by its port's GID, gets requests whose private data has no address, and
        knows the GID that they come from.  It has the service alone.
        """
        service = 0x1000000000000000 | 0x123456
        for here, there in self.pairs():
            asked: list[Any] = []
            listener = User(lambda connection, request: asked.append(connection))  # noqa: B023
            there.services.serve(service, listener)
            self.assertRaises(ServiceInUseError, there.services.serve, service, listener)
            user = User()
            here.services.connectHCA(there.gid, user)
            settle(here, there)
            for data in (b"", b"\x60" * 8):
                request = ConnectRequest(service, data, 0x11 + len(data), pathMTU=3)
                here.sendRequest(user.path, request, user, 0.0)
                settle(here, there)
            self.assertEqual([each.privateData.rstrip(b"\0") for each in listener.told], [b"", b"\x60" * 8])
            gids = [there.paths.gidOf(each.destination) for each in asked]
            self.assertEqual(gids, [here.gid] * 2)
            there.services.serveNoMore(service)
            there.services.serve(service, listener)

    def test_numbers(self) -> None:
        """
        Between processes a connection has the number of its queue pair as its communication id, but a second
        connection of the same queue pair has another; over packets ids tell nothing.
        """
        passive: list[Any] = []

        def accept(connection: Any, request: ConnectRequest) -> None:
            passive.append((connection, there.createQueuePair(User())))
            connection.user = User()

        for here, there, user, _, header in self.cases(PortSpace.TCP, accept):
            queuePair, passive[:] = here.createQueuePair(User()), []
            here.createQueuePair(User())  # It is not the last that was made.
            active = []
            for _ in range(2):
                request = ConnectRequest(PortSpace.TCP << 16 | PORT, header, queuePair.number, pathMTU=3)
                active.append(here.sendRequest(user.path, request, user, 0.0))
                active[-1].abandon(0.0)
                settle(here, there)
            same = [connection.localID == queuePair.number for connection in active]
            same += [connection.localID == made.number for connection, made in passive]
            self.assertEqual(same, [here.cm.lossless, False] + [there.cm.lossless] * 2)
            # Nor is it that of the GSI.
            self.assertNotIn(there.createQueuePair(User()).number, (1, passive[-1][0].localID))

    def test_rejected(self) -> None:
        """
        A refusal has its reason and private data; a port without a listener refuses too.
        """

        def reject(connection: Any, request: ConnectRequest) -> None:
            self.assertTrue(connection.reject(999, b"why", 0.0))

        for here, there, user, _, header in self.cases(PortSpace.TCP, reject):
            for port in (PORT, PORT + 1):
                request = ConnectRequest(PortSpace.TCP << 16 | port, header, 0x11 + port, pathMTU=3)
                here.sendRequest(user.path, request, user, 0.0)
                settle(here, there)
            first, second = user.told
            self.assertEqual((type(first), first.reason, first.privateData[:4]), (Rejection, 999, b"why\0"))
            self.assertEqual((type(second), second.reason), (Rejection, RejectReason.INVALID_SERVICE_ID))

    def test_noStream(self) -> None:
        """
        A request for a stream at another address, or where nobody listens, is sent once: where a peer may be
        an adapter the refusal says that it is software.
        """
        for here, there, user, _, _ in self.cases(PortSpace.SDP, None):
            for port in (PORT, PORT + 1):
                # Its addresses are nobody's.
                request = ConnectRequest(PortSpace.SDP << 16 | port, HELLO, 0x11 + port, pathMTU=3)
                here.sendRequest(user.path, request, user, 0.0)
                settle(here, there)
            nobody, said = RejectReason.INVALID_SERVICE_ID, b"" if here.lossless else SOFTWARE
            told = [(each.reason, each.privateData.rstrip(b"\0")) for each in user.told]
            self.assertEqual(told, [(nobody, said)] * 2)
            self.assertEqual(here.cm.messagesSent, 2)

    def test_unsupported(self) -> None:
        """
        Where there are packets, a request for ones that this end cannot send says so; the path of a request
        that has one is left alone.
        """

        def ignore(connection: Any, request: ConnectRequest) -> None:
            connection.ignore(0.0)

        for here, there, user, listener, header in self.cases(PortSpace.TCP, ignore):
            codes = (0, 1, 3, 4, 6)
            for code in codes:
                path = PathRecord(localGID=gidOf(here.address or LOCALHOST), flowLabel=code)
                request = ConnectRequest(
                    PortSpace.TCP << 16 | PORT, header, 0x11 + code, pathMTU=code, primaryPath=path
                )
                here.sendRequest(user.path, request, user, 0.0)
                settle(here, there)
            self.assertEqual([asked.primaryPath.flowLabel for asked in listener.told], [*codes])
            wrong = [asked.pathMTU for asked in listener.told if asked.unsupported is not None]
            # The wire's packets have 1024 bytes, code 3.
            self.assertEqual(wrong, [0, 4, 6] if here.traits.packets else [])
            self.assertLessEqual(
                {asked.unsupported for asked in listener.told}, {None, RejectReason.INVALID_MTU}
            )

    def test_partitions(self) -> None:
        """
        A request carries the P_Key of its queue pair, and one of another partition says so.
        """

        def ignore(connection: Any, request: ConnectRequest) -> None:
            connection.ignore(0.0)

        for here, there, user, listener, header in self.cases(PortSpace.TCP, ignore):
            # Not by the table of the packets' receiver, which would drop the whole MAD.
            here.changePort(PortChange(partitions=(DEFAULT_PKEY, FULL, LIMITED)))
            there.changePort(PortChange(partitions=(DEFAULT_PKEY, LIMITED)))
            for index in range(3):
                queuePair = here.createQueuePair(None)
                queuePair.joinPartition(index)
                number = queuePair.number
                request = ConnectRequest(PortSpace.TCP << 16 | PORT, header, number, pathMTU=3)
                here.sendRequest(user.path, request, user, 0.0)
                settle(here, there)
            # IBTA vol. 1 10.9.1.1: two limited members of a partition do not reach each other.
            told = [asked.unsupported for asked in listener.told]
            self.assertEqual(told, [None, None, RejectReason.PRIMARY_GID])

    def test_lookupPartition(self) -> None:
        """
        A lookup from another partition is refused, and its listener not asked.
        """
        for here, there, user, listener, header in self.cases(PortSpace.UDP, None):
            if here.traits.packets:
                # The packet itself is of that partition, and dropped.
                continue
            here.changePort(PortChange(partitions=(FULL,)))
            here.sendLookup(user.path, LookupRequest(PortSpace.UDP << 16 | PORT, header, 17, 3), user, 0.0)
            settle(here, there)
            self.assertEqual(listener.told, [])
            self.assertEqual([told.status for told in user.told], [SIDRStatus.REJECTED])

    def test_lookup(self) -> None:
        """
        The queue pair of a datagram service, or a refusal.
        """
        answers = [LookupReply(SIDRStatus.VALID, b"here", 0x33, 0x44), None]

        def answer(lookup: Any, request: LookupRequest) -> None:
            verifyObject(ILookup, lookup)
            reply = answers[len(listener.told) - 1]
            if reply is None:
                self.assertTrue(lookup.reject(SIDRStatus.REJECTED, b"no", 0.0))
            else:
                self.assertTrue(lookup.answer(reply, 0.0))

        for here, there, user, listener, header in self.cases(PortSpace.UDP, answer):
            for _ in answers:
                here.sendLookup(
                    user.path, LookupRequest(PortSpace.UDP << 16 | PORT, header, 17, 3), user, 0.0
                )
                settle(here, there)
            self.assertEqual({type(asked) for asked in listener.told}, {LookupRequest})
            self.assertEqual(listener.told[0].privateData[:36], header)
            first, second = user.told
            self.assertEqual(
                (type(first), first.status, first.queuePairNumber, first.qKey, first.privateData[:5]),
                (LookupReply, SIDRStatus.VALID, 0x33, 0x44, b"here\0"),
            )
            self.assertEqual((second.status, second.privateData[:3]), (SIDRStatus.REJECTED, b"no\0"))

    def test_firstPartition(self) -> None:
        """
        A lookup has the first P_Key of its port, whatever others there are.
        """
        answers = LookupReply(SIDRStatus.VALID, b"", 0x33, 0x44)
        for here, there, user, listener, header in self.cases(
            PortSpace.UDP, lambda lookup, request: lookup.answer(answers, 0.0)
        ):
            here.changePort(PortChange(partitions=(DEFAULT_PKEY, FULL)))
            there.changePort(PortChange(partitions=(DEFAULT_PKEY,)))
            here.sendLookup(user.path, LookupRequest(PortSpace.UDP << 16 | PORT, header, 17, 3), user, 0.0)
            settle(here, there)
            self.assertEqual(len(listener.told), 1)
            self.assertEqual([told.status for told in user.told], [SIDRStatus.VALID])

    def test_firstPartitionOfRequest(self) -> None:
        """
        So has a request for a number that no queue pair has.
        """
        for here, there, user, listener, header in self.cases(
            PortSpace.TCP, lambda connection, request: connection.ignore(0.0)
        ):
            here.changePort(PortChange(partitions=(DEFAULT_PKEY, FULL)))
            there.changePort(PortChange(partitions=(DEFAULT_PKEY,)))
            request = ConnectRequest(PortSpace.TCP << 16 | PORT, header, 0x11, pathMTU=3)
            here.sendRequest(user.path, request, user, 0.0)
            settle(here, there)
            self.assertEqual([asked.unsupported for asked in listener.told], [None])

    def test_pathMTU(self) -> None:
        """
        A request for packets as large as the path takes, though the device's own are smaller, is supported.
        """

        def ignore(connection: Any, request: ConnectRequest) -> None:
            connection.ignore(0.0)

        for here, there, user, listener, header in self.cases(PortSpace.TCP, ignore):
            if here.traits.packets:
                self.patch(there.fabric.link, "pathMTUTo", lambda address: 2048)
                for code in (3, 4, 5):
                    path = PathRecord(localGID=gidOf(here.address), flowLabel=code)
                    request = ConnectRequest(
                        PortSpace.TCP << 16 | PORT, header, 0x11 + code, pathMTU=code, primaryPath=path
                    )
                    here.sendRequest(user.path, request, user, 0.0)
                    settle(here, there)
                told = [asked.unsupported for asked in listener.told]
                self.assertEqual(told, [None, None, RejectReason.INVALID_MTU])

    def test_routeMTU(self) -> None:
        """
        A request for larger packets than the route to the peer was set to is not supported, though the
        device's own interface has them; what is only learned of the path makes no difference.
        """

        def ignore(connection: Any, request: ConnectRequest) -> None:
            connection.ignore(0.0)

        for here, there, user, listener, header in self.cases(PortSpace.TCP, ignore):
            if here.traits.packets:
                self.patch(there.fabric, "pathMTU", 4096)
                link = there.fabric.link
                for most in 2048, 4096:
                    self.clock.advance(PACKET_ROUTE_SECONDS)
                    route, learned = mock.Mock(return_value=most), mock.Mock(return_value=256)
                    self.patch(link, "routeMTUTo", route)
                    self.patch(link, "pathMTUTo", learned)
                    for number, code in enumerate((3, 4, 5, 5), 1):
                        path = PathRecord(localGID=gidOf(here.address), flowLabel=number)
                        request = ConnectRequest(
                            PortSpace.TCP << 16 | PORT, header, most | number, pathMTU=code, primaryPath=path
                        )
                        here.sendRequest(user.path, request, user, 0.0)
                        settle(here, there)
                    # Not for packets that every link carries, and once for all others of a second.
                    self.assertEqual(route.mock_calls, [mock.call(here.address)])
                    # What is learned is asked for only if that is too little, and once as well.
                    asked = [mock.call(here.address)] if most == 2048 else []
                    self.assertEqual(learned.mock_calls, asked)
                told = [each.unsupported for each in listener.told]
                self.assertEqual(told, [None, None, *[RejectReason.INVALID_MTU] * 2, *[None] * 4])

    def test_tableFull(self) -> None:
        """
        A request that finds no room leaves its queue pair as it was: the next gets the number that both ends
        save an integer by.
        """
        for here, there, user, _, header in self.cases(PortSpace.TCP, lambda *_: None):
            queuePair = here.createStreamQueuePair(self)
            request = ConnectRequest(PortSpace.TCP << 16 | PORT, header, queuePair.number, pathMTU=3)
            with mock.patch.object(limits, "CM_CONNECTIONS", 0):
                self.assertRaises(ResourceLimitError, here.sendRequest, user.path, request, user, 0.0)
            self.assertEqual(queuePair.remote, 0)
            connection = here.sendRequest(user.path, request, user, 0.0)
            if here.lossless:
                self.assertEqual(connection.localID, queuePair.number)
            settle(here, there)

    def test_disconnected(self) -> None:
        """
        The peer hears of an end, with its data; who ended hears of the answer if it wants to, or where
        messages may be lost.
        """

        def accept(connection: Any, request: ConnectRequest) -> None:
            connection.user = server
            connection.accept(ConnectReply(b"", 0x22, 0, 0), 0.0)

        for here, there, user, _, header in self.cases(PortSpace.TCP, accept):
            for isAwaited in (True, False):
                server = User()
                user.told.clear()
                number = 0x11 + isAwaited
                request = ConnectRequest(PortSpace.TCP << 16 | PORT, header, number, pathMTU=3)
                connection = here.sendRequest(user.path, request, user, 0.0)
                settle(here, there)
                hears = isAwaited or not here.cm.lossless
                self.assertIs(here.disconnect(connection, b"bye", isAwaited), hears)
                self.assertEqual(connection.user is user, hears)
                settle(here, there)
                self.assertEqual((server.told, len(user.told)), (["established", b"bye"], 1 + hears))

    def test_finished(self) -> None:
        """
        Where nothing is lost a connection whose users know of the end has ended at once, and tells nobody.
        """

        def accept(connection: Any, request: ConnectRequest) -> None:
            connection.user = server
            connection.accept(ConnectReply(b"", 0x22, 0, 0), 0.0)

        for here, there, user, _, header in self.cases(PortSpace.TCP, accept):
            server = User()
            request = ConnectRequest(PortSpace.TCP << 16 | PORT, header, 0x11, pathMTU=3)
            connection = here.sendRequest(user.path, request, user, 0.0)
            settle(here, there)
            self.assertIs(here.finish(SimpleNamespace(connection=connection)), here.cm.lossless)
            self.assertEqual(connection.user is None, here.cm.lossless)
            settle(here, there)
            self.assertEqual((user.told[1:], server.told), ([], ["established"]))
