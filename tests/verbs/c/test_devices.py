"""
Tests of devices, by Debian's programs as they are.
"""

from __future__ import annotations

import shutil

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.verbs.c.library import run


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
