"""
Search: how a process finds the HCAs of other processes of the same host.

It reads the entries that they made in the run directories (L{twisted_ib.hca.host.entries},
L{twisted_ib.hca.host.rendezvous}).
"""

from __future__ import annotations

import os
import socket
import stat
import weakref
from collections.abc import Mapping
from contextlib import suppress
from random import random

from twisted_ib import limits
from twisted_ib.drive.process import forEach, life, time_ns
from twisted_ib.errors import BacklogFullError, HandshakeError, NoListenerError, RunDirectoryError
from twisted_ib.hca.host import addresses
from twisted_ib.hca.host.entries import (
    HCA,
    SERVICE,
    Entry,
    connect,
    groupName,
    isServed,
    serviceName,
    targetsOf,
)
from twisted_ib.hca.host.liveness import PeerCredentials, peerCredentials
from twisted_ib.hca.host.rundirectory import RunDirectory, allowedUids, openDirectories
from twisted_ib.settings import ALLOW_UIDS

_ELSEWHERE = "in another network namespace"

#: Services, and multicast groups, whose look-up is cached while the run directories do not change.
LOOKUPS_REMEMBERED = 1024
#: How often L{Search.find} looks into directories that were made since: somebody may replace them for ever.
LOOKS = 8

# inode(7): mtime has the granularity of the kernel's tick, up to 10 ms, so two changes within one tick look
# the same. A result is cached only if the last change is older than this, and no second one can hide behind
# it.
_SETTLED_NANOSECONDS = 50_000_000


class Search:
    """
    Look-ups in the run directories of this user.

    @ivar uid: the effective user at opening.
    @ivar allowed: the users that are allowed besides.
    @ivar namespace: the network namespace at opening, which stays ours.
    @ivar refused: why some of the possible directories are not used.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, create: bool = False) -> None:
        """
        Open the directories.

        @param create: whether to make the first possible one.
        @raise RunDirectoryError: there are some but none can be used.
        """
        self.uid = os.geteuid()
        self.allowed = allowedUids(environment)
        self.namespace = addresses.namespaceInode()
        self._environment = dict(environment)
        self._pid = os.getpid()
        self._known: dict[tuple[int, str], tuple[list[int], list[Entry]]] = {}
        self._groups: dict[int, tuple[list[int], tuple[int, ...]]] = {}
        self._directories, self.refused = openDirectories(self._environment, self.uid, create)
        if self.refused and not self._directories:
            texts = "; and ".join([str(error) for error in self.refused])
            raise RunDirectoryError(texts) from self.refused[0]
        searches.add(self)

    def allows(self, uid: int) -> bool:
        """
        Whether processes of a user may share rings with this one.
        """
        # The user at opening and the present one: root's clients still reach a process that has dropped
        # root.
        return uid == self.uid or uid in self.allowed or uid == os.geteuid()

    def checkOwner(self) -> None:
        """
        Check that this process still has the user that it opened the directories as.

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
        # A forked child would remove or replace its parent's entries.
        if os.getpid() != self._pid:
            raise RunDirectoryError(
                f"the run directory was opened by process {self._pid} and this is a child of it"
            )
        self.checkOwner()

    def stamps(self) -> list[int]:
        """
        @return: other numbers when something may be found that was not, but for changes within a tick of the
            kernel's clock.
        """
        return [directory.stamp() for directory in self._directories]

    def lookup(self, serviceID: int, address: str) -> list[Entry]:
        """
        Find the HCAs that listen on a service.  Entries may be dead: L{connect} finds out.

        @return: the best first (see L{servedBy<twisted_ib.hca.host.addresses.servedBy>}); not to be
            changed.
        @raise ValueError: C{address} is not an IP address.
        """
        self._check()
        address = addresses.normalise(address)
        # One fstat(2) per directory instead of a readlink(2) and two stat(2) per candidate: a client that
        # connects often looks up the same service.
        stamps = self.stamps()
        known = self._known.get((serviceID, address))
        if known is not None and known[0] == stamps:
            return known[1]
        found = self._search(serviceID, address)
        if not found and self._refresh():
            return self._search(serviceID, address)
        if found and max(stamps) < time_ns() - _SETTLED_NANOSECONDS:
            # Emptied as a whole: simpler than LRU, and a client of so many services is rare.
            if len(self._known) == LOOKUPS_REMEMBERED:
                self._known.clear()
            self._known[serviceID, address] = (stamps, found)
        return found

    def _search(self, serviceID: int, address: str) -> list[Entry]:
        found = []
        for where in addresses.servedBy(address):
            name = serviceName(serviceID, self.namespace, where)
            for directory in self._directories:
                for hca, inode, uid in self._pointed(directory, name):
                    found.append(Entry(int(hca[4:], 16), hca, directory, where, inode, uid))
        return found

    def ports(self, prefix: int, address: str, guid: int) -> set[int]:
        """
        @param prefix: the service id of port 0.
        @param address: in normal form.
        @return: the ports that an HCA of our user serves at just this address.
        @raise RunDirectoryError: the directories cannot be read.
        """
        self._check()
        found, hca = set(), f"hca-{guid:016x}"
        for directory in self._directories:
            for name in directory.names():
                match = SERVICE.match(name)
                if match is None or (int(match[2]), match[3]) != (self.namespace, address):
                    continue
                port = int(match[1], 16) - prefix
                if port >> 16 == 0 and any(
                    (target, uid) == (hca, self.uid) for target, _, uid in self._pointed(directory, name)
                ):
                    found.add(port)
        return found

    def _pointed(self, directory: RunDirectory, name: str) -> list[tuple[str, int, int]]:
        targets = targetsOf(directory.readLink(name))
        if not targets:
            return []
        status = directory.status(name)
        # In a shared directory everybody can make names; entry and socket must both belong to an allowed
        # user, or a stranger's link could lead to our socket and the other way round.
        if status is None or not self.allows(status.st_uid):
            return []
        found = []
        for hca, inode in targets:
            socket = directory.status(hca)
            # Without a socket the entry is dead, but it is an entry.
            if socket is None or self.allows(socket.st_uid):
                found.append((hca, inode, status.st_uid))
        return found

    def hidden(self, serviceID: int, address: str) -> str:
        """
        Say why a service that L{lookup} does not find is there all the same.

        @return: a clause about its listener, empty if there is none.
        """
        for where in addresses.servedBy(addresses.normalise(address)):
            name = serviceName(serviceID, self.namespace, where)
            for directory in self._directories:
                status = directory.status(name)
                if status is not None and not self.allows(status.st_uid):
                    return f"its owner, user {status.st_uid}, is not in {ALLOW_UIDS}"
                elsewhere = self._elsewhere(directory, serviceID, where)
                if elsewhere:
                    return elsewhere
        return ""

    def _elsewhere(self, directory: RunDirectory, serviceID: int, address: str) -> str:
        with suppress(RunDirectoryError):
            for name in directory.names():
                match = SERVICE.match(name)
                if match is None or (int(match[1], 16), match[3]) != (serviceID, address):
                    continue
                # A Unix socket with a path is reached from each namespace: so it is known whether the process
                # lives.
                namespace = int(match[2])
                if namespace != self.namespace and any(
                    isServed(directory, hca) for hca, _, _ in self._pointed(directory, name)
                ):
                    # Devices of subnets have 0 there.
                    isKind = not (namespace and self.namespace)
                    return f"it listens {'on another kind of device' if isKind else _ELSEWHERE}"
        return ""

    def hcas(self) -> list[Entry]:
        """
        @return: All HCAs that have a socket, dead or alive, our own too.
        """
        self._refresh()
        found = []
        for directory in self._directories:
            for name in directory.names():
                if HCA.match(name):
                    status = directory.status(name)
                    if status is not None and stat.S_ISSOCK(status.st_mode) and self.allows(status.st_uid):
                        found.append(Entry(int(name[4:], 16), name, directory, uid=status.st_uid))
        return found

    def find(self, guid: int) -> Entry | None:
        """
        @return: The HCA with this GUID, L{None} if there is none.
        """
        self._check()
        name = f"hca-{guid:016x}"
        # Again after new directories were opened: the HCA's process may have made the first one since.
        for _ in range(LOOKS):
            for directory in self._directories:
                status = directory.status(name)
                if status is not None and self.allows(status.st_uid):
                    return Entry(guid, name, directory)
            if not self._refresh():
                break
        return None

    def connect(self, entry: Entry) -> socket.socket:
        """
        Connect to an HCA: a non-blocking SEQPACKET socket, whose peer is still to be checked by
        L{twisted_ib.hca.host.liveness.checkPeer}.

        @raise BacklogFullError: try again later.
        @raise NoListenerError: no process listens on it.
        @raise HandshakeError: it cannot be asked: no descriptor is free, or it is another user's.
        """
        self._check()
        try:
            return connect(entry.directory, entry.name, socket.SOCK_SEQPACKET)
        # connect(2): a non-blocking Unix socket gets EAGAIN when the listener's backlog is full.
        except BlockingIOError as error:
            raise BacklogFullError(f"too many processes wait for {entry.name}") from error
        except (ConnectionError, FileNotFoundError) as error:
            raise NoListenerError(f"nobody serves {entry.name}: {error.strerror}") from error
        except OSError as error:
            # EMFILE and the like say nothing about the peer.
            raise HandshakeError(f"{entry.name} cannot be reached: {error.strerror}") from error

    def listenerOf(self, guid: int) -> PeerCredentials | None:
        """
        Find the process that listens under a GUID.

        @return: L{None} if none does.
        @raise OSError: this cannot be found out now: its backlog is full, or no descriptor is free.
        """
        entry = self.find(guid)
        if entry is None:
            return None
        try:
            pair = connect(entry.directory, entry.name, socket.SOCK_SEQPACKET)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        try:
            # unix(7), SO_PEERCRED: on the connecting side these are the credentials at listen(2).
            return peerCredentials(pair)
        finally:
            pair.close()

    def members(self, group: int) -> tuple[int, ...]:
        """
        @return: The GUIDs of the HCAs in a multicast group, at most L{limits.MULTICAST_MEMBERS}; some may
            be dead.  The same tuple while the directories do not change.
        @raise RunDirectoryError: they cannot be read.
        """
        self._check()
        stamps = self.stamps()
        known = self._groups.get(group)
        if known is not None and known[0] == stamps:
            return known[1]
        if known is None:
            self._refresh()
        found = self._searchGroup(group)
        # The same object as before: users compare by identity, once per datagram.
        if known is not None and known[1] == found:
            found = known[1]
        if max(stamps, default=0) >= time_ns() - _SETTLED_NANOSECONDS:
            # A change within the same tick could go unnoticed, so this result is read again next time.
            stamps = []
        if known is None and len(self._groups) >= LOOKUPS_REMEMBERED:
            self._groups.clear()
        self._groups[group] = (stamps, found)
        return found

    def _searchGroup(self, group: int) -> tuple[int, ...]:
        start = groupName(group, 0)[:-16]
        found: dict[int, set[int]] = {self.uid: set()}
        for directory in self._directories:
            for name in directory.names():
                if name.startswith(start):
                    uid = self._memberOwner(directory, name, name[len(start) :])
                    if uid is not None:
                        found.setdefault(uid, set()).add(int(name[len(start) :], 16))
        # Where there are too many members, our own user's come first and each other user gets a part only:
        # nobody can crowd the others out by making entries.
        chosen = sorted(found.pop(self.uid))
        for guids in found.values():
            chosen += sorted(guids)[: max(1, limits.MULTICAST_MEMBERS // limits.PEERS_USER_DIVISOR)]
        return tuple(sorted(chosen[: limits.MULTICAST_MEMBERS]))

    def _memberOwner(self, directory: RunDirectory, name: str, guid: str) -> int | None:
        pointed = self._pointed(directory, name)
        # The link must name its own HCA and have the same owner as its socket: only an HCA's owner makes it
        # a member.
        if len(pointed) != 1 or pointed[0][0][4:] != guid:
            return None
        hca = pointed[0][0]
        statuses = directory.status(name), directory.status(hca)
        if statuses[0] is None or statuses[1] is None or statuses[0].st_uid != statuses[1].st_uid:
            return None
        return statuses[0].st_uid

    def _isHome(self, directory: RunDirectory) -> bool:
        # Whether this process has entries in a directory, which then stays open even if it was removed.
        return False

    def _refresh(self) -> bool:
        # Open directories that were made since; return whether there are any.
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


def shared(found: list[Entry]) -> list[Entry]:
    """
    Share clients among the HCAs that have one service at one address.

    @param found: the result of a look-up.
    @return: the same, those of one address in random order.
    """
    if len(found) < 2:
        return found
    # Linux net/core/sock_reuseport.c, reuseport_select_sock, chooses by a hash of addresses and ports.
    places = {address: place for place, address in enumerate(dict.fromkeys(each.address for each in found))}
    return sorted(found, key=lambda each: (places[each.address], random()))


#: All of this process.
searches: weakref.WeakSet[Search] = weakref.WeakSet()


def closeWithin(low: int, high: int) -> None:
    """
    Close those whose descriptors the program is about to close.

    @param low: The first; C{high}: the one behind the last.
    """
    for search in tuple(searches):
        if any(low <= directory.fd < high for directory in search._directories):
            search.close()


# A child's copy of a listening socket would accept connections into its backlog after the parent's death.
life.atFork(__name__, inChild=forEach(searches, lambda search: search._closeDescriptors()))
