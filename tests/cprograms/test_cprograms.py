"""
Each program once on each device.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.cprograms.lab import Lab, LabError, lacking, missing, sides
from tests.cprograms.programs import DEVICES, PROGRAMS, Program
from tests.support.waiting import HANG_SECONDS


class ProgramTests(SynchronousTestCase):
    """
    Both processes end with status 0, and the client says that all was right.
    """

    timeout = 3 * HANG_SECONDS
    skip = lacking()


def _test(program: Program, device: str) -> Callable[[ProgramTests], None]:
    def test(self: ProgramTests) -> None:
        reason = missing(program)
        if reason is not None:
            raise SkipTest(reason)
        try:
            Lab(*sides(device)).run(program)
        except LabError as error:
            self.fail(str(error))

    test.__doc__ = f"{program.name} on {device}."
    return test


for _program in PROGRAMS:
    for _device in DEVICES:
        setattr(ProgramTests, f"test_{_program.name}_{_device}", _test(_program, _device))
