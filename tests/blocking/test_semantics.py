"""
Sockets over SDP do as the kernel's: each test runs with both.
"""

from __future__ import annotations

import errno
import io
import os
import resource
import select as kernelSelect
import signal
import socket as kernel
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from subprocess import PIPE, Popen
from typing import Any

from tests.blocking.case import LOOPBACK, BlockingTestCase
from tests.support.calls import requireReplaceable
from tests.support.descriptors import exactly
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import select as offloadingSelect
from twisted_ib import socket as offloading
from twisted_ib.blocking import loop as module
from twisted_ib.blocking.connection import RECEIVE_BYTES, SEND_BYTES
from twisted_ib.blocking.loop import BlockingLoop
from twisted_ib.errors import ForkedSocketError

#: A program that sends and ends, without closing its socket; its arguments are the module and the port.
_ENDS = """
import sys
from importlib import import_module
skt = import_module(sys.argv[1]).create_connection(("127.0.0.1", int(sys.argv[2])))
skt.sendall(b"x" * 1000)
print(getattr(skt, "sdp", None) is not None, flush=True)
"""

#: A server whose signal's handler forks amid its wait for a client; the child, alone, returns into that.
_FORKS = """
import importlib, os, signal, sys
listener = importlib.import_module(sys.argv[1]).create_server(("127.0.0.1", 0))
listener.settimeout(float(sys.argv[2]))
forks = []

def fork(number, frame):
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    # Compiled functions have no frames.
    isAsleep = names[0] in ("aside", "_aside", "_sleep", "turn", "lead", "accept")
    if forks or not isAsleep or "accept" not in names:
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    forks.append(os.fork())
    if forks[0]:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(forks[0], 0)[1]))
    print(listener.getsockname()[1], flush=True)

signal.signal(signal.SIGALRM, fork)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
accepted, where = listener.accept()
accepted.sendall(repr(where[0]).encode())
accepted.close()
"""


class SemanticsTests(BlockingTestCase):
    """
    The same calls, and the same results.
    """

    def both(self) -> Any:
        """
        Yield a connected pair over TCP, and one over SDP, whose sockets block.
        """
        for made in (kernel, offloading):
            pair = self.pair(made, made)
            for skt in pair:
                skt.settimeout(None)
            self.assertEqual(hasattr(pair[0], "sdp"), made is offloading)
            yield pair

    def numberOf(self, call: Any, *arguments: Any) -> Any:
        """
        Return the number of the error that a call raises.
        """
        return self.assertRaises(OSError, call, *arguments).errno

    def test_nothing(self) -> None:
        """
        Where no bytes are asked for, none are waited for.
        """
        for one, _ in self.both():
            self.assertEqual(one.recv(0), b"")
            self.assertEqual(one.recv_into(bytearray()), 0)

    def test_sendAll(self) -> None:
        """
        A C{send} that blocks takes all, one that does not takes what fits.
        """
        data = bytes(range(256)) * (SEND_BYTES // 64)
        for one, other in self.both():
            sent = self.inThread(one.send, memoryview(data))
            self.assertEqual(exactly(other, len(data)), data)
            self.assertEqual(sent.result(HANG_SECONDS), len(data))
            self.assertLess(one.send(bytes(64 * SEND_BYTES), kernel.MSG_DONTWAIT), 64 * SEND_BYTES)

    def test_waitAll(self) -> None:
        """
        MSG_WAITALL waits for all in a socket that blocks, up to the end, and for nothing more with a timeout.
        """
        data = bytes(range(256)) * (RECEIVE_BYTES // 128)
        for one, other in self.both():
            sent = self.inThread(one.sendall, data)
            self.assertEqual(other.recv(len(data), kernel.MSG_WAITALL), data)
            sent.result(HANG_SECONDS)
            one.sendall(b"some")
            self.assertEqual(other.recv(4, kernel.MSG_WAITALL | kernel.MSG_PEEK), b"some")
            other.settimeout(HANG_SECONDS)
            self.assertEqual(other.recv(5, kernel.MSG_WAITALL), b"some")
            other.settimeout(None)
            one.sendall(b"last")
            one.shutdown(kernel.SHUT_WR)
            self.assertEqual(other.recv(5, kernel.MSG_WAITALL), b"last")

    def test_checks(self) -> None:
        """
        Arguments are checked, and flags that TCP ignores are ignored.
        """
        for one, other in self.both():
            for size in (None, "x", 1.0, [1]):
                self.assertRaises(TypeError, one.recv, size)
            for address in (None, "name"):
                self.assertRaises(TypeError, one.sendto, b"x", address)
                self.assertRaises(TypeError, one.sendto, b"x", 0, address)
            for flag in (kernel.MSG_EOR, kernel.MSG_CONFIRM, kernel.MSG_DONTROUTE, 1 << 20):
                self.assertEqual(one.send(b"x", flag), 1)
            self.assertEqual(exactly(other, 3), b"xxx")
            self.assertEqual(other.recv(1, kernel.MSG_EOR), b"x")

    def test_states(self) -> None:
        """
        C{shutdown} again is no error until both ends have, and TCP_INFO says the state.
        """

        def state(skt: Any) -> int:
            return int(skt.getsockopt(kernel.IPPROTO_TCP, kernel.TCP_INFO, 104)[0])

        for one, other in self.both():
            self.assertEqual((state(one), state(other)), (1, 1))
            one.shutdown(kernel.SHUT_WR)
            one.shutdown(kernel.SHUT_RDWR)
            self.assertEqual(other.recv(1), b"")
            waitUntil(lambda one=one: state(one) == 5)
            self.assertEqual(state(other), 8)
            other.shutdown(kernel.SHUT_WR)
            waitUntil(lambda one=one: state(one) == 7)
            self.assertEqual(self.numberOf(one.shutdown, kernel.SHUT_WR), errno.ENOTCONN)

    def test_waitWithin(self) -> None:
        """
        A wait in a signal's handler, which has interrupted a call that had the lock, lets other threads work.
        """
        one, other = self.pair()
        one.settimeout(HANG_SECONDS)
        answered = self.inThread(lambda: other.sendall(other.recv(10).upper()))
        with self.loop, self.loop:
            one.sendall(b"asked")
            self.assertEqual(one.recv(10), b"ASKED")
        answered.result(HANG_SECONDS)

    def test_closeUnread(self) -> None:
        """
        Close is a reset if there are unread bytes, which nobody has looked for yet, and an orderly
        end if there are none.
        """
        for one, other in self.both():
            one.sendall(b"unread")
            other.close()
            self.assertRaises(ConnectionResetError, one.recv, 10)
        for one, other in self.both():
            one.sendall(b"read")
            self.assertEqual(exactly(other, 4), b"read")
            other.close()
            self.assertEqual(one.recv(10), b"")

    def test_closeAmid(self) -> None:
        """
        A call with a timeout whose socket another thread closes is EBADF: over TCP when its time is over.
        """

        def waitAll(skt: Any) -> None:
            skt.recv(9, kernel.MSG_WAITALL)

        def peek(skt: Any) -> None:
            skt.recv(9, kernel.MSG_PEEK)

        def receive(skt: Any) -> None:
            skt.recv(9)

        def send(skt: Any) -> None:
            skt.sendall(bytes(32 << 20))

        for call in receive, peek, waitAll, send:
            for one, other in self.both():
                isTCP = not hasattr(one, "sdp")
                one.settimeout(0.2 if isTCP else HANG_SECONDS)
                waiting = self.inThread(call, one)
                if isTCP:
                    waitUntil(waiting.running)
                else:
                    waitUntil(lambda: self.loop.sleeping)
                one.close()
                error = waiting.exception(HANG_SECONDS)
                self.assertIsInstance(error, OSError)
                self.assertEqual(getattr(error, "errno", None), errno.EBADF, (call, isTCP))
                other.close()

    def test_shutAmid(self) -> None:
        """
        A call that sends ends when another thread shuts the socket down, however little the peer takes.
        """
        for one, _ in self.both():
            waiting = self.inThread(one.sendall, bytes(32 << 20))
            poller = kernelSelect.poll()
            poller.register(one, kernelSelect.POLLOUT)
            if hasattr(one, "sdp"):
                waitUntil(lambda: self.loop.sleeping)
            else:
                waitUntil(lambda poller=poller: not poller.poll(0))
            one.shutdown(kernel.SHUT_RDWR)
            self.assertIsInstance(waiting.exception(HANG_SECONDS), BrokenPipeError)

    def test_peek(self) -> None:
        """
        As much as MSG_PEEK has shown is there, however it was sent.
        """
        one, other = self.pair()
        other.settimeout(None)
        for size in (3, 5, 7):
            one.sendall(bytes(size))
            self.loop.poll()
        peeked = other.recv(10, kernel.MSG_PEEK)
        self.assertEqual((len(peeked), len(other.recv(len(peeked)))), (10, 10))
        self.assertEqual(other.recv(2), bytes(2))
        one.sendall(bytes(6))
        self.loop.poll()
        self.assertEqual(len(other.recv(100)), 9)

    def test_sendFile(self) -> None:
        """
        C{sendfile} reads at its offset, wherever the file stands, and moves it.
        """
        for one, other in self.both():
            with tempfile.TemporaryFile() as file:
                file.write(b"0123456789")
                file.flush()
                for arguments, tell in (((), 10), ((7,), 10), ((2, 3), 5), ((0, 1), 1), ((9, 5), 10)):
                    file.seek(0, os.SEEK_END)
                    sent = one.sendfile(file, *arguments)
                    self.assertEqual((sent, file.tell()), (tell - (arguments or (0,))[0], tell))
                self.assertEqual(exactly(other, 18), b"012345678978923409")
                for count, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError)):
                    self.assertRaises(error, one.sendfile, file, 0, count)
                self.assertEqual(one.sendfile(file, 20), 0)
                one.settimeout(0)
                self.assertRaises(ValueError, one.sendfile, file)
            one.settimeout(None)
            with tempfile.TemporaryFile("w+") as text:
                self.assertRaises(ValueError, one.sendfile, text)
            self.assertEqual(one.sendfile(io.BytesIO(b"xyz"), 1), 2)
            self.assertEqual(exactly(other, 2), b"yz")

    def test_peekAll(self) -> None:
        """
        MSG_WAITALL with MSG_PEEK has the peer go on that was stopped, and some of whose bytes were received.
        """
        data = bytes(range(256)) * (RECEIVE_BYTES // 64)
        one, other = self.pair()
        other.settimeout(None)
        sent = self.inThread(one.sendall, data)
        connection = other._connection()
        self.assertEqual(len(other.recv(RECEIVE_BYTES, kernel.MSG_WAITALL | kernel.MSG_PEEK)), RECEIVE_BYTES)
        self.assertFalse(connection.stream.reading)
        begun = exactly(other, RECEIVE_BYTES // 4)
        self.assertFalse(connection.stream.reading)
        peeked = self.inThread(other.recv, RECEIVE_BYTES, kernel.MSG_WAITALL | kernel.MSG_PEEK)
        self.assertEqual(len(peeked.result(HANG_SECONDS)), RECEIVE_BYTES)
        self.assertEqual(begun + exactly(other, len(data) - len(begun)), data)
        sent.result(HANG_SECONDS)

    def test_shutReading(self) -> None:
        """
        After C{shutdown(SHUT_RD)} nothing is waited for; the bytes that arrive are received all the same.
        """
        for one, other in self.both():
            other.shutdown(kernel.SHUT_RD)
            self.assertEqual(other.recv(1), b"")
            one.sendall(b"late")
            poller = kernelSelect.poll()
            poller.register(other, kernelSelect.POLLIN)
            while not (data := other.recv(9)):
                poller.poll(1)
            self.assertEqual(data, b"late")

    def test_named(self) -> None:
        """
        A socket that is connected is not bound nor listened on.
        """
        for one, _ in self.both():
            self.assertEqual(self.numberOf(one.bind, (LOOPBACK, 0)), errno.EINVAL)
            self.assertEqual(self.numberOf(one.listen), errno.EINVAL)

    def test_inherited(self) -> None:
        """
        A socket that is accepted has the options of the one that listens, also those set since.
        """
        self.rules("use sdp connect * *:*\n")
        wanted: Any = (
            (kernel.SOL_SOCKET, kernel.SO_KEEPALIVE, b"\1\0\0\0"),
            (kernel.SOL_SOCKET, kernel.SO_LINGER, struct.pack("ii", 1, 7)),
            (kernel.SOL_SOCKET, kernel.SO_RCVTIMEO, struct.pack("ll", 7, 0)),
            (kernel.IPPROTO_TCP, kernel.TCP_NODELAY, b"\1\0\0\0"),
            (kernel.IPPROTO_IP, kernel.IP_TOS, b"\x10\0\0\0"),
        )
        for made in (kernel, offloading):
            listener = self.server(made)
            for later in (), wanted:
                for option in later:
                    listener.setsockopt(*option)
                accepting = self.inThread(listener.accept)
                self.client(listener, made)
                accepted, _ = accepting.result(HANG_SECONDS)
                self.addCleanup(accepted.close)
                self.assertEqual(getattr(accepted, "sdp", None) is not None, made is offloading)
                self.assertEqual(accepted.getsockopt(kernel.SOL_SOCKET, kernel.SO_REUSEADDR), 1)
                for level, name, value in wanted:
                    found = accepted.getsockopt(level, name, len(value))
                    self.assertEqual(found == value, later is wanted, (made, name))
            if made is offloading:
                self.assertEqual(accepted.sdp.limits, (7.0, None))
                self.assertTrue(accepted.sdp.stream.getTcpKeepAlive())

    def test_noDescriptor(self) -> None:
        """
        A process that may have no further descriptor can accept the connection later.
        """
        self.rules("use sdp connect * *:*\n")
        for made in (kernel, offloading):
            listener = self.server(made)
            client = self.client(listener, made)
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            free = os.dup(client.fileno())
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
            try:
                error = self.assertRaises(OSError, listener.accept)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            self.assertEqual(error.errno, errno.EMFILE)
            accepted, _ = listener.accept()
            self.addCleanup(accepted.close)
            client.sendall(b"x")
            self.assertEqual(accepted.recv(1), b"x")
            self.assertEqual(getattr(accepted, "sdp", None) is not None, made is offloading)

    def test_source(self) -> None:
        """
        The source is the kernel's choice, whichever address of the host the client connects to.
        """
        self.rules("use sdp connect * *:*\n")
        for made in (kernel, offloading):
            listener = made.create_server(("", 0))
            self.addCleanup(listener.close)
            port = listener.getsockname()[1]
            for host, bound in ("127.0.0.2", ""), ("127.0.0.2", "127.0.0.3"), (LOOPBACK, ""):
                accepting = self.inThread(listener.accept)
                client = made.create_connection((host, port), HANG_SECONDS, (bound, 0))
                self.addCleanup(client.close)
                accepted, address = accepting.result(HANG_SECONDS)
                self.addCleanup(accepted.close)
                self.assertEqual(getattr(accepted, "sdp", None) is not None, made is offloading)
                self.assertEqual(accepted.getpeername(), address)
                self.assertEqual(client.getsockname(), address)
                self.assertEqual(address[0], bound or LOOPBACK)
                self.assertEqual(client.getpeername(), (host, port))
                self.assertEqual(accepted.getsockname(), (host, port))

    def test_wrongArguments(self) -> None:
        """
        Too few arguments of C{sendto}, and no events for C{epoll}, are the errors of the standard library.
        """
        for selecting, pair in zip((kernelSelect, offloadingSelect), self.both(), strict=True):
            self.assertRaises(TypeError, pair[0].sendto, b"to nobody")
            epoll = selecting.epoll()
            self.addCleanup(epoll.close)
            epoll.register(pair[0])
            self.assertRaises(ValueError, epoll.poll, 0, 0)

    def test_onlySends(self) -> None:
        """
        A program that only sends learns that its peer has gone.
        """
        for one, other in self.both():
            other.close()

            def sendOn(one: Any = one) -> None:
                while True:
                    one.send(b"x")
                    kernelSelect.select([], [], [], 0.001)

            self.assertEqual(self.inThread(sendOn).exception(HANG_SECONDS).errno, errno.EPIPE)
            self.assertEqual(one.recv(1), b"")
            self.assertEqual(self.numberOf(one.getpeername), errno.ENOTCONN)
            self.assertEqual(self.numberOf(one.shutdown, kernel.SHUT_WR), errno.ENOTCONN)

    def test_connecting(self) -> None:
        """
        A connect that does not block gets on without C{select}: the program may ask again.
        """
        for made in (kernel, offloading):
            listener = self.server(made)
            accepted = self.inThread(listener.accept)
            skt = made.socket()
            self.addCleanup(skt.close)
            skt.setblocking(False)
            numbers = {skt.connect_ex(listener.getsockname())}
            while errno.EISCONN not in numbers:
                numbers.add(skt.connect_ex(listener.getsockname()))
            self.assertLessEqual(numbers, {0, errno.EINPROGRESS, errno.EALREADY, errno.EISCONN})
            self.assertEqual(skt.getpeername(), listener.getsockname())
            accepted.result(HANG_SECONDS)[0].close()

    def test_tooEarly(self) -> None:
        """
        Before the connection is made, a send is C{EAGAIN}, and so is a receive.
        """
        listener = self.server()
        with offloading.socket() as skt:
            skt.setblocking(False)
            skt.connect_ex(listener.getsockname())
            requireReplaceable(BlockingLoop, "poll")
            self.patch(BlockingLoop, "poll", lambda loop: None)
            for call, argument in ((skt.send, b"x"), (skt.sendall, b"x"), (skt.recv, 1)):
                self.assertEqual(self.numberOf(call, argument), errno.EAGAIN)

    def test_readHangUp(self) -> None:
        """
        POLLRDHUP and EPOLLRDHUP are the peer's end of stream.
        """
        for selecting, pair in zip((kernelSelect, offloadingSelect), self.both(), strict=True):
            one, other = pair
            one.shutdown(kernel.SHUT_WR)
            self.assertEqual(other.recv(1), b"")
            poller, epoll = selecting.poll(), selecting.epoll()
            self.addCleanup(epoll.close)
            for each in (poller, epoll):
                each.register(other, kernelSelect.POLLIN | kernelSelect.POLLRDHUP)
                found = [events for _, events in each.poll(1)]
                self.assertEqual(found, [kernelSelect.POLLIN | kernelSelect.POLLRDHUP])

    def test_processEnds(self) -> None:
        """
        A process that ends closes its connections: what it has sent arrives, then the end of the stream.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for made, name in ((kernel, "socket"), (offloading, "twisted_ib.socket")):
            listener = self.server(made)
            command = [sys.executable, "-c", _ENDS, name, str(listener.getsockname()[1])]
            with Popen(command, env=environment, stdout=PIPE, text=True) as process:
                connection, _ = listener.accept()
                # It has ended before anything is received.
                said = process.communicate(timeout=HANG_SECONDS)[0]
            self.assertEqual(said, f"{made is offloading}\n")
            with connection:
                self.assertEqual(connection.recv(1001, kernel.MSG_WAITALL), b"x" * 1000)
                self.assertEqual(connection.recv(1), b"")

    def test_forkedSelect(self) -> None:
        """
        In a child C{select} has a parent's socket as ready, for the call that says what is wrong.
        """
        one, _ = self.pair()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                if offloadingSelect.select([one], [], [], HANG_SECONDS)[0] == [one]:
                    status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_forkedAmid(self) -> None:
        """
        A child that a signal's handler forks within a wait leaves that with the error of a parent's socket,
        of the leader and of a follower; it works on with sockets of its own, and the parent hears of its
        octets.
        """
        plain = kernel.socketpair()
        for each in plain:
            self.addCleanup(each.close)
        for others in [], plain[:1]:
            for follows in False, True:
                one, other = self.pair()
                self.forking(
                    partial(offloadingSelect.select, [one, *others], [], [], HANG_SECONDS), other, follows
                )
                self.assertEqual(one.recv(1), b"x")
                self.forking(partial(one.recv, 1, kernel.MSG_PEEK), other, follows)
                self.assertEqual(one.recv(1), b"x")

    def test_forkedAccept(self) -> None:
        """
        One that is forked within a wait for a client waits on, over TCP, as its listener is the kernel's.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        # The standard library's has no frame.
        command = [sys.executable, "-c", _FORKS, "twisted_ib.socket", str(HANG_SECONDS)]
        with Popen(command, env=environment, stdout=PIPE, text=True) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline() or 0)
            with kernel.create_connection((LOOPBACK, port), HANG_SECONDS) as client:
                self.assertEqual(exactly(client, 11), b"'127.0.0.1'")
        self.assertEqual(process.returncode, 0)

    def forking(self, call: Callable[[], object], other: Any, follows: bool) -> None:
        """
        Fork within a wait, and send something from the other end.

        @param follows: Whether another thread drives the devices meanwhile.
        """

        def fork(*_: object) -> None:
            if forks:
                return
            forks.append(True)
            # Another thread has the lock meanwhile.
            self.inThread(holding)
            isHeld.wait()
            pids.append(os.fork())
            isForked.set()
            if pids[-1]:
                statuses.append(self.inThread(ended))
            else:
                # Else a wait would last for as long as its parent's.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(int(HANG_SECONDS / 2))

        def holding() -> None:
            with self.loop:
                isHeld.set()
                isForked.wait()

        def ended() -> int:
            # The child has heard of nothing.
            status = os.waitpid(pids[0], 0)[1]
            other.send(b"x")
            return status

        pids: list[int] = []
        forks: list[bool] = []
        statuses: list[Any] = []
        isHeld, isForked = threading.Event(), threading.Event()
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, fork))
        led = self.pair()
        leading = self.inThread(led[0].recv, 1) if follows else None
        if follows:
            waitUntil(lambda: self.loop.sleeping)
        interrupting = self.inThread(self.interruptAsleep, threading.get_ident(), follows, forks)
        try:
            call()
        except ForkedSocketError:
            os._exit(1 if pids[0] else self.echoes())
        finally:
            if pids and not pids[0]:
                os._exit(2)
        interrupting.result(HANG_SECONDS)
        self.assertEqual(statuses[0].result(HANG_SECONDS), 0)
        if leading is not None:
            led[1].send(b"y")
            self.assertEqual(leading.result(HANG_SECONDS), b"y")

    def interruptAsleep(self, thread: int, follows: bool, forks: list[bool]) -> None:
        """
        Send a thread signals once it waits, until it has forked: one that comes just before the wait's call
        of the kernel does not end that.
        """
        loop = self.loop
        waitUntil(lambda: loop.followers if follows else loop.sleeping and loop.leader == thread)

        def interrupt() -> bool:
            signal.pthread_kill(thread, signal.SIGUSR1)
            return bool(forks)

        waitUntil(interrupt)

    def echoes(self) -> int:
        """
        Return the status of a child whose sockets work, and that takes no events of its parent's.
        """
        if os.readlink(f"/proc/self/fd/{self.loop.reactor.descriptor}") == "anon_inode:[eventpoll]":
            return 4
        listener = offloading.create_server((LOOPBACK, 0))
        client = offloading.create_connection(listener.getsockname(), HANG_SECONDS)
        accepted, _ = listener.accept()
        accepted.sendall(b"own")
        return 0 if client.recv(3, kernel.MSG_WAITALL) == b"own" and module.madeLoop() is not self.loop else 3


class AsOverTCPTests(BlockingTestCase):
    """
    What the differential tests have found to be different.
    """

    def test_peekGrows(self) -> None:
        """
        A program that looks until all of a header is there sees it grow.
        """
        one, other = self.pair()
        one.sendall(b"hea")
        self.assertEqual(other.recv(6, kernel.MSG_PEEK), b"hea")
        one.sendall(b"der")
        self.assertEqual(other.recv(6, kernel.MSG_PEEK), b"header")

    def test_resetAfterEnd(self) -> None:
        """
        A send to a peer that has closed is answered with a reset, which C{poll} shows behind the end: EPIPE.
        """
        one, other = self.pair()
        other.close()
        self.assertEqual(one.recv(1), b"")
        one.send(b"x")
        poll = offloadingSelect.poll()
        poll.register(one, kernelSelect.POLLIN)
        waitUntil(lambda: poll.poll(0)[0][1] & kernelSelect.POLLHUP)
        self.assertTrue(poll.poll(0)[0][1] & kernelSelect.POLLERR)
        self.assertEqual(one.recv(1), b"")
        self.assertEqual(one.getsockopt(kernel.SOL_SOCKET, kernel.SO_ERROR), errno.EPIPE)
        self.assertRaises(BrokenPipeError, one.send, b"x")

    def test_refusedBuffers(self) -> None:
        """
        A buffer that cannot be written to takes no octets with it.
        """
        one, other = self.pair()
        one.sendall(b"kept")
        self.assertRaises(TypeError, other.recv_into, b"abc")
        self.assertRaises(BufferError, other.recv_into, memoryview(bytearray(8))[::2])
        self.assertRaises(BufferError, one.send, memoryview(b"abcdef")[::2])
        self.assertEqual(exactly(other, 4), b"kept")

    def test_duplicateOutlives(self) -> None:
        """
        A socket of a duplicate's descriptor has the connection, although the first socket is closed.
        """
        one, other = self.pair()
        copy = one.dup()
        one.close()
        made = offloading.socket(fileno=copy.detach())
        self.addCleanup(made.close)
        made.sendall(b"x")
        self.assertEqual(exactly(other, 1), b"x")

    def test_connectTwice(self) -> None:
        """
        Behind a connect that did not block the next one succeeds, and the one behind that is EISCONN.
        """
        listener = self.server()
        one = self.connecting(listener.getsockname())
        waitUntil(lambda: offloadingSelect.select([], [one], [], 0)[1])
        self.assertIsNotNone(one.sdp)
        self.assertEqual([one.connect_ex(listener.getsockname()) for _ in range(2)], [0, errno.EISCONN])

    def test_closedForAll(self) -> None:
        """
        Once both directions have ended the socket has no peer, and may be bound.
        """
        one, other = self.pair()
        one.shutdown(kernel.SHUT_WR)
        self.assertEqual(other.recv(1), b"")
        other.shutdown(kernel.SHUT_WR)
        self.assertEqual(one.recv(1), b"")
        self.assertEqual(self.assertRaises(OSError, one.getpeername).errno, errno.ENOTCONN)
        one.bind((LOOPBACK, 0))
        one.close()
        self.assertEqual(one.connect_ex((LOOPBACK, 9)), errno.EBADF)

    def test_listenerShutWrite(self) -> None:
        """
        Only the reading side of a listener can be shut.
        """
        listener = self.server()
        listener.shutdown(kernel.SHUT_WR)
        self.assertEqual(self.assertRaises(OSError, listener.shutdown, 7).errno, errno.EINVAL)
        self.client(listener)
        self.assertIsNotNone(listener.sdp)
        listener.accept()[0].close()

    def test_errorQueue(self) -> None:
        """
        The queue of errors is empty.
        """
        one, _ = self.pair()
        self.assertRaises(BlockingIOError, one.recv, 1, kernel.MSG_ERRQUEUE)
