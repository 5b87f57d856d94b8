"""
RDMA WRITEs that the peer's process does not execute: the kernel copies them into its memory at once
(process_vm_writev(2)), as an adapter would, whatever the peer's threads do meanwhile.

The first WRITE to a region comes as a record, and the peer, which checks it, may grant what follows: it then
writes into a table, which this side reads, that a queue pair's WRITEs with a key may go to so many bytes from
an address on.  An entry stands for all that L{Memory.check<twisted_ib.hca.memory.memory.Memory.check>} would
find, and goes before any of that changes: with the region, with the queue pair's state or its rights, with
the path.  Windows are never granted, and nothing is while a capture is written.

So one side asks (C{ASKS}), the other offers the memory of its table (C{GRANTS}, see L{SharedRegions
<twisted_ib.hca.fabric.shm.sharedregions.SharedRegions>}), and who writes says so (C{WRITES}) before it reads
the entry, with a fence between.  Who revokes clears the entry, has a fence, and waits while the other one
writes: afterwards no octet comes.

Only processes of one user do that, which could write to each other's memory anyway, and where the kernel lets
them (Yama's ptrace_scope, seccomp(2), pid namespaces).  Everything else goes by records, as before.
"""

from __future__ import annotations

import os
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from twisted_ib.drive.sleeper import fence
from twisted_ib.errors import RingError
from twisted_ib.hca.fabric.shm.segment import Segment
from twisted_ib.hca.host.libc import OtherProcess, addressOf
from twisted_ib.hca.memory.regions import MemoryRegion

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.shm.ring import RingPath
    from twisted_ib.structs import Packed

#: Entries of a table.  A key and a queue pair have one place: while another one has it, WRITEs are records.
GRANTS_MOST: Final = 1024
#: Seconds that a peer has for a WRITE which it has begun when that is revoked: one that is stopped just then
#: loses its path.
WRITE_SECONDS: Final = 1.0
#: What an entry has: queue pair and key, the first address, octets, where these are in the process.
_ENTRY: Packed[tuple[int, int, int, int]] = Struct("=4Q")
_BYTES: Final = _ENTRY.size * GRANTS_MOST


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

    def __init__(self, path: RingPath, here: Any, there: Any, cells: tuple[int, int, int]) -> None:
        """
        @param here: the cells of the path's segment.
        @param there: those of the peer's.
        @param cells: which ones are C{ASKS}, C{GRANTS} and C{WRITES}.
        """
        self._path = path
        self._here, self._there = here, there
        self._asks, self._grants, self._writes = cells
        self._process: OtherProcess | None = None
        # The peer's table; and whether there is none for good, nor one of ours.
        self._theirs: memoryview | None = None
        self._isRefused = self._isClosed = False
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
        if here[self._writes]:
            return False
        word = number << 32 | key
        here[self._writes] = word
        try:
            fence()
            found, first, octets, there = _ENTRY.unpack_from(theirs, _place(word))
            within = address - first
            if found != word or within < 0 or within + length > octets:
                return False
            if source is None:
                return True
            if isinstance(source, MemoryRegion):
                place = source.place
                if not place:
                    place = source.place = addressOf(source.view)
                done = process.write(there + within, place + offset, length)
            else:
                done = process.writeBytes(there + within, source, length)
        except ValueError:
            # The peer has withdrawn its table.
            self._isRefused = True
            return False
        finally:
            here[self._writes] = 0
        if done < 0:
            self._theirs, self._isRefused = None, True
        return done == length

    def ask(self) -> None:
        """
        Tell the peer that this side would write, if it can.
        """
        if self._process is None and not self._isRefused:
            pid = self._path.peerProcess()
            # Not to itself: that needs no kernel.
            self._isRefused = not pid or pid == os.getpid() or not OtherProcess.isPossible()
            if not self._isRefused:
                self._process = OtherProcess(pid)
                self._here[self._asks] = 1

    def _find(self) -> memoryview | None:
        number = self._there[self._grants]
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
        self._here[self._grants] = number
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
        there, writes = self._there, self._writes
        if there[writes] != word:
            return
        end = monotonic() + WRITE_SECONDS
        while there[writes] == word:
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
        The peer's process is no more.
        """
        self._granted.clear()

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
