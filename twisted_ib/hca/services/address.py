"""
Where datagrams go: address vectors, address handles, and the way to each address.

An I{address vector} says how to reach a port; an I{address handle} is one that a program
has made for its datagrams (IBTA vol. 1 11.2.2).  Over a fabric of operations the way to an
address is a path to an HCA, which must be found first: what is sent meanwhile waits, and so
does what finds the medium full, both in a bounded queue.  A datagram beyond the bound, or
for somebody who is not there, is lost, as it is on a wire.  A stalled receiver thus keeps
nobody's send queue from its other receivers.

All handles of one address share the way, which outlives them for what still waits: a
program may answer, see the completion, and destroy the handle at once.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from attrs import frozen

from twisted_ib import limits
from twisted_ib.errors import HCAError, QueuePairError
from twisted_ib.hca.base.refcount import RefCounted
from twisted_ib.hca.memory.memory import ProtectionDomain

#: Datagrams of one device that wait, for their way or for room on it: 16 MiB.
DATAGRAMS_WAITING = 4096

_BITS = (
    ("gid", 128),
    ("flowLabel", 20),
    ("hopLimit", 8),
    ("trafficClass", 8),
    ("port", 8),
    ("lid", 16),
    ("serviceLevel", 4),
)


@frozen
class AddressVector:
    """
    How to reach a port.

    @ivar gid: the port's address, or a group's.
    @ivar sourceIndex: of the sender's GID table.  Who receives needs an address that leads
        back to this HCA, which the host's addresses do not: so what a datagram carries is
        always the GID of the GUID.
    @ivar flowLabel: 20 bits for the GRH.
    @ivar hopLimit: 8 bits for the GRH.
    @ivar trafficClass: 8 bits for the GRH.
    @ivar port: of the sender's HCA.
    @ivar lid: of no use here, as there is no subnet with local identifiers.
    @ivar serviceLevel: of no use here.
    @ivar isGlobal: whether C{gid} means something; without it nobody can be reached.
    """

    gid: int
    sourceIndex: int = 0
    flowLabel: int = 0
    hopLimit: int = 1
    trafficClass: int = 0
    port: int = 1
    lid: int = 0
    serviceLevel: int = 0
    isGlobal: bool = True

    def check(self) -> None:
        """
        @raise QueuePairError: it names nobody, or a field does not fit.
        """
        if not self.isGlobal or not self.gid:
            raise QueuePairError("an address vector needs a GID here: there are no local identifiers")
        for name, bits in _BITS:
            value = getattr(self, name)
            if value < 0 or value >> bits:
                raise QueuePairError(f"an address vector has no {name} {value:#x}")


class Departure:
    """
    The way to one address.

    @ivar gid: the address.
    @ivar users: handles of it.
    """

    __slots__ = ("_asking", "_departures", "_path", "_waiting", "gid", "users")

    def __init__(self, departures: Departures, gid: int) -> None:
        """
        It is not looked for before it is needed.
        """
        self._departures = departures
        self.gid = gid
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
        if path is not None and not self._waiting and path.post(word, header, payload, length):
            return
        if not self._departures.mayWait(len(self._waiting)):
            self._departures.lose(1)
            return
        pieces = payload if isinstance(payload, list) else [payload]
        self._waiting.append((word, b"".join([header, *pieces])))
        self._departures.waiting += 1
        if path is None:
            self._ask()
        elif len(self._waiting) == 1:
            path.wantSpace(self)

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        try:
            self._departures.device.reach(self.gid, self)
        except (HCAError, OSError) as error:
            self.connectFailed(error)

    def pathReady(self, path: Any) -> None:
        """
        Here is the path.
        """
        self._asking = False
        if path.alive:
            self._path = path
            self.resume()
        else:
            self._loseAll()

    def connectFailed(self, error: Exception) -> None:
        """
        There is none: what waits is lost, the next datagram asks again.
        """
        self._asking = False
        self._loseAll()

    def resume(self) -> None:
        """
        The medium has room: send what waits.
        """
        path, waiting = self._path, self._waiting
        while waiting:
            if path is None or not path.alive:
                self._path = None
                self._ask()
                return
            word, record = waiting[0]
            if not path.post(word, b"", record, len(record)):
                path.wantSpace(self)
                return
            waiting.popleft()
            self._departures.waiting -= 1
        self._departures.idle(self)

    def _loseAll(self) -> None:
        count = len(self._waiting)
        self._waiting.clear()
        self._departures.waiting -= count
        self._departures.lose(count)
        self._departures.idle(self)

    def lost(self, path: Any) -> None:
        """
        A path is gone; if it was the way here, what waited for room in it is lost.
        """
        if self._path is path:
            self._path = None
            self._loseAll()

    def close(self) -> None:
        """
        The device closes.
        """
        path, self._path = self._path, None
        if path is not None:
            path.wantNoSpace(self)
        self._asking = False
        self._loseAll()

    @property
    def inUse(self) -> bool:
        """
        Whether a handle or a datagram needs it.
        """
        return bool(self.users or self._waiting or self._asking)


class Departures:
    """
    The ways that one device's datagrams go.

    @ivar device: C{reach(gid, user)} finds a path, C{count(name)} counts.
    @ivar waiting: datagrams that wait, on all ways.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.waiting = 0
        self._byGID: dict[int, Departure] = {}

    def __len__(self) -> int:
        return len(self._byGID)

    def hold(self, gid: int) -> Departure:
        """
        A handle needs the way to an address.
        """
        departure = self._byGID.get(gid)
        if departure is None:
            departure = self._byGID[gid] = Departure(self, gid)
        departure.users += 1
        return departure

    def release(self, departure: Departure) -> None:
        """
        A handle needs it no longer.
        """
        departure.users -= 1
        self.idle(departure)

    def idle(self, departure: Departure) -> None:
        """
        Forget a way that nobody needs.
        """
        if not departure.inUse:
            self._byGID.pop(departure.gid, None)

    def mayWait(self, count: int) -> bool:
        """
        Whether one more datagram may wait where C{count} do already.
        """
        return count < limits.DATAGRAMS_UNRESOLVED and self.waiting < DATAGRAMS_WAITING

    def lose(self, count: int) -> None:
        """
        Datagrams do not arrive.
        """
        for _ in range(count):
            self.device.count("datagrams_lost")

    def pathLost(self, path: Any) -> None:
        """
        A path is gone: what waits for room in it is lost.
        """
        for departure in list(self._byGID.values()):
            departure.lost(path)

    def close(self) -> None:
        """
        The device closes.
        """
        for departure in list(self._byGID.values()):
            departure.close()


class AddressHandle(RefCounted):
    """
    An address that a program sends datagrams to.

    @ivar pd: its protection domain, which must be that of the queue pair.
    @ivar vector: the address.
    """

    __slots__ = ("_departure", "_departures", "pd", "vector")

    kind = "address handle"

    def __init__(self, pd: ProtectionDomain, vector: AddressVector, device: Any) -> None:
        """
        @param device: has C{departures}.

        @raise QueuePairError: the vector cannot be.
        """
        super().__init__()
        vector.check()
        self.pd = pd
        self.vector = vector
        self._departures: Departures = device.departures
        self._departure: Departure | None = self._departures.hold(vector.gid)
        pd.hold("address handles")

    def send(self, word: int, header: bytes, payload: Any, length: int) -> None:
        """
        Send a datagram, or lose it: see L{Departure.send}.
        """
        if self._departure is not None:
            self._departure.send(word, header, payload, length)

    @property
    def closed(self) -> bool:
        """
        Whether it is destroyed.
        """
        return self._departure is None

    def close(self) -> None:
        """
        Destroy it; datagrams that wait still go.

        @raise ResourceBusyError: something depends on it.
        """
        self.checkFree()
        departure, self._departure = self._departure, None
        if departure is not None:
            self._departures.release(departure)
            self.pd.release("address handles")
