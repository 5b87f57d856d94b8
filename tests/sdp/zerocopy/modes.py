"""
A change of the flow-control mode, as the peer may want one; streams of ours change to Pipelined mode only.
"""

from __future__ import annotations

from twisted_ib.sdp.protocol.modes import changed
from twisted_ib.sdp.protocol.wire import Transition
from twisted_ib.sdp.stream import Stream


def changeMode(stream: Stream, transition: Transition) -> bool:
    """
    Change the mode of a stream's sending direction, or end its peer's Buffered mode.

    @return: False if it must wait, for credits or for transfers in flight.
    @raise SDPError: The mode in force has no such transition.
    """
    extensions = stream.openExtensions()
    zero = extensions.machine.zero
    if transition is Transition.BUFFERED_TO_COMBINED:
        changed(zero.sink.mode, transition)
    else:
        changed(zero.source.mode, transition)
        if extensions.zeroCopySend.takes(0):
            return False
    queuePair = stream.queuePair
    # Owed control messages were produced under the mode in force, so they go first.
    if queuePair.path is None or stream.pendingControl is not None or not queuePair.canPost():
        return False
    message = extensions.machine.changeMode(transition, queuePair.posted)
    if message is not None:
        queuePair.postInline(message, b"", 0)
    return message is not None
