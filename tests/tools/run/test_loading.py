"""
Tests for L{twisted_ib.tools.run.sockets}: programs that need sockets while those are loaded.
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
