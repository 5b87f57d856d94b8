"""
Binaries: what the loader reads of them.  Needs pyelftools, which comes with the extra C{[c]}.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from io import BufferedReader, FileIO
from typing import Any, TypeVar

from attrs import frozen
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from twisted_ib.verbs.c.building.symbols import Symbol

Read = TypeVar("Read")

#: Reads of a file, which are no more than 64 octets each: pyelftools goes on for as long as the file's own
#: counts say.  The largest libraries of C++ programs have 100,000 symbols of about 30 reads.
READS = 1 << 22
#: Linux Standard Base 5, core, 10.7.2: the bits of a version's index (the other one hides it); the indexes up
#: to this one name none.
_VERSION_BITS, _GLOBAL = 0x7FFF, 1


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
