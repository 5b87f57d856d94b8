"""
Tests for L{twisted_ib.hca.fabric.shm.segment}, L{twisted_ib.hca.host.libc} and
L{tests.support.counting}.
"""

from __future__ import annotations

import gc
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace
from unittest import skipIf

from twisted.trial.unittest import SynchronousTestCase

from tests.support.counting import CountingSegment, Stores
from tests.support.descriptors import descriptors, descriptorsBefore, runForked
from tests.support.waiting import HANG_SECONDS
from twisted_ib.errors import HandshakeError, SegmentError
from twisted_ib.hca.fabric.shm.segment import SEALS, Segment
from twisted_ib.hca.host import libc

SIZE = 3 * mmap.PAGESIZE

MISSING = libc.available()


@skipIf(bool(MISSING), f"missing: {MISSING}")
class SegmentTests(SynchronousTestCase):
    """
    Memory that we write and a peer reads.
    """

    def setUp(self) -> None:
        """
        A segment, and its reader's side.
        """
        self.before = descriptorsBefore()
        self.ours = Segment.create(SIZE)
        self.theirs = Segment.attach(os.dup(self.ours.fd), SIZE)

    def tearDown(self) -> None:
        """
        Nothing is left open.
        """
        self.ours.close()
        self.theirs.close()
        self.assertEqual(descriptors(), self.before)

    def test_shared(self) -> None:
        """
        Bytes and cells that one side stores the other side loads.
        """
        self.ours.map[100:103] = b"abc"
        self.ours.cells[2] = 1 << 63
        self.assertEqual(self.theirs.map[100:103], b"abc")
        self.assertEqual(self.theirs.cells[2], 1 << 63)
        self.assertEqual(len(self.theirs.cells), SIZE // 8)
        self.assertEqual((self.ours.writable, self.theirs.writable), (True, False))

    def test_readerCanNotWrite(self) -> None:
        """
        The reader's mapping refuses stores.
        """
        with self.assertRaises(TypeError):
            self.theirs.map[0:1] = b"x"
        with self.assertRaises(TypeError):
            self.theirs.cells[0] = 1

    def test_sealed(self) -> None:
        """
        A holder of the descriptor can neither resize the memory, nor map it writable,
        write to it, punch a hole, nor change the seals.
        """
        fd = self.theirs.fd
        self.assertRaises(PermissionError, os.ftruncate, fd, SIZE - 1)
        self.assertRaises(PermissionError, os.ftruncate, fd, SIZE + 1)
        self.assertRaises(PermissionError, mmap.mmap, fd, SIZE)
        self.assertRaises(PermissionError, os.write, fd, b"x")
        self.assertRaises(PermissionError, self.ours.map.madvise, mmap.MADV_REMOVE)
        self.assertRaises(PermissionError, libc.addSeals, fd, 0x8)
        self.assertEqual(libc.getSeals(fd), SEALS)

    def test_notInherited(self) -> None:
        """
        Programs that we start do not get the memory file.
        """
        self.assertFalse(os.get_inheritable(self.ours.fd))

    def test_closeTwice(self) -> None:
        """
        Closing is harmless when repeated; nothing can be read after it.
        """
        self.theirs.close()
        self.theirs.close()
        self.assertEqual(self.theirs.fd, -1)
        with self.assertRaises(ValueError):
            self.theirs.map[0:1]

    def test_closeWithViews(self) -> None:
        """
        Views that somebody still holds stay valid; the mapping goes with them.
        """
        view = memoryview(self.ours.map)[:8]
        part = self.theirs.cells[:2]
        self.ours.map[0:2] = b"hi"
        self.ours.close()
        self.theirs.close()
        self.assertEqual(bytes(view[:2]), b"hi")
        self.assertEqual(part[0], int.from_bytes(b"hi", "little"))
        held = _mappings().count("memfd:twisted_ib")
        del view, part, self.ours, self.theirs
        gc.collect()
        self.assertEqual(_mappings().count("memfd:twisted_ib"), held - 2)
        self.ours = self.theirs = Segment.create(SIZE)

    def test_closeDescriptor(self) -> None:
        """
        The mapping outlives the descriptor.
        """
        self.ours.closeDescriptor()
        self.ours.closeDescriptor()
        self.ours.map[0:1] = b"y"
        self.assertEqual(self.theirs.map[0:1], b"y")

    def test_partOfACell(self) -> None:
        """
        A size that is no multiple of eight leaves the rest out of the cells.
        """
        odd = Segment.create(8191)
        self.addCleanup(odd.close)
        self.assertEqual((len(odd.cells), len(odd.map)), (1023, 8191))

    def test_tooSmall(self) -> None:
        """
        A segment has at least one cell.
        """
        self.assertRaises(ValueError, Segment.create, 7)

    def test_childDoesNotMap(self) -> None:
        """
        A forked child has no mapping and no descriptor of its parent's
        segments, and its end leaves the parent's as they were.
        """
        fd = self.ours.fd

        def child() -> None:
            """
            Close everything, twice, and look.
            """
            assert "memfd:twisted_ib" not in _mappings()
            self.ours.close()
            self.theirs.close()
            del self.ours, self.theirs
            gc.collect()
            try:
                os.fstat(fd)
            except OSError:
                return
            raise AssertionError("the descriptor is open")

        self.assertEqual(runForked(child), 0)
        self.ours.map[0:1] = b"z"
        self.assertEqual(self.theirs.map[0:1], b"z")

    def test_childDies(self) -> None:
        """
        A forked child that touches the memory all the same hurts only itself.
        """
        self.assertEqual(runForked(lambda: self.ours.map[0:1]), -signal.SIGSEGV)


def _mappings() -> str:
    """
    The mappings of this process.
    """
    with open("/proc/self/maps") as maps:
        return maps.read()


@skipIf(bool(MISSING), f"missing: {MISSING}")
class ForkedExitTests(SynchronousTestCase):
    """
    A forked child that ends as Python programs do, with all their cleaning up.
    """

    def test_nothingElseIsUnmapped(self) -> None:
        """
        The child does not unmap what has taken the place of the segment.
        """
        program = (
            "import os, sys\n"
            "from twisted_ib.hca.fabric.shm.segment import Segment\n"
            "kept = [Segment.create(1 << 20) for _ in range(64)]\n"
            "pid = os.fork()\n"
            "if pid:\n"
            "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
            "much = [bytearray(1 << 18) for _ in range(512)]\n"
            "more = [str(n) for n in range(1000000)]\n"
            "for s in kept: s.close()\n"
            "del kept, s\n"
            "for b in much: b[:] = bytes(1 << 18)\n"
            "print('intact')\n"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, timeout=HANG_SECONDS, env=environment
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"intact\n", b""))


@skipIf(bool(MISSING), f"missing: {MISSING}")
class HostileMemoryTests(SynchronousTestCase):
    """
    Offers of a peer that are not sealed memory of the right size.
    """

    def refuse(self, fd: int, reason: str, size: int = SIZE) -> str:
        """
        Assert that C{fd} is refused by name, stays open and costs nothing.

        @return: what is said of it.
        """
        self.addCleanup(os.close, fd)
        before = descriptorsBefore()
        error = self.assertRaises(SegmentError, Segment.attach, fd, size)
        self.assertIsInstance(error, HandshakeError)
        self.assertIn(reason, str(error))
        self.assertEqual(descriptors(), before)
        os.fstat(fd)
        return str(error)

    def memory(self, size: int, seals: int) -> int:
        """
        A memory file.
        """
        fd = libc.memfdCreate("hostile")
        os.ftruncate(fd, size)
        if seals:
            libc.addSeals(fd, seals)
        return fd

    def test_unsealed(self) -> None:
        """
        Without any seal.
        """
        self.refuse(self.memory(SIZE, 0), "seals 0x0")

    def test_eachSealMissing(self) -> None:
        """
        With all seals but one.
        """
        for seal in (0x1, 0x2, 0x4, 0x10):
            self.refuse(self.memory(SIZE, SEALS & ~seal), f"seals {SEALS & ~seal:#x}")

    def test_createdUnsealed(self) -> None:
        """
        The seal argument of create is what attach looks at.
        """
        ours = Segment.create(SIZE, seal=libc.F_SEAL_SHRINK)
        self.addCleanup(ours.close)
        self.refuse(os.dup(ours.fd), "seals 0x2")

    def test_truncated(self) -> None:
        """
        Memory that was cut down before it was sealed.
        """
        for size in (0, 1, mmap.PAGESIZE, SIZE - 1):
            self.refuse(self.memory(size, SEALS), f"offered {size} bytes")

    def test_tooLong(self) -> None:
        """
        Memory that is longer than it must be.
        """
        self.refuse(self.memory(SIZE + 1, SEALS), f"offered {SIZE + 1} bytes")

    def test_regularFile(self) -> None:
        """
        A file on a disk has no seals.
        """
        path = self.mktemp()
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, SIZE)
        self.refuse(fd, "not memory")

    def test_fileInSharedMemory(self) -> None:
        """
        A file on tmpfs has seals, but cannot get those that are needed.
        """
        path = f"/dev/shm/twisted_ib-test-{os.getpid()}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            self.skipTest("no /dev/shm to write to")
        os.unlink(path)
        os.ftruncate(fd, SIZE)
        self.assertRaises(PermissionError, libc.addSeals, fd, SEALS)
        self.refuse(fd, "seals 0x1")

    def test_otherThings(self) -> None:
        """
        Pipes, sockets, event counters, devices and directories.
        """
        reader, writer = os.pipe()
        one, two = socket.socketpair()
        with one, two:
            things = [reader, writer, os.dup(one.fileno()), libc.eventfd()]
        things.append(os.open("/dev/zero", os.O_RDWR))
        things.append(os.open("/", os.O_RDONLY))
        for fd in things:
            self.assertNotIn("Errno", self.refuse(fd, "not memory"))

    def test_notReadable(self) -> None:
        """
        Sealed memory behind a descriptor that may not be read.
        """
        fd = self.memory(SIZE, SEALS & ~libc.F_SEAL_FUTURE_WRITE & ~libc.F_SEAL_SEAL)
        self.addCleanup(os.close, fd)
        writeOnly = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
        libc.addSeals(fd, libc.F_SEAL_FUTURE_WRITE | libc.F_SEAL_SEAL)
        self.refuse(writeOnly, "cannot be mapped")

    def test_closed(self) -> None:
        """
        A number that is no descriptor.
        """
        fd = libc.eventfd()
        os.close(fd)
        self.assertRaises(SegmentError, Segment.attach, fd, SIZE)

    def test_hugePages(self) -> None:
        """
        Memory in huge pages, which can run out under a reader.
        """
        fd = self.memory(SIZE, SEALS)
        real = os.fstatvfs(fd)
        huge = os.statvfs_result((2 << 20, *tuple(real)[1:]))
        self.patch(os, "fstatvfs", lambda fd: huge)
        self.refuse(fd, "pages of 2097152")


@skipIf(bool(MISSING), f"missing: {MISSING}")
class CountingTests(SynchronousTestCase):
    """
    Counting the stores, and dying at one of them.
    """

    def setUp(self) -> None:
        """
        A counting segment and a plain reader.
        """
        self.addCleanup(Stores.reset)
        Stores.reset()
        self.ours = CountingSegment.create(SIZE)
        self.addCleanup(self.ours.close)
        self.theirs = Segment.attach(os.dup(self.ours.fd), SIZE)
        self.addCleanup(self.theirs.close)

    def test_counts(self) -> None:
        """
        Both ways to store count, loads do not.
        """
        self.ours.map[8:11] = b"abc"
        self.ours.cells[0] = self.ours.cells[1]
        self.assertEqual(Stores.count, 2)
        self.assertEqual(self.theirs.map[:3], b"abc")

    def test_hookComesFirst(self) -> None:
        """
        The hook is called before the store.
        """
        seen: list[tuple[int, int]] = []
        Stores.reset(lambda count: seen.append((count, self.theirs.cells[0])))
        self.ours.cells[0] = 5
        self.ours.cells[0] = 6
        self.assertEqual(seen, [(1, 0), (2, 5)])

    def test_killAt(self) -> None:
        """
        For every N a process dies just before its Nth store and the reader has
        the stores before it.
        """
        for number in range(1, 6):
            reading, writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

            def child(writing: socket.socket = writing, number: int = number) -> None:
                """
                Send a segment to the test and store five times.
                """
                ours = CountingSegment.create(64)
                socket.send_fds(writing, [b"!"], [ours.fd])
                Stores.killAt(number)
                for cell in range(5):
                    ours.cells[cell] = 1

            with reading, writing:
                self.assertEqual(runForked(child), -signal.SIGKILL)
                _, (fd,), _, _ = socket.recv_fds(reading, 1, 1)
                theirs = Segment.attach(fd, 64)
                self.assertEqual(list(theirs.cells), [1] * (number - 1) + [0] * (9 - number))
                theirs.close()


class LibraryTests(SynchronousTestCase):
    """
    What Python may lack.
    """

    def test_fallbacks(self) -> None:
        """
        The calls work also where C{os} has none of them.
        """
        if not sys.platform.startswith("linux"):
            self.skipTest("Linux only")
        for name in ("memfd_create", "eventfd", "pidfd_open"):
            if hasattr(os, name):
                self.patch(os, name, None)
                delattr(os, name)
        memory, counter, process = libc.memfdCreate("x"), libc.eventfd(), libc.pidfdOpen(os.getpid())
        names = ("memfd:x", "eventfd", "pidfd")
        for fd, name in zip((memory, counter, process), names, strict=True):
            self.addCleanup(os.close, fd)
            self.assertIn(name, os.readlink(f"/proc/self/fd/{fd}"))
            self.assertFalse(os.get_inheritable(fd))
        self.assertTrue(libc.isNonBlocking(counter))
        self.assertRaises(ProcessLookupError, libc.pidfdOpen, 0x7FFFFFF0)
        libc.addSeals(memory, SEALS)
        self.assertEqual(libc.getSeals(memory), SEALS)

    def test_noCall(self) -> None:
        """
        Where nothing can make a call it is an OSError.
        """
        self.patch(libc, "ctypes", None)
        self.assertRaises(OSError, libc._systemCall, "eventfd", 0, 0)

    def missing(self, size: int = 8) -> str:
        """
        The requirements that are reported as missing now.
        """
        libc.available.cache_clear()
        self.addCleanup(libc.available.cache_clear)
        return "; ".join(libc.available(size))

    def test_fileSize(self) -> None:
        """
        A limit on the size of files is one on memory files: they are not tried, as SIGXFSZ would come.
        """
        self.patch(resource, "getrlimit", lambda what: (4096, 8192))
        self.assertEqual(self.missing(4096), "")
        self.assertEqual(self.missing(4097), "files of 4097 bytes (ulimit -f)")
        self.patch(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY,) * 2)
        self.assertEqual(self.missing(1 << 40), "")

    def test_noMemory(self) -> None:
        """
        A kernel that denies memory files is told by name.
        """

        def deny(name: str) -> int:
            """
            As a seccomp filter does.
            """
            raise PermissionError(1, "Operation not permitted")

        self.patch(libc, "memfdCreate", deny)
        self.assertIn("sealed memory files and eventfd ([Errno 1]", self.missing())

    def test_noSeals(self) -> None:
        """
        So is one that forgets seals, and nothing stays open.
        """
        before = descriptorsBefore()
        self.patch(libc, "getSeals", lambda fd: 0)
        self.assertIn("sealed memory files", self.missing())
        self.assertEqual(descriptors(), before)

    def test_otherMachines(self) -> None:
        """
        So are other processors and systems.
        """
        self.patch(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
        self.assertIn("an x86-64 processor", self.missing())
        self.patch(sys, "platform", "darwin")
        self.assertIn("Linux", self.missing())


class ElsewhereTests(SynchronousTestCase):
    """
    Systems that have none of this.
    """

    def test_imports(self) -> None:
        """
        Every module of the host side can be imported without fcntl and without
        the calls and constants that only Linux has; what is missing is told.
        """
        program = (
            "import os, select, socket, sys\n"
            "import mmap\n"
            "sys.modules['fcntl'] = None\n"
            "sys.platform = 'win32'\n"
            "for name in ('register_at_fork', 'memfd_create', 'eventfd', 'pidfd_open', 'geteuid',\n"
            "             'O_NONBLOCK', 'O_CLOEXEC', 'O_DIRECTORY', 'O_NOFOLLOW', 'fork', 'getuid'):\n"
            "    delattr(os, name)\n"
            "for name in ('AF_UNIX', 'AF_NETLINK', 'SOCK_NONBLOCK', 'SOCK_CLOEXEC', 'SOCK_SEQPACKET',\n"
            "             'MSG_DONTWAIT', 'MSG_NOSIGNAL', 'MSG_CMSG_CLOEXEC', 'SCM_RIGHTS', 'SO_PEERCRED'):\n"
            "    delattr(socket, name)\n"
            "del select.poll, select.epoll\n"
            "del mmap.MADV_DONTFORK, mmap.MAP_SHARED, mmap.PROT_READ, mmap.PROT_WRITE\n"
            "import importlib\n"
            "for name in sys.argv[1:]:\n"
            "    importlib.import_module('twisted_ib.hca.' + name)\n"
            "from twisted_ib.hca.host import libc\n"
            "print(libc.available())\n"
        )
        host = "addresses entries fdpassing handshake libc liveness processmemory query rendezvous"
        modules = [f"host.{name}" for name in (*host.split(), "rundirectory", "search")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path for path in sys.path if path])}
        done = subprocess.run(
            [sys.executable, "-c", program, *modules, "fabric.shm.doorbell", "fabric.shm.segment"],
            capture_output=True,
            timeout=HANG_SECONDS,
            env=environment,
            text=True,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("Linux", done.stdout)
