"""
The LIDs of a subnet, one for each end port: LMC is 0 (IBTA vol. 1 4.1.3, 14.4.3).

Forwarding tables: shortest paths, spread over the ports that lead the same way, and a spanning tree for each
multicast group.

The paths are those of OpenSM's C{minhop}: in topologies with circles of switches they may be such that full
buffers wait for each other in a circle.  Rings in memory do not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from twisted_ib.subnet.network.switch import NO_PORT
from twisted_ib.subnet.sm.model import Node, Port

if TYPE_CHECKING:
    from twisted_ib.subnet.sm.model import Port

#: Farther than any switch.
_UNREACHABLE: Final = 1 << 16


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


class Routing:
    """
    The ways through the switches of a subnet.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = list(nodes)
        self._switches = [node for node in self._nodes if node.switch is not None]
        #: Switch -> its links to other switches.
        self._links = {
            node: [
                (port.number, port.peer)
                for _, port in sorted(node.ports.items())
                if port.peer is not None and port.peer.node.switch is not None and port.peer.node is not node
            ]
            for node in self._switches
        }
        self._distances = {node: self._from(node) for node in self._switches}
        #: (switch, destination switch) -> the links that are on a shortest path.
        self._nearer: dict[tuple[Node, Node], list[tuple[int, Port]]] = {}

    def _from(self, start: Node) -> dict[Node, int]:
        distances = {start: 0}
        turn = deque((start,))
        while turn:
            node = turn.popleft()
            for _, peer in self._links[node]:
                if peer.node not in distances:
                    distances[peer.node] = distances[node] + 1
                    turn.append(peer.node)
        return distances

    def _towards(self, node: Node, destination: Node) -> list[tuple[int, Port]]:
        found = self._nearer.get((node, destination))
        if found is None:
            distances = self._distances[destination]
            nearer = distances.get(node, 0) - 1
            found = [link for link in self._links[node] if distances.get(link[1].node) == nearer]
            self._nearer[node, destination] = found
        return found

    def linear(self) -> dict[Node, bytes]:
        """
        @return: of each switch the port of each LID, up to the highest of all.
        """
        ends = sorted(
            (port for node in self._nodes for port in node.ends() if port.lid), key=lambda each: each.lid
        )
        size = ends[-1].lid + 1 if ends else 0
        tables = {node: bytearray([NO_PORT]) * size for node in self._switches}
        # How many LIDs are behind each port.
        loads = {node: [0] * (len(node.ports) + 1) for node in self._switches}
        for end in ends:
            home = _exit(end)
            if home is None:
                continue
            tables[home.node][end.lid] = home.number
            for node in self._switches:
                links = self._towards(node, home.node)
                if links:
                    load = loads[node]
                    chosen = min(links, key=lambda link, load=load: load[link[0]])[0]  # type: ignore[misc]
                    load[chosen] += 1
                    tables[node][end.lid] = chosen
        return {node: bytes(table) for node, table in tables.items()}

    def multicast(self, members: Iterable[Port], mlid: int, senders: Iterable[Port] = ()) -> dict[Node, int]:
        """
        The tree of a multicast group.

        @param members: end ports that receive.
        @param mlid: groups with other multicast LIDs use other links between the same switches.
        @param senders: end ports from which messages come, and to which none go.
        @return: the egress ports of each switch on it, bit I{n} is port I{n}.
        """
        masks: dict[Node, int] = {}
        for member in members:
            home = _exit(member)
            if home is not None:
                masks[home.node] = masks.get(home.node, 0) | 1 << home.number
        if not masks:
            return masks
        for home in map(_exit, senders):
            if home is not None:
                masks.setdefault(home.node, 0)
        homes = list(masks)
        # From the switch that is nearest to all each way leads to a member.
        root = min(
            self._switches,
            key=lambda node: sum(self._distances[node].get(home, _UNREACHABLE) for home in homes),
        )
        joined = {root}
        for node in homes:
            if node not in self._distances[root]:
                del masks[node]
                continue
            while node not in joined:
                joined.add(node)
                links = self._towards(node, root)
                number, peer = links[mlid % len(links)]
                masks[node] = masks.get(node, 0) | 1 << number
                masks[peer.node] = masks.get(peer.node, 0) | 1 << peer.number
                node = peer.node
        return masks


def _exit(end: Port) -> Port | None:
    # The port of a switch that leads to an end port; port 0 for that of the switch itself.
    if end.node.switch is not None:
        return end
    peer = end.peer
    return peer if peer is not None and peer.node.switch is not None else None
