"""
Listeners and connections for people: a table, and for each why it is so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from twisted_ib.tools.program import printable

#: The table's columns: what stands above them, what it shows, and whether that is a number.
_COLUMNS = (
    ("Program", "program", False),
    ("PID", "pid", True),
    ("Kind", "kind", False),
    ("Via", "provider", False),
    ("Device", "device", False),
    ("State", "state", False),
    ("Local", "local", False),
    ("Remote", "remote", False),
    ("Credits", "credits", True),
    ("InFlight", "in_flight", True),
    ("Retrans", "retransmits", True),
    ("Rule", "rule", False),
)
_NOTHING = "-"
_SPACE = "  "


def shown(value: object) -> str:
    """
    @param value: A value of a listener or connection.
    @return: The same for a terminal.
    """
    return _NOTHING if value is None or value == "" else printable(str(value))


def table(entries: Sequence[dict[str, Any]], why: bool = False) -> list[str]:
    """
    @param entries: Listeners and connections.
    @param why: Whether to say why each is so.
    @return: The lines of a table.
    """
    cells = [[shown(entry[name]) for _, name, _ in _COLUMNS] for entry in entries]
    widths = [
        max([len(title), *(len(row[index]) for row in cells)]) for index, (title, _, _) in enumerate(_COLUMNS)
    ]
    lines = [_line([title for title, _, _ in _COLUMNS], widths)]
    for entry, row in zip(entries, cells, strict=True):
        lines.append(_line(row, widths))
        if why:
            lines += [f"    {line}" for line in reasons(entry)]
    return lines


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    """
    @return: A line of the table; numbers stand at the right of their columns.
    """
    padded = [
        cell.rjust(width) if isNumber else cell.ljust(width)
        for cell, width, (_, _, isNumber) in zip(cells, widths, _COLUMNS, strict=True)
    ]
    return _SPACE.join(padded).rstrip()


def reasons(entry: dict[str, Any]) -> list[str]:
    """
    @param entry: A listener or connection.
    @return: Lines that say why it is so, and since when.
    """
    found = [_byRule(entry)]
    if entry["fallback"] is not None:
        found.append(f"not over SDP: {shown(entry['fallback'])}")
    times = entry["times"]
    spoken = [f"{name} {moment(when)}" for name, when in times.items() if when is not None]
    asked, connected = times["asked"], times["connected"]
    if asked is not None and connected is not None and connected >= asked:
        spoken.append(f"took {(connected - asked) * 1000:.1f} ms")
    if spoken:
        found.append(", ".join(spoken))
    return found


def _byRule(entry: dict[str, Any]) -> str:
    carried = shown(entry["provider"])
    if entry["device"] is not None:
        carried += f" on {shown(entry['device'])}"
    rule = entry["rule"]
    if rule == "explicit":
        return f"{carried}: asked for by name, without the switch"
    if rule == "default":
        return f"{carried}: no rule is about it"
    return f"{carried}: by the rule at {shown(rule)}"


def moment(when: float) -> str:
    """
    @param when: Seconds since 1970.
    @return: The time of day there was, and the day unless it is today's.
    """
    local = time.localtime(when)
    text = time.strftime("%H:%M:%S", local) + f".{int(when * 1000) % 1000:03}"
    return text if local[:3] == time.localtime()[:3] else time.strftime("%Y-%m-%d ", local) + text


def cut(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """
    @param lines: What there is to say.
    @param columns: Of the terminal.
    @param rows: Likewise.
    @return: What fits there, with a last line that says how much does not.
    """
    rows = max(rows - 1, 2)  # The cursor has a line of its own.
    found = list(lines)
    if len(found) > rows:
        left = len(found) - rows + 1
        found = [*found[: rows - 1], f"... and {left} lines more"]
    return [line[: max(columns - 1, 1)] for line in found]


__all__ = ["cut", "moment", "reasons", "shown", "table"]
