"""
Registered memory of a stream socket: its buffers, messages that come as SENDs, and what the program
has mapped.
"""

from __future__ import annotations

import ctypes
from struct import Struct
from typing import TYPE_CHECKING

import attrs

from twisted_ib.hca.queues.completion import WorkCompletion
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.verbs.c.rsocket.protocol import Region, RSocketError, Write
from twisted_ib.verbs.pyverbs import CMID, MR, enums

if TYPE_CHECKING:
    from twisted_ib.structs import Packed

#: A message that is sent is the sender's own number (librdmacm/rsocket.c, rs_post_msg).
_MESSAGE: Packed[tuple[int]] = Struct("=I")
#: Octets of one.
MESSAGE_BYTES = _MESSAGE.size


class Memory:
    """
    A registered buffer.
    """

    def __init__(self, cmid: CMID, length: int, access: int) -> None:
        self.view = memoryview(bytearray(length))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.view))
        self.region = MR(cmid, length, access, self.address)
        # No program unmaps it: the kernel need not be asked at each access.
        self.region._core.sure = length

    def shown(self) -> Region:
        """
        @return: what the peer is shown.
        """
        return Region(self.address, self.region.rkey, len(self.view))

    def part(self, offset: int, length: int) -> SGE:
        """
        @return: octets from an offset on, as an element of a request.
        """
        return SGE(self.address + offset, length, self.region.lkey)


class Messages:
    """
    Messages as SENDs, each with memory of its own to come to: receives are taken in the order of posting.
    """

    def __init__(self, cmid: CMID, depth: int) -> None:
        """
        @param depth: receives that are posted at once.
        """
        self._depth, self._posted, self._taken = depth, 0, 0
        self._memory = Memory(cmid, depth * MESSAGE_BYTES, int(enums.ibv_access_flags.IBV_ACCESS_LOCAL_WRITE))

    def receives(self, count: int) -> list[ReceiveRequest]:
        """
        @return: for the next messages.
        """
        found = []
        for _ in range(count):
            found.append(ReceiveRequest(0, (self._memory.part(self._posted * MESSAGE_BYTES, MESSAGE_BYTES),)))
            self._posted = (self._posted + 1) % self._depth
        return found

    def taken(self, completion: WorkCompletion) -> int:
        """
        @param completion: of the first receive that was not asked for here.
        @return: its message.
        @raise RSocketError: it is none.
        """
        at, self._taken = self._taken * MESSAGE_BYTES, (self._taken + 1) % self._depth
        if completion.byteLength != MESSAGE_BYTES:
            raise RSocketError(f"{completion.byteLength} octets are no message")
        return _MESSAGE.unpack_from(self._memory.view, at)[0]

    @staticmethod
    def sent(write: Write) -> SendRequest:
        """
        @return: the request that brings the message of a write.
        """
        return SendRequest(write.message, SendOpcode.SEND, inline=_MESSAGE.pack(write.message))


@attrs.frozen
class Mapped:
    """
    Memory of the program.

    @ivar index: of its entry in the peer's map; None if the peer may not write there.
    """

    address: int
    length: int
    region: MR
    index: int | None
