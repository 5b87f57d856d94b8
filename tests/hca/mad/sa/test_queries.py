"""
Tests of L{twisted_ib.hca.mad.sa.queries}.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import NoRecordsError, SAResponseError, SAStatusError
from twisted_ib.hca.mad.attributes.administration import (
    InformInfo,
    MCMemberRecord,
    NodeRecord,
    PathRecord,
    PortInfoRecord,
    ServiceRecord,
)
from twisted_ib.hca.mad.attributes.layouts import layoutOf
from twisted_ib.hca.mad.rmpp.segments import TABLE
from twisted_ib.hca.mad.sa.queries import check, parsed, records, refusal, request, select
from twisted_ib.hca.wire.mad.administration import DELETE, GET_TABLE, SAStatus, statusName
from twisted_ib.hca.wire.mad.classes import AdministrationHeader, KeyedHeader
from twisted_ib.hca.wire.mad.mad import GET, SET, Mad

ASKED = request(GET, *select(PathRecord, {"dgid": 2, "sgid": 1, "reversible": 1, "numbPath": 1}))
TABLE_ASKED = request(GET_TABLE, *select(PathRecord, {}))


class SelectTests(SynchronousTestCase):
    """
    L{select} and L{request}.
    """

    def test_octets(self) -> None:
        """
        A PathRecord as Linux asks for it.
        """
        octets = ASKED.pack()
        self.assertEqual(octets[:24].hex(), "01030201" + "00" * 12 + "0035" + "00" * 6)
        self.assertEqual(octets[24:56].hex(), "00" * 24 + "000000000000180c")
        self.assertEqual(octets[56:120].hex(), "00" * 8 + f"{2:032x}{1:032x}" + "00" * 9 + "81" + "00" * 14)
        self.assertEqual((len(octets), octets[120:]), (256, bytes(136)))

    def test_masks(self) -> None:
        """
        The bits of a component mask by the names of fields: Linux C{ib_sa.h}, OpenSM C{ib_types.h}.
        """
        for kind, names, expected in (
            (PathRecord, ("serviceID",), 3),
            (PathRecord, ("dgid", "sgid", "pKey"), 1 << 2 | 1 << 3 | 1 << 13),
            (PathRecord, ("preference",), 1 << 22),
            (MCMemberRecord, ("mgid", "portGID", "joinState"), 0x10003),
            (MCMemberRecord, ("qKey", "pKey", "sl", "flowLabel", "tClass"), 0x30C4),
            (ServiceRecord, ("serviceID", "serviceGID", "servicePKey"), 7),
            (ServiceRecord, ("serviceName", "serviceData8"), 0x7FFFC0),
            (NodeRecord, ("lid",), 1),
            (NodeRecord, ("portGuid", "nodeDescription"), 1 << 8),
            (PortInfoRecord, ("lid", "endportLID"), 1 << 5 | 1),
        ):
            bits = layoutOf(kind).bits
            mask = 0
            for name in names:
                mask |= bits.get(name, 0)
            self.assertEqual(hex(mask), hex(expected), names)

    def test_nested(self) -> None:
        """
        Values of a nested attribute.
        """
        record, mask = select(NodeRecord, {"lid": 3, "guid": 5, "description": b"x"})
        self.assertEqual((record.lid, record.nodeInfo.guid), (3, 5))
        self.assertEqual(record.nodeDescription.description, b"x")
        self.assertEqual(mask, 1 | 1 << 7 | 1 << 14)

    def test_unknown(self) -> None:
        """
        A record has no such field, and a nested attribute is no value.
        """
        for kind, name in ((PathRecord, "mgid"), (NodeRecord, "nodeInfo"), (InformInfo, "")):
            error = self.assertRaises(ValueError, select, kind, {name: 1})
            self.assertIn(kind.__name__, str(error))


class CheckTests(SynchronousTestCase):
    """
    L{check}, L{parsed} and L{refusal}.
    """

    def answered(self, asked: Mad, method: int, **changes: Any) -> Any:
        """
        @return: the error of a response.
        """
        return check(asked, evolve(asked, method=method, **changes))

    def test_methods(self) -> None:
        """
        The method of the response to each.
        """
        for method, expected in ((GET, 0x81), (SET, 0x81), (GET_TABLE, 0x92), (DELETE, 0x95)):
            asked = evolve(ASKED, method=method)
            self.assertIsNone(self.answered(asked, expected))
            for other in {0x81, 0x82, 0x92, 0x95, 0x07, 0x86} - {expected}:
                self.assertIsInstance(self.answered(asked, other), SAResponseError)

    def test_attribute(self) -> None:
        """
        A response with another attribute is none to this.
        """
        self.assertIsInstance(self.answered(ASKED, 0x81, attribute=0x38), SAResponseError)

    def test_statuses(self) -> None:
        """
        Each status has its name, and says what to do; an unknown one has its number.
        """
        for status in range(0x10000):
            if status and status in set(SAStatus):
                error = self.answered(ASKED, 0x81, status=status)
                self.assertEqual((error.status, error.statusName), (status, SAStatus(status).name))
                self.assertRegex(
                    str(error), rf"^Get of attribute 0x0035 was refused with {error.statusName}: \w"
                )
        self.assertIsInstance(refusal(ASKED, 0x0300), NoRecordsError)
        self.assertEqual(type(refusal(ASKED, 0x0200)), SAStatusError)
        self.assertEqual((statusName(0x4200), refusal(ASKED, 0x4200).statusName), ("0x4200", "0x4200"))

    def test_parsed(self) -> None:
        """
        A response too short for its record.
        """
        self.assertEqual(parsed(PathRecord, ASKED.pack()[56:]).dgid, 2)
        for data in (b"", bytes(63)):
            self.assertRaises(SAResponseError, parsed, PathRecord, data)


class RecordsTests(SynchronousTestCase):
    """
    L{records}.
    """

    def table(self, data: bytes, offset: int, isTransfer: bool = True) -> Any:
        """
        @return: the records.
        """
        header = AdministrationHeader(attributeOffset=offset)
        if isTransfer:
            header = header._replace(transfer=TABLE)
        response = evolve(TABLE_ASKED, method=0x92, header=header)
        return records(PathRecord, evolve(response, data=data))

    def test_strides(self) -> None:
        """
        Records at multiples of AttributeOffset; the last one may end where its fields do.
        """
        one, other = (PathRecord(dgid=number).pack() for number in (1, 2))
        for data, offset in (
            (one + other, 8),
            (one + bytes(8) + other + bytes(8), 9),
            (one + bytes(8) + other, 9),
        ):
            self.assertEqual([each.dgid for each in self.table(data, offset)], [1, 2])

    def test_empty(self) -> None:
        """
        No records, with or without AttributeOffset.
        """
        for offset in (0, 8):
            self.assertEqual(self.table(b"", offset), [])

    def test_malformed(self) -> None:
        """
        An AttributeOffset smaller than a record; a MAD that is of no transfer, or without the header.
        """
        for offset in (0, 1, 7):
            self.assertRaises(SAResponseError, self.table, bytes(128), offset)
        for offset in (0, 7, 8):
            self.assertRaises(SAResponseError, self.table, bytes(200), offset, isTransfer=False)
        for length in (1, 63, 65, 200):
            error = self.assertRaises(SAResponseError, self.table, bytes(length), 8)
            self.assertIn(f"cut after {length // 64} of its PathRecords", str(error))
        mad = evolve(TABLE_ASKED, header=KeyedHeader())
        self.assertRaises(SAResponseError, records, PathRecord, mad)
