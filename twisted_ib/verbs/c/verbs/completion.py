"""
Completion channels, completion queues and their events.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from _twisted_ib_verbs import ffi

from twisted_ib.verbs import pyverbs as verbs
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.functions import AGAIN, handler, handlers
from twisted_ib.verbs.c.handles import handles
from twisted_ib.verbs.c.pointers import CData, addressOf, given
from twisted_ib.verbs.c.rings import CompletionRing, poll_cq
from twisted_ib.verbs.c.verbs.structures import channelAt, contextAt, cqAt, new, pdAt, pointers
from twisted_ib.verbs.c.waiting import nextEvent
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs.enums.queues import (
    ibv_cq_attr_mask,
    ibv_cq_init_attr_mask,
    ibv_create_cq_attr_flags,
)
from twisted_ib.verbs.pyverbs.objects.cq import PolledQueue

_READS = (
    "read_opcode",
    "read_vendor_err",
    "read_byte_len",
    "read_imm_data",
    "read_qp_num",
    "read_src_qp",
    "read_wc_flags",
    "read_slid",
    "read_sl",
    "read_dlid_path_bits",
)
#: The functions of C{struct ibv_cq_ex}.
_EXTENDED = pointers("start_poll", "next_poll", "end_poll", *_READS)
_WITH_FLAGS = int(ibv_cq_init_attr_mask.IBV_CQ_INIT_ATTR_MASK_FLAGS)
_SINGLE_THREADED = int(ibv_create_cq_attr_flags.IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
_WITH_PD = int(ibv_cq_init_attr_mask.IBV_CQ_INIT_ATTR_MASK_PD)
_MODERATE = int(ibv_cq_attr_mask.IBV_CQ_ATTR_MODERATE)


class _Ringed(PolledQueue):
    """
    A completion queue with a ring.

    @ivar ring: the ring; L{None} until its structure is there.
    """

    ring: CompletionRing | None = None

    def close(self) -> None:
        super().close()
        if self.ring is not None:
            with hub:
                self.ring.close()


class RingedCQ(_Ringed, verbs.CQ):
    """
    A completion queue with a ring.
    """


class RingedCQEX(_Ringed, verbs.CQEX):
    """
    An extended one: its present completion is in C, too.
    """


@handler
def ibv_create_comp_channel(context: CData) -> CData:
    value = verbs.CompChannel(contextAt(context))
    # It is non-blocking for the device; for programs it is as they make it.
    fd = value.event_fd
    os.set_blocking(fd, True)
    return new("ibv_comp_channel", value, (context,), context=context, fd=fd)


@handler
def ibv_create_cq(context: CData, cqe: int, cq_context: CData, channel: CData, vector: int) -> CData:
    owner = contextAt(context)
    value = RingedCQ(owner, cqe, None, channelAt.optional(channel), vector)
    return ffi.cast("struct ibv_cq *", _ringed(value, context, channel, cq_context, []))


def _ringed(
    value: RingedCQ | RingedCQEX, context: CData, channel: CData, own: CData, parents: list[CData]
) -> CData:
    structure = ffi.new("struct twisted_ib_cq *")
    made = structure.cq
    made.context, made.channel, made.cq_context = context, channel, own
    made.handle, made.cqe = value.handle, value.cqe
    with hub:
        value.ring = ring = CompletionRing(value._device, value._core, structure)
    # A thread that polls while another destroys the queue may still read its ring.
    kept = (structure, ring)
    handles.add(addressOf(structure), "ibv_cq", value, kept, map(addressOf, (context, channel, *parents)))
    return structure


@handler
def create_cq_ex(context: CData, attr: CData) -> CData:
    owner = contextAt(context, attr)
    made = verbs.CqInitAttrEx(
        attr.cqe,
        channelAt.optional(attr.channel),
        attr.comp_vector,
        attr.wc_flags,
        attr.comp_mask,
        attr.flags,
        pdAt(attr.parent_domain) if attr.comp_mask & _WITH_PD else None,
    )
    value = RingedCQEX(owner, made)
    parents = [attr.parent_domain] if attr.comp_mask & _WITH_PD else []
    structure = _ringed(value, context, attr.channel, attr.cq_context, parents)
    structure.single = bool(attr.comp_mask & _WITH_FLAGS and attr.flags & _SINGLE_THREADED)
    for name, function in _EXTENDED.items():
        setattr(structure.cq, name, function)
    return ffi.addressof(structure, "cq")


@handler
def ibv_resize_cq(cq: CData, cqe: int) -> int:
    value = cqAt(cq)
    value.resize(cqe)
    cq.cqe = value.cqe
    return 0


@handler
def modify_cq(cq: CData, attr: CData) -> int:
    value = cqAt(cq, attr)
    if attr.attr_mask != _MODERATE:
        raise HandleError(f"There are no attributes {attr.attr_mask:#x} of a completion queue")
    value.modify(attr.moderate.cq_count, attr.moderate.cq_period)
    return 0


@handler
def ibv_get_cq_event(channel: CData, cq: CData, cq_context: CData) -> int:
    value = channelAt(channel, cq, cq_context)
    queue = nextEvent(value.event_fd, value.take_event)
    if queue is None:
        return AGAIN
    address = handles.report(queue)
    if not address:
        # Another thread has destroyed it in this moment.
        return AGAIN
    found = ffi.cast("struct ibv_cq *", address)
    cq[0], cq_context[0] = found, found.cq_context
    return 0


@handler
def ibv_ack_cq_events(cq: CData, count: int) -> None:
    handles.acknowledge(addressOf(cq), count)


handler(poll_cq, "verbs")


@handler
def req_notify_cq(cq: CData, solicited: int) -> int:
    cqAt(cq).req_notify(bool(solicited))
    return 0


def _extended(cq: CData) -> verbs.CQEX:
    value = cqAt(cq)
    if not isinstance(value, verbs.CQEX):
        raise HandleError("The completion queue is not an extended one")
    return value


@handler
def start_poll(cq: CData, attr: CData) -> int:
    """
    Make progress; after this C goes to the oldest completion.
    """
    queue = _extended(cq)
    given(attr)
    if attr.comp_mask:
        return errno.EINVAL
    hub.poll(queue._device, queue._core, 1)
    return 0


@handler
def next_poll(cq: CData) -> int:
    """
    Make progress; after this C goes to the next completion.
    """
    queue = _extended(cq)
    if not ffi.cast("struct twisted_ib_cq *", cq).polling:
        raise HandleError("next_poll without start_poll")
    hub.poll(queue._device, queue._core, 1)
    return 0


@handlers("end_poll", *_READS)
def _polled(name: str) -> Callable[[CData], object]:
    def call(cq: CData) -> object:
        return getattr(_extended(cq), name)()

    return call
