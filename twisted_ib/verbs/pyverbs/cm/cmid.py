"""
Connection identifiers, the communication manager's endpoints, as verbs programs use them.

An identifier made of an L{AddrInfo} is synchronous: each command waits until it is complete.  One made of an
L{CMEventChannel} reports the outcome of commands there.  Source: rdma-core 65, C{pyverbs/cmid.pyx},
C{librdmacm/cma.c}, C{librdmacm/rdma_verbs.h}; the man page C{rdma_cm(7)}.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from twisted_ib.hca.base import attributes
from twisted_ib.verbs.core.hub import hub, locked
from twisted_ib.verbs.pyverbs.base.base import checked
from twisted_ib.verbs.pyverbs.base.errors import PyverbsError, PyverbsRDMAError, PyverbsUserError
from twisted_ib.verbs.pyverbs.base.verb import VerbsObject, check, invalid, unsupported, verb
from twisted_ib.verbs.pyverbs.base.wc import WC
from twisted_ib.verbs.pyverbs.base.wr import SGE, RecvWR, SendWR
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address, AddrInfo, JoinMCAttrEx, Text, resolve
from twisted_ib.verbs.pyverbs.cm.call import Stage
from twisted_ib.verbs.pyverbs.cm.event import CMEvent, CMEventChannel, CMEventQueue, CMEventRecord, nextReport
from twisted_ib.verbs.pyverbs.cm.identifier import RESOLVE_MILLISECONDS, Identifier
from twisted_ib.verbs.pyverbs.cm.negotiation import ConnParam
from twisted_ib.verbs.pyverbs.enums.cm import (
    RAI_PASSIVE,
    RDMA_OPTION_ID,
    RDMA_OPTION_ID_ACK_TIMEOUT,
    RDMA_UDP_QKEY,
    rdma_cm_event_type,
    rdma_cm_join_mc_attr_mask,
    rdma_cm_mc_join_flags,
    rdma_port_space,
)
from twisted_ib.verbs.pyverbs.enums.device import ibv_access_flags
from twisted_ib.verbs.pyverbs.enums.queues import ibv_qp_type, ibv_send_flags, ibv_wr_opcode
from twisted_ib.verbs.pyverbs.objects.ah import AH
from twisted_ib.verbs.pyverbs.objects.cq import CQ
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.mr import MR
from twisted_ib.verbs.pyverbs.objects.pd import PD
from twisted_ib.verbs.pyverbs.qp.qp import QP
from twisted_ib.verbs.pyverbs.qp.qpattr import QPAttr, QPInitAttr

if TYPE_CHECKING:
    from twisted_ib.verbs.pyverbs.objects.unsupported import ECE

_A = ibv_access_flags
_OP = ibv_wr_opcode
_SIGNALED = ibv_send_flags.IBV_SEND_SIGNALED
_E = rdma_cm_event_type
_MASK, _JOIN = rdma_cm_join_mc_attr_mask, rdma_cm_mc_join_flags
_BAD_EVENT = "Failed to get request, no connection established"
#: These events mean failure even with status 0, which C{librdmacm/cma.c}, C{ucma_complete} takes for success.
_FAILURES = (
    _E.RDMA_CM_EVENT_ADDR_ERROR,
    _E.RDMA_CM_EVENT_ROUTE_ERROR,
    _E.RDMA_CM_EVENT_CONNECT_ERROR,
    _E.RDMA_CM_EVENT_UNREACHABLE,
    _E.RDMA_CM_EVENT_REJECTED,
    _E.RDMA_CM_EVENT_MULTICAST_ERROR,
    _E.RDMA_CM_EVENT_ADDRINFO_ERROR,
)
#: IBTA vol. 1 9.7.6.1.3: the timeout code has five bits.
_MOST_TIMEOUT = 31


class CMID(VerbsObject):
    """
    A connection identifier.

    Of the shortcuts for its queue pair C{length} is in octets, the whole region by default; C{flags} are
    bits of C{ibv_send_flags}.
    """

    def __init__(
        self,
        creator: AddrInfo | CMEventChannel | CMEvent | None = None,
        qp_init_attr: QPInitAttr | None = None,
        pd: PD | None = None,
        port_space: int = rdma_port_space.RDMA_PS_TCP,
        listen_id: CMID | None = None,
        device: str | None = None,
    ) -> None:
        """
        Make an identifier.

        @param creator: an L{AddrInfo} for a synchronous identifier, bound or with its route resolved; an
            L{CMEventChannel}; or the L{CMEvent} of a connect request, for the identifier that answers it.
        @param qp_init_attr: of a synchronous identifier: the attributes of its queue pair, or for a listener
            of its children's queue pairs.
        @param pd: the protection domain; by default one that the identifiers of a device share.
        @param port_space: one of C{rdma_port_space}, with a channel.
        @param listen_id: the identifier that received the request.
        @param device: the device's name, if there is no C{pd}; by default the addresses decide.  Not in
            pyverbs.
        @raise PyverbsRDMAError: the address is not of this host (EADDRNOTAVAIL), there is no route (ENODEV),
            or the queue pair cannot be made.
        """
        super().__init__()
        self._id: Identifier | None = None
        self._channel: CMEventChannel | None = None
        self._info: Any = None
        if creator is None:
            return
        if isinstance(creator, AddrInfo):
            self._fromAddress(creator, qp_init_attr, pd, device)
        elif isinstance(creator, CMEventChannel):
            creator._check()
            kind = _qpType(port_space)
            self._channel = creator
            self._hold(Identifier(creator._reports, False, int(port_space), kind)).deviceName = device
        elif isinstance(creator, CMEvent):
            if listen_id is None:
                raise PyverbsUserError("listen ID not provided")
            self._fromEvent(creator, listen_id)
        else:
            raise invalid(f"Cannot create CM ID from {type(creator)}")

    def _fromAddress(
        self, info: AddrInfo, attr: QPInitAttr | None, pd: PD | None, device: str | None
    ) -> None:
        if attr is not None:
            checked(attr, QPInitAttr).qp_type = info.qp_type
        identifier = self._hold(Identifier(CMEventQueue(), True, info.port_space, info.qp_type))
        identifier.deviceName = device
        try:
            self._use(pd, info)
            # librdmacm/cma.c, rdma_create_ep: a passive identifier is bound and keeps the attributes for its
            # children; an active one resolves its route and makes its queue pair.
            if info.flags & RAI_PASSIVE:
                identifier.initAttr = attr
                self.bind_addr(info)
                return
            self.resolve_addr(info)
            self.resolve_route()
            if attr is not None:
                self.create_qp(attr)
        except BaseException:
            self.close()
            raise

    @verb("Failed to create CM ID")
    def _use(self, pd: PD | None, info: AddrInfo) -> None:
        self._get().use(None if pd is None else checked(pd, PD), info.source, info.destination)

    @verb("Failed to create CM ID")
    def _fromEvent(self, event: CMEvent, listener: CMID) -> None:
        report = event._get()
        # The identifier now owns the request, so acknowledging the event no longer rejects it.
        child, report.child = report.child, None
        if child is None:
            raise invalid("Failed to create CM ID: the event has none to give")
        self._channel = listener._channel
        self._hold(child)

    def _hold(self, identifier: Identifier) -> Identifier:
        self._id = identifier
        self._opened(identifier.close)
        return identifier

    def _get(self) -> Identifier:
        self._check()
        identifier = self._id
        assert identifier is not None
        # After a fork the device is the parent's, and is marked closed in the child.
        if identifier.binding is not None and identifier.binding.device.closed:
            raise PyverbsRDMAError("The identifier's device is closed", errno.ENODEV)
        return identifier

    def _closed(self) -> None:
        self._id = None

    def _queuePair(self) -> QP:
        qp = self._get().qp
        if qp is None:
            raise invalid("The identifier has no queue pair")
        return qp

    # -- what it is

    @property
    def event_channel(self) -> CMEventChannel | None:
        """
        The channel of its events; None if it is synchronous.
        """
        return self._channel

    @property
    def device(self) -> Any:
        """
        The HCA, or None while unbound.  Not in pyverbs.
        """
        binding = None if self._id is None else self._id.binding
        return None if binding is None else binding.device

    @property
    def identifier(self) -> Identifier | None:
        """
        The endpoint, by which an event names it; None once it is closed.  Not in pyverbs.
        """
        return self._id

    @property
    def context(self) -> Context | None:
        """
        The context of its device; None while unbound.
        """
        binding = None if self._id is None else self._id.binding
        return None if binding is None else binding.ctx

    ctx = context

    @property
    def pd(self) -> PD | None:
        """
        The protection domain of its queue pair; None while unbound.
        """
        binding = None if self._id is None else self._id.binding
        return None if binding is None else binding.pd

    @property
    def qp(self) -> QP | None:
        """
        Its queue pair, or None.  Not in pyverbs, nor are the next three.
        """
        return None if self._id is None else self._id.qp

    @property
    def send_cq(self) -> CQ | None:
        """
        The completion queue made for its sends, or None.
        """
        return None if self._id is None else self._id.sendCQ

    @property
    def recv_cq(self) -> CQ | None:
        """
        The completion queue made for its receives, or None.
        """
        return None if self._id is None else self._id.recvCQ

    @property
    def local_addr(self) -> tuple[str, int] | None:
        """
        Its address and port (C{rdma_get_local_addr}), or None.
        """
        source = None if self._id is None else self._id.source
        return None if source is None else (source.host, source.port)

    @property
    def peer_addr(self) -> tuple[str, int] | None:
        """
        The peer's address and port (C{rdma_get_peer_addr}), or None.  Not in pyverbs.
        """
        there = None if self._id is None else self._id.destination
        return None if there is None else (there.host, there.port)

    @property
    def qpn(self) -> int | None:
        """
        The number of its queue pair, or None.
        """
        qp = self.qp
        return None if qp is None else qp.qp_num

    @property
    def dev_name(self) -> str:
        """
        The name of its device.

        @raise PyverbsRDMAError: it is unbound (EINVAL).
        """
        device = self._get().device
        return str(device.name)

    @property
    def port_num(self) -> int:
        """
        The port number of its device; 0 while unbound.
        """
        # Devices have one port; librdmacm reports 0 before the identifier is bound.
        return 0 if self.device is None else attributes.PORT

    # -- waiting

    def _complete(self) -> CMEventRecord | None:
        identifier = self._get()
        if not identifier.isSynchronous:
            return None
        report = nextReport(identifier.reports)
        if report is None:
            raise PyverbsRDMAError("The identifier is closed", errno.ECONNABORTED)
        if report.status or report.kind in _FAILURES:
            # librdmacm/cma.c, ucma_complete: REJECTED is ECONNREFUSED, any other event its errno.  Positive
            # statuses are reject reasons of the peer (IBTA vol. 1 12.6.7.2), which are no errnos.
            refused = report.kind == _E.RDMA_CM_EVENT_REJECTED or report.status >= 0
            number = errno.ECONNREFUSED if refused else -report.status
            raise PyverbsRDMAError(_E(report.kind).name, number)
        return report

    def get_request(self) -> CMID:
        """
        Wait for a request, and serve peers meanwhile.  For synchronous identifiers only.

        @return: the identifier that answers it, by L{accept}, L{reject} or C{close}.
        @raise PyverbsRDMAError: the identifier is not synchronous, or does not listen (EINVAL), or the new
            queue pair cannot be made.
        """
        identifier = self._get()
        check(identifier.isSynchronous and identifier.stage is Stage.LISTENING, _BAD_EVENT)
        report = nextReport(identifier.reports)
        if report is None:
            raise PyverbsRDMAError(_BAD_EVENT, errno.ECONNABORTED)
        check(report.child is not None, _BAD_EVENT)
        made = CMID()
        child, report.child = report.child, None
        assert child is not None
        made._hold(child)
        # librdmacm/cma.c, rdma_get_request: the listener's queue pair attributes are for each request that it
        # returns.
        if identifier.initAttr is not None:
            try:
                made.create_qp(identifier.initAttr)
            except BaseException:
                made.close()
                raise
        return made

    # -- addresses

    @verb("Failed to Bind ID")
    def bind_addr(self, lai: AddrInfo) -> None:
        """
        Bind to an address and to its device.

        @param lai: its source is the address; port 0 binds any port, which C{local_addr} has then.
        @raise PyverbsRDMAError: the address is not of this host (EADDRNOTAVAIL), or the identifier is bound
            (EINVAL).
        """
        self._get().bind(checked(lai, AddrInfo).source)

    def resolve_addr(self, rai: AddrInfo, timeout_ms: int = RESOLVE_MILLISECONDS) -> None:
        """
        Check that an address is reachable; C{RDMA_CM_EVENT_ADDR_RESOLVED} or C{RDMA_CM_EVENT_ADDR_ERROR}
        follows.

        @param rai: its destination is the address; its source is bound to, if the identifier is not bound.
        @param timeout_ms: milliseconds that the kernel may look for the next hop, where it finds the peers.
        @raise PyverbsRDMAError: wrong stage (EINVAL), no route (ENETUNREACH), or unreachable (ENODEV or
            ETIMEDOUT; synchronous only).
        """
        self._resolveAddress(checked(rai, AddrInfo), timeout_ms / 1000)
        self._complete()

    @verb("Failed to Resolve Address")
    def _resolveAddress(self, info: AddrInfo, seconds: float) -> None:
        self._get().resolveAddress(info.source, info.destination, seconds)

    def resolve_route(self, timeout_ms: int = RESOLVE_MILLISECONDS) -> None:
        """
        Resolve the route; C{RDMA_CM_EVENT_ROUTE_RESOLVED} follows at once, so C{timeout_ms} is ignored.

        @raise PyverbsRDMAError: wrong stage (EINVAL).
        """
        self._resolveRoute()
        self._complete()

    @verb("Failed to Resolve Route")
    def _resolveRoute(self) -> None:
        self._get().resolveRoute()

    def resolve_addrinfo(
        self, node: Text = None, service: Text = None, port_space: int = 0, flags: int = 0
    ) -> None:
        """
        Query the host's resolver; C{RDMA_CM_EVENT_ADDRINFO_RESOLVED} or C{RDMA_CM_EVENT_ADDRINFO_ERROR}
        follows, and L{query_addrinfo} returns the answer.

        @param node: a host name or address.
        @param service: a port name or number.
        @param flags: C{RAI_*} bits.
        @raise PyverbsRDMAError: there is no answer (synchronous only).
        """
        identifier = self._get()
        status, found = 0, None
        # The lookup may block: it runs without the hub's lock, so that other threads still serve peers.
        try:
            found = resolve(None, node, service, port_space, flags)
        except PyverbsError as error:
            status = -error.error_code
        self._reportInfo(identifier, found, status)
        self._complete()

    @locked
    def _reportInfo(self, identifier: Identifier, found: Any, status: int) -> None:
        self._info = found
        kind = _E.RDMA_CM_EVENT_ADDRINFO_ERROR if status else _E.RDMA_CM_EVENT_ADDRINFO_RESOLVED
        identifier.report(kind, status=status)

    def query_addrinfo(self) -> AddrInfo:
        """
        Return the answer of L{resolve_addrinfo}.

        @raise PyverbsRDMAError: there is none (ENODATA).
        """
        if self._info is None:
            raise PyverbsRDMAError("Failed to Query AddrInfo", errno.ENODATA)
        info = AddrInfo()
        info.take(self._info)
        return info

    # -- connections

    @verb("Listen Failed")
    def listen(self, backlog: int = 0) -> None:
        """
        Listen for requests.

        @param backlog: requests that wait at most; 0 is L{limits.CM_BACKLOG <twisted_ib.limits.CM_BACKLOG>}.
            Further ones are dropped, and their peers send them again.
        @raise PyverbsRDMAError: another listener has this address and port (EADDRINUSE).
        """
        self._get().listen(backlog)

    def connect(self, param: ConnParam | None = None) -> None:
        """
        Connect to the destination.  C{RDMA_CM_EVENT_ESTABLISHED} follows, or
        C{RDMA_CM_EVENT_CONNECT_RESPONSE} if the queue pair is the program's; on failure
        C{RDMA_CM_EVENT_REJECTED}, C{RDMA_CM_EVENT_UNREACHABLE} or C{RDMA_CM_EVENT_CONNECT_ERROR}.

        @param param: private data is at most 56 octets, 180 with datagrams, 92 in C{RDMA_PS_IB}.
        @raise PyverbsRDMAError: wrong stage or bad parameters (EINVAL); the peer rejects (ECONNREFUSED) or
            does not answer (ETIMEDOUT; these two synchronous only).
        """
        self._connect(None if param is None else checked(param, ConnParam))
        self._complete()

    @verb("Failed to Connect")
    def _connect(self, param: ConnParam | None) -> None:
        self._get().transport.connect(param)

    def accept(self, param: ConnParam | None = None) -> None:
        """
        Accept a request.  C{RDMA_CM_EVENT_ESTABLISHED} follows, except for datagrams.

        @param param: private data is at most 196 octets, 136 with datagrams.
        @raise PyverbsRDMAError: there is no request, or bad parameters (EINVAL), or the peer has given up
            (ECONNRESET).
        """
        self._accept(None if param is None else checked(param, ConnParam))
        # IBTA vol. 1 12.11: a SIDR_REP is not acknowledged, so nothing follows to wait for (librdmacm/cma.c,
        # rdma_accept).
        if not self._get().isDatagram:
            self._complete()

    @verb("Failed to Accept Connection")
    def _accept(self, param: ConnParam | None) -> None:
        self._get().transport.accept(param)

    @verb("Failed to Reject Connection")
    def reject(self, private_data: bytes | None = None) -> None:
        """
        Reject a request.

        @param private_data: at most 148 octets, 136 with datagrams.
        @raise PyverbsRDMAError: there is no request, or too much data (EINVAL).
        """
        self._get().transport.reject(bytes(private_data or b""))

    @verb("Failed to Complete an active connection request")
    def establish(self) -> None:
        """
        Send the RTU once the program's own queue pair is in RTS, after C{RDMA_CM_EVENT_CONNECT_RESPONSE}.

        @raise PyverbsRDMAError: wrong stage, or the queue pair is the identifier's (EINVAL), or the peer has
            given up (ECONNRESET).
        """
        self._get().transport.establish()

    @property
    @locked
    def isDelayed(self) -> bool:
        """
        Whether the peer has asked by an MRA (IBTA vol. 1 12.6.6) for time to answer a connect.  pyverbs has
        no such thing: librdmacm's programs wait for the kernel's timeouts.
        """
        return bool(getattr(self._get().transport, "isDelayed", False))

    def disconnect(self) -> None:
        """
        Disconnect and flush posted requests.  C{RDMA_CM_EVENT_DISCONNECTED} follows unless it came already,
        and C{RDMA_CM_EVENT_TIMEWAIT_EXIT} later.

        @raise PyverbsRDMAError: there is no connection (EINVAL).
        """
        if self._disconnect():
            self._complete()

    @verb("Failed to Disconnect")
    def _disconnect(self) -> bool:
        identifier = self._get()
        # If DISCONNECTED was already consumed, no event follows and a synchronous caller would wait for ever.
        known = identifier.stage is Stage.OVER and not len(identifier.reports)
        identifier.transport.disconnect()
        return not identifier.isDatagram and not known

    # -- groups

    def join_multicast(
        self, addr: AddrInfo | None = None, mc_attr: JoinMCAttrEx | None = None, context: object = 0
    ) -> None:
        """
        Join a multicast group, and attach the queue pair if there is one; C{RDMA_CM_EVENT_MULTICAST_JOIN} or
        C{RDMA_CM_EVENT_MULTICAST_ERROR} follows.

        @param addr: its source is the group's address.
        @param mc_attr: the group's address and join flags, instead of C{addr}.
        @param context: any object; the C{context} of these events.
        @raise PyverbsUserError: both arguments are missing.
        @raise PyverbsRDMAError: not a multicast address, or attributes are missing (EINVAL) or unknown
            (EOPNOTSUPP).
        """
        if addr is None and mc_attr is None:
            raise PyverbsUserError("Join to multicast must have AddrInfo or JoinMCAttrEx arguments")
        group, sendOnly = None if addr is None else checked(addr, AddrInfo).source, False
        if mc_attr is not None:
            mask, flags = checked(mc_attr, JoinMCAttrEx).comp_mask, mc_attr.join_flags
            # librdmacm/cma.c, rdma_join_multicast_ex refuses mask bits that it does not know, so that a
            # future attribute is never ignored in silence.
            if mask >= _MASK.RDMA_CM_JOIN_MC_ATTR_RESERVED:
                raise unsupported("Failed to Join multicast")
            needed = _MASK.RDMA_CM_JOIN_MC_ATTR_ADDRESS | _MASK.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
            check(mask & needed == needed, "Failed to Join multicast: attributes are missing")
            check(flags < _JOIN.RDMA_MC_JOIN_FLAG_RESERVED, "Failed to Join multicast: unknown flags")
            group = mc_attr.address
            sendOnly = flags == _JOIN.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
        self._join(group, sendOnly, context)
        self._complete()

    @verb("Failed to Join multicast")
    def _join(self, group: Address | None, sendOnly: bool, context: object) -> None:
        self._get().join(group, sendOnly, context)

    @verb("Failed to leave multicast")
    def leave_multicast(self, addr: AddrInfo) -> None:
        """
        Leave a multicast group.

        @param addr: its source is the group's address.
        @raise PyverbsRDMAError: the identifier has not joined it (EADDRNOTAVAIL).
        """
        self._get().leave(checked(addr, AddrInfo).source)

    # -- queue pairs

    @verb("Failed to Create QP")
    def create_qp(self, qp_init: QPInitAttr) -> None:
        """
        Make the identifier's queue pair, and completion queues if C{qp_init} has none.  The communication
        manager moves it through its states.

        @raise PyverbsRDMAError: there is one already, a wrong type or bad attributes (EINVAL), or no
            resources (ENOMEM).
        """
        identifier = self._get()
        identifier.createQP(checked(qp_init, QPInitAttr), None)

    @verb("Failed to Create QP")
    def take_qp(self, qp: QP) -> None:
        """
        Let the communication manager move a queue pair of the program's through its states, as one of
        L{create_qp}; it stays the program's to destroy.  Not in pyverbs; C{rdma_create_qp} takes a protection
        domain, and C{rdma_create_qp_ex} more.

        @raise PyverbsRDMAError: the identifier has one, or it is of another type or device (EINVAL).
        """
        self._get().takeQP(checked(qp, QP))

    @verb("Failed to release QP")
    def release_qp(self) -> QP:
        """
        Undo L{take_qp}: another identifier may take the queue pair.  Not in pyverbs; with librdmacm a program
        clears the field C{qp}.

        @return: the queue pair.
        @raise PyverbsRDMAError: there is none (EINVAL).
        """
        found = self._queuePair()
        self._get().qp = None
        return found

    @verb("Failed to destroy QP")
    def destroy_qp(self) -> None:
        """
        Destroy the queue pair, and the completion queues that were made for it.  Another can be made then.
        Not in pyverbs; C{rdma_destroy_qp}.

        @raise PyverbsRDMAError: there is no queue pair (EINVAL).
        """
        self._queuePair()
        self._get().destroyQP()

    @verb("Failed to query QP")
    def query_qp(self, attr_mask: int) -> tuple[QPAttr, QPInitAttr]:
        """
        Query the queue pair's attributes.

        @param attr_mask: bits of C{ibv_qp_attr_mask}.
        @return: the current attributes, and the initial ones.
        @raise PyverbsRDMAError: there is no queue pair (EINVAL).
        """
        return self._queuePair().query(attr_mask)

    @verb("Failed to get QP attributes")
    def init_qp_attr(self, qp_state: int) -> tuple[QPAttr, int]:
        """
        Return the attributes that bring a queue pair of the program's own into a state.

        @param qp_state: INIT, RTR or RTS.
        @return: the attributes, and their C{ibv_qp_attr_mask}.
        @raise PyverbsRDMAError: they are not known yet (EINVAL).
        """
        identifier = self._get()
        # An unbound identifier must fail here with EINVAL: the attributes of INIT alone need no device.
        identifier.device  # noqa: B018
        return identifier.transport.attributes(int(qp_state))

    # -- options

    @verb("Failed to set option")
    def set_option(self, level: int, optname: int, optval: int, optlen: int) -> None:
        """
        Set the local ACK timeout of the queue pair.

        @param level: C{RDMA_OPTION_ID}.
        @param optname: C{RDMA_OPTION_ID_ACK_TIMEOUT}.
        @param optval: 4.096 us * 2^optval; 0 is unlimited.
        @param optlen: 1.
        @raise PyverbsUserError: another option.
        @raise PyverbsRDMAError: another level (ENOSYS), or a bad timeout, or a datagram identifier (EINVAL).
        """
        if optname != RDMA_OPTION_ID_ACK_TIMEOUT:
            raise PyverbsUserError("Only RDMA_OPTION_ID_ACK_TIMEOUT can be set")
        identifier = self._get()
        if level != RDMA_OPTION_ID:
            raise PyverbsRDMAError("Failed to set option", errno.ENOSYS)
        # Linux cma.c, rdma_set_ack_timeout: only connected queue pairs have a local ACK timeout, of five
        # bits.
        check(optlen == 1 and 0 <= optval <= _MOST_TIMEOUT, "Failed to set option")
        check(not identifier.isDatagram, "Failed to set option")
        identifier.timeout = int(optval)

    @verb("Failed to set option")
    def set_ipv6_only(self, only: bool) -> None:
        """
        Listen on C{::} without IPv4: C{RDMA_OPTION_ID_AFONLY}.  Not in pyverbs.
        """
        self._get().leaveIPv4(only)

    @verb("Failed to migrate ID")
    def migrate_id(self, channel: CMEventChannel | None = None) -> None:
        """
        Move the identifier to another event channel.  Not in pyverbs; C{rdma_migrate_id}.

        @param channel: None makes the identifier synchronous.
        @raise PyverbsRDMAError: it is synchronous already (EINVAL).
        """
        identifier = self._get()
        # librdmacm/cma.c, rdma_migrate_id refuses a synchronous identifier without a new channel.
        check(channel is not None or not identifier.isSynchronous, "Failed to migrate ID")
        if channel is not None:
            checked(channel, CMEventChannel)._check()
        self._channel = channel
        identifier.migrate(CMEventQueue() if channel is None else channel._reports, channel is None)

    def set_local_ece(self, ece: ECE) -> None:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP): there are no vendor enhancements.
        """
        # The Vendor ID and attribute modifier of the CM messages stay 0 (Linux ibta_vol1_c12.h), which
        # announces no ECE.
        raise unsupported("Failed to set local ECE")

    def get_remote_ece(self) -> ECE:
        """
        @raise PyverbsRDMAError: always (EOPNOTSUPP): there are no vendor enhancements.
        """
        raise unsupported("Failed to get remote ECE")

    # -- memory

    def _register(self, size: int, access: int) -> MR:
        self._get().device  # noqa: B018
        # IBTA vol. 1 10.6.3: remote write requires local write; librdmacm/rdma_verbs.h sets local write in
        # all three calls.
        return MR(self, size, int(_A.IBV_ACCESS_LOCAL_WRITE | access))

    def reg_msgs(self, size: int) -> MR:
        """
        Register memory for messages, of C{size} octets; the region is closed with the identifier.
        """
        return self._register(size, 0)

    def reg_read(self, size: int = 0) -> MR:
        """
        Register memory that the peer may read, of C{size} octets; the region is closed with the identifier.
        """
        return self._register(size, _A.IBV_ACCESS_REMOTE_READ)

    def reg_write(self, size: int = 0) -> MR:
        """
        Register memory that the peer may write, of C{size} octets; the region is closed with the identifier.
        """
        return self._register(size, _A.IBV_ACCESS_REMOTE_WRITE)

    # -- requests

    @verb("Failed to Post Receive")
    def post_recv(self, mr: MR, length: int | None = None) -> None:
        """
        Post a receive at the start of a region.

        @raise PyverbsRDMAError: there is no queue pair (EINVAL), or its queue is full (ENOMEM).
        """
        sge = SGE(checked(mr, MR).buf, length or mr.length, mr.lkey)
        self._queuePair().post_recv(RecvWR(num_sge=1, sg=[sge]))

    def _post(self, mr: MR, length: int | None, opcode: int, flags: int) -> SendWR:
        sge = SGE(checked(mr, MR).buf, length or mr.length, mr.lkey)
        return SendWR(num_sge=1, sg=[sge], opcode=opcode, send_flags=int(flags))

    @verb("Failed to Post Send")
    def post_send(self, mr: MR, flags: int = _SIGNALED, length: int | None = None) -> None:
        """
        Send from the start of a region.

        @raise PyverbsRDMAError: there is no queue pair, or it is not in RTS (EINVAL), or its queue is full
            (ENOMEM).
        """
        self._queuePair().post_send(self._post(mr, length, _OP.IBV_WR_SEND, flags))

    @verb("Failed to Post Read")
    def post_read(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """
        RDMA READ the peer's memory into the start of a region.

        @param remote_addr: the virtual address in the peer's region, and C{rkey} that region's key.
        @raise PyverbsRDMAError: as L{post_send}.
        """
        request = self._post(mr, length, _OP.IBV_WR_RDMA_READ, flags)
        request.set_wr_rdma(rkey, remote_addr)
        self._queuePair().post_send(request)

    @verb("Failed to Post Write")
    def post_write(self, mr: MR, length: int, remote_addr: int, rkey: int, flags: int = 0) -> None:
        """
        RDMA WRITE the start of a region into the peer's memory.

        @param remote_addr: the virtual address in the peer's region, and C{rkey} that region's key.
        @raise PyverbsRDMAError: as L{post_send}.
        """
        request = self._post(mr, length, _OP.IBV_WR_RDMA_WRITE, flags)
        request.set_wr_rdma(rkey, remote_addr)
        self._queuePair().post_send(request)

    @verb("Failed to Post Send")
    def post_ud_send(
        self, mr: MR, ah: AH, rqpn: int = 0, flags: int = _SIGNALED, length: int | None = None
    ) -> None:
        """
        Send a datagram from the start of a region.

        @param rqpn: the destination queue pair.
        @raise PyverbsRDMAError: as L{post_send}.
        """
        request = self._post(mr, length, _OP.IBV_WR_SEND, flags)
        # librdmacm gives all UD services of RDMA-CM one Q_Key (rdma_cma.h, RDMA_UDP_QKEY), so the event's
        # need not be kept.
        request.set_wr_ud(checked(ah, AH), rqpn, RDMA_UDP_QKEY)
        self._queuePair().post_send(request)

    # -- completions

    def get_recv_comp(self) -> WC | None:
        """
        Wait for a receive to complete, and serve peers meanwhile.

        @raise PyverbsRDMAError: the identifier did not make the completion queue (EINVAL).
        """
        return self._completion(self._get().recvCQ)

    def get_send_comp(self) -> WC | None:
        """
        Wait for a send request to complete, and serve peers meanwhile.

        @raise PyverbsRDMAError: the identifier did not make the completion queue (EINVAL).
        """
        return self._completion(self._get().sendCQ)

    def _completion(self, queue: CQ | None) -> WC:
        # Only queues that the identifier made are waited on: a queue of the program's may hold others'
        # completions, which would be consumed here.
        check(queue is not None, "The identifier has made no such completion queue")
        assert queue is not None
        found = hub.wait(lambda: queue.poll(1)[1])
        assert found
        return found[0]


def _qpType(portSpace: int) -> int:
    # Linux ucma.c, ucma_get_qp_type refuses unknown port spaces when the identifier is created, not when it
    # is bound.
    if portSpace not in list(rdma_port_space):
        raise PyverbsRDMAError("Failed to create CM ID", errno.EPROTONOSUPPORT)
    datagrams = portSpace in (rdma_port_space.RDMA_PS_UDP, rdma_port_space.RDMA_PS_IPOIB)
    return ibv_qp_type.IBV_QPT_UD if datagrams else ibv_qp_type.IBV_QPT_RC
