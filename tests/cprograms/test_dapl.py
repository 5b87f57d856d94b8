"""
uDAPL: C{dtest} of libdapl2, both roles.
"""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import Here, Lab, LabError, lacking, missing
from tests.cprograms.programs import Program
from tests.support.waiting import HANG_SECONDS

#: Of dat.conf(5): the provider of librdmacm, at an address.
ADAPTER = "ofa-v2-lo"
ENTRY = f'{ADAPTER} u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "127.0.0.1 0" ""\n'
_COMMAND = f"dtest -P {ADAPTER} -B 10 -b 4096"
PROGRAM = Program(
    *("dtest", _COMMAND, f"{_COMMAND} -h {{server}}", "dapl2-utils"),
    said="DAPL Test Complete. PASSED",
    ready="Server is waiting",
)


class DAPLTests(SynchronousTestCase):
    """
    Two processes on C{shm0}.
    """

    timeout = 3 * HANG_SECONDS
    skip = lacking()

    def test_dtest(self) -> None:
        """
        Messages, RDMA WRITEs and READs between endpoints.
        """
        reason = missing(PROGRAM)
        if reason is not None:
            raise SkipTest(reason)
        file = Path(self.mktemp()).resolve()
        file.write_text(ENTRY)
        side = Here("shm0", "127.0.0.1")
        with mock.patch.dict(os.environ, DAT_OVERRIDE=str(file)):
            try:
                Lab(side, side).run(PROGRAM)
            except LabError as error:
                self.fail(str(error))
