"""
A program that is no Python: the symbols of RDMA's libraries that it and its libraries import, what stands in
the way of ours, and which ones it gets.

Needs pyelftools, which comes with the extra C{[c]}.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from stat import S_ISGID, S_ISUID
from typing import Any, TypeVar

from attrs import frozen
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from twisted_ib.errors import LibraryBuildError
from twisted_ib.verbs.c.building.build import libraries
from twisted_ib.verbs.c.building.stubs import Symbol, inFront
from twisted_ib.verbs.c.kept import SONAMES

Read = TypeVar("Read")

#: Reads of a file, which are no more than 64 octets each: pyelftools goes on for as long as the file's own
#: counts say.  The largest libraries of C++ programs have 100,000 symbols of about 30 reads.
READS = 1 << 22
#: Linux Standard Base 5, core, 10.7.2: the bits of a version's index (the other one hides it); the indexes up
#: to this one name none.
_VERSION_BITS, _GLOBAL = 0x7FFF, 1

#: How long the loader may take to find a program's libraries, seconds.
_LOADER_SECONDS = 30
#: Libraries of a program that are looked at.  The largest programs of Debian have 300.
LIBRARIES_READ = 1024
#: ld.so --list: C{name => path (address)}, or C{path (address)}.
_LISTED = re.compile(rb"^\s+(?:\S+ => )?(/.+?) \(0x[0-9a-f]+\)$", re.MULTILINE)

#: Functions that are named in the line that says what was done.
_NAMED = 3
_SONAMES = frozenset(SONAMES.values())
#: Such a library by a name of a wheel's own, as C{libibverbs-1de1263b.so.1.14.48.0}.
_CARRIED = re.compile(r"lib(ibverbs|rdmacm|ibumad)-[^/]*\.so[^/]*").fullmatch
_IGNORED = "the loader ignores LD_LIBRARY_PATH for it: run a copy without"


class NotReadableError(Exception):
    """
    A file is no ELF file, or a damaged one.
    """


@frozen
class Binary:
    """
    A program or library.

    @ivar kind: class and machine, as C{ELFCLASS64 EM_X86_64}.
    @ivar loader: the loader that it asks for; C{""} if none: it is static, or a library.
    @ivar wanted: what it imports of the libraries in question, with a version.
    """

    kind: str
    loader: str
    wanted: tuple[Symbol, ...]


class _File(BufferedReader):
    def __init__(self, path: str) -> None:
        super().__init__(FileIO(path))
        self._left = READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ELFError(f"it is not read in {READS} steps")
        return super().read(size)


def _reading(path: str, read: Callable[[Any], Read]) -> Read:
    with _File(path) as file:
        try:
            return read(ELFFile(file))
        # pyelftools has errors of many classes for damaged files: its own, and Python's.
        except Exception as error:
            text = str(error) if isinstance(error, ELFError) and str(error) else type(error).__name__
            raise NotReadableError(f"{path} is a damaged binary: {text}") from None


def read(path: str, libraries: Collection[str]) -> Binary:
    """
    Read a binary.

    @param libraries: whose symbols are in question, as C{libibverbs.so.1}.
    @raise NotReadableError: it is none, or it is damaged.
    @raise OSError: it cannot be read.
    """

    def parse(elf: Any) -> Binary:
        kind = f"{elf.header['e_ident']['EI_CLASS']} {elf.header['e_machine']}"
        loader = next((str(each.get_interp_name()) for each in elf.iter_segments("PT_INTERP")), "")
        return Binary(kind, loader, _wanted(elf, libraries))

    return _reading(path, parse)


def exported(path: str) -> frozenset[tuple[str, str]]:
    """
    Read what a library exports with versions.

    @return: version and name of each symbol, and each version twice.
    @raise NotReadableError: it is none, or it is damaged.
    @raise OSError: it cannot be read.
    """

    def parse(elf: Any) -> frozenset[tuple[str, str]]:
        versions = _defined(elf)
        found = {
            (versions[at], symbol.name)
            for at, symbol in _indexed(elf)
            if at in versions and symbol["st_shndx"] != "SHN_UNDEF"
        }
        return frozenset(found | {(version, version) for version in versions.values()})

    return _reading(path, parse)


def _wanted(elf: Any, libraries: Collection[str]) -> tuple[Symbol, ...]:
    needed: dict[int, tuple[str, str]] = {}
    for section in _sections(elf, "SHT_GNU_verneed"):
        for library, versions in section.iter_versions():
            if library.name in libraries:
                needed |= {each["vna_other"] & _VERSION_BITS: (library.name, each.name) for each in versions}
    if not needed:
        return ()
    return tuple(
        sorted(
            # A symbol that is defined is a program's copy of the library's variable (R_*_COPY).
            Symbol(*needed[at], symbol.name, symbol["st_info"]["type"] == "STT_OBJECT")
            for at, symbol in _indexed(elf)
            if at in needed
        )
    )


def _defined(elf: Any) -> dict[int, str]:
    defined: dict[int, str] = {}
    for section in _sections(elf, "SHT_GNU_verdef"):
        for definition, names in section.iter_versions():
            # Its own name, and those of the versions before it; the first of all is the library's.
            name, *_ = names
            if definition["vd_ndx"] & _VERSION_BITS > _GLOBAL:
                defined[definition["vd_ndx"] & _VERSION_BITS] = name.name
    return defined


def _sections(elf: Any, kind: str) -> Iterator[Any]:
    return (section for section in elf.iter_sections() if section["sh_type"] == kind)


def _indexed(elf: Any) -> Iterator[tuple[int, Any]]:
    # The symbols that have a version, with its index.
    for versions in _sections(elf, "SHT_GNU_versym"):
        for symbols in _sections(elf, "SHT_DYNSYM"):
            for number in range(min(symbols.num_symbols(), versions.num_symbols())):
                index = versions.get_symbol(number)["ndx"]
                # pyelftools has names for those that are none.
                if isinstance(index, int) and index & _VERSION_BITS > _GLOBAL:
                    yield index & _VERSION_BITS, symbols.get_symbol(number)


@frozen
class Libraries:
    """
    The libraries of a program.

    @ivar folders: where the loader finds them, in order.
    @ivar used: those that the program or a library of it imports.
    @ivar stubs: what answers ENOSYS, the program's own imports first.
    @ivar inFront: libraries that are loaded in front of those that the program carries by other names.
    """

    folders: tuple[Path, ...]
    used: tuple[str, ...]
    stubs: tuple[Symbol, ...]
    inFront: tuple[str, ...] = ()


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
    wanted, others = dict.fromkeys(binary.wanted), loaded(path, binary.loader)
    for library in others:
        # One that this package has is not loaded.
        if os.path.basename(library) not in given:
            wanted |= dict.fromkeys(_wantedBy(library, given))
    missing = [each for each in wanted if (each.version, each.name) not in given[each.library]]
    carried = {found[1] for each in others if (found := _CARRIED(os.path.basename(each)))}
    front = tuple(sorted(each for each in given if each.partition(".")[0].removeprefix("lib") in carried))
    used = tuple(sorted({each.library for each in wanted}.union(front)))
    paths = tuple(str(folder / each) for each in front)
    if not missing:
        return Libraries((folder,), used, (), paths)
    versions: dict[str, set[str]] = {}
    for library in {each.library for each in missing}:
        versions[library] = {version for version, _ in given[library]}
        versions[library] |= {each.version for each in wanted if each.library == library}
    return Libraries((inFront(folder, missing, versions), folder), used, tuple(missing), paths)


def _wantedBy(library: str, given: Collection[str]) -> tuple[Symbol, ...]:
    try:
        return read(library, given).wanted
    except (OSError, NotReadableError):
        # The loader says so itself when the program starts.
        return ()


class UnfitBinaryError(Exception):
    """
    A program would not get the libraries; the text says why.
    """


def begin(path: str, binary: str, isInherited: bool = False) -> tuple[list[str], str, tuple[str, ...]]:
    """
    Find or build the libraries of a program.

    @param path: the program.
    @param binary: the file that the kernel loads: the program, or its interpreter.
    @param isInherited: whether what of it is Python runs under C{ib-run}.
    @return: the directories for C{LD_LIBRARY_PATH}; what it gets, for the user; and the libraries for
        C{LD_PRELOAD}.
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
    return [str(each) for each in found.folders], described(found, isInherited), found.inFront


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


def described(found: Libraries, isInherited: bool = False) -> str:
    """
    @param isInherited: whether what of it is Python runs under C{ib-run}.
    @return: what a program gets, for the user.
    """
    if not found.used:
        text = "imports no RDMA library; what it loads or starts finds libibverbs"
        return f"{text}, and Python that has twisted_ib gets SDP" if isInherited else text
    text = f"runs with {', '.join(found.used)} of twisted_ib"
    if found.stubs:
        names = [each.name for each in found.stubs[:_NAMED]]
        if len(found.stubs) > _NAMED:
            names.append("...")
        text += f"; ENOSYS: {len(found.stubs)} functions ({', '.join(names)})"
    return text
