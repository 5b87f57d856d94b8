"""
C{shm0}: the fabric between the processes of one host.

One L{SharedMemoryFabric} belongs to one HCA.  It finds other HCAs through the
L{Rendezvous}, and dials one path to each of them, over a pair of rings (or, where
there is no shared memory, over the pair's socket).  Connections go out only over
paths that it dialled: the GUID of whoever called is only what that one says, until
L{SharedMemoryFabric.proves} has asked who listens under it.  So two HCAs that both
dial have two paths.

A path is I{hot} while it is looked at each turn, and I{asleep} otherwise: then
the peer rings a doorbell when it publishes something.  Going to sleep is
C{arm}, coming back is C{look}: which of the sleeping ones have work?

The doorbells are edge-triggered and never read.  On the C{ib} reactor they are
in its own epoll object; elsewhere they are, with the sockets, in an epoll object
of the fabric, whose descriptor is readable when there is something to do.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted_ib import limits
from twisted_ib.errors import HandshakeError, HCAError, PathLostError, RingError
from twisted_ib.hca.base.interfaces import IFabric
from twisted_ib.hca.fabric.shm.discovery import Discovery
from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell
from twisted_ib.hca.fabric.shm.listeners import ListeningSockets, checkCaller, checkRoom
from twisted_ib.hca.fabric.shm.peersocket import PeerSocket
from twisted_ib.hca.fabric.shm.peersockets import PeerSockets
from twisted_ib.hca.fabric.shm.ring import RingPath, fence
from twisted_ib.hca.fabric.shm.segment import Segment
from twisted_ib.hca.fabric.shm.socketpath import SocketPath
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.rendezvous import Rendezvous

#: Descriptors of peers that one turn looks at.
DESCRIPTORS_PER_TURN = 64


@implementer(IFabric)
class SharedMemoryFabric(Discovery):
    """
    The shared-memory fabric of one HCA.

    @ivar hot: The paths that are looked at each turn.
    @ivar rings: Whether shared memory is used; if not, sockets carry all.
    """

    name = "shm"
    attributes = {"largestOperation": limits.INLINE_RECORD, "zeroCopy": True}
    segmentClass: Any = Segment
    pathClass: Any = RingPath
    carrierClass: Any = SocketPath

    def __init__(self, owner: Any, guid: int, clock: Callable[[], float], rings: bool = True) -> None:
        """
        @param owner: The device, an L{IFabricOwner<twisted_ib.hca.base.interfaces.IFabricOwner>}.
        @param clock: Gives the time in seconds.
        @param rings: False to carry the records over sockets all the same.
        @raise RunDirectoryError: no directory to meet in can be used.
        """
        super().__init__(owner, guid)
        self.pid = os.getpid()
        self.program = os.path.basename(sys.argv[0] or "python")
        self.clock = clock
        self.rings = rings and not libc.available()
        self.hot: tuple[Any, ...] = ()
        #: How many segments of memory that peers offered are mapped.
        self.offeredSegments = 0
        #: By GUID, the paths that this side dialled.
        self._paths: dict[int, Any] = {}
        #: The latest path on which this HCA has called itself, the end that was called.
        self._ownCall: Any = None
        self._asleep: dict[Any, None] = {}
        self._buried: list[Any] = []
        #: Paths that were found broken while bells were rung, perhaps from
        #: within an application's call.
        self._cracked: dict[Any, RingError] = {}
        #: Whether one of them, or of those that are buried, waits for its end.
        self._over = False
        self._reactorPoller: Any = None
        self._appear()
        self._poller = select.epoll()
        self._pairs = PeerSockets(self._poller)
        self._listeners = ListeningSockets(self._poller, clock, self.count)
        self._listeners.add(self.rendezvous)
        self._signal = EventDoorbell.create()
        self._poller.register(self._signal.fd, select.EPOLLIN | select.EPOLLET)

    def allocate(self, size: int) -> Any:
        """
        @return: Memory that peers can map, or L{None} where they cannot.
        @raise OSError: there is no memory.
        """
        return self.segmentClass.create(max(size, 8)) if self.rings else None

    # -- peers

    def _reach(self, entry: Any, user: Any) -> None:
        path = self._paths.get(entry.guid)
        if path is not None and path.alive:
            user.pathReady(path)
            return
        peerSocket = self._pairs.dialling(entry.guid)
        if peerSocket is None:
            checkRoom(self._pairs)
            pair = self.rendezvous.connect(entry)
            peerSocket = self._pair(pair, self.rendezvous, entry.guid)
        peerSocket.users.append(user)

    def _pair(self, pair: Any, rendezvous: Rendezvous, guid: int) -> PeerSocket:
        """
        Begin a handshake.

        @param pair: A socket to a peer, closed if this raises.
        @param guid: Whom we called; 0 if the peer called us.
        @raise HCAError: the peer is gone, not let in, or has called often enough.
        @raise OSError: no descriptor or memory is free.
        """
        try:
            peerSocket = PeerSocket(self, rendezvous, pair, guid, self.clock())
        except BaseException:
            pair.close()
            raise
        try:
            if peerSocket.server:
                checkCaller(self._pairs, peerSocket, self._user)
            self._pairs.add(peerSocket)
        except BaseException:
            peerSocket.close()
            raise
        return peerSocket

    # -- descriptors

    def fileno(self) -> int:
        """
        @return: A descriptor that is readable when L{attend} has work.
        """
        return self._poller.fileno()

    def signal(self) -> None:
        """
        Make L{fileno} readable: there is something to do.
        """
        self._signal.ring()

    def registerWith(self, poller: Any) -> None:
        """
        Put the doorbells into a reactor's own epoll object instead.

        @param poller: A C{select.epoll}.
        """
        self._reactorPoller = poller

    def watch(self, peerSocket: PeerSocket, events: int) -> None:
        """
        Have a pair's socket watched for other events than before.
        """
        self._pairs.watch(peerSocket, events)

    def attend(self) -> None:
        """
        Look at the sockets: peers that call, handshakes, deaths.
        """
        for fd, _ in self._poller.poll(0, DESCRIPTORS_PER_TURN):
            if fd in self._listeners:
                self._listeners.accept(fd, self._called)
                continue
            peerSocket = self._pairs.ofSocket(fd)
            if peerSocket is not None:
                self._readable(peerSocket)
                continue
            peerSocket = self._pairs.ofProcess(fd)
            if peerSocket is not None:
                self._lose(peerSocket, PathLostError("the peer's process died"))

    def _called(self, pair: Any, rendezvous: Rendezvous) -> None:
        try:
            pair.setblocking(False)
            checkRoom(self._pairs)
            self._pair(pair, rendezvous, 0)
        except (HCAError, OSError) as error:
            self._refused(error)
            pair.close()

    def _refused(self, error: Exception) -> None:
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
            self._paired(peerSocket)

    def _paired(self, peerSocket: PeerSocket) -> None:
        self._pairs.greeted(peerSocket)
        path, bell = peerSocket.path, peerSocket.bell
        if bell is not None:
            poller = self._reactorPoller or self._poller
            try:
                poller.register(bell.fd, select.EPOLLIN | select.EPOLLET)
            except OSError as error:
                peerSocket.bell = None
                bell.close()
                self._refused(error)
                self._unpaired(peerSocket, error)
                self._lose(peerSocket, error)
                return
        self.hot += (path,)
        if peerSocket.server:
            if peerSocket.guid == self.guid:  # In this process, or it were refused.
                self._ownCall = path
            self.owner.pathAccepted(path)
            return
        # Who called us may say any GUID: only whom we called is who we looked up.
        self._paths[peerSocket.guid] = path
        twin = self._ownCall
        if peerSocket.guid == self.guid and twin is not None:
            path.twin, twin.twin = twin, path
        users, peerSocket.users = peerSocket.users, []
        for user in users:
            user.pathReady(path)

    # -- death

    def _lose(self, peerSocket: PeerSocket, reason: Exception) -> None:
        """
        A pair is over: take what the peer had published, then fail the rest.
        """
        if not self._pairs.remove(peerSocket):
            return
        try:
            path = peerSocket.path
            if path is None:
                self._unpaired(peerSocket, reason)
                return
            try:
                # After a broken layout nothing more can be believed.
                if not isinstance(reason, RingError):
                    path.drain()
            finally:
                twin = path.twin
                self._bury(peerSocket, path, reason)
            if twin is not None and twin.alive:
                self._lose(twin.peerSocket, reason)
        finally:
            peerSocket.close()
            self._listeners.reopen()

    def _unpaired(self, peerSocket: PeerSocket, reason: Exception) -> None:
        error = reason if isinstance(reason, HCAError) else HandshakeError(str(reason))
        users, peerSocket.users = peerSocket.users, []
        for user in users:
            user.connectFailed(error)

    def _bury(self, peerSocket: PeerSocket, path: Any, reason: Exception) -> None:
        """
        Fail a path and give its memory back when nobody is inside it.
        """
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
            (self._reactorPoller or self._poller).unregister(bell.fd)
            bell.close()
        self._buried.append(path)
        self._over = True
        error = reason if isinstance(reason, PathLostError) else PathLostError(str(reason))
        try:
            self.owner.pathLost(path, error)
        finally:
            path.lost(error)

    def _broken(self, path: Any, error: RingError) -> None:
        """
        A peer broke the layout: it is as good as dead.
        """
        self.count("ring_errors")
        self._lose(path.peerSocket, error)

    def _clear(self) -> int:
        """
        Give up what is broken, and close what was buried and is not in use any
        more.

        @return: How many paths were given up.
        """
        n = self._breakCracked()
        buried, self._buried = self._buried, []
        for path in buried:
            if path.busy:
                self._buried.append(path)
            else:
                path.close()
        self._over = bool(self._buried)
        return n

    # -- progress

    def progress(self, budget: int = limits.RECORDS_PER_TURN) -> int:
        """
        Take what has arrived.

        @param budget: Records per path at most.
        @return: How many records were taken.
        """
        n = 0
        for path in self.hot:
            if not path.alive:
                continue  # An upcall of one before it has closed the HCA.
            try:
                k = path.progress(budget)
            except RingError as error:
                self._broken(path, error)
                k = 1
            if k:
                n += k
                if not path.bell and path.alive:
                    path.bell = False
                    self.bells.append(path)
        if self._over:
            n += self._clear()
        return n

    def _breakCracked(self) -> int:
        """
        Give up what L{ringBells} found broken.

        @return: How many paths.
        """
        n = 0
        while self._cracked:
            path, error = self._cracked.popitem()
            if path.alive:
                self._broken(path, error)
                n += 1
        return n

    def ringBells(self) -> None:
        """
        The batch ends: wake the peers that sleep and have reason to wake.
        """
        bells = self.bells
        if not bells:
            return
        self.bells = []
        fence()
        for path in bells:
            if not path.alive:
                continue
            try:
                if path.ring():
                    self.rung += 1
            except RingError as error:
                self._cracked[path] = error
                self._over = True
                if self.owner.wanted is not None:
                    self.owner.wanted()
                continue
            if path.asleep:
                self._wake(path)

    def _wake(self, path: Any) -> None:
        path.wake()
        del self._asleep[path]
        self.hot += (path,)

    def pending(self) -> bool:
        """
        @return: Whether a hot path has something to take, or one is broken.
        """
        if self._cracked:
            return True
        for path in self.hot:
            if path.pending():
                return True
        return False

    def arm(self) -> bool:
        """
        Put every hot path to sleep.

        @return: False if one has work after all: then it is hot again.
        """
        hot = self.hot
        if os.geteuid() != self._user:
            self._follow()
        if self._cracked:
            return False
        if not hot:
            return True
        for path in hot:
            path.arm()
            self._asleep[path] = None
        self.hot = ()
        fence()
        for path in hot:
            if path.pending():
                self._wake(path)
        self.sleeps += 1
        return not self.hot

    def look(self) -> bool:
        """
        Wake the sleeping paths that have work.

        @return: Whether there are any hot ones.
        """
        if self._asleep:
            for path in [path for path in self._asleep if path.rouse()]:
                self._wake(path)
        return bool(self.hot)

    # -- time and the end

    def deadline(self) -> float | None:
        """
        @return: When L{tick} should be called: handshakes take a bounded time.
        """
        listeners, pairs = self._listeners.deadline, self._pairs.deadline()
        if listeners is None or pairs is None:
            return pairs if listeners is None else listeners
        return min(listeners, pairs)

    def tick(self, now: float) -> None:
        """
        Give up handshakes whose peer is silent; listen again.
        """
        self._listeners.tick(now)
        for peerSocket in tuple(self._pairs.greeting):
            if peerSocket.exchange is not None:
                try:
                    peerSocket.exchange.tick(now)
                except HCAError as error:
                    self._refused(error)
                    self._lose(peerSocket, error)

    def paths(self) -> list[Any]:
        """
        @return: The paths to living peers.
        """
        return [p.path for p in self._pairs if p.path is not None]

    def forked(self) -> None:
        """
        In a forked child: nothing of this may be touched any more.
        """
        for path in self.paths():
            path.forked()
        self.hot = ()

    def close(self) -> None:
        """
        Withdraw everything and give everything back.
        """
        gone = PathLostError("the device was closed")
        for peerSocket in tuple(self._pairs):
            self._lose(peerSocket, gone)
        self._clear()
        self._listeners.close()
        self._poller.close()
        self._signal.close()
