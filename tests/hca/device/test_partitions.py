"""
Tests of partitions on devices of each kind: a queue pair's P_Key comes from its port's table, is checked when
the queue pair is bound and when the table changes, and on a wire is in each packet.
"""

from __future__ import annotations

from typing import Any

from tests.contracts.groups import KEY as GROUP_KEY
from tests.contracts.groups import DatagramSide
from tests.hca.device.everykind import EveryKindTestCase
from tests.hca.fabric.roce import test_devices
from tests.hca.fabric.roce.test_hostile import CNP, GROUP, SEND_ONLY, UD_SEND_ONLY, PacketTestCase, packet
from tests.hca.hcas import settle
from tests.hca.queues.keyed_pair import Consumer
from twisted_ib import limits
from twisted_ib.errors import QueuePairError, ResourceLimitError
from twisted_ib.hca.base.partition import DEFAULT_PKEY
from twisted_ib.hca.base.port import PortChange
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.wire.headers import BTH, DETH, QUEUE_KEY
from twisted_ib.hca.wire.mad.classes import VENDOR_CLASSES
from twisted_ib.hca.wire.mad.mad import GET, Mad

KEY = 0x11111111
FULL, LIMITED = 0x8001, 0x0002


def datagrams(device: Device, index: int, state: QPState = QPState.RTR) -> Any:
    """
    @return: a datagram queue pair with a P_Key index.
    """
    queuePair = device.createQueuePair(Consumer(), QPType.UD)
    queuePair.modify(QPState.INIT, pkey_index=index, port_num=1, qkey=KEY)
    if state == QPState.RTR:
        queuePair.modify(state)
    return queuePair


class EveryKindTests(EveryKindTestCase):
    """
    What partitions are the same on every kind of fabric.
    """

    def test_default(self) -> None:
        """
        All ports are full members of the default partition, which costs a queue pair nothing.
        """
        for device in self.devices.values():
            self.assertEqual(device.partitions.keys, (DEFAULT_PKEY,))
            queuePair = datagrams(device, 0)
            self.assertEqual(queuePair.partition, DEFAULT_PKEY)
            # Of a compiled class an object has no dictionary.
            self.assertNotIn("partition", getattr(queuePair, "__dict__", {}))
            self.assertRaises(QueuePairError, datagrams, device, 1)
            self.assertEqual(device.describe()["attributes"]["max_pkeys"], 1)

    def test_index(self) -> None:
        """
        The index chooses the P_Key; new queue pairs, and those in RESET, have the first.
        """
        for device in self.devices.values():
            device.changePort(PortChange(partitions=(FULL, LIMITED)))
            queuePair = datagrams(device, 1)
            self.assertEqual((queuePair.partition, queuePair.query()["pkey_index"]), (LIMITED, 1))
            queuePair.modify(QPState.RESET)
            self.assertEqual(queuePair.partition, FULL)
            self.assertEqual(device.createQueuePair(Consumer()).partition, FULL)
            self.assertEqual(device.describe()["attributes"]["max_pkeys"], 2)

    def test_bind(self) -> None:
        """
        A queue pair without a partition cannot be bound.
        """
        for device in self.devices.values():
            device.changePort(PortChange(partitions=(0, FULL)))
            queuePair = datagrams(device, 0, QPState.INIT)
            self.assertRaises(QueuePairError, queuePair.modify, QPState.RTR)
            self.assertEqual(queuePair.state, QPState.INIT)
            queuePair.modify(QPState.RTR, pkey_index=1)
            stream = device.createQueuePair(Consumer())
            self.assertRaises(QueuePairError, stream.connect, None, 7)
            self.assertIsNone(stream.path)

    def test_change(self) -> None:
        """
        Queue pairs follow their slots; one whose slot is empty now fails, unless it is not bound.
        """
        for device in self.devices.values():
            device.changePort(PortChange(partitions=(FULL, LIMITED)))
            stays, fails, waits = (
                datagrams(device, 0),
                datagrams(device, 1),
                datagrams(device, 1, QPState.INIT),
            )
            device.changePort(PortChange(partitions=(0x8003,)))
            self.assertEqual((stays.partition, stays.state), (0x8003, QPState.RTR))
            self.assertEqual((fails.partition, fails.state), (0, QPState.ERR))
            (failure,) = fails.consumer.failures
            self.assertIsInstance(failure, QueuePairError)
            self.assertEqual((waits.partition, waits.state), (0, QPState.INIT))

    def test_bound(self) -> None:
        """
        The table has a bound; a larger one changes nothing.
        """
        for device in self.devices.values():
            many = (FULL,) * (limits.PARTITIONS + 1)
            self.assertRaises(ResourceLimitError, device.changePort, PortChange(partitions=many))
            self.assertEqual(device.partitions.keys, (DEFAULT_PKEY,))


class PacketTests(PacketTestCase):
    """
    Packets carry the P_Key of their queue pair, and are dropped if it does not match that of the receiver.
    """

    def give(self, device: Device, data: bytes) -> int:
        """
        Have a packet arrive.

        @return: how many of another partition were counted for it.
        """
        before = device.counters["packets_bad_pkey"]
        self.wire.deliver((test_devices.HERE, device.fabric.address, 50000, 0, data))
        settle(device)
        return device.counters["packets_bad_pkey"] - before

    def test_connection(self) -> None:
        """
        A connection of the second partition uses and accepts no other P_Key, though its port has one.
        """
        table = (DEFAULT_PKEY, FULL)
        self.patch(test_devices, "INIT", {**test_devices.INIT, "pkey_index": 1})
        deviceAt = self.device

        def device(address: str) -> Device:
            """
            With two partitions.
            """
            found = deviceAt(address)
            found.changePort(PortChange(partitions=table))
            return found

        self.patch(self, "device", device)
        one, two = self.connected()
        # Packets of one size follow each other, which is bulk transfer.
        one.device.fabric.link.burst = 7
        self.wire.log = []
        two.receive(1, 0, 5000)
        one.send(1, SendOpcode.SEND, 0, 5000)
        self.settle(one, two)
        self.assertEqual((one.done(), two.done()), ([(1, WCStatus.SUCCESS)], [(1, WCStatus.SUCCESS)]))
        self.assertEqual({BTH.unpack_from(each[4])[2] for each in self.wire.log}, {FULL})
        number = two.queuePair.number
        # So has the notification of a congestion mark.
        port = one.queuePair.path.port
        marked = packet(SEND_ONLY, number, b"data", partition=FULL, port=port)
        self.wire.deliver((test_devices.HERE, test_devices.THERE, port, 3, marked))
        settle(two.device)
        self.assertIn((CNP, FULL), {BTH.unpack_from(each[4])[0:3:2] for each in self.wire.log})
        for partition, counted in ((DEFAULT_PKEY, 1), (FULL, 0), (FULL & 0x7FFF, 0), (0x8004, 1)):
            # A repeated PSN: the transport drops it without an answer that matters here.
            data = packet(SEND_ONLY, number, b"data", partition=partition)
            self.assertEqual(self.give(two.device, data), counted, hex(partition))
        for end in (one, two):
            end.device.changePort(PortChange(partitions=(DEFAULT_PKEY, 0x8005)))
        two.receive(2, 0, 10)
        one.send(2, SendOpcode.SEND, 0, 10)
        self.settle(one, two)
        self.assertEqual((one.done(), two.done()), ([(2, WCStatus.SUCCESS)], [(2, WCStatus.SUCCESS)]))
        self.assertEqual(BTH.unpack_from(self.wire.log[-1][4])[2], 0x8005)

    def test_datagrams(self) -> None:
        """
        A datagram queue pair takes its own partition only; for numbers that nobody has the port's decide.
        """
        device = self.device(test_devices.THERE)
        device.changePort(PortChange(partitions=(DEFAULT_PKEY, FULL)))
        number = DatagramSide(device, partition=1).qp.number
        rest = DETH.pack(KEY, 1) + bytes(8)
        cases = ((number, DEFAULT_PKEY, 1), (number, FULL, 0), (77, DEFAULT_PKEY, 0), (77, 0x8004, 1))
        for target, partition, counted in cases:
            data = packet(UD_SEND_ONLY, target, rest, partition=partition)
            self.assertEqual(self.give(device, data), counted, (target, hex(partition)))

    def test_group(self) -> None:
        """
        A member of a multicast group takes the datagrams of its own partition only; for each that does not
        take one, that is counted.
        """
        device = self.device(test_devices.THERE)
        device.changePort(PortChange(partitions=(DEFAULT_PKEY, FULL)))
        members = [DatagramSide(device, partition=index) for index in (0, 1)]
        for each in members:
            device.paths.attach(each.qp, int.from_bytes(gidOf(GROUP), "big"))
        counters = device.counters
        for partition, taken in ((DEFAULT_PKEY, [1, 0]), (FULL, [0, 1]), (1, [0, 1]), (0x8004, [0, 0])):
            counted, body = counters["packets_bad_pkey"], DETH.pack(GROUP_KEY, 1) + bytes(8)
            data = packet(UD_SEND_ONLY, 0xFFFFFF, body, destination=GROUP, partition=partition)
            self.wire.deliver((test_devices.HERE, GROUP, 50000, 0, data))
            settle(device)
            self.assertEqual([len(each.heard()) for each in members], taken, hex(partition))
            self.assertEqual(counters["packets_bad_pkey"] - counted, 1)

    def test_management(self) -> None:
        """
        The response to a management datagram has the P_Key of the port that the request's matches.
        """
        device = self.device(test_devices.THERE)
        device.changePort(PortChange(partitions=(DEFAULT_PKEY, FULL, LIMITED)))
        mad = Mad(VENDOR_CLASSES[-1], 1, GET, 7, 1).pack()
        for asked, answered in (
            (DEFAULT_PKEY, DEFAULT_PKEY),
            (0x7FFF, DEFAULT_PKEY),
            (FULL, FULL),
            (FULL & 0x7FFF, FULL),
            (LIMITED | 0x8000, LIMITED),
        ):
            self.wire.log = []
            data = packet(UD_SEND_ONLY, 1, DETH.pack(QUEUE_KEY, 1) + mad, partition=asked)
            self.assertEqual(self.give(device, data), 0)
            (response,) = self.wire.log
            self.assertEqual(BTH.unpack_from(response[4])[2], answered, hex(asked))
