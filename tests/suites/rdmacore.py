"""
Run rdma-core's own tests, which are of pyverbs, with this project in pyverbs' place; with C{--own} they have
pyverbs itself.

    python -m tests.suites.rdmacore SOURCE [--dev ib0] [--own] [-k NAME]

C{SOURCE} is a checkout of rdma-core, of which only C{tests/} is used.  Those of vendors' providers are left
out.  Each test has a line: C{ok}, C{skip} with the reason, or C{FAIL} with the last line of the traceback and
its place.  The exit status is 0 if none fails but those that read Linux's sysfs (L{SYSFS}).
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import sys
import unittest
from collections import Counter
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.pyverbs import enums
from twisted_ib.verbs.pyverbs.cm import identifier

#: The tests of providers, by their files' names.
PROVIDERS = ("test_mlx5", "test_efa", "test_cuda")


#: Tests that read what a kernel's driver shows.
SYSFS = ("test_device.DeviceTest.test_get_pkey_index",)


class _Provider(type):
    """
    What a provider's module has: a name that is never used, and may be a base class or a number.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    def __ror__(cls, other: object) -> Any:
        return cls

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return super().__call__()


class _Module(ModuleType):
    """
    A module of pyverbs: all have all names.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__.startswith("pyverbs.providers"):
            return _Provider(name, (), {})
        for place in (verbs, enums):
            if hasattr(place, name):
                return getattr(place, name)
        raise AttributeError(f"{self.__name__} has no {name} here")


class PyverbsFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """
    Finds the modules of pyverbs.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """
        @return: the specification of one of its modules; L{None} for others.
        """
        package, _, rest = fullname.partition(".")
        if package != "pyverbs":
            return None
        # A name that is missing in a package is looked for as a module of it.
        isPackage = not rest or rest.startswith("providers")
        return importlib.util.spec_from_loader(fullname, self, is_package=isPackage)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """
        @return: the module.
        """
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """
        Do nothing: names are looked up when they are asked for.
        """


class Result(unittest.TestResult):
    """
    Writes a line for each test.
    """

    def __init__(self, output: TextIO) -> None:
        super().__init__()
        self._output = output
        self.counts: Counter[str] = Counter()

    def say(self, outcome: str, test: unittest.TestCase, reason: str = "") -> None:
        """
        Write a line.
        """
        self.counts[outcome] += 1
        name = test.id().removeprefix("tests.")
        print(f"{outcome:4} {name}{': ' if reason else ''}{reason}", file=self._output, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.say("ok", test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.say("skip", test, reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        if test.id().removeprefix("tests.") in SYSFS:
            self.say("skip", test, "it reads /sys/class/infiniband")
            return
        lines = self._exc_info_to_string(err, test).strip().splitlines()  # type: ignore[attr-defined]
        place = next((line.strip() for line in reversed(lines) if line.startswith("  File")), "")
        self.say("FAIL", test, f"{lines[-1]} ({place})")

    addError = addFailure


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run them.

    @return: the exit status.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path, help="rdma-core's source")
    parser.add_argument("--dev", default="ib0", help="the device")
    parser.add_argument("--own", action="store_true", help="have pyverbs in its place")
    parser.add_argument("-k", dest="names", action="append", help="only tests with this in their names")
    parser.add_argument("--address", default="127.0.0.1", help="where the communication manager listens")
    chosen = parser.parse_args(arguments)
    if not chosen.own:
        sys.meta_path.insert(0, PyverbsFinder())
    tests = chosen.source.resolve() / "tests"
    # Its tests are a package of the same name as this project's, whose C{__init__} imports them all.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    package: Any = ModuleType("tests")
    package.__path__ = [str(tests)]
    sys.modules["tests"] = package
    sys.path.insert(0, str(tests))
    sys.argv[1:] = ["--dev", chosen.dev]
    from args_parser import parser as theirs  # type: ignore[import-not-found]

    theirs.parse_args()
    base: Any = importlib.import_module("tests.base")

    def place(self: Any, dev: str, port: int, index: int | None) -> None:
        self.args.append([dev, port, index, chosen.address, None])

    base.RDMATestCase._get_ip_mac = place
    # Identifiers choose their device by addresses, which this host's devices share.
    identifier.DEFAULT_DEVICE = chosen.dev
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{name}*" for name in chosen.names] if chosen.names else None
    result = Result(sys.stdout)
    for path in sorted(tests.glob("test_*.py")):
        if path.name.startswith(PROVIDERS):
            continue
        try:
            suite = loader.loadTestsFromModule(importlib.import_module(f"tests.{path.stem}"))
        except ImportError as error:
            count = path.read_text().count("    def test_")
            result.counts["skip"] += count
            print(f"skip {path.stem}, {count} tests: {error}")
        else:
            suite.run(result)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(result.counts.items())))
    return 1 if result.counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
