"""
The structures of C{infiniband/umad.h} for cffi: the fields that handlers use; the header gives the offsets.
The functions of libibumad: rdma-core 44 and 56, C{libibumad/libibumad.map}, C{umad.h} and C{umad_str.h}.
"""

from __future__ import annotations

from twisted_ib.verbs.c.functions import Failure, rows

_WAIT = "int waited = twisted_ib_umad_wait(portid, timeout_ms); if (waited < 0) return waited;"
_WAIT_OR_LOOK = f"""if (!umad || !length) {{ errno = EINVAL; return -EINVAL; }}
    if (timeout_ms) {{ {_WAIT} }}"""

# IBUMAD_1.4: of umad.h of rdma-core 56, which has struct umad_ca_pair.
_FUNCTIONS = """
IBUMAD_1.0:
int umad_init(void);
int umad_done(void);
int umad_get_cas_names(void *cas, int max);
int umad_get_ca_portguids(const char *ca_name, uint64_t *portguids, int max);
int umad_get_ca(const char *ca_name, struct umad_ca *ca);
int umad_release_ca(struct umad_ca *ca);
int umad_get_port(const char *ca_name, int portnum, struct umad_port *port);
int umad_release_port(struct umad_port *port);
int umad_get_issm_path(const char *ca_name, int portnum, char *path, int max);
int umad_open_port(const char *ca_name, int portnum);
int umad_close_port(int portid);
int umad_get_fd(int portid);
int umad_register(int portid, int mgmt_class, int mgmt_version, uint8_t rmpp_version, void *method_mask);
int umad_register_oui(int portid, int mgmt_class, uint8_t rmpp_version, void *oui, void *method_mask);
int umad_register2(int portid, struct umad_reg_attr *attr, uint32_t *agent_id) errno;
int umad_unregister(int portid, int agentid);
int umad_send(int portid, int agentid, void *umad, int length, int timeout_ms, int retries);
int umad_recv(int portid, void *umad, int *length, int timeout_ms);
int umad_poll(int portid, int timeout_ms);
void *umad_get_mad(void *umad);
size_t umad_size(void) 0;
int umad_status(void *umad);
struct ib_mad_addr *umad_get_mad_addr(void *umad);
int umad_set_grh(void *umad, void *mad_addr);
int umad_set_addr(void *umad, int dlid, int dqp, int sl, int qkey);
int umad_set_addr_net(void *umad, uint16_t dlid, uint32_t dqp, int sl, uint32_t qkey);
int umad_set_pkey(void *umad, int pkey_index);
int umad_get_pkey(void *umad);
int umad_debug(int level);
void umad_addr_dump(struct ib_mad_addr *addr);
void umad_dump(void *umad);
const char *umad_class_str(uint8_t mgmt_class);
const char *umad_method_str(uint8_t mgmt_class, uint8_t method);
const char *umad_attribute_str(uint8_t mgmt_class, uint16_t attr_id);
const char *umad_common_mad_status_str(uint16_t status);
const char *umad_sa_mad_status_str(uint16_t status);
IBUMAD_1.1:
struct umad_device_node *umad_get_ca_device_list(void);
void umad_free_ca_device_list(struct umad_device_node *head);
IBUMAD_1.2:
int umad_sort_ca_device_list(struct umad_device_node **head, size_t size) errno;
IBUMAD_1.3:
int umad_open_smi_port(const char *ca_name, int portnum);
IBUMAD_1.4:
int umad_get_smi_gsi_pairs(void *cas, size_t max) 0;
int umad_get_smi_gsi_pair_by_ca_name(const char *devname, uint8_t portnum, void *ca_pair, unsigned
    enforce_smi);
"""

#: All functions.
TABLE = tuple(rows(_FUNCTIONS, Failure.NEGATIVE_ERRNO, umad_recv=_WAIT_OR_LOOK, umad_poll=_WAIT))

#: The headers of the source, and Debian's package with them.
HEADERS = ("infiniband/umad.h",)
PACKAGE = "libibumad-dev"

# The wait for a MAD needs no Python: it ends as poll(2) does, by a signal too.
SOURCE = """
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/inotify.h>
#include <infiniband/umad.h>

/* struct umad_ca_pair of rdma-core 56. */
struct twisted_ib_ca_pair {
    char smi_name[20];
    uint32_t smi_preferred_port;
    char gsi_name[20];
    uint32_t gsi_preferred_port;
};

static int twisted_ib_umad_wait(int fd, int timeout_ms)
{
    struct pollfd readable = { fd, POLLIN, 0 };
    int n = poll(&readable, 1, timeout_ms);

    if (n == 1 && !(readable.revents & POLLNVAL))
        return 0;
    /* umad_poll(3); errno is poll(2)'s. */
    if (n < 0)
        return -EIO;
    errno = n ? EINVAL : ETIMEDOUT;
    return -errno;
}
"""

DECLARATIONS = """
typedef struct ib_mad_addr {
    uint32_t qpn; uint32_t qkey; uint16_t lid; uint8_t sl; uint8_t path_bits; uint8_t grh_present; uint8_t
    gid_index; uint8_t hop_limit; uint8_t traffic_class; uint8_t gid[16]; uint32_t flow_label; uint16_t
    pkey_index; ...;
} ib_mad_addr_t;
struct ib_user_mad {
    uint32_t agent_id; uint32_t status; uint32_t timeout_ms; uint32_t retries; uint32_t length;
    struct ib_mad_addr addr; ...;
};
typedef struct umad_port {
    char ca_name[20]; int portnum; unsigned base_lid; unsigned lmc; unsigned sm_lid; unsigned sm_sl; unsigned
    state; unsigned phys_state; unsigned rate; uint32_t capmask; uint64_t gid_prefix; uint64_t port_guid;
    unsigned pkeys_size; uint16_t *pkeys; char link_layer[20]; ...;
} umad_port_t;
typedef struct umad_ca {
    char ca_name[20]; unsigned node_type; int numports; char fw_ver[20]; char ca_type[40]; char hw_ver[20];
    uint64_t node_guid; uint64_t system_guid; struct umad_port *ports[10]; ...;
} umad_ca_t;
struct umad_device_node { struct umad_device_node *next; const char *ca_name; };
struct twisted_ib_ca_pair {
    char smi_name[20]; uint32_t smi_preferred_port; char gsi_name[20]; uint32_t gsi_preferred_port;
};
struct umad_reg_attr {
    uint8_t mgmt_class; uint8_t mgmt_class_version; uint32_t flags; uint64_t method_mask[2]; uint32_t oui;
    uint8_t rmpp_version; ...;
};
int inotify_init1(int flags);
int inotify_add_watch(int fd, const char *path, uint32_t mask);
#define IN_OPEN ...
#define IN_CLOSE_WRITE ...
#define IN_CLOSE_NOWRITE ...
#define IN_CLOEXEC ...
"""
