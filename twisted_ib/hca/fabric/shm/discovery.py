"""
The directory of a host: publishing services, finding the processes that serve them, checking peers.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from twisted_ib.errors import BacklogFullError, HandshakeError, HCAError, HiddenListenerError, NoListenerError
from twisted_ib.hca.fabric.shm.hotpaths import HotPaths
from twisted_ib.hca.fabric.shm.listeners import ListeningSockets
from twisted_ib.hca.fabric.shm.peersockets import PathRequest, PeerSockets
from twisted_ib.hca.fabric.shm.redials import Redials
from twisted_ib.hca.host.addresses import checkLocal
from twisted_ib.hca.host.rendezvous import Entry, Rendezvous
from twisted_ib.hca.host.search import shared
from twisted_ib.hca.host.socketpage.page import SocketPage

#: How long the run directory is left alone when something has happened to it, in seconds.
LOOK_PAUSE_SECONDS = 0.05
#: How often it is looked at, in seconds, while no directory can be used or there is no inotify.
LOOK_SECONDS = 10.0


class HostDirectory(HotPaths):
    """
    The directory of a fabric between processes: the half that deals with the host's run directories.

    @ivar rendezvous: This HCA's entries there.
    @ivar clock: Gives the time in seconds.
    """

    rendezvous: Rendezvous
    #: See L{Rendezvous}.
    _namespace: int | None = None
    clock: Callable[[], float]
    _poller: Any
    #: When to look whether our entries are still there; L{None} while inotify tells.
    _lookAt: float | None = None
    #: Whether they are not, and no directory can be used.
    _isHidden = False
    _listeners: ListeningSockets
    _pairs: PeerSockets
    _redials: Redials

    def _appear(self) -> None:
        self._user = os.geteuid()
        self.rendezvous = Rendezvous(self.guid, namespace=self._namespace)
        for error in self.rendezvous.refused:
            self.owner.warn(f"{error}; until then {self.rendezvous.place} is used")
        try:
            self.rendezvous.bind()
        except BaseException:
            self.rendezvous.close()
            raise

    def attachPage(self, page: SocketPage) -> None:
        """
        See L{IListed}.
        """
        self.rendezvous.attach(page)

    def _watch(self) -> None:
        watch = self.rendezvous.watch
        if watch >= 0:
            self._poller.register(watch, select.EPOLLIN)
        else:
            self._lookAt = self.clock() + LOOK_SECONDS

    def _stirred(self) -> None:
        """
        Something has happened to the run directory, or to our socket in it.
        """
        with suppress(OSError):
            os.read(self.rendezvous.watch, 4096)
        # The removal may still be under way, and would take an entry that is made too early with it.
        self._lookAt = self.clock() + LOOK_PAUSE_SECONDS

    def _look(self) -> None:
        self._lookAt = None
        if self.rendezvous.isLost():
            try:
                self._restore()
            except HCAError as error:
                if not self._isHidden:
                    self.owner.warn(f"clients cannot reach this process: {error}")
                self._isHidden = True
        elif self.rendezvous.watch < 0:
            self._lookAt = self.clock() + LOOK_SECONDS

    def _restore(self) -> None:
        """
        Make our entries anew, in the directory that is there now.

        @raise RunDirectoryError: none can be used.
        """
        self._lookAt = self.clock() + LOOK_SECONDS  # If this fails.
        old = self.rendezvous
        following = old.reopened()
        if old.watch >= 0:
            self._poller.unregister(old.watch)
        self.rendezvous = following
        self._listeners.replace(old, following)
        self._isHidden, self._lookAt = False, None
        hasMoved = following.place != old.place
        errors = [*(following.refused if hasMoved else ()), *following.missing]
        self._watch()
        self.count("run_directory_restored")
        self.owner.warn(
            f"{old.place} was removed or replaced, and this process has entered itself anew"
            + (f" in {following.place}" if hasMoved else "")
            + "".join(f"; {error}" for error in errors)
        )

    def _follow(self) -> None:
        # twistd --uid (twisted.scripts._twistd_unix, shedPrivileges) changes the user after the ports are
        # open. Clients of the new user search that user's run directory only, so the entries are published
        # there too.  The old listening socket stays: clients of the old user still connect through it.
        self._user = os.geteuid()
        try:
            rendezvous = self.rendezvous.successor()
        except HCAError as error:
            self.count("successor_failed")
            self.owner.warn(f"clients of user {self._user} cannot reach this process: {error}")
            return
        if rendezvous is not None:
            if self.rendezvous.watch >= 0:
                self._poller.unregister(self.rendezvous.watch)
            self._listeners.add(rendezvous)
            self.rendezvous = rendezvous
            self._watch()

    # -- services

    def publish(self, serviceID: int, address: str, inode: int = 0, isOwn: bool = False) -> None:
        """
        Let others find this HCA for a service at an address.

        @param inode: See L{IFabric}.
        @param isOwn: Whether the address is of this HCA alone, and so need not be one of the host.
        @raise ServiceInUseError: a living process listens there.
        @raise NoRouteError: the address is not one of this host.
        """
        if not isOwn:
            checkLocal(address, True)
        if self.rendezvous.isLost():
            self._restore()
        self.rendezvous.publish(serviceID, address, inode)

    def publishAny(self, prefix: int, address: str, isOwn: bool = False) -> int:
        """
        Publish a service with a free port.

        @param prefix: The service id of port 0.
        @param isOwn: See L{publish}.
        @return: The port.
        """
        if not isOwn:
            checkLocal(address, True)
        if self.rendezvous.isLost():
            self._restore()
        return self.rendezvous.publishAny(prefix, address)

    def withdraw(self, serviceID: int, address: str) -> None:
        """
        Undo L{publish}.
        """
        self.rendezvous.withdraw(serviceID, address)

    def serving(self, serviceID: int, address: str) -> list[int]:
        """
        @return: The GUIDs of the HCAs that serve the address, best first: see L{IFabric}.
        """
        return [entry.guid for entry in self.rendezvous.lookup(serviceID, address)]

    def proves(self, path: Any, guid: int) -> bool | None:
        """
        Check that the peer at the other end of a path owns a GUID: see L{IFabric}.

        @return: L{None} if the listener cannot be asked now.
        """
        peerSocket = path.peerSocket
        # A path that we dialled led to the GUID's own socket in the run directory.  For a path that the
        # peer dialled its Hello proves nothing: the calling process must be the one that listens under that
        # GUID, by SO_PEERCRED (unix(7)).
        if not peerSocket.server:
            return bool(peerSocket.guid == guid)
        try:
            listener = self.rendezvous.listenerOf(guid)
        except (HCAError, OSError):
            return None
        if listener is None or not listener.pid:
            # Linux net/core/sock.c, cred_to_ucred: a process outside our pid namespace has pid 0, so all of
            # those would look alike.
            return False
        caller = peerSocket.credentials
        return bool((listener.pid, listener.uid) == (caller.pid, caller.uid))

    def join(self, group: int) -> None:
        """
        Let others find this HCA as a member of a multicast group.

        @param group: A multicast GID (IBTA vol. 1 4.1.1), an integer of 128 bits.
        @raise RunDirectoryError: the directory cannot be written.
        """
        self.rendezvous.join(group)

    def leave(self, group: int) -> None:
        """
        Undo L{join}.
        """
        self.rendezvous.leave(group)

    def members(self, group: int) -> tuple[int, ...]:
        """
        @return: The GUIDs in a multicast group: see L{IFabric}.
        """
        return self.rendezvous.members(group)

    # -- other HCAs

    def resolve(self, serviceID: int, address: str, user: Any) -> PathRequest:
        """
        Find the path to an HCA that serves C{serviceID} at C{address}.

        @param user: Gets C{pathReady(path)}, perhaps before this returns, or C{connectFailed(error)} later.
        @raise NoRouteError: the address is not one of this host.
        @raise NoListenerError: no live process serves it.
        @raise HiddenListenerError: one does, but not for this process.
        """
        checkLocal(address)
        self.rendezvous.checkOwner()
        failure: HCAError | None = None
        full: Entry | None = None
        # An entry may belong to a process that was killed; like connect(2) over getaddrinfo(3)'s list, try
        # the next.
        for entry in shared(self.rendezvous.lookup(serviceID, address)):
            try:
                self._reach(entry, user)
                return PathRequest(self, user)
            except BacklogFullError as error:
                failure, full = error, full or entry
            except (HCAError, OSError) as error:
                failure = error if isinstance(error, HCAError) else HandshakeError(str(error))
                failure.__cause__ = failure.__cause__ or error
        if full is not None and self._redials.again(full.guid, [user]):
            return PathRequest(self, user)
        if failure is None:
            hidden = self.rendezvous.hidden(serviceID, address)
            failure = HiddenListenerError(hidden) if hidden else NoListenerError(f"nobody serves {address}")
        # The counterpart of REJ reason 8, invalid service ID (IBTA vol. 1 12.6.7.2; Linux cm.c,
        # cm_req_handler), or of a REQ without an answer.  Consumers report ECONNREFUSED or fall back to
        # TCP.
        raise failure

    def reach(self, guid: int, user: Any) -> PathRequest:
        """
        Find the path to the HCA with a GUID.

        @param user: See L{resolve}.
        @raise NoListenerError: there is no such HCA.
        """
        try:
            entry = self.rendezvous.find(guid)
            if entry is None:
                raise NoListenerError(f"there is no HCA {guid:016x}")
            self._reach(entry, user)
        except BacklogFullError:
            if not self._redials.again(guid, [user]):
                raise
        except OSError as error:
            raise HandshakeError(str(error)) from error
        return PathRequest(self, user)

    def _reach(self, entry: Any, user: Any) -> None:
        """
        Give C{user} the path to an HCA, at once or after the handshake.

        @param entry: The HCA's entry in the run directory.
        """
        raise NotImplementedError


__all__ = ["HostDirectory"]
