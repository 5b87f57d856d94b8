"""
Tests of devices, by Debian's programs as they are, and of the texts and rates of codes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.verbs.c.library import run
from tests.verbs.c.posting.declared import TextsTestCase

#: C{enum ibv_rate} of infiniband/verbs.h; libibverbs' multiples of 2.5 Gbit/s, -1 where there is none, and
#: Mbit/s.
RATES = """
    2 1 2500, 5 2 5000, 3 4 10000, 6 8 20000, 4 12 30000, 7 16 40000, 8 24 60000, 9 32 80000, 10 48 120000,
    11 -1 14062, 12 -1 56250, 13 -1 112500, 14 -1 168750, 15 -1 25781, 16 -1 103125, 17 -1 206250,
    18 -1 309375, 19 11 28125, 20 20 53125, 21 160 425000, 22 240 637500, 23 320 850000, 24 480 1275000
"""
#: What functions of Debian's libibverbs1 44.0-2 say of codes from 0.
TEXTS = {
    "node_type": """
        unknown, InfiniBand channel adapter, InfiniBand switch, InfiniBand router, iWARP NIC, usNIC,
        usNIC UDP, unspecified
    """,
    "port_state": "no state change (NOP), down, init, armed, active, active defer",
    "event_type": """
        CQ error, local work queue catastrophic error, invalid request local work queue error,
        local access violation work queue error, communication established, send queue drained, path migrated,
        path migration request error, local catastrophic error, port active, port error, LID change,
        P_Key change, SM change, SRQ catastrophic error, SRQ limit reached, last WQE reached,
        client reregistration, GID table change, WQ fatal
    """,
    "wc_status": """
        success, local length error, local QP operation error, local EE context operation error,
        local protection error, Work Request Flushed Error, memory management operation error,
        bad response error, local access error, remote invalid request error, remote access error,
        remote operation error, transport retry counter exceeded, RNR retry counter exceeded,
        local RDD violation error, remote invalid RD request, aborted error, invalid EE context number,
        invalid EE context state, fatal error, response timeout error, general error, TM error,
        TM software rendezvous
    """,
}


#: The handler without its library: another thread has just destroyed what the event is of.
_DESTROYED = """
import sys
from unittest.mock import MagicMock, Mock
sys.modules["_twisted_ib_verbs"] = MagicMock()
from twisted_ib.verbs.c.verbs import device

device.contextAt = device.nextEvent = Mock()
device.handles = Mock(report=Mock(return_value=0))
print(device.ibv_get_async_event(Mock(), Mock()) == device.AGAIN)
"""


class EventTests(SynchronousTestCase):
    """
    Events of what is gone.
    """

    def test_destroyed(self) -> None:
        """
        After an event of an object that another thread has destroyed the next one is waited for.
        """
        done = subprocess.run([sys.executable, "-c", _DESTROYED], capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))


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


class TextTests(TextsTestCase):
    """
    L{twisted_ib.verbs.c.verbs.text}.
    """

    module = "verbs.text"

    def test_rates(self) -> None:
        """
        Codes of rates, both ways, and those that there are not.
        """
        text = self.handlers
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
        Those of libibverbs, word by word; below and above is the unknown.
        """
        for name, texts in TEXTS.items():
            expected = [each.strip() for each in texts.split(",")]
            said = [self.said(f"ibv_{name}_str", code) for code in range(-1, len(expected) + 1)]
            self.assertEqual(said, ["unknown", *expected, "unknown"])
