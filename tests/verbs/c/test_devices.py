"""
Tests of devices, by Debian's programs as they are, and of the texts and rates of codes.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.verbs.c.library import run
from tests.verbs.c.posting.declared import useDeclared

#: C{enum ibv_rate} of infiniband/verbs.h; libibverbs' multiples of 2.5 Gbit/s, -1 where there is none, and
#: Mbit/s.
RATES = """
    2 1 2500, 5 2 5000, 3 4 10000, 6 8 20000, 4 12 30000, 7 16 40000, 8 24 60000, 9 32 80000, 10 48 120000,
    11 -1 14062, 12 -1 56250, 13 -1 112500, 14 -1 168750, 15 -1 25781, 16 -1 103125, 17 -1 206250,
    18 -1 309375, 19 11 28125, 20 20 53125, 21 160 425000, 22 240 637500, 23 320 850000, 24 480 1275000
"""


class ProgramTests(SynchronousTestCase):
    """
    C{ibv_devinfo} of rdma-core.
    """

    def test_devinfo(self) -> None:
        """
        It shows the device and its port; with the name of a device in the environment, that one only.
        """
        if shutil.which("ibv_devinfo") is None:
            raise SkipTest("no ibv_devinfo: it is in Debian's package ibverbs-utils")
        result = run("ibv_devinfo", "-v", TWISTED_IB_DEVICE="shm0", PYTHONHOME="/nowhere")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout.count("hca_id:"), 1)
        self.assertIn("hca_id:\tshm0", result.stdout)
        self.assertIn("PORT_ACTIVE (4)", result.stdout)
        self.assertIn("RoCE v2", result.stdout)


class TextTests(SynchronousTestCase):
    """
    L{twisted_ib.verbs.c.verbs.text}.
    """

    def setUp(self) -> None:
        useDeclared(self)
        self.text: Any = import_module("twisted_ib.verbs.c.verbs.text")
        self.string = import_module("twisted_ib.verbs.c.pointers").FFI().string

    def texts(self, name: str, first: int, last: int) -> list[str]:
        """
        @return: the texts of some codes.
        """
        call = getattr(self.text, f"ibv_{name}_str")
        return [self.string(call(code)).decode() for code in range(first, last + 1)]

    def test_rates(self) -> None:
        """
        Codes of rates, both ways, and those that there are not.
        """
        text = self.text
        for code, multiple, mbps in (map(int, each.split()) for each in RATES.split(",")):
            self.assertEqual((text.ibv_rate_to_mult(code), text.ibv_rate_to_mbps(code)), (multiple, mbps))
            self.assertEqual(text.mbps_to_ibv_rate(mbps), code)
            if multiple > 0:
                self.assertEqual(text.mult_to_ibv_rate(multiple), code)
        for code in 0, 1, 25:
            self.assertEqual((text.ibv_rate_to_mult(code), text.ibv_rate_to_mbps(code)), (-1, -1))
        # IBV_RATE_MAX.
        self.assertEqual((text.mult_to_ibv_rate(3), text.mbps_to_ibv_rate(3)), (0, 0))

    def test_texts(self) -> None:
        """
        Each code has a text of its own, others are unknown.
        """
        nodes = ["channel adapter", "switch", "router", "RNIC", "usNIC", "usNIC over UDP"]
        self.assertEqual(self.texts("node_type", 0, 7), ["unknown", *nodes, "unknown"])
        ports = ["no change", "down", "initializing", "armed", "active", "active, deferred"]
        self.assertEqual(self.texts("port_state", -1, 6), ["unknown", *ports, "unknown"])
        below, *statuses, above = self.texts("wc_status", -1, 24)
        self.assertEqual((below, above, len({*statuses, below})), ("unknown", "unknown", 25))
        # IBV_WC_WR_FLUSH_ERR, IBV_WC_REM_ACCESS_ERR and IBV_WC_GENERAL_ERR.
        self.assertEqual(
            [statuses[code] for code in (0, 5, 10, 21)],
            ["success", "work request flushed", "remote access error", "general error"],
        )
        # IBV_EVENT_QP_FATAL and IBV_EVENT_PORT_ACTIVE.
        events = self.texts("event_type", 0, 9)
        self.assertEqual((events[1], events[9]), ("qp fatal", "port active"))
        self.assertEqual(self.texts("event_type", 99, 99), ["unknown"])
