"""
The steps of one connection, from the endpoint to the last message of the communication manager.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from cProfile import Profile
from time import thread_time_ns
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import ClientFactory, Factory, Protocol

from benchmarks.stepping import Both, connected, least
from benchmarks.steps import Table
from twisted_ib.hca.cm.machine import replyMessage, requestMessage
from twisted_ib.hca.cm.states import Event
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.wire.cm.messages import DREP, DREQ, RTU
from twisted_ib.sdp.handshake import SDP_HANDSHAKE as handshake
from twisted_ib.sdp.port import SDPConnector, connectSDP, listenSDP
from twisted_ib.sdp.protocol.wire import HELLO_ACK_BYTES, HELLO_BYTES, Hello, HelloAck
from twisted_ib.sdp.transport import SDPTransport
from twisted_ib.tools.compare.twistedprocess import Echo

SIZE = 64
#: Calls of one run of a step, and connections of one run of all.
CALLS = 200
CONNECTIONS = 100

_HOST = "127.0.0.1"
#: Parts of files' names, and what they are called here; the first that fits counts.
_GROUPS = (
    ("/twisted_ib/sdp/", "twisted_ib.sdp: connector, handshake, transport, machine"),
    ("/twisted_ib/internet/", "twisted_ib.internet: attempt, port, transports, channel"),
    ("/twisted_ib/hca/cm/", "twisted_ib.hca.cm: tables and states"),
    ("/twisted_ib/hca/wire/", "twisted_ib.hca.wire: codec of messages"),
    ("/twisted_ib/hca/queues/", "twisted_ib.hca.queues: queue pair"),
    ("/twisted_ib/hca/fabric/", "twisted_ib.hca.fabric: ring, paths, addresses"),
    ("/twisted_ib/", "twisted_ib, the rest: device, memory, reactor"),
    ("/benchmarks/", "the applications"),
    ("/twisted/", "Twisted: reactor, delayed calls, failures, logging"),
    ("/zope/", "zope.interface"),
)


class _Client(Protocol):
    """
    One echo, then the end.
    """

    def connectionMade(self) -> None:
        """
        Speak.
        """
        self.transport.write(bytes(SIZE))  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        """
        Enough.
        """
        self.transport.loseConnection()  # type: ignore[union-attr]


class _Told(_Client):
    """
    The same for an endpoint, which tells nobody of the end.
    """

    def __init__(self, told: Callable[[], None]) -> None:
        """
        @param told: Called at the end.
        """
        self._told = told

    def connectionLost(self, reason: Any = None) -> None:
        """
        Tell.
        """
        self._told()


class _Caller(ClientFactory):
    """
    For C{connectSDP}.
    """

    protocol = _Client
    noisy = False

    def __init__(self, told: Callable[[], None]) -> None:
        """
        @param told: Called at the end of each connection.
        """
        self._told = told

    def clientConnectionLost(self, connector: object, reason: object) -> None:
        """
        Tell.
        """
        self._told()


def measure(reactor: Any, runs: int) -> Deferred[list[Table]]:
    """
    All steps.
    """
    table = Table("One connection, both ends: connect, echo 64 B, close", "ns")
    port: Any = listenSDP(reactor, 0, Factory.forProtocol(Echo), interface=_HOST)
    number = port.getHost().port

    def byConnector(told: Callable[[], None]) -> None:
        """
        One more.
        """
        connectSDP(reactor, _HOST, number, _Caller(told))

    endpoint = clientFromString(reactor, f"sdp:{_HOST}:{number}")

    def byEndpoint(told: Callable[[], None]) -> None:
        """
        One more.
        """
        endpoint.connect(Factory.forProtocol(lambda: _Told(told)))

    def withBoth(both: Both) -> list[Table]:
        """
        The steps that need an open connection.
        """
        _steps(table, both, reactor, number, runs)
        both.client.abortConnection()
        both.port.stopListening()
        port.stopListening()
        both.settle()
        return [table]

    done: Deferred[Any] = _many(reactor, byEndpoint, runs)
    done.addCallback(lambda ns: table.add("whole, by an endpoint", ns, "in one process"))
    done.addCallback(lambda _: _many(reactor, byConnector, runs))
    done.addCallback(lambda ns: table.add("whole, by connectSDP", ns, "in one process"))
    done.addCallback(lambda _: _profiled(reactor, byConnector, runs))
    done.addCallback(lambda shares: _divide(table, shares))
    done.addCallback(lambda _: connected(reactor))
    return done.addCallback(withBoth)


def _many(reactor: Any, begin: Callable[[Callable[[], None]], None], runs: int) -> Deferred[float]:
    """
    Make connections one after the other.

    @return: fires with ns of CPU time of one, of the least run.
    """
    done: Deferred[float] = Deferred()
    found: list[int] = []
    left, started = CONNECTIONS, thread_time_ns()

    def next_() -> None:
        """
        One is over.
        """
        nonlocal left, started
        left -= 1
        if not left:
            now = thread_time_ns()
            found.append(now - started)
            left, started = CONNECTIONS, now
        if len(found) >= max(2, runs // 4):
            reactor.callLater(0, done.callback, min(found) / CONNECTIONS)
        else:
            begin(next_)

    begin(next_)
    return done


def _profiled(
    reactor: Any, begin: Callable[[Callable[[], None]], None], runs: int
) -> Deferred[dict[str, float]]:
    """
    The same under a profiler.

    @return: fires with the share of each group of L{_GROUPS}.
    """
    profile = Profile()

    def ended(_: float) -> dict[str, float]:
        """
        Add up what each function took by itself; what is not Python counts for its caller.
        """
        profile.disable()
        profile.create_stats()
        found: Counter[str] = Counter()
        for (file, _line, _name), (_cc, _nc, own, _all, callers) in profile.stats.items():
            if file != "~":
                found[_groupOf(file)] += own
            else:
                for (caller, *_rest), times in callers.items():
                    found[_groupOf(caller)] += times[2]
        return {name: spent / sum(found.values()) for name, spent in found.most_common()}

    profile.enable()
    return _many(reactor, begin, runs).addCallback(ended)


def _groupOf(file: str) -> str:
    """
    The group of a function.
    """
    return next((name for part, name in _GROUPS if part in file), "the rest of Python")


def _divide(table: Table, shares: dict[str, float]) -> None:
    """
    Divide the whole by connectSDP.
    """
    whole = table.steps[-1][1]
    for name, share in shares.items():
        table.add(f"of that: {name}", whole * share, f"{share:.0%} by a profile")


def _steps(table: Table, both: Both, reactor: Any, port: int, runs: int) -> None:
    """
    Call the steps by themselves.
    """
    client = both.client
    channel, device = client.channel, both.device
    local, peer = client.getHost(), client.getPeer()

    def add(name: str, call: Callable[[], object], remark: str = "") -> None:
        """
        One step.
        """
        table.add(name, least(runs, call, CALLS), remark)

    endpoint = f"sdp:{_HOST}:{port}"
    add("endpoint: clientFromString", lambda: clientFromString(reactor, endpoint), "a search for plugins")
    factory = _Caller(lambda: None)
    add(
        "connector: made",
        lambda: SDPConnector(_HOST, port, factory, 30, None, reactor),
    )

    class User:
        """
        Wants a path.
        """

        def pathReady(self, path: object) -> None:
            """
            Has it.
            """

    user = User()
    add(
        "path to the peer's HCA, known",
        lambda: device.connect(PortSpace.SDP, _HOST, port, user),
    )
    path, remote = client.queuePair.path, client.queuePair.remote

    def queuePair() -> None:
        """
        One queue pair's life.
        """
        made = device.createQueuePair(client)
        made.connect(path, remote)
        made.close()

    add("queue pair: made, connected, closed", queuePair, "one end")
    add(
        "transport: made, with its queue pair, which is closed",
        lambda: SDPTransport(channel, local, peer).queuePair.close(),
        "one end",
    )
    _codec(add, client, local, peer)
    table.add("CM tables: REQ to DREP, codec included", _cycle(client, local, peer, runs), "both ends")


def _codec(add: Callable[..., None], client: Any, local: Any, peer: Any) -> None:
    """
    Each message of the communication manager, packed and parsed.
    """
    asked = handshake.request(client, local, peer)
    greeting = handshake.requested(asked)
    request, reply = requestMessage(asked), replyMessage(handshake.reply(client, asked, greeting))
    request.localCommunicationID = 1
    reply.localCommunicationID, reply.remoteCommunicationID = 2, 1
    ready = RTU(localCommunicationID=1, remoteCommunicationID=2)
    leave = DREQ(localCommunicationID=1, remoteCommunicationID=2, remoteQPN=5)
    left = DREP(localCommunicationID=2, remoteCommunicationID=1)
    hello = Hello.parse(request.privateData[:HELLO_BYTES])
    ack = HelloAck.parse(reply.privateData[:HELLO_ACK_BYTES])
    named = (("Hello", hello), ("HelloAck", ack), ("REQ", request), ("REP", reply))
    for name, message in (*named, ("RTU", ready), ("DREQ", leave), ("DREP", left)):
        kind: Any = type(message)
        octets = message.pack()
        if kind in (Hello, HelloAck):
            add(f"{name}: packed and parsed", lambda m=message, k=kind, o=octets: (m.pack(), k.parse(o)))
        else:
            end = len(octets)
            add(
                f"{name}: packed and parsed",
                lambda m=message, k=kind, o=octets, e=end: (m.pack(), k.parse(o, 0, e)),
            )
    add("handshake: the request of a connection made", lambda: handshake.request(client, local, peer))
    add("handshake: its reply made", lambda: handshake.reply(client, asked, greeting))


def _cycle(client: Any, local: Any, peer: Any, runs: int) -> float:
    """
    Two tables on a wire in memory.

    @return: ns of one connection, made and ended.
    """
    bits = random.Random(0).getrandbits
    tables = {"a": ConnectionTable(0xA, bits), "b": ConnectionTable(0xB, bits)}
    asked = handshake.request(client, local, peer)
    reply = handshake.reply(client, asked, handshake.requested(asked))
    request = requestMessage(asked)
    tables["b"].listen(request.serviceID, "listener")
    clock = 0.0

    def act(event: Any) -> None:
        """
        The steps of users.
        """
        kind, connection, _ = event
        if kind == Event.REQUEST:
            connection.accept(reply, clock)
        elif kind == Event.REPLY:
            connection.ready(clock)
            connection.disconnect(clock)

    def once() -> None:
        """
        One connection's life.
        """
        nonlocal clock
        clock += 1.0
        tables["a"].connect("b", request, None, clock)
        isMoving = True
        while isMoving:
            isMoving = False
            for name, other in (("a", "b"), ("b", "a")):
                while (output := tables[name].nextOutput()) is not None:
                    isMoving = True
                    _, attribute, octets = output
                    tables[other].receive(name, attribute, octets, 0, len(octets), clock)
                while (event := tables[name].nextEvent()) is not None:
                    act(event)

    return least(runs, once, CALLS)
