"""
The process's side of a socket page: rows are written when a listener or connection comes and goes.

Rows are written by C{pwrite(2)}, neighbours together, so that a full file system is an error and not a
signal, as it would be in mapped memory.  L{ShownSockets} has the rows of one device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

from zope.interface import Interface

from twisted_ib.drive.process import Descriptor
from twisted_ib.hca.base.socketrows import EXPLICIT
from twisted_ib.hca.host.socketpage.records import (
    CONNECTION,
    FIRST_ROW,
    LISTENER,
    NEVER,
    NO_TEXT,
    NOTHING,
    RECORD,
    ROWS,
    TEXT_BYTES,
    TEXTS,
    Header,
    packEnds,
    packHead,
    packHeader,
    packSum,
    packText,
)

#: The end of the name of a page, after that of its HCA's socket.
SUFFIX = ".sockets"
#: The texts of one page until which fallbacks get a number.  Most of these name an address: a program that
#: connects to many would leave no number to its rules and providers, without which no row is shown.
FALLBACKS = TEXTS // 2


#: A listener or connection, an object with C{provider} and perhaps C{why}; its host and port, and the peer's,
#: of a listener an empty host.
Shown = tuple[Any, str, int, str, int]


class IListed(Interface):
    """
    A fabric whose HCAs commands find by entries in the host's run directory.
    """

    def attachPage(page: SocketPage) -> None:
        """
        Keep a L{SocketPage} beside the HCA's entry.
        """


class SocketPage(Descriptor):
    """
    The socket page of one HCA, a file once it is made.

    @ivar free: The offsets of rows that were removed.
    @ivar texts: The number of each text that rows name.
    """

    def __init__(self, pid: int, program: str) -> None:
        super().__init__(-1)
        self._header = packHeader(Header(pid, program))
        self._end = FIRST_ROW * RECORD
        self.free: list[int] = []
        self.texts: dict[str, int] = {}
        # The first bytes of the rows of connections that no rule has made, by device and provider.
        self._heads: dict[tuple[str | None, str], bytes] = {}

    # -- the file

    def make(self, directory: int, name: str) -> None:
        """
        Make the file, in place of the one before, with the rows that there are.

        @param directory: The descriptor of the run directory.
        @param name: The file's name there.
        @raise OSError: it cannot be made.
        """
        before = self.fd
        # O_EXCL: in a sticky directory the name could be another user's file, or a link.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.fd = os.open(name, flags, 0o600, dir_fd=directory)
        self._write(0, self._header)
        if before >= 0:
            self._copy(before)

    def _copy(self, before: int) -> None:
        size, chunk = os.fstat(before).st_size, 1 << 16
        with suppress(OSError):
            for start in range(RECORD, size, chunk):
                os.pwrite(self.fd, os.pread(before, chunk, start), start)
            # Who has the old file in sight must not take it for the present state.
            os.ftruncate(before, 0)
        os.close(before)

    def _write(self, record: int, data: bytes) -> None:
        # ENOSPC and EDQUOT: only ib-ss misses something.
        if data:
            with suppress(OSError):
                os.pwrite(self.fd, data, record * RECORD)

    # -- rows

    def text(self, text: str | None, end: bool = False, most: int = TEXTS) -> int:
        """
        Give a text a number.

        @param end: Whether the end of a text that is too long is kept.
        @param most: How many texts there may be.
        @return: L{NO_TEXT} for L{None}, and when there are too many texts.
        """
        if text is None:
            return NO_TEXT
        text = text[-TEXT_BYTES:] if end else text[:TEXT_BYTES]
        number = self.texts.get(text, NO_TEXT)
        if number == NO_TEXT and len(self.texts) < most:
            number = self.texts[text] = len(self.texts) + 1
            self._write(number, packText(text, end))
        return number

    def add(self, device: str | None, entries: Sequence[Shown], gone: Sequence[int] = ()) -> list[int | None]:
        """
        Write rows.

        @param device: The device's name; L{None} for sockets of the operating system.
        @param gone: Offsets of rows to remove, whose places are used first.
        @return: The offset of each row; L{None} of one that has no place.
        """
        found: list[int | None] = []
        heads, free = self._heads, self.free
        free += gone
        written = dict.fromkeys(gone, NOTHING)
        # A loop that calls no function of Python for most connections: each connect passes it.
        for user, here, port, there, peer in entries:
            why = getattr(user, "why", None)
            provider: str = user.provider
            head = heads.get((device, provider)) if why is None and there else None
            if head is None:
                head = self._head(device, provider, why, there)
            body = head + packEnds(port, peer, here.encode(), there.encode())
            offset = free.pop() if free else self._place()
            found.append(offset)
            if offset is not None:
                written[offset] = packSum(crc32(body)) + body
        self._put(written)
        return found

    def _head(self, device: str | None, provider: str, why: Any, there: str) -> bytes:
        rule: str = EXPLICIT
        fallback: object = None
        asked: float | None = None
        decided: float | None = None
        connected: float | None = None
        if why is not None:
            rule, fallback = why.rule, why.fallback
            asked, decided, connected = why.asked, why.decided, why.connected
        number, kind = self.text(device), CONNECTION if there else LISTENER
        head = packHead(
            kind,
            self.text(provider),
            number,
            self.text(rule, True),
            NO_TEXT if fallback is None else self.text(str(fallback), False, FALLBACKS),
            NEVER if asked is None else asked,
            NEVER if decided is None else decided,
            NEVER if connected is None else connected,
        )
        if why is None and there and number != NO_TEXT:
            # Bounded as the texts are, each of which keeps its number.
            self._heads[device, provider] = head
        return head

    def _place(self) -> int | None:
        if self._end >= (FIRST_ROW + ROWS) * RECORD:
            return None
        self._end += RECORD
        return self._end - RECORD

    def _put(self, written: dict[int, bytes]) -> None:
        start = end = 0
        pieces: list[bytes] = []
        for offset in sorted(written):
            if offset != end:
                self._write(start // RECORD, b"".join(pieces))
                start, pieces = offset, []
            pieces.append(written[offset])
            end = offset + RECORD
        self._write(start // RECORD, b"".join(pieces))

    def remove(self, offset: int) -> None:
        """
        Remove a row.
        """
        self.free.append(offset)
        self._put({offset: NOTHING})


class ShownSockets:
    """
    The users of a device, as far as C{ib-ss} can see them while the process is busy.

    @ivar name: The device's name.
    @ivar users: The device's users, each with the offset of its row.
    @ivar unshown: Connections that have been made in this batch and have no row yet.
    @ivar gone: The rows of those that have ended in this batch.
    @ivar page: The page, once there is one.
    """

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
        users = self.users
        for entry, offset in zip(entries, offsets, strict=True):
            users[entry[0]] = offset

    def endOfBatch(self) -> None:
        """
        Show the connections of this batch, but for those that are over, and remove those that have ended.
        """
        unshown, self.unshown = self.unshown, []
        users = self.users
        self.show([each for each in unshown if each[0] in users])
