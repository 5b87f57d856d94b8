"""
Tests of L{twisted_ib.hca.cm.machine}: each field of a request or an answer has its place in a message, and
comes back from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.base.traits import IB_PRIVATE_BYTES
from twisted_ib.hca.cm import machine
from twisted_ib.hca.connection import (
    ConnectReply,
    ConnectRequest,
    PathRecord,
    RejectReason,
)
from twisted_ib.hca.wire.cm.layout import CMMessage
from twisted_ib.hca.wire.cm.messages import REJ, REP, REQ, SIDR_REP, SIDR_REQ

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
    vendorID=0x024742,
    localEECN=0xC0A1,
    localQKey=7,
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
    vendorID=0x024742,
    localEECN=0xC0A1,
    localQKey=7,
)
#: Fields that only the communication manager sets.
MANAGERS = {
    *("localCommunicationID", "remoteCommunicationID", "localCAGUID", "remoteEECN", "reserved"),
    *("transportServiceType", "localCMResponseTimeout", "partitionKey", "rdcExists", "extendedTransportType"),
    *("alternatePath", "failoverAccepted"),
}


def usersFields(kind: type[Any]) -> list[attrs.Attribute[Any]]:
    """
    @return: the others.
    """
    return [field for field in attrs.fields(kind) if field.name not in MANAGERS]


class MessageTests(SynchronousTestCase):
    """
    There and back.
    """

    def there(self, sent: Any, message: CMMessage, back: Callable[[Any], Any]) -> str:
        """
        @param sent: has private data, which is padded on its way.
        @param back: what reads C{sent} from the message.
        @return: the message's octets.
        """
        octets = message.pack()
        padded = sent.privateData.ljust(message.privateDataBytes, b"\0")
        found, expected = back(type(message).parse(octets, 0, 232)), attrs.evolve(sent, privateData=padded)
        for field in usersFields(type(sent)):
            self.assertEqual(getattr(found, field.name), getattr(expected, field.name), field.name)
        return octets.hex()

    def test_request(self) -> None:
        """
        A REQ of literal octets.
        """
        message = machine.requestMessage(attrs.evolve(REQUEST))
        message.localCommunicationID, message.localCAGUID = 0x01020304, 0x1122334455667788
        self.assertEqual(
            self.there(REQUEST, message, machine.requestOf),
            "01020304"
            "00024742"
            "0000000001061389"
            "1122334455667788"
            "00000000"
            "00000007"
            "1234560b"
            "00c0a10c"
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

    def test_everyField(self) -> None:
        """
        The samples have another value than the default for each field that is sent.
        """
        for sample in (REQUEST, REPLY):
            same = [
                field.name
                for field in usersFields(type(sample))
                if getattr(sample, field.name) == field.default
            ]
            self.assertEqual(same, ["unsupported", "communicationID"] if sample is REQUEST else [])

    def test_same(self) -> None:
        """
        A request and a reply are their messages, once more too, and have all fields of these.
        """
        for sample, kind in ((attrs.evolve(REQUEST), REQ), (attrs.evolve(REPLY), REP)):
            names = {field.name for field in attrs.fields(type(sample))}
            self.assertEqual(names, {field.name for field in attrs.fields(kind)})
            make: Any = machine.requestMessage if kind is REQ else machine.replyMessage
            for _ in range(2):
                self.assertIs(make(sample), sample)
                self.assertIs(type(sample), kind)

    def test_unsupported(self) -> None:
        """
        A REQ for another service than RC cannot be accepted (IBTA vol. 1 12.6.7.2, reason 9).
        """
        for service in range(4):
            found = machine.requestOf(REQ(transportServiceType=service)).unsupported
            self.assertIs(found, RejectReason.INVALID_TRANSPORT_TYPE if service else None)

    def test_reply(self) -> None:
        """
        A REP of literal octets.
        """
        self.assertEqual(
            self.there(REPLY, machine.replyMessage(attrs.evolve(REPLY)), lambda message: message),
            "00000000"
            "00000000"
            "00000007"
            "12345602"
            "00c0a147"
            "65432142"
            "0b"
            "0c"
            "79"
            "d0"
            "0000000000000000" + b"yes".hex() + "00" * 193,
        )

    def test_privateBytes(self) -> None:
        """
        Fabrics with this communication manager carry the private data of its messages.
        """
        room = (REQ, REP, REJ, SIDR_REQ, SIDR_REP)
        given = attrs.astuple(IB_PRIVATE_BYTES)[:-1]
        self.assertEqual(given, tuple(message.privateDataBytes for message in room))
