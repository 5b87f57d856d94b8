"""
Tests for L{twisted_ib.hca.host.libc}, such as descriptors of inotify that are used again, and for
L{twisted_ib.hca.host.processmemory}.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import skipUnless

from twisted.trial.unittest import SynchronousTestCase

from tests.support.descriptors import descriptors, descriptorsBefore, isOpen, runForked
from twisted_ib import limits
from twisted_ib.drive.sleeper import awaitReady
from twisted_ib.hca.host import libc, processmemory


@skipUnless(sys.platform == "linux", "Linux only")
class ReadProcessTests(SynchronousTestCase):
    """
    Memory of processes.
    """

    def test_copied(self) -> None:
        """
        As many bytes are copied as fit, from where they are.
        """
        there, into = ctypes.create_string_buffer(b"0123456789"), bytearray(b"-" * 6)
        address = ctypes.addressof(there) + 2
        self.assertEqual(processmemory.readProcess(os.getpid(), address, memoryview(into)[1:5]), 4)
        self.assertEqual(into, b"-2345-")

    def test_refused(self) -> None:
        """
        Memory that is not there, of a process that is none, is an error.
        """
        into = memoryview(bytearray(4))
        self.assertRaises(OSError, processmemory.readProcess, os.getpid(), 0, into)
        # Linux include/linux/threads.h, PID_MAX_LIMIT: there is none of this number.
        self.assertRaises(ProcessLookupError, processmemory.readProcess, 1 << 23, 1, into)

    def test_lacking(self) -> None:
        """
        A Python without ctypes has no such call.
        """
        self.patch(processmemory, "ctypes", None)
        self.assertRaises(OSError, processmemory.readProcess, os.getpid(), 1, memoryview(bytearray(4)))

    def test_yama(self) -> None:
        """
        Yama's scopes that refuse each process, or each without a capability, are not tried, as a try is a
        line in the kernel's log; with the others the kernel is asked.
        """
        scope, status = self.mktemp(), self.mktemp()
        self.patch(processmemory, "_PTRACE_SCOPE", scope)
        self.patch(processmemory, "_STATUS", status)
        self.assertTrue(processmemory.OtherProcess.isPossible())
        for capabilities, possible in (0, "01"), (1 << 19, "012"), ((1 << 19) - 1, "01"):
            Path(status).write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\nSeccomp:\t0\n")
            for number in "0123":
                Path(scope).write_text(f"{number}\n")
                self.assertEqual(processmemory.OtherProcess.isPossible(), number in possible)
        # Nobody can tell: nothing is tried, and nobody fails.
        Path(scope).write_text("2\n")
        Path(status).unlink()
        self.assertFalse(processmemory.OtherProcess.isPossible())


@skipUnless(sys.platform == "linux", "Linux only")
class AlarmTests(SynchronousTestCase):
    """
    L{libc.Alarm}.
    """

    def test_set(self) -> None:
        """
        It is readable from its time on, and not any more when another one is chosen; closed, it says so.
        """
        alarm = libc.Alarm()
        poller = select.poll()
        poller.register(alarm.descriptor, select.POLLIN)
        try:
            for _ in range(2):
                self.assertTrue(alarm.set(1e-9))
                self.assertTrue(poller.poll(10000))
                self.assertTrue(alarm.set(3600.0))
                self.assertEqual(poller.poll(0), [])
                self.assertTrue(alarm.set(0.0))
            self.assertEqual(poller.poll(0), [])
        finally:
            os.close(alarm.descriptor)
        self.assertFalse(alarm.set(1.0))

    def test_stranger(self) -> None:
        """
        A program closes the descriptor, and makes a timer that has its number: that goes on as it was.
        """
        alarm, stranger = libc.Alarm(), libc.Alarm()
        library, value = ctypes.CDLL(None), (ctypes.c_long * 4)(0, 0, 3600, 5)
        library.timerfd_settime(stranger.descriptor, 0, value, None)
        os.dup2(stranger.descriptor, alarm.descriptor)
        try:
            self.assertFalse(alarm.set(0.0))
            self.assertFalse(alarm.set(1.0))
            library.timerfd_gettime(stranger.descriptor, value)
            interval, left = value[:2], value[2]
            self.assertEqual(interval, [0, 0])
            self.assertGreater(left, 3000)
        finally:
            os.close(alarm.descriptor)
            os.close(stranger.descriptor)

    def test_refused(self) -> None:
        """
        Without a free descriptor, and without C{ctypes}, there is none.
        """
        kept = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, kept[1]))
        try:
            self.assertRaises(OSError, libc.Alarm)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, kept)
        self.patch(libc, "ctypes", None)
        self.assertRaises(OSError, libc.Alarm)


@skipUnless(os.path.isdir("/proc/self/fd"), "Linux only")
class WatchTests(SynchronousTestCase):
    """
    Descriptors of inotify.
    """

    def setUp(self) -> None:
        """
        Make two files.
        """
        self.paths = [Path(self.mktemp()).resolve() for _ in range(2)]
        for each in self.paths:
            each.touch()

    def watch(self, path: Path) -> int:
        """
        @return: a descriptor that is readable once the file's mode has changed.
        """
        fd = libc.inotify([(str(path), libc.IN_ATTRIB)])
        self.assertFalse(awaitReady(fd, 0))
        return fd

    def test_usedAgain(self) -> None:
        """
        One that is used again has neither the watches of its last use nor what they have seen; a watch may
        have ended with its file.
        """
        old, new = self.paths
        first = self.watch(old)
        old.chmod(0o600)
        libc.endInotify(first)
        second = self.watch(new)
        self.assertEqual(second, first)
        old.chmod(0o640)
        self.assertFalse(awaitReady(second, 0))
        new.unlink()
        self.assertTrue(awaitReady(second, 0))
        libc.endInotify(second)
        third = self.watch(old)
        self.addCleanup(libc.endInotify, third)
        self.assertEqual(third, first)

    def test_stranger(self) -> None:
        """
        A program closes one, and has another file of its number: that is not read, nor closed, nor watches
        anything later.
        """
        fd = self.watch(self.paths[0])
        reader, writer = os.pipe()
        os.write(writer, b"own")
        os.close(writer)
        os.dup2(reader, fd)
        os.close(reader)
        for _ in range(2):
            libc.endInotify(fd)
        self.assertNotIn(fd, libc._spare)
        self.assertEqual(os.read(fd, 8), b"own")
        os.close(fd)
        # Nor is the number of none an error.
        libc.endInotify(fd)

    def test_bound(self) -> None:
        """
        So many are kept, and the others closed.
        """
        before = descriptorsBefore()
        made = [self.watch(self.paths[0]) for _ in range(limits.SPARE_WATCHES + 1)]
        for each in made:
            libc.endInotify(each)
        self.assertEqual(len(libc._spare), limits.SPARE_WATCHES)
        self.assertEqual([isOpen(each) for each in made], [True] * limits.SPARE_WATCHES + [False])
        self.assertEqual(descriptors(), before)

    def test_missing(self) -> None:
        """
        A file that is not there is an error by the kernel's word, and nothing stays open.
        """
        before = descriptorsBefore()
        watches = [(str(self.paths[0]), libc.IN_ATTRIB), ("/nowhere", libc.IN_ATTRIB)]
        error = self.assertRaises(FileNotFoundError, libc.inotify, watches)
        self.assertEqual(error.strerror, "inotify: No such file or directory")
        self.assertEqual(descriptors(), before)

    def test_forked(self) -> None:
        """
        A child that ends what its parent watches does not end its watches, and keeps none of its descriptors.
        """
        fd, spare = self.watch(self.paths[0]), self.watch(self.paths[0])
        self.addCleanup(libc.endInotify, fd)
        libc.endInotify(spare)

        def child() -> None:
            assert not isOpen(spare) and not libc._spare
            libc.endInotify(fd)
            assert not isOpen(fd) and not libc._spare

        self.assertEqual(runForked(child), 0)
        self.paths[0].chmod(0o600)
        self.assertTrue(awaitReady(fd, 0))


__all__ = ["WatchTests"]


class NumberTests(SynchronousTestCase):
    """
    The numbers of system calls, for a Python that has no function for them.
    """

    def test_made(self) -> None:
        """
        Each makes what it is called.
        """
        numbers = libc._SYSTEM_CALLS[os.uname().machine]
        for name, arguments, made in (
            ("memfd_create", (b"x", 0), "/memfd:x (deleted)"),
            ("eventfd", (0, 0), "anon_inode:[eventfd]"),
            ("pidfd_open", (os.getpid(), 0), "pidfd"),
        ):
            descriptor = ctypes.CDLL(None).syscall(numbers[name], *arguments)
            self.assertGreaterEqual(descriptor, 0, name)
            self.addCleanup(os.close, descriptor)
            self.assertIn(made, os.readlink(f"/proc/self/fd/{descriptor}"))

    def test_generic(self) -> None:
        """
        Those of machines that have Linux's generic table (include/uapi/asm-generic/unistd.h).
        """
        self.assertEqual(
            libc._SYSTEM_CALLS["aarch64"], {"memfd_create": 279, "eventfd": 19, "pidfd_open": 434}
        )

    def without(self, *names: str) -> None:
        """
        Have a Python that lacks some functions.
        """
        for name in names:
            self.addCleanup(setattr, os, name, getattr(os, name))
            delattr(os, name)

    def test_used(self) -> None:
        """
        With Python's functions and without them: descriptors are closed on exec, an event counter does not
        block, a memory file can be sealed, and an error is the kernel's.
        """
        self.made()
        self.without("memfd_create", "eventfd", "pidfd_open")
        self.made()
        error = self.assertRaises(OSError, libc.pidfdOpen, 1 << 22)
        self.assertEqual((error.errno, error.strerror), (3, "pidfd_open: No such process"))

    def made(self) -> None:
        """
        Make one of each.
        """
        made = [libc.memfdCreate("x"), libc.eventfd(), libc.pidfdOpen(os.getpid())]
        for fd, name in zip(made, ("/memfd:x (deleted)", "anon_inode:[eventfd]", "pidfd"), strict=True):
            self.addCleanup(os.close, fd)
            self.assertIn(name, os.readlink(f"/proc/self/fd/{fd}"))
            self.assertFalse(os.get_inheritable(fd))
        libc.addSeals(made[0], libc.F_SEAL_SHRINK)
        self.assertEqual(libc.getSeals(made[0]), libc.F_SEAL_SHRINK)
        self.assertRaises(BlockingIOError, os.read, made[1], 8)
        libc._write(made[1], 0x0102)
        self.assertEqual(int.from_bytes(os.read(made[1], 8), sys.byteorder), 0x0102)

    def test_noWay(self) -> None:
        """
        Where the kernel cannot be called it is ENOSYS, by the call's name.
        """
        for place, name, value in (
            (os, "uname", lambda: SimpleNamespace(machine="riscv64")),
            (libc, "ctypes", None),
            (sys, "platform", "sunos5"),
        ):
            kept = getattr(place, name)
            self.patch(place, name, value)
            error = self.assertRaises(OSError, libc._systemCall, "eventfd", 0, 0)
            self.assertEqual((error.errno, "eventfd" in str(error)), (38, True))
            if place is not os:
                error = self.assertRaises(OSError, libc.inotify, [("/", libc.IN_ATTRIB)])
                self.assertEqual((error.errno, "inotify" in str(error)), (38, True))
            self.patch(place, name, kept)


class ImmortalTests(SynchronousTestCase):
    """
    What Python must never free.
    """

    def test_kept(self) -> None:
        """
        It has one reference more than anybody knows of.
        """
        thing = object()
        before = sys.getrefcount(thing)
        libc.immortal(thing)
        self.assertEqual(sys.getrefcount(thing), before + 1)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))


class AvailableTests(SynchronousTestCase):
    """
    What a machine lacks for rings in shared memory.
    """

    def missing(self, size: int = 4096) -> tuple[str, ...]:
        """
        @return: the clauses, asked for anew.
        """
        return libc.available.__wrapped__(size)

    def test_machine(self) -> None:
        """
        Linux, an x86-64 processor and a 64-bit Python are needed.
        """
        self.patch(libc, "_probe", lambda: None)
        self.patch(os, "uname", lambda: SimpleNamespace(machine="x86_64"))
        self.patch(sys, "maxsize", 1 << 32)
        self.assertEqual(self.missing(), ())
        self.patch(sys, "maxsize", (1 << 31) - 1)
        self.assertEqual(self.missing(), ("a 64-bit Python",))
        self.patch(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
        self.assertEqual(self.missing(), ("an x86-64 processor", "a 64-bit Python"))
        self.patch(sys, "platform", "sunos5")
        self.assertEqual(self.missing(), ("Linux (memory files and eventfd)",))

    def test_files(self) -> None:
        """
        The first limit of a file's size, which counts now, has to allow the segment; calls have to work.
        """
        self.patch(libc, "_probe", lambda: None)
        self.patch(os, "uname", lambda: SimpleNamespace(machine="x86_64"))
        for soft, size, missing in (
            (resource.RLIM_INFINITY, 1 << 40, ()),
            (4096, 4096, ()),
            (4096, 4097, ("files of 4097 bytes (ulimit -f)",)),
        ):
            self.patch(resource, "getrlimit", lambda _, soft=soft: (soft, resource.RLIM_INFINITY))
            self.assertEqual(self.missing(size), missing)

        def broken() -> None:
            raise OSError("no seals")

        self.patch(libc, "_probe", broken)
        self.assertEqual(self.missing(), ("sealed memory files and eventfd (no seals)",))
