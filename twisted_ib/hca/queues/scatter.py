"""
Scatter/gather lists: find and copy the bytes of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted_ib import limits
from twisted_ib.hca.base.operation import REFERENCE
from twisted_ib.hca.memory.memory import ProtectionDomain
from twisted_ib.hca.queues.requests import SGE
from twisted_ib.hca.wire import headers


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


def scatter(target: Sequence[memoryview], source: bytes | memoryview) -> None:
    """
    Copy bytes into what L{locate} found.
    """
    at = 0
    for view in target:
        end = at + len(view)
        view[:] = source[at:end]
        at = end


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
