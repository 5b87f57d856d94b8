"""
Address handles.
"""

from __future__ import annotations

from _twisted_ib_verbs import ffi

from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.errors import unsupported
from twisted_ib.verbs.c.functions import handler
from twisted_ib.verbs.c.pointers import CData, given
from twisted_ib.verbs.c.verbs.structures import contextAt, new, pdAt
from twisted_ib.verbs.pyverbs.enums.queues import ibv_wc_flags
from twisted_ib.verbs.pyverbs.objects.ah import addressOfSender, readGRH

_GRH_BYTES = 40
_GID_BYTES = 16
#: Fields of C{struct ibv_ah_attr}, and of C{struct ibv_global_route} without the destination.
_FIELDS = ("dlid", "sl", "src_path_bits", "static_rate", "is_global", "port_num")
_ROUTE = ("flow_label", "sgid_index", "hop_limit", "traffic_class")


def gidOf(gid: CData) -> verbs.GID:
    """
    @param gid: a pointer to, or a C{union ibv_gid}.
    """
    return verbs.GID.of(bytes(gid.raw))


def readAddress(attr: CData) -> verbs.AHAttr:
    """
    @param attr: a C{struct ibv_ah_attr}.
    """
    made = verbs.AHAttr()
    for name in _FIELDS:
        setattr(made, name, getattr(attr, name))
    grh = attr.grh
    made.gr = verbs.GlobalRoute(gidOf(grh.dgid).gid)
    for name in _ROUTE:
        setattr(made.gr, name, getattr(grh, name))
    return made


def writeAddress(made: verbs.AHAttr, attr: CData) -> None:
    """
    @param attr: the C{struct ibv_ah_attr} to fill.
    """
    for name in _FIELDS:
        setattr(attr, name, getattr(made, name))
    for name in _ROUTE:
        setattr(attr.grh, name, getattr(made.gr, name))
    ffi.memmove(attr.grh.dgid.raw, verbs.GID(made.gr.dgid).raw, _GID_BYTES)


def _received(wc: CData) -> verbs.WC:
    return verbs.WC(
        byte_len=wc.byte_len,
        qp_num=wc.qp_num,
        src_qp=wc.src_qp,
        wc_flags=wc.wc_flags,
        slid=wc.slid,
        sl=wc.sl,
        dlid_path_bits=wc.dlid_path_bits,
    )


def _header(grh: CData) -> bytes:
    given(grh)
    return bytes(ffi.buffer(ffi.cast("char *", grh), _GRH_BYTES))


@handler
def ibv_create_ah(pd: CData, attr: CData) -> CData:
    domain = pdAt(pd, attr)
    value = verbs.AH(domain, attr=readAddress(attr))
    return new("ibv_ah", value, (pd,), context=pd.context, pd=pd, handle=value.handle)


@handler
def ibv_init_ah_from_wc(context: CData, port: int, wc: CData, grh: CData, attr: CData) -> int:
    contextAt(context, wc, attr)
    ffi.memmove(attr, bytes(ffi.sizeof(attr[0])), ffi.sizeof(attr[0]))
    if wc.wc_flags & ibv_wc_flags.IBV_WC_GRH:
        made = addressOfSender(_received(wc), readGRH(_header(grh)), port)
    else:
        made = verbs.AHAttr(wc.slid, wc.sl, wc.dlid_path_bits, port_num=port)
    writeAddress(made, attr)
    return 0


@handler
def ibv_create_ah_from_wc(pd: CData, wc: CData, grh: CData, port: int) -> CData:
    domain = pdAt(pd, wc)
    header = _header(grh) if wc.wc_flags & ibv_wc_flags.IBV_WC_GRH else b""
    value = verbs.AH(domain, wc=_received(wc), grh=header, port_num=port)
    return new("ibv_ah", value, (pd,), context=pd.context, pd=pd, handle=value.handle)


@handler
def ibv_resolve_eth_l2_from_gid(context: CData, attr: CData, mac: CData, vid: CData) -> int:
    """
    Nothing: the device has no Ethernet of its own.
    """
    contextAt(context, attr, mac)
    raise unsupported()
