"""
Tests of L{twisted_ib.hca.host.socketpage.page}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib.hca.host.socketpage.page import ShownSockets


class Page:
    """
    Notes what is added, and gives each row a place but the third.
    """

    def __init__(self) -> None:
        self.added: list[Any] = []

    def add(self, name: str, entries: Any, gone: Any) -> list[int | None]:
        self.added.append((name, [each[0] for each in entries], list(gone)))
        return [None if each[0] == "c" else 160 * number for number, each in enumerate(entries, 1)]


class ShownTests(SynchronousTestCase):
    """
    The users of a device and their rows.
    """

    def setUp(self) -> None:
        """
        A device whose page is not open.
        """
        self.opened: list[Page] = []
        self.users: dict[Any, int | None] = {"a": None, "c": None}
        self.shown: Any = ShownSockets("shm0", self.users, self.open)

    def open(self) -> Any:
        """
        @return: a page.
        """
        self.opened.append(Page())
        return self.opened[-1]

    def test_batch(self) -> None:
        """
        The connections of a batch are shown together, but for those that are over; rows of those that have
        ended are given back once.
        """
        self.shown.unshown = [(each, "127.0.0.1", 1, "", 0) for each in "abc"]
        self.shown.gone = [320]
        self.shown.endOfBatch()
        self.shown.endOfBatch()
        self.assertEqual(self.users, {"a": 160, "c": None})
        (page,) = self.opened
        self.assertEqual(page.added, [("shm0", ["a", "c"], [320]), ("shm0", [], [])])
        self.assertIs(self.shown.openPage(), page)
