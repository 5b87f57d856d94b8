"""
Waits under fire: C{python -m tests.drive.fire --seconds 1200 --threads 200}.

The threads wait in blocking sockets, in verbs and in event loops of L{twisted_ib.aio}, in turn, each for
random times and for what comes at random moments: data, the end of a connection, a timer.  Meanwhile the
process forks, with children that wait, too; gets signals, whose handler waits; is stopped and goes on; and
what is waited on is closed.

No wait may end more than L{MOST} seconds after it had to.  A thread beside them that only sleeps tells by
how much the machine itself is late, which does not count, and where a thread is whose wait is over for
L{OVERDUE} seconds and has not ended.  Other threads wait in C{threading.Event}, L{CONTROL}: what those
are late is no fault either, but the machine's and the interpreter's among so many threads, and measures the
rest.  A line a minute, and the last one, is what was done, in JSON; the status is 1 if a wait was late or
never ended.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import heapq
import json
import os
import random
import re
import resource
import select
import signal
import socket as kernel
import subprocess
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

from tests.support.waiting import HANG_SECONDS
from twisted_ib import aio, limits
from twisted_ib import socket as offloading
from twisted_ib.blocking.loop import theLoop
from twisted_ib.errors import HCAError
from twisted_ib.verbs.core.hub import hub

#: Seconds that a wait may be late.
MOST = 1.0
#: Seconds after which it is said where a thread waits, and between two of these.
OVERDUE = 2.0
#: The shortest and the longest wait, in seconds.
SHORTEST, LONGEST = 0.05, 3.0
#: Between two looks at the machine's own lateness, in seconds.
_BEAT = 0.05
_PLACE = "127.0.0.1", 0
#: The kind of wait that is none of this package's, and how many threads of the others there are for each.
CONTROL, SHARE = "plain", 10
#: Stops a process for a while, again and again, until that has ended.
_STOPPER = """
import os, random, signal, sys, time
process, seed = map(int, sys.argv[1:])
draw = random.Random(seed).uniform
while os.getppid() == process:
    time.sleep(draw(0, 5))
    for number, seconds in (signal.SIGSTOP, draw(0, 0.3)), (signal.SIGCONT, 0):
        if os.getppid() == process:
            os.kill(process, number)
        time.sleep(seconds)
"""


class Moment:
    """
    Something that is done at a random moment.

    @ivar at: When it was done, L{None} before.
    """

    at: float | None = None

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call


class Fire:
    """
    The threads, and what they found.

    @ivar late: The waits that were late, in words.
    @ivar counts: How many waits there were of each kind, and C{overdue} of these were late.
    @ivar worst: By how much the latest of each kind was late, in seconds.
    @ivar children: When each of the last began and ended, until then at infinity.
    """

    def __init__(self, seed: int, seconds: float, threads: int) -> None:
        self.seed, self.seconds = seed, seconds
        self.end = float("inf")
        self._lit = threading.Barrier(threads, self._light)
        self.late: list[str] = []
        self.counts: Counter[str] = Counter()
        self.overdue: Counter[str] = Counter()
        self.worst: dict[str, float] = {}
        self.faults: Counter[str] = Counter()
        self.children: deque[list[float]] = deque(maxlen=16)
        self._lags: deque[tuple[float, float]] = deque(maxlen=400)
        self._beaten = monotonic()
        self._moments: list[tuple[float, int, Moment]] = []
        self._some = threading.Condition()
        self._pending: dict[int, tuple[str, float]] = {}
        self._tellAt = 0.0

    def _light(self) -> None:
        self.end = monotonic() + self.seconds

    def ready(self) -> None:
        """
        Wait for all threads: none opens anything while others wait for something.
        """
        self._lit.wait()

    def fails(self) -> None:
        """
        Have no thread wait for one that has failed.
        """
        self._lit.abort()

    def runs(self) -> bool:
        """
        @return: Whether it goes on.
        """
        return monotonic() < self.end

    # -- judging

    def beat(self) -> None:
        """
        Look how late the machine is.
        """
        while self.runs():
            self._beaten = began = monotonic()
            select.select((), (), (), _BEAT)
            self._lags.append((began, monotonic() - began - _BEAT))
            late = [(began - due, kind, thread) for thread, (kind, due) in dict(self._pending).items()]
            seconds, kind, thread = max(late, default=(0.0, "", 0))
            if seconds > OVERDUE and began > self._tellAt:
                self._tellAt = began + OVERDUE
                print(f"{kind}, {seconds:.2f} s late: {_place(thread)}", file=sys.stderr, flush=True)

    @contextmanager
    def waits(self, kind: str, seconds: float) -> Iterator[None]:
        """
        Within this context the calling thread waits, for so many seconds at most.
        """
        me = threading.get_ident()
        before = self._pending.get(me)
        self._pending[me] = kind, monotonic() + seconds
        try:
            yield
        finally:
            if before is None:
                del self._pending[me]
            else:
                self._pending[me] = before

    def judge(self, kind: str, began: float, due: float, word: str = "") -> None:
        """
        A wait has ended.

        @param due: How many seconds after its begin it had to, at the latest.
        @param word: More about it.
        """
        now = monotonic()
        machine = max((lag for when, lag in list(self._lags) if when + _BEAT + lag >= began), default=0.0)
        machine = max(machine, now - self._beaten - _BEAT)
        late = now - began - max(due, 0.0) - machine
        self.counts[kind] += 1
        self.worst[kind] = max(self.worst.get(kind, 0.0), round(late, 3))
        if late > MOST:
            self.overdue[kind] += 1
            if kind != CONTROL:
                self.late.append(f"{kind}: {late:.2f} s late, after {now - began:.2f} of {due:.2f} s {word}")

    # -- what happens meanwhile

    def after(self, seconds: float, call: Callable[[], object]) -> Moment:
        """
        Have something done by another thread.
        """
        moment = Moment(call)
        with self._some:
            heapq.heappush(self._moments, (monotonic() + seconds, id(moment), moment))
            self._some.notify()
        return moment

    def serve(self) -> None:
        """
        Do what is due.
        """
        while self.runs():
            with self._some:
                left = self._moments[0][0] - monotonic() if self._moments else LONGEST
                if left > 0:
                    self._some.wait(left)
                    continue
                _, _, moment = heapq.heappop(self._moments)
            with suppress(OSError, HCAError):
                moment.call()
            moment.at = monotonic()

    def ended(self, closed: float) -> float:
        """
        @param closed: When this process closed its end of a connection.

        @return: When that has ended: as over TCP it has not while a child that was forked before has it, too;
            then nothing tells this process, which looks.
        """
        for began, ended in list(self.children):
            if began <= closed <= ended:
                return ended + limits.BLOCKING_HELD_SECONDS
        return closed

    def waited(self, kind: str, began: float, seconds: float, moment: Moment | None, isEnd: bool) -> None:
        """
        Judge a wait of so many seconds for a moment.

        @param isEnd: Whether one end of the connection is closed then.
        """
        at = None if moment is None else moment.at
        if at is not None and isEnd:
            at = self.ended(at)
        due = seconds if at is None else min(seconds, at - began)
        word = (
            ""
            if moment is None
            else f"{getattr(moment.call, '__name__', '')} {at and at - began} of {seconds}"
        )
        self.judge(kind, began, due, word)


def _place(thread: int) -> str:
    # Where a thread is, and whoever drives the devices.
    frames, loop = sys._current_frames(), theLoop()
    of = {"it": thread, "the leader": loop.leader, "the owner": loop.owner}
    # As an RLock says it.
    owner = re.search(r"owner=(\d+)", repr(hub.lock))
    of["the hub's owner"] = int(owner[1]) if owner else 0
    places = [
        f"{who} in "
        + " < ".join(f"{each.name}:{each.lineno}" for each in traceback.extract_stack(frame)[:-9:-1])
        for who, number in of.items()
        if (frame := frames.get(number)) is not None
    ]
    queues = len(loop.lockQueue), len(hub.lockQueue), len(loop.followers), len(hub._sleepers.followers)
    return f"{'; '.join(places)}; sleeping {loop.sleeping}; {queues} wait; {loop.lock} {hub.lock}"


def _draw(rng: random.Random) -> tuple[float, float]:
    # How long one waits, and when something comes, perhaps too late.
    seconds = rng.uniform(SHORTEST, LONGEST)
    return seconds, rng.uniform(0, 1.5 * seconds)


def _pair(listener: Any) -> tuple[Any, Any]:
    client = offloading.create_connection(listener.getsockname(), timeout=HANG_SECONDS)
    return client, listener.accept()[0]


def _received(fire: Fire, rng: random.Random, client: Any, server: Any) -> bool:
    # Waits for data once, and returns whether the connection goes on.
    seconds, delay = _draw(rng)
    acts = (None, lambda: server.sendall(b"x"), server.close, lambda: client.shutdown(kernel.SHUT_RDWR))
    act = rng.choices(acts, (2, 6, 1, 1))[0]
    client.settimeout(seconds)
    moment = None if act is None else fire.after(delay, act)
    began, data = monotonic(), b"-"
    try:
        with fire.waits("blocking", seconds):
            data = client.recv(1)
    except TimeoutError:
        pass
    except OSError:
        data = b""
    fire.waited("blocking", began, seconds, moment, act is acts[2])
    # A close that is still to come must not find the next connection's socket.
    return bool(data) and (act is None or act is acts[1])


def sockets(fire: Fire, rng: random.Random) -> None:
    """
    Wait in blocking sockets.
    """
    with offloading.create_server(_PLACE) as listener:
        listener.settimeout(HANG_SECONDS)
        fire.ready()
        while fire.runs():
            client, server = _pair(listener)
            with client, server:
                while fire.runs() and _received(fire, rng, client, server):
                    pass
            began, seconds = monotonic(), rng.uniform(0, SHORTEST)
            listener.settimeout(seconds)
            with suppress(TimeoutError), fire.waits("accept", seconds):
                listener.accept()
            fire.judge("accept", began, seconds)
            listener.settimeout(HANG_SECONDS)


def verbs(fire: Fire, rng: random.Random) -> None:
    """
    Wait in verbs, for a timer of the device.
    """
    device = hub.open("shm0")
    try:
        fire.ready()
        while fire.runs():
            seconds, delay = _draw(rng)
            done: list[float] = []
            with hub:
                timer = device.timers.start(delay, lambda done=done: done.append(monotonic()))
            began = monotonic()
            with fire.waits("verbs", seconds):
                hub.wait(lambda done=done: done, seconds)
            fire.judge("verbs", began, min(seconds, delay))
            with hub:
                timer.cancel()
    finally:
        hub.close(device)


def plain(fire: Fire, rng: random.Random) -> None:
    """
    Wait beside all these.
    """
    fire.ready()
    while fire.runs():
        seconds, delay = _draw(rng)
        event = threading.Event()
        moment = fire.after(delay, event.set)
        began = monotonic()
        event.wait(seconds)
        fire.waited(CONTROL, began, seconds, moment, False)


async def _talk(fire: Fire, rng: random.Random) -> None:
    loop = asyncio.get_running_loop()
    served: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)

    server = await asyncio.start_server(accept, *_PLACE, provider="sdp")
    place = server.sockets[0].getsockname()[:2]
    for _ in range(rng.randrange(1, 20)):
        if not fire.runs():
            break
        reader, writer = await asyncio.open_connection(*place, provider="sdp")
        for _ in range(rng.randrange(1, 10)):
            seconds, delay = _draw(rng)
            began = monotonic()
            if served:
                other = served[-1]
                loop.call_later(delay, *rng.choice(((other.close,), (other.write, b"x"))))
            else:
                delay = seconds
            with suppress(TimeoutError, asyncio.TimeoutError, OSError), fire.waits("aio", seconds):
                await asyncio.wait_for(reader.read(1), seconds)
            # Bytes and ends of before may end it sooner.
            fire.judge("aio", began, min(seconds, delay))
            if reader.at_eof() or not fire.runs():
                break
        writer.close()
        served.clear()
    server.close()


def loops(fire: Fire, rng: random.Random) -> None:
    """
    Wait in event loops, one after the other.
    """
    fire.ready()
    while fire.runs():
        loop = aio.new_event_loop()
        try:
            loop.run_until_complete(_talk(fire, rng))
        finally:
            loop.close()


def _child(rng: random.Random) -> float:
    # By how much a wait of a forked child is late.
    seconds = rng.uniform(SHORTEST, 4 * SHORTEST)
    if rng.random() < 0.5:
        device, done = hub.open("shm0"), []
        began = monotonic()
        with hub:
            device.timers.start(seconds, lambda: done.append(1))
        hub.wait(lambda: done, HANG_SECONDS)
    else:
        listener = offloading.create_server(_PLACE)
        client, _ = _pair(listener)
        client.settimeout(seconds)
        began = monotonic()
        with suppress(TimeoutError):
            client.recv(1)
    return monotonic() - began - seconds


def forks(fire: Fire, rng: random.Random) -> None:
    """
    Fork children, which wait.
    """
    fire.ready()
    while fire.runs():
        sleep(rng.uniform(0.2, 2))
        draw = random.Random(rng.random())
        fire.children.append([monotonic(), float("inf")])
        child = os.fork()
        if not child:
            # 1 is what faulthandler leaves with, so 2 is a wait that was in time.
            status = 255
            try:
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
                status = min(254, 2 + max(0, int(_child(draw) * 10)))
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        fire.children[-1][1] = monotonic()
        if 2 <= status < 255:
            fire.judge("child", monotonic() - (status - 2) / 10, 0)
        else:
            fire.faults[f"child ended with {status}"] += 1


def signals(fire: Fire, rng: random.Random) -> None:
    """
    Send signals.
    """
    fire.ready()
    while fire.runs():
        sleep(rng.uniform(0, 1))
        os.kill(os.getpid(), signal.SIGUSR1)


def story(seed: int, seconds: float, threads: int, told: float = 60.0) -> dict[str, Any]:
    """
    Light it, in the main thread.

    @param told: Seconds between two lines.

    @return: What was found: C{late} and C{stuck} are empty if all is well.
    """
    kinds = (sockets, verbs, loops)
    jobs: list[Any] = [kinds[number % len(kinds)] for number in range(threads)]
    jobs += [plain] * -(-threads // SHARE)
    # The main one, and those that fork and send signals.
    fire, rng = Fire(seed, seconds, len(jobs) + 3), random.Random(seed)
    failed: list[str] = []

    def run(job: Callable[[Fire, random.Random], None], draw: random.Random) -> None:
        try:
            job(fire, draw)
        except BaseException as error:
            fire.fails()
            failed.append(f"{job.__name__}: {error!r}: {traceback.format_exc(limit=-4)}")

    within: list[float] = []

    def handler(*_: object) -> None:
        # Not within another: on a slow machine they would heap up for ever.
        if within:
            return
        within.append(monotonic())
        seconds = rng.uniform(0, SHORTEST)
        hub.wait(lambda: False, seconds)
        fire.judge("handler", within.pop(), seconds)

    before = signal.signal(signal.SIGUSR1, handler)
    begun = [threading.Thread(target=call, daemon=True) for call in (fire.beat, fire.serve)]
    for job in (*jobs, forks, signals):
        begun.append(threading.Thread(target=run, args=(job, random.Random(rng.random())), daemon=True))
    for thread in begun:
        thread.start()
    fire.ready()
    stopper = subprocess.Popen([sys.executable, "-c", _STOPPER, str(os.getpid()), str(seed)])
    try:
        line = monotonic() + told
        while fire.runs():
            began = monotonic()
            wait = rng.uniform(SHORTEST, SHORTEST * 10)
            with fire.waits("main", wait + SHORTEST):
                hub.wait(lambda: False, wait)
            # Handlers within it have their own time.
            fire.judge("main", began, wait + SHORTEST)
            if monotonic() > line:
                line += told
                print(json.dumps(_found(fire, failed)), flush=True)
    finally:
        stopper.kill()
        stopper.wait()
        os.kill(os.getpid(), signal.SIGCONT)
    patience = monotonic() + HANG_SECONDS
    for thread in begun:
        thread.join(max(0.0, patience - monotonic()))
    stuck = [thread.name for thread in begun if thread.is_alive()]
    if stuck:
        faulthandler.dump_traceback(all_threads=True)
    signal.signal(signal.SIGUSR1, before)
    return {**_found(fire, failed), "stuck": stuck}


def _found(fire: Fire, failed: list[str]) -> dict[str, Any]:
    return {
        "seed": fire.seed,
        "waits": dict(fire.counts),
        "worst": fire.worst,
        "overdue": dict(fire.overdue),
        "late": fire.late[:20],
        "faults": dict(fire.faults),
        "failed": failed[:20],
        "load": os.getloadavg()[0],
    }


def main() -> int:
    """
    Run the command.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Who wants to know what it does has it tell.
    faulthandler.register(signal.SIGUSR2)
    found = story(options.seed, options.seconds, options.threads)
    print(json.dumps(found), flush=True)
    return int(bool(found["late"] or found["stuck"] or found["failed"] or found["faults"]))


if __name__ == "__main__":
    sys.exit(main())
