"""
The modules of C{.ci}, which is no package.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest

FOLDER = Path(__file__).resolve().parents[2] / ".ci"


def functions() -> Any:
    """
    @return: the module of the functions that C{.ci/run} and C{.ci/long} share.

    @raise SkipTest: C{.ci} is not here.
    """
    if not (FOLDER / "functions.py").exists():
        raise SkipTest("not a checkout")
    if "ci_functions" not in sys.modules:
        spec = importlib.util.spec_from_file_location("ci_functions", FOLDER / "functions.py")
        assert spec is not None and spec.loader is not None
        sys.modules["ci_functions"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["ci_functions"]
