"""
Tests of L{twisted_ib.hca.cm.peer.SettledConnections}: established connections that queue pairs stand for.

Most run twice: with connections that settle, and with the same that stay objects.  Nothing that comes or is
done may tell them apart.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.cm.net import SERVICE, ask
from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError
from twisted_ib.hca.cm.machine import Connection, Event, State
from twisted_ib.hca.cm.peer import Peer
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.cm.transitions import DREQ_LAST
from twisted_ib.hca.connection import RejectReason
from twisted_ib.hca.wire.cm.messages import (
    APR,
    DREP,
    DREQ,
    LAP,
    MRA,
    REJ,
    REP,
    REQ,
    RTU,
    AnyMessage,
    byAttribute,
)

#: Histories that are compared, and the steps of each.
HISTORIES, STEPS = 100, 14
GUIDS = {"a": 0xA, "b": 0xB}


class User:
    """
    The user of a connection and of its queue pair.

    @ivar told: the kinds of its events.
    """

    def __init__(self, world: World, name: str, connection: Connection, number: int, remote: int) -> None:
        """
        @param number: of the queue pair; C{remote} of the peer's.
        """
        self.world, self.name = world, name
        self.connection: object = connection
        self.queuePair = SimpleNamespace(number=number, remote=remote, consumer=self)
        self.told: list[Event] = []
        connection.user = self
        world.queuePairs[name][number] = self.queuePair
        world.made.append(self)

    @property
    def table(self) -> ConnectionTable:
        return self.world.tables[self.name]

    @property
    def state(self) -> State:
        """
        That of its connection, settled or not.
        """
        connection, pair = self.connection, self.queuePair
        if isinstance(connection, Connection):
            return connection.state
        assert isinstance(connection, Peer)
        return State.ESTABLISHED if connection.connections.get(pair.remote) == pair.number else State.IDLE

    def settle(self) -> None:
        """
        As a stream does when it begins.
        """
        if self.world.settles:
            self.connection = self.table.settled.settle(self.connection)

    def resume(self) -> Connection:
        """
        As a stream does before it closes its queue pair.
        """
        connection = self.connection
        if isinstance(connection, Peer):
            connection = self.table.settled.resume(connection, self.queuePair)
        assert isinstance(connection, Connection)
        return connection

    def close(self) -> None:
        """
        Close the queue pair.
        """
        self.world.queuePairs[self.name].pop(self.queuePair.number, None)

    def finish(self) -> None:
        """
        Both users know of the end.
        """
        if isinstance(self.connection, Peer):
            self.table.settled.finish(self.connection, self.queuePair)
        elif isinstance(self.connection, Connection):
            self.connection.user = None
            self.connection.finish(self.world.now)
        self.close()

    def end(self, isAwaited: bool = True) -> None:
        """
        Disconnect.
        """
        connection = self.resume()
        self.close()
        if isAwaited:
            connection.disconnect(self.world.now, b"why")
        else:
            connection.user = None
            connection.leave(self.world.now, b"why")


class World:
    """
    Two tables, between which nothing is lost, and their users; others may send them messages, too.

    @ivar settles: whether connections settle.
    @ivar made: the users, in the order of their connections.
    @ivar log: all that was sent, and that users were told.
    @ivar isConfirmed: whether RTUs confirm those to come.
    @ivar isLate: whether the passive side asks for time first.
    """

    def __init__(self, settles: bool = True) -> None:
        """
        Both listen.
        """
        self.settles, self.now = settles, 0.0
        self.queuePairs: dict[str, dict[int, Any]] = {"a": {}, "b": {}}
        self.tables = {
            name: ConnectionTable(guid, random.Random(1).getrandbits) for name, guid in GUIDS.items()
        }
        self.made: list[User] = []
        self.log: list[Any] = []
        self.isConfirmed = self.isLate = False
        for name, table in self.tables.items():
            table.lossless, table.draw = True, partial(random.Random(name).getrandbits, 24)
            table.settled.queuePairs = self.queuePairs[name]
            table.listen(SERVICE, "listener")

    def pump(self) -> World:
        """
        Carry all messages, and tell the users.
        """
        while any(table.outputs or table.events for table in self.tables.values()):
            for name, table in self.tables.items():
                while (event := table.nextEvent()) is not None:
                    self.tell(name, *event)
                while (output := table.nextOutput()) is not None:
                    destination, attribute, octets = output
                    self.log.append((name, destination, byAttribute[attribute].__name__, octets))
                    if destination in self.tables:
                        self.tables[destination].receive(name, attribute, octets, 0, len(octets), self.now)
        return self

    def tell(self, name: str, kind: Event, connection: Any, message: Any) -> None:
        """
        One event.
        """
        if kind is Event.WOKEN:
            self.tables[name].settled.rest()
            return
        self.log.append((name, kind, connection.localID))
        if kind is Event.REQUEST:
            number = connection.localID
            user = User(self, name, connection, number, message.localQPN)
            if self.isLate:
                connection.sendMRA(self.now)
            connection.accept(REP(localQPN=number), self.now, self.isConfirmed)
            user.settle()
        elif (user := connection.user) is not None:
            user.told.append(kind)
            if kind is Event.REPLY:
                user.queuePair.remote = message.localQPN
                connection.ready(self.now, isConfirmed=self.isConfirmed)
                user.settle()
            elif kind is not Event.ESTABLISHED:
                connection.user = None
                user.close()

    def open(self, number: int, name: str = "a") -> list[User]:
        """
        @param number: the queue pair's.
        @return: both ends, the active one first.
        """
        first = len(self.made)
        connection = self.tables[name].connect("ab"[name == "a"], ask(number), None, self.now, number)
        User(self, name, connection, number, 0)
        self.pump()
        return self.made[first:]

    def give(self, user: User, message: AnyMessage, source: str = "") -> list[AnyMessage]:
        """
        A message comes for a user's table.

        @param source: if not the user's peer.
        @return: what the table answers.
        """
        self.pump()
        sent, octets = len(self.log), message.pack()
        source = source or "ab"[user.name == "a"]
        user.table.receive(source, message.attribute, octets, 0, len(octets), self.now)
        answers = [byAttribute[each[1]].parse(each[2], 0, 232) for each in user.table.outputs]
        self.pump()
        assert len(self.log) >= sent + len(answers)
        return answers

    def tick(self, seconds: float) -> None:
        """
        Time passes.
        """
        self.now += seconds
        for table in self.tables.values():
            table.tick(self.now)
        self.pump()

    def view(self) -> Any:
        """
        @return: what must not depend on whether connections settle.
        """
        tables = [(len(table), table.counters, table.deadline()) for table in self.tables.values()]
        known = [
            [
                (source, len(peer.connections) + (peer.only is not None))
                for source, peer in table._peers.items()
            ]
            for table in self.tables.values()
        ]
        return self.log, tables, known, [(user.state, user.told) for user in self.made]

    def objects(self) -> list[int]:
        """
        @return: how many connections of each table are objects.
        """
        return [len(table._connections) for table in self.tables.values()]

    def sizes(self) -> set[int]:
        """
        @return: the sizes of all that a table may keep.
        """
        return {
            len(each)
            for table in self.tables.values()
            for each in (
                *(table, table._connections, table._peers, table._deadlines, table._timewait, table.accepted),
                *(table.outputs, table.events, table.settled.woken, range(table.settled.count)),
            )
        }


class Names(NamedTuple):
    """
    The numbers in a message to a user.
    """

    remote: int
    local: int
    guid: int


_GUID = (0xA).to_bytes(8, "big")
#: All messages, for the numbers of a connection; the communication ids are the queue pair numbers.
MESSAGES: dict[str, Callable[[Names], AnyMessage]] = {
    "REQ": lambda to: ask(to.remote, localCommunicationID=to.remote, localCAGUID=to.guid),
    "REQ of another id": lambda to: ask(to.remote, localCommunicationID=to.remote + 1, localCAGUID=to.guid),
    "REQ of another pair": lambda to: ask(to.remote + 1, localCommunicationID=to.remote, localCAGUID=to.guid),
    "REQ of another HCA": lambda to: ask(to.remote, localCommunicationID=to.remote, localCAGUID=0xC),
    "REP": lambda to: REP(to.remote, to.local, localQPN=to.remote, localCAGUID=to.guid),
    "REP of another pair": lambda to: REP(to.remote, to.local, localQPN=to.remote + 1, localCAGUID=to.guid),
    "RTU": lambda to: RTU(to.remote, to.local),
    "DREQ": lambda to: DREQ(to.remote, to.local, to.local, b"because"),
    "DREQ, the last": lambda to: DREQ(to.remote, to.local, to.local, b"", DREQ_LAST),
    "DREQ of another pair": lambda to: DREQ(to.remote, to.local, to.local + 1),
    "DREP": lambda to: DREP(to.remote, to.local),
    "LAP": lambda to: LAP(to.remote, to.local),
    "APR": lambda to: APR(to.remote, to.local),
    **{
        f"MRA of {kind}": lambda to, kind=kind: MRA(to.remote, to.local, kind, 20)  # type: ignore[misc]
        for kind in range(3)
    },
    **{
        f"REJ, {reason.name}": lambda to, reason=reason: REJ(  # type: ignore[misc]
            to.remote, to.local, reason=reason, additionalInfoLength=8, additionalInfo=_GUID
        )
        for reason in RejectReason
    },
}


def namesOf(user: User, remote: int = 0, local: int = 0) -> Names:
    """
    @param remote: how far off it is; C{local} likewise.
    """
    pair = user.queuePair
    return Names(pair.remote + remote, pair.number + local, GUIDS["ab"[user.name == "a"]])


def establish(world: World) -> User:
    return world.open(7)[1]


def establishTwo(world: World) -> User:
    world.open(7)
    return world.open(8)[1]


def establishThere(world: World) -> User:
    return world.open(7)[0]


def confirm(world: World) -> User:
    world.isConfirmed = True
    return establish(world)


def askForTime(world: World) -> User:
    world.isLate = True
    return establish(world)


def disconnecting(world: World) -> User:
    user = world.open(7)[1]
    user.end()
    return user


def disconnected(world: World) -> User:
    user = disconnecting(world)
    world.pump()
    return user


def finished(world: World) -> User:
    user = world.open(7)[1]
    user.finish()
    return user


def asking(world: World) -> User:
    # Nobody listens there, yet.
    connection = world.tables["a"].connect("c", ask(7), None, world.now, 7)
    return User(world, "a", connection, 7, 9)


def accepting(world: World) -> User:
    """
    The RTU is awaited.
    """
    world.isConfirmed = True
    octets = MESSAGES["REQ"](Names(7, 0, 0xA)).pack()
    world.tables["b"].receive("a", REQ.attribute, octets, 0, len(octets), world.now)
    world.tell("b", *world.tables["b"].events.popleft())
    return world.made[0]


STATES = (
    *(establish, establishTwo, establishThere, confirm, askForTime, disconnecting, disconnected, finished),
    *(asking, accepting),
)


class SameTests(SynchronousTestCase):
    """
    The same messages and acts, whether connections settle or not.
    """

    def same(self, act: Callable[[World], Any]) -> list[World]:
        """
        Do it in both worlds.
        """
        worlds = [World(settles) for settles in (False, True)]
        plain, settled = ((act(world), world.pump().view()) for world in worlds)
        self.assertEqual(plain, settled)
        return worlds

    def test_messages(self) -> None:
        """
        Every message in every state, with the right numbers and wrong ones, of the peer and of a stranger,
        draws the same answers and events, and is counted alike.
        """
        wrong = ((0, 0, ""), (0, 0, "c"), (1, 0, ""), (0, 1, ""))
        for begin in STATES:
            for name, make in MESSAGES.items():
                # Reasons differ in nothing here, but for those with an input of their own.
                isAlike = name[:3] == "REJ" and name[5:] not in ("TIMEOUT", "STALE_CONNECTION")
                for remote, local, source in wrong[:1] if isAlike else wrong:

                    def act(world: World, of: Any = (begin, make, remote, local, source)) -> Any:
                        begin, make, remote, local, source = of
                        user = begin(world)
                        message = make(namesOf(user, remote, local))
                        # Twice: what the first has left is there for the second.
                        return [world.give(user, message, source) for _ in range(2)]

                    with self.subTest(state=begin.__name__, message=name, wrong=(remote, local, source)):
                        self.same(act)

    def test_random(self) -> None:
        """
        Any history is the same, octet by octet.
        """
        for seed in range(HISTORIES):
            self.compare(seed)

    def compare(self, seed: int) -> None:
        """
        One history.
        """

        def act(world: World) -> Any:
            draw = random.Random(seed)
            sizes = []
            for number in range(STEPS):
                self.step(world, draw, 100 + number)
                world.pump()
                sizes.append([(len(table), table.deadline()) for table in world.tables.values()])
            return sizes

        worlds = self.same(act)
        for world in worlds:
            for user in world.made:
                user.finish()
            for name in "abc":
                for table in world.tables.values():
                    table.pathLost(name)
            self.assertEqual(world.sizes(), {0}, seed)

    def step(self, world: World, draw: random.Random, number: int) -> None:
        """
        Do anything.
        """
        what, which, name = draw.random(), draw.randrange(64), draw.choice("ab")
        message, source = draw.choice([*MESSAGES.values()]), draw.choice(("", "", "", "c"))
        off = draw.choice((0, 0, 0, 0, 1)), draw.choice((0, 0, 0, 0, 1))
        world.isConfirmed, world.isLate = draw.random() < 0.1, draw.random() < 0.1
        if what < 0.25 or not world.made:
            world.open(number, name)
            return
        user = world.made[which % len(world.made)]
        if what < 0.75:
            world.give(user, message(namesOf(user, *off)), source)
        elif what < 0.8:
            user.settle()
        elif what < 0.88:
            user.finish()
        elif what < 0.94:
            if isinstance(user.connection, Connection) or user.state is State.ESTABLISHED:
                user.end(which > 32)
        elif what < 0.96:
            world.tick(200.0)
        elif what < 0.98:
            world.tables[name].pathLost("ab"[name == "a"])
        else:
            # In any order.
            sent = len(world.log)
            world.tables[name].abandonAll(world.now)
            world.pump()
            world.log[sent:] = sorted(world.log[sent:], key=str)


class SettledTests(SynchronousTestCase):
    """
    Connections that settle.
    """

    def setUp(self) -> None:
        """
        None is open.
        """
        self.world = World()

    def settled(self, number: int = 7) -> list[User]:
        """
        @return: the users of both ends.
        """
        ends = self.world.open(number)
        for user in ends:
            self.assertIsInstance(user.connection, Peer)
        return ends

    def counts(self) -> list[tuple[int, int, int]]:
        """
        @return: of each table: its connections, those among them that are objects, and its peers.
        """
        return [(len(each), len(each._connections), len(each._peers)) for each in self.world.tables.values()]

    def goesOn(self, users: Iterable[User]) -> None:
        """
        They are settled still, and are found by their numbers.
        """
        for user in users:
            self.assertIsInstance(user.connection, Peer)
            self.assertEqual(user.table.settled.at(user.queuePair.number), (user.connection, user.queuePair))
            self.assertEqual(user.told, [Event.REPLY] if user.name == "a" else [])
        self.assertEqual(self.world.objects(), [0, 0])

    def test_finished(self) -> None:
        """
        It counts as one, and its end leaves nothing; no message is needed.  A second end is none.
        """
        ends = self.settled()
        others = self.settled(8)
        self.assertEqual(self.counts(), [(2, 0, 1)] * 2)
        sent = len(self.world.log)
        for user in ends * 2:
            user.finish()
        self.assertEqual((self.counts(), len(self.world.log)), ([(1, 0, 1)] * 2, sent))
        self.goesOn(others)
        self.world.queuePairs["a"][7] = ends[0].queuePair
        self.assertIsNone(ends[0].table.settled.at(7))
        peer: Any = ends[0].connection
        self.assertIsNone(ends[0].table.settled.resume(peer, ends[0].queuePair))
        for user in others:
            user.finish()
        self.assertEqual(self.world.sizes(), {0})

    def test_disconnected(self) -> None:
        """
        A DREQ is sent, and answered, as if it were an object still; the users have that then.
        """
        one, two = self.settled()
        one.end()
        self.world.pump()
        self.assertIsInstance(two.connection, Connection)
        assert isinstance(two.connection, Connection)
        self.assertEqual((two.connection.disconnectData.rstrip(b"\0"), two.state), (b"why", State.TIMEWAIT))
        self.assertEqual([user.told[-1] for user in (one, two)], [Event.DISCONNECTED] * 2)
        self.assertEqual(self.world.sizes(), {0})

    def test_repeatedREQ(self) -> None:
        """
        The REQ of an open connection is no new one, however often it comes.
        """
        ends = self.settled()
        two = ends[1]
        for _ in range(3):
            self.assertEqual(self.world.give(two, MESSAGES["REQ"](namesOf(two))), [])
        self.assertEqual((two.table.counters["repeatedREQ"], len(self.world.made)), (3, 2))
        self.goesOn(ends)

    def test_ignored(self) -> None:
        """
        A REP draws the RTU and a LAP an APR; an RTU, a MRA, a DREP and an APR draw nothing.  None changes
        anything.
        """
        ends = self.settled()
        for user in ends:
            for name, make in MESSAGES.items():
                if name.partition(" ")[0] in ("RTU", "MRA", "DREP", "APR", "REP", "LAP"):
                    answers = self.world.give(user, make(namesOf(user)))
                    self.assertEqual(
                        [type(each) for each in answers],
                        {"REP": [RTU], "LAP": [APR]}.get(name.split()[0], []),
                    )
                    self.goesOn(ends)

    def test_stale(self) -> None:
        """
        A REQ of its queue pair with another id is that of a peer that has begun anew: it is refused, and the
        old connection ends (IBTA vol. 1 12.9.8.3.1).
        """
        _, two = self.settled()
        rejected, last = self.world.give(two, MESSAGES["REQ of another id"](namesOf(two)))
        self.assertEqual((type(rejected), rejected.reason), (REJ, RejectReason.STALE_CONNECTION))
        self.assertEqual((type(last), last.remoteCommunicationID), (DREQ, two.queuePair.remote))
        self.assertEqual((two.told, self.world.sizes()), ([Event.DISCONNECTED], {0}))

    def test_staleREP(self) -> None:
        """
        So is the REP of a queue pair that an open connection has.
        """
        one, _ = self.settled()
        table = one.table
        asking = table.connect("b", ask(8), None, 0.0, 8)
        User(self.world, "a", asking, 8, 0)
        table.outputs.clear()
        remote = one.queuePair.remote
        rejected, last = self.world.give(one, REP(remote + 1, 8, localQPN=remote, localCAGUID=0xB))
        self.assertEqual((type(rejected), rejected.reason), (REJ, RejectReason.STALE_CONNECTION))
        self.assertEqual((type(last), one.told[-1]), (DREQ, Event.DISCONNECTED))
        self.assertEqual(asking.state, State.REQ_SENT)

    def test_foreign(self) -> None:
        """
        Only the peer ends one, by both numbers.
        """
        ends = self.settled()
        two = ends[1]
        for source, remote, local in (("c", 0, 0), ("a", 1, 0), ("a", 0, 1)):
            self.world.give(two, MESSAGES["DREQ"](namesOf(two, remote, local)), source)
            self.world.give(two, MESSAGES["REJ, STALE_CONNECTION"](namesOf(two, remote, local)), source)
        self.assertEqual([two.table.counters[name] for name in ("foreignSource", "unknownID")], [2, 4])
        self.goesOn(ends)

    def test_unfit(self) -> None:
        """
        One whose object has more to tell stays an object.
        """
        _, two = self.settled()
        two.resume()
        connection = two.connection
        assert isinstance(connection, Connection)
        changes: list[dict[str, Any]] = [
            {"state": State.DREQ_SENT},
            {"localQPN": 1},
            {"remoteQPN": 1},
            {"remoteCAGUID": 1},
            {"output": b""},
            {"timing": connection.timing._replace(retries=15, period=12.0)},
            {"user": None},
            {"user": User(World(), "b", Connection(connection.peer, 1, connection.timing), 1, 1)},
        ]
        for change in changes:
            before = {name: getattr(connection, name) for name in change}
            for name, value in change.items():
                setattr(connection, name, value)
            self.assertIs(two.table.settled.settle(connection), connection, change)
            for name, value in before.items():
                setattr(connection, name, value)
        held = connection.peer.connections
        number = connection.remoteQPN
        # Another has its place.
        held[number] = 1
        self.assertIs(two.table.settled.settle(connection), connection)
        held[number] = connection
        two.queuePair.remote += 1
        self.assertIs(two.table.settled.settle(connection), connection)
        two.queuePair.remote -= 1
        two.settle()
        self.assertIsInstance(two.connection, Peer)

    def test_numbers(self) -> None:
        """
        No other connection gets the id of one.
        """
        ends = self.settled()
        table = ends[0].table
        # One that is an object has the number before it, and no queue pair: what is drawn is of neither.
        table.connect("b", ask(9), None, 0.0, 6)
        for wanted, drawn in ((0, 5), (7, 4)):
            table.draw = iter((0, 6, 7, drawn)).__next__
            self.assertEqual(table.connect("b", ask(9), None, 0.0, wanted).localID, drawn)
        self.assertEqual((len(table), table.settled.at(7)), (4, (ends[0].connection, ends[0].queuePair)))

    def test_others(self) -> None:
        """
        Users of other queue pairs have no connection, or one of another kind.
        """
        ends = self.settled()
        two = ends[1]
        for other in (
            None,
            SimpleNamespace(),
            SimpleNamespace(connection=None),
            SimpleNamespace(connection=7),
        ):
            self.world.queuePairs["b"][1] = SimpleNamespace(consumer=other, number=1, remote=1)
            self.assertEqual(self.world.give(two, RTU(two.queuePair.remote, 1))[0].reason, 6)
        self.goesOn(ends)

    def test_pathLost(self) -> None:
        """
        They end with the path, in the order in which they began, and their users have nothing to end any
        more.
        """
        users = [self.settled(number) for number in (7, 8, 9)]
        for place, (name, source) in enumerate(("ab", "ba")):
            table = self.world.tables[name]
            mine = [ends[place] for ends in users]
            self.assertEqual(table.pathLost(source), [user.connection for user in mine])
            self.assertEqual([user.state for user in mine], [State.IDLE] * 3)
            for user in mine:
                user.finish()
        self.assertEqual(self.world.sizes(), {0})

    def test_withoutQueuePair(self) -> None:
        """
        What has no queue pair any more ends with the path, or with the table, at the latest.
        """
        for end in (
            lambda table: self.assertEqual(table.pathLost("a"), []),
            lambda table: table.abandonAll(0.0),
        ):
            one, two = self.settled()
            two.close()
            self.assertEqual(len(two.table), 1)
            end(two.table)
            one.finish()
            self.assertEqual(self.world.sizes(), {0})

    def test_foundWithoutQueuePair(self) -> None:
        """
        Nor is it in the way of another connection of the same queue pairs, and it counts no more once a
        REQ or a REP has come for those.
        """
        gone = self.settled()
        for user in gone:
            user.close()
        one, two = self.settled()
        self.assertEqual([len(user.table) for user in (one, two)], [2, 1])
        remote = gone[0].queuePair.remote
        asking = one.table.connect("b", ask(8), None, 0.0, 8)
        one.table.outputs.clear()
        self.assertEqual(self.world.give(one, REP(remote, 8, localQPN=remote, localCAGUID=0xB)), [])
        self.assertEqual((asking.remoteQPN, len(one.table), one.table.settled.count), (remote, 2, 1))
        self.assertEqual([user.state for user in (one, two)], [State.ESTABLISHED] * 2)
        for name in "ab":
            self.world.tables[name].pathLost("ab"[name == "a"])
        self.assertEqual(self.world.sizes(), {0})

    def test_abandoned(self) -> None:
        """
        The peers are told.
        """
        users = [self.settled(number) for number in (7, 8)]
        self.world.tables["a"].abandonAll(0.0)
        self.world.pump()
        self.assertEqual([ends[1].told for ends in users], [[Event.DISCONNECTED]] * 2)
        self.assertEqual(self.world.sizes(), {0})

    def test_bounds(self) -> None:
        """
        A table holds no more of them than objects, in all and of a peer.
        """
        self.settled(1), self.settled(2)
        self.patch(limits, "CM_CONNECTIONS_PER_PATH", 2)
        self.world.open(3)
        counters = self.world.tables["b"].counters
        self.assertEqual((counters["connectionsExceeded"], len(self.world.made)), (1, 5))
        self.patch(limits, "CM_CONNECTIONS_PER_PATH", 3)
        self.patch(limits, "CM_CONNECTIONS", 2)
        self.world.give(self.world.made[1], ask(4, localCommunicationID=4, localCAGUID=0xA))
        self.assertEqual(counters["tableFull"], 1)
        self.assertRaises(ResourceLimitError, self.world.tables["a"].connect, "b", ask(4), None, 0.0)
