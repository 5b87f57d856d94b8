"""
Examples of L{tests.processes.applications.test_examples} with more data.
"""

from __future__ import annotations

from tests.processes.applications.test_examples import BulkAMPTestCase


class BulkAMPTests(BulkAMPTestCase):
    """
    C{examples/bulkamp.py}.
    """

    def test_send(self) -> None:
        """
        100 MB.
        """
        self.send(100)
