"""
Tests for the attributes of an HCA and of its port.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.hca.base.attributes import MTU_CODES, deviceAttributes, extendedAttributes, portAttributes
from twisted_ib.hca.base.port import Port
from twisted_ib.hca.base.traits import ADAPTER, STREAM
from twisted_ib.verbs.pyverbs import enums

GUID = 0x0102030405060709

# C's fields that are as wide as a pointer or a GUID; the others are of 32 bits, with a sign.
WIDE = {"node_guid", "sys_image_guid", "max_mr_size", "page_size_cap"}
UNSIGNED = {"vendor_id", "vendor_part_id", "hw_ver", "device_cap_flags"}


class AttributeTests(SynchronousTestCase):
    """
    The attributes of a device and of its port.
    """

    def test_fit(self) -> None:
        """
        Every attribute fits into its field in C.
        """
        for name, value in deviceAttributes(GUID).items():
            if name == "fw_ver":
                continue
            assert isinstance(value, int)
            bits = 64 if name in WIDE else 32 if name in UNSIGNED else 31
            self.assertTrue(0 <= value < 1 << bits, name)
        for name, value in portAttributes(Port()).items():
            self.assertTrue(0 <= value < 1 << 32, name)
        for name, value in extendedAttributes().items():
            self.assertTrue(0 <= value < 1 << 64, name)

    def test_limits(self) -> None:
        """
        The device's attributes are the limits of its tables.
        """
        found = deviceAttributes(GUID)
        for name, limit in (
            ("max_qp", limits.QUEUE_PAIRS),
            ("max_qp_wr", limits.WORK_QUEUE_DEPTH),
            ("max_sge", limits.SCATTER_GATHER_ELEMENTS),
            ("max_cq", limits.COMPLETION_QUEUES),
            ("max_cqe", limits.COMPLETION_QUEUE_DEPTH),
            ("max_mr", limits.MEMORY_REGIONS),
            ("max_mr_size", limits.REGION_BYTES),
            ("max_pd", limits.PROTECTION_DOMAINS),
            ("max_mw", limits.MEMORY_WINDOWS),
            ("max_ah", limits.ADDRESS_HANDLES),
            ("max_srq", limits.SHARED_RECEIVE_QUEUES),
            ("max_mcast_grp", limits.MULTICAST_GROUPS),
            ("max_mcast_qp_attach", limits.MULTICAST_QUEUE_PAIRS),
            ("max_qp_rd_atom", limits.READS),
            ("node_guid", GUID),
        ):
            self.assertEqual(found[name], limit, name)
        # Completion moderation has fields of 16 bits: struct ibv_moderate_cq in libibverbs/verbs.h.
        moderation = extendedAttributes()
        self.assertEqual((moderation["max_cq_count"], moderation["max_cq_period"]), (0xFFFF, 0xFFFF))

    def test_capabilities(self) -> None:
        """
        The flags are those of verbs: what works, and nothing else.
        """
        named = (
            "BAD_PKEY_CNTR BAD_QKEY_CNTR UD_AV_PORT_ENFORCE CURR_QP_STATE_MOD PORT_ACTIVE_EVENT"
            " SYS_IMAGE_GUID RC_RNR_NAK_GEN SRQ_RESIZE MEM_WINDOW MEM_MGT_EXTENSIONS MEM_WINDOW_TYPE_2B"
        )
        flags = enums.ibv_device_cap_flags(0)
        for name in named.split():
            flags |= enums.ibv_device_cap_flags[f"IBV_DEVICE_{name}"]
        self.assertEqual(deviceAttributes(GUID)["device_cap_flags"], flags)
        self.assertEqual(extendedAttributes()["device_cap_flags_ex"], flags)
        self.assertEqual(deviceAttributes(GUID)["atomic_cap"], enums.IBV_ATOMIC_HCA)

    def test_noWindows(self) -> None:
        """
        An adapter has no memory windows here, and says so; software of iWARP has them.
        """
        windows = "MEM_WINDOW MEM_MGT_EXTENSIONS MEM_WINDOW_TYPE_2B".split()
        bits = sum(getattr(enums, f"IBV_DEVICE_{each}") for each in windows)
        for traits, capabilities, most in ((ADAPTER, 0, 0), (STREAM, bits, limits.MEMORY_WINDOWS)):
            found = deviceAttributes(GUID, traits=traits)
            self.assertEqual((int(found["device_cap_flags"]) & bits, found["max_mw"]), (capabilities, most))

    def test_port(self) -> None:
        """
        The port is active, addressed by GIDs, and its MTU is that of a datagram.
        """
        port = portAttributes(Port())
        self.assertEqual(port["gid_tbl_len"], limits.LOCAL_ADDRESSES + 4)
        self.assertEqual(
            [
                portAttributes(Port(counters={"qkey_violations": n}))["qkey_viol_cntr"]
                for n in (0, 7, 1 << 20)
            ],
            [0, 7, 0xFFFF],
        )
        self.assertEqual(port["state"], enums.IBV_PORT_ACTIVE)
        self.assertEqual(port["link_layer"], enums.IBV_LINK_LAYER_ETHERNET)
        self.assertEqual(port["active_mtu"], enums.IBV_MTU_4096)
        self.assertEqual(port["max_msg_sz"], 1 << 31)
        self.assertEqual(MTU_CODES[limits.DATAGRAM_BYTES], port["max_mtu"])
        capabilities = enums.ibv_port_cap_flags
        self.assertEqual(
            port["port_cap_flags"], capabilities.IBV_PORT_CM_SUP | capabilities.IBV_PORT_IP_BASED_GIDS
        )
