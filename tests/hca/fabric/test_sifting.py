"""
Requests that the kernel drops: L{twisted_ib.hca.fabric.roce.slots.filterOf}, in the kernel too, and
L{twisted_ib.hca.fabric.roce.receive.Sifting}.
"""

from __future__ import annotations

import os
import socket
import time
from struct import pack_into
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from tests.hca.bpf import accepts
from tests.support.calls import requireReplaceable
from tests.support.ownaddress import ownAddress
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import waitUntil
from twisted_ib.hca.connection.compacthello import streamService
from twisted_ib.hca.connection.rdmacm import PortSpace
from twisted_ib.hca.fabric.roce import receive, slots
from twisted_ib.hca.fabric.roce.packet import PacketFabric
from twisted_ib.hca.fabric.roce.roce import RoCELink
from twisted_ib.hca.fabric.roce.slots import SERVICE_AT, packed
from twisted_ib.hca.wire.cm.messages import REJ, REP, REQ, SIDR_REQ

LISTENED = PortSpace.TCP << 16 | 4001


def datagram(attribute: int = REQ.attribute, service: int = LISTENED) -> bytes:
    """
    @return: a message of connection management, of which only this is told.
    """
    made = bytearray(280)
    pack_into(">B3xI", made, 0, 0x64, 1)
    pack_into(">BBBB12xH", made, 20, 1, 7, 2, 3, attribute)
    pack_into(">Q", made, SERVICE_AT, service)
    return bytes(made)


class ProgramTests(SynchronousTestCase):
    """
    The program of classic BPF.
    """

    def accepts(self, body: bytes, *services: int) -> bool:
        """
        @return: whether it takes a datagram where these are listened for.
        """
        program = slots.filterOf(services)
        assert program is not None
        return accepts(packed(program), body)

    def test_requests(self) -> None:
        """
        Those for a service that somebody listens for pass, others do not.
        """
        for attribute in REQ.attribute, SIDR_REQ.attribute:
            for service in LISTENED, 5:
                self.assertTrue(self.accepts(datagram(attribute, service), 5, LISTENED))
            for service in LISTENED + 1, LISTENED - 1, 0:
                self.assertFalse(self.accepts(datagram(attribute, service), 5, LISTENED))
            self.assertFalse(self.accepts(datagram(attribute)))

    def test_streams(self) -> None:
        """
        An adapter asks for a stream in another port space.
        """
        self.assertTrue(self.accepts(datagram(), streamService(LISTENED)))
        self.assertFalse(self.accepts(datagram(service=LISTENED + 1), streamService(LISTENED)))

    def test_others(self) -> None:
        """
        All else passes: other messages, other classes, other queue pairs, other opcodes.
        """
        for attribute in REJ.attribute, REP.attribute:
            self.assertTrue(self.accepts(datagram(attribute)))
        for at, value in (0, 0x65), (0, 4), (5, 1), (7, 2), (21, 3):
            changed = bytearray(datagram())
            changed[at] = value
            self.assertTrue(self.accepts(bytes(changed)), at)

    def test_many(self) -> None:
        """
        There is a bound, below that of the kernel's (BPF_MAXINSNS), of 4096 instructions.
        """
        program = slots.filterOf(range(1, slots.SIFTED_SERVICES + 1))
        assert program is not None
        self.assertLess(len(program), 4096)
        self.assertIsNone(slots.filterOf(range(1, slots.SIFTED_SERVICES + 2)))


class TimeTests(SynchronousTestCase):
    """
    L{receive.Sifting}.
    """

    def test_longer(self) -> None:
        """
        Twice as long each time that they are still coming, at most so long; as at first after a while.
        """
        made, now, found = receive.Sifting(), 100.0, []
        for _ in range(5):
            self.assertTrue(made.begins(now))
            found.append(made.until - now)
            now, made.until = made.until + 1, 0.0
        self.assertEqual(found, [2.0, 4.0, 8.0, 16.0, 16.0])
        self.assertTrue(made.isSuspicious(now))
        now += receive.SUSPECT_SECONDS
        self.assertFalse(made.isSuspicious(now))
        made.begins(now)
        self.assertEqual(made.until - now, 2.0)

    def test_again(self) -> None:
        """
        Those that were in the buffer begin nothing; who reads some a little later says it again, no longer.
        """
        made = receive.Sifting()
        self.assertTrue(made.begins(1.0))
        self.assertFalse(made.begins(1.4))
        self.assertTrue(made.begins(1.5))
        self.assertEqual(made.until, 3.0)
        self.assertFalse(made.begins(1.9))


class FabricTests(SynchronousTestCase):
    """
    L{PacketFabric.sift} beside another process of the address.
    """

    def test_begun(self) -> None:
        """
        One that begins to listen meanwhile ends it, one that ends does not.
        """
        # Its method is called for another object.
        requireReplaceable(PacketFabric, "sift")
        memory = bytearray(slots.TABLE_BYTES)
        own, other = (slots.ServiceTable(memory, slot, lambda slot: True) for slot in (1, 2))
        other.add(7)
        said: list[bytes] = []
        changes = iter((lambda: other.remove(7), lambda: other.add(8), lambda: None))

        def sift(program: bytes) -> None:
            said.append(program)
            if program:
                next(changes)()

        fabric = mock.Mock(_services=[(LISTENED, None)])
        fabric.group.services, fabric.link.sift = own, sift
        both, alone, third = (packed(slots.filterOf({LISTENED, *more}) or []) for more in ([7], [], [8]))
        for _ in range(3):
            PacketFabric.sift(fabric)
        self.assertEqual(said, [both, alone, b"", third])
        self.assertEqual(fabric.want.call_count, 3)


class KernelTests(SynchronousTestCase):
    """
    The sockets of an address.
    """

    def setUp(self) -> None:
        self.directory = ownRunDirectory(self)
        self.address = ownAddress(6)
        self.stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(self.stranger.close)

    def link(self, isShared: bool) -> RoCELink:
        """
        @return: sockets, closed after the test.
        """
        link = RoCELink(self.address, isShared=isShared)
        self.addCleanup(link.close)
        return link

    def came(self, link: RoCELink, body: bytes) -> bool:
        """
        @return: whether a datagram is in the buffer; it is read.
        """
        self.stranger.sendto(body, (self.address, 4791))
        made = link._main if link.group is None else link.group.sockets[0]
        try:
            return made.recv(1000) == body
        except BlockingIOError:
            return False

    def test_dropped(self) -> None:
        """
        The kernel drops what the program says until it is told otherwise, which may be said twice.
        """
        for isShared in False, True:
            link = self.link(isShared)
            refused = datagram(service=5)
            self.assertTrue(self.came(link, refused))
            link.sift(packed(slots.filterOf([LISTENED]) or []))
            self.assertFalse(self.came(link, refused))
            self.assertTrue(self.came(link, datagram()))
            self.assertTrue(self.came(link, datagram(REJ.attribute, 5)))
            for _ in range(2):
                link.sift(b"")
                self.assertTrue(self.came(link, refused))
            link.close()

    def test_killed(self) -> None:
        """
        It ends with a process that has said it.
        """
        link = self.link(True)
        receiver, sender = os.pipe()
        child = os.fork()
        if not child:
            other = RoCELink(self.address, isShared=True)
            other.sift(packed(slots.filterOf([LISTENED]) or []))
            os.write(sender, b"x")
            time.sleep(600)
            os._exit(0)
        self.addCleanup(os.close, receiver)
        self.addCleanup(os.close, sender)
        self.assertEqual(os.read(receiver, 1), b"x")
        self.assertFalse(self.came(link, datagram(service=5)))
        os.kill(child, 9)
        os.waitpid(child, 0)
        waitUntil(lambda: self.came(link, datagram(service=5)))
