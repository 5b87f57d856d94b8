"""
Registered memory of a stream socket: its buffers, and what the program has mapped.
"""

from __future__ import annotations

import ctypes

import attrs

from twisted_ib.hca.queues.requests import SGE
from twisted_ib.verbs.c.rsocket.protocol import Region
from twisted_ib.verbs.pyverbs import CMID, MR


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
