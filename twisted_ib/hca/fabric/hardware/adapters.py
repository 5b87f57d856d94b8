"""
The adapters of this host, and their IP addresses.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from itertools import islice

from twisted_ib.errors import DeviceError
from twisted_ib.hca.connection.rdmacm import textOf
from twisted_ib.hca.fabric.hardware import provider
from twisted_ib.hca.host.addresses import interfaceOf, localAddresses

#: Where the kernel has network devices.
NETWORK = "/sys/class/net"
#: Ports have numbers from 1; a device has the first.
_PORT = 1
#: The node types of adapters that rdma_cm connects (Linux ib_verbs.h, enum rdma_node_type).
_CA, _RNIC = "1", "4"
#: How the kernel calls the type of a GID (Linux cache.c, gid_type_str).
_ROCE_V2 = "RoCE v2"
_HARDWARE_ADDRESS_BYTES = 6


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        # An entry of a table that is empty, or an adapter that is gone.
        return ""


def _table(adapter: str) -> Iterator[tuple[int, IPv6Address]]:
    # Slots and GIDs, one after the other: the table of rxe has 1024, of which few are used.
    folder = f"{provider.ADAPTERS}/{adapter}/ports/{_PORT}/gids"
    try:
        slots = sorted(map(int, os.listdir(folder)))
    except (OSError, ValueError):
        return
    for slot in slots:
        text = _read(f"{folder}/{slot}")
        if text:
            yield slot, IPv6Address(text)


def _gids(adapter: str) -> Iterator[IPv6Address]:
    return (gid for _, gid in _table(adapter))


def indexOfGID(adapter: str, gid: int) -> int:
    """
    @return: the slot of a GID of RoCE v2 in the adapter's table; -1 if there is none.
    """
    kinds = f"{provider.ADAPTERS}/{adapter}/ports/{_PORT}/gid_attrs/types"
    for slot, found in _table(adapter):
        if int(found) == gid and _read(f"{kinds}/{slot}") == _ROCE_V2:
            return slot
    return -1


def _typeOf(adapter: str) -> str:
    return _read(f"{provider.ADAPTERS}/{adapter}/node_type")


def isRNIC(adapter: str) -> bool:
    """
    @return: whether an adapter is an RNIC, of iWARP; else it is a channel adapter, of RoCE or InfiniBand.
    """
    return _typeOf(adapter).startswith(_RNIC)


def _ofNetwork(hardwareAddress: bytes) -> str:
    # The IP address of the network device whose hardware address is this, or ends with it: that of IPoIB has
    # a queue pair's number before the GID (RFC 4391 section 9.1.1).
    wanted = hardwareAddress.hex(":")
    for index, name in socket.if_nameindex():
        if _read(f"{NETWORK}/{name}/address").lower().endswith(wanted):
            ofIt = [each for each in localAddresses() if interfaceOf(each) == index and "%" not in each]
            if ofIt:
                return min(ofIt, key=lambda each: ":" in each)
    return ""


def addressOfAdapter(adapter: str) -> str:
    """
    @param adapter: its name, as C{rxe0}.
    @return: its IP address: one of IPv4 if there is one, none that is link-local, nor, with RoCE, of the
        loopback.
    @raise DeviceError: there is none, or no such adapter, or rdma_cm connects none of its kind.
    """
    if not os.path.isdir(f"{provider.ADAPTERS}/{adapter}"):
        raise DeviceError(f"this host has no adapter {adapter}: {provider.howToAdd(adapter)}")
    if not (kind := _typeOf(adapter)).startswith((_CA, _RNIC)):
        raise DeviceError(
            f"adapter {adapter} is of no kind that rdma_cm connects, as those of RoCE, InfiniBand and iWARP"
            f" are ({kind or 'its node_type cannot be read'})"
        )
    gids = _gids(adapter)
    if isRNIC(adapter):
        # An RNIC has its hardware address as GID.
        found = "".join(_ofNetwork(gid.packed[:_HARDWARE_ADDRESS_BYTES]) for gid in islice(gids, 1))
    elif _read(f"{provider.ADAPTERS}/{adapter}/ports/{_PORT}/link_layer") == "InfiniBand":
        found = "".join(_ofNetwork(gid.packed) for gid in islice(gids, 1))
    else:
        found = ""
        # IBTA vol. 1 annex A17: a GID of RoCEv2 is an IP address.
        for text in (textOf(gid.packed) for gid in gids if int(gid) and not gid.is_link_local):
            # Linux binds no adapter for one of the loopback.
            if not ip_address(text).is_loopback:
                found = found or text
                if ":" not in text:
                    found = text
                    break
    if not found:
        raise DeviceError(
            f"adapter {adapter} has no IP address: give its network device one, as by ip address add"
        )
    return found
