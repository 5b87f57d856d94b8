"""
The memory that a peer named and was refused: a Terminate tells more of it than a NAK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted_ib.hca.fabric.iwarp.protocol.ddp import READ_REQUEST, TAGGED, UNTAGGED, Opcode
from twisted_ib.hca.fabric.iwarp.protocol.terminate import Protection
from twisted_ib.hca.memory.access import ZERO_BASED

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Buffer
    from twisted_ib.hca.services.work import WorkQueues


def protectionOf(work: WorkQueues, opcode: int, buffer: Buffer, first: int, last: int) -> Protection | None:
    """
    Find out why a Write or a Read Request was refused, after that.

    @param work: the work queues of its queue pair, or L{None}.
    @param opcode: the RDMAP opcode.
    @param first: where the ULPDU begins in C{buffer}, and C{last} where it ends.
    @return: L{None} if the memory is not the reason.
    """
    if work is None:
        return None
    if opcode == Opcode.WRITE:
        _, key, address = TAGGED.unpack_from(buffer, first)
        length = last - first - TAGGED.size
    else:
        _, _, length, key, address = READ_REQUEST.unpack_from(buffer, first + UNTAGGED.size)
    if not length:
        return None
    memory = work.pd.memory
    # A region, or a window, which has the same names for what is asked here.
    found = memory.regions.get(key) or memory.windows.byKey.get(key)
    if found is None or not found.length:
        return Protection.KEY
    owner = getattr(found, "queuePair", None)
    if found.pd is not work.pd or (owner is not None and owner is not work.queuePair):
        return Protection.ASSOCIATION
    offset = address if found.access & ZERO_BASED else address - found.address
    if offset < 0 or offset + length > found.length:
        return Protection.BOUNDS
    return Protection.RIGHTS
