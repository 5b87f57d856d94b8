"""
Calls for each packet of an interface, from the user's C{send} to the consumer's C{packetReceived}.
"""

from __future__ import annotations

from typing import Any
from unittest import skipIf

from tests.hca.hcas import settle
from tests.ipoib.pairs import OnSharedMemory
from tests.ipoib.test_interface import IPV4, MISSING, ONE, TWO, Interfaces, packet
from tests.support.calls import PACKAGE, called

#: Packets that are counted.
PACKETS = 50
#: Calls that a batch costs, whatever it has.
BATCH = 1.0


@skipIf(bool(MISSING), f"missing: {MISSING}")
class ConnectedTests(Interfaces, OnSharedMemory):
    """
    Packets on a connection.

    @cvar sending: calls of the sender, and C{receiving} of the receiver.
    """

    sending, receiving = 4, 7

    def test_calls(self) -> None:
        """
        They are no more than what is said here.
        """
        self.send()
        self.settle(0.2)
        frame, before = IPV4 + packet(ONE, TWO, 500), len(self.heard)
        sent = called(lambda: [self.here.send(frame) for _ in range(PACKETS)], PACKAGE)
        received = called(lambda: settle(self.one, self.two), PACKAGE)
        self.assertEqual(len(self.heard) - before, PACKETS)
        self.assertLessEqual(sum(sent.values()) / PACKETS, self.sending + BATCH, sent)
        self.assertLessEqual(sum(received.values()) / PACKETS, self.receiving + BATCH, received)


class DatagramTests(ConnectedTests):
    """
    Packets as datagrams.
    """

    sending, receiving = 11, 25

    def interface(self, device: Any, *addresses: str, **arguments: Any) -> Any:
        """
        @return: an interface without connected mode.
        """
        return super().interface(device, *addresses, isConnected=False, **arguments)
