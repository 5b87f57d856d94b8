"""
Tests of the mutation analysis itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.mutants.__main__ import judged, sources
from tests.mutants.equivalent import EQUIVALENT, Equivalent, without
from tests.mutants.mutations import mutations, sample
from tests.mutants.trying import PARTS, ROOT, Outcome, Tree, testsOf

#: A module and its test, which does not notice another default.
TOY = """
def clamped(value, limit=9):
    while value > limit:
        value -= 1
    return value
"""
TOY_TEST = """
from twisted.trial.unittest import SynchronousTestCase
from toy.clamped import clamped

class ClampedTests(SynchronousTestCase):
    def test_another(self):
        self.skipTest("not here")

    def test_clamped(self):
        self.assertEqual(clamped(11, 9), 9)
"""


class MutationTests(SynchronousTestCase):
    """
    The mutation operators.
    """

    def changes(self, source: str) -> list[tuple[str, str]]:
        """
        @return: The operators and the changed modules.
        """
        return [(each.operator, each.applied(source)) for each in mutations(source)]

    def test_operators(self) -> None:
        """
        Each operator makes its change, and no other.
        """
        for source, *changed in (
            ("a < b", ("relational operator replacement", "(a <= b)")),
            ("a is b", ("relational operator replacement", "(a is not b)")),
            (
                "a <= b in c",
                ("relational operator replacement", "(a < b in c)"),
                ("relational operator replacement", "(a <= b not in c)"),
            ),
            ("a and b", ("logical connector replacement", "(a or b)")),
            ("a % b", ("arithmetic operator replacement", "(a // b)")),
            ("a << b", ("logical operator replacement", "(a >> b)")),
            ("1 << 0", ("constant replacement", "2 << 0"), ("constant replacement", "1 << 1")),
            ("a += b", ("assignment operator replacement", "a -= b")),
            ("not a", ("conditional operator deletion", "a")),
            ("f(True)", ("constant replacement", "f(False)")),
            ("x = 0x0F", ("constant replacement", "x = 16")),
            ("def f(): return a", ("return value replacement", "def f(): return None")),
            (
                "while a: break",
                ("conditional operator insertion", "while (not a): break"),
                ("break continue replacement", "while a: continue"),
            ),
            ("if a: pass", ("conditional operator insertion", "if (not a): pass")),
        ):
            self.assertEqual(self.changes(source), list(changed), source)

    def test_place(self) -> None:
        """
        Only the expression changes: what is around it, its precedence, comments and text that is not ASCII
        stay as they are.
        """
        source = "x = 'ä' # é\ny = 'ö', a * (b + c) - d  # ü\n"
        self.assertEqual(
            [changed.splitlines() for _, changed in self.changes(source)],
            [
                ["x = 'ä' # é", f"y = 'ö', {after}  # ü"]
                for after in ("(a * (b + c) + d)", "(a // (b + c)) - d", "a * ((b - c)) - d")
            ],
        )

    def test_line(self) -> None:
        """
        A mutation says where it is, on one line.
        """
        (found,) = mutations("\n\nx = (a +\n     b)")
        self.assertEqual(str(found), "3:6: arithmetic operator replacement: a + b  ->  (a - b)")

    def test_unread(self) -> None:
        """
        What is read by people and type checkers only does not change.
        """
        for source in (
            '"""Text."""',
            "x: Literal[1]",
            "noisy = False",
            "def f(a: Literal[1]) -> Literal[2]: pass",
            "@frozen(eq=False)\nclass C: pass",
            "if TYPE_CHECKING:\n    x = 1",
            "assert a < b",
            "raise ValueError(f'{a + 1}')",
            "_log.info('x', a=1)",
            "zip(a, b, strict=True)",
            "def __repr__(self): return self.name * 2",
            "X = bytes | list[int | None] | None",
        ):
            self.assertEqual(self.changes(source), [], source)

    def test_sample(self) -> None:
        """
        A seed says which mutants are tried; there are not more than there are.
        """
        every = without({"a": "x = 1\ny = 2\nz = 3", "b": "x = 4"})
        self.assertEqual(sample(every, 2, 7), sample(every, 2, 7))
        self.assertNotEqual(sample(every, 4, 7), sample(every, 4, 8))
        self.assertEqual(len(set(sample(every, 9, 7))), 4)


class EquivalentTests(SynchronousTestCase):
    """
    Mutants that nobody can tell.
    """

    def test_leftOut(self) -> None:
        """
        An entry leaves out its one mutant, on whatever line it is, and no other of that line.
        """
        known = Equivalent("a", "x = 1 + y", "1", "2", "")
        for source in ("x = 1 + y", "z = f()\nif z:\n    x = 1 + y"):
            before = without({"a": source, "b": "x = 1 + y"}, ())
            after = without({"a": source, "b": "x = 1 + y"}, [known])
            ((_, gone),) = set(before) - set(after)
            self.assertEqual((gone.before, gone.after), ("1", "2"))
            self.assertEqual(len(after), len(before) - 1)
        self.assertEqual(len(without({"b": "x = 1 + y"}, [known])), 2)

    def test_nothing(self) -> None:
        """
        An entry that matches nothing, or more mutants than it says, is an error.
        """
        known = Equivalent("a", "x = 1", "1", "2", "")
        for source in ("x = 3", "x = 1\nx = 1"):
            self.assertRaises(LookupError, without, {"a": source}, [known])
        self.assertEqual(without({"a": "x = 1\nx = 1"}, [evolve(known, times=2)]), [])
        self.assertRaises(LookupError, without, {"a": "x = 1"}, [evolve(known, times=2)])

    def test_known(self) -> None:
        """
        Each known one is there, in a module of the parts, with its reason.
        """
        modules = sources(ROOT)
        for each in EQUIVALENT:
            self.assertIn(each.path, modules)
            self.assertTrue(each.reason, each)
        without({each.path: modules[each.path] for each in EQUIVALENT})


class TestsOfTests(SynchronousTestCase):
    """
    Which tests a mutant runs.
    """

    def test_mirrored(self) -> None:
        """
        The module's mirrored tests are first, then those of its folder, and each is there once; what waits
        for processes is last.
        """
        found = testsOf("twisted_ib/hca/cm/sidr.py")
        self.assertEqual(found[:2], ("tests.hca.cm.test_sidr", "tests.hca.cm.test_adapters"))
        self.assertEqual(found[-1], "tests.hca.fabric.test_contract")
        self.assertEqual(len(found), len(set(found)))
        self.assertEqual(testsOf("twisted_ib/verbs/c/umad/names.py")[0], "tests.verbs.c.test_umad")

    def test_everyModule(self) -> None:
        """
        Each part has modules, and each of them tests that are there.
        """
        modules = sources(ROOT)
        for part in PARTS:
            self.assertTrue(any(path.startswith(part) for path in modules), part)
        for path in modules:
            tests = testsOf(path)
            self.assertTrue(tests, path)
            for each in tests:
                self.assertTrue((ROOT / (each.replace(".", "/") + ".py")).is_file(), each)

    def test_elsewhere(self) -> None:
        """
        A module of no part has no tests here.
        """
        self.assertRaises(LookupError, testsOf, "twisted_ib/errors.py")


class TreeTests(SynchronousTestCase):
    """
    Running the tests of a mutant.
    """

    def setUp(self) -> None:
        """
        Make a tree of one module.
        """
        self.module = Path(self.mktemp()).resolve() / "toy" / "clamped.py"
        self.module.parent.mkdir(parents=True)
        (self.module.parent / "__init__.py").touch()
        (self.module.parent / "test_clamped.py").write_text(TOY_TEST)
        self.module.write_text(TOY)

    def outcome(self, tree: Tree, operator: str) -> Outcome:
        """
        @return: How the first mutant of an operator ends.
        """
        found = next(each for each in mutations(TOY) if each.operator.startswith(operator))
        return tree.tried("toy/clamped.py", found, ("toy.test_clamped",))

    def test_outcomes(self) -> None:
        """
        A mutant is killed by a test that fails, which is named, and none that was skipped; it survives if all
        pass.  Of one that hangs the test is said.  The module is as it was.
        """
        tree = Tree(self.module.parent.parent)
        killed = self.outcome(tree, "relational")
        test = "toy.test_clamped.ClampedTests.test_clamped"
        self.assertEqual((killed.status, killed.test), ("killed", test))
        hanging = self.outcome(Tree(tree.root, 0.1, tree.baselines), "assignment")
        self.assertEqual((hanging.status, hanging.test), ("timeout", test))
        self.assertEqual(self.outcome(tree, "constant").status, "survived")
        self.assertEqual(self.module.read_text(), TOY)

    def test_compiled(self) -> None:
        """
        What a process has compiled of one mutant is not run for the next, whatever its size.
        """
        source = "STEP = 1\nLIMIT = 3\n"
        self.module.write_text(source)
        compiling = "import py_compile, toy.clamped\npy_compile.compile(toy.clamped.__file__)\n"
        asking = "toy.clamped.LIMIT, 3"
        test = TOY_TEST.replace("from toy.clamped import clamped\n", compiling).replace(
            "clamped(11, 9), 9", asking
        )
        self.module.with_name("test_clamped.py").write_text(test)
        tree = Tree(self.module.parent.parent)
        found = [tree.tried("toy/clamped.py", each, ("toy.test_clamped",)) for each in mutations(source)]
        self.assertEqual([each.status for each in found], ["survived", "killed"])

    def test_failingOnce(self) -> None:
        """
        A test of the unchanged tree that fails once is forgiven.
        """
        test = self.module.with_name("test_clamped.py")
        test.write_text(TOY_TEST.replace(", 9)\n", ", 80)\n"))
        tree = Tree(self.module.parent.parent)
        run = Tree._run

        def runAgain(*arguments: Any) -> Outcome:
            outcome = run(*arguments)
            test.write_text(TOY_TEST)
            return outcome

        self.patch(Tree, "_run", runAgain)
        self.assertEqual(self.outcome(tree, "relational").status, "killed")

    def test_failing(self) -> None:
        """
        Where the unchanged tree fails its tests, twice, nothing is said about mutants.
        """
        self.module.write_text("")
        failure = self.assertRaises(RuntimeError, self.outcome, Tree(self.module.parent.parent), "return")
        self.assertIn("the unchanged tree fails", str(failure))

    def test_judged(self) -> None:
        """
        One in ten may survive of those that tests have decided on; what ended by time is no part of these.
        """
        mutants = [(f"m{n}", Outcome("killed", 1.0)) for n in range(9)]
        mutants += [("s", Outcome("survived", 1.0)), ("t", Outcome("timeout", 1.0, "toy.Test.test"))]
        lines, enough = judged(mutants)
        self.assertEqual(lines, ["survived s", "timeout t", "9 of 10 caught (90.0%), 1 ended by time"])
        self.assertTrue(enough)
        self.assertFalse(judged(mutants[1:])[1])
        self.assertEqual(judged([])[0], ["0 of 0 caught (0.0%), 0 ended by time"])
