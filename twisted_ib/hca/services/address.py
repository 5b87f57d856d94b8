"""
Address vectors, address handles, and the path to each address.

An I{address vector} says how to reach a port; an I{address handle} is one that a program created for its
datagrams (IBTA vol. 1 11.2.2).  Over a fabric of operations, a datagram needs a path to the HCA that has
the address, and the path must be resolved first.  Datagrams sent meanwhile wait in a bounded queue, and so
do datagrams that find the medium full.  A datagram beyond the bound, or for an unreachable address, is
lost, as on a wire; a stalled receiver thus does not block a send queue for its other receivers.

All handles of one address share one L{AddressPath}, which outlives them while datagrams wait in it: a
program may send, see the completion and destroy the handle at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.errors import HCAError, QueuePairError
from twisted_ib.hca.base.port import LARGEST_UNICAST_LID
from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.wire.grh import isMulticast
from twisted_ib.layouts import Shown
from twisted_ib.records import frozen

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IDevice, IPeerPath

#: Datagrams of one device that wait, for their path or for room on it: 16 MiB.
DATAGRAMS_WAITING = 4096
_PERMISSIVE_LID = 0xFFFF

_BITS = (
    ("gid", 128),
    ("flowLabel", 20),
    ("hopLimit", 8),
    ("trafficClass", 8),
    ("port", 8),
    ("lid", 16),
    ("serviceLevel", 4),
)


@frozen(repr=False)
class AddressVector(Shown):
    """
    How to reach a port (C{struct ibv_ah_attr}).

    @ivar gid: the GID of the port, or of a multicast group.
    @ivar sourceIndex: index into the sender's GID table.
    @ivar port: port number of the sender's HCA.
    @ivar lid: the LID of the port or group, or of the router to it: on InfiniBand only.
    @ivar serviceLevel: its service level, there.
    @ivar isGlobal: whether C{gid} is set and its datagrams have a GRH; on Ethernet it must be.
    """

    gid: int
    # Accepted for verbs' sake, but not used: a receiver needs an address that leads back to this
    # HCA, which an IP address of this host need not do.  A datagram always carries the GID made of
    # the HCA's GUID.
    sourceIndex: int = 0
    flowLabel: int = 0
    hopLimit: int = 1
    trafficClass: int = 0
    port: int = 1
    lid: int = 0
    serviceLevel: int = 0
    isGlobal: bool = True

    def key(self, linkLayer: LinkLayer) -> int:
        """
        @return: the address that leads to the port: on InfiniBand its LID, also if there is a GRH; else its
            GID.
        """
        # IBTA vol. 1 7.7: switches forward by the LID alone.
        return self.lid if linkLayer is LinkLayer.INFINIBAND else self.gid

    @property
    def isMulticast(self) -> bool:
        """
        Whether it is the address of a multicast group.
        """
        return isMulticast(self.gid) if self.isGlobal else self.lid > LARGEST_UNICAST_LID

    def check(self, linkLayer: LinkLayer = LinkLayer.ETHERNET) -> None:
        """
        Check that the vector has the address that a link layer needs and that each field fits its width.

        @raise QueuePairError: it has no address, or a field is out of range.
        """
        if linkLayer is LinkLayer.ETHERNET:
            # With RoCEv2 (IBTA vol. 1 annex A17) a port is addressed by GID only; there are no LIDs.
            if not self.isGlobal or not self.gid:
                raise QueuePairError("an address vector needs a GID here: there are no local identifiers")
        # IBTA vol. 1 4.1.3: the permissive LID is for directed routes only.
        elif not 0 < self.lid < _PERMISSIVE_LID:
            raise QueuePairError(f"an address vector needs a LID here, not {self.lid:#x}")
        # IBTA vol. 1 4.1.1: a GID begins with a subnet prefix, so none can be taken for a LID.
        elif self.isGlobal and not self.gid >> 64:
            raise QueuePairError(f"an address vector has no GID {self.gid:#x}")
        for name, bits in _BITS:
            value = getattr(self, name)
            if value < 0 or value >> bits:
                raise QueuePairError(f"an address vector has no {name} {value:#x}")


class AddressPath:
    """
    The path to one address, and the datagrams that wait for it.

    @ivar users: how many address handles use it.
    """

    __slots__ = ("_addressPaths", "_asking", "_path", "_waiting", "key", "users")

    def __init__(self, addressPaths: AddressPaths, key: int) -> None:
        self._addressPaths = addressPaths
        #: The GID or LID.
        self.key = key
        self.users = 0
        self._path: Any = None
        self._asking = False
        self._waiting: deque[tuple[int, bytes]] = deque()

    def send(self, word: int, header: bytes, payload: Any, length: int) -> None:
        """
        Send a datagram, or lose it.

        @param word: operation and destination queue pair number.
        @param header: GRH, DETH and immediate.
        @param payload: bytes-like, or a list of such; copied before this returns.
        @param length: bytes in C{payload}.
        """
        path = self._path
        if path is not None and not path.alive:
            path = self._path = None
        # While others wait, a new datagram waits behind them: datagrams to one address keep their
        # order.
        if path is not None and not self._waiting and path.post(word, header, payload, length):
            return
        # Two bounds: one address must not use up the device's share, nor many dead ones together.
        paths = self._addressPaths
        if len(self._waiting) >= limits.DATAGRAMS_QUEUED or paths.waiting >= DATAGRAMS_WAITING:
            paths.lose(1)
            return
        # A full queue is not reported to the sender: IBTA vol. 1 9.8.3 promises no delivery for
        # UD, and a send queue that waited for one receiver would block the datagrams to all
        # others.
        pieces = payload if isinstance(payload, list) else [payload]
        self._waiting.append((word, b"".join([header, *pieces])))
        self._addressPaths.waiting += 1
        if path is None:
            self._ask()
        elif len(self._waiting) == 1:
            path.wantSpace(self)

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        try:
            self._addressPaths.device.reach(self.key, self)
        except (HCAError, OSError) as error:
            self.connectFailed(error)

    def pathReady(self, path: IPeerPath) -> None:
        """
        The path was found.
        """
        self._asking = False
        if path.alive:
            self._path = path
            self.resume()
        else:
            self._loseAll()

    def connectFailed(self, error: Exception) -> None:
        """
        The path was not found: waiting datagrams are lost; the next datagram starts a new lookup.
        """
        self._asking = False
        self._loseAll()

    def resume(self) -> None:
        """
        The medium has room again: send waiting datagrams.
        """
        path, waiting = self._path, self._waiting
        while waiting:
            if path is None or not path.alive:
                # The path broke while datagrams waited for room in it: look the address up again,
                # as the peer may have restarted.
                self._path = None
                self._ask()
                return
            word, record = waiting[0]
            if not path.post(word, b"", record, len(record)):
                path.wantSpace(self)
                return
            waiting.popleft()
            self._addressPaths.waiting -= 1
        self._addressPaths.idle(self)

    def _loseAll(self) -> None:
        count = len(self._waiting)
        self._waiting.clear()
        self._addressPaths.waiting -= count
        self._addressPaths.lose(count)
        self._addressPaths.idle(self)

    def lost(self, path: IPeerPath) -> None:
        """
        A path broke; if it was this one, the datagrams that waited for room in it are lost.
        """
        if self._path is path:
            self._path = None
            self._loseAll()

    def close(self) -> None:
        """
        The device closes: waiting datagrams are lost.
        """
        path, self._path = self._path, None
        if path is not None:
            # Otherwise the path would call L{resume} after the device is closed, when the medium
            # has room again.
            path.wantNoSpace(self)
        self._asking = False
        self._loseAll()

    @property
    def inUse(self) -> bool:
        """
        Whether a handle uses it, or datagrams wait in it.
        """
        return bool(self.users or self._waiting or self._asking)


class AddressPaths:
    """
    The L{AddressPath} of each address that one device sends datagrams to.

    @ivar device: C{reach(key, user)} finds a path, C{count(name)} counts.
    @ivar waiting: datagrams that wait, in all of them together.
    """

    def __init__(self, device: IDevice) -> None:
        self.device = device
        self.waiting = 0
        self._byKey: dict[int, AddressPath] = {}

    def __len__(self) -> int:
        return len(self._byKey)

    def hold(self, key: int) -> AddressPath:
        """
        Get the L{AddressPath} of an address for one more handle.

        @param key: see L{AddressVector.key}.
        """
        addressPath = self._byKey.get(key)
        if addressPath is None:
            addressPath = self._byKey[key] = AddressPath(self, key)
        addressPath.users += 1
        return addressPath

    def release(self, addressPath: AddressPath) -> None:
        """
        A handle of it was destroyed.
        """
        addressPath.users -= 1
        self.idle(addressPath)

    def idle(self, addressPath: AddressPath) -> None:
        """
        Forget it unless it is in use.
        """
        # A program may create a handle per datagram and destroy it at the completion, before the
        # path is found; what waits must still go, so the last user is not the end of the entry.
        if not addressPath.inUse:
            self._byKey.pop(addressPath.key, None)

    def lose(self, count: int) -> None:
        """
        Count lost datagrams.
        """
        for _ in range(count):
            self.device.count("datagrams_lost")

    def pathLost(self, path: IPeerPath) -> None:
        """
        A path broke: datagrams that wait for room in it are lost.
        """
        for addressPath in list(self._byKey.values()):
            addressPath.lost(path)

    def close(self) -> None:
        """
        The device closes.
        """
        for addressPath in list(self._byKey.values()):
            addressPath.close()


class AddressHandle(RefCounted):
    """
    An address that a program sends datagrams to (C{struct ibv_ah}).
    """

    __slots__ = ("_addressPath", "_addressPaths", "pd", "vector")

    kind = "address handle"

    def __init__(self, pd: ProtectionDomain, vector: AddressVector, device: IDevice) -> None:
        """
        @param pd: the protection domain, which must be that of the queue pair.
        @param device: has C{addressPaths} and C{port}.
        @raise QueuePairError: the vector is not valid.
        """
        super().__init__()
        linkLayer = device.port.linkLayer
        vector.check(linkLayer)
        self.pd = pd
        self.vector = vector
        self._addressPaths: AddressPaths = device.addressPaths
        self._addressPath: AddressPath | None = self._addressPaths.hold(vector.key(linkLayer))
        pd.hold("address handles")

    def send(self, word: int, header: bytes, payload: Any, length: int) -> None:
        """
        Send a datagram, or lose it: see L{AddressPath.send}.
        """
        if self._addressPath is not None:
            self._addressPath.send(word, header, payload, length)

    @property
    def closed(self) -> bool:
        """
        Whether it was destroyed.
        """
        return self._addressPath is None

    def close(self) -> None:
        """
        Destroy it; waiting datagrams are still sent.

        @raise ResourceBusyError: something depends on it.
        """
        self.checkFree()
        addressPath, self._addressPath = self._addressPath, None
        if addressPath is not None:
            self._addressPaths.release(addressPath)
            self.pd.release("address handles")
