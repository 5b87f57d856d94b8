"""
Directories of built libraries in the cache: made in one step, by the C compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from twisted_ib.errors import LibraryBuildError

#: Lines of the compiler's output that an error has.
_COMPILER_LINES = 20
#: One run of the compiler takes some seconds, on a busy machine too.
COMPILER_SECONDS = 300
#: A build runs the compiler a few times: a temporary directory that is as old as this belongs to one that was
#: killed.
ABANDONED_SECONDS = 12 * COMPILER_SECONDS
_TEMPORARY = "build-"


def built(folder: Path, fill: Callable[[Path, Path], None]) -> None:
    """
    Make a directory of the cache, all or nothing.

    @param folder: it; the directory above exists.
    @param fill: called with a temporary directory, and the directory in it that becomes C{folder}.
    @raise LibraryBuildError: no directory can be made.
    """
    try:
        _removeAbandoned(folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder.parent))
        made = temporary / "made"
        made.mkdir(mode=0o700)
    except OSError as error:
        raise LibraryBuildError(f"no directory for libraries: {error}; set XDG_CACHE_HOME") from error
    try:
        fill(temporary, made)
        # Two processes may build at once: the first one's directory stays.
        try:
            made.rename(folder)
        except OSError as error:
            if not folder.is_dir():
                raise LibraryBuildError(f"no directory for libraries: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _removeAbandoned(cache: Path) -> None:
    oldest = time.time() - ABANDONED_SECONDS
    for each in cache.glob(f"{_TEMPORARY}*"):
        # Another process may remove it, too.
        with suppress(FileNotFoundError):
            if each.stat().st_mtime < oldest:
                shutil.rmtree(each, ignore_errors=True)


def compileIn(directory: Path, command: Sequence[str | os.PathLike[str]], subject: str) -> None:
    """
    Run the compiler.

    @param directory: its current one.
    @param subject: the words for what it compiles.
    @raise LibraryBuildError: it fails, cannot be run, or does not end in L{COMPILER_SECONDS}.
    """
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMPILER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LibraryBuildError(f"{command[0]}: {error}") from error
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-_COMPILER_LINES:])
        raise LibraryBuildError(f"{subject} cannot be compiled:\n{last}")


__all__ = ["ABANDONED_SECONDS", "COMPILER_SECONDS", "built", "compileIn"]
