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
from twisted_ib.hca.fabric.shm.discovery import Presence
from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell
from twisted_ib.hca.fabric.shm.listeners import Doors, checkCaller, checkRoom
from twisted_ib.hca.fabric.shm.peersocket import Pairing
from twisted_ib.hca.fabric.shm.peersockets import Pairs
from twisted_ib.hca.fabric.shm.ring import RingPath, fence
from twisted_ib.hca.fabric.shm.segment import Segment
from twisted_ib.hca.fabric.shm.socketpath import CarrierPath
from twisted_ib.hca.host import libc
from twisted_ib.hca.host.rendezvous import Rendezvous


@implementer(IFabric)
class SharedMemoryFabric(Presence):
    """
    The shared-memory fabric of one HCA.

    @ivar hot: The paths that are looked at each turn.
    @ivar rings: Whether shared memory is used; if not, sockets carry all.
    """

    name = "shm"
    attributes = {"largestOperation": limits.INLINE_RECORD, "zeroCopy": True}
    segmentClass: Any = Segment
    pathClass: Any = RingPath
    carrierClass: Any = CarrierPath

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
        self._pairs = Pairs(self._poller)
        self._doors = Doors(self._poller, clock, self.count)
        self._doors.add(self.rendezvous)
        self._signal = EventDoorbell.create()
        self._poller.register(self._signal.fd, select.EPOLLIN | select.EPOLLET)

    def allocate(self, size: int) -> Any:
        """
        @return: Memory that peers can map, or L{None} where they can not.
        @raise OSError: there is no memory.
        """
        return self.segmentClass.create(max(size, 8)) if self.rings else None

    # -- peers

    def _reach(self, entry: Any, user: Any) -> None:
        """
        See L{Presence._reach}.
        """
        path = self._paths.get(entry.guid)
        if path is not None and path.alive:
            user.pathReady(path)
            return
        pairing = self._pairs.dialling(entry.guid)
        if pairing is None:
            checkRoom(self._pairs)
            pair = self.rendezvous.connect(entry)
            pairing = self._pair(pair, self.rendezvous, entry.guid)
        pairing.users.append(user)

    def _pair(self, pair: Any, rendezvous: Rendezvous, guid: int) -> Pairing:
        """
        Begin a handshake.

        @param pair: A socket to a peer, closed if this raises.
        @param guid: Whom we called; 0 if the peer called us.
        @raise HCAError: the peer is gone, not let in, or has called often enough.
        @raise OSError: no descriptor or memory is free.
        """
        try:
            pairing = Pairing(self, rendezvous, pair, guid, self.clock())
        except BaseException:
            pair.close()
            raise
        try:
            if pairing.server:
                checkCaller(self._pairs, pairing, self._user)
            self._pairs.add(pairing)
        except BaseException:
            pairing.close()
            raise
        return pairing

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

    def watch(self, pairing: Pairing, events: int) -> None:
        """
        Have a pair's socket watched for other events than before.
        """
        self._pairs.watch(pairing, events)

    def attend(self) -> None:
        """
        Look at the sockets: peers that call, handshakes, deaths.
        """
        for fd, _ in self._poller.poll(0, limits.DESCRIPTORS_PER_TURN):
            if fd in self._doors:
                self._doors.accept(fd, self._called)
                continue
            pairing = self._pairs.ofSocket(fd)
            if pairing is not None:
                self._readable(pairing)
                continue
            pairing = self._pairs.ofProcess(fd)
            if pairing is not None:
                self._lose(pairing, PathLostError("the peer's process died"))

    def _called(self, pair: Any, rendezvous: Rendezvous) -> None:
        """
        Take the call of another HCA.
        """
        try:
            pair.setblocking(False)
            checkRoom(self._pairs)
            self._pair(pair, rendezvous, 0)
        except (HCAError, OSError) as error:
            self._refused(error)
            pair.close()

    def _refused(self, error: Exception) -> None:
        """
        Count a handshake that came to nothing.
        """
        if not isinstance(error, PathLostError):
            self.count(getattr(error, "counter", "handshake_refused"))

    def _readable(self, pairing: Pairing) -> None:
        """
        Something came over a pair's socket.
        """
        had = pairing.path
        try:
            pairing.readable(self.clock())
        except RingError as error:
            self._broken(pairing.path, error)
            return
        except (HCAError, OSError) as error:
            self._refused(error)
            self._lose(pairing, error)
            return
        if had is None and pairing.path is not None:
            self._paired(pairing)

    def _paired(self, pairing: Pairing) -> None:
        """
        A handshake is done.
        """
        self._pairs.greeted(pairing)
        path, bell = pairing.path, pairing.bell
        if bell is not None:
            poller = self._reactorPoller or self._poller
            try:
                poller.register(bell.fd, select.EPOLLIN | select.EPOLLET)
            except OSError as error:
                pairing.bell = None
                bell.close()
                self._refused(error)
                self._unpaired(pairing, error)
                self._lose(pairing, error)
                return
        self.hot += (path,)
        if pairing.server:
            if pairing.guid == self.guid:  # In this process, or it were refused.
                self._ownCall = path
            self.owner.pathAccepted(path)
            return
        # Who called us may say any GUID: only whom we called is who we looked up.
        self._paths[pairing.guid] = path
        twin = self._ownCall
        if pairing.guid == self.guid and twin is not None:
            path.twin, twin.twin = twin, path
        users, pairing.users = pairing.users, []
        for user in users:
            user.pathReady(path)

    # -- death

    def _lose(self, pairing: Pairing, reason: Exception) -> None:
        """
        A pair is over: take what the peer had published, then fail the rest.
        """
        if not self._pairs.remove(pairing):
            return
        try:
            path = pairing.path
            if path is None:
                self._unpaired(pairing, reason)
                return
            try:
                # After a broken layout nothing more can be believed.
                if not isinstance(reason, RingError):
                    path.drain()
            finally:
                twin = path.twin
                self._bury(pairing, path, reason)
            if twin is not None and twin.alive:
                self._lose(twin.pairing, reason)
        finally:
            pairing.close()
            self._doors.reopen()

    def _unpaired(self, pairing: Pairing, reason: Exception) -> None:
        """
        A handshake came to nothing.
        """
        error = reason if isinstance(reason, HCAError) else HandshakeError(str(reason))
        users, pairing.users = pairing.users, []
        for user in users:
            user.connectFailed(error)

    def _bury(self, pairing: Pairing, path: Any, reason: Exception) -> None:
        """
        Fail a path and give its memory back when nobody is inside it.
        """
        path.alive = False
        if self._paths.get(pairing.guid) is path:
            del self._paths[pairing.guid]
        if self._ownCall is path:
            self._ownCall = None
        self.hot = tuple(other for other in self.hot if other is not path)
        self._asleep.pop(path, None)
        self.delayed.pop(path, None)
        if path in self.bells:
            self.bells.remove(path)
        bell, pairing.bell = pairing.bell, None
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
        self._lose(path.pairing, error)

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
        """
        Look at a path each turn again.
        """
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
        doors, pairs = self._doors.deadline, self._pairs.deadline()
        if doors is None or pairs is None:
            return pairs if doors is None else doors
        return min(doors, pairs)

    def tick(self, now: float) -> None:
        """
        Give up handshakes whose peer is silent; listen again.
        """
        self._doors.tick(now)
        for pairing in tuple(self._pairs.greeting):
            if pairing.exchange is not None:
                try:
                    pairing.exchange.tick(now)
                except HCAError as error:
                    self._refused(error)
                    self._lose(pairing, error)

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
        for pairing in tuple(self._pairs):
            self._lose(pairing, gone)
        self._clear()
        self._doors.close()
        self._poller.close()
        self._signal.close()
