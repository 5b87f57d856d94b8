"""
Stubs of the functions that a program imports and the libraries lack: they answer ENOSYS.

A program that is linked with C{-z now}, as Debian's are, does not start unless each function that it or one
of its libraries imports exists, those that it never calls too; and no program starts unless each I{version}
of a library that it names exists.  So a program that imports more than there is gets a library in front: it
has the library's name and all versions, the stubs, and loads the library itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c.building.cache import built, compileIn
from twisted_ib.verbs.c.building.symbols import Symbol

#: Stubs of a program.  Debian's perftest needs the most, about 90, for the providers that it is linked with.
STUBS = 4096
#: The names that C's linker and version scripts take as they are.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*").fullmatch
#: Functions that return pointers, by rdma-core's headers: they answer NULL.
_POINTERS = re.compile(
    # A GUID of 0 is none.
    r"ibv_get_device_guid|ibv_(alloc|create|import|open|reg|get_device_list|get_device_name|get_sysfs_path|qp_to_qp_ex)\w*"
    r"|verbs_open_device|_verbs_init_and_alloc_context"
    r"|rdma_create_event_channel|rdma_get_devices"
    r"|umad_(alloc|get_mad|get_mad_addr|attribute_name)"
).fullmatch
#: Other functions' answers with C{errno}: ibv_*(3) mostly return it, rdma_*(3) -1, umad_*(3) its negative.
_ANSWERS = {"libibverbs.so.1": "ENOSYS", "librdmacm.so.1": "-1", "libibumad.so.3": "-ENOSYS"}
#: Bytes of a variable's stub; those of rdma-core are flags and numbers.
_DATA_BYTES = 64


def source(stubs: Sequence[Symbol], defaults: Collection[str] = ()) -> str:
    """
    @param stubs: those of one library.
    @param defaults: the names with which programs are linked: they have no other version.
    @return: them, in C.
    """
    lines = ["#include <errno.h>"]
    for number, stub in enumerate(stubs):
        own = f"twisted_ib_stub_{number}"
        if stub.isData:
            lines.append(f"char {own}[{_DATA_BYTES}] __attribute__((aligned(16)));")
        else:
            answer = "0" if _POINTERS(stub.name) else _ANSWERS.get(stub.library, "-1")
            if stub.name.endswith("_str"):
                # Programs print it.
                answer = '(long)"unknown"'
            # long: whole in the register, whether the program takes it as an int or as a pointer.
            lines.append(f"long {own}(void) {{ errno = ENOSYS; return {answer}; }}")
        at = "@@" if stub.name in defaults else "@"
        lines.append(f'__asm__(".symver {own}, {stub.name}{at}{stub.version}");')
    return "\n".join(lines) + "\n"


def versionScript(versions: Iterable[str]) -> str:
    """
    @return: a version script that defines these, and exports nothing but what names its version itself.
    """
    # In a node of its own: "local" also hides the symbols of its node that name their version themselves.
    nodes = [f"{version} {{ }};\n" for version in versions]
    return "".join(nodes) + "TWISTED_IB_STUBS { local: *; };\n"


def inFront(
    folder: Path,
    missing: Collection[Symbol],
    versions: Mapping[str, Collection[str]],
    compiler: Sequence[str],
) -> Path:
    """
    Build the libraries in front, unless they are in the cache, beside the libraries' directory.

    @param folder: that of the libraries themselves.
    @param missing: what they lack.
    @param versions: of each library that lacks something: all that it has, and all that are wanted of it.
    @param compiler: its command.
    @return: the directory for the program, before C{folder}.
    @raise LibraryBuildError: the compiler fails, there are too many, or a name is none.
    """
    _check(missing, versions)
    ordered = {library: sorted(versions[library]) for library in sorted(versions)}
    text = repr((folder.name, sorted(missing), ordered))
    own = folder.parent / f"stubs-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    if own.is_dir():
        return own

    def fill(temporary: Path, made: Path) -> None:
        for library, defined in ordered.items():
            stubs = sorted(each for each in missing if each.library == library)
            (temporary / "stubs.c").write_text(source(stubs))
            (temporary / "stubs.map").write_text(versionScript(defined))
            _build(temporary, made, folder.name, library, compiler)

    built(own, fill)
    return own


def _check(missing: Collection[Symbol], versions: Mapping[str, Collection[str]]) -> None:
    if len(missing) > STUBS:
        raise LibraryBuildError(f"the program imports {len(missing)} functions that the libraries lack")
    names = {word for each in missing for word in (each.library, each.version, each.name)}
    for word in sorted(names.union(*versions.values())):
        if not _WORD(word):
            raise LibraryBuildError(f"the program imports {word!r}, which is no name")


def _build(temporary: Path, made: Path, libraries: str, library: str, compiler: Sequence[str]) -> None:
    # The library itself has the same name, so the loader would take the one in front for it.  It is needed by
    # its path, from that of the one in front (ld.so(8), $ORIGIN): the linker writes the path that it was
    # given, if the file names no other.
    itself = f"$ORIGIN/../{libraries}/{library}"
    (temporary / itself).parent.mkdir(parents=True, exist_ok=True)
    nothing = ("-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", itself)
    front = ("-shared", "-fPIC", "-O1", "-nostdlib", "stubs.c", "-o", str(made / library))
    options = (f"-Wl,-soname,{library}", "-Wl,--version-script=stubs.map", "-Wl,--no-as-needed")
    for arguments in (nothing, (*front, *options, itself, "-lc")):
        compileIn(temporary, [*compiler, *arguments], f"the functions that {library} lacks")


__all__ = ["STUBS", "inFront", "source", "versionScript"]
