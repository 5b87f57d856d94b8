"""
Constants of the communication manager, with librdmacm's values.

Source: rdma-core 65: C{librdmacm/rdma_cma.h}.
The classes have the names of the C enumerations, as in pyverbs.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class rdma_cm_event_type(IntEnum):
    """
    What a communication manager reports.
    """

    RDMA_CM_EVENT_ADDR_RESOLVED = 0
    RDMA_CM_EVENT_ADDR_ERROR = 1
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2
    RDMA_CM_EVENT_ROUTE_ERROR = 3
    RDMA_CM_EVENT_CONNECT_REQUEST = 4
    RDMA_CM_EVENT_CONNECT_RESPONSE = 5
    RDMA_CM_EVENT_CONNECT_ERROR = 6
    RDMA_CM_EVENT_UNREACHABLE = 7
    RDMA_CM_EVENT_REJECTED = 8
    RDMA_CM_EVENT_ESTABLISHED = 9
    RDMA_CM_EVENT_DISCONNECTED = 10
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11
    RDMA_CM_EVENT_MULTICAST_JOIN = 12
    RDMA_CM_EVENT_MULTICAST_ERROR = 13
    RDMA_CM_EVENT_ADDR_CHANGE = 14
    RDMA_CM_EVENT_TIMEWAIT_EXIT = 15
    RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16
    RDMA_CM_EVENT_ADDRINFO_ERROR = 17
    RDMA_CM_EVENT_USER = 18
    RDMA_CM_EVENT_INTERNAL = 19


class rdma_port_space(IntEnum):
    """
    The spaces of port numbers; the number stands in the service id (IBTA annex A11).
    """

    RDMA_PS_IPOIB = 0x2
    RDMA_PS_TCP = 0x106
    RDMA_PS_UDP = 0x111
    RDMA_PS_IB = 0x13F


# Service ids of 64 bits: masks of the space and of the port, and the spaces in place.
RDMA_IB_IP_PS_MASK = 0xFFFFFFFFFFFF0000
RDMA_IB_IP_PORT_MASK = 0xFFFF
RDMA_IB_IP_PS_TCP = 0x1060000
RDMA_IB_IP_PS_UDP = 0x1110000
RDMA_IB_PS_IB = 0x13F0000

# The Q_Key of datagrams of C{RDMA_PS_UDP}.
RDMA_UDP_QKEY = 0x1234567

# As READs and atomics at a time in connection parameters: as many as the device can.
RDMA_MAX_RESP_RES = 255
RDMA_MAX_INIT_DEPTH = 255

# Hints of address resolution (C{rdma_getaddrinfo}).
RAI_PASSIVE = 0x1
RAI_NUMERICHOST = 0x2
RAI_NOROUTE = 0x4
RAI_FAMILY = 0x8
RAI_SA = 0x10
RAI_DNS = 0x20


class rdma_cm_join_mc_attr_mask(IntFlag):
    """
    Which attributes of joining a multicast group are valid.
    """

    RDMA_CM_JOIN_MC_ATTR_ADDRESS = 0x1
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 0x2
    RDMA_CM_JOIN_MC_ATTR_RESERVED = 0x4


class rdma_cm_mc_join_flags(IntEnum):
    """
    How a multicast group is joined.
    """

    RDMA_MC_JOIN_FLAG_FULLMEMBER = 0
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1
    RDMA_MC_JOIN_FLAG_RESERVED = 2


# Levels of options of an identifier.
RDMA_OPTION_ID = 0
RDMA_OPTION_IB = 1

# Options of the level C{RDMA_OPTION_ID}.
RDMA_OPTION_ID_TOS = 0
RDMA_OPTION_ID_REUSEADDR = 1
RDMA_OPTION_ID_AFONLY = 2
RDMA_OPTION_ID_ACK_TIMEOUT = 3

# Option of the level C{RDMA_OPTION_IB}.
RDMA_OPTION_IB_PATH = 1
