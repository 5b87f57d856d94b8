"""
C{ib-sa}: what subnet administration knows of a subnet, in C{saquery}'s words.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from ipaddress import IPv6Address
from typing import Any

from twisted.internet.defer import Deferred

from twisted_ib.hca.mad.attributes import administration as records
from twisted_ib.hca.mad.attributes.layouts import Attribute, layoutOf
from twisted_ib.rdma.administration import DEVICE, SubnetAdministration
from twisted_ib.tools.program import (
    ArgumentParser,
    ProgramError,
    addAsking,
    printable,
    runProgram,
    write,
)

PROGRAM = "ib-sa"

#: Command -> the records that it shows, and what it says of them.
QUERIES: dict[str, tuple[type[Attribute], str]] = {
    "nodes": (records.NodeRecord, "ports with LIDs, and their nodes"),
    "ports": (records.PortInfoRecord, "all ports"),
    "switches": (records.SwitchInfoRecord, "switches"),
    "links": (records.LinkRecord, "links, from both ends"),
    "managers": (records.SMInfoRecord, "subnet managers"),
    "groups": (records.MCMemberRecord, "multicast groups"),
    "services": (records.ServiceRecord, "services"),
    "subscriptions": (records.InformInfoRecord, "subscriptions to events"),
    "partitions": (records.PKeyTableRecord, "P_Key tables"),
}
_NAME_WIDTH = 24
_GID_BITS, _LONG_BITS, _OCTET = 128, 32, 8
#: Shorter fields that are read in hexadecimal.
_HEXADECIMAL = frozenset(("mlid", "pKey", "servicePKey", "capMask", "noticeType"))


def _fields(record: Attribute) -> Iterator[tuple[str, str]]:
    for each in layoutOf(type(record)).fields:
        value = getattr(record, each.name)
        if isinstance(value, Attribute):
            yield from _fields(value)
        elif isinstance(value, bytes):
            yield each.name, printable(value.rstrip(b"\0").decode("utf-8", "replace"))
        elif isinstance(value, tuple):
            digits = each.width // 4
            yield each.name, " ".join(f"{number:#0{digits + 2}x}" for number in value)
        elif each.width == _GID_BITS:
            yield each.name, str(IPv6Address(value))
        elif each.width >= _LONG_BITS or each.name in _HEXADECIMAL:
            yield each.name, f"{value:#x}"
        else:
            yield each.name, str(value)


def dump(record: Attribute) -> str:
    """
    @return: a record, as C{saquery} shows it: a line for each field.
    """
    lines = [f"{type(record).__name__} dump:"]
    lines += [f"\t\t{name.ljust(_NAME_WIDTH, '.')}{value}" for name, value in _fields(record)]
    return "\n".join(lines)


async def gidOf(sa: SubnetAdministration, name: str) -> int:
    """
    @param name: a GID, a LID, or the description of a node.
    @return: the GID of the port; of a node the first that has a LID.
    @raise ProgramError: there is none.
    """
    if ":" in name:
        try:
            return int(IPv6Address(name))
        except ValueError:
            raise ProgramError(f"{name}: no GID") from None
    try:
        values: dict[str, Any] = {"lid": int(name, 0)}
    except ValueError:
        values = {"description": name.encode()}
    found = await sa.query(records.NodeRecord, **values)
    if not found:
        raise ProgramError(f"{name}: the subnet has no such port: see {PROGRAM} nodes")
    prefix: int = sa.gid >> 64
    return prefix << 64 | found[0].nodeInfo.portGuid


async def run(sa: SubnetAdministration, options: Namespace) -> int:
    """
    @return: the exit status.
    """
    if options.command == "path":
        source, target = [await gidOf(sa, each) for each in (options.source, options.target)]
        write(dump(await sa.path(target, sgid=source, timeout=options.timeout)))
        return 0
    kind, _ = QUERIES[options.command]
    for record in await sa.query(kind, timeout=options.timeout, **dict(options.values)):
        write(dump(record))
    return 0


def value(text: str) -> tuple[str, Any]:
    """
    Parse C{NAME=VALUE}: a number, a GID or, of fields that are text, a text.

    @return: the name of a field, and its value.
    """
    name, separator, given = text.partition("=")
    if not separator:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, int(IPv6Address(given)) if ":" in given else int(given, 0)
    except ValueError:
        return name, given.encode()


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Show what subnet administration knows of an InfiniBand subnet, in saquery's words.",
    )
    addAsking(parser, DEVICE)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    path = commands.add_parser("path", help="the path between two ports: GIDs, LIDs or node descriptions")
    path.add_argument("source", metavar="FROM")
    path.add_argument("target", metavar="TO")
    for name, (kind, text) in QUERIES.items():
        query = commands.add_parser(name, help=text)
        query.add_argument(
            "values",
            metavar="NAME=VALUE",
            nargs="*",
            type=value,
            help=f"only those with this value of a field of {kind.__name__}",
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-sa}.
    """
    options = commandLine().parse_args(arguments)
    return runProgram(
        PROGRAM,
        lambda reactor: Deferred.fromCoroutine(run(SubnetAdministration(reactor, options.device), options)),
    )


if __name__ == "__main__":
    sys.exit(main())
