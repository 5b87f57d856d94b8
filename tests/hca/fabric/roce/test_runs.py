"""
Packets of bulk, which come together and are looked at together.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from attrs import evolve
from hypothesis import example
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.contracts.path import Consumer
from tests.hca.fabric.roce import test_streams
from tests.hca.fabric.roce.test_devices import HERE, THERE, End, PacketTestCase
from tests.hca.fabric.roce.test_hostile import SOURCE_PORT, STRANGER, packet
from tests.hca.fabric.roce.test_streams import StreamTests
from tests.hca.hcas import settle
from tests.hca.memorylink import Datagram, MemoryLink
from tests.support.calls import PACKAGE, called
from tests.support.generated import given
from twisted_ib import limits
from twisted_ib.hca.connection import ConnectReply, ConnectRequest
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.fabric.roce.qppath import QueuePairPath
from twisted_ib.hca.fabric.roce.receive import PacketReceiver
from twisted_ib.hca.queues.completion import WCStatus
from twisted_ib.hca.queues.queuepair import QueuePair
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.transport.parameters import TRANSPORT_LONG_BYTES
from twisted_ib.hca.wire.headers import BTH, ICRC, PSN_MASK, RETH
from twisted_ib.hca.wire.icrcflow import ICRCState, crc32
from twisted_ib.hca.wire.opcodes import READ_REQUEST, SEND_MIDDLE, SEND_ONLY, UD_SEND_ONLY

BURST = 15


class RunTests(StreamTests):
    """
    Two streams over links that send and receive many datagrams at a time; all that holds for others holds
    for them.
    """

    def joined(self) -> tuple[QueuePair, QueuePair]:
        """
        @return: Two queue pairs that are connected.
        """
        one, two = super().joined()
        for link in self.wire.links.values():
            link.burst, link.coalesces = BURST, True
        self.runs: list[tuple[int, int]] = []
        continued = QueuePairPath.continued

        def counted(path: Any, opcode: int, parts: list[Any], size: int) -> int:
            """
            Remember how many came.
            """
            self.runs.append((opcode, len(parts)))
            return continued(path, opcode, parts, size)

        patcher = patch.object(QueuePairPath, "continued", counted)
        patcher.start()
        self.addCleanup(patcher.stop)
        return one, two

    def send(self, one: QueuePair, two: QueuePair, *sizes: int) -> None:
        """
        Send messages, and see that they arrive.
        """
        before = len(self.messages(two))
        sent = [bytes(range(256)) * (size // 256) + b"end" for size in sizes]
        for data in sent:
            self.post(one, data)
        self.until(one.device, two.device, seconds=3.0)
        self.assertEqual(self.messages(two)[before:], sent)
        self.assertEqual({type(data) for data in self.messages(two)}, {bytes})

    def test_together(self) -> None:
        """
        The middle of a message is taken at once, as far as it came at once.
        """
        one, two = self.joined()
        self.send(one, two, 10 * 1024)
        self.assertEqual(self.runs, [(1, 9)])
        self.send(one, two, 20 * 1024)
        self.assertEqual(sum(count for _, count in self.runs[1:]), 19)

    def test_several(self) -> None:
        """
        Messages that come together stay apart.
        """
        one, two = self.joined()
        self.send(one, two, 5 * 1024, 4 * 1024, 100, 60 * 1024, 7 * 1024)
        self.assertEqual(one.device.counters.get("completer_retry_err", 0), 0)

    def test_whole(self) -> None:
        """
        Messages whose packets are all full go into the same calls of the link, and stay apart.
        """
        one, two = self.joined()
        link: Any = one.device.fabric.link
        calls: list[int] = []
        send = link.send

        def counted(destination: str, port: int, pieces: list[Any], size: int, *rest: int) -> Any:
            """
            Count the packets of a call.
            """
            calls.append(len(b"".join(pieces)) // size)
            return send(destination, port, pieces, size, *rest)

        link.send = counted
        sent = [bytes([number]) * 3 * 1024 for number in range(8)]
        for data in sent:
            self.post(one, data)
        self.until(one.device, two.device)
        self.assertEqual(self.messages(two), sent)
        self.assertEqual(sum(calls), 24)
        self.assertIn(BURST, calls)
        self.assertEqual(one.device.counters.get("completer_retry_err", 0), 0)

    def test_calls(self) -> None:
        """
        A message of eight packets takes as many functions to be sent as one of two.
        """
        one, two = self.joined()
        self.send(one, two, 2 * 1024, 8 * 1024)
        took = []
        for count in (2, 8):
            self.post(one, bytes(count * 1024))
            took.append(sum(called(one.device.progress, PACKAGE).values()))
            self.until(one.device, two.device)
        self.assertEqual([len(data) for data in self.messages(two)[2:]], [2 * 1024, 8 * 1024])
        self.assertEqual(*took)

    def test_lost(self) -> None:
        """
        One is lost in the middle: what is before it is taken, the rest comes again.
        """
        for number in (0, 1, 2, 5, 9, 10):
            one, two = self.joined()
            self.lose(number)
            self.send(one, two, 10 * 1024, 3 * 1024)
            self.doCleanups()
            self.setUp()

    def test_corrupted(self) -> None:
        """
        One has a bit wrong, in its payload or its header.
        """
        for number, at in ((1, 100), (4, 20), (4, 8), (4, 11), (4, 0), (9, 1000), (4, -1)):
            one, two = self.joined()
            count = iter(range(1 << 30))

            def change(
                datagram: Datagram, count: Any = count, wanted: int = number, at: int = at
            ) -> tuple[Datagram]:
                """
                Change one.
                """
                if next(count) != wanted:
                    return (datagram,)
                data = bytearray(datagram[4])
                data[at] ^= 0x10
                return ((*datagram[:4], bytes(data)),)

            self.wire.pass_ = change
            self.send(one, two, 10 * 1024, 3 * 1024)
            self.assertEqual(two.device.counters["packets_bad_icrc"], 1)
            self.doCleanups()
            self.setUp()

    def test_swapped(self) -> None:
        """
        Two have changed places: the run ends before them.
        """
        one, two = self.joined()
        held: list[Datagram] = []
        count = iter(range(1 << 30))

        def swap(datagram: Datagram) -> tuple[Datagram, ...]:
            """
            Hold one back behind the next.
            """
            number = next(count)
            if number == 5:
                held.append(datagram)
                return ()
            return (datagram, *held) if number == 6 else (datagram,)

        self.wire.pass_ = swap
        self.send(one, two, 10 * 1024)
        self.assertEqual(self.runs[0], (1, 4))

    def test_tooLong(self) -> None:
        """
        A message that never ends is refused as it is elsewhere.
        """
        one, two = self.joined()
        one.maxMessage = 1 << 20
        self.post(one, b"x" * (limits.INLINE_RECORD + 8192))
        settle(one.device, two.device)
        self.assertEqual(self.messages(two), [])
        self.assertIsNone(two.path)

    def test_kept(self) -> None:
        """
        The received part of a message does not depend on what the link does with its buffer meanwhile.
        """
        one, two = self.joined()
        link = two.device.fabric.link
        arrived = link.user.arrived

        def lent(source: str, port: int, destination: str, data: bytes, start: int, *rest: Any) -> None:
            """
            Give a buffer that is overwritten behind the call.
            """
            buffer = _Lent(data)
            arrived(source, port, destination, buffer, start, *rest)
            buffer[:] = bytes(len(buffer))

        link.user.arrived = lent
        self.send(one, two, 50 * 1024)
        self.assertGreater(len(self.runs), 2)

    def test_sharedPort(self) -> None:
        """
        Nor if packets of several connections come together, which share a source port as there are many.
        """
        self.patch(MemoryLink, "sourcePort", lambda link, wanted: 0xC000)
        here, there = "2001:db8::1", "2001:db8::2"  # Where any place in a burst is right.
        self.patch(test_streams, "HERE", here)
        self.patch(test_streams, "THERE", there)
        devices = {address: self.device(address) for address in (here, there)}
        self.patch(self, "device", devices.__getitem__)
        ends = [self.joined() for _ in range(2)]
        device = devices[there]
        held: list[Datagram] = []
        self.wire.pass_ = lambda datagram: held.append(datagram) or ()  # type: ignore[func-returns-value]
        sent = [bytes([65 + n]) * (10 << 10) for n in range(2)]
        for (one, _), data in zip(ends, sent, strict=True):
            self.post(one, data)
            settle(one.device)
        self.wire.pass_ = lambda datagram: (datagram,)
        first, second = ([each for each in held if sent[n][:64] in each[4]] for n in range(2))
        link = device.fabric.link
        arrived = link.user.arrived

        def lent(source: str, port: int, destination: str, data: bytes, start: int, *rest: Any) -> None:
            """
            Give a buffer that is overwritten behind the call.
            """
            buffer = _Lent(data)
            arrived(source, port, destination, buffer, start, *rest)
            buffer[:] = bytes(len(buffer))

        link.user.arrived = lent
        for part in (*first[:4], *second[:4]), (*first[4:], *second[4:]):
            for each in part:
                self.wire.deliver(each)
            settle(*devices.values())
        self.assertGreater(len(self.runs), 2)
        self.assertEqual([self.messages(two) for _, two in ends], [[data] for data in sent])

    def test_failure(self) -> None:
        """
        Nor if the receiver of a packet behind it raises.
        """
        one, two = self.joined()
        device: Any = two.device
        held: list[Datagram] = []
        self.wire.pass_ = lambda datagram: held.append(datagram) or ()  # type: ignore[func-returns-value]
        data = b"A" * (10 << 10)
        self.post(one, data)
        settle(one.device)
        self.wire.pass_ = lambda datagram: (datagram,)
        buffer = _Lent(b"".join(each[4] for each in held[:4]) + packet(0x64, 77, bytes(8)))
        self.patch(device.paths, "datagramReceived", lambda *arguments: 1 // 0)
        source, destination, port, _, first = held[0]
        # One that is behind those is of the same flow.
        flow = ICRCState(gidOf(source), gidOf(destination), port)
        buffer[-24:] = flow.sign(bytes(buffer[-24:-4]))
        with self.assertRaises(ZeroDivisionError):
            device.fabric.arrived(source, port, destination, buffer, 0, len(buffer), len(first))
        buffer[:] = bytes(len(buffer))
        for each in held[4:]:
            self.wire.deliver(each)
        settle(one.device, device)
        self.assertEqual(self.messages(two), [data])

    def test_acknowledged(self) -> None:
        """
        Packets that ask for an acknowledgement are acknowledged in a run, too.
        """
        one, two = self.joined()
        self.wire.log = []
        self.send(one, two, 60 * 1024)
        acknowledgements = [each for each in self.wire.log if each[1] == HERE and each[4][0] == 0x11]
        self.assertTrue(acknowledgements)
        assert one.path is not None
        self.assertTrue(one.path.isDone)  # type: ignore[attr-defined]


class PrefixTests(SynchronousTestCase):
    """
    Where a run ends.
    """

    @given(
        st.lists(
            st.tuples(
                *(st.sampled_from(choice) for choice in ([0] * 9 + [1], [0] * 6 + [1, 2], [0] * 9 + [1]))
            ),
            min_size=1,
            max_size=12,
        ),
        st.sampled_from([0, 5, 0xFFFFFD]),
        st.integers(0, 3),
        st.booleans(),
    )
    @example([(0, 0, 0), (0, 2, 0), (0, 0, 0), (0, 0, 0)], 5, 0, False)
    @example([(0, 0, 0), (0, 0, 1), (0, 0, 0), (0, 0, 0)], 5, 0, False)
    @example([(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 0)], 5, 1, True)
    def test_any(self, rows: list[tuple[int, int, int]], psn: int, number: int, tail: bool) -> None:
        """
        Before the first packet for another queue pair, with another PSN than the next, or with a wrong ICRC:
        so much is taken, and whether one of those asks for an acknowledgement is told.

        @param rows: Of each packet: PSNs that are missing before it; 1 if it asks, 2 if it is for another
            queue pair; whether it is corrupt.
        """
        size = BTH.size + 256 + ICRC.size
        source, destination = gidOf(HERE), gidOf(THERE)
        flow, octets, expected, asks, goesOn = ICRCState(source, destination, 0xC001), b"", 0, False, True
        rows[0] = (0, rows[0][1] & 1, 0)  # It was checked before.
        for index, (gap, kind, corrupt) in enumerate(rows):
            asking, isOther = kind == 1, kind == 2
            psn += gap
            word = psn & PSN_MASK | asking << 31
            body = BTH.pack(SEND_MIDDLE, 0, 0xFFFF, 0x11 + isOther, word) + bytes([index]) * 256
            octets += body + ICRC.pack(crc32(body, flow.state(size, number + index)) ^ corrupt)
            psn += 1
            goesOn = goesOn and not (gap or isOther or corrupt)
            if goesOn:
                expected += 1
                asks = asks or asking
        octets += b"the last is shorter" * tail
        device = SimpleNamespace(owner=None)
        found, word = PacketReceiver(device, {})._run(flow, memoryview(octets), 0, len(octets), size, number)
        self.assertEqual([bytes(part) for part in found], [bytes([n]) * 256 for n in range(expected)])
        self.assertIs(word, asks)


class LongTests(PacketTestCase):
    """
    Packets above IBTA's longest, between ends that have agreed on them.
    """

    mtu = 61440
    until, post, messages = StreamTests.until, StreamTests.post, StreamTests.messages

    def joined(self, isSaid: bool = True) -> tuple[QueuePair, QueuePair]:
        """
        @param isSaid: whether the ends say their source ports.
        @return: two streams.
        """
        devices = [self.device(address) for address in (HERE, THERE)]
        one, two = (device.createQueuePair(Consumer()) for device in devices)
        here, there = (
            device.fabric.pathTo(address) for device, address in zip(devices, (THERE, HERE), strict=True)
        )
        request = ConnectRequest(localQPN=one.number, responderResources=1, retryCount=7, rnrRetryCount=7)
        here.prepareRequest(request)
        if not isSaid:
            request.localEECN = 0
        reply = ConnectReply(localQPN=two.number, responderResources=1, rnrRetryCount=7)
        there.prepareReply(reply, request)
        here.readReply(reply, one.number)
        two.connect(there, one.number, request)
        one.connect(here, two.number, reply)
        for end in one, two:
            end.postReceives(100)
        self.wire.log = []
        return one, two

    def longest(self) -> int:
        """
        @return: the payload of the longest packet.
        """
        assert self.wire.log is not None
        return max(len(each[4]) for each in self.wire.log) - BTH.size - ICRC.size

    def test_streams(self) -> None:
        """
        Messages of streams arrive, in as few packets as the path MTU allows, whether they come one by one or
        together.
        """
        sizes = (16, 4096, 4100, 8192, 8193, 61440, 61441, limits.INLINE_MESSAGE)
        for self.mtu, several in ((8192, 1), (8192, 7), (61440, 1)):
            one, two = self.joined()
            for link in self.wire.links.values():
                link.burst = several
                link.coalesces = several > 1
            sent = [bytes([number]) * size for number, size in enumerate(sizes)]
            for data in sent:
                self.post(one, data)
            self.until(one.device, two.device)
            self.assertEqual(self.messages(two), sent)
            self.assertEqual({type(data) for data in self.messages(two)}, {bytes})
            self.assertEqual(self.longest(), self.mtu)
            data = [each for each in self.wire.log or () if each[0] == HERE]
            self.assertEqual(len(data), sum(-(-size // self.mtu) for size in sizes))
            self.assertEqual(one.device.counters.get("completer_retry_err", 0), 0)
            self.doCleanups()
            self.setUp()

    def test_notAgreed(self) -> None:
        """
        Where a peer says no source port, packets have IBTA's longest path MTU, and longer ones are no
        packets.
        """
        one, two = self.joined(isSaid=False)
        self.post(one, bytes(60000))
        self.until(one.device, two.device)
        self.assertEqual((self.longest(), self.messages(two)), (4096, [bytes(60000)]))
        kinds = []
        for opcode, number, size in (
            *((SEND_ONLY, two.number, 8192), (SEND_ONLY, two.number, 61440), (SEND_ONLY, 0xABCDEF, 61440)),
            *((UD_SEND_ONLY, 1, 8192), (UD_SEND_ONLY, two.number, 8192), (SEND_ONLY, 0xABCDEF, 61500)),
        ):
            before = dict(two.device.counters)
            self.wire.deliver((HERE, THERE, 50000, 0, packet(opcode, number, bytes(size))))
            settle(two.device)
            now = two.device.counters
            kinds += [name for name in now if now[name] != before.get(name, 0)]
        wrong = "packets_malformed"
        self.assertEqual(kinds, [wrong] * 6)

    def test_lost(self) -> None:
        """
        One is lost, or has a bit wrong, or is overtaken, or comes twice: each message arrives once.
        """
        for self.mtu in (8192, 61440):
            for damage in ("lost", "wrong", "late", "twice"):
                one, two = self.joined()
                count = iter(range(1 << 30))
                held: list[Datagram] = []

                def fault(
                    datagram: Datagram, count: Any = count, damage: str = damage, held: Any = held
                ) -> Any:
                    if next(count) != 1:
                        return (datagram, *(held.pop() for _ in held[:]))
                    data = bytearray(datagram[4])
                    data[len(data) // 2] ^= 1
                    held += [datagram] if damage == "late" else []
                    found = {"wrong": [(*datagram[:4], bytes(data))], "twice": [datagram, datagram]}
                    return found.get(damage, ())

                self.wire.pass_ = fault
                sent = [bytes([number]) * 60000 for number in range(4)]
                for data in sent:
                    self.post(one, data)
                self.until(one.device, two.device, seconds=3.0)
                self.assertEqual(self.messages(two), sent)
                self.assertEqual(two.device.counters["packets_bad_icrc"], int(damage == "wrong"))
                self.doCleanups()
                self.setUp()

    def test_window(self) -> None:
        """
        Of bulk so much is on its way, and no more: the peer's socket has to hold it.  Of small messages there
        are as many as with shorter packets.
        """
        usual = limits.TRANSPORT_WINDOW * 4096
        for self.mtu, most in (4096, usual), (8192, usual), (61440, TRANSPORT_LONG_BYTES):
            one, two = self.joined()
            path: Any = one.path
            for _ in range(130):
                two.postReceives(1)
                self.post(one, bytes(self.mtu))
                self.until(one.device, two.device, seconds=0.01)
            self.wire.pass_ = lambda datagram: ()
            self.wire.log = []
            while path.requester.post(SEND_ONLY, 0, b"", bytes(60000), 1):
                pass
            path.mark()
            settle(one.device)
            onTheWay = sum(len(each[4]) for each in self.wire.log)
            self.assertGreater(onTheWay, most * 3 // 4, self.mtu)
            self.assertLess(onTheWay, most + 2 * 60000, self.mtu)
            self.assertEqual(path.requester.pacing.window, limits.TRANSPORT_WINDOW)
            self.doCleanups()
            self.setUp()

    def test_calls(self) -> None:
        """
        Long packets leave one by one, small ones behind them in one call of the link.
        """
        self.mtu = 61440
        one, two = self.joined()
        link = one.device.fabric.transmitter.link
        link.burst = BURST
        calls: list[tuple[int, int]] = []

        def send(address: str, port: int, pieces: list[Any], size: int, *rest: Any) -> bool:
            calls.append((sum(map(len, pieces)) // size, size))
            return bool(sending(address, port, pieces, size, *rest))

        sending, link.send = link.send, send
        sizes = 61440, 61440, 16, 16, 16, 40000
        for size in sizes:
            self.post(one, bytes(size))
        settle(one.device, two.device)
        self.assertEqual([count for count, _ in calls[:4]], [1, 1, 3, 1])
        self.assertEqual([size > 40000 for _, size in calls[:4]], [True, True, False, True])
        self.assertEqual([len(each) for each in self.messages(two)], list(sizes))

    def test_acknowledged(self) -> None:
        """
        Half of a window of long packets is acknowledged as soon as it is read, so that the other half is on
        its way when the next packets leave.
        """
        for size, isOwed in ((61440, False), (65536, False), (61440, True)):
            self.mtu = 61440
            one, two = self.joined()
            two.device.fabric.patient = True
            self.post(one, bytes(16))
            settle(one.device, two.device)
            if isOwed:  # An acknowledgement, which is deferred.
                self.post(one, bytes(16))
                settle(one.device)
                self.wire.log = []
                two.device.progress(1)
                self.assertEqual((self.wire.log, two.path.connection.owes), ([], True))
            for _ in range(12):
                self.post(one, bytes(size))
            settle(one.device)
            link = self.wire.links[THERE]
            sent = len(link.queue)
            self.assertLess(sum(len(each[4]) for each in link.queue), TRANSPORT_LONG_BYTES + 1000)
            self.wire.log = []
            two.device.progress(-(-sent // 2))
            self.assertEqual([each[0] for each in self.wire.log], [THERE])
            settle(one.device)
            self.assertGreater(len(link.queue), sent * 3 // 4)
            self.doCleanups()
            self.setUp()

    def test_reads(self) -> None:
        """
        As many READs and atomics are on their way as with shorter packets; of long responses so many bytes,
        and all come.
        """
        self.patch(End, "reads", 16)
        for self.mtu in (4096, 61440):
            one, two = self.connected(size=1 << 18)
            far = {"remoteAddress": two.region.address, "remoteKey": two.region.remoteKey}
            for opcode, size, most in (
                *((SendOpcode.RDMA_READ, 64, 1024), (SendOpcode.ATOMIC_FETCH_AND_ADD, 8, 1024)),
                *(
                    (SendOpcode.RDMA_READ, 200_000, TRANSPORT_LONG_BYTES),
                    (SendOpcode.RDMA_READ, 61440, 400_000),
                ),
            ):
                self.wire.log = []
                for number in range(20):
                    one.send(number, opcode, 0, size, **far)
                settle(one.device)
                sent = [each[4] for each in self.wire.log]
                asked = sum(RETH.unpack_from(each, BTH.size)[2] for each in sent if each[0] == READ_REQUEST)
                if size < 4096:
                    self.assertEqual((len(sent), asked), (16, 16 * size if size == 64 else 0))
                elif self.mtu > 4096:
                    self.assertGreater(asked, most // 2)
                    self.assertLessEqual(asked, TRANSPORT_LONG_BYTES)
                self.settle(one, two)
                self.assertEqual(one.done(), [(number, WCStatus.SUCCESS) for number in range(20)])
            self.assertEqual(bytes(one.memory[8:200_000]), bytes(two.memory[8:200_000]))
            self.assertEqual(one.device.counters.get("completer_retry_err", 0), 0)
            one.device.close()
            two.device.close()

    def test_strangers(self) -> None:
        """
        Long packets for a connection that has them are its peer's, or dropped before they cost a CRC.
        """
        _, two = self.joined()
        for source, counted in ((STRANGER, "packets_malformed"), (HERE, "packets_wrong_port")):
            before = dict(two.device.counters)
            data = packet(SEND_ONLY, two.number, bytes(8192), source=source)
            self.wire.deliver((source, THERE, SOURCE_PORT, 0, data))
            settle(two.device)
            now = two.device.counters
            self.assertEqual([name for name in now if now[name] != before.get(name, 0)], [counted])

    def test_liar(self) -> None:
        """
        A peer that has agreed on long packets and sends others fails its own connection, and nothing else.
        """
        for self.mtu, lie, counted in ((61440, 4096, ""), (8192, 61440, "packets_malformed")):
            one, two = self.joined()
            before = dict(two.device.counters)
            path: Any = one.path
            path.connection.modify(evolve(path.requester._terms, mtu=lie))
            self.post(one, bytes(60000))
            settle(one.device, two.device)
            self.assertEqual(self.messages(two), [])
            if counted:
                self.assertGreater(two.device.counters[counted], before.get(counted, 0))
            self.assertEqual(len(two.consumer.failures), 0 if counted else 1)
            self.doCleanups()
            self.setUp()

    def test_requests(self) -> None:
        """
        Work requests: a message of several records, and a READ of several parts, whose packets are whole.
        """
        size = 400_000
        for self.mtu in (8192, 61440):
            one, two = self.connected(size=1 << 19)
            self.wire.log = []
            for end in one, two:
                end.memory[:size] = bytes(range(250)) * (size // 250)
            far = {"remoteAddress": two.region.address, "remoteKey": two.region.remoteKey}
            two.receive(1, 0, size)
            for number, opcode, fields in (
                *((2, SendOpcode.SEND, {}), (3, SendOpcode.RDMA_WRITE, far), (4, SendOpcode.RDMA_READ, far)),
            ):
                (one if opcode is SendOpcode.RDMA_READ else two).memory[:] = bytes(1 << 19)
                one.send(number, opcode, 0, size, **fields)
                self.settle(one, two, seconds=0.1)
                self.assertEqual(one.done(), [(number, WCStatus.SUCCESS)])
                self.assertEqual(one.memory, two.memory)
                self.assertEqual(bytes(one.memory[:size]), bytes(range(250)) * (size // 250))
            self.assertEqual(self.longest(), self.mtu + RETH.size)
            self.assertEqual(one.device.counters.get("completer_retry_err", 0), 0)
            one.device.close()
            two.device.close()


class _Lent(bytearray):
    """
    A buffer of a link: its slices are bytes.
    """

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return bytes(found) if isinstance(found, bytearray) else found


del StreamTests
