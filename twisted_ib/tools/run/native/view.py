"""
A program's view of the devices: it finds them where Linux has them, in a folder to which a library that is
loaded in front leads (C{twisted_ib/verbs/c/building/view.c}).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress

from twisted_ib import limits
from twisted_ib.configuration.file import readFirst
from twisted_ib.errors import LibraryBuildError, RulesError
from twisted_ib.settings import DEVICE, DEVICES, SYSFS
from twisted_ib.verbs.c.chosen import chosenDevice
from twisted_ib.verbs.c.kept import VIEW, blake2b, cacheFolder

#: The loader's variable (ld.so(8)).
PRELOADED = "LD_PRELOAD"
#: Characters between the libraries of the loader's variable: a path cannot have them.
_SEPARATORS = " :"
#: The sources of the files: the module that makes them, and the devices' traits.
_MADE_BY = tuple(
    os.path.join(os.path.dirname(__file__), each)
    for each in ("devicefiles.py", "../../../hca/base/traits.py")
)


def _name(environ: Mapping[str, str]) -> str:
    # By what the files follow from, not by the files: to make them is much to import, and most programs of
    # Python have no need of them.
    digest = blake2b(digest_size=16)
    try:
        rules = readFirst(environ)
    except (OSError, RulesError):
        # The loop says so.
        rules = None
    with suppress(OSError):
        digest.update(b"%d " % os.stat("/proc/self/ns/net").st_ino)
    digest.update(repr((environ.get(DEVICES), environ.get(DEVICE), rules)).encode())
    for path in _MADE_BY:
        with open(path, "rb") as file:
            digest.update(file.read())
    return f"view-{digest.hexdigest()}"


def _folder(environ: Mapping[str, str]) -> str:
    own = os.path.join(cacheFolder(), _name(environ))
    if os.path.isdir(own):
        # It is in use.
        os.utime(own)
    else:
        _make(own)
    return own


def _make(own: str) -> None:
    from pathlib import Path
    from shutil import rmtree

    from twisted_ib.tools.run.native.devicefiles import deviceFiles
    from twisted_ib.verbs.c.building.cache import built

    def fill(temporary: Path, made: Path) -> None:
        for path, text in deviceFiles(chosenDevice()).items():
            file = made / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n" if text else "")

    cache = Path(own).parent
    built(Path(own), fill)
    found = []
    for each in cache.glob("view-*"):
        # Another process may remove it, too.
        with suppress(FileNotFoundError):
            found.append((each.stat().st_mtime, each))
    for _, each in sorted(found)[: -limits.DEVICE_VIEWS]:
        rmtree(each, ignore_errors=True)


def show(libraries: str, environ: MutableMapping[str, str]) -> None:
    """
    Have a program find the devices, by its environment.

    @param libraries: the folder of the C libraries.
    @raise LibraryBuildError: the folder with the files cannot be made, or the loader would not find the
        library in front.
    """
    put((os.path.join(libraries, VIEW),), environ)
    environ[SYSFS] = _folder(environ)


def put(libraries: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """
    Have libraries loaded in front of a program, and of those that are already.

    @param libraries: their paths.
    @raise LibraryBuildError: the loader would not find one.
    """
    for library in libraries:
        if any(each in library for each in _SEPARATORS):
            raise LibraryBuildError(
                f"the loader cannot be given {library}: set XDG_CACHE_HOME to a directory"
            )
    others = environ.get(PRELOADED, "").replace(" ", ":").split(":")
    if libraries:
        # As a dictionary: each is there once, where it was first.
        environ[PRELOADED] = ":".join(dict.fromkeys(each for each in (*libraries, *others) if each))
