"""
C{python -m tests.cprograms.iscsi.suites}: the tests of libiscsi's C{iscsi-test-cu} one by one, over TCP and
over iSER, and whether they have the same outcome.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cprograms.iscsi.target import INITIATOR, Target, lackingPrograms
from tests.cprograms.lab import SWITCH, LabError, lacking, sides

#: glibc's malloc(3) then gives memory that is zero.  Each suite begins with a second session, for which
#: libiscsi's iSER takes memory that it has freed, and reads it before it has written there.
ZEROED = {"MALLOC_PERTURB_": "255"}
#: Why a test ends otherwise over iSER than over TCP: libiscsi 1.19, lib/iser.c, and tgt, usr/iscsi/iser.c.
REASONS = {
    r"Inquiry\.(AllocLength|BlockLimits)|ModeSense6\.(Control-SWP|Residuals)|iSCSIResiduals\.": (
        "libiscsi takes what it asked for as received, without the target's residual count"
    ),
    r"ExtendedCopy\.Simple": "a request of 1 MiB, beyond libiscsi's buffers of 512 KiB",
    r"GetLBAStatus\.BeyondEol": "fails over TCP, too; libiscsi frees what it has written beyond",
    r"(Read|Write)10\.Async": "more commands at a time than libiscsi has buffers",
    r"Reserve6\.(Logout|ITNexusLoss)": "tgtd ends a session and its reservations with the timewait",
    r"Reserve6\..*Reset|iSCSITMF\.": "libiscsi takes task management for a SCSI command",
    r"iSCSIcmdsn\.|iSCSIdatasn\.": "the test changes what waits in libiscsi's queue, which iSER has none of",
}
_RESULT = re.compile(r"^ +(tests|asserts) +\d+ +(\d+) +(\d+) +(\d+)", re.MULTILINE)
#: Statuses of a program: all passed, one has failed, and that of what a signal ended.
_STATUSES = (0, 1, *range(-64, 0))


def outcome(target: Target, kind: str, test: str) -> str:
    """
    @param kind: the transport.
    @param test: a test's name.
    @return: the outcome of a test.
    """
    command = "iscsi-test-cu", "-d", "-i", INITIATOR, "-t", test, target.urls[kind]
    try:
        said = target.ended(*command, statuses=_STATUSES, **ZEROED)
    except LabError as error:
        return str(error).partition(":")[0]
    found = {what: tuple(map(int, numbers)) for what, *numbers in _RESULT.findall(said)}
    if set(found) != {"tests", "asserts"} or not found["tests"][0]:
        return "crashed" if "Suite:" in said else "no session"
    ran, _, failed = found["asserts"]
    word = "failed" if found["tests"][2] else "skipped" if "[SKIPPED]" in said else "passed"
    return f"{word}, {failed} of {ran} checks failed" if failed else f"{word}, {ran} checks"


def compared(target: Target, test: str) -> dict[str, str]:
    """
    @return: the outcomes by transport.
    """
    return {kind: outcome(target, kind, test) for kind in target.urls}


class _Targets:
    # One target for many tests.  A test that fails leaves reservations and mode pages: it has a new target
    # for another go, and so has the next.

    def __init__(self) -> None:
        self._target: Target | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def compared(self, test: str) -> dict[str, str]:
        isNew = self._target is None
        outcomes = compared(self._started(), test)
        if not all(each.startswith(("passed", "skipped")) for each in outcomes.values()):
            self.stop()
            if not isNew:
                return self.compared(test)
        return outcomes

    def _started(self) -> Target:
        if self._target is None:
            self._directory = tempfile.TemporaryDirectory()
            self._target = Target(*sides("shm0"), Path(self._directory.name))
        return self._target

    def stop(self) -> None:
        if self._target is not None:
            self._target.stop()
            self._target = None
        if self._directory is not None:
            self._directory.cleanup()


def _names() -> list[str]:
    said = subprocess.run(("iscsi-test-cu", "-l"), capture_output=True, check=False, text=True).stdout
    return [line for line in said.split() if line.startswith("ALL.") and line.count(".") == 2]


def main() -> int:
    """
    @return: the exit status: how many tests have another outcome and no known reason for it, at most 100.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("tests", nargs="*", help="names such as ALL.Read10.Simple (default: all)")
    options = parser.parse_args()
    os.environ[SWITCH] = "1"
    reason = lacking() or lackingPrograms("iscsi-test-cu")
    if reason is not None:
        print(reason)
        return 1
    names: list[str] = options.tests or _names()
    same = unexplained = 0
    targets = _Targets()
    try:
        for name in names:
            outcomes = targets.compared(name)
            if len(set(outcomes.values())) == 1:
                same += 1
                reason = ""
            else:
                reason = next((why for names, why in REASONS.items() if re.search(names, name)), "?")
                unexplained += reason == "?"
            print(f"{name:<45} iSER: {outcomes['iser']}; TCP: {outcomes['iscsi']} {reason}", flush=True)
    finally:
        targets.stop()
    print(f"{same} of {len(names)} as over TCP")
    return min(unexplained, 100)


if __name__ == "__main__":
    sys.exit(main())
