"""
C{ib-fabric}: an InfiniBand subnet in one process, with a subnet manager or for OpenSM, for devices of other
processes, and for infiniband-diags.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred

from twisted_ib.errors import HCAError, PartitionError, TopologyError
from twisted_ib.hca.host.rundirectory import allowedUids
from twisted_ib.limits import PARTITION_FILE_BYTES, TOPOLOGY_BYTES
from twisted_ib.settings import DEFAULT_SUBNET, SUBNET
from twisted_ib.subnet.hosting.hosted import HostedSubnet
from twisted_ib.subnet.hosting.place import (
    Place,
    hostOf,
    isName,
    runDirectories,
    subnetName,
)
from twisted_ib.subnet.hosting.server import SubnetServer
from twisted_ib.subnet.hosting.umadsockets import UmadSockets
from twisted_ib.subnet.network.topology import Topology, parse
from twisted_ib.subnet.sm import partitions
from twisted_ib.subnet.sm.manager import Options
from twisted_ib.tools.program import ArgumentParser, ProgramError, complain, runProgram, write

PROGRAM = "ib-fabric"

#: ibsim's own, when C{IBSIM_SOCKNAME} is not set.
SOCKET_NAME = "sim"
#: unix(7), sun_path: with the longest of the names that follow, C{:ctl} and a process number.
SOCKET_NAME_BYTES = 80
#: Two CAs at one switch.
TOPOLOGY = """\
Switch 36 "Switch1"
[1] "Hca1"[1]
[2] "Hca2"[1]

Ca 2 "Hca1"
[1] "Switch1"[1]

Ca 2 "Hca2"
[1] "Switch1"[2]
"""


def read(name: str | None) -> Topology:
    """
    @param name: a file, or L{None} for L{TOPOLOGY}.
    @return: its topology.
    @raise TopologyError: it is not valid.
    @raise OSError: it cannot be read.
    """
    if name is None:
        return parse(TOPOLOGY, PROGRAM)
    return parse(_content(name, TOPOLOGY_BYTES, TopologyError), name)


def readPartitions(name: str | None) -> tuple[partitions.Partition, ...]:
    """
    @param name: a file, or L{None} for the default partition alone.
    @return: its partitions.
    @raise PartitionError: it is not valid.
    @raise OSError: it cannot be read.
    """
    if name is None:
        return partitions.DEFAULT
    return partitions.parse(_content(name, PARTITION_FILE_BYTES, PartitionError), name)


def _content(name: str, most: int, error: type[HCAError]) -> str:
    with open(name, "rb") as file:
        octets = file.read(most + 1)
    if len(octets) > most:
        raise error(f"{name}:1: a file of more than {most} octets")
    return octets.decode("utf-8", "replace")


def users() -> frozenset[int]:
    """
    @return: the users that may attach.
    @raise HCAError: C{TWISTED_IB_ALLOW_UIDS} is not valid.
    """
    return allowedUids(os.environ) | {0, os.geteuid()}


def take(name: str) -> Place:
    """
    @param name: of a subnet of the run directory.
    @return: its place.
    @raise ProgramError: another process hosts it.
    @raise HCAError: no run directory can be used.
    @raise OSError: the lock cannot be used.
    """
    with runDirectories(os.environ) as directories:
        host = next(filter(None, (hostOf(each, name) for each in directories)), 0)
        place = None if host else Place.take(directories[0], name)
    if place is None:
        who = f"process {host}" if host else "another process"
        raise ProgramError(
            f"{who} hosts the subnet {name!r}: end it, or host another one with --name, which processes"
            f" choose by {SUBNET}"
        )
    return place


class Host:
    """
    A subnet, attached to a reactor.
    """

    def __init__(self, reactor: Any, topology: Topology, manager: Options | None, options: Namespace) -> None:
        """
        @param manager: of its own subnet manager, if it has one.
        @raise ProgramError: another process hosts the subnet, or serves the programs of this name.
        @raise HCAError: no run directory can be used.
        @raise OSError: no socket can be made.
        """
        self._file = options.topology
        self._lost: dict[str, int] = {}
        self.subnet = HostedSubnet(topology, self._count, reactor)
        allows = users().__contains__
        place = take(options.name or subnetName(os.environ))
        self.server = SubnetServer(self.subnet, place, reactor, self._count, allows, lambda isAttended: None)
        try:
            self.sockets = UmadSockets(
                *(self.subnet, options.ibsim, reactor.addReader, reactor.removeReader, self._count), allows
            )
        except OSError as error:
            self.server.close()
            raise ProgramError(f"--ibsim {options.ibsim}: {error.strerror}") from None
        self.subnet.consumer = self.sockets.server
        if manager is not None:
            self.subnet.manage(manager)
        reactor.addSystemEventTrigger("during", "shutdown", self.close)

    def _count(self, name: str) -> None:
        self._lost[name] = self._lost.get(name, 0) + 1

    def reload(self) -> None:
        """
        Read the topology again; one that is not valid changes nothing.
        """
        try:
            self.subnet.load(read(self._file))
        except (HCAError, OSError) as error:
            complain(PROGRAM, error)
        else:
            write(self.subnet.summary())

    def close(self) -> None:
        """
        End, and tell what was lost.
        """
        self.sockets.close()
        self.subnet.close()
        self.server.close()
        for name, number in sorted(self._lost.items()):
            write(f"{name} {number}")


def serve(reactor: Any, topology: Topology, manager: Options | None, options: Namespace) -> Deferred[int]:
    """
    @return: fires when it cannot go on.
    """
    host = Host(reactor, topology, manager, options)
    signal.signal(signal.SIGUSR1, lambda *_: reactor.callFromThread(host.reload))
    write(host.subnet.summary())
    return Deferred()


def _socketName(text: str) -> str:
    if not 0 < len(text.encode("utf-8", "replace")) <= SOCKET_NAME_BYTES or "\0" in text:
        raise ValueError
    return text


_socketName.__name__ = "name of a socket"


def _name(text: str) -> str:
    if not isName(text):
        raise ValueError
    return text


_name.__name__ = "name of a subnet"


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Host and manage an InfiniBand subnet, for devices of processes (ib0, ib1 ...), and for"
        " OpenSM and infiniband-diags, which attach by libumad2sim.",
        epilog="SIGUSR1 makes it read the file again: links come and go, and switches report it.",
    )
    parser.add_argument(
        "--topology",
        metavar="FILE",
        help="nodes and links, in the language of ibnetdiscover and ibsim (default: two CAs at a switch of 36"
        " ports)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        type=_name,
        help=f"the {SUBNET} of processes whose devices are in this subnet (default: this process's, or"
        f" {DEFAULT_SUBNET!r})",
    )
    parser.add_argument(
        "--ibsim",
        metavar="NAME",
        type=_socketName,
        default=SOCKET_NAME,
        help="the IBSIM_SOCKNAME of programs that attach (default: %(default)s)",
    )
    parser.add_argument(
        "--partitions",
        metavar="FILE",
        help="partitions, in the language of OpenSM's partitions.conf (default: one, all are full members)",
    )
    parser.add_argument(
        "--no-sm",
        dest="sm",
        action="store_false",
        help="leave the subnet to OpenSM: without this it has a subnet manager until OpenSM attaches",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-fabric}.
    """
    options = commandLine().parse_args(arguments)
    try:
        topology = read(options.topology)
        manager = Options(partitions=readPartitions(options.partitions)) if options.sm else None
        users()
    except (HCAError, OSError) as error:
        complain(PROGRAM, error)
        return 1
    return runProgram(PROGRAM, lambda reactor: serve(reactor, topology, manager, options))


if __name__ == "__main__":
    sys.exit(main())
