"""
How often functions are called, for tests of what a message costs; and what a test can put in their place.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from twisted.trial.unittest import SkipTest

import twisted_ib
from twisted_ib.hca.device.form import compiledModules

#: The package's folder.
PACKAGE = os.path.dirname(twisted_ib.__file__) + os.sep
#: Functions of their own before Python 3.12 (PEP 709), so not counted: a count is the same on all.
_INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}
#: Where two classes are no records, so as to be compiled: constructors of records are not counted either.
_PIECES = os.path.join("hca", "queues", "receives.py")


def called(act: Callable[[], object], under: str = "") -> Counter[str]:
    """
    @param under: The folder whose functions count; all if empty.
    @return: How often which function of Python ran while something was done.
    @raise SkipTest: Some modules are compiled, whose functions Python does not count.
    """
    calls: Counter[str] = Counter()

    def see(code: CodeType) -> None:
        """
        Count a call.
        """
        file, name = code.co_filename, code.co_name
        isPiece = name == "__init__" and file.endswith(_PIECES)
        if file.startswith(under) and name not in _INLINED and not isPiece:
            calls[name] += 1

    profiled(act, see)
    return calls


def profiled(act: Callable[[], object], see: Callable[[CodeType], object]) -> None:
    """
    Do something, and say which functions of Python it calls.

    @param see: Called with the code of each.
    @raise SkipTest: Some modules are compiled, whose functions Python does not count.
    """
    if compiledModules():
        raise SkipTest("compiled modules: their calls are not counted")

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        """
        A call, or its end.
        """
        if event == "call":
            see(frame.f_code)

    # What a collection of garbage calls belongs to whoever left it, often an earlier test.
    gc.disable()
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()


def requireReplaceable(kind: type, name: str) -> None:
    """
    Check that a test can put its own function in the place of a method.

    @raise SkipTest: The method is compiled: the compiled methods that call it keep to it.
    """
    if not isinstance(getattr(kind, name), FunctionType):
        raise SkipTest(f"{kind.__name__}.{name} is compiled and cannot be replaced")
