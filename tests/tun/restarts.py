"""
A host that is restarted: it has another queue pair, and its neighbours find it again.
"""

from __future__ import annotations

import os
import signal
import time

from tests.support.waiting import PATIENCE
from tests.tun.lab import TunTestCase

COUNT = 20
#: How long a neighbour may take to reach it again, seconds.
HEALED = 3.0 * PATIENCE


class RestartTests(TunTestCase):
    """
    A host that ends, or is killed, and comes back.
    """

    def test_restart(self) -> None:
        """
        It is reached again in less than three seconds, 20 of 20 times.
        """
        first, second = self.pair()
        for number in range(COUNT):
            if number % 2:
                first.end()
            else:
                os.killpg(first.process.pid, signal.SIGKILL)
                first.process.wait()
            first = self.host("10.9.0.1/24")
            first.do("true")
            began = time.monotonic()
            second.retry("ping -q -c 1 -W 1 10.9.0.1")
            self.assertLess(time.monotonic() - began, HEALED, f"restart {number + 1} of {COUNT}")


class SubnetRestartTests(RestartTests):
    """
    The same on a subnet, which the second host hosts after the first restart.
    """

    device = "ib0"
