"""
The functions of libibverbs.  Source: rdma-core 44, C{libibverbs/libibverbs.map.in} and C{verbs.h}.
"""

from __future__ import annotations

from twisted_ib.cabi.functions import Failure, Row

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
    Row("ibv_close_device", "IBVERBS_1.1", "int ibv_close_device(struct ibv_context *context)"),
    Row(
        "ibv_query_device",
        "IBVERBS_1.1",
        "int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)",
    ),
    Row(
        "ibv_query_port",
        "IBVERBS_1.1",
        "int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)",
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
    Row("ibv_get_sysfs_path", "IBVERBS_1.0", "const char *ibv_get_sysfs_path(void)"),
    Row(
        "ibv_read_sysfs_file",
        "IBVERBS_1.0",
        "int ibv_read_sysfs_file(const char *directory, const char *file, char *buffer, size_t size)",
        Failure.MINUS_ONE,
    ),
    Row("ibv_fork_init", "IBVERBS_1.1", "int ibv_fork_init(void)"),
    Row("ibv_is_fork_initialized", "IBVERBS_1.13", "int ibv_is_fork_initialized(void)"),
)

#: All functions.
TABLE = (*_DEVICE,)

__all__ = ["TABLE"]
