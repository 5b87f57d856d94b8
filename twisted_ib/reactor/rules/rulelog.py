"""
Where C{log} statements of a file of rules send what the offload switch does.

That is beside Twisted's log, and only for a file that has such a statement.  A file goes where libsdp
puts it: root's is C{/var/log/NAME}; another user's is C{log} in the folder C{NAME.UID}, in the
temporary folder if C{NAME} has no C{/} at its beginning, and nobody else may write there.

Source: libsdp C{libsdp.conf}, "LOG CONFIGURATION".
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterable

from twisted_ib.reactor.rules.syntax import Log

#: libsdp's levels: of matches, of listens and connects, of warnings and errors.
MATCH, SUMMARY, WARNING, ERROR = 4, 7, 8, 9

_SYSTEM_FOLDER = "/var/log"


def logFile(name: str, uid: int) -> str:
    """
    Find the place of a log, and make its folder.

    @param name: the file as the statement names it.
    @param uid: the user.

    @return: the path.

    @raise OSError: its folder cannot be had, or is not the user's own.
    """
    if uid == 0:
        return os.path.join(_SYSTEM_FOLDER, name)
    folder = f"{os.path.join(tempfile.gettempdir(), name)}.{uid}"
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a folder of user {uid} alone") from None
    return os.path.join(folder, "log")


class RuleLog:
    """
    What the C{log} statements of one file ask for.

    @ivar destination: C{"stderr"}, C{"syslog"}, C{"file"}; L{None} for nowhere.
    @ivar file: the file's name, for C{"file"}.
    @ivar level: the least level that is logged.
    """

    def __init__(self, statements: Iterable[Log] = (), program: str = "") -> None:
        """
        @param statements: them; later ones change what earlier ones say.
        @param program: the name of this program.
        """
        self.destination: str | None = None
        self.file: str | None = None
        self.level = ERROR
        self._program = program
        for statement in statements:
            # libsdp logs to standard error until it is told otherwise.
            self.destination = statement.destination or self.destination or "stderr"
            self.file = statement.file if statement.destination else self.file
            self.level = self.level if statement.level is None else statement.level

    def wants(self, level: int) -> bool:
        """
        @param level: a level.

        @return: whether a line of that level goes anywhere.
        """
        return self.destination is not None and level >= self.level

    def write(self, level: int, text: str) -> None:
        """
        Log a line; who cannot be reached misses it.

        @param level: its level, 1 to 9.
        @param text: the line.
        """
        if not self.wants(level):
            return
        if self.destination == "syslog":
            import syslog

            # Not openlog(), which is the application's.
            priorities = {WARNING: syslog.LOG_WARNING, ERROR: syslog.LOG_ERR}
            syslog.syslog(priorities.get(level, syslog.LOG_INFO), f"{self._program}: {text}")
            return
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        line = f"{now} {self._program}[{os.getpid()}] {text}\n"
        try:
            if self.destination == "stderr":
                sys.stderr.write(line)
            else:
                self._append(line)
        except (OSError, ValueError, AttributeError):
            # A full disk, somebody else's folder, standard error closed or none.
            self.destination = None

    def _append(self, line: str) -> None:
        """
        @param line: goes to the end of the file.

        @raise OSError: it cannot be written.
        """
        path = logFile(self.file or "", os.geteuid())
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, line.encode("utf-8", "surrogateescape"))
        finally:
            os.close(descriptor)


__all__ = ["ERROR", "MATCH", "SUMMARY", "WARNING", "RuleLog", "logFile"]
