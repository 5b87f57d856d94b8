"""
Codes of devices and ports as text, by the functions of pyverbs.

Source: rdma-core 65, C{pyverbs/device.pyx}.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntFlag

from twisted_ib.hca.verbs.base.base import named
from twisted_ib.hca.verbs.enums.device import (
    ibv_device_cap_flags,
    ibv_event_type,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
)

_GID_TYPES = {0: "IB", 1: "RoCEv1", 2: "RoCEv2"}
_TRANSPORTS = {0: "IB", 1: "IWARP", 2: "USNIC", 3: "USNIC UDP"}
_NODES = {1: "CA", 2: "Switch", 3: "Router", 4: "RNIC", 5: "USNIC", 6: "USNIC UDP"}
_PORT_STATES = {0: "NOP", 1: "Down", 2: "Init", 3: "Armed", 4: "Active", 5: "Defer"}
_LINK_LAYERS = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
_PHYSICAL_STATES = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "Port configuration training",
    5: "Link up",
    6: "Link error recovery",
    7: "Phy test",
}
_WIDTHS = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
_SPEEDS = {0: 0.0, 1: 2.5, 2: 5.0, 4: 5.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}


def _numbered(names: Mapping[int, object], code: int, otherwise: str) -> str:
    """
    @return: a code's name and number, or that there is no such code.
    """
    return f"{names[code]} ({code})" if code in names else otherwise


def _lines(enumeration: type[IntFlag], flags: int) -> str:
    """
    @return: the flags that are set, a line for each.
    """
    return "\n  " + "".join(f"{name}\n  " for name, bit in enumeration.__members__.items() if flags & bit)


def translate_gid_type(gid_type: int) -> str:
    """
    @param gid_type: one of C{ibv_gid_type_sysfs}.

    @return: the kind of a GID table entry.
    """
    return _GID_TYPES.get(gid_type, f"Unknown gid_type ({gid_type})")


def guid_format(num: int) -> str:
    """
    @param num: a GUID as C has it: its octets read as a number of this machine.

    @return: its octets in hexadecimal, with colons between.
    """
    return num.to_bytes(8, sys.byteorder).hex(":")


def translate_transport_type(transport_type: int) -> str:
    """
    @param transport_type: one of C{ibv_transport_type}.

    @return: the transport of a device.
    """
    return _TRANSPORTS.get(transport_type, "Unknown")


def translate_node_type(node_type: int) -> str:
    """
    @param node_type: one of C{ibv_node_type}.

    @return: the kind of a device.
    """
    return _NODES.get(node_type, "Unknown")


def guid_to_hex(node_guid: int) -> str:
    """
    @param node_guid: a GUID.

    @return: a GUID in hexadecimal.
    """
    return f"{node_guid:x}"


def port_state_to_str(port_state: int) -> str:
    """
    @param port_state: one of C{ibv_port_state}.

    @return: the logical state of a port.
    """
    return _numbered(_PORT_STATES, port_state, f"Invalid state ({port_state})")


def translate_mtu(mtu: int) -> str:
    """
    @param mtu: one of C{ibv_mtu}.

    @return: the octets that an MTU code stands for.
    """
    return f"{128 << mtu} ({mtu})" if 1 <= mtu <= 5 else f"Invalid MTU ({mtu})"


def translate_link_layer(ll: int) -> str:
    """
    @param ll: C{IBV_LINK_LAYER_*}.

    @return: the link layer of a port.
    """
    return _LINK_LAYERS.get(ll, f"Invalid link layer ({ll})")


def translate_port_cap_flags(flags: int) -> str:
    """
    @param flags: bits of C{ibv_port_cap_flags}.

    @return: what a port can do.
    """
    return _lines(ibv_port_cap_flags, flags)


def translate_port_cap_flags2(flags: int) -> str:
    """
    @param flags: bits of C{ibv_port_cap_flags2}.

    @return: what more a port can do.
    """
    return _lines(ibv_port_cap_flags2, flags)


def translate_device_caps(flags: int) -> str:
    """
    @param flags: bits of C{ibv_device_cap_flags}.

    @return: what a device can do.
    """
    return _lines(ibv_device_cap_flags, flags)


def str_from_flags(flags: int, dictionary: Mapping[int, str]) -> str:
    """
    @param flags: bits.
    @param dictionary: the names of bits.

    @return: the names of those that are set, a line for each.
    """
    return "\n  " + "".join(f"{name}\n  " for bit, name in dictionary.items() if flags & bit)


def phys_state_to_str(phys: int) -> str:
    """
    @param phys: the code (IBTA vol. 1 14.2.5.6).

    @return: the physical state of a port.
    """
    return _numbered(_PHYSICAL_STATES, phys, "Invalid physical state")


def width_to_str(width: int) -> str:
    """
    @param width: the code (IBTA vol. 1 14.2.5.6).

    @return: the width of a link.
    """
    return _numbered(_WIDTHS, width, "Invalid width")


def speed_to_str(active_speed: int, active_speed_ex: int) -> str:
    """
    @param active_speed: the code (IBTA vol. 1 14.2.5.6).
    @param active_speed_ex: a code beyond 8 bits, or 0.

    @return: the speed of a lane; the second code is meant if it is not 0.
    """
    code = active_speed_ex or active_speed
    return f"{_SPEEDS[code]} Gbps ({code})" if code in _SPEEDS else "Invalid speed"


def translate_event_type(event_type: int) -> str:
    """
    @param event_type: one of C{ibv_event_type}.

    @return: the name of an asynchronous event.
    """
    name = named(ibv_event_type, event_type, "")
    return f"Unknown event_type ({event_type})" if name.startswith("Unknown") else name
