"""
Tests of L{twisted_ib.hca.fabric.shm.shm}: the run directory goes away (issue 16, point 18).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

from tests.hca.hcas import LISTENER, SDP, HCATestCase
from tests.support.commands import PATH, running
from tests.support.descriptors import awaitWatches
from twisted_ib.errors import RunDirectoryError, ServiceInUseError
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.shm import shm
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.host import libc, rundirectory
from twisted_ib.hca.host.rendezvous import Rendezvous

SERVICE = SDP << 16 | 7001

# Another process, which makes the directory anew and wants the port; it says what it got.
OTHER = f"""{PATH}
from twisted_ib.hca.host.rendezvous import Rendezvous
from twisted_ib.errors import ServiceInUseError
other = Rendezvous(77)
other.bind()
print("ready", flush=True)
try:
    other.publish({SERVICE}, "127.0.0.1")
    print("published", flush=True)
except ServiceInUseError:
    print("in use", flush=True)
input()
"""


class RestoringTests(HCATestCase):
    """
    A server whose run directory goes away, and a client.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        super().setUp()
        self.place = Path(os.environ["TWISTED_IB_RUN_DIR"])
        self.a, self.b = self.device(), self.device()
        self.said: list[str] = []
        self.b.warn = self.said.append  # type: ignore[method-assign]
        self.a.warn = lambda text: None  # type: ignore[method-assign]
        self.b.listen(SDP, "127.0.0.1", 7001, LISTENER)

    def look(self, *devices: Device, seconds: float = shm.LOOK_PAUSE_SECONDS) -> None:
        """
        What has happened is noticed, and the pause is over.
        """
        for device in devices or (self.a, self.b):
            device.fabric.attend()
        self.clock.advance(seconds)
        for device in devices or (self.a, self.b):
            device.tick(self.clock.seconds())

    def assertServed(self) -> None:
        """
        The client gets to the server.
        """
        self.assertEqual(self.pathTo(self.a, self.b).peer.guid, self.b.guid)
        self.assertIsNone(self.b.deadline())

    def test_deleted(self) -> None:
        """
        The entries are made anew in a directory made anew, which the log says in one line; a client follows.
        """
        group = 0xFF12 << 112
        self.b.fabric.join(group)
        shutil.rmtree(self.place)
        self.look()
        self.assertEqual(len(self.said), 1, self.said)
        self.assertIn(f"{self.place} was removed or replaced", self.said[0])
        self.assertEqual(self.b.counters["run_directory_restored"], 1)
        self.assertEqual(self.a.fabric.members(group), (self.b.guid,))
        self.assertServed()
        self.look()
        self.assertEqual(len(self.said), 1)

    def test_again(self) -> None:
        """
        Each time.
        """
        for number in range(3):
            shutil.rmtree(self.place)
            self.look()
            self.assertEqual(len(self.said), number + 1)
        self.assertServed()

    def test_strangerAtWatch(self) -> None:
        """
        Also where the program has closed what watches the directory, and has a file of its own of that
        number, which nobody else reads or closes.
        """
        watch = self.b.fabric.rendezvous.watch
        self.addCleanup(os.close, watch)
        reader, writer = os.pipe()
        os.write(writer, b"own")
        os.close(writer)
        os.dup2(reader, watch)
        os.close(reader)
        shutil.rmtree(self.place)
        self.b.listen(SDP, "127.0.0.1", 7002, LISTENER)
        self.assertEqual(len(self.said), 1, self.said)
        self.assertServed()
        self.assertEqual(os.read(watch, 8), b"own")

    def test_socketDeleted(self) -> None:
        """
        It is enough that the entry of the HCA is removed.
        """
        (self.place / f"hca-{self.b.guid:016x}").unlink()
        self.look()
        self.assertEqual(len(self.said), 1)
        self.assertServed()

    def test_moved(self) -> None:
        """
        Or that the directory has another name now, where no entry is left.
        """
        moved = self.place.with_name("moved")
        self.place.rename(moved)
        self.look()
        self.assertEqual(len(self.said), 1)
        self.assertServed()
        self.assertEqual(os.listdir(moved), ["lock"])

    def test_refused(self) -> None:
        """
        A directory that others can write to, or a symbolic link, is refused by name, in one line; when it is
        gone the entries are made anew.
        """
        for wrong in ("mode", "link"):
            shutil.rmtree(self.place)
            if wrong == "mode":
                self.place.mkdir(0o755)
            else:
                self.place.symlink_to("/")
            self.said.clear()
            self.look(self.b)
            self.look(self.b, seconds=shm.LOOK_SECONDS)
            self.assertEqual(len(self.said), 1, self.said)
            self.assertIn({"mode": "mode 0755", "link": "symbolic link"}[wrong], self.said[0])
            self.assertIn(str(self.place), self.said[0])
            self.assertRaises(RunDirectoryError, self.b.listen, SDP, "127.0.0.1", 7002, LISTENER)
            if wrong == "mode":
                self.place.rmdir()
            else:
                self.place.unlink()
            self.look(self.b, seconds=shm.LOOK_SECONDS)
            self.assertEqual(len(self.said), 2, self.said)
            self.look(self.a)
            self.assertServed()

    def test_squatted(self) -> None:
        """
        A possible directory that is not used is warned of, with the one that is (issue 16, point 21).
        """
        base = self.place.parent
        squatted = base / f"twisted_ib-{os.geteuid()}"
        squatted.symlink_to("/")
        (base / "next").mkdir()
        self.patch(rundirectory, "SESSION_BASE", str(base / "none"))
        self.patch(rundirectory, "TEMPORARY_BASES", (str(base), str(base / "next")))
        with mock.patch.dict(os.environ), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            del os.environ["TWISTED_IB_RUN_DIR"]
            Device("shm0").close()
        (text,) = [str(each.message) for each in heard]
        self.assertIn(f"{squatted} is a symbolic link; remove it", text)
        self.assertIn(f"{base}/next/twisted_ib-{os.geteuid()} is used", text)

    def test_elsewhere(self) -> None:
        """
        Where another directory takes its place the log says which was removed or refused, and which is used.
        """
        base = self.place.parent
        session, temporary = base / str(os.geteuid()), base / "next" / f"twisted_ib-{os.geteuid()}"
        session.mkdir()
        temporary.parent.mkdir()
        self.patch(rundirectory, "SESSION_BASE", str(base))
        self.patch(rundirectory, "TEMPORARY_BASES", (str(temporary.parent),))
        with mock.patch.dict(os.environ):
            del os.environ["TWISTED_IB_RUN_DIR"]
            c = self.device()
        c.warn = self.said.append  # type: ignore[method-assign]
        shutil.rmtree(session)
        self.look(c)
        anew = f"was removed or replaced, and this process has entered itself anew in {temporary}"
        self.assertEqual(self.said, [f"{session / 'twisted_ib'} {anew}"])
        session.mkdir()
        shutil.rmtree(temporary)
        self.look(c)
        shutil.rmtree(session / "twisted_ib")
        (session / "twisted_ib").mkdir(0o755)
        self.look(c)
        self.assertIn(
            f"{session / 'twisted_ib'} {anew}; {session / 'twisted_ib'} has mode 0755", self.said[2]
        )

    def test_noInotify(self) -> None:
        """
        Without a watch the directory is looked at now and then.
        """
        with mock.patch.object(libc, "inotify", side_effect=OSError(24, "no instance")):
            c = self.device()
        c.warn = self.said.append  # type: ignore[method-assign]
        c.listen(SDP, "127.0.0.1", 7003, LISTENER)
        shutil.rmtree(self.place)
        self.look(c, seconds=shm.LOOK_SECONDS)
        self.assertEqual(len(self.said), 1, self.said)

    def test_instancesHeld(self) -> None:
        """
        An HCA of a test waits for an instance of inotify that another process holds, and has no timer then.
        """
        free, errors = libc.inotify, [OSError(24, "no instance")] * 3

        def late(watches: Any) -> int:
            if errors:
                raise errors.pop()
            return free(watches)

        self.patch(libc, "inotify", late)
        awaitWatches(self)
        c = self.device()
        self.assertEqual((errors, c.deadline()), ([], None))
        self.assertGreaterEqual(c.fabric.rendezvous.watch, 0)

    def test_listensAtOnce(self) -> None:
        """
        A new listener does not wait for the look.
        """
        shutil.rmtree(self.place)
        self.b.listen(SDP, "127.0.0.1", 7002, LISTENER)
        self.assertEqual(len(self.said), 1)
        self.look(self.a)
        self.assertServed()

    def test_portKept(self) -> None:
        """
        Another process that makes the directory anew does not get a port that a living one has.
        """
        shutil.rmtree(self.place)
        child = running(self, "-c", OTHER, stdin=subprocess.PIPE)
        assert child.stdout is not None
        self.assertEqual(child.stdout.readline(), "ready\n")
        self.look()
        self.assertEqual(child.stdout.readline(), "in use\n")
        self.assertServed()

    def test_taken(self) -> None:
        """
        If one has it all the same, the log says which.
        """
        shutil.rmtree(self.place)
        other = Rendezvous(77)
        self.addCleanup(other.close)
        other.bind()
        other.publish(SERVICE, "127.0.0.1")
        self.look()
        self.assertEqual(len(self.said), 1)
        self.assertIn("a process listens on 127.0.0.1 already", self.said[0])
        self.assertRaises(ServiceInUseError, self.b.fabric.publish, SERVICE, "127.0.0.1")
