"""
Datagrams of RDS between processes that share an address on each of two hosts, whose owners are killed:
C{python -m tests.soak.killed.datagrams [--processes 4] [--datagrams 1000] [--kills 2]}.

Each process sends to each one of the other address, numbered, in sizes up to three KiB.  Meanwhile the oldest
of an address is killed, which has its connections, of both in turn.  What the others send each other must
come, in order.  None is lost; those that were on their way when an owner was killed may come twice, together
and in order.

What came is printed as a line of JSON.  The status is 1 if any is lost, or out of order.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any

from attrs import define, field

from tests.soak.killed.talking import begin, follow, tell
from tests.support.ownaddress import ownAddress
from tests.support.waiting import HANG_SECONDS

FIRST_PORT = 4000
#: With an address, a port, how many datagrams, and the peers' addresses and ports: says what has come, again
#: and again: of each peer the number that came last, and how many came twice, or were missed.
_TALK = """
import json, sys
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.protocol import DatagramProtocol
from twisted.internet.task import LoopingCall, deferLater
from twisted_ib.errors import SendBudgetError
from twisted_ib.rds import listenRDS
here, port, count, *peers = sys.argv[1:]
found = {}
class Talk(DatagramProtocol):
    def datagramReceived(self, datagram, source):
        row = found.setdefault("%s:%d" % source, [-1, 0, 0])
        number = int.from_bytes(datagram[:4], "big")
        if number <= row[0]:
            row[1] += 1
            row[2] += bool(row[3:]) and number > row[3] + 1
            row[3:] = [number]
        else:
            row[2] += number > row[0] + 1
            row[0], row[3:] = number, []
async def send(address, port):
    for number in range(int(count)):
        data = number.to_bytes(4, "big") + bytes(number * 7919 % 3000)
        while True:
            try:
                room = talk.transport.write(data, (address, port))
                break
            except SendBudgetError:
                # Those to others wait already.
                await deferLater(reactor, 0.002, lambda: None)
        if room is not None:
            await room
        if not number % 16:
            await deferLater(reactor, 0.002, lambda: None)
def begin():
    for peer in peers:
        address, port = peer.split(":")
        Deferred.fromCoroutine(send(address, int(port)))
    LoopingCall(lambda: print(json.dumps(found), flush=True)).start(0.1)
talk = Talk()
listenRDS(reactor, int(port), talk, here, device="roce0")
print("{}", flush=True)
sys.stdin.readline()
reactor.callWhenRunning(begin)
reactor.run()
"""


@define
class Process:
    """
    One of them.

    @ivar host: the number of its address.
    @ivar name: its address and port.
    @ivar found: what it has said last.
    @ivar complaints: what else it has said.
    """

    host: int
    name: str
    popen: subprocess.Popen[str]
    found: dict[str, list[int]] | None = None
    complaints: list[str] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        """
        Read what it says.
        """
        follow(self.popen, self._take)

    def _take(self, line: str) -> None:
        if line.startswith("{"):
            self.found = json.loads(line)
        else:
            self.complaints.append(line)

    def begin(self) -> None:
        """
        Let it send.
        """
        tell(self.popen)

    def has(self, other: Process, number: int) -> bool:
        """
        @return: whether a datagram of another one has come, or a later one.
        """
        return self.found is not None and self.found.get(other.name, [-1])[0] >= number


class Story:
    """
    The processes.
    """

    def __init__(self, stack: ExitStack, processes: int, datagrams: int) -> None:
        self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ib-"))
        self._stack, self._datagrams = stack, datagrams
        ports = range(FIRST_PORT, FIRST_PORT + processes)
        self._names = [[f"{ownAddress(host + 1)}:{port}" for port in ports] for host in (0, 1)]
        self.living: list[Process] = []
        # One after the other: the oldest has the connections.
        for number in range(processes):
            for host in 0, 1:
                self._start(host, self._names[host][number])
                self.until(lambda: self.living[-1].found is not None)

    def _start(self, host: int, name: str) -> None:
        address, port = name.split(":")
        words = sys.executable, "-c", _TALK, address, port, str(self._datagrams), *self._names[1 - host]
        self.living.append(Process(host, name, begin(self._stack, words, self._folder)))

    def until(self, holds: Any) -> None:
        """
        Wait until something is so.

        @raise AssertionError: it does not come to that, or a process has ended.
        """
        end = time.monotonic() + HANG_SECONDS
        while not holds():
            for each in self.living:
                assert each.popen.poll() is None, f"{each.name} ended: {each.complaints}"
            assert time.monotonic() < end, [(each.name, each.found, each.complaints) for each in self.living]
            time.sleep(0.01)

    def untilAllHave(self, number: int) -> None:
        """
        Wait until each has a datagram of each of the others.
        """
        self.until(
            lambda: all(a.has(b, number) for a in self.living for b in self.living if a.host != b.host)
        )

    def kill(self, host: int) -> None:
        """
        Kill the oldest of an address.
        """
        victim = next(each for each in self.living if each.host == host)
        self.living.remove(victim)
        victim.popen.kill()


def story(processes: int, datagrams: int, kills: int) -> tuple[dict[str, object], bool]:
    """
    @return: what came, and whether all was well.
    """
    with ExitStack() as stack:
        them = Story(stack, processes, datagrams)
        for each in them.living:
            each.begin()
        for kill in range(kills):
            them.untilAllHave(datagrams * (kill + 1) // (kills + 2))
            them.kill(kill % 2)
        them.untilAllHave(datagrams - 1)
        names = {each.name for each in them.living}
        rows = [row for each in them.living for name, row in (each.found or {}).items() if name in names]
        said = [line for each in them.living for line in each.complaints]
    found: dict[str, object] = {"processes": 2 * processes, "kills": kills}
    missed = sum(row[2] for row in rows)
    found |= {"datagrams": datagrams * len(rows), "missed": missed, "twice": sum(row[1] for row in rows)}
    found["said"] = said
    return found, not missed and not said


def main() -> int:
    """
    Tell the story.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.soak.killed.datagrams")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--datagrams", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=2)
    options = parser.parse_args()
    found, isGood = story(options.processes, options.datagrams, options.kills)
    print(json.dumps(found), flush=True)
    return int(not isGood)


if __name__ == "__main__":
    sys.exit(main())
