"""
Text for the codes of devices and ports, by pyverbs' function names.

Source: rdma-core 65, C{pyverbs/device.pyx}.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntFlag

from twisted_ib.verbs.pyverbs.base.base import named
from twisted_ib.verbs.pyverbs.enums.device import (
    ibv_device_cap_flags,
    ibv_event_type,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
)

# The texts are those of pyverbs/device.pyx, letter for letter: C{print(context.query_port(1))} gives the same
# lines as on hardware.
_GID_TYPES = {0: "IB", 1: "RoCEv1", 2: "RoCEv2"}
_TRANSPORTS = {0: "IB", 1: "IWARP", 2: "USNIC", 3: "USNIC UDP"}
_NODES = {1: "CA", 2: "Switch", 3: "Router", 4: "RNIC", 5: "USNIC", 6: "USNIC UDP"}
# pyverbs/utils.pyx.
_QP_TYPES = {2: "RC", 3: "UC", 4: "UD", 8: "Raw Packet", 9: "XRCD_SEND", 10: "XRCD_RECV", 0xFF: "Driver QP"}
_QP_STATES = {0: "Reset", 1: "Init", 2: "RTR", 3: "RTS", 4: "SQD", 5: "SQE", 6: "Error", 7: "Unknown"}
_PORT_STATES = {0: "NOP", 1: "Down", 2: "Init", 3: "Armed", 4: "Active", 5: "Defer"}
_LINK_LAYERS = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
# IBTA vol. 1 14.2.5.6, PortInfo PortPhysicalState.
_PHYSICAL_STATES = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "Port configuration training",
    5: "Link up",
    6: "Link error recovery",
    7: "Phy test",
}
# IBTA vol. 1 14.2.5.6, PortInfo LinkWidthActive: a bit per width.  2X came late and has the highest bit.
_WIDTHS = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
# LinkSpeedActive: a bit per speed, Gbps of one lane.  4 (QDR) prints as 5.0, as in pyverbs/device.pyx.
_SPEEDS = {0: 0.0, 1: 2.5, 2: 5.0, 4: 5.0, 8: 10.0, 16: 14.0, 32: 25.0, 64: 50.0, 128: 100.0, 256: 200.0}


def _numbered(names: Mapping[int, object], code: int, otherwise: str) -> str:
    return f"{names[code]} ({code})" if code in names else otherwise


def _lines(enumeration: type[IntFlag], flags: int) -> str:
    return "\n  " + "".join(f"{name}\n  " for name, bit in enumeration.__members__.items() if flags & bit)


def translate_gid_type(gid_type: int) -> str:
    """
    @return: the kind of a GID table entry, one of C{ibv_gid_type}.
    """
    return _GID_TYPES.get(gid_type, f"Unknown gid_type ({gid_type})")


def guid_format(num: int) -> str:
    """
    @param num: a GUID in network byte order, read as an integer of this machine, as C has it.
    @return: 16 hexadecimal digits with a colon after each octet.
    """
    return num.to_bytes(8, sys.byteorder).hex(":")


def translate_transport_type(transport_type: int) -> str:
    """
    @return: the name of one of C{ibv_transport_type}.
    """
    return _TRANSPORTS.get(transport_type, "Unknown")


def translate_node_type(node_type: int) -> str:
    """
    @return: the name of one of C{ibv_node_type}.
    """
    return _NODES.get(node_type, "Unknown")


def guid_to_hex(node_guid: int) -> str:
    """
    @return: a GUID in hexadecimal, without leading zeros.
    """
    return f"{node_guid:x}"


def port_state_to_str(port_state: int) -> str:
    """
    @return: the logical state of a port, one of C{ibv_port_state}.
    """
    return _numbered(_PORT_STATES, port_state, f"Invalid state ({port_state})")


def translate_mtu(mtu: int) -> str:
    """
    @return: the octets of an MTU code (C{ibv_mtu}).
    """
    # IBTA vol. 1 12.7.28: code 1 is 256 octets, each next one twice as many, 5 is 4096.
    return f"{128 << mtu} ({mtu})" if 1 <= mtu <= 5 else f"Invalid MTU ({mtu})"


def translate_link_layer(ll: int) -> str:
    """
    @return: the name of C{IBV_LINK_LAYER_*}.
    """
    return _LINK_LAYERS.get(ll, f"Invalid link layer ({ll})")


def translate_port_cap_flags(flags: int) -> str:
    """
    @return: a line for each bit of C{ibv_port_cap_flags} that is set.
    """
    return _lines(ibv_port_cap_flags, flags)


def translate_port_cap_flags2(flags: int) -> str:
    """
    @return: a line for each bit of C{ibv_port_cap_flags2} that is set.
    """
    return _lines(ibv_port_cap_flags2, flags)


def translate_device_caps(flags: int) -> str:
    """
    @return: a line for each bit of C{ibv_device_cap_flags} that is set.
    """
    return _lines(ibv_device_cap_flags, flags)


def str_from_flags(flags: int, dictionary: Mapping[int, str]) -> str:
    """
    @param dictionary: bits and their names.
    @return: a line for each bit that is set.
    """
    return "\n  " + "".join(f"{name}\n  " for bit, name in dictionary.items() if flags & bit)


def qp_type_to_str(qp_type: int) -> str:
    """
    @return: the name of one of C{ibv_qp_type}.
    """
    return _QP_TYPES.get(qp_type, f"Unknown ({qp_type})")


def qp_state_to_str(qp_state: int) -> str:
    """
    @return: the name of one of C{ibv_qp_state}.
    """
    return _QP_STATES.get(qp_state, f"Unknown ({qp_state})")


def phys_state_to_str(phys: int) -> str:
    """
    @return: the physical state of a port (IBTA vol. 1 14.2.5.6).
    """
    return _numbered(_PHYSICAL_STATES, phys, "Invalid physical state")


def width_to_str(width: int) -> str:
    """
    @return: the width of a link (IBTA vol. 1 14.2.5.6).
    """
    return _numbered(_WIDTHS, width, "Invalid width")


def speed_to_str(active_speed: int, active_speed_ex: int = 0) -> str:
    """
    @param active_speed: the code (IBTA vol. 1 14.2.5.6).
    @param active_speed_ex: the code of a speed that 8 bits cannot hold, or 0.
    @return: the speed of one lane.
    """
    # libibverbs/verbs.h: active_speed has 8 bits, which XDR (256) outgrew.
    code = active_speed_ex or active_speed
    return f"{_SPEEDS[code]} Gbps ({code})" if code in _SPEEDS else "Invalid speed"


def translate_event_type(event_type: int) -> str:
    """
    @return: the name of one of C{ibv_event_type}.
    """
    name = named(ibv_event_type, event_type, "")
    return f"Unknown event_type ({event_type})" if name.startswith("Unknown") else name
