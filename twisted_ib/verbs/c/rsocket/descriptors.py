"""
Stream sockets by their descriptors.
"""

from __future__ import annotations

import errno

import attrs

from twisted_ib import limits
from twisted_ib.verbs.c.errors import HandleError
from twisted_ib.verbs.c.rsocket.stream import RSocket


@attrs.define(eq=False)
class Descriptor:
    """
    A descriptor's socket.

    @ivar isUntold: whether the program has not heard yet from C{rconnect} how that has ended.
    """

    socket: RSocket
    family: int
    options: dict[tuple[int, int], bytes] = attrs.field(factory=dict)
    isNonBlocking: bool = False
    isUntold: bool = False


#: The open sockets of this process.
descriptors: dict[int, Descriptor] = {}


def descriptorOf(number: int) -> Descriptor:
    """
    @raise HandleError: there is no such socket (EBADF).
    """
    found = descriptors.get(number)
    if found is None:
        raise HandleError(f"{number} is no rsocket", errno.EBADF)
    return found


def insert(socket: RSocket, family: int) -> int:
    """
    @param socket: it is closed if there is no room for it.
    @return: its descriptor.
    @raise HandleError: there are too many (EMFILE).
    """
    if len(descriptors) >= limits.QUEUE_PAIRS:
        socket.close()
        raise HandleError("There are too many rsockets", errno.EMFILE)
    number = socket.channel.fd
    descriptors[number] = Descriptor(socket, family)
    return number
