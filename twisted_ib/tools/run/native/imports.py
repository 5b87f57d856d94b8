"""
The symbols of RDMA's libraries that a program and its libraries import, and the libraries for it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection
from pathlib import Path

from attrs import frozen

from twisted_ib.tools.run.native.elf import Binary, NotReadableError, exported, read
from twisted_ib.verbs.c.building.stubs import inFront
from twisted_ib.verbs.c.building.symbols import Symbol

#: How long the loader may take to find a program's libraries, seconds.
_LOADER_SECONDS = 30
#: Libraries of a program that are looked at.  The largest programs of Debian have 300.
LIBRARIES_READ = 1024
#: ld.so --list: C{name => path (address)}, or C{path (address)}.
_LISTED = re.compile(rb"^\s+(?:\S+ => )?(/.+?) \(0x[0-9a-f]+\)$", re.MULTILINE)


@frozen
class Libraries:
    """
    The libraries of a program.

    @ivar folders: where the loader finds them, in order.
    @ivar used: those that the program or a library of it imports.
    @ivar stubs: what answers ENOSYS, the program's own imports first.
    """

    folders: tuple[Path, ...]
    used: tuple[str, ...]
    stubs: tuple[Symbol, ...]


def loaded(path: str, loader: str) -> list[str]:
    """
    Ask a program's loader which libraries it loads.  The program itself is not run.

    @return: their paths; none if the loader does not answer.
    """
    command = [loader, "--list", path]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOADER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    listed: list[bytes] = _LISTED.findall(answer.stdout)
    return [os.fsdecode(found) for found in listed[:LIBRARIES_READ]]


def librariesOf(path: str, binary: Binary, folder: Path) -> Libraries:
    """
    Find the libraries of a program, and make stubs of what they lack.

    @param folder: the directory with the libraries of this package.
    @raise LibraryBuildError: the stubs cannot be made.
    """
    given = {each.name: exported(str(each)) for each in folder.glob("lib*.so.*")}
    wanted = dict.fromkeys(binary.wanted)
    for library in loaded(path, binary.loader):
        # One that this package has is not loaded.
        if os.path.basename(library) not in given:
            wanted |= dict.fromkeys(_wantedBy(library, given))
    missing = [each for each in wanted if (each.version, each.name) not in given[each.library]]
    used = tuple(sorted({each.library for each in wanted}))
    if not missing:
        return Libraries((folder,), used, ())
    versions: dict[str, set[str]] = {}
    for library in {each.library for each in missing}:
        versions[library] = {version for version, _ in given[library]}
        versions[library] |= {each.version for each in wanted if each.library == library}
    return Libraries((inFront(folder, missing, versions), folder), used, tuple(missing))


def _wantedBy(library: str, given: Collection[str]) -> tuple[Symbol, ...]:
    try:
        return read(library, given).wanted
    except (OSError, NotReadableError):
        # The loader says so itself when the program starts.
        return ()
