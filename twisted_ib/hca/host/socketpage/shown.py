"""
The listeners and connections of one device that stand in its socket page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted_ib.hca.host.socketpage.page import Shown, SocketPage


class ShownSockets:
    """
    The users of a device, as far as C{ib-ss} can see them while the process is busy.

    @ivar name: The device's name.
    @ivar users: The device's users, each with the offset of its row.
    @ivar unshown: Connections that have been made in this batch and have no row yet.
    @ivar gone: The rows of those that have ended in this batch.
    @ivar page: The page, once there is one.
    """

    __slots__ = ("_open", "gone", "name", "page", "unshown", "users")

    def __init__(self, name: str, users: dict[Any, int | None], openPage: Callable[[], SocketPage]) -> None:
        self.name = name
        self.users = users
        self.unshown: list[Shown] = []
        self.gone: list[int] = []
        self.page: SocketPage | None = None
        self._open = openPage

    def openPage(self) -> SocketPage:
        """
        @return: The page, made at the first call.
        """
        page = self.page
        if page is None:
            page = self.page = self._open()
        return page

    def show(self, entries: Sequence[Shown]) -> None:
        """
        Write listeners and connections into the page, where they stand until the device is released.
        """
        gone, self.gone = self.gone, []
        offsets = self.openPage().add(self.name, entries, gone)
        for (user, *_), offset in zip(entries, offsets, strict=True):
            self.users[user] = offset

    def endOfBatch(self) -> None:
        """
        Show the connections of this batch, but for those that are over, and remove those that have ended.
        """
        unshown, self.unshown = self.unshown, []
        users = self.users
        self.show([each for each in unshown if each[0] in users])
