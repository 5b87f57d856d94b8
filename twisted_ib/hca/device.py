"""
One software HCA: its identity, its objects, its progress.

A L{Device} owns a fabric, the communication manager, and the tables of queue
pairs and memory.  It needs no reactor: whoever uses it calls L{Device.progress},
and L{Device.tick} when L{Device.deadline} passes.  In Twisted that is
L{twisted_ib.hca.channel}.

A device belongs to the thread that opened it.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from threading import get_ident
from typing import Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import (
    DeviceClosedError,
    HCAError,
    NoRouteError,
    PathLostError,
    ResourceLimitError,
    WrongThreadError,
)
from twisted_ib.hca.attributes import deviceAttributes, extendedAttributes, portAttributes
from twisted_ib.hca.cm.machine import Connection, Output
from twisted_ib.hca.cm.sidr import Lookup
from twisted_ib.hca.cm.states import Event
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.core.address import Departures
from twisted_ib.hca.core.events import EventType
from twisted_ib.hca.core.keys import RandomIndices
from twisted_ib.hca.core.memory import Memory, MemoryRegion, ProtectionDomain
from twisted_ib.hca.core.queuepair import QueuePair
from twisted_ib.hca.core.states import QPType
from twisted_ib.hca.core.timers import Timers
from twisted_ib.hca.counters import Traffic, counters
from twisted_ib.hca.fabric.addresses import isLocalAddress, localAddresses, normalise
from twisted_ib.hca.fabric.registry import DEFAULT_DEVICE, openFabric
from twisted_ib.hca.interfaces import IFabricOwner
from twisted_ib.hca.objects import Objects
from twisted_ib.hca.paths import Paths
from twisted_ib.hca.wire.cm import RejectReason, SIDRStatus
from twisted_ib.hca.wire.rdmacm import PortSpace, textOf

#: RDMA-CM's port space of SDP (the destination address is in the Hello) and
#: where private data has it: offset of the version byte, of the address.
PS_SDP = 0x0001
_DESTINATION = {PS_SDP: (17, 48)}
#: Other port spaces have RDMA-CM's header (annex A11).
_RDMA_CM_DESTINATION = (1, 20)

#: The default subnet prefix: fe80::/64.
_PREFIX = 0xFE80 << 112


class _Manager(ConnectionTable):
    """
    A connection table whose messages leave in the order of everything else.

    @ivar messagesSent: How many have left.
    """

    messagesSent = 0

    def send(self, output: Output) -> None:
        """
        Publish a message at once: what a consumer sends after accepting a
        connection must arrive after the REP.
        """
        path, attribute, body = output
        self.messagesSent += 1
        path.sendManagement(attribute, body)


class Service:
    """
    A service that this HCA listens on.

    @ivar port: The port.
    @ivar address: The address, C{"0.0.0.0"} or C{"::"} for all.
    """

    __slots__ = ("_device", "_portSpace", "address", "port")

    def __init__(self, device: Device, portSpace: int, address: str, port: int) -> None:
        """
        For L{Device.listen}.

        @param device: The HCA.
        @param portSpace: Of the RDMA-CM.
        @param address: The address.
        @param port: The port.
        """
        self._device = device
        self._portSpace = portSpace
        self.address = address
        self.port = port

    @property
    def serviceID(self) -> int:
        """
        The service id.
        """
        return self._portSpace << 16 | self.port

    def close(self) -> None:
        """
        Listen no more.
        """
        self._device.unlisten(self)


@implementer(IFabricOwner)
class Device:
    """
    One software HCA.

    @ivar name: C{"shm0"} or another of L{twisted_ib.hca.fabric.registry}.
    @ivar guid: Its GUID, random.
    @ivar thread: The thread that it belongs to; 0 if its user takes care that no two
        threads are in it at a time.
    @ivar clock: Gives its time, seconds.
    @ivar cm: The communication manager.
    @ivar memory: Protection domains and memory regions.
    @ivar timers: Those of its queue pairs.
    @ivar objects: Completion queues, shared receive queues, address handles.
    @ivar departures: The ways that its datagrams go.
    @ivar paths: Which path leads to which GID; multicast groups.
    @ivar counters: How often what happened; L{statistics} has everything.
    @ivar traffic: What queue pairs moved that are gone.
    @ivar turns: How often L{progress} was called.
    @ivar heldBytes: Bytes that its consumers hold for readers that are paused.
    """

    def __init__(
        self,
        name: str = DEFAULT_DEVICE,
        clock: Callable[[], float] = time.monotonic,
        fabric: Callable[[Any, int, Callable[[], float]], Any] | None = None,
        randomBits: Callable[[int], int] = secrets.randbits,
        anyThread: bool = False,
    ) -> None:
        """
        Open a device.

        @param name: C{"shm0"} or another of L{twisted_ib.hca.fabric.registry}.
        @param clock: Gives the time, seconds, never going back.
        @param fabric: Makes its fabric; by default what C{name} stands for.
        @param randomBits: Gives that many random bits, which nobody can guess.
        @param anyThread: Whether any thread may use it, one at a time.
        @raise UnknownDeviceError: there is none of this name.
        @raise RunDirectoryError: processes can not meet.
        """
        self.name = name
        self.clock = clock
        self.thread = 0 if anyThread else get_ident()
        self.guid = randomBits(64) & ~(1 << 57) | 1
        self.counters: Counter[str] = Counter()
        self.traffic = Traffic()
        self.heldBytes = self.turns = 0
        self.closed = False
        #: Called when there is something to do outside of a turn.
        self.wanted: Callable[[], None] | None = None
        #: Called with an L{EventType} and this device, or L{None}.
        self.onEvent: Callable[[EventType, object], None] | None = None
        self.cm = _Manager(self.guid, randomBits)
        self.memory = Memory(randomBits)
        self.timers = Timers(clock)
        self.objects = Objects(self)
        self.departures = Departures(self)
        self.paths = Paths(self)
        self.queuePairs: dict[int, QueuePair] = {}
        self._numbers = RandomIndices(randomBits)
        self._holders: dict[Any, int] = {}
        self._listeners: dict[int, dict[str, Any]] = {}
        self._dirty: list[Any] = []
        self._opened = 0
        if fabric is None:
            self.fabric = openFabric(name, self, self.guid, clock)
        else:
            self.fabric = fabric(self, self.guid, clock)
        _devices.add(self)

    # -- identity

    def gids(self) -> list[str]:
        """
        @return: The GID table: the GUID's GID, then the host's addresses.
        """
        return [normalise(_gid(_PREFIX | self.guid)), *localAddresses()]

    def hasGID(self, gid: int) -> bool:
        """
        @param gid: 128 bits; an IPv4 address is in them as C{::ffff:a.b.c.d}.
        @return: Whether it is one of the GID table.
        """
        if gid == _PREFIX | self.guid:
            return True
        return self.isLocal(_address(4 if gid >> 32 == 0xFFFF else 6, gid.to_bytes(16, "big")))

    def localAddressFor(self, address: str, bound: str = "") -> str:
        """
        Choose the source address of a connection.

        @param address: Where to.
        @param bound: What the user bound, or nothing.
        @raise NoRouteError: C{bound} is not an address of this host.
        """
        if bound and bound not in ("0.0.0.0", "::"):
            if not isLocalAddress(bound):
                raise NoRouteError(f"{bound} is not an address of this host")
            return bound
        return address

    def isLocal(self, address: str) -> bool:
        """
        @param address: Of the peer.
        @return: Whether a peer may have this address: it is one of this host,
            as peers are its processes.
        """
        return _isLocal(address, int(self.clock()))

    def count(self, name: str) -> None:
        """
        Add one to the counter C{name}.
        """
        self.counters[name] += 1

    def warn(self, text: str) -> None:
        """
        Tell whoever runs this process of something that is not an error of a
        call.  In Twisted the channel replaces this by the log.

        @param text: A sentence.
        """
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def inUse(self) -> dict[str, int]:
        """
        @return: How many objects of which kind exist.
        """
        return {
            "pd": len(self.memory.domains),
            "mr": len(self.memory.regions),
            "cq": len(self.objects.completionQueues),
            "qp": len(self.queuePairs),
            "srq": len(self.objects.sharedReceiveQueues),
            "ah": len(self.objects.addressHandles),
            "mw": len(self.memory.windows),
        }

    def statistics(self) -> dict[str, int]:
        """
        @return: All counters by name: first rxe's, then ours
            (L{twisted_ib.hca.counters}).
        """
        events = {**self.counters, "management_sent": self.cm.messagesSent}
        return counters(self.traffic.with_(self.queuePairs.values()), events, self.cm.counters)

    def describe(self) -> dict[str, Any]:
        """
        @return: What C{ib-devinfo} shows of this HCA: plain values, for JSON, at most
            L{limits.ANSWER_BYTES} of it.
        """
        return {
            "hca_id": self.name,
            "pid": os.getpid(),
            "program": os.path.basename(sys.argv[0] or "python")[: limits.PROGRAM_BYTES],
            "attributes": {**deviceAttributes(self.guid), **extendedAttributes()},
            "port": portAttributes(self.counters["qkey_violations"]),
            "gids": self.gids()[: limits.DESCRIBED_GIDS],
            "in_use": self.inUse(),
            "counters": self.statistics(),
        }

    # -- services and connections

    def listen(self, portSpace: int, address: str, port: int, listener: Any) -> Service:
        """
        Listen on a service.

        @param portSpace: Of the RDMA-CM, such as L{PS_SDP}.
        @param address: An address of this host; C{""} or C{"::"} for all.
        @param port: The port, 0 for any.
        @param listener: An L{IServiceListener}.
        @raise ServiceInUseError: somebody has it.
        @raise NoRouteError: the address is not of this host.
        """
        self._check()
        address = normalise(address)
        prefix = portSpace << 16
        if port:
            self.fabric.publish(prefix | port, address)
        else:
            port = self.fabric.publishAny(prefix, address)
        serviceID = prefix | port
        addresses = self._listeners.get(serviceID)
        if addresses is None:
            addresses = self._listeners[serviceID] = {}
            self.cm.listen(serviceID, addresses)
        addresses[address] = listener
        return Service(self, portSpace, address, port)

    def unlisten(self, service: Service) -> None:
        """
        Listen no more: see L{Service.close}.

        @param service: What L{listen} gave.
        """
        serviceID = service.serviceID
        addresses = self._listeners.get(serviceID)
        if addresses is None or addresses.pop(service.address, None) is None:
            return
        if not addresses:
            del self._listeners[serviceID]
            self.cm.unlisten(serviceID)
        if not self.closed:
            self.fabric.withdraw(serviceID, service.address)

    def connect(self, portSpace: int, address: str, port: int, user: Any, now: float) -> Any:
        """
        Find the path to whoever listens on a service.

        @param portSpace: Of the RDMA-CM, such as L{PS_SDP}.
        @param address: Where to: an address of this host.
        @param port: The port.
        @param user: Gets C{pathReady(path)}, perhaps before this returns, or
            C{connectFailed(error)} later.
        @param now: The device's time, seconds.
        @return: Something with C{cancel()}.
        @raise HCAError: it can not be found.
        """
        self._check()
        return self.fabric.resolve(portSpace << 16 | port, normalise(address), user)

    def disconnect(self, connection: Connection, privateData: bytes = b"") -> None:
        """
        Send a DREQ.

        @param connection: Of the communication manager.
        @param privateData: what it says to the peer's user.
        """
        connection.disconnect(self.clock(), privateData)
        self._dispatch()

    def managementReceived(
        self, path: Any, attribute: int, buffer: Any, start: int, stop: int
    ) -> None:
        """
        See L{IFabricOwner}.
        """
        self.count("management_received")
        self.cm.receive(path, attribute, buffer, start, stop, self.clock())
        self._dispatch()

    def pathLost(self, path: Any, reason: PathLostError) -> None:
        """
        See L{IFabricOwner}.
        """
        first: BaseException | None = None
        self.departures.pathLost(path)
        self.paths.pathLost(path)
        for connection in self.cm.pathLost(path):
            try:
                self._connectionLost(connection, reason)
            except Exception as error:
                first = first or error  # The others must hear of it too.
        self._dispatch()
        if first is not None:
            raise first

    def _connectionLost(self, connection: Connection | Lookup, reason: PathLostError) -> None:
        """
        Tell the user of a connection, or who was asked about it, that its peer
        is gone.
        """
        if connection.user is not None:
            lost = getattr(connection.user, "pathLost", None)
            if lost is not None:
                lost(reason)
        elif connection.listener is not None:
            listener = self._listenerOf(connection)
            if listener is not None:
                listener.requestWithdrawn(connection)

    def _dispatch(self) -> None:
        """
        Tell the users what the communication manager has to say.
        """
        nextEvent = self.cm.nextEvent
        while True:
            event = nextEvent()
            if event is None:
                return
            kind, connection, message = event
            if connection is None:
                continue
            user = connection.user
            if kind == Event.REQUEST or kind == Event.LOOKUP:
                self._requested(connection, message)
            elif user is None:
                listener = self._listenerOf(connection)
                if listener is not None:
                    listener.requestWithdrawn(connection)
            elif kind == Event.REPLY:
                user.replied(connection, message)
            elif kind == Event.REJECTED:
                user.rejected(connection, message)
            elif kind == Event.UNREACHABLE:
                user.unreachable(connection)
            elif kind == Event.DISCONNECTED:
                user.peerDisconnected(connection)
            elif kind == Event.FOUND:
                user.found(connection, message)
            elif kind == Event.ESTABLISHED:
                established = getattr(user, "established", None)
                if established is not None:
                    established(connection, message)

    def _requested(self, connection: Any, request: Any) -> None:
        """
        Find the listener for a REQ or SIDR_REQ by the address that it was meant for.
        """
        addresses: Any = connection.listener
        address = _destinationOf(request)
        wildcard = "0.0.0.0" if "." in address else "::"
        key = address if address in addresses else wildcard
        if address.startswith("fe80:"):
            # Private data has no scope; who listens on a link has one.
            key = next((a for a in addresses if a.partition("%")[0] == address), key)
        listener = addresses.get(key)
        isLookup = isinstance(connection, Lookup)
        if listener is None or (isLookup and not hasattr(listener, "lookupRequested")):
            reason = SIDRStatus.SERVICE_ID_UNSUPPORTED if isLookup else RejectReason.INVALID_SERVICE_ID
            connection.reject(reason, b"", self.clock())
            return
        connection.listener = listener
        if isLookup:
            listener.lookupRequested(connection, request)
        else:
            listener.connectionRequested(connection, request)

    def _listenerOf(self, connection: Connection | Lookup) -> Any:
        """
        @return: Who was asked about a REQ, or L{None}.
        """
        listener = connection.listener
        return None if isinstance(listener, dict) else listener

    # -- paths

    def meet(self, queuePair: QueuePair) -> None:
        """
        Find the path of a queue pair's address vector: see L{Paths.meet}.

        @param queuePair: One that has an address vector.
        """
        self._check()
        self.paths.meet(queuePair)

    def reach(self, gid: int, user: Any) -> Any:
        """
        Find the way for datagrams to a GID: see L{Paths.reach}.
        """
        self._check()
        return self.paths.reach(gid, user)

    def datagramReceived(
        self, path: Any, opcode: int, number: int, buffer: Any, start: int, stop: int
    ) -> None:
        """
        See L{IFabricOwner}.
        """
        self.paths.datagramReceived(path, opcode, number, buffer, start, stop)

    def pathAccepted(self, path: Any) -> None:
        """
        See L{IFabricOwner}.
        """
        self.paths.pathAccepted(path)

    # -- queue pairs

    def createQueuePair(self, consumer: Any, type: QPType = QPType.RC) -> QueuePair:
        """
        Make a queue pair for a consumer that takes views.

        @param consumer: An L{IConsumer<twisted_ib.hca.interfaces.IConsumer>}.
        @param type: Its transport service.
        @return: The queue pair, in RESET.
        @raise ResourceLimitError: there are too many.
        """
        queuePairs = self.queuePairs
        if len(queuePairs) >= limits.QUEUE_PAIRS:
            raise ResourceLimitError(f"{limits.QUEUE_PAIRS} queue pairs exist")
        number = self._numbers.draw(queuePairs)
        queuePair = queuePairs[number] = QueuePair(number, consumer, self, type)
        if type == QPType.UD:
            self.paths.takesDatagrams = True
        self._opened += 1
        return queuePair

    def queuePairClosed(self, queuePair: QueuePair) -> None:
        """
        A queue pair was destroyed.

        @param queuePair: One of this device.
        """
        self.paths.queuePairClosed(queuePair)
        if self.queuePairs.pop(queuePair.number, None) is not None:
            self.traffic.add(queuePair)

    @property
    def queuePairsOpened(self) -> int:
        """
        How many queue pairs were made since the device was opened.
        """
        return self._opened

    # -- memory

    def allocateMemory(self, size: int, access: int, pd: ProtectionDomain) -> MemoryRegion:
        """
        Register new memory, which peers can map where the fabric can share it.

        @param size: Bytes.
        @param access: L{Access<twisted_ib.hca.core.memory.Access>} bits.
        @param pd: The domain that it is of.
        @return: The region.
        @raise HCAError: it can not be registered so.
        @raise OSError: there is no memory.
        """
        self._check()
        segment = self.fabric.allocate(size)
        if segment is None:
            return self.memory.register(bytearray(size), access, pd)
        try:
            return self.memory.register(memoryview(segment.map)[:size], access, pd, segment=segment)
        except BaseException:
            segment.close()
            raise

    def deregisterMemory(self, region: MemoryRegion) -> None:
        """
        Take a region's rights back, and what it was allocated from.

        @param region: One of this device.
        @raise HCAError: it is not registered.
        """
        segment: Any = region.segment
        self.memory.deregister(region)
        if segment is not None:
            self.releaseSegment(segment)

    def releaseSegment(self, segment: Any) -> None:
        """
        Give back what a region was allocated from, and have no peer map it any more.
        """
        for path in self.fabric.paths():
            path.withdraw(segment)
        segment.close()

    # -- batches and progress

    def markDirty(self, owner: Any) -> None:
        """
        Have C{owner.endOfBatch()} called at the end of this batch.
        """
        self._dirty.append(owner)
        if self.wanted is not None:
            self.wanted()

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        """
        Push what waits and take what has arrived.

        @param budget: Records per path at most.
        @return: How much was done; 0 if there was nothing to do.
        """
        n = 0
        self.turns += 1
        if self._dirty:
            n = self._endOfBatch()
        n += self.fabric.progress(budget)
        if self._dirty:
            n += self._endOfBatch()
        self.fabric.ringBells()
        return n

    def _endOfBatch(self) -> int:
        """
        Let those that gathered send.  Who becomes dirty meanwhile has the next
        batch.
        """
        owners, self._dirty = self._dirty, []
        k = 0
        try:
            for owner in owners:
                k += 1
                owner.endOfBatch()
        except BaseException:
            self._dirty = owners[k:] + self._dirty
            raise
        return len(owners)

    def ringBells(self) -> None:
        """
        Much was published in the middle of a batch: let the peers begin.
        """
        self.fabric.ringBells()

    def busy(self) -> bool:
        """
        @return: Whether L{progress} has something to do.
        """
        return bool(self._dirty) or self.fabric.pending()

    def arm(self) -> bool:
        """
        Ask to be woken through the descriptor.

        @return: False if there is work after all.
        """
        return not self._dirty and self.fabric.arm()

    def deadline(self) -> float | None:
        """
        @return: When L{tick} should be called.
        """
        found: float | None = self.cm.deadline(False)
        for when in (self.fabric.deadline(), self.timers.deadline()):
            if when is not None and (found is None or when < found):
                found = when
        return found

    def tick(self, now: float) -> None:
        """
        Do what is due.

        @param now: The device's time, seconds.
        """
        self.cm.tick(now)
        self.fabric.tick(now)
        self.timers.tick(now)
        self._dispatch()

    # -- memory of paused readers

    def hold(self, holder: Any, count: int) -> None:
        """
        C{holder} keeps C{count} bytes more (or fewer) for a paused reader.
        Beyond L{limits.HELD_BYTES} a connection is reset: the one that holds
        most, of the peer for whom most is held.
        """
        self.heldBytes += count
        held = self._holders.get(holder, 0) + count
        if held:
            self._holders[holder] = held
        else:
            self._holders.pop(holder, None)
        if self.heldBytes > limits.HELD_BYTES and count > 0:
            holders = self._holders
            perPath: Counter[Any] = Counter()
            for each, bytesHeld in holders.items():
                perPath[each.queuePair.path] += bytesHeld
            path = max(perPath, key=perPath.__getitem__)
            self.count("held_bytes_exceeded")
            max((h for h in holders if h.queuePair.path is path), key=holders.__getitem__).overheld()

    # -- the end

    def checkThread(self) -> None:
        """
        @raise WrongThreadError: this is not the device's thread.
        """
        if self.thread and get_ident() != self.thread:
            raise WrongThreadError(
                f"device {self.name} belongs to another thread;"
                " use reactor.callFromThread"
            )

    def _check(self) -> None:
        """
        @raise DeviceClosedError: the device can not be used.
        """
        if self.closed:
            raise DeviceClosedError(f"device {self.name} is closed")
        self.checkThread()

    def forked(self) -> None:
        """
        In a forked child: the device is the parent's.
        """
        self.closed = True
        for queuePair in self.queuePairs.values():
            queuePair.consumer.forked()
        self.fabric.forked()

    def close(self) -> None:
        """
        Fail what is connected and give everything back.
        """
        if self.closed:
            return
        self.closed = True
        _devices.discard(self)
        self.paths.close()
        self.departures.close()
        self.fabric.close()
        for queuePair in list(self.queuePairs.values()):
            queuePair.close()
        self.objects.close()
        for window in list(self.memory.windows.values()):
            self.memory.deallocateWindow(window)
        for region in list(self.memory.regions.values()):
            self.deregisterMemory(region)
        for pd in list(self.memory.domains):
            self.memory.deallocateDomain(pd)
        self._dirty.clear()


def _gid(value: int) -> str:
    """
    @return: 128 bits as an IPv6 address.
    """
    from ipaddress import IPv6Address

    return str(IPv6Address(value))


def _destinationOf(request: Any) -> str:
    """
    @return: The address that a REQ or SIDR_REQ is meant for.
    """
    portSpace = request.serviceID >> 16
    if portSpace == PortSpace.IB and hasattr(request, "primaryPath"):
        return textOf(request.primaryPath.remoteGID)
    version, offset = _DESTINATION.get(portSpace, _RDMA_CM_DESTINATION)
    data = request.privateData
    return _address(data[version] >> 4, data[offset : offset + 16])


def _address(version: int, packed: bytes) -> str:
    """
    @return: The text of an address in private data.
    """
    if version == 4:
        return ".".join(map(str, packed[12:]))
    return _gid(int.from_bytes(packed, "big"))


@lru_cache(maxsize=limits.LOCAL_ADDRESSES)
def _isLocal(address: str, second: int) -> bool:
    """
    Ask the host once in a second: it costs a socket, and what a peer says is
    asked for each connection.

    @param address: An address without a scope, as private data has it.
    """
    if address.startswith("fe80:"):
        return any(local.partition("%")[0] == address for local in localAddresses())
    return address not in ("0.0.0.0", "::") and isLocalAddress(address)


_devices: weakref.WeakSet[Device] = weakref.WeakSet()


def _afterFork() -> None:
    """
    In a forked child: no device of the parent may be used.
    """
    for device in list(_devices):
        try:
            device.forked()
        except HCAError:
            pass
    _devices.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afterFork)
