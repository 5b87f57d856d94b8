"""
A program of verbs that connects a hundred times at once over iWARP: the guest has siw.
"""

from __future__ import annotations

from twisted.trial.unittest import SkipTest

from tests.cprograms.lab import Here, Lab, LabError, missing, unbuilt
from tests.cprograms.programs import CMTIME
from tests.interop.cprograms.rxe import There
from tests.interop.siw import SIWTestCase


class ProgramTests(SIWTestCase):
    """
    C{cmtime}.
    """

    def test_server(self) -> None:
        """
        None of the guest's connects is rejected, and all are measured.  Linux's own server has no room for
        more than 71 of a hundred, which is why our client is not tried with it.
        """
        reason = unbuilt() or missing(CMTIME)
        if reason is not None:
            raise SkipTest(reason)
        here = Here("iwarp0", self.host, tuple(self.lab.network.within([])))
        try:
            Lab(here, There(self.guest)).run(CMTIME)
        except LabError as error:
            self.fail(str(error))
