"""
The partitions of a subnet, in the language of OpenSM's C{partitions.conf} (opensm(8), PARTITION
CONFIGURATION).

A definition names a partition, its P_Key and its properties, and lists its members and multicast groups::

    Default=0x7fff, ipoib: ALL=full;
    storage=0x8001, defmember=full: 0x2c9030001, 0x2c9030002=limited;

Definitions of one P_Key are merged.  The default partition 0x7FFF is always there: without a file all ports
are full members of it and it has the IPoIB broadcast group; in a file that has no rule for it all are limited
members.  The subnet manager's port is always a full member.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NoReturn

from attrs import define, evolve, field, frozen

from twisted_ib.errors import PartitionError
from twisted_ib.hca.base.partition import DEFAULT_PKEY, FULL_MEMBER, PARTITION_MASK
from twisted_ib.hca.base.traits import NodeType

#: The number of the default partition.
DEFAULT_PARTITION: Final = DEFAULT_PKEY & PARTITION_MASK
#: IPoIB's multicast GIDs: C{ff1S:401b:PKEY:...} of IPv4 and 601b of IPv6, scope S (RFC 4391 section 4); the
#: broadcast group of IPv4.
_IP_SIGNATURES: Final = (0x401B, 0x601B)
_BROADCAST: Final = 0xFF10_401B << 96 | 0xFFFF_FFFF
_SCOPE_SHIFT: Final = 112
_SIGNATURE_SHIFT: Final = 96
_PKEY_SHIFT: Final = 80
_LINK_LOCAL: Final = 2
_IP_QKEY: Final = 0x0B1B

_TOKEN: Final = re.compile(
    r"(?P<group>mgid\s*=\s*[^\s,;#]+)|(?P<word>[^\s,:;=#]+)|(?P<mark>[,:;=\n])|#[^\n]*|\s"
)
#: Of a partition's broadcast group, or of one group: the field, and its values.
_FLAGS: Final = {
    "rate": ("rate", range(64)),
    "mtu": ("mtu", range(1, 6)),
    "sl": ("sl", range(16)),
    "scope": ("scope", range(16)),
    "q_key": ("qKey", range(1 << 32)),
    "tclass": ("tClass", range(256)),
    "flowlabel": ("flowLabel", range(1 << 20)),
}


class Keyword(Enum):
    """
    Ports that have no GUID in the file.
    """

    ALL = "all"
    ALL_CAS = "all_cas"
    ALL_SWITCHES = "all_switches"
    ALL_ROUTERS = "all_routers"
    SELF = "self"


_KINDS: Final = {
    Keyword.ALL_CAS: NodeType.CA,
    Keyword.ALL_SWITCHES: NodeType.SWITCH,
    Keyword.ALL_ROUTERS: NodeType.ROUTER,
}
_MEMBERSHIPS: Final = {"full": (True, False), "limited": (False, True), "both": (True, True)}
_LIMITED: Final = (False, True)


@frozen
class Members:
    """
    Ports of a partition.

    @ivar ports: a port GUID, or which.
    @ivar full: whether they are full members, C{limited} likewise; they may be both.
    """

    ports: int | Keyword
    full: bool
    limited: bool

    def has(self, guid: int, kind: NodeType, isSelf: bool) -> bool:
        """
        @param isSelf: whether it is the subnet manager's port.
        @return: whether a port is one of them.
        """
        if self.ports is Keyword.ALL or self.ports == guid:
            return True
        return isSelf if self.ports is Keyword.SELF else _KINDS.get(self.ports) is kind  # type: ignore[arg-type]


@frozen
class Group:
    """
    A multicast group that is there from the start.

    @ivar rate: PathRecord's code, C{mtu} likewise.
    """

    mgid: int
    qKey: int = _IP_QKEY
    rate: int = 3
    mtu: int = 4
    sl: int = 0
    tClass: int = 0
    flowLabel: int = 0


@frozen
class Partition:
    """
    A partition.

    @ivar number: the P_Key without the bit of full members.
    @ivar first: whether its P_Key is the first of every table.
    @ivar members: later ones override earlier ones.
    @ivar groups: its multicast groups, IPoIB's broadcast group among them.
    """

    name: str
    number: int
    first: bool = False
    members: tuple[Members, ...] = ()
    groups: tuple[Group, ...] = ()

    def keys(self, guid: int, kind: NodeType, isSelf: bool) -> tuple[int, ...]:
        """
        @return: the P_Keys of a port in this partition.
        """
        own = [each for each in self.members if each.has(guid, kind, isSelf)]
        full, limited = (own[-1].full, own[-1].limited) if own else (False, False)
        if isSelf and self.number == DEFAULT_PARTITION:
            full = True
            limited = limited and own[-1].full
        return (*((self.number | FULL_MEMBER,) if full else ()), *((self.number,) if limited else ()))


def broadcast(number: int, scope: int = _LINK_LOCAL) -> int:
    """
    @return: the MGID of a partition's IPoIB broadcast group.
    """
    return _BROADCAST | scope << _SCOPE_SHIFT | (number | FULL_MEMBER) << _PKEY_SHIFT


#: Without a file.
DEFAULT: Final = (
    Partition(
        "Default",
        DEFAULT_PARTITION,
        members=(Members(Keyword.ALL, True, False),),
        groups=(Group(broadcast(DEFAULT_PARTITION)),),
    ),
)


def keysOf(
    partitions: Iterable[Partition], guid: int, kind: NodeType, isSelf: bool, size: int
) -> tuple[tuple[int, ...], int]:
    """
    The P_Key table of a port.

    @param size: of the table.
    @return: its P_Keys, the default partition's first unless another is to be, and how many have no room.
    """
    ordered = sorted(
        partitions, key=lambda each: (not each.first, each.number != DEFAULT_PARTITION, each.number)
    )
    keys = tuple(key for each in ordered for key in each.keys(guid, kind, isSelf))
    return keys[:size], max(0, len(keys) - size)


@define
class _Definition:
    name: str = ""
    number: int | None = None
    first: bool = False
    ipoib: bool = False
    default: tuple[bool, bool] = _LIMITED
    members: list[Members] = field(factory=list)
    #: Multicast GID, or None of the broadcast group; flags; scopes.
    groups: list[tuple[int | None, dict[str, int], list[int]]] = field(factory=list)


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._line = 1
        self._tokens = self._read(text)
        self._ahead: str | None = None

    def _read(self, text: str) -> Iterator[str]:
        for match in _TOKEN.finditer(text):
            if match.lastgroup is not None:
                yield match[0]
            self._line += match[0].count("\n")

    def fail(self, reason: str) -> NoReturn:
        raise PartitionError(f"{self._name}:{self._line}: {reason}")

    def next(self, newlines: bool = False) -> str:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead
        for token in self._tokens:
            if newlines or token != "\n":
                return token
        return ""

    def value(self) -> str:
        token = self.next()
        if token in (*",:;=", ""):
            self.fail("a value is missing behind =")
        return token

    def number(self, text: str, values: range, what: str) -> int:
        try:
            number = int(text, 0)
        except ValueError:
            number = -1
        if number not in values:
            self.fail(f"{what} is {values[0]:#x} to {values[-1]:#x}, not {text[:40]!r}")
        return number

    # -- the grammar

    def definitions(self) -> Iterator[_Definition]:
        while (token := self.next()) != "":
            yield self._definition(token)

    def _definition(self, token: str) -> _Definition:
        made = _Definition()
        flags: dict[str, int] = {}
        scopes: list[int] = []
        if token not in (*",:;=",):
            made.name, token = token, self.next()
        if token == "=":
            made.number = self.number(self.value(), range(1 << 16), "a P_Key") & PARTITION_MASK
            token = self.next()
        while token == ",":
            word = self.next().lower()
            token = self.next()
            value = None
            if token == "=":
                value, token = self.value(), self.next()
            self._property(made, word, value, flags, scopes)
        if token != ":":
            self.fail("a partition has ':' behind its properties")
        if made.ipoib:
            made.groups.append((None, flags, scopes))
        self._contents(made)
        if made.number == 0:
            self.fail("a P_Key has a number besides the bit of full members")
        return made

    def _property(
        self, made: _Definition, word: str, value: str | None, flags: dict[str, int], scopes: list[int]
    ) -> None:
        if word in ("indx0", "ipoib") and value is None:
            made.first |= word == "indx0"
            made.ipoib |= word == "ipoib"
        elif word == "defmember" and value is not None:
            if value.lower() not in _MEMBERSHIPS:
                self.fail("defmember is full, limited or both")
            made.default = _MEMBERSHIPS[value.lower()]
        elif word in _FLAGS and value is not None:
            self._flag(word, value, flags, scopes)
        else:
            self.fail(f"not a property of a partition: {word[:40]!r}")

    def _flag(self, word: str, value: str, flags: dict[str, int], scopes: list[int]) -> None:
        name, values = _FLAGS[word]
        number = self.number(value, values, word)
        if name == "scope":
            scopes.append(number)
        else:
            flags[name] = number

    def _contents(self, made: _Definition) -> None:
        token = self.next(newlines=True)
        while token != ";":
            if token == "":
                self.fail("a partition ends with ';'")
            if token in ("\n", ","):
                token = self.next(newlines=True)
            elif token.startswith("mgid") and "=" in token:
                token = self._group(made, token.split("=", 1)[1].strip())
            elif token in (":", "="):
                self.fail(f"{token!r} is not expected here")
            else:
                token = self._member(made, token)

    def _group(self, made: _Definition, text: str) -> str:
        mgid = self._gid(text)
        flags: dict[str, int] = {}
        scopes: list[int] = []
        token = self.next(newlines=True)
        # Until the end of its line.
        while token == ",":
            word = self.next().lower()
            if word not in _FLAGS or self.next() != "=":
                self.fail(f"not a property of a multicast group: {word[:40]!r}")
            self._flag(word, self.value(), flags, scopes)
            token = self.next(newlines=True)
        if token not in ("\n", ";"):
            self.fail("a multicast group ends with its line")
        made.groups.append((mgid, flags, scopes))
        return token

    def _gid(self, text: str) -> int:
        halves = text.split("::")
        words = [
            [int(word, 16) for word in half.split(":") if re.fullmatch("[0-9a-fA-F]{1,4}", word)]
            for half in halves
        ]
        given = sum(len(half.split(":")) if half else 0 for half in halves)
        found = sum(map(len, words))
        if found != given or len(halves) > 2 or (found != 8 if len(halves) == 1 else found > 7):
            self.fail(f"not a GID: {text[:50]!r}")
        if len(halves) == 2:
            words.insert(1, [0] * (8 - found))
        gid = 0
        for word in (word for part in words for word in part):
            gid = gid << 16 | word
        if gid >> 120 != 0xFF:
            self.fail(f"not a multicast GID: {text[:50]!r}")
        return gid

    def _member(self, made: _Definition, word: str) -> str:
        membership = made.default
        token = self.next(newlines=True)
        if token == "=":
            given = self.value().lower()
            if word.lower() == "defmember":
                made.default = _MEMBERSHIPS.get(given, _LIMITED)
                if self.next() != ":":
                    self.fail("defmember ends with ':'")
                return self.next(newlines=True)
            # opensm(8): any other word is limited.
            membership = _MEMBERSHIPS.get(given, _LIMITED)
            token = self.next(newlines=True)
        ports: int | Keyword
        try:
            ports = Keyword(word.lower())
        except ValueError:
            ports = self.number(word, range(1, 1 << 64), "a port GUID")
        made.members.append(Members(ports, *membership))
        return token


def _groups(made: _Definition, number: int, parser: _Parser) -> Iterator[Group]:
    for mgid, flags, scopes in made.groups:
        if mgid is None:
            bare = [broadcast(number, scope) for scope in scopes or (_LINK_LOCAL,)]
        else:
            isIP = mgid >> _SIGNATURE_SHIFT & 0xFFFF in _IP_SIGNATURES
            if isIP and not mgid >> _PKEY_SHIFT & 0xFFFF:
                mgid |= (number | FULL_MEMBER) << _PKEY_SHIFT
            if isIP and (mgid >> _PKEY_SHIFT & PARTITION_MASK) != number:
                parser.fail(
                    f"the multicast GID is of P_Key {mgid >> _PKEY_SHIFT & 0xFFFF:#x}, not of {number:#x}"
                )
            if not isIP:
                flags = {"qKey": 0, **flags}
            without = mgid & ~(0xF << _SCOPE_SHIFT)
            bare = [without | scope << _SCOPE_SHIFT for scope in scopes] or [mgid]
        for each in bare:
            yield Group(each, **flags)


def parse(text: str, name: str) -> tuple[Partition, ...]:
    """
    @param text: of a file.
    @param name: of the file, for errors.
    @return: its partitions, the default partition among them.
    @raise PartitionError: it is not valid.
    """
    parser = _Parser(text, name)
    found: dict[int, Partition] = {}
    free = iter(range(1, DEFAULT_PARTITION))
    for made in parser.definitions():
        number = made.number
        if number is None:
            number = next((each for each in free if each not in found), 0)
            if not number:
                parser.fail("all P_Keys are taken")
        old = found.get(number) or Partition(made.name, number)
        groups = {each.mgid: each for each in (*old.groups, *_groups(made, number, parser))}
        found[number] = evolve(
            old,
            first=old.first or made.first,
            members=(*old.members, *made.members),
            groups=tuple(groups.values()),
        )
    if DEFAULT_PARTITION not in found:
        found[DEFAULT_PARTITION] = Partition(
            "Default", DEFAULT_PARTITION, members=(Members(Keyword.ALL, *_LIMITED),)
        )
    return tuple(found.values())
