"""
Processes that a program under C{ib-run} starts: those of Python run under it, too.

They find it by their environment: C{PYTHONPATH} begins with a folder whose C{sitecustomize} they import at
their start, and a variable says how the program that starts them runs.  Nothing of C{subprocess} or
C{multiprocessing} is replaced.  A process that gets another environment, or whose interpreter is to ignore it
(C{-E}, C{-I}), is Python's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

from twisted_ib.tools.run.choice import LOOPS, Choice, Unfit, choose

#: How the first program runs: L{Inherited}.
VARIABLE = "TWISTED_IB_RUN_CHILDREN"
_PATH = "PYTHONPATH"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
#: Options of Python with a value, of one letter (Python's documentation, "Command line").
_WITH_VALUE = "WX"
#: What multiprocessing runs in the place of the program (its popen_spawn_posix.py and forkserver.py).
_SPAWNED = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")


class Inherited(NamedTuple):
    """
    What processes get from the one that starts them.

    @ivar loop: that one's, one of L{LOOPS}; C{""} if it runs as it is.
    @ivar summary: C{text} or C{json}, if each process says at its end what carried its connections.
    """

    loop: str = ""
    summary: str = ""


def inherit(environ: MutableMapping[str, str], inherited: Inherited | None) -> None:
    """
    Have the processes that are started with an environment run under C{ib-run}, or not.

    @param inherited: what they get; L{None} if they are to be Python's own.
    """
    others = [each for each in environ.get(_PATH, "").split(os.pathsep) if each not in ("", _FOLDER)]
    if inherited is not None:
        environ[VARIABLE] = ",".join(inherited)
        environ[_PATH] = os.pathsep.join([_FOLDER, *others])
    elif environ.pop(VARIABLE, None) is not None:
        environ[_PATH] = os.pathsep.join(others)
        if not others:
            del environ[_PATH]


def _inherited(text: str) -> Inherited | None:
    words = text.split(",")
    if len(words) != 2 or words[0] not in ("", *LOOPS) or words[1] not in ("", "text", "json"):
        return None
    return Inherited(*words)


def programOf(words: Sequence[str]) -> tuple[str, str]:
    """
    @param words: a command line of Python, without its first word.
    @return: C{-c} and the code, C{-m} and the module, or C{""} and the script; two empty ones if Python reads
        its standard input.
    """
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "-" or not word.startswith("-"):
            return "", word if word != "-" else ""
        if word == "--check-hash-based-pycs":
            del left[:1]
        # Letters may stand together; the last of them may have a value.
        for at, letter in enumerate(word[1:] if not word.startswith("--") else "", 2):
            if letter in "cm" + _WITH_VALUE:
                value = word[at:] or "".join(left[:1])
                if letter in "cm":
                    return f"-{letter}", value
                if not word[at:]:
                    del left[:1]
                break
    return "", ""


def _choice(inherited: Inherited, words: Sequence[str]) -> Choice | Unfit:
    kind, name = programOf(words)
    if kind == "-c" and name.startswith(_SPAWNED):
        # It is a part of the program, and runs functions of it.
        return Choice(inherited.loop, "a process of multiprocessing")
    if not name:
        return Choice("", "it is no program")
    # Much to import, and most have no need of it: the processes of multiprocessing.
    from twisted_ib.tools.run.program import Code, Module, Script, StartError

    program: Code | Module | Script
    if kind:
        program = Code(name) if kind == "-c" else Module(name)
    else:
        program = Script(name, name)
    before = list(sys.path)
    # Python itself does so only after its start.
    sys.path.insert(0, program.folder())
    try:
        return choose(program.module, program.imports())
    except StartError:
        # Python itself says so.
        return Choice("", "it cannot be started")
    finally:
        sys.path[:] = before


def begin() -> None:
    """
    Have the program that this interpreter is about to run get the loop that fits it.
    """
    inherited = _inherited(os.environ.get(VARIABLE, ""))
    if inherited is None:
        return
    try:
        choice = _choice(inherited, sys.orig_argv[1:])
        loop = "" if isinstance(choice, Unfit) else choice.loop
        inherit(os.environ, inherited._replace(loop=loop))
        if isinstance(choice, Unfit) or not choice.loop:
            return
        from twisted_ib.tools.run.loops import install

        install(choice)
        if inherited.summary:
            from twisted_ib.tools.run.summary import sayAtExit

            sayAtExit(f"ib-run {os.getpid()}", False, inherited.summary == "json")
    # Python would show a traceback, and the program can do without.
    except Exception as error:
        print(f"ib-run: process {os.getpid()} runs as it is: {error}", file=sys.stderr, flush=True)
