"""
What the programs of C{ib-ping} have in common: a device, who listens on it, and waiting.

They are programs of verbs, without a reactor and in one thread.  What each connection has to do is
written as I{steps}, a generator that stops where it would wait, so that one server has many.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from twisted_ib.errors import HCAError
from twisted_ib.hca.verbs import CMID, PD, AddrInfo, CMEvent, CMEventChannel, Context, PyverbsError, enums
from twisted_ib.hca.verbs.base.hub import hub
from twisted_ib.tools.program import ProgramError, printable, sentence

if TYPE_CHECKING:
    from twisted_ib.tools.ping.line import Line

PROGRAM = "ib-ping"
#: The option for rds-ping.
RDS = "--rds"

T = TypeVar("T")
Steps = Generator[None, None, T]

#: How long a connection may take to come about, in seconds: the first message may be lost.
CONNECTING = 6.0
#: How long nothing need be heard of a peer that has something to say, in seconds.
SILENCE = 60.0
#: How long nothing is looked at but what is waited for, in seconds.
_SLICE = 0.25

_E = enums.rdma_cm_event_type
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """
    A signal asks for the end.

    @ivar status: the exit status for it.
    """

    def __init__(self, number: int) -> None:
        """
        @param number: the signal.
        """
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def whole(least: int, most: int) -> Callable[[str], int]:
    """
    @param least: a bound.
    @param most: another.

    @return: what makes an integer between them of an option.
    """

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ArgumentTypeError(f"{text!r} is no number from {least} to {most}")
        return value

    return parse


def reason(error: BaseException) -> str:
    """
    @param error: of a verb.

    @return: what it says to a user: without the number that verbs add, and in small letters.
    """
    return printable(sentence(error)).partition(". Errno")[0]


class Station:
    """
    A device, and the end of the program.

    @ivar debug: whether to tell what goes on.
    """

    def __init__(self, device: str, debug: bool = False) -> None:
        """
        Open a device, and let signals end the program in order.

        @raise HCAError: it cannot be opened.
        """
        self.debug = debug
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self._signal = 0
        self._before: dict[int, object] = {}
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """
        A signal came: L{wait} ends.
        """
        self._signal = number

    def say(self, text: str) -> None:
        """
        Tell what goes on.
        """
        if self.debug:
            print(text, flush=True)

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """
        Wait until something is so, and serve peers meanwhile.

        @param ready: whether it is so.
        @param seconds: how long; L{None} is for ever.

        @return: whether it is so.

        @raise Interrupted: a signal came.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while not self._signal:
            left = _SLICE if end is None else max(0.0, min(_SLICE, end - time.monotonic()))
            if hub.wait(ready, left):
                return True
            if end is not None and time.monotonic() >= end:
                return False
        raise Interrupted(self._signal)

    def finish(self, line: Line, steps: Steps[T], seconds: float | None = SILENCE) -> T:
        """
        Take all steps of one line.

        @param seconds: how long its peer may be silent; L{None} is for ever.

        @return: what they come to.

        @raise ProgramError: the peer is silent for longer.
        """
        while True:
            line.hear()
            try:
                next(steps)
            except StopIteration as stop:
                found: T = stop.value
                return found
            line.begin(seconds)
            while not self.wait(line.look, line.left()):
                line.doubt()

    def call(self, source: str | None, host: str, port: int, space: int) -> CMID:
        """
        @param source: where from; L{None} for wherever there is a way.
        @param space: a port space.

        @return: an identifier that knows the way to an address.

        @raise ProgramError: there is none.
        """
        try:
            return CMID(AddrInfo(source, host, None, str(port), space), None, self.pd)
        except PyverbsError as error:
            if error.error_code == errno.ENODEV:
                raise ProgramError(f"no way leads from device {self.context.name} to {host}") from None
            raise ProgramError(f"{host}: {reason(error)}") from None

    def listen(self, host: str, port: int, space: int, backlog: int = 0) -> Listener:
        """
        @param port: 0 for any; then, or to tell what goes on, it is printed.
        @param backlog: how many requests wait at most; 0 for as many as is usual.

        @return: what hears of requests to an address.

        @raise ProgramError: that cannot be.
        """
        try:
            info = AddrInfo(host, None, str(port), None, space, enums.RAI_PASSIVE)
            cmid = CMID(info, None, self.pd)
            cmid.listen(backlog)
        except PyverbsError as error:
            raise ProgramError(f"{host} port {port}: {reason(error)}") from None
        except HCAError as error:
            raise ProgramError(f"{host} port {port}: {sentence(error)}") from None
        listener = Listener(self, cmid)
        if self.debug or not port:
            print(f"{PROGRAM}: waits for clients on port {listener.port}", file=sys.stderr, flush=True)
        return listener

    def close(self) -> None:
        """
        Give everything back.
        """
        self.context.close()
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]


class Listener:
    """
    Who hears of requests.

    @ivar port: the port, the one that was found if any would do.
    """

    def __init__(self, station: Station, cmid: CMID) -> None:
        """
        @param cmid: a synchronous identifier that listens.
        """
        self._station = station
        self._cmid = cmid
        self._channel = CMEventChannel()
        cmid.migrate_id(self._channel)
        assert cmid.local_addr is not None
        self.port = cmid.local_addr[1]

    def look(self) -> bool:
        """
        Whether somebody calls.
        """
        return self._channel.pending

    def take(self) -> CMID | None:
        """
        @return: an identifier for the oldest request; L{None} if it was none.
        """
        with CMEvent(self._channel) as event:
            self._station.say(f"{event.event_str()} of the listener")
            if event.event_type != _E.RDMA_CM_EVENT_CONNECT_REQUEST:
                return None
            try:
                return CMID(event, listen_id=self._cmid)
            except PyverbsError:
                return None  # It was withdrawn.

    def wait(self, seconds: float | None = None) -> CMID:
        """
        Wait for a request.

        @return: an identifier for it.

        @raise ProgramError: none came in time.
        """
        while True:
            if not self._station.wait(self.look, seconds):
                raise ProgramError("nobody has called")
            cmid = self.take()
            if cmid is not None:
                return cmid

    def close(self) -> None:
        """
        Listen no more.
        """
        self._cmid.close()
        self._channel.close()
