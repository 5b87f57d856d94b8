"""
Virtual time, a network in memory, and the hosts on it.

Nothing here is left to chance but by the dice of a run, so that a seed says it all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any
from zlib import crc32

from tests.hca.bpf import accepts
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce.packet import PacketFabric

#: Datagrams that wait at a host, as in the buffer of a socket.
QUEUE = 2048
#: Turns without time passing that cannot be meant.
STUCK = 20000
#: How long a datagram takes, in seconds.
LATENCY = 0.00005


class Network:
    """
    Brings datagrams to links, after L{LATENCY}.

    @ivar corrupted: how many datagrams came to their host.
    """

    def __init__(self, world: World) -> None:
        """
        Nobody is on it.
        """
        self.world = world
        self.links: dict[str, Link] = {}
        self.delivered = 0

    def send(self, source: Link, destination: str, port: int, datagram: bytes, trafficClass: int) -> None:
        """
        Deliver a datagram, or lose it if there is no receiver.
        """
        world = self.world
        code, psn = datagram[:1].hex(), datagram[9:12].hex()
        world.note(f"> {source.address} {code} {psn} {len(datagram)} {crc32(datagram[:-4]):08x}")
        links = (
            [self.links[destination]]
            if destination in self.links
            else [link for link in self.links.values() if destination in link.groups and link is not source]
        )
        for link in links:
            world.later(
                LATENCY,
                lambda link=link: link.take((source.address, port, destination, datagram, trafficClass)),
            )


class Link:
    """
    An end of the network: an L{ILink<twisted_ib.hca.fabric.base.link.ILink>}.
    """

    user: Any = None
    burst = 16

    def __init__(self, network: Network, address: str, pathMTU: int = 1024) -> None:
        """
        @param address: a unique IP address.
        """
        self.network, self.address, self.pathMTU = network, address, pathMTU
        self.groups: set[str] = set()
        self.queue: deque[tuple[str, int, str, bytes, int]] = deque()
        self.lost = self.filtered = 0
        self.filter = b""
        network.links[address] = self

    def pathMTUTo(self, destination: str) -> int:
        """
        The same everywhere.
        """
        return self.pathMTU

    routeMTUTo = pathMTUTo

    def sourcePort(self, wanted: int) -> int:
        """
        All ports are free.
        """
        return wanted

    def send(
        self,
        destination: str,
        port: int,
        pieces: Any,
        size: int,
        trafficClass: int = 0,
        hopLimit: int = 64,
    ) -> bool:
        """
        Send datagrams.
        """
        octets = b"".join(pieces)
        for at in range(0, len(octets), size):
            self.network.send(self, destination, port, octets[at : at + size], trafficClass)
        return True

    def take(self, arrived: tuple[str, int, str, bytes, int]) -> None:
        """
        A datagram came.
        """
        if self.filter and not accepts(self.filter, arrived[3]):
            self.filtered += 1
            return
        if len(self.queue) >= QUEUE:
            self.lost += 1
            return
        self.queue.append(arrived)
        signal = getattr(self.user, "signal", None)
        if signal is not None:
            signal()

    def receive(self, budget: int) -> int:
        """
        Give what has arrived to the user, what follows each other together.
        """
        n = 0
        while self.queue and n < budget:
            source, port, destination, datagram, trafficClass = self.queue.popleft()
            n += 1
            size, octets = len(datagram), datagram
            while self.queue and not len(octets) % size and len(octets) < size * self.burst:
                following = self.queue[0]
                if following[:3] != (source, port, destination) or following[4] != trafficClass:
                    break
                if len(following[3]) > size:
                    break
                octets += self.queue.popleft()[3]
                n += 1
            # Something before and behind, so that a wrong bound shows.
            buffer = b"\xee" * 3 + octets + b"\xee" * 5
            self.user.arrived(*(source, port, destination, buffer, 3, 3 + len(octets), size, trafficClass))
        return n

    def waiting(self) -> int:
        """
        As Linux counts them: each datagram takes some memory besides.
        """
        return sum(512 + len(datagram[3]) for datagram in self.queue)

    def sift(self, program: bytes) -> None:
        """
        As the kernel does.
        """
        self.filter = program

    def pending(self) -> bool:
        """
        Whether something has arrived.
        """
        return bool(self.queue)

    def fileno(self) -> int:
        """
        There is none.
        """
        return -1

    def join(self, group: str) -> None:
        """
        Take what is sent to a group.
        """
        self.groups.add(group)

    def leave(self, group: str) -> None:
        """
        Take it no more.
        """
        self.groups.discard(group)

    def close(self) -> None:
        """
        Nobody is here any more.
        """
        self.network.links.pop(self.address, None)


def deviceOn(link: Any, clock: Callable[[], float], seed: int) -> Device:
    """
    Open an HCA.

    @param seed: of all that it draws.
    """
    dice = Random(seed)
    return Device(
        link.address,
        clock,
        lambda owner, guid, clock: PacketFabric(owner, guid, clock, link, dice.getrandbits),
        dice.getrandbits,
        capture="",
    )


class Host:
    """
    A process with an HCA.

    @ivar ahead: how much its clock is ahead of the world's, in seconds.
    @ivar stopped: whether it does nothing now.
    @ivar pump: called after each turn; returns whether something was done.
    """

    def __init__(self, world: World, link: Any, seed: int) -> None:
        """
        @param seed: of all that it draws.
        """
        self.world, self.link = world, link
        self.ahead = 0.0
        self.stopped = False
        self.pump: Callable[[], bool] | None = None
        self.device = deviceOn(link, self.seconds, seed)
        self.device.fabric.patient = bool(seed & 1)

    def seconds(self) -> float:
        """
        Its time.
        """
        return self.world.now + self.ahead

    def deadline(self) -> float | None:
        """
        When it wants to be called, in the world's time.
        """
        when = None if self.stopped else self.device.deadline()
        return None if when is None else when - self.ahead

    def advance(self) -> None:
        """
        Time has passed: do what is due.
        """
        due = self.deadline()
        if due is not None and due <= self.world.now:
            self.device.tick(self.seconds())

    def turn(self) -> bool:
        """
        Do what there is to do.

        @return: whether there was something.
        """
        if self.stopped:
            return False
        worked = bool(self.device.progress())
        if self.pump is not None and self.pump():
            worked = True
        return worked


class World:
    """
    Time and what happens in it.

    @ivar now: seconds.
    @ivar log: what happened.
    """

    def __init__(self) -> None:
        """
        Nothing has happened.
        """
        self.now = 0.0
        self.log: list[str] = []
        self.hosts: list[Any] = []
        self.network = Network(self)
        self._calls: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0

    def note(self, text: str) -> None:
        """
        Write something into the log.
        """
        self.log.append(f"{self.now:.9f} {text}")

    def seconds(self) -> float:
        """
        Its time.
        """
        return self.now

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """
        Call something after a while; what is called at the same time is called in order.
        """
        self._order += 1
        heappush(self._calls, (self.now + seconds, self._order, call))

    def settle(self) -> None:
        """
        Let all hosts work until they have nothing to do, without time passing.
        """
        for _ in range(STUCK):
            if not any([host.turn() for host in self.hosts]):
                return
        raise AssertionError(f"the hosts do not come to rest at {self.now}")

    def next(self) -> float | None:
        """
        When something will happen.
        """
        found = [self._calls[0][0]] if self._calls else []
        found += [when for host in self.hosts if (when := host.deadline()) is not None]
        return min(found) if found else None

    def run(self, until: Callable[[], bool], most: float) -> bool:
        """
        Let time pass.

        @param until: what is waited for.
        @param most: for how long, in seconds.
        @return: whether it came.
        """
        end = self.now + most
        still = 0
        while True:
            self.settle()
            if until():
                return True
            when = self.next()
            if when is None or when > end:
                self.now = end
                return until()
            still = still + 1 if when <= self.now else 0
            if still > STUCK:
                raise AssertionError(f"time does not pass at {self.now}")
            self.now = max(self.now, when)
            while self._calls and self._calls[0][0] <= self.now:
                heappop(self._calls)[2]()
            for host in self.hosts:
                host.advance()

    def quiet(self, most: float) -> bool:
        """
        Let time pass until nothing is left to happen.

        @return: whether that was before C{most} seconds.
        """
        self.run(lambda: self.next() is None, most)
        return self.next() is None and not any(host.device.busy() for host in self.hosts if not host.stopped)

    def close(self) -> None:
        """
        Give everything back.
        """
        for host in self.hosts:
            host.device.close()
