"""
How the two sides of a ping-pong find each other: over TCP, as rdma-core's programs do.

A queue pair that shall be connected has to know the other's number, its first packet number (PSN) and the
address of its port (GID).  Each side says so in C{LID:QPN:PSN:GID}, hexadecimal, and a zero octet: first the
client, then the server, then the client says C{done}.  The server connects before it answers, so that who
has the answer may send at once.
"""

from __future__ import annotations

import re
import socket
from argparse import Namespace
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import NamedTuple

from twisted_ib.verbs.pyverbs import GID, AHAttr, GlobalRoute

LINE = re.compile(rb"([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\0")
LINE_BYTES = len("0000:000000:000000:") + 32 + len("\0")
DONE = b"done\0"


class Address(NamedTuple):
    """Where a queue pair is.  All zeros say that there is none."""

    lid: int = 0
    qpn: int = 0
    psn: int = 0
    gid: bytes = bytes(16)

    def __str__(self) -> str:
        """Print it as the programs do."""
        lid, qpn, psn, gid = self
        return f"LID 0x{lid:04x}, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {IPv6Address(gid)}"

    def line(self) -> bytes:
        """Write it for the other side."""
        return f"{self.lid:04x}:{self.qpn:06x}:{self.psn:06x}:{self.gid.hex()}\0".encode()

    def route(self, options: Namespace) -> AHAttr:
        """Say how to get there.  The devices of twisted_ib go by GIDs, as RoCE does, and have no LIDs."""
        gr = GlobalRoute(GID(self.gid.hex(":", 2)), sgid_index=options.gid_idx)
        return AHAttr(self.lid, options.sl, is_global=1, port_num=options.ib_port, gr=gr)


def parse(lines: bytes, count: int) -> list[Address]:
    """Read what the other side wrote."""
    found = LINE.findall(lines)
    if len(found) != count:
        raise SystemExit("The other side did not say where its queue pairs are")
    addresses = []
    for lid, qpn, psn, gid in found:
        addresses.append(Address(int(lid, 16), int(qpn, 16), int(psn, 16), bytes.fromhex(gid.decode())))
    return addresses


def show(whose: str, addresses: list[Address]) -> None:
    """Print the addresses that there are."""
    for each in addresses:
        if each.qpn:
            print(f"  {whose + ' address:':15} {each}", flush=True)


def exchange(options: Namespace, mine: list[Address], connect: Callable[[list[Address]], None]) -> None:
    """Tell the other side where my queue pairs are, hear where its are, connect them."""
    lines = b"".join(each.line() for each in mine)
    if options.host:
        show("local", mine)
        with socket.create_connection((options.host, options.port)) as wire, wire.makefile("rb") as stream:
            wire.sendall(lines)
            theirs = parse(stream.read(len(lines)), len(mine))
            wire.sendall(DONE)
        show("remote", theirs)
        connect(theirs)
        return
    with socket.create_server(("", options.port)) as server:
        show("local", mine)
        wire = server.accept()[0]
    with wire, wire.makefile("rb") as stream:
        theirs = parse(stream.read(len(lines)), len(mine))
        show("remote", theirs)
        connect(theirs)
        wire.sendall(lines)
        if stream.read(len(DONE)) != DONE:
            raise SystemExit("The other side did not hear where my queue pairs are")
