"""
Both ends of connections and datagrams in one process, on reactors that turn when they are told to and whose
clock stands still but for that: L{benchmarks.counting} counts what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from attrs import define, field
from twisted.internet.protocol import ClientFactory, DatagramProtocol, Factory, Protocol

from twisted_ib.internet.readers import channelsOf
from twisted_ib.rds import listenRDS
from twisted_ib.reactor.ibreactor import IBReactor

#: What a turn of the reactor takes, and the most that anything here needs.
TURN_SECONDS, TURNS = 0.001, 20_000
#: Turns in which what a message causes is over.
SETTLING = 6


class CountingError(Exception):
    """
    What was to be counted did not happen.
    """


@define(eq=False)
class Place:
    """
    A reactor whose time passes by its turns.
    """

    reactor: Any = field(factory=IBReactor)
    now: float = 0.0

    def __attrs_post_init__(self) -> None:
        """
        Stop the clock.
        """
        self.reactor.seconds = lambda: self.now

    def turn(self) -> None:
        """
        One turn.
        """
        self.now += TURN_SECONDS
        self.reactor.iterate(0)

    def until(self, isDone: Callable[[], bool]) -> None:
        """
        Turn until something is so.

        @raise CountingError: It does not come to that.
        """
        for _ in range(TURNS):
            if isDone():
                return
            self.turn()
        raise CountingError(f"nothing in {TURNS} turns")

    def settle(self) -> None:
        """
        Let all be over.
        """
        for _ in range(SETTLING):
            self.turn()

    def close(self) -> None:
        """
        Close what is open.
        """
        for channel in list(channelsOf(self.reactor)):
            channel.close()


class Sink(Protocol):
    """
    Counts bytes.
    """

    taken = 0

    def dataReceived(self, data: bytes) -> None:
        """
        Some came.
        """
        self.taken += len(data)


class Echo(Protocol):
    """
    Sends them back.
    """

    def dataReceived(self, data: bytes) -> None:
        """
        Some came.
        """
        self.transport.write(data)  # type: ignore[union-attr]


class Caller(Protocol):
    """
    One echo, then the end.
    """

    def connectionMade(self) -> None:
        """
        Send.
        """
        self.transport.write(bytes(64))  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        """
        Enough.
        """
        self.transport.loseConnection()  # type: ignore[union-attr]


class Made(ClientFactory):
    """
    Keeps the protocols of connections that are there, and counts those that have ended.
    """

    noisy = False

    def __init__(self, protocol: Callable[[], Protocol]) -> None:
        """
        None yet.
        """
        self.protocol = protocol
        self.made: list[Any] = []
        self.ended = 0

    def buildProtocol(self, addr: Any) -> Any:
        """
        One more.
        """
        self.made.append(self.protocol())  # type: ignore[misc]
        return self.made[-1]

    def clientConnectionLost(self, connector: Any, reason: Any) -> None:
        """
        One less.
        """
        self.ended += 1


@define(eq=False)
class Stream:
    """
    A way of connecting.

    @ivar names: The modules of C{listen} and C{connect}, and what these are called there.
    """

    names: tuple[str, str]
    device: str = ""
    here: str = ""
    there: str = "127.0.0.1"
    place: Place = field(factory=Place)
    _ports: dict[type[Protocol], Any] = field(factory=dict)

    def connect(self, server: type[Protocol], client: Callable[[], Protocol], count: int = 1) -> Made:
        """
        Begin to make connections.
        """
        module, kind = self.names
        listen, connect = (getattr(import_module(module), word + kind) for word in ("listen", "connect"))
        options: dict[str, Any] = {"device": self.device} if self.device else {}
        if server not in self._ports:
            factory = Factory.forProtocol(server)
            factory.noisy = False
            self._ports[server] = listen(
                self.place.reactor, 0, factory, interface=self.there, **options
            ).getHost()
        port, made = self._ports[server], Made(client)
        bound = (self.here, 0) if self.here else None
        for _ in range(count):
            connect(self.place.reactor, self.there, port.port, made, bindAddress=bound, **options)
        return made

    def connected(self, server: type[Protocol], count: int = 1) -> list[Any]:
        """
        @return: The clients' protocols of connections that both ends have.
        """
        made = self.connect(server, Sink, count)
        self.place.until(lambda: len(made.made) == count and all(each.transport for each in made.made))
        self.place.settle()
        return made.made

    def trips(self, size: int) -> Callable[[int], None]:
        """
        @return: Sends so many messages forth and back, each after the one before.
        """
        [client] = self.connected(Echo)
        message = bytes(size)

        def act(count: int) -> None:
            for _ in range(count):
                client.taken = 0
                client.transport.write(message)
                self.place.until(lambda: client.taken == size)

        return act

    def stream(self, size: int) -> Callable[[int], None]:
        """
        @return: Writes so many times in one turn, and lets them arrive.
        """
        sinks: list[Sink] = []

        class Taker(Sink):
            """
            The server's end.
            """

            def connectionMade(self) -> None:
                """
                It is there.
                """
                sinks.append(self)

        [client] = self.connected(Taker)
        message = bytes(size)

        def act(count: int) -> None:
            [sink] = sinks
            wanted = sink.taken + size * count
            for _ in range(count):
                client.transport.write(message)
            self.place.until(lambda: sink.taken == wanted)

        return act

    def crowd(self, size: int) -> Callable[[int], None]:
        """
        @return: Has one message go forth and back on so many connections at once.
        """
        clients, message = self.connected(Echo, 60), bytes(size)

        def act(count: int) -> None:
            some = clients[:count]
            wanted = sum(each.taken for each in some) + size * count
            for each in some:
                each.transport.write(message)
            self.place.until(lambda: sum(each.taken for each in some) == wanted)

        return act

    def connects(self, size: int) -> Callable[[int], None]:
        """
        @return: Makes so many connections, each with an echo and an end.
        """

        def act(count: int) -> None:
            made = self.connect(Echo, Caller, count)
            self.place.until(lambda: made.ended == count)
            self.place.settle()

        return act

    def idle(self, size: int) -> Callable[[int], None]:
        """
        @return: Makes so many connections, with an echo each, that stay.
        """
        kept: list[Any] = []

        def act(count: int) -> None:
            clients = self.connected(Echo, count)
            kept.extend(clients)
            for each in clients:
                each.transport.write(bytes(size))
            self.place.until(lambda: all(each.taken == size for each in clients))
            self.place.settle()

        return act

    def _registered(self, size: int, isRead: bool) -> Callable[[int], None]:
        owners: list[Any] = []

        class Owner(Protocol):
            """
            The server's end.
            """

            def connectionMade(self) -> None:
                """
                It is there.
                """
                owners.append(self.transport.registerMemory(size, 7))  # type: ignore[union-attr]

        [client] = self.connected(Owner)
        transport, mine = client.transport, client.transport.registerMemory(size, 7)
        [theirs] = owners
        where = theirs.address, theirs.remoteKey
        done: list[Any] = []

        def act(count: int) -> None:
            done.clear()
            for number in range(1, count + 1):
                if isRead:
                    request = transport.rdmaRead(size, *where, mine, 0)
                else:
                    request = transport.rdmaWrite(mine, *where, 0, size)
                request.addBoth(done.append)
                self.place.until(lambda: len(done) == number)  # noqa: B023

        return act

    def write(self, size: int) -> Callable[[int], None]:
        """
        @return: Makes so many WRITEs.
        """
        return self._registered(size, False)

    def read(self, size: int) -> Callable[[int], None]:
        """
        @return: Makes so many READs.
        """
        return self._registered(size, True)


class _Datagrams(DatagramProtocol):
    """
    Counts datagrams.
    """

    noisy = False

    def __init__(self, isEcho: bool = False) -> None:
        """
        None yet.
        """
        self.taken, self.isEcho = 0, isEcho

    def datagramReceived(self, datagram: bytes, addr: Any) -> None:
        """
        One more.
        """
        self.taken += 1
        if self.isEcho:
            self.transport.write(datagram, addr)  # type: ignore[union-attr]


@define(eq=False)
class Datagrams:
    """
    RDS from one address to another.
    """

    device: str
    here: str
    there: str
    places: tuple[Place, Place] = field(factory=lambda: (Place(), Place()))

    def act(self, size: int, isTrip: bool) -> Callable[[int], None]:
        """
        @param isTrip: Each comes back before the next one leaves.

        @return: Sends so many datagrams, and lets them arrive.
        """
        ends = _Datagrams(), _Datagrams(isTrip)
        port: Any
        port, _ = (
            listenRDS(place.reactor, number, end, address, device=self.device)
            for place, number, end, address in zip(
                self.places, (4000, 5000), ends, (self.here, self.there), strict=True
            )
        )
        message, taker, there = bytes(size), ends[0 if isTrip else 1], (self.there, 5000)

        def act(count: int) -> None:
            wanted = taker.taken + count
            for number in range(count):
                port.write(message, there)
                if isTrip:
                    self._until(taker, wanted - count + number + 1)
            self._until(taker, wanted)

        return act

    def _until(self, taker: _Datagrams, wanted: int) -> None:
        for _ in range(TURNS):
            if taker.taken == wanted:
                return
            for each in self.places:
                each.turn()
        raise CountingError(f"{taker.taken} of {wanted} datagrams")

    def close(self) -> None:
        """
        Close what is open.
        """
        for each in self.places:
            each.close()
