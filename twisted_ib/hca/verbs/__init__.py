"""
Verbs, by the names of pyverbs (rdma-core 65), for programs without a reactor.

Here so far: the values that verbs take and give, the errors, and the constants
(L{enums<twisted_ib.hca.verbs.enums>}).  A value has the parameters, their order and defaults,
and the attributes of pyverbs' class of that name.  An attribute is as wide as its field in C:
what does not fit is an OverflowError, what is no integer a TypeError.
"""

from twisted_ib.hca.verbs.addr import GID, GRH, AHAttr, GlobalRoute
from twisted_ib.hca.verbs.base import PyverbsCM, PyverbsObject, inc_rkey
from twisted_ib.hca.verbs.connparam import ConnParam
from twisted_ib.hca.verbs.errors import PyverbsError, PyverbsRDMAError, PyverbsUserError
from twisted_ib.hca.verbs.mwbind import MWBind, MWBindInfo
from twisted_ib.hca.verbs.qpattr import QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from twisted_ib.hca.verbs.srqattr import SrqAttr, SrqInitAttr
from twisted_ib.hca.verbs.wc import WC
from twisted_ib.hca.verbs.wr import SGE, RecvWR, SendWR

__all__ = [
    "GID",
    "GRH",
    "SGE",
    "WC",
    "AHAttr",
    "ConnParam",
    "GlobalRoute",
    "MWBind",
    "MWBindInfo",
    "PyverbsCM",
    "PyverbsError",
    "PyverbsObject",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "QPAttr",
    "QPCap",
    "QPInitAttr",
    "QPInitAttrEx",
    "RecvWR",
    "SendWR",
    "SrqAttr",
    "SrqInitAttr",
    "inc_rkey",
]
