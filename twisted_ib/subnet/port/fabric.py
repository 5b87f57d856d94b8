"""
C{ib0}: the fabric of one HCA whose port belongs to a subnet.

The records go over another fabric, of rings or within a thread, which gives the paths to the HCAs of GUIDs.
The subnet says which GUID a LID leads to from here, who connects with whom, and the settings of the port.
Its managers, and devices that ask them, send MADs through the subnet itself.

The subnet tells its changes within the turn of another device; each device hears of them in its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from attrs import evolve
from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HCAError, NoRouteError
from twisted_ib.hca.base.interfaces import IFabric
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.base.traits import SUBNET
from twisted_ib.hca.connection.rdmacm import gidNumber, guidOf
from twisted_ib.hca.fabric.base.subnetdirectory import ISubnetDirectory
from twisted_ib.hca.services.datagramform import localDatagram
from twisted_ib.hca.wire.headers import DETH, MAD_BYTES, QUEUE_KEY
from twisted_ib.hca.wire.mad.classes import COMMUNICATION
from twisted_ib.hca.wire.mad.mad import CLASS_AT
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.port.paths import ManagementPath, SubnetPath

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import PathUser, Search
    from twisted_ib.hca.base.port import KeyViolation, PortChange
    from twisted_ib.hca.device.device import Device
    from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
    from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric

    Records = LoopbackFabric | SharedMemoryFabric

#: Settings of the port that wait for the device's turn; each has all of them, so that the latest suffice.
_CHANGES: Final = 64
#: MADs that wait for the observer: what makes a port Active is less.
_PASSED: Final = 256


class _Port(Protocol):
    @property
    def guid(self) -> int: ...
    @property
    def generation(self) -> int: ...
    def watchedBy(self, fabric: object) -> None: ...
    def settings(self) -> PortChange: ...
    def route(self, lid: int) -> int: ...
    def members(self, lid: int) -> tuple[int, ...]: ...
    def refresh(self) -> None: ...
    def has(self, guid: int) -> bool: ...
    def lidOf(self, guid: int) -> int: ...
    def connects(self, guid: int, partition: int) -> bool: ...
    def named(self, description: str) -> int: ...
    def send(self, packet: Packet) -> None: ...
    def setSM(self, isSM: bool) -> None: ...
    def violated(self, count: int, violation: KeyViolation) -> None: ...
    def forked(self) -> None: ...
    def close(self) -> None: ...


class _Observer(Protocol):
    def tracedMAD(self, isOutbound: bool, packet: Packet) -> None: ...


class _Checked:
    """
    A consumer that asks for the path to a service, and its search.

    A port learns of others, and they reach it, after it has come: so what it does not know yet is waited for,
    while the subnet's host is stopped as long as the consumer waits.
    """

    def __init__(self, fabric: SubnetFabric, serviceID: int, address: str, user: PathUser) -> None:
        self._fabric = fabric
        self._serviceID, self._address = serviceID, address
        self._user = user
        self._left = limits.SUBNET_ROUTE_LOOKS
        self._wasSilent = self._isBelieved = False
        # The directory's search, or the wait.
        self._search: Search | None = None
        self._isOver = False

    def look(self) -> None:
        """
        Ask the directory, if the HCA of a GID of the subnet is known.

        @raise HCAError: the address is none that it knows.
        """
        fabric, before = self._fabric, self._search
        guid = guidOf(self._address, fabric.owner.port.subnetPrefix)
        isKnown = fabric.knows(guid)
        if guid and not isKnown and self._waits(self._lookAgain):
            return
        search = fabric.search(guid if isKnown else 0, self._serviceID, self._address, self)
        # The answer may have come at once, and be waited for again.
        if self._search is before:
            self._search = search

    def _lookAgain(self) -> None:
        try:
            self.look()
        except HCAError as error:
            self._user.connectFailed(error)

    def _waits(self, call: Callable[[], None]) -> bool:
        # Whether something is called later; False if what is known is all there is.
        owner = self._fabric.owner
        if self._left:
            self._left -= 1
            self._search = owner.timers.start(limits.SUBNET_ROUTE_SECONDS, call)
        elif self._isBelieved:
            return False
        else:
            try:
                self._search = owner.sa.silent(partial(self._answered, call))
            except HCAError:
                return False
        return True

    def _answered(self, call: Callable[[], None], isSilent: bool) -> None:
        # What the host has to say when it is back comes a little after that.
        self._isBelieved = not isSilent and not self._wasSilent
        self._wasSilent = isSilent
        if not self._isBelieved:
            self._left = limits.SUBNET_ROUTE_LOOKS
        call()

    def cancel(self) -> None:
        self._isOver = True
        if self._search is not None:
            self._search.cancel()

    def pathReady(self, path: SubnetPath) -> None:
        if self._isOver:
            return
        guid = path.peer.guid
        if self._fabric.connects(guid):
            self._user.pathReady(path)
        elif not self._waits(partial(self.pathReady, path)):
            self._user.connectFailed(NoRouteError(f"the subnet does not lead to HCA {guid:016x} and back"))

    def connectFailed(self, error: Exception) -> None:
        self._user.connectFailed(error)


_Value = TypeVar("_Value")


class _OfRecords(Generic[_Value]):
    """
    An attribute that the fabric of the records has.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, fabric: SubnetFabric, owner: type) -> _Value:
        found: _Value = getattr(fabric._records, self._name)
        return found

    def __set__(self, fabric: SubnetFabric, value: _Value) -> None:
        setattr(fabric._records, self._name, value)


@implementer(IFabric, ISubnetDirectory)
class SubnetFabric:
    """
    The fabric of one HCA of a subnet, and the device at its port: see
    L{IAttachedDevice<twisted_ib.subnet.hosting.attached.IAttachedDevice>}.

    @ivar port: its port: an L{AttachedPort<twisted_ib.subnet.hosting.attached.AttachedPort>}.
    @ivar guid: that of the port, which is the HCA's.
    """

    name: ClassVar[str] = "ib"

    def __init__(
        self,
        owner: Device,
        guid: int,
        clock: Callable[[], float],
        attach: Callable[[SubnetFabric, int], _Port],
        records: Callable[[Device, int, Callable[[], float]], Records],
    ) -> None:
        """
        @param owner: the device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param guid: of the HCA, if its port has none.
        @param attach: attaches this fabric, and gives its port: a function of it and C{guid}.
        @param records: makes the fabric that carries the records, a function of owner, GUID and clock.
        """
        self.owner = owner
        self.facts: dict[str, str] = {}
        self._changes: deque[PortChange] = deque(maxlen=_CHANGES)
        self._mads: deque[Packet] = deque()
        self._observer: _Observer | None = None
        #: MADs that pass the port while there is no observer yet.
        self._passed: deque[tuple[bool, Packet]] = deque(maxlen=_PASSED)
        self._isRerouted = self._isWaiting = False
        self._joined: set[int] = set()
        #: Multicast LID -> the members elsewhere, and with this HCA.
        self._members: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._checks: Iterator[tuple[SubnetPath, int]] | None = None
        #: By their kind: how many, and the latest.
        self._violations: dict[bool, tuple[int, KeyViolation]] = {}
        self._isReady = False
        self.port = port = attach(self, guid)
        self.guid: int = port.guid
        try:
            inner = records(owner, self.guid, clock)
        except BaseException:
            port.close()
            raise
        self._records = inner
        self._isReady = True
        port.watchedBy(inner)
        self.traits = evolve(inner.traits, peers=SUBNET.peers, linkLayer=SUBNET.linkLayer)
        inner.trace(self)
        self.answerSeconds = inner.answerSeconds
        # Those that run in each turn, without a call of this object's.
        self.progress, self.ringBells, self.pending = inner.progress, inner.ringBells, inner.pending
        self.arm, self.look, self.attend = inner.arm, inner.look, inner.attend
        self.deadline, self.tick = inner.deadline, inner.tick
        self.published = inner.published
        self.fileno, self.signal, self.registerWith = inner.fileno, inner.signal, inner.registerWith
        self.unsent, self.paths, self.allocate = inner.unsent, inner.paths, inner.allocate
        self.count = inner.count
        self.withdraw, self.serving = inner.withdraw, inner.serving
        self.reach, self.proves = inner.reach, inner.proves
        # Of those in the run directory.
        self.attachPage = getattr(inner, "attachPage", None)

    def trace(self, observer: _Observer) -> None:
        self._records.trace(observer)
        self._observer = observer
        while self._passed:
            observer.tracedMAD(*self._passed.popleft())

    def tracedPaths(self, base: Any) -> Any:
        """
        The classes of paths are replaced as for a capture.
        """
        return type(
            "SubnetPath", (SubnetPath, base), {"port": self.port, "violated": staticmethod(self.violated)}
        )

    # -- the fabric of the records

    hot = _OfRecords[Any]()
    patient = _OfRecords[bool]()
    rung = _OfRecords[int]()
    sleeps = _OfRecords[int]()

    def octets(self) -> tuple[int, int] | None:
        found: tuple[int, int] | None = self._records.octets()
        return found

    # -- directory

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        # The address is a GID of the port, or one of this host.
        self._records.publish(serviceID, address, inode, self._isOwn(address))

    def publishAny(self, prefix: int, address: str) -> int:
        port: int = self._records.publishAny(prefix, address, self._isOwn(address))
        return port

    def resolve(self, serviceID: int, address: str, user: PathUser) -> Search:
        # The address is a GID of the subnet, or one of this host.
        checked = _Checked(self, serviceID, address, user)
        checked.look()
        return checked

    def search(self, guid: int, serviceID: int, address: str, user: PathUser) -> Search:
        """
        Ask the directory of the records.

        @param guid: of an HCA that the subnet has; 0 for an address of this host.
        """
        found: Search
        if guid:
            found = self._records.reach(guid, user)
        else:
            found = self._records.resolve(serviceID, address, user)
        return found

    def _isOwn(self, address: str) -> bool:
        return gidNumber(address) in self.owner.port.gids

    def knows(self, guid: int) -> bool:
        """
        @return: whether the subnet has told of an HCA.
        """
        if guid and not self.port.has(guid):
            self.port.refresh()
        return bool(self.port.has(guid))

    def connects(self, guid: int) -> bool:
        """
        @return: whether this port and that of an HCA reach each other, in a partition of both.
        """
        partition = self.owner.partitions.keys[0]
        if not self.port.connects(guid, partition):
            # A peer that has just come may know of it earlier than this device.
            self.port.refresh()
        return bool(self.port.connects(guid, partition))

    def join(self, group: int) -> None:
        # Take what this HCA itself sends to groups; the members elsewhere are those of the switches' tables.
        self._joined.add(group)

    def leave(self, group: int) -> None:
        self._joined.discard(group)

    @property
    def generation(self) -> int:
        return int(self.port.generation)

    def route(self, lid: int) -> int:
        return int(self.port.route(lid))

    def has(self, guid: int) -> bool:
        return bool(self.port.has(guid))

    def named(self, description: str) -> int:
        return int(self.port.named(description))

    def lidOf(self, guid: int) -> int:
        return int(self.owner.port.lid if guid == self.guid else self.port.lidOf(guid))

    def guids(self, gid: int) -> tuple[set[int], set[int]]:
        return set(), set()

    def members(self, lid: int) -> tuple[int, ...]:
        found: tuple[int, ...] = self.port.members(lid)
        if not self._joined:
            return found
        # IBTA vol. 1 10.5: the queue pairs of the sender's own port get it from the HCA, not from a switch.
        # The same object while nothing has changed.
        known, members = self._members.get(lid, (None, found))
        if known is not found:
            if len(self._members) >= limits.MULTICAST_GROUPS:
                self._members.clear()
            members = (*found, self.guid)
            self._members[lid] = found, members
        return members

    def settings(self) -> PortChange:
        found: PortChange = self.port.settings()
        return found

    def violated(self, violation: KeyViolation) -> None:
        # The latest of each turn of the device: a flood of bad packets must not become one of messages.
        count, _ = self._violations.get(violation.isQueueKey, (0, None))
        self._violations[violation.isQueueKey] = count + 1, violation
        self._wait()

    def setSM(self, isSM: bool) -> None:
        self.port.setSM(isSM)

    # -- MADs

    @property
    def isWatching(self) -> bool:
        return self.owner.capture is not None

    def passed(self, isOutbound: bool, packet: Packet) -> None:
        if self._observer is None:
            self._passed.append((isOutbound, packet))
        else:
            self._observer.tracedMAD(isOutbound, packet)

    def managementPath(self, lid: int) -> ManagementPath:
        return ManagementPath(self, lid)

    def sendMAD(self, lid: int, source: int, number: int, octets: bytes) -> None:
        """
        Send a MAD through the subnet; it may be lost.

        @param source: the queue pair that sends it.
        @param number: the queue pair that it is for.
        """
        self.port.send(Packet(self.owner.port.lid, lid, source, number, bytearray(octets)))

    def received(self, packet: Packet) -> None:
        # Connections are made where their data goes: over paths.
        if packet.octets[CLASS_AT] == COMMUNICATION or len(self._mads) >= limits.SUBNET_MADS:
            self.owner.count("management_dropped")
            return
        self._mads.append(packet)
        self._wait()

    def _deliver(self, packet: Packet) -> None:
        owner, octets = self.owner, bytes(packet.octets)
        path, number = self.managementPath(packet.slid), packet.destination
        if number <= GSI_QPN:
            owner.madReceived(path, number, packet.source, octets, 0, MAD_BYTES)
            return
        # A class that was redirected to a queue pair of its own.
        head = localDatagram(packet.slid, packet.dlid, owner.partitions.keys[0])
        record = head + DETH.pack(QUEUE_KEY, packet.source) + octets
        owner.datagramReceived(path, UD_SEND_ONLY, number, record, 0, len(record))

    # -- changes

    def portChanged(self, change: PortChange) -> None:
        if self._isReady:
            self._changes.append(change)
            self._wait()

    def rerouted(self) -> None:
        if self._isReady:
            self._isRerouted = True
            self._wait()

    def _wait(self) -> None:
        if not self._isWaiting:
            self._isWaiting = True
            self.owner.markDirty(self)
            self.signal()

    def endOfBatch(self) -> None:
        """
        The device's turn: change its port, deliver MADs, look at some of the bound queue pairs.
        """
        self._isWaiting = False
        try:
            while self._changes:
                self.owner.changePort(self._changes.popleft())
            # Not those that come from within these.
            for _ in range(len(self._mads)):
                self._deliver(self._mads.popleft())
            self._check()
            while self._violations:
                self.port.violated(*self._violations.popitem()[1])
        finally:
            if (
                self._changes
                or self._mads
                or self._violations
                or self._isRerouted
                or self._checks is not None
            ):
                self._wait()

    def _check(self) -> None:
        # A check that has begun is finished first: under steady changes the last queue pairs have their turn
        # too.
        if self._checks is None and self._isRerouted:
            self._isRerouted = False
            self._checks = self._bound()
        if self._checks is not None:
            looked = 0
            for path, number in islice(self._checks, limits.SUBNET_CHECKS):
                path.look(number)
                looked += 1
            if looked < limits.SUBNET_CHECKS:
                self._checks = None

    def _bound(self) -> Iterator[tuple[SubnetPath, int]]:
        for path in self.paths():
            for number in list(path.table):
                yield path, number

    def forked(self) -> None:
        self.port.forked()
        self._records.forked()

    def close(self) -> None:
        try:
            self.port.close()
        finally:
            self._changes.clear()
            self._mads.clear()
            self._violations.clear()
            self._isWaiting = True
            self._records.close()
