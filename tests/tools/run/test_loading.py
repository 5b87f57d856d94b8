"""
Tests for L{twisted_ib.tools.run.sockets}: programs that need sockets while those are loaded, or that
replace functions of the standard library, as freezegun and pyfakefs do.
"""

from __future__ import annotations

import socket

from tests.support.waiting import HANG_SECONDS
from tests.tools.run.case import RunTestCase

#: Calls C{amid()} while another module of those is half imported.
_AMID = """
import os, signal, socket, sys, threading
def audit(event, arguments):
    if event == "import" and arguments[0] == "twisted_ib.blocking.patch" and waits:
        waits.pop()()
def listen(*_):
    listeners.append(socket.create_server(("127.0.0.1", 0)))
listeners, waits = [], []
sys.addaudithook(audit)
"""
_SIGNAL = f"""{_AMID}
signal.signal(signal.SIGUSR1, listen)
waits.append(lambda: signal.raise_signal(signal.SIGUSR1))
listen()
one, other = listeners
print(type(one) is type(other), type(one).__module__, one.sdp is not None, other.sdp is not None)
"""
#: The same amid a module of those that come before, which is empty then.
_HALF = """
import signal, socket, sys
def audit(event, arguments):
    if event == "exec" and getattr(arguments[0], "co_filename", "").endswith(sys.argv[1]) and waits:
        waits.pop()
        signal.raise_signal(signal.SIGUSR1)
def both(*_):
    made.append(socket.create_connection(("127.0.0.1", int(sys.argv[2]))))
    made.append(socket.create_server(("127.0.0.1", 0)))
    made.append(socket.create_connection(made[-1].getsockname()))
    made.append(made[-2].accept()[0])
made, waits = [], [True]
signal.signal(signal.SIGUSR1, both)
sys.addaudithook(audit)
made.append(socket.create_connection(("127.0.0.1", int(sys.argv[2]))))
first = len(made)
made.append(socket.create_server(("127.0.0.1", 0)))
carried = [each for each in made[:-1] if getattr(each, "sdp", None)]
print(waits, first, len(made), hasattr(made[-1], "sdp"), carried)
"""
_FORK = f"""{_AMID}
halfway, goes = threading.Event(), threading.Event()
def wait():
    halfway.set()
    goes.wait()
waits.append(wait)
def load():
    from twisted_ib.tools.run import sockets
    sockets.load()
thread = threading.Thread(target=load)
thread.start()
halfway.wait()
goes.set()
child = os.fork()
if not child:
    # Else it would wait for as long as its parent does.
    signal.alarm(int(sys.argv[1]))
listen()
# Both write to one pipe, and an unbuffered C{print} writes its words and its newline apart.
os.write(1, type(listeners[-1]).__module__.encode() + bytes([10]))
if not child:
    os._exit(0)
thread.join()
os.write(1, b"%d%c" % (os.waitpid(child, 0)[1], 10))
"""
#: Another module than one of attrs has something imported that asks for a signature.
_ASKS = """
import socket, sys
def audit(event, arguments):
    if event == "import" and arguments[0] == "twisted.internet.tcp" and waits:
        waits.pop()
        print(list(sys.modules["inspect"].signature(lambda one: one).parameters))
waits = [True]
sys.addaudithook(audit)
print(socket.create_server(("127.0.0.1", 0)).sdp is not None)
"""
#: A program that looks at all attributes of its objects, as gradio does, before and after SDP was loaded.
_LOOKS = """
import abc, asyncio, socket, typing
class Shown(abc.ABC): pass
class Generic(typing.Generic[typing.TypeVar("T")]): pass
class Protocol(typing.Protocol): pass
class Own(Protocol): pass
class Transport(asyncio.Transport): pass
def look():
    return [[name for name in dir(type(each)) if not hasattr(each, name)] for each in made]
made = Shown(), Generic(), Own(), Transport()
before = look()
print(socket.create_server(("127.0.0.1", 0)).sdp is not None)
asyncio.new_event_loop().close()
print(look() == before or look())
"""
#: A program that has no descriptors, or no memory, left when it first listens, and then a loop of asyncio.
_EXHAUSTED = """
import asyncio, errno, os, socket, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("twisted_ib.blocking.socket", "twisted_ib.aio"):
            word = sys.argv[1]
            if hasattr(errno, word):
                raise OSError(getattr(errno, word), word)
            raise {"memory": MemoryError, "depth": RecursionError}[word]
sys.meta_path.insert(0, Finder())
try:
    server = socket.create_server(("127.0.0.1", 0))
except OSError as error:
    print("raised", error)
else:
    client = socket.create_connection(server.getsockname())
    print(type(asyncio.new_event_loop()).__module__)
"""
#: A program beside which there is a module of its own by a name that Twisted imports.
_SHADOWED = """
import asyncio, constantly, socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()
client.sendall(constantly.WORDS)
print(accepted.recv(100))
client.close(), accepted.close(), server.close()
async def echo(reader, writer):
    writer.write(await reader.readline())
    writer.close()
async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"of the loop\\n")
        print(await reader.read())
        writer.close()
asyncio.run(main())
print(asyncio.SelectorEventLoop.__module__)
"""
#: A program that replaces methods of C{socket.socket}, as tracers do and what keeps tests from the network:
#: by others that call what it has kept.  Each line has the calls, and what carried them.
_REPLACES = """
import socket
kept = {name: getattr(socket.socket, name) for name in ("connect", "accept", "sendall", "recv", "detach")}
own = kept["connect"], kept["recv"]
calls, first = [], socket.socket
def replaced(name):
    def call(self, *arguments):
        calls.append(name)
        return kept[name](self, *arguments)
    setattr(socket.socket, name, call)
def exchange(isTCP=False):
    server = socket.create_server(("127.0.0.1", 0))
    if isTCP:
        server.useTCP()
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    client.sendall(b"word")
    heard = accepted.recv(100)
    carrier = [type(each).__name__ if each.sdp is None else "SDP" for each in (client, accepted)]
    print(heard, *calls, *carrier)
    calls.clear()
    for each in client, accepted:
        socket.socket(fileno=each.detach()).close()
    calls.clear()
    server.close()
for name in kept:
    replaced(name)
exchange()
exchange()
exchange(isTCP=True)
for name in kept:
    # As mock.patch does of what the class has itself, and of what it has not.
    setattr(first, name, kept[name]) if name in ("connect", "accept", "recv") else delattr(first, name)
exchange()
exchange(isTCP=True)
# By the class that it has now.
for name in kept:
    replaced(name)
exchange()
exchange(isTCP=True)
print(own == (first.connect, first.recv))
"""
#: A server that changes its root once it listens, after which nothing can be imported any more.
_ALONE = """
import contextlib, os, select, selectors, socket, sys
server, client = socket.create_server(("127.0.0.1", 0)), socket.socket()
with contextlib.suppress(PermissionError):
    os.chroot("/")
sys.meta_path.clear()
client.connect(server.getsockname())
print(select.select([server], [], [], 60)[0] == [server])
accepted, _ = server.accept()
client.send(b"word")
poll, epoll, selector = select.poll(), select.epoll(), selectors.DefaultSelector()
for each in poll, epoll, selector:
    each.register(accepted, 1)
print(len(poll.poll(60e3)), len(epoll.poll(60)), len(selector.select(60)), accepted.recv(9), client.sdp)
"""

#: The clocks of Python stand still, in each module that is there, before or after sockets are first used.
_FROZEN = """
import select, selectors, socket, sys, time
def freeze():
    replaced = {id(getattr(time, name)): lambda now=getattr(time, name)(): now
                for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter")}
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "threading") != "threading":
            for name, value in list(vars(module).items()):
                if id(value) in replaced:
                    setattr(module, name, replaced[id(value)])
if sys.argv[1] == "early":
    freeze()
server = socket.create_server(("127.0.0.1", 0))
freeze()
def late(call):
    try:
        print(call())
    except TimeoutError:
        print("late")
server.settimeout(0.01)
late(server.accept)
client = socket.create_connection(server.getsockname())
accepted = server.accept()[0]
client.settimeout(0.01)
late(lambda: client.recv(1))
poll, epoll, selector = select.poll(), select.epoll(), selectors.DefaultSelector()
for each in poll, epoll, selector:
    each.register(client, 1)
print(select.select([client], [], [], 0.01), poll.poll(10), epoll.poll(0.01), selector.select(0.01))
accepted.settimeout(0.01)
def fill():
    while True:
        accepted.send(bytes(65536))
late(fill)
print(client.sdp is not None)
"""

#: C{os} and C{open} are others for a while, in each module that is none of C{SKIPMODULES}.
_FILES = """
import errno, io, os, socket, sys, types
from pyfakefs.fake_filesystem_unittest import Patcher
server = socket.create_server(("127.0.0.1", 0))
def refuse(*arguments):
    raise OSError(errno.EBADF, "Bad file descriptor")
class Fake(types.ModuleType):
    fstat = read = write = close = staticmethod(refuse)
    def __getattr__(self, name, real=os):
        return getattr(real, name)
opened, real = [], [io.open]
def fake(file, *arguments, **options):
    opened.append(file)
    return real[0](file, *arguments, **options)
for module in list(sys.modules.values()):
    if module not in Patcher.SKIPMODULES:
        for name, value in list(vars(module).items()):
            if isinstance(value, types.ModuleType) and value.__name__ == "os":
                setattr(module, name, Fake("os"))
            if getattr(value, "__name__", "") == "open" and getattr(value, "__module__", "") in ("io", "_io"):
                setattr(module, name, fake)
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
accepted = listener.accept()[0]
client.makefile("w").write("octets")
open("/dev/null").close()
print(accepted.recv(9), client.sdp is not None, '/dev/null' in opened)
"""


class LoadingTests(RunTestCase):
    """
    C{load}.
    """

    def test_handler(self) -> None:
        """
        A signal's handler that listens while its own thread loads does not wait for ever: it has its turn
        behind that, and finds no half of a module.
        """
        said, complaints = self.running("-q", "-c", _SIGNAL).communicate(timeout=HANG_SECONDS)
        self.assertEqual((said, complaints), ("True twisted_ib.blocking.socket True True\n", ""))

    def test_half(self) -> None:
        """
        One that connects and listens amid the imports before finds no half of a module, either: its sockets
        are the kernel's.
        """
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            for module in ("run/offers.py", "switch/reason.py", "drive/waiter.py"):
                found = self.running("-q", "-c", _HALF, module, port).communicate(timeout=HANG_SECONDS)
                isLate = module.startswith("drive")
                self.assertEqual(found, (f"[] {1 if isLate else 5} 6 True []\n", ""), module)

    def test_fork(self) -> None:
        """
        A thread that forks while another one loads waits for that: the child finds no half of a module, and
        no lock of a thread that it does not have.
        """
        # Of forks beside threads.
        self.environment["PYTHONWARNINGS"] = "ignore"
        words = "-q", "-c", _FORK, str(int(HANG_SECONDS / 2))
        said, complaints = self.running(*words).communicate(timeout=HANG_SECONDS)
        self.assertEqual(said.split("\n"), [*["twisted_ib.blocking.socket"] * 2, "0", ""], complaints)

    def test_signature(self) -> None:
        """
        What Twisted imports may ask for a signature, as typing_extensions does: only attrs goes without.
        """
        found = self.running("-q", "-c", _ASKS).communicate(timeout=HANG_SECONDS)
        self.assertEqual(found, ("['one']\nTrue\n", ""))

    def test_shadowed(self) -> None:
        """
        A program whose folder has a module of a name that Twisted imports has its own, and goes over TCP: the
        end of the run says why.
        """
        (self.folder / "constantly.py").write_text("WORDS = b'of its own'\n")
        (self.folder / "program.py").write_text(_SHADOWED)
        process = self.running("-q", "--summary", "program.py")
        said, complaints = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, "b'of its own'\nb'of the loop\\n'\nasyncio.unix_events\n", complaints)
        counts = "0 of 2 connections went over SDP; 2 over TCP: 2 as SDP could not be loaded"
        self.assertEqual(process.returncode, 0)
        self.assertIn(f"ib-run: {counts}; SDP: cannot be loaded: ImportError: ", complaints)
        self.assertIn("constantly", complaints)

    def test_shadowedStandard(self) -> None:
        """
        With modules of names that are the standard library's it has its own when it imports them, and this
        package that library's.
        """
        names = "random", "queue", "copy", "weakref", "resource", "mmap", "json", "logging", "inspect"
        (folder := self.folder / "own").mkdir()
        for name in names[:-3]:
            (folder / f"{name}.py").write_text(f"print({name!r}, __name__)\n")
        for name in names[-3:]:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text("from . import own\n")
            (folder / name / "own.py").write_text(f"print({name!r}, __package__)\n")
        imports = "".join(f"import {name}\n" for name in names)
        used = "print(socket.create_server(('127.0.0.1', 0)).sdp is not None)\n"
        modules = f"print(all(sys.modules[name].__file__.startswith(sys.path[0]) for name in {names}))\n"
        own = "".join(f"{name} {name}\n" for name in names)
        for text, expected in (
            (f"import socket, sys\n{used}{imports}{modules}", f"True\n{own}True\n"),
            (f"import socket, sys\n{imports}{used}{modules}{used}", f"{own}True\nTrue\nTrue\n"),
        ):
            (folder / "program.py").write_text(text)
            found = self.running("-q", "own/program.py").communicate(timeout=HANG_SECONDS)
            self.assertEqual(found, (expected, ""))

    def test_classes(self) -> None:
        """
        Classes of the standard library are as before, whatever is derived from them: a program that looks at
        all attributes of its own objects finds those that it has.
        """
        said, complaints = self.running("-q", "-c", _LOOKS).communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, "True\nTrue\n", complaints)

    def test_exhausted(self) -> None:
        """
        A process that has no descriptor or memory left to import SDP goes on over TCP, and says so.
        """
        for what, word in (("EMFILE", "OSError"), ("memory", "MemoryError"), ("depth", "RecursionError")):
            process = self.running("-q", "--summary", "-c", _EXHAUSTED, what)
            said, complaints = process.communicate(timeout=HANG_SECONDS)
            self.assertEqual(said, "asyncio.unix_events\n", complaints)
            self.assertIn(
                "0 of 1 connection went over SDP; 1 over TCP: 1 as SDP could not be loaded", complaints
            )
            self.assertIn(f"SDP: cannot be loaded: {word}: ", complaints)

    def test_raised(self) -> None:
        """
        An error that is none of the import is the program's, as that of a handler of signals.
        """
        said, complaints = self.running("-q", "-c", _EXHAUSTED, "ETIMEDOUT").communicate(timeout=HANG_SECONDS)
        self.assertEqual(said, "raised [Errno 110] ETIMEDOUT\n", complaints)

    def test_methods(self) -> None:
        """
        Methods of C{socket.socket} that a program replaces, before a socket goes over SDP or after, are
        called of all sockets; what they call, kept from before, works over SDP, too; and the program can take
        them back.
        """
        said, complaints = self.running("-q", "-c", _REPLACES).communicate(timeout=HANG_SECONDS)
        calls = "b'word' connect accept sendall recv"
        kernels = "KernelSocket KernelSocket\n"
        expected = (
            f"{calls} SDP SDP\n{calls} SDP SDP\n{calls} {kernels}b'word' SDP SDP\nb'word' {kernels}"
            f"{calls} SDP SDP\n{calls} {kernels}True\n"
        )
        self.assertEqual((said, complaints), (expected, ""))

    def test_alone(self) -> None:
        """
        A server that can import nothing in its C{chroot} waits for its clients, and connects to its own port
        over TCP.
        """
        said, complaints = self.running("-q", "-c", _ALONE).communicate(timeout=HANG_SECONDS)
        self.assertEqual((said, complaints), ("True\n1 1 1 b'word' None\n", ""))


class ReplacedTests(RunTestCase):
    """
    Functions of the standard library that are replaced.
    """

    def test_frozen(self) -> None:
        """
        Timeouts end while a program has the clocks of Python stand still.
        """
        for when in ("early", "late"):
            found = self.running("-q", "-c", _FROZEN, when).communicate(timeout=HANG_SECONDS)
            self.assertEqual(found, ("late\nlate\n([], [], []) [] [] []\nlate\nTrue\n", ""), when)

    def test_files(self) -> None:
        """
        Sockets go over SDP while a program has other files, as with pyfakefs, and its C{open} opens those.
        """
        (package := self.folder / "pyfakefs").mkdir()
        (package / "__init__.py").write_text("")
        text = "import posix\nclass Patcher:\n    SKIPMODULES = {None, posix}\n"
        (package / "fake_filesystem_unittest.py").write_text(text)
        found = self.running("-q", "-c", _FILES).communicate(timeout=HANG_SECONDS)
        self.assertEqual(found, ("b'octets' True True\n", ""))
