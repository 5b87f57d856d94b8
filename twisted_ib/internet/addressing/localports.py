"""
Port numbers of active sides.

The CM does not use the number, it stands in the Hello only; but applications tell peers apart by it, and bind
to it.  As with TCP one number may serve several connections to different peers, unless the application bound
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import SystemRandom

from twisted_ib import limits
from twisted_ib.hca.memory.keys import DrawnAhead
from twisted_ib.internet.addressing.addresses import FIRST_EPHEMERAL_PORT, Address, End

#: RFC 6335 section 6: 49152 to 65535, 2^14 numbers.
_EPHEMERAL_BITS = 14
#: Private data of the REJ to an active side whose address and port another peer has.
NUMBER_TAKEN = b"number taken"


class LocalPorts:
    """
    The local ends in use at one channel.

    @ivar ends: By local host and port number, the peer's address, or a set of several.
    @ivar isFree: Whether the fabric lets a connection have a number, or L{None} if it has no say.
    """

    def __init__(
        self, below: Callable[[int], int] | None = None, isFree: Callable[[int], bool] | None = None
    ) -> None:
        self.ends: dict[str, dict[int, Address | set[Address]]] = {}
        # RFC 6056 section 3.3.1: a random port keeps outsiders from guessing a connection.  Linux cma.c
        # (cma_alloc_any_port) begins at a random number, too.
        drawn = DrawnAhead(SystemRandom().getrandbits, _EPHEMERAL_BITS)
        number = partial(drawn, _EPHEMERAL_BITS) if below is None else partial(below, 1 << _EPHEMERAL_BITS)
        self._draw: Callable[[], int] = number
        self.isFree = isFree

    def take(self, host: str, port: int, peer: Address) -> int | None:
        """
        Reserve a port number.

        @param port: The number, or 0 for any.
        @param peer: Kept, so one that is shared.
        @return: The number, or L{None} if none is available.
        """
        ports = self.ends.get(host, {})
        if port:
            # bind(2) without SO_REUSEADDR: EADDRINUSE as long as any connection has the number.
            if port in ports or (self.isFree is not None and not self.isFree(port)):
                return None
        else:
            port = self._free(ports, peer)
            if not port:
                return None
        # Nearly every number has one peer, and a set for each would cost memory in every connection.
        there = ports.get(port)
        if there is None:
            ports[port] = peer
        elif isinstance(there, set):
            there.add(peer)
        else:
            ports[port] = {there, peer}
        self.ends[host] = ports
        return port

    def _free(self, ports: dict[int, Address | set[Address]], peer: Address) -> int:
        # Bounded, not to end: with all numbers in use a connect fails with EADDRINUSE and does not hang the
        # reactor.
        for _ in range(limits.PORT_ATTEMPTS):
            port = FIRST_EPHEMERAL_PORT + self._draw()
            there = ports.get(port)
            # Linux cma.c, cma_port_is_unique: a drawn number may be shared by connections to different peers,
            # as the pair of addresses and ports tells them apart.
            if there is None or not (peer in there if isinstance(there, set) else peer == there):
                if self.isFree is None or self.isFree(port):
                    return port
        return 0

    def release(self, local: Address | End, peer: Address) -> None:
        """
        Free a number.
        """
        self.free(local.host, local.port, peer)

    def free(self, host: str, port: int, peer: Address) -> None:
        """
        Free a number, as L{release}; harmless if it is not in use.
        """
        ports = self.ends.get(host)
        there = None if ports is None else ports.get(port)
        if ports is None or there is None:
            return
        if isinstance(there, set):
            there.discard(peer)
            if there:
                return
        elif there is not peer and there != peer:
            return
        del ports[port]
        if not ports:
            del self.ends[host]
