"""
Tests for the messages between the host of a subnet and its devices.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.errors import WireError
from twisted_ib.hca.base.port import KeyViolation, PhysicalState, PortChange, PortState
from twisted_ib.subnet.hosting import messages
from twisted_ib.subnet.hosting.messages import Attach, Reached, Ways
from twisted_ib.subnet.network.smi import Packet

CHANGE = PortChange(
    state=PortState.ACTIVE,
    physicalState=PhysicalState.LINK_UP,
    lid=3,
    lmc=1,
    smLID=1,
    smSL=2,
    width=2,
    speed=1,
    capMask=0x0250C048,
    gids=(0xFE80 << 112 | 5,),
    partitions=(0xFFFF, 0),
    reregister=True,
)
PARSERS: tuple[Callable[[bytes], object], ...] = (
    *(
        messages.parseAttach,
        messages.parseAttached,
        messages.parsePort,
        messages.parseMAD,
        messages.parseViolated,
        messages.parseManages,
        Ways,
    ),
)


class MessageTests(SynchronousTestCase):
    """
    Each message.
    """

    def test_literal(self) -> None:
        """
        Octets of all kinds.
        """
        attach = bytes.fromhex("01 746962 73756232 0300 0500000000000000 01") + b"ib0"
        self.assertEqual(messages.packAttach(5, 3, "ib0", True), attach)
        self.assertEqual(messages.parseAttach(attach), Attach(5, 3, "ib0", True))
        attached = bytes.fromhex("02 0500000000000000")
        self.assertEqual((messages.packAttached(5), messages.parseAttached(attached)), (attached, 5))
        port = bytes.fromhex(
            "04 04 05 0300 01 0100 02 02 01 48c05002 01 0100 0200fe80 000000000000 0000000000000005 ffff 0000"
        )
        self.assertEqual((messages.packPort(CHANGE), messages.parsePort(port)), (port, CHANGE))
        packet = Packet(1, 2, 3, 4, bytearray(256))
        mad = bytes.fromhex("06 0100 0200 03000000 04000000") + bytes(256)
        self.assertEqual((messages.packMAD(packet), messages.parseMAD(mad)), (mad, packet))
        self.assertEqual(messages.packMAD(packet, messages.OUT), b"\x08" + mad[1:])
        self.assertEqual(messages.refusal("no"), b"\x03no")
        violation = KeyViolation(True, 0x11223344, 1, 2, 3, 0x010203, 5, 6, 7)
        octets = bytes.fromhex("09 04000000 01 44332211 0100 0200 03 03020100 05000000") + bytes(15) + b"\6"
        octets += bytes(15) + b"\7"
        self.assertEqual(messages.packViolated(4, violation), octets)
        self.assertEqual(messages.parseViolated(octets), (4, violation))
        self.assertEqual(messages.packViolated(1 << 32, violation)[1:5], b"\xff" * 4)

    def test_ways(self) -> None:
        """
        The LIDs, devices and groups that a port reaches are read as they were written.
        """
        devices = {5: Reached(3, True, "one", (0x8001,)), 7: Reached(4, False, "two", (1, 2))}
        octets = messages.packWays({3: 5, 4: 7}, devices, {0xC000: (5, 7)})
        ways = Ways(octets)
        self.assertEqual((ways.routes, ways.devices), ({3: 5, 4: 7}, devices))
        self.assertEqual((ways.groups, ways.accepted[5]), ({0xC000: (5, 7)}, {0x8001, 1}))
        self.assertEqual(messages.guidNamed(devices.items(), "two"), 7)
        self.assertEqual(messages.guidNamed(devices.items(), ""), 0)

    def test_bad(self) -> None:
        """
        Anything else is refused by name: another length, version or value, or any octets.
        """
        attach, port = messages.packAttach(5, 3, "ib0"), messages.packPort(CHANGE)
        for octets in (b"", attach[:10], attach + bytes(64), attach.replace(b"sub2", b"sub1")):
            self.assertRaises(WireError, messages.parseAttach, octets)
        for octets in (port[:-1], port + b"\0", b"\x04\x07" + port[2:], port[:3] + b"\xff\xff" + port[5:]):
            self.assertRaises(WireError, messages.parsePort, octets)
        self.assertRaises(WireError, messages.parseMAD, bytes(256))
        self.assertRaises(WireError, messages.parseAttached, b"\x02")
        violated = messages.packViolated(1, KeyViolation(False, 1, 2, 3, 4, 5, 6))
        for octets in (
            violated[:-1],
            violated[:18] + b"\1" + violated[19:],
            violated[:14] + b"\x10" + violated[15:],
        ):
            self.assertRaises(WireError, messages.parseViolated, octets)
        chance = random.Random(19)
        good = (
            attach,
            port,
            violated,
            messages.packWays({3: 5}, {5: Reached(3, True, "one", (1,))}, {0xC000: (5,)}),
        )
        for _ in range(2000):
            octets = bytearray(chance.choice(good))
            for _ in range(chance.randrange(1, 4)):
                octets[chance.randrange(len(octets))] = chance.randrange(256)
            for parse in PARSERS:
                try:
                    parse(bytes(octets[: chance.randrange(len(octets) + 1)]))
                except WireError:
                    pass

    def test_evolved(self) -> None:
        """
        All states are told.
        """
        for state in PortState:
            change = evolve(CHANGE, state=state)
            self.assertEqual(messages.parsePort(messages.packPort(change)), change)
