"""
The attributes of devices and ports.

Each class has pyverbs' attributes; those of features that this HCA lacks are 0.  Source: rdma-core 65,
C{pyverbs/device.pyx}.
"""

from __future__ import annotations

import sys

import attrs

from twisted_ib.hca.base import attributes
from twisted_ib.hca.base.traits import LOCAL, Traits
from twisted_ib.layouts import Shown
from twisted_ib.records import define
from twisted_ib.verbs.pyverbs.base.base import PyverbsObject, table
from twisted_ib.verbs.pyverbs.base.devicetext import (
    guid_format,
    phys_state_to_str,
    port_state_to_str,
    speed_to_str,
    translate_device_caps,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    width_to_str,
)


@define(eq=False, repr=False)
class DeviceAttr(Shown, PyverbsObject):
    """
    The result of C{ibv_query_device} (IBTA vol. 1 11.2.1.2).

    @ivar node_guid: the GUID in network byte order, read as an integer of this machine; likewise
        C{sys_image_guid}.
    @ivar max_mr_size: octets of a memory region.
    @ivar page_size_cap: page sizes, a bit each.
    @ivar max_qp: queue pairs; the other C{max_} attributes are limits of this kind.
    @ivar device_cap_flags: bits of C{ibv_device_cap_flags}.
    @ivar atomic_caps: one of C{ibv_atomic_cap}.
    """

    # Upper limits, as man ibv_query_device(3) says: another limit of the host may be reached before.
    fw_version: str = ""
    node_guid: int = 0
    sys_image_guid: int = 0
    max_mr_size: int = 0
    page_size_cap: int = 0
    vendor_id: int = 0
    vendor_part_id: int = 0
    hw_ver: int = 0
    max_qp: int = 0
    max_qp_wr: int = 0
    device_cap_flags: int = 0
    max_sge: int = 0
    max_sge_rd: int = 0
    max_cq: int = 0
    max_cqe: int = 0
    max_mr: int = 0
    max_pd: int = 0
    max_qp_rd_atom: int = 0
    max_ee_rd_atom: int = 0
    max_res_rd_atom: int = 0
    max_qp_init_rd_atom: int = 0
    max_ee_init_rd_atom: int = 0
    atomic_caps: int = 0
    # EE contexts and RD domains belong to the RD service, which no RoCE device has.
    max_ee: int = 0
    max_rdd: int = 0
    max_mw: int = 0
    max_raw_ipv6_qps: int = 0
    max_raw_ethy_qp: int = 0
    max_mcast_grp: int = 0
    max_mcast_qp_attach: int = 0
    max_ah: int = 0
    # Fast memory regions: gone from Linux since 5.8, the fields stay for the ABI.
    max_fmr: int = 0
    max_map_per_fmr: int = 0
    max_srq: int = 0
    max_srq_wr: int = 0
    max_srq_sge: int = 0
    max_pkeys: int = 0
    local_ca_ack_delay: int = 0
    phys_port_cnt: int = 0

    def __str__(self) -> str:
        rows = []
        for name, value in attrs.asdict(self, recurse=False).items():
            # pyverbs/device.pyx guid_format: be64toh before printing.
            if name.endswith("guid"):
                value = guid_format(value)
            elif name in ("max_mr_size", "page_size_cap", "vendor_id"):
                value = hex(value)
            elif name == "device_cap_flags":
                value = translate_device_caps(value)
            rows.append((name.replace("_", " ").capitalize(), value))
        return table(rows)


#: Attributes that pyverbs names differently from C{struct ibv_device_attr}.
_RENAMED = {"fw_ver": "fw_version", "atomic_cap": "atomic_caps", "max_raw_ipv6_qp": "max_raw_ipv6_qps"}


def deviceAttr(guid: int, partitions: int = 1, traits: Traits = LOCAL) -> DeviceAttr:
    """
    @param guid: the HCA's GUID.
    @param partitions: slots of its port's P_Key table.
    @param traits: of its fabric.
    @return: the attributes of an HCA.
    """
    found = DeviceAttr()
    for name, value in attributes.deviceAttributes(guid, partitions, traits).items():
        # libibverbs/verbs.h has __be64 here: a program sees the octets in network order.
        if name.endswith("guid"):
            value = int.from_bytes(guid.to_bytes(8, "big"), sys.byteorder)
        # pyverbs has no max_total_mcast_qp_attach.
        if name != "max_total_mcast_qp_attach":
            setattr(found, _RENAMED.get(name, name), value)
    return found


@attrs.define(eq=False)
class QueryDeviceExInput(PyverbsObject):
    """
    The input of C{ibv_query_device_ex}.

    @ivar comp_mask: reserved, 0.
    """

    comp_mask: int


@define(eq=False, repr=False)
class ODPCaps(Shown, PyverbsObject):
    """
    On-demand paging (C{struct ibv_odp_caps}); this HCA has none.

    @ivar general_caps: bits of C{ibv_odp_general_caps}.
    @ivar rc_odp_caps: bits of C{ibv_odp_transport_cap_bits}; the others likewise.
    """

    general_caps: int = 0
    rc_odp_caps: int = 0
    uc_odp_caps: int = 0
    ud_odp_caps: int = 0
    xrc_odp_caps: int = 0

    def __str__(self) -> str:
        return table([(name.replace("_", " "), value) for name, value in attrs.asdict(self).items()])


@define(eq=False, repr=False)
class PCIAtomicCaps(Shown, PyverbsObject):
    """
    Atomic operations on the PCI bus: bits of C{ibv_pci_atomic_op_size}.
    """

    fetch_add: int = 0
    swap: int = 0
    compare_swap: int = 0


@define(eq=False, repr=False)
class TSOCaps(Shown, PyverbsObject):
    """
    TCP segmentation offload.
    """

    max_tso: int = 0
    supported_qpts: int = 0


@define(eq=False, repr=False)
class RSSCaps(Shown, PyverbsObject):
    """
    Receive side scaling.
    """

    supported_qpts: int = 0
    max_rwq_indirection_tables: int = 0
    rx_hash_fields_mask: int = 0
    rx_hash_function: int = 0
    max_rwq_indirection_table_size: int = 0


@define(eq=False, repr=False)
class PacketPacingCaps(Shown, PyverbsObject):
    """
    Packet pacing: rate limits in kbit/s.
    """

    qp_rate_limit_min: int = 0
    qp_rate_limit_max: int = 0
    supported_qpts: int = 0


@define(eq=False, repr=False)
class TMCaps(Shown, PyverbsObject):
    """
    Tag matching.
    """

    max_rndv_hdr_size: int = 0
    max_num_tags: int = 0
    flags: int = 0
    max_ops: int = 0
    max_sge: int = 0


@define(eq=False, repr=False)
class CQModerationCaps(Shown, PyverbsObject):
    """
    Moderation of completion events: the largest values of C{ibv_modify_cq}.

    @ivar max_cq_count: completions per event.
    @ivar max_cq_period: microseconds that the first of them may wait.
    """

    max_cq_count: int = 0
    max_cq_period: int = 0


@attrs.define(eq=False)
class DeviceAttrEx(PyverbsObject):
    """
    The result of C{ibv_query_device_ex}.

    @ivar orig_attr: the result of C{ibv_query_device}.
    @ivar max_dm_size: octets of device memory.
    """

    orig_attr: DeviceAttr = attrs.field(factory=DeviceAttr)
    comp_mask: int = 0
    odp_caps: ODPCaps = attrs.field(factory=ODPCaps)
    completion_timestamp_mask: int = 0
    hca_core_clock: int = 0
    device_cap_flags_ex: int = 0
    tso_caps: TSOCaps = attrs.field(factory=TSOCaps)
    pci_atomic_caps: PCIAtomicCaps = attrs.field(factory=PCIAtomicCaps)
    rss_caps: RSSCaps = attrs.field(factory=RSSCaps)
    max_wq_type_rq: int = 0
    packet_pacing_caps: PacketPacingCaps = attrs.field(factory=PacketPacingCaps)
    raw_packet_caps: int = 0
    tm_caps: TMCaps = attrs.field(factory=TMCaps)
    cq_mod_caps: CQModerationCaps = attrs.field(factory=CQModerationCaps)
    max_dm_size: int = 0
    # libibverbs/verbs.h: 32 bits, as phys_port_cnt has only 8.
    phys_port_cnt_ex: int = 0


def deviceAttrEx(guid: int, partitions: int = 1, traits: Traits = LOCAL, operations: int = 0) -> DeviceAttrEx:
    """
    @param guid: the HCA's GUID.
    @param partitions: slots of its port's P_Key table.
    @param traits: of its fabric.
    @param operations: bits of C{device_cap_flags_ex} for operations that it has.
    @return: the attributes of an HCA with the extended ones.
    """
    found = DeviceAttrEx(deviceAttr(guid, partitions, traits))
    for name, value in attributes.extendedAttributes(operations, traits).items():
        # The core has them flat, C in a structure.
        setattr(found.cq_mod_caps if name in ("max_cq_count", "max_cq_period") else found, name, value)
    return found


@define(eq=False, repr=False)
class PortAttr(Shown, PyverbsObject):
    """
    The result of C{ibv_query_port}: codes of C{ibv_port_state}, C{ibv_mtu} and the like.

    @ivar gid_tbl_len: slots of the GID table, most of them empty; C{pkey_tbl_len} of the P_Key table.
    @ivar max_msg_sz: octets of a message.
    @ivar lid: 0, as on Ethernet.
    @ivar flags: C{IBV_QPF_GRH_REQUIRED}.
    """

    state: int = 0
    max_mtu: int = 0
    active_mtu: int = 0
    gid_tbl_len: int = 0
    port_cap_flags: int = 0
    max_msg_sz: int = 0
    # IBTA vol. 1 14.2.5.6: PortInfo P_KeyViolations and Q_KeyViolations.
    bad_pkey_cntr: int = 0
    qkey_viol_cntr: int = 0
    pkey_tbl_len: int = 0
    # IBTA vol. 1 annex A17: RoCE has neither LIDs nor a subnet manager, so lid, sm_lid, lmc and sm_sl are 0.
    lid: int = 0
    sm_lid: int = 0
    lmc: int = 0
    max_vl_num: int = 0
    sm_sl: int = 0
    subnet_timeout: int = 0
    init_type_reply: int = 0
    active_width: int = 0
    active_speed: int = 0
    phys_state: int = 0
    link_layer: int = 0
    flags: int = 0
    port_cap_flags2: int = 0
    active_speed_ex: int = 0

    def __str__(self) -> str:
        return table(
            [
                ("Port state", port_state_to_str(self.state)),
                ("Max MTU", translate_mtu(self.max_mtu)),
                ("Active MTU", translate_mtu(self.active_mtu)),
                ("SM lid", self.sm_lid),
                ("Port lid", self.lid),
                ("lmc", hex(self.lmc)),
                ("Link layer", translate_link_layer(self.link_layer)),
                ("Max message size", hex(self.max_msg_sz)),
                ("Port cap flags", translate_port_cap_flags(self.port_cap_flags)),
                ("Port cap flags 2", translate_port_cap_flags2(self.port_cap_flags2)),
                ("max VL num", self.max_vl_num),
                ("Bad Pkey counter", self.bad_pkey_cntr),
                ("Qkey violations counter", self.qkey_viol_cntr),
                ("GID table len", self.gid_tbl_len),
                ("Pkey table len", self.pkey_tbl_len),
                ("SM sl", self.sm_sl),
                ("Subnet timeout", self.subnet_timeout),
                ("Init type reply", self.init_type_reply),
                ("Active width", width_to_str(self.active_width)),
                ("Active speed", speed_to_str(self.active_speed, self.active_speed_ex)),
                ("Phys state", phys_state_to_str(self.phys_state)),
                ("Flags", self.flags),
            ],
            24,
        )


@attrs.define(eq=False)
class GIDEntry(PyverbsObject):
    """
    An entry of the GID table (C{struct ibv_gid_entry}).

    @ivar gid_subnet_prefix: the first eight octets, read as an integer of this machine; C{gid_interface_id}
        the last eight, likewise.
    @ivar gid_type: one of C{ibv_gid_type}.
    @ivar ndev_ifindex: the network interface, 0 if there is none.
    """

    gid_subnet_prefix: int = attrs.field(default=0, alias="subnet_prefix")
    gid_interface_id: int = attrs.field(default=0, alias="interface_id")
    gid_index: int = 0
    port_num: int = 0
    gid_type: int = 0
    ndev_ifindex: int = 0

    def gid_str(self) -> str:
        """
        @return: the GID as text.
        """
        # Both are __be64 in C: the machine's order gives the octets back as they are on the wire.
        halves = (self.gid_subnet_prefix, self.gid_interface_id)
        return b"".join([half.to_bytes(8, sys.byteorder) for half in halves]).hex(":", 2)

    def __str__(self) -> str:
        return table(
            [
                ("GID", self.gid_str()),
                ("GID Index", self.gid_index),
                ("Port number", self.port_num),
                ("GID type", translate_gid_type(self.gid_type)),
                ("Ndev ifindex", self.ndev_ifindex),
            ],
            24,
        )


@define(eq=False, repr=False)
class CompCntrCaps(Shown, PyverbsObject):
    """
    Completion counters on the device.
    """

    max_counters: int = 0
    max_value: int = 0
    supported_qp_attach_ops: int = 0


@attrs.define(eq=False)
class AllocDmAttr(PyverbsObject):
    """
    The attributes of new device memory.

    @ivar length: octets.
    @ivar log_align_req: the alignment, as a power of two.
    @ivar comp_mask: reserved, 0.
    """

    length: int
    log_align_req: int = 0
    comp_mask: int = 0
