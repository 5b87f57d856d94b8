"""
Tests for the descriptors of sockets over SDP: L{twisted_ib.blocking.files} and
L{twisted_ib.blocking.descriptors}.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import gc
import io
import itertools
import os
import random
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

from tests.blocking.case import BlockingTestCase
from tests.support.descriptors import exactly, isOpen
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib import socket as offloading
from twisted_ib.blocking import descriptors
from twisted_ib.blocking import loop as module
from twisted_ib.blocking.patch import patched
from twisted_ib.drive import process as processes

#: The walks of L{WalkTests}, and the steps of each.
SEEDS, STEPS = range(6), 60
#: Serves one client of a listener by a descriptor.
_ACCEPTS = """
import signal, socket, sys
signal.alarm(60)
with socket.socket(fileno=int(sys.argv[1])) as listener:
    listener.accept()[0].sendall(b"ok")
"""


class Case(BlockingTestCase):
    """
    What the names of the standard library do, over TCP and over SDP.
    """

    def both(self) -> Iterator[tuple[Any, Any]]:
        """
        Yield connected pairs whose sockets block: over TCP, and over SDP.
        """
        for isSDP in (False, True):
            one, other = self.pair() if isSDP else self.pair(socket, socket)
            for skt in (one, other):
                skt.settimeout(None)
            with patched():
                yield one, other

    def over(self) -> tuple[Any, Any]:
        """
        Return a pair over SDP, the second of which has a timeout.
        """
        one, other = self.pair()
        one.settimeout(None)
        return one, other

    def staying(self) -> tuple[Any, Any]:
        """
        The same; the connection cannot move to TCP, as the second has a duplicate.
        """
        one, other = self.over()
        copy = other.dup()
        self.addCleanup(copy.close)
        return one, other

    def saying(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """
        Return what a call returns, or the number or the type of its error.
        """
        try:
            return call(*arguments, **options)
        except OSError as error:
            return error.errno or type(error)
        except (ValueError, LookupError, TypeError) as error:
            return type(error)

    def assertSame(self, said: list[Any]) -> None:
        """
        What was said over SDP is what was said over TCP.
        """
        half = len(said) // 2
        self.assertEqual(said[half:], said[:half])
        self.assertTrue(said)


class CallTests(Case):
    """
    Calls that work by descriptor.
    """

    def test_peekReset(self) -> None:
        """
        C{recv} with MSG_PEEK and MSG_WAITALL reports a reset.
        """
        for one, other in self.both():
            one.sendall(b"unread")
            other.close()
            flags = socket.MSG_PEEK | socket.MSG_WAITALL
            self.assertRaises(ConnectionResetError, one.recv, 10, flags)

    def test_options(self) -> None:
        """
        TCP_INFO and SO_ERROR without a length, with one of 0, and with others.
        """
        for one, _ in self.both():
            for length in ((), (0,)):
                found = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, *length)
                self.assertEqual(found & 0xFF, 1)
                self.assertEqual(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR, *length), 0)
            self.assertEqual(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1), b"\x01")
            self.assertEqual(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR, 4), bytes(4))

    def test_opened(self) -> None:
        """
        C{open} and C{os.fdopen} make the same of a descriptor, or the same error, and leave it open or not.
        """
        said: list[Any] = []
        modes = [("zz",), ("r", 0), ("rb", 0), ("w", 1), ("r+",), ("r+b", 0), ("rb", -1, "utf8"), ("rw",)]
        modes += [("a",), ("x",), ("ab",), ("rb", -1, None, None, "x"), ("r", -1, "nonsense"), ("rwb",)]
        for one, _ in self.both():
            for call in (open, os.fdopen, io.open):
                # What the patch has now.
                call = {open: io.open}.get(call, call)
                for mode in modes:
                    descriptor = os.dup(one.fileno())
                    file = self.saying(call, descriptor, *mode)
                    said.append((mode, file if isinstance(file, int | type) else type(file).__name__))
                    said.append(isOpen(descriptor))
                    if not isinstance(file, int | type):
                        file.close()
                    elif isOpen(descriptor):
                        os.close(descriptor)
        names = [(mode, "FileIO" if name == "SocketFile" else name) for mode, name in said[::2]]
        self.assertSame([*zip(names, said[1::2], strict=True)])

    def test_files(self) -> None:
        """
        Files of a descriptor carry its bytes, and the connection lives until the last is closed.
        """
        for one, other in self.both():
            writing = open(one.detach(), "w")
            reading = open(other.fileno(), "rb", closefd=False)
            writing.write("a line\nand more")
            writing.flush()
            self.assertEqual(reading.readline(), b"a line\n")
            self.assertEqual(reading.read(3), b"and")
            writing.close()
            self.assertEqual((reading.read(), reading.read()), (b" more", b""))
            reading.close()
            other.setblocking(False)
            self.assertEqual(other.recv(1), b"")

    def test_rawFile(self) -> None:
        """
        A file without a buffer says that there is nothing yet, and refuses what it is not open for.
        """
        said: list[Any] = []
        for one, other in self.both():
            other.setblocking(False)
            with open(other.fileno(), "rb", 0, closefd=False) as file:
                said += [file.read(1), file.readall(), file.readinto(bytearray(1)), file.seekable()]
                said.append(self.saying(file.write, b"x"))
                one.sendall(b"data")
                waitUntil(
                    lambda file=file: fcntl.ioctl(file.fileno(), termios.FIONREAD, bytes(4)) != bytes(4)
                )
                said += [file.read(2), file.readall()]
        self.assertSame(said)

    def test_waiting(self) -> None:
        """
        FIONREAD says how many octets wait, into bytes and into a buffer.
        """
        said: list[Any] = []
        for one, other in self.both():
            one.sendall(b"abc")
            waitUntil(lambda other=other: fcntl.ioctl(other, termios.FIONREAD, bytes(4)) != bytes(4))
            said.append(fcntl.ioctl(other.fileno(), termios.FIONREAD, bytes(8)))
            room = array.array("i", [7])
            said += [fcntl.ioctl(other, termios.FIONREAD, room), list(room)]
            said.append(fcntl.ioctl(one, termios.TIOCOUTQ, bytes(4)))
            said.append(self.saying(fcntl.ioctl, other, termios.FIONREAD, 0))
        self.assertSame(said)

    def test_blocking(self) -> None:
        """
        A socket whose descriptor was made not to block, by C{fcntl}, C{ioctl} or C{os.set_blocking}, does
        not, until it is made to again.
        """
        said: list[Any] = []
        for one, other in self.both():
            here = one.fileno()
            flags = fcntl.fcntl(here, fcntl.F_GETFL)
            for turn in (
                lambda isOn: fcntl.fcntl(here, fcntl.F_SETFL, flags | isOn * os.O_NONBLOCK),  # noqa: B023
                lambda isOn: fcntl.ioctl(here, termios.FIONBIO, array.array("i", [isOn])),  # noqa: B023
                lambda isOn: os.set_blocking(here, not isOn),  # noqa: B023
            ):
                turn(1)
                said += [self.saying(one.recv, 1), self.saying(os.read, here, 1)]
                said.append(one.send(b"small"))
                self.assertLess(one.send(bytes(1 << 26)), 1 << 26)
                self.assertRaises(BlockingIOError, one.sendall, bytes(1 << 26))
                turn(0)
                sent = self.inThread(other.sendall, b"x")
                said.append(one.recv(1))
                sent.result(HANG_SECONDS)
                while self.arrives(other):
                    other.recv(1 << 20)
        self.assertSame(said)

    def arrives(self, skt: Any) -> bool:
        """
        Return whether bytes wait.
        """
        return fcntl.ioctl(skt.fileno(), termios.FIONREAD, bytes(4)) != bytes(4)

    def test_splice(self) -> None:
        """
        C{os.splice} moves bytes from a pipe and into one.
        """
        if not hasattr(os, "splice"):
            return
        said: list[Any] = []
        for one, other in self.both():
            out, into = os.pipe()
            self.addCleanup(os.close, out)
            self.addCleanup(os.close, into)
            os.write(into, b"0123456789")
            said.append(os.splice(out, one.fileno(), 100))
            said.append(exactly(other, 10))
            other.sendall(b"back")
            said.append(os.splice(one.fileno(), into, 3))
            said.append(os.read(out, 10))
            said.append(one.recv(10))
            said.append(self.saying(os.splice, one.fileno(), other.fileno(), 5))
            said.append(self.saying(os.splice, one.fileno(), into, 5, offset_src=1))
        self.assertSame(said)

    def test_outlives(self) -> None:
        """
        A duplicate that outlives its socket has the connection, and its close ends that.
        """
        for one, other in self.both():
            copy = os.dup(one.fileno())
            one.close()
            self.assertEqual(os.write(copy, b"copy"), 4)
            self.assertEqual(exactly(other, 4), b"copy")
            again = socket.socket(fileno=os.dup(copy))
            again.sendall(b"again")
            again.close()
            self.assertEqual(exactly(other, 5), b"again")
            other.sendall(b"x")
            self.assertEqual(os.read(copy, 1), b"x")
            os.close(copy)
            self.assertEqual(other.recv(1), b"")
        self.assertEqual(self.loop.held, {})

    def test_closedByDescriptor(self) -> None:
        """
        C{os.close} of what a socket has given away ends the connection.
        """
        for one, other in self.both():
            os.close(one.detach())
            self.assertEqual(other.recv(1), b"")

    def test_replaced(self) -> None:
        """
        C{os.dup2} ends what had the number, and the socket of that number has the connection of the first;
        what is not open ends nothing.
        """
        for (one, other), (more, third) in zip(self.both(), self.both(), strict=True):
            number = more.fileno()
            self.assertEqual(os.dup2(number, number), number)
            self.assertRaises(OSError, os.dup2, 1 << 19, number)
            more.sendall(b"before")
            self.assertEqual(exactly(third, 6), b"before")
            self.assertEqual(os.dup2(one.fileno(), number, False), number)
            self.assertEqual(third.recv(1), b"")
            more.sendall(b"x")
            self.assertEqual(exactly(other, 1), b"x")
            one.close()
            other.sendall(b"y")
            self.assertEqual(exactly(more, 1), b"y")
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), number)
            self.assertEqual(other.recv(1), b"")
            self.assertRaises(OSError, more.send, b"z")
            more.close()

    def test_replacedSecond(self) -> None:
        """
        So does a second socket of the number that C{os.dup2} replaces.
        """
        for (one, other), (more, third) in zip(self.both(), self.both(), strict=True):
            second = type(more)(fileno=more.fileno())
            second.settimeout(HANG_SECONDS)
            os.dup2(one.fileno(), more.fileno())
            self.assertEqual(third.recv(1), b"")
            for each in second, more:
                other.sendall(b"y")
                self.assertEqual(exactly(each, 1), b"y")
                each.sendall(b"x")
                self.assertEqual(exactly(other, 1), b"x")
            second.detach()

    def test_replacedAttempt(self) -> None:
        """
        An attempt to connect ends, too, though no other connection is there.
        """
        listener = self.server()
        with patched():
            one = socket.socket()
            self.addCleanup(one.close)
            one.setblocking(False)
            self.assertEqual(one.connect_ex(listener.getsockname()), errno.EINPROGRESS)
            pair = socket.socketpair()
            for each in pair:
                self.addCleanup(each.close)
            os.dup2(pair[0].fileno(), one.fileno())
            self.assertIsNone(one.attempt)
            pair[1].sendall(b"x")
            self.assertEqual(one.recv(1), b"x")

    def test_garbage(self) -> None:
        """
        A socket that is not closed takes no connection from another one of it.
        """
        one, other = self.over()
        with patched():
            socket.socket(fileno=os.dup(one.fileno())).sendall(b"x")
        gc.collect()
        self.assertEqual((one.sdp.sockets, len(self.loop.orphans)), (1, 0))
        one.sendall(b"y")
        self.assertEqual(exactly(other, 2), b"xy")
        one.close()
        self.assertEqual(other.recv(1), b"")
        self.flushWarnings()


class ForeignTests(Case):
    """
    Who knows of no SDP hears of it, and so does the peer: there is no end of stream with bytes missing.
    """

    def test_code(self) -> None:
        """
        C code that reads or writes has an error, and the close that follows is a reset.
        """
        library = ctypes.CDLL(None, use_errno=True)
        for call in ("read", "write"):
            one, other = self.over()
            # write(2) of what was never connected would raise SIGPIPE, which Python ignores.
            self.assertEqual(getattr(library, call)(one.fileno(), ctypes.create_string_buffer(9), 9), -1)
            self.assertEqual(ctypes.get_errno(), errno.ECONNREFUSED)
            one.close()
            self.assertRaises(ConnectionResetError, other.recv, 1)

    def test_process(self) -> None:
        """
        No process is started that would get a connection which cannot move.
        """
        command = [sys.executable, "-c", ""]
        for option in ("stdin", "stdout", "stderr", "pass_fds"):
            one, other = self.staying()
            with patched():
                given = {option: [one.fileno()] if option == "pass_fds" else one}
                error = self.assertRaises(OSError, subprocess.Popen, command, **given)
            self.assertEqual(error.errno, errno.EOPNOTSUPP)
            self.assertRaises(ConnectionResetError, other.recv, 1)
            one.close()
        with patched(), socket.create_server(("127.0.0.1", 0)) as listener:
            self.assertEqual(subprocess.call(command, stdin=listener, timeout=HANG_SECONDS), 0)

    def test_spawned(self) -> None:
        """
        Nor is one by C{os.posix_spawn}; a listener that it is given, or inherits, is TCP's alone.
        """
        program, words = sys.executable, [sys.executable, "-c", _ACCEPTS]
        for spawn in ("posix_spawn", "posix_spawnp"):
            one, other = self.staying()
            given = [(os.POSIX_SPAWN_DUP2, one.fileno(), 0)]
            with patched():
                error = self.assertRaises(OSError, getattr(os, spawn), program, words, {}, file_actions=given)
            self.assertEqual(error.errno, errno.EOPNOTSUPP)
            self.assertRaises(ConnectionResetError, other.recv, 1)
        for isGiven in (False, True):
            kept, listener = self.server(), self.server()
            # A timeout is O_NONBLOCK, which the child's socket would have, too.
            listener.settimeout(None)
            number = 0 if isGiven else listener.fileno()
            listener.set_inheritable(not isGiven)
            actions = [(os.POSIX_SPAWN_DUP2, listener.fileno(), number)] if isGiven else None
            with patched():
                child = os.posix_spawn(program, [*words, str(number)], os.environ, file_actions=actions)
            self.assertEqual([bool(kept.sdp), bool(listener.sdp)], [True, False])
            self.assertEqual(exactly(self.client(listener), 2), b"ok")
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        with patched():
            self.assertRaises(TypeError, os.posix_spawn, program, words, {}, file_actions=[()])

    def test_rights(self) -> None:
        """
        No connection that cannot move is sent over a UNIX socket; a file is.
        """
        one, other = self.staying()
        ends = self.plainPair()
        with patched(), tempfile.TemporaryFile() as file:
            from_, to = (socket.socket(fileno=each) for each in ends)
            with from_, to:
                error = self.assertRaises(OSError, socket.send_fds, from_, [b"x"], [one.fileno()])
                self.assertEqual(error.errno, errno.EOPNOTSUPP)
                socket.send_fds(from_, [b"x"], [file.fileno()])
                got = socket.recv_fds(to, 1, 1)[1]
                os.close(got[0])
        self.assertRaises(ConnectionResetError, other.recv, 1)

    def plainPair(self) -> list[int]:
        """
        Return two connected descriptors of UNIX sockets.
        """
        return [each.detach() for each in socket.socketpair()]

    def test_child(self) -> None:
        """
        What a forked process reads from its descriptor is seen after the close, and that is a reset.
        """
        one, other = self.over()
        out, into = os.pipe()
        self.addCleanup(os.close, into)
        pid = os.fork()
        if not pid:
            # The parent has closed; then an error of the kernel's.
            os.close(into)
            os.read(out, 1)
            plain = descriptors._socket.socket(fileno=one.fileno())
            try:
                plain.recv(1)
            finally:
                os.read(out, 1)
                os._exit(0)
        os.close(out)
        one.close()
        self.assertEqual(len(self.loop.held), 1)
        os.write(into, b"x")
        self.assertRaises(ConnectionResetError, other.recv, 1)
        os.write(into, b"x")
        os.waitpid(pid, 0)

    def test_childEnds(self) -> None:
        """
        A forked process that does nothing with its descriptor keeps the connection until it ends.
        """
        one, other = self.over()
        out, into = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(into)
            os.read(out, 1)
            os._exit(0)
        os.close(out)
        one.sendall(b"all")
        one.close()
        self.assertEqual(exactly(other, 3), b"all")
        os.close(into)
        self.assertEqual(other.recv(1), b"")
        os.waitpid(pid, 0)

    def forked(self, work: Any) -> tuple[int, int]:
        """
        Fork a process that works and ends when it is told to.

        @param work: Called in it, with a function that waits to be told so.
        @return: The process, and a descriptor to tell it by.
        """
        out, into = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(into)
            try:
                work(lambda: os.read(out, 1))
            finally:
                os._exit(0)
        os.close(out)
        self.addCleanup(lambda: os.waitpid(pid, os.WNOHANG))
        return pid, into

    def usePlainly(self, skt: Any) -> None:
        """
        Receive as a program that knows of no SDP.
        """
        plain = descriptors._socket.socket(fileno=skt.fileno())
        with contextlib.suppress(OSError):
            plain.recv(1)

    def test_replacedInChild(self) -> None:
        """
        In a forked process C{os.dup2} gives the number a file of its own, and ends nothing here.
        """
        (one, other), (more, third) = self.over(), self.over()
        numbers = one.fileno(), more.fileno()
        said, says = os.pipe()

        def work(told: Any) -> None:
            with patched():
                for first in (said, numbers[1]):
                    os.write(says, b"%d " % (os.dup2(first, numbers[0]) == numbers[0]))
            self.assertRaises(OSError, one.send, b"x")
            os.write(says, b"over")
            told()

        pid, into = self.forked(work)
        os.close(says)
        with open(said, "rb") as lines:
            self.assertEqual(lines.read(8), b"1 1 over")
        os.close(into)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        for skt, peer in ((one, other), (more, third)):
            skt.sendall(b"y")
            self.assertEqual(exactly(peer, 1), b"y")

    def test_childAtOnce(self) -> None:
        """
        A forked process that reads from its descriptor after the close here, and ends before anybody looks
        here, is seen.
        """
        one, other = self.over()

        def work(told: Any) -> None:
            told()
            self.usePlainly(one)

        pid, into = self.forked(work)
        one.close()
        os.write(into, b"x")
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.assertRaises(ConnectionResetError, other.recv, 1)
        os.close(into)
        self.assertEqual(self.loop.held, {})

    def test_childBefore(self) -> None:
        """
        So is one that has read and has ended before the close.
        """
        one, other = self.over()
        pid, into = self.forked(lambda _: self.usePlainly(one))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        one.close()
        self.assertRaises(ConnectionResetError, other.recv, 1)
        os.close(into)

    def test_grandchild(self) -> None:
        """
        A forked process that ends leaves its descriptor to one that it has forked.
        """
        one, other = self.over()
        ready, said = os.pipe()

        def work(told: Any) -> None:
            if not os.fork():
                os.write(said, b"x")
                told()
                self.usePlainly(one)
                told()

        pid, into = self.forked(work)
        one.close()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.read(ready, 1)
        other.settimeout(0)
        self.assertRaises(BlockingIOError, other.recv, 1)
        other.settimeout(HANG_SECONDS)
        os.write(into, b"x")
        self.assertRaises(ConnectionResetError, other.recv, 1)
        for each in (into, ready, said):
            os.close(each)

    def test_exit(self) -> None:
        """
        A process that ends without a close, and leaves its descriptor to another one, resets the connection.
        """
        listener = self.server()
        address = listener.getsockname()
        accepted = self.inThread(listener.accept)
        ready, said = os.pipe()

        def work(told: Any) -> None:
            skt = offloading.create_connection(address)
            assert skt.sdp is not None
            if os.fork():
                module.theLoop().close(True)
                os.write(said, b"x")
            else:
                told()

        pid, into = self.forked(work)
        other = accepted.result(HANG_SECONDS)[0]
        self.addCleanup(other.close)
        os.read(ready, 1)
        self.assertRaises(ConnectionResetError, other.recv, 1)
        for each in (into, ready, said):
            os.close(each)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def test_shutdown(self) -> None:
        """
        A C{shutdown} after somebody has used the descriptor is an error, and a reset.
        """
        for how in (socket.SHUT_WR, socket.SHUT_RDWR):
            one, other = self.over()
            self.usePlainly(one.dup())
            error = self.assertRaises(OSError, one.shutdown, how)
            self.assertEqual(error.errno, errno.ECONNRESET)
            self.assertRaises(ConnectionResetError, other.recv, 1)

    def test_duplicateUsed(self) -> None:
        """
        A duplicate that outlives its socket, and that C code uses, is reset by its close.
        """
        one, other = self.over()
        with patched():
            copy = os.dup(one.fileno())
            one.close()
            plain = descriptors._socket.socket(fileno=copy)
            self.assertRaises(OSError, plain.recv, 1)
            plain.detach()
            os.close(copy)
        self.assertRaises(ConnectionResetError, other.recv, 1)

    def test_heldBound(self) -> None:
        """
        Of more connections that only descriptors have than C{limits.BLOCKING_HELD} the oldest is reset.
        """
        with mock.patch.object(limits, "BLOCKING_HELD", 1), patched():
            pairs = [self.over() for _ in range(2)]
            copies = [os.dup(one.fileno()) for one, _ in pairs]
            for one, _ in pairs:
                one.close()
            self.assertRaises(ConnectionResetError, pairs[0][1].recv, 1)
            os.write(copies[1], b"x")
            self.assertEqual(exactly(pairs[1][1], 1), b"x")
            for each in copies:
                os.close(each)
        self.assertEqual(self.loop.held, {})

    def test_unlocked(self) -> None:
        """
        A close that looks at other processes has no lock that other threads wait for meanwhile.
        """
        one, _ = self.over()
        _, into = self.forked(lambda told: told())
        locked: list[bool] = []
        for owner, name in ((os, "scandir"), (processes, "status"), (os, "readlink")):
            self.patch(owner, name, partial(self.watched, locked, getattr(owner, name)))
        one.close()
        self.assertEqual((set(locked), len(self.loop.held)), ({False}, 1))
        os.close(into)

    def watched(self, locked: list[bool], call: Any, path: str) -> Any:
        """
        Call, and note whether the thread has the loop's lock.
        """
        locked.append(self.loop.lock._is_owned())
        return call(path)

    def test_pieces(self) -> None:
        """
        The look after those that processes have is made in pieces, between which others have the lock.
        """
        one, other = self.over()
        pid, into = self.forked(lambda told: told())
        one.close()
        os.close(into)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        # Each time that it is asked much has passed.
        self.patch(descriptors, "monotonic", itertools.count(0.0, 1.0).__next__)
        pieces, fewest = 0, len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc")) // 2
        while self.loop.held:
            arguments = self.loop.looking.args
            self.loop.looking.cancel()
            with self.loop:
                descriptors._look(*arguments)
            pieces += 1
        self.assertIsNone(self.loop.looking)
        self.assertGreater(pieces, fewest)
        self.assertEqual(other.recv(1), b"")

    def test_forkMeanwhile(self) -> None:
        """
        A child that is forked while another thread lets go what is held has a loop of its own, and closes
        nothing.
        """
        one, other = self.over()
        _, into = self.forked(lambda told: told())
        one.close()
        ended: list[int] = []
        close = descriptors._close

        def closing(number: int) -> None:
            close(number)
            child = os.fork()
            if not child:
                os._exit(module._loop is not None)
            ended.append(os.waitpid(child, 0)[1])

        self.patch(descriptors, "_close", closing)
        (part,) = self.loop.held
        with self.loop:
            descriptors._letGo(part)
            part.drop()
        self.assertEqual(ended, [0])
        os.close(into)
        self.assertEqual(other.recv(1), b"")

    def test_closedMeanwhile(self) -> None:
        """
        Of two threads that close a socket neither fails, and the connection ends.
        """
        one, other = self.over()

        def closed() -> Any:
            os.close(one.fileno())
            return epoll()

        epoll = descriptors._epoll
        self.patch(descriptors, "_epoll", closed)
        with descriptors.leaving(one.fileno(), one.sdp and one._sdp):
            pass
        one.detach()
        self.assertEqual(other.recv(1), b"")

    def test_noDescriptor(self) -> None:
        """
        A close without a free descriptor ends the connection.
        """
        for name in ("_epoll", "os.dup"):
            one, other = self.over()
            pid, into = self.forked(lambda told: None)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            with mock.patch(f"twisted_ib.blocking.descriptors.{name}", side_effect=OSError(errno.EMFILE, "")):
                one.close()
            self.assertEqual((one.fileno(), other.recv(1)), (-1, b""))
            os.close(into)

    def test_noProc(self) -> None:
        """
        Where there is no /proc, as after a chroot, or no descriptor is free, a process that has a connection
        still keeps it until it ends.
        """
        for error in (FileNotFoundError, OSError(errno.EMFILE, "")):
            one, other = self.over()
            pid, into = self.forked(lambda told: told())
            with mock.patch.object(os, "scandir", side_effect=error):
                one.sendall(b"x")
                one.close()
                (held,) = self.loop.held
                self.assertEqual(held.kept, -1)
                self.assertEqual(exactly(other, 1), b"x")
                os.close(into)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                self.assertEqual(other.recv(1), b"")
            self.assertEqual(self.loop.held, {})

    def test_looks(self) -> None:
        """
        That another process has closed its descriptor is looked for each C{limits.BLOCKING_HELD_SECONDS}, as
        long as there is one.
        """
        one, other = self.over()
        # However busy the machine is, a look is one piece.
        self.patch(descriptors, "monotonic", lambda: 0.0)
        with patched():
            copy = os.dup(one.fileno())
            one.close()
        for _ in range(2):
            before = self.loop.looking
            self.assertAlmostEqual(
                before.getTime() - self.loop.reactor.seconds(), limits.BLOCKING_HELD_SECONDS, 1
            )
            before.reset(0)
            with self.loop:
                self.loop.wait(lambda before=before: self.loop.looking is not before)
        # As another process does, unseen here.
        descriptors._close(copy)
        self.loop.looking.reset(0)
        with self.loop:
            self.loop.wait(lambda: self.loop.looking is None)
        self.assertEqual(self.loop.held, {})
        self.assertEqual(other.recv(1), b"")

    def test_pauses(self) -> None:
        """
        After a piece of a look other threads have more time than that has taken, as on a busy machine a
        single step may take long.
        """
        now = [0.0]

        def steps() -> Iterator[None]:
            for seconds in 0.5, 0.001, 0.5:
                now[0] += seconds
                yield

        self.patch(descriptors, "monotonic", lambda: now[0])
        one, _other = self.over()
        with patched():
            copy = os.dup(one.fileno())
            one.close()
        self.addCleanup(descriptors._close, copy)
        self.loop.looking.cancel()
        work = steps()
        for taken in 0.5, 0.501:
            with self.loop:
                descriptors._look(self.loop, work)
            looking = self.loop.looking
            self.assertGreaterEqual(looking.getTime() - self.loop.reactor.seconds(), 2 * taken)
            looking.cancel()
        with self.loop:
            descriptors._look(self.loop, work)


class WalkTests(Case):
    """
    Calls by descriptor in an order that is drawn, over TCP and over SDP.
    """

    def test_walks(self) -> None:
        """
        Each walk says the same over both.
        """
        for seed in SEEDS:
            said = [self.walk(random.Random(seed), *pair) for pair in self.both()]
            self.assertEqual(said[1], said[0], f"seed {seed}")

    def walk(self, draw: random.Random, one: Any, other: Any) -> list[Any]:
        """
        @return: what each step came to.
        """
        said: list[Any] = []
        # The descriptors of each end, and the bytes on their way to it.
        ends, ways = [[one.detach()], [other.detach()]], [0, 0]
        for _ in range(STEPS):
            at = draw.randrange(2)
            mine = ends[at]
            if not mine:
                continue
            step = draw.choice(
                ("write", "writev", "sendfile", "read", "readv", "dup", "close", "fdopen", "socket")
            )
            it = draw.choice(mine)
            data = draw.randbytes(draw.randrange(1, 3000))
            if step in ("write", "writev", "sendfile", "fdopen", "socket"):
                if not ends[1 - at]:
                    continue
                said.append((step, self.send(step, it, data, draw.randrange(100))))
                ways[1 - at] += said[-1][1]
            elif step in ("read", "readv"):
                size = draw.randrange(1, ways[at] + 1) if ways[at] else 0
                if size or not ends[1 - at]:
                    said.append((step, self.receive(step, it, size or 1)))
                    ways[at] -= size
            elif step == "dup":
                mine.append(os.dup(it))
            elif len(mine) > 1 or not ways[at]:
                mine.remove(it)
                os.close(it)
                said.append(step)
        for each in (*ends[0], *ends[1]):
            os.close(each)
        return said

    def send(self, step: str, it: int, data: bytes, offset: int) -> int:
        """
        @return: how many bytes were sent.
        """
        if step == "write":
            return os.write(it, data)
        if step == "writev":
            return os.writev(it, [data[:offset], data[offset:]])
        if step == "sendfile":
            with tempfile.TemporaryFile() as file:
                file.write(data)
                file.flush()
                return os.sendfile(it, file.fileno(), offset, 2000)
        if step == "fdopen":
            with os.fdopen(it, "wb", closefd=False) as writing:
                return writing.write(data)
        with socket.socket(fileno=os.dup(it)) as skt:
            return skt.send(data)

    def receive(self, step: str, it: int, size: int) -> bytes:
        """
        @return: the bytes that are there, all of that size; fewer at the end.
        """
        data = b""
        while len(data) < size:
            left = size - len(data)
            if step == "read":
                piece = os.read(it, left)
            else:
                rooms = [bytearray(left // 2), bytearray(left - left // 2)]
                piece = b"".join(rooms)[: os.readv(it, rooms)]
            if not piece:
                break
            data += piece
        return data
