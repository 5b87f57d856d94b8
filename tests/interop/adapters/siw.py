"""
A device of the kind C{hardware} in the guest, on the kernel's siw, against a software RNIC here.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SkipTest

from tests.interop.adapters import gone, rxe
from tests.interop.adapters.rxe import GUESTS, LASTING, PORT, SECONDS
from tests.interop.lab.anew import limit
from tests.interop.lab.images import Images, cacheDirectory
from tests.interop.lab.lab import Peer
from tests.interop.lab.network import IPV4

#: How often a client goes at once, and by bare TCP.
LEAVES, HASTY = 50, 500
#: What tc(8) has of a network that is as slow as from one continent to another, and loses nothing.
DISTANCE = "delay 60ms limit 10000"


class SIWMixin:
    """
    The guest has siw.
    """

    kind = "iwarp"
    peer = Peer.SIW

    def setUp(self: Any) -> None:
        """
        Skip the test without siw.
        """
        lacking = Images(cacheDirectory()).noSIW
        if lacking is not None:
            raise SkipTest(lacking)
        super().setUp()


class SIWMessagesTests(SIWMixin, rxe.MessagesTests):
    """
    A file and its echo in messages of C{ib:}; then WRITE and READ.
    """

    sides = "iwarp"
    client = "echoed True\nread True\nregistered True []\nlost ConnectionDone\n"


class SIWFileTests(SIWMixin, rxe.FileTests):
    """
    A file and its echo over C{sdp:}.
    """


class SIWDistantFileTests(SIWFileTests):
    """
    The same over a distance, where TCP has much that its peer has not acknowledged when the adapter says that
    it is sent: siw reads that once more if its request was not signalled, and the ring has other bytes then.
    """

    def setUp(self) -> None:
        """
        What the guest sends is late.
        """
        super().setUp()
        self.guest.must(f"modprobe sch_netem; tc qdisc replace dev eth0 root netem {DISTANCE}")
        self.addCleanup(self.guest.run, "tc qdisc del dev eth0 root")


class SIWStreamsTests(SIWMixin, rxe.StreamsTests):
    """
    The same over siw.
    """


class SIWSoftwareStreamsTests(SIWMixin, rxe.SoftwareStreamsTests):
    """
    The same between the adapter and a software RNIC of another address of its card.
    """

    other = f"{IPV4}102"
    isApart = False


class SIWCompareTests(SIWMixin, rxe.CompareTests):
    """
    C{ib-perf compare} on siw.
    """


class SIWKillTests(SIWMixin, gone.KillTests):
    """
    C{kill -9} of one side.
    """


class SIWStreamKillTests(SIWMixin, gone.StreamKillTests):
    """
    The same over C{sdp:}.
    """


class LeaveTests(SIWMixin, gone.LastingTestCase):
    """
    Software that asks, and goes as soon as siw has accepted.
    """

    #: An address of the guest's card besides siw's.
    other = f"{IPV4}102"

    def test_leaves(self) -> None:
        """
        The kernel bears it, as often as wanted.  Where the end comes before siw has heard that the client is
        ready its state is one that ends the kernel (Linux iwcm.c, cm_close_handler()).
        """
        self.assertEqual(self.left("leave", "iwarp0", LEAVES), f"left {LEAVES}\n")

    def test_hasty(self) -> None:
        """
        So it does where nothing of software is between the answer and TCP's end, as in a client that is
        killed.
        """
        self.assertEqual(self.left("hasty", "", HASTY), f"answers {HASTY}\n")

    def left(self, kind: str, device: str, rounds: int) -> str:
        """
        @return: what a client has printed that goes so often.
        """
        limit(self, SECONDS)
        self.guest.must(f"ip addr replace {self.other}/24 dev eth0")
        self.start(self.python(LASTING, "serve", GUESTS, self.there, self.other, PORT))
        self.untilListens()
        devices = f"TWISTED_IB_DEVICES=iwarp0=iwarp:{self.other}"
        words = (device, self.other, self.there, PORT, rounds)
        done = self.guest.run(self.python(LASTING, kind, *words, environment=devices), SECONDS)
        return str(self.succeeded(done).output)


class SIWVanishTests(SIWMixin, gone.VanishTests):
    """
    C{rdma link delete}.
    """
