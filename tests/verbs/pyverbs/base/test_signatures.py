"""
The names of pyverbs at rdma-core 65: what L{twisted_ib.verbs.pyverbs} has of them, and their parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.verbs import pyverbs as verbs

# What rdma-core's tests take from pyverbs' modules, the communication manager's apart.
NAMES = """
    AH AHAttr AllocDmAttr AsyncEvent Buf BufMR CQ CQEX CompChannel Context CqInitAttrEx DM DMAHandle DMMR
    DataBuffer DmaBuf DmaBufMR DmaHandleInitAttr ECE FdArr Flow FlowAttr GID GIDEntry GRH GlobalRoute MR MREx
    MW MWBind MWBindInfo OpsWr PD ParentDomain ParentDomainContext ParentDomainInitAttr PollCqAttr
    PyverbsError PyverbsRDMAErrno PyverbsRDMAError PyverbsUserError QP QPAttr QPCap QPEx QPInitAttr
    QPInitAttrEx QPRateLimitAttr QueryDeviceExInput RecvWR RwqIndTable RwqIndTableInitAttr RxHashConf SGE SRQ
    SendWR SrqAttr SrqInitAttr SrqInitAttrEx WC WQ WQAttr WQInitAttr WcTmInfo XRCD XRCDInitAttr fork_init free
    get_device_list inc_rkey is_fork_initialized madvise malloc mmap munmap phys_state_to_str posix_memalign
    qp_state_to_str qp_type_to_str rdma_get_devices read32 read64 speed_to_str translate_event_type
    translate_link_layer translate_mtu width_to_str writebe32 writebe64 MAP_ANONYMOUS_ MAP_HUGETLB_
    MAP_PRIVATE_ PROT_READ_ PROT_WRITE_
"""

# Parameters and defaults; a name alone has no default.
PARAMETERS: dict[str, str] = {
    "AH": "pd **kwargs",
    "AllocDmAttr": "length log_align_req=0 comp_mask=0",
    "AsyncEvent": "event_type=0",
    "CQ": "context cqe cq_context=None channel=None comp_vector=0",
    "CQ.poll": "num_entries=1",
    "CQ.req_notify": "solicited_only=False",
    "CQ.ack_events": "num_events",
    "CQ.resize": "cqe",
    "CQEX": "context init_attr=None",
    "CQEX.start_poll": "attr=None",
    "CompChannel": "context",
    "CompChannel.get_cq_event": "expected_cq",
    "Context": "**kwargs",
    "Context.get_pkey_index": "port_num pkey",
    "Context.query_device_ex": "ex_input=None",
    "Context.query_gid": "port_num index",
    "Context.query_gid_ex": "port_num gid_index flags=0",
    "Context.query_gid_table": "max_entries flags=0",
    "Context.query_gid_type": "port_num index",
    "Context.query_pkey": "port_num index",
    "Context.query_port": "port_num",
    "CqInitAttrEx": "cqe=100 channel=None comp_vector=0 wc_flags=0 comp_mask=0 flags=0 parent_domain=None",
    "DataBuffer": "addr length",
    "Device": "name guid node_type transport_type index",
    "ECE": "vendor_id=0 options=0 comp_mask=0",
    "FlowAttr": "num_of_specs=0 flow_type=0 priority=0 port=1 flags=0",
    "GIDEntry": "subnet_prefix=0 interface_id=0 gid_index=0 port_num=0 gid_type=0 ndev_ifindex=0",
    "MR": "creator length=0 access=0 address=None implicit=False **kwargs",
    "MR.read": "length offset",
    "MR.rereg": "flags pd=None addr=0 length=0 access=0",
    "MR.write": "data length offset=0",
    "MREx": (
        "pd length=0 access=0 address=None iova=None fd=None fd_offset=0 dmah=None implicit=False buf=None "
        "**kwargs"
    ),
    "MW": "pd mw_type",
    "OpsWr": (
        "wr_id=0 opcode=0 flags=1 next_wr=None unexpected_cnt=0 recv_wr_id=0 num_sge=None tag=0 mask=0 "
        "sg_list=None"
    ),
    "PD": "creator **kwargs",
    "PD.advise_mr": "advise flags sg_list",
    "ParentDomain": "context attr",
    "ParentDomainContext": "pd alloc_func free_func user_data=None",
    "ParentDomainInitAttr": "pd pd_context=None comp_mask=0",
    "QP": "creator init_attr qp_attr=None",
    "QP.bind_mw": "mw mw_bind",
    "QP.modify": "qp_attr comp_mask",
    "QP.post_recv": "wr bad_wr=None",
    "QP.post_send": "wr bad_wr=None",
    "QP.query": "attr_mask",
    "QP.query_data_in_order": "op flags=0",
    "QP.to_init": "qp_attr",
    "QP.to_rtr": "qp_attr",
    "QP.to_rts": "qp_attr",
    "QPEx": "creator init_attr qp_attr=None",
    "QPEx.wr_atomic_cmp_swp": "rkey remote_addr compare swap",
    "QPEx.wr_atomic_fetch_add": "rkey remote_addr add",
    "QPEx.wr_bind_mw": "mw rkey bind_info",
    "QPEx.wr_flush": "rkey remote_addr length ptype level",
    "QPEx.wr_local_inv": "invalidate_rkey",
    "QPEx.wr_rdma_write_imm": "rkey remote_addr data",
    "QPEx.wr_send_imm": "data",
    "QPEx.wr_send_inv": "invalidate_rkey",
    "QPEx.wr_send_tso": "hdr hdr_sz mss",
    "QPEx.wr_set_inline_data": "addr length",
    "QPEx.wr_set_inline_data_list": "num_buf buf_list",
    "QPEx.wr_set_sge": "sge",
    "QPEx.wr_set_sge_list": "num_sge sg_list",
    "QPEx.wr_set_ud_addr": "ah remote_qpn remote_rkey",
    "QPRateLimitAttr": "rate_limit=0 max_burst_sz=0 typical_pkt_sz=0 comp_mask=0",
    "QueryDeviceExInput": "comp_mask",
    "SGE.read": "length offset",
    "SRQ": "creator attr",
    "SRQ.modify": "attr comp_mask",
    "SRQ.post_recv": "wr bad_wr=None",
    "SrqInitAttrEx": "max_wr=100 max_sge=1 srq_limit=0",
    "WQAttr": "attr_mask=0 wq_state=0 curr_wq_state=0 flags=0 flags_mask=0",
    "WQInitAttr": (
        "wq_context=None wq_pd=None wq_cq=None wq_type=0 max_wr=100 max_sge=1 comp_mask=0 create_flags=0"
    ),
    "XRCDInitAttr": "comp_mask oflags fd",
    "madvise": "addr length flags=4",
    "mmap": "addr=0 length=100 prot=3 flags=34 fd=0 offset=0",
    "posix_memalign": "size alignment=8",
    "write": "addr data length offset=0",
}


def parameters(call: Callable[..., Any]) -> str:
    """
    @return: a call's parameters, as in the table.
    """
    words = []
    for name, parameter in inspect.signature(call).parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            words.append(f"**{name}")
        elif parameter.default is parameter.empty:
            words.append(name)
        else:
            default = parameter.default
            number = isinstance(default, int) and not isinstance(default, bool)
            words.append(f"{name}={int(default) if number else default}")
    return " ".join(words)


class NameTests(SynchronousTestCase):
    """
    Names and parameters.
    """

    def test_names(self) -> None:
        """
        All of them exist, in one namespace and in C{__all__}.
        """
        for name in NAMES.split():
            self.assertIn(name, verbs.__all__)
            self.assertTrue(hasattr(verbs, name), name)

    def test_parameters(self) -> None:
        """
        Parameters have pyverbs' names, order and defaults.
        """
        for name, expected in PARAMETERS.items():
            call: Any = verbs
            for part in name.split("."):
                call = getattr(call, part)
            self.assertEqual(parameters(call), expected, name)

    def test_queueMethods(self) -> None:
        """
        The fields of a completion that can be read.
        """
        for name in (
            "opcode vendor_err byte_len imm_data qp_num src_qp wc_flags slid sl dlid_path_bits timestamp "
            "cvlan flow_tag tm_info completion_wallclock_ns"
        ).split():
            self.assertTrue(hasattr(verbs.CQEX, f"read_{name}"), name)
