"""
Tests for L{twisted_ib.ipoib.protocol.memberships}.
"""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.ipoib.protocol.memberships import changes

#: What Linux sends for a join and a leave: IGMPv3 (router alert option) and MLDv2, octet for octet but the
#: checksums.
IGMP_HEADER = bytes.fromhex("46c0 0028 0000 4000 0102 0000 0a090001 e0000016 94040000")
MLD_HEADER = bytes.fromhex(
    "6000 0000 0024 0001 fe80000000000000 0000000000000002 ff02000000000000 0000000000000016"
    "3a00 0502 0000 0100"
)
GROUP = bytes.fromhex("ef010203")
GROUP6 = bytes.fromhex("ff0200000000000000000001ff000002")


def igmp(*records: str) -> bytes:
    """
    @return: an IGMPv3 report.
    """
    return IGMP_HEADER + bytes.fromhex(f"2200 0000 0000 {len(records):04x}" + "".join(records))


def mld(*records: str) -> bytes:
    """
    @return: an MLDv2 report.
    """
    return MLD_HEADER + bytes.fromhex(f"8f00 0000 0000 {len(records):04x}" + "".join(records))


class ChangesTests(SynchronousTestCase):
    """
    L{changes}.
    """

    def test_igmp3(self) -> None:
        """
        Records of filter modes: exclusion of nothing is a membership, inclusion of nothing its end.
        """
        for record, change in (
            ("0200 0000 ef010203", (GROUP, True)),
            ("0400 0000 ef010203", (GROUP, True)),
            ("0300 0000 ef010203", (GROUP, False)),
            ("0300 0001 ef010203 0a090002", (GROUP, True)),
            ("0100 0001 ef010203 0a090002", (GROUP, True)),
            ("0500 0001 ef010203 0a090002", (GROUP, True)),
            ("0600 0001 ef010203 0a090002", None),
            ("0100 0000 ef010203", None),
            ("0900 0000 ef010203", None),
        ):
            self.assertEqual(list(changes(igmp(record))), [change] if change else [], record)

    def test_records(self) -> None:
        """
        Several records, with sources and auxiliary data between.
        """
        packet = igmp("0401 0001 ef010203 0a090002 ffffffff", "0300 0000 e00000fb")
        self.assertEqual(list(changes(packet)), [(GROUP, True), (bytes.fromhex("e00000fb"), False)])

    def test_igmpBefore(self) -> None:
        """
        Reports of IGMPv1 and IGMPv2, and a leave.
        """
        for kind, isMember in (("12", True), ("16", True), ("17", False)):
            self.assertEqual(
                list(changes(IGMP_HEADER + bytes.fromhex(kind + "000000 ef010203"))), [(GROUP, isMember)]
            )

    def test_mld(self) -> None:
        """
        MLDv2's records, MLDv1's report and done.
        """
        self.assertEqual(list(changes(mld(f"0400 0000 {GROUP6.hex()}"))), [(GROUP6, True)])
        self.assertEqual(list(changes(mld(f"0300 0000 {GROUP6.hex()}"))), [(GROUP6, False)])
        for kind, isMember in (("83", True), ("84", False)):
            packet = MLD_HEADER + bytes.fromhex(kind + "000000 00000000") + GROUP6
            self.assertEqual(list(changes(packet)), [(GROUP6, isMember)])

    def test_others(self) -> None:
        """
        Other packets report nothing: a query, UDP, a hop-by-hop header before something else.
        """
        query = IGMP_HEADER + bytes.fromhex("11000000 ef010203")
        udp = bytearray(IGMP_HEADER + bytes(8))
        udp[9] = 17
        ping = mld()[:48] + bytes.fromhex("8000 0000 0000 0000")
        options = bytearray(mld(f"0400 0000 {GROUP6.hex()}"))
        options[40] = 17
        for packet in (b"", query, bytes(udp), ping, bytes(options)):
            self.assertEqual(list(changes(packet)), [], packet.hex())

    def test_cut(self) -> None:
        """
        What is cut off anywhere is left out, and mutations raise nothing.
        """
        whole = [igmp("0400 0000 ef010203"), mld(f"0400 0000 {GROUP6.hex()}")]
        for packet in whole:
            for length in range(len(packet)):
                self.assertEqual(list(changes(packet[:length])), [])
        source = random.Random(20)
        for number in range(300):
            packet = bytearray(whole[number % 2])
            for _ in range(source.randrange(1, 4)):
                packet[source.randrange(len(packet))] = source.randrange(256)
            self.assertLess(len(list(changes(packet))), 3)
