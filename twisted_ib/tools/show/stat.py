"""
C{ib-stat}: the HCAs of this user's running processes and their ports, in C{ibstat}'s text.

A look joins no subnet: it shows the devices that processes have.  Only a device that is named, and that no
process has, is opened for it, as C{ib-devinfo} does; one of a subnet is then at a port of its own for that
moment.

Source: rdma-core 65 C{infiniband-diags/ibstat.c}.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv6Address
from typing import Any, Final

from twisted_ib.errors import HCAError, UnknownDeviceError
from twisted_ib.hca.base.attributes import PORT
from twisted_ib.hca.base.port import linkGigabits
from twisted_ib.tools.program import ArgumentParser, ProgramError, complain, write
from twisted_ib.tools.show.devicetext import INFINIBAND, LINK_LAYERS, gids, part, shown
from twisted_ib.tools.show.devinfo import devices

PROGRAM = "ib-stat"

#: The C{hca_type} of sysfs.
_TYPE: Final = "twisted_ib"
#: ibstat.c, port_state_str and port_phy_state_str.
_STATES: Final = {0: "???", 1: "Down", 2: "Initializing", 3: "Armed", 4: "Active"}
_PHYSICAL_STATES: Final = {
    0: "No state change",
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "PortConfigurationTraining",
    5: "LinkUp",
    6: "LinkErrorRecovery",
    7: "PhyTest",
}
_UNKNOWN: Final = "???"
_GUID: Final = (1 << 64) - 1
#: ibstat.c: sysfs has a whole number of gigabits, but for 1x SDR.
_SLOWEST: Final = 2.5


def _guid(value: int) -> str:
    return f"0x{value:016x}"


def _mask(value: int) -> str:
    return f"0x{value:08x}"


def _word(words: Mapping[int, str]) -> Callable[[int], str]:
    return lambda value: words.get(value, _UNKNOWN)


#: Label, key of the answer, form of its number; of an HCA and of a port.
_HCA: Final[tuple[tuple[str, str, Callable[[int], str]], ...]] = (
    (f"CA type: {_TYPE}", "", str),
    ("Number of ports", "phys_port_cnt", str),
    ("Firmware version", "fw_ver", str),
    ("Hardware version", "hw_ver", "{:x}".format),
    ("Node GUID", "node_guid", _guid),
    ("System image GUID", "sys_image_guid", _guid),
)
_PORT: Final[tuple[tuple[str, str, Callable[[int], str]], ...]] = (
    ("State", "state", _word(_STATES)),
    ("Physical state", "phys_state", _word(_PHYSICAL_STATES)),
    ("Rate", "rate", str),
    ("Base lid", "lid", str),
    ("LMC", "lmc", str),
    ("SM lid", "sm_lid", str),
    ("Capability mask", "port_cap_flags", _mask),
    ("Port GUID", "guid", _guid),
    ("Link layer", "link_layer", _word(LINK_LAYERS)),
)


def _rows(
    fields: Iterable[tuple[str, str, Callable[[int], str]]], values: Mapping[str, Any], indent: str
) -> Iterator[str]:
    for label, key, form in fields:
        if not key:
            yield indent + label
        elif key in values:
            value = values[key]
            # Another version may have sent a text where a number is expected: shown, not formatted.
            yield f"{indent}{label}: {form(value) if isinstance(value, int) else shown(value)}"


def _rate(port: Mapping[str, Any]) -> str:
    rate = linkGigabits(port.get("active_width", 0), port.get("active_speed", 0))
    if not rate:
        return _UNKNOWN
    return f"{rate:g}" if rate == _SLOWEST else str(int(rate))


def portGUID(entry: Mapping[str, Any]) -> int | None:
    """
    @return: the GUID of the port of an HCA: on InfiniBand that in its GID, else the HCA's; L{None} if its
        process does not say it.
    """
    found = part(entry, "attributes").get("node_guid")
    if part(entry, "port").get("link_layer") == INFINIBAND:
        for gid in gids(entry)[:1]:
            try:
                return int(IPv6Address(gid)) & _GUID
            except ValueError:
                return None
    return found if isinstance(found, int) else None


def _port(entry: Mapping[str, Any], indent: str) -> Iterator[str]:
    port = part(entry, "port")
    guid = portGUID(entry)
    values = {**port, "rate": _rate(port), **({} if guid is None else {"guid": guid})}
    return _rows(_PORT, values, indent)


def describe(entry: Mapping[str, Any], options: Namespace) -> list[str]:
    """
    @param entry: the answer of an HCA.
    @return: its lines.
    """
    name = shown(entry.get("hca_id"))
    if options.port is not None and not options.short:
        return [f"CA: '{name}'", f"Port {options.port}:", *_port(entry, "")]
    lines = [f"CA '{name}'", *_rows(_HCA, part(entry, "attributes"), "\t")]
    if not options.short:
        lines += [f"\tPort {PORT}:", *_port(entry, "\t\t")]
    return lines


def text(found: Sequence[Mapping[str, Any]], options: Namespace) -> list[str]:
    """
    @param found: the answers of HCAs.
    @return: the lines to be printed.
    """
    if options.ports:
        return [_guid(guid) for guid in map(portGUID, found) if guid is not None]
    if options.list:
        return sorted({shown(entry.get("hca_id")) for entry in found})
    return [line for entry in found for line in describe(entry, options)]


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(
        prog=PROGRAM, description="Show the HCAs of your running processes and their ports, in ibstat's text."
    )
    parser.add_argument(
        "name", metavar="CA", nargs="?", help="only devices of this name; one that no process has is opened"
    )
    parser.add_argument("port", metavar="PORT", nargs="?", type=int, help="only this port, which is 1")
    parser.add_argument("-l", "--list", "--list_of_cas", action="store_true", help="only the names")
    parser.add_argument("-s", "--short", action="store_true", help="without ports")
    parser.add_argument(
        "-p", "--ports", "--port_list", action="store_true", help="only the GUIDs of the ports"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-stat}.
    """
    options = commandLine().parse_args(arguments)
    try:
        found = devices(options.name)
        if options.port not in (None, PORT):
            raise UnknownDeviceError(f"device {options.name} has no port {options.port}")
    except (HCAError, OSError) as error:
        complain(PROGRAM, error)
        return 1
    known = [entry for entry in found if part(entry, "attributes")]
    lines = text(known, options)
    if lines:
        write("\n".join(lines))
    for entry in found:
        if entry not in known:
            complain(PROGRAM, ProgramError(f"process {entry.get('pid')} does not answer"))
    return 0 if len(known) == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
