"""
Redirection of a management class to another queue pair, both sides (IBTA vol. 1 13.5.2).

An agent that does not serve requests on queue pair 1 answers them with status 0x0002 and its ClassPortInfo,
which says where they are served.  Its peers repeat the request there, and send later ones there at once.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import evolve

from twisted_ib.errors import LengthError
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.base.port import LARGEST_UNICAST_LID
from twisted_ib.hca.mad.attributes.classportinfo import RESPONSE_TIME, ClassPortInfo
from twisted_ib.hca.wire.grh import isMulticast
from twisted_ib.hca.wire.mad.classes import TRANSFER_HEADERS, RMPPHeader
from twisted_ib.hca.wire.mad.mad import REDIRECTED, Mad

if TYPE_CHECKING:
    from twisted_ib.hca.mad.device import IManagedDevice

#: Redirections that a device remembers; over it that which was not used for longest is forgotten.
MAD_REDIRECTIONS = 1024
#: How often one request follows a redirection.
MAD_REDIRECTIONS_FOLLOWED = 4


class Redirection(NamedTuple):
    """
    The queue pair that serves a class.

    @ivar key: the address of the port.
    @ivar number: the queue pair, and C{queueKey} its Q_Key.
    """

    key: int
    number: int
    queueKey: int
    trafficClass: int = 0
    flowLabel: int = 0


def redirectionOf(mad: Mad, key: int, hasLIDs: bool) -> Redirection | None:
    """
    @param mad: a response that has ClassPortInfo.
    @param key: the address of the port that was asked.
    @param hasLIDs: whether that is a LID, else a GID.
    @return: where it redirects; L{None} if nowhere.
    """
    try:
        info = ClassPortInfo.parse(mad.data if isinstance(mad.data, bytes) else b"")
    except LengthError:
        return None
    # Without an address it is another queue pair of the same port.
    found = (info.redirectLID if hasLIDs else info.redirectGID) or key
    isGroup = found > LARGEST_UNICAST_LID if hasLIDs else isMulticast(found)
    if info.redirectQP <= GSI_QPN or isGroup:
        return None
    return Redirection(found, info.redirectQP, info.redirectQKey, info.redirectTC, info.redirectFL)


def redirecting(request: Mad, device: IManagedDevice, queuePair: Any, capabilities: int) -> Mad:
    """
    @param queuePair: a UD queue pair in RTR or RTS.
    @param capabilities: CapabilityMask of the class.
    @return: the answer to a request that is served by another queue pair, but for its method.
    """
    info = ClassPortInfo(
        classVersion=request.classVersion,
        capabilityMask=capabilities,
        respTimeVal=RESPONSE_TIME,
        # Where a LID leads, requests need no GRH.
        redirectGID=0 if device.port.lid else device.gid,
        redirectLID=device.port.lid,
        redirectPKey=queuePair.partition,
        redirectQP=queuePair.number,
        redirectQKey=(queuePair.attributes or {}).get("qkey", 0),
    )
    header = request.header
    if isinstance(header, TRANSFER_HEADERS):
        header = header._replace(transfer=RMPPHeader())
    return evolve(request, status=REDIRECTED, header=header, data=info.pack())


class Redirections:
    """
    The redirections that a device knows.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[int, int], Redirection] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def learn(self, asked: tuple[int, int], redirection: Redirection) -> None:
        """
        @param asked: the address of a port, and a class.
        """
        self._found[asked] = redirection
        self._found.move_to_end(asked)
        if len(self._found) > MAD_REDIRECTIONS:
            self._found.popitem(last=False)

    def find(self, asked: tuple[int, int]) -> Redirection | None:
        """
        @return: where requests to a port and class go, if not to queue pair 1.
        """
        found = self._found.get(asked)
        if found is not None:
            self._found.move_to_end(asked)
        return found

    def forget(self, asked: tuple[int, int]) -> None:
        """
        Forget a redirection: no answer came from there.
        """
        self._found.pop(asked, None)
