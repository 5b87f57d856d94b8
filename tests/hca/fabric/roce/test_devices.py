"""
Two HCAs on a wire in memory: connecting by the communication manager, and moving data.
"""

from __future__ import annotations

import contextlib
from typing import Any
from zlib import crc32

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hca.hcas import settle
from tests.hca.memorylink import Wire, deviceOn
from twisted_ib import limits
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import PortSpace, RDMACMHeader, gidOf
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
from twisted_ib.hca.fabric.roce import connparams
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.queues.completion import CompletionQueue, WCStatus
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest
from twisted_ib.hca.queues.requests import SendFlags, SendOpcode, SendRequest
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.hca.wire.cm.messages import DREP, DREQ, REJ
from twisted_ib.hca.wire.icrcflow import ICRCState
from twisted_ib.hca.wire.icrcflow import crc32 as invariant

HERE, THERE = "192.0.2.1", "192.0.2.2"
PORT = 7174
ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
INIT = {"pkey_index": 0, "port_num": 1, "qp_access_flags": int(ALL)}


class End:
    """
    One end of a connection: a queue pair with work queues, a region, and a user of the communication
    manager.
    """

    port = PORT
    reads = 4

    def __init__(self, device: Device, size: int = 1 << 17) -> None:
        """
        Nothing is connected.
        """
        self.device = device
        self.queuePair: QueuePair = device.createQueuePair(self, QPType.RC)
        self.pd = device.memory.allocateDomain()
        self.completions = CompletionQueue(256)
        self.work = WorkQueues(self.queuePair, self.pd, self.completions, self.completions, device.timers)
        self.memory = bytearray(size)
        self.region = device.memory.register(self.memory, ALL, self.pd)
        self.connection: Any = None
        self.failures: list[Exception] = []
        self.log: list[str] = []

    # -- as a consumer

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in ERR.
        """
        self.failures.append(reason)

    def resume(self) -> None:
        """
        There is room.
        """

    # -- as a user of the communication manager

    def pathReady(self, path: Any) -> None:
        """
        Send a REQ.
        """
        address = path.peer.address
        request = ConnectRequest(
            serviceID=PortSpace.TCP << 16 | self.port,
            localQPN=self.queuePair.number,
            responderResources=self.reads,
            initiatorDepth=self.reads,
            responseTimeout=20,
            retryCount=7,
            rnrRetryCount=7,
            requestRetries=15,
            privateData=RDMACMHeader(self.device.fabric.address, 49152, address).pack() + b"hello",
        )
        self.connection = self.device.sendRequest(path, request, self, self.device.clock())

    def replied(self, connection: Any, reply: ConnectReply) -> None:
        """
        Come to RTS.
        """
        self.log.append("replied")
        self.up(connection.destination, reply)
        connection.ready(self.device.clock())

    def rejected(self, connection: Any, rejection: Any) -> None:
        """
        They do not want.
        """
        self.log.append(f"rejected {rejection.reason}")

    def established(self, connection: Any) -> None:
        """
        The RTU came.
        """
        self.log.append("established")

    def peerDisconnected(self, connection: Any) -> None:
        """
        It is over.
        """
        self.log.append("disconnected")

    def connectionRequested(self, connection: Any, request: ConnectRequest) -> None:
        self.connection = connection
        connection.user = self
        reply = ConnectReply(
            localQPN=self.queuePair.number,
            responderResources=self.reads,
            initiatorDepth=self.reads,
            rnrRetryCount=7,
        )
        connection.destination.prepareReply(reply, request)
        self.up(connection.destination, request)
        connection.accept(reply, self.device.clock())

    def up(self, path: Any, message: ConnectRequest | ConnectReply) -> None:
        """
        Bring the queue pair to RTS.
        """
        queuePair = self.queuePair
        own = queuePair.proposal
        queuePair.modify(QPState.INIT, **INIT)
        queuePair.modify(
            QPState.RTR,
            ah_attr=path,
            path_mtu=own.mtu,
            dest_qp_num=message.localQPN,
            rq_psn=own.expectedPSN,
            max_dest_rd_atomic=self.reads,
            min_rnr_timer=1,
        )
        queuePair.modify(
            QPState.RTS,
            sq_psn=message.startingPSN,
            timeout=17,
            retry_cnt=7,
            rnr_retry=7,
            max_rd_atomic=self.reads,
        )

    # -- as a program

    def receive(self, id: int, offset: int, length: int) -> None:
        """
        Post a receive.
        """
        piece = SGE(self.region.address + offset, length, self.region.localKey)
        self.work.postReceive(ReceiveRequest(id, [piece]))

    def send(self, id: int, opcode: SendOpcode, offset: int, length: int, **fields: Any) -> None:
        """
        Post a request.
        """
        piece = SGE(self.region.address + offset, length, self.region.localKey)
        self.work.postSend(SendRequest(id, opcode, [piece], SendFlags.SIGNALED, **fields))

    def done(self) -> list[tuple[int, WCStatus]]:
        """
        @return: what has completed.
        """
        return [(each.workRequestID, each.status) for each in self.completions.poll(256)]


class PacketTestCase(SynchronousTestCase):
    """
    Base of tests with HCAs on a wire.
    """

    mtu = 1024

    def setUp(self) -> None:
        """
        An empty wire.
        """
        super().setUp()
        self.clock = Clock()
        self.wire = Wire()

    def device(self, address: str) -> Device:
        """
        @return: an HCA at an address.
        """
        device = deviceOn(self.wire, address, self.clock.seconds, self.mtu)
        self.addCleanup(device.close)
        return device

    def sayNoPorts(self) -> None:
        """
        From now on ends do not say which UDP source ports they will have, as those of Linux.
        """
        propose = connparams.propose

        def silent(fabric: Any, remote: int, request: ConnectRequest) -> None:
            propose(fabric, remote, request)
            request.localEECN = 0

        self.patch(connparams, "propose", silent)

    def connected(self, here: str = HERE, there: str = THERE, size: int = 1 << 17) -> tuple[End, End]:
        """
        @param size: bytes of memory of each end.
        @return: the active and the passive end of a connection.
        """
        active, passive = (End(self.device(address), size) for address in (here, there))
        passive.device.listen(PortSpace.TCP, there, PORT, passive)
        active.device.connect(PortSpace.TCP, there, PORT, active)
        settle(active.device, passive.device)
        self.assertEqual(active.log, ["replied"])
        self.assertEqual(passive.log, ["established"])
        return active, passive

    def settle(self, *ends: End, seconds: float = 0.0) -> None:
        """
        Let everything happen, and so much time pass.
        """
        devices = {end.device for end in ends}
        settle(*devices)
        for _ in range(round(seconds * 100)):
            self.clock.advance(0.01)
            for device in devices:
                device.tick(self.clock.seconds())
            settle(*devices)


class DescriptionTests(PacketTestCase):
    """
    The output of C{ib-devinfo}.
    """

    def test_icrc(self) -> None:
        """
        It says which library computes the CRC of packets, of HCAs that send packets.
        """
        library = {"isal.isal_zlib": "isal", "zlib": "zlib"}[invariant.__module__]
        self.assertEqual(self.device(HERE).describe()["icrc"], library)
        local = Device("lo0", self.clock.seconds, LoopbackFabric)
        self.addCleanup(local.close)
        self.assertNotIn("icrc", local.describe())


class BegunTests(PacketTestCase):
    """
    A device that has just been opened.
    """

    def test_quiet(self) -> None:
        """
        For a while no RTU draws a REJ that may mean a process which had this address before.
        """
        self.clock.advance(5.0)
        self.assertEqual(self.device(HERE).cm.quietUntil, 5.0 + limits.CM_ENDED_SECONDS)
        local = Device("lo0", self.clock.seconds, LoopbackFabric)
        self.addCleanup(local.close)
        self.assertEqual(local.cm.quietUntil, 0.0)


class ClosedTests(PacketTestCase):
    """
    A device that is closed while connections are open (issue 16, point 5).
    """

    def sent(self) -> list[int]:
        """
        @return: The attributes of the CM messages on the wire, in order.
        """
        assert self.wire.log is not None
        # BTH and DETH have 20 octets; the attribute is at offset 16 of the MAD.
        bodies = [datagram[-1] for datagram in self.wire.log if datagram[-1][:1] == b"\x64"]
        return [int.from_bytes(body[36:38], "big") for body in bodies]

    def test_established(self) -> None:
        """
        Each connection is owed one DREQ, by either side, and the peer is told at once.
        """
        for place in (0, 1):
            ends = self.connected()
            self.wire.log = []
            ends[place].device.close()
            settle(ends[1 - place].device)
            self.assertEqual(self.sent(), [DREQ.attribute, DREP.attribute])
            self.assertEqual(ends[1 - place].log[1:], ["disconnected"])
            ends[1 - place].device.close()

    def test_begun(self) -> None:
        """
        A request that is not answered yet is withdrawn by a REJ.
        """
        end = End(self.device(HERE))
        end.device.connect(PortSpace.TCP, THERE, PORT, end)
        self.wire.log = []
        end.device.close()
        self.assertEqual(self.sent(), [REJ.attribute])


class UnreachableTests(PacketTestCase):
    """
    Requests that nobody answers.
    """

    def test_raising(self) -> None:
        """
        A user that raises keeps the news from no other: theirs comes with the next batch.
        """
        device = self.device(HERE)
        told: list[int] = []

        def unreachable(connection: Any) -> None:
            told.append(connection.user.queuePair.number)
            raise ZeroDivisionError

        ends = [End(device) for _ in range(3)]
        for end in ends:
            end.unreachable = unreachable  # type: ignore[attr-defined]
            device.connect(PortSpace.TCP, THERE, PORT, end)
        with contextlib.suppress(ZeroDivisionError):
            while not told:
                device.tick(device.deadline() or 0.0)
        for _ in ends[1:]:
            self.assertTrue(device.busy())
            self.assertRaises(ZeroDivisionError, device.progress)
        self.assertEqual(sorted(told), sorted(end.queuePair.number for end in ends))
        self.assertFalse(device.busy())

    def test_raisingTimer(self) -> None:
        """
        Nor does a timer of something else that raises.
        """
        device = self.device(HERE)
        end = End(device)
        end.unreachable = lambda connection: end.log.append("unreachable")  # type: ignore[attr-defined]
        device.connect(PortSpace.TCP, THERE, PORT, end)

        def expired() -> None:
            raise ZeroDivisionError

        while not end.log:
            now = device.deadline()
            assert now is not None
            device.timers.start(now - self.clock.seconds(), expired)
            self.assertRaises(ZeroDivisionError, device.tick, now)
            self.assertFalse(device.cm.events)


class MovingTests(PacketTestCase):
    """
    SEND, WRITE, READ and atomics.
    """

    def test_send(self) -> None:
        """
        Messages of nothing, of a byte, of a packet, and of many.
        """
        one, two = self.connected()
        sizes = [0, 1, 1023, 1024, 1025, 65537, 100001]
        for id, size in enumerate(sizes):
            two.receive(id, 0, 1 << 17)
            one.memory[:size] = bytes([id + 1]) * size
            one.send(id, SendOpcode.SEND, 0, size)
            self.settle(one, two)
            self.assertEqual(two.done(), [(id, WCStatus.SUCCESS)])
            self.assertEqual(one.done(), [(id, WCStatus.SUCCESS)])
            self.assertEqual(two.memory[: size + 1], one.memory[:size] + two.memory[size : size + 1])
        self.assertEqual(one.device.timers.deadline(), None)

    def test_writeAndRead(self) -> None:
        """
        WRITE and READ at all lengths; nothing is pending afterwards.
        """
        one, two = self.connected()
        for id, size in enumerate([0, 1, 1024, 1025, 65536, 100001]):
            one.memory[:size] = bytes([id + 1]) * size
            there = {"remoteAddress": two.region.address + 7, "remoteKey": two.region.remoteKey}
            one.send(id, SendOpcode.RDMA_WRITE, 0, size, **there)
            one.send(id + 100, SendOpcode.RDMA_READ, 1 << 16 if size <= 65536 else 0, size, **there)
            self.settle(one, two)
            self.assertEqual(one.done(), [(id, WCStatus.SUCCESS), (id + 100, WCStatus.SUCCESS)])
            self.assertEqual(two.memory[7 : 7 + size], bytes([id + 1]) * size)
        self.assertEqual((one.device.timers.deadline(), two.device.timers.deadline()), (None, None))
        self.assertFalse(one.device.busy() or two.device.busy())

    def test_denied(self) -> None:
        """
        A wrong key is refused, and both ends are in ERR.
        """
        one, two = self.connected()
        one.send(1, SendOpcode.RDMA_WRITE, 0, 5, remoteAddress=two.region.address, remoteKey=1)
        self.settle(one, two)
        self.assertEqual(one.done(), [(1, WCStatus.REM_ACCESS_ERR)])
        self.assertEqual((len(one.failures), len(two.failures)), (1, 1))
        self.assertEqual(one.device.fabric.paths(), [])

    def test_bursts(self) -> None:
        """
        Packets leave many at a time, where the link can; of those the checksums are made for identifications
        that count up from 0.
        """
        one, two = self.connected()
        two.receive(1, 0, 1 << 17)
        calls: list[tuple[int, list[bytes]]] = []
        link = one.device.fabric.link
        link.burst = 7
        carry = link.send

        def send(destination: str, port: int, pieces: list[Any], size: int, *marks: int) -> bool:
            """
            Keep what was sent in one call.
            """
            data = b"".join(pieces)
            calls.append((port, [data[at : at + size] for at in range(0, len(data), size)]))
            return bool(carry(destination, port, pieces, size, *marks))

        link.send = send
        one.send(1, SendOpcode.SEND, 0, 10 * 1024 + 5)
        self.settle(one, two)
        self.assertEqual((one.done(), two.done()), ([(1, WCStatus.SUCCESS)], [(1, WCStatus.SUCCESS)]))
        self.assertEqual([len(datagrams) for _, datagrams in calls], [7, 4])
        for port, datagrams in calls:
            flow = ICRCState(gidOf(HERE), gidOf(THERE), port)
            for number, datagram in enumerate(datagrams):
                check = crc32(datagram[:-4], flow.state(len(datagram), number))
                self.assertEqual(check.to_bytes(4, "little"), datagram[-4:])

    def test_farewell(self) -> None:
        """
        A connection that is closed as soon as a request is refused sends the NAK first.
        """
        one, two = self.connected()
        two.failed = lambda reason: two.device.disconnect(two.connection)  # type: ignore[method-assign]
        self.wire.log = []
        one.send(1, SendOpcode.RDMA_WRITE, 0, 5, remoteAddress=two.region.address, remoteKey=1)
        self.settle(one, two)
        self.assertEqual(one.done(), [(1, WCStatus.REM_ACCESS_ERR)])
        said = [data[0] for source, _, _, _, data in self.wire.log if source == THERE]
        self.assertEqual(said[:2], [0x11, 0x64])
        self.assertIn("disconnected", one.log)
