"""
Tests for L{twisted_ib.hca.host.socketpage.page} and L{twisted_ib.hca.host.socketpage.reading}.
"""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace
from typing import Any

from tests.hca.host.test_rendezvous import RendezvousTestCase
from tests.hca.host.test_rundirectory import UID
from tests.support.descriptors import descriptors, descriptorsBefore
from twisted_ib.hca.base.socketrows import COLUMNS
from twisted_ib.hca.host.rendezvous import Rendezvous
from twisted_ib.hca.host.socketpage import page as pages
from twisted_ib.hca.host.socketpage.page import FALLBACKS, SocketPage
from twisted_ib.hca.host.socketpage.reading import readPage
from twisted_ib.hca.host.socketpage.records import FIRST_ROW, RECORD, TEXTS

USER = SimpleNamespace(provider="sdp")
LISTENER = (USER, "0.0.0.0", 80, "", 0)
CONNECTION = (USER, "::1", 80, "::2", 9)


class PageTestCase(RendezvousTestCase):
    """
    An HCA with a page.
    """

    def setUp(self) -> None:
        """
        Both.
        """
        super().setUp()
        self.server = self.hca(0x1234)
        self.page = SocketPage(77, "server")
        self.server.attach(self.page)
        self.file = os.path.join(self.run_, f"{self.server.name}.sockets")

    def read(self) -> Any:
        """
        @return: what a command reads.
        """
        return self.readOf(self.server)

    def readOf(self, server: Rendezvous) -> Any:
        """
        @return: what a command reads beside an HCA's entry.
        """
        directory = os.open(self.run_, os.O_RDONLY)
        try:
            return readPage(directory, server.name, UID)
        finally:
            os.close(directory)

    def rows(self) -> list[dict[str, Any]]:
        """
        @return: the rows, by column.
        """
        return [dict(zip(COLUMNS, row, strict=True)) for row in self.read()["rows"]]


class PageTests(PageTestCase):
    """
    Rows that come and go.
    """

    def test_row(self) -> None:
        """
        A listener and a connection, the first without a reason, the second with one.
        """
        why = SimpleNamespace(rule="/a:3", fallback=KeyError("x"), asked=1.5, decided=None, connected=2.5)
        self.page.add("shm0", [LISTENER])
        self.page.add(None, [(SimpleNamespace(provider="tcp", why=why), *CONNECTION[1:])])
        listener, connection = self.rows()
        self.assertEqual(
            listener,
            {
                **dict.fromkeys(COLUMNS),
                "kind": "listener",
                "provider": "sdp",
                "device": "shm0",
                "local": "0.0.0.0:80",
                "state": "LISTEN",
                "rule": "explicit",
            },
        )
        self.assertEqual(
            {name: value for name, value in connection.items() if value is not None},
            {
                "kind": "connection",
                "provider": "tcp",
                "local": "[::1]:80",
                "remote": "[::2]:9",
                "state": "ESTABLISHED",
                "rule": "/a:3",
                "fallback": "'x'",
                "asked": 1.5,
                "connected": 2.5,
            },
        )
        self.assertEqual((self.read()["pid"], self.read()["program"]), (77, "server"))

    def test_providers(self) -> None:
        """
        Connections that no rule has made say so, and which provider and device they have.
        """
        ends = CONNECTION[1:]
        named = [("shm0", "sdp"), ("shm0", "rdma"), ("roce0", "sdp"), ("shm0", "sdp"), (None, "sdp")]
        for device, provider in named:
            self.page.add(device, [(SimpleNamespace(provider=provider), *ends)])
        found = [(row["device"], row["provider"], row["kind"], row["rule"]) for row in self.rows()]
        self.assertEqual(found, [(*each, "connection", "explicit") for each in named])

    def test_private(self) -> None:
        """
        Nobody else can read it.
        """
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)

    def test_remove(self) -> None:
        """
        The place of a row that is removed is used again.
        """
        first, second = self.page.add("shm0", [LISTENER, CONNECTION])
        assert first is not None and second is not None
        self.page.remove(first)
        self.assertEqual([row["kind"] for row in self.rows()], ["connection"])
        self.assertEqual(self.page.add("shm0", [CONNECTION, CONNECTION]), [first, second + RECORD])
        self.assertEqual(len(self.rows()), 3)

    def test_together(self) -> None:
        """
        Rows that are added take the places of those that go, and neighbours are written by one call.
        """
        offsets: Any = self.page.add("shm0", [CONNECTION] * 5)
        written: list[tuple[int, int]] = []
        pwrite = os.pwrite

        def write(fd: int, data: bytes, offset: int) -> int:
            written.append((offset, len(data) // RECORD))
            return pwrite(fd, data, offset)

        self.patch(pages.os, "pwrite", write)
        first, second, _, _, fifth = offsets
        self.assertEqual(self.page.add("shm0", [LISTENER] * 2, [first, second, fifth]), [fifth, second])
        self.assertEqual(written, [(first, 2), (fifth, 1)])
        self.assertEqual(
            [row["kind"] for row in self.rows()], ["listener", "connection", "connection", "listener"]
        )
        self.assertEqual(self.page.add("shm0", [CONNECTION] * 2), [first, fifth + RECORD])

    def test_full(self) -> None:
        """
        A page has so many rows; further ones are not shown, until one is removed.
        """
        self.patch(pages, "ROWS", 3)
        found = self.page.add("shm0", [LISTENER] * 5)
        self.assertEqual(found[3:], [None, None])
        assert found[1] is not None
        self.page.remove(found[1])
        self.assertEqual(self.page.add("shm0", [CONNECTION] * 2), [found[1], None])
        self.assertEqual(len(self.rows()), 3)

    def test_texts(self) -> None:
        """
        So many texts; a row has none of those that come later.
        """
        why = SimpleNamespace(fallback=None, asked=None, decided=None, connected=None)
        for number in range(TEXTS + 3):
            why.rule = f"rule {number}"
            [offset] = self.page.add("shm0", [(SimpleNamespace(provider="sdp", why=why), *LISTENER[1:])])
            assert offset is not None
            self.page.remove(offset)
        self.assertEqual(len(self.page.texts), TEXTS)
        self.page.add("shm0", [(SimpleNamespace(provider="sdp", why=why), *LISTENER[1:])])
        self.assertEqual([(row["provider"], row["rule"]) for row in self.rows()], [("sdp", None)])

    def test_fallbacks(self) -> None:
        """
        However many reasons a program has had against SDP, its rules and providers are shown.
        """
        why = SimpleNamespace(rule="/a:1", asked=None, decided=None, connected=None)
        for number in range(FALLBACKS + 3):
            why.fallback = f"192.0.2.{number} is not an address of this host"
            [offset] = self.page.add(None, [(SimpleNamespace(provider="tcp", why=why), *CONNECTION[1:])])
            assert offset is not None
            self.page.remove(offset)
        self.assertEqual(len(self.page.texts), FALLBACKS)
        why.rule = "/a:2"
        self.page.add("shm0", [(SimpleNamespace(provider="sdp", why=why), *CONNECTION[1:])])
        [row] = self.rows()
        self.assertEqual(
            [row[name] for name in ("provider", "device", "rule", "fallback")], ["sdp", "shm0", "/a:2", None]
        )

    def test_noSpace(self) -> None:
        """
        Where nothing can be written, or nothing is open, no row is shown, and nobody else notices.
        """
        self.page.close()
        [offset] = self.page.add("shm0", [LISTENER])
        assert offset is not None
        self.page.remove(offset)
        self.page.close()


class EntryTests(PageTestCase):
    """
    The file in the run directory.
    """

    def test_close(self) -> None:
        """
        It goes with the HCA's entry, and its descriptor is closed.
        """
        before = descriptorsBefore()
        server = self.hca(0x99)
        server.attach(SocketPage(1, "x"))
        self.assertEqual(len(self.names("hca-0000000000000099")), 2)
        server.close()
        self.assertEqual(self.names("hca-0000000000000099"), [])
        self.assertEqual(descriptors(), before)

    def test_reopened(self) -> None:
        """
        It follows the entry into a new directory, with its rows.
        """
        self.page.add("shm0", [LISTENER])
        before = os.dup(self.page.fd)
        self.addCleanup(os.close, before)
        shutil.rmtree(self.run_)
        following = self.server.reopened()
        self.addCleanup(following.close)
        self.server.close()
        following.bind()
        self.page.add("shm0", [CONNECTION])
        self.assertEqual([row["kind"] for row in self.rows()], ["listener", "connection"])
        # Nobody takes the old file for the present state.
        self.assertEqual(os.fstat(before).st_size, 0)

    def test_dead(self) -> None:
        """
        That of a killed process is removed with its socket.
        """
        left = Rendezvous(0x55, self.environment)
        left.bind().close()
        left.attach(SocketPage(1, "x"))
        self.assertEqual(len(self.names("hca-0000000000000055")), 2)
        self.hca(0x56)
        self.assertEqual(self.names("hca-0000000000000055"), [])
        left.close()

    def test_taken(self) -> None:
        """
        A name that is taken is left alone: there is no page, and the HCA works.
        """
        server = self.hca(0x57)
        os.symlink("/etc/passwd", os.path.join(self.run_, f"{server.name}.sockets"))
        page = SocketPage(1, "x")
        server.attach(page)
        self.assertEqual(page.fd, -1)
        self.assertIsNone(self.readOf(server))


class HostileTests(PageTestCase):
    """
    Pages of processes that mean ill, or have died.
    """

    def replace(self, data: bytes) -> None:
        """
        Write another page.
        """
        with open(self.file, "wb") as file:
            file.write(data)

    def test_files(self) -> None:
        """
        What is no file, or no page, is read as none, and nobody waits for it.
        """
        os.unlink(self.file)
        self.assertIsNone(self.read())
        os.mkfifo(self.file)
        self.assertIsNone(self.read())
        os.unlink(self.file)
        os.symlink("/dev/zero", self.file)
        self.assertIsNone(self.read())
        os.unlink(self.file)
        os.mkdir(self.file)
        self.assertIsNone(self.read())
        os.rmdir(self.file)
        for data in (b"", b"x", b"\0" * 9999, b"\xff" * (FIRST_ROW + 3) * RECORD):
            self.replace(data)
            self.assertIsNone(self.read())

    def test_owner(self) -> None:
        """
        A page that is not of the user who has the HCA is none.
        """
        directory = os.open(self.run_, os.O_RDONLY)
        self.addCleanup(os.close, directory)
        self.assertIsNotNone(readPage(directory, self.server.name, UID))
        self.assertIsNone(readPage(directory, self.server.name, UID + 1))

    def test_cut(self) -> None:
        """
        A page that ends anywhere has the rows before that.
        """
        self.page.add("shm0", [LISTENER, CONNECTION])
        with open(self.file, "rb") as file:
            data = file.read()
        start = FIRST_ROW * RECORD
        for size, rows in ((start + 2 * RECORD - 1, 1), (start + RECORD, 1), (start, 0), (RECORD, 0)):
            self.replace(data[:size])
            self.assertEqual(len(self.read()["rows"]), rows, size)

    def test_texts(self) -> None:
        """
        A text that is not there, or is another record, is none.
        """
        self.page.add("shm0", [LISTENER])
        with open(self.file, "r+b") as file:
            file.seek(RECORD)
            file.write(b"\xff" * 2 * RECORD)
        [row] = self.rows()
        self.assertIsNone(row["device"])
