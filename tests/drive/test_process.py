"""
Tests of what a process does when it forks, and when it ends.
"""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from unittest import skipUnless
from weakref import WeakSet

from twisted.trial.unittest import SynchronousTestCase

import twisted_ib
from tests.support.commands import PATH
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.drive import process
from twisted_ib.drive.process import IN_CHILD, IN_PARENT, Life, Objects, members
from twisted_ib.errors import ResourceLimitError

LOW, HIGH = "twisted_ib.hca.host.test", "twisted_ib.aio.test"
#: Says in the child how it ended, and that it ended.
CHILD = """
def forked(say=lambda: None):
    child = os.fork()
    if not child:
        try:
            say()
            print("in the child", flush=True)
        finally:
            sys.stderr.write(repr(sys.exc_info()[1] or ""))
            os._exit(0)
    os.waitpid(child, 0)
    print("in the parent", flush=True)
"""
#: Forks while another thread is in what is said between C{begin} and C{end}.
BESIDE = f"""{PATH}
import os, threading
within, leave = threading.Event(), threading.Event()
def amidst(*_):
    within.set()
    leave.wait()
{CHILD}
"""


class Member:
    """
    Something in a weak set.
    """


class MemberTests(SynchronousTestCase):
    """
    L{members}.
    """

    def test_added(self) -> None:
        """
        Another thread may add a member while those there are are asked for.
        """
        kept, late = [Member(), Member()], [Member()]

        class Meanwhile(WeakSet[Member]):
            """
            One to which another thread adds between two members.
            """

            def __iter__(self) -> Iterator[Member]:
                for each in super().__iter__():
                    yield each
                    if late:
                        kept.append(late.pop())
                        self.add(kept[-1])

        self.assertEqual(set(members(Meanwhile(kept))), set(kept))
        self.assertEqual(len(kept), 3)


class Finalized:
    """
    Objects that do something when they are gone.
    """

    def __del__(self) -> None:
        pass


@skipUnless(sys.version_info < (3, 14), "its collector has other generations")
class ObjectsTests(SynchronousTestCase):
    """
    The objects that the end of a process looks at.
    """

    def setUp(self) -> None:
        # Collections amid a test, of which other threads may have some, would be seen.
        self.addCleanup(gc.enable if gc.isenabled() else gc.disable)
        gc.disable()
        if gc.get_freeze_count():
            gc.unfreeze()
            self.addCleanup(gc.freeze)
        gc.collect()
        self.patch(process, "_threads", lambda: 0)
        # Those of the tests are many.
        self.patch(process, "hasFinalizer", lambda kind: kind is Finalized)
        self.objects = Objects()

    def loaded(self) -> list[object]:
        """
        @return: What was made between, and still is.
        """
        self.objects.keep()
        between: list[object] = [[] for _ in range(9)]
        self.objects.settle()
        return between

    def has(self, found: object) -> bool:
        """
        @return: Whether the end would look at it.
        """
        return any(each is found for each in self.objects.made())

    def test_made(self) -> None:
        """
        Those that are made later are looked at, those of a module are not, and of earlier ones those that
        have finalizers.
        """
        early, plain = Finalized(), [self]
        self.assertTrue(self.has(plain))
        between = self.loaded()
        late = Finalized()
        self.assertEqual(
            [self.has(each) for each in (early, plain, between, late)],
            [True, False, False, True],
        )

    def test_again(self) -> None:
        """
        So they are if more is imported later, and no longer than there is one.
        """
        early = Finalized()
        self.loaded()
        late = Finalized()
        self.loaded()
        self.assertEqual((self.has(early), self.has(late)), (True, True))
        del early
        self.assertEqual(sum(type(each) is Finalized for each in self.objects.made()), 1)

    def test_collected(self) -> None:
        """
        After a collection that may have made new ones old, all are looked at; so they are if another thread
        makes some while modules are imported, or if the program has frozen some.
        """
        between = self.loaded()
        self.assertFalse(self.has(between))
        gc.collect(1)
        self.assertTrue(self.has(between))
        self.patch(process, "_threads", lambda: 1)
        between = self.loaded()
        self.assertTrue(self.has(between))
        self.patch(process, "_threads", lambda: 0)
        self.loaded()
        gc.freeze()
        self.addCleanup(gc.unfreeze)
        between = self.loaded()
        self.assertTrue(self.has(between))

    def test_limit(self) -> None:
        """
        L{limits.KEPT_OBJECTS} are remembered one by one.
        """
        many = [Finalized() for _ in range(limits.KEPT_OBJECTS + 1)]
        between = self.loaded()
        self.assertTrue(self.has(between))
        del many
        between = self.loaded()
        self.assertFalse(self.has(between))


#: Times that are shown to people, as the program has them.
_SHOWN = ("tools", "switch/rules/rulelog.py")


class ClockTests(SynchronousTestCase):
    """
    C{monotonic} and others.
    """

    def test_others(self) -> None:
        """
        They are the clocks of C{time}, and other functions than those that a program finds there.
        """
        before, now, after = time.monotonic(), process.monotonic(), time.monotonic()
        self.assertTrue(before <= now <= after)
        for name in ("monotonic", "perf_counter", "sleep", "time", "time_ns"):
            ours, theirs = getattr(process, name), getattr(time, name)
            self.assertIsNot(ours, theirs)
            self.assertIs(type(ours), type(theirs))

    def test_used(self) -> None:
        """
        No module has its clocks of C{time}, but for times that are shown.
        """
        folder = Path(twisted_ib.__file__).parent
        found = []
        for path in sorted(folder.rglob("*.py")):
            name = str(path.relative_to(folder))
            for node in ast.walk(ast.parse(path.read_text())):
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module == "time":
                    names = [each.name for each in node.names]
                    isFound = not {"monotonic", "perf_counter", "sleep", "time", "time_ns"}.isdisjoint(names)
                else:
                    isFound = "time" in names
                if isFound and not name.startswith(_SHOWN):
                    found.append(name)
        # What they are made of.
        self.assertEqual(set(found), {"drive/process.py"})


class Order(SynchronousTestCase):
    """
    The order, without a process.
    """

    def setUp(self) -> None:
        """
        Register two modules, the higher one first.
        """
        self.life = Life()
        self.said: list[str] = []
        for name in (HIGH, LOW):
            layer = name.split(".")[-2]
            self.life.atFork(
                name, self.say(f"before {layer}"), self.say(f"parent {layer}"), self.say(f"child {layer}")
            )
            self.life.atEnd(name, self.say(f"end {layer}"))

    def say(self, text: str) -> partial[None]:
        """
        @return: What says something.
        """
        return partial(self.said.append, text)

    def test_fork(self) -> None:
        """
        Before a fork the highest layer comes first, afterwards the lowest, in the parent and in the child.
        """
        self.life.forking()
        self.life.forked(IN_PARENT)
        self.life.forking()
        self.life.forked(IN_CHILD)
        before = ["before aio", "before host"]
        self.assertEqual(
            self.said, [*before, "parent host", "parent aio", *before, "child host", "child aio"]
        )

    def test_end(self) -> None:
        """
        At the end the highest layer comes first, and within a layer the last that registered; reports are
        the last of all.
        """
        self.life.atEnd("twisted_ib.tools.run.summary", self.say("end report"))
        self.life.atEnd(f"{HIGH}.later", self.say("end later"))
        self.life.end()
        self.assertEqual(self.said, ["end later", "end aio", "end host", "end report"])

    def test_again(self) -> None:
        """
        A module that registers once more, as one that is loaded again does, is called once.
        """
        self.life.atEnd(LOW, self.say("end again"))
        self.life.atFork(LOW)
        self.life.end()
        self.life.forking()
        self.life.forked(IN_CHILD)
        self.assertEqual(self.said, ["end aio", "end again", "before aio", "child aio"])

    def test_limit(self) -> None:
        """
        So many modules register, of layers that there are, and no more.
        """
        life = Life()
        for number in range(limits.PROCESS_HANDLERS):
            life.atEnd(f"{LOW}.n{number}", list)
            life.atFork(f"{LOW}.n{number}")
        life.atEnd(f"{LOW}.n0", list)
        self.assertRaises(ResourceLimitError, life.atEnd, LOW, list)
        self.assertRaises(ResourceLimitError, life.atFork, LOW)
        self.assertRaises(ValueError, life.atEnd, "twisted_ib.aiomore", list)
        self.assertRaises(ValueError, life.atFork, "another.aio")

    def test_between(self) -> None:
        """
        Who registers while a fork is under way has its turn with the next: it has not taken what it would
        release.
        """
        life = Life()
        release = self.say("release")
        life.atFork(HIGH, before=lambda: life.atFork(LOW, self.say("take"), release, release))
        life.forking()
        life.forked(IN_PARENT)
        self.assertEqual(self.said, [])
        life.forking()
        life.forked(IN_CHILD)
        self.assertEqual(self.said, ["take", "release"])

    def test_forgets(self) -> None:
        """
        But who takes nothing, and registers while another one waits for what a thread imports, has its turn
        in that child: what is the parent's is not its own.
        """
        life = Life()
        later = partial(life.atFork, LOW, None, self.say("parent low"), self.say("child low"))
        life.atFork(HIGH, later, self.say("parent high"), self.say("child high"))
        life.forking()
        life.forked(IN_PARENT)
        self.assertEqual(self.said, ["parent high"])
        life = Life()
        later = partial(life.atFork, LOW, None, None, self.say("child low"))
        life.atFork(HIGH, later, None, self.say("child high"))
        life.forking()
        life.forked(IN_CHILD)
        self.assertEqual(self.said, ["parent high", "child low", "child high"])

    def test_within(self) -> None:
        """
        A fork within another one, as a signal's handler does it, has its own turns.
        """
        life = Life()
        depth: list[None] = []

        def fork() -> None:
            if not depth:
                depth.append(None)
                life.forking()
                life.forked(IN_CHILD)

        life.atFork(
            LOW, self.say("take"), self.say("release in the parent"), self.say("release in the child")
        )
        life.atFork(HIGH, before=fork)
        life.forking()
        life.forked(IN_PARENT)
        self.assertEqual(self.said, ["take", "release in the child", "take", "release in the parent"])
        self.assertEqual(life._forking, {})

    def test_beside(self) -> None:
        """
        A fork of another thread stays under way in the parent; in the child there is no such thread.
        """
        for which, left in ((IN_PARENT, 1), (IN_CHILD, 0)):
            life = Life()
            beside = Thread(target=life.forking)
            beside.start()
            beside.join()
            life.forking()
            life.forked(which)
            self.assertEqual(len(life._forking), left)


@skipUnless(hasattr(os, "fork"), "fork(2)")
class ProcessTests(SynchronousTestCase):
    """
    Real forks and real ends.
    """

    def ran(self, program: str, said: str) -> str:
        """
        Run a program to its end.

        @param said: All that it has to write.

        @return: What it complained about.
        """
        ownRunDirectory(self)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        self.assertEqual((done.returncode, done.stdout), (0, said), done.stderr)
        return done.stderr

    def test_raises(self) -> None:
        """
        What one raises is said, and the others have their turn: before a fork, after it, at the end, and for
        each object of a module.
        """
        complaints = self.ran(
            f"""{PATH}
import os
from twisted_ib.drive.process import forEach, life
{CHILD}
def fails(*what):
    raise KeyboardInterrupt("in " + " ".join(what))
ended, alive = os.pipe()
def failsLater():
    # When the child has ended: both write to one pipe.
    os.close(alive)
    os.read(ended, 1)
    fails()
life.atFork({LOW!r}, fails, failsLater, fails)
life.atFork({HIGH!r}, lambda: print("before", flush=True), None, lambda: print("after"))
life.atFork("twisted_ib.verbs.test", inChild=forEach({{"a", "b"}}, fails))
life.atEnd({HIGH!r}, fails)
life.atEnd({LOW!r}, lambda: print("end"))
forked()
""",
            "before\nafter\nin the child\nin the parent\nend\n",
        )
        self.assertEqual(complaints.count("KeyboardInterrupt: in "), 6, complaints)

    def test_hubHeld(self) -> None:
        """
        A child that is forked while another thread holds the lock of verbs opens devices of its own.
        """
        self.ran(
            f"""{BESIDE}
from twisted_ib.verbs.core.hub import hub
def hold():
    with hub:
        amidst()
threading.Thread(target=hold, daemon=True).start()
within.wait()
forked(lambda: hub.close(hub.open("lo0")))
leave.set()
""",
            "in the child\nin the parent\n",
        )

    def test_deviceAmidst(self) -> None:
        """
        A child that is forked while another thread makes a device makes its own, with nothing of that one.
        """
        self.ran(
            f"""{BESIDE}
from twisted_ib.hca.device.device import Device
from twisted_ib.verbs.core.hub import hub
join = Device._join
def slowly(*arguments):
    join(*arguments)
    amidst()
Device._join = slowly
def mine():
    Device._join = join
    own = hub.open("shm0")
    print(len(hub.devices), own.closed)
    hub.close(own)
making = threading.Thread(target=hub.open, args=("shm0",))
making.start()
within.wait()
forked(mine)
leave.set()
making.join()
print(len(hub.devices))
""",
            "1 False\nin the child\nin the parent\n1\n",
        )

    def test_consumerRaises(self) -> None:
        """
        What one queue pair's consumer raises in a child keeps neither the others nor the medium from being
        told that the device is the parent's.
        """
        complaints = self.ran(
            f"""{PATH}
import os
from types import SimpleNamespace
from twisted_ib.hca.device.device import Device
{CHILD}
device = Device("lo0")
def fails():
    raise KeyError("fails")
def tells():
    print("told", flush=True)
for number, call in enumerate((fails, tells)):
    device.queuePairs[number] = SimpleNamespace(consumer=SimpleNamespace(forked=call))
type(device.fabric).forked = lambda _: print("medium", flush=True)
forked()
device.queuePairs.clear()
device.close()
""",
            "told\nmedium\nin the child\nin the parent\n",
        )
        self.assertEqual(complaints.count("KeyError: 'fails'"), 1, complaints)

    def test_forkWithin(self) -> None:
        """
        A handler of a signal forks while a fork's calls are under way; both children, and the parent, have
        what was held for the fork.
        """
        self.ran(
            f"""{PATH}
import os, signal
from twisted_ib.drive.process import life
from twisted_ib.subnet.hosting.hostthread import noFork
{CHILD}
def free():
    import threading
    taken = []
    other = threading.Thread(target=lambda: taken.append(noFork.acquire(False)))
    other.start()
    other.join()
    print(taken)
signal.signal(signal.SIGUSR1, lambda *_: forked(free))
sent = []
def once():
    if not sent:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGUSR1)
life.atFork({LOW!r}, before=once)
forked(free)
free()
""",
            # The first child is within the outer fork, for which the lock is held.
            "[False]\nin the child\nin the parent\n[True]\nin the child\nin the parent\n[True]\n",
        )

    def test_daemonWaits(self) -> None:
        """
        A process ends while daemon threads wait, for events of verbs and on a socket, or fight for the lock.
        """
        self.ran(
            f"""{PATH}
import threading
from twisted_ib.verbs.core.hub import hub
from twisted_ib.socket import socket
from twisted_ib.verbs.pyverbs import Context
context = Context(name="lo0")
server = socket()
server.bind(("127.0.0.1", 0))
server.listen()
def contend():
    while True:
        with hub:
            pass
for call in (context.get_async_event, server.accept, contend, contend):
    threading.Thread(target=call, daemon=True).start()
while not hub.isAwaited:
    pass
print("ends")
""",
            "ends\n",
        )


__all__ = ["MemberTests", "ObjectsTests", "Order", "ProcessTests"]
