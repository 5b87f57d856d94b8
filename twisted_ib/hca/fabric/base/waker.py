"""
The descriptor of a fabric with sockets: readable while one of them has something, or after a signal.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any

from twisted_ib.drive.sleeper import unwatch, watch
from twisted_ib.hca.host.libc import KernelEpoll


class LinkWaker:
    """
    A wake-up descriptor, created when it is first asked for.
    """

    # As the waker of Twisted's reactors, a pipe that a write makes readable; an epoll
    # descriptor joins it with the link's, so that any reactor needs to watch one descriptor only.
    def __init__(self, link: Any) -> None:
        """
        @param link: has C{fileno()}, negative if it has none, and C{pending()}, as an
            L{ILink<twisted_ib.hca.fabric.base.link.ILink>}.
        """
        self._link = link
        self._pipe: tuple[int, int] | None = None
        self._poller: Any = None
        self._elsewhere: select.epoll | None = None
        self._isWoken = False
        self._watched: dict[int, Callable[[], object]] = {}

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        """
        Be readable while another descriptor is.

        @param call: processes what is readable, without blocking.
        """
        self._watched[fd] = call
        if self._pipe is not None:
            self._register(fd)

    def watchIn(self, poller: select.epoll | None) -> None:
        """
        Have the link end the sleeps of a reactor that looks at it after each, in the place of L{fileno}.

        @param poller: the reactor's C{select.epoll} object; L{None} for the descriptor again.
        """
        receiver = self._link.fileno()
        before = self._elsewhere
        if receiver < 0 or poller is before:
            return
        self.fileno()
        if poller is None:
            watch(self._poller, receiver, select.EPOLLIN)
        else:
            # epoll(7): edge-triggered, nothing needs to be called for it.
            watch(poller, receiver, select.EPOLLIN | select.EPOLLET)
        self._elsewhere = poller
        # The reactor of before may have closed its own.
        unwatch(self._poller if before is None else before, receiver)

    def fileno(self) -> int:
        """
        @return: the descriptor to poll.
        """
        pipe = self._pipe or self._open()
        found: int = pipe[0] if self._poller is None else self._poller.fileno()
        return found

    def _open(self) -> tuple[int, int]:
        pipe = self._pipe = os.pipe()
        for fd in pipe:
            os.set_blocking(fd, False)
        receiver = self._link.fileno()
        if receiver >= 0:
            self._register(receiver)
        # A link without a descriptor calls C{signal}, but what has arrived before this is not signalled
        # again.
        elif self._link.pending():
            self._isWoken = True
        for fd in self._watched:
            self._register(fd)
        if self._isWoken:
            os.write(pipe[1], b"!")
        return pipe

    def _register(self, fd: int) -> None:
        if self._poller is None:
            assert self._pipe is not None
            self._poller = KernelEpoll()
            self._poller.register(self._pipe[0], select.EPOLLIN)
        watch(self._poller, fd, select.EPOLLIN)

    def signal(self) -> None:
        """
        Make L{fileno} readable.
        """
        # One octet at most: the pipe cannot fill up and block.
        if not self._isWoken:
            self._isWoken = True
            if self._pipe is not None:
                os.write(self._pipe[1], b"!")

    def attend(self) -> None:
        """
        Undo L{signal}, and process the other descriptors.
        """
        if self._isWoken:
            self._isWoken = False
            if self._pipe is not None:
                os.read(self._pipe[0], 1)
        for call in self._watched.values():
            call()

    def close(self) -> None:
        """
        Close the descriptors.
        """
        self._watched.clear()
        self._elsewhere = None
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            for fd in pipe:
                os.close(fd)
