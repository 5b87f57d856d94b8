"""
Scatter/gather lists: the bytes of a message, wherever they lie.
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
    The bytes that a list has room for.
    """
    return sum([piece.length for piece in pieces])


def find(pieces: Sequence[SGE], start: int) -> tuple[SGE, int]:
    """
    The piece that holds a byte of the message, and where in it; the list has that many.
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

    Rights are asked anew for each part: a region may go while a long message is on its
    way.

    @param start: the part's first byte, counted in the message.
    @param length: its size; the list has at least C{start + length} bytes.
    @param access: what is done with it: C{LOCAL_READ} or C{LOCAL_WRITE}, or for a peer
        C{REMOTE_READ}.
    @param queuePair: the queue pair whose peer asks, if one does.

    @return: slices of the regions.

    @raise MemoryAccessError: a piece that has a byte of the part may not be used so.
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
        view, offset = check(piece.key, piece.address + start, count, access, pd, queuePair)
        found.append(view[offset : offset + count])
        length -= count
        start = 0
    return found


def scatter(target: Sequence[memoryview], source: memoryview) -> None:
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
    The payload of a record: what it carries, or what it refers to.

    @param opcode: the record's code, perhaps with L{REFERENCE}.
    @param start: where the record's headers end.

    @return: a view for use during this call only; L{None} if the reference leads nowhere, or
        stands for more than one turn may copy.
    """
    if not opcode & REFERENCE:
        return memoryview(buffer)[start:stop]
    if stop - start != headers.REFERENCE.size:
        return None
    number, count, offset = headers.REFERENCE.unpack_from(buffer, start)
    if count > limits.PULL_MOST:
        return None
    segment: memoryview | None = path.offered(number)
    if segment is None or offset + count > len(segment):
        return None
    return segment[offset : offset + count]
