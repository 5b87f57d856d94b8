"""
Parameters of connections over packets, from REQ and REP.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from tests.contracts.path import Consumer
from tests.hca.fabric.roce.test_devices import HERE, THERE, PacketTestCase
from tests.hca.memorylink import MemoryLink, deviceOn
from tests.hca.wire.test_public import VECTORS, captured, split
from twisted_ib import limits
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.base.timers import timeoutSeconds
from twisted_ib.hca.cm.machine import replyMessage, requestMessage
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.roce import connparams, packet
from twisted_ib.hca.fabric.roce.connparams import connectionParameters
from twisted_ib.hca.transport.parameters import ConnectionParameters
from twisted_ib.hca.wire import decodePacket
from twisted_ib.hca.wire.cm.messages import REP, REQ, byAttribute


class AgreementTests(PacketTestCase):
    """
    One side of a connection, active or passive.
    """

    def test_active(self) -> None:
        """
        A REQ has the parameters of packets; with the REP the connection's are known.
        """
        device = self.device(HERE)
        queuePair = device.createQueuePair(Consumer())
        path = device.fabric.pathTo(THERE)
        request = ConnectRequest(localQPN=queuePair.number, retryCount=5)
        path.prepareRequest(request)
        way = request.primaryPath
        self.assertEqual((way.localGID, way.remoteGID, way.hopLimit), (gidOf(HERE), gidOf(THERE), 64))
        self.assertEqual((request.pathMTU, way.localACKTimeout), (3, connparams.PACKET_ACK_TIMEOUT_CODE))
        self.clock.advance(0.25)
        reply = ConnectReply(startingPSN=99, rnrRetryCount=6, responderResources=3)
        self.assertEqual(
            connectionParameters(device.fabric, queuePair, reply),
            ConnectionParameters(
                mtu=1024,
                firstPSN=99,
                expectedPSN=request.startingPSN,
                retries=5,
                rnrRetries=6,
                timeout=timeoutSeconds(limits.PACKET_STREAM_TIMEOUT_CODE),
                minRNRTimer=0,
                reads=3,
                peerReads=limits.READS,
                roundTrip=0.25,
            ),
        )

    def roundTrip(self, wait: float, again: float | None = None) -> float | None:
        """
        @param wait: seconds until the answer.
        @param again: when the REQ was sent again.
        @return: the round trip sample.
        """
        device: Any = self.device(HERE)
        queuePair = device.createQueuePair(Consumer())
        path = device.fabric.pathTo(THERE)
        request = ConnectRequest(localQPN=queuePair.number)
        path.prepareRequest(request)
        path.sendManagement(REQ.attribute, requestMessage(request).pack())
        if again is not None:
            self.clock.advance(again)
            path.sendManagement(REQ.attribute, requestMessage(request).pack())
        self.clock.advance(wait)
        found = connectionParameters(device.fabric, queuePair, ConnectReply()).roundTrip
        device.close()
        return found

    def test_roundTrip(self) -> None:
        """
        The time to an answer is a round trip, unless it is not known what was answered.
        """
        self.assertAlmostEqual(self.roundTrip(1.5) or 0.0, 1.5)
        self.assertIsNone(self.roundTrip(connparams.PACKET_ROUND_TRIP_SECONDS + 0.1))
        self.assertIsNone(self.roundTrip(0.2, 1.0))

    def test_passive(self) -> None:
        """
        A REP repeats the REQ's path parameters; the round trip is known if the queue pair is made when the
        answer comes.
        """
        device = self.device(THERE)
        path = device.fabric.pathTo(HERE)
        request = ConnectRequest(
            startingPSN=7, pathMTU=2, retryCount=4, rnrRetryCount=3, responderResources=2
        )
        for isThere in (True, False):
            queuePair = device.createQueuePair(Consumer())
            reply = ConnectReply(localQPN=queuePair.number if isThere else 0xABCDEF)
            proposal = path.prepareReply(reply, request)
            queuePair.proposal = proposal
            self.clock.advance(0.5)
            terms = connectionParameters(device.fabric, queuePair, request)
            self.assertEqual((terms.mtu, terms.firstPSN, terms.expectedPSN), (512, 7, reply.startingPSN))
            self.assertEqual((terms.retries, terms.rnrRetries, terms.reads), (4, 3, 2))
            self.assertEqual(terms.roundTrip, None if isThere else 0.5)

    def test_said(self) -> None:
        """
        A REQ or a REP says a source port of this package, or none: one that is the number of the sender's
        queue pair may be no port.
        """
        device = self.device(THERE)
        path = device.fabric.pathTo(HERE)
        for said, found in ((4791, 4791), (0xC000, 0xC000), (0xFFFF, 0xFFFF), (0xC123, 0), (0x1FFFF, 0)):
            reply = ConnectReply(localQPN=7)
            # With a long path MTU, which this link does not have.
            request = ConnectRequest(localQPN=0xC123, localEECN=said, localQKey=7)
            proposal = path.prepareReply(reply, request)
            self.assertEqual((proposal.peerPort, reply.localEECN != 0), (found, found != 0))
            self.assertEqual((proposal.agreed, reply.localQKey), (None, 0))
            answered = proposal.answered(ConnectReply(localQPN=0xC123, localEECN=said))
            self.assertEqual(answered.peerPort, found)

    def longest(
        self,
        here: int,
        there: int,
        changes: dict[str, int] | None = None,
        lies: dict[str, int] | None = None,
        kind: QPType = QPType.RC,
    ) -> tuple[list[int], list[int]]:
        """
        @param here: the path MTU of the active end's link, and C{there} of the passive end's.
        @param changes: to the REQ, before it is read; C{lies} to the REP.
        @param kind: of the queue pairs.
        @return: the path MTU of both connections: of streams, and of queue pairs with attributes.
        """
        devices = [
            deviceOn(self.wire, address, self.clock.seconds, mtu)
            for address, mtu in ((HERE, here), (THERE, there))
        ]
        one, two = ends = [device.createQueuePair(Consumer(), kind) for device in devices]
        request, reply = ConnectRequest(localQPN=one.number), ConnectReply(localQPN=two.number)
        ways = [device.fabric.pathTo(to) for device, to in zip(devices, (THERE, HERE), strict=True)]
        ways[0].prepareRequest(request)
        self.assertEqual(request.pathMTU, MTU_CODES[min(here, 4096)])
        for name, value in (changes or {}).items():
            setattr(request, name, value)
        ways[1].prepareReply(reply, request)
        for name, value in (lies or {}).items():
            setattr(reply, name, value)
        ways[0].readReply(reply, one.number)
        streams = [
            connectionParameters(device.fabric, end, message).mtu
            for device, end, message in zip(devices, ends, (reply, request), strict=True)
        ]
        for end in ends:
            end.attributes = {"path_mtu": min(request.pathMTU, 5)}
        others = [
            connectionParameters(device.fabric, end, None).mtu
            for device, end in zip(devices, ends, strict=True)
        ]
        for device in devices:
            device.close()
        return streams, others

    def test_long(self) -> None:
        """
        Two ends that say their source ports have the longest packets that both links carry; the REQ has no
        path MTU but IBTA's.
        """
        device = deviceOn(self.wire, HERE, self.clock.seconds, 61440)
        self.assertEqual((device.fabric.pathMTU, device.fabric.pathMTUTo(THERE)), (4096, 4096))
        device.close()
        for here, there, agreed in (
            *((61440, 61440, 61440), (61440, 8192, 8192), (8192, 61440, 8192), (8192, 8192, 8192)),
            *((4096, 61440, 4096), (61440, 4096, 4096), (1024, 8192, 1024)),
        ):
            self.assertEqual(self.longest(here, there), ([agreed] * 2,) * 2, (here, there))

    def test_longRoute(self) -> None:
        """
        The passive end has no longer packets than the route to the peer was set to.
        """
        for route, agreed in (8192, 8192), (4096, 4096), (1024, 4096):
            with mock.patch.object(MemoryLink, "routeMTUTo", lambda link, to, route=route: route):
                self.assertEqual(self.longest(61440, 61440), ([agreed] * 2,) * 2)

    def test_routes(self) -> None:
        """
        The link is asked for the route to an address once a second, for so many addresses.
        """
        self.patch(packet, "PACKET_ROUTES", 2)
        fabric = self.device(HERE).fabric
        route = mock.Mock(side_effect=lambda address: 61440)
        self.patch(fabric.link, "routeMTUTo", route)

        def asked(*addresses: str) -> list[str]:
            route.reset_mock()
            for address in addresses:
                self.assertEqual((fabric.longRouteMTUTo(address), fabric.routeMTUTo(address)), (61440, 4096))
            return [each.args[0] for each in route.mock_calls]

        self.assertEqual(asked("10.0.0.7", "10.0.0.8", "10.0.0.7"), ["10.0.0.7", "10.0.0.8"])
        # Beyond the bound each time.
        self.assertEqual(asked("10.0.0.9", "10.0.0.8"), ["10.0.0.9"] * 2)
        self.clock.advance(packet.PACKET_ROUTE_SECONDS)
        self.assertEqual(asked("10.0.0.8", "10.0.0.9"), ["10.0.0.8", "10.0.0.9"])
        self.clock.advance(packet.PACKET_ROUTE_SECONDS)
        self.assertEqual(asked(THERE), [THERE])
        # A REP with a long path MTU.
        reply = ConnectReply(localQPN=8)
        request = ConnectRequest(localQPN=7, localEECN=0xC000, localQKey=7, pathMTU=5)
        fabric.pathTo(THERE).prepareReply(reply, request)
        self.assertEqual((reply.localQKey, route.call_count), (7, 1))

    def test_longLies(self) -> None:
        """
        Nothing but a code of a long path MTU beside a port is one, and none is above our own; UC, which has
        no window, has none.
        """
        usual = ([4096] * 2,) * 2
        self.assertEqual(self.longest(61440, 61440, {"localEECN": 0}), usual)
        self.assertEqual(self.longest(61440, 61440, kind=QPType.UC), usual)
        for code in (0, 1, 5, 8, 0x107, 0x07000000, 0x80010000, 0xFFFFFFFF):
            self.assertEqual(self.longest(61440, 61440, {"localQKey": code}), usual, code)
            for found in self.longest(61440, 61440, lies={"localQKey": code}):
                self.assertEqual(found[0], 4096, code)
        for found in self.longest(61440, 61440, lies={"localEECN": 0}):
            self.assertEqual(found[0], 4096)
        self.assertEqual(self.longest(8192, 61440, {"localQKey": 7})[0], [8192, 61440])
        self.assertEqual(self.longest(8192, 8192, lies={"localQKey": 7}), ([8192] * 2,) * 2)
        for found in self.longest(4096, 61440, lies={"localQKey": 7}):
            self.assertEqual(found, [4096] * 2)
        # Beside a path MTU that is not IBTA's largest.
        self.assertNotIn(61440, self.longest(61440, 61440, {"pathMTU": 4})[0])
        # A code of the path MTU that IBTA has not.
        self.assertEqual(self.longest(4096, 4096, {"pathMTU": 7})[0], [4096, 4096])

    def test_changed(self) -> None:
        """
        A program that sets another path MTU than the connection manager has told it has that.
        """
        device = deviceOn(self.wire, HERE, self.clock.seconds, 61440)
        queuePair = device.createQueuePair(Consumer())
        request = ConnectRequest(localQPN=queuePair.number, localEECN=0xC000, localQKey=7, pathMTU=5)
        path = device.fabric.pathTo(THERE)
        path.prepareReply(ConnectReply(localQPN=queuePair.number), request)
        found = []
        for code in (5, 3):
            queuePair.attributes = {"path_mtu": code}
            found.append(connectionParameters(device.fabric, queuePair, None).mtu)
        self.assertEqual(found, [61440, 1024])
        device.close()

    def test_older(self) -> None:
        """
        An older end of this package knows the source port by its place in a REQ and a REP, which is the same
        with a long path MTU; it has none, and 0 where that stands, as Linux.
        """
        device = deviceOn(self.wire, HERE, self.clock.seconds, 61440)
        queuePair = device.createQueuePair(Consumer())
        path = device.fabric.pathTo(THERE)
        request = ConnectRequest(localQPN=queuePair.number)
        path.prepareRequest(request)
        port = queuePair.proposal.port
        octets = requestMessage(request).pack()
        self.assertEqual(octets[24:36], bytes.fromhex("00000000 00000007") + octets[32:36])
        self.assertEqual(octets[36:40], bytes([0, *port.to_bytes(2, "big"), 0]))
        older = REQ.parse(octets[:28] + bytes(4) + octets[32:], 0, 232)
        reply = ConnectReply(localQPN=queuePair.number)
        proposal = path.prepareReply(reply, older)
        self.assertEqual((proposal.peerPort, proposal.agreed, reply.localQKey), (port, None, 0))
        reply = ConnectReply(localQPN=0x123456)
        path.prepareReply(reply, REQ.parse(octets, 0, 232))
        octets = replyMessage(reply).pack()
        self.assertEqual(octets[8:20], bytes.fromhex("00000007 123456 00 00") + octets[17:20])
        self.assertGreaterEqual(int.from_bytes(octets[17:19], "big"), 0xC000)
        path.readReply(REP.parse(octets[:8] + bytes(4) + octets[12:], 0, 232), queuePair.number)
        self.assertEqual(queuePair.proposal.peerPort, int.from_bytes(octets[17:19], "big"))
        self.assertIsNone(queuePair.proposal.agreed)
        device.close()

    def test_kernels(self) -> None:
        """
        The kernel has 0 for both in all REQs and REPs.
        """
        found = []
        for path in sorted(VECTORS.glob("rxe-*.pcap")):
            for octets in captured(path):
                body = decodePacket(*split(octets)).payload
                kind = byAttribute.get(int.from_bytes(body[16:18], "big"))
                if len(body) == 256 and body[1] == 7 and kind in (REQ, REP):
                    message: Any = kind.parse(body, 24, 256)
                    found.append((message.localQKey, message.localEECN))
        self.assertGreater(len(found), 20)
        self.assertEqual(set(found), {(0, 0)})

    def test_attributes(self) -> None:
        """
        Attributes of a queue pair are used as they are; a missing one has its default.
        """
        device = self.device(HERE)
        queuePair = device.createQueuePair(Consumer())
        self.assertEqual(connectionParameters(device.fabric, queuePair, None).timeout, None)
        # Programs that leave an ACK timeout of microseconds: our own ACK delay, between the copies, too.
        for code, seconds in ((4, 4.096e-6 * 2**15), (14, 4.096e-6 * 2**15), (16, 4.096e-6 * 2**16)):
            queuePair.attributes = {"timeout": code, "retry_cnt": 7}
            self.assertEqual(connectionParameters(device.fabric, queuePair, None).timeout, seconds)
        queuePair.attributes = {
            "path_mtu": 1,
            "sq_psn": 5,
            "rq_psn": 6,
            "retry_cnt": 1,
            "rnr_retry": 2,
            "timeout": 16,
            "min_rnr_timer": 12,
            "max_rd_atomic": 3,
            "max_dest_rd_atomic": 4,
        }
        self.assertEqual(
            connectionParameters(device.fabric, queuePair, None),
            ConnectionParameters(256, 5, 6, 1, 2, timeoutSeconds(16), 12, 3, 4, None),
        )
