"""
The LIDs of a subnet, one for each end port: LMC is 0 (IBTA vol. 1 4.1.3, 14.4.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twisted_ib.subnet.sm.model import Port


class LIDs:
    """
    Which port has, or had, which LID.  A port keeps its LID as long as it can: one that was gone gets its own
    back, and those that another subnet manager has assigned stay.
    """

    def __init__(self) -> None:
        #: Port GUID -> LID; those that have been gone for longest come first.
        self._lids: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._lids)

    def assign(self, ports: Iterable[Port], highest: int) -> dict[int, int]:
        """
        Choose the LIDs of the ports that are there.

        @param ports: end ports, in the order in which they were discovered.
        @param highest: the highest LID that all switches can forward.
        @return: port GUID -> LID; without those for which no LID is left.
        """
        old = self._lids
        found: dict[int, int] = {}
        taken: set[int] = set()
        without: list[int] = []
        present = list(ports)
        # Of two ports that have the same LID the one that got it from us keeps it, else the first.
        for port in sorted(present, key=lambda each: old.get(each.guid) != each.info.lid):
            if 0 < port.info.lid <= highest and port.info.lid not in taken:
                found[port.guid] = port.info.lid
                taken.add(port.info.lid)
            else:
                without.append(port.guid)
        unassigned = []
        for guid in without:
            lid = old.get(guid, 0)
            if 0 < lid <= highest and lid not in taken:
                found[guid] = lid
                taken.add(lid)
            else:
                unassigned.append(guid)
        gone = {guid: lid for guid, lid in old.items() if guid not in found and lid not in taken}
        reserved = set(gone.values())
        free = (lid for lid in range(1, highest + 1) if lid not in taken and lid not in reserved)
        for guid in unassigned:
            lid = next(free, 0)
            if not lid and gone:
                # All LIDs were used once.
                lid = gone.pop(next(iter(gone)))
            if lid:
                found[guid] = lid
        self._lids = {**gone, **found}
        return found
