"""
The multicast groups of an identifier.

On Ethernet a group needs no more than its address.  On InfiniBand subnet administration makes it, gives it a
LID and a service level, and has the switches replicate to the port; that takes a request.

Source: Linux C{cma.c}, C{cma_join_ib_multicast}, C{cma_iboe_join_multicast}; librdmacm C{cma.c}.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import HCAError
from twisted_ib.hca.base.operation import MULTICAST_QPN
from twisted_ib.hca.base.partition import FULL_MEMBER
from twisted_ib.hca.base.traits import LinkLayer
from twisted_ib.hca.connection.rdmacm import gidNumber, gidOf
from twisted_ib.hca.wire.grh import HOP_LIMIT
from twisted_ib.verbs.pyverbs.base.addr import GID, AHAttr, GlobalRoute
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError
from twisted_ib.verbs.pyverbs.cm.event import Target
from twisted_ib.verbs.pyverbs.cm.negotiation import errnoFor, groupAddress
from twisted_ib.verbs.pyverbs.enums.cm import RDMA_UDP_QKEY, rdma_cm_event_type, rdma_port_space

if TYPE_CHECKING:
    from twisted_ib.hca.mad.attributes.administration import MCMemberRecord
    from twisted_ib.hca.mad.sa.registry import Handle
    from twisted_ib.verbs.pyverbs.cm.identifier import Identifier
    from twisted_ib.verbs.pyverbs.qp.qp import QP

_E, _PS = rdma_cm_event_type, rdma_port_space

#: The prefix of an IPv4 group's MGID where peers are not IP addresses, before C{::ffff:a.b.c.d}: ff0e, as
#: Linux cma.c, C{cma_iboe_set_mgid} has it for RoCE version 1.
_IPV4_GROUP = b"\xff\x0e" + bytes(8) + b"\xff\xff"
#: On InfiniBand (RFC 4391 section 4): a transient MGID of link-local scope, and before the P_Key a signature,
#: of which the last octet is IPoIB's, or RDMA CM's (Linux cma.c, C{cma_set_mgid}).
_TRANSIENT_LINK_LOCAL = b"\xff\x12"
_IPV4_SIGNATURE, _IPV6_SIGNATURE = 0x40, 0x60
_OF_IPOIB, _OF_RDMA_CM = 0x1B, 0x01
#: RFC 4391 section 4: the lower bits of an IPv4 group.
_IPV4_GROUP_BITS = 0x0FFF_FFFF
#: The first four octets of MGIDs that subnet administration makes, but for flags and scope.
_ASSIGNED, _ASSIGNED_MASK = 0xFF10A01B, 0xFFF0FFFF


class _Member:
    """
    The membership of one group.

    @ivar isAttached: whether the queue pair is attached.
    @ivar handle: the membership of the port; L{None} if there is none yet, or none on this link layer.
    @ivar isOver: whether it has ended.
    @ivar context: of its events.
    """

    __slots__ = ("context", "gid", "handle", "host", "isAttached", "isOver", "isSendOnly")

    def __init__(self, host: str, gid: GID, isSendOnly: bool, context: object) -> None:
        self.host, self.gid, self.isSendOnly, self.context = host, gid, isSendOnly, context
        self.isAttached = self.isOver = False
        self.handle: Handle | None = None


class Groups:
    """
    The groups of one identifier.
    """

    def __init__(self, identifier: Identifier) -> None:
        self._identifier = identifier
        self._members: dict[str, _Member] = {}

    def join(self, host: str, isSendOnly: bool, context: object) -> None:
        """
        Join a group, and attach the queue pair if there is one; an event follows.

        @param context: of the events.
        @raise PyverbsRDMAError: the identifier has joined it (EADDRINUSE).
        """
        if host in self._members:
            raise PyverbsRDMAError("Failed to Join multicast: it is in it", errno.EADDRINUSE)
        device = self._identifier.device
        if device.port.linkLayer is LinkLayer.INFINIBAND:
            key = device.partitions.keys[0] | FULL_MEMBER
            gid = subnetGroupOf(host, key, self._identifier.portSpace)
            member = self._members[host] = _Member(host, gid, isSendOnly, context)
            self._ask(device, member, key)
        else:
            gid = groupOf(host, device.address is not None)
            member = self._members[host] = _Member(host, gid, isSendOnly, context)
            self._joined(member, Target(groupAddress(member.gid, HOP_LIMIT), MULTICAST_QPN, RDMA_UDP_QKEY))

    def leave(self, host: str) -> None:
        """
        Leave a group.

        @raise PyverbsRDMAError: the identifier has not joined it (EADDRNOTAVAIL).
        """
        member = self._members.get(host)
        if member is None:
            raise PyverbsRDMAError("Failed to leave multicast: it is not in it", errno.EADDRNOTAVAIL)
        self._end(member, self._identifier.qp)

    def close(self, qp: QP | None) -> None:
        """
        Leave all groups.

        @param qp: the queue pair, if it is still open.
        """
        for member in list(self._members.values()):
            self._end(member, qp)

    def _end(self, member: _Member, qp: QP | None) -> None:
        del self._members[member.host]
        member.isOver = True
        if member.isAttached and qp is not None:
            qp.detach_mcast(member.gid, 0)
        if member.handle is not None:
            member.handle.close()

    def _joined(self, member: _Member, target: Target) -> None:
        identifier = self._identifier
        # A send-only member receives nothing, so there is nothing to attach (Linux cma.c,
        # SENDONLY_FULLMEMBER_JOIN).
        if identifier.qp is not None and not member.isSendOnly:
            try:
                identifier.qp.attach_mcast(member.gid, 0)
            except HCAError as error:
                self._failed(member, errnoFor(error))
                return
            member.isAttached = True
        identifier.report(_E.RDMA_CM_EVENT_MULTICAST_JOIN, target=target, context=member.context)

    # Linux reports a failed join as an event, not as the call's error.
    def _failed(self, member: _Member, number: int) -> None:
        self._end(member, self._identifier.qp)
        kind = _E.RDMA_CM_EVENT_MULTICAST_ERROR
        self._identifier.report(kind, status=-number, context=member.context)

    # -- subnet administration

    def _ask(self, device: Any, member: _Member, key: int) -> None:
        # Imported on use: other link layers have no subnet administration.
        from twisted_ib.hca.mad.attributes.administration import JoinState

        values = {"pKey": key}
        if self._identifier.portSpace != _PS.RDMA_PS_IPOIB:
            # The values that a group is made with; those of IPoIB are the interfaces' to make.
            values.update(qKey=RDMA_UDP_QKEY, sl=0, flowLabel=0, tClass=0)
        state = JoinState.SEND_ONLY_FULL_MEMBER if member.isSendOnly else JoinState.FULL_MEMBER
        answered, changed = partial(self._answered, member), partial(self._changed, member)
        try:
            gid = gidNumber(str(member.gid))
            member.handle = device.sa.join(gid, answered, changed, state, **values)
        except HCAError as error:
            self._failed(member, errnoFor(error))
        except ValueError:
            # Another user of the port is a member with another Q_Key, or another service level.
            self._failed(member, errno.EINVAL)
        if member.isOver and member.handle is not None:
            # It was answered at once, and the queue pair could not be attached.
            member.handle.close()

    def _answered(self, member: _Member, outcome: MCMemberRecord | HCAError) -> None:
        if isinstance(outcome, HCAError):
            self._failed(member, errnoFor(outcome))
        else:
            self._joined(member, Target(_addressOf(outcome), MULTICAST_QPN, outcome.qKey))

    def _changed(self, member: _Member, outcome: MCMemberRecord | HCAError) -> None:
        # The program's address of the group is wrong from now on: it has to join again (Linux multicast.c,
        # process_group_error).
        self._failed(member, errno.ENETRESET)


def _addressOf(record: MCMemberRecord) -> AHAttr:
    # The address vector of a group of a subnet (Linux sa_query.c, ib_init_ah_from_mcmember).
    route = GlobalRoute(
        dgid=GID.of(record.mgid.to_bytes(16, "big")),
        flow_label=record.flowLabel,
        hop_limit=record.hopLimit,
        traffic_class=record.tClass,
    )
    return AHAttr(dlid=record.mlid, sl=record.sl, static_rate=record.rate, is_global=1, gr=route)


def groupOf(host: str, mapped: bool = False) -> GID:
    """
    The MGID of an IP multicast group on Ethernet.

    @param mapped: whether an IPv4 group maps to C{::ffff:a.b.c.d}, as in RoCEv2.
    """
    packed = gidOf(host)
    # Linux cma.c, cma_iboe_set_mgid: RoCEv2 uses ::ffff:a.b.c.d (IBTA vol. 1 annex A17), RoCE version 1
    # ff0e::ffff:a.b.c.d.
    if ":" not in host and not mapped:
        packed = _IPV4_GROUP + packed[12:]
    return GID.of(packed)


def subnetGroupOf(host: str, key: int, portSpace: int) -> GID:
    """
    The MGID of an IP multicast group on InfiniBand.

    @param host: its address; a GID in the port space of GIDs, or if subnet administration has made it.
    @param key: the P_Key.
    @param portSpace: one of C{rdma_port_space}.
    """
    packed = gidOf(host)
    owner = _OF_IPOIB if portSpace == _PS.RDMA_PS_IPOIB else _OF_RDMA_CM
    isAssigned = int.from_bytes(packed[:4], "big") & _ASSIGNED_MASK == _ASSIGNED
    if ":" in host and (isAssigned or portSpace == _PS.RDMA_PS_IB):
        pass
    elif ":" in host:
        packed = _subnetGroup(_IPV6_SIGNATURE, owner, key) + packed[6:]
    else:
        group = int.from_bytes(packed[12:], "big") & _IPV4_GROUP_BITS
        packed = _subnetGroup(_IPV4_SIGNATURE, owner, key) + group.to_bytes(10, "big")
    return GID.of(packed)


def _subnetGroup(signature: int, owner: int, key: int) -> bytes:
    return _TRANSIENT_LINK_LOCAL + bytes((signature, owner)) + key.to_bytes(2, "big")
