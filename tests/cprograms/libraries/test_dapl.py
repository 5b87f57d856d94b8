"""
uDAPL: C{dtest} of libdapl2, both roles.
"""

from __future__ import annotations

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import LabError, lacking, missing, sides
from tests.cprograms.libraries.dapl import program, runDAPL
from tests.cprograms.programs import DEVICES
from tests.support.waiting import HANG_SECONDS


class DAPLTests(SynchronousTestCase):
    """
    Two processes on each device.
    """

    timeout = 3 * HANG_SECONDS
    skip = lacking()

    def test_dtest(self) -> None:
        """
        Messages, RDMA WRITEs and READs between endpoints.
        """
        reason = missing(program())
        if reason is not None:
            raise SkipTest(reason)
        for device in DEVICES:
            try:
                runDAPL(*sides(device))
            except LabError as error:
                self.fail(f"{device}: {error}")
