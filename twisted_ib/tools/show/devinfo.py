"""
C{ib-devinfo}: the HCAs of this user's running processes, their attributes, and what they have in use.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import HCAError, ResourceLimitError, UnknownDeviceError
from twisted_ib.hca.base.attributes import PORT
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import parseDevices, traitsOf
from twisted_ib.hca.host.entries import Entry
from twisted_ib.hca.host.query import ask
from twisted_ib.hca.host.search import Search
from twisted_ib.settings import DEVICES
from twisted_ib.tools.program import ArgumentParser, complain, printable, write
from twisted_ib.tools.show.devicetext import heading, present
from twisted_ib.tools.show.processes import ASKED_AT_ONCE, programOf

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


PROGRAM = "ib-devinfo"

SHARED_MEMORY = "shm0"

_UCRED: Packed[tuple[int, int, int]] = struct.Struct("3i")


def processOf(search: Search, entry: Entry) -> int:
    """
    @return: the process that has an HCA, from the kernel.
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
    @return: the little that is known of an HCA whose process does not answer; L{None} if it is dead.
    """
    known: dict[str, Any] = {"hca_id": SHARED_MEMORY, "pid": None, "program": None, "in_use": None}
    try:
        pid = processOf(search, entry)
    except ResourceLimitError:
        # Its backlog is full: the process is alive.
        return known
    except HCAError:
        return None
    return {**known, "pid": pid, "program": programOf(pid)}


def describe(search: Search, entry: Entry) -> dict[str, Any] | None:
    """
    @return: an HCA's answer, or what L{silent} knows; L{None} if it is dead.
    """
    try:
        answer = ask(search, entry)
    except ResourceLimitError:
        answer = None
    except HCAError:
        return None
    if answer is None or not isAnswer(answer) or not writable(answer):
        return silent(search, entry)
    return answer


def isAnswer(answer: dict[str, Any]) -> bool:
    """
    @return: whether an answer has a device's name, and what is in use.
    """
    return isinstance(answer.get("hca_id"), str) and isinstance(answer.get("in_use"), dict)


def writable(answer: dict[str, Any]) -> bool:
    """
    @return: whether an answer can be written as JSON.
    """
    try:
        json.dumps(answer, indent=2)
    # json.loads may accept deeper nesting than json.dumps with an indent, which is written in Python.
    except RecursionError:
        return False
    return True


def running() -> list[dict[str, Any]]:
    """
    @return: every HCA of this user's live processes.
    @raise HCAError: no run directory can be used.
    """
    search = Search()
    try:
        entries = search.hcas()
        # At the same time, so that many silent processes take no longer than one.  Threads: ask() blocks in
        # poll(2).
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            answers = pool.map(lambda entry: describe(search, entry), entries)
            return [answer for answer in answers if answer is not None]
    finally:
        search.close()


def devices(name: str | None = None) -> list[dict[str, Any]]:
    """
    @param name: the devices' name, L{None} for all.
    @return: those of this user's live processes.  Where there is none, and of C{lo0}, which others cannot
        see, the device as a process would have it, opened for this.
    @raise UnknownDeviceError: there is no such device.
    @raise HCAError: no run directory can be used, or it cannot be opened.
    """
    traits = traitsOf(SHARED_MEMORY if name is None else name)
    if traits.inRunDirectory or traits.hasAddress:
        found = [each for each in running() if name is None or each["hca_id"] == name]
        if found:
            return found
    # That of a subnet waits until its port is Active.
    device = Device(SHARED_MEMORY if name is None else name)
    try:
        return [device.describe()]
    finally:
        device.close()


def short(found: Sequence[dict[str, Any]]) -> list[str]:
    """
    @return: a line for each HCA: its name, its process, and how many queue pairs it has.
    """
    rows: list[tuple[str, ...]] = [("Device", "PID", "Program", "QPs")]
    for entry in found:
        inUse = entry.get("in_use")
        count = inUse.get("qp") if isinstance(inUse, dict) else None
        values = (entry["hca_id"], entry.get("pid"), entry.get("program"), count)
        rows.append(tuple("-" if value is None else printable(str(value)) for value in values))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def metrics(name: str | None) -> str:
    """
    @param name: the devices' name, L{None} for all.
    @return: the HCAs of this user's live processes in Prometheus' text format.
    @raise HCAError: no run directory can be used.
    """
    # Imported here: it loads Twisted.
    from twisted_ib.metrics import exposition, families

    found = [each for each in running() if name is None or each["hca_id"] == name]
    names = {"device": "hca_id", "pid": "pid", "program": "program"}
    labels = [{label: printable(str(entry.get(key))) for label, key in names.items()} for entry in found]
    return exposition(families(zip(labels, found, strict=True)))


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line; the manual page and the completion of shells are made from it.
    """
    parser = ArgumentParser(
        prog=PROGRAM, description="List the HCAs of your running processes, and what each has in use."
    )
    parser.add_argument("-d", "--ib-dev", metavar="DEV", help="only devices of this name, such as shm0")
    parser.add_argument("-i", "--ib-port", metavar="PORT", type=int, default=PORT, help="the port, only 1")
    parser.add_argument("-l", "--list", action="store_true", help="a line for each")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="limits, GIDs, what is in use and counters too"
    )
    parser.add_argument(
        "--prometheus", action="store_true", help="metrics, for the textfile collector of the node exporter"
    )
    parser.add_argument("--json", action="store_true", help="one JSON list, of everything")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run C{ib-devinfo}.
    """
    options = commandLine().parse_args(arguments)
    try:
        # Those of processes are listed; a name that is wrong would be none, without a word.
        parseDevices(os.environ.get(DEVICES, ""))
        if options.prometheus:
            write(metrics(options.ib_dev), end="")
            return 0
        found = devices(options.ib_dev)
        if options.ib_port != PORT:
            raise UnknownDeviceError(
                f"device {options.ib_dev or SHARED_MEMORY} has no port {options.ib_port}"
            )
    except (HCAError, OSError) as error:
        complain(PROGRAM, error)
        return 1
    if options.json:
        write(json.dumps([present(entry) for entry in found], indent=2))
    elif options.list:
        write("\n".join(short(found)))
    else:
        write("\n\n".join("\n".join(heading(entry, options.verbose)) for entry in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
