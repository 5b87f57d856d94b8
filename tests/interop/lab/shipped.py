"""
This package in a guest: copied over its network, as imports from a shared folder take minutes there.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
from importlib.util import find_spec
from pathlib import Path

from twisted.trial.unittest import SkipTest

from tests.interop.lab.machine import Machine
from tests.interop.lab.network import HOST4, Network
from tests.support.waiting import HANG_SECONDS

#: Where it is there.
SITE = "/tmp/site"
#: What the package needs, and is not in the guest's image; without what is compiled, as the guest's Python
#: may be another: only C{ibverbs} is for any, and what C{hdrh} needs serves that of the same version.
NEEDED = "attr attrs zope twisted constantly hyperlink incremental automat idna hamcrest hdrh".split()
_MODULES = ("typing_extensions", "pyhdrh")
#: Tests of Twisted's, what they need, and those of this project that are of them.
_TWISTEDS = ("twisted/test/", "twisted/internet/test/")
_SDP = tuple(f"sdp/{name}.py" for name in ("__init__", "pair", "test_contract"))
_TESTS = ("__init__.py", "support", "internet", "contracts", "rdma", *_SDP)
_ROOT = Path(__file__).parents[2]
#: Knows the words of endpoint strings.
_PLUGIN = "twisted/plugins/twisted_ib_plugin.py"
_PORT = 8099
_SERVE = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("listens", flush=True)
with listener.accept()[0] as taken, open(sys.argv[3], "rb") as file:
    taken.sendfile(file)
"""
_TAKE = """
import socket, sys, tarfile
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as given, given.makefile("rb") as file:
    tarfile.open(fileobj=file, mode="r|").extractall(sys.argv[3])
"""
#: How long it may take, in seconds.
SECONDS = 5 * HANG_SECONDS


def _origin(name: str) -> Path:
    found = find_spec(name)
    if found is None or (found.origin is None and not found.submodule_search_locations):
        raise SkipTest(f"there is no {name}")
    if found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations)))
    return Path(str(found.origin))


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = entry.name
    isTest = ("/test/" in name or "/tests/" in name) and not name.startswith(_TWISTEDS)
    isCompiled = name.endswith(".so") and not name.startswith("ibverbs/")
    return None if isTest or isCompiled else entry


def pack(target: Path, *others: Path) -> None:
    """
    Write an archive of this package and of what it needs.

    @param others: files that it has, too.
    """
    if find_spec("ibverbs") is None:
        raise SkipTest("the extra [hardware] is not installed")
    with tarfile.open(target, "w") as archive:
        for name in ("twisted_ib", "ibverbs", *NEEDED):
            archive.add(_origin(name), name, filter=_wanted)
        for each in (*map(_origin, _MODULES), *others):
            archive.add(each, each.name)
        for name in _TESTS:
            archive.add(_ROOT / name, f"tests/{name}")
        archive.add(_ROOT.parent / _PLUGIN, _PLUGIN)


def ship(network: Network, guest: Machine, directory: Path, *others: Path) -> None:
    """
    Bring the package into a guest.
    """
    file = directory / "site.tar"
    pack(file, *others)
    carry(network, guest, file)


def carry(network: Network, guest: Machine, file: Path) -> None:
    """
    Bring what an archive has into a guest, and remove the archive.
    """
    serving = network.within([sys.executable, "-c", _SERVE, HOST4, str(_PORT), str(file)])
    with subprocess.Popen(serving, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        began = time.monotonic()
        guest.must(f"python3 -c '{_TAKE}' {HOST4} {_PORT} {SITE}", SECONDS)
        assert time.monotonic() - began < SECONDS
    file.unlink()
