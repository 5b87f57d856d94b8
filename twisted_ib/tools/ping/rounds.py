"""
The protocol of C{rping}, both ends of one connection.

In each round the client advertises memory with data, which the server READs, and then memory for the echo,
which the server WRITEs.  Each advertisement has 16 octets: address, rkey and size; the server's replies have
the same size, and zeros for "done".  Source: rdma-core 65, C{librdmacm/examples/rping.c}.

A server serves one client, or with C{-P} many at once.
"""

from __future__ import annotations

from argparse import Namespace
from struct import Struct
from typing import TYPE_CHECKING, NoReturn

from twisted_ib.errors import HCAError
from twisted_ib.tools.ping.line import PeerEnded, PeerGone, PingConnection
from twisted_ib.tools.ping.station import PEER_SILENCE, PROGRAM, Listener, Steps, VerbsSession, reason
from twisted_ib.tools.program import ProgramError, complain, printable, write
from twisted_ib.verbs.pyverbs import CMID, MR, ConnParam, enums

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

#: Clients that a persistent server has at a time; more are rejected.
PING_CLIENTS = 256

#: rping.c: rdma_listen(cm_id, 3).
BACKLOG = 3
ANY = "0.0.0.0"

#: rping.c RPING_MIN_BUFSIZE (sizeof "INT_MAX" and sizeof the format) and RPING_BUFSIZE - 1: the text
#: "rdma-ping-2147483647: " fits, and 64 KiB do not.
LEAST, MOST = 23, 65535

# rping.c C{struct rping_rdma_info}: __be64 buf, __be32 rkey, __be32 size.
_NOTE: Packed[tuple[int, int, int]] = Struct("!QII")
_DONE = bytes(_NOTE.size)
#: rping.c: characters 65 to 122, from one further in each round.
_FIRST, _LETTERS = ord("A"), 58
# rping.c RPING_SQ_DEPTH, and max_recv_wr 2.
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
    @return: the data of a round; the last octet is 0.
    """
    head = b"rdma-ping-%d: " % number
    # rping.c: the first letter moves on by one each round, so that a stale buffer does not pass for a new
    # one.
    letters = bytes(_FIRST + i for i in range(_LETTERS))
    rotated = letters[number % _LETTERS :] + letters[: number % _LETTERS]
    data = head + rotated * (max(size - len(head), 0) // _LETTERS + 1)
    return data[: size - 1] + b"\0"


class RPing(PingConnection):
    """
    One end of the connection.

    @ivar count: completed rounds.
    @ivar isWithin: a round has begun and is not complete.
    """

    def __init__(self, station: VerbsSession, cmid: CMID, size: int) -> None:
        """
        Register the memory, and post the first receive.

        @param size: octets of data.
        @raise ProgramError: memory or a queue pair cannot be had.
        """
        super().__init__(station, cmid, _SENDS, _RECEIVES)
        self.size = size
        self.count = 0
        self.isWithin = False
        try:
            self._inbox = self.register(_NOTE.size, _LOCAL)
            self._outbox = self.register(_NOTE.size, 0)
            self._data = self.register(size, _LOCAL | _READ | _WRITE)
            # Before the connection is made: the peer may send as soon as it is up.
            self.receive(self._inbox)
        except BaseException:
            self.close()
            raise

    def tell(self, note: bytes) -> None:
        """
        Send an advertisement or a reply.
        """
        self._outbox.write(note, _NOTE.size)
        self.post(self.request(self._outbox, _NOTE.size, enums.IBV_WR_SEND))

    def done(self, opcode: int) -> Steps[int]:
        """
        Wait for the next completion, other than a SEND's.

        @param opcode: the completion that is due.
        @return: its C{byte_len}.
        @raise ProgramError: it is another one.
        """
        while True:
            wc = yield from self.completion()
            if wc.opcode == opcode:
                return wc.byte_len
            if wc.opcode != enums.IBV_WC_SEND:
                raise ProgramError(f"{self.peer}: {_OPCODES.get(wc.opcode, 'something')} came out of turn")

    def hearNote(self) -> Steps[tuple[int, int, int]]:
        """
        Wait for an advertisement or a reply.

        @return: address, rkey and size of the memory.
        @raise ProgramError: the message has another size.
        """
        length = yield from self.done(enums.IBV_WC_RECV)
        # rping.c server_recv: "Received bogus data".
        if length != _NOTE.size:
            raise ProgramError(f"{self.peer} has sent {length} bytes where {_NOTE.size} were due")
        address, key, size = _NOTE.unpack(self._inbox.read(_NOTE.size, 0))
        # Posted again before the reply is sent, so that the peer's next message finds a receive.
        self.receive(self._inbox)
        self.station.say(f"told of {size} bytes at {address:#x} with key {key:#x}")
        return address, key, size


class Client(RPing):
    """
    The client.
    """

    def __init__(self, station: VerbsSession, cmid: CMID, size: int) -> None:
        super().__init__(station, cmid, size)
        try:
            self._start = self.register(size, _LOCAL | _READ | _WRITE)
        except BaseException:
            self.close()
            raise

    def call(self) -> Steps[None]:
        """
        Connect to the server.
        """
        # rping.c: retry_count 7, and rnr_retry_count 7, which is no limit.
        self.connect(ConnParam(resources=1, depth=1, retry=7, rnr_retry=7))
        return self.up()

    def ping(self, count: int, verbose: bool) -> Steps[None]:
        """
        Do rounds.

        @param count: how many; 0 for no end.
        @param verbose: whether to print the echoes.
        @raise ProgramError: a round fails, or the echo is not what was sent.
        """
        while not count or self.count < count:
            data = text(self.count, self.size)
            self._start.write(data, self.size)
            # Cleared, so that the last round's echo cannot pass for this one's.
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
                write(f"ping data: {back[:-1].decode()}")

    def _offer(self, region: MR) -> Steps[None]:
        # rping.c: the server's reply says that it has read, or written; the memory may be used again from
        # then on.
        self.tell(_NOTE.pack(region.buf, region.rkey, self.size))
        yield from self.hearNote()


class Server(RPing):
    """
    The server's end of one client's connection.
    """

    def serve(self, verbose: bool, validate: bool, count: int) -> Steps[None]:
        """
        Accept, and do rounds until the client disconnects.

        @param verbose: whether to print the data.
        @param validate: whether to compare the data with rping's text.
        @param count: the rounds that the client is to do; 0 for any.
        @raise ProgramError: the connection fails, or a round.
        """
        self.accept()
        yield from self.up()
        try:
            yield from self._rounds(verbose, validate)
        except PeerEnded:
            pass
        except PeerGone:
            # After all rounds: the DREQ is lost, and is sent again later than the probe gives up.
            if self.isWithin or not 0 < count <= self.count:
                raise

    def _rounds(self, verbose: bool, validate: bool) -> Steps[None]:
        while True:
            address, key, size = yield from self.hearNote()
            self.isWithin = True
            data = yield from self._fetch(address, key, size)
            if validate and data != text(self.count, len(data)):
                raise ProgramError(f"{self.peer} has other data than due in round {self.count + 1}")
            if verbose:
                write(f"server ping data: {printable(data[:-1].decode('latin-1'))}")
            # rping.c: the server never fills its send_buf, and the client looks at nothing but its length.
            self.tell(_DONE)
            address, key, _ = yield from self.hearNote()
            # rping.c: as many octets as the string has, though the client offers its whole buffer.
            echo = self.request(self._data, len(data), enums.IBV_WR_RDMA_WRITE)
            echo.set_wr_rdma(key, address)
            self.post(echo)
            yield from self.done(enums.IBV_WC_RDMA_WRITE)
            # Before the reply: the client may disconnect as soon as it has it, and the round is complete by
            # then.
            self.isWithin = False
            self.count += 1
            self.tell(_DONE)

    def _fetch(self, address: int, key: int, size: int) -> Steps[bytes]:
        # rping.c reads as much as the client offers; with a smaller buffer that ends in a local protection
        # error, which does not tell the user that -S is too small.
        if size > self.size:
            raise ProgramError(f"{self.peer} has {size} bytes, this server room for {self.size} (-S)")
        request = self.request(self._data, size, enums.IBV_WR_RDMA_READ)
        request.set_wr_rdma(key, address)
        self.post(request)
        yield from self.done(enums.IBV_WC_RDMA_READ)
        # rping.c prints and echoes it as a C string; data without a 0 would run over.
        data, end, _ = self._data.read(size, 0).partition(b"\0")
        if not end:
            raise ProgramError(f"{self.peer} has data without an end")
        return data + end


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
