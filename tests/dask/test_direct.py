"""
Tests for L{twisted_ib.dask.direct}: frames that are copied from the memory of a process of this host.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tests.dask.case import SKIP, CommTestCase, arrays
from twisted_ib.hca.host import processmemory

if not SKIP:
    from distributed.comm import CommClosedError
    from distributed.protocol import to_serialize

    from twisted_ib.dask import direct

    #: One that is READ, one at the bound, and one that is copied in a thread.
    _LENGTHS = (direct.LEAST_BYTES - 1, direct.LEAST_BYTES, 4 << 20)


class DirectTests(CommTestCase):
    """
    Both ends are in this process, whose memory it may always read.
    """

    def test_copied(self) -> None:
        """
        Long frames are copied at once, and of these only the last byte is READ; shorter ones are READ.
        """
        self.play(self._reads([_LENGTHS[0], 1, 1]))

    def test_refused(self) -> None:
        """
        All bytes are READ where the kernel copies none, or no more.
        """
        for answers in ([PermissionError()], [1000, 0], [1000, OSError()]):
            with mock.patch.object(direct, "readProcess", side_effect=answers) as asked:
                self.play(self._reads(_LENGTHS))
            self.assertEqual(asked.call_count, len(answers))

    def test_refusedForGood(self) -> None:
        """
        A process whose memory may not be read is asked for one message, not for each; of another error, as
        of an address, it is asked again.
        """
        for code, count in ((errno.EPERM, 1), (errno.ENOSYS, 1), (errno.EFAULT, 3)):
            refusal = OSError(code, os.strerror(code))
            with mock.patch.object(direct, "_refusing", set()):
                with mock.patch.object(direct, "readProcess", side_effect=refusal) as asked:
                    for _ in range(3):
                        self.play(self._reads(_LENGTHS))
            self.assertEqual((code, asked.call_count), (code, count))

    def test_yama(self) -> None:
        """
        All bytes are READ in each of Yama's scopes: where it refuses each process (2, without a capability,
        and 3) none is asked, as it logs each try; where it may refuse one (1) that is asked once.
        """
        scope, status = Path(self.mktemp()), Path(self.mktemp())
        self.patch(processmemory, "_PTRACE_SCOPE", str(scope))
        self.patch(processmemory, "_STATUS", str(status))
        self.addCleanup(direct._mayAsk.cache_clear)
        refusal = PermissionError(errno.EPERM, "Operation not permitted")
        for number, capabilities, count in (1, 0, 1), (2, 1 << 19, 1), (2, 0, 0), (3, 1 << 19, 0):
            scope.write_text(f"{number}\n")
            status.write_text(f"CapEff:\t{capabilities:016x}\n")
            direct._mayAsk.cache_clear()
            with mock.patch.object(direct, "_refusing", set()) as refusing:
                with mock.patch.object(direct, "readProcess", side_effect=refusal) as asked:
                    for _ in range(2):
                        self.play(self._reads(_LENGTHS))
            self.assertEqual((number, asked.call_count, len(refusing)), (number, count, 1))

    def test_refusingProcesses(self) -> None:
        """
        No more of them are remembered than the bound says.
        """
        refusal = PermissionError(errno.EPERM, "Operation not permitted")
        bound = direct._REFUSING_PROCESSES
        with mock.patch.object(direct, "_refusing", set()) as refusing:
            with mock.patch.object(direct, "readProcess", side_effect=refusal):
                for process in range(1, bound + 2):
                    self.assertFalse(direct._copy(process, [(1, memoryview(bytearray(1)))]))
                    self.assertIn(process, refusing)
                    self.assertLessEqual(len(refusing), bound)
        self.assertEqual(refusing, {bound + 1})

    def test_pieces(self) -> None:
        """
        What the kernel leaves is asked for again, from where it stopped.
        """
        read = direct.readProcess

        def some(process: int, address: int, view: memoryview) -> int:
            return read(process, address, view[:1_000_000])

        with mock.patch.object(direct, "readProcess", side_effect=some) as asked:
            self.play(self._reads([_LENGTHS[0], 1, 1]))
        self.assertEqual(asked.call_count, 1 + -(-_LENGTHS[2] // 1_000_000))

    def test_strangers(self) -> None:
        """
        A peer that is no process of this user and host is told no address, and its memory is not asked for.
        """
        with mock.patch.object(direct, "processOf", return_value=0):
            with mock.patch.object(direct, "readProcess") as asked:
                self.play(self._reads(_LENGTHS))
        asked.assert_not_called()

    def test_pointers(self) -> None:
        """
        Who is no neighbour is told none; a connection that has ended leads to none.
        """
        self.play(self._pointers())

    async def _pointers(self) -> None:
        client, _ = await self.pair()
        transport = client._stream.transport
        self.assertGreater(direct.processOf(transport), 0)
        regions: list[Any] = []
        frame = bytes(direct.LEAST_BYTES)
        self.assertGreater(client._stream._lend(frame, regions).pointer, 0)
        with mock.patch.object(direct, "processOf", return_value=0):
            self.assertEqual(client._stream._lend(frame, regions).pointer, 0)
        client.abort()
        await self.until(lambda: not direct.processOf(transport))

    async def _reads(self, expected: Sequence[int]) -> None:
        client, server = await self.pair()
        there = type(server._stream.transport)
        sent = arrays(*_LENGTHS)
        with mock.patch.object(there, "rdmaRead", autospec=True, side_effect=there.rdmaRead) as reads:
            await client.write([to_serialize(each) for each in sent])
            found = await server.read()
        self.assertEqual([bytes(each) for each in found], [bytes(each) for each in sent])
        await self.until(lambda: not client._stream._lent)
        self.assertEqual([call.args[1] for call in reads.call_args_list], list(expected))

    def test_gone(self) -> None:
        """
        A frame that is not lent any more behind its copy is not believed.
        """
        self.play(self._gone())

    async def _gone(self) -> None:
        client, server = await self.pair()
        read = direct.readProcess

        def ending(process: int, address: int, view: memoryview) -> int:
            count = read(process, address, view)
            for region in client._stream._lent[0]:
                region.close()
            return count

        with mock.patch.object(direct, "readProcess", side_effect=ending):
            await client.write(to_serialize(bytearray(direct.LEAST_BYTES)))
            with self.assertRaises(CommClosedError):
                await server.read()
