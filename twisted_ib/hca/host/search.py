"""
How a process finds the HCAs of other processes of the same host.

What it finds are entries that the servers made in the run directories
(L{twisted_ib.hca.host.entries}, L{twisted_ib.hca.host.rendezvous}).
"""

from __future__ import annotations

import os
import socket
import stat
import time
import weakref
from collections.abc import Mapping

from twisted_ib import limits
from twisted_ib.errors import NoListenerError, ResourceLimitError, RunDirectoryError
from twisted_ib.hca.host import addresses
from twisted_ib.hca.host.entries import HCA, Entry, connect, groupName, serviceName, targetOf
from twisted_ib.hca.host.liveness import PeerCredentials, peerCredentials
from twisted_ib.hca.host.rundirectory import RunDirectory, allowedUids, openDirectories

#: Services whose HCA is remembered while the run directories do not change.
LOOKUPS_REMEMBERED = 1024

# A directory's time of change is as coarse as the kernel's tick: two changes
# within one look the same.  What is older than this does not hide a second one.
_SETTLED_NANOSECONDS = 50_000_000


class Search:
    """
    The run directories of this user, for looking.

    @ivar uid: the effective user at opening.
    @ivar allowed: the users that are let in besides.
    @ivar namespace: the network namespace at opening, which stays ours.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, create: bool = False) -> None:
        """
        Open the directories.

        @param create: whether to make the first possible one.
        @raise RunDirectoryError: there are some but none will do.
        """
        self.uid = os.geteuid()
        self.allowed = allowedUids(environment)
        self.namespace = addresses.namespaceInode()
        self._environment = dict(environment)
        self._pid = os.getpid()
        self._known: dict[tuple[int, str], tuple[list[int], list[Entry]]] = {}
        self._groups: dict[int, tuple[list[int], tuple[int, ...]]] = {}
        self._directories, refused = openDirectories(self._environment, self.uid, create)
        if refused and not self._directories:
            raise RunDirectoryError("; and ".join([str(error) for error in refused]))
        _searches.add(self)

    def allows(self, uid: int) -> bool:
        """
        Whether processes of a user may share rings with this one.
        """
        return uid == self.uid or uid in self.allowed or uid == os.geteuid()

    def checkOwner(self) -> None:
        """
        Whether this process still has the user that it opened the directory as.

        @raise RunDirectoryError: it has not; see
            L{successor<twisted_ib.hca.host.rendezvous.Rendezvous.successor>}.
        """
        uid = os.geteuid()
        if uid != self.uid:
            raise RunDirectoryError(
                f"the run directory was opened as user {self.uid} and the process is user {uid} now; "
                "listen or connect after the user has changed"
            )

    def _check(self) -> None:
        """
        Whether this is the process that opened the directory, as the same user.

        @raise RunDirectoryError: it is a child forked from it, or another user
            now.
        """
        if os.getpid() != self._pid:
            raise RunDirectoryError(
                f"the run directory was opened by process {self._pid} and this is a child of it"
            )
        self.checkOwner()

    def lookup(self, serviceID: int, address: str) -> list[Entry]:
        """
        The HCAs that listen on a service, the one to ask first at the front;
        not to be changed.

        First is who listens on the exact address, then who listens on all of
        its family; for IPv4 then who listens on C{::}, as a Linux socket there
        serves both.  Entries may be dead: L{connect} says so.

        @raise ValueError: C{address} is none.
        """
        self._check()
        address = addresses.normalise(address)
        stamps = [directory.stamp() for directory in self._directories]
        known = self._known.get((serviceID, address))
        if known is not None and known[0] == stamps:
            return known[1]
        found = self._search(serviceID, address)
        if not found and self._refresh():
            return self._search(serviceID, address)
        if found and max(stamps, default=0) < time.time_ns() - _SETTLED_NANOSECONDS:
            if len(self._known) == LOOKUPS_REMEMBERED:
                self._known.clear()
            self._known[serviceID, address] = (stamps, found)
        return found

    def _search(self, serviceID: int, address: str) -> list[Entry]:
        """
        The HCAs that a service's entries point to, address by address.
        """
        found = []
        for where in addresses.servedBy(address):
            name = serviceName(serviceID, self.namespace, where)
            for directory in self._directories:
                pointed = self._pointed(directory, name)
                if pointed is not None:
                    hca, inode, uid = pointed
                    found.append(Entry(int(hca[4:], 16), hca, directory, where, inode, uid))
        return found

    def _hcaOf(self, directory: RunDirectory, name: str) -> str | None:
        """
        The HCA that an entry of a service or a group points to; None if there is no entry or
        a user who is not let in made it or the HCA's socket.
        """
        pointed = self._pointed(directory, name)
        return None if pointed is None else pointed[0]

    def _pointed(self, directory: RunDirectory, name: str) -> tuple[str, int, int] | None:
        """
        The same with the inode of the TCP socket beside a service (0 for none) and the user
        who made the entry.
        """
        target, inode = targetOf(directory.readLink(name))
        if not target:
            return None
        status = directory.status(name)
        if status is None or not self.allows(status.st_uid):
            return None
        socket = directory.status(target)
        if socket is not None and not self.allows(socket.st_uid):
            return None
        return target, inode, status.st_uid  # Without a socket it is dead, but an entry.

    def hcas(self) -> list[Entry]:
        """
        All HCAs that have a socket, dead or alive, our own too.
        """
        self._refresh()
        found = []
        for directory in self._directories:
            for name in directory.names():
                if HCA.match(name):
                    status = directory.status(name)
                    if status is not None and stat.S_ISSOCK(status.st_mode) and self.allows(status.st_uid):
                        found.append(Entry(int(name[4:], 16), name, directory))
        return found

    def find(self, guid: int) -> Entry | None:
        """
        The HCA with this GUID, None if there is none.
        """
        self._check()
        name = f"hca-{guid:016x}"
        for _ in range(2):
            for directory in self._directories:
                status = directory.status(name)
                if status is not None and self.allows(status.st_uid):
                    return Entry(guid, name, directory)
            if not self._refresh():
                break
        return None

    def connect(self, entry: Entry) -> socket.socket:
        """
        A non-blocking SEQPACKET socket connected to an HCA.  Its process is
        still to be checked by L{twisted_ib.hca.host.liveness.checkPeer}.

        @raise ResourceLimitError: too many wait there; try again later.
        @raise NoListenerError: nobody serves it.
        """
        self._check()
        try:
            return connect(entry.directory, entry.name, socket.SOCK_SEQPACKET)
        except BlockingIOError as error:
            raise ResourceLimitError(f"too many processes wait for {entry.name}") from error
        except OSError as error:
            raise NoListenerError(f"nobody serves {entry.name}: {error.strerror}") from error

    def listenerOf(self, guid: int) -> PeerCredentials | None:
        """
        The process that listens where others find the HCA of a GUID; None if nobody
        does.

        @raise OSError: that cannot be found out now; too many wait there, or no
            descriptor is free.
        """
        entry = self.find(guid)
        if entry is None:
            return None
        try:
            pair = connect(entry.directory, entry.name, socket.SOCK_SEQPACKET)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        try:
            return peerCredentials(pair)
        finally:
            pair.close()

    def members(self, group: int) -> tuple[int, ...]:
        """
        The GUIDs of the HCAs in a multicast group, at most L{limits.MULTICAST_MEMBERS}
        of them; some may be dead.  The same tuple while the directories do not change.

        @raise RunDirectoryError: they cannot be read.
        """
        self._check()
        stamps = [directory.stamp() for directory in self._directories]
        known = self._groups.get(group)
        if known is not None and known[0] == stamps:
            return known[1]
        if known is None:
            self._refresh()
        found = self._searchGroup(group)
        if known is not None and known[1] == found:
            found = known[1]
        if max(stamps, default=0) >= time.time_ns() - _SETTLED_NANOSECONDS:
            stamps = []  # There may be more that look the same.
        if known is None and len(self._groups) >= LOOKUPS_REMEMBERED:
            self._groups.clear()
        self._groups[group] = (stamps, found)
        return found

    def _searchGroup(self, group: int) -> tuple[int, ...]:
        """
        The GUIDs that a group's entries name, in all directories, in order.  Where there are
        too many, our own user's come first, and of each other user's only a part.
        """
        start = groupName(group, 0)[:-16]
        found: dict[int, set[int]] = {self.uid: set()}
        for directory in self._directories:
            for name in directory.names():
                if name.startswith(start):
                    uid = self._memberOwner(directory, name, name[len(start) :])
                    if uid is not None:
                        found.setdefault(uid, set()).add(int(name[len(start) :], 16))
        chosen = sorted(found.pop(self.uid))
        for guids in found.values():
            chosen += sorted(guids)[: max(1, limits.MULTICAST_MEMBERS // limits.PEERS_USER_DIVISOR)]
        return tuple(sorted(chosen[: limits.MULTICAST_MEMBERS]))

    def _memberOwner(self, directory: RunDirectory, name: str, guid: str) -> int | None:
        """
        The user whose HCA a group's entry makes a member; None if it does not: only its
        owner makes it one, and while it has a socket.

        @param guid: as the entry's name has it.
        """
        hca = self._hcaOf(directory, name)
        if hca is None or hca[4:] != guid:
            return None
        statuses = directory.status(name), directory.status(hca)
        if statuses[0] is None or statuses[1] is None or statuses[0].st_uid != statuses[1].st_uid:
            return None
        return statuses[0].st_uid

    def _isHome(self, directory: RunDirectory) -> bool:
        """
        Whether something of ours is bound in a directory, so that it must stay
        open even when it was removed.
        """
        return False

    def _refresh(self) -> bool:
        """
        Open directories that were made since.

        @return: whether there are any.
        """
        self._check()
        kept = [d for d in self._directories if self._isHome(d) or d.isCurrent()]
        for directory in self._directories:
            if directory not in kept:
                directory.close()
        self._directories = kept
        self._known.clear()
        known = {directory.path for directory in kept if directory.isCurrent()}
        fresh, _ = openDirectories(self._environment, self.uid, False)
        new = []
        for directory in fresh:
            if directory.path in known:
                directory.close()
            else:
                new.append(directory)
        self._directories.extend(new)
        return bool(new)

    def close(self) -> None:
        """
        Close.  Harmless when repeated.
        """
        self._closeDescriptors()

    def _closeDescriptors(self) -> None:
        directories, self._directories = self._directories, []
        for directory in directories:
            directory.close()


_searches: weakref.WeakSet[Search] = weakref.WeakSet()


def _afterForkInChild() -> None:
    """
    Close a forked child's copies of descriptors: a listening socket would look
    alive when the parent is dead.
    """
    for search in list(_searches):
        search._closeDescriptors()
    _searches.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afterForkInChild)


__all__ = ["Search"]
