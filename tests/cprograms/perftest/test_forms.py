"""
Some forms of perftest; C{python -m tests.cprograms.programs perftest} runs all.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.cprograms.lab import LabError, lacking, missing, sides
from tests.cprograms.perftest.forms import GROUPS, PLAIN, REFUSED, Form, firsts
from tests.cprograms.programs import PERFTEST
from tests.support.waiting import HANG_SECONDS


class FormTests(SynchronousTestCase):
    """
    Both processes end well, or one says what is not there.
    """

    timeout = 12 * HANG_SECONDS
    skip = lacking() or missing(PERFTEST[0])

    def passed(self, form: Form, device: str) -> None:
        """
        Run a form.
        """
        try:
            form.run(*sides(device))
        except LabError as error:
            self.fail(f"{form.command}: {error}")

    def test_plain(self) -> None:
        """
        The first program with each set of options.
        """
        for form in firsts((*PLAIN, *GROUPS["shm0"])):
            self.passed(form, "shm0")

    def test_refused(self) -> None:
        """
        XRC, DC, on-demand paging, huge pages, rate limits.
        """
        for form in firsts(REFUSED):
            self.passed(form, "shm0")

    def test_wrong(self) -> None:
        """
        A form that is not refused as it should be fails.
        """
        for refusal in ("never said", ""):
            form = Form(REFUSED[-1].command, refusal)
            self.assertRaises(LabError, form.run, *sides("shm0"))
