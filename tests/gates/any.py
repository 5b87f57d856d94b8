"""
The expressions of the package whose type is C{Any}, by folder: C{python -m tests.gates.any}.

mypy counts them; where there are more than are recorded here, it says so and ends with 1.  Beside the tests,
as mypy takes a minute without its cache and is not among what they need.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

#: The mypy that has counted them: others count otherwise.
VERSION = "2.4"
#: The exit status where that one is not installed.
SKIPPED = 77
#: Per mille of a folder's expressions, rounded up; they may only fall.
RECORDED = {
    ".": 31,
    "aio": 31,
    "blocking": 40,
    "configuration": 2,
    "dask": 11,
    "hca": 75,
    "hca/base": 29,
    "hca/capture": 35,
    "hca/cm": 21,
    "hca/connection": 11,
    "hca/device": 58,
    "hca/fabric": 60,
    "hca/host": 8,
    "hca/mad": 25,
    "hca/memory": 0,
    "hca/queues": 60,
    "hca/services": 60,
    "hca/transport": 20,
    "hca/wire": 10,
    "internet": 49,
    "ipoib": 24,
    "queues": 18,
    "rdma": 42,
    "rds": 41,
    "reactor": 44,
    "sdp": 35,
    "subnet": 0,
    "subnet/hosting": 28,
    "subnet/network": 3,
    "subnet/port": 50,
    "subnet/sa": 8,
    "subnet/sm": 1,
    "subnet/sma": 9,
    "switch": 64,
    "tools": 54,
    "twisted_ib": 37,
    "verbs/c": 15,
    "verbs/core": 2,
    "verbs/pyverbs": 35,
}
#: The sum of all.
_ALL = "twisted_ib"
_ROOT = Path(__file__).resolve().parents[2]
_DEEP = (["hca"], ["subnet"], ["verbs"])


def folderOf(module: str) -> str:
    """
    @param module: its full name, as of C{__init__} without.
    @return: its folder: under C{hca}, C{subnet} and C{verbs} two levels of them.
    """
    parts = module.split(".")
    path = _ROOT.joinpath(*parts)
    folders = parts[1:] if path.is_dir() else parts[1:-1]
    return "/".join(folders[: 2 if folders[:1] in _DEEP else 1]) or "."


def perMille(lines: Iterable[str]) -> dict[str, int]:
    """
    @param lines: of mypy's report: module, those of C{Any}, all, the rest in percent.
    @return: the share of C{Any} by folder, rounded up.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for line in lines:
        module, *numbers = line.split() or [""]
        if module.split(".")[0] == _ALL:
            for folder in (folderOf(module), _ALL):
                for place, number in enumerate(numbers[:2]):
                    found[folder][place] += int(number)
    return {folder: -(-1000 * part // whole) for folder, (part, whole) in found.items() if whole}


def changes(found: dict[str, int]) -> tuple[list[str], list[str]]:
    """
    @return: What to say of those that have risen, and of those that have fallen.
    """
    risen, fallen = [], []
    for folder, now in sorted(found.items()):
        before = RECORDED.get(folder, 0)
        if now > before:
            risen.append(f"{folder}: {now} per mille of the expressions are Any, which were {before}")
        elif now < before:
            fallen.append(f"{folder}: {now} per mille now, so lower the recorded {before}")
    return risen, fallen


def main() -> int:
    """
    Count, and compare.

    @return: The process's exit status.
    """
    version = metadata.version("mypy")
    if not version.startswith(f"{VERSION}."):
        print(f"mypy {version} counts otherwise than mypy {VERSION}, of which the numbers here are")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mypy", "--any-exprs-report", folder]
        result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
        report = Path(folder, "any-exprs.txt")
        if not report.exists():
            print(result.stdout + result.stderr, file=sys.stderr)
            return 2
        found = perMille(report.read_text().splitlines())
    for name, share in sorted(found.items(), key=lambda each: -each[1]):
        print(f"{share / 10:5.1f} %  {name}")
    risen, fallen = changes(found)
    print(*risen, *fallen, sep="\n")
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main())
