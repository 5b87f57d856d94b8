"""
The topologies that OpenSM brings up.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from twisted_ib.subnet.network.topology import Topology

#: Two ends of a link: node and port.
Link = tuple[str, int, str, int]


def text(switches: dict[str, int], adapters: Iterable[str], links: Iterable[Link]) -> str:
    """
    @param switches: name -> ports.
    @param adapters: names of CAs with two ports.
    @return: a topology file.
    """
    ends: dict[str, list[str]] = {name: [] for name in (*adapters, *switches)}
    for near, number, far, other in links:
        ends[near].append(f'[{number}] "{far}"[{other}]')
        ends[far].append(f'[{other}] "{near}"[{number}]')
    heads = {name: f'Ca 2 "{name}"' for name in ends} | {
        name: f'Switch {ports} "{name}"' for name, ports in switches.items()
    }
    return "\n\n".join("\n".join((heads[name], *lines)) for name, lines in ends.items()) + "\n"


def star(count: int) -> str:
    """
    @return: one switch with so many CAs.
    """
    names = [f"Hca{number}" for number in range(1, count + 1)]
    links = [("Switch1", number, name, 1) for number, name in enumerate(names, 1)]
    return text({"Switch1": max(8, count)}, names, links)


def trunks() -> str:
    """
    @return: two switches with two links between them and two CAs each.
    """
    links = [
        ("Switch1", 1, "Hca1", 1),
        ("Switch1", 2, "Hca3", 1),
        ("Switch1", 3, "Switch2", 3),
        ("Switch1", 5, "Switch2", 5),
        ("Switch2", 1, "Hca2", 1),
        ("Switch2", 2, "Hca4", 1),
    ]
    return text({"Switch1": 8, "Switch2": 8}, ["Hca1", "Hca2", "Hca3", "Hca4"], links)


def fatTree() -> str:
    """
    @return: four leaves with two CAs each, under two spines.
    """
    links: list[Link] = []
    for leaf in range(1, 5):
        links += [(f"Leaf{leaf}", spine, f"Spine{spine}", leaf) for spine in (1, 2)]
        links += [(f"Leaf{leaf}", 2 + each, f"Hca{2 * leaf + each - 2}", 1) for each in (1, 2)]
    switches = {f"Leaf{number}": 8 for number in range(1, 5)} | {f"Spine{number}": 8 for number in (1, 2)}
    return text(switches, [f"Hca{number}" for number in range(1, 9)], links)


#: By name; the node that OpenSM is attached to is always Hca1.
TOPOLOGIES = {
    "pair": text({}, ["Hca1", "Hca2"], [("Hca1", 1, "Hca2", 1)]),
    "star2": star(2),
    "star8": star(8),
    "star64": star(64),
    "trunks": trunks(),
    "fatTree": fatTree(),
}


def unlinked(topology: Topology, name: str) -> Topology:
    """
    @return: the topology without the links of a node.
    """
    return Topology(
        tuple(
            evolve(
                node,
                ports={
                    number: end for number, end in node.ports.items() if name not in (node.name, end.node)
                },
            )
            for node in topology.nodes
        )
    )


def without(topology: Topology, name: str) -> Topology:
    """
    @return: the topology without a node; all others keep their GUIDs.
    """
    return Topology(tuple(node for node in unlinked(topology, name).nodes if node.name != name))
