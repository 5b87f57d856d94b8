"""
The functions of libibverbs.  Source: rdma-core 44, C{libibverbs/libibverbs.map.in} and C{verbs.h}.

Those without a version are called through the pointers of C{struct ibv_context_ops}, C{struct verbs_context},
C{struct ibv_cq_ex} and C{struct ibv_qp_ex}, by the fields' names.
"""

from __future__ import annotations

import attrs

from twisted_ib.verbs.c.functions import Failure, Row, noEvent, rows


def _reading(field: str, kind: str = "uint32_t") -> Row:
    # A field of C{struct ibv_wc}: without Python, if there is a present completion.
    before = f"struct ibv_wc *present = twisted_ib_present(cq);\nif (present)\nreturn present->{field};"
    prototype = f"{kind} read_{field}(struct ibv_cq_ex *cq)"
    return Row(f"read_{field}", "", prototype, Failure.ZERO, before=before)


def _posting(name: str, queue: str, request: str, record: str, left: str) -> Row:
    # What is left of the list goes to the handler: nothing, if C has recorded all of it, and nobody takes it.
    before = f"""\
if (!wr || !bad) {{
errno = EINVAL;
return EINVAL;
}}
sigset_t program;
twisted_ib_mask(&program);
wr = {record};
if (!wr && {left}()) {{
twisted_ib_unmask(&program);
return 0;
}}"""
    prototype = f"int {name}(struct {queue}, struct {request} *wr, struct {request} **bad)"
    return Row(name, "", prototype, before=before, attends=True, masked=True, over="0")


# C{ibv_is_fork_initialized} is nested: librdmacm begins this library by it.
_FUNCTIONS = """
-:
int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input, struct
    ibv_device_attr_ex *attr, size_t size);
int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size);
struct ibv_td *alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int dealloc_td(struct ibv_td *td);
struct ibv_pd *alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);
struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
struct ibv_dm *alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr);
int free_dm(struct ibv_dm *dm);
struct ibv_mr *reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int
    access);
int memcpy_to_dm(struct ibv_dm *dm, uint64_t offset, const void *host, size_t length);
int memcpy_from_dm(void *host, struct ibv_dm *dm, uint64_t offset, size_t length);
int dealloc_mw(struct ibv_mw *mw);
struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
int req_notify_cq(struct ibv_cq *cq, int solicited);
struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
void wr_start(struct ibv_qp_ex *qp);
int wr_complete(struct ibv_qp_ex *qp);
void wr_abort(struct ibv_qp_ex *qp);
void wr_send(struct ibv_qp_ex *qp);
void wr_send_imm(struct ibv_qp_ex *qp, uint32_t data);
void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey);
void wr_send_tso(struct ibv_qp_ex *qp, void *hdr, uint16_t size, uint16_t mss);
void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr);
void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr);
void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint32_t data);
void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap);
void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t add);
void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, const void *atomic_wr);
void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey);
void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info
    *info);
void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length);
void wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list);
void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length);
void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *list);
void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey);
void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t srqn);
IBVERBS_1.0:
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *directory, const char *file, char *buffer, size_t size) -1;
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context);
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel);
int ibv_rate_to_mult(int rate) -1;
int mult_to_ibv_rate(int mult) 0;
IBVERBS_1.1:
struct ibv_device **ibv_get_device_list(int *num);
void ibv_free_device_list(struct ibv_device **list);
const char *ibv_get_device_name(struct ibv_device *device);
unsigned long long ibv_get_device_guid(struct ibv_device *device) 0;
struct ibv_context *ibv_open_device(struct ibv_device *device);
int ibv_close_device(struct ibv_context *context);
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr);
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr);
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) -1;
int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, uint16_t *pkey) -1;
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) -1 again;
void ibv_ack_async_event(struct ibv_async_event *event);
int ibv_fork_init(void);
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
int ibv_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access) -1;
int ibv_dereg_mr(struct ibv_mr *mr);
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh,
    struct ibv_ah_attr *attr);
struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t
    port);
int ibv_destroy_ah(struct ibv_ah *ah);
int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr, uint8_t *mac,
    uint16_t *vid);
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel
    *channel, int vector);
int ibv_resize_cq(struct ibv_cq *cq, int cqe);
int ibv_destroy_cq(struct ibv_cq *cq) again destroys;
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) -1 again;
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count);
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init);
int ibv_destroy_qp(struct ibv_qp *qp) again destroys;
int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int ibv_destroy_srq(struct ibv_srq *srq) again destroys;
const char *ibv_node_type_str(int node_type);
const char *ibv_port_state_str(int port_state);
const char *ibv_event_type_str(int event);
const char *ibv_wc_status_str(int status);
int ibv_rate_to_mbps(int rate) -1;
int mbps_to_ibv_rate(int mbps) 0;
IBVERBS_1.5:
int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, uint16_t pkey) -1;
IBVERBS_1.6:
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp);
IBVERBS_1.7:
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);
IBVERBS_1.8:
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int
    access);
IBVERBS_1.9:
int ibv_get_device_index(struct ibv_device *device) -1;
IBVERBS_1.10:
struct ibv_context *ibv_import_device(int cmd_fd);
struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle);
void ibv_unimport_pd(struct ibv_pd *pd);
struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle);
void ibv_unimport_mr(struct ibv_mr *mr);
int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece);
int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece);
IBVERBS_1.11:
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry
    *entry, uint32_t flags, size_t size);
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t most,
    uint32_t flags, size_t size) -errno;
IBVERBS_1.12:
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
    int access);
IBVERBS_1.13:
int ibv_is_fork_initialized(void) nested;
struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle);
void ibv_unimport_dm(struct ibv_dm *dm);
IBVERBS_1.14:
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) 0;
IBVERBS_PRIVATE_34:
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, int *type) -1;
"""

#: A thread that goes on while Python ends arms, and nothing comes: UCX ends the process if that fails.
_OVER = {
    "req_notify_cq": "0",
    "ibv_get_cq_event": noEvent("channel", "fd"),
    "ibv_get_async_event": noEvent("context", "async_fd"),
}

#: All functions.
TABLE = (
    *(attrs.evolve(row, over=_OVER.get(row.name)) for row in rows(_FUNCTIONS)),
    Row(
        "poll_cq",
        "",
        "int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)",
        Failure.MINUS_ONE,
        before="int done;\nif (twisted_ib_poll(cq, count, wc, &done))\nreturn done;",
        after="twisted_ib_poll_again(cq, count, wc)",
        attends=True,
        over="0",
    ),
    Row(
        "start_poll",
        "",
        "int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)",
        before="int done;\nif (attr && !attr->comp_mask && twisted_ib_start(cq, &done))\nreturn done;",
        after="twisted_ib_start_again(cq)",
        attends=True,
        over="ENOENT",
    ),
    Row(
        "next_poll",
        "",
        "int next_poll(struct ibv_cq_ex *cq)",
        before="int done;\nif (twisted_ib_present(cq) && twisted_ib_next(cq, &done))\nreturn done;",
        after="twisted_ib_next_again(cq)",
        attends=True,
        over="ENOENT",
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
    _posting("post_send", "ibv_qp *qp", "ibv_send_wr", "twisted_ib_post_sends(qp, wr)", "twisted_ib_bursts"),
    _posting("post_recv", "ibv_qp *qp", "ibv_recv_wr", "twisted_ib_post_own(qp, wr)", "twisted_ib_polls"),
    _posting(
        "post_srq_recv", "ibv_srq *srq", "ibv_recv_wr", "twisted_ib_post_shared(srq, wr)", "twisted_ib_polls"
    ),
)
