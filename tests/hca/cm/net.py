"""
Two communication managers on a wire in memory, for their tests.
"""

from __future__ import annotations

import random
from typing import Any

from twisted_ib.hca.cm.machine import Connection, Event
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.connection import PathRecord
from twisted_ib.hca.wire.cm import messages as cm
from twisted_ib.hca.wire.cm.messages import REP, REQ

SERVICE = 0x11C06
#: Path timeout 17 is 512 ms, so packet lifetime 16 is 256 ms.
PERIOD = 2 * 0.256 + 4.096
TIMEWAIT = 0.512


def ask(queuePair: int = 1, **fields: Any) -> REQ:
    """
    A REQ as RDMA-CM makes them.
    """
    fields.setdefault("primaryPath", PathRecord(localACKTimeout=17))
    fields.setdefault("requestRetries", 15)
    return REQ(
        serviceID=SERVICE,
        localQPN=queuePair,
        responseTimeout=20,
        localCMResponseTimeout=20,
        **fields,
    )


class Net:
    """
    Two tables, C{a} and C{b}; each calls the other by its name.

    @ivar events: all that happened, by name of the table.
    @ivar carried: attributes of what was sent, with the sender's name.
    @ivar lose: attributes of messages to lose, how often.
    """

    def __init__(self, seed: int = 1) -> None:
        """
        Nobody is connected.
        """
        bits = random.Random(seed).getrandbits
        self.a = ConnectionTable(0xA, bits)
        self.b = ConnectionTable(0xB, bits)
        self.b.listen(SERVICE, "listener")
        self.now = 0.0
        self.events: dict[str, list[Any]] = {"a": [], "b": []}
        self.carried: list[tuple[str, type[cm.AnyMessage]]] = []
        self.octets: list[bytes] = []
        self.lose: dict[type[cm.AnyMessage], int] = {}

    def table(self, name: str) -> ConnectionTable:
        """
        C{a} or C{b}.
        """
        return self.a if name == "a" else self.b

    def pump(self) -> None:
        """
        Carry messages until there are none.
        """
        moving = True
        while moving:
            moving = False
            for name in "ab":
                while (output := self.table(name).nextOutput()) is not None:
                    moving = True
                    self.carry(name, *output)
                while (event := self.table(name).nextEvent()) is not None:
                    self.events[name].append(event)

    def carry(self, name: str, destination: str, attribute: int, octets: bytes) -> None:
        """
        Carry or lose one message.
        """
        kind = cm.byAttribute[attribute]
        self.carried.append((name, kind))
        self.octets.append(octets)
        if self.lose.get(kind, 0):
            self.lose[kind] -= 1
            return
        self.table(destination).receive(name, attribute, octets, 0, len(octets), self.now)

    def wait(self, seconds: float) -> None:
        """
        Let time pass.
        """
        end = self.now + seconds
        self.pump()
        while True:
            due = [at for at in (self.a.deadline(), self.b.deadline()) if at is not None and at <= end]
            self.now = min(due, default=end)
            self.a.tick(self.now)
            self.b.tick(self.now)
            self.pump()
            if not due:
                return

    def kinds(self, name: str) -> list[Event]:
        """
        Take the events of one side.
        """
        kinds = [event[0] for event in self.events[name]]
        self.events[name].clear()
        return kinds

    def request(self, queuePair: int = 1, **fields: Any) -> tuple[Connection, Connection]:
        """
        Bring a REQ over.
        """
        active = self.a.connect("b", ask(queuePair, **fields), "user", self.now)
        self.pump()
        event, passive, _ = self.events["b"].pop()
        assert event is Event.REQUEST
        return active, passive

    def open(self, queuePair: int = 1, **fields: Any) -> tuple[Connection, Connection]:
        """
        Make a connection.
        """
        active, passive = self.request(queuePair, **fields)
        passive.accept(REP(localQPN=queuePair + 0x1000), self.now)
        self.pump()
        active.ready(self.now)
        self.pump()
        self.kinds("a")
        self.kinds("b")
        return active, passive


def send(
    table: ConnectionTable, message: cm.AnyMessage, source: str = "peer", now: float = 0.0
) -> list[cm.AnyMessage]:
    """
    Give a message to a table.

    @return: what it answers.
    """
    octets = message.pack()
    table.receive(source, message.attribute, octets, 0, len(octets), now)
    return answers(table)


def answers(table: ConnectionTable) -> list[cm.AnyMessage]:
    """
    Take what a table sends.
    """
    found = []
    while (output := table.nextOutput()) is not None:
        found.append(cm.byAttribute[output[1]].parse(output[2], 0, 232))
    return found


def listening(*bounds: int) -> ConnectionTable:
    """
    A table that listens.
    """
    table = ConnectionTable(0xB, random.Random(1).getrandbits, *bounds)
    table.listen(SERVICE, None)
    return table


def flood(table: ConnectionTable, source: str, count: int, first: int = 1) -> None:
    """
    Send REQs to a table.
    """
    for number in range(first, first + count):
        send(table, ask(number, localCommunicationID=number, localCAGUID=0xA), source)
