"""
Peers of identifiers that write arbitrary messages: REQs, REPs, SIDR messages by hand.  The peer is an HCA of
its own, without verbs.
"""

from __future__ import annotations

import errno
import random
from typing import Any
from unittest import mock

from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs.cm.case import UDP, CMTestCase, Kind, attributes
from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.base.partition import DEFAULT_PKEY
from twisted_ib.hca.cm.states import State
from twisted_ib.hca.connection import PathRecord, RejectReason, SIDRStatus
from twisted_ib.hca.connection.rdmacm import PortSpace, RDMACMHeader, serviceID
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.wire.cm.messages import REP, REQ, SIDR_REP, SIDR_REQ
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import AddrInfo, ConnParam, UDParam, enums

HEADER = RDMACMHeader("127.0.0.1", 1234, "127.0.0.1").pack()


class Peer:
    """
    An HCA whose user writes messages by hand; it calls, and is called.

    @ivar device: the HCA.
    @ivar heard: what the communication manager said: (what, message).
    @ivar called: the connections and lookups that came in.
    """

    def __init__(self) -> None:
        """
        Open it.
        """
        self.device = Device("shm0", anyThread=True)
        self.heard: list[tuple[str, Any]] = []
        self.called: list[tuple[Any, Any]] = []
        self.path: Any = None
        with hub:
            hub.devices[self.device] = 1

    def close(self) -> None:
        """
        Close it.
        """
        hub.close(self.device)

    def pathReady(self, path: Any) -> None:
        """
        The way is found.
        """
        self.path = path

    def connectFailed(self, error: HCAError) -> None:
        """
        There is none.
        """
        raise error

    def replied(self, connection: Any, message: Any) -> None:
        """
        A REP.
        """
        self.heard.append(("REP", message))

    def rejected(self, connection: Any, message: Any) -> None:
        """
        A REJ.
        """
        self.heard.append(("REJ", message.reason))

    def unreachable(self, connection: Any) -> None:
        self.heard.append(("nothing", None))

    def peerDisconnected(self, connection: Any) -> None:
        """
        The end.
        """
        self.heard.append(("end", None))

    def found(self, lookup: Any, message: Any) -> None:
        """
        A SIDR_REP.
        """
        self.heard.append(("SIDR_REP", message.status))

    def connectionRequested(self, connection: Any, request: Any) -> None:
        """
        A REQ.
        """
        connection.user = self
        self.called.append((connection, request))

    lookupRequested = connectionRequested

    def requestWithdrawn(self, connection: Any) -> None:
        """
        No more of it.
        """


class HostileTestCase(CMTestCase):
    """
    A test with such a peer.
    """

    def setUp(self) -> None:
        """
        Open the peer.
        """
        super().setUp()
        self.peer = Peer()
        self.addCleanup(self.peer.close)

    def until(self, isSo: Any) -> None:
        """
        Wait for something.
        """
        self.assertTrue(hub.wait(isSo, HANG_SECONDS))

    def reach(self, listener: Any) -> None:
        """
        Let the peer find the way.
        """
        space, port = listener._id.portSpace, listener.local_addr[1]
        with hub:
            self.peer.device.connect(space, "127.0.0.1", port, self.peer)
        self.until(lambda: self.peer.path is not None)

    def ask(self, listener: Any, **fields: Any) -> Any:
        """
        Send a REQ of one's own.
        """
        fields.setdefault("pathMTU", 5)
        fields.setdefault("privateData", HEADER)
        service = serviceID(listener._id.portSpace, listener.local_addr[1])
        request = REQ(
            serviceID=service, responseTimeout=20, localCMResponseTimeout=20, requestRetries=3, **fields
        )
        with hub:
            now = self.peer.device.clock()
            return self.peer.device.cm.connect(self.peer.path, request, self.peer, now)

    def lookUp(self, listener: Any, data: bytes) -> Any:
        """
        Send a SIDR_REQ of one's own.
        """
        service = serviceID(listener._id.portSpace, listener.local_addr[1])
        request = SIDR_REQ(serviceID=service, privateData=data)
        with hub:
            device = self.peer.device
            return device.cm.lookups.ask(self.peer.path, request, self.peer, 3, 20, device.clock())

    def serve(self, space: int) -> int:
        """
        Let the peer listen.

        @return: the port.
        """
        with hub:
            return self.peer.device.listen(space, "127.0.0.1", 0, self.peer).port


class CallerTests(HostileTestCase):
    """
    The active side writes arbitrary messages.
    """

    def test_unfit(self) -> None:
        """
        REQs for unsupported parameters get the reason, and the program gets no event.
        """
        listener = self.listening()
        self.reach(listener)
        good = bytearray(HEADER)
        foreign = RDMACMHeader("192.0.2.1", 1, "127.0.0.1").pack()
        cases: list[tuple[dict[str, Any], int]] = [
            ({"transportServiceType": kind}, RejectReason.INVALID_TRANSPORT_TYPE) for kind in (1, 2, 3)
        ]
        cases += [({"pathMTU": code}, RejectReason.INVALID_MTU) for code in (0, *range(6, 16))]
        cases += [({"partitionKey": key}, RejectReason.PRIMARY_GID) for key in (0, 0x8000, 0xFFFE)]
        cases += [
            ({"privateData": foreign}, RejectReason.CONSUMER_DEFINED),
            ({"privateData": b"\1" + bytes(good[1:])}, RejectReason.CONSUMER_DEFINED),
            ({"privateData": b""}, RejectReason.INVALID_SERVICE_ID),
            ({"privateData": HEADER[:1] + b"\x50" + HEADER[2:]}, RejectReason.INVALID_SERVICE_ID),
            ({"privateData": RDMACMHeader("::1", 1, "::1").pack()}, RejectReason.INVALID_SERVICE_ID),
        ]
        for number, (fields, reason) in enumerate(cases):
            self.ask(listener, localQPN=1000 + number, **fields)
            self.until(lambda: bool(self.peer.heard))
            self.assertEqual(self.peer.heard, [("REJ", reason)], fields)
            self.peer.heard.clear()
        self.quiet(self.far)
        self.assertEqual(len(listener.device.cm), 0)
        self.assertEqual(listener._id.binding._users, 1)

    def test_extremes(self) -> None:
        """
        All the numbers that a REQ can hold are bounded here.
        """
        listener = self.listening()
        self.reach(listener)
        path = PathRecord(flowLabel=0xFFFFF, packetRate=63, hopLimit=255, localACKTimeout=31)
        self.ask(
            listener,
            localQPN=0xFFFFFF,
            responderResources=255,
            initiatorDepth=255,
            startingPSN=0xFFFFFF,
            retryCount=7,
            rnrRetryCount=7,
            primaryPath=path,
            endToEndFlowControl=True,
            sharedReceiveQueue=True,
        )
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        heard = event.conn_param
        assert heard is not None
        self.assertEqual((heard.resources, heard.depth), (limits.READS, limits.READS))
        self.assertEqual((heard.flow_control, heard.srq, heard.qpn), (1, 1, 0xFFFFFF))
        passive = self.made(event, listen_id=listener)
        event.ack_cm_event()
        passive.create_qp(attributes())
        passive.accept()
        self.until(lambda: bool(self.peer.heard))
        what, reply = self.peer.heard[0]
        self.assertEqual((what, reply.responderResources, reply.initiatorDepth), ("REP", 128, 128))
        attr, _ = passive.query_qp(0)
        self.assertEqual((attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.timeout), (128, 128, 31))

    def test_neverReady(self) -> None:
        """
        The active side never sends the RTU, or dies before it.
        """
        listener = self.listening()
        self.reach(listener)
        self.ask(listener, localQPN=5)
        passive = self.called(listener)
        passive.accept()
        self.until(lambda: bool(self.peer.heard))
        device = listener.device
        with hub:
            device.cm.tick(device.clock() + 2 * limits.CM_ANSWER_SECONDS)
            device.services.dispatch()
        self.expect(self.far, Kind.RDMA_CM_EVENT_UNREACHABLE, -errno.ETIMEDOUT)
        self.assertEqual(passive.query_qp(0)[0].qp_state, enums.IBV_QPS_ERR)

    def test_thinking(self) -> None:
        """
        A REQ is not repeated while the program decides: nothing is lost here.
        """
        listener = self.listening()
        self.reach(listener)
        connection = self.ask(listener, localQPN=2)
        self.until(lambda: bool(len(self.far._reports)))
        device = self.peer.device
        with hub:
            device.cm.tick(device.clock() + 10.0)
        self.assertEqual((connection.state, device.cm.counters["retransmitted"]), (State.REQ_SENT, 0))
        self.called(listener).reject()
        self.until(lambda: bool(self.peer.heard))
        self.assertEqual(self.peer.heard, [("REJ", RejectReason.CONSUMER_DEFINED)])
        self.quiet(self.far)

    def test_dies(self) -> None:
        """
        The peer is gone: before it is heard of, before it is answered, before it is ready, and
        with the connection open.
        """
        listener = self.listening()
        self.reach(listener)
        connections = [self.ask(listener, localQPN=number) for number in range(2, 5)]
        made = [self.called(listener) for _ in range(3)]
        made[1].accept()
        made[2].accept()
        self.until(lambda: len(self.peer.heard) == 2)
        with hub:
            connections[2].ready(self.peer.device.clock())
        self.expect(self.far, Kind.RDMA_CM_EVENT_ESTABLISHED)
        self.ask(listener, localQPN=9)
        self.until(lambda: bool(len(self.far._reports)))
        self.peer.close()
        last = self.called(listener, withQP=False)
        kinds = sorted(self.next() for _ in range(4))
        lost = "RDMA_CM_EVENT_UNREACHABLE -110"
        self.assertEqual(kinds, sorted(["RDMA_CM_EVENT_DISCONNECTED 0"] * 2 + [lost] * 2))
        for passive in (made[0], last):
            self.refused(errno.ECONNRESET, passive.accept, ConnParam(qp_num=1))
        for passive in made:
            passive.disconnect()
        for _ in range(2):
            self.expect(self.far, Kind.RDMA_CM_EVENT_TIMEWAIT_EXIT)
        self.quiet(self.far)

    def next(self) -> str:
        """
        The next event.
        """
        self.until(lambda: bool(len(self.far._reports)))
        with self.far.get_cm_event() as event:
            return f"{event.event_str()} {event.status}"

    def test_flood(self) -> None:
        """
        More requests than the backlog leave no more than that.
        """
        listener = self.listening(backlog=8)
        self.reach(listener)
        for number in range(100):
            self.ask(listener, localQPN=number + 2)
        self.quiet()
        self.assertEqual(len(self.far._reports), 8)
        self.assertEqual(listener.device.counters["backlog_full"], 92)
        self.assertEqual(listener._id.binding._users, 9)
        listener.close()
        self.assertEqual(len(self.far._reports), 0)

    def test_noise(self) -> None:
        """
        REQs of random octets raise nothing, and all can be refused.
        """
        seed = 7
        source = random.Random(seed)
        listener = self.listening(backlog=1000)
        self.reach(listener)
        for number in range(200):
            request = REQ.parse(source.randbytes(232), 0, 232)
            request.serviceID = serviceID(PortSpace.TCP, listener.local_addr[1])
            request.localQPN = number + 2
            if source.random() < 0.8:
                request.privateData = HEADER + source.randbytes(56)
            if source.random() < 0.5:
                request.transportServiceType, request.pathMTU = 0, 1 + source.randrange(5)
                request.partitionKey = DEFAULT_PKEY
            with hub:
                now = self.peer.device.clock()
                self.peer.device.cm.connect(self.peer.path, request, self.peer, now)
        self.quiet()
        seen = 0
        while len(self.far._reports):
            passive = self.called(listener)
            if source.random() < 0.5:
                passive.accept()
            passive.close()
            seen += 1
        self.assertGreater(seen, 20, f"seed {seed}")
        self.assertEqual(listener._id.requestsWaiting, 0)

    def test_lookups(self) -> None:
        """
        SIDR_REQs that are not what they should be.
        """
        listener = self.listening(space=UDP)
        self.reach(listener)
        foreign = RDMACMHeader("192.0.2.1", 1, "127.0.0.1").pack()
        for data, status in (
            (foreign, SIDRStatus.REJECTED),
            (b"\1" + HEADER[1:], SIDRStatus.REJECTED),
            (b"", SIDRStatus.SERVICE_ID_UNSUPPORTED),
            (HEADER[:1] + b"\x50" + HEADER[2:], SIDRStatus.SERVICE_ID_UNSUPPORTED),
        ):
            self.lookUp(listener, data)
            self.until(lambda: bool(self.peer.heard))
            self.assertEqual(self.peer.heard, [("SIDR_REP", status)])
            self.peer.heard.clear()
        self.quiet(self.far)

    def test_wrongKind(self) -> None:
        """
        A SIDR_REQ for a port of connections, whose service id is not of datagrams.
        """
        listener = self.listening()
        self.reach(listener)
        self.lookUp(listener, HEADER)
        self.until(lambda: bool(self.peer.heard))
        self.assertEqual(self.peer.heard, [("SIDR_REP", SIDRStatus.SERVICE_ID_UNSUPPORTED)])
        self.quiet(self.far)

    def test_lookupDies(self) -> None:
        """
        The active side is gone before the answer.
        """
        listener = self.listening(space=UDP)
        self.reach(listener)
        self.lookUp(listener, HEADER)
        self.until(lambda: bool(len(self.far._reports)))
        self.peer.close()
        self.quiet()
        event = self.event(self.far, Kind.RDMA_CM_EVENT_CONNECT_REQUEST)
        passive = self.made(event, listen_id=listener)
        self.refused(errno.ECONNRESET, passive.accept, ConnParam(qp_num=1))


class CalledTests(HostileTestCase):
    """
    The passive side writes arbitrary messages.
    """

    def asked(self, parameters: ConnParam | None = None, space: int = PortSpace.TCP) -> tuple[Any, Any]:
        """
        An identifier that has called, and what the peer has of it.
        """
        active = self.routed(self.serve(space), space=space)
        active.create_qp(attributes(space))
        active.connect(parameters)
        self.until(lambda: bool(self.peer.called))
        return active, self.peer.called.pop()[0]

    def test_request(self) -> None:
        """
        A REQ has the same fields as Linux's.
        """
        active = self.routed(self.serve(PortSpace.TCP))
        active.create_qp(attributes())
        active.connect(ConnParam(1, 1, 0, 7, 7))
        self.until(lambda: bool(self.peer.called))
        request = self.peer.called[0][1]
        here, there = active.local_addr, active.peer_addr
        self.assertEqual(request.serviceID, 0x01060000 | there[1])
        self.assertEqual(RDMACMHeader.parse(request.privateData), RDMACMHeader(here[0], here[1], there[0]))
        self.assertEqual(request.privateData[36:], bytes(56))
        self.assertEqual((request.responseTimeout, request.requestRetries), (20, 15))
        fields = ("responderResources", "initiatorDepth", "retryCount", "rnrRetryCount", "pathMTU")
        self.assertEqual([getattr(request, name) for name in fields], [1, 1, 7, 7, 5])
        path = request.primaryPath
        mapped = bytes.fromhex("00000000000000000000ffff7f000001")
        self.assertEqual((path.localGID, path.remoteGID), (mapped, mapped))
        self.assertEqual((path.localLID, path.remoteLID, path.hopLimit), (0xFFFF, 0xFFFF, 64))
        self.assertEqual((path.localACKTimeout, path.subnetLocal), (17, False))
        self.assertEqual(path.flowLabel, (here[1] * 31 + there[1]) & 0xFFFFF)

    def test_extremes(self) -> None:
        """
        A REP that promises more than was asked for gets no more.
        """
        active, connection = self.asked(ConnParam(2, 3, retry=1))
        with hub:
            reply = REP(
                localQPN=0xFFFFFF,
                startingPSN=0xFFFFFF,
                responderResources=255,
                initiatorDepth=255,
                targetACKDelay=31,
                rnrRetryCount=7,
            )
            connection.accept(reply, self.peer.device.clock())
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        attr, _ = active.query_qp(0)
        self.assertEqual((attr.max_rd_atomic, attr.max_dest_rd_atomic), (3, 2))
        self.assertEqual((attr.retry_cnt, attr.rnr_retry, attr.timeout), (1, 7, 31))

    def test_reasons(self) -> None:
        """
        A REJ may have any reason.
        """
        for reason in (0, 1, 10, 24, 28, 999, 0xFFFF):
            active, connection = self.asked()
            with hub:
                connection.reject(reason, b"why", self.peer.device.clock())
            event = self.event(self.near, Kind.RDMA_CM_EVENT_REJECTED, reason)
            self.assertEqual(event.private_data[:4], b"why\0")
            event.ack_cm_event()
            active.close()

    def test_reasonOfNothing(self) -> None:
        """
        Reason 0 is no error number, but it is a refusal all the same.
        """
        port = self.serve(PortSpace.TCP)
        active = self.made(AddrInfo(dst=self.host, dst_service=str(port)), attributes())

        def refuse(connection: Any, request: Any) -> None:
            connection.reject(0, b"", self.peer.device.clock())

        with mock.patch.object(self.peer, "connectionRequested", refuse):
            self.refused(errno.ECONNREFUSED, active.connect)

    def test_queuePairGone(self) -> None:
        """
        The program has spoilt its queue pair before the answer comes.
        """
        active, connection = self.asked()
        active.qp.close()
        with hub:
            connection.accept(REP(localQPN=5), self.peer.device.clock())
        self.expect(self.near, Kind.RDMA_CM_EVENT_CONNECT_ERROR, -errno.EIO)
        self.until(lambda: bool(self.peer.heard))
        self.assertEqual(self.peer.heard, [("REJ", RejectReason.NO_RESOURCES)])

    def test_dies(self) -> None:
        """
        The peer is gone before it answers, or after.
        """
        active, _ = self.asked()
        self.peer.close()
        self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, -errno.ETIMEDOUT)
        self.assertEqual(active.query_qp(0)[0].qp_state, enums.IBV_QPS_ERR)
        active.disconnect()
        self.quiet(self.near)

    def test_diesAtTheEnd(self) -> None:
        """
        The peer is gone when it is asked to end the connection.
        """
        active, connection = self.asked()
        with hub:
            connection.accept(REP(localQPN=5), self.peer.device.clock())
        self.expect(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED)
        with hub:
            self.peer.close()
            active.disconnect()
        self.expect(self.near, Kind.RDMA_CM_EVENT_DISCONNECTED)
        self.expect(self.near, Kind.RDMA_CM_EVENT_TIMEWAIT_EXIT)
        self.quiet(self.near)

    def test_silent(self) -> None:
        """
        The peer says nothing, for minutes.
        """
        active, _ = self.asked()
        device = active.device
        with hub:
            device.cm.tick(device.clock() + 2 * limits.CM_ANSWER_SECONDS)
            device.services.dispatch()
        self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, -errno.ETIMEDOUT)

    def test_answers(self) -> None:
        """
        A SIDR_REP may have any status; NO_QP has the request repeated, and no other.
        """
        for status in (0, 1, 2, 4, 5, 6, 255):
            active, lookup = self.asked(space=PortSpace.UDP)
            with hub:
                reply = SIDR_REP(status=status, queuePairNumber=0xFFFFFF, qKey=0xFFFFFFFF)
                lookup.answer(reply, self.peer.device.clock())
            if status:
                self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, status)
            else:
                where = UDParam(self.event(self.near, Kind.RDMA_CM_EVENT_ESTABLISHED))
                self.assertEqual((where.qp_num, where.qkey), (0xFFFFFF, 0xFFFFFFFF))
                guid = f"{self.peer.device.guid:016x}"
                self.assertEqual(where.ah_attr.dgid.replace(":", "")[16:], guid)
            active.close()

    def test_connectionsOnly(self) -> None:
        """
        A listener at the service id of a datagram service accepts connections only.
        """
        with hub:
            port = self.peer.device.listen(PortSpace.UDP, self.host, 0, object()).port
        active = self.routed(port, space=UDP)
        active.connect()
        status = SIDRStatus.SERVICE_ID_UNSUPPORTED
        self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, status)

    def test_lookupDies(self) -> None:
        """
        The passive side is gone.
        """
        self.asked(space=PortSpace.UDP)
        self.peer.close()
        self.expect(self.near, Kind.RDMA_CM_EVENT_UNREACHABLE, -errno.ETIMEDOUT)
