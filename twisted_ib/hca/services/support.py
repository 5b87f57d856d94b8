"""
The operations that a queue pair supports: those of its type's service, as far as the fabric has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from twisted_ib.errors import QueuePairError
from twisted_ib.hca.base.states import QPType
from twisted_ib.hca.base.traits import Traits
from twisted_ib.hca.queues.requests import SendOpcode
from twisted_ib.hca.services.datagram import DatagramRequester, DatagramResponder
from twisted_ib.hca.services.requester import Requester
from twisted_ib.hca.services.responder import Responder
from twisted_ib.hca.services.unreliable import UnreliableRequester, UnreliableResponder

#: The requester and responder classes of each type of queue pair.
SERVICES: dict[QPType, tuple[type[Any], type[Any]]] = {
    QPType.RC: (Requester, Responder),
    QPType.UC: (UnreliableRequester, UnreliableResponder),
    QPType.UD: (DatagramRequester, DatagramResponder),
}


@lru_cache(maxsize=64)
def operationsOf(kind: QPType, traits: Traits) -> Mapping[SendOpcode, type[Any]]:
    """
    The operations of a type of queue pair on a fabric.

    @raise QueuePairError: the fabric has no such queue pairs.
    """
    if kind not in SERVICES or kind not in traits.services:
        raise QueuePairError(f"queue pairs of type {kind!r} have no work queues")
    found: Mapping[SendOpcode, type[Any]] = SERVICES[kind][0].operations
    has = traits.operations
    return found if has is None else {opcode: each for opcode, each in found.items() if opcode in has}


@lru_cache(maxsize=64)
def capabilitiesOf(traits: Traits) -> int:
    """
    @return: bits of C{device_cap_flags_ex}: the operations that a fabric's queue pairs have.
    """
    bits = 0
    for kind in traits.services:
        for operation in operationsOf(kind, traits).values():
            bits |= operation.capability
    return bits
