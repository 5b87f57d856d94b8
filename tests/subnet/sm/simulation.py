"""
Random subnets whose links come and go while SMPs are lost.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.opensm.topologies import text
from tests.subnet.sm.subnets import Managed
from twisted_ib import limits
from twisted_ib.hca.mad.attributes.node import SMState
from twisted_ib.subnet.network.smi import Packet
from twisted_ib.subnet.sm.manager import Options

#: Links that change while SMPs are lost, and how many of these.
CHANGES = 6
LOSS = 0.1


class Simulation:
    """
    One random subnet.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        switches = self.random.randrange(1, 8)
        self.adapters = [f"h{number}" for number in range(self.random.randrange(2, 9))]
        self.switches = {f"s{number}": 16 for number in range(switches)}
        self._used = dict.fromkeys(self.switches, 0)
        self.links = [self._link(name, f"s{self.random.randrange(switches)}") for name in self.adapters]
        for number in range(1, switches):
            self.links.append(self._link(f"s{number}", f"s{self.random.randrange(number)}"))
        for _ in range(self.random.randrange(4) if switches > 1 else 0):
            self.links.append(self._link(*self.random.sample(sorted(self.switches), 2)))
        self.managed = Managed(self.topology())
        self.loss = 0.0
        carrier = self.managed.subnet._carrier
        self._carry = carrier.carry
        carrier.carry = self.carry  # type: ignore[method-assign]

    def _link(self, one: str, other: str) -> tuple[str, int, str, int]:
        ends = []
        for name in (one, other):
            if name in self._used:
                self._used[name] += 1
            ends += [name, self._used.get(name, 1)]
        return tuple(ends)  # type: ignore[return-value]

    def topology(self, without: int = 0) -> str:
        """
        @param without: so many links are down.
        """
        links = self.random.sample(self.links, len(self.links) - without)
        # Nodes stay in their order, so their GUIDs do.
        return text(self.switches, self.adapters, sorted(links))

    def carry(self, port: Any, packet: Packet) -> Any:
        """
        Lose some.
        """
        return None if self.random.random() < self.loss else self._carry(port, packet)

    def run(self) -> list[str]:
        """
        @return: the faults at the end.
        """
        managed = self.managed
        managed.subnet.manage(Options())
        managed.settle(5.0)
        lids: dict[str, int] = {}
        for _ in range(CHANGES):
            self.loss = LOSS
            managed.load(self.topology(self.random.randrange(1, 3)))
            managed.settle(self.random.choice((0.0, 0.05, 1.0)))
            lids.update({name: lid for name, lid in managed.lids().items() if lid})
        self.loss = 0.0
        managed.load(self.topology())
        # Everybody is asked again by the next light sweeps.
        managed.settle(5 * limits.SM_SWEEP_SECONDS)
        return self.wrong(lids)

    def wrong(self, lids: dict[str, int]) -> list[str]:
        """
        @param lids: those that nodes had.
        """
        managed = self.managed
        found = [f"{name} is not Active" for name in managed.notActive()]
        if managed.manager.state is not SMState.MASTER or managed.manager._stages is not None:
            found.append("not the master, or still sweeping")
        now = managed.lids()
        found += [f"LID of {name}: {lid}, {now[name]}" for name, lid in lids.items() if now[name] != lid]
        if len(set(now.values())) != len(now) or 0 in now.values():
            found.append(f"LIDs: {now}")
        for one in self.adapters:
            for other in self.adapters:
                if one != other and "..." in (way := managed.way(one, other)):
                    found.append(f"from {one} to {other}: {way}")
        return found


__all__ = ["Simulation"]
