"""
C{ucmatose}: some connections; the server sends on all of them, then the client, and the server disconnects.

Source: rdma-core 65, C{librdmacm/examples/cmatose.c}.
"""

from __future__ import annotations

from argparse import Namespace

from twisted_ib import limits
from twisted_ib.hca.verbs import CMID, ConnParam, enums
from twisted_ib.tools.pingline import Ended, Line
from twisted_ib.tools.pingstation import CONNECTING, Listener, Station, Steps
from twisted_ib.tools.program import ProgramError

ANY = "0.0.0.0"
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
    if 2 * connections * size > limits.PING_MEMORY:
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


class Messages:
    """
    One end of all connections.
    """

    def __init__(self, station: Station, options: Namespace) -> None:
        """
        There is no connection.

        @raise ProgramError: there would not be enough memory.
        """
        checkMemory(options.connections, options.size)
        self._station = station
        self._options = options
        self._lines: list[Talk] = []
        self._listener: Listener | None = None

    def run(self) -> None:
        """
        Do all of it.

        @raise ProgramError: something fails.
        """
        options = self._options
        (self._serve if options.peer is None else self._ask)()
        print(
            f"{options.connections} connections, {options.count} messages of {options.size} bytes each way",
            flush=True,
        )

    def _each(self, steps: str, *arguments: int) -> None:
        """
        Take the same steps of all connections.
        """
        for line in self._lines:
            self._station.finish(line, getattr(line, steps)(*arguments))

    def _migrate(self) -> None:
        """
        Have other event channels, if that is wanted.
        """
        if self._options.migrate:
            for line in self._lines:
                line.migrate()

    def _serve(self) -> None:
        """
        Be the server.
        """
        options, count = self._options, self._options.count
        listener = self._listener = self._station.listen(options.own or ANY, options.port, options.space)
        while len(self._lines) < options.connections:
            line = Talk(self._station, listener.wait(), options)
            self._lines.append(line)
            line.accept()
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
        """
        Be the client.
        """
        options, count = self._options, self._options.count
        for _ in range(options.connections):
            cmid = self._station.call(options.own, options.peer, options.port, options.space)
            line = Talk(self._station, cmid, options)
            self._lines.append(line)
            line.connect(ConnParam(resources=1, depth=1, retry=5, rnr_retry=0))
        for line in self._lines:
            self._station.finish(line, line.up(), CONNECTING)
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
            line.close()
        if self._listener is not None:
            self._listener.close()
