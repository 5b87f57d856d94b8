"""
The connections of a process that died without closing them.  Pure.

The processes that share an address write their connections into memory that they share, a
L{ConnectionRegister}, before they send the REQ or the REP. If one of them dies, another ends its connections
as a kernel would: L{Orphans} sends a DREQ for each until the DREP comes, or a REJ where no REP has come, and
answers what still comes for them (Linux ucma.c ucma_close, cm.c cm_destroy_id).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from mmap import mmap
from typing import Final

from attrs import frozen

from twisted_ib import limits
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.cm.table import ConnectionTable
from twisted_ib.hca.connection.rdmacm import gidOf, gidText
from twisted_ib.hca.fabric.roce.slots import SLOTS, TABLE_BYTES, isCommunication
from twisted_ib.hca.wire.cm.messages import REP, REQ
from twisted_ib.hca.wire.headers import BTH, DETH, ICRC, MAD_BYTES, PSN_MASK, QPN_MASK, QUEUE_KEY
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.mad.mad import HEADER, communicationHeader
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY
from twisted_ib.hca.wire.rocev2 import PORT

#: A DREQ is repeated so often, each after 0.54 s (a timeout code): peers know within three seconds, or never.
ORPHAN_RETRIES = 5
ORPHAN_TIMEOUT_CODE = 17
#: The same for one that awaited its RTU: its REQ may have been forged, in the name of a victim.
HALF_OPEN_RETRIES = 1
#: For so many seconds a REP is answered by a REJ if the process that sent its REQ is dead: it has come once
#: more by then, if it was read (a timeout code of 20, as Linux cma.c).
ORPHAN_REPLY_SECONDS = 5.0
#: Connections of a process that await the RTU and have a row, the latest: strangers can make any number.
HALF_OPEN_ROWS = 256
#: How many connections are ended at a time, and the pause in seconds before the next: they may be of one
#: peer, whose socket has a buffer.
ORPHANS_AT_ONCE = 64
ORPHAN_PAUSE_SECONDS = 0.005

#: When it is seen whether the process that has closed the file has died, in seconds after that: the kernel
#: ends its lock a little later (Linux fs/file_table.c __fput), and on a busy machine whenever it comes to it.
DEATH_LOOKS = 0.01, 0.1, *map(float, range(1, 61))
#: How often, in seconds, where inotify(7) does not tell.
DEATH_POLL_SECONDS = 1.0

#: A row: the peer's GID, both communication ids and queue pair numbers, P_Key, how it is used, and where the
#: REP is awaited our CA GUID and the service id.
_ROW: Final = struct.Struct("=16sIIIIHBxQQ")
_COUNT: Final = struct.Struct("=Q")
_REGION: Final = _COUNT.size + limits.PACKET_CONNECTIONS * _ROW.size
_FREE: Final = bytes(_ROW.size)
_IS_OPEN, _IS_HALF_OPEN = 1, 2
#: Rows that are allocated together.
_ROWS_AT_ONCE: Final = 256
#: Octets of the memory that the processes of a group share: the table of services, then a region of
#: connections for each slot.
MEMORY_BYTES: Final = TABLE_BYTES + SLOTS * _REGION
#: Octets of a datagram with a MAD, and where its body begins.
DATAGRAM_BYTES: Final = BTH.size + DETH.size + MAD_BYTES + ICRC.size
_MAD: Final = BTH.size + DETH.size
_BODY: Final = _MAD + HEADER.size


@frozen
class Orphan:
    """
    One end of a connection.

    @ivar address: the peer's.
    @ivar remoteID: 0 if the REP is awaited, or has no answer; then C{guid} and C{serviceID} are those of the
        REQ.
    @ivar isHalfOpen: whether the RTU is awaited.
    """

    address: str
    localID: int
    remoteID: int
    localQPN: int
    remoteQPN: int
    partition: int
    isHalfOpen: bool = False
    guid: int = 0
    serviceID: int = 0


def _start(slot: int) -> int:
    return TABLE_BYTES + slot * _REGION


def connectionsOf(slot: int, rows: int) -> tuple[int, int]:
    """
    @return: where the rows of a slot's connections begin in the memory, with their count, and the octets of
        so many.
    """
    return _start(slot), _COUNT.size + rows * _ROW.size


def hasConnections(memory: mmap | bytearray, slot: int) -> bool:
    """
    @return: whether a slot has connections.
    """
    return bool(_COUNT.unpack_from(memory, _start(slot))[0])


class ConnectionRegister:
    """
    The open connections of the processes of a group, in memory that they share, and those half open.

    Each writes in the region of its own slot only.
    """

    def __init__(
        self, memory: mmap | bytearray, slot: int, reserve: Callable[[int, int], bool] = lambda *_: True
    ) -> None:
        """
        @param memory: L{MEMORY_BYTES} octets.
        @param slot: whose rows are ours.
        @param reserve: allocates octets of the memory, from an offset, and tells whether there were any.
        """
        self._memory = memory
        self._slot = slot
        self._reserve = reserve
        self._reserved = 0
        #: Communication id -> the number of its row; rows below C{_count} that are free.
        self._places: dict[int, int] = {}
        self._free: list[int] = []
        #: Communication ids of those that await the RTU, the oldest first.
        self._halfOpen: dict[int, None] = {}
        self._count = 0
        self.clear(slot)

    def _at(self, row: int) -> int:
        return _start(self._slot) + _COUNT.size + row * _ROW.size

    def add(self, orphan: Orphan) -> bool:
        """
        A connection is open, or half open: of the latter the oldest gives way.

        @return: False if there is no room: nobody will end it.
        """
        localID, halfOpen = orphan.localID, self._halfOpen
        row = self._places.get(localID)
        if row is not None:
            if orphan.isHalfOpen:
                return True
            halfOpen.pop(localID, None)
        elif orphan.isHalfOpen and len(halfOpen) >= HALF_OPEN_ROWS:
            row = self._oldest()
        elif self._free:
            row = self._free.pop()
        elif self._count < limits.PACKET_CONNECTIONS and self._hasRow():
            row, self._count = self._count, self._count + 1
        elif halfOpen:
            row = self._oldest()
        else:
            return False
        if orphan.isHalfOpen:
            halfOpen[localID] = None
        self._places[localID] = row
        _ROW.pack_into(
            *(self._memory, self._at(row), gidOf(orphan.address), localID, orphan.remoteID, orphan.localQPN),
            *(orphan.remoteQPN, orphan.partition, _IS_HALF_OPEN if orphan.isHalfOpen else _IS_OPEN),
            *(orphan.guid, orphan.serviceID),
        )
        _COUNT.pack_into(self._memory, _start(self._slot), self._count)
        return True

    def _oldest(self) -> int:
        localID = next(iter(self._halfOpen))
        del self._halfOpen[localID]
        return self._places.pop(localID)

    def _hasRow(self) -> bool:
        if self._count < self._reserved:
            return True
        rows = min(self._count + _ROWS_AT_ONCE, limits.PACKET_CONNECTIONS)
        isReserved = self._reserve(*connectionsOf(self._slot, rows))
        if isReserved:
            self._reserved = rows
        return isReserved

    def remove(self, localID: int) -> None:
        """
        A connection has ended.
        """
        row = self._places.pop(localID, None)
        if row is None:
            return
        self._halfOpen.pop(localID, None)
        at = self._at(row)
        self._memory[at : at + _ROW.size] = _FREE
        self._free.append(row)
        if not self._places:
            self._free.clear()
            self._count = 0
            self.clear(self._slot)

    def clear(self, slot: int) -> None:
        """
        A slot has no connections.
        """
        _COUNT.pack_into(self._memory, _start(slot), 0)

    def of(self, slot: int) -> list[Orphan]:
        """
        @return: the connections of a slot.
        """
        start = _start(slot)
        # Another process may write anything here.
        count = min(_COUNT.unpack_from(self._memory, start)[0], limits.PACKET_CONNECTIONS)
        start += _COUNT.size
        found = []
        for at in range(start, start + count * _ROW.size, _ROW.size):
            gid, localID, remoteID, localQPN, remoteQPN, partition, use, *asked = _ROW.unpack_from(
                self._memory, at
            )
            if use and localID:
                numbers = localID, remoteID, localQPN & QPN_MASK, remoteQPN & QPN_MASK, partition
                address = gidText(int.from_bytes(gid, "big"))
                found.append(Orphan(address, *numbers, use == _IS_HALF_OPEN, *asked))
        return found


class DeathLooks:
    """
    When it is to be seen whether processes of the group have died.
    """

    def __init__(self, now: float, isTold: bool) -> None:
        """
        See it at once: one may have died before this, or be dying.

        @param isTold: whether L{closed} is called.
        """
        self._isTold = isTold
        self._due = deque([now])
        if isTold:
            self.closed(now)

    def closed(self, now: float) -> None:
        """
        A process has closed the file: it has ended, or is being ended.
        """
        # One that is due sooner stays, as files may be closed all the time.
        sooner = [each for each in tuple(self._due)[:1] if each < now + DEATH_LOOKS[0]]
        self._due = deque((*sooner, *(now + each for each in DEATH_LOOKS)))

    def deadline(self) -> float | None:
        """
        @return: when to look next, or L{None}.
        """
        return self._due[0] if self._due else None

    def looked(self, now: float, isLeft: bool) -> None:
        """
        It has been seen.

        @param isLeft: whether there is anybody with connections, who seems to live.
        """
        due = self._due
        while due and (due[0] <= now or (self._isTold and not isLeft)):
            due.popleft()
        if not due and not self._isTold:
            due.append(now + DEATH_POLL_SECONDS)


class Orphans:
    """
    Ends the connections that a process has left.
    """

    def __init__(self, here: str, left: Iterable[Orphan], now: float) -> None:
        """
        @param here: the address of the process.
        @param left: its connections, of one partition.
        """
        self._here = gidOf(here)
        self._left = deque(left)
        self._partition = self._left[0].partition if self._left else 0xFFFF
        self._sequence = 0
        self._cm = ConnectionTable(0, lambda bits: 0)
        self._next = now
        #: Until then a REP may come, or L{None}.
        self._until: float | None = None

    @property
    def isDone(self) -> bool:
        """
        Whether all have been ended.
        """
        return not self._left and not len(self._cm) and self._until is None

    def deadline(self) -> float | None:
        """
        @return: when L{outputs} should be called next, or L{None}.
        """
        return self._next if self._left else self._cm.deadline(False) or self._until

    def outputs(self, now: float) -> list[tuple[str, bytes]]:
        """
        @return: what is to be sent: addresses and datagrams, for UDP source port 4791.
        """
        self._cm.tick(now)
        if self._until is not None and now >= self._until:
            self._until = None
        if self._left and now >= self._next:
            self._next = now + ORPHAN_PAUSE_SECONDS
            for _ in range(min(len(self._left), ORPHANS_AT_ONCE)):
                self._end(self._left.popleft(), now)
        self._cm.events.clear()
        sent, self._cm.outputs = self._cm.outputs, deque()
        return [(address, self._datagram(address, attribute, body)) for address, attribute, body in sent]

    def _end(self, orphan: Orphan, now: float) -> None:
        # The opening is made up, which gives the connection manager all that it needs for the end.
        cm, before = self._cm, self._cm.outputs
        cm.outputs = deque()
        cm.caGUID = orphan.guid
        request = REQ(
            serviceID=orphan.serviceID,
            localQPN=orphan.localQPN,
            responseTimeout=ORPHAN_TIMEOUT_CODE,
            requestRetries=HALF_OPEN_RETRIES if orphan.isHalfOpen else ORPHAN_RETRIES,
        )
        connection = cm.connect(orphan.address, request, None, now, orphan.localID)
        if not orphan.remoteID:
            cm.outputs = before
            connection.abandon(now)
            self._until = now + ORPHAN_REPLY_SECONDS
            return
        # A CA GUID for each, as two may have one peer's number, of which the first was ended only here.
        reply = REP(
            localCommunicationID=orphan.remoteID,
            remoteCommunicationID=connection.localID,
            localQPN=orphan.remoteQPN,
            localCAGUID=connection.localID,
        ).pack()
        cm.receive(orphan.address, REP.attribute, reply, 0, len(reply), now)
        connection.ready(now)
        cm.outputs = before
        connection.disconnect(now)

    def _datagram(self, address: str, attribute: int, body: bytes) -> bytes:
        self._sequence = self._sequence + 1 & PSN_MASK
        packet = b"".join(
            (
                BTH.pack(UD_SEND_ONLY, 0, self._partition, GSI_QPN, self._sequence),
                DETH.pack(QUEUE_KEY, GSI_QPN),
                communicationHeader(self._sequence, attribute),
                body,
            )
        )
        return ICRCState(self._here, gidOf(address), PORT, 1).sign(packet)

    def receive(self, source: str, port: int, data: bytes, now: float) -> None:
        """
        A datagram came for the process.

        @param source: its address.
        @param port: its UDP source port.
        """
        # Anything else than CM messages is for queue pairs that are no more, and is dropped, as by Linux
        # (rxe_recv.c hdr_check).
        if len(data) != DATAGRAM_BYTES or not isCommunication(data, 0, len(data)):
            return
        flow = ICRCState(gidOf(source), self._here, port, 1)
        if flow.isRight(memoryview(data), 0, len(data)) and DETH.unpack_from(data, BTH.size)[0] == QUEUE_KEY:
            attribute = HEADER.unpack_from(data, _MAD)[7]
            self._cm.receive(source, attribute, data, _BODY, len(data) - ICRC.size, now)
