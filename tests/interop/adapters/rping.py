"""
C{ib-ping} on a device of the kind C{hardware} in the guest and C{rping} on the same adapter, each the other's
server: a peer of Linux's own.
"""

from __future__ import annotations

import shlex

from tests.interop.adapters.rxe import GUESTS, SECONDS, HardwareTestCase
from tests.interop.lab.shipped import SITE
from tests.support.commands import programOf

#: Rounds whose bytes are verified, and of how many bytes.
OPTIONS = "-C 20 -V -S 1000"


class RPingTests(HardwareTestCase):
    """
    Both in the guest, over its rxe.
    """

    def ibPing(self, role: str) -> str:
        """
        @return: the command line of an C{ib-ping}.
        """
        program = shlex.quote(programOf("ping.ping"))
        return (
            f"exec env TWISTED_IB_DEVICES={GUESTS}=hardware:{self.peer.value[0]} PYTHONPATH={SITE}"
            f" python3 -c {program} --device {GUESTS} {role} -a {self.there} {OPTIONS}"
        )

    def rping(self, role: str) -> str:
        """
        @return: the command line of an C{rping}.
        """
        return f"rping {role} -a {self.there} {OPTIONS}"

    def rounds(self, server: str, client: str) -> None:
        """
        Both do their rounds, well.
        """
        number = self.start(server)
        self.untilListens()
        self.succeeded(self.guest.run(client, SECONDS))
        self.succeeded(self.guest.finish(number, SECONDS))

    def test_client(self) -> None:
        """
        Of Linux's C{rping}.
        """
        self.rounds(self.rping("-s"), self.ibPing("-c"))

    def test_server(self) -> None:
        """
        Linux's C{rping} is the client.
        """
        self.rounds(self.ibPing("-s"), self.rping("-c"))
