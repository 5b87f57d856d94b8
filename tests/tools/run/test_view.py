"""
Tests for a program's view of the devices: the files, the folder with them, and the library in front of the C
library that leads to it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import twisted_ib
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.errors import LibraryBuildError
from twisted_ib.hca.device.registry import addDevice, removeDevice
from twisted_ib.settings import DEVICE, DEVICES

if find_spec("elftools") is None or find_spec("cffi") is None:
    _lacking = "the extra [c] is not installed"
else:
    _lacking = ""
    from elftools.elf.elffile import ELFFile

    from twisted_ib.tools.run.native import view
    from twisted_ib.tools.run.native.devicefiles import deviceFiles
    from twisted_ib.verbs.c.building import build
    from twisted_ib.verbs.c.building.cache import compileIn

_SOURCE = Path(twisted_ib.__file__).with_name("verbs") / "c/building/view.c"
_OWN = "sys/class/infiniband/test0"
#: A process in which each function of the library in front is called by ctypes, with a path, after what is
#: before it and before what is after it.  It prints those that failed.
_CALLS = r"""
import ctypes, json, os, sys
path, missing, names = sys.argv[1].encode(), sys.argv[2].encode(), json.loads(sys.argv[3])
libc = ctypes.CDLL(None)
AT_FDCWD, buffer = -100, ctypes.create_string_buffer(8192)
pointer = ctypes.c_void_p()
around = {
    "open": ((), (0,)), "open64": ((), (0,)), "__open_2": ((), (0,)), "__open64_2": ((), (0,)),
    "openat": ((AT_FDCWD,), (0,)), "openat64": ((AT_FDCWD,), (0,)),
    "__openat_2": ((AT_FDCWD,), (0,)), "__openat64_2": ((AT_FDCWD,), (0,)),
    "fopen": ((), (b"r",)), "fopen64": ((), (b"r",)), "opendir": ((), ()), "chdir": ((), ()),
    "scandir": ((), (ctypes.byref(pointer), None, None)),
    "scandir64": ((), (ctypes.byref(pointer), None, None)),
    "stat": ((), (buffer,)), "stat64": ((), (buffer,)), "lstat": ((), (buffer,)), "lstat64": ((), (buffer,)),
    "fstatat": ((AT_FDCWD,), (buffer, 0)), "fstatat64": ((AT_FDCWD,), (buffer, 0)),
    "statx": ((AT_FDCWD,), (0, 0xFFF, buffer)),
    "__xstat": ((1,), (buffer,)), "__xstat64": ((1,), (buffer,)),
    "__lxstat": ((1,), (buffer,)), "__lxstat64": ((1,), (buffer,)),
    "__fxstatat": ((1, AT_FDCWD), (buffer, 0)), "__fxstatat64": ((1, AT_FDCWD), (buffer, 0)),
    "access": ((), (0,)), "eaccess": ((), (0,)), "euidaccess": ((), (0,)),
    "faccessat": ((AT_FDCWD,), (0, 0)),
    "readlink": ((), (buffer, 100)), "readlinkat": ((AT_FDCWD,), (buffer, 100)),
    "__readlink_chk": ((), (buffer, 100, 100)), "__readlinkat_chk": ((AT_FDCWD,), (buffer, 100, 100)),
    "listxattr": ((), (buffer, 100)), "llistxattr": ((), (buffer, 100)),
    "getxattr": ((), (b"user.none", buffer, 100)), "lgetxattr": ((), (b"user.none", buffer, 100)),
    "realpath": ((), (buffer,)), "__realpath_chk": ((), (buffer, 8192)), "canonicalize_file_name": ((), ()),
}
EINVAL, ENODATA, ENOENT, EOPNOTSUPP = 22, 61, 2, 95
libc.__errno_location.restype = ctypes.POINTER(ctypes.c_int)
result = {}
for name in names:
    before, after = around[name]
    function = getattr(libc, name)
    ofPointers = "realpath" in name or name in ("fopen", "fopen64", "opendir", "canonicalize_file_name")
    function.restype = ctypes.c_void_p if ofPointers else ctypes.c_long
    answers = []
    for each in (path, missing):
        libc.__errno_location()[0] = 0
        found = function(*before, each, *after)
        failed = not found if ofPointers else ctypes.c_int(found).value < 0
        answers.append(libc.__errno_location()[0] if failed else 0)
    result[name] = answers
print(json.dumps(result))
"""
#: A lock of C, which is called with Python's held.
_SPIN = """
import ctypes, sys, threading
libc = ctypes.PyDLL(None)
lock, waiting = ctypes.c_int(), threading.Event()
libc.pthread_spin_init(ctypes.byref(lock), 0)
def spin(name): return getattr(libc, f"pthread_spin_{name}")(ctypes.byref(lock))
"""
#: A thread waits with Python's lock for one of C, which its holder leaves only with Python's.
_LEFT = f"""{_SPIN}
def hold():
    spin("lock")
    waiting.set()
    threading.Event().wait(0.2)
    spin("unlock")

threading.Thread(target=hold).start()
waiting.wait()
print(spin("lock"), spin("trylock"))
"""
#: A thread waits with Python's lock for the end of one that needs it; and in vain for its own.
_JOINED = """
import ctypes, sys
libc = ctypes.PyDLL(None)
libc.pthread_self.restype = ctypes.c_ulong
sys.setswitchinterval(1000)
ran = []

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def run(argument):
    ran.append(argument)
    return 7

thread, result = ctypes.c_ulong(), ctypes.c_void_p()
libc.pthread_create(ctypes.byref(thread), None, run, ctypes.c_void_p(5))
print(libc.pthread_join(thread, ctypes.byref(result)), result.value, ran)
print(libc.pthread_join(ctypes.c_ulong(libc.pthread_self()), None))
"""
#: One that waits has left Python's lock when the first goes on, which keeps that and frees the other.
_NEVER_BOTH = f"""{_SPIN}
sys.setswitchinterval(1000)
def wait():
    waiting.set()
    print(spin("lock"))

spin("lock")
thread = threading.Thread(target=wait)
thread.start()
waiting.wait()
spin("unlock")
libc.usleep(200000)
print(spin("trylock"))
spin("unlock")
thread.join()
"""


class FilesTests(SynchronousTestCase):
    """
    Tests for L{deviceFiles}: what Linux has for a device of the kind.
    """

    if _lacking:
        skip = _lacking

    def seen(self, fabric: str, address: str | None = None) -> dict[str, str]:
        """
        @return: the files of a device of that kind.
        """
        addDevice("test0", fabric, address)
        try:
            return deviceFiles("test0")
        finally:
            removeDevice("test0")

    def test_roce(self) -> None:
        """
        A device with an address: its GID, its type and its interface; node and port as rdma-core reads them.
        """
        files = self.seen("roce", "127.0.0.1")
        self.assertEqual(
            {path: files[f"{_OWN}/{path}"] for path in ("node_type", "device/numa_node", "fw_ver")},
            {"node_type": "1: CA", "device/numa_node": "-1", "fw_ver": "0.1.0"},
        )
        port = {path.removeprefix(f"{_OWN}/ports/1/"): files[path] for path in files if "/ports/" in path}
        self.assertEqual(
            port,
            {
                "state": "4: ACTIVE",
                "phys_state": "5: LinkUp",
                "rate": "2.5 Gb/sec",
                "link_layer": "Ethernet",
                "lid": "0x0",
                "lid_mask_count": "0",
                "sm_lid": "0x0",
                "sm_sl": "0",
                "pkeys/0": "0xffff",
                # As verbs have it: in four slots.
                **{f"gids/{slot}": "0000:0000:0000:0000:0000:ffff:7f00:0001" for slot in range(4)},
                **{f"gid_attrs/types/{slot}": "RoCE v2" for slot in range(4)},
                **{f"gid_attrs/ndevs/{slot}": "lo" for slot in range(4)},
            },
        )
        (number,) = {path.split("/")[2] for path in files if path.startswith("dev/")}
        self.assertEqual(files[f"sys/class/infiniband_verbs/{number}/ibdev"], "test0")
        self.assertEqual(files[f"{_OWN}/device/infiniband_verbs/{number}/ibdev"], "test0")
        self.assertEqual(files["sys/class/infiniband_verbs/abi_version"], "6")

    def test_kinds(self) -> None:
        """
        An RNIC; a device whose GIDs are made when it is opened, which has none yet; one of InfiniBand, which
        has no interface of Ethernet.
        """
        iwarp = self.seen("iwarp", "::1")
        self.assertEqual(iwarp[f"{_OWN}/node_type"], "4: RNIC")
        self.assertEqual(iwarp[f"{_OWN}/ports/1/gid_attrs/types/0"], "RoCE v2")
        self.assertNotIn(f"{_OWN}/ports/1/gid_attrs/types/1", iwarp)
        self.assertEqual(iwarp[f"{_OWN}/ports/1/gids/0"], "0000:0000:0000:0000:0000:0000:0000:0001")
        shm = self.seen("shm")
        self.assertNotIn(f"{_OWN}/ports/1/gids/0", shm)
        # As verbs have them: that of the GUID, and a loopback address, twice.
        for slot in range(4):
            self.assertEqual(shm[f"{_OWN}/ports/1/gid_attrs/types/{slot}"], "RoCE v2")
            self.assertEqual(shm[f"{_OWN}/ports/1/gid_attrs/ndevs/{slot}"], "lo")
        self.assertNotIn(f"{_OWN}/ports/1/gid_attrs/types/4", shm)
        ib = self.seen("ib")
        self.assertNotIn(f"{_OWN}/ports/1/gid_attrs/ndevs/0", ib)
        self.assertEqual(ib[f"{_OWN}/ports/1/gid_attrs/types/0"], "IB/RoCE v1")

    def test_chosen(self) -> None:
        """
        One device alone, or all of them.
        """
        self.assertEqual(
            [each for each in deviceFiles("shm0") if each.startswith("dev/")], ["dev/infiniband/uverbs0"]
        )
        self.assertIn("sys/class/infiniband/lo0/node_type", deviceFiles(None))


class FolderTests(SynchronousTestCase):
    """
    Tests for L{view.show}: folders that programs of the same devices share, and their bound.
    """

    if _lacking:
        skip = _lacking

    def setUp(self) -> None:
        """
        A cache of this test's own.
        """
        self.cache = Path(self.mktemp()).absolute()
        self.cache.mkdir()
        self.patch(view, "cacheFolder", lambda: str(self.cache))

    def test_shown(self) -> None:
        """
        The environment names the folder and the library in front, which comes before those of the user.
        """
        environment = {"LD_PRELOAD": "/a.so /b.so"}
        view.show("/libraries", environment)
        self.assertEqual(environment["LD_PRELOAD"], "/libraries/libtwisted_ib_view.so:/a.so:/b.so")
        folder = Path(environment["TWISTED_IB_SYSFS"])
        self.assertEqual(Path(folder, "sys/class/infiniband/shm0/node_type").read_text(), "1: CA\n")
        again = dict(environment)
        view.show("/libraries", again)
        self.assertEqual(again, environment)

    def test_order(self) -> None:
        """
        Libraries come in the order that they are given in, each once; none leaves the variable as it was.
        """
        environment = {"LD_PRELOAD": "/a.so /b.so"}
        view.put((), environment)
        self.assertEqual(environment["LD_PRELOAD"], "/a.so /b.so")
        view.put(("/one.so", "/b.so"), environment)
        self.assertEqual(environment["LD_PRELOAD"], "/one.so:/b.so:/a.so")
        empty: dict[str, str] = {}
        view.put((), empty)
        self.assertEqual(empty, {})

    def test_refused(self) -> None:
        """
        The loader's variable has no path with a space.
        """
        error = self.assertRaises(LibraryBuildError, view.show, "/a b", {})
        self.assertIn("set XDG_CACHE_HOME", str(error))

    def test_bound(self) -> None:
        """
        The folder that was used longest ago goes, and one that is used stays.
        """
        self.patch(limits, "DEVICE_VIEWS", 2)
        first, second, third = ({DEVICES: f"{each}=shm"} for each in "xyz")
        folders = [view._folder(each) for each in (first, second)]
        for age, folder in zip((20, 10), folders, strict=True):
            os.utime(folder, (time.time() - age,) * 2)
        self.assertEqual(view._folder(first), folders[0])
        kept = {folders[0], view._folder(third)}
        self.assertEqual({str(each) for each in self.cache.iterdir()}, kept)

    def test_followed(self) -> None:
        """
        Another folder is made where the devices, the one that is shown or the rules are others; nothing is
        imported for one that is there.
        """
        rules = Path(self.mktemp())
        rules.write_text("use tcp connect * *:*\n")
        environments = [{}, {DEVICES: "x=shm"}, {DEVICE: "shm0"}, {"TWISTED_IB_CONFIG": str(rules)}]
        self.assertEqual(len({view._folder(each) for each in environments}), 4)
        made = view._folder({})
        for number, path in enumerate(view._MADE_BY):
            other = shutil.copy(path, self.mktemp())
            with open(other, "a") as file:
                file.write("#\n")
            own = list(view._MADE_BY)
            own[number] = other
            changed = self.patch(view, "_MADE_BY", tuple(own))
            self.assertNotEqual(view._folder({}), made)
            changed.restore()
        self.patch(view, "_make", self.fail)
        self.assertEqual(len({view._folder(each) for each in environments}), 4)
        rules.write_text("not a rule\n")
        self.assertRaises(self.failureException, view._folder, environments[-1])


def _inFront(library: Path, code: str, *arguments: str, **environment: str) -> str:
    variables = {**os.environ, "LD_PRELOAD": str(library), **environment}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env=variables, check=True, capture_output=True, text=True, timeout=HANG_SECONDS
    ).stdout.strip()


class SpinLockTests(SynchronousTestCase):
    """
    Locks of C in a program that is Python, of each version: the extra [c] is not needed.
    """

    def setUp(self) -> None:
        """
        Compile the library in front.
        """
        if shutil.which("gcc") is None:
            self.skipTest("there is no gcc")
        self.library = Path(self.mktemp()).absolute()
        command = ["gcc", "-shared", "-fPIC", "-w", str(_SOURCE), "-o", str(self.library), "-ldl"]
        subprocess.run(command, check=True)

    def test_left(self) -> None:
        """
        A thread leaves Python's lock to the one that has the lock it waits for.
        """
        self.assertEqual(_inFront(self.library, _LEFT), "0 16")

    def test_joined(self) -> None:
        """
        It leaves that to a thread whose end it waits for.
        """
        self.assertEqual(_inFront(self.library, _JOINED), "0 7 [5]\n35")

    def test_neverBoth(self) -> None:
        """
        A thread has not got the lock while it waits for Python's, which may never come where Python ends.
        """
        self.assertEqual(_inFront(self.library, _NEVER_BOTH), "0\n0")


class LibraryTests(SynchronousTestCase):
    """
    The library in front of the C library.
    """

    if _lacking:
        skip = _lacking

    def setUp(self) -> None:
        """
        Build it, and a folder.
        """
        try:
            compiler = build.compilerCommand()
        except LibraryBuildError as error:
            self.skipTest(str(error))
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        self.library = self.folder / "view.so"
        compileIn(self.folder, {"view": build.viewCommand(self.library, compiler)})
        files = {
            "sys/class/infiniband/x/name": "1\n",
            "sys/class/infiniband_verbs/v": "",
            "dev/infiniband/uverbs0": "",
        }
        for path, text in files.items():
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (self.folder / "sys/class/infiniband/link").symlink_to("x")

    def compile(self, name: str, code: str, *options: str) -> str:
        """
        @return: the path of a library of C.
        """
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-x", "none", "-o", str(path), *options]
        subprocess.run(command, input=code, text=True, check=True)
        return str(path)

    def test_carried(self) -> None:
        """
        Libraries that a wheel carries under names of their own give way to those beside the one in front, if
        the wheel's folder is in the path of what a program opens; else they do not.
        """
        self.compile("libibverbs.so.1", "int ibv_whose(void) { return 2; }")
        carried = self.compile("x.libs/libibverbs-01ab.so.1", "int ibv_whose(void) { return 1; }")
        code = "int ibv_whose(void); int whose(void) { return ibv_whose(); }"
        for paths, answer in (("/none:$ORIGIN/../x.libs", "2"), ("$ORIGIN/../y.libs", "1")):
            for tags in ("enable", "disable"):
                options = f"-Wl,-rpath,{paths}", f"-Wl,--{tags}-new-dtags", carried
                user = self.compile("y/user.so", code, *options)
                self.assertEqual(self.run_(f"import ctypes; print(ctypes.CDLL({user!r}).whose())"), answer)

    def test_opened(self) -> None:
        """
        A name without a folder is looked for where its opener's own path leads.
        """
        self.compile("z/libown.so", "int own(void) { return 7; }")
        code = """#include <dlfcn.h>
int own(void) { int (*found)(void) = dlsym(dlopen("libown.so", RTLD_NOW), "own"); return found(); }"""
        opener = self.compile("opener.so", code, "-Wl,-rpath,$ORIGIN/z")
        self.assertEqual(self.run_(f"import ctypes; print(ctypes.CDLL({opener!r}).own())"), "7")
        damaged = self.folder / "damaged.so"
        for text in (b"", b"\x7fELF", Path(opener).read_bytes()[:200]):
            damaged.write_bytes(text)
            self.run_(f"""import ctypes
try:
    ctypes.CDLL({str(damaged)!r})
except OSError:
    pass""")

    def run_(self, code: str, *arguments: str, **environment: str) -> str:
        """
        @return: what a process of Python writes that has the library in front.
        """
        return _inFront(self.library, code, *arguments, **environment)

    def test_functions(self) -> None:
        """
        Each function that takes a path is led, and says that what is not in the folder is not there.
        """
        with self.library.open("rb") as file:
            symbols = [*ELFFile(file).get_section_by_name(".dynsym").iter_symbols()]
        names = sorted(each.name for each in symbols if each["st_shndx"] != "SHN_UNDEF")
        signals = ("bsd_signal", "signal", "sigset", "ssignal", "sysv_signal", "__sysv_signal")
        actions = ("sigaction", "__sigaction", "twisted_ib_handles", "twisted_ib_handled")
        for name in ("dlopen", "pthread_spin_lock", "pthread_join", *signals, *actions):
            names.remove(name)
        self.assertGreater(len(names), 40)
        ofLinks = [each for each in names if "readlink" in each]
        ofFolders = [each for each in names if "dir" in each]
        ofFiles = [each for each in names if each not in ofLinks + ofFolders]
        for path, some in (("x/name", ofFiles), ("link", ofLinks), ("x", ofFolders)):
            path = f"/sys/class/infiniband/{path}"
            text = self.run_(_CALLS, path, f"{path}-no", json.dumps(some), TWISTED_IB_SYSFS=str(self.folder))
            for name, (found, missing) in json.loads(text).items():
                # There is no such attribute, or none on this file system: it was found.
                self.assertIn(found, (61, 95) if name.endswith("getxattr") else (0,), name)
                self.assertEqual(missing, 2, name)

    def test_paths(self) -> None:
        """
        Those of devices alone are led, whole words, and only where a folder is named; a node is a character
        device that has nothing.
        """
        code = """
import os, stat, sys
print(os.path.exists("/sys/class/infiniband_verbs/v"), os.path.exists("/sys/class/infinibandx"))
print(os.path.exists("/sys/class/net"), os.path.exists("sys/class/infiniband"))
node = "/dev/infiniband/uverbs0"
if os.path.exists(node):
    print(stat.S_ISCHR(os.stat(node).st_mode), open(node, "rb").read(), os.path.exists(node[:-1] + "1"))
    print(os.listdir("/dev/infiniband"), os.open("/dev/infiniband/made", os.O_CREAT | os.O_WRONLY, 0o640) > 0)
"""
        self.assertEqual(
            self.run_(code, TWISTED_IB_SYSFS=str(self.folder)).split("\n"),
            ["True False", "True False", "True b'' False", "['uverbs0'] True"],
        )
        self.assertEqual(
            (self.folder / "dev/infiniband/made").stat().st_mode & 0o777, 0o640 & ~os.umask(os.umask(0))
        )
        self.assertEqual(self.run_(f"import os; print(os.path.exists({_OWN!r}))"), "False")
        long = "/sys/class/infiniband/" + "x" * 5000
        text = self.run_(f"import os; print(os.path.exists({long!r}))", TWISTED_IB_SYSFS=str(self.folder))
        self.assertEqual(text, "False")
