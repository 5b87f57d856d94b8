"""
Tests of L{twisted_ib.dask}'s connections, listeners and addresses, as C{distributed} uses them.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import ssl
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any
from unittest import mock

from twisted.internet import defer
from twisted.internet.protocol import Factory
from twisted.trial.unittest import SkipTest

from tests.aio.case import HOST
from tests.dask.case import SKIP, CommTestCase, arrays
from twisted_ib import limits
from twisted_ib.aio import new_event_loop
from twisted_ib.dask import messages
from twisted_ib.errors import HCAError
from twisted_ib.internet.readers import channelsOf

if not SKIP:
    import dask
    from distributed.comm import CommClosedError, connect, get_address_host, listen, resolve_address
    from distributed.protocol import to_serialize

    from twisted_ib.dask import backend, stream
    from twisted_ib.dask.backend import IBConnector, deviceFor, devicesAt
    from twisted_ib.dask.comm import IB
    from twisted_ib.dask.memory import Recycled

_LONG = 200_000


async def echo(comm: Any) -> None:
    """
    Answer each message by itself.
    """
    while True:
        try:
            await comm.write(await comm.read())
        except CommClosedError:
            return


class EchoTests(CommTestCase):
    """
    Messages arrive as they were.
    """

    async def _echo(self, *objects: Any) -> None:
        listener = await self.listen(echo)
        comm = await connect(listener.contact_address)
        before = self.regions()
        for each in objects:
            await comm.write(each)
            self.assertEqual(await comm.read(), each)
        await self.until(lambda: self.regions() == before)
        await comm.close()

    def test_small(self) -> None:
        """
        Small messages come back.
        """
        self.play(self._echo(1, "two", b"three", {"four": 5}, b"", None))

    def test_frames(self) -> None:
        """
        Long frames, short ones among them and empty ones come back, and no region stays.
        """
        for lengths in ((_LONG,), (1, _LONG, 0, 5, 3 * _LONG), (60_000, 60_000), (1000,) * 200, (0,)):
            frames = {str(at): to_serialize(each) for at, each in enumerate(arrays(*lengths))}
            self.play(self._frames(frames))

    async def _frames(self, frames: dict[str, Any]) -> None:
        client, server = await self.pair()
        before = self.regions()
        received = asyncio.ensure_future(server.read())
        await client.write(frames)
        found = await received
        for key, each in frames.items():
            self.assertEqual(found[key], each.data)
            # As over TCP what arrives can be changed.
            found[key][:1] = b"x" * len(found[key][:1])
        await self.until(lambda: self.regions() == before)

    def test_manyFrames(self) -> None:
        """
        A message whose table of frames is too long for a message is read, too, and of its long frames no more
        are lent than may be.
        """
        self.patch(limits, "DASK_FRAMES", 3)
        lengths = (limits.DASK_FRAME_BYTES,) * 5 + (1,) * 4000
        self.play(self._frames({str(at): to_serialize(each) for at, each in enumerate(arrays(*lengths))}))

    def test_reads(self) -> None:
        """
        A frame that is longer than a READ may be takes several.
        """
        self.patch(limits, "DASK_READ", 70_000)
        self.play(self._frames({"x": to_serialize(bytearray(_LONG))}))

    def test_lentCounted(self) -> None:
        """
        A message with one long frame is a SEND, a READ and a SEND; the frame is registered where it is.
        """
        self.play(self._lentCounted())

    async def _lentCounted(self) -> None:
        client, server = await self.pair()
        here, there = client._stream.transport, server._stream.transport
        with (
            mock.patch.object(
                type(here), "registerMemory", autospec=True, side_effect=type(here).registerMemory
            ) as lends,
            mock.patch.object(
                type(there), "rdmaRead", autospec=True, side_effect=type(there).rdmaRead
            ) as reads,
        ):
            frame = bytearray(_LONG)
            received = asyncio.ensure_future(server.read())
            await client.write({"x": to_serialize(frame)})
            await received
        self.assertIs(lends.call_args_list[0].args[1].obj, frame)
        self.assertEqual(reads.call_args_list[0].args[1], _LONG)
        self.assertEqual((lends.call_count, reads.call_count), (1, 1))

    def test_owned(self) -> None:
        """
        Each frame has memory of its own, so none keeps another's.
        """
        self.play(self._owned())

    async def _owned(self) -> None:
        client, server = await self.pair()
        await client.write({str(at): to_serialize(each) for at, each in enumerate(arrays(3, 5, 7))})
        found = await server._stream.receive()
        self.assertEqual([memoryview(each.obj).nbytes for each in found], [len(each) for each in found])

    def test_memory(self) -> None:
        """
        A frame has the memory of one that nobody uses any more, and has never that of one that is used.
        """
        if find_spec("numpy") is None:
            raise SkipTest("missing: numpy")
        self.patch(stream, "recycled", Recycled())
        self.play(self._memory())

    async def _memory(self) -> None:
        import numpy

        client, server = await self.pair()
        places: list[int] = []
        found: list[Any] = []
        for number in (1, 2, 3):
            await client.write(to_serialize(numpy.full(2 << 20, number, "u1")))
            found.append(await server.read())
            places.append(found[-1].ctypes.data)
            if number == 2:
                del found[1]
                gc.collect()
                self.assertEqual(stream.recycled.kept, 2 << 20)
        self.assertEqual([set(each.tolist()) for each in found], [{1}, {3}])
        self.assertNotEqual(places[0], places[1])
        self.assertEqual(places[1], places[2])

    def test_ownLoop(self) -> None:
        """
        It works on this package's event loop as well.
        """
        self.loop.close()
        self.loop = new_event_loop()
        self.play(self._echo(1, bytes(_LONG)))

    def test_devices(self) -> None:
        """
        It works over each kind of device that Dask's setting names.
        """
        for name in ("shm0", "lo0", "roce0", "iwarp0"):
            with dask.config.set({"distributed.comm.ib.device": name}):
                self.play(self._echo(1, {"x": bytes(_LONG)}))


class EndTests(CommTestCase):
    """
    The end of a connection.
    """

    def test_refused(self) -> None:
        """
        A connect to a port where nobody listens fails with C{CommClosedError}, and is tried again until its
        timeout.
        """
        self.play(self._refused())

    async def _refused(self) -> None:
        with self.assertRaisesRegex(CommClosedError, "[Rr]efused"):
            await IBConnector().connect(f"{HOST}:9")
        with self.assertRaisesRegex(OSError, "Timed out trying to connect to ib://127.0.0.1:9"):
            await connect(f"ib://{HOST}:9", timeout=0.05)

    def test_cancelledConnect(self) -> None:
        """
        A connect that is cancelled leaves nothing.
        """
        self.play(self._cancelledConnect())

    async def _cancelledConnect(self) -> None:
        listener = await self.listen()
        connecting = asyncio.ensure_future(IBConnector().connect(listener.contact_address[len("ib://") :]))
        await asyncio.sleep(0)
        connecting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await connecting

    def test_closed(self) -> None:
        """
        The peer reads what was written before a close, long frames too, and then C{CommClosedError}.
        """
        self.play(self._closed())

    async def _closed(self) -> None:
        client, server = await self.pair()
        await client.write("first")
        await client.write({"x": bytes(_LONG)})
        closing = asyncio.ensure_future(client.close())
        self.assertEqual(await server.read(), "first")
        self.assertFalse(closing.done())
        self.assertEqual(await server.read(), {"x": bytes(_LONG)})
        await closing
        with self.assertRaisesRegex(CommClosedError, "closed"):
            await server.read()
        self.assertTrue(server.closed() and client.closed())
        for comm in (client, server):
            with self.assertRaises(CommClosedError):
                await comm.write(1)
            with self.assertRaises(CommClosedError):
                await comm.read()
            await comm.close()
            comm.abort()

    def test_closedAmidMessages(self) -> None:
        """
        A close ends cleanly, however much the peer sends before it reads what was lent.
        """
        self.patch(limits, "DASK_UNREAD", 2)
        self.play(self._closedAmidMessages())

    async def _closedAmidMessages(self) -> None:
        client, server = await self.pair()
        await client.write({"x": bytes(_LONG)})
        closing = asyncio.ensure_future(client._stream.close())
        await asyncio.sleep(0)
        for number in range(5):
            await server.write(number)
            await server.write({"x": bytes(_LONG)})
        self.assertEqual(await server.read(), {"x": bytes(_LONG)})
        await closing
        self.assertEqual(len(client._stream._unread), 0)
        with self.assertRaisesRegex(CommClosedError, "cleanly"):
            await server.read()

    def test_bothClose(self) -> None:
        """
        Neither of two ends that close waits for the other to read what is dropped.
        """
        self.play(self._bothClose())

    async def _bothClose(self) -> None:
        client, server = await self.pair()
        for comm in (client, server):
            await comm.write({"x": bytes(_LONG)})
            await comm.write({"x": [to_serialize(bytes(40_000))] * 2})
        await self.until(lambda: len(client._stream._unread) == len(server._stream._unread) == 2)
        await asyncio.gather(client._stream.close(), server._stream.close())
        await self.until(lambda: client._stream.loss is not None and server._stream.loss is not None)

    def test_closedAmidWrite(self) -> None:
        """
        A writer who waits when its connection is closed fails, and what was written before is read.
        """
        self.patch(limits, "DASK_LENT", 1)
        self.play(self._closedAmidWrite())

    async def _closedAmidWrite(self) -> None:
        client, server = await self.pair()
        await client.write({"x": bytes(_LONG)})
        writing = asyncio.ensure_future(client.write({"x": bytes(_LONG)}))
        await self.until(lambda: bool(client._stream._waiters))
        closing = asyncio.ensure_future(client.close())
        with self.assertRaisesRegex(CommClosedError, "closed here"):
            await writing
        self.assertFalse(closing.done())
        self.assertEqual(await server.read(), {"x": bytes(_LONG)})
        await closing
        with self.assertRaisesRegex(CommClosedError, "cleanly"):
            await server.read()

    def test_cancelledClose(self) -> None:
        """
        A close that is cancelled ends the connection at once.
        """
        self.play(self._cancelledClose())

    async def _cancelledClose(self) -> None:
        client, server = await self.pair()
        await client.write({"x": bytes(_LONG)})
        closing = asyncio.ensure_future(client.close())
        await self.until(lambda: bool(client._stream._waiters))
        closing.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await closing
        await self.until(server.closed)
        self.assertEqual(len(client._stream._lent), 0)

    def test_givenUp(self) -> None:
        """
        A close gives up if the peer does not read what was lent.
        """
        self.play(self._givenUp())

    async def _givenUp(self) -> None:
        client, server = await self.pair()
        await client.write({"x": bytes(_LONG)})
        with dask.config.set({"distributed.comm.timeouts.tcp": "20ms"}):
            await client.close()
        await self.until(server.closed)
        with self.assertRaises(CommClosedError):
            await server.read()

    def test_aborted(self) -> None:
        """
        After an abort both sides have C{CommClosedError}, who waits too; nothing stays registered.
        """
        self.play(self._aborted())

    async def _aborted(self) -> None:
        client, server = await self.pair()
        before = self.regions()
        waiting = asyncio.ensure_future(client.read())
        await server.write({"x": bytes(_LONG)})
        server.abort()
        self.assertTrue(server.closed())
        with self.assertRaises(CommClosedError):
            await waiting
        self.assertTrue(client.closed())
        await self.until(lambda: self.regions() == before)

    def test_abortedElsewhere(self) -> None:
        """
        Any thread may abort.
        """
        self.play(self._abortedElsewhere())

    async def _abortedElsewhere(self) -> None:
        client, server = await self.pair()
        thread = threading.Thread(target=client.abort)
        thread.start()
        with self.assertRaises(CommClosedError):
            await server.read()
        thread.join()

    def test_cancelledRead(self) -> None:
        """
        A read that is cancelled ends the connection, as over TCP.
        """
        self.play(self._cancelledRead())

    async def _cancelledRead(self) -> None:
        client, server = await self.pair()
        reading = asyncio.ensure_future(client.read())
        await asyncio.sleep(0)
        reading.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await reading
        self.assertTrue(client.closed())
        with self.assertRaises(CommClosedError):
            await server.read()

    def test_failedWrite(self) -> None:
        """
        A write that fails within ends the connection, as over TCP, and its error is the caller's.
        """
        self.play(self._failedWrite())

    async def _failedWrite(self) -> None:
        client, server = await self.pair()
        with mock.patch.object(client._stream, "_lend", side_effect=BufferError):
            with self.assertRaises(BufferError):
                await client.write({"x": bytes(_LONG)})
        self.assertTrue(client.closed())
        with self.assertRaises(CommClosedError):
            await server.read()

    def test_dropped(self) -> None:
        """
        One that nobody refers to any more is ended, and Dask's log says so.
        """
        self.play(self._dropped())

    async def _dropped(self) -> None:
        listener = await self.listen()
        dropped = await connect(listener.contact_address)
        other = await listener.accepted.get()
        self.addCleanup(other.abort)
        with self.assertLogs("distributed.comm.ib", "WARNING") as logged:
            del dropped
            gc.collect()
        self.assertIn("dangling", logged.output[0])
        with self.assertRaises(CommClosedError):
            await other.read()

    def test_malformed(self) -> None:
        """
        A malformed message, one of no known kind, and READ for nothing end the connection with the reason.
        """
        for message, reason in (
            (messages.frames([b""] * 3)[:-1], "no 3 frames"),
            (b"nonsense", "kind 110"),
            (messages.read(), "lent for"),
        ):
            self.play(self._malformed(message, reason))

    async def _malformed(self, message: bytes, reason: str) -> None:
        client, server = await self.pair()
        client._stream.transport.write(message)
        with self.assertRaisesRegex(CommClosedError, reason):
            await server.read()
        with self.assertRaises(CommClosedError):
            await client.read()

    def test_noMemory(self) -> None:
        """
        A frame that there is no memory for ends the connection with the reason, before any is read.
        """
        for error in (MemoryError("none"), ValueError("too large")):
            self.play(self._noMemory(error))

    async def _noMemory(self, error: Exception) -> None:
        client, server = await self.pair()
        there = server._stream.transport
        await client.write([to_serialize(each) for each in arrays(_LONG, _LONG)])
        with (
            mock.patch.object(stream.recycled, "take", side_effect=[memoryview(bytearray(_LONG)), error]),
            mock.patch.object(type(there), "rdmaRead", autospec=True) as reads,
        ):
            with self.assertRaisesRegex(CommClosedError, f"no memory for what the peer lends: {error}"):
                await server.read()
        reads.assert_not_called()
        with self.assertRaises(CommClosedError):
            await client.read()

    def test_brokenReads(self) -> None:
        """
        A READ that cannot be asked ends the connection with the reason; those before it are nobody's errors,
        whether they have ended or not.
        """
        for before in (defer.Deferred, lambda: defer.fail(HCAError("before"))):
            self.play(self._brokenReads(before))
            gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    async def _brokenReads(self, before: Callable[[], defer.Deferred[Any]]) -> None:
        client, server = await self.pair()
        there = server._stream.transport
        await client.write([to_serialize(each) for each in arrays(_LONG, _LONG)])
        asked = [before(), HCAError("not asked")]
        with mock.patch.object(type(there), "rdmaRead", side_effect=asked):
            with self.assertRaisesRegex(CommClosedError, "not asked"):
                await server.read()
        await self.until(lambda: asked[0].called)

    def test_written(self) -> None:
        """
        A peer that says that it has written memory is refused.
        """
        self.play(self._written())

    async def _written(self) -> None:
        client, server = await self.pair()
        client._stream.transport.rdmaWriteWithImmediate(b"", 0, 0, 1).addErrback(lambda _: None)
        with self.assertRaisesRegex(CommClosedError, "written memory"):
            await server.read()


class BoundTests(CommTestCase):
    """
    What waits has bounds.
    """

    def test_lent(self) -> None:
        """
        Who writes waits while the peer has not read so many messages that are lent.
        """
        self.patch(limits, "DASK_LENT", 2)
        self.play(self._lent())

    async def _lent(self) -> None:
        client, server = await self.pair()
        for _ in range(2):
            await client.write({"x": bytes(_LONG)})
        third = asyncio.ensure_future(client.write({"x": bytes(_LONG)}))
        await self.until(lambda: bool(client._stream._waiters))
        self.assertFalse(third.done())
        await server.read()
        await third
        for _ in range(2):
            await server.read()

    def test_unread(self) -> None:
        """
        A peer is held up while so many of its messages are not read, and all arrive.
        """
        self.patch(limits, "DASK_UNREAD", 2)
        self.play(self._unread())

    async def _unread(self) -> None:
        client, server = await self.pair()
        for number in range(200):
            await client.write(number)
        await self.until(lambda: len(server._stream._unread) == 2)
        self.assertEqual([await server.read() for _ in range(200)], list(range(200)))

    def test_held(self) -> None:
        """
        Who writes waits while the connection holds more than its buffer, and goes on when that is read.
        """
        self.patch(limits, "DASK_UNREAD", 2)
        self.play(self._held())

    async def _held(self) -> None:
        client, server = await self.pair()

        async def write() -> None:
            for number in range(1000):
                await client.write([number, bytes(20_000)])

        writing = asyncio.ensure_future(write())
        await self.until(lambda: client._stream._paused)
        self.assertEqual([(await server.read())[0] for _ in range(1000)], list(range(1000)))
        await writing

    def test_draws(self) -> None:
        """
        A number that is drawn, and taken on another device, is drawn again, and not for ever.
        """
        self.play(self._draws())

    async def _draws(self) -> None:
        from twisted.internet.error import CannotListenError

        drawn = []
        taken = CannotListenError("", 1, OSError(errno.EADDRINUSE, "taken"))

        def listening(self: Any, reactor: Any) -> None:
            drawn.append(1)
            raise taken

        with mock.patch.object(backend.IBListener, "_listen", listening):
            with self.assertRaisesRegex(OSError, "taken"):
                await self.listen()
        self.assertEqual(len(drawn), limits.DASK_TRIES)


class AddressTests(CommTestCase):
    """
    Addresses, listeners and devices.
    """

    def test_tls(self) -> None:
        """
        TLS that is asked for is refused by name, by who listens and by who connects.
        """
        self.play(self._tls())

    async def _tls(self) -> None:
        for asked in ({"require_encryption": True}, {"ssl_context": ssl.create_default_context()}):
            with self.assertRaisesRegex(RuntimeError, "ib:// has no TLS"):
                listen(f"ib://{HOST}", print, **asked)
            with self.assertRaisesRegex(RuntimeError, "ib:// has no TLS"):
                await connect(f"ib://{HOST}:9", **asked)

    def test_addresses(self) -> None:
        """
        Addresses are read as those of TCP are, and both ends agree on them.
        """
        self.assertEqual(get_address_host("ib://192.0.2.1:9"), "192.0.2.1")
        self.assertEqual(resolve_address("ib://localhost:9"), "ib://127.0.0.1:9")
        self.play(self._addresses())

    async def _addresses(self) -> None:
        client, server = await self.pair()
        self.assertIsInstance(client, IB)
        self.assertEqual(client.local_address, server.peer_address)
        self.assertEqual(client.peer_address, server.local_address)
        self.assertTrue(client.same_host)
        self.assertIn(client.peer_address, repr(client))

    def test_wildcard(self) -> None:
        """
        One that listens at all addresses can be contacted at the given host.
        """
        self.play(self._wildcard())

    async def _wildcard(self) -> None:
        listener = await self.listen(echo, "", default_host=HOST)
        self.assertRegex(listener.listen_address, "^ib://0.0.0.0:[0-9]+$")
        self.assertRegex(listener.contact_address, f"^ib://{HOST}:[0-9]+$")
        comm = await connect(listener.contact_address)
        await comm.close()

    def test_taken(self) -> None:
        """
        A port that is taken is the system's error; after C{stop} it is free, and has no address.
        """
        self.play(self._taken())

    async def _taken(self) -> None:
        listener = await self.listen()
        host, port = listener.get_host_port()
        with self.assertRaises(OSError) as raised:
            await self.listen(host=f"{host}:{port}")
        self.assertEqual(raised.exception.errno, errno.EADDRINUSE)
        await listener.stop()
        self.assertIs(listener.stop(), None)
        self.assertRaisesRegex(ValueError, "non-started", listener.get_host_port)
        again = await self.listen(host=f"{host}:{port}")
        # As Server.close() does, nobody waits for this one.
        again.stop()
        await self.listen(host=f"{host}:{port}")

    def test_stopped(self) -> None:
        """
        A connection that arrives while its listener stops is ended.
        """
        self.play(self._stopped())

    async def _stopped(self) -> None:
        before = backend.IBListener._connected

        def stopping(listener: Any, stream: Any) -> None:
            before(listener, stream)
            listener.stop()

        with mock.patch.object(backend.IBListener, "_connected", stopping):
            listener = await self.listen()
            with self.assertRaises(CommClosedError):
                await connect(listener.contact_address)
        self.assertTrue(listener.accepted.empty())

    def test_chosen(self) -> None:
        """
        The address chooses the device, unless Dask's setting does.
        """
        with mock.patch.dict("os.environ", TWISTED_IB_DEVICES=""):
            self.assertEqual(deviceFor(HOST), "shm0")
            self.assertEqual(deviceFor("192.0.2.1"), "roce0")
            self.assertEqual(devicesAt(HOST), ["shm0"])
            self.assertEqual(devicesAt("192.0.2.1"), ["shm0", "roce0"])
        from twisted_ib.hca import addDevice, removeDevice

        addDevice("iwarp7", "iwarp", HOST)
        self.addCleanup(removeDevice, "iwarp7")
        self.assertEqual(deviceFor("192.0.2.1"), "iwarp7")
        self.assertEqual(devicesAt("192.0.2.1"), ["shm0", "iwarp7"])
        with dask.config.set({"distributed.comm.ib.device": "roce3"}):
            self.assertEqual((deviceFor(HOST), devicesAt(HOST)), ("roce3", ["roce3"]))

    def test_noRemote(self) -> None:
        """
        Without the device to other hosts it listens for this host, and says so; one that was added must be.
        """
        self.play(self._noRemote())

    async def _noRemote(self) -> None:
        with mock.patch.object(backend, "devicesAt", lambda host: ["shm0", "roce99x"]):
            with self.assertLogs("distributed.comm.ib", "WARNING") as logged:
                await self.listen()
            self.assertIn("cannot be reached from other hosts", logged.output[0])
            with mock.patch.object(backend, "addedDevices", lambda: ("roce99x",)):
                with self.assertRaises(OSError):
                    await self.listen()

    def test_takenRemote(self) -> None:
        """
        A port that is taken on the device to other hosts alone is refused; one that is drawn is drawn again.
        """
        self.play(self._takenRemote())

    async def _takenRemote(self) -> None:
        other = "iwarp0"
        first = Factory()
        first.noisy = False
        taken = backend._reactor().listenRDMA(0, first, HOST, 50, other)
        port = taken.getHost().port
        listening = backend.LoopReactor.listenRDMA
        drawn = []

        def draw(self: Any, number: int, factory: Any, interface: str, backlog: int, name: str) -> Any:
            # The first number that is drawn on shm0 is the one that is taken on the other.
            if not number:
                number = 0 if drawn else port
                drawn.append(name)
            return listening(self, number, factory, interface, backlog, name)

        with mock.patch.object(backend, "devicesAt", lambda host: ["shm0", other]):
            with self.assertRaises(OSError) as raised:
                await self.listen(host=f"{HOST}:{port}")
            self.assertEqual(raised.exception.errno, errno.EADDRINUSE)
            with mock.patch.object(backend.LoopReactor, "listenRDMA", draw):
                listener = await self.listen()
        self.assertEqual(drawn, ["shm0", "shm0"])
        self.assertEqual(len(listener._ports), 2)
        await taken.stopListening().asFuture(self.loop)

    def test_loop(self) -> None:
        """
        An event loop that cannot look at devices is refused by name.
        """

        class Other(asyncio.BaseEventLoop):
            pass

        with mock.patch("asyncio.get_running_loop", return_value=mock.Mock(spec=Other)):
            self.assertRaisesRegex(RuntimeError, "distributed.admin.event-loop", backend._reactor)

    def test_closedLoop(self) -> None:
        """
        The devices close with the event loop, which does not close while it runs.
        """
        self.play(self._closedLoop())
        (channel,) = channelsOf(self.loop.reactor)
        for _ in range(2):
            self.loop.close()
            self.assertTrue(channel.device.closed)
        self.loop = asyncio.SelectorEventLoop()

    async def _closedLoop(self) -> None:
        client, server = await self.pair()
        await asyncio.gather(client.close(), server.close())
        self.assertRaises(RuntimeError, self.loop.close)
        # It serves as before.
        await self.pair()
