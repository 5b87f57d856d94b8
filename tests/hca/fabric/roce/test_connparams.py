"""
Parameters of connections over packets, from REQ and REP.
"""

from __future__ import annotations

from typing import Any

from tests.contracts.path import Consumer
from tests.hca.fabric.roce.test_devices import HERE, THERE, PacketTestCase
from tests.hca.memorylink import deviceOn
from twisted_ib import limits
from twisted_ib.hca.base.attributes import MTU_CODES
from twisted_ib.hca.base.timers import timeoutSeconds
from twisted_ib.hca.cm.messages import requestMessage
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.roce import connparams
from twisted_ib.hca.fabric.roce.connparams import connectionParameters
from twisted_ib.hca.transport.parameters import ConnectionParameters
from twisted_ib.hca.wire.cm.messages import REQ


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
        cases = [(4791, 4791), (0xC000, 0xC000), (0xFFFF, 0xFFFF), (0xC123, 0), (0x1FFFF, 0), (0x8C000, 0)]
        # With a long path MTU, which this link does not have.
        for said, found in (*cases, (0x6C000, 0xC000), (0x712B7, 4791), (0x71234, 0)):
            reply = ConnectReply(localQPN=7)
            proposal = path.prepareReply(reply, ConnectRequest(localQPN=0xC123, localEECN=said))
            self.assertEqual((proposal.peerPort, reply.localEECN != 0), (found, found != 0))
            self.assertEqual((proposal.longer, reply.localEECN >> 16), (0, 0))
            answered = proposal.answered(ConnectReply(localQPN=0xC123, localEECN=said))
            self.assertEqual(answered.peerPort, found)

    def longest(self, here: int, there: int, isSilent: bool = False) -> tuple[list[int], list[int]]:
        """
        @param here: the path MTU of the active end's link, and C{there} of the passive end's.
        @param isSilent: whether the passive end says no source port.
        @return: the path MTU of both connections: of streams, and of queue pairs with attributes.
        """
        devices = [
            deviceOn(self.wire, address, self.clock.seconds, mtu)
            for address, mtu in ((HERE, here), (THERE, there))
        ]
        one, two = ends = [device.createQueuePair(Consumer()) for device in devices]
        request, reply = ConnectRequest(localQPN=one.number), ConnectReply(localQPN=two.number)
        ways = [device.fabric.pathTo(to) for device, to in zip(devices, (THERE, HERE), strict=True)]
        ways[0].prepareRequest(request)
        self.assertEqual(request.pathMTU, MTU_CODES[min(here, 4096)])
        if isSilent:
            request.localEECN = 0
        ways[1].prepareReply(reply, request)
        ways[0].readReply(reply, one.number)
        streams = [
            connectionParameters(device.fabric, end, message).mtu
            for device, end, message in zip(devices, ends, (reply, request), strict=True)
        ]
        for end in ends:
            end.attributes = {"path_mtu": request.pathMTU}
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
        for here, there, agreed in (
            *((61440, 61440, 61440), (61440, 8192, 8192), (8192, 61440, 8192), (8192, 8192, 8192)),
            *((4096, 61440, 4096), (61440, 4096, 4096), (1024, 8192, 1024)),
        ):
            self.assertEqual(self.longest(here, there), ([agreed] * 2,) * 2, (here, there))
        self.assertEqual(self.longest(61440, 61440, isSilent=True), ([4096] * 2,) * 2)

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
