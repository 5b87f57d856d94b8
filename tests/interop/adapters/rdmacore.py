"""
rdma-core's own tests: on a device of the kind C{hardware} in the guest, and with pyverbs on its adapter.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from twisted.trial.unittest import SkipTest

from tests.interop.adapters.rxe import GUESTS, STREAMS_SECONDS, HardwareTestCase
from tests.interop.lab.anew import limit
from tests.interop.lab.images import cacheDirectory
from tests.interop.lab.shipped import SITE, carry
from tests.suites import rdmacore

RUNNER = Path(str(rdmacore.__file__))
#: Where Debian's package of pyverbs has the tests, and where they come to lie in the guest.
_SHIPPED = "./usr/share/doc/rdma-core/tests/"
SOURCE = "rdma-core"
#: What passes with pyverbs there and not here, by the reason: docs/hardware.md, "What there is not".
LACKING = {
    "memory windows": (
        "test_mr.MWTest.test_invalidate_mw_type1",
        "test_mr.MWTest.test_mw_type1",
        "test_mr.MWTest.test_mw_type2",
        "test_mr.MWTest.test_mw_type2_invalidate_dealloc",
        "test_mr.MWTest.test_mw_type2_invalidate_local",
        "test_mr.MWTest.test_mw_type2_invalidate_remote",
        "test_qpex.QpExTestCase.test_qp_ex_rc_bind_mw",
    ),
    "multicast": (
        "test_rdmacm.CMTestCase.test_rdmacm_async_ex_leave_multicast_traffic",
        "test_rdmacm.CMTestCase.test_rdmacm_async_ex_multicast_traffic",
        "test_rdmacm.CMTestCase.test_rdmacm_async_multicast_traffic",
    ),
    "datagrams by rdma_cm": ("test_rdmacm.CMTestCase.test_rdmacm_async_udp_traffic",),
}
#: What the runner says of those that pass, and of those that fail.
WORDS = ("ok", "FAIL")


def packTests(target: Path) -> None:
    """
    Write an archive of rdma-core's tests, and of what runs them.

    @raise SkipTest: Debian's package is not here.
    """
    packages = sorted(
        (cacheDirectory() / "debs").glob("python3-pyverbs_*"), key=lambda each: each.stat().st_mtime
    )
    if not packages:
        raise SkipTest(f"no guest is built in {cacheDirectory()}: python -m tests.interop.build")
    command = ("dpkg-deb", "--fsys-tarfile", packages[-1])
    given = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=BytesIO(given)) as package, tarfile.open(target, "w") as archive:
        for entry in package:
            name = entry.name.removeprefix(_SHIPPED)
            file = package.extractfile(entry)
            if name == entry.name or file is None:
                continue
            data = file.read()
            if name.endswith(".gz"):
                data, name = gzip.decompress(data), name.removesuffix(".gz")
            made = tarfile.TarInfo(f"{SOURCE}/tests/{name}")
            made.size = len(data)
            archive.addfile(made, BytesIO(data))
        archive.add(RUNNER, RUNNER.name)


class RDMACoreTests(HardwareTestCase):
    """
    What pyverbs passes there is passed here, but for what is L{LACKING}.
    """

    def outcomes(self, *words: str) -> tuple[set[str], set[str]]:
        """
        @return: the names of the tests that pass, and of those that fail.
        """
        command = self.python(RUNNER, f"{SITE}/{SOURCE}", "--address", self.there, *words)
        ended = self.guest.run(command, STREAMS_SECONDS)
        (self.directory / f"{words[1]}.log").write_text(ended.text)
        self.assertRegex(ended.output, r"\d+ ok, \d+ skip\n\Z", ended.text)
        passed, failed = (set(re.findall(rf"(?m)^{each} +(\w+\.[\w.]+)", ended.output)) for each in WORDS)
        return passed, failed

    def test_all(self) -> None:
        """
        All tests but those of vendors' providers.
        """
        limit(self, 2 * STREAMS_SECONDS)
        self.release()
        file = self.directory / "rdma-core.tar"
        packTests(file)
        carry(self.lab.network, self.guest, file)
        theirs, failedThere = self.outcomes("--dev", self.peer.value[0], "--own")
        ours, failed = self.outcomes("--dev", GUESTS)
        lacking = {name for each in LACKING.values() for name in each}
        self.assertEqual(theirs - ours, lacking)
        self.assertEqual(failed - failedThere - lacking, set())
