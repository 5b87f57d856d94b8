"""
The command C{ib-run}, also as C{python -m twisted_ib.tools.run}, the C{ib-run} of another interpreter.
"""

from __future__ import annotations

import sys

from twisted_ib.tools.run.native.again import startAgain

# Not typing's, as in twisted_ib.settings.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from twisted_ib.tools.program import ArgumentParser


def commandLine() -> ArgumentParser:
    """
    @return: the parser of the command line.
    """
    from twisted_ib.tools.run.run import commandLine

    return commandLine()


def main() -> int:
    """
    Run C{ib-run}.

    @return: the exit status, if the program ends without one.
    """
    # First: what is imported before is imported a second time.
    startAgain(sys.argv[1:])
    from twisted_ib.tools.run.run import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
