"""
The entries of a run directory, and whether the processes that made them are alive.

In a run directory (L{twisted_ib.hca.host.rundirectory}) each HCA has a listening SEQPACKET socket
C{hca-GUID}.  Each service that it listens on is a symbolic link to that socket::

    svc-SERVICE-NAMESPACE-ADDRESS -> hca-GUID

A service that belongs to a TCP socket listening on the same address and port has that socket's inode as
well.  Several sockets may share an address and port (SO_REUSEPORT, socket(7)), and several processes a
socket; the link then has a target for each HCA, with commas between::

    svc-SERVICE-NAMESPACE-ADDRESS -> hca-GUID.tcp-INODE,hca-GUID.tcp-INODE

SERVICE is the service id (16 hex digits; IBTA vol. 1 annex A4 and annex A11 make it of a port).  NAMESPACE
is the inode of the network namespace: a path in the file system crosses namespaces, an IP address must not.
ADDRESS is the listener's.

Each membership in a multicast group is such a link too, with GROUP for the GID::

    mcg-GROUP-GUID -> hca-GUID

The file C{hca-GUID.sockets} is what C{ib-ss} shows of an HCA's process while it is busy.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Collection, Iterable

from attrs import field

from twisted_ib.errors import PathLostError
from twisted_ib.hca.host.libc import KernelSocket
from twisted_ib.hca.host.liveness import Liveness
from twisted_ib.hca.host.rundirectory import SERVICE_START, RunDirectory
from twisted_ib.layouts import Shown
from twisted_ib.records import frozen

#: Entries of dead processes that one HCA removes when it opens, and those of other users that it looks at.
RECLAIMED_ENTRIES = 256
#: HCAs that share a service's entry.  A symbolic link's target has at most 4,095 bytes (PATH_MAX).
SERVICE_TARGETS = 64
#: HCAs with one loopback address that are asked whether they live.
LOOPBACK_ENTRIES = 16

HCA = re.compile(r"hca-([0-9a-f]{16})\Z")
#: A service id (IBTA vol. 1 chapter 12), the inode of a network namespace, a normalised address.
SERVICE = re.compile(r"svc-([0-9a-f]{16})-(\d{1,20})-([0-9a-f.:%]{2,64})\Z", re.ASCII)
#: One target of a service's link.
TARGET = re.compile(r"(hca-[0-9a-f]{16})(?:\.tcp-([1-9]\d{0,19}))?\Z", re.ASCII)
#: The ends of a link that will replace a service's, and of the socket page
#: (L{twisted_ib.hca.host.socketpage}).
_ATTACHED = ("new", "sockets")
#: A multicast GID (IBTA vol. 1 4.1.1) and the GUID of a member.  Compiled when there is one.
_GROUP = r"mcg-([0-9a-f]{32})-([0-9a-f]{16})\Z"


@frozen(repr=False)
class Entry(Shown):
    """
    An HCA found in a run directory.

    @ivar guid: its GUID, by the entry's name.
    @ivar address: what the service asked for is bound to, C{""} if none was.
    @ivar inode: of the TCP socket that the service belongs to, 0 if there is none.
    @ivar uid: the user who made the entry, that of the service if one was asked for.
    """

    guid: int
    name: str
    directory: RunDirectory = field(eq=False, repr=False)
    address: str = ""
    inode: int = 0
    uid: int = -1


def serviceName(serviceID: int, namespace: int, address: str) -> str:
    """
    @return: The name of a service's entry.
    """
    return SERVICE_START % serviceID + f"{namespace}-{address}"


def targetName(hca: str, inode: int) -> str:
    """
    @param hca: the name of the HCA's socket.
    @param inode: of the TCP socket that the service belongs to, 0 for none.
    @return: The target of a service's link.
    """
    return f"{hca}.tcp-{inode}" if inode else hca


def targetsOf(text: str | None) -> list[tuple[str, int]]:
    """
    Parse a link's targets.

    @return: the names of HCAs' sockets, each with the inode of the service's TCP socket, 0 for none; empty
        if the text is malformed.
    """
    matches = [TARGET.match(each) for each in (text or "").split(",", SERVICE_TARGETS)]
    found = [(match[1], int(match[2] or 0)) for match in matches if match is not None]
    return found if len(found) == len(matches) <= SERVICE_TARGETS else []


def groupName(group: int, guid: int) -> str:
    """
    @return: The name of the entry that makes an HCA a member of a multicast group.
    """
    return f"mcg-{group:032x}-{guid:016x}"


def connect(directory: RunDirectory, name: str, kind: int) -> socket.socket:
    """
    Connect a non-blocking socket to an HCA's.

    @param kind: a socket type, C{SOCK_SEQPACKET} except to probe.
    @raise OSError: it cannot be connected.
    """
    found = KernelSocket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        found.connect(directory.socketPath(name))
    except BaseException:
        found.close()
        raise
    return found


def isBound(directory: RunDirectory, name: str) -> bool:
    """
    Whether some process has the HCA socket C{name} open.
    """
    # Linux net/unix/af_unix.c, unix_find_bsd: connecting with another socket type gives EPROTOTYPE if the
    # socket is open, and its owner notices nothing.  Only where that gives ECONNREFUSED does a real
    # connection decide.
    for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        try:
            connect(directory, name, kind).close()
        except (ConnectionRefusedError, FileNotFoundError):
            continue
        except OSError:
            return True
        return True
    return False


def isServed(directory: RunDirectory, name: str) -> bool:
    """
    Whether the process that listens on the HCA socket C{name} is alive.
    """
    try:
        probe = connect(directory, name, socket.SOCK_SEQPACKET)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        # EAGAIN, its backlog is full; or EACCES, not ours to judge.
        return True
    try:
        # A forked child of a killed process keeps the socket open and connections succeed; only the pidfd
        # tells.
        liveness = Liveness.of(probe)
    except PathLostError:
        return False
    finally:
        probe.close()
    try:
        return not liveness.dead()
    finally:
        liveness.close()


def livingGUIDs(entries: Collection[Entry]) -> set[int]:
    """
    @return: the GUIDs of HCAs, without the dead ones where there are several, up to L{LOOPBACK_ENTRIES}.
    """
    if not 1 < len(entries) <= LOOPBACK_ENTRIES:
        return {each.guid for each in entries}
    return {each.guid for each in entries if isServed(each.directory, each.name)}


def leftovers(directory: RunDirectory, among: Collection[str] | None = None) -> list[str]:
    """
    Find entries of dead HCAs, a bounded number of them.

    @param among: the names to look at; L{None} for all.
    @return: their names, in an order in which they can be removed.
    """
    # Other users' apart: in a sticky directory they stay, and must not keep ours from being removed.
    left = {True: RECLAIMED_ENTRIES, False: RECLAIMED_ENTRIES}

    def sift(names: Iterable[str], isDead: Callable[[str], bool]) -> list[str]:
        found = []
        for name in names:
            isOurs = _isOurs(directory, name)
            if left[isOurs] and isDead(name):
                found.append(name)
                left[isOurs] -= 1
            elif left[isOurs] and not isOurs:
                left[isOurs] -= 1  # Each look counts: there may be very many.
        return found

    names = set(directory.names())
    sockets = {name for name in names if HCA.match(name)}
    # unix(7): a socket file stays after its process; bind(2) then fails with EADDRINUSE until it is unlinked.
    looked = names if among is None else names.intersection(among)
    dead = sift(sockets & looked, lambda name: not isBound(directory, name))
    living = sockets.difference(dead)
    return [*sift(looked - sockets, lambda name: _isLeft(directory, name, living)), *dead]


def reclaim(directory: RunDirectory, names: Collection[str]) -> None:
    """
    Remove the entries of dead HCAs; the caller holds the directory's lock.

    @param names: L{leftovers} of a moment ago.  A look at every living HCA takes a system call or two: not
        under the lock, which all new processes wait for.
    """
    if names:
        for name in leftovers(directory, names):
            directory.remove(name)


def _isOurs(directory: RunDirectory, name: str) -> bool:
    if not directory.shared:
        return True
    status = directory.status(name)
    return status is not None and status.st_uid == os.geteuid()


def _isLeft(directory: RunDirectory, name: str, living: set[str]) -> bool:
    owner, _, end = name.partition(".")
    if end in _ATTACHED and HCA.match(owner):
        return owner not in living
    if not (SERVICE.match(name) or re.match(_GROUP, name)):
        return False
    link = directory.readLink(name)
    return link is not None and not any(hca in living for hca, _ in targetsOf(link))
