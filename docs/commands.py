"""
Manual pages and completions of the commands: C{python -m docs.commands} in the root of the checkout writes
the folder C{share}, which wheels carry, from the parsers.

They are made here, and not when a wheel is built: the parsers import what the commands stand on.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

from twisted_ib.settings import USERS, VARIABLES

ROOT = Path(__file__).resolve().parent.parent
SHARE = ROOT / "share"

_BASH = """# Made by python -m docs.commands.
_{name}() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words="{words}"
    case "$before" in
{cases}        *) [[ $word == -* ]] && words="{options}" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _{name} {prog}
"""


def commands() -> Iterator[argparse.ArgumentParser]:
    """
    @return: the parsers of the commands that are installed, by name.
    """
    metadata = ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    scripts = metadata["options.entry_points"]["console_scripts"].strip().splitlines()
    for script in sorted(scripts):
        _, module, _ = re.split(" = |:", script)
        yield import_module(module).commandLine()


def subcommands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """
    @return: a parser, and those of its subcommands.
    """
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield from subcommands(each)


def _shown(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.Action, str]]:
    # With the help, of which argparse expands %(default)s.
    for action in parser._actions:
        if action.help is not argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction):
            yield action, parser._get_formatter()._expand_help(action) if action.help else ""


def _value(action: argparse.Action) -> str:
    # Not argparse's own words: each version of Python has others.
    if action.nargs == 0:
        return ""
    name = action.metavar or (
        "|".join(map(str, action.choices)) if action.choices is not None else action.dest.upper()
    )
    text = " ".join(name) if isinstance(name, tuple) else str(name)
    return {"?": f"[{text}]", "*": f"[{text} ...]", "+": f"{text} ..."}.get(str(action.nargs), text)


# -- roff: man(7), groff_man(7)


def _roff(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    # A line that begins with one of these is a request.
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def _synopsis(parser: argparse.ArgumentParser) -> Iterator[str]:
    usage = parser.usage
    if usage is None:
        words = [_value(action) for action, _ in _shown(parser) if not action.option_strings]
        names = [each.prog.removeprefix(f"{parser.prog} ") for each in subcommands(parser)][1:]
        usage = " ".join(["%(prog)s", "[OPTION ...]", *words, *(["|".join(names)] if names else [])])
    for line in usage.splitlines():
        yield _roff(line.replace("%(prog)s", parser.prog).strip())
        yield ".br"


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action, text in _shown(parser):
        names = ", ".join(rf"\fB{_roff(name)}\fR" for name in action.option_strings)
        value = rf"\fI{_roff(_value(action))}\fR" if _value(action) else ""
        yield from (".TP", f"{names} {value}".strip(), _roff(text))


def manual(parser: argparse.ArgumentParser) -> str:
    """
    @return: the manual page of a command.
    """
    text = parser.description or ""
    # lexgrog(1): one line, as whatis(1) and apropos(1) show it.
    summary = re.sub("^[A-Z](?=[a-z])", lambda found: found[0].lower(), re.split(r"\.(?: |$)", text)[0])
    lines = [f'.TH {_roff(parser.prog.upper())} 1 "" twisted_ib "User Commands"', ".SH NAME"]
    lines += [rf"{_roff(parser.prog)} \- {_roff(summary)}", ".SH SYNOPSIS"]
    lines += [*_synopsis(parser), ".SH DESCRIPTION", _roff(text), ".SH OPTIONS", *_options(parser)]
    for each in list(subcommands(parser))[1:]:
        lines += [f".SH {_roff(each.prog.upper())}", *_synopsis(each)]
        lines += [_roff(each.description or ""), *_options(each)]
    names = ", ".join(each.name for each in VARIABLES.values() if each.by == USERS)
    lines += [".SH ENVIRONMENT", f"{names}: see docs/settings.md of the project."]
    return "\n".join(line for line in lines if line) + "\n"


# -- completions: bash(1) compgen; zshcompsys(1) _arguments


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for each in subcommands(parser) for action, _ in _shown(each)]


def _words(parser: argparse.ArgumentParser) -> list[str]:
    found = [name for each in list(subcommands(parser))[1:] for name in each.prog.split()[-1:]]
    for action in _actions(parser):
        if not action.option_strings and action.choices is not None:
            found += map(str, action.choices)
    return list(dict.fromkeys(found))


def bash(parser: argparse.ArgumentParser) -> str:
    """
    @return: the completion of a command by bash; file names where nothing else is known.
    """
    options: dict[str, None] = {}
    cases: dict[str, list[str]] = {}
    for action in _actions(parser):
        options.update(dict.fromkeys(action.option_strings))
        if action.option_strings and _value(action):
            cases.setdefault(" ".join(map(str, action.choices or ())), []).extend(action.option_strings)
    return _BASH.format(
        name=parser.prog.replace("-", "_"),
        prog=parser.prog,
        words=" ".join(_words(parser)),
        options=" ".join(options),
        cases="".join(
            f'        {"|".join(dict.fromkeys(names))}) words="{words}" ;;\n'
            for words, names in cases.items()
        ),
    )


def _quoted(parts: Iterable[str]) -> str:
    return "'" + "".join(parts).replace("'", "'\\''") + "'"


def zsh(parser: argparse.ArgumentParser) -> str:
    """
    @return: the completion of a command by zsh.
    """
    lines = [f"#compdef {parser.prog}", "# Made by python -m docs.commands.", "_arguments \\"]
    for each in subcommands(parser):
        for action, text in _shown(each):
            shown = "_files" if "FILE" in _value(action) else " "
            if action.choices is not None:
                shown = f"({' '.join(map(str, action.choices))})"
            value = f":{action.dest}:{shown}" if _value(action) else ""
            for name in action.option_strings:
                said = re.sub(r"([\[\]:\\])", r"\\\1", text)
                lines.append(f"  {_quoted((name, '[', said, ']', value))} \\")
    words = _words(parser)
    lines += [f"  {_quoted(('1:command:(', ' '.join(words), ')'))} \\"] if words else []
    return "\n".join([*dict.fromkeys(lines), "  '*:file:_files'"]) + "\n"


def files() -> dict[str, str]:
    """
    @return: the texts of all files, by their names in L{SHARE}.
    """
    found = {}
    for parser in commands():
        found[f"man/man1/{parser.prog}.1"] = manual(parser)
        found[f"bash-completion/completions/{parser.prog}"] = bash(parser)
        found[f"zsh/site-functions/_{parser.prog}"] = zsh(parser)
    return found


if __name__ == "__main__":
    for name, text in files().items():
        path = SHARE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
