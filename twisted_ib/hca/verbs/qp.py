"""
Queue pairs.  Source: rdma-core 65, C{pyverbs/qp.pyx}, C{libibverbs/verbs.c}.
"""

from __future__ import annotations

from typing import Any

import attrs

from twisted_ib import limits
from twisted_ib.hca.core.requests import Capabilities, SendOpcode, SendRequest
from twisted_ib.hca.core.states import ATTRIBUTE_NAMES, QPState, QPType, transitionRule
from twisted_ib.hca.core.work import WorkQueues
from twisted_ib.hca.verbs.addr import GID, AHAttr
from twisted_ib.hca.verbs.ah import addressAttr, addressVector
from twisted_ib.hca.verbs.base import PyverbsCM, PyverbsObject, checked, named, table, u16, u32
from twisted_ib.hca.verbs.cq import PolledQueue
from twisted_ib.hca.verbs.device import Context
from twisted_ib.hca.verbs.enumsdevice import ibv_mtu, ibv_mw_type
from twisted_ib.hca.verbs.enumsqueues import (
    ibv_qp_attr_mask,
    ibv_qp_create_send_ops_flags,
    ibv_qp_init_attr_mask,
    ibv_qp_state,
    ibv_qp_type,
)
from twisted_ib.hca.verbs.errors import PyverbsUserError
from twisted_ib.hca.verbs.hub import locked
from twisted_ib.hca.verbs.mr import MW
from twisted_ib.hca.verbs.mwbind import MWBind
from twisted_ib.hca.verbs.pd import PD
from twisted_ib.hca.verbs.posting import postReceives, postSends, windowBind
from twisted_ib.hca.verbs.qpattr import QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from twisted_ib.hca.verbs.srq import SRQ
from twisted_ib.hca.verbs.verb import VerbsObject, check, closing, unsupported, verb, within
from twisted_ib.hca.verbs.wr import RecvWR, SendWR

_TYPES = {int(kind): kind for kind in QPType}
_STATE = int(ibv_qp_attr_mask.IBV_QP_STATE)
_AV = int(ibv_qp_attr_mask.IBV_QP_AV)
_CUR_STATE = int(ibv_qp_attr_mask.IBV_QP_CUR_STATE)
_PSN_BITS = 0xFFFFFF
#: Attributes that modify and query take and give, by their bits.
_BY_BIT = {int(bit): name for name, bit in ATTRIBUTE_NAMES.items() if name != "qp_state"}

_E = ibv_qp_init_attr_mask
#: Attributes that every HCA has, and that which it must be told.
_EXTENDED = int(
    _E.IBV_QP_INIT_ATTR_PD | _E.IBV_QP_INIT_ATTR_CREATE_FLAGS | _E.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
)
_O = ibv_qp_create_send_ops_flags
_DATAGRAM_OPS = int(_O.IBV_QP_EX_WITH_SEND | _O.IBV_QP_EX_WITH_SEND_WITH_IMM)
_UNRELIABLE_OPS = _DATAGRAM_OPS | int(
    _O.IBV_QP_EX_WITH_RDMA_WRITE
    | _O.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | _O.IBV_QP_EX_WITH_BIND_MW
    | _O.IBV_QP_EX_WITH_LOCAL_INV
    | _O.IBV_QP_EX_WITH_SEND_WITH_INV
)
_RELIABLE_OPS = _UNRELIABLE_OPS | int(
    _O.IBV_QP_EX_WITH_RDMA_READ
    | _O.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | _O.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
)
_OPS = {QPType.RC: _RELIABLE_OPS, QPType.UC: _UNRELIABLE_OPS, QPType.UD: _DATAGRAM_OPS}


class _Consumer:
    """
    What stands behind a queue pair of verbs: nothing that hears of messages.
    """

    def failed(self, reason: Exception) -> None:
        """
        Its completions and events say so.
        """

    def forked(self) -> None:
        """
        It is the parent's.
        """

    def resume(self) -> None:
        """
        Nothing waits.
        """


@attrs.define(eq=False)
class QPRateLimitAttr(PyverbsObject):
    """
    A limit of a queue pair's rate.

    @ivar rate_limit: kbit/s.
    @ivar max_burst_sz: octets that may come at once.
    @ivar typical_pkt_sz: octets of most packets.
    @ivar comp_mask: 0.
    """

    rate_limit: int = attrs.field(default=0, converter=u32)
    max_burst_sz: int = attrs.field(default=0, converter=u32)
    typical_pkt_sz: int = attrs.field(default=0, converter=u16)
    comp_mask: int = attrs.field(default=0, converter=u32)

    def __str__(self) -> str:
        """
        @return: a line for each field.
        """
        return table(
            [
                ("Rate limit (kbps)", self.rate_limit),
                ("Max burst size", self.max_burst_sz),
                ("Typical packet size", self.typical_pkt_sz),
                ("Comp mask", self.comp_mask),
            ]
        )


@attrs.define(eq=False)
class QPAttachCompCntrAttr(PyverbsObject):
    """
    What a counter of completions counts.
    """

    op_mask: int = 0


@attrs.define(eq=False)
class ECE(PyverbsCM):
    """
    What the two ends of a connection can do beyond the standard.

    @ivar vendor_id: whose options these are; 0 is nobody's.
    @ivar options: bits.
    @ivar comp_mask: which of them are valid.
    """

    vendor_id: int = attrs.field(default=0, converter=u32)
    options: int = attrs.field(default=0, converter=u32)
    comp_mask: int = attrs.field(default=0, converter=u32)

    def __str__(self) -> str:
        """
        @return: a heading, then a line for each field.
        """
        rows = [("Vendor ID", self.vendor_id), ("Options", self.options), ("Comp Mask", self.comp_mask)]
        return "ECE:\n" + table([(name, hex(value)) for name, value in rows])


class QP(VerbsObject):
    """
    A queue pair.

    @ivar pd: its protection domain.
    @ivar scq: where its sends complete.
    @ivar rcq: where its receives complete, if elsewhere.
    @ivar srq: where its receives come from, or None.
    """

    _failed = "Failed to create QP"

    def __init__(
        self, creator: Any, init_attr: QPInitAttr | QPInitAttrEx, qp_attr: QPAttr | None = None
    ) -> None:
        """
        Create a queue pair.

        @param creator: a L{PD}, or a L{Context} if C{init_attr} has the domain.
        @param init_attr: its attributes.
        @param qp_attr: if given, the queue pair goes to INIT with it, one of datagrams to RTS.

        @raise PyverbsRDMAError: the attributes can not be (EINVAL), are not supported (EOPNOTSUPP),
            or there are too many queue pairs (ENOMEM).
        """
        super().__init__()
        if not isinstance(init_attr, (QPInitAttr, QPInitAttrEx)):
            raise TypeError(f"Expected QPInitAttr or QPInitAttrEx, got {type(init_attr).__name__}")
        if qp_attr is not None:
            checked(qp_attr, QPAttr)
        self._create(creator, init_attr)
        if qp_attr is not None:
            try:
                if self.qp_type == ibv_qp_type.IBV_QPT_UD:
                    self.to_rts(qp_attr)
                else:
                    self.to_init(qp_attr)
            except BaseException:
                self.close()
                raise

    # -- creation

    @verb()
    def _create(self, creator: Any, init_attr: QPInitAttr | QPInitAttrEx) -> None:
        """
        Create it.
        """
        kind = _TYPES.get(init_attr.qp_type)
        if kind is None:
            raise unsupported(f"{self._failed}: type {init_attr.qp_type}")
        if isinstance(init_attr, QPInitAttrEx):
            self._checkExtended(init_attr, kind)
        pd = self._domain(creator, init_attr)
        scq, rcq, srq = self._queues(pd, init_attr)
        capabilities = self._capabilities(init_attr, srq)
        assert pd.ctx is not None
        self._device = device = pd._device
        self._core = core = device.createQueuePair(_Consumer(), kind)
        try:
            self._work = WorkQueues(
                core,
                pd._core,
                scq._core,
                rcq._core,
                device.timers,
                capabilities,
                None if srq is None else srq._core,
                bool(init_attr.sq_sig_all),
            )
        except BaseException:
            core.close()
            raise
        self._events = events = pd.ctx._events
        core.onEvent = events.add
        self._init_attr = init_attr
        self._sigAll = init_attr.sq_sig_all
        self.pd: PD | None = pd
        self.context: Context | None = creator if isinstance(creator, Context) else None
        self.scq: PolledQueue | None = scq
        self.rcq: PolledQueue | None = rcq
        self.srq: SRQ | None = srq

        def close() -> None:
            """
            Destroy it.
            """
            core.close()
            events.forget(core)

        self._opened(closing(device, close), pd, scq, rcq, srq, self.context)

    def _checkExtended(self, attr: QPInitAttrEx, kind: QPType) -> None:
        """
        @raise PyverbsRDMAError: extended attributes ask for what there is not (EOPNOTSUPP).
        """
        mask = int(attr.comp_mask)
        flags = attr.create_flags if mask & _E.IBV_QP_INIT_ATTR_CREATE_FLAGS else 0
        ops = attr.send_ops_flags if mask & _E.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS else 0
        if mask & ~_EXTENDED or flags or int(ops) & ~_OPS[kind]:
            raise unsupported(self._failed)

    def _domain(self, creator: Any, attr: QPInitAttr | QPInitAttrEx) -> PD:
        """
        @return: the protection domain.
        """
        pd = creator
        if isinstance(creator, Context):
            creator._check()
            named = isinstance(attr, QPInitAttrEx) and attr.comp_mask & _E.IBV_QP_INIT_ATTR_PD
            pd = attr.pd if isinstance(attr, QPInitAttrEx) and named else None
            check(isinstance(pd, PD), f"{self._failed}: no PD")
        if not isinstance(pd, PD):
            raise PyverbsUserError(f"Cannot create QP from {type(creator)}")
        pd._check()
        return pd

    def _queues(
        self, pd: PD, attr: QPInitAttr | QPInitAttrEx
    ) -> tuple[PolledQueue, PolledQueue, SRQ | None]:
        """
        @return: the completion queues, and the shared receive queue.
        """
        check(attr.send_cq is not None and attr.recv_cq is not None, f"{self._failed}: no CQ")
        scq: Any = attr.send_cq
        rcq: Any = attr.recv_cq
        srq: Any = attr.srq
        checked(scq, PolledQueue)
        checked(rcq, PolledQueue)
        if srq is not None:
            checked(srq, SRQ)
        for queue in (scq, rcq, srq):
            if queue is not None:
                queue._check()
                check(queue._device is pd._device, f"{self._failed}: a queue of another device")
        return scq, rcq, srq

    def _capabilities(self, attr: QPInitAttr | QPInitAttrEx, srq: SRQ | None) -> Capabilities:
        """
        @return: the sizes.

        @raise PyverbsRDMAError: one is too large (EINVAL).
        """
        depth, elements = limits.WORK_QUEUE_DEPTH, limits.SCATTER_GATHER_ELEMENTS
        what = f"{self._failed}: max_"
        receives = 0 if srq is not None else attr.max_recv_wr
        return Capabilities(
            within(attr.max_send_wr, 0, depth, what + "send_wr"),
            within(receives, 0, depth, what + "recv_wr"),
            within(attr.max_send_sge, 0, elements, what + "send_sge"),
            within(attr.max_recv_sge, 0, elements, what + "recv_sge"),
            within(attr.max_inline_data, 0, limits.INLINE_DATA, what + "inline_data"),
        )

    def _closed(self) -> None:
        """
        Drop what it refers to.
        """
        self.pd = self.context = self.scq = self.rcq = self.srq = None

    # -- states

    def _step(self, qp_attr: QPAttr, old: QPState, new: QPState) -> None:
        """
        Go a step with the attributes that it requires.
        """
        self._check()
        rule = transitionRule(self._core.type, old, new)
        assert rule is not None
        qp_attr.qp_state = int(new)
        self._modify(qp_attr, int(rule[0]) | _STATE)

    @verb("Failed to modify QP state to init")
    def to_init(self, qp_attr: QPAttr) -> None:
        """
        Go from RESET to INIT.

        @param qp_attr: has the attributes that are needed; its C{qp_state} is set.

        @raise PyverbsRDMAError: it can not be (EINVAL).
        """
        self._step(checked(qp_attr, QPAttr), QPState.RESET, QPState.INIT)

    @verb("Failed to modify QP state to RTR")
    def to_rtr(self, qp_attr: QPAttr) -> None:
        """
        Go to RTR, from RESET or INIT.

        @param qp_attr: has the attributes that are needed; its C{qp_state} is set.

        @raise PyverbsRDMAError: it can not be (EINVAL).
        """
        if self.qp_state != ibv_qp_state.IBV_QPS_INIT:
            self.to_init(qp_attr)
        self._step(checked(qp_attr, QPAttr), QPState.INIT, QPState.RTR)

    @verb("Failed to modify QP state to RTS")
    def to_rts(self, qp_attr: QPAttr) -> None:
        """
        Go to RTS, from RESET, INIT or RTR.

        @param qp_attr: has the attributes that are needed; its C{qp_state} is set.

        @raise PyverbsRDMAError: it can not be (EINVAL).
        """
        if self.qp_state != ibv_qp_state.IBV_QPS_RTR:
            self.to_rtr(qp_attr)
        self._step(checked(qp_attr, QPAttr), QPState.RTR, QPState.RTS)

    @verb("Failed to modify QP")
    def modify(self, qp_attr: QPAttr, comp_mask: int) -> None:
        """
        Change its state or attributes.

        @param qp_attr: has them.
        @param comp_mask: which are meant, bits of C{ibv_qp_attr_mask}.

        @raise PyverbsRDMAError: it can not be (EINVAL); nothing has changed then.
        """
        self._check()
        self._modify(checked(qp_attr, QPAttr), int(comp_mask))

    def _modify(self, attr: QPAttr, mask: int) -> None:
        """
        Change its state or attributes.
        """
        core = self._core
        check(not mask & ~sum(_BY_BIT, _STATE), f"Failed to modify QP: mask {mask:#x}")
        state = core.state
        if mask & _STATE:
            check(attr.qp_state <= QPState.ERR, f"Failed to modify QP: state {attr.qp_state}")
            state = QPState(attr.qp_state)
        values = {name: getattr(attr, name) for bit, name in _BY_BIT.items() if mask & bit}
        for name in ("rq_psn", "sq_psn"):
            if name in values:
                values[name] &= _PSN_BITS
        if mask & _AV:
            address: AHAttr = values["ah_attr"]
            values["ah_attr"] = address.path or addressVector(address, "Failed to modify QP")
        core.modify(state, **values)
        if state is QPState.RESET:
            # As Mellanox' drivers do: what was flushed before would come between what is posted after.
            for queue in (self._work.sendCompletions, self._work.receiveCompletions):
                queue.discard(core.number)

    @verb("Failed to query QP")
    def query(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """
        @param attr_mask: which attributes are wanted, bits of C{ibv_qp_attr_mask}; all come.

        @return: its attributes, and those that it was created with.
        """
        self._check()
        found = self._core.query()
        attr = QPAttr(found["qp_state"], found["cur_qp_state"], 0, 0)
        for name, value in found.items():
            if name == "cap":
                attr.cap = self._sizes()
            elif name == "ah_attr":
                attr.ah_attr = self._address(value)
            elif name == "alt_ah_attr":
                if isinstance(value, AHAttr):
                    attr.alt_ah_attr = value
            elif hasattr(attr, name):
                setattr(attr, name, int(value or 0))
        if not attr.path_mtu and self._core.type is QPType.UD:
            attr.path_mtu = ibv_mtu.IBV_MTU_4096
        return attr, self._created()

    def _sizes(self) -> QPCap:
        """
        @return: its sizes.
        """
        sizes = self._work.capabilities
        return QPCap(sizes.sends, sizes.receives, sizes.pieces, sizes.receivePieces, sizes.inline)

    def _created(self) -> QPInitAttr:
        """
        @return: the attributes that it was created with.
        """
        made = self._init_attr
        return QPInitAttr(
            made.qp_type, made.qp_context, self.scq, self.rcq, self.srq, self._sizes(), self._sigAll
        )

    @staticmethod
    def _address(value: Any) -> AHAttr:
        """
        @param value: an address vector, a path that the communication manager found, or None.

        @return: the address.
        """
        guid = getattr(getattr(value, "peer", None), "guid", None)
        attr = addressAttr(value)
        if guid is not None:
            attr.is_global, attr.port_num, attr.path = 1, 1, value
            attr.dgid = (0xFE80 << 112 | guid).to_bytes(16, "big").hex(":", 2)
        return attr

    # -- work

    @verb("Failed to post send")
    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """
        Post send requests.

        @param wr: the first of a chain.
        @param bad_wr: becomes a copy of the one that could not be posted; those before it are.

        @raise PyverbsRDMAError: the state forbids it or a request can not be (EINVAL), or the send
            queue is full (ENOMEM).
        """
        self._check()
        postSends(self._device, self._work.postSend, checked(wr, SendWR), bad_wr)

    @verb("Failed to post recv")
    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """
        Post receives.

        @param wr: the first of a chain.
        @param bad_wr: becomes a copy of the one that could not be posted; those before it are.

        @raise PyverbsRDMAError: the state forbids it or a receive can not be (EINVAL), or the
            receive queue is full (ENOMEM).
        """
        self._check()
        postReceives(self._work.postReceive, checked(wr, RecvWR), bad_wr)

    @verb("Failed to Bind MW")
    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """
        Post the bind of a type 1 window.  Its rkey is the new one at once.

        @param mw: the window.
        @param mw_bind: what it shall open; a length of 0 closes it.

        @raise PyverbsRDMAError: the window is of type 2 or the state forbids it (EINVAL), or the send
            queue is full (ENOMEM).
        """
        self._check()
        checked(mw, MW)._check()
        bind = checked(mw_bind, MWBind)
        check(mw.type == ibv_mw_type.IBV_MW_TYPE_1, "Failed to Bind MW: it is not of type 1")
        memory = self._device.memory
        key = memory.promiseKey(mw._core)
        try:
            self._work.postSend(
                SendRequest(
                    bind.wr_id,
                    SendOpcode.BIND_MW,
                    (),
                    int(bind.send_flags),
                    bind=windowBind(mw, bind.info, key),
                )
            )
        except BaseException:
            memory.breakPromise(mw._core, key)
            raise
        mw._promised = key

    @verb("Failed to attach QP to multicast group")
    def attach_mcast(self, gid: GID | str, lid: int = 0) -> None:
        """
        Have datagrams to a multicast group received.  Not in pyverbs; C{ibv_attach_mcast}.

        @param gid: the group.
        @param lid: 0.

        @raise PyverbsRDMAError: it is no group, or the queue pair not of datagrams (EINVAL), or there
            are too many (ENOMEM).
        """
        self._check()
        self._device.paths.attach(self._core, _group(gid))

    @verb("Failed to detach QP from multicast group")
    def detach_mcast(self, gid: GID | str, lid: int = 0) -> None:
        """
        Have them received no more.

        @param gid: the group.
        @param lid: 0.

        @raise PyverbsRDMAError: they were not (EINVAL).
        """
        self._check()
        self._device.paths.detach(self._core, _group(gid))

    # -- what this HCA has not

    def modify_rate_limit(self, attr: QPRateLimitAttr) -> None:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP).
        """
        raise unsupported("Failed to modify QP rate limit")

    def attach_comp_cntr(self, comp_cntr: object, attr: QPAttachCompCntrAttr) -> None:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP).
        """
        raise unsupported("Failed to attach comp cntr to QP")

    def set_ece(self, ece: ECE) -> None:
        """
        @param ece: of no vendor.

        @raise PyverbsRDMAError: it is of some (EOPNOTSUPP).
        """
        if ece.vendor_id:
            raise unsupported("Failed to set ECE")

    def query_ece(self) -> ECE:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP).
        """
        raise unsupported("Failed to query ECE")

    def query_data_in_order(self, op: int, flags: int = 0) -> int:
        """
        @return: 0: no order is promised in which the octets of a message arrive.
        """
        return 0

    # -- what it is

    @property
    def qp_type(self) -> int:
        """
        One of C{ibv_qp_type}.
        """
        self._check()
        return int(self._core.type)

    @property
    def qp_state(self) -> int:
        """
        One of C{ibv_qp_state}.
        """
        self._check()
        return int(self._core.state)

    @property
    def qp_num(self) -> int:
        """
        Its number.
        """
        self._check()
        return self._core.number

    @property
    def qp(self) -> int:
        """
        A number that stands for it.
        """
        return id(self)

    @locked
    def __str__(self) -> str:
        """
        @return: a line for each field.
        """
        return table(
            [
                ("QP type", named(ibv_qp_type, self.qp_type, "IBV_QPT_")),
                ("  number", self.qp_num),
                ("  state", named(ibv_qp_state, self.qp_state, "IBV_QPS_")),
            ]
        )


def _group(gid: GID | str) -> int:
    """
    @return: a multicast GID as a number.
    """
    return int.from_bytes((gid if isinstance(gid, GID) else GID(gid)).raw, "big")
