"""
The descriptor of a fabric of packets: readable while the link has something, or when somebody says so.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Any


class LinkWaker:
    """
    Descriptors, which are made when somebody asks for them.
    """

    __slots__ = ("_isWoken", "_link", "_pipe", "_poller", "_watched")

    def __init__(self, link: Any) -> None:
        """
        There are none.

        @param link: An L{ILink<twisted_ib.hca.base.interfaces.ILink>}.
        """
        self._link = link
        self._pipe: tuple[int, int] | None = None
        self._poller: Any = None
        self._isWoken = False
        self._watched: dict[int, Callable[[], object]] = {}

    def watch(self, fd: int, call: Callable[[], object]) -> None:
        """
        Be readable while another descriptor is, too.

        @param call: Takes what there is to be taken, without waiting.
        """
        self._watched[fd] = call
        if self._pipe is not None:
            self._register(fd)

    def fileno(self) -> int:
        """
        @return: The one that is readable.
        """
        pipe = self._pipe or self._open()
        found: int = pipe[0] if self._poller is None else self._poller.fileno()
        return found

    def _open(self) -> tuple[int, int]:
        """
        Make them.

        @return: The pipe.
        """
        pipe = self._pipe = os.pipe()
        for fd in pipe:
            os.set_blocking(fd, False)
        receiver = self._link.fileno()
        if receiver >= 0:
            self._register(receiver)
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
            self._poller = select.epoll()
            self._poller.register(self._pipe[0], select.EPOLLIN)
        self._poller.register(fd, select.EPOLLIN)

    def signal(self) -> None:
        """
        Make L{fileno} readable, or what it will be.
        """
        if not self._isWoken:
            self._isWoken = True
            if self._pipe is not None:
                os.write(self._pipe[1], b"!")

    def attend(self) -> None:
        """
        Undo L{signal}, and take what there is at the other descriptors.
        """
        if self._isWoken:
            self._isWoken = False
            if self._pipe is not None:
                os.read(self._pipe[0], 1)
        for call in self._watched.values():
            call()

    def close(self) -> None:
        """
        Give them back.
        """
        self._watched.clear()
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            for fd in pipe:
                os.close(fd)


__all__ = ["LinkWaker"]
