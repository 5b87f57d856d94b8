"""
The programs in C{examples/}, which are in no package, as modules.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

#: Where they are.
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> Any:
    """
    Import one of them.

    @param name: the file's name, without C{.py}.

    @return: the module.
    """
    known = f"examples of twisted_ib: {name}"
    if known not in sys.modules:
        spec = spec_from_file_location(known, EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[known] = module
    return sys.modules[known]
