"""
Tests for what the tests wait for (issue 16, point 12): events, with one limit that guards against hanging.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.waiting import patience, waitUntil

TESTS = Path(__file__).resolve().parent

#: Folders of other programs: guests and suites, whose own limits are no test's.
OTHERS = {"interop", "suites"}

#: Calls that end by a limit of time: where their arguments have it.
LIMITED = {
    "communicate": 1,
    "run": None,
    "runReactor": 1,
    "addTimeout": 0,
    "settimeout": 0,
    "alarm": 0,
    "Timer": 0,
}

#: A module without these has no limit: most have none, and need not be parsed.
MENTIONS = re.compile(
    r"communicate\([^)]|runReactor\(|addTimeout|settimeout|alarm\(|Timer\(|\.crash\b|monotonic\(\)\s*\+"
    r"|(thread|process|child|server|client)\.(join|wait)\(|timeout *= *(?!HANG_SECONDS\b)\S"
)


def _number(node: ast.expr | None, constants: dict[str, ast.expr]) -> float | None:
    """
    @return: the number that an expression stands for, here or by a constant of its module.
    """
    if isinstance(node, ast.Name):
        node = constants.get(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    return None


def _limit(call: ast.Call) -> ast.expr | None:
    """
    @return: a call's limit of time.
    """
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "callLater" and call.args[1:]:
        ends = call.args[1]
        return call.args[0] if isinstance(ends, ast.Attribute) and ends.attr == "crash" else None
    if name in ("join", "wait") and isinstance(function, ast.Attribute):
        # Of threads, events and processes, with the limit alone: multicast groups are joined too.  Virtual
        # time is waited for by names that are no such things.
        owner = function.value
        known = getattr(owner, "id", getattr(owner, "attr", ""))
        isKnown = known.endswith(("thread", "process", "child", "server", "client"))
        return call.args[0] if isKnown and len(call.args) == 1 else None
    if name not in LIMITED:
        return None
    place = LIMITED[name]
    for keyword in call.keywords:
        if keyword.arg == "timeout":
            return keyword.value
    return call.args[place] if place is not None and len(call.args) > place else None


def fixedLimits(source: str) -> list[int]:
    """
    @param source: a module of tests.

    @return: the lines on which a test, or a call that it waits for, is limited to a fixed time.
    """
    if not MENTIONS.search(source):
        return []
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for node in ast.walk(tree):
        limit = None
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "timeout":
                    limit = each.value
        elif isinstance(node, ast.Call):
            limit = _limit(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.Call):
            limit = node.right if ast.unparse(node.left) == "time.monotonic()" else None
        number = _number(limit, constants)
        if number is not None and number >= 1:
            assert limit is not None
            found.append(limit.lineno)
    return found


class WaitingTests(SynchronousTestCase):
    """
    L{tests.support.waiting}, and its use.
    """

    def test_patience(self) -> None:
        """
        The environment makes limits longer, never shorter.
        """
        self.assertEqual(patience({}), 1)
        self.assertEqual(patience({"TWISTED_IB_TEST_PATIENCE": "2.5"}), 2.5)
        for wrong in ("0.5", "nan", "", "long"):
            self.assertRaises(ValueError, patience, {"TWISTED_IB_TEST_PATIENCE": wrong})

    def test_event(self) -> None:
        """
        A wait ends with what is waited for, and works on it meanwhile.
        """
        turns: list[int] = []
        waitUntil(lambda: len(turns) == 3, lambda: turns.append(1))
        self.assertEqual(len(turns), 3)

    def test_found(self) -> None:
        """
        L{fixedLimits} finds fixed limits of all kinds, and nothing else.
        """
        for line in (
            "class A:\n    timeout = 20",
            "process.communicate(timeout=60)",
            "LONG = 20\nprocess.communicate(timeout=LONG)",
            "long = 20\nsubprocess.run(command, timeout=long)",
            "subprocess.run(command, timeout=60)",
            "self.runReactor(reactor, timeout=10)",
            "await lost.addTimeout(10, reactor)",
            "wire.settimeout(5)",
            "reactor.callLater(10, reactor.crash)",
            "end = time.monotonic() + 20",
            "thread.join(10)",
            "server.wait(60)",
            "threading.Timer(30, child.kill)",
        ):
            self.assertEqual(len(fixedLimits(line)), 1, line)
        for line in (
            "class A:\n    timeout = HANG_SECONDS",
            "process.communicate(timeout=HANG_SECONDS)",
            "net.wait(90.0)",
            "one.join(two)",
            "client.join(7, said)",
            "time.monotonic() - began",
            "threading.Timer(0.02, device.wake)",
            "reactor.callLater(10, reactor.call)",
        ):
            self.assertEqual(fixedLimits(line), [], line)

    def test_oneLimit(self) -> None:
        """
        No test ends by a limit of its own: a busy machine would fail it.
        """
        found = {
            f"{path.relative_to(TESTS)}:{line}"
            for path in TESTS.rglob("*.py")
            if not OTHERS & set(path.relative_to(TESTS).parts)
            for line in fixedLimits(path.read_text())
        }
        self.assertEqual(found, set())
