"""
The configuration file that counts.

It is the one that C{TWISTED_IB_CONFIG} names, else C{twisted_ib/ib.conf} in the user's configuration folder,
else C{/etc/twisted_ib/ib.conf}; the first that exists, as far as this user may know.  If C{SIMPLE_LIBSDP} or
C{ALWAYS_USE_SDP} is set, to any value, no file is read, as with libsdp.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from twisted_ib.errors import RulesError
from twisted_ib.settings import CONFIG, SIMPLE_VARIABLES

#: Bytes of a file that are read.
POLICY_FILE_BYTES = 256 * 1024

#: The file within a configuration folder.
_NAME = os.path.join("twisted_ib", "ib.conf")
SYSTEM_FOLDER = "/etc"


def readRules(path: str, name: str | None = None) -> str:
    """
    Read a file of rules; octets that are not UTF-8 are escaped.

    @param name: The name for errors, if not C{path}.
    @raise OSError: it cannot be read.
    @raise RulesError: it is too long, or not a file.
    """
    name = path if name is None else name
    # O_NONBLOCK: opening a FIFO without a writer would block the program in its first connectTCP().
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise RulesError(f"{name}: is not a file")
        data = bytearray()
        # Counted while reading: a character device such as /dev/zero has no end, and /dev/null is a fair
        # empty file.
        while len(data) <= POLICY_FILE_BYTES and (piece := os.read(descriptor, 65536)):
            data += piece
    except OSError as error:
        error.filename = name
        raise
    finally:
        os.close(descriptor)
    if len(data) > POLICY_FILE_BYTES:
        raise RulesError(f"{name}: has more than {POLICY_FILE_BYTES} bytes")
    return data.decode("utf-8", "surrogateescape")


def candidates(environ: Mapping[str, str], systemFolder: str = SYSTEM_FOLDER) -> list[str]:
    """
    Return the possible files, of which the first that exists counts; only the one that the environment names,
    if any.

    @param systemFolder: The system's configuration folder.
    """
    named = environ.get(CONFIG)
    if named:
        return [named]
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):
        # XDG Base Directory Specification: a relative XDG_CONFIG_HOME is to be ignored.
        home = environ.get("HOME") or os.path.expanduser("~")
        folder = os.path.join(home, ".config")
    folders = (folder, systemFolder)
    return [os.path.join(folder, _NAME) for folder in folders if os.path.isabs(folder)]


def isConfigured(environ: Mapping[str, str], folder: str | None = None) -> bool:
    """
    Return whether a file is named, or there is one.

    @param folder: As of L{readFirst}.
    """
    if any(variable in environ for variable in SIMPLE_VARIABLES):
        return False
    names = candidates(environ)
    return bool(environ.get(CONFIG)) or any(os.path.lexists(os.path.join(folder or "", n)) for n in names)


def readFirst(
    environ: Mapping[str, str], systemFolder: str = SYSTEM_FOLDER, folder: str | None = None
) -> tuple[str, str] | None:
    """
    Read the file that counts.

    @param systemFolder: The system's configuration folder.
    @param folder: Where relative names begin, by default the current folder.
    @return: Its name and its text; L{None} if there is no file, or none is to be read.
    @raise OSError: it cannot be read.
    @raise RulesError: it is too long, or not a file.
    """
    if any(variable in environ for variable in SIMPLE_VARIABLES):
        return None
    named = bool(environ.get(CONFIG))
    for name in candidates(environ, systemFolder):
        path = name if folder is None else os.path.join(folder, name)
        try:
            return name, readRules(path, name)
        except (FileNotFoundError, NotADirectoryError) as error:
            if named:
                error.filename = name
                raise
        except OSError as error:
            # A folder that this user may not search is another's, as root's after the program has dropped its
            # privileges: the next file counts.
            if not isinstance(error, PermissionError) or named or os.path.lexists(path):
                error.filename = name
                raise
    return None
