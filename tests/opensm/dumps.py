"""
A subnet as OpenSM sees it, from the files that it writes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

#: One end of a link in C{opensm-subnet.lst}.
_END = r"\{ \S+ Ports:\S+ SystemGUID:\S+ NodeGUID:(\w+) PortGUID:\w+ [^{]*\{.*?\} LID:(\w+) PN:(\w+) \}"
_LINK = re.compile(rf"{_END} {_END} PHY=\S+ LOG=(\w+)")
_UNICAST = re.compile(r"Switch 0x(\w+)|(0x\w+) : (\d+|UNREACHABLE|---)")
_MULTICAST = re.compile(r"Switch 0x(\w+)|(0x\w+) : ((?:0x\w+\s*)+)")


class End(NamedTuple):
    """
    One end of a link: GUID of the node, port number, LID.
    """

    guid: int
    number: int
    lid: int


def subnet(folder: Path) -> dict[End, tuple[End, str]]:
    """
    @return: of each port with a link the other end, and the state as C{ACT}.
    """
    found = {}
    for match in _LINK.finditer((folder / "opensm-subnet.lst").read_text()):
        # PN is hexadecimal as the LID is.
        near, far = (
            End(int(a, 16), int(c, 16), int(b, 16)) for a, b, c in (match.groups()[:3], match.groups()[3:6])
        )
        found[near] = far, match[7]
    return found


def _tables(text: str, pattern: re.Pattern[str]) -> dict[int, dict[int, str]]:
    found: dict[int, dict[int, str]] = {}
    table: dict[int, str] = {}
    for match in pattern.finditer(text):
        if match[1]:
            table = found.setdefault(int(match[1], 16), {})
        else:
            table[int(match[2], 16)] = match[3]
    return found


def unicast(folder: Path) -> dict[int, dict[int, int]]:
    """
    @return: GUID of a switch -> LID -> port.
    """
    tables = _tables((folder / "opensm.fdbs").read_text(), _UNICAST)
    return {
        guid: {lid: int(port) for lid, port in table.items() if port.isdecimal()}
        for guid, table in tables.items()
    }


def multicast(folder: Path) -> dict[int, dict[int, set[int]]]:
    """
    @return: GUID of a switch -> MLID -> ports.
    """
    tables = _tables((folder / "opensm.mcfdbs").read_text(), _MULTICAST)
    return {
        guid: {mlid: {int(port, 16) for port in ports.split()} for mlid, ports in table.items()}
        for guid, table in tables.items()
    }
