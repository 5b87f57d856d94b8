"""
Numbers of the tree that may only fall: forks on what kind of fabric it is, classes in two modules, what types
are not checked.  C{python -m tests.gates.any} has that of C{Any}.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.gates.any import RECORDED, changes, perMille
from tests.gates.facts import HERE, facts
from tests.gates.falling import folderOf, mayOnlyFall
from tests.test_layering import ROOT, nameOf, sources

#: Lines that ask a device or a path for one of its traits, by folder.  Those of the fabrics' own folders may.
FORKS = {
    "blocking": 1,
    "hca/base": 3,
    "hca/capture": 1,
    "hca/device": 13,
    "hca/services": 4,
    "internet": 1,
    "rdma": 1,
    "rds": 1,
    "rds/media": 1,
    "reactor": 1,
    "sdp": 2,
    "switch": 2,
    "tools/run": 1,
    "tools/show": 1,
    "verbs/c": 3,
    "verbs/pyverbs": 4,
}
#: Classes that nothing but one subclass uses, which is in another module: one class in two places.  At most
#: six, with that subclass and what keeps both apart.
CUT = {
    "DeviceProgress": ("Device", "compiled: what messages pass; a device is none, with interfaces"),
    "HotPaths": ("SharedMemoryFabric", "compiled: the progress of paths; a fabric is none, with interfaces"),
    "HubProgress": ("Hub", "compiled: what each call of verbs passes; tests set methods of a hub"),
    "SocketQueues": ("RDSPort", "compiled: what each datagram passes; a port is none, with interfaces"),
    "Stream": ("SDPTransport", "compiled: a stream; a transport is none, with two bases and interfaces"),
}
#: Classes of no more than one fabric here that a fabric of elsewhere stands on: the tests' toy does.
SHARED = {"ThreadDirectory": "LoopbackFabric"}
#: C{type: ignore} comments, by folder.
IGNORES = {
    "aio": 2,
    "blocking": 15,
    "blocking/families": 1,
    "hca/fabric": 1,
    "hca/host": 1,
    "hca/memory": 1,
    "hca/queues": 1,
    "hca/transport": 2,
    "hca/wire": 1,
    "internet": 4,
    "internet/addressing": 2,
    "rdma": 1,
    "rds": 1,
    "rds/media": 2,
    "rds/streams": 1,
    "sdp": 3,
    "subnet/sa": 1,
    "subnet/sm": 2,
    "switch": 2,
    "tools/compare": 1,
    "tools/perf": 3,
    "tools/ping": 1,
}

#: Where traits are defined, and whose they are.
_OWN = ("hca/base/traits.py", "hca/fabric/", "subnet/port/")
_IGNORE = re.compile(r"#\s*type:\s*ignore")


def forks(root: Path) -> dict[str, int]:
    """
    @return: Lines outside of the fabrics that ask for a trait, by folder.
    """
    found: Counter[str] = Counter()
    for path in sources(root):
        name = str(path.relative_to(root / "twisted_ib"))
        if name.startswith(_OWN):
            continue
        if count := facts(path.read_text()).forks:
            found[folderOf(name)] += count
    return found


def ignores(root: Path) -> dict[str, int]:
    """
    @return: Lines whose types are not checked, by folder.
    """
    found: Counter[str] = Counter()
    for path in sources(root):
        if count := len(_IGNORE.findall(path.read_text())):
            found[folderOf(str(path.relative_to(root / "twisted_ib")))] += count
    return found


def cut(root: Path) -> dict[str, str]:
    """
    @return: The classes that nothing but one subclass uses, which is in another module, each with that one.
    """
    modules = {nameOf(root, path): facts(path.read_text()) for path in sources(root)}

    def origin(module: str, name: str) -> tuple[str, str]:
        """
        @return: The module of a class, and its name.
        """
        own = (module, name)
        found = modules[module].names.get(name, own) if module in modules else own
        return own if found in (own, (HERE, name)) else origin(*found)

    under: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    apart: set[tuple[str, str]] = set()
    for module, said in modules.items():
        apart.update(origin(module, name) for name in said.used)
        for name, base in said.bases:
            under[origin(module, base)].add((module, name))
    return {
        name: subclass
        for (module, name), [(other, subclass), *more] in under.items()
        if module != other and not more and (module, name) not in apart and module in modules
    }


class GateTests(SynchronousTestCase):
    """
    The checkout's tree.
    """

    def test_forks(self) -> None:
        """
        What depends on a fabric's kind is there: its medium, resolution or connector knows.
        """
        mayOnlyFall(self, forks(ROOT), FORKS)

    def test_cut(self) -> None:
        """
        A class is in one module, but for those that are listed.
        """
        self.assertEqual(cut(ROOT), {**{name: subclass for name, (subclass, _) in CUT.items()}, **SHARED})
        self.assertLessEqual(len(CUT), 6)

    def test_ignores(self) -> None:
        """
        mypy looks at each line.
        """
        mayOnlyFall(self, ignores(ROOT), IGNORES)


class AnyTests(SynchronousTestCase):
    """
    L{tests.gates.any}, of which mypy's part runs in C{.ci/run}.
    """

    def test_perMille(self) -> None:
        """
        Shares are of folders, rounded up; other packages and the report's frame are left out.
        """
        report = """
                        Name    Anys    Exprs   Coverage
        --------------------------------------------------------------------------
            benchmarks.bench       8      153     94.77%
                  twisted_ib       1        8     87.50%
          twisted_ib.hca.cm.peer   2       24     91.67%
            twisted_ib.hca.cm      0        1    100.00%
            twisted_ib.sdp.port    0       10    100.00%
        --------------------------------------------------------------------------
                         Total   25264   266336     90.51%
        """
        expected = {".": 125, "hca/cm": 80, "sdp": 0, "twisted_ib": 70}
        self.assertEqual(perMille(report.splitlines()), expected)

    def test_changes(self) -> None:
        """
        What rises, what falls, and what is new.
        """
        self.assertEqual(changes(RECORDED), ([], []))
        found = {"sdp": RECORDED["sdp"] + 1, "rds": RECORDED["rds"] - 1, "new": 1}
        risen, fallen = changes(found)
        self.assertEqual([each.partition(":")[0] for each in (*risen, *fallen)], ["new", "sdp", "rds"])


class FoundTests(SynchronousTestCase):
    """
    What each gate counts, on a tree of two modules.
    """

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).resolve()
        for name, text in {
            "hca/fabric/one/own": "self.traits.packets",
            "hca/base/traits": "traits.packets",
            "rds/media/rc": "if self.traits.packets and device.traits.hasAddress:\n    _traits.proof\n",
            "rds/cut": "class Half: pass\nclass Made: pass\nclass Two: pass\nclass Near: pass\nMade()",
            "rds/whole": "from twisted_ib.rds.cut import Half, Made, Two\n"
            "class Whole(Half[int]):\n    made: Half\n    __init__ = Half.__init__\n"
            "class _(Made): pass\nclass One(Two): pass\nclass Other(Two): pass\n# type: ignore[x]\n",
            "rds/near": "class Base: pass\nclass Sub(Base): pass",
        }.items():
            path = self.root / f"twisted_ib/{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def test_found(self) -> None:
        """
        A line counts once, and not in a fabric; a base that is made, has two subclasses or stands beside its
        subclass is none.
        """
        self.assertEqual(forks(self.root), {"rds/media": 2})
        self.assertEqual(cut(self.root), {"Half": "Whole"})
        self.assertEqual(ignores(self.root), {"rds": 1})

    def test_mayOnlyFall(self) -> None:
        """
        A number that rises fails, and so does one that falls, until it is lowered where it is recorded.
        """
        mayOnlyFall(self, {"a": 1}, {"a": 1, "b": 0})
        for found, message in (({"a": 2}, "a: 2, which may only fall, and was 1"), ({}, "a: 0 now")):
            error = self.assertRaises(self.failureException, mayOnlyFall, self, found, {"a": 1})
            self.assertIn(message, str(error))
