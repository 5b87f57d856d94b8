"""
The halves of an operation: a send request on its way into the medium, and the response that a responder owes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from twisted_ib import limits
from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import MemoryAccessError, QueuePairError
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.memory.access import LOCAL_WRITE
from twisted_ib.hca.memory.domains import ProtectionDomain
from twisted_ib.hca.queues.completion import Completions, WCOpcode, WCStatus
from twisted_ib.hca.queues.receives import SharedReceiveQueue
from twisted_ib.hca.queues.requests import Attributes, SendOpcode, SendRequest
from twisted_ib.hca.queues.scatter import locate, scatter, total
from twisted_ib.hca.wire.headers import NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS

if TYPE_CHECKING:
    from twisted_ib.hca.base.interfaces import IPath
    from twisted_ib.hca.base.interfaces.roles import WorkedQueuePair


#: The services of operations that need no response, and of those that do (IBTA vol. 1 9.8.2).
CONNECTED: Final = frozenset((QPType.RC, QPType.UC))
RELIABLE: Final = frozenset((QPType.RC,))


#: Of a WRITE that may be done without a record: it is not; it is done; it is held until all before it is.
Placed = bool | None
BY_RECORD: Final[Placed] = None
DONE: Final[Placed] = True
HELD: Final[Placed] = False


class WorkContext(Protocol):
    """
    The work queues that execute an operation, as the operation needs them.

    @ivar pd: their protection domain.
    @ivar attributes: what L{QueuePair.modify} has set.
    @ivar shared: the shared receive queue, or L{None}.
    @ivar receiveCompletions: the CQ where receive requests complete.
    @ivar recordsSent: records published, including responses and repeats.
    """

    pd: ProtectionDomain
    attributes: Attributes
    shared: SharedReceiveQueue | None
    receiveCompletions: Completions
    recordsSent: int

    @property
    def queuePair(self) -> WorkedQueuePair:
        """
        Their queue pair.
        """

    def promisedBytes(self) -> int:
        """
        @return: the longest message that the consumer takes without a receive request.
        """

    def completionLost(self) -> None:
        """
        A completion found its queue full: the queue pair fails.
        """


class Refused(Exception):
    """
    A record is refused.

    @ivar syndrome: of the NAK; 0 if the record is executed, and only the local queue pair fails.
    @ivar status: the completion status of the receive in use, if there is one.
    @ivar reason: what the peer did, for an error text; or nothing.
    """

    def __init__(self, syndrome: int, status: WCStatus = WCStatus.WR_FLUSH_ERR, reason: str = "") -> None:
        super().__init__(syndrome)
        self.syndrome = syndrome
        self.status = status
        self.reason = reason


@mypyc_attr(allow_interpreted_subclasses=True)
class Operation:
    """
    Base of all send operations.

    @cvar opcode: of its work requests.
    @cvar completionOpcode: the L{WCOpcode} of its completion.
    @cvar services: the types of queue pairs that have it.
    @cvar capability: its bits of C{device_cap_flags_ex}.
    @cvar result: bytes that its list must have at least, for its result.
    @cvar demands: whether L{check} looks at more than inline data.
    @cvar carriesData: whether its payload goes to the peer, and may be inline.
    @cvar asks: whether it completes only when its response has come (READ, atomic).
    @cvar isLast: whether it starts only when everything before it is done.
    @cvar isWrite: whether it is a WRITE that nobody is told of at the other end.
    @ivar id: the program's wr_id; L{None} if it has no completion, however it ends.
    @ivar flags: L{SendFlags} as a plain integer: operations on an IntFlag cost ten times as much.
    @ivar length: payload bytes.
    @ivar begun: whether one of its records is in the medium.
    @ivar position: of the medium, after its latest record there.
    @ivar records: how many records were published, including repeats.
    @ivar status: its completion status so far.
    @ivar rnrRefusals: how often it was refused for want of a receive.
    @ivar absences: how often it was refused for want of a queue pair.
    @ivar answered: whether the response has come.
    """

    __slots__ = (
        "absences",
        "answered",
        "begun",
        "flags",
        "id",
        "length",
        "position",
        "records",
        "rnrRefusals",
        "status",
    )

    opcode: ClassVar[SendOpcode]
    completionOpcode: ClassVar[WCOpcode]
    services: ClassVar[frozenset[QPType]] = CONNECTED
    capability: ClassVar[int] = 0
    result: ClassVar[int] = 0
    demands: ClassVar[bool] = True
    carriesData: ClassVar[bool] = False
    asks: ClassVar[bool] = False
    isLast: ClassVar[bool] = False
    isWrite: ClassVar[bool] = False

    def __init__(self, id: int | None, flags: int, length: int) -> None:
        self.id = id
        self.flags = flags
        self.length = length
        self.status = WCStatus.SUCCESS
        self.rnrRefusals = self.absences = self.records = 0
        self.rewind()

    def needsRecords(self, pd: ProtectionDomain) -> bool:
        """
        @param pd: of the queue pair.
        @return: whether the peer must or should execute it.
        """
        return True

    @classmethod
    def check(cls, request: SendRequest, inline: int) -> None:
        """
        Check a request for it.

        @param inline: bytes of inline data that the queue pair allows.
        @raise QueuePairError: something is missing, or does not belong there.
        """
        if request.inline is not None:
            if not cls.carriesData:
                raise QueuePairError(f"a {request.opcode.name} has no inline data")
            if len(request.inline) > inline:
                raise QueuePairError(
                    f"a request has at most {inline} bytes inline, not {len(request.inline)}"
                )
        if cls.result and total(request.pieces) < cls.result:
            raise QueuePairError(f"the result of an atomic operation needs {cls.result} bytes")

    @property
    def started(self) -> bool:
        """
        Whether it was ever sent, including if it waits to be repeated.
        """
        # SQD completes what was started and starts nothing new (IBTA vol. 1 10.3.1): a request
        # that drew an RNR NAK counts as started although none of its records is in the medium now.
        return self.begun or self.rnrRefusals > 0 or self.absences > 0

    def rewind(self) -> None:
        """
        Reset it, to be sent anew.
        """
        self.position = 0
        self.begun = self.answered = False

    def abandon(self, work: WorkContext) -> None:
        """
        Release what it holds; called if it fails, is flushed or is forgotten.
        """

    def publish(self, path: IPath, remote: int, pd: ProtectionDomain) -> bool:
        """
        Publish the records that are not published yet.

        @param path: the path to the peer.
        @param remote: the peer's queue pair number.
        @param pd: the protection domain of the queue pair.

        @return: False if the medium has no room for one.
        @raise MemoryAccessError: a right on local memory is missing.
        """
        raise NotImplementedError

    def place(self, path: IPath, remote: int, pd: ProtectionDomain, onTheWay: Sequence[Operation]) -> Placed:
        """
        Do a WRITE without a record, if the path can.

        @param onTheWay: all before it that is not known to be done.
        @return: L{BY_RECORD} if it is to be published; L{DONE}; or L{HELD}.
        """
        return BY_RECORD


@mypyc_attr(allow_interpreted_subclasses=True)
class Response:
    """
    The response that a responder owes to one request, from its arrival until it is in the medium.

    @cvar access: the right that the queue pair and the memory must grant.
    @ivar done: whether all its records are in the medium.
    """

    __slots__ = ("done",)

    access: ClassVar[int]

    def __init__(self, work: WorkContext, code: int, buffer: Any, start: int, stop: int) -> None:
        """
        Accept a request.

        @param code: its opcode.
        @raise Refused: it is not valid, or the peer has no right to the memory.
        """
        self.done = False

    def execute(self, work: WorkContext) -> None:
        """
        Execute what later messages may depend on, if it was not executed yet.

        @raise MemoryAccessError: the right to the memory is gone.
        """

    def publish(self, work: WorkContext, path: IPath, remote: int) -> bool:
        """
        Publish the next record.

        @return: False if the medium has no room for it.
        @raise MemoryAccessError: the right to the memory is gone.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class RespondedOperation(Operation):
    """
    A request that completes when its response has come.

    @cvar code: the opcode of its request.
    @cvar response: the responder's half.
    """

    __slots__ = ("request",)

    services: ClassVar[frozenset[QPType]] = RELIABLE
    asks: ClassVar[bool] = True
    code: ClassVar[int]
    response: ClassVar[type[Response]]
    request: SendRequest

    def _ask(self, path: IPath, remote: int, header: bytes, payload: bytes = b"") -> bool:
        if not path.post(self.code << 24 | remote, header, payload, len(payload)):
            return False
        self.begun = True
        self.records += 1
        self.position = path.position()
        return True

    def _place(self, pd: ProtectionDomain, start: int, source: memoryview) -> WCStatus:
        try:
            target = locate(pd, self.request.pieces, start, len(source), LOCAL_WRITE)
        except MemoryAccessError:
            # The program's own list became invalid; the response is thrown away and the request
            # fails, as in Linux rxe_comp.c do_read().
            return WCStatus.LOC_PROT_ERR
        # Right for what ends the response, which is what a program may wait for.
        last = self.request.pieces[-1] if target else None
        scatter(target, source, last.address + last.length if last else 0)
        return WCStatus.SUCCESS

    def take(
        self, path: Any, pd: ProtectionDomain, opcode: int, buffer: Any, start: int, stop: int
    ) -> WCStatus:
        """
        Receive a part of the response.

        @return: C{SUCCESS}, or the status that the request ends with now.
        """
        raise NotImplementedError


def checkRemote(
    work: WorkContext, address: int, key: int, length: int, access: int
) -> tuple[memoryview, int]:
    """
    Check the peer's rights on memory here.

    @return: the region's view, and the offset of the first byte in it.
    @raise Refused: it has none, or asks for too much.
    """
    # Linux rxe_resp.c rxe_resp_check_length(): a DMA length above 2^31 is an invalid request.
    if length > limits.MESSAGE_BYTES:
        raise Refused(NAK_INVALID_REQUEST)
    try:
        return work.pd.memory.check(key, address, length, access, work.pd, work.queuePair)
    except MemoryAccessError:
        raise Refused(NAK_REMOTE_ACCESS) from None
