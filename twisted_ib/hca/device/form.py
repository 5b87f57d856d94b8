"""
The form in which this package runs: interpreted, or with modules that mypyc has compiled, and on which build;
and the name of the program, from its command line: the script or application, not C{twistd} alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from twisted_ib import limits

_PACKAGE = __name__.partition(".")[0] + "."
#: Programs of Twisted that run an application, which a subcommand or one of the options below names.
_RUNNERS = ("twistd", "twist")
#: Options of twistd(1) whose value is a file with the application, and those that have another value.
_FILES = ("y", "f", "s", "python", "file", "source")
_VALUED = "dlugpr"
_LONG_VALUED = (
    "rundir",
    "logfile",
    "uid",
    "gid",
    "profile",
    "profiler",
    "reactor",
    "pidfile",
    "umask",
    "prefix",
)


def compiledModules() -> list[str]:
    """
    @return: The names of this package's imported modules that are compiled, sorted; none in the pure form.
    """
    # Not those that could be: a .so file of another Python beside a module does not run.
    return sorted(
        name
        for name, module in sys.modules.copy().items()
        if name.startswith(_PACKAGE) and (getattr(module, "__file__", None) or "").endswith(".so")
    )


def isFreeThreaded() -> bool:
    """
    @return: Whether the interpreter is of the free-threaded build (PEP 703), as python3.13t.
    """
    return "t" in sys.abiflags


def programName(words: Sequence[str]) -> str:
    """
    @param words: The command line, from the script on.
    @return: The name that commands show, of at most L{limits.PROGRAM_BYTES} characters.
    """
    first = words[0] if words else ""
    name = os.path.basename(first)
    if name == "__main__.py":
        # python -m package
        name = os.path.basename(os.path.dirname(first))
    application = _application(words[1:]) if name in _RUNNERS else ""
    return f"{name} {application}".strip()[: limits.PROGRAM_BYTES]


def _application(words: Sequence[str]) -> str:
    rest = iter(words)
    for word in rest:
        option, mark, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            return word
        if word.startswith("--"):
            isFile, isValued = option in _FILES, option in _LONG_VALUED
        else:
            # getopt(3): letters may stand together, and the last one may have a value.
            isFile, isValued = option[-1:] in _FILES, option[-1:] in _VALUED and option != ""
        if isFile:
            return os.path.basename(value if mark else next(rest, ""))
        if isValued and not mark:
            next(rest, None)
    return ""
