"""
Forgers among the processes of an address, on real sockets: they know all but what they cannot know.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any
from unittest import SkipTest

from tests.hca.fabric.roce.test_devices import PORT, End
from tests.hca.fabric.roce.test_hostile import ACKNOWLEDGE, WRITE_ONLY, packet
from tests.hca.fabric.roce.test_shared import HANDED, PROCESSES, DevicesTestCase
from tests.support.ownaddress import ownAddress
from twisted_ib.hca.base.operation import QPN_SHIFT
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.roce import connparams
from twisted_ib.hca.fabric.roce.slots import SLOTS
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire.headers import RETH

#: Source ports of somebody else, and how many a burst has: a socket's buffer holds it.
PORTS, BURST = range(50000, 51000), 50
#: How often a number of each slot is forged.
FORGED = 20


class ForgedTests(DevicesTestCase):
    """
    A connection of each process of an address with a peer, whose address a forger has.

    @cvar others: processes of the address, which may have to read what is for another.
    """

    others: tuple[Device, ...] = ()

    def setUp(self) -> None:
        """
        The peer.
        """
        super().setUp()
        self.far = self.device(ownAddress(8))

    def connected(self, near: Device, port: int) -> tuple[End, End]:
        """
        @param port: of the service.
        @return: the peer's end of a connection, and that of a process.
        """
        one: Any = End(self.far, 64)
        two = End(near, 64)
        one.port = port
        near.listen(PortSpace.TCP, self.address, port, two)
        self.far.connect(PortSpace.TCP, self.address, port, one)
        self.until(lambda: one.log and two.log, self.far, near, *self.others)
        self.assertEqual((one.log, two.log), (["replied"], ["established"]))
        return one, two

    def forge(self, made: socket.socket, to: Device, opcode: int, number: int, rest: bytes, psn: int) -> None:
        """
        Send a packet with a right ICRC.
        """
        source, port = made.getsockname()
        there = to.fabric.address
        made.sendto(packet(opcode, number, rest, psn, source, there, port=port), (there, 4791))

    def bound(self, stack: ExitStack, address: str, port: int) -> socket.socket:
        """
        @return: a forger's socket, whose packets have identification 0.
        """
        made = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.setsockopt(socket.IPPROTO_IP, 10, 3)  # IP_MTU_DISCOVER, IP_PMTUDISC_PROBE
        made.bind((address, port))
        return made

    def untilCounted(self, device: Device, name: str, count: int, them: list[Device]) -> None:
        """
        Serve devices until one has counted so many.
        """
        self.until(lambda: device.counters[name] >= count, *them)

    def check(self, one: End, two: End) -> None:
        """
        A message arrives, each way.
        """
        for here, there in (one, two), (two, one):
            here.memory[32:36] = b"well"
            there.receive(1, 36, 4)
            here.send(2, SendOpcode.SEND, 32, 4)
            self.until(lambda: one.completions and two.completions, one.device, two.device, *self.others)
            self.assertEqual(here.done() + there.done(), [(2, WCStatus.SUCCESS), (1, WCStatus.SUCCESS)])
            self.assertEqual(there.memory[36:40], b"well")

    def test_numbers(self) -> None:
        """
        Forged queue pair numbers reach the process of their slot, and no other: those of its connection, and
        those that it has not.  Those of slots that no process has reach nobody.
        """
        if getrlimit(RLIMIT_NOFILE)[0] < (PROCESSES + 2) * (SLOTS + 8):
            raise SkipTest("too few descriptors for so many processes of an address in one")
        near = [self.device(self.address) for _ in range(PROCESSES)]
        self.others = tuple(near)
        self.assertEqual([each.fabric.slot for each in near], list(range(1, PROCESSES + 1)))
        pairs = [self.connected(each, PORT + n) for n, each in enumerate(near)]
        names = "packets_wrong_source", *HANDED
        before = [[each.counters[name] for name in names] for each in near]
        expected = [[FORGED, 0, 0, FORGED] for _ in near]
        with ExitStack() as stack:
            stranger = self.bound(stack, ownAddress(9), 0)
            for n, ((one, two), device) in enumerate(zip(pairs, near, strict=True)):
                psn = one.queuePair.query()["sq_psn"]
                reth = RETH.pack(two.region.address, two.region.remoteKey, 4)
                used = two.queuePair.number
                free = (n + 1 << QPN_SHIFT) + (used - 1 & (1 << QPN_SHIFT) - 1)
                for number in (used, free) * FORGED:
                    self.forge(stranger, device, WRITE_ONLY, number, reth + b"evil", psn)
                self.untilCounted(device, names[3], before[n][3] + FORGED, near)
            for slot in range(PROCESSES + 1, SLOTS):
                self.forge(stranger, near[0], WRITE_ONLY, (slot << QPN_SHIFT) + 17, bytes(16) + b"evil", 0)
        for one, two in pairs:
            self.check(one, two)
            self.assertEqual(two.memory[:4], bytes(4))
        found = [_more(each, names, b) for each, b in zip(near, before, strict=True)]
        self.assertEqual(found, expected)

    def wrongPorts(self, isKnown: bool) -> tuple[int, int]:
        """
        @param isKnown: whether each has heard the other before.
        @return: how many packets with the right queue pair number, PSN, and address, from other source ports
            were dropped, at the end that accepted and at the one that connected.
        """
        near = self.device(self.address)
        self.others = (self.device(self.address),)
        one, two = self.connected(near, PORT)
        if isKnown:
            self.check(one, two)
        psn = one.queuePair.query()["sq_psn"]
        reth = RETH.pack(two.region.address, two.region.remoteKey, 4)
        for end, other, opcode, rest, at in (
            (two, one, WRITE_ONLY, reth + b"evil", psn),
            (one, two, ACKNOWLEDGE, b"\x62\0\0\0", psn - 1 & 0xFFFFFF),
        ):
            device, sent, port = end.device, 0, PORTS[0] - 1
            before = device.counters["packets_wrong_port"]
            while sent < len(PORTS):
                port += 1
                with ExitStack() as stack:
                    try:
                        forger = self.bound(stack, other.device.fabric.address, port)
                    except OSError:
                        continue  # Somebody has it: the peer's flow, or another program.
                    self.forge(forger, device, opcode, end.queuePair.number, rest, at)
                sent += 1
                if not sent % BURST:
                    self.untilCounted(device, "packets_wrong_port", before + sent, [self.far, near])
        self.assertEqual((two.memory[:4], one.failures, two.failures), (bytes(4), [], []))
        self.check(one, two)
        return near.counters["packets_wrong_port"], self.far.counters["packets_wrong_port"]

    def test_agreed(self) -> None:
        """
        Of 1,000 packets from other source ports none is taken, where the ends have said theirs: not even as
        the first.
        """
        self.assertEqual(self.wrongPorts(False), (len(PORTS), len(PORTS)))

    def test_learned(self) -> None:
        """
        Nor is one where they have not, as Linux, and the port is that of the first packet.
        """
        propose = connparams.propose

        def silent(fabric: object, remote: int, request: object) -> None:
            propose(fabric, remote, request)  # type: ignore[arg-type]
            request.localEECN = 0  # type: ignore[attr-defined]

        self.patch(connparams, "propose", silent)
        self.assertEqual(self.wrongPorts(True), (len(PORTS), len(PORTS)))


def _more(device: Device, names: tuple[str, ...], before: list[int]) -> list[int]:
    # What was counted since.
    return [device.counters[name] - n for name, n in zip(names, before, strict=True)]
