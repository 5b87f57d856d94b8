"""
Tests for the C libraries of a program: the device that it is shown, where it finds them, and why it does not.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from subprocess import PIPE, run

from attrs import evolve
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.commands import programOf
from tests.support.waiting import HANG_SECONDS
from tests.verbs.c.library import built
from twisted_ib.hca.device.registry import addDevice, removeDevice
from twisted_ib.tools.run.clibraries import become, chooseDevice
from twisted_ib.tools.run.native import again
from twisted_ib.tools.run.native.again import lacking, searchPath
from twisted_ib.tools.run.program import NotPython, StartError

if find_spec("elftools") is None or find_spec("cffi") is None:
    _lacking = "the extra [c] is not installed"
else:
    _lacking = ""
    from twisted_ib.errors import LibraryBuildError
    from twisted_ib.tools.run.native import binary
    from twisted_ib.tools.run.native.binary import Libraries, NotReadableError, read
    from twisted_ib.verbs.c import kept
    from twisted_ib.verbs.c.building import build
    from twisted_ib.verbs.c.building.stubs import Symbol

#: System V gABI: e_machine of x86-64 and of SPARC, p_type of the interpreter's name; sh_type of names, and
#: of versions that are wanted (Linux Standard Base 5, core, 10.7.1.1).
_X86_64, _SPARC, _INTERP, _STRTAB, _VERNEED = 62, 2, 3, 3, 0x6FFFFFFE


def program(loader: bytes, machine: int) -> bytes:
    """
    @param loader: that it asks for; empty for a static program.
    @return: an ELF file for Linux of 64 bits without code.
    """
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    name = loader + b"\0"
    count = 1 if loader else 0
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, count, 64, 0, 0)
    return header + struct.pack("<IIQQQQQQ", _INTERP, 4, 120, 0, 0, len(name), len(name), 1) + name


def circular(machine: int) -> bytes:
    """
    @return: an ELF file that wants four thousand million versions, each of which is followed by itself.
    """
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64, 0, 64, 56, 0, 64, 3, 1)
    names = struct.pack("<IIQQQQIIQQ", 0, _STRTAB, 0, 0, 0, 1, 0, 0, 1, 0)
    wants = struct.pack("<IIQQQQIIQQ", 0, _VERNEED, 0, 0, 256, 32, 1, 0xFFFFFFFF, 4, 0)
    return header + bytes(64) + names + wants + struct.pack("<HHIII", 1, 1, 7, 16, 0) + bytes(16)


class DeviceTests(SynchronousTestCase):
    """
    Tests for L{chooseDevice}.
    """

    def chosen(self, name: str, address: str | None = None, devices: str = "") -> tuple[str, str]:
        """
        @return: the two variables.
        """
        environment = {"TWISTED_IB_DEVICES": devices} if devices else {}
        chooseDevice(name, address, environment)
        return environment["TWISTED_IB_DEVICE"], environment["TWISTED_IB_DEVICES"]

    def test_chosen(self) -> None:
        """
        One device is shown, with its own address if it has one; other devices stay.
        """
        self.assertEqual(self.chosen("shm0"), ("shm0", "shm0=shm"))
        self.assertEqual(self.chosen("ib0"), ("ib0", "ib0=ib"))
        self.assertEqual(self.chosen("roce0", "192.0.2.1"), ("roce0", "roce0=roce:192.0.2.1"))
        self.assertEqual(self.chosen("iwarp1", "2001:db8::1"), ("iwarp1", "iwarp1=iwarp:2001:db8::1"))
        self.assertEqual(
            self.chosen("roce0", "192.0.2.1", " roce0=roce:192.0.2.9, a=shm"),
            ("roce0", "roce0=roce:192.0.2.1, a=shm"),
        )

    def test_refused(self) -> None:
        """
        There is no such device, or it has no address, or none that it can have.
        """
        for name, address, words in (
            ("surely0", None, "there is no device 'surely0'"),
            ("roce7", None, "device roce7 has no address: say --address, too"),
            ("shm0", "192.0.2.1", "has no address of its own"),
            ("roce0", "0.0.0.0", "is not the address of an interface"),
        ):
            error = self.assertRaises(StartError, chooseDevice, name, address, {})
            self.assertIn(words, str(error))
            self.assertEqual(error.status, 126)

    def test_hardware(self) -> None:
        """
        No program is shown an adapter: libibverbs is this package's own.
        """
        addDevice("hw9", "hardware", "rxe9")
        self.addCleanup(removeDevice, "hw9")
        for address in (None, "192.0.2.1"):
            error = self.assertRaises(StartError, chooseDevice, "hw9", address, {})
            self.assertEqual(
                str(error),
                "device hw9 is of fabric hardware: libibverbs is twisted_ib's own here, which has no"
                " hardware: run the program without ib-run",
            )
            self.assertEqual(error.status, 126)


class SearchTests(SynchronousTestCase):
    """
    Where the loader looks, and what is missing for it.
    """

    def test_path(self) -> None:
        """
        The libraries come first, and the caller's directories stay; no entry is empty.
        """
        self.assertEqual(searchPath(["/a", "/b"], {}), "/a:/b")
        self.assertEqual(searchPath(["/a"], {"LD_LIBRARY_PATH": ""}), "/a")
        self.assertEqual(searchPath(["/a"], {"LD_LIBRARY_PATH": "/c:/d"}), "/a:/c:/d")

    def test_noExtra(self) -> None:
        """
        Without the extra C{[c]} nothing is started, and the line says what to install.
        """
        self.patch(again, "find_spec", lambda name: None)
        self.assertEqual(lacking(), ["cffi", "pyelftools"])
        error = self.assertRaises(StartError, become, NotPython("/bin/x", "/bin/x"), ["x"], False, self.fail)
        self.assertIn("need cffi and pyelftools", str(error))
        self.assertIn("pip install 'twisted-ib[c]'", str(error))
        self.assertEqual(again.searchByPython(True), "")


class RefusalTests(SynchronousTestCase):
    """
    Programs that would not get the libraries, each said by name.
    """

    if _lacking:
        skip = _lacking

    def setUp(self) -> None:
        """
        No library is built.
        """
        self.path = Path(self.mktemp()).absolute()
        self.patch(binary, "libraries", self.fail)
        self.machine = struct.unpack_from("<H", Path("/proc/self/exe").read_bytes()[:64], 18)[0]

    def refused(self, content: bytes, words: str) -> None:
        """
        Assert that a file is no program for the libraries.
        """
        self.path.write_bytes(content)
        self.path.chmod(0o700)
        error = self.assertRaises(binary.UnfitBinaryError, binary.begin, str(self.path), str(self.path))
        self.assertTrue(str(error).startswith(str(self.path)), error)
        self.assertIn(words, str(error))
        self.assertNotIn("\n", str(error))

    def test_kinds(self) -> None:
        """
        Static, of musl, for another machine, damaged, not there.
        """
        self.refused(program(b"", self.machine), "is static: it loads no libraries")
        self.refused(program(b"/lib/ld-musl-x86_64.so.1", self.machine), "linked with musl")
        self.refused(program(b"/lib/ld.so", _SPARC), "for ELFCLASS64 EM_SPARC, and ")
        self.refused(b"\x7fELF", "is a damaged binary")
        self.refused(program(b"/lib/ld.so", self.machine)[:70], "is a damaged binary")
        self.path.unlink()
        error = self.assertRaises(binary.UnfitBinaryError, binary.begin, "x", str(self.path))
        self.assertIn("No such file", str(error))

    def test_musl(self) -> None:
        """
        Under an interpreter of musl the libraries are musl's: its programs start, and glibc's are refused.
        """
        self.path.write_bytes(program(b"/lib/ld-musl-x86_64.so.1", self.machine))
        self.path.chmod(0o700)
        own = evolve(binary.read("/proc/self/exe", ()), loader="/lib/ld-musl-x86_64.so.1")
        real = binary.read
        self.patch(binary, "read", lambda path, names: own if path == "/proc/self/exe" else real(path, names))
        self.assertEqual(binary._checked(str(self.path)).loader, own.loader)
        said = f"linked with glibc, and {sys.executable} with musl"
        self.refused(program(b"/lib/ld.so", self.machine), said)

    def test_endless(self) -> None:
        """
        A binary is read in a bounded number of steps, whatever it says of itself.
        """
        self.patch(binary, "READS", 1000)
        self.refused(circular(self.machine), "is a damaged binary: it is not read in 1000 steps")

    def test_secure(self) -> None:
        """
        The loader ignores the caller's directories for programs that run as another.
        """
        content = program(b"/lib64/ld-linux.so.2", self.machine)
        self.path.write_bytes(content)
        for mode, words in ((0o4755, "is setuid"), (0o2755, "is setgid")):
            self.path.chmod(mode)
            self.patch(os, "getuid", lambda: 12345)
            self.patch(os, "getgid", lambda: 12345)
            error = self.assertRaises(binary.UnfitBinaryError, binary.begin, str(self.path), str(self.path))
            self.assertIn(words, str(error))
            self.assertIn("run a copy without", str(error))
        self.path.chmod(0o755)
        self.patch(os, "listxattr", lambda path: ["security.capability"])
        error = self.assertRaises(binary.UnfitBinaryError, binary.begin, str(self.path), str(self.path))
        self.assertIn("one with capabilities", str(error))

    def test_noAttributes(self) -> None:
        """
        A file system without extended attributes, as some in userspace, has no programs with capabilities.
        """

        def unsupported(path: str) -> list[str]:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        self.path.write_bytes(b"")
        self.patch(os, "getuid", lambda: 12345)
        self.patch(os, "listxattr", unsupported)
        self.assertEqual(binary._secure(str(self.path)), "")

    def test_notExecutable(self) -> None:
        """
        A program without the permission.
        """
        self.path.write_bytes(program(b"/lib64/ld-linux.so.2", self.machine))
        self.patch(os, "access", lambda path, mode: False)
        error = self.assertRaises(binary.UnfitBinaryError, binary.begin, str(self.path), str(self.path))
        self.assertIn("is not executable", str(error))

    def test_build(self) -> None:
        """
        One line says why there are no libraries.
        """

        def fail() -> None:
            raise LibraryBuildError("it does not compile:\nfirst\nsecond")

        self.patch(binary, "libraries", fail)
        self.refused(program(b"/lib64/ld-linux.so.2", self.machine), "compile:; first; second")

    def missing(self, words: str) -> None:
        """
        Assert that the libraries cannot be built, into an empty cache.
        """
        self.patch(os, "environ", {**os.environ, "XDG_CACHE_HOME": str(self.path)})
        error = self.assertRaises(LibraryBuildError, build.libraries)
        self.assertIn(words, str(error))
        self.assertFalse(self.path.exists())

    def test_noCompiler(self) -> None:
        """
        There is no compiler, with which all begins.
        """
        self.patch(build.shutil, "which", lambda name: None)
        self.missing("there is no C compiler")

    def test_noSharedPython(self) -> None:
        """
        The interpreter is not a shared libpython.
        """
        self.patch(kept, "_LDVERSION", "0.0")
        self.patch(build, "compilerCommand", lambda: ["cc"])
        self.missing("has no shared libpython")

    def test_noHeaders(self) -> None:
        """
        Python's headers are not installed.
        """
        self.patch(build, "compilerCommand", lambda: ["cc"])
        self.patch(build, "sharedPython", lambda: "")
        self.patch(build.sysconfig, "get_path", lambda name: "/nowhere")
        self.missing("Python.h is missing")


class TextTests(SynchronousTestCase):
    """
    The line for the user about what a program gets.
    """

    if _lacking:
        skip = _lacking

    def test_described(self) -> None:
        """
        The libraries, and some names of what answers ENOSYS.
        """
        folder = (Path("/a"),)
        self.assertIn("imports no RDMA library", binary.described(Libraries(folder, (), ())))
        found = Libraries(folder, ("libibverbs.so.1", "librdmacm.so.1"), ())
        self.assertEqual(binary.described(found), "runs with libibverbs.so.1, librdmacm.so.1 of twisted_ib")
        stubs = tuple(Symbol("libibverbs.so.1", "V", f"f{number}") for number in range(4))
        found = Libraries(folder, ("libibverbs.so.1",), stubs)
        self.assertTrue(binary.described(found).endswith("; ENOSYS: 4 functions (f0, f1, f2, ...)"))
        found = Libraries(folder, ("libibverbs.so.1",), stubs[:1])
        self.assertTrue(binary.described(found).endswith("; ENOSYS: 1 functions (f0)"))


#: A program of libibverbs, and a library of that name without devices.
_ASKS = """#include <stdio.h>
void **ibv_get_device_list(int *);
const char *ibv_get_device_name(void *);
int main(void) { void **all = ibv_get_device_list(0); puts(all ? ibv_get_device_name(*all) : "none"); }
"""
_EMPTY = """void *ibv_get_device_list(int *count) { return 0; }
const char *ibv_get_device_name(void *device) { return ""; }
"""


class CarriedTests(SynchronousTestCase):
    """
    A program that carries libibverbs by another name, as wheels do.
    """

    if _lacking:
        skip = _lacking

    def test_carried(self) -> None:
        """
        It finds the devices, as what it carries has the same functions of the same versions.
        """
        built()
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        (folder / "program.c").write_text(_ASKS)
        (folder / "empty.c").write_text(_EMPTY)
        (folder / "map").write_text("IBVERBS_1.1 { global: ibv_*; local: *; };")
        carried = "libibverbs-01ab.so.1.14"
        for options in (
            (
                "-shared",
                "-fPIC",
                "empty.c",
                "-Wl,--version-script=map",
                f"-Wl,-soname,{carried}",
                "-o",
                carried,
            ),
            ("program.c", carried, "-Wl,-rpath,$ORIGIN", "-o", "program"),
        ):
            run(["gcc", "-w", *options], cwd=folder, check=True)
        tool = sys.executable, "-c", programOf("run.run"), "--quiet", "--device", "shm0"
        for prefix, answer in (((), "none"), (tool, "shm0")):
            command = *prefix, str(folder / "program")
            result = run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
            self.assertEqual((result.stdout, result.stderr), (f"{answer}\n", ""))


class DamagedTests(SynchronousTestCase):
    """
    Files that begin as binaries do.
    """

    if _lacking:
        skip = _lacking

    def test_truncated(self) -> None:
        """
        Each shorter file of a binary is read or said to be damaged, without another error.
        """
        path = Path(self.mktemp())
        whole = program(b"/lib64/ld-linux-x86-64.so.2", _X86_64)
        for length in range(len(whole) + 1):
            path.write_bytes(whole[:length])
            try:
                self.assertEqual(read(str(path), ()).kind, "ELFCLASS64 EM_X86_64")
            except NotReadableError as error:
                self.assertIn("is a damaged binary", str(error))
                self.assertLess(length, len(whole))


#: A program takes the place of this one, which says what signals it ignores.
_BECOMES = """
import sys
from types import ModuleType, SimpleNamespace
binary = ModuleType("binary")
binary.UnfitBinaryError, binary.begin = ValueError, lambda path, file, isInherited: ([], "", ())
sys.modules["twisted_ib.tools.run.native.binary"] = binary
from twisted_ib.tools.run import clibraries
clibraries.lacking = list
words = ["grep", "^SigIgn", "/proc/self/status"]
clibraries.become(SimpleNamespace(path=sys.argv[1], binary=None), words, False, lambda text: None)
"""


#: A program takes the place of this one, whose environment has no C libraries.
_WITHOUT_LIBRARIES = """
import os, sys
from types import SimpleNamespace
from twisted_ib.tools.run import clibraries
from twisted_ib.tools.run.children import Inherited, inherit
from twisted_ib.tools.run.program import StartError
clibraries.lacking = lambda: ["cffi"]
path, given = sys.argv[1:]
inherit(os.environ, Inherited() if given else None)
words = [path, "-c", "import socket; print(type(socket.socket()).__module__)"]
try:
    program = SimpleNamespace(path=path, binary=path)
    clibraries.become(program, words, False, lambda text: print(text, flush=True))
except StartError as error:
    print(error)
"""


#: Its arguments, and how many devices it has.
_OTHER = """
import ctypes, sys
verbs, count = ctypes.CDLL("libibverbs.so.1"), ctypes.c_int()
verbs.ibv_get_device_list.restype = verbs.ibv_get_device_name.restype = ctypes.c_void_p
verbs.ibv_get_device_list(ctypes.byref(count))
print(sys.argv[1:], count.value)
"""


class BecomingTests(SynchronousTestCase):
    """
    What a program inherits.
    """

    def test_withoutLibraries(self) -> None:
        """
        Without the extra an interpreter of Python has SDP, and is told of the libraries; no other program
        starts.
        """
        hint = f"the C libraries need cffi: {sys.executable} -m pip install 'twisted-ib[c]'\n"
        for path, given, expected in (
            (sys.executable, "given", f"gets SDP if it has twisted_ib; {hint}twisted_ib.tools.run.sockets\n"),
            (sys.executable, "", f"{sys.executable} is no Python program, and {hint}"),
            ("/bin/pythonic", "given", f"/bin/pythonic is no Python program, and {hint}"),
        ):
            words = [sys.executable, "-c", _WITHOUT_LIBRARIES, path, given]
            self.assertEqual(run(words, stdout=PIPE, check=True, text=True).stdout, expected)

    def test_signals(self) -> None:
        """
        It ignores no signal that it would not ignore without C{ib-run}.
        """
        grep = which("grep")
        if grep is None:
            raise SkipTest("no grep: it is in Debian's package grep")
        without = run([grep, "^SigIgn", "/proc/self/status"], stdout=PIPE, check=True)
        found = run([sys.executable, "-c", _BECOMES, grep], stdout=PIPE, check=True)
        self.assertEqual(found.stdout, without.stdout)

    def test_otherInterpreter(self) -> None:
        """
        With a device a command of another interpreter has the libraries, without this package there.
        """
        if _lacking:
            raise SkipTest(_lacking)
        built()
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        # As the python of a virtual environment: another folder, and another path.
        other, script = folder / "python3", folder / "command"
        other.symlink_to(os.path.realpath(sys.executable))
        script.write_text(f"#!{other}\n{_OTHER}")
        script.chmod(0o700)
        words = [sys.executable, "-c", programOf("run.run"), "--device", "shm0", str(script), "x"]
        # What the tests find, the other does not.
        found = run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "/"})
        self.assertEqual(found.stdout, "['x'] 1\n", found.stderr)
        self.assertIn("what it loads or starts finds libibverbs", found.stderr)
        # One that is none, and says nothing.
        other.unlink()
        other.write_text("#!/bin/sh\nexit 3\n")
        other.chmod(0o700)
        found = run(words, capture_output=True, text=True)
        self.assertIn(f"runs on {other}, which has no ib-run", found.stderr)
