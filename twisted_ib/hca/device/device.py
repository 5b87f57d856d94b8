"""
One software HCA: its identity, its objects, its progress.

A L{Device} owns a fabric, the communication manager, and the tables of queue
pairs and memory.  It needs no reactor: whoever uses it calls L{Device.progress},
and L{Device.tick} when L{Device.deadline} passes.  In Twisted that is
L{twisted_ib.internet.channel}.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import DeviceClosedError, HCAError, PathLostError, ResourceLimitError, WrongThreadError
from twisted_ib.hca.base.attributes import deviceAttributes, extendedAttributes, portAttributes
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.interfaces import IFabricOwner
from twisted_ib.hca.base.keys import RandomIndices
from twisted_ib.hca.base.operation import GSI_QPN, MULTICAST_QPN
from twisted_ib.hca.base.socketrows import COLUMNS
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.cm.machine import Connection
from twisted_ib.hca.device.addressresolution import AddressResolution
from twisted_ib.hca.device.connections import Manager, Service, Services
from twisted_ib.hca.device.counters import Traffic, counters
from twisted_ib.hca.device.identity import Identity
from twisted_ib.hca.device.objects import Objects
from twisted_ib.hca.device.receivebudget import ReceiveBudget
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, addDevice, openFabric, removeDevice
from twisted_ib.hca.host.paging import Row, pages
from twisted_ib.hca.memory.memory import Memory, MemoryRegion, ProtectionDomain
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.services.address import Departures
from twisted_ib.hca.wire.cm.rdmacm import gidNumber
from twisted_ib.hca.wire.grh import guidGID
from twisted_ib.hca.wire.headers import PSN_MASK

if TYPE_CHECKING:
    from twisted_ib.hca.capture.capture import Capture
    from twisted_ib.hca.host.queryserver import QueryServer

#: GIDs that the answer to a query has, which then surely fits into L{ANSWER_BYTES}.
DESCRIBED_GIDS = 96
#: Counters of a switch that its devices show, those that count most.
SWITCH_COUNTERS_SHOWN = 32

_RC = QPType.RC


@implementer(IFabricOwner)
class Device(Identity):
    """
    One software HCA.

    @ivar name: C{"shm0"} or another of L{twisted_ib.hca.device.registry}.
    @ivar guid: Its GUID, random.
    @ivar randomBits: Gives that many random bits, which nobody can guess.
    @ivar thread: The thread that it belongs to; 0 if its user takes care that no two
        threads are in it at a time.
    @ivar clock: Gives its time, seconds.
    @ivar services: What it listens on, and its connections.
    @ivar memory: Protection domains and memory regions.
    @ivar timers: Those of its queue pairs.
    @ivar objects: Completion queues, shared receive queues, address handles.
    @ivar departures: The ways that its datagrams go.
    @ivar paths: Which path leads to which GID; multicast groups.
    @ivar counters: How often what happened; L{statistics} has everything.
    @ivar countersBeside: What who uses it counts, by name, to be shown with its own.
    @ivar traffic: What queue pairs moved that are gone.
    @ivar turns: How often L{progress} was called.
    @ivar batch: The number of the present batch, of 8 bits: before, within and after L{progress} are
        different ones.  Who remembers it needs no memory for it, and takes a very old one for this one now
        and then.
    @ivar capture: Where its packets are written, or L{None}.
    @ivar holding: What its consumers hold for readers that are paused.
    @ivar hold: See L{ReceiveBudget.hold}.
    """

    def __init__(
        self,
        name: str = DEFAULT_DEVICE,
        clock: Callable[[], float] = time.monotonic,
        fabric: Callable[[Any, int, Callable[[], float]], Any] | None = None,
        randomBits: Callable[[int], int] = secrets.randbits,
        anyThread: bool = False,
        capture: Capture | str | None = None,
        address: str | None = None,
    ) -> None:
        """
        Open a device.

        @param name: C{"shm0"} or another of L{twisted_ib.hca.device.registry}.
        @param clock: Gives the time, seconds, never going back.
        @param fabric: Makes its fabric; by default what C{name} stands for.
        @param randomBits: Gives that many random bits, which nobody can guess.
        @param anyThread: Whether any thread may use it, one at a time.
        @param capture: Where its packets are written: a file as L{fileOf
            <twisted_ib.hca.capture.capture.fileOf>} names it, or what is open already; nowhere
            if it is empty, by default where C{TWISTED_IB_CAPTURE} says.
        @param address: Where it is to be, if it is one that was not added and has an address.
        @raise UnknownDeviceError: there is none of this name.
        @raise DeviceError: somebody else has its address.
        @raise RunDirectoryError: processes cannot meet.
        """
        self.name = name
        self.clock = clock
        self.thread = 0 if anyThread else get_ident()
        self.randomBits = randomBits
        self.guid = randomBits(64) & ~(1 << 57) | 1
        self.counters: Counter[str] = Counter()
        self.countersBeside: Mapping[str, int] = {}
        self.traffic = Traffic()
        self.turns = self.batch = 0
        self.closed = False
        #: Called when there is something to do outside of a turn.
        self.wanted: Callable[[], None] | None = None
        #: The counters of whoever decides when to look at the device again and when to sleep.
        self.pollingCounters: Callable[[], dict[str, int]] | None = None
        #: Called with an L{EventType} and this device, or L{None}.
        self.onEvent: Callable[[EventType, object], None] | None = None
        #: Gives a row for each listener and connection; see L{twisted_ib.hca.base.socketrows}.
        self.socketRows: Callable[[], Iterable[Row | None]] | None = None
        #: Gives what layers above count, by what their names begin with.
        self.counting: dict[str, Callable[[], Mapping[str, int]]] = {}
        self.services = Services(self, randomBits)
        self.memory = Memory(randomBits)
        self.timers = Timers(clock)
        self.objects = Objects(self)
        self.departures = Departures(self)
        self.paths = AddressResolution(self)
        self.receiveBudget = ReceiveBudget(self.count)
        self.hold = self.receiveBudget.hold
        self.queuePairs: dict[int, QueuePair] = {}
        #: By number, who will have a queue pair of that number; see L{promise}.
        self.promised: dict[int, Any] = {}
        self._next: Any = None
        self._numbers = RandomIndices(randomBits, GSI_QPN + 1, MULTICAST_QPN - 1)
        self._dirty: list[Any] = []
        self._opened = 0
        if fabric is None:
            self.fabric = openFabric(name, self, self.guid, clock, address=address)
        else:
            self.fabric = fabric(self, self.guid, clock)
        self.addressed = bool(getattr(self.fabric, "addressed", False))
        if self.addressed:
            self.cm.limitHalfOpen(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
        self.address: str | None = self.fabric.address if self.addressed else None
        self.gid = gidNumber(self.address) if self.address else guidGID(self.guid)
        self.pathMTU: int = self.fabric.pathMTU if self.addressed else limits.DATAGRAM_BYTES
        self._inquiries = self._appear() if self.addressed and fabric is None else None
        if capture is None:
            capture = os.environ.get("TWISTED_IB_CAPTURE", "")
        self.capture = self._trace(capture) if capture else None
        _devices.add(self)

    def _appear(self) -> QueryServer | None:
        """
        Have commands find a device that no process dials.

        @return: Where they ask; L{None} if processes cannot meet, which this device does not need.
        """
        from twisted_ib.hca.host.queryserver import QueryServer

        try:
            inquiries = QueryServer(self, self.guid)
        except (HCAError, OSError):
            self.count("not_visible")
            return None
        self.fabric.watch(inquiries.fileno(), inquiries.attend)
        return inquiries

    def _trace(self, capture: Capture | str) -> Capture | None:
        """
        Have the packets of this device written.

        @return: Where; L{None} if that cannot be written.
        """
        from twisted_ib.hca.capture import capture as captures
        from twisted_ib.hca.capture.trace import Trace

        found = captures.capture(capture) if isinstance(capture, str) else capture
        if found is not None:
            Trace(found, self.fabric, self.name)
        return found

    # -- what is known of it

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
            (L{twisted_ib.hca.device.counters}).
        """
        beside = dict(Counter(self.countersBeside).most_common(SWITCH_COUNTERS_SHOWN))
        events = {**beside, **self.counters, "management_sent": self.cm.messagesSent}
        events |= {"sleeps": self.fabric.sleeps, "doorbells_rung": self.fabric.rung}
        if self.pollingCounters is not None:
            events |= self.pollingCounters()
        for prefix, read in self.counting.items():
            events |= {f"{prefix}_{name}": count for name, count in read().items()}
        found = counters(self.traffic.with_(self.queuePairs.values()), events, self.cm.counters)
        if self.addressed:
            found["sent_pkts"], found["rcvd_pkts"] = self.fabric.packetsSent, self.fabric.packetsReceived
        return found

    def describe(self) -> dict[str, Any]:
        """
        @return: What C{ib-devinfo} shows of this HCA: plain values, for JSON, at most
            L{limits.ANSWER_BYTES} of it.
        """
        return {
            **self._identity(),
            "attributes": {**deviceAttributes(self.guid), **extendedAttributes()},
            "port": portAttributes(self.counters["qkey_violations"], self.pathMTU),
            "gids": self.gids()[:DESCRIBED_GIDS],
            "in_use": self.inUse(),
            "counters": self.statistics(),
        }

    def describeSockets(self) -> Iterator[dict[str, Any]]:
        """
        @return: What C{ib-ss} shows of this process, page by page, each for one answer.
        """
        rows = () if self.socketRows is None else self.socketRows()
        return pages(self._identity(), COLUMNS, rows)

    def _identity(self) -> dict[str, Any]:
        return {
            "hca_id": self.name,
            "pid": os.getpid(),
            "program": os.path.basename(sys.argv[0] or "python")[: limits.PROGRAM_BYTES],
        }

    # -- services and connections

    def listen(self, portSpace: int, address: str, port: int, listener: Any, inode: int = 0) -> Service:
        """
        Listen on a service: see L{Services.listen}.
        """
        return self.services.listen(portSpace, address, port, listener, inode)

    def connect(self, portSpace: int, address: str, port: int, user: Any, now: float) -> Any:
        """
        Find the path to whoever listens on a service: see L{Services.connect}.
        """
        return self.services.connect(portSpace, address, port, user, now)

    def disconnect(self, connection: Connection, privateData: bytes = b"") -> None:
        """
        Send a DREQ: see L{Services.disconnect}.
        """
        self.services.disconnect(connection, privateData)

    def managementReceived(self, path: Any, attribute: int, buffer: Any, start: int, stop: int) -> None:
        """
        See L{IFabricOwner}.
        """
        self.services.managementReceived(path, attribute, buffer, start, stop)

    def pathLost(self, path: Any, reason: PathLostError) -> None:
        """
        See L{IFabricOwner}.
        """
        self.departures.pathLost(path)
        self.paths.pathLost(path)
        self.services.pathLost(path, reason)

    # -- paths

    def meet(self, queuePair: QueuePair) -> None:
        """
        Find the path of a queue pair's address vector: see L{AddressResolution.meet}.

        @param queuePair: One that has an address vector.
        """
        self.check()
        self.paths.meet(queuePair)

    def reach(self, gid: int, user: Any) -> Any:
        """
        Find the way for datagrams to a GID: see L{AddressResolution.reach}.
        """
        self.check()
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

    def createQueuePair(self, consumer: Any, type: QPType = _RC) -> QueuePair:
        """
        Make a queue pair for a consumer that takes views.

        @param consumer: An L{IConsumer<twisted_ib.hca.base.interfaces.IConsumer>}.
        @param type: Its transport service.
        @return: The queue pair, in RESET.
        @raise ResourceLimitError: there are too many.
        """
        queuePairs = self.queuePairs
        if len(queuePairs) >= limits.QUEUE_PAIRS:
            raise ResourceLimitError(f"{limits.QUEUE_PAIRS} queue pairs exist")
        promise, self._next = self._next, None
        number = self._draw() if promise is None else promise.number
        queuePair = queuePairs[number] = QueuePair(number, consumer, self, type)
        if promise is not None:
            queuePair.proposal = promise.proposal
        if type is not _RC and type == QPType.UD:
            self.paths.takesDatagrams = True
        self._opened += 1
        return queuePair

    def _draw(self) -> int:
        """
        @return: A number that no queue pair has or will have.
        """
        number = self._numbers.draw(self.queuePairs)
        while number in self.promised:
            number = self._numbers.draw(self.queuePairs)
        return number

    def promise(self, promise: Any) -> int:
        """
        Reserve the number of a queue pair that is made later, if at all.

        @param promise: Who will have it: C{connection} is its part of the communication manager.
        @return: The number, until it is taken out of C{promised}.
        @raise ResourceLimitError: there are too many.
        """
        if len(self.queuePairs) + len(self.promised) >= limits.QUEUE_PAIRS:
            raise ResourceLimitError(f"{limits.QUEUE_PAIRS} queue pairs exist")
        number = self._draw()
        self.promised[number] = promise
        return number

    @contextmanager
    def fulfilling(self, promise: Any) -> Iterator[None]:
        """
        The next queue pair to be made is one that was promised.

        @param promise: Has its C{number} and C{proposal}.
        """
        self._next = promise
        try:
            yield
        finally:
            self._next = None

    def arrivedEarly(self, number: int, address: str, psn: int) -> None:
        """
        Something came for a queue pair that is promised: that is as good as an RTU, if it has a packet
        number that only who was told can know.

        @param address: Where from.
        @param psn: 24 bits.
        """
        promise = self.promised.get(number)
        if promise is None or promise.connection.destination.peer.address != address:
            return
        if (psn - promise.proposal.expectedPSN) & PSN_MASK < limits.TRANSPORT_WINDOW:
            promise.connection.established(self.clock())
            self.services.dispatch()

    def queuePairClosed(self, queuePair: QueuePair) -> None:
        """
        A queue pair was destroyed.

        @param queuePair: One of this device.
        """
        self.paths.queuePairClosed(queuePair)
        if self.queuePairs.pop(queuePair.number, None) is not None:
            self.traffic.add(queuePair)
            if queuePair.work is None:
                queuePair.consumer = None  # Each refers to the other, and nothing comes any more.

    @property
    def cm(self) -> Manager:
        """
        The communication manager.
        """
        return self.services.cm

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
        @param access: L{Access<twisted_ib.hca.memory.memory.Access>} bits.
        @param pd: The domain that it is of.
        @return: The region.
        @raise HCAError: it cannot be registered so.
        @raise OSError: there is no memory.
        """
        self.check()
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
        self.batch = self.batch + 1 & 0xFF
        if self._dirty:
            n = self._endOfBatch()
        n += self.fabric.progress(budget)
        self.batch = self.batch + 1 & 0xFF
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
        self.services.dispatch()

    # -- the end

    def checkThread(self) -> None:
        """
        @raise WrongThreadError: this is not the device's thread.
        """
        if self.thread and get_ident() != self.thread:
            raise WrongThreadError(
                f"device {self.name} belongs to another thread; use reactor.callFromThread"
            )

    def check(self) -> None:
        """
        @raise DeviceClosedError: the device cannot be used.
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
        self._disappear()
        self.fabric.forked()

    @property
    def isAsked(self) -> bool:
        """
        Whether commands ask this device itself.
        """
        return self._inquiries is not None or hasattr(self.fabric, "rendezvous")

    def _disappear(self) -> None:
        inquiries, self._inquiries = self._inquiries, None
        if inquiries is not None:
            inquiries.close()

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
        self._disappear()
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
        self.promised.clear()
        if self.capture is not None:
            self.capture.flush()


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


__all__ = ["Device", "addDevice", "removeDevice"]
