"""
Connections between interpreters of one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import twisted_ib
from tests.support.waiting import HANG_SECONDS
from twisted_ib.hca.device.form import compiledModules

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
#: Imports the package in the main interpreter, and in another.
_IMPORTS = """
import sys
try:
    import _interpreters
except ImportError:
    import _xxsubinterpreters as _interpreters
import twisted_ib
print(twisted_ib.__file__, flush=True)
code = f'''
import sys
sys.path[:] = {sys.path!r}
try:
    import twisted_ib
except ImportError as error:
    print(error.name, error, flush=True)
else:
    print("imported", flush=True)
'''
run = getattr(_interpreters, "exec", None) or _interpreters.run_string
run(_interpreters.create(), code)
"""


class SubinterpreterTests(SynchronousTestCase):
    """
    An interpreter that another has made.
    """

    def test_client(self) -> None:
        """
        It connects to a listener of the other's, messages of any size go both ways, and its end is seen.
        """
        if compiledModules():
            raise SkipTest("compiled modules: they are for the main interpreter only")
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=HANG_SECONDS
        )
        self.assertEqual((done.stdout, done.stderr), ("True\n" * 3 + "end\n", ""))

    def test_compiled(self) -> None:
        """
        Where the package has compiled modules, whose shared object is beside it, another interpreter than the
        main one refuses to import it, and says what to do.
        """
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        (folder / "twisted_ib").symlink_to(Path(twisted_ib.__file__).parent)

        def said() -> list[str]:
            done = subprocess.run(
                [sys.executable, "-c", _IMPORTS],
                env={**os.environ, "PYTHONPATH": str(folder)},
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
            )
            self.assertEqual(done.stderr, "")
            where, told = done.stdout.splitlines()
            self.assertEqual(where, str(folder / "twisted_ib/__init__.py"))
            return told.split(maxsplit=1)

        self.assertEqual(said(), ["imported"])
        (folder / f"twisted_ib__mypyc{EXTENSION_SUFFIXES[0]}").touch()
        name, told = said()
        self.assertEqual(name, "twisted_ib")
        self.assertIn("--no-binary twisted-ib", told)
