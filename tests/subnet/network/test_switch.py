"""
Tests of L{twisted_ib.subnet.network.switch}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.subnet.network.switch import NO_PORT, Switch


class SwitchTests(SynchronousTestCase):
    """
    Forwarding tables.
    """

    def test_linear(self) -> None:
        """
        A LID has the port of its entry; one above the top, or beyond the table, has none.
        """
        switch = Switch(linearEntries=8)
        switch.linear[:4] = bytes((NO_PORT, 0, 5, 6))
        switch.top = 2
        self.assertEqual([switch.lookup(lid) for lid in range(5)], [NO_PORT, 0, 5, NO_PORT, NO_PORT])
        switch.top = 0xBFFF
        self.assertEqual(switch.lookup(3), 6)
        self.assertEqual(switch.lookup(8), NO_PORT)

    def test_multicast(self) -> None:
        """
        A packet leaves by all ports of its LID but the one that it came in by.
        """
        switch = Switch(multicastEntries=2)
        switch.multicast[1] = 0b100101
        self.assertEqual(switch.replicated(0xC001, 2), [0, 5])
        self.assertEqual(switch.replicated(0xC001, 1), [0, 2, 5])
        switch.multicastTop = 0xC000
        self.assertEqual(switch.replicated(0xC001, 1), [])

    def test_multicastDefault(self) -> None:
        """
        A LID without ports has the primary default port, and where its packet came from there, the other.
        """
        switch = Switch(multicastEntries=2)
        for lid in (0xBFFF, 0xC000, 0xC002):
            self.assertEqual(switch.replicated(lid, 1), [])
        switch.defaultPrimary, switch.defaultNotPrimary = 3, 4
        for lid in (0xC000, 0xC002):
            self.assertEqual(switch.replicated(lid, 1), [3])
            self.assertEqual(switch.replicated(lid, 3), [4])
        self.assertEqual(switch.replicated(0xC000, 4), [3])
