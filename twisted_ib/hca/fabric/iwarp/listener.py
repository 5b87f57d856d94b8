"""
The TCP listener of a service.
"""

from __future__ import annotations

import errno
import select
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twisted_ib.hca.fabric.iwarp.iwarp import IWARPFabric

#: Connections accepted in one turn of a listener: those that are open have their turn, too.
IWARP_ACCEPTS = 64
#: How long a listener rests when the process has no descriptors left, in seconds.
IWARP_ACCEPT_PAUSE_SECONDS = 1.0

_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Listener:
    """
    The TCP listener of a service.

    @ivar serviceID: the service's id.
    """

    __slots__ = ("_fabric", "serviceID", "socket")

    def __init__(self, fabric: IWARPFabric, serviceID: int, made: socket.socket) -> None:
        self._fabric = fabric
        self.serviceID = serviceID
        self.socket = made
        fabric.watchSocket(made.fileno(), self, select.EPOLLIN)

    def ready(self, events: int, budget: int) -> int:
        """
        Accept connections.

        @return: how many.
        """
        n = 0
        while n < IWARP_ACCEPTS:
            try:
                made, where = self.socket.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause()
                    break
                # accept(2): errors of the network that are pending on a new connection are passed on.
                continue
            finally:
                n += 1
            self._fabric.accepted(made, where[0].partition("%")[0], self.serviceID)
        return n

    def _pause(self) -> None:
        # Level-triggered: without descriptors it would stay readable.
        fabric = self._fabric
        fabric.count("iwarp_accepts_failed")
        fabric.watchSocket(self.socket.fileno(), self, 0)
        fabric.timers.start(IWARP_ACCEPT_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self.socket.fileno() >= 0:
            self._fabric.watchSocket(self.socket.fileno(), self, select.EPOLLIN)

    def close(self) -> None:
        """
        Stop listening.
        """
        self._fabric.watchSocket(self.socket.fileno(), self, 0)
        self.socket.close()
