"""
Topology files, in the language that ibnetdiscover writes and ibsim reads.

A node has one line with its type, number of ports and name, and one for each port with a link::

    switchguid=0x200000
    Switch  8 "Switch1"         # "leaf 1"
    [1]     "Hca1"[1]
    [2]     "Hca2"[1]  w=2

    Ca      2 "Hca1"

An empty line ends a node.  A link is written at both of its ends.  In front of a node may stand C{caguid=},
C{switchguid=} and C{rtguid=}, the GUID of the next node of the type, from which GUIDs are counted on as ibsim
does; C{vendid=}, C{devid=} and C{sysimgguid=} of the next node; and C{width=}, C{speed=} and C{extspeed=} of
all ports that follow.  LIDs, which ibnetdiscover writes behind C{#}, are not read: a subnet manager assigns
them.  ibsim's modules, aliases, inclusions and console commands are no part of the language here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

from attrs import evolve, field, frozen

from twisted_ib.errors import TopologyError
from twisted_ib.hca.base.traits import NodeType
from twisted_ib.limits import TOPOLOGY_LINE, TOPOLOGY_LINES, TOPOLOGY_NODES

#: PortInfo's 8 bits of a port number, without 0xFF, which means all ports or none.
MOST_PORTS: Final = 254
#: NodeDescription (IBTA vol. 1 14.2.5.2), in octets of UTF-8.
DESCRIPTION_BYTES: Final = 64
#: ibsim's C{NODEIDLEN}, without the end of the string.
NAME_BYTES: Final = 64

#: The words of the language and their types of node; the first of each type is written.
_TYPES: Final = {"Switch": NodeType.SWITCH, "Ca": NodeType.CA, "Hca": NodeType.CA, "Rt": NodeType.ROUTER}
_WORDS: Final = {NodeType.SWITCH: "Switch", NodeType.CA: "Ca", NodeType.ROUTER: "Rt"}
#: Whose GUID it is; the first of each type is written.
_GUIDS: Final = {
    "switchguid": NodeType.SWITCH,
    "caguid": NodeType.CA,
    "hcaguids": NodeType.CA,
    "rtguid": NodeType.ROUTER,
}
_GUID_WORDS: Final = {NodeType.SWITCH: "switchguid", NodeType.CA: "caguid", NodeType.ROUTER: "rtguid"}
#: The GUIDs that ibsim begins with; its routers begin with 0, which is no GUID.
_FIRST: Final = {NodeType.CA: 0x100000, NodeType.SWITCH: 0x200000, NodeType.ROUTER: 0x300000}
_GUID: Final = range(1, 1 << 64)

#: Of one node: name, its values.
_NODE_VALUES: Final = {"vendid": range(1 << 24), "devid": range(1 << 16), "sysimgguid": range(1 << 64)}
#: Of all ports that follow, or of one port by its first letter.  The codes are those of PortInfo: bits of
#: enabled widths and speeds (IBTA vol. 1 14.2.5.6).
_PORT_VALUES: Final = {"width": range(1, 32), "speed": range(1, 8), "extspeed": range(16)}
_OPTIONS: Final = {"w": "width", "s": "speed", "e": "extspeed"}
#: As ibnetdiscover writes the speed of a link: enabled speeds, and enabled extended speeds.
_SPEEDS: Final = {
    "SDR": (1, 0),
    "DDR": (3, 0),
    "QDR": (7, 0),
    "FDR10": (7, 0),
    "FDR": (7, 1),
    "EDR": (7, 3),
    "HDR": (7, 7),
    "NDR": (7, 15),
}
#: Likewise its width: enabled widths.
_WIDTHS: Final = {"1": 1, "2": 16, "4": 3, "8": 4, "12": 11}

_NODE: Final = re.compile(r'(Switch|Ca|Hca|Rt)\s+(\d{1,5})\s+"([^"]*)"\s*(?:#\s*(.*))?')
_PORT: Final = re.compile(
    r'\[(\d{1,5})\](?:\([0-9a-fA-F]*\))?\s*"([^"]*)"(?:\[(\d{1,5})\])?\s*(?:\([0-9a-fA-F]*\))?\s*([^#]*)(?:#(.*))?'
)
_OPTION: Final = re.compile(r"([wse])=(\w{1,10})")
_VALUE: Final = re.compile(
    r"(\w+)\s*=\s*(0[xX][0-9a-fA-F]{1,16}|\d{1,20})\s*(?:\([0-9a-fA-F]*\))?\s*(?:#.*)?"
)
#: The end of a port's comment: C{lid 3 4xSDR}.
_LINK: Final = re.compile(r"lid \d+ (\d+)x([A-Z]+\d*)\s*$")
#: C{"description"}, or what stands in front of these words.
_DESCRIPTION: Final = re.compile(r'"([^"]*)"|(.*?)(?:\s+(?:enhanced port|base port|lid|lmc)\s.*)?$')


@frozen
class PortSpecification:
    """
    One end of a link.

    @ivar node: name of the node at the other end.
    @ivar port: port number there.
    @ivar width: PortInfo.LinkWidthEnabled; 2 is 4x.
    @ivar speed: PortInfo.LinkSpeedEnabled; 1 is SDR.
    @ivar extspeed: PortInfo.LinkSpeedExtEnabled; 0 is none.
    """

    node: str
    port: int
    width: int = 2
    speed: int = 1
    extspeed: int = 0


@frozen
class NodeSpecification:
    """
    A node.

    @ivar kind: CA, SWITCH or ROUTER.
    @ivar name: its name in the file, unique there.
    @ivar numberOfPorts: not counting port 0 of a switch.
    @ivar guid: the node's GUID; port I{n} of a CA or router has the one I{n} above it.
    @ivar description: NodeDescription.
    @ivar ports: port number -> what it is linked with.
    @ivar vendid: NodeInfo.VendorID.
    @ivar devid: NodeInfo.DeviceID.
    @ivar sysimgguid: NodeInfo.SystemImageGUID; 0 for the node's own GUID.
    """

    kind: NodeType
    name: str
    numberOfPorts: int
    guid: int
    description: str
    ports: dict[int, PortSpecification] = field(factory=dict)
    vendid: int = 0
    devid: int = 0
    sysimgguid: int = 0


@frozen
class Topology:
    """
    Nodes and their links.

    @ivar nodes: in the order of the file; a tool that names no node is attached to the first.
    """

    nodes: tuple[NodeSpecification, ...]

    def text(self) -> str:
        """
        @return: the topology in its language; L{parse} makes the same of it.
        """
        return "".join(f"{line}\n" for node in self.nodes for line in _write(node))


def _write(node: NodeSpecification) -> Iterator[str]:
    for name in _NODE_VALUES:
        if getattr(node, name):
            yield f"{name}={getattr(node, name):#x}"
    yield f"{_GUID_WORDS[node.kind]}={node.guid:#x}"
    yield f'{_WORDS[node.kind]}\t{node.numberOfPorts} "{node.name}"\t\t# "{node.description}"'
    for number, end in sorted(node.ports.items()):
        options = "".join(
            f"\t{letter}={getattr(end, name)}"
            for letter, name in _OPTIONS.items()
            if getattr(end, name) != getattr(_DEFAULT, name)
        )
        yield f'[{number}]\t"{end.node}"[{end.port}]{options}'
    yield ""


_DEFAULT: Final = PortSpecification("", 0)


def _changed(end: PortSpecification, name: str, value: int) -> PortSpecification:
    change: dict[str, Any] = {name: value}
    return evolve(end, **change)


def parse(text: str, name: str) -> Topology:
    """
    Read a topology file.

    @param text: its text.
    @param name: its name, for errors.
    @raise TopologyError: it is not valid; says the file and the line.
    """
    return _Parser(name).parse(text.splitlines())


class _Parser:
    def __init__(self, name: str) -> None:
        self._name = name
        self._line = 0
        self._nodes: dict[str, NodeSpecification] = {}
        #: Name of a node and port number -> line.
        self._lines: dict[tuple[str, int], int] = {}
        self._guids = dict(_FIRST)
        self._taken: set[int] = set()
        self._values: dict[str, Any] = {}
        self._defaults = _DEFAULT
        self._node: NodeSpecification | None = None

    def parse(self, lines: Iterable[str]) -> Topology:
        for self._line, line in enumerate(lines, 1):
            if self._line > TOPOLOGY_LINES:
                self._fail(f"more than {TOPOLOGY_LINES} lines")
            if len(line) > TOPOLOGY_LINE:
                self._fail(f"a line of more than {TOPOLOGY_LINE} characters")
            self._read(line.strip())
        if not self._nodes:
            self._fail("there is no node")
        self._check()
        return Topology(tuple(self._nodes.values()))

    def _fail(self, reason: str, line: int | None = None) -> NoReturn:
        raise TopologyError(f"{self._name}:{self._line if line is None else line}: {reason}")

    def _read(self, line: str) -> None:
        if not line:
            self._node = None
        elif line.startswith("#"):
            pass
        elif match := _PORT.fullmatch(line):
            self._readPort(*match.groups(""))
        elif match := _NODE.fullmatch(line):
            self._readNode(*match.groups(""))
        elif match := _VALUE.fullmatch(line):
            self._readValue(*match.groups())
        else:
            self._fail(f"neither a node, a port nor a value: {line[:80]!r}")

    def _readValue(self, name: str, text: str) -> None:
        value = int(text, 0) if text[:2] in ("0x", "0X") else int(text)
        if name in _GUIDS:
            self._need(name, value, _GUID)
            self._guids[_GUIDS[name]] = value
        elif name in _NODE_VALUES:
            self._need(name, value, _NODE_VALUES[name])
            self._values[name] = value
        elif name in _PORT_VALUES:
            self._need(name, value, _PORT_VALUES[name])
            self._defaults = _changed(self._defaults, name, value)
        else:
            self._fail(f"{name} is not known here")

    def _need(self, name: str, value: int, values: range) -> None:
        if value not in values:
            self._fail(f"{name} is from {values[0]} to {values[-1]:#x}, not {value:#x}")

    def _readNode(self, word: str, count: str, name: str, comment: str) -> None:
        kind, ports = _TYPES[word], int(count)
        self._need("the number of ports", ports, range(1, MOST_PORTS + 1))
        match = _DESCRIPTION.match(comment)
        description = ((match[1] or match[2]) if match else "") or name
        for what, most in ((name, NAME_BYTES), (description, DESCRIPTION_BYTES)):
            if not 0 < len(what.encode("utf-8", "replace")) <= most or not what.isprintable() or '"' in what:
                self._fail(f"a name has 1 to {most} octets, all printable and no quotation mark")
        if name in self._nodes:
            self._fail(f'there is a node "{name}" already')
        if len(self._nodes) == TOPOLOGY_NODES:
            self._fail(f"more than {TOPOLOGY_NODES} nodes")
        guid = self._guids[kind]
        # A switch has one GUID, a CA one more for each port.
        own = range(guid, guid + 1 + (0 if kind == NodeType.SWITCH else ports))
        self._guids[kind] = own.stop
        if own.stop not in _GUID or not self._taken.isdisjoint(own):
            self._fail(f"GUID {guid:#x} or one of the node's ports is taken, or beyond 64 bits")
        self._taken.update(own)
        values, self._values = self._values, {}
        self._node = self._nodes[name] = NodeSpecification(kind, name, ports, guid, description, **values)

    def _readPort(self, number: str, remote: str, far: str, options: str, comment: str) -> None:
        node, port = self._node, int(number)
        if node is None:
            self._fail("a port without a node: an empty line ends a node")
        self._need("a port", port, range(1, node.numberOfPorts + 1))
        if port in node.ports:
            self._fail(f"port {port} has a link already")
        # ibsim: without a number it is port 1.
        end = evolve(self._defaults, node=remote, port=int(far or 1))
        link = _LINK.search(comment)
        if link and link[1] in _WIDTHS and link[2] in _SPEEDS:
            speed, extended = _SPEEDS[link[2]]
            end = evolve(end, width=_WIDTHS[link[1]], speed=speed, extspeed=extended)
        for option in options.split():
            match = _OPTION.fullmatch(option)
            if match is None or not match[2].isdecimal():
                self._fail(f"not an option of a port: {option[:20]!r}")
            what = _OPTIONS[match[1]]
            self._need(what, int(match[2]), _PORT_VALUES[what])
            end = _changed(end, what, int(match[2]))
        node.ports[port] = end
        self._lines[node.name, port] = self._line

    def _check(self) -> None:
        for (name, port), line in self._lines.items():
            end = self._nodes[name].ports[port]
            if end.node not in self._nodes:
                self._fail(f'there is no node "{end.node}"', line)
            back = self._nodes[end.node].ports.get(end.port)
            if back is None or (back.node, back.port) != (name, port):
                self._fail(f'"{end.node}"[{end.port}] is not linked with "{name}"[{port}]', line)
            if (end.node, end.port) == (name, port):
                self._fail("a port cannot be linked with itself", line)
            if not end.width & back.width or not end.speed & back.speed:
                self._fail("the ends of the link have no width or speed in common", line)


__all__ = [
    "DESCRIPTION_BYTES",
    "MOST_PORTS",
    "NAME_BYTES",
    "NodeSpecification",
    "PortSpecification",
    "Topology",
    "parse",
]
