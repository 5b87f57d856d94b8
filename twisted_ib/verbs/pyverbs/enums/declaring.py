"""
Enumerations in the words of C.

As C declares them, but that C{flags} are those whose members are combined.  The comment in front of each is
its docstring.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum, IntFlag

_DECLARATION = re.compile(r"((?:^#[^\n]*\n)+)^(enum|flags) (\w+) {(.*?)}", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"#.*")


def declared(module: str, text: str) -> dict[str, object]:
    """
    @param module: the name of the module that has them.
    @param text: their declarations.
    @return: the enumerations by their names.
    """
    kinds: dict[str, Callable[..., object]] = {"enum": IntEnum, "flags": IntFlag}
    found: dict[str, object] = {}
    declarations: list[tuple[str, str, str, str]] = _DECLARATION.findall(text)
    for comment, kind, name, members in declarations:
        values: dict[str, int] = {}
        number = -1
        for each in _COMMENT.sub("", members).split(","):
            member, _, value = each.partition("=")
            number = int(value, 0) if value else number + 1
            values[member.strip()] = number
        found[name] = made = kinds[kind](name, values, module=module)
        made.__doc__ = comment.replace("# ", "")
    return found
