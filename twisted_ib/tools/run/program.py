"""
A program of Python: where it is, and how Python itself would run it.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType
from typing import Any

#: Exit statuses of what cannot be run and of what is not there, as of env(1) and shells (POSIX 2.8.2).
NOT_RUNNABLE, NOT_FOUND = 126, 127
_ELF = b"\x7fELF"
#: Suffixes of files that Python runs whatever their first line is.
_SCRIPTS = (".py", ".pyc", ".pyw", ".pyz")
_PYTHON = re.compile(r"python[0-9.]*t?").fullmatch
#: What pip writes where an interpreter has a long path, or one with spaces (distlib scripts.py).
_LONG_PATH = re.compile(rb"'''exec' \"?([^\"\n]+?)\"? \"\$0\" \"\$@\"").match
#: Has an interpreter say what it is, and whether it has this command.
_ASK = """
import importlib.util, sys
print(sys.executable)
names = "twisted_ib", "twisted_ib.tools", "twisted_ib.tools.run"
print(all(importlib.util.find_spec(name) for name in names))
"""
#: How long it may take for that, seconds.
_INTERPRETER_SECONDS = 30


class StartError(Exception):
    """
    The program cannot be started.

    @ivar status: the exit status that says so.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Code:
    """
    C{-c CODE}.
    """

    name = "-c"

    def __init__(self, text: str) -> None:
        self._text = text

    def prepare(self, arguments: list[str]) -> None:
        """
        Set C{sys.argv} and the first entry of C{sys.path}.
        """
        _prepare("-c", arguments, self.folder())

    def folder(self) -> str:
        """
        Return the first entry of C{sys.path}, as Python has it for this program.
        """
        return ""

    def run(self) -> None:
        """
        Run it as C{__main__}.
        """
        # Python's own; the types of a loader are those of its objects.
        main: Any = _newMain()
        main.__loader__ = BuiltinImporter
        if sys.version_info >= (3, 13):
            # Tracebacks show its lines there (Python/pythonrun.c).
            import linecache

            lines = [f"{line}\n" for line in self._text.splitlines()]
            linecache.cache["<string>"] = (len(self._text), None, lines, "<string>")
        exec(compile(self._text, "<string>", "exec", dont_inherit=True), vars(main))


class Module:
    """
    C{-m MODULE}: see L{Code}.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, arguments: list[str]) -> None:
        _prepare("-m", arguments, self.folder())

    def folder(self) -> str:
        return os.getcwd()

    def run(self) -> None:
        _newMain()
        # Python itself calls this for -m (Modules/main.c pymain_run_module).
        _runAsMain(self.name, True)


class Script:
    """
    A file of Python, or a folder or ZIP archive with a C{__main__.py}: see L{Code}.
    """

    def __init__(self, path: str, name: str) -> None:
        """
        @param path: where it is.
        @param name: how the user calls it.
        """
        self._path = path
        self.name = name
        self._isArchive = os.path.isdir(path) or _begins(path, b"PK\x03\x04")

    def prepare(self, arguments: list[str]) -> None:
        _prepare(self._path, arguments, self.folder())

    def folder(self) -> str:
        # A script's folder is where it really lies (Modules/getpath.py), an archive is itself the entry.
        return self._absolute() if self._isArchive else os.path.dirname(os.path.realpath(self._path))

    def _absolute(self) -> str:
        # As Python has it, which leaves "./" and ".." there.
        return os.path.join(os.getcwd(), self._path)

    def run(self) -> None:
        main: Any = _newMain()
        if self._isArchive:
            _runAsMain("__main__", False)
            return
        path = self._absolute()
        main.__file__, main.__cached__ = path, None
        exec(_codeOf(main, path), vars(main))


def _codeOf(main: Any, path: str) -> CodeType:
    if path.endswith(".pyc"):
        main.__loader__ = SourcelessFileLoader("__main__", path)
        code = main.__loader__.get_code("__main__")
        assert isinstance(code, CodeType)
        return code
    main.__loader__ = SourceFileLoader("__main__", path)
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _runAsMain(name: str, isModule: bool) -> None:
    run: Any = vars(runpy)["_run_module_as_main"]
    run(name, isModule)


def _newMain() -> ModuleType:
    # That of ib-run stays for its frames; no name of it is in the program's.
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main)["__builtins__"] = sys.modules["builtins"]
    return main


def _prepare(first: str, arguments: list[str], folder: str) -> None:
    sys.argv[:] = [first, *arguments]
    # Python has put the folder of ib-run there, unless it was told to put none (-P, -I).
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[:1] = [folder]


def _begins(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(text)) == text
    except OSError:
        return False


class NotPython(Exception):
    """
    The program is none of Python.

    @ivar path: where it is.
    @ivar binary: the file that the kernel loads: the program, or its interpreter.
    """

    def __init__(self, path: str, binary: str) -> None:
        super().__init__(path)
        self.path = path
        self.binary = binary


def find(name: str) -> Script:
    """
    Find a program by its path; or by its name in C{PATH} as a shell does, and then, as C{python} does, a
    script in the current directory.

    @raise StartError: there is none.
    @raise NotPython: it is none of Python.
    @raise OtherInterpreter: it is one of another interpreter.
    """
    path = _path(name)
    if path is None:
        if os.path.exists(name):
            raise StartError(f"{name}: no command has that name; the file here is ./{name}", NOT_FOUND)
        raise StartError(f"{name}: there is no such file, nor a command of that name", NOT_FOUND)
    if not os.path.isdir(path):
        try:
            with open(path, "rb") as file:
                beginning = file.read(512)
        except OSError as error:
            raise StartError(f"{path}: {error.strerror}", NOT_RUNNABLE) from None
        if beginning.startswith(_ELF):
            raise NotPython(path, path)
        _checkInterpreter(path, beginning)
    return Script(path, name)


def _which(name: str) -> str | None:
    # Most programs are named by a path.
    from shutil import which

    return which(name)


def _path(name: str) -> str | None:
    if os.sep in name:
        return name if os.path.exists(name) else None
    # Nothing but a script: what lies in the current directory must not pass for a command that is missing.
    return _which(name) or (name if name.endswith(_SCRIPTS) and os.path.exists(name) else None)


def interpreterOf(beginning: bytes) -> list[str]:
    """
    The interpreter that the first line of a file names, with its options; nothing if it names none.

    @param beginning: of the file.
    """
    if not beginning.startswith(b"#!"):
        return []
    first, _, rest = beginning.partition(b"\n")
    long = _LONG_PATH(rest)
    if first.strip() == b"#!/bin/sh" and long is not None:
        return [os.fsdecode(long[1])]
    words = os.fsdecode(first[2:]).split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if word != "-S"]
        words[:1] = [_which(words[0]) or words[0]] if words else []
    return words


def _checkInterpreter(path: str, beginning: bytes) -> None:
    # `python FILE.py` does not look at the first line either.
    words = [] if path.endswith(_SCRIPTS) else interpreterOf(beginning)
    if not words:
        return
    if not isPython(words[0]):
        raise NotPython(path, words[0])
    if not _isHere(words[0]):
        other = OtherInterpreter(path, words)
        # A wrapper of this one, as pyenv's.
        if not _isHere(other.executable):
            raise other


def isPython(path: str) -> bool:
    """
    @return: whether a program is an interpreter of Python, by its name.
    """
    return _PYTHON(os.path.basename(path)) is not None


def _isHere(executable: str) -> bool:
    # Not their real paths: those of virtual environments are links to one binary.
    return os.path.dirname(os.path.abspath(executable)) == os.path.dirname(sys.executable)


class OtherInterpreter(Exception):
    """
    The program is one of another interpreter.

    @ivar path: where the program is.
    @ivar executable: that interpreter.
    @ivar isFound: whether it has this package.
    """

    def __init__(self, path: str, words: list[str]) -> None:
        """
        Ask it what it is.

        @param words: that, with its options.
        @raise StartError: it does not answer.
        """
        import subprocess

        super().__init__(words[0])
        self.path = path
        self._options = words[1:]
        command = [*words, "-c", _ASK]
        try:
            answer = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_INTERPRETER_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StartError(
                f"{words[0]}, which the program's first line names: {error}", NOT_RUNNABLE
            ) from None
        self.executable, _, found = os.fsdecode(answer.stdout).strip().partition("\n")
        self.isFound = found == "True"

    def become(self, arguments: list[str]) -> None:
        """
        Run that interpreter's C{ib-run} in place of this one.

        @param arguments: this command's.
        @raise StartError: it has none.
        """
        executable = self.executable
        if not self.isFound:
            raise StartError(
                f"the program runs on {self.args[0]}, which has no ib-run: "
                f"{executable or self.args[0]} -m pip install twisted-ib",
                NOT_RUNNABLE,
            )
        os.execv(executable, [executable, *self._options, "-m", "twisted_ib.tools.run", *arguments])
