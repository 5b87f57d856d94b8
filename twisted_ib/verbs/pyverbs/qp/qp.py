"""
Queue pairs.  Source: rdma-core 65, C{pyverbs/qp.pyx}, C{libibverbs/verbs.c}.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.hca.base.states import ATTRIBUTE_NAMES, QPState, QPType, transitionRule
from twisted_ib.hca.base.traits import Traits
from twisted_ib.hca.queues.completion import CompletionQueue
from twisted_ib.hca.queues.requests import Capabilities, SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues, operationsOf
from twisted_ib.verbs.core.hub import hub, locked
from twisted_ib.verbs.pyverbs.base.addr import GID, AHAttr
from twisted_ib.verbs.pyverbs.base.base import checked, named, table
from twisted_ib.verbs.pyverbs.base.errors import PyverbsUserError
from twisted_ib.verbs.pyverbs.base.posting import postPlain, postReceive, postSend, refused, windowBind
from twisted_ib.verbs.pyverbs.base.verb import (
    VerbsObject,
    check,
    closing,
    unsupported,
    verb,
    within,
)
from twisted_ib.verbs.pyverbs.base.wr import MWBind, RecvWR, SendWR
from twisted_ib.verbs.pyverbs.enums.device import ibv_mtu, ibv_mw_type
from twisted_ib.verbs.pyverbs.enums.queues import (
    ibv_qp_attr_mask,
    ibv_qp_create_send_ops_flags,
    ibv_qp_init_attr_mask,
    ibv_qp_state,
    ibv_qp_type,
)
from twisted_ib.verbs.pyverbs.objects.ah import addressAttr, addressVector
from twisted_ib.verbs.pyverbs.objects.cq import PolledQueue
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.mr import MW
from twisted_ib.verbs.pyverbs.objects.pd import PD
from twisted_ib.verbs.pyverbs.objects.srq import SRQ
from twisted_ib.verbs.pyverbs.qp.qpattr import QPAttr, QPCap, QPInitAttr, QPInitAttrEx

if TYPE_CHECKING:
    from twisted_ib.verbs.pyverbs.objects.unsupported import ECE, QPAttachCompCntrAttr, QPRateLimitAttr

FAILED = "Failed to create QP"
#: An element of a scatter/gather list (C{struct ibv_sge}).
_ELEMENT_BYTES = 16

_E = ibv_qp_init_attr_mask
#: The extended attributes that are supported.  create_flags must be 0, but programs set its bit.
_EXTENDED = int(
    _E.IBV_QP_INIT_ATTR_PD | _E.IBV_QP_INIT_ATTR_CREATE_FLAGS | _E.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
)
# The flag of each operation, by the names that the two enumerations share.
_FLAGS = {opcode: int(ibv_qp_create_send_ops_flags[f"IBV_QP_EX_WITH_{opcode.name}"]) for opcode in SendOpcode}

#: Operations of L{postPlain}; datagrams have not both.
_PLAIN = frozenset((SendOpcode.SEND, SendOpcode.RDMA_WRITE))
_sendRefused, _receiveRefused = (partial(refused, f"Failed to post {each}") for each in ("send", "recv"))

_TYPES = {int(kind): kind for kind in QPType}
_STATE = int(ibv_qp_attr_mask.IBV_QP_STATE)
_AV = int(ibv_qp_attr_mask.IBV_QP_AV)
# IBTA vol. 1 9.7.1: 24 bits; C's fields have 32, and programs put random numbers there.
_PSN_BITS = 0xFFFFFF
#: The attributes of modify and query, by their bits.
_BY_BIT = {int(bit): name for name, bit in ATTRIBUTE_NAMES.items() if name != "qp_state"}


def checkExtended(attr: QPInitAttrEx, kind: QPType, traits: Traits) -> None:
    """
    @param traits: of the device's fabric.
    @raise PyverbsRDMAError: an extended attribute asks for an unsupported feature (EOPNOTSUPP).
    """
    mask = int(attr.comp_mask)
    # Fields whose bit of comp_mask is not set are ignored, as in C.
    flags = attr.create_flags if mask & _E.IBV_QP_INIT_ATTR_CREATE_FLAGS else 0
    ops = attr.send_ops_flags if mask & _E.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS else 0
    # man ibv_wr_post(3): creation fails if the type of queue pair cannot do one of the operations.
    # Its table has SEND with invalidate for UC, for which IBTA vol. 1 9.2.1 has no opcode.
    known = sum(_FLAGS[opcode] for opcode in operationsOf(kind, traits))
    if mask & ~_EXTENDED or flags or int(ops) & ~known:
        raise unsupported(FAILED)


def domain(creator: Any, attr: QPInitAttr | QPInitAttrEx) -> PD:
    """
    @return: the protection domain: the creator, or the attribute of that name.
    """
    pd = creator
    if isinstance(creator, Context):
        creator._check()
        # A context has no domain of its own; with ibv_create_qp_ex it comes in the attributes.
        named = isinstance(attr, QPInitAttrEx) and attr.comp_mask & _E.IBV_QP_INIT_ATTR_PD
        pd = attr.pd if isinstance(attr, QPInitAttrEx) and named else None
        check(isinstance(pd, PD), f"{FAILED}: no PD")
    if not isinstance(pd, PD):
        raise PyverbsUserError(f"Cannot create QP from {type(creator)}")
    pd._check()
    return pd


def queues(pd: PD, attr: QPInitAttr | QPInitAttrEx) -> tuple[PolledQueue, PolledQueue, SRQ | None]:
    """
    @return: the completion queues of sends and receives, and the shared receive queue.
    """
    # IBTA vol. 1 10.2.4: each work queue has a completion queue, also one that nothing is posted to.
    check(attr.send_cq is not None and attr.recv_cq is not None, f"{FAILED}: no CQ")
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
            # IBTA vol. 1 10.2.3: objects of one queue pair belong to one HCA.
            check(queue._device is pd._device, f"{FAILED}: a queue of another device")
    return scq, rcq, srq


def capabilities(attr: QPInitAttr | QPInitAttrEx, srq: SRQ | None) -> Capabilities:
    """
    @return: the sizes, as the core has them.
    @raise PyverbsRDMAError: one is out of range (EINVAL).
    """
    depth, elements = limits.WORK_QUEUE_DEPTH, limits.SCATTER_GATHER_ELEMENTS
    what = f"{FAILED}: max_"
    # man ibv_create_qp(3): max_recv_wr and max_recv_sge are ignored if there is an SRQ.
    receives = 0 if srq is not None else attr.max_recv_wr
    # Linux rxe_qp.c, rxe_qp_init_req: a request has inline what its elements would take, asked for or not.
    # Programs send inline without a look at what they got: rdma_xclient.
    inline = max(attr.max_inline_data, attr.max_send_sge * _ELEMENT_BYTES)
    return Capabilities(
        within(attr.max_send_wr, 0, depth, what + "send_wr"),
        within(receives, 0, depth, what + "recv_wr"),
        within(attr.max_send_sge, 0, elements, what + "send_sge"),
        within(attr.max_recv_sge, 0, elements, what + "recv_sge"),
        within(inline, 0, limits.INLINE_DATA, what + "inline_data"),
    )


class _Consumer:
    """
    The stream interface of a core queue pair, of which verbs have no use.
    """

    def failed(self, reason: Exception) -> None:
        pass  # Completions and asynchronous events tell the program.

    def forked(self) -> None:
        pass  # The objects are the parent's.

    def resume(self) -> None:
        pass  # Verbs report a full queue at once (ENOMEM).


class QP(VerbsObject):
    """
    A queue pair (IBTA vol. 1 10.2.4).

    @ivar scq: the completion queue of its sends.
    @ivar rcq: that of its receives.
    @ivar srq: the shared receive queue, or None.
    """

    _failed = FAILED

    def __init__(
        self, creator: Any, init_attr: QPInitAttr | QPInitAttrEx, qp_attr: QPAttr | None = None
    ) -> None:
        """
        Create a queue pair.

        @param creator: a L{PD}, or a L{Context} if C{init_attr} has the domain.
        @param qp_attr: if given, the queue pair goes to INIT with these attributes, a datagram queue pair to
            RTS.
        @raise PyverbsRDMAError: the attributes are invalid (EINVAL) or not supported (EOPNOTSUPP), or there
            are too many queue pairs (ENOMEM).
        """
        super().__init__()
        if not isinstance(init_attr, (QPInitAttr, QPInitAttrEx)):
            raise TypeError(f"Expected QPInitAttr or QPInitAttrEx, got {type(init_attr).__name__}")
        if qp_attr is not None:
            checked(qp_attr, QPAttr)
        self._create(creator, init_attr)
        if qp_attr is not None:
            try:
                # pyverbs/qp.pyx: as far towards RTS as possible; a connected queue pair needs the peer's
                # number for RTR.
                if self.qp_type == ibv_qp_type.IBV_QPT_UD:
                    self.to_rts(qp_attr)
                else:
                    self.to_init(qp_attr)
            # The constructor fails as a whole, where pyverbs leaves a queue pair in RESET to the garbage
            # collector.
            except BaseException:
                self.close()
                raise

    # -- creation

    @verb()
    def _create(self, creator: Any, init_attr: QPInitAttr | QPInitAttrEx) -> None:
        kind = _TYPES.get(init_attr.qp_type)
        pd = domain(creator, init_attr)
        traits = pd._device.traits
        if kind is None or kind not in traits.services:
            raise unsupported(f"{self._failed}: type {init_attr.qp_type}")
        if isinstance(init_attr, QPInitAttrEx):
            checkExtended(init_attr, kind, traits)
        scq, rcq, srq = queues(pd, init_attr)
        sizes = capabilities(init_attr, srq)
        assert pd.ctx is not None
        self._device = device = pd._device
        self._core = core = device.createQueuePair(_Consumer(), kind, pd._core)
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
        work = self._work
        isPlain = sizes.pieces and work.operations.keys() >= _PLAIN
        self._postSend = partial(postPlain if isPlain else postSend, device, work)
        self._postReceive = partial(postReceive, work.postReceive)
        self._events = events = pd.ctx._events
        # IBTA vol. 1 11.6.3.1: affiliated events, COMM_EST and SQ_DRAINED among them.
        core.onEvent = events.add
        # A program of verbs keeps RTS and its receives when the peer's process ends, as with an adapter.
        core.failsWithPath = False
        self._init_attr = init_attr
        self._sigAll = init_attr.sq_sig_all
        self.pd: PD | None = pd
        self.context: Context | None = creator if isinstance(creator, Context) else None
        self.scq: PolledQueue | None = scq
        self.rcq: PolledQueue | None = rcq
        self.srq: SRQ | None = srq

        # A plain function of core objects only: see VerbsObject._opened.
        completionQueues = {scq._core, rcq._core}

        def close() -> None:
            core.close()
            # As rdma-core's providers for hardware, as mlx5_destroy_qp in providers/mlx5/verbs.c: programs
            # free what wr_id points to, as libfabric's does.
            for each in completionQueues:
                each.discard(core.number)
            # Events of a destroyed queue pair would name an object that the program no longer has.
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
        # Only the required attributes, as _get_comp_mask in pyverbs/qp.pyx: the optional ones keep their
        # values.
        self._modify(qp_attr, int(rule[0]) | _STATE)

    @verb("Failed to modify QP state to init")
    def to_init(self, qp_attr: QPAttr) -> None:
        """
        Modify from RESET to INIT.

        @param qp_attr: the attributes that the transition needs; its C{qp_state} is set.
        @raise PyverbsRDMAError: the transition or an attribute is invalid (EINVAL); so too in L{to_rtr} and
            L{to_rts}.
        """
        self._step(checked(qp_attr, QPAttr), QPState.RESET, QPState.INIT)

    @verb("Failed to modify QP state to RTR")
    def to_rtr(self, qp_attr: QPAttr) -> None:
        """
        Modify to RTR, from RESET or INIT; parameters as in L{to_init}.
        """
        # pyverbs/qp.pyx: any other state is taken for RESET.
        if self.qp_state != ibv_qp_state.IBV_QPS_INIT:
            self.to_init(qp_attr)
        self._step(checked(qp_attr, QPAttr), QPState.INIT, QPState.RTR)

    @verb("Failed to modify QP state to RTS")
    def to_rts(self, qp_attr: QPAttr) -> None:
        """
        Modify to RTS, from RESET, INIT or RTR; parameters as in L{to_init}.
        """
        if self.qp_state != ibv_qp_state.IBV_QPS_RTR:
            self.to_rtr(qp_attr)
        self._step(checked(qp_attr, QPAttr), QPState.RTR, QPState.RTS)

    @verb("Failed to modify QP")
    def modify(self, qp_attr: QPAttr, comp_mask: int) -> None:
        """
        Change the state or attributes.

        @param comp_mask: which attributes are valid, bits of C{ibv_qp_attr_mask}.
        @raise PyverbsRDMAError: the transition or an attribute is invalid (EINVAL); nothing changes then.
        """
        self._check()
        self._modify(checked(qp_attr, QPAttr), int(comp_mask))

    def _modify(self, attr: QPAttr, mask: int) -> None:
        core = self._core
        check(not mask & ~sum(_BY_BIT, _STATE), f"Failed to modify QP: mask {mask:#x}")
        state = core.state
        if mask & _STATE:
            # IBV_QPS_UNKNOWN is a result of a query only.
            check(attr.qp_state <= QPState.ERR, f"Failed to modify QP: state {attr.qp_state}")
            state = QPState(attr.qp_state)
        values = {name: getattr(attr, name) for bit, name in _BY_BIT.items() if mask & bit}
        for name in ("rq_psn", "sq_psn"):
            if name in values:
                values[name] &= _PSN_BITS
        if mask & _AV:
            address: AHAttr = values["ah_attr"]
            # The path that the communication manager has resolved is kept: address resolution need not run
            # again, and with its GID alone a host with several HCAs would be ambiguous.
            values["ah_attr"] = address.path or addressVector(address, self._device, "Failed to modify QP")
        # IBTA vol. 1 10.3.1: the core checks the transition table before it changes anything.
        core.modify(state, **values)
        if state is QPState.RESET:
            # As Mellanox' drivers (mlx5_cq_clean): flushed completions of before would mix with those of
            # requests that are posted from now on.
            for queue in (self._work.sendCompletions, self._work.receiveCompletions):
                if isinstance(queue, CompletionQueue):
                    queue.discard(core.number)

    @verb("Failed to query QP")
    def query(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """
        @param attr_mask: the wanted attributes, bits of C{ibv_qp_attr_mask}; all are returned.
        @return: the present attributes, and those of the creation.
        """
        self._check()
        found = self._core.query()
        # Not QPAttr's defaults, which are for RESET to INIT.
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
        # A UD queue pair is given no path MTU; its datagrams are one packet of up to the port's MTU (IBTA
        # vol. 1 9.8.3).
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
        # A resolved path of the communication manager is no address vector; it is passed through C{path}, so
        # that a program may modify another queue pair with what it queried.
        gid = getattr(getattr(value, "peer", None), "gid", None)
        attr = addressAttr(value)
        if gid is not None:
            attr.is_global, attr.port_num, attr.path = 1, 1, value
            attr.dgid = gid.to_bytes(16, "big").hex(":", 2)
        return attr

    # -- work

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """
        Post send requests.

        @param wr: the first of a chain.
        @param bad_wr: is overwritten with the request that failed; those before it are posted.
        @raise PyverbsRDMAError: the state forbids it or a request is invalid (EINVAL), or the send queue is
            full (ENOMEM).
        """
        if self._closer is None:
            self._check()
        if not isinstance(wr, SendWR):
            checked(wr, SendWR)
        # IBTA vol. 1 10.3.1: refused before RTS; in SQE and ERR accepted and flushed.
        hub.post(self._postSend, wr, _sendRefused, bad_wr)

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """
        Post receives; parameters as in L{post_send}.

        @raise PyverbsRDMAError: the state forbids it or a request is invalid (EINVAL), or the receive queue
            is full (ENOMEM).
        """
        if self._closer is None:
            self._check()
        if not isinstance(wr, RecvWR):
            checked(wr, RecvWR)
        # IBTA vol. 1 10.3.1: allowed from INIT on, so that receives are there before the peer can send.
        hub.post(self._postReceive, wr, _receiveRefused, bad_wr)

    @verb("Failed to Bind MW")
    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """
        Post the bind of a type 1 window, whose rkey changes at once.

        @param mw_bind: the part of a region; a length of 0 unbinds.
        @raise PyverbsRDMAError: the window is of type 2 or the state forbids it (EINVAL), or the send queue
            is full (ENOMEM).
        """
        self._check()
        checked(mw, MW)._check()
        bind = checked(mw_bind, MWBind)
        check(mw.type == ibv_mw_type.IBV_MW_TYPE_1, "Failed to Bind MW: it is not of type 1")
        memory = self._device.memory
        # man ibv_bind_mw(3): the new rkey is known when the bind is posted, though it opens nothing until the
        # bind is done; a SEND behind it on the same queue pair may carry it to the peer.
        key = memory.windows.reserve(mw._core)
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
            # Else each refused post would use up one of the keys that a window may have pending.
            memory.windows.releaseKey(mw._core, key)
            raise
        mw._promised = key

    @verb("Failed to attach QP to multicast group")
    def attach_mcast(self, gid: GID | str, lid: int = 0) -> None:
        """
        Receive the datagrams of a multicast group: C{ibv_attach_mcast}, which pyverbs lacks.

        @param lid: 0.
        @raise PyverbsRDMAError: C{gid} is no group or the queue pair is not UD (EINVAL), or there are too
            many (ENOMEM).
        """
        self._check()
        # IBTA vol. 1 10.5.2: a group's datagrams have destination QP 0xFFFFFF; each attached queue pair gets
        # a copy.
        self._device.paths.attach(self._core, _group(gid))

    @verb("Failed to detach QP from multicast group")
    def detach_mcast(self, gid: GID | str, lid: int = 0) -> None:
        """
        Stop receiving the datagrams of a multicast group.

        @param lid: 0.
        @raise PyverbsRDMAError: it was not attached (EINVAL).
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
        An integer in place of the C pointer.
        """
        return id(self)

    @locked
    def __str__(self) -> str:
        return table(
            [
                ("QP type", named(ibv_qp_type, self.qp_type, "IBV_QPT_")),
                ("  number", self.qp_num),
                ("  state", named(ibv_qp_state, self.qp_state, "IBV_QPS_")),
            ]
        )

    # -- what is not supported (EOPNOTSUPP)

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
        @raise PyverbsRDMAError: C{ece} has a vendor (EOPNOTSUPP).
        """
        from twisted_ib.verbs.pyverbs.objects.unsupported import ECE

        # Without a vendor there are no options to set, which any device can do.
        if checked(ece, ECE).vendor_id:
            raise unsupported("Failed to set ECE")

    def query_ece(self) -> ECE:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP).
        """
        raise unsupported("Failed to query ECE")

    def query_data_in_order(self, op: int, flags: int = 0) -> int:
        """
        @return: 0: the order in which a message's octets are written is not guaranteed.
        """
        # IBTA vol. 1 9.5: a program must not depend on the order of writes within a message; only the
        # completion shows that all of it is there.
        return 0


def _group(gid: GID | str) -> int:
    return int.from_bytes((gid if isinstance(gid, GID) else GID(gid)).raw, "big")
