"""
Connection management as users see it, whatever carries it: InfiniBand's communication manager
(L{twisted_ib.hca.cm}) is one implementation.

L{request<twisted_ib.hca.connection.request>} are requests and their answers, the reasons of refusals, and the
path record; L{interfaces<twisted_ib.hca.connection.interfaces>} the ends that give and take them, of which
L{active<twisted_ib.hca.connection.active>} is the one that asks;
L{rdmacm<twisted_ib.hca.connection.rdmacm>} the header in private data by which RDMA-CM programs know each
other's IP addresses, L{compacthello<twisted_ib.hca.connection.compacthello>} what follows it where a stream
of SDP begins on an adapter, and L{receives<twisted_ib.hca.connection.receives>} the end of private data by
which both sides of an iWARP connection know each other's receives.  All is pure.
"""

from twisted_ib.hca.connection.request import (
    ConnectReply,
    ConnectRequest,
    LookupReply,
    LookupRequest,
    PathRecord,
    Rejection,
    RejectReason,
    SIDRStatus,
)

__all__ = [
    "ConnectReply",
    "ConnectRequest",
    "LookupReply",
    "LookupRequest",
    "PathRecord",
    "RejectReason",
    "Rejection",
    "SIDRStatus",
]
