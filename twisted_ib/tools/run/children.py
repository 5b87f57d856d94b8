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
from collections.abc import MutableMapping
from typing import NamedTuple

from twisted_ib.settings import RUN_CHILDREN
from twisted_ib.tools.run.loops import LOOPS, install

_PATH = "PYTHONPATH"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")


class Inherited(NamedTuple):
    """
    The part of a process that those it starts are given.

    @ivar loop: the only kind, one of L{LOOPS}; C{""} for what each uses.
    @ivar summary: C{text} or C{json}, if each process says at its end what carried its connections.
    @ivar queues: C{queues}, if they get those of L{twisted_ib.queues} in place of C{multiprocessing}'s.
    """

    loop: str = ""
    summary: str = ""
    queues: str = ""


def inherit(environ: MutableMapping[str, str], inherited: Inherited | None) -> None:
    """
    Have the processes that are started with an environment run under C{ib-run}, or not.

    @param inherited: what they get; L{None} if they are to be Python's own.
    """
    others = [each for each in environ.get(_PATH, "").split(os.pathsep) if each not in ("", _FOLDER)]
    if inherited is not None:
        environ[RUN_CHILDREN] = ",".join(inherited)
        environ[_PATH] = os.pathsep.join([_FOLDER, *others])
    elif environ.pop(RUN_CHILDREN, None) is not None:
        environ[_PATH] = os.pathsep.join(others)
        if not others:
            del environ[_PATH]


def _inherited(text: str) -> Inherited | None:
    words = text.split(",")
    choices = (("", *LOOPS), ("", "text", "json"), ("", "queues"))
    if len(words) != len(choices) or any(word not in each for word, each in zip(words, choices, strict=True)):
        return None
    return Inherited(*words)


def _isRun() -> bool:
    # Whether this is C{ib-run} again, as of a server that starts its own command line when files change.
    words = iter(sys.orig_argv[1:])
    for word in words:
        if not word.startswith("-"):
            return os.path.basename(word) == "ib-run"
        if word == "--check-hash-based-pycs":
            next(words, "")
        for at, letter in enumerate(word[1:] if word[:2] != "--" else "", 2):
            if letter in "cmWX":
                # The rest of the word, or the next one.
                value = word[at:] or next(words, "")
                if letter in "cm":
                    return letter == "m" and value == __package__
                break
    return False


def begin() -> None:
    """
    Have the program that this interpreter is about to run get what C{ib-run} gives.
    """
    inherited = _inherited(os.environ.get(RUN_CHILDREN, ""))
    if inherited is None or _isRun():
        return
    try:
        install(inherited.loop, queues=bool(inherited.queues))
        if inherited.summary:
            from twisted_ib.tools.run.summary import sayAtExit

            sayAtExit("ib-run", False, inherited.summary == "json", False)
    # Python would show a traceback, and the program can do without.
    except Exception as error:
        print(f"ib-run: process {os.getpid()} runs as it is: {error}", file=sys.stderr, flush=True)
