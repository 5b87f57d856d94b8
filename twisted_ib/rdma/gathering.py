"""
Several messages in one SEND, between two processes that have agreed on it: the format, and what is sent.

Messages that are written while others are on their way go together, as TCP joins small writes.  The SEND is
the 32-bit number of messages, that of each one's bytes, little-endian, and the messages.  It is a solicited
one, which tells it from a SEND of one message; nobody waits for events of these connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING

from twisted_ib import limits
from twisted_ib.errors import WireError

if TYPE_CHECKING:
    from twisted_ib.rdma.transport import RDMATransport
    from twisted_ib.structs import Packed

_COUNT: Packed[tuple[int]] = Struct("<I")
_MOST = limits.RDMA_GATHERED // limits.RDMA_GATHERED_EACH


def begin(transport: RDMATransport, data: bytes, length: int) -> None:
    """
    Gather a first message, or one for which the SEND that is being gathered has no room.
    """
    isFull = transport.gathered is not None
    if isFull:
        post(transport)
    transport.gathered = [limits.RDMA_GATHERED - length - 2 * limits.RDMA_GATHERED_EACH, data]
    transport.cork()
    if isFull:
        # As if so much waited: what a producer writes in one turn has a bound.
        transport.filled()


def post(transport: RDMATransport) -> None:
    """
    Post what was gathered.
    """
    assert transport.gathered is not None
    _, *messages = transport.gathered
    transport.gathered = None
    if len(messages) == 1:
        transport.post(messages[0], len(messages[0]))
    else:
        data = join(messages)
        transport.post(data, len(data), several=True)


def join(messages: Sequence[bytes]) -> bytes:
    """
    Return the SEND of at most C{limits.RDMA_GATHERED // limits.RDMA_GATHERED_EACH} messages.
    """
    count = len(messages)
    return b"".join((pack(f"<{count + 1}I", count, *map(len, messages)), *messages))


def divided(buffer: bytes, start: int, stop: int) -> list[bytes]:
    """
    Return copies of the messages of such a SEND.

    @param buffer: Has it from C{start} to C{stop}; the peer may write to it meanwhile.
    @raise WireError: It is not one.
    """
    size = stop - start
    count = _COUNT.unpack_from(buffer, start)[0] if size >= _COUNT.size else 0
    first = start + _COUNT.size * (count + 1)
    if not 0 < count <= _MOST or stop < first:
        raise WireError(f"a SEND of {size} bytes is said to have {count} messages")
    # Read once: what is checked here is what is cut by.
    lengths: tuple[int, ...] = unpack_from(f"<{count}I", buffer, start + _COUNT.size)
    if first + sum(lengths) != stop:
        raise WireError(f"the {count} messages of a SEND of {size} bytes have {sum(lengths)}")
    messages = [buffer[begin:end] for begin, end in pairwise(accumulate(lengths, initial=first))]
    return messages if messages[0].__class__ is bytes else [bytes(message) for message in messages]
