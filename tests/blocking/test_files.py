"""
Tests for L{twisted_ib.blocking.files}: each call by descriptor says over SDP what it says over TCP.
"""

from __future__ import annotations

import array
import errno
import fcntl
import io
import os
import socket
import subprocess
import sys
import tempfile
import termios
from threading import Event
from typing import Any

from tests.blocking.test_descriptors import Case
from tests.support.descriptors import exactly, isOpen
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib.blocking.connection import SEND_BYTES
from twisted_ib.blocking.files import flushAll
from twisted_ib.blocking.patch import patched


def waiting(skt: Any) -> int:
    """
    Return how many octets wait.
    """
    return int.from_bytes(fcntl.ioctl(skt.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


class FileCase(Case):
    """
    Has pipes and files.
    """

    def pipe(self) -> tuple[int, int]:
        """
        Return the ends of a pipe.
        """
        ends = os.pipe()
        for each in ends:
            self.addCleanup(os.close, each)
        return ends

    def file(self, data: bytes) -> Any:
        """
        Return a file with some bytes, at its begin.
        """
        file = tempfile.TemporaryFile()
        self.addCleanup(file.close)
        file.write(data)
        file.flush()
        file.seek(0)
        return file


class ReadTests(FileCase):
    """
    C{os.read}, C{os.readv}, C{os.write} and C{os.writev}.
    """

    def test_sizes(self) -> None:
        """
        No octets, fewer than none, a part of what waits, and the rest; into one buffer, several or none.
        """
        said: list[Any] = []
        for one, other in self.both():
            here = other.fileno()
            one.sendall(b"0123456789abc")
            waitUntil(lambda other=other: waiting(other) == 13)
            said += [self.saying(os.read, here, length) for length in (0, -1, 1, 4)]
            rooms = [bytearray(2), bytearray(0), memoryview(bytearray(3))]
            said += [self.saying(os.readv, here, rooms), [bytes(room) for room in rooms]]
            said.append(self.saying(os.readv, here, [bytearray()]))
            rooms = [bytearray(b"--"), bytearray(b"--"), bytearray(b"--")]
            said += [self.saying(os.readv, here, rooms), [bytes(room) for room in rooms]]
            one.close()
            said += [os.read(here, 5), os.readv(here, [bytearray(5)])]
        self.assertSame(said)

    def test_nothingYet(self) -> None:
        """
        A descriptor that does not block says that there is nothing yet, also for several buffers; of no
        octets it does not ask.
        """
        said: list[Any] = []
        for _, other in self.both():
            other.setblocking(False)
            here = other.fileno()
            said += [self.saying(os.read, here, 1), self.saying(os.read, here, 0)]
            said += [self.saying(os.readv, here, [bytearray(1)]), self.saying(os.readv, here, [bytearray()])]
        self.assertSame(said)
        self.assertEqual(said[:2], [errno.EAGAIN, b""])

    def test_written(self) -> None:
        """
        Writes say how much they took, of one buffer or several.
        """
        said: list[Any] = []
        for one, other in self.both():
            here = one.fileno()
            said += [os.write(here, b"one"), os.writev(here, [b"two", b"", bytearray(b"three")])]
            said += [self.saying(os.write, here, "text"), self.saying(os.write, here, b"")]
            said.append(exactly(other, 11))
        self.assertSame(said)

    def test_others(self) -> None:
        """
        What is no socket is read and written as before.
        """
        out, into = self.pipe()
        file = self.file(b"contents")
        with patched():
            self.assertEqual((os.write(into, b"12"), os.writev(into, [b"3", b"45"])), (2, 3))
            room = bytearray(2)
            self.assertEqual((os.read(out, 3), os.readv(out, [room]), bytes(room)), (b"123", 2, b"45"))
            self.assertEqual(os.sendfile(into, file.fileno(), 3, 5), 5)
            self.assertEqual(os.read(out, 10), b"tents")
            with open(file.fileno(), "rb", closefd=False) as again:
                self.assertEqual(again.read(), b"contents")
            self.assertEqual(fcntl.fcntl(out, fcntl.F_GETFD), fcntl.FD_CLOEXEC)
            os.write(into, b"xyz")
            self.assertEqual(fcntl.ioctl(out, termios.FIONREAD, bytes(4)), (3).to_bytes(4, sys.byteorder))
            if hasattr(os, "splice"):
                self.assertEqual(os.splice(file.fileno(), into, 4, offset_src=4), 4)
                self.assertEqual(os.read(out, 9), b"xyzents")
            os.set_blocking(out, False)
            self.assertRaises(BlockingIOError, os.read, out, 1)


class SendfileTests(FileCase):
    """
    C{os.sendfile} and C{socket.sendfile}.
    """

    def test_descriptors(self) -> None:
        """
        C{os.sendfile} reads at its offset and leaves the file where it stands, or where it stands and moves
        it; at the end there is nothing, and of a pipe or nothing at all it cannot.
        """
        said: list[Any] = []
        out, _ = self.pipe()
        for one, other in self.both():
            file = self.file(b"0123456789")
            here, there = one.fileno(), file.fileno()
            for offset, count in (
                (0, 3),
                (8, 100),
                (10, 1),
                (11, 1),
                (2, 0),
                (None, 4),
                (None, 100),
                (None, 1),
            ):
                said.append(self.saying(os.sendfile, here, there, offset, count))
                said.append(os.lseek(there, 0, os.SEEK_CUR))
            said.append(exactly(other, 15))
            said += [self.saying(os.sendfile, here, out, offset, 1) for offset in (0, None)]
            gone = os.dup(there)
            os.close(gone)
            said.append(self.saying(os.sendfile, here, gone, 0, 1))
        self.assertSame(said)

    def test_sockets(self) -> None:
        """
        C{socket.sendfile} sends from its offset, all or so many octets, and leaves the file behind them.
        """
        said: list[Any] = []
        data = os.urandom(3 * SEND_BYTES + 5)
        for one, other in self.both():
            got = self.inThread(exactly, other, len(data) + 5 + 3 + 2 * SEND_BYTES + 4)
            file = self.file(data)
            for arguments in (
                (),
                (len(data) - 5,),
                (7, 3),
                (len(data),),
                (len(data) + 9, 2),
                (1, 2 * SEND_BYTES),
                (len(data) - 4, 100),
            ):
                said.append(self.saying(one.sendfile, file, *arguments))
                said.append(file.tell())
            for arguments in ((-1,), (0, 0), (0, -1), (0, "1")):
                said.append(self.saying(one.sendfile, file, *arguments))
            self.assertEqual(
                got.result(HANG_SECONDS),
                data + data[-5:] + data[7:10] + data[1 : 1 + 2 * SEND_BYTES] + data[-4:],
            )
            one.setblocking(False)
            said.append(self.saying(one.sendfile, file))
        self.assertSame(said)

    def test_withoutDescriptor(self) -> None:
        """
        What is no file of the system's is read by its methods.
        """
        said: list[Any] = []
        for one, other in self.both():
            said.append(one.sendfile(io.BytesIO(b"memory"), 2))
            said.append(exactly(other, 4))
        self.assertSame(said)


class SpliceTests(FileCase):
    """
    C{os.splice}.
    """

    def setUp(self) -> None:
        """
        Look for the call.
        """
        super().setUp()
        if not hasattr(os, "splice"):
            self.skipTest("no splice(2)")

    def test_kinds(self) -> None:
        """
        One of both has to be a pipe; a pipe has no offset, nor has a socket.
        """
        said: list[Any] = []
        for one, other in self.both():
            out, into = self.pipe()
            file = self.file(b"contents")
            os.write(into, b"12345")
            here = one.fileno()
            other.sendall(b"x")
            waitUntil(lambda one=one: waiting(one) == 1)
            for source, target, options in (
                (file.fileno(), here, {}),
                (here, file.fileno(), {}),
                (out, here, {"offset_src": 1}),
                (out, here, {"offset_dst": 1}),
                (here, into, {"offset_src": 1}),
                (here, into, {"offset_dst": 1}),
                (out, here, {"offset_src": 1, "offset_dst": 1}),
                (out, here, {}),
            ):
                said.append(self.saying(os.splice, source, target, 5, **options))
            said.append(exactly(other, 5))
        self.assertSame(said)

    def test_nothing(self) -> None:
        """
        With nothing to move it says so at once if a pipe is not to be waited for, by its flag, or a socket,
        by its descriptor; at the end of the stream or pipe it moves nothing.
        """
        said: list[Any] = []
        for one, other in self.both():
            out, into = os.pipe()
            here = one.fileno()
            said.append(self.saying(os.splice, out, here, 5, flags=os.SPLICE_F_NONBLOCK))
            one.setblocking(False)
            said.append(self.saying(os.splice, here, into, 5))
            one.setblocking(True)
            other.shutdown(socket.SHUT_WR)
            said.append(os.splice(here, into, 5))
            os.close(into)
            said.append(os.splice(out, here, 5))
            os.close(out)
            one.sendall(b"end")
            said.append(exactly(other, 3))
        self.assertSame(said)

    def test_room(self) -> None:
        """
        What has no room in a pipe stays in the socket.
        """
        for one, other in self.both():
            out, into = self.pipe()
            room = fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 4096)
            data = os.urandom(3 * room)
            other.sendall(data)
            waitUntil(lambda one=one, data=data: waiting(one) == len(data))
            got = b""
            while len(got) < len(data):
                moved = os.splice(one.fileno(), into, len(data))
                self.assertLessEqual(moved, room)
                got += os.read(out, moved)
            self.assertEqual(got, data)
            other.sendall(b"x")
            self.assertEqual(one.recv(2), b"x")


class ControlTests(FileCase):
    """
    C{fcntl.fcntl}, C{fcntl.ioctl} and C{os.set_blocking}.
    """

    def test_answers(self) -> None:
        """
        Each returns what the system does, for a descriptor and for a socket, whatever it is asked.
        """
        said: list[Any] = []
        for one, other in self.both():
            one.sendall(b"abc")
            waitUntil(lambda other=other: waiting(other) == 3)
            for it in (other, other.fileno()):
                said.append(fcntl.fcntl(it, fcntl.F_GETFL) & os.O_NONBLOCK)
                said.append(fcntl.fcntl(it, fcntl.F_GETFD))
                said.append(fcntl.ioctl(it, termios.FIONREAD, bytes(7)))
                said.append(fcntl.ioctl(it, termios.FIONREAD, b"\1\2\3\4\5\6"))
                room = array.array("i", [9, 8])
                said += [fcntl.ioctl(it, termios.FIONREAD, room), list(room)]
                said.append(fcntl.ioctl(it, termios.FIONREAD, bytearray(5)))
                room = array.array("i", [9, 8])
                said += [fcntl.ioctl(it, termios.FIONREAD, room, False), list(room)]
                said.append(self.saying(fcntl.ioctl, it, termios.TIOCGWINSZ, bytes(8)))
                said.append(fcntl.ioctl(it, termios.FIONBIO, (0).to_bytes(4, sys.byteorder)))
            said.append(other.recv(5))
        self.assertSame(said)

    def test_modes(self) -> None:
        """
        A descriptor that any of them has told not to block, or to block again, does so.
        """
        said: list[Any] = []

        def byFcntl(it: Any, blocks: bool) -> None:
            fcntl.fcntl(it, fcntl.F_SETFL, fcntl.fcntl(it, fcntl.F_GETFL) ^ os.O_NONBLOCK)

        def byIoctl(it: Any, blocks: bool) -> None:
            fcntl.ioctl(it, termios.FIONBIO, (not blocks).to_bytes(4, sys.byteorder))

        def byCall(it: Any, blocks: bool) -> None:
            os.set_blocking(it if isinstance(it, int) else it.fileno(), blocks)

        for way in (byFcntl, byIoctl, byCall):
            for one, other in self.both():
                for it in (other, other.fileno()):
                    way(it, False)
                    said += [self.saying(other.recv, 1), self.saying(os.read, other.fileno(), 1)]
                    way(it, True)
                    got = self.inThread(other.recv, 1)
                    one.sendall(b"x")
                    said.append(got.result(HANG_SECONDS))
            half = len(said) // 2
            self.assertEqual(said[half:], said[:half], way)
            self.assertEqual(said[:3], [errno.EAGAIN, errno.EAGAIN, b"x"])
            del said[:]


class FileIOTests(FileCase):
    """
    Files that C{open} makes of a descriptor.
    """

    def test_raw(self) -> None:
        """
        Reads of none, some and all octets, into a buffer, at the end, and after the close, which may be
        repeated.
        """
        said: list[Any] = []
        for one, other in self.both():
            one.sendall(b"0123456789")
            waitUntil(lambda other=other: waiting(other) == 10)
            file: Any = open(other.fileno(), "rb", 0, closefd=False)
            room = bytearray(3)
            said += [file.read(0), file.read(2), file.readinto(room), bytes(room), file.readinto(bytearray())]
            one.close()
            said += [file.read(None), file.read(-1), file.read(1), file.readall(), file.readinto(room)]
            file.close()
            file.close()
            said += [file.closed, isOpen(other.fileno())]
            for call, *arguments in ((file.read, 1), (file.readall,), (file.readinto, room), (file.fileno,)):
                said.append(self.saying(call, *arguments))
            file = open(other.detach(), "rb", 0)
            descriptor = file.fileno()
            file.close()
            said.append(isOpen(descriptor))
        self.assertSame(said)

    def test_writing(self) -> None:
        """
        A write says what it took, and that there is no room; a file that is open for writing does not read.
        """
        said: list[Any] = []
        for one, other in self.both():
            file: Any = open(one.fileno(), "wb", 0, closefd=False)
            said += [file.write(b"abc"), self.saying(file.read, 1), self.saying(file.readinto, bytearray(1))]
            said.append(exactly(other, 3))
            one.setblocking(False)
            while file.write(bytes(1 << 20)) is not None:
                pass
            said.append(file.write(b"x"))
            file.close()
            said.append(self.saying(file.write, b"x"))
        self.assertSame(said)

    def test_readAllWaits(self) -> None:
        """
        All octets of a stream that has not ended are those until its end.
        """
        for one, other in self.both():
            file: Any = open(other.fileno(), "rb", 0, closefd=False)
            got = self.inThread(file.read)
            one.sendall(b"first ")
            waitUntil(lambda other=other: waiting(other) == 0)
            one.sendall(b"last")
            one.close()
            self.assertEqual(got.result(HANG_SECONDS), b"first last")

    def test_process(self) -> None:
        """
        A process is started as before, with its descriptors.
        """
        out, into = self.pipe()
        with patched():
            command = [sys.executable, "-c", f"import os; os.write({into}, b'passed'); print('said')"]
            said = subprocess.run(
                command, pass_fds=(into,), stdout=subprocess.PIPE, check=True, timeout=HANG_SECONDS
            ).stdout
        self.assertEqual((said, os.read(out, 10)), (b"said\n", b"passed"))

    def test_processListens(self) -> None:
        """
        A socket that listens does so over TCP alone once a process gets it, by its number or as it inherits
        all that it may; else it stays.
        """
        cases: list[tuple[bool, bool, dict[str, Any]]] = [
            (True, False, {"pass_fds": True}),
            (True, True, {"close_fds": False}),
            (False, False, {"close_fds": False}),
            (False, True, {"close_fds": True}),
        ]
        for isLeft, isInheritable, options in cases:
            with patched():
                listener: Any = socket.create_server(("127.0.0.1", 0))
            with listener, patched():
                listener.set_inheritable(isInheritable)
                if "pass_fds" in options:
                    options = {"pass_fds": (listener.fileno(),)}
                subprocess.run([sys.executable, "-c", ""], check=True, timeout=HANG_SECONDS, **options)
                self.assertEqual(listener.sdp is None, isLeft, options)


class EndTests(FileCase):
    """
    Files whose last octets nobody has flushed when the process ends.
    """

    def test_flushed(self) -> None:
        """
        They are sent before the connection ends, those of a text behind none of its octets.
        """
        one, other = self.over()
        text, pair, writer = one.makefile("w"), one.makefile("rwb"), one.makefile("wb")
        text.write("text")
        flushAll()
        self.assertEqual(exactly(other, 4), b"text")
        with patched():
            opened: Any = open(one.fileno(), "wb", closefd=False)
        for file in (pair, writer, opened):
            file.write(b"octets")
        flushAll()
        self.assertEqual(exactly(other, 18), 3 * b"octets")
        one.close()
        other.close()
        flushAll()

    def test_strange(self) -> None:
        """
        One over an object that has an attribute of any name, as a double of tests, is none of a socket's.
        """

        class Double:
            closed, readable, writable, seekable = False, bool, lambda _: True, bool
            asked = 0

            def __getattr__(self, name: str) -> Any:
                if name.startswith("_"):
                    raise AttributeError(name)
                Double.asked += 1
                # Else this would go on for ever.
                if Double.asked > 100:
                    raise MemoryError
                return Double()

        one, other = self.over()
        raw: Any = Double()
        file = io.BufferedWriter(raw)
        one.makefile("wb")
        flushAll()
        self.assertLess(Double.asked, 10)
        self.assertIsNot(file.raw, None)
        one.close()
        other.close()

    def test_used(self) -> None:
        """
        One that another thread writes is left to it: that may wait for the peer, with the file's lock.
        """
        one, other = self.over()
        used, free = one.makefile("wb"), one.makefile("wb")
        used.write(b"used")
        free.write(b"free")
        entered, left = Event(), Event()

        def write(self: Any) -> None:
            entered.set()
            left.wait()

        writing = self.inThread(write, used.raw)
        entered.wait()
        flushAll()
        left.set()
        writing.result(HANG_SECONDS)
        self.assertEqual((exactly(other, 4), waiting(other)), (b"free", 0))
