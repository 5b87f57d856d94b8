"""
Identifiers: the endpoints of the communication manager, as sockets are those of TCP.

An identifier is bound to an address and a device, and connects or listens.  Its I{transport} speaks on the
wire: a connection or a datagram service (L{twisted_ib.verbs.pyverbs.cm.call}).  Events go to its
L{CMEventQueue}; there are no callbacks.
Programs use it through L{CMID<twisted_ib.verbs.pyverbs.cm.cmid.CMID>}.

All calls are made with the hub's lock held.
"""

from __future__ import annotations

import errno
import secrets
from typing import Any, ClassVar

from twisted_ib.errors import HCAError
from twisted_ib.hca.base.traits import PrivateBytes
from twisted_ib.hca.connection.rdmacm import gidNumber
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, addressOf, deviceNames, place
from twisted_ib.hca.host.addresses import isLocalAddress
from twisted_ib.verbs.core.attendant import attendance
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError
from twisted_ib.verbs.pyverbs.base.verb import invalid
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address
from twisted_ib.verbs.pyverbs.cm.call import STEPS, Connected, Datagrams, Stage
from twisted_ib.verbs.pyverbs.cm.event import CMEventQueue, CMEventRecord
from twisted_ib.verbs.pyverbs.cm.groups import Groups
from twisted_ib.verbs.pyverbs.cm.listener import Listener, namesNone
from twisted_ib.verbs.pyverbs.cm.negotiation import PACKET_LIFETIME
from twisted_ib.verbs.pyverbs.cm.nexthop import Search, searched
from twisted_ib.verbs.pyverbs.enums.cm import rdma_cm_event_type, rdma_port_space
from twisted_ib.verbs.pyverbs.enums.queues import ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type
from twisted_ib.verbs.pyverbs.objects.cq import CQ, CompChannel
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.pd import PD
from twisted_ib.verbs.pyverbs.qp.qp import QP
from twisted_ib.verbs.pyverbs.qp.qpattr import QPAttr, QPInitAttr

_E, _S = rdma_cm_event_type, ibv_qp_state

#: RFC 6335 section 6: the dynamic ports.
_FIRST_EPHEMERAL_PORT = 49152
_PORTS = 1 << 16
#: How long the next hop is looked for by default, as pyverbs and librdmacm/cma.c, rdma_create_ep have it.
RESOLVE_MILLISECONDS = 2000


class Binding:
    """
    A context and protection domain for identifiers that bring none.  All identifiers of a process on one
    device share them, as with librdmacm.
    """

    # rdma-core librdmacm/cma.c, ucma_get_device: identifiers of one device share its context and domain, so
    # that memory registered with one works with another.
    _shared: ClassVar[dict[tuple[str, str | None], Binding]] = {}

    def __init__(self, pd: PD | None = None, name: str = DEFAULT_DEVICE, address: str | None = None) -> None:
        """
        @param pd: a domain of the program; without it a context is opened,
        @param name: on the device of this name,
        @param address: and at this address, for a device that has its own address.
        """
        self._users = 0
        self._key = name, address
        if pd is None:
            self.ctx = Context(name=name, address=address)
            self.pd = PD(self.ctx)
        else:
            pd._check()
            assert pd.ctx is not None
            self.ctx, self.pd = pd.ctx, pd
        self._isOurs = pd is None
        self._attendant = attendance.begin()

    @classmethod
    def get(
        cls,
        pd: PD | None,
        name: str | None = None,
        source: Address | None = None,
        destination: Address | None = None,
    ) -> Binding:
        """
        Get a binding for an identifier, which must L{release} it.

        @param pd: the program's own domain, if any.
        @param name: the device's name; None chooses by the addresses.
        @param source: the address to bind to, if known.
        @param destination: the peer's address, if known.
        """
        if pd is not None:
            return cls(pd).share()
        if name is None:
            name = deviceFor(source, destination)
        bound, peer = "" if source is None else source.host, "" if destination is None else destination.host
        key = name, place(name, bound, peer)
        binding = cls._shared.get(key)
        if binding is None or binding.device.closed or binding.pd._closer is None:
            # None yet, or it is closed, or this process was forked and it belongs to the parent.
            binding = cls._shared[key] = cls(None, *key)
        return binding.share()

    @property
    def device(self) -> Device:
        """
        The HCA.
        """
        return self.ctx._device

    def share(self) -> Binding:
        """
        Add a user and return this binding.
        """
        self._users += 1
        return self

    def release(self) -> None:
        """
        Remove a user; the last one closes the context that was opened here.
        """
        self._users -= 1
        if self._users:
            return
        attendance.end(self._attendant)
        if self._isOurs:
            # A newer binding may have replaced this one after a close or fork.
            if Binding._shared.get(self._key) is self:
                del Binding._shared[self._key]
            self.ctx.close()


def deviceFor(source: Address | None, destination: Address | None) -> str:
    """
    Choose a device by addresses: of the named devices with an address of their own, the one bound to
    C{source}, or for a peer on another host the first of the same IP version.

    @return: its name; the default device's if none matches.
    """
    own = {name: address for name in deviceNames() if (address := addressOf(name)) is not None}
    if not own:
        return DEFAULT_DEVICE
    # A bound address decides alone: Linux cma.c, cma_acquire_dev_by_src_ip.
    if source is not None and not source.isAny:
        return next((name for name, address in own.items() if address == source.host), DEFAULT_DEVICE)
    # Peers on this host, and groups, are the default device's: it connects processes through shared memory.
    if destination is None or destination.isMulticast or isLocalAddress(destination.host):
        return DEFAULT_DEVICE
    version = destination.version
    found = (name for name, address in own.items() if (6 if ":" in address else 4) == version)
    return next(found, DEFAULT_DEVICE)


class Identifier:
    """
    One endpoint.
    """

    def __init__(self, reports: CMEventQueue, isSynchronous: bool, portSpace: int, qpType: int) -> None:
        #: The queue for its events.
        self.reports = reports
        #: Whether commands wait for completion.
        self.isSynchronous = isSynchronous
        #: One of C{rdma_port_space}.
        self.portSpace = portSpace
        #: One of C{ibv_qp_type}.
        self.qpType = qpType
        self.stage = Stage.IDLE
        self.binding: Binding | None = None
        #: The local address; C{destination} is the peer's.
        self.source: Address | None = None
        self.destination: Address | None = None
        #: The queue pair that it made, or None.
        self.qp: QP | None = None
        self.sendCQ: CQ | None = None
        self.recvCQ: CQ | None = None
        #: The local ACK timeout code that the program set, or None.
        self.timeout: int | None = None
        #: The packet lifetime, a timeout code.
        self.lifetime = PACKET_LIFETIME
        #: Requests that the program has not fetched.
        self.requestsWaiting = 0
        #: The device chosen by the program; None chooses by the addresses.
        self.deviceName: str | None = None
        #: Whether a listener of C{::} leaves IPv4 to others.
        self.isIPv6Only = False
        #: Of a listener: the attributes of its children's queue pairs, or None.
        self.initAttr: QPInitAttr | None = None
        self.transport: Connected | Datagrams = Datagrams(self) if self.isDatagram else Connected(self)
        self._channels: list[CompChannel] = []
        self._listener: Listener | None = None
        self._search: Search | None = None
        self._groups = Groups(self)

    @property
    def isDatagram(self) -> bool:
        """
        Whether it is for a datagram service.
        """
        return self.qpType == ibv_qp_type.IBV_QPT_UD

    @property
    def device(self) -> Device:
        """
        The HCA that it is bound to.

        @raise PyverbsRDMAError: there is none yet (EINVAL).
        """
        if self.binding is None:
            raise invalid("The identifier is bound to no device")
        return self.binding.device

    @property
    def privateBytes(self) -> PrivateBytes:
        """
        Bytes of private data on its device.
        """
        return self.device.traits.privateBytes

    def now(self) -> float:
        """
        The device's time, seconds.
        """
        now: float = self.device.clock()
        return now

    def step(self, command: str) -> None:
        """
        Enter the next stage.

        @raise PyverbsRDMAError: the stage does not permit the command (EINVAL).
        """
        stages, stage = STEPS[command]
        if self.stage not in stages:
            raise invalid(f"An identifier that is {self.stage.name.lower()} cannot {command}")
        self.stage = stage

    def report(self, kind: int, **what: Any) -> None:
        """
        Queue an event, unless the identifier is closed.
        """
        if self.stage is not Stage.CLOSED:
            self.reports.add(CMEventRecord(kind, self, **what))

    def child(self, source: Address, destination: Address) -> Identifier:
        """
        Make an identifier for an incoming request.
        """
        # A synchronous child waits for its own events only, never for the listener's.
        reports = CMEventQueue() if self.isSynchronous else self.reports
        child = Identifier(reports, self.isSynchronous, self.portSpace, self.qpType)
        assert self.binding is not None
        child.binding = self.binding.share()
        child.source, child.destination = source, destination
        child.stage = Stage.REQ_RECEIVED
        return child

    # -- addresses

    def use(
        self, pd: PD | None = None, source: Address | None = None, destination: Address | None = None
    ) -> Binding:
        """
        Bind to a device, if that is not done.

        @param pd: a domain of the program on that device.
        """
        if self.binding is None:
            self.binding = Binding.get(pd, self.deviceName, source, destination)
        return self.binding

    def bind(self, address: Address | None, destination: Address | None = None) -> None:
        """
        Bind to an address of this host.

        @param address: port 0 binds any port.
        @param destination: the peer's address, if known; it may decide the device.
        @raise PyverbsRDMAError: it is not an address of this host (EADDRNOTAVAIL).
        """
        if address is None:
            raise invalid("Failed to Bind ID: there is no source address")
        device = self.use(None, address, destination).device
        # The device decides by its GID table about an address that names one.
        if self.stage is Stage.IDLE and not (namesNone(device, address) or self._isOurs(device, address)):
            raise PyverbsRDMAError(f"{address.host} is not an address of this host", errno.EADDRNOTAVAIL)
        self.step("bind")
        self.source = address
        # Linux cma.c, cma_alloc_any_port: programs announce the port before they listen.  A client's is drawn
        # when its address is resolved.
        if not address.port and destination is None:
            try:
                self._hold()
            except HCAError:
                self.stage, self.source = Stage.IDLE, None
                raise

    def _hold(self) -> Listener:
        assert self.source is not None
        self._listener = listener = Listener(self)
        self.source = Address(self.source.host, listener.port)
        return listener

    def _letGo(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def leaveIPv4(self, only: bool) -> None:
        """
        Say whether a listener of C{::} leaves IPv4 to others.

        @raise ServiceInUseError: another listener has the port of the other IP version.
        """
        self.isIPv6Only = only
        # Linux cma.c, rdma_set_afonly: a bound identifier may change it.
        if self._listener is not None and self.stage is Stage.BOUND:
            self._letGo()
            self._hold()

    @staticmethod
    def _isOurs(device: Any, address: Address) -> bool:
        return bool(device.hasGID(gidNumber(address.host)) or device.isLocal(address.host))

    def resolveAddress(self, source: Address | None, destination: Address | None, seconds: float) -> None:
        """
        Check that a destination is reachable: an address of this host, a multicast group, or a peer's IP
        address.

        @param source: the address to bind to, if the identifier is not bound.
        @param seconds: how long the kernel may look for the next hop.
        @raise PyverbsRDMAError: there is no route (ENETUNREACH).
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
        # It can listen no more.
        self._letGo()
        if destination.isAny:
            # As with TCP, connecting to the wildcard address means loopback (Linux cma.c,
            # cma_resolve_loopback).
            destination = Address("127.0.0.1" if destination.version == 4 else "::1", destination.port)
        self.destination = destination
        device = self.device
        if not destination.isMulticast and not self._isReachable(device, destination):
            self.stage = Stage.BOUND
            self.report(_E.RDMA_CM_EVENT_ADDR_ERROR, status=-errno.ENODEV)
            return
        try:
            self._search = searched(device, destination, seconds, self._resolved)
        except OSError as error:
            # Linux addr.c, rdma_resolve_ip: without a route it has not begun.
            self.stage = Stage.BOUND
            number = error.errno or errno.ENETUNREACH
            raise PyverbsRDMAError(f"Failed to Resolve Address: {error.strerror}", number) from None

    def _resolved(self, isFound: bool) -> None:
        destination, device = self.destination, self.device
        if not isFound:
            # Linux addr.c, process_one_req.
            self.stage = Stage.BOUND
            self.report(_E.RDMA_CM_EVENT_ADDR_ERROR, status=-errno.ETIMEDOUT)
            return
        assert self.source is not None and destination is not None
        self.stage = Stage.RESOLVED
        host = self.source.host
        if namesNone(device, self.source) and not destination.isMulticast:
            # A peer that is addressed by its HCA's own GID must see such a GID as the source as well.
            isAddress = device.address or device.isLocal(destination.host)
            host = device.localAddressFor(destination.host) if isAddress else device.gids()[0]
        # RFC 6056 section 3.3.1: random ephemeral ports.  Linux cma.c, cma_alloc_any_port starts at a random
        # port too.  The service id has only the destination port, so a collision of source ports is harmless.
        port = self.source.port or _FIRST_EPHEMERAL_PORT + secrets.randbelow(_PORTS - _FIRST_EPHEMERAL_PORT)
        self.source = Address(host, port)
        self.report(_E.RDMA_CM_EVENT_ADDR_RESOLVED)

    def _isReachable(self, device: Any, address: Address) -> bool:
        # Whether a remote host is up the REQ's retries say: the kernel knows the next hop only.
        if device.address is not None:
            return (":" in device.address) == (":" in address.host)
        # Only RDMA_PS_IB has GIDs as addresses; elsewhere fe80: is an IPv6 link-local address of the host.
        isGID = self.portSpace == rdma_port_space.RDMA_PS_IB and address.host.startswith("fe80:")
        return isGID or bool(device.guidOf(address.host)) or self._isOurs(device, address)

    def resolveRoute(self) -> None:
        """
        Resolve the route at once: each destination has only one.
        """
        self.step("resolve route")
        # IBTA vol. 1 12.7.34: the local ACK timeout is two packet lifetimes and the ACK delay, which is
        # neglected: half is one code less (Linux cma.c, cma_resolve_iboe_route).
        if self.timeout:
            self.lifetime = self.timeout - 1
        self.report(_E.RDMA_CM_EVENT_ROUTE_RESOLVED)

    def listen(self, backlog: int) -> None:
        """
        Listen for requests.

        @param backlog: requests that wait at most; 0 for the default.
        @raise PyverbsRDMAError: another listener has this address and port (EADDRINUSE).
        """
        if self.stage is Stage.IDLE:
            self.bind(Address("0.0.0.0", 0))
        self.step("listen")
        try:
            listener = self._listener or self._hold()
        except HCAError:
            # The program may try again, with another port or when the other listener is gone.
            self.stage = Stage.BOUND
            raise
        listener.setBacklog(backlog)

    # -- queue pairs

    def createQP(self, attr: QPInitAttr, pd: PD | None) -> None:
        """
        Make the queue pair, and completion queues unless C{attr} has them; these belong to the identifier.

        @raise PyverbsRDMAError: there is one already, or a wrong type or domain (EINVAL), or no resources.
        """
        binding = self._bindingOfQP(attr.qp_type)
        pd = pd or binding.pd
        # IBTA vol. 1 10.2.3: objects of one protection domain belong to one HCA.
        if pd.ctx is None or pd.ctx._device is not binding.device:
            raise invalid("Failed to Create QP: the domain is another device's")
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
            self._prepare(qp)
        except BaseException:
            qp.close()
            self._destroyCQs()
            raise

    def takeQP(self, qp: QP) -> None:
        """
        Take a queue pair that the program made.

        @raise PyverbsRDMAError: there is one already, or it is of another type or device (EINVAL).
        """
        binding = self._bindingOfQP(qp.qp_type)
        if qp._device is not binding.device:
            raise invalid("Failed to Create QP: it is another device's")
        self._prepare(qp)

    def _bindingOfQP(self, kind: int) -> Binding:
        if self.qp is not None:
            raise invalid("Failed to Create QP: the identifier has one")
        if kind != self.qpType:
            raise invalid("Failed to Create QP: the identifier is for another type")
        return self.use()

    def _prepare(self, qp: QP) -> None:
        # librdmacm/cma.c, rdma_create_qp_ex: the queue pair is returned in a state that accepts receives.
        for state in self.transport.initialStates:
            qp.modify(*self.transport.attributes(state))
        self.qp = qp

    def _createCQ(self, ctx: Context, depth: int) -> CQ:
        # librdmacm/cma.c, ucma_create_cqs: each completion queue has a channel of its own.  Depth 0 would be
        # refused.
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
        Move the queue pair, if any, to RTS with the negotiated attributes.

        @raise PyverbsRDMAError: a transition fails.
        """
        if self.qp is not None:
            # INIT again is harmless: INIT to INIT is a transition of IBTA vol. 1 10.3.1, and now the access
            # rights are known.
            for state in (_S.IBV_QPS_INIT, _S.IBV_QPS_RTR, _S.IBV_QPS_RTS):
                self.qp.modify(*self.transport.attributes(state))

    def bringDown(self) -> None:
        """
        Flush the queue pair, if any.
        """
        if self.qp is not None:
            self.qp.modify(QPAttr(qp_state=_S.IBV_QPS_ERR), int(ibv_qp_attr_mask.IBV_QP_STATE))

    # -- groups

    def join(self, group: Address | None, sendOnly: bool, context: object) -> None:
        """
        Join a multicast group, and attach the queue pair if there is one.

        @param sendOnly: do not receive.
        @param context: of the events.
        @raise PyverbsRDMAError: not a multicast address, not bound, or not a datagram identifier (EINVAL),
            or in it already (EADDRINUSE).
        """
        if group is None or not group.isMulticast:
            raise invalid("Failed to Join multicast: this is no group")
        if not self.isDatagram or self.stage not in (Stage.BOUND, Stage.RESOLVED, Stage.ROUTED):
            raise invalid("Failed to Join multicast: the identifier cannot")
        self._groups.join(group.host, sendOnly, context)

    def leave(self, group: Address | None) -> None:
        """
        Leave a multicast group.

        @raise PyverbsRDMAError: the identifier has not joined it (EADDRNOTAVAIL).
        """
        if group is None:
            raise invalid("Failed to leave multicast: this is no group")
        self._groups.leave(group.host)

    # -- the end

    def destroyQP(self) -> None:
        """
        Destroy the queue pair and the completion queues that were made for it.
        """
        qp, self.qp = self.qp, None
        self._groups.close(qp if qp is not None and qp._closer is not None else None)
        if qp is not None:
            qp.close()
        self._destroyCQs()

    def close(self) -> None:
        """
        End the connection or listener and release everything.  Idempotent.
        """
        if self.stage is Stage.CLOSED:
            return
        self.stage = Stage.CLOSED
        # A synchronous identifier owns its event queue; a shared channel only loses this identifier's events.
        if self.isSynchronous:
            self.reports.drop()
        for report in self.reports.withdraw(self):
            report.drop()
        binding, self.binding = self.binding, None
        if binding is None:
            return
        try:
            # A closed device has freed everything by itself; in a forked child it is the parent's.
            if not binding.device.closed:
                self._letGo()
                if self._search is not None:
                    self._search.cancel()
                self.transport.close(binding.device)
                self.destroyQP()
        finally:
            binding.release()

    def migrate(self, reports: CMEventQueue, isSynchronous: bool) -> None:
        """
        Move to another event queue, with all events that were not fetched.
        """
        for report in self.reports.withdraw(self):
            reports.add(report)
        self.reports, self.isSynchronous = reports, isSynchronous
