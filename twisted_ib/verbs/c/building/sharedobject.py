"""
A shared object of functions that all do the same: they set C{errno}, and return a number.

It is written as the loader reads it (System V gABI; Linux Standard Base 5, core, 10.7), without sections,
which only linkers and debuggers read: so no compiler is needed, and each program may have one of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from errno import ENOSYS

from attrs import frozen

#: glibc's function with the address of C{errno}; it has one version, so that none is asked for.
_ERRNO = "__errno_location"
#: Octets of a variable, which are zero.
DATA_BYTES = 64
#: Of the largest page that Linux has for these machines: both segments are in pages of their own.
_PAGE = 0x10000

# System V gABI: types and flags of segments, the type and bindings of symbols, and entries for the loader.
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_ET_DYN, _STB_GLOBAL, _STT_OBJECT, _STT_FUNC = 3, 1, 1, 2
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_RELAENT = 1, 4, 5, 6, 7, 8, 9
_DT_STRSZ, _DT_SYMENT, _DT_SONAME = 10, 11, 14
_DT_VERSYM, _DT_VERDEF, _DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
_HEADER, _SEGMENT, _SYMBOL, _RELOCATION = 64, 56, 24, 24
#: Any but that of undefined symbols: there are no sections.
_DEFINED = 1
#: A version that only programs find which ask for it, as all do that were linked with the library.
_HIDDEN = 0x8000
#: A symbol without a version; the version that is the library's name.
_NO_VERSION, _BASE = 1, 1


@frozen
class Stub:
    """
    A function or variable.

    @ivar name: its name.
    @ivar version: its version.
    @ivar answer: what it returns; L{None} for a variable.
    """

    name: str
    version: str
    answer: int | None


def _x86_64(slot: int, answer: int) -> bytes:
    # sub $8, %rsp; call *slot(%rip); movl $ENOSYS, (%rax); mov $answer, %rax; add $8, %rsp; ret.  The slot is
    # told from the end of its instruction.
    code = b"\x48\x83\xec\x08" + b"\xff\x15" + struct.pack("<i", slot - 10)
    code += b"\xc7\x00" + struct.pack("<i", ENOSYS) + b"\x48\xc7\xc0" + struct.pack("<i", answer)
    return code + b"\x48\x83\xc4\x08\xc3"


def _aarch64(slot: int, answer: int) -> bytes:
    # stp x29, x30, [sp, #-16]!; ldr x16, slot; blr x16; mov w1, #ENOSYS; str w1, [x0]; mov x0, #answer (movz,
    # or movn of its complement); ldp x29, x30, [sp], #16; ret.
    move = 0xD2800000 | answer << 5 if answer >= 0 else 0x92800000 | ~answer << 5
    load = 0x58000010 | ((slot - 4) // 4 & 0x7FFFF) << 5
    words = (0xA9BF7BFD, load, 0xD63F0200, 0x52800001 | ENOSYS << 5, 0xB9000001, move, 0xA8C17BFD, 0xD65F03C0)
    return struct.pack("<8I", *words)


@frozen
class _Machine:
    # e_machine; the relocation that fills a slot with an address (R_*_GLOB_DAT); and a function that gives
    # the code, from the distance of the slot with errno's function, and the answer.
    number: int
    slot: int
    code: Callable[[int, int], bytes]


_MACHINES: Mapping[str, _Machine] = {
    "x86_64": _Machine(62, 6, _x86_64),
    "aarch64": _Machine(183, 1025, _aarch64),
}
#: Those that there is code for, by their names of uname(2).
MACHINES: Collection[str] = _MACHINES.keys()


def _hash(name: str) -> int:
    # System V gABI, figure 5-13.
    value = 0
    for octet in name.encode():
        value = (value << 4) + octet
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


class _Strings:
    def __init__(self) -> None:
        self.octets = b"\0"
        self._at: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        if text not in self._at:
            self._at[text] = len(self.octets)
            self.octets += text.encode() + b"\0"
        return self._at[text]


def _hashTable(names: Sequence[str]) -> bytes:
    # All symbols but the first, which is none.
    buckets = [0] * max(1, len(names) // 2)
    chains = [0] * (len(names) + 1)
    for index, name in enumerate(names, 1):
        bucket = _hash(name) % len(buckets)
        chains[index], buckets[bucket] = buckets[bucket], index
    return struct.pack(f"<{2 + len(buckets) + len(chains)}I", len(buckets), len(chains), *buckets, *chains)


def _definitions(library: str, versions: Sequence[str], strings: _Strings) -> bytes:
    made = b""
    for index, name in enumerate([library, *versions], _BASE):
        # VER_FLG_BASE: the first is no version, but the library.
        flags, following = int(index == _BASE), 28 if index <= len(versions) else 0
        made += struct.pack("<HHHHIII", 1, flags, index, 1, _hash(name), 20, following)
        made += struct.pack("<II", strings[name], 0)
    return made


def sharedObject(
    library: str, needed: Sequence[str], versions: Sequence[str], stubs: Sequence[Stub], machine: str
) -> bytes:
    """
    @param library: its name for the loader.
    @param needed: what the loader loads for it, in order: names, or paths.
    @param versions: all that it defines; those of the stubs are among them.
    @param machine: one of L{MACHINES}.
    @return: the file.
    """
    its, strings = _MACHINES[machine], _Strings()
    names = [_ERRNO, *(each.name for each in stubs)]
    answers = sorted({each.answer for each in stubs if each.answer is not None})
    variables = [each for each in stubs if each.answer is None]
    numbers = {name: _HIDDEN | index for index, name in enumerate(versions, _BASE + 1)}
    kinds = struct.pack(f"<{len(names) + 1}H", 0, _NO_VERSION, *(numbers[each.version] for each in stubs))
    definitions = _definitions(library, versions, strings)
    loads = [(_DT_NEEDED, strings[each]) for each in needed] + [(_DT_SONAME, strings[library])]
    for name in names:
        strings[name]
    size = len(its.code(0, 0))
    size += -size % 16

    # The first segment, all of which is read and run.  Addresses in it are offsets in the file.
    table = _hashTable(names)
    at, end = {}, _HEADER + 4 * _SEGMENT
    for tag, length in (
        (_DT_HASH, len(table)),
        (_DT_SYMTAB, _SYMBOL * (len(names) + 1)),
        (_DT_STRTAB, len(strings.octets)),
        (_DT_VERSYM, len(kinds)),
        (_DT_VERDEF, len(definitions)),
        (_DT_RELA, _RELOCATION),
    ):
        at[tag] = end
        end += length + -length % 8
    text = end + -end % 16
    code = {answer: text + size * number for number, answer in enumerate(answers)}

    # The second one, which is written: entries for the loader, the slot, variables.
    begin = text + size * len(answers)
    entries = [
        *loads,
        *at.items(),
        *((_DT_STRSZ, len(strings.octets)), (_DT_SYMENT, _SYMBOL), (_DT_RELASZ, _RELOCATION)),
        *((_DT_RELAENT, _RELOCATION), (_DT_VERDEFNUM, len(versions) + 1), (0, 0)),
    ]
    dynamic = struct.pack(f"<{2 * len(entries)}Q", *(number for entry in entries for number in entry))
    slot = _PAGE + begin + len(dynamic)
    data = slot + 8 + -(slot + 8) % 16

    def symbol(stub: Stub) -> bytes:
        if stub.answer is None:
            kind, value, length = _STT_OBJECT, data + DATA_BYTES * variables.index(stub), DATA_BYTES
        else:
            kind, value, length = _STT_FUNC, code[stub.answer], size
        return struct.pack("<IBBHQQ", strings[stub.name], _STB_GLOBAL << 4 | kind, 0, _DEFINED, value, length)

    symbols = bytes(_SYMBOL) + struct.pack(
        "<IBBHQQ", strings[_ERRNO], _STB_GLOBAL << 4 | _STT_FUNC, 0, 0, 0, 0
    )
    symbols += b"".join(map(symbol, stubs))
    file = bytearray(begin)
    for place, octets in (
        (0, _header(its, begin, len(dynamic), data + DATA_BYTES * len(variables))),
        (at[_DT_HASH], table),
        (at[_DT_SYMTAB], symbols),
        (at[_DT_STRTAB], strings.octets),
        (at[_DT_VERSYM], kinds),
        (at[_DT_VERDEF], definitions),
        # Of symbol 1, errno's function.
        (at[_DT_RELA], struct.pack("<QQq", slot, 1 << 32 | its.slot, 0)),
        *((place, its.code(slot - place, answer)) for answer, place in code.items()),
    ):
        file[place : place + len(octets)] = octets
    return bytes(file) + dynamic + bytes(8)


def _header(machine: _Machine, begin: int, dynamic: int, end: int) -> bytes:
    # ELFCLASS64, ELFDATA2LSB, EV_CURRENT.
    made = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    made += struct.pack(
        "<HHIQQQIHHHHHH", _ET_DYN, machine.number, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 4, 0, 0, 0
    )
    written, length = _PAGE + begin, dynamic + 8
    for kind, flags, place, address, inFile, inMemory, alignment in (
        (_PT_LOAD, _READ | _EXECUTE, 0, 0, begin, begin, _PAGE),
        (_PT_LOAD, _READ | _WRITE, begin, written, length, end - written, _PAGE),
        (_PT_DYNAMIC, _READ | _WRITE, begin, written, dynamic, dynamic, 8),
        (_PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 16),
    ):
        made += struct.pack("<IIQQQQQQ", kind, flags, place, address, address, inFile, inMemory, alignment)
    return made
