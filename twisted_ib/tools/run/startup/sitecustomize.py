"""
Have a process that a program under C{ib-run} has started run under it (L{twisted_ib.tools.run.children}).

Python imports it by this name at its start (module C{site}), from C{PYTHONPATH}.  It may be another Python,
which has no C{twisted_ib}, and may be old.
"""

import os
import sys

# Else something looks at this module, and no interpreter has started.
if __name__ == "sitecustomize":
    # The program's sys.path is what it is without C{ib-run}, and so is its sitecustomize.
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _folder]
    _own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        sys.modules["sitecustomize"] = _own
    try:
        from twisted_ib.tools.run.children import begin
    except ImportError:
        pass
    else:
        begin()
