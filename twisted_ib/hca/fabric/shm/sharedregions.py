"""
Registered memory that a peer of the same user may map, for zero-copy SEND, WRITE and READ, or write to.

A record then refers to that memory instead of carrying the bytes, which are copied once.  The memory's
descriptor goes over the peer socket before the first record that refers to it, so it has arrived when that
record is read. One message is one packet::

    OFFER     number, size  + descriptor
    WITHDRAW  number
    STREAM    number        + descriptor

An offer grants no right: rights are checked for each operation, by the owner of the memory that is written
or read. But offered memory stays readable to that peer, whole pages of it, until it is withdrawn and the
peer unmaps it.

STREAM brings a connection of the kernel's for a stream on the path, by the number of the sender's queue pair;
a message of the stream then tells that it is there.

An offer is mapped only when a record may refer to it: while no queue pair with work queues is on the path,
or the device maps as many as it may, offers stay in the socket.  The socket is then watched for its end
only.

RDMA WRITEs that the peer's process does not execute (L{DirectWrites}): the kernel copies them into its memory
at once (process_vm_writev(2)), as an adapter would, whatever the peer's threads do meanwhile.

The first WRITE to a region comes as a record, and the peer, which checks it, may grant what follows: it then
writes into a table, which this side reads, that a queue pair's WRITEs with a key may go to so many bytes from
an address on.  An entry stands for all that L{Memory.check<twisted_ib.hca.memory.memory.Memory.check>} would
find, and goes before any of that changes: with the region, with the queue pair's state or its rights, with
the path.  Windows are never granted, and nothing is while a capture is written.

So one side asks (C{ASKS}), the other offers the memory of its table as it offers a region (C{GRANTS}), and
the first says that it writes (C{WRITES}) before it reads the entry, with a fence between.  To revoke is to
clear the entry, have a fence, and wait while the other side writes: afterwards no octet comes.  How many
octets it has written it says in C{WRITTEN}, for the counters of both ports.

Only processes of one user do that, which could write to each other's memory anyway, and where the kernel lets
them (Yama's ptrace_scope, seccomp(2), pid namespaces).  Everything else goes by records, as before.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.drive.process import monotonic
from twisted_ib.drive.sleeper import awaitReady, fence
from twisted_ib.errors import HandshakeError, HCAError, PathLostError, PeerEndedError, RingError
from twisted_ib.hca.base.operation import TAILS
from twisted_ib.hca.fabric.shm.segment import Segment
from twisted_ib.hca.host.fdpassing import closeAll, receiveWithDescriptors, sendWithDescriptors
from twisted_ib.hca.host.handshake import HANDSHAKE_BYTES, Refuse, parse
from twisted_ib.hca.host.processmemory import OtherProcess, addressOf
from twisted_ib.hca.memory.memory import MemoryRegion

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.shm.ring import RingPath
    from twisted_ib.structs import Packed


#: Regions that one end of a path offers the other to map.
OFFERED_SEGMENTS = 64
#: Offered regions that one device maps (Linux: 65530 mappings per process).
OFFERED_SEGMENTS_PER_DEVICE = 16384
#: Connections of the kernel's that one end of a path has given the other, and that were not taken yet.
HANDED_STREAMS = 64

_OFFER, _WITHDRAW, _STREAM = 1, 2, 3
#: Kind, number, size.
_MESSAGE: Packed[tuple[int, int, int]] = Struct(">B3xIQ")


class SharedRegions:
    """
    The memory that the two ends of one path have offered each other.

    @ivar next: The number of the next segment offered.
    """

    def __init__(self, path: RingPath, pair: socket.socket) -> None:
        """
        @param pair: the peer socket, on which nothing else is sent any more.
        """
        self._path = path
        self._socket = pair
        self.next = 1
        self._mine: dict[Any, int] = {}
        # Withdrawn: the position that the peer must have read before WITHDRAW is sent, the number, the size.
        self._gone: deque[tuple[int, int, int]] = deque()
        self._mineBytes = self._theirBytes = 0
        # Whether the socket is watched for its end only.
        self._offersUnread = False
        self._theirs: dict[int, tuple[Segment, memoryview]] = {}
        #: Queue pairs of ours whose streams were given away; and the descriptors that the peer has given.
        self._given: set[int] = set()
        self._handed: dict[int, int] = {}

    # -- mine

    def offer(self, segment: Any) -> int:
        """
        Let the peer map a segment.

        @return: its number, or 0 if there are too many offers, or the socket is full or gone: the bytes
            then travel in the records.
        """
        number = self._mine.get(segment)
        if number is not None:
            return number
        # Withdrawn segments count until the peer has been notified: it holds their mappings until then, and
        # treats an offer above its own bound as a broken layout.
        if len(self._mine) + len(self._gone) >= OFFERED_SEGMENTS:
            return 0
        if self._mineBytes + segment.size > limits.OFFERED_BYTES:
            return 0
        if segment.fd < 0 or not self._send(_OFFER, self.next, segment.size, [segment.fd]):
            return 0
        number = self._mine[segment] = self.next
        self.next += 1
        self._mineBytes += segment.size
        return number

    def withdraw(self, segment: Any) -> None:
        """
        Have the peer unmap a segment once it has read every record published so far.
        """
        number = self._mine.pop(segment, None)
        if number is not None:
            # WITHDRAW travels on the socket and could overtake records in the ring that refer to the
            # segment.
            position = self._path.position()
            self._gone.append((position, number, segment.size))
            self._path.track((position, self))

    def acknowledged(self, position: int) -> None:
        """
        Send WITHDRAW for segments that no unread record refers to; a full socket defers the rest to the
        next call.
        """
        gone = self._gone
        while gone and gone[0][0] <= position and self._send(_WITHDRAW, gone[0][1], 0, []):
            self._mineBytes -= gone.popleft()[2]

    def _send(self, kind: int, number: int, size: int, descriptors: list[int]) -> bool:
        try:
            return sendWithDescriptors(self._socket, _MESSAGE.pack(kind, number, size), descriptors)
        # The watch on the socket reports the loss.
        except PathLostError:
            return False

    # -- streams

    def handOver(self, number: int, descriptor: int) -> bool:
        """
        See L{ISharedMemoryPath<twisted_ib.hca.base.interfaces.ISharedMemoryPath>}.
        """
        # One that was closed since is no more in the path's table: the peer has taken that, or has lost it.
        self._given.intersection_update(self._path.table)
        if len(self._given) >= HANDED_STREAMS or not self._send(_STREAM, number, 0, [descriptor]):
            return False
        self._given.add(number)
        return True

    def handedOver(self, number: int) -> int | None:
        """
        @param number: the number of the peer's queue pair.
        @return: the descriptor that the peer has given for its stream, the caller's to close; or L{None}.
        """
        self._listen(True)
        # Also behind offers that nobody may refer to.
        self._takeAll(True)
        return self._handed.pop(number, None)

    # -- the peer's

    def offered(self, number: int) -> memoryview | None:
        """
        Look up what the peer offered under a number.

        @return: a read-only view, or L{None}.
        @raise RingError: the peer broke the protocol.
        """
        if number not in self._theirs:
            # A record refers to an offer that was left unread: now it may be mapped.
            self._listen(True)
            self._takeAll()
        found = self._theirs.get(number)
        return None if found is None else found[1]

    def readable(self) -> None:
        """
        Read messages from the socket, or notice its end.

        @raise PeerEndedError: the peer has hung up.
        @raise RingError: the peer broke the protocol.
        """
        if not self._takeAll():
            raise PeerEndedError("the peer closed its HCA or died")

    def _isKeyed(self) -> bool:
        # Whether a queue pair of the path has work queues: only those execute records that refer to memory.
        for entry in self._path.table.values():
            if getattr(getattr(entry, "queuePair", entry), "work", None) is not None:
                return True
        return False

    def _leave(self) -> bool:
        # Leave the messages in the socket, and watch it for its end only.  False if the peer has hung up.
        self._listen(False)
        return not awaitReady(self._socket, 0, select.POLLRDHUP)

    def _kind(self) -> int:
        # Of the next message; -1 if there is none, or the peer has hung up.
        try:
            head = self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return -1
        return head[0] if head else -1

    def _mustWait(self, keyed: bool, kind: int) -> bool:
        # A peer must not be able to fill our address space (vm.max_map_count) with memory that nothing
        # refers to; WITHDRAW is always read, for it frees memory.
        fabric = self._path.fabric
        if keyed and fabric.offeredSegments < OFFERED_SEGMENTS_PER_DEVICE:
            return False
        if kind != _OFFER:
            return False
        fabric.count("offers_unread")
        return True

    def _listen(self, all_: bool) -> None:
        if self._offersUnread == all_:
            self._offersUnread = not all_
            # EPOLLRDHUP alone: level-triggered EPOLLIN would fire at each epoll_wait while the offers stay
            # unread (epoll(7)).
            events = select.EPOLLIN | select.EPOLLRDHUP if all_ else select.EPOLLRDHUP
            self._path.fabric.watch(self._path.peerSocket, events)

    def _takeAll(self, isWanted: bool = False) -> bool:
        keyed = isWanted or self._isKeyed()
        # A bound per call, for a peer that alternates OFFER and WITHDRAW for ever.  Epoll reports the rest
        # again.
        for _ in range(2 * OFFERED_SEGMENTS):
            kind = self._kind()
            if self._mustWait(keyed, kind):
                return self._leave()
            try:
                received = receiveWithDescriptors(self._socket, HANDSHAKE_BYTES, 1)
            except PathLostError:
                return False
            except HCAError as error:
                if kind == _STREAM:
                    # No descriptor is free for it: the stream stays here.
                    continue
                raise RingError(str(error)) from error
            if received is None:
                return True
            data, descriptors = received
            if not data:
                closeAll(descriptors)
                return False
            try:
                self._take(data, descriptors)
            finally:
                # _take removes from the list the descriptors that a segment has taken over.
                closeAll(descriptors)
        return True

    def _take(self, data: bytes, descriptors: list[int]) -> None:
        if len(data) != _MESSAGE.size:
            # A client that cannot accept our HELLO answers it so, when for us the handshake is over.
            with suppress(HandshakeError):
                message = parse(data)
                if isinstance(message, Refuse):
                    raise RingError(f"the peer refused: {message.text}")
            raise RingError(f"the peer sent {len(data)} bytes beside its ring")
        kind, number, size = _MESSAGE.unpack(data)
        theirs = self._theirs
        if kind == _STREAM and len(descriptors) == 1:
            handed = self._handed
            old = handed.pop(number, -1)
            if old < 0 and len(handed) >= 2 * HANDED_STREAMS:
                # It is of a stream that has ended: a peer of ours gives no more for those that stand.
                old = handed.pop(next(iter(handed)))
            handed[number] = descriptors[0]
            # That is closed by the caller.
            descriptors[:] = [old] if old >= 0 else []
        elif kind == _WITHDRAW and not descriptors:
            self._unmap(number)
        elif kind != _OFFER or len(descriptors) != 1:
            raise RingError(f"the peer sent message {kind} with {len(descriptors)} descriptors")
        # A peer of ours keeps these bounds on its own side, so one that exceeds them is broken or hostile.
        elif number in theirs or len(theirs) >= OFFERED_SEGMENTS:
            raise RingError("the peer offers more memory than it may")
        elif not 8 <= size <= min(limits.REGION_BYTES, limits.OFFERED_BYTES - self._theirBytes):
            raise RingError(f"the peer offers a segment of {size} bytes")
        else:
            try:
                segment = Segment.attach(descriptors[0], size)
            except HCAError as error:
                raise RingError(str(error)) from error
            descriptors.clear()
            segment.closeDescriptor()
            theirs[number] = segment, memoryview(segment.map)
            self._theirBytes += size
            self._path.fabric.offeredSegments += 1

    def _unmap(self, number: int) -> None:
        segment, view = self._theirs.pop(number, (None, None))
        if segment is not None and view is not None:
            view.release()
            segment.close()
            self._theirBytes -= segment.size
            self._path.fabric.offeredSegments -= 1

    def close(self) -> None:
        """
        Unmap everything.
        """
        for number in list(self._theirs):
            self._unmap(number)
        self._mine.clear()
        self._gone.clear()
        closeAll(self._handed.values())
        self._handed.clear()


#: Cells of L{the segments<twisted_ib.hca.fabric.shm.ring>} of both ends.
ASKS: Final = 49
GRANTS: Final = 50
WRITES: Final = 56
WRITTEN: Final = 57
#: Entries of a table.  A key and a queue pair have one place: while another one has it, WRITEs are records.
GRANTS_MOST: Final = 1024
#: Seconds that a peer has for a WRITE which it has begun when that is revoked: one that is stopped just then
#: loses its path.
WRITE_SECONDS: Final = 1.0
#: An entry: queue pair and key, the first address, octets, where these are in the process.
_ENTRY: Packed[tuple[int, int, int, int]] = Struct("=4Q")
_BYTES: Final = _ENTRY.size * GRANTS_MOST
#: A peer that says it has written more octets than that says nothing: many such paths fit into a counter.
_COUNTED: Final = 1 << 56


def _place(word: int) -> int:
    # Of an entry, in octets.  The upper bits of a key are random, the lower ones the program's.
    return (word >> 8 ^ word >> 32) % GRANTS_MOST * _ENTRY.size


class Grant:
    """
    One permission that the peer has.
    """

    __slots__ = ("_region", "_writes", "word")

    def __init__(self, writes: DirectWrites, word: int, region: MemoryRegion) -> None:
        """
        @param word: queue pair and key.
        """
        self._writes, self.word, self._region = writes, word, region
        region.grants = (*region.grants, self)

    def revoke(self) -> None:
        """
        Take it back, also if that has happened.  Then the peer does not write any more.
        """
        self._region.grants = tuple(each for each in self._region.grants if each is not self)
        self._writes.revoked(self)


class DirectWrites:
    """
    The WRITEs of both ends of a path that are not records.
    """

    def __init__(self, path: RingPath, here: memoryview | list[int], there: memoryview | list[int]) -> None:
        """
        @param here: the cells of the path's segment.
        @param there: those of the peer's.
        """
        self._path = path
        self._here, self._there = here, there
        self._came = 0
        self._process: OtherProcess | None = None
        # The peer's table; whether there is none for good, nor one of ours; whether the peer has ended.
        self._theirs: memoryview | None = None
        self._isRefused = self._isClosed = self._isOver = False
        self._mine: Segment | None = None
        self._granted: dict[int, Grant] = {}

    # -- who writes

    def write(self, number: int, key: int, address: int, source: Any, offset: int, length: int) -> bool:
        """
        Write to memory of the peer: see L{IPath.writeDirectly<twisted_ib.hca.base.interfaces.IPath>}.
        """
        theirs, process, here = self._theirs, self._process, self._here
        if theirs is None:
            theirs = self._find()
        if theirs is None or process is None:
            return False
        # A signal's handler may write amid this.
        if here[WRITES]:
            return False
        word = number << 32 | key
        here[WRITES] = word
        try:
            fence()
            found, first, octets, there = _ENTRY.unpack_from(theirs, _place(word))
            within = address - first
            if found != word or within < 0 or within + length > octets:
                return False
            if source is None:
                return True
            there += within
            tail = TAILS[there + length & 7]
            if isinstance(source, MemoryRegion):
                place = source.place
                if not place:
                    place = source.place = addressOf(source.view)
                done = process.write(there, place + offset, length, tail)
            else:
                done = process.writeBytes(there, source, length, tail)
        except ValueError:
            # The peer has withdrawn its table.
            self._theirs, self._isRefused = None, True
            return False
        finally:
            here[WRITES] = 0
        if done < 0:
            self._theirs, self._isRefused = None, True
            return False
        here[WRITTEN] += done
        return done == length

    def octets(self) -> tuple[int, int]:
        """
        @return: How many this side has written to the peer's memory, and the peer to this one's, as it says.
        """
        said = min(self._there[WRITTEN], _COUNTED)
        if said > self._came:
            self._came = said
        return self._here[WRITTEN], self._came

    def ask(self) -> None:
        """
        Tell the peer that this side would write, if it can.
        """
        pid = self._path.peerProcess()
        # Not to itself: that needs no kernel.
        self._isRefused = not pid or pid == os.getpid() or not OtherProcess.isPossible()
        if not self._isRefused:
            self._process = OtherProcess(pid)
            self._here[ASKS] = 1

    def _find(self) -> memoryview | None:
        number = self._there[GRANTS]
        if self._isRefused or not number:
            return None
        try:
            found = self._path.offered(number)
        except RingError as error:
            self._path.breaks(error)
            found = None
        if found is None or len(found) < _BYTES:
            self._isRefused = True
            return None
        self._theirs = found
        return found

    # -- whose memory it is

    def grant(self, number: int, region: MemoryRegion) -> None:
        """
        Let the peer write to a region through a queue pair that has the right to.
        """
        word = number << 32 | region.key
        if word in self._granted or self._isClosed:
            return
        mine = self._mine or self._share()
        if mine is None:
            return
        place = _place(word) // 8
        cells = mine.cells
        if not cells[place]:
            cells[place + 1], cells[place + 2] = region.address, region.length
            cells[place + 3] = addressOf(region.view)
            # Last, as the peer may look already.
            cells[place] = word
            self._granted[word] = Grant(self, word, region)

    def _share(self) -> Segment | None:
        try:
            mine = Segment.create(_BYTES)
        except OSError:
            self._isClosed = True
            return None
        number = self._path.offer(mine)
        if not number:
            mine.close()
            self._isClosed = True
            return None
        self._mine = mine
        self._here[GRANTS] = number
        return mine

    def revoked(self, grant: Grant) -> None:
        """
        A grant has been taken back: see L{Grant.revoke}.
        """
        word = grant.word
        mine = self._mine
        if self._granted.pop(word, None) is None or mine is None:
            return
        mine.cells[_place(word) // 8] = 0
        fence()
        there = self._there
        if self._isOver or there[WRITES] != word:
            return
        end = monotonic() + WRITE_SECONDS
        while there[WRITES] == word:
            if monotonic() > end:
                self._path.breaks(RingError("the peer does not end a WRITE that was revoked"))
                return
            os.sched_yield()

    def revokeAll(self, number: int | None = None) -> None:
        """
        Take back what a queue pair has, or all have.
        """
        for word, grant in tuple(self._granted.items()):
            if number is None or word >> 32 == number:
                grant.revoke()

    def peerEnded(self) -> None:
        """
        The peer's process is no more: nobody waits for its WRITEs.
        """
        self._isOver = True

    def forked(self) -> None:
        """
        In a forked child nothing of this is its own.
        """
        self._granted.clear()
        self._mine = self._theirs = None
        self._isRefused = self._isClosed = True

    def close(self) -> None:
        """
        Take all back, and release the memory.
        """
        self.revokeAll()
        self._theirs = None
        self._isRefused = self._isClosed = True
        mine, self._mine = self._mine, None
        if mine is not None:
            mine.close()
