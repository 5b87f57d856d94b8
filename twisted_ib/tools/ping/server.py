"""
The server of C{ib-ping}: one client, or with C{-P} many at once.
"""

from __future__ import annotations

from argparse import Namespace
from typing import NoReturn

from twisted_ib.errors import HCAError
from twisted_ib.tools.ping.rounds import Server
from twisted_ib.tools.ping.station import PEER_SILENCE, PROGRAM, Listener, Steps, VerbsSession, reason
from twisted_ib.tools.program import ProgramError, complain
from twisted_ib.verbs.pyverbs import CMID, enums

#: Clients that a persistent server has at a time; more are rejected.
PING_CLIENTS = 256

#: rping.c: rdma_listen(cm_id, 3).
BACKLOG = 3
ANY = "0.0.0.0"


def served(line: Server, count: int) -> None:
    """
    Check a client that has disconnected.

    @param count: the rounds that it should have done.
    @raise ProgramError: it has done fewer.
    """
    if line.isWithin:
        raise ProgramError(f"{line.peer} has disconnected within round {line.count + 1}")
    if line.count < count:
        raise ProgramError(f"{line.peer} has disconnected after {line.count} of {count} rounds")


class PingSessions:
    """
    The clients of a persistent server.
    """

    def __init__(self, station: VerbsSession, options: Namespace) -> None:
        self._station = station
        self._options = options
        # rping.c -P has a thread for each client; here it is a generator.
        self._sessions: dict[Server, Steps[None]] = {}

    def begin(self, cmid: CMID) -> None:
        """
        Accept a connection request.
        """
        if len(self._sessions) >= PING_CLIENTS:
            # A REJ tells the client at once; without an answer it would run into its timeouts.
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
        self._sessions[line] = line.serve(options.verbose, options.validate, options.count)
        self._go(line)

    def look(self) -> bool:
        """
        @return: whether an event or completion of a client waits.
        """
        for line in self._sessions:
            if line.look():
                return True
        return False

    def left(self) -> float | None:
        """
        @return: seconds until the first client has to be probed.
        """
        return min((line.left() or 0.0 for line in self._sessions), default=None)

    def go(self) -> None:
        """
        Handle all events and completions.
        """
        for line in list(self._sessions):
            if line.look():
                self._go(line)
            # Nothing came in time: probe the client, and end it if it is silent for too long.
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
        # A client's failure ends its connection, not the server.
        except (ProgramError, HCAError) as error:
            complain(PROGRAM, ProgramError(reason(error)))
        else:
            line.begin(PEER_SILENCE)
            return
        self._end(line)

    def _end(self, line: Server) -> None:
        del self._sessions[line]
        line.disconnect()
        line.close()

    def close(self) -> None:
        """
        Close all connections.
        """
        for line in list(self._sessions):
            self._end(line)


def serve(station: VerbsSession, options: Namespace) -> int:
    """
    Run the server.

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
            station.finish(line, line.serve(options.verbose, options.validate, options.count))
            served(line, options.count)
        finally:
            line.disconnect()
            line.close()
    finally:
        listener.close()
    return 0


def persist(station: VerbsSession, options: Namespace, listener: Listener) -> NoReturn:
    """
    Serve clients until a signal comes.

    @raise Interrupted: it came.
    """
    sessions = PingSessions(station, options)
    try:
        while True:
            station.wait(lambda: listener.look() or sessions.look(), sessions.left())
            # Clients that are connected come before new ones, so that a flood of requests cannot stop them.
            sessions.go()
            if listener.look():
                cmid = listener.take()
                if cmid is not None:
                    sessions.begin(cmid)
    finally:
        sessions.close()
