"""
The functions of libibumad.  Source: rdma-core 44 and 56, C{libibumad/libibumad.map}, C{umad.h} and
C{umad_str.h}.
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
