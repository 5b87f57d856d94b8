"""
The path of one queue pair: a queue pair of the adapter, with a registered ring for what it sends and reads,
and registered slots for what it receives.

The records of a batch become work requests at its end, of which the last is signalled: its completion stands
for all before it, as a reliable connection completes in order.

Linux's siw hands the pages of an unsignalled request of a page and more to TCP, which reads them until the
peer has acknowledged them, behind completions of later requests (siw_qp_tx.c, siw_qp_prepare_tx()), when the
ring may have other bytes; what a signalled one sends is copied.  So on an RNIC those are signalled, too.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from attrs import define
from zope.interface import classImplements

from twisted_ib import limits
from twisted_ib.drive.process import Forked
from twisted_ib.errors import PathLostError, QueuePairError
from twisted_ib.hca.base.interfaces import IPath
from twisted_ib.hca.base.operation import LATER, REFUSAL, RESUME, RNR_EXHAUSTED, SILENT, SOLICITED
from twisted_ib.hca.base.states import QPState
from twisted_ib.hca.fabric.base.path import Waiters
from twisted_ib.hca.fabric.base.streams import OwnPath
from twisted_ib.hca.fabric.hardware.provider import keep, told
from twisted_ib.hca.fabric.hardware.slots import SHARED
from twisted_ib.hca.fabric.hardware.window import COUNT, Window
from twisted_ib.hca.memory.access import LOCAL_WRITE, REMOTE, REMOTE_READ, REMOTE_WRITE
from twisted_ib.hca.wire.headers import (
    ATOMIC,
    ATOMIC_RESULT,
    ATOMIC_VALUE,
    IMMEDIATE,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    RETH,
    RNR,
)
from twisted_ib.hca.wire.opcodes import (
    ACKNOWLEDGE,
    ATOMIC_ACKNOWLEDGE,
    COMPARE_SWAP,
    FETCH_ADD,
    READ_REQUEST,
    READ_RESPONSE_FIRST,
    READ_RESPONSE_LAST,
    READ_RESPONSE_MIDDLE,
    READ_RESPONSE_ONLY,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_IMMEDIATE,
    SEND_MIDDLE,
    SEND_ONLY,
    SEND_ONLY_IMMEDIATE,
    UNRELIABLE,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMMEDIATE,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMMEDIATE,
)

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import Acknowledged, BoundQueuePair, Waiter
    from twisted_ib.hca.base.timers import Timer
    from twisted_ib.hca.fabric.base.streams import PeerPath
    from twisted_ib.hca.fabric.hardware.connector import AdapterConnection
    from twisted_ib.hca.fabric.hardware.hardware import HardwareFabric
    from twisted_ib.hca.fabric.hardware.provider import AdapterRegion, Completion
    from twisted_ib.hca.fabric.hardware.slots import SharedSlots

#: Bytes of a slot: the longest message that is received, and immediate data before it.
SLOT_BYTES = (limits.INLINE_RECORD + IMMEDIATE.size + 4095) & ~4095
_PAYLOAD: Final = IMMEDIATE.size
#: Slots for receiving, and the bytes of the ring for sending.
SLOTS = 16
RING_BYTES = 4 * SLOT_BYTES
_COUNT_AT: Final = RING_BYTES + SLOTS * SLOT_BYTES
#: Work requests that are outstanding; and pieces of one: a header, registered memory behind it, and the next
#: record.  More than these an RNIC may not have (Linux i40iw_hw.c, I40IW_MAX_WQ_FRAGMENT_COUNT).
SENDS = 64
PIECES = 3
#: Registered memory of at least so many bytes is not copied.
ZERO_COPY_BYTES = 4096
#: Of a stream's message before its payload: as many as any has (IBTA vol. 1 annex A4, BSDH).
_HEADER_BYTES: Final = 64
#: How long a queue pair that is gone waits for what it has sent, in seconds.
LINGER_SECONDS = 5.0
#: How long a message waits for a receive, in seconds, and how often that is tried.
NO_RECEIVE_SECONDS = 10.0
_AGAIN_SECONDS: Final = 0.0005
#: The code of the time for which a peer waits that met no free slot: 0.64 ms (IBTA vol. 1 table 45); the
#: kernel's 0 is 655 ms.
_RNR_TIMER: Final = 12
_AGAIN_MOST_SECONDS: Final = 0.05
_SYNDROME_MASK: Final = 0xE0
#: In the id of a work request, of 64 bits: it is a receive.  What was sent counts up below it.
_RECEIVE: Final = 1 << 63

# enum ibv_wr_opcode and ibv_send_flags.
_WRITE, _WRITE_IMM, _SEND, _SEND_IMM, _READ, _SWAP, _ADD = range(7)
_SIGNALED, _SOLICITED = 2, 4
# enum ibv_wc_status, ibv_wc_opcode and ibv_wc_flags.
_WC_FLUSHED = 5
_WC_RECV_WRITE = 129
_WC_WITH_IMM = 2

#: Stands for a response: the peer's number of receives was read.
_RECEIVES: Final = -1
#: Status of a completion -> syndrome, as the requester knows it (IBTA vol. 1 9.7.5.2).
_SYNDROMES: Final = {
    9: NAK_INVALID_REQUEST,
    10: NAK_REMOTE_ACCESS,
    11: NAK_REMOTE_OPERATIONAL,
    12: SILENT,
    13: RNR_EXHAUSTED,
}
_SENDING: Final = {
    SEND_ONLY: True,
    SEND_FIRST: False,
    SEND_MIDDLE: False,
    SEND_LAST: True,
    SEND_ONLY_IMMEDIATE: True,
    SEND_LAST_IMMEDIATE: True,
}
_WITH_IMMEDIATE: Final = frozenset(
    (SEND_ONLY_IMMEDIATE, SEND_LAST_IMMEDIATE, WRITE_ONLY_IMMEDIATE, WRITE_LAST_IMMEDIATE)
)
_WRITING: Final = {
    WRITE_ONLY: True,
    WRITE_FIRST: True,
    WRITE_MIDDLE: False,
    WRITE_LAST: False,
    WRITE_ONLY_IMMEDIATE: True,
    WRITE_LAST_IMMEDIATE: False,
}


@define
class _Sent:
    # A work request: the position of the medium behind it, that of the ring, and the record of the response
    # that its completion is; the bytes of that in the ring.
    position: int
    ring: int
    response: int = 0
    start: int = 0
    length: int = 0


class AdapterPath(Waiters, OwnPath):
    """
    The path of one queue pair to its peer.

    @ivar way: the path to the peer's address.
    @ivar number: stands for the peer's queue pair.
    @ivar connection: what the kernel has agreed on; L{None} where the program does.
    @ivar adapterNumber: that of the adapter's queue pair; 0 before there is one.
    @ivar queuePair: the queue pair, or L{None}.
    @ivar service: L{UNRELIABLE}, or 0 where the connection is reliable.
    @ivar hasWork: whether its queue pair has work queues of its user's; that of a stream may get some later.
    @ivar domain: the adapter's protection domain of both; L{None} before and after.
    @ivar shared: the slots that it receives into, if those are the device's.
    @ivar window: the receives of both ends, where a SEND that finds none ends the connection.
    @cvar slots: the receives that the adapter has, where they are its own.
    @cvar slotBytes: of each, of which the adapter leaves the first C{slotHead}.
    """

    service = 0
    inPackets: ClassVar = False
    recordBytes: ClassVar = limits.INLINE_MESSAGE
    inSegments: ClassVar = False
    retransmits: ClassVar = 0
    messageBytes: ClassVar = limits.INLINE_MESSAGE
    slots: ClassVar[int] = SLOTS
    slotBytes: ClassVar[int] = SLOT_BYTES
    slotHead: ClassVar[int] = _PAYLOAD
    sendsInPlace = True

    def __init__(self, way: PeerPath, number: int, connection: AdapterConnection | None) -> None:
        self.way = way
        self.fabric: HardwareFabric = way.fabric
        self.peer = way.peer
        self.number = number
        self.adapterNumber = 0
        self.connection = connection
        self.queuePair: Any = None
        self.hasWork = False
        self.scheduler: Any = None
        self.alive = True
        self.bell = False
        self.waiting: OrderedDict[Waiter, None] = OrderedDict()
        self.unacknowledged: deque[tuple[int, Acknowledged]] = deque()
        self.track: Any = self.unacknowledged.append
        self.window: Window | None = None
        self.shared: SharedSlots | None = None
        self._verbs: Any = None
        self._memory: Any = None
        self._regions: list[AdapterRegion] = []
        self.domain: Any = None
        self._base = self._key = self._slotKey = 0
        # Records that were posted, and those of the latest completion; bounds of the ring.
        self._posted = self._reached = self._head = self._tail = 0
        # Work requests that the adapter has, and those of this batch.
        self._sent: deque[_Sent] = deque()
        self._batch: list[Any] = []
        # A SEND in several records; where a WRITE goes on; a READ that is not asked for as a whole.
        self._pieces: list[tuple[int, int, int]] = []
        self._remote = (0, 0)
        self._reading: list[int] = []
        self._held: deque[tuple[int, int, int, int]] = deque()
        # To be called when all of them are delivered, behind which the peer has ended the connection.
        self._delivered: Callable[[], None] | None = None
        self._isOver = False
        self._again = self._since = 0.0
        self._drained: list[Callable[[], None]] = []
        self._lingering: Timer | None = None
        self._isClosing = self._isDisconnected = self._isReady = False

    # -- the queue pair

    def create(self, queuePair: BoundQueuePair | None) -> None:
        """
        Make the adapter's queue pair, with its memory and its receives.

        @param queuePair: ours that it will be bound to; L{None} if that is gone.
        """
        fabric = self.fabric
        work = None if queuePair is None else queuePair.work
        connection = self.connection
        self.hasWork = bool(work)
        if not work:
            self.shared = fabric.slots.get()
        self.allocate(self._domainOf(work))
        self.adopt(self._obtain(self.domain, queuePair))
        # The rights are those of each region; the peer of a stream has none, but that to read what an RNIC's
        # tells.
        rights = REMOTE if work else REMOTE_READ if connection is not None and connection.tells else 0
        self._step(QPState.INIT, qp_access_flags=(LOCAL_WRITE | rights) & fabric.connector.rights)
        self.fill()
        if connection is not None and connection.tells:
            self.window = Window(self, self._memory, self.domain, self._base, _COUNT_AT)

    def _domainOf(self, work: Any) -> Any:
        if work:
            return self.fabric.domainOf(work.pd)
        return self.fabric.context.alloc_pd() if self.shared is None else self.shared.domain

    def allocate(self, domain: Any) -> None:
        """
        Have memory of the adapter's: the ring, and slots of its own.

        @param domain: the adapter's.
        @raise OSError: it takes none.
        """
        self.domain = domain
        self._memory = mmap.mmap(-1, RING_BYTES if self.shared else _COUNT_AT + COUNT.size)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # READs go there, whose responses an RNIC takes for WRITEs of its peer's (Linux rw.c,
        # rdma_rw_init_one_mr()); siw and channel adapters do not.
        rights = REMOTE_WRITE if self.fabric.isRNIC else 0
        self._key = self._registered(self._base, RING_BYTES, LOCAL_WRITE | rights)
        if not self.shared:
            behind = len(self._memory) - RING_BYTES
            self._slotKey = self._registered(self._base + RING_BYTES, behind, LOCAL_WRITE)

    def _registered(self, address: int, length: int, access: int) -> int:
        region = self.domain.reg_mr(address, length, access)
        self._regions.append(region)
        key: int = region.lkey
        return key

    def adopt(self, made: Any) -> None:
        """
        Have a queue pair of the adapter's, whose completions are taken from now on.
        """
        self._verbs = made
        self.adapterNumber = made.qp_num
        self.fabric.created(self)

    def _obtain(self, domain: Any, queuePair: BoundQueuePair | None) -> Any:
        # The adapter's queue pair of ours, where its program had one made.
        found = None if queuePair is None else self.fabric.reserved.pop(queuePair.number, None)
        return self.fabric.makeQueuePair(domain, shared=self.shared) if found is None else found

    def fill(self) -> None:
        """
        Post a receive for each slot of its own.
        """
        if self.shared is None:
            self._verbs.post_recv([self._receive(slot) for slot in range(self.slots)])

    def startOf(self, slot: int) -> int:
        """
        @return: where the adapter begins to write into a slot.
        """
        return RING_BYTES + slot * self.slotBytes + self.slotHead

    def _receive(self, slot: int) -> Any:
        verbs = self.fabric.verbs
        place = verbs.SGE(self._base + self.startOf(slot), self.slotBytes - self.slotHead, self._slotKey)
        return verbs.RecvWR(_RECEIVE | slot, [place])

    def _step(self, state: QPState, **others: int) -> None:
        fabric, connection = self.fabric, self.connection
        assert connection is not None
        connector = fabric.connector
        mask, given, target = connector.manager.attributes(connection.id, int(state))
        given.update({name: value for name, value in others.items() if name in given})
        # The kernel has those that the peer has asked for (Linux cm.c, cm_init_qp_rtr_attr()).
        bounds = {"max_dest_rd_atomic": connector.served, "max_rd_atomic": connector.outstanding}
        for name, most in bounds.items():
            if name in given:
                given[name] = min(given[name], most)
        vector = None if target is None else fabric.verbs.AHAttr(**target)
        if mask:
            self._verbs.modify(mask, vector, **given)

    def attach(self, queuePair: BoundQueuePair) -> None:
        """
        The path is this queue pair's, which may send from now on.
        """
        self.queuePair = queuePair
        try:
            if self._verbs is None:
                self.create(queuePair)
            # An RNIC takes the other steps by itself.
            if not self.fabric.isRNIC:
                self._step(QPState.RTR, min_rnr_timer=_RNR_TIMER)
                self._step(QPState.RTS)
        except OSError as error:
            text = f"the adapter's queue pair cannot be connected: {told(error)}"
            self.fabric.doom(self, PathLostError(text))
            return
        self._isReady = True
        if self._held:
            self.fabric.later(self)

    def unbind(self, queuePair: BoundQueuePair) -> None:
        if self.queuePair is not queuePair:
            return
        self.queuePair = None
        self.waiting.clear()
        self.unacknowledged.clear()
        self._clearHeld()
        if (call := self._delivered) is not None:
            # Later: a queue pair that fails has a reason, which its user hears before the peer's end.
            self._delivered = None
            self.fabric.soonCall(call)
        self._isClosing = True
        self.flush()
        if queuePair.state is QPState.ERR or not self._sent:
            self._drain()
        else:
            self._linger()
        self._release()

    # -- the end

    def whenDrained(self, call: Callable[[], None]) -> None:
        """
        Call when everything that was posted is done, or has waited too long for a receive of the peer's.
        """
        self.flush()
        self._drained.append(call)
        if not self._sent:
            self._drain()
        else:
            self._linger()

    def whenDelivered(self, call: Callable[[], None]) -> None:
        """
        The peer has ended the connection: call when what came before is delivered, or nobody wants it.
        """
        self._isOver, self._delivered = True, call
        if not self._held or self.queuePair is None:
            self._dropHeld()

    def _clearHeld(self) -> None:
        held = list(self._held)
        self._held.clear()
        if self.shared is not None:
            for _, slot, _, _ in held:
                self.shared.giveBack(slot)

    def _dropHeld(self) -> None:
        self._clearHeld()
        call, self._delivered = self._delivered, None
        if call is not None:
            call()

    def isLingering(self) -> bool:
        """
        @return: whether an end waits for what was posted.
        """
        return self._lingering is not None

    def _linger(self) -> None:
        if self._lingering is None:
            self._lingering = self.fabric.timers.start(LINGER_SECONDS, self._drain)

    def _drain(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if self.queuePair is None:
            self._sent.clear()
        calls, self._drained = self._drained, []
        for call in calls:
            call()
        self._release()

    def disconnected(self) -> None:
        """
        The identifier is gone.
        """
        self._isDisconnected = True
        self._release()

    def ended(self, reason: PathLostError) -> None:
        """
        The connection is gone: fail the queue pair.
        """
        self._drain()
        self.fabric.doom(self, reason)

    def lost(self, reason: PathLostError) -> None:
        """
        Fail the queue pair.
        """
        if self.queuePair is not None:
            self.queuePair.fail(reason)

    def _release(self) -> None:
        # The adapter's queue pair goes with ours, once it has nothing to send; its number later.
        if self.queuePair is None and not self._sent:
            if self._isDisconnected:
                self.close()
            elif self._isClosing:
                self._destroy()

    def forked(self) -> None:
        """
        In a forked child: make every use an error.
        """
        keep(self._verbs, self._regions, self.domain, self.window, self.shared)
        self.alive = False
        gone: Any = Forked()
        self._verbs = self._memory = gone

    def close(self) -> None:
        """
        Destroy the adapter's queue pair, and forget the path; harmless if repeated.
        """
        self._destroy()
        self.fabric.streams.pop(self.number, None)

    def _destroy(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self.fabric.destroyed(self)
        self._clearHeld()
        if self._verbs is not None:
            self._returnQueuePair()
        for region in self._regions:
            region.close()
        if self.window is not None:
            self.window.close()
        # A reference to the domain that stays would keep it; regions have one.
        self._regions.clear()
        self._verbs = self.domain = self.window = None

    def _returnQueuePair(self) -> None:
        if self.shared is not None and self._isReady:
            self.fabric.slots.retire(self._verbs)
        else:
            self._verbs.close()
            # libsiw forgets nothing of it, and siw gives its number to the next (Linux siw_qp.c,
            # siw_qp_add()).
            self.fabric.purge(self.adapterNumber)

    # -- down

    def post(self, word: int, header: bytes, payload: Any, length: int) -> bool:
        opcode = word >> 24
        code = opcode & ~(SOLICITED | UNRELIABLE)
        if opcode == RESUME or opcode == ACKNOWLEDGE:
            return True
        if not self._isReady or self._reading or len(self._sent) >= SENDS:
            return False
        flags = _SOLICITED if opcode & SOLICITED else 0
        window = self.window
        if window is not None and not (window.isReady and (code not in _SENDING or window.admits())):
            return False
        if code in _SENDING:
            done = self._send(code, flags, header, payload, length)
        elif code in _WRITING:
            done = self._write(code, flags, header, payload, length)
        elif code == READ_REQUEST:
            address, key, size = RETH.unpack_from(header or self._joined(payload))
            self._posted += 1
            self._reading = [address, key, size, 0]
            self._ask()
            done = True
        elif code in (COMPARE_SWAP, FETCH_ADD):
            done = self._atomic(code, header or self._joined(payload))
        else:
            raise QueuePairError(f"an adapter has no operation of opcode {opcode:#04x}")
        if done:
            self.mark()
        return done

    def postInPlace(self, word: int, header: bytes, payload: memoryview, length: int) -> None:
        opcode = word >> 24
        flags = _SOLICITED if opcode & SOLICITED else 0
        self._send(opcode & ~(SOLICITED | UNRELIABLE), flags, header, payload, length, True)
        self.mark()

    def hasPlace(self) -> bool:
        window = self.window
        return (
            self._isReady
            and not self._reading
            and len(self._sent) < SENDS
            and (window is None or (window.isReady and window.admits()))
            and self._found(_HEADER_BYTES) >= 0
        )

    def _joined(self, payload: Any) -> bytes:
        return b"".join(payload) if payload.__class__ is list else bytes(payload)

    def _found(self, length: int) -> int:
        # Returns where so many bytes of the ring begin, behind what is left at its end if that is less; -1 if
        # there is no room.
        begin = self._head
        start = begin % RING_BYTES
        if start + length > RING_BYTES:
            begin += RING_BYTES - start
        return begin if begin + length - self._tail <= RING_BYTES else -1

    def _allocate(self, length: int) -> int:
        begin = self._found(length)
        if begin < 0:
            return -1
        self._head = begin + length
        return begin % RING_BYTES

    def _place(self, header: bytes, payload: Any, length: int) -> int:
        start = self._allocate(len(header) + length)
        if start < 0:
            return -1
        at, memory = start, self._memory
        for piece in (header, *payload) if payload.__class__ is list else (header, payload):
            end = at + len(piece)
            memory[at:end] = piece
            at = end
        return start

    def _gather(
        self, header: bytes, payload: Any, length: int, isInPlace: bool = False
    ) -> list[tuple[int, int, int]] | None:
        # Where the adapter finds the bytes of a record: address, length and key.  Registered memory is read
        # where it is, as a work request's is the adapter's until that is done; all else is copied.
        # The program of a stream may change what it has written at once, unless it was told to wait.
        if length >= ZERO_COPY_BYTES and (not header or isInPlace):
            piece = payload[0] if payload.__class__ is list and len(payload) == 1 else payload
            found = self.fabric.registered(self.domain, piece)
            if found is not None:
                return self._behind(header, found)
        start = self._place(header, payload, length)
        if start < 0:
            return None
        total = len(header) + length
        return [(self._base + start, total, self._key)] if total else []

    def _behind(self, header: bytes, found: tuple[int, int, int]) -> list[tuple[int, int, int]] | None:
        # Registered memory behind a header, which is copied.
        if not header:
            return [found]
        start = self._place(header, b"", 0)
        return None if start < 0 else [(self._base + start, len(header), self._key), found]

    def _request(self, opcode: int, pieces: list[tuple[int, int, int]], flags: int, **others: object) -> None:
        fabric = self.fabric
        verbs = fabric.verbs
        if fabric.isRNIC and sum([piece[1] for piece in pieces]) >= ZERO_COPY_BYTES:
            flags |= _SIGNALED
        elements = [verbs.SGE(*piece) for piece in pieces]
        self._batch.append(verbs.SendWR(self._posted, elements, opcode, flags, **others))

    def _sending(self, **fields: int) -> None:
        self._sent.append(_Sent(self._posted, self._head, **fields))

    def _send(
        self, code: int, flags: int, header: bytes, payload: Any, length: int, isInPlace: bool = False
    ) -> bool:
        immediate = 0
        if code in _WITH_IMMEDIATE:
            (immediate,) = IMMEDIATE.unpack_from(header)
            header = header[IMMEDIATE.size :]
        total = len(header) + length
        if total + sum(piece[1] for piece in self._pieces) > SLOT_BYTES - _PAYLOAD:
            self.fabric.doom(
                self, QueuePairError(f"a message of an adapter has at most {SLOT_BYTES - _PAYLOAD} bytes")
            )
            return True
        gathered = self._gather(header, payload, length, isInPlace)
        if gathered is None:
            return False
        self._posted += 1
        pieces = self._pieces
        # A slot's bytes are two records at most, so that these are few.
        pieces += gathered
        if _SENDING[code]:
            self._pieces = []
            isImmediate = code in _WITH_IMMEDIATE
            self._request(_SEND_IMM if isImmediate else _SEND, pieces, flags, imm_data=immediate)
            self._sending()
            if self.window is not None:
                self.window.sent += 1
        return True

    def _write(self, code: int, flags: int, header: bytes, payload: Any, length: int) -> bool:
        remote, immediate = self._remote, 0
        if _WRITING[code]:
            address, key, _ = RETH.unpack_from(header)
            remote, header = (address, key), header[RETH.size :]
        isImmediate = code in _WITH_IMMEDIATE
        if isImmediate:
            (immediate,) = IMMEDIATE.unpack_from(header)
            header = header[IMMEDIATE.size :]
        pieces = self._gather(header, payload, length)
        if pieces is None:
            return False
        self._posted += 1
        total = len(header) + length
        opcode = _WRITE_IMM if isImmediate else _WRITE
        address, key = remote
        self._request(opcode, pieces, flags, remote_addr=address, rkey=key, imm_data=immediate)
        self._remote = address + total, key
        self._sending()
        return True

    def _ask(self) -> None:
        # As much of a READ as there is room for.
        address, key, size, done = self._reading
        while True:
            length = min(size - done, limits.INLINE_MESSAGE)
            if len(self._sent) >= SENDS:
                break
            start = self._allocate(length)
            if start < 0:
                break
            isFirst, isLast = not done, done + length == size
            if isFirst:
                response = READ_RESPONSE_ONLY if isLast else READ_RESPONSE_FIRST
            else:
                response = READ_RESPONSE_LAST if isLast else READ_RESPONSE_MIDDLE
            # An RNIC's has always one: of none siw reads into that of an earlier request (libsiw siw.c,
            # push_send_wqe()).
            hasPiece = length or self.fabric.isRNIC
            pieces = [(self._base + start, length, self._key)] if hasPiece else []
            self._request(_READ, pieces, _SIGNALED, remote_addr=address + done, rkey=key)
            self._sending(response=response, start=start, length=length)
            done += length
            if isLast:
                self._reading = []
                break
            self._reading[3] = done
        self.mark()

    def _atomic(self, code: int, header: bytes) -> bool:
        start = self._allocate(ATOMIC_RESULT.size)
        if start < 0:
            return False
        self._posted += 1
        address, key, operand, compare = ATOMIC.unpack_from(header)
        pieces = [(self._base + start, ATOMIC_RESULT.size, self._key)]
        if code == COMPARE_SWAP:
            operation, values = _SWAP, {"compare_add": compare, "swap": operand}
        else:
            operation, values = _ADD, {"compare_add": operand}
        self._request(operation, pieces, _SIGNALED, remote_addr=address, rkey=key, **values)
        self._sending(response=ATOMIC_ACKNOWLEDGE, start=start, length=ATOMIC_RESULT.size)
        return True

    def askReceives(self, address: int, key: int) -> bool:
        """
        Read the peer's number of receives.

        @return: False if there is no room for that now.
        """
        # With room for the SEND that follows.
        start = self._allocate(COUNT.size) if len(self._sent) < SENDS - 1 else -1
        if start < 0:
            return False
        self._posted += 1
        pieces = [(self._base + start, COUNT.size, self._key)]
        self._request(_READ, pieces, _SIGNALED, remote_addr=address, rkey=key)
        self._sending(response=_RECEIVES, start=start, length=COUNT.size)
        self.mark()
        return True

    def tellReady(self) -> None:
        """
        Tell the peer that this side is, by a SEND of no octets.
        """
        self._send(SEND_ONLY, 0, b"", b"", 0)
        self.mark()

    def tellReceives(self, number: int) -> bool:
        """
        Tell the peer how many receives were posted, by a WRITE of no octets.

        @return: False if there is no room for that now.
        """
        # Between the parts of a READ its number would be theirs, and they would be done with it.
        if self._reading or len(self._sent) >= SENDS:
            return False
        self._posted += 1
        self._request(_WRITE, [], 0, remote_addr=number, rkey=0)
        self._sending()
        self.mark()
        return True

    def postReserved(self, word: int, body: bytes, refusal: bool) -> bool:
        # The adapter refuses by itself.
        return True

    def position(self) -> int:
        return self._posted

    def mark(self) -> None:
        """
        Have L{ring} called at the end of the batch.
        """
        if not self.bell:
            self.bell = True
            self.fabric.ringLater(self)

    def ring(self) -> None:
        """
        The batch ends: give the adapter what was posted.
        """
        self.bell = False
        if self.alive:
            self.flush()

    def flush(self) -> None:
        """
        Give the adapter what was posted, the last request signalled.
        """
        batch, self._batch = self._batch, []
        if not batch or self._verbs is None:
            return
        batch[-1].send_flags |= _SIGNALED
        try:
            self._verbs.post_send(batch)
        except OSError as error:
            if not self.fabric.isGone():
                self.fabric.doom(self, PathLostError(f"the adapter takes no requests: {error}"))

    # -- up

    def completed(self, completion: Completion) -> None:
        """
        The adapter has done something.

        @param completion: a C{WC} of the package C{ibverbs}.
        """
        if completion.wr_id & _RECEIVE:
            self._received(completion, completion.wr_id & ~(_RECEIVE | SHARED))
        elif completion.status:
            self._failed(completion)
        else:
            self._done(completion.wr_id)

    def _done(self, position: int) -> None:
        # A request that reads has a completion of its own, perhaps one of several of a position, behind which
        # siw may have those of later requests come (Linux siw_qp_tx.c, siw_qp_sq_process()).
        sent = self._sent
        self._reached = max(position, self._reached)
        while sent and sent[0].position <= self._reached:
            if sent[0].response:
                if sent[0].position != position:
                    break
                position = -1
            one = sent.popleft()
            self._tail = one.ring
            if one.response:
                self._answer(one)
        self._acknowledge(sent[0].position - 1 if sent else self._posted)
        if self._reading:
            self._ask()
        if self.window is not None:
            self.window.push()
        if self.waiting and len(sent) < SENDS // 2:
            self.fabric.later(self)
        if not sent and (self._drained or self._isClosing):
            self._drain()

    def _answer(self, one: _Sent) -> None:
        if (window := self.window) is not None:
            window.isHeard = True
        if one.response == _RECEIVES:
            if window is not None:
                window.answered(one.start)
            return
        queuePair = self.queuePair
        if queuePair is None:
            return
        if one.response == ATOMIC_ACKNOWLEDGE:
            (value,) = ATOMIC_VALUE.unpack_from(self._memory, one.start)
            queuePair.delivered(one.response, ATOMIC_RESULT.pack(value), 0, ATOMIC_RESULT.size)
        else:
            queuePair.delivered(one.response, self._memory, one.start, one.start + one.length)

    def _acknowledge(self, position: int) -> None:
        waiting = self.unacknowledged
        while waiting and waiting[0][0] <= position:
            reached, requester = waiting.popleft()
            requester.acknowledged(reached)

    def _failed(self, completion: Completion) -> None:
        self._sent.clear()
        queuePair = self.queuePair
        if completion.status == _WC_FLUSHED:
            self._flushed()
        elif queuePair is not None and self.isFault(completion):
            self.fabric.count("hardware_requests_failed")
            syndrome = _SYNDROMES.get(completion.status, NAK_REMOTE_OPERATIONAL)
            body = REFUSAL.pack(syndrome, queuePair.number, completion.wr_id)
            queuePair.delivered(ACKNOWLEDGE, body, 0, len(body))
            if self.queuePair is queuePair:
                queuePair.fail(
                    QueuePairError(
                        f"the adapter failed queue pair {queuePair.number}: {completion.status_str}"
                    )
                )
        self._drain()

    def isFault(self, completion: Completion) -> bool:
        """
        @return: whether what has failed is an error of its own, and not one that follows another.
        """
        return completion.status != _WC_FLUSHED and not self.fabric.isGone()

    def _flushed(self) -> None:
        # The adapter has ended the queue pair, as its peer has broken a rule, and says so of what is
        # outstanding alone (IBTA vol. 1 9.9.3).  An RNIC does so whenever the connection ends.
        queuePair, fabric = self.queuePair, self.fabric
        if queuePair is not None and not fabric.isRNIC and not fabric.isGone():
            text = f"the adapter has ended queue pair {queuePair.number}, as when its peer breaks a rule"
            queuePair.fail(QueuePairError(text))

    def _received(self, completion: Completion, slot: int) -> None:
        shared = self.shared
        if completion.status:
            if shared is not None:
                shared.giveBack(slot)
            if completion.status == _WC_FLUSHED:
                self._flushed()
            elif self.queuePair is not None and self.isFault(completion):
                reason = QueuePairError(f"the adapter failed a receive: {completion.status_str}")
                self.fabric.doom(self, reason)
            return
        if (window := self.window) is not None:
            window.isHeard = True
            if window.isAwaited:
                window.begin()
                if not completion.byte_len:
                    self._receiveAgain(slot)
                    return
        start = self.startOf(slot) if shared is None else shared.startOf(slot)
        stop = start + completion.byte_len
        opcode = SEND_ONLY
        isWrite = completion.opcode == _WC_RECV_WRITE
        if completion.wc_flags & _WC_WITH_IMM:
            if isWrite:
                # The adapter has written its bytes already: what is left is how many, and the number.
                opcode, start, stop = WRITE_ONLY_IMMEDIATE, completion.byte_len, completion.imm_data
            else:
                start -= IMMEDIATE.size
                IMMEDIATE.pack_into(self._memoryOf(slot), start, completion.imm_data)
                opcode = SEND_ONLY_IMMEDIATE
        self._held.append((opcode, slot, start, stop))
        if len(self._held) == 1 and self._isReady and not self._again:
            self._deliver()

    def _memoryOf(self, slot: int) -> Any:
        return self._memory if self.shared is None else self.shared.memoryOf(slot)

    def _receiveAgain(self, slot: int) -> None:
        self._verbs.post_recv([self._receive(slot)])
        if self.window is not None:
            self.window.posted()

    def _deliver(self) -> None:
        held = self._held
        while held and self.queuePair is not None:
            opcode, slot, start, stop = held[0]
            queuePair = self.queuePair
            try:
                if opcode == WRITE_ONLY_IMMEDIATE and queuePair.work:
                    syndrome = queuePair.work.responder.written(start, stop)
                else:
                    # An adapter does not say whether the sender wants an event: a program has one of each.
                    word = opcode | self.service | (SOLICITED if self.hasWork else 0)
                    syndrome = queuePair.delivered(word, self._memoryOf(slot), start, stop)
            except BaseException as error:
                self.fabric.failed(error)
                syndrome = 0
            if syndrome and self.service:
                # Only of a WRITE: the peer hears of nothing (IBTA vol. 1 9.8.2).
                self.fabric.count("messages_dropped")
                syndrome = 0
            if syndrome and (syndrome == LATER or syndrome & _SYNDROME_MASK == RNR):
                self._waitForReceive()
                return
            self._again = 0.0
            if syndrome:
                self.fabric.count("hardware_receives_refused")
                if self.queuePair is not None:
                    self.queuePair.fail(QueuePairError("the peer broke a rule"))
                return
            # An end within the call has given it back.
            if held:
                held.popleft()
                if self.shared is not None:
                    self.shared.giveBack(slot)
            if self.shared is not None:
                continue
            if self._verbs is not None and self.alive and self.queuePair is not None and not self._isOver:
                self._receiveAgain(slot)
        if self._delivered is not None:
            self._dropHeld()

    def _waitForReceive(self) -> None:
        # No receive of the program yet: the adapter has its slots meanwhile, and then its own RNR NAK.
        now, queuePair = self.fabric.clock(), self.queuePair
        if queuePair is None:
            return
        if not self._again:
            self._again, self._since = _AGAIN_SECONDS, now
        elif now - self._since >= NO_RECEIVE_SECONDS:
            queuePair.fail(QueuePairError(f"queue pair {queuePair.number} has no receive for its peer"))
            return
        self.fabric.timers.start(self._again, self._tryAgain)
        self._again = min(2 * self._again, _AGAIN_MOST_SECONDS)

    def _tryAgain(self) -> None:
        if self.alive and self._held:
            try:
                self._deliver()
            except BaseException as error:
                self.fabric.failed(error)

    def progress(self, budget: int) -> int:
        """
        Deliver what came before there was a queue pair, and resume those that wait for room.

        @return: how much was done.
        """
        if not self.alive:
            return 0
        if self._held and self._isReady and not self._again:
            self._deliver()
        return self.resumeWaiting() if self.waiting else 0


classImplements(AdapterPath, IPath)
