"""
C{ib-net}: the nodes and links of an InfiniBand subnet, in C{ibnetdiscover}'s text, which C{ib-fabric} and
ibsim read.

It asks by directed-route SMPs, as C{ibnetdiscover} does, and not by records of subnet administration (those
C{ib-sa} shows): SMPs are answered whoever manages the subnet, and if nobody does, and OpenSM behind
libumad2sim cuts tables.  They need no privileges, but to be the user whose process hosts the subnet; that of
a program without another host is its own.

Source: rdma-core 65 C{infiniband-diags/ibnetdiscover.c}, C{libibnetdisc/ibnetdisc.c}.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.python.failure import Failure

from twisted_ib import limits
from twisted_ib.errors import WireError
from twisted_ib.hca.base.events import EventType
from twisted_ib.hca.base.port import PortState
from twisted_ib.hca.base.traits import NodeType, Peers
from twisted_ib.hca.device.registry import traitsOf
from twisted_ib.hca.mad.attributes.port import Capability
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.mad.classes import SUBNET_DIRECTED
from twisted_ib.hca.wire.mad.mad import DIRECTION, SM_VERSION
from twisted_ib.internet.channel import channelFor
from twisted_ib.rdma.administration import DEVICE
from twisted_ib.subnet.network.smi import PERMISSIVE_LID
from twisted_ib.subnet.sm.model import Node, Port
from twisted_ib.subnet.sm.requests import Request
from twisted_ib.subnet.sm.sweep import Discovery
from twisted_ib.tools.program import (
    ArgumentParser,
    ProgramError,
    addAsking,
    complain,
    runProgram,
    write,
)

PROGRAM = "ib-net"

#: The words for a type of node: in front of its ports, in a list, in the name of its GUID; and the letter
#: with which its name begins.
_KINDS = {
    NodeType.SWITCH: ("Switch", "Switch", "switchguid", "S"),
    NodeType.CA: ("Ca", "Ca", "caguid", "H"),
    NodeType.ROUTER: ("Rt", "Router", "rtguid", "R"),
}
#: The order of a list.
_LISTED = (NodeType.CA, NodeType.SWITCH, NodeType.ROUTER)
#: IBTA vol. 1 14.2.5.6: LinkWidthActive, LinkSpeedActive, LinkSpeedExtActive.
_WIDTHS = {1: "1x", 2: "4x", 4: "8x", 8: "12x", 16: "2x"}
_SPEEDS = {1: "SDR", 2: "DDR", 4: "QDR"}
_EXTENDED_SPEEDS = {1: "FDR", 2: "EDR", 4: "HDR", 8: "NDR"}
_UNKNOWN_WIDTH, _UNKNOWN_SPEED = "??", "???"


# -- text


def _name(node: Node) -> str:
    return f'"{_KINDS[node.kind][3]}-{node.guid:016x}"'


def _description(node: Node) -> str:
    # As infiniband-diags' clean_nodedesc(): what a terminal would obey, or no file may have, is a space.
    octets = node.description.description.split(b"\0", 1)[0]
    return "".join(chr(octet) if 0x20 <= octet < 0x7F else " " for octet in octets)


def _link(port: Port) -> str:
    # Width and speed of its link.
    info = port.info
    extended = info.linkSpeedExtActive if port.end.info.capMask & Capability.EXTENDED_SPEEDS else 0
    speeds, speed = (_EXTENDED_SPEEDS, extended) if extended else (_SPEEDS, info.linkSpeedActive)
    return _WIDTHS.get(info.linkWidthActive, _UNKNOWN_WIDTH) + speeds.get(speed, _UNKNOWN_SPEED)


def _ofSwitch(port: Port, peer: Port) -> str:
    guid = "" if peer.node.switch is not None else f"({peer.guid:x}) "
    far = f"{_name(peer.node)}[{peer.number}]{guid}"
    return f'[{port.number}]\t{far}\t\t# "{_description(peer.node)}" lid {peer.lid} {_link(port)}'


def _ofAdapter(port: Port, peer: Port) -> str:
    guid = "" if peer.node.switch is not None else f" ({peer.guid:x}) "
    far = f"{_name(peer.node)}[{peer.number}]{guid}"
    own = f"lid {port.lid} lmc {port.info.lmc}"
    return (
        f"[{port.number}]({port.guid:x}) \t{far}"
        f'\t\t# {own} "{_description(peer.node)}" lid {peer.lid} {_link(port)}'
    )


def _lines(node: Node) -> Iterator[str]:
    info = node.info
    word, _, guid, _ = _KINDS[node.kind]
    yield from ("", f"vendid={info.vendorId:#x}", f"devid={info.devId:#x}")
    if info.systemGuid:
        yield f"sysimgguid={info.systemGuid:#x}"
    switch = node.switch
    yield f"{guid}={node.guid:#x}" + ("" if switch is None else f"({info.portGuid:x})")
    head = f'{word}\t{info.numPorts} {_name(node)}\t\t# "{_description(node)}"'
    if switch is not None:
        own = node.ports[0].info
        head += f" {'enhanced' if switch.info.enhancedPort0 else 'base'} port 0 lid {own.lid} lmc {own.lmc}"
    yield head
    for _, port in sorted(node.ports.items()):
        if port.peer is not None:
            yield (_ofAdapter if switch is None else _ofSwitch)(port, port.peer)


def _ofKind(found: Discovery, kind: NodeType) -> list[Node]:
    # ibnetdiscover has those first that it found last.
    return [node for node in reversed(found.nodes.values()) if node.kind is kind]


def topology(found: Discovery, own: Port, date: str) -> str:
    """
    @param own: the port that it was found from.
    @param date: when, for people.
    @return: a topology file.
    """
    lines = ["#", f"# Topology file: generated on {date}", "#"]
    lines.append(f"# Initiated from node {own.node.guid:016x} port {own.guid:016x}")
    for kind in _KINDS:
        for node in _ofKind(found, kind):
            lines += _lines(node)
    return "\n".join(lines)


def listed(found: Discovery, kinds: Iterable[NodeType]) -> str:
    """
    @return: a line for each node of some types.
    """
    return "\n".join(
        f"{_KINDS[kind][1]}\t : 0x{node.guid:016x} ports {node.info.numPorts}"
        f' devid {node.info.devId:#x} vendid {node.info.vendorId:#x} "{_description(node)}"'
        for kind in _LISTED
        if kind in kinds
        for node in _ofKind(found, kind)
    )


# -- discovery


class AgentRequests:
    """
    Requests of a discovery that an agent of a device sends, at most L{limits.SM_WINDOW} at a time: see
    L{IRequests<twisted_ib.subnet.sm.requests.IRequests>}.

    @ivar done: fires when all are answered or given up.
    """

    def __init__(self, device: Any, timeout: float) -> None:
        self._agent = device.mads.register(SUBNET_DIRECTED, SM_VERSION, (), lambda request: None)
        self._timeout = timeout
        self._sources: deque[Iterator[Request]] = deque()
        self._waiting = 0
        self.done: Deferred[None] = Deferred()

    def add(self, requests: Iterable[Request]) -> None:
        self._sources.append(iter(requests))
        self._fill()

    def _fill(self) -> None:
        while self._sources and self._waiting < limits.SM_WINDOW:
            request = next(self._sources[0], None)
            if request is None:
                self._sources.popleft()
                continue
            self._waiting += 1
            self._agent.send(
                *(AddressVector(0, lid=PERMISSIVE_LID, isGlobal=False), request.mad),
                *(partial(self._answered, request), self._timeout, limits.SM_RETRIES),
            )

    def _answered(self, request: Request, received: Any) -> None:
        self._waiting -= 1
        request.answered(None if received is None else _dataOf(request, received))
        self._fill()
        if not self._waiting:
            self._agent.close()
            self.done.callback(None)


def _dataOf(request: Request, received: Any) -> bytes | None:
    try:
        mad = received.mad
    except WireError:
        return None
    isTaken = request.isAnswer(mad) and not mad.status & ~DIRECTION
    return mad.data if isTaken else None


class _User:
    """
    Keeps the device served.
    """

    def connectionLost(self, reason: Failure) -> None:
        pass  # The reactor stops, and the command with it.


async def _active(reactor: Any, device: Any, seconds: float) -> bool:
    """
    Wait for a subnet manager, which gives all ports their LIDs.

    @return: whether the port is Active.
    """
    if device.port.state is PortState.ACTIVE:
        return True
    active: Deferred[None] = Deferred()

    def changed(kind: EventType) -> None:
        if kind is EventType.PORT_ACTIVE:
            active.callback(None)

    device.portWatchers.append(changed)
    active.addTimeout(seconds, reactor)
    try:
        await active
    except TimeoutError:
        return False
    finally:
        device.portWatchers.remove(changed)
    return True


async def discover(reactor: Any, name: str, timeout: float, count: Callable[[str], object]) -> Discovery:
    """
    @param name: of a device of the subnet.
    @param timeout: seconds of each attempt.
    @param count: called with the name of each answer that is not taken.
    @return: what was found.
    @raise ProgramError: the device is not at a port of a subnet.
    @raise HCAError: it cannot be opened.
    """
    if traitsOf(name).peers is not Peers.SUBNET:
        raise ProgramError(f"{name} is at no port of an InfiniBand subnet: say --device {DEVICE}")
    channel, user = channelFor(reactor, name), _User()
    channel.acquire(user)
    try:
        if not await _active(reactor, channel.device, timeout * (1 + limits.SM_RETRIES)):
            complain(PROGRAM, ProgramError(f"{name} has no subnet manager, so that LIDs may be missing"))
        requests = AgentRequests(channel.device, timeout)
        found = Discovery(requests, count, manages=False)
        found.begin()
        await requests.done
    finally:
        channel.release(user)
    found.finish()
    return found


async def run(reactor: Any, options: Namespace) -> int:
    """
    @return: the exit status.
    """
    lost: Counter[str] = Counter()
    found = await discover(reactor, options.device, options.timeout, lambda name: lost.update((name,)))
    if found.own is None:
        raise ProgramError(
            f"the subnet of {options.device} answers no SMPs, as its host is another user's process or its"
            " ports have an M_Key: see ib-sa nodes and ib-sa links"
        )
    if options.kinds:
        text = listed(found, options.kinds)
        if text:
            write(text)
    else:
        write(topology(found, found.own, time.ctime()))
    if found.isComplete and not lost:
        return 0
    reasons = ", ".join(sorted(lost)) or "not all SMPs were answered"
    complain(PROGRAM, ProgramError(f"the subnet may have more nodes and links: {reasons}"))
    return 1


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Show the nodes and links of an InfiniBand subnet, in ibnetdiscover's text, which"
        " ib-fabric --topology and ibsim read.",
    )
    addAsking(parser, DEVICE)
    parser.set_defaults(kinds=[])
    for letter, word, kinds, text in (
        ("-l", "--list", _LISTED, "nodes"),
        ("-H", "--Hca_list", (NodeType.CA,), "channel adapters"),
        ("-S", "--Switch_list", (NodeType.SWITCH,), "switches"),
        ("-R", "--Router_list", (NodeType.ROUTER,), "routers"),
    ):
        parser.add_argument(
            *(letter, word),
            dest="kinds",
            action="append_const",
            const=kinds,
            help=f"only a line for each of the {text}",
        )
    return parser


def parseArguments(arguments: Sequence[str] | None) -> Namespace:
    """
    @return: the parsed command line; C{kinds} has the types of nodes to be listed.
    """
    options = commandLine().parse_args(arguments)
    options.kinds = frozenset(kind for kinds in options.kinds for kind in kinds)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-net}.
    """
    options = parseArguments(arguments)
    return runProgram(PROGRAM, lambda reactor: Deferred.fromCoroutine(run(reactor, options)))


if __name__ == "__main__":
    sys.exit(main())
