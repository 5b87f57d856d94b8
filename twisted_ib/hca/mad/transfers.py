"""
The RMPP transfers of one device: which segment is of which transfer, their timers and their bounds.

C{management_aborted} counts transfers that ended without success.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twisted_ib.errors import LengthError, ResourceLimitError
from twisted_ib.hca.mad.rmpp import receiver
from twisted_ib.hca.mad.rmpp.receiver import Receiver
from twisted_ib.hca.mad.rmpp.segments import TransferStatus, control, dataAt, fault, headerOf
from twisted_ib.hca.mad.rmpp.sender import RMPP_ACK_SECONDS, Sender
from twisted_ib.hca.wire.mad.classes import ABORT, DATA, FIRST, STOP
from twisted_ib.hca.wire.mad.mad import RESPONSE

if TYPE_CHECKING:
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.mad.agents import IManagedDevice
    from twisted_ib.hca.mad.requests import ReceivedMAD, Request

#: Transfers of one device that are sent, and as many that peers send without having been asked.
RMPP_TRANSFERS = 256
#: The same for one peer.
RMPP_TRANSFERS_PER_PEER = 64
#: Bytes of those that are sent, and of all that are received.
RMPP_BYTES = 16 << 20
#: The least time, in seconds, that a response has for its next segment: its sender, which repeats one after
#: L{RMPP_ACK_SECONDS}, can do so twice.
RMPP_RESPONSE_LEAST = 2.5 * RMPP_ACK_SECONDS
#: Complete transfers whose repeated segments are acknowledged; over it the oldest is forgotten.
RMPP_COMPLETED = 1024

#: Peer's GID, queue pair, class, version, transaction, and method of the DATA.
Key = tuple[int, int, int, int, int, int]
#: Sends one MAD.
Post = Callable[[bytes], object]


class Transfer:
    """
    One transfer, either way: a machine and its timer.
    """

    __slots__ = ("_timer", "key", "machine", "transfers")

    machine: Any

    def __init__(self, transfers: Transfers, key: Key) -> None:
        self.transfers, self.key = transfers, key
        self._timer: Timer | None = None

    def watch(self) -> None:
        """
        Start the timer.  It stays when the deadline moves, and is started anew when it is over.
        """
        device = self.transfers.device
        left = max(0.0, self.machine.deadline - device.clock())
        self._timer = device.timers.start(left, self._expired)

    def _expired(self) -> None:
        self.step(self.machine.expired, self.transfers.device.clock())
        if self.machine.deadline is not None:
            self.watch()

    def step(self, take: Callable[..., list[bytes]], *arguments: Any) -> None:
        """
        Give the machine an input, send what comes of it, and report the end if it has ended.

        @param take: a method of the machine.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """
        End it; nothing is reported.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """
        Stop its timer.
        """
        if self._timer is not None:
            self._timer.cancel()


class Sending(Transfer):
    """
    A transfer that is sent.

    @ivar isProven: whether its receiver is known to exist, before it has acknowledged anything.
    """

    __slots__ = ("_ended", "_post", "isProven", "size")

    machine: Sender

    def __init__(
        self,
        transfers: Transfers,
        key: Key,
        machine: Sender,
        size: int,
        post: Post,
        ended: Callable[[TransferStatus], object] | None,
        isProven: bool,
    ) -> None:
        super().__init__(transfers, key)
        self.machine, self.size, self.isProven = machine, size, isProven
        self._post, self._ended = post, ended

    def step(self, take: Callable[..., list[bytes]], *arguments: Any) -> None:
        for mad in take(*arguments):
            self._post(mad)
        status = self.machine.status
        if status is not None and self.transfers.sent(self):
            ended, self._ended = self._ended, None
            if ended is not None:
                ended(status)

    def arrived(self) -> None:
        """
        End it, as its response has begun; nothing is reported, nor sent: response and request have the same
        transaction, so that the peer would take an ABORT for one of the response.
        """
        self._ended = None
        self.step(self.machine.arrived)

    def cancel(self) -> None:
        self._ended = None
        if self.machine.status is None:
            self.step(self.machine.abort, TransferStatus.UNSPECIFIED)


class Receiving(Transfer):
    """
    A transfer that is received.

    @ivar first: its first segment; the path of C{latest} is where answers go.
    @ivar request: the request that it answers; L{None} for one that a peer sends by itself, and at its end.
    """

    __slots__ = ("first", "latest", "request")

    machine: Receiver

    def __init__(
        self, transfers: Transfers, key: Key, machine: Receiver, first: ReceivedMAD, request: Request | None
    ) -> None:
        super().__init__(transfers, key)
        self.machine, self.request = machine, request
        self.first = self.latest = first

    def step(self, take: Callable[..., list[bytes]], *arguments: Any) -> None:
        transfers, machine = self.transfers, self.machine
        before = machine.held
        mads = take(*arguments)
        if not transfers.hold(machine.held - before) and machine.status is None:
            before = machine.held
            mads = machine.stop()
            transfers.hold(-before)
        for mad in mads:
            transfers.agents.respond(self.latest, mad)
        if machine.status is not None:
            transfers.ended(self)

    def cancel(self) -> None:
        self.request = None
        if self.machine.status is None:
            self.step(self.machine.abort, TransferStatus.UNSPECIFIED)

    def forget(self) -> None:
        """
        End it, and tell nobody.
        """
        self.step(self.machine.forget)


class Transfers:
    """
    The transfers of the agents of one device.
    """

    def __init__(self, agents: Any) -> None:
        """
        @param agents: L{Agents<twisted_ib.hca.mad.dispatch.Agents>}.
        """
        self.agents = agents
        self.device: IManagedDevice = agents.device
        self._sending: dict[Key, Sending] = {}
        self._receiving: dict[Key, Receiving] = {}
        self._complete: OrderedDict[Key, Receiving] = OrderedDict()
        #: Bytes of transfers that are sent, and of those that are received.
        self._bytesSent = self._bytesHeld = 0
        #: Transfers that are received and answer no request.
        self._unasked: dict[Key, Receiving] = {}

    def __len__(self) -> int:
        return len(self._sending) + len(self._receiving)

    # -- sending

    def send(
        self,
        key: Key,
        head: bytes,
        data: bytes,
        post: Post,
        ended: Callable[[TransferStatus], object] | None = None,
        *,
        isResponse: bool = False,
        expectsResponse: bool = False,
        spent: int = 0,
    ) -> Sending:
        """
        Send a transfer.

        @param head: the octets in front of the data.
        @param ended: called once at its end, unless it is cancelled.
        @param spent: see L{Sender}.
        @raise LengthError: it is too long.
        @raise ResourceLimitError: there are L{RMPP_TRANSFERS}, or they have L{RMPP_BYTES}.
        """
        if len(data) > receiver.RMPP_TABLE_BYTES:
            raise LengthError(f"a transfer has {receiver.RMPP_TABLE_BYTES} bytes at most, not {len(data)}")
        if not self._hasRoom(len(data)) or (isResponse and self._isFull(self._sending, key)):
            raise ResourceLimitError(f"{len(self._sending)} transfers are sent already")
        now = self.device.clock()
        # A request of several segments proves nothing: it can be sent without having seen an ACK.
        draw = self.device.randomBits if isResponse else None
        machine = Sender(head, data, now, draw=draw, expectsResponse=expectsResponse, spent=spent)
        sending = self._sending[key] = Sending(*(self, key, machine, len(data)), post, ended, not isResponse)
        self._bytesSent += len(data)
        sending.step(machine.begin, now)
        sending.watch()
        return sending

    def _hasRoom(self, size: int) -> bool:
        # Requests with forged sources take room from each other only: a peer that exists answers at once.
        for each in list(self._sending.values()):
            if len(self._sending) < RMPP_TRANSFERS and self._bytesSent + size <= RMPP_BYTES:
                break
            if not each.isProven and not each.machine.acknowledged:
                self._drop(each)
        return len(self._sending) < RMPP_TRANSFERS and self._bytesSent + size <= RMPP_BYTES

    def _drop(self, sending: Sending) -> None:
        del self._sending[sending.key]
        sending.stop()
        self._bytesSent -= sending.size
        if sending.machine.status is not TransferStatus.SUCCESS:
            self.device.count("management_aborted")

    def _isFull(self, transfers: Iterable[Key], key: Key) -> bool:
        return sum(each[0] == key[0] for each in transfers) >= RMPP_TRANSFERS_PER_PEER

    def repeated(self, key: Key, spent: int = 0) -> bool:
        """
        A request came again.

        @param spent: see L{Sender}.
        @return: whether a transfer is its response already.
        """
        sending = self._sending.get(key)
        if sending is not None:
            sending.step(sending.machine.repeat, spent)
        return sending is not None

    def sent(self, sending: Sending) -> bool:
        """
        One that is sent has ended.

        @return: whether that is news.
        """
        if self._sending.get(sending.key) is not sending:
            return False
        self._drop(sending)
        return True

    # -- receiving

    def received(self, mad: ReceivedMAD, class_: int, version: int) -> None:
        """
        A segment arrived, for a class and version that has an agent with RMPP.
        """
        key = self.agents.addressOf(mad.path), mad.number, class_, version, mad.transaction, mad.method
        if headerOf(mad.data).type != DATA:
            # MADs of a receiver have the response bit of the DATA turned round.
            sending = self._sending.get((*key[:5], mad.method ^ RESPONSE))
            if sending is not None:
                sending.step(sending.machine.received, mad.data, self.device.clock())
                return
        receiving = self._receiving.get(key) or self._complete.get(key) or self._open(key, mad)
        if receiving is not None:
            receiving.latest = mad
            receiving.step(receiving.machine.received, mad.data, self.device.clock())

    def hold(self, size: int) -> bool:
        """
        A machine holds so many bytes more.

        @return: whether there is room for them.
        """
        self._bytesHeld += size
        return self._bytesHeld <= RMPP_BYTES

    def _open(self, key: Key, mad: ReceivedMAD) -> Receiving | None:
        isResponse = bool(mad.method & RESPONSE)
        request: Request | None = self.agents.requestOf(mad) if isResponse else None
        if not isResponse and not self.agents.takesTransfer(mad):
            return None
        if request is not None and request.receiving is not None:
            request = None
        header = headerOf(mad.data)
        isWrong = fault(header) in (TransferStatus.BAD_TYPE, TransferStatus.UNSUPPORTED_VERSION)
        begins = header.type == DATA and (header.segment <= 1 or bool(header.flags & FIRST))
        at = dataAt(key[2]) or 0
        if request is not None and header.type in (STOP, ABORT):
            self.device.count("management_aborted")
            request.end(None)
        elif (isResponse and request is None) or not (isWrong or begins):
            self.device.count("management_unmatched")
        elif request is None and not self._hasRoomFor(key):
            self.device.count("management_dropped")
            self.agents.respond(mad, control(mad.data, at, STOP, TransferStatus.RESOURCES_EXHAUSTED))
        else:
            return self._begin(key, mad, at, request)
        return None

    def _hasRoomFor(self, key: Key) -> bool:
        if self._isFull(self._unasked, key):
            return False
        if len(self._unasked) >= RMPP_TRANSFERS:
            # As with those that are sent: who has sent no second segment may not exist.
            oldest = next((each for each in self._unasked.values() if each.machine.count < 2), None)
            if oldest is not None:
                oldest.forget()
        return len(self._unasked) < RMPP_TRANSFERS

    def _begin(self, key: Key, mad: ReceivedMAD, at: int, request: Request | None) -> Receiving:
        now = self.device.clock()
        if request is None:
            machine = Receiver(at, now)
        else:
            machine = Receiver(at, now, max(request.patience, RMPP_RESPONSE_LEAST), isAnswer=True)
        receiving = self._receiving[key] = Receiving(self, key, machine, mad, request)
        if request is not None:
            request.transferring(receiving)
        else:
            self._unasked[key] = receiving
        receiving.watch()
        return receiving

    def ended(self, receiving: Receiving) -> None:
        """
        One that is received is complete or has ended, now or before.
        """
        machine, key = receiving.machine, receiving.key
        if machine.deadline is None:
            receiving.stop()
            if self._complete.get(key) is receiving:
                del self._complete[key]
        if self._receiving.get(key) is not receiving:
            return
        del self._receiving[key]
        request, receiving.request = receiving.request, None
        isResponse = bool(key[5] & RESPONSE)
        self._unasked.pop(key, None)
        if machine.status is not TransferStatus.SUCCESS:
            self.device.count("management_aborted")
            if request is not None:
                request.end(None)
            return
        self._complete[key] = receiving
        if len(self._complete) > RMPP_COMPLETED:
            self._complete.popitem(last=False)[1].stop()
        self._bytesHeld -= machine.held
        received = receiving.first._replace(table=machine.take())
        if request is not None:
            request.end(received)
        elif not isResponse:
            self.agents.deliver(received)

    def close(self) -> None:
        """
        The device closes.
        """
        for each in (*self._sending.values(), *self._receiving.values(), *self._complete.values()):
            each.stop()
        self._sending.clear()
        self._receiving.clear()
        self._complete.clear()
        self._unasked.clear()
        self._bytesSent = self._bytesHeld = 0
