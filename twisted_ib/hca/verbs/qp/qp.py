"""
Queue pairs.  Source: rdma-core 65, C{pyverbs/qp.pyx}, C{libibverbs/verbs.c}.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.hca.base.states import ATTRIBUTE_NAMES, QPState, QPType, transitionRule
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.hca.verbs.base.addr import GID, AHAttr
from twisted_ib.hca.verbs.base.base import checked, named, table
from twisted_ib.hca.verbs.base.hub import locked
from twisted_ib.hca.verbs.base.mwbind import MWBind
from twisted_ib.hca.verbs.base.posting import postReceives, postSends, windowBind
from twisted_ib.hca.verbs.base.verb import check, closing, unsupported, verb
from twisted_ib.hca.verbs.base.wr import RecvWR, SendWR
from twisted_ib.hca.verbs.enums.device import ibv_mtu, ibv_mw_type
from twisted_ib.hca.verbs.enums.queues import ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type
from twisted_ib.hca.verbs.objects.ah import addressAttr, addressVector
from twisted_ib.hca.verbs.objects.cq import PolledQueue
from twisted_ib.hca.verbs.objects.device import Context
from twisted_ib.hca.verbs.objects.mr import MW
from twisted_ib.hca.verbs.objects.pd import PD
from twisted_ib.hca.verbs.objects.srq import SRQ
from twisted_ib.hca.verbs.qp.qpattr import QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from twisted_ib.hca.verbs.qp.qpcreation import FAILED, capabilities, checkExtended, domain, queues
from twisted_ib.hca.verbs.qp.qplacks import LackingQP

_TYPES = {int(kind): kind for kind in QPType}
_STATE = int(ibv_qp_attr_mask.IBV_QP_STATE)
_AV = int(ibv_qp_attr_mask.IBV_QP_AV)
_CUR_STATE = int(ibv_qp_attr_mask.IBV_QP_CUR_STATE)
_PSN_BITS = 0xFFFFFF
#: Attributes that modify and query take and give, by their bits.
_BY_BIT = {int(bit): name for name, bit in ATTRIBUTE_NAMES.items() if name != "qp_state"}


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


class QP(LackingQP):
    """
    A queue pair.

    @ivar pd: its protection domain.
    @ivar scq: where its sends complete.
    @ivar rcq: where its receives complete, if elsewhere.
    @ivar srq: where its receives come from, or None.
    """

    _failed = FAILED

    def __init__(
        self, creator: Any, init_attr: QPInitAttr | QPInitAttrEx, qp_attr: QPAttr | None = None
    ) -> None:
        """
        Create a queue pair.

        @param creator: a L{PD}, or a L{Context} if C{init_attr} has the domain.
        @param init_attr: its attributes.
        @param qp_attr: if given, the queue pair goes to INIT with it, one of datagrams to RTS.

        @raise PyverbsRDMAError: the attributes cannot be (EINVAL), are not supported (EOPNOTSUPP),
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
        kind = _TYPES.get(init_attr.qp_type)
        if kind is None:
            raise unsupported(f"{self._failed}: type {init_attr.qp_type}")
        if isinstance(init_attr, QPInitAttrEx):
            checkExtended(init_attr, kind)
        pd = domain(creator, init_attr)
        scq, rcq, srq = queues(pd, init_attr)
        sizes = capabilities(init_attr, srq)
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
                sizes,
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
            core.close()
            events.forget(core)

        self._opened(closing(device, close), pd, scq, rcq, srq, self.context)

    def _closed(self) -> None:
        self.pd = self.context = self.scq = self.rcq = self.srq = None

    # -- states

    def _step(self, qp_attr: QPAttr, old: QPState, new: QPState) -> None:
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

        @raise PyverbsRDMAError: it cannot be (EINVAL).
        """
        self._step(checked(qp_attr, QPAttr), QPState.RESET, QPState.INIT)

    @verb("Failed to modify QP state to RTR")
    def to_rtr(self, qp_attr: QPAttr) -> None:
        """
        Go to RTR, from RESET or INIT.

        @param qp_attr: has the attributes that are needed; its C{qp_state} is set.

        @raise PyverbsRDMAError: it cannot be (EINVAL).
        """
        if self.qp_state != ibv_qp_state.IBV_QPS_INIT:
            self.to_init(qp_attr)
        self._step(checked(qp_attr, QPAttr), QPState.INIT, QPState.RTR)

    @verb("Failed to modify QP state to RTS")
    def to_rts(self, qp_attr: QPAttr) -> None:
        """
        Go to RTS, from RESET, INIT or RTR.

        @param qp_attr: has the attributes that are needed; its C{qp_state} is set.

        @raise PyverbsRDMAError: it cannot be (EINVAL).
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

        @raise PyverbsRDMAError: it cannot be (EINVAL); nothing has changed then.
        """
        self._check()
        self._modify(checked(qp_attr, QPAttr), int(comp_mask))

    def _modify(self, attr: QPAttr, mask: int) -> None:
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
        sizes = self._work.capabilities
        return QPCap(sizes.sends, sizes.receives, sizes.pieces, sizes.receivePieces, sizes.inline)

    def _created(self) -> QPInitAttr:
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
        gid = getattr(getattr(value, "peer", None), "gid", None)
        attr = addressAttr(value)
        if gid is not None:
            attr.is_global, attr.port_num, attr.path = 1, 1, value
            attr.dgid = gid.to_bytes(16, "big").hex(":", 2)
        return attr

    # -- work

    @verb("Failed to post send")
    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """
        Post send requests.

        @param wr: the first of a chain.
        @param bad_wr: becomes a copy of the one that could not be posted; those before it are.

        @raise PyverbsRDMAError: the state forbids it or a request cannot be (EINVAL), or the send
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

        @raise PyverbsRDMAError: the state forbids it or a receive cannot be (EINVAL), or the
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
    return int.from_bytes((gid if isinstance(gid, GID) else GID(gid)).raw, "big")
