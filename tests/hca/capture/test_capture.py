"""
Tests of capture files: L{twisted_ib.hca.capture.capture}, L{twisted_ib.hca.capture.trace} and
L{twisted_ib.hca.capture.pcapng}.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from attrs import evolve
from hypothesis import strategies as st
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.hca.hcas import Taker, User
from tests.hca.mad.toys.echo import EchoAgent
from tests.hca.mad.toys.node import NodeAgent
from tests.rdma import pair as rdma_pair
from tests.sdp import pair as sdp_pair
from tests.support.captures import TSHARK, Frame, Observer, read, tshark
from tests.support.generated import given, settings
from tests.support.waiting import HANG_SECONDS
from tests.verbs.pyverbs import pair as verbs_pair
from twisted_ib.hca.base.operation import REFUSAL, RESPONSES, RESUME
from twisted_ib.hca.capture import capture as captures
from twisted_ib.hca.capture import pcapng
from twisted_ib.hca.capture.capture import Capture, capture, fileOf
from twisted_ib.hca.capture.pcapng import Writer
from twisted_ib.hca.capture.trace import PathTrace
from twisted_ib.hca.connection import PathRecord as Way
from twisted_ib.hca.connection.rdmacm import gidOf
from twisted_ib.hca.device.device import Device
from twisted_ib.hca.fabric.base.neighbours import Neighbours, PeerIdentity
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric, LoopbackPath
from twisted_ib.hca.services.address import AddressVector
from twisted_ib.hca.wire.cm.messages import MESSAGES, REP, REQ, RTU
from twisted_ib.hca.wire.grh import guidGID, packGRH
from twisted_ib.hca.wire.headers import DETH, RETH, RNR
from twisted_ib.hca.wire.mad.mad import GET_RESPONSE, decodeMAD
from twisted_ib.hca.wire.opcodes import READ_REQUEST, READ_RESPONSE_ONLY, SEND_ONLY, UD_SEND_ONLY, WRITE_ONLY
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import AH, GID, AHAttr, GlobalRoute, QPAttr, SendWR, enums

#: tshark 4.0.17 wrongly reports as malformed: SDP's empty Data, and the packets after the first of a
#: message, which it takes for messages.
PARTS = "infiniband.bth.opcode in {1, 2, 3}"
SOUND = f"(infiniband_sdp.bsdh.mid == 0xff && infiniband_sdp.bsdh.len == 16) || {PARTS}"


class CaptureTestCase(SynchronousTestCase):
    """
    A directory for captures, and the variable that names one.
    """

    def setUp(self) -> None:
        """
        The variable is set.
        """
        super().setUp()
        self.directory = Path(tempfile.mkdtemp())
        self.addCleanup(self.remove)
        self.file = Path(fileOf(str(self.directory / "x.pcapng")))
        environment = mock.patch.dict(os.environ, TWISTED_IB_CAPTURE=str(self.directory / "x.pcapng"))
        environment.start()
        self.addCleanup(environment.stop)

    def remove(self) -> None:
        """
        Close and remove everything.
        """
        found = capture(str(self.directory / "x.pcapng"))
        if found is not None:
            found.close()
        for file in self.directory.iterdir():
            file.unlink()
        self.directory.rmdir()

    def frames(self) -> list[Frame]:
        """
        @return: what is in the file.
        """
        found = capture(str(self.directory / "x.pcapng"))
        assert found is not None
        found.flush()
        return read(self.file)

    def assertClean(self, sound: str = SOUND) -> None:
        """
        tshark finds nothing malformed and no wrong checksum.
        """
        if TSHARK is None:
            raise SkipTest("tshark is not installed")
        frames = self.frames()
        malformed = tshark(self.file, f"_ws.malformed && !({sound})", "frame.number", "_ws.col.Info")
        self.assertEqual(malformed, [])
        self.assertEqual(len(tshark(self.file, "udp.checksum.status == 1")), len(frames))
        self.assertEqual(len(tshark(self.file, "infiniband")), len(frames))


class NameTests(SynchronousTestCase):
    """
    Names of files.
    """

    def test_names(self) -> None:
        """
        C{%p} is the process id, which else goes before the ending.
        """
        pid = os.getpid()
        for name, expected in (
            ("/tmp/x.pcapng", f"/tmp/x.{pid}.pcapng"),
            ("/tmp/%p.pcapng", f"/tmp/{pid}.pcapng"),
            ("/tmp/a.b/x-%p", f"/tmp/a.b/x-{pid}"),
            ("/tmp/a.b/x", f"/tmp/a.b/x.{pid}"),
            ("x.pcapng", os.path.abspath(f"x.{pid}.pcapng")),
        ):
            self.assertEqual(fileOf(name), expected)


class WriterTests(SynchronousTestCase):
    """
    L{Writer}.
    """

    def setUp(self) -> None:
        """
        A file.
        """
        self.file = self.mktemp()
        self.now = 0x1234_56789ABC
        self.writer = Writer(self.file, lambda: self.now)
        self.addCleanup(self.writer.drop)

    def test_blocks(self) -> None:
        """
        Three kinds of blocks, as the draft has them.
        """
        self.assertEqual(self.writer.interface("lo0", "one", 1), 0)
        self.writer.packet(0, False, b"frame")
        self.writer.packet(0, True, b"four")
        self.writer.close()
        section = (
            "0a0d0d0a 30000000 4d3c2b1a 0100 0000 ffffffffffffffff"
            "0400 0a00 747769737465645f6962 0000 00000000 30000000"
        )
        interface = (
            "01000000 30000000 0100 0000 00000000 0200 0300 6c6f3000 0300 0300 6f6e6500 0900 0100 09000000"
            "00000000 30000000"
        )
        packets = (
            "06000000 34000000 00000000 34120000 bc9a7856 05000000 05000000 6672616d65 000000"
            "0200 0400 01000000 00000000 34000000"
            "06000000 30000000 00000000 34120000 bc9a7856 04000000 04000000 666f7572"
            "0200 0400 02000000 00000000 30000000"
        )
        data = Path(self.file).read_bytes()
        self.assertEqual(data.hex(), (section + interface + packets).replace(" ", ""))

    def test_records(self) -> None:
        """
        An InfiniBand packet is in an ERF record.
        """
        self.now = 1_500_000_000
        self.assertEqual(self.writer.interface("ib0", "two", pcapng.ERF), 0)
        self.writer.packet(0, True, b"packet")
        self.writer.close()
        interface = (
            "01000000 30000000 c500 0000 00000000 0200 0300 69623000 0300 0300 74776f00 0900 0100 09000000"
            "00000000 30000000"
        )
        packet = (
            "06000000 44000000 00000000 00000000 002f6859 16000000 16000000"
            "0000008001000000 15 04 0016 0000 0006 7061636b6574 0000"
            "0200 0400 02000000 00000000 44000000"
        )
        data = Path(self.file).read_bytes()
        self.assertEqual(data[48:].hex(), (interface + packet).replace(" ", ""))

    def test_mode(self) -> None:
        """
        No other user may read the file.
        """
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)

    def test_bounded(self) -> None:
        """
        The buffer has a bound, in bytes and in time.
        """
        self.writer.interface("lo0", "one", 1)
        for _ in range(pcapng.CAPTURE_BUFFER // 4096 - 1):
            self.writer.packet(0, True, bytes(4000))
        self.assertEqual(os.path.getsize(self.file), 0)
        for _ in range(3):
            self.writer.packet(0, True, bytes(4000))
        written = os.path.getsize(self.file)
        self.assertGreaterEqual(written, pcapng.CAPTURE_BUFFER)
        self.now += pcapng.CAPTURE_NANOSECONDS
        self.writer.packet(0, True, b"late")
        self.assertGreater(os.path.getsize(self.file), written)
        written = os.path.getsize(self.file)
        self.writer.packet(0, True, b"waits")
        self.assertEqual(os.path.getsize(self.file), written)
        self.writer.eager = True
        self.writer.packet(0, True, b"does not wait")
        self.assertGreater(os.path.getsize(self.file), written)


class SessionTests(CaptureTestCase):
    """
    Connections within one process: every packet is there once.
    """

    def observe(self, mtu: int = 4096) -> Observer:
        """
        @return: an observer that has processed all packets.
        """
        return Observer(mtu).see(self.frames())

    def sdp(self) -> bytes:
        """
        A whole connection.

        @return: what one side has sent.
        """
        pair = sdp_pair.Pair()
        self.addCleanup(pair.close)
        one, two = pair.connected()
        data = b"hello, " + bytes(range(256)) * 400
        one.write(b"hello, ")
        pair.settle()
        one.write(data[7:])
        two.write(b"and back")
        pair.settle()
        one.loseWriteConnection()
        pair.settle()
        two.write(b"after")
        pair.settle()
        two.loseConnection()
        pair.settle()
        self.assertEqual(two.heard.data, data)
        self.assertIn("ConnectionDone", one.heard.log)
        return data

    def test_sdp(self) -> None:
        """
        Connect, data both ways, half close, close.
        """
        data = self.sdp()
        observer = self.observe()
        self.assertEqual(observer.messages, ["REQ", "REP", "RTU"])  # In memory both DisConns end it.
        self.assertLessEqual(observer.unanswered, 1)  # A closed queue pair acknowledges nothing.
        frames = self.frames()
        first = next(frame.message for frame in frames)
        passive = next(frame.message for frame in frames if type(frame.message).__name__ == "REP")
        assert first is not None and passive is not None
        stream, message = b"", b""
        for frame in frames:
            if frame.packet.bth.destination == passive.localQPN and frame.packet.row.isRequest:  # type: ignore
                message += bytes(frame.packet.payload)
                if frame.packet.row.ends:
                    if message[0] == 0xFF:
                        stream += message[16:]
                    message = b""
        self.assertEqual(stream, data)
        self.assertTrue(all(frame.outbound for frame in frames if frame.packet.row.isRequest))

    def test_sdpTshark(self) -> None:
        """
        tshark knows the session as SDP.
        """
        self.sdp()
        self.assertClean()
        shown = "infiniband_sdp && infiniband.bth.opcode == 4"
        mids = [mid for (mid,) in tshark(self.file, shown, "infiniband_sdp.bsdh.mid")]
        self.assertIn("0xff", mids)
        self.assertEqual(mids.count("0x02"), 2)

    def rdma(self) -> None:
        """
        A connection of messages and RDMA.
        """
        pair = rdma_pair.Pair()
        self.addCleanup(pair.close)
        one, two = pair.connected()
        buffer = bytearray(range(256)) * 64
        region = two.registerMemory(buffer, rdma_pair.EVERYTHING)
        address, key = region.address, region.remoteKey
        one.write(b"message")
        done = [
            one.rdmaWrite(b"w" * 10000, address, key),
            one.rdmaRead(10001, address, key),
            one.fetchAdd(address + 16000, key, 5),
            one.rdmaRead(1, address, key),
            one.compareAndSwap(address + 16000, key, 1, 2),
        ]
        one.write(bytes(5000))
        pair.settle()
        for deferred in done:
            self.successResultOf(deferred)
        two.loseConnection()
        pair.settle()

    def test_rdma(self) -> None:
        """
        An C{ib:} session with WRITE, READ and atomics.
        """
        self.rdma()
        counts = self.observe().counts
        expected = {
            "RC WRITE First": 1,
            "RC WRITE Middle": 1,
            "RC WRITE Last": 1,
            "RC READ Request": 2,
            "RC READ Response First": 1,
            "RC READ Response Middle": 1,
            "RC READ Response Last": 1,
            "RC READ Response Only": 1,
            "RC FetchAdd": 1,
            "RC CmpSwap": 1,
            "RC Atomic Acknowledge": 2,
            "RC SEND First": 1,
            "RC SEND Last": 1,
        }
        self.assertEqual({name: counts[name] for name in expected}, expected)

    def test_rdmaTshark(self) -> None:
        """
        tshark agrees.
        """
        self.rdma()
        self.assertClean(PARTS)
        self.assertEqual(
            tshark(self.file, "infiniband.reth && infiniband.bth.opcode == 6", "infiniband.reth.dmalen"),
            [["10000"]],
        )

    def test_refused(self) -> None:
        """
        A connection that is refused, and a request that is: the NAK is there.
        """
        pair = rdma_pair.Pair()
        self.addCleanup(pair.close)
        one, _ = pair.connected()
        failed = one.rdmaRead(3, 1, 2)
        pair.settle()
        self.failureResultOf(failed)
        frames = self.frames()
        syndromes = [
            frame.packet["acknowledge"] >> 24 for frame in frames if frame.packet.row.name == "RC Acknowledge"
        ]
        self.assertIn(0x62, syndromes)
        Observer().see(frames)

    def test_closed(self) -> None:
        """
        A closed device has written everything.
        """
        pair = sdp_pair.Pair()
        pair.connected()
        pair.close()
        self.assertGreaterEqual(len(read(self.file)), 3)


class VerbsTests(CaptureTestCase, verbs_pair.VerbsTestCase):
    """
    Queue pairs of verbs over shared memory.
    """

    def test_datagrams(self) -> None:
        """
        Datagrams have their own addresses, and go to a group once.
        """
        ends = [verbs_pair.End(self, enums.IBV_QPT_UD) for _ in range(3)]
        group = "ff12:0000:0000:0000:0000:0001:0002:0003"
        for end in ends:
            end.receive(0, 1024)
            end.receive(1024, 1024)
        for end in ends[1:]:
            end.qp.attach_mcast(group, 0)
        handle = ends[0].handle(ends[1])
        for n in range(2):
            request = SendWR(
                n, opcode=enums.IBV_WR_SEND_WITH_IMM, imm_data=7, num_sge=1, sg=[ends[0].sge(0, 101 + n)]
            )
            request.send_flags = enums.IBV_SEND_SIGNALED
            request.set_wr_ud(handle, ends[1].qp.qp_num, verbs_pair.QKEY)
            ends[0].qp.post_send(request)
        self.wait(ends[0].cq, 2)
        self.wait(ends[1].cq, 2)
        vector = AHAttr(is_global=1, gr=GlobalRoute(GID(group)))
        for _ in range(2):
            request = SendWR(opcode=enums.IBV_WR_SEND, num_sge=1, sg=[ends[0].sge(0, 200)])
            request.set_wr_ud(AH(ends[0].pd, attr=vector), 0xFFFFFF, verbs_pair.QKEY)
            ends[0].qp.post_send(request)
            self.wait(ends[2].cq)
        observer = Observer().see(self.frames())
        self.assertEqual(observer.counts, {"UD SEND Only Immediate": 2, "UD SEND Only": 2})
        self.assertEqual(self.frames()[2].data[:6].hex(), "333300020003")
        self.assertEqual(self.frames()[2].packet.bth.destination, 0xFFFFFF)
        packet = self.frames()[1].packet
        self.assertEqual(packet.bth.destination, ends[1].qp.qp_num)
        self.assertEqual(packet["source"], ends[0].qp.qp_num)
        self.assertEqual(packet["queueKey"], verbs_pair.QKEY)
        self.assertEqual(len(packet.payload), 102)
        if TSHARK is not None:
            self.assertEqual(tshark(self.file, "_ws.malformed || udp.checksum.status == 0"), [])
            self.assertEqual(len(tshark(self.file, "infiniband.deth")), 4)

    def test_connected(self) -> None:
        """
        The path MTU and the sequence numbers are those of the queue pairs; bytes that a record
        refers to are in the packets.
        """
        a, b = (verbs_pair.End(self, size=1 << 17) for _ in range(2))
        attributes = []
        for one, other, mine, theirs in ((a, b, 100, 0xFFFFFF), (b, a, 0xFFFFFF, 100)):
            attr: QPAttr = one.attr(other)
            attr.path_mtu, attr.sq_psn, attr.rq_psn = enums.IBV_MTU_1024, mine, theirs
            attributes.append(attr)
        a.qp.to_rts(attributes[0])
        b.qp.to_rts(attributes[1])
        a.mr.write(bytes(range(256)) * 256, 1 << 16)
        request = a.send(0, 1 << 16, opcode=enums.IBV_WR_RDMA_WRITE, send_flags=enums.IBV_SEND_SIGNALED)
        request.set_wr_rdma(b.mr.rkey, b.mr.buf)
        a.qp.post_send(request)
        self.wait(a.cq)
        request = b.send(0, 1 << 16, opcode=enums.IBV_WR_RDMA_READ, send_flags=enums.IBV_SEND_SIGNALED)
        request.set_wr_rdma(a.mr.rkey, a.mr.buf)
        b.qp.post_send(request)
        self.wait(b.cq)
        frames = self.frames()
        observer = Observer(1024).see(frames)
        self.assertEqual(observer.counts["RC WRITE Middle"], 62)
        self.assertEqual(observer.counts["RC READ Response Middle"], 62)
        self.assertEqual([frame.packet.bth.psn for frame in frames[:3]], [100, 101, 102])
        request_ = next(frame.packet for frame in frames if frame.packet.row.name == "RC READ Request")
        self.assertEqual(request_.bth.psn, 0xFFFFFF)
        for kind in ("RC WRITE", "RC READ Response"):
            packets = [frame.packet for frame in frames if frame.packet.row.name.startswith(kind)]
            found = b"".join(bytes(packet.payload) for packet in packets)
            self.assertEqual(found, bytes(range(256)) * 256)

    def test_receiverNotReady(self) -> None:
        """
        A refusal for want of a receive is a NAK, and the message comes again.
        """
        a, b = verbs_pair.connected(self)
        a.qp.post_send(a.send(send_flags=enums.IBV_SEND_SIGNALED))
        (device,) = (each for each in hub.devices if a.qp.qp_num in each.queuePairs)
        while not device.statistics()["rcvd_rnr_err"]:
            hub.drive()
        b.receive()
        self.wait(a.cq)
        observer = Observer().see(self.frames())
        (stream,) = observer.streams.values()
        self.assertGreaterEqual(stream.repeats, 1)
        self.assertEqual((stream.acknowledged, stream.msn, observer.unanswered), (1, 1, 0))


class TroubleTests(CaptureTestCase):
    """
    Errors of the file do not affect connections.
    """

    def exchange(self, **more: Any) -> sdp_pair.Pair:
        """
        Data goes over a connection.
        """
        pair = sdp_pair.Pair()
        self.addCleanup(pair.close)
        one, two = pair.connected()
        one.write(b"x" * 100000)
        pair.settle()
        self.assertEqual(len(two.heard.data), 100000)
        return pair

    def test_none(self) -> None:
        """
        Without the variable, or with an empty name, there is no file and the paths are what
        they always are.
        """
        with mock.patch.dict(os.environ):
            del os.environ["TWISTED_IB_CAPTURE"]
            devices = [Device("lo0", fabric=LoopbackFabric)]
        devices.append(Device("lo0", fabric=LoopbackFabric, capture=""))
        for device in devices:
            self.addCleanup(device.close)
            self.assertIsNone(device.capture)
            self.assertIs(device.fabric.pathClass, LoopbackPath)
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_argument(self) -> None:
        """
        A device can be given a capture, by a name or an open one.
        """
        other = Capture(str(self.directory / "other"))
        self.addCleanup(other.close)
        for argument, expected in ((str(self.directory / "y-%p"), f"y-{os.getpid()}"), (other, "other")):
            device = Device("lo0", fabric=LoopbackFabric, capture=argument)
            self.addCleanup(device.close)
            assert device.capture is not None
            self.assertEqual(os.path.basename(device.capture.path), expected)

    def test_unwritable(self) -> None:
        """
        A file that cannot be opened causes a warning; the device works.
        """
        with mock.patch.dict(os.environ, TWISTED_IB_CAPTURE="/nowhere/at/all.pcapng"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.exchange()
        self.assertIn("no capture in /nowhere/at/all", str(caught[0].message))

    def test_full(self) -> None:
        """
        A disk that is full ends the capture with a warning, once; the connection goes on.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with mock.patch("os.write", side_effect=self.write):
                pair = self.exchange()
                pair.a.device.capture.flush()
                self.exchange()
        self.assertEqual(read(self.file), [])
        self.exchange()  # There is room again, but no beginning.
        self.assertEqual(self.frames(), [])
        ours = [str(warning.message) for warning in caught if "capture" in str(warning.message)]
        self.assertEqual(len(ours), 1, ours)
        self.assertIn("No space left", ours[0])
        assert pair.a.device.capture is not None
        self.assertTrue(pair.a.device.capture.closed)
        files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        self.assertNotIn(str(self.file), files)

    _write = staticmethod(os.write)

    def write(self, fd: int, data: Any) -> int:
        """
        A disk that is full, and everything else.
        """
        if os.readlink(f"/proc/self/fd/{fd}") == str(self.file):
            raise OSError(28, "No space left on device")
        return self._write(fd, data)

    def test_fault(self) -> None:
        """
        So does a fault in showing packets.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with mock.patch("twisted_ib.hca.capture.flow.Flow.request", side_effect=KeyError("oops")):
                self.exchange()
        self.assertIn("oops", str(caught[0].message))


class ProcessTests(SynchronousTestCase):
    """
    Processes.
    """

    script = """
import os, sys
from twisted_ib.hca import Device
from twisted_ib.hca.fabric.loopback.loopback import LoopbackFabric
device = Device("parent", fabric=LoopbackFabric)
if os.fork():
    assert os.wait()[1] == 0
    Device("late", fabric=LoopbackFabric)
else:
    assert device.capture.closed
    device.capture.flush()
    Device("child", fabric=LoopbackFabric)
"""

    def test_forked(self) -> None:
        """
        A forked child writes a file of its own, and nothing into its parent's; both are
        complete when the processes end, whether devices were closed or not.
        """
        directory = tempfile.mkdtemp()
        environment = {**os.environ, "TWISTED_IB_CAPTURE": os.path.join(directory, "x.pcapng")}
        environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
        subprocess.run([sys.executable, "-c", self.script], env=environment, check=True, timeout=HANG_SECONDS)
        files = sorted(Path(directory).iterdir(), key=lambda file: int(file.name.split(".")[1]))
        names = []
        for file in files:
            self.assertEqual(read(file), [])
            data = file.read_bytes()
            names.append([name for name in (b"parent", b"late", b"child") if name in data])
            file.unlink()
        os.rmdir(directory)
        self.assertEqual(sorted(names), [[b"child"], [b"parent", b"late"]])


class StrangerTests(CaptureTestCase):
    """
    Two HCAs with a capture each, as if they were processes, and records of all kinds between
    them.
    """

    def setUp(self) -> None:
        """
        Queue pairs that take what comes.
        """
        super().setUp()
        self.addCleanup(lambda: [each.close() for each in (*self.devices, *self.captures)])
        self.begin()

    def begin(self) -> None:
        """
        Two HCAs without a connection.
        """
        self.captures = [Capture(str(self.directory / name)) for name in ("one", "two")]
        neighbours = self.neighbours = Neighbours()
        self.devices = [
            Device("lo0", fabric=lambda *a: LoopbackFabric(*a, neighbours), capture=found)
            for found in self.captures
        ]
        one, two = self.devices
        user = User()
        one.reach(guidGID(two.guid), user)
        self.path = user.path
        self.back = self.path.other
        self.takers = Taker(self.path, 100, 200), Taker(self.back, 200, 100)

    def turn(self) -> None:
        """
        Everything arrives.
        """
        for _ in range(3):
            for device in self.devices:
                device.progress()

    def test_same(self) -> None:
        """
        Both files show the same packets: a message, its repetition after a refusal, an answer.
        """
        one, two = self.takers
        two.answers.extend([0, RNR | 3])
        for data in (b"first", b"second", b"dropped"):
            one.post(data)
        self.turn()
        one.post(b"", RESUME)
        one.post(RETH.pack(1, 2, 5000), READ_REQUEST)
        self.turn()
        two.post(bytes(5000), READ_RESPONSE_ONLY)
        self.turn()
        shown = []
        for found in self.captures:
            found.flush()
            frames = read(found.path)
            Observer().see(frames)
            shown.append([(frame.packet, frame.outbound) for frame in frames])
        names = [packet.row.name for packet, _ in shown[1]]
        self.assertEqual(
            names,
            [
                "RC SEND Only",
                "RC Acknowledge",
                "RC SEND Only",
                "RC Acknowledge",
                "RC SEND Only",
                "RC READ Request",
                "RC READ Response First",
                "RC READ Response Last",
            ],
        )
        self.assertEqual(shown[1][3][0]["acknowledge"] >> 24, RNR | 3)
        self.assertEqual(shown[1][5][0].bth.psn, 1)
        order = repr
        mine = sorted(((packet, not outbound) for packet, outbound in shown[0]), key=order)
        self.assertEqual(mine, sorted(shown[1], key=order))

    def test_agents(self) -> None:
        """
        MADs of other classes than connection management are shown as they are, request and response.
        """
        one, two = self.devices
        for kind, number in ((EchoAgent, 1), (NodeAgent, 0)):
            agent, _ = kind(one), kind(two)
            agent.agent.send(AddressVector(two.gid), agent.question(), lambda response: None)
            self.turn()
            for found in self.captures:
                found.flush()
                packets = [frame.packet for frame in read(found.path)[-2:]]
                self.assertEqual([packet.bth.destination for packet in packets], [number] * 2)
                asked, answered = [decodeMAD(packet.payload) for packet in packets]
                self.assertEqual(evolve(asked, transaction=0).pack(), agent.question().pack())
                self.assertEqual((answered.method, answered.transaction), (GET_RESPONSE, asked.transaction))

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 255),
                st.sampled_from([0, 1, 100, 200, 300]),
                st.one_of(
                    st.binary(max_size=64),
                    st.integers(0, 20000).map(bytes),
                    st.sampled_from([RETH.pack(1, 2, 1 << 31), REFUSAL.pack(RNR, 200, 0), bytes(236)]),
                    st.sampled_from([kind.attribute for kind in MESSAGES]).flatmap(
                        lambda attribute: st.binary(min_size=234, max_size=234).map(
                            lambda body: attribute.to_bytes(2, "big") + body
                        )
                    ),
                ),
                st.booleans(),
                st.sampled_from([0, 0, 0, RNR, 0x61, 0x40]),
            ),
            max_size=30,
        )
    )
    @settings(deadline=None, max_examples=40)
    def test_anything(self, records: list[tuple[int, int, bytes, bool, int]]) -> None:
        """
        With any records of a peer the files contain valid packets, and the connections go on.
        """
        for each in (*self.devices, *self.captures):
            each.close()
        self.begin()
        for taker in self.takers:
            taker.delivered = self.answerTo  # type: ignore[method-assign]
        for opcode, number, data, back, self.answer in records:
            (self.back if back else self.path).post(opcode << 24 | number, b"", data, len(data))
            self.turn()
        for found in self.captures:
            self.assertFalse(found.closed)
            found.flush()
            read(found.path)

    def test_absent(self) -> None:
        """
        A request to a queue pair that does not exist yet has no answer, and comes again with the same
        number.
        """
        one = Taker(self.path, 101, 300)
        one.post(b"early")
        self.turn()
        one.post(b"dropped")
        two = Taker(self.back, 300, 101)
        self.turn()
        one.post(b"", RESUME)
        one.post(b"early")
        self.turn()
        self.assertEqual(two.records, [b"early"])
        for found in self.captures:
            found.flush()
            shown = [(frame.packet.row.name, frame.packet.bth.psn) for frame in read(found.path)]
            expected = [("RC SEND Only", n) for n in (0, 1, 0)]
            self.assertEqual(shown, [*expected, ("RC Acknowledge", 0)])

    def test_dropped(self) -> None:
        """
        A dropped request is not acknowledged, though the refused one before it is no packet.
        """
        one, two = self.takers
        two.answers.append(RNR)
        one.post(b"no RETH", WRITE_ONLY)
        one.post(b"dropped")
        self.turn()
        self.captures[1].flush()
        names = [frame.packet.row.name for frame in read(self.captures[1].path)]
        self.assertEqual(names, ["RC SEND Only"])

    def test_again(self) -> None:
        """
        Another queue pair of the same number begins anew; nothing is kept of the old one.
        """
        one, two = self.takers
        one.post(b"first")
        self.turn()
        for path, taker in ((self.path, one), (self.back, two)):
            path.unbind(taker)
            self.assertEqual(path.shown._mine, {})
        self.turn()
        Taker(self.back, 200, 100)
        Taker(self.path, 100, 200).post(b"first")
        self.turn()
        for found in self.captures:
            found.flush()
            self.assertEqual([frame.packet.bth.psn for frame in read(found.path)], [0, 0, 0, 0])

    def test_attributes(self) -> None:
        """
        A receiver knows the sequence numbers that it expects.
        """
        attributes = {"rq_psn": 77, "sq_psn": 5, "path_mtu": 1}
        with mock.patch.dict(self.devices[1].queuePairs, {200: SimpleNamespace(attributes=attributes)}):
            self.takers[0].post(bytes(300))
            self.turn()
        self.captures[1].flush()
        psns = [frame.packet.bth.psn for frame in read(self.captures[1].path)]
        self.assertEqual(psns, [77, 78, 78])

    def test_bounds(self) -> None:
        """
        Of queue pairs that are not there a bounded number is remembered, and of what the
        communication manager says.
        """
        with mock.patch.multiple(captures, CAPTURE_ENDED_FLOWS=5, CAPTURE_ENDS=7):
            for number in range(20):
                self.path.post(SEND_ONLY << 24 | 1000 + number, b"", b"x", 1)
                self.path.sendManagement(REQ.attribute, REQ(number + 1, localQPN=number).pack())
                self.turn()
        found = self.captures[1]
        self.assertEqual((len(found.flows), len(found._ended)), (5, 5))
        self.assertEqual((len(found._ends), len(found._connections)), (7, 7))

    def test_strangers(self) -> None:
        """
        Only a peer of this process can be one that writes into the same capture, whatever GUID
        it says.
        """
        trace = self.path.shown.trace
        guid = next(iter(trace.capture.guids))
        for pid, isShown in ((os.getpid(), False), (os.getpid() + 1, True)):
            path = SimpleNamespace(peer=PeerIdentity(guid, pid, 0, ""), taker=None)
            PathTrace(trace, path)
            self.assertIs(path.taker is not None, isShown)

    def test_groups(self) -> None:
        """
        A multicast datagram, posted to each member of a group, is shown once, each time that it is sent.
        """
        paths = [self.path]
        device = Device("lo0", fabric=lambda *a: LoopbackFabric(*a, self.neighbours), capture="")
        self.addCleanup(device.close)
        user = User()
        self.devices[0].reach(guidGID(device.guid), user)
        paths.append(user.path)
        grh = packGRH(0, 0, 28, 1, guidGID(self.devices[0].guid), 0xFF12 << 112 | 1)
        for _ in range(3):
            for path in paths:
                path.post(UD_SEND_ONLY << 24 | 0xFFFFFF, grh + DETH.pack(1, 100), b"data", 4)
        self.captures[0].flush()
        self.assertEqual([frame.packet.bth.psn for frame in read(self.captures[0].path)], [0, 1, 2])

    def test_withdrawn(self) -> None:
        """
        Memory that is not offered any more is forgotten.
        """
        segment = SimpleNamespace(map=b"memory")
        with mock.patch.object(LoopbackPath, "offer", lambda path, segment: 3):
            self.assertEqual(self.path.offer(segment), 3)
        self.assertEqual(self.path.shown.segments, {3: segment})
        self.path.withdraw(segment)
        self.assertEqual(self.path.shown.segments, {})

    def answerTo(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Take a record, or refuse a request.
        """
        return 0 if opcode in RESPONSES else self.answer

    def test_addresses(self) -> None:
        """
        A connection has the addresses that its REQ says, also if they are IPv4.
        """
        gids = [gidOf("192.0.2.1"), gidOf("192.0.2.2")]
        request = REQ(1, localQPN=100, startingPSN=7, primaryPath=Way(localGID=gids[0], remoteGID=gids[1]))
        self.path.sendManagement(REQ.attribute, request.pack())
        self.turn()
        self.back.sendManagement(REP.attribute, REP(2, 1, localQPN=200, startingPSN=9).pack())
        self.turn()
        self.path.sendManagement(RTU.attribute, RTU(1, 2).pack())
        self.takers[0].post(b"data of twenty bytes")
        self.takers[1].post(b"data of twenty bytes")
        self.turn()
        for found in self.captures:
            found.flush()
            frames = read(found.path)
            Observer().see(frames)
            self.assertEqual({frame.data[14] for frame in frames}, {0x45})
            psns = {frame.packet.bth.psn for frame in frames if frame.packet.row.name == "RC SEND Only"}
            self.assertEqual(psns, {7, 9})
            self.assertEqual(sum(frame.packet.row.name.startswith("RC") for frame in frames), 4)
            if TSHARK is not None:
                addresses = tshark(found.path, "ip", "ip.src", "ip.dst", "ip.checksum.status")
                first, second = "192.0.2.1", "192.0.2.2"
                expected = {(first, second, "1"), (second, first, "1")}
                self.assertEqual({tuple(row) for row in addresses}, expected)
