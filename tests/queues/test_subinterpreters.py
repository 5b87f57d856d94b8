"""
Connections between interpreters of one process.
"""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import HANG_SECONDS

#: A process of its own: what an interpreter imports stays until it ends.
_PROGRAM = """
import sys, threading
try:
    import _interpreters
except ImportError:
    import _xxsubinterpreters as _interpreters
from twisted_ib.queues import Listener
listener = Listener(family="AF_UNIX")
code = f'''
import sys
sys.path[:] = {sys.path!r}
from twisted_ib.queues import Client
with Client({listener.address!r}) as connection:
    for each in iter(connection.recv, None):
        connection.send((each, len(each)))
'''
run = getattr(_interpreters, "exec", None) or _interpreters.run_string
thread = threading.Thread(target=run, args=(_interpreters.create(), code))
thread.start()
with listener, listener.accept() as connection:
    for each in (b"abc", b"d" * 100000, b"e" * 2000000):
        connection.send(each)
        print(connection.recv() == (each, len(each)))
    connection.send(None)
    thread.join()
    try:
        connection.recv()
    except EOFError:
        print("end")
"""


class SubinterpreterTests(SynchronousTestCase):
    """
    An interpreter that another has made.
    """

    def test_client(self) -> None:
        """
        It connects to a listener of the other's, messages of any size go both ways, and its end is seen.
        """
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=HANG_SECONDS
        )
        self.assertEqual((done.stdout, done.stderr), ("True\n" * 3 + "end\n", ""))
