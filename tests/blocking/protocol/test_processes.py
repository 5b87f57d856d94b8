"""
Tests for L{twisted_ib.blocking.descriptors} and L{twisted_ib.blocking.listening}: which other processes may
have a connection, or a listener.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import socket as kernel
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from subprocess import PIPE, Popen
from time import CLOCK_BOOTTIME, clock_gettime_ns
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import ref

from twisted.trial.unittest import SynchronousTestCase

from tests.blocking.case import LOOPBACK, BlockingTestCase
from tests.support.descriptors import exactly, runForked
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits, select
from twisted_ib import socket as offloading
from twisted_ib.blocking import descriptors, listening
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.drive import process as processes
from twisted_ib.switch.offload import Offload, _SwitchedAttempt
from twisted_ib.switch.reason import kept, outcomes
from twisted_ib.switch.switch import Switch

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
        self.patch(processes, "status", lambda process: self.shown(self.processes, process))
        self.patch(descriptors, "_byInode", {})
        self.patch(descriptors, "lastFork", 90 * processes.TICK)

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
        part = SimpleNamespace(inode=inode, forks=began * processes.TICK, looked=-1, kept=0, holder="")
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
            self.assertEqual(part.looked == descriptors.lastFork, not isEndless)

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
                held.append(bool(part.holder) or descriptors.lastFork not in (part.forks, part.looked))
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
            if part.looked == -1 and descriptors.lastFork == 90 * processes.TICK:
                descriptors._fork()
        self.assertNotIn(descriptors.lastFork, (part.forks, part.looked))

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
        self.assertEqual(processes.status("self")[0], str(os.getppid()))
        out, into = os.pipe()
        before = clock_gettime_ns(CLOCK_BOOTTIME)
        pid = os.fork()
        if not pid:
            os.close(into)
            os.read(out, 1)
            os._exit(0)
        parent, began = processes.status(str(pid))
        self.assertEqual(parent, str(os.getpid()))
        self.assertLessEqual(before // processes.TICK, began)
        self.assertLessEqual(began, descriptors.lastFork // processes.TICK)
        os.close(into)
        os.close(out)
        os.waitpid(pid, 0)
        with self.assertRaises(FileNotFoundError):
            processes.status(str(pid))

    def test_forks(self) -> None:
        """
        Each step of a fork has a time of its own.
        """
        self.patch(descriptors, "clock_gettime_ns", lambda _: 5)
        self.patch(descriptors, "lastFork", 5)
        for expected in (6, 7):
            descriptors._fork()
            self.assertEqual(descriptors.lastFork, expected)


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

    def test_acceptsBeside(self) -> None:
        """
        A child whose parent accepts, too, waits for its client, although the descriptor, which both have,
        does not block for a moment.
        """
        listener = self.server()
        listener.settimeout(None)
        (goes, go), (reports, report) = os.pipe(), os.pipe()
        child = os.fork()
        if not child:
            os.sched_yield = lambda: os.write(report, b"amid")  # type: ignore[assignment]
            try:
                os.read(goes, 1)
                listener.accept()[0].sendall(b"child")
                os._exit(0)
            except BaseException as error:
                os.write(report, repr(error).encode())
            os._exit(1)
        os.close(report)
        said: list[bytes] = []

        class Slow(_socket.socket):
            def _accept(self) -> Any:
                accepted = super()._accept()  # type: ignore[misc]
                os.write(go, b"g")
                said.append(os.read(reports, 4))
                return accepted

        clients = [self.client(listener, kernel)]
        with mock.patch.object(listening, "_socket", SimpleNamespace(socket=Slow)):
            listener.accept()[0].close()
        clients.append(self.client(listener, kernel))
        self.assertEqual((said, exactly(clients[1], 5)), ([b"amid"], b"child"))
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        for each in goes, go, reports:
            os.close(each)

    def test_acceptsBesideKilled(self) -> None:
        """
        So it does where that moment never ends; and it does not wait where it has said so, or has a limit.
        """
        listener = self.server()
        listener.settimeout(None)

        def accepts() -> None:
            moments = listening._inherited[listener]
            os.set_blocking(listener.fileno(), False)
            self.assertRaises(BlockingIOError, listener.accept)
            moments[0] += 1
            looks: list[None] = []
            clients: list[kernel.socket] = []

            def look() -> None:
                looks.append(None)
                if len(looks) == listening._LOOKS:
                    clients.append(kernel.create_connection(listener.getsockname(), HANG_SECONDS))

            self.patch(os, "sched_yield", look)
            listener.accept()[0].close()
            clients[0].close()
            self.assertEqual(len(looks), listening._LOOKS)
            os.set_blocking(listener.fileno(), True)
            listener.setsockopt(kernel.SOL_SOCKET, kernel.SO_RCVTIMEO, struct.pack("ll", 0, 1000))
            self.assertRaises(BlockingIOError, listener.accept)

        self.assertEqual(runForked(accepts), 0)

    def test_withdrawnAlone(self) -> None:
        """
        A listener whose device has gone before the fork is not on one that comes after it, either, before a
        thread waits for a client.
        """
        listener = self.server()
        part = listener.sdp
        part.deviceGoing("shm0")
        runForked(lambda: None)
        part.deviceAdded("shm0")
        self.assertEqual((part.sdpListeners, part.why.fallback), ((), None))
        accepted = self.inThread(lambda skt: skt.accept()[0], listener)
        waitUntil(lambda: part.sdpListeners)
        self.assertEqual((part.why.provider, part.why.fallback), ("both", None))
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

    def unanswered(self) -> tuple[Any, list[bool]]:
        """
        @return: A listener that offers SDP no more once somebody dials; and what each look finds.
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
        # However late its second look is.
        self.patch(Switch, "seconds", lambda *_: HANG_SECONDS / 3)
        return listener, looks

    def test_unanswered(self) -> None:
        """
        A client that dials while the process forks goes over TCP once it has seen twice that SDP is offered
        no more, and does not wait for its timeout.
        """
        listener, looks = self.unanswered()
        client = self.client(listener)
        # Others may have come before.
        self.assertEqual((client.sdp, looks[-2:], looks.count(False)), (None, [False] * 2, 2))
        self.assertEqual(kept[client].fallback.kind, "refused")  # type: ignore[union-attr]

    def test_unansweredAtOnce(self) -> None:
        """
        So does one that does not block, whoever waits for it; and no delayed call of the reactor's is left,
        which would wake it up.
        """
        for wait in self.polled, self.selected:
            listener, looks = self.unanswered()
            client = offloading.socket()
            self.addCleanup(client.close)
            client.setblocking(False)
            self.assertEqual(client.connect_ex(listener.getsockname()), errno.EINPROGRESS)
            wait(client)
            self.assertEqual(client.getsockopt(kernel.SOL_SOCKET, kernel.SO_ERROR), 0)
            self.assertEqual((client.sdp, looks[-2:], looks.count(False)), (None, [False] * 2, 2))
            self.assertEqual(kept[client].fallback.kind, "refused")  # type: ignore[union-attr]
            self.assertEqual(self.loop.reactor.getDelayedCalls(), [])

    def test_unansweredThenClosed(self) -> None:
        """
        Such a client, once it is closed, or detached amid the attempt and closed, says nothing of the next
        file of its number, however long it is kept: C{epoll} still has that file when the client is gone.
        """
        for isDetached in (False, True):
            listener, _ = self.unanswered()
            client = offloading.socket()
            client.setblocking(False)
            self.assertEqual(client.connect_ex(listener.getsockname()), errno.EINPROGRESS)
            number = client.fileno()
            self.assertIn(number, descriptors.held)
            if isDetached:
                os.close(client.detach())
            else:
                self.polled(client)
                client.close()
            with self.numbered(number) as skt, select.epoll() as epoll:
                epoll.register(skt, select.EPOLLOUT)
                self.assertEqual(epoll.poll(0), [(number, select.EPOLLOUT)])
                kept.pop(client, None)
                gone = ref(client)
                del client
                gc.collect()
                self.assertIsNone(gone())
                self.assertEqual(epoll.poll(0), [(number, select.EPOLLOUT)])
                epoll.unregister(skt)

    def test_unansweredAmidEpoll(self) -> None:
        """
        An C{epoll} object that waits for such a client has the kernel's events of it from then on.
        """
        listener, _ = self.unanswered()
        client = offloading.socket()
        self.addCleanup(client.close)
        client.setblocking(False)
        with select.epoll() as epoll:
            self.assertEqual(client.connect_ex(listener.getsockname()), errno.EINPROGRESS)
            epoll.register(client, select.EPOLLOUT | select.EPOLLONESHOT)
            found = [(client.fileno(), select.EPOLLOUT)]
            self.assertEqual(epoll.poll(HANG_SECONDS), found)
            self.assertEqual(epoll.poll(0), [])
            self.assertNotIn(client.fileno(), descriptors.held)
            epoll.modify(client, select.EPOLLIN | select.EPOLLOUT)
            self.assertEqual(epoll.poll(0), found)
            epoll.unregister(client)
            self.assertEqual(epoll.poll(0), [])

    def test_unansweredStale(self) -> None:
        """
        An C{epoll} object that had an earlier file of the number, which was closed, has no events of such a
        client.
        """
        listener, _ = self.unanswered()
        with select.epoll() as epoll:
            earlier, other = kernel.socketpair()
            self.addCleanup(other.close)
            number = earlier.fileno()
            epoll.register(earlier, select.EPOLLOUT)
            earlier.close()
            client = offloading.socket()
            self.addCleanup(client.close)
            self.assertEqual(client.fileno(), number)
            client.setblocking(False)
            self.assertEqual(client.connect_ex(listener.getsockname()), errno.EINPROGRESS)
            self.polled(client)
            self.assertEqual(epoll.poll(0), [])

    @contextmanager
    def numbered(self, number: int) -> Iterator[kernel.socket]:
        """
        Have a connected socket of the kernel's that has a number, which is free.
        """
        found = []
        with ExitStack() as stack:
            while not found:
                # Each has the least that is free.
                pair = [stack.enter_context(each) for each in kernel.socketpair()]
                found = [each for each in pair if each.fileno() == number]
            yield found[0]

    def polled(self, client: Any) -> None:
        """
        Wait by C{poll} until it is connected.
        """
        poller = select.poll()
        poller.register(client, select.POLLOUT)
        self.assertEqual(poller.poll(HANG_SECONDS * 1000), [(client.fileno(), select.POLLOUT)])

    def selected(self, client: Any) -> None:
        """
        Wait by C{select} until it is connected.
        """
        self.assertEqual(select.select([], [client], [], HANG_SECONDS), ([], [client], []))

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
