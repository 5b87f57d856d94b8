"""
Counters of ports, by the names of performance management's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twisted_ib.subnet.network.graph import Node, Port

#: LRH, BTH, DETH, MAD and ICRC, in the 4 octets that data counters count (IBTA vol. 1 16.1.3.5).
MAD_WORDS: Final = 72


#: Counters that have the same value here as others: all MADs are datagrams at service level 0, and are lost
#: where a link is down or a LID leads nowhere.
_SAME: Final = {
    "portInactiveDiscards": "portXmitDiscards",
    "portDLIDMappingErrors": "portRcvSwitchRelayErrors",
    "portOpRcvPkts": "portRcvPkts",
    "portOpRcvData": "portRcvData",
    "xmtDataSL0": "portXmitData",
    "rcvDataSL0": "portRcvData",
}


class Counters:
    """
    The packets that have passed the ports of a subnet, and those that were lost at them.
    """

    def __init__(self) -> None:
        self._counts: dict[Port, dict[str, int]] = {}

    def of(self, port: Port) -> Mapping[str, int]:
        """
        @return: the counters of a port; those without a name are 0.
        """
        counts = self._counts.get(port, {})
        return {**counts, **{name: counts[same] for name, same in _SAME.items() if same in counts}}

    def add(self, port: Port, name: str, number: int = 1) -> None:
        """
        Count something at a port.
        """
        counts = self._counts.setdefault(port, {})
        counts[name] = counts.get(name, 0) + number

    def passed(self, port: Port, far: Port) -> None:
        """
        A MAD has left one port and arrived at the other end of its link.
        """
        for end, way in ((port, "Xmit"), (far, "Rcv")):
            self.add(end, f"port{way}Data", MAD_WORDS)
            self.add(end, f"port{way}Pkts")
            self.add(end, f"portUnicast{way}Pkts")

    def forget(self, node: Node) -> None:
        """
        A node is gone.
        """
        for port in node.each():
            self._counts.pop(port, None)
