"""
The structures of C{rdma/rdma_cma.h} for cffi: the fields that handlers use; the header gives the offsets.
The functions of librdmacm: rdma-core 44, C{librdmacm/librdmacm.map}, C{rdma_cma.h} and C{rsocket.h}.
"""

from __future__ import annotations

import attrs

from twisted_ib.verbs.c.functions import Failure, noEvent, rows

# rdma_cm(7) and rsocket(7): a function returns 0, or -1 with errno.  C{rfcntl} has an ellipsis in the header,
# not a third parameter; it is passed alike.  C{RDMACM_1.5}, as epoll(7), is of librdmacm's next version.
_FUNCTIONS = """
RDMACM_1.0:
struct rdma_event_channel *rdma_create_event_channel(void);
void rdma_destroy_event_channel(struct rdma_event_channel *channel);
int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event) again;
int rdma_ack_cm_event(struct rdma_cm_event *event);
const char *rdma_event_str(enum rdma_cm_event_type event);
int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum
    rdma_port_space ps);
int rdma_destroy_id(struct rdma_cm_id *id) again destroys;
int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd, struct
    ibv_qp_init_attr *attr);
void rdma_destroy_ep(struct rdma_cm_id *id) again destroys;
int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel);
int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen);
struct ibv_context **rdma_get_devices(int *num_devices);
void rdma_free_devices(struct ibv_context **list);
int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr);
int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms);
int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms);
uint16_t rdma_get_src_port(struct rdma_cm_id *id) 0;
uint16_t rdma_get_dst_port(struct rdma_cm_id *id) 0;
int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints, struct
    rdma_addrinfo **res);
void rdma_freeaddrinfo(struct rdma_addrinfo *res);
int rdma_listen(struct rdma_cm_id *id, int backlog);
int rdma_get_request(struct rdma_cm_id *listener, struct rdma_cm_id **id) again;
int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param);
int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param);
int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length);
int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event);
int rdma_disconnect(struct rdma_cm_id *id);
int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr);
void rdma_destroy_qp(struct rdma_cm_id *id) again destroys;
int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr);
void rdma_destroy_srq(struct rdma_cm_id *id) again destroys;
int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context);
int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr);
int rsocket(int domain, int type, int protocol);
int rbind(int socket, const struct sockaddr *addr, socklen_t length);
int rlisten(int socket, int backlog);
int raccept(int socket, struct sockaddr *addr, socklen_t *length);
int rconnect(int socket, const struct sockaddr *addr, socklen_t length);
int rshutdown(int socket, int how);
int rclose(int socket);
ssize_t rrecv(int socket, void *buffer, size_t length, int flags);
ssize_t rrecvfrom(int socket, void *buffer, size_t length, int flags, struct sockaddr *addr, socklen_t
    *size);
ssize_t rrecvmsg(int socket, struct msghdr *message, int flags);
ssize_t rsend(int socket, const void *buffer, size_t length, int flags);
ssize_t rsendto(int socket, const void *buffer, size_t length, int flags, const struct sockaddr *addr,
    socklen_t size);
ssize_t rsendmsg(int socket, const struct msghdr *message, int flags);
ssize_t rread(int socket, void *buffer, size_t length);
ssize_t rreadv(int socket, const struct iovec *vector, int count);
ssize_t rwrite(int socket, const void *buffer, size_t length);
ssize_t rwritev(int socket, const struct iovec *vector, int count);
int rpoll(struct pollfd *fds, unsigned long count, int timeout) again;
int rselect(int count, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout)
    again;
int rgetpeername(int socket, struct sockaddr *addr, socklen_t *length);
int rgetsockname(int socket, struct sockaddr *addr, socklen_t *length);
int rsetsockopt(int socket, int level, int name, const void *value, socklen_t length);
int rgetsockopt(int socket, int level, int name, void *value, socklen_t *length);
int rfcntl(int socket, int command, long argument);
long riomap(int socket, void *buffer, size_t length, int protection, int flags, long offset);
int riounmap(int socket, void *buffer, size_t length);
ssize_t riowrite(int socket, const void *buffer, size_t length, long offset, int flags);
RDMACM_1.1:
int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context);
RDMACM_1.2:
int rdma_establish(struct rdma_cm_id *id);
int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask);
RDMACM_1.3:
int rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t length);
int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece);
int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece);
RDMACM_1.5:
int repoll_create(int flags);
int repoll_ctl(int set, int operation, int socket, struct epoll_event *event);
int repoll_wait(int set, struct epoll_event *events, int most, int timeout) again;
"""
#: librspreload's answer to C{sockets.c}, and a call in vain.
_TOLD = (
    "if (twisted_ib_tells(fds, count, timeout) || twisted_ib_polls_in_vain(fds, count, timeout))\nreturn 0;"
)
#: The arguments by which C{vain.c} knows a call.
_VAIN = {
    "rpoll": "fds, count, timeout",
    "rrecv": "ASKS_OCTETS, socket, flags, buffer, length",
    "rread": "ASKS_OCTETS, socket, 0, buffer, length",
    "rsend": "ASKS_ROOM, socket, flags, buffer, length",
    "rwrite": "ASKS_ROOM, socket, 0, buffer, length",
}

#: As in libibverbs, a thread that goes on while Python ends.
_OVER = {"rdma_get_cm_event": noEvent("channel", "fd")}

#: All functions.
TABLE = tuple(
    attrs.evolve(row, vain=_VAIN.get(row.name), over=_OVER.get(row.name))
    for row in rows(_FUNCTIONS, Failure.MINUS_ONE, rpoll=_TOLD)
)

#: The headers of the source, and Debian's package with them.
HEADERS = ("rdma/rdma_cma.h",)
PACKAGE = "librdmacm-dev"

SOURCE = """
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

#include "sockets.c"
#include "looks.c"
#include "vain.c"
"""

DECLARATIONS = """
typedef uint32_t socklen_t;
union ibv_gid { uint8_t raw[16]; ...; };
struct ibv_context; struct ibv_pd; struct ibv_qp; struct ibv_cq; struct ibv_comp_channel; struct ibv_ece;
struct ibv_srq; struct ibv_qp_attr; struct ibv_qp_init_attr_ex; struct ibv_srq_init_attr_ex;
struct ibv_srq_init_attr;
enum ibv_event_type { IBV_EVENT_COMM_EST, ... };
enum rdma_port_space { RDMA_PS_TCP, ... };
enum rdma_cm_event_type { RDMA_CM_EVENT_ADDR_RESOLVED, ... };
struct ibv_qp_cap {
    uint32_t max_send_wr; uint32_t max_recv_wr; uint32_t max_send_sge; uint32_t max_recv_sge; uint32_t
    max_inline_data;
};
struct ibv_qp_init_attr {
    void *qp_context; struct ibv_cq *send_cq; struct ibv_cq *recv_cq; struct ibv_srq *srq; struct
    ibv_qp_cap cap;
    int qp_type; int sq_sig_all;
};
struct ibv_global_route {
    union ibv_gid dgid; uint32_t flow_label; uint8_t sgid_index; uint8_t hop_limit; uint8_t traffic_class;
};
struct ibv_ah_attr {
    struct ibv_global_route grh; uint16_t dlid; uint8_t sl; uint8_t src_path_bits; uint8_t static_rate;
    uint8_t is_global; uint8_t port_num;
};
struct ibv_sa_path_rec {
    union ibv_gid dgid; union ibv_gid sgid; uint16_t dlid; uint16_t slid; int raw_traffic; uint32_t
    flow_label;
    uint8_t hop_limit; uint8_t traffic_class; int reversible; uint8_t numb_path; uint16_t pkey; uint8_t sl;
    uint8_t mtu_selector; uint8_t mtu; uint8_t rate_selector; uint8_t rate; uint8_t packet_life_time_selector;
    uint8_t packet_life_time; uint8_t preference;
};
struct sockaddr { uint16_t sa_family; ...; };
struct sockaddr_storage { ...; };
struct rdma_ib_addr { union ibv_gid sgid; union ibv_gid dgid; uint16_t pkey; };
struct rdma_addr {
    struct sockaddr_storage src_storage; struct sockaddr_storage dst_storage;
    union { struct rdma_ib_addr ibaddr; } addr; ...;
};
struct rdma_route { struct rdma_addr addr; struct ibv_sa_path_rec *path_rec; int num_paths; };
struct rdma_event_channel { int fd; };
struct rdma_conn_param {
    const void *private_data; uint8_t private_data_len; uint8_t responder_resources; uint8_t initiator_depth;
    uint8_t flow_control; uint8_t retry_count; uint8_t rnr_retry_count; uint8_t srq; uint32_t qp_num;
};
struct rdma_ud_param {
    const void *private_data; uint8_t private_data_len; struct ibv_ah_attr ah_attr; uint32_t qp_num;
    uint32_t qkey;
};
struct rdma_cm_id;
struct rdma_cm_event {
    struct rdma_cm_id *id; struct rdma_cm_id *listen_id; enum rdma_cm_event_type event; int status;
    union { struct rdma_conn_param conn; struct rdma_ud_param ud; } param;
};
struct rdma_cm_id {
    struct ibv_context *verbs; struct rdma_event_channel *channel; void *context; struct ibv_qp *qp;
    struct rdma_route route; enum rdma_port_space ps; uint8_t port_num; struct rdma_cm_event *event;
    struct ibv_comp_channel *send_cq_channel; struct ibv_cq *send_cq; struct ibv_comp_channel
    *recv_cq_channel;
    struct ibv_cq *recv_cq; struct ibv_srq *srq; struct ibv_pd *pd; int qp_type;
};
struct rdma_addrinfo {
    int ai_flags; int ai_family; int ai_qp_type; int ai_port_space; socklen_t ai_src_len; socklen_t
    ai_dst_len;
    struct sockaddr *ai_src_addr; struct sockaddr *ai_dst_addr; char *ai_src_canonname; char
    *ai_dst_canonname;
    size_t ai_route_len; void *ai_route; size_t ai_connect_len; void *ai_connect; struct rdma_addrinfo
    *ai_next;
};
struct pollfd { int fd; short events; short revents; };
struct iovec { void *iov_base; size_t iov_len; };
struct msghdr { void *msg_name; socklen_t msg_namelen; struct iovec *msg_iov; size_t msg_iovlen; ...; };
typedef struct { ...; } fd_set;
typedef union epoll_data { uint64_t u64; ...; } epoll_data_t;
struct epoll_event { uint32_t events; epoll_data_t data; ...; };
int twisted_ib_epoll_create(int flags);
int twisted_ib_epoll_ctl(int set, int operation, int fd, struct epoll_event *event);
int twisted_ib_epoll_wait(int set, struct epoll_event *events, int most, int timeout);
void twisted_ib_own_calls(void);
void twisted_ib_polls_others(unsigned bits);
struct timeval { long tv_sec; long tv_usec; };
struct rdma_cm_join_mc_attr_ex { uint32_t comp_mask; uint32_t join_flags; struct sockaddr *addr; };
"""
