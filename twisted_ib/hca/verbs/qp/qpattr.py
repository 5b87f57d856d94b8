"""
The attributes of queue pairs: sizes, those of a new one, those of a modify or query.

Source: rdma-core 65, C{pyverbs/qp.pyx}, C{libibverbs/verbs.h}.
"""

from __future__ import annotations

import attrs

from twisted_ib.hca.verbs.base.addr import AHAttr
from twisted_ib.hca.verbs.base.base import PyverbsObject, checked, flagged, named, table, u8, u16, u32
from twisted_ib.hca.verbs.enums.device import ibv_access_flags, ibv_mtu
from twisted_ib.hca.verbs.enums.queues import (
    ibv_mig_state,
    ibv_qp_create_flags,
    ibv_qp_init_attr_mask,
    ibv_qp_state,
    ibv_qp_type,
)

_object = attrs.validators.optional(attrs.validators.instance_of(PyverbsObject))


@attrs.define(eq=False)
class QPCap(PyverbsObject):
    """
    The sizes of a queue pair.

    @ivar max_send_wr: send requests that are outstanding at a time.
    @ivar max_recv_wr: receives that are outstanding at a time.
    @ivar max_send_sge: gather elements in a send request.
    @ivar max_recv_sge: scatter elements in a receive.
    @ivar max_inline_data: octets that may be posted inline.
    """

    max_send_wr: int = attrs.field(default=1, converter=u32)
    max_recv_wr: int = attrs.field(default=10, converter=u32)
    max_send_sge: int = attrs.field(default=1, converter=u32)
    max_recv_sge: int = attrs.field(default=1, converter=u32)
    max_inline_data: int = attrs.field(default=0, converter=u32)

    def rows(self) -> list[tuple[str, object]]:
        """
        @return: names and values.
        """
        return [
            ("max send WR", self.max_send_wr),
            ("max recv WR", self.max_recv_wr),
            ("max send SGE", self.max_send_sge),
            ("max recv SGE", self.max_recv_sge),
            ("max inline data", self.max_inline_data),
        ]

    def __str__(self) -> str:
        """
        @return: a line for each field.
        """
        rows = [(name.replace("WR", "wrs").replace("SGE", "sges"), value) for name, value in self.rows()]
        return table(rows, 20)


def _sizes(cap: QPCap | None) -> QPCap:
    """
    @return: a copy of the sizes, so that no other object shares them; zeros for None.
    """
    return QPCap(0, 0, 0, 0, 0) if cap is None else attrs.evolve(checked(cap, QPCap))


class _Size:
    """
    One of the sizes, as an attribute of what has them.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        """
        @param name: the size's name, here and in L{QPCap}.
        """
        self.name = name

    def __get__(self, attr: _Sized, owner: type) -> int:
        """
        @return: the size.
        """
        size: int = getattr(attr._cap, self.name)
        return size

    def __set__(self, attr: _Sized, value: int) -> None:
        setattr(attr._cap, self.name, value)


class _Sized(PyverbsObject):
    """
    Something with the sizes of a queue pair.

    @ivar max_send_wr: as in L{QPCap}; the others likewise.
    """

    _cap: QPCap

    @property
    def cap(self) -> QPCap:
        """
        A copy of the sizes.
        """
        return _sizes(self._cap)

    @cap.setter
    def cap(self, val: QPCap | None) -> None:
        """
        Set the sizes; None sets nothing.
        """
        if val is not None:
            self._cap = _sizes(val)


@attrs.define(eq=False, slots=False)
class QPInitAttr(_Sized):
    """
    The attributes of a new queue pair.

    @ivar qp_type: one of C{ibv_qp_type}.
    @ivar qp_context: whatever its user wants to find there.
    @ivar send_cq: the queue for completions of sends (the parameter C{scq}), or None.
    @ivar recv_cq: the queue for completions of receives (the parameter C{rcq}), or None.
    @ivar srq: the shared queue that receives come from, or None.
    @ivar cap: the sizes; zeros if None was given.
    @ivar sq_sig_all: 1 if each send request gives a completion, signalled or not.
    """

    qp_type: int = attrs.field(default=ibv_qp_type.IBV_QPT_UD, converter=u32)
    qp_context: object = None
    send_cq: PyverbsObject | None = attrs.field(default=None, alias="scq", validator=_object)
    recv_cq: PyverbsObject | None = attrs.field(default=None, alias="rcq", validator=_object)
    srq: PyverbsObject | None = attrs.field(default=None, validator=_object)
    _cap: QPCap = attrs.field(default=None, converter=_sizes)
    sq_sig_all: int = attrs.field(default=1, converter=u32)

    max_send_wr = _Size()
    max_recv_wr = _Size()
    max_send_sge = _Size()
    max_recv_sge = _Size()
    max_inline_data = _Size()

    def __str__(self) -> str:
        """
        @return: a line for each field.
        """
        rows = [
            ("QP type", named(ibv_qp_type, self.qp_type, "IBV_QPT_")),
            ("SQ sig. all", self.sq_sig_all),
        ]
        return table(rows, 20) + "QP caps:\n" + table(self._cap.rows(), 20, 4)


@attrs.define(eq=False, slots=False)
class QPInitAttrEx(_Sized):
    """
    The attributes of a new queue pair, with the extended ones.

    @ivar qp_type: one of C{ibv_qp_type}.
    @ivar qp_context: whatever its user wants to find there.
    @ivar send_cq: the queue for completions of sends (the parameter C{scq}), or None.
    @ivar recv_cq: the queue for completions of receives (the parameter C{rcq}), or None.
    @ivar srq: the shared queue that receives come from, or None.
    @ivar cap: the sizes; zeros if None was given.
    @ivar sq_sig_all: 1 if each send request gives a completion, signalled or not.
    @ivar comp_mask: which of the following are valid, bits of C{ibv_qp_init_attr_mask}.
    @ivar pd: the protection domain.
    @ivar xrcd: the XRC domain.
    @ivar create_flags: bits of C{ibv_qp_create_flags}.
    @ivar max_tso_header: the longest header of segmented sends, in octets.
    @ivar source_qpn: the source queue pair number, with C{IBV_QP_CREATE_SOURCE_QPN}.
    @ivar hash_conf: the receive hash.
    @ivar ind_table: the indirection table.
    @ivar send_ops_flags: what is to be posted, bits of C{ibv_qp_create_send_ops_flags}.
    """

    qp_type: int = attrs.field(default=ibv_qp_type.IBV_QPT_UD, converter=u32)
    qp_context: object = None
    send_cq: PyverbsObject | None = attrs.field(default=None, alias="scq", validator=_object)
    recv_cq: PyverbsObject | None = attrs.field(default=None, alias="rcq", validator=_object)
    srq: PyverbsObject | None = attrs.field(default=None, validator=_object)
    _cap: QPCap = attrs.field(default=None, converter=_sizes)
    sq_sig_all: int = attrs.field(default=0, converter=u32)
    comp_mask: int = attrs.field(default=0, converter=u32)
    pd: PyverbsObject | None = attrs.field(default=None, validator=_object)
    xrcd: PyverbsObject | None = attrs.field(default=None, validator=_object)
    create_flags: int = attrs.field(default=0, converter=u32)
    max_tso_header: int = attrs.field(default=0, converter=u16)
    source_qpn: int = attrs.field(default=0, converter=u32)
    hash_conf: PyverbsObject | None = attrs.field(default=None, validator=_object)
    ind_table: PyverbsObject | None = attrs.field(default=None, validator=_object)
    send_ops_flags: int = attrs.field(default=0, converter=u32)

    max_send_wr = _Size()
    max_recv_wr = _Size()
    max_send_sge = _Size()
    max_recv_sge = _Size()
    max_inline_data = _Size()

    def mask_to_str(self, mask: int) -> str:
        """
        @param mask: bits of C{ibv_qp_init_attr_mask}.

        @return: their names.
        """
        return flagged(ibv_qp_init_attr_mask, mask, "IBV_QP_INIT_ATTR_")

    def flags_to_str(self, flags: int) -> str:
        """
        @param flags: bits of C{ibv_qp_create_flags}.

        @return: their names.
        """
        return flagged(ibv_qp_create_flags, flags, "IBV_QP_CREATE_")

    def __str__(self) -> str:
        """
        @return: a line for each field.
        """
        rows = [
            ("QP type", named(ibv_qp_type, self.qp_type, "IBV_QPT_")),
            ("SQ sig. all", self.sq_sig_all),
        ]
        more = [
            ("comp mask", self.mask_to_str(self.comp_mask)),
            ("create flags", self.flags_to_str(self.create_flags)),
            ("max TSO header", self.max_tso_header),
            ("Source QPN", self.source_qpn),
        ]
        sizes = [("  " + name, value) for name, value in self._cap.rows()]
        return table(rows, 20) + "QP caps:\n" + table(sizes, 20) + table(more, 20)


def _nowhere() -> AHAttr:
    """
    @return: the address of a queue pair that has none: all zeros.
    """
    return AHAttr(port_num=0)


@attrs.define(eq=False, slots=False)
class QPAttr(_Sized):
    """
    The attributes of a queue pair that a modify sets or a query finds.  Its four parameters
    suit the step from RESET to INIT; all else is 0.

    @ivar qp_state: the state to go to, one of C{ibv_qp_state}.
    @ivar cur_qp_state: the state that it is thought to be in.
    @ivar port_num: the local port, from 1 on.
    @ivar path_mtu: one of C{ibv_mtu}.
    @ivar path_mig_state: one of C{ibv_mig_state}.
    @ivar qkey: the Q_Key, of a datagram queue pair.
    @ivar rq_psn: the first packet number to come, 24 bits.
    @ivar sq_psn: the first packet number to send, 24 bits.
    @ivar dest_qp_num: the peer's queue pair.
    @ivar qp_access_flags: what the peer may do, bits of C{ibv_access_flags}.
    @ivar pkey_index: the place of the P_Key in the port's table.
    @ivar alt_pkey_index: likewise on the alternate path.
    @ivar en_sqd_async_notify: 1 asks for an event when the send queue has drained.
    @ivar sq_draining: 1 while it drains (query only).
    @ivar max_rd_atomic: READs and atomics to the peer at a time.
    @ivar max_dest_rd_atomic: READs and atomics of the peer that are served at a time.
    @ivar min_rnr_timer: how long a peer that met no receive shall wait, a code of 5 bits.
    @ivar timeout: how long to wait for an acknowledgement: C{4.096 * 2**timeout} microseconds, 0
        for ever.
    @ivar retry_cnt: how often to repeat after that, up to 7.
    @ivar rnr_retry: how often to repeat where no receive was; 7 is for ever.
    @ivar alt_port_num: the local port of the alternate path.
    @ivar alt_timeout: C{timeout} on the alternate path.
    @ivar rate_limit: in kbit/s, of a raw queue pair.
    """

    qp_state: int = attrs.field(default=ibv_qp_state.IBV_QPS_INIT, converter=u32)
    cur_qp_state: int = attrs.field(default=ibv_qp_state.IBV_QPS_RESET, converter=u32)
    port_num: int = attrs.field(default=1, converter=u8)
    path_mtu: int = attrs.field(default=ibv_mtu.IBV_MTU_1024, converter=u32)
    path_mig_state: int = attrs.field(default=0, converter=u32, init=False)
    qkey: int = attrs.field(default=0, converter=u32, init=False)
    rq_psn: int = attrs.field(default=0, converter=u32, init=False)
    sq_psn: int = attrs.field(default=0, converter=u32, init=False)
    dest_qp_num: int = attrs.field(default=0, converter=u32, init=False)
    qp_access_flags: int = attrs.field(default=0, converter=u32, init=False)
    pkey_index: int = attrs.field(default=0, converter=u16, init=False)
    alt_pkey_index: int = attrs.field(default=0, converter=u16, init=False)
    en_sqd_async_notify: int = attrs.field(default=0, converter=u8, init=False)
    sq_draining: int = attrs.field(default=0, converter=u8, init=False)
    max_rd_atomic: int = attrs.field(default=0, converter=u8, init=False)
    max_dest_rd_atomic: int = attrs.field(default=0, converter=u8, init=False)
    min_rnr_timer: int = attrs.field(default=0, converter=u8, init=False)
    timeout: int = attrs.field(default=0, converter=u8, init=False)
    retry_cnt: int = attrs.field(default=0, converter=u8, init=False)
    rnr_retry: int = attrs.field(default=0, converter=u8, init=False)
    alt_port_num: int = attrs.field(default=0, converter=u8, init=False)
    alt_timeout: int = attrs.field(default=0, converter=u8, init=False)
    rate_limit: int = attrs.field(default=0, converter=u32, init=False)
    _cap: QPCap = attrs.field(default=None, converter=_sizes, init=False)
    _ah_attr: AHAttr = attrs.field(factory=_nowhere, init=False)
    _alt_ah_attr: AHAttr = attrs.field(factory=_nowhere, init=False)

    @property
    def ah_attr(self) -> AHAttr:
        """
        A copy of the peer's address.
        """
        return self._ah_attr.copy()

    @ah_attr.setter
    def ah_attr(self, val: AHAttr | None) -> None:
        """
        Set the peer's address; None sets nothing.
        """
        if val is not None:
            self._ah_attr = checked(val, AHAttr).copy()

    @property
    def alt_ah_attr(self) -> AHAttr:
        """
        A copy of the peer's address on the alternate path.
        """
        return self._alt_ah_attr.copy()

    @alt_ah_attr.setter
    def alt_ah_attr(self, val: AHAttr | None) -> None:
        """
        Set the peer's address on the alternate path; None sets nothing.
        """
        if val is not None:
            self._alt_ah_attr = checked(val, AHAttr).copy()

    def _path(self) -> list[tuple[str, object]]:
        """
        @return: names and values from the state to the access flags.
        """
        return [
            ("QP state", named(ibv_qp_state, self.qp_state, "IBV_QPS_")),
            ("QP current state", named(ibv_qp_state, self.cur_qp_state, "IBV_QPS_")),
            ("Path MTU", named(ibv_mtu, self.path_mtu, "IBV_MTU_")),
            ("Path mig. state", named(ibv_mig_state, self.path_mig_state, "IBV_MIG_")),
            ("QKey", self.qkey),
            ("RQ PSN", self.rq_psn),
            ("SQ PSN", self.sq_psn),
            ("Dest QP number", self.dest_qp_num),
            ("QP access flags", flagged(ibv_access_flags, self.qp_access_flags, "IBV_ACCESS_")),
        ]

    def _rest(self) -> list[tuple[str, object]]:
        return [
            ("PKey index", self.pkey_index),
            ("Alt. PKey index", self.alt_pkey_index),
            ("En. SQD async notify", self.en_sqd_async_notify),
            ("SQ draining", self.sq_draining),
            ("Max RD atomic", self.max_rd_atomic),
            ("Max dest. RD atomic", self.max_dest_rd_atomic),
            ("Min RNR timer", self.min_rnr_timer),
            ("Port number", self.port_num),
            ("Timeout", self.timeout),
            ("Retry counter", self.retry_cnt),
            ("RNR retry", self.rnr_retry),
            ("Alt. port number", self.alt_port_num),
            ("Alt. timeout", self.alt_timeout),
            ("Rate limit", self.rate_limit),
        ]

    def __str__(self) -> str:
        """
        @return: a line for each field.
        """
        return (
            table(self._path())
            + "QP caps:\n"
            + table(self._cap.rows(), indent=2)
            + f"AH Attr:\n{self._ah_attr}Alt. AH Attr:\n{self._alt_ah_attr}"
            + table(self._rest())
        )
