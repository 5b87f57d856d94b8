"""
Many processes on one address.
"""

from __future__ import annotations

from tests.processes.processes import Child
from tests.processes.test_roce import BYTES, AddressedTestCase

#: Of servers and clients.
PAIRS = 8
TERMS = {"send": BYTES, "take": BYTES, "pauses": False}


class SharedTests(AddressedTestCase):
    """
    Servers and clients that share an address.
    """

    program = "tests.processes.programs.bulk.Haulage"

    def connect(self, server: Child, client: Child, own: str) -> None:
        """
        Have a server listen at a port of its own, and a client begin to send and take.

        @param own: the address of the client.
        """
        port = server.ask("listen", endpoint=self.server("sdp"), seed=0, **TERMS)
        endpoint = f"sdp:{self.here}:{port}:bindAddress={own}:device=roce0:timeout=20"
        client.ask("connect", endpoint=endpoint, count=1, seed=2, **TERMS)

    def check(self, server: Child, client: Child) -> None:
        """
        What each has sent is what the other has taken.
        """
        ((sent, taken),), ((otherSent, otherTaken),) = client.ask("hauled"), server.ask("hauled")
        self.assertEqual((sent, taken), (otherTaken, otherSent))
        self.assertEqual((sent[0], taken[0]), (BYTES, BYTES))

    def pair(self) -> tuple[Child, Child]:
        """
        @return: a server and a client.
        """
        return self.spawn("ib"), self.spawn("ib")

    def test_two(self) -> None:
        """
        Two servers share an address, and so do their clients.
        """
        pairs = [self.pair() for _ in range(2)]
        for pair in pairs:
            self.connect(*pair, self.there)
        for pair in pairs:
            self.check(*pair)

    def test_sixteen(self) -> None:
        """
        Sixteen processes connect over one address.  When some are killed, the first of them included, the
        others' connections lose nothing, and others still join.
        """
        pairs = [self.pair() for _ in range(PAIRS)]
        for pair in pairs:
            self.connect(*pair, self.here)
        for server, client in pairs[0], pairs[3]:
            self.check(server, client)
            for child in server, client:
                child.kill()
        pairs.append(self.pair())
        self.connect(*pairs[-1], self.here)
        for pair in (*pairs[1:3], *pairs[4:]):
            self.check(*pair)
