"""
The subnet manager: it sweeps, configures what it has found, and answers traps and other subnet managers.

A heavy sweep discovers everything and configures what is not as it should be.  A light sweep asks each switch
whether a port has changed its state, and other subnet managers for their states; if something has changed, or
an earlier sweep was not answered by all, a heavy one follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from twisted_ib import limits
from twisted_ib.hca.base.operation import SMI_QPN
from twisted_ib.hca.base.port import DEFAULT_PREFIX, LARGEST_UNICAST_LID, PortState
from twisted_ib.hca.mad.attributes.node import SMInfo, SMState, SwitchInfo
from twisted_ib.hca.mad.attributes.notice import Notice, Trap
from twisted_ib.hca.mad.attributes.port import Capability, PortInfo
from twisted_ib.hca.wire.mad.classes import (
    SUBNET_ADMINISTRATION,
    SUBNET_CLASSES,
    SUBNET_DIRECTED,
    DirectedHeader,
)
from twisted_ib.hca.wire.mad.mad import (
    CLASS_AT,
    DIRECTION,
    GET,
    GET_RESPONSE,
    INVALID_ATTRIBUTE_VALUE,
    METHOD_AT,
    RESPONSE,
    SET,
    TRAP,
    TRAP_REPRESS,
    Mad,
)
from twisted_ib.subnet.network.smi import PERMISSIVE_LID, Packet
from twisted_ib.subnet.network.switch import FIRST_MULTICAST_LID
from twisted_ib.subnet.sm.configuration import Configuration
from twisted_ib.subnet.sm.election import Control, Election
from twisted_ib.subnet.sm.model import Model, Node, Port
from twisted_ib.subnet.sm.partitions import DEFAULT, Partition, keysOf
from twisted_ib.subnet.sm.requests import Answered, Request, Requests, decodeSMP
from twisted_ib.subnet.sm.routing import LIDs, Routing
from twisted_ib.subnet.sm.sweep import Discovery

if TYPE_CHECKING:
    from twisted_ib.subnet.sm.interfaces import IAdministration

_COUNT: Final = 0xFF
_ENDED: Final = object()
_ACTIVITY: Final = 0xFFFFFFFF
_MULTICAST_LIDS: Final = range(FIRST_MULTICAST_LID, PERMISSIVE_LID)


@frozen(kw_only=True)
class Options:
    """
    @ivar priority: 0 to 15: of several subnet managers the highest becomes the master.
    @ivar key: the SM_Key, by default OpenSM's: other managers give it with what they ask this one to do, and
        who has it is told all by subnet administration.
    @ivar prefix: the subnet prefix.
    @ivar partitions: those of L{partitions.parse<twisted_ib.subnet.sm.partitions.parse>}.
    @ivar sweepSeconds: between light sweeps.
    """

    priority: int = 0
    key: int = 1
    prefix: int = DEFAULT_PREFIX
    partitions: tuple[Partition, ...] = DEFAULT
    sweepSeconds: float = limits.SM_SWEEP_SECONDS


class Manager:
    """
    One subnet manager.

    Besides those of L{Requests} and L{Discovery} these are counted:

      - C{sm_unexpected}: a MAD that no subnet manager takes, or not in this state;
      - C{sm_unknown_sender}: a trap from a LID that is not in the subnet;
      - C{sm_not_permitted}: a Set of SMInfo with another SM_Key, or not valid in this state;
      - C{sm_overrun}: L{limits.SM_ANSWERS} MADs wait to be sent;
      - C{sm_no_lid}, C{sm_no_pkey}: a port for which no LID is left, a P_Key for which its table has no room;
      - C{sm_too_many_groups}: a multicast group beyond L{limits.SM_GROUPS}.

    @ivar model: the subnet, always the same object: L{Model.replace} changes it.
    @ivar key: the SM_Key of trusted requesters.
    @ivar administration: takes MADs of class 0x03, and is told what happens, while this one is the master.
    @ivar sweeps: how many heavy ones there were.
    """

    def __init__(self, options: Options, transaction: int, count: Callable[[str], object]) -> None:
        """
        @param transaction: where transaction ids begin, 32 bits.
        @param count: called with the name of each loss.
        """
        self._options = options
        self._count = count
        self.key = options.key
        self.model = Model(options.prefix, partitions=options.partitions)
        self.administration: IAdministration | None = None
        self.sweeps = 0
        self._lids = LIDs()
        self._election = Election(options.priority, 0)
        self._requests = Requests(transaction, count)
        self._configuration = Configuration()
        self._answers: deque[Packet] = deque()
        self._stages: Iterator[None] | None = None
        self._isResigned = True
        # Whether no sweep has been finished since this one became the master.
        self._isNew = True
        self._isComplete = True
        # Whether a Set of SMInfo that acknowledges a handover is on its way.
        self._isAcknowledging = False
        self._now = 0.0
        # Sweeps that are wanted; when the next may begin, and when the next is due at the latest.
        self._heavy = self._light = False
        self._earliest = self._latest = 0.0
        #: Port GUIDs of those that reported a change of their own.
        self._reporters: set[int] = set()
        #: Multicast LID -> port GUIDs; those that have changed.
        #: By multicast LID: the GUIDs of the members' ports, and whether each receives.
        self._groups: dict[int, dict[int, bool]] = {}
        self._dirty: set[int] = set()
        self._routing: Routing | None = None

    # -- begin and end

    @property
    def state(self) -> SMState:
        """
        SMInfo's SMState; L{SMState.NOT_ACTIVE} of one that has resigned too.
        """
        return SMState.NOT_ACTIVE if self._isResigned else self._election.state

    def start(self, now: float) -> None:
        """
        Begin, or begin again after L{resign}.  Idempotent.
        """
        if self._isResigned:
            self._isResigned = False
            self._election.state = SMState.DISCOVERING
            self._heavy = True
            self._earliest = 0.0
            self._advance(now)

    def look(self, now: float) -> None:
        """
        Look soon whether something has changed, as after a trap; not after L{resign}.
        """
        if not self._isResigned:
            self._light = True
            self._advance(now)

    def resign(self) -> None:
        """
        Leave the subnet to another manager, which has the same port or comes without an election: nothing is
        sent or answered until L{start}.  Idempotent.
        """
        if not self._isResigned:
            self._isResigned = True
            self._relinquish()

    def _cancel(self) -> None:
        self._requests.cancel()
        self._isAcknowledging = False

    def _relinquish(self) -> None:
        self._cancel()
        self._answers.clear()
        self._stages = None
        self._heavy = self._light = False
        self._reporters.clear()
        self._groups.clear()
        self._dirty.clear()
        self._isNew = True
        self._configuration.forget()
        if self.administration is not None:
            self.administration.reset()

    # -- MADs

    def outgoing(self, most: int = limits.SM_ANSWERS) -> list[Packet]:
        """
        @param most: how many of L{send}; they do not keep the requests of the window waiting.
        @return: the packets to send from the manager's port.
        """
        answers = [self._answers.popleft() for _ in range(min(most, len(self._answers)))]
        return answers + self._requests.outgoing()

    def send(self, packet: Packet) -> None:
        """
        Send a MAD from the subnet manager's port.

        @param packet: with the peer's LID in C{dlid} and queue pair in C{destination}; C{slid} is filled in.
        """
        if len(self._answers) >= limits.SM_ANSWERS:
            self._count("sm_overrun")
            return
        if packet.slid != PERMISSIVE_LID and self.model.own is not None:
            packet.slid = self.model.own.lid
        self._answers.append(packet)

    def received(self, packet: Packet, now: float) -> None:
        """
        A MAD arrived at the manager's port.
        """
        self._now = now
        class_, method = packet.octets[CLASS_AT], packet.octets[METHOD_AT]
        if self._isResigned:
            self._count("sm_unexpected")
            return
        if class_ == SUBNET_ADMINISTRATION:
            # Before the end of its first sweep it does not know what to answer.
            if self.administration is None or self._isNew or self._election.state is not SMState.MASTER:
                self._count("sm_unexpected")
            else:
                self.administration.received(packet, now)
        elif class_ not in SUBNET_CLASSES:
            self._count("sm_unexpected")
        elif method & RESPONSE:
            self._requests.received(packet)
        else:
            self._request(packet)
        self._advance(now)

    def _request(self, packet: Packet) -> None:
        decoded = decodeSMP(packet.octets)
        if decoded is None:
            self._count("sm_malformed")
            return
        mad, data = decoded
        if mad.method == TRAP and mad.attribute == Notice.ID:
            self._trap(packet, mad, data)
        elif mad.method in (GET, SET) and mad.attribute == SMInfo.ID:
            self._smInfo(packet, mad, data)
        else:
            self._count("sm_unexpected")

    # -- other subnet managers

    def information(self) -> SMInfo:
        """
        @return: its SMInfo, without the SM_Key, which is a secret.
        """
        return SMInfo(
            smInfoGuid=self._election.guid,
            smActivity=self._requests.sent & _ACTIVITY,
            smPriority=self._election.priority,
            smState=self._election.state,
        )

    def _smInfo(self, packet: Packet, mad: Mad, data: bytes) -> None:
        status = 0
        if mad.method == SET:
            other = SMInfo.parse(data)
            before = self._election.state
            if other.smInfoKey != self.key or not self._election.controlled(mad.modifier, other.smInfoGuid):
                self._count("sm_not_permitted")
                status = INVALID_ATTRIBUTE_VALUE
            else:
                self._controlled(before, packet, mad)
        if mad.managementClass == SUBNET_DIRECTED:
            status |= DIRECTION
        answer = evolve(mad, method=GET_RESPONSE, status=status, data=self.information().pack())
        self.send(Packet(packet.dlid, packet.slid, SMI_QPN, packet.source, bytearray(answer.pack())))

    def _controlled(self, before: SMState, packet: Packet, mad: Mad) -> None:
        after = self._election.state
        if mad.modifier == Control.HANDOVER and not self._isAcknowledging:
            self._isAcknowledging = True
            self._control(Control.ACKNOWLEDGE, *_back(packet, mad), self._acknowledged)
        if before is SMState.MASTER and after is not SMState.MASTER:
            self._relinquish()
        if after in (SMState.MASTER, SMState.DISCOVERING):
            # All is discovered again before anything is set.
            self._heavy = True
        elif after is SMState.STANDBY:
            self._latest = self._now + limits.SM_POLL_SECONDS

    def _control(self, control: Control, route: bytes | None, lid: int, answered: Answered) -> None:
        data = evolve(self.information(), smInfoKey=self.key).pack()
        self._requests.add([Request(route, SMInfo.ID, control, answered, data, lid)])

    def _acknowledged(self, data: bytes | None) -> None:
        self._isAcknowledging = False

    def _elect(self, managers: list[tuple[Port, SMInfo]], own: Port) -> None:
        self._election.guid = own.guid
        self._election.discovered(info for _, info in managers)
        successor = next((port for port, _ in managers if port.guid == self._election.successor), None)
        if successor is not None:
            self._control(Control.HANDOVER, successor.route, 0, _ignore)
        self.model.managers = {port.guid: info for port, info in managers}
        self.model.managers[own.guid] = self.information()

    def _poll(self) -> Iterator[None]:
        self._latest = self._now + limits.SM_POLL_SECONDS
        port = self.model.guids.get(self._election.master)
        if port is None:
            self._election.polled(None)
        else:
            # By its LID: the way there may be another one by now.
            route = None if port.lid else port.route
            self._requests.add([Request(route, SMInfo.ID, 0, partial(self._polled, port), lid=port.lid)])
            yield
        if self._election.state is SMState.DISCOVERING:
            self._heavy = True

    def _polled(self, port: Port, data: bytes | None) -> None:
        info = None if data is None else evolve(SMInfo.parse(data), smInfoGuid=port.guid)
        self._election.polled(info)

    # -- traps

    def _trap(self, packet: Packet, mad: Mad, data: bytes) -> None:
        sender = self.model.lids.get(packet.slid)
        if self._election.state is not SMState.MASTER or sender is None:
            self._count("sm_unknown_sender" if sender is None else "sm_unexpected")
            return
        answer = evolve(mad, method=TRAP_REPRESS)
        self.send(Packet(packet.dlid, packet.slid, SMI_QPN, SMI_QPN, bytearray(answer.pack())))
        notice = Notice.parse(data)
        if notice.noticeIsGeneric and notice.noticeTrapNumber == Trap.LINK_STATE_CHANGED:
            self._light = True
        elif notice.noticeIsGeneric and notice.noticeTrapNumber == Trap.CAPABILITY_CHANGED:
            self._light = True
            self._reporters.add(sender.guid)
        if self.administration is not None:
            self.administration.notify(notice, sender.gid, self._now)

    # -- time

    def deadline(self) -> float | None:
        """
        @return: when L{expired} is to be called, if it is.
        """
        if self._isResigned:
            return None
        times = [self._requests.deadline()]
        if self._requests.isIdle:
            times.append(self._next())
        if self.administration is not None and self._election.state is SMState.MASTER:
            times.append(self.administration.deadline())
        return min((each for each in times if each is not None), default=None)

    def _next(self) -> float | None:
        # When L{_job} will have something to do.
        state = self._election.state
        if state is SMState.NOT_ACTIVE:
            return None
        if state is SMState.STANDBY:
            return self._latest
        isSoon = self._heavy or (self._light and state is SMState.MASTER)
        return self._earliest if isSoon else max(self._earliest, self._latest)

    def expired(self, now: float) -> None:
        """
        The deadline has passed.
        """
        if self._isResigned:
            return
        self._now = now
        self._requests.expired(now)
        if self.administration is not None and self._election.state is SMState.MASTER:
            deadline = self.administration.deadline()
            if deadline is not None and deadline <= now:
                self.administration.expired(now)
        self._advance(now)

    def _advance(self, now: float) -> None:
        self._now = now
        while True:
            self._requests.fill(now)
            if not self._requests.isIdle:
                return
            if self._stages is None:
                self._stages = self._job()
                if self._stages is None:
                    return
            if next(self._stages, _ENDED) is _ENDED:
                self._stages = None

    def _job(self) -> Iterator[None] | None:
        state, isMaster = self._election.state, self._election.state is SMState.MASTER
        isDue = self._now >= self._latest
        if state is SMState.NOT_ACTIVE:
            return None
        if state is SMState.STANDBY:
            return self._poll() if isDue else None
        if self._now >= self._earliest:
            if self._heavy or (isDue and not isMaster):
                self._heavy = self._light = False
                return self._sweep()
            if isMaster and (self._light or isDue):
                self._light = False
                return self._lightSweep()
        return self._regroup() if self._dirty and isMaster else None

    def _began(self) -> None:
        self._earliest = self._now + limits.SM_SWEEP_GAP_SECONDS
        self._latest = self._now + self._options.sweepSeconds

    # -- sweeps

    def _lightSweep(self) -> Iterator[None]:
        self._began()
        managers: list[tuple[Port, SMInfo]] = []
        self._requests.add(self._lightRequests(managers))
        yield
        own = self.model.own
        if own is not None and not self._heavy:
            self._elect(managers, own)
        self._heavy |= not (self._isComplete and self._configuration.isComplete)
        if self._heavy:
            # It is the rest of this one.
            self._earliest = self._now

    def _lightRequests(self, managers: list[tuple[Port, SMInfo]]) -> Iterator[Request]:
        for node in self.model.switches():
            yield Request(node.ports[0].route, SwitchInfo.ID, 0, self._switchIs)
        asked = {self._election.guid, *self._reporters}
        self._reporters.clear()
        for port in [self.model.guids[guid] for guid in asked if guid in self.model.guids]:
            yield Request(port.route, PortInfo.ID, port.number, partial(self._portIs, port))
        for port in [self.model.guids[guid] for guid in self.model.managers if guid in self.model.guids]:
            if port is not self.model.own:
                yield Request(port.route, SMInfo.ID, 0, partial(self._managerIs, port, managers))

    def _switchIs(self, data: bytes | None) -> None:
        if data is None or SwitchInfo.parse(data).stateChange:
            self._changed()

    def _changed(self) -> None:
        # A heavy sweep is needed: the light one has nothing more to find, and what it asks may be
        # unreachable.
        self._heavy = True
        self._cancel()

    def _portIs(self, port: Port, data: bytes | None) -> None:
        if data is None:
            self._changed()
            return
        old, port.info = port.info, PortInfo.parse(data)
        changed = (old.capMask ^ port.info.capMask) & Capability.SM and port is not self.model.own
        if changed or old.linkState != port.info.linkState:
            self._changed()

    def _managerIs(self, port: Port, managers: list[tuple[Port, SMInfo]], data: bytes | None) -> None:
        if data is None:
            self._changed()
        else:
            managers.append((port, evolve(SMInfo.parse(data), smInfoGuid=port.guid)))

    def _sweep(self) -> Iterator[None]:
        self.sweeps += 1
        self._began()
        discovery = Discovery(self._requests, self._count)
        discovery.begin()
        yield
        discovery.finish()
        own = discovery.own
        if own is None:
            self._isComplete = False
            return
        self._elect(discovery.managers, own)
        if self._election.state is not SMState.MASTER:
            self.model.replace(discovery.nodes, own)
            self._latest = self._now + limits.SM_POLL_SECONDS
            return
        yield from self._configure(discovery.nodes, own)
        self._isComplete = discovery.isComplete and self._configuration.isComplete
        self._isNew = False
        if self.administration is not None:
            self.administration.swept(self._now)

    def _configure(self, nodes: dict[int, Node], own: Port) -> Iterator[None]:
        configuration, model = self._configuration, self.model
        configuration.isComplete = True
        ends = [port for node in nodes.values() for port in node.ends()]
        capacities = [node.switch.info.linearFdbCap - 1 for node in nodes.values() if node.switch is not None]
        lids = self._lids.assign(ends, min((LARGEST_UNICAST_LID, *capacities)))
        for port in ends:
            if port.guid not in lids:
                self._count("sm_no_lid")
        if own.guid not in lids:
            configuration.isComplete = False
            return
        configuration.retain(nodes, lids[own.guid])
        # A switch that does not know this manager sends it no trap of what changes meanwhile.
        switches = [node.ports[0] for node in nodes.values() if node.switch is not None]
        self._light |= any(port.info.smLID != lids[own.guid] for port in switches)
        ports = [port for node in nodes.values() for port in node.ports.values()]
        self._requests.add(configuration.ends(ports, lids, lids[own.guid], self._options.prefix))
        yield
        model.replace(nodes, own)
        self._routing = routing = Routing(nodes.values())
        for node, table in routing.linear().items():
            self._requests.add(configuration.linear(node, table))
        self._dirty.update(self._groups)
        self._requests.add(self._multicast())
        for port in ends:
            self._requests.add(configuration.partitions(port, self._keys(port)))
        yield
        self._requests.add(configuration.states(ports, PortState.INIT, PortState.ARMED))
        yield
        self._requests.add(configuration.states(ports, PortState.ARMED, PortState.ACTIVE))
        yield

    def _keys(self, port: Port) -> tuple[int, ...]:
        size = len(port.keys)
        keys, left = keysOf(self.model.partitions, port.guid, port.node.kind, port is self.model.own, size)
        for _ in range(left):
            self._count("sm_no_pkey")
        return keys + (0,) * (size - len(keys))

    # -- multicast groups

    def setGroup(self, mlid: int, members: Iterable[int], senders: Iterable[int] = ()) -> None:
        """
        A multicast group has other members: the forwarding tables of switches are made so.

        @param mlid: its multicast LID.
        @param members: GUIDs of ports that receive; those that are not in the subnet are ignored until they
            are.
        @param senders: the same of ports that only send.  Neither: the group is no more.
        """
        present = {**dict.fromkeys(senders, False), **dict.fromkeys(members, True)}
        if mlid not in _MULTICAST_LIDS:
            raise ValueError(f"{mlid:#x} is no multicast LID")
        if present and mlid not in self._groups and len(self._groups) >= limits.SM_GROUPS:
            self._count("sm_too_many_groups")
            return
        if present != self._groups.get(mlid, {}):
            self._dirty.add(mlid)
            self._groups[mlid] = present
        if not present:
            self._groups.pop(mlid, None)

    def _regroup(self) -> Iterator[None]:
        self._requests.add(self._multicast())
        yield

    def _multicast(self) -> Iterator[Request]:
        mlids, self._dirty = self._dirty, set()
        routing = self._routing
        if routing is None:
            return
        guids = self.model.guids
        for mlid in mlids:
            ports: dict[bool, list[Port]] = {True: [], False: []}
            for guid, receives in self._groups.get(mlid, {}).items():
                if guid in guids:
                    ports[receives].append(guids[guid])
            masks = routing.multicast(ports[True], mlid, ports[False])
            for node in self.model.switches():
                switch = node.switch
                if switch is not None and masks.get(node):
                    switch.multicast[mlid] = masks[node]
                elif switch is not None:
                    switch.multicast.pop(mlid, None)
        for node in self.model.switches():
            yield from self._configuration.multicast(node, mlids)


def _back(packet: Packet, mad: Mad) -> tuple[bytes | None, int]:
    # The route and the LID of the sender of a request.
    header = mad.header
    if not isinstance(header, DirectedHeader):
        return None, packet.slid
    hops = mad.classSpecific & _COUNT
    return header.returnPath[1 : 1 + hops][::-1], 0


def _ignore(data: bytes | None) -> None:
    pass


__all__ = ["Manager", "Options"]
