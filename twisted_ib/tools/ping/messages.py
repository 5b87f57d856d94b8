"""
C{ucmatose}: messages over several connections: the server sends, then the client, then the server
disconnects.

Source: rdma-core 65, C{librdmacm/examples/cmatose.c}.

C{udaddy} and C{mckey}: datagrams between two ends, and to a multicast group.

Each datagram carries its sender's queue pair number as immediate data.  A receiver waits for the number of
datagrams that its command line names.  Source: rdma-core 65, C{librdmacm/examples/udaddy.c}, C{mckey.c}.
"""

from __future__ import annotations

import socket
from argparse import Namespace
from collections.abc import Callable
from typing import Generic, TypeVar

from twisted_ib import limits
from twisted_ib.tools.ping.line import PeerEnded, PingConnection
from twisted_ib.tools.ping.station import CONNECTING, PEER_SILENCE, Listener, Steps, VerbsSession, reason
from twisted_ib.tools.program import ProgramError, write
from twisted_ib.verbs.pyverbs import (
    AH,
    CMID,
    WC,
    AddrInfo,
    ConnParam,
    JoinMCAttrEx,
    PyverbsError,
    QPAttr,
    enums,
)

# IBTA vol. 1 9.8.3: a datagram's receive buffer begins with 40 octets for the GRH.
_GRH_BYTES = 40
_PORT = 1
_J, _F = enums.rdma_cm_join_mc_attr_mask, enums.rdma_cm_mc_join_flags
#: Seconds that a sender waits before it sends: mckey.c does, too, until switches forward the group.  On
#: Ethernet they learn its members from IGMP and MLD (RFC 4541).
SETTLING = 3.0

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


class Line(PingConnection):
    """
    A queue pair with memory for the messages of the command line.

    @cvar head: octets in front of those that arrive.
    """

    head = 0

    def __init__(
        self,
        station: VerbsSession,
        cmid: CMID,
        options: Namespace,
        datagrams: bool = False,
        receives: bool = True,
    ) -> None:
        """
        Register memory, and post all receives.

        @param receives: whether there are any.
        @raise ProgramError: memory or a queue pair cannot be had.
        """
        # cmatose.c: with -C 0 nothing is sent, but a queue pair of depth 0 cannot be created.
        depth = max(options.count, 1)
        super().__init__(station, cmid, depth, depth, datagrams)
        self._count, self._size = options.count, options.size
        self._sent = self._received = 0
        try:
            self._prepare(options)
            if self._count:
                self._outbox = self.register(self._size, 0)
                self._outbox.write(content(self._size), self._size)
                # One buffer for all, as nobody reads the contents.
                self._inbox = self.register(self.head + self._size, enums.IBV_ACCESS_LOCAL_WRITE)
                # Before the connection is made: with rnr_retry 0 a single RNR NAK would end it.
                for _ in range(self._count if receives else 0):
                    self.receive(self._inbox)
        except BaseException:
            self.close()
            raise

    def _prepare(self, options: Namespace) -> None:
        pass

    def _arrived(self, wc: WC) -> None:
        pass

    def transferred(self, sent: int, received: int) -> Steps[None]:
        """
        Wait until C{sent} sends and C{received} receives have completed.
        """
        while self._sent < sent or self._received < received:
            wc = yield from self.completion()
            if wc.opcode == enums.IBV_WC_RECV:
                self._received += 1
                self._arrived(wc)
            else:
                self._sent += 1


class CmatoseConnection(Line):
    """
    One connection.
    """

    def _prepare(self, options: Namespace) -> None:
        if options.timeout is not None:
            # cmatose.c -a: the timeout goes into the REQ, so it has to be set before connecting.
            self.cmid.set_option(enums.RDMA_OPTION_ID, enums.RDMA_OPTION_ID_ACK_TIMEOUT, options.timeout, 1)

    def send(self) -> None:
        """
        Post all messages.
        """
        for _ in range(self._count):
            self.post(self.request(self._outbox, self._size, enums.IBV_WR_SEND))


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


def checkMTU(station: VerbsSession, count: int, size: int) -> None:
    """
    @param count: datagrams; with 0 any size will do.
    @raise ProgramError: a datagram of C{size} octets does not fit a packet.
    """
    # IBTA vol. 1 9.8.3: a UD message is a single packet.  Linux rxe_req.c drops a longer one and reports
    # success.
    mtu = 128 << station.context.query_port(_PORT).active_mtu
    if count and size > mtu:
        raise ProgramError(f"a datagram of {size} bytes is longer than the MTU, {mtu}")


class DatagramConnection(Line):
    """
    A datagram queue pair.
    """

    head = _GRH_BYTES

    def __init__(self, station: VerbsSession, cmid: CMID, options: Namespace, receives: bool = True) -> None:
        self._way: AH | None = None
        self._number = self._key = 0
        super().__init__(station, cmid, options, True, receives)

    def aim(self) -> None:
        """
        Set the destination: the one that the communication manager has resolved.

        @raise ProgramError: there is no path to it.
        """
        target = self.target
        assert target is not None
        self._aim(target.qp_num, target.qkey, attr=target.ah_attr)

    def aimBack(self, wc: WC) -> None:
        """
        Set the destination: the sender of a datagram.

        @param wc: the datagram's completion.
        @raise ProgramError: there is no path to it.
        """
        qp = self.cmid.qp
        assert qp is not None
        # udaddy.c create_reply_ah: the queue pair number comes in the immediate data, and the Q_Key is this
        # end's own, as both are of RDMA_PS_UDP.
        attr: QPAttr = qp.query(enums.IBV_QP_QKEY)[0]
        self._aim(socket.ntohl(wc.imm_data), attr.qkey, wc=wc, port_num=_PORT, grh=self._inbox.buf)

    def _aim(self, number: int, key: int, **where: object) -> None:
        try:
            self._way = AH(self.station.pd, **where)
        except PyverbsError as error:
            raise ProgramError(reason(error)) from None
        self._number, self._key = number, key

    def send(self) -> None:
        """
        Post all datagrams, no faster than the path accepts them.

        @raise ProgramError: it accepts none any more.
        """
        qp = self.cmid.qp
        assert qp is not None
        for _ in range(self._count):
            request = self.request(self._outbox, self._size, enums.IBV_WR_SEND_WITH_IMM)
            request.imm_data = socket.htonl(qp.qp_num)
            assert self._way is not None
            request.set_wr_ud(self._way, self._number, self._key)
            self.post(request)
            # Until the path is resolved the device keeps this many and drops the rest, as a wire would.
            self._settle(limits.DATAGRAMS_QUEUED - 1)
        self._settle(0)

    def _settle(self, most: int) -> None:
        # Completions cannot pace the sender: a UD send completes when its datagram is on its way or lost.
        addressPaths = self.cmid.device.addressPaths
        if addressPaths.waiting > most:
            if not self.station.wait(lambda: bool(addressPaths.waiting <= most), PEER_SILENCE):
                raise ProgramError(f"{self.peer} takes no datagrams")

    def _arrived(self, wc: WC) -> None:
        # udaddy.c: the server learns the client's address from the first datagram.
        if self._way is None:
            self.aimBack(wc)

    def close(self) -> None:
        if self._way is not None:
            self._way.close()
        super().close()


class Udaddy(PingProgram[DatagramConnection]):
    """
    One side of C{udaddy}.
    """

    lineClass = DatagramConnection
    what = "datagrams"

    def __init__(self, station: VerbsSession, options: Namespace) -> None:
        """
        @raise ProgramError: datagrams would be too long, or need too much memory.
        """
        checkMTU(station, options.count, options.size)
        super().__init__(station, options)

    def _serve(self) -> None:
        self._accept()
        self._each("transferred", 0, self._options.count)
        for line in self._lines:
            line.send()
        self._each("transferred", self._options.count, 0)

    def _ask(self) -> None:
        self._connect(None)
        for line in self._lines:
            # The SIDR_REP named queue pair and Q_Key of the server (IBTA vol. 1 12.11).
            line.aim()
            line.send()
        self._each("transferred", 0, self._options.count)


class Mckey(PingProgram[DatagramConnection]):
    """
    A sender or receiver of C{mckey}.
    """

    def __init__(self, station: VerbsSession, options: Namespace) -> None:
        """
        @raise ProgramError: the address is no group, or datagrams would be too long or need too much memory.
        """
        checkMTU(station, options.count, options.size)
        super().__init__(station, options)
        self._joined: list[DatagramConnection] = []
        try:
            self._group = AddrInfo(options.group, port_space=options.space, flags=enums.RAI_PASSIVE)
        except PyverbsError as error:
            raise ProgramError(f"{options.group}: {reason(error)}") from None

    def run(self) -> None:
        options = self._options
        for _ in range(options.connections):
            cmid = self._station.call(options.own, options.group, 0, options.space)
            self._lines.append(DatagramConnection(self._station, cmid, options, not options.sender))
        for line in self._lines:
            self._join(line)
        (self._send if options.sender else self._receive)()
        what = "sent" if options.sender else "received"
        write(f"{options.count} datagrams of {options.size} bytes {what}")

    def _join(self, line: DatagramConnection) -> None:
        options = self._options
        flags = _F.RDMA_MC_JOIN_FLAG_FULLMEMBER
        if options.sendOnly:
            flags = _F.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
        # rdma_join_multicast_ex(3): the plain call has no join flags, which -o needs.
        mask = _J.RDMA_CM_JOIN_MC_ATTR_ADDRESS | _J.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
        try:
            line.cmid.join_multicast(mc_attr=JoinMCAttrEx(self._group, mask, flags))
        except PyverbsError as error:
            raise ProgramError(f"{options.group}: {reason(error)}") from None
        self._station.finish(line, line.up(), PEER_SILENCE)
        # Only groups that were joined are left in close().
        self._joined.append(line)
        line.aim()

    def _send(self) -> None:
        if not self._options.count:
            return
        self._station.wait(lambda: False, SETTLING)
        for line in self._lines:
            line.send()
        self._each("transferred", self._options.count, 0)

    def _receive(self) -> None:
        write(f"joined {self._options.group}")
        # No timeout: nothing tells when somebody begins to send, and mckey.c waits for ever, too.
        for line in self._lines:
            self._station.finish(line, line.transferred(0, self._options.count), None)

    def close(self) -> None:
        for line in self._joined:
            try:
                line.cmid.leave_multicast(self._group)
            except PyverbsError:
                # The device is gone, and the membership with it.
                pass
        super().close()
