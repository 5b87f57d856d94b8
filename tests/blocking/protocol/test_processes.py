"""
Tests for L{twisted_ib.blocking.descriptors} and L{twisted_ib.blocking.listening}: which other processes may
have a connection, or a listener.
"""

from __future__ import annotations

import errno
import os
import socket as kernel
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextlib import suppress as ignoring
from struct import pack
from subprocess import PIPE, Popen
from threading import enumerate as enumerate_
from time import CLOCK_BOOTTIME, clock_gettime_ns
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.blocking.case import LOOPBACK, BlockingTestCase, exactly
from tests.support.descriptors import fork, runForked
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits, select
from twisted_ib import socket as offloading
from twisted_ib.blocking import descriptors, listening
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.blocking.patch import patched
from twisted_ib.errors import ForkedSocketError
from twisted_ib.switch.offload import Offload, _SwitchedAttempt
from twisted_ib.switch.reason import kept, outcomes

#: A server whose child serves what it listens on; it prints its port, and ends with its input.
_PREFORK = """
import os, signal, sys
from twisted_ib import socket
listener = socket.create_server(("127.0.0.1", 0))
assert listener.sdp.sdpListeners
child = os.fork()
while not child:
    accepted, _ = listener.accept()
    accepted.sendall(b"served")
    accepted.close()
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""


def relays() -> list[str]:
    """
    @return: The threads that relay.
    """
    return [each.name for each in enumerate_() if each.name == listening.RELAY]


def drained(steps: Iterator[None]) -> int:
    """
    @return: How many steps there were.
    """
    return sum(1 for _ in steps)


class ProcessTests(SynchronousTestCase):
    """
    Which processes are looked at, in a /proc of the test: this one is number 7.

    @ivar processes: The parent of each, and the tick at which it began.
    @ivar links: What their descriptors are.
    @ivar looks: The folders that were listed.
    """

    def setUp(self) -> None:
        """
        Make it.
        """
        self.processes = {"7": ("3", 2), "3": ("1", 1), "1": ("0", 0)}
        self.links = {"/proc/self": "7"}
        self.looks: list[str] = []
        self.patch(os, "scandir", self.scandir)
        self.patch(os, "readlink", lambda path: self.shown(self.links, path))
        self.patch(descriptors, "_status", lambda process: self.shown(self.processes, process))
        self.patch(descriptors, "_byInode", {})
        self.patch(descriptors, "_forks", 90 * descriptors._TICK)

    def shown(self, among: dict[str, Any], name: str) -> Any:
        """
        @return: What has this name.
        """
        if name not in among:
            raise FileNotFoundError
        return among[name]

    @contextmanager
    def scandir(self, folder: str) -> Iterator[Any]:
        """
        List a folder.
        """
        self.looks.append(folder)
        names = [*self.processes, "uptime"]
        if folder != "/proc":
            names = [each.rpartition("/")[2] for each in self.links if each.startswith(f"{folder}/")]
        yield [SimpleNamespace(name=name, path=f"{folder}/{name}") for name in names]

    def part(self, inode: int, began: int = 5) -> Any:
        """
        @param began: The tick at which it was made.
        @return: A connection that the program has closed.
        """
        parts: dict[int, Any] = descriptors._byInode
        part = SimpleNamespace(inode=inode, forks=began * descriptors._TICK, looked=-1, kept=0, holder="")
        part.listens, part.loop = False, nullcontext()
        parts[inode] = part
        return part

    def test_related(self) -> None:
        """
        Of all processes those are looked at that began after the connection, and whose line leads here, or
        to those above, which adopt orphans; those whose line is not known; and the last ones first.
        """
        self.processes |= {
            # They began before, one of them here.
            "5": ("1", 4),
            "6": ("7", 4),
            # A child of a stranger's, and its.
            "8": ("5", 9),
            "9": ("8", 9),
            # A child, its own, and orphans; those above have no parent, or it is not shown.
            "10": ("7", 9),
            "11": ("10", 9),
            "12": ("1", 9),
            "13": ("3", 9),
            "14": ("0", 9),
            "15": ("99", 9),
        }
        self.assertEqual(descriptors.elsewhere([self.part(1)]), {})
        looked = [each.split("/")[2] for each in self.looks if each.endswith("/fd")]
        self.assertEqual(looked, ["15", "14", "13", "12", "11", "10"])

    def test_lastFirst(self) -> None:
        """
        What is known of all ends the look: a child that was forked a moment ago is the first.
        """
        self.processes |= {str(number): ("7", number) for number in range(10, 90)}
        self.links["/proc/89/fd/4"] = "socket:[1]"
        self.assertEqual(descriptors.elsewhere([self.part(1)]), {1: "/proc/89/fd/4"})
        self.assertEqual(self.looks, ["/proc", "/proc/89/fd"])

    def test_circle(self) -> None:
        """
        Numbers that are given again, and lead in a circle, end the look at them.
        """
        self.processes |= {"8": ("9", 9), "9": ("8", 9)}
        self.assertEqual(descriptors.elsewhere([self.part(1)]), {})
        self.assertEqual(self.looks, ["/proc"])

    def test_bound(self) -> None:
        """
        While every look at the list of all processes shows a new one of this one, it is looked at
        C{limits.BLOCKING_PROCESS_LOOKS} times, and each process once; without a new one, once more.
        """
        part = self.part(1)
        self.processes["99"] = "7", 9
        for isEndless, looks in ((True, limits.BLOCKING_PROCESS_LOOKS), (False, 2)):
            del self.looks[:]
            part.looked = -1
            for _ in descriptors._search([part], {}):
                if isEndless:
                    self.processes[str(100 + len(self.looks))] = "7", 9
            self.assertEqual(self.looks.count("/proc"), looks)
            self.assertLessEqual(max(map(self.looks.count, set(self.looks) - {"/proc"})), 1)
            self.assertEqual(part.looked == descriptors._forks, not isEndless)

    def test_strangers(self) -> None:
        """
        New processes of others make no further look.
        """
        self.processes |= {"5": ("1", 4)}
        for _ in descriptors._search([self.part(1)], {}):
            self.processes[str(100 + len(self.processes))] = ("5", 9)
        self.assertEqual(self.looks, ["/proc"])

    def test_once(self) -> None:
        """
        After a fork processes are looked through once, for all connections: those that none has are not
        looked for again, and where one has others is known.
        """
        kept, lost, other = self.part(1), self.part(2), self.part(3)
        self.processes["8"] = "7", 9
        self.links |= {"/proc/8/fd/8": "socket:[1]", "/proc/8/fd/9": "socket:[3]"}

        def isHeld(*expected: bool) -> int:
            # How often all processes were listed.
            del self.looks[:]
            held = []
            for part in (kept, lost, other):
                here: set[int] = set()
                if not descriptors._isShown(part):
                    drained(descriptors._searchAll([part], here))
                held.append(bool(part.holder) or descriptors._forks not in (part.forks, part.looked))
            self.assertEqual(tuple(held), expected)
            return self.looks.count("/proc")

        self.assertEqual(isHeld(True, False, True), 2)
        self.assertEqual(isHeld(True, False, True), 0)
        # The child closes one, and ends later.
        self.links["/proc/8/fd/9"] = "pipe:[3]"
        self.assertEqual(isHeld(True, False, False), 2)
        self.assertEqual(isHeld(True, False, False), 0)
        descriptors._fork()
        self.links["/proc/8/fd/9"] = "socket:[2]"
        self.assertEqual(isHeld(True, True, False), 2)

    def test_forkMeanwhile(self) -> None:
        """
        One that is forked while all processes are listed for the last time may have it.
        """
        part = self.part(1)
        for _ in descriptors._search([part], {}):
            if part.looked == -1 and descriptors._forks == 90 * descriptors._TICK:
                descriptors._fork()
        self.assertNotIn(descriptors._forks, (part.forks, part.looked))

    def test_accepted(self) -> None:
        """
        A connection that has no descriptor yet, or none any more, is not looked for.
        """
        part = self.part(0)
        self.assertEqual((descriptors.elsewhere([part]), self.looks), ({}, []))


class StatusTests(SynchronousTestCase):
    """
    What /proc says of a process.
    """

    def test_status(self) -> None:
        """
        Its parent, and when it began: a child not before the last fork's first step, nor after its second.
        """
        self.assertEqual(descriptors._status("self")[0], str(os.getppid()))
        out, into = os.pipe()
        before = clock_gettime_ns(CLOCK_BOOTTIME)
        pid = os.fork()
        if not pid:
            os.close(into)
            os.read(out, 1)
            os._exit(0)
        parent, began = descriptors._status(str(pid))
        self.assertEqual(parent, str(os.getpid()))
        self.assertLessEqual(before // descriptors._TICK, began)
        self.assertLessEqual(began, descriptors._forks // descriptors._TICK)
        os.close(into)
        os.close(out)
        os.waitpid(pid, 0)
        with self.assertRaises(FileNotFoundError):
            descriptors._status(str(pid))

    def test_forks(self) -> None:
        """
        Each step of a fork has a time of its own.
        """
        self.patch(descriptors, "clock_gettime_ns", lambda _: 5)
        self.patch(descriptors, "_forks", 5)
        for expected in (6, 7):
            descriptors._fork()
            self.assertEqual(descriptors._forks, expected)


class ListenerTests(BlockingTestCase):
    """
    Processes that fork after they listen.
    """

    def test_served(self) -> None:
        """
        Children serve clients by TCP, from the first on: nobody waits for an answer of their parent's on SDP.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        server = Popen([sys.executable, "-c", _PREFORK], env=environment, stdin=PIPE, stdout=PIPE, text=True)
        self.addCleanup(server.wait, HANG_SECONDS)
        assert server.stdin is not None and server.stdout is not None
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.stdin.close)
        address = LOOPBACK, int(server.stdout.readline())
        for _ in range(2):
            client = offloading.create_connection(address, HANG_SECONDS)
            self.addCleanup(client.close)
            self.assertEqual(exactly(client, 6), b"served")
            self.assertEqual(kept[client].fallback.kind, "no_listener")  # type: ignore[union-attr]

    def test_withdrawn(self) -> None:
        """
        After a fork SDP is offered once a thread here waits for a client, by C{accept} or C{select}, and not
        before; a fork after that changes nothing.
        """
        for waits in (
            lambda skt: skt.accept()[0],
            lambda skt: select.select([skt], [], []) and skt.accept()[0],
        ):
            listener = self.server()
            part = listener.sdp
            runForked(lambda: None)
            self.assertEqual((part.sdpListeners, part.why.provider), ((), "tcp"))
            self.assertEqual(part.why.fallback.kind, "forking")
            # A device that comes now is for the other ports.
            part.deviceAdded("shm0")
            self.assertEqual(part.sdpListeners, ())
            accepted = self.inThread(waits, listener)
            waitUntil(lambda part=part: part.sdpListeners)
            self.assertEqual((part.why.provider, part.why.fallback), ("both", None))
            runForked(lambda: None)
            self.assertTrue(part.sdpListeners)
            client = self.client(listener)
            self.assertIsNotNone(client.sdp)
            accepted.result(HANG_SECONDS).close()

    def test_forkedAmid(self) -> None:
        """
        A fork that meets the first thread that waits for a client leaves SDP offered.
        """
        part = self.server().sdp
        with self.loop:
            withdrawn = self.inThread(part.withdraw)
            waitUntil(lambda: self.loop.lockQueue)
            part.serve()
        withdrawn.result(HANG_SECONDS)
        self.assertTrue(part.sdpListeners)

    def test_defaultTimeout(self) -> None:
        """
        The timeout of new sockets is not that of C{accept} where the socket does not block.
        """
        listener = self.server()
        listener.setblocking(False)
        self.addCleanup(kernel.setdefaulttimeout, kernel.getdefaulttimeout())
        kernel.setdefaulttimeout(HANG_SECONDS)
        self.assertRaises(BlockingIOError, listener.accept)

    def test_several(self) -> None:
        """
        All ports are withdrawn before a client of one is answered: none is accepted that nobody serves.
        """
        listeners = [self.server() for _ in range(3)]
        offered: list[int] = []
        changed = BlockingLoop.changed

        def looking(loop: BlockingLoop) -> None:
            offered.extend(len(each.sdp.sdpListeners) for each in listeners)
            changed(loop)

        self.patch(BlockingLoop, "changed", looking)
        runForked(lambda: None)
        self.assertEqual(offered, [0, 0, 0])

    def test_connectedBefore(self) -> None:
        """
        A client that SDP has connected before the fork is served by the child, too.
        """
        listener = self.server()
        clients = [self.client(listener) for _ in range(2)]
        self.assertEqual(len(listener.sdp.accepted), 2)

        def serve() -> None:
            for _ in clients:
                accepted, _ = listener.accept()
                accepted.sendall(exactly(accepted, 5).upper())
                accepted.close()

        for each in clients:
            self.assertIsNotNone(each.sdp)
            each.sendall(b"hello")
        self.assertEqual(runForked(serve), 0)
        self.assertEqual([exactly(each, 5) for each in clients], [b"HELLO"] * 2)
        self.assertEqual([each.recv(1) for each in clients], [b""] * 2)
        for each in clients:
            each.close()
        waitUntil(lambda: not relays())

    def test_unanswered(self) -> None:
        """
        A client that dials while the process forks goes over TCP once it has seen twice that SDP is offered
        no more, and does not wait for its timeout.
        """
        listener = self.server()
        looks: list[bool] = []
        stands = Offload.stands

        def looking(offload: Offload) -> bool:
            looks.append(stands(offload))
            return looks[-1]

        # Nobody has it.
        self.patch(_SwitchedAttempt, "pathReady", lambda attempt, path: listener.sdp.withdraw())
        self.patch(Offload, "stands", looking)
        client = self.client(listener)
        # Others may have come before.
        self.assertEqual((client.sdp, looks[-2:], looks.count(False)), (None, [False] * 2, 2))
        self.assertEqual(kept[client].fallback.kind, "refused")  # type: ignore[union-attr]

    def accepted(self) -> tuple[Any, Any, Any]:
        """
        @return: A socket that listens, one that this thread has accepted from it, and its client.
        """
        listener = self.server()
        client = self.client(listener)
        accepted, _ = listener.accept()
        self.addCleanup(accepted.close)
        self.assertIsNotNone(accepted.sdp)
        return listener, accepted, client

    def test_accepted(self) -> None:
        """
        What a thread has accepted, and forks for, the child serves; later clients come over TCP.
        """
        listener, accepted, client = self.accepted()
        accepted.sendall(b"welcome")
        accepted.settimeout(HANG_SECONDS)
        octets = bytes(range(256)) * 4096

        def serve() -> None:
            assert accepted.gettimeout() == HANG_SECONDS and not os.get_blocking(accepted.fileno())
            assert exactly(accepted, len(octets)) == octets
            assert accepted.recv(1) == b""
            accepted.sendall(octets[::-1])

        child = fork(serve)
        accepted.close()
        self.assertEqual(exactly(client, 7), b"welcome")
        client.sendall(octets)
        client.shutdown(kernel.SHUT_WR)
        self.assertEqual(exactly(client, len(octets)), octets[::-1])
        self.assertEqual(client.recv(1), b"")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        part = listener.sdp
        self.assertEqual((part.sdpListeners, part.why.fallback.kind), ((), "forking"))
        part.serve()
        self.assertIsNone(self.client(listener).sdp)
        waitUntil(lambda: not relays())

    def test_acceptedKept(self) -> None:
        """
        The process that forks has the connection, too.
        """
        _, accepted, client = self.accepted()
        self.assertEqual(runForked(lambda: None), 0)
        accepted.sendall(b"mine")
        self.assertEqual(exactly(client, 4), b"mine")
        client.sendall(b"yours")
        self.assertEqual(exactly(accepted, 5), b"yours")
        client.close()
        accepted.close()
        waitUntil(lambda: not relays())

    def test_acceptedGiven(self) -> None:
        """
        What was accepted last is given to a program as its input, or to a process by a message, and later
        clients come over TCP; what a process has received from is not.
        """
        upper = "import sys\nprint(sys.stdin.readline().upper(), end='')"
        with patched():
            ours, theirs = kernel.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)

        def execute(accepted: Any) -> int:
            return Popen([sys.executable, "-c", upper], stdin=accepted, stdout=accepted).wait(HANG_SECONDS)

        def send(accepted: Any) -> int:
            kernel.send_fds(ours, [b"x"], [accepted.fileno()])
            _, (descriptor,), _, _ = kernel.recv_fds(theirs, 9, 1)
            with kernel.socket(fileno=descriptor) as received:
                received.sendall(exactly(received, 6).upper())
            return 0

        for give in (execute, send):
            with patched():
                for isReceived in (False, True):
                    listener, accepted, client = self.accepted()
                    client.sendall(b"xhello\n"[not isReceived :])
                    if isReceived:
                        self.assertEqual(accepted.recv(1), b"x")
                        self.assertRaises(OSError, give, accepted)
                        self.assertTrue(listener.sdp.sdpListeners)
                        continue
                    self.assertEqual(give(accepted), 0)
                    accepted.close()
                    self.assertEqual(exactly(client, 6), b"HELLO\n")
                    self.assertEqual(client.recv(1), b"")
                    client.close()
                    self.assertEqual(listener.sdp.sdpListeners, ())
        waitUntil(lambda: not relays())

    def test_acceptedReset(self) -> None:
        """
        A child that closes with octets unread resets the connection, and a client that does ends the child's.
        """
        for isClients in (True, False):
            _, accepted, client = self.accepted()
            ready, go = os.pipe()

            def serve(accepted: Any = accepted, ready: int = ready, isClients: bool = isClients) -> None:
                os.read(ready, 1)
                if isClients:
                    with ignoring(ConnectionResetError):
                        assert accepted.recv(9) == b""
                else:
                    assert accepted.recv(1) == b"u"
                    accepted.close()

            child = fork(serve)
            accepted.close()
            if isClients:
                client.setsockopt(kernel.SOL_SOCKET, kernel.SO_LINGER, pack("ii", 1, 0))
                client.close()
            else:
                client.sendall(b"unread")
            os.write(go, b"x")
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            if not isClients:
                self.assertRaises(ConnectionResetError, client.recv, 1)
            waitUntil(lambda: not relays())
            os.close(ready)
            os.close(go)

    def test_acceptedRefused(self) -> None:
        """
        A child is refused a connection of which its parent has received something, which another thread has
        accepted, or for which there is no descriptor; SDP is offered as before.
        """

        def received(listener: Any) -> Any:
            client = self.client(listener)
            accepted, _ = listener.accept()
            client.sendall(b"xy")
            self.assertEqual(accepted.recv(1), b"x")
            return accepted

        def byThread(listener: Any) -> Any:
            self.client(listener)
            return self.inThread(listener.accept).result(HANG_SECONDS)[0]

        def full(listener: Any) -> Any:
            def failing(skt: Any) -> Any:
                raise OSError(errno.EMFILE, "full")

            self.patch(listening, "_replaced", failing)
            self.client(listener)
            return listener.accept()[0]

        for case in (received, byThread, full):
            listener = self.server()
            accepted = case(listener)
            self.addCleanup(accepted.close)

            def use(accepted: Any = accepted) -> None:
                try:
                    accepted.send(b"x")
                except ForkedSocketError:
                    return
                raise AssertionError("it is sent")

            self.assertEqual(runForked(use), 0, case.__name__)
            self.assertIsNotNone(accepted.sdp, case.__name__)
            self.assertTrue(listener.sdp.sdpListeners, case.__name__)

    def test_why(self) -> None:
        """
        The connections that a child accepts are counted as those of a process that has forked.
        """
        listener = self.server()

        def serve() -> None:
            accepted, _ = listener.accept()
            accepted.close()
            assert [kind for _, kind, _ in outcomes] == ["forking"], outcomes

        with kernel.create_connection(listener.getsockname()):
            self.assertEqual(runForked(serve), 0)
