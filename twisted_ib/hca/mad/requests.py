"""
A management datagram that arrived, and a request that waits for its response.

Redirection of a management class to another queue pair, both sides (IBTA vol. 1 13.5.2): an agent that does
not serve requests on queue pair 1 answers them with status 0x0002 and its ClassPortInfo, which says where
they are served.  Its peers repeat the request there, and send later ones there at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import evolve

from twisted_ib.errors import LengthError
from twisted_ib.hca.base.operation import GSI_QPN
from twisted_ib.hca.base.port import LARGEST_UNICAST_LID
from twisted_ib.hca.mad.attributes.notice import RESPONSE_TIME, ClassPortInfo
from twisted_ib.hca.mad.rmpp.segments import TransferStatus, dataAt
from twisted_ib.hca.wire.grh import isMulticast
from twisted_ib.hca.wire.mad.classes import TRANSFER_HEADERS, RMPPHeader
from twisted_ib.hca.wire.mad.mad import METHOD_AT, REDIRECTED, Mad, decodeMAD

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.mad.agents import IManagedDevice
    from twisted_ib.hca.mad.dispatch import Agents
    from twisted_ib.hca.mad.transfers import Receiving, Sending

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


class Target(NamedTuple):
    """
    The destination of a request.

    @ivar key: the address of the port; responses come from it.
    @ivar word: operation and queue pair.
    @ivar header: the octets in front of the MAD, DETH included.
    """

    key: int
    word: int
    header: bytes


class ReceivedMAD(NamedTuple):
    """
    A MAD that arrived.

    @ivar path: the path that it came by; its C{peer} is the sender, by the sender's own account where the
        path cannot know.
    @ivar number: the queue pair that it came to, 0 or 1.
    @ivar source: the sender's queue pair.
    @ivar method: its method.
    @ivar transaction: its transaction id.
    @ivar attribute: its attribute id.
    @ivar data: its 256 octets.
    @ivar partition: its P_Key; 0 if the medium has none.
    @ivar table: the data of all MADs of a transfer, of which this is the first; L{None} of a plain one.
    """

    path: Any
    number: int
    source: int
    method: int
    transaction: int
    attribute: int
    data: bytes
    partition: int = 0
    table: bytes | None = None

    @property
    def mad(self) -> Mad:
        """
        All its fields; the data of a transfer is that of all its MADs.
        """
        mad = decodeMAD(self.data)
        return mad if self.table is None else evolve(mad, data=self.table)


#: Takes a request of a peer.
Received = Callable[[ReceivedMAD], object]
#: Takes the response to a request, or L{None} if there is none.
Answered = Callable[["ReceivedMAD | None"], object]


class Request:
    """
    A MAD, or a transfer of MADs, that waits for its response.
    """

    def __init__(
        self,
        agents: Agents,
        key: tuple[int, int, int],
        asked: int,
        target: Target,
        answered: Answered | None,
    ) -> None:
        """
        @param asked: the address that it was meant for.
        @param target: where it is sent.
        """
        self._agents = agents
        self.address, self._word, self._header = target
        self._octets = b""
        self._followed = 0
        self._answered = answered
        self._way: Any = agents.hold(target)
        self._timer: Timer | None = None
        self._timeout, self._left = 0.0, 0
        #: Queue pair, class and transaction id, as its response has them.
        self.key = key
        #: The port that was meant, and the class.
        self.asked = asked, key[1]
        #: The time of all its attempts, seconds.
        self.patience = 0.0
        #: The transfer that it is, and the one that its response is, while it is under way.
        self.sending: Sending | None = None
        self.receiving: Receiving | None = None

    def begin(self, octets: bytes, timeout: float, retries: int) -> None:
        """
        Send it, and again until it is answered.
        """
        self._octets, self._timeout, self._left = octets, timeout, retries
        self.patience = timeout * (retries + 1)
        self._send()

    def beginTransfer(self, version: int, octets: bytes, data: bytes, timeout: float, retries: int) -> None:
        """
        Send it as a transfer.  It is not repeated as a whole: its segments are.

        @raise ResourceLimitError: there is no room for one.
        @raise LengthError: it is too long.
        """
        self._timeout, self.patience = timeout, timeout * (retries + 1)
        self.sending = self._agents.transfers.send(
            (self.address, *self.key[:2], version, self.key[2], octets[METHOD_AT]),
            octets[: dataAt(self.key[1])],
            data,
            self._post,
            self._transferred,
            expectsResponse=self._answered is not None,
        )

    def _transferred(self, status: TransferStatus) -> None:
        self.sending = None
        if status is TransferStatus.SUCCESS and self._answered is not None:
            self._timer = self._agents.device.timers.start(self.patience, self._expired)
        else:
            self.end(None)

    def transferring(self, receiving: Receiving) -> None:
        """
        Its response has begun to arrive: that sets the time from now on.
        """
        if self._timer is not None:
            self._timer.cancel()
        sending, self.sending, self.receiving = self.sending, None, receiving
        if sending is not None:
            sending.arrived()

    def redirect(self, target: Target) -> bool:
        """
        Send it elsewhere.

        @return: whether it can be: it was not redirected too often, and is one MAD.
        """
        if not self._octets or self._followed >= MAD_REDIRECTIONS_FOLLOWED:
            return False
        self._followed += 1
        if self._timer is not None:
            self._timer.cancel()
        way = self._way
        self.address, self._word, self._header = target
        self._way = self._agents.hold(target)
        self._agents.device.paths.release(way)
        self._send()
        return True

    def _post(self, octets: bytes) -> None:
        if self._way is not None:
            self._way.send(self._word, self._header + octets, b"", 0)

    def _send(self) -> None:
        self._timer = self._agents.device.timers.start(self._timeout, self._expired)
        self._post(self._octets)

    def _expired(self) -> None:
        if self._left:
            self._left -= 1
            self._send()
        else:
            self._agents.device.count("management_timeouts")
            self.end(None)

    def end(self, response: ReceivedMAD | None) -> None:
        """
        Report its response, or that there is none.
        """
        answered = self._answered
        if response is None:
            self._agents.redirections.forget(self.asked)
        self.cancel()
        if answered is not None:
            answered(response)

    def cancel(self) -> None:
        """
        Wait no longer; nothing is reported.  Idempotent.
        """
        if self._way is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        transfers, self.sending, self.receiving = (self.sending, self.receiving), None, None
        for transfer in transfers:
            if transfer is not None:
                transfer.cancel()
        way, self._way, self._answered = self._way, None, None
        self._agents.forget(self)
        self._agents.device.paths.release(way)
