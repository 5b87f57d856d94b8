"""
One connection of MPA, as its user and the service see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.hca.fabric.base.streams import FabricConnection

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPeerPath
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.connection import ConnectReply
    from twisted_ib.hca.fabric.iwarp.mpaservice import MPAService
    from twisted_ib.hca.fabric.iwarp.streampath import StreamPath


class MPAConnection(FabricConnection):
    """
    One end of a connection.

    @ivar stream: the TCP connection; L{None} before there is one.
    """

    stream: StreamPath | None = None
    _timer: Timer | None = None

    def __init__(self, service: MPAService, way: IPeerPath, stage: str) -> None:
        super().__init__(way, stage)
        self._service = service
        service.connections[self] = None

    def expect(self) -> None:
        """
        The peer owes an answer: see that it comes in time.
        """
        self._timer = self._service.fabric.timers.start(limits.CM_ANSWER_SECONDS, self._silent)

    def _silent(self) -> None:
        if self.stage == "calling":
            self.withdraw()
        elif self.stream is not None:
            self.stream.finish()
        self.unreached()

    def sendReply(self, reply: ConnectReply) -> bool:
        if self.stage == "accepted":
            self.expect()
        else:
            self._service.unanswered.discard(self)
        if self.stream is not None:
            self._service.reply(self.stream, reply)
        return True

    def refuse(self, privateData: bytes) -> bool:
        stream = self.stream
        if stream is not None:
            if stream.startup is not None:
                stream.sendFrame(stream.startup.machine.reject(privateData))
            # Behind a Reply there is no word for it but the end.
            stream.finish()
        return True

    def ignore(self, now: float) -> bool:
        # TCP repeats nothing, so the request comes again by itself.
        if not self._require("requested"):
            return False
        stream = self.stream
        self.over()
        if stream is not None:
            self._service.again(stream)
        return True

    def withdraw(self) -> None:
        if self.stream is not None:
            self.stream.close()

    def end(self) -> None:
        if self.stream is not None:
            self.stream.finish()
        # FIN has no answer of its own: the peer's FIN follows when its program is done.
        self._service.fabric.soonCall(self.gone)

    def finish(self, now: float) -> bool:
        # It ends with its queue pair.
        isThere = self.stage != "ended"
        self.over()
        return isThere

    def established(self) -> None:
        self._service.unanswered.discard(self)
        self._inTime()
        super().established()

    def replied(self, reply: ConnectReply) -> None:
        self._inTime()
        super().replied(reply)

    def _inTime(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def over(self) -> None:
        super().over()
        self._inTime()
        self._service.connections.pop(self, None)
        self._service.unanswered.discard(self)
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.connection = None
