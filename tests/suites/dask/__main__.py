"""
Run C{distributed}'s own tests over C{tcp://} and over C{ib://}, and compare what becomes of each.

    python -m tests.suites.dask REPOSITORY [--tests comm/tests/test_comms.py,tests/test_core.py]
                                           [--seconds 600]

REPOSITORY is a checkout of C{distributed}, or its Git directory: the tests are taken from its newest commit,
the package itself from where it is installed.  In a copy of the tests each C{tcp} is C{ib}, and so is the
scheme of addresses without one.  No other Dask may be at port 8787 meanwhile: tests take its warning for an
error.  It needs pytest, pytest-timeout and pytest-rerunfailures besides [dask].

The exit status is 0 if no test fails over ib:// that passes over tcp://, but for those that L{KNOWN} has a
reason for; 77 if something is not installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.suites.projects import SKIPPED

#: Those with connections, and a cluster of processes; all others of the repository may be named.
TESTS = "comm/tests/test_comms.py,tests/test_core.py,tests/test_batched.py,deploy/tests/test_local.py"
#: How long one test may take, seconds.
TEST_SECONDS = 60
#: What cannot pass over ib://, by the end of its name, and why.
KNOWN = {
    "test_comm_closed_on_write_error": "puts a function into tornado's stream",
    "test_share_buffer_with_header": "of TCP's frames small ones share memory; here each has its own",
    "test_stop_listener_during_handle_stream": "puts a function into tornado's server",
    "test_tcp_listener_does_not_call_handler_on_handshake_error": "connects a TCP socket to the listener",
    "test_rpc_tls": "asks ib:// for TLS, which it refuses",
    "test_transports_tcp": "LocalCluster without a protocol takes tcp://, whatever the default scheme is",
    "test_transports_tcp_port": "the same",
}
#: In the copy: the names of this package's classes by those of distributed.comm.tcp.
_NAMES = """
from distributed.comm.tcp import *
from distributed.comm.tcp import get_stream_address
from twisted_ib.dask.backend import IBBackend as TCPBackend
from twisted_ib.dask.backend import IBConnector as TCPConnector
from twisted_ib.dask.backend import IBListener as TCPListener
from twisted_ib.dask.comm import IB as TCP
"""
_REPLACED = {
    "tcp://": "ib://",
    '"tcp"': '"ib"',
    "distributed.comm.tcp": "names_of_tcp",
}
_RESULT = re.compile(r"^(\S+\.py::\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)", re.MULTILINE)


def copied(repository: str, scheme: str, root: Path) -> None:
    """
    Copy the installed package, and the repository's tests into it.

    @param scheme: C{tcp}, or C{ib} for tests that are changed.
    """
    found = find_spec("distributed")
    assert found is not None and found.origin is not None
    shutil.copytree(Path(found.origin).parent, root / "distributed")
    wanted = ["*/tests/*", "conftest.py", "pyproject.toml", "*/pytest_resourceleaks.py"]
    archive = subprocess.run(["git", "-C", repository, "archive", "HEAD"], check=True, capture_output=True)
    unpack = ["tar", "x", "-C", str(root), "--wildcards", *wanted]
    subprocess.run(unpack, check=True, input=archive.stdout)
    if scheme == "ib":
        (root / "names_of_tcp.py").write_text(_NAMES)
        core = root / "distributed/comm/core.py"
        core.write_text(core.read_text().replace('f"tcp://{addr}"', 'f"ib://{addr}"'))
        for path in (*root.rglob("tests/*.py"), root / "distributed/utils_test.py"):
            text = path.read_text()
            for before, after in _REPLACED.items():
                text = text.replace(before, after)
            path.write_text(text)


def results(root: Path, scheme: str, tests: list[str], seconds: float) -> dict[str, str]:
    """
    Run tests of a copy.

    @return: What became of each.
    """
    command = [sys.executable, "-m", "pytest", "-v", "--color=no", "-o", "addopts=-p no:asyncio"]
    command += ["--timeout", str(TEST_SECONDS), *(f"distributed/{each}" for each in tests)]
    variables = {"DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": scheme, "TWISTED_IB_RUN_DIR": str(root / "run")}
    with (root / "log").open("w") as log:
        environment = {**os.environ, **variables}
        try:
            subprocess.run(command, cwd=root, env=environment, stdout=log, stderr=log, timeout=seconds)
        except subprocess.TimeoutExpired:
            print(f"{scheme}: the time was up")
    return parsed((root / "log").read_text())


def parsed(log: str) -> dict[str, str]:
    """
    @return: What became of each test, from pytest's log.
    """
    return dict(_RESULT.findall(log))


def worse(before: dict[str, str], after: dict[str, str]) -> tuple[list[str], list[str]]:
    """
    @return: What has passed and fails now: what is not known, and what is.
    """
    lost = [each for each in after if before.get(each) == "PASSED" and after[each] in ("FAILED", "ERROR")]
    known = [each for each in lost if each.rpartition("::")[2].partition("[")[0] in KNOWN]
    return [each for each in lost if each not in known], known


def main() -> int:
    """
    Compare.

    @return: The process's exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.suites.dask")
    parser.add_argument("repository")
    parser.add_argument("--tests", default=TESTS)
    parser.add_argument("--seconds", type=float, default=600, help="of each of both runs")
    options = parser.parse_args()
    for needed in ("distributed", "pytest", "pytest_timeout", "pytest_rerunfailures"):
        if find_spec(needed) is None:
            print(f"{needed} is not installed")
            return SKIPPED
    found = {}
    for scheme in ("tcp", "ib"):
        with tempfile.TemporaryDirectory(prefix="dask-") as root:
            copied(options.repository, scheme, Path(root))
            found[scheme] = results(Path(root), scheme, options.tests.split(","), options.seconds)
        passed = list(found[scheme].values()).count("PASSED")
        print(f"{scheme}: {passed} of {len(found[scheme])} passed", flush=True)
    wrong, known = worse(found["tcp"], found["ib"])
    for each in known:
        print(f"known: {each}: {KNOWN[each.rpartition('::')[2].partition('[')[0]]}")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
