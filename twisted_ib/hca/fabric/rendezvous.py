"""
How an HCA is found by the processes of the same host.

Each HCA has a listening socket in a run directory, and each of its services an
entry that points to it (L{twisted_ib.hca.fabric.entries}).  As in TCP a listener
on 0.0.0.0 excludes one on 127.0.0.1 with the same port, and a client finds the
exact address first.

A killed process leaves its entries.  They are dead when nobody listens on the
socket any more, and the next process that wants the place removes them, under
the directory's lock.

Root that gives up its rights (C{twistd --uid}) keeps a directory that it can not
write any more and where clients of the new user do not look.  L{Rendezvous.uid}
is the user at opening, L{Rendezvous.checkOwner} tells when it is no longer ours
and L{Rendezvous.successor} publishes the same services in the new user's
directory.  Keep the old one too: clients that are root find the process there;
what it can not remove at its end the next process of root does.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import weakref
from collections.abc import Mapping
from contextlib import ExitStack

from twisted_ib import limits
from twisted_ib.errors import (
    NoListenerError,
    ResourceLimitError,
    RunDirectoryError,
    ServiceInUseError,
)
from twisted_ib.hca.fabric import addresses
from twisted_ib.hca.fabric.entries import HCA, SERVICE, Entry, connect, isServed, reclaim, serviceName
from twisted_ib.hca.fabric.rundirectory import RunDirectory, allowedUids, openDirectories

_FIRST_EPHEMERAL_PORT = 49152
_PORTS = 65536


class Rendezvous:
    """
    The place of one HCA in the run directories.

    @ivar guid: of the HCA.
    @ivar name: of its socket's entry.
    @ivar uid: the effective user at opening.
    @ivar allowed: the users that are let in besides.
    """

    def __init__(self, guid: int, environment: Mapping[str, str] = os.environ) -> None:
        """
        Open the directories; make the first one if need be.

        @raise RunDirectoryError: none will do.
        """
        self.guid = guid
        self.name = f"hca-{guid:016x}"
        self.uid = os.geteuid()
        self.allowed = allowedUids(environment)
        self._environment = dict(environment)
        self._pid = os.getpid()
        self._listener: socket.socket | None = None
        self._services: dict[tuple[int, str], str] = {}
        self._directories, refused = openDirectories(self._environment, self.uid, True)
        if not self._directories:
            raise RunDirectoryError("; and ".join([str(error) for error in refused]))
        self._home = self._directories[0]
        _rendezvous.add(self)

    # ---- who may

    def allows(self, uid: int) -> bool:
        """
        Whether processes of a user may share rings with this one.
        """
        return uid == self.uid or uid in self.allowed or uid == os.geteuid()

    def checkOwner(self) -> None:
        """
        Whether this process still has the user that it opened the directory as.

        @raise RunDirectoryError: it has not; see L{successor}.
        """
        uid = os.geteuid()
        if uid != self.uid:
            raise RunDirectoryError(
                f"{self._home.path} was opened as user {self.uid} and the process is user {uid} now; "
                "listen after the user has changed"
            )

    def _check(self) -> None:
        """
        Whether this is the process that opened the directory, as the same user.

        @raise RunDirectoryError: it is a child forked from it, or another user
            now, or the rendezvous is closed.
        """
        if os.getpid() != self._pid:
            raise RunDirectoryError(f"{self._home.path} was opened by process {self._pid}, not by this one")
        if not self._directories:
            raise RunDirectoryError(f"the rendezvous in {self._home.path} is closed")
        self.checkOwner()

    # ---- the server's side

    def bind(self) -> socket.socket:
        """
        Make the HCA's socket, and remove what dead HCAs left.

        @return: the listening socket, non-blocking; L{close} closes it.
        @raise RunDirectoryError: it can not be made.
        """
        self._check()
        if self._listener is not None:
            return self._listener
        home = self._home
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        listener = socket.socket(socket.AF_UNIX, kind)
        try:
            with home.locked():
                reclaim(home)
                listener.bind(home.socketPath(self.name))
                listener.listen(limits.RENDEZVOUS_BACKLOG)
                os.chmod(self.name, 0o666 if home.shared else 0o600, dir_fd=home.fd)
        except OSError as error:
            listener.close()
            raise RunDirectoryError(f"{home.path}/{self.name} can not be made: {error}") from error
        except BaseException:
            listener.close()
            raise
        self._listener = listener
        return listener

    def publish(self, serviceID: int, address: str) -> None:
        """
        Let the HCA be found under a service.

        @raise ServiceInUseError: a living process listens there.
        @raise RunDirectoryError: the directory can not be written.
        @raise ValueError: C{address} is none.
        """
        assert self._listener is not None, "bind first"
        address = addresses.normalise(address)
        namespace = addresses.namespaceInode()
        with ExitStack() as stack:
            for directory in self._refreshed():
                stack.enter_context(directory.locked())
            for directory in self._directories:
                self._makeRoom(directory, serviceID, namespace, address)
            self._link(serviceID, namespace, address)

    def publishAny(self, prefix: int, address: str) -> int:
        """
        Let the HCA be found under a service with a free port from 49152 up.

        @param prefix: the service id of port 0.
        @return: the port; the service id is C{prefix + port}.
        @raise ServiceInUseError: no port is free.
        """
        assert self._listener is not None, "bind first"
        address = addresses.normalise(address)
        namespace = addresses.namespaceInode()
        with ExitStack() as stack:
            for directory in self._refreshed():
                stack.enter_context(directory.locked())
            taken = self._takenPorts(prefix, namespace)
            free = [port for port in range(_FIRST_EPHEMERAL_PORT, _PORTS) if port not in taken]
            if not free:
                raise ServiceInUseError(f"no port from {_FIRST_EPHEMERAL_PORT} up is free")
            port = secrets.choice(free)
            self._link(prefix + port, namespace, address)
        return port

    def _takenPorts(self, prefix: int, namespace: int) -> set[int]:
        """
        The ports that have an entry, dead or alive, for any address.
        """
        taken = set()
        for directory in self._directories:
            for name in directory.names():
                match = SERVICE.match(name)
                if match is not None and int(match[2]) == namespace:
                    taken.add(int(match[1], 16) - prefix)
        return taken

    def _makeRoom(self, directory: RunDirectory, serviceID: int, namespace: int, address: str) -> None:
        """
        Remove dead entries that are in a service's way; the directory is
        locked.

        @raise ServiceInUseError: one is alive, or not ours to remove.
        """
        wild = addresses.wildcard(address)
        start = serviceName(serviceID, namespace, "")
        for name in directory.names():
            if not name.startswith(start):
                continue
            other = name[len(start) :]
            if addresses.wildcard(other) != wild or (other != address and wild not in (other, address)):
                continue
            status = directory.status(name)
            if status is None or not self.allows(status.st_uid):
                if directory is self._home and other == address and status is not None:
                    raise ServiceInUseError(
                        f"{directory.path}/{name} belongs to user {status.st_uid} who is not let in"
                    )
                continue
            hca = self._hcaOf(directory, name)
            if hca is not None and isServed(directory, hca):
                raise ServiceInUseError(f"a process listens on {other} already ({directory.path}/{name})")
            if not directory.remove(name) and directory is self._home and other == address:
                raise ServiceInUseError(
                    f"{directory.path}/{name} is left from a dead process of user {status.st_uid}; remove it"
                )

    def _link(self, serviceID: int, namespace: int, address: str) -> None:
        """
        Make a service's entry; the directory is locked.

        @raise RunDirectoryError: it can not be made.
        """
        home = self._home
        name = serviceName(serviceID, namespace, address)
        try:
            os.symlink(self.name, name, dir_fd=home.fd)
        except OSError as error:
            raise RunDirectoryError(f"{home.path}/{name} can not be made: {error.strerror}") from error
        self._services[serviceID, address] = name

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Let the HCA no longer be found under a service.  Harmless when
        repeated, and in a forked child.
        """
        name = self._services.pop((serviceID, addresses.normalise(address)), None)
        if name is not None and os.getpid() == self._pid:
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        """
        Remove a service's entry if it is still ours.
        """
        if self._home.readLink(name) == self.name:
            self._home.remove(name)

    # ---- the client's side

    def lookup(self, serviceID: int, address: str) -> list[Entry]:
        """
        The HCAs that listen on a service, the one to ask first at the front.

        First is who listens on the exact address, then who listens on all of
        its family; for IPv4 then who listens on C{::}, as a Linux socket there
        serves both.  Entries may be dead: L{connect} says so.

        @raise ValueError: C{address} is none.
        """
        self._check()
        address = addresses.normalise(address)
        wanted = [address, addresses.wildcard(address), "::"]
        if wanted[0] in ("0.0.0.0", "::"):  # as TCP: "this host"
            wanted.insert(0, "127.0.0.1" if wanted[0] == "0.0.0.0" else "::1")
        namespace = addresses.namespaceInode()
        names = [(where, serviceName(serviceID, namespace, where)) for where in dict.fromkeys(wanted)]
        found = self._search(names)
        return found or (self._search(names) if self._refresh() else [])

    def _search(self, names: list[tuple[str, str]]) -> list[Entry]:
        """
        The HCAs that services point to, address by address.
        """
        found = []
        for address, name in names:
            for directory in self._directories:
                hca = self._hcaOf(directory, name)
                if hca is not None:
                    found.append(Entry(int(hca[4:], 16), hca, directory, address))
        return found

    def _hcaOf(self, directory: RunDirectory, name: str) -> str | None:
        """
        The HCA that a service's entry points to; None if there is no entry or
        a user who is not let in made it or the HCA's socket.
        """
        target = directory.readLink(name)
        if target is None or not HCA.match(target):
            return None
        for entry in (name, target):
            status = directory.status(entry)
            if status is None:
                if entry == target:
                    return target  # gone: dead, but an entry
                return None
            if not self.allows(status.st_uid):
                return None
        return target

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
        still to be checked by L{twisted_ib.hca.fabric.liveness.checkPeer}.

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

    # ---- directories that come and go

    def _refresh(self) -> bool:
        """
        Open directories that were made since.

        @return: whether there are any.
        """
        self._check()
        kept = [d for d in self._directories if d is self._home or d.isCurrent()]
        for directory in self._directories:
            if directory not in kept:
                directory.close()
        self._directories = kept
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

    def _refreshed(self) -> list[RunDirectory]:
        """
        All directories, in the order in which every process locks them.

        @raise RunDirectoryError: ours was removed.
        """
        self._refresh()
        if not self._home.isCurrent():
            raise RunDirectoryError(f"{self._home.path} was removed or replaced; start this program again")
        return sorted(self._directories, key=lambda directory: directory.path)

    # ---- change of user, end

    def successor(self) -> Rendezvous | None:
        """
        After this process has changed its user: the same HCA and services,
        bound anew in the directory of the user that it is now.

        @return: None if the user has not changed.
        @raise ServiceInUseError: there a service is taken.
        @raise RunDirectoryError: that directory will not do.
        """
        if os.geteuid() == self.uid:
            return None
        following = Rendezvous(self.guid, self._environment)
        try:
            following.bind()
            for serviceID, address in self._services:
                following.publish(serviceID, address)
        except BaseException:
            following.close()
            raise
        return following

    def close(self) -> None:
        """
        Remove our entries and close.  Harmless when repeated; in a forked
        child only the child's descriptors are closed.
        """
        if self._directories and os.getpid() == self._pid:
            for name in self._services.values():
                self._unlink(name)
            if self._listener is not None:
                self._home.remove(self.name)
        self._services.clear()
        self._closeDescriptors()

    def _closeDescriptors(self) -> None:
        """
        Close the socket and the directories.
        """
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        directories, self._directories = self._directories, []
        for directory in directories:
            directory.close()


_rendezvous: weakref.WeakSet[Rendezvous] = weakref.WeakSet()


def _afterForkInChild() -> None:
    """
    Close a forked child's copies of the listening sockets, which would look
    alive when the parent is dead.
    """
    for rendezvous in list(_rendezvous):
        rendezvous._closeDescriptors()
    _rendezvous.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afterForkInChild)


__all__ = ["Entry", "Rendezvous"]
