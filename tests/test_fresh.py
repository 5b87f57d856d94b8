"""
Tests that the tests need nothing but Python where they are only imported: what a machine lacks is a skip that
names the package, or the failure of one test, and never of all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

TESTS = Path(__file__).resolve().parent

#: Load libraries, start programs: by full name, or by the last part where it is telling.
CALLS = {
    *("ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary", "ctypes.pydll.LoadLibrary"),
    *("ctypes.util.find_library", "os.system", "os.popen", "os.posix_spawn", "os.posix_spawnp", "os.fork"),
    *(f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")),
    *(f"subprocess.{name}" for name in ("getoutput", "getstatusoutput")),
    *(f"os.spawn{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
}
METHODS = {"dlopen"}
#: They open files, of which those in /dev are devices.
OPENS = {"open", "os.open", "io.open"}
#: A module without these has no such call: most need not be parsed.
MENTIONS = re.compile(
    r"DLL|dlopen|LoadLibrary|find_library|subprocess|os\.(system|popen|posix_spawn|spawn|fork)|/dev"
)

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _namesOf(tree: ast.Module) -> dict[str, str]:
    """
    @return: the names that a module has imported, and what they stand for.
    """
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                name = each.asname or each.name.partition(".")[0]
                names[name] = each.name if each.asname else name
        elif isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


def _isMain(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """
    @return: the calls that are made when a node is executed: what a function does is not, but its decorators,
        defaults and annotations are.
    """
    if isinstance(node, ast.Call):
        yield node
    inside: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Lambda):
        inside = [node.args]
    elif isinstance(node, _SCOPES):
        inside = [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
    elif _isMain(node):
        assert isinstance(node, ast.If)
        inside = list(node.orelse)
    for each in inside:
        yield from _calls(each)


def atImport(source: str) -> list[tuple[int, str]]:
    """
    @param source: a module.

    @return: the lines on which it loads a library, starts a program or opens a device when it is imported,
        and the calls.
    """
    if not MENTIONS.search(source):
        return []
    tree = ast.parse(source)
    names = _namesOf(tree)
    functions = {node.name: node for node in tree.body if isinstance(node, _SCOPES[:2])}

    def found(calls: Iterator[ast.Call], followed: frozenset[str]) -> Iterator[tuple[int, str]]:
        for call in calls:
            first, _, rest = ast.unparse(call.func).partition(".")
            name = ".".join(filter(None, (names.get(first, first), rest)))
            path = ast.unparse(call.args[0]) if call.args else ""
            isDevice = name in OPENS and "/dev" in path
            if name in CALLS or name.rpartition(".")[2] in METHODS or isDevice:
                yield call.lineno, ast.unparse(call)
            elif name in functions and name not in followed:
                for statement in functions[name].body:
                    for _, what in found(_calls(statement), followed | {name}):
                        yield call.lineno, f"{ast.unparse(call)}: {what}"

    return list(found(_calls(tree), frozenset()))


class FreshTests(SynchronousTestCase):
    """
    All modules under C{tests}.
    """

    def test_found(self) -> None:
        """
        Each way to load a library, start a program or open a device when a module is imported is found.
        """
        for source in (
            "import ctypes\nctypes.CDLL('libc.so.6')",
            "from ctypes import CDLL as Library\nLibrary('libc.so.6')",
            "from ctypes import cdll\ncdll.LoadLibrary('libc.so.6')",
            "import ctypes.util\nctypes.util.find_library('c')",
            "from ctypes.util import find_library\nfind_library('c')",
            "ffi = object()\nffi.dlopen(None)",
            "import subprocess as sp\nsp.run(['true'])",
            "import subprocess\n[subprocess.Popen(each) for each in ('true',)]",
            "import os\nos.system('true')",
            "import os\nos.open('/dev/infiniband/umad0', os.O_RDWR)",
            "with open('/dev/kvm') as file:\n    pass",
            "import subprocess\nclass A:\n    made = subprocess.check_output('true')",
            "import subprocess\ndef a(b=subprocess.call('true')): pass",
            "import subprocess\n@subprocess.call\ndef a(): pass\n@subprocess.call('true')\ndef b(): pass",
            "import subprocess\ntry:\n    subprocess.run('true')\nexcept OSError:\n    pass",
            "import subprocess\na = lambda b=subprocess.run('true'): b",
            "import ctypes\ndef a(): return b()\ndef b(): return ctypes.CDLL('x')\nc = a()",
            "import subprocess\nif __name__ == '__main__':\n    pass\nelse:\n    subprocess.run('true')",
        ):
            self.assertEqual(len(atImport(source)), 1, source)

    def test_notFound(self) -> None:
        """
        What functions do when they are called later is left alone, as is the main program, and other files.
        """
        for source in (
            "import ctypes\ndef a(): return ctypes.CDLL('libc.so.6')",
            "import subprocess\nclass A:\n    def b(self): subprocess.run('true')",
            "import subprocess\na = lambda: subprocess.run('true')",
            "import subprocess\nif __name__ == '__main__':\n    subprocess.run('true')",
            "import subprocess\ndef main(): subprocess.run('true')\nif __name__ == '__main__':\n    main()",
            "open('/etc/services'); open(subprocess.DEVNULL)",
            "DEVICE = '/dev/kvm'",
            "import subprocess\ndef a(): a() or subprocess.run('true')\n",
        ):
            self.assertEqual(atImport(source), [], source)

    def test_tree(self) -> None:
        """
        No module under C{tests} does so: do it in C{setUp}, or skip, and name the package that is needed.
        """
        found = [
            f"{path.relative_to(TESTS)}, line {line}: {what}"
            for path in sorted(TESTS.rglob("*.py"))
            for line, what in atImport(path.read_text())
        ]
        self.assertEqual(found, [], "it is done when the module is imported: do it in setUp, or skip")
