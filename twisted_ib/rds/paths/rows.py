"""
The rows that C{ib-ss} shows of RDS: its sockets, and its paths to peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twisted_ib.hca.base.socketrows import CONNECTION, LISTEN, LISTENER, Row
from twisted_ib.internet.addressing.addresses import withPort

if TYPE_CHECKING:
    from twisted_ib.rds.paths.network import Network
    from twisted_ib.rds.paths.path import RDSPath

PROVIDER = "rds"
#: A socket that is marked in the congestion map, and a path with messages held back for a congested port.
CONGESTED = "CONGESTED"
#: A path without a connection, wanted or not, and one with; under the names that ss(8) knows from TCP.
CONNECTING, DOWN, UP = "SYN_SENT", "CLOSE", "ESTABLISHED"


def networkRows(network: Network) -> Iterator[Row]:
    """
    @return: a row for each address of a socket, with the bytes sent and not acknowledged, and one for
        each path in use.
    """
    for (address, port), socket in list(network.sockets.items()):
        queued = getattr(socket, "queued", None)
        # A ping has an entry in C{sockets} while it waits, but is no socket.
        if queued is not None:
            state = CONGESTED if port in network.mapOf(address) else LISTEN
            yield Row(LISTENER, PROVIDER, withPort(address, port), None, state, None, queued())
    for path in list(network.paths.values()):
        yield _pathRow(path)


def _pathRow(path: RDSPath) -> Row:
    machine = path.machine
    state = DOWN if path.since is None else CONNECTING
    if path.carrier is not None:
        state = CONGESTED if path.held else UP
    flight = sum(each.size for queue in (machine.waiting, machine.unacknowledged) for each in queue)
    return Row(CONNECTION, PROVIDER, path.local, path.remote, state, None, flight, machine.repeated)
