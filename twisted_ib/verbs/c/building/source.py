"""
The C code and the linker's version script of a table of functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from twisted_ib.verbs.c.functions import AGAIN, Failure, Row

#: The variables of C{interpreter.c} that the libraries of a process share.
_SHARED = (
    "twisted_ib_used; twisted_ib_in_python; twisted_ib_inside; twisted_ib_asleep; twisted_ib_busy; "
    "twisted_ib_posts; twisted_ib_calls; twisted_ib_seen; twisted_ib_settle; twisted_ib_forked; "
    "twisted_ib_over; twisted_ib_begun;"
)
#: No handler of the program's signals runs from here on.
_MASK = ("sigset_t program;", "twisted_ib_mask(&program);")
_RESULTS = {
    Failure.ERRNO: "refused",
    Failure.NEGATIVE_ERRNO: "-refused",
    Failure.MINUS_ONE: "-1",
    Failure.ZERO: "0",
    Failure.NULL: "NULL",
    Failure.NOTHING: "",
}


def handlerDeclarations(table: Sequence[Row], storage: str = "") -> str:
    """
    @param storage: what is before each, such as C{static}.
    @return: declarations of the handlers; C{python_} is before each name.
    """
    return "".join(f"{storage}{row.answer} python_{row.name}({row.parameters});\n" for row in table)


def pointerDeclarations(table: Sequence[Row]) -> str:
    """
    @return: declarations of the functions that are called through pointers.
    """
    inner = [row for row in table if not row.version]
    return "".join(f"{row.result} exported_{row.name}({row.parameters});\n" for row in inner)


def _body(row: Row) -> str:
    call = f"python_{row.name}({row.arguments});"
    assign = "" if row.answer == "void" else f"{row.answer} result = "
    # pthread_cancel(3) would end a thread that waits for Python's lock, and leave that locked for ever.
    lines = [
        "pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelling);",
        "twisted_ib_inside++;",
        "__atomic_add_fetch(&twisted_ib_busy, 1, __ATOMIC_RELAXED);",
        "__atomic_add_fetch(&twisted_ib_calls, 1, __ATOMIC_SEQ_CST);",
        f"{assign}{call}",
        "__atomic_sub_fetch(&twisted_ib_busy, 1, __ATOMIC_RELAXED);",
        "twisted_ib_inside--;",
        "pthread_setcancelstate(cancelling, NULL);",
    ]
    if row.attends:
        # Posted after the handler's last look, and left to this thread.
        last = ["if (twisted_ib_attends_no_more())", "python_post_send(NULL, NULL, NULL);"]
        lines = ["twisted_ib_attend();", *lines[:5], *last, *lines[5:]]
    elif not row.nested:
        lines[4:4] = ["if (twisted_ib_settle)", "twisted_ib_settle();"]
    posted = "__atomic_add_fetch(&twisted_ib_posts, 1, __ATOMIC_RELAXED);"
    if row.vain:
        lines[4:4] = ["twisted_ib_asks();"]
    if row.vain and not row.again:
        posted = f"if (!twisted_ib_was_vain({row.vain}, result))\n{posted}"
        lines = [f"if (twisted_ib_is_vain({row.vain})) {{\nerrno = EAGAIN;\nreturn -1;\n}}", *lines]
    if row.again:
        loop = [
            "sigset_t program;",
            "twisted_ib_block(&program);",
            "int before = twisted_ib_swap_slept(0);",
            "for (;;) {",
            *lines,
            f"if (result != ({AGAIN})) {{",
            "twisted_ib_swap_slept(before);",
            *([posted] if row.destroys else []),
            *([f"twisted_ib_polled_in_vain({row.vain}, result);"] if row.vain else []),
            "int error = errno;",
            "pthread_sigmask(SIG_SETMASK, &program, NULL);",
            "errno = error;",
            "return;" if row.failure is Failure.NOTHING else "return result;",
            "}",
            "twisted_ib_wait(&program);",
            "}",
        ]
        lines = loop
    else:
        if not row.version:
            # The data path: a handler that leaves it by siglongjmp(3) would take Python's lock with it.
            # Other functions may wait, and then signals must come.
            end = ["int error = errno;", "twisted_ib_unmask(&program);", "errno = error;"]
            lines = [*([] if row.masked else _MASK), *lines, *end]
        if row.after:
            lines.append(f"if (!result) {{\nresult = {row.after};\n}}")
        else:
            lines.append(posted)
        if assign:
            lines.append("return result;")
    return "\n".join([*([row.before] if row.before else []), *lines, "}\n"])


def exportedFunctions(table: Sequence[Row]) -> str:
    """
    @return: the functions in C that a program calls; each calls its handler, but not after fork(2), and not
        in a signal's handler that has interrupted one.
    """
    functions = [
        "int twisted_ib_refused(const char *name, int nested);\n"
        "int twisted_ib_swap_slept(int slept);\n"
        "void twisted_ib_block(sigset_t *program);\n"
        "void twisted_ib_wait(const sigset_t *program);\n"
        "extern volatile unsigned twisted_ib_busy, twisted_ib_posts, twisted_ib_calls;\n"
        "extern void (*twisted_ib_settle)(void);\n"
        'extern __thread volatile int twisted_ib_inside __attribute__((tls_model("initial-exec")));\n'
    ]
    for row in table:
        # The name is given to the linker only: in C the header has it, at times as a macro or inline, and
        # with types that changed with its version.
        name = f"exported_{row.name}"
        declaration = f"{row.result} {name}({row.parameters})"
        if row.version:
            functions.append(f'{declaration} __asm__("{row.name}") __attribute__((visibility("default")));\n')
            functions.append(f"{declaration}\n{{\n")
        else:
            functions.append(f"static {declaration}\n{{\n")
        functions.append(f'int cancelling, refused = twisted_ib_refused("{row.name}", {row.nested:d});\n')
        result = _RESULTS[row.failure]
        if row.over:
            result = f"refused == ENODEV ? {row.over} : {result}"
        functions.append(f"if (refused) {{\nerrno = refused;\nreturn {result};\n}}\n")
        functions.append(_body(row))
    return "".join(functions)


def versionScript(table: Sequence[Row], versions: Iterable[str] = ()) -> str:
    """
    @param versions: of stubs, which name theirs themselves.
    @return: the version script for the linker: functions, what the libraries share, nothing else.
    """
    exported = sorted((row for row in table if row.version), key=lambda row: row.version)
    nodes = [
        f"{name} {{ global: {' '.join(f'{row.name};' for row in rows)} }};\n"
        for name, rows in groupby(exported, key=lambda row: row.version)
    ]
    empty = sorted(set(versions) - {row.version for row in exported})
    nodes += [f"{name} {{ }};\n" for name in empty]
    return "".join(nodes) + f"TWISTED_IB_LOCAL {{ global: {_SHARED} local: *; }};\n"
