"""
Tests for the stubs of functions that the libraries lack.
"""

from __future__ import annotations

import shutil
import subprocess
from errno import ENOSYS
from importlib.util import find_spec
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.support.waiting import HANG_SECONDS
from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c.building import stubs
from twisted_ib.verbs.c.building.sharedobject import Stub
from twisted_ib.verbs.c.building.stubs import Symbol, inFront, source, stub

LIBRARY = "libibverbs.so.1"

#: A library as this package has it, and one with more: of two versions, and a variable.
_HERE = "int ibv_here(void) { return 7; }\n"
_HERE_MAP = "IBVERBS_1.1 { global: ibv_here; local: *; };\n"
_MORE = """
int ibv_here(void) { return 1; }
int ibv_create_more(void) { return 1; }
int older(void) { return 1; }
int newer(void) { return 1; }
char ibv_flags[64] = "1";
__asm__(".symver older, ibv_more@IBVERBS_1.0");
__asm__(".symver newer, ibv_more@@IBVERBS_1.1");
"""
_MORE_MAP = """
IBVERBS_1.0 { };
IBVERBS_1.1 { global: ibv_here; ibv_more; };
IBVERBS_PRIVATE_34 { global: ibv_create_more; ibv_flags; local: *; };
"""
_PROGRAM = """
#include <errno.h>
#include <stdio.h>
int ibv_here(void);
int ibv_more(void);
void *ibv_create_more(void);
int old(void);
__asm__(".symver old, ibv_more@IBVERBS_1.0");
extern char ibv_flags[64];
int main(void)
{
    int answer = ibv_more(), number = errno;
    errno = 0;
    printf("%d %d %d %d %p %d", ibv_here(), answer, number, old(), ibv_create_more(), ibv_flags[0]);
    printf(" %d\\n", errno == ENOSYS);
    ibv_flags[0] = 1;
    return 0;
}
"""


class AnswerTests(SynchronousTestCase):
    """
    Tests for L{stub}.
    """

    def test_answers(self) -> None:
        """
        The answer is that of the library's functions, and NULL for those that return pointers.
        """
        for library, name, answer in (
            (LIBRARY, "ibv_rate_to_mult", ENOSYS),
            (LIBRARY, "ibv_cmd_create_cq", ENOSYS),
            ("libmlx5.so.1", "mlx5dv_init_obj", -1),
            (LIBRARY, "ibv_reg_mr_iova2", 0),
            (LIBRARY, "ibv_get_device_guid", 0),
            (LIBRARY, "ibv_port_state_str", 0),
            ("librdmacm.so.1", "rdma_create_id", -1),
            ("librdmacm.so.1", "rdma_create_event_channel", 0),
            ("libibumad.so.3", "umad_open_port", -ENOSYS),
            ("libibumad.so.3", "umad_alloc", 0),
        ):
            self.assertEqual(stub(Symbol(library, "V_1", name)), Stub(name, "V_1", answer))
        self.assertEqual(stub(Symbol(LIBRARY, "V_1", "flag", True)), Stub("flag", "V_1", None))

    def test_versions(self) -> None:
        """
        A name that has another version is no program's that is linked now.
        """
        made = source([Symbol(LIBRARY, "V_1", name) for name in ("ibv_old", "ibv_own")], {"ibv_own"})
        self.assertIn("ibv_old@V_1", made)
        self.assertIn("ibv_own@@V_1", made)
        self.assertIn(f"return {ENOSYS};", made)
        made = source([Symbol(LIBRARY, "V_1", "ibv_wr_opcode_str"), Symbol(LIBRARY, "V_1", "flag", True)])
        self.assertIn('return (long)"unknown";', made)
        self.assertIn("char twisted_ib_stub_1[", made)


class BuildTests(SynchronousTestCase):
    """
    Tests for L{inFront}, with a program that wants more than there is.
    """

    def setUp(self) -> None:
        """
        Build the libraries and the program.
        """
        if shutil.which("gcc") is None:
            raise SkipTest("there is no gcc")
        self.folder = Path(self.mktemp()).absolute()
        self.here, self.more = self.folder / "here", self.folder / "more"
        for folder, text, script in ((self.here, _HERE, _HERE_MAP), (self.more, _MORE, _MORE_MAP)):
            folder.mkdir(parents=True)
            (folder / "text.c").write_text(text)
            (folder / "map").write_text(script)
            options = f"-shared -fPIC text.c -o {LIBRARY} -Wl,-soname,{LIBRARY} -Wl,--version-script=map"
            self.compile(folder, *options.split())
        (self.folder / "program.c").write_text(_PROGRAM)
        self.compile(self.folder, *f"program.c -o program more/{LIBRARY} -Wl,-z,now".split())

    def compile(self, folder: Path, *options: str) -> None:
        """
        Run the compiler.
        """
        subprocess.run(["gcc", *options], cwd=folder, check=True, timeout=HANG_SECONDS)

    def ran(self, *folders: Path) -> subprocess.CompletedProcess[str]:
        """
        Run the program.
        """
        return subprocess.run(
            [str(self.folder / "program")],
            env={"LD_LIBRARY_PATH": ":".join(map(str, folders))},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )

    def wanted(self) -> list[Symbol]:
        """
        @return: what the program imports.
        """
        if find_spec("elftools") is None:
            raise SkipTest("the extra [c] is not installed")
        from twisted_ib.tools.run.native.binary import read

        return list(read(str(self.folder / "program"), (LIBRARY,)).wanted)

    def test_program(self) -> None:
        """
        The program starts with stubs only; they answer ENOSYS or NULL, in each version, the variable is
        zero, and what the library has is its own.
        """
        self.assertNotEqual(self.ran(self.here).returncode, 0)
        wanted = self.wanted()
        self.assertEqual(
            [(each.version, each.name, each.isData) for each in wanted],
            [
                ("IBVERBS_1.0", "ibv_more", False),
                ("IBVERBS_1.1", "ibv_here", False),
                ("IBVERBS_1.1", "ibv_more", False),
                ("IBVERBS_PRIVATE_34", "ibv_create_more", False),
                ("IBVERBS_PRIVATE_34", "ibv_flags", True),
            ],
        )
        missing = [each for each in wanted if each.name != "ibv_here"]
        versions = {LIBRARY: {each.version for each in wanted}}
        front = inFront(self.here, missing, versions)
        result = self.ran(front, self.here)
        self.assertEqual((result.returncode, result.stdout), (0, "7 38 38 38 (nil) 0 1\n"), result.stderr)
        self.patch(stubs, "built", self.fail)
        self.assertEqual(inFront(self.here, missing, versions), front)
        self.assertEqual(front.stat().st_mode & 0o777, 0o700)

    def test_refused(self) -> None:
        """
        Too many stubs, names that are none, and a machine without code for stubs: nothing is left.
        """
        one, versions = [Symbol(LIBRARY, "V_1", "f")], {LIBRARY: {"V_1"}}
        for symbol in (Symbol(LIBRARY, "V_1", 'f"'), Symbol(LIBRARY, "V;", "f"), Symbol("../x", "V", "f")):
            error = self.assertRaises(LibraryBuildError, inFront, self.here, [symbol], versions)
            self.assertIn("is no name", str(error))
        self.patch(stubs, "STUBS", 0)
        error = self.assertRaises(LibraryBuildError, inFront, self.here, one, versions)
        self.assertIn("imports 1 functions that the libraries lack", str(error))
        self.patch(stubs, "MACHINES", ("sparc64",))
        error = self.assertRaises(LibraryBuildError, inFront, self.here, one, versions)
        self.assertIn("imports functions that the libraries lack on ", str(error))
        self.assertEqual(
            sorted(each.name for each in self.folder.iterdir() if each.is_dir()), ["here", "more"]
        )
