"""
Tests of libibumad, by a program that is Python; tests/opensm has Debian's.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.rundirectory import ownRunDirectory
from tests.verbs.c import umadprogram
from tests.verbs.c.library import run
from twisted_ib.verbs.c.umad.declarations import TABLE

EINVAL, ENODEV, EAGAIN, ENOSPC = (-each for each in (errno.EINVAL, errno.ENODEV, errno.EAGAIN, errno.ENOSPC))
ETIMEDOUT = -errno.ETIMEDOUT
UNSUPPORTED = "Method/Attribute combo not supported"


class LibraryTests(SynchronousTestCase):
    """
    A process that is alone in a subnet.
    """

    def test_functions(self) -> None:
        """
        Each function does as on Linux: results, errnos, and what is readable when.
        """
        directory = ownRunDirectory(self)
        names = json.dumps([row.name for row in TABLE])
        # A file: a module would find the package in the directory of the tests.
        done = run(
            *(sys.executable, str(Path(umadprogram.__file__))),
            TWISTED_IB_RUN_DIR=str(directory),
            NAMES=names,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        found = dict(json.loads(line) for line in done.stdout.splitlines())
        self.maxDiff = None
        lid, sm = found["settings"][2:4]
        self.assertEqual(
            found,
            {
                "names": ["ib0"],
                "guids": [2, 0, True],
                "few": -errno.ENOMEM,
                "adapter": [0, "ib0"],
                "released": [0, 0],
                "port": 0,
                "settings": ["ib0", 1, lid, sm, 4, 5],
                "portReleased": [0, 0],
                "absent": [ENODEV, ENODEV],
                "pairs": [1, "ib0", 1, "ib0", 1],
                "pair": [0, "ib0", 1, "ib0", 1],
                "noPair": ENODEV,
                "sorted": [0, 0, errno.EINVAL],
                "path": [-errno.ENAMETOOLONG, 0],
                "texts": ["SubnAdm", "GetTable", "NodeInfo", UNSUPPORTED, "No Records"],
                "open": [True, True, False, False],
                "early": [0, ETIMEDOUT, [EAGAIN, errno.EAGAIN]],
                "sent": 0,
                "ready": [1, 0],
                "small": [ENOSPC, errno.ENOSPC, 256],
                "response": [True, 256, 0, 0x81, "abcdef0123456789"],
                "late": 0,
                "lost": 0,
                "timeout": [True, 24, errno.ETIMEDOUT, "0000000000000007"],
                "asked": 0,
                "table": [ENOSPC, True],
                "records": [True, True, "0011"],
                "second": [True, 0, -errno.EPERM],
                "flags": [errno.EINVAL, True],
                "register2": [0, True],
                "wrong": [EINVAL, EINVAL],
                "unregistered": [0, EINVAL],
                "closed": [0, 0, EINVAL],
                "poll": EINVAL,
                "emptied": [True, EAGAIN],
                "foreign": 0,
                "again": [True, 0],
                "manager": [True, True, False],
                "nulls": [row.name for row in TABLE],
                "errno": errno.EINVAL,
            },
        )
        self.assertTrue(lid and sm)
