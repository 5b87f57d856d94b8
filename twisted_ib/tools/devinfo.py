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
from typing import Any

from twisted_ib.errors import HCAError
from twisted_ib.hca.device import Device, openDevice
from twisted_ib.hca.fabric.query import ask
from twisted_ib.hca.fabric.rendezvous import Entry, Rendezvous
from twisted_ib.tools.program import ArgumentParser, complain

PROGRAM = "ib-devinfo"

IN_USE = ("pd", "mr", "cq", "qp", "srq", "ah", "mw")

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
    return os.path.basename(words[0]).decode("utf-8", "replace")


def processOf(rendezvous: Rendezvous, entry: Entry) -> int:
    """
    @param rendezvous: the way to other processes.
    @param entry: an HCA.

    @return: the process that has it, by the kernel's word.

    @raise HCAError: it is dead.
    """
    pair = rendezvous.connect(entry)
    try:
        pid: int = _UCRED.unpack(pair.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
        return pid
    finally:
        pair.close()


def describe(rendezvous: Rendezvous, entry: Entry) -> dict[str, Any] | None:
    """
    @param rendezvous: the way to other processes.
    @param entry: an HCA.

    @return: what its process says of it, or what can be said if that is
        silent; L{None} if it is dead.
    """
    try:
        pid = processOf(rendezvous, entry)
        answer = ask(rendezvous, entry)
    except (HCAError, OSError):
        return None
    if answer is None:
        answer = {"hca_id": "shm0", "program": programOf(pid), "in_use": None}
    # Whatever the process says of itself, its number is what the kernel says.
    return {**answer, "pid": pid}


def devices(device: Device) -> list[dict[str, Any]]:
    """
    @param device: our own HCA.

    @return: it, and every other HCA of this user's processes.
    """
    raise NotImplementedError


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
