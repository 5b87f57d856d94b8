"""
The flow-control modes of one direction of a stream, and who may change them (IBTA vol. 1,
annex A4).

The source sends the stream, the sink receives it.  Each direction begins in Combined mode.
Who changes a mode does so when the message leaves, the other when it comes; there is no
answer.
"""

from __future__ import annotations

from enum import IntEnum

from twisted_ib.errors import SDPError
from twisted_ib.sdp.protocol.wire import Transition


class Mode(IntEnum):
    """
    What the source may send, by the numbers of ModeChange.
    """

    #: Data only.
    BUFFERED = 0
    #: Data, or one SrcAvail that carries its first bytes.
    COMBINED = 1
    #: Several SrcAvails that carry nothing, or SinkAvails.
    PIPELINED = 2


#: What a ModeChange does: the mode before and after.
CHANGES = {
    Transition.COMBINED_TO_BUFFERED: (Mode.COMBINED, Mode.BUFFERED),
    Transition.BUFFERED_TO_COMBINED: (Mode.BUFFERED, Mode.COMBINED),
    Transition.COMBINED_TO_PIPELINED: (Mode.COMBINED, Mode.PIPELINED),
    Transition.PIPELINED_TO_COMBINED: (Mode.PIPELINED, Mode.COMBINED),
}
#: Those that the sink sends; the source sends all others.
BY_SINK = frozenset((Transition.BUFFERED_TO_COMBINED,))


def checkRange(address: int, length: int) -> None:
    """
    Check what an advertisement names.

    @raise SDPError: It goes beyond the last address.
    """
    if address + length > 1 << 64:
        raise SDPError(f"there are no {length} bytes at {address:#x}")


def changed(mode: Mode, transition: Transition) -> Mode:
    """
    The mode after a change.

    @param mode: the one in force in the direction that changes.
    @raise SDPError: this is no change of that mode.
    """
    before, after = CHANGES[transition]
    if mode is not before:
        raise SDPError(f"ModeChange {transition.name} in {mode.name} mode")
    return after
