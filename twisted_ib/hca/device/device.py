"""
One software HCA: its identity, its objects, its progress.

Devices whose peers are processes of this host share the host's addresses, and have a GID of their own from
their GUID.  Others have one IP address, and so have their peers.

A L{Device} owns a fabric, the communication manager, and the tables of queue pairs and memory.  It needs no
reactor: its driver calls L{Device.progress}, and L{Device.tick} when L{Device.deadline} passes.  In Twisted
that is L{twisted_ib.internet.channel}.

A device belongs to the thread that opened it.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from random import SystemRandom
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

from zope.interface import implementer

from twisted_ib import limits, settings
from twisted_ib.drive.process import callAll, forEach, life, monotonic
from twisted_ib.errors import (
    DeviceClosedError,
    DeviceError,
    HCAError,
    NoRouteError,
    PathLostError,
    ResourceLimitError,
    WrongThreadError,
)
from twisted_ib.hca.base.attributes import deviceAttributes, extendedAttributes, portAttributes
from twisted_ib.hca.base.events import EventType, notifyAll
from twisted_ib.hca.base.operation import GSI_QPN, ID_SHIFT, MULTICAST_QPN, QPN_SHIFT, TRANSACTION_SHIFT
from twisted_ib.hca.base.partition import PartitionTable
from twisted_ib.hca.base.port import Port, PortChange
from twisted_ib.hca.base.socketrows import COLUMNS
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.base.timers import Timers
from twisted_ib.hca.base.traits import LinkLayer, Peers, Proof, Traits
from twisted_ib.hca.cm.transactions import CMTransactions
from twisted_ib.hca.connection.rdmacm import gidNumber
from twisted_ib.hca.device.addressing.addresses import AddressResolution
from twisted_ib.hca.device.addressing.processes import ProcessResolution
from twisted_ib.hca.device.addressing.resolution import Resolution
from twisted_ib.hca.device.addressing.subnet import SubnetResolution
from twisted_ib.hca.device.connections import Manager, Services
from twisted_ib.hca.device.counters import Traffic, counters
from twisted_ib.hca.device.form import compiledModules, isFreeThreaded, programName
from twisted_ib.hca.device.objects import Objects
from twisted_ib.hca.device.progress import DeviceProgress
from twisted_ib.hca.device.receivebudget import ReceiveBudget
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, addDevice, openFabric, removeDevice
from twisted_ib.hca.fabric.base.subnetdirectory import ISubnetOwner
from twisted_ib.hca.host.addresses import isLocalAddress, isWildcard, normalise
from twisted_ib.hca.host.query import Row, pages
from twisted_ib.hca.host.socketpage.page import SocketPage
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.memory.keys import PrefixedIndices, RandomIndices
from twisted_ib.hca.memory.memory import Memory, MemoryRegion
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.streamqueuepair import StreamQueuePair
from twisted_ib.hca.services.address import AddressPaths
from twisted_ib.hca.services.datagramform import FORMS
from twisted_ib.hca.services.work import capabilitiesOf
from twisted_ib.hca.wire.grh import guidGID
from twisted_ib.hca.wire.headers import PSN_MASK

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer, DatagramPath, IPeerPath, PathUser, Search, Segment
    from twisted_ib.hca.capture.capture import Capture
    from twisted_ib.hca.connection.interfaces import IAddressResolver, IConnector, Parking
    from twisted_ib.hca.device.addressing.resolution import IDeviceFabric
    from twisted_ib.hca.fabric.base.streams import IAdapterFabric
    from twisted_ib.hca.host.query import QueryServer
    from twisted_ib.hca.mad.dispatch import Agents
    from twisted_ib.hca.mad.sa.client import SAClient

_RANDOM = SystemRandom()
#: GIDs in the answer to a query, few enough to fit into L{ANSWER_BYTES} with the rest.
DESCRIBED_GIDS = 96
#: Counters of a switch that its devices show: those with the highest counts.
SWITCH_COUNTERS_SHOWN = 32

_RC = QPType.RC
#: How paths are found, by what names the peers.
RESOLUTIONS: dict[Peers, Callable[[Any], Resolution]] = {
    Peers.PROCESSES: ProcessResolution,
    Peers.ADDRESSES: AddressResolution,
    Peers.SUBNET: SubnetResolution,
}


@implementer(ISubnetOwner)
class Device(DeviceProgress):
    """
    One software HCA; see L{IConnectorOwner<twisted_ib.hca.fabric.base.streams.IConnectorOwner>},
    L{IAdapterOwner<twisted_ib.hca.fabric.base.streams.IAdapterOwner>},
    L{IManagedDevice<twisted_ib.hca.mad.agents.IManagedDevice>}, L{Driven<twisted_ib.drive.turn.Driven>}
    and L{Resolution<twisted_ib.hca.device.addressing.resolution.Resolution>}.
    """

    #: Whether peers are IP addresses, not processes of this host.
    traits: Traits
    #: Its first GID, the source GID of its datagrams.
    gid: int
    #: Finds peers by IP addresses that are not this host's, an L{IAddressResolver
    #: <twisted_ib.hca.connection.interfaces.IAddressResolver>}; L{None} where there are none.
    resolver: IAddressResolver | None = None
    #: C{"shm0"} or another of L{twisted_ib.hca.device.registry}.
    name: str
    #: Returns its time, seconds.
    clock: Callable[[], float]
    closed = False
    #: Its fabric, if that is an adapter's.
    adapter: IAdapterFabric | None = None
    #: Whether its adapter has disappeared, and its reactor's L{adapterGone}.
    isGone = False
    whenGone: Callable[[PathLostError, Callable[[], bool]], None] | None = None
    #: The counters of the driver's polling and sleeping.
    pollingCounters: Callable[[], dict[str, int]] | None = None
    #: Called with an L{EventType} and this device, or L{None} (IBTA vol. 1 11.6.3).
    onEvent: Callable[[EventType, object], None] | None = None
    #: Returns a row for each listener and connection; see L{twisted_ib.hca.base.socketrows}.
    socketRows: Callable[[], Iterable[Row | None]] | None = None
    #: The number of the next queue pair; 0 for any.
    nextNumber = 0
    _sa: SAClient | None = None

    def __init__(
        self,
        name: str = DEFAULT_DEVICE,
        clock: Callable[[], float] = monotonic,
        fabric: Callable[[Any, int, Callable[[], float]], Any] | None = None,
        randomBits: Callable[[int], int] = _RANDOM.getrandbits,
        anyThread: bool = False,
        capture: Capture | str | None = None,
        address: str | None = None,
    ) -> None:
        """
        Open a device.

        @param name: C{"shm0"} or another of L{twisted_ib.hca.device.registry}.
        @param clock: returns the time, seconds, monotonic.
        @param fabric: makes its fabric, instead of that of C{name}; a function of owner, GUID and clock.
        @param randomBits: returns a number of that many unpredictable bits.
        @param anyThread: whether any thread may use it, one at a time.
        @param capture: where its packets are written: a file as L{fileOf
            <twisted_ib.hca.capture.capture.fileOf>} names it, or an open capture; empty for none; by default
            C{TWISTED_IB_CAPTURE} decides.
        @param address: its address, for a device that was not added and needs one.
        @raise UnknownDeviceError: there is no device of this name.
        @raise DeviceError: its address is in use.
        @raise RunDirectoryError: the run directory is unusable.
        """
        super().__init__()
        self.name, self.clock = name, clock
        #: The thread that it belongs to; 0 if its user ensures that one thread at a time uses it.
        self.thread = 0 if anyThread else get_ident()
        #: Returns a number of that many unpredictable bits.
        self.randomBits = randomBits
        # IBTA vol. 1 4.1.1: the universal/local bit is 0 in a GUID of local scope, one that no manufacturer
        # assigned (modified EUI-64, RFC 4291 appendix A).  Bit 0 keeps it from being 0, which means no GUID.
        #: Its GUID, random.
        self.guid = randomBits(64) & ~(1 << 57) | 1
        #: Counters by name; L{statistics} has all.
        self.counters: Counter[str] = Counter()
        #: A user's own counters, by name, shown with the device's.
        self.countersBeside: Mapping[str, int] = {}
        #: The traffic of closed queue pairs.
        self.traffic = Traffic()
        #: Counters of the layers above, by the prefix of their names.
        self.counting: dict[str, Callable[[], Mapping[str, int]]] = {}
        #: Its listening services and connections.
        self.services = Services(self, randomBits)
        self._bind(self.services)
        #: Its protection domains, memory regions and windows.
        self.memory = Memory(randomBits)
        self.timers = Timers(clock)
        #: Its completion queues, shared receive queues and address handles.
        self.objects = Objects(self)
        #: The P_Key table of its port.
        self.partitions = PartitionTable()
        #: The paths of its datagrams.
        self.addressPaths = AddressPaths(self)
        #: Called with each event of the port, in this order.
        self.portWatchers: list[Callable[[EventType], object]] = []
        self.receiveBudget = ReceiveBudget(self.count)
        #: See L{ReceiveBudget.hold}.
        self.hold: Callable[[Any, int], None] = self.receiveBudget.hold
        self.queuePairs: dict[int, StreamQueuePair] = {}
        # Queue pairs 0 and 1 are special and 0xFFFFFF is multicast (IBTA vol. 1 10.5.2).  The order is
        # secret: a restarted process must not reuse numbers that peers still have in timewait.
        self._numbers = RandomIndices(randomBits, GSI_QPN + 1, MULTICAST_QPN - 1)
        #: The capture that its packets are written to, or L{None}.
        self.capture = self._open(capture)
        self._enter(fabric, address)
        _devices.add(self)

    def _enter(
        self, fabric: Callable[[Any, int, Callable[[], float]], Any] | None, address: str | None
    ) -> None:
        if fabric is None:
            self._join(openFabric(self.name, self, self.guid, self.clock, address=address))
        else:
            self._join(fabric(self, self.guid, self.clock))
        # Processes find each other through the run directory anyway; a device of packets needs an entry of
        # its own for commands.
        isUnlisted = self.address is not None and fabric is None
        self._queryServer = self._appear() if isUnlisted else None
        if self.capture is not None:
            self._trace(self.capture)

    def _bind(self, services: Services) -> None:
        # Bound here and not methods that call these: a connection takes several of them.
        #: See L{Services}, which has the methods of these names.
        self.listen, self.connect = services.listen, services.connect
        self.sendRequest: Callable[..., Any] = services.sendRequest
        self.sendLookup: Callable[..., Any] = services.sendLookup
        self.disconnect, self.finish = services.disconnect, services.finish
        self.settle, self.resume = services.cm.settled.settle, services.resume
        self.managementReceived = services.managementReceived
        #: See L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        self.reserved = services.cm.accepted
        self.connectionRequested = services.connectionRequested
        self.communicationEstablished = services.communicationEstablished

    def _join(self, fabric: IDeviceFabric) -> None:
        self.fabric = fabric
        #: Wakes up, and says whether there is something to do.
        self.look = fabric.look
        self.traits = traits = fabric.traits
        # The port of an adapter of a subnet may have one already.
        self.guid = self.cm.caGUID = fabric.guid
        self.resolveBy(RESOLUTIONS[traits.peers](self))
        #: Whether no message of connection management is lost while the peer lives; else a request to connect
        #: proves nothing about its source, either.
        self.lossless = self.cm.lossless = traits.proof is not Proof.ANSWER
        if self.lossless:
            self.cm.draw = self._draw
            self.cm.settled.queuePairs = self.queuePairs
        else:
            # Fewer half-open connections are admitted than from processes that the kernel has identified.
            self.cm.limitHalfOpen(limits.CM_HALF_OPEN_PER_ADDRESS, limits.CM_HALF_OPEN_ADDRESSES)
            fabric.nameSources(self.parking)
            # Sessions of a process that has just ended here may be meant still (RFC 9293 3.6.1, quiet time).
            self.cm.quietUntil = self.clock() + limits.CM_ENDED_SECONDS
            slot: int = fabric.slot
            if slot:
                # Processes that share an address find what is each one's by these bits.
                self._numbers = PrefixedIndices(self.randomBits, slot, QPN_SHIFT, MULTICAST_QPN - 1)
                self.services.identifiers.begin(slot, ID_SHIFT)
                self.cm.follow = fabric.follow
                self.mads.begin(slot, TRANSACTION_SHIFT)
        if traits.privateBytes.isExact:
            self.cm.keepLengths()
        #: Its own IP address, if it has one, without a scope.
        self.address: str | None = fabric.address if traits.hasAddress else None
        self.gid = gidNumber(self.address) if self.address else guidGID(self.guid)
        self.pathMTU = limits.DATAGRAM_BYTES if self.adapter is None else self.adapter.pathMTU
        if traits.packets:
            self.pathMTU = fabric.pathMTU
            # The path of any queue pair across a network negotiates attributes for it.
            vars(self)["createStreamQueuePair"] = self.createQueuePair
            self.cm.transactions = CMTransactions(self.randomBits)
        #: Its port; L{changePort} changes it.
        self.port = Port(
            linkLayer=traits.linkLayer,
            gids=(self.gid,),
            partitions=self.partitions,
            mtu=self.pathMTU,
            counters=self.counters,
        )
        #: The form of its datagrams' records.
        self.datagramForm = FORMS[self.port.linkLayer]
        if not self.lossless:
            # Any host may send a management datagram at any time.
            _ = self.mads
        self.paths.joined()

    def resolveBy(self, paths: Resolution) -> None:
        """
        Resolve addresses in a way.
        """
        #: Its address resolution and multicast groups.
        self.paths = paths
        # Bound here and not methods that call these, as in _bind().
        #: See L{Resolution}, which has the methods of these names.
        self.gids, self.hasGID, self.guidOf = paths.gids, paths.hasGID, paths.guidOf
        self.hostNamed, self.unknownHost = paths.hostNamed, paths.unknownHost
        self.isLocal, self.isPeers = paths.isLocal, paths.isPeers
        self.sharesAddresses = paths.sharesAddresses

    def useConnector(self, connector: IConnector) -> None:
        self.sendRequest, self.sendLookup = connector.sendRequest, connector.sendLookup

    def useAdapter(self, adapter: IAdapterFabric) -> None:
        self.adapter = adapter
        self.memory.registrar = adapter.register

    def adapterGone(self, reason: PathLostError, release: Callable[[], bool]) -> None:
        # A reactor closes the device; elsewhere its users do, and who opens it gets a new one.
        self.isGone = True
        if self.whenGone is not None:
            self.whenGone(reason, release)

    def _appear(self) -> QueryServer | None:
        # Optional: without a usable run directory the device works, but commands cannot find it.
        from twisted_ib.hca.host.query import QueryServer

        try:
            inquiries = QueryServer(self, self.guid)
        except (HCAError, OSError):
            self.count("not_visible")
            return None
        self.fabric.watch(inquiries.fileno(), inquiries.attend)
        return inquiries

    def _open(self, capture: Capture | str | None) -> Capture | None:
        if capture is None:
            capture = os.environ.get(settings.CAPTURE, "")
        if not capture:
            return None
        from twisted_ib.hca.capture import capture as captures

        return captures.capture(capture) if isinstance(capture, str) else capture

    def _trace(self, capture: Capture) -> None:
        from twisted_ib.hca.capture.trace import Trace

        Trace(capture, self.fabric, self.name)

    # -- its addresses, and its peers'

    @property
    def nodeGUID(self) -> int:
        """
        The GUID of its node: in a subnet that below its port's, which the topology counts on from it; else
        both are one.
        """
        return self.paths.nodeGUID

    def localAddressFor(self, address: str, bound: str = "") -> str:
        """
        Choose the source address of a connection.

        @param address: the destination.
        @param bound: the address that the user bound, if any.
        @raise NoRouteError: C{bound} is not an address of this host, or not the device's.
        """
        resolver = self.resolver
        if resolver is not None:
            source: str = bound if resolver.isOwn(bound) else resolver.sourceFor(address)
            if source and (not bound or bound == source or isWildcard(bound)):
                return source
        if bound and not isWildcard(bound):
            if self.address is not None:
                if not self.isAt(bound):
                    raise NoRouteError(f"device {self.name} has the address {self.address}, not {bound}")
            elif not isLocalAddress(bound):
                raise NoRouteError(f"{bound} is not an address of this host")
            return bound
        return self.paths.sourceFor(address)

    def listeningAddress(self, bound: str) -> str:
        """
        Choose the address to listen on: a device with an address of its own has no other.

        @param bound: the address that the user bound, or a wildcard.
        @raise ValueError: the device does not have this address.
        """
        own = self.address
        if own is None or (self.resolver is not None and self.resolver.isOwn(bound)):
            return bound
        # A wildcard listener of IPv6 includes IPv4 (RFC 3493 section 5.3), one of IPv4 does not include IPv6.
        if bound == "::" or (bound == "0.0.0.0" and ":" not in own):
            return own
        if not self.isAt(bound):
            raise ValueError(f"device {self.name} has the address {own}, not {bound}")
        return bound

    def isAt(self, address: str | None) -> bool:
        """
        Whether an address is the device's own; without one, whether C{address} is L{None}.

        @param address: an IP address in any spelling, perhaps with a scope, or L{None}.
        """
        return self.address == (None if address is None else normalise(address).partition("%")[0])

    def pathMTUTo(self, path: IPeerPath) -> int:
        """
        The largest payload of a packet on a path, bytes.
        """
        if not self.traits.packets:
            return self.pathMTU
        found: int = self.fabric.pathMTUTo(path.peer.address)
        return found

    # -- what is known of it

    def count(self, name: str) -> None:
        self.counters[name] += 1

    def warn(self, text: str) -> None:
        # In Twisted the channel replaces this by the log.
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def inUse(self) -> dict[str, int]:
        """
        @return: the number of objects of each kind.
        """
        return {
            "pd": len(self.memory.domains),
            "mr": len(self.memory.regions),
            "cq": len(self.objects.completionQueues),
            "qp": len(self.queuePairs),
            "srq": len(self.objects.sharedReceiveQueues),
            "ah": len(self.objects.addressHandles),
            "mw": len(self.memory.windows.byKey),
        }

    def statistics(self) -> dict[str, int]:
        """
        @return: all counters by name: first rxe's, then ours (L{twisted_ib.hca.device.counters}).
        """
        # The answer to a query is bounded (limits.ANSWER_BYTES); a user may have any number of counters.
        beside = dict(Counter(self.countersBeside).most_common(SWITCH_COUNTERS_SHOWN))
        events = {**beside, **self.counters, "management_sent": self.cm.messagesSent}
        events |= {"sleeps": self.fabric.sleeps, "doorbells_rung": self.fabric.rung}
        octets: tuple[int, int] | None = self.fabric.octets()
        if octets is not None:
            # As in the port's counters (IBTA vol. 1 16.1.3.5), in units of four octets.
            events |= {"port_xmit_data": octets[0] // 4, "port_rcv_data": octets[1] // 4}
        if self.pollingCounters is not None:
            events |= self.pollingCounters()
        for prefix, read in self.counting.items():
            events |= {f"{prefix}_{name}": count for name, count in read().items()}
        found = counters(self.traffic.with_(self.queuePairs.values()), events, self.cm.counters)
        # On RoCEv2 rxe's names count packets (Linux rxe_hw_counters.c), not records.
        if self.traits.packets:
            found["sent_pkts"], found["rcvd_pkts"] = self.fabric.packetsSent, self.fabric.packetsReceived
        return found

    def describe(self) -> dict[str, Any]:
        beside = {"icrc": self.fabric.icrc} if self.traits.packets else {}
        if isFreeThreaded():
            beside["c_libraries"] = "do not start on a free-threaded Python yet"
        return {
            **self._identity(),
            **beside,
            "transport": self.traits.transport.name,
            **self.fabric.facts,
            "compiled": compiledModules(),
            "attributes": {
                **deviceAttributes(self.nodeGUID, len(self.partitions), self.traits),
                **extendedAttributes(capabilitiesOf(self.traits), self.traits),
            },
            "port": portAttributes(self.port),
            "gids": self.gids()[:DESCRIBED_GIDS],
            "in_use": self.inUse(),
            "counters": self.statistics(),
        }

    def describeSockets(self) -> Iterator[dict[str, Any]]:
        rows = () if self.socketRows is None else self.socketRows()
        return pages(self._identity(), COLUMNS, rows)

    def openSocketPage(self) -> SocketPage:
        """
        @return: a new socket page, which commands find by this HCA's entry.
        """
        page = SocketPage(os.getpid(), _program())
        if self._queryServer is not None:
            self._queryServer.attach(page)
        elif self.isAsked:
            self.fabric.attachPage(page)
        return page

    def _identity(self) -> dict[str, Any]:
        return {"hca_id": self.name, "pid": os.getpid(), "program": _program()}

    def changePort(self, change: PortChange) -> None:
        """
        Change the port, as a subnet manager or the link does.  Queue pairs follow the P_Key table; its users
        get the events.

        @raise ValueError: a value does not fit its field; then nothing has changed.
        @raise ResourceLimitError: a table is too long; likewise.
        """
        events = self.port.apply(change)
        self.gid = self.port.gids[0]
        if EventType.PKEY_CHANGE in events:
            for queuePair in list(self.queuePairs.values()):
                queuePair.partitionsChanged()
        for kind in events:
            for watcher in list(self.portWatchers):
                watcher(kind)
            if self.onEvent is not None:
                self.onEvent(kind, self)

    @property
    def sa(self) -> SAClient:
        """
        The client of the subnet administration of the port's subnet.

        @raise DeviceError: the port is not on InfiniBand.
        @raise ServiceInUseError: the program has an agent of its own for the Reports of that class.
        """
        if self.port.linkLayer is not LinkLayer.INFINIBAND:
            raise DeviceError(f"{self.name} has no subnet administration, as its port is not on InfiniBand")
        if self._sa is None:
            from twisted_ib.hca.mad.sa.client import SAClient

            self._sa = SAClient(self)
            # First: what it remembers of the subnet is forgotten before others ask it again.
            self.portWatchers.insert(0, self._sa.event)
        return self._sa

    # -- services and connections

    @cached_property
    def mads(self) -> Agents:
        """
        The agents of its management datagrams; see L{Agents.register}.
        """
        # Imported here: processes of one host that connect send each other none.
        from twisted_ib.hca.mad.agents import openAgents
        from twisted_ib.hca.mad.dispatch import Agents

        agents = vars(self)["mads"] = Agents(self)
        openAgents(self)
        return agents

    def madReceived(
        self,
        path: DatagramPath,
        number: int,
        source: int,
        buffer: Buffer,
        start: int,
        stop: int,
        partition: int = 0,
    ) -> None:
        try:
            agents = self.mads
        except (ImportError, OSError):
            # A process that is in a C{chroot}, or has no descriptor left, has none: a datagram may be lost.
            self.count("management_dropped")
            return
        agents.received(path, number, source, buffer, start, stop, partition)

    def pathLost(self, path: IPeerPath, reason: PathLostError) -> None:
        # First the tables that would still hand out the path, then the users, who may ask for another at
        # once.
        self.addressPaths.pathLost(path)
        self.paths.pathLost(path)
        self.services.pathLost(path, reason)

    # -- paths

    def resolvePath(self, queuePair: QueuePair) -> None:
        self.check()
        self.paths.resolvePath(queuePair)

    def reach(self, key: int, user: PathUser) -> Search | None:
        self.check()
        return self.paths.reach(key, user)

    def datagramReceived(
        self,
        path: DatagramPath,
        opcode: int,
        number: int,
        buffer: Buffer,
        start: int,
        stop: int,
        partition: int = 0,
    ) -> None:
        self.paths.datagramReceived(path, opcode, number, buffer, start, stop, partition)

    def pathAccepted(self, path: IPeerPath) -> None:
        self.paths.pathAccepted(path)

    # -- queue pairs

    def createQueuePair(self, consumer: Any, type: QPType = _RC, pd: Any = None) -> QueuePair:
        """
        Create a queue pair, in RESET.

        @param consumer: an L{IConsumer<twisted_ib.hca.queues.consumers.IConsumer>}.
        @param pd: the protection domain of its work queues, where its program may connect it by itself: peers
            know the number, which is that of an adapter's queue pair then.
        @raise ResourceLimitError: there are too many.
        @raise UnsupportedOperationError: its adapter has none of the type.
        """
        number = self._newNumber(pd, type)
        queuePair = self.queuePairs[number] = QueuePair(number, consumer, self, type)
        if self.partitions.keys[0] != queuePair.partition:
            queuePair.joinPartition(0)
        if type is not _RC and type == QPType.UD:
            # From now on callers are asked for proof when they call, which costs each of them; a device
            # without UD spares that.
            self.paths.takesDatagrams = True
        return queuePair

    def createStreamQueuePair(self, consumer: Any) -> StreamQueuePair:
        """
        Create one that does nothing but carry a stream's messages, as L{createQueuePair}.
        """
        number = self._newNumber()
        queuePair = self.queuePairs[number] = StreamQueuePair(number, consumer, self)
        if self.partitions.keys[0] != queuePair.partition:
            queuePair.joinPartition(0)
        return queuePair

    def _newNumber(self, pd: Any = None, type: QPType = _RC) -> int:
        queuePairs = self.queuePairs
        if len(queuePairs) >= limits.QUEUE_PAIRS:
            raise ResourceLimitError(f"{limits.QUEUE_PAIRS} queue pairs exist")
        if pd is not None and self.adapter is not None and (reserved := self.adapter.reserve(pd, type)):
            return reserved
        number, self.nextNumber = self.nextNumber, 0
        if not number or number in queuePairs:
            number = self._numbers.draw(queuePairs)
            if number in self.services.cm.accepted:
                number = self._draw()
        return number

    def _draw(self) -> int:
        number = self._numbers.draw(self.queuePairs)
        # Linear at worst, but reserved numbers are few among 2^24.
        while number in self.services.cm.accepted:
            number = self._numbers.draw(self.queuePairs)
        return number

    def reserveNumber(self) -> int:
        """
        @return: the number of a queue pair that is created later, if at all: reserved once a REP has it,
            until its connection is established or has ended.
        @raise ResourceLimitError: there are too many queue pairs.
        """
        if len(self.queuePairs) + len(self.cm.accepted) >= limits.QUEUE_PAIRS:
            raise ResourceLimitError(f"{limits.QUEUE_PAIRS} queue pairs exist")
        return self._draw()

    @contextmanager
    def withNumber(self, owner: Any) -> Iterator[None]:
        """
        Within this context the next queue pair gets a reserved number.

        @param owner: has C{number} and C{proposal}.
        """
        self.nextNumber = owner.number
        try:
            yield
        finally:
            self.nextNumber = 0
        cast("QueuePair", self.queuePairs[owner.number]).proposal = owner.proposal

    def arrivedEarly(self, number: int, address: str, psn: int) -> None:
        # It counts as the RTU, if its PSN is plausible.
        # A packet of another source proves nothing about the peer of the REP.
        connection = self.cm.parked.awaited(number, lambda path: path.peer.address == address)
        if connection is None:
            return
        # The first data counts as the RTU (IBTA vol. 1 12.9.8).  Only the receiver of the REP knows the
        # starting PSN, so a stranger must guess one of 2^24 within the window (RFC 5961 has the same defence
        # for TCP).
        proposal = getattr(connection.user, "proposal", None)
        if proposal is not None and (psn - proposal.expectedPSN) & PSN_MASK < limits.TRANSPORT_WINDOW:
            self.communicationEstablished(number)
        elif hasattr(connection.user, "park"):
            connection.user.park()

    def stepDatagrams(self, number: int, state: QPState, attributes: dict[str, Any]) -> None:
        if self.adapter is not None:
            self.adapter.step(number, state, attributes)

    def queuePairClosed(self, queuePair: StreamQueuePair) -> None:
        self.paths.queuePairClosed(queuePair)
        # Closing is idempotent, and traffic must be added once.
        if self.queuePairs.pop(queuePair.number, None) is not None:
            if self.adapter is not None:
                self.adapter.release(queuePair.number)
            self.traffic.add(queuePair)
            if queuePair.work is None:
                # Each refers to the other; without the cycle both are freed at once.
                queuePair.consumer = None

    @property
    def parking(self) -> Parking:
        """
        Where connections that await the peer's confirmation are kept as octets.
        """
        return self.services.cm.parked

    @property
    def cm(self) -> Manager:
        return self.services.cm

    # -- memory

    def allocateMemory(self, size: int, access: int, pd: ProtectionDomain) -> MemoryRegion:
        """
        Allocate and register memory, which peers can map where the fabric supports it.

        @param size: bytes.
        @param access: L{Access<twisted_ib.rdma.Access>} bits.
        @raise HCAError: it cannot be registered so.
        @raise OSError: there is no memory.
        """
        self.check()
        segment = self.fabric.allocate(size)
        # This fabric cannot share memory: private memory works too, with a copy.
        if segment is None:
            return self.memory.register(bytearray(size), access, pd)
        try:
            return self.memory.register(memoryview(segment.map)[:size], access, pd, segment=segment)
        except BaseException:
            # A segment has a descriptor, which a failed registration must not leak.
            segment.close()
            raise

    def deregisterMemory(self, region: MemoryRegion) -> None:
        """
        Deregister a region, and free the memory that it was allocated with.

        @raise HCAError: it is not registered.
        """
        segment: Any = region.segment
        self.memory.deregister(region)
        if segment is not None:
            self.releaseSegment(segment)

    def releaseSegment(self, segment: Segment) -> None:
        """
        Free a shared segment, after every peer was told to unmap it.
        """
        # Peers map a segment by descriptor: closing ours frees nothing while theirs are mapped.
        for path in self.fabric.paths():
            path.withdraw(segment)
        segment.close()

    # -- time

    def deadline(self) -> float | None:
        found: float | None = self.services.cm.deadline(False)
        # The communication manager's timers, the fabric's, and the queue pairs', such as RNR waits
        # (IBTA vol. 1 9.7.5.2.8).
        for when in (self.fabric.deadline(), self.timers.deadline()):
            if when is not None and (found is None or when < found):
                found = when
        return found

    def tick(self, now: float) -> None:
        self.cm.tick(now)
        # Now: the others may raise, and are due again then, which these events are not.
        self.services.dispatch()
        self.fabric.tick(now)
        self.timers.tick(now)

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
        if self.closed:
            raise DeviceClosedError(f"device {self.name} is closed")
        self.checkThread()

    def forked(self) -> None:
        """
        Make every use an error, in a forked child: the device is the parent's.
        """
        self.closed = True
        # Sending from the child would interleave with the parent in shared rings.
        callAll([queuePair.consumer.forked for queuePair in self.queuePairs.values()])
        self._disappear()
        self.fabric.forked()

    @property
    def isAsked(self) -> bool:
        """
        Whether commands can query this device itself.
        """
        return self._queryServer is not None or self.traits.inRunDirectory

    def _disappear(self) -> None:
        inquiries, self._queryServer = self._queryServer, None
        if inquiries is not None:
            inquiries.close()

    def close(self) -> None:
        """
        Fail all connections and release everything.
        """
        if self.closed:
            return
        if self._sa is not None:
            self._sa.leave()
        self.closed = True
        _devices.discard(self)
        # Linux cm.c, cm_destroy_id, for each identifier that a process leaves behind: where the medium tells
        # nobody of our end, a peer would wait for its own timeouts.
        if not self.cm.lossless:
            self.cm.abandonAll(self.clock())
        # Against the order of dependence: first whatever could make new users of the rest, memory last.
        administration = () if self._sa is None else (self._sa.close,)
        agents = () if "mads" not in vars(self) else (self.mads.close,)
        steps = (*agents, *administration, self.paths.close, self.addressPaths.close, self._disappear)
        # A user who is told of the end may raise: nothing stays open for that.
        notifyAll((*steps, self.fabric.close, self._release))

    def _release(self) -> None:
        # Before the objects and the memory, which queue pairs hold references to
        # (twisted_ib.hca.base.refcount).
        for queuePair in list(self.queuePairs.values()):
            queuePair.close()
        self.objects.close()
        for window in list(self.memory.windows.byKey.values()):
            self.memory.windows.deallocate(window)
        for region in list(self.memory.regions.values()):
            self.deregisterMemory(region)
        for pd in list(self.memory.domains):
            self.memory.deallocateDomain(pd)
        self._dirty.clear()
        if self.capture is not None:
            self.capture.flush()


def _program() -> str:
    # The interpreter, at its very end, has none.
    name, *arguments = sys.argv or [""]
    return programName([name or "python", *arguments])


_devices: weakref.WeakSet[Device] = weakref.WeakSet()
# A forked child shares rings and descriptors with its parent, but not its threads.
life.atFork(__name__, inChild=forEach(_devices, lambda device: device.forked()))


__all__ = ["Device", "addDevice", "removeDevice"]
