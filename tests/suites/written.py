"""
The interpreter's tests with a line for each result.

    python -m tests.suites.written FILE NAMES

The lines are JSON: C{"passed"}, C{"failed"} or C{"skipped"}, and the test's name.
"""

from __future__ import annotations

import json
import sys
import unittest
from collections.abc import Sequence
from typing import Any


class Result(unittest.TextTestResult):
    """
    Writes a line for each result.

    @ivar path: To which file.
    """

    path = ""

    def write(self, result: str, test: Any) -> None:
        """
        Write one.
        """
        with open(self.path, "a") as file:
            print(json.dumps([result, test.id()]), file=file)

    def addSuccess(self, test: Any) -> None:
        """
        It passed.
        """
        super().addSuccess(test)
        self.write("passed", test)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        """
        It failed as it says it does.
        """
        super().addExpectedFailure(test, err)
        self.write("passed", test)

    def addUnexpectedSuccess(self, test: Any) -> None:
        """
        It passed though it says it does not.
        """
        super().addUnexpectedSuccess(test)
        self.write("failed", test)

    def addSkip(self, test: Any, reason: str) -> None:
        """
        It was left out.
        """
        super().addSkip(test, reason)
        self.write("skipped", test)

    def addFailure(self, test: Any, err: Any) -> None:
        """
        It failed.
        """
        super().addFailure(test, err)
        self.write("failed", test)

    def addError(self, test: Any, err: Any) -> None:
        """
        It raised, or could not be loaded.
        """
        super().addError(test, err)
        self.write("failed", test)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """
        A part of it failed.
        """
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.write("failed", test)


def main(arguments: Sequence[str]) -> int:
    """
    Run them.

    @return: The exit status.
    """
    Result.path = arguments[0]
    tests = unittest.defaultTestLoader.loadTestsFromNames(arguments[1:])
    ran = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(tests)
    return 0 if ran.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
