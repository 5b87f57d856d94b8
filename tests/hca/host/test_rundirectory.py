"""
Tests for L{twisted_ib.hca.host.rundirectory}.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import descriptors, descriptorsBefore, fork, runForked
from twisted_ib import limits
from twisted_ib.errors import RunDirectoryError
from twisted_ib.hca.host import libc, rundirectory
from twisted_ib.hca.host.rundirectory import RunDirectory, allowedUids, openDirectories

UID = os.geteuid() if hasattr(os, "geteuid") else 0
NOBODY = 65534


class RunDirectoryTestCase(SynchronousTestCase):
    """
    Base of tests with a directory of their own on a short path.
    """

    def setUp(self) -> None:
        """
        A directory, open for all to pass through.
        """
        if not sys.platform.startswith("linux"):
            self.skipTest("Linux only")
        self.base = tempfile.mkdtemp(prefix="tib-")
        os.chmod(self.base, 0o755)
        self.addCleanup(shutil.rmtree, self.base, ignore_errors=True)
        self.before = descriptorsBefore()

    def path(self, name: str, mode: int | None = None) -> str:
        """
        @param mode: if given the directory is made, with this mode.
        @return: a path below the test's directory.
        """
        path = os.path.join(self.base, name)
        if mode is not None:
            os.mkdir(path)
            os.chmod(path, mode)
        return path

    def open(self, environment: dict[str, str], create: bool = True) -> list[str]:
        """
        @return: the paths of the directories that will do, closed again.
        """
        found, refused = openDirectories(environment, UID, create)
        paths = [directory.path for directory in found]
        for directory in found:
            directory.close()
        self.assertEqual(descriptors(), self.before)
        if not found and refused:
            raise refused[0]
        return paths

    def chosen(self, path: str, allow: str | None = None) -> dict[str, str]:
        """
        @return: an environment that names one directory.
        """
        environment = {"TWISTED_IB_RUN_DIR": path}
        if allow is not None:
            environment["TWISTED_IB_ALLOW_UIDS"] = allow
        return environment

    def refuse(self, path: str, *reasons: str, allow: str | None = None) -> None:
        """
        Assert that a directory is refused by a sentence that names it, says
        why, and what to do.
        """
        error = self.assertRaises(RunDirectoryError, self.open, self.chosen(path, allow))
        for part in (path, *reasons):
            self.assertIn(part, str(error))
        self.assertNotIn("\n", str(error))


class ChosenDirectoryTests(RunDirectoryTestCase):
    """
    TWISTED_IB_RUN_DIR.
    """

    def test_alone(self) -> None:
        """
        It is the only one, and it is made with mode 0700 whatever the umask.
        """
        path = self.path("run")
        self.addCleanup(os.umask, os.umask(0o777))
        self.assertEqual(self.open(self.chosen(path)), [path])
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o700)
        self.assertEqual(self.open(self.chosen(path)), [path])

    def test_notMade(self) -> None:
        """
        A search makes nothing.
        """
        path = self.path("run")
        self.assertEqual(self.open(self.chosen(path), create=False), [])
        self.assertFalse(os.path.exists(path))

    def test_missingParent(self) -> None:
        """
        Only the last part of the path is made.
        """
        self.refuse(self.path("no/run"), "does not exist", "set TWISTED_IB_RUN_DIR")

    def test_relative(self) -> None:
        """
        Two processes may have different current directories.
        """
        self.refuse("run", "absolute")

    def test_empty(self) -> None:
        """
        Set to nothing is not set.
        """
        self.assertEqual(
            rundirectory.candidates({"TWISTED_IB_RUN_DIR": ""}, 5), rundirectory.candidates({}, 5)
        )

    def test_notADirectory(self) -> None:
        """
        A device, a file, a socket.
        """
        self.refuse("/dev/null", "is not a directory", "set TWISTED_IB_RUN_DIR")
        with open(self.path("file"), "w"), socket.socket(socket.AF_UNIX) as bound:
            bound.bind(self.path("socket"))
        for name in ("file", "socket"):
            self.refuse(self.path(name), "is not a directory")

    def test_unusable(self) -> None:
        """
        Whatever else the kernel says is passed on.
        """
        self.refuse("/" + "x" * 300, "cannot be used (File name too long)", "set TWISTED_IB_RUN_DIR")

    def test_symbolicLink(self) -> None:
        """
        A link to a good directory, also with a slash behind.
        """
        os.symlink(self.path("real", 0o700), self.path("link"))
        os.symlink("nowhere", self.path("dangling"))
        self.refuse(self.path("link"), "is a symbolic link")
        self.refuse(self.path("dangling"), "is a symbolic link")
        error = self.assertRaises(RunDirectoryError, self.open, self.chosen(self.path("link/")))
        self.assertIn("is a symbolic link", str(error))

    def test_modes(self) -> None:
        """
        Every bit for others, and every one of ours that is missing.
        """
        path = self.path("run", 0o700)
        for bit in range(9):
            os.chmod(path, 0o700 ^ 1 << bit)
            if UID == 0 or 1 << bit != 0o400:
                self.refuse(path, f"mode {0o700 ^ 1 << bit:04o}", "mode 0700")
        os.chmod(path, 0o777)
        self.refuse(path, "mode 0777")

    def test_shareable(self) -> None:
        """
        One that several users could share: it is said what is missing, but
        only then.
        """
        path = self.path("run", 0o1777)
        for mode in (0o1777, 0o1770):
            os.chmod(path, mode)
            self.refuse(path, f"mode {mode:04o}", "TWISTED_IB_RUN_DIR", "mode 0700", "TWISTED_IB_ALLOW_UIDS")
        os.chmod(path, 0o777)
        error = self.assertRaises(RunDirectoryError, self.open, self.chosen(path))
        self.assertNotIn("TWISTED_IB_ALLOW_UIDS", str(error))

    def test_inheritedGroup(self) -> None:
        """
        The bit for inheriting the group does not matter.
        """
        path = self.path("run", 0o700)
        os.chmod(path, 0o2700)
        self.assertEqual(self.open(self.chosen(path)), [path])

    @skipIf(UID != 0, "needs root")
    def test_owner(self) -> None:
        """
        A directory of somebody else.
        """
        path = self.path("run", 0o700)
        os.chown(path, NOBODY, NOBODY)
        self.refuse(path, f"belongs to user {NOBODY}", "not to 0")


class SharedDirectoryTests(RunDirectoryTestCase):
    """
    TWISTED_IB_ALLOW_UIDS.
    """

    def test_list(self) -> None:
        """
        Numbers with commas or spaces; anything else is refused by name.
        """
        for text, uids in (("", set()), ("5", {5}), ("5,6", {5, 6}), (" 5, 6  7,", {5, 6, 7})):
            self.assertEqual(allowedUids({"TWISTED_IB_ALLOW_UIDS": text}), uids)
        for text in ("x", "5;6", "-1", "1.5", "*", "\u0665"):
            error = self.assertRaises(RunDirectoryError, allowedUids, {"TWISTED_IB_ALLOW_UIDS": text})
            self.assertIn("TWISTED_IB_ALLOW_UIDS", str(error))

    def test_sticky(self) -> None:
        """
        The chosen directory may be sticky then, but not open without that.
        """
        path = self.path("run", 0o1777)
        for mode in (0o1777, 0o1770, 0o700):
            os.chmod(path, mode)
            self.assertEqual(self.open(self.chosen(path, "5")), [path])
        for mode in (0o777, 0o770, 0o755, 0o1755, 0o3777):
            os.chmod(path, mode)
            self.refuse(path, f"mode {mode:04o}", "1770 or 1777", allow="5")
        os.chmod(path, 0o1777)
        self.refuse(path, "mode 1777", allow="")

    def test_onlyTheChosen(self) -> None:
        """
        The standard directories stay ours alone.
        """
        self.patch(rundirectory, "SESSION_BASE", self.path("none"))
        self.patch(rundirectory, "TEMPORARY_BASES", (self.base,))
        self.path(f"twisted_ib-{UID}", 0o1777)
        environment = {"TWISTED_IB_ALLOW_UIDS": "5"}
        self.assertRaises(RunDirectoryError, self.open, environment)

    @skipIf(UID != 0, "needs root")
    def test_owners(self) -> None:
        """
        The sticky directory may be root's; not a third user's.
        """
        path = self.path("run", 0o1777)

        def child() -> None:
            """
            Another user opens it.
            """
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            found, _ = openDirectories(self.chosen(path, "0"), NOBODY, True)
            assert [(d.path, d.shared) for d in found] == [(path, True)]

        self.assertEqual(runForked(child), 0)
        os.chown(path, NOBODY, NOBODY)
        self.refuse(path, f"belongs to user {NOBODY}", "belong to root or to you", allow=str(NOBODY))


class StandardDirectoryTests(RunDirectoryTestCase):
    """
    Without TWISTED_IB_RUN_DIR.
    """

    def setUp(self) -> None:
        """
        Stand-ins for /run/user and /tmp.
        """
        super().setUp()
        self.patch(rundirectory, "SESSION_BASE", self.path("user", 0o755))
        self.bases = rundirectory.TEMPORARY_BASES
        self.patch(rundirectory, "TEMPORARY_BASES", (self.path("tmp", 0o1777),))
        self.session = self.path(f"user/{UID}/twisted_ib")
        self.temporary = self.path(f"tmp/twisted_ib-{UID}")

    def test_names(self) -> None:
        """
        The real ones.
        """
        self.patch(rundirectory, "SESSION_BASE", "/run/user")
        self.patch(rundirectory, "TEMPORARY_BASES", self.bases)
        names = [path for path, _ in rundirectory.candidates({}, 1000)]
        self.assertEqual(
            names,
            [
                "/run/user/1000/twisted_ib",
                "/tmp/twisted_ib-1000",
                "/var/tmp/twisted_ib-1000",
                "/dev/shm/twisted_ib-1000",
            ],
        )

    def test_noSession(self) -> None:
        """
        A service without a login session uses the second.
        """
        self.assertEqual(self.open({}), [self.temporary])
        self.assertEqual(stat.S_IMODE(os.stat(self.temporary).st_mode), 0o700)

    def test_session(self) -> None:
        """
        With a login session the first is made, and the second is not; a search
        sees both once they are there.
        """
        os.mkdir(os.path.dirname(self.session))
        self.assertEqual(self.open({}), [self.session])
        self.assertFalse(os.path.exists(self.temporary))
        os.mkdir(self.temporary, 0o700)
        self.assertEqual(self.open({}), [self.session, self.temporary])
        self.assertEqual(self.open({}, create=False), [self.session, self.temporary])

    def test_firstWillNotDo(self) -> None:
        """
        Then it is the second.
        """
        os.makedirs(self.session)
        os.chmod(self.session, 0o755)
        self.assertEqual(self.open({}), [self.temporary])

    def test_squatted(self) -> None:
        """
        Where another user has made what has our name in /tmp, the next folder has it, and the refusal is kept
        for a warning (issue 16, point 21).
        """
        next_ = self.path("next", 0o1777)
        self.patch(rundirectory, "TEMPORARY_BASES", (self.path("tmp"), next_))
        expected = [os.path.join(next_, f"twisted_ib-{UID}")]
        for squat in (lambda path: os.mkdir(path, 0o777), lambda path: os.symlink("/", path)):
            squat(self.temporary)
            if UID == 0:
                os.chown(self.temporary, NOBODY, NOBODY, follow_symlinks=False)
            self.assertEqual((self.open({}), self.open({}, create=False)), (expected, expected))
            found, refused = openDirectories({}, UID, True)
            found[0].close()
            self.assertEqual([self.temporary in str(error) for error in refused], [True])
            if os.path.islink(self.temporary):
                os.unlink(self.temporary)
            else:
                os.rmdir(self.temporary)

    def test_noneWillDo(self) -> None:
        """
        Anything of another user's in /tmp is refused by name; both reasons are given if there are two.
        """
        os.mkdir(self.temporary, 0o755)
        os.chmod(self.temporary, 0o755)
        error = self.assertRaises(RunDirectoryError, self.open, {})
        self.assertIn(self.temporary, str(error))
        os.makedirs(self.session)
        os.chmod(self.session, 0o755)
        _, refused = openDirectories({}, UID, True)
        self.assertEqual(len(refused), 2)

    def test_nothingThere(self) -> None:
        """
        A search finds none and does not complain.
        """
        self.assertEqual(openDirectories({}, UID, False), ([], []))


class OpenDirectoryTests(RunDirectoryTestCase):
    """
    L{RunDirectory}.
    """

    def setUp(self) -> None:
        """
        One that is open.
        """
        super().setUp()
        self.directory = self.again()
        self.pauses: list[float] = []

    def again(self) -> RunDirectory:
        """
        @return: the same directory, open once more.
        """
        (directory,), _ = openDirectories(self.chosen(self.path("run")), UID, True)
        self.addCleanup(directory.close)
        return directory

    def test_lock(self) -> None:
        """
        One holds the lock at a time; it comes free again.
        """
        other = self.again()
        with self.directory.locked():
            lock = other.locked(self.pauses.append)
            self.assertRaises(RunDirectoryError, lock.__enter__)
        with other.locked(self.pauses.append):
            pass

    def test_lockOverFork(self) -> None:
        """
        It comes free again also if a thread has meanwhile forked a child, which lives on.
        """
        reader, writer = os.pipe()
        self.addCleanup(os.close, writer)
        with self.directory.locked():
            child = fork(lambda: (os.close(writer), os.read(reader, 1)))
        self.addCleanup(os.waitpid, child, 0)
        self.addCleanup(os.kill, child, signal.SIGKILL)
        os.close(reader)
        with self.again().locked(self.pauses.append):
            self.assertEqual(self.pauses, [])

    def test_lockIsBounded(self) -> None:
        """
        Waiting for it ends with an error by name, and costs no descriptor.
        """
        other = self.again()
        with self.directory.locked():
            before = descriptorsBefore()
            lock = other.locked(self.pauses.append)
            error = self.assertRaises(RunDirectoryError, lock.__enter__)
            self.assertEqual(descriptors(), before)
        self.assertAlmostEqual(sum(self.pauses), rundirectory.LOCK_SECONDS)
        self.assertEqual(self.pauses[0], rundirectory.LOCK_PAUSE_SECONDS)
        self.assertEqual(max(self.pauses), rundirectory.LOCK_PAUSE_MOST_SECONDS)
        self.assertLess(len(self.pauses), 120)
        self.assertIn(f"{self.directory.path}/lock was locked", str(error))

    def test_lockIsWaitedFor(self) -> None:
        """
        A waiter gets the lock when its holder releases it.
        """
        other = self.again()
        holder = self.directory.locked()
        holder.__enter__()

        def pause(seconds: float) -> None:
            """
            Let go at the third look.
            """
            self.pauses.append(seconds)
            if len(self.pauses) == 3:
                holder.__exit__(None, None, None)

        with other.locked(pause):
            self.assertEqual(len(self.pauses), 3)

    def test_lockReplaced(self) -> None:
        """
        A lock file that was removed meanwhile is no lock.
        """
        with self.directory.locked():
            os.unlink(self.path("run/lock"))
            with self.again().locked(self.pauses.append):
                pass
        real = libc.tryLock
        removed: list[int] = []

        def tryLock(fd: int, shared: bool = False) -> bool:
            """
            Somebody removes it between opening and locking.
            """
            if not removed:
                removed.append(fd)
                os.unlink(self.path("run/lock"))
            return real(fd, shared)

        self.patch(libc, "tryLock", tryLock)
        with self.directory.locked(self.pauses.append):
            self.assertEqual(len(self.pauses), 1)
            self.assertTrue(os.path.exists(self.path("run/lock")))

    def test_lockIsNoFile(self) -> None:
        """
        A symbolic link in its place is refused by name, and so is a pipe, which does not
        hang.
        """
        os.symlink("elsewhere", self.path("run/lock"))
        error = self.assertRaises(RunDirectoryError, self.directory.locked().__enter__)
        self.assertIn("run/lock cannot be opened", str(error))
        os.unlink(self.path("run/lock"))
        os.mkfifo(self.path("run/lock"))
        error = self.assertRaises(RunDirectoryError, self.directory.locked().__enter__)
        self.assertIn("is no file of user", str(error))

    def test_gone(self) -> None:
        """
        A directory that was removed.
        """
        self.assertTrue(self.directory.isCurrent())
        os.rmdir(self.path("run"))
        self.assertFalse(self.directory.isCurrent())
        error = self.assertRaises(RunDirectoryError, self.directory.locked().__enter__)
        self.assertIn("is gone", str(error))
        os.mkdir(self.path("run"), 0o700)
        self.assertFalse(self.directory.isCurrent())

    def test_moved(self) -> None:
        """
        A link to the directory in its place is another's.
        """
        os.rename(self.path("run"), self.path("moved"))
        os.symlink("moved", self.path("run"))
        self.assertFalse(self.directory.isCurrent())

    def test_entries(self) -> None:
        """
        Names, kinds, links, removal; no link is followed.
        """
        os.symlink("/etc/passwd", self.path("run/link"))
        os.mkdir(self.path("run/folder"))
        self.assertEqual(sorted(self.directory.names()), ["folder", "link"])
        self.assertEqual(sorted(self.directory.names()), ["folder", "link"])
        self.assertEqual(self.directory.readLink("link"), "/etc/passwd")
        self.assertEqual(self.directory.readLink("folder"), None)
        self.assertEqual(self.directory.readLink("nothing"), None)
        status = self.directory.status("link")
        assert status is not None
        self.assertTrue(stat.S_ISLNK(status.st_mode))
        self.assertEqual(self.directory.status("nothing"), None)
        self.assertTrue(self.directory.remove("link"))
        self.assertTrue(self.directory.remove("link"))
        self.assertFalse(self.directory.remove("folder"))
        self.assertTrue(os.path.exists("/etc/passwd"))

    def test_tooManyEntries(self) -> None:
        """
        A directory that somebody has filled.
        """
        self.patch(limits, "RUN_DIRECTORY_ENTRIES", 10)
        for number in range(10):
            os.symlink("x", self.path(f"run/{number}"))
        self.assertEqual(len(self.directory.names()), 10)
        os.symlink("x", self.path("run/10"))
        error = self.assertRaises(RunDirectoryError, self.directory.names)
        self.assertIn("more than 10 entries", str(error))

    def test_ownLock(self) -> None:
        """
        In a shared directory each user has a lock that only he can open; one that is
        not his file is refused.
        """
        shared = RunDirectory(self.directory.path, os.dup(self.directory.fd), True)
        self.addCleanup(shared.close)
        name = self.path(f"run/lock-{os.geteuid()}")
        with shared.locked():
            status = os.lstat(name)
            self.assertEqual(stat.S_IMODE(status.st_mode), 0o600)
        self.assertFalse(os.path.exists(self.path("run/lock")))
        shared._uid += 1
        error = self.assertRaises(RunDirectoryError, shared.locked().__enter__)
        self.assertIn("is no file of user", str(error))
        shared._uid -= 1
        os.unlink(name)
        os.symlink("elsewhere", name)
        self.assertRaises(RunDirectoryError, shared.locked().__enter__)

    def test_foreignNames(self) -> None:
        """
        In a shared directory entries of users who are not let in do not count.
        """
        self.patch(limits, "RUN_DIRECTORY_ENTRIES", 1)
        shared = RunDirectory(self.directory.path, os.dup(self.directory.fd), True)
        self.addCleanup(shared.close)
        for number in range(3):
            os.symlink("x", self.path(f"run/{number}"))
        self.assertRaises(RunDirectoryError, shared.names)
        owner = os.geteuid()
        self.patch(os, "geteuid", lambda: owner + 1)
        shared._uid = owner + 1
        self.assertEqual(shared.names(), [])
        shared.allowed = frozenset([owner])
        self.assertEqual(len(shared.names()), 3)

    @skipIf(UID != 0, "root only")
    def test_quota(self) -> None:
        """
        An allowed user's entries beyond its part do not count, and do not use up that of others (issue 16,
        point 21).
        """
        self.patch(limits, "RUN_DIRECTORY_ENTRIES", 3)
        self.patch(limits, "RUN_DIRECTORY_ENTRIES_PER_USER", 2)
        shared = RunDirectory(self.directory.path, os.dup(self.directory.fd), True)
        self.addCleanup(shared.close)
        shared.allowed = frozenset([NOBODY, NOBODY - 1])
        for owner in (UID, NOBODY, NOBODY - 1):
            for number in range(3):
                name = self.path(f"run/{owner}-{number}")
                os.symlink("x", name)
                os.chown(name, owner, owner, follow_symlinks=False)
        owners = [int(name.partition("-")[0]) for name in shared.names()]
        self.assertEqual(sorted(owners), [UID] * 3 + [NOBODY - 1] * 2 + [NOBODY] * 2)

    def test_keptFromClearing(self) -> None:
        """
        The directory itself is locked as systemd-tmpfiles looks for before it
        clears old entries.
        """
        fd = os.open(self.path("run"), os.O_RDONLY)
        self.addCleanup(os.close, fd)
        self.assertFalse(libc.tryLock(fd))
        self.assertTrue(libc.tryLock(fd, shared=True))

    def test_socketPath(self) -> None:
        """
        A long path goes through the descriptor, a short one does not.
        """
        self.assertEqual(self.directory.socketPath("x"), self.path("run/x"))
        room = 107 - len(self.directory.path) - 1
        self.assertEqual(self.directory.socketPath("x" * room), self.path("run/" + "x" * room))
        name = "x" * (room + 1)
        self.assertEqual(self.directory.socketPath(name), f"/proc/self/fd/{self.directory.fd}/{name}")

    def test_longestSocketPath(self) -> None:
        """
        The bound is the kernel's own.
        """
        room = 107 - len(self.directory.path) - 1
        for length in (room, room + 1):
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(self.directory.socketPath("y" * length))
            self.assertTrue(os.path.exists(self.path("run/" + "y" * length)))
