"""
Two HCAs on InfiniBand, whose ports have LIDs: for tests.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from attrs import evolve

from tests.hca.services.datagrams.datagram_pair import DatagramPair, DatagramSide
from twisted_ib.hca.base.port import Port
from twisted_ib.hca.base.traits import LOCAL, LinkLayer
from twisted_ib.hca.services.address import AddressHandle, AddressVector
from twisted_ib.hca.services.datagramform import FORMS

#: Base LIDs of C{a} and C{b}, whose LMC is 2.
LIDS = (0x10, 0x20)
INFINIBAND = evolve(LOCAL, linkLayer=LinkLayer.INFINIBAND)


class LocalPair(DatagramPair):
    """
    As its base, with the local form.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        sides = (self.a, self.b)
        for side, lid in zip(sides, LIDS, strict=True):
            hca = side.hca
            hca.traits = INFINIBAND
            #: What its port tells.
            hca.violations = violations = []
            hca.fabric = SimpleNamespace(violated=violations.append)
            hca.datagramForm = FORMS[LinkLayer.INFINIBAND]
            hca.port = Port(
                linkLayer=LinkLayer.INFINIBAND, lid=lid, lmc=2, gids=(hca.gid,), partitions=hca.partitions
            )
        for path, mine, other, lid in zip(self.ends, sides, sides[::-1], LIDS[::-1], strict=True):
            path.peer = SimpleNamespace(guid=other.hca.guid, gid=other.hca.gid, lid=lid)
            for key in (*range(lid, lid + 4), other.hca.gid):
                mine.hca.paths[key] = path

    def handle(self, side: DatagramSide, lid: int, **fields: Any) -> AddressHandle:
        """
        @return: an address handle of a LID, with a GRH if there is a GID.
        """
        gid = fields.pop("gid", 0)
        vector = AddressVector(gid, lid=lid, isGlobal=bool(gid), **fields)
        return AddressHandle(side.pd, vector, side.hca)
