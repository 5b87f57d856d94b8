"""
What C{ib-devinfo} and C{ib-stat} say of an iWARP device: an RNIC on Ethernet, without what RFC 5040 has not.
"""

from __future__ import annotations

import json

from tests.hca.fabric.iwarp.ends import ONE, IWARPTestCase
from twisted_ib.tools.show.devicetext import heading, present
from twisted_ib.tools.show.stat import commandLine, text


class TextTests(IWARPTestCase):
    """
    A device with two connections' queue pairs.
    """

    def test_devinfo(self) -> None:
        """
        Its transport is iWARP, its GID is its address, of no version of RoCE; there are no atomics, multicast
        groups, address handles and RNR NAKs.
        """
        one, _ = self.pair()
        entry = json.loads(json.dumps(one.device.describe()))
        found = heading(entry, True)
        for line in (
            "hca_id:\tiwarp0",
            "\ttransport:\t\t\tiWARP (1)",
            "\tphys_port_cnt:\t\t\t1",
            "\tatomic_cap:\t\t\tATOMIC_NONE (0)",
            "\tmax_mcast_grp:\t\t\t0",
            "\tmax_total_mcast_qp_attach:\t0",
            "\tmax_ah:\t\t\t\t0",
            "\t\t\tstate:\t\t\tPORT_ACTIVE (4)",
            "\t\t\tlink_layer:\t\tEthernet",
            f"\t\t\tGID[  0]:\t\t::ffff:{ONE}",
            "\t\tqp:\t\t\t1",
        ):
            self.assertIn(line, found)
        for word in ("RoCE", "RC_RNR_NAK_GEN", "UD_AV_PORT_ENFORCE", "QKEY_CNTR"):
            self.assertNotIn(word, "\n".join(found))
        shown = present(entry)
        self.assertEqual((shown["transport"], shown["atomic_cap"]), ("iWARP", "ATOMIC_NONE"))

    def test_stat(self) -> None:
        """
        Its port is up, on Ethernet, and has no LID; the port's GUID is the device's.
        """
        device = self.device(ONE)
        entry = json.loads(json.dumps(device.describe()))
        found = text([entry], commandLine().parse_args([]))
        guid = f"0x{device.nodeGUID:016x}"
        self.assertEqual(found[0], "CA 'iwarp0'")
        for line in ("State: Active", "Base lid: 0", f"Port GUID: {guid}", "Link layer: Ethernet"):
            self.assertIn("\t\t" + line, found)
        self.assertIn(f"\tNode GUID: {guid}", found)
