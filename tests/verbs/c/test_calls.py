"""
Tests of calls by programs in C: wrong ones give errno, and neither a crash nor a traceback; extended ones.
"""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from tests.verbs.c.calls import program
from tests.verbs.c.library import built, run
from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c.building.build import LIBRARIES, STUBS, compilerCommand
from twisted_ib.verbs.c.functions import Failure, Row
from twisted_ib.verbs.c.kept import sharedPython
from twisted_ib.verbs.c.verbs.declarations import DECLARATIONS
from twisted_ib.verbs.c.verbs.table import TABLE

ORDER = Path(__file__).with_name("order.c")
EXTENDED = Path(__file__).with_name("extended.c")
#: Functions that do not look at pointers, or for which null is right; and one that asks what an event is of.
HARMLESS = set(
    "ibv_get_device_list ibv_free_device_list ibv_ack_async_event ibv_get_sysfs_path ibv_fork_init"
    " ibv_is_fork_initialized ibv_dontfork_range ibv_dofork_range ibv_node_type_str ibv_port_state_str"
    " ibv_event_type_str ibv_wc_status_str ibv_rate_to_mult mult_to_ibv_rate ibv_rate_to_mbps"
    " mbps_to_ibv_rate ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm".split()
)
#: The errno of those that answer another one than EINVAL.
OTHER = {
    "ibv_import_device": errno.EOPNOTSUPP,
    "ibv_import_pd": errno.EOPNOTSUPP,
    "ibv_import_mr": errno.EOPNOTSUPP,
    "ibv_import_dm": errno.EOPNOTSUPP,
    "ibv_reg_dmabuf_mr": errno.EOPNOTSUPP,
    "ibv_read_sysfs_file": errno.ENOENT,
}
#: A program of Python, which has a verb called then.
_ENDED = """
import ctypes
verbs = ctypes.CDLL("libibverbs.so.1")
print(ctypes.pythonapi.Py_AtExit(verbs.ibv_fork_init), flush=True)
verbs.ibv_fork_init()
"""
#: One that forks by Python.
_FORKED = """
import ctypes, os, sys
verbs = ctypes.CDLL("libibverbs.so.1")
pointer = ctypes.c_void_p
for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd"):
    getattr(verbs, name).restype = pointer

def opened():
    devices = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(pointer))
    return pointer(verbs.ibv_open_device(pointer(devices[0])))

def has(context):
    return bool(verbs.ibv_alloc_pd(context))

context, second = opened(), opened()
pd = pointer(verbs.ibv_alloc_pd(context))
pid = os.fork()
if not pid:
    own = opened()
    closed = verbs.ibv_close_device(context), has(context)
    print("child", verbs.ibv_dealloc_pd(pd), has(second), *closed, has(own), has(opened()), flush=True)
    os._exit(0)
print("parent", os.waitpid(pid, 0)[1], verbs.ibv_dealloc_pd(pd), has(context), has(opened()), flush=True)
"""
#: The programs that were compiled: source, libraries and whether it is linked with them.
_programs: dict[tuple[Path, tuple[str, ...], bool], str] = {}


def exported(path: str) -> set[tuple[str, str]]:
    """
    @return: The versions and names of what a library exports.
    """
    if find_spec("elftools") is None:
        raise SkipTest("the extra [c] is not installed")
    from twisted_ib.tools.run.native import binary

    return set(binary.exported(path))


class ProgramTestCase(SynchronousTestCase):
    """
    C programs that are compiled here.
    """

    def compiled(self, source: Path, *libraries: str, isLinked: bool = True) -> str:
        """
        @param libraries: besides libibverbs; and options of the compiler.
        @param isLinked: whether it is linked with them; else it loads them itself.
        @return: the program's path; it is compiled once for all tests.
        """
        folder = built()
        if (known := _programs.get((source, libraries, isLinked))) is not None:
            return known
        path = Path(self.mktemp()).resolve()
        try:
            compiler = compilerCommand()
        except LibraryBuildError as error:
            raise SkipTest(str(error)) from None
        # Against the library itself: what it does not export is an error of the linker.
        options = [each for each in libraries if each.startswith("-")]
        names = [*libraries, "libibverbs.so.1"] if isLinked else []
        objects = [str(folder / each) for each in names if each not in options]
        made = subprocess.run(
            [*compiler, "-w", "-pthread", *options, str(source), "-o", str(path), *objects],
            env={"PATH": "/usr/bin:/bin", "LD_RUN_PATH": ""},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        self.assertEqual(made.returncode, 0, made.stderr)
        return _programs.setdefault((source, libraries, isLinked), str(path))


class ExportTests(ProgramTestCase):
    """
    The names that the libraries export.
    """

    def test_names(self) -> None:
        """
        Those of the tables, each stub, and what the libraries share.
        """
        names = (
            "used",
            "in_python",
            "inside",
            "asleep",
            "busy",
            "posts",
            "calls",
            "seen",
            "settle",
            "forked",
            "over",
            "begun",
        )
        shared = {("TWISTED_IB_LOCAL", f"twisted_ib_{each}") for each in names}
        for library in LIBRARIES:
            rows = {(row.version, row.name) for row in library.table if row.version}
            stubs = {(each.version, each.name) for each in STUBS if each.library == library.soname}
            self.assertEqual(rows & stubs, set())
            found = exported(str(built() / library.soname))
            # Each version is a symbol, too.
            names = {(version, name) for version, name in found if name != version}
            self.assertEqual(names, rows | stubs | shared, library.soname)

    def test_distribution(self) -> None:
        """
        All that the distribution's libraries export are among them.
        """
        found = sorted(Path("/usr/lib").glob("*-linux-gnu/libibumad.so.3"))
        if not found:
            raise SkipTest("rdma-core's libraries are not installed")
        for library in LIBRARIES:
            theirs = exported(str(found[0].with_name(library.soname)))
            self.assertEqual(set(theirs) - set(exported(str(built() / library.soname))), set())

    def test_stubs(self) -> None:
        """
        A stub fails by ENOSYS, or does nothing.
        """
        result = run(
            self.compiled(Path(__file__).with_name("stubs.c"), "librdmacm.so.1"), TWISTED_IB_DEVICE="shm0"
        )
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))


#: Modules of Python in a program of C, by what it has done last: they may only fall.  From Python 3.12 on
#: there is one more of its own.
_MODULES = {"list": 335, "queue pair": 349, "channel": 389}


class BegunTests(ProgramTestCase):
    """
    The start of Python in a program.
    """

    def test_modules(self) -> None:
        """
        A program that uses no communication manager does not import it; some, as Valkey's C{rdma-test}, give
        their peers a second for all of the start.
        """
        found: dict[str, int] = {}
        source = Path(__file__).with_name("begun.c")
        for options in (("-DCHANNELS=1", "librdmacm.so.1"), ("-DCHANNELS=0",)):
            result = run(self.compiled(source, *options), TWISTED_IB_DEVICE="shm0")
            self.assertEqual((result.stderr, result.returncode), ("", 0))
            # Of both what the program without it has.
            lines = (each.rpartition(" ") for each in result.stdout.splitlines())
            found |= {name: int(count) for name, _, count in lines}
        self.assertEqual(found.keys(), _MODULES.keys())
        for name, count in found.items():
            self.assertLessEqual(count, _MODULES[name] + (sys.version_info >= (3, 12)), name)

    def test_early(self) -> None:
        """
        In a program that is linked with libibverbs Python is there before its first call; what it forks
        before that calls as it does.
        """
        for libraries in ((), ("librdmacm.so.1",)):
            path = self.compiled(Path(__file__).with_name("early.c"), "-Wl,--no-as-needed", *libraries)
            result = run(path, TWISTED_IB_DEVICE="shm0")
            self.assertEqual((result.stdout, result.stderr, result.returncode), ("yes 1 1\n", "", 0))

    def test_timed(self) -> None:
        """
        One that is linked with librdmacm has all modules for a connection by its device then, but for those
        of shared memory, which take a few milliseconds, and neither a descriptor nor a thread more.
        """
        path = self.compiled(Path(__file__).with_name("timed.c"), "-Wl,--no-as-needed", "librdmacm.so.1")
        for device, most in (("shm0", 15), ("roce0", 0)):
            result = run(path, TWISTED_IB_DEVICE=device, TWISTED_IB_DEVICES="roce0=roce:127.0.0.1")
            self.assertEqual((result.stderr, result.returncode), ("", 0), device)
            modules, *others = map(int, result.stdout.split())
            self.assertEqual(others, [3, 1])
            self.assertLessEqual(modules, most)

    def test_behind(self) -> None:
        """
        In one that has it by another library, as by libpcap, it starts with the first call: most call none.
        """
        folder = Path(__file__).parent
        library = self.compiled(folder / "early.c", "-shared", "-fPIC", "-Wl,--no-as-needed", "-Dmain=behind")
        options = ("-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", f"-Wl,{library}")
        path = self.compiled(folder / "behind.c", *options, isLinked=False)
        result = run(path, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("no 1 1\n", "", 0))

    def test_own(self) -> None:
        """
        In one that is linked with Python, too, that is the program's to start.
        """
        python = sharedPython()
        folder = str(Path(python).parent)
        path = self.compiled(Path(__file__).with_name("early.c"), "-Wl,--no-as-needed", python)
        result = run(path, TWISTED_IB_DEVICE="shm0", LD_LIBRARY_PATH=f"{built()}:{folder}")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("no 1 1\n", "", 0))


class LoadedTests(ProgramTestCase):
    """
    A program that loads the libraries itself.
    """

    def test_loaded(self) -> None:
        """
        Python's modules find its symbols, also where the program keeps the libraries' to itself (dlopen(3),
        RTLD_LOCAL, which is the default).
        """
        path = self.compiled(Path(__file__).with_name("loaded.c"), isLinked=False)
        for flag in ("local", "global"):
            result = run(path, flag, TWISTED_IB_DEVICE="shm0")
            self.assertEqual((result.stderr, result.stdout), ("", "1 shm0 1\n"), flag)

    def test_forked(self) -> None:
        """
        A child that a program of Python forks opens devices of its own, and its parent's contexts are such;
        what was made by them is not there, and stays the parent's.
        """
        # Of a fork in a process that has threads, from Python 3.12 on.
        silent = "-W", "ignore::DeprecationWarning"
        result = run(sys.executable, *silent, "-c", _FORKED, TWISTED_IB_DEVICE="shm0")
        expected = f"child {errno.EINVAL} True 0 False True True\nparent 0 0 True True\n"
        self.assertEqual((result.stdout, result.stderr, result.returncode), (expected, "", 0))

    def test_ended(self) -> None:
        """
        A verb that a program of Python has called after Python's end, when there is no thread's state any
        more, fails.
        """
        result = run(sys.executable, "-c", _ENDED, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("0\n", "", 0))

    def test_over(self) -> None:
        """
        A thread of C that polls while a program of Python ends goes on, and finds nothing.
        """
        path = self.compiled(Path(__file__).with_name("over.c"), "-shared", "-fPIC")
        for _ in range(5):
            code = f"import ctypes; ctypes.CDLL({path!r}).begin()"
            result = run(sys.executable, "-c", code, TWISTED_IB_DEVICE="shm0")
            self.assertEqual((result.stdout, result.stderr, result.returncode), ("0\n", "", 0))


class WrongCallTests(ProgramTestCase):
    """
    Each function of the table with null pointers, and with destroyed objects.
    """

    def calls(self, isFreed: bool) -> None:
        """
        Make the calls.
        """
        fields = {}
        for name in ("ibv_context_ops", "verbs_context", "ibv_dm", "ibv_cq_ex", "ibv_qp_ex"):
            [body] = re.findall(rf"struct {name} {{(.*?)\n}};", DECLARATIONS, re.DOTALL)
            fields[f"struct {name}"] = re.findall(r"\(\*(\w+)\)\(", body)
        # It is in the headers of rdma-core 44, but the declarations do not need it.
        fields["struct ibv_qp_ex"].append("wr_atomic_write")
        inner = {row.name for row in TABLE if not row.version}
        self.assertEqual({each for names in fields.values() for each in names}, inner)
        source = Path(self.mktemp()).with_suffix(".c")
        source.write_text(program(TABLE, fields, isFreed))
        result = run(self.compiled(source), TWISTED_IB_DEVICE="shm0")
        lines = result.stdout.splitlines()
        self.assertEqual((result.returncode, result.stderr, lines[-1:]), (0, "", ["end"]), lines[-3:])
        wrong = [line for row, line in zip(TABLE, lines[:-1], strict=True) if not self.isRefused(row, line)]
        self.assertEqual(wrong, [])

    def isRefused(self, row: Row, line: str) -> bool:
        """
        @param line: what the program says of a call.
        @return: whether it failed as the row says.
        """
        name, result, number = line.split()
        self.assertEqual(name, row.name)
        if name in HARMLESS:
            return True
        expected = OTHER.get(name, errno.EINVAL)
        failed = {
            Failure.ERRNO: expected,
            Failure.NEGATIVE_ERRNO: -expected,
            Failure.MINUS_ONE: -1,
        }.get(row.failure, 0)
        return (int(result), int(number)) == (failed, expected)

    def test_null(self) -> None:
        """
        Null pointers.
        """
        self.calls(isFreed=False)

    def test_freed(self) -> None:
        """
        Objects that were destroyed.
        """
        self.calls(isFreed=True)


class OrderTests(ProgramTestCase):
    """
    The stories of C{order.c}.
    """

    def story(self, name: str) -> str:
        """
        Run one.

        @return: what it writes on the standard error.
        """
        result = run(self.compiled(ORDER), name, TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.returncode), ("", 0), result.stderr)
        return result.stderr

    def test_destroy(self) -> None:
        """
        An object that another uses is EBUSY, a destroyed one EINVAL.
        """
        self.assertEqual(self.story("destroy"), "")

    def test_states(self) -> None:
        """
        A call that the state forbids is EINVAL.
        """
        self.assertEqual(self.story("states"), "")

    def test_places(self) -> None:
        """
        A source GID that is not there, and a region of no page, are EINVAL.
        """
        self.assertEqual(self.story("places"), "")

    def test_forks(self) -> None:
        """
        A child is refused by name, once.
        """
        lines = self.story("forks").splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("libibverbs.so.1: ibv_alloc_pd is refused: process ", lines[0])

    def test_cancel(self) -> None:
        """
        A thread that waits can be cancelled.
        """
        self.assertEqual(self.story("cancel"), "")

    def test_events(self) -> None:
        """
        A thread waits for events of queues that another destroys.
        """
        self.assertEqual(self.story("events"), "")

    def test_acknowledged(self) -> None:
        """
        A queue and a queue pair are destroyed once another thread has acknowledged their events.
        """
        self.assertEqual(self.story("acknowledged"), "")

    def test_signals(self) -> None:
        """
        The library's thread takes no signals.
        """
        self.assertEqual(self.story("signals"), "")


class ExtendedTests(ProgramTestCase):
    """
    The extended verbs.
    """

    def test_extended(self) -> None:
        """
        Requests built one by one and completions read field by field move the data; tables and events.
        """
        result = run(self.compiled(EXTENDED), TWISTED_IB_DEVICE="shm0")
        self.assertEqual((result.stdout, result.stderr, result.returncode), ("", "", 0))
