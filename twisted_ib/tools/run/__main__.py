"""
C{python -m twisted_ib.tools.run}: the C{ib-run} of another interpreter.
"""

from __future__ import annotations

import sys

from twisted_ib.tools.run.run import main

if __name__ == "__main__":
    sys.exit(main())
