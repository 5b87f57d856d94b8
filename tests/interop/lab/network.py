"""
A network namespace with a bridge, on which guests have ports: what is between this program's processes and
real kernels.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.interop.lab.packages import output, run

BRIDGE = "br0"
#: The networks; the address of the host's side ends in 1, those of guests in what follows.
IPV4, IPV6 = "10.77.0.", "fd77::"
HOST4, HOST6 = f"{IPV4}1", f"{IPV6}1"
HOST_MAC = "52:54:00:77:00:01"
#: The largest Ethernet frames that fit: 4096 octets of payload need 4200.
LARGEST = 9000

_PREFIX = "twisted-ib-interop-"


class Network:
    """
    The namespace, named for the process that has it.
    """

    def __init__(self) -> None:
        """
        Make it, and remove those of processes that are no more.
        """
        self._addresses: set[str] = set()
        self._ports: set[str] = set()
        self.name = f"{_PREFIX}{os.getpid()}"
        for name in re.findall(rf"(?m)^{_PREFIX}\d+", output("ip", "netns", "list")):
            if not Path(f"/proc/{name.removeprefix(_PREFIX)}").exists():
                run("ip", "netns", "del", name)
        run("ip", "netns", "add", self.name)
        try:
            self._ip("link", "set", "lo", "up")
            self._ip("link", "add", BRIDGE, "address", HOST_MAC, "type", "bridge", "mcast_snooping", "0")
            self._ip("link", "set", BRIDGE, "type", "bridge", "forward_delay", "0")
            self._ip("addr", "add", f"{HOST4}/24", "dev", BRIDGE)
            self._ip("addr", "add", f"{HOST6}/64", "dev", BRIDGE, "nodad")
            self._ip("link", "set", BRIDGE, "up")
        except subprocess.CalledProcessError:
            self.close()
            raise

    def _ip(self, *command: str) -> None:
        """
        Run C{ip} in it.
        """
        run("ip", "-n", self.name, *command)

    def second(self, ipv6: bool) -> str:
        """
        @return: another address of the host's side, larger than those of guests.
        """
        address = f"{IPV6}9" if ipv6 else f"{IPV4}9"
        if address not in self._addresses:
            self._addresses.add(address)
            self._ip("addr", "add", f"{address}/{64 if ipv6 else 24}", "dev", BRIDGE, *["nodad"] * ipv6)
        return address

    def port(self, number: int) -> str:
        """
        @return: the name of a port for a guest, which may have been that of an earlier one.
        """
        name = f"tap{number}"
        if name in self._ports:
            return name
        self._ports.add(name)
        self._ip("tuntap", "add", name, "mode", "tap")
        self._ip("link", "set", name, "mtu", str(LARGEST), "master", BRIDGE, "up")
        return name

    def limit(self, octets: int) -> None:
        """
        Say what the largest frames are that the host's side sends.
        """
        self._ip("link", "set", BRIDGE, "mtu", str(octets))

    def within(self, command: list[str]) -> list[str]:
        """
        @return: the command line that runs another in it.
        """
        return ["ip", "netns", "exec", self.name, *command]

    def close(self) -> None:
        """
        Remove it.
        """
        with suppress(subprocess.CalledProcessError):
            run("ip", "netns", "del", self.name)
