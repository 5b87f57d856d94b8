"""
A host with an adapter, in memory: what the fabric uses of the package C{ibverbs} and of librdmacm.

Work requests are executed as soon as they are posted, on the memory itself, as by an adapter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

from attrs import define, evolve, field

from tests.hca.fabric.hardware.rights import check
from twisted_ib.hca.connection.rdmacm import PortSpace, gidText
from twisted_ib.hca.connection.request import RejectReason
from twisted_ib.hca.fabric.hardware.rdmacm import CMEvent, Notice, Parameters

# enum ibv_qp_type, ibv_qp_state, ibv_wr_opcode, ibv_wc_status, ibv_wc_opcode and ibv_access_flags.
RC, UC, UD = 2, 3, 4
RESET, INIT, RTR, RTS = range(4)
ERR = 6
WRITE, WRITE_IMM, SEND, SEND_IMM, READ, SWAP, ADD = range(7)
SUCCESS, LENGTH, PROTECTION, FLUSHED, ACCESS, GENERAL = 0, 1, 4, 5, 10, 21
RECV, RECV_WRITE = 128, 129
SIGNALED = 2
#: Of Linux on x86.
PAGE_BYTES = 4096
_REMOTE_WRITE, _REMOTE_ATOMIC = 2, 8
# Remote write, read and atomics.
_REMOTE = 0xE
# Before a datagram: anything, then an IPv4 header up to its addresses.  In a packet there are UDP, BTH, DETH
# and ICRC behind it.
ANYTHING = b"\x21" * 20
_IPV4 = ">20sBxHxxxxBBxx"
_GRH_BYTES, _BEHIND = 40, 8 + 12 + 8 + 4


def _turned(given: Parameters) -> Parameters:
    # As the kernel says it to the receiver (Linux cm.c, cm_format_req_event()): what the sender may ask for,
    # this one serves.
    return evolve(given, responderResources=given.initiatorDepth, initiatorDepth=given.responderResources)


class VerbsError(OSError):
    """
    As the package's.
    """


@define
class SGE:
    """
    A piece of memory.
    """

    addr: int
    length: int
    lkey: int = 0


@define
class RecvWR:
    """
    A receive.
    """

    wr_id: int
    sg_list: list[SGE]


@define
class SendWR:
    """
    A send request.
    """

    wr_id: int
    sg_list: list[SGE]
    opcode: int
    send_flags: int = 0
    remote_addr: int = 0
    rkey: int = 0
    imm_data: int = 0
    compare_add: int = 0
    swap: int = 0
    ah: Any = None
    remote_qpn: int = 0
    remote_qkey: int = 0


@define
class Completion:
    """
    A completion.
    """

    wr_id: int
    qp_num: int
    status: int = SUCCESS
    opcode: int = 0
    byte_len: int = 0
    imm_data: int = 0
    wc_flags: int = 0
    src_qp: int = 0
    status_str: str = "as asked"


class Bell:
    """
    A descriptor that is readable after C{ring}.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        """
        Make it readable.
        """
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def read(self) -> None:
        """
        Undo C{ring}.
        """
        os.eventfd_read(self.fd)

    def close(self) -> None:
        """
        Close it; harmless if repeated.
        """
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Channel(Bell):
    """
    A completion channel.
    """

    def get_cq_event(self) -> None:
        """
        Take an event.
        """
        try:
            self.read()
        except BlockingIOError:
            raise VerbsError(errno.EAGAIN, "ibv_get_cq_event") from None


class CompletionQueue:
    """
    A completion queue.

    @ivar armed: how often an event was asked for.
    """

    def __init__(self, depth: int, channel: Channel, host: Host) -> None:
        self.depth, self.channel, self.host = depth, channel, host
        self.queue: deque[Completion] = deque()
        self.armed = self.acknowledged = 0
        self.isArmed = False

    def push(self, completion: Completion) -> None:
        """
        Add one.
        """
        assert len(self.queue) < self.depth, "the completion queue overruns"
        self.queue.append(completion)
        self.wake()

    def wake(self) -> None:
        """
        Have the event that was asked for.
        """
        if self.isArmed:
            self.isArmed = False
            self.channel.ring()

    def poll(self, most: int) -> list[Completion]:
        """
        Take some; a response comes where there is nothing else.
        """
        found = [self.queue.popleft() for _ in range(min(most, len(self.queue)))]
        if self.host.reading and not found:
            requester, peer, request = self.host.reading.popleft()
            if requester.state == RTS and peer.state == RTS:
                requester.finish(peer, request)
        return found

    def req_notify(self) -> None:
        """
        Ask for an event.
        """
        self.armed += 1
        self.isArmed = True

    def ack_events(self, number: int) -> None:
        """
        Count them.
        """
        self.acknowledged += number

    def close(self) -> None:
        """
        Do nothing.
        """


@define
class Region:
    """
    Registered memory.
    """

    domain: Domain
    addr: int
    length: int
    access: int
    lkey: int

    @property
    def rkey(self) -> int:
        """
        The same; none, as of rxe and siw, where a peer has no right (Linux rxe_mr.c, rxe_mr_init()).
        """
        return self.lkey if self.access & _REMOTE else 0

    @property
    def pd(self) -> Domain:
        """
        Its domain.
        """
        return self.domain

    def close(self) -> None:
        """
        Deregister it.
        """
        del self.domain.host.regions[self.lkey]

    def __del__(self) -> None:
        self.domain.host.collected["region"] += 1


class Domain:
    """
    A protection domain.
    """

    def __init__(self, host: Host) -> None:
        self.host = host

    def reg_mr(self, address: int, length: int, access: int) -> Region:
        """
        Register memory.
        """
        if self.host.isFull:
            raise VerbsError(errno.ENOMEM, "ibv_reg_mr")
        self.host.lookAt(access)
        key = 0x1000 + next(self.host.numbers)
        region = self.host.regions[key] = Region(self, address, length, access, key)
        return region

    def create_qp(self, given: Any) -> AdapterQueuePair:
        """
        Make a queue pair.
        """
        return (DatagramQueuePair if given.qp_type == UD else AdapterQueuePair)(self, given)

    def create_srq(self, max_wr: int = 128) -> SharedReceiveQueue:
        """
        Make a shared receive queue.
        """
        if not self.host.hasShared:
            raise VerbsError(errno.EOPNOTSUPP, "ibv_create_srq")
        return SharedReceiveQueue(self, max_wr)

    def create_ah(self, vector: Any) -> Handle:
        """
        Make an address handle.
        """
        if self.host.isFull:
            raise VerbsError(errno.EHOSTUNREACH, "ibv_create_ah")
        # Of 8 bits.
        struct.pack("B", vector.sgid_index)
        # Or the kernel looks for it, and the program waits.
        assert gidText(int.from_bytes(vector.dgid, "big")) in self.host.found
        return Handle(self.host, vector)

    def close(self) -> None:
        """
        Do nothing.
        """

    def __del__(self) -> None:
        self.host.collected["domain"] += 1


class SharedReceiveQueue:
    """
    A shared receive queue.

    @ivar posted: how many receives each call has brought.
    """

    def __init__(self, domain: Domain, most: int) -> None:
        self.domain, self.most, self.host = domain, most, domain.host
        self.receives: deque[RecvWR] = deque()
        self.posted: list[int] = []
        self.host.shared.append(self)

    def post_recv(self, requests: list[RecvWR]) -> None:
        """
        Post receives.
        """
        self.posted.append(len(requests))
        self.receives.extend(requests)
        assert len(self.receives) <= self.most
        for other in list(self.host.queuePairs.values()):
            other.go()

    def close(self) -> None:
        """
        Destroy it.
        """
        assert all(each.given.srq is not self for each in self.host.queuePairs.values())
        self.host.shared.remove(self)


class Handle:
    """
    An address handle.
    """

    def __init__(self, host: Host, vector: Any) -> None:
        self.host, self.vector = host, vector
        host.handles.append(self)

    def close(self) -> None:
        """
        Destroy it.
        """
        self.host.handles.remove(self)

    def __del__(self) -> None:
        self.host.collected["handle"] += 1


class AdapterQueuePair:
    """
    A queue pair of the adapter.

    @ivar posted: how many times requests were posted, and C{signalled} how many of them were.
    @ivar keys: those of the latest ones' memory.
    @ivar steps: those that it took: the mask, the address vector and the attributes.
    @ivar coming: the receive of a message that is not there as a whole.
    @ivar isUnaware: whether what comes wakes nobody, until something else comes.
    """

    def __init__(self, domain: Domain, given: Any) -> None:
        self.domain, self.given, self.host = domain, given, domain.host
        host = self.host
        if host.isFull:
            raise VerbsError(errno.ENOMEM, "ibv_create_qp")
        if given.max_send_sge > host.pieces:
            raise VerbsError(errno.EINVAL, "ibv_create_qp")
        self.qp_num = host.freeNumber()
        self.state = RESET
        self.rights = 0
        self.peer = 0
        # Those of the shared queue, if it has one.
        self.receives: deque[RecvWR] = deque() if given.srq is None else given.srq.receives
        self.coming: RecvWR | None = None
        self.waiting: deque[SendWR] = deque()
        self.keys: list[int] = []
        self.steps: list[tuple[int, Any, dict[str, int]]] = []
        self.posted = self.requests = self.signalled = 0
        self.isDeaf = self.isUnaware = self._isMissed = False
        host.queuePairs[self.qp_num] = self

    def modify(self, mask: int, vector: Any = None, **given: int) -> None:
        """
        Take a step.
        """
        if given["qp_state"] != RESET and self.host.isFull:
            raise VerbsError(errno.EINVAL, "ibv_modify_qp")
        asked = given.get("max_dest_rd_atomic", 0), given.get("max_rd_atomic", 0)
        if any(each > most for each, most in zip(asked, self.host.depths, strict=True)):
            raise VerbsError(errno.EINVAL, "ibv_modify_qp")
        self.host.lookAt(given.get("qp_access_flags", 0))
        self.steps.append((mask, vector, given))
        if given["qp_state"] == ERR:
            self.state = ERR
            self.waiting.clear()
            if self.coming is not None:
                # As rxe (Linux rxe_resp.c, check_resource()).
                self.given.recv_cq.push(Completion(self.coming.wr_id, self.qp_num, FLUSHED))
            return
        if given["qp_state"] == RESET:
            self.state = RESET
            self.receives.clear()
            self.waiting.clear()
            return
        assert self.state + (self.state < RTS) == given["qp_state"], (self.state, given)
        self.state = given["qp_state"]
        self.rights = given.get("qp_access_flags", self.rights)
        self.peer = given.get("dest_qp_num", self.peer)
        if self.state == RTR:
            for other in self.domain.host.queuePairs.values():
                other.go()

    def post_recv(self, requests: list[RecvWR]) -> None:
        """
        Post receives.
        """
        assert self.state >= INIT and self.given.srq is None
        self.receives.extend(requests)
        assert len(self.receives) <= self.given.max_recv_wr
        # A peer that had none waits (RNR).
        for other in list(self.domain.host.queuePairs.values()):
            other.go()

    def post_send(self, requests: list[SendWR]) -> None:
        """
        Post requests.
        """
        if self.state == ERR:
            self.waiting.extend(requests)
            self.broken()
            return
        assert self.state == RTS
        for each in requests:
            # As the package's structures, of 64 and 32 bits.
            struct.pack("=QI", each.remote_addr, each.rkey)
            assert len(each.sg_list) <= self.given.max_send_sge
            # Of none siw takes that of an earlier request (libsiw siw.c, push_send_wqe()).
            assert len(each.sg_list) == 1 or each.opcode != READ or not self.host.isRNIC
            size = sum(piece.length for piece in each.sg_list)
            if each.opcode != READ and size >= PAGE_BYTES and not each.send_flags & SIGNALED:
                self.host.lent += 1
        self.posted += 1
        self.requests += len(requests)
        self.signalled += sum(bool(each.send_flags & SIGNALED) for each in requests)
        self.keys = [piece.lkey for each in requests for piece in each.sg_list]
        self.waiting.extend(requests)
        assert len(self.waiting) <= self.given.max_send_wr
        peer = self.host.queuePairs.get(self.peer)
        self._isMissed = peer is not None and peer.isUnaware
        if peer is not None:
            peer.isUnaware = False
        self.go()

    def go(self) -> None:
        """
        Execute what can be executed.
        """
        host = self.domain.host
        while self.waiting and self.state == RTS and not host.isHeld and not self._isMissed:
            peer = host.queuePairs.get(self.peer)
            if peer is None or peer.state < RTR or not self.execute(peer, self.waiting[0]):
                return

    def execute(self, peer: AdapterQueuePair, request: SendWR) -> bool:
        """
        @return: whether it was done, well or not.
        """
        takes = request.opcode in (SEND, SEND_IMM, WRITE_IMM)
        isReliable = self.given.qp_type == RC
        isOverrun = takes and not peer.receives
        if self.host.isRNIC and (peer.isDeaf or isOverrun):
            # RFC 5041: the stream ends.
            self.host.early += peer.isDeaf
            self.host.overruns += isOverrun
            self.state = peer.state = ERR
            self.host.ended(self.qp_num, self.peer)
            return True
        if isOverrun and isReliable:
            return False
        self.waiting.popleft()
        if self.host.isRNIC and request.opcode == READ:
            # Linux siw_qp_tx.c, siw_qp_sq_process(): later requests complete before it has its response.
            self.host.reading.append((self, peer, request))
            self.given.send_cq.wake()
        else:
            self.finish(peer, request)
        return True

    def finish(self, peer: AdapterQueuePair, request: SendWR) -> None:
        """
        Do what a request asks for, and complete it.
        """
        takes = request.opcode in (SEND, SEND_IMM, WRITE_IMM)
        isReliable = self.given.qp_type == RC
        status = self.move(peer, request)
        if not isReliable:
            # What fails at the peer is lost.
            takes, status = takes and not status and bool(peer.receives), SUCCESS
        if status or request.send_flags & SIGNALED:
            self.given.send_cq.push(Completion(request.wr_id, self.qp_num, status))
        if status:
            while self.waiting:
                flushed = self.waiting.popleft()
                self.given.send_cq.push(Completion(flushed.wr_id, self.qp_num, FLUSHED))
        elif takes:
            self.arrive(peer, request)

    def arrive(self, peer: AdapterQueuePair, request: SendWR) -> None:
        """
        Complete the receive of a request.
        """
        receive = peer.receives.popleft()
        data = self.gather(request)
        if request.opcode != WRITE_IMM:
            (place,) = receive.sg_list
            assert len(data) <= place.length
            # Linux rxe_resp.c, send_data_in().
            assert self.host.regions[place.lkey].domain is peer.domain
            ctypes.memmove(place.addr, data, len(data))
        isImmediate = request.opcode != SEND
        peer.given.recv_cq.push(
            Completion(
                *(receive.wr_id, peer.qp_num, SUCCESS),
                *(RECV_WRITE if request.opcode == WRITE_IMM else RECV, len(data)),
                *(request.imm_data, 2 if isImmediate else 0),
            )
        )

    def gather(self, request: SendWR) -> bytes:
        """
        @return: the bytes of a request.
        """
        for piece in request.sg_list:
            region = self.domain.host.regions[piece.lkey]
            assert region.domain is self.domain
            assert region.addr <= piece.addr <= region.addr + region.length - piece.length
        return b"".join(ctypes.string_at(piece.addr, piece.length) for piece in request.sg_list)

    def move(self, peer: AdapterQueuePair, request: SendWR) -> int:
        """
        @return: the status of a request that reads or writes.
        """
        data = self.gather(request)
        if request.opcode in (SEND, SEND_IMM):
            return SUCCESS
        if data and not check(peer, request, len(data)):
            peer.broken()
            return ACCESS
        if request.opcode == READ and self.host.isRNIC and not self.isSink(request):
            return PROTECTION
        place = request.sg_list[0].addr if request.sg_list else 0
        if request.opcode in (WRITE, WRITE_IMM):
            ctypes.memmove(request.remote_addr, data, len(data))
        elif request.opcode == READ:
            ctypes.memmove(place, request.remote_addr, len(data))
        else:
            value = ctypes.c_uint64.from_address(request.remote_addr)
            ctypes.memmove(place, request.remote_addr, 8)
            if request.opcode == ADD:
                value.value += request.compare_add
            elif value.value == request.compare_add:
                value.value = request.swap
        return SUCCESS

    def isSink(self, request: SendWR) -> bool:
        """
        @return: whether an RNIC reads into this memory: its peer answers as it writes, and needs the right.
        """
        regions = self.domain.host.regions
        return all(regions[each.lkey].access & _REMOTE_WRITE for each in request.sg_list)

    def broken(self) -> None:
        """
        The peer has asked for what it may not: the queue pair is in error, without a word but of what is
        outstanding (IBTA vol. 1 9.9.3).
        """
        self.state = ERR
        if self.given.srq is None:
            while self.receives:
                flushed = Completion(self.receives.popleft().wr_id, self.qp_num, FLUSHED)
                self.given.recv_cq.push(flushed)
        while self.waiting:
            self.given.send_cq.push(Completion(self.waiting.popleft().wr_id, self.qp_num, FLUSHED))

    def close(self) -> None:
        """
        Destroy it.  What it has done stays in the completion queue of an RNIC, as of libsiw, with what it has
        not: drivers of cards forget both.
        """
        del self.domain.host.queuePairs[self.qp_num]
        if self.host.isRNIC:
            self.broken()
        self.state = ERR

    def __del__(self) -> None:
        self.host.collected["queue pair"] += 1


class DatagramQueuePair(AdapterQueuePair):
    """
    One of UD.
    """

    key = 0

    def modify(self, mask: int, vector: Any = None, **given: int) -> None:
        """
        Take a step.
        """
        state = given["qp_state"]
        if self.host.isFull:
            raise VerbsError(errno.EINVAL, "ibv_modify_qp")
        self.steps.append((mask, vector, given))
        if state in (RESET, ERR):
            while self.receives:
                flushed = Completion(self.receives.popleft().wr_id, self.qp_num, FLUSHED)
                self.given.recv_cq.push(flushed)
            self.waiting.clear()
        self.key = given.get("qkey", self.key)
        self.state = state

    def go(self) -> None:
        """
        Send what can be sent.
        """
        while self.waiting and self.state == RTS and not self.host.isHeld:
            request = self.waiting.popleft()
            assert request.ah in self.host.handles
            data = self.gather(request)
            if request.send_flags & SIGNALED:
                self.given.send_cq.push(Completion(request.wr_id, self.qp_num))
            peer = self.host.queuePairs.get(request.remote_qpn)
            if isinstance(peer, DatagramQueuePair):
                peer.take(self.qp_num, request, data)

    def take(self, sender: int, request: SendWR, data: bytes) -> None:
        """
        A datagram comes.
        """
        if not RTR <= self.state < ERR or request.remote_qkey != self.key or not self.receives:
            return
        receive = self.receives.popleft()
        isImmediate = request.opcode == SEND_IMM
        vector = request.ah.vector
        length = 20 + _BEHIND + 4 * isImmediate + (len(data) + 3 & ~3)
        header = struct.pack(_IPV4, ANYTHING, 0x45, length, vector.hop_limit, 17)
        header += self.host.address + vector.dgid[12:]
        (place,) = receive.sg_list
        assert _GRH_BYTES + len(data) <= place.length
        ctypes.memmove(place.addr, header + data, len(header + data))
        self.given.recv_cq.push(
            Completion(
                *(receive.wr_id, self.qp_num, SUCCESS, RECV, _GRH_BYTES + len(data)),
                *(request.imm_data, 2 * isImmediate, sender),
            )
        )


class Context:
    """
    The adapter, opened.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.isClosed = False
        self.queue: Any = None

    def query_device(self) -> Any:
        """
        @return: the limits.
        """
        return SimpleNamespace(max_cqe=self.host.depth)

    def query_port(self, number: int) -> Any:
        """
        @return: its attributes.
        """
        return SimpleNamespace(active_mtu=self.host.mtu)

    def create_comp_channel(self) -> Channel:
        """
        @return: a channel.
        """
        return Channel()

    def create_cq(self, depth: int, channel: Channel) -> CompletionQueue:
        """
        @return: a queue.
        """
        self.queue = CompletionQueue(depth, channel, self.host)
        return self.queue

    def alloc_pd(self) -> Domain:
        """
        @return: a domain.
        """
        return Domain(self.host)

    def close(self) -> None:
        """
        Close it.
        """
        self.isClosed = True

    def __del__(self) -> None:
        self.host.collected["context"] += 1


@define
class Identifier:
    """
    An identifier of librdmacm.
    """

    manager: Manager
    space: int = PortSpace.TCP
    address: str = ""
    port: int = 0
    there: str = ""
    theirs: int = 0
    peer: int = 0
    backlog: int = 0
    isAwaiting: bool = False
    own: Parameters = field(factory=Parameters)


class Manager:
    """
    A channel of librdmacm.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.most = host.depths
        self.channel = Bell()
        self.events: deque[Notice] = deque()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self.channel.fd

    def tell(self, id: int, kind: CMEvent, status: int = 0, given: Any = None, listener: int = 0) -> None:
        """
        Have an event.
        """
        if kind is CMEvent.ADDR_RESOLVED:
            self.host.found.add(self.host.identifiers[id].there)
        self.events.append(Notice(id, listener, kind, status, given or Parameters()))
        self.channel.ring()

    def event(self) -> Notice | None:
        if self.events:
            notice = self.events.popleft()
            one = self.host.identifiers.get(notice.id)
            if notice.kind is CMEvent.ESTABLISHED and one is not None and one.own.number:
                made = self.host.queuePairs.get(one.own.number)
                if made is not None:
                    made.isDeaf = False
            return notice
        try:
            self.channel.read()
        except BlockingIOError:
            pass
        return None

    def create(self, space: int = PortSpace.TCP) -> int:
        id = next(self.host.numbers)
        self.host.identifiers[id] = Identifier(self, space)
        return id

    def destroy(self, id: int, destroyed: Callable[[], object] | None = None) -> None:
        one = self.host.identifiers.pop(id)
        self.events = deque(each for each in self.events if id not in (each.id, each.listener))
        # The kernel disconnects for a process that goes.
        self._end(one)
        if destroyed is not None:
            destroyed()

    def begin(self, id: int, parameters: Parameters) -> None:
        try:
            self.connect(id, parameters)
        except OSError as error:
            self.tell(id, CMEvent.CONNECT_FAILED, error.errno or 0)

    def settle(self) -> None:
        pass  # It has no threads.

    def bind(self, id: int, address: str, port: int) -> int:
        one = self.host.identifiers[id]
        taken = {(each.address, each.port) for each in self.host.identifiers.values() if each.backlog}
        if port and (address, port) in taken:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        one.address, one.port = address, port or 40000 + next(self.host.numbers)
        return one.port

    def depths(self, id: int) -> tuple[int, int, bool]:
        if self.host.isFull:
            raise OSError(errno.ENOMEM, "ibv_query_device")
        return (*self.most, self.host.hasAtomics)

    def listen(self, id: int, backlog: int) -> None:
        self.host.identifiers[id].backlog = backlog

    def resolveAddress(self, id: int, address: str, port: int, seconds: float) -> None:
        one = self.host.identifiers[id]
        one.there, one.theirs = address, port
        if address not in self.host.silent:
            self.tell(id, CMEvent.ADDR_RESOLVED)

    def resolveRoute(self, id: int, seconds: float) -> None:
        self.tell(id, CMEvent.ROUTE_RESOLVED)

    def ends(self, id: int) -> tuple[str, int, str, int]:
        one = self.host.identifiers[id]
        return one.address, one.port, one.there, one.theirs

    def attributes(self, id: int, state: int) -> tuple[int, dict[str, int], dict[str, Any] | None]:
        given = {"qp_state": state}
        if state == INIT:
            given["qp_access_flags"] = 15
        if state == RTR:
            own = self._peer(id)[1].own
            # As the peer has asked for it (Linux cm.c, cm_init_qp_rtr_attr()).
            given.update(dest_qp_num=own.number, max_dest_rd_atomic=own.initiatorDepth)
        if state == RTS:
            given["max_rd_atomic"] = self._peer(id)[1].own.responderResources
        return 1, given, {"dgid": bytes(16)} if state == RTR else None

    def _agree(self, one: Identifier, parameters: Parameters) -> None:
        # librdmacm cma.c, ucma_valid_param().
        served, outstanding = self.most
        if parameters.responderResources > served or parameters.initiatorDepth > outstanding:
            raise OSError(errno.EINVAL, "Invalid argument")
        one.own = parameters

    def connect(self, id: int, parameters: Parameters) -> None:
        host = self.host
        one = host.identifiers[id]
        self._agree(one, parameters)
        for number, other in list(host.identifiers.items()):
            if other.backlog and (other.address, other.port) == (one.there, one.theirs):
                made = next(host.numbers)
                given = Identifier(
                    other.manager, other.space, other.address, other.port, one.address, one.port, id
                )
                host.identifiers[made], one.peer = given, made
                other.manager.tell(made, CMEvent.CONNECT_REQUEST, 0, _turned(parameters), number)
                return
        self.tell(id, CMEvent.REJECTED, int(RejectReason.INVALID_SERVICE_ID))

    def _peer(self, id: int) -> tuple[Identifier, Identifier]:
        one = self.host.identifiers[id]
        if one.peer not in self.host.identifiers:
            raise OSError(errno.EINVAL, "Invalid argument")
        return one, self.host.identifiers[one.peer]

    def accept(self, id: int, parameters: Parameters) -> None:
        one, other = self._peer(id)
        self._agree(one, parameters)
        if self.host.isRNIC:
            # It takes the queue pairs through their states by itself, and awaits nothing.
            self.host.queuePairs[one.own.number].isUnaware = self.host.isLate
            for each, there in ((one, other), (other, one)):
                made = self.host.queuePairs[each.own.number]
                made.peer, made.state = there.own.number, RTS
            # Linux siw_cm.c, siw_recv_mpa_rr(): what follows the Reply too soon is an error.
            made.isDeaf = True
            self.tell(id, CMEvent.ESTABLISHED)
            other.manager.tell(one.peer, CMEvent.ESTABLISHED, 0, _turned(parameters))
            return
        one.isAwaiting = True
        other.manager.tell(one.peer, CMEvent.CONNECT_RESPONSE, 0, _turned(parameters))

    def reject(self, id: int, privateData: bytes) -> None:
        one, other = self._peer(id)
        reason = int(RejectReason.CONSUMER_DEFINED)
        other.manager.tell(one.peer, CMEvent.REJECTED, reason, Parameters(privateData))
        one.peer = other.peer = 0

    def establish(self, id: int) -> None:
        one, other = self._peer(id)
        other.isAwaiting = False
        other.manager.tell(one.peer, CMEvent.ESTABLISHED)

    def _end(self, one: Identifier) -> None:
        other = self.host.identifiers.get(one.peer)
        if other is not None:
            other.manager.tell(one.peer, CMEvent.DISCONNECTED)
            other.peer = 0
        one.peer = 0

    def disconnect(self, id: int) -> None:
        one, _ = self._peer(id)
        if one.isAwaiting:
            # As Linux before the peer is ready: nothing is sent, without an error (cma.c, rdma_disconnect()).
            return
        self._end(one)
        self.tell(id, CMEvent.DISCONNECTED)

    def letGo(self) -> bool:
        # The kernel takes its time.
        self.host.looks += 1
        return self.host.looks % 2 == 0

    def close(self) -> None:
        assert not [each for each in self.host.identifiers.values() if each.manager is self]
        self.channel.close()
        os.close(self.bell)

    def forked(self) -> None:
        """
        The child's descriptor: there is one process here.
        """


class Host:
    """
    The host: stands for the package C{ibverbs}, too.

    @ivar isHeld: whether the adapter does nothing now.
    @ivar isFull: whether it takes no more memory.
    @ivar hasShared: whether it has shared receive queues, and C{shared} those.
    @ivar isBlind: whether libibverbs cannot list it.
    @ivar isGone: whether it has disappeared, and C{looks} how often librdmacm was asked to let go of it.
    @ivar depths: how many READs and atomics it serves on a queue pair, and has outstanding; C{hasAtomics}:
        whether it has these.
    @ivar pieces: how many a send request may have, of Intel's X722.
    @ivar mtu: the code of the most bytes of a packet.
    @ivar address: its IPv4 address.
    @ivar silent: addresses that do not answer by themselves, and C{found} those that have answered.
    @ivar isRNIC: whether it is of iWARP, C{overruns} how many SENDs have found no receive there, and C{early}
        how many requests came before their peer was connected; C{isLate}: whether the first that comes to one
        that has accepted is not looked at before the next (Linux siw_cm.c, siw_accept()).
    @ivar lent: how many unsignalled requests were of a page and more, which siw reads when later ones are
        done (Linux siw_qp_tx.c, siw_qp_prepare_tx()).
    @ivar collected: how many objects of each kind Python has collected, which destroys what they stand for.
    """

    SGE = SGE
    SendWR = SendWR
    RecvWR = RecvWR
    QPInitAttr = SimpleNamespace
    QPType = int
    AHAttr = SimpleNamespace

    def __init__(self, name: str = "rxe0", depth: int = 32768) -> None:
        self.name, self.depth = name, depth
        self.numbers = count(1)
        self.regions: dict[int, Region] = {}
        self.queuePairs: dict[int, AdapterQueuePair] = {}
        self.identifiers: dict[int, Identifier] = {}
        self.contexts: list[Context] = []
        self.handles: list[Handle] = []
        self.silent: set[str] = set()
        self.found: set[str] = set()
        self.mtu, self.address = 5, b"\x7f\0\0\1"
        self.hasShared = True
        self.shared: list[SharedReceiveQueue] = []
        self.isHeld = self.isFull = self.isGone = self.isBlind = self.isRNIC = self.isLate = False
        self.overruns = self.early = self.lent = 0
        self.reading: deque[tuple[AdapterQueuePair, AdapterQueuePair, SendWR]] = deque()
        self.depths, self.hasAtomics, self.pieces = (16, 16), True, 3
        self.looks = 0
        self.collected: Counter[str] = Counter()

    def freeNumber(self) -> int:
        """
        @return: the number of the next queue pair: siw's is the least that is free (Linux siw_qp.c,
            siw_qp_add()).
        """
        if self.isRNIC:
            return next(each for each in count(0x100) if each not in self.queuePairs)
        return 0x100 + next(self.numbers)

    def get_device_list(self) -> list[Any]:
        """
        @return: the adapter.
        """
        if self.isBlind:
            raise OSError(errno.ENOSYS, "no descriptor is left")
        return [] if self.isGone else [self]

    def lookAt(self, access: int) -> None:
        """
        Refuse rights to what it does not have (Linux mlx5 qp.c, set_qpc_atomic_flags()).
        """
        if access & _REMOTE_ATOMIC and not self.hasAtomics:
            raise VerbsError(errno.EOPNOTSUPP, "no atomics")

    def vanish(self) -> None:
        """
        The adapter disappears, and each identifier hears it.
        """
        self.isGone = True
        for id, each in self.identifiers.items():
            each.manager.tell(id, CMEvent.DEVICE_REMOVAL)

    def ended(self, *numbers: int) -> None:
        """
        The connection of these queue pairs has ended.
        """
        for id, each in list(self.identifiers.items()):
            if each.own.number in numbers and each.peer:
                each.manager.tell(id, CMEvent.DISCONNECTED)
                each.peer = 0

    def open(self) -> Context:
        """
        Open the adapter.
        """
        self.contexts.append(Context(self))
        return self.contexts[-1]

    def resume(self) -> None:
        """
        The adapter goes on.
        """
        self.isHeld = False
        for each in list(self.queuePairs.values()):
            each.go()
