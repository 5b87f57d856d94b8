"""
Verbs, by the names of pyverbs (rdma-core 65), for programs without a reactor.

All that rdma-core's tests take from C{pyverbs.device}, C{pd}, C{mr}, C{cq}, C{qp}, C{wr}, C{srq},
C{addr}, C{base}, C{fork}, C{mem_alloc} and C{pyverbs_error} is here, flat; the constants are in
L{enums<twisted_ib.verbs.pyverbs.enums>}.  Parameters, their order and defaults, attributes and errors
are pyverbs'.  An attribute of a value is as wide as its field in C: what does not fit is an
OverflowError, what is no integer a TypeError.

A verb that fails is a L{PyverbsRDMAError} with the errno as C{error_code}
(L{ERRNOS<twisted_ib.verbs.pyverbs.base.errors.ERRNOS>}); a call that no device could make sense of is a
L{PyverbsUserError}.  Any thread may call any verb.

There is no hardware that works while the program does something else.  C{poll}, and each call that
waits for an event, drives every context of the process and so serves its peers, also those that
only read, write and add.  A process that makes no such call for a while lets its peers wait; one
that has not yet made one since it connected a queue pair by GID does not answer at all, and its
peer's requests end with RETRY_EXC_ERR after C{timeout} and C{retry_cnt}.  With a L{CMID} that is
bound to a device a thread serves peers meanwhile.

Besides:

  - C{cm}: the communication manager of verbs
  - C{objects}: devices, protection domains, memory regions, queues and address handles of verbs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib.verbs.pyverbs.base.addr import GID, GRH, AHAttr, GlobalRoute
from twisted_ib.verbs.pyverbs.base.base import PyverbsCM, PyverbsObject, inc_rkey
from twisted_ib.verbs.pyverbs.base.devicetext import (
    guid_format,
    guid_to_hex,
    phys_state_to_str,
    port_state_to_str,
    qp_state_to_str,
    qp_type_to_str,
    speed_to_str,
    str_from_flags,
    translate_device_caps,
    translate_event_type,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_node_type,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    translate_transport_type,
    width_to_str,
)
from twisted_ib.verbs.pyverbs.base.errors import (
    PyverbsError,
    PyverbsRDMAErrno,
    PyverbsRDMAError,
    PyverbsUserError,
)
from twisted_ib.verbs.pyverbs.base.mem_alloc import (
    MAP_ANONYMOUS_,
    MAP_FIXED_,
    MAP_GROWSDOWN_,
    MAP_HUGETLB_,
    MAP_LOCKED_,
    MAP_NORESERVE_,
    MAP_POPULATE_,
    MAP_PRIVATE_,
    MAP_SHARED_,
    MAP_STACK_,
    PROT_EXEC_,
    PROT_NONE_,
    PROT_READ_,
    PROT_WRITE_,
    fork_init,
    free,
    is_fork_initialized,
    madvise,
    malloc,
    mmap,
    munmap,
    posix_memalign,
    read,
    read32,
    read64,
    write,
    writebe32,
    writebe64,
)
from twisted_ib.verbs.pyverbs.base.wc import WC
from twisted_ib.verbs.pyverbs.base.wr import SGE, MWBind, MWBindInfo, RecvWR, SendWR
from twisted_ib.verbs.pyverbs.objects.ah import AH
from twisted_ib.verbs.pyverbs.objects.cq import CQ, CompChannel
from twisted_ib.verbs.pyverbs.objects.device import (
    AsyncEvent,
    Context,
    Device,
    FdArr,
    get_device_list,
    rdma_get_devices,
)
from twisted_ib.verbs.pyverbs.objects.deviceattr import (
    AllocDmAttr,
    CompCntrCaps,
    CQModerationCaps,
    DeviceAttr,
    DeviceAttrEx,
    GIDEntry,
    ODPCaps,
    PacketPacingCaps,
    PCIAtomicCaps,
    PortAttr,
    QueryDeviceExInput,
    RSSCaps,
    TMCaps,
    TSOCaps,
)
from twisted_ib.verbs.pyverbs.objects.mr import DM, DMMR, MR, MW, MREx, mwtype2str
from twisted_ib.verbs.pyverbs.objects.pd import PD, ParentDomain, ParentDomainContext, ParentDomainInitAttr
from twisted_ib.verbs.pyverbs.objects.srq import SRQ, OpsWr, SrqAttr, SrqInitAttr, SrqInitAttrEx
from twisted_ib.verbs.pyverbs.qp.qp import QP
from twisted_ib.verbs.pyverbs.qp.qpattr import QPAttr, QPCap, QPInitAttr, QPInitAttrEx

if TYPE_CHECKING:
    from twisted_ib.verbs.pyverbs.cm.addrinfo import AddrInfo, JoinMCAttrEx
    from twisted_ib.verbs.pyverbs.cm.cmid import CMID
    from twisted_ib.verbs.pyverbs.cm.event import CMEvent, CMEventChannel, UDParam
    from twisted_ib.verbs.pyverbs.cm.negotiation import ConnParam
    from twisted_ib.verbs.pyverbs.objects.cqex import CQEX, CqInitAttrEx, PollCqAttr, WcTmInfo
    from twisted_ib.verbs.pyverbs.objects.unsupported import (
        ECE,
        WQ,
        XRCD,
        Buf,
        BufMR,
        CompCntr,
        CompCntrInitAttr,
        DmaBuf,
        DmaBufMR,
        DMAHandle,
        DmaHandleInitAttr,
        Flow,
        FlowAttr,
        QPAttachCompCntrAttr,
        QPRateLimitAttr,
        RwqIndTable,
        RwqIndTableInitAttr,
        RxHashConf,
        WQAttr,
        WQInitAttr,
        XRCDInitAttr,
    )
    from twisted_ib.verbs.pyverbs.qp.qpex import DataBuffer, QPEx

__all__ = [
    "AH",
    "CMID",
    "CQ",
    "CQEX",
    "DM",
    "DMMR",
    "ECE",
    "GID",
    "GRH",
    "MAP_ANONYMOUS_",
    "MAP_FIXED_",
    "MAP_GROWSDOWN_",
    "MAP_HUGETLB_",
    "MAP_LOCKED_",
    "MAP_NORESERVE_",
    "MAP_POPULATE_",
    "MAP_PRIVATE_",
    "MAP_SHARED_",
    "MAP_STACK_",
    "MR",
    "MW",
    "PD",
    "PROT_EXEC_",
    "PROT_NONE_",
    "PROT_READ_",
    "PROT_WRITE_",
    "QP",
    "SGE",
    "SRQ",
    "WC",
    "WQ",
    "XRCD",
    "AHAttr",
    "AddrInfo",
    "AllocDmAttr",
    "AsyncEvent",
    "Buf",
    "BufMR",
    "CMEvent",
    "CMEventChannel",
    "CQModerationCaps",
    "CompChannel",
    "CompCntr",
    "CompCntrCaps",
    "CompCntrInitAttr",
    "ConnParam",
    "Context",
    "CqInitAttrEx",
    "DMAHandle",
    "DataBuffer",
    "Device",
    "DeviceAttr",
    "DeviceAttrEx",
    "DmaBuf",
    "DmaBufMR",
    "DmaHandleInitAttr",
    "FdArr",
    "Flow",
    "FlowAttr",
    "GIDEntry",
    "GlobalRoute",
    "JoinMCAttrEx",
    "MREx",
    "MWBind",
    "MWBindInfo",
    "ODPCaps",
    "OpsWr",
    "PCIAtomicCaps",
    "PacketPacingCaps",
    "ParentDomain",
    "ParentDomainContext",
    "ParentDomainInitAttr",
    "PollCqAttr",
    "PortAttr",
    "PyverbsCM",
    "PyverbsError",
    "PyverbsObject",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "QPAttachCompCntrAttr",
    "QPAttr",
    "QPCap",
    "QPEx",
    "QPInitAttr",
    "QPInitAttrEx",
    "QPRateLimitAttr",
    "QueryDeviceExInput",
    "RSSCaps",
    "RecvWR",
    "RwqIndTable",
    "RwqIndTableInitAttr",
    "RxHashConf",
    "SendWR",
    "SrqAttr",
    "SrqInitAttr",
    "SrqInitAttrEx",
    "TMCaps",
    "TSOCaps",
    "UDParam",
    "WQAttr",
    "WQInitAttr",
    "WcTmInfo",
    "XRCDInitAttr",
    "fork_init",
    "free",
    "get_device_list",
    "guid_format",
    "guid_to_hex",
    "inc_rkey",
    "is_fork_initialized",
    "madvise",
    "malloc",
    "mmap",
    "munmap",
    "mwtype2str",
    "phys_state_to_str",
    "port_state_to_str",
    "posix_memalign",
    "qp_state_to_str",
    "qp_type_to_str",
    "rdma_get_devices",
    "read",
    "read32",
    "read64",
    "speed_to_str",
    "str_from_flags",
    "translate_device_caps",
    "translate_event_type",
    "translate_gid_type",
    "translate_link_layer",
    "translate_mtu",
    "translate_node_type",
    "translate_port_cap_flags",
    "translate_port_cap_flags2",
    "translate_transport_type",
    "width_to_str",
    "write",
    "writebe32",
    "writebe64",
]


def __getattr__(name: str) -> object:
    # PEP 562: what few programs use is imported then.  C programs start sooner so.
    module: object
    if name in ("AddrInfo", "JoinMCAttrEx"):
        from twisted_ib.verbs.pyverbs.cm import addrinfo

        module = addrinfo
    elif name == "CMID":
        from twisted_ib.verbs.pyverbs.cm import cmid

        module = cmid
    elif name in ("CMEvent", "CMEventChannel", "UDParam"):
        from twisted_ib.verbs.pyverbs.cm import event

        module = event
    elif name == "ConnParam":
        from twisted_ib.verbs.pyverbs.cm import negotiation

        module = negotiation
    elif name in ("CQEX", "CqInitAttrEx", "PollCqAttr", "WcTmInfo"):
        from twisted_ib.verbs.pyverbs.objects import cqex

        module = cqex
    elif name in ("DataBuffer", "QPEx"):
        from twisted_ib.verbs.pyverbs.qp import qpex

        module = qpex
    elif name in __all__:
        from twisted_ib.verbs.pyverbs.objects import unsupported

        module = unsupported
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value
