"""
C{ucmatose}: some connections; the server sends on all of them, then the client, and the server disconnects.

Source: rdma-core 65, C{librdmacm/examples/cmatose.c}.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Generic, TypeVar

from twisted_ib.hca.verbs import CMID, ConnParam, enums
from twisted_ib.tools.ping.line import Ended, Line
from twisted_ib.tools.ping.station import CONNECTING, Listener, Station, Steps
from twisted_ib.tools.program import ProgramError

PING_MEMORY = 1024 * 1024 * 1024

ANY = "0.0.0.0"
OneLine = TypeVar("OneLine", bound=Line)
#: What a message consists of.
_BYTES = bytes(range(256))


def content(size: int) -> bytes:
    """
    @param size: octets.

    @return: a message, which only has to have a length.
    """
    return (_BYTES * (size // len(_BYTES) + 1))[:size]


def checkMemory(connections: int, size: int) -> None:
    """
    @param connections: how many have memory for two messages each.
    @param size: octets of a message.

    @raise ProgramError: that is too much.
    """
    if 2 * connections * size > PING_MEMORY:
        raise ProgramError(f"{connections} connections with messages of {size} bytes need too much memory")


class Talk(Line):
    """
    One connection.
    """

    def __init__(self, station: Station, cmid: CMID, options: Namespace) -> None:
        """
        Register memory, and post all receives.

        @raise ProgramError: there is none.
        """
        depth = max(options.count, 1)
        super().__init__(station, cmid, depth, depth)
        self._count, self._size = options.count, options.size
        self._sent = self._received = 0
        try:
            if options.timeout is not None:
                cmid.set_option(enums.RDMA_OPTION_ID, enums.RDMA_OPTION_ID_ACK_TIMEOUT, options.timeout, 1)
            if self._count:
                self._outbox = self.register(self._size, 0)
                self._outbox.write(content(self._size), self._size)
                inbox = self.register(self._size, enums.IBV_ACCESS_LOCAL_WRITE)
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
        Wait until messages have gone and come.

        @param sent: how many have gone then, and C{received} how many have come.
        """
        while self._sent < sent or self._received < received:
            wc = yield from self.completion()
            if wc.opcode == enums.IBV_WC_RECV:
                self._received += 1
            else:
                self._sent += 1


class Ends(Generic[OneLine]):
    """
    One end of all connections, or of all that stands for some.

    @cvar lineClass: what makes one of a station, an identifier and the command line.
    @cvar what: what goes each way.
    """

    lineClass: Callable[[Station, CMID, Namespace], OneLine]
    what: str

    def __init__(self, station: Station, options: Namespace) -> None:
        """
        There is no connection.

        @raise ProgramError: there would not be enough memory.
        """
        checkMemory(options.connections, options.size)
        self._station = station
        self._options = options
        self._lines: list[OneLine] = []
        self._listener: Listener | None = None

    def run(self) -> None:
        """
        Do all of it.

        @raise ProgramError: something fails.
        """
        options = self._options
        (self._serve if options.peer is None else self._ask)()
        each = f"{options.count} {self.what} of {options.size} bytes each way"
        print(f"{options.connections} connections, {each}", flush=True)

    def _serve(self) -> None:
        raise NotImplementedError

    def _ask(self) -> None:
        raise NotImplementedError

    def _accept(self) -> None:
        options = self._options
        listener = self._listener = self._station.listen(options.own or ANY, options.port, options.space)
        while len(self._lines) < options.connections:
            line = self.lineClass(self._station, listener.wait(), options)
            self._lines.append(line)
            line.accept()

    def _connect(self, param: ConnParam | None) -> None:
        """
        Connect all to the server.

        @param param: what is asked for.
        """
        options = self._options
        for _ in range(options.connections):
            cmid = self._station.call(options.own, options.peer, options.port, options.space)
            line = self.lineClass(self._station, cmid, options)
            self._lines.append(line)
            line.connect(param)
        for line in self._lines:
            self._station.finish(line, line.up(), CONNECTING)

    def _each(self, steps: str, *arguments: int) -> None:
        for line in self._lines:
            self._station.finish(line, getattr(line, steps)(*arguments))

    def close(self) -> None:
        """
        Give everything back.
        """
        for line in self._lines:
            line.close()
        if self._listener is not None:
            self._listener.close()


class Messages(Ends[Talk]):
    """
    C{ucmatose}: one end.
    """

    lineClass = Talk
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
        self._each("transferred", count, 0)
        self._each("transferred", count, count)
        self._migrate()
        for line in self._lines:
            line.disconnect()
        self._each("over")

    def _ask(self) -> None:
        count = self._options.count
        self._connect(ConnParam(resources=1, depth=1, retry=5, rnr_retry=0))
        self._each("transferred", 0, count)
        for line in self._lines:
            line.send()
        self._migrate()
        try:
            self._each("transferred", count, count)
        except Ended:
            pass  # Whoever disconnects has what it waited for.
        self._each("over")
        for line in self._lines:
            line.disconnect()

    def close(self) -> None:
        """
        End all connections.
        """
        for line in self._lines:
            line.disconnect()
        super().close()
