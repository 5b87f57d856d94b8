"""
Flow-control modes of one direction of a stream, and the legal transitions between them (IBTA vol. 1 annex
A4).

The source sends the stream, the sink receives it.  Both directions start in Combined mode.  ModeChange has no
reply: its sender changes when it sends the message, the receiver when the message arrives.
"""

from __future__ import annotations

from enum import IntEnum

from twisted_ib.errors import SDPError
from twisted_ib.sdp.protocol.wire import Transition


class Mode(IntEnum):
    """
    Which messages the source may send; the values are those of ModeChange.
    """

    # IBTA vol. 1 annex A4, flow control modes; the limits per mode are as OpenIB sdp_rcvd.c checks them.
    #: Data only.
    BUFFERED = 0
    #: Data, or one SrcAvail that carries the first bytes of its buffer.
    COMBINED = 1
    #: Up to MaxAdverts SrcAvails without payload, or SinkAvails.
    PIPELINED = 2


#: Each ModeChange with the mode before and after.  Anything else is a protocol error, also a change to the
#: mode in force (OpenIB sdp_rcvd.c sdp_rcvd_mode_change: EPROTO).
# OFED stays in Combined mode for good and only logs a ModeChange (sdp_rx.c sdp_process_rx_ctl_skb).
CHANGES = {
    Transition.COMBINED_TO_BUFFERED: (Mode.COMBINED, Mode.BUFFERED),
    Transition.BUFFERED_TO_COMBINED: (Mode.BUFFERED, Mode.COMBINED),
    Transition.COMBINED_TO_PIPELINED: (Mode.COMBINED, Mode.PIPELINED),
    Transition.PIPELINED_TO_COMBINED: (Mode.PIPELINED, Mode.COMBINED),
}
#: Transitions that the sink sends; the source sends the others.
BY_SINK = frozenset((Transition.BUFFERED_TO_COMBINED,))


def checkRange(address: int, length: int) -> None:
    """
    Check the address range of an advertisement.

    @raise SDPError: It exceeds the 64-bit address space.
    """
    # Offsets into the range are added to the address later; without this check they could wrap to low
    # addresses.
    if address + length > 1 << 64:
        raise SDPError(f"there are no {length} bytes at {address:#x}")


def changed(mode: Mode, transition: Transition) -> Mode:
    """
    Return the mode after a transition.

    @param mode: The mode in force in the direction that changes.
    @raise SDPError: The transition does not start from this mode.
    """
    before, after = CHANGES[transition]
    if mode is not before:
        raise SDPError(f"ModeChange {transition.name} in {mode.name} mode")
    return after
