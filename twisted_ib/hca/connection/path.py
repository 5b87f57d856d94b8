"""
The path record of a connection: addresses, and what packets on the way carry.
"""

from __future__ import annotations

import attrs

GID_BYTES = 16
ZERO_GID = bytes(GID_BYTES)


@attrs.frozen(cache_hash=True)
class PathRecord:
    """
    A path between two ports, as a connect request names it (IBTA vol. 1 12.6.5).

    @ivar localLID: 0xFFFF where LIDs have no meaning (RoCE).
    @ivar localGID: 16 octets, of the request's sender; C{remoteGID} likewise of its receiver.
    @ivar localACKTimeout: a timeout code, see L{timeoutSeconds<twisted_ib.hca.base.timers.timeoutSeconds>}.
    """

    # Linux cm.c cm_format_req writes the permissive LID if the hop limit is over 1, as it is for RoCEv2.
    localLID: int = 0xFFFF
    remoteLID: int = 0xFFFF
    localGID: bytes = ZERO_GID
    remoteGID: bytes = ZERO_GID
    flowLabel: int = 0
    packetRate: int = 0
    trafficClass: int = 0
    hopLimit: int = 0
    serviceLevel: int = 0
    subnetLocal: bool = False
    localACKTimeout: int = 0


#: The path of a request that was given none.
ANY_PATH = PathRecord()
