"""
Identifiers: the endpoints of the communication manager, as sockets are those of TCP.

An identifier is bound to an address and to a device, finds the way to another, or listens.  What
it does on the wire is its I{transport}'s: a connection (L{twisted_ib.hca.verbs.cm.connected}) or a
datagram service (L{twisted_ib.hca.verbs.cm.datagram}).  What happens to it is put down in its
L{Reports}; nobody is called.  L{CMID<twisted_ib.hca.verbs.cm.cmid.CMID>} is what programs see of it.

Everything here is done with the hub's lock held.
"""

from __future__ import annotations

import errno
import secrets
from typing import Any

from twisted_ib.errors import HCAError
from twisted_ib.hca.verbs.base.addr import GID
from twisted_ib.hca.verbs.base.errors import PyverbsRDMAError
from twisted_ib.hca.verbs.base.verb import invalid
from twisted_ib.hca.verbs.cm.addrinfo import Address
from twisted_ib.hca.verbs.cm.binding import Binding
from twisted_ib.hca.verbs.cm.connected import Connected
from twisted_ib.hca.verbs.cm.datagram import Datagrams
from twisted_ib.hca.verbs.cm.event import Report, Reports, Target
from twisted_ib.hca.verbs.cm.listener import Listener
from twisted_ib.hca.verbs.cm.negotiation import HOP_LIMIT, PACKET_LIFETIME, groupAddress, numberOf
from twisted_ib.hca.verbs.cm.stage import STEPS, Stage
from twisted_ib.hca.verbs.enums.cm import RDMA_UDP_QKEY, rdma_cm_event_type, rdma_port_space
from twisted_ib.hca.verbs.enums.queues import ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type
from twisted_ib.hca.verbs.objects.cq import CQ, CompChannel
from twisted_ib.hca.verbs.objects.device import Context
from twisted_ib.hca.verbs.objects.pd import PD
from twisted_ib.hca.verbs.qp.qp import QP
from twisted_ib.hca.verbs.qp.qpattr import QPAttr, QPInitAttr
from twisted_ib.hca.wire.cm.rdmacm import gidNumber, gidOf

_E, _S = rdma_cm_event_type, ibv_qp_state

#: The queue pair number that stands for a group (IBTA vol. 1 10.5.1).
MULTICAST_QPN = 0xFFFFFF
#: What begins the MGID of an IPv4 group where peers are not IP addresses, before C{::ffff:a.b.c.d}:
#: ff0e, as Linux RDMA-CM's on RoCE version 1.
_IPV4_GROUP = b"\xff\x0e" + bytes(8) + b"\xff\xff"
_FIRST_EPHEMERAL_PORT = 49152
_PORTS = 1 << 16


class Identifier:
    """
    One endpoint.

    @ivar reports: where what happens is put down.
    @ivar isSynchronous: its commands wait until they are done.
    @ivar portSpace: one of C{rdma_port_space}.
    @ivar qpType: one of C{ibv_qp_type}.
    @ivar stage: the L{Stage}.
    @ivar source: its address; C{destination} the peer's.
    @ivar qp: its queue pair, if it has made one.
    @ivar timeout: the timeout code that the program has set for acknowledgements, or None.
    @ivar lifetime: of packets, a timeout code.
    @ivar requestsWaiting: how many requests nobody has heard of yet.
    @ivar deviceName: of the device that it shall use; None if its addresses decide.
    @ivar initAttr: of a listener: the attributes of its children's queue pairs, or None.
    """

    def __init__(self, reports: Reports, isSynchronous: bool, portSpace: int, qpType: int) -> None:
        self.reports = reports
        self.isSynchronous = isSynchronous
        self.portSpace = portSpace
        self.qpType = qpType
        self.stage = Stage.IDLE
        self.binding: Binding | None = None
        self.source: Address | None = None
        self.destination: Address | None = None
        self.qp: QP | None = None
        self.sendCQ: CQ | None = None
        self.recvCQ: CQ | None = None
        self.timeout: int | None = None
        self.lifetime = PACKET_LIFETIME
        self.requestsWaiting = 0
        self.deviceName: str | None = None
        self.initAttr: QPInitAttr | None = None
        self.transport: Connected | Datagrams = Datagrams(self) if self.isDatagram else Connected(self)
        self._channels: list[CompChannel] = []
        self._listener: Listener | None = None
        self._groups: dict[str, tuple[GID, bool]] = {}

    @property
    def isDatagram(self) -> bool:
        """
        Whether it is for datagrams.
        """
        return self.qpType == ibv_qp_type.IBV_QPT_UD

    @property
    def device(self) -> Any:
        """
        The HCA that it is bound to.

        @raise PyverbsRDMAError: there is none yet (EINVAL).
        """
        if self.binding is None:
            raise invalid("The identifier is bound to no device")
        return self.binding.device

    def now(self) -> float:
        """
        The time of its device.
        """
        now: float = self.device.clock()
        return now

    def step(self, command: str) -> None:
        """
        Go on.

        @raise PyverbsRDMAError: the command makes no sense now (EINVAL).
        """
        stages, stage = STEPS[command]
        if self.stage not in stages:
            raise invalid(f"An identifier that is {self.stage.name.lower()} cannot {command}")
        self.stage = stage

    def report(self, kind: int, **what: Any) -> None:
        """
        Something happened.
        """
        if self.stage is not Stage.CLOSED:
            self.reports.add(Report(kind, self, **what))

    def child(self, source: Address, destination: Address) -> Identifier:
        """
        @return: an identifier for somebody who called this one.
        """
        reports = Reports() if self.isSynchronous else self.reports
        child = Identifier(reports, self.isSynchronous, self.portSpace, self.qpType)
        assert self.binding is not None
        child.binding = self.binding.share()
        child.source, child.destination = source, destination
        child.stage = Stage.CALLED
        return child

    # -- addresses

    def use(
        self, pd: PD | None = None, source: Address | None = None, destination: Address | None = None
    ) -> Binding:
        """
        Have a device.

        @param pd: a domain of it, if the program brings one.
        @param source: where it is to be bound to, if that is known.
        @param destination: where it is to go to, if that is known.
        """
        if self.binding is None:
            self.binding = Binding.get(pd, self.deviceName, source, destination)
        return self.binding

    def bind(self, address: Address | None, destination: Address | None = None) -> None:
        """
        Take an address of this host.

        @param address: with port 0 for any port.
        @param destination: where to go to from there, if it is known.

        @raise PyverbsRDMAError: it is none (EADDRNOTAVAIL).
        """
        if address is None:
            raise invalid("Failed to Bind ID: there is no source address")
        device = self.use(None, address, destination).device
        if self.stage is Stage.IDLE and not address.isAny and not self._isOurs(device, address):
            raise PyverbsRDMAError(f"{address.host} is not an address of this host", errno.EADDRNOTAVAIL)
        self.step("bind")
        self.source = address

    @staticmethod
    def _isOurs(device: Any, address: Address) -> bool:
        return bool(device.hasGID(gidNumber(address.host)))

    def resolveAddress(self, source: Address | None, destination: Address | None) -> None:
        """
        Look for the other address: this host's can be reached, and groups.

        @param source: where from, if the identifier is not bound.
        """
        if destination is None:
            raise invalid("Failed to Resolve Address: there is no destination")
        if self.stage is Stage.IDLE:
            here = Address("0.0.0.0" if destination.version == 4 else "::", 0)
            self.bind(source or here, destination)
        assert self.source is not None
        if self.source.version != destination.version:
            raise invalid("Failed to Resolve Address: the addresses are of different IP versions")
        self.step("resolve address")
        if destination.isAny:
            # As with TCP.
            destination = Address("127.0.0.1" if destination.version == 4 else "::1", destination.port)
        self.destination = destination
        device = self.device
        if not destination.isMulticast and not self._isReachable(device, destination):
            self.stage = Stage.BOUND
            self.report(_E.RDMA_CM_EVENT_ADDR_ERROR, status=-errno.ENODEV)
            return
        host = self.source.host
        if self.source.isAny and not destination.isMulticast:
            # To an HCA's own GID one goes from one's own.
            isAddress = device.addressed or device.isLocal(destination.host)
            host = device.localAddressFor(destination.host) if isAddress else device.gids()[0]
        port = self.source.port or _FIRST_EPHEMERAL_PORT + secrets.randbelow(_PORTS - _FIRST_EPHEMERAL_PORT)
        self.source = Address(host, port)
        self.report(_E.RDMA_CM_EVENT_ADDR_RESOLVED)

    def _isReachable(self, device: Any, address: Address) -> bool:
        """
        Whether there may be somebody at an address: one of this host, or an HCA's own GID, which
        only C{RDMA_PS_IB} has a use for.  Where peers are IP addresses: any of the device's version.
        """
        if device.addressed:
            return (":" in device.address) == (":" in address.host)
        isGID = self.portSpace == rdma_port_space.RDMA_PS_IB and address.host.startswith("fe80:")
        return isGID or self._isOurs(device, address)

    def resolveRoute(self) -> None:
        """
        All ways of this device are alike: there is nothing to find out.
        """
        self.step("resolve route")
        if self.timeout:
            self.lifetime = self.timeout - 1
        self.report(_E.RDMA_CM_EVENT_ROUTE_RESOLVED)

    def listen(self, backlog: int) -> None:
        """
        Take requests.

        @param backlog: how many wait at most; 0 for as many as is usual.

        @raise PyverbsRDMAError: somebody else does at this address (EADDRINUSE).
        """
        if self.stage is Stage.IDLE:
            self.bind(Address("0.0.0.0", 0))
        assert self.source is not None
        self.step("listen")
        try:
            self._listener = listener = Listener(self, backlog)
        except HCAError:
            self.stage = Stage.BOUND
            raise
        self.source = Address(self.source.host, listener.port)

    # -- queue pairs

    def createQP(self, attr: QPInitAttr, pd: PD | None) -> None:
        """
        Make the queue pair, and completion queues unless C{attr} has them: those that were made
        belong to the identifier.

        @raise PyverbsRDMAError: it has one already, or of another type (EINVAL), or it cannot be
            made.
        """
        if self.qp is not None:
            raise invalid("Failed to Create QP: the identifier has one")
        binding = self.use()
        pd = pd or binding.pd
        if pd.ctx is None or pd.ctx._device is not binding.device:
            raise invalid("Failed to Create QP: the domain is another device's")
        if attr.qp_type != self.qpType:
            raise invalid("Failed to Create QP: the identifier is for another type")
        sendCQ, recvCQ = attr.send_cq, attr.recv_cq
        try:
            if sendCQ is None and self.sendCQ is None:
                self.sendCQ = self._createCQ(pd.ctx, attr.max_send_wr)
            if recvCQ is None and self.recvCQ is None:
                self.recvCQ = self._createCQ(pd.ctx, attr.max_recv_wr)
            queues = sendCQ or self.sendCQ, recvCQ or self.recvCQ
            qp = QP(
                pd,
                QPInitAttr(attr.qp_type, attr.qp_context, *queues, attr.srq, attr.cap, attr.sq_sig_all),
            )
        except BaseException:
            self._destroyCQs()
            raise
        try:
            for state in self.transport.initialStates:
                qp.modify(*self.transport.attributes(state))
        except BaseException:
            qp.close()
            self._destroyCQs()
            raise
        self.qp = qp

    def _createCQ(self, ctx: Context, depth: int) -> CQ:
        channel = CompChannel(ctx)
        self._channels.append(channel)
        return CQ(ctx, max(depth, 1), None, channel, 0)

    def _destroyCQs(self) -> None:
        for made in (self.sendCQ, self.recvCQ, *self._channels):
            if made is not None:
                made.close()
        self.sendCQ = self.recvCQ = None
        self._channels.clear()

    def bringUp(self) -> None:
        """
        Take the queue pair, if there is one, to RTS by what was agreed on.

        @raise PyverbsRDMAError: it cannot go there.
        """
        if self.qp is not None:
            for state in (_S.IBV_QPS_INIT, _S.IBV_QPS_RTR, _S.IBV_QPS_RTS):
                self.qp.modify(*self.transport.attributes(state))

    def bringDown(self) -> None:
        """
        Flush what is posted to the queue pair, if there is one.
        """
        if self.qp is not None:
            self.qp.modify(QPAttr(qp_state=_S.IBV_QPS_ERR), int(ibv_qp_attr_mask.IBV_QP_STATE))

    # -- groups

    def join(self, group: Address | None, sendOnly: bool) -> None:
        """
        Join a group, with the queue pair if there is one.

        @param sendOnly: without receiving anything.

        @raise PyverbsRDMAError: it is no group, the identifier is bound to no device, or not for
            datagrams (EINVAL).
        """
        if group is None or not group.isMulticast:
            raise invalid("Failed to Join multicast: this is no group")
        if not self.isDatagram or self.stage not in (Stage.BOUND, Stage.RESOLVED, Stage.ROUTED):
            raise invalid("Failed to Join multicast: the identifier cannot")
        if group.host in self._groups:
            raise PyverbsRDMAError("Failed to Join multicast: it is in it", errno.EADDRINUSE)
        gid = groupOf(group.host, self.device.addressed)
        attached = self.qp is not None and not sendOnly
        try:
            if attached:
                assert self.qp is not None
                self.qp.attach_mcast(gid, 0)
        except HCAError as error:
            self.report(_E.RDMA_CM_EVENT_MULTICAST_ERROR, status=-numberOf(error))
            return
        self._groups[group.host] = gid, attached
        target = Target(groupAddress(gid, HOP_LIMIT), MULTICAST_QPN, RDMA_UDP_QKEY)
        self.report(_E.RDMA_CM_EVENT_MULTICAST_JOIN, target=target)

    def leave(self, group: Address | None) -> None:
        """
        Leave a group.

        @raise PyverbsRDMAError: the identifier is not in it (EADDRNOTAVAIL).
        """
        if group is None:
            raise invalid("Failed to leave multicast: this is no group")
        if group.host not in self._groups:
            raise PyverbsRDMAError("Failed to leave multicast: it is not in it", errno.EADDRNOTAVAIL)
        gid, attached = self._groups.pop(group.host)
        if attached and self.qp is not None:
            self.qp.detach_mcast(gid, 0)

    # -- the end

    def destroyQP(self) -> None:
        """
        Destroy the queue pair and what was made for it.
        """
        qp, self.qp = self.qp, None
        if qp is not None:
            for gid, attached in self._groups.values():
                if attached and qp._closer is not None:
                    qp.detach_mcast(gid, 0)
            qp.close()
        self._groups.clear()
        self._destroyCQs()

    def close(self) -> None:
        """
        End whatever goes on, tell the peer, and give everything back.  Harmless when repeated.
        """
        if self.stage is Stage.CLOSED:
            return
        self.stage = Stage.CLOSED
        if self.isSynchronous:
            self.reports.drop()
        for report in self.reports.withdraw(self):
            report.drop()
        listener, self._listener = self._listener, None
        binding, self.binding = self.binding, None
        if binding is None:
            return
        try:
            if not binding.device.closed:
                if listener is not None:
                    listener.close()
                self.transport.close(binding.device)
                self.destroyQP()
        finally:
            binding.release()

    def migrate(self, reports: Reports, isSynchronous: bool) -> None:
        """
        Report elsewhere from now on, and what nobody has heard of yet as well.
        """
        for report in self.reports.withdraw(self):
            reports.add(report)
        self.reports, self.isSynchronous = reports, isSynchronous


def groupOf(host: str, mapped: bool = False) -> GID:
    """
    The MGID of an IP group.

    @param mapped: whether that of an IPv4 group is its address, as in RoCE version 2.
    """
    packed = gidOf(host)
    if ":" not in host and not mapped:
        packed = _IPV4_GROUP + packed[12:]
    return GID(packed.hex(":", 2))
