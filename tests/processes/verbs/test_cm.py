"""
Connection identifiers of verbs in two processes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.commands import running
from tests.support.rundirectory import ownRunDirectory
from tests.support.waiting import HANG_SECONDS


class StoryTestCase(SynchronousTestCase):
    """
    Runs the functions of L{tests.processes.verbs.cmtalk}.
    """

    def story(self, name: str) -> None:
        """
        Run one.
        """
        ownRunDirectory(self)
        place = str(Path(__file__).resolve().parents[3])
        environment = dict(os.environ, PYTHONPATH=place)
        words = "-m", "tests.processes.verbs.cmtalk", name
        process = running(self, *words, env=environment, cwd=place, stderr=subprocess.PIPE)
        _, complaints = process.communicate(timeout=HANG_SECONDS)
        self.assertEqual((process.returncode, complaints), (0, ""))


class StoryTests(StoryTestCase):
    """
    See the functions of L{tests.processes.verbs.cmtalk}.
    """

    def test_messages(self) -> None:
        """
        Messages to and fro.
        """
        self.story("messages")

    def test_absent(self) -> None:
        """
        A process that does something else is served all the same.
        """
        self.story("absent")

    def test_datagrams(self) -> None:
        """
        Datagrams, and answers to where they came from.
        """
        self.story("datagrams")

    def test_killed(self) -> None:
        """
        A peer that is killed.
        """
        self.story("killed")

    def test_leaving(self) -> None:
        """
        A peer that is killed before it answers.
        """
        self.story("leaving")

    def test_forked(self) -> None:
        """
        A child has nothing of its parent's, and works all the same.
        """
        self.story("forked")
