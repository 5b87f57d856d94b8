"""
Rendezvous: the entries by which the processes of one host find an HCA.

Each HCA has a listening socket in a run directory, and for each of its services an entry that points to it
(L{twisted_ib.hca.host.entries}).  As in TCP a listener on 0.0.0.0 excludes one on 127.0.0.1 with the same
port, and a client finds the exact address first.  Services that belong to TCP sockets exclude each other only
where the kernel's sockets do, which it finds out itself (bind(2), listen(2)): here they share an entry.

A killed process leaves its entries behind.  They are dead when no process listens on the socket any more;
the next process that wants the name removes them, under the directory's lock.

A process that drops root (C{twistd --uid}) keeps a directory that it cannot write any more and that clients
of the new user do not search.  L{Rendezvous.uid} is the user at opening, L{Rendezvous.checkOwner} finds out
that it has changed, and L{Rendezvous.successor} publishes the same services in the new user's directory.
Keep the old one too: root's clients find the process there, and root's next process removes what this one
cannot.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from twisted_ib import limits
from twisted_ib.drive.process import members, sleep
from twisted_ib.errors import HCAError, RunDirectoryError, ServiceInUseError
from twisted_ib.hca.host import addresses, libc
from twisted_ib.hca.host.entries import (
    SERVICE,
    SERVICE_TARGETS,
    Entry,
    groupName,
    isServed,
    leftovers,
    reclaim,
    serviceName,
    targetName,
    targetsOf,
)
from twisted_ib.hca.host.libc import KernelSocket
from twisted_ib.hca.host.rundirectory import RunDirectory
from twisted_ib.hca.host.search import Search, searches
from twisted_ib.hca.host.socketpage.page import SUFFIX, SocketPage

#: Targets of other users' entries at one service, dead or alive, that L{Rendezvous.publish} looks for.
FOREIGN_TARGETS = 256
#: listen(2): connections that the kernel queues for an HCA until they are accepted.
RENDEZVOUS_BACKLOG = 128
#: How often a process looks whether others have made their lost entries anew, and its sleep between two
#: looks, in seconds.
SETTLE_ATTEMPTS = 200
SETTLE_PAUSE_SECONDS = 0.005


class Rendezvous(Search):
    """
    The entries of one HCA in the run directories.

    @ivar guid: of the HCA.
    @ivar name: of its socket's entry.
    @ivar missing: the errors of entries that a L{reopened} one has not.
    @ivar watch: a descriptor that is readable when that, or the directory, may have gone; -1 without inotify.
    """

    def __init__(
        self, guid: int, environment: Mapping[str, str] = os.environ, namespace: int | None = None
    ) -> None:
        """
        Open the directories; make the first one if need be.

        @param namespace: what stands in the place of the network namespace, if services are not of one.
        @raise RunDirectoryError: none can be used.
        """
        super().__init__(environment, True)
        if namespace is not None:
            self.namespace = namespace
        self.guid = guid
        self.name = f"hca-{guid:016x}"
        self._listener: socket.socket | None = None
        self._services: dict[tuple[int, str], str] = {}
        self._inodes: dict[tuple[int, str], int] = {}
        self._joined: dict[int, str] = {}
        self._wanted: tuple[dict[tuple[int, str], int], tuple[int, ...]] = {}, ()
        self._isSettled = False
        self._page: SocketPage | None = None
        self.missing: list[HCAError] = []
        self._home = self._directories[0]
        self.watch = -1

    def _isHome(self, directory: RunDirectory) -> bool:
        return directory is self._home

    def bind(self) -> socket.socket:
        """
        Make the HCA's socket, and remove the entries of dead HCAs.

        @return: the listening socket, non-blocking; L{close} closes it.
        @raise RunDirectoryError: it cannot be made.
        """
        self._check()
        if self._listener is not None:
            return self._listener
        home = self._home
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        listener = None
        try:
            listener = KernelSocket(socket.AF_UNIX, kind)
            left = leftovers(home)
            # reclaim() takes a link for dead if its socket is not in the same listing of the directory, so
            # nothing may be made between its look and our bind(2), here or in another process.
            with home.locked():
                reclaim(home, left)
                # Before the socket: until that is there, new processes wait (_settle).
                self._resume()
                listener.bind(home.socketPath(self.name))
                listener.listen(RENDEZVOUS_BACKLOG)
                # unix(7): connecting needs write permission on the socket file.  Without a shared directory
                # nobody else gets that far; in one, checkPeer decides.
                os.chmod(self.name, 0o666 if home.shared else 0o600, dir_fd=home.fd)
            self._listener = listener
            if self._page is not None:
                self.attach(self._page)
        except OSError as error:
            raise RunDirectoryError(f"{home.path}/{self.name} cannot be made: {error}") from error
        finally:
            if listener is not None and self._listener is None:
                listener.close()
        # The socket stays open when its file is removed, which changes the file's link count (inotify(7),
        # IN_ATTRIB); for a directory that is still open there is no such event.
        watches = (
            (home.socketPath(self.name), libc.IN_ATTRIB | libc.IN_MOVE_SELF),
            (home.path, libc.IN_MOVE_SELF),
        )
        with suppress(OSError):  # No instance is free: each user has but 128.
            self.watch = libc.inotify(watches)
        return listener

    def attach(self, page: SocketPage) -> None:
        """
        Have a socket page beside the HCA's socket, as long as that is there.
        """
        self._page = page
        # Optional: without it ib-ss does not see what a busy process has.
        with suppress(OSError):
            page.make(self._home.fd, self.name + SUFFIX)

    def publish(self, serviceID: int, address: str, inode: int = 0) -> None:
        """
        Let the HCA be found by a service.

        @param inode: of the TCP socket that is bound to the same address and port for the same consumer; 0
            if there is none.  Others of this user with such a socket keep their entries.
        @raise ServiceInUseError: a living process listens there.
        @raise RunDirectoryError: the directory cannot be written.
        @raise ValueError: C{address} is not an IP address.
        """
        address = addresses.normalise(address)
        with self._allLocked():
            beside: list[tuple[str, int]] = []
            for directory in self._directories:
                beside += self._makeRoom(directory, serviceID, address, inode)
            self._link(serviceID, address, inode, beside)

    def publishAny(self, prefix: int, address: str) -> int:
        """
        Publish a service with a free port from 49152 up.

        @param prefix: the service id of port 0.
        @return: the port; the service id is C{prefix + port}.
        @raise ServiceInUseError: no port is free.
        """
        address = addresses.normalise(address)
        with self._allLocked():
            taken = self._takenPorts(prefix)
            for _ in range(limits.PORT_ATTEMPTS):
                port = addresses.freePort(taken)
                try:
                    self._link(prefix + port, address)
                    return port
                # symlink(2), EEXIST: an entry of a user who is not allowed; names() does not list it.
                except ServiceInUseError:
                    taken.add(port)
        raise ServiceInUseError(f"no free port was found in {limits.PORT_ATTEMPTS} attempts")

    @contextmanager
    def _allLocked(self) -> Iterator[None]:
        assert self._listener is not None, "bind first"
        if not self._isSettled:
            self._settle()
        # In one order that every process uses (_refreshed), so that two cannot deadlock.
        with ExitStack() as stack:
            for directory in self._refreshed():
                stack.enter_context(directory.locked())
            yield

    def _takenPorts(self, prefix: int) -> set[int]:
        taken = set()
        for directory in self._directories:
            for name in directory.names():
                match = SERVICE.match(name)
                # Dead entries count as well, and any address: a random port has enough alternatives.  Other
                # network namespaces have ports of their own.
                if match is not None and int(match[2]) == self.namespace:
                    taken.add(int(match[1], 16) - prefix)
        return taken

    def _makeRoom(
        self, directory: RunDirectory, serviceID: int, address: str, inode: int
    ) -> list[tuple[str, int]]:
        """
        Remove dead entries that conflict with a service; the directory is locked.

        @return: the living targets of the service's own entry, which it can share.
        @raise ServiceInUseError: one is alive, or not ours to remove.
        """
        start = serviceName(serviceID, self.namespace, "")
        status = directory.status(start + address)
        # An entry of a user who is not allowed counts for nobody here, but its name cannot be used twice.
        if directory is self._home and status is not None and not self.allows(status.st_uid):
            raise ServiceInUseError(
                f"{directory.path}/{start}{address} belongs to user {status.st_uid} who is not let in"
            )
        beside: list[tuple[str, int]] = []
        budget = FOREIGN_TARGETS
        for name in directory.names():
            if not name.startswith(start):
                continue
            other = name[len(start) :]
            if not addresses.conflict(address, other):
                continue
            status = directory.status(name)
            # A stranger's entry must not keep us from listening: no client of ours follows it.
            if status is None or not self.allows(status.st_uid):
                continue
            pointed = self._pointed(directory, name)
            if status.st_uid != self.uid:
                # Each costs a connection, and the caller is a reactor that waits.
                budget -= max(1, len(pointed))
                if budget < 0:
                    raise ServiceInUseError(
                        f"user {status.st_uid} has left too many entries to look at, such as"
                        f" {directory.path}/{name}; remove those of dead processes"
                    )
            living = [(hca, tcp) for hca, tcp, _ in pointed if hca == self.name or isServed(directory, hca)]
            # As SO_REUSEPORT (socket(7)): one user's sockets may share a port, and the kernel decides it.
            mayShare = inode and status.st_uid == self.uid and len(living) < SERVICE_TARGETS
            if not all(mayShare and tcp and hca != self.name for hca, tcp in living):
                raise ServiceInUseError(f"a process listens on {other} already ({directory.path}/{name})")
            if living:
                beside += living if directory is self._home and other == address else []
            elif not directory.remove(name) and directory is self._home and other == address:
                raise ServiceInUseError(
                    f"{directory.path}/{name} is left from a dead process of user {status.st_uid}; remove it"
                )
        return beside

    def _link(
        self, serviceID: int, address: str, inode: int = 0, beside: Sequence[tuple[str, int]] = ()
    ) -> None:
        name = serviceName(serviceID, self.namespace, address)
        try:
            if beside:
                self._replace(name, [*beside, (self.name, inode)])
            else:
                self._point(name, inode)
        except FileExistsError as error:
            raise ServiceInUseError(f"{self._home.path}/{name} is taken") from error
        self._services[serviceID, address] = name
        self._inodes[serviceID, address] = inode

    def _point(self, name: str, inode: int = 0) -> None:
        # symlink(2) fails if the name exists, so of two users who do not share a lock only one succeeds.
        self._symlink(targetName(self.name, inode), name)

    def _replace(self, name: str, targets: Sequence[tuple[str, int]]) -> None:
        # Change the targets of a service's link, whose directory is locked, so that there always is one.
        home, new = self._home, f"{self.name}.new"
        self._symlink(",".join(targetName(hca, inode) for hca, inode in targets), new)
        try:
            os.rename(new, name, src_dir_fd=home.fd, dst_dir_fd=home.fd)
        except OSError as error:
            home.remove(new)
            raise RunDirectoryError(f"{home.path}/{name} cannot be changed: {error.strerror}") from error

    def _symlink(self, target: str, name: str) -> None:
        home = self._home
        try:
            os.symlink(target, name, dir_fd=home.fd)
        except FileExistsError:
            raise
        except OSError as error:
            raise RunDirectoryError(f"{home.path}/{name} cannot be made: {error.strerror}") from error

    def join(self, group: int) -> None:
        """
        Let the HCA be found as a member of a multicast group.

        @param group: A GID, an integer of 128 bits.
        @raise RunDirectoryError: the entry cannot be made.
        """
        self._check()
        name = groupName(group, self.guid)
        try:
            self._point(name)
        except FileExistsError as error:
            status = self._home.status(name)
            if self._home.readLink(name) != self.name or status is None or status.st_uid != self.uid:
                # Another user's entry would count for some clients only, and we could not remove it.
                raise RunDirectoryError(f"{self._home.path}/{name} is taken; remove it") from error
        self._joined[group] = name

    def leave(self, group: int) -> None:
        """
        End a membership.  Harmless when repeated, and in a forked child.
        """
        name = self._joined.pop(group, None)
        # A forked child inherits this object, but the entries are its parent's.
        if name is not None and os.getpid() == self._pid:
            self._unlink(name)

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Undo L{publish}.  Harmless when repeated, and in a forked child.
        """
        key = serviceID, addresses.normalise(address)
        name = self._services.pop(key, None)
        inode = self._inodes.pop(key, 0)
        if name is not None and os.getpid() == self._pid:
            self._unlink(name, inode)

    def _unlink(self, name: str, inode: int = 0) -> None:
        with ExitStack() as stack:
            if inode:
                # Others may be adding themselves to the link.
                with suppress(RunDirectoryError):
                    stack.enter_context(self._home.locked())
            targets = targetsOf(self._home.readLink(name))
            others = [each for each in targets if each[0] != self.name]
            if others and len(others) < len(targets):
                with suppress(FileExistsError, RunDirectoryError):
                    self._replace(name, others)
            elif targets and not others:
                self._home.remove(name)

    def _refreshed(self) -> list[RunDirectory]:
        self._refresh()
        # Removed or replaced since: entries made through the old descriptor would be in a directory that no
        # path leads to.
        if not self._home.isCurrent():
            raise RunDirectoryError(f"{self._home.path} was removed or replaced; start this program again")
        return sorted(self._directories, key=lambda directory: directory.path)

    @property
    def place(self) -> str:
        """
        The path of the directory that has the entries.
        """
        return self._home.path

    def isLost(self) -> bool:
        """
        Whether the HCA cannot be found any more, because its directory or its socket was removed or replaced.
        """
        return not self._home.isCurrent() or self._home.status(self.name) is None

    def reopened(self) -> Rendezvous:
        """
        @return: One for the same HCA, in the directory that is there now.  When this one is closed, L{bind}
            makes all its entries there; C{missing} says why some of them are not.
        @raise RunDirectoryError: no directory can be used.
        """
        following = Rendezvous(self.guid, self._environment, self.namespace)
        services, groups = self._wanted  # Not empty if this one could not be bound.
        following._wanted = {**services, **self._inodes}, (*groups, *self._joined)
        following._page, self._page = self._page, None
        return following

    def _resume(self) -> None:
        # Make the entries that the rendezvous before had; the directory is locked.
        services, groups = self._wanted
        self._wanted = {}, ()
        for (serviceID, address), inode in services.items():
            try:
                beside = self._makeRoom(self._home, serviceID, address, inode)
                self._link(serviceID, address, inode, beside)
            except HCAError as error:
                self.missing.append(error)
        for group in groups:
            try:
                self.join(group)
            except HCAError as error:
                self.missing.append(error)

    def _settle(self) -> None:
        # Wait for living processes that have lost their entries with the directory: until they have made them
        # anew, their ports look free.
        self._isSettled = True
        ours = {each.name for each in members(searches) if isinstance(each, Rendezvous)}
        for _ in range(SETTLE_ATTEMPTS):
            if not self._home.orphans(ours):
                return
            sleep(SETTLE_PAUSE_SECONDS)

    def successor(self) -> Rendezvous | None:
        """
        Publish the same HCA, services and groups in the directory of the user that this process has changed
        to.

        @return: L{None} if the user has not changed.
        @raise ServiceInUseError: a service is taken there.
        @raise RunDirectoryError: that directory cannot be used.
        """
        if os.geteuid() == self.uid:
            return None
        following = Rendezvous(self.guid, self._environment, self.namespace)
        try:
            following.bind()
            for serviceID, address in self._services:
                following.publish(serviceID, address, self._inodes[serviceID, address])
            for group in self._joined:
                following.join(group)
        except BaseException:
            following.close()
            raise
        page, self._page = self._page, None
        if page is not None:
            following.attach(page)
        return following

    def release(self) -> socket.socket | None:
        """
        Close, but for the listening socket, which others that look for lost processes still see.

        @return: that, the caller's to close.
        """
        self._removeEntries()
        listener, self._listener = self._listener, None
        self.close()
        return listener

    def close(self) -> None:
        # In a forked child only the child's descriptors are closed: the entries are the parent's.
        self._removeEntries()
        super().close()

    def _removeEntries(self) -> None:
        if self._directories and os.getpid() == self._pid:
            for key, name in self._services.items():
                self._unlink(name, self._inodes[key])
            for name in self._joined.values():
                self._unlink(name)
            if self._listener is not None:
                self._home.remove(self.name + SUFFIX)
                self._home.remove(self.name)
        self._services.clear()
        self._inodes.clear()
        self._joined.clear()

    def _closeDescriptors(self) -> None:
        watch, self.watch = self.watch, -1
        if watch >= 0:
            libc.endInotify(watch)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if self._page is not None:
            self._page.close()
        super()._closeDescriptors()


__all__ = ["Entry", "Rendezvous"]
