"""
Tests of L{twisted_ib.verbs.c.rsocket.stream}: sockets of one process.
"""

from __future__ import annotations

import ctypes
import errno
from threading import Thread
from unittest import mock

from benchmarks.counting import steps
from tests.support.calls import requireReplaceable
from tests.support.waiting import HANG_SECONDS
from tests.test_costs import requireBytecodes
from tests.verbs.c.rsocket.case import BUFFER, RSocketTestCase
from tests.verbs.pyverbs.cm.case import param
from twisted_ib import limits
from twisted_ib.errors import QueuePairError
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.rsocket import stream
from twisted_ib.verbs.c.rsocket.protocol import DEPTH, Region, Stream, Way
from twisted_ib.verbs.c.rsocket.stream import Phase, RSocket
from twisted_ib.verbs.core import progress
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    CMID,
    CQ,
    QP,
    AddrInfo,
    CMEventChannel,
    ConnParam,
    PyverbsRDMAError,
    QPAttr,
    QPCap,
    QPInitAttr,
    enums,
)
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address

#: Of L{RSocket.progress} where nothing has come; it may only fall.
VAIN_BYTECODES = 30
#: Of 64 octets that are written, and of those that come and are read: they may only fall.
MOST_BYTECODES = {"write": 750, "read": 1678}
_E = enums.rdma_cm_event_type


class RSocketTests(RSocketTestCase):
    """
    L{RSocket}.
    """

    def test_data(self) -> None:
        """
        Octets both ways, many times the buffers; then the end.
        """
        self.exchange(self.pair())

    def test_doubles(self) -> None:
        """
        The first write of a call is short, so that the peer reads while the rest is copied, and each one
        behind it is twice as long, up to a bound.
        """
        requireReplaceable(RSocket, "_post")
        self.buffer = 1 << 19
        active, _ = self.pair()
        posted: list[int] = []
        self.patch(
            RSocket, "_post", lambda socket, write: posted.append(sum(each[1] for each in write.pieces))
        )
        with hub:
            self.assertEqual(active.write(memoryview(bytes(1 << 18))), 1 << 18)
        self.assertEqual(posted, [2048, 4096, 8192, 16384, 32768, 65536, 65536, 65536, 2048])

    def test_smallerBuffers(self) -> None:
        """
        The sizes of buffers are those of the time of the connection: smaller ones come too late.
        """
        self.resized(BUFFER // 2)

    def test_largerBuffers(self) -> None:
        """
        Larger ones come too late, too.
        """
        self.resized(2 * BUFFER)

    def resized(self, size: int) -> None:
        """
        Set the sizes of the buffers of a connection, and use it.
        """
        sides = self.pair()
        for each in sides:
            each.sendBytes = each.receiveBytes = size
        self.exchange(sides)

    def test_mapFails(self) -> None:
        """
        Memory that the peer could not be told of is not mapped: no region is left, and its entry of the
        peer's map is there for the next.
        """
        requireReplaceable(RSocket, "_post")
        listener, address = self.listening()
        listener.maps = 1
        active, _ = self.connected(listener, address)
        memory = bytearray(64)
        place = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory)
        regions = active.cmid.device.memory.regions
        before = len(regions)
        with hub:
            with mock.patch.object(RSocket, "_post", side_effect=QueuePairError("closed")):
                self.assertRaises(QueuePairError, active.map, *place, True, 0)
            self.assertEqual(len(regions), before)
            self.assertRaises(HandleError, active.unmap, *place)
            self.assertEqual(active.map(*place, True, 7), 7)
            active.unmap(*place)

    def test_edges(self) -> None:
        """
        Room that completions make is an edge, also if the peer says nothing.
        """
        listener, address = self.listening()
        listener.receiveBytes = 4 * BUFFER
        active, _ = self.connected(listener, address)
        with hub:
            while active.write(memoryview(bytes(BUFFER))):
                pass
        before = active.edges

        def hasRoom() -> bool:
            active.progress()
            return active.canWrite

        self.assertTrue(hub.wait(hasRoom, HANG_SECONDS))
        self.assertGreater(active.edges, before)

    def test_eventBehindEnd(self) -> None:
        """
        What the communication manager says of a connection that is over is one edge, as each of its events
        is: the end was one of its own.
        """
        active, passive = self.pair()
        self.close(passive)

        def over() -> bool:
            active.progress()
            return active.canRead

        self.assertTrue(hub.wait(over, HANG_SECONDS))
        with hub:
            # No other event, and no completion, is there.
            active.progress()
            before = active.edges
            assert active.cmid._id is not None
            active.cmid._id.report(_E.RDMA_CM_EVENT_TIMEWAIT_EXIT)
            active.progress()
        self.assertEqual(active.edges - before, 1)

    def test_canWriteAt(self) -> None:
        """
        A socket writes into mapped memory while its buffer has room; once it is shut it has an error to say.
        """
        active, _ = self.pair()
        assert active._stream is not None
        with hub:
            found = [active.canWriteAt]
            self.patch(active._stream, "_room", 0)
            found.append(active.canWriteAt)
            active.shutdown(Way.WRITE)
            self.assertEqual([*found, active.canWriteAt], [True, False, True])

    def test_ownMemory(self) -> None:
        """
        The kernel is not asked whether a socket's own memory is there.
        """
        for each in self.pair():
            self.assertEqual(each._receiving.region._core.sure, BUFFER)

    def test_undriven(self) -> None:
        """
        While there is room, and while there is something to read, nothing is looked for.
        """
        active, passive = self.pair()
        piece = memoryview(bytearray(8))
        with hub:
            active.write(memoryview(b"octets twice"))

        def arrived() -> bool:
            passive.progress()
            return passive.canRead

        self.assertTrue(hub.wait(arrived, HANG_SECONDS))
        # No other thread drives while this one has the hub.
        with hub:
            before = hub.drives
            self.assertTrue(active.canWrite)
            active.write(memoryview(b"more"))
            self.assertEqual([passive.read(piece), passive.canRead, passive.read(piece)], [8, True, 4])
            self.progress(active, passive)
            self.assertEqual(hub.drives, before)

    def test_look(self) -> None:
        """
        A program that polls drives the devices once a look, and what has come is there at once.
        """
        active, passive = self.pair()
        with hub:
            passive.look()
            before = hub.drives
            passive.look()
            self.assertEqual((hub.drives - before, passive.canRead), (1, False))
            active.write(memoryview(b"octets"))
            # A path that sleeps is heard of by a look at descriptors, which is now due.
            hub._attended = 0.0
            passive.look()
            self.assertEqual((hub.drives - before, passive.canRead), (2, True))

    def test_progressInVain(self) -> None:
        """
        Where nothing has come progress costs few bytecodes, and asks for no messages to the peer.
        """
        requireReplaceable(Stream, "updates")
        _, passive = self.pair()
        # No other thread drives while this one has the hub.
        with hub:
            passive.progress()
            with mock.patch.object(Stream, "updates", return_value=[]) as updates:
                passive.progress()
            self.assertFalse(updates.called)
            self.assertLessEqual(steps(passive.progress)["bytecodes"], VAIN_BYTECODES)

    def test_steps(self) -> None:
        """
        What a short message takes, in bytecodes.
        """
        requireBytecodes()
        active, passive = self.pair()
        octets, target, found = memoryview(bytes(64)), memoryview(bytearray(64)), {}
        taken: list[int] = []

        def read() -> None:
            passive.look()
            taken.append(passive.read(target))

        with hub:
            # A path that sleeps is heard of by a look at descriptors; there is none before completions are
            # taken that are there already, and none below.
            active.write(octets)
            for _ in range(2):
                hub._attended = 0.0
                passive.look()
            read()
            for name in ("_ATTENTION", "_BUSY_ATTENTION"):
                self.patch(progress, name, float("inf"))
            for _ in range(2):
                found["write"] = steps(lambda: active.write(octets))["bytecodes"]
                found["read"] = steps(read)["bytecodes"]
                active.look()
        self.assertEqual(taken, [64] * 3)
        for name, count in found.items():
            self.assertLessEqual(count, MOST_BYTECODES[name])

    def standing(self, socket: RSocket) -> int:
        """
        How many receives of a socket are posted.
        """
        work = socket._work
        return work.capabilities.receives - work.responder.room()

    def test_receives(self) -> None:
        """
        Receives are posted together, and there are always as many as the peer may send messages.
        """
        active, passive = self.pair()
        assert active._stream is not None
        target, found = memoryview(bytearray(DEPTH)), []
        with hub:
            for count in range(DEPTH // 2 + 3):
                active.write(memoryview(b"o"))
                while passive.waiting <= count:
                    hub._attended = 0.0
                    passive.look()
                found.append(self.standing(passive))
                active.look()
            before = active._stream._credits
            self.assertEqual(passive.read(target), DEPTH // 2 + 3)
            active.look()
        self.assertEqual(active._stream._credits - before, DEPTH // 2 + 3)
        self.assertEqual(sorted(set(found)), list(range(401, 417)))

    def test_creditsTakeReceives(self) -> None:
        """
        Messages of credits, which use none, take receives: a peer that keeps to its credits finds one for
        each message nevertheless.
        """
        active, passive = self.pair()
        piece, octet = memoryview(bytearray(BUFFER // 2)), memoryview(b"o")
        counters = active.cmid.device.statistics
        with hub:
            while active._unposted < 15:
                active.write(piece)
                hub._attended = 0.0
                passive.look()
                passive.read(piece)
                active.look()
            self.assertEqual(self.standing(active), 401)
            done = 0
            while done < 384 and not counters()["rcvd_rnr_err"]:
                done += passive.write(octet)
                hub._attended = 0.0
                passive.look()
        self.assertEqual((done, counters()["rcvd_rnr_err"]), (384, 0))

    def test_earlyData(self) -> None:
        """
        What comes before the connection is established is told to the peer by that event.
        """
        requireReplaceable(RSocket, "_post")
        active, passive = self.pair()
        assert passive._stream is not None
        with hub:
            passive.phase = Phase.CONNECTING
            active.write(memoryview(bytes(BUFFER // 2)))
        target = memoryview(bytearray(BUFFER))

        def arrived() -> bool:
            passive.progress()
            return passive.canRead

        self.assertTrue(hub.wait(arrived, HANG_SECONDS))
        with hub:
            # Read as by a program that has no connection yet: nothing may be sent.
            passive._stream.read(len(target))
            event = mock.MagicMock(event_type=_E.RDMA_CM_EVENT_ESTABLISHED)
            event.__enter__.return_value = event
            waiting = passive._reports._waiting
            waiting.append(event)
            passive.channel.get_cm_event = waiting.popleft  # type: ignore[assignment, method-assign]
            with mock.patch.object(passive, "_post", wraps=passive._post) as post:
                passive.progress()
        self.assertEqual((passive.phase, len(post.call_args.args)), (Phase.CONNECTED, 1))

    def test_finishIsBounded(self) -> None:
        """
        A peer has no receives posted, and so asks for another try for ever: a socket is closed all the same.
        """
        requireReplaceable(RSocket, "_receive")
        with mock.patch.object(RSocket, "_receive"):
            active, passive = self.pair()
        with mock.patch.object(stream, "LINGER_SECONDS", 0.05):
            finishing = Thread(target=active.finish, daemon=True)
            finishing.start()
            finishing.join(HANG_SECONDS)
        self.assertFalse(finishing.is_alive())
        self.assertEqual(active.phase, Phase.OVER)
        self.assertTrue(hub.wait(lambda: passive.channel.pending, HANG_SECONDS))

    def test_twice(self) -> None:
        """
        A second connect says whether the first is done, as connect(2).
        """
        listener, address = self.listening()
        for made, number in (
            (self.connecting(address), errno.EALREADY),
            (self.connected(*self.listening())[0], errno.EISCONN),
        ):
            with hub, self.assertRaises(HandleError) as caught:
                made.connect(None, address)
            self.assertEqual(caught.exception.number, number)
        self.assertEqual(listener.phase, Phase.LISTENING)
        with hub:
            listener.listen(5)
        self.assertEqual(listener.phase, Phase.LISTENING)

    def test_backlog(self) -> None:
        """
        A listener answers as many requests as its backlog has room for; the next once one is accepted.
        """
        listener, address = self.listening()
        actives = [self.connecting(address) for _ in range(2)]
        established: list[RSocket] = []

        def progressed(count: int) -> bool:
            self.progress(listener, *actives)
            established[:] = [each for each in actives if each.phase is Phase.CONNECTED]
            return len(established) >= count and (count < 2 or listener.canAccept)

        self.assertTrue(hub.wait(lambda: progressed(1), HANG_SECONDS))
        # The other request is there, too, or comes now.
        hub.wait(lambda: progressed(2) or listener.channel.pending, HANG_SECONDS)
        self.assertEqual(len(established), 1)
        self.accepted(listener)
        self.assertFalse(listener.canAccept)
        self.assertTrue(hub.wait(lambda: progressed(2), HANG_SECONDS))
        self.accepted(listener)

    def answered(self, listener: RSocket, address: Address) -> tuple[CMID, CMEventChannel]:
        """
        A peer that has a listener's answer, and has not said that it is ready to receive: its queue pair is
        its own.
        """
        channel = CMEventChannel()
        self.addCleanup(channel.close)
        info = AddrInfo()
        info.destination = address
        made = CMID(channel, port_space=enums.RDMA_PS_TCP, device=self.device)
        self.addCleanup(made.close)
        made.resolve_addr(info)
        channel.get_cm_event().ack_cm_event()
        made.resolve_route()
        channel.get_cm_event().ack_cm_event()
        cq = CQ(made.context, 1)
        self.addCleanup(cq.close)
        qp = QP(made.pd, QPInitAttr(enums.IBV_QPT_RC, None, cq, cq, None, QPCap(), 1), QPAttr())
        self.addCleanup(qp.close)
        made.connect(param(Stream(*[Region(0, 0, BUFFER)] * 2).greeting(), qp_num=qp.qp_num))

        def answered() -> bool:
            self.progress(listener)
            return channel.pending

        self.assertTrue(hub.wait(answered, HANG_SECONDS))
        with channel.get_cm_event() as event:
            self.assertEqual(event.event_type, _E.RDMA_CM_EVENT_CONNECT_RESPONSE)
        return made, channel

    def established(self, listener: RSocket) -> RSocket:
        """
        The connection of a listener whose peer has said that it is ready to receive.
        """

        def established() -> bool:
            self.progress(listener)
            return listener.canAccept

        self.assertTrue(hub.wait(established, HANG_SECONDS))
        return self.accepted(listener)

    def test_established(self) -> None:
        """
        A listener has a connection, and writes on it, when the peer has said that it is ready to receive
        (IBTA vol. 1 12.9.7), not when the listener has answered.
        """
        requireReplaceable(RSocket, "_post")
        listener, address = self.listening()
        posted: list[object] = []
        patched = self.patch(RSocket, "_post", lambda socket, *writes: posted.extend(writes))
        active, _ = self.answered(listener, address)
        self.progress(listener)
        self.assertEqual((listener.canAccept, posted), (False, []))
        patched.restore()
        active.establish()
        self.assertIs(self.established(listener).phase, Phase.CONNECTED)

    def test_neverEstablished(self) -> None:
        """
        A peer that gives up instead leaves its place in the backlog to the next.
        """
        listener, address = self.listening()
        active, _ = self.answered(listener, address)
        active.close()
        self.connected(listener, address)

    def test_givesWay(self) -> None:
        """
        A peer that never says that it is ready leaves its place to the next, after a time, and hears of it.
        """
        listener, address = self.listening()
        with mock.patch.object(stream, "ESTABLISH_SECONDS", 0.0):
            _, channel = self.answered(listener, address)
        self.connected(listener, address)
        self.assertTrue(channel.pending)

    def test_keepsPlace(self) -> None:
        """
        Until then it does not.
        """
        self.patch(stream, "ESTABLISH_SECONDS", 3600.0)
        listener, address = self.listening()
        peer, _ = self.answered(listener, address)
        active = self.connecting(address)

        def waits() -> bool:
            self.progress(listener, active)
            return listener.channel.pending

        self.assertTrue(hub.wait(waits, HANG_SECONDS))
        self.progress(listener, active)
        self.assertEqual((listener.canAccept, active.phase), (False, Phase.CONNECTING))
        peer.establish()
        self.established(listener)

    def test_closedEarly(self) -> None:
        """
        The peer of a connection that is not established hears that its listener is closed.
        """
        listener, address = self.listening()
        _, channel = self.answered(listener, address)
        self.close(listener)
        self.assertTrue(hub.wait(lambda: channel.pending, HANG_SECONDS))
        event = channel.get_cm_event()
        self.addCleanup(event.close)
        self.assertIn(event.event_type, (_E.RDMA_CM_EVENT_REJECTED, _E.RDMA_CM_EVENT_DISCONNECTED))

    def test_noDescriptor(self) -> None:
        """
        A request that comes while no descriptor is free is rejected; the listener stays.
        """
        listener, address = self.listening()
        active = self.connecting(address)

        def full() -> CMEventChannel:
            raise PyverbsRDMAError("Failed to create an event channel", errno.EMFILE)

        def over() -> bool:
            self.progress(listener, active)
            return active.phase is Phase.OVER

        patched = self.patch(stream, "CMEventChannel", full)
        self.assertTrue(hub.wait(over, HANG_SECONDS))
        self.assertEqual((active.error, listener.phase), (errno.ECONNREFUSED, Phase.LISTENING))
        patched.restore()
        self.connected(listener, address)

    def test_noGreeting(self) -> None:
        """
        A peer that accepts without a greeting is no rsocket.  The request asks for no READs and all retries.
        """
        channel = CMEventChannel()
        self.addCleanup(channel.close)
        listener = CMID(channel, port_space=enums.RDMA_PS_TCP, device=self.device)
        self.addCleanup(listener.close)
        info = AddrInfo()
        info.source = Address("127.0.0.1", 0)
        listener.bind_addr(info)
        listener.listen(1)
        found = listener.local_addr
        assert found is not None
        active = self.connecting(Address(*found))
        asked: list[ConnParam | None] = []

        def over() -> bool:
            active.progress()
            if channel.pending:
                with channel.get_cm_event() as event:
                    if event.event_type == enums.rdma_cm_event_type.RDMA_CM_EVENT_CONNECT_REQUEST:
                        asked.append(event.conn_param)
                        self.answer(CMID(event, listen_id=listener))
            return active.phase not in (Phase.NEW, Phase.CONNECTING)

        self.assertTrue(hub.wait(over, HANG_SECONDS))
        self.assertEqual(active.phase, Phase.OVER)
        self.assertTrue(active.error)
        (its,) = asked
        assert its is not None
        self.assertEqual((its.resources, its.depth, its.flow_control), (0, 0, 1))
        self.assertEqual((its.retry, its.rnr_retry), (7, 7))

    def answer(self, child: CMID) -> None:
        """
        Accept a request without private data.
        """
        self.addCleanup(child.close)
        child.create_qp(QPInitAttr(enums.IBV_QPT_RC, cap=QPCap(1, 1, 1, 1, 0)))
        child.accept()

    def test_closed(self) -> None:
        """
        A thread may still look at a socket that another has closed: it is at its end.
        """
        active, _ = self.pair()
        self.close(active)
        with hub:
            active.progress()
            self.assertTrue(active.canRead and active.canWrite)
            self.assertEqual(active.read(memoryview(bytearray(1))), 0)

    def test_refused(self) -> None:
        """
        Nobody listens.  Who writes nevertheless is told, and does not wait for room.
        """
        listener, address = self.listening()
        self.close(listener)
        active = self.socket()
        with hub:
            active.connect(None, address)

        def over() -> bool:
            active.progress()
            return active.phase is Phase.OVER

        self.assertTrue(hub.wait(over, HANG_SECONDS))
        self.assertEqual(active.error, errno.ECONNREFUSED)
        self.assertTrue(active.canRead and active.canWrite)
        with hub, self.assertRaises(HandleError) as caught:
            active.write(memoryview(b"x"))
        self.assertEqual(caught.exception.number, errno.ECONNRESET)

    def test_peerCloses(self) -> None:
        """
        A peer that is gone ends the stream.
        """
        active, passive = self.pair()
        self.close(passive)

        def over() -> bool:
            active.progress()
            return active.canRead

        self.assertTrue(hub.wait(over, HANG_SECONDS))
        with hub:
            self.assertEqual(active.read(memoryview(bytearray(1))), 0)

    def test_reasons(self) -> None:
        """
        What a connect failed with: a refusal, the errno of the event, or a connection that was cut.
        """
        for kind, status, expected in (
            (_E.RDMA_CM_EVENT_REJECTED, 28, errno.ECONNREFUSED),
            (_E.RDMA_CM_EVENT_UNREACHABLE, -errno.ETIMEDOUT, errno.ETIMEDOUT),
            (_E.RDMA_CM_EVENT_DISCONNECTED, 0, errno.ECONNRESET),
        ):
            self.assertEqual(RSocket._errno(mock.Mock(event_type=kind, status=status)), expected)

    def test_backlogs(self) -> None:
        """
        A backlog is one at least, and as C{LISTEN_BACKLOG} at most.
        """
        most = limits.LISTEN_BACKLOG
        for wanted, expected in ((-1, 1), (1, 1), (2, 2), (most, most), (most + 1, most)):
            made = self.socket()
            made.cmid.close()
            made.cmid = asked = mock.Mock()
            made.phase = Phase.BOUND
            made.listen(wanted)
            asked.listen.assert_called_once_with(expected)

    def test_mapLength(self) -> None:
        """
        An entry of a map has 32 bits for the length.
        """
        active, _ = self.pair()
        self.patch(stream, "MR", mock.Mock())
        with hub:
            self.assertEqual(active.map(0x1000, (1 << 32) - 1, False, 5), 5)
            with self.assertRaises(HandleError) as caught:
                active.map(0x1000, 1 << 32, False, 5)
        self.assertEqual(caught.exception.number, errno.EINVAL)

    def test_order(self) -> None:
        """
        A socket that is not bound cannot listen; one that is not connected has no data.
        """
        made = self.socket()
        with hub:
            self.assertEqual((made.canRead, made.canWrite, made.canWriteAt), (False, False, False))
            for call, number in (
                (lambda: made.listen(1), errno.EINVAL),
                (lambda: made.read(memoryview(b"")), errno.ENOTCONN),
                (lambda: made.write(memoryview(b"x")), errno.ENOTCONN),
                (lambda: made.shutdown(Way.READ), errno.ENOTCONN),
            ):
                with self.assertRaises(HandleError) as caught:
                    call()
                self.assertEqual(caught.exception.number, number)
