"""
The decorator of verbs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from twisted_ib.verbs.core.hub import hub

Function = TypeVar("Function", bound=Callable[..., Any])


def locked(function: Function) -> Function:
    """
    Decorate a verb: it runs with the hub's lock held.
    """

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        with hub:
            return function(*arguments, **keywords)

    return cast(Function, call)
