"""
The symbols of rdma-core's libraries that have nothing behind them here: each library has them as stubs.

Providers and old programs import them: some load a library by C{dlopen(3)} and never start under C{ib-run},
which would add what is missing.  Source: C{libibverbs/libibverbs.map.in} of rdma-core 44 and 56.
"""

from __future__ import annotations

from twisted_ib.verbs.c.building.symbols import Symbol

_VERBS = "libibverbs.so.1"
#: The version of what libibverbs shares with its providers, in rdma-core 15 to 56.
_PRIVATE = "IBVERBS_PRIVATE_34"
#: C{ibv_cmd_*}: commands for the kernel.
_COMMANDS = """
    advise_mr alloc_dm alloc_mw alloc_pd attach_mcast close_xrcd create_ah create_counters create_cq
    create_cq_ex create_cq_ex2 create_flow create_flow_action_esp create_qp create_qp_ex create_qp_ex2
    create_rwq_ind_table create_srq create_srq_ex create_wq dealloc_mw dealloc_pd dereg_mr destroy_ah
    destroy_counters destroy_cq destroy_flow destroy_flow_action destroy_qp destroy_rwq_ind_table
    destroy_srq destroy_wq detach_mcast free_dm get_context modify_cq modify_flow_action_esp modify_qp
    modify_qp_ex modify_srq modify_wq open_qp open_xrcd poll_cq post_recv post_send post_srq_recv
    query_context query_device_any query_mr query_port query_qp query_srq read_counters reg_dm_mr
    reg_dmabuf_mr reg_mr req_notify_cq rereg_mr resize_cq
""".split()
#: What else is for providers.
_PROVIDERS = """
    __ioctl_final_num_attrs __verbs_log _verbs_init_and_alloc_context execute_ioctl
    ibv_read_ibdev_sysfs_file verbs_init_cq verbs_open_device verbs_register_driver_34 verbs_set_ops
    verbs_uninit_context
""".split()
#: C{ibv_*} as of libibverbs 1.0, whose structures were others.
_FIRST = """
    ack_async_event ack_cq_events alloc_pd attach_mcast close_device create_ah create_cq create_qp
    create_srq dealloc_pd dereg_mr destroy_ah destroy_cq destroy_qp destroy_srq detach_mcast
    free_device_list get_async_event get_cq_event get_device_guid get_device_list get_device_name
    modify_qp modify_srq open_device query_device query_gid query_pkey query_port query_qp query_srq
    reg_mr resize_cq
""".split()
#: What librdmacm took from libibverbs.
_KERNEL = """
    ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
""".split()

#: All of them.
STUBS = (
    *(Symbol(_VERBS, _PRIVATE, f"ibv_cmd_{name}") for name in _COMMANDS),
    *(Symbol(_VERBS, _PRIVATE, name) for name in (*_PROVIDERS, "ibv_wr_opcode_str")),
    Symbol(_VERBS, _PRIVATE, "verbs_allow_disassociate_destroy", isData=True),
    *(Symbol(_VERBS, "IBVERBS_1.0", f"ibv_{name}") for name in _FIRST),
    *(Symbol(_VERBS, "IBVERBS_1.0", name) for name in _KERNEL),
    *(Symbol(_VERBS, "IBVERBS_1.1", name) for name in ("ibv_copy_ah_attr_from_kern", "ibv_register_driver")),
)
