"""
C{ucmatose}: messages over several connections: the server sends, then the client, then the server
disconnects.

Source: rdma-core 65, C{librdmacm/examples/cmatose.c}.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Generic, TypeVar

from twisted_ib.tools.ping.line import PeerEnded, PingConnection
from twisted_ib.tools.ping.station import CONNECTING, Listener, Steps, VerbsSession
from twisted_ib.tools.program import ProgramError, write
from twisted_ib.verbs.pyverbs import CMID, ConnParam, enums

# cmatose.c allocates whatever the command line asks for; this bounds a typing error.
PING_MEMORY = 1024 * 1024 * 1024

ANY = "0.0.0.0"
OneLine = TypeVar("OneLine", bound=PingConnection)
#: The contents of a message, repeated.
_BYTES = bytes(range(256))


def content(size: int) -> bytes:
    """
    @return: a message of C{size} octets; only its length matters.
    """
    return (_BYTES * (size // len(_BYTES) + 1))[:size]


def checkMemory(connections: int, size: int) -> None:
    """
    @param connections: each has two messages of C{size} octets.
    @raise ProgramError: that is too much.
    """
    if 2 * connections * size > PING_MEMORY:
        raise ProgramError(f"{connections} connections with messages of {size} bytes need too much memory")


class CmatoseConnection(PingConnection):
    """
    One connection.
    """

    def __init__(self, station: VerbsSession, cmid: CMID, options: Namespace) -> None:
        """
        Register memory, and post all receives.

        @raise ProgramError: there is none, or a queue pair cannot be created.
        """
        # cmatose.c: with -C 0 nothing is sent, but a queue pair of depth 0 cannot be created.
        depth = max(options.count, 1)
        super().__init__(station, cmid, depth, depth)
        self._count, self._size = options.count, options.size
        self._sent = self._received = 0
        try:
            if options.timeout is not None:
                # cmatose.c -a: the timeout goes into the REQ, so it has to be set before connecting.
                cmid.set_option(enums.RDMA_OPTION_ID, enums.RDMA_OPTION_ID_ACK_TIMEOUT, options.timeout, 1)
            if self._count:
                self._outbox = self.register(self._size, 0)
                self._outbox.write(content(self._size), self._size)
                inbox = self.register(self._size, enums.IBV_ACCESS_LOCAL_WRITE)
                # All receives before the connection is made: with rnr_retry 0 a single RNR NAK would end it.
                # One buffer for all, as nobody reads the contents.
                for _ in range(self._count):
                    self.receive(inbox)
        except BaseException:
            self.close()
            raise

    def send(self) -> None:
        """
        Post all messages.
        """
        for _ in range(self._count):
            self.post(self.request(self._outbox, self._size, enums.IBV_WR_SEND))

    def transferred(self, sent: int, received: int) -> Steps[None]:
        """
        Wait until C{sent} sends and C{received} receives have completed.
        """
        while self._sent < sent or self._received < received:
            wc = yield from self.completion()
            if wc.opcode == enums.IBV_WC_RECV:
                self._received += 1
            else:
                self._sent += 1


class PingProgram(Generic[OneLine]):
    """
    One side of all connections or datagram services.

    @cvar lineClass: makes one of a station, an identifier and the command line.
    @cvar what: what is exchanged, for texts.
    """

    lineClass: Callable[[VerbsSession, CMID, Namespace], OneLine]
    what: str

    def __init__(self, station: VerbsSession, options: Namespace) -> None:
        checkMemory(options.connections, options.size)
        self._station = station
        self._options = options
        self._lines: list[OneLine] = []
        self._listener: Listener | None = None

    def run(self) -> None:
        """
        Run the program.

        @raise ProgramError: something fails.
        """
        options = self._options
        (self._serve if options.peer is None else self._ask)()
        each = f"{options.count} {self.what} of {options.size} bytes each way"
        write(f"{options.connections} connections, {each}")

    def _serve(self) -> None:
        raise NotImplementedError

    def _ask(self) -> None:
        raise NotImplementedError

    def _accept(self) -> None:
        options = self._options
        listener = self._listener = self._station.listen(options.own or ANY, options.port, options.space)
        # cmatose.c: the server waits for all clients before it sends on any connection.
        while len(self._lines) < options.connections:
            line = self.lineClass(self._station, listener.wait(), options)
            self._lines.append(line)
            line.accept()

    def _connect(self, param: ConnParam | None) -> None:
        options = self._options
        for _ in range(options.connections):
            cmid = self._station.call(options.own, options.peer, options.port, options.space)
            line = self.lineClass(self._station, cmid, options)
            self._lines.append(line)
            line.connect(param)
        # All REQs are sent first: the handshakes run at the same time.
        for line in self._lines:
            self._station.finish(line, line.up(), CONNECTING)

    def _each(self, steps: str, *arguments: int) -> None:
        for line in self._lines:
            self._station.finish(line, getattr(line, steps)(*arguments))

    def close(self) -> None:
        """
        Close all connections and the listener.
        """
        for line in self._lines:
            line.close()
        if self._listener is not None:
            self._listener.close()


class Cmatose(PingProgram[CmatoseConnection]):
    """
    One side of C{ucmatose}.
    """

    lineClass = CmatoseConnection
    what = "messages"

    def _migrate(self) -> None:
        if self._options.migrate:
            for line in self._lines:
                line.migrate()

    def _serve(self) -> None:
        count = self._options.count
        self._accept()
        self._each("up")
        for line in self._lines:
            line.send()
        # cmatose.c: the sends complete first, then the receives.
        self._each("transferred", count, 0)
        self._each("transferred", count, count)
        self._migrate()
        for line in self._lines:
            line.disconnect()
        self._each("over")

    def _ask(self) -> None:
        count = self._options.count
        # cmatose.c: retry_count 5, and rnr_retry_count 0, as it is left out there.
        self._connect(ConnParam(resources=1, depth=1, retry=5, rnr_retry=0))
        self._each("transferred", 0, count)
        for line in self._lines:
            line.send()
        self._migrate()
        try:
            self._each("transferred", count, count)
        except PeerEnded:
            # The server disconnects only after it has all messages, which the client's completions may not
            # show yet.
            pass
        self._each("over")
        for line in self._lines:
            line.disconnect()

    def close(self) -> None:
        for line in self._lines:
            line.disconnect()
        super().close()
