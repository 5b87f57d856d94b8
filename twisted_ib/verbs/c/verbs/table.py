"""
The functions of libibverbs.  Source: rdma-core 44, C{libibverbs/libibverbs.map.in} and C{verbs.h}.

Those without a version are called through the pointers of C{struct ibv_context_ops}, C{struct verbs_context},
C{struct ibv_cq_ex} and C{struct ibv_qp_ex}, by the fields' names.
"""

from __future__ import annotations

from twisted_ib.verbs.c.functions import Failure, Row


def _reading(field: str, kind: str = "uint32_t") -> Row:
    # A field of C{struct ibv_wc}: without Python, if there is a present completion.
    before = f"struct ibv_wc *present = twisted_ib_present(cq);\nif (present)\nreturn present->{field};"
    prototype = f"{kind} read_{field}(struct ibv_cq_ex *cq)"
    return Row(f"read_{field}", "", prototype, Failure.ZERO, before=before)


def _posting(name: str, queue: str, request: str, record: str) -> Row:
    # What is left of the list goes to the handler: nothing, if C has recorded all of it.
    before = f"""\
if (!wr || !bad) {{
errno = EINVAL;
return EINVAL;
}}
wr = {record};
if (!wr && twisted_ib_attended())
return 0;"""
    prototype = f"int {name}(struct {queue}, struct {request} *wr, struct {request} **bad)"
    return Row(name, "", prototype, before=before, attends=True)


_DEVICE = (
    Row("ibv_get_device_list", "IBVERBS_1.1", "struct ibv_device **ibv_get_device_list(int *num)"),
    Row("ibv_free_device_list", "IBVERBS_1.1", "void ibv_free_device_list(struct ibv_device **list)"),
    Row("ibv_get_device_name", "IBVERBS_1.1", "const char *ibv_get_device_name(struct ibv_device *device)"),
    Row(
        "ibv_get_device_guid",
        "IBVERBS_1.1",
        "unsigned long long ibv_get_device_guid(struct ibv_device *device)",
        Failure.ZERO,
    ),
    Row(
        "ibv_get_device_index",
        "IBVERBS_1.9",
        "int ibv_get_device_index(struct ibv_device *device)",
        Failure.MINUS_ONE,
    ),
    Row("ibv_open_device", "IBVERBS_1.1", "struct ibv_context *ibv_open_device(struct ibv_device *device)"),
    Row("ibv_import_device", "IBVERBS_1.10", "struct ibv_context *ibv_import_device(int cmd_fd)"),
    Row("ibv_close_device", "IBVERBS_1.1", "int ibv_close_device(struct ibv_context *context)"),
    Row(
        "ibv_query_device",
        "IBVERBS_1.1",
        "int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)",
    ),
    Row(
        "query_device_ex",
        "",
        "int query_device_ex(struct ibv_context *context, "
        "const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr, size_t size)",
    ),
    Row(
        "ibv_query_port",
        "IBVERBS_1.1",
        "int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)",
    ),
    Row(
        "query_port",
        "",
        "int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size)",
    ),
    Row(
        "ibv_query_gid",
        "IBVERBS_1.1",
        "int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)",
        Failure.MINUS_ONE,
    ),
    Row(
        "ibv_query_gid_type",
        "IBVERBS_PRIVATE_34",
        "int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, int *type)",
        Failure.MINUS_ONE,
    ),
    Row(
        "_ibv_query_gid_ex",
        "IBVERBS_1.11",
        "int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, "
        "struct ibv_gid_entry *entry, uint32_t flags, size_t size)",
    ),
    Row(
        "_ibv_query_gid_table",
        "IBVERBS_1.11",
        "ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, "
        "size_t most, uint32_t flags, size_t size)",
        Failure.NEGATIVE_ERRNO,
    ),
    Row(
        "ibv_query_pkey",
        "IBVERBS_1.1",
        "int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, uint16_t *pkey)",
        Failure.MINUS_ONE,
    ),
    Row(
        "ibv_get_pkey_index",
        "IBVERBS_1.5",
        "int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, uint16_t pkey)",
        Failure.MINUS_ONE,
    ),
    Row(
        "ibv_get_async_event",
        "IBVERBS_1.1",
        "int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)",
        Failure.MINUS_ONE,
        again=True,
    ),
    Row("ibv_ack_async_event", "IBVERBS_1.1", "void ibv_ack_async_event(struct ibv_async_event *event)"),
    Row("ibv_get_sysfs_path", "IBVERBS_1.0", "const char *ibv_get_sysfs_path(void)"),
    Row(
        "ibv_read_sysfs_file",
        "IBVERBS_1.0",
        "int ibv_read_sysfs_file(const char *directory, const char *file, char *buffer, size_t size)",
        Failure.MINUS_ONE,
    ),
    Row("ibv_fork_init", "IBVERBS_1.1", "int ibv_fork_init(void)"),
    # librdmacm begins this library by it.
    Row("ibv_is_fork_initialized", "IBVERBS_1.13", "int ibv_is_fork_initialized(void)", nested=True),
    Row("ibv_dontfork_range", "IBVERBS_1.1", "int ibv_dontfork_range(void *base, size_t size)"),
    Row("ibv_dofork_range", "IBVERBS_1.1", "int ibv_dofork_range(void *base, size_t size)"),
)

_MEMORY = (
    Row("ibv_alloc_pd", "IBVERBS_1.1", "struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)"),
    Row("ibv_dealloc_pd", "IBVERBS_1.1", "int ibv_dealloc_pd(struct ibv_pd *pd)"),
    Row(
        "ibv_import_pd",
        "IBVERBS_1.10",
        "struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)",
    ),
    Row("ibv_unimport_pd", "IBVERBS_1.10", "void ibv_unimport_pd(struct ibv_pd *pd)"),
    Row(
        "alloc_td", "", "struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)"
    ),
    Row("dealloc_td", "", "int dealloc_td(struct ibv_td *td)"),
    Row(
        "alloc_parent_domain",
        "",
        "struct ibv_pd *alloc_parent_domain(struct ibv_context *context, "
        "struct ibv_parent_domain_init_attr *attr)",
    ),
    Row(
        "ibv_reg_mr",
        "IBVERBS_1.1",
        "struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)",
    ),
    Row(
        "ibv_reg_mr_iova",
        "IBVERBS_1.7",
        "struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, "
        "int access)",
    ),
    Row(
        "ibv_reg_mr_iova2",
        "IBVERBS_1.8",
        "struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, "
        "uint64_t iova, unsigned int access)",
    ),
    Row(
        "ibv_reg_dmabuf_mr",
        "IBVERBS_1.12",
        "struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, "
        "uint64_t iova, int fd, int access)",
    ),
    Row(
        "ibv_rereg_mr",
        "IBVERBS_1.1",
        "int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, "
        "size_t length, int access)",
        Failure.MINUS_ONE,
    ),
    Row("ibv_dereg_mr", "IBVERBS_1.1", "int ibv_dereg_mr(struct ibv_mr *mr)"),
    Row("ibv_import_mr", "IBVERBS_1.10", "struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)"),
    Row("ibv_unimport_mr", "IBVERBS_1.10", "void ibv_unimport_mr(struct ibv_mr *mr)"),
    Row(
        "ibv_import_dm",
        "IBVERBS_1.13",
        "struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle)",
    ),
    Row("ibv_unimport_dm", "IBVERBS_1.13", "void ibv_unimport_dm(struct ibv_dm *dm)"),
    Row(
        "alloc_dm", "", "struct ibv_dm *alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)"
    ),
    Row("free_dm", "", "int free_dm(struct ibv_dm *dm)"),
    Row(
        "reg_dm_mr",
        "",
        "struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, "
        "unsigned int access)",
    ),
    Row(
        "memcpy_to_dm",
        "",
        "int memcpy_to_dm(struct ibv_dm *dm, uint64_t offset, const void *host, size_t length)",
    ),
    Row(
        "memcpy_from_dm",
        "",
        "int memcpy_from_dm(void *host, struct ibv_dm *dm, uint64_t offset, size_t length)",
    ),
    Row("alloc_mw", "", "struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)"),
    Row("bind_mw", "", "int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)"),
    Row("dealloc_mw", "", "int dealloc_mw(struct ibv_mw *mw)"),
    Row(
        "ibv_create_ah",
        "IBVERBS_1.1",
        "struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)",
    ),
    Row(
        "ibv_init_ah_from_wc",
        "IBVERBS_1.1",
        "int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc, "
        "struct ibv_grh *grh, struct ibv_ah_attr *attr)",
    ),
    Row(
        "ibv_create_ah_from_wc",
        "IBVERBS_1.1",
        "struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, "
        "struct ibv_grh *grh, uint8_t port)",
    ),
    Row("ibv_destroy_ah", "IBVERBS_1.1", "int ibv_destroy_ah(struct ibv_ah *ah)"),
    Row(
        "ibv_resolve_eth_l2_from_gid",
        "IBVERBS_1.1",
        "int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr, "
        "uint8_t *mac, uint16_t *vid)",
    ),
)

_COMPLETION = (
    Row(
        "ibv_create_comp_channel",
        "IBVERBS_1.0",
        "struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)",
    ),
    Row(
        "ibv_destroy_comp_channel",
        "IBVERBS_1.0",
        "int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)",
    ),
    Row(
        "ibv_create_cq",
        "IBVERBS_1.1",
        "struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, "
        "struct ibv_comp_channel *channel, int vector)",
    ),
    Row(
        "create_cq_ex",
        "",
        "struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)",
    ),
    Row("ibv_resize_cq", "IBVERBS_1.1", "int ibv_resize_cq(struct ibv_cq *cq, int cqe)"),
    Row("modify_cq", "", "int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)"),
    Row("ibv_destroy_cq", "IBVERBS_1.1", "int ibv_destroy_cq(struct ibv_cq *cq)"),
    Row(
        "ibv_get_cq_event",
        "IBVERBS_1.1",
        "int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)",
        Failure.MINUS_ONE,
        again=True,
    ),
    Row("ibv_ack_cq_events", "IBVERBS_1.1", "void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)"),
    Row(
        "poll_cq",
        "",
        "int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)",
        Failure.MINUS_ONE,
        before="int done;\nif (twisted_ib_poll(cq, count, wc, &done))\nreturn done;",
        after="twisted_ib_poll_again(cq, count, wc)",
        attends=True,
    ),
    Row("req_notify_cq", "", "int req_notify_cq(struct ibv_cq *cq, int solicited)"),
    Row(
        "start_poll",
        "",
        "int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)",
        before="int done;\nif (attr && !attr->comp_mask && twisted_ib_start(cq, &done))\nreturn done;",
        after="twisted_ib_start_again(cq)",
        attends=True,
    ),
    Row(
        "next_poll",
        "",
        "int next_poll(struct ibv_cq_ex *cq)",
        before="int done;\nif (twisted_ib_present(cq) && twisted_ib_next(cq, &done))\nreturn done;",
        after="twisted_ib_next_again(cq)",
        attends=True,
    ),
    Row(
        "end_poll",
        "",
        "void end_poll(struct ibv_cq_ex *cq)",
        before="if (twisted_ib_end(cq))\nreturn;",
    ),
    _reading("opcode", "unsigned int"),
    _reading("vendor_err"),
    _reading("byte_len"),
    _reading("imm_data"),
    _reading("qp_num"),
    _reading("src_qp"),
    _reading("wc_flags", "unsigned int"),
    _reading("slid"),
    _reading("sl", "uint8_t"),
    _reading("dlid_path_bits", "uint8_t"),
)

_QUEUES = (
    Row(
        "ibv_create_qp",
        "IBVERBS_1.1",
        "struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)",
    ),
    Row(
        "create_qp_ex",
        "",
        "struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)",
    ),
    Row(
        "ibv_modify_qp",
        "IBVERBS_1.1",
        "int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)",
    ),
    Row(
        "ibv_query_qp",
        "IBVERBS_1.1",
        "int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, "
        "struct ibv_qp_init_attr *init)",
    ),
    Row(
        "ibv_query_qp_data_in_order",
        "IBVERBS_1.14",
        "int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)",
        Failure.ZERO,
    ),
    Row("ibv_destroy_qp", "IBVERBS_1.1", "int ibv_destroy_qp(struct ibv_qp *qp)"),
    Row(
        "ibv_attach_mcast",
        "IBVERBS_1.1",
        "int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)",
    ),
    Row(
        "ibv_detach_mcast",
        "IBVERBS_1.1",
        "int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)",
    ),
    Row("ibv_set_ece", "IBVERBS_1.10", "int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)"),
    Row("ibv_query_ece", "IBVERBS_1.10", "int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)"),
    Row(
        "ibv_create_srq",
        "IBVERBS_1.1",
        "struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)",
    ),
    Row(
        "create_srq_ex",
        "",
        "struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)",
    ),
    Row(
        "ibv_modify_srq",
        "IBVERBS_1.1",
        "int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)",
    ),
    Row("ibv_query_srq", "IBVERBS_1.1", "int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)"),
    Row("ibv_destroy_srq", "IBVERBS_1.1", "int ibv_destroy_srq(struct ibv_srq *srq)"),
    _posting("post_send", "ibv_qp *qp", "ibv_send_wr", "twisted_ib_post_sends(qp, wr)"),
    _posting("post_recv", "ibv_qp *qp", "ibv_recv_wr", "twisted_ib_post_own(qp, wr)"),
    _posting("post_srq_recv", "ibv_srq *srq", "ibv_recv_wr", "twisted_ib_post_shared(srq, wr)"),
)

_EXTENDED = (
    Row("ibv_qp_to_qp_ex", "IBVERBS_1.6", "struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)"),
    Row("wr_start", "", "void wr_start(struct ibv_qp_ex *qp)"),
    Row("wr_complete", "", "int wr_complete(struct ibv_qp_ex *qp)"),
    Row("wr_abort", "", "void wr_abort(struct ibv_qp_ex *qp)"),
    Row("wr_send", "", "void wr_send(struct ibv_qp_ex *qp)"),
    Row("wr_send_imm", "", "void wr_send_imm(struct ibv_qp_ex *qp, uint32_t data)"),
    Row("wr_send_inv", "", "void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey)"),
    Row("wr_send_tso", "", "void wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t size, uint16_t mss)"),
    Row("wr_rdma_read", "", "void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr)"),
    Row("wr_rdma_write", "", "void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr)"),
    Row(
        "wr_rdma_write_imm",
        "",
        "void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint32_t data)",
    ),
    Row(
        "wr_atomic_cmp_swp",
        "",
        "void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, "
        "uint64_t compare, uint64_t swap)",
    ),
    Row(
        "wr_atomic_fetch_add",
        "",
        "void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t add)",
    ),
    Row(
        "wr_atomic_write",
        "",
        "void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, const void *atomic_wr)",
    ),
    Row("wr_local_inv", "", "void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey)"),
    Row(
        "wr_bind_mw",
        "",
        "void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, "
        "const struct ibv_mw_bind_info *info)",
    ),
    Row(
        "wr_set_sge",
        "",
        "void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)",
    ),
    Row(
        "wr_set_sge_list",
        "",
        "void wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list)",
    ),
    Row("wr_set_inline_data", "", "void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)"),
    Row(
        "wr_set_inline_data_list",
        "",
        "void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *list)",
    ),
    Row(
        "wr_set_ud_addr",
        "",
        "void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)",
    ),
    Row("wr_set_xrc_srqn", "", "void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t srqn)"),
)

_TEXT = (
    Row("ibv_node_type_str", "IBVERBS_1.1", "const char *ibv_node_type_str(int node_type)"),
    Row("ibv_port_state_str", "IBVERBS_1.1", "const char *ibv_port_state_str(int port_state)"),
    Row("ibv_event_type_str", "IBVERBS_1.1", "const char *ibv_event_type_str(int event)"),
    Row("ibv_wc_status_str", "IBVERBS_1.1", "const char *ibv_wc_status_str(int status)"),
    Row("ibv_rate_to_mult", "IBVERBS_1.0", "int ibv_rate_to_mult(int rate)", Failure.MINUS_ONE),
    Row("mult_to_ibv_rate", "IBVERBS_1.0", "int mult_to_ibv_rate(int mult)", Failure.ZERO),
    Row("ibv_rate_to_mbps", "IBVERBS_1.1", "int ibv_rate_to_mbps(int rate)", Failure.MINUS_ONE),
    Row("mbps_to_ibv_rate", "IBVERBS_1.1", "int mbps_to_ibv_rate(int mbps)", Failure.ZERO),
)

#: All functions.
TABLE = (*_DEVICE, *_MEMORY, *_COMPLETION, *_QUEUES, *_EXTENDED, *_TEXT)

__all__ = ["TABLE"]
