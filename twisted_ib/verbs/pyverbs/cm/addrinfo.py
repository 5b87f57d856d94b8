"""
Addresses of the communication manager: C{rdma_getaddrinfo}.

Source: rdma-core 65, C{pyverbs/cmid.pyx}, C{librdmacm/addrinfo.c}; the man page C{rdma_getaddrinfo(3)}.
"""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

import attrs

from twisted_ib.hca.host.addresses import isWildcard, normalise
from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, checked
from twisted_ib.verbs.pyverbs.base.errors import PyverbsRDMAError
from twisted_ib.verbs.pyverbs.enums.cm import (
    RAI_NUMERICHOST,
    RAI_PASSIVE,
    rdma_cm_join_mc_attr_mask,
    rdma_cm_mc_join_flags,
    rdma_port_space,
)
from twisted_ib.verbs.pyverbs.enums.queues import ibv_qp_type

Text = str | bytes | None

_DATAGRAMS = (rdma_port_space.RDMA_PS_UDP, rdma_port_space.RDMA_PS_IPOIB)
_PROTOCOLS: dict[int, tuple[int, int]] = {
    rdma_port_space.RDMA_PS_TCP: (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    rdma_port_space.RDMA_PS_UDP: (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
    rdma_port_space.RDMA_PS_IPOIB: (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
}
#: The errnos for errors of C{getaddrinfo(3)}; EINVAL for others.
_RESOLVER_ERRNOS = {
    socket.EAI_AGAIN: errno.EAGAIN,
    socket.EAI_MEMORY: errno.ENOMEM,
    socket.EAI_NONAME: errno.EADDRNOTAVAIL,
    socket.EAI_NODATA: errno.EADDRNOTAVAIL,
    socket.EAI_ADDRFAMILY: errno.EAFNOSUPPORT,
    socket.EAI_FAMILY: errno.EAFNOSUPPORT,
    socket.EAI_FAIL: errno.EIO,
}


def qpTypeOf(portSpace: int) -> int:
    """
    The type of the queue pairs of a port space, one of C{ibv_qp_type}.
    """
    return ibv_qp_type.IBV_QPT_UD if portSpace in _DATAGRAMS else ibv_qp_type.IBV_QPT_RC


@attrs.frozen
class Address:
    """
    The address of one end.
    """

    #: An IP address; in C{RDMA_PS_IB} a GID, written as an IPv6 or IPv4-mapped address.
    host: str
    #: 0 if there is none yet.
    port: int

    @property
    def version(self) -> int:
        """
        The IP version, 4 or 6.
        """
        return 6 if ":" in self.host else 4

    @property
    def isAny(self) -> bool:
        """
        Whether it is the wildcard address.
        """
        return isWildcard(self.host)

    @property
    def isLoopback(self) -> bool:
        """
        Whether it is one of the host for itself.
        """
        return ip_address(self.host.partition("%")[0]).is_loopback

    @property
    def isMulticast(self) -> bool:
        """
        Whether it is a multicast group.
        """
        return ip_address(self.host).is_multicast


def _text(value: Text) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


@attrs.define
class _Found:
    flags: int = 0
    portSpace: int = 0
    qpType: int = 0
    source: Address | None = None
    destination: Address | None = None


def _lookUp(node: Text, service: Text, portSpace: int, flags: int, family: int) -> _Found:
    passive = bool(flags & RAI_PASSIVE)
    hints = (socket.AI_PASSIVE if passive else 0) | (socket.AI_NUMERICHOST if flags & RAI_NUMERICHOST else 0)
    kind, protocol = _PROTOCOLS.get(portSpace, (0, 0))
    try:
        answers = socket.getaddrinfo(_text(node), _text(service), family, kind, protocol, hints)
    except socket.gaierror as error:
        raise PyverbsRDMAError(
            f"Failed to get Address Info: {error.strerror}",
            _RESOLVER_ERRNOS.get(error.errno or 0, errno.EINVAL),
        ) from error
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or errno.EINVAL
        raise PyverbsRDMAError("Failed to get Address Info", number) from error
    # The first answer counts, as in librdmacm/addrinfo.c: RFC 6724 has sorted them by preference.
    _, kind, protocol, _, where = answers[0]
    if not portSpace:
        datagrams = protocol == socket.IPPROTO_UDP
        portSpace = rdma_port_space.RDMA_PS_UDP if datagrams else rdma_port_space.RDMA_PS_TCP
    host, port = str(where[0]), int(where[1])
    # Link-local addresses are ambiguous without their scope (RFC 4007 section 11).
    if len(where) == 4 and where[3] and "%" not in host:
        host = f"{host}%{where[3]}"
    address = Address(normalise(host), port)
    found = _Found(RAI_PASSIVE if passive else 0, int(portSpace), qpTypeOf(portSpace))
    if kind == socket.SOCK_DGRAM:
        found.qpType = ibv_qp_type.IBV_QPT_UD
    if passive:
        found.source = address
    else:
        found.destination = address
    return found


def resolve(
    source: Address | None, node: Text, service: Text, portSpace: int = 0, flags: int = 0, family: int = 0
) -> _Found:
    """
    Resolve one end, and combine it with a known source.

    @param source: the source, if only the destination is resolved.
    @param node: a host name or address.
    @param service: a port name or number.
    @param portSpace: one of C{rdma_port_space}, or 0.
    @param flags: C{RAI_*} bits.
    @param family: C{AF_INET}, C{AF_INET6}, or 0 for any.
    @raise PyverbsRDMAError: there is no answer.
    """
    # A GID is no host name: never ask a name server for it.
    if portSpace == rdma_port_space.RDMA_PS_IB:
        flags |= RAI_NUMERICHOST
    if node is None and service is None:
        found = _Found(flags, int(portSpace), qpTypeOf(portSpace))
    else:
        found = _lookUp(node, service, portSpace, flags, family)
    if found.source is None:
        found.source = source
    return found


class AddrInfo(PyverbsObject):
    """
    The two ends of a connection, as C{struct rdma_addrinfo}.

    @ivar source: an C{Address} or None; not in pyverbs, nor are the next four.
    @ivar flags: C{RAI_PASSIVE} for a listening side.
    @ivar port_space: one of C{rdma_port_space}.
    @ivar qp_type: one of C{ibv_qp_type}.
    """

    def __init__(
        self,
        src: Text = None,
        dst: Text = None,
        src_service: Text = None,
        dst_service: Text = None,
        port_space: int = 0,
        flags: int = 0,
    ) -> None:
        """
        Resolve names, if any are given.

        @param src: the host name or address to bind to, and C{src_service} its port name or number.
        @param dst: the host name or address to connect to, and C{dst_service} its port name or number.
        @param port_space: one of C{rdma_port_space}.
        @param flags: C{RAI_*} bits: C{RAI_PASSIVE} resolves the source only.
        @raise PyverbsRDMAError: an unknown name (EADDRNOTAVAIL), or invalid arguments (EINVAL).
        """
        super().__init__()
        self.close()
        if src or dst or src_service or dst_service:
            self.get_addrinfo(src, dst, src_service, dst_service, port_space, flags)

    def get_addrinfo(
        self,
        src: Text = None,
        dst: Text = None,
        src_service: Text = None,
        dst_service: Text = None,
        port_space: int = 0,
        flags: int = 0,
    ) -> None:
        """
        Resolve names, as the constructor does.
        """
        if flags & RAI_PASSIVE:
            found = resolve(None, src, src_service, port_space, flags)
        else:
            source = None
            if src:
                source = resolve(None, src, src_service, port_space, flags | RAI_PASSIVE).source
            found = resolve(source, dst, dst_service, port_space, flags)
        self.take(found)

    def take(self, found: _Found) -> None:
        """
        Copy the result of C{resolve}.  Not in pyverbs.
        """
        self.flags, self.port_space, self.qp_type = found.flags, found.portSpace, found.qpType
        self.source, self.destination = found.source, found.destination

    def close(self) -> None:
        """
        Clear all fields.
        """
        self.take(_Found())


class JoinMCAttrEx(PyverbsObject):
    """
    The parameters of a multicast join.
    """

    def __init__(
        self,
        addr: AddrInfo,
        comp_mask: int = rdma_cm_join_mc_attr_mask(0),
        join_flags: int = rdma_cm_mc_join_flags.RDMA_MC_JOIN_FLAG_FULLMEMBER,
    ) -> None:
        """
        @param addr: its source is the group's address.
        """
        super().__init__()
        #: The group's C{Address} or None; not in pyverbs.
        self.address = checked(addr, AddrInfo).source
        #: The valid attributes, bits of C{rdma_cm_join_mc_attr_mask}.
        self.comp_mask = int(comp_mask)
        #: One of C{rdma_cm_mc_join_flags}.
        self.join_flags = int(join_flags)
