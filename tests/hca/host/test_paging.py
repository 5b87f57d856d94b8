"""
Tests for L{twisted_ib.hca.host.query}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.hca.base.socketrows import COLUMNS
from twisted_ib.hca.host import query
from twisted_ib.hca.host.handshake import QueryAnswer
from twisted_ib.hca.host.query import pages

HEAD = {"hca_id": "shm0", "pid": 7, "program": "x"}


class PagesTests(SynchronousTestCase):
    """
    Rows on pages.
    """

    def pages(self, rows: Any) -> list[dict[str, Any]]:
        """
        @return: the pages, each of which fits into an answer and has the same head.
        """
        found = list(pages(HEAD, ("a", "b"), rows))
        for page in found:
            self.assertLessEqual(len(QueryAnswer(page).pack()), limits.ANSWER_BYTES)
            self.assertLessEqual(len(page["rows"]), query.SOCKETS_PER_PAGE)
            self.assertEqual({name: page[name] for name in HEAD}, HEAD)
            self.assertEqual(page["columns"], ["a", "b"])
        self.assertEqual([page["more"] for page in found], [True] * (len(found) - 1) + [False])
        return found

    def rows(self, found: list[dict[str, Any]]) -> list[Any]:
        """
        @return: the rows of all pages.
        """
        return [row for page in found for row in page["rows"]]

    def test_none(self) -> None:
        """
        Without rows there is one page.
        """
        [page] = self.pages([])
        self.assertEqual(page["rows"], [])

    def test_many(self) -> None:
        """
        Each row is on one page, in order, whatever their sizes.
        """
        for size in (1, 40, 200, 3000, 7000):
            rows = [[f"{n:05}", "x" * (size + n % 7)] for n in range(1000)]
            self.assertEqual(self.rows(self.pages(rows)), rows)

    def test_full(self) -> None:
        """
        A page is filled to its last byte before there is another one.
        """
        room = limits.ANSWER_BYTES - len(QueryAnswer(next(pages(HEAD, ("a", "b"), []))).pack())
        row = ["", "x" * (room // 2 - len('["", ""], '))]
        found = self.pages([row, row])
        self.assertEqual(len(found), 1)
        self.assertGreaterEqual(len(QueryAnswer(found[0]).pack()), limits.ANSWER_BYTES - 4)
        self.assertEqual(len(self.pages([row, ["x" * 4, row[1]]])), 2)

    def test_counted(self) -> None:
        """
        After a page that octets fill the next one has as many rows as any.
        """
        large, small = ["a", "x" * (limits.ANSWER_BYTES * 3 // 5)], ["b", "y"]
        most = query.SOCKETS_PER_PAGE
        found = self.pages([large, large, *[small] * most])
        self.assertEqual([len(page["rows"]) for page in found], [1, most, 1])

    def test_work(self) -> None:
        """
        A page is a bounded part of the work, also where nothing is found.
        """
        looked = 0

        def look() -> Iterator[Any]:
            """
            Find something now and then.
            """
            nonlocal looked
            for n in range(10 * query.SOCKETS_PER_PAGE):
                looked += 1
                yield None if n % 10 else [n, ""]

        before = 0
        found = []
        for page in pages(HEAD, ("a", "b"), look()):
            self.assertLessEqual(looked - before, query.SOCKETS_PER_PAGE)
            before = looked
            found.append(page)
        self.assertEqual(len(self.rows(found)), query.SOCKETS_PER_PAGE)

    def test_tooLong(self) -> None:
        """
        A row that no page could hold is cut; what is in it is plain values.
        """
        [page, *more] = self.pages([["\U0001f600" * 5000, 1], [None, True]])
        self.assertEqual(page["rows"][0], ["\U0001f600" * 64, 1])
        self.assertEqual(self.rows([page, *more])[1], [None, True])

    def test_longest(self) -> None:
        """
        A row with the longest texts that there are fits, or does once they are cut.
        """
        row = ["\U0001f600" * limits.SOCKET_RULE] * len(COLUMNS)
        [page] = self.pages([row])
        self.assertEqual(len(page["rows"]), 1)
