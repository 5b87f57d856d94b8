"""
C{ib-ping} on a device of the kind C{hardware} in the guest and C{rping} on the same adapter, each the other's
server: a peer of Linux's own; and so the pingpongs, whose sides connect their queue pairs by themselves.
"""

from __future__ import annotations

import shlex

from tests.interop.adapters.rxe import EXAMPLES, GUESTS, PINGPONGS, SECONDS, HardwareTestCase
from tests.interop.lab.shipped import SITE
from tests.interop.rping import isDone
from tests.support.commands import programOf

#: Rounds whose bytes are verified, and of how many bytes.
OPTIONS = "-C 20 -V -S 1000"
#: Of both sides of a pingpong, and the slot of the IPv4 address in the table of rxe.
PINGPONG, SLOT = "-n 100 -s 3000", 1
DATAGRAMS = "-n 100 -s 1000"


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
        for ended in (self.guest.run(client, SECONDS), self.guest.finish(number, SECONDS)):
            if not isDone(ended):
                self.succeeded(ended)

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


class PingPongTests(HardwareTestCase):
    """
    The examples of this package, and Linux's programs; they find each other over TCP.
    """

    def rounds(self, server: str, client: str) -> None:
        """
        Both do their rounds, well.
        """
        number = self.start(server)
        self.guest.must("until ss -ltn | grep -q :18515; do sleep 0.1; done", SECONDS)
        self.succeeded(self.guest.run(f"{client} {self.there}", SECONDS))
        self.succeeded(self.guest.finish(number, SECONDS))

    def both(self, index: int, options: str = PINGPONG) -> None:
        """
        Each is the client of the other.
        """
        ours = self.python(EXAMPLES[index], "-d", GUESTS, "-g", 0, options)
        theirs = f"exec {PINGPONGS[index]} -d {self.peer.value[0]} -g {SLOT} {options}"
        self.rounds(theirs, ours)
        self.rounds(ours, theirs)

    def test_reliable(self) -> None:
        """
        RC.
        """
        self.both(0)

    def test_unreliable(self) -> None:
        """
        UC.
        """
        self.both(1)

    def test_datagrams(self) -> None:
        """
        UD, in one packet each.
        """
        self.both(2, DATAGRAMS)
