"""
The fabric of an adapter of this host: its queue pairs, its completion queue, and the channels that wake it.
"""

from __future__ import annotations

import os
import select
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.errors import (
    DeviceError,
    MemoryRegionError,
    NoRouteError,
    PathLostError,
    ResourceLimitError,
    ServiceInUseError,
    UnsupportedOperationError,
)
from twisted_ib.hca.base.operation import GSI_QPN, MULTICAST_QPN
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.base.traits import ADAPTER, Traits, TransportType
from twisted_ib.hca.connection.rdmacm import gidText
from twisted_ib.hca.fabric.base.fabric import CompletedSearch
from twisted_ib.hca.fabric.base.streams import ConnectedFabric, IAdapterFabric, PeerPath
from twisted_ib.hca.fabric.hardware.adapterpath import PIECES, SENDS, SLOT_BYTES, SLOTS, AdapterPath
from twisted_ib.hca.fabric.hardware.adapters import indexOfGID, isRNIC
from twisted_ib.hca.fabric.hardware.connector import AdapterConnection, Connector
from twisted_ib.hca.fabric.hardware.datagrams import DATAGRAM_SENDS, DATAGRAM_SLOTS, DatagramPath, DatagramWay
from twisted_ib.hca.fabric.hardware.outofband import PeersWay
from twisted_ib.hca.fabric.hardware.provider import (
    AdapterQueuePair,
    Completion,
    Verbs,
    keep,
    loadVerbs,
    openAdapter,
    told,
)
from twisted_ib.hca.fabric.hardware.rdmacm import RDMACM
from twisted_ib.hca.fabric.hardware.registered import Registered
from twisted_ib.hca.fabric.hardware.slots import MOST_SLOTS, SharedSlots, StreamSlots
from twisted_ib.hca.host.addresses import isFreeOfTCP
from twisted_ib.hca.host.processmemory import addressOf
from twisted_ib.hca.memory.access import REMOTE
from twisted_ib.hca.wire.headers import IMMEDIATE

_PORT = 0xFFFF
#: Completions that are taken at a time.
COMPLETIONS = 64
#: Completions of the queue, if the adapter has as many: with one more drivers round up to twice the memory
#: (rdma-core mlx5 verbs.c, create_cq(); Linux rxe_queue.c, rxe_queue_init()).
QUEUE_DEPTH = 32767
#: The least completions of an adapter whose streams share slots: with fewer these might be all.
SHARING_DEPTH = 8 * MOST_SLOTS
#: Queue pairs that are made for one number that is free.
CLASHES = 16


class HardwareFabric(ConnectedFabric):
    """
    The fabric of one HCA: see L{IAdapterFabric}.

    @ivar adapter: the adapter's name.
    @ivar context: the adapter, opened.
    @ivar verbs: the package C{ibverbs}.
    @ivar queue: the completion queue of all queue pairs.
    @ivar isRNIC: whether the adapter takes queue pairs through their states by itself, as those of iWARP do.
    @ivar connector: the connections.
    @ivar pathMTU: the most bytes of a datagram.
    @ivar reserved: queue pairs of the adapter for those of programs, by number, as long as rdma_cm connects
        none of them.
    @ivar isClosed: whether it does nothing any more.
    """

    name: ClassVar[str] = "hardware"
    traits: ClassVar[Traits] = ADAPTER
    streams: dict[int, AdapterPath]
    soon: dict[AdapterPath, None]

    def __init__(
        self,
        owner: Any,
        guid: int,
        clock: Callable[[], float],
        address: str,
        adapter: str,
        verbs: Verbs | None = None,
        manager: RDMACM | None = None,
    ) -> None:
        """
        Open the device.

        @param owner: the device, an L{IAdapterOwner<twisted_ib.hca.fabric.base.streams.IAdapterOwner>}.
        @param clock: returns the time in seconds.
        @param address: the adapter's IP address.
        @param adapter: its name.
        @param verbs: the package C{ibverbs}; by default it is loaded.
        @param manager: librdmacm's channel; by default a new one.
        @raise DeviceError: a library or the adapter is not there, or may not be used.
        """
        super().__init__(owner, guid, address, clock)
        self.adapter = adapter
        self.verbs: Any = loadVerbs(adapter) if verbs is None else verbs
        self.context = openAdapter(self.verbs, adapter)
        self.isRNIC = isRNIC(adapter)
        self.facts["adapter"] = adapter
        if self.isRNIC:
            self.facts["transport"] = TransportType.IWARP.name
        with ExitStack() as undone:
            undone.callback(self.context.close)
            if manager is None:
                manager = self._manager()
            undone.callback(manager.close)
            try:
                self._open(manager, undone)
            except OSError as error:
                raise DeviceError(f"adapter {adapter} cannot be used: {told(error)}") from None
            undone.pop_all()
        self._domains: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        # What is registered, by domain of the adapter's: first address, that of the end, and key, in order.
        self._regions: dict[Any, list[tuple[int, int, int]]] = {}
        self._registered: set[Registered] = set()
        self.reserved: dict[int, AdapterQueuePair | AdapterPath] = {}
        self._gone: PathLostError | None = None
        self._byAdapterNumber: dict[int, AdapterPath] = {}
        self._last = GSI_QPN
        self._completions: deque[Completion] = deque()
        self._isBusy = self.isClosed = self._isNotified = False
        for fd in (self.channel.fd, manager.fileno(), manager.bell):
            self._poller.register(fd, select.EPOLLIN)
        owner.useConnector(self.connector)
        owner.useAdapter(self)

    def _manager(self) -> RDMACM:
        try:
            return RDMACM()
        except OSError as error:
            raise DeviceError(
                f"adapter {self.adapter}: librdmacm cannot be used ({error}): load the kernel's rdma_ucm, and"
                " become root or a member of the group of /dev/infiniband/rdma_cm"
            ) from None

    def _open(self, manager: RDMACM, undone: ExitStack) -> None:
        # A code (enum ibv_mtu), of 256 to 4096.
        self.pathMTU = 128 << min(max(1, self.context.query_port(1).active_mtu), 5)
        depth = min(QUEUE_DEPTH, self.context.query_device().max_cqe)
        isSharing = not self.isRNIC and depth >= SHARING_DEPTH
        self.slots = StreamSlots(self, isSharing, SLOT_BYTES, IMMEDIATE.size)
        # Of the shared slots, too, all may complete.
        self._most = max(1, (depth - isSharing * MOST_SLOTS) // (SENDS + SLOTS))
        self.channel = self.context.create_comp_channel()
        undone.callback(self.channel.close)
        os.set_blocking(self.channel.fd, False)
        self.queue = self.context.create_cq(depth, self.channel)
        undone.callback(self.queue.close)
        self.connector = Connector(self, manager)

    # -- services

    def isPortFree(self, port: int) -> bool:
        """
        @return: whether a connection may begin at a port. An RNIC's is one of TCP, and needs it there, too.
        """
        try:
            return not self.isRNIC or isFreeOfTCP((self.address, port))
        except OSError:
            # Without a descriptor to ask with the connect says it.
            return True

    def listen(self, serviceID: int) -> int:
        # By librdmacm: the kernel may have a listener there.
        try:
            return self.connector.listen(serviceID, self.address)
        except OSError as error:
            port = serviceID & _PORT
            raise ServiceInUseError(
                f"port {port} of adapter {self.adapter} cannot be listened on: {error.strerror}"
            ) from None

    def withdraw(self, serviceID: int, address: str) -> None:
        super().withdraw(serviceID, address)
        self.connector.unlisten(serviceID)

    # -- peers and connections

    def newPath(self, address: str) -> PeerPath:
        return DatagramWay(self, address)

    def reachPeer(self, gid: int, user: Any) -> CompletedSearch:
        """
        See L{IAddressDirectory<twisted_ib.hca.base.interfaces.IAddressDirectory>}.

        @raise NoRouteError: the adapter is not of RoCE.
        @raise QueuePairError: it does not take the queue pair's attributes.
        @raise PathLostError: it is gone.
        """
        self.check()
        user.pathReady(PeersWay(self, gidText(gid)))
        return CompletedSearch()

    def gidIndex(self) -> int:
        """
        @return: the slot of this device's GID in the adapter's table; -1 if it has none of RoCE v2, or is an
            RNIC.
        """
        return -1 if self.isRNIC else indexOfGID(self.adapter, self.gid)

    def join(self, group: int) -> None:
        raise NoRouteError(f"adapter {self.adapter} has no multicast here")

    def stream(
        self,
        way: PeerPath,
        connection: AdapterConnection | None,
        make: type[AdapterPath] = AdapterPath,
    ) -> AdapterPath:
        """
        @return: the path for the queue pair of a new connection.
        @raise ResourceLimitError: there are too many.
        """
        streams, number = self.streams, self._last
        if len(streams) + len(self.slots.retired) >= self._most:
            raise ResourceLimitError(f"adapter {self.adapter} has room for {self._most} connections here")
        while True:
            number = number + 1 if number < MULTICAST_QPN - 1 else GSI_QPN + 1
            if number not in streams:
                break
        self._last = number
        stream = streams[number] = make(way, number, connection)
        return stream

    def bind(self, way: PeerPath, queuePair: Any) -> AdapterPath:
        """
        @return: the path of a queue pair whose connection was agreed on.
        """
        stream = self.streams.get(queuePair.remote)
        if stream is None or stream.way is not way or stream.queuePair is not None or not stream.alive:
            raise PathLostError(f"{way.peer.address} has closed the connection")
        stream.attach(queuePair)
        return stream

    def makeQueuePair(
        self, domain: Any, kind: QPType = QPType.RC, shared: SharedSlots | None = None
    ) -> AdapterQueuePair:
        """
        @param domain: of the adapter.
        @param kind: its service.
        @param shared: the slots that it receives into; by default it is given receives of its own.
        @return: a new queue pair of the adapter.
        @raise OSError: it has no more.
        """
        isConnected = kind != QPType.UD
        given = self.verbs.QPInitAttr(
            send_cq=self.queue,
            recv_cq=self.queue,
            qp_type=self.verbs.QPType(int(kind)),
            max_send_wr=SENDS if isConnected else DATAGRAM_SENDS,
            max_recv_wr=SLOTS if isConnected else DATAGRAM_SLOTS,
            max_send_sge=PIECES,
            max_recv_sge=1,
            srq=None if shared is None else shared.queue,
        )
        made: AdapterQueuePair = domain.create_qp(given)
        return made

    def reserve(self, pd: Any, kind: QPType) -> int:
        if self.gidIndex() < 0:
            if kind != QPType.RC:
                text = f"rdma_cm alone connects those of adapter {self.adapter}, and reliable ones alone"
                raise UnsupportedOperationError(text)
            return 0
        # An adapter uses numbers again, and ours may live on, as those that rdma_cm has connected do; those
        # of streams are drawn.
        with ExitStack() as clashing:
            for _ in range(CLASHES):
                try:
                    domain = self.domainOf(pd)
                    made = self.makeQueuePair(domain, kind)
                    if (number := made.qp_num) not in self.owner.queuePairs:
                        isConnected = kind != QPType.UD
                        self.reserved[number] = made if isConnected else DatagramPath.of(self, made, domain)
                        return number
                except OSError as error:
                    text = f"adapter {self.adapter} makes no queue pair: {told(error)}"
                    raise ResourceLimitError(text) from None
                clashing.callback(made.close)
        raise ResourceLimitError(f"adapter {self.adapter} makes queue pairs of numbers that are taken")

    def release(self, number: int) -> None:
        made = self.reserved.pop(number, None)
        if made is not None:
            made.close()

    def step(self, number: int, state: QPState, attributes: Mapping[str, Any]) -> None:
        path = self.reserved.get(number)
        if isinstance(path, DatagramPath):
            path.step(state, attributes)

    def purge(self, number: int) -> None:
        """
        Forget what one of the adapter's queue pairs has done, and nobody has heard.
        """
        found = self._completions
        # As many as the queue has room for: others go on meanwhile.
        for _ in range(QUEUE_DEPTH // COMPLETIONS + 1):
            if not (more := self.queue.poll(COMPLETIONS)):
                break
            self._found(more)
        self._completions = deque(each for each in found if each.qp_num != number)
        for each in found:
            if each.qp_num == number:
                self.slots.unclaimed(each)

    def created(self, stream: AdapterPath) -> None:
        """
        A path has a queue pair of the adapter.
        """
        self._byAdapterNumber[stream.adapterNumber] = stream

    def destroyed(self, stream: AdapterPath) -> None:
        """
        The adapter's queue pair of a path is destroyed.
        """
        self._byAdapterNumber.pop(stream.adapterNumber, None)
        self.soon.pop(stream, None)

    def trace(self, observer: Any) -> None:
        pass  # An adapter shows no packets.

    # -- memory

    def domainOf(self, pd: Any) -> Any:
        """
        @param pd: a protection domain of ours.
        @return: that of the adapter.
        """
        found = self._domains.get(pd)
        if found is None:
            found = self._domains[pd] = self.context.alloc_pd()
        return found

    def share(self, pd: Any, queuePair: Any) -> None:
        path = queuePair.path
        if path is not None and path.domain is not None:
            self._domains[pd] = path.domain

    def register(self, view: memoryview, access: int, pd: Any) -> tuple[int, int, Any]:
        if not len(view):
            raise MemoryRegionError("an adapter takes no memory of no bytes")
        address = addressOf(view)
        access &= self.connector.rights
        try:
            region = self.domainOf(pd).reg_mr(address, len(view), access)
        except OSError as error:
            raise MemoryRegionError(
                f"adapter {self.adapter} does not take the memory: {told(error)}"
            ) from None
        entry = address, address + len(view), region.lkey
        insort(self._regions.setdefault(region.pd, []), entry)
        registered = Registered(self, entry, region)
        self._registered.add(registered)
        # Where peers have no right the key for them is none, of rxe and siw 0 for each region (Linux
        # rxe_mr.c, rxe_mr_init()).
        return region.rkey if access & REMOTE else region.lkey, address, registered

    def deregistered(self, registered: Registered) -> None:
        """
        A registration has ended.
        """
        self._registered.discard(registered)
        domain = registered.region.pd
        self._regions[domain].remove(registered.entry)
        if not self._regions[domain]:
            # It ends with ours; an adapter is not closed while it has one.
            del self._regions[domain]

    def registered(self, domain: Any, piece: Any) -> tuple[int, int, int] | None:
        """
        @return: the address, length and key of bytes that are registered memory of a domain of the adapter's;
            L{None} of others.
        """
        regions = self._regions.get(domain)
        if not regions or piece.__class__ is not memoryview:
            return None
        address = addressOf(piece)
        at = bisect_right(regions, address, key=_startOf) - 1
        if at < 0 or address + len(piece) > regions[at][1]:
            return None
        return address, len(piece), regions[at][2]

    # -- progress

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        if self._isBusy or self.isClosed:
            return 0
        self._isBusy = True
        n = 0
        try:
            n += self._dispatch()
            if self.soon:
                soon, self.soon = self.soon, {}
                for stream in soon:
                    n += self._tryCount(stream, budget)
            # Before the events of connections: what came first is delivered first.
            n += self._take()
            if not self.isClosed:
                n += self.connector.progress()
        finally:
            self._isBusy = False
        self._raise()
        return n

    def _tryCount(self, stream: AdapterPath, budget: int) -> int:
        try:
            return stream.progress(budget)
        except BaseException as error:
            self.failed(error)
            return 1

    def _poll(self) -> deque[Completion]:
        if not self._completions and (self._byAdapterNumber or self.slots.retired):
            self._found(self.queue.poll(COMPLETIONS))
        return self._completions

    def _found(self, completions: list[Completion]) -> None:
        self._completions.extend(completions)
        self.slots.found(completions)

    def _take(self) -> int:
        paths, n = self._byAdapterNumber, 0
        self._poll()
        # One after the other: what it says may end a queue pair, and what that has done besides.
        while self._completions:
            completion = self._completions.popleft()
            n += 1
            stream = paths.get(completion.qp_num)
            if stream is None:
                self.slots.unclaimed(completion)
            else:
                self._try(stream.completed, completion)
        return n

    def takeAll(self) -> None:
        """
        Take all that the adapter has done until now.
        """
        for _ in range(QUEUE_DEPTH // COMPLETIONS + 1):
            if not self._take():
                break

    # -- sleeping and waking

    def pending(self) -> bool:
        if self.isClosed:
            return False
        if self.soon or self.inbox or self.bells or self._completions:
            return True
        return bool(self._poll()) or any(fd != self.channel.fd for fd, _ in self._poller.poll(0))

    def unsent(self) -> bool:
        # Behind what was posted the peer hears of the end.
        return super().unsent() or any(each.isLingering() for each in self.streams.values())

    def arm(self) -> bool:
        if not self._isNotified and not self.isClosed:
            self._isNotified = True
            self.queue.req_notify()
        # Polled again behind it: what was done before makes no event.
        return super().arm()

    def attend(self) -> None:
        super().attend()
        if self._isNotified and not self.isClosed:
            try:
                self.channel.get_cq_event()
            except OSError:
                # There is none: something else has woken it.
                return
            self.queue.ack_events(1)
            self._isNotified = False

    # -- the end

    def forked(self) -> None:
        keep(self, self.reserved, list(self._domains.values()))
        self.slots.forked()
        self.isClosed = True
        for registered in self._registered:
            registered.forked()
        for stream in self.streams.values():
            stream.forked()
        self.streams.clear()
        self.reserved = {}
        self._byAdapterNumber.clear()
        self._waker.close()
        self._poller.close()
        self.connector.manager.forked()

    def check(self) -> None:
        """
        @raise PathLostError: the adapter is gone.
        """
        if self._gone is not None:
            raise self._gone

    def isGone(self) -> bool:
        """
        @return: whether the adapter is gone. One that disappears may fail its queue pairs before the kernel's
            word comes; it is listed no more by then (Linux device.c, disable_device()).
        """
        if self._gone is None:
            # A list that fails, as in a process that has no descriptor left, says nothing.
            with suppress(OSError):
                if all(each.name != self.adapter for each in self.verbs.get_device_list()):
                    self.vanished()
        return self._gone is not None

    def vanished(self) -> None:
        """
        The adapter is gone; the kernel waits until this fabric is closed (Linux uverbs_main.c,
        ib_uverbs_remove_one()).  Harmless if repeated.
        """
        if self._gone is None:
            self._gone = PathLostError(f"adapter {self.adapter} is gone")
            self._failAll(self._gone)
            self.owner.adapterGone(self._gone, self.connector.manager.letGo)

    def _failAll(self, reason: PathLostError) -> None:
        for connection in list(self.connector.connections.values()):
            self._try(self.connector.lose, connection, reason)
        for stream in list(self.streams.values()):
            self._try(stream.lost, reason)

    def close(self) -> None:
        if self.isClosed:
            return
        self._failAll(self._gone or PathLostError("the device was closed"))
        self.connector.manager.settle()
        self.isClosed = True
        for stream in list(self.streams.values()):
            stream.close()
        for number in list(self.reserved):
            self.release(number)
        for registered in list(self._registered):
            registered.close()
        domains = {id(each): each for each in self._domains.values()}
        # Streams have theirs.
        domains.pop(self.slots.close(), None)
        self._waker.close()
        self._poller.close()
        self.connector.close()
        self.queue.close()
        self.channel.close()
        for domain in domains.values():
            domain.close()
        self.context.close()
        self._raise()


def _startOf(entry: tuple[int, int, int]) -> int:
    return entry[0]


classImplements(HardwareFabric, IAdapterFabric)
