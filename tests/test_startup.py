"""
The imports of a program that only starts, and what is left to do at its end: modules and objects are counted,
not milliseconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.commands import PATH
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS
from twisted_ib.tools.run.hooks import Hooks, Later
from twisted_ib.tools.run.native.again import lacking

_LIST = "import json, sys; print(json.dumps(sorted(sys.modules)))"
_BASE = "from twisted.internet import epollreactor as e; e.install()"
_OURS = "from twisted_ib.reactor import ibreactor as e; e.install()"
_RUN = "from twisted.internet import reactor as r; r.callWhenRunning(r.stop); r.run()"
_NO_BYTE_CODE = "PYTHONDONTWRITEBYTECODE"

#: All that the reactor may import before somebody uses a device or a switch.
REACTOR = {
    "twisted_ib",
    "twisted_ib.compilation",
    "twisted_ib.drive",
    "twisted_ib.drive.process",
    "twisted_ib.drive.sleeper",
    "twisted_ib.drive.turn",
    "twisted_ib.errors",
    "twisted_ib.hca",
    "twisted_ib.hca.base",
    "twisted_ib.hca.base.polling",
    "twisted_ib.interfaces",
    "twisted_ib.internet",
    "twisted_ib.internet.logcontext",
    "twisted_ib.internet.readers",
    "twisted_ib.limits",
    "twisted_ib.reactor",
    "twisted_ib.reactor.base",
    "twisted_ib.reactor.ibreactor",
    "twisted_ib.reactor.loop",
    "twisted_ib.switch.rules",
    "twisted_ib.switch.rules.sighup",
    "twisted_ib.reactor.socketreport",
    "twisted_ib.switch",
    "twisted_ib.switch.reason",
}

_LISTENS = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
"""
_SOCKETS = f"{_LISTENS}socket.create_connection(listener.getsockname())\n"
#: A connection to a server of the kernel's own.
_TCP = """
import _socket, socket
own = _socket.socket()
own.bind(("127.0.0.1", 0))
own.listen()
socket.create_connection(own.getsockname())
"""
_ASYNCIO = "import asyncio; asyncio.run(asyncio.sleep(0))"
#: What programs under C{ib-run} do, and how many modules of this package and of Twisted they import at most,
#: in the process that remains: the numbers may only fall.
RUN = {
    "pass": (18, 0),
    _TCP: (29, 0),
    _LISTENS: (223, 61),
    _SOCKETS: (228, 61),
    _ASYNCIO: (203, 61),
    _RUN: (205, 77),
}
#: What none of them needs, but for Twisted's own reactor.
UNUSED = (
    "OpenSSL",
    "argparse",
    "cryptography",
    "http.cookiejar",
    "twisted.internet.endpoints",
    "twisted.internet.process",
    "twisted.internet.udp",
    "twisted.internet.unix",
    "twisted_ib.hca.mad",
)
_BLOCKING = (
    "_hashlib",
    "asyncio",
    "concurrent.futures",
    "email",
    "html",
    "http",
    "logging",
    "platform",
    "ssl",
    "multiprocessing",
    "lzma",
    "pickle",
    "secrets",
    "socketserver",
    "subprocess",
    "textwrap",
    "twisted_ib.hca.wire.extended",
    "twisted_ib.hca.wire.mad",
)
#: Nor one that imports Twisted for the sockets, and nothing of that itself.
_OF_TWISTED = ("ast", "attr.validators", "dis", "inspect", "typing_extensions", "urllib.parse")
#: Nor one that does nothing, nor one with blocking sockets.
_UNUSED_BY = {
    "pass": (*_BLOCKING, "shutil"),
    _TCP: (*_BLOCKING, "attr", "shutil", "twisted_ib.hca.device"),
    _LISTENS: (*_BLOCKING, *_OF_TWISTED),
    _SOCKETS: (*_BLOCKING, *_OF_TWISTED),
}
#: What the first start of C{ib-run} imports, which finds the C libraries and starts it again: the number may
#: only fall.
FIRST = 19
_FIRST = """
import json, os, sys
def execve(*arguments):
    print(json.dumps(sorted(sys.modules)), flush=True)
    os._exit(0)
os.execve = execve
sys.argv = ["ib-run", "-q", "-c", "pass"]
from twisted_ib.tools.run.__main__ import main
main()
"""

#: Uses afterwards all that Twisted and attrs were imported without.
_USES = """
import attrs, attr, inspect, typing_extensions, urllib.parse, dis
from typing import get_type_hints
from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.python import compat, deprecate, failure
@attrs.define
class Own:
    number: int = attrs.field(converter=int, validator=attrs.validators.in_([1, 2]))
    text: str = attrs.field(default="", validator=attr.validators.instance_of(str))
def refused(call):
    try:
        call()
    except (TypeError, ValueError) as error:
        return type(error).__name__, str(error)
def whole(number: str) -> int:
    return int(number)
@attrs.define
class Annotated:
    number: int = attrs.field(converter=whole)
print(Own("1"), refused(lambda: Own(3)), refused(lambda: Own(1, 2)))
print(refused(lambda: IPv4Address("SCTP", "192.0.2.1", 1)), IPv4Address("TCP", "192.0.2.1", 1))
print(Annotated.__init__.__annotations__, UNIXAddress("name").name)
print(inspect.signature(whole), compat.urlquote("a b"), compat.inspect.isclass(Own))
print(typing_extensions.TypeVar("T", default=int).__default__, compat.urllib_parse.urlparse("a://b").netloc)
print(deprecate.getDeprecationWarningString(whole, deprecate.Version("Own", 1, 2, 3)))
print(list(dis.findlinestarts(whole.__code__))[-1][1] == 18, compat.currentframe() is not None)
"""
#: What peers send to streams that are connected: every message, well made or not.
_PEERS = f"""{PATH}
import sys
from tests.sdp.pair import Pair
from twisted_ib.sdp.protocol.wire import MID
pair, asked = Pair(), []
class Finder:
    def find_spec(self, name, path=None, target=None):
        asked.append(name)
sys.meta_path.insert(0, Finder())
for mid in (*MID, 0x7F):
    for body in (b"", bytes(8), bytes(24)):
        raw, stream = pair.raw()
        raw.data(b"before")
        raw.send(mid, body)
        pair.settle()
        raw.disconnect()
        pair.settle()
        stream.abortConnection()
        pair.settle()
print(asked)
"""

#: Objects of programs that are to do something when the interpreter takes them apart, which is not before it
#: collects garbage: they are parts of cycles.
_CYCLE = "class Own: pass\nown = Own(); own.self = own\n"
FINALIZED = (
    f"{_CYCLE}class Last:\n def __del__(self): print('last', flush=True)\nown.last = Last()",
    f"{_CYCLE}own.file = open('written', 'w'); own.file.write('text')",
    # Of a frame that the end of the program has left.
    "import logging\nclass Last:\n def __del__(self):\n  logging.getLogger().removeHandler(self)\n"
    "  print('last', flush=True)\ndef main():\n last = Last()\n raise SystemExit\nmain()",
    f"{_CYCLE}def wait():\n try: yield\n finally: print('end', flush=True)\n"
    "own.wait = wait(); next(own.wait)",
)
#: Objects that the end of a short program looks at, at most, of which the package has 60,000.
LOOKED_AT = 8000
_LOOKED_AT = """
from twisted_ib.drive.process import objects
print(len(objects.made()))
"""
#: Says at the end of the process whether its objects are left alone.
_LEFT = """
import gc
from twisted_ib.drive.process import life
life.atEnd("twisted_ib.tools", lambda: print(gc.get_freeze_count() > 0))
"""


def modules(program: str) -> set[str]:
    """
    @return: what a new process has imported after a program.
    """
    command = [sys.executable, "-c", f"{program}\n{_LIST}"]
    found = subprocess.run(command, capture_output=True, check=True, timeout=HANG_SECONDS, env=_environment())
    names: list[str] = json.loads(found.stdout.splitlines()[-1])
    # The compiled form has one shared object for all of its modules, and asks which interpreter this is.
    return set(names) - {"twisted_ib__mypyc", "_interpreters", "_xxsubinterpreters"}


def _environment() -> dict[str, str]:
    """
    @return: this process's, with its import path.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class StartupTests(SynchronousTestCase):
    """
    Imports at the start.
    """

    def test_package(self) -> None:
        """
        C{import twisted_ib} imports nothing else.
        """
        self.assertEqual(modules("import twisted_ib") - modules("pass"), {"twisted_ib"})

    def test_reactor(self) -> None:
        """
        The C{ib} reactor costs a few small modules more than C{EPollReactor}, to install and to run.
        """
        base = modules(f"{_BASE}\n{_RUN}")
        self.assertLessEqual(modules(_OURS) - base, REACTOR)
        self.assertLessEqual(modules(f"{_OURS}\n{_RUN}") - base, REACTOR)

    def test_plugins(self) -> None:
        """
        Nor does the plugin module, which Twisted imports for each C{twistd}, import the HCA or a reactor.
        """
        found = modules("import twisted.plugins.twisted_ib_plugin")
        self.assertNotIn("twisted.internet.reactor", found)
        own = {name for name in found if name.startswith("twisted_ib")}
        self.assertEqual(own, {"twisted_ib", "twisted_ib.internet", "twisted_ib.internet.strings"})

    def test_commands(self) -> None:
        """
        Commands that show devices import no verbs.
        """
        found = modules("import twisted_ib.tools.show.devinfo, twisted_ib.tools.show.stat")
        self.assertEqual([each for each in found if each.startswith("twisted_ib.verbs")], [])

    def test_run(self) -> None:
        """
        Nor do programs under C{ib-run} import much, nor anything that they do not use.
        """
        ownRunDirectory(self)
        for program, (most, ofTwisted) in RUN.items():
            command = [sys.executable, "-m", "twisted_ib.tools.run", "-q", "-c", f"{program}\n{_LIST}"]
            said = subprocess.run(
                command, capture_output=True, check=True, timeout=HANG_SECONDS, env=_environment()
            )
            names = json.loads(said.stdout.splitlines()[-1])
            own = [name for name in names if name.partition(".")[0] == "twisted_ib"]
            twisted = [name for name in names if name.startswith("twisted.")]
            self.assertLessEqual((len(own), len(twisted)), (most, ofTwisted), program)
            unused = () if program == _RUN else (*UNUSED, *_UNUSED_BY.get(program, ()))
            if sys.version_info < (3, 11):
                # Twisted asks for the extensions of C{typing} there, which bring the others.
                unused = tuple({*unused} - {"ast", "dis", "inspect", "typing_extensions"})
            self.assertEqual([name for name in names if name in unused], [], program)

    def test_rules(self) -> None:
        """
        Rules are read without anything of Twisted, of which parts are left for later.
        """
        ownRunDirectory(self)
        rules = Path(self.mktemp())
        rules.write_text("use tcp connect * 192.0.2.1:*\n")
        command = [sys.executable, "-m", "twisted_ib.tools.run", "-q", "-c", f"pass\n{_LIST}"]
        environment = _environment() | {"TWISTED_IB_CONFIG": str(rules.absolute())}
        said = subprocess.run(command, capture_output=True, check=True, timeout=HANG_SECONDS, env=environment)
        names = json.loads(said.stdout.splitlines()[-1])
        self.assertIn("twisted_ib.switch.rules.configuration", names)
        self.assertEqual([name for name in names if name.startswith("twisted.")], [])

    def test_within(self) -> None:
        """
        What a module that has the kernel's names imports has them, too, by itself; not so what another thread
        imports meanwhile, a module of a loop, and one that is asked for.
        """
        hooks = Hooks()
        hooks.hasSockets = True
        hooks.after["twisted_ib.limits"] = lambda module: None

        def finds(name: str) -> bool:
            path = sys.modules[name.rpartition(".")[0]].__path__
            return hooks.find_spec(name, path) is not None

        with hooks.plain(), hooks.plain(), ThreadPoolExecutor(1) as pool:
            self.assertFalse(finds("twisted_ib.errors"))
            self.assertTrue(pool.submit(finds, "twisted_ib.errors").result(HANG_SECONDS))
            self.assertTrue(finds("twisted_ib.limits") and finds("twisted.internet.error"))
        self.assertTrue(finds("twisted_ib.errors"))

    def test_ownClass(self) -> None:
        """
        The kernel's names are found in a module that has a class of its own, too, by the thread that asks for
        them only; then the class is as it was.
        """

        class Own(ModuleType):
            """
            One that a program has made.
            """

        hooks = Hooks()
        modules = [ModuleType("socket"), Own("select")]
        for module in modules:
            module.poll = "kernel's"
            hooks.replace(module, "poll", "ours")

        def found() -> list[str]:
            return [module.poll for module in modules]

        with ThreadPoolExecutor(1) as pool:
            for _ in range(2):
                with hooks.plain():
                    self.assertEqual(found(), ["kernel's"] * 2)
                    self.assertEqual(pool.submit(found).result(HANG_SECONDS), ["ours"] * 2)
                self.assertEqual(found(), ["ours"] * 2)
                self.assertEqual([type(module) for module in modules], [ModuleType, Own])

    def test_packages(self) -> None:
        """
        To other threads a package that is left for later is one: they may import a module of it meanwhile.
        """
        folder = Path(self.mktemp()) / "left"
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "module.py").write_text("value = 1")
        self.patch(sys, "path", [str(folder.parent), *sys.path])
        self.addCleanup(lambda: [sys.modules.pop(name, None) for name in ("left", "left.module")])
        sys.modules["left"] = later = Later("left")
        self.assertFalse(hasattr(later, "__path__"))
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(import_module, "left.module").result(HANG_SECONDS)
        self.assertEqual((found.value, later.module), (1, found))

    def test_peers(self) -> None:
        """
        Whatever peers send imports nothing: the program may be in a C{chroot} by then, or have no descriptor
        left.
        """
        self.assertEqual(self.said(_PEERS, ()), "[]\n")

    def test_end(self) -> None:
        """
        Nor is what they have imported taken apart at their end.
        """
        watched = "gc.callbacks.append(lambda *_: None)"
        for program, isLeft in (("", True), (watched, False), (FINALIZED[0], False)):
            self.assertIn(f"{isLeft}\n", self.said(f"{_LEFT}{_SOCKETS}{program}"))
        # Without connections there is little.
        self.assertEqual(self.said(_LEFT), "False\n")
        # Nor are the package's own looked at for what has to be done.
        if sys.version_info < (3, 14):
            self.assertLess(int(self.said(f"{_SOCKETS}{_LOOKED_AT}")), LOOKED_AT)

    def said(self, program: str, options: Sequence[str] = ("-m", "twisted_ib.tools.run", "-q")) -> str:
        """
        @return: the output of a program, by default under C{ib-run}.
        """
        command = [sys.executable, *options, "-c", program]
        done = subprocess.run(
            command, capture_output=True, check=True, timeout=HANG_SECONDS, env=_environment(), text=True
        )
        return done.stdout

    def test_finalizers(self) -> None:
        """
        Objects that have something to do at the end of a program do it as under Python, files and generators
        included.
        """
        for program in (
            *(f"{_SOCKETS}{each}" for each in FINALIZED),
            # Older than the connection.
            *(f"{each}{_SOCKETS}" for each in FINALIZED if "SystemExit" not in each),
        ):
            path = self.mktemp()
            program = program.replace("written", path)
            found = []
            for options in ((), ("-m", "twisted_ib.tools.run", "-q")):
                said = self.said(program, options)
                found.append((said, Path(path).read_text() if os.path.exists(path) else ""))
                Path(path).unlink(missing_ok=True)
            self.assertNotEqual(found[0], ("", ""))
            self.assertEqual(found[0], found[1])

    def test_later(self) -> None:
        """
        Modules that Twisted and attrs were imported without are whole when the program uses them.
        """
        plain = self.said(f"{_SOCKETS}{_USES}", ())
        self.assertIn("SCTP", plain)
        self.assertEqual(self.said(f"{_SOCKETS}{_USES}"), plain)

    def test_firstStart(self) -> None:
        """
        The first of the two starts of C{ib-run} imports no parser of command lines, nor what programs get.
        """
        if lacking():
            raise SkipTest("the extra [c] is not installed")
        # The first of all may build the libraries.
        for _ in range(2):
            said = subprocess.run(
                [sys.executable, "-c", _FIRST], capture_output=True, timeout=HANG_SECONDS, env=_environment()
            )
        # Since Python 3.13 threads come with that.
        plain = subprocess.check_output([sys.executable, "-c", "import sysconfig, sys; print(*sys.modules)"])
        names = set(json.loads(said.stdout)) - set(plain.decode().split())
        self.assertLessEqual(len([name for name in names if name.startswith("twisted_ib")]), FIRST)
        self.assertEqual(
            [name for name in names if name in ("argparse", "threading", "typing", "_hashlib")], []
        )

    def test_byteCode(self) -> None:
        """
        Processes that tests start write byte code, whatever the environment says.
        """
        program = f"{PATH}import os, tests; print({_NO_BYTE_CODE!r} in os.environ)"
        environment = {**os.environ, _NO_BYTE_CODE: "1"}
        said = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            timeout=HANG_SECONDS,
            env=environment,
        )
        self.assertEqual(said.stdout, b"False\n")


__all__ = ["StartupTests"]
