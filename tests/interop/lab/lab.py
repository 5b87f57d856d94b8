"""
The lab: a network and one guest at a time, for as long as this program runs.
"""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from subprocess import CalledProcessError

from tests.interop.lab.images import Images, cacheDirectory
from tests.interop.lab.machine import Machine
from tests.interop.lab.network import Network

#: Environment variable that lets these tests run.
SWITCH = "TWISTED_IB_INTEROP"
#: Another, with which a second process of ours shares the address of the first.
NEIGHBOUR = "TWISTED_IB_INTEROP_NEIGHBOUR"
#: Devices of the guest, and where rxe counts.
RXE, SIW = "rxe0", "siw0"
COUNTERS = f"/sys/class/infiniband/{RXE}/ports/1/hw_counters"
#: After how many guests in succession that do not come up no more are booted.
ATTEMPTS = 2
#: Loads what a guest's devices need.
MODPROBE = "modprobe -a rdma_rxe rdma_ucm ib_umad"
#: A new device: no object and no count of an earlier one is left.  The card has one at a time: rdma_cm has no
#: choice.
RENEW = """
    for each in $(rdma link show | sed -nE 's,^link ([a-z0-9]+)/.*,\\1,p'); do rdma link del $each; done
    rdma link add {name} type {kind} netdev eth0
"""


def unfit() -> str | None:
    """
    @return: why there can be no lab on this machine; L{None} if there can be one.
    """
    if platform.machine() != "x86_64":
        return f"guests are of Debian's amd64, not {platform.machine()}"
    if os.geteuid():
        return "only root can make the network that real kernels are peers on"
    for program in ("ip", "setpriv"):
        if shutil.which(program) is None:
            return f"there is no {program} here"
    try:
        network = Network()
        try:
            network.port(1)
        finally:
            network.close()
    except CalledProcessError as error:
        return f"no network for guests can be made here: {error}"
    return None


def lacking() -> str | None:
    """
    @return: why there is no lab; L{None} if there can be one.
    """
    if os.environ.get(SWITCH) != "1":
        return f"peers are real kernels only with {SWITCH}=1 (see tests/interop/__init__.py)"
    reason = unfit()
    if reason is not None:
        return reason
    if Images(cacheDirectory()).release is None:
        return f"no guest is built in {cacheDirectory()}: python -m tests.interop.build"
    return None


def hasNeighbour() -> bool:
    """
    @return: whether a second process is to share our address.
    """
    return os.environ.get(NEIGHBOUR) == "1"


class Peer(Enum):
    """
    What a guest's card is made to be: a device's name and its type.
    """

    RXE = (RXE, "rxe")
    SIW = (SIW, "siw")


class Lab:
    """
    A network and its guest.

    @ivar directory: for files of this run.
    @ivar mtu: the largest frames at present.
    """

    def __init__(self, network: Network, boot: Callable[[Path], Machine]) -> None:
        """
        No guest is booted yet.

        @param boot: boots a guest on the network, whose files come to lie in the folder that it is given.
        """
        self.directory = Path(tempfile.mkdtemp(prefix="ib-"))
        self.mtu = 0
        self.network = network
        self._boot = boot
        self._boots = 0
        self._unbooted = 0
        self._guest: Machine | None = None

    @property
    def guest(self) -> Machine:
        """
        The guest of the present test.
        """
        assert self._guest is not None, "no guest is booted"
        return self._guest

    @property
    def silence(self) -> str | None:
        """
        Why the guest answers nothing any more, or could not be booted; L{None} while it answers.
        """
        if self._guest is None:
            return "no guest has come up"
        reason = self._guest.silence
        return reason and f"{reason}; its kernel's last words: {self._guest.words}"

    def awake(self) -> Machine:
        """
        @return: a guest that answers: the present one, or a new one where that has fallen silent.
        @raise RuntimeError: none comes up, and so it was with L{ATTEMPTS} before.
        """
        if self._guest is not None:
            if self._guest.silence is None:
                return self._guest
            self._guest.close()
            self._guest = None
        if self._unbooted == ATTEMPTS:
            raise RuntimeError(f"{ATTEMPTS} guests in succession have not come up")
        self.mtu = 0
        self._boots += 1
        directory = self.directory / str(self._boots)
        directory.mkdir()
        self._unbooted += 1
        guest = self._boot(directory)
        self._guest = guest
        guest.must(MODPROBE)
        self._unbooted = 0
        return guest

    def renew(self, mtu: int, peer: Peer = Peer.RXE) -> None:
        """
        Have a new device.

        @param mtu: the largest Ethernet frames of both sides.
        """
        if mtu != self.mtu:
            self.network.limit(mtu)
            self.guest.must(f"ip link set eth0 mtu {mtu}")
            self.mtu = mtu
        name, kind = peer.value
        self.guest.must(RENEW.format(name=name, kind=kind))

    def counters(self) -> dict[str, int]:
        """
        @return: what rxe has counted.
        """
        lines = self.guest.must(f"cd {COUNTERS} && grep . *").splitlines()
        return {name: int(value) for name, _, value in (line.partition(":") for line in lines)}

    def close(self) -> None:
        """
        Switch everything off.
        """
        if self._guest is not None:
            self._guest.close()
        self.network.close()
        shutil.rmtree(self.directory)


_labs: list[Lab] = []


def theLab() -> Lab:
    """
    @return: the lab of this process, which it has until it ends.
    """
    if not _labs:
        network = Network()
        lab = Lab(network, lambda directory: Machine(Images(cacheDirectory()), network, directory, 1))
        atexit.register(lab.close)
        _labs.append(lab)
    return _labs[0]
