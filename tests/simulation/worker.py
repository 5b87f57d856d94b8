"""
One side of a connection under test: it asks for all kinds of work, and looks at every completion.

Memory is laid out so that everything can be told from everything else: each request has a place of
its own, at both ends, and between the places are guards.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import attrs

from tests.simulation.world import Host
from twisted_ib.hca.base.states import QPState, QPType
from twisted_ib.hca.memory.access import Access
from twisted_ib.hca.memory.windows import WindowType
from twisted_ib.hca.queues.completion import CompletionQueue, WCStatus
from twisted_ib.hca.queues.receives import SGE, ReceiveRequest
from twisted_ib.hca.queues.requests import Capabilities, Destination, SendFlags, SendOpcode, SendRequest
from twisted_ib.hca.services.address import AddressHandle, AddressVector
from twisted_ib.hca.services.work import WorkQueues
from twisted_ib.hca.wire.grh import GRH_BYTES

#: Between any two places.
GUARD = b"\xa5" * 32
#: The bytes of a place before something is put there.
EMPTY = b"\x5a"
#: The longest message.
LONGEST = 9000
#: The same of a few: longer than what a queue pair hands on at a time.
HUGE = 150_000
RECEIVES = 64
QUEUE_KEY = 0x11111111

_ACCESS = int(
    Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC | Access.MW_BIND
)
_SEND = (SendOpcode.SEND, SendOpcode.SEND_WITH_IMM, SendOpcode.SEND_WITH_INV)
_WRITE = (SendOpcode.RDMA_WRITE, SendOpcode.RDMA_WRITE_WITH_IMM, SendOpcode.ATOMIC_WRITE)
_ATOMIC = (SendOpcode.ATOMIC_CMP_AND_SWP, SendOpcode.ATOMIC_FETCH_AND_ADD)
#: Opcodes of requests of 8 bytes.
_SHORT = (*_ATOMIC, SendOpcode.ATOMIC_WRITE)
#: Opcodes that consume a receive of the peer.
_TAKES = (*_SEND, SendOpcode.RDMA_WRITE_WITH_IMM)
#: Opcodes of an unreliable connection.
UNRELIABLE = (
    SendOpcode.SEND,
    SendOpcode.SEND_WITH_IMM,
    SendOpcode.RDMA_WRITE,
    SendOpcode.RDMA_WRITE_WITH_IMM,
)
RELIABLE = (*_SEND, *_WRITE, SendOpcode.RDMA_READ, SendOpcode.RDMA_READ, *_ATOMIC)


class Arena:
    """
    Memory of one registration, with places in it.
    """

    def __init__(self, device: Any, pd: Any, access: int, size: int = 1 << 20) -> None:
        """
        No place is taken.
        """
        self.memory = bytearray(GUARD * (size // len(GUARD)))
        self.region = device.memory.register(self.memory, access, pd)
        self._next = len(GUARD)

    def place(self, content: bytes) -> Place:
        """
        Take a place, and put something there.
        """
        offset = self._next
        self._next += -(-len(content) // len(GUARD)) * len(GUARD) + len(GUARD)
        assert self._next <= len(self.memory), "too much for an arena"
        self.memory[offset : offset + len(content)] = content
        return Place(self, offset, len(content))

    def guarded(self, places: list[Place]) -> bool:
        """
        Whether all between the places is as it was.
        """
        at = 0
        for place in [*sorted(places, key=lambda each: each.offset), Place(self, len(self.memory), 0)]:
            if self.memory[at : place.offset].strip(GUARD[:1]):
                return False
            at = place.offset + place.size
        return True


@attrs.frozen(eq=False)
class Place:
    """
    Where one request has its bytes.
    """

    arena: Arena
    offset: int
    size: int

    @property
    def content(self) -> bytes:
        """
        The bytes there.
        """
        return bytes(self.arena.memory[self.offset : self.offset + self.size])

    @property
    def address(self) -> int:
        """
        Its name for peers.
        """
        return int(self.arena.region.address) + self.offset

    @property
    def key(self) -> int:
        """
        Its key for peers.
        """
        return int(self.arena.region.remoteKey)

    def piece(self) -> SGE:
        """
        It as memory of a request.
        """
        return SGE(self.address, self.size, self.arena.region.localKey)


@attrs.define(eq=False)
class Work:
    """
    One request.

    @ivar data: what it carries or what it reads.
    @ivar near: the place here, C{far} that of the peer.
    @ivar expected: of an atomic, what it will find.
    @ivar wrong: whether the peer has not granted it.
    """

    id: int
    opcode: SendOpcode
    data: bytes = b""
    near: Place | None = None
    far: Place | None = None
    immediate: int = 0
    expected: int = 0
    window: Any = None
    wrong: bool = False
    status: WCStatus | None = None


class Worker:
    """
    One side.

    @ivar peer: the other side.
    @ivar posted: the requests in order, with how they ended.
    @ivar errors: what was not as it must be.
    @ivar paused: whether it posts no receives.
    @ivar huge: how many of its WRITEs and READs are of up to L{HUGE} bytes.
    """

    peer: Worker
    #: The content of a receive before the message.
    front = 0

    def __init__(self, host: Host, name: str, dice: Random, kind: QPType = QPType.RC) -> None:
        """
        In RESET.
        """
        self.host, self.name, self.dice, self.kind = host, name, dice, kind
        device = self.device = host.device
        self.pd = device.memory.allocateDomain()
        self.sends, self.receives = CompletionQueue(512), CompletionQueue(512)
        self.qp = device.createQueuePair(self, kind)
        sizes = Capabilities(sends=64, receives=2 * RECEIVES)
        self.work = WorkQueues(self.qp, self.pd, self.sends, self.receives, device.timers, sizes, None)
        self.far = Arena(device, self.pd, _ACCESS)
        self.near = Arena(device, self.pd, int(Access.LOCAL_WRITE))
        self.places: list[Place] = []
        self.counter = self._place(self.far, bytes(8))
        self.count = 0
        self.posted: list[Work] = []
        self.waiting: deque[Work] = deque()
        self.completed = 0
        self.inbox: deque[tuple[int, Place]] = deque()
        self.messages: list[Work] = []
        self.taken = 0
        self.ids = 0
        self.paused = False
        self.huge = 0.0
        self.disconnected = False
        self.connection: Any = None
        self.failures: list[Exception] = []

    def _place(self, arena: Arena, content: bytes) -> Place:
        """
        Take a place and remember it.
        """
        place = arena.place(content)
        self.places.append(place)
        return place

    def widen(self) -> None:
        """
        Have more memory, for long messages; before anything is planned.
        """
        device = self.device
        for arena in (self.far, self.near):
            device.memory.deregister(arena.region)
        self.far = Arena(device, self.pd, _ACCESS, 4 << 20)
        self.near = Arena(device, self.pd, int(Access.LOCAL_WRITE), 4 << 20)
        self.places = []
        self.counter = self._place(self.far, bytes(8))

    # -- calls to a queue pair's consumer

    def failed(self, reason: Exception) -> None:
        """
        The queue pair is in ERR.
        """
        self.failures.append(reason)

    def resume(self) -> None:
        """
        There is room again.
        """

    def forked(self) -> None:
        """
        Never.
        """

    # -- connecting

    def climb(
        self, path: Any, remote: int, expected: int, first: int, mtu: int, timeout: int, retries: int = 7
    ) -> None:
        """
        From RESET to RTS.

        @param expected: the first PSN to come, C{first} the first to send.
        @param mtu: a code.
        @param timeout: a code.
        """
        qp = self.qp
        qp.modify(QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=_ACCESS)
        self.refill()
        reliable = self.kind == QPType.RC
        more = {"max_dest_rd_atomic": 4, "min_rnr_timer": 12} if reliable else {}
        qp.modify(QPState.RTR, ah_attr=path, dest_qp_num=remote, path_mtu=mtu, rq_psn=expected, **more)
        more = (
            {"timeout": timeout, "retry_cnt": retries, "rnr_retry": 7, "max_rd_atomic": 4} if reliable else {}
        )
        qp.modify(QPState.RTS, sq_psn=first, **more)

    def refill(self) -> None:
        """
        Post receives.
        """
        if self.paused or self.qp.state == QPState.ERR:
            return
        while len(self.inbox) < 6:
            place = self.near.place(EMPTY * (self.front + LONGEST))
            self.ids += 1
            self.inbox.append((self.ids, place))
            self.work.postReceive(ReceiveRequest(self.ids, (place.piece(),)))

    # -- working

    def plan(self, count: int, opcodes: Any, mtu: int) -> None:
        """
        Think of some requests.

        @param mtu: in bytes.
        """
        dice = self.dice
        for _ in range(count):
            opcode = dice.choice(opcodes)
            size = dice.choice((0, 1, 3, 64, mtu - 1, mtu, mtu + 1, 2 * mtu, dice.randrange(LONGEST)))
            size = min(size, LONGEST)
            if opcode in (SendOpcode.RDMA_WRITE, SendOpcode.RDMA_READ) and dice.random() < self.huge:
                size = dice.randrange(LONGEST, HUGE)
            if opcode == SendOpcode.ATOMIC_WRITE:
                size = 8
            self.ids += 1
            work = Work(self.ids, opcode, dice.randbytes(size), immediate=dice.getrandbits(32))
            peer = self.peer
            if opcode in _WRITE:
                work.far = peer._place(peer.far, EMPTY * len(work.data))
            elif opcode == SendOpcode.RDMA_READ:
                work.far = peer._place(peer.far, work.data)
            if opcode in _ATOMIC or opcode == SendOpcode.RDMA_READ:
                size = 8 if opcode in _ATOMIC else len(work.data)
                work.near = self.near.place(EMPTY * size)
            else:
                work.near = self.near.place(work.data)
            if opcode == SendOpcode.SEND_WITH_INV:
                memory = self.peer.device.memory
                work.window = memory.allocateWindow(peer.pd, WindowType.TYPE_2)
                region = peer.far.region
                memory.windows.bind(
                    *(work.window, region, region.address, 64, int(Access.REMOTE_READ), work.window.key ^ 1),
                    peer.qp,
                )
            self.waiting.append(work)

    def forbidden(self) -> None:
        """
        Ask for something that the peer has not granted, last of all.
        """
        dice, far = self.dice, self.peer.far.region
        address, key, length = far.address, far.remoteKey, 64
        opcode = dice.choice(
            (
                SendOpcode.RDMA_WRITE,
                SendOpcode.RDMA_READ,
                SendOpcode.ATOMIC_FETCH_AND_ADD,
                SendOpcode.ATOMIC_WRITE,
            )
        )
        kind = dice.randrange(4)
        if kind == 0:
            key ^= 1 << dice.randrange(32)
        elif kind == 1:
            address += dice.choice((-8, far.length - (0 if opcode in _SHORT else 7), 1 << 40))
        elif kind == 2:
            # Memory that is registered, but not for peers.
            address, key = self.peer.near.region.address, self.peer.near.region.remoteKey
        else:
            address, key = 0, 0
        self.ids += 1
        size = 8 if opcode in _SHORT else length
        near = self.near.place(b"\x77" * size)
        work = Work(self.ids, opcode, b"", near)
        work.wrong = True
        self.posted.append(work)
        self.work.postSend(
            SendRequest(
                *(work.id, opcode, (near.piece(),), int(SendFlags.SIGNALED)),
                remoteAddress=address & (1 << 64) - 1,
                remoteKey=key,
                compare=1,
            )
        )

    def post(self, count: int) -> None:
        """
        Post some of the requests that were thought of.
        """
        while count and self.waiting and len(self.posted) - self.completed < 60:
            work = self.waiting.popleft()
            count -= 1
            if work.opcode in _ATOMIC:
                self._prepareAtomic(work)
            self.posted.append(work)
            if work.opcode in _TAKES:
                self.messages.append(work)
            self.work.postSend(self._request(work))

    def _prepareAtomic(self, work: Work) -> None:
        """
        Return the value that an atomic will find: nothing else changes the peer's counter.
        """
        work.expected = self.peer.count
        if work.opcode == SendOpcode.ATOMIC_FETCH_AND_ADD:
            self.peer.count = self.peer.count + work.immediate & (1 << 64) - 1
        elif work.immediate & 1:
            self.peer.count = work.immediate

    def _request(self, work: Work) -> SendRequest:
        """
        It as a queue pair wants it.
        """
        opcode, near, far = work.opcode, work.near, work.far
        assert near is not None
        flags = int(SendFlags.SIGNALED)
        if opcode in _ATOMIC:
            counter = self.peer.counter
            fields: dict[str, int] = {"compare": work.immediate}
            if opcode == SendOpcode.ATOMIC_CMP_AND_SWP:
                # Every other one finds something else than it expects.
                fields = {
                    "compare": work.expected ^ (~work.immediate & 1),
                    "swap": work.immediate,
                }
            return SendRequest(
                *(work.id, opcode, (near.piece(),), flags),
                remoteAddress=counter.address,
                remoteKey=counter.key,
                **fields,
            )
        return SendRequest(
            *(work.id, opcode, (near.piece(),) if near.size else (), flags, work.immediate),
            remoteAddress=0 if far is None else far.address,
            remoteKey=0 if far is None else far.key,
            invalidateKey=0 if work.window is None else work.window.key,
        )

    # -- completions

    def pump(self) -> bool:
        """
        Look at what has completed, and post receives.
        """
        sends, receives = self.sends.poll(64), self.receives.poll(64)
        for completion in sends:
            self._sent(completion)
        for completion in receives:
            self._received(completion)
        if receives:
            self.refill()
        return bool(sends or receives)

    def _sent(self, completion: Any) -> None:
        """
        A request is done: the next one, and what it should do is done.
        """
        assert self.completed < len(self.posted), "something else completed"
        work = self.posted[self.completed]
        assert completion.workRequestID == work.id, f"{completion.workRequestID} before {work.id}"
        self.completed += 1
        work.status = completion.status
        self.host.world.note(f"{self.name} {work.opcode.name} {work.id} {completion.status.name}")
        before = self.posted[self.completed - 2].status if self.completed > 1 else WCStatus.SUCCESS
        if before != WCStatus.SUCCESS:
            assert work.status == WCStatus.WR_FLUSH_ERR, f"{work.status!r} behind an error"
        assert not work.wrong or work.status != WCStatus.SUCCESS, "something forbidden was done"
        if work.status != WCStatus.SUCCESS or self.kind != QPType.RC:
            return
        assert work.near is not None
        if work.opcode in _WRITE:
            assert work.far is not None and work.far.content == work.data, "completed, but not there"
        elif work.opcode == SendOpcode.RDMA_READ:
            assert work.near.content == work.data, "completed, but not read"
        elif work.opcode in _ATOMIC:
            found = int.from_bytes(work.near.content, "little")
            assert found == work.expected, f"an atomic found {found:#x}, not {work.expected:#x}"
        elif work.opcode == SendOpcode.SEND_WITH_INV:
            assert work.window.region is None, "completed, but not invalidated"

    def _received(self, completion: Any) -> None:
        """
        A message came: the next one, and it is the peer's.
        """
        id, place = self.inbox.popleft()
        assert completion.workRequestID == id, "receives out of order"
        self.host.world.note(f"{self.name} RECEIVE {id} {completion.status.name}")
        if completion.status != WCStatus.SUCCESS:
            assert completion.status == WCStatus.WR_FLUSH_ERR or self.kind != QPType.RC
            return
        messages = self.peer.messages
        if self.kind != QPType.RC:
            # They may be lost, and the network may double or reorder them.
            found = any(self._isThis(work, completion, place) for work in messages)
            assert found, "a message that nobody has sent"
            return
        assert self.taken < len(messages), "a message that nobody has sent"
        work = messages[self.taken]
        self.taken += 1
        assert self._isThis(work, completion, place), f"message {work.id} is another, or missing"

    def _isThis(self, work: Work, completion: Any, place: Place) -> bool:
        """
        Whether a message is what a request has sent.
        """
        if work.opcode == SendOpcode.RDMA_WRITE_WITH_IMM:
            assert work.far is not None
            return bool(completion.immediate == work.immediate and work.far.content == work.data)
        content, size = place.content[self.front :], len(work.data)
        return bool(
            completion.byteLength == self.front + size
            and content[:size] == work.data
            # Parts of a message that was lost may be there.
            and (self.kind != QPType.RC or content[size:] == EMPTY * (LONGEST - size))
            and (work.opcode != SendOpcode.SEND_WITH_IMM or completion.immediate == work.immediate)
        )

    # -- the end

    @property
    def done(self) -> bool:
        """
        Whether every request has completed.
        """
        return self.completed == len(self.posted) and not self.waiting

    @property
    def ended(self) -> bool:
        """
        Whether an error has ended it.
        """
        return self.qp.state == QPState.ERR

    def check(self) -> None:
        """
        Check the end: nothing was written where nothing should be.
        """
        assert self.far.guarded([place for place in self.places]), f"{self.name}: a guard was written to"
        by = {id(work.far): work for work in self.peer.posted if work.far is not None}
        for place in self.places:
            work = by.get(id(place))
            if work is None or work.opcode not in _WRITE:
                continue
            if work.status == WCStatus.SUCCESS and self.kind == QPType.RC:
                assert place.content == work.data, f"{self.name}: what was written is not there any more"
            else:
                if work.opcode == SendOpcode.ATOMIC_WRITE:
                    assert place.content in (work.data, EMPTY * 8), f"{self.name}: a part was written"
                empty = EMPTY[0]
                for got, wanted in zip(place.content, work.data, strict=True):
                    assert got in (wanted, empty), f"{self.name}: something else was written"
        if all(work.wrong or work.status == WCStatus.SUCCESS for work in self.peer.posted):
            found = int.from_bytes(self.counter.content, "little")
            assert found == self.count, f"{self.name}: the counter is {found:#x}, not {self.count:#x}"

    def close(self) -> None:
        """
        Give everything back.
        """
        self.qp.close()


class DatagramWorker(Worker):
    """
    One side that sends datagrams.
    """

    peer: DatagramWorker
    front = GRH_BYTES

    def __init__(self, host: Host, name: str, dice: Random) -> None:
        """
        In RESET.
        """
        super().__init__(host, name, dice, QPType.UD)
        self.handle: Any = None

    def begin(self) -> None:
        """
        From RESET to RTS.
        """
        self.qp.modify(QPState.INIT, pkey_index=0, port_num=1, qkey=QUEUE_KEY)
        self.refill()
        self.qp.modify(QPState.RTR)
        self.qp.modify(QPState.RTS, sq_psn=self.dice.getrandbits(24))
        vector = AddressVector(self.peer.device.gid, hopLimit=64)
        self.handle = AddressHandle(self.pd, vector, self.device)

    def plan(self, count: int, opcodes: Any, mtu: int) -> None:
        """
        Think of some datagrams.
        """
        super().plan(count, (SendOpcode.SEND, SendOpcode.SEND_WITH_IMM), mtu)
        for work in self.waiting:
            work.data = work.data[:mtu]
            work.near = self.near.place(work.data)

    def _request(self, work: Work) -> SendRequest:
        """
        It as a queue pair wants it.
        """
        destination = Destination(self.handle, self.peer.qp.number, QUEUE_KEY)
        return attrs.evolve(super()._request(work), destination=destination)

    def close(self) -> None:
        """
        Give everything back.
        """
        super().close()
        if self.handle is not None:
            self.handle.close()
