"""
Base of tests of datagrams, and what they look like.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.services.datagrams.datagram_pair import DatagramPair, DatagramSide

#: From queue pair 17 of HCA 0xA1 to HCA 0xB1: GRH as L{DatagramSide.datagram} has it.
HEAD = "6a512345 {:04x} 1b 3f fe80000000000000 00000000000000a1 fe80000000000000 00000000000000b1"


def record(behind: str, size: int, deth: str = "11111111 00000011") -> bytes:
    """
    The octets of a datagram.

    @param behind: what follows the DETH, hexadecimal.
    @param size: what the GRH gives as the length.
    """
    return bytes.fromhex(HEAD.format(size) + deth + behind)


class DatagramTestCase(SynchronousTestCase):
    """
    Two datagram queue pairs, a source and a target.
    """

    def connect(self, **arguments: Any) -> None:
        """
        Make the pair C{self.p}: see L{DatagramPair}.
        """
        self.p = DatagramPair(**arguments)
        self.a, self.b = self.p.a, self.p.b
        self.source = self.a.register(bytes(range(256)) * 20)
        self.target = self.b.register(10240)

    def setUp(self) -> None:
        """
        In RTS.
        """
        self.connect()

    def wire(self) -> list[tuple[int, bytes]]:
        """
        The records in the medium: words and bytes.
        """
        return [(word, data) for _, word, data in self.p.ends[0].records]

    def put(self, data: bytes, opcode: int = 0x64, number: int = 18) -> dict[str, int]:
        """
        Let a record arrive at C{b}.

        @return: what was counted.
        """
        self.b.hca.counters.clear()
        before = self.target.view.tobytes()
        self.p.ends[0].post(opcode << 24 | number, b"", data, len(data))
        self.p.flow()
        if self.b.hca.counters:
            self.assertEqual(self.target.view.tobytes(), before, "what is dropped leaves no trace")
        return dict(self.b.hca.counters)

    def got(self, side: DatagramSide | None = None) -> list[tuple[Any, ...]]:
        """
        Completions of receives at C{b}: number, status, length, flags, immediate, sender.
        """
        return [
            (c.workRequestID, c.status, c.byteLength, c.flags, c.immediate, c.sourceQueuePair)
            for c in (side or self.b).received()
        ]
