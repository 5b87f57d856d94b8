"""
Tests of datagrams from processes that lie about who they are or where to.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.hca.hcas import settle
from tests.hca.hostile import HostileTestCase, Target, datagram
from tests.hca.queues.keyed_pair import piece
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.fabric.shm.shm import SharedMemoryFabric
from twisted_ib.hca.wire.grh import guidGID
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY

GROUP = 0xFF12 << 112 | 0xABCD


class TargetTestCase(HostileTestCase):
    """
    A queue pair of datagrams, and a liar.
    """

    fabric = SharedMemoryFabric

    def setUp(self) -> None:
        """
        A queue pair that receives.
        """
        super().setUp()
        self.target = Target(self.device_, QPType.UD)
        self.region = self.target.register(256)
        for n in range(8):
            self.target.receive(n, piece(self.region))
        self.own = guidGID(self.device_.guid)

    def send(self, source: int, destination: int | None = None) -> list[int]:
        """
        Send a datagram with the GID of a GUID.

        @return: the receives that are done.
        """
        destination = self.own if destination is None else destination
        self.write(UD_SEND_ONLY, self.target.qp.number, datagram(guidGID(source), destination, b"x"))
        self.rest()
        return [completion.workRequestID for completion in self.target.received()]


class SourceTests(TargetTestCase):
    """
    A datagram says who sent it.
    """

    def test_true(self) -> None:
        """
        A peer that claims its own GUID is believed; its listener is asked once.
        """
        asked: list[int] = []
        fabric: Any = self.device_.fabric
        proves = fabric.proves
        self.patch(fabric, "proves", lambda path, guid: asked.append(guid) or proves(path, guid))
        self.assertEqual(self.send(self.liar.guid) + self.send(self.liar.guid), [0, 1])
        self.assertEqual(asked, [self.liar.guid])

    def test_asked(self) -> None:
        """
        An HCA whose listener is asked counts no refused handshake for that.
        """
        self.call()
        self.rest()
        self.assertEqual(self.liar.counters["handshakesRefused"], 0)

    def test_anothersGUID(self) -> None:
        """
        A peer that claims the GUID of another process's HCA cannot send datagrams in its name.
        """
        victim = self.device()
        credentials = victim.fabric.rendezvous.listenerOf(victim.guid)
        assert credentials is not None
        rendezvous: Any = self.device_.fabric.rendezvous
        another = evolve(credentials, pid=credentials.pid + 1)
        self.patch(rendezvous, "listenerOf", lambda guid: another)
        self.call(victim.guid)
        self.assertEqual(self.send(victim.guid), [])
        self.assertEqual(self.device_.counters["callers_unproven"], 1)
        settle(victim)

    def test_nobodysGUID(self) -> None:
        """
        A peer that claims an unknown GUID cannot send datagrams in its name, nor to a multicast group.
        """
        self.call(0x1234)
        self.device_.paths.attach(self.target.qp, GROUP)
        self.assertEqual(self.send(0x1234) + self.send(0x1234, GROUP), [])

    def test_notNow(self) -> None:
        """
        While it cannot be found out, datagrams are lost; later they are not.
        """
        answers: list[bool | None] = [None, True]
        self.patch(self.device_.fabric, "proves", lambda path, guid: answers.pop(0))
        self.assertEqual(self.send(self.liar.guid) + self.send(self.liar.guid), [0])

    def test_gone(self) -> None:
        """
        A peer that sends a datagram and closes is believed: its GUID was checked when it connected.
        """
        self.call()
        self.write(UD_SEND_ONLY, self.target.qp.number, datagram(guidGID(self.liar.guid), self.own, b"x"))
        self.liar.close()
        settle(self.device_)
        self.assertEqual([completion.workRequestID for completion in self.target.received()], [0])

    def test_end(self) -> None:
        """
        Nothing is kept of a path that is lost.
        """
        self.send(self.liar.guid)
        self.liar.close()
        settle(self.device_)
        self.assertEqual((self.device_.paths._proofs, self.device_.paths._callers), ({}, {}))


class ChangingBuffer:
    """
    Shared memory whose writer changes it after it was looked at.
    """

    def __init__(self, records: list[bytes]) -> None:
        """
        @param records: what each look sees.
        """
        self.records = records

    def __getitem__(self, key: slice) -> bytes:
        """
        One look.
        """
        found = self.records[0][key]
        if len(self.records) > 1:
            self.records.pop(0)
        return found


class TwiceTests(TargetTestCase):
    """
    Every field of a record is read once.
    """

    def look(self, first: int, second: int) -> tuple[list[int], bytes]:
        """
        Deliver a datagram that has one destination at first, then another.

        @return: the receives that are done, and what came.
        """
        source = guidGID(self.liar.guid)
        records = [datagram(source, gid, b"x") for gid in (first, second)]
        size = len(records[0])
        self.device_.datagramReceived(
            self.other, UD_SEND_ONLY, self.target.qp.number, ChangingBuffer(records), 0, size
        )
        done = [completion.workRequestID for completion in self.target.received()]
        return done, bytes(self.region.view[24:40])

    def test_group(self) -> None:
        """
        A datagram to a queue pair cannot pass for one to a multicast group.
        """
        self.assertEqual(self.look(self.own, GROUP), ([0], self.own.to_bytes(16, "big")))

    def test_noGroup(self) -> None:
        """
        A datagram to a multicast group cannot pass for one to a queue pair.
        """
        self.device_.paths.attach(self.target.qp, GROUP)
        self.assertEqual(self.look(GROUP, self.own), ([0], GROUP.to_bytes(16, "big")))
