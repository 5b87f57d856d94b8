"""
Tests of the house: how much of the package the adapter is and how high, that each folder says what is in it,
and that the names which pages have shown are still there.
"""

from __future__ import annotations

import ast
import re
from configparser import ConfigParser
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.gates.facts import HERE, facts
from tests.test_layering import ROOT, TreeTestCase, circles, folderEdges, nameOf, sources
from twisted_ib.drive.process import LAYERS

#: Lines of C{hca} in a hundred of the package's, at most.
MOST_PERCENT = 38
#: Folders of C{hca} of which each imports the next, at most.
MOST_FLOORS = 10

#: Names of the InfiniBand communication manager's messages.
MESSAGES = re.compile(r"\b(REQ|MRA|REJ|REP|RTU|DREQ|DREP|LAP|APR|SIDR_REQ|SIDR_REP)\b")

#: Modules under names that README and docs/ have shown, the names, and where they are now.  There are no
#: other old names.
OLD = {
    "twisted_ib.hca.host.subnet.hosted": ("twisted_ib.subnet.hosting.hosted", ("HostedSubnet",)),
    "twisted_ib.hca.host.subnet.ofthread": ("twisted_ib.subnet.hosting.ofthread", ("hostHere",)),
    "twisted_ib.hca.sm.manager": ("twisted_ib.subnet.sm.manager", ("Options",)),
    "twisted_ib.hca.subnet.topology": ("twisted_ib.subnet.network.topology", ("parse",)),
    "twisted_ib.hca.verbs": (
        "twisted_ib.verbs.pyverbs",
        (
            *("CQ", "MR", "PD", "QP", "SGE", "AHAttr", "Context", "GlobalRoute"),
            *("QPAttr", "QPCap", "QPInitAttr", "SendWR", "enums"),
        ),
    ),
}
#: The folders of those.
OLD_FOLDERS = {"twisted_ib/hca/host/subnet", "twisted_ib/hca/sm", "twisted_ib/hca/subnet"}

#: Folders whose sockets are always the kernel's.
_KERNELS = ("hca", "subnet", "switch")


def isOld(root: Path, path: Path) -> bool:
    """
    @return: Whether a module is one of these, or what a folder of theirs says.
    """
    name = nameOf(root, path)
    return name in OLD or name.replace(".", "/") in OLD_FOLDERS


def inside(root: Path, folder: Path) -> set[str]:
    """
    @return: The modules and folders in a folder, old names left out.
    """
    paths = [each for each in folder.glob("*.py") if each.name != "__init__.py"]
    paths += folder.glob("*/__init__.py")
    return {
        each.parent.name if each.name == "__init__.py" else each.stem
        for each in paths
        if not isOld(root, each)
    }


def unsaid(root: Path) -> list[str]:
    """
    @return: What folders do not name of what is in them, and what they list that is not.
    """
    found = []
    for path in sources(root):
        folder = str(path.parent.relative_to(root))
        if path.name != "__init__.py" or isOld(root, path):
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        kids = inside(root, path.parent)
        named = {
            each.rpartition(".")[2] for each in re.findall(r"[CL]\{(?:[^{}<]*<)?([\w.]+)>?\}", docstring)
        }
        listed = set(re.findall(r"^ *- C\{(\w+)\}:", docstring, re.MULTILINE))
        found += [f"{folder}: {each} is not named" for each in sorted(kids - named)]
        found += [f"{folder}: there is no {each}" for each in sorted(listed - kids)]
    return found


def share(root: Path) -> float:
    """
    @return: How many of a hundred lines of the package are in C{hca}.
    """
    lines = {path: path.read_text().count("\n") for path in sources(root)}
    return (
        100
        * sum(n for path, n in lines.items() if root / "twisted_ib/hca" in path.parents)
        / sum(lines.values())
    )


def floors(root: Path) -> tuple[str, ...]:
    """
    @return: The longest way down through the folders of C{hca}.
    """
    below: dict[str, set[str]] = {}
    for pair in folderEdges(root):
        one, other = (f"{each}..".split(".")[1:3] for each in pair)
        if one[0] == other[0] == "hca" and one != other:
            below.setdefault(one[1], set()).add(other[1])

    @cache
    def longest(folder: str) -> tuple[str, ...]:
        ways = (longest(each) for each in sorted(below.get(folder, ())))
        return (folder, *max(ways, key=len, default=()))

    return max(map(longest, below), key=len)


def hooked(root: Path) -> list[str]:
    """
    @return: Modules that the interpreter calls at forks or at the end by themselves, not by the one that has
        an order for all.
    """
    return [
        str(path.relative_to(root))
        for path in sources(root)
        if re.search(r"\b(register_at_fork|atexit)\b", path.read_text())
        and path != root / "twisted_ib/drive/process.py"
    ]


def replaceable(root: Path) -> list[str]:
    """
    @return: Lines of the devices, subnets and switch whose sockets are what a program has in the place of the
        kernel's.
    """
    return [
        f"{path.relative_to(root)}: {found}"
        for path in sources(root)
        if str(path.relative_to(root)).startswith(tuple(f"twisted_ib/{each}/" for each in _KERNELS))
        for found in re.findall(r"\bsocket\.(?:socket|create_\w+)\(|\bselect\.epoll\(", path.read_text())
    ]


def listing(root: Path) -> list[str]:
    """
    @return: Modules within folders that list their public names, though these are all their own: the names
        say by themselves that they are public.  Left out are those that others take by C{*}.
    """
    taken = {place for place, _ in OLD.values()} | {"twisted_ib.internet.readers"}
    found = []
    for path in sources(root):
        relative = path.relative_to(root)
        text = path.read_text()
        if path.name == "__init__.py" or len(relative.parts) < 3 or nameOf(root, path) in taken:
            continue
        listed = re.findall(r"^__all__ \+?= \[([^]]*)\]", text, re.MULTILINE)
        names = {name for each in listed for name in re.findall(r"\w+", each)}
        if names and all(facts(text).names.get(name, (HERE,))[0] == HERE for name in names):
            found.append(str(relative))
    return found


def ofOthers(root: Path) -> list[str]:
    """
    @return: Modules of iWARP with a word of the InfiniBand communication manager's messages.
    """
    iwarp = root / "twisted_ib/hca/fabric/iwarp"
    return [
        str(path.relative_to(root))
        for path in sorted(iwarp.rglob("*.py"))
        if MESSAGES.search(path.read_text())
    ]


class HouseTests(TreeTestCase):
    """
    The tree, and copies of it.
    """

    def test_share(self) -> None:
        """
        The adapter is a part of the package, not most of it; too much is found.
        """
        self.assertLessEqual(share(ROOT), MOST_PERCENT)
        root = self.copied()
        (root / "twisted_ib/hca/much.py").write_text("\n" * 50_000)
        self.assertGreater(share(root), MOST_PERCENT)

    def test_floors(self) -> None:
        """
        The adapter has few floors, of which none leads to itself; one more is found.
        """
        self.assertEqual(circles(folderEdges(ROOT)), [])
        way = floors(ROOT)
        self.assertLessEqual(len(way), MOST_FLOORS, " -> ".join(way))
        root = self.copied()
        (root / "twisted_ib/hca/more").mkdir()
        (root / "twisted_ib/hca/more/one.py").write_text("import twisted_ib.hca.device.device\n")
        self.assertEqual(floors(root), ("more", *way))

    def test_iwarp(self) -> None:
        """
        iWARP connects by MPA and knows no message of InfiniBand's; a module that does is found.
        """
        self.assertEqual(ofOthers(ROOT), [])
        root = self.copied()
        (root / "twisted_ib/hca/fabric/iwarp/more.py").write_text("# As a REP.\n")
        self.assertEqual(ofOthers(root), ["twisted_ib/hca/fabric/iwarp/more.py"])

    def test_oneLife(self) -> None:
        """
        One module follows the process's forks and its end; another that does is found.
        """
        self.assertEqual(hooked(ROOT), [])
        root = self.copied()
        (root / "twisted_ib/sdp/more.py").write_text("from atexit import register\n")
        (root / "twisted_ib/sdp/other.py").write_text("import os\n\nos.register_at_fork(before=print)\n")
        self.assertEqual(hooked(root), ["twisted_ib/sdp/more.py", "twisted_ib/sdp/other.py"])

    def test_kernelSockets(self) -> None:
        """
        The sockets of devices are the kernel's, whatever the program has in their place; one of the program's
        is found.
        """
        self.assertEqual(replaceable(ROOT), [])
        root = self.copied()
        (root / "twisted_ib/switch/more.py").write_text("import socket\n\nsocket.socket()\n")
        self.assertEqual(replaceable(root), ["twisted_ib/switch/more.py: socket.socket("])

    def test_lifeByLayer(self) -> None:
        """
        The order in which modules follow the process's forks and its end is that of the layers, but for what
        only reports.
        """
        contracts = ConfigParser()
        contracts.read(ROOT / "setup.cfg")
        order: list[str] = []
        for package, above in (("hca", "hca."), ("packages", "")):
            layers = contracts[f"importlinter:contract:{package}"]["layers"]
            order += [f"twisted_ib.{above}{each}" for each in reversed(re.findall(r"\w+", layers))]
        self.assertEqual(LAYERS[0], "twisted_ib.tools")
        self.assertEqual(list(LAYERS[1:]), [each for each in order if each in LAYERS[1:]])

    def test_named(self) -> None:
        """
        Each folder names its modules and folders, and lists no others.
        """
        self.assertEqual(unsaid(ROOT), [])

    def test_unnamedFound(self) -> None:
        """
        A module that is not named is found, and so is a name without one.
        """
        root = self.copied()
        (root / "twisted_ib/sdp/more.py").write_text("")
        (root / "twisted_ib/hca/memory/keys.py").unlink()
        expected = ["twisted_ib/hca/memory: there is no keys", "twisted_ib/sdp: more is not named"]
        self.assertEqual(unsaid(root), expected)

    def test_listed(self) -> None:
        """
        No module lists public names that are all its own; one that does is found, one that hands on is not.
        """
        self.assertEqual(listing(ROOT), [])
        root = self.copied()
        (root / "twisted_ib/sdp/more.py").write_text('class More: ...\n\n\n__all__ = ["More"]\n')
        (root / "twisted_ib/sdp/other.py").write_text('from os import sep\n\n__all__ = [\n    "sep",\n]\n')
        self.assertEqual(listing(root), ["twisted_ib/sdp/more.py"])


class LimitsTests(TreeTestCase):
    """
    The bounds.
    """

    def test_once(self) -> None:
        """
        Each has one value: a second one of the same name would hold for the first one's users, too.
        """
        body = ast.parse((ROOT / "twisted_ib" / "limits.py").read_text()).body
        names = [each.id for one in body if isinstance(one, ast.Assign) for each in one.targets]  # type: ignore[attr-defined]
        self.assertEqual({name for name in names if names.count(name) > 1}, set())


class OldNamesTests(TreeTestCase):
    """
    Names that README and docs/ have shown.
    """

    def test_names(self) -> None:
        """
        They are importable, and the same objects as those of today.
        """
        for old, (new, names) in OLD.items():
            for name in names:
                self.assertIs(getattr(import_module(old), name), getattr(import_module(new), name))

    def test_noOthers(self) -> None:
        """
        Only these are exceptions of the contracts, and their folders have nothing else.
        """
        contracts = ConfigParser()
        contracts.read(ROOT / "setup.cfg")
        section = contracts["importlinter:contract:packages"]
        ignored = {tuple(line.split(" -> ")) for line in section["ignore_imports"].split("\n") if line}
        verbs = ("twisted_ib.hca.verbs", "twisted_ib.verbs.pyverbs.enums")
        self.assertEqual(ignored, {verbs, *((old, new) for old, (new, _) in OLD.items())})
        for folder in OLD_FOLDERS:
            for path in (ROOT / folder).rglob("*.py"):
                self.assertTrue(isOld(ROOT, path), path)

    def test_unused(self) -> None:
        """
        Nothing of the package uses one.
        """
        for path in sources(ROOT):
            for old in OLD:
                self.assertNotIn(f"{old} import", path.read_text(), path)
