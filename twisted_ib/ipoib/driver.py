"""
The driver of an interface's machine: a UD queue pair, connections, timers and the subnet of one device; and
the paths of its datagrams, address handles that live as long as the machine has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve
from twisted.logger import Logger
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import DeviceError, HCAError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.operation import MULTICAST_QPN
from twisted_ib.hca.base.partition import matches
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.queues.consumers import IDatagramConsumer
from twisted_ib.hca.services.datagramconsumer import InlineDatagrams
from twisted_ib.ipoib.connections import Connection, Connections
from twisted_ib.ipoib.protocol.interfaces import COUNTERS, Group, IMachineDriver
from twisted_ib.ipoib.subnetaccess import groupVector, subnetAccess

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.services.address import AddressHandle, AddressVector
    from twisted_ib.hca.services.datagramconsumer import DatagramSource
    from twisted_ib.ipoib.protocol.machine import Machine

_log = Logger()

#: After these ports may have other LIDs (Linux C{ipoib_verbs.c}, C{ipoib_event}).
_CHANGES: Final = frozenset(
    (
        *(EventType.PORT_ACTIVE, EventType.LID_CHANGE, EventType.SM_CHANGE, EventType.PKEY_CHANGE),
        EventType.CLIENT_REREGISTER,
    )
)


class Path:
    """
    The path to a port or a group.

    @ivar handle: its address handle.
    """

    __slots__ = ("_paths", "handle")

    def __init__(self, paths: Paths, handle: AddressHandle) -> None:
        self._paths = paths
        self.handle = handle

    # The machine forgets paths in many places, and its bounds are those of what it remembers.
    def __del__(self) -> None:
        self._paths.destroy(self.handle)


class Paths:
    """
    The paths of one interface.
    """

    def __init__(self, device: Device) -> None:
        self._objects, self._memory = device.objects, device.memory
        self._pd = device.memory.allocateDomain()
        self._handles: set[AddressHandle] = set()

    def open(self, vector: AddressVector) -> Path:
        """
        @raise HCAError: the address is unreachable, or there are too many address handles.
        """
        handle = self._objects.createAddressHandle(self._pd, vector)
        self._handles.add(handle)
        return Path(self, handle)

    def destroy(self, handle: AddressHandle) -> None:
        """
        Nobody has a path any more.
        """
        if handle in self._handles:
            self._handles.remove(handle)
            self._objects.destroyAddressHandle(handle)

    def close(self) -> None:
        """
        Close all paths, whoever has them.  Idempotent.
        """
        for handle in list(self._handles):
            self.destroy(handle)
        if self._pd in self._memory.domains:
            self._memory.deallocateDomain(self._pd)


class _Joined:
    """
    A group that the machine has asked for.

    @ivar membership: the L{IMembership<twisted_ib.ipoib.subnetaccess.IMembership>}; L{None} until there is
        one.
    @ivar isAttached: whether the queue pair takes what is sent to it.
    """

    __slots__ = ("isAttached", "membership")

    def __init__(self) -> None:
        self.membership: Any = None
        self.isAttached = False


@implementer(IMachineDriver, IDatagramConsumer)
class Driver:
    """
    The driver of one machine, which it has no knowledge of but this seam.

    @ivar machine: the machine.
    @ivar user: takes C{interfaceUp}, C{interfaceFailed}, C{found}, C{notFound}, C{moved} and C{ended}.
    @ivar consumer: the L{IPacketConsumer<twisted_ib.ipoib.interface.IPacketConsumer>}.
    @ivar counters: L{COUNTERS<twisted_ib.ipoib.protocol.interfaces.COUNTERS>}.
    @ivar number: that of the UD queue pair; it is another when the port was out of the partition.
    @ivar broadcast: the broadcast group; L{None} until it was joined.
    """

    machine: Machine
    consumer: Any

    def __init__(self, device: Device, user: Any, pKey: int) -> None:
        """
        @param pKey: the partition, with the bit of full members.
        @raise DeviceError: the port is not in the partition, or the device has no groups of IPv6.
        @raise ResourceLimitError: there are too many queue pairs.
        """
        self.device, self.user, self.clock = device, user, device.clock
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self._pKey = pKey
        self.access = subnetAccess(device, pKey)
        self._groups: dict[int, _Joined] = {}
        self._queueKey = 0
        self.broadcast: Group | None = None
        self._timer: Timer | None = None
        self._isDirty = self._isClosed = False
        #: Groups whose membership is being given up.
        self._leaving: set[_Joined] = set()
        self._closed: Callable[[], object] | None = None
        self.interfaceUp, self.interfaceFailed = user.interfaceUp, user.interfaceFailed
        self.found, self.notFound = user.found, user.notFound
        self._open()
        self._paths = Paths(device)
        device.portWatchers.append(self._portEvent)

    def _open(self) -> None:
        device, partition = self.device, _partitionIndex(self.device, self._pKey)
        self._queuePair = device.createQueuePair(self, QPType.UD)
        self.number = self._queuePair.number
        self._datagrams = InlineDatagrams(self._queuePair)
        self._queuePair.modify(QPState.INIT, pkey_index=partition, port_num=1, qkey=0)
        self._connections = Connections(device, self.number, partition)

    def begin(self, machine: Machine) -> None:
        """
        Begin with a machine, or with another when the one before is closed.
        """
        self.broadcast = None
        self.machine = self._connections.machine = machine
        machine.begin(self.clock())
        self.wake()

    # -- datagrams

    def datagramReceived(self, source: DatagramSource, buffer: Any, start: int, stop: int) -> None:
        self.machine.datagramReceived(source.vector.gid, buffer, start, stop, self.clock())

    def post(self, path: Path, number: int, frame: Any) -> None:
        try:
            self._datagrams.post(path.handle, number, self._queueKey, frame)
        except QueuePairError:
            # The queue pair has failed, or the link's MTU is less than that of the groups.
            self.device.count("datagrams_lost")

    def postGroup(self, group: Group, frame: Any) -> None:
        try:
            self._datagrams.post(group.path.handle, MULTICAST_QPN, group.qKey, frame)
        except QueuePairError:
            self.device.count("datagrams_lost")

    def failed(self, reason: Exception) -> None:
        # The port has left the partition.
        self.user.ended(reason)
        self._shut()

    def _shut(self) -> None:
        for mgid in list(self._groups):
            self.leave(mgid)
        self._connections.close()
        self._queuePair.close()

    def forked(self) -> None:
        self._isClosed = True

    def deliver(self, buffer: Any, start: int, stop: int) -> None:
        try:
            self.consumer.packetReceived(buffer, start, stop)
        except Exception:
            # One user's mistake must not end the machine's work in the midst of it.
            _log.failure("while a packet of {name} was delivered", name=self.device.name)

    # -- connections

    def connect(self, gid: int, number: int, privateData: bytes) -> Connection:
        return self._connections.connect(gid, number, privateData)

    #: See L{IMachineDriver}: a connection is its own handle.
    postConnected = staticmethod(Connection.post)
    disconnect = staticmethod(Connection.close)

    # -- the subnet

    def resolve(self, gid: int) -> None:
        def taken(outcome: AddressVector | HCAError) -> None:
            if self._isClosed:
                return
            try:
                path = None if isinstance(outcome, HCAError) else self._paths.open(outcome)
            except HCAError:
                path = None
            if path is None:
                self.machine.pathFailed(gid, self.clock())
            else:
                self.machine.pathResolved(gid, path, self.clock())

        self.access.path(gid, taken)

    def join(self, mgid: int, isSendOnly: bool, template: Group | None) -> None:
        before = self._groups.get(mgid)
        joined = self._groups[mgid] = _Joined()
        taken = partial(self._joined, joined, mgid, isSendOnly, template)
        joined.membership = self.access.join(mgid, isSendOnly, template, taken)
        if before is not None:
            self._leave(mgid, before)
        if self._groups.get(mgid) is not joined:
            # It was refused before it had a membership to leave.
            self._leave(mgid, joined)

    def _joined(
        self, joined: _Joined, mgid: int, isSendOnly: bool, template: Group | None, outcome: Group | HCAError
    ) -> None:
        if self._groups.get(mgid) is not joined:
            return
        try:
            if isinstance(outcome, HCAError):
                raise outcome
            group = evolve(outcome, path=self._paths.open(groupVector(outcome)))
            if template is None:
                self._takeKey(group.qKey)
                self.broadcast = group
            if not isSendOnly and not joined.isAttached:
                self.device.paths.attach(self._queuePair, mgid)
                joined.isAttached = True
        except HCAError as error:
            del self._groups[mgid]
            self._leave(mgid, joined)
            self.machine.joinFailed(mgid, error, self.clock())
        else:
            self.machine.joined(mgid, group, self.clock())

    def _takeKey(self, key: int) -> None:
        # RFC 4391 section 9.1: unicast datagrams have the Q_Key of the broadcast group.
        self._queueKey = key
        queuePair = self._queuePair
        if queuePair.state is QPState.INIT:
            queuePair.modify(QPState.RTR)
            queuePair.modify(QPState.RTS, sq_psn=0)
        queuePair.modify(QPState.RTS, qkey=key)

    def leave(self, mgid: int) -> None:
        joined = self._groups.pop(mgid, None)
        if joined is not None:
            self._leave(mgid, joined)

    def _leave(self, mgid: int, joined: _Joined) -> None:
        if joined.isAttached and self._queuePair.state is not QPState.RESET:
            joined.isAttached = False
            self.device.paths.detach(self._queuePair, mgid)
        membership, joined.membership = joined.membership, None
        if membership is not None:
            self._leaving.add(joined)
            membership.close(partial(self._gone, joined))

    def _gone(self, joined: _Joined) -> None:
        self._leaving.discard(joined)
        if self._isClosed and not self._leaving:
            self._finish()

    def _portEvent(self, kind: EventType) -> None:
        if self._queuePair.state is QPState.RESET:
            # As in Linux ipoib_ib.c, an interface whose P_Key has gone waits for it.
            if kind is EventType.PKEY_CHANGE:
                self._reopen()
        elif kind is EventType.GID_CHANGE:
            self.user.moved()
        elif kind in _CHANGES:
            self.machine.subnetChanged(self.clock())

    def _reopen(self) -> None:
        try:
            self._open()
        except DeviceError:
            # It is not back yet.
            return
        except ResourceLimitError as error:
            self.user.ended(error)
            return
        self.user.moved()

    # -- time

    def deadlineChanged(self) -> None:
        when, timer = self.machine.deadline(), self._timer
        # Too early is harmless, and cheaper than a new timer for each change.
        if when is None or (timer is not None and timer.when <= when):
            return
        if timer is not None:
            timer.cancel()
        self._timer = self.device.timers.start(max(0.0, when - self.clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.machine.tick(self.clock())
        finally:
            self.deadlineChanged()

    def wake(self) -> None:
        """
        Have the device's turn begin soon: the user has called outside of it.
        """
        # The peers are woken at the end of the turn, once for all packets.
        if not self._isDirty:
            self._isDirty = True
            self.device.markDirty(self)

    def endOfBatch(self) -> None:
        """
        The turn has come.
        """
        self._isDirty = False

    def send(self, frame: Any) -> None:
        """
        See L{IPoIBInterface.send<twisted_ib.ipoib.interface.IPoIBInterface.send>}.
        """
        if not self._isClosed:
            self.machine.send(frame, self.clock())
            if not self._isDirty:
                self.wake()

    def count(self, name: str) -> None:
        self.counters[name] += 1

    # -- the end

    def close(self, closed: Callable[[], object]) -> None:
        """
        Leave all groups, and end all connections.  Nothing is called any more but this:

        @param closed: called when subnet administration has been told, or does not answer for
            L{limits.IPOIB_LEAVE_SECONDS}.
        """
        device = self.device
        if not device.closed:
            self.machine.close(self.clock())
        self._isClosed = True
        device.portWatchers.remove(self._portEvent)
        self._shut()
        self._paths.close()
        if self._timer is not None:
            self._timer.cancel()
        self._closed = closed
        if self._leaving and not device.closed:
            self._timer = device.timers.start(limits.IPOIB_LEAVE_SECONDS, self._finish)
            self.wake()
        else:
            self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()


def _partitionIndex(device: Device, pKey: int) -> int:
    for index, key in enumerate(device.partitions.keys):
        if matches(pKey, key):
            return index
    raise DeviceError(f"{device.name} is not in partition {pKey:#06x}: its subnet manager decides that")
