"""
Tests of L{twisted_ib.hca.cm.messages}: each field of a request or an answer has its place in a message, and
comes back from there.
"""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.traits import IB_PRIVATE_BYTES
from twisted_ib.hca.cm import messages
from twisted_ib.hca.connection import (
    ConnectReply,
    ConnectRequest,
    LookupReply,
    LookupRequest,
    PathRecord,
    Rejection,
    RejectReason,
)
from twisted_ib.hca.wire.cm import REJ, REP, REQ, SIDR_REP, SIDR_REQ

PATH = PathRecord(1, 2, bytes(15) + b"\1", bytes(15) + b"\2", 3, 4, 5, 6, 7, False, 8)
REQUEST = ConnectRequest(
    serviceID=0x0106_1389,
    privateData=b"asked",
    localQPN=0x123456,
    responderResources=11,
    initiatorDepth=12,
    retryCount=5,
    rnrRetryCount=6,
    responseTimeout=17,
    requestRetries=15,
    endToEndFlowControl=True,
    sharedReceiveQueue=True,
    startingPSN=0x654321,
    pathMTU=3,
    primaryPath=PATH,
)
REPLY = ConnectReply(
    privateData=b"yes",
    localQPN=0x123456,
    responderResources=11,
    initiatorDepth=12,
    rnrRetryCount=6,
    endToEndFlowControl=True,
    sharedReceiveQueue=True,
    startingPSN=0x654321,
    targetACKDelay=15,
)


class MessageTests(SynchronousTestCase):
    """
    There and back.
    """

    def test_request(self) -> None:
        """
        A REQ of literal octets.
        """
        message = messages.requestMessage(REQUEST)
        message.localCommunicationID, message.localCAGUID = 0x01020304, 0x1122334455667788
        octets = message.pack()
        self.assertEqual(
            octets.hex(),
            "01020304"
            "00000000"
            "0000000001061389"
            "1122334455667788"
            "00000000"
            "00000000"
            "1234560b"
            "0000000c"
            "00000089"
            "6543218d"
            "ffff"
            "36"
            "f8"
            "00010002"
            "00000000000000000000000000000001"
            "00000000000000000000000000000002"
            "00003004"
            "05"
            "06"
            "70"
            "40" + "00" * 44 + b"asked".hex() + "00" * 87,
        )
        padded = attrs.evolve(REQUEST, privateData=b"asked".ljust(92, b"\0"))
        self.assertEqual(messages.requestOf(REQ.parse(octets, 0, 232)), padded)

    def test_everyField(self) -> None:
        """
        The samples have another value than the default for each field that is sent.
        """
        for sample in (REQUEST, REPLY):
            same = [
                field.name
                for field in attrs.fields(type(sample))
                if getattr(sample, field.name) == field.default
            ]
            self.assertEqual(same, ["unsupported"] if sample is REQUEST else [])

    def test_unsupported(self) -> None:
        """
        A REQ for another service than RC cannot be accepted (IBTA vol. 1 12.6.7.2, reason 9).
        """
        for service in range(4):
            found = messages.requestOf(REQ(transportServiceType=service)).unsupported
            self.assertIs(found, RejectReason.INVALID_TRANSPORT_TYPE if service else None)

    def test_reply(self) -> None:
        """
        A REP of literal octets.
        """
        octets = messages.replyMessage(REPLY).pack()
        self.assertEqual(
            octets.hex(),
            "00000000"
            "00000000"
            "00000000"
            "12345600"
            "00000000"
            "65432100"
            "0b"
            "0c"
            "79"
            "d0"
            "0000000000000000" + b"yes".hex() + "00" * 193,
        )
        padded = attrs.evolve(REPLY, privateData=b"yes".ljust(196, b"\0"))
        self.assertEqual(messages.replyOf(REP.parse(octets, 0, 232)), padded)

    def test_rejection(self) -> None:
        """
        Of a REJ only the reason and the private data are a user's.
        """
        message = REJ(1, 2, 0, 8, 999, bytes(8), b"why")
        self.assertEqual(messages.rejectionOf(message), Rejection(999, b"why"))

    def test_lookup(self) -> None:
        """
        SIDR_REQ and SIDR_REP.
        """
        request, reply = LookupRequest(0x0111_0007, b"asked"), LookupReply(3, b"no", 0x123456, 0x01234567)
        octets = messages.lookupMessage(request).pack()
        self.assertEqual(octets[:16].hex(), "00000000ffff00000000000001110007")
        padded = attrs.evolve(request, privateData=b"asked".ljust(216, b"\0"))
        self.assertEqual(messages.lookupOf(SIDR_REQ.parse(octets, 0, 232)), padded)
        octets = messages.lookupReplyMessage(reply).pack()
        self.assertEqual(octets[:24].hex(), "000000000300000012345600000000000000000001234567")
        padded = attrs.evolve(reply, privateData=b"no".ljust(136, b"\0"))
        self.assertEqual(messages.lookupReplyOf(SIDR_REP.parse(octets, 0, 232)), padded)

    def test_privateBytes(self) -> None:
        """
        Fabrics with this communication manager carry the private data of its messages.
        """
        room = (REQ, REP, REJ, SIDR_REQ, SIDR_REP)
        self.assertEqual(attrs.astuple(IB_PRIVATE_BYTES), tuple(message.privateDataBytes for message in room))
