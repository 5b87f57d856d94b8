"""
Tests of L{twisted_ib.subnet.sm.partitions}.
"""

from __future__ import annotations

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import PartitionError
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.subnet.sm import partitions
from twisted_ib.subnet.sm.partitions import DEFAULT, Group, Keyword, Members, Partition, keysOf, parse

FULL, LIMITED, BOTH = (True, False), (False, True), (True, True)
CA, SWITCH, ROUTER = NodeType.CA, NodeType.SWITCH, NodeType.ROUTER
#: opensm(8), where three lines are not as its grammar has them.
EXAMPLES = """\
Default=0x7fff : ALL, SELF=full ;
NewPartition , ipoib : 0x123456=full, 0x3456789034=limi, 0x2134af2306 ;

YetAnotherOne = 0x300 : SELF=full ;
YetAnotherOne = 0x300 : ALL=limited ;

ShareIO = 0x80 , defmember=full : 0x123451, 0x123452;
# 0x123453, 0x123454 will be limited
ShareIO = 0x80 : 0x123453, 0x123454, 0x123455=full;
ShareIO = 0x80 : defmember=limited : 0x123456, 0x123457, 0x123458=full;
ShareIO = 0x80 , defmember=full : 0x12345b, 0x12345c=limited, 0x12345d;
"""
GROUPS = """\
Default=0x7fff,ipoib:
    mgid=ff12:401b::0707,sl=1 # random IPv4 group
    mgid=ff12:601b::16    # MLDv2-capable routers
    mgid=ff12::1,sl=1,Q_Key=0xDEADBEEF,rate=6,mtu=2,TClass=3,FlowLabel=9 # random group
    mgid=ff12::2,scope=5,scope=8
    ALL=full;
"""


def one(text: str) -> Partition:
    """
    @return: the only partition of a file besides the default one.
    """
    (found,) = [each for each in parse(text, "file") if each.number != 0x7FFF]
    return found


class GrammarTests(SynchronousTestCase):
    """
    The language.
    """

    def test_examples(self) -> None:
        """
        The examples of OpenSM's manual.
        """
        default, new, other, share = parse(EXAMPLES, "file")
        self.assertEqual((default.name, default.number, default.groups), ("Default", 0x7FFF, ()))
        self.assertEqual(default.members, (Members(Keyword.ALL, *LIMITED), Members(Keyword.SELF, *FULL)))
        # The first number that is free.
        self.assertEqual((new.name, new.number), ("NewPartition", 1))
        self.assertEqual(
            new.members,
            (Members(0x123456, *FULL), Members(0x3456789034, *LIMITED), Members(0x2134AF2306, *LIMITED)),
        )
        self.assertEqual([group.mgid for group in new.groups], [0xFF12401B80010000_00000000FFFFFFFF])
        self.assertEqual(other.members, (Members(Keyword.SELF, *FULL), Members(Keyword.ALL, *LIMITED)))
        full = {each.ports for each in share.members if each.full}
        self.assertEqual(full, {0x123451, 0x123452, 0x123455, 0x123458, 0x12345B, 0x12345D})
        limited = {each.ports for each in share.members if each.limited}
        self.assertEqual(limited, {0x123453, 0x123454, 0x123456, 0x123457, 0x12345C})

    def test_groups(self) -> None:
        """
        Multicast groups end with their lines; IPoIB's have the P_Key; each scope is a group of its own.
        """
        (default,) = parse(GROUPS, "file")
        self.assertEqual(default.members, (Members(Keyword.ALL, *FULL),))
        expected = (
            Group(0xFF12401BFFFF0000_00000000FFFFFFFF),
            Group(0xFF12401BFFFF0000_0000000000000707, sl=1),
            Group(0xFF12601BFFFF0000_0000000000000016),
            Group(0xFF12 << 112 | 1, 0xDEADBEEF, 6, 2, 1, 3, 9),
            Group(0xFF15 << 112 | 2, 0),
            Group(0xFF18 << 112 | 2, 0),
        )
        self.assertEqual(set(default.groups), set(expected))
        self.assertEqual(len(default.groups), len(expected))

    def test_properties(self) -> None:
        """
        Flags of the broadcast group, of the membership, and of the place in the table.
        """
        found = one("a=0x8005, indx0, ipoib, rate=7, mtu=5, sl=2, scope=3, scope=4, defmember=both: 7;")
        self.assertEqual((found.name, found.number, found.first), ("a", 5, True))
        self.assertEqual(found.members, (Members(7, *BOTH),))
        self.assertEqual([group.mgid >> 112 for group in found.groups], [0xFF13, 0xFF14])
        self.assertEqual({evolve(group, mgid=0) for group in found.groups}, {Group(0, rate=7, mtu=5, sl=2)})

    def test_layout(self) -> None:
        """
        Blanks, line ends, comments, letters of either case and names that are left out.
        """
        expected = (Members(Keyword.ALL_CAS, *FULL), Members(0x10, *LIMITED))
        for text in (
            "=9:all_cas=full,16=limited;",
            "  = 0x0009 :\n ALL_CAS = FULL ,\n\n 0x10 # the second\n;",
            "=9:ALL_CAS=full;\n# a comment\n=0x8009:16;",
        ):
            self.assertEqual((one(text).number, one(text).members), (9, expected), text)
        self.assertEqual(one("a=2: ;").members, ())

    def test_errors(self) -> None:
        """
        Every mistake is told with its line.
        """
        for line, text in (
            (1, "a=1"),
            (1, "a=1 ALL;"),
            (1, "a=1: ALL"),
            (1, "a=: ALL;"),
            (1, "a=0x10000: ALL;"),
            (1, "a=-1: ALL;"),
            (1, "a=0: ALL;"),
            (1, "a=0x8000: ALL;"),
            (2, "a=1:\n xyz=full;"),
            (2, "a=1:\n 0;"),
            (1, "a=1: 0x10000000000000000;"),
            (1, "a=1, defmember=most: ALL;"),
            (1, "a=1, ipoib=1: ALL;"),
            (1, "a=1, nothing: ALL;"),
            (1, "a=1, ipoib, mtu=6: ALL;"),
            (1, "a=1, ipoib, rate=: ALL;"),
            (1, "a=1: ALL==full;"),
            (1, "a=1: ALL: 3;"),
            (1, "a=1: mgid=fe80::1;"),
            (1, "a=1: mgid=ff12:::1;"),
            (1, "a=1: mgid=ff12::1::2;"),
            (1, "a=1: mgid=ff12:0:0:0:0:0:1;"),
            (1, "a=1: mgid=ff12:0:0:0:0:0:0:1::;"),
            (1, "a=1: mgid=ff12::10000;"),
            (1, "a=1: mgid=ff12::g;"),
            (1, "a=1: mgid=ff12::1 ALL;"),
            (1, "a=1: mgid=ff12::1,mtu;"),
            (1, "a=1: mgid=ff12::1,lid=3;"),
            (1, "a=1: mgid=ff12:401b:8002::1;"),
            (3, "a=1: ALL;\n\n;"),
        ):
            error = self.assertRaises(PartitionError, parse, text, "file")
            self.assertTrue(str(error).startswith(f"file:{line}: "), (text, str(error)))

    def test_allTaken(self) -> None:
        """
        A partition too many for the P_Keys there are.
        """
        self.patch(partitions, "DEFAULT_PARTITION", 8)
        text = "a:; =3:; =1:; b:; c:; d:; =6:;"
        found = {each.name: each.number for each in parse(text, "file") if each.name}
        self.assertEqual(found, {"a": 1, "b": 2, "c": 4, "d": 5, "Default": 8})
        error = self.assertRaises(PartitionError, parse, text + "e:; f:;", "file")
        self.assertEqual(str(error), "file:1: all P_Keys are taken")


class MemberTests(SynchronousTestCase):
    """
    The P_Keys of ports.
    """

    def keys(self, text: str, guid: int = 1, kind: NodeType = CA, isSelf: bool = False) -> set[int]:
        """
        @return: a port's P_Keys.
        """
        keys, left = keysOf(parse(text, "file"), guid, kind, isSelf, 64)
        self.assertEqual(left, 0)
        return set(keys)

    def test_default(self) -> None:
        """
        Without a file all are full members of the default partition; in a file without a rule for it all are
        limited ones, but for the subnet manager's port.
        """
        self.assertEqual(keysOf(DEFAULT, 1, CA, False, 64), ((0xFFFF,), 0))
        self.assertEqual(self.keys(""), {0x7FFF})
        self.assertEqual(self.keys("", isSelf=True), {0xFFFF})
        self.assertEqual(self.keys("=0x7fff: ;"), set())
        self.assertEqual(self.keys("=0x7fff: ;", isSelf=True), {0xFFFF})
        self.assertEqual(self.keys("=0x7fff: ALL=both;", isSelf=True), {0xFFFF, 0x7FFF})

    def test_keywords(self) -> None:
        """
        Each keyword has its ports.
        """
        for word, kinds in (
            ("ALL", {CA, SWITCH, ROUTER}),
            ("ALL_CAS", {CA}),
            ("ALL_SWITCHES", {SWITCH}),
            ("ALL_ROUTERS", {ROUTER}),
            ("SELF", set()),
            ("1", {CA, SWITCH, ROUTER}),
            ("2", set()),
        ):
            found = {
                kind for kind in (CA, SWITCH, ROUTER) if 5 in self.keys(f"a=5: {word}=limited;", kind=kind)
            }
            self.assertEqual(found, kinds, word)
        self.assertEqual(self.keys("a=5: SELF=both;", isSelf=True), {0xFFFF, 5, 0x8005})

    def test_last(self) -> None:
        """
        A later rule takes the place of an earlier one.
        """
        self.assertEqual(self.keys("a=5: ALL=limited, 1=full;"), {0x7FFF, 0x8005})
        self.assertEqual(self.keys("a=5: 1=full, ALL=limited;"), {0x7FFF, 5})

    def test_order(self) -> None:
        """
        The default partition is the first, unless another one is to be; what a table has no room for is told.
        """
        text = "=9: ALL; =3: ALL; =7, indx0: ALL;"
        self.assertEqual(keysOf(parse(text, "file"), 1, CA, False, 64), ((7, 0x7FFF, 3, 9), 0))
        self.assertEqual(keysOf(parse(text, "file"), 1, CA, False, 3), ((7, 0x7FFF, 3), 1))
        self.assertEqual(keysOf(parse(text, "file"), 1, CA, False, 0), ((), 4))
