"""
The entries of a run directory, and whether who made them is alive.

In a run directory (L{twisted_ib.hca.host.rundirectory}) each HCA has a
listening SEQPACKET socket C{hca-GUID}.  Each service that it listens on is a
symbolic link to that socket::

    svc-SERVICE-NAMESPACE-ADDRESS -> hca-GUID

or, if it is the same as that of a TCP socket which listens on the same address and
number, a link that has the socket's inode as well::

    svc-SERVICE-NAMESPACE-ADDRESS -> hca-GUID.tcp-INODE

SERVICE is the service id (16 hex digits), NAMESPACE the inode of the network
namespace: a path crosses namespaces and an IP address must not.  ADDRESS is what
the listener is bound to.

Each multicast group that it is a member of is such a link too, GROUP being the GID::

    mcg-GROUP-GUID -> hca-GUID
"""

from __future__ import annotations

import re
import socket

import attrs

from twisted_ib.errors import PathLostError
from twisted_ib.hca.host.liveness import Liveness
from twisted_ib.hca.host.rundirectory import RunDirectory

#: Entries of dead processes that one HCA removes when it opens.
RECLAIMED_ENTRIES = 256

HCA = re.compile(r"hca-([0-9a-f]{16})\Z")
SERVICE = re.compile(r"svc-([0-9a-f]{16})-(\d{1,20})-([0-9a-f.:%]{2,64})\Z", re.ASCII)
#: What a service's link holds.
TARGET = re.compile(r"(hca-[0-9a-f]{16})(?:\.tcp-([1-9]\d{0,19}))?\Z", re.ASCII)
GROUP = re.compile(r"mcg-([0-9a-f]{32})-([0-9a-f]{16})\Z")


@attrs.frozen
class Entry:
    """
    An HCA that was found.

    @ivar guid: its GUID, by the entry's name.
    @ivar name: the entry's name.
    @ivar directory: where it is.
    @ivar address: what the service asked for is bound to, C{""} if none was.
    @ivar inode: that of the TCP socket which the service stands beside, 0 if there is none.
    @ivar uid: the user who made the service's entry.
    """

    guid: int
    name: str
    directory: RunDirectory = attrs.field(eq=False, repr=False)
    address: str = ""
    inode: int = 0
    uid: int = -1


def serviceName(serviceID: int, namespace: int, address: str) -> str:
    """
    The name of a service's entry.
    """
    return f"svc-{serviceID:016x}-{namespace}-{address}"


def targetName(hca: str, inode: int) -> str:
    """
    What a service's link holds.

    @param hca: the name of the HCA's socket.
    @param inode: of the TCP socket beside the service, 0 for none.
    """
    return f"{hca}.tcp-{inode}" if inode else hca


def targetOf(text: str | None) -> tuple[str, int]:
    """
    Read what a link holds.

    @return: the name of an HCA's socket, C{""} if there is none in it, and the inode of
        the TCP socket beside the service, 0 for none.
    """
    match = TARGET.match(text or "")
    return ("", 0) if match is None else (match[1], int(match[2] or 0))


def groupName(group: int, guid: int) -> str:
    """
    The name of the entry of an HCA in a multicast group.
    """
    return f"mcg-{group:032x}-{guid:016x}"


def connect(directory: RunDirectory, name: str, kind: int) -> socket.socket:
    """
    A non-blocking socket of this kind, connected to an HCA's.

    @raise OSError: it cannot be connected.
    """
    found = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        found.connect(directory.socketPath(name))
    except BaseException:
        found.close()
        raise
    return found


def isBound(directory: RunDirectory, name: str) -> bool:
    """
    Whether some process has the HCA socket C{name} open.

    A socket of the wrong type is refused by Linux with another error if the
    socket is open, and the HCA does not notice; only where that says it is
    dead a real connection has the last word.
    """
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

    The socket of a killed process stays open as long as a child that it
    forked lives; its pidfd tells them apart.
    """
    try:
        probe = connect(directory, name, socket.SOCK_SEQPACKET)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True  # it is busy, or not ours to ask
    try:
        liveness = Liveness.of(probe)
    except PathLostError:
        return False
    finally:
        probe.close()
    try:
        return not liveness.dead()
    finally:
        liveness.close()


def reclaim(directory: RunDirectory) -> None:
    """
    Remove the entries of dead HCAs, a bounded number of them; the directory is
    locked.
    """
    names = directory.names()
    sockets = {name for name in names if HCA.match(name)}
    budget = RECLAIMED_ENTRIES
    dead = set()
    for name in sockets:
        if budget and not isBound(directory, name):
            dead.add(name)
            budget -= 1
    for name in names:
        if budget and (SERVICE.match(name) or GROUP.match(name)):
            link = directory.readLink(name)
            target, _ = targetOf(link)
            if link is not None and (target in dead or target not in sockets):
                directory.remove(name)
                budget -= 1
    for name in dead:
        directory.remove(name)


__all__ = [
    "GROUP",
    "HCA",
    "SERVICE",
    "TARGET",
    "Entry",
    "connect",
    "groupName",
    "isBound",
    "isServed",
    "reclaim",
    "serviceName",
    "targetName",
    "targetOf",
]
