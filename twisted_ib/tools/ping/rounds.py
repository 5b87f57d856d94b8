"""
The rounds of C{rping}: both ends of one connection.

In each the client tells where it has data, and the server READs them there; then where they shall go
to, and the server WRITEs them there.  A note has 16 octets: address, key and length of memory; those of
the server, which only say that it is done, are zeros.  Source: rdma-core 65,
C{librdmacm/examples/rping.c}.
"""

from __future__ import annotations

from struct import Struct

from twisted_ib.hca.verbs import CMID, MR, ConnParam, enums
from twisted_ib.tools.ping.line import Ended, Line
from twisted_ib.tools.ping.station import Station, Steps
from twisted_ib.tools.program import ProgramError, printable

#: The sizes that rping takes: the first text of all rounds fits, and a message of 64 KiB is too long.
LEAST, MOST = 23, 65535

_NOTE = Struct("!QII")
_DONE = bytes(_NOTE.size)
#: The characters of the text, one further in each round.
_FIRST, _LETTERS = ord("A"), 58
_SENDS, _RECEIVES = 16, 2
_A = enums.ibv_access_flags
_LOCAL, _READ, _WRITE = _A.IBV_ACCESS_LOCAL_WRITE, _A.IBV_ACCESS_REMOTE_READ, _A.IBV_ACCESS_REMOTE_WRITE
_OPCODES = {
    enums.IBV_WC_RECV: "a message",
    enums.IBV_WC_RDMA_READ: "a READ",
    enums.IBV_WC_RDMA_WRITE: "a WRITE",
}


def text(number: int, size: int) -> bytes:
    """
    @param number: of the round, from 0.
    @param size: octets.

    @return: its data; the last octet is 0.
    """
    head = b"rdma-ping-%d: " % number
    # The first character after the head is one further in each round.
    letters = bytes(_FIRST + i for i in range(_LETTERS))
    rotated = letters[number % _LETTERS :] + letters[: number % _LETTERS]
    data = head + rotated * (max(size - len(head), 0) // _LETTERS + 1)
    return data[: size - 1] + b"\0"


class Rounds(Line):
    """
    One end.

    @ivar count: how many rounds are done.
    @ivar isWithin: one has begun that is not done.
    """

    def __init__(self, station: Station, cmid: CMID, size: int) -> None:
        """
        Register the memory, and post the first receive.

        @param size: octets of data.

        @raise ProgramError: there is none.
        """
        super().__init__(station, cmid, _SENDS, _RECEIVES)
        self.size = size
        self.count = 0
        self.isWithin = False
        try:
            self._inbox = self.register(_NOTE.size, _LOCAL)
            self._outbox = self.register(_NOTE.size, 0)
            self._data = self.register(size, _LOCAL | _READ | _WRITE)
            self.receive(self._inbox)
        except BaseException:
            self.close()
            raise

    def tell(self, note: bytes) -> None:
        """
        Send a note.
        """
        self._outbox.write(note, _NOTE.size)
        self.post(self.request(self._outbox, _NOTE.size, enums.IBV_WR_SEND))

    def done(self, opcode: int) -> Steps[int]:
        """
        Wait for the next completion that is not a SEND's.

        @param opcode: what it has to be.

        @return: how many octets it had.

        @raise ProgramError: it is something else.
        """
        while True:
            wc = yield from self.completion()
            if wc.opcode == opcode:
                return wc.byte_len
            if wc.opcode != enums.IBV_WC_SEND:
                raise ProgramError(f"{self.peer}: {_OPCODES.get(wc.opcode, 'something')} came out of turn")

    def hearNote(self) -> Steps[tuple[int, int, int]]:
        """
        Wait for a note.

        @return: the address, the key and the length of memory.

        @raise ProgramError: it is none.
        """
        length = yield from self.done(enums.IBV_WC_RECV)
        if length != _NOTE.size:
            raise ProgramError(f"{self.peer} has sent {length} bytes where {_NOTE.size} were due")
        address, key, size = _NOTE.unpack(self._inbox.read(_NOTE.size, 0))
        self.receive(self._inbox)
        self.station.say(f"told of {size} bytes at {address:#x} with key {key:#x}")
        return address, key, size


class Client(Rounds):
    """
    Who asks.
    """

    def __init__(self, station: Station, cmid: CMID, size: int) -> None:
        """
        Register the memory that the data are read from, too.
        """
        super().__init__(station, cmid, size)
        try:
            self._start = self.register(size, _LOCAL | _READ | _WRITE)
        except BaseException:
            self.close()
            raise

    def call(self) -> Steps[None]:
        """
        Call the server.
        """
        self.connect(ConnParam(resources=1, depth=1, retry=7, rnr_retry=7))
        return self.up()

    def ping(self, count: int, verbose: bool) -> Steps[None]:
        """
        Do rounds.

        @param count: how many; 0 is without end.
        @param verbose: whether to print what comes back.

        @raise ProgramError: one fails, or other data come back than went.
        """
        while not count or self.count < count:
            data = text(self.count, self.size)
            self._start.write(data, self.size)
            # Nothing of the round before is to pass for what comes back.
            self._data.write(bytes(self.size), self.size)
            self.isWithin = True
            for region in (self._start, self._data):
                yield from self._offer(region)
            back = self._data.read(self.size, 0)
            if back != data:
                raise ProgramError(f"{self.peer} has sent other data back in round {self.count + 1}")
            self.isWithin = False
            self.count += 1
            if verbose:
                print("ping data:", back[:-1].decode(), flush=True)

    def _offer(self, region: MR) -> Steps[None]:
        """
        Tell of memory, and wait until the server is done with it.
        """
        self.tell(_NOTE.pack(region.buf, region.rkey, self.size))
        yield from self.hearNote()


class Server(Rounds):
    """
    Who answers one client.
    """

    def serve(self, verbose: bool, validate: bool) -> Steps[None]:
        """
        Accept, and do rounds until the client disconnects.

        @param verbose: whether to print what the client has.
        @param validate: whether it has to be what a client has.

        @raise ProgramError: the connection does not come about, or a round fails.
        """
        self.accept()
        yield from self.up(orFirst=True)
        try:
            yield from self._rounds(verbose, validate)
        except Ended:
            pass

    def _rounds(self, verbose: bool, validate: bool) -> Steps[None]:
        """
        Do rounds.

        @raise Ended: the client has disconnected.
        @raise ProgramError: a round fails.
        """
        while True:
            address, key, size = yield from self.hearNote()
            self.isWithin = True
            data = yield from self._fetch(address, key, size)
            if validate and data != text(self.count, len(data)):
                raise ProgramError(f"{self.peer} has other data than due in round {self.count + 1}")
            if verbose:
                print("server ping data:", printable(data[:-1].decode("latin-1")), flush=True)
            self.tell(_DONE)
            address, key, _ = yield from self.hearNote()
            echo = self.request(self._data, len(data), enums.IBV_WR_RDMA_WRITE)
            echo.set_wr_rdma(key, address)
            self.post(echo)
            yield from self.done(enums.IBV_WC_RDMA_WRITE)
            # First, as the client may disconnect as soon as it hears of it.
            self.isWithin = False
            self.count += 1
            self.tell(_DONE)

    def _fetch(self, address: int, key: int, size: int) -> Steps[bytes]:
        """
        READ what the client has.

        @return: the data, up to the first octet of 0, and with it.

        @raise ProgramError: they have no end, or there is no room.
        """
        if size > self.size:
            raise ProgramError(f"{self.peer} has {size} bytes, this server room for {self.size} (-S)")
        request = self.request(self._data, size, enums.IBV_WR_RDMA_READ)
        request.set_wr_rdma(key, address)
        self.post(request)
        yield from self.done(enums.IBV_WC_RDMA_READ)
        data, end, _ = self._data.read(size, 0).partition(b"\0")
        if not end:
            raise ProgramError(f"{self.peer} has data without an end")
        return data + end
