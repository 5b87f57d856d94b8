"""
Tests of L{twisted_ib.verbs.pyverbs.cm.negotiation}, of L{twisted_ib.verbs.core.attendant}, and of their
bounds.
"""

from __future__ import annotations

import errno
import threading

from tests.support.waiting import HANG_SECONDS, waitUntil
from tests.verbs.pyverbs.pair import VerbsTestCase
from twisted_ib import limits
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.verbs.core.attendant import ProgressThreadUsers
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import ConnParam, PyverbsRDMAError
from twisted_ib.verbs.pyverbs.cm.negotiation import (
    NegotiatedParameters,
    ackTimeout,
    flowLabel,
    localParameters,
    makeReply,
    paramOf,
    remoteParameters,
)


class TermsTests(VerbsTestCase):
    """
    The parameters that each side sends, and receives.
    """

    def test_ackTimeout(self) -> None:
        """
        As Linux computes it: 0x11 with the lifetime of 6.12, 0x13 with 6.1's.
        """
        self.assertEqual([ackTimeout(lifetime, 15) for lifetime in (16, 18)], [0x11, 0x13])
        # Of nearly equal times the sum is one more.
        self.assertEqual([ackTimeout(lifetime, 15) for lifetime in (13, 14, 15)], [16, 16, 17])
        self.assertEqual([ackTimeout(0, 15), ackTimeout(31, 31), ackTimeout(31, 0)], [15, 31, 31])

    def test_flowLabel(self) -> None:
        """
        Of ports, in 20 bits.
        """
        self.assertEqual(flowLabel(1, 2), 33)
        self.assertEqual(flowLabel(0xFFFF, 0xFFFF), (0xFFFF * 32) & 0xFFFFF)

    def test_bounds(self) -> None:
        """
        A program's parameters are bounded by the device, the message and the peer.
        """
        terms = localParameters(None, 56)
        self.assertEqual((terms.responderResources, terms.initiatorDepth), (limits.READS, limits.READS))
        terms = localParameters(ConnParam(255, 255, 1, 9, 200, 1, 5), 56)
        self.assertEqual((terms.responderResources, terms.initiatorDepth), (limits.READS, limits.READS))
        self.assertEqual((terms.retries, terms.rnrRetries, terms.number), (7, 7, 5))
        self.assertEqual((terms.flowControl, terms.shared), (True, True))
        terms = localParameters(ConnParam(10, 20), 56, NegotiatedParameters(3, 4))
        self.assertEqual((terms.responderResources, terms.initiatorDepth), (3, 4))
        for bad in (ConnParam(129), ConnParam(1, 129), ConnParam(qp_num=1 << 24)):
            error = self.assertRaises(PyverbsRDMAError, localParameters, bad, 56)
            self.assertEqual(error.error_code, errno.EINVAL)

    def test_heard(self) -> None:
        """
        The peer's initiator depth is what this side serves.
        """
        own = NegotiatedParameters(5, 6)
        terms = remoteParameters(
            ConnectRequest(responderResources=9, initiatorDepth=2, retryCount=3, localQPN=8), own
        )
        self.assertEqual((terms.responderResources, terms.initiatorDepth), (2, 6))
        self.assertEqual((terms.retries, terms.number), (3, 8))
        terms = remoteParameters(ConnectReply(responderResources=1, initiatorDepth=9, rnrRetryCount=2), own)
        self.assertEqual((terms.responderResources, terms.initiatorDepth, terms.rnrRetries), (5, 1, 2))
        param = paramOf(terms)
        self.assertEqual((param.resources, param.depth, param.rnr_retry), (5, 1, 2))

    def test_reply(self) -> None:
        """
        A REP has the terms of its side, and Linux's delay.
        """
        reply = makeReply(NegotiatedParameters(1, 2, True, 3, 4, True, 5, b"data"), 6)
        self.assertEqual((reply.responderResources, reply.initiatorDepth), (1, 2))
        self.assertEqual((reply.endToEndFlowControl, reply.rnrRetryCount), (True, 4))
        self.assertEqual((reply.sharedReceiveQueue, reply.localQPN, reply.startingPSN), (True, 5, 6))
        self.assertEqual((reply.privateData, reply.targetACKDelay), (b"data", 15))


class AttendantTests(VerbsTestCase):
    """
    The thread that serves peers.
    """

    def threads(self) -> list[threading.Thread]:
        """
        Those there are.
        """
        return [each for each in threading.enumerate() if each.name == "verbs-attendant"]

    def ended(self, before: list[threading.Thread]) -> None:
        """
        No others are left.
        """
        for thread in self.threads():
            if thread not in before:
                thread.join(HANG_SECONDS)
                self.assertFalse(thread.is_alive())

    def test_counted(self) -> None:
        """
        There is one thread as long as there are users.
        """
        before = self.threads()
        attendance = ProgressThreadUsers()
        first = attendance.begin()
        self.assertIs(attendance.begin(), first)
        attendance.end(first)
        # That of an earlier test may end meanwhile.
        self.assertEqual(len(set(self.threads()) - set(before)), 1)
        attendance.end(first)
        attendance.end(first)
        self.ended(before)
        second = attendance.begin()
        self.assertIsNot(second, first)
        attendance.end(second)
        self.ended(before)

    def test_forked(self) -> None:
        """
        A forked child starts without the thread, and the parent's users do not count.
        """
        before = self.threads()
        attendance = ProgressThreadUsers()
        parents = attendance.begin()
        attendance.forked()
        own = attendance.begin()
        self.assertIsNot(own, parents)
        attendance.end(parents)
        self.assertIs(attendance._attendant, own)
        attendance.end(own)
        parents.stop()
        self.ended(before)

    def test_drives(self) -> None:
        """
        The thread drives the device while no other thread does, then sleeps; it leaves the device to others
        that drive it.
        """
        before = self.threads()
        self.open()
        attendance = ProgressThreadUsers()
        attendant = attendance.begin()
        waitUntil(lambda: hub.isAwaited)
        with hub:
            hub.drive()
            drives = hub.drives
        # Somebody waits: that one is woken, this thread only looks.
        self.assertFalse(hub.wait(lambda: False, 0.2))
        self.assertLess(hub.drives - drives, 100)
        attendance.end(attendant)
        self.ended(before)
