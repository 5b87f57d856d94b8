"""
Work requests through the adapter of a host in memory: what becomes of them, and what bounds them.
"""

from __future__ import annotations

import errno
import gc
import struct
import weakref
from functools import partial
from typing import Any
from unittest import mock

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.fabric.hardware.world import GENERAL, AdapterQueuePair, Completion, Host, Identifier, Manager
from tests.hca.fabric.iwarp.ends import SPACE
from tests.hca.fabric.iwarp.test_keyed import KeyedEnd
from tests.hca.hcas import settle
from tests.hca.queues.keyed_pair import piece
from twisted_ib import limits
from twisted_ib.errors import MemoryRegionError, PathLostError, QueuePairError, ResourceLimitError
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.hardware import adapterpath, hardware
from twisted_ib.hca.fabric.hardware.adapterpath import LINGER_SECONDS, SENDS, SLOTS
from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
from twisted_ib.hca.fabric.hardware.rdmacm import Parameters
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.verbs.pyverbs.base.errors import errnoOf

WRITE, WRITE_IMM = SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM
SEND, SEND_IMM, READ = SendOpcode.SEND, SendOpcode.SEND_WITH_IMM, SendOpcode.RDMA_READ
SWAP, ADD = SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD
OK = WCStatus.SUCCESS
ADDRESS = "192.0.2.7"
LOCKED = "the limit of locked memory (ulimit -l, RLIMIT_MEMLOCK) may be too low"


def registered(side: Any, data: int | bytes) -> Any:
    """
    @return: a new region with the rights that adapters know.
    """
    return side.register(data, 15)


class OperationTests(SynchronousTestCase):
    """
    Two devices of one adapter.
    """

    def setUp(self) -> None:
        """
        A host.
        """
        self.patch(hardware, "isRNIC", lambda name: False)
        self.clock = Clock()
        self.host = Host()
        self.devices: list[Device] = []

    def device(self) -> Device:
        """
        @return: a new HCA, closed after the test.
        """
        given = {"address": ADDRESS, "adapter": "rxe0", "verbs": self.host}
        make = partial(HardwareFabric, manager=Manager(self.host), **given)
        device = Device("hw0", self.clock.seconds, make)
        self.addCleanup(device.close)
        self.devices.append(device)
        return device

    def ends(self, depths: tuple[int, int] | None = None) -> tuple[KeyedEnd, KeyedEnd]:
        """
        @param depths: those of the passive end's adapter, where they are others.
        @return: two connected ends.
        """
        one = KeyedEnd(self.device())
        self.host.depths = depths or self.host.depths
        two = KeyedEnd(self.device())
        port = two.device.listen(SPACE, ADDRESS, 0, two).port
        one.device.connect(SPACE, ADDRESS, port, one)
        one.call(one.path, b"", SPACE << 16 | port)
        settle(*self.devices)
        self.assertIn("replied", one.events)
        return one, two

    def sides(self) -> tuple[Any, Any]:
        """
        @return: their queue pairs.
        """
        one, two = self.ends()
        return one.side, two.side

    def test_described(self) -> None:
        """
        What shows a device names its adapter, and the transport of that.
        """
        for isRNIC, transport in ((False, "IB"), (True, "IWARP")):
            self.patch(hardware, "isRNIC", lambda name: isRNIC)  # noqa: B023
            shown = self.device().describe()
            self.assertEqual((shown["adapter"], shown["transport"]), ("rxe0", transport))

    def test_everyOperation(self) -> None:
        """
        SEND, WRITE, both with immediate data, READ and atomics are the adapter's own.
        """
        one, two = self.sides()
        mine, theirs = registered(one, b"m" * 200_000), registered(two, 200_000)
        names = {"remoteAddress": theirs.address, "remoteKey": theirs.remoteKey}
        for number in range(3):
            two.receive(number, piece(theirs, 1000 * number, 1000))
        theirs.view[5000:5008] = struct.pack("=Q", 37)
        atomic = {**names, "remoteAddress": theirs.address + 5000}
        one.send(1, SEND, piece(mine, 0, 7))
        one.send(2, SEND_IMM, piece(mine, 0, 9), immediate=0x01020304)
        one.send(3, WRITE_IMM, piece(mine, 0, 11), immediate=5, **names)
        one.send(4, WRITE, piece(mine, 0, 150_000), **{**names, "remoteAddress": theirs.address + 6000})
        settle(*self.devices)
        one.send(5, ADD, piece(mine, 160_000, 8), compare=5, **atomic)
        one.send(6, SWAP, piece(mine, 160_008, 8), compare=42, swap=99, **atomic)
        mine.view[:150_000] = bytes(150_000)
        one.send(7, READ, piece(mine, 0, 150_000), **{**names, "remoteAddress": theirs.address + 6000})
        settle(*self.devices)
        self.assertEqual(one.statuses(), [(number, OK) for number in range(1, 8)])
        received = two.received()
        self.assertEqual([each.immediate for each in received[1:]], [0x01020304, 5])
        self.assertEqual([each.byteLength for each in received], [7, 9, 11])
        self.assertEqual(struct.unpack("=2Q", mine.view[160_000:160_016]), (37, 42))
        self.assertEqual(struct.unpack("=Q", theirs.view[5000:5008]), (99,))
        self.assertEqual(bytes(theirs.view[6000:156_000]), b"m" * 150_000)
        self.assertEqual(bytes(mine.view[:150_000]), b"m" * 150_000)

    def test_madeBefore(self) -> None:
        """
        The adapter's queue pair that was made with a program's is the one that rdma_cm connects.
        """
        self.patch(hardware, "indexOfGID", lambda adapter, gid: 0)
        sides = self.sides()
        self.assertEqual([side.qp.number for side in sides], [side.qp.path.adapterNumber for side in sides])
        self.assertEqual(len(self.host.queuePairs), 2)
        self.assertEqual([side.device.fabric.reserved for side in sides], [{}, {}])
        sides[0].qp.close()
        self.assertEqual(list(self.host.queuePairs), [sides[1].qp.number])

    def test_signalled(self) -> None:
        """
        Of the requests of a batch one is signalled, and the adapter is asked once.
        """
        one, two = self.sides()
        mine = registered(one, b"x" * 8)
        for number in range(10):
            two.receive(number, piece(registered(two, 8)))
        queuePair = self.host.queuePairs[one.qp.path.adapterNumber]
        for number in range(10):
            one.send(number, SEND, piece(mine))
        settle(*self.devices)
        self.assertEqual((queuePair.posted, queuePair.requests, queuePair.signalled), (1, 10, 1))
        self.assertEqual(one.statuses(), [(number, OK) for number in range(10)])

    def test_longLasting(self) -> None:
        """
        The requests of a queue pair that has posted 2^32 records are not taken for receives.
        """
        one, two = self.sides()
        one.qp.path._posted = (1 << 32) - 2
        mine, theirs = registered(one, b"x" * 8), registered(two, 8)
        for number in range(4):
            two.receive(number, piece(theirs))
            one.send(number, SEND, piece(mine))
            settle(*self.devices)
        self.assertEqual(one.statuses(), [(number, OK) for number in range(4)])

    def test_registeredOnce(self) -> None:
        """
        Memory of ours is registered with the adapter once, under its own key and address, and not longer than
        it is ours.
        """
        one, _ = self.sides()
        before = set(self.host.regions)
        region = registered(one, b"x" * 8)
        (key,) = set(self.host.regions) - before
        self.assertEqual((region.key, region.address), (key, self.host.regions[key].addr))
        one.send(1, SEND, piece(region))
        settle(*self.devices)
        self.assertEqual(set(self.host.regions) - before, {key})
        one.device.deregisterMemory(region)
        self.assertEqual(set(self.host.regions), before)

    def test_localRegions(self) -> None:
        """
        An adapter's key for peers is 0 where they have no right: such regions are still told apart, sent from
        and received into, and each ends by itself.
        """
        one, two = self.sides()
        before = set(self.host.regions)
        mine = [one.register(text, 1) for text in (b"one", b"two")]
        theirs = [two.register(3, 1) for _ in mine]
        self.assertEqual({each.key for each in (*mine, *theirs)}, set(self.host.regions) - before)
        for number, (source, target) in enumerate(zip(mine, theirs, strict=True)):
            two.receive(number, piece(target))
            one.send(number, SEND, piece(source))
        settle(*self.devices)
        self.assertEqual([bytes(each.view) for each in theirs], [b"one", b"two"])
        for side, regions in ((one, mine), (two, theirs)):
            for region in regions:
                side.device.deregisterMemory(region)
        self.assertEqual(set(self.host.regions), before)

    def test_keyTwice(self) -> None:
        """
        An adapter that gives the key of one region to another is refused, and the other is deregistered.
        """
        one, _ = self.sides()
        ended = mock.Mock()
        self.patch(one.device.memory, "registrar", lambda *given: (7, 4096, ended))
        region = registered(one, 8)
        error = self.assertRaises(MemoryRegionError, registered, one, 8)
        self.assertEqual(str(error), "the adapter has given the key 0x00000007 twice")
        self.assertEqual((ended.close.call_count, one.device.memory.regions[7]), (1, region))
        one.device.deregisterMemory(region)

    def test_zeroCopy(self) -> None:
        """
        The adapter reads registered memory where it is, in a WRITE of any length; what is short is copied.
        """
        one, two = self.sides()
        mine, theirs = registered(one, b"m" * 300_000), registered(two, 300_000)
        names = {"remoteAddress": theirs.address, "remoteKey": theirs.remoteKey}
        queuePair = self.host.queuePairs[one.qp.path.adapterNumber]
        copied: list[int] = []
        place = one.qp.path._place
        one.qp.path._place = lambda *given: copied.append(given[2]) or place(*given)
        for number, (opcode, length) in enumerate(((WRITE, 299_000), (SEND, 60_000), (SEND, 8))):
            two.receive(number, piece(theirs, 0, 60_000))
            one.send(number, opcode, piece(mine, 1000, length), **names if opcode == WRITE else {})
            settle(*self.devices)
            self.assertEqual(set(queuePair.keys) == {mine.key}, length > 8)
        self.assertEqual(copied, [8])
        self.assertEqual(one.statuses(), [(number, OK) for number in range(3)])
        self.assertEqual(bytes(theirs.view[:299_000]), b"m" * 299_000)

    def test_readsNothing(self) -> None:
        """
        A READ of no octets completes, also on an RNIC, whose READs have a piece of memory each.
        """
        for isRNIC in (False, True):
            self.host.isRNIC = isRNIC
            self.patch(hardware, "isRNIC", lambda name: isRNIC)  # noqa: B023
            one, two = self.sides()
            theirs = registered(two, 8)
            one.send(
                1, READ, piece(registered(one, 8), 0, 0), remoteAddress=theirs.address, remoteKey=theirs.key
            )
            settle(*self.devices)
            self.assertEqual(one.statuses(), [(1, OK)])

    def test_withoutAtomics(self) -> None:
        """
        An adapter without atomics is asked for no right to them, which it would refuse: not for queue pairs,
        nor for memory.
        """
        self.host.hasAtomics = False
        one, two = self.sides()
        mine, theirs = registered(one, b"m" * 8), registered(two, 8)
        one.send(1, WRITE, piece(mine), remoteAddress=theirs.address, remoteKey=theirs.remoteKey)
        settle(*self.devices)
        self.assertEqual((one.statuses(), bytes(theirs.view)), ([(1, OK)], b"m" * 8))
        # Regions of that right alone have no key for peers, which would be the same one.
        keys = [one.register(8, int(Access.LOCAL_WRITE | Access.REMOTE_ATOMIC)).key for _ in range(2)]
        self.assertNotEqual(*keys)

    def test_notRegistered(self) -> None:
        """
        What the adapter does not take is no region: memory of no bytes, an address of one's own, rights that
        it does not know, and none where it is full.
        """
        one, _ = self.sides()
        memory, pd = one.memory, one.pd
        for buffer, access, address, code in (
            (b"", 0, None, errno.EINVAL),
            (bytearray(8), int(Access.LOCAL_WRITE), 4096, errno.EOPNOTSUPP),
            (bytearray(8), int(Access.LOCAL_WRITE | Access.ON_DEMAND), None, errno.EOPNOTSUPP),
            (bytearray(8), int(Access.LOCAL_WRITE | Access.MW_BIND), None, errno.EOPNOTSUPP),
        ):
            refused = self.assertRaises(MemoryRegionError, memory.register, buffer, access, pd, address)
            self.assertEqual(errnoOf(refused), code)
        self.host.isFull = True
        error = self.assertRaises(MemoryRegionError, memory.register, bytearray(8), 1, pd)
        self.assertEqual(
            str(error), f"adapter rxe0 does not take the memory: [Errno 12] ibv_reg_mr: {LOCKED}"
        )
        region = next(iter(memory.regions.values()), None)
        self.assertIsNone(region)

    def test_relaxed(self) -> None:
        """
        An adapter may ignore that the order of its writes is relaxed: such memory is registered.
        """
        one, _ = self.sides()
        region = one.memory.register(bytearray(8), int(Access.LOCAL_WRITE | Access.RELAXED_ORDERING), one.pd)
        self.assertEqual(self.host.regions[region.key].access, Access.LOCAL_WRITE)

    def test_readOnly(self) -> None:
        """
        Read-only memory is registered, too, and sent from where it is.
        """
        one, two = self.sides()
        data = bytes(range(256)) * 20
        mine = one.memory.register(data, 0, one.pd)
        theirs = registered(two, 6000)
        names = {"remoteAddress": theirs.address, "remoteKey": theirs.remoteKey}
        one.send(1, WRITE, piece(mine), **names)
        settle(*self.devices)
        self.assertEqual(self.host.queuePairs[one.qp.path.adapterNumber].keys, [mine.key])
        self.assertEqual(bytes(theirs.view[: len(data)]), data)

    def test_domains(self) -> None:
        """
        A peer reaches the memory of its queue pair's protection domain alone, with the rights of the region.
        """
        for isOwn, access in ((False, 15), (True, int(Access.LOCAL_WRITE | Access.REMOTE_READ))):
            one, two = self.sides()
            pd = two.pd if isOwn else two.memory.allocateDomain()
            theirs = two.memory.register(bytearray(8), access, pd)
            mine = registered(one, b"x" * 8)
            names = {"remoteAddress": theirs.address, "remoteKey": theirs.key}
            one.send(1, WRITE, piece(mine), **names)
            settle(*self.devices)
            self.assertEqual(one.statuses(), [(1, WCStatus.REM_ACCESS_ERR)])
            self.assertEqual(one.qp.state, QPState.ERR)

    def test_brokenRule(self) -> None:
        """
        The side whose peer has asked for what it may not hears of it, too: its queue pair is in error, and
        its receives are flushed.
        """
        one, two = self.sides()
        mine, theirs = registered(one, b"x" * 8), registered(two, 8)
        two.receive(1, piece(theirs))
        one.send(1, WRITE, piece(mine), remoteAddress=theirs.address, remoteKey=theirs.key + 1)
        settle(*self.devices)
        self.assertEqual([side.qp.state for side in (one, two)], [QPState.ERR] * 2)
        (reason,) = two.consumer.failures
        self.assertIn(f"the adapter has ended queue pair {two.qp.number}", str(reason))

    def test_domainEnds(self) -> None:
        """
        A protection domain of the adapter ends with ours, and regions that it had keep none.
        """
        one, _ = self.sides()
        fabric, memory = one.device.fabric, one.memory
        pd = memory.allocateDomain()
        region = memory.register(bytearray(8), 1, pd)
        domain = weakref.ref(fabric.domainOf(pd))
        memory.deregister(region)
        memory.deallocateDomain(pd)
        del pd, region
        gc.collect()
        self.assertIsNone(domain())

    def test_full(self) -> None:
        """
        As many requests are outstanding as the adapter's queue pair has room for; the others wait.
        """
        one, two = self.sides()
        mine = registered(one, b"x" * 8)
        names = {"remoteAddress": (theirs := registered(two, 8)).address, "remoteKey": theirs.remoteKey}
        self.host.isHeld = True
        for number in range(SENDS + 20):
            one.send(number, WRITE, piece(mine), **names)
        settle(*self.devices)
        queuePair = self.host.queuePairs[one.qp.path.adapterNumber]
        self.assertEqual(len(queuePair.waiting), SENDS)
        self.host.resume()
        settle(*self.devices)
        self.assertEqual(one.statuses(), [(number, OK) for number in range(SENDS + 20)])

    def test_withoutReceive(self) -> None:
        """
        Messages wait for receives of the program, in the slots and then at the peer's adapter; none is lost.
        """
        one, two = self.sides()
        mine, theirs = registered(one, b"x" * 8), registered(two, 8)
        for number in range(2 * SLOTS):
            one.send(number, SEND, piece(mine))
        settle(*self.devices)
        self.assertEqual(len(self.host.queuePairs[one.qp.path.adapterNumber].waiting), SLOTS)
        for number in range(2 * SLOTS):
            two.receive(number, piece(theirs))
        for _ in range(20):
            self.clock.advance(0.1)
            for device in self.devices:
                device.tick(self.clock.seconds())
            settle(*self.devices)
        self.assertEqual([each.workRequestID for each in two.received()], list(range(2 * SLOTS)))
        self.assertEqual(one.statuses(), [(number, OK) for number in range(2 * SLOTS)])

    def test_tooLong(self) -> None:
        """
        A SEND that no slot of a peer has room for ends the queue pair, by name.
        """
        one, _ = self.sides()
        mine = registered(one, 2 * adapterpath.SLOT_BYTES)
        one.send(1, SEND, piece(mine))
        settle(*self.devices)
        (reason,) = one.consumer.failures
        self.assertIsInstance(reason, QueuePairError)
        self.assertIn("a message of an adapter has at most", str(reason))

    def test_manyConnections(self) -> None:
        """
        No more connections are made than the adapter's completion queue has room for.
        """
        self.host.depth = 2 * (SENDS + SLOTS)
        one, _ = self.ends()
        self.ends()
        one.call(one.path, b"", SPACE << 16 | 1)
        error = self.assertRaises(ResourceLimitError, one.call, one.path, b"", SPACE << 16 | 1)
        self.assertEqual(str(error), "adapter rxe0 has room for 2 connections here")

    def test_disconnectedByKernel(self) -> None:
        """
        A program's queue pair is left alone by the peer's end, as Linux does (cma.c): it may go on to take
        what it has.
        """
        one, two = self.ends()
        connection: Any = one.connection
        connection._connector.manager.disconnect(connection.id)
        settle(*self.devices)
        self.assertEqual([each.side.qp.state for each in (one, two)], [QPState.RTS] * 2)

    def test_disconnected(self) -> None:
        """
        What was posted arrives before the word of the end; then nothing of the adapter's is left.
        """
        one, two = self.ends()
        mine, theirs = registered(one.side, b"x" * 8), registered(two.side, 8)
        two.side.receive(1, piece(theirs))
        one.side.send(1, SEND, piece(mine))
        self.assertTrue(one.device.disconnect(one.connection))
        settle(*self.devices)
        self.assertEqual([each.workRequestID for each in two.side.received()], [1])
        self.assertEqual(one.side.statuses(), [(1, OK)])
        for end in (one, two):
            end.side.qp.close()
        settle(*self.devices)
        self.assertEqual((self.host.queuePairs, self.connections()), ({}, []))

    def test_lastWords(self) -> None:
        """
        A message whose completion comes together with the end is delivered before it, and receives that are
        left are not flushed: the queue pair is the program's.
        """
        one, two = self.ends()
        mine, theirs = registered(one.side, b"x" * 8), registered(two.side, 8)
        for number in range(3):
            two.side.receive(number, piece(theirs))
        one.side.send(1, SEND, piece(mine))
        one.device.fabric.ringBells()
        # Both are there before the peer looks; the completion after it has looked for those.
        fabric = two.device.fabric
        hidden, fabric._take = fabric._take, lambda: setattr(fabric, "_take", hidden) or 0
        one.device.disconnect(one.connection)
        settle(*self.devices)
        self.assertEqual([each.workRequestID for each in two.side.received()], [0])
        self.assertEqual(two.side.qp.state, QPState.RTS)

    def test_peerWithoutReceive(self) -> None:
        """
        The end of a connection waits for what was posted, but not for ever for a peer that posts no receive.
        """
        one, _ = self.ends()
        mine = registered(one.side, b"x" * 8)
        for number in range(SLOTS + 1):
            one.side.send(number, SEND, piece(mine))
        settle(*self.devices)
        self.assertTrue(one.device.disconnect(one.connection))
        settle(*self.devices)
        self.assertEqual(len(self.connections()), 2)
        # Its reactor does not leave it.
        self.assertTrue(one.device.fabric.unsent())
        self.clock.advance(LINGER_SECONDS)
        one.device.tick(self.clock.seconds())
        settle(*self.devices)
        self.assertEqual(self.connections(), [])
        self.assertFalse(one.device.fabric.unsent())
        # The queue pair is the program's, and its requests are not done.
        self.assertEqual(one.side.statuses(), [])
        one.side.qp.close()
        one.device.tick(self.clock.seconds() + LINGER_SECONDS)
        self.assertEqual(len(self.host.queuePairs), 1)

    def test_queuePairClosed(self) -> None:
        """
        The adapter's queue pair does not outlive the program's, whatever becomes of the connection; none is
        bound to its number again.
        """
        one, _ = self.ends()
        one.side.qp.close()
        settle(*self.devices)
        self.assertEqual((len(self.host.queuePairs), len(self.connections())), (1, 2))
        number = one.connection.localID
        self.assertFalse(one.device.fabric.streams[number].alive)
        self.assertTrue(one.device.disconnect(one.connection))
        settle(*self.devices)
        self.assertEqual((self.connections(), one.device.fabric.streams), ([], {}))

    def agreed(self) -> list[Parameters]:
        """
        @return: the parameters of both sides of a new connection.
        """
        self.ends()
        return [each.own for each in self.connections()]

    def test_depths(self) -> None:
        """
        Depths are the program's, but not more than the adapter serves and has outstanding.
        """
        for most, found in (((16, 16), [(4, 4), (4, 4)]), ((3, 2), [(3, 2), (3, 2)])):
            self.host.depths = most
            given = self.agreed()[-2:]
            self.assertEqual([(each.responderResources, each.initiatorDepth) for each in given], found)

    def test_depthsAskedFor(self) -> None:
        """
        A peer that asks for more than the adapter serves or has outstanding is accepted with what there is.
        """
        one, two = self.ends((2, 2))
        self.assertEqual([each.side.qp.state for each in (one, two)], [QPState.RTS] * 2)
        steps = self.host.queuePairs[two.side.qp.path.adapterNumber].steps
        self.assertEqual((steps[1][2]["max_dest_rd_atomic"], steps[2][2]["max_rd_atomic"]), (2, 2))

    def test_retries(self) -> None:
        """
        Retry counts are the program's.
        """
        one, two = self.agreed()
        self.assertEqual((one.retryCount, one.rnrRetryCount, two.rnrRetryCount), (5, 6, 3))

    def test_vanished(self) -> None:
        """
        Where no reactor closes the device of an adapter that has disappeared, its connections fail, once, and
        none is asked for any more.
        """
        one, two = self.ends()
        self.host.vanish()
        settle(*self.devices)
        for end in (one, two):
            (reason,) = end.side.consumer.failures
            self.assertEqual((str(reason), end.device.isGone), ("adapter rxe0 is gone", True))
        self.assertEqual((self.connections(), self.host.queuePairs), ([], {}))
        self.assertRaises(PathLostError, one.call, one.path, b"", SPACE << 16 | 1)

    def test_failsFirst(self) -> None:
        """
        An adapter that fails its queue pairs before the kernel's word that it has disappeared is gone all the
        same: where a request fails, or a receive, or none is taken.
        """
        for id in (1, 1 << 63, 0):
            one, _ = self.ends()
            self.host.isGone = True
            if id:
                (number,) = one.device.fabric._byAdapterNumber
                one.device.fabric.queue.push(Completion(id, number, GENERAL))
            else:
                self.patch(AdapterQueuePair, "post_send", mock.Mock(side_effect=OSError(errno.EIO, "gone")))
                one.side.send(1, SEND, piece(registered(one.side, b"x"), 0, 1))
            settle(*self.devices)
            (reason,) = one.side.consumer.failures
            self.assertEqual((str(reason), one.device.isGone), ("adapter rxe0 is gone", True))
            self.host.isGone = False

    def test_blind(self) -> None:
        """
        A failure while libibverbs cannot list adapters is that of its connection.
        """
        one, _ = self.ends()
        self.host.isBlind = True
        (number,) = one.device.fabric._byAdapterNumber
        one.device.fabric.queue.push(Completion(1, number, GENERAL))
        settle(*self.devices)
        (reason,) = one.side.consumer.failures
        self.assertFalse(one.device.isGone)
        self.assertNotIn("gone", str(reason))

    def connections(self) -> list[Identifier]:
        """
        @return: librdmacm's identifiers of connections.
        """
        return [each for each in self.host.identifiers.values() if each.there]

    def test_messageBytes(self) -> None:
        """
        A slot has room for the longest message of a stream, and its header.
        """
        self.assertGreaterEqual(adapterpath.SLOT_BYTES, limits.INLINE_RECORD)
