"""
Signs of life on idle connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted_ib import limits

if TYPE_CHECKING:
    from twisted_ib.sdp.sender import Sender


class KeepAlive:
    """
    Gives a sign of life when nothing was sent or received for a time: a WRITE of nothing, as
    OFED's SDP does it.

    @ivar seconds: How long.
    """

    __slots__ = ("_call", "_reactor", "_seen", "_stream", "seconds")

    def __init__(self, stream: Sender, reactor: Any) -> None:
        """
        Begin.
        """
        self._stream = stream
        self._reactor = reactor
        self.seconds = limits.SDP_KEEP_ALIVE_SECONDS
        self._wait()

    def _traffic(self) -> tuple[int, int]:
        """
        What tells whether anything happened.
        """
        machine = self._stream.machine
        return machine.sequence, machine.received

    def _wait(self) -> None:
        """
        Look again later.
        """
        self._seen = self._traffic()
        self._call = self._reactor.callLater(self.seconds, self._look)

    def _look(self) -> None:
        """
        Give a sign of life, if there was none.
        """
        if self._traffic() == self._seen:
            self._stream.queuePair.postNothing()
            self._stream.cork()  # The peer may be asleep.
        self._wait()

    def stop(self) -> None:
        """
        Do so no more; harmless when repeated.
        """
        if self._call.active():
            self._call.cancel()
