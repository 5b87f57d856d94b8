"""
C{ib-devinfo}: the HCAs of this user's running processes, and what each has in use.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from twisted_ib.errors import HCAError, ResourceLimitError, UnknownDeviceError
from twisted_ib.hca.device import Device
from twisted_ib.hca.fabric.entries import Entry
from twisted_ib.hca.fabric.query import ask
from twisted_ib.hca.fabric.search import Search
from twisted_ib.tools.program import ArgumentParser, complain

PROGRAM = "ib-devinfo"

SHARED_MEMORY = "shm0"

ASKED_AT_ONCE = 32

_UCRED = struct.Struct("3i")


def programOf(pid: int) -> str:
    """
    @param pid: a process.

    @return: the name of its program; C{""} if it is gone.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return ""
    # A script is known by its own name, not by its interpreter's.
    script = len(words) > 1 and b"python" in os.path.basename(words[0]) and not words[1].startswith(b"-")
    return os.path.basename(words[1 if script else 0]).decode("utf-8", "replace")


def processOf(search: Search, entry: Entry) -> int:
    """
    @param search: the way to other processes.
    @param entry: an HCA.

    @return: the process that has it, by the kernel's word.

    @raise HCAError: it is dead.
    """
    pair = search.connect(entry)
    try:
        pid: int = _UCRED.unpack(pair.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
        return pid
    finally:
        pair.close()


def silent(search: Search, entry: Entry) -> dict[str, Any] | None:
    """
    @param search: the way to other processes.
    @param entry: an HCA whose process gave no answer.

    @return: what can be said of it all the same; L{None} if it is dead.
    """
    known: dict[str, Any] = {"hca_id": SHARED_MEMORY, "pid": None, "program": None, "in_use": None}
    try:
        pid = processOf(search, entry)
    except ResourceLimitError:
        return known  # Alive, and many wait for it.
    except HCAError:
        return None
    return {**known, "pid": pid, "program": programOf(pid)}


def describe(search: Search, entry: Entry) -> dict[str, Any] | None:
    """
    @param search: the way to other processes.
    @param entry: an HCA.

    @return: what its process says of it, or what can be said if that is
        silent; L{None} if it is dead.
    """
    try:
        answer = ask(search, entry)
    except ResourceLimitError:
        answer = None
    except HCAError:
        return None
    if answer is None or not isinstance(answer.get("in_use"), dict):
        return silent(search, entry)
    return answer


def others(search: Search, guid: int) -> list[dict[str, Any]]:
    """
    @param search: the way to other processes.
    @param guid: our own HCA.

    @return: every other HCA of this user's live processes.
    """
    entries = [entry for entry in search.hcas() if entry.guid != guid]
    # Together, so that many silent ones take no longer than one.
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        answers = pool.map(lambda entry: describe(search, entry), entries)
        return [answer for answer in answers if answer is not None]


def devices() -> list[dict[str, Any]]:
    """
    @return: our own HCA, opened for this, and every other one of this user's
        live processes.

    @raise HCAError: processes can not meet here.
    """
    device = Device(SHARED_MEMORY)
    try:
        search = Search()
        try:
            return [device.describe(), *others(search, device.guid)]
        finally:
            search.close()
    finally:
        device.close()


def heading(entry: Mapping[str, Any], verbose: bool) -> list[str]:
    """
    @param entry: what is known of an HCA.
    @param verbose: whether to say what is in use too.

    @return: the lines that say so, as C{ibv_devinfo} prints them.
    """
    lines = [f"hca_id:\t{entry['hca_id']}"]
    for name, value in entry.items():
        if name not in ("hca_id", "in_use"):
            lines.append(f"\t{name + ':':<32}{value}")
    counts = entry["in_use"]
    if counts is None:
        lines.append(f"\t{'in_use:':<32}does not answer")
    elif verbose:
        lines.append("\tin_use:")
        lines += [f"\t\t{name + ':':<24}{count}" for name, count in counts.items()]
    return lines


def parseArguments(arguments: Sequence[str]) -> Namespace:
    """
    @param arguments: the command line without the command.

    @return: its parts.
    """
    parser = ArgumentParser(
        prog=PROGRAM, description="List the HCAs of your running processes, and what each has in use."
    )
    parser.add_argument("-d", "--ib-dev", metavar="NAME", help="only devices with this name")
    parser.add_argument("-l", "--list", action="store_true", help="only the names")
    parser.add_argument("-v", "--verbose", action="store_true", help="what is in use too")
    parser.add_argument("--json", action="store_true", help="one JSON list, of everything")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-devinfo}.

    @param arguments: the command line, by default this process's.

    @return: the exit status.
    """
    options = parseArguments(sys.argv[1:] if arguments is None else arguments)
    try:
        found = devices()
        if options.ib_dev is not None:
            found = [entry for entry in found if entry["hca_id"] == options.ib_dev]
            if not found:
                raise UnknownDeviceError(f"no device {options.ib_dev}")
    except (HCAError, OSError) as error:
        complain(PROGRAM, error)
        return 1
    if options.json:
        print(json.dumps(found, indent=2))
    elif options.list:
        print("\n".join(entry["hca_id"] for entry in found))
    else:
        print("\n\n".join("\n".join(heading(entry, options.verbose)) for entry in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
