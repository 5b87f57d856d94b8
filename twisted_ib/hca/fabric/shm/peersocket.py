"""
From a connected socket to a path: the handshake of two HCAs.

L{PeerSocket} drives the pure L{Handshake} over one non-blocking SEQPACKET socket: it creates our segment
and doorbell, exchanges descriptors, checks what the peer offers, and makes the path that both agreed on.
It then keeps the socket: its end, or the peer's pidfd, reports the peer's death.
L{PeerSockets} are those of one HCA.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twisted_ib import limits
from twisted_ib.drive.sleeper import unwatch
from twisted_ib.errors import HandshakeError, HCAError, PathLostError
from twisted_ib.hca.fabric.base.neighbours import PeerIdentity
from twisted_ib.hca.fabric.shm.doorbell import EventDoorbell, SocketDoorbell
from twisted_ib.hca.fabric.shm.ring import SLACK, segmentSize
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.handshake import (
    HANDSHAKE_BYTES,
    Handshake,
    HandshakeFlags,
    Hello,
    Query,
    QueryAnswer,
    Subject,
    refusalOf,
)
from twisted_ib.hca.host.liveness import Liveness, checkPeer
from twisted_ib.hca.host.rendezvous import Rendezvous

if TYPE_CHECKING:
    from select import epoll

    from twisted_ib.hca.base.interfaces import PathUser
    from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric


class PeerSocket:
    """
    One socket to a peer's HCA.

    @ivar fd: The descriptor of C{socket}.
    @ivar path: The path, once there is one.
    @ivar users: Consumers waiting for the path: C{pathReady}, C{connectFailed}.
    @ivar guid: The peer's GUID: looked up on the active side; on the server the peer's own unproven claim.
    @ivar pages: Answer pages still to be sent to a query, or L{None}.
    """

    def __init__(
        self, fabric: SharedMemoryFabric, rendezvous: Rendezvous, pair: socket.socket, guid: int, now: float
    ) -> None:
        """
        If this raises, C{pair} stays the caller's to close.

        @param rendezvous: The run directory entries through which the two met.
        @param guid: The GUID that we dialled; 0 if the peer dialled us.
        @raise PathLostError: the peer is dead already.
        @raise HandshakeError: its user is not allowed.
        @raise OSError: no memory or no descriptor is free.
        """
        self.fabric = fabric
        self.socket = pair
        self.fd = pair.fileno()
        self.guid = guid
        self.server = not guid
        self.path: Any = None
        self.pages: Iterator[dict[str, Any]] | None = None
        self.users: list[PathUser] = []
        self.segment: Any = None
        self.bell: EventDoorbell | None = None
        # The run directory's mode keeps strangers out of a private directory only; in a shared one the
        # kernel's credentials are what admits a peer.
        self.credentials = checkPeer(pair, rendezvous.allows, self.server)
        self.liveness = Liveness.of(pair)
        try:
            self.handshake: Handshake | None = Handshake(self._hello(rendezvous.uid), self.server, now)
            if not self.server:
                # A peer that has hung up already may have left a refusal: it is read as any answer is.
                with suppress(PathLostError):
                    self._sayHello()
        except BaseException:
            self.free()
            raise

    def _hello(self, uid: int) -> Hello:
        fabric = self.fabric
        offers = HandshakeFlags(0)
        if fabric.rings:
            offers = HandshakeFlags.RINGS
            # An eventfd is offered to our own user alone: its holder can make a write to it block (see
            # EventDoorbell.ring).
            if self.credentials.uid == uid:
                offers |= HandshakeFlags.EVENTFD
        return Hello(fabric.guid, fabric.pid, limits.RING, SLACK, offers, fabric.program)

    def _sayHello(self) -> None:
        assert self.handshake is not None
        offers = self.handshake.ours.offers
        descriptors = []
        if offers & HandshakeFlags.RINGS:
            try:
                self.segment = self.fabric.segmentClass.create(segmentSize(limits.RING))
            except OSError as error:
                # setrlimit(2) since the device was opened.  It does not pass: the peer would dial in vain.
                if error.errno == errno.EFBIG:
                    raise HandshakeError(f"no memory for a path: {error.strerror} (ulimit -f)") from error
                raise
            descriptors.append(self.segment.fd)
        if offers & HandshakeFlags.EVENTFD:
            self.bell = EventDoorbell.create()
            descriptors.append(self.bell.fd)
        if not sendWithDescriptors(self.socket, self.handshake.ours.pack(), descriptors):
            raise HandshakeError("a peer's socket takes no handshake")

    def readable(self, now: float) -> None:
        """
        Read from the socket, or notice its end.

        @raise HCAError: the peer is gone or broke the handshake; the fabric decides what follows.
        """
        if self.handshake is None:
            self.path.socketReadable(self)
            return
        received = receiveWithDescriptors(self.socket, HANDSHAKE_BYTES, 2)
        if received is None:
            return
        data, descriptors = received
        try:
            if self.server and not data:
                # isServed() and isBound() of other processes connect and hang up at once: that is no failed
                # handshake.
                raise PathLostError("a caller said nothing")
            message = self.handshake.received(data, len(descriptors))
            if isinstance(message, Query):
                self._answer(message.subject, now)
                return
            # A path to our own GUID becomes a twin of its other end and shares its tables: no other process
            # may claim it.
            if message.guid == self.fabric.guid and self.credentials.pid != self.fabric.pid:
                raise HandshakeError("another process says that it has our GUID")
            if self.server:
                self.guid = message.guid
                self._sayHello()
            elif message.guid != self.guid:
                raise HandshakeError("another HCA answered than was called")
            self._agree(message, descriptors)
        except HCAError as error:
            refuse(self.socket, error)
            raise
        finally:
            closeAll(descriptors)

    def _answer(self, subject: Subject, now: float) -> None:
        owner = self.fabric.owner
        if subject == Subject.SOCKETS:
            if self.pages is None:
                self.pages = owner.describeSockets()
            content: dict[str, Any] = next(self.pages, {})
        else:
            content = owner.describe()
        sent = sendWithDescriptors(self.socket, QueryAnswer(content).pack())
        # This ends the socket in the caller's error path: an asker holds no path, only a slot among the
        # peers.
        if not (sent and content.get("more")):
            raise PathLostError("an asker has its answer")
        assert self.handshake is not None
        self.handshake.pageSent(now)

    def _agree(self, theirs: Hello, descriptors: list[int]) -> None:
        fabric = self.fabric
        assert self.handshake is not None
        agreed = self.handshake.agreed
        self.handshake = None
        identity = PeerIdentity(theirs.guid, self.credentials.pid, self.credentials.uid, theirs.program)
        if not agreed & HandshakeFlags.RINGS:
            self._dropMemory()
            self.path = fabric.carrierClass(fabric, identity, self)
            return
        segment = fabric.segmentClass.attach(descriptors[0], segmentSize(limits.RING))
        # Ownership moves to the segment; the caller closes whatever is left in the list.
        del descriptors[0]
        doorbell: EventDoorbell | SocketDoorbell
        try:
            if agreed & HandshakeFlags.EVENTFD:
                doorbell = EventDoorbell.attach(descriptors[0])
                del descriptors[0]
            else:
                doorbell = SocketDoorbell(self.socket)
        except BaseException:
            segment.close()
            raise
        assert self.segment is not None
        # mmap(2): closing the descriptor does not unmap.  Descriptors are scarcer than mappings:
        # RLIMIT_NOFILE bounds the number of peers.
        self.segment.closeDescriptor()
        segment.closeDescriptor()
        mine, self.segment = self.segment, None
        self.path = fabric.pathClass(fabric, identity, mine, segment, doorbell, limits.RING)
        self.path.peerSocket = self

    def _dropMemory(self) -> None:
        segment, self.segment = self.segment, None
        if segment is not None:
            segment.close()
        bell, self.bell = self.bell, None
        if bell is not None:
            bell.close()

    def free(self) -> None:
        """
        Close the pidfd, and free the memory unless a path owns it; the socket stays open.
        """
        self.liveness.close()
        self._dropMemory()

    def close(self) -> None:
        """
        Close it all.
        """
        self.free()
        self.socket.close()


def refuse(pair: socket.socket, error: Exception) -> None:
    """
    Tell a peer why it is refused, if it can be told: a lost one cannot read, and an error of this process
    alone, such as a lack of descriptors, is none of its business.
    """
    if isinstance(error, HCAError) and not isinstance(error, PathLostError):
        with suppress(PathLostError):
            sendWithDescriptors(pair, refusalOf(error).pack())


class PathRequest:
    """
    A consumer's request for a path while the handshake goes on.
    """

    __slots__ = ("_fabric", "_user")

    def __init__(self, fabric: SharedMemoryFabric, user: PathUser) -> None:
        self._fabric = fabric
        self._user = user

    def cancel(self) -> None:
        """
        Drop the request: the consumer is not called.
        """
        self._fabric.forget(self._user)


class PeerSockets:
    """
    The peer sockets of one HCA, each watched in an epoll object together with its peer's pidfd.

    @ivar bySocket: They, by descriptor; C{byProcess} likewise by their peers' pidfds.
    @ivar greeting: Those whose handshake goes on, oldest first.
    @ivar poller: The C{select.epoll} object.
    """

    def __init__(self, poller: epoll) -> None:
        self.poller = poller
        self.greeting: dict[PeerSocket, None] = {}
        self.bySocket: dict[int, PeerSocket] = {}
        self.byProcess: dict[int, PeerSocket] = {}

    def __len__(self) -> int:
        return len(self.bySocket)

    def __iter__(self) -> Iterator[PeerSocket]:
        return iter(self.bySocket.values())

    def add(self, peerSocket: PeerSocket) -> None:
        """
        Watch a new one.

        @raise OSError: the kernel refuses (epoll_ctl(2): ENOSPC, ENOMEM).
        """
        self.poller.register(peerSocket.fd, select.EPOLLIN | select.EPOLLRDHUP)
        # A forked child of a dead peer keeps the socket open; only the pidfd reports the death then
        # (pidfd_open(2)).
        pidfd = peerSocket.liveness.fd
        if pidfd >= 0:
            try:
                self.poller.register(pidfd, select.EPOLLIN)
            except BaseException:
                unwatch(self.poller, peerSocket.fd)
                raise
            self.byProcess[pidfd] = peerSocket
        self.bySocket[peerSocket.fd] = peerSocket
        self.greeting[peerSocket] = None

    def watch(self, peerSocket: PeerSocket, events: int) -> None:
        """
        Watch a socket for other events than before.
        """
        # The path may outlive the watch for a moment: epoll_ctl(2) would fail with ENOENT.
        if peerSocket.fd in self.bySocket:
            self.poller.modify(peerSocket.fd, events)

    def remove(self, peerSocket: PeerSocket) -> bool:
        """
        Stop watching.

        @return: False if it was not watched.
        """
        if self.bySocket.pop(peerSocket.fd, None) is None:
            return False
        self.greeting.pop(peerSocket, None)
        # Before the descriptor is closed: epoll(7) keeps watching an open file that a forked child still
        # holds.
        unwatch(self.poller, peerSocket.fd)
        pidfd = peerSocket.liveness.fd
        if pidfd >= 0:
            del self.byProcess[pidfd]
            unwatch(self.poller, pidfd)
        return True

    # -- handshakes

    def dialling(self, guid: int) -> PeerSocket | None:
        """
        @return: Our own unfinished handshake with the HCA of a GUID, or L{None}.
        """
        for peerSocket in self.greeting:
            # A handshake that the peer began does not count: its GUID is only claimed.
            if peerSocket.guid == guid and not peerSocket.server:
                return peerSocket
        return None

    def forget(self, user: PathUser) -> PeerSocket | None:
        """
        Remove a consumer from the handshake that it waits for.

        @return: that, if nobody waits for it any more.
        """
        for peerSocket in self.greeting:
            if user in peerSocket.users:
                peerSocket.users.remove(user)
                return None if peerSocket.users else peerSocket
        return None

    def deadline(self) -> float | None:
        """
        @return: When the first handshake times out, or L{None}.
        """
        found: float | None = None
        # No heap: HANDSHAKES_PER_PROCESS and limits.PEERS bound the list, and it is mostly empty.
        for peerSocket in self.greeting:
            handshake = peerSocket.handshake
            if handshake is not None and handshake.deadline is not None:
                if found is None or handshake.deadline < found:
                    found = handshake.deadline
        return found
