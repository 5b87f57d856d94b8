"""
Scatter/gather lists: find and copy the bytes of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from twisted_ib import limits
from twisted_ib.hca.base.operation import REFERENCE, TAILS
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.receives import SGE
from twisted_ib.hca.wire import headers

#: A copy of no more octets is in order as it is: its last store is its last octets' (memcpy(3) of glibc).
AT_ONCE: Final = 64


def total(pieces: Sequence[SGE]) -> int:
    """
    The sum of a list's lengths.
    """
    return sum([piece.length for piece in pieces])


def find(pieces: Sequence[SGE], start: int) -> tuple[SGE, int]:
    """
    The element that holds a byte of the message, and the offset in it; the list must be that long.
    """
    for piece in pieces:
        if start < piece.length:
            return piece, start
        start -= piece.length
    raise AssertionError("a message is longer than its list")


def locate(
    pd: ProtectionDomain,
    pieces: Sequence[SGE],
    start: int,
    length: int,
    access: int,
    queuePair: object = None,
) -> list[memoryview]:
    """
    The memory that holds a part of a message.

    @param start: the part's first byte, counted in the message.
    @param length: its size; the list has at least C{start + length} bytes.
    @param access: the right that is needed: C{LOCAL_READ} or C{LOCAL_WRITE}, or C{REMOTE_READ} for a peer.
    @param queuePair: the queue pair whose peer asks, if one does.

    @return: slices of the regions.

    @raise MemoryAccessError: an element with a byte of the part does not permit the access.
    """
    found = []
    check = pd.memory.check
    for piece in pieces:
        if not length:
            break
        size = piece.length - start
        if size <= 0:
            start -= piece.length
            continue
        count = min(size, length)
        # Checked for each part, not once per message: a region may be deregistered while a long
        # message is on its way (Linux rxe_mr.c copy_data() looks each element up again, too).
        view, offset = check(piece.key, piece.address + start, count, access, pd, queuePair)
        found.append(view[offset : offset + count])
        length -= count
        start = 0
    return found


def store(view: Any, offset: int, source: bytes | memoryview, end: int) -> None:
    """
    Copy more than L{AT_ONCE} bytes so that what lies at the end, an aligned word of up to 8 octets, comes
    last.

    Programs poll the last octet of a WRITE, as with adapters (perftest, MPI), and memcpy(3) stores in any
    order. Another process sees the stores in their order where the processor keeps it (x86).

    @param end: the program's address behind the last.
    """
    if source.__class__ is bytes:
        source = memoryview(source)
    length = len(source)
    size = length - TAILS[end & 7]
    last = offset + size
    view[offset:last] = source[:size]
    view[last : offset + length] = source[size:]


def scatter(target: Sequence[memoryview], source: bytes | memoryview, end: int = 0) -> None:
    """
    Copy bytes into what L{locate} found.

    @param end: the program's address behind the last, if it is known.
    """
    at, left = 0, len(source)
    for view in target:
        size = len(view)
        left -= size
        if left or size <= AT_ONCE:
            view[:] = source[at : at + size]
        else:
            store(view, 0, source[at : at + size], end)
        at += size


def payload(path: Any, opcode: int, buffer: Any, start: int, stop: int) -> memoryview | None:
    """
    The payload of a record: the bytes it carries, or the bytes it refers to.

    @param opcode: the record's opcode, perhaps with L{REFERENCE}.
    @param start: where the record's headers end.

    @return: a view for use during this call only; L{None} if the reference is not valid, or longer than
        one turn may copy.
    """
    if not opcode & REFERENCE:
        return memoryview(buffer)[start:stop]
    if stop - start != headers.REFERENCE.size:
        return None
    # The peer wrote these numbers: they are read once, then checked, as the record may lie in
    # memory that it can still change.
    number, count, offset = headers.REFERENCE.unpack_from(buffer, start)
    # A local peer must not stop the reactor with one record that copies gigabytes.
    if count > limits.PULL_MOST:
        return None
    segment: memoryview | None = path.offered(number)
    if segment is None or offset + count > len(segment):
        return None
    return segment[offset : offset + count]
