"""
One gibibyte for a receiver of RDS that reads slowly, and very many REQs: see L{tests.rds.test_slow},
L{tests.rds.media.test_tcp} and L{tests.rds.media.test_addressed}.
"""

from __future__ import annotations

import gc
import tracemalloc
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

from tests.rds import test_slow
from tests.rds.media import test_tcp
from tests.rds.media.test_addressed import THERE, AddressedTestCase
from tests.support.waiting import HANG_SECONDS
from twisted_ib import limits
from twisted_ib.hca.cm.machine import requestMessage
from twisted_ib.hca.connection import ConnectRequest, PathRecord
from twisted_ib.hca.connection.rdmacm import RDMACMHeader, gidOf
from twisted_ib.hca.wire.cm.layout import BODY_BYTES
from twisted_ib.hca.wire.cm.messages import REQ
from twisted_ib.rds.protocol.wire import PrivateData

#: What a half-open connection costs at most, in octets: all that is kept of it anywhere.
HALF_OPEN_BYTES = 512


class GibibyteTests(test_slow.SlowTests):
    """
    In one process.
    """

    offered = 1 << 30
    timeout = 10 * HANG_SECONDS


class ShmGibibyteTests(test_slow.ShmSlowTests):
    """
    Over rings.
    """

    offered = 1 << 30
    timeout = 10 * HANG_SECONDS


class TCPGibibyteTests(test_tcp.SlowTests):
    """
    RDS over TCP.
    """

    offered = 1 << 30
    timeout = 10 * HANG_SECONDS


class RequestTests(AddressedTestCase):
    """
    REQs of many hosts.
    """

    def flood(self, device: Any, first: int, count: int, seconds: float = 0.0) -> None:
        """
        As many hosts send a REQ, and nothing else.
        """
        for index in range(first, first + count):
            address = str(ip_address("198.18.0.0") + index)
            request = ConnectRequest(
                serviceID=0x106 << 16 | 18634,
                localQPN=0x10000 + index,
                responseTimeout=20,
                requestRetries=3,
                pathMTU=3,
                primaryPath=PathRecord(localGID=gidOf(address), remoteGID=gidOf(THERE), localACKTimeout=17),
                privateData=RDMACMHeader(address, 0, THERE).pack() + PrivateData(address, THERE).pack(),
            )
            message = requestMessage(request)
            message.localCommunicationID, message.localCAGUID = 0x20000 + index, 0x1000000 + index
            device.services.managementReceived(
                device.fabric.pathTo(address), REQ.attribute, message.pack(), 0, BODY_BYTES
            )
        device.markDirty(device.services)

    def test_memory(self) -> None:
        """
        A REQ whose sender does not answer costs little, and nothing is left when it is given up.
        """
        device = self.channelFor(self.b.reactor, "roce0", THERE).device
        few, many = 300, 2600
        self.patch(limits, "CM_HALF_OPEN_ADDRESSES", many)
        left: list[int] = []
        first = 0

        def traced() -> int:
            """
            Bytes, without 64 requests that were unlike others, which are forgotten all at once.
            """
            vars(REQ)["parse"].__func__.__globals__["known"].clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for ends in (few, many), *[(few,)] * 4:
            sizes, known = [], 0
            for end in ends:
                self.flood(device, first + known, end - known)
                self.assertEqual((self.awaited(self.b), self.b.queuePairs), (end, 0))
                sizes.append(traced())
                known = end
            if known == many:
                self.assertLess((sizes[1] - sizes[0]) / (many - few), HALF_OPEN_BYTES)
            first += known
            self.pass_(60.0, 1.0)
            self.assertEqual((self.awaited(self.b), device.cm.accepted, len(device.cm)), (0, {}, 0))
            left.append(traced())
        # What is bounded has filled at the first time. The supply of random keys is refilled meanwhile, which
        # is 1,400 octets or less; the smallest object for each REQ would be 4,800, each time. What remembers
        # addresses may take memory that earlier tests had, which is not traced, and later other.
        grown = [after - before for before, after in pairwise(left[1:])]
        self.assertLess(min(grown), 2800)
