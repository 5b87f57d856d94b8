"""
How the processes of one user share UDP port 4791 of an address.  Pure.

The port has L{SLOTS} sockets (SO_REUSEPORT), and a classic BPF program chooses one of them for each datagram
(socket(7), SO_ATTACH_REUSEPORT_CBPF).  A process owns one slot: the upper L{SLOT_BITS} bits of its queue pair
numbers and of its communication ids, by which the program finds it.

Slot 0 is nobody's. It gets what begins something, REQ and SIDR_REQ, the REJ of a peer that has given up its
REQ, and what no process is found for. All processes read it; the reader hands these on to the process that
listens for their service id, which the L{ServiceTable} tells.  So does the reader of what UDP_GRO has joined:
the program sees only the first of its datagrams.

While more requests come than can be read, another program (L{filterOf}) drops those for services that
nobody listens for before they are in the buffer of slot 0.  To read one costs some ten microseconds, and a
busy machine leaves a process a twentieth of its time: the buffer would always be full, and who is honest
would find room in it as seldom as strangers do.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Iterable, Iterator
from mmap import mmap
from typing import Final

from attrs import frozen

from twisted_ib import limits
from twisted_ib.errors import ResourceLimitError, ServiceInUseError
from twisted_ib.hca.base.operation import GSI_QPN, ID_SHIFT, QPN_SHIFT, SLOT_BITS
from twisted_ib.hca.connection.compacthello import isMarked, streamService
from twisted_ib.hca.connection.rdmacm import HEADER_BYTES as CM_HEADER_BYTES
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.wire.cm.layout import BODY_BYTES
from twisted_ib.hca.wire.cm.messages import REJ, REQ, SIDR_REP, SIDR_REQ
from twisted_ib.hca.wire.headers import BTH, DETH
from twisted_ib.hca.wire.mad.classes import COMMUNICATION
from twisted_ib.hca.wire.mad.mad import HEADER_BYTES, METHOD_AT, RESPONSE
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY

#: How many slots there are.
SLOTS: Final = 1 << SLOT_BITS

# Offsets in a datagram, from the BTH.
_OPCODE: Final = 0
#: The DestQP's upper octet, and the word that it is in.
_TARGET: Final = 5
_TARGET_WORD: Final = 4
_MAD: Final = BTH.size + DETH.size
_CLASS: Final = _MAD + 1
_METHOD: Final = _MAD + METHOD_AT
_TRANSACTION: Final = _MAD + 8
_ATTRIBUTE: Final = _MAD + 16
_BODY: Final = _MAD + HEADER_BYTES
#: The first word of the body: the sender's communication id, or of a SIDR_REP the request id of its receiver.
_LOCAL_ID: Final = _BODY
_REMOTE_ID: Final = _BODY + 4
SERVICE_AT: Final = _BODY + 8
_REQUESTS: Final = {REQ.attribute: SERVICE_AT, SIDR_REQ.attribute: SERVICE_AT}
#: A REJ of somebody who has given up has it behind the CA GUID, if it is from this package.
_SERVICES: Final = {**_REQUESTS, REJ.attribute: _BODY + 20}
#: In the private data of a REQ, behind RDMA-CM's header: the mark of a request for a stream.
_MARK: Final = _BODY + BODY_BYTES - REQ.privateDataBytes + CM_HEADER_BYTES
_QPN_MASK: Final = 0xFFFFFF

_SHORT: Final = struct.Struct(">H")
_WORD: Final = struct.Struct(">I")
_LONG: Final = struct.Struct(">Q")

# Linux linux/bpf_common.h.
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30
_AND, _SHIFT_RIGHT, _JUMP, _JUMP_EQUAL, _RETURN, _RETURN_A = 0x54, 0x74, 0x05, 0x15, 0x06, 0x16
#: C{struct sock_filter} (linux/filter.h).
_INSTRUCTION: Final = struct.Struct("=HBBI")

#: Of more services there is no program that filters requests.
SIFTED_SERVICES: Final = 1024
#: A filter of a UDP socket sees the UDP header (Linux net/ipv4/udp.c udp_queue_rcv_one_skb).
_UDP_BYTES: Final = 8
_TAKE, _DROP = (_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)

Instruction = tuple[int, int, int, int]


def program() -> list[Instruction]:
    """
    The program that chooses the socket of a datagram: code, jumps if true and if false, constant.

    It is L{slotOf}. Where a datagram is too short for a load, a program of classic BPF ends with 0, so that
    goes to slot 0.
    """
    return [
        (_LOAD_BYTE, 0, 0, _TARGET),
        (_SHIFT_RIGHT, 0, 0, 8 - SLOT_BITS),
        (_JUMP_EQUAL, 1, 0, 0),
        (_RETURN_A, 0, 0, 0),
        # Queue pair 1, by a MAD of connection management; everything else below the numbers of slot 1 has
        # no queue pair.
        (_LOAD_BYTE, 0, 0, _OPCODE),
        (_JUMP_EQUAL, 0, 14, UD_SEND_ONLY),
        (_LOAD_WORD, 0, 0, _TARGET_WORD),
        (_AND, 0, 0, _QPN_MASK),
        (_JUMP_EQUAL, 0, 11, GSI_QPN),
        (_LOAD_BYTE, 0, 0, _CLASS),
        (_JUMP_EQUAL, 0, 9, COMMUNICATION),
        (_LOAD_HALF, 0, 0, _ATTRIBUTE),
        (_JUMP_EQUAL, 7, 0, REQ.attribute),
        (_JUMP_EQUAL, 6, 0, SIDR_REQ.attribute),
        (_JUMP_EQUAL, 0, 2, SIDR_REP.attribute),
        (_LOAD_WORD, 0, 0, _LOCAL_ID),
        (_JUMP, 0, 0, 1),
        (_LOAD_WORD, 0, 0, _REMOTE_ID),
        (_SHIFT_RIGHT, 0, 0, ID_SHIFT),
        (_RETURN_A, 0, 0, 0),
        (_RETURN, 0, 0, 0),
    ]


def filterOf(services: Iterable[int]) -> list[Instruction] | None:
    """
    @param services: service ids that somebody listens for.
    @return: a program that drops REQs and SIDR_REQs for others, as far as the lower half of the number
        tells, and datagrams that are too short to be a packet; L{None} if it would be too long.
    """
    # An adapter asks for a stream in the port space TCP.
    words = {number & 0xFFFFFFFF for number in services}
    words |= {PortSpace.TCP << 16 | word & 0xFFFF for word in words if word >> 16 == PortSpace.SDP}
    if len(words) > SIFTED_SERVICES:
        return None
    made: list[Instruction] = [
        (_LOAD_BYTE, 0, 0, _UDP_BYTES + _OPCODE),
        *((_JUMP_EQUAL, 1, 0, UD_SEND_ONLY), _TAKE),
        (_LOAD_WORD, 0, 0, _UDP_BYTES + _TARGET_WORD),
        (_AND, 0, 0, _QPN_MASK),
        *((_JUMP_EQUAL, 1, 0, GSI_QPN), _TAKE),
        (_LOAD_BYTE, 0, 0, _UDP_BYTES + _CLASS),
        *((_JUMP_EQUAL, 1, 0, COMMUNICATION), _TAKE),
        (_LOAD_HALF, 0, 0, _UDP_BYTES + _ATTRIBUTE),
        *((_JUMP_EQUAL, 2, 0, REQ.attribute), (_JUMP_EQUAL, 1, 0, SIDR_REQ.attribute), _TAKE),
        (_LOAD_WORD, 0, 0, _UDP_BYTES + SERVICE_AT + 4),
    ]
    for word in sorted(words):
        made += (_JUMP_EQUAL, 0, 1, word), _TAKE
    return [*made, _DROP]


def packed(instructions: Iterable[Instruction]) -> bytes:
    """
    @return: a program as an array of C{struct sock_filter}.
    """
    return b"".join(_INSTRUCTION.pack(*each) for each in instructions)


def slotOf(buffer: bytes | bytearray | memoryview, start: int, stop: int) -> int:
    """
    @return: the slot of a datagram, as the program finds it; 0 for nobody's.
    """
    try:
        slot = buffer[start + _TARGET] >> 8 - SLOT_BITS if start + _TARGET < stop else 0
        if slot or not isCommunication(buffer, start, stop):
            return slot
        (attribute,) = _SHORT.unpack_from(buffer, start + _ATTRIBUTE)
        if attribute in _REQUESTS:
            return 0
        at = start + (_LOCAL_ID if attribute == SIDR_REP.attribute else _REMOTE_ID)
        (number,) = _WORD.unpack_from(buffer, at)
    except struct.error:
        return 0
    found: int = number >> ID_SHIFT if at + _WORD.size <= stop else 0
    return found


def isCommunication(buffer: bytes | bytearray | memoryview, start: int, stop: int) -> bool:
    """
    @return: whether a datagram is a MAD of connection management.
    """
    isWhole = stop - start >= _BODY
    return isWhole and buffer[start + _CLASS] == COMMUNICATION and _isManagement(buffer, start)


def _isManagement(buffer: bytes | bytearray | memoryview, start: int) -> bool:
    number = _WORD.unpack_from(buffer, start + _TARGET_WORD)[0] & _QPN_MASK
    return bool(number == GSI_QPN and buffer[start + _OPCODE] == UD_SEND_ONLY)


def serviceOf(buffer: bytes | bytearray | memoryview, start: int, stop: int) -> int | None:
    """
    @return: the service id that a datagram is about, or L{None} if it is no REQ, SIDR_REQ or REJ.
    """
    found = _serviceAt(_SERVICES, buffer, start, stop)
    if found is None or found >> 16 != PortSpace.TCP:
        return found
    # An adapter asks for a stream in this port space.
    isREQ = _SHORT.unpack_from(buffer, start + _ATTRIBUTE)[0] == REQ.attribute
    return streamService(found) if isREQ and isMarked(bytes(buffer[start:stop]), _MARK) else found


def _serviceAt(
    places: dict[int, int], buffer: bytes | bytearray | memoryview, start: int, stop: int
) -> int | None:
    if not isCommunication(buffer, start, stop):
        return None
    offset = places.get(_SHORT.unpack_from(buffer, start + _ATTRIBUTE)[0])
    if offset is None or start + offset + _LONG.size > stop:
        return None
    found: int = _LONG.unpack_from(buffer, start + offset)[0]
    return found


def requestOf(buffer: bytes | bytearray | memoryview, start: int, stop: int) -> bytes | None:
    """
    @return: the number that the sender of a REQ or SIDR_REQ has given it, which it has again when it is
        repeated; L{None} if a datagram is neither.
    """
    if _serviceAt(_REQUESTS, buffer, start, stop) is None:
        return None
    return bytes(buffer[start + _LOCAL_ID : start + _REMOTE_ID])


def requesterOf(buffer: bytes | bytearray | memoryview, start: int, stop: int) -> int:
    """
    @return: the slot whose MAD a datagram answers, by its transaction id; 0 if it is no answer of an agent.
    """
    # Not in the program: the MADs by which a requester acknowledges a table (RMPP) are responses, too, and
    # have an id of its own. Where its upper bits are nobody's, the reader takes it.
    if stop - start < _BODY or not buffer[start + _METHOD] & RESPONSE or not _isManagement(buffer, start):
        return 0
    found: int = buffer[start + _TRANSACTION] >> 8 - SLOT_BITS
    return found if buffer[start + _CLASS] != COMMUNICATION else 0


# -- what is handed on

#: In the place of the opcode: of the manufacturers' range, which no RoCE peer uses (IBTA vol. 1 9.2).
HANDED_ON: Final = 0xFF
#: Octets of the secret of a group.
SECRET_BYTES: Final = 16
#: Then the source's port, a word with the slot in the place of the DestQP, the secret, the source, the
#: traffic class.
_HANDED: Final = struct.Struct(f">BxHI{SECRET_BYTES}s46sB")


@frozen
class Handed:
    """
    A datagram that one process hands on to another: from the port to the port, so the kernel tells that it
    comes from this group's processes; a peer that forges its source lacks the secret.

    @ivar source: who sent the datagram: its address, C{port} and C{trafficClass}.
    """

    source: str
    port: int
    trafficClass: int
    datagram: bytes

    def pack(self, slot: int, secret: bytes) -> bytes:
        """
        @param slot: whose it is.
        """
        source = self.source.encode("ascii")
        head = _HANDED.pack(HANDED_ON, self.port, slot << QPN_SHIFT, secret, source, self.trafficClass)
        return head + self.datagram

    @classmethod
    def parse(cls, data: bytes, secret: bytes) -> Handed | None:
        """
        @return: L{None} if it is none.
        """
        if len(data) <= _HANDED.size or data[0] != HANDED_ON:
            return None
        _, port, _, came, source, trafficClass = _HANDED.unpack_from(data)
        if not hmac.compare_digest(came, secret):
            return None
        return cls(source.rstrip(b"\0").decode("ascii"), port, trafficClass, data[_HANDED.size :])


# -- who listens

_LISTENS: Final = 1
_LISTENED: Final = 2
_NONE: Final = (0, 0)
#: A change's number: that of the slot and how many it had before.
_CHANGES_BITS: Final = 64 - SLOT_BITS
_CHANGES_MASK: Final = (1 << _CHANGES_BITS) - 1
_ROW: Final = struct.Struct("=QQ")
_COUNT: Final = struct.Struct("=Q")
#: How often the rows of a slot were changed, by all its owners, and the number of rows.
_HEAD: Final = struct.Struct("=QQ")
#: Octets of what one slot listens for: the head, then rows of service id and state.
_REGION: Final = _HEAD.size + limits.PACKET_SERVICES * _ROW.size
#: Octets of the memory that the processes of a group share: the secret, which change of a slot was the last,
#: then a region for each slot.
HEAD_BYTES: Final = SECRET_BYTES + _COUNT.size
TABLE_BYTES: Final = HEAD_BYTES + SLOTS * _REGION


def servicesOf(slot: int, rows: int) -> tuple[int, int]:
    """
    @return: where the rows of a slot's services begin in the memory, with their head, and the octets of
        so many.
    """
    return HEAD_BYTES + slot * _REGION, _HEAD.size + rows * _ROW.size


class ServiceTable:
    """
    The service ids that the processes of a group listen for, in memory that they share.

    Each writes in the region of its own slot only.  A row stays, marked, when a service ends, until its place
    is needed: a repeated REQ must reach the process that has the first.

    All rows are read again only when some have changed or an owner has ended, as REQs come from strangers.
    """

    def __init__(self, memory: mmap | bytearray, slot: int, isAlive: Callable[[int], bool]) -> None:
        """
        @param memory: L{TABLE_BYTES} octets.
        @param slot: whose rows are ours; those that its last owner has left are dropped.
        @param isAlive: whether a slot has an owner.
        """
        self._memory = memory
        self._slot = slot
        self._isAlive = isAlive
        #: Where the row of a service is, and the services that have ended, the oldest first.
        self._places: dict[int, int] = {}
        self._ended: dict[int, None] = {}
        #: Of the services of others the slot and the state, as of a change.
        self._index: dict[int, tuple[int, int]] = {}
        self._indexed = -1
        self._changed()

    @staticmethod
    def _start(slot: int) -> int:
        return servicesOf(slot, 0)[0]

    def _changed(self) -> None:
        # After the rows: who reads the number before them finds none that are older.
        memory, start = self._memory, self._start(self._slot)
        changes = _HEAD.unpack_from(memory, start)[0] + 1 & _CHANGES_MASK
        _HEAD.pack_into(memory, start, changes, len(self._places))
        # A number of its own for each change, so that two at once need no lock.
        _COUNT.pack_into(memory, SECRET_BYTES, self._slot << _CHANGES_BITS | changes)

    def _rows(self, slot: int) -> Iterator[tuple[int, int]]:
        start = self._start(slot)
        # Another process may write anything here.
        count = min(_HEAD.unpack_from(self._memory, start)[1], limits.PACKET_SERVICES)
        start += _HEAD.size
        for at in range(start, start + count * _ROW.size, _ROW.size):
            service, state = _ROW.unpack_from(self._memory, at)
            yield service, state

    @property
    def number(self) -> int:
        """
        @return: that of the last change of the table.
        """
        found: int = _COUNT.unpack_from(self._memory, SECRET_BYTES)[0]
        return found

    def add(self, serviceID: int) -> None:
        """
        Listen for a service id; the table is locked meanwhile.

        @raise ServiceInUseError: another process does.
        @raise ResourceLimitError: this process listens for L{limits.PACKET_SERVICES}.
        """
        if serviceID in self.others():
            raise ServiceInUseError("another process of this address listens there already")
        places, ended = self._places, self._ended
        at = places.get(serviceID)
        if at is None:
            # The rows of services that have ended last as long as there is room.
            if len(places) < limits.PACKET_SERVICES:
                at = self._start(self._slot) + _HEAD.size + len(places) * _ROW.size
            elif ended:
                oldest = next(iter(ended))
                del ended[oldest]
                at = places.pop(oldest)
            else:
                raise ResourceLimitError(f"{limits.PACKET_SERVICES} services listen")
            places[serviceID] = at
        ended.pop(serviceID, None)
        _ROW.pack_into(self._memory, at, serviceID, _LISTENS)
        self._changed()

    def others(self) -> set[int]:
        """
        @return: the service ids that other processes listen for.
        """
        self._read()
        return {service for service, (_, state) in self._index.items() if state == _LISTENS}

    def remove(self, serviceID: int) -> None:
        """
        Listen no longer.
        """
        at = self._places.get(serviceID)
        if at is not None:
            self._ended[serviceID] = None
            _ROW.pack_into(self._memory, at, serviceID, _LISTENED)
            self._changed()

    def find(self, serviceID: int) -> int:
        """
        @return: the slot of the process that listens for a service id or, if none does, that has; 0 for none.
        """
        isOwn = serviceID in self._places
        if isOwn and serviceID not in self._ended:
            return self._slot
        if self.number != self._indexed:
            self._read()
        for _ in range(2):
            slot, state = self._index.get(serviceID, _NONE)
            if isOwn and state != _LISTENS:
                return self._slot
            if not slot or self._isAlive(slot):
                return slot
            self._read()  # Without those of the owner that has ended.
        return 0

    def _read(self) -> None:
        self._indexed = self.number
        self._index = index = {}
        for slot in range(1, SLOTS):
            if slot == self._slot or not _HEAD.unpack_from(self._memory, self._start(slot))[1]:
                continue
            if self._isAlive(slot):
                for service, state in self._rows(slot):
                    if state == _LISTENS or service not in index:
                        index[service] = slot, state
