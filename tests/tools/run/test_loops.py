"""
Tests for L{twisted_ib.tools.run.loops}, C{hooks} and C{sockets}: what a program gets, by what it uses.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.support.certificates import certificate
from tests.support.commands import programOf
from tests.support.waiting import HANG_SECONDS
from tests.tools.run.case import RunTestCase
from twisted_ib.tools.run.hooks import ABSENT, Hooks, Later

#: Of what two threads do at once: a fault of one in some 200 is met.
TRIES = 2000

#: Connects by blocking sockets; the result has both ends and the listener.
_PAIR = """
import socket
def pair(make=None):
    listener = socket.create_server(("127.0.0.1", 0))
    client = (make or socket.socket)()
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    client.sendall(b"ping")
    assert server.recv(9) == b"ping"
    return listener, client, server
def isSDP(ends): return getattr(ends[1], "sdp", None) is not None
"""
#: Two ends of asyncio; the loop is imported late.
_ASKED = """
async def asked(address=("127.0.0.1", 0), **options):
    import asyncio
    host, port = (None, None) if "sock" in options else address
    server = await asyncio.start_server(lambda _, w: (w.write(b"pong"), w.close()), host, port, **options)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b"pong"
    writer.close()
    server.close()
    return writer.get_extra_info("why").provider
"""
_UNUSED = f"""
import asyncio, ssl, selectors
import twisted.internet.defer, twisted.web.http
{_PAIR}
ends = pair()
"""
_LATE = f"""
import socket, select
{_ASKED}
def main():
    import asyncio
    return asyncio.run(asked())
assert main() == "sdp"
"""
#: Blocking sockets first, then a loop, which gets a port and a connection of theirs; in a thread beside it;
#: and after it.
_MIXED = f"""
import asyncio
{_PAIR}{_ASKED}
async def main():
    port = socket.create_server(("127.0.0.1", 0))
    assert not port.isDirect
    found = [await asked(sock=early), await asked(sock=port), isSDP(await asyncio.to_thread(pair))]
    _, client, server = first
    server.setblocking(False)
    loop = asyncio.get_running_loop()
    received = asyncio.ensure_future(loop.sock_recv(server, 9))
    await asyncio.sleep(0)
    client.sendall(b"more")
    found.append((await received).decode())
    reader, writer = await asyncio.open_connection(sock=server)
    client.sendall(b"a line\\n")
    found.append((await reader.readline()).decode())
    return found
first, early = pair(), socket.create_server(("127.0.0.1", 0))
assert isSDP(first) and early.sdp is not None
print(asyncio.run(main()), isSDP(pair()))
"""
_TWISTED = f"""
import sys
{_PAIR}{_ASKED}
first = isSDP(pair())
if sys.argv[1:] == ["asyncio"]:
    from twisted.internet import asyncioreactor
    asyncioreactor.install()
from twisted.internet import defer, reactor, threads
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted_ib.reactor import explain
done = defer.Deferred()
class End(Protocol):
    def connectionMade(self): done.called or done.callback(explain(self.transport).provider)
async def main():
    port = reactor.listenTCP(0, Factory.forProtocol(Protocol), interface="127.0.0.1")
    reactor.connectTCP("127.0.0.1", port.getHost().port, ClientFactory.forProtocol(End))
    found = [type(reactor).__name__, first, await done, isSDP(await threads.deferToThread(pair))]
    if sys.argv[1:] == ["asyncio"]:
        import asyncio
        found.append(await defer.Deferred.fromFuture(asyncio.ensure_future(asked())))
    print(found)
def end(result):
    reactor.stop()
    return result
reactor.callWhenRunning(lambda: defer.ensureDeferred(main()).addBoth(end))
reactor.run()
"""
#: Sockets that a program waits for itself, with its loop's help.
_OWN = """
import asyncio, socket
async def main():
    loop, accepted = asyncio.get_running_loop(), asyncio.Queue()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    loop.add_reader(listener, lambda: accepted.put_nowait(listener.accept()))
    clients = [socket.socket() for _ in range(3)]
    for client in clients:
        client.setblocking(False)
    try:
        clients[0].connect(listener.getsockname())
    except BlockingIOError:
        pass
    clients[1].connect_ex(listener.getsockname())
    await loop.sock_connect(clients[2], listener.getsockname())
    kept = [await accepted.get() for _ in clients]
    loop.remove_reader(listener)
asyncio.run(main())
"""
#: TLS at both ends, in either way, after the sockets that Twisted was imported for without it.
_TLS = f"""
import sys
{_PAIR}
hadSDP, hadTLS = isSDP(pair()), "OpenSSL" in sys.modules
from twisted.internet import reactor, ssl
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.protocols.tls import TLSMemoryBIOProtocol
class Server(Protocol):
    def connectionMade(self):
        self.transport.write(b"pong")
class Client(Protocol):
    def connectionMade(self):
        self.transport.startTLS(ssl.CertificateOptions())
    def dataReceived(self, data):
        print(hadSDP, hadTLS, data.decode(), isinstance(self.transport.protocol, TLSMemoryBIOProtocol))
        reactor.stop()
options = ssl.KeyPair.generate().selfSignedCert(1, CN=b"localhost").options()
port = reactor.listenSSL(0, Factory.forProtocol(Server), options, interface="127.0.0.1")
reactor.connectTCP("127.0.0.1", port.getHost().port, ClientFactory.forProtocol(Client))
reactor.run()
"""
_OWN_REACTOR = """
from twisted.internet.main import installReactor
from twisted.internet.selectreactor import SelectReactor
installReactor(SelectReactor())
from twisted.internet import reactor
reactor.callWhenRunning(reactor.stop)
reactor.run()
"""
#: Loops of other kinds import these sockets, and use them without blocking from when they run.
_FOREIGN = f"""
{_PAIR}
import sys, trio
def unblocked():
    made = socket.socket()
    made.setblocking(False)
    return made
def bound():
    made = unblocked()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made
early, accept, waiting = socket.create_server(("127.0.0.1", 0)), socket.socket.accept, bound()
print(early.sdp is not None, waiting.sdp is not None, trio.run is not None, flush=True)
trio.run(None)
trio.run(None)
early.setblocking(False)
given = socket.socket(fileno=bound().detach())
given.listen()
client = socket.create_connection(early.getsockname())
server, _ = accept(early)
print(given.sdp, isSDP(pair()), early.sdp, client.sdp, waiting.sdp)
print(type(client) is type(server) is socket.socket)
"""
#: Finders of modules within others, which have modules loaded when they are used, as Mercurial's.
_WRAPPED = f"""
import sys
from importlib.util import LazyLoader
class Wrapped:
    def __init__(self, finder): self.finder = finder
    def find_spec(self, *arguments):
        spec = self.finder.find_spec(*arguments)
        if hasattr(getattr(spec, "loader", None), "exec_module"):
            spec.loader = LazyLoader(spec.loader)
        return spec
sys.meta_path[:] = map(Wrapped, sys.meta_path)
import ssl, uvloop
{_PAIR}
print(isSDP(pair()), uvloop.__name__, type(sys.meta_path[0]) is Wrapped)
"""
#: A process that ends with octets in files, and sends more by what it has registered first.
_ENDS = """
import atexit
atexit.register(lambda: mine.sendall(b"end"))
import socket, subprocess, sys
if sys.argv[1:]:
    mine = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    file = mine.makefile("wb")
    file.write(b"octets")
else:
    listener = socket.create_server(("127.0.0.1", 0))
    child = subprocess.Popen([sys.executable, "-c", sys.orig_argv[-1], str(listener.getsockname()[1])])
    mine, _ = listener.accept()
    print(mine.sdp is not None, b"".join(iter(lambda: mine.recv(99), b"")), child.wait())
"""
#: A process that closes all descriptors once it has used SDP, at once or one by one, from the least up or
#: from the greatest down, and goes on.
_SWEEPS = """
import gc, os, socket, sys
def pair():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    client.sendall(b"octet"[:1])
    return accepted.recv(9) == b"o" and accepted.sdp is not None, server, client, accepted
first = pair()
if sys.argv[1] == "range":
    os.closerange(3, 4096)
else:
    for number in range(3, 4096)[:: int(sys.argv[1])]:
        try:
            os.close(number)
        except OSError:
            pass
# Of the same numbers.
files = [open(os.devnull) for _ in range(40)]
second = pair()
print(first[0], second[0])
try:
    first[3].recv(1)
except OSError as error:
    print(error.strerror)
del first
gc.collect()
second[2].sendall(b"more")
# As over TCP, the first socket, whose descriptor was closed by itself, closes what has its number now.
gone = sum(not os.path.exists(f"/proc/self/fd/{each.fileno()}") for each in files)
print(second[3].recv(9), gone <= 1, flush=True)
os._exit(0)
"""
#: Processes that end amid a turn of a loop, or become others.
_ENDS_AT_ONCE = """
import asyncio, os, subprocess, sys
async def ask(number, how):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(number))
    writer.write(b"octets")
    await writer.drain()
    if how == "exit":
        os._exit(7)
    os.execlp(sys.executable, "python", "-c", "raise SystemExit(7)")
async def answer():
    got = asyncio.Queue()
    async def serve(reader, writer):
        got.put_nowait((writer.get_extra_info("why").provider, await reader.read()))
        writer.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    for how in "exit", "exec":
        number = str(server.sockets[0].getsockname()[1])
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", sys.orig_argv[-1], number, how)
        print(*await got.get(), await child.wait())
asyncio.run(ask(*sys.argv[1:]) if sys.argv[1:] else answer())
"""
#: It is run, if it has something for that, after sockets.
_UNUSED_FOREIGN = f"""
{_PAIR}
from curio import kernel
made = socket.socket()
made.bind(("127.0.0.1", 0))
made.setblocking(False)
made.listen()
isSDP = getattr(made, "sdp", None) is not None
print(isSDP, not hasattr(kernel, "Kernel") or kernel.Kernel().made == 1)
"""
#: Each way in a process of its own, in which it has the first socket, to servers in another.
_SECURED = """
import http.client, os, smtplib, socket, socketserver, ssl, sys, threading, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile="pem")
theirs.load_cert_chain("pem")
class Web(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"pong")
    def log_message(self, *_):
        pass
class Mail(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 ready\\r\\n")
        for line in iter(self.rfile.readline, b""):
            self.wfile.write(b"250-x\\r\\n250 STARTTLS\\r\\n" if b"ehlo" in line else b"220 x\\r\\n")
            if b"STARTTLS" in line:
                self.request = theirs.wrap_socket(self.request, server_side=True)
                self.setup()
                self.handle()
                return
def serve():
    web = ThreadingHTTPServer(("127.0.0.1", 0), Web, False)
    web.socket = theirs.wrap_socket(web.socket, server_side=True)
    web.server_bind()
    web.server_activate()
    mail = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail)
    os.write(told, f"{web.server_port} {mail.server_address[1]}".encode())
    threading.Thread(target=mail.serve_forever, daemon=True).start()
    web.serve_forever()
def asked(skt):
    skt.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    assert skt.recv(4) == b"HTTP"
    return isSDP(skt)
def isSDP(skt):
    return getattr(skt, "sdp", None) is not None
def early():
    return asked(ours.wrap_socket(socket.create_connection(("127.0.0.1", web)), server_hostname="localhost"))
def late():
    made = ours.wrap_socket(socket.socket(), server_hostname="localhost")
    made.connect(("127.0.0.1", web))
    return asked(made)
def https():
    made = http.client.HTTPSConnection("localhost", web, context=ours)
    made.request("GET", "/")
    found = isSDP(made.sock)
    assert made.getresponse().read() == b"pong"
    return found
def opened():
    answer = urllib.request.urlopen(f"https://localhost:{web}/", context=ours)
    found = isSDP(answer.fp.raw._sock)
    assert answer.read() == b"pong"
    return found
def mailed():
    made = smtplib.SMTP("localhost", mail)
    made.starttls(context=ours)
    made.noop()
    found = isSDP(made.sock)
    # One that is dropped may have octets left to read, which resets the connection.
    made.quit()
    return found
def child(call):
    number = os.fork()
    if number:
        return number
    try:
        os.write(1, f"{call.__name__} {call()}\\n".encode())
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(0)
ports, told = os.pipe()
server = child(serve)
web, mail = map(int, os.read(ports, 99).split())
for call in (early, late, https, opened, mailed):
    os.waitpid(child(call), 0)
os.kill(server, 9)
"""
#: What gevent takes out, while a module is imported and when sockets connect: they are TCP's.
_ABSENT = f"""
{_PAIR}
import select
del select.epoll
import ssl
assert not hasattr(select, "epoll")
pair()
print(hasattr(select, "epoll"), hasattr(select, "poll"))
"""
_DESCRIPTORS = """
from multiprocessing.connection import Client, Listener
for family in ("AF_INET", "AF_UNIX"):
    with Listener(family=family) as listener, Client(listener.address) as client, listener.accept() as server:
        client.send("ping")
        print(server.recv())
"""
#: The same of a package that was made of multiprocessing (multiprocess, billiard).
_DESCRIPTORS_OF = """
import sys, types
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
text = Path(find_spec("multiprocessing.connection").origin).read_text()
text = text.replace("from . ", "from multiprocessing ").replace("from .", "from multiprocessing.")
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(sys.argv[1]):
            return spec_from_loader(name, self, is_package=name == sys.argv[1])
    def create_module(self, spec):
        pass
    def exec_module(self, module):
        if module.__name__ != sys.argv[1]:
            exec(text, vars(module))
sys.meta_path.append(Finder())
"""
#: pyOpenSSL, of sockets that are connected, and of some that are not yet; both ends, the client in a thread.
_OPENSSL = f"""
import select, sys, threading
{_PAIR}
from OpenSSL import SSL
serving, asking = SSL.Context(SSL.TLS_SERVER_METHOD), SSL.Context(SSL.TLS_CLIENT_METHOD)
serving.use_certificate_file(sys.argv[1])
serving.use_privatekey_file(sys.argv[1])
class Own(SSL.Connection):
    def sendall(self, octets):
        return super().sendall(octets + b"!")
def ask(client):
    client.do_handshake()
    client.sendall(bytes(500000))
    assert client.recv(9) == b"answer"
    client.shutdown()
    try:
        client.recv(1)
    except SSL.ZeroReturnError:
        client.close()
def serve(server):
    server.do_handshake()
    count = 0
    while count < 500001:
        count += len(server.recv(65536))
    server.setblocking(False)
    try:
        server.recv(1)
    except SSL.WantReadError:
        server.sendall(b"answer")
    select.select([server], [], [])
    try:
        server.recv(1)
    except SSL.ZeroReturnError:
        server.shutdown()
    return count
listener = SSL.Connection(serving, socket.create_server(("127.0.0.1", 0)))
for isEarly in (True, False):
    skt = socket.socket()
    if isEarly:
        client = Own(asking, skt)
        client.connect(listener.getsockname())
    else:
        skt.connect(listener.getsockname())
        client = Own(asking, skt)
        client.set_connect_state()
    thread = threading.Thread(target=ask, args=(client,))
    thread.start()
    server, _ = listener.accept()
    print(serve(server), server.sdp is not None, type(client).__name__)
    thread.join()
for end in (None, *socket.socketpair()):
    try:
        SSL.Connection(asking, end).bio_read(9)
    except Exception as error:
        print(type(error).__name__)
"""
#: It says what carries both ends, and whether OpenSSL has their descriptors.
_OPENSSL_MOVES = f"""
import sys, threading
{_PAIR}
from OpenSSL import SSL
serving, asking = SSL.Context(SSL.TLS_SERVER_METHOD), SSL.Context(SSL.TLS_CLIENT_METHOD)
serving.use_certificate_file(sys.argv[1])
serving.use_privatekey_file(sys.argv[1])
_, one, other = pair()
ends = []
def serve():
    server = SSL.Connection(serving, other)
    server.set_accept_state()
    server.do_handshake()
    server.sendall(server.recv(99))
    ends.append(server)
thread = threading.Thread(target=serve)
thread.start()
client = SSL.Connection(asking, one)
client.set_connect_state()
client.do_handshake()
client.sendall(b"question")
print(client.recv(99).decode())
thread.join()
for end, skt in ((client, one), (*ends, other)):
    try:
        end.bio_read(9)
    except Exception as error:
        print(type(error).__name__, skt.sdp)
"""
#: It fills what its peer does not read, tries the write again, and is told what is wrong with a record.
_OPENSSL_WAITS = f"""
import select, sys
{_PAIR}
from OpenSSL import SSL
serving, asking = SSL.Context(SSL.TLS_SERVER_METHOD), SSL.Context(SSL.TLS_CLIENT_METHOD)
serving.use_certificate_file(sys.argv[1])
serving.use_privatekey_file(sys.argv[1])
def made():
    _, one, other = pair()
    one.setblocking(False)
    other.setblocking(False)
    client, server = SSL.Connection(asking, one), SSL.Connection(serving, other)
    client.set_connect_state()
    server.set_accept_state()
    left = [client, server]
    while left:
        try:
            left[0].do_handshake()
            del left[0]
        except SSL.WantReadError:
            left.reverse()
    return client, server
def said(end):
    while True:
        select.select([end], [], [])
        try:
            return end.recv(1)
        except SSL.WantReadError:
            pass
        except SSL.Error as error:
            return type(error).__name__, error.args
client, server = made()
octets, sent, got, isOwed = bytes(100000), 0, 0, True
try:
    while True:
        sent += client.send(octets)
except SSL.WantWriteError:
    try:
        client.send(octets[1:])
    except SSL.Error as error:
        print(error.args)
while isOwed or got < sent:
    try:
        got += len(server.recv(65536))
    except SSL.WantReadError:
        try:
            if isOwed:
                sent += client.send(octets)
                isOwed = False
        except SSL.WantWriteError:
            pass
print(got == sent)
client.sock_shutdown(socket.SHUT_WR)
print(said(server))
client, server = made()
client._socket.send(bytes(99))
print(said(server))
print(said(client))
"""
#: It accepts, and has a process that it forks speak with the client.
_FORKS = f"""
{_PAIR}
import multiprocessing
def serve(): server.recv(9)
_, client, server = pair()
process = multiprocessing.get_context("fork").Process(target=serve)
process.start()
process.join()
print(process.exitcode)
"""
_UVLOOP = f"""
import uvloop, asyncio
{_ASKED}
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
uvloop.install()
print(uvloop.run(asked()), type(uvloop.new_event_loop()) is uvloop.Loop is asyncio.SelectorEventLoop)
"""
_NAMES = f"""
from socket import socket as early
import select, socketserver
{_PAIR}
class Own(early):
    calls = 0
    def connect(self, address):
        self.calls += 1
        super().connect(address)
class Named(early):
    def __init__(self):
        early.__init__(self)
own, poller = Own(), select.poll()
_, client, server = pair(lambda: own)
poller.register(server, select.POLLIN)
assert not poller.poll(0)
client.sendall(b"x")
assert [each for each, _ in poller.poll()] == [server.fileno()]
class Forking(socketserver.ForkingTCPServer):
    pass
forking = Forking(("127.0.0.1", 0), None)
from http.server import CGIHTTPRequestHandler, HTTPServer
class CGI(CGIHTTPRequestHandler):
    pass
assert HTTPServer(("127.0.0.1", 0), CGI).socket.sdp is None
from functools import partial
assert HTTPServer(("127.0.0.1", 0), partial(CGI, directory="/")).socket.sdp is None
assert HTTPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler).socket.sdp is not None
print(isSDP((None, own)), own.calls, type(early()) is socket.socket, isinstance(own, socket.socket),
      isinstance(socket.socket(), early), forking.socket.sdp, isSDP(pair(Named)))
"""
#: The program puts its own in the place of what is there.
_REPLACED = f"""
{_PAIR}
class Proxied(socket.socket):
    pass
socket.socket = Proxied
pair()
print(socket.socket is Proxied)
"""
#: The socket that listens goes to a process, as hypercorn's does.
_GIVEN = f"""
import multiprocessing
{_PAIR}
def serve(port):
    import asyncio
    async def main():
        server = await asyncio.start_server(lambda _, w: (w.write(b"pong"), w.close()), sock=port)
        ready.release()
        await server.serve_forever()
    asyncio.run(main())
def begin(lock):
    global ready
    ready = lock
def main():
    port = socket.create_server(("127.0.0.1", 0))
    assert port.sdp is not None
    context = multiprocessing.get_context("spawn")
    lock = context.Semaphore(0)
    worker = context.Process(target=work, args=(lock, port))
    worker.start()
    lock.acquire()
    client = socket.create_connection(port.getsockname())
    print(client.sdp is not None, client.recv(9).decode())
    worker.terminate()
    worker.join()
def work(lock, port):
    begin(lock)
    serve(port)
if __name__ == "__main__":
    main()
"""


#: A blocking socket beside a loop, as ib-ss and the log show it.
_SHOWN = f"""
import asyncio, subprocess, sys
{_PAIR}
async def main():
    from twisted.logger import globalLogPublisher, formatEvent
    globalLogPublisher.addObserver(lambda event: print("logged", formatEvent(event)))
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    kept = [await asyncio.to_thread(pair), await asyncio.to_thread(pair)]
    words, said = [sys.executable, "-c", sys.argv[1], "--why"], ""
    # It does not wait for long for a process that is busy.
    while sys.argv[2] not in said:
        said = await asyncio.to_thread(subprocess.check_output, words, text=True)
    print(said)
asyncio.run(main())
"""


#: The servers of pyftpdlib, as far as they listen.
_FTP = """
import socket
class FTPServer:
    def __init__(self):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.listen(9)
    def listen(self, number):
        self.socket.listen(number)
class MultiprocessFTPServer(FTPServer):
    pass
"""
_FTP_SERVED = """
import socket
from pyftpdlib.servers import FTPServer, MultiprocessFTPServer
for kind in (FTPServer, MultiprocessFTPServer):
    server = kind()
    one = socket.create_connection(server.socket.getsockname())
    print(kind.__name__, getattr(one, "sdp", None) is not None)
"""
#: How many modules of this package, and of Twisted, a program with one pair of blocking sockets over SDP has
#: at most.  They are most of its start; these numbers may only fall.
_MODULES = {"twisted_ib": 230, "twisted": 62}
_COUNTED = f"""
import sys
{_PAIR}
assert isSDP(pair())
names = [each.partition(".")[0] for each in sys.modules]
print(*(names.count(each) for each in {list(_MODULES)}))
"""
_LATER = f"""
import sys
{_PAIR}
pair()
assert not {{"asyncio", "http.cookiejar", "email", "pickle", "twisted.internet.unix"}} & set(sys.modules)
assert not {{"logging", "platform"}} & set(sys.modules)
from twisted.logger import STDLibLogObserver
from twisted.logger._stdlib import fromStdlibLogLevelMapping as levels
observer = STDLibLogObserver()
import logging
assert observer.logger is logging.getLogger("twisted")
assert all(levels[level] is levels[logging.getLevelName(level)] for level in (10, 20, 30, 40, 50))
from twisted.internet import defer
async def five(): return 5
defer.ensureDeferred(five()).addCallback(print)
import asyncio
assert defer.iscoroutine is asyncio.iscoroutine and defer.Future is asyncio.Future
async def main():
    deferred = defer.Deferred()
    future = deferred.asFuture(asyncio.get_running_loop())
    deferred.callback(7)
    print(await future)
asyncio.run(main())
from twisted.python import compat
from http.cookiejar import CookieJar
assert compat.cookielib.CookieJar is CookieJar
from twisted.python import reflect
import pickle
assert reflect.pickle.Pickler is pickle.Pickler
from twisted.internet import posixbase, process, udp, unix
assert posixbase.process.Process is process.Process
assert posixbase.udp.Port is udp.Port and posixbase.unix.Port is unix.Port
"""

#: Answers whoever connects.
_SERVING = """
import socket
listener, kept = socket.create_server(("127.0.0.1", 0)), []
print(listener.getsockname()[1], flush=True)
while True:
    kept.append(listener.accept()[0])
    kept[-1].sendall(b"pong")
"""
#: The first sockets of a program are of several threads, some while what they take is imported for another.
_THREADS = """
import socket, sys, threading, time
address, found = ("127.0.0.1", int(sys.argv[1])), []
start = threading.Barrier(6)
def begin(number):
    start.wait()
    while number > 2 and "twisted_ib.switch.switch" not in sys.modules:
        time.sleep(0)
    if number == 5:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            found.append(getattr(listener, "sdp", None) is not None)
        return
    with socket.create_connection(address) as one:
        found.append(getattr(one, "sdp", None) is not None)
        assert one.recv(4) == b"pong"
threads = [threading.Thread(target=begin, args=(number,)) for number in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(found.count(True))
"""

#: A device whose connections are TCP's: its own sockets are the kernel's.
_IWARP_RULES = """
device iwarp_run iwarp 127.0.0.1
route 127.0.0.0/8 iwarp_run
use sdp connect * *:*
use sdp listen * *:*
"""
_IWARP_BLOCKING = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other, _ = listener.accept()
one.sendall(b"ping")
print(other.recv(4), one.sdp is not None)
bound = socket.socket()
bound.bind(("127.0.0.1", 0))
try:
    socket.create_connection(bound.getsockname())
except ConnectionRefusedError:
    print("refused")
"""
_IWARP_ASYNCIO = """
import asyncio, socket
async def served(reader, writer):
    writer.write(await reader.readexactly(4))
    await writer.drain()
async def main():
    server = await asyncio.start_server(served, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"ping")
    print(await reader.readexactly(4), True)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    try:
        await asyncio.open_connection(*bound.getsockname())
    except ConnectionRefusedError:
        print("refused")
asyncio.run(main())
"""


class LaterTests(SynchronousTestCase):
    """
    Tests for L{twisted_ib.tools.run.hooks.Later}.
    """

    def test_beside(self) -> None:
        """
        Another thread may import while a module is imported late.
        """
        ended = Event()

        def imports() -> None:
            for number in cycle(range(50)):
                sys.modules[f"tests.beside{number}"] = sys
                sys.modules.pop(f"tests.beside{number * 7 % 50}", None)
                if ended.is_set():
                    return

        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        thread = Thread(target=imports)
        thread.start()
        try:
            for _ in range(TRIES):
                self.assertEqual(Later("math").pi, math.pi)
        finally:
            ended.set()
            thread.join()
            for number in range(50):
                sys.modules.pop(f"tests.beside{number}", None)


class ReplacedTests(SynchronousTestCase):
    """
    Tests for L{twisted_ib.tools.run.hooks.Replaced}.
    """

    def test_now(self) -> None:
        """
        What a name stands for is said as it is, also to the thread that finds the kernel's meanwhile: a name
        that was taken for replaced by the program would be the kernel's for good.
        """
        module, hooks = ModuleType("module"), Hooks()
        vars(module)["name"] = "kernel's"
        hooks.replace(module, "name", "ours")
        [replaced] = hooks.replaced
        with hooks.plain():
            self.assertEqual((vars(module)["name"], module.name), ("ours", "kernel's"))
            self.assertEqual(replaced.now(), "ours")
        del module.name
        self.assertIs(replaced.now(), ABSENT)


class LoopsTestCase(RunTestCase):
    """
    Programs that say what carried them.
    """

    def found(self, process: Any) -> tuple[str, dict[str, Any]]:
        """
        @return: what a program has printed, and its summary.
        """
        said, complaints = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual(process.returncode, 0, complaints)
        self.assertEqual(complaints.splitlines()[-1][:1], "{", complaints)
        return said, json.loads(complaints.splitlines()[-1])

    def ran(self, program: str, *words: str, config: Path | None = None) -> tuple[str, dict[str, Any]]:
        """
        @return: the same, of a program given as text.
        """
        options = [] if config is None else ["--config", str(config)]
        return self.found(self.running("-q", "--summary", "--json", *options, "-c", program, *words))


class KindTests(LoopsTestCase):
    """
    Programs of one kind.
    """

    def test_ways(self) -> None:
        """
        A script, a module, text and a command get the kind that they use: blocking sockets, if they only
        import others; and a loop, if they import it late. Each kind is two of the four.
        """
        self.environment["PATH"] = os.pathsep.join([str(self.folder), os.environ["PATH"]])
        processes = []
        (self.folder / "unused_.py").write_text(_UNUSED)
        (self.folder / "late_.py").write_text(_LATE)
        (self.folder / "late").write_text(f"#!{sys.executable}\n{_LATE}")
        (self.folder / "late").chmod(0o755)
        for words in (("unused_.py",), ("-c", _UNUSED), ("-m", "late_"), ("late",)):
            processes.append((words, self.running("-q", "--summary", "--json", *words)))
        for words, process in processes:
            _, summary = self.found(process)
            self.assertEqual((summary["sdp"], summary["tcp"]), (2, 0), words)

    def test_threads(self) -> None:
        """
        Threads that make the first sockets at once have the same kind, each of them.
        """
        server = self.running("-q", "-c", _SERVING)
        assert server.stdout is not None
        said, summary = self.ran(_THREADS, server.stdout.readline().strip())
        self.assertEqual((said, summary["sdp"], summary["tcp"]), ("6\n", 5, 0))

    def test_tls(self) -> None:
        """
        Twisted's TLS is imported when it is used, and works after sockets that did without.
        """
        self.assertEqual(self.ran(_TLS)[0], "True False pong True\n")

    def test_later(self) -> None:
        """
        So are asyncio, cookies and logging, of which Twisted has names.
        """
        self.assertEqual(self.ran(_LATER)[0], "5\n7\n")

    def test_ownReactor(self) -> None:
        """
        A reactor that the program makes itself stays, and the end of the run says so.
        """
        _, summary = self.ran(_OWN_REACTOR)
        self.assertEqual(list(summary["notes"]), ["SelectReactor"])

    def test_wrapped(self) -> None:
        """
        A program may put the finders of modules within others: ours ask what is beside them, and not
        themselves, and find what this package imports.
        """
        (self.folder / "uvloop.py").write_text("class Loop: pass")
        self.assertEqual(self.ran(_WRAPPED)[0], "True uvloop True\n")

    def test_ends(self) -> None:
        """
        What a program sends at its end arrives: by C{atexit}, also by what is registered before all else, and
        what is in files.
        """
        said, complaints = self.running("-q", "-c", _ENDS).communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, "True b'endoctets' 0\n", complaints)

    def test_sweeps(self) -> None:
        """
        A program may close all descriptors but the standard ones, as daemons do when they begin: what it had
        is closed without a complaint, nothing of what was closed with the loop closes what has the numbers
        later, and new sockets go over SDP.
        """
        for how, reason, isOthers in (
            ("range", "Bad file descriptor", False),
            ("1", "Bad file descriptor", False),
            # Each before the loop's own, as over TCP: what has the numbers later is taken for the sockets.
            ("-1", "Socket operation on non-socket", True),
        ):
            said, complaints = self.running("-q", "-c", _SWEEPS, how).communicate(timeout=HANG_SECONDS)
            words = f"True True\n{reason}\nb'more' {not isOthers}\n"
            self.assertEqual((said, complaints), (words, ""), how)

    def test_endsAtOnce(self) -> None:
        """
        What was written to a transport has been sent when the process ends within the turn, as by asyncio's.
        """
        process = self.running("-q", "-c", _ENDS_AT_ONCE)
        said, complaints = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, 2 * "sdp b'octets' 7\n", complaints)

    def test_foreign(self) -> None:
        """
        Beside a loop of another kind sockets that do not block stay with the kernel, and others do not; its
        import is named.  What is connected is of the class that it looks for (trio takes no derived one).
        """
        core = self.folder / "trio" / "_core"
        core.mkdir(parents=True)
        (core / "__init__.py").write_text("")
        (core / "_run.py").write_text(
            "def setup_runner(): return 1\ndef run(call): assert setup_runner() == 1"
        )
        (core.parent / "__init__.py").write_text("from trio._core._run import run")
        process = self.running("--summary", "--json", "-c", _FOREIGN)
        said, complaints = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, "True True True\nNone True None None None\nTrue\n", complaints)
        self.assertEqual(complaints.count("ib-run: trio has a loop of its own\n"), 1, complaints)
        self.assertEqual(list(json.loads(complaints.splitlines()[-1])["notes"]), ["trio"])

    def test_foreignFirst(self) -> None:
        """
        One that a program imports before all others, even C{socket}, works as it does behind them.
        """
        folder = self.folder / "gevent"
        folder.mkdir()
        (folder / "hub.py").write_text("class Hub: pass")
        (folder / "__init__.py").write_text("from gevent.hub import Hub")
        said, summary = self.ran(
            "import sys\nassert 'socket' not in sys.modules\nfrom gevent import Hub\nHub()\nimport socket\n"
            "print(socket.create_server(('127.0.0.1', 0)).fileno() > 2)"
        )
        self.assertEqual((said, list(summary["notes"])), ("True\n", ["gevent"]))

    def test_unusedForeign(self) -> None:
        """
        One that is imported only, as libraries do that work with several, takes nothing; one whose insides
        are others may run at any time.
        """
        for text, said, notes in (
            ("class Kernel:\n    def __init__(self): self.made = 1", "True True", ["curio"]),
            ("", "False True", ["curio"]),
        ):
            folder = self.folder / "curio"
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").write_text("")
            (folder / "kernel.py").write_text(text)
            found, summary = self.ran(_UNUSED_FOREIGN)
            self.assertEqual((found, list(summary["notes"])), (said + "\n", notes))

    def test_secured(self) -> None:
        """
        TLS of the first socket of a program goes over SDP if the rules leave it there, whether that is
        wrapped in the expression that connects it, or before it connects or listens, or by a client of the
        standard library.
        """
        with open(self.folder / "pem", "wb") as file:
            file.write(certificate("localhost").dumpPEM())
        said = "".join(f"{each} True\n" for each in ("early", "late", "https", "opened", "mailed"))
        self.assertEqual(self.ran(_SECURED, config=self.staying())[0], said)

    def test_absent(self) -> None:
        """
        A name that the program takes out of a module, as gevent does, stays out.
        """
        self.assertEqual(self.ran(_ABSENT)[0], "False True\n")

    def test_descriptors(self) -> None:
        """
        Connections of multiprocessing are descriptors: over TCP they stay, and are counted.
        """
        said, summary = self.ran(_DESCRIPTORS)
        self.assertEqual(said, "ping\n" * 2)
        self.assertEqual(
            [(each["kind"], each["connections"]) for each in summary["reasons"]], [("descriptor", 2)]
        )

    def test_descriptorsOf(self) -> None:
        """
        So are those of packages that were made of it.
        """
        for name in "multiprocess", "billiard":
            program = _DESCRIPTORS_OF + _DESCRIPTORS.replace("multiprocessing", name)
            said, summary = self.ran(program, name)
            self.assertEqual(said, "ping\n" * 2)
            self.assertEqual([each["kind"] for each in summary["reasons"]], ["descriptor"])

    def test_openSSL(self) -> None:
        """
        pyOpenSSL's connections go over SDP if the rules leave them there, blocking and not, also those of a
        class of the program's own.
        """
        said, summary = self.ran(_OPENSSL, self.pem(), config=self.staying())
        self.assertEqual(said, "500001 True Own\n" * 2 + "WantReadError\nTypeError\nTypeError\n")
        self.assertEqual((summary["sdp"], summary["tcp"], summary["notes"]), (4, 0, {}))

    def test_openSSLWaits(self) -> None:
        """
        One that does not block says what it waits for, and what goes wrong, as it does over TCP.
        """
        pem = self.pem()
        said, summary = self.ran(_OPENSSL_WAITS, pem, config=self.staying())
        plain = [sys.executable, "-c", _OPENSSL_WAITS, pem]
        over = subprocess.run(plain, capture_output=True, text=True, check=True, timeout=HANG_SECONDS)
        self.assertEqual((said, summary["sdp"]), (over.stdout, 4))
        # By default they move meanwhile.
        self.assertEqual(self.ran(_OPENSSL_WAITS, pem)[0], over.stdout)

    def test_openSSLMoves(self) -> None:
        """
        By default those of a connected socket move to TCP before their handshake, and OpenSSL has the
        descriptors.
        """
        said, summary = self.ran(_OPENSSL_MOVES, self.pem())
        self.assertEqual(said, "question\n" + "TypeError None\n" * 2)
        reasons = {each["kind"]: each["connections"] for each in summary["reasons"]}
        self.assertEqual((summary["sdp"], reasons), (0, {"tls": 1, "moved": 1}))

    def staying(self) -> Path:
        """
        @return: the path of rules by which nothing moves.
        """
        config = self.folder / "config"
        config.write_text("use both server * *:*\nuse both connect * *:*\ntimeout short 0\n")
        return config

    def pem(self) -> str:
        """
        @return: the path of a certificate with its key.
        """
        from OpenSSL import crypto

        made, path = certificate("127.0.0.1"), self.folder / "pem"
        path.write_bytes(made.dumpPEM() + made.privateKey.dump(crypto.FILETYPE_PEM))
        return str(path)

    def test_forking(self) -> None:
        """
        A server that forks after it listens has the kernel's sockets, and they are counted so.
        """
        for name in ("gunicorn", "websockify"):
            (self.folder / f"{name}.py").write_text("")
            _, summary = self.ran(f"import {name}\n{_PAIR}\npair()")
            self.assertEqual(
                [(each["kind"], each["connections"]) for each in summary["reasons"]], [("forking", 2)]
            )

    def test_modules(self) -> None:
        """
        No more modules are imported for one pair of sockets than before.
        """
        said, _ = self.ran(_COUNTED)
        for most, count in zip(_MODULES.values(), map(int, said.split()), strict=True):
            self.assertLessEqual(count, most)

    def test_inC(self) -> None:
        """
        A module that connects in C, of which nothing is counted, is named.
        """
        for name in ("grpc", "psycopg", "psycopg2"):
            (self.folder / f"{name}.py").write_text("")
            _, summary = self.ran(f"import {name}")
            self.assertEqual((summary["connections"], list(summary["notes"])), (0, [name]))

    def test_forkingClass(self) -> None:
        """
        So has a server of a class that does, and no other one of its module.
        """
        (self.folder / "pyftpdlib").mkdir()
        (self.folder / "pyftpdlib" / "__init__.py").write_text("")
        (self.folder / "pyftpdlib" / "servers.py").write_text(_FTP)
        self.assertEqual(self.ran(_FTP_SERVED)[0], "FTPServer True\nMultiprocessFTPServer False\n")

    def test_forks(self) -> None:
        """
        A process that uses a connection of SDP that its parent has accepted is refused, and says why.
        """
        said, complaints = self.running("-c", _FORKS).communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, "1\n", complaints)
        self.assertEqual(complaints.count("ib-run: fork is not crossed by SDP"), 1, complaints)

    def test_uvloop(self) -> None:
        """
        In the place of uvloop stands our loop, where it is installed, and nothing where it is not.
        """
        self.assertIn("No module named 'uvloop'", self.running("-c", "import uvloop").communicate()[1])
        (self.folder / "uvloop.py").write_text("1 / 0")
        said, summary = self.ran(_UVLOOP)
        self.assertEqual((said, summary["sdp"]), ("sdp True\n", 2))

    def test_names(self) -> None:
        """
        Names that a program has taken early, and classes that it derives, work as later ones do.
        """
        self.assertEqual(self.ran(_NAMES)[0], "True 1 True True True None True\n")

    def test_replaced(self) -> None:
        """
        What the program has put in the place of a name stays there.
        """
        self.assertEqual(self.ran(_REPLACED)[0], "True\n")

    def test_replacedConversion(self) -> None:
        """
        A program that puts its own in the place of a conversion of addresses (win_inet_pton) is carried.
        """
        broken = "import socket\nsocket.inet_ntop = lambda: None"
        _, summary = self.ran(f"{broken}\n{_PAIR}\npair()")
        self.assertEqual((summary["sdp"], summary["tcp"]), (2, 0))

    def test_iWARP(self) -> None:
        """
        Over a device whose connections are TCP's go those of blocking sockets and of a loop: the device's own
        sockets are neither carried nor counted. Where nobody listens they are refused.
        """
        rules = self.folder / "rules"
        rules.write_text(_IWARP_RULES)
        for program in (_IWARP_BLOCKING, _IWARP_ASYNCIO):
            said, summary = self.ran(program, config=rules)
            self.assertEqual(said, "b'ping' True\nrefused\n")
            self.assertEqual((summary["sdp"], summary["tcp"]), (2, 0), program)

    def test_given(self) -> None:
        """
        A port that a process is given is that process's, over SDP too.
        """
        (self.folder / "given.py").write_text(_GIVEN)
        said, complaints = self.running("-q", "given.py").communicate(timeout=HANG_SECONDS)
        self.assertEqual((said, complaints), ("True pong\n", ""))


class MixedTests(LoopsTestCase):
    """
    Programs of several kinds.
    """

    def test_asyncio(self) -> None:
        """
        A loop takes over ports and connections of blocking sockets that were there before it; those that
        connect beside it stay TCP, and say so; those after it do not.
        """
        said, summary = self.ran(_MIXED)
        self.assertEqual(said, "['sdp', 'sdp', False, 'more', 'a line\\n'] True\n")
        reasons = {each["kind"]: each["connections"] for each in summary["reasons"]}
        self.assertEqual(reasons, {"beside": 2})
        self.assertEqual(summary["sdp"], 8)

    def test_own(self) -> None:
        """
        Sockets that a program connects and accepts itself in a loop stay TCP, and the summary says so; the
        loop counts those that it connects when it is given them.
        """
        _, summary = self.ran(_OWN)
        reasons = {each["kind"]: each["connections"] for each in summary["reasons"]}
        self.assertEqual((summary["sdp"], reasons), (0, {"socket": 5}))

    def test_shown(self) -> None:
        """
        C{ib-ss --why} has the reason of both ends that stay TCP beside a loop, and the log has it once.
        """
        reason = "blocking sockets stay TCP beside a loop of asyncio"
        said, _ = self.ran(_SHOWN, programOf("show.ss"), reason)
        self.assertEqual(
            (said.count(f"not over SDP: {reason}"), said.count(f"logged {reason}")), (4, 1), said
        )

    def test_twisted(self) -> None:
        """
        So does a reactor; asyncio's connections in the loop of one go over SDP, too.
        """
        for words, found, connections in (
            ((), ["IBReactor", True, "sdp", False], 4),
            (("asyncio",), ["IBAsyncioReactor", True, "sdp", False, "sdp"], 6),
        ):
            said, summary = self.ran(_TWISTED, *words)
            self.assertEqual(said, f"{found}\n")
            reasons = {each["kind"]: each["connections"] for each in summary["reasons"]}
            self.assertEqual((summary["sdp"], reasons), (connections, {"beside": 2}))
