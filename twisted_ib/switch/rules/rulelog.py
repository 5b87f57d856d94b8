"""
The log that C{log} statements of a file of rules ask for.

It is written beside Twisted's log, and only for a file with such a statement.  A file goes where libsdp puts
it: root's is C{/var/log/NAME}; another user's is C{log} in the folder C{NAME.UID}, in the temporary folder if
C{NAME} is relative.

Source: libsdp C{libsdp.conf}, "LOG CONFIGURATION".
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable

from twisted_ib.configuration.syntax import ERROR, WARNING, Log
from twisted_ib.settings import LOG_LEVEL

_SYSTEM_FOLDER = "/var/log"


def logFile(name: str, uid: int) -> str:
    """
    Return the path of a log, and make its folder.

    @param name: The name in the statement.
    @raise OSError: the folder cannot be made, or is not the user's own.
    """
    if uid == 0:
        return os.path.join(_SYSTEM_FOLDER, name)
    # Imported here: with it come compressions, and most logs are none.
    from tempfile import gettempdir

    folder = f"{os.path.join(gettempdir(), name)}.{uid}"
    try:
        # The temporary folder is everybody's: another user could make the folder first, with a link to a file
        # of ours.
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a folder of user {uid} alone") from None
    return os.path.join(folder, "log")


class RuleLog:
    """
    The log of one file's C{log} statements.

    @ivar destination: C{"stderr"}, C{"syslog"}, C{"file"}; L{None} for no log.
    @ivar level: The lowest level that is logged.
    """

    def __init__(self, statements: Iterable[Log], program: str) -> None:
        """
        @param statements: In order; a later one overrides an earlier one.
        @param program: The name of this program.
        """
        self.destination: str | None = None
        self.file: str | None = None
        self.level = LOG_LEVEL
        self._program = program
        for statement in statements:
            # libsdp logs to standard error unless a statement has another destination.
            self.destination = statement.destination or self.destination or "stderr"
            self.file = statement.file if statement.destination else self.file
            self.level = self.level if statement.level is None else statement.level

    def wants(self, level: int) -> bool:
        """
        Return whether a line of a level is logged.
        """
        return self.destination is not None and level >= self.level

    def write(self, level: int, text: str) -> None:
        """
        Log a line; errors of the destination are ignored.

        @param level: 1 to 9.
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
            # A full disk, another user's folder, standard error closed or none: a program must not fail for
            # this log.
            self.destination = None

    def _append(self, line: str) -> None:
        path = logFile(self.file or "", os.geteuid())
        # O_NOFOLLOW against a symbolic link in the place of the log, O_NONBLOCK against a FIFO without a
        # reader.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, line.encode("utf-8", "surrogateescape"))
        finally:
            os.close(descriptor)
