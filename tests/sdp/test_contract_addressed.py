"""
SDP over packets is TCP to applications: the tests of L{tests.sdp.test_contract}, on a device that has an
address.
"""

from __future__ import annotations

from typing import Any

from tests.hca.addressed import onWire
from tests.internet.carriers import SDP
from tests.sdp.test_contract import EPOLL, IB, casesOf
from twisted_ib.hca.device.registry import addDevice

HERE = "127.0.0.1"


class OnWire:
    """
    Both ends are C{roce0}, which has one address.
    """

    def setUp(self) -> None:
        """
        Add it.
        """
        test: Any = self
        onWire(test, {HERE: 4096})
        addDevice("roce0", "roce", HERE)
        super().setUp()  # type: ignore[misc]


globals().update(casesOf(__name__, SDP("roce0"), [IB, EPOLL], OnWire))
