"""
Stubs of the functions that a program imports and the libraries lack: they answer ENOSYS.

A program that is linked with C{-z now}, as Debian's are, does not start unless each function that it or one
of its libraries imports exists, those that it never calls too; and no program starts unless each I{version}
of a library that it names exists.  So a program that imports more than there is gets a library in front: it
has the library's name and all versions, the stubs, and loads the library itself.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from errno import ENOSYS
from pathlib import Path

from attrs import frozen

from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c.building.cache import built
from twisted_ib.verbs.c.building.sharedobject import DATA_BYTES, MACHINES, Stub, sharedObject

#: Stubs of a program.  Debian's perftest needs the most, about 90, for the providers that it is linked with.
STUBS = 4096
#: Names of C, and of libraries and versions as those that this package has.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*").fullmatch
#: Functions that return pointers, by rdma-core's headers: they answer NULL.
_POINTERS = re.compile(
    # A GUID of 0 is none.
    r"ibv_get_device_guid|\w+_str"
    r"|ibv_(alloc|create|import|open|reg|get_device_list|get_device_name|get_sysfs_path|qp_to_qp_ex)\w*"
    r"|verbs_open_device|_verbs_init_and_alloc_context"
    r"|rdma_create_event_channel|rdma_get_devices"
    r"|umad_(alloc|get_mad|get_mad_addr|attribute_name)"
).fullmatch
#: Other functions' answers with C{errno}: ibv_*(3) mostly return it, rdma_*(3) -1, umad_*(3) its negative.
_ANSWERS = {"libibverbs.so.1": ENOSYS, "librdmacm.so.1": -1, "libibumad.so.3": -ENOSYS}


@frozen(order=True)
class Symbol:
    """
    One function, or variable, of a library.

    @ivar library: the library's name for the loader, as C{libibverbs.so.1}.
    @ivar version: its version, as C{IBVERBS_1.1}.
    @ivar name: its name.
    @ivar isData: whether it is a variable.
    """

    library: str
    version: str
    name: str
    isData: bool = False


def stub(symbol: Symbol) -> Stub:
    """
    @return: what a program gets for what it imports.
    """
    answer = 0 if _POINTERS(symbol.name) else _ANSWERS.get(symbol.library, -1)
    return Stub(symbol.name, symbol.version, None if symbol.isData else answer)


def source(symbols: Sequence[Symbol], defaults: Collection[str] = ()) -> str:
    """
    @param symbols: functions of one library.
    @param defaults: the names with which programs are linked: they have no other version.
    @return: stubs of them, in C, for a library that is compiled.
    """
    lines = ["#include <errno.h>"]
    for number, symbol in enumerate(symbols):
        # Programs print what these return.
        answer = '(long)"unknown"' if symbol.name.endswith("_str") else stub(symbol).answer
        own, at = f"twisted_ib_stub_{number}", "@@" if symbol.name in defaults else "@"
        if answer is None:
            lines.append(f"char {own}[{DATA_BYTES}] __attribute__((aligned(16)));")
        else:
            # long: whole in the register, whether the program takes it as an int or as a pointer.
            lines.append(f"long {own}(void) {{ errno = ENOSYS; return {answer}; }}")
        lines.append(f'__asm__(".symver {own}, {symbol.name}{at}{symbol.version}");')
    return "\n".join(lines) + "\n"


def inFront(folder: Path, missing: Collection[Symbol], versions: Mapping[str, Collection[str]]) -> Path:
    """
    Make the libraries in front, unless they are in the cache, beside the libraries' directory.

    @param folder: that of the libraries themselves.
    @param missing: what they lack.
    @param versions: of each library that lacks something: all that it has, and all that are wanted of it.
    @return: the directory for the program, before C{folder}.
    @raise LibraryBuildError: there is no place for them, there are too many, or a name is none.
    """
    machine = os.uname().machine
    _check(missing, versions, machine)
    ordered = {library: sorted(versions[library]) for library in sorted(versions)}
    text = repr((folder.name, sorted(missing), ordered))
    own = folder.parent / f"stubs-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    if own.is_dir():
        return own

    def fill(temporary: Path, made: Path) -> None:
        for library, defined in ordered.items():
            stubs = [stub(each) for each in sorted(missing) if each.library == library]
            # The library itself has the same name, so the loader would take the one in front for it.  It is
            # needed by its path, from that of the one in front (ld.so(8), $ORIGIN).
            needed = f"$ORIGIN/../{folder.name}/{library}", "libc.so.6"
            (made / library).write_bytes(sharedObject(library, needed, defined, stubs, machine))

    built(own, fill)
    return own


def _check(missing: Collection[Symbol], versions: Mapping[str, Collection[str]], machine: str) -> None:
    if machine not in MACHINES:
        raise LibraryBuildError(f"the program imports functions that the libraries lack on {machine}")
    if len(missing) > STUBS:
        raise LibraryBuildError(f"the program imports {len(missing)} functions that the libraries lack")
    names = {word for each in missing for word in (each.library, each.version, each.name)}
    for word in sorted(names.union(*versions.values())):
        if not _WORD(word):
            raise LibraryBuildError(f"the program imports {word!r}, which is no name")
