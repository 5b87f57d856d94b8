"""
Tests of libibumad, by a program that is Python; tests/opensm has Debian's.
"""

from __future__ import annotations

import errno
import json
import sys
from collections import Counter
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.rundirectory import ownRunDirectory
from tests.verbs.c import umadprogram
from tests.verbs.c.library import run
from tests.verbs.c.posting.declared import TextsTestCase
from twisted_ib.verbs.c.umad.declarations import TABLE

EINVAL, ENODEV, EAGAIN, ENOSPC = (-each for each in (errno.EINVAL, errno.ENODEV, errno.EAGAIN, errno.ENOSPC))
ETIMEDOUT = -errno.ETIMEDOUT
UNSUPPORTED = "Method/Attribute combo not supported"
#: The numbers of umad_types.h, umad_sm.h, umad_sa.h and umad_cm.h: in order, none twice.
COMMON = (0x01, 0x02, 0x03)
SM = (*COMMON, 0x10, 0x11, 0x12, *range(0x14, 0x1F), 0x20, 0x30, 0x31, 0x32, 0x33)
SA = (*COMMON, *range(0x11, 0x1A), 0x20, 0x30, 0x31, 0x33, 0x35, 0x36, *range(0x38, 0x3F), 0xF3)
CM = (*COMMON, *range(0x10, 0x1D))
METHODS = (0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x81, 0x86)
UNKNOWN = "<unknown>"


class NameTests(TextsTestCase):
    """
    L{twisted_ib.verbs.c.umad.names}.
    """

    module = "umad.names"

    def said(self, name: str, *arguments: int) -> str:
        """
        @return: What C{umad_NAME_str} says.
        """
        return super().said(f"umad_{name}_str", *arguments)

    def known(self, name: str, *arguments: int, shift: int = 0) -> dict[int, str]:
        """
        @param shift: of the last argument, from the host's order to the network's.
        @return: the names of all octets that have one.
        """
        said = {each: self.said(name, *arguments, each << shift) for each in range(256)}
        return {each: text for each, text in said.items() if not text.startswith("<unknown")}

    def test_classes(self) -> None:
        """
        Of each class, those of vendors and of applications by their ranges.
        """
        known = self.known("class")
        self.assertEqual(sorted(known), [0x01, *range(0x03, 0x50), 0x81])
        count = Counter(known.values())
        self.assertEqual((count["Subn"], count["Vendor"], count["Application"]), (2, 7 + 32, 28))
        vendors = [each for each, text in known.items() if text == "Vendor"]
        self.assertEqual(vendors, [*range(0x09, 0x10), *range(0x30, 0x50)])
        others = {each: text for each, text in known.items() if count[text] == 1}
        numbers = (*range(0x03, 0x09), 0x10, 0x11, 0x12, 0x21)
        names = "SubnAdm Perf BM DevMgt ComMgt SNMP DevAdm BootMgt BIS CongestionManagment".split()
        self.assertEqual(others, dict(zip(numbers, names, strict=True)))

    def test_methods(self) -> None:
        """
        Subnet administration has more methods than other classes.
        """
        self.assertEqual(sorted(self.known("method", 1)), list(METHODS))
        self.assertEqual([self.said("method", each, 0x7F) for each in (1, 3)], ["<unknown"] * 2)
        known = self.known("method", 3)
        self.assertEqual(sorted(known), sorted((*METHODS, 0x12, 0x13, 0x14, 0x15, 0x92, 0x94, 0x95)))
        self.assertEqual(
            [known[each] for each in (0x81, 0x86, 0x92, 0x94, 0x95, 0x13)],
            ["GetResp", "ReportResp", "GetTableResp", "GetMultiResp", "DeleteResp", "GetTraceTable"],
        )

    def test_attributes(self) -> None:
        """
        Attributes of the classes, in network byte order; no two of a class have one name.
        """
        for mgmtClass, numbers, number, text in (
            (0x01, SM, 0x15, "PortInfo"),
            (0x81, SM, 0x20, "SMInfo"),
            (0x03, SA, 0x35, "PathRecord"),
            (0x07, CM, 0x18, "ServiceIDResReqResp"),
            (0x04, COMMON, 0x01, "Class Port Info"),
        ):
            known = self.known("attribute", mgmtClass, shift=8)
            self.assertEqual((sorted(known), known[number]), (sorted(numbers), text))
            self.assertEqual(len({*known.values()}), len(known))
        self.assertEqual(self.said("attribute", 1, 0x0001), UNKNOWN)

    def test_states(self) -> None:
        """
        The first of the common states counts; those of subnet administration are in the other octet.
        """
        common = {0x01: "Busy", 0x02: "Redirection required", 0x03: "Busy", 0x00: "Success", 0x10: "Success"}
        common |= {0x04: "Bad Version", 0x08: "Method not supported", 0x0C: UNSUPPORTED}
        common |= {0x1C: "Invalid attribute/modifier field", 0x2C: UNSUPPORTED, 0x1E: "Redirection required"}
        self.assertEqual({each: self.said("common_mad_status", each << 8) for each in common}, common)
        states = [self.said("sa_mad_status", each) for each in range(10)]
        self.assertEqual(
            (states[0], states[8], states[9]), ("Success", "Priority Suggested", "Undefined Error")
        )
        self.assertEqual(len({*states}), 10)


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
                "counted": 0,
                "few": -errno.ENOMEM,
                "none": [0, 0, 0],
                "mad": [64, 20],
                "address": "00000005800100001234f300",
                "grh": ["01000709", True, "00012345"],
                "noGRH": 0,
                "pkey": 0x2345,
                "adapter": [0, "ib0"],
                "described": [1, 1, "twisted_ib", True, "ib0", 0, 0],
                "released": [0, 0],
                "port": 0,
                "settings": ["ib0", 1, lid, sm, 4, 5],
                "whole": [0, 0, 10, "fe80000000000000", True],
                "keys": [True, "ffff", "InfiniBand"],
                "portReleased": [0, 0],
                "absent": [ENODEV, ENODEV],
                "pairs": [1, "ib0", 1, "ib0", 1],
                "pair": [0, "ib0", 1, "ib0", 1],
                "noPair": ENODEV,
                "sorted": [0, 0, errno.EINVAL],
                "order": [0, True, None, True],
                "path": [0, 0, -errno.ENAMETOOLONG],
                "debug": [0, 2, 2, 0],
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
                "lengths": [EINVAL] * 4,
                "missing": EINVAL,
                "routed": 0,
                "noted": [True, 20, 1],
                "returned": True,
                "status": errno.ETIMEDOUT,
                "way": ["030001000709", True, "00012345"],
                "second": [True, 0, -errno.EPERM],
                "flags": [errno.EINVAL, True],
                "register2": [0, True],
                "organized": [errno.EINVAL, errno.EINVAL, 0, 0, errno.EADDRINUSE, 0],
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
