"""
Whether this host knows the way to an address: the kernel's route, and the link-layer address of the next hop
(arp(7)).

The kernel is asked by rtnetlink(7), and asks the network when it has something to send, as rdma-core's
C{libibverbs/neigh.c} has it do.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

# Not socket's own: programs may replace that.
from _socket import inet_pton
from typing import TYPE_CHECKING

from twisted_ib.hca.host.addresses import (
    NETLINK_ERROR,
    NUMBER,
    ROUTE,
    RTA_OIF,
    RTM_NEWROUTE,
    asked,
    askedRoute,
    attributesOf,
)
from twisted_ib.hca.host.libc import KernelSocket

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

# rtnetlink(7).
_RTM_NEWNEIGH, _RTM_GETNEIGH = 28, 30
_RTA_GATEWAY, _RTN_UNICAST, _NDA_DST = 5, 1, 1
# C{NUD_VALID} of Linux net/neighbour.h: permanent, without ARP, reachable, probe, stale, delay.
_VALID = 0x80 | 0x40 | 0x02 | 0x10 | 0x04 | 0x08
#: The kernel asks the network for it.
_INCOMPLETE = 0x01
#: No route; one that says so; one that is prohibited; and one from the loopback to another host.
_NO_ROUTE = frozenset((errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL))
#: RFC 863: what comes there is thrown away.
_DISCARD_PORT = 9
#: C{struct ndmsg}: family, interface, state, flags, type.
_NEIGHBOUR: Packed[tuple[int, int, int, int, int]] = struct.Struct("=B3xiHBB")
_ERROR: Packed[tuple[int]] = struct.Struct("=i")


class NextHop:
    """
    The next hop to an address.
    """

    def __init__(self, destination: str, source: str) -> None:
        """
        @param destination: the address, and C{source} the one of this host, both normalised.
        @raise OSError: the kernel has no route between them.
        """
        self._destination, _, scope = destination.partition("%")
        self._source, _, ownScope = source.partition("%")
        self._scope = int(scope or ownScope or 0)
        self._family = socket.AF_INET6 if ":" in self._destination else socket.AF_INET
        #: The interface and the next hop's address, packed; 0 where there is none to find.
        self._interface, self._address = self._route()

    def _route(self) -> tuple[int, bytes]:
        kind, message = askedRoute(self._destination, self._source, self._scope)
        # To an address of this host there is no hop, nor to groups.
        if kind == NETLINK_ERROR and (number := -_ERROR.unpack_from(message)[0]) in _NO_ROUTE:
            raise OSError(number, os.strerror(number))
        if kind != RTM_NEWROUTE or ROUTE.unpack_from(message)[3] != _RTN_UNICAST:
            return 0, b""
        found = attributesOf(message, ROUTE.size)
        interface = found.get(RTA_OIF, b"")
        if len(interface) != NUMBER.size:
            return 0, b""
        there = inet_pton(self._family, self._destination)
        return NUMBER.unpack(interface)[0], found.get(_RTA_GATEWAY, there)

    def isKnown(self) -> bool:
        """
        Look whether its link-layer address is known; if not, have the kernel ask the network for it.

        @return: C{True}, too, where there is none, or the kernel does not tell.
        """
        if not self._interface:
            return True
        state = self._state()
        if state & (_VALID | _INCOMPLETE):
            # Datagrams wait for an answer: another one would follow them.
            return bool(state & _VALID)
        try:
            with KernelSocket(self._family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                where = (
                    (self._source, 0, 0, self._scope)
                    if self._family == socket.AF_INET6
                    else (self._source, 0)
                )
                probe.bind(where)
                probe.sendto(b"", socket.MSG_DONTWAIT, (self._destination, _DISCARD_PORT, *where[2:]))
        except OSError:
            return True
        # An entry comes with the first datagram.  Where none comes, the interface has no such addresses; and
        # where the kernel asks nobody, this datagram went elsewhere, or a filter has it.
        return not self._state() & _INCOMPLETE

    def _state(self) -> int:
        # 0: there is no such entry.
        request = _NEIGHBOUR.pack(self._family, self._interface, 0, 0, 0)
        kind, message = asked(_RTM_GETNEIGH, request, [(_NDA_DST, self._address)])
        return _NEIGHBOUR.unpack_from(message)[2] if kind == _RTM_NEWNEIGH else 0
