"""
Descriptors that a program watches.
"""

from __future__ import annotations

import os
from os import eventfd_read


class Readable:
    """
    A descriptor that is readable while there are events, for programs that watch it.

    @ivar fd: readable between L{set} or L{tell} and L{clear}.
    """

    __slots__ = ("_closed", "_readable", "fd")

    def __init__(self) -> None:
        """
        @raise OSError: no descriptor is free.
        """
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._readable = False
        self._closed = False

    def set(self) -> None:
        """
        Make it readable.
        """
        if not self._readable:
            self.tell()

    def tell(self) -> None:
        """
        Make it readable for one event more: those who watch it by EPOLLET hear of each, as on Linux
        (uverbs_main.c, ib_uverbs_comp_handler; ucma.c, ucma_event_handler).
        """
        if not self._closed:
            # First, so that a write that raises is not repeated.
            self._readable = True
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """
        Make it unreadable.
        """
        if self._readable:
            self._readable = False
            try:
                eventfd_read(self.fd)
            except BlockingIOError:
                pass  # A forked child, which shares it, has done so.

    def close(self) -> None:
        """
        Close the descriptor; it may be repeated.
        """
        if not self._closed:
            self._closed = True
            self._readable = False
            os.close(self.fd)
