"""
The server's side of C{ib-ping}: one client after the other, or many at once.
"""

from __future__ import annotations

from argparse import Namespace
from typing import NoReturn

from twisted_ib.errors import HCAError
from twisted_ib.hca.verbs import CMID, enums
from twisted_ib.tools.ping.rounds import Server
from twisted_ib.tools.ping.station import PROGRAM, SILENCE, Listener, Station, Steps, reason
from twisted_ib.tools.program import ProgramError, complain

#: Clients that a persistent server has at a time; more are refused.
PING_CLIENTS = 256

#: rping's.
BACKLOG = 3
ANY = "0.0.0.0"


def served(line: Server, count: int) -> None:
    """
    A client has disconnected.

    @param count: how many rounds it should have done.

    @raise ProgramError: it has not.
    """
    if line.isWithin:
        raise ProgramError(f"{line.peer} has disconnected within round {line.count + 1}")
    if line.count < count:
        raise ProgramError(f"{line.peer} has disconnected after {line.count} of {count} rounds")


class PingSessions:
    """
    The clients of a server, each at its own pace.
    """

    def __init__(self, station: Station, options: Namespace) -> None:
        self._station = station
        self._options = options
        self._sessions: dict[Server, Steps[None]] = {}

    def begin(self, cmid: CMID) -> None:
        """
        Somebody calls.
        """
        if len(self._sessions) >= PING_CLIENTS:
            cmid.reject()
            cmid.close()
            return
        options = self._options
        try:
            line = Server(self._station, cmid, options.size)
        except (ProgramError, HCAError) as error:
            complain(PROGRAM, ProgramError(reason(error)))
            cmid.close()
            return
        self._sessions[line] = line.serve(options.verbose, options.validate)
        self._go(line)

    def look(self) -> bool:
        """
        Whether a client has something to be done.
        """
        for line in self._sessions:
            if line.look():
                return True
        return False

    def left(self) -> float | None:
        """
        How long until the first has been silent for long, in seconds.
        """
        return min((line.left() or 0.0 for line in self._sessions), default=None)

    def go(self) -> None:
        """
        Do what is to be done.
        """
        for line in list(self._sessions):
            if line.look():
                self._go(line)
            elif not line.left():
                try:
                    line.doubt()
                except ProgramError as error:
                    complain(PROGRAM, error)
                    self._end(line)

    def _go(self, line: Server) -> None:
        try:
            line.hear()
            next(self._sessions[line])
        except StopIteration:
            try:
                served(line, self._options.count)
            except ProgramError as error:
                complain(PROGRAM, error)
        except (ProgramError, HCAError) as error:
            complain(PROGRAM, ProgramError(reason(error)))
        else:
            line.begin(SILENCE)
            return
        self._end(line)

    def _end(self, line: Server) -> None:
        del self._sessions[line]
        line.disconnect()
        line.close()

    def close(self) -> None:
        """
        End all.
        """
        for line in list(self._sessions):
            self._end(line)


def serve(station: Station, options: Namespace) -> int:
    """
    Be a server.

    @return: the exit status.

    @raise ProgramError: the client has not done what it should.
    @raise Interrupted: a signal came.
    """
    listener = station.listen(options.address or ANY, options.port, enums.RDMA_PS_TCP, BACKLOG)
    try:
        if options.persistent:
            persist(station, options, listener)
        line = Server(station, listener.wait(), options.size)
        try:
            station.finish(line, line.serve(options.verbose, options.validate))
            served(line, options.count)
        finally:
            line.disconnect()
            line.close()
    finally:
        listener.close()
    return 0


def persist(station: Station, options: Namespace, listener: Listener) -> NoReturn:
    """
    Take clients until a signal comes.

    @raise Interrupted: it does.
    """
    sessions = PingSessions(station, options)
    try:
        while True:
            station.wait(lambda: listener.look() or sessions.look(), sessions.left())
            sessions.go()
            if listener.look():
                cmid = listener.take()
                if cmid is not None:
                    sessions.begin(cmid)
    finally:
        sessions.close()
