"""
Ask a process what its HCA has in use.

For commands: it waits, a bounded time.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Any

from twisted_ib import limits
from twisted_ib.errors import HCAError
from twisted_ib.hca.fabric import handshake
from twisted_ib.hca.fabric.entries import Entry
from twisted_ib.hca.fabric.liveness import checkPeer
from twisted_ib.hca.fabric.search import Search
from twisted_ib.hca.fabric.transfer import closeAll, receiveWithDescriptors, sendWithDescriptors


def ask(
    search: Search, entry: Entry, timeoutSeconds: float = limits.QUERY_SECONDS
) -> dict[str, Any] | None:
    """
    What the HCA at C{entry} says of itself.

    @return: None if it does not answer in time, or answers nonsense.
    @raise HCAError: it is dead or may not be asked.
    """
    pair = search.connect(entry)
    try:
        checkPeer(pair, search.allows)
        if not sendWithDescriptors(pair, handshake.Query().pack()):
            return None
        return _answer(pair, time.monotonic() + timeoutSeconds)
    finally:
        pair.close()


def _answer(pair: socket.socket, deadline: float) -> dict[str, Any] | None:
    """
    The answer that comes before C{deadline}.
    """
    poll = select.poll()
    poll.register(pair, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return None
        try:
            received = receiveWithDescriptors(pair, limits.ANSWER_BYTES)
            if received is None:
                continue
            data, descriptors = received
            closeAll(descriptors)
            message = handshake.parse(data)
        except HCAError:
            return None
        return message.content if isinstance(message, handshake.Answer) else None


__all__ = ["ask"]
