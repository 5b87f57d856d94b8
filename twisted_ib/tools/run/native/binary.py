"""
A program that is no Python: what stands in the way of its libraries, and which ones it gets.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from stat import S_ISGID, S_ISUID

from twisted_ib.errors import LibraryBuildError
from twisted_ib.tools.run.native.elf import Binary, NotReadableError, read
from twisted_ib.tools.run.native.imports import Libraries, librariesOf
from twisted_ib.verbs.c.building.build import libraries
from twisted_ib.verbs.c.kept import SONAMES

#: Functions that are named in the line that says what was done.
_NAMED = 3
_SONAMES = frozenset(SONAMES.values())
_IGNORED = "the loader ignores LD_LIBRARY_PATH for it: run a copy without"


class UnfitBinaryError(Exception):
    """
    A program would not get the libraries; the text says why.
    """


def begin(path: str, binary: str) -> tuple[list[str], str]:
    """
    Find or build the libraries of a program.

    @param path: the program.
    @param binary: the file that the kernel loads: the program, or its interpreter.
    @return: the directories for C{LD_LIBRARY_PATH}, and what it gets, for the user.
    @raise UnfitBinaryError: it would not get them.
    """
    needs = _checked(binary)
    if not os.access(path, os.X_OK):
        raise UnfitBinaryError(f"{path} is not executable")
    try:
        found = librariesOf(binary, needs, libraries())
    except (LibraryBuildError, NotReadableError) as error:
        # Of several lines, if the compiler has said it.
        raise UnfitBinaryError(f"{path}: {'; '.join(str(error).splitlines())}") from None
    return [str(each) for each in found.folders], described(found)


def _checked(path: str) -> Binary:
    try:
        binary = read(path, _SONAMES)
        own = read("/proc/self/exe", ())
        secure = _secure(path)
    except NotReadableError as error:
        raise UnfitBinaryError(str(error)) from None
    except OSError as error:
        raise UnfitBinaryError(f"{path}: {error.strerror}") from None
    if binary.kind != own.kind:
        what = f"for {binary.kind}, and {sys.executable} is for {own.kind}"
    elif not binary.loader:
        what = "static: it loads no libraries"
    elif _isMusl(binary) != _isMusl(own):
        libc = ("glibc", "musl")
        what = f"linked with {libc[_isMusl(binary)]}, and {sys.executable} with {libc[_isMusl(own)]}"
    elif secure:
        what = f"{secure}: {_IGNORED}"
    else:
        return binary
    raise UnfitBinaryError(f"{path} is {what}")


def _isMusl(binary: Binary) -> bool:
    return os.path.basename(binary.loader).startswith("ld-musl")


def _secure(path: str) -> str:
    # AT_SECURE (getauxval(3)): the program's user, group or capabilities are others than the caller's.
    found = os.stat(path)
    if found.st_mode & S_ISUID and found.st_uid != os.getuid():
        return "setuid"
    if found.st_mode & S_ISGID and found.st_gid != os.getgid():
        return "setgid"
    # Not each file system has attributes (listxattr(2), ENOTSUP), and so capabilities.
    with suppress(OSError):
        if os.getuid() and "security.capability" in os.listxattr(path):
            return "one with capabilities"
    return ""


def described(found: Libraries) -> str:
    """
    @return: what a program gets, for the user.
    """
    if not found.used:
        return "imports no RDMA library; what it loads or starts finds libibverbs"
    text = f"runs with {', '.join(found.used)} of twisted_ib"
    if found.stubs:
        names = [each.name for each in found.stubs[:_NAMED]]
        if len(found.stubs) > _NAMED:
            names.append("...")
        text += f"; ENOSYS: {len(found.stubs)} functions ({', '.join(names)})"
    return text
