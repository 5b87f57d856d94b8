"""
The descriptor of a fabric of packets: readable while the link has something, or when somebody says so.
"""

from __future__ import annotations

import os
import select
from typing import Any


class Waker:
    """
    Descriptors, which are made when somebody asks for them.
    """

    __slots__ = ("_isWoken", "_link", "_pipe", "_poller")

    def __init__(self, link: Any) -> None:
        """
        There are none.

        @param link: An L{ILink<twisted_ib.hca.interfaces.ILink>}.
        """
        self._link = link
        self._pipe: tuple[int, int] | None = None
        self._poller: Any = None
        self._isWoken = False

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
        arrivals = self._link.fileno()
        if arrivals >= 0:
            self._poller = select.epoll()
            self._poller.register(arrivals, select.EPOLLIN)
            self._poller.register(pipe[0], select.EPOLLIN)
        elif self._link.pending():
            self.signal()
        return pipe

    def signal(self) -> None:
        """
        Make L{fileno} readable.
        """
        if not self._isWoken and self._pipe is not None:
            self._isWoken = True
            os.write(self._pipe[1], b"!")

    def attend(self) -> None:
        """
        Undo L{signal}.
        """
        if self._isWoken and self._pipe is not None:
            self._isWoken = False
            os.read(self._pipe[0], 1)

    def close(self) -> None:
        """
        Give them back.
        """
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            for fd in pipe:
                os.close(fd)


__all__ = ["Waker"]
