"""
Structures of C: their addresses, their fields, and the objects behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, overload

from _twisted_ib_verbs import ffi, lib

from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handlers
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.pointers import CData, addressOf

if TYPE_CHECKING:
    from twisted_ib.verbs.c.postings import PostedQP, PostedQPEX, PostedSRQ

_cast, _entries = ffi.cast, handles.entries
#: Octets by which a program's structure may be longer than this library's.
LARGEST_STRUCTURE = 1 << 16
#: The functions that end an object, each with the kind of its structure.
_ENDS = {
    "ibv_dealloc_pd": "ibv_pd",
    "dealloc_td": "ibv_td",
    "ibv_dereg_mr": "ibv_mr",
    "free_dm": "ibv_dm",
    "dealloc_mw": "ibv_mw",
    "ibv_destroy_comp_channel": "ibv_comp_channel",
    "ibv_destroy_cq": "ibv_cq",
    "ibv_destroy_qp": "ibv_qp",
    "ibv_destroy_srq": "ibv_srq",
    "ibv_destroy_ah": "ibv_ah",
}


def new(kind: str, value: object, parents: Iterable[CData] = (), **fields: object) -> CData:
    """
    Make the structure of an object.

    @param kind: its name in C.
    @param value: the object.
    @param parents: pointers to the structures of what it uses; null ones are left out.
    @param fields: the values of fields; the others are 0.
    @return: the pointer to it.
    """
    structure = ffi.new(f"struct {kind} *", fields)
    handles.add(addressOf(structure), kind, value, structure, map(addressOf, parents))
    return structure


@overload
def objectOf(pointer: CData, kind: Literal["ibv_device"]) -> verbs.Device: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_context"]) -> verbs.Context: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_pd"]) -> verbs.PD: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_td"]) -> object: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_mr"]) -> verbs.MR: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_dm"]) -> verbs.DM: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_mw"]) -> verbs.MW: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_comp_channel"]) -> verbs.CompChannel: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_cq"]) -> verbs.CQ: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_qp"]) -> PostedQP | PostedQPEX: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_srq"]) -> PostedSRQ: ...


@overload
def objectOf(pointer: CData, kind: Literal["ibv_ah"]) -> verbs.AH: ...


def objectOf(pointer: CData, kind: str) -> object:
    """
    @return: the object of a structure.
    @raise HandleError: it is not of this kind, or was destroyed (EINVAL).
    """
    # Each call of a program has one of these at least: addressOf() and get() are asked about failures only.
    entry = _entries.get(int(_cast("uintptr_t", pointer)))
    if entry is None or entry.kind != kind:
        return handles.get(addressOf(pointer), kind)
    return entry.value


@overload
def optional(pointer: CData, kind: Literal["ibv_comp_channel"]) -> verbs.CompChannel | None: ...


@overload
def optional(pointer: CData, kind: Literal["ibv_cq"]) -> verbs.CQ | None: ...


@overload
def optional(pointer: CData, kind: Literal["ibv_srq"]) -> verbs.SRQ | None: ...


def optional(pointer: CData, kind: str) -> object:
    """
    @return: the object of a structure; L{None} for a null pointer.
    @raise HandleError: it is not of this kind, or was destroyed (EINVAL).
    """
    return handles.optional(addressOf(pointer), kind)


def copyFields(source: object, target: object, names: Iterable[str]) -> None:
    """
    Copy attributes of an object into fields of a structure.
    """
    for name in names:
        setattr(target, name, getattr(source, name))


def copyPart(target: CData, made: CData, size: int) -> None:
    """
    Copy a structure into a program's, which may have been compiled with an older or a newer header.

    @param target: the program's.
    @param made: the structure.
    @param size: octets of the program's; those that this one does not have become 0.
    """
    here = ffi.buffer(made)[:size]
    # A structure has some kilobytes at most: a larger size is a fault of the program.
    if size - len(here) > LARGEST_STRUCTURE:
        raise HandleError(f"A structure has no {size} octets")
    ffi.memmove(target, here + bytes(size - len(here)), size)


def pointers(*names: str) -> dict[str, CData]:
    """
    @param names: of functions of the table without a version, which are those of fields.
    @return: pointers to them, for the fields of a structure.
    """
    return {name: ffi.addressof(lib, f"exported_{name}") for name in names}


@handlers(*_ENDS)
def _ending(name: str) -> Callable[[CData], int]:
    kind = _ENDS[name]

    def end(pointer: CData) -> int:
        handles.remove(addressOf(pointer), kind)
        return 0

    return end
