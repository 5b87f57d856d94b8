"""
Protection domains, memory regions and windows, thread domains, device memory.
"""

from __future__ import annotations

from collections.abc import Callable

from _twisted_ib_verbs import ffi

from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.errors import unsupported
from twisted_ib.verbs.c.functions import handler, handlers
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.pointers import CData, addressOf
from twisted_ib.verbs.c.verbs.structures import contextAt, dmAt, mrAt, mwAt, new, pdAt, pointers, qpAt, tdAt
from twisted_ib.verbs.pyverbs.enums.device import IBV_ACCESS_OPTIONAL_RANGE, ibv_rereg_mr_flags

#: The functions that the headers' inline ones call.
_COPIES = pointers("memcpy_to_dm", "memcpy_from_dm")


class ThreadDomain:
    """
    A promise of the program that one thread uses what is in it, of which nothing is made here.
    """

    def close(self) -> None:
        """
        Nothing to release.
        """


def domainOf(context: CData, value: verbs.PD) -> CData:
    """
    @param context: the C{struct ibv_context} of a domain.
    @return: its C{struct ibv_pd}.
    """
    return new("ibv_pd", value, (context,), context=context, handle=value.handle)


@handler
def ibv_alloc_pd(context: CData) -> CData:
    return domainOf(context, verbs.PD(contextAt(context)))


@handler
def alloc_td(context: CData, attr: CData) -> CData:
    contextAt(context, attr)
    if attr.comp_mask:
        raise unsupported()
    return new("ibv_td", ThreadDomain(), (context,), context=context)


@handler
def alloc_parent_domain(context: CData, attr: CData) -> CData:
    """
    Allocate a parent domain: another name of a protection domain.
    """
    owner = contextAt(context, attr)
    pd = pdAt(attr.pd)
    if attr.td:
        tdAt(attr.td)
    # Its allocators are never called: the device needs no memory of the program.
    value = verbs.ParentDomain(owner, verbs.ParentDomainInitAttr(pd))
    parents = (context, attr.pd, attr.td)
    return new("ibv_pd", value, parents, context=context, handle=value.handle)


def _region(pd: CData, value: verbs.MR, length: int, addr: CData, *parents: CData) -> CData:
    return new(
        "ibv_mr",
        value,
        (pd, *parents),
        context=pd.context,
        pd=pd,
        addr=addr,
        length=length,
        handle=value.handle,
        lkey=value.lkey,
        rkey=value.rkey,
    )


def _register(pd: CData, addr: CData, length: int, access: int, iova: int | None) -> CData:
    # Null would be new memory of the device's.
    domain = pdAt(pd, addr)
    # man ibv_reg_mr(3): rights of this range are hints, ignored where they are not known.
    rights = access & ~IBV_ACCESS_OPTIONAL_RANGE & 0xFFFFFFFF
    value = verbs.MREx(domain, length, rights, address=addressOf(addr), iova=iova)
    return _region(pd, value, length, addr)


@handler
def ibv_reg_mr(pd: CData, addr: CData, length: int, access: int) -> CData:
    return _register(pd, addr, length, access, None)


@handlers("ibv_reg_mr_iova", "ibv_reg_mr_iova2")
def _registering(name: str) -> Callable[[CData, CData, int, int, int], CData]:
    return lambda pd, addr, length, iova, access: _register(pd, addr, length, access, iova)


@handler
def ibv_rereg_mr(mr: CData, flags: int, pd: CData, addr: CData, length: int, access: int) -> int:
    """
    Change a region; if it fails, with C{IBV_REREG_MR_ERR_INPUT}, which is -1, the region is as before.
    """
    value = mrAt(mr)
    # Without this bit the domain is not looked at.
    moves = bool(flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_PD)
    domain = pdAt(pd) if moves else None
    value.rereg(flags, domain, addressOf(addr), length, access & ~IBV_ACCESS_OPTIONAL_RANGE)
    if flags & ibv_rereg_mr_flags.IBV_REREG_MR_CHANGE_TRANSLATION:
        mr.addr, mr.length = addr, length
    if moves:
        handles.move(addressOf(mr), addressOf(mr.pd), addressOf(pd))
        mr.pd = pd
    mr.lkey, mr.rkey = value.lkey, value.rkey
    return 0


@handler
def alloc_dm(context: CData, attr: CData) -> CData:
    owner = contextAt(context, attr)
    value = verbs.DM(owner, verbs.AllocDmAttr(attr.length, attr.log_align_req, attr.comp_mask))
    return new("ibv_dm", value, (context,), context=context, handle=value.handle, **_COPIES)


@handler
def reg_dm_mr(pd: CData, dm: CData, offset: int, length: int, access: int) -> CData:
    """
    Register device memory, which has no address.
    """
    domain, memory = pdAt(pd), dmAt(dm)
    value = verbs.DMMR(domain, length, access & ~IBV_ACCESS_OPTIONAL_RANGE, memory, offset)
    return _region(pd, value, length, ffi.NULL, dm)


@handler
def memcpy_to_dm(dm: CData, offset: int, host: CData, length: int) -> int:
    part = dmAt(dm, host).copied(offset, length, "Failed to copy to device memory")
    ffi.memmove(part, host, length)
    return 0


@handler
def memcpy_from_dm(host: CData, dm: CData, offset: int, length: int) -> int:
    part = dmAt(dm, host).copied(offset, length, "Failed to copy from device memory")
    ffi.memmove(host, part, length)
    return 0


@handler
def alloc_mw(pd: CData, type: int) -> CData:
    value = verbs.MW(pdAt(pd), int(type))
    return new(
        "ibv_mw",
        value,
        (pd,),
        context=pd.context,
        pd=pd,
        rkey=value.rkey,
        handle=value.handle,
        type=int(type),
    )


def bindInfo(info: CData) -> verbs.MWBindInfo:
    """
    @param info: a C{struct ibv_mw_bind_info}.
    @return: the part of a region.
    """
    return verbs.MWBindInfo(mrAt(info.mr), info.addr, info.length, info.mw_access_flags)


@handler
def bind_mw(qp: CData, mw: CData, bind: CData) -> int:
    queue, window = qpAt(qp), mwAt(mw, bind)
    with queue.sends:
        queue.bind_mw(window, verbs.MWBind(bindInfo(bind.bind_info), bind.send_flags, bind.wr_id))
    mw.rkey = window.rkey
    return 0
