"""
Where the built libraries are: a directory for each interpreter and each state of their sources, with those
that were built there, or with links to those of the package's wheel.

Commands look here before they import what builds.
"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder

from twisted_ib.errors import LibraryBuildError
from twisted_ib.hca.device.form import isFreeThreaded

try:
    # That of hashlib, which imports OpenSSL first.
    from _blake2 import blake2b as blake2b
except ImportError:
    from hashlib import blake2b as blake2b

_HERE = os.path.dirname(os.path.realpath(__file__))
#: The directory of the package's own.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
#: The libraries of the wheel, if it has some; and the file in it that says what they were built from.
CARRIED = os.path.join(_HERE, "carried")
ORIGIN = "origin"
#: Characters that the name of a directory for the loader cannot have.
_SPECIAL = frozenset(":;$")
#: Modules of other projects that this package imports below the reactor, optional ones too, and the one that
#: its compiled modules share.
_IMPORTED = ("_cffi_backend", "attr", "attrs", "google_crc32c", "isal", "twisted_ib__mypyc", "zope")
#: The library that leads paths of devices to a program's view of them.
VIEW = "libtwisted_ib_view.so"
#: The others, by the folders of their sources.
SONAMES = {"verbs": "libibverbs.so.1", "cm": "librdmacm.so.1", "umad": "libibumad.so.3"}
#: The folder beside libraries with what they find of the interpreter, by links.
PYTHON = "python"
#: LDVERSION of sysconfig, whose variables take longer to import than all else here.
_LDVERSION = f"{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"
#: What libraries are built from, below this folder: all modules and sources of C in these, and the tables.
_BUILDING = "building"
_TABLES = ("cm/declarations.py", "umad/declarations.py", "verbs/declarations.py", "verbs/table.py")


def packagePath() -> list[str]:
    """
    @return: the directories of C{sys.path} with what this package imports.  Not all of them: the first is the
        program's own or the current one, and each process would have libraries of its own.
    """

    def hasImported(folder: str) -> bool:
        return any(PathFinder.find_spec(name, [folder]) is not None for name in _IMPORTED)

    return [each for each in dict.fromkeys(sys.path) if os.path.isdir(each) and hasImported(each)]


def cacheFolder() -> str:
    """
    @return: the directory of this package's cache for libraries.
    @raise LibraryBuildError: the loader would find none there.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    # XDG Base Directory Specification: a relative path is ignored.
    if not os.path.isabs(home):
        home = os.path.expanduser("~/.cache")
    # ld.so(8), LD_LIBRARY_PATH: these separate directories, or begin what is replaced.
    if not os.path.isabs(home) or not _SPECIAL.isdisjoint(home):
        raise LibraryBuildError(f"the loader finds no libraries in {home}: set XDG_CACHE_HOME to a directory")
    return os.path.join(home, "twisted_ib", "cabi")


def cffiVersion() -> str:
    """
    @return: that of cffi, which is its backend's.
    @raise LibraryBuildError: it is not installed.
    """
    try:
        # Not importlib.metadata, which takes longer than the rest of a command's start.
        from _cffi_backend import __version__ as version
    except ImportError:
        raise LibraryBuildError(
            "cffi is not installed; it comes with the extra [c]: pip install 'twisted-ib[c]'"
        ) from None
    return str(version)


def _sources() -> Iterable[str]:
    folder = os.path.join(_HERE, _BUILDING)
    names = sorted(name for name in os.listdir(folder) if name.endswith((".c", ".py")))
    yield from (os.path.join(folder, name) for name in names)
    yield from (os.path.join(_HERE, name) for name in ("functions.py", *_TABLES))


def _cLibrary() -> str:
    # With its version, as "glibc 2.36"; others, as musl, do not tell theirs.
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "other"
    except (ValueError, OSError):
        return "other"


@cache
def origin() -> str:
    """
    @return: what the libraries are built from and for, which tells whether built ones fit: their sources, the
        version of Python, the machine, and which C library.  Not cffi: its backend takes what any version of
        the extra has made.
    """
    digest = blake2b(digest_size=32)
    for path in _sources():
        with open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    machine = f"{sysconfig.get_platform()} {_cLibrary().split()[0]}"
    return f"{sys.implementation.cache_tag} {machine} {digest.hexdigest()}"


def isCarried() -> bool:
    """
    @return: whether the package has libraries that fit this interpreter, so that none need be built.
    """
    # A checkout may have libraries of an earlier state.
    with suppress(FileNotFoundError), open(os.path.join(CARRIED, ORIGIN)) as file:
        return file.read() == origin()
    return False


def keptFolder() -> str:
    """
    @return: the directory of the libraries of this interpreter, which may not be there yet.
    @raise LibraryBuildError: cffi is not installed, or the loader would find none there.
    """
    digest = blake2b(digest_size=32)
    # Links to libraries of a wheel end with the wheel, others do not.
    where = CARRIED if isCarried() else ""
    # Libraries need symbols of the glibc that they were built with: a home may be a container's, too.
    for text in (sys.executable, ROOT, repr(packagePath()), cffiVersion(), origin(), _cLibrary(), where):
        digest.update(text.encode() + b"\0")
    return os.path.join(cacheFolder(), f"{sys.implementation.cache_tag}-{digest.hexdigest()[:16]}")


def isKept(folder: str) -> bool:
    """
    @param folder: of L{keptFolder}.
    @return: whether all that a build makes is there, and the libpython that it starts.
    @raise LibraryBuildError: other users may change them.
    """
    if not os.path.isdir(folder):
        return False
    checkOwners(folder)
    # A cache may outlive the package with libpython, as a runner's that installs packages anew; and be
    # restored, copied or cleaned in part.
    its = (os.path.join(PYTHON, each) for each in ("executable", "start.py", _libpython()))
    return all(os.path.exists(os.path.join(folder, each)) for each in (VIEW, *SONAMES.values(), *its))


def _libpython() -> str:
    return f"libpython{_LDVERSION}.so.1.0"


def sharedPython() -> str:
    """
    @return: the file of the interpreter's own libpython.
    @raise LibraryBuildError: it is not here; the message says what brings it.  Or it is free-threaded.
    """
    # The rings count on one thread at a time to change what Python has of them.
    if isFreeThreaded():
        raise LibraryBuildError(f"{sys.executable} is free-threaded: the libraries do not start there yet")
    # Debian's configuration has the folder of its multiarch or the one above, by version; that of
    # python-build-standalone's may be the place of its build.
    configured = str(sysconfig.get_config_var("LIBDIR"))
    multiarch = str(sysconfig.get_config_var("MULTIARCH") or "")
    for folder in (configured, os.path.join(configured, multiarch), os.path.join(sys.base_prefix, "lib")):
        found = os.path.join(folder, _libpython())
        if os.path.exists(found):
            return found
    raise LibraryBuildError(
        f"{sys.executable} has no shared libpython: Debian's is in its package libpython{_LDVERSION}; others "
        "are configured with --enable-shared, as Docker's are"
    )


def checkOwners(folder: str) -> None:
    """
    Check that the directories above one are the user's own.

    @raise LibraryBuildError: other users may change them.
    """
    cache = os.path.dirname(folder)
    # Programs run what is in them.  A link may be changed by others, whatever it points to.
    for each in (os.path.dirname(cache), cache):
        found = os.lstat(each)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            raise LibraryBuildError(f"other users may change {each}: set XDG_CACHE_HOME to one of yours")
