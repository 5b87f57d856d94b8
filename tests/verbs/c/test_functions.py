"""
Tests of the tables of functions, and of what is made from them.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import sys
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

import twisted_ib.verbs.c
from twisted_ib import limits
from twisted_ib.errors import DeviceError, HCAError, QueuePairError, UnknownDeviceError
from twisted_ib.verbs.c import errors, functions
from twisted_ib.verbs.c.building import LIBRARIES
from twisted_ib.verbs.c.building.source import exportedFunctions, handlerDeclarations, versionScript
from twisted_ib.verbs.c.functions import AGAIN, Failure, Row, rows
from twisted_ib.verbs.pyverbs import PyverbsRDMAError

FOLDER = Path(twisted_ib.verbs.c.__file__).parent

POINTER = Row("ibv_alloc_pd", "IBVERBS_1.1", "struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)")
NOTHING = Row("ibv_ack_cq_events", "IBVERBS_1.1", "void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)")
NONE = Row("rdma_get_count", "RDMACM_1.0", "int rdma_get_count(void)", Failure.MINUS_ONE)
INNER = Row("poll_cq", "", "int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)", Failure.MINUS_ONE)


class RowTests(SynchronousTestCase):
    """
    L{Row} and the C code of rows.
    """

    def test_parts(self) -> None:
        """
        The parts of a prototype, and the result of a failure that follows from its type.
        """
        self.assertEqual((POINTER.result, POINTER.arguments), ("struct ibv_pd *", "context"))
        self.assertEqual(POINTER.failure, Failure.NULL)
        self.assertEqual(
            (NOTHING.result, NOTHING.arguments, NOTHING.failure), ("void", "cq, n", Failure.NOTHING)
        )
        self.assertEqual((NONE.arguments, NONE.failure), ("", Failure.MINUS_ONE))
        self.assertEqual(Row("f", "V", "int f(int *a)").failure, Failure.ERRNO)

    def test_table(self) -> None:
        """
        A table's text: versions, results of failures, marks, lines that are wrapped, statements before.
        """
        text = """
        V_1:
        int f(int *a,
            int b);
        void *g(void);
        long h(int a) 0 again;
        -:
        void i(void) nested;
        void j(void) again destroys;
        """
        expected = [
            Row("f", "V_1", "int f(int *a, int b)", Failure.MINUS_ONE, "wait();"),
            Row("g", "V_1", "void *g(void)", Failure.NULL),
            Row("h", "V_1", "long h(int a)", Failure.ZERO, again=True),
            Row("i", "", "void i(void)", Failure.NOTHING, nested=True),
            Row("j", "", "void j(void)", Failure.NOTHING, again=True, destroys=True),
        ]
        self.assertEqual(list(rows(text, Failure.MINUS_ONE, f="wait();")), expected)

    def test_exported(self) -> None:
        """
        An exported function is called by its name in C, and calls its handler; another is static.
        """
        text = exportedFunctions([POINTER, NOTHING, INNER])
        self.assertIn('__asm__("ibv_alloc_pd")', text)
        self.assertIn("struct ibv_pd * result = python_ibv_alloc_pd(context);", text)
        self.assertIn("\npython_ibv_ack_cq_events(cq, n);", text)
        self.assertIn("static int exported_poll_cq(", text)
        self.assertNotIn('__asm__("poll_cq")', text)
        self.assertEqual(handlerDeclarations([NONE], "static "), "static int python_rdma_get_count(void);\n")

    def test_cancelled(self) -> None:
        """
        A thread cannot be cancelled in a handler, but before it, and between two calls of one that is called
        again.
        """
        lines = exportedFunctions([attrs.evolve(NONE, before="wait();")]).splitlines()
        self.assertEqual(
            [line.strip() for line in lines[-14:]],
            [
                "wait();",
                "pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);",
                "twisted_ib_inside++;",
                "__atomic_add_fetch(&twisted_ib_busy, 1, __ATOMIC_RELAXED);",
                "__atomic_add_fetch(&twisted_ib_calls, 1, __ATOMIC_SEQ_CST);",
                "if (twisted_ib_settle)",
                "twisted_ib_settle();",
                "int result = python_rdma_get_count();",
                "__atomic_sub_fetch(&twisted_ib_busy, 1, __ATOMIC_RELAXED);",
                "twisted_ib_inside--;",
                "pthread_setcancelstate(cancelling, NULL);",
                "__atomic_add_fetch(&twisted_ib_posts, 1, __ATOMIC_RELAXED);",
                "return result;",
                "}",
            ],
        )
        self.assertNotIn("return result", exportedFunctions([NOTHING]))
        lines = exportedFunctions([attrs.evolve(NONE, again=True)]).splitlines()
        again = lines.index(f"if (result != ({AGAIN})) {{")
        self.assertEqual(lines[-3:], ["twisted_ib_wait(&program);", "}", "}"])
        # No signal comes but in the sleep.
        self.assertLess(lines.index("twisted_ib_block(&program);"), lines.index("for (;;) {"))
        self.assertIn("pthread_sigmask(SIG_SETMASK, &program, NULL);", lines[again:-3])
        # Its handler says so too if it has no result, and others look for completions of what it destroys.
        row = attrs.evolve(NOTHING, again=True, destroys=True)
        self.assertEqual(
            handlerDeclarations([row]), f"int python_{NOTHING.prototype.removeprefix('void ')};\n"
        )
        lines = exportedFunctions([row]).splitlines()
        self.assertIn("int result = python_ibv_ack_cq_events(cq, n);", lines)
        again = lines.index(f"if (result != ({AGAIN})) {{")
        self.assertIn("__atomic_add_fetch(&twisted_ib_posts, 1, __ATOMIC_RELAXED);", lines[again:])
        self.assertIn("return;", lines[again:])

    def test_after(self) -> None:
        """
        A function that only looks has its result in C where the handler's is 0, and is no reason for others
        to look again.
        """
        text = exportedFunctions([attrs.evolve(INNER, after="look(cq)")])
        self.assertIn("if (!result) {\nresult = look(cq);\n}\nreturn result;\n", text)
        self.assertNotIn("(&twisted_ib_posts", text)

    def test_vain(self) -> None:
        """
        A call that is in vain as the one before does not enter Python, and is no reason for others to look.
        """
        text = exportedFunctions([attrs.evolve(NONE, vain="ASKS, one")])
        self.assertIn("if (twisted_ib_is_vain(ASKS, one)) {\nerrno = EAGAIN;\nreturn -1;\n}\n", text)
        self.assertIn("\ntwisted_ib_asks();\n", text)
        self.assertIn(
            "if (!twisted_ib_was_vain(ASKS, one, result))\n__atomic_add_fetch(&twisted_ib_posts", text
        )

    def test_versions(self) -> None:
        """
        Each version has its functions; only what the libraries share is exported beside them.
        """
        self.assertEqual(
            versionScript([POINTER, INNER, NONE, NOTHING]),
            "IBVERBS_1.1 { global: ibv_alloc_pd; ibv_ack_cq_events; };\n"
            "RDMACM_1.0 { global: rdma_get_count; };\n"
            "TWISTED_IB_LOCAL { global: twisted_ib_used; twisted_ib_in_python; twisted_ib_inside; "
            "twisted_ib_asleep; twisted_ib_busy; twisted_ib_posts; twisted_ib_calls; "
            "twisted_ib_seen; twisted_ib_settle; twisted_ib_forked; twisted_ib_over; twisted_ib_begun; "
            "local: *; };\n",
        )


class FailingTests(SynchronousTestCase):
    """
    Errors of handlers.
    """

    def said(self, *reasons: HCAError) -> tuple[list[int], str]:
        """
        @param reasons: what calls fail with, below an error of verbs.
        @return: what each call returns, and the standard error.
        """
        self.patch(errors, "_said", set())
        output = StringIO()
        self.patch(sys, "stderr", output)
        failed = errors.failing(NONE, SimpleNamespace(NULL=None, errno=0))

        def fail(reason: HCAError) -> int:
            error = PyverbsRDMAError("Failed", errno.EIO)
            error.__cause__ = reason
            result = failed(None, error, None)
            assert isinstance(result, int)
            return result

        return [fail(reason) for reason in reasons], output.getvalue()

    def test_device(self) -> None:
        """
        The reason why a device cannot be opened is said, once.
        """
        text = "UDP port 4791 of 192.0.2.1 is taken: another process has it"
        self.assertEqual(
            self.said(DeviceError(text), DeviceError(text), UnknownDeviceError("no"), QueuePairError("no")),
            ([-1] * 4, f"rdma_get_count: {text}\n"),
        )

    def test_many(self) -> None:
        """
        Different reasons are said up to a bound.
        """
        _, output = self.said(*(DeviceError(str(each)) for each in range(limits.SAID_REASONS + 2)))
        self.assertEqual(len(output.splitlines()), limits.SAID_REASONS)


def handled(tree: ast.Module) -> Iterator[str]:
    """
    The names of the handlers of a module, without importing it.
    """
    constants: dict[str, list[Any]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict | ast.Tuple):
            # Of a dictionary the keys.
            names = node.value.keys if isinstance(node.value, ast.Dict) else node.value.elts
            with contextlib.suppress(TypeError, ValueError):
                constants[ast.unparse(node.targets[0])] = [ast.literal_eval(each) for each in names if each]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            # One that a module elsewhere has.
            if ast.unparse(node.value.func) == "handler":
                yield ast.unparse(node.value.args[0])
        elif isinstance(node, ast.FunctionDef):
            for each in node.decorator_list:
                if ast.unparse(each) == "handler":
                    yield node.name
                elif isinstance(each, ast.Call) and ast.unparse(each.func) == "handlers":
                    yield from eval(f"[{', '.join(map(ast.unparse, each.args))}]", constants)


class TableTests(SynchronousTestCase):
    """
    The tables of the libraries.
    """

    def test_handlers(self) -> None:
        """
        Each row has one handler of its name, which a module of its folder names, and no handler is without.
        """
        for library in LIBRARIES:
            found: Counter[str] = Counter()
            for path in (FOLDER / library.folder).glob("*.py"):
                found.update(handled(ast.parse(path.read_text())))
            self.assertEqual(found, Counter(row.name for row in library.table))

    def test_alike(self) -> None:
        """
        Handlers of one form are made each with its name, by which they are found.
        """
        own: dict[str, Any] = {}
        self.patch(functions, "_handlers", {"c": own})
        functions.handlers("one", *("two", "three"))(lambda name: lambda: f"{name}!")
        self.assertEqual(
            {name: made() for name, made in own.items()}, {n: f"{n}!" for n in ("one", "two", "three")}
        )
        self.assertEqual([made.__name__ for made in own.values()], list(own))
