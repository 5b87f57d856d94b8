"""
Tests for L{twisted_ib.blocking.patch} and L{twisted_ib.blocking.tls}.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import selectors
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import connection, get_context
from multiprocessing.reduction import ForkingPickler
from typing import Any

from twisted.internet.task import Clock

from tests.blocking.case import LOOPBACK, BlockingTestCase
from tests.support.certificates import certificate
from tests.support.descriptors import exactly, runForked
from tests.support.waiting import HANG_SECONDS, waitUntil
from twisted_ib import limits
from twisted_ib.blocking import select as ourSelect
from twisted_ib.blocking import socket as ourSocket
from twisted_ib.blocking import tls
from twisted_ib.blocking.connection import RECEIVE_BYTES, Connection
from twisted_ib.blocking.patch import patch, patched, unpatch

_Plain = socket.socket

#: Waits for a listener over SDP, by names that were replaced before anything waited so.
_WAITS = """
from twisted_ib.blocking.patch import patch
patch()
import os, select, socket
listener = socket.create_server(("127.0.0.1", 0))
there, here = os.pipe()
os.write(here, b"x")
poller = select.poll()
for each in listener, there:
    poller.register(each, select.POLLIN)
found = select.select([listener], [], [], 0.01)[0] + select.select([listener, there], [], [])[0]
print(found == [there], poller.poll() == [(there, select.POLLIN)])
"""
#: What has not been imported before the names are replaced.
_IMPORTED = """
import socket, sys, threading
from twisted_ib.blocking.patch import patch, unpatch
def say():
    from multiprocessing import connection, reduction
    known = reduction.ForkingPickler._extra_reducers
    print(connection.socket is not socket, all(each in known for each in (plain, socket.socket)))
plain = socket.socket
assert "multiprocessing.connection" not in sys.modules
"""
_NOW = f"""{_IMPORTED}
patch()
say()
unpatch()
from multiprocessing import connection
assert connection.socket is socket
"""
#: Another thread's import ends between two looks at what is imported.
_MEANWHILE = f"""{_IMPORTED}
class After(dict):
    def get(self, name):
        thread = threading.Thread(target=__import__, args=(name,))
        thread.start()
        thread.join()
        return super().get(name)
patch(After())
say()
"""
#: Another thread's import takes long.
_SLOWLY = f"""{_IMPORTED}
from importlib.machinery import SourceFileLoader
inside, seen = threading.Event(), threading.Event()
load = SourceFileLoader.get_code
def get_code(self, name):
    if name == sys.argv[1]:
        inside.set()
        seen.wait(0.2)
    return load(self, name)
SourceFileLoader.get_code = get_code
thread = threading.Thread(target=__import__, args=("multiprocessing.connection",))
thread.start()
inside.wait()
after = {{}}
patch(after)
thread.join()
for name in after.keys() & sys.modules.keys():
    after.pop(name)(sys.modules[name])
say()
"""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """
        Answer with the path.
        """
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """
        Say nothing.
        """


def answer(skt: Any) -> None:
    """
    Answer one connection, in a process of its own.
    """
    skt.listen()
    made, _ = skt.accept()
    made.sendall(b"x")
    made.close()


class PatchTests(BlockingTestCase):
    """
    Names of the standard library.
    """

    def test_names(self) -> None:
        """
        Within the context the names are ours, in nested ones too; behind it they are as before.
        """
        before = socket.socket, select.select, selectors.DefaultSelector, socketserver._ServerSelector
        with patched():
            self.assertIn("selectors", patch())
            unpatch()
            self.assertIs(socket.socket, ourSocket.socket)
            self.assertIs(select.poll, ourSelect.poll)
            self.assertIs(selectors.DefaultSelector, ourSelect.DefaultSelector)
            self.assertIsInstance(socket.socketpair()[0], socket.socket)
        after = socket.socket, select.select, selectors.DefaultSelector, socketserver._ServerSelector
        self.assertEqual(before, after)
        self.assertFalse(hasattr(socketserver.ForkingMixIn, "server_activate"))
        self.assertRaises(RuntimeError, unpatch)
        self.flushWarnings()

    def test_imported(self) -> None:
        """
        So are those of modules that are imported later, or by another thread meanwhile; multiprocessing gives
        away sockets that were made before, too.
        """
        slowly = [(_SLOWLY, name) for name in ("multiprocessing.connection", "multiprocessing.reduction")]
        for words in ((_NOW,), (_WAITS,), (_MEANWHILE,), *slowly):
            command = [sys.executable, "-c", *words]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=HANG_SECONDS).stdout
            self.assertEqual(said, b"True True\n", words)

    def test_descriptors(self) -> None:
        """
        Bytes go through the descriptor of a socket over SDP as through that of one over TCP, and through
        others as ever.
        """
        pairs = self.pair(), self.pair(socket, socket)
        with patched():
            found = [self.byDescriptor(*pair) for pair in pairs]
            self.assertEqual(*found)
            with tempfile.TemporaryFile() as file:
                self.assertEqual(os.write(file.fileno(), b"file"), 4)
                os.lseek(file.fileno(), 0, os.SEEK_SET)
                self.assertEqual(os.read(file.fileno(), 10), b"file")

    def byDescriptor(self, one: Any, other: Any) -> list[Any]:
        """
        @return: what calls by descriptor have come to.
        """
        said: list[Any] = []

        def say(call: Any, *arguments: Any) -> None:
            try:
                said.append(call(*arguments))
            except OSError as error:
                said.append(error.errno)

        for skt in (one, other):
            skt.settimeout(None)
        here, there = one.fileno(), other.fileno()
        say(os.write, here, b"written")
        said.append(exactly(other, 7))
        say(os.writev, here, [b"in ", bytearray(b"parts")])
        say(os.read, there, 100)
        one.sendall(b"0123456789")
        rooms = [bytearray(4), bytearray(10)]
        say(os.readv, there, rooms)
        said.append(rooms)
        with tempfile.TemporaryFile() as file:
            file.write(b"0123456789")
            file.flush()
            file.seek(3)
            say(os.sendfile, here, file.fileno(), 8, 100)
            said.append(os.lseek(file.fileno(), 0, os.SEEK_CUR))
            say(os.sendfile, here, file.fileno(), None, 5)
            said.append(os.lseek(file.fileno(), 0, os.SEEK_CUR))
            say(os.sendfile, here, file.fileno(), 10, 5)
        said.append(exactly(other, 7))
        one.setblocking(False)
        say(os.read, here, 10)
        one.setblocking(True)
        copy = os.dup(here)
        say(os.write, copy, b"copy")
        os.close(copy)
        said.append(exactly(other, 4))
        with os.fdopen(os.dup(here), "wb") as writing, os.fdopen(other.detach(), "r") as reading:
            writing.write(b"a line\n")
            writing.flush()
            said.append(reading.readline())
        one.settimeout(HANG_SECONDS)
        said.append(one.recv(10))
        say(os.read, -1, 10)
        say(os.write, there, b"closed")
        return said

    def test_spawned(self) -> None:
        """
        A bound socket is given to a process that is spawned, and is TCP's in both; a connection that cannot
        move is not.
        """
        with patched():
            bound = socket.socket()
            self.addCleanup(bound.close)
            bound.bind((LOOPBACK, 0))
            answering = get_context("spawn").Process(target=answer, args=(bound,))
            answering.start()
            self.addCleanup(answering.join)
            waitUntil(lambda: self.answers(bound.getsockname()))
            one, other = self.pair()
            # Else it moves.
            copy = other.dup()
            self.addCleanup(copy.close)
            self.assertRaises(TypeError, ForkingPickler.dumps, one)
            # What the kernel has connected is given as always.
            with socket.create_connection(bound.getsockname()) as carried:
                self.assertIs(type(carried), ourSocket.KernelSocket)
                self.assertIn(ourSocket.KernelSocket, ForkingPickler._extra_reducers)
                self.assertIn(ourSocket.MovedSocket, ForkingPickler._extra_reducers)

    def answers(self, address: Any) -> bool:
        """
        @return: whether somebody answers at an address.
        """
        try:
            with _Plain() as skt:
                skt.settimeout(HANG_SECONDS)
                skt.connect(address)
                return skt.recv(1) == b"x"
        except ConnectionRefusedError:
            return False

    def test_multiprocessing(self) -> None:
        """
        Connections of C{multiprocessing} are descriptors of TCP connections; C{wait} takes sockets over SDP
        beside them.
        """
        with patched():
            with connection.Listener((LOOPBACK, 0), authkey=b"key") as listener:
                calling = self.inThread(connection.Client, listener.address, None, b"key")
                with listener.accept() as accepted, calling.result(HANG_SECONDS) as called:
                    called.send([1])
                    self.assertTrue(accepted.poll(HANG_SECONDS))
                    self.assertEqual(accepted.recv(), [1])
                    one, other = self.pair()
                    self.assertEqual(connection.wait([accepted, other], 0), [])
                    one.send(b"x")
                    self.assertEqual(connection.wait([accepted, other], HANG_SECONDS), [other])
        self.assertIs(connection.socket, socket)

    def test_http(self) -> None:
        """
        Server and client of the standard library in all four combinations; SDP carries what both want.
        """
        for serving, asking in ((a, b) for a in (True, False) for b in (True, False)):
            with self.serving(serving) as port:
                client = HTTPConnection(LOOPBACK, port, timeout=HANG_SECONDS)
                if not asking:
                    client.sock = _Plain()
                    client.sock.connect((LOOPBACK, port))
                for n in range(5):
                    client.request("GET", f"/{n}")
                    self.assertEqual(client.getresponse().read(), b"/%d" % n)
                carried = getattr(client.sock, "sdp", None)
                client.close()
            self.assertEqual(carried is not None, serving and asking)

    @contextmanager
    def serving(self, isPatched: bool) -> Iterator[int]:
        """
        A web server in a thread, where all that begins now is patched.

        @param isPatched: Whether its socket is.
        """
        with patched() if isPatched else nullcontext():
            server = ThreadingHTTPServer((LOOPBACK, 0), _Handler)
        with server, patched():
            ended = self.inThread(server.serve_forever, 0.05)
            try:
                yield server.server_address[1]
            finally:
                server.shutdown()
                ended.result(HANG_SECONDS)

    def test_forking(self) -> None:
        """
        Servers that fork listen over TCP alone.
        """
        with patched():
            with socketserver.ForkingTCPServer((LOOPBACK, 0), socketserver.BaseRequestHandler) as server:
                skt: Any = server.socket
                self.assertIsNone(skt.sdp)
                socket.create_connection(server.server_address).close()


def isTaken(lock: Any) -> bool:
    """
    @return: Whether another thread has a lock.
    """
    isFree = bool(lock.acquire(blocking=False))
    if isFree:
        lock.release()
    return not isFree


class TLSTests(BlockingTestCase):
    """
    TLS over SDP.
    """

    def setUp(self) -> None:
        """
        Contexts of both ends, whose connections stay with SDP.
        """
        super().setUp()
        self.rules("use both server * *:*\nuse both connect * *:*\ntimeout short 0\n")
        made = certificate("localhost")
        path = self.mktemp()
        with open(path, "wb") as file:
            file.write(made.dumpPEM())
        self.serverSide = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.serverSide.load_cert_chain(path)
        self.clientSide = ssl.create_default_context(cafile=path)

    def test_echo(self) -> None:
        """
        A listener that was wrapped, clients that were wrapped before and after the connect, the end of TLS.
        """
        listener = tls.wrap_socket(self.serverSide, self.server(), server_side=True)
        self.addCleanup(listener.close)
        for isEarly in (False, True):
            accepting = self.inThread(listener.accept)
            plain = ourSocket.socket() if isEarly else ourSocket.create_connection(listener.getsockname())
            client: Any = tls.wrap_socket(self.clientSide, plain, server_hostname="localhost")
            self.addCleanup(client.close)
            if isEarly:
                client.connect(listener.getsockname())
            server: Any = accepting.result(HANG_SECONDS)[0]
            self.addCleanup(server.close)
            self.assertIsInstance(client.sdp, Connection)
            self.assertIs(client.context, self.clientSide)
            self.assertEqual(client.version(), server.version())
            self.assertIn("subject", client.getpeercert())
            data = bytes(range(256)) * 512
            sending = self.inThread(client.sendall, data)
            self.assertEqual(exactly(server, len(data)), data)
            sending.result(HANG_SECONDS)
            server.setblocking(False)
            self.assertRaises(ssl.SSLWantReadError, server.recv, 1)
            server.setblocking(True)
            ending = self.inThread(server.unwrap)
            self.assertIs(client.unwrap(), client)
            client.send(b"in the clear")
            self.assertEqual(exactly(ending.result(HANG_SECONDS), 12), b"in the clear")

    def test_overTCP(self) -> None:
        """
        A socket that was wrapped before its connect, which then goes over TCP, has TLS there.
        """
        listener = socket.create_server((LOOPBACK, 0))
        self.addCleanup(listener.close)

        def serve() -> bytes:
            with self.serverSide.wrap_socket(listener.accept()[0], server_side=True) as server:
                server.sendall(b"there")
                return exactly(server, 5)

        serving = self.inThread(serve)
        client: Any = tls.wrap_socket(self.clientSide, ourSocket.socket(), server_hostname="localhost")
        self.addCleanup(client.close)
        client.settimeout(HANG_SECONDS)
        client.connect(listener.getsockname())
        self.assertIsNone(client.sdp)
        client.sendall(b"hello")
        self.assertEqual(exactly(client, 5), b"there")
        self.assertEqual(serving.result(HANG_SECONDS), b"hello")

    def test_connectNumber(self) -> None:
        """
        C{connect_ex} returns the number of its error, and C{connect} nothing, or raises it; a closed socket
        is none.
        """
        listener = tls.wrap_socket(self.serverSide, self.server(), server_side=True)
        address = listener.getsockname()
        for name, expected in (("connect_ex", 0), ("connect", None)):
            accepting = self.inThread(listener.accept)
            client: Any = tls.wrap_socket(self.clientSide, ourSocket.socket(), server_hostname="localhost")
            self.addCleanup(client.close)
            self.assertEqual(getattr(client, name)(address), expected)
            self.addCleanup(accepting.result(HANG_SECONDS)[0].close)
        listener.close()
        for name in ("connect_ex", "connect"):
            client = tls.wrap_socket(self.clientSide, ourSocket.socket(), server_hostname="localhost")
            self.addCleanup(client.close)
            if name == "connect":
                self.assertRaises(ConnectionRefusedError, client.connect, address)
            else:
                self.assertEqual(client.connect_ex(address), errno.ECONNREFUSED)
        ours: Any = tls.wrap_socket
        for closed, wrap in ((ourSocket.socket(), ours), (socket.socket(), ssl.SSLContext.wrap_socket)):
            closed.close()
            arguments = self.clientSide, closed, False, True, True, "localhost"
            self.assertEqual(self.assertRaises(OSError, wrap, *arguments).errno, errno.EBADF)

    def test_bothWays(self) -> None:
        """
        A thread of each end reads while another writes more than the medium holds.
        """
        one, other = self.pair()
        serving = self.inThread(lambda: tls.wrap_socket(self.serverSide, other, server_side=True))
        client: Any = tls.wrap_socket(self.clientSide, one, server_hostname="localhost")
        ends = (client, serving.result(HANG_SECONDS))
        size = 4 * RECEIVE_BYTES
        sent = [self.inThread(each.sendall, bytes(size)) for each in ends]
        waitUntil(lambda: not any(each.sdp.writable() for each in ends))
        read = [self.inThread(exactly, each, size) for each in ends]
        for each in (*sent, *read):
            each.result(HANG_SECONDS)

    def ends(self) -> tuple[Any, Any]:
        """
        @return: Both ends of a connection with TLS.
        """
        one, other = self.pair()
        serving = self.inThread(lambda: tls.wrap_socket(self.serverSide, other, server_side=True))
        client = tls.wrap_socket(self.clientSide, one, server_hostname="localhost")
        return client, serving.result(HANG_SECONDS)

    def test_forgotten(self) -> None:
        """
        A socket that nobody has any more is closed at once, without a collection of garbage.
        """
        ends = [*self.ends()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.disable()
            self.addCleanup(gc.enable)
            del ends[1]
        ends[0].settimeout(HANG_SECONDS)
        self.assertEqual(ends[0].recv(1), b"")

    def test_oneAtATime(self) -> None:
        """
        Of threads that read and write at once one is within OpenSSL, which the others would make it crash.
        """
        client, server = self.ends()
        records = client._sslobj
        own, inside, most = records._object, [], []

        class Watched:
            def __getattr__(self, name: str) -> Any:
                def call(*arguments: Any) -> Any:
                    inside.append(name)
                    try:
                        # Another thread has its turn.
                        time.sleep(0)
                        most.append(len(inside))
                        return getattr(own, name)(*arguments)
                    finally:
                        inside.pop()

                return call

        records._object = Watched()
        echo = self.inThread(lambda: [server.sendall(exactly(server, 10)) for _ in range(4 * 50)])
        writing = [self.inThread(lambda: [client.sendall(bytes(10)) for _ in range(50)]) for _ in range(4)]
        exactly(client, 4 * 500)
        for each in (*writing, echo):
            each.result(HANG_SECONDS)
        self.assertEqual(set(most), {1})

    def test_readers(self) -> None:
        """
        Of threads that read at once none waits for what another has received.
        """
        client, server = self.ends()
        lock, isQueued = client._sslobj._filling, threading.Event()

        class Watched:
            def acquire(self, timeout: float) -> bool:
                if isTaken(lock):
                    isQueued.set()
                return bool(lock.acquire(timeout=timeout))

            def release(self) -> None:
                lock.release()

        client._sslobj._filling = Watched()
        reading = [self.inThread(client.recv, 1) for _ in range(2)]
        self.assertTrue(isQueued.wait(HANG_SECONDS))
        server.sendall(b"ab")
        self.assertEqual(sorted(each.result(HANG_SECONDS) for each in reading), [b"a", b"b"])

    def test_readerBeside(self) -> None:
        """
        Who reads does not send what another thread writes, nor wait for it: the peer may wait until it reads.
        """
        client, server = self.ends()
        records = client._sslobj
        with records._lock:
            reading = self.inThread(client.recv, 1)
            server.sendall(b"x")
            self.assertEqual(reading.result(HANG_SECONDS), b"x")
        octets = bytes(16 * RECEIVE_BYTES)
        writing = self.inThread(client.sendall, octets)
        waitUntil(lambda: isTaken(records._lock))
        answering = self.inThread(server.sendall, b"y" * len(octets))
        left = len(octets)
        while left:
            left -= len(client.recv(left))
        while left < len(octets):
            left += len(server.recv(1 << 20))
        for each in (writing, answering):
            each.result(HANG_SECONDS)

    def test_long(self) -> None:
        """
        What the socket has not taken yet of a long write is not copied with each part that it takes.
        """
        client, server = self.ends()
        records, kinds = client._sslobj, []
        send = records._send

        def watched(data: Any, deadline: float | None) -> int:
            kinds.append(type(data))
            return int(send(data, deadline))

        records._send = watched
        octets = bytes(4 * RECEIVE_BYTES)
        writing = self.inThread(client.sendall, octets)
        left = len(octets)
        while left:
            left -= len(server.recv(left))
        writing.result(HANG_SECONDS)
        self.assertEqual(set(kinds), {memoryview})

    def test_deadline(self) -> None:
        """
        A timeout is that of a call, and not of each piece of a record.
        """
        client, _ = self.ends()
        records, clock, left = client._sslobj, Clock(), []
        ofClock = 10
        self.patch(tls, "monotonic", clock.seconds)

        def receive(size: int, deadline: float) -> bytes:
            left.append(tls._secondsTo(deadline))
            clock.advance(4)
            return b"\x17"

        def send(data: Any, deadline: float) -> int:
            receive(0, deadline)
            return 1

        client.settimeout(ofClock)
        records._recv, records._send = receive, send
        self.assertRaises(TimeoutError, client.recv, 1)
        self.assertRaises(TimeoutError, client.send, b"x")
        self.assertEqual(left, [10, 6, 2] * 2)
        self.assertRaises(TimeoutError, client.unwrap)
        # The least that poll(2) waits, so that there is a first look.
        client.settimeout(1e-9)
        self.assertAlmostEqual(tls._secondsTo(records._deadline()), 1e-3)

    def test_handlerRaises(self) -> None:
        """
        A write that the handler of a signal ends by an error, whatever that is, is tried again: nothing of it
        is lost, and nothing is sent twice.
        """
        self.handlerRaises(OSError("the handler's"))
        self.handlerRaises(ZeroDivisionError())

    def handlerRaises(self, error: Exception) -> None:
        """
        It raises after the first piece.
        """
        client, server = self.ends()
        octets = os.urandom(2 * tls.SEND_BYTES)
        records, sizes = client._sslobj, []
        send = records._send

        def interrupted(data: Any, deadline: float | None) -> int:
            if sizes:
                records._send = send
                raise error
            sizes.append(send(data, deadline))
            return int(sizes[0])

        reading = self.inThread(exactly, server, len(octets) + 1)
        records._send = interrupted
        self.assertRaises(type(error), client.send, octets)
        self.assertLessEqual(sizes[0], tls.SEND_BYTES)
        self.assertEqual(client.send(octets), len(octets))
        client.sendall(b"x")
        self.assertEqual(reading.result(HANG_SECONDS), octets + b"x")

    def test_answers(self) -> None:
        """
        Answers that OpenSSL makes while a write is to be tried again wait for that, but no more than so many.
        """
        client, server = self.ends()
        client.setblocking(False)
        self.assertRaises(ssl.SSLWantWriteError, client.send, bytes(16 * RECEIVE_BYTES))
        client._sslobj._outgoing.write(bytes(tls.ANSWER_BYTES))
        self.assertRaises(ssl.SSLWantReadError, client.recv, 1)
        server.sendall(b"x")
        client.settimeout(HANG_SECONDS)
        self.assertEqual(client.recv(1), b"x")
        self.assertEqual(client._sslobj._outgoing.pending, tls.ANSWER_BYTES)
        client.setblocking(False)
        client._sslobj._outgoing.write(b"x")
        self.assertRaises(ssl.SSLWantWriteError, client.recv, 1)

    def test_again(self) -> None:
        """
        A write that did not end, as of a socket that does not block, is tried again and is not sent twice;
        meanwhile this end reads.
        """
        client, server = self.ends()
        octets = os.urandom(16 * RECEIVE_BYTES)
        client.setblocking(False)
        self.assertRaises(ssl.SSLWantWriteError, client.send, octets)
        server.sendall(b"x")
        client.settimeout(HANG_SECONDS)
        self.assertEqual(client.recv(1), b"x")
        reading = self.inThread(exactly, server, len(octets) + 1)
        client.settimeout(0.01)
        while True:
            try:
                count = client.send(octets)
            except TimeoutError:
                continue
            break
        self.assertEqual(count, len(octets))
        client.settimeout(HANG_SECONDS)
        client.sendall(b"y")
        self.assertEqual(reading.result(HANG_SECONDS), octets + b"y")
        client.settimeout(0)
        self.assertRaises(ssl.SSLWantWriteError, client.send, octets)
        reading = self.inThread(exactly, server, len(octets) + 1)
        client.settimeout(HANG_SECONDS)
        self.assertIn("BAD_WRITE_RETRY", str(self.assertRaises(ssl.SSLError, client.send, octets[:-1])))
        self.assertEqual(client.send(octets), len(octets))
        client.sendall(b"z")
        self.assertEqual(reading.result(HANG_SECONDS), octets + b"z")

    def test_brokenWrite(self) -> None:
        """
        The last words of a peer that takes no more are read, as the answer to a request it refuses.
        """
        client, server = self.ends()
        server.sendall(b"no")

        def broken(*_: Any) -> int:
            raise BrokenPipeError(errno.EPIPE, "broken")

        client._sslobj._send = broken
        self.assertRaises(BrokenPipeError, client.sendall, b"x")
        self.assertEqual(exactly(client, 2), b"no")

    def test_tickets(self) -> None:
        """
        A server's handshake is over though its client has closed, which has sent all that it wants.
        """
        one, other = self.pair()
        server: Any = tls.wrap_socket(self.serverSide, other, True, do_handshake_on_connect=False)
        records = server._sslobj
        send = records._send

        def gone(data: Any, deadline: float | None) -> int:
            if records.version() is not None:
                raise BrokenPipeError(errno.EPIPE, "broken")
            return int(send(data, deadline))

        records._send = gone
        serving = self.inThread(server.do_handshake)
        client: Any = tls.wrap_socket(self.clientSide, one, server_hostname="localhost")
        client.sendall(b"x")
        serving.result(HANG_SECONDS)
        self.assertEqual(server.recv(1), b"x")
        self.assertRaises(BrokenPipeError, server.sendall, b"y")

    def test_writers(self) -> None:
        """
        A handshake and the end of TLS wait for a thread that writes, and nobody waits for a handshake that
        waits for its peer.
        """
        client, _ = self.ends()
        taken, done = threading.Event(), threading.Event()

        def write() -> None:
            with client._sslobj._lock:
                taken.set()
                done.wait(HANG_SECONDS)

        writing = self.inThread(write)
        self.assertTrue(taken.wait(HANG_SECONDS))
        for call in (client.unwrap, client._sslobj.do_handshake):
            client.settimeout(0)
            self.assertRaises(ssl.SSLWantWriteError, call)
            client.settimeout(0.01)
            self.assertRaises(TimeoutError, call)
        done.set()
        writing.result(HANG_SECONDS)
        one, other = self.pair()
        late: Any = tls.wrap_socket(
            self.clientSide, one, do_handshake_on_connect=False, server_hostname="localhost"
        )
        shaking = self.inThread(late.do_handshake)
        waitUntil(lambda: isTaken(late._sslobj._filling))
        self.assertFalse(isTaken(late._sslobj._lock))
        other.close()
        self.assertIsInstance(shaking.exception(HANG_SECONDS), OSError)

    def test_handlerWrites(self) -> None:
        """
        The records of the handler of a signal that writes amid a write of its thread are behind those.
        """
        client, server = self.ends()
        records = client._sslobj
        send = records._send

        def interrupted(data: Any, deadline: float | None) -> int:
            records._send = send
            client.sendall(b"b")
            return int(send(data, deadline))

        records._send = interrupted
        client.sendall(b"a")
        self.assertEqual(exactly(server, 2), b"ab")

    def test_classes(self) -> None:
        """
        Sockets of classes that a program has derived are carried, and so are those of its contexts' class.
        """

        class Own(ourSocket.socket):
            pass

        class Secured(ssl.SSLSocket):
            def recv(self, *arguments: Any) -> bytes:
                return b"own " + super().recv(*arguments)

        self.clientSide.sslsocket_class = Secured
        listener = tls.wrap_socket(self.serverSide, self.server(), server_side=True)
        accepting = self.inThread(listener.accept)
        plain = Own()
        plain.connect(listener.getsockname())
        client: Any = tls.wrap_socket(self.clientSide, plain, server_hostname="localhost")
        self.addCleanup(client.close)
        server = accepting.result(HANG_SECONDS)[0]
        self.addCleanup(server.close)
        self.assertIsInstance(client.sdp, Connection)
        server.sendall(b"x")
        self.assertEqual((type(client).__name__, client.recv(1)), ("Secured", b"own x"))
        self.assertIs(tls._classOf(Secured), type(client))
        for _ in range(limits.GIVEN_CLASSES + 1):
            tls._classOf(type("Other", (ssl.SSLSocket,), {}))
        self.assertEqual(tls._classOf.cache_info().currsize, limits.GIVEN_CLASSES)

    def test_handler(self) -> None:
        """
        The handler of a signal that reads, or asks, amid a read of its thread does not wait for itself.
        """
        client, server = self.ends()
        records, found = client._sslobj, []
        receive = records._receive

        def interrupted(deadline: float | None) -> None:
            records._receive = receive
            with records._memory:
                found.append(client.pending())
            server.sendall(b"ab")
            found.append(client.recv(1))
            receive(deadline)

        records._receive = interrupted
        server.sendall(b"cd")
        found.append(client.recv(3))
        self.assertEqual((found[0], b"".join(found[1:])[:1]), (0, b"c"))

    def test_waitingReader(self) -> None:
        """
        A timeout holds behind a thread that reads, too, and a socket that does not block has nothing then;
        they say what the standard library's do.
        """
        client, server = self.ends()
        client.settimeout(0.01)
        self.assertEqual(str(self.assertRaises(TimeoutError, client.recv, 1)), "The read operation timed out")
        client.settimeout(None)
        reading = self.inThread(client.recv, 1)
        waitUntil(lambda: isTaken(client._sslobj._filling))
        client.settimeout(0.01)
        self.assertRaises(TimeoutError, client.recv, 1)
        client.settimeout(0)
        self.assertRaises(ssl.SSLWantReadError, client.recv, 1)
        server.sendall(b"x")
        self.assertEqual(reading.result(HANG_SECONDS), b"x")
        client.settimeout(0.01)
        octets = bytes(4 * RECEIVE_BYTES)
        self.assertEqual(
            str(self.assertRaises(TimeoutError, client.sendall, octets)), "The write operation timed out"
        )

    def test_forked(self) -> None:
        """
        A forked process is refused its parent's connection, whatever a thread of the parent does.
        """
        client, server = self.ends()
        reading = self.inThread(client.recv, 1)
        waitUntil(lambda: isTaken(client._sslobj._filling))
        self.assertEqual(runForked(lambda: self.assertRaises(OSError, client.recv, 1) and None), 0)
        server.sendall(b"x")
        self.assertEqual(reading.result(HANG_SECONDS), b"x")

    def test_refused(self) -> None:
        """
        A certificate of another host is an error at both ends.
        """
        one, other = self.pair()
        serving = self.inThread(lambda: tls.wrap_socket(self.serverSide, other, server_side=True))
        self.assertRaises(
            ssl.SSLCertVerificationError, tls.wrap_socket, self.clientSide, one, server_hostname="elsewhere"
        )
        self.assertIsInstance(serving.exception(HANG_SECONDS), OSError)

    def test_kernel(self) -> None:
        """
        Sockets of the kernel's are the standard library's.
        """
        one, other = self.pair(ourSocket, socket)
        serving = self.inThread(lambda: tls.wrap_socket(self.serverSide, other, server_side=True))
        client = tls.wrap_socket(self.clientSide, one, server_hostname="localhost")
        self.assertEqual({type(client), type(serving.result(HANG_SECONDS))}, {ssl.SSLSocket})
        client.close()
        serving.result().close()
