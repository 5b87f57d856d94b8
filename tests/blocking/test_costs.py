"""
The cost of a message of blocking sockets: functions of Python, turns of the reactor, calls of epoll.

Counts and no times, as in L{tests.test_costs}: lower a number here when a change makes it lower, raise none.
"""

from __future__ import annotations

import enum
import gc
import os
import select as kernelSelect
import socket as kernel
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf
from queue import SimpleQueue
from subprocess import PIPE, Popen, run
from threading import Event, Thread, get_ident
from time import monotonic
from types import FrameType, SimpleNamespace
from typing import Any

from attrs import evolve

from benchmarks.counting import _isSystemCall, steps
from tests.blocking.case import LOOPBACK, BlockingTestCase
from tests.gates.falling import mayOnlyFall
from tests.suites.differential.sockets.tls import contexts
from tests.support.calls import PACKAGE, called, profiled, requireReplaceable
from tests.support.waiting import HANG_SECONDS
from tests.test_costs import requireBytecodes
from twisted_ib import select as selectingAll
from twisted_ib import socket as offloading
from twisted_ib.blocking import connection, descriptors
from twisted_ib.blocking import files as ourFiles
from twisted_ib.blocking import loop as module
from twisted_ib.blocking import select as selecting
from twisted_ib.blocking import waits as waiting
from twisted_ib.blocking.loop import BRIEF_SECONDS
from twisted_ib.blocking.patch import patched
from twisted_ib.blocking.tls import wrap_socket
from twisted_ib.drive import threads
from twisted_ib.drive.waiter import Waiter
from twisted_ib.hca.base.polling import AdaptivePolling
from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell
from twisted_ib.hca.fabric.shm.ring import RingPath
from twisted_ib.reactor import driven
from twisted_ib.reactor.loop import EPOLL_EVERY, DeviceLoop
from twisted_ib.switch.switch import Switch

DATA = bytes(64)
#: Messages that are counted: so many that each has its part of the turns that ask for everything.
MESSAGES = 10 * EPOLL_EVERY
#: Connections of a request.
SHORT = 20
#: A sleep that nothing ends takes so long, and fails its test.
UNTIMED_SECONDS = 10.0
#: Methods of sockets that ask the kernel for nothing.
_NO_SYSTEM_CALLS = {"fileno", "gettimeout", "__new__", "__init__"}
#: A client that makes so many requests, one after another; its arguments are the port and their number.
_CLIENT = """
import sys
from twisted_ib import socket
skt = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(int(sys.argv[2])):
    skt.sendall(b"request")
    assert skt.recv(9) == b"answer"
"""

#: A server and a client of short connections; their arguments are the connections' number, and a port.
_SHORT_SERVER = """
import sys
from twisted_ib import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
for _ in range(int(sys.argv[1])):
    with listener.accept()[0] as skt:
        assert skt.recv(64) == b"request"
        skt.sendall(b"answer")
"""
_SHORT_CLIENT = """
import sys
from twisted_ib import socket
for _ in range(int(sys.argv[1])):
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as skt:
        skt.sendall(b"request")
        assert skt.recv(64) == b"answer" and not skt.recv(64)
"""

#: Messages of 1 MiB there and back, and the pages that are faulted in for each.
_BULK = """
from resource import RUSAGE_SELF, getrusage
from threading import Thread
from twisted_ib import socket
def echo():
    with listener.accept()[0] as other:
        while data := other.recv(1 << 18):
            other.sendall(data)
listener = socket.create_server(("127.0.0.1", 0))
echoing = Thread(target=echo)
echoing.start()
data, before = bytes(1 << 20), 0
with socket.create_connection(listener.getsockname()) as skt:
    assert skt.sdp is not None
    for n in range(40):
        if n == 10:
            before = getrusage(RUSAGE_SELF).ru_minflt
        skt.sendall(data)
        left = len(data)
        while left:
            left -= len(skt.recv(1 << 18))
echoing.join()
print((getrusage(RUSAGE_SELF).ru_minflt - before) // 30)
"""


class Sleeps:
    """
    In the place of a reactor's epoll object: something happens while the reactor sleeps.

    @ivar timeouts: The times that were asked for, in seconds.
    """

    def __init__(self, poller: Any, happen: Callable[[], object]) -> None:
        """
        @param happen: Called within each sleep.
        """
        self._poller = poller
        self._happen = happen
        self.timeouts: list[float] = []

    def __getattr__(self, name: str) -> Any:
        """
        The rest is the epoll object's.
        """
        return getattr(self._poller, name)

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        """
        See C{select.epoll.poll}.
        """
        self.timeouts.append(timeout)
        if timeout:
            self._happen()
        return []


def asked(act: Callable[[], object]) -> Counter[str]:
    """
    @return: The functions of C that it calls and that may be system calls, by name.
    """
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and _isSystemCall(function) and function.__name__ not in _NO_SYSTEM_CALLS:
            found[function.__name__] += 1

    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


def inVain(*_: object) -> bool:
    """
    Stand for polling that finds nothing.
    """
    return False


class CostTests(BlockingTestCase):
    """
    Both ends in one process.

    @ivar now: The time, in seconds.
    """

    def setUp(self) -> None:
        """
        Sockets that earlier tests have left in cycles would be served, and looked at, beside these.
        """
        gc.collect()
        super().setUp()

    def blocking(self) -> tuple[Any, Any]:
        """
        @return: Two connected sockets without timeouts, which have exchanged some messages.
        """
        pair = self.pair()
        for skt in pair:
            skt.settimeout(None)
        self.send(*pair)
        return pair

    def send(self, one: Any, other: Any) -> None:
        """
        Send and receive messages.
        """
        for _ in range(MESSAGES):
            one.sendall(DATA)
            other.recv(len(DATA))

    def stopTime(self) -> None:
        """
        The time of other processes does not pass.
        """
        for where, name in (
            (module, "monotonic"),
            (driven, "monotonic"),
            (connection, "monotonic"),
            (self.loop.reactor, "seconds"),
        ):
            self.patch(where, name, float)

    def asleep(self, happen: Callable[[], object]) -> Sleeps:
        """
        From now on polling does not pay, and C{now} is the time.

        @return: The sleeps to come.
        """
        requireReplaceable(AdaptivePolling, "spin")
        self.patch(AdaptivePolling, "spin", inVain)
        self.now = 0.0
        for each in module, driven:
            self.patch(each, "monotonic", lambda: self.now)
        reactor = self.loop.reactor
        reactor._askAt = BRIEF_SECONDS
        sleeps = Sleeps(reactor._poller, happen)
        self.patch(reactor, "_poller", sleeps)
        return sleeps

    def test_functions(self) -> None:
        """
        The functions of Python of a message that is there when it is received, both ends together.
        """
        one, other = self.blocking()
        self.stopTime()
        turns = self.loop.driven.turns
        self.assertLess(called(lambda: self.send(one, other)).total() / MESSAGES, 23)
        # No turn but that which receives it.
        self.assertEqual(self.loop.driven.turns - turns, MESSAGES)

    def test_bytecodes(self) -> None:
        """
        The bytecodes of it, which see what a function does beside its calls.
        """
        requireBytecodes()
        one, other = self.blocking()
        self.stopTime()
        # A timer may be due within one.
        found = min(steps(partial(self.send, one, other))["bytecodes"] for _ in range(3)) // MESSAGES
        mayOnlyFall(self, {"message": found}, {"message": 1399})

    def test_calls(self) -> None:
        """
        Those of each call alone; of C{recv} most look for the message.
        """
        one, other = self.blocking()
        self.stopTime()
        total: Counter[str] = Counter()
        for name in ("send", "sendall"):
            for _ in range(MESSAGES):
                total[name] += called(lambda name=name: getattr(one, name)(DATA), PACKAGE).total()
                total["recv"] += called(lambda: other.recv(len(DATA)), PACKAGE).total()
        buffer = bytearray(len(DATA))
        for _ in range(MESSAGES):
            one.sendall(DATA)
            total["recv_into"] += called(lambda: other.recv_into(buffer), PACKAGE).total()
        total["recv"] //= 2
        found = {name: number // MESSAGES for name, number in total.items()}
        mayOnlyFall(self, found, {"send": 6, "sendall": 6, "recv": 16, "recv_into": 17})

    def test_tls(self) -> None:
        """
        Those of a record of TLS that is there when it is received: OpenSSL is asked before it, and for it.
        """
        self.rules("use both server * *:*\nuse both connect * *:*\ntimeout short 0\n")
        one, other = self.blocking()
        server, client = contexts()
        ends = [wrap_socket(client, one, False, False, server_hostname="localhost")]
        ends.append(wrap_socket(server, other, True, False))
        shaking = Thread(target=ends[1].do_handshake)
        shaking.start()
        ends[0].do_handshake()
        shaking.join(HANG_SECONDS)
        self.send(*reversed(ends))
        self.stopTime()
        total: Counter[str] = Counter()
        for _ in range(MESSAGES):
            ends[0].sendall(DATA)
            total += called(lambda: ends[1].recv(len(DATA)), PACKAGE)
        found = {"asked": total["_call"] // MESSAGES, "functions": total.total() // MESSAGES}
        mayOnlyFall(self, found, {"asked": 2, "functions": 37})

    def test_flags(self) -> None:
        """
        Flags are members of an enumeration, each operation of which is a function of Python's: a receive and
        a send have none, however many flags they look for.
        """
        one, other = self.blocking()
        found = {}
        for name, call in (
            ("recv", lambda: other.recv(len(DATA), kernel.MSG_WAITALL)),
            ("recv_into", lambda: other.recv_into(bytearray(len(DATA)), 0, kernel.MSG_WAITALL)),
            ("send", lambda: one.send(DATA, kernel.MSG_NOSIGNAL)),
            ("sendall", lambda: one.sendall(DATA, kernel.MSG_NOSIGNAL)),
        ):
            if name.startswith("recv"):
                one.sendall(DATA)
            calls: list[str] = []
            profiled(call, lambda code, calls=calls: calls.append(code.co_filename))
            found[name] = sum(each == enum.__file__ for each in calls)
        self.assertEqual(found, dict.fromkeys(found, 0))

    def test_peer(self) -> None:
        """
        Where nothing has come, and a turn has just asked for everything, C{getpeername} asks nobody; but it
        sees a peer that has gone, and asks again a brief time later.
        """
        one, other = self.blocking()
        one.sendall(DATA)
        other.recv(len(DATA))
        turns: list[object] = []
        turn = self.loop.turn
        self.patch(self.loop, "turn", lambda *arguments: turns.append(arguments) or turn(*arguments))
        self.loop.reactor._askAt = monotonic() + HANG_SECONDS
        for _ in range(MESSAGES):
            self.assertEqual(other.getpeername(), one.getsockname())
        self.assertEqual(turns, [])
        self.loop.reactor._askAt = 0.0
        other.getpeername()
        self.assertEqual(len(turns), 1)
        one.setsockopt(kernel.SOL_SOCKET, kernel.SO_LINGER, bytes((1, 0, 0, 0, 0, 0, 0, 0)))
        one.close()
        self.loop.reactor._askAt = monotonic() + HANG_SECONDS
        self.assertRaises(OSError, other.getpeername)

    def test_learn(self) -> None:
        """
        Whether connections gain is looked at once in so many turns.
        """
        looks: list[Any] = []
        self.patch(Switch, "learn", lambda *_: looks.append(None))
        self.loop.driven.turns = 0
        one, other = self.blocking()
        while self.loop.driven.turns < 4 * driven.LEARN_TURNS:
            # As where polling finds the messages.
            self.loop.driven.polling.hits = 1.0
            self.send(one, other)
            self.assertEqual(len(looks), self.loop.driven.turns // driven.LEARN_TURNS)

    def test_user(self) -> None:
        """
        A brief sleep does not ask who the user is; the longer ones do.
        """
        one, other = self.blocking()
        asked: list[int] = []
        plain = os.geteuid
        self.patch(os, "geteuid", lambda: asked.append(1) or plain())
        self.asleep(lambda: one.sendall(DATA))
        for _ in range(MESSAGES):
            other.recv(len(DATA))
        self.assertLessEqual(len(asked), 2 * MESSAGES // EPOLL_EVERY)
        self.assertTrue(asked)

    def test_patched(self) -> None:
        """
        In a program whose standard library is replaced no call asks more of the kernel: no descriptor of ours
        is looked at as one of the program, nor what we set on it taken for the program's word.
        """
        with patched():
            one, other = self.blocking()
            self.assertFalse(one.sdp.isMarked or other.sdp.isMarked)
            bell = EventDoorbell.create()
            self.addCleanup(bell.close)
            self.assertEqual(called(bell.ring, PACKAGE), {"ring": 1})
            self.loop.reactor.waker.register(self.loop.reactor._poller)
            self.assertEqual(called(self.loop.reactor.waker.wakeUp, PACKAGE), {"wakeUp": 1})
            for descriptor in (one.fileno(), other.fileno()):
                os.set_blocking(descriptor, True)
            # What the program says is seen still.
            self.assertTrue(one.sdp.isMarked and other.sdp.isMarked)

    def test_straight(self) -> None:
        """
        A message that is there is received without a turn of the loop; but not while another thread waits, or
        a handler of a signal interrupts one that does, or something is to be closed, or the last turn that
        asked for everything was long ago.
        """
        one, other = self.blocking()
        loop, turns = self.loop, []
        turn = loop.turn
        self.patch(loop, "turn", lambda *arguments: turns.append(arguments) or turn(*arguments))
        for begin, end, isStraight in (
            (lambda: None, lambda: None, True),
            (lambda: loop.followers.append(Waiter(lambda: False, 0.0)), loop.followers.pop, False),
            (lambda: setattr(loop, "leader", get_ident()), lambda: setattr(loop, "leader", 0), False),
            (lambda: loop.abandon(lambda: None), lambda: self.assertEqual(len(loop.orphans), 0), False),
            (lambda: setattr(loop, "inside", True), lambda: setattr(loop, "inside", False), False),
            (lambda: setattr(loop.reactor, "_askAt", 0.0), lambda: None, False),
        ):
            loop.reactor._askAt = monotonic() + HANG_SECONDS
            loop.driven.turns += EPOLL_EVERY - loop.driven.turns % EPOLL_EVERY
            one.sendall(DATA)
            turns.clear()
            begin()
            self.assertEqual(other.recv(len(DATA)), DATA)
            end()
            self.assertEqual(turns == [], isStraight)

    def test_polled(self) -> None:
        """
        A message that polling finds is received without a turn of the loop, but for one of sixteen, which
        asks for everything.
        """
        requireBytecodes()
        one, other = self.blocking()
        self.stopTime()
        turns: list[object] = []
        turn = self.loop.turn
        self.patch(self.loop, "turn", lambda *arguments: turns.append(arguments) or turn(*arguments))
        # Each is there only once it is polled for.
        self.patch(RingPath, "pending", inVain)
        self.patch(AdaptivePolling, "spin", lambda *_: True)
        found = min(steps(partial(self.send, one, other))["bytecodes"] for _ in range(3)) // MESSAGES
        self.assertEqual(len(turns), 3 * MESSAGES // EPOLL_EVERY)
        mayOnlyFall(self, {"message": found}, {"message": 1474})

    def test_inVain(self) -> None:
        """
        A wait polls once, and sleeps; a socket that is collected while it polls is closed later.
        """
        one, other = self.blocking()
        self.asleep(lambda: one.sendall(DATA))
        spins: list[bool] = []
        requireReplaceable(DeviceLoop, "spin")
        self.patch(DeviceLoop, "spin", lambda *_: spins.append(self.loop.isWithin()) or False)
        self.patch(connection, "monotonic", lambda: self.now)
        turns = self.loop.driven.turns
        for _ in range(MESSAGES):
            self.assertEqual(other.recv(len(DATA)), DATA)
        self.assertEqual((spins, self.loop.driven.turns - turns), ([True] * MESSAGES, MESSAGES))

    def test_seldom(self) -> None:
        """
        However seldom messages come, and although each is there when it is received, delayed calls and
        descriptors have their turn each brief time.
        """
        one, other = self.blocking()
        asked = self.asleep(lambda: self.fail("it sleeps")).timeouts
        self.patch(connection, "monotonic", lambda: self.now)
        for seconds, turns in ((BRIEF_SECONDS * 2, MESSAGES), (0.0, MESSAGES // EPOLL_EVERY)):
            del asked[:]
            for _ in range(MESSAGES):
                self.now += seconds
                one.sendall(DATA)
                self.assertEqual(other.recv(len(DATA)), DATA)
            self.assertTrue(turns <= len(asked) <= turns + 1, asked)

    def test_asleep(self) -> None:
        """
        A wait that does not poll is one sleep: epoll is called once, and deadlines and delayed calls are
        looked at in one turn of sixteen.
        """
        one, other = self.blocking()
        # Every ten milliseconds there is a whole turn, too: they do not pass here.
        self.stopTime()
        sleeps = self.asleep(lambda: one.sendall(DATA))
        turns = self.loop.driven.turns
        calls = called(lambda: [other.recv(len(DATA)) for _ in range(MESSAGES)])
        self.assertEqual(self.loop.driven.turns - turns, MESSAGES)
        self.assertEqual(len(sleeps.timeouts), MESSAGES)
        self.assertEqual(sleeps.timeouts.count(BRIEF_SECONDS), MESSAGES - MESSAGES // EPOLL_EVERY)
        self.assertEqual(calls["begin"], MESSAGES // EPOLL_EVERY)
        # Where the machine is busy it looks for other threads, and does not ask whether to poll.
        count = calls.total() - calls["inVain"] - calls["active_count"]
        self.assertLess(count / MESSAGES, 57.2)

    def test_working(self) -> None:
        """
        While other threads work a wait does not poll, which takes the interpreter from them; it does beside
        threads that sleep.
        """
        one, other = self.blocking()
        self.asleep(lambda: one.sendall(DATA))
        over = Event()
        self.addCleanup(over.set)
        threads.begin(over.wait, name="beside")
        others = self.loop._others
        self.patch(others, "until", inf)
        for areWorking in (True, False, True):
            self.patch(others, "areWorking", areWorking)
            calls = called(lambda: [other.recv(len(DATA)) for _ in range(MESSAGES)])
            self.assertIs(calls["inVain"] < EPOLL_EVERY, areWorking, calls["inVain"])

    def test_oneWay(self) -> None:
        """
        A message that follows one without an answer takes few functions, and epoll is asked before few.
        """
        one, other = self.blocking()
        # Every ten milliseconds there is a whole turn, too: they do not pass here.
        self.stopTime()
        calls: Counter[str] = Counter()
        for _ in range(MESSAGES):
            one.sendall(DATA)
            # However slow the machine is.
            self.loop.reactor._askAt = monotonic() + HANG_SECONDS
            profiled(partial(one.sendall, DATA), lambda code: calls.update((code.co_name,)))
            for _ in range(2):
                other.recv(len(DATA))
        self.assertLessEqual(calls["turn"], MESSAGES // 8)
        self.assertLess(calls.total() / MESSAGES, 16)

    def test_paused(self) -> None:
        """
        After a pause four functions run until the bell is rung, before the message is written.
        """
        one, other = self.blocking()
        names: list[str] = []

        def send() -> None:
            """
            The peer sleeps.
            """
            del names[:]
            profiled(partial(one.sendall, DATA), lambda code: names.append(code.co_name))

        self.asleep(send)
        for _ in range(MESSAGES):
            other.recv(len(DATA))
            self.assertEqual(names[:4], ["sendall", "sendDirect", "alert", "ring"])
            self.assertIn("postWritten", names)

    def test_select(self) -> None:
        """
        A wait for the kernel's descriptors that sleeps asks for them before, and by the sleep itself, which
        says what is ready; epoll is not asked, as its descriptor has not ended the sleep.
        """
        # What the kernel alone has to say is asked for in one call (test_idle).
        self.blocking()
        listener = self.server()
        asked: list[float | None] = []
        wakes = lambda: self.addCleanup(kernel.create_connection(listener.getsockname()).close)  # noqa: E731

        class Asked:
            """
            In the place of C{select.poll} objects: a client connects while one sleeps.
            """

            def __init__(self) -> None:
                made = plain()
                self.register, self.unregister, self._poll = made.register, made.unregister, made.poll

            def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
                """
                See C{select.poll.poll}.
                """
                asked.append(timeout)
                if timeout:
                    wakes()
                return self._poll(timeout)

        plain = descriptors._poll
        self.patch(descriptors, "_poll", Asked)
        sleeps = self.asleep(lambda: self.fail("epoll sleeps"))
        self.loop.driven.inThreads = 0
        self.assertEqual(selecting.select([listener], [], [])[0], [listener])
        self.assertEqual([not each for each in asked], [True, False])
        self.assertEqual(sleeps.timeouts, [])
        listener.accept()[0].close()
        # Each call gives the interpreter to the threads that want it, and the lock is taken meanwhile.
        del asked[:]
        self.loop.driven.inThreads = 1
        self.loop.reactor._askAt = BRIEF_SECONDS
        self.loop.driven.turns = 0
        self.assertEqual(selecting.select([listener], [], [])[0], [listener])
        self.assertEqual([not each for each in asked], [False])
        listener.accept()[0].close()

    def test_acceptTCP(self) -> None:
        """
        The first client over TCP that is accepted takes one look at whether the descriptor blocks, the others
        none.
        """
        # No deadline of a device passes between the two, however slow the machine is.
        self.stopTime()
        self.patch(selecting, "monotonic", float)
        listener, looks = self.server(), []
        plain = os.get_blocking
        for seconds, most in ((None, 1), (HANG_SECONDS, 0), (None, 0)):
            listener.settimeout(seconds)
            with kernel.create_connection(listener.getsockname()):
                self.assertEqual(selecting.select([listener], [], [])[0], [listener])
                del looks[:]
                self.patch(os, "get_blocking", lambda fd: looks.append(fd) or plain(fd))
                calls = called(lambda: listener.accept()[0].close(), PACKAGE)
                self.assertEqual(looks, [listener.fileno()] * most)
                self.assertLessEqual(calls.total(), 26 if most else 5)

    def short(self, made: Any, select: Any) -> dict[str, Counter[str]]:
        """
        Connections of a message, by TCP, with sockets and C{poll} of a module.

        @return: The costs of the parts of one.
        """
        listener: Any = made.create_server((LOOPBACK, 0))
        self.addCleanup(listener.close)
        where, kind = listener.getsockname(), (kernel.AF_INET, kernel.SOCK_STREAM, 0)
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        ends: list[Any] = [None] * 3
        read, write = os.pipe()
        self.addCleanup(os.close, write)
        files = os if made is kernel else ourFiles

        def put(at: int, end: Any) -> None:
            """
            Keep an end.
            """
            ends[at] = end

        def used() -> None:
            """
            Send a message.
            """
            ends[0].sendall(DATA)
            ends[1].recv(len(DATA))
            for each in ends[:2]:
                each.close()

        steps_ = {
            "socket": lambda: put(0, made.socket(*kind)),
            "connect": lambda: ends[0].connect(where),
            "wait": lambda: poller.poll(),
            "accept": lambda: put(1, listener.accept()[0]),
            "the rest": used,
        }
        parts = dict(steps_)
        parts["accept alone"] = parts["accept"]
        parts["file"] = lambda: (files.write(write, b"x"), files.read(read, 1))
        parts["close"] = lambda: files.close(read)
        for _ in range(2):
            for act in steps_.values():
                act()
        found = {}
        for name in steps_:
            found[name] = asked(parts[name])
        # What is looked at anew each few seconds is in one of two at most.
        rounds = [{name: steps(parts[name]) for name in steps_} for _ in range(2)]
        for name in steps_:
            found[name] += min((each[name] for each in rounds), key=Counter.total)
        # The first has the object made that waits for the next ones.
        for count in asked, asked, steps:
            for name in ("socket", "connect"):
                parts[name]()
            costs = count(parts["accept alone"])
            found["accept alone"] = costs if count is asked else found["accept alone"] + costs
            used()
        for name in ("file", "close"):
            found[name] = steps(parts[name])
        return found

    def test_short(self) -> None:
        """
        Connections that TCP carries by the rule have no system call that the standard library's have not, but
        for a look at whether the descriptor blocks and a C{poll} where nobody has waited before; and few
        bytecodes.  So have files.
        """
        requireBytecodes()
        # An earlier test's garbage is no part of it.
        gc.disable()
        self.addCleanup(gc.enable)
        self.patch(os, "sched_getaffinity", lambda _: {0})
        plain, ours = self.short(kernel, kernelSelect), self.short(offloading, selectingAll)
        found = {}
        for name, costs in ours.items():
            found[name] = costs["bytecodes"] - plain[name]["bytecodes"]
            more = costs - plain[name]
            del more["bytecodes"]
            self.assertEqual(more, {"get_blocking": 1, "poll": 1} if name == "accept alone" else {}, name)
        recorded = {
            "socket": 28,
            "connect": 158,
            "wait": 98,
            "accept": 19,
            "accept alone": 172,
            "the rest": 14,
        }
        mayOnlyFall(self, found, {**recorded, "file": 16, "close": 16})

    def test_onlySDP(self) -> None:
        """
        A wait for SDP alone that sleeps is one call of epoll, as C{recv}'s, and asks nothing of the kernel's
        C{poll}; for one that is ready the devices are served now and then.
        """
        one, other = self.blocking()
        made: list[Any] = []
        plain = descriptors._poll
        for each in selecting, descriptors:
            self.patch(each, "_poll", lambda: made.append(plain()) or made[-1])
        poller, epoller = selecting.poll(), selecting.epoll()
        self.addCleanup(epoller.close)
        self.addCleanup(epoller.unregister, other)
        for each in poller, epoller:
            each.register(other, selecting._IN)
        del made[:]
        found = [(other.fileno(), selecting._IN)]
        waits = (
            (lambda: self.assertEqual(poller.poll(), found), 65, 1),
            (lambda: self.assertEqual(selecting.select([other], [], [])[0], [other]), 66, 1),
            (lambda: self.assertEqual(epoller.poll(), found), 78, waiting.SERVED_EVERY),
        )
        sleeps = self.asleep(lambda: one.sendall(DATA))
        # By the clock devices are served as well, however few waits there are in a millisecond.
        self.patch(waiting, "monotonic", lambda: self.now)

        def receiving(wait: Callable[[], object]) -> None:
            """
            Wait for messages and receive them.
            """
            for _ in range(MESSAGES):
                wait()
                other.recv(len(DATA))

        for wait, most, served in waits:
            del sleeps.timeouts[:]
            calls = called(lambda: receiving(wait), PACKAGE)  # noqa: B023
            # A few more where the machine is so busy that a sleep ends for a timer.
            self.assertTrue(MESSAGES <= len(sleeps.timeouts) <= MESSAGES * 1.05, sleeps.timeouts)
            self.assertLess(calls.total() / MESSAGES, most)
            one.sendall(DATA)
            turns = self.loop.driven.turns
            wait()
            # Found in the wait's first turn.
            for _ in range(waiting.SERVED_EVERY):
                wait()
            self.assertEqual(self.loop.driven.turns - turns, 1 + served)
            other.recv(len(DATA))
        self.assertEqual(made, [])

    def test_beside(self) -> None:
        """
        A server's wait for a listener and a connection asks the kernel once, before a message is polled for.
        """
        one, other = self.blocking()
        self.stopTime()
        listener, asked = self.server(), []
        made = waiting.pollerOf

        def pollerOf(shared: Any) -> Any:
            """
            Keep what is asked.
            """
            plain = made(shared)
            poll = lambda timeout: asked.append(timeout) or plain.poll(timeout)  # noqa: E731
            return SimpleNamespace(register=plain.register, unregister=plain.unregister, poll=poll)

        requireReplaceable(DeviceLoop, "spin")
        self.patch(DeviceLoop, "spin", lambda *_: one.sendall(DATA) or True)
        self.patch(waiting, "pollerOf", pollerOf)
        with selecting.epoll() as epoller:
            for each in listener, other:
                epoller.register(each, selecting._IN)

            def receiving() -> None:
                """
                Wait for messages and receive them.
                """
                for _ in range(MESSAGES):
                    self.assertEqual(epoller.poll(), [(other.fileno(), selecting._IN)])
                    other.recv(len(DATA))

            calls = called(receiving, PACKAGE)
        # Once more for an event of the loop's own.
        self.assertLessEqual(len(asked), MESSAGES * 1.05)
        self.assertEqual(set(asked), {0})
        self.assertLess(calls.total() / MESSAGES, 54)

    def test_busy(self) -> None:
        """
        Descriptors and deadlines have one turn of sixteen however busy the devices are: while each poll finds
        a message, too.
        """
        one, other = self.blocking()
        sleeps = self.asleep(lambda: self.fail("it sleeps"))

        def spin(*_: Any) -> bool:
            """
            A message comes.
            """
            one.sendall(DATA)
            return True

        requireReplaceable(DeviceLoop, "spin")
        self.patch(DeviceLoop, "spin", spin)
        calls = called(lambda: [other.recv(len(DATA)) for _ in range(MESSAGES)])
        self.assertEqual(sleeps.timeouts, [0] * (MESSAGES // EPOLL_EVERY))
        self.assertGreaterEqual(calls["deadline"], MESSAGES // EPOLL_EVERY)

    def test_slow(self) -> None:
        """
        Deadlines and delayed calls wait for no longer than a brief sleep, however seldom messages come.
        """
        one, other = self.blocking()

        def answer() -> None:
            """
            Late, but within the sleep.
            """
            self.now += BRIEF_SECONDS
            one.sendall(DATA)

        self.asleep(answer)
        calls = called(lambda: [other.recv(len(DATA)) for _ in range(MESSAGES)])
        self.assertGreaterEqual(calls["begin"], MESSAGES // 2)

    def test_packets(self) -> None:
        """
        A device of packets, whose acknowledgements wait until nothing more comes, is served in vain before
        it sleeps, briefly or not.
        """
        one, other = self.blocking()
        device = one.sdp.stream.channel.device
        self.patch(device, "traits", evolve(device.traits, packets=True))
        found: list[int] = []
        progress = device.progress

        def counting() -> int:
            """
            Keep what was found.
            """
            found.append(progress())
            return found[-1]

        self.patch(device, "progress", counting)

        def answer() -> None:
            """
            Nothing was found last.
            """
            self.assertEqual(found[-1], 0)
            found.append(1)
            one.sendall(DATA)

        self.asleep(answer)
        for _ in range(MESSAGES):
            other.recv(len(DATA))

    def test_late(self) -> None:
        """
        A late message is waited for without further brief sleeps: the turn after the first asks for the
        next deadline, and sleeps until then.
        """
        one, other = self.blocking()
        ends = [lambda: None, lambda: one.sendall(DATA)]
        sleeps = self.asleep(lambda: ends.pop(0)())
        self.loop.driven.turns = 0
        self.assertEqual(other.recv(len(DATA)), DATA)
        brief, long = sleeps.timeouts
        self.assertEqual(brief, BRIEF_SECONDS)
        self.assertTrue(long == -1 or long > BRIEF_SECONDS, long)

    def test_deadline(self) -> None:
        """
        The brief sleep ends at the deadline of the wait.
        """
        self.blocking()

        def expire() -> None:
            """
            The time passes.
            """
            self.now += BRIEF_SECONDS

        sleeps = self.asleep(expire)
        self.loop.driven.turns = 0
        # As of the clock that is replaced.
        with self.loop:
            self.assertFalse(self.loop.wait(lambda: False, BRIEF_SECONDS / 4))
        self.assertEqual(sleeps.timeouts[0], BRIEF_SECONDS / 4)


class Untimed(Sleeps):
    """
    In the place of a reactor's epoll object: only an event ends a sleep.
    """

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        """
        See C{select.epoll.poll}.
        """
        if not timeout:
            return self._poller.poll(0, most)
        self.timeouts.append(timeout)
        events = self._poller.poll(UNTIMED_SECONDS, most)
        if not events:
            raise AssertionError(f"a sleep of {timeout} s that nothing ended")
        return events


class UntimedTests(BlockingTestCase):
    """
    No step of a connect, of a first request and its answer, and of the close waits until a time is over: each
    sleep ends for what it waits for.  A sleep that would last for a time lasts here until something wakes it.
    """

    def setUp(self) -> None:
        """
        Connections are SDP's, however short they are, and polling does not pay.
        """
        super().setUp()
        self.rules("use sdp connect * *:*\n")
        requireReplaceable(AdaptivePolling, "spin")
        self.patch(AdaptivePolling, "spin", lambda *_: False)
        reactor = self.loop.reactor
        self.sleeps = Untimed(reactor._poller, lambda: None)
        self.patch(reactor, "_poller", self.sleeps)

    def peer(self, program: str, *arguments: object) -> Popen[str]:
        """
        Begin another process, which uses SDP as well.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-c", program, *map(str, arguments)]
        process = Popen(words, env=environment, stdout=PIPE, text=True)
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, HANG_SECONDS)
        self.addCleanup(process.kill)
        return process

    def serve(self, listener: Any) -> None:
        """
        Answer a request of each connection.
        """
        for _ in range(SHORT):
            with listener.accept()[0] as skt:
                self.assertIsNotNone(skt.sdp)
                self.assertEqual(skt.recv(len(DATA)), b"request")
                skt.sendall(b"answer")

    def ask(self, port: int) -> None:
        """
        Have so many connections of a request.
        """
        for _ in range(SHORT):
            with offloading.create_connection((LOOPBACK, port)) as skt:
                self.assertIsNotNone(skt.sdp)
                skt.sendall(b"request")
                self.assertEqual(skt.recv(len(DATA)), b"answer")
                self.assertEqual(skt.recv(len(DATA)), b"")

    def test_threads(self) -> None:
        """
        Of two threads.
        """
        listener = self.server()
        served = self.inThread(self.serve, listener)
        # Whether one of them sleeps at all depends on how the interpreter goes from one to the other.
        self.ask(listener.getsockname()[1])
        served.result(HANG_SECONDS)

    def test_client(self) -> None:
        """
        Of a client whose server is another process.
        """
        server = self.peer(_SHORT_SERVER, SHORT)
        assert server.stdout is not None
        self.ask(int(server.stdout.readline()))
        self.assertNotEqual(self.sleeps.timeouts, [])

    def test_server(self) -> None:
        """
        Of a server whose client is another process.
        """
        listener = self.server()
        self.peer(_SHORT_CLIENT, SHORT, listener.getsockname()[1])
        self.serve(listener)
        self.assertNotEqual(self.sleeps.timeouts, [])


class BulkTests(BlockingTestCase):
    """
    The memory of pieces that come and go.
    """

    def test_kept(self) -> None:
        """
        It is not given back to the kernel, and faulted in anew, for each message.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "TWISTED_IB_CONFIG": self.mktemp()}
        with open(environment["TWISTED_IB_CONFIG"], "w") as file:
            file.write("use sdp connect * *:*\n")
        environment["TWISTED_IB_CONFIG"] = os.path.abspath(environment["TWISTED_IB_CONFIG"])
        command = sys.executable, "-c", _BULK
        found = run(command, capture_output=True, text=True, env=environment, timeout=HANG_SECONDS)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertLess(int(found.stdout), 30)


class HandOverTests(BlockingTestCase):
    """
    Threads of a server that hand requests on.
    """

    def test_workers(self) -> None:
        """
        One thread waits for all, unregisters what is ready, and hands it to another one, which registers it
        again with its answer: that ends no wait, so that there is one for each request.
        """
        listener, waits = self.server(), []
        made = waiting.pollerOf
        self.patch(waiting, "pollerOf", lambda shared: waits.append(shared) or made(shared))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        # Where it has one CPU it goes over SDP as well.
        environment["TWISTED_IB_CONFIG"] = self.mktemp()
        with open(environment["TWISTED_IB_CONFIG"], "w") as file:
            file.write("use sdp connect * *:*\n")
        environment["TWISTED_IB_CONFIG"] = os.path.abspath(environment["TWISTED_IB_CONFIG"])
        words = [sys.executable, "-c", _CLIENT, str(listener.getsockname()[1]), str(MESSAGES)]
        client = Popen(words, env=environment)
        self.addCleanup(client.wait, HANG_SECONDS)
        skt, _ = listener.accept()
        self.addCleanup(skt.close)
        self.assertIsNotNone(skt.sdp)
        given: SimpleQueue[bool] = SimpleQueue()

        def work() -> None:
            """
            Answer requests.
            """
            while given.get():
                self.assertEqual(skt.recv(9), b"request")
                skt.sendall(b"answer")
                epoller.register(skt, selecting._IN)

        with selecting.epoll() as epoller:
            for each in listener, skt:
                epoller.register(each, selecting._IN)
            working = self.inThread(work)
            for _ in range(MESSAGES):
                self.assertEqual(epoller.poll(HANG_SECONDS), [(skt.fileno(), selecting._IN)])
                epoller.unregister(skt)
                given.put(True)
            given.put(False)
            working.result(HANG_SECONDS)
        self.assertEqual(client.wait(HANG_SECONDS), 0)
        self.assertLessEqual(len(waits), MESSAGES * 1.1)
