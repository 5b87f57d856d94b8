"""
A device of the kind C{hardware} in the guest, on the kernel's siw, against a software RNIC here.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SkipTest

from tests.interop.adapters import gone, rxe
from tests.interop.lab.images import Images, cacheDirectory
from tests.interop.lab.lab import Peer
from tests.interop.lab.network import IPV4


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

    def test_contract(self) -> None:
        """
        The software asks.
        """
        raise SkipTest(
            "Linux 6.1 ends if software goes at once after its siw has accepted: a BUG() of iwcm.c"
        )


class SIWKillTests(SIWMixin, gone.KillTests):
    """
    C{kill -9} of one side.
    """


class SIWVanishTests(SIWMixin, gone.VanishTests):
    """
    C{rdma link delete}.
    """
