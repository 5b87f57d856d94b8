"""
C{udaddy} and C{mckey}: datagrams between two ends, and to a multicast group.

Each datagram has the number of its sender's queue pair as immediate data.  A receiver waits for as many as
it was told of.  Source: rdma-core 65, C{librdmacm/examples/udaddy.c}, C{mckey.c}.
"""

from __future__ import annotations

import socket
from argparse import Namespace

from twisted_ib import limits
from twisted_ib.hca.verbs import AH, CMID, WC, AddrInfo, JoinMCAttrEx, PyverbsError, QPAttr, enums
from twisted_ib.tools.ping.line import Line
from twisted_ib.tools.ping.messages import Ends, checkMemory, content
from twisted_ib.tools.ping.station import SILENCE, Station, Steps, reason
from twisted_ib.tools.program import ProgramError

_GRH_BYTES = 40
_PORT = 1
_J, _F = enums.rdma_cm_join_mc_attr_mask, enums.rdma_cm_mc_join_flags
#: How long a sender waits until it sends, so that switches know who is in the group, in seconds.
SETTLING = 3.0


def checkMTU(station: Station, count: int, size: int) -> None:
    """
    @param count: of datagrams.
    @param size: octets of one.

    @raise ProgramError: it is too long for one packet.
    """
    mtu = 128 << station.context.query_port(_PORT).active_mtu
    if count and size > mtu:
        raise ProgramError(f"a datagram of {size} bytes is longer than the MTU, {mtu}")


class Service(Line):
    """
    One queue pair for datagrams.
    """

    def __init__(self, station: Station, cmid: CMID, options: Namespace, receives: bool = True) -> None:
        """
        Register memory.

        @param receives: whether to post all receives.

        @raise ProgramError: there is none.
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
                self._inbox = self.register(self._size + _GRH_BYTES, enums.IBV_ACCESS_LOCAL_WRITE)
                for _ in range(self._count if receives else 0):
                    self.receive(self._inbox)
        except BaseException:
            self.close()
            raise

    def aim(self) -> None:
        """
        Send to where the communication manager said from now on.

        @raise ProgramError: there is no way there.
        """
        target = self.target
        assert target is not None
        self._aim(target.qp_num, target.qkey, attr=target.ah_attr)

    def aimBack(self, wc: WC) -> None:
        """
        Send to where a datagram came from from now on.

        @param wc: its completion.

        @raise ProgramError: there is no way there.
        """
        qp = self.cmid.qp
        assert qp is not None
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
        Post all datagrams, no faster than the way takes them: more than can wait would be lost.

        @raise ProgramError: it takes none any more.
        """
        qp = self.cmid.qp
        assert qp is not None
        for _ in range(self._count):
            request = self.request(self._outbox, self._size, enums.IBV_WR_SEND_WITH_IMM)
            request.imm_data = socket.htonl(qp.qp_num)
            assert self._way is not None
            request.set_wr_ud(self._way, self._number, self._key)
            self.post(request)
            self._settle(limits.DATAGRAMS_UNRESOLVED - 1)
        self._settle(0)

    def _settle(self, most: int) -> None:
        """
        Wait until few datagrams wait for their way, or for room on it.

        @param most: how many may.

        @raise ProgramError: that does not come.
        """
        departures = self.cmid.device.departures
        if departures.waiting > most:
            if not self.station.wait(lambda: bool(departures.waiting <= most), SILENCE):
                raise ProgramError(f"{self.peer} takes no datagrams")

    def sent(self) -> Steps[None]:
        """
        Wait until all datagrams have gone.
        """
        return self._transferred(self._count, 0)

    def received(self) -> Steps[None]:
        """
        Wait until all datagrams have come.
        """
        return self._transferred(0, self._count)

    def _transferred(self, sent: int, received: int) -> Steps[None]:
        while self._sent < sent or self._received < received:
            wc = yield from self.completion()
            if wc.opcode != enums.IBV_WC_RECV:
                self._sent += 1
                continue
            self._received += 1
            if self._way is None:
                self.aimBack(wc)

    def close(self) -> None:
        """
        Give everything back.
        """
        if getattr(self, "_way", None) is not None:
            assert self._way is not None
            self._way.close()
        super().close()


class Replies(Ends[Service]):
    """
    C{udaddy}: one end.
    """

    lineClass = Service
    what = "datagrams"

    def __init__(self, station: Station, options: Namespace) -> None:
        """
        There is no queue pair.

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
            line.aim()
            line.send()
        self._each("received")


class Group:
    """
    C{mckey}: a sender or a receiver.
    """

    def __init__(self, station: Station, options: Namespace) -> None:
        """
        @raise ProgramError: this is no group, or datagrams would be too long, or need too much memory.
        """
        checkMTU(station, options.count, options.size)
        checkMemory(options.connections, options.size)
        self._station = station
        self._options = options
        self._lines: list[Service] = []
        self._joined: list[Service] = []
        try:
            self._group = AddrInfo(options.group, port_space=options.space, flags=enums.RAI_PASSIVE)
        except PyverbsError as error:
            raise ProgramError(f"{options.group}: {reason(error)}") from None

    def run(self) -> None:
        """
        Do all of it.

        @raise ProgramError: something fails.
        """
        options = self._options
        for _ in range(options.connections):
            cmid = self._station.call(options.own, options.group, 0, options.space)
            self._lines.append(Service(self._station, cmid, options, not options.sender))
        for line in self._lines:
            self._join(line)
        (self._send if options.sender else self._receive)()
        what = "sent" if options.sender else "received"
        print(f"{options.count} datagrams of {options.size} bytes {what}", flush=True)

    def _join(self, line: Service) -> None:
        options = self._options
        flags = _F.RDMA_MC_JOIN_FLAG_FULLMEMBER
        if options.sendOnly:
            flags = _F.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
        mask = _J.RDMA_CM_JOIN_MC_ATTR_ADDRESS | _J.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
        try:
            line.cmid.join_multicast(mc_attr=JoinMCAttrEx(self._group, mask, flags))
        except PyverbsError as error:
            raise ProgramError(f"{options.group}: {reason(error)}") from None
        self._station.finish(line, line.up(), SILENCE)
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
        """
        Wait for what is sent to the group, for as long as it takes.
        """
        print(f"joined {self._options.group}", flush=True)
        for line in self._lines:
            self._station.finish(line, line.received(), None)

    def close(self) -> None:
        """
        Leave the group, and give everything back.
        """
        for line in self._joined:
            try:
                line.cmid.leave_multicast(self._group)
            except PyverbsError:
                pass  # Its device is gone.
        for line in self._lines:
            line.close()
