"""
A program of Python that finds the C libraries: C{ib-run} starts a second time, as the same process, since the
loader reads its variables only at a start.

Most programs are plain to see from the command line.  For these the first start imports this module and what
it needs, and nothing of what the second one imports again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from twisted_ib.errors import LibraryBuildError
from twisted_ib.settings import DEVICES, RUN_AGAIN

#: The loader's variable (ld.so(8)): directories, with colons between.
SEARCHED = "LD_LIBRARY_PATH"
#: The modules of the extra [c], and the projects that have them.
_EXTRA = {"cffi": "cffi", "elftools": "pyelftools"}
#: Options that change nothing of what is found, and that which does.
_PLAIN = frozenset(("-q", "--quiet", "--summary", "--json", "--queues", "--no-children"))
_UNSEEN = "--no-sysfs"


def lacking() -> list[str]:
    """
    @return: the projects of the extra C{[c]} that are not installed.
    """
    return [project for module, project in _EXTRA.items() if find_spec(module) is None]


def searchPath(folders: list[str], environ: Mapping[str, str]) -> str:
    """
    @return: the value of C{LD_LIBRARY_PATH}: these, and what it had.
    """
    # An empty entry would be the current directory.
    return ":".join([*folders, *filter(None, [environ.get(SEARCHED, "")])])


def searchByPython(isViewed: bool) -> str:
    """
    Have this process find the libraries, if the extra C{[c]} is installed: it starts again.

    @param isViewed: whether it finds the devices where Linux has them, too.
    @return: why they are not there, for the user; C{""} if they are, or nobody has asked for them.
    """
    # It has started again, as the same process.
    if os.environ.pop(RUN_AGAIN, "") == str(os.getpid()) or lacking():
        return ""
    from twisted_ib.verbs.c.kept import isKept, keptFolder

    try:
        folder = keptFolder()
        if not isKept(folder):
            from twisted_ib.verbs.c.building.build import libraries

            libraries()
        if folder in os.environ.get(SEARCHED, "").split(":"):
            return ""
        environment = {**os.environ, SEARCHED: searchPath([folder], os.environ), RUN_AGAIN: str(os.getpid())}
        if isViewed:
            # Imported here: it knows devices.
            from twisted_ib.tools.run.native.view import show

            show(folder, environment)
    except LibraryBuildError as error:
        return f"no C libraries: {error}"
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _isPlain(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    # Whether the second start does the same, whatever it says of the command line: an error is said there.
    if DEVICES in environ:
        return False
    for place, word in enumerate(words):
        if word in ("-m", "-c"):
            return place + 1 < len(words)
        if not word.startswith("-"):
            return word.endswith(".py") and os.path.isfile(word)
        if word not in _PLAIN and word != _UNSEEN:
            return False
    return False


def startAgain(words: Sequence[str]) -> None:
    """
    Start again, if the command line is plain; else C{ib-run} does so when it knows more.

    @param words: the command line.
    """
    isAgain = os.environ.get(RUN_AGAIN) == str(os.getpid())
    if not isAgain and _isPlain(words, os.environ):
        searchByPython(_UNSEEN not in words)
