"""
Why a request was refused: the reasons of connection management.
"""

from __future__ import annotations

from enum import IntEnum


class RejectReason(IntEnum):
    """
    Reason of a REJ (IBTA vol. 1 12.6.7.2).
    """

    NO_QP = 1
    NO_EEC = 2
    NO_RESOURCES = 3
    # The additional information is the sender's CA GUID, by which the receiver finds the connection.
    TIMEOUT = 4
    UNSUPPORTED_REQUEST = 5
    INVALID_COMMUNICATION_ID = 6
    INVALID_COMMUNICATION_INSTANCE = 7
    # Nobody listens on the service id; applications see "connection refused".
    INVALID_SERVICE_ID = 8
    INVALID_TRANSPORT_TYPE = 9
    # The receiver's queue pair is known from another connection: the peer has restarted (Linux cm.c
    # cm_match_req).
    STALE_CONNECTION = 10
    RDC_DOES_NOT_EXIST = 11
    PRIMARY_GID = 12
    PRIMARY_LID = 13
    PRIMARY_SERVICE_LEVEL = 14
    PRIMARY_TRAFFIC_CLASS = 15
    PRIMARY_HOP_LIMIT = 16
    PRIMARY_PACKET_RATE = 17
    ALTERNATE_GID = 18
    ALTERNATE_LID = 19
    ALTERNATE_SERVICE_LEVEL = 20
    ALTERNATE_TRAFFIC_CLASS = 21
    ALTERNATE_HOP_LIMIT = 22
    ALTERNATE_PACKET_RATE = 23
    PORT_AND_CM_REDIRECT = 24
    PORT_REDIRECT = 25
    INVALID_MTU = 26
    INSUFFICIENT_RESPONDER_RESOURCES = 27
    # rdma_reject: the private data is the application's (librdmacm/cma.c, Linux cma.c rdma_reject).
    CONSUMER_DEFINED = 28
    INVALID_RNR_RETRY = 29
    DUPLICATE_LOCAL_COMMUNICATION_ID = 30
    INVALID_CLASS_VERSION = 31
    INVALID_FLOW_LABEL = 32
    INVALID_ALTERNATE_FLOW_LABEL = 33
    VENDOR_OPTION_NOT_SUPPORTED = 35


class SIDRStatus(IntEnum):
    """
    Status of a SIDR_REP (Linux ib_cm.h enum ib_cm_sidr_status).
    """

    VALID = 0
    SERVICE_ID_UNSUPPORTED = 1
    REJECTED = 2
    NO_QP = 3
    REDIRECT = 4
    VERSION_UNSUPPORTED = 5
