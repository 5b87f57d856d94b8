"""
The page of all settings: C{python -m docs.settings} in the root of the checkout writes C{docs/settings.md},
from L{twisted_ib.settings} and from the parsers of the commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from docs.commands import ROOT, commands, subcommands
from twisted_ib.settings import BUILDING, RUN, STATEMENTS, TESTS, USERS, VARIABLES, Setting

PAGE = ROOT / "docs" / "settings.md"

_BEGIN = """# Settings

All variables, all statements of a file of [rules](rules.md), and the defaults of all [commands](tools.md).
`python -m docs.settings` makes the page from the table that the programs read, `twisted_ib.settings`.
`ib-run` and `ib-run --check` name variables that begin with `TWISTED_IB_` and that nothing reads.
"""
_TITLES = {
    USERS: "Variables of your programs",
    BUILDING: "Variables of the build",
    TESTS: "Variables of the tests",
    RUN: "Variables that ib-run sets for the programs that it starts",
}
_HEAD = ("| {} | what it is for | values | without it |", "| --- | --- | --- | --- |")


def defaults(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """
    @return: the options of a parser that have a default, and it.
    """
    for action in parser._actions:
        value = action.default
        # Flags, which a command line has or has not; and what a default cannot be.
        if not action.option_strings or isinstance(value, bool) or value in (None, "", [], argparse.SUPPRESS):
            continue
        values = value if isinstance(value, list) else [value]
        texts = [str(getattr(each, "name", each)) for each in values]
        yield max(action.option_strings, key=len), ",".join(texts)


def _row(each: Setting) -> str:
    return f"| `{each.name}` | {each.text} | {each.values} | {each.default} |"


def page() -> str:
    """
    @return: the text of the page.
    """
    lines = [_BEGIN]
    for by, title in _TITLES.items():
        lines += [f"## {title}", "", _HEAD[0].format("variable"), _HEAD[1]]
        lines += [_row(each) for each in VARIABLES.values() if each.by == by] + [""]
    lines += ["## Statements of a file of rules", "", _HEAD[0].format("statement"), _HEAD[1]]
    lines += [*map(_row, STATEMENTS), "", "## Defaults of commands", ""]
    lines += ["| command | option | default |", "| --- | --- | --- |"]
    for parser in (each for command in commands() for each in subcommands(command)):
        lines += [f"| `{parser.prog}` | `{option}` | `{value}` |" for option, value in defaults(parser)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
