"""
C{shm0}: the fabric between the processes of one host.

One L{SharedMemoryFabric} belongs to one HCA.  It finds other HCAs through the L{Rendezvous} and dials one
path to each, over a pair of rings or, without shared memory, over the peer socket.  Connections go out only
over paths that it dialled: a peer that dials claims its GUID without proof, until
L{SharedMemoryFabric.proves} has asked which process listens under it.  So two HCAs that both dial have two
paths.

The doorbells are edge-triggered and never read.  On the C{ib} reactor they are in its own epoll object;
elsewhere they and the sockets are in an epoll object of the fabric, whose descriptor is readable when there
is work.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.drive.sleeper import unwatch, watch
from twisted_ib.errors import (
    BacklogFullError,
    HandshakeError,
    HCAError,
    HiddenListenerError,
    NoListenerError,
    PathLostError,
    PeerEndedError,
    RingError,
)
from twisted_ib.hca.base.events import notifyAll
from twisted_ib.hca.base.interfaces import IFabric, IHostDirectory
from twisted_ib.hca.base.traits import SHARED
from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell
from twisted_ib.hca.fabric.shm.hotpaths import HostPath, HotPaths
from twisted_ib.hca.fabric.shm.listeners import ListeningSockets, checkCaller, checkRoom
from twisted_ib.hca.fabric.shm.peersocket import PathRequest, PeerSocket, PeerSockets, refuse
from twisted_ib.hca.fabric.shm.redials import Redials
from twisted_ib.hca.fabric.shm.ring import RingPath, segmentSize
from twisted_ib.hca.fabric.shm.segment import Segment
from twisted_ib.hca.fabric.shm.socketpath import SocketPath
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.addresses import checkLocal
from twisted_ib.hca.host.entries import livingGUIDs
from twisted_ib.hca.host.libc import KernelEpoll
from twisted_ib.hca.host.rendezvous import Entry, Rendezvous
from twisted_ib.hca.host.search import shared
from twisted_ib.hca.host.socketpage.page import IListed, SocketPage
from twisted_ib.hca.wire.grh import loopbackGID

if TYPE_CHECKING:
    from select import epoll
    from socket import socket

    from twisted_ib.hca.base.interfaces import PathUser

#: How long the run directory is left alone when something has happened to it, in seconds.
LOOK_PAUSE_SECONDS = 0.05
#: How often it is looked at, in seconds, while no directory can be used or there is no inotify.
LOOK_SECONDS = 10.0
#: Descriptors of peers that one turn serves.
DESCRIPTORS_PER_TURN = 64


@implementer(IFabric, IHostDirectory, IListed)
class SharedMemoryFabric(HotPaths):
    """
    The shared-memory fabric of one HCA.

    @ivar rings: Whether shared memory is used; if not, sockets carry all records.
    """

    name = "shm"
    traits = SHARED
    segmentClass: type[Segment] = Segment
    pathClass: type[RingPath] = RingPath
    carrierClass: type[SocketPath] = SocketPath
    #: When to look whether our entries are still there; L{None} while inotify tells.
    _lookAt: float | None = None
    #: Whether they are not, and no directory can be used.
    _isHidden = False

    def __init__(
        self,
        owner: Any,
        guid: int,
        clock: Callable[[], float],
        rings: bool = True,
        namespace: int | None = None,
    ) -> None:
        """
        @param owner: The device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param clock: Gives the time in seconds.
        @param rings: False to carry the records over sockets in any case.
        @param namespace: see L{Rendezvous<twisted_ib.hca.host.rendezvous.Rendezvous>}.
        @raise RunDirectoryError: no run directory can be used.
        """
        super().__init__(owner, guid)
        self._namespace = namespace
        #: What is called when a descriptor that is none of this fabric's is readable.
        self._others: dict[int, Callable[[], object]] = {}
        self.pid = os.getpid()
        self.program = os.path.basename(sys.argv[0] or "python")
        self.clock = clock
        self.rings = rings and not libc.available(segmentSize(limits.RING))
        #: Segments offered by peers that are mapped now.
        self.offeredSegments = 0
        #: The paths that this side dialled, by GUID.
        self._paths: dict[int, HostPath] = {}
        #: Of the paths that are gone.
        self._octetsBefore = 0, 0
        #: The accepting end of the latest path from this HCA to itself.
        self._ownCall: HostPath | None = None
        self._detached: list[HostPath] = []
        self._closing = False
        self._reactorPoller: Any = None
        self._appear()
        self._poller = KernelEpoll()
        self._pairs = PeerSockets(self._poller)
        self._listeners = ListeningSockets(self._poller, clock, self.count)
        self._listeners.add(self.rendezvous)
        self._redials = Redials(clock)
        self._watch()
        self._signal = EventDoorbell.create()
        self._poller.register(self._signal.fd, select.EPOLLIN | select.EPOLLET)

    def allocate(self, size: int) -> Segment | None:
        return self.segmentClass.create(max(size, 8)) if self.rings else None

    def trace(self, observer: Any) -> None:
        super().trace(observer)
        self.carrierClass = observer.tracedPaths(self.carrierClass)

    # -- the run directories

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
        self.rendezvous.attach(page)

    def _watch(self) -> None:
        fd = self.rendezvous.watch
        if fd >= 0:
            self._poller.register(fd, select.EPOLLIN)
        else:
            self._lookAt = self.clock() + LOOK_SECONDS

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
            unwatch(self._poller, old.watch)
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
                unwatch(self._poller, self.rendezvous.watch)
            self._listeners.add(rendezvous)
            self.rendezvous = rendezvous
            self._watch()

    # -- services

    def publish(self, serviceID: int, address: str, inode: int = 0, isOwn: bool = False) -> None:
        """
        @param isOwn: Whether the address is of this HCA alone, and so need not be one of the host.
        """
        if not isOwn:
            checkLocal(address)
        if self.rendezvous.isLost():
            self._restore()
        self.rendezvous.publish(serviceID, address, inode)

    def publishAny(self, prefix: int, address: str, isOwn: bool = False) -> int:
        if not isOwn:
            checkLocal(address)
        if self.rendezvous.isLost():
            self._restore()
        return self.rendezvous.publishAny(prefix, address)

    def withdraw(self, serviceID: int, address: str) -> None:
        self.rendezvous.withdraw(serviceID, address)

    def serving(self, serviceID: int, address: str) -> list[int]:
        return [entry.guid for entry in self.rendezvous.lookup(serviceID, address)]

    def servingOurs(self, serviceID: int, address: str) -> list[int]:
        """
        @return: as L{serving}, of our own user only.
        """
        found = self.rendezvous.lookup(serviceID, address)
        return [entry.guid for entry in found if entry.uid == self.rendezvous.uid]

    def portsOf(self, guid: int, prefix: int, address: str) -> set[int]:
        """
        @param prefix: the service id of port 0.
        @return: the ports that an HCA of our own user serves at an address.
        """
        return self.rendezvous.ports(prefix, address, guid)

    def stamps(self) -> list[int]:
        """
        @return: what changes where a process of this host begins to serve something, or ends.
        """
        return self.rendezvous.stamps()

    def proves(self, path: Any, guid: int) -> bool | None:
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
        self.rendezvous.join(group)

    def leave(self, group: int) -> None:
        self.rendezvous.leave(group)

    def guids(self, gid: int) -> tuple[set[int], set[int]]:
        entries = [entry for entry in self.rendezvous.hcas() if loopbackGID(entry.guid) == gid]
        ours = livingGUIDs([entry for entry in entries if entry.uid == self.rendezvous.uid])
        # Others are not asked in vain.
        return ours, set() if ours else livingGUIDs(entries)

    def members(self, group: int) -> tuple[int, ...]:
        return self.rendezvous.members(group)

    # -- other HCAs

    def resolve(self, serviceID: int, address: str, user: PathUser) -> PathRequest:
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

    def reach(self, guid: int, user: PathUser) -> PathRequest:
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

    # -- peers

    def _reach(self, entry: Any, user: Any) -> None:
        path = self._paths.get(entry.guid)
        if path is not None and path.alive:
            user.pathReady(path)
            return
        if self._redials.join(entry.guid, user):
            return
        peerSocket = self._pairs.dialling(entry.guid)
        if peerSocket is None:
            checkRoom(self._pairs)
            pair = self.rendezvous.connect(entry)
            try:
                peerSocket = self._pair(pair, self.rendezvous, entry.guid)
            except BaseException:
                pair.close()
                raise
        peerSocket.users.append(user)

    def _redial(self, guid: int, users: list[PathUser]) -> None:
        try:
            entry = self.rendezvous.find(guid)
            if entry is None:
                raise NoListenerError(f"there is no HCA {guid:016x}")
            for user in users:
                self._reach(entry, user)
        except BacklogFullError as error:
            if not self._redials.again(guid, users):
                self._usersFailed(users, error)
        except (HCAError, OSError) as error:
            self._redials.end(guid)
            self._usersFailed(users, error)

    def forget(self, user: PathUser) -> None:
        """
        A consumer waits no more.
        """
        self._redials.forget(user)
        idle = self._pairs.forget(user)
        if idle is not None:
            self._redials.end(idle.guid)
            self._lose(idle, PathLostError("nobody waits for it"))

    def _pair(self, pair: socket, rendezvous: Rendezvous, guid: int) -> PeerSocket:
        """
        Begin a handshake.

        @param pair: A connected socket; if this raises, it stays the caller's to close.
        @param guid: The GUID that we dialled; 0 if the peer dialled us.
        @raise HCAError: the peer is gone, not allowed, or over its limit.
        @raise OSError: no descriptor or memory is free.
        """
        peerSocket = PeerSocket(self, rendezvous, pair, guid, self.clock())
        try:
            if peerSocket.server:
                checkCaller(self._pairs, peerSocket, self._user)
            self._pairs.add(peerSocket)
        except BaseException:
            peerSocket.free()
            raise
        return peerSocket

    # -- descriptors

    def fileno(self) -> int:
        return self._poller.fileno()

    def signal(self) -> None:
        self._signal.ring()

    def registerWith(self, poller: epoll | None) -> None:
        before, self._reactorPoller = self._reactorPoller, poller
        if poller is not before:
            for peerSocket in self._pairs:
                path, bell = peerSocket.path, peerSocket.bell
                if path is not None and bell is not None:
                    if not watch(poller or self._poller, bell.fd, select.EPOLLIN | select.EPOLLET):
                        self._brokenPaths[path] = RingError("the program has closed its doorbell")
                        self._over = True
                    # The reactor of before may have closed its own.
                    unwatch(before or self._poller, bell.fd)

    def watch(self, peerSocket: PeerSocket, events: int) -> None:
        """
        Watch a peer's socket for other events than before.
        """
        self._pairs.watch(peerSocket, events)

    def watchOther(self, fd: int, call: Callable[[], object]) -> None:
        """
        Have L{attend} call something when another descriptor is readable.
        """
        self._others[fd] = call
        watch(self._poller, fd, select.EPOLLIN)

    def unwatchOther(self, fd: int) -> None:
        """
        Undo L{watchOther}; before the descriptor is closed.
        """
        if self._others.pop(fd, None) is not None:
            unwatch(self._poller, fd)

    def attend(self) -> None:
        # epoll_wait(2) serves ready descriptors round robin, so none starves beyond this bound.
        for fd, _ in self._poller.poll(0, DESCRIPTORS_PER_TURN):
            if fd in self._listeners:
                self._listeners.accept(fd, self._called)
                continue
            if fd == self.rendezvous.watch:
                # Something has happened to the run directory, or to our socket in it.
                with suppress(OSError):
                    os.read(fd, 4096)
                # The removal may still be under way, and would take an entry that is made too early with it.
                self._lookAt = self.clock() + LOOK_PAUSE_SECONDS
                continue
            peerSocket = self._pairs.bySocket.get(fd)
            if peerSocket is not None:
                self._readable(peerSocket)
                continue
            peerSocket = self._pairs.byProcess.get(fd)
            if peerSocket is not None:
                self._lose(peerSocket, PeerEndedError("the peer's process died"))
            elif fd in self._others:
                self._others[fd]()

    def _called(self, pair: socket, rendezvous: Rendezvous) -> None:
        try:
            pair.setblocking(False)
            checkRoom(self._pairs)
            self._pair(pair, rendezvous, 0)
        except (HCAError, OSError) as error:
            self._refused(error)
            refuse(pair, error)
            pair.close()

    def _refused(self, error: Exception) -> None:
        # A peer that hangs up is no refused handshake: other processes probe the socket that way
        # (isServed).
        if not isinstance(error, PathLostError):
            self.count(getattr(error, "counter", "handshake_refused"))

    def _readable(self, peerSocket: PeerSocket) -> None:
        had = peerSocket.path
        try:
            peerSocket.readable(self.clock())
        except RingError as error:
            self._broken(peerSocket.path, error)
            return
        except (HCAError, OSError) as error:
            self._refused(error)
            self._lose(peerSocket, error)
            return
        if had is None and peerSocket.path is not None:
            self._peerConnected(peerSocket)

    def _peerConnected(self, peerSocket: PeerSocket) -> None:
        self._pairs.greeting.pop(peerSocket, None)
        path, bell = peerSocket.path, peerSocket.bell
        if bell is not None:
            # Only now, with a path to wake: before the handshake is complete a peer could ring in vain.
            poller = self._reactorPoller or self._poller
            try:
                poller.register(bell.fd, select.EPOLLIN | select.EPOLLET)
            except OSError as error:
                peerSocket.bell = None
                bell.close()
                self._refused(error)
                self._peerFailed(peerSocket, error)
                self._lose(peerSocket, error)
                return
        self.hot += (path,)
        if peerSocket.server:
            # PeerSocket.readable refuses our own GUID from any other process.
            if peerSocket.guid == self.guid:
                self._ownCall = path
            self.owner.pathAccepted(path)
            return
        # A peer that dialled us may claim any GUID.  Only a path that we dialled leads to the GUID looked up.
        self._paths[peerSocket.guid] = path
        self._redials.end(peerSocket.guid)
        twin = self._ownCall
        if peerSocket.guid == self.guid and twin is not None:
            path.twin, twin.twin = twin, path
        users, peerSocket.users = peerSocket.users, []
        notifyAll(partial(user.pathReady, path) for user in users)

    # -- death

    def _lose(self, peerSocket: PeerSocket, reason: Exception) -> None:
        # End a peer socket: deliver what the peer had published, then fail what remains.
        if not self._pairs.remove(peerSocket):
            return
        try:
            path = peerSocket.path
            if path is None:
                self._peerFailed(peerSocket, reason)
                return
            try:
                # After a layout error nothing in the peer's segment can be trusted.
                if not isinstance(reason, RingError):
                    path.drain()
            finally:
                # Read before the path is closed, which clears it.
                twin = path.twin
                self._detach(peerSocket, path, reason)
            if twin is not None and twin.alive:
                self._lose(twin.peerSocket, reason)
        finally:
            peerSocket.close()
            # A descriptor is free again, so a paused accept may succeed.
            self._listeners.reopen()

    def _peerFailed(self, peerSocket: PeerSocket, reason: Exception) -> None:
        users, peerSocket.users = peerSocket.users, []
        if peerSocket.server:
            return
        # It hung up without a refusal: it had no descriptor free, or is closing and will be gone next time.
        if users and isinstance(reason, PathLostError) and not self._closing:
            if self._redials.again(peerSocket.guid, users):
                return
        self._redials.end(peerSocket.guid)
        self._usersFailed(users, reason)

    def _usersFailed(self, users: list[PathUser], reason: Exception) -> None:
        error = reason if isinstance(reason, HCAError) else HandshakeError(str(reason))
        notifyAll(partial(user.connectFailed, error) for user in users)

    def _detach(self, peerSocket: PeerSocket, path: HostPath, reason: Exception) -> None:
        path.alive = False
        if self._paths.get(peerSocket.guid) is path:
            del self._paths[peerSocket.guid]
        if self._ownCall is path:
            self._ownCall = None
        self.hot = tuple(other for other in self.hot if other is not path)
        self._asleep.pop(path, None)
        self.delayed.pop(path, None)
        if path in self.bells:
            self.bells.remove(path)
        bell, peerSocket.bell = peerSocket.bell, None
        if bell is not None:
            # Before close: the peer holds the same open eventfd, so epoll(7) would keep reporting it after
            # our close.
            unwatch(self._reactorPoller or self._poller, bell.fd)
            bell.close()
        # The memory is freed by _clear, once no upcall is within the path: it may be this very one that
        # drains.
        self._detached.append(path)
        self._over = True
        error = reason if isinstance(reason, PathLostError) else PathLostError(str(reason))
        try:
            self.owner.pathLost(path, error)
        finally:
            path.lost(error)

    def _broken(self, path: HostPath, error: RingError) -> None:
        # Count a peer's layout error and treat the peer as dead.
        self.count("ring_errors")
        self._lose(path.peerSocket, error)

    def _clear(self) -> int:
        # End broken paths, and close those buried that no upcall uses any more.  The number of those ended.
        n = self._closeBroken()
        buried, self._detached = self._detached, []
        for path in buried:
            if path.busy:
                self._detached.append(path)
            else:
                self._octetsBefore = _sum([self._octetsBefore, path.octets()])
                path.close()
        self._over = bool(self._detached)
        return n

    def _closeBroken(self) -> int:
        n = 0
        while self._brokenPaths:
            path, error = self._brokenPaths.popitem()
            if path.alive:
                self._broken(path, error)
                n += 1
        return n

    # -- time and the end

    def deadline(self) -> float | None:
        # Here because it is asked before every wait, but those that are brief because messages come.
        if os.geteuid() != self._user:
            self._follow()
        found = self._pairs.deadline() if self._pairs.greeting else None
        for when in self._listeners.deadline, self._redials.deadline, self._lookAt:
            if when is not None and (found is None or when < found):
                found = when
        return found

    def tick(self, now: float) -> None:
        self._listeners.tick(now)
        if self._lookAt is not None and now >= self._lookAt:
            self._look()
        for peerSocket in tuple(self._pairs.greeting):
            handshake = peerSocket.handshake
            if handshake is None or not handshake.isOverdue(now):
                continue
            # If this process was late itself, the message has come meanwhile.
            self._readable(peerSocket)
            if peerSocket.handshake is not None and peerSocket in self._pairs.greeting:
                try:
                    peerSocket.handshake.tick(now)
                except HCAError as error:
                    self._refused(error)
                    refuse(peerSocket.socket, error)
                    self._lose(peerSocket, error)
        for guid, users in self._redials.due(now):
            self._redial(guid, users)

    def paths(self) -> list[Any]:
        return [p.path for p in self._pairs if p.path is not None]

    def octets(self) -> tuple[int, int]:
        paths = {*self.paths(), *self._detached}
        return _sum([self._octetsBefore, *(path.octets() for path in paths)])

    def forked(self) -> None:
        for path in self.paths():
            path.forked()
        self.hot = ()

    def close(self) -> None:
        gone = PathLostError("the device was closed")
        self._closing = True
        try:
            self._usersFailed(self._redials.clear(), gone)
        finally:
            try:
                notifyAll(partial(self._lose, peerSocket, gone) for peerSocket in tuple(self._pairs))
            finally:
                self._clear()
                if self.rendezvous.watch >= 0:
                    unwatch(self._poller, self.rendezvous.watch)
                self._listeners.close()
                self._poller.close()
                self._signal.close()


def _sum(pairs: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(sent for sent, _ in pairs), sum(received for _, received in pairs)
