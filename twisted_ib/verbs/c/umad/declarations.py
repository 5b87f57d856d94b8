"""
The structures of C{infiniband/umad.h} for cffi: the fields that handlers use; the header gives the offsets.
"""

from __future__ import annotations

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
