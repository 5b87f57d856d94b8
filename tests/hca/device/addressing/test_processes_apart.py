"""
Queue pairs of two processes that connect by GID, and processes that claim another's GUID.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any
from unittest import SkipTest, mock, skipIf

from tests.contracts.pathresolution import HIGH, LOW, OK, PathResolutionSide
from tests.hca.hcas import FabricFactory, HCATestCase, User, turn
from tests.hca.queues.keyed_pair import DeviceSide, piece
from tests.support.descriptors import fork
from tests.support.waiting import HANG_SECONDS
from twisted_ib.errors import SharedGIDError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import entries, libc
from twisted_ib.hca.host.entries import LOOPBACK_ENTRIES
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire.grh import loopbackGID

MISSING = libc.available()
NOBODY = 65534


class ProcessesTestCase(HCATestCase):
    """
    HCAs of several processes, on the clock of the host.
    """

    fabric: FabricFactory = SharedMemoryFabric

    def setUp(self) -> None:
        """
        There are no children.
        """
        super().setUp()
        self.children: set[int] = set()

    def open(self, guid: int) -> Device:
        """
        @return: an HCA with a GUID.
        """
        drawn = [guid]
        device = Device(
            "test",
            time.monotonic,
            type(self).fabric,
            lambda bits: drawn.pop() if drawn else secrets.randbits(bits),
        )
        self.addCleanup(device.close)
        return device

    def child(self, run: Callable[[int, int], object]) -> tuple[int, int, int]:
        """
        Run something in a process, killed after the test.

        @param run: called with a pipe from us and a pipe to us.

        @return: its number, a pipe to it, a pipe from it.
        """
        (asked, ask), (hear, told) = os.pipe(), os.pipe()
        pid = fork(lambda: run(asked, told))
        os.close(asked)
        os.close(told)
        self.addCleanup(os.close, ask)
        self.addCleanup(os.close, hear)
        self.children.add(pid)
        self.addCleanup(self.end, pid)
        return pid, ask, hear

    def end(self, pid: int) -> None:
        """
        End a child.  Harmless when repeated.
        """
        if pid in self.children:
            self.children.remove(pid)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def share(self) -> None:
        """
        Let another user in.
        """
        if os.getuid():
            raise SkipTest("only root can be another user")
        directory = os.environ["TWISTED_IB_RUN_DIR"]
        os.chmod(os.path.dirname(directory), 0o755)
        os.mkdir(directory)
        os.chmod(directory, 0o1777)
        users = mock.patch.dict(os.environ, TWISTED_IB_ALLOW_UIDS=f"0,{NOBODY}")
        users.start()
        self.addCleanup(users.stop)


def become(uid: int) -> None:
    """
    Be another user, in this process.
    """
    if uid != os.getuid():
        os.setgid(uid)
        os.setuid(uid)


def serve(device: Device, done: Callable[[], object], seconds: float = HANG_SECONDS) -> None:
    """
    Drive a device until something is done.
    """
    end = time.monotonic() + seconds
    while not done():
        if not turn(device):
            time.sleep(0.001)
        now = time.monotonic()
        when = device.deadline()
        if when is not None and when <= now:
            device.tick(now)
        if now > end:
            raise AssertionError("nothing happens")


def exchange(side: Any) -> bytes:
    """
    Send a message, which must be repeated if the peer has no receive yet; get one, in
    C{side.box}.
    """
    side.send(1, SendOpcode.SEND, piece(side.register(b"from %d" % os.getpid())))
    statuses: list[Any] = []
    received: list[Any] = []
    serve(side.device, lambda: statuses.extend(side.statuses()) or statuses)
    assert statuses == [(1, OK)], statuses
    serve(side.device, lambda: received.extend(side.received()) or received)
    return bytes(side.box.view[: received[0].byteLength])


class MeetingTests(ProcessesTestCase):
    """
    Two processes.
    """

    def resolvePath(self, guids: tuple[int, int], childFirst: bool, uid: int = os.getuid()) -> None:
        """
        They meet, one of them later.

        @param uid: the other's user.
        """

        def run(asked: int, told: int) -> None:
            """
            The other process.
            """
            become(uid)
            device = self.open(guids[1])
            side: Any = PathResolutionSide(device, guids[0])
            os.write(told, b"%d" % side.qp.number)
            number = int(os.read(asked, 100))
            if not childFirst:
                serve(device, partial(self.passed, time.monotonic() + 0.3))
            side.to(QPState.RTS, number, timeout=18)
            serve(device, partial(self.passed, time.monotonic() + 0.1))
            side.box = side.inbox(5)
            os.write(told, exchange(side))
            serve(device, lambda: not device.fabric.paths())

        pid, ask, hear = self.child(run)
        number = int(os.read(hear, 100))
        device = self.open(guids[0])
        side: Any = PathResolutionSide(device, guids[1])
        os.write(ask, b"%d" % side.qp.number)
        if childFirst:
            serve(device, partial(self.passed, time.monotonic() + 0.3))
        side.to(QPState.RTS, number, timeout=18)
        side.box = side.inbox(5)
        self.assertEqual(exchange(side), b"from %d" % pid)
        heard = b""
        os.set_blocking(hear, False)

        def answered() -> bool:
            """
            Whether the other has got ours.
            """
            nonlocal heard
            try:
                heard += os.read(hear, 100)
            except BlockingIOError:
                pass
            return bool(heard)

        serve(device, answered)
        self.assertEqual(heard, b"from %d" % os.getpid())
        self.assertEqual((side.qp.path.peer.pid, side.qp.path.peer.uid), (pid, uid))
        self.assertIs(side.qp.path.peerSocket.server, guids[0] == HIGH)
        device.close()
        self.end(pid)

    def passed(self, when: float) -> bool:
        """
        Whether it is later than that.
        """
        return time.monotonic() > when

    @skipIf(bool(MISSING), f"missing: {MISSING}")
    def test_rings(self) -> None:
        """
        Either process may have the lower GUID, and either may be first.
        """
        for guids in permutations((LOW, HIGH)):
            for childFirst in (False, True):
                self.resolvePath((guids[0], guids[1]), childFirst)

    def test_sockets(self) -> None:
        """
        The same over sockets.
        """
        self.patch(type(self), "fabric", partial(SharedMemoryFabric, rings=False))
        for guids in permutations((LOW, HIGH)):
            self.resolvePath((guids[0], guids[1]), True)

    def test_users(self) -> None:
        """
        The same between two users.
        """
        self.share()
        for guids in permutations((LOW, HIGH)):
            self.resolvePath((guids[0], guids[1]), True, NOBODY)


class ForgeryTests(ProcessesTestCase):
    """
    A process that claims another's GUID, the lower one, so that its call is waited for.
    """

    def lie(self, uid: int, number: int, asked: int, told: int) -> None:
        """
        Call the HCA L{HIGH} as L{LOW}, and post to its queue pair.
        """
        become(uid)
        device = self.open(0x7771)
        device.fabric.guid = LOW
        user = User()
        device.fabric.reach(HIGH, user)
        serve(device, lambda: user.path)
        side: Any = DeviceSide(device, user.path)
        side.to(QPState.RTS, number)
        side.send(1, SendOpcode.SEND, piece(side.register(b"I am another")))
        os.write(told, b"called")
        serve(device, lambda: False)

    def forged(self, uid: int, victimFirst: bool) -> None:
        """
        The queue pair connects to the real HCA only, which starts before or after the other.
        """
        b = self.open(HIGH)
        two: Any = PathResolutionSide(b, LOW)
        two.to(QPState.RTS, 0x1234)
        two.box = two.inbox(5)

        def victim(asked: int, told: int) -> None:
            """
            The real one.
            """
            device = self.open(LOW)
            os.write(told, b"open")
            os.read(asked, 100)
            side: Any = PathResolutionSide(device, HIGH)
            del device.queuePairs[side.qp.number]
            side.qp.number = 0x1234
            device.queuePairs[0x1234] = side.qp
            side.to(QPState.RTS, two.qp.number, timeout=18)
            side.box = side.inbox(5)
            exchange(side)
            serve(device, lambda: False)

        def start() -> tuple[int, int]:
            """
            Open the real one.
            """
            pid, ask, hear = self.child(victim)
            self.assertEqual(os.read(hear, 100), b"open")
            return pid, ask

        pid, ask = start() if victimFirst else (0, 0)
        liar, _, _ = self.child(partial(self.lie, uid, two.qp.number))
        serve(b, lambda: b.counters["callers_unproven"])
        (path,) = b.fabric.paths()
        self.assertEqual((path.peer.guid, path.peer.pid, path.peer.uid), (LOW, liar, uid))
        self.assertIs(b.fabric.proves(path, LOW), False)
        serve(b, lambda: b.counters["absent_queue_pair"])
        self.assertIsNone(two.qp.path)
        if not victimFirst:
            pid, ask = start()
        os.write(ask, b"go")
        serve(b, lambda: two.qp.path)
        self.assertEqual(two.qp.path.peer.pid, pid)
        self.assertEqual(exchange(two), b"from %d" % pid)
        self.assertEqual((two.received(), b.counters["callers_unproven"]), ([], 1))

    def test_sameUser(self) -> None:
        """
        A process of the same user, while the real one is there.
        """
        self.forged(os.getuid(), True)

    def test_sameUserEarly(self) -> None:
        """
        The same while no HCA has that GUID yet.
        """
        self.forged(os.getuid(), False)

    def test_allowedUser(self) -> None:
        """
        A process of a user who is allowed, while the real one is there.
        """
        self.share()
        self.forged(NOBODY, True)

    def test_allowedUserEarly(self) -> None:
        """
        The same while no HCA has that GUID yet.
        """
        self.share()
        self.forged(NOBODY, False)


class LoopbackAddressTests(ProcessesTestCase):
    """
    HCAs whose GUIDs make one loopback address.
    """

    chosen = HIGH ^ 1 << 40

    def check(self, device: Device) -> int:
        """
        @return: the GUID that a device finds.
        """
        return device.paths.check(loopbackGID(HIGH))

    def socket(self, guid: int) -> str:
        """
        @return: the path of the entry of an HCA.
        """
        return os.path.join(os.environ["TWISTED_IB_RUN_DIR"], f"hca-{guid:016x}")

    def bind(self, guid: int) -> None:
        """
        Leave an entry, as a process that was killed does.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
            bound.bind(self.socket(guid))

    def test_otherUser(self) -> None:
        """
        The HCA of another user who is allowed hides none of ours; nor is it taken for one of ours that has
        died.
        """
        self.share()
        device, victim, stranger = [self.open(guid) for guid in (LOW, HIGH, self.chosen)]
        self.assertRaises(SharedGIDError, self.check, device)
        os.chown(self.socket(self.chosen), NOBODY, NOBODY)
        self.assertEqual(self.check(device), HIGH)
        victim.close()
        self.bind(HIGH)
        self.assertEqual(self.check(device), HIGH)
        os.unlink(self.socket(HIGH))
        self.assertEqual(self.check(device), self.chosen)
        stranger.close()

    def test_otherUsers(self) -> None:
        """
        Of two HCAs of others neither is taken, and one that has died hides none.
        """
        self.share()
        device, *others = [self.open(guid) for guid in (LOW, HIGH, self.chosen)]
        for other in others:
            os.chown(self.socket(other.guid), NOBODY, NOBODY)
        self.assertRaises(SharedGIDError, self.check, device)
        others[1].close()
        self.bind(self.chosen)
        os.chown(self.socket(self.chosen), NOBODY, NOBODY)
        self.assertEqual(self.check(device), HIGH)

    def test_dead(self) -> None:
        """
        The entries of processes that were killed hide none; only L{LOOPBACK_ENTRIES} are asked.
        """
        device = self.open(LOW)
        self.open(HIGH)
        for number in range(1, LOOPBACK_ENTRIES):
            self.bind(HIGH ^ number << 40)
        self.assertEqual(self.check(device), HIGH)
        self.bind(HIGH ^ LOOPBACK_ENTRIES << 40)
        with mock.patch.object(entries, "isServed", self.fail):
            self.assertRaises(SharedGIDError, self.check, device)
