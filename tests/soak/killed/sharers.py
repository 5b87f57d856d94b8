"""
Processes that share an address of RoCE on each of two hosts, as a user without rights:
C{python -m tests.soak.killed.sharers [--processes 16] [--rounds 50] [--kills 100] [--seed N]}.

The hosts are network namespaces with a wire, in a user namespace, which needs no rights either; the processes
are nobody's.  Each of them serves C{rping} to its counterpart on the other host, and is a client of that, at
the same time.  First each client does its rounds, which are validated at both ends.  Then they do so slowly,
in one session after another, while processes are killed: the oldest of a host, and any.  The counterpart of
one must be told in L{TOLD_SECONDS}, its server as its client, and all others must lose nothing: no session
ends early, no octet is another one, and each of them comes to the end of one more, for each L{TURN} kills.

What was done is printed as a line of JSON.  The status is 1 if anything was lost, 77 where there can be no
namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread

from attrs import define, field

from tests.soak.killed.talking import ROOT, begin, follow, tell
from tests.suites.projects import SKIPPED
from tests.support.waiting import HANG_SECONDS, PATIENCE
from twisted_ib.errors import HCAError
from twisted_ib.tools.ping.ping import main as ping
from twisted_ib.tools.ping.rounds import Client
from twisted_ib.tools.ping.station import CONNECTING, VerbsSession
from twisted_ib.tools.program import ProgramError
from twisted_ib.verbs.pyverbs import enums

#: How soon a process is told of its peer's end, in seconds, and after how many a request is sent again, which
#: has gone to one that was killed then.
TOLD_SECONDS, REPEATED_SECONDS = 5.0 * PATIENCE, 4.2
#: Rounds of a session while processes are killed, seconds behind each, and sessions: without an end.
SLOW = 5, 0.5, 0
#: Kills after which all must have gone on.
TURN = 10
DEVICE, SIZE = "roce0", 64
#: What a server says of a client that was killed between its request and its RTU: it is told by a DREQ, or by
#: a REJ.
HALF_OPEN = re.compile(r"ib-ping: \S+( port \d+)?:? (has disconnected|connection refused, reason [46])$")
ADDRESSES = "10.78.0.1", "10.78.0.2"
#: Octets of a frame of the wire.
FRAME = "9000"
#: Of one who may make networks, and whose children may be somebody else.
ROOTED = "unshare", "--user", "--map-root-user", "--net"
#: Has no rights in the network, and can have none.
NOBODY = "unshare", "--user", "--map-user=65534", "--map-group=65534"
_PORT = re.compile(r"ib-ping: waits for clients on port (\d+)$")
#: What a process says when a session is over.
_SESSION = "session"


def session(here: str, there: str, port: str, rounds: int, pause: float) -> None:
    """
    Be a client for some rounds, with a pause behind each.

    @raise ProgramError: it cannot be done to its end.
    """
    station = VerbsSession(DEVICE)
    try:
        line = Client(station, station.call(here, there, int(port), enums.RDMA_PS_TCP), SIZE)
        try:
            station.finish(line, line.call(), CONNECTING)
            for number in range(rounds):
                station.finish(line, line.ping(number + 1, False))
                end = time.monotonic() + pause
                while station.wait(line.look, end - time.monotonic()) and time.monotonic() < end:
                    line.hear()
                    # Of what was sent.
                    line._done.clear()
                    if line.isOver:
                        raise ProgramError("the peer has disconnected")
            line.part()
        finally:
            line.disconnect()
            line.close()
    finally:
        station.close()


def share(here: str, there: str) -> None:
    """
    Be one of the processes: a server until the end, and a client of what each line of standard input says: a
    port, how many rounds a session has, the pause behind each, and how many sessions, 0 for sessions until
    one fails.
    """
    server = "-s", "-P", "-V", "-a", here, "-p", "0", "--device", DEVICE
    Thread(target=ping, args=(server,), daemon=True).start()
    for line in sys.stdin:
        port, rounds, pause, sessions = line.split()
        done, said = 0, "0"
        while said == "0" and (sessions == "0" or done < int(sessions)):
            try:
                session(here, there, port, int(rounds), float(pause))
            except (HCAError, OSError, ProgramError) as error:
                said = str(error)
            done += 1
            # A line of its own, also amid one of the server's thread.
            os.write(1, f"\n{_SESSION} {said}\n".encode())
    os._exit(0)


@define
class Process:
    """
    One of them.

    @ivar host: the number of its host, and C{number} that of the pair.
    @ivar said: a line of it, the time of that in front.
    @ivar port: its server's; empty until it is known.
    @ivar sessions: how many of its client have come to their end.
    @ivar failed: when one of its client's failed, after the latest L{begin}, and why.
    @ivar complaints: all else that it has said, and C{waits} what of that is of one that was killed amid its
        connect: see L{HALF_OPEN}.
    @ivar bereaved: when its counterpart was killed.
    """

    host: int
    number: int
    popen: subprocess.Popen[str]
    said: queue.SimpleQueue[tuple[float, str]] = field(factory=queue.SimpleQueue)
    port: str = ""
    sessions: int = 0
    failed: tuple[float, str] | None = None
    complaints: list[str] = field(factory=list)
    waits: int = 0
    bereaved: float | None = None

    def __attrs_post_init__(self) -> None:
        """
        Read what it says.
        """
        follow(self.popen, self._take)

    def _take(self, line: str) -> None:
        if not line.isspace():
            self.said.put((time.monotonic(), line.strip()))

    def look(self) -> None:
        """
        Take what it has said.
        """
        while not self.said.empty():
            when, line = self.said.get()
            if found := _PORT.match(line):
                self.port = found[1]
            elif line == f"{_SESSION} 0":
                self.sessions += 1
            elif line.startswith(_SESSION):
                self.failed = when, line
            elif self.bereaved is not None and when < self.bereaved + TOLD_SECONDS and HALF_OPEN.match(line):
                self.waits += 1
            else:
                self.complaints.append(line)

    def begin(self, port: str, rounds: int, pause: float = 0.0, sessions: int = 1) -> None:
        """
        Let its client begin.
        """
        self.failed = None
        tell(self.popen, port, rounds, pause, sessions)


class Hosts:
    """
    The hosts, and their processes.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        holder = subprocess.Popen(
            ("unshare", "--net", "sh", "-c", "echo; cat"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(holder.communicate)
        assert holder.stdout is not None
        holder.stdout.readline()
        self._prefixes = (), ("nsenter", f"--net=/proc/{holder.pid}/ns/net")
        self._do(0, "ip", "link", "add", "wire", "type", "veth", "peer", "wire", "netns", str(holder.pid))
        for number, address in enumerate(ADDRESSES):
            self._do(number, "ip", "address", "add", f"{address}/24", "dev", "wire")
            self._do(number, "ip", "link", "set", "lo", "up")
            self._do(number, "ip", "link", "set", "wire", "mtu", FRAME, "up")
        self._folders = [stack.enter_context(tempfile.TemporaryDirectory(prefix="ib-")) for _ in ADDRESSES]
        self.processes: list[Process] = []

    def _do(self, host: int, *words: str) -> None:
        subprocess.run((*self._prefixes[host], *words), check=True)

    def start(self, host: int, number: int) -> Process:
        """
        Start a process, in the place of the former one of this number.
        """
        words = *self._prefixes[host], *NOBODY, sys.executable, "-m", "tests.soak.killed.sharers", "--share"
        words = *words, ADDRESSES[host], ADDRESSES[1 - host]
        made = Process(host, number, begin(self._stack, words, self._folders[host]))
        self.processes.append(made)
        return made

    def counterpart(self, process: Process) -> Process:
        """
        @return: that of the other host.
        """
        (found,) = (e for e in self.processes if e.host != process.host and e.number == process.number)
        return found

    def until(self, what: str, holds: Callable[[], bool], them: list[Process]) -> None:
        """
        Wait until something is so; what those have said is looked at.

        @raise AssertionError: it does not come to that, or a process has ended.
        """
        end = time.monotonic() + HANG_SECONDS
        while True:
            for each in them:
                ended = each.popen.poll()
                each.look()
                assert ended is None, f"{each.host}.{each.number} ended: {ended} {each.complaints}"
            if holds():
                return
            left = [f"{each.host}.{each.number} {each.complaints}" for each in them]
            assert time.monotonic() < end, f"not in time: {what}, of {', '.join(left)}"
            time.sleep(0.005)

    def goOn(self) -> None:
        """
        Wait until each comes to the end of a session.
        """
        before = {id(each): each.sessions for each in self.processes}
        isFurther = lambda each: each.sessions > before[id(each)] or each.failed is not None  # noqa: E731
        self.until("all go on", lambda: all(map(isFurther, self.processes)), self.processes)

    def kill(self, process: Process) -> float:
        """
        Kill it, and have another one in its place.

        @return: after how many seconds the counterpart was told, or the answer to its request was due.
        """
        begun = time.monotonic()
        process.popen.kill()
        process.popen.wait()
        other = self.counterpart(process)
        self.processes.remove(process)
        other.bereaved = begun
        self.until("a counterpart is told", lambda: other.failed is not None, [other])
        assert other.failed is not None
        told = other.failed[0] - begun
        if "refused" in other.failed[1] and told > REPEATED_SECONDS:
            told -= REPEATED_SECONDS
        again = self.start(process.host, process.number)
        self.until("one more listens", lambda: bool(again.port), [again])
        # Its server, too, has lost its client.
        other.look()
        other.complaints.clear()
        other.begin(again.port, *SLOW)
        again.begin(other.port, *SLOW)
        return told


def lostBy(processes: list[Process]) -> list[str]:
    """
    @return: what processes have lost that should have lost nothing; it is forgotten.
    """
    lost = []
    for each in processes:
        each.look()
        said = each.complaints + ([each.failed[1]] if each.failed is not None else [])
        lost += [f"{each.host}.{each.number}: {line}" for line in said]
        each.complaints.clear()
    return lost


def story(processes: int, rounds: int, kills: int, seed: int) -> tuple[dict[str, object], bool]:
    """
    @param processes: on each host.
    @param rounds: of each session.

    @return: what was done, and whether all was well.
    """
    dice = random.Random(seed)
    found: dict[str, object] = {"uid": "65534", "processes": 2 * processes, "seed": seed}
    with ExitStack() as stack:
        hosts = Hosts(stack)
        for number in range(processes):
            # Not all at once: a busy machine starts a few at a time.
            both = [hosts.start(host, number) for host in (0, 1)]
            hosts.until("both listen", lambda: all(each.port for each in hosts.processes), both)
        everyone = [*hosts.processes]
        for each in everyone:
            each.begin(hosts.counterpart(each).port, rounds)
        hosts.goOn()
        found["rounds"] = rounds * sum(each.sessions for each in everyone)
        lost, told = lostBy(everyone), list[float]()
        for each in everyone:
            each.begin(hosts.counterpart(each).port, *SLOW)
        for kill in range(kills):
            # The oldest is first in the list.
            ours = [each for each in hosts.processes if each.host == kill % 2]
            told.append(hosts.kill(dice.choice(ours) if kill // 2 % 2 else ours[0]))
            if not (kill + 1) % TURN or kill + 1 == kills:
                hosts.goOn()
            lost += lostBy(hosts.processes)
            print(f"{kill + 1}: told in {told[-1]:.2f} s, lost: {lost}", file=sys.stderr, flush=True)
        found["sessions"] = sum(each.sessions for each in hosts.processes)
        found["half open"] = sum(each.waits for each in hosts.processes)
    late = sum(each > TOLD_SECONDS for each in told)
    found |= {"kills": kills, "lost by others": lost, "told late": late}
    if told:
        found |= {"told, median s": round(statistics.median(told), 2), "told, most s": round(max(told), 2)}
    return found, not lost and not late and found["rounds"] == 2 * processes * rounds


def lacking() -> str:
    """
    @return: why there can be no such hosts here, or nothing.
    """
    try:
        # A wire, and somebody in the network who has no rights there.
        wire = "ip link add wire type veth peer other && "
        words = *ROOTED, "sh", "-c", f"{wire} exec {' '.join(NOBODY)} true"
        tried = subprocess.run(words, capture_output=True, text=True, timeout=HANG_SECONDS)
    except OSError as error:
        return str(error)
    return tried.stderr.strip() or "they end" if tried.returncode else ""


def main() -> int:
    """
    Tell the story.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.soak.killed.sharers")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    # Of the processes that it starts.
    parser.add_argument("--share", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.share:
        share(*options.share)
    if not options.inside:
        if trouble := lacking():
            print(f"there can be no namespaces: {trouble}")
            return SKIPPED
        words = *ROOTED, sys.executable, "-m", "tests.soak.killed.sharers", *sys.argv[1:], "--inside"
        return subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode
    found, isGood = story(options.processes, options.rounds, options.kills, options.seed)
    print(json.dumps(found), flush=True)
    return int(not isGood)


if __name__ == "__main__":
    sys.exit(main())
