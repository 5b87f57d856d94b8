"""
Extended completion queues: the fields of a completion are read one by one.

Source: rdma-core 65, C{pyverbs/cq.pyx}; man page C{ibv_create_cq_ex}.
"""

from __future__ import annotations

import errno
from typing import Any

import attrs

from twisted_ib.hca.queues.completion import WorkCompletion
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, checked, table
from twisted_ib.verbs.pyverbs.base.errors import PyverbsUserError
from twisted_ib.verbs.pyverbs.base.verb import check, unsupported, verb
from twisted_ib.verbs.pyverbs.base.wc import wcFlags, wcImmediate
from twisted_ib.verbs.pyverbs.enums.queues import (
    IBV_WC_STANDARD_FLAGS,
    ibv_cq_init_attr_mask,
    ibv_create_cq_attr_flags,
)
from twisted_ib.verbs.pyverbs.objects.cq import CompChannel, PolledQueue
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.pd import PD, ParentDomain

_MASK = ibv_cq_init_attr_mask
_WITH_FLAGS = int(_MASK.IBV_CQ_INIT_ATTR_MASK_FLAGS)
_WITH_PD = int(_MASK.IBV_CQ_INIT_ATTR_MASK_PD)
_SINGLE_THREADED = int(ibv_create_cq_attr_flags.IBV_CREATE_CQ_ATTR_SINGLE_THREADED)


@attrs.define(eq=False, slots=False)
class CqInitAttrEx(PyverbsObject):
    """
    The attributes of a new extended completion queue.

    @ivar cqe: completions that it shall hold.
    @ivar comp_channel: the channel of its events, or None (the parameter C{channel}).
    @ivar comp_vector: 0.
    @ivar wc_flags: the fields that will be read, bits of C{ibv_create_cq_wc_flags}.
    @ivar comp_mask: which of the following are valid, bits of C{ibv_cq_init_attr_mask}.
    @ivar flags: bits of C{ibv_create_cq_attr_flags}.
    @ivar parent_domain: a L{ParentDomain}, or None.
    """

    cqe: int = 100
    comp_channel: CompChannel | None = attrs.field(default=None, alias="channel")
    comp_vector: int = 0
    wc_flags: int = 0
    comp_mask: int = 0
    flags: int = 0
    parent_domain: PD | None = None
    cq_context: object = attrs.field(default=None, init=False)


@attrs.define(eq=False)
class PollCqAttr(PyverbsObject):
    """
    The attributes of a poll.

    @ivar comp_mask: reserved, 0.
    """

    comp_mask: int = attrs.field(default=0, init=False)


@attrs.define(eq=False)
class WcTmInfo(PyverbsObject):
    """
    Tag matching information of a completion.
    """

    tag: int = attrs.field(default=0, init=False)
    priv: int = attrs.field(default=0, init=False)


class CQEX(PolledQueue):
    """
    An extended completion queue.

    Between L{start_poll} and L{end_poll} one completion is current; L{poll_next} goes to the next.

    @ivar wr_id: the current completion's request id.
    @ivar status: its status, one of C{ibv_wc_status}.
    """

    _failed = "Failed to create extended CQ"

    def __init__(self, context: Context, init_attr: CqInitAttrEx | None = None) -> None:
        """
        @param init_attr: its attributes, by default C{CqInitAttrEx()}.
        @raise PyverbsRDMAError: a parameter is invalid (EINVAL) or not supported (EOPNOTSUPP), or there are
            too many queues (ENOMEM).
        """
        super().__init__()
        attr = CqInitAttrEx() if init_attr is None else checked(init_attr, CqInitAttrEx)
        self.wr_id = 0
        self.status = 0
        self._present: WorkCompletion | None = None
        self._polling = False
        self._checkAttr(attr)
        self._create(checked(context, Context), attr.cqe, attr.comp_channel, attr.comp_vector)
        if attr.comp_mask & _WITH_PD and attr.parent_domain is not None:
            # pyverbs/pd.pyx: closing the parent domain closes the queue.
            attr.parent_domain._children.add(self)

    def _checkAttr(self, attr: CqInitAttrEx) -> None:
        # man ibv_create_cq_ex(3): a field that was not asked for at creation must not be read.  So what
        # cannot be read, timestamps and the like, is refused here, and not at each poll.  SINGLE_THREADED is
        # a promise of the program, which costs nothing to accept.
        flags = attr.flags if attr.comp_mask & _WITH_FLAGS else 0
        if (
            int(attr.wc_flags) & ~IBV_WC_STANDARD_FLAGS
            or int(attr.comp_mask) & ~(_WITH_FLAGS | _WITH_PD)
            or int(flags) & ~_SINGLE_THREADED
        ):
            raise unsupported(self._failed)
        if attr.comp_mask & _WITH_PD:
            check(isinstance(attr.parent_domain, ParentDomain), f"{self._failed}: no parent domain")

    # -- polling

    @verb("Failed to poll CQ")
    def start_poll(self, attr: PollCqAttr | None = None) -> int:
        """
        Drive the devices, then go to the oldest completion.

        @param attr: its C{comp_mask} must be 0, else EINVAL is returned.
        @return: 0, or ENOENT if there is none; then L{end_poll} is not needed.
        """
        self._check()
        self._device.check()
        if attr is not None and checked(attr, PollCqAttr).comp_mask:
            return errno.EINVAL
        hub.drive(self._core.completions)
        found = self._next()
        # man ibv_create_cq_ex(3): after an error code end_poll shouldn't be called.
        self._polling = not found
        return found

    @verb("Failed to poll CQ")
    def poll_next(self) -> int:
        """
        Go to the next completion.

        @return: 0, or ENOENT if there is none yet.
        """
        self._check()
        if not self._polling:
            raise PyverbsUserError("poll_next without start_poll")
        found = self._next()
        # Only when the queue is empty: a batch is read without a round of all devices for each completion.
        if found:
            hub.drive(self._core.completions)
            found = self._next()
        return found

    def _next(self) -> int:
        completions = self._core.poll(1)
        if not completions:
            return errno.ENOENT
        # It has left the queue now; end_poll does not put it back.
        self._present = present = completions[0]
        self.wr_id = present.workRequestID
        self.status = int(present.status)
        return 0

    def end_poll(self) -> None:
        """
        End the batch: there is no current completion any more.
        """
        with hub:
            self._polling = False
            self._present = None

    def _read(self) -> WorkCompletion:
        present = self._present
        if present is None:
            raise PyverbsUserError("There is no completion to read: none was polled")
        return present

    def read_opcode(self) -> int:
        """
        @return: one of C{ibv_wc_opcode}.
        """
        return int(self._read().opcode)

    def read_vendor_err(self) -> int:
        """
        @return: 0.
        """
        self._read()
        return 0

    def read_byte_len(self) -> int:
        """
        @return: octets transferred.
        """
        return self._read().byteLength

    def read_imm_data(self) -> int:
        """
        @return: the immediate data, or the invalidated rkey, as L{WC.imm_data}.
        """
        return wcImmediate(self._read())

    def read_qp_num(self) -> int:
        """
        @return: the local queue pair number.
        """
        return self._read().queuePairNumber

    def read_src_qp(self) -> int:
        """
        @return: the sender's queue pair number, of a datagram.
        """
        return self._read().sourceQueuePair

    def read_wc_flags(self) -> int:
        """
        @return: bits of C{ibv_wc_flags}.
        """
        return wcFlags(self._read())

    def read_slid(self) -> int:
        """
        @return: the sender's LID, of a datagram; 0 on Ethernet, as the two below (IBTA vol. 1 annex A17).
        """
        return self._read().sourceLID

    def read_sl(self) -> int:
        """
        @return: the service level of a datagram.
        """
        return self._read().serviceLevel

    def read_dlid_path_bits(self) -> int:
        """
        @return: the path bits of the LID that a datagram was sent to.
        """
        return self._read().pathBits

    def _unread(self) -> Any:
        # No queue can be created with these fields: see _checkAttr.
        raise unsupported("Failed to read a field that the CQ was not created with")

    read_timestamp = read_cvlan = read_flow_tag = read_tm_info = _unread
    read_completion_wallclock_ns = _unread

    def __str__(self) -> str:
        return "Extended CQ:\n" + table([("Handle", self.handle), ("CQEs", self.cqe)])
