"""
The attributes of an HCA and its port: limits, addresses, capabilities.

The names are those of C{libibverbs/verbs.h} (C{struct ibv_device_attr}, C{ibv_device_attr_ex},
C{ibv_port_attr}), the values plain integers, for verbs (C{query_device}, C{query_port}) and C{ib-devinfo}.
Sizes are bytes, the rest are counts unless another unit is named.

Attributes without a meaning here have the value that Linux rxe gives them: the device is addressed as RoCE
is, by GIDs and never by LIDs (IBTA vol. 1 annex A17).

Source: rdma-core 65 C{libibverbs/verbs.h}; Linux 6.12 C{drivers/infiniband/sw/rxe/rxe_param.h}.
"""

from __future__ import annotations

from twisted_ib import limits
from twisted_ib.hca.base.port import Port
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.base.traits import LOCAL, LinkLayer, Traits, TransportType
from twisted_ib.hca.wire.opcodes import MTU_BYTES

#: The vendor id of devices without a vendor, as rxe's (C{rxe_param.h}).
VENDOR_ID = 0xFFFFFF
#: The version of this package, in place of a firmware's.
FIRMWARE_VERSION = "0.1.0"
#: The number of the only port; ports count from 1 (IBTA vol. 1 14.2.5.6).
PORT = 1
#: Entries of the GID table: those that an HCA fills itself, and the host's addresses; some are empty.
GIDS = LOCAL.gidSlots + limits.LOCAL_ADDRESSES
#: Completion vectors; one, as all events are delivered in one thread.
COMPLETION_VECTORS = 1

#: C{enum ibv_device_cap_flags}: bad P_Key and Q_Key counters, UD address vector port enforcement, current
#: state in modify, port events, system image GUID, RNR NAK generation, SRQ resize, memory windows of type 1
#: and 2B, memory management extensions.
CAPABILITIES = 0x2 | 0x4 | 0x40 | 0x80 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x20000 | 0x200000 | 0x1000000
#: Those of them that iWARP does not have, as it has no P_Keys, datagrams and RNR NAKs (RFC 5040).
_OF_INFINIBAND = 0x2 | 0x4 | 0x40 | 0x1000
#: Those of what has no memory windows, and cannot invalidate keys.
_OF_WINDOWS = 0x20000 | 0x200000 | 0x1000000
#: Of C{enum ibv_wr_opcode}.
_BIND_MW = 8
#: C{enum ibv_atomic_cap}: atomic among the operations of one HCA only, not with the CPU (IBTA vol. 1 9.4.5).
ATOMIC_HCA = 1
#: All page sizes from 4096 on, as rxe's (C{rxe_param.h}).
PAGE_SIZES = 0xFFFFF000
#: The local CA ACK delay: 4.096 us x 2^15, as rxe's (C{rxe_param.h}; IBTA vol. 1 9.7.6.1.3).
ACK_DELAY_CODE = 15
#: Limits of completion moderation, the 16 bits of C{struct ibv_moderate_cq}; the period is microseconds.
MODERATED_COMPLETIONS = MODERATION_PERIOD = 0xFFFF

#: Bytes -> code of C{enum ibv_mtu}.
MTU_CODES = {size: code for code, size in MTU_BYTES.items()}
#: C{enum ibv_port_cap_flags}: communication management, IP-based GIDs.
CM_SUPPORTED, IP_BASED_GIDS = 0x10000, 0x4000000
#: C{IBV_QPF_GRH_REQUIRED} (C{libibverbs/verbs.h}).
GRH_REQUIRED = 1


def _features(traits: Traits) -> tuple[bool, bool]:
    # Whether it is InfiniBand's transport, and whether it has memory windows.
    transport, operations = traits.transport, traits.operations
    return transport is TransportType.IB, operations is None or _BIND_MW in operations


def _capabilities(traits: Traits) -> int:
    isIB, hasWindows = _features(traits)
    return CAPABILITIES & ~((0 if isIB else _OF_INFINIBAND) | (0 if hasWindows else _OF_WINDOWS))


def deviceAttributes(guid: int, partitions: int = 1, traits: Traits = LOCAL) -> dict[str, int | str]:
    """
    The fields of C{struct ibv_device_attr}, in its order (IBTA vol. 1 11.2.1.2, Query HCA).

    @param partitions: slots of the P_Key table.
    @param traits: of the fabric.
    @return: integers by name, and C{fw_ver}; C{page_size_cap} and C{device_cap_flags} are bits,
        C{local_ca_ack_delay} a timeout code.
    """
    hasDatagrams, hasGroups = QPType.UD in traits.services, traits.hasGroups
    isIB, hasWindows = _features(traits)
    groups, members = limits.MULTICAST_GROUPS, limits.MULTICAST_QUEUE_PAIRS
    if not hasDatagrams or not hasGroups:
        groups = members = 0
    return {
        "fw_ver": FIRMWARE_VERSION,
        "node_guid": guid,
        "sys_image_guid": guid,
        "max_mr_size": limits.REGION_BYTES,
        "page_size_cap": PAGE_SIZES,
        "vendor_id": VENDOR_ID,
        "vendor_part_id": 0,
        "hw_ver": 0,
        "max_qp": limits.QUEUE_PAIRS,
        "max_qp_wr": limits.WORK_QUEUE_DEPTH,
        "device_cap_flags": _capabilities(traits),
        "max_sge": limits.SCATTER_GATHER_ELEMENTS,
        "max_sge_rd": limits.SCATTER_GATHER_ELEMENTS,
        "max_cq": limits.COMPLETION_QUEUES,
        "max_cqe": limits.COMPLETION_QUEUE_DEPTH,
        "max_mr": limits.MEMORY_REGIONS,
        "max_pd": limits.PROTECTION_DOMAINS,
        # IBTA vol. 1 9.4.5: READs and atomics share these resources, as a responder must be able to repeat
        # both.
        "max_qp_rd_atom": limits.READS,
        # 0 as for rxe: there is no reliable datagram service, hence no EE contexts and RDDs.
        "max_ee_rd_atom": 0,
        "max_res_rd_atom": limits.READS * limits.QUEUE_PAIRS,
        "max_qp_init_rd_atom": limits.READS,
        "max_ee_init_rd_atom": 0,
        "atomic_cap": ATOMIC_HCA if isIB else 0,
        "max_ee": 0,
        "max_rdd": 0,
        "max_mw": limits.MEMORY_WINDOWS if hasWindows else 0,
        "max_raw_ipv6_qp": 0,
        "max_raw_ethy_qp": 0,
        "max_mcast_grp": groups,
        "max_mcast_qp_attach": members,
        "max_total_mcast_qp_attach": groups * members,
        "max_ah": limits.ADDRESS_HANDLES if hasDatagrams else 0,
        # Fast memory regions were removed from Linux (5.8); the fields remain.
        "max_fmr": 0,
        "max_map_per_fmr": 0,
        "max_srq": limits.SHARED_RECEIVE_QUEUES,
        "max_srq_wr": limits.SHARED_RECEIVE_DEPTH,
        "max_srq_sge": limits.SCATTER_GATHER_ELEMENTS,
        "max_pkeys": partitions,
        "local_ca_ack_delay": ACK_DELAY_CODE,
        "phys_port_cnt": 1,
    }


def extendedAttributes(operations: int = 0, traits: Traits = LOCAL) -> dict[str, int]:
    """
    The additional fields of C{struct ibv_device_attr_ex} that are not 0, or that programs query; fields of
    inner structures have their own names.

    @param operations: bits of C{device_cap_flags_ex} for operations that the device has.
    @param traits: of the fabric.
    @return: integers by name; C{max_cq_period} is microseconds, C{hca_core_clock} kHz (0: there is no such
        clock), C{completion_timestamp_mask} bits.
    """
    return {
        # No timestamps: a software completion is no closer to the wire than the program that polls it.
        "completion_timestamp_mask": 0,
        "hca_core_clock": 0,
        "device_cap_flags_ex": _capabilities(traits) | operations,
        "max_wq_type_rq": 0,
        "raw_packet_caps": 0,
        "max_dm_size": traits.deviceMemory,
        "phys_port_cnt_ex": 1,
        "max_cq_count": MODERATED_COMPLETIONS,
        "max_cq_period": MODERATION_PERIOD,
    }


def portAttributes(port: Port) -> dict[str, int]:
    """
    The fields of C{struct ibv_port_attr}, in its order (IBTA vol. 1 11.2.1.2).

    @return: integers by name; MTUs, widths, speeds and states are codes, flags are bits.
    """
    isEthernet = port.linkLayer is LinkLayer.ETHERNET
    return {
        "state": int(port.state),
        "max_mtu": MTU_CODES[limits.DATAGRAM_BYTES],
        "active_mtu": MTU_CODES[port.mtu],
        "gid_tbl_len": GIDS,
        "port_cap_flags": CM_SUPPORTED | IP_BASED_GIDS if isEthernet else port.capMask,
        "max_msg_sz": limits.MESSAGE_BYTES,
        # IBTA vol. 1 14.2.5.6: PortInfo P_KeyViolations and Q_KeyViolations have 16 bits.
        "bad_pkey_cntr": port.counter("packets_bad_pkey", 16),
        "qkey_viol_cntr": port.counter("qkey_violations", 16),
        "pkey_tbl_len": len(port.partitions),
        "lid": port.lid,
        "sm_lid": port.smLID,
        "lmc": port.lmc,
        # VLs and timeouts are as rxe's (rxe_param.h).
        "max_vl_num": 1,
        "sm_sl": port.smSL,
        "subnet_timeout": 0,
        "init_type_reply": 0,
        "active_width": port.width,
        "active_speed": port.speed,
        "phys_state": int(port.physicalState),
        "link_layer": port.linkLayer.value,
        # RoCE addresses are GIDs, so each address vector has a GRH (IBTA vol. 1 annex A17).
        "flags": GRH_REQUIRED if isEthernet else 0,
        "port_cap_flags2": 0,
        "active_speed_ex": 0,
    }
