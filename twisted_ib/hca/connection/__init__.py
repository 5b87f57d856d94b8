"""
Connection management as users see it, whatever carries it: InfiniBand's communication manager
(L{twisted_ib.hca.cm}) is one implementation.

L{request<twisted_ib.hca.connection.request>} are requests and their answers,
L{interfaces<twisted_ib.hca.connection.interfaces>} the ends that give and take them, of which
L{active<twisted_ib.hca.connection.active>} is the one that asks;
L{codes<twisted_ib.hca.connection.codes>} are the reasons of refusals; L{path<twisted_ib.hca.connection.path>}
is the path record; L{rdmacm<twisted_ib.hca.connection.rdmacm>} the header in private data by which RDMA-CM
programs know each other's IP addresses.  All is pure.
"""

from twisted_ib.hca.connection.codes import RejectReason, SIDRStatus
from twisted_ib.hca.connection.path import PathRecord
from twisted_ib.hca.connection.request import (
    ConnectReply,
    ConnectRequest,
    LookupReply,
    LookupRequest,
    Rejection,
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
