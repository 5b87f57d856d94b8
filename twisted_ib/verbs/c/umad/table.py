"""
The functions of libibumad.  Source: rdma-core 44 and 56, C{libibumad/libibumad.map}, C{umad.h} and
C{umad_str.h}.
"""

from __future__ import annotations

from twisted_ib.verbs.c.functions import Failure, Row

_WAIT = "int waited = twisted_ib_umad_wait(portid, timeout_ms); if (waited < 0) return waited;"
_WAIT_OR_LOOK = f"""if (!umad || !length) {{ errno = EINVAL; return -EINVAL; }}
    if (timeout_ms) {{ {_WAIT} }}"""


def _row(
    prototype: str,
    failure: Failure = Failure.NEGATIVE_ERRNO,
    before: str = "",
    version: str = "IBUMAD_1.0",
) -> Row:
    name = prototype.split("(")[0].split()[-1].strip("*")
    return Row(name, version, prototype, failure, before)


_DEVICES = (
    _row("int umad_init(void)"),
    _row("int umad_done(void)"),
    _row("int umad_get_cas_names(void *cas, int max)"),
    _row("int umad_get_ca_portguids(const char *ca_name, uint64_t *portguids, int max)"),
    _row("int umad_get_ca(const char *ca_name, struct umad_ca *ca)"),
    _row("int umad_release_ca(struct umad_ca *ca)"),
    _row("int umad_get_port(const char *ca_name, int portnum, struct umad_port *port)"),
    _row("int umad_release_port(struct umad_port *port)"),
    _row("int umad_get_issm_path(const char *ca_name, int portnum, char *path, int max)"),
    Row(
        "umad_get_ca_device_list",
        "IBUMAD_1.1",
        "struct umad_device_node *umad_get_ca_device_list(void)",
        Failure.NULL,
    ),
    Row(
        "umad_free_ca_device_list",
        "IBUMAD_1.1",
        "void umad_free_ca_device_list(struct umad_device_node *head)",
        Failure.NOTHING,
    ),
    Row(
        "umad_sort_ca_device_list",
        "IBUMAD_1.2",
        "int umad_sort_ca_device_list(struct umad_device_node **head, size_t size)",
        Failure.ERRNO,
    ),
    # Of umad.h of rdma-core 56, which has struct umad_ca_pair.
    _row("int umad_get_smi_gsi_pairs(void *cas, size_t max)", Failure.ZERO, version="IBUMAD_1.4"),
    _row(
        "int umad_get_smi_gsi_pair_by_ca_name(const char *devname, uint8_t portnum, void *ca_pair, "
        "unsigned enforce_smi)",
        version="IBUMAD_1.4",
    ),
)

_PORTS = (
    _row("int umad_open_port(const char *ca_name, int portnum)"),
    _row("int umad_open_smi_port(const char *ca_name, int portnum)", version="IBUMAD_1.3"),
    _row("int umad_close_port(int portid)"),
    _row("int umad_get_fd(int portid)"),
    _row(
        "int umad_register(int portid, int mgmt_class, int mgmt_version, uint8_t rmpp_version, "
        "void *method_mask)"
    ),
    _row(
        "int umad_register_oui(int portid, int mgmt_class, uint8_t rmpp_version, void *oui, "
        "void *method_mask)"
    ),
    _row("int umad_register2(int portid, struct umad_reg_attr *attr, uint32_t *agent_id)", Failure.ERRNO),
    _row("int umad_unregister(int portid, int agentid)"),
    _row("int umad_send(int portid, int agentid, void *umad, int length, int timeout_ms, int retries)"),
    _row("int umad_recv(int portid, void *umad, int *length, int timeout_ms)", before=_WAIT_OR_LOOK),
    _row("int umad_poll(int portid, int timeout_ms)", before=_WAIT),
)

_BUFFERS = (
    _row("void *umad_get_mad(void *umad)", Failure.NULL),
    _row("size_t umad_size(void)", Failure.ZERO),
    _row("int umad_status(void *umad)"),
    _row("struct ib_mad_addr *umad_get_mad_addr(void *umad)", Failure.NULL),
    _row("int umad_set_grh(void *umad, void *mad_addr)"),
    _row("int umad_set_addr(void *umad, int dlid, int dqp, int sl, int qkey)"),
    _row("int umad_set_addr_net(void *umad, uint16_t dlid, uint32_t dqp, int sl, uint32_t qkey)"),
    _row("int umad_set_pkey(void *umad, int pkey_index)"),
    _row("int umad_get_pkey(void *umad)"),
    _row("int umad_debug(int level)"),
    _row("void umad_addr_dump(struct ib_mad_addr *addr)", Failure.NOTHING),
    _row("void umad_dump(void *umad)", Failure.NOTHING),
)

_NAMES = (
    _row("const char *umad_class_str(uint8_t mgmt_class)", Failure.NULL),
    _row("const char *umad_method_str(uint8_t mgmt_class, uint8_t method)", Failure.NULL),
    _row("const char *umad_attribute_str(uint8_t mgmt_class, uint16_t attr_id)", Failure.NULL),
    _row("const char *umad_common_mad_status_str(uint16_t status)", Failure.NULL),
    _row("const char *umad_sa_mad_status_str(uint16_t status)", Failure.NULL),
)

#: All functions.
TABLE = (*_DEVICES, *_PORTS, *_BUFFERS, *_NAMES)

__all__ = ["TABLE"]
