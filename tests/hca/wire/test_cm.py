"""
Tests of L{twisted_ib.hca.wire.cm} on literal octets.

The octets of C{SAMPLES} are frames of a capture that tshark decodes as written
here; those of C{LINUX} are what two Linux 6.1 kernels sent (rping over rxe).
Trailing zeros are left out.
"""

from __future__ import annotations

from functools import partial
from ipaddress import IPv4Address
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from tests.support.calls import called
from twisted_ib.errors import WireError
from twisted_ib.hca.connection import PathRecord, RejectReason, SIDRStatus
from twisted_ib.hca.wire.cm import messages as cm
from twisted_ib.hca.wire.cm.layout import CM_ALIKE
from twisted_ib.hca.wire.cm.messages import (
    APR,
    DREP,
    DREQ,
    LAP,
    MRA,
    PATH,
    REJ,
    REP,
    REQ,
    RTU,
    SIDR_REP,
    SIDR_REQ,
    AnyMessage,
    APRStatus,
    timeoutSeconds,
)


def gid(address: str) -> bytes:
    """
    The GID of an IPv4 address.
    """
    return bytes(10) + b"\xff\xff" + IPv4Address(address).packed


def body(text: str) -> bytes:
    """
    A message from its hexadecimal digits, with the zeros that follow.
    """
    return bytes.fromhex(text).ljust(232, b"\0")


SAMPLES: list[tuple[str, AnyMessage]] = [
    (
        "11110001 00 000000 0000000001061c06 0002c90300000001 00000000 00000000"
        "004321 01 000000 01 000000 a0 123456 a7 ffff 37 f0"
        "ffff ffff 00000000000000000000ffffc0000201 00000000000000000000ffffc0000202"
        "12345003 00 40 00 98"
        + "00"
        * 44
        + "00409c40 000000000000000000000000c0000201 000000000000000000000000c0000202"
        "7270696e672d70726976617465",
        REQ(
            localCommunicationID=0x11110001,
            serviceID=0x1061C06,
            localCAGUID=0x0002C90300000001,
            localQPN=0x4321,
            responderResources=1,
            initiatorDepth=1,
            responseTimeout=20,
            startingPSN=0x123456,
            localCMResponseTimeout=20,
            retryCount=7,
            partitionKey=0xFFFF,
            pathMTU=3,
            rnrRetryCount=7,
            requestRetries=15,
            primaryPath=PathRecord(
                localGID=gid("192.0.2.1"),
                remoteGID=gid("192.0.2.2"),
                flowLabel=0x12345,
                packetRate=3,
                hopLimit=64,
                localACKTimeout=19,
            ),
            privateData=bytes.fromhex(
                "00409c40 000000000000000000000000c0000201 000000000000000000000000c0000202"
            )
            + b"rping-private",
        ),
    ),
    (
        "00000002 00000001 00 c0",
        MRA(localCommunicationID=2, remoteCommunicationID=1, messageMRAed=0, serviceTimeout=24),
    ),
    (
        "00000000 00000001 00 00 0008",
        REJ(remoteCommunicationID=1, messageRejected=0, reason=RejectReason.INVALID_SERVICE_ID),
    ),
    (
        "22220001 11110001 00000000 005555 00 000000 00 654321 00 01 01 79 e0 0002c90300000002 7064",
        REP(
            localCommunicationID=0x22220001,
            remoteCommunicationID=0x11110001,
            localQPN=0x5555,
            startingPSN=0x654321,
            responderResources=1,
            initiatorDepth=1,
            targetACKDelay=15,
            endToEndFlowControl=True,
            rnrRetryCount=7,
            localCAGUID=0x0002C90300000002,
            privateData=b"pd",
        ),
    ),
    ("11110001 22220001", RTU(0x11110001, 0x22220001)),
    ("11110001 22220001 005555", DREQ(0x11110001, 0x22220001, 0x5555)),
    ("22220001 11110001", DREP(0x22220001, 0x11110001)),
    (
        "00000007 ffff 0000 0000000001111c06"
        "00409c41 000000000000000000000000c0000201 000000000000000000000000c0000202",
        SIDR_REQ(
            7,
            0xFFFF,
            0x1111C06,
            bytes.fromhex("00409c41 000000000000000000000000c0000201 000000000000000000000000c0000202"),
        ),
    ),
    (
        "00000007 00 00 0000 000099 00 0000000001111c06 01234567",
        SIDR_REP(requestID=7, queuePairNumber=0x99, serviceID=0x1111C06, qKey=0x01234567),
    ),
    (
        "00000001 00000002 00000000 005555 a0 00000000 0001 0002"
        "00000000000000000000ffffc0000201 00000000000000000000ffffc0000202"
        "00000000 40 03 08 98",
        LAP(
            localCommunicationID=1,
            remoteCommunicationID=2,
            remoteQPN=0x5555,
            remoteCMResponseTimeout=20,
            path=PathRecord(
                localLID=1,
                remoteLID=2,
                localGID=gid("192.0.2.1"),
                remoteGID=gid("192.0.2.2"),
                packetRate=3,
                hopLimit=64,
                subnetLocal=True,
                localACKTimeout=19,
            ),
        ),
    ),
    ("00000002 00000001", APR(2, 1)),
]

LINUX: list[tuple[str, AnyMessage]] = [
    (
        "2fce2dd1 00000000 0000000001061c06 505400fffe770002 00000000 00000000"
        "000011 01 00000001 000000a0 4694ba a7 ffff 37 f0"
        "ffff ffff 00000000000000000000ffff0a4d0002 00000000000000000000ffff0a4d0003"
        "2f656000 00 40 00 98"
        + "00" * 44
        + "00409bb0 0000000000000000000000000a4d0002 0000000000000000000000000a4d0003",
        REQ(
            localCommunicationID=0x2FCE2DD1,
            serviceID=0x1061C06,
            localCAGUID=0x505400FFFE770002,
            localQPN=0x11,
            responderResources=1,
            initiatorDepth=1,
            responseTimeout=20,
            startingPSN=0x4694BA,
            localCMResponseTimeout=20,
            retryCount=7,
            pathMTU=3,
            rnrRetryCount=7,
            requestRetries=15,
            primaryPath=PathRecord(
                localGID=gid("10.77.0.2"),
                remoteGID=gid("10.77.0.3"),
                flowLabel=0x2F656,
                hopLimit=64,
                localACKTimeout=0x13,
            ),
            privateData=bytes.fromhex(
                "00409bb0 0000000000000000000000000a4d0002 0000000000000000000000000a4d0003"
            ),
        ),
    ),
    (
        "84e9592b 2fce2dd1 00000000 000011 00 00000000 e1a6df 00 01 01 78 e0 505400fffe770003",
        REP(
            localCommunicationID=0x84E9592B,
            remoteCommunicationID=0x2FCE2DD1,
            localQPN=0x11,
            startingPSN=0xE1A6DF,
            responderResources=1,
            initiatorDepth=1,
            targetACKDelay=15,
            rnrRetryCount=7,
            localCAGUID=0x505400FFFE770003,
        ),
    ),
    ("2fce2dd1 84e9592b", RTU(0x2FCE2DD1, 0x84E9592B)),
    ("2fce2dd1 84e9592b 000011", DREQ(0x2FCE2DD1, 0x84E9592B, 0x11)),
    ("84e9592b 2fce2dd1", DREP(0x84E9592B, 0x2FCE2DD1)),
    # Nobody listens; and a client that gives up.
    ("00000000 2cce2dd1 00 00 0008", REJ(remoteCommunicationID=0x2CCE2DD1, reason=8)),
    (
        "28ce2dd1 00000000 80 10 0004 505400fffe770002",
        REJ(
            localCommunicationID=0x28CE2DD1,
            messageRejected=2,
            additionalInfoLength=8,
            reason=4,
            additionalInfo=bytes.fromhex("505400fffe770002"),
        ),
    ),
]

PATH_RESERVED = [(38, 0x0F), (39, 0xC0), (42, 0x07), (43, 0x07)]
RESERVED: dict[type[AnyMessage], list[tuple[int, int]]] = {
    REQ: [
        (4, 0xFF),
        *((octet, 0xFF) for octet in range(24, 28)),
        *((52 + octet, bits) for octet, bits in PATH_RESERVED),
        *((96 + octet, bits) for octet, bits in PATH_RESERVED),
    ],
    MRA: [(8, 0x3F), (9, 0x07)],
    REJ: [(8, 0x3F), (9, 0x01)],
    REP: [(27, 0x0F)],
    RTU: [],
    DREQ: [(11, 0xFF)],
    DREP: [],
    SIDR_REQ: [(6, 0xFF), (7, 0xFF)],
    SIDR_REP: [],
    LAP: [
        *((octet, 0xFF) for octet in (8, 9, 10, 11, 16, 17, 18, 19)),
        *((15, 0x07), (58, 0x0F), (61, 0xC0), (62, 0x07), (63, 0x07)),
    ],
    APR: [(10, 0xFF), (11, 0xFF)],
}

WIDTHS = {
    **dict.fromkeys(["localCommunicationID", "remoteCommunicationID", "localQKey"], 32),
    **dict.fromkeys(["requestID", "qKey"], 32),
    **dict.fromkeys(["serviceID", "localCAGUID"], 64),
    **dict.fromkeys(["localQPN", "remoteQPN", "queuePairNumber", "startingPSN"], 24),
    **dict.fromkeys(["vendorID", "localEECN", "remoteEECN"], 24),
    **dict.fromkeys(["partitionKey", "reason", "localLID", "remoteLID"], 16),
    **dict.fromkeys(["responderResources", "initiatorDepth", "status"], 8),
    **dict.fromkeys(["trafficClass", "hopLimit"], 8),
    **dict.fromkeys(["remoteCMResponseTimeout", "localCMResponseTimeout", "responseTimeout"], 5),
    **dict.fromkeys(["serviceTimeout", "targetACKDelay", "localACKTimeout"], 5),
    **dict.fromkeys(["pathMTU", "requestRetries", "serviceLevel"], 4),
    **dict.fromkeys(["retryCount", "rnrRetryCount", "extendedTransportType"], 3),
    **dict.fromkeys(["transportServiceType", "messageMRAed", "messageRejected"], 2),
    "failoverAccepted": 2,
    "flowLabel": 20,
    "packetRate": 6,
}
SIZES = {"localGID": 16, "remoteGID": 16, "additionalInfo": 72}


def changed(message: Any, **changes: Any) -> Any:
    """
    A copy with other values.
    """
    return attrs.evolve(message, **changes)


def padded(message: AnyMessage) -> Any:
    """
    A message as it is parsed: private data and additional info are whole areas.
    """
    changes = {"privateData": message.privateData.ljust(message.privateDataBytes, b"\0")}
    if isinstance(message, (REJ, APR, SIDR_REP)):
        changes["additionalInfo"] = message.additionalInfo.ljust(72, b"\0")
    return changed(message, **changes)


class VectorTests(SynchronousTestCase):
    """
    Messages that others made.
    """

    def test_parse(self) -> None:
        """
        The octets mean what is written beside them.
        """
        for text, message in SAMPLES + LINUX:
            octets = body(text)
            parsed = cm.byAttribute[message.attribute].parse(octets, 0, 232)
            self.assertIs(type(parsed), type(message))
            self.assertEqual(parsed, padded(message))

    def test_pack(self) -> None:
        """
        The messages are written as these octets, from short private data and
        from the whole area.
        """
        for text, message in SAMPLES + LINUX:
            self.assertEqual(message.pack().hex(), body(text).hex())
            self.assertEqual(padded(message).pack().hex(), body(text).hex())

    def test_everyMessage(self) -> None:
        """
        There is a vector of every message in the registry, and the registry
        has the eleven attributes of the standard.
        """
        self.assertEqual([type(message) for _, message in SAMPLES], list(cm.MESSAGES))
        self.assertEqual(
            list(cm.byAttribute), [*range(0x10, 0x1B)], "attributes in the order of the standard"
        )

    def test_insideABuffer(self) -> None:
        """
        A message is read from the middle of any bytes-like object.
        """
        for text, message in SAMPLES:
            octets = b"\xff" * 7 + body(text) + b"\xff" * 5
            for buffer in (octets, bytearray(octets), memoryview(octets)):
                self.assertEqual(type(message).parse(buffer, 7, 239), padded(message))

    def test_length(self) -> None:
        """
        A message that is one octet short or long, or not in the buffer, is an
        error of the declared kind.
        """
        for text, message in SAMPLES:
            octets = body(text)
            for buffer, start, stop in (
                (octets[:-1], 0, 231),
                (octets[:-1], 0, 232),
                (octets, 1, 232),
                (octets, -1, 231),
                (octets + b"\0", 0, 233),
                (octets, 1, 233),
                (b"", 0, 0),
                (octets, 232, 0),
            ):
                self.assertRaises(WireError, type(message).parse, buffer, start, stop)


class AlikeTests(SynchronousTestCase):
    """
    REQs of which all but the fields of one connection is known already.
    """

    def request(self, serviceID: int, number: int, data: bytes = b"") -> bytes:
        """
        @return: one of them.
        """
        return REQ(serviceID=serviceID, localCommunicationID=number, localQPN=number, privateData=data).pack()

    def test_own(self) -> None:
        """
        Each has its own fields, and what is done to one changes no other.
        """
        for number in (5, 0xABCDEF, 6):
            message = REQ.parse(self.request(0xA, number, bytes([number & 0xFF])), 0, 232)
            self.assertEqual((message.localCommunicationID, message.localQPN), (number, number))
            self.assertEqual((message.privateData[0], message.serviceID), (number & 0xFF, 0xA))
            message.serviceID, message.unsupported = 7, RejectReason.INVALID_MTU
            self.assertEqual(REQ.parse(message.pack(), 0, 232).serviceID, 7)
        self.assertIsNone(REQ.parse(self.request(0xA, 5), 0, 232).unsupported)

    def test_bound(self) -> None:
        """
        So many are remembered, whatever strangers send.
        """
        parse: Any = REQ.made().parse
        known = parse.__func__.__globals__["known"]
        most = 0
        for serviceID in range(3 * CM_ALIKE):
            self.assertEqual(REQ.parse(self.request(serviceID, 1), 0, 232).serviceID, serviceID)
            most = max(most, len(known))
        self.assertEqual(most, CM_ALIKE)

    def test_meanwhile(self) -> None:
        """
        What a peer writes to shared memory while it is read is not taken for what it wrote before.
        """

        class Changing(bytearray):
            """
            Has another service id, the second time.
            """

            def __getitem__(self, key: Any) -> Any:
                other = bytes(self)
                return (other[:8] + bytes([0xEE]) + other[9:])[key]

        message = REQ.parse(Changing(self.request(0xBEEF, 1)), 0, 232)
        self.assertEqual(message.serviceID, 0xEE << 56 | 0xBEEF)
        self.assertEqual(REQ.parse(self.request(0xBEEF, 1), 0, 232).serviceID, 0xBEEF)


class BitTests(SynchronousTestCase):
    """
    Every bit of every message.
    """

    def test_reservedBits(self) -> None:
        """
        A bit that the standard reserves changes no field, and is written back.
        """
        for text, message in SAMPLES:
            octets = body(text)
            for octet, mask in RESERVED[type(message)]:
                for bit in range(8):
                    if not mask >> bit & 1:
                        continue
                    altered = bytearray(octets)
                    altered[octet] |= 1 << bit
                    parsed = type(message).parse(altered, 0, 232)
                    assert not isinstance(parsed, (RTU, SIDR_REP))
                    self.assertTrue(parsed.reserved, (message, octet, bit))
                    self.assertEqual(changed(parsed, reserved=0), self.neutral(parsed, message))
                    self.assertEqual(parsed.pack(), altered)

    def neutral(self, parsed: AnyMessage, message: AnyMessage) -> Any:
        """
        C{message} as parsed; an alternate path that is nothing but reserved
        bits is a path all the same.
        """
        expected = padded(message)
        if isinstance(expected, REQ) and isinstance(parsed, REQ) and parsed.alternatePath is not None:
            self.assertEqual(parsed.alternatePath, PathRecord(0, 0))
            expected.alternatePath = PathRecord(0, 0)
        return expected

    def test_everyOtherBit(self) -> None:
        """
        Every other bit changes a field, and is written back.
        """
        for text, message in SAMPLES:
            octets = body(text)
            reserved = dict(RESERVED[type(message)])
            plain = type(message).parse(octets, 0, 232)
            for position in range(232 * 8):
                octet, bit = divmod(position, 8)
                if reserved.get(octet, 0) >> bit & 1:
                    continue
                altered = bytearray(octets)
                altered[octet] ^= 1 << bit
                parsed = type(message).parse(altered, 0, 232)
                self.assertNotEqual(parsed, plain)
                self.assertFalse(getattr(parsed, "reserved", 0), (message, octet, bit))
                self.assertEqual(parsed.pack(), altered)

    def test_reservedStaysInItsPlace(self) -> None:
        """
        C{reserved} cannot write into a field.
        """
        for text, message in SAMPLES:
            if not hasattr(message, "reserved"):
                continue
            octets = changed(message, reserved=(1 << 2000) - 1).pack()
            parsed = type(message).parse(octets, 0, 232)
            self.assertEqual(
                changed(parsed, reserved=0),
                self.neutral(parsed, message),
                text,
            )


class RangeTests(SynchronousTestCase):
    """
    Values that do not fit.
    """

    def variants(self, message: AnyMessage, name: str, value: object) -> Any:
        """
        A message, or the path in it, with another value.
        """
        if hasattr(message, name):
            return changed(message, **{name: value})
        if isinstance(message, REQ):
            return changed(message, primaryPath=changed(message.primaryPath, **{name: value}))
        assert isinstance(message, LAP)
        return changed(message, path=changed(message.path, **{name: value}))

    def names(self, message: AnyMessage) -> list[str]:
        """
        The fields of a message and of its path.
        """
        names = [field.name for field in attrs.fields(type(message))]
        if isinstance(message, (REQ, LAP)):
            names += [field.name for field in attrs.fields(PathRecord)]
        return names

    def width(self, message: AnyMessage, name: str) -> int | None:
        """
        How many bits a field has.
        """
        if name == "additionalInfoLength":
            return 7 if isinstance(message, REJ) else 8
        return WIDTHS.get(name)

    def test_numbers(self) -> None:
        """
        The greatest value of each field is written and read; the next one and
        a negative one are refused.
        """
        seen = set()
        for _, message in SAMPLES:
            for name in self.names(message):
                width = self.width(message, name)
                if width is None:
                    continue
                seen.add(name)
                greatest = self.variants(message, name, (1 << width) - 1)
                parsed = type(message).parse(greatest.pack(), 0, 232)
                self.assertEqual(parsed, padded(greatest))
                for value in (1 << width, -1):
                    wrong = self.variants(message, name, value)
                    self.assertRaises(ValueError, wrong.pack)
        self.assertEqual(seen - {"additionalInfoLength"}, set(WIDTHS))

    def test_areas(self) -> None:
        """
        Private data and additional info of the whole area are written; one
        octet more is refused and not cut.
        """
        for _, message in SAMPLES:
            sizes = {**SIZES, "privateData": message.privateDataBytes}
            for name in set(self.names(message)) & set(sizes):
                full = self.variants(message, name, b"\xa5" * sizes[name])
                self.assertEqual(type(message).parse(full.pack(), 0, 232), padded(full))
                longer = self.variants(message, name, bytes(sizes[name] + 1))
                self.assertRaises(ValueError, longer.pack)

    def test_privateDataSizes(self) -> None:
        """
        The areas have the sizes of IBTA vol. 1 chapter 12.
        """
        self.assertEqual(
            [message.privateDataBytes for message in cm.MESSAGES],
            [92, 222, 148, 196, 224, 220, 224, 216, 136, 168, 148],
        )

    def test_shortGID(self) -> None:
        """
        A GID has 16 octets and no less.
        """
        self.assertRaises(ValueError, PATH.pack, PathRecord(localGID=b"\1" * 15))
        self.assertRaises(ValueError, LAP(path=PathRecord(remoteGID=b"")).pack)

    def test_alternatePath(self) -> None:
        """
        The alternate path is the 44 octets after the primary one.
        """
        path = PathRecord(1, 2, gid("192.0.2.7"), gid("192.0.2.8"), 5, 6, 7, 8, 9, True, 10)
        octets = REQ(alternatePath=path).pack()
        self.assertEqual(
            octets[96:140].hex(),
            "0001000200000000000000000000ffffc000020700000000000000000000ffffc00002080000500607089850",
        )
        self.assertEqual(REQ.parse(octets, 0, 232).alternatePath, path)


class MadeTests(SynchronousTestCase):
    """
    C{pack} and C{parse} are made of the declaration.
    """

    def test_once(self) -> None:
        """
        They are made when they are needed first, of a class whose base has its own already too.
        """

        @attrs.define
        class Sooner(RTU):
            """
            Nobody has used it.
            """

        self.assertNotIn("pack", vars(Sooner))
        octets = Sooner(1, 2).pack()
        self.assertEqual(Sooner.parse(octets, 0, 232), padded(Sooner(1, 2)))
        made = Sooner.made()
        self.assertIs(made, Sooner)
        self.assertIs(made.pack, Sooner.made().pack)

    def test_calls(self) -> None:
        """
        A message is packed by one function of Python, and parsed by at most three; a LAP makes a path
        besides.
        """
        for message in cm.MESSAGES:
            plain = message()
            octets = plain.pack()
            message.parse(octets, 0, 232)
            self.assertEqual(sum(called(plain.pack).values()), 1, message)
            parse = partial(message.parse, octets, 0, 232)
            self.assertLessEqual(sum(called(parse).values()), 3 + (message is LAP), message)


class CodeTests(SynchronousTestCase):
    """
    Numbers with names.
    """

    def test_timeouts(self) -> None:
        """
        The codes mean what Linux takes them for.
        """
        for code, milliseconds in ((0, 1), (8, 1), (9, 2), (17, 512), (20, 4096), (24, 65536)):
            self.assertEqual(timeoutSeconds(code), milliseconds / 1000)
        self.assertEqual(timeoutSeconds(31), 8388.608)

    def test_reasons(self) -> None:
        """
        Reject reasons are 1 to 33 and 35.
        """
        self.assertEqual([*RejectReason], [*range(1, 34), 35])
        self.assertEqual(RejectReason.STALE_CONNECTION, 10)
        self.assertEqual(RejectReason.INVALID_MTU, 26)
        self.assertEqual(RejectReason.CONSUMER_DEFINED, 28)

    def test_statuses(self) -> None:
        """
        Statuses of APR are 0 to 13, those of SIDR_REP 0 to 5.
        """
        self.assertEqual([*APRStatus], [*range(14)])
        self.assertEqual(APRStatus.QPN_MISMATCH, 6)
        self.assertEqual([*SIDRStatus], [*range(6)])
