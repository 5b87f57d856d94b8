"""
asyncio over TCP and over SDP, compared.
"""

from __future__ import annotations

import asyncio

from twisted.trial.unittest import SynchronousTestCase

from tests.suites.differential.known import KNOWN
from tests.suites.differential.loops import ends, scenarios
from tests.support.waiting import HANG_SECONDS


class AsyncioTests(SynchronousTestCase):
    """
    A test for each scenario.
    """

    timeout = 4 * HANG_SECONDS


scenarios.addTests(AsyncioTests)


class EndsTests(SynchronousTestCase):
    """
    The ends of a scenario.
    """

    def test_pieces(self) -> None:
        """
        What arrives in many pieces is one, and is not copied for each.
        """
        recorder = ends.Recorder("server", {})
        recorder.data_received(b"first")
        ((_, data),) = recorder.log
        recorder.data_received(b"second")
        self.assertIs(recorder.log[0][1], data)
        self.assertEqual((len(recorder.log), recorder.data), (1, b"firstsecond"))

    def test_hangs(self) -> None:
        """
        A scenario that takes too long says so, and not what its end does to what it waits for.
        """
        self.patch(ends, "HANG_SECONDS", 0.01)

        async def scenario(it: ends.Ends) -> None:
            await it.wait("sent", asyncio.Event().wait())

        said = ends.play(scenario, False).parts[""]
        self.assertEqual(said[0], "the scenario ends: AssertionError 'it takes too long'")


class KnownTests(SynchronousTestCase):
    """
    The list.
    """

    def test_named(self) -> None:
        """
        What is known of asyncio names scenarios.
        """
        self.assertEqual([each for each in KNOWN["asyncio"] if each.split("/")[0] not in scenarios.named], [])
