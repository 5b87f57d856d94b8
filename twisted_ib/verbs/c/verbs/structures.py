"""
Structures of C: their addresses, their fields, and the objects behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from _twisted_ib_verbs import ffi, lib

from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import handlers
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.pointers import CData, addressOf, given

if TYPE_CHECKING:
    from twisted_ib.verbs.c.verbs.queues import PostedQP, PostedQPEX, PostedSRQ

T = TypeVar("T")
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
    @param parents: pointers to the structures of what it uses; null ones are left out.
    @param fields: the values of fields; the others are 0.
    @return: the pointer to it.
    """
    structure = ffi.new(f"struct {kind} *", fields)
    handles.add(addressOf(structure), kind, value, structure, map(addressOf, parents))
    return structure


class Kind(Generic[T]):
    """
    The objects with structures of one kind.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, pointer: CData, *others: CData) -> T:
        """
        @param others: further pointers of a call, none of which may be null.
        @return: the object of a structure.
        @raise HandleError: it is not of this kind, or was destroyed, or a further pointer is null (EINVAL).
        """
        # Each call of a program has one of these at least: addressOf() and get() are for failures only.
        entry = _entries.get(int(_cast("uintptr_t", pointer)))
        if entry is None or entry.kind != self.name:
            found: T = handles.get(addressOf(pointer), self.name)
        else:
            found = entry.value
        if others:
            given(*others)
        return found

    def optional(self, pointer: CData) -> T | None:
        """
        @return: the object of a structure; L{None} for a null pointer.
        @raise HandleError: it is not of this kind, or was destroyed (EINVAL).
        """
        return self(pointer) if pointer else None


deviceAt: Kind[verbs.Device] = Kind("ibv_device")
contextAt: Kind[verbs.Context] = Kind("ibv_context")
pdAt: Kind[verbs.PD] = Kind("ibv_pd")
tdAt: Kind[object] = Kind("ibv_td")
mrAt: Kind[verbs.MR] = Kind("ibv_mr")
dmAt: Kind[verbs.DM] = Kind("ibv_dm")
mwAt: Kind[verbs.MW] = Kind("ibv_mw")
channelAt: Kind[verbs.CompChannel] = Kind("ibv_comp_channel")
cqAt: Kind[verbs.CQ] = Kind("ibv_cq")
qpAt: Kind[PostedQP | PostedQPEX] = Kind("ibv_qp")
srqAt: Kind[PostedSRQ] = Kind("ibv_srq")
ahAt: Kind[verbs.AH] = Kind("ibv_ah")


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
