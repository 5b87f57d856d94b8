"""
Constants of the communication manager, by their C names.

Source: rdma-core 65: C{librdmacm/rdma_cma.h}.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class rdma_cm_event_type(IntEnum):
    """
    Events of the communication manager.
    """

    RDMA_CM_EVENT_ADDR_RESOLVED = 0
    RDMA_CM_EVENT_ADDR_ERROR = 1
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2
    RDMA_CM_EVENT_ROUTE_ERROR = 3
    RDMA_CM_EVENT_CONNECT_REQUEST = 4
    # A REP for an identifier without a queue pair, which its program has to bring to RTS itself.
    RDMA_CM_EVENT_CONNECT_RESPONSE = 5
    RDMA_CM_EVENT_CONNECT_ERROR = 6
    # No answer, or a SIDR_REP with an error status; REJ has an event of its own.
    RDMA_CM_EVENT_UNREACHABLE = 7
    RDMA_CM_EVENT_REJECTED = 8
    RDMA_CM_EVENT_ESTABLISHED = 9
    RDMA_CM_EVENT_DISCONNECTED = 10
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11
    RDMA_CM_EVENT_MULTICAST_JOIN = 12
    RDMA_CM_EVENT_MULTICAST_ERROR = 13
    RDMA_CM_EVENT_ADDR_CHANGE = 14
    # IBTA vol. 1 12.9.7: the queue pair number may be used again from here on.
    RDMA_CM_EVENT_TIMEWAIT_EXIT = 15
    RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16
    RDMA_CM_EVENT_ADDRINFO_ERROR = 17
    RDMA_CM_EVENT_USER = 18
    RDMA_CM_EVENT_INTERNAL = 19


class rdma_port_space(IntEnum):
    """
    Port spaces: bits 16 to 31 of the service id (IBTA vol. 1 annex A11).
    """

    RDMA_PS_IPOIB = 0x2
    # 0x01 and the IP protocol number: 6 is TCP, 17 UDP.  They name a space of ports, not the protocol used.
    RDMA_PS_TCP = 0x106
    RDMA_PS_UDP = 0x111
    RDMA_PS_IB = 0x13F


# Service ids of 64 bits: the masks of port space and port, and the spaces in place (annex A11).
RDMA_IB_IP_PS_MASK = 0xFFFFFFFFFFFF0000
RDMA_IB_IP_PORT_MASK = 0xFFFF
RDMA_IB_IP_PS_TCP = 0x1060000
RDMA_IB_IP_PS_UDP = 0x1110000
RDMA_IB_PS_IB = 0x13F0000

# librdmacm/rdma_cma.h: the Q_Key of all datagram services and groups of RDMA_PS_UDP.
RDMA_UDP_QKEY = 0x1234567

# librdmacm/rdma_cma.h: as connection parameters, these stand for the device's largest values.
RDMA_MAX_RESP_RES = 255
RDMA_MAX_INIT_DEPTH = 255

# Flags of rdma_getaddrinfo; RAI_DNS and RAI_SA exclude each other.
RAI_PASSIVE = 0x1
RAI_NUMERICHOST = 0x2
RAI_NOROUTE = 0x4
RAI_FAMILY = 0x8
RAI_SA = 0x10
RAI_DNS = 0x20


class rdma_cm_join_mc_attr_mask(IntFlag):
    """
    Which attributes of a multicast join are valid.
    """

    RDMA_CM_JOIN_MC_ATTR_ADDRESS = 0x1
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 0x2
    RDMA_CM_JOIN_MC_ATTR_RESERVED = 0x4


class rdma_cm_mc_join_flags(IntEnum):
    """
    The kinds of multicast membership.
    """

    RDMA_MC_JOIN_FLAG_FULLMEMBER = 0
    # On IP: no IGMP membership, as RFC 1112 lets any host send to a group.
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = 1
    RDMA_MC_JOIN_FLAG_RESERVED = 2


# Option levels of rdma_set_option.
RDMA_OPTION_ID = 0
RDMA_OPTION_IB = 1

# Options of the level C{RDMA_OPTION_ID}.  ACK_TIMEOUT is the code of IBTA vol. 1 9.7.6.1.3.
RDMA_OPTION_ID_TOS = 0
RDMA_OPTION_ID_REUSEADDR = 1
RDMA_OPTION_ID_AFONLY = 2
RDMA_OPTION_ID_ACK_TIMEOUT = 3

# Option of the level C{RDMA_OPTION_IB}.
RDMA_OPTION_IB_PATH = 1
