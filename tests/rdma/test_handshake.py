"""
Tests of the handshake of messages: what a librdmacm program sees of it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.internet.addressing.addresses import addressOf
from twisted_ib.rdma import handshake
from twisted_ib.rdma.port import HalfOpenMessages

LONG, SHORT = limits.RDMA_GATHERED, limits.RDMA_GATHERED - 1


def side(maxMessageSize: int = LONG) -> Any:
    """
    @return: what the handshake asks of a transport.
    """
    queuePair = SimpleNamespace(number=0x1234, gathers=False, proposal=None, device=None)
    work = mock.Mock(**{"requester.onTheWay": [1]})
    return SimpleNamespace(
        queuePair=queuePair, privateData=b"ours", maxMessageSize=maxMessageSize, work=work, onTheWay=()
    )


class HandshakeTests(SynchronousTestCase):
    """
    REQ and REP by their fields.
    """

    def request(self, maxMessageSize: int = LONG) -> ConnectRequest:
        """
        @return: the REQ of an active side.
        """
        here, there = addressOf("10.0.0.1", 40000), addressOf("10.0.0.2", 7471)
        return handshake.request(side(maxMessageSize), here, there)

    def test_request(self) -> None:
        """
        The service is that of RDMA_PS_TCP, the private data begin with annex A11's 36 octets, and nothing but
        the vendor says whether messages go together.
        """
        request = self.request()
        self.assertEqual(request.serviceID, 0x0000000001061D2F)
        self.assertEqual((request.responderResources, request.initiatorDepth), (16, 16))
        self.assertEqual((request.responseTimeout, request.requestRetries), (17, 15))
        self.assertEqual((request.retryCount, request.rnrRetryCount, request.pathMTU), (7, 7, 5))
        self.assertEqual((request.localQPN, request.startingPSN, request.vendorID), (0x1234, 0, 0x024742))
        self.assertEqual((request.endToEndFlowControl, request.sharedReceiveQueue), (False, False))
        header = "00409c40 000000000000000000000000 0a000001 000000000000000000000000 0a000002"
        self.assertEqual(request.privateData, bytes.fromhex(header) + b"ours")
        self.assertEqual(evolve(request, vendorID=0x024743), self.request(SHORT))
        found = handshake.requested(request)
        self.assertEqual(handshake.addresses(found), ("10.0.0.2", "10.0.0.1"))
        self.assertEqual(handshake.sourcePort(found), 40000)

    def test_reply(self) -> None:
        """
        A side serves what the other wants, and wants what it serves, but 16 at most; messages go together if
        both sides say so.
        """
        for most, served in ((3, 3), (16, 16), (17, 16), (255, 16), (0, 0)):
            request = evolve(self.request(), initiatorDepth=most, responderResources=1)
            reply = handshake.reply(side(), request, handshake.requested(request))
            self.assertEqual((reply.responderResources, reply.initiatorDepth), (served, 1))
            request = evolve(request, initiatorDepth=1, responderResources=most)
            reply = handshake.reply(side(), request, handshake.requested(request))
            self.assertEqual((reply.responderResources, reply.initiatorDepth), (1, served))
        self.assertEqual((reply.localQPN, reply.rnrRetryCount, reply.privateData), (0x1234, 7, b"ours"))
        for theirs, ours, said in (
            (0x024742, LONG, 0x024742),
            (0x024742, SHORT, 0x024743),
            (0x024743, LONG, 0x024743),
            (0, LONG, 0),
            (0x1234, SHORT, 0),
        ):
            request = evolve(self.request(), vendorID=theirs)
            self.assertEqual(
                handshake.reply(side(ours), request, handshake.requested(request)),
                ConnectReply(b"ours", 0x1234, 16, 16, 7, vendorID=said),
            )

    def test_halfOpen(self) -> None:
        """
        A REP before there is a transport is that of one, with the port's private data and longest message.
        """
        half: Any = HalfOpenMessages.__new__(HalfOpenMessages)
        half.number = 0x1234
        request = self.request()
        header = handshake.requested(request)
        for longest in LONG, SHORT:
            half.port = SimpleNamespace(privateData=b"ours", maxMessageSize=longest)
            expected = handshake.reply(side(longest), request, header)
            self.assertEqual(handshake.reply(half, request, header), expected)

    def test_joined(self) -> None:
        """
        The queue pair gets what both sides have said; private data of nothing but zeros is kept once.
        """
        connection = mock.Mock()
        for proposal, expected in (
            (None, (0, 5, 14)),
            (SimpleNamespace(expectedPSN=77, mtu=3), (77, 3, limits.PACKET_STREAM_TIMEOUT_CODE)),
        ):
            messages = side()
            messages.queuePair.proposal = proposal
            request = evolve(self.request(), startingPSN=99, initiatorDepth=2, responderResources=3)
            handshake.accepted(messages, connection, request, handshake.requested(request))
            _, destination, number, attributes, _ = messages.work.connect.call_args.args
            self.assertEqual((destination, number), (connection.destination, 0x1234))
            self.assertEqual(
                attributes,
                {
                    "pkey_index": 0,
                    "port_num": 1,
                    # IBV_ACCESS_REMOTE_WRITE, _READ and _ATOMIC.
                    "qp_access_flags": 2 | 4 | 8,
                    "path_mtu": expected[1],
                    "rq_psn": expected[0],
                    "max_dest_rd_atomic": 2,
                    "min_rnr_timer": 14,
                    "sq_psn": 99,
                    "timeout": expected[2],
                    "retry_cnt": 7,
                    "rnr_retry": 7,
                    "max_rd_atomic": 3,
                },
            )
            self.assertEqual((messages.peerPrivateData, messages.connection), (b"ours", connection))
            self.assertIs(connection.user, messages)
        one, two = side(), side()
        for each in one, two:
            handshake.replied(each, connection, ConnectReply(localQPN=1, privateData=bytes(196)))
        self.assertIs(one.peerPrivateData, two.peerPrivateData)
        for each in one, two:
            request = evolve(self.request(), privateData=bytes(92))
            handshake.accepted(each, connection, request, handshake.requested(self.request()))
        self.assertEqual(one.peerPrivateData, bytes(56))
        self.assertIs(one.peerPrivateData, two.peerPrivateData)

    def test_fresh(self) -> None:
        """
        A first message stands for the RTU, but where none is sent: to a side of this package if nothing is
        lost.
        """
        safe, lossy = SimpleNamespace(lossless=True), SimpleNamespace(lossless=False)
        for vendor, device, isFresh in (
            (0x024742, safe, False),
            (0x024743, safe, False),
            (0, safe, True),
            (0x024742, lossy, True),
            (0x024742, None, True),
        ):
            messages = side()
            messages.queuePair.device = device
            messages.work.responder.isFresh = True
            handshake.replied(messages, mock.Mock(), ConnectReply(localQPN=1, vendorID=vendor))
            self.assertIs(messages.work.responder.isFresh, isFresh)

    def test_gathers(self) -> None:
        """
        Messages go together only if the other side says so and ours are long enough.
        """
        for theirs, ours, gathers in (
            (0x024742, LONG, True),
            (0x024743, LONG, False),
            (0x024742, SHORT, False),
        ):
            messages = side(ours)
            handshake.replied(messages, mock.Mock(), ConnectReply(localQPN=1, vendorID=theirs))
            self.assertEqual((messages.queuePair.gathers, list(messages.onTheWay)), (gathers, [1] * gathers))
