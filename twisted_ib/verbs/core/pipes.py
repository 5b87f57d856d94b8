"""
Pipes that a program watches.
"""

from __future__ import annotations

import os


class ReadablePipe:
    """
    A pipe that is readable while a condition holds, for programs that watch a descriptor.

    @ivar fd: readable between L{set} and L{clear}.
    """

    __slots__ = ("_closed", "_readable", "_write", "fd")

    def __init__(self) -> None:
        """
        @raise OSError: no descriptor is free.
        """
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        # One octet in the pipe at most: it cannot fill up, and poll(2) needs no more.
        self._readable = False
        self._closed = False

    def set(self) -> None:
        """
        Make it readable.
        """
        if not self._readable and not self._closed:
            # First, so that a write that raises is not repeated.
            self._readable = True
            os.write(self._write, b"!")

    def clear(self) -> None:
        """
        Make it unreadable.
        """
        if self._readable:
            self._readable = False
            os.read(self.fd, 1)

    def close(self) -> None:
        """
        Close the descriptors; it may be repeated.
        """
        if not self._closed:
            self._closed = True
            self._readable = False
            os.close(self.fd)
            os.close(self._write)
