"""
Programs of Python with bindings of their own to C: mpi4py, pyverbs, NIXL.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import evolve

from tests.cprograms.lab import Here, Lab, LabError
from tests.cprograms.libraries.mpi import IMPLEMENTATIONS
from tests.cprograms.programs import Program

#: Debian's, whose modules it takes, not those of the tests.
_PYTHON = ("/usr/bin/python3", "-I")

#: What C{ring.c} does, by objects that are pickled and by buffers.
_RING = """
from array import array
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, size, wrong = world.rank, world.size, 0
after, before = (rank + 1) % size, (rank - 1) % size
for length in (1, 1000, 65536):
    found = world.sendrecv([rank] * length, dest=after, source=before)
    wrong += found != [before] * length
    into = array('i', bytes(4 * length))
    world.Sendrecv(array('i', [rank] * length), dest=after, recvbuf=into, source=before)
    wrong += into.tolist() != [before] * length
wrong = world.allreduce(wrong)
if not rank:
    print(f"ring of {size}: {wrong} wrong", flush=True)
"""

#: Two queue pairs of a process: what one sends the other has.
_PYVERBS = """
from pyverbs.device import get_device_list, Context
from pyverbs.pd import PD
from pyverbs.mr import MR
from pyverbs.cq import CQ
from pyverbs.qp import QP, QPCap, QPInitAttr, QPAttr
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.wr import SGE, SendWR, RecvWR
from pyverbs import enums
context = Context(name=get_device_list()[0].name.decode())
pd = PD(context)
access = enums.IBV_ACCESS_LOCAL_WRITE
regions = [MR(pd, 4096, access) for _ in range(2)]
cqs = [CQ(context, 10) for _ in range(2)]
cap = QPCap(max_recv_wr=4, max_send_wr=4)
pairs = [QP(pd, QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap), QPAttr(port_num=1)) for cq in cqs]
for own, other in (pairs, pairs[::-1]):
    route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0)
    handle = AHAttr(gr=route, is_global=1, port_num=1)
    attributes = QPAttr(port_num=1)
    attributes.dest_qp_num, attributes.path_mtu = other.qp_num, enums.IBV_MTU_1024
    attributes.min_rnr_timer = 12
    attributes.ah_attr, attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = handle, 15, 7, 7
    own.to_rts(attributes)
text = bytes(range(256)) * 16
regions[0].write(text, len(text))
sges = [SGE(each.buf, len(text), each.lkey) for each in regions]
pairs[1].post_recv(RecvWR(num_sge=1, sg=[sges[1]]))
pairs[0].post_send(SendWR(num_sge=1, sg=[sges[0]]))
for cq in cqs:
    while not (found := cq.poll()[1]):
        pass
    assert found[0].status == enums.IBV_WC_SUCCESS, found[0]
print("sent", regions[1].read(len(text), 0) == text)
"""

#: Two agents, by files of the current directory: one reads the other's memory and writes into it.
_NIXL = """
import os, struct, sys, time
import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config
role, size = sys.argv[1], 65536
def put(name, octets):
    with open(name + ".new", "wb") as file:
        file.write(octets)
    os.rename(name + ".new", name)
def get(name):
    while not os.path.exists(name):
        time.sleep(0.02)
    with open(name, "rb") as file:
        return file.read()
agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
octets, pattern = numpy.zeros(size, numpy.uint8), numpy.arange(size) % 251
if role == "target":
    octets[:] = pattern
region = agent.register_memory([(octets.ctypes.data, size, 0, "")], "DRAM")
if role == "target":
    put("address", struct.pack("Q", octets.ctypes.data))
    put("metadata", agent.get_agent_metadata())
    print("target waits", flush=True)
    told = 0
    while told < 2:
        told += sum(map(len, agent.get_new_notifs().values()))
        time.sleep(0.001)
    isRight = (octets == 7).all()
    put("end", b"x")
else:
    name = agent.add_remote_agent(get("metadata"))
    there, = struct.unpack("Q", get("address"))
    ends = [agent.get_xfer_descs([(each, size, 0)], "DRAM") for each in (octets.ctypes.data, there)]
    def go(operation):
        handle = agent.initialize_xfer(operation, *ends, name, operation.encode())
        state = agent.transfer(handle)
        while state not in ("DONE", "ERR"):
            state = agent.check_xfer_state(handle)
        assert state == "DONE", state
        agent.release_xfer_handle(handle)
    go("READ")
    isRight = (octets == pattern).all()
    octets[:] = 7
    go("WRITE")
    get("end")
print(role, "is right" if isRight else "is wrong", flush=True)
agent.deregister_memory(region)
del agent
"""


def runMPI4Py(device: str, ranks: int = 4) -> None:
    """
    A ring of ranks.

    @raise LabError: some data were wrong, or it has not ended well.
    """
    first = IMPLEMENTATIONS[0]
    first.check(first.started((*_PYTHON, "-c", _RING), ranks, device), ranks, device)


def runPyverbs(side: Here) -> None:
    """
    Two queue pairs of a process.

    @raise LabError: the data were wrong, or it has not ended well.
    """
    _alone(side, (*_PYTHON, "-c", _PYVERBS), "sent True\n")


def _alone(side: Here, command: tuple[str, ...], wanted: str) -> None:
    with TemporaryDirectory() as directory:
        running = side.start(command, directory)
        try:
            status, said = running.ended(), running.said()
        finally:
            running.stop()
    if status or said != wanted:
        raise LabError(f"the status is {status}, {wanted!r} expected: {said}")


#: Of PyPI, too big for the environment of the tests: with PyTorch's and CUDA's names, but without them.
NIXL = "nixl-cu12"


def environmentOf(package: str) -> Path:
    """
    @return: where the package of PyPI is installed.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "twisted_ib", "programs", package)


def installedFromPyPI(package: str) -> str:
    """
    @return: its version; C{""} without it.
    """
    python = environmentOf(package) / "bin" / "python"
    if not python.exists():
        return ""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run((python, "-c", code), capture_output=True, text=True, check=False).stdout.strip()


def installFromPyPI(package: str, *others: str) -> None:
    """
    Install it into an environment of its own.

    @param others: what it is used with.
    """
    folder = environmentOf(package)
    subprocess.run((sys.executable, "-m", "venv", folder), check=True)
    subprocess.run((folder / "bin" / "pip", "install", "-q", package, *others), check=True)


def runNIXL(*sides: Here) -> None:
    """
    Two agents: 64 KiB read and written, with a notification each.

    @param sides: where one's memory is, and where the other runs.
    @raise LabError: some data were wrong, or one has not ended well.
    """
    python = environmentOf(NIXL) / "bin" / "python"
    files = (("agent.py", _NIXL.replace("{", "{{").replace("}", "}}")),)
    command = f"{python} agent.py"
    program = Program(
        *("nixl", f"{command} target", f"{command} initiator", NIXL),
        said="initiator is right",
        ready="target waits",
        files=files,
    )
    told = [evolve(each, prefix=(*each.prefix, "env", "UCX_TLS=rc_verbs,ud_verbs")) for each in sides]
    Lab(*told).run(program)


__all__ = [
    "NIXL",
    "environmentOf",
    "installFromPyPI",
    "installedFromPyPI",
    "runMPI4Py",
    "runNIXL",
    "runPyverbs",
]
