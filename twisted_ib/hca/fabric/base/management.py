"""
Queue pairs 0 and 1 of a path: management datagrams.

A MAD is an ordinary datagram of a UD queue pair, with GRH and DETH before its 256 octets.  Only the messages
of connection management have a shorter form between processes: their MAD header is always the same but for
the attribute, and each connection needs three of them.  The two differ in length.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from twisted_ib import limits
from twisted_ib.errors import RingError, WireError
from twisted_ib.hca.base.operation import GSI_QPN, MANAGEMENT, MANAGEMENT_HEADER, SMI_QPN, SOLICITED
from twisted_ib.hca.queues.streamqueuepair import RecordReceiver
from twisted_ib.hca.wire import headers
from twisted_ib.hca.wire.cm.layout import BODY_BYTES
from twisted_ib.hca.wire.grh import GRH_BYTES, HEADER_BYTES, ends
from twisted_ib.hca.wire.headers import MAD_BYTES, QPN_MASK, QUEUE_KEY
from twisted_ib.hca.wire.opcodes import UD_SEND_ONLY

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.base.path import RecordPath


#: Octets of the short record of connection management.
_SHORT_BYTES: Final = MANAGEMENT_HEADER.size + BODY_BYTES


class Management(RecordReceiver):
    """
    Queue pair 1 of a path: passes management to the device.

    @ivar waiting: Records that found no room in the medium.
    """

    __slots__ = ("path", "waiting")

    def __init__(self, path: RecordPath) -> None:
        self.path = path
        self.waiting: deque[bytes] = deque()

    def send(self, record: bytes) -> None:
        """
        Publish a management record, or keep it until there is room.
        """
        path, waiting = self.path, self.waiting
        if not path.alive:
            return
        if waiting or not path.postReserved(MANAGEMENT, record, False):
            # Never dropped: between processes the CM repeats nothing.  Requests are bounded by their sender
            # (limits.MANAGEMENT_SENDS), answers where the peer asks for them.
            if not waiting:
                self._wait()
            waiting.append(record)

    def resume(self) -> None:
        """
        Publish what waits, as far as there is room.
        """
        path, waiting = self.path, self.waiting
        while waiting:
            if not path.postReserved(MANAGEMENT, waiting[0], False):
                self._wait()
                return
            waiting.popleft()
        path.holdBack(False)
        path.fabric.delayed.pop(path, None)

    def _wait(self) -> None:
        path = self.path
        # Nothing ordinary may overtake a waiting record.  IBTA vol. 1 12.9.8: the first message of a
        # passive side may follow its REP at once, and would find no queue pair that is ready if it came
        # first.
        path.holdBack(True)
        path.fabric.delayed[path] = None
        path.wantSpace(self)
        # First in the queue of waiters: all others are held back by this one.
        path.waiting.move_to_end(self, False)

    def delivered(self, opcode: int, buffer: Any, start: int, stop: int) -> int:
        """
        Receive a management record; a malformed one is counted and dropped.

        @raise RingError: the peer asks for ever more answers and reads none.
        """
        path = self.path
        if len(self.waiting) >= limits.MANAGEMENT_ANSWERS:
            raise RingError(f"the peer sends management records and has left {len(self.waiting)} unread")
        if opcode == UD_SEND_ONLY and stop - start == _SHORT_BYTES:
            attribute, _ = MANAGEMENT_HEADER.unpack_from(buffer, start)
            start += MANAGEMENT_HEADER.size
            path.fabric.owner.managementReceived(path, attribute, buffer, start, stop)
        else:
            takeMAD(path, GSI_QPN, opcode, buffer, start, stop)
        return 0


def takeMAD(path: RecordPath, number: int, opcode: int, buffer: Any, start: int, stop: int) -> None:
    """
    Receive a record for queue pair 0 or 1 that must be a whole MAD; anything else is counted and dropped.
    """
    fabric, first = path.fabric, start + HEADER_BYTES
    # Copied once, as the peer may still write the record.
    head = bytes(buffer[start : min(first, stop)])
    try:
        # IBTA vol. 1 13.4.2: every MAD has 256 octets, and these queue pairs take nothing else.
        isMAD = stop - first == MAD_BYTES and opcode & ~SOLICITED == UD_SEND_ONLY
        source, _ = ends(head, MAD_BYTES)
    except WireError:
        isMAD = False
    if not isMAD:
        fabric.count("management_malformed")
        return
    key, sender = headers.DETH.unpack_from(head, GRH_BYTES)
    if source != path.peer.gid:
        fabric.count("datagrams_misaddressed")
    # IBTA vol. 1 13.5.1: the Q_Key of queue pair 1 is well-known, queue pair 0 checks none.
    elif number != SMI_QPN and key != QUEUE_KEY:
        fabric.count("qkey_violations")
    else:
        fabric.owner.madReceived(path, number, sender & QPN_MASK, buffer, first, stop)
