"""
A stream socket: L{Stream} over an identifier of the communication manager, its queue pair and memory.

All methods but L{RSocket.flush} and L{RSocket.finish} are called with the hub's lock held.
"""

from __future__ import annotations

import errno
from collections import deque
from enum import IntEnum
from typing import Final

from twisted_ib import limits
from twisted_ib.drive.process import monotonic
from twisted_ib.errors import HCAError
from twisted_ib.hca.base.traits import TransportType
from twisted_ib.hca.queues.completion import WCStatus, WorkCompletion
from twisted_ib.hca.queues.receives import ReceiveRequest
from twisted_ib.hca.queues.requests import SendOpcode, SendRequest
from twisted_ib.hca.services.operations.message import PULL_LEAST
from twisted_ib.hca.services.operations.write import PostedWriteImmediate
from twisted_ib.verbs.c.errors import HandleError, numberOf
from twisted_ib.verbs.c.rsocket.memory import MESSAGE_BYTES, Mapped, Memory, Messages
from twisted_ib.verbs.c.rsocket.protocol import (
    BUFFER_BYTES,
    CONTROL_REQUESTS,
    DEPTH,
    FIRST_WRITE,
    GREETING_BYTES,
    MAP_BYTES,
    MOST_WRITE,
    TARGET_BYTES,
    TARGETS,
    Region,
    Stream,
    Way,
    Write,
)
from twisted_ib.verbs.core.hub import hub
from twisted_ib.verbs.pyverbs import (
    CMID,
    CQ,
    MR,
    AddrInfo,
    CMEvent,
    CMEventChannel,
    ConnParam,
    QPCap,
    QPInitAttr,
    enums,
)
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address

_A, _E = enums.ibv_access_flags, enums.rdma_cm_event_type
_SUCCESS: Final = WCStatus.SUCCESS
_WRITABLE: Final = int(_A.IBV_ACCESS_LOCAL_WRITE | _A.IBV_ACCESS_REMOTE_WRITE)
#: Octets of the parts of the send buffer that hold targets and entries of maps on their way.
_CONTROL_BYTES: Final = MAP_BYTES * CONTROL_REQUESTS
#: Offsets of mapped memory have 64 bits, and C's a sign; lengths 32.
_OFFSET_MASK, _MOST_MAPPED = (1 << 64) - 1, (1 << 32) - 1
_RETRIES = 7
#: All that they need is the identifier 0, which no message is; so many that messages have taken are posted
#: together.  As many more are for messages that use no credit: of credits two for halves of the buffer and
#: two for messages that were read, as no more is outstanding, and of the end.
_RECEIVE: Final = ReceiveRequest(0)
_RECEIVES: Final = 16
_POSTED: Final = DEPTH + 2 * _RECEIVES
#: Seconds that a socket which is closed or shut down waits for its peer to take what was written.  A peer
#: that has no receives posted is asked for ever, since seven retries mean that.
LINGER_SECONDS = 60.0
#: Seconds that a peer keeps its place in a full backlog before it says that it is ready to receive.  It does
#: so a round trip after the answer; the senders of forged requests never do, and would keep all others out.
ESTABLISH_SECONDS = 2.0


class Phase(IntEnum):
    """
    The life of a socket.
    """

    NEW = 0
    BOUND = 1
    LISTENING = 2
    CONNECTING = 3
    CONNECTED = 4
    OVER = 5


class RSocket:
    """
    A socket.

    @ivar phase: where it is in its life.
    @ivar error: the errno of a failed connect, until it is asked for.
    @ivar sendBytes: the length of the send buffer, and C{receiveBytes} of the receive buffer.
    @ivar maps: entries of its map, by which the peer shows memory.
    @ivar channel: of its identifier; its descriptor is the socket's.
    @ivar edges: how often it has become ready for something, or may have, as EPOLLET tells of (epoll(7)).
    """

    def __init__(self, device: str | None, cmid: CMID | None = None) -> None:
        """
        @param cmid: of an accepted connection.
        """
        self.channel = CMEventChannel()
        if cmid is None:
            cmid = CMID(self.channel, port_space=enums.RDMA_PS_TCP, device=device)
        else:
            cmid.migrate_id(self.channel)
        self.cmid = cmid
        self._reports = self.channel._reports
        self.phase = Phase.NEW
        self.error = 0
        self.sendBytes = self.receiveBytes = BUFFER_BYTES
        self.maps = self.edges = 0
        self._mapped: list[Mapped] = []
        # Connections of a listener: those not established yet, each with the time until which it keeps its
        # place, those that the program has not taken, and how many of both there may be.
        self._accepting: dict[RSocket, float] = {}
        self._accepted: deque[RSocket] = deque()
        self._backlog = 0
        self._stream: Stream | None = None
        self._messages: Messages | None = None
        self._controls, self._unposted = 0, _POSTED

    # -- addresses

    def bind(self, address: Address) -> None:
        """
        Bind to an address of this host.
        """
        info = AddrInfo()
        info.source = address
        self.cmid.bind_addr(info)
        self.phase = Phase.BOUND

    def listen(self, backlog: int) -> None:
        """
        Listen for connections.
        """
        # As listen(2), it may be repeated (rdma-core rsocket.c, rlisten).
        if self.phase is Phase.LISTENING:
            return
        if self.phase is not Phase.BOUND:
            raise HandleError("The socket is not bound")
        self._backlog = min(max(backlog, 1), limits.LISTEN_BACKLOG)
        self.cmid.listen(self._backlog)
        self.phase = Phase.LISTENING

    def connect(self, source: Address | None, destination: Address) -> None:
        """
        Begin to connect.
        """
        if self.phase is Phase.CONNECTING:
            raise HandleError("The socket is being connected", errno.EALREADY)
        if self.phase is Phase.CONNECTED:
            raise HandleError("The socket is connected", errno.EISCONN)
        info = AddrInfo()
        info.source, info.destination = source, destination
        self.cmid.resolve_addr(info)
        self.phase = Phase.CONNECTING

    # -- progress

    def progress(self) -> None:
        """
        Take what has happened, and let the peer send more.  This does not drive the devices: the hub does
        that, before it asks for what is waited for.
        """
        if self._accepting:
            self._settle()
        hasHappened = False
        # Asked at each step: not by a call.
        while self._reports._waiting and self.phase is not Phase.OVER:
            # Each connection has descriptors and buffers: further requests wait in the communication manager,
            # which bounds them.
            if self.phase is Phase.LISTENING and not self._makeRoom():
                return
            with self.channel.get_cm_event() as event:
                self._happened(event)
            self.edges += 1
            hasHappened = True
        # The peer is told at once of what the program reads: anything else to tell follows what has come.
        if (stream := self._stream) is None or not (hasHappened or self._cq._core.completions):
            return
        if self.phase is not Phase.OVER:
            try:
                if completions := self._cq._core.completions:
                    self._take(stream, completions)
                # Before the RTU the peer's queue pair may not receive (IBTA vol. 1 12.9.7).
                if self.phase is Phase.CONNECTED and (updates := stream.updates()):
                    self._post(*updates)
            except HCAError:
                self._fail(errno.EIO)

    def look(self) -> None:
        """
        Drive the devices, and take what has come: for programs that poll.
        """
        hub.drive(() if self._stream is None else self._cq._core.completions)
        self.progress()

    def _makeRoom(self) -> bool:
        if len(self._accepting) + len(self._accepted) < self._backlog:
            return True
        oldest = next(iter(self._accepting), None)
        if oldest is None or monotonic() < self._accepting[oldest]:
            return False
        del self._accepting[oldest]
        oldest.close()
        return True

    def _settle(self) -> None:
        for each in tuple(self._accepting):
            # Only an event changes its phase.
            if each._reports:
                each.progress()
            if each.phase is Phase.CONNECTING:
                continue
            del self._accepting[each]
            if each.phase is Phase.CONNECTED:
                self._accepted.append(each)
                self.edges += 1
            else:
                each.close()

    def _happened(self, event: CMEvent) -> None:
        kind = event.event_type
        try:
            if kind == _E.RDMA_CM_EVENT_ADDR_RESOLVED:
                self.cmid.resolve_route()
            elif kind == _E.RDMA_CM_EVENT_ROUTE_RESOLVED:
                self.cmid.connect(self._parameters(self._start().greeting()))
            elif kind == _E.RDMA_CM_EVENT_CONNECT_REQUEST:
                self._requested(event)
            elif kind == _E.RDMA_CM_EVENT_ESTABLISHED:
                # Of the side that accepted, the request had it.
                if self._stream is not None and not self._stream.isConnected:
                    self._greeted(event.private_data)
                self.phase = Phase.CONNECTED
            elif kind != _E.RDMA_CM_EVENT_TIMEWAIT_EXIT:
                self._fail(self._errno(event))
        except HCAError as error:
            self._fail(numberOf(error))

    @staticmethod
    def _errno(event: CMEvent) -> int:
        if event.event_type == _E.RDMA_CM_EVENT_REJECTED:
            return errno.ECONNREFUSED
        return -event.status if event.status < 0 else errno.ECONNRESET

    def _fail(self, number: int) -> None:
        self.edges += 1
        # A connection that was cut ends as one that is closed; one that was never made is an error.
        if self._stream is not None:
            self._stream.isOver = True
            if self.phase is Phase.CONNECTED:
                return
        self.error = number
        self.phase = Phase.OVER

    def _start(self) -> Stream:
        cmid = self.cmid
        assert cmid.context is not None
        self._cq = cq = CQ(cmid.context, DEPTH + _POSTED)
        # RFC 5040 has no immediate data: messages are sent.
        isSent = cmid.device.traits.transport is TransportType.IWARP
        cap = QPCap(DEPTH, _POSTED, TARGETS, 1, MESSAGE_BYTES if isSent else 0)
        cmid.create_qp(QPInitAttr(enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=not isSent))
        assert cmid.qp is not None
        self._work = cmid.qp._work
        if isSent:
            self._messages = Messages(cmid, _POSTED)
        self._sending = Memory(cmid, self.sendBytes + _CONTROL_BYTES, 0)
        self._receiving = Memory(cmid, self.receiveBytes, _WRITABLE)
        self._targets = Memory(cmid, TARGETS * TARGET_BYTES + self.maps * MAP_BYTES, _WRITABLE)
        shown = self._receiving.shown(), self._targets.shown()
        requests = DEPTH // 2 if isSent else DEPTH
        self._stream = stream = Stream(*shown, self.sendBytes, maps=self.maps, requests=requests)
        self._receive()
        return stream

    def _receive(self) -> None:
        messages, count, self._unposted = self._messages, self._unposted, 0
        self._work.postReceives([_RECEIVE] * count if messages is None else messages.receives(count))

    def _greeted(self, data: bytes) -> None:
        assert self._stream is not None
        self._stream.connect(data, self._targets.view)

    @staticmethod
    def _parameters(greeting: bytes) -> ConnParam:
        # librdmacm/rsocket.c: no READs, all retries.
        param = ConnParam(0, 0, flow_control=1, retry=_RETRIES, rnr_retry=_RETRIES, data_len=GREETING_BYTES)
        param.set_private_data(greeting)
        return param

    def _requested(self, event: CMEvent) -> None:
        made = None
        try:
            made = RSocket(None, CMID(event, listen_id=self.cmid))
            made.sendBytes, made.receiveBytes, made.maps = self.sendBytes, self.receiveBytes, self.maps
            stream = made._start()
            made._greeted(event.private_data)
            made.cmid.accept(self._parameters(stream.greeting()))
        # The request is rejected; for the next there may be a descriptor or memory.
        except (HCAError, OSError, MemoryError):
            if made is not None:
                made.close()
            return
        made.phase = Phase.CONNECTING
        self._accepting[made] = monotonic() + ESTABLISH_SECONDS

    def _take(self, stream: Stream, completions: deque[WorkCompletion]) -> None:
        # Whether there was room nobody asks if octets, or credits, have come.
        received, hadRoom, messages = 0, True, self._messages
        while completions:
            each = completions.popleft()
            isGood = each.status is _SUCCESS
            if each.workRequestID:
                if not received and hadRoom:
                    hadRoom = bool(stream.room())
                stream.completed(each.workRequestID, isGood)
            elif isGood:
                received += 1
                stream.received(each.immediate if messages is None else messages.taken(each))
        if received or not hadRoom or stream.isOver:
            self.edges += 1
        if received and not stream.isOver:
            self._unposted += received
            if self._unposted >= _RECEIVES:
                self._receive()

    def _post(self, *writes: Write) -> None:
        requester, messages = self._work.requester, self._messages
        for each in writes:
            pieces = each.pieces
            if len(pieces) == 1 and pieces[0][1] < PULL_LEAST and not each.isDirect and messages is None:
                # Nearly all writes.
                ((at, length),) = pieces
                payload = self._sending.view[at : at + length]
                message = each.message
                requester.enqueueSends(
                    (PostedWriteImmediate(message, message, payload, length, each.address, each.key),)
                )
                continue
            if messages is not None and not pieces and not each.content:
                requester.enqueue(messages.sent(each))
                continue
            # A message alone is a write of no octets, which still names a piece.
            elements = [self._sending.part(*piece) for piece in pieces or ((0, 0),)]
            if each.content:
                # Behind the data: as many parts as there are control requests, in turn.
                at = len(self._sending.view) - _CONTROL_BYTES + self._controls * MAP_BYTES
                self._controls = (self._controls + 1) % CONTROL_REQUESTS
                self._sending.view[at : at + len(each.content)] = each.content
                elements = [self._sending.part(at, len(each.content))]
            isAlone = each.isDirect or messages is not None
            opcode = SendOpcode.RDMA_WRITE if isAlone else SendOpcode.RDMA_WRITE_WITH_IMM
            request = SendRequest(each.message, opcode, elements)
            request.immediate, request.remoteAddress, request.remoteKey = each.message, each.address, each.key
            if messages is not None and not each.isDirect:
                # The message behind it tells of it; one that fails tells itself.
                request.flags = 0
                requester.enqueue(request, True)
                request = messages.sent(each)
            requester.enqueue(request, True)

    # -- what the program does

    @property
    def canAccept(self) -> bool:
        """
        Whether a connection waits.
        """
        return bool(self._accepted)

    def accept(self) -> RSocket:
        """
        @return: the next connection; there must be one.
        """
        return self._accepted.popleft()

    @property
    def canRead(self) -> bool:
        """
        Whether L{read} has something to say: octets, or the end.
        """
        stream = self._stream
        if stream is None or self.phase is Phase.OVER:
            return self.phase is Phase.OVER
        return stream.waiting > 0 or stream.isOver or not stream.open & Way.READ

    @property
    def isAtEnd(self) -> bool:
        """
        Whether the peer sends no more.
        """
        stream = self._stream
        return stream is not None and (stream.isOver or not stream.open & Way.READ)

    @property
    def waiting(self) -> int:
        """
        Octets that can be read.
        """
        return 0 if self._stream is None else self._stream.waiting

    @property
    def canWrite(self) -> bool:
        """
        Whether L{write} has something to say: that it takes octets, or an error.
        """
        stream = self._stream
        if self.phase is not Phase.CONNECTED or stream is None:
            return self.phase is Phase.OVER
        return stream.isOver or not stream.open & Way.WRITE or bool(stream.room())

    def read(self, target: memoryview, peek: bool = False) -> int:
        """
        @return: octets read; 0 at the end.
        """
        if self._stream is None:
            raise HandleError("The socket is not connected", errno.ENOTCONN)
        count = 0
        for offset, length in self._stream.read(len(target), peek):
            target[count : count + length] = self._receiving.view[offset : offset + length]
            count += length
        if updates := self._stream.updates():
            self._post(*updates)
        return count

    def _checked(self) -> Stream:
        stream = self._stream
        if stream is None:
            raise HandleError("The socket is not connected", errno.ENOTCONN)
        if stream.isOver or not stream.open & Way.WRITE:
            raise HandleError("The connection is closed", errno.ECONNRESET)
        return stream

    def write(self, data: memoryview) -> int:
        """
        @return: octets written; 0 if there is no room, or no connection yet.
        """
        if self.phase is Phase.CONNECTING:
            return 0
        stream = self._checked()
        # The peer knows of mapped memory before it has what was written after that.
        if stream.untold:
            self._post(*stream.updates())
        done, most, left, view = 0, FIRST_WRITE, len(data), self._sending.view
        while done < left and (room := stream.room()):
            write = stream.write(min(room, most, left - done))
            for offset, length in write.pieces:
                view[offset : offset + length] = data[done : done + length]
                done += length
            self._post(write)
            most = min(2 * most, MOST_WRITE)
        return done

    # -- mapped memory

    def map(self, address: int, length: int, isWritable: bool, offset: int) -> int:
        """
        Register memory of the program.

        @param isWritable: whether the peer may write there.
        @param offset: by which the peer names it; -1 is its address.
        @return: the offset.
        @raise HandleError: there is no connection, or it is too long for an entry (EINVAL); the peer's map is
            full (ENOMEM).
        """
        stream, index = self._stream, None
        if stream is None or self.phase is not Phase.CONNECTED or length > _MOST_MAPPED:
            raise HandleError("There is no connection that this can be mapped for")
        if isWritable:
            used = {each.index for each in self._mapped}
            index = next((each for each in range(stream.peerMaps) if each not in used), None)
            if index is None:
                raise HandleError("The peer's map is full", errno.ENOMEM)
        region = MR(self.cmid, length, _WRITABLE if isWritable else _A.IBV_ACCESS_LOCAL_WRITE, address)
        offset = address if offset == -1 else offset
        if index is not None:
            stream.untold[index] = offset & _OFFSET_MASK, Region(address, region.rkey, length)
            try:
                self._post(*stream.updates())
            except BaseException:
                # The program has no mapping that it could take back.
                stream.untold.pop(index, None)
                region.close()
                raise
        self._mapped.append(Mapped(address, length, region, index))
        return offset

    def unmap(self, address: int, length: int) -> None:
        """
        The peer may not write there any more.

        @raise HandleError: no such memory is mapped (EINVAL).
        """
        wanted = address, length
        found = next((each for each in self._mapped if (each.address, each.length) == wanted), None)
        if found is None:
            raise HandleError("No such memory is mapped")
        self._mapped.remove(found)
        if self._stream is not None and found.index is not None:
            self._stream.untold.pop(found.index, None)
        found.region.close()

    @property
    def canWriteAt(self) -> bool:
        """
        Whether L{writeAt} has something to say, as C{canWrite}.
        """
        stream = self._stream
        if self.phase is not Phase.CONNECTED or stream is None:
            return self.phase is Phase.OVER
        return stream.isOver or not stream.open & Way.WRITE or bool(stream.directRoom())

    def writeAt(self, data: memoryview, offset: int) -> int | None:
        """
        Write into memory that the peer has mapped.

        @param offset: of its first octet, as the peer names it.
        @return: octets written; L{None} where the peer shows no memory.
        """
        stream = self._checked()
        if stream.untold:
            self._post(*stream.updates())
        room = stream.directRoom()
        if not room:
            return 0
        write = stream.direct(offset & _OFFSET_MASK, min(room, MOST_WRITE, len(data)))
        if write is None:
            return None
        done = 0
        for at, length in write.pieces:
            self._sending.view[at : at + length] = data[done : done + length]
            done += length
        self._post(write)
        return done

    @property
    def isFlushed(self) -> bool:
        """
        Whether all that was written has reached the peer, or never will.
        """
        stream = self._stream
        return stream is None or stream.isOver or self.phase is not Phase.CONNECTED or stream.isFlushed

    def shutdown(self, way: int) -> None:
        """
        Close directions, and say so to the peer.
        """
        if self._stream is None:
            raise HandleError("The socket is not connected", errno.ENOTCONN)
        self._post(*self._stream.shutdown(way))

    def flush(self) -> None:
        """
        Wait until the peer has what was written, never will, or does not take it in time.  The hub's lock
        must not be held.
        """

        def flushed() -> bool:
            self.progress()
            return self.isFlushed

        hub.wait(flushed, LINGER_SECONDS)

    def finish(self) -> None:
        """
        Close it once the peer has what was written, or does not take it in time.  The hub's lock must not be
        held.
        """
        try:
            if self.phase is Phase.CONNECTED:
                with hub:
                    self.shutdown(Way.READ | Way.WRITE)
                self.flush()
        finally:
            with hub:
                self.close()

    def close(self) -> None:
        """
        Close it, with what was not accepted.
        """
        while self._accepting:
            self._accepting.popitem()[0].close()
        while self._accepted:
            self._accepted.popleft().close()
        self.phase = Phase.OVER
        if self._stream is not None:
            self._stream.isOver = True
        try:
            self.cmid.close()
        finally:
            self.channel.close()
