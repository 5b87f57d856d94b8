"""
The attributes of queue pairs: sizes, creation, modify and query.

Source: rdma-core 65, C{pyverbs/qp.pyx}, C{libibverbs/verbs.h}.
"""

from __future__ import annotations

import attrs

from twisted_ib.verbs.pyverbs.base.addr import AHAttr
from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, checked, flagged, named, table, u8, u16, u32
from twisted_ib.verbs.pyverbs.enums.device import ibv_access_flags, ibv_mtu
from twisted_ib.verbs.pyverbs.enums.queues import (
    ibv_mig_state,
    ibv_qp_create_flags,
    ibv_qp_init_attr_mask,
    ibv_qp_state,
    ibv_qp_type,
)

# Any verbs object: the classes of queues and domains are in modules that import this one.  Their kinds are
# checked at creation.
_object = attrs.validators.optional(attrs.validators.instance_of(PyverbsObject))


@attrs.define(eq=False)
class QPCap(PyverbsObject):
    """
    The sizes of a queue pair (C{struct ibv_qp_cap}).

    @ivar max_send_wr: outstanding send requests.
    @ivar max_recv_wr: outstanding receives.
    @ivar max_send_sge: gather elements of a send request.
    @ivar max_recv_sge: scatter elements of a receive.
    @ivar max_inline_data: octets of an inline request.
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
        rows = [(name.replace("WR", "wrs").replace("SGE", "sges"), value) for name, value in self.rows()]
        return table(rows, 20)


def _sizes(cap: QPCap | None) -> QPCap:
    # A copy: C's structure contains the sizes, it does not point to them.
    return QPCap(0, 0, 0, 0, 0) if cap is None else attrs.evolve(checked(cap, QPCap))


class _Size:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, attr: _Sized, owner: type) -> int:
        size: int = getattr(attr._cap, self.name)
        return size

    def __set__(self, attr: _Sized, value: int) -> None:
        setattr(attr._cap, self.name, value)


class _Sized(PyverbsObject):
    """
    Base of objects that contain the sizes of a queue pair.

    @ivar max_send_wr: as in L{QPCap}; the others likewise.
    """

    _cap: QPCap

    @property
    def cap(self) -> QPCap:
        # A copy of the sizes; setting None has no effect.
        return _sizes(self._cap)

    @cap.setter
    def cap(self, val: QPCap | None) -> None:
        if val is not None:
            self._cap = _sizes(val)


@attrs.define(eq=False, slots=False)
class _InitAttr(_Sized):
    qp_type: int = attrs.field(default=ibv_qp_type.IBV_QPT_UD, converter=u32)
    qp_context: object = None
    send_cq: PyverbsObject | None = attrs.field(default=None, alias="scq", validator=_object)
    recv_cq: PyverbsObject | None = attrs.field(default=None, alias="rcq", validator=_object)
    srq: PyverbsObject | None = attrs.field(default=None, validator=_object)
    _cap: QPCap = attrs.field(default=None, converter=_sizes)
    # pyverbs/qp.pyx: 1 here and 0 in QPInitAttrEx.  IBTA vol. 1 10.7.3.1: an error completes in any case.
    sq_sig_all: int = attrs.field(default=1, converter=u32)

    max_send_wr = _Size()
    max_recv_wr = _Size()
    max_send_sge = _Size()
    max_recv_sge = _Size()
    max_inline_data = _Size()

    def __str__(self) -> str:
        rows = [
            ("QP type", named(ibv_qp_type, self.qp_type, "IBV_QPT_")),
            ("SQ sig. all", self.sq_sig_all),
        ]
        return table(rows, 20) + "QP caps:\n"


@attrs.define(eq=False, slots=False)
class QPInitAttr(_InitAttr):
    """
    The attributes of a new queue pair (C{struct ibv_qp_init_attr}).

    @ivar qp_type: one of C{ibv_qp_type}.
    @ivar qp_context: any object, for the program.
    @ivar send_cq: the completion queue of sends (the parameter C{scq}), or None.
    @ivar recv_cq: the completion queue of receives (the parameter C{rcq}), or None.
    @ivar srq: the shared receive queue, or None.
    @ivar cap: the sizes; zeros if None was given.
    @ivar sq_sig_all: 1 if each send request generates a completion, signaled or not.
    """

    def __str__(self) -> str:
        return super().__str__() + table(self._cap.rows(), 20, 4)


@attrs.define(eq=False, slots=False)
class QPInitAttrEx(_InitAttr):
    """
    The attributes of a new queue pair, with the extended ones (C{struct ibv_qp_init_attr_ex}).

    @ivar cap: as in L{QPInitAttr}; so are C{qp_type}, C{qp_context}, C{send_cq}, C{recv_cq}, C{srq} and
        C{sq_sig_all}.
    @ivar comp_mask: which of the following are valid, bits of C{ibv_qp_init_attr_mask}.
    @ivar create_flags: bits of C{ibv_qp_create_flags}.
    @ivar max_tso_header: octets of the longest header of segmented sends.
    @ivar source_qpn: the source queue pair number, with C{IBV_QP_CREATE_SOURCE_QPN}.
    @ivar hash_conf: the receive hash; C{ind_table} its indirection table.
    @ivar send_ops_flags: the operations that will be posted, bits of C{ibv_qp_create_send_ops_flags}.
    """

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

    def mask_to_str(self, mask: int) -> str:
        """
        @return: the names of bits of C{ibv_qp_init_attr_mask}.
        """
        return flagged(ibv_qp_init_attr_mask, mask, "IBV_QP_INIT_ATTR_")

    def flags_to_str(self, flags: int) -> str:
        """
        @return: the names of bits of C{ibv_qp_create_flags}.
        """
        return flagged(ibv_qp_create_flags, flags, "IBV_QP_CREATE_")

    def __str__(self) -> str:
        more = [
            ("comp mask", self.mask_to_str(self.comp_mask)),
            ("create flags", self.flags_to_str(self.create_flags)),
            ("max TSO header", self.max_tso_header),
            ("Source QPN", self.source_qpn),
        ]
        sizes = [("  " + name, value) for name, value in self._cap.rows()]
        return super().__str__() + table(sizes, 20) + table(more, 20)


def _nowhere() -> AHAttr:
    # AHAttr's default port is 1; the zeroed C structure has 0.
    return AHAttr(port_num=0)


@attrs.define(eq=False, slots=False)
class QPAttr(_Sized):
    """
    The attributes of a queue pair for modify and query (C{struct ibv_qp_attr}; IBTA vol. 1 10.3.1).  The four
    parameters suit the transition from RESET to INIT; all others begin as 0.

    @ivar qp_state: the new state, one of C{ibv_qp_state}.
    @ivar cur_qp_state: the state that the program expects it to be in.
    @ivar port_num: the local port, from 1 on.
    @ivar path_mtu: one of C{ibv_mtu}.
    @ivar path_mig_state: one of C{ibv_mig_state}.
    @ivar qkey: the Q_Key, of a datagram queue pair.
    @ivar rq_psn: the first PSN to be received, 24 bits.
    @ivar sq_psn: the first PSN to be sent, 24 bits.
    @ivar dest_qp_num: the peer's queue pair number.
    @ivar qp_access_flags: the operations that the peer may use, bits of C{ibv_access_flags}.
    @ivar pkey_index: the P_Key's slot in the port's table; C{alt_pkey_index} that of the alternate path.
    @ivar en_sqd_async_notify: 1 asks for an event when the send queue has drained.
    @ivar sq_draining: 1 while it drains (query only).
    @ivar max_rd_atomic: outstanding READs and atomics to the peer.
    @ivar max_dest_rd_atomic: outstanding READs and atomics from the peer.
    @ivar min_rnr_timer: the time that the peer waits after an RNR NAK, a code of 5 bits.
    @ivar timeout: the local ACK timeout: C{4.096 * 2**timeout} microseconds, 0 for none.
    @ivar retry_cnt: retransmissions after a timeout, up to 7.
    @ivar rnr_retry: retransmissions after an RNR NAK; 7 is no limit.
    @ivar alt_port_num: the local port of the alternate path, C{alt_timeout} its timeout.
    @ivar rate_limit: kbit/s, of a raw packet queue pair.
    """

    qp_state: int = attrs.field(default=ibv_qp_state.IBV_QPS_INIT, converter=u32)
    cur_qp_state: int = attrs.field(default=ibv_qp_state.IBV_QPS_RESET, converter=u32)
    port_num: int = attrs.field(default=1, converter=u8)
    path_mtu: int = attrs.field(default=ibv_mtu.IBV_MTU_1024, converter=u32)
    path_mig_state: int = attrs.field(default=0, converter=u32, init=False)
    qkey: int = attrs.field(default=0, converter=u32, init=False)
    # IBTA vol. 1 chapter 12: REQ and REP announce the PSN that their sender expects first, so rq_psn is this
    # side's choice and sq_psn the peer's.
    rq_psn: int = attrs.field(default=0, converter=u32, init=False)
    sq_psn: int = attrs.field(default=0, converter=u32, init=False)
    dest_qp_num: int = attrs.field(default=0, converter=u32, init=False)
    qp_access_flags: int = attrs.field(default=0, converter=u32, init=False)
    pkey_index: int = attrs.field(default=0, converter=u16, init=False)
    alt_pkey_index: int = attrs.field(default=0, converter=u16, init=False)
    en_sqd_async_notify: int = attrs.field(default=0, converter=u8, init=False)
    sq_draining: int = attrs.field(default=0, converter=u8, init=False)
    # The requester's depth must not exceed the peer's max_dest_rd_atomic.  If that is 0, each READ and atomic
    # is answered with NAK "invalid request" (Linux rxe_resp.c check_op_valid).
    max_rd_atomic: int = attrs.field(default=0, converter=u8, init=False)
    max_dest_rd_atomic: int = attrs.field(default=0, converter=u8, init=False)
    # IBTA vol. 1 9.7.5.2.8: code 0 is the longest wait, 655.36 ms; Linux' CM sets it by default.
    min_rnr_timer: int = attrs.field(default=0, converter=u8, init=False)
    # IBTA vol. 1 9.7.6.1.3: 0 disables the timer, so that a lost packet stalls the queue pair for ever.
    timeout: int = attrs.field(default=0, converter=u8, init=False)
    # IBTA vol. 1 9.9.2.1.1: 7 is seven here; Linux rxe_comp.c treats it as no limit, as with rnr_retry.
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
        A copy of the peer's address; setting None has no effect.
        """
        # In C the address is part of the structure: a change of the copy has no effect until it is set.
        return self._ah_attr.copy()

    @ah_attr.setter
    def ah_attr(self, val: AHAttr | None) -> None:
        if val is not None:
            self._ah_attr = checked(val, AHAttr).copy()

    @property
    def alt_ah_attr(self) -> AHAttr:
        """
        A copy of the peer's address on the alternate path; setting None has no effect.
        """
        return self._alt_ah_attr.copy()

    @alt_ah_attr.setter
    def alt_ah_attr(self, val: AHAttr | None) -> None:
        if val is not None:
            self._alt_ah_attr = checked(val, AHAttr).copy()

    def _path(self) -> list[tuple[str, object]]:
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
        return (
            table(self._path())
            + "QP caps:\n"
            + table(self._cap.rows(), indent=2)
            + f"AH Attr:\n{self._ah_attr}Alt. AH Attr:\n{self._alt_ah_attr}"
            + table(self._rest())
        )
