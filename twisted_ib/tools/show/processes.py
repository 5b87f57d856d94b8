"""
Processes as the kernel shows them to this user: the names of their programs, and their TCP sockets (proc(5)).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from twisted_ib.hca.base.socketrows import ANY, COLUMNS, CONNECTION, LISTEN, LISTENER, TCP_STATES
from twisted_ib.hca.device.form import programName

#: Processes asked at the same time.
ASKED_AT_ONCE = 32
#: Lines that are read of a process's table of TCP sockets, and descriptors that are looked at.
TABLE_LINES = 1 << 16
#: Bytes that are read of a process's command line, which may be any memory of that process, however large
#: (C{prctl(2)}, PR_SET_MM_MAP).
COMMAND_LINE = 4096
#: The place of the row about all TCP sockets that no other row is about.
ANYWHERE = f"{ANY[0]}:{ANY[1]}"
#: The rule of a TCP socket of which nothing is known: the process is busy and has not said it before.
UNKNOWN = ""
#: The provider of the sockets of TCP.
TCP = "tcp"

_TABLES = (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6))
_WORD = 4


def programOf(pid: int) -> str:
    """
    @return: the name of a process's program; C{""} if the process is gone.
    """
    try:
        # proc(5): NUL-separated; the process may have changed it, so it is for display only.
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(COMMAND_LINE).decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return ""
    # A script is known by its own name, not by its interpreter's.
    script = len(words) > 1 and "python" in os.path.basename(words[0]) and not words[1].startswith("-")
    return programName(words[1 if script else 0 :])


def tcpRows(pid: int, reasons: list[dict[str, Any]]) -> list[list[Any]] | None:
    """
    List the TCP sockets of a process that does not answer.

    @param reasons: the rows of its socket page, by column.
    @return: values of L{COLUMNS}; L{None} if the kernel does not show the process to this user.
    """
    inodes = _socketsOf(pid)
    if inodes is None:
        return None
    ends = {(row["local"], row["remote"]): row for row in reasons if row["provider"] == TCP}
    # Of a port that answers SDP and TCP only the half of SDP may stand there; one rule is about both.
    listeners = [row for row in reasons if row["kind"] == LISTENER]
    listeners.sort(key=lambda row: row["provider"] == TCP)
    ports = {row["local"].rpartition(":")[2]: row for row in listeners}
    other = ends.get((ANYWHERE, ANYWHERE), {"rule": UNKNOWN})
    found = []
    for table, family in _TABLES:
        for local, remote, state, queued, inode in _table(pid, table, family):
            if inode in inodes and state in TCP_STATES:
                isListener = TCP_STATES[state] == LISTEN
                row = dict.fromkeys(COLUMNS)
                why = ends.get((local, None if isListener else remote))
                if why is None:
                    # The reason of the port that has accepted it, without that port's times, or of all
                    # connections to a peer.
                    why = ports.get(local.rpartition(":")[2]) or ends.get((ANYWHERE, remote), other)
                    why = {name: why.get(name) for name in ("rule", "fallback")}
                row |= why
                row |= {"kind": LISTENER if isListener else CONNECTION, "provider": TCP, "device": None}
                row |= {"local": local, "remote": None if isListener else remote, "state": TCP_STATES[state]}
                row |= {"in_flight": None if isListener else queued}
                found.append([row[name] for name in COLUMNS])
    return found


def _socketsOf(pid: int) -> set[str] | None:
    folder = f"/proc/{pid}/fd"
    found = set()
    try:
        names = os.listdir(folder)[:TABLE_LINES]
    except OSError:
        return None
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:
            continue  # Closed meanwhile.
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def _table(pid: int, name: str, family: int) -> Iterator[tuple[str, str, int, int, str]]:
    # Of the process's own network namespace.
    try:
        with open(f"/proc/{pid}/net/{name}") as file:
            next(file, None)
            for _, line in zip(range(TABLE_LINES), file, strict=False):
                words = line.split()
                if len(words) < 10:
                    continue
                local, remote, state, queues = words[1:5]
                queued = int(queues.partition(":")[0], 16)
                yield _address(local, family), _address(remote, family), int(state, 16), queued, words[9]
    except (OSError, ValueError):
        return


def _address(text: str, family: int) -> str:
    # Linux tcp_ipv4.c and tcp_ipv6.c, get_tcp4_sock and get_tcp6_sock: words of 32 bits in the CPU's order.
    data, _, port = text.partition(":")
    packed = bytes.fromhex(data)
    if sys.byteorder == "little":
        packed = b"".join(packed[at : at + _WORD][::-1] for at in range(0, len(packed), _WORD))
    host = socket.inet_ntop(family, packed)
    return f"[{host}]:{int(port, 16)}" if ":" in host else f"{host}:{int(port, 16)}"
