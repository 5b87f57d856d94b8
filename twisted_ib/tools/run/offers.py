"""
Connections of a program under C{ib-run} that TCP carries for certain: no rule, and nobody on this host offers
SDP on their port.  They are told apart before anything is imported that connects over SDP.

It says what the switch would (L{twisted_ib.switch.candidates.Candidates.here}); where it is not certain, the
switch does.
"""

from __future__ import annotations

import os
import socket
import stat
import sys

# Programs replace those of socket (win_inet_pton).
from _socket import inet_pton
from typing import TYPE_CHECKING

from twisted_ib.configuration.file import isConfigured
from twisted_ib.errors import RunDirectoryError
from twisted_ib.settings import ALLOW_UIDS, DEVICES, SIMPLE_VARIABLES

if TYPE_CHECKING:
    from twisted_ib.switch.reason import Reason

#: Modules of programs that have devices of their own, or would read in a log why a connection goes over TCP.
_ASKED = ("twisted_ib.hca.device.registry", "twisted.logger")
#: Variables that say more than where processes find each other.
_SAID = (ALLOW_UIDS, DEVICES, *SIMPLE_VARIABLES)
#: Entries of a run directory that are looked through for each connection, at most.
ENTRIES_SEEN = 64
#: The service id of SDP's port 0 (IBTA vol. 1 annex A4).
_SDP = 0x10000


def whyTCP(skt: socket.socket, address: object) -> Reason | None:
    """
    @param skt: a socket of TCP that is about to connect.
    @param address: as given to C{connect}.
    @return: why TCP carries the connection; L{None} if the switch is to decide.
    """
    if any(each in sys.modules for each in _ASKED) or any(each in os.environ for each in _SAID):
        return None
    where = None if isConfigured(os.environ) else _numeric(skt.family, address)
    if where is None:
        return None
    host, port = where
    from twisted_ib.switch.reason import ONE_CPU, Reason, noListener, remote

    if len(os.sched_getaffinity(0)) == 1:
        fallback = ONE_CPU
    elif not _isLocal(host):
        fallback = remote(host)
    elif _mayBeOffered(port):
        return None
    else:
        fallback = noListener(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return Reason("default", "both", "tcp", fallback=fallback)


def _numeric(family: int, address: object) -> tuple[str, int] | None:
    # The kernel complains of all others, or they are for the switch: names, zones, IPv4 in IPv6.
    if not isinstance(address, tuple) or len(address) < 2:
        return None
    host, port = address[:2]
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65536 or any(address[3:]):
        return None
    if host == "localhost" and family == socket.AF_INET:
        host = "127.0.0.1"
    try:
        inet_pton(family, host)
    except (OSError, ValueError):
        return None
    return None if ":" in host and "." in host else (host, port)


def _isLocal(host: str) -> bool:
    if host.startswith("127.") or host in ("::1", "::", "0.0.0.0"):
        return True
    from twisted_ib.hca.host.addresses import isLocalAddress

    return isLocalAddress(host)


def _mayBeOffered(port: int) -> bool:
    from twisted_ib.hca.host.rundirectory import SERVICE_START, candidates

    start, uid = SERVICE_START % (_SDP | port), os.geteuid()
    try:
        for path, _ in candidates(os.environ, uid):
            try:
                found = os.lstat(path)
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o777 != 0o700:
                    # The switch says what is wrong with it.
                    return True
                with os.scandir(path) as entries:
                    for number, entry in enumerate(entries):
                        if number == ENTRIES_SEEN or entry.name.startswith(start):
                            return True
            except FileNotFoundError:
                continue
    except (OSError, RunDirectoryError):
        return True
    return False
