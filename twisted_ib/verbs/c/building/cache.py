"""
Directories of built libraries in the cache: made in one step, by the C compiler.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from twisted_ib.drive.process import time
from twisted_ib.errors import LibraryBuildError

#: Lines of the compiler's output that an error has.
_COMPILER_LINES = 20
#: One run of the compiler takes seconds; the limit guards against one that hangs.
COMPILER_SECONDS = 300
#: A build runs the compiler a few times: a temporary directory that is as old as this belongs to one that was
#: killed.
ABANDONED_SECONDS = 12 * COMPILER_SECONDS
_TEMPORARY = "build-"


def built(
    folder: Path, fill: Callable[[Path, Path], None], isWhole: Callable[[Path], bool] = Path.is_dir
) -> None:
    """
    Make a directory of the cache, all or nothing.

    @param folder: it; the directory above exists.
    @param fill: called with a temporary directory, and the directory in it that becomes C{folder}.
    @param isWhole: called with C{folder} when the other is filled: what another process has made meanwhile
        stays, as programs may have it already.
    @raise LibraryBuildError: a directory or file cannot be made.
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
        with _locked(folder.parent):
            if not isWhole(folder):
                with suppress(FileNotFoundError):
                    folder.rename(temporary / "old")
                made.rename(folder)
    except OSError as error:
        raise LibraryBuildError(f"no place for libraries: {error}; set XDG_CACHE_HOME") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    # Of two that have seen the same damage at once, the later would move the first one's directory away.
    opened = os.open(cache, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems of networks have no locks: there only these few calls are left to chance.
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _removeAbandoned(cache: Path) -> None:
    oldest = time() - ABANDONED_SECONDS
    for each in cache.glob(f"{_TEMPORARY}*"):
        # Another process may remove it, too.
        with suppress(FileNotFoundError):
            if each.stat().st_mtime < oldest:
                shutil.rmtree(each, ignore_errors=True)


def compileIn(directory: Path, commands: Mapping[str, Sequence[str]]) -> None:
    """
    Run the compiler for several files, at once.

    @param directory: its current one.
    @param commands: the words for what it compiles -> the command.
    @raise LibraryBuildError: it fails, cannot be run, or does not end in L{COMPILER_SECONDS}.
    """
    with ExitStack() as begun:
        processes = {
            subject: begun.enter_context(_begun(command, directory)) for subject, command in commands.items()
        }
        for subject, process in processes.items():
            status, said = _ended(process)
            if status:
                last = "\n".join(said.splitlines()[-_COMPILER_LINES:])
                raise LibraryBuildError(f"{subject} cannot be compiled:\n{last}")


def compilerRun(command: Sequence[str]) -> tuple[int, str]:
    """
    Run the compiler, whatever comes of it.

    @return: its exit status, and what it wrote to the standard error.
    @raise LibraryBuildError: it cannot be run, or does not end in L{COMPILER_SECONDS}.
    """
    with _begun(command) as process:
        return _ended(process)


@contextmanager
def _begun(command: Sequence[str], directory: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # It has children of its own, which end with it.
            start_new_session=True,
        )
    except OSError as error:
        raise LibraryBuildError(f"{command[0]}: {error}") from error
    with process:
        try:
            yield process
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise LibraryBuildError(f"{command[0]}: {error}") from error
            raise


def _ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=COMPILER_SECONDS)
    return process.returncode, said
