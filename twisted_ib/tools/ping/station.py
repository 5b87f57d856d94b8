"""
The common parts of C{ib-ping}'s programs: the device, the listener, and waiting.

They are verbs programs, without a reactor and in one thread.  The work of each connection is written as
I{steps}, a generator that yields where it would block, so that one server can have many clients.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from twisted_ib.errors import HCAError
from twisted_ib.tools.program import ProgramError, printable, sentence, write
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import CMID, PD, AddrInfo, CMEvent, CMEventChannel, Context, PyverbsError, enums

if TYPE_CHECKING:
    from twisted_ib.tools.ping.line import PingConnection

PROGRAM = "ib-ping"
#: The option for rds-ping.
RDS = "--rds"

T = TypeVar("T")
Steps = Generator[None, None, T]

#: Seconds for establishing a connection: two REQs may be lost, which are repeated after 4.1 s (timeout code
#: 20, as Linux cma.c) and the path's round trip.  An MRA extends them.
CONNECTING = 15.0
#: Seconds that a peer may be silent when a message of it is due.
PEER_SILENCE = 60.0
#: Seconds after which a wait looks for signals.
_SLICE = 0.25

_E = enums.rdma_cm_event_type
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """
    A signal asks the program to end.

    @ivar status: the exit status.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        # The shell's convention for a program that a signal has ended.
        self.status = 128 + number


def reason(error: BaseException) -> str:
    """
    @return: a verb's error as a sentence for users, in small letters and without the errno.
    """
    return printable(sentence(error)).partition(". Errno")[0]


class VerbsSession:
    """
    A device with a protection domain, and the signals that end the program.

    @ivar debug: whether L{say} prints.
    """

    def __init__(self, device: str, debug: bool = False) -> None:
        """
        Open a device, and install handlers for signals.

        @raise HCAError: the device cannot be opened.
        """
        self.debug = debug
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self._signal = 0
        self._before: dict[int, object] = {}
        # signal.signal works in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # nohup(1) has a program ignore SIGHUP.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        # Only noted: an exception could interrupt a verb that holds the hub's lock.
        self._signal = number

    def say(self, text: str) -> None:
        """
        Print what goes on, with C{-d}.
        """
        if self.debug:
            write(text)

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """
        Wait until a condition holds; the devices are driven meanwhile.

        @param seconds: how long; L{None} for ever.
        @return: whether the condition holds.
        @raise Interrupted: a signal came.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while not self._signal:
            # PEP 475: poll(2) goes on after a handler has run, so the wait ends now and then by itself.
            left = _SLICE if end is None else max(0.0, min(_SLICE, end - time.monotonic()))
            if hub.wait(ready, left):
                return True
            if end is not None and time.monotonic() >= end:
                return False
        raise Interrupted(self._signal)

    def finish(self, line: PingConnection, steps: Steps[T], seconds: float | None = PEER_SILENCE) -> T:
        """
        Run all steps of one connection.

        @param seconds: how long its peer may be silent; L{None} for ever.
        @return: the result of the steps.
        @raise ProgramError: the peer was silent for too long.
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
        Resolve an address.

        @param source: the local address; L{None} for any.
        @param space: a port space.
        @return: an identifier with the route to the address.
        @raise ProgramError: there is none.
        """
        try:
            return CMID(AddrInfo(source, host, None, str(port), space), None, self.pd)
        except PyverbsError as error:
            # Linux cma.c: no RDMA device has the local address of the route.
            if error.error_code == errno.ENODEV:
                raise ProgramError(f"no way leads from device {self.context.name} to {host}") from None
            raise ProgramError(f"{host}: {reason(error)}") from None

    def listen(self, host: str, port: int, space: int, backlog: int = 0) -> Listener:
        """
        Listen for connection requests.

        @param port: 0 for any; then, and with C{-d}, it is printed.
        @param backlog: requests that may wait; 0 for the default.
        @raise ProgramError: it fails.
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
        Close the device, and restore the signal handlers.
        """
        self.context.close()
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]


class Listener:
    """
    A listening identifier.

    @ivar port: its port; the assigned one if 0 was asked for.
    """

    def __init__(self, station: VerbsSession, cmid: CMID) -> None:
        self._station = station
        self._cmid = cmid
        self._channel = CMEventChannel()
        # Away from the synchronous mode, whose rdma_get_request(3) blocks: a server has other clients
        # meanwhile.
        cmid.migrate_id(self._channel)
        assert cmid.local_addr is not None
        self.port = cmid.local_addr[1]

    def look(self) -> bool:
        """
        @return: whether a request waits.
        """
        return self._channel.pending

    def take(self) -> CMID | None:
        """
        @return: an identifier for the oldest request; L{None} if the event was another.
        """
        with CMEvent(self._channel) as event:
            self._station.say(f"{event.event_str()} of the listener")
            if event.event_type != _E.RDMA_CM_EVENT_CONNECT_REQUEST:
                return None
            try:
                return CMID(event, listen_id=self._cmid)
            except PyverbsError:
                # The client has given up (REJ), so the request is withdrawn.
                return None

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
        Stop listening.
        """
        self._cmid.close()
        self._channel.close()
