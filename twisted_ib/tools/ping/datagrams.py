"""
C{udaddy} and C{mckey}: datagrams between two ends, and to a multicast group.

Each datagram carries its sender's queue pair number as immediate data.  A receiver waits for the number of
datagrams that its command line names.  Source: rdma-core 65, C{librdmacm/examples/udaddy.c}, C{mckey.c}.
"""

from __future__ import annotations

import socket
from argparse import Namespace

from twisted_ib import limits
from twisted_ib.tools.ping.line import PingConnection
from twisted_ib.tools.ping.messages import PingProgram, checkMemory, content
from twisted_ib.tools.ping.station import PEER_SILENCE, Steps, VerbsSession, reason
from twisted_ib.tools.program import ProgramError, write
from twisted_ib.verbs.pyverbs import AH, CMID, WC, AddrInfo, JoinMCAttrEx, PyverbsError, QPAttr, enums

# IBTA vol. 1 9.8.3: a datagram's receive buffer begins with 40 octets for the GRH.
_GRH_BYTES = 40
_PORT = 1
_J, _F = enums.rdma_cm_join_mc_attr_mask, enums.rdma_cm_mc_join_flags
#: Seconds that a sender waits before it sends: mckey.c does, too, until switches forward the group.  On
#: Ethernet they learn its members from IGMP and MLD (RFC 4541).
SETTLING = 3.0


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


class DatagramConnection(PingConnection):
    """
    A datagram queue pair.
    """

    def __init__(self, station: VerbsSession, cmid: CMID, options: Namespace, receives: bool = True) -> None:
        """
        @param receives: whether to post all receives.
        @raise ProgramError: memory or a queue pair cannot be had.
        """
        depth = max(options.count, 1)
        super().__init__(station, cmid, depth, depth, True)
        self._count, self._size = options.count, options.size
        self._way: AH | None = None
        self._number = self._key = 0
        self._sent = self._received = 0
        try:
            if self._count:
                self._outbox = self.register(self._size, 0)
                self._outbox.write(content(self._size), self._size)
                # One buffer for all receives: only the last header matters, for the reply.
                self._inbox = self.register(self._size + _GRH_BYTES, enums.IBV_ACCESS_LOCAL_WRITE)
                for _ in range(self._count if receives else 0):
                    self.receive(self._inbox)
        except BaseException:
            self.close()
            raise

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

    def sent(self) -> Steps[None]:
        """
        Wait until all sends have completed.
        """
        return self._transferred(self._count, 0)

    def received(self) -> Steps[None]:
        """
        Wait until all datagrams have been received.
        """
        return self._transferred(0, self._count)

    def _transferred(self, sent: int, received: int) -> Steps[None]:
        while self._sent < sent or self._received < received:
            wc = yield from self.completion()
            if wc.opcode != enums.IBV_WC_RECV:
                self._sent += 1
                continue
            self._received += 1
            # udaddy.c: the server learns the client's address from the first datagram.
            if self._way is None:
                self.aimBack(wc)

    def close(self) -> None:
        # The base's constructor may call this before the attribute is set.
        if getattr(self, "_way", None) is not None:
            assert self._way is not None
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
        self._each("received")
        for line in self._lines:
            line.send()
        self._each("sent")

    def _ask(self) -> None:
        self._connect(None)
        for line in self._lines:
            # The SIDR_REP named queue pair and Q_Key of the server (IBTA vol. 1 12.11).
            line.aim()
            line.send()
        self._each("received")


class Mckey:
    """
    A sender or receiver of C{mckey}.
    """

    def __init__(self, station: VerbsSession, options: Namespace) -> None:
        """
        @raise ProgramError: the address is no group, or datagrams would be too long or need too much memory.
        """
        checkMTU(station, options.count, options.size)
        checkMemory(options.connections, options.size)
        self._station = station
        self._options = options
        self._lines: list[DatagramConnection] = []
        self._joined: list[DatagramConnection] = []
        try:
            self._group = AddrInfo(options.group, port_space=options.space, flags=enums.RAI_PASSIVE)
        except PyverbsError as error:
            raise ProgramError(f"{options.group}: {reason(error)}") from None

    def run(self) -> None:
        """
        Run the program.

        @raise ProgramError: something fails.
        """
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
        for line in self._lines:
            self._station.finish(line, line.sent())

    def _receive(self) -> None:
        write(f"joined {self._options.group}")
        # No timeout: nothing tells when somebody begins to send, and mckey.c waits for ever, too.
        for line in self._lines:
            self._station.finish(line, line.received(), None)

    def close(self) -> None:
        """
        Leave the group, and close everything.
        """
        for line in self._joined:
            try:
                line.cmid.leave_multicast(self._group)
            except PyverbsError:
                # The device is gone, and the membership with it.
                pass
        for line in self._lines:
            line.close()
