"""
The parameters of binding a memory window.  Source: rdma-core 65, C{pyverbs/mr.pyx}.
"""

from __future__ import annotations

import attrs

from twisted_ib.verbs.pyverbs.base.base import PyverbsCM, PyverbsObject, table, u32, u64


@attrs.define(eq=False)
class MWBindInfo(PyverbsCM):
    """
    The part of a memory region that a window opens (C{struct ibv_mw_bind_info}).

    @ivar addr: the window's first octet, as an address of the region.
    @ivar length: in octets.
    @ivar mw_access_flags: the remote rights, bits of C{ibv_access_flags}.
    """

    # Any verbs object, as MR's module imports this one; L{windowBind} checks that it is a region.
    mr: PyverbsObject = attrs.field(validator=attrs.validators.instance_of(PyverbsObject))
    addr: int = attrs.field(converter=u64)
    length: int = attrs.field(converter=u64)
    mw_access_flags: int = attrs.field(converter=u32)

    def __str__(self) -> str:
        rows = [("Addr", self.addr), ("Length", self.length), ("MW access flags", self.mw_access_flags)]
        return "MWBindInfo:\n" + table(rows)


@attrs.define(eq=False)
class MWBind(PyverbsCM):
    """
    A request to bind a type 1 window (C{struct ibv_mw_bind}).

    @ivar send_flags: bits of C{ibv_send_flags}.
    @ivar wr_id: the id of its completion.
    """

    # C's field is bind_info; the name is that of the parameter in pyverbs/mr.pyx.
    info: MWBindInfo = attrs.field(validator=attrs.validators.instance_of(MWBindInfo))
    send_flags: int = attrs.field(converter=u32)
    wr_id: int = attrs.field(default=0, converter=u64)

    def __str__(self) -> str:
        return "MWBind:\n" + table([("WR id", self.wr_id), ("Send flags", self.send_flags)])
