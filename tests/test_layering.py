"""
Tests of the tree: imports point downwards (the contracts in C{setup.cfg}), folders are small and do not
depend on each other in circles.  Each rule is shown to fail where it is broken.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.gates.facts import facts
from tests.support.waiting import HANG_SECONDS
from twisted_ib import PLUGINS
from twisted_ib.hca.base.interfaces import (
    IPacketFabric,
    ISharedMemoryPath,
    ITwinPath,
)
from twisted_ib.hca.device.registry import KINDS, addFabric
from twisted_ib.hca.fabric.base.streams import IAdapterOwner, IStreamFabric
from twisted_ib.hca.fabric.base.subnetdirectory import ISubnetDirectory, ISubnetOwner
from twisted_ib.hca.host.socketpage.page import IListed

ROOT = Path(__file__).resolve().parent.parent

#: Folders of one trade have at most so many modules, C{__init__} not counted.
MOST_MODULES = 12

#: Lines of a module at most.
MOST_LINES = 600
#: Lines of one class at most, in a module that is listed.
MOST_CLASS_LINES = 1000
#: Modules that may have more, and why.
LONG_MODULES = {
    "twisted_ib/blocking/connection.py": "one class: all calls of a blocking socket, compiled as one",
    "twisted_ib/blocking/socket.py": "one class: the standard library's socket, with all of its calls",
    "twisted_ib/hca/device/device.py": "one class, the HCA as users see it; its parts are modules beside it",
    "twisted_ib/hca/fabric/hardware/adapterpath.py": "one class: the path of a queue pair",
    "twisted_ib/hca/fabric/iwarp/streampath.py": "one class: the path of a queue pair",
    "twisted_ib/hca/fabric/shm/ring.py": "one class: both directions of a ring, compiled as one",
    "twisted_ib/hca/fabric/shm/shm.py": "one class: the fabric of an HCA and its run directories",
    "twisted_ib/interfaces.py": "the documented interfaces of all protocols: docstrings, hardly any code",
    "twisted_ib/rds/media/rcconnection.py": "one class: a queue pair and the paths that it carries",
    "twisted_ib/rds/port.py": "one class: a socket, as DatagramProtocol and IRDSTransport want it",
    "twisted_ib/sdp/stream.py": "one class: a connection below Twisted's transport, compiled as one",
    "twisted_ib/verbs/pyverbs/cm/cmid.py": "one class: pyverbs' CMID",
}

#: How a module is loaded, or found among the loaded ones, by a string.
LOADS = re.compile(
    r"""import_module|__import__|namedAny|namedModule|runpy|modules(\.get\(|\[)["']twisted_ib"""
)

#: These run programs of the user, or import what Twisted would, and nothing of the package.
RUNS = {"twisted_ib/tools/run/program.py", "twisted_ib/tools/run/hooks.py"}
#: This has C{twisted_ib.PLUGINS} loaded, which are above it.
PLUGS = {"twisted_ib/hca/device/registry.py"}

#: What is called C{fabric}, C{path} or C{owner} in which modules, and all that they may ask of it.
SEAM = {
    "fabric": (
        "hca/capture hca/device hca/mad hca/queues hca/services verbs subnet/sma internet rdma rds sdp",
        {*IPacketFabric, *ISubnetDirectory, *IStreamFabric, *IListed},
    ),
    "path": (
        "hca/device hca/mad hca/queues hca/services internet rdma sdp",
        {*ISharedMemoryPath, *ITwinPath},
    ),
    "owner": ("hca/fabric subnet/port", {*ISubnetOwner, *IAdapterOwner}),
}

#: One line for each contract that breaks it: contract, module, statement.
BREAKS = (
    ("packages", "sdp/stream", "import twisted_ib.rds.port"),
    ("hca", "hca/queues/completion", "import twisted_ib.hca.device.device"),
    ("fabric", "hca/fabric/shm/ring", "import twisted_ib.hca.fabric.roce.sessions"),
    ("verbs", "verbs/pyverbs/objects/pd", "import twisted_ib.verbs.pyverbs.cm.cmid"),
    ("skins", "verbs/core/hub", "import twisted_ib.verbs.pyverbs.enums.device"),
    ("subnet", "subnet/sma/node", "import twisted_ib.subnet.sm.model"),
    ("wire", "hca/wire/headers", "import twisted_ib.hca.wire.packet"),
    ("drive", "drive/process", "import twisted_ib.configuration.file"),
    ("pure", "sdp/protocol/machine", "import socket"),
    ("sm", "subnet/sm/sweep", "import twisted_ib.subnet.network.graph"),
    ("hca-without-twisted", "hca/host/libc", "import twisted.internet.defer"),
    ("fabrics", "internet/channel", "import twisted_ib.hca.fabric.shm.shm"),
    ("ports", "subnet/hosting/link", "import twisted_ib.subnet.port.paths"),
    ("cm", "hca/fabric/iwarp/mpaservice", "from twisted_ib.hca.wire.cm import REQ"),
)


def sources(root: Path, *tops: str) -> Iterator[Path]:
    """
    @return: The modules of packages.
    """
    for top in tops or ("twisted_ib",):
        yield from sorted((root / top).rglob("*.py"))


def nameOf(root: Path, path: Path) -> str:
    """
    @return: A module's full name.
    """
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folderEdges(root: Path) -> set[tuple[str, str]]:
    """
    @return: The pairs of folders of which one imports from the other.  A package's C{__init__} only exports,
        so it belongs to no folder.
    """
    modules = {nameOf(root, path): path for path in sources(root)}
    edges: set[tuple[str, str]] = set()
    for name, path in modules.items():
        if path.name == "__init__.py":
            continue
        for target in facts(path.read_text()).imported:
            found = target if target in modules else target.rpartition(".")[0]
            if found not in modules or modules[found].name == "__init__.py":
                continue
            pair = name.rpartition(".")[0], found.rpartition(".")[0]
            if pair[0] != pair[1] and pair[1] != "twisted_ib":
                edges.add(pair)
    return edges


def circles(edges: set[tuple[str, str]]) -> list[set[str]]:
    """
    @return: The groups of folders that can all be reached from each other.
    """
    following = defaultdict(set)
    for one, other in edges:
        following[one].add(other)

    def reached(start: str) -> set[str]:
        found, left = set(), [start]
        while left:
            for each in following[left.pop()] - found:
                found.add(each)
                left.append(each)
        return found

    reach = {each: reached(each) for each in list(following)}
    groups: list[set[str]] = []
    for each, others in reach.items():
        group = {other for other in others if each in reach.get(other, ())}
        if group and group not in groups:
            groups.append(group)
    return groups


def crowded(root: Path) -> dict[str, int]:
    """
    @return: The folders with more modules than they may have.
    """
    count: dict[str, int] = defaultdict(int)
    for path in sources(root, "twisted_ib", "tests"):
        folder = str(path.parent.relative_to(root))
        if path.name != "__init__.py":
            count[folder] += 1
    return {each: n for each, n in count.items() if n > MOST_MODULES}


def long(root: Path) -> dict[str, int]:
    """
    @return: The modules with too many lines.
    """
    lines = {str(path.relative_to(root)): path.read_text().count("\n") for path in sources(root)}
    return {each: n for each, n in lines.items() if n > MOST_LINES and each not in LONG_MODULES}


def longClasses(root: Path) -> dict[str, int]:
    """
    @return: The classes with too many lines, of the modules that may be long.
    """
    return {
        f"{module}: {node.name}": n
        for module in LONG_MODULES
        for node in ast.walk(ast.parse((root / module).read_text()))
        if isinstance(node, ast.ClassDef)
        and (n := (node.end_lineno or 0) - node.lineno + 1) > MOST_CLASS_LINES
    }


def managers(root: Path, protected: list[str], allowed: list[str]) -> set[str]:
    """
    @param protected: The packages of the communication manager.
    @param allowed: Those that may know it.
    @return: The other modules that do: by an import, also for annotations, or as the C{cm} of a device.
    """

    def isIn(name: str, packages: list[str]) -> bool:
        return any(f"{name}.".startswith(f"{each}.") for each in packages)

    found = set()
    for path in sources(root):
        if isIn(nameOf(root, path), protected + allowed):
            continue
        known = facts(path.read_text())
        isAsked = any(name == "cm" for _, name in known.attributes)
        if isAsked or any(isIn(name, protected) for name in known.imported):
            found.add(str(path.relative_to(root)))
    return found


def byName(root: Path) -> set[str]:
    """
    @return: The modules that import others of the package by a string, or look them up.
    """
    texts = {str(path.relative_to(root)): path.read_text() for path in sources(root)}
    return {each for each, text in texts.items() if LOADS.search(text)} - RUNS - PLUGS


def unnamed(root: Path) -> list[str]:
    """
    @return: What modules ask of a fabric or of a path, and no interface names.
    """
    found = []
    for kind, (folders, names) in SEAM.items():
        for path in sources(root, *(f"twisted_ib/{each}" for each in folders.split())):
            for owner, name in facts(path.read_text()).attributes:
                if owner.strip("_") == kind and name not in names:
                    found.append(f"{path.relative_to(root)}: {kind}.{name}")
    return found


class TreeTestCase(SynchronousTestCase):
    """
    The checkout's tree, and copies of it.
    """

    def copied(self) -> Path:
        """
        @return: A folder with a copy of the package and its contracts.
        """
        root = Path(self.mktemp()).resolve()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "twisted_ib", root / "twisted_ib", ignore=ignored)
        shutil.copy(ROOT / "setup.cfg", root)
        return root

    def add(self, root: Path, module: str, line: str) -> None:
        """
        Add a statement to the end of a module.
        """
        with (root / "twisted_ib" / f"{module}.py").open("a") as file:
            file.write(f"{line}\n")


class ContractTests(TreeTestCase):
    """
    The import contracts hold, and they speak of everything they should.
    """

    def setUp(self) -> None:
        """
        Read the contracts.
        """
        self.contracts = ConfigParser()
        self.contracts.read(ROOT / "setup.cfg")

    def lint(self, root: Path) -> subprocess.CompletedProcess[str]:
        """
        Run import-linter.
        """
        # Found by path: the checkout is the first entry in both processes, as in C{python -m}.
        environment = dict(os.environ, NO_COLOR="1", COLUMNS="120")
        program = "from importlinter.cli import lint_imports_command as run; run()"
        return subprocess.run(
            [sys.executable, "-c", program, "--config", str(root / "setup.cfg"), "--no-cache"],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )

    def names(self) -> dict[str, str]:
        """
        @return: The contracts' names by what they are called in C{setup.cfg}.
        """
        prefix = "importlinter:contract:"
        return {
            section.removeprefix(prefix): self.contracts[section]["name"]
            for section in self.contracts.sections()
            if section.startswith(prefix)
        }

    def test_contracts(self) -> None:
        """
        import-linter finds every contract kept.
        """
        result = self.lint(ROOT)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn(" 0 broken", result.stdout)

    def test_broken(self) -> None:
        """
        Each contract is broken by an import that it forbids.
        """
        names = self.names()
        self.assertEqual({contract for contract, _, _ in BREAKS}, set(names))
        root = self.copied()
        for _, module, line in BREAKS:
            self.add(root, module, line)
        result = self.lint(root)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for contract in names.values():
            self.assertIn(f"{contract} BROKEN", result.stdout)

    def test_indirect(self) -> None:
        """
        The bans hold for what modules reach through others too: no contract is switched to direct imports,
        and none has exceptions but for old names (L{tests.gates.test_house.OLD}).
        """
        for name in self.names():
            section = self.contracts[f"importlinter:contract:{name}"]
            self.assertNotIn("allow_indirect_imports", section)
            if name != "packages":
                self.assertNotIn("ignore_imports", section)

    def test_pureFolders(self) -> None:
        """
        Each folder called C{protocol}, management, and all below the fabrics, but for what a host needs, is
        pure.
        """
        pure = set(self.contracts["importlinter:contract:pure"]["source_modules"].split())
        protocols = {
            nameOf(ROOT, path.parent) for path in (ROOT / "twisted_ib").rglob("protocol/__init__.py")
        }
        expected = set(protocols)
        for package, above in (("hca", "host"), ("subnet", "port")):
            layers = self.contracts[f"importlinter:contract:{package}"]["layers"].split()
            below = layers[layers.index(above) + 1 :]
            expected |= {f"twisted_ib.{package}.{each}" for each in below if each != "|"}
        self.assertEqual(expected - pure, set())

    def test_fabricsProtected(self) -> None:
        """
        Each fabric has a row, and is named in the contract that lets only the registry import one.
        """
        folders = {
            path.name
            for path in (ROOT / "twisted_ib/hca/fabric").iterdir()
            if (path / "__init__.py").exists()
        }
        expected = {f"twisted_ib.hca.fabric.{each}" for each in folders - {"base"}}
        self.assertEqual(
            set(self.contracts["importlinter:contract:fabrics"]["protected_modules"].split()), expected
        )
        own = [kind for kind in KINDS if kind.open.__module__ == addFabric.__module__]
        self.assertEqual({f"twisted_ib.hca.fabric.{kind.name}" for kind in own}, expected)
        others = {kind.open.__module__ for kind in KINDS if kind not in own}
        self.assertEqual(others, set(PLUGINS))


class FolderTests(TreeTestCase):
    """
    Rules that import-linter does not check.
    """

    def test_circles(self) -> None:
        """
        No circle of folders; imports in functions and for annotations count.
        """
        self.assertEqual(circles(folderEdges(ROOT)), [])

    def test_circleFound(self) -> None:
        """
        One more import makes a circle, also if it is in a function or for annotations only.
        """
        for condition in ("def planted():", "if TYPE_CHECKING:"):
            root = self.copied()
            line = f"{condition}\n    from twisted_ib.hca.queues import completion"
            self.add(root, "hca/memory/windows", line)
            self.assertEqual(circles(folderEdges(root)), [{"twisted_ib.hca.memory", "twisted_ib.hca.queues"}])

    def test_folders(self) -> None:
        """
        A folder has at most twelve modules.
        """
        self.assertEqual(crowded(ROOT), {})

    def test_crowdFound(self) -> None:
        """
        One module too many is found.
        """
        root = self.copied()
        for number in range(MOST_MODULES):
            (root / f"twisted_ib/hca/cm/more{number}.py").write_text("")
        self.assertEqual(list(crowded(root)), ["twisted_ib/hca/cm"])

    def test_lines(self) -> None:
        """
        A module has at most 600 lines, but for those that are listed, and none of their classes 1,000.
        """
        self.assertEqual(long(ROOT), {})
        self.assertEqual(longClasses(ROOT), {})

    def test_longFound(self) -> None:
        """
        One line too many is found.
        """
        root = self.copied()
        (root / "twisted_ib/hca/long.py").write_text("\n" * (MOST_LINES + 1))
        self.assertEqual(list(long(root)), ["twisted_ib/hca/long.py"])
        for module in LONG_MODULES:
            (root / module).write_text("\n" * (MOST_LINES + 1))
        self.assertEqual(list(long(root)), ["twisted_ib/hca/long.py"])
        module = next(iter(LONG_MODULES))
        lines = "    def call(self): pass\n" * MOST_CLASS_LINES
        (root / module).write_text(f"class Small: pass\nclass Large:\n{lines}")
        self.assertEqual(longClasses(root), {f"{module}: Large": MOST_CLASS_LINES + 1})

    def test_byName(self) -> None:
        """
        No module reaches one of the package by a string; one that does is found.
        """
        self.assertEqual(byName(ROOT), set())
        root = self.copied()
        self.add(root, "sdp/port", 'sys.modules.get("twisted_ib.rds.port")')
        self.add(root, "rds/port", "importlib.import_module(name)")
        self.add(root, "hca/device/objects", "__import__(name)")
        self.add(root, "rdma/port", 'namedAny("twisted_ib.rds.port")')
        names = ("hca/device/objects", "rdma/port", "rds/port", "sdp/port")
        found = {f"twisted_ib/{name}.py" for name in names}
        self.assertEqual(byName(root), found)

    def test_seam(self) -> None:
        """
        Nothing above asks of a fabric or of a path what their interfaces do not name, nor a fabric of its
        device; what does is found.
        """
        self.assertEqual(unnamed(ROOT), [])
        root = self.copied()
        self.add(root, "hca/services/work", "lambda work: work.queuePair.path.table")
        self.add(root, "internet/channel", "lambda self: self.device.fabric.link.send()")
        self.add(root, "hca/fabric/shm/shm", "lambda self: self._owner.services")
        expected = [
            "twisted_ib/internet/channel.py: fabric.link",
            "twisted_ib/hca/services/work.py: path.table",
            "twisted_ib/hca/fabric/shm/shm.py: owner.services",
        ]
        self.assertEqual(unnamed(root), expected)

    def test_connections(self) -> None:
        """
        Users of connections know nothing of the communication manager, not even for annotations; one that
        does is found.
        """
        contracts = ConfigParser()
        contracts.read(ROOT / "setup.cfg")
        section = contracts["importlinter:contract:cm"]
        packages = [section[each].split() for each in ("protected_modules", "allowed_importers")]
        self.assertEqual(managers(ROOT, *packages), set())
        root = self.copied()
        self.add(root, "sdp/port", "if TYPE_CHECKING:\n    from twisted_ib.hca.wire.cm import REQ")
        self.add(root, "rds/port", "from twisted_ib.hca.wire import cm")
        self.add(root, "verbs/pyverbs/cm/call", "def planted(device):\n    return device.cm.connect")
        self.assertEqual(
            managers(root, *packages),
            {"twisted_ib/sdp/port.py", "twisted_ib/rds/port.py", "twisted_ib/verbs/pyverbs/cm/call.py"},
        )

    def test_exceptionsNeeded(self) -> None:
        """
        Each listed exception is needed.
        """
        for module in LONG_MODULES:
            self.assertGreater((ROOT / module).read_text().count("\n"), MOST_LINES)

    def test_packageDocstrings(self) -> None:
        """
        Every module of the package begins with a docstring.
        """
        bare = [
            str(path.relative_to(ROOT)) for path in sources(ROOT) if not facts(path.read_text()).docstring
        ]
        self.assertEqual(bare, [])
