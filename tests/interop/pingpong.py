"""
The C{ibv_*_pingpong} of C{examples/} against those of rdma-core: verbs without a connection manager.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.case import DEVICE, InteropTestCase, Program
from tests.interop.lab.lab import RXE
from tests.interop.lab.network import HOST4
from tests.support.commands import PATH
from tests.support.waiting import HANG_SECONDS

SECONDS = HANG_SECONDS
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
#: Runs an example.
_RUNS = "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
#: Options of both sides.  Not -c: rdma-core's validates zeros.
_OPTIONS = "-n 100 -s {size}"


class PingPongTests(InteropTestCase):
    """
    IPv4.

    @cvar index: of rxe's GID.
    """

    index = 1

    def _example(self, name: str, *arguments: str) -> Program:
        """
        @return: one of the examples, on this side.
        """
        path = str(EXAMPLES / f"{name}.py")
        program = f"{PATH}sys.path.insert(0, {str(EXAMPLES)!r}); sys.argv[:1] = [{path!r}]; {_RUNS}"
        return self.program([sys.executable, "-c", program, "-d", DEVICE, "-g", "0", *arguments])

    def _both(self, name: str, size: int) -> None:
        """
        Be a program's client, then its server.
        """
        options = _OPTIONS.format(size=size)
        remote = f"{name} -d {RXE} -g {self.index} {options}"
        server = self.start(remote)
        self.guest.must("until ss -ltn | grep -q :18515; do sleep 0.1; done", SECONDS)
        # They find each other over IPv4.
        self.succeeded(self._example(name, *options.split(), self.guest.ipv4).finish(SECONDS))
        self.succeeded(self.guest.finish(server, SECONDS))
        local = self._example(name, *options.split())
        self.until(local, "local address")
        self.succeeded(self.guest.finish(self.start(f"sleep 0.5; exec {remote} {HOST4}"), SECONDS))
        self.succeeded(local.finish(SECONDS))

    def test_reliable(self) -> None:
        """
        RC.
        """
        self._both("ibv_rc_pingpong", 3000)

    def test_unreliable(self) -> None:
        """
        UC.
        """
        self._both("ibv_uc_pingpong", 3000)

    def test_datagrams(self) -> None:
        """
        UD.
        """
        self._both("ibv_ud_pingpong", 512)


class PingPongIPv6Tests(PingPongTests):
    """
    IPv6.
    """

    ipv6, index = True, 2
