"""
Addresses of this host that no other process of the tests uses, be it of this run or of another: for ports
that are one of a kind on an address, as those of RoCEv2 and of RDS over TCP are.
"""

from __future__ import annotations

import errno
import os
import socket

#: A name in the abstract namespace, which belongs to the network as the addresses do.
_NAME = "\0twisted_ib tests of {}"
#: Of 127.64.0 to 127.127.255: what else is bound on a host is mostly in 127.0.
_NETWORKS = 1 << 14
_taken: list[socket.socket] = []
_network: list[str] = []


def ownAddress(number: int) -> str:
    """
    @param number: 1 to 254: which of this process's addresses; a larger one is a larger address.

    @return: an address of the loopback interface.
    """
    assert 0 < number < 255, number
    return f"127.{_ownNetwork()}.{number}"


def ownGroup(number: int) -> str:
    """
    @param number: 1 to 254: which of this process's groups.

    @return: an address for multicast.
    """
    assert 0 < number < 255, number
    return f"239.{_ownNetwork()}.{number}"


def _ownNetwork() -> str:
    """
    Take a network of 256 addresses, the first time, until this process ends.

    @return: the middle of its addresses.
    """
    if not _network:
        for turn in range(_NETWORKS):
            place = (os.getpid() + turn) % _NETWORKS
            network = f"{64 + (place >> 8)}.{place & 0xFF}"
            holder = socket.socket(socket.AF_UNIX)
            try:
                holder.bind(_NAME.format(network))
            except OSError as e:
                holder.close()
                if e.errno != errno.EADDRINUSE:
                    raise
                continue
            _taken.append(holder)
            _network.append(network)
            break
    return _network[0]
