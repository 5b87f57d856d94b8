"""
The operations of connected queue pairs, one row for each work request opcode, and the tables made of them.

A new operation is a class in a module of its own and its two lines here; its packets have a row in
L{twisted_ib.hca.wire.opcodes}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.operations.atomics import AtomicWrite, CompareSwap, FetchAdd
from twisted_ib.hca.services.operations.local import BindWindow, LocalInvalidate
from twisted_ib.hca.services.operations.message import IncomingMessage, MessageOperation
from twisted_ib.hca.services.operations.operation import RespondedOperation, Response
from twisted_ib.hca.services.operations.read import Read
from twisted_ib.hca.services.operations.send import Send, SendImmediate, SendInvalidate
from twisted_ib.hca.services.operations.write import Write, WriteImmediate
from twisted_ib.hca.wire.opcodes import OPCODES, UNRELIABLE, Kind

if TYPE_CHECKING:
    from twisted_ib.structs import Packed


OPERATIONS: tuple[type[Any], ...] = (
    Send,
    SendImmediate,
    SendInvalidate,
    Write,
    WriteImmediate,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    LocalInvalidate,
    BindWindow,
)


def serviceOperations(service: QPType) -> Mapping[SendOpcode, type[Any]]:
    """
    @return: the operations of a type of queue pair.
    """
    return {each.opcode: each for each in OPERATIONS if service in each.services}


#: Request opcode -> what the responder makes of it, if it owes a response.
RESPONSES_TO: Mapping[int, type[Response]] = {
    each.code: each.response for each in OPERATIONS if issubclass(each, RespondedOperation)
}

_INCOMING: Mapping[Kind, type[IncomingMessage]] = {
    OPCODES[each.only].kind: each.incoming for each in OPERATIONS if issubclass(each, MessageOperation)
}
#: Opcode of a part of a message -> the responder's half; whether it begins the message, and ends it; the
#: layout of the header that ends it, if there is one.
PARTS_OF: Mapping[int, tuple[type[IncomingMessage], bool, bool, Packed[Any] | None]] = {
    code: (_INCOMING[row.kind], row.begins, row.ends, row.ending)
    for code, row in OPCODES.items()
    if code < UNRELIABLE and row.kind in _INCOMING
}
