"""
Multicast groups (IBTA vol. 1 15.2.5.17): they are created, joined and left by MCMemberRecords.

States of a group, and what follows::

    none       a full member joins, with all that a group has     created: a multicast LID, trap 66
    created    a port joins, or is more than it was               its members' switches replicate to it
               the last full member leaves                        none: its LID is free again, trap 67

Those of the configuration are there from the start and stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from attrs import define, evolve, field

from twisted_ib import limits
from twisted_ib.hca.base.partition import FULL_MEMBER, isValid, matches
from twisted_ib.hca.base.port import DEFAULT_PREFIX
from twisted_ib.hca.mad.attributes.administration import JoinState, MCMemberRecord, Selector
from twisted_ib.hca.mad.attributes.notice import Trap
from twisted_ib.hca.wire.mad.administration import SAStatus
from twisted_ib.subnet.network.switch import FIRST_MULTICAST_LID
from twisted_ib.subnet.sa.paths import LIFE_TIME
from twisted_ib.subnet.sa.request import RANKS, Refusal, Request, choose, meets, mtuOf, rateOf, sharedKey

if TYPE_CHECKING:
    from twisted_ib.subnet.sm.manager import Manager
    from twisted_ib.subnet.sm.model import Model, Port
    from twisted_ib.subnet.sm.partitions import Group as Configured

#: o15-0.2.3: of who joins, leaves, and of who creates.
_JOINS: Final = ("mgid", "portGID", "joinState")
_CREATES: Final = ("qKey", "tClass", "pKey", "flowLabel", "sl")
#: Components that a group has and a join may name.
_COMPARED: Final = ("qKey", "tClass", "sl", "flowLabel", "hopLimit")
_CHOSEN: Final = ("mtu", "rate")
#: Members for whose sake a group is there.
_RECEIVES: Final = JoinState.FULL_MEMBER | JoinState.NON_MEMBER
_FULL: Final = JoinState.FULL_MEMBER | JoinState.SEND_ONLY_FULL_MEMBER
_PREFIX_SHIFT: Final = 64
_GUID: Final = (1 << _PREFIX_SHIFT) - 1
# A multicast GID (IBTA vol. 1 4.1.1): ff, flags of which one may be set, scope, and a signature.
_MULTICAST: Final = 0xFF
_RESERVED_FLAGS: Final = 0xE
_TRANSIENT: Final = 1
_LINK_LOCAL: Final = 2
_SIGNATURE: Final = 0xA01B
#: IPoIB's (RFC 4391 section 4).
_IP_SIGNATURES: Final = (0x401B, 0x601B)


def _scope(mgid: int) -> int:
    return mgid >> 112 & 0xF


def isValidMGID(mgid: int) -> bool:
    """
    @return: whether a group may be made with this GID (o15-0.1.6): it is a multicast GID, and not one of
        those that subnet administration makes.
    """
    flags, signature = mgid >> 116 & 0xF, mgid >> 96 & 0xFFFF
    if mgid >> 120 != _MULTICAST:
        return False
    if signature in _IP_SIGNATURES:
        return True
    return not flags & _RESERVED_FLAGS and (signature != _SIGNATURE or _scope(mgid) != _LINK_LOCAL)


@define(eq=False)
class Member:
    """
    A port in a group.

    @ivar gid: as it was named.
    @ivar state: bits of L{JoinState}.
    @ivar isProxied: whether another port has made it a member.
    @ivar owner: GUID of the port that has, by whose number it counts.
    @ivar record: its MCMemberRecord, as a number.
    """

    gid: int
    state: int
    isProxied: bool
    owner: int
    record: int = 0

    @property
    def receives(self) -> bool:
        """
        Whether it does not only send.
        """
        return bool(self.state & _RECEIVES)


@define(eq=False)
class Group:
    """
    A group.

    @ivar base: the components that are the same for all members.
    @ivar isPermanent: whether it stays without members.
    @ivar members: by port GUID.
    """

    base: MCMemberRecord
    isPermanent: bool
    number: int
    members: dict[int, Member] = field(factory=dict)

    def record(self, gid: int, state: int, isProxied: bool) -> MCMemberRecord:
        """
        @return: the record of a member.
        """
        return evolve(self.base, portGID=gid, joinState=state, proxyJoin=isProxied)


def _number(record: MCMemberRecord) -> int:
    return int.from_bytes(record.pack(), "big")


class Groups:
    """
    The groups of a subnet.
    """

    def __init__(self, manager: Manager, happened: Callable[[Trap, int, int], object]) -> None:
        """
        @param happened: called with a trap, an MGID and a P_Key: only ports of that partition are told.
        """
        self._manager = manager
        self._happened = happened
        self._groups: dict[int, Group] = {}
        self._lids: set[int] = set()
        #: All below it are taken.
        self._lowest = FIRST_MULTICAST_LID
        #: How many memberships each port has asked for.
        self._owned: Counter[int] = Counter()
        #: Of the next MGID that is made here.
        self._unique = 0

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def _model(self) -> Model:
        return self._manager.model

    # -- queries

    def records(self, request: Request) -> Iterator[int]:
        """
        @return: the groups of the requester's partitions in the order of their GIDs, as numbers; of each its
            members, if a member is asked for or the requester is trusted.
        """
        isNamed = request.has(MCMemberRecord, "portGID")
        for _, group in sorted(self._groups.items()):
            if not request.isTrusted and not _holds(request.port, group.base.pKey):
                continue
            if isNamed or request.isTrusted:
                yield from (member.record for member in group.members.values())
            else:
                yield group.number

    # -- changes

    def join(self, request: Request) -> MCMemberRecord:
        """
        Create or join a group, or add to what a member is (o15-0.2.1 to o15-0.2.4).

        @return: the record of the member.
        """
        asked, port = self._asked(request)
        if port is not request.port and not sharedKey(port.keys, request.port.keys):
            raise Refusal(SAStatus.REQUEST_INVALID)
        if request.has(MCMemberRecord, "pKey") and not isValid(asked.pKey):
            raise Refusal(SAStatus.REQUEST_INVALID)
        group = self._groups.get(asked.mgid)
        isNew = group is None
        if group is None:
            group = self._new(request, asked, port)
        else:
            _compare(request, asked, group.base)
        if not asked.joinState or not _fits(port, group.base):
            raise Refusal(SAStatus.REQUEST_INVALID)
        member = group.members.get(port.guid)
        if member is None:
            self._hasRoom(request.port)
            member = Member(asked.portGID, 0, port is not request.port, request.port.guid)
        else:
            _checkOwner(request, group, port, member)
            if member.isProxied and port is request.port:
                self._adopt(member, port)
        if isNew:
            self._add(group)
        if port.guid not in group.members:
            group.members[port.guid] = member
            self._owned[member.owner] += 1
        return self._update(group, member, member.state | asked.joinState)

    def leave(self, request: Request) -> MCMemberRecord:
        """
        Leave a group, or be less in it than before (o15-0.1.14).

        @return: the record of what is left of the member.
        """
        asked, port = self._asked(request)
        group = self._groups.get(asked.mgid)
        member = None if group is None else group.members.get(port.guid)
        if group is None or member is None or not asked.joinState or asked.joinState & ~member.state:
            raise Refusal(SAStatus.REQUEST_INVALID)
        _checkOwner(request, group, port, member)
        left = self._update(group, member, member.state & ~asked.joinState)
        if not member.state:
            self._remove(group, port.guid)
        self._settle(group)
        return left

    def configure(self) -> None:
        """
        The model has changed: the groups of its partitions are there, and members that are gone are not.
        """
        for partition in self._model.partitions:
            for each in partition.groups:
                lid = self._freeLID()
                if each.mgid not in self._groups and lid is not None:
                    base = _configured(each, lid, partition.number | FULL_MEMBER)
                    self._add(Group(base, True, _number(base)))
        guids = self._model.guids
        for group in list(self._groups.values()):
            for guid in [guid for guid in group.members if guid not in guids]:
                self._remove(group, guid)
            self._settle(group)

    def _asked(self, request: Request) -> tuple[MCMemberRecord, Port]:
        asked = request.record(MCMemberRecord)
        if not request.has(MCMemberRecord, *_JOINS):
            raise Refusal(SAStatus.INSUFFICIENT_COMPONENTS)
        for name in _CHOSEN:
            isGiven = request.has(MCMemberRecord, name, f"{name}Selector")
            value = getattr(asked, name)
            # The best may be asked for without a value.
            isBest = not value and getattr(asked, f"{name}Selector") == Selector.BEST
            if isGiven and value not in RANKS[name] and not isBest:
                raise Refusal(SAStatus.REQUEST_INVALID)
        # A client may know no other prefix than the default one.
        if asked.portGID >> _PREFIX_SHIFT not in (self._model.prefix, DEFAULT_PREFIX):
            raise Refusal(SAStatus.INVALID_GID)
        port = self._model.guids.get(asked.portGID & _GUID)
        if port is None:
            raise Refusal(SAStatus.REQUEST_INVALID)
        return asked, port

    def _new(self, request: Request, asked: MCMemberRecord, port: Port) -> Group:
        # o15-0.2.3
        if not asked.joinState & _FULL:
            raise Refusal(SAStatus.REQUEST_INVALID)
        if not request.has(MCMemberRecord, *_CREATES):
            raise Refusal(SAStatus.INSUFFICIENT_COMPONENTS)
        mgid = asked.mgid
        if not mgid:
            mgid = self._make(asked.scope if request.has(MCMemberRecord, "scope") else _LINK_LOCAL)
        elif not isValidMGID(mgid):
            raise Refusal(SAStatus.REQUEST_INVALID)
        values = {"mtu": mtuOf(port), "rate": rateOf(port.info)}
        for name in _CHOSEN:
            if request.has(MCMemberRecord, name, f"{name}Selector"):
                how, code = getattr(asked, f"{name}Selector"), getattr(asked, name)
                found = choose(RANKS[name], values[name], how, code)
                if found is None:
                    raise Refusal(SAStatus.REQUEST_INVALID)
                values[name] = found
        lid = self._freeLID()
        # One port has half of the LIDs at most, the next one half of the rest: others make groups too.
        if lid is None or self._owned[request.port.guid] > self._capacity() - len(self._lids):
            raise Refusal(SAStatus.NO_RESOURCES)
        base = evolve(
            asked,
            mgid=mgid,
            portGID=0,
            mlid=lid,
            mtuSelector=Selector.EXACTLY,
            rateSelector=Selector.EXACTLY,
            packetLifeTimeSelector=Selector.EXACTLY,
            packetLifeTime=LIFE_TIME,
            scope=_scope(mgid),
            joinState=0,
            proxyJoin=0,
            **values,
        )
        return Group(base, False, _number(base))

    def _make(self, scope: int) -> int:
        # o15-0.1.5: the subnet's prefix, and a number of its own.
        head = (_MULTICAST << 8 | _TRANSIENT << 4 | scope) << 112 | _SIGNATURE << 96
        while True:
            self._unique = self._unique + 1 & 0xFFFF_FFFF
            mgid = head | self._model.prefix << 32 | self._unique
            if mgid not in self._groups:
                return mgid

    def _capacity(self) -> int:
        # As many as every switch has entries for.
        return min(limits.SM_GROUPS, self._model.multicastEntries)

    def _freeLID(self) -> int | None:
        stop = FIRST_MULTICAST_LID + self._capacity()
        while self._lowest in self._lids:
            self._lowest += 1
        return self._lowest if self._lowest < stop else None

    def _add(self, group: Group) -> None:
        self._groups[group.base.mgid] = group
        self._lids.add(group.base.mlid)
        self._happened(Trap.GROUP_CREATED, group.base.mgid, group.base.pKey)

    def _hasRoom(self, port: Port) -> None:
        if self._owned[port.guid] >= limits.SA_PORT_GROUPS:
            raise Refusal(SAStatus.NO_RESOURCES)

    def _adopt(self, member: Member, port: Port) -> None:
        # Another port could take out what has joined by itself, had it made it a member before.
        self._hasRoom(port)
        self._disown(member)
        member.owner, member.isProxied = port.guid, False
        self._owned[port.guid] += 1

    def _disown(self, member: Member) -> None:
        self._owned[member.owner] -= 1
        if not self._owned[member.owner]:
            del self._owned[member.owner]

    def _update(self, group: Group, member: Member, state: int) -> MCMemberRecord:
        before, received = member.state, member.receives
        member.state = state
        if state and (member.receives is not received or not before):
            self._replicate(group)
        record = group.record(member.gid, state, member.isProxied)
        member.record = _number(record)
        return record

    def _remove(self, group: Group, guid: int) -> None:
        self._disown(group.members.pop(guid))
        self._replicate(group)

    def _settle(self, group: Group) -> None:
        # Without a full member there is no group.
        if group.isPermanent or any(member.state & _FULL for member in group.members.values()):
            return
        for guid in list(group.members):
            self._remove(group, guid)
        del self._groups[group.base.mgid]
        self._lids.discard(group.base.mlid)
        self._lowest = min(self._lowest, group.base.mlid)
        self._happened(Trap.GROUP_DELETED, group.base.mgid, group.base.pKey)

    def _replicate(self, group: Group) -> None:
        receivers = [guid for guid, member in group.members.items() if member.receives]
        self._manager.setGroup(group.base.mlid, receivers, group.members.keys() - receivers)


def _configured(group: Configured, lid: int, key: int) -> MCMemberRecord:
    return MCMemberRecord(
        mgid=group.mgid,
        qKey=group.qKey,
        mlid=lid,
        mtuSelector=Selector.EXACTLY,
        mtu=group.mtu,
        tClass=group.tClass,
        pKey=key,
        rateSelector=Selector.EXACTLY,
        rate=group.rate,
        packetLifeTimeSelector=Selector.EXACTLY,
        packetLifeTime=LIFE_TIME,
        sl=group.sl,
        flowLabel=group.flowLabel,
        scope=_scope(group.mgid),
    )


def _holds(port: Port, key: int) -> bool:
    return any(matches(each, key) for each in port.keys)


def _fits(port: Port, base: MCMemberRecord) -> bool:
    ranks = RANKS["rate"]
    return (
        _holds(port, base.pKey)
        and base.mtu <= mtuOf(port)
        and ranks.get(base.rate, 0) <= ranks.get(rateOf(port.info), 0)
    )


def _compare(request: Request, asked: MCMemberRecord, base: MCMemberRecord) -> None:
    # o15-0.2.4: what is named is what the group has.
    same = all(
        getattr(asked, name) == getattr(base, name) for name in _COMPARED if request.has(MCMemberRecord, name)
    )
    if request.has(MCMemberRecord, "pKey"):
        same = same and matches(asked.pKey, base.pKey)
    for name in _CHOSEN:
        if request.has(MCMemberRecord, name, f"{name}Selector"):
            how, code = getattr(asked, f"{name}Selector"), getattr(asked, name)
            same = same and meets(RANKS[name], getattr(base, name), how, code)
    if not same:
        raise Refusal(SAStatus.REQUEST_INVALID)


def _checkOwner(request: Request, group: Group, port: Port, member: Member) -> None:
    # o15-0.2.1: a member is changed by itself; one by proxy, by any port of the group's partition.
    allowed = _holds(request.port, group.base.pKey) if member.isProxied else request.port is port
    if not allowed:
        raise Refusal(SAStatus.REQUEST_INVALID)
