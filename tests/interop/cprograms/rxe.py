"""
Each program against itself on rxe, both roles.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from unittest import TestSuite

from attrs import define, field, frozen
from twisted.trial.unittest import SkipTest

from tests.cprograms.lab import Here, Lab, LabError, Running, Side, missing, unbuilt
from tests.cprograms.programs import PROGRAMS, Program
from tests.interop.case import DEVICE, InteropTestCase
from tests.interop.lab.lab import RXE
from tests.interop.lab.machine import Machine
from tests.support.commands import PATH
from tests.support.waiting import HANG_SECONDS

#: The index of rxe's IPv4 address; the first is the link-local one of IPv6.
_GID = "1"
#: Programs of the suite: the transports, both connection managers, multicast, rsockets, and events.
SHORT = ("rc_events", "uc", "ud", "rping", "mckey", "rstream", "ib_write_bw", "ib_atomic_lat")
#: This side's role, and whether it is the client.
ROLES = {"client": True, "server": False}
#: This one, which connects so often at once, also has a test beside strangers: so many requests a second.
_FLOODED, _RATE = "ucmatose_1000", 5000
_STRANGERS = PATH + "from tests.interop.cprograms.strangers import main; main()"
#: Datagrams that C{mckey} sends to its group, of which rxe gets one each from itself.
_LOOPED = {("mckey", False): 10}
#: Programs whose last acknowledgments may find no queue pair any more: ibv_srq_pingpong ends once enough
#: messages are complete over all of its own, and librdmacm's C{rshutdown} does not wait for what it has sent
#: once the peer has closed the stream, too.
_ENDS_EARLY = ("srq", "srq_events", "rstream")
#: How a program in the guest becomes ready: once with its port, or with its output so far.
_LISTENS_TCP = "ss -ltnH | grep -q ':{port} '"
_LISTENS = "rdma resource show cm_id | grep -q 'state LISTEN'"


@frozen
class There:
    """
    The guest: a L{Side}.
    """

    guest: Machine

    @property
    def address(self) -> str:
        return self.guest.ipv4

    @property
    def words(self) -> dict[str, str]:
        return {"device": RXE, "gid": _GID}

    def start(self, command: Sequence[str], directory: str) -> Running:
        return _Running(self.guest, command)


@define
class _Running:
    # A process in the guest; a side has one at a time.
    guest: Machine
    command: Sequence[str]
    output: str = "/tmp/cprogram"
    _number: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._number = self.guest.start(f"exec stdbuf -oL {shlex.join(self.command)} >{self.output} 2>&1")

    def waitUntilReady(self, program: Program, port: int) -> None:
        if program.isOverTCP:
            condition = _LISTENS_TCP.format(port=port)
        elif program.ready:
            condition = f"grep -q {shlex.quote(program.ready)} {self.output}"
        else:
            condition = _LISTENS
        ended = self.guest.run(f"until {condition}; do sleep 0.1; done", HANG_SECONDS)
        if ended.status:
            raise LabError(f"{self.command[0]} is not ready in the guest")

    def said(self) -> str:
        return self.guest.must(f"cat {self.output}")

    def ended(self) -> int:
        status = self.guest.finish(self._number, HANG_SECONDS).status
        if status == 124:
            raise LabError(
                f"{self.command[0]} has not ended in the guest in {HANG_SECONDS:g} s: {self.said()}"
            )
        return status

    def stop(self) -> None:
        self.guest.kill(self._number)


@frozen
class _Here(Here):
    # With the neighbour of a test.
    case: InteropTestCase = field(kw_only=True)

    def start(self, command: Sequence[str], directory: str) -> Running:
        self.case.neighbour()
        return super().start(command, directory)


class ProgramTests(InteropTestCase):
    """
    Both processes end with status 0, and the client says that all was right.
    """

    def setUp(self) -> None:
        """
        Have the libraries.
        """
        reason = unbuilt()
        if reason is not None:
            raise SkipTest(reason)
        super().setUp()

    def both(self, program: Program, isClient: bool) -> None:
        """
        Run a program.

        @param isClient: this side is the client, else it is the server.
        """
        reason = missing(program)
        if reason is not None:
            raise SkipTest(reason)
        self.lost = program.name in _ENDS_EARLY
        self.looped = _LOOPED.get((program.name, isClient), 0)
        prefix = tuple(self.lab.network.within([]))
        here = _Here(DEVICE, self.host, prefix, runDirectory=str(self.directory), case=self)
        places: list[Side] = [There(self.guest), here]
        server, client = places if isClient else reversed(places)
        try:
            Lab(server, client).run(program)
        except LabError as error:
            self.fail(str(error))

    def flooded(self, program: Program, isClient: bool) -> None:
        """
        The same beside strangers that ask the address of this side for what nobody has there.
        """
        strangers = self.program([sys.executable, "-c", _STRANGERS, self.host, str(_RATE)])
        self.until(strangers, "ready")
        self.both(program, isClient)
        # What was sent is what was meant to be.
        sent = int(self.succeeded(strangers.end(HANG_SECONDS)).output.split()[-1])
        self.assertGreater(sent, _RATE // 2)


def _test(
    program: Program, isClient: bool, run: Callable[[ProgramTests, Program, bool], None] = ProgramTests.both
) -> Callable[[ProgramTests], None]:
    def test(self: ProgramTests) -> None:
        run(self, program, isClient)

    test.__doc__ = f"{program.name} {'as client' if isClient else 'as server'}."
    return test


for _program in PROGRAMS:
    for _role, _isClient in ROLES.items():
        setattr(ProgramTests, f"test_{_program.name}_{_role}", _test(_program, _isClient))
        if _program.name == _FLOODED:
            _flooded = _test(_program, _isClient, ProgramTests.flooded)
            setattr(ProgramTests, f"test_{_FLOODED}_flooded_{_role}", _flooded)


def testSuite() -> TestSuite:
    """
    @return: the tests of L{SHORT}.
    """
    return TestSuite(ProgramTests(f"test_{name}_{role}") for name in SHORT for role in ROLES)
