"""
The functions of librdmacm.  Source: rdma-core 44, C{librdmacm/librdmacm.map}, C{rdma_cma.h} and C{rsocket.h}.
"""

from __future__ import annotations

from twisted_ib.verbs.c.functions import Failure, rows

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
int rpoll(struct pollfd *fds, unsigned long count, int timeout);
int rselect(int count, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout);
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
int repoll_create(int size);
int repoll_ctl(int set, int operation, int socket, struct epoll_event *event);
int repoll_wait(int set, struct epoll_event *events, int most, int timeout);
"""

#: All functions.
TABLE = tuple(rows(_FUNCTIONS, Failure.MINUS_ONE))
